//! Makes the fuzzers' initial corpus with the builder: `seeds CORPUS_DIR`. Every record of some
//! small images, decoded, becomes a seed of the target for its type.

use rustix::fs::{AtFlags, CWD, XattrFlags, linkat, lsetxattr};
use std::collections::HashMap;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use weald_builder::{BuildOptions, CodecSpec, Silent, build_image};
use weald_codec::deflate::{PNG, analyze, inflate};
use weald_codec::flac::encode;
use weald_codec::{CodecSpec as Spec, Decoder, DictionaryBytes, Encoder, jpeg};
use weald_format::container::{Codec, FOOTER_LEN, Footer, HEADER_LEN, RecordRef, RecordType};
use weald_format::directory::{Directory, IndexPage};
use weald_format::entries::EntryBlock;
use weald_format::history::History;
use weald_format::pages::{
    BaseRun, ContentPage, Extent, ExtentPage, ExtentRun, Source, TemplatePage, TimesPage, TimesRun,
};
use weald_format::recipes::{Method, RecipePage};
use weald_format::{Digest, FileKind};
use weald_fuzz::oci::{ARCHIVE, DESCRIBED, LAYERS, archive_of};
use weald_fuzz::{Framed, frame, seal, unframe};
use weald_image::{Image, Inode, OpenOptions};
use weald_testkit::jpeg::Jpeg;
use weald_testkit::oci::{Tar, digest};

/// Maximum length of seeds that are whole images, bytes.
const SEALED_LEN_MAX: usize = 24 << 10;

struct Corpus(PathBuf);

impl Corpus {
    fn put(&self, target: &str, bytes: &[u8]) {
        let dir = self.0.join(target);
        fs::create_dir_all(&dir).expect("corpus directory");
        fs::write(dir.join(&Digest::of(bytes).to_string()[..16]), bytes).expect("seed");
    }
}

fn tree(root: &Path, copies: u32) {
    let text: Vec<u8> = (0..600u32)
        .flat_map(|i| format!("line {}\n", i * i % 991).into_bytes())
        .collect();
    for copy in 0..copies {
        let dir = root.join(format!("v{copy}"));
        fs::create_dir_all(dir.join("sub/empty")).unwrap();
        fs::write(dir.join("text"), &text).unwrap();
        fs::write(
            dir.join("edited"),
            [&text[..3000], format!("{copy}").as_bytes(), &text[3000..]].concat(),
        )
        .unwrap();
        fs::write(dir.join("sub/none"), b"").unwrap();
        (0..40).for_each(|i| {
            fs::write(dir.join(format!("sub/n{i:03}")), format!("{}", i % 7)).unwrap()
        });
        linkat(
            CWD,
            dir.join("text"),
            CWD,
            dir.join("same"),
            AtFlags::empty(),
        )
        .unwrap();
        linkat(
            CWD,
            dir.join("text"),
            CWD,
            dir.join("sub/same"),
            AtFlags::empty(),
        )
        .unwrap();
        std::os::unix::fs::symlink("../text", dir.join("sub/link")).unwrap();
        // The first needs no corrections. In the second, blocks end at other positions.
        zlib(&dir, "text", "text.gz", "level=6, wbits=31");
        zlib(&dir, "edited", "edited.gz", "level=9, wbits=31, memLevel=1");
        lsetxattr(
            dir.join("text"),
            "user.k",
            format!("{}", copy % 2).as_bytes(),
            XattrFlags::empty(),
        )
        .unwrap();
    }
    let sparse = fs::File::create(root.join("sparse")).unwrap();
    sparse.set_len(1 << 20).unwrap();
    let mut noise = vec![0; 9000];
    blake3::Hasher::new().finalize_xof().fill(&mut noise);
    fs::write(root.join("noise"), noise).unwrap();
}

/// Compresses `dir/from` to `dir/to` with Python's zlib and these arguments of `compressobj`.
fn zlib(dir: &Path, from: &str, to: &str, arguments: &str) {
    let script = format!(
        "import sys, zlib
c = zlib.compressobj({arguments})
data = open(sys.argv[1], 'rb').read()
open(sys.argv[2], 'wb').write(c.compress(data) + c.flush())"
    );
    let status = Command::new("python3")
        .args(["-c", &script, from, to])
        .current_dir(dir)
        .status();
    assert!(status.is_ok_and(|s| s.success()), "python3: {arguments}");
}

/// Splits an image into records by walking the headers, and makes each a seed of its target.
fn split(corpus: &Corpus, image: &[u8]) {
    let footer_at = image.len() - FOOTER_LEN;
    Footer::parse(&image[footer_at..], footer_at as u64).expect("a whole image");
    corpus.put("image", image);
    corpus.put("container", &[&[0], &image[..64]].concat());
    corpus.put("container", &[&[0], &image[footer_at..]].concat());
    let mut at = 64;
    let mut dictionary = None;
    let mut framed = Vec::new();
    let mut streams = HashMap::new();
    while at < footer_at {
        let record = RecordRef::parse_header(&image[at..at + HEADER_LEN], at as u64).unwrap();
        let stored = &image[at + HEADER_LEN..record.end() as usize];
        corpus.put("container", &[&[1], &image[at..at + HEADER_LEN]].concat());
        let raw = Decoder::default()
            .decode(
                record.codec,
                stored,
                record.raw_len as usize,
                dictionary.as_ref(),
            )
            .unwrap();
        let items = items_of(record.record_type, &raw);
        put_raw(corpus, &record, &raw);
        put_stored(corpus, &record, stored);
        if record.record_type == RecordType::Dictionary {
            dictionary = Some(Arc::new(DictionaryBytes::new(&raw).unwrap()));
        }
        match record.record_type {
            RecordType::Index => {}
            RecordType::Directory => {
                let directory = Directory::parse(&raw).unwrap();
                put_index_pages(corpus, image, &directory);
                streams = streams_of(image, &directory);
            }
            _ => {
                // Metadata is stored raw, so that the fuzzer can change it. Data is stored as it
                // is.
                let is_data = record.record_type == RecordType::Data;
                let (codec, stored) = if is_data {
                    (record.codec, stored.to_vec())
                } else {
                    (Codec::None, raw.clone())
                };
                let raw_len = raw.len() as u64;
                let record_type = record.record_type;
                framed.push((
                    record.offset,
                    Framed {
                        record_type,
                        stream: 0,
                        codec,
                        raw_len,
                        items,
                        stored,
                    },
                ));
            }
        }
        at = record.end() as usize;
    }
    // The directory, which has the streams, comes last.
    let with_stream = |(offset, mut framed): (u64, Framed)| {
        framed.stream = streams.get(&offset).copied().unwrap_or(0);
        framed
    };
    let mut framed: Vec<Framed> = framed.into_iter().map(with_stream).collect();
    framed.retain(|f| f.stored.len() <= usize::from(u16::MAX));
    // A long seed makes every run slow.
    let seed = frame(&framed);
    if seed.len() < SEALED_LEN_MAX {
        assert_readable(&seed);
        corpus.put("image_sealed", &seed);
    }
}

fn items_of(record_type: RecordType, raw: &[u8]) -> u64 {
    match record_type {
        RecordType::Data => raw.len() as u64,
        RecordType::Entries => EntryBlock::parse(raw).unwrap().count() as u64,
        RecordType::Templates => TemplatePage::parse(raw).unwrap().count() as u64,
        RecordType::Contents => ContentPage::parse(raw).unwrap().count() as u64,
        RecordType::Extents => ExtentPage::parse(raw).unwrap().logical_len(),
        RecordType::Recipes => RecipePage::parse(raw).unwrap().made_len(),
        RecordType::Times => TimesPage::parse(raw).unwrap().count() as u64,
        RecordType::Attributes => weald_format::pages::parse_attributes(raw).unwrap().len() as u64,
        RecordType::Xattrs => weald_format::pages::parse_xattrs(raw).unwrap().len() as u64,
        RecordType::Links => weald_format::pages::parse_links(raw)
            .unwrap()
            .last()
            .map_or(1, |l| l.name_no + 1),
        _ => 1,
    }
}

/// Checks that every file of the sealed seed can be read: with unreadable seeds a fuzzer does not
/// get far.
fn assert_readable(seed: &[u8]) {
    let image = Image::open(Arc::new(seal(&unframe(seed))), &OpenOptions::default()).unwrap();
    let mut open = vec![image.root().unwrap()];
    while let Some(inode) = open.pop() {
        match inode.kind {
            FileKind::Regular => drop(image.read(&inode, 0, 1 << 20).unwrap()),
            FileKind::Directory => {
                let visit = &mut |_, _: &[u8], child: &Inode| {
                    open.push(child.clone());
                    ControlFlow::Continue(())
                };
                image.read_dir(inode.ino, 0, visit).unwrap();
            }
            _ => {}
        }
    }
}

/// Stream of every data record, by the record's offset.
fn streams_of(image: &[u8], directory: &Directory) -> HashMap<u64, u8> {
    let mut streams = HashMap::new();
    for section in &directory.sections {
        for page in &section.pages {
            if page.is_direct() {
                streams.insert(page.record.offset, section.stream as u8);
                continue;
            }
            let raw = &image[page.record.offset as usize + HEADER_LEN..page.record.end() as usize];
            let count = page.record_count as usize;
            let refs = IndexPage::parse(raw, section.record_type, count, page.item_count);
            let offsets = refs.expect("an index page").refs.into_iter();
            streams.extend(offsets.map(|r| (r.offset, section.stream as u8)));
        }
    }
    streams
}

fn put_index_pages(corpus: &Corpus, image: &[u8], directory: &Directory) {
    for section in &directory.sections {
        for page in section.pages.iter().filter(|p| !p.is_direct()) {
            let mut seed = vec![section.record_type as u8];
            seed.extend_from_slice(&(page.record_count as u16).to_le_bytes());
            seed.extend_from_slice(&page.item_count.to_le_bytes());
            seed.extend_from_slice(
                &image[page.record.offset as usize + HEADER_LEN..page.record.end() as usize],
            );
            corpus.put("index_page", &seed);
        }
    }
}

fn put_raw(corpus: &Corpus, record: &RecordRef, raw: &[u8]) {
    let target = match record.record_type {
        RecordType::Directory => "directory",
        RecordType::Entries => "entries",
        RecordType::Templates => "templates",
        RecordType::Contents => "contents",
        RecordType::Extents => "extents",
        RecordType::Recipes => "recipes",
        RecordType::Attributes => "attributes",
        RecordType::Xattrs => "xattrs",
        RecordType::Links => "links",
        RecordType::Times => "times",
        RecordType::Index | RecordType::Data | RecordType::Dictionary => return,
    };
    corpus.put(target, raw);
}

fn put_stored(corpus: &Corpus, record: &RecordRef, stored: &[u8]) {
    let mut seed = vec![record.codec as u8];
    seed.extend_from_slice(&(record.raw_len as u32).to_le_bytes()[..3]);
    seed.extend_from_slice(stored);
    corpus.put("codec", &seed);
}

/// Groups of rows in every layout.
fn row_groups(corpus: &Corpus) {
    use weald_format::row_group::{Rows, Shape};
    use weald_format::volume::{ExtentsRow, NameRow, Piece, pair_key};
    let (mut names, mut extents) = (Rows::default(), Rows::default());
    for n in 1..30 {
        let row = NameRow {
            name: format!("name{n}").into_bytes(),
            ino: 90 - n,
            kind: weald_format::FileKind::Regular,
        };
        let cookie = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let name = names.push(&pair_key(1, n, cookie), &row.encode());
        let piece = Piece {
            start: 0,
            len: n as u32,
            block: 7,
            offset: 100 * n as u32,
        };
        let window = extents.push(&pair_key(1, n, 0), &ExtentsRow(vec![piece]).encode());
        name.and(window).expect("ascending keys");
    }
    for shape in [None, Some(Shape::Names)] {
        corpus.put("row_group", &names.encode(0..names.count(), shape));
    }
    let shape = Some(Shape::Extents);
    corpus.put("row_group", &extents.encode(0..extents.count(), shape));
}

/// Records of a sync log: superblock, header with its body, and bodies with every kind of change.
fn sync_log(corpus: &Corpus) {
    use weald_format::sync_log::{
        DeltaBuilder, DeltaHeader, DeltaItem, DeltaStart, DeltaTable, SyncLogId,
    };
    use weald_format::volume::{NameRow, QuotaRow, number_key, pair_key, xattr_key};
    use zerocopy::IntoBytes;
    let start = DeltaStart {
        next_ino: 300,
        now: 1_700_000_000_000_000_000,
    };
    let name = NameRow {
        name: b"name".to_vec(),
        ino: 5,
        kind: FileKind::Regular,
    };
    let (name, quota) = (name.encode(), QuotaRow::default().encode());
    let (name_key, key) = (pair_key(1, 2, 3), number_key(1, 5));
    let xattr = xattr_key(1, 5, b"user.k");
    let mut builder = DeltaBuilder::new(start);
    for item in [
        DeltaItem::Row(DeltaTable::Names, &name_key, Some(&name)),
        DeltaItem::Row(DeltaTable::Inodes, &key, None),
        DeltaItem::Row(DeltaTable::Orphans, &key, Some(b"")),
        DeltaItem::Row(DeltaTable::Quotas, &key, Some(&quota)),
        DeltaItem::Row(DeltaTable::Xattrs, &xattr, Some(b"value")),
        DeltaItem::Bytes(5, 4096, b"bytes"),
        DeltaItem::Hole(5, 0, 4096),
        DeltaItem::Block(5, 1 << 40, 100, 7, 28),
        DeltaItem::Drop(9),
    ] {
        builder.push(&item);
    }
    let body = builder.finish();
    let id = SyncLogId {
        uuid: [7; 16],
        snapshot: 1,
    };
    let header = DeltaHeader {
        layer: 9,
        base: 8,
        sequence: 2,
        unsynced: 1,
        ..DeltaHeader::default()
    };
    let header = id.encode_header(&header, &body);
    corpus.put("sync_log", &[&[0], &body[..]].concat());
    corpus.put("sync_log", &[&[1], header.as_bytes(), &body].concat());
    let superblock = id.encode_superblock(16 << 20);
    corpus.put("sync_log", &[&[2], superblock.as_bytes()].concat());
}

fn columns_and_names(corpus: &Corpus) {
    let shapes: [fn(u64) -> u64; 7] = [
        |_| 7,
        |i| 5 + 3 * i,
        |i| i / 9,
        |i| i * i % 3,
        |i| i * i * i,
        |i| i * i % 65_521,
        |i| i.wrapping_mul(1 << 60),
    ];
    for shape in shapes {
        let values: Vec<u64> = (0..60).map(shape).collect();
        let mut seed = vec![60, 0];
        weald_format::column::encode(&mut seed, &values);
        corpus.put("column", &seed);
    }
    row_groups(corpus);
    sync_log(corpus);
    let styles: [fn(u32) -> String; 4] = [
        |i| format!("file{i:03}.txt"),
        |i| format!("{i}"),
        |i| format!("{:08x}", i * 7919),
        |i| "ab".repeat(i as usize % 9),
    ];
    for style in styles {
        let names: Vec<String> = (0..40).map(style).collect();
        let mut seed = vec![40, 0];
        weald_format::names::encode(
            &mut seed,
            &names.iter().map(|n| n.as_bytes()).collect::<Vec<_>>(),
        );
        corpus.put("names", &seed);
    }
}

fn codecs(corpus: &Corpus) {
    let text: Vec<u8> = (0..300u32)
        .flat_map(|i| format!("{} ", i * i % 97).into_bytes())
        .collect();
    for spec in [
        Spec::None,
        Spec::Lz4,
        Spec::Zstd(1),
        Spec::Zstd(19),
        Spec::Xz(0),
        Spec::Brotli(5),
    ] {
        let encoded = Encoder::new(spec, 1 << 16).unwrap().encode(&text).unwrap();
        let mut seed = vec![encoded.codec as u8];
        seed.extend_from_slice(&(text.len() as u32).to_le_bytes()[..3]);
        seed.extend_from_slice(&encoded.stored);
        corpus.put("codec", &seed);
    }
    let samples: Vec<Vec<u8>> = (0..200u32)
        .map(|i| {
            (i..i + 30)
                .flat_map(|j| format!("{}/", j * j % 89).into_bytes())
                .collect()
        })
        .collect();
    let dictionary = weald_codec::train_dictionary(&samples, 1024).unwrap();
    for len in [64, 4096] {
        let raw: Vec<u8> = samples.concat().into_iter().take(len).collect();
        let stored = Encoder::with_dictionary(3, &dictionary)
            .unwrap()
            .encode(&raw)
            .unwrap()
            .stored;
        let mut seed = (stored.len() as u16).to_le_bytes().to_vec();
        seed.extend_from_slice(&stored);
        seed.extend_from_slice(&dictionary);
        corpus.put("codec_dictionary", &seed);
        let history = History {
            base_stream: (len > 64).then_some(5),
            numbers: vec![0, 7],
        };
        let mut stored = history.encode();
        let frame = weald_codec::encode_with_history(&raw, &dictionary, 3).unwrap();
        stored.extend_from_slice(&frame);
        let mut seed = (stored.len() as u16).to_le_bytes().to_vec();
        seed.extend_from_slice(&stored);
        seed.extend_from_slice(&dictionary);
        corpus.put("codec_history", &seed);
    }
}

/// Seeds for `deflate`: streams with and without corrections, and their recipes.
fn deflate(corpus: &Corpus, dir: &Path) {
    let text: Vec<u8> = (0..400u32)
        .flat_map(|i| format!("{} {}\n", i % 13, i * i % 991).into_bytes())
        .collect();
    // More bytes than levels are compared on, but a short stream.
    let long = text.repeat(60);
    fs::write(dir.join("text"), &text).unwrap();
    fs::write(dir.join("long"), &long).unwrap();
    for (from, arguments) in [
        ("text", "level=6, wbits=-15"),
        ("text", "level=6, wbits=-15, memLevel=1"),
        ("text", "level=9, wbits=-15, memLevel=2"),
        ("text", "level=4, wbits=-15, memLevel=3"),
        ("text", "level=6, wbits=-12"),
        ("text", "level=6, wbits=-15, strategy=zlib.Z_FILTERED"),
        ("text", "level=6, wbits=-15, strategy=zlib.Z_FIXED"),
        ("text", "level=0, wbits=-15"),
        ("text", "level=6, wbits=-9"),
        ("text", "level=6, wbits=-15, strategy=zlib.Z_HUFFMAN_ONLY"),
        ("long", "level=6, wbits=-15, memLevel=9"),
    ] {
        zlib(dir, from, "stream", arguments);
        let stream = fs::read(dir.join("stream")).unwrap();
        corpus.put("deflate", &[&[0], &stream[..]].concat());
        let (plain, len) = inflate(&stream, 1 << 20).expect("a stream");
        if let Some(recipe) = analyze(&stream, &plain, PNG, usize::MAX).into_iter().next()
            && let Ok(plain_len) = u16::try_from(plain.len())
        {
            // Also the whole stream as one part.
            let mut seed = vec![2, recipe.zlib.level];
            for number in [0, plain_len, 0] {
                seed.extend_from_slice(&number.to_le_bytes());
            }
            seed.push(1);
            seed.extend_from_slice(&plain_len.to_le_bytes());
            seed.extend_from_slice(&(len as u16).to_le_bytes());
            seed.push(0);
            seed.extend_from_slice(&plain);
            seed.extend_from_slice(&recipe.corrections);
            corpus.put("deflate", &seed);
            let mut seed = vec![1, Method::Deflate(recipe.zlib).code()];
            seed.extend_from_slice(&(len as u16).to_le_bytes());
            seed.extend_from_slice(&plain_len.to_le_bytes());
            seed.extend_from_slice(&plain);
            seed.extend_from_slice(&recipe.corrections);
            corpus.put("deflate", &seed);
        }
    }
}

/// Seeds for `flac`: samples of every format, and their streams: silence, a slope, noise.
fn samples(corpus: &Corpus) {
    for code in 16..24u8 {
        let Some(Method::Pcm(samples)) = Method::from_code(code.into()) else {
            panic!("{code}");
        };
        for channels in [1, 2, 3] {
            // Whole samples for any sample length and number of channels.
            let mut bytes = vec![0; 72 * 20];
            bytes.extend((0..72 * 40).map(|i: u32| (i / 72) as u8));
            let mut noise = vec![0; 72 * 20];
            blake3::Hasher::new().finalize_xof().fill(&mut noise);
            bytes.extend_from_slice(&noise);
            corpus.put(
                "flac",
                &[&[0, code - 16, channels - 1], &bytes[..]].concat(),
            );
            let stream = encode(&bytes, channels.into(), samples).expect("whole samples");
            let len = (bytes.len() as u32).to_le_bytes();
            let seed = [&[1, code - 16, len[0], len[1], len[2]], &stream[..]].concat();
            corpus.put("flac", &seed);
        }
    }
}

/// Seeds for `extents`: extents among runs of base images.
fn base_runs(corpus: &Corpus) {
    let run = |base, start, len| ExtentRun::Base(BaseRun { base, start, len });
    let own = |len, source| ExtentRun::Own(Extent { len, source });
    let (stream, address) = (1, 77);
    let runs = [
        own(5, Source::Stream { stream, address }),
        run(0, 1000, 300),
        own(9, Source::Hole),
        run(3, 1 << 40, 1),
        run(0, 1300, 20),
    ];
    for streams in [2, 12] {
        let page = ExtentPage::encode_runs(&runs, &mut vec![0; streams]);
        corpus.put("extents", &page);
    }
}

/// Seeds for `jpeg`: pictures of every kind, their Lepton files, and parts of those.
fn pictures(corpus: &Corpus) {
    for kind in 0..8u8 {
        let file = Jpeg {
            is_color: kind & 1 != 0,
            is_progressive: kind & 2 != 0,
            restart: u16::from(kind & 4),
            ..Jpeg::new(3, 3)
        }
        .draw(kind.into());
        corpus.put("jpeg", &[&[0], &file[..]].concat());
        let stored = jpeg::encode(&file).expect("a picture");
        let len = &(file.len() as u32).to_le_bytes()[..3];
        corpus.put("jpeg", &[&[1], len, &stored].concat());
        // The segments of the file, from after SOI to the end of the first scan's header.
        let scan = file.windows(2).position(|w| w == b"\xff\xda").unwrap();
        let end = scan + 2 + usize::from(file[scan + 3]);
        let segments = &file[2..end];
        let pieces = stored.windows(3).position(|w| w == b"CMP").unwrap() + 3;
        let seed = [
            &[2, stored[3]],
            len,
            &(segments.len() as u16).to_le_bytes(),
            segments,
            &stored[pieces..stored.len() - 4],
        ];
        corpus.put("jpeg", &seed.concat());
    }
}

fn rules(corpus: &Corpus) {
    for seed in [
        &b"- *.o\n+ /a/**/b\n- [a-z]?\xffa/x/b"[..],
        b"*/\n!\n# c\n\\*\xffa*",
        b"***/a[^!]/\xffz/a",
    ] {
        corpus.put("filter", seed);
    }
    for seed in [
        &b"\xff\x01u+rwX,go-w"[..],
        b"\0\x02755",
        b"\0\0D+x,Fa=g",
        b"\x11\x03ug=o+st",
    ] {
        corpus.put("mode", seed);
    }
}

/// Seed for `hot`: records what a read of the file `dir/name` of an image touches.
fn hotness(corpus: &Corpus, image: &Path, dir: &[u8], name: &[u8]) {
    let image = Image::open_path(image, 0, &OpenOptions::default()).expect("open");
    image.record_hotness();
    let root = image.root().expect("root");
    let dir = image.lookup(root.ino, dir).unwrap().expect("directory");
    let file = image.lookup(dir.ino, name).unwrap().expect("file");
    image.read(&file, 0, 5000).expect("read");
    let hotness = image.hotness().expect("notes");
    corpus.put("hot", &hotness.to_bytes());
    let digest = image.summary().image_digest;
    let other =
        format!("weald hotness 1\nimage {digest}\nmade 3 5\nfile 1-2,4-9 \\x41/b\nbase {digest}\n");
    corpus.put("hot", other.as_bytes());
}

/// Seeds for `tar` and `mtree`: streams of GNU tar, and descriptions in every form.
fn streams(corpus: &Corpus, dir: &Path) {
    let script = "mkdir -p in/dir; cd in
        echo text > dir/file; ln dir/file link; ln -s dir/file sym; mkfifo fifo
        echo x > $(printf 'n%.0s' $(seq 120))
        truncate -s 40K sparse
        echo data | dd of=sparse bs=4K seek=5 conv=notrunc status=none";
    let run = |script: &str| {
        let mut command = Command::new("bash");
        let output = command.args(["-ec", script]).current_dir(dir).output();
        let output = output.expect("bash");
        assert!(output.status.success(), "{script}");
        output.stdout
    };
    run(script);
    for options in [
        "--format=pax --sparse",
        "--format=pax --sparse --sparse-version=0.0",
        "--format=pax --sparse --sparse-version=0.1",
        "--format=gnu --sparse",
        "--format=oldgnu --sparse",
        "--format=ustar --exclude='nnn*'",
        "--format=v7 --exclude='nnn*' --exclude=fifo",
    ] {
        let script = format!(
            "tar -c {options} --blocking-factor=2 --mtime=@1.5 --owner=0 --group=0 -C in ."
        );
        corpus.put("tar", &run(&script));
    }
    for seed in [
        &b"#mtree\n/set type=file uid=0 gid=0 mode=0644\n. type=dir mode=0755\n\
           \x20   a\\sb\\M-C\\M-$ size=0 \\\n time=-5.7\n    d type=dir\n    ..\n..\n"[..],
        b"./d type=dir\n./d/l type=link link=x\\040y\n/unset all\n\
          ./d/c type=char device=native,5,0x6 uname=root\n",
        b"./f type=file size=0 \
          sha256=e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855 \
          flags=none nlink=2\n",
    ] {
        corpus.put("mtree", seed);
    }
}

/// Seeds for `dump`: each kind of entry, escapes, xattrs.
fn dumps(corpus: &Corpus) {
    let digest = "a".repeat(64);
    let text = format!(
        "/ 0 40755 3 0 0 0 1000000000.5 - - - user.a=\\x00\\n\\\\ security.x\\x3dy=\n\
         /f 70 104755 2 0 0 0 -1.999999999 ab/cd - {digest}\n\
         /l 1 120777 1 0 0 0 0.0 \\x2d - -\n\
         /d 0 20600 1 0 0 17592186110211 0.0 - - -\n\
         /s 5 100644 1 1000 4294967295 0 0.0 - hello -\n\
         /g 0 @120000 - - - - 0.0 /f - -\n"
    );
    corpus.put("dump", text.as_bytes());
}

/// Seeds for `oci`: an archive of a layout, one of `docker save`, layers of tar, and described
/// layers.
fn containers(corpus: &Corpus) {
    let lower = Tar::default()
        .dir("d/")
        .file("d/a", b"text")
        .symlink("s", "d");
    let upper = Tar::default()
        .file("d/.wh.a", b"")
        .hard_link("b", "s")
        .file("d/.wh..wh..opq", b"");
    let layers = [lower.finish(), upper.finish()];
    let put = |kind: u8, bytes: &[u8]| corpus.put("oci", &[&[kind], bytes].concat());
    put(ARCHIVE, &archive_of(&layers));
    let config = format!(r#"{{"rootfs":{{"diff_ids":["{}"]}}}}"#, digest(&layers[0]));
    let saved = Tar::default()
        .file(
            "manifest.json",
            br#"[{"Config":"c","RepoTags":["x:1"],"Layers":["l/layer.tar"]}]"#,
        )
        .file("c", config.as_bytes())
        .file("k/layer.tar", &layers[0])
        .symlink("l/layer.tar", "../k/layer.tar");
    put(ARCHIVE, &saved.finish());
    let pieces = layers.iter().flat_map(|layer| {
        let len = (layer.len() as u16).to_le_bytes();
        [&len[..], layer].concat()
    });
    put(LAYERS, &pieces.collect::<Vec<u8>>());
    put(
        DESCRIBED,
        b"\x01\x01d\0\x02\x03d/a\x04text\x03\x01s\x01d\0\
          \x06\x01d\x01a\x04\x01b\x01s\x07\x01d\0\x05\x01x\0",
    );
}

/// Seeds for `erofs`: images of mkfs.erofs with every layout that it writes. The images of a later
/// one are those of the tests.
fn erofs(corpus: &Corpus, dir: &Path) {
    let (root, image) = (dir.join("erofs"), dir.join("erofs.img"));
    fs::create_dir(&root).unwrap();
    tree(&root, 1);
    // A sparse file and noise would be most of the image.
    fs::remove_file(root.join("sparse")).unwrap();
    fs::remove_file(root.join("noise")).unwrap();
    for options in [
        &[][..],
        &["--chunksize=4096"],
        &["--chunksize=4096", "-Eforce-chunk-indexes"],
        &["-zlz4"],
        &["-zlz4hc", "-C65536", "-Eztailpacking"],
        &["-zlz4", "-Elegacy-compress"],
        &["-zlz4", "-Eztailpacking,legacy-compress"],
    ] {
        let status = Command::new("mkfs.erofs")
            .arg("--quiet")
            .args(options)
            .args([&image, &root])
            .status();
        assert!(status.is_ok_and(|s| s.success()), "mkfs.erofs: {options:?}");
        corpus.put("erofs", &fs::read(&image).unwrap());
    }
    let newer = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/erofs/tests/images");
    for entry in fs::read_dir(newer).unwrap() {
        corpus.put("erofs", &fs::read(entry.unwrap().path()).unwrap());
    }
}

fn main() {
    let corpus = Corpus(
        std::env::args_os()
            .nth(1)
            .expect("usage: seeds CORPUS_DIR")
            .into(),
    );
    let dir = tempfile::tempdir().expect("temporary directory");
    erofs(&corpus, dir.path());
    let target = dir.path().join("image");
    for (name, copies, codec) in [
        ("a", 1, CodecSpec::Zstd(3)),
        ("b", 3, CodecSpec::Lz4),
        ("c", 2, CodecSpec::Xz(0)),
        ("e", 2, CodecSpec::Brotli(3)),
        ("d", 60, CodecSpec::Zstd(9)),
    ] {
        let root = dir.path().join(name);
        fs::create_dir(&root).unwrap();
        tree(&root, copies);
        let times = copies == 1;
        let options = BuildOptions {
            codec,
            block_len: 4096,
            match_len_min: 64,
            keep_atime: times,
            keep_ctime: times,
            keep_btime: times,
            ..BuildOptions::default()
        };
        build_image(&root, &target, true, &options, &Silent).expect("build");
        split(&corpus, &fs::read(&target).unwrap());
        hotness(&corpus, &target, b"v0", b"text");
    }
    // The builder makes a times overlay only for larger trees.
    let overlay: Vec<_> = (0..50)
        .map(|i| weald_format::Timestamp {
            seconds: i * i - 9,
            nanoseconds: (i * 7) as u32,
        })
        .collect();
    corpus.put("times", &TimesPage::encode(&overlay));
    let run = TimesRun::of(overlay[0], overlay[1]).unwrap();
    corpus.put("times", &TimesPage::encode_run(&run, 1 << 16));
    columns_and_names(&corpus);
    codecs(&corpus);
    deflate(&corpus, dir.path());
    pictures(&corpus);
    samples(&corpus);
    base_runs(&corpus);
    rules(&corpus);
    streams(&corpus, dir.path());
    containers(&corpus);
    dumps(&corpus);
}
