//! Builds the annotated image of section 19 of `docs/format.md`, dumps it field by field according
//! to the tables, and compares the dump with the document. `WEALD_BLESS=1` rewrites the document.

use crate::support::{Source, fixed, workspace};
use std::fmt::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use weald_builder::{BuildOptions, CodecSpec};
use weald_codec::Decoder;
use weald_format::column::Column;
use weald_format::container::{
    Codec, FOOTER_FIELDS, HEADER_FIELDS, RecordRef, RecordType, SUPERBLOCK_FIELDS,
};
use weald_format::cursor::Cursor;
use weald_format::entries::{EntryKind, unbias_seconds};

const BEGIN: &str = "<!-- example begin: rewritten by WEALD_BLESS=1 cargo test -p weald-builder \
 --test format example -->\n";
const END: &str = "<!-- example end -->\n";

fn image() -> Vec<u8> {
    let source = Source::empty();
    source.file("a", b"hello, weald\n");
    source.file("b", b"hello, weald\n");
    symlink("a", source.root().join("c")).unwrap();
    std::fs::create_dir(source.root().join("d")).unwrap();
    source.file("d/e", b"");
    for (path, mode) in [
        ("", 0o755),
        ("a", 0o644),
        ("b", 0o644),
        ("d", 0o755),
        ("d/e", 0o644),
    ] {
        std::fs::set_permissions(source.root().join(path), PermissionsExt::from_mode(mode))
            .unwrap();
    }
    source.image(&BuildOptions {
        keep_xattrs: false,
        ..fixed(CodecSpec::None)
    })
}

/// Dumps bytes front to back, one line per field.
struct Dump<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Decoded bytes, which are not in the file; their offsets are marked.
    is_decoded: bool,
    out: String,
}

impl<'a> Dump<'a> {
    fn line(&mut self, text: &str) {
        writeln!(self.out, "{text}").unwrap();
    }

    fn rest(&self) -> &'a [u8] {
        &self.bytes[self.at..]
    }

    fn take(&mut self, len: usize, note: &str) -> &'a [u8] {
        let taken = &self.rest()[..len];
        for (i, chunk) in taken.chunks(16).enumerate() {
            let hex: Vec<String> = chunk.iter().map(|b| format!("{b:02x}")).collect();
            let note = if i == 0 { note } else { "" };
            let at = self.at + i * 16;
            let at = if self.is_decoded {
                format!("|{at:03x}")
            } else {
                format!("{at:04x}")
            };
            let line = format!("{at}  {:<48} {note}", hex.join(" "));
            self.line(line.trim_end());
        }
        self.at += len;
        taken
    }

    fn varint(&mut self, note: &str) -> u64 {
        let mut cursor = Cursor::new(self.rest(), "example");
        let value = cursor.varint().unwrap();
        let len = self.rest().len() - cursor.remaining();
        self.take(len, &format!("{note}: {value}"));
        value
    }

    fn column(&mut self, count: usize, note: &str, show: impl Fn(u64) -> String) -> Vec<u64> {
        let tags = [
            "const",
            "affine",
            "packed",
            "delta",
            "dictionary",
            "runs",
            "plain",
            "planes",
        ];
        let mut cursor = Cursor::new(self.rest(), "example");
        let values: Vec<u64> = Column::decode(&mut cursor, count)
            .unwrap()
            .iter(count)
            .collect();
        let len = self.rest().len() - cursor.remaining();
        let tag = tags[usize::from(self.rest()[0])];
        let shown: Vec<String> = values.iter().map(|v| show(*v)).collect();
        self.take(
            len,
            format!("{note}, {tag}: {}", shown.join(" ")).trim_end_matches([' ', ':']),
        );
        values
    }

    fn numbers(&mut self, count: usize, note: &str) -> Vec<u64> {
        self.column(count, note, |v| v.to_string())
    }

    fn fields(&mut self, record: &str, fields: &[(&str, usize, usize)]) {
        for (name, _, len) in fields {
            self.take(*len, &format!("{record}.{name}"));
        }
    }
}

fn text(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}

fn entries(dump: &mut Dump<'_>) {
    let count = dump.varint("entries") as usize;
    let mask = dump.take(1, "time mask")[0];
    let kinds = dump.column(count, "kinds", |k| {
        format!("{:?}", EntryKind::from_code(k).unwrap()).to_lowercase()
    });
    for note in ["attribute ids", "xattr set ids + 1", "links", "steps back"] {
        dump.numbers(count, note);
    }
    for (bit, name) in ["mtime", "atime", "ctime", "btime"].iter().enumerate() {
        if mask & (1 << bit) != 0 {
            dump.column(count, &format!("{name} seconds"), |s| {
                unbias_seconds(s).to_string()
            });
            dump.numbers(count, &format!("{name} nanoseconds"));
        }
    }
    for (kind, what) in [
        (EntryKind::File, "contents"),
        (EntryKind::Directory, "templates"),
    ] {
        let of_kind = kinds.iter().filter(|k| **k == kind as u64).count();
        if of_kind > 0 {
            let base = dump.take(varint_len(dump.rest()), &format!("{what}: base"));
            assert!(!base.is_empty());
            dump.numbers(of_kind, &format!("{what}: steps"));
        }
    }
    let links = kinds
        .iter()
        .filter(|k| **k == EntryKind::Symlink as u64)
        .count();
    if links > 0 {
        let lens = dump.numbers(links, "lengths of targets");
        let len = lens.iter().sum::<u64>() as usize;
        let targets = text(&dump.rest()[..len]);
        dump.take(len, &format!("targets: {targets}"));
    }
    names(dump, count);
}

fn varint_len(bytes: &[u8]) -> usize {
    bytes.iter().position(|b| b & 0x80 == 0).unwrap() + 1
}

fn names(dump: &mut Dump<'_>, count: usize) {
    assert_eq!(
        dump.take(1, "names: front")[0],
        0,
        "the example has front-coded names"
    );
    dump.numbers(count, "shared");
    let added = dump.numbers(count, "added");
    let len = added.iter().sum::<u64>() as usize;
    let shown = text(&dump.rest()[..len]);
    dump.take(len, &format!("text: {shown}"));
}

fn page(dump: &mut Dump<'_>, record: &RecordRef) {
    match record.record_type {
        RecordType::Data => {
            let len = record.stored_len as usize;
            let shown = text(&dump.rest()[..len]);
            dump.take(len, &shown);
        }
        RecordType::Entries => entries(dump),
        RecordType::Templates => {
            let count = dump.varint("templates") as usize;
            dump.varint("first entry of the first");
            for note in ["entries", "names below sub-directories", "sub-directories"] {
                dump.numbers(count, note);
            }
        }
        RecordType::Contents => {
            let count = dump.varint("contents") as usize;
            dump.varint("logical start");
            dump.numbers(count, "lengths");
        }
        RecordType::Extents => {
            let count = dump.varint("extents") as usize;
            let streams = dump.varint("streams");
            for stream in 0..streams {
                dump.varint(&format!("head of stream {stream}"));
            }
            dump.numbers(count, "lengths");
            let sources = dump.numbers(count, "sources");
            dump.numbers(
                sources.iter().filter(|s| **s != 0 && **s % 2 == 0).count(),
                "steps",
            );
        }
        RecordType::Attributes => {
            let count = dump.varint("attributes") as usize;
            dump.column(count, "permissions, octal", |p| format!("{p:o}"));
            for note in ["uid", "gid", "device"] {
                dump.numbers(count, note);
            }
        }
        RecordType::Directory => directory(dump),
        other => panic!("the example has no {}", other.name()),
    }
}

fn directory(dump: &mut Dump<'_>) {
    dump.take(32, "digest of the superblock");
    dump.varint("generation");
    dump.varint("previous footer");
    dump.take(32, "tree digest");
    dump.varint("names");
    let streams = dump.varint("streams");
    for stream in 0..streams {
        dump.take(1, &format!("stream {stream}: category"));
        dump.varint(&format!("stream {stream}: most raw bytes of a block"));
    }
    assert_eq!(dump.varint("base images"), 0);
    let sections = dump.varint("sections");
    for _ in 0..sections {
        let name = RecordType::from_code(dump.rest()[0]).unwrap().name();
        dump.take(1, &format!("section: {name}"));
        dump.varint("stream");
        let pages = dump.varint("index pages");
        for _ in 0..pages {
            for note in ["offset", "stored length"] {
                dump.varint(note);
            }
            let references = dump.varint("references: none, a record itself");
            assert_eq!(references, 0, "every section of the example has one record");
            dump.varint("items");
            dump.varint("raw length");
            dump.take(1, "codec");
            dump.take(32, "digest of the stored bytes");
        }
    }
}

/// Dumps the whole image, field by field.
fn annotate(bytes: &[u8]) -> String {
    let mut dump = Dump {
        bytes,
        at: 0,
        is_decoded: false,
        out: String::new(),
    };
    dump.fields("superblock", SUPERBLOCK_FIELDS);
    while dump.rest().len() > 128 {
        let record = RecordRef::parse_header(&dump.rest()[..64], dump.at as u64).unwrap();
        let name = record.record_type.name();
        dump.line("");
        dump.fields(name, HEADER_FIELDS);
        if record.codec == Codec::None {
            page(&mut dump, &record);
        } else {
            let stored = dump.take(record.stored_len as usize, "one Zstandard frame; decoded:");
            let raw = Decoder::default()
                .decode(record.codec, stored, record.raw_len as usize, None)
                .unwrap();
            let mut decoded = Dump {
                bytes: &raw,
                at: 0,
                is_decoded: true,
                out: String::new(),
            };
            page(&mut decoded, &record);
            assert!(decoded.rest().is_empty(), "fields of {name}");
            dump.out.push_str(&decoded.out);
        }
        assert_eq!(dump.at as u64, record.end(), "fields of {name}");
    }
    dump.line("");
    dump.fields("footer", FOOTER_FIELDS);
    assert!(dump.rest().is_empty());
    dump.out
}

#[test]
fn the_example_of_the_document_matches_the_builder() {
    let expected = format!("\n```text\n{}```\n", annotate(&image()));
    let path = workspace().join("docs/format.md");
    let document = std::fs::read_to_string(&path).unwrap();
    let start = document.find(BEGIN).expect("the marker of the example") + BEGIN.len();
    let end = document.find(END).expect("the marker of its end");
    if std::env::var_os("WEALD_BLESS").is_some() {
        let blessed = [&document[..start], &expected, &document[end..]].concat();
        std::fs::write(&path, blessed).unwrap();
        return;
    }
    let found = &document[start..end];
    let differing = found.lines().zip(expected.lines()).find(|(a, b)| a != b);
    assert!(
        found == expected,
        "the document's example is not the builder's, first here: {differing:?}"
    );
}

#[test]
fn the_bytes_of_the_document_are_an_image() {
    let document = std::fs::read_to_string(workspace().join("docs/format.md")).unwrap();
    let start = document.find(BEGIN).unwrap();
    let mut bytes = Vec::new();
    for line in document[start..]
        .lines()
        .filter(|l| l.len() > 6 && l.as_bytes()[4..6] == *b"  ")
    {
        let Ok(at) = usize::from_str_radix(&line[..4], 16) else {
            continue;
        };
        assert_eq!(at, bytes.len(), "{line}");
        let hex = &line[6..line.len().min(6 + 47)];
        bytes.extend(
            hex.split_whitespace()
                .map(|b| u8::from_str_radix(b, 16).unwrap()),
        );
    }
    let image = weald_image::Image::open(std::sync::Arc::new(bytes), &Default::default()).unwrap();
    let options = weald_image::CheckOptions {
        digests_only: false,
        threads: 1,
        path_count_max: 1,
    };
    assert!(
        image
            .check(&options, &mut |finding| panic!("{finding:?}"))
            .is_clean()
    );
    let a = image
        .lookup(weald_format::ROOT_INODE, b"b")
        .unwrap()
        .unwrap();
    assert_eq!(&*image.read(&a, 0, 100).unwrap(), b"hello, weald\n");
}
