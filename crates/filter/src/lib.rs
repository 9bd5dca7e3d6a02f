//! Include and exclude rules as in rsync: an ordered list of patterns, of which the first match
//! decides.
//!
//! This file holds the list and its syntax, `pattern.rs` the matching, `rule.rs` one rule,
//! `dir_rules.rs` the rules in files of the tree itself, `path_list.rs` lists of paths,
//! `attribute_choice.rs` what is kept of attributes: `xattr_rules.rs` and `id_map.rs`. Tests of the
//! builder, which walks, run the real rsync over trees and compare.
//!
//! ```
//! use weald_filter::{DirRules, Filter};
//!
//! # fn main() -> weald_format::Result<()> {
//! let mut filter = Filter::new();
//! filter.push_include("keep.o")?;
//! filter.push_exclude("*.o")?;
//! let rules = DirRules::default();
//! assert!(filter.excludes(&rules, b"src/main.o", false));
//! assert!(!filter.excludes(&rules, b"src/keep.o", false));
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod attribute_choice;
mod dir_rules;
mod id_map;
mod path_list;
mod pattern;
mod rule;
mod xattr_rules;

pub use attribute_choice::AttributeChoice;
pub use dir_rules::{DIR_FILE_LEN_MAX, DIR_RULES_LEN_MAX, DirRules, ReadRules, ReadRulesOf};
use dir_rules::{DirMerge, Held, Syntax};
pub use id_map::{IdMap, IdRange};
pub use path_list::{ListNode, PathList};
pub use rule::{Rule, Verdict};
use rule::{lines, split_word};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use weald_format::{Error, ErrorKind, Result};
pub use xattr_rules::XattrRules;

/// Maximum nesting of merged filter files.
const MERGE_DEPTH_MAX: usize = 16;

/// An item in the list of a filter.
#[derive(Debug, Clone)]
enum Item {
    Rule(ListedRule),
    /// Rules from files in the directories themselves.
    Dirs(DirMerge),
}

/// A rule of the list.
#[derive(Debug, Clone)]
struct ListedRule {
    rule: Rule,
    /// Whether it has decided about a path; clones of the filter share this.
    has_decided: Arc<AtomicBool>,
}

/// Decision about one component of a path.
#[derive(Debug, Clone)]
pub struct Reason<'a> {
    /// The path up to this component, relative to the source's root.
    pub path: &'a [u8],
    /// The first rule that matches; `None` if no rule matches, and the path is included.
    pub rule: Option<Rule>,
}

impl ListedRule {
    /// The rule, which has decided about a path.
    fn decided(&self) -> &Rule {
        // Most paths meet the same few rules: a write would take the line from other threads.
        if !self.has_decided.load(Ordering::Relaxed) {
            self.has_decided.store(true, Ordering::Relaxed);
        }
        &self.rule
    }

    fn is_idle(&self) -> bool {
        self.rule.place.is_none() && !self.has_decided.load(Ordering::Relaxed)
    }
}

impl Reason<'_> {
    /// The resulting decision.
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
    /// Memory that the rules of directories take.
    held: Held,
}

impl Filter {
    /// A filter without rules.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether there are no rules. Callers then need not build paths.
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

    /// Appends a rule. As in rsync, `+ ` or `- ` before the pattern overrides `verdict`, and a lone
    /// `!` clears the list.
    ///
    /// A pattern that begins with `/` matches only from the source's root; one that ends with `/`
    /// matches only directories. `*` and `?` stop at slashes, `**` does not; `DIR/***` means the
    /// directory and everything below it. `[…]` is a class of bytes. If the pattern contains one
    /// of these, `\` quotes the next byte. A pattern without a slash or `**` is compared with the
    /// last component, other patterns with the end of the path.
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
        self.items.push(Item::Rule(ListedRule {
            rule: Rule::below(b"", pattern, verdict)?,
            has_decided: Arc::default(),
        }));
        Ok(())
    }

    /// Sets the place of the rules from item `from` on that have none yet.
    fn set_places(&mut self, from: usize, place: impl Fn() -> String) {
        for item in self.items.iter_mut().skip(from) {
            if let Item::Rule(ListedRule { rule, .. }) = item {
                rule.place.get_or_insert_with(&place);
            }
        }
    }

    /// Appends a rule for each line of `text`. Empty lines and lines that begin with `#` or `;` are
    /// ignored.
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

    /// Appends the rules of the file at `path`, one per line (`--exclude-from`, `--include-from`).
    ///
    /// # Errors
    /// `NotFound`, `Io`; `Invalid` as [`Filter::push_lines`].
    pub fn push_file(&mut self, path: &Path, verdict: Verdict) -> Result<()> {
        let text = std::fs::read(path).map_err(|e| Error::io(format!("{}", path.display()), e))?;
        self.push_lines_of(&text, verdict, Some(path))
            .map_err(|e| e.context(path.display()))
    }

    /// Appends a rule in the syntax of rsync's `--filter`:
    /// - `- PATTERN`, `exclude PATTERN`: excludes.
    /// - `+ PATTERN`, `include PATTERN`: includes.
    /// - `. FILE`, `merge FILE`: reads rules from a file, one per line.
    /// - `: NAME`, `dir-merge NAME`: reads rules from files of that name in the directories.
    /// - `!`, `clear`: removes all rules before it.
    ///
    /// Modifiers follow the sign of a merge, or its word and a comma: `-` or `+` for a file of
    /// patterns, `w` for words instead of lines, `e` to exclude the file itself, `n` for rules that
    /// subdirectories do not inherit, `C` for files in CVS syntax (`.cvsignore`).
    ///
    /// # Errors
    /// `Invalid` for other words and empty patterns; `NotFound`, `Io` for files; `Limit` if files
    /// merge each other without end; `Unsupported` for a path instead of a name after `dir-merge`.
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
        self.push_self_exclusion(path, syntax)?;
        // The file's path is relative to the directory of the file that names it.
        let path = dir.map_or_else(|| path.to_owned(), |dir| dir.join(path));
        self.merge(&path, syntax, depth)
            .map_err(|e| e.context(path.display()))
    }

    /// Excludes the filter file itself, if the modifier `e` asks for that.
    fn push_self_exclusion(&mut self, path: &Path, syntax: &Syntax) -> Result<()> {
        match path.file_name().filter(|_| syntax.excludes_itself) {
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
        self.push_self_exclusion(Path::new(OsStr::from_bytes(name)), &syntax)?;
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

    /// Whether directories may have filter files, so that the caller has to use [`Filter::below`].
    pub fn asks_dirs(&self) -> bool {
        self.merges().next().is_some()
    }

    /// Returns the rules in force in directory `dir`, a subdirectory of one with the rules `above`
    /// (the default for the root). `dir` is relative to the source's root, without slashes at its
    /// ends. `read` returns the content of a file in `dir` by name; `None` if there is no such
    /// regular file.
    ///
    /// # Errors
    /// Those of `read`; `Invalid` and `Unsupported` for malformed rules; `Limit` if the rules in
    /// memory take more than [`DIR_RULES_LEN_MAX`].
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
            return Err(Error::limit("filter files merge each other without end"));
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

    /// Returns the decision of the first rule that matches `path`, and `Included` if none does.
    /// `path` is relative to the source's root, without a leading slash. `rules` are those in force
    /// in its directory. The caller must not ask about paths below an excluded directory.
    pub fn matches(&self, rules: &DirRules, path: &[u8], is_dir: bool) -> Verdict {
        self.deciding(rules, path, is_dir)
            .map_or(Verdict::Included, |rule| rule.verdict)
    }

    fn deciding<'a>(&'a self, rules: &'a DirRules, path: &[u8], is_dir: bool) -> Option<&'a Rule> {
        let is_match = |rule: &Rule| rule.pattern.matches(path, is_dir);
        self.items.iter().find_map(|item| match item {
            Item::Rule(listed) => is_match(&listed.rule).then(|| listed.decided()),
            Item::Dirs(merge) => rules.find(merge, &is_match),
        })
    }

    /// The rules that have decided about no path so far, in this filter and its clones: nothing
    /// matches, or earlier rules do. Rules from files are left out: lists of what may be there are
    /// made for many trees.
    pub fn idle_rules(&self) -> impl Iterator<Item = &Rule> {
        self.items.iter().filter_map(|item| match item {
            Item::Rule(listed) if listed.is_idle() => Some(&listed.rule),
            Item::Rule(_) | Item::Dirs(_) => None,
        })
    }

    /// Explains the decision about `path`: one reason for each directory on the path to it and,
    /// unless one of them is excluded, one for `path` itself. `read` returns the content of a
    /// filter file by directory and name, as for [`Filter::below`].
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

    /// Whether `path` is excluded; see [`Filter::matches`].
    pub fn excludes(&self, rules: &DirRules, path: &[u8], is_dir: bool) -> bool {
        self.excluding(rules, path, is_dir).is_some()
    }

    /// The rule that excludes `path`, if it is excluded; see [`Filter::matches`].
    pub fn excluding<'a>(
        &'a self,
        rules: &'a DirRules,
        path: &[u8],
        is_dir: bool,
    ) -> Option<&'a Rule> {
        let rule = self.deciding(rules, path, is_dir);
        rule.filter(|rule| rule.verdict == Verdict::Excluded)
    }
}

/// Returns the modifiers of a merge rule if `word` is one: `:n`, `:,n` and `dir-merge,n` are the
/// same.
fn letters_of<'w>(word: &'w [u8], sign: &[u8], long: &[u8]) -> Option<&'w [u8]> {
    if let Some(letters) = word.strip_prefix(sign) {
        return Some(letters.strip_prefix(b",").unwrap_or(letters));
    }
    match word.strip_prefix(long)? {
        b"" => Some(b""),
        letters => letters.strip_prefix(b","),
    }
}
