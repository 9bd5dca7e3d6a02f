//! Composefs images compared with those of the crate `composefs`, on random trees.
#![allow(missing_docs)]

mod tree;

use composefs::dumpfile::dumpfile_to_filesystem;
use composefs::erofs::format::FormatVersion;
use composefs::erofs::reader::erofs_to_filesystem;
use composefs::erofs::writer::{ValidatedFileSystem, mkfs_erofs_versioned};
use composefs::fsverity::{FsVerityHashValue, Sha256HashValue, compute_verity};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use weald_builder::{BuildOptions, Silent, build_image};
use weald_codec::FsVerity;
use weald_format::ByteOffset;
use weald_image::{Image, ImageStart, OpenOptions};
use weald_testkit::compare::assert_same;
use weald_testkit::{CompareOptions, Rng, torture};
use weald_views::composefs::{
    DumpOptions, Format, ImageOptions, ObjectPlace, VerityPolicy, Written, write_dump, write_image,
};

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
            objects: objects.map(ObjectPlace::at),
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
            erofs_to_filesystem::<Sha256HashValue>(&ours).expect("an image that composefs reads");
        }
        let dump = written_by_composefs(&dump);
        assert_eq!(dump_of(&image), dump, "seed {seed}");
        if let Some(objects) = objects {
            assert_objects(&bench, &objects);
        }
    }
}

/// Our dump of an image.
fn dump_of(image: &Image) -> String {
    let options = DumpOptions {
        thread_count: 2,
        memory_len: 1 << 20,
        is_cancelled: &|| false,
    };
    let mut text = Vec::new();
    write_dump(
        image,
        &mut |line| {
            text.extend_from_slice(line);
            Ok(())
        },
        &options,
    )
    .unwrap();
    String::from_utf8(text).unwrap()
}

/// The dump that the crate `composefs` writes of the tree in another dump.
fn written_by_composefs(dump: &str) -> String {
    dumped(&dumpfile_to_filesystem::<Sha256HashValue>(dump).unwrap())
}

fn dumped(tree: &composefs::tree::FileSystem<Sha256HashValue>) -> String {
    let mut text = Vec::new();
    composefs::dumpfile::write_dumpfile(&mut text, tree).unwrap();
    String::from_utf8(text).unwrap()
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

/// Mounts that end with the test.
struct Mounts(Vec<PathBuf>);

impl Mounts {
    fn mount(&mut self, args: &[&str], dir: &Path) {
        let mut command = Command::new("mount");
        let status = command.args(args).arg(dir).status().unwrap();
        assert!(status.success(), "mount {args:?}");
        self.0.push(dir.to_owned());
    }
}

impl Drop for Mounts {
    fn drop(&mut self) {
        for dir in self.0.iter().rev() {
            let status = Command::new("umount").arg(dir).status();
            assert!(status.is_ok_and(|status| status.success()), "umount");
        }
    }
}

/// Would catch: an image that the kernel does not mount, or whose files, attributes, xattrs, links
/// and data are not those of the tree when overlayfs joins it with its objects.
#[test]
fn the_kernel_mounts_an_image_and_its_objects() {
    let bench = Bench::new();
    let tree = bench.tree();
    let mut rng = Rng::from_environment();
    for _ in 0..4 {
        let dir = tree.join(format!("part {}", rng.next_u64()));
        fs::create_dir(&dir).unwrap();
        tree::make(&dir, &mut rng);
    }
    // A mounted whiteout of the tree is a name that another overlayfs hides.
    for path in tree::below(&tree) {
        let meta = path.symlink_metadata().unwrap();
        if meta.file_type().is_char_device() && meta.rdev() == 0 {
            fs::remove_file(&path).unwrap();
        }
    }
    let objects = bench.at("objects");
    let image = bench.image();
    let (bytes, _) = bench.export(&image, Format::V1, 64 << 20, Some(&objects));
    let file = tree::file(bench.dir.path(), "cfs", &bytes);
    let (lower, joined) = (bench.at("lower"), bench.at("joined"));
    fs::create_dir(&lower).unwrap();
    fs::create_dir(&joined).unwrap();
    let mut mounts = Mounts(Vec::new());
    let source = file.to_str().unwrap();
    mounts.mount(&["-t", "erofs", "-o", "ro,loop", source], &lower);
    let layers = format!(
        "ro,metacopy=on,redirect_dir=on,lowerdir={}::{}",
        lower.display(),
        objects.display()
    );
    mounts.mount(&["-t", "overlay", "overlay", "-o", &layers], &joined);
    let options = CompareOptions {
        holes: false,
        link_counts: true,
        rsync: false,
    };
    assert_same(&tree, &joined, &options);
}

/// Would catch: an image of real data (names, modes, owners, times, ACLs, long targets, holes of
/// terabytes) that differs from that of the other writer.
#[test]
fn the_torture_tree_has_the_bytes_of_another_writer() {
    let bench = Bench::new();
    let options = torture::Options {
        seed: 7,
        big: false,
    };
    torture::make(&bench.tree(), &options).unwrap();
    // The other writer reads dumps with targets of 1024 bytes, times from 1970 on, and files of one
    // chunk.
    for path in tree::below(&bench.tree()) {
        let meta = path.symlink_metadata().unwrap();
        if meta.is_dir() && meta.mtime() < 0 {
            fs::remove_dir(&path).unwrap();
        } else if meta.mtime() < 0 || meta.is_symlink() && meta.len() > 1024 {
            fs::remove_file(&path).unwrap();
        }
    }
    fs::remove_dir_all(bench.at("tree/huge")).unwrap();
    let dump = tree::dump(&bench.tree(), &digest);
    let image = bench.image();
    for format in [Format::V0, Format::V1] {
        let (ours, _) = bench.export(&image, format, 64 << 20, None);
        assert_equal(&ours, &oracle(&dump, format), "torture tree");
        assert_accepted(&tree::file(bench.dir.path(), "cfs", &ours));
    }
}

/// Would catch: targets that need a block of their own, at each length around the limit.
#[test]
fn long_targets_have_the_bytes_of_another_writer() {
    use composefs::generic_tree::{Inode, Stat};
    use composefs::tree::{FileSystem, LeafContent};
    use std::ffi::OsString;
    let bench = Bench::new();
    let stat = |path: &Path| {
        let meta = path.symlink_metadata().unwrap();
        Stat {
            st_mode: meta.mode() & 0o7777,
            st_uid: meta.uid(),
            st_gid: meta.gid(),
            st_mtim_sec: meta.mtime(),
            st_mtim_nsec: meta.mtime_nsec() as u32,
            xattrs: Default::default(),
        }
    };
    let mut names = Vec::new();
    for len in [1000, 3000, 4000, 4031, 4032, 4033, 4063, 4064, 4065, 4095] {
        let name = format!("link{len}");
        let target = "t".repeat(len);
        std::os::unix::fs::symlink(&target, bench.tree().join(&name)).unwrap();
        names.push((name, target));
    }
    let mut theirs = FileSystem::<Sha256HashValue>::new(stat(&bench.tree()));
    for (name, target) in names {
        let content = LeafContent::Symlink(OsString::from(target).into());
        let id = theirs.push_leaf(stat(&bench.tree().join(&name)), content);
        theirs.root.insert(name.as_ref(), Inode::leaf(id));
    }
    let theirs = ValidatedFileSystem::new(theirs).unwrap();
    let (ours, _) = bench.export(&bench.image(), Format::V0, 64 << 20, None);
    let theirs = mkfs_erofs_versioned(&theirs, FormatVersion::V0);
    assert_equal(&ours, &theirs, "long targets");
    assert_accepted(&tree::file(bench.dir.path(), "cfs", &ours));
}
