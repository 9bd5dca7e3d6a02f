//! Hotness: which parts of an image a workload used, as a text that people can read, join and give
//! to another build of the same tree.
//!
//! Neighbours: `recorder.rs` records it, `warmup/replay.rs` replays it. `docs/hotness.md` describes
//! the lines. Invariant: a `Hotness` is within the limits below, also if the text is hostile.

use std::ops::Range;
use std::path::Path;
use weald_format::container::RecordType;
use weald_format::limits::NAME_LEN_MAX;
use weald_format::{Digest, Error, Result};
use weald_io::{FileSource, OutputFile, ReadAt, TargetKind};

/// First line of the text.
const HEADER: &str = "weald hotness 1";

/// Bytes of a text: a million lines of the usual length.
pub const HOTNESS_LEN_MAX: u64 = 64 << 20;
/// Lines of one kind: the blocks of 1 TiB in blocks of 1 MiB, or the files of a large system.
pub const LINE_COUNT_MAX: usize = 1 << 20;
/// Bytes of a path; `check` reports paths up to the same length.
pub const PATH_LEN_MAX: usize = 1 << 14;
/// Ranges of a file. Of more ranges, those with the smallest gaps are joined.
pub const RANGE_COUNT_MAX: usize = 32;
/// Base images, at any depth.
const BASE_COUNT_MAX: usize = 256;

/// The parts of an image that a workload used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hotness {
    pub(crate) images: Vec<HotImage>,
    pub(crate) files: Vec<HotFile>,
}

/// Items of one image. The recorded image comes first, then its base images.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HotImage {
    pub digest: Digest,
    /// In the order of their first use.
    pub items: Vec<HotItem>,
}

/// A unit of decoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HotItem {
    /// A metadata record, by type and number.
    Page(RecordType, u64),
    /// The first bytes of a block of a stream.
    Block {
        /// The stream.
        stream: u8,
        /// Number of the block.
        no: u64,
        /// Number of first bytes that reads needed.
        len: u64,
    },
    /// The output of the recipe at this address of a stream.
    Made {
        /// The stream.
        stream: u8,
        /// Address of its first byte.
        address: u64,
    },
}

/// The ranges of a file that were read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HotFile {
    /// From the root, without a leading slash.
    pub path: Vec<u8>,
    /// Ascending, not adjacent, not empty.
    pub ranges: Vec<Range<u64>>,
}

fn bad(what: String) -> Error {
    Error::invalid(format!("hotness: {what}"))
}

impl Hotness {
    /// Parses a text.
    ///
    /// # Errors
    /// `Invalid` with the number of the line if it is not a hotness text; `Limit` if it is longer
    /// than [`HOTNESS_LEN_MAX`].
    /// # Cost
    /// O(length) in time and memory.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        if bytes.len() as u64 > HOTNESS_LEN_MAX {
            let what = format!("hotness: expected at most {HOTNESS_LEN_MAX} bytes");
            return Err(Error::limit(what));
        }
        let Some(text) = bytes.strip_suffix(b"\n") else {
            return Err(bad("the last line has no newline at its end".to_owned()));
        };
        let mut lines = text.split(|&b| b == b'\n');
        if lines.next() != Some(HEADER.as_bytes()) {
            let what = format!("line 1: expected `{HEADER}`");
            return Err(bad(what));
        }
        let mut parsed = Parsed::default();
        for (line, no) in lines.zip(2u64..) {
            parsed
                .line(line)
                .map_err(|what| bad(format!("line {no}: {what}")))?;
        }
        if parsed.images.is_empty() {
            Err(bad("line 2: expected the image digest".to_owned()))
        } else {
            Ok(Self {
                images: parsed.images,
                files: parsed.files,
            })
        }
    }

    /// The text that [`Hotness::parse`] reads.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = format!("{HEADER}\n").into_bytes();
        for (image, no) in self.images.iter().zip(0u32..) {
            let word = if no == 0 { "image" } else { "base" };
            out.extend_from_slice(format!("{word} {}\n", image.digest).as_bytes());
            for item in &image.items {
                out.extend_from_slice(item.line().as_bytes());
            }
            if no == 0 {
                self.files.iter().for_each(|file| file.write(&mut out));
            }
        }
        out
    }

    /// Reads and parses the file at `path`.
    ///
    /// # Errors
    /// As [`Hotness::parse`], and `Io`.
    pub fn open(path: &Path) -> Result<Self> {
        let opened = || {
            let file = FileSource::open(path, 0)?;
            if file.len() > HOTNESS_LEN_MAX {
                let what = format!("hotness: expected at most {HOTNESS_LEN_MAX} bytes");
                return Err(Error::limit(what));
            }
            let mut bytes = vec![0; file.len() as usize];
            file.read_exact_at(&mut bytes, 0)?;
            Self::parse(&bytes)
        };
        opened().map_err(|e: Error| e.context(path.display()))
    }

    /// Writes the text to the file at `path`, which it replaces when it is complete.
    ///
    /// # Errors
    /// `Io`, `Full`.
    pub fn write(&self, path: &Path) -> Result<()> {
        let mut file = OutputFile::create(path, TargetKind::File)?;
        file.write_all(&self.to_bytes())?;
        file.commit(true)
    }

    /// The digest of the image that was recorded.
    pub fn image_digest(&self) -> Option<Digest> {
        self.images.first().map(|image| image.digest)
    }

    /// Paths of the files that were read, from the root and without a leading slash, in the order
    /// of their first read.
    pub fn paths(&self) -> impl Iterator<Item = &[u8]> {
        self.files.iter().map(|file| file.path.as_slice())
    }

    /// Number of blocks, recipes and metadata records that were used.
    pub fn item_count(&self) -> usize {
        let counts = self.images.iter().map(|image| image.items.len());
        counts.fold(0, usize::saturating_add)
    }
}

impl HotItem {
    fn line(&self) -> String {
        match self {
            Self::Page(record_type, no) => format!("page {} {no}\n", record_type.name()),
            Self::Block { stream, no, len } => format!("block {stream} {no} {len}\n"),
            Self::Made { stream, address } => format!("made {stream} {address}\n"),
        }
    }
}

impl HotFile {
    fn write(&self, out: &mut Vec<u8>) {
        let ranges: Vec<_> = self
            .ranges
            .iter()
            .map(|range| format!("{}-{}", range.start, range.end))
            .collect();
        out.extend_from_slice(b"file ");
        out.extend_from_slice(ranges.join(",").as_bytes());
        out.push(b' ');
        for &byte in &self.path {
            match byte {
                b'\\' | 0..=0x1f | 0x7f => {
                    out.extend_from_slice(format!("\\x{byte:02x}").as_bytes());
                }
                _ => out.push(byte),
            }
        }
        out.push(b'\n');
    }
}

#[derive(Default)]
struct Parsed {
    images: Vec<HotImage>,
    files: Vec<HotFile>,
    item_count: usize,
}

type LineResult<T> = std::result::Result<T, String>;

impl Parsed {
    fn line(&mut self, line: &[u8]) -> LineResult<()> {
        let (word, rest) = split(line);
        match word {
            b"file" => return self.file(rest),
            b"image" if self.images.is_empty() => return self.image(rest),
            b"base" if !self.images.is_empty() => return self.image(rest),
            _ => {}
        }
        let item = parse_item(word, rest)?;
        if self.item_count >= LINE_COUNT_MAX {
            return Err(format!("more than {LINE_COUNT_MAX} items"));
        }
        let Some(image) = self.images.last_mut() else {
            return Err("an item before the first image".to_owned());
        };
        self.item_count = self.item_count.saturating_add(1);
        image.items.push(item);
        Ok(())
    }

    fn image(&mut self, rest: &[u8]) -> LineResult<()> {
        if self.images.len() > BASE_COUNT_MAX {
            return Err(format!("more than {BASE_COUNT_MAX} base images"));
        }
        let digest = std::str::from_utf8(rest).ok().and_then(Digest::from_hex);
        self.images.push(HotImage {
            digest: digest.ok_or("expected an image digest of 64 hexadecimal digits")?,
            items: Vec::new(),
        });
        Ok(())
    }

    fn file(&mut self, rest: &[u8]) -> LineResult<()> {
        if self.images.is_empty() {
            return Err("a file before the first image".to_owned());
        }
        if self.files.len() >= LINE_COUNT_MAX {
            return Err(format!("more than {LINE_COUNT_MAX} files"));
        }
        let (ranges, path) = split(rest);
        self.files.push(HotFile {
            path: parse_path(path)?,
            ranges: parse_ranges(ranges)?,
        });
        Ok(())
    }
}

/// The parts of a line before and after the first space.
fn split(line: &[u8]) -> (&[u8], &[u8]) {
    let space = line.iter().position(|&b| b == b' ');
    let parts = space.and_then(|at| Some((line.get(..at)?, line.get(at.saturating_add(1)..)?)));
    parts.unwrap_or((line, &[]))
}

/// A decimal number: digits only.
fn number(text: &[u8]) -> LineResult<u64> {
    let is_plain = text.iter().all(u8::is_ascii_digit);
    let text = std::str::from_utf8(text).ok().filter(|_| is_plain);
    let number = text.and_then(|text| text.parse().ok());
    number.ok_or_else(|| "expected a number".to_owned())
}

fn parse_item(word: &[u8], rest: &[u8]) -> LineResult<HotItem> {
    let (first, rest) = split(rest);
    let stream = || {
        let stream = number(first).and_then(|no| u8::try_from(no).map_err(|e| e.to_string()));
        stream.map_err(|_| "expected the number of a stream".to_owned())
    };
    match word {
        b"page" => {
            let mut types = RecordType::ALL.iter().map(|(record_type, ..)| record_type);
            let found = types.find(|record_type| record_type.name().as_bytes() == first);
            let record_type = found.ok_or("expected a type of metadata records")?;
            Ok(HotItem::Page(*record_type, number(rest)?))
        }
        b"block" => {
            let (no, len) = split(rest);
            Ok(HotItem::Block {
                stream: stream()?,
                no: number(no)?,
                len: number(len)?,
            })
        }
        b"made" => Ok(HotItem::Made {
            stream: stream()?,
            address: number(rest)?,
        }),
        _ => {
            let what = "expected `page`, `block`, `made`, `file` or `base`, and `image` first";
            Err(what.to_owned())
        }
    }
}

fn parse_ranges(text: &[u8]) -> LineResult<Vec<Range<u64>>> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for part in text.split(|&b| b == b',') {
        let dash = part.iter().position(|&b| b == b'-');
        let ends = dash.and_then(|at| Some((part.get(..at)?, part.get(at.saturating_add(1)..)?)));
        let (start, end) = ends.ok_or("expected ranges START-END")?;
        let range = number(start)?..number(end)?;
        let is_behind = ranges.last().is_none_or(|last| last.end < range.start);
        if range.is_empty() || !is_behind || ranges.len() >= RANGE_COUNT_MAX {
            return Err(format!(
                "expected up to {RANGE_COUNT_MAX} ascending ranges that do not touch each other"
            ));
        }
        ranges.push(range);
    }
    Ok(ranges)
}

fn parse_path(text: &[u8]) -> LineResult<Vec<u8>> {
    let mut path = Vec::with_capacity(text.len().min(PATH_LEN_MAX));
    let mut rest = text;
    while let [byte, behind @ ..] = rest {
        rest = behind;
        match (byte, behind) {
            (b'\\', [b'x', digits @ ..]) => {
                let (two, behind) = digits.split_at_checked(2).ok_or("expected \\xHH")?;
                let is_hex = two.iter().all(u8::is_ascii_hexdigit);
                let two = std::str::from_utf8(two).ok().filter(|_| is_hex);
                let byte = two.and_then(|two| u8::from_str_radix(two, 16).ok());
                path.push(byte.ok_or("expected \\xHH")?);
                rest = behind;
            }
            (b'\\', _) => return Err("expected \\xHH behind a backslash".to_owned()),
            (byte, _) => path.push(*byte),
        }
        if path.len() > PATH_LEN_MAX {
            return Err(format!("a path of more than {PATH_LEN_MAX} bytes"));
        }
    }
    let is_name = |name: &[u8]| {
        let is_long = name.len() > NAME_LEN_MAX;
        !is_long && !matches!(name, b"" | b"." | b"..") && !name.contains(&0)
    };
    if path.split(|&b| b == b'/').all(is_name) {
        Ok(path)
    } else {
        Err("expected a path from the root, without a leading slash".to_owned())
    }
}

/// Adds a range to ascending ranges that are not adjacent; joins the two with the smallest gap if
/// there are too many.
pub(crate) fn add_range(ranges: &mut Vec<Range<u64>>, new: Range<u64>) {
    if new.is_empty() {
        return;
    }
    let first = ranges.partition_point(|r| r.end < new.start);
    let behind = ranges.partition_point(|r| r.start <= new.end);
    let touched = ranges.get(first..behind).unwrap_or(&[]);
    let start = touched
        .first()
        .map_or(new.start, |r| r.start.min(new.start));
    let end = touched.last().map_or(new.end, |r| r.end.max(new.end));
    ranges.splice(first..behind.max(first), std::iter::once(start..end));
    if ranges.len() <= RANGE_COUNT_MAX {
        return;
    }
    let gap = |at: &usize| {
        let (one, next) = (ranges.get(*at), ranges.get(at.saturating_add(1)));
        one.zip(next)
            .map_or(u64::MAX, |(one, next)| next.start.saturating_sub(one.end))
    };
    let index = (0..ranges.len().saturating_sub(1)).min_by_key(gap);
    if let Some(index) = index {
        let next = ranges.remove(index.saturating_add(1));
        if let Some(one) = ranges.get_mut(index) {
            one.end = next.end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn example() -> Hotness {
        Hotness {
            images: vec![
                HotImage {
                    digest: Digest::of(b"image"),
                    items: vec![
                        HotItem::Page(RecordType::Entries, 7),
                        HotItem::Block {
                            stream: 1,
                            no: 9,
                            len: 4096,
                        },
                    ],
                },
                HotImage {
                    digest: Digest::of(b"base"),
                    items: vec![HotItem::Made {
                        stream: 3,
                        address: 77,
                    }],
                },
            ],
            files: vec![HotFile {
                path: b"a b/\\\n\xff".to_vec(),
                ranges: vec![0..5, 9..10],
            }],
        }
    }

    #[test]
    fn the_text_is_as_documented() {
        let (image, base) = (Digest::of(b"image"), Digest::of(b"base"));
        let text = [
            b"weald hotness 1\n".as_slice(),
            format!("image {image}\npage entries 7\nblock 1 9 4096\n").as_bytes(),
            b"file 0-5,9-10 a b/\\x5c\\x0a\xff\n",
            format!("base {base}\nmade 3 77\n").as_bytes(),
        ]
        .concat();
        assert_eq!(
            example().to_bytes().escape_ascii().to_string(),
            text.escape_ascii().to_string()
        );
        assert_eq!(Hotness::parse(&text).unwrap(), example());
        assert_eq!(example().paths().count(), 1);
        assert_eq!(example().item_count(), 3);
    }

    /// Would catch: a document that shows what no reader takes.
    #[test]
    fn the_examples_of_the_document_are_read() {
        let text = include_str!("../../../../docs/hotness.md");
        let blocks = text.split("```text\n").skip(1);
        let blocks = blocks.filter_map(|b| b.split("```").next());
        let mut counts = Vec::new();
        for block in blocks.filter(|b| b.starts_with(HEADER)) {
            // Digests are cut short there.
            let whole = |line: &str| match (line.contains('…'), line.split(' ').next()) {
                (true, Some(word)) => format!("{word} {}\n", "0".repeat(64)),
                _ => format!("{line}\n"),
            };
            let text: String = block.lines().map(whole).collect();
            let hotness = Hotness::parse(text.as_bytes()).unwrap();
            assert_eq!(hotness.to_bytes(), text.as_bytes());
            counts.push((hotness.item_count(), hotness.paths().count()));
        }
        assert_eq!(counts, [(4, 1), (0, 2)]);
    }

    #[test]
    fn what_is_none_is_refused_with_its_line() {
        let digest = Digest::of(b"image");
        let good = format!("weald hotness 1\nimage {digest}\n");
        assert!(Hotness::parse(good.as_bytes()).is_ok());
        for (line, why) in [
            ("block 1 2", "a number"),
            ("block 256 2 3", "number of a stream"),
            ("block +1 2 3", "number of a stream"),
            ("page cheese 1", "type of metadata"),
            ("made 1 -1", "a number"),
            ("file 5-5 a", "ascending"),
            ("file 0-5,5-6 a", "ascending"),
            ("file 0 a", "START-END"),
            ("file 0-1 /a", "from the root"),
            ("file 0-1 a/../b", "from the root"),
            ("file 0-1 ", "from the root"),
            ("file 0-1 a\\n", "backslash"),
            ("file 0-1 a\\x0", "xHH"),
            ("file 0-1 a\\x00", "from the root"),
            ("cheese", "expected `page`"),
            ("image", "`image` first"),
            ("", "expected `page`"),
            ("base 12", "digest"),
        ] {
            let error = Hotness::parse(format!("{good}{line}\n").as_bytes()).unwrap_err();
            let error = error.to_string();
            assert!(
                error.contains("line 3") && error.contains(why),
                "{line}: {error}"
            );
        }
        for text in [
            "",
            "weald hotness 1",
            "weald hotness 2\n",
            "weald hotness 1\n",
            good.trim(),
        ] {
            assert!(Hotness::parse(text.as_bytes()).is_err(), "{text}");
        }
    }

    proptest! {
        /// Would catch: ranges that get lost, that touch each other, or that are more than a text
        /// may have.
        #[test]
        fn ranges_cover_what_was_read(reads in vec((0..3000u64, 1..40u64), 0..120)) {
            let mut ranges = Vec::new();
            for (start, len) in &reads {
                add_range(&mut ranges, *start..start + len);
                prop_assert!(ranges.len() <= RANGE_COUNT_MAX);
                prop_assert!(ranges.windows(2).all(|w| w[0].end < w[1].start));
            }
            for (start, len) in reads {
                prop_assert!(ranges.iter().any(|r| r.start <= start && r.end >= start + len));
            }
        }

        /// Would catch: a text that parses, but not from what it is written as.
        #[test]
        fn what_parses_comes_back(
            text in concat!(
                "(weald hotness 1\nimage [0-9a-f]{64}\n)",
                "((page (entries|times) [0-9]{1,3}|block [0-9] [0-9] [0-9]|made 1 5",
                "|file [1-4]-[5-9] (a|\\\\x41|/|b){1,6})\n){0,6}",
            )
        ) {
            if let Ok(hotness) = Hotness::parse(text.as_bytes()) {
                prop_assert_eq!(Hotness::parse(&hotness.to_bytes()).unwrap(), hotness);
            }
        }
    }
}
