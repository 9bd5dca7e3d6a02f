//! The lines of an mtree description that name entries, with the values of `/set` and full paths.

use super::words::{self, Keys};
use crate::input::Input;
use crate::path::PATH_LEN_MAX;
use weald_format::{Error, FileKind, Result};

/// Bytes of a line with its continuation lines: a path and a target with every byte escaped as
/// four, and as much again for the other keywords.
pub const MTREE_LINE_LEN_MAX: usize = PATH_LEN_MAX * 16;

/// Reads lines.
pub struct Lines {
    input: Input,
    line_no: u64,
    line: Vec<u8>,
    /// Values of `/set`.
    defaults: Keys,
    /// The directory of names without a slash, and its length before each open directory.
    dir: Vec<u8>,
    lens: Vec<usize>,
}

/// A line about an entry.
pub struct Line {
    /// Path of the entry.
    pub path: Vec<u8>,
    /// What is said about it.
    pub keys: Keys,
}

impl Lines {
    /// Reads from `input`.
    pub fn new(input: Input) -> Self {
        Self {
            input,
            line_no: 0,
            line: Vec::new(),
            defaults: Keys::default(),
            dir: Vec::new(),
            lens: Vec::new(),
        }
    }

    /// Number of the last line that was read, from 1.
    pub fn line_no(&self) -> u64 {
        self.line_no
    }

    /// `error` with the place of the last line.
    pub fn wrong(&self, error: Error) -> Error {
        error.context(format!("mtree, line {}", self.line_no))
    }

    /// The next line about an entry; `None` at the end.
    ///
    /// # Errors
    /// `Io`; `Invalid`, `Limit` and `Unsupported` with the number of the line.
    pub fn next_entry(&mut self) -> Result<Option<Line>> {
        while self.next_line()? {
            let line = std::mem::take(&mut self.line);
            let taken = self.take(&line);
            self.line = line;
            if let Some(entry) = taken.map_err(|e| self.wrong(e))? {
                return Ok(Some(entry));
            }
        }
        Ok(None)
    }

    /// Reads a line and its continuation lines (behind a backslash); false at the end.
    fn next_line(&mut self) -> Result<bool> {
        self.line.clear();
        loop {
            let len_max = MTREE_LINE_LEN_MAX - self.line.len().min(MTREE_LINE_LEN_MAX);
            self.line_no += 1;
            if !self.input.read_until(b'\n', len_max, &mut self.line)? {
                return Ok(!self.line.is_empty());
            }
            let backslashes = self.line.iter().rev().take_while(|b| **b == b'\\');
            // A comment ends with its line.
            let is_comment = self.line.trim_ascii_start().starts_with(b"#");
            if is_comment || backslashes.count() % 2 == 0 {
                return Ok(true);
            }
            self.line.pop();
            self.line.push(b' ');
        }
    }

    /// Interprets a line.
    fn take(&mut self, line: &[u8]) -> Result<Option<Line>> {
        let line = words::name_first(line);
        let mut words = words::split(&line);
        let Some(first) = words.next().filter(|word| !word.starts_with(b"#")) else {
            return Ok(None);
        };
        match first {
            b"/set" => words
                .try_for_each(|word| self.defaults.set(word))
                .map(|()| None),
            b"/unset" => words
                .try_for_each(|word| self.defaults.unset(word))
                .map(|()| None),
            b".." => match self.lens.pop() {
                Some(len) => {
                    self.dir.truncate(len);
                    Ok(None)
                }
                None => Err(Error::invalid("'..' above the root")),
            },
            name if name.starts_with(b"/") => Err(Error::invalid(format!(
                "'{}' is no word of mtree",
                name.escape_ascii()
            ))),
            name => {
                let mut keys = self.defaults.clone();
                words.try_for_each(|word| keys.set(word))?;
                let path = self.path_of(words::decoded(name)?, keys.kind);
                Ok(Some(Line { path, keys }))
            }
        }
    }

    /// The path of an entry that is called `name`; a directory is open from then on.
    fn path_of(&mut self, name: Vec<u8>, kind: Option<FileKind>) -> Vec<u8> {
        if name.contains(&b'/') {
            return name;
        }
        let path = [&*self.dir, &*name].concat();
        if kind == Some(FileKind::Directory) {
            self.lens.push(self.dir.len());
            self.dir.extend_from_slice(&name);
            self.dir.push(b'/');
        }
        path
    }
}
