//! Figures for `docs/design/0001-container-and-tree.md`: `layout SOURCE IMAGE SHORTEST_REPEAT`
//! builds an image of SOURCE and prints the size of other layouts of its metadata. Each list is
//! stored as columns in pages, which zstd 19 compresses separately.

use std::sync::Arc;
use weald_builder::{BuildOptions, Silent, build_image};
use weald_codec::{CodecSpec, Decoder, DictionaryBytes, Encoder};
use weald_format::column;
use weald_format::container::{FOOTER_LEN, HEADER_LEN, RecordRef, RecordType, SUPERBLOCK_LEN};
use weald_format::entries::{EntryBlock, EntryKind};
use weald_format::limits::EXTENTS_PER_PAGE;
use weald_format::names;
use weald_format::pages::{ContentPage, Extent, ExtentPage, Source};

#[derive(Default)]
struct Tree {
    content_lens: Vec<u64>,
    extents: Vec<Extent>,
    blocks: Vec<EntryBlock>,
}

fn read(image: &[u8]) -> Tree {
    let mut tree = Tree::default();
    let mut dictionary = None;
    let mut at = SUPERBLOCK_LEN;
    while at < image.len() - FOOTER_LEN {
        let record =
            RecordRef::parse_header(&image[at..at + HEADER_LEN], at as u64).expect("header");
        let stored = &image[at + HEADER_LEN..record.end() as usize];
        at = record.end() as usize;
        if record.record_type == RecordType::Data {
            continue;
        }
        let decoded = Decoder::default().decode(
            record.codec,
            stored,
            record.raw_len as usize,
            dictionary.as_ref(),
        );
        let raw = decoded.expect("record");
        match record.record_type {
            RecordType::Dictionary => {
                dictionary = Some(Arc::new(DictionaryBytes::new(&raw).expect("dictionary")))
            }
            RecordType::Entries => tree.blocks.push(EntryBlock::parse(&raw).expect("entries")),
            RecordType::Contents => {
                let page = ContentPage::parse(&raw).expect("contents");
                tree.content_lens
                    .extend((0..page.count()).filter_map(|i| page.get(i)).map(|c| c.1));
            }
            RecordType::Extents => {
                let page = ExtentPage::parse(&raw).expect("extents");
                tree.extents
                    .extend((0..page.count()).filter_map(|i| page.get(i)).map(|e| e.1));
            }
            _ => {}
        }
    }
    tree
}

fn stored_len(raw: &[u8]) -> usize {
    let mut encoder = Encoder::new(CodecSpec::Zstd(19), raw.len().max(1) as u64).expect("encoder");
    encoder.encode(raw).expect("encode").stored.len()
}

fn column_len(values: &[u64]) -> usize {
    let page_len = |page: &[u64]| {
        let mut out = Vec::new();
        column::encode(&mut out, page);
        stored_len(&out)
    };
    values.chunks(EXTENTS_PER_PAGE).map(page_len).sum()
}

fn extents_len(extents: &[Extent]) -> usize {
    let mut heads = vec![0; 2];
    extents
        .chunks(EXTENTS_PER_PAGE)
        .map(|page| stored_len(&ExtentPage::encode(page, &mut heads)))
        .sum()
}

/// The extents split at the ends of contents, and the number of extents of each content.
fn cut_at_contents(tree: &Tree) -> (Vec<Extent>, Vec<u64>) {
    let (mut cut, mut counts) = (Vec::new(), Vec::new());
    let mut rest = tree.extents.iter().copied();
    let mut current = None;
    for &len in &tree.content_lens {
        let (mut remaining_len, before) = (len, cut.len());
        while remaining_len > 0 {
            let mut extent: Extent = current
                .take()
                .or_else(|| rest.next())
                .expect("extents cover contents");
            let taken = extent.len.min(remaining_len);
            cut.push(Extent {
                len: taken,
                source: extent.source,
            });
            remaining_len -= taken;
            if taken < extent.len {
                extent.len -= taken;
                if let Source::Stream { address, .. } = &mut extent.source {
                    *address += taken;
                }
                current = Some(extent);
            }
        }
        counts.push((cut.len() - before) as u64);
    }
    (cut, counts)
}

/// Front-coded names of a block; every `restart`-th name is stored whole.
fn front_coded(names: &[&[u8]], restart: usize) -> Vec<u8> {
    let (mut shared, mut added, mut text) = (Vec::new(), Vec::new(), Vec::new());
    for (i, name) in names.iter().enumerate() {
        let before = if i % restart == 0 {
            &[][..]
        } else {
            names[i - 1]
        };
        let common = name.iter().zip(before).take_while(|(a, b)| a == b).count();
        shared.push(common as u64);
        added.push((name.len() - common) as u64);
        text.extend_from_slice(&name[common..]);
    }
    let mut out = Vec::new();
    column::encode(&mut out, &shared);
    column::encode(&mut out, &added);
    out.extend_from_slice(&text);
    out
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let [_, source, image, repeat] = args.as_slice() else {
        panic!("usage: layout SOURCE IMAGE SHORTEST_REPEAT")
    };
    let match_len_min = repeat.parse().expect("a number");
    let options = BuildOptions {
        match_len_min,
        ..BuildOptions::level(4).expect("level")
    };
    let report =
        build_image(source.as_ref(), image.as_ref(), true, &options, &Silent).expect("build");
    println!(
        "image {}, blocks {} of it",
        report.image_len, report.block_stored_len
    );
    let tree = read(&std::fs::read(image).expect("image"));
    let (cut, counts) = cut_at_contents(&tree);
    println!(
        "contents {}, extents {}, cut at contents {}",
        tree.content_lens.len(),
        tree.extents.len(),
        cut.len()
    );
    println!(
        "one space: extents {}, lengths {}",
        extents_len(&tree.extents),
        column_len(&tree.content_lens)
    );
    println!(
        "lists: extents {}, counts {}",
        extents_len(&cut),
        column_len(&counts)
    );
    let (mut sizes, mut plain, mut restarts) = (0, 0, 0);
    for block in &tree.blocks {
        let files = (0..block.count()).filter(|&i| block.kind(i) == EntryKind::File);
        let lens: Vec<u64> = files
            .map(|i| tree.content_lens[block.body(i) as usize])
            .collect();
        sizes += column_len(&lens);
        let all: Vec<&[u8]> = (0..block.count()).map(|i| block.name(i)).collect();
        let mut encoded = Vec::new();
        names::encode(&mut encoded, &all);
        plain += stored_len(&encoded);
        restarts += stored_len(&front_coded(&all, 16));
    }
    println!("sizes in entries {sizes}; names {plain}, with restarts {restarts}");
}
