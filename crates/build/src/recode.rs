//! Files that hold DEFLATE streams (gzip, zip) taken apart: what lies between the streams, and recipes that make the
//! streams from their plain bytes, which compress better and repeat what other files hold.
//!
//! Whatever comes out was put together again and compared with the file. What does not come out is stored as it is.

use hashbrown::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use weald_codec::deflate::{analyze, inflate};
use weald_format::Digest;
use weald_format::recipes::{CHECK_LEN, Recipe};

/// Plain bytes that one recipe may need: a read of one byte has to recreate all that the recipe makes.
pub const PLAIN_LEN_MAX: usize = 8 << 20;
/// What one thread needs while it takes a file apart: plain bytes, zlib's stream of them, the stream made from it, which
/// is no longer than they are, and the tokens of a block.
pub const MEMORY_LEN: u64 = PLAIN_LEN_MAX as u64 * 3 + (5 << 20);
/// Shorter streams are not worth what a recipe takes.
const STREAM_LEN_MIN: usize = 128;
/// Plain bytes must be longer than the stream by this share (1/8), or there was nothing to compress.
const GAIN_SHARE: usize = 8;
/// Plain bytes that are made of one file while its streams are looked for, where one that turns out to be none counts as the
/// longest: members of a forged file can lie in one another. Files of 4 MiB reach it from 1 : 64 on, those of 64 MiB from 1 : 4.
const FILE_PLAIN_LEN_MAX: usize = 256 << 20;
/// Outcomes that are kept for files with the same content.
const KNOWN_COUNT_MAX: usize = 1 << 14;

/// A stream in a file, and how to make it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stream {
    /// Where it lies in the file.
    pub range: Range<usize>,
    /// Digest of its plain bytes.
    pub plain_digest: Digest,
    /// zlib level.
    pub level: u8,
    /// What zlib would have done otherwise.
    pub corrections: Vec<u8>,
    /// First bytes of its digest.
    pub check: [u8; CHECK_LEN],
}

/// The plain bytes of a stream that was taken apart.
///
/// # Panics
/// If the stream is another one.
pub fn plain_of(stream: &[u8]) -> Vec<u8> {
    let inflated = inflate(stream, PLAIN_LEN_MAX);
    inflated.map_or_else(
        || panic!("a stream that could be inflated can be inflated again"),
        |(plain, _)| plain,
    )
}

/// Takes files apart; each content once.
#[derive(Default)]
pub struct Recoder {
    /// Digests of contents that are in the image already, sorted.
    stored: Arc<[Digest]>,
    known: Mutex<HashMap<Digest, Outcome>>,
}

/// The streams of a content, once somebody has found them.
type Outcome = Arc<OnceLock<Arc<[Stream]>>>;

impl Recoder {
    /// A recoder that leaves the contents with these digests, sorted, alone.
    pub fn new(stored: Arc<[Digest]>) -> Self {
        Self {
            stored,
            ..Self::default()
        }
    }

    /// The streams in the file `data`, whose digest is `digest`, in order; none where it holds none.
    pub fn streams(&self, data: &[u8], digest: &Digest) -> Arc<[Stream]> {
        let Some(find) = finder(data) else {
            return Arc::default();
        };
        if self.stored.binary_search(digest).is_ok() {
            return Arc::default();
        }
        let outcome = {
            let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            if known.len() >= KNOWN_COUNT_MAX {
                known.clear();
            }
            known.entry(*digest).or_default().clone()
        };
        // Another reader may be at the same content: waiting for it is cheaper than doing it twice.
        outcome.get_or_init(|| find(data).into()).clone()
    }
}

/// Bytes that tell whether a file can be taken apart.
pub const MAGIC_LEN: usize = 4;

/// Whether a file that begins with `front` can be taken apart, if its streams agree.
pub fn is_archive(front: &[u8]) -> bool {
    finder(front).is_some()
}

/// Finds the streams of a file.
type Finder = fn(&[u8]) -> Vec<Stream>;

/// What finds the streams of a file that begins with `front`.
fn finder(front: &[u8]) -> Option<Finder> {
    match front {
        [0x1f, 0x8b, 8, _, ..] => Some(gzip_streams),
        [b'P', b'K', 3, 4, ..] => Some(zip_streams),
        _ => None,
    }
}

/// Streams of the members of a gzip file (RFC 1952).
fn gzip_streams(data: &[u8]) -> Vec<Stream> {
    let mut streams = Vec::new();
    let (mut at, mut left) = (0, FILE_PLAIN_LEN_MAX);
    while let Some(start) = gzip_body(data, at) {
        let Some((stream, end)) = take(data, start, &mut left) else {
            break;
        };
        streams.extend(stream);
        // CRC and length of the plain bytes.
        at = end + 8;
    }
    streams
}

/// Where the stream of the gzip member at `at` begins.
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

/// Streams of the members of a zip file (APPNOTE 4.3.7), found by their local headers.
fn zip_streams(data: &[u8]) -> Vec<Stream> {
    let mut streams = Vec::new();
    let (mut at, mut left) = (0, FILE_PLAIN_LEN_MAX);
    while let Some(header) = local_header(data, at) {
        let end = match (header.method, header.stored_len) {
            (8, _) => match take(data, header.body, &mut left) {
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

/// What a local header says.
struct LocalHeader {
    method: u16,
    body: usize,
    /// Bytes of the body, unless they are only told behind it.
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

/// The local header at `end` or a little behind it: a data descriptor may stand between, or padding.
fn next_header(data: &[u8], end: usize) -> Option<usize> {
    const SEARCH_LEN: usize = 64;
    let near = data.get(end..data.len().min(end + SEARCH_LEN))?;
    let found = near.windows(4).position(|w| w == b"PK\x03\x04")?;
    Some(end + found)
}

/// The stream at `start`, if it is worth a recipe, and where it ends; `None` where there is no stream, or a longer one
/// than a recipe may make, or `left`, the plain bytes that may still be made of the file, is used up.
fn take(data: &[u8], start: usize, left: &mut usize) -> Option<(Option<Stream>, usize)> {
    let stream = data.get(start..).filter(|_| *left > 0)?;
    let inflated = inflate(stream, PLAIN_LEN_MAX);
    let plain_len = inflated.as_ref().map_or(PLAIN_LEN_MAX, |i| i.0.len());
    *left = left.saturating_sub(plain_len);
    let (plain, len) = inflated?;
    let range = start..start + len;
    let stream = &data[range.clone()];
    if len < STREAM_LEN_MIN || plain.len() < len + len / GAIN_SHARE {
        return Some((None, range.end));
    }
    let taken = analyze(stream, &plain).map(|recipe| Stream {
        range: range.clone(),
        plain_digest: Digest::of(&plain),
        level: recipe.level,
        corrections: recipe.corrections,
        check: Recipe::check_of(stream),
    });
    Some((taken, range.end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use weald_codec::deflate::recreate;

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

    /// Puts `data` together again from its streams' recipes.
    fn check(data: &[u8], count: usize) {
        let streams = Recoder::default().streams(data, &Digest::of(data));
        assert_eq!(streams.len(), count);
        for stream in streams.iter() {
            let plain = plain_of(&data[stream.range.clone()]);
            assert_eq!(Digest::of(&plain), stream.plain_digest);
            let made = recreate(
                &plain,
                stream.level,
                &stream.corrections,
                stream.range.len(),
            );
            assert_eq!(made.unwrap(), data[stream.range.clone()]);
        }
    }

    /// Would catch: members that are missed, or found where they are not.
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
            // Cut or damaged files give what can be had, and no panic.
            for len in (0..data.len()).step_by(97) {
                Recoder::default().streams(&data[..len], &Digest::of(&data[..len]));
            }
        }
        check(&text(1), 0);
    }

    /// Would catch: time that grows with the square of a forged file: members that lie in one another, each of which leads
    /// to the same end that makes more than it may.
    #[test]
    fn forged_members_that_lie_in_one_another_take_no_time() {
        // The body is a stored block, which holds the next member's header.
        let mut member = b"PK\x03\x04\0\0\0\0\x08\0".to_vec();
        member.resize(30, 0);
        member[18] = 5;
        member.extend_from_slice(&[0, 30, 0, !30, !0]);
        // A block of fixed codes: a NUL and matches of 258 bytes at distance 1, each bit as it comes.
        let matches = "1100010100000".repeat(PLAIN_LEN_MAX / 258 + 1);
        let bits = format!("010{}{matches}", "00110000").into_bytes();
        let byte = |bits: &[u8]| bits.iter().rev().fold(0, |byte, b| byte << 1 | (b - b'0'));
        let mut data = member.repeat(1500);
        data.extend_from_slice(&member[..30]);
        data.extend(bits.chunks(8).map(byte));
        assert_eq!(inflate(&data[30..], PLAIN_LEN_MAX), None);
        let start = std::time::Instant::now();
        assert_eq!(zip_streams(&data), []);
        let seconds = start.elapsed().as_secs();
        assert!(seconds < 10, "{seconds} s");
    }
}
