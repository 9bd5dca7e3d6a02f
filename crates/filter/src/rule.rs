//! One rule, and the parts of its text.

use crate::pattern::Pattern;
use weald_format::{Error, Result};

/// Decision of a filter about a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The path goes into the image.
    Included,
    /// The path and everything below it are left out.
    Excluded,
}

/// One rule of a filter.
#[derive(Debug, Clone)]
pub struct Rule {
    /// Decision for the paths that it matches.
    pub verdict: Verdict,
    /// The pattern as the user wrote it.
    pub text: Vec<u8>,
    /// File and line of the rule, if it comes from a file.
    pub place: Option<String>,
    pub(super) pattern: Pattern,
}

impl Rule {
    /// Memory that the rule takes, bytes.
    pub(super) fn memory_len(&self) -> u64 {
        let texts = self.text.len() + self.place.as_ref().map_or(0, String::len);
        (size_of::<Self>() + texts + self.pattern.heap_len()) as u64
    }

    /// Creates a rule from the filter file of directory `dir`.
    pub(super) fn below(dir: &[u8], pattern: &[u8], verdict: Verdict) -> Result<Self> {
        if pattern.is_empty() {
            return Err(Error::invalid("empty include or exclude pattern"));
        }
        Ok(Self {
            verdict,
            text: pattern.to_vec(),
            place: None,
            pattern: Pattern::parse_below(dir, pattern),
        })
    }
}

/// Splits a rule into its word, which ends with a space or an underscore, and the rest.
pub(super) fn split_word(rule: &[u8]) -> (&[u8], &[u8]) {
    match rule.iter().position(|&b| b == b' ' || b == b'_') {
        Some(at) => (&rule[..at], &rule[at + 1..]),
        None => (rule, b""),
    }
}

/// Lines of a filter file that are neither empty nor comments, each with its place.
pub(super) fn lines(text: &[u8]) -> impl Iterator<Item = (&[u8], String)> {
    let lines = text
        .split(|&b| b == b'\n')
        .map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let placed = (1..).zip(lines);
    placed
        .filter(|(_, line)| !matches!(line.first(), None | Some(b'#' | b';')))
        .map(|(no, line)| (line, format!("line {no}")))
}
