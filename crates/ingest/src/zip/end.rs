//! The records at the end of an archive, which say where its list lies.

use crate::fields::Fields;
use weald_format::{Error, ErrorKind, Result};
use weald_io::{FileSource, ReadAt};

/// Begins the record at the end.
pub const END_MAGIC: &[u8] = b"PK\x05\x06";
const END_LEN: usize = 22;
/// Longest comment behind it.
const COMMENT_LEN_MAX: u64 = 0xffff;
/// Begins the record of archives with large numbers, and the one that says where it lies.
const END_64_MAGIC: &[u8] = b"PK\x06\x06";
const END_64_LEN: usize = 56;
const LOCATOR_MAGIC: &[u8] = b"PK\x06\x07";
const LOCATOR_LEN: usize = 20;

/// Where the list of members lies.
#[derive(Debug)]
pub struct List {
    /// Offset in the file.
    pub start: u64,
    /// Bytes.
    pub len: u64,
    /// Bytes before the archive, such as the program of one that extracts itself. Offsets in the
    /// archive do not count them.
    pub before_len: u64,
    /// Members as the end announces them.
    count: u64,
    /// The count has 16 bits only, and archives with more members than that repeat it modulo 2^16.
    is_short_count: bool,
}

/// The fields of the end that say where the list lies.
struct Numbers {
    disk: u32,
    list_disk: u32,
    count: u64,
    len: u64,
    offset: u64,
    /// Offset in the file of the record that has these numbers: the list ends there.
    at: u64,
}

impl List {
    /// Finds the list of the archive `file`.
    ///
    /// # Errors
    /// As [`super::ZipReader::open`].
    pub fn find(file: &FileSource) -> Result<Self> {
        let (end, at) = find_end(file)?;
        let mut fields = Fields(end.get(4..).unwrap_or_default());
        let mut short = || fields.u16().unwrap_or_default();
        let (disk, list_disk, _, count) = (short(), short(), short(), short());
        let mut numbers = Numbers {
            disk: disk.into(),
            list_disk: list_disk.into(),
            count: count.into(),
            len: fields.u32().unwrap_or_default().into(),
            offset: fields.u32().unwrap_or_default().into(),
            at,
        };
        let mut is_short_count = true;
        if let Some(large) = large_numbers(file, at)? {
            (numbers, is_short_count) = (large, false);
        }
        if numbers.disk != 0 || numbers.list_disk != 0 {
            let what = "an archive in several files: join them with zip -s 0 first";
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        let outside = || wrong("the list of members lies outside of the file");
        let start = numbers.at.checked_sub(numbers.len).ok_or_else(outside)?;
        let before_len = start.checked_sub(numbers.offset).ok_or_else(outside)?;
        Ok(Self {
            start,
            len: numbers.len,
            before_len,
            count: numbers.count,
            is_short_count,
        })
    }

    /// Compares the count of members that were found with the one at the end.
    ///
    /// # Errors
    /// `Invalid` if it is another one.
    pub fn check_count(&self, found: u64) -> Result<()> {
        let compared = if self.is_short_count {
            found & 0xffff
        } else {
            found
        };
        if compared == self.count {
            Ok(())
        } else {
            let count = self.count;
            Err(wrong(format!(
                "its list has {found} members, expected {count}"
            )))
        }
    }
}

/// Error for bytes that break the format.
pub fn wrong(what: impl std::fmt::Display) -> Error {
    Error::invalid(format!("the zip archive is damaged: {what}"))
}

/// The record at the end, and its offset: the last one whose comment reaches to the end.
fn find_end(file: &FileSource) -> Result<(Vec<u8>, u64)> {
    let len = file.len().min(END_LEN as u64 + COMMENT_LEN_MAX);
    let tail_start = file.len() - len;
    let mut tail = vec![0; len as usize];
    file.read_exact_at(&mut tail, tail_start)?;
    let mut ends = tail.windows(END_LEN).enumerate().rev();
    let found = ends.find(|(at, end)| {
        let comment_len = Fields(end.get(20..).unwrap_or_default()).u16();
        let expected = tail.len() - at - END_LEN;
        end.starts_with(END_MAGIC) && comment_len.map(usize::from) == Some(expected)
    });
    match found {
        Some((at, end)) => Ok((end.to_vec(), tail_start + at as u64)),
        None => Err(wrong(
            "no list of members at its end: it is cut short, or something follows it",
        )),
    }
}

/// The numbers of an archive that has them in records of their own, before the end at `end`.
fn large_numbers(file: &FileSource, end: u64) -> Result<Option<Numbers>> {
    let Some(at) = end.checked_sub(LOCATOR_LEN as u64) else {
        return Ok(None);
    };
    let mut locator = [0; LOCATOR_LEN];
    file.read_exact_at(&mut locator, at)?;
    if !locator.starts_with(LOCATOR_MAGIC) {
        return Ok(None);
    }
    let offset = Fields(locator.get(8..).unwrap_or_default()).u64();
    let offset = offset.unwrap_or_default();
    // Other bytes may stand before the archive. So the record is expected right before its
    // locator, which it is unless somebody put data behind it.
    let places = [at.checked_sub(END_64_LEN as u64), Some(offset)];
    for record_at in places.into_iter().flatten() {
        let mut record = [0; END_64_LEN];
        let fits = record_at.checked_add(END_64_LEN as u64);
        if fits.is_none_or(|record_end| record_end > at) {
            continue;
        }
        file.read_exact_at(&mut record, record_at)?;
        if !record.starts_with(END_64_MAGIC) {
            continue;
        }
        let mut fields = Fields(record.get(16..).unwrap_or_default());
        let numbers = |fields: &mut Fields<'_>| {
            let (disk, list_disk) = (fields.u32()?, fields.u32()?);
            let _count_of_disk = fields.u64()?;
            Some(Numbers {
                disk,
                list_disk,
                count: fields.u64()?,
                len: fields.u64()?,
                offset: fields.u64()?,
                at: record_at,
            })
        };
        return Ok(numbers(&mut fields));
    }
    Err(wrong("its record for large numbers is missing"))
}
