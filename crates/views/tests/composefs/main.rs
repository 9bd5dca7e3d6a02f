//! Composefs images compared with those of the crate `composefs`, on random trees.
#![allow(missing_docs)]

mod tree;

use composefs::dumpfile::dumpfile_to_filesystem;
use composefs::erofs::format::FormatVersion;
use composefs::erofs::writer::{ValidatedFileSystem, mkfs_erofs_versioned};
use composefs::fsverity::{FsVerityHashValue, Sha256HashValue, compute_verity};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use weald_builder::{BuildOptions, Silent, build_image};
use weald_codec::FsVerity;
use weald_format::ByteOffset;
use weald_image::{Image, ImageStart, OpenOptions};
use weald_testkit::Rng;
use weald_views::composefs::{Format, ImageOptions, VerityPolicy, Written, write_image};

/// Trees of a run.
const TREE_COUNT: u64 = 300;

struct Bench {
    dir: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("tree")).unwrap();
        Self { dir }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn tree(&self) -> PathBuf {
        self.at("tree")
    }

    /// The image of the tree.
    fn image(&self) -> Image {
        let path = self.at("image");
        let options = BuildOptions::default();
        build_image(&self.tree(), &path, true, &options, &Silent).unwrap();
        let start = ImageStart::At(ByteOffset(0));
        Image::open_path(&path, start, &OpenOptions::default()).unwrap()
    }

    /// The composefs image of `image`, its objects in `objects`.
    fn export(
        &self,
        image: &Image,
        format: Format,
        memory_len: u64,
        objects: Option<&Path>,
    ) -> (Vec<u8>, Written) {
        let mut bytes = Vec::new();
        let options = ImageOptions {
            format,
            objects,
            verity: VerityPolicy::Try,
            thread_count: 2,
            memory_len,
            temp_dir: self.dir.path(),
            is_cancelled: &|| false,
        };
        let written = write_image(
            image,
            &mut |piece| {
                bytes.extend_from_slice(piece);
                Ok(())
            },
            &options,
        );
        let written = written.unwrap();
        (bytes, written)
    }
}

/// The name of an object by the crate `composefs`. Files without data are holes, whose digest only
/// ours computes in time; a test of `weald-codec` compares those.
fn digest(bytes: &[u8], len: u64) -> String {
    if bytes.len() as u64 == len {
        return compute_verity::<Sha256HashValue>(bytes).to_hex();
    }
    let mut hole = FsVerity::new();
    hole.update_zeros(len);
    hex(&hole.finish())
}

fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The image that the crate `composefs` writes for a dump.
fn oracle(dump: &str, format: Format) -> Box<[u8]> {
    let tree = dumpfile_to_filesystem::<Sha256HashValue>(dump).unwrap();
    let tree = ValidatedFileSystem::new(tree).unwrap();
    let version = match format {
        Format::V0 => FormatVersion::V0,
        Format::V1 | Format::AsNeeded => FormatVersion::V1,
    };
    mkfs_erofs_versioned(&tree, version)
}

#[track_caller]
fn assert_equal(ours: &[u8], theirs: &[u8], what: &str) {
    if ours == theirs {
        return;
    }
    let pairs = ours.iter().zip(theirs);
    let at = pairs.take_while(|(a, b)| a == b).count();
    panic!(
        "{what}: differs at {at} of {} and {} bytes: {:02x?} and {:02x?}",
        ours.len(),
        theirs.len(),
        &ours[at..(at + 32).min(ours.len())],
        &theirs[at..(at + 32).min(theirs.len())],
    );
}

/// `fsck.erofs` of erofs-utils accepts the image.
fn assert_accepted(path: &Path) {
    let output = Command::new("fsck.erofs").arg(path).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {text}", path.display());
}

/// Would catch: any byte that differs from `mkcomposefs`: order of inodes, padding, sharing and
/// order of xattrs, escapes, whiteouts, stubs, links, in both formats; and lists that are read back
/// wrong from temporary files.
#[test]
fn random_trees_have_the_bytes_of_another_writer() {
    let mut rng = Rng::from_environment();
    for number in 0..TREE_COUNT {
        let seed = rng.next_u64();
        let bench = Bench::new();
        tree::make(&bench.tree(), &mut Rng::new(seed));
        let dump = tree::dump(&bench.tree(), &digest);
        let image = bench.image();
        // Objects need a sync, so that few trees have them.
        let objects = (number % 10 == 0).then(|| bench.at("objects"));
        for format in [Format::V0, Format::V1] {
            // Every other tree goes through temporary files.
            let memory_len = if number % 2 == 0 { 64 << 20 } else { 1 << 14 };
            let (ours, written) = bench.export(&image, format, memory_len, objects.as_deref());
            let what = format!("tree {number} of seed {seed}, {format:?}");
            assert_equal(&ours, &oracle(&dump, format), &what);
            assert_eq!(written.image_len, ours.len() as u64);
            let digest = compute_verity::<Sha256HashValue>(&ours);
            assert_eq!(hex(&written.image_digest), digest.to_hex());
            assert_accepted(&tree::file(bench.dir.path(), "cfs", &ours));
        }
        if let Some(objects) = objects {
            assert_objects(&bench, &objects);
        }
    }
}

/// Every file of more than 64 bytes is an object with the same bytes, and there are no others.
fn assert_objects(bench: &Bench, objects: &Path) {
    let mut names = Vec::new();
    for path in tree::below(&bench.tree()) {
        let meta = path.symlink_metadata().unwrap();
        if !meta.is_file() || meta.len() <= 64 {
            continue;
        }
        let bytes = tree::data(&path);
        let name = digest(&bytes, meta.len());
        let object = objects.join(&name[..2]).join(&name[2..]);
        let found = object.symlink_metadata().unwrap();
        assert_eq!((found.len(), found.mode()), (meta.len(), 0o100_644));
        if !bytes.is_empty() {
            assert!(fs::read(&object).unwrap() == bytes, "{}", path.display());
        }
        names.push(object);
    }
    names.sort();
    names.dedup();
    let there = tree::below(objects).into_iter();
    assert_eq!(there.filter(|path| path.is_file()).count(), names.len());
}
