//! Data of members, decoded and compared with their CRC-32.

use super::end::wrong;
use super::record::{Record, method};
use super::stretch::Stretch;
use flate2::Crc;
use std::io::{BufRead, BufReader, Read};
use weald_format::{Error, ErrorKind, Result};

/// Stored bytes that are read at once.
const STORED_BUFFER_LEN: usize = 64 << 10;

/// Names of methods by number, for messages.
const METHODS: &[(u16, &str)] = &[
    (1, "Shrink"),
    (6, "Implode"),
    (9, "Deflate64"),
    (12, "bzip2"),
    (14, "LZMA"),
    (96, "JPEG"),
    (97, "WavPack"),
    (98, "PPMd"),
];

/// The data of a member.
pub struct MemberData {
    decoder: Box<dyn Read + Send>,
    remaining_len: u64,
    crc: Crc,
    expected_crc: u32,
}

impl MemberData {
    /// The data that `stored` holds, for the member of `record`. The decoder may take
    /// `decoder_len` bytes.
    ///
    /// # Errors
    /// `Unsupported` for a method that is not read.
    pub fn new(stored: Stretch, record: &Record, decoder_len: u64) -> Result<Self> {
        let stored = BufReader::with_capacity(STORED_BUFFER_LEN, stored);
        Ok(Self {
            decoder: decoder(stored, record.method, decoder_len)?,
            remaining_len: record.data_len,
            crc: Crc::new(),
            expected_crc: record.crc,
        })
    }

    /// Fills `out` with the next data.
    ///
    /// # Errors
    /// `Io`; `Invalid` for damaged data, or fewer than the list announces.
    pub fn read(&mut self, out: &mut [u8]) -> Result<()> {
        self.decoder.read_exact(out).map_err(failed)?;
        self.crc.update(out);
        let remaining_len = self.remaining_len.checked_sub(out.len() as u64);
        self.remaining_len =
            remaining_len.ok_or_else(|| Error::invalid("a read behind the data"))?;
        Ok(())
    }

    /// Whether all announced data were read.
    pub fn is_at_end(&self) -> bool {
        self.remaining_len == 0
    }

    /// Compares what was read with the list.
    ///
    /// # Errors
    /// `Invalid` for more data than announced, or others.
    pub fn finish(&mut self) -> Result<()> {
        let mut more = [0];
        if self.decoder.read(&mut more).map_err(failed)? != 0 {
            return Err(wrong("it has more data than its list announces"));
        }
        let found = self.crc.sum();
        if found == self.expected_crc {
            Ok(())
        } else {
            Err(wrong(format!(
                "its data have the CRC {found:08x}, expected {:08x}",
                self.expected_crc
            )))
        }
    }
}

fn decoder(
    stored: impl BufRead + Send + 'static,
    method: u16,
    decoder_len: u64,
) -> Result<Box<dyn Read + Send>> {
    let io = |e| Error::io("a decoder", e);
    Ok(match method {
        method::STORED => Box::new(stored),
        method::DEFLATE => Box::new(flate2::bufread::DeflateDecoder::new(stored)),
        method::ZSTD => {
            let mut decoder = zstd::stream::read::Decoder::with_buffer(stored).map_err(io)?;
            // The window is most of a decoder's memory.
            let window_log = (decoder_len / 2).max(1 << 20).ilog2().min(31);
            decoder.window_log_max(window_log).map_err(io)?;
            Box::new(decoder)
        }
        method::XZ => {
            let stream = liblzma::stream::Stream::new_stream_decoder(
                decoder_len,
                liblzma::stream::CONCATENATED,
            );
            let stream = stream.map_err(|e| io(e.into()))?;
            Box::new(liblzma::bufread::XzDecoder::new_stream(stored, stream))
        }
        other => {
            let name = METHODS.iter().find(|(number, _)| *number == other);
            let name =
                name.map_or_else(|| format!("method {other}"), |(_, name)| (*name).to_owned());
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("is compressed with {name}: stored, DEFLATE, zstd and xz are read"),
            ));
        }
    })
}

fn failed(error: std::io::Error) -> Error {
    use std::io::ErrorKind as K;
    match error.kind() {
        K::UnexpectedEof => wrong("it has fewer data than its list announces"),
        K::InvalidData | K::InvalidInput => wrong(format!("its data cannot be decoded: {error}")),
        _ => Error::io("its data cannot be read", error),
    }
}
