//! One cache for many images: it stays within its limit, equal images share entries, and a storage
//! failure affects one image only.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weald_builder::{BuildOptions, Silent, build_image};
use weald_format::{ByteLen, ROOT_INODE};
use weald_image::{CheckOptions, Image, OpenOptions, SharedCache};
use weald_testkit::rng::words;

const BLOCK_LEN: u64 = 128 << 10;

fn content(image: u64, file: u64) -> Vec<u8> {
    words(1 + image * 100 + file, 300_000 + file as usize * 77_777)
}

const FILE_COUNT: u64 = 5;

fn build(dir: &Path, no: u64, bases: Vec<PathBuf>) -> PathBuf {
    let (tree, path) = (
        dir.join(format!("tree{no}")),
        dir.join(format!("{no}.weald")),
    );
    fs::create_dir(&tree).unwrap();
    for file in 0..FILE_COUNT {
        fs::write(tree.join(format!("f{file}")), content(no, file)).unwrap();
    }
    let options = BuildOptions {
        block_len: BLOCK_LEN,
        bases,
        ..BuildOptions::level(2).unwrap()
    };
    build_image(&tree, &path, false, &options, &Silent).unwrap();
    path
}

fn open(path: &Path, cache: &Arc<SharedCache>, prefetch_threads: usize) -> Image {
    let options = OpenOptions {
        cache: Some(cache.clone()),
        prefetch_threads,
        ..OpenOptions::default()
    };
    Image::open_path(path, 0, &options).unwrap()
}

fn read_all(image: &Image, no: u64, within: &SharedCache) {
    for file in 0..FILE_COUNT {
        let name = format!("f{file}");
        let inode = image.lookup(ROOT_INODE, name.as_bytes()).unwrap().unwrap();
        let expected = content(no, file);
        for at in (0..expected.len()).step_by(64 << 10) {
            let read = image.read(&inode, at as u64, 64 << 10).unwrap();
            let end = expected.len().min(at + (64 << 10));
            assert!(*read == expected[at..end], "{no}/{name} at {at}");
            let counts = within.counts();
            assert!(counts.used_len <= counts.len_max, "{counts:?}");
        }
    }
}

/// Would catch: a limit that counts each image separately, and entries that outlive their image.
#[test]
fn many_images_stay_within_one_cache() {
    const IMAGE_COUNT: u64 = 10;
    let scratch = tempfile::tempdir().unwrap();
    let paths: Vec<_> = (0..IMAGE_COUNT)
        .map(|no| build(scratch.path(), no, Vec::new()))
        .collect();
    let cache = SharedCache::new(ByteLen(4 << 20));
    let images: Vec<_> = paths.iter().map(|path| open(path, &cache, 2)).collect();
    std::thread::scope(|scope| {
        for (no, image) in images.iter().enumerate() {
            let cache = &cache;
            scope.spawn(move || (0..2).for_each(|_| read_all(image, no as u64, cache)));
        }
    });
    let counts = cache.counts();
    assert!(counts.used_len > counts.len_max / 2, "{counts:?}");
    let of_each: Vec<_> = images.iter().map(Image::cache_counts).collect();
    let sum = |count: &dyn Fn(usize) -> u64| (0..of_each.len()).map(count).sum::<u64>();
    assert!(sum(&|no| of_each[no].hit_count) <= counts.hit_count);
    assert!(of_each.iter().all(|c| c.miss_count > 0 && c.hit_count > 0));
    cache.set_len_max(ByteLen(1 << 20));
    assert!(cache.counts().used_len <= 1 << 20);
    read_all(&images[3], 3, &cache);
    drop(images);
    // A prefetch thread may hold the last reference to an image.
    let end = std::time::Instant::now() + std::time::Duration::from_secs(120);
    while cache.counts().used_len > 0 && std::time::Instant::now() < end {
        std::thread::yield_now();
    }
    assert_eq!(cache.counts().used_len, 0);
}

/// Would catch: an image that decodes again what another image with the same digest has in the
/// cache.
#[test]
fn images_of_one_digest_share() {
    let scratch = tempfile::tempdir().unwrap();
    let path = build(scratch.path(), 0, Vec::new());
    let copy = scratch.path().join("copy.weald");
    fs::copy(&path, &copy).unwrap();
    let cache = SharedCache::new(ByteLen(64 << 20));
    let (first, second) = (open(&path, &cache, 0), open(&copy, &cache, 0));
    read_all(&first, 0, &cache);
    assert!(first.decoded_len().0 > 0);
    read_all(&second, 0, &cache);
    assert_eq!(second.decoded_len().0, 0);
    assert_eq!(second.cache_counts().miss_count, 0);
    drop(first);
    let before = cache.counts().used_len;
    read_all(&second, 0, &cache);
    assert_eq!(second.decoded_len().0, 0);
    assert_eq!(cache.counts().used_len, before);
}

/// Would catch: a base image with a cache of its own next to that of the upper image.
#[test]
fn an_image_and_its_bases_have_one_cache() {
    let scratch = tempfile::tempdir().unwrap();
    let base = build(scratch.path(), 0, Vec::new());
    let tree = scratch.path().join("upper");
    fs::create_dir(&tree).unwrap();
    for file in 0..FILE_COUNT {
        let mut bytes = content(0, file);
        bytes[5] = b'!';
        fs::write(tree.join(format!("f{file}")), bytes).unwrap();
    }
    let options = BuildOptions {
        block_len: BLOCK_LEN,
        bases: vec![base.clone()],
        ..BuildOptions::level(2).unwrap()
    };
    let path = scratch.path().join("upper.weald");
    build_image(&tree, &path, false, &options, &Silent).unwrap();
    let cache = SharedCache::new(ByteLen(64 << 20));
    let below = open(&base, &cache, 0);
    read_all(&below, 0, &cache);
    let upper = open(&path, &cache, 0);
    let counts = cache.counts();
    for file in 0..FILE_COUNT {
        let name = format!("f{file}");
        let inode = upper.lookup(ROOT_INODE, name.as_bytes()).unwrap().unwrap();
        let read = upper.read(&inode, 0, 1 << 20).unwrap();
        assert_eq!(read[6..], content(0, file)[6..]);
    }
    let misses = cache.counts().miss_count - counts.miss_count;
    // The metadata of the upper image and the changed pieces, but no block of the base.
    assert!(upper.decoded_len().0 < BLOCK_LEN, "{misses}");
    assert_eq!(below.cache_counts().used_len, cache.counts().used_len);
}

/// Would catch: damage of one file that is returned or reported to readers of an intact copy.
#[test]
fn damage_affects_only_the_image_that_has_it() {
    let scratch = tempfile::tempdir().unwrap();
    let path = build(scratch.path(), 0, Vec::new());
    let mut bytes = fs::read(&path).unwrap();
    let place = bytes.len() / 3;
    bytes[place] ^= 0x40;
    let rotten = scratch.path().join("rotten.weald");
    fs::write(&rotten, bytes).unwrap();
    let cache = SharedCache::new(ByteLen(64 << 20));
    let (bad, good) = (open(&rotten, &cache, 2), open(&path, &cache, 2));
    let fails = |image: &Image| {
        let failed = (0..FILE_COUNT).find_map(|file| {
            let name = format!("f{file}");
            let inode = image.lookup(ROOT_INODE, name.as_bytes()).unwrap().unwrap();
            image.read(&inode, 0, 1 << 20).err()
        });
        failed.is_some()
    };
    assert!(fails(&bad));
    read_all(&good, 0, &cache);
    assert!(!fails(&bad), "verified entries are shared");
    bad.drop_caches();
    assert!(fails(&bad));
    read_all(&good, 0, &cache);
    let options = CheckOptions {
        digests_only: false,
        threads: 2,
        path_count_max: 10,
    };
    let mut findings = 0;
    good.check(&options, &mut |_| findings += 1);
    assert_eq!(findings, 0);
}
