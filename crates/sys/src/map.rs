//! Reads files through memory mappings, as program loaders and databases do. Tests of mounts need
//! this besides read(2).

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;

/// Copies the bytes `range` of a file out of a private mapping. `range` must lie within the file.
///
/// If a page cannot be read, or the file shrinks meanwhile, SIGBUS ends the process. So this is not
/// for files that others write to, and not for images.
///
/// # Errors
/// The errno of mmap(2): `ENODEV` if the file does not support mappings, `EACCES` if it is not open
/// for reading; `InvalidInput` for a range that does not fit into memory.
pub fn read_mapped(file: impl AsFd, range: Range<u64>) -> io::Result<Vec<u8>> {
    let page_len = rustix::param::page_size() as u64;
    let start = range.start / page_len * page_len;
    let (skipped, len) = (range.start - start, range.end.saturating_sub(start));
    if range.start >= range.end {
        return Ok(Vec::new());
    }
    let [skipped, len] = [skipped, len].map(usize::try_from);
    let (Ok(skipped), Ok(len)) = (skipped, len) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let mut bytes = Vec::with_capacity(len - skipped);
    // SAFETY: the kernel chooses a free address range; `len` is not 0. No reference into the
    // mapping exists, because others may write to the file. The bytes `skipped .. len` of the `len`
    // mapped ones are copied raw into a vector with capacity for them, which initializes them. The
    // mapping is not used after munmap, which gets the pointer and length of mmap.
    unsafe {
        let mapping = mmap(
            std::ptr::null_mut(),
            len,
            ProtFlags::READ,
            MapFlags::PRIVATE,
            file,
            start,
        )?;
        std::ptr::copy_nonoverlapping(
            mapping.cast::<u8>().add(skipped),
            bytes.as_mut_ptr(),
            len - skipped,
        );
        bytes.set_len(len - skipped);
        munmap(mapping, len)?;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn a_mapping_has_the_bytes_of_a_read() {
        let file = tempfile::tempfile().unwrap();
        let bytes: Vec<u8> = (0..100_000_u32).map(|i| (i % 251) as u8).collect();
        file.write_all_at(&bytes, 0).unwrap();
        for (start, end) in [
            (0, 100_000),
            (4095, 4097),
            (4096, 4096),
            (99_999, 100_000),
            (5000, 70_001),
        ] {
            let found = read_mapped(&file, start..end).unwrap();
            assert_eq!(found, bytes[start as usize..end as usize], "{start}..{end}");
        }
    }

    #[test]
    fn files_without_mappings_are_an_error() {
        let dir = crate::open_dir("/".as_ref()).unwrap();
        assert!(read_mapped(&dir, 0..1).is_err());
    }
}
