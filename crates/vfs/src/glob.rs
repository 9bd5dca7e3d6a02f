//! Patterns for names (`*`, `?`, `[a-z]`) and for paths (the same, and `**` for any number of
//! directories).
//!
//! Neighbours: `find` filters with them, `export` selects the paths to extract. Names are matched
//! by code point if they are UTF-8, else by byte. The time is bounded by (length of pattern) ×
//! (length of name).

use weald_format::{Error, Result};

/// A code point, or 0x110000 plus a byte that is not UTF-8.
type Symbol = u32;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    Literal(Symbol),
    Any,
    Star,
    Class {
        is_negated: bool,
        ranges: Vec<(Symbol, Symbol)>,
    },
}

/// A pattern for one name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Glob {
    tokens: Vec<Token>,
    is_caseless: bool,
    /// The literals between the stars, if the pattern has only stars and ASCII. An ASCII byte is a
    /// symbol of its own in every name, so that such a pattern is matched by bytes.
    plain: Option<Vec<Vec<u8>>>,
}

impl Glob {
    /// Parses a pattern: `*` matches any run of characters, `?` one character, `[a-z]` one of a
    /// set, `[!a-z]` one not in the set; `\` makes the next character literal.
    ///
    /// # Errors
    /// `Invalid` for a `[` without its `]` and for a `\` at the end.
    pub fn parse(pattern: &[u8]) -> Result<Self> {
        let tokens = parse_tokens(pattern)?;
        Ok(Self {
            plain: plain_parts(&tokens),
            tokens,
            is_caseless: false,
        })
    }

    /// The same pattern, case-insensitive.
    pub fn caseless(mut self) -> Self {
        self.is_caseless = true;
        self.plain = None;
        for token in &mut self.tokens {
            if let Token::Literal(symbol) = token {
                *symbol = lower(*symbol);
            }
        }
        self
    }

    /// Whether the pattern matches the whole `name`.
    ///
    /// # Cost
    /// O(pattern · name) time at worst, no allocation.
    pub fn matches(&self, name: &[u8]) -> bool {
        match &self.plain {
            Some(parts) => matches_plain(parts, name),
            None => self.matches_symbols(name),
        }
    }

    fn matches_symbols(&self, name: &[u8]) -> bool {
        let (mut token_index, mut at) = (0, 0);
        // The state to resume from: behind the last star, and the end of what the star matched.
        let mut retry: Option<(usize, usize)> = None;
        loop {
            let symbol = next_symbol(name, at);
            match (self.tokens.get(token_index), symbol) {
                (Some(Token::Star), _) => {
                    retry = Some((token_index + 1, at));
                    token_index += 1;
                    continue;
                }
                (Some(token), Some((symbol, len))) if self.token_matches(token, symbol) => {
                    token_index += 1;
                    at += len;
                    continue;
                }
                (None, None) => return true,
                _ => {}
            }
            let Some((behind, swallowed)) = retry else {
                return false;
            };
            let Some((_, len)) = next_symbol(name, swallowed) else {
                return false;
            };
            retry = Some((behind, swallowed + len));
            (token_index, at) = (behind, swallowed + len);
        }
    }

    fn token_matches(&self, token: &Token, symbol: Symbol) -> bool {
        let folded = if self.is_caseless {
            lower(symbol)
        } else {
            symbol
        };
        match token {
            Token::Literal(literal) => *literal == folded,
            Token::Any => true,
            Token::Star => false,
            Token::Class { is_negated, ranges } => {
                let is_in = |s: Symbol| ranges.iter().any(|&(low, high)| low <= s && s <= high);
                let is_found =
                    is_in(symbol) || self.is_caseless && (is_in(folded) || is_in(upper(symbol)));
                is_found != *is_negated
            }
        }
    }
}

/// The literals between the stars of `tokens`, one more than there are stars; `None` if there are
/// other tokens.
fn plain_parts(tokens: &[Token]) -> Option<Vec<Vec<u8>>> {
    let parts = tokens.split(|token| *token == Token::Star);
    let byte = |token: &Token| match token {
        Token::Literal(symbol) => u8::try_from(*symbol).ok().filter(u8::is_ascii),
        _ => None,
    };
    parts.map(|part| part.iter().map(byte).collect()).collect()
}

/// Whether `name` consists of the parts in order with anything between them. Taking the first
/// occurrence of each part leaves most of the name for the others.
fn matches_plain(parts: &[Vec<u8>], name: &[u8]) -> bool {
    let (first, between, last) = match parts {
        [] => return false,
        [only] => return only == name,
        [first, between @ .., last] => (first, between, last),
    };
    // Checked first because an empty part has a dangling address, for which glibc's comparison by
    // masked loads takes 100 ns.
    let is_first = first.is_empty() || name.starts_with(first);
    let Some(mut rest) = name.get(first.len()..).filter(|_| is_first) else {
        return false;
    };
    if !last.is_empty() {
        match rest.strip_suffix(last.as_slice()) {
            Some(before) => rest = before,
            None => return false,
        }
    }
    between.iter().all(|part| {
        // Never empty, because adjacent stars are one token.
        let mut windows = rest.windows(part.len().max(1));
        let found = windows.position(|window| window == part.as_slice());
        rest = found.map_or(rest, |at| rest.get(at + part.len()..).unwrap_or_default());
        found.is_some()
    })
}

fn lower(symbol: Symbol) -> Symbol {
    char::from_u32(symbol).map_or(symbol, |c| {
        c.to_lowercase().next().map_or(symbol, Symbol::from)
    })
}

fn upper(symbol: Symbol) -> Symbol {
    char::from_u32(symbol).map_or(symbol, |c| {
        c.to_uppercase().next().map_or(symbol, Symbol::from)
    })
}

/// The symbol of `bytes` at `at` and its length in bytes.
fn next_symbol(bytes: &[u8], at: usize) -> Option<(Symbol, usize)> {
    let rest = bytes.get(at..)?;
    let &first = rest.first()?;
    if first < 0x80 {
        return Some((first.into(), 1));
    }
    let head = rest.get(..4).unwrap_or(rest);
    let valid = head.utf8_chunks().next()?.valid();
    match valid.chars().next() {
        Some(c) => Some((c.into(), c.len_utf8())),
        None => Some((0x11_0000 + Symbol::from(first), 1)),
    }
}

fn parse_tokens(pattern: &[u8]) -> Result<Vec<Token>> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some((symbol, len)) = next_symbol(pattern, at) {
        at += len;
        let token = match char::from_u32(symbol) {
            Some('*') if tokens.last() == Some(&Token::Star) => continue,
            Some('*') => Token::Star,
            Some('?') => Token::Any,
            Some('[') => {
                let (class, end) =
                    parse_class(pattern, at).ok_or_else(|| bad(pattern, "a '[' has no ']'"))?;
                at = end;
                class
            }
            Some('\\') => {
                let escaped =
                    next_symbol(pattern, at).ok_or_else(|| bad(pattern, "it ends with a '\\'"))?;
                at += escaped.1;
                Token::Literal(escaped.0)
            }
            _ => Token::Literal(symbol),
        };
        tokens.push(token);
    }
    Ok(tokens)
}

fn bad(pattern: &[u8], why: &str) -> Error {
    Error::invalid(format!("pattern '{}': {why}", crate::shown(pattern)))
}

/// Parses a class behind its `[`; returns it and the index behind its `]`.
fn parse_class(pattern: &[u8], start: usize) -> Option<(Token, usize)> {
    let is_negated = matches!(pattern.get(start), Some(b'!' | b'^'));
    let mut at = start + usize::from(is_negated);
    let first = at;
    let mut ranges = Vec::new();
    loop {
        // A leading ']' is a member of the class.
        if pattern.get(at) == Some(&b']') && at > first {
            return Some((Token::Class { is_negated, ranges }, at + 1));
        }
        let (low, after_low) = class_symbol(pattern, at)?;
        at = after_low;
        let is_range =
            pattern.get(at) == Some(&b'-') && pattern.get(at + 1).is_some_and(|&b| b != b']');
        let (high, after_high) = if is_range {
            class_symbol(pattern, at + 1)?
        } else {
            (low, at)
        };
        at = after_high;
        ranges.push((low, high));
    }
}

fn class_symbol(pattern: &[u8], at: usize) -> Option<(Symbol, usize)> {
    let (symbol, len) = next_symbol(pattern, at)?;
    if symbol != Symbol::from(b'\\') {
        return Some((symbol, at + len));
    }
    let (escaped, escaped_len) = next_symbol(pattern, at + len)?;
    Some((escaped, at + len + escaped_len))
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum GlobPart {
    Name(Glob),
    /// `**`: any number of directories, or none.
    Deep,
}

/// A pattern for a path from the root of an image; a leading `/` changes nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathGlob {
    parts: Vec<GlobPart>,
}

impl PathGlob {
    /// Parses names separated by `/`, each a [`Glob`] or `**`; empty parts and `.` are dropped.
    ///
    /// # Errors
    /// `Invalid` for a `..` and for what [`Glob::parse`] refuses.
    pub fn parse(pattern: &[u8]) -> Result<Self> {
        let names = pattern
            .split(|&b| b == b'/')
            .filter(|name| !name.is_empty() && *name != b".");
        let parts = names.map(|name| match name {
            b"**" => Ok(GlobPart::Deep),
            b".." => Err(bad(pattern, "'..' is not allowed")),
            name => Glob::parse(name).map(GlobPart::Name),
        });
        let mut parts = parts.collect::<Result<Vec<_>>>()?;
        parts.dedup_by(|a, b| matches!((a, b), (GlobPart::Deep, GlobPart::Deep)));
        Ok(Self { parts })
    }

    /// Whether the pattern matches the whole `path`, which has no leading `/`.
    pub fn matches(&self, path: &[u8]) -> bool {
        let mut positions = vec![0];
        self.close(&mut positions);
        for name in path.split(|&b| b == b'/').filter(|name| !name.is_empty()) {
            positions = self.step(&positions, name);
        }
        positions.contains(&self.parts.len())
    }

    /// The position behind the last name.
    pub(crate) fn end(&self) -> usize {
        self.parts.len()
    }

    /// The positions in the pattern after one more name, for the positions before it.
    pub(crate) fn step(&self, positions: &[usize], name: &[u8]) -> Vec<usize> {
        let mut next = Vec::new();
        for &position in positions {
            match self.parts.get(position) {
                Some(GlobPart::Name(glob)) if glob.matches(name) => next.push(position + 1),
                // A final `**` matches any number of further names.
                Some(GlobPart::Deep) if position + 1 == self.parts.len() => {
                    next.extend([position, position + 1])
                }
                Some(GlobPart::Deep) => next.push(position),
                _ => {}
            }
        }
        self.close(&mut next);
        next
    }

    /// Adds the positions behind each `**`, which may match no directory.
    pub(crate) fn close(&self, positions: &mut Vec<usize>) {
        let mut index = 0;
        while let Some(&position) = positions.get(index) {
            let is_skippable = self.parts.get(position) == Some(&GlobPart::Deep)
                && position + 1 < self.parts.len();
            if is_skippable {
                positions.push(position + 1);
            }
            index += 1;
        }
        positions.sort_unstable();
        positions.dedup();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, name: &[u8]) -> bool {
        Glob::parse(pattern.as_bytes()).unwrap().matches(name)
    }

    /// All words of up to `len_max` letters out of `letters`.
    fn words(letters: &[&str], len_max: usize) -> Vec<String> {
        let mut all = vec![String::new()];
        let mut last = all.clone();
        for _ in 0..len_max {
            let longer = |word: &String| letters.iter().map(|l| format!("{word}{l}")).collect();
            last = last.iter().flat_map::<Vec<String>, _>(longer).collect();
            all.extend_from_slice(&last);
        }
        all
    }

    /// Would catch: a match by bytes that differs from the match by symbols.
    #[test]
    fn the_short_cut_for_plain_patterns_changes_nothing() {
        let names = words(&["a", "b", "é"], 5);
        let (mut plain_count, mut match_count) = (0, 0);
        for pattern in words(&["a", "b", "*"], 5) {
            let glob = Glob::parse(pattern.as_bytes()).unwrap();
            plain_count += usize::from(glob.plain.is_some());
            for name in &names {
                let expected = glob.matches_symbols(name.as_bytes());
                assert_eq!(glob.matches(name.as_bytes()), expected, "{pattern} {name}");
                match_count += usize::from(expected);
            }
        }
        assert!(
            plain_count == 364 && match_count > 1000,
            "{plain_count} {match_count}"
        );
        for other in ["a?", "[a]", "é*"] {
            assert!(Glob::parse(other.as_bytes()).unwrap().plain.is_none());
        }
    }

    #[test]
    fn names_match_as_in_the_shell() {
        for (pattern, name, expected) in [
            ("", "", true),
            ("", "a", false),
            ("abc", "abc", true),
            ("abc", "abcd", false),
            ("*", "", true),
            ("*.rs", "main.rs", true),
            ("*.rs", "main.rsx", false),
            ("a*b*c", "aXbXbXc", true),
            ("a*b*c", "aXcXb", false),
            ("?", "ü", true),
            ("?", "", false),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[^a-c]x", "dx", true),
            ("[]]", "]", true),
            ("[a-]", "-", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("[ä-ö]", "ñ", true),
            ("***a", "bba", true),
        ] {
            assert_eq!(
                matches(pattern, name.as_bytes()),
                expected,
                "{pattern} {name}"
            );
        }
        assert!(matches("a?c", b"a\xffc"));
        assert!(!matches("a?c", b"a\xff\xfec"));
    }

    #[test]
    fn caseless_matches_both_cases() {
        let glob = Glob::parse("Re[A-F]*.TXT".as_bytes()).unwrap().caseless();
        assert!(glob.matches(b"readme.txt"));
        assert!(glob.matches(b"README.txt"));
        assert!(!glob.matches(b"rezdme.txt"));
    }

    #[test]
    fn broken_patterns_are_refused() {
        for pattern in ["[abc", "a\\", "[", "[]", "[a-"] {
            assert!(Glob::parse(pattern.as_bytes()).is_err(), "{pattern}");
        }
        assert!(PathGlob::parse(b"a/../b").is_err());
    }

    #[test]
    fn many_stars_take_no_exponential_time() {
        let pattern = "a*".repeat(60) + "b";
        assert!(!matches(&pattern, &[b'a'; 250]));
    }

    #[test]
    fn paths_match_with_any_number_of_directories() {
        for (pattern, path, expected) in [
            ("a/b", "a/b", true),
            ("/a/b", "a/b", true),
            ("a/*", "a/b/c", false),
            ("**/c", "c", true),
            ("**/c", "a/b/c", true),
            ("a/**/c", "a/c", true),
            ("a/**/c", "a/x/y/c", true),
            ("a/**", "a", false),
            ("a/**", "a/b", true),
            ("a/**", "a/b/c", true),
            ("**", "", false),
            ("**/**/x", "x", true),
            ("a/**/b/**/c", "a/1/b/2/3/c", true),
            ("a/**/b/**/c", "a/1/c/2/3/b", false),
        ] {
            let glob = PathGlob::parse(pattern.as_bytes()).unwrap();
            assert_eq!(glob.matches(path.as_bytes()), expected, "{pattern} {path}");
        }
    }
}
