//! Reads of sectors from files that may be damaged: cut off, or on a disk that cannot read a part.

use crate::SECTOR;
use std::fs::File;
use std::os::unix::fs::FileExt;
use weald_format::{Error, Result};

/// Fills `buf`, whole sectors, from `offset`, and says in `is_bad`, a flag for each sector, which
/// of them could not be read whole. Bytes behind `expected_len` are zeros by definition; bytes
/// before it that the file lacks are bad.
///
/// # Errors
/// `Io` for an error that is not about single places of the disk.
pub fn read(
    file: &File,
    offset: u64,
    expected_len: u64,
    buf: &mut [u8],
    is_bad: &mut [bool],
) -> Result<()> {
    is_bad.fill(false);
    let wanted = expected_len.saturating_sub(offset).min(buf.len() as u64) as usize;
    buf[wanted..].fill(0);
    match read_up_to(file, &mut buf[..wanted], offset) {
        Ok(read) => {
            buf[read..wanted].fill(0);
            if read < wanted {
                let end = wanted.div_ceil(SECTOR);
                is_bad[read / SECTOR..end].fill(true);
            }
            Ok(())
        }
        Err(error) if is_of_the_disk(&error) && buf.len() > SECTOR => {
            for (index, sector) in buf.chunks_mut(SECTOR).enumerate() {
                let offset = offset + (index * SECTOR) as u64;
                let is_bad = &mut is_bad[index..=index];
                read(file, offset, expected_len, sector, is_bad)?;
            }
            Ok(())
        }
        Err(error) if is_of_the_disk(&error) => {
            buf.fill(0);
            is_bad.fill(true);
            Ok(())
        }
        Err(error) => Err(Error::io(format!("read at {offset}"), error)),
    }
}

fn is_of_the_disk(error: &std::io::Error) -> bool {
    let number = error
        .raw_os_error()
        .map(rustix::io::Errno::from_raw_os_error);
    use rustix::io::Errno;
    matches!(number, Some(Errno::IO | Errno::ILSEQ | Errno::NODATA))
}

/// Reads until `buf` is full or the file ends; returns the bytes read.
fn read_up_to(file: &File, buf: &mut [u8], offset: u64) -> std::io::Result<usize> {
    let mut read_len = 0;
    while read_len < buf.len() {
        match file.read_at(&mut buf[read_len..], offset + read_len as u64) {
            Ok(0) => break,
            Ok(len) => read_len += len,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(read_len)
}
