//! Hot start: the accesses of a workload are recorded, replayed, and used to lay out hot files
//! first.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weald_builder::{BuildOptions, Order, Silent, build_image};
use weald_format::{ByteLen, ErrorKind};
use weald_image::{DecodeCost, Hotness, Image, Inode, OpenOptions, PrefetchSet};
use weald_testkit::rng::words;

const BLOCK_LEN: u64 = 128 << 10;
const FILE_COUNT: usize = 60;
const FILE_LEN: usize = 100_000;
/// One of every `STEP` files is hot.
const STEP: usize = 6;

fn name(no: usize) -> String {
    format!("dir{}/file {no:02}", no % 4)
}

struct Tree {
    scratch: tempfile::TempDir,
}

impl Tree {
    fn new() -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let tree = Self { scratch };
        for no in 0..FILE_COUNT {
            let path = tree.path("tree").join(name(no));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, words(no as u64 + 1, FILE_LEN)).unwrap();
        }
        std::os::unix::fs::symlink("dir0", tree.path("tree/link")).unwrap();
        // Recipes make this file.
        fs::write(tree.path("tree/text"), words(777, 300_000)).unwrap();
        let gzip = std::process::Command::new("gzip")
            .arg("-n")
            .arg(tree.path("tree/text"))
            .status();
        assert!(gzip.unwrap().success());
        tree
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    fn build(&self, image: &str, options: &BuildOptions) -> PathBuf {
        let path = self.path(image);
        build_image(&self.path("tree"), &path, false, options, &Silent).unwrap();
        path
    }
}

fn options() -> BuildOptions {
    BuildOptions {
        block_len: BLOCK_LEN,
        ..BuildOptions::level(4).unwrap()
    }
}

fn open(path: &Path, cache_len: u64) -> Arc<Image> {
    let options = OpenOptions {
        cache_len: ByteLen(cache_len),
        ..OpenOptions::default()
    };
    Arc::new(Image::open_path(path, 0, &options).unwrap())
}

fn find(image: &Image, path: &str) -> Inode {
    let mut inode = image.root().unwrap();
    for name in path.split('/') {
        inode = image.lookup(inode.ino, name.as_bytes()).unwrap().unwrap();
    }
    inode
}

/// Looks at links and directories and reads some files in its own order, one of them only in the
/// middle.
fn work(image: &Image) {
    assert_eq!(image.read_link(&find(image, "link")).unwrap(), b"dir0");
    let dir = find(image, "dir2");
    let mut count = 0;
    image
        .read_dir(dir.ino, 0, &mut |_, _, _| {
            count += 1;
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(count, FILE_COUNT / 4);
    for no in (0..FILE_COUNT).step_by(STEP).rev() {
        let read = image.read(&find(image, &name(no)), 0, FILE_LEN).unwrap();
        assert!(*read == words(no as u64 + 1, FILE_LEN));
    }
    let read = image.read(&find(image, &name(7)), 50_000, 4096).unwrap();
    assert!(*read == words(8, FILE_LEN)[50_000..54_096]);
    assert!(
        !image
            .read(&find(image, "text.gz"), 0, 10_000)
            .unwrap()
            .is_empty()
    );
}

fn record(path: &Path) -> Hotness {
    let image = open(path, 64 << 20);
    assert_eq!(image.hotness(), None);
    image.record_hotness();
    work(&image);
    image.hotness().unwrap()
}

/// Would catch: blocks or pages that are not recorded, or not replayed.
#[test]
fn after_a_hot_start_nothing_is_decoded() {
    let tree = Tree::new();
    let path = tree.build("a.weald", &options());
    let hotness = record(&path);
    assert_eq!(Hotness::parse(&hotness.to_bytes()).unwrap(), hotness);
    let file = tree.path("hotness");
    fs::write(&file, "what was there before").unwrap();
    hotness.write(&file).unwrap();
    let image = open(&path, 64 << 20);
    let handle = image
        .prefetch(PrefetchSet::Hot(Hotness::open(&file).unwrap()))
        .unwrap();
    let report = handle.wait();
    assert!(report.is_over && report.missing_count == 0, "{report:?}");
    assert!(report.held_len > (FILE_COUNT / STEP * FILE_LEN) as u64);
    let (counts, decoded) = (image.cache_counts(), image.decoded_len());
    work(&image);
    assert_eq!(image.decoded_len(), decoded);
    assert_eq!(image.cache_counts().miss_count, counts.miss_count);
    // The set is smaller than the whole tree; otherwise it would save nothing.
    assert!(decoded.0 < (FILE_COUNT * FILE_LEN) as u64, "{decoded}");
}

/// Would catch: a hotness that works for one image file only.
#[test]
fn hotness_of_one_build_applies_to_another_by_path() {
    let tree = Tree::new();
    let hotness = record(&tree.build("a.weald", &options()));
    fs::remove_file(tree.path("tree").join(name(12))).unwrap();
    fs::write(tree.path("tree").join(name(12)), words(13, FILE_LEN)).unwrap();
    fs::remove_file(tree.path("tree").join(name(18))).unwrap();
    fs::write(tree.path("tree/new"), words(5, 50_000)).unwrap();
    let other = BuildOptions {
        block_len: BLOCK_LEN / 2,
        order: Order::ReversePath,
        ..options()
    };
    let image = open(&tree.build("b.weald", &other), 64 << 20);
    let report = image.prefetch(PrefetchSet::Hot(hotness)).unwrap().wait();
    assert_eq!(report.missing_count, 1, "{report:?}");
    let decoded = image.decoded_len();
    for no in (0..FILE_COUNT).step_by(STEP).filter(|no| *no != 18) {
        image.read(&find(&image, &name(no)), 0, FILE_LEN).unwrap();
    }
    assert_eq!(image.decoded_len(), decoded);
}

/// Would catch: a prefetch that evicts what is being read, or that continues when it is no longer
/// needed.
#[test]
fn a_prefetch_is_bounded_and_stops() {
    let tree = Tree::new();
    let path = tree.build("a.weald", &options());
    let image = open(&path, 2 << 20);
    let handle = image.prefetch(PrefetchSet::All).unwrap();
    let report = handle.wait();
    let len_max = image.cache_counts().len_max;
    assert!(report.held_len >= len_max / 2 && report.held_len <= len_max / 2 + BLOCK_LEN);
    assert!(image.cache_counts().used_len <= len_max);
    drop(handle);
    assert_eq!(
        Arc::strong_count(&image),
        1,
        "no thread refers to the image"
    );
    let image = open(&path, 64 << 20);
    drop(image.prefetch(PrefetchSet::All).unwrap());
    assert_eq!(Arc::strong_count(&image), 1);
    let report = image.prefetch(PrefetchSet::All).unwrap().wait();
    assert_eq!(report.missing_count, 0);
    let decoded = image.decoded_len();
    image.read(&find(&image, &name(3)), 0, FILE_LEN).unwrap();
    assert_eq!(image.decoded_len(), decoded);
}

/// Would catch: a recorder that changes what is decoded.
#[test]
fn recording_changes_nothing() {
    let tree = Tree::new();
    let path = tree.build("a.weald", &options());
    let lens = [false, true].map(|records| {
        let image = open(&path, 64 << 20);
        if records {
            image.record_hotness();
        }
        work(&image);
        assert_eq!(image.hotness().is_some(), records);
        (image.decoded_len(), image.cache_counts().miss_count)
    });
    assert_eq!(lens[0], lens[1]);
}

/// Would catch: positions that the image does not have, from a text that anyone can write.
#[test]
fn missing_positions_are_skipped() {
    let tree = Tree::new();
    let path = tree.build("a.weald", &options());
    let image = open(&path, 64 << 20);
    let digest = image.summary().image_digest;
    let text = format!(
        "weald hotness 1\nimage {digest}\nblock 200 1 1\nblock 0 999999 1\nmade 0 5\nmade 9 \
         99999999\n\
         page entries 88888\npage data 0\nblock 0 0 18446744073709551615\nbase {digest}\nblock 0 \
          1 1\n"
    );
    let hotness = Hotness::parse(text.as_bytes()).unwrap();
    let report = image.prefetch(PrefetchSet::Hot(hotness)).unwrap().wait();
    assert_eq!(report.missing_count, 6);
    assert!(report.held_len >= BLOCK_LEN);
    let error = Hotness::open(&path).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

/// Would catch: a layout that changes the tree, depends on threads, or does not move hot files.
#[test]
fn hot_files_come_first() {
    let tree = Tree::new();
    let path = tree.build("a.weald", &options());
    let hotness = record(&path);
    let mut digests = Vec::new();
    let decoded = [1, 2].map(|threads| {
        let hot = BuildOptions {
            hot_paths: hotness.paths().map(<[u8]>::to_vec).collect(),
            threads,
            ..options()
        };
        let image = open(&tree.build(&format!("hot{threads}.weald"), &hot), 64 << 20);
        digests.push(image.summary().image_digest);
        let read = |no: &usize| find(&image, &name(*no)).content.unwrap().0;
        let hot: Vec<usize> = (0..FILE_COUNT).step_by(STEP).rev().chain([7]).collect();
        let ids: Vec<u64> = hot.iter().map(read).collect();
        assert!(ids.is_sorted(), "not in the order of first access: {ids:?}");
        assert_eq!(
            image.summary().tree_digest,
            open(&path, 0).summary().tree_digest
        );
        decoded_for_hot_files(&image)
    });
    assert_eq!(digests[0], digests[1]);
    let before = decoded_for_hot_files(&open(&path, 64 << 20));
    assert!(decoded[0] * 10 < before * 9, "{} {before}", decoded[0]);
}

/// Bytes decoded for all hot files together.
fn decoded_for_hot_files(image: &Image) -> u64 {
    let mut cost = DecodeCost::default();
    for no in (0..FILE_COUNT).step_by(STEP).rev() {
        let content = find(image, &name(no)).content.unwrap();
        image
            .add_decode_cost(content, 0..FILE_LEN as u64, &mut cost)
            .unwrap();
    }
    cost.decoded_len()
}
