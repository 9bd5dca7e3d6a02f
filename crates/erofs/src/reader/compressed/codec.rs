//! Decodes physical clusters.

use super::super::{damaged, unsupported};
use super::lz4;
use flate2::{Decompress, FlushDecompress};
use std::io::Read;
use weald_format::Result;

/// Names of the codecs by number.
const NAMES: [&str; 4] = ["LZ4", "MicroLZMA", "DEFLATE", "Zstandard"];
const LZ4: u8 = 0;
const DEFLATE: u8 = 2;
const ZSTD: u8 = 3;
/// Base-2 logarithm of the largest window that the kernel allows: that of the largest cluster.
const WINDOW_BITS_MAX: u32 = 20;

/// Fills `out` with the first bytes of what `stored` holds. The zeros before the data are padding.
///
/// # Errors
/// `Corrupt`; `Unsupported` for a codec that the reader lacks.
pub fn decode(codec: u8, stored: &[u8], out: &mut [u8]) -> Result<()> {
    let padding = stored.iter().take_while(|&&byte| byte == 0).count();
    let data = stored.get(padding..).unwrap_or_default();
    let is_whole = match codec {
        LZ4 => lz4::decode(data, out).is_some(),
        DEFLATE => decode_deflate(data, out).is_some(),
        ZSTD => decode_zstd(data, out).is_ok(),
        other => {
            let name = NAMES.get(usize::from(other)).copied();
            let name = name.map_or_else(|| format!("codec {other}"), str::to_owned);
            return Err(unsupported(format_args!("compressed with {name}")));
        }
    };
    if is_whole {
        Ok(())
    } else {
        Err(damaged("compressed data cannot be decoded"))
    }
}

/// Decodes DEFLATE without a header, as far as `out` reaches: an extent may end before its stream.
fn decode_deflate(data: &[u8], out: &mut [u8]) -> Option<()> {
    let mut decoder = Decompress::new(false);
    let decoded = decoder.decompress(data, out, FlushDecompress::Finish);
    let is_full = decoder.total_out() == out.len() as u64;
    (decoded.is_ok() && is_full).then_some(())
}

fn decode_zstd(data: &[u8], out: &mut [u8]) -> std::io::Result<()> {
    let mut decoder = zstd::stream::read::Decoder::with_buffer(data)?.single_frame();
    decoder.window_log_max(WINDOW_BITS_MAX)?;
    decoder.read_exact(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weald_format::ErrorKind;

    // Would catch: a codec that is taken for another one, and an error that does not name it.
    #[test]
    fn other_codecs_are_named() {
        for (codec, name) in [(1, "MicroLZMA"), (9, "codec 9")] {
            let error = decode(codec, &[1; 100], &mut [0; 10]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            let expected = format!("not supported in EROFS images: compressed with {name}");
            assert_eq!(error.to_string(), expected);
        }
        let stored = zstd::bulk::compress(&[7; 1000], 3).unwrap();
        let padded = [&[0; 50][..], &stored].concat();
        let mut out = [0; 1000];
        decode(ZSTD, &padded, &mut out).unwrap();
        assert_eq!(out, [7; 1000]);
        assert!(decode(ZSTD, &padded[..60], &mut out).is_err());
        assert!(decode(LZ4, &[0; 100], &mut out).is_err());
    }

    // Would catch: an extent that ends before its stream and is refused, and one that goes on
    // behind it and is filled with zeros.
    #[test]
    fn the_beginning_of_a_deflate_stream_can_be_decoded() {
        let text: Vec<u8> = (0..30_000_u32).map(|n| ((n * n) >> 9) as u8).collect();
        let mut encoder = flate2::Compress::new(flate2::Compression::new(6), false);
        let mut stored = Vec::with_capacity(40_000);
        let flush = flate2::FlushCompress::Finish;
        encoder.compress_vec(&text, &mut stored, flush).unwrap();
        let padded = [&[0; 50][..], &stored].concat();
        for len in [0, 1, 4096, 29_999, 30_000] {
            let mut out = vec![0; len];
            decode(DEFLATE, &padded, &mut out).unwrap();
            assert!(out == text[..len], "{len}");
        }
        assert!(decode(DEFLATE, &padded, &mut [0; 30_001]).is_err());
        let cut = &padded[..padded.len() / 2];
        assert!(decode(DEFLATE, cut, &mut [0; 30_000]).is_err());
        assert!(decode(DEFLATE, &[0; 100], &mut [0; 10]).is_err());
    }
}
