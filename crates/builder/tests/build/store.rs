//! Images built into a store: each has its own tree, shares data with other images, and keeps no
//! data that its tree does not use.

use crate::support::*;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use weald_builder::{
    Added, BuildOptions, Layer, ReencodeOptions, Reencoded, Silent, StoreSource, StoreTarget,
    build_into_store, reencode,
};
use weald_format::ErrorKind;
use weald_image::{Image, OpenOptions};
use weald_io::ReadAt;
use weald_store::disk::HostDisk;
use weald_store::{CollectOptions, Store, StoreWriter, StoredImage, WriteOptions};

fn options() -> BuildOptions {
    let mut options = BuildOptions {
        block_len: 64 << 10,
        memory_len: 192 << 20,
        ..quick()
    };
    options.categories.deflate = true;
    options
}

struct TestStore {
    dir: PathBuf,
    store: Store,
}

impl TestStore {
    fn new(dir: PathBuf) -> Self {
        let disk = Arc::new(HostDisk::new(&dir));
        let store = Store::create(disk, [7; 16], 1 << 20).unwrap();
        Self { dir, store }
    }

    /// A process that another test starts inherits the released lock until it executes its program;
    /// wait for that.
    fn writer(&self) -> StoreWriter {
        let begin = Instant::now();
        loop {
            match self.store.write(WriteOptions::new("the test")) {
                Err(error) if error.kind() == ErrorKind::Busy => {
                    assert!(begin.elapsed() < Duration::from_secs(60), "{error}");
                    std::thread::yield_now();
                }
                writer => return writer.unwrap(),
            }
        }
    }

    fn try_add(
        &self,
        source: &Path,
        name: &str,
        like: Option<&str>,
    ) -> weald_format::Result<Added> {
        let target = StoreTarget {
            writer: self.writer(),
            dir: &self.dir,
            name,
            like,
        };
        let observer = Meddler::new(|_| ());
        let layers = [Layer::plain(source)];
        let source = StoreSource::Layers(&layers);
        let added = build_into_store(source, target, &options(), &observer)?;
        assert_eq!(observer.lines(), Vec::<String>::new());
        Ok(added)
    }

    fn add(&self, source: &Path, name: &str) -> Added {
        self.try_add(source, name, None).unwrap()
    }

    /// Writes the image as a file.
    fn export(&self, name: &str) -> PathBuf {
        let image = StoredImage::open(self.store.clone(), name).unwrap();
        let mut bytes = vec![0; image.len() as usize];
        image.read_exact_at(&mut bytes, 0).unwrap();
        let path = self.dir.with_extension(name);
        fs::write(&path, bytes).unwrap();
        path
    }

    fn is_clean(&self) -> bool {
        let checked = self.writer().check(true, &mut |_| {}).unwrap();
        assert!(checked.findings.is_empty(), "{:?}", checked.findings);
        true
    }

    /// Changes the files with digests of contents, of which there must be one at least.
    fn change_digests(&self, change: &dyn Fn(&Path)) {
        let files = fs::read_dir(self.dir.join("images")).unwrap();
        let paths = files.map(|file| file.unwrap().path());
        let is_one = |path: &PathBuf| path.to_string_lossy().ends_with(".digests");
        let found: Vec<PathBuf> = paths.filter(is_one).collect();
        assert_eq!(
            found.len(),
            1,
            "one image of those that continue each other"
        );
        found.iter().for_each(|path| change(path));
    }

    fn reencode(&self) -> Reencoded {
        let options = ReencodeOptions::default();
        reencode(self.writer(), &options, &Silent).unwrap().1
    }

    fn segments_len(&self) -> u64 {
        self.store
            .info(&mut |e| panic!("{e}"))
            .unwrap()
            .0
            .segments_len
    }

    fn collect(&self) {
        let mut writer = self.writer();
        let never_cancelled = &mut |_: &_| std::ops::ControlFlow::Continue(());
        writer
            .collect(&CollectOptions::default(), never_cancelled)
            .unwrap();
    }
}

/// Changes to a tree of all kinds of files after [`CHANGES`], one version after the other.
const LATER_CHANGES: [&str; 2] = [
    "rm -r d; rm -f noise* ls.gz",
    "gzip -c /bin/ls > ls.gz; head -c 300000 /dev/urandom > noise3; cp -a e d",
];

/// Would catch: contents, blocks or metadata of another version; a needed block replaced by zeros;
/// an image that depends on another image of the store.
#[test]
fn every_version_is_an_image_of_its_own() {
    let scratch = Scratch::tmpfs("512m");
    let source = scratch.dir("source");
    let ground = TestStore::new(scratch.path().join("store"));
    make_all_kinds(&source);
    let mut copies = Vec::new();
    let changes = [CHANGES, LATER_CHANGES].concat();
    for number in 0..=changes.len() {
        if let Some(change) = number.checked_sub(1).and_then(|no| changes.get(no)) {
            shell(&source, change);
        }
        // A build needs no digests of contents: they may be missing or damaged.
        match number {
            2 => ground.change_digests(&|path| fs::remove_file(path).unwrap()),
            3 => ground.change_digests(&|path| {
                let mut bytes = fs::read(path).unwrap();
                let middle = bytes.len() / 2;
                bytes[middle] ^= 1;
                fs::write(path, bytes).unwrap();
            }),
            _ => {}
        }
        let name = format!("v{number}");
        let added = ground.add(&source, &name);
        let like = number.checked_sub(1).map(|before| format!("v{before}"));
        assert_eq!(added.like, like);
        assert_eq!(added.report.generation, 1);
        let anew = scratch.path().join("anew");
        let built = build(&source, &anew, &options());
        assert_eq!(built.tree_digest, added.report.tree_digest);
        let copy = scratch.path().join(format!("copy{number}"));
        shell(
            scratch.path().as_path(),
            &format!("cp -a --sparse=always source copy{number}"),
        );
        copies.push((name, copy, added.report.image_digest));
    }
    let assert_all = |range: std::ops::Range<usize>| {
        for (name, copy, digest) in &copies[range] {
            let file = ground.export(name);
            // Every content decodes and every digest is right, used or not.
            assert_eq!(open_checked(&file).summary().image_digest, *digest);
            let found = differences(&open_checked(&file), copy);
            assert!(found.is_empty(), "{name}: {found:#?}");
        }
    };
    assert_all(0..copies.len());
    assert!(ground.is_clean());
    // The remaining images need nothing of the removed ones.
    for name in ["v0", "v1", "v2"] {
        ground.writer().remove(name, false).unwrap();
        ground.collect();
        assert!(ground.is_clean());
    }
    assert_all(3..copies.len());
}

/// Would catch: a version that stores data of the previous one again, or that keeps data that only
/// the previous one needs.
#[test]
fn a_version_takes_what_is_new_in_it_and_keeps_no_more() {
    let scratch = Scratch::tmpfs("512m");
    let source = scratch.dir("source");
    let ground = TestStore::new(scratch.path().join("store"));
    for no in 0..40 {
        fs::write(source.join(format!("file{no}")), noise(no, 200_000)).unwrap();
    }
    let first = ground.add(&source, "first");
    assert!(first.imported.new_len > 8_000_000);
    // Half of the files are removed; one file gets a new middle.
    for no in 20..40 {
        fs::remove_file(source.join(format!("file{no}"))).unwrap();
    }
    let mut changed = noise(3, 200_000);
    changed[100_000..110_000].copy_from_slice(&noise(99, 10_000));
    fs::write(source.join("file3"), changed).unwrap();
    let second = ground.add(&source, "second");
    let new_len = second.imported.new_len;
    assert!(new_len < 60_000, "{new_len} bytes for 10,000 new ones");
    let image_len = second.imported.image_len;
    assert!((4_000_000..4_600_000).contains(&image_len), "{image_len}");
    // The same tree gives the same image.
    let third = ground.add(&source, "third");
    assert_eq!(third.report.image_digest, second.report.image_digest);
    assert_eq!(third.imported.new_len, 0);
    ground.writer().remove("first", false).unwrap();
    ground.collect();
    let (info, _) = ground.store.info(&mut |e| panic!("{e}")).unwrap();
    assert!(info.segments_len < 5_500_000, "{}", info.segments_len);
    assert!(ground.is_clean());
    assert_same(&ground.export("second"), &source);
}

/// `data` with other bytes in its middle.
fn edited(mut data: Vec<u8>) -> Vec<u8> {
    let middle = data.len() / 2;
    data[middle..middle + 100].fill(7);
    data
}

/// Would catch: a build that decodes all of the image that it continues for the repeats of a few
/// files; a changed, moved or renamed file whose repeats are missed; repeats that are missed
/// although most of the tree is new.
#[test]
fn a_version_decodes_what_its_new_files_may_repeat() {
    let scratch = Scratch::tmpfs("512m");
    let source = scratch.dir("source");
    let ground = TestStore::new(scratch.path().join("store"));
    let path = |no: u64| source.join(format!("d{}/file{no:02}", no / 10));
    for no in 0..100 {
        fs::create_dir_all(path(no).parent().unwrap()).unwrap();
        fs::write(path(no), noise(no, 100_000)).unwrap();
    }
    assert_eq!(ground.add(&source, "first").report.old_decoded_len, 0);
    fs::create_dir(source.join("new")).unwrap();
    fs::write(path(3), edited(noise(3, 100_000))).unwrap();
    fs::write(source.join("new/file17"), edited(noise(17, 100_000))).unwrap();
    fs::remove_file(path(17)).unwrap();
    fs::write(source.join("d5/file54-renamed"), edited(noise(54, 100_000))).unwrap();
    fs::remove_file(path(54)).unwrap();
    let second = ground.add(&source, "second");
    let (decoded_len, new_len) = (second.report.old_decoded_len, second.imported.new_len);
    assert!(
        (200_000..2_500_000).contains(&decoded_len),
        "{decoded_len} bytes decoded for three files of 100,000, of 10,000,000"
    );
    assert!(new_len < 40_000, "{new_len} bytes for three edits");
    // Half of the files change places: nothing in their names leads to what they repeat.
    for no in 0..50 {
        fs::write(path(no), edited(noise(99 - no, 100_000))).unwrap();
    }
    let third = ground.add(&source, "third");
    let (decoded_len, new_len) = (third.report.old_decoded_len, third.imported.new_len);
    assert!(decoded_len >= 10_000_000, "{decoded_len} bytes decoded");
    assert!(new_len < 3_500_000, "{new_len} bytes new of 5,000,000");
    assert!(ground.is_clean());
    assert_same(&ground.export("third"), &source);
}

/// Would catch: a taken name that is detected only after the build, an image listed although its
/// build failed, and a store that includes itself.
#[test]
fn a_refused_addition_changes_nothing() {
    let scratch = Scratch::tmpfs("256m");
    let source = scratch.dir("source");
    make_all_kinds(&source);
    let ground = TestStore::new(source.join("inside"));
    let added = ground.add(&source, "one");
    let stored = StoredImage::open(ground.store.clone(), "one").unwrap();
    let image = Image::open(Arc::new(stored), &OpenOptions::default()).unwrap();
    assert!(
        at(&image, "inside").is_none(),
        "the store is in its own image"
    );
    let refused = |name: &str, like: Option<&str>, kind: ErrorKind| {
        let error = ground.try_add(&source, name, like).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert_eq!(ground.store.names().unwrap(), ["one"]);
    };
    refused("one", None, ErrorKind::Busy);
    refused("../two", None, ErrorKind::Invalid);
    refused("two", Some("none"), ErrorKind::NotFound);
    let missing = ground.try_add(&source.join("missing"), "two", None);
    assert!(missing.is_err());
    assert_eq!(ground.store.names().unwrap(), ["one"]);
    assert!(ground.is_clean());
    let from_image = build_into_store(
        StoreSource::Image(&Arc::new(image)),
        StoreTarget {
            writer: ground.writer(),
            dir: &ground.dir,
            name: "two",
            like: Some("one"),
        },
        &options(),
        &Meddler::new(|_| ()),
    );
    let report = from_image.unwrap().report;
    assert_eq!(report.tree_digest, added.report.tree_digest);
}

/// A store with versions `a` and `b` of a tree of incompressible files in few blocks. `b` has every
/// fourth file of `a`, spread over all blocks.
fn thinned_out(scratch: &Scratch) -> (TestStore, PathBuf) {
    let source = scratch.dir("source");
    let ground = TestStore::new(scratch.path().join("store"));
    for no in 0..300 {
        fs::write(source.join(format!("file{no:03}")), text(no, 16_000)).unwrap();
    }
    ground.add(&source, "a");
    for no in (0..300).filter(|no| no % 4 != 0) {
        fs::remove_file(source.join(format!("file{no:03}"))).unwrap();
    }
    ground.add(&source, "b");
    (ground, source)
}

/// Would catch: blocks kept for a small used part, a used part that is lost, a changed block that
/// another image uses, and an index that leads to the old blocks.
#[test]
fn of_blocks_that_are_used_in_part_the_rest_goes() {
    let scratch = Scratch::tmpfs("256m");
    let (ground, source) = thinned_out(&scratch);
    let b_digest = open_checked(&ground.export("b")).summary().tree_digest;
    // As long as `a` exists, all data is used.
    assert_eq!(ground.reencode().block_count, 0);
    ground.writer().remove("a", false).unwrap();
    ground.collect();
    let before = ground.segments_len();
    // An image that is being read stays unchanged.
    let reader = StoredImage::open(ground.store.clone(), "b").unwrap();
    let done = ground.reencode();
    assert_eq!((done.block_count, done.skipped_count), (0, 1));
    drop(reader);
    let done = ground.reencode();
    assert!(done.block_count > 0 && done.image_count == 1, "{done:?}");
    ground.collect();
    let after = ground.segments_len();
    assert!(after < before / 2, "{before} bytes before, {after} after");
    assert!(ground.is_clean());
    let file = ground.export("b");
    assert_eq!(open_checked(&file).summary().tree_digest, b_digest);
    assert_same(&file, &source);
    // A second run changes nothing.
    assert_eq!(ground.reencode().block_count, 0);
    // A new image can continue it.
    fs::write(source.join("new"), text(999, 50_000)).unwrap();
    ground.add(&source, "c");
    assert_same(&ground.export("c"), &source);
}

/// Would catch: blocks of two images encoded twice, and data of one of them lost.
#[test]
fn a_block_of_two_images_stays_one() {
    let scratch = Scratch::tmpfs("256m");
    let (ground, source) = thinned_out(&scratch);
    let copy = scratch.path().join("copy");
    shell(&scratch.path(), "cp -a source copy");
    fs::remove_file(source.join("file004")).unwrap();
    ground.add(&source, "c");
    ground.writer().remove("a", false).unwrap();
    let done = ground.reencode();
    assert_eq!(done.image_count, 2, "{done:?}");
    ground.collect();
    let (info, images) = ground.store.info(&mut |e| panic!("{e}")).unwrap();
    assert!(ground.is_clean());
    assert_same(&ground.export("b"), &copy);
    assert_same(&ground.export("c"), &source);
    let own: u64 = images.iter().map(|image| image.own_len).sum();
    assert!(own < info.live_len / 4, "{own} of {} bytes", info.live_len);
}
