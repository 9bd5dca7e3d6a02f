//! What zlib does and no safe wrapper lets one ask for: `deflate` with the strategy for filtered
//! data, as libpng uses it.
//!
//! zlib itself is portable, and so is this module.

use libz_sys as z;
use std::ffi::c_int;
use std::io;
use std::mem::MaybeUninit;

/// The raw DEFLATE stream that zlib makes of `plain` at `level` (1 … 9) with the strategy for
/// filtered data, a window of 32 KiB and `memLevel` 8.
///
/// # Errors
/// `OutOfMemory` where zlib fails, `InvalidInput` for a level that there is not or 4 GiB of plain
/// bytes.
/// # Cost
/// One pass; memory: the stream, at most as long as the plain bytes and a thousandth more, and 256
/// KiB.
/// # Source
/// `zlib.h`, `deflateInit2`, `Z_FILTERED`.
pub fn deflate_filtered(plain: &[u8], level: u8) -> io::Result<Vec<u8>> {
    let len = u32::try_from(plain.len()).ok();
    let Some(len) = len.filter(|_| (1..=9).contains(&level)) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    // Zeros stand for zlib's own allocator. The struct has function pointers, which cannot be null
    // in Rust: it is never looked at but by fields, through the pointer.
    let mut stream = MaybeUninit::<z::z_stream>::zeroed();
    let stream = stream.as_mut_ptr();
    // SAFETY: `stream` points to zeroed memory that lives until the end of this function and is not
    // moved; version and size are those of the header that libz-sys was made from.
    let begun = unsafe {
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
    if begun != z::Z_OK {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    // SAFETY: deflateInit2_ has succeeded.
    let bound = unsafe { z::deflateBound(stream, plain.len() as z::uLong) };
    let mut out: Vec<u8> = vec![0; bound as usize];
    // SAFETY: deflateInit2_ has succeeded; `next_in` and `next_out` point to `avail_in` and
    // `avail_out` bytes, which zlib reads and writes only in this call, and which outlive it;
    // deflateEnd follows once.
    let (done, made_len) = unsafe {
        (*stream).next_in = plain.as_ptr().cast_mut();
        (*stream).avail_in = len;
        (*stream).next_out = out.as_mut_ptr();
        (*stream).avail_out = u32::try_from(out.len()).unwrap_or(u32::MAX);
        let done = z::deflate(stream, z::Z_FINISH);
        let made_len = (*stream).total_out;
        z::deflateEnd(stream);
        (done, made_len)
    };
    out.truncate(made_len as usize);
    match done == z::Z_STREAM_END {
        true => Ok(out),
        false => Err(io::ErrorKind::OutOfMemory.into()),
    }
}
