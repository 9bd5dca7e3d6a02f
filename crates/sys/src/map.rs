//! Files read as memory, as programs are started and databases read: what tests of mounts need
//! beside read(2).

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;

/// The bytes `range` of a file, copied out of a private mapping. `range` must lie within the file.
///
/// A page that cannot be read, or behind the end of a file that gets shorter meanwhile, ends the
/// process with SIGBUS: not for files that others write to, and not for images.
///
/// # Errors
/// The errno of mmap(2): `ENODEV` where the file has no mappings, `EACCES` where it is not open for
/// reading; `InvalidInput` for a range that is no memory.
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
    // SAFETY: the kernel chooses a place where nothing is; `len` is not 0. No reference into the
    // mapping is made, since others may write to the file: what is read is copied as raw bytes,
    // `skipped .. len` of the `len` that are mapped, into a vector that has room for them, after
    // which they are initialized. The mapping is not used after munmap, which gets what mmap gave.
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
    fn a_mapping_says_what_a_read_says() {
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
    fn what_has_no_mappings_is_an_error() {
        let dir = crate::open_dir("/".as_ref()).unwrap();
        assert!(read_mapped(&dir, 0..1).is_err());
    }
}
