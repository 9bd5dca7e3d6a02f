//! Lists of paths. All paths end in a zero byte (`find -print0`), or all in a newline.

use crate::input::Input;
use crate::member::{DIRECTORY_DEFAULT, Member, MemberKind};
use crate::members::{Layout, Members, Tell};
use crate::path::PATH_LEN_MAX;
use weald_format::{Error, ErrorKind, FileKind, Result};

/// The byte that ends each path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Separator {
    /// A zero byte: every name can be listed.
    Zero,
    /// A newline: names that hold one cannot be listed.
    Newline,
}

impl Separator {
    const fn byte(self) -> u8 {
        match self {
            Self::Zero => 0,
            Self::Newline => b'\n',
        }
    }

    const fn word(self) -> &'static str {
        match self {
            Self::Zero => "a zero byte",
            Self::Newline => "a newline",
        }
    }
}

/// Reads a list of paths. A path is a directory if it ends in a slash or another path lies below
/// it; otherwise it is an empty file.
pub struct ListingReader {
    input: Input,
    separator: Separator,
    /// Paths read.
    path_count: u64,
}

impl ListingReader {
    /// Reads from `input`, whose paths end in `separator`.
    pub fn new(input: Input, separator: Separator) -> Self {
        Self {
            input,
            separator,
            path_count: 0,
        }
    }

    /// Reads up to the next separator; false at the end.
    fn read_path(&mut self, path: &mut Vec<u8>) -> Result<bool> {
        let read = self
            .input
            .read_until(self.separator.byte(), PATH_LEN_MAX, path);
        match read {
            // A list of lines without zero bytes looks like one long path.
            Err(error) if error.kind() == ErrorKind::Limit => {
                self.refuse_other_separator(path)?;
                Err(error)
            }
            other => other,
        }
    }

    /// # Errors
    /// `Invalid` if `path` shows that the list has the other separator.
    fn refuse_other_separator(&self, path: &[u8]) -> Result<()> {
        match self.separator {
            Separator::Zero if self.path_count == 0 && path.contains(&b'\n') => {
                Err(Error::invalid(
                    "the list has lines and no zero byte: write it with find -print0, or read \
                     lines with --from lines",
                ))
            }
            Separator::Newline if path.contains(&0) => Err(Error::invalid(
                "the list has zero bytes: read paths that end in zero bytes with --from listing",
            )),
            _ => Ok(()),
        }
    }
}

impl Members for ListingReader {
    fn next(&mut self, member: &mut Member, tell: &mut Tell<'_>) -> Result<bool> {
        member.path.clear();
        if !self.read_path(&mut member.path)? {
            return match self.path_count {
                0 => Err(Error::invalid(
                    "the list is empty: did the command that writes it fail?",
                )),
                _ => Ok(false),
            };
        }
        let is_ended = self.input.last_was_ended();
        if !is_ended || self.separator == Separator::Newline {
            self.refuse_other_separator(&member.path)?;
        }
        if !is_ended {
            let what = format!(
                "the last path of the list does not end in {}: is the list cut short?",
                self.separator.word()
            );
            tell(&member.path, what);
        }
        self.path_count += 1;
        let is_dir = member.path.ends_with(b"/") || member.path == b".";
        (member.kind, member.attributes) = if is_dir {
            (MemberKind::Entry(FileKind::Directory), DIRECTORY_DEFAULT)
        } else {
            (MemberKind::Name, member.attributes)
        };
        Ok(true)
    }

    fn has_contents(&self) -> bool {
        false
    }

    fn layout(&self) -> Option<&Layout> {
        None
    }

    fn read_data(&mut self, _out: &mut [u8]) -> Result<()> {
        Ok(())
    }
}
