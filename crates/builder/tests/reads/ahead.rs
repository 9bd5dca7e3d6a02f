//! Prefetch, measured by decoded bytes: several blocks for sequential readers, along the extents of
//! the file; nothing for other readers.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};
use weald_builder::{BuildOptions, Silent, build_image};
use weald_format::{ByteLen, ROOT_INODE};
use weald_image::{Image, Inode, OpenOptions};
use weald_testkit::rng::words;

const BLOCK_LEN: usize = 256 << 10;
const FILE_LEN: usize = 24 * BLOCK_LEN;
/// Length of a request of the kernel, bytes.
const READ_LEN: usize = 128 << 10;
const THREADS: usize = 2;

/// A long file, one with its blocks in the opposite order, incompressible noise, and many adjacent
/// small files.
fn make_tree(dir: &Path) {
    let long = words(1, FILE_LEN);
    fs::write(dir.join("a-long"), &long).unwrap();
    let back: Vec<&[u8]> = long.chunks(BLOCK_LEN).rev().collect();
    fs::write(dir.join("b-back"), back.concat()).unwrap();
    let mut noise = vec![0; FILE_LEN / 2];
    blake3::Hasher::new().finalize_xof().fill(&mut noise);
    fs::write(dir.join("c-noise"), noise).unwrap();
    fs::create_dir(dir.join("small")).unwrap();
    for no in 0..200 {
        fs::write(dir.join(format!("small/{no:03}")), words(1000 + no, 20_000)).unwrap();
    }
}

struct Built {
    scratch: tempfile::TempDir,
}

impl Built {
    fn new() -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let tree = scratch.path().join("tree");
        fs::create_dir(&tree).unwrap();
        make_tree(&tree);
        let options = BuildOptions {
            block_len: BLOCK_LEN as u64,
            cluster_len: 0,
            ..BuildOptions::level(3).unwrap()
        };
        let path = scratch.path().join("image");
        build_image(&tree, &path, false, &options, &Silent).unwrap();
        Self { scratch }
    }

    fn open(&self, prefetch_threads: usize) -> Image {
        let options = OpenOptions {
            cache_len: ByteLen(64 << 20),
            prefetch_threads,
            ..OpenOptions::default()
        };
        Image::open_path(&self.scratch.path().join("image"), 0, &options).unwrap()
    }

    fn bytes(&self, name: &str) -> Vec<u8> {
        fs::read(self.scratch.path().join("tree").join(name)).unwrap()
    }
}

fn find(image: &Image, path: &str) -> Inode {
    let mut inode = image.root().unwrap();
    for name in path.split('/') {
        inode = image.lookup(inode.ino, name.as_bytes()).unwrap().unwrap();
    }
    inode
}

fn read(image: &Image, inode: &Inode, expected: &[u8], at: usize, len: usize) {
    let read = image.read(inode, at as u64, len).unwrap();
    let end = expected.len().min(at + len);
    assert!(*read == expected[at..end], "{at}");
}

/// Waits until `len` bytes are decoded.
fn wait_for(image: &Image, len: usize) {
    let end = Instant::now() + Duration::from_secs(120);
    while image.decoded_len().0 < len as u64 {
        assert!(Instant::now() < end, "{} of {len}", image.decoded_len());
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Would catch: prefetch of only one block, or none if repeats lead elsewhere or blocks are
/// uncompressed.
#[test]
fn prefetch_follows_the_file_for_several_blocks() {
    let built = Built::new();
    for name in ["a-long", "b-back", "c-noise"] {
        let image = built.open(THREADS);
        let (inode, expected) = (find(&image, name), built.bytes(name));
        let read_len = 5 * BLOCK_LEN;
        for at in (0..read_len).step_by(READ_LEN) {
            read(&image, &inode, &expected, at, READ_LEN);
        }
        // Five blocks are read by now. Behind them, one block more than there are threads is
        // prefetched.
        wait_for(&image, read_len + (THREADS + 1) * BLOCK_LEN);
    }
}

/// Would catch: blocks decoded twice, or prefetched for no reader.
#[test]
fn a_file_read_in_order_is_decoded_once() {
    let built = Built::new();
    for name in ["a-long", "b-back", "c-noise"] {
        for threads in [0, THREADS] {
            let image = built.open(threads);
            let (inode, expected) = (find(&image, name), built.bytes(name));
            let places: Vec<usize> = (0..expected.len()).step_by(READ_LEN).collect();
            for pair in places.chunks(2) {
                // Requests of the kernel arrive out of order.
                for &at in pair.iter().rev() {
                    read(&image, &inode, &expected, at, READ_LEN);
                }
            }
            let decoded = image.decoded_len().0 as usize;
            let most = expected.len() + 3 * BLOCK_LEN;
            assert!(decoded <= most, "{name}, {threads}: {decoded}");
        }
    }
}

/// Would catch: prefetch for a random reader, and whole blocks decoded for 4 KiB.
#[test]
fn random_reads_decode_only_fronts() {
    let built = Built::new();
    let lens = [0, THREADS].map(|threads| {
        let image = built.open(threads);
        for name in ["a-long", "b-back"] {
            let (inode, expected) = (find(&image, name), built.bytes(name));
            for no in 0..12 {
                // Near each other, in neighbouring blocks, but never sequential.
                let at = no * 2 * BLOCK_LEN + 10_000;
                read(&image, &inode, &expected, at, 4096);
            }
        }
        image.decoded_len().0
    });
    assert_eq!(lens[0], lens[1]);
    // A front is 128 KiB: half of a block.
    assert!(lens[0] <= 24 * (BLOCK_LEN as u64) / 2, "{}", lens[0]);
}

#[test]
fn small_reads_in_neighbouring_blocks_are_not_sequential() {
    let built = Built::new();
    let image = built.open(THREADS);
    let (inode, expected) = (find(&image, "a-long"), built.bytes("a-long"));
    for block in 0..20 {
        read(&image, &inode, &expected, block * BLOCK_LEN + 5000, 4096);
    }
    let decoded = image.decoded_len().0 as usize;
    assert!(decoded <= 20 * BLOCK_LEN / 2, "{decoded}");
}

/// Would catch: adjacent small files that are not recognized as a sequential read of their stream.
#[test]
fn adjacent_small_files_are_prefetched_along_their_stream() {
    let built = Built::new();
    let image = built.open(THREADS);
    let read_len = 20_000;
    for no in 0..50 {
        let name = format!("small/{no:03}");
        let inode = find(&image, &name);
        read(&image, &inode, &built.bytes(&name), 0, read_len);
    }
    wait_for(&image, 50 * read_len + THREADS * BLOCK_LEN);
    for no in 50..200 {
        let name = format!("small/{no:03}");
        read(
            &image,
            &find(&image, &name),
            &built.bytes(&name),
            0,
            read_len,
        );
    }
    let decoded = image.decoded_len().0 as usize;
    assert!(decoded <= 200 * read_len + 3 * BLOCK_LEN, "{decoded}");
    assert!(image.lookup(ROOT_INODE, b"small").unwrap().is_some());
}

/// Would catch: prefetch that evicts the data being read from a small cache.
#[test]
fn prefetch_does_not_evict_the_current_data_from_a_small_cache() {
    let built = Built::new();
    let options = OpenOptions {
        cache_len: ByteLen(1 << 20),
        prefetch_threads: THREADS,
        ..OpenOptions::default()
    };
    let image = Image::open_path(&built.scratch.path().join("image"), 0, &options).unwrap();
    for name in ["a-long", "b-back"] {
        let (inode, expected) = (find(&image, name), built.bytes(name));
        for at in (0..expected.len()).step_by(READ_LEN) {
            read(&image, &inode, &expected, at, READ_LEN);
        }
        let counts = image.cache_counts();
        assert!(counts.used_len <= counts.len_max);
    }
    let decoded = image.decoded_len().0 as usize;
    assert!(decoded <= 2 * FILE_LEN + 8 * BLOCK_LEN, "{decoded}");
}

/// Would catch: uncompressed blocks that stay in memory behind their reader, although the kernel
/// has a copy and each takes fresh memory; compressed blocks that are evicted with them.
#[test]
fn uncompressed_blocks_are_evicted_behind_their_reader() {
    let built = Built::new();
    let image = built.open(0);
    let mut used = Vec::new();
    for name in ["c-noise", "a-long"] {
        let (inode, expected) = (find(&image, name), built.bytes(name));
        for at in (0..expected.len()).step_by(READ_LEN) {
            read(&image, &inode, &expected, at, READ_LEN);
        }
        used.push(image.cache_counts().used_len as usize);
        // Evicted data can be read again.
        read(&image, &inode, &expected, 0, READ_LEN);
    }
    assert!(used[0] <= 5 * BLOCK_LEN, "{used:?}");
    assert!(used[1] >= FILE_LEN, "{used:?}");
}
