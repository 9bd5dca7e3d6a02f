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

/// An ordered list of rules; the empty list includes everything.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    rules: Vec<(Verdict, Pattern)>,
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
        self.rules.push((verdict, Pattern::parse(pattern)));
        Ok(())
    }

    /// Appends a rule for each line of `text`; lines that are empty or begin with `#` or `;` are comments.
    ///
    /// # Errors
    /// `Invalid` for a prefix without a pattern.
    pub fn push_lines(&mut self, text: &[u8], verdict: Verdict) -> Result<()> {
        let lines = text
            .split(|&b| b == b'\n')
            .map(|line| line.strip_suffix(b"\r").unwrap_or(line));
        for (index, line) in lines.enumerate() {
            if !matches!(line.first(), None | Some(b'#' | b';')) {
                self.push_rule(line, verdict)
                    .map_err(|e| e.context(format!("line {}", index + 1)))?;
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
        self.push_lines(&text, verdict)
            .map_err(|e| e.context(path.display()))
    }

    /// What the first matching rule says of `path`, which is relative to the source's root, without a leading slash;
    /// `Included` where none matches. The caller does not ask about what lies below an excluded directory.
    pub fn matches(&self, path: &[u8], is_dir: bool) -> Verdict {
        let matching = self
            .rules
            .iter()
            .find(|(_, pattern)| pattern.matches(path, is_dir));
        matching.map_or(Verdict::Included, |&(verdict, _)| verdict)
    }

    /// Whether `path` is left out; see [`Filter::matches`].
    pub fn excludes(&self, path: &[u8], is_dir: bool) -> bool {
        self.matches(path, is_dir) == Verdict::Excluded
    }
}

#[cfg(test)]
mod tests;
