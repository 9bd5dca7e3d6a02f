//! The reader against images of mkfs.erofs 1.8.6, which lie in `images`: fragments, deduplicated
//! clusters and the later codecs are not in mkfs.erofs 1.5 of Debian 12, which ignores their words.
//!
//! `WEALD_BLESS=1` makes the images again with the mkfs.erofs on the path, 1.8 or later.
#![allow(missing_docs)]

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use support::{damaged, data};
use weald_erofs::reader::{Volume, Walker};
use weald_format::{ErrorKind, FileKind, Result};
use weald_testkit::Rng;
use weald_testkit::rng::words;

/// Offset of the required features in an image.
const FEATURES_OFFSET: usize = 1024 + 0x50;

/// Required features, in the superblock: clusters of several blocks, tails in the inode area, and
/// fragments or clusters that files share.
const BIG_CLUSTERS: u32 = 1 << 1;
const INLINE_TAILS: u32 = 1 << 4;
const SHARED_DATA: u32 = 1 << 5;

/// Images: name, options of mkfs.erofs, and required features among those above.
const IMAGES: [(&str, &str, u32); 9] = [
    (
        "fragments",
        "-zlz4hc -b1024 -C1024 -Efragments",
        SHARED_DATA,
    ),
    (
        "all-fragments",
        "-zlz4 -C16384 -Eall-fragments",
        SHARED_DATA | BIG_CLUSTERS,
    ),
    ("dedupe", "-zlz4hc,12 -b1024 -C1024 -Ededupe", SHARED_DATA),
    (
        "old-index",
        "-zlz4 -b1024 -C1024 -Elegacy-compress,fragments",
        SHARED_DATA,
    ),
    (
        "zstd-tails",
        "-zzstd -C65536 -Eztailpacking",
        INLINE_TAILS | BIG_CLUSTERS,
    ),
    (
        "zstd-all",
        "-zzstd,9 -C32768 -Eall-fragments,dedupe,ztailpacking",
        SHARED_DATA | BIG_CLUSTERS,
    ),
    (
        "two-codecs",
        "-zlz4:zstd -b1024 -C8192 -Eztailpacking",
        INLINE_TAILS | BIG_CLUSTERS,
    ),
    ("deflate", "-zdeflate -b1024 -C8192", BIG_CLUSTERS),
    (
        "deflate-all",
        "-zdeflate,9 -C16384 -Eall-fragments,dedupe",
        SHARED_DATA | BIG_CLUSTERS,
    ),
];

/// Images whose codec the reader lacks, and its name.
const REFUSED: [(&str, &str, &str); 1] = [("lzma", "-zlzma -b1024 -C8192", "MicroLZMA")];

fn path(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/images");
    dir.join(name).with_extension("erofs")
}

/// Files of the tree, in the order of their paths: tails of many lengths, repeats inside files and
/// between them, and data that no codec makes smaller.
fn files() -> Vec<(String, Vec<u8>)> {
    let words = words(41, 14_000);
    let noise = Rng::new(41).bytes(1500);
    let near = [&words[3000..9000], &noise[..7], &words[9000..]].concat();
    let mixed = [&words[..2500], &noise, &[0; 6000], &words[7000..9100]].concat();
    let mut files = vec![
        ("dir/long".to_owned(), words.clone()),
        ("dir/mixed".to_owned(), mixed),
        ("dir/near".to_owned(), near),
        ("dir/noise".to_owned(), noise),
        ("zeros".to_owned(), vec![0; 9000]),
    ];
    for len in [0, 1, 100, 1023, 1024, 1025, 4095, 4096, 4097, 8192] {
        files.push((format!("tails/{len:04}"), words[..len].to_vec()));
    }
    files.sort();
    files
}

/// Makes the image again if that is asked for, and returns its bytes.
fn image(name: &str, options: &str) -> Vec<u8> {
    let path = path(name);
    if std::env::var_os("WEALD_BLESS").is_some() {
        let temp = tempfile::tempdir().unwrap();
        for (name, content) in files() {
            let file = temp.path().join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, content).unwrap();
        }
        let uuid = "-U7a3f6c80-1d2b-4c5e-9f00-000000000041";
        let made = Command::new("mkfs.erofs")
            .args(["--quiet", "-T1700000000", "--all-root", "-x-1", uuid])
            .args(options.split(' '))
            .args([&path, temp.path()])
            .status();
        assert!(made.unwrap().success(), "mkfs.erofs {options}");
    }
    fs::read(path).unwrap()
}

/// Paths and contents of all regular files.
fn read(bytes: Vec<u8>) -> Result<Vec<(String, Vec<u8>)>> {
    let volume = Volume::open(bytes)?;
    let mut walker = Walker::new(&volume);
    let mut files = Vec::new();
    while let Some(inode) = walker.next(&volume)? {
        if inode.kind == FileKind::Regular {
            let path = String::from_utf8_lossy(walker.path()).into_owned();
            files.push((path, data(&volume, &inode, 3001)?));
        }
    }
    files.sort();
    Ok(files)
}

// Would catch: fragments that are read from the wrong place of the packed inode, a shared cluster
// whose data begin before the extent, a tail behind the index that is read from a block.
#[test]
fn images_of_a_newer_mkfs_are_equal_to_their_files() {
    for (name, options, features) in IMAGES {
        let bytes = image(name, options);
        let found = u32::from_le_bytes(bytes[FEATURES_OFFSET..][..4].try_into().unwrap());
        let known = BIG_CLUSTERS | INLINE_TAILS | SHARED_DATA;
        assert_eq!(
            found & known,
            features,
            "{name}: the image has another form"
        );
        let found = read(bytes).unwrap();
        let names: Vec<&str> = found.iter().map(|file| file.0.as_str()).collect();
        let expected = files();
        let expected_names: Vec<&str> = expected.iter().map(|file| file.0.as_str()).collect();
        assert_eq!(names, expected_names, "{name}");
        for (found, expected) in found.iter().zip(&expected) {
            assert!(found.1 == expected.1, "{name}: {}", expected.0);
        }
    }
}

// Would catch: wrong data of a codec that the reader lacks, and an error that does not name it.
#[test]
fn codecs_that_the_reader_lacks_are_named() {
    for (name, options, codec) in REFUSED {
        let error = read(image(name, options)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        let expected = format!("not supported in EROFS images: compressed with {codec}");
        assert!(error.to_string().ends_with(&expected), "{error}");
    }
}

// Would catch: a panic, a hang, or memory that a damaged index, fragment or tail asks for.
#[test]
fn damaged_images_of_a_newer_mkfs_give_errors() {
    let mut rng = Rng::new(8);
    for (name, _, _) in IMAGES {
        let whole = fs::read(path(name)).unwrap();
        let (mut error_count, mut changed_count) = (0, 0);
        for _ in 0..1500 {
            // Half of the damage is where most of the metadata are.
            match read(damaged(&whole, &mut rng, &[8192, whole.len()])) {
                Err(_) => error_count += 1,
                Ok(found) => changed_count += u32::from(found != files()),
            }
        }
        assert!(
            error_count > 50 && changed_count > 0,
            "{name}: {error_count} errors"
        );
    }
}
