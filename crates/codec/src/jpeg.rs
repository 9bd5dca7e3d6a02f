//! Encodes JPEG files as Lepton files and decodes them, byte for byte, with `lepton_jpeg`.
//!
//! That library is safe Rust but trusts its input: it reserves the memory that headers announce,
//! and asserts the rest. So this module checks everything before it reaches the library.
//! [`container`] allows only what our encoder writes; [`segments`] allows only pictures of bounded
//! dimensions and scans. The output goes into a bounded writer, and a panic of the library becomes
//! an error.

mod container;
mod segments;

use lepton_jpeg::{EnabledFeatures, SingleThreadPool, decode_lepton, encode_lepton};
use segments::{Picture, corrupt};
use std::io::{self, Cursor, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use weald_format::Result;
use weald_format::limits::{PICTURE_BLOCKS_MAX, PICTURE_SCANS_MAX};

/// Memory of the decoder besides twice the Lepton file and its output, bytes: 128 bytes for each
/// coefficient block, and 8 MiB for the model, tables and rows. Files of several scans may have
/// fewer blocks, so that a scan of a forged file, up to 400 bytes per block, fits too.
pub const DECODER_MEMORY_LEN: u64 = PICTURE_BLOCKS_MAX * BLOCK_MEMORY_LEN + (8 << 20);
/// Memory of the encoder besides the file, bytes: that of the decoder, and the result, which exists
/// twice for a moment.
pub const fn encoder_memory_len(file_len: u64) -> u64 {
    DECODER_MEMORY_LEN.saturating_add(file_len.saturating_mul(3))
}

/// Bytes of the coefficients of a block.
const BLOCK_MEMORY_LEN: u64 = 128;

/// Features of the library. All of them affect the bytes of a Lepton file or refuse files. The
/// library never starts threads.
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

/// Encodes `file`, a whole JPEG file from SOI to EOI, as a Lepton file. `None` if [`decode`] would
/// not accept the result or would return other bytes.
///
/// # Cost
/// About 8 MB/s for each of the two directions; memory: [`encoder_memory_len`].
pub fn encode(file: &[u8]) -> Option<Vec<u8>> {
    let picture = Picture::of_file(file).ok()?;
    // Without decoding, scan headers cannot be told apart from the contents of segments. So this
    // count may be too high.
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
    container::clear_version(&mut stored);
    let output = decode(&stored, file.len()).ok()?;
    (output == file).then_some(stored)
}

/// Decodes the Lepton file `stored` to a JPEG file of `len` bytes.
///
/// # Errors
/// `Corrupt` if it is not a Lepton file that `docs/format.md` section 20 allows, or if the output
/// differs in length.
/// # Cost
/// About 8 MB/s; memory: [`DECODER_MEMORY_LEN`].
pub fn decode(stored: &[u8], len: usize) -> Result<Vec<u8>> {
    container::check(stored, len)?;
    let mut output = BoundedWriter {
        bytes: Vec::new(),
        len_max: len,
    };
    let result = catch_unwind(AssertUnwindSafe(|| {
        let pool = SingleThreadPool::default();
        decode_lepton(&mut &*stored, &mut output, &features(len), &pool)
    }));
    match result {
        Ok(Ok(_)) if output.bytes.len() == len => Ok(output.bytes),
        Ok(Ok(_)) => Err(corrupt(format!(
            "expected a JPEG file of {len} bytes, found {}",
            output.bytes.len()
        ))),
        Ok(Err(error)) => Err(corrupt("Lepton file: does not decode").with_source(error)),
        Err(_) => Err(corrupt("Lepton file: its decoder panicked")),
    }
}

/// A writer that fails after `len_max` bytes.
struct BoundedWriter {
    bytes: Vec<u8>,
    len_max: usize,
}

impl Write for BoundedWriter {
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
