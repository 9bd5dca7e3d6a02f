//! Data of files: blocks, of which those without data are holes, and an end in a fragment that
//! several files share.

use super::blocks::{MetadataBlocks, MetadataCursor};
use super::codec::Codec;
use super::failure::damaged;
use super::inode::{FilePlace, Inode};
use super::superblock::Superblock;
use super::table::Table;
use crate::fields::Fields;
use crate::members::Layout;
use std::ops::Range;
use weald_format::{Error, Result};

/// Marks a block that is not compressed, beside its length.
const PLAIN: u32 = 1 << 24;
/// Runs of data of one file. Behind the last of them, holes are read as zeros.
const RUN_COUNT_MAX: usize = 1 << 16;

/// Reads the data of one file after another.
pub struct FileData {
    codec: Codec,
    block_len: u64,
    fragments: Table,
    /// The fragment that was decoded last, and its number: the next files often lie in it.
    fragment: Option<(u32, Vec<u8>)>,
    file: Option<OpenFile>,
    /// The block that is read.
    block: Vec<u8>,
    stored: Vec<u8>,
}

/// A file of which data are read.
struct OpenFile {
    place: FilePlace,
    runs: Option<Vec<Range<u64>>>,
    run_no: usize,
    /// Offset in the file.
    at: u64,
    /// The next block: its number, its size in the list, its place in the image.
    next_no: u64,
    sizes: MetadataCursor,
    stored_at: u64,
    /// Number of the decoded block.
    decoded_no: Option<u64>,
}

impl FileData {
    /// No file yet.
    pub fn new(superblock: &Superblock) -> Self {
        Self {
            codec: superblock.codec,
            block_len: superblock.block_len.into(),
            fragments: Table::fragments(superblock),
            fragment: None,
            file: None,
            block: Vec::new(),
            stored: Vec::new(),
        }
    }

    /// Begins to read the file `inode`. Its list of blocks is taken from `block_count_max`.
    ///
    /// # Errors
    /// `Io`; `Invalid` for damage, also for more blocks than that.
    pub fn begin(
        &mut self,
        blocks: &mut MetadataBlocks,
        inode: &Inode,
        block_count_max: &mut u64,
    ) -> Result<Layout> {
        let place = inode.file.ok_or_else(|| damaged("a file without data"))?;
        let block_count = self.block_count(&place);
        let remaining_count = block_count_max.checked_sub(block_count);
        *block_count_max = remaining_count
            .ok_or_else(|| damaged("its files have more blocks than the table of inodes"))?;
        let runs = self.runs(blocks, &place, block_count)?;
        self.file = Some(OpenFile {
            runs: runs.clone(),
            run_no: 0,
            at: 0,
            next_no: 0,
            sizes: place.sizes,
            stored_at: place.start,
            decoded_no: None,
            place,
        });
        let len = place.len;
        Ok(Layout { len, runs })
    }

    /// Whole blocks of the file, also the last one if it is not in a fragment.
    fn block_count(&self, place: &FilePlace) -> u64 {
        if place.fragment.is_some() {
            place.len / self.block_len
        } else {
            place.len.div_ceil(self.block_len)
        }
    }

    /// Runs of data, if the file has holes.
    fn runs(
        &self,
        blocks: &mut MetadataBlocks,
        place: &FilePlace,
        block_count: u64,
    ) -> Result<Option<Vec<Range<u64>>>> {
        let (mut runs, mut sizes): (Vec<Range<u64>>, _) = (Vec::new(), place.sizes);
        let mut has_holes = false;
        let mut add = |start: u64, is_hole: bool| {
            if is_hole && runs.len() < RUN_COUNT_MAX {
                has_holes = true;
                return;
            }
            let end = place.len.min(start.saturating_add(self.block_len));
            match runs.last_mut() {
                Some(run) if run.end == start => run.end = end,
                _ => runs.push(start..end),
            }
        };
        for no in 0..block_count {
            let size = read_size(blocks, &mut sizes)?;
            add(no.saturating_mul(self.block_len), size == 0);
        }
        let end = block_count.saturating_mul(self.block_len);
        if end < place.len {
            add(end, false);
        }
        Ok(has_holes.then_some(runs))
    }

    /// Fills `out` with the next data of the file.
    ///
    /// # Errors
    /// `Io`; `Invalid` for damage, and behind the data.
    pub fn read(&mut self, blocks: &mut MetadataBlocks, mut out: &mut [u8]) -> Result<()> {
        let Some(mut file) = self.file.take() else {
            return Err(Error::invalid("data are read of an entry that has none"));
        };
        while !out.is_empty() {
            let end = file.run_end()?;
            let no = file.at / self.block_len;
            self.decode(blocks, &mut file, no)?;
            let start = (file.at % self.block_len) as usize;
            let there = self.block.get(start..).unwrap_or_default();
            let len = (there.len() as u64).min(end.saturating_sub(file.at));
            let len = len.min(out.len() as u64) as usize;
            if len == 0 {
                return Err(damaged("a block of data is too short"));
            }
            let (head, rest) = std::mem::take(&mut out).split_at_mut(len);
            head.copy_from_slice(there.get(..len).unwrap_or_default());
            out = rest;
            file.at += len as u64;
        }
        self.file = Some(file);
        Ok(())
    }

    /// Decodes block `no` of the file, unless it is there. Blocks before it are passed over.
    fn decode(&mut self, blocks: &mut MetadataBlocks, file: &mut OpenFile, no: u64) -> Result<()> {
        if file.decoded_no == Some(no) {
            return Ok(());
        }
        file.decoded_no = Some(no);
        let block_count = self.block_count(&file.place);
        let start = no.saturating_mul(self.block_len);
        let len = file.place.len.saturating_sub(start).min(self.block_len) as usize;
        if no >= block_count {
            return self.take_fragment(blocks, &file.place, len);
        }
        let mut size = 0;
        while file.next_no <= no {
            file.stored_at = file.stored_at.saturating_add(u64::from(size & !PLAIN));
            size = read_size(blocks, &mut file.sizes)?;
            file.next_no += 1;
        }
        let at = file.stored_at;
        file.stored_at = at.saturating_add(u64::from(size & !PLAIN));
        self.block.clear();
        self.block.resize(len, 0);
        if size == 0 {
            return Ok(());
        }
        let mut block = std::mem::take(&mut self.block);
        let decoded_len = self.decode_stored(blocks, at, size, &mut block)?;
        self.block = block;
        if decoded_len == len {
            Ok(())
        } else {
            Err(damaged(format!(
                "a block of {decoded_len} bytes, expected {len}"
            )))
        }
    }

    /// Decodes what is stored at `at` with this size of a list; returns how many bytes there are.
    fn decode_stored(
        &mut self,
        blocks: &MetadataBlocks,
        at: u64,
        size: u32,
        out: &mut [u8],
    ) -> Result<usize> {
        let stored_len = size & !PLAIN;
        if u64::from(stored_len) > self.block_len {
            return Err(damaged(format!("a stored block of {stored_len} bytes")));
        }
        if size & PLAIN != 0 {
            let len = (stored_len as usize).min(out.len());
            let out = out.get_mut(..len).unwrap_or_default();
            blocks.read_plain(at, out, "data")?;
            return Ok(stored_len as usize);
        }
        self.stored.resize(stored_len as usize, 0);
        blocks.read_plain(at, &mut self.stored, "data")?;
        self.codec.decode(&self.stored, out)
    }

    /// Takes the end of a file, `len` bytes, from its fragment.
    fn take_fragment(
        &mut self,
        blocks: &mut MetadataBlocks,
        place: &FilePlace,
        len: usize,
    ) -> Result<()> {
        let no = place.fragment.ok_or_else(|| damaged("no fragment"))?;
        if self.fragment.as_ref().is_none_or(|(last, _)| *last != no) {
            let mut item = [0; 16];
            self.fragments.read(blocks, no.into(), &mut item)?;
            let mut fields = Fields(&item);
            let (at, size) = (fields.u64(), fields.u32());
            let mut bytes = vec![0; self.block_len as usize];
            let (at, size) = (at.unwrap_or_default(), size.unwrap_or_default());
            let decoded_len = self.decode_stored(blocks, at, size, &mut bytes)?;
            bytes.truncate(decoded_len);
            self.fragment = Some((no, bytes));
        }
        let bytes = self.fragment.as_ref().map_or(&[][..], |(_, bytes)| bytes);
        let start = place.fragment_offset as usize;
        let part = bytes.get(start..).and_then(|rest| rest.get(..len));
        let part = part.ok_or_else(|| damaged("the end of a file lies outside of its fragment"))?;
        self.block.clear();
        self.block.extend_from_slice(part);
        Ok(())
    }
}

impl OpenFile {
    /// Moves into the run that is read; returns where it ends.
    fn run_end(&mut self) -> Result<u64> {
        let behind = || Error::invalid("a read behind the data");
        let Some(runs) = &self.runs else {
            return Some(self.place.len)
                .filter(|len| self.at < *len)
                .ok_or_else(behind);
        };
        loop {
            let run = runs.get(self.run_no).ok_or_else(behind)?;
            self.at = self.at.max(run.start);
            if self.at < run.end {
                return Ok(run.end);
            }
            self.run_no += 1;
        }
    }
}

/// The next size of a list of blocks.
fn read_size(blocks: &mut MetadataBlocks, sizes: &mut MetadataCursor) -> Result<u32> {
    let mut size = [0; 4];
    blocks.read(sizes, &mut size, "sizes of blocks")?;
    Ok(u32::from_le_bytes(size))
}
