//! Rules from filter files in the directories themselves (rsync's `dir-merge`). They take the
//! position of the rule that names the files. The rules of a directory come before those that it
//! inherits from its parent.

use crate::rule::{Rule, Verdict, lines, split_word};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use weald_format::{Error, ErrorKind, Result};

/// Longest filter file, bytes.
pub const DIR_FILE_LEN_MAX: u64 = 64 << 10;
/// Memory that the rules of all directories being read may take, bytes. The rules of a directory
/// stay in memory while any directory below it waits to be read.
pub const DIR_RULES_LEN_MAX: u64 = 32 << 20;

/// Memory that the rules of directories take now, bytes; clones share the counter.
#[derive(Debug, Clone, Default)]
pub struct Held(Arc<AtomicU64>);

/// Part of that memory that one list takes.
#[derive(Debug)]
struct Share {
    all: Held,
    len: u64,
}

impl Share {
    /// Adds `len` bytes.
    fn grow(&mut self, len: u64) -> Result<()> {
        self.len += len;
        let before = self.all.0.fetch_add(len, Ordering::Relaxed);
        if before + len <= DIR_RULES_LEN_MAX {
            Ok(())
        } else {
            Err(Error::limit(format!(
                "filter files: rules of directories take more than {DIR_RULES_LEN_MAX} bytes of \
             memory"
            )))
        }
    }

    fn clear(&mut self) {
        self.all.0.fetch_sub(self.len, Ordering::Relaxed);
        self.len = 0;
    }
}

/// Returns the content of a filter file by name; `None` if there is no such regular file.
pub type ReadRules<'a> = dyn FnMut(&[u8]) -> Result<Option<Vec<u8>>> + 'a;

/// Returns the content of a filter file by directory, relative to the source's root, and name.
pub type ReadRulesOf<'a> = dyn FnMut(&[u8], &[u8]) -> Result<Option<Vec<u8>>> + 'a;

/// Syntax of a filter file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Syntax {
    /// Every line is a pattern with this verdict; `None`: every line is a rule.
    pub plain: Option<Verdict>,
    /// Words instead of lines, and no comments.
    pub has_words: bool,
    /// `!` clears the list even if every line is a pattern.
    pub is_cvs: bool,
    /// Subdirectories do not inherit the rules.
    pub is_own: bool,
    /// The file itself is excluded.
    pub excludes_itself: bool,
}

impl Syntax {
    /// Parses the modifiers after `merge,` or `dir-merge,`.
    ///
    /// # Errors
    /// `Invalid` for other letters, and for letters that contradict each other.
    pub fn parse(letters: &[u8]) -> Result<Self> {
        let mut syntax = Self::default();
        for letter in letters {
            match letter {
                b'-' if syntax.plain != Some(Verdict::Included) => {
                    syntax.plain = Some(Verdict::Excluded);
                }
                b'+' if syntax.plain != Some(Verdict::Excluded) => {
                    syntax.plain = Some(Verdict::Included);
                }
                b'w' => syntax.has_words = true,
                b'n' => syntax.is_own = true,
                b'e' => syntax.excludes_itself = true,
                b'C' if syntax.plain != Some(Verdict::Included) => {
                    syntax = Self {
                        plain: Some(Verdict::Excluded),
                        has_words: true,
                        is_cvs: true,
                        is_own: true,
                        ..syntax
                    };
                }
                other => {
                    let what = format!(
                        "filter rule: expected letters of -, +, C, e, n and w, found '{}'",
                        other.escape_ascii()
                    );
                    return Err(Error::invalid(what));
                }
            }
        }
        Ok(syntax)
    }

    /// Lines or words of a file, each with its place.
    pub fn pieces<'t>(&self, text: &'t [u8]) -> Vec<(&'t [u8], String)> {
        if !self.has_words {
            return lines(text).collect();
        }
        let numbered = (1..).zip(text.split(|&b| b == b'\n'));
        let words = numbered.flat_map(|(no, line): (usize, &[u8])| {
            let words = line.split(|b| b.is_ascii_whitespace());
            let words = words.filter(|word| !word.is_empty());
            words.map(move |word| (word, format!("line {no}")))
        });
        words.collect()
    }
}

/// A `dir-merge` rule.
#[derive(Debug, Clone)]
pub struct DirMerge {
    /// Name of the file in every directory.
    pub name: Vec<u8>,
    /// Syntax of the files.
    pub syntax: Syntax,
    /// Index among the `dir-merge` rules.
    pub no: usize,
}

/// Rules of the filter file in one directory, and the inherited list.
#[derive(Debug)]
pub struct List {
    rules: Vec<Rule>,
    inherited: Option<Arc<List>>,
    share: Share,
}

impl Drop for List {
    /// Drops a long chain of directories without recursion.
    fn drop(&mut self) {
        self.share.clear();
        let mut next = self.inherited.take();
        while let Some(mut list) = next.and_then(Arc::into_inner) {
            next = list.inherited.take();
        }
    }
}

impl List {
    /// An empty list whose rules count in `held`.
    fn new(held: &Held) -> Self {
        Self {
            rules: Vec::new(),
            inherited: None,
            share: Share {
                all: held.clone(),
                len: 0,
            },
        }
    }

    /// The first rule for which `is_match` is true.
    fn find(&self, is_match: &dyn Fn(&Rule) -> bool) -> Option<&Rule> {
        let mut list = Some(self);
        while let Some(here) = list {
            let found = here.rules.iter().find(|rule| is_match(rule));
            if found.is_some() {
                return found;
            }
            list = here.inherited.as_deref();
        }
        None
    }
}

/// Rules from the filter files of a directory and of those above it. Cheap to clone; empty if no
/// rule names such files.
#[derive(Debug, Clone, Default)]
pub struct DirRules(Vec<Option<Arc<List>>>);

impl DirRules {
    /// The first rule from the files of `merge` for which `is_match` is true.
    pub(super) fn find(&self, merge: &DirMerge, is_match: &dyn Fn(&Rule) -> bool) -> Option<&Rule> {
        self.0.get(merge.no)?.as_ref()?.find(is_match)
    }

    /// Returns the rules of `dir`, a subdirectory of the one with these rules. `dir` is relative to
    /// the source's root, without slashes at its ends. `read` returns the content of a file in
    /// `dir` by name, if there is one.
    pub(super) fn below(
        &self,
        merges: &[&DirMerge],
        held: &Held,
        dir: &[u8],
        read: &mut ReadRules<'_>,
    ) -> Result<Self> {
        let mut lists = Vec::with_capacity(merges.len());
        for merge in merges {
            let above = self.0.get(merge.no).cloned().flatten();
            let inherited = above.filter(|_| !merge.syntax.is_own);
            let path = match dir {
                b"" => merge.name.clone(),
                dir => [dir, b"/", &merge.name].concat(),
            };
            let path = String::from_utf8_lossy(&path).into_owned();
            let text = read(&merge.name).map_err(|e| e.context(&path))?;
            lists.push(match text {
                None => inherited,
                Some(text) => {
                    let mut list = List::new(held);
                    list.inherited = inherited;
                    merge.fill(&mut list, dir, &path, &text)?;
                    Some(Arc::new(list))
                }
            });
        }
        Ok(Self(lists))
    }
}

impl DirMerge {
    /// Adds the rules of the file at `path` in `dir`, whose content is `text`, to `list`.
    fn fill(&self, list: &mut List, dir: &[u8], path: &str, text: &[u8]) -> Result<()> {
        for (piece, place) in self.syntax.pieces(text) {
            let place = format!("{path}, {place}");
            let step = self.step(piece).map_err(|e| e.context(&place))?;
            match step {
                Step::Clear => *list = List::new(&list.share.all),
                Step::Rule(verdict, pattern) => {
                    let rule = Rule::below(dir, pattern, verdict);
                    let mut rule = rule.map_err(|e| e.context(&place))?;
                    rule.place = Some(place);
                    list.share.grow(rule.memory_len())?;
                    list.rules.push(rule);
                }
            }
        }
        Ok(())
    }

    fn step<'t>(&self, piece: &'t [u8]) -> Result<Step<'t>> {
        if let Some(verdict) = self.syntax.plain {
            return Ok(match piece {
                b"!" if self.syntax.is_cvs => Step::Clear,
                pattern => Step::Rule(verdict, pattern),
            });
        }
        let (word, rest) = split_word(piece);
        match word {
            b"-" | b"exclude" => Ok(Step::Rule(Verdict::Excluded, rest)),
            b"+" | b"include" => Ok(Step::Rule(Verdict::Included, rest)),
            b"!" | b"clear" if rest.is_empty() => Ok(Step::Clear),
            _ => Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "rule of a directory: expected '- PATTERN', '+ PATTERN' or '!', found '{}'",
                    piece.escape_ascii()
                ),
            )),
        }
    }
}

/// Effect of a line of a filter file.
enum Step<'t> {
    Clear,
    Rule(Verdict, &'t [u8]),
}
