//! Blocks of directories: entries first, then their names.

use super::{Inode, Volume, damaged};
use crate::layout::Dirent;
use std::ops::Range;
use weald_format::limits::NAME_LEN_MAX;
use weald_format::{Error, Result};
use zerocopy::FromBytes;

/// One name of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub nid: u64,
    /// Place of the name in the block.
    pub name: Range<usize>,
}

/// A block of a directory, checked.
#[derive(Debug, Default)]
pub(super) struct DirBlock {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
}

impl DirBlock {
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    pub fn name(&self, entry: &Entry) -> &[u8] {
        self.bytes.get(entry.name.clone()).unwrap_or_default()
    }

    /// Reads block `block_no` of the directory `dir`. Names ascend within the block.
    ///
    /// # Errors
    /// `Io`; `Invalid` for damage.
    pub fn read(volume: &Volume, dir: &Inode, block_no: u64) -> Result<Self> {
        let block_len = volume.block_len();
        let start = block_no.saturating_mul(block_len);
        let len = dir.size.saturating_sub(start).min(block_len);
        let mut bytes = vec![0; len as usize];
        volume.read_plain(dir, start, &mut bytes)?;
        let entries = parse(&bytes)?;
        Ok(Self { bytes, entries })
    }
}

fn parse(bytes: &[u8]) -> Result<Vec<Entry>> {
    const DIRENT_LEN: usize = size_of::<Dirent>();
    let short = || damaged("a directory block is too short");
    let (first, _) = Dirent::read_from_prefix(bytes).map_err(|_| short())?;
    let names_start = usize::from(first.name_offset.get());
    let heads = bytes.get(..names_start).ok_or_else(short)?;
    if heads.is_empty() || !heads.len().is_multiple_of(DIRENT_LEN) {
        let what = format!("names of a directory block begin at {names_start}");
        return Err(damaged(what));
    }
    let mut entries: Vec<Entry> = Vec::with_capacity(heads.len() / DIRENT_LEN);
    for head in heads.as_chunks::<DIRENT_LEN>().0 {
        let dirent = Dirent::read_from_bytes(head).map_err(|_| short())?;
        let start = usize::from(dirent.name_offset.get());
        if let Some(last) = entries.last_mut() {
            last.name.end = start;
        }
        entries.push(Entry {
            nid: dirent.nid.get(),
            name: start..bytes.len(),
        });
    }
    // The last name ends at a zero or with the block.
    if let Some(last) = entries.last_mut() {
        let name = bytes.get(last.name.clone()).ok_or_else(short)?;
        let len = name.iter().position(|&b| b == 0).unwrap_or(name.len());
        last.name.end = last.name.start.saturating_add(len);
    }
    let mut before: &[u8] = b"";
    for entry in &entries {
        let name = bytes.get(entry.name.clone());
        let name = name.filter(|_| entry.name.start >= names_start);
        let name = check_name(name.ok_or_else(short)?)?;
        if name <= before {
            return Err(out_of_order(before, name));
        }
        before = name;
    }
    Ok(entries)
}

/// Error for names that do not ascend.
pub(super) fn out_of_order(before: &[u8], name: &[u8]) -> Error {
    damaged(format_args!(
        "a directory has '{}' behind '{}'",
        name.escape_ascii(),
        before.escape_ascii()
    ))
}

fn check_name(name: &[u8]) -> Result<&[u8]> {
    let is_sound = (1..=NAME_LEN_MAX).contains(&name.len())
        && !name.iter().any(|&byte| byte == 0 || byte == b'/');
    if is_sound {
        Ok(name)
    } else {
        Err(damaged(format_args!(
            "a directory has the name '{}'",
            name.escape_ascii()
        )))
    }
}
