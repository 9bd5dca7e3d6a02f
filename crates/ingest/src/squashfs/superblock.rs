//! The start of an image.

use super::codec::Codec;
use super::failure::{damaged, unsupported};
use crate::fields::Fields;
use weald_format::{Error, Result};
use weald_io::{FileSource, ReadAt};

/// Begins an image.
pub const MAGIC: &[u8] = b"hsqs";
/// Begins an image of a machine with the other byte order, before version 4.
const OTHER_MAGIC: &[u8] = b"sqsh";
const SUPERBLOCK_LEN: usize = 96;
/// Place of a table that is not there.
const NO_TABLE: u64 = u64::MAX;
/// Base-2 logarithms of the length of a block of data.
const BLOCK_LOGS: std::ops::RangeInclusive<u16> = 12..=20;

/// The start of an image, checked.
#[derive(Debug, Clone)]
pub struct Superblock {
    pub codec: Codec,
    /// Bytes of a block of data.
    pub block_len: u32,
    /// Place of the root's inode.
    pub root: u64,
    pub inode_table: u64,
    pub dir_table: u64,
    pub fragment_table: Option<u64>,
    pub fragment_count: u32,
    pub id_table: u64,
    pub id_count: u16,
    pub xattr_table: Option<u64>,
    export_table: Option<u64>,
    /// Where the image ends.
    pub end: u64,
}

impl Superblock {
    /// Reads and checks the start of the image `file`.
    ///
    /// # Errors
    /// As [`super::SquashfsReader::open`].
    pub fn read(file: &FileSource) -> Result<Self> {
        let mut bytes = [0; SUPERBLOCK_LEN];
        let len = file.len().min(SUPERBLOCK_LEN as u64) as usize;
        file.read_exact_at(bytes.get_mut(..len).unwrap_or_default(), 0)?;
        if bytes.starts_with(OTHER_MAGIC) {
            return Err(unsupported("images of big-endian machines, of version 3"));
        }
        if !bytes.starts_with(MAGIC) {
            return Err(Error::invalid("not a SquashFS image"));
        }
        let parsed = (len == SUPERBLOCK_LEN).then(|| Self::parse(&bytes));
        match parsed.flatten() {
            Some(parsed) => parsed?.checked(file.len()),
            None => Err(damaged("it is cut short")),
        }
    }

    fn parse(bytes: &[u8; SUPERBLOCK_LEN]) -> Option<Result<Self>> {
        let mut fields = Fields(bytes.get(4..)?);
        let (_inode_count, _mkfs_time) = (fields.u32()?, fields.u32()?);
        let (block_len, fragment_count) = (fields.u32()?, fields.u32()?);
        let (codec, block_log, _flags) = (fields.u16()?, fields.u16()?, fields.u16()?);
        let id_count = fields.u16()?;
        let (major, minor) = (fields.u16()?, fields.u16()?);
        if (major, minor) != (4, 0) {
            return Some(Err(unsupported(format!("version {major}.{minor}"))));
        }
        if !BLOCK_LOGS.contains(&block_log)
            || 1_u32.checked_shl(block_log.into()) != Some(block_len)
        {
            return Some(Err(damaged(format!("blocks of {block_len} bytes"))));
        }
        let codec = match Codec::of_number(codec) {
            Ok(codec) => codec,
            Err(error) => return Some(Err(error)),
        };
        let root = fields.u64()?;
        let end = fields.u64()?;
        let (id_table, xattr_table) = (fields.u64()?, fields.u64()?);
        let (inode_table, dir_table) = (fields.u64()?, fields.u64()?);
        let (fragment_table, export_table) = (fields.u64()?, fields.u64()?);
        let is_there = |at: &u64| *at != NO_TABLE;
        Some(Ok(Self {
            codec,
            block_len,
            root,
            inode_table,
            dir_table,
            fragment_table: Some(fragment_table).filter(is_there),
            fragment_count,
            id_table,
            id_count,
            xattr_table: Some(xattr_table).filter(is_there),
            export_table: Some(export_table).filter(is_there),
            end,
        }))
    }

    fn checked(self, file_len: u64) -> Result<Self> {
        if self.end > file_len {
            let end = self.end;
            return Err(damaged(format!(
                "it has {file_len} bytes, expected {end}: it is cut short"
            )));
        }
        let tables = [self.inode_table, self.dir_table, self.id_table];
        let others = [self.fragment_table, self.xattr_table, self.export_table];
        let mut all = tables.into_iter().chain(others.into_iter().flatten());
        if all.any(|at| at < SUPERBLOCK_LEN as u64 || at >= self.end) {
            return Err(damaged("a table lies outside of it"));
        }
        Ok(self)
    }

    /// Where the table at `start` ends at the latest: at the next one.
    pub fn end_of(&self, start: u64) -> u64 {
        let tables = [self.inode_table, self.dir_table, self.id_table, self.end];
        let others = [self.fragment_table, self.xattr_table, self.export_table];
        let all = tables.into_iter().chain(others.into_iter().flatten());
        all.filter(|at| *at > start).min().unwrap_or(start)
    }
}
