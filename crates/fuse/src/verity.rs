//! The answer to `FS_IOC_MEASURE_VERITY`, which the kernel passes on since Linux 6.10: the
//! fs-verity digest of a file. Every byte of an image is verified, so that each file has one.

use crate::tree::Tree;
use crate::wire::IoctlOut;
use rustix::io::Errno;
use std::ops::ControlFlow;
use weald_codec::FsVerity;
use weald_format::Result;
use weald_image::{Inode, Run};
use zerocopy::IntoBytes;

/// `FS_IOC_MEASURE_VERITY` of `linux/fsverity.h`.
pub(crate) const MEASURE: u32 = 0xc004_6686;

/// Bytes of the header of `struct fsverity_digest`: algorithm and length.
const DIGEST_HEADER_LEN: usize = 4;

/// Bytes of a digest.
const DIGEST_LEN: usize = 32;

/// Number of SHA-256 among the algorithms of fs-verity.
const SHA256: u16 = 1;

/// Largest data of a file that is digested for one request, in bytes: a request cannot be
/// interrupted, and this takes about a second. Holes do not count.
const DIGESTED_LEN_MAX: u64 = 256 << 20;

/// Bytes that are read at once.
const PIECE_LEN: u64 = 1 << 20;

/// Appends the answer for `inode`; the request has room for `out_len` bytes.
///
/// # Errors
/// `EOVERFLOW` if the digest has no room; `ENODATA`, as for a file that is not protected, for one
/// with more than 256 MiB of data. `failed` turns an error of
/// reading into an errno.
pub(crate) fn measure<T: Tree>(
    tree: &T,
    inode: &Inode,
    out_len: u32,
    out: &mut Vec<u8>,
    failed: impl Fn(weald_format::Error) -> Errno,
) -> Result<(), Errno> {
    if (out_len as usize) < DIGEST_HEADER_LEN + DIGEST_LEN {
        return Err(Errno::OVERFLOW);
    }
    let digest = digest(tree, inode).map_err(failed)?;
    let digest = digest.ok_or(Errno::NODATA)?;
    out.extend_from_slice(IoctlOut::default().as_bytes());
    out.extend_from_slice(&SHA256.to_le_bytes());
    out.extend_from_slice(&(DIGEST_LEN as u16).to_le_bytes());
    out.extend_from_slice(&digest);
    Ok(())
}

/// The digest of a regular file, computed; `None` for too much data. The digests that an image
/// keeps are what it claims: the ioctl promises a measured one.
fn digest<T: Tree>(tree: &T, inode: &Inode) -> Result<Option<[u8; DIGEST_LEN]>> {
    let mut runs: Vec<Run> = Vec::new();
    let mut data_len = 0;
    tree.runs(inode, 0, &mut |run| {
        if !run.is_hole {
            data_len += run.len;
        }
        runs.push(run);
        if data_len > DIGESTED_LEN_MAX {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    })?;
    if data_len > DIGESTED_LEN_MAX {
        return Ok(None);
    }
    let mut state = FsVerity::new();
    for run in runs {
        if run.is_hole {
            state.update_zeros(run.len);
            continue;
        }
        let end = run.offset + run.len;
        while state.len() < end {
            let len = (end - state.len()).min(PIECE_LEN) as usize;
            let before = state.len();
            for chunk in tree.read(inode, before, len)? {
                state.update(&chunk);
            }
            if state.len() == before {
                return Ok(None);
            }
        }
    }
    Ok(Some(state.finish()))
}
