//! The reader against images of `mkfs.erofs`. Needs root, for the torture tree.
#![allow(missing_docs)]

mod support;

use std::collections::HashMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;
use support::{damaged, data};
use weald_erofs::reader::{FileReader, Inode, Volume, Walker};
use weald_format::{FileKind, Result};
use weald_testkit::rng::words;
use weald_testkit::{Rng, torture};

/// Bytes of a read, which no block or cluster has.
const PIECE_LEN: usize = 70_001;

/// Makes the torture tree below `dir`, without files that mkfs.erofs would read for hours.
fn make_tree(dir: &Path) {
    fs::create_dir(dir).unwrap();
    let options = torture::Options {
        seed: 5,
        big: false,
    };
    torture::make(dir, &options).unwrap();
    fs::remove_dir_all(dir.join("huge")).unwrap();
    // mkfs.erofs 1.5 cuts the last byte of names of 255 bytes.
    let removed = Command::new("find")
        .env("LC_ALL", "C")
        .arg(dir)
        .args(["-depth", "-regextype", "posix-extended"])
        .args(["-regex", ".*/[^/]{255}", "-exec", "rm", "-r", "{}", "+"])
        .status();
    assert!(removed.unwrap().success());
}

fn mkfs(image: &Path, dir: &Path, options: &[&str]) {
    let output = Command::new("mkfs.erofs")
        .args(["--quiet", "-x2"])
        .args(options)
        .args([image, dir])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "mkfs.erofs {options:?}: {text}");
}

fn open(image: &Path) -> Volume {
    Volume::open(fs::read(image).unwrap()).unwrap()
}

/// Compares every entry of the image with `dir`.
fn assert_equal(volume: &Volume, dir: &Path) {
    let mut walker = Walker::new(volume);
    let mut paths = Vec::new();
    let (mut ours, mut theirs) = (HashMap::new(), HashMap::new());
    while let Some(inode) = walker.next(volume).unwrap() {
        let relative = std::ffi::OsStr::from_bytes(walker.path());
        let path = dir.join(relative);
        let shown = path.display();
        let stat = fs::symlink_metadata(&path).unwrap();
        assert_eq!(
            inode.kind.mode_bits() | u32::from(inode.permissions),
            stat.mode(),
            "{shown}"
        );
        assert_eq!((inode.uid, inode.gid), (stat.uid(), stat.gid()), "{shown}");
        let mtime = (inode.mtime.seconds, i64::from(inode.mtime.nanoseconds));
        assert_eq!(mtime, (stat.mtime(), stat.mtime_nsec()), "{shown}");
        let fd = weald_sys::open_dir(path.parent().unwrap()).unwrap();
        let name = path.file_name().unwrap().as_bytes();
        let facts = weald_sys::stat_at(&fd, name).unwrap();
        assert_eq!(inode.rdev, facts.rdev, "{shown}");
        let mut xattrs = weald_sys::read_xattrs_at(&fd, name).unwrap();
        xattrs.sort_unstable();
        assert_eq!(volume.xattrs(&inode).unwrap(), xattrs, "{shown}");
        if inode.kind != FileKind::Directory {
            let first = ours.entry(inode.nid).or_insert_with(|| path.clone());
            assert_eq!(
                theirs.entry(stat.ino()).or_insert_with(|| path.clone()),
                first
            );
            assert_eq!(u64::from(inode.nlink), stat.nlink(), "{shown}");
        }
        match inode.kind {
            FileKind::Regular => {
                assert!(
                    data(volume, &inode, PIECE_LEN).unwrap() == fs::read(&path).unwrap(),
                    "{shown}"
                );
            }
            FileKind::Symlink => {
                let target = fs::read_link(&path).unwrap();
                assert_eq!(
                    volume.target(&inode).unwrap(),
                    target.as_os_str().as_bytes()
                );
            }
            _ => {}
        }
        paths.push(path);
    }
    let count = Command::new("find").arg(dir).arg("-print0").output();
    let count = count.unwrap().stdout.split(|&b| b == 0).count() - 1;
    assert_eq!(paths.len(), count);
}

// Would catch: fields of inodes that are mixed up, names or xattrs that are lost, holes read as
// data.
#[test]
fn images_of_mkfs_are_equal_to_their_trees() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("tree");
    make_tree(&dir);
    let image = temp.path().join("image");
    for options in [
        &[][..],
        &["--chunksize=4096"],
        &["--chunksize=65536", "-Eforce-chunk-indexes"],
        &["-Enoinline_data", "-Eforce-inode-extended"],
    ] {
        mkfs(&image, &dir, options);
        assert_equal(&open(&image), &dir);
    }
}

// Would catch: an entry of the index that is read wrongly, in any of its forms that mkfs.erofs 1.5
// writes. It ignores words that it does not know: `newer.rs` has those of later versions.
#[test]
fn compressed_images_are_equal_to_their_trees() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("tree");
    fs::create_dir(&dir).unwrap();
    let mut rng = Rng::new(9);
    let words = words(9, 700_000);
    fs::write(dir.join("words"), &words).unwrap();
    // Tails of all lengths, repeats between files, and data that cannot be compressed in between.
    for no in 0..60 {
        let start = rng.below(1 << 19) as usize;
        let len = rng.below(40_000) as usize;
        let mut content = words[start..start + len].to_vec();
        let noise_len = rng.below(9000) as usize;
        content.extend(rng.bytes(noise_len));
        content.extend(&words[..rng.below(30_000) as usize]);
        content.extend(vec![0; rng.below(60_000) as usize]);
        fs::write(dir.join(format!("mixed{no}")), content).unwrap();
    }
    let image = temp.path().join("image");
    for options in [
        &["-zlz4"][..],
        &["-zlz4hc,12", "-C65536"],
        &["-zlz4", "-Elegacy-compress"],
        &["-zlz4hc", "-C1048576", "-Eztailpacking"],
        &["-zlz4", "-Eztailpacking,legacy-compress"],
        &["-zlz4hc", "-Eztailpacking,noinline_data"],
        &["-zlz4", "-C16384", "--max-extent-bytes=5000"],
        &["-zlz4", "--max-extent-bytes=65536"],
    ] {
        mkfs(&image, &dir, options);
        let bytes = fs::read(&image).unwrap();
        eprintln!("{options:?}: {} bytes", bytes.len());
        // The required features, in the superblock: bit 1 clusters of several blocks, bit 4 tails
        // in the inode area.
        let words = options.join(" ");
        let features = bytes[1024 + 0x50];
        assert_eq!(features & 2 != 0, words.contains("-C"), "{words}");
        assert_eq!(
            features & 16 != 0,
            words.contains("ztailpacking"),
            "{words}"
        );
        assert_equal(&open(&image), &dir);
    }
}

// Would catch: a hole that is read from block 2^32 - 1, and runs that the next build would fill.
#[test]
fn chunks_of_zeros_are_holes() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("tree");
    fs::create_dir(&dir).unwrap();
    let file = fs::File::create(dir.join("sparse")).unwrap();
    file.set_len(1 << 20).unwrap();
    file.write_all_at(b"here", 65536).unwrap();
    file.write_all_at(b"there", 1_000_000).unwrap();
    let image = temp.path().join("image");
    mkfs(&image, &dir, &["--chunksize=4096"]);
    let inode = first_file(&open(&image));
    // mkfs.erofs 1.5 writes no holes, but one block of zeros. The index of chunks follows the
    // inode of 64 bytes.
    let mut bytes = fs::read(&image).unwrap();
    let start = inode.nid as usize * 32 + 64;
    let zeros = bytes[start..start + 4].to_vec();
    for chunk in bytes[start..start + 1024].chunks_exact_mut(4) {
        if chunk == zeros {
            chunk.fill(0xff);
        }
    }
    bytes[1032] &= !1;
    let volume = Volume::open(bytes).unwrap();
    assert!(data(&volume, &inode, PIECE_LEN).unwrap() == fs::read(dir.join("sparse")).unwrap());
    let runs = volume.data_runs(&inode).unwrap().unwrap();
    assert_eq!(runs, [65536..69632, 999_424..1_003_520]);
}

/// The inode of the only file.
fn first_file(volume: &Volume) -> Inode {
    let mut walker = Walker::new(volume);
    walker.next(volume).unwrap();
    walker.next(volume).unwrap().unwrap()
}

/// Walks the whole image and reads everything, as far as the first error.
fn read_all(bytes: Vec<u8>) -> Result<()> {
    let volume = Volume::open(bytes)?;
    let mut walker = Walker::new(&volume);
    while let Some(inode) = walker.next(&volume)? {
        volume.xattrs(&inode)?;
        match inode.kind {
            FileKind::Symlink => drop(volume.target(&inode)?),
            FileKind::Regular => {
                volume.data_runs(&inode)?;
                let mut reader = FileReader::new(&inode);
                let mut piece = vec![0; inode.size.min(1 << 20) as usize];
                reader.read_exact_at(&volume, 0, &mut piece)?;
            }
            _ => {}
        }
    }
    Ok(())
}

// Would catch: a panic, a hang, or memory that an announced size asks for.
#[test]
fn damaged_images_give_errors() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("tree");
    fs::create_dir_all(dir.join("a/b")).unwrap();
    fs::write(dir.join("a/file"), vec![7; 9000]).unwrap();
    fs::write(dir.join("a/b/short"), "short").unwrap();
    fs::write(dir.join("words"), words(1, 50_000)).unwrap();
    fs::hard_link(dir.join("a/file"), dir.join("a/b/twin")).unwrap();
    std::os::unix::fs::symlink("file", dir.join("a/link")).unwrap();
    let image = temp.path().join("image");
    for options in [
        &[][..],
        &["--chunksize=4096"],
        &["-zlz4", "-C65536"],
        &["-zlz4", "-Elegacy-compress,ztailpacking"],
        &["-zlz4hc", "-C16384", "-Eztailpacking"],
    ] {
        mkfs(&image, &dir, options);
        let whole = fs::read(&image).unwrap();
        read_all(whole.clone()).unwrap();
        let mut rng = Rng::new(3);
        let mut error_count = 0;
        // The first two blocks hold all of the metadata. The checksum covers the first one.
        let meta_len = whole.len().min(8192);
        for _ in 0..6000 {
            let bytes = damaged(&whole, &mut rng, &[meta_len]);
            error_count += u32::from(read_all(bytes).is_err());
        }
        assert!(error_count > 300, "{error_count} errors");
        for len in (0..whole.len()).step_by(61) {
            let read = read_all(whole[..len].to_vec());
            assert!(read.is_err(), "{len} of {} bytes", whole.len());
        }
    }
}

// Would catch: a walk without end, or with 2^depth steps.
#[test]
fn directories_that_contain_each_other_are_refused() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("tree");
    fs::create_dir_all(dir.join("a/b/c")).unwrap();
    let image = temp.path().join("image");
    mkfs(&image, &dir, &[]);
    let whole = fs::read(&image).unwrap();
    let volume = open(&image);
    let mut walker = Walker::new(&volume);
    let mut nids = Vec::new();
    while let Some(inode) = walker.next(&volume).unwrap() {
        nids.push(inode.nid);
    }
    // Each name in turn leads to each directory.
    let (mut tried, mut refused) = (0, 0);
    for at in 1152..whole.len() - 8 {
        let nid = u64::from_le_bytes(whole[at..at + 8].try_into().unwrap());
        if !nids.contains(&nid) {
            continue;
        }
        for other in nids.iter().filter(|other| **other != nid) {
            let mut bytes = whole.clone();
            bytes[at..at + 8].copy_from_slice(&other.to_le_bytes());
            bytes[1032] &= !1;
            tried += 1;
            refused += u32::from(read_all(bytes).is_err());
        }
    }
    assert!(tried >= 24 && refused >= 24, "{refused} of {tried}");
}
