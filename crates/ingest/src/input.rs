//! The bytes of a stream: counted, decompressed if necessary, with the first bytes readable in
//! advance for format detection.

use flate2::bufread::MultiGzDecoder;
use std::io::{BufRead, BufReader, Chain, Cursor, Read};
use weald_format::{Error, Result};

/// Bytes read at once.
const INPUT_BUFFER_LEN: usize = 256 << 10;
/// Bytes read in advance: enough to detect every compression and a tar header.
const DETECT_LEN: usize = 512;

const GZIP_MAGIC: &[u8] = &[0x1f, 0x8b];
const ZSTD_MAGIC: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
const XZ_MAGIC: &[u8] = b"\xfd7zXZ\0";
const BZIP2_MAGIC: &[u8] = b"BZh";

/// Source of a stream.
pub type InputStream = Box<dyn Read + Send>;

type Rewound = BufReader<Chain<Cursor<Vec<u8>>, InputStream>>;

/// A stream, decompressed.
pub struct Input {
    reader: Box<dyn BufRead + Send>,
    front: Vec<u8>,
    /// Bytes read by the caller.
    offset: u64,
    /// The last piece of [`Input::read_until`] ended in its separator.
    had_separator: bool,
}

impl Input {
    /// The stream `source`, which may be compressed by gzip, zstd or xz; a decoder may take
    /// `memory_len` bytes.
    ///
    /// # Errors
    /// `Io`; `Unsupported` for bzip2.
    pub fn new(source: InputStream, memory_len: u64) -> Result<Self> {
        let reader = Self::decoded(source, memory_len)?;
        Self::plain(reader)
    }

    /// The stream of `reader`, which is not decompressed.
    ///
    /// # Errors
    /// `Io`.
    pub fn plain(reader: Box<dyn BufRead + Send>) -> Result<Self> {
        let mut input = Self {
            reader,
            front: Vec::new(),
            offset: 0,
            had_separator: true,
        };
        input.front = read_front(&mut input.reader)?;
        Ok(input)
    }

    /// Whether a stream that begins with `front` is compressed in a way that is read.
    pub fn is_compressed(front: &[u8]) -> bool {
        [GZIP_MAGIC, ZSTD_MAGIC, XZ_MAGIC]
            .iter()
            .any(|magic| front.starts_with(magic))
    }

    /// Whether a stream that begins with `front` is compressed by bzip2, which is not read.
    pub fn is_bzip2(front: &[u8]) -> bool {
        front.starts_with(BZIP2_MAGIC) && front.get(4..10) == Some(b"1AY&SY")
    }

    /// The bytes of `source`, decompressed if they are compressed, as for [`Input::new`].
    ///
    /// # Errors
    /// As [`Input::new`].
    pub fn decoded(mut source: InputStream, memory_len: u64) -> Result<Box<dyn BufRead + Send>> {
        let front = read_front(&mut source)?;
        let is = |magic: &[u8]| front.starts_with(magic);
        let rewound: Rewound =
            BufReader::with_capacity(INPUT_BUFFER_LEN, Cursor::new(front.clone()).chain(source));
        let reader: Box<dyn BufRead + Send> = if is(GZIP_MAGIC) {
            buffered(MultiGzDecoder::new(rewound))
        } else if is(ZSTD_MAGIC) {
            let mut decoder = zstd::stream::read::Decoder::with_buffer(rewound).map_err(failed)?;
            // The window is most of a decoder's memory.
            decoder
                .window_log_max((memory_len / 2).max(1 << 20).ilog2().min(31))
                .map_err(failed)?;
            buffered(decoder)
        } else if is(XZ_MAGIC) {
            let stream = liblzma::stream::Stream::new_stream_decoder(
                memory_len,
                liblzma::stream::CONCATENATED,
            );
            let stream = stream.map_err(|e| failed(e.into()))?;
            buffered(liblzma::bufread::XzDecoder::new_stream(rewound, stream))
        } else if Self::is_bzip2(&front) {
            let what =
                "a stream compressed by bzip2: decompress it on the way, bzip2 -dc | weald build -";
            return Err(Error::new(weald_format::ErrorKind::Unsupported, what));
        } else {
            Box::new(rewound)
        };
        Ok(reader)
    }

    /// The first 512 bytes, or fewer if the stream is shorter. A read returns them again.
    pub fn front(&self) -> &[u8] {
        match self.offset {
            0 => &self.front,
            _ => &[],
        }
    }

    /// Bytes read so far.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Fills `out` as far as the stream has bytes; returns their count.
    ///
    /// # Errors
    /// `Io`; `Invalid` for damaged compressed bytes.
    pub fn read(&mut self, out: &mut [u8]) -> Result<usize> {
        let mut len = out.len().min(self.front.len());
        if len > 0 {
            out[..len].copy_from_slice(&self.front[..len]);
            self.front.drain(..len);
        }
        while len < out.len() {
            match self.reader.read(&mut out[len..]) {
                Ok(0) => break,
                Ok(count) => len += count,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failed(error)),
            }
        }
        self.offset += len as u64;
        Ok(len)
    }

    /// Appends the bytes before the next `end` to `out`, at most `len_max`. Returns false at the
    /// end of the stream. A last piece without an `end` counts.
    ///
    /// # Errors
    /// As [`Input::read`]; `Limit` for more bytes.
    pub fn read_until(&mut self, end: u8, len_max: usize, out: &mut Vec<u8>) -> Result<bool> {
        let start = out.len();
        self.had_separator = true;
        if !self.front.is_empty() {
            let at = self.front.iter().position(|&b| b == end);
            let len = at.unwrap_or(self.front.len());
            out.extend(self.front.drain(..len));
            self.offset += len as u64;
            if at.is_some() {
                self.front.drain(..1);
                self.offset += 1;
                return Ok(true);
            }
        }
        let mut limited = (&mut self.reader).take((len_max + 1) as u64);
        let taken = limited.read_until(end, out).map_err(failed)?;
        self.offset += taken as u64;
        let is_ended = taken > 0 && out.last() == Some(&end);
        self.had_separator = is_ended;
        if is_ended {
            out.pop();
        }
        if out.len() - start > len_max {
            return Err(Error::limit(format!(
                "byte {}: more than {len_max} bytes in a row",
                self.offset
            )));
        }
        Ok(is_ended || out.len() > start)
    }

    /// Whether the last piece of [`Input::read_until`] ended in its `end`, not with the stream.
    pub fn last_was_ended(&self) -> bool {
        self.had_separator
    }

    /// The rest of this stream with `unread` before it, as a stream of its own, which may be
    /// compressed again. This one is empty then.
    ///
    /// # Errors
    /// As [`Input::new`].
    pub fn again_from(&mut self, unread: &[u8], memory_len: u64) -> Result<Self> {
        let front = [unread, &self.front].concat();
        self.front.clear();
        let empty: Box<dyn BufRead + Send> = Box::new(std::io::empty());
        let rest = std::mem::replace(&mut self.reader, empty);
        Self::new(Box::new(Cursor::new(front).chain(rest)), memory_len)
    }

    /// Reads to the end, so that the program that writes the stream does not get a broken pipe.
    /// Returns the offset of the first byte that is not zero, if there is one.
    ///
    /// # Errors
    /// As [`Input::read`].
    pub fn drain(&mut self) -> Result<Option<u64>> {
        let (mut piece, mut first) = (vec![0; 64 << 10], None);
        loop {
            let start = self.offset;
            let len = self.read(&mut piece)?;
            if len == 0 {
                return Ok(first);
            }
            let at = piece[..len].iter().position(|&byte| byte != 0);
            first = first.or(at.map(|at| start + at as u64));
        }
    }
}

fn buffered(reader: impl Read + Send + 'static) -> Box<dyn BufRead + Send> {
    Box::new(BufReader::with_capacity(INPUT_BUFFER_LEN, reader))
}

fn failed(error: std::io::Error) -> Error {
    use std::io::ErrorKind as K;
    match error.kind() {
        K::InvalidData | K::InvalidInput | K::UnexpectedEof => {
            Error::invalid(format!("the stream cannot be decompressed: {error}"))
        }
        _ => Error::io("the stream cannot be read", error),
    }
}

fn read_front(source: &mut impl Read) -> Result<Vec<u8>> {
    let mut front = Vec::with_capacity(DETECT_LEN);
    let mut part = source.take(DETECT_LEN as u64);
    part.read_to_end(&mut front).map_err(failed)?;
    Ok(front)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn text() -> Vec<u8> {
        (0..50_000_u32).flat_map(|n| n.to_le_bytes()).collect()
    }

    fn input(bytes: Vec<u8>) -> Result<Input> {
        Input::new(Box::new(Cursor::new(bytes)), 16 << 20)
    }

    fn all(bytes: Vec<u8>) -> Result<Vec<u8>> {
        let (mut input, mut out) = (input(bytes)?, vec![0; 300_000]);
        let len = input.read(&mut out)?;
        assert_eq!(input.offset(), len as u64);
        out.truncate(len);
        Ok(out)
    }

    /// Would catch: a compression that is not detected, a lost second member of gzip or xz.
    #[test]
    fn what_is_compressed_is_decompressed() {
        let text = text();
        let mut gzip = Vec::new();
        for half in text.chunks(100_000) {
            let mut encoder = flate2::write::GzEncoder::new(&mut gzip, flate2::Compression::fast());
            encoder.write_all(half).unwrap();
            encoder.finish().unwrap();
        }
        let zstd = zstd::encode_all(&text[..], 1).unwrap();
        let xz = liblzma::encode_all(&text[..], 1).unwrap();
        for bytes in [text.clone(), gzip.clone(), zstd.clone(), xz] {
            assert!(all(bytes).unwrap() == text);
        }
        let error = all(gzip[..gzip.len() - 20].to_vec()).unwrap_err();
        assert!(
            error.to_string().contains("cannot be decompressed"),
            "{error}"
        );
        let error = input(b"BZh91AY&SYxxxxxx".to_vec()).err().unwrap();
        assert!(error.to_string().contains("bzip2"), "{error}");
        assert_eq!(all(Vec::new()).unwrap(), b"");
    }

    #[test]
    fn pieces_are_read_up_to_their_end() {
        let mut input = input([&b"one\0\0"[..], &[b'x'; 1000], b"\0last"].concat()).unwrap();
        let mut pieces = Vec::new();
        let mut piece = Vec::new();
        while input.read_until(0, 2000, &mut piece).unwrap() {
            pieces.push(std::mem::take(&mut piece));
        }
        assert_eq!(pieces, [&b"one"[..], b"", &[b'x'; 1000], b"last"]);
        let mut input = self::input(vec![b'x'; 600_000]).unwrap();
        assert!(input.read_until(0, 2000, &mut piece).is_err());
    }
}
