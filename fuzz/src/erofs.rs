//! Examines EROFS images.

use weald_erofs::reader::{FileReader, Volume, Walker};
use weald_format::{FileKind, Result};

/// Offset of the optional features in an image; bit 0 announces a checksum.
const FEATURES_OFFSET: usize = 1024 + 8;
/// Bytes of contents read from one image: a few bytes of an index can announce gigabytes.
const CONTENT_LEN_MAX: u64 = 8 << 20;
/// Bytes read at once, so that the ends of extents lie inside a read.
const PIECE_LEN: u64 = 50_000;

/// Visits the whole tree of the image `data` and reads the files.
pub fn examine_erofs(data: &[u8]) {
    let mut bytes = data.to_vec();
    if let Some(features) = bytes.get_mut(FEATURES_OFFSET) {
        *features &= !1;
    }
    // Errors are expected; the fuzzer looks for panics, hangs and memory.
    let _ = examine(bytes);
}

fn examine(bytes: Vec<u8>) -> Result<()> {
    let volume = Volume::open(bytes)?;
    let mut walker = Walker::new(&volume);
    let mut remaining_len = CONTENT_LEN_MAX;
    while let Some(inode) = walker.next(&volume)? {
        // One bad inode does not hide the others.
        let _ = volume.xattrs(&inode);
        match inode.kind {
            FileKind::Symlink => drop(volume.target(&inode)),
            FileKind::Regular => {
                let _ = volume.data_runs(&inode);
                let mut reader = FileReader::new(&inode);
                let (mut at, end) = (0, inode.size.min(remaining_len));
                while at < end {
                    let mut piece = vec![0; PIECE_LEN.min(end - at) as usize];
                    if reader.read_exact_at(&volume, at, &mut piece).is_err() {
                        break;
                    }
                    at += piece.len() as u64;
                }
                remaining_len -= at;
            }
            _ => {}
        }
    }
    Ok(())
}
