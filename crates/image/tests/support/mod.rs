//! A small image assembled from the encoders of `weald-format`, so that a test can forge any part
//! and all digests still agree.
#![allow(dead_code)]

pub mod read;

#[allow(unused_imports)]
pub use read::*;

use weald_format::container::{
    Codec, FOOTER_LEN, Footer, HEADER_LEN, RecordRef, RecordType, SuperblockRecord,
};
use weald_format::directory::{Category, Directory, IndexPage, PageRef, Section, Stream};
use weald_format::entries::{EntryBlockBuilder, EntryFields, EntryKind, time_mask};
use weald_format::pages::{
    self, ContentPage, Extent, ExtentPage, Link, Source, Template, TemplatePage, TimesPage,
};
use weald_format::recipes::{Recipe, RecipePage};
use weald_format::tree_digest::{ContentHasher, LogicalEntry, TreeHasher};
use weald_format::{Attributes, Digest, Timestamp, Xattr, XattrSet};
use zerocopy::IntoBytes;

/// One entry with its name and target.
#[derive(Debug, Clone)]
pub struct Entry {
    pub name: Vec<u8>,
    pub target: Vec<u8>,
    pub fields: EntryFields,
}

/// A record for a forged image.
#[derive(Debug, Clone)]
pub struct Raw {
    pub record_type: RecordType,
    pub stream: u64,
    pub codec: Codec,
    pub stored: Vec<u8>,
    pub raw_len: u64,
    pub items: u64,
}

impl Raw {
    /// A record that is stored uncompressed.
    pub fn plain(record_type: RecordType, bytes: Vec<u8>, items: u64) -> Self {
        let raw_len = bytes.len() as u64;
        Self {
            record_type,
            stream: 0,
            codec: Codec::None,
            stored: bytes,
            raw_len,
            items,
        }
    }
}

/// A change that is applied last.
pub type Edit<T> = Option<Box<dyn Fn(&mut T)>>;
pub type EditRefs = Box<dyn Fn(&mut Vec<RecordRef>, &mut Vec<u64>)>;

/// The parts of a small tree. Edited parts are encoded, digested and sealed like correct ones.
pub struct Parts {
    pub mask: u8,
    pub entries: Vec<Entry>,
    pub templates: Vec<Template>,
    pub content_start: u64,
    pub content_lens: Vec<u64>,
    pub extents: Vec<Extent>,
    pub recipes: Vec<Recipe>,
    pub blocks: Vec<Vec<u8>>,
    pub attributes: Vec<Attributes>,
    pub xattrs: Vec<XattrSet>,
    pub links: Vec<Link>,
    pub times: Vec<Timestamp>,
    pub fsverity: Vec<[u8; 32]>,
    pub streams: Vec<Stream>,
    pub name_count: u64,
    pub tree_digest: Digest,
    /// Changes that are applied last: to all records, to the references of a section, to the
    /// directory, to the bytes of the directory.
    pub edit_records: Edit<Vec<Raw>>,
    pub edit_refs: Option<(RecordType, EditRefs)>,
    pub edit_directory: Edit<Directory>,
    /// Bytes behind the sections of the directory.
    pub directory_tail: Vec<u8>,
    pub edit_directory_record: Edit<RecordRef>,
    pub edit_footer: Edit<Footer>,
}

pub const TIME: Timestamp = Timestamp {
    seconds: 1_000_000,
    nanoseconds: 5,
};

pub fn entry(name: &str, kind: EntryKind, body: u64) -> Entry {
    let fields = EntryFields {
        kind,
        attributes: 0,
        xattrs: 0,
        nlink: 1,
        link_back: 0,
        times: [TIME; 4],
        body,
    };
    Entry {
        name: name.into(),
        target: Vec::new(),
        fields,
    }
}

fn noise(seed: u8, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    blake3::Hasher::new()
        .update(&[seed])
        .finalize_xof()
        .fill(&mut out);
    out
}

impl Parts {
    /// Ten names: files with one and two blocks' data, a hole, hard links inside and across
    /// directories, a symlink, a fifo, an empty file and an xattr.
    pub fn base() -> Self {
        let mut x = entry("x", EntryKind::File, 1);
        x.fields.nlink = 0;
        let mut y = entry("y", EntryKind::Symlink, 0);
        y.target = b"../a".to_vec();
        let mut a = entry("a", EntryKind::File, 0);
        a.fields.xattrs = 1;
        let b = Entry {
            name: b"b".to_vec(),
            ..x.clone()
        };
        let d = entry("d", EntryKind::Directory, 0);
        let e = entry("e", EntryKind::Empty, 0);
        let mut h1 = entry("h1", EntryKind::File, 2);
        h1.fields.nlink = 2;
        let mut h2 = Entry {
            name: b"h2".to_vec(),
            ..h1.clone()
        };
        h2.fields.link_back = 1;
        let mut z = entry("z", EntryKind::Fifo, 0);
        z.fields.attributes = 1;
        let root = entry("", EntryKind::Directory, 1);
        let template = |entry_start, entry_count, subtree_count, directory_count| Template {
            entry_start,
            entry_count,
            subtree_count,
            directory_count,
        };
        let mut parts = Self {
            entries: vec![x, y, a, b, d, e, h1, h2, z, root],
            templates: vec![
                template(0, 2, 2, 0),
                template(2, 7, 9, 1),
                template(9, 1, 10, 1),
            ],
            ..Self::without_names()
        };
        parts.tree_digest = parts.digest();
        parts
    }

    /// Contents, attributes, xattrs and links of the base tree, which has no entries yet.
    fn without_names() -> Self {
        let data = noise(1, 160);
        let from = |address, len| Extent {
            len,
            source: Source::Stream { stream: 0, address },
        };
        let attributes = |permissions, uid, gid| Attributes {
            permissions,
            uid,
            gid,
            rdev: 0,
        };
        let link = |name_no| Link {
            name_no,
            first_no: 3,
            nlink: 2,
        };
        Self {
            mask: time_mask::MTIME,
            entries: Vec::new(),
            templates: Vec::new(),
            content_start: 0,
            content_lens: vec![100, 50, 1010],
            extents: vec![
                from(0, 150),
                Extent {
                    len: 1000,
                    source: Source::Hole,
                },
                from(150, 10),
            ],
            recipes: Vec::new(),
            blocks: vec![data[..120].to_vec(), data[120..].to_vec()],
            attributes: vec![attributes(0o644, 1, 2), attributes(0o600, 0, 0)],
            xattrs: vec![vec![Xattr {
                name: b"user.k".to_vec(),
                value: b"v".to_vec(),
            }]],
            links: vec![link(3), link(9)],
            times: Vec::new(),
            fsverity: Vec::new(),
            streams: vec![Stream {
                category: Category::General,
                block_len_max: 4096,
            }],
            name_count: 10,
            tree_digest: Digest::default(),
            edit_records: None,
            edit_refs: None,
            edit_directory: None,
            directory_tail: Vec::new(),
            edit_directory_record: None,
            edit_footer: None,
        }
    }

    /// The same tree with a times overlay.
    pub fn overlay() -> Self {
        let mut parts = Self::base();
        parts.mask = 0;
        parts.times = vec![TIME; 10];
        parts
    }

    /// The same tree with an fs-verity digest of each content.
    pub fn verity() -> Self {
        let mut parts = Self::base();
        let data = parts.blocks.concat();
        let sparse = [&[0; 1000], &data[150..]].concat();
        let contents = [&data[..100], &data[100..150], &sparse];
        parts.fsverity = contents.map(weald_codec::fsverity_digest).to_vec();
        parts
    }

    /// The tree digest of the base tree, as section 16 of `docs/format.md` defines it.
    fn digest(&self) -> Digest {
        let data = self.blocks.concat();
        let dense = |bytes: &[u8]| {
            let mut hasher = ContentHasher::dense();
            hasher.update(bytes);
            hasher.finish()
        };
        let mut sparse = ContentHasher::sparse(1010, &[(1000, 10)]);
        sparse.update(&data[150..]);
        let contents = [dense(&data[..100]), dense(&data[100..150]), sparse.finish()];
        let mut directories: Vec<Digest> = Vec::new();
        for template in &self.templates {
            let range = template.entry_start as usize
                ..(template.entry_start + template.entry_count) as usize;
            let mut hasher = blake3::Hasher::new();
            for entry in &self.entries[range] {
                self.hash(entry, &contents, &directories, &mut hasher);
            }
            directories.push(Digest(*hasher.finalize().as_bytes()));
        }
        let mut tree = TreeHasher::new(directories.last().unwrap());
        self.links.iter().for_each(|l| tree.add_link(l));
        tree.finish()
    }

    fn hash(
        &self,
        entry: &Entry,
        contents: &[Digest],
        directories: &[Digest],
        hasher: &mut blake3::Hasher,
    ) {
        let fields = &entry.fields;
        let body = match fields.kind {
            EntryKind::File => contents[fields.body as usize].0.to_vec(),
            EntryKind::Directory => directories[fields.body as usize].0.to_vec(),
            EntryKind::Symlink => entry.target.clone(),
            _ => Vec::new(),
        };
        let xattrs = match fields.xattrs {
            0 => Digest::default(),
            id => Digest::of(&pages::encode_xattrs(
                &self.xattrs[id as usize - 1..id as usize],
            )),
        };
        let logical = LogicalEntry {
            name: &entry.name,
            kind: fields.kind,
            attributes: self.attributes[fields.attributes as usize],
            mtime: fields.times[0],
            xattrs,
            nlink: fields.nlink.max(1),
            back: fields.link_back,
            body: &body,
        };
        logical.hash_into(hasher);
    }

    fn records(&self) -> Vec<Raw> {
        let mut records = Vec::new();
        for block in &self.blocks {
            records.push(Raw::plain(
                RecordType::Data,
                block.clone(),
                block.len() as u64,
            ));
        }
        let mut page = |record_type, bytes, items: usize| {
            if items > 0 {
                records.push(Raw::plain(record_type, bytes, items as u64));
            }
        };
        self.tree_pages(&mut page);
        self.content_pages(&mut page);
        self.attribute_pages(&mut page);
        page(
            RecordType::Fsverity,
            self.fsverity.concat(),
            self.fsverity.len(),
        );
        if let Some(edit) = &self.edit_records {
            edit(&mut records);
        }
        records
    }

    /// Pages of entries and templates; each with its item count.
    fn tree_pages(&self, page: &mut dyn FnMut(RecordType, Vec<u8>, usize)) {
        for block in self.entries.chunks(1024) {
            let mut builder = EntryBlockBuilder::default();
            block
                .iter()
                .for_each(|e| builder.push(&e.name, &e.target, &e.fields));
            page(RecordType::Entries, builder.encode(self.mask), block.len());
        }
        for templates in self.templates.chunks(1024) {
            page(
                RecordType::Templates,
                TemplatePage::encode(templates),
                templates.len(),
            );
        }
    }

    /// Pages of attributes, xattrs, links and times; each with its item count.
    fn attribute_pages(&self, page: &mut dyn FnMut(RecordType, Vec<u8>, usize)) {
        page(
            RecordType::Attributes,
            pages::encode_attributes(&self.attributes),
            self.attributes.len(),
        );
        page(
            RecordType::Xattrs,
            pages::encode_xattrs(&self.xattrs),
            self.xattrs.len(),
        );
        let link_end = self.links.last().map_or(0, |l| l.name_no + 1);
        page(
            RecordType::Links,
            pages::encode_links(&self.links),
            link_end as usize,
        );
        for times in self.times.chunks(4096) {
            page(RecordType::Times, TimesPage::encode(times), times.len());
        }
    }

    /// Pages of contents, extents and recipes; each with its item count.
    fn content_pages(&self, page: &mut dyn FnMut(RecordType, Vec<u8>, usize)) {
        let contents = ContentPage::encode(self.content_start, &self.content_lens);
        page(RecordType::Contents, contents, self.content_lens.len());
        let logical_len: u64 = self.extents.iter().map(|e| e.len).sum();
        let mut heads = vec![0; self.streams.len()];
        page(
            RecordType::Extents,
            ExtentPage::encode(&self.extents, &mut heads),
            logical_len as usize,
        );
        let made_len: u64 = self.recipes.iter().map(|r| r.len).sum();
        page(
            RecordType::Recipes,
            RecipePage::encode(&self.recipes),
            made_len as usize,
        );
    }

    /// The bytes of the image, forged parts included.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = SuperblockRecord::current().as_bytes().to_vec();
        let mut sections: Vec<(RecordType, u64, Vec<RecordRef>, Vec<u64>)> = Vec::new();
        for raw in self.records() {
            let record = put(
                &mut out,
                raw.record_type,
                raw.codec,
                raw.raw_len,
                &raw.stored,
            );
            match sections
                .iter_mut()
                .find(|s| (s.0, s.1) == (raw.record_type, raw.stream))
            {
                Some(section) => {
                    section.2.push(record);
                    section.3.push(raw.items);
                }
                None => sections.push((raw.record_type, raw.stream, vec![record], vec![raw.items])),
            }
        }
        let mut done: Vec<Section> = Vec::new();
        for (record_type, stream, mut refs, mut items) in sections {
            if let Some((of, edit)) = &self.edit_refs
                && *of == record_type
            {
                edit(&mut refs, &mut items);
            }
            let pages = refs
                .chunks(1024)
                .zip(items.chunks(1024))
                .map(|(refs, items)| {
                    let raw = IndexPage::encode(refs, items);
                    let record = put(
                        &mut out,
                        RecordType::Index,
                        Codec::None,
                        raw.len() as u64,
                        &raw,
                    );
                    let item_count = items.iter().fold(0u64, |sum, i| sum.saturating_add(*i));
                    PageRef {
                        record,
                        record_count: refs.len() as u64,
                        item_count,
                    }
                });
            done.push(Section {
                record_type,
                stream,
                pages: pages.collect(),
            });
        }
        self.seal(out, done)
    }

    fn seal(&self, mut out: Vec<u8>, sections: Vec<Section>) -> Vec<u8> {
        let mut directory = Directory {
            superblock_digest: Digest::of(SuperblockRecord::current().as_bytes()),
            generation: 1,
            previous_footer: 0,
            tree_digest: self.tree_digest,
            name_count: self.name_count,
            streams: self.streams.clone(),
            label: weald_format::label::Label::default(),
            bases: Vec::new(),
            sections,
        };
        if let Some(edit) = &self.edit_directory {
            edit(&mut directory);
        }
        let raw = [directory.encode(), self.directory_tail.clone()].concat();
        let at = out.len();
        let mut record = reference(
            at as u64,
            RecordType::Directory,
            Codec::None,
            raw.len() as u64,
            &raw,
        );
        if let Some(edit) = &self.edit_directory_record {
            edit(&mut record);
        }
        out.extend_from_slice(record.header().as_bytes());
        out.extend_from_slice(&raw);
        let mut footer = Footer {
            generation: directory.generation,
            directory_offset: at as u64,
            directory_len: (out.len() - at) as u64,
            footer_offset: out.len() as u64,
            previous_footer: None,
            image_digest: Digest::of(&out[at..]),
            tree_digest: directory.tree_digest,
        };
        if let Some(edit) = &self.edit_footer {
            edit(&mut footer);
        }
        out.extend_from_slice(footer.encode().as_bytes());
        out
    }
}

fn reference(
    offset: u64,
    record_type: RecordType,
    codec: Codec,
    raw_len: u64,
    stored: &[u8],
) -> RecordRef {
    let stored_len = stored.len() as u64;
    RecordRef {
        record_type,
        codec,
        offset,
        stored_len,
        raw_len,
        digest: Digest::of(stored),
    }
}

fn put(
    out: &mut Vec<u8>,
    record_type: RecordType,
    codec: Codec,
    raw_len: u64,
    stored: &[u8],
) -> RecordRef {
    let record = reference(out.len() as u64, record_type, codec, raw_len, stored);
    out.extend_from_slice(record.header().as_bytes());
    out.extend_from_slice(stored);
    assert_eq!(
        record.stored_len + HEADER_LEN as u64,
        out.len() as u64 - record.offset
    );
    record
}

/// The bytes of `image`, which claims the tree digest `claimed` and whose digests all agree.
pub fn with_tree_digest(image: &[u8], claimed: Digest) -> Vec<u8> {
    let footer_at = image.len() - FOOTER_LEN;
    let footer = Footer::parse(&image[footer_at..], footer_at as u64).expect("a footer");
    let at = footer.directory_offset as usize;
    let (header, stored) = image[at..footer_at].split_at(HEADER_LEN);
    let record = RecordRef::parse_header(header, at as u64).expect("a directory");
    let raw = weald_codec::Decoder::default()
        .decode(record.codec, stored, record.raw_len as usize, None)
        .expect("a directory");
    let mut directory = Directory::parse(&raw).expect("a directory");
    directory.tree_digest = claimed;
    let raw = directory.encode();
    let mut out = image[..at].to_vec();
    put(
        &mut out,
        RecordType::Directory,
        Codec::None,
        raw.len() as u64,
        &raw,
    );
    let footer = Footer {
        directory_len: (out.len() - at) as u64,
        footer_offset: out.len() as u64,
        image_digest: Digest::of(&out[at..]),
        tree_digest: claimed,
        ..footer
    };
    out.extend_from_slice(footer.encode().as_bytes());
    out
}
