//! Include and exclude rules as rsync has them: an ordered list of patterns, of which the first
//! that matches a path decides.
//!
//! This file holds the list and its syntax, `filter/pattern.rs` the matching, `filter/dir_rules.rs`
//! the rules that lie in the tree itself. A test runs the real rsync over trees and compares.

mod dir_rules;
mod pattern;

use dir_rules::{DirMerge, Held, Syntax};
pub use dir_rules::{
    DirRules, FILE_LEN_MAX as DIR_FILE_LEN_MAX, RULES_LEN_MAX as DIR_RULES_LEN_MAX, ReadRules,
    ReadRulesOf,
};
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

impl Rule {
    /// Bytes of memory that it takes.
    fn memory_len(&self) -> u64 {
        let texts = self.text.len() + self.place.as_ref().map_or(0, String::len);
        (size_of::<Self>() + texts + self.pattern.heap_len()) as u64
    }

    /// A rule of the file of the directory `dir`.
    fn below(dir: &[u8], pattern: &[u8], verdict: Verdict) -> Result<Self> {
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

/// What stands in the list of a filter.
#[derive(Debug, Clone)]
enum Item {
    Rule(Rule),
    /// Rules of the directories themselves.
    Dirs(DirMerge),
}

/// What decides about one component of a path.
#[derive(Debug, Clone)]
pub struct Reason<'a> {
    /// The path up to this component, relative to the source's root.
    pub path: &'a [u8],
    /// The first rule that matches it; without one it is included.
    pub rule: Option<Rule>,
}

impl Reason<'_> {
    /// What becomes of the path.
    pub fn verdict(&self) -> Verdict {
        self.rule
            .as_ref()
            .map_or(Verdict::Included, |rule| rule.verdict)
    }
}

/// An ordered list of rules; the empty list includes everything.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    items: Vec<Item>,
    /// What the rules of directories take.
    held: Held,
}

impl Filter {
    /// A filter without rules.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether there are no rules, so that paths need not be built to be asked about.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
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

    /// Appends a rule. As in rsync, `+ ` and `- ` before the pattern overrule `verdict`, and a lone
    /// `!` clears the list.
    ///
    /// A pattern that begins with `/` matches from the source's root only; one that ends with `/`
    /// only directories. `*` and `?` stop at slashes, `**` does not, `DIR/***` means the directory
    /// and all below it. `[…]` is a class of bytes. Where the pattern has one of these, `\` takes
    /// the next byte literally. A pattern without a slash and `**` is compared with the last
    /// component, others with the end of the path.
    ///
    /// # Errors
    /// `Invalid` for an empty pattern.
    pub fn push_rule(&mut self, pattern: impl AsRef<[u8]>, verdict: Verdict) -> Result<()> {
        let (verdict, pattern) = match pattern.as_ref() {
            b"!" => {
                self.items.clear();
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
        self.items
            .push(Item::Rule(Rule::below(b"", pattern, verdict)?));
        Ok(())
    }

    /// The place of rules from item `from` on, where they have none yet.
    fn set_places(&mut self, from: usize, place: impl Fn() -> String) {
        for item in self.items.iter_mut().skip(from) {
            if let Item::Rule(rule) = item {
                rule.place.get_or_insert_with(&place);
            }
        }
    }

    /// Appends a rule for each line of `text`; lines that are empty or begin with `#` or `;` are
    /// comments.
    ///
    /// # Errors
    /// `Invalid` for a prefix without a pattern.
    pub fn push_lines(&mut self, text: &[u8], verdict: Verdict) -> Result<()> {
        self.push_lines_of(text, verdict, None)
    }

    fn push_lines_of(&mut self, text: &[u8], verdict: Verdict, file: Option<&Path>) -> Result<()> {
        for (line, place) in lines(text) {
            let count = self.items.len();
            self.push_rule(line, verdict)
                .map_err(|e| e.context(&place))?;
            self.set_places(count, || {
                let file = file.map(|f| format!("{}, ", f.display()));
                file.unwrap_or_default() + &place
            });
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

    /// Appends a rule as rsync's `--filter` has it: `- PATTERN` or `exclude PATTERN`, `+ PATTERN`
    /// or `include PATTERN`, `. FILE` or `merge FILE` for the rules in a file, one a line, `: NAME`
    /// or `dir-merge NAME` for the rules in files of that name in the directories themselves, `!`
    /// or `clear` for none of the rules before. Letters may follow the sign of a merge, or its word
    /// and a comma: `-` or `+` for a file of patterns, `w` for words instead of lines, `e` to leave
    /// the file out, `n` for rules that directories below do not inherit, `C` for files as CVS has
    /// them (`.cvsignore`).
    ///
    /// # Errors
    /// `Invalid` for other words and empty patterns; `NotFound`, `Io` for files; `Limit` where
    /// files merge each other without end; `Unsupported` for a path instead of a name behind
    /// `dir-merge`.
    pub fn push_filter(&mut self, rule: &[u8]) -> Result<()> {
        self.push_filter_at(rule, None, 0)
    }

    fn push_filter_at(&mut self, rule: &[u8], dir: Option<&Path>, depth: usize) -> Result<()> {
        let (word, rest) = split_word(rule);
        if let Some(letters) = letters_of(word, b".", b"merge") {
            let syntax = Syntax::parse(letters)?;
            return self.push_merge(rest, &syntax, dir, depth);
        }
        if let Some(letters) = letters_of(word, b":", b"dir-merge") {
            return self.push_dir_merge(rest, Syntax::parse(letters)?);
        }
        match word {
            b"-" | b"exclude" => self.push_plain(rest, Verdict::Excluded),
            b"+" | b"include" => self.push_plain(rest, Verdict::Included),
            b"!" | b"clear" if rest.is_empty() => {
                self.items.clear();
                Ok(())
            }
            _ => Err(Error::invalid(format!(
                "filter rule: expected '- PATTERN', '+ PATTERN', 'merge FILE', 'dir-merge NAME' \
                 or '!', found '{}'",
                rule.escape_ascii()
            ))),
        }
    }

    fn push_merge(
        &mut self,
        name: &[u8],
        syntax: &Syntax,
        dir: Option<&Path>,
        depth: usize,
    ) -> Result<()> {
        let path = Path::new(OsStr::from_bytes(name));
        self.push_left_out(path, syntax)?;
        // A file names others beside itself.
        let path = dir.map_or_else(|| path.to_owned(), |dir| dir.join(path));
        self.merge(&path, syntax, depth)
            .map_err(|e| e.context(path.display()))
    }

    /// The rule that leaves a file of rules itself out, if that is asked for.
    fn push_left_out(&mut self, path: &Path, syntax: &Syntax) -> Result<()> {
        match path.file_name().filter(|_| syntax.is_left_out) {
            Some(name) => self.push_plain(name.as_bytes(), Verdict::Excluded),
            None => Ok(()),
        }
    }

    fn push_dir_merge(&mut self, name: &[u8], syntax: Syntax) -> Result<()> {
        let name = match name {
            b"" if syntax.is_cvs => b".cvsignore",
            b"" => return Err(Error::invalid("dir-merge: expected the name of a file")),
            name => name,
        };
        if name.contains(&b'/') {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "dir-merge: expected a name without slashes, found '{}'",
                    name.escape_ascii()
                ),
            ));
        }
        self.push_left_out(Path::new(OsStr::from_bytes(name)), &syntax)?;
        let no = self.merges().count();
        self.items.push(Item::Dirs(DirMerge {
            name: name.to_vec(),
            syntax,
            no,
        }));
        Ok(())
    }

    fn merges(&self) -> impl Iterator<Item = &DirMerge> {
        self.items.iter().filter_map(|item| match item {
            Item::Dirs(merge) => Some(merge),
            Item::Rule(_) => None,
        })
    }

    /// Whether there may be rules in the directories themselves, so that [`Filter::below`] has to
    /// be asked.
    pub fn asks_dirs(&self) -> bool {
        self.merges().next().is_some()
    }

    /// What holds in the directory `dir`, below one in which `above` holds (the default above the
    /// root). `dir` is relative to the source's root, without slashes at its ends; `read` gives the
    /// bytes of its file of a name, `None` where there is no such regular file.
    ///
    /// # Errors
    /// Those of `read`; `Invalid` and `Unsupported` for rules that are none; `Limit` where those
    /// that are kept take more than [`DIR_RULES_LEN_MAX`].
    pub fn below(
        &self,
        above: &DirRules,
        dir: &[u8],
        read: &mut ReadRules<'_>,
    ) -> Result<DirRules> {
        let merges: Vec<&DirMerge> = self.merges().collect();
        above.below(&merges, &self.held, dir, read)
    }

    fn merge(&mut self, path: &Path, syntax: &Syntax, depth: usize) -> Result<()> {
        if depth == MERGE_DEPTH_MAX {
            return Err(Error::limit(
                "filter files that merge each other without end",
            ));
        }
        let text = std::fs::read(path).map_err(|e| Error::io("filter file", e))?;
        for (piece, place) in syntax.pieces(&text) {
            let count = self.items.len();
            let pushed = match syntax.plain {
                Some(_) if syntax.is_cvs && piece == b"!" => {
                    self.items.clear();
                    Ok(())
                }
                Some(verdict) => self.push_plain(piece, verdict),
                None => self.push_filter_at(piece, path.parent(), depth + 1),
            };
            pushed.map_err(|e| e.context(&place))?;
            self.set_places(count, || format!("{}, {place}", path.display()));
        }
        Ok(())
    }

    /// What the first matching rule says of `path`, which is relative to the source's root, without
    /// a leading slash; `Included` where none matches. `rules` are those that hold in the directory
    /// that `path` lies in. The caller does not ask about what lies below an excluded directory.
    pub fn matches(&self, rules: &DirRules, path: &[u8], is_dir: bool) -> Verdict {
        self.deciding(rules, path, is_dir)
            .map_or(Verdict::Included, |rule| rule.verdict)
    }

    fn deciding<'a>(&'a self, rules: &'a DirRules, path: &[u8], is_dir: bool) -> Option<&'a Rule> {
        let is_match = |rule: &Rule| rule.pattern.matches(path, is_dir);
        self.items.iter().find_map(|item| match item {
            Item::Rule(rule) => is_match(rule).then_some(rule),
            Item::Dirs(merge) => rules.find(merge, &is_match),
        })
    }

    /// Why `path` is kept or left out: what decides about each directory on the way to it and,
    /// unless one of them is excluded, about itself. `read` gives the bytes of a file of rules, by
    /// directory and name, as for [`Filter::below`].
    ///
    /// # Errors
    /// As [`Filter::below`].
    pub fn explain<'a>(
        &self,
        path: &'a [u8],
        is_dir: bool,
        read: &mut ReadRulesOf<'_>,
    ) -> Result<Vec<Reason<'a>>> {
        let mut reasons = Vec::new();
        let (mut rules, mut dir) = (DirRules::default(), &path[..0]);
        let slashes = path.iter().enumerate().filter(|(_, b)| **b == b'/');
        for end in slashes.map(|(at, _)| at).chain([path.len()]) {
            rules = self.below(&rules, dir, &mut |name| read(dir, name))?;
            let part = &path[..end];
            let rule = self.deciding(&rules, part, is_dir || end < path.len());
            let rule = rule.cloned();
            let reason = Reason { path: part, rule };
            let is_end = reason.verdict() == Verdict::Excluded;
            reasons.push(reason);
            if is_end {
                break;
            }
            dir = part;
        }
        Ok(reasons)
    }

    /// Whether `path` is left out; see [`Filter::matches`].
    pub fn excludes(&self, rules: &DirRules, path: &[u8], is_dir: bool) -> bool {
        self.matches(rules, path, is_dir) == Verdict::Excluded
    }
}

/// A rule's word, which ends with a space or an underscore, and what follows.
fn split_word(rule: &[u8]) -> (&[u8], &[u8]) {
    match rule.iter().position(|&b| b == b' ' || b == b'_') {
        Some(at) => (&rule[..at], &rule[at + 1..]),
        None => (rule, b""),
    }
}

/// The letters behind the sign or the word of a merge, where `word` is one: `:n`, `:,n` and
/// `dir-merge,n` are the same.
fn letters_of<'w>(word: &'w [u8], sign: &[u8], long: &[u8]) -> Option<&'w [u8]> {
    if let Some(letters) = word.strip_prefix(sign) {
        return Some(letters.strip_prefix(b",").unwrap_or(letters));
    }
    match word.strip_prefix(long)? {
        b"" => Some(b""),
        letters => letters.strip_prefix(b","),
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
