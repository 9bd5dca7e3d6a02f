//! Include and exclude rules as rsync has them: an ordered list of patterns, of which the first that matches a path
//! decides.
//!
//! This file holds the list and its syntax, `filter/pattern.rs` the matching. A test runs the
//! real rsync over a tree and compares.

mod pattern;

use pattern::Pattern;
use std::path::Path;
use weald_format::{Error, Result};

/// What a filter says of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It goes into the image.
    Included,
    /// It does not, and nothing below it does.
    Excluded,
}

/// One rule of a filter.
#[derive(Debug, Clone)]
pub struct Rule {
    /// What becomes of the paths that it matches.
    pub verdict: Verdict,
    /// Its pattern, as it was given.
    pub text: Vec<u8>,
    /// File and line that it comes from, if it comes from a file.
    pub place: Option<String>,
    pattern: Pattern,
}

/// What decides about one component of a path.
#[derive(Debug, Clone)]
pub struct Reason<'a> {
    /// The path up to this component, relative to the source's root.
    pub path: &'a [u8],
    /// The first rule that matches it; without one it is included.
    pub rule: Option<&'a Rule>,
}

impl Reason<'_> {
    /// What becomes of the path.
    pub fn verdict(&self) -> Verdict {
        self.rule.map_or(Verdict::Included, |rule| rule.verdict)
    }
}

/// An ordered list of rules; the empty list includes everything.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    rules: Vec<Rule>,
}

impl Filter {
    /// A filter without rules.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether there are no rules, so that paths need not be built to be asked about.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Appends a rule that excludes what `pattern` matches; see [`Filter::push_rule`].
    ///
    /// # Errors
    /// `Invalid` for an empty pattern.
    pub fn push_exclude(&mut self, pattern: impl AsRef<[u8]>) -> Result<()> {
        self.push_rule(pattern, Verdict::Excluded)
    }

    /// Appends a rule that includes what `pattern` matches; see [`Filter::push_rule`].
    ///
    /// # Errors
    /// `Invalid` for an empty pattern.
    pub fn push_include(&mut self, pattern: impl AsRef<[u8]>) -> Result<()> {
        self.push_rule(pattern, Verdict::Included)
    }

    /// Appends a rule. As in rsync, `+ ` and `- ` before the pattern overrule `verdict`, and a lone `!` clears the list.
    ///
    /// A pattern that begins with `/` matches from the source's root only; one that ends with `/` only directories.
    /// `*` and `?` stop at slashes, `**` does not, `DIR/***` means the directory and all below it. `[…]` is a class of
    /// bytes. Where the pattern has one of these, `\` takes the next byte literally. A pattern without a slash and `**`
    /// is compared with the last component, others with the end of the path.
    ///
    /// # Errors
    /// `Invalid` for an empty pattern.
    pub fn push_rule(&mut self, pattern: impl AsRef<[u8]>, verdict: Verdict) -> Result<()> {
        let (verdict, pattern) = match pattern.as_ref() {
            b"!" => {
                self.rules.clear();
                return Ok(());
            }
            [b'+', b' ', rest @ ..] => (Verdict::Included, rest),
            [b'-', b' ', rest @ ..] => (Verdict::Excluded, rest),
            whole => (verdict, whole),
        };
        if pattern.is_empty() {
            return Err(Error::invalid("empty include or exclude pattern"));
        }
        self.rules.push(Rule {
            verdict,
            text: pattern.to_vec(),
            place: None,
            pattern: Pattern::parse(pattern),
        });
        Ok(())
    }

    /// Appends a rule for each line of `text`; lines that are empty or begin with `#` or `;` are comments.
    ///
    /// # Errors
    /// `Invalid` for a prefix without a pattern.
    pub fn push_lines(&mut self, text: &[u8], verdict: Verdict) -> Result<()> {
        self.push_lines_of(text, verdict, None)
    }

    fn push_lines_of(&mut self, text: &[u8], verdict: Verdict, file: Option<&Path>) -> Result<()> {
        let lines = text
            .split(|&b| b == b'\n')
            .map(|line| line.strip_suffix(b"\r").unwrap_or(line));
        for (index, line) in lines.enumerate() {
            if !matches!(line.first(), None | Some(b'#' | b';')) {
                let place = format!("line {}", index + 1);
                self.push_rule(line, verdict)
                    .map_err(|e| e.context(&place))?;
                // None is there after a line that clears the list.
                if let Some(rule) = self.rules.last_mut() {
                    let file = file.map(|f| format!("{}, ", f.display()));
                    rule.place = Some(file.unwrap_or_default() + &place);
                }
            }
        }
        Ok(())
    }

    /// Appends the rules of the file at `path`, one a line: `--exclude-from` and `--include-from`.
    ///
    /// # Errors
    /// `NotFound`, `Io`; `Invalid` as [`Filter::push_lines`].
    pub fn push_file(&mut self, path: &Path, verdict: Verdict) -> Result<()> {
        let text = std::fs::read(path).map_err(|e| Error::io(format!("{}", path.display()), e))?;
        self.push_lines_of(&text, verdict, Some(path))
            .map_err(|e| e.context(path.display()))
    }

    /// What the first matching rule says of `path`, which is relative to the source's root, without a leading slash;
    /// `Included` where none matches. The caller does not ask about what lies below an excluded directory.
    pub fn matches(&self, path: &[u8], is_dir: bool) -> Verdict {
        self.deciding(path, is_dir)
            .map_or(Verdict::Included, |rule| rule.verdict)
    }

    fn deciding(&self, path: &[u8], is_dir: bool) -> Option<&Rule> {
        self.rules
            .iter()
            .find(|rule| rule.pattern.matches(path, is_dir))
    }

    /// Why `path` is kept or left out: what decides about each directory on the way to it and, unless one of them is
    /// excluded, about itself.
    pub fn explain<'a>(&'a self, path: &'a [u8], is_dir: bool) -> Vec<Reason<'a>> {
        let mut reasons = Vec::new();
        let slashes = path.iter().enumerate().filter(|(_, b)| **b == b'/');
        for end in slashes.map(|(at, _)| at).chain([path.len()]) {
            let part = &path[..end];
            let rule = self.deciding(part, is_dir || end < path.len());
            let reason = Reason { path: part, rule };
            let is_end = reason.verdict() == Verdict::Excluded;
            reasons.push(reason);
            if is_end {
                break;
            }
        }
        reasons
    }

    /// Whether `path` is left out; see [`Filter::matches`].
    pub fn excludes(&self, path: &[u8], is_dir: bool) -> bool {
        self.matches(path, is_dir) == Verdict::Excluded
    }
}

#[cfg(test)]
mod tests;
