//! Damaged images: what a salvage says is lost is exactly what its result lacks, and everything
//! whose bytes are left comes back.

use crate::support::*;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weald_builder::{BuildOptions, CodecSpec, Lost, Salvaged, Silent, salvage};
use weald_format::container::{Codec, HEADER_LEN, RecordRef, RecordType};
use weald_format::pages::Source;
use weald_format::{Attributes, ContentId, Digest, FileKind, InodeNo, Timestamp, XattrSet};
use weald_image::{CheckOptions, Damaged, Finding, Image, Inode, OpenOptions, Survey};
use weald_testkit::Rng;

/// What a reader sees of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    kind: FileKind,
    attributes: Attributes,
    mtime: Timestamp,
    xattrs: XattrSet,
    target: Vec<u8>,
    content: Option<Digest>,
    ino: u64,
}

type Tree = BTreeMap<Vec<u8>, Seen>;

/// Everything below the root, read completely.
fn read_tree(image: &Image) -> Tree {
    let mut used = vec![false; image.summary().content_count as usize];
    let mut inodes: Vec<(Vec<u8>, Inode)> = vec![(Vec::new(), image.root().unwrap())];
    let mut pending = vec![(Vec::new(), InodeNo(1))];
    while let Some((path, dir)) = pending.pop() {
        for (name, inode) in same::list(image, dir) {
            let path = match &*path {
                b"" => name.clone(),
                _ => [&*path, b"/", &name].concat(),
            };
            if inode.kind == FileKind::Directory {
                pending.push((path.clone(), inode.name_no));
            }
            if let Some(id) = inode.content {
                used[id.0 as usize] = true;
            }
            inodes.push((path, inode));
        }
    }
    let digests = image.content_digests_of(&used, 1).unwrap();
    let seen = |inode: Inode| Seen {
        kind: inode.kind,
        attributes: inode.attributes,
        mtime: inode.times.mtime,
        xattrs: image.xattrs(&inode).unwrap().as_ref().clone(),
        target: match inode.kind {
            FileKind::Symlink => image.read_link(&inode).unwrap(),
            _ => Vec::new(),
        },
        content: inode.content.map(|id| digests[id.0 as usize].unwrap()),
        ino: inode.ino.0,
    };
    let seen = inodes.into_iter().map(|(path, inode)| (path, seen(inode)));
    seen.collect()
}

/// A whole image, and what is known about it.
struct Whole {
    name: &'static str,
    bytes: Vec<u8>,
    tree: Tree,
    records: Vec<RecordRef>,
    /// Of each content: its digest, and the blocks that it needs; `None` if that is not known.
    contents: Vec<(Digest, Option<BTreeSet<u64>>)>,
    options: OpenOptions,
    /// The trees of its generations, the oldest first.
    generations: Vec<Tree>,
}

impl Whole {
    fn open(name: &'static str, path: &Path) -> Self {
        let options = OpenOptions {
            base_dirs: vec![path.parent().unwrap().to_owned()],
            reads_everything: true,
            ..OpenOptions::default()
        };
        let bytes = std::fs::read(path).unwrap();
        let image = Image::open(Arc::new(bytes.clone()), &options).unwrap();
        let survey = Survey::of(&bytes, &mut |_| ControlFlow::Continue(())).unwrap();
        assert_eq!(survey.damaged, [], "{name}");
        let digests = image.content_digests(2).unwrap();
        let needs = Needs::of(&image);
        let ids = (0..digests.len()).map(|id| ContentId(id as u64));
        let contents = digests
            .iter()
            .zip(ids)
            .map(|(digest, id)| (*digest, needs.of_content(&image, id)))
            .collect();
        Self {
            name,
            generations: generations(&bytes, &options),
            tree: read_tree(&image),
            records: survey.records.iter().map(|r| r.record).collect(),
            contents,
            bytes,
            options,
        }
    }
}

impl Whole {
    /// The second copies of the last generation.
    fn copies(&self) -> Option<&RecordRef> {
        let directory = self.records.last()?.offset;
        let mut records = self.records.iter();
        records.find(|r| r.record_type == RecordType::Copies && r.end() == directory)
    }

    /// Whether there are second copies, and damage to `range` leaves all of them whole.
    fn keeps_copies(&self, range: &Range<u64>) -> bool {
        let mut copies = self.records.iter();
        let is_hit = |r: &RecordRef| {
            let is_copy = r.record_type == RecordType::Copies;
            is_copy && range.start < r.end() && r.offset < range.end
        };
        self.copies().is_some() && !copies.any(is_hit)
    }
}

/// The trees of all generations, the oldest first.
fn generations(bytes: &[u8], options: &OpenOptions) -> Vec<Tree> {
    let last = Image::open(Arc::new(bytes.to_vec()), options).unwrap();
    let tree = |number| {
        let options = OpenOptions {
            generation: Some(number),
            ..options.clone()
        };
        read_tree(&Image::open(Arc::new(bytes.to_vec()), &options).unwrap())
    };
    (1..=last.summary().generation).map(tree).collect()
}

/// The blocks of each stream, with the addresses of their bytes.
struct Needs(Vec<Vec<(Range<u64>, RecordRef)>>);

impl Needs {
    fn of(image: &Image) -> Self {
        let count = image.directory().streams.len();
        let blocks = |stream| {
            let (mut blocks, mut at) = (Vec::new(), 0);
            let taken = image.each_record(RecordType::Data, stream, &mut |record, len| {
                blocks.push((at..at + len, *record));
                at += len;
                Ok(())
            });
            taken.unwrap();
            blocks
        };
        Self((0..count as u8).map(blocks).collect())
    }

    /// Offsets of the blocks that a content needs; `None` if they need others, or lie elsewhere.
    fn of_content(&self, image: &Image, id: ContentId) -> Option<BTreeSet<u64>> {
        let mut needed = BTreeSet::new();
        let mut is_known = true;
        let visited = image.each_extent_of(id, &mut |extent| {
            let Source::Stream { stream, address } = extent.source else {
                return Ok(());
            };
            let range = address..address + extent.len;
            if image.has_recipe_output(stream) {
                for input in image.recipe_inputs_of(id)? {
                    match self.of_content(image, input) {
                        Some(blocks) => needed.extend(blocks),
                        None => is_known = false,
                    }
                }
                return Ok(());
            }
            let blocks = self.0[usize::from(stream)].iter();
            let blocks = blocks.filter(|(b, _)| b.start < range.end && range.start < b.end);
            let before = needed.len();
            for (_, record) in blocks {
                is_known &= record.codec != Codec::ZstdHistory;
                needed.insert(record.offset);
            }
            is_known &= needed.len() > before || image.base_of(stream).is_none();
            Ok(())
        });
        visited.unwrap();
        is_known.then_some(needed)
    }
}

/// Damages `bytes`; returns what was done, and the range of the whole image that is not as it was.
fn damage(rng: &mut Rng, whole: &Whole, bytes: &mut Vec<u8>) -> (String, Range<u64>) {
    let len = bytes.len();
    let at = match rng.below(4) {
        // Anywhere.
        0 => rng.below(len as u64) as usize,
        // Near the end, where the index is.
        1 => len - 1 - rng.below(2000.min(len as u64)) as usize,
        // In a record that is no block: these are few.
        2 => {
            let others: Vec<&RecordRef> = whole.records.iter().collect();
            let is_data = |r: &&&RecordRef| r.record_type == RecordType::Data;
            let others: Vec<_> = others.iter().filter(|r| !is_data(r)).collect();
            let record = rng.pick(&others);
            record.offset as usize + rng.below(record.end() - record.offset) as usize
        }
        _ => {
            let record = *rng.pick(&whole.records);
            record.offset as usize + rng.below(2 * HEADER_LEN as u64) as usize
        }
    };
    let at = at.min(len - 1);
    let kind = rng.below(8);
    let (what, end) = match kind {
        0..4 => {
            let end = (at + 16).min(len);
            rng.bytes(end - at)
                .iter()
                .zip(&mut bytes[at..end])
                .for_each(|(b, to)| *to = *b);
            ("16 bytes overwritten", end)
        }
        4..7 => {
            let longest = *rng.pick(&[64, 512, 4096, 65536]);
            let end = (at + 1 + rng.below(longest) as usize).min(len);
            bytes[at..end].fill(0);
            ("zeroed", end)
        }
        _ => {
            let at = if rng.one_in(2) {
                len - 1 - rng.below(300) as usize
            } else {
                at
            };
            bytes.truncate(at);
            let what = format!("{}: cut at {at} of {len}", whole.name);
            return (what, at as u64..len as u64);
        }
    };
    let what = format!("{}: bytes {at} to {end} of {len} {what}", whole.name);
    (what, at as u64..end as u64)
}

/// The outcome of a salvage.
struct Outcome {
    salvaged: Salvaged,
    tree: Tree,
    lost: Vec<(Vec<u8>, Lost)>,
    /// The generation, if a newer one is lost.
    older: Option<u64>,
}

fn salvage_bytes(bytes: &[u8], options: &OpenOptions) -> weald_format::Result<Outcome> {
    let source = Arc::new(bytes.to_vec());
    let damaged = Damaged::open(source, options, &mut |_| ControlFlow::Continue(()))?;
    let (digests, _) = damaged.image.left_content_digests(1);
    let lost = RefCell::new(Vec::new());
    let tell = |path: &[u8], what| lost.borrow_mut().push((path.to_vec(), what));
    let salvaged = salvage(&damaged, &digests, &tell, options, &Silent)?;
    Ok(Outcome {
        tree: read_tree(&salvaged.image),
        salvaged,
        lost: lost.into_inner(),
        older: (damaged.behind_len > 0).then(|| damaged.image.summary().generation),
    })
}

fn parent(path: &[u8]) -> &[u8] {
    let slash = path.iter().rposition(|&b| b == b'/');
    slash.map_or(b"", |slash| &path[..slash])
}

/// Compares what a salvage said with what its result lacks.
fn judge_losses(what: &str, whole: &Tree, outcome: &Outcome) {
    let claims: BTreeSet<(&[u8], String)> = outcome
        .lost
        .iter()
        .map(|(path, lost)| (&**path, format!("{lost:?}")))
        .collect();
    let claims_of = |path: &[u8], lost: Lost| claims.contains(&(path, format!("{lost:?}")));
    let mut nameless: BTreeMap<&[u8], u64> = BTreeMap::new();
    let result = &outcome.tree;
    for (path, seen) in whole {
        let shown = String::from_utf8_lossy(path);
        let Some(found) = result.get(path) else {
            assert!(!path.is_empty(), "{what}: no root");
            let above = parent(path);
            if !result.contains_key(above) || claims_of(path, Lost::Content) {
                continue;
            }
            *nameless.entry(above).or_default() += 1;
            continue;
        };
        assert!(
            !claims_of(path, Lost::Content),
            "{what}: {shown} is there, and called lost"
        );
        let same = |is_same: bool, lost: Lost| {
            assert!(
                is_same || claims_of(path, lost),
                "{what}: {shown}: {lost:?} differs in silence: {seen:?} {found:?}"
            );
        };
        assert_eq!(seen.kind, found.kind, "{what}: {shown}");
        assert_eq!(seen.content, found.content, "{what}: {shown}");
        assert_eq!(seen.target, found.target, "{what}: {shown}");
        // The attributes of a root whose entry is lost include all that its entry had.
        let is_lost_root = path.is_empty() && claims_of(b"", Lost::Attributes);
        let is_private = claims_of(path, Lost::Xattrs) && found.attributes.permissions & 0o77 == 0;
        same(
            is_private || seen.attributes == found.attributes,
            Lost::Attributes,
        );
        same(is_lost_root || seen.mtime == found.mtime, Lost::Mtime);
        same(is_lost_root || seen.xattrs == found.xattrs, Lost::Xattrs);
        if seen.kind != FileKind::Directory && !claims_of(path, Lost::Link) {
            let linked = |tree: &Tree, ino| -> BTreeSet<Vec<u8>> {
                let names = tree.iter().filter(|(name, seen)| {
                    seen.ino == ino && result.contains_key(*name) && !claims_of(name, Lost::Link)
                });
                names.map(|(name, _)| name.clone()).collect()
            };
            if linked(whole, seen.ino).len() > 1 || linked(result, found.ino).len() > 1 {
                let (before, after) = (linked(whole, seen.ino), linked(result, found.ino));
                assert_eq!(before, after, "{what}: {shown}: links");
            }
        }
    }
    // As many names of a directory are missing as were called lost.
    let mut called: BTreeMap<&[u8], u64> = BTreeMap::new();
    for (path, lost) in &outcome.lost {
        assert!(
            result.contains_key(path) || *lost == Lost::Content,
            "{what}: {lost:?} of a path that is not there"
        );
        match lost {
            Lost::Entries(count) => *called.entry(path).or_default() += count,
            Lost::Directory => {
                let below = whole
                    .keys()
                    .filter(|p| !p.is_empty() && parent(p) == &**path);
                *called.entry(path).or_default() += below.count() as u64;
            }
            _ => {}
        }
    }
    called.retain(|path, count| *count > 0 && whole.contains_key(*path));
    assert_eq!(
        nameless, called,
        "{what}: names that are missing, and called lost"
    );
    assert_eq!(
        outcome.salvaged.is_complete,
        outcome.lost.is_empty() && outcome.older.is_none(),
        "{what}: {:?}",
        outcome.lost
    );
}

/// Checks that everything whose bytes are left is in the result.
fn judge_completeness(what: &str, whole: &Whole, range: &Range<u64>, outcome: &Outcome) {
    let is_hit = |start: u64, end: u64| range.start < end && start < range.end;
    let hit: Vec<&RecordRef> = whole
        .records
        .iter()
        .filter(|r| is_hit(r.offset, r.end()))
        .collect();
    let hit_types: BTreeSet<RecordType> = hit.iter().map(|r| r.record_type).collect();
    let needs_all = [
        RecordType::Contents,
        RecordType::Extents,
        RecordType::Recipes,
        RecordType::Dictionary,
    ];
    let index_count = hit
        .iter()
        .filter(|r| r.record_type == RecordType::Index)
        .count();
    if needs_all.iter().any(|t| hit_types.contains(t))
        || (index_count > 1 && !whole.keeps_copies(range))
    {
        return;
    }
    let hit_blocks: BTreeSet<u64> = hit.iter().map(|r| r.offset).collect();
    let found: BTreeSet<Digest> = outcome
        .tree
        .values()
        .filter_map(|seen| seen.content)
        .collect();
    let has_tree = hit_types.iter().all(|t| {
        matches!(
            t,
            RecordType::Data | RecordType::Index | RecordType::Directory | RecordType::Copies
        )
    });
    let wanted: BTreeSet<Digest> = whole.tree.values().filter_map(|s| s.content).collect();
    for (digest, needed) in whole.contents.iter().filter(|(d, _)| wanted.contains(d)) {
        let Some(needed) = needed else { continue };
        if !needed.is_disjoint(&hit_blocks) {
            continue;
        }
        assert!(
            found.contains(digest),
            "{what}: intact content {digest} is missing"
        );
        if !has_tree {
            continue;
        }
        for (path, seen) in whole
            .tree
            .iter()
            .filter(|(_, s)| s.content == Some(*digest))
        {
            let is_there = outcome
                .tree
                .get(path)
                .is_some_and(|f| f.content == seen.content);
            assert!(
                is_there,
                "{what}: {} is missing",
                String::from_utf8_lossy(path)
            );
        }
    }
    if hit_types.iter().all(|t| {
        matches!(
            t,
            RecordType::Index | RecordType::Directory | RecordType::Copies
        )
    }) {
        assert!(outcome.lost.is_empty(), "{what}: {:?}", outcome.lost);
        assert_eq!(outcome.tree, whole.tree, "{what}");
    }
}

/// Options of many kinds: codecs, block lengths, dictionaries, kept digests, times.
fn profiles() -> Vec<(&'static str, BuildOptions)> {
    let level = |level| BuildOptions {
        block_len: 32 << 10,
        memory_len: 512 << 20,
        threads: 1,
        ..BuildOptions::level(level).unwrap()
    };
    let mut interactive = level(5);
    interactive.make_interactive();
    let with_fsverity = BuildOptions {
        keep_fsverity: true,
        keep_atime: true,
        ..level(1)
    };
    let large = BuildOptions {
        memory_len: 512 << 20,
        ..BuildOptions::level(3).unwrap()
    };
    vec![
        ("level 0", level(0)),
        ("level 1 with fs-verity", with_fsverity),
        ("level 7", level(7)),
        ("level 9", level(9)),
        ("interactive", interactive),
        ("large blocks", large),
    ]
}

/// Names that fill more than one block of entries, and directories that fill more than one page.
fn make_wide(source: &Path) {
    for n in 0..4500u32 {
        let name = format!("{n:05}{}", "long".repeat(60));
        std::fs::write(source.join("d").join(name), []).unwrap();
    }
    for n in 0..4200u32 {
        let dir = source.join(format!("wide/{}", n % 40)).join(n.to_string());
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("number"), format!("{n}\n")).unwrap();
    }
}

fn images(scratch: &Scratch) -> Vec<Whole> {
    let source = scratch.dir("source");
    let image = |name: &str| -> PathBuf { scratch.path().join(name) };
    make_all_kinds(&source);
    std::fs::remove_file(source.join("huge")).unwrap();
    let mut all = Vec::new();
    for (name, options) in profiles() {
        let path = image(&name.replace(' ', "-"));
        build(&source, &path, &options);
        all.push(Whole::open(name, &path));
    }
    let (_, options) = profiles().swap_remove(1);
    let append = BuildOptions {
        append: true,
        allow_removal: true,
        keep_fsverity: false,
        ..options.clone()
    };
    let path = image("generations");
    build(&source, &path, &options);
    shell(
        &source,
        "rm -r d/text1*; cp d/text2 d/new; date > e; touch d/text3",
    );
    build(&source, &path, &append);
    build(&source, &image("base"), &options);
    let based = BuildOptions {
        bases: vec![image("base")],
        ..options.clone()
    };
    shell(&source, "mkdir f; seq 20000 > f/numbers; seq 10 > f/few");
    build(&source, &image("based"), &based);
    build(&source, &path, &append);
    let few = scratch.dir("few");
    shell(
        &few,
        "cp -a ../source/d/text2* ../source/all.gz .; mkdir e; ln text2 e/two",
    );
    build(&few, &image("small"), &options);
    let small = Whole::open("small", &image("small"));
    assert!(small.copies().is_none(), "{} bytes", small.bytes.len());
    all.push(small);
    all.push(Whole::open("generations", &path));
    all.push(Whole::open("based", &image("based")));
    make_wide(&source);
    let (_, options) = profiles().swap_remove(0);
    build(&source, &image("wide"), &options);
    all.push(Whole::open("wide", &image("wide")));
    all
}

/// Places of each image that are damaged.
const PLACES: u64 = 40;

/// Would catch: a file that is written with wrong bytes, or is missing and not named; a file that
/// is called lost and is there; a content whose bytes are left, and which does not come back.
#[test]
fn what_is_called_lost_is_what_is_missing() {
    let scratch = Scratch::tmpfs("512m");
    let mut rng = Rng::from_environment();
    let (mut count, mut lost_count, mut refused_count) = (0, 0, 0);
    for whole in images(&scratch) {
        let places = if whole.name == "wide" {
            PLACES / 2
        } else {
            PLACES
        };
        let undamaged = salvage_bytes(&whole.bytes, &whole.options).unwrap();
        assert_eq!(undamaged.lost, [], "{}", whole.name);
        assert_eq!(undamaged.tree, whole.tree, "{}", whole.name);
        for _ in 0..places {
            let mut bytes = whole.bytes.clone();
            let (mut what, range) = damage(&mut rng, &whole, &mut bytes);
            let hit = whole.records.iter();
            let hit = hit.filter(|r| range.start < r.end() && r.offset < range.end);
            let hit: Vec<_> = hit.map(|r| (r.record_type.name(), r.offset)).collect();
            what = format!("{what}: {hit:?}");
            judge_readers(&what, &whole, &range, &bytes);
            let outcome = match salvage_bytes(&bytes, &whole.options) {
                Ok(outcome) => outcome,
                Err(error) => {
                    judge_refusal(&what, &whole, &range, &error);
                    refused_count += 1;
                    continue;
                }
            };
            if let Some(number) = outcome.older {
                judge_losses(&what, &whole.generations[number as usize - 1], &outcome);
                continue;
            }
            judge_losses(&what, &whole.tree, &outcome);
            judge_completeness(&what, &whole, &range, &outcome);
            count += 1;
            lost_count += u64::from(!outcome.lost.is_empty());
        }
    }
    println!("{count} damages, {lost_count} with losses, {refused_count} without a directory");
    assert!(count >= 200 && lost_count >= 50, "{count} {lost_count}");
}

/// Nothing comes back only if the directory is damaged.
fn judge_refusal(what: &str, whole: &Whole, range: &Range<u64>, error: &weald_format::Error) {
    let directories = whole.records.iter();
    let mut directories = directories.filter(|r| r.record_type == RecordType::Directory);
    let is_hit = |r: &RecordRef| range.start < r.end() && r.offset < range.end;
    assert!(directories.any(is_hit), "{what}: {error}");
    assert!(!whole.keeps_copies(range), "{what}: {error}");
}

/// Compares what a check and a reader say with what was damaged: a check calls nothing clean that
/// is not, and what has a second copy is read.
fn judge_readers(what: &str, whole: &Whole, range: &Range<u64>, bytes: &[u8]) {
    if bytes == whole.bytes {
        return;
    }
    let is_hit = |r: &&RecordRef| range.start < r.end() && r.offset < range.end;
    let hit: BTreeSet<RecordType> = whole
        .records
        .iter()
        .filter(is_hit)
        .map(|r| r.record_type)
        .collect();
    let copied = [RecordType::Index, RecordType::Directory, RecordType::Copies];
    let is_cut = bytes.len() < whole.bytes.len();
    let last_directory = whole.records.last().unwrap().offset;
    // What belongs to older generations alone has no copies in the last one.
    let is_old = whole.generations.len() > 1 && range.start < last_directory;
    let has_copy = whole.keeps_copies(range)
        && hit.iter().all(|t| copied.contains(t))
        && !(is_cut && whole.generations.len() > 1 && bytes.len() as u64 <= footer_at(whole))
        && !is_old;
    let image = match Image::open(Arc::new(bytes.to_vec()), &whole.options) {
        Ok(image) => image,
        Err(error) => {
            assert!(!has_copy, "{what}: {error}");
            return;
        }
    };
    if has_copy {
        assert_eq!(read_tree(&image), whole.tree, "{what}");
    }
    let options = CheckOptions {
        digests_only: false,
        threads: 1,
        path_count_max: 10,
    };
    let report = image.check(&options, &mut |_| ());
    let is_same = image.summary().tree_digest == whole_digest(whole);
    assert!(
        !report.is_clean() || is_old || !is_same,
        "{what}: a damaged image is called clean"
    );
}

fn footer_at(whole: &Whole) -> u64 {
    whole.bytes.len() as u64 - 128
}

fn whole_digest(whole: &Whole) -> Digest {
    let image = Image::open(Arc::new(whole.bytes.clone()), &whole.options).unwrap();
    image.summary().tree_digest
}

/// The rules that a check of `bytes` names.
fn rules_of(bytes: &[u8]) -> BTreeSet<String> {
    let image = Image::open(Arc::new(bytes.to_vec()), &OpenOptions::default()).unwrap();
    let options = CheckOptions {
        digests_only: true,
        threads: 1,
        path_count_max: 10,
    };
    let mut rules = BTreeSet::new();
    image.check(&options, &mut |finding| {
        if let Finding::Structure(error) = finding {
            rules.insert(error.place().unwrap().rule.to_owned());
        }
    });
    rules
}

/// Would catch: damage to copies, or to what only a copy has, of which a check says nothing; copies
/// that take more than their share, or lie beside their originals.
#[test]
fn second_copies_are_checked_and_keep_to_their_share() {
    let scratch = Scratch::tmpfs("512m");
    let image = scratch.path().join("image");
    for (len, has_copies) in [(200_000, false), (300_000, true), (90_000_000, true)] {
        let source = scratch.dir(&len.to_string());
        std::fs::write(source.join("noise"), noise(1, len)).unwrap();
        build(&source, &image, &quick());
        let whole = Whole::open("copies", &image);
        let copies = whole.copies();
        assert_eq!(copies.is_some(), has_copies, "{len}");
        let Some(copies) = copies else { continue };
        let share = (whole.bytes.len() as u64 / 1000).max(4096);
        let taken = copies.end() - copies.offset;
        assert!(
            taken <= share && taken >= share.min(65_536),
            "{len}: {taken}"
        );
        assert_eq!(rules_of(&whole.bytes), BTreeSet::new());
        let directory = whole.records.last().unwrap().offset as usize;
        let footer = whole.bytes.len() - 128;
        // The header of the copies, their first bytes, zeros that fill them up, their length.
        let offset = copies.offset as usize;
        for at in [
            offset + 5,
            offset + 64,
            offset + 300,
            directory - 200,
            directory - 5,
        ] {
            let mut bytes = whole.bytes.clone();
            bytes[at] ^= 1;
            let rules = rules_of(&bytes);
            let is_told = rules.contains("F-34.1") || rules.contains("F-7.11");
            assert!(is_told, "{len}: byte {at}: {rules:?}");
        }
        for at in [9, directory + 70, footer + 20] {
            let mut bytes = whole.bytes.clone();
            bytes[at] ^= 1;
            let expected = BTreeSet::from(["F-34.2".to_owned()]);
            assert_eq!(rules_of(&bytes), expected, "{len}: byte {at}");
        }
    }
}

/// Would catch: an image inside an image that is taken for it, when the header before it is lost.
#[test]
fn an_image_in_an_image_is_not_taken_for_it() {
    let scratch = Scratch::tmpfs("256m");
    let (inner, outer) = (scratch.dir("inner"), scratch.dir("outer"));
    std::fs::write(inner.join("noise"), noise(2, 400_000)).unwrap();
    std::fs::write(inner.join("name"), "inner").unwrap();
    let uncompressed = BuildOptions {
        codec: CodecSpec::None,
        ..quick()
    };
    build(&inner, &outer.join("inner.weald"), &uncompressed);
    std::fs::write(outer.join("other"), text(3, 10_000)).unwrap();
    let image = scratch.path().join("image");
    build(&outer, &image, &uncompressed);
    let whole = Whole::open("outer", &image);
    for record in whole
        .records
        .iter()
        .filter(|r| r.record_type == RecordType::Data)
    {
        let mut bytes = whole.bytes.clone();
        bytes[record.offset as usize + 9] ^= 1;
        let outcome = salvage_bytes(&bytes, &whole.options).unwrap();
        judge_losses("outer", &whole.tree, &outcome);
        assert!(!outcome.tree.contains_key(&b"name"[..]));
    }
}
