//! What stands before the image: the program, zeros up to a page, and a page with the description.

use crate::description;
use crate::failure::{Context, refuse};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use weald_format::Result;

/// Bytes of the page, and its alignment.
const PAGE_LEN: u64 = 4096;

/// First bytes of the page; its length as a `u32` in little-endian order and JSON follow.
const MAGIC: &[u8; 8] = b"WEALDAPP";

/// Bytes of the page before the JSON.
const JSON_AT: usize = 12;

/// The mark of AppImage's type 2 in the identification of an ELF file, where the kernel reads
/// nothing.
///
/// # Source
/// The specification of AppImage, "Type 2 image format".
const MARK: &[u8; 3] = b"AI\x02";

/// Its place.
const MARK_AT: usize = 8;

/// Bytes of the header of an ELF file.
const HEADER_LEN: usize = 64;

/// Largest program, bytes.
const PROGRAM_LEN_MAX: u64 = 1 << 30;

/// What a program that carries an image knows of itself.
#[derive(Debug)]
pub struct OwnImage {
    /// Path in the image of the program to start.
    pub run: String,
    /// Offset of the image, bytes.
    pub offset: u64,
}

/// The head of an image that `program`, an executable of Weald, mounts to start `run` in it.
///
/// # Errors
/// If it is no ELF program; those of reading it.
pub fn make(program: &Path, run: &str) -> Result<Vec<u8>> {
    let shown = || program.display().to_string();
    let file = File::open(program).context(shown())?;
    let len = file.metadata().context(shown())?.len();
    let end = program_end(&file, len).map_err(|error| error.context(shown()))?;
    if end > PROGRAM_LEN_MAX {
        return refuse(format!(
            "{}: a program of more than 1 GiB",
            program.display()
        ));
    }
    let start = end.next_multiple_of(PAGE_LEN);
    let mut head = vec![0; (start + PAGE_LEN) as usize];
    let (front, page) = head.split_at_mut(start as usize);
    let front = front.get_mut(..end as usize).unwrap_or_default();
    file.read_exact_at(front, 0).context(shown())?;
    if let Some(mark) = front.get_mut(MARK_AT..MARK_AT + MARK.len()) {
        mark.copy_from_slice(MARK);
    }
    forget_sections(front);
    let json = description::encode(run);
    let Some(place) = page.get_mut(JSON_AT..JSON_AT + json.len()) else {
        return refuse("the path of the program to start is too long");
    };
    place.copy_from_slice(json.as_bytes());
    page[..MAGIC.len()].copy_from_slice(MAGIC);
    page[MAGIC.len()..JSON_AT].copy_from_slice(&(json.len() as u32).to_le_bytes());
    Ok(head)
}

/// What the program in `file` carries; `None` if it is a program without an image.
///
/// # Errors
/// If the file has the mark, but no description.
pub fn read(file: &File) -> Result<Option<OwnImage>> {
    let mut ident = [0; 16];
    let has_mark = file.read_exact_at(&mut ident, 0).is_ok()
        && ident.get(MARK_AT..MARK_AT + MARK.len()) == Some(MARK);
    if !has_mark {
        return Ok(None);
    }
    let len = file.metadata().context("length of the file")?.len();
    let start = program_end(file, len)?.next_multiple_of(PAGE_LEN);
    let mut page = [0; PAGE_LEN as usize];
    let cut = "the file is cut short: get it again";
    file.read_exact_at(&mut page, start).context(cut)?;
    let (magic, rest) = page.split_at(MAGIC.len());
    let (json_len, json) = rest.split_at(JSON_AT - MAGIC.len());
    let json_len = json_len.try_into().map_or(0, u32::from_le_bytes) as usize;
    if magic != MAGIC {
        return refuse("no image follows the program");
    }
    let json = json.get(..json_len).context("the description is damaged")?;
    let offset = start + PAGE_LEN;
    if offset >= len {
        return refuse(cut);
    }
    let run = description::decode(json).context("the description is damaged")?;
    Ok(Some(OwnImage { run, offset }))
}

/// Where the segments of the ELF program in `file` of `len` bytes end. What lies behind them, such
/// as symbols, is of no use to start it.
///
/// # Source
/// elf(5). Only 64-bit little-endian programs.
fn program_end(file: &File, len: u64) -> Result<u64> {
    let mut header = [0; HEADER_LEN];
    let no_elf = "no 64-bit ELF program";
    file.read_exact_at(&mut header, 0).context(no_elf)?;
    if header.get(..6) != Some(b"\x7fELF\x02\x01") {
        return refuse(no_elf);
    }
    let (table, size) = (number(&header, 32, 8), number(&header, 54, 2));
    let mut end = HEADER_LEN as u64;
    for segment_no in 0..number(&header, 56, 2) {
        let mut segment = vec![0; size as usize];
        let at = table.saturating_add(segment_no * size);
        let cut = "the file is cut short: get it again";
        file.read_exact_at(&mut segment, at).context(cut)?;
        // Offset and length in the file.
        let segment_end = number(&segment, 8, 8).saturating_add(number(&segment, 32, 8));
        end = end.max(segment_end);
    }
    if end > len {
        return refuse("the file is cut short: get it again");
    }
    Ok(end)
}

/// Makes the header say that there are no sections, which are left out.
fn forget_sections(header: &mut [u8]) {
    // Offset of the table; number of sections and that of the names.
    for range in [40..48, 60..64] {
        if let Some(field) = header.get_mut(range) {
            field.fill(0);
        }
    }
}

/// The number of `len` bytes at `at`, in little-endian order; 0 outside.
fn number(bytes: &[u8], at: usize, len: usize) -> u64 {
    let bytes = bytes.get(at..at + len).unwrap_or_default();
    let add = |sum, &byte: &u8| (sum << 8) | u64::from(byte);
    bytes.iter().rev().fold(0, add)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// Would catch: a head that is not found behind the program that made it, also one that carries
    /// an image itself.
    #[test]
    fn what_is_made_is_read() {
        let own = std::env::current_exe().unwrap();
        assert!(read(&File::open(&own).unwrap()).unwrap().is_none());
        let dir = tempfile::tempdir().unwrap();
        let mut made = make(&own, "bin/a b").unwrap();
        for round in 0..2 {
            let path = dir.path().join(round.to_string());
            let mut file = File::create(&path).unwrap();
            file.write_all(&made).unwrap();
            file.write_all(b"an image").unwrap();
            let carried = read(&File::open(&path).unwrap()).unwrap().unwrap();
            assert_eq!(carried.run, "bin/a b");
            assert_eq!(carried.offset, made.len() as u64);
            let again = make(&path, "bin/a b").unwrap();
            assert!(again == made, "the image became a part of the program");
            made = again;
        }
    }

    #[test]
    fn cut_and_foreign_files_are_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("app");
        let made = make(&std::env::current_exe().unwrap(), "x").unwrap();
        for (len, told) in [
            (made.len(), "cut short"),
            (made.len() - 1, "cut short"),
            (made.len() / 2, "cut short"),
            (20, "no 64-bit ELF program"),
        ] {
            std::fs::write(&path, &made[..len]).unwrap();
            let error = read(&File::open(&path).unwrap()).unwrap_err();
            assert!(error.to_string().contains(told), "{len}: {error:#}");
        }
        std::fs::write(&path, "#!/bin/sh\n").unwrap();
        assert!(make(&path, "x").is_err());
        assert!(read(&File::open(&path).unwrap()).unwrap().is_none());
        assert!(make(&std::env::current_exe().unwrap(), &"x".repeat(4096)).is_err());
    }
}
