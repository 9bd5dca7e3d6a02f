//! Sequential reads by the kernel of uncompressed data: each block is read once, returned without a
//! copy, and not kept.

use std::fs;
use std::time::Duration;
use weald_builder::{BuildOptions, Silent, build_image};
use weald_format::{ByteLen, ROOT_INODE};
use weald_image::{Image, Inode, OpenOptions};

/// Block length of uncompressed data by default (`RAW_BLOCK_LEN_MAX`).
const BLOCK_LEN: usize = 512 << 10;
/// The file begins in the middle of a block.
const FILE_LEN: usize = 48 * BLOCK_LEN + 1234;
const FIRST_LEN: usize = 100_000;
/// Length of a request of the kernel, bytes.
const READ_LEN: usize = 1 << 20;
/// Number of requests in flight.
const AT_ONCE: usize = 4;

struct Built {
    scratch: tempfile::TempDir,
    long: Vec<u8>,
}

fn noise(seed: u8, len: usize) -> Vec<u8> {
    let mut noise = vec![0; len];
    let mut hasher = blake3::Hasher::new();
    hasher.update(&[seed]).finalize_xof().fill(&mut noise);
    noise
}

impl Built {
    fn new() -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let tree = scratch.path().join("tree");
        fs::create_dir(&tree).unwrap();
        let long = noise(2, FILE_LEN);
        fs::write(tree.join("a-first"), noise(1, FIRST_LEN)).unwrap();
        fs::write(tree.join("b-long"), &long).unwrap();
        let path = scratch.path().join("image");
        let options = BuildOptions::level(3).unwrap();
        build_image(&tree, &path, false, &options, &Silent).unwrap();
        Self { scratch, long }
    }

    fn open(&self) -> (Image, Inode) {
        let options = OpenOptions {
            cache_len: ByteLen(64 << 20),
            prefetch_threads: 2,
            ..OpenOptions::default()
        };
        let image = Image::open_path(&self.scratch.path().join("image"), 0, &options).unwrap();
        assert!(image.is_mostly_incompressible());
        let inode = image.lookup(ROOT_INODE, b"b-long").unwrap().unwrap();
        (image, inode)
    }

    /// Reads as the kernel does, with requests out of order. Returns the number of chunks.
    fn read_all(&self, image: &Image, inode: &Inode) -> usize {
        let mut chunk_count = 0;
        let places: Vec<usize> = (0..FILE_LEN).step_by(READ_LEN).collect();
        for few in places.chunks(AT_ONCE) {
            for &at in few.iter().rev() {
                let chunks = image.read_vectored(inode, at as u64, READ_LEN).unwrap();
                assert!(chunks.iter().all(|chunk| !chunk.is_empty()));
                chunk_count += chunks.len();
                let end = FILE_LEN.min(at + READ_LEN);
                let read: Vec<&[u8]> = chunks.iter().map(|chunk| &**chunk).collect();
                assert!(read.concat() == self.long[at..end], "{at}");
            }
        }
        chunk_count
    }
}

/// Would catch: blocks read twice, prefetched by threads that delay the kernel, or copied together;
/// blocks that stay in memory although the kernel has a copy.
#[test]
fn each_block_is_read_once_and_evicted() {
    let built = Built::new();
    let (image, inode) = built.open();
    let chunk_count = built.read_all(&image, &inode);
    // A request touches three blocks, because blocks and file begin at different offsets.
    assert!(chunk_count > 2 * FILE_LEN / READ_LEN, "{chunk_count}");
    // Blocks are kept until the reader is recognized as sequential.
    let known_after = AT_ONCE * READ_LEN + 2 * BLOCK_LEN;
    let decoded = image.decoded_len().0 as usize;
    assert!(decoded >= FILE_LEN, "{decoded}");
    assert!(decoded <= FILE_LEN + known_after, "{decoded}");
    let used = image.cache_counts().used_len as usize;
    // As many spare buffers again.
    assert!(used <= 2 * known_after, "{used}");
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(
        image.decoded_len().0 as usize,
        decoded,
        "prefetched for no reader"
    );
    // Evicted data can be read again.
    built.read_all(&image, &inode);
}

/// Would catch: a reader other than the kernel that waits for each block because nothing is
/// prefetched.
#[test]
fn prefetch_works_for_readers_other_than_the_kernel() {
    let built = Built::new();
    let (image, inode) = built.open();
    let len = 6 * READ_LEN;
    for at in (0..len).step_by(READ_LEN) {
        let read = image.read(&inode, at as u64, READ_LEN).unwrap();
        assert!(*read == built.long[at..at + READ_LEN], "{at}");
    }
    for _ in 0..1000 {
        if image.decoded_len().0 as usize > len + BLOCK_LEN {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("{} decoded", image.decoded_len());
}
