//! Listings: paths that end in a zero byte, and nothing else.

use crate::input::Input;
use crate::member::{DIRECTORY_DEFAULT, Member, MemberKind};
use crate::members::{Layout, Members, Tell};
use crate::path::PATH_LEN_MAX;
use weald_format::{FileKind, Result};

/// Reads a listing: a path that ends in a slash is a directory, any other an empty file, unless
/// something lies below it.
pub struct ListingReader {
    input: Input,
}

impl ListingReader {
    /// Reads from `input`.
    pub fn new(input: Input) -> Self {
        Self { input }
    }
}

impl Members for ListingReader {
    fn next(&mut self, member: &mut Member, _tell: &mut Tell<'_>) -> Result<bool> {
        member.path.clear();
        if !self.input.read_until(0, PATH_LEN_MAX, &mut member.path)? {
            return Ok(false);
        }
        let is_dir = member.path.ends_with(b"/") || member.path == b".";
        (member.kind, member.attributes) = match is_dir {
            true => (MemberKind::Entry(FileKind::Directory), DIRECTORY_DEFAULT),
            false => (MemberKind::Name, member.attributes),
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
