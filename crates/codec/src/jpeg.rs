//! JPEG files as Lepton files and back, byte for byte, by `lepton_jpeg`.
//!
//! That library is safe Rust but trusts what it reads: it reserves what headers announce and
//! asserts on the rest. So nothing reaches it that was not looked at here before: [`container`]
//! allows only what our encoder writes, [`segments`] only pictures of bounded dimensions and
//! passes. What it makes goes into a writer that ends, and a panic of it becomes an error.

mod container;
mod segments;

use lepton_jpeg::{EnabledFeatures, SingleThreadPool, decode_lepton, encode_lepton};
use segments::Picture;
use std::io::{self, Cursor, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use weald_format::limits::{PICTURE_BLOCKS_MAX, PICTURE_SCANS_MAX};
use weald_format::{Error, Result};

/// Bytes of memory that decoding takes besides the Lepton file twice and what it makes: 128 bytes
/// for each block of coefficients, which in files of several scans are fewer, so that a scan of a
/// forged file, up to 400 bytes a block, has room too, and 8 MiB for the model, tables and rows.
pub const DECODER_MEMORY_LEN: u64 = PICTURE_BLOCKS_MAX * BLOCK_MEMORY_LEN + (8 << 20);
/// Bytes of memory that encoding takes besides the file: as decoding, and the result, which is held
/// twice for a moment.
pub const fn encoder_memory_len(file_len: u64) -> u64 {
    DECODER_MEMORY_LEN.saturating_add(file_len.saturating_mul(3))
}

/// Bytes of the coefficients of a block.
const BLOCK_MEMORY_LEN: u64 = 128;

/// What the library may do. All of it bears on the bytes of a Lepton file or refuses files; threads
/// are never started.
fn features(len: usize) -> EnabledFeatures {
    EnabledFeatures {
        progressive: true,
        reject_dqts_with_zeros: true,
        max_jpeg_width: u16::MAX.into(),
        max_jpeg_height: u16::MAX.into(),
        use_16bit_dc_estimate: true,
        use_16bit_adv_predict: true,
        accept_invalid_dht: false,
        max_partitions: 1,
        max_processor_threads: 1,
        max_jpeg_file_size: u32::try_from(len).unwrap_or(u32::MAX),
        stop_reading_at_eoi: true,
    }
}

/// The Lepton file of `file`, a whole JPEG file from SOI to EOI; `None` where there is none that
/// [`decode`] would take and that makes the same bytes.
///
/// # Cost
/// About 8 MB/s for each of the two directions; memory as [`encoder_memory_len`] says.
pub fn encode(file: &[u8]) -> Option<Vec<u8>> {
    let picture = Picture::of_file(file).ok()?;
    // Ends of segments cannot be told from what lies in them without decoding, so that this may
    // count too many.
    let scan_count = file.windows(2).filter(|w| w == b"\xff\xda").count();
    if scan_count > PICTURE_SCANS_MAX || !picture.is_allowed() {
        return None;
    }
    let encoded = catch_unwind(|| {
        let mut stored = Cursor::new(Vec::new());
        let pool = SingleThreadPool::default();
        encode_lepton(
            &mut Cursor::new(file),
            &mut stored,
            &features(file.len()),
            &pool,
        )
        .map(|_| stored.into_inner())
    });
    let mut stored = encoded.ok()?.ok()?;
    container::forget_version(&mut stored);
    let made = decode(&stored, file.len()).ok()?;
    (made == file).then_some(stored)
}

/// The JPEG file of `len` bytes that the Lepton file `stored` makes.
///
/// # Errors
/// `Corrupt` where it is none that `docs/format.md` section 20 allows, or makes something else.
/// # Cost
/// About 8 MB/s; memory as [`DECODER_MEMORY_LEN`] says.
pub fn decode(stored: &[u8], len: usize) -> Result<Vec<u8>> {
    container::check(stored, len)?;
    let mut made = Bounded {
        bytes: Vec::new(),
        len_max: len,
    };
    let result = catch_unwind(AssertUnwindSafe(|| {
        let pool = SingleThreadPool::default();
        decode_lepton(&mut &*stored, &mut made, &features(len), &pool)
    }));
    match result {
        Ok(Ok(_)) if made.bytes.len() == len => Ok(made.bytes),
        Ok(Ok(_)) => Err(corrupt(format!(
            "expected a JPEG file of {len} bytes, found {}",
            made.bytes.len()
        ))),
        Ok(Err(error)) => Err(corrupt("a Lepton file that does not decode").with_source(error)),
        Err(_) => Err(corrupt("a Lepton file that its decoder gives up on")),
    }
}

fn corrupt(what: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::corrupt("Lepton file", 0, "F-20.7", what)
}

/// Takes so many bytes and no more.
struct Bounded {
    bytes: Vec<u8>,
    len_max: usize,
}

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.len_max.saturating_sub(self.bytes.len()) {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
