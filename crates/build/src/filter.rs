//! Include and exclude rules as rsync has them: an ordered list of patterns, of which the first that matches a path
//! decides.
//!
//! This file holds the list and its syntax, `filter/pattern.rs` the matching. A test runs the
//! real rsync over a tree and compares.

mod pattern;

use pattern::Pattern;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use weald_format::{Error, ErrorKind, Result};

/// Filter files that may merge each other.
const MERGE_DEPTH_MAX: usize = 16;

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
        self.push_plain(pattern, verdict)
    }

    /// Appends a rule whose pattern has no prefix.
    fn push_plain(&mut self, pattern: &[u8], verdict: Verdict) -> Result<()> {
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
        for (line, place) in lines(text) {
            self.push_rule(line, verdict)
                .map_err(|e| e.context(&place))?;
            // None is there after a line that clears the list.
            if let Some(rule) = self.rules.last_mut() {
                let file = file.map(|f| format!("{}, ", f.display()));
                rule.place = Some(file.unwrap_or_default() + &place);
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

    /// Appends a rule as rsync's `--filter` has it: `- PATTERN` or `exclude PATTERN`, `+ PATTERN` or `include PATTERN`, `. FILE` or
    /// `merge FILE` for the rules in a file, one a line, `!` or `clear` for none of the rules before.
    ///
    /// # Errors
    /// `Invalid` for other words and empty patterns; `Unsupported` for `: FILE` and `dir-merge FILE`; `NotFound`, `Io` for files; `Limit` where
    /// files merge each other without end.
    pub fn push_filter(&mut self, rule: &[u8]) -> Result<()> {
        self.push_filter_at(rule, None, 0)
    }

    fn push_filter_at(&mut self, rule: &[u8], dir: Option<&Path>, depth: usize) -> Result<()> {
        let (word, rest) = match rule.iter().position(|&b| b == b' ' || b == b'_') {
            Some(at) => (&rule[..at], &rule[at + 1..]),
            None => (rule, &b""[..]),
        };
        match word {
            b"-" | b"exclude" => self.push_plain(rest, Verdict::Excluded),
            b"+" | b"include" => self.push_plain(rest, Verdict::Included),
            b"!" | b"clear" if rest.is_empty() => {
                self.rules.clear();
                Ok(())
            }
            b"." | b"merge" => {
                let path = Path::new(OsStr::from_bytes(rest));
                // A file names others beside itself.
                let path = dir.map_or_else(|| path.to_owned(), |dir| dir.join(path));
                self.merge(&path, depth)
                    .map_err(|e| e.context(path.display()))
            }
            b":" | b"dir-merge" => Err(Error::new(
                ErrorKind::Unsupported,
                "filter rules of single directories (dir-merge) are not supported",
            )),
            _ => Err(Error::invalid(format!(
                "filter rule: expected '- PATTERN', '+ PATTERN', 'merge FILE' or '!', found '{}'",
                rule.escape_ascii()
            ))),
        }
    }

    fn merge(&mut self, path: &Path, depth: usize) -> Result<()> {
        if depth == MERGE_DEPTH_MAX {
            return Err(Error::limit(
                "filter files that merge each other without end",
            ));
        }
        let text = std::fs::read(path).map_err(|e| Error::io("filter file", e))?;
        for (line, place) in lines(&text) {
            let count = self.rules.len();
            self.push_filter_at(line, path.parent(), depth + 1)
                .map_err(|e| e.context(&place))?;
            if let Some(rule) = self.rules.get_mut(count..).and_then(|new| new.last_mut()) {
                let place = || format!("{}, {place}", path.display());
                rule.place.get_or_insert_with(place);
            }
        }
        Ok(())
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

/// The lines of a file of rules that are neither empty nor comments, each with its place.
fn lines(text: &[u8]) -> impl Iterator<Item = (&[u8], String)> {
    let lines = text
        .split(|&b| b == b'\n')
        .map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let placed = (1..).zip(lines);
    placed
        .filter(|(_, line)| !matches!(line.first(), None | Some(b'#' | b';')))
        .map(|(no, line)| (line, format!("line {no}")))
}

#[cfg(test)]
mod tests;
