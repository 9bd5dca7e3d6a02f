//! Which extended attributes are kept, by patterns of their names.

use crate::pattern::Pattern;
use weald_format::{Error, Result};

/// Patterns of names: an xattr is kept if one of them matches and no excluding one does. Without
/// patterns that keep, all others are kept.
#[derive(Debug, Clone, Default)]
pub struct XattrRules {
    kept: Vec<Pattern>,
    excluded: Vec<Pattern>,
}

impl XattrRules {
    /// Parses patterns of the shell with commas between them; `!` before one excludes.
    ///
    /// # Errors
    /// `Invalid` for an empty pattern.
    pub fn parse(text: &[u8]) -> Result<Self> {
        let mut rules = Self::default();
        for word in text.split(|&byte| byte == b',') {
            let (list, pattern) = match word.strip_prefix(b"!") {
                Some(rest) => (&mut rules.excluded, rest),
                None => (&mut rules.kept, word),
            };
            if pattern.is_empty() {
                let text = String::from_utf8_lossy(text);
                return Err(Error::invalid(format!("'{text}': an empty pattern")));
            }
            list.push(Pattern::parse(&[b"/", pattern].concat()));
        }
        Ok(rules)
    }

    /// Whether every xattr is kept.
    pub fn is_everything(&self) -> bool {
        self.kept.is_empty() && self.excluded.is_empty()
    }

    /// Whether the xattr `name` is kept.
    pub fn keeps(&self, name: &[u8]) -> bool {
        let any = |list: &[Pattern]| list.iter().any(|pattern| pattern.matches(name, false));
        (self.kept.is_empty() || any(&self.kept)) && !any(&self.excluded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch: an excluded xattr that another pattern brings back, a pattern that matches the
    /// middle of a name.
    #[test]
    fn patterns_keep_and_exclude() {
        let keeps = |rules: &str, name: &str| {
            let rules = XattrRules::parse(rules.as_bytes()).unwrap();
            rules.keeps(name.as_bytes())
        };
        for (rules, name, is_kept) in [
            ("user.*", "user.a", true),
            ("user.*", "user.a.b", true),
            ("user.*", "trusted.user.a", false),
            ("user.*,!user.secret*", "user.secrets", false),
            ("user.*,!user.secret*", "user.public", true),
            ("!security.*", "user.a", true),
            ("!security.*", "security.selinux", false),
            ("!user.a,user.*", "user.a", false),
            ("user.[ab]", "user.b", true),
            ("user.?", "user.ab", false),
        ] {
            assert_eq!(keeps(rules, name), is_kept, "{rules} {name}");
        }
        assert!(XattrRules::parse(b"user.*,").is_err() && XattrRules::parse(b"!").is_err());
        assert!(XattrRules::default().keeps(b"any") && XattrRules::default().is_everything());
    }
}
