//! Decodes compressed files into parts that recipes can make again. DEFLATE streams (gzip, zip,
//! PNG) are made of their plain bytes, which compress better and repeat data of other files.
//! Samples (audio, FITS) are made of FLAC streams, JPEG files of Lepton files.
//!
//! Every part is encoded again and compared with the file. A part that differs is stored as it is.

mod audio;
mod fits;
mod jpeg;
pub mod pcm;
mod png;
mod sample_run;
mod stream;

use crate::dedup::prepared::Prepared;
use crate::options::Categories;
use hashbrown::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
pub use stream::{Kind, Stream};
use stream::{PLAIN_LEN_MAX, STREAM_LEN_MIN};
use weald_codec::deflate::{ARCHIVES, inflate};
use weald_codec::flac;
use weald_format::Digest;

/// Memory of a thread that decodes an archive, bytes: the plain content and the tokens of a block.
const ARCHIVE_MEMORY_LEN: u64 = PLAIN_LEN_MAX as u64 + (5 << 20);
/// Plain bytes of a part of a stream: a quarter of a block. The minimum is twice the window that
/// each part needs in addition; the maximum is made in a few milliseconds.
const PART_LEN_MIN: usize = 64 << 10;
const PART_LEN_MAX: usize = 256 << 10;
/// Plain bytes must exceed the stream by this share (1/8); otherwise compressing them again gains
/// nothing.
const DEFLATE_GAIN_SHARE: usize = 8;
/// Limit of plain bytes decoded from one file while its streams are searched. A candidate that
/// turns out to be no stream counts as the longest one, because members of a forged file can
/// overlap. Files of 4 MiB reach the limit at a ratio of 1 : 64, those of 64 MiB at 1 : 4.
const FILE_PLAIN_LEN_MAX: usize = 256 << 20;
/// Number of results kept for files with equal content.
const KNOWN_RESULT_COUNT_MAX: usize = 1 << 14;

/// Longest file that is searched for pictures, bytes.
pub use jpeg::PICTURES_LEN_MAX;

/// Memory of one thread that decodes a file, bytes.
pub fn memory_len(categories: &Categories) -> u64 {
    let archives = if categories.deflate || categories.png {
        ARCHIVE_MEMORY_LEN
    } else {
        0
    };
    let samples = if categories.pcm || categories.fits {
        pcm::PCM_MEMORY_LEN
    } else {
        0
    };
    archives.max(samples)
}

/// Memory that all threads share in addition, bytes. A thread that decodes a picture decodes
/// nothing else at the same time.
pub fn shared_memory_len(categories: &Categories) -> u64 {
    if categories.jpeg {
        jpeg::JPEG_MEMORY_LEN.saturating_sub(memory_len(categories))
    } else {
        0
    }
}

/// Streams of a file in memory, and the plain contents that are at hand.
#[derive(Debug, Default)]
pub struct Recoded {
    /// Streams, ascending.
    pub streams: Arc<[Stream]>,
    /// Plain content of each stream, if it is at hand. Empty if another thread found the streams.
    pub plains: Vec<Option<Plain>>,
}

/// A plain content that is at hand.
#[derive(Debug)]
pub struct Plain {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// What was found out about it.
    pub prepared: Option<Prepared>,
    /// Its share of the bytes that are kept.
    _share: Option<Share>,
}

impl From<Vec<u8>> for Plain {
    fn from(bytes: Vec<u8>) -> Self {
        Self {
            bytes,
            prepared: None,
            _share: None,
        }
    }
}

/// A part of the bytes that all threads keep together.
#[derive(Debug)]
struct Share {
    kept_len: Arc<AtomicU64>,
    len: u64,
}

impl Share {
    /// Takes `len` bytes, unless there would be more than `len_max` then.
    fn take(kept_len: &Arc<AtomicU64>, len: u64, len_max: u64) -> Option<Self> {
        let add = |kept: u64| Some(kept + len).filter(|&sum| sum <= len_max);
        let taken = kept_len.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        taken.is_ok().then(|| Self {
            kept_len: kept_len.clone(),
            len,
        })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.kept_len.fetch_sub(self.len, Ordering::Relaxed);
    }
}

/// Decodes `bytes`, the bytes of `stream`, to the plain content.
///
/// # Panics
/// If `bytes` are other bytes than those of `stream`.
pub fn plain_of(stream: &Stream, bytes: &[u8]) -> Vec<u8> {
    let plain = match stream.kind {
        Kind::Deflate { .. } => inflate(bytes, PLAIN_LEN_MAX).map(|(plain, _)| plain),
        Kind::Pcm { channels, samples } => flac::encode(bytes, channels, samples),
        Kind::Jpeg => jpeg::encode(bytes),
    };
    plain.unwrap_or_else(|| panic!("a stream that was decoded before cannot be decoded again"))
}

/// Searches files for streams that recipes can make, each content once.
pub struct Recoder {
    /// Digests of contents that are in the image already, sorted.
    stored: Arc<[Digest]>,
    categories: Categories,
    /// Plain bytes of a part of a DEFLATE stream.
    part_len: usize,
    /// Bytes of the plain contents of DEFLATE streams that are kept until the files are written,
    /// and how many may be. Others are decoded once more.
    kept_len: Arc<AtomicU64>,
    kept_len_max: u64,
    known: Mutex<HashMap<Digest, Outcome>>,
}

/// The streams of a content, once a thread has found them.
type Outcome = Arc<OnceLock<Arc<[Stream]>>>;

impl Recoder {
    /// Creates a recoder for `categories` that skips the contents with the sorted digests `stored`.
    /// Long DEFLATE streams are made in parts of about a quarter of a block of `block_len` bytes.
    /// At most `kept_len_max` of their plain bytes are kept.
    pub fn new(
        stored: Arc<[Digest]>,
        categories: Categories,
        block_len: u64,
        kept_len_max: u64,
    ) -> Self {
        Self {
            stored,
            categories,
            part_len: (block_len as usize / 4).clamp(PART_LEN_MIN, PART_LEN_MAX),
            kept_len: Arc::default(),
            kept_len_max,
            known: Mutex::default(),
        }
    }

    /// Returns the streams of the file `data` with digest `digest` that recipes can make; none if
    /// the file has none.
    pub fn streams(&self, data: &[u8], digest: &Digest) -> Recoded {
        if !is_recodable(data, &self.categories) || self.stored.binary_search(digest).is_ok() {
            return Recoded::default();
        }
        let outcome = {
            let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            if known.len() >= KNOWN_RESULT_COUNT_MAX {
                known.clear();
            }
            known.entry(*digest).or_default().clone()
        };
        // If another reader handles the same content, waiting is cheaper than decoding it twice.
        let mut plains = Vec::new();
        let streams = outcome.get_or_init(|| {
            let (streams, found): (Vec<_>, _) = self.find(data).into_iter().unzip();
            plains = found;
            streams.into()
        });
        Recoded {
            streams: streams.clone(),
            plains,
        }
    }

    fn find(&self, data: &[u8]) -> Vec<Recognized> {
        match finder(data, &self.categories) {
            Some(find) => find(data, self),
            None => at_hand(pcm::streams(data, &self.categories)),
        }
    }

    /// Keeps the plain content of a DEFLATE stream, if there is room.
    fn keep(&self, mut plain: Vec<u8>) -> Option<Plain> {
        plain.shrink_to_fit();
        let share = Share::take(&self.kept_len, plain.len() as u64, self.kept_len_max)?;
        Some(Plain {
            bytes: plain,
            prepared: None,
            _share: Some(share),
        })
    }
}

/// Bytes at the front of a file that tell whether it can be decoded.
pub const MAGIC_LEN: usize = 16;

/// Whether a file that begins with `front` is of a type that recipes can make.
pub fn is_recodable(front: &[u8], categories: &Categories) -> bool {
    finder(front, categories).is_some() || pcm::is_sampled(front, categories)
}

/// Whether a file that begins with `front` has to be in memory to be decoded.
pub fn is_archive(front: &[u8], categories: &Categories) -> bool {
    finder(front, categories).is_some()
}

/// A stream, and its plain content if that is at hand.
type Recognized = (Stream, Option<Plain>);

/// Finds the streams of a file.
type Finder = fn(&[u8], &Recoder) -> Vec<Recognized>;

/// Returns the function that finds the DEFLATE streams or the JPEG file of a file that begins with
/// `front`.
fn finder(front: &[u8], categories: &Categories) -> Option<Finder> {
    match front {
        [0x1f, 0x8b, 8, _, ..] if categories.deflate => Some(gzip_streams),
        [b'P', b'K', 3, 4, ..] if categories.deflate => Some(zip_streams),
        _ if categories.png && front.starts_with(&png::PNG_MAGIC) => {
            Some(|data, recoder| without_plains(png::streams(data, recoder.part_len)))
        }
        _ if categories.jpeg && front.starts_with(&jpeg::JPEG_MAGIC) => {
            Some(|data, _| at_hand(jpeg::streams(data)))
        }
        _ => None,
    }
}

/// Streams without plain contents: these are decoded again when they are written.
fn without_plains(streams: Vec<Stream>) -> Vec<Recognized> {
    streams.into_iter().map(|stream| (stream, None)).collect()
}

fn at_hand(streams: Vec<(Stream, Option<Vec<u8>>)>) -> Vec<Recognized> {
    let plain = |(stream, plain): (Stream, Option<Vec<u8>>)| (stream, plain.map(Plain::from));
    streams.into_iter().map(plain).collect()
}

/// Finds the streams of the members of a gzip file (RFC 1952).
fn gzip_streams(data: &[u8], recoder: &Recoder) -> Vec<Recognized> {
    let mut streams = Vec::new();
    let (mut at, mut remaining_len) = (0, FILE_PLAIN_LEN_MAX);
    while let Some(start) = gzip_body(data, at) {
        let Some((stream, end)) = take_stream(data, start, recoder, &mut remaining_len) else {
            break;
        };
        streams.extend(stream);
        // CRC and length of the plain bytes.
        at = end + 8;
    }
    streams
}

/// Offset of the stream of the gzip member at `at`.
fn gzip_body(data: &[u8], at: usize) -> Option<usize> {
    let member = data.get(at..)?;
    let [0x1f, 0x8b, 8, flags, ..] = *member else {
        return None;
    };
    let mut start = 10;
    if flags & 4 != 0 {
        let len = member.get(start..start + 2)?;
        start += 2 + usize::from(u16::from_le_bytes([len[0], len[1]]));
    }
    // Name and comment end with a NUL.
    for flag in [8, 16] {
        if flags & flag != 0 {
            start += member.get(start..)?.iter().position(|&b| b == 0)? + 1;
        }
    }
    if flags & 2 != 0 {
        start += 2;
    }
    Some(at + start)
}

/// Finds the streams of the members of a zip file (APPNOTE 4.3.7) by their local headers.
fn zip_streams(data: &[u8], recoder: &Recoder) -> Vec<Recognized> {
    let mut streams = Vec::new();
    let (mut at, mut remaining_len) = (0, FILE_PLAIN_LEN_MAX);
    while let Some(header) = local_header(data, at) {
        let end = match (header.method, header.stored_len) {
            (8, _) => match take_stream(data, header.body, recoder, &mut remaining_len) {
                Some((stream, end)) => {
                    streams.extend(stream);
                    Some(end)
                }
                None => header.stored_len.map(|len| header.body + len),
            },
            (_, Some(len)) => Some(header.body + len),
            (_, None) => None,
        };
        let Some(next) = end.and_then(|end| next_header(data, end)) else {
            break;
        };
        at = next;
    }
    streams
}

/// Fields of a local header.
struct LocalHeader {
    method: u16,
    body: usize,
    /// Length of the body in bytes, unless only the data descriptor behind the body has it.
    stored_len: Option<usize>,
}

fn local_header(data: &[u8], at: usize) -> Option<LocalHeader> {
    let header = data.get(at..at + 30)?;
    if !header.starts_with(b"PK\x03\x04") {
        return None;
    }
    let word = |i: usize| u16::from_le_bytes([header[i], header[i + 1]]);
    let long = |i: usize| u32::from(word(i)) | u32::from(word(i + 2)) << 16;
    let is_told_behind = word(6) & 8 != 0;
    let stored_len = long(18);
    Some(LocalHeader {
        method: word(8),
        body: at + 30 + usize::from(word(26)) + usize::from(word(28)),
        stored_len: (!is_told_behind && stored_len != u32::MAX).then_some(stored_len as usize),
    })
}

/// Offset of the local header at `end` or shortly behind it, after a data descriptor or padding.
fn next_header(data: &[u8], end: usize) -> Option<usize> {
    const SEARCH_LEN: usize = 64;
    let near = data.get(end..data.len().min(end + SEARCH_LEN))?;
    let found = near.windows(4).position(|w| w == b"PK\x03\x04")?;
    Some(end + found)
}

/// Decodes the stream at `start`. Returns the stream, if it is worth a recipe, and the offset of
/// its end. Returns `None` if there is no stream, if it is longer than a recipe may make, or if
/// `remaining_len`, the plain bytes that may still be decoded from this file, is used up.
fn take_stream(
    data: &[u8],
    start: usize,
    recoder: &Recoder,
    remaining_len: &mut usize,
) -> Option<(Option<Recognized>, usize)> {
    let stream = data.get(start..).filter(|_| *remaining_len > 0)?;
    let inflated = inflate(stream, PLAIN_LEN_MAX);
    let plain_len = inflated.as_ref().map_or(PLAIN_LEN_MAX, |i| i.0.len());
    *remaining_len = remaining_len.saturating_sub(plain_len);
    let (plain, len) = inflated?;
    let range = start..start + len;
    let stream = &data[range.clone()];
    if len < STREAM_LEN_MIN || plain.len() < len + len / DEFLATE_GAIN_SHARE {
        return Some((None, range.end));
    }
    let ranges = vec![range.clone()];
    let stream = Stream::from_deflate(stream, ranges, &plain, ARCHIVES, recoder.part_len);
    Some((
        stream.map(|stream| (stream, recoder.keep(plain))),
        range.end,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use weald_format::ContentId;

    fn tool(program: &str, args: &[&str], dir: &std::path::Path) {
        let status = std::process::Command::new(program)
            .args(args)
            .current_dir(dir)
            .stdout(std::process::Stdio::null())
            .status();
        assert!(status.is_ok_and(|s| s.success()), "{program} {args:?}");
    }

    fn text(seed: u32) -> Vec<u8> {
        let line = |i: u32| {
            format!(
                "line {} of {seed}: {}\n",
                i,
                i.wrapping_mul(2_654_435_761 + seed)
            )
        };
        (0..3000).map(line).collect::<String>().into_bytes()
    }

    fn recoder() -> Recoder {
        Recoder::new(Arc::default(), Categories::all(), 0, u64::MAX)
    }

    /// Makes the streams of `data` again from their recipes and compares them.
    fn check(data: &[u8], count: usize) {
        let streams = recoder().streams(data, &Digest::of(data)).streams;
        assert_eq!(streams.len(), count);
        for stream in streams.iter() {
            let plain = plain_of(stream, &stream.bytes_in(data));
            assert_eq!(Digest::of(&plain), stream.plain_digest);
            let mut made = Vec::new();
            for recipe in stream.recipes(ContentId(0)) {
                let needed = recipe.input_range(plain.len() as u64).unwrap();
                let run = &plain[needed.start as usize..needed.end as usize];
                made.extend(weald_codec::run_recipe(&recipe, run, plain.len() as u64).unwrap());
            }
            assert_eq!(made, *stream.bytes_in(data));
        }
    }

    /// Would catch: members that are missed, or found where there are none.
    #[test]
    fn members_of_gzip_and_zip_files_are_found() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path();
        for (i, name) in ["a", "b", "c"].iter().enumerate() {
            std::fs::write(dir.join(name), text(i as u32)).unwrap();
        }
        std::fs::write(dir.join("empty"), b"").unwrap();
        let script = "gzip -9 -c a > one.gz; gzip -c b >> one.gz; gzip -n1 -c < c > two.gz";
        tool("sh", &["-ec", script], dir);
        let script = "import zipfile
with zipfile.ZipFile('z.zip', 'w', zipfile.ZIP_DEFLATED) as z:
    z.write('a'); z.write('empty'); z.write('b', compress_type=zipfile.ZIP_STORED); z.write('c')
";
        tool("python3", &["-c", script], dir);
        for (name, count) in [("one.gz", 2), ("two.gz", 1), ("z.zip", 2)] {
            let data = std::fs::read(dir.join(name)).unwrap();
            check(&data, count);
            // Truncated or damaged files give the streams that are whole, and no panic.
            for len in (0..data.len()).step_by(997) {
                recoder().streams(&data[..len], &Digest::of(&data[..len]));
            }
        }
        check(&text(1), 0);
    }

    /// Would catch: time that grows with the square of the length of a forged file whose members
    /// overlap, so that each leads to the same oversized end.
    #[test]
    fn overlapping_forged_members_take_bounded_time() {
        // The body of each member is a stored block that holds the next member's header.
        let mut member = b"PK\x03\x04\0\0\0\0\x08\0".to_vec();
        member.resize(30, 0);
        member[18] = 5;
        member.extend_from_slice(&[0, 30, 0, !30, !0]);
        // A block of fixed codes: a NUL and matches of 258 bytes at distance 1, bit by bit.
        let matches = "1100010100000".repeat(PLAIN_LEN_MAX / 258 + 1);
        let bits = format!("010{}{matches}", "00110000").into_bytes();
        let byte = |bits: &[u8]| bits.iter().rev().fold(0, |byte, b| byte << 1 | (b - b'0'));
        let mut data = member.repeat(500);
        data.extend_from_slice(&member[..30]);
        data.extend(bits.chunks(8).map(byte));
        assert_eq!(inflate(&data[30..], PLAIN_LEN_MAX), None);
        let used = || rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime).tv_sec;
        let start = used();
        assert!(zip_streams(&data, &recoder()).is_empty());
        // The search takes one or two seconds; decoding every member to its end would take
        // many tens.
        let seconds = used() - start;
        assert!(seconds < 20, "{seconds} s");
    }
}
