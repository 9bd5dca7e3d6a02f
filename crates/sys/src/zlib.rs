//! zlib's `deflate` with the strategy for filtered data, which libpng uses; safe wrappers do not
//! offer it.
//!
//! zlib is portable, and so is this module.

use libz_sys as z;
use std::ffi::c_int;
use std::io;
use std::mem::MaybeUninit;

/// Compresses `plain` to a raw DEFLATE stream at `level` (1 … 9) with the strategy for filtered
/// data, a window of 32 KiB and `memLevel` 8.
///
/// # Errors
/// `OutOfMemory` if zlib fails, `InvalidInput` for an unknown level or 4 GiB or more of plain
/// bytes.
/// # Cost
/// One pass; memory: the stream, at most a thousandth longer than the plain bytes, and 256 KiB.
/// # Source
/// `zlib.h`, `deflateInit2`, `Z_FILTERED`.
pub fn deflate_filtered(plain: &[u8], level: u8) -> io::Result<Vec<u8>> {
    let len = u32::try_from(plain.len()).ok();
    let Some(len) = len.filter(|_| (1..=9).contains(&level)) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    // Zeros select zlib's own allocator. The struct has function pointers, which cannot be null in
    // Rust. So it is accessed only by field, through the pointer.
    let mut stream = MaybeUninit::<z::z_stream>::zeroed();
    let stream = stream.as_mut_ptr();
    // SAFETY: `stream` points to zeroed memory that lives until the end of this function and does
    // not move. Version and size are those of the header that libz-sys was generated from.
    let status = unsafe {
        z::deflateInit2_(
            stream,
            c_int::from(level),
            z::Z_DEFLATED,
            -15,
            8,
            z::Z_FILTERED,
            z::zlibVersion(),
            size_of::<z::z_stream>() as c_int,
        )
    };
    if status != z::Z_OK {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    // SAFETY: deflateInit2_ has succeeded.
    let bound = unsafe { z::deflateBound(stream, plain.len() as z::uLong) };
    let mut out: Vec<u8> = vec![0; bound as usize];
    // SAFETY: deflateInit2_ has succeeded; `next_in` and `next_out` point to `avail_in` and
    // `avail_out` bytes, which zlib reads and writes only in this call, and which outlive it;
    // deflateEnd follows once.
    let (done, stream_len) = unsafe {
        (*stream).next_in = plain.as_ptr().cast_mut();
        (*stream).avail_in = len;
        (*stream).next_out = out.as_mut_ptr();
        (*stream).avail_out = u32::try_from(out.len()).unwrap_or(u32::MAX);
        let done = z::deflate(stream, z::Z_FINISH);
        let stream_len = (*stream).total_out;
        z::deflateEnd(stream);
        (done, stream_len)
    };
    out.truncate(stream_len as usize);
    if done == z::Z_STREAM_END {
        Ok(out)
    } else {
        Err(io::ErrorKind::OutOfMemory.into())
    }
}
