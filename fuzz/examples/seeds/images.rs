//! Seeds from images: every record of some small images, decoded, becomes a seed of the target for
//! its type.

use crate::Corpus;
use crate::codecs::zlib;
use rustix::fs::{AtFlags, CWD, XattrFlags, linkat, lsetxattr};
use std::collections::HashMap;
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use weald_builder::{BuildOptions, CodecSpec, Silent, build_image};
use weald_codec::{Decoder, DictionaryBytes};
use weald_format::FileKind;
use weald_format::container::{Codec, FOOTER_LEN, Footer, HEADER_LEN, RecordRef, RecordType};
use weald_format::directory::{Directory, IndexPage};
use weald_format::entries::EntryBlock;
use weald_format::pages::{self, ContentPage, ExtentPage, TemplatePage, TimesPage};
use weald_format::recipes::RecipePage;
use weald_fuzz::{Framed, frame, seal, unframe};
use weald_image::{Image, Inode, OpenOptions};

/// Maximum length of seeds that are whole images, bytes.
const SEALED_LEN_MAX: usize = 24 << 10;

/// Makes images of small trees, and seeds of their records.
pub fn images(corpus: &Corpus, dir: &Path) {
    let target = dir.join("image");
    for (name, copies, codec) in [
        ("a", 1, CodecSpec::Zstd(3)),
        ("b", 3, CodecSpec::Lz4),
        ("c", 2, CodecSpec::Xz(0)),
        ("e", 2, CodecSpec::Brotli(3)),
        ("d", 60, CodecSpec::Zstd(9)),
    ] {
        let root = dir.join(name);
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
            keep_fsverity: times,
            ..BuildOptions::default()
        };
        build_image(&root, &target, true, &options, &Silent).expect("build");
        split(corpus, &fs::read(&target).unwrap());
        hotness(corpus, &target, b"v0", b"text");
    }
}

/// Fills `root` with equal, edited, sparse and linked files in `copies` directories.
pub fn tree(root: &Path, copies: u32) {
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
        RecordType::Attributes => pages::parse_attributes(raw).unwrap().len() as u64,
        RecordType::Xattrs => pages::parse_xattrs(raw).unwrap().len() as u64,
        RecordType::Fsverity => pages::parse_fsverity(raw).unwrap().len() as u64,
        RecordType::Links => pages::parse_links(raw)
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
        RecordType::Fsverity => "fsverity",
        RecordType::Copies => "copies",
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
