//! Files taken apart: what recipes can make, and what lies between. DEFLATE streams (gzip, zip,
//! PNG) are made of their plain bytes, which compress better and repeat what other files hold;
//! samples (audio, FITS) of FLAC streams; JPEG files of Lepton files.
//!
//! Whatever comes out was put together again and compared with the file. What does not come out is
//! stored as it is.

mod audio;
mod fits;
mod jpeg;
pub mod pcm;
mod png;

use crate::options::Categories;
use hashbrown::HashMap;
use std::borrow::Cow;
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use weald_codec::deflate::{self, ARCHIVES, WHOLE_PLAIN_LEN_MAX, analyze, inflate};
use weald_codec::flac;
use weald_format::ContentId;
use weald_format::Digest;
use weald_format::recipes::{CHECK_LEN, Method, Part, Recipe, Samples, Zlib};

/// Plain bytes of one stream. From [`WHOLE_PLAIN_LEN_MAX`] on it is made in parts, which takes no
/// more memory: with fewer, zlib's stream of them and the stream made from that lie beside them.
pub const PLAIN_LEN_MAX: usize = WHOLE_PLAIN_LEN_MAX * 3;
/// What one thread needs while it takes an archive apart: the above, and the tokens of a block.
const ARCHIVE_MEMORY_LEN: u64 = PLAIN_LEN_MAX as u64 + (5 << 20);
/// Plain bytes of a part of a stream: a quarter of a block, but no less than twice the window that
/// each part needs besides, and no more than are made in a few milliseconds.
const PART_LEN_MIN: usize = 64 << 10;
const PART_LEN_MAX: usize = 256 << 10;
/// Shorter streams are not worth what a recipe takes.
const STREAM_LEN_MIN: usize = 128;
/// Plain bytes must be longer than the stream by this share (1/8), or there was nothing to
/// compress.
const GAIN_SHARE: usize = 8;
/// Plain bytes that are made of one file while its streams are looked for, where one that turns out
/// to be none counts as the longest: members of a forged file can lie in one another. Files of 4
/// MiB reach it from 1 : 64 on, those of 64 MiB from 1 : 4.
const FILE_PLAIN_LEN_MAX: usize = 256 << 20;
/// Outcomes that are kept for files with the same content.
const KNOWN_COUNT_MAX: usize = 1 << 14;

/// Longest file that is looked through for pictures, bytes.
pub use jpeg::FILE_LEN_MAX as PICTURES_LEN_MAX;

/// What one thread needs while it takes a file apart.
pub fn memory_len(categories: &Categories) -> u64 {
    let archives = if categories.deflate || categories.png {
        ARCHIVE_MEMORY_LEN
    } else {
        0
    };
    let samples = if categories.pcm || categories.fits {
        pcm::MEMORY_LEN
    } else {
        0
    };
    archives.max(samples)
}

/// What all threads together need besides. Who takes a picture apart takes nothing else apart.
pub fn shared_memory_len(categories: &Categories) -> u64 {
    match categories.jpeg {
        true => jpeg::MEMORY_LEN.saturating_sub(memory_len(categories)),
        false => 0,
    }
}

/// How a part of a file is taken apart and made again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A DEFLATE stream, by zlib.
    Deflate { zlib: Zlib },
    /// Samples, by FLAC.
    Pcm { channels: usize, samples: Samples },
    /// A JPEG file, by Lepton.
    Jpeg,
}

impl Kind {
    /// What the recipe says.
    pub fn method(self) -> Method {
        match self {
            Self::Deflate { zlib } => Method::Deflate(zlib),
            Self::Pcm { samples, .. } => Method::Pcm(samples),
            Self::Jpeg => Method::Jpeg,
        }
    }

    /// Whether what a recipe is made of can get no smaller.
    pub fn is_packed(self) -> bool {
        !matches!(self, Self::Deflate { .. })
    }
}

/// A stretch of a file, and how to make it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stream {
    /// Where it lies in the file: in order, apart, none empty.
    pub ranges: Vec<Range<usize>>,
    /// Digest of what it is made of.
    pub plain_digest: Digest,
    /// How.
    pub kind: Kind,
    /// What makes it, one behind the other.
    pub steps: Vec<Step>,
}

/// What one recipe makes of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Bytes that it makes.
    pub len: u64,
    /// Which part of a DEFLATE stream, unless it is all.
    pub part: Option<Part>,
    /// What zlib would have done otherwise.
    pub corrections: Vec<u8>,
    /// First bytes of the digest of what it makes.
    pub check: [u8; CHECK_LEN],
}

/// The streams of a file in memory, and what some of them are made of, as far as it is at hand.
#[derive(Debug, Default)]
pub struct Taken {
    /// In order.
    pub streams: Arc<[Stream]>,
    /// As many, or none at all where somebody else has found the streams.
    pub plains: Vec<Option<Vec<u8>>>,
}

impl Stream {
    /// A stretch `made` at `range` that one recipe makes of `plain`.
    fn of_one(range: Range<usize>, kind: Kind, plain: &[u8], made: &[u8]) -> Self {
        Self {
            ranges: vec![range],
            plain_digest: Digest::of(plain),
            kind,
            steps: vec![Step {
                len: made.len() as u64,
                part: None,
                corrections: Vec::new(),
                check: Recipe::check_of(made),
            }],
        }
    }

    /// A DEFLATE stream `bytes`, which lies at `ranges` and holds `plain`; `None` where none of
    /// `tried` is near enough.
    fn of_deflate(
        bytes: &[u8],
        ranges: Vec<Range<usize>>,
        plain: &[u8],
        tried: &[Zlib],
        part_len: usize,
    ) -> Option<Self> {
        let recipes = analyze(bytes, plain, tried, part_len);
        let zlib = recipes.first()?.zlib;
        let mut at = 0;
        let step = |recipe: deflate::Recipe| {
            let made = &bytes[at..at + recipe.len];
            at += recipe.len;
            Step {
                len: recipe.len as u64,
                part: recipe.part,
                corrections: recipe.corrections,
                check: Recipe::check_of(made),
            }
        };
        Some(Self {
            ranges,
            plain_digest: Digest::of(plain),
            kind: Kind::Deflate { zlib },
            steps: recipes.into_iter().map(step).collect(),
        })
    }

    /// The recipes that make it of `plain`, in order.
    pub fn recipes(&self, plain: ContentId) -> impl Iterator<Item = Recipe> {
        self.steps.iter().map(move |step| Recipe {
            len: step.len,
            plain,
            method: self.kind.method(),
            part: step.part,
            check: step.check,
            corrections: step.corrections.clone(),
        })
    }

    /// Whether its recipes make `bytes`.
    pub fn makes(&self, bytes: &[u8]) -> bool {
        let mut rest = bytes;
        let is_next = |step: &Step| {
            let made = rest.split_off(..step.len as usize);
            made.is_some_and(|made| Recipe::check_of(made) == step.check)
        };
        self.steps.iter().all(is_next) && rest.is_empty()
    }

    /// Bytes that it has.
    pub fn len(&self) -> usize {
        self.ranges.iter().map(Range::len).sum()
    }

    /// Its bytes in the file `data`.
    pub fn bytes_in<'a>(&self, data: &'a [u8]) -> Cow<'a, [u8]> {
        match &self.ranges[..] {
            [range] => Cow::Borrowed(&data[range.clone()]),
            ranges => ranges
                .iter()
                .flat_map(|r| &data[r.clone()])
                .copied()
                .collect(),
        }
    }

    /// What `bytes`, which were taken apart like this, are made of.
    ///
    /// # Panics
    /// If they are others.
    pub fn plain_of(&self, bytes: &[u8]) -> Vec<u8> {
        let plain = match self.kind {
            Kind::Deflate { .. } => inflate(bytes, PLAIN_LEN_MAX).map(|(plain, _)| plain),
            Kind::Pcm { channels, samples } => flac::encode(bytes, channels, samples),
            Kind::Jpeg => jpeg::encode(bytes),
        };
        plain.unwrap_or_else(|| panic!("what was taken apart can be taken apart again"))
    }
}

/// Takes files apart; each content once.
pub struct Recoder {
    /// Digests of contents that are in the image already, sorted.
    stored: Arc<[Digest]>,
    categories: Categories,
    /// Plain bytes of a part of a DEFLATE stream.
    part_len: usize,
    known: Mutex<HashMap<Digest, Outcome>>,
}

/// The streams of a content, once somebody has found them.
type Outcome = Arc<OnceLock<Arc<[Stream]>>>;

impl Recoder {
    /// A recoder for `categories` that leaves the contents with these digests, sorted, alone. Parts
    /// of long DEFLATE streams can be made by themselves of a quarter of a block of `block_len`
    /// bytes, within limits.
    pub fn new(stored: Arc<[Digest]>, categories: Categories, block_len: u64) -> Self {
        Self {
            stored,
            categories,
            part_len: (block_len as usize / 4).clamp(PART_LEN_MIN, PART_LEN_MAX),
            known: Mutex::default(),
        }
    }

    /// What recipes can make of the file `data`, whose digest is `digest`; nothing where it holds
    /// none.
    pub fn streams(&self, data: &[u8], digest: &Digest) -> Taken {
        if !can_be_taken(data, &self.categories) || self.stored.binary_search(digest).is_ok() {
            return Taken::default();
        }
        let outcome = {
            let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            if known.len() >= KNOWN_COUNT_MAX {
                known.clear();
            }
            known.entry(*digest).or_default().clone()
        };
        // Another reader may be at the same content: waiting for it is cheaper than doing it twice.
        let mut plains = Vec::new();
        let streams = outcome.get_or_init(|| {
            let (streams, found): (Vec<_>, _) = self.find(data).into_iter().unzip();
            plains = found;
            streams.into()
        });
        Taken {
            streams: streams.clone(),
            plains,
        }
    }

    fn find(&self, data: &[u8]) -> Vec<(Stream, Option<Vec<u8>>)> {
        match finder(data, &self.categories) {
            Some(find) => find(data, self.part_len),
            None => pcm::streams(data, &self.categories),
        }
    }
}

/// Bytes that tell whether a file can be taken apart.
pub const MAGIC_LEN: usize = 16;

/// Whether a file that begins with `front` can be taken apart, if it is what it seems to be.
pub fn can_be_taken(front: &[u8], categories: &Categories) -> bool {
    finder(front, categories).is_some() || pcm::is_sampled(front, categories)
}

/// Whether a file that begins with `front` has to be read whole to be taken apart.
pub fn is_archive(front: &[u8], categories: &Categories) -> bool {
    finder(front, categories).is_some()
}

/// Finds the streams of a file, long ones in parts of so many plain bytes, and what they are made
/// of where it was at hand.
type Finder = fn(&[u8], usize) -> Vec<(Stream, Option<Vec<u8>>)>;

/// What finds the DEFLATE streams and the JPEG files of a file that begins with `front`.
fn finder(front: &[u8], categories: &Categories) -> Option<Finder> {
    match front {
        [0x1f, 0x8b, 8, _, ..] if categories.deflate => {
            Some(|data, part_len| alone(gzip_streams(data, part_len)))
        }
        [b'P', b'K', 3, 4, ..] if categories.deflate => {
            Some(|data, part_len| alone(zip_streams(data, part_len)))
        }
        _ if categories.png && front.starts_with(&png::MAGIC) => {
            Some(|data, part_len| alone(png::streams(data, part_len)))
        }
        _ if categories.jpeg && front.starts_with(&jpeg::MAGIC) => {
            Some(|data, _| jpeg::streams(data))
        }
        _ => None,
    }
}

/// Streams whose plain bytes are not kept: they are made again when they are written.
fn alone(streams: Vec<Stream>) -> Vec<(Stream, Option<Vec<u8>>)> {
    streams.into_iter().map(|stream| (stream, None)).collect()
}

/// Streams of the members of a gzip file (RFC 1952).
fn gzip_streams(data: &[u8], part_len: usize) -> Vec<Stream> {
    let mut streams = Vec::new();
    let (mut at, mut left) = (0, FILE_PLAIN_LEN_MAX);
    while let Some(start) = gzip_body(data, at) {
        let Some((stream, end)) = take(data, start, part_len, &mut left) else {
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
fn zip_streams(data: &[u8], part_len: usize) -> Vec<Stream> {
    let mut streams = Vec::new();
    let (mut at, mut left) = (0, FILE_PLAIN_LEN_MAX);
    while let Some(header) = local_header(data, at) {
        let end = match (header.method, header.stored_len) {
            (8, _) => match take(data, header.body, part_len, &mut left) {
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

/// The local header at `end` or a little behind it: a data descriptor may stand between, or
/// padding.
fn next_header(data: &[u8], end: usize) -> Option<usize> {
    const SEARCH_LEN: usize = 64;
    let near = data.get(end..data.len().min(end + SEARCH_LEN))?;
    let found = near.windows(4).position(|w| w == b"PK\x03\x04")?;
    Some(end + found)
}

/// The stream at `start`, if it is worth a recipe, and where it ends; `None` where there is no
/// stream, or a longer one than a recipe may make, or `left`, the plain bytes that may still be
/// made of the file, is used up.
fn take(
    data: &[u8],
    start: usize,
    part_len: usize,
    left: &mut usize,
) -> Option<(Option<Stream>, usize)> {
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
    let ranges = vec![range.clone()];
    let taken = Stream::of_deflate(stream, ranges, &plain, ARCHIVES, part_len);
    Some((taken, range.end))
}

#[cfg(test)]
mod tests {
    use super::*;

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
        Recoder::new(Arc::default(), Categories::all(), 0)
    }

    /// Puts `data` together again from its streams' recipes.
    fn check(data: &[u8], count: usize) {
        let streams = recoder().streams(data, &Digest::of(data)).streams;
        assert_eq!(streams.len(), count);
        for stream in streams.iter() {
            let plain = stream.plain_of(&stream.bytes_in(data));
            assert_eq!(Digest::of(&plain), stream.plain_digest);
            let mut made = Vec::new();
            for recipe in stream.recipes(ContentId(0)) {
                let needs = recipe.input_range(plain.len() as u64).unwrap();
                let run = &plain[needs.start as usize..needs.end as usize];
                made.extend(weald_codec::run_recipe(&recipe, run, plain.len() as u64).unwrap());
            }
            assert_eq!(made, *stream.bytes_in(data));
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
                recoder().streams(&data[..len], &Digest::of(&data[..len]));
            }
        }
        check(&text(1), 0);
    }

    /// Would catch: time that grows with the square of a forged file: members that lie in one
    /// another, each of which leads to the same end that makes more than it may.
    #[test]
    fn forged_members_that_lie_in_one_another_take_no_time() {
        // The body is a stored block, which holds the next member's header.
        let mut member = b"PK\x03\x04\0\0\0\0\x08\0".to_vec();
        member.resize(30, 0);
        member[18] = 5;
        member.extend_from_slice(&[0, 30, 0, !30, !0]);
        // A block of fixed codes: a NUL and matches of 258 bytes at distance 1, each bit as it
        // comes.
        let matches = "1100010100000".repeat(PLAIN_LEN_MAX / 258 + 1);
        let bits = format!("010{}{matches}", "00110000").into_bytes();
        let byte = |bits: &[u8]| bits.iter().rev().fold(0, |byte, b| byte << 1 | (b - b'0'));
        let mut data = member.repeat(1500);
        data.extend_from_slice(&member[..30]);
        data.extend(bits.chunks(8).map(byte));
        assert_eq!(inflate(&data[30..], PLAIN_LEN_MAX), None);
        let used = || rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime).tv_sec;
        let start = used();
        assert_eq!(zip_streams(&data, PART_LEN_MAX), []);
        // One second, or two: every member until its end would take hundreds.
        let seconds = used() - start;
        assert!(seconds < 20, "{seconds} s");
    }
}
