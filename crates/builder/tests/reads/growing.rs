//! Large blocks are decoded only as far as needed, and further on demand: no byte is decoded twice,
//! and every byte is right with concurrent readers.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use weald_builder::{BuildOptions, CodecSpec, Silent, build_image};
use weald_format::{ByteLen, ROOT_INODE};
use weald_image::{DecodeCost, Image, OpenOptions, SharedCache};
use weald_testkit::rng::{Rng, words};

const BLOCK_LEN: u64 = 2 << 20;
/// Largest step of a decoder, bytes.
const STEP_LEN: u64 = 128 << 10;
const FILE_LEN: usize = 6 << 20;

/// A text, a program three times as long as a block (with its own filter), and pieces of both.
fn make_tree(dir: &Path) -> Vec<(&'static str, Vec<u8>)> {
    let text = words(3, FILE_LEN);
    // The header of a program for x86-64, and code of calls and addresses that is no repeat.
    let mut program = vec![
        0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 62, 0,
    ];
    program.resize(64, 0);
    let mut rng = Rng::new(9);
    while program.len() < FILE_LEN {
        program.extend_from_slice(&[0xe8, rng.below(256) as u8, rng.below(256) as u8, 0, 0]);
        program.extend_from_slice(&[0x48, 0x8d, 5, rng.below(256) as u8, 1, 0, 0, 0x90]);
    }
    program.truncate(FILE_LEN);
    let mut pieces = Vec::new();
    for _ in 0..1500 {
        for source in [&text, &program] {
            let from = rng.below(source.len() as u64 - 900) as usize;
            pieces.extend_from_slice(&source[from..from + 900]);
        }
    }
    let files = vec![
        ("a-text", text),
        ("b-program", program),
        ("c-pieces", pieces),
    ];
    for (name, bytes) in &files {
        fs::write(dir.join(name), bytes).unwrap();
    }
    files
}

fn build(scratch: &Path) -> (std::path::PathBuf, Vec<(&'static str, Vec<u8>)>) {
    let (tree, path) = (scratch.join("tree"), scratch.join("x.weald"));
    fs::create_dir(&tree).unwrap();
    let files = make_tree(&tree);
    let options = BuildOptions {
        codec: CodecSpec::Zstd(5),
        block_len: BLOCK_LEN,
        x86_codec: None,
        ..BuildOptions::level(5).unwrap()
    };
    build_image(&tree, &path, false, &options, &Silent).unwrap();
    (path, files)
}

fn read(image: &Image, name: &str, expected: &[u8], at: usize, len: usize) {
    let inode = image.lookup(ROOT_INODE, name.as_bytes()).unwrap().unwrap();
    let bytes = image.read(&inode, at as u64, len).unwrap();
    let end = expected.len().min(at + len);
    assert!(*bytes == expected[at..end], "{name}: {at}..{end}");
}

/// Would catch: a block decoded from its front again for a later read, or further than any read
/// needs; a prediction (`weald info --reading`) that is more than one step off.
#[test]
fn a_block_is_decoded_as_far_as_needed_and_no_byte_twice() {
    let scratch = tempfile::tempdir().unwrap();
    let (path, files) = build(scratch.path());
    for (name, expected) in &files[..2] {
        let image = Image::open_path(&path, 0, &OpenOptions::default()).unwrap();
        let inode = image.lookup(ROOT_INODE, name.as_bytes()).unwrap().unwrap();
        let mut cost = DecodeCost::default();
        let mut decoded = Vec::new();
        for at in [50_000, 20_000, 1_000_000, 300_000, 1_900_000, 1_111_111] {
            read(&image, name, expected, at, 4096);
            let range = at as u64..at as u64 + 4096;
            image
                .add_decode_cost(inode.content.unwrap(), range, &mut cost)
                .unwrap();
            let so_far = image.decoded_len().0;
            let computed = cost.decoded_len();
            // Both stop behind the same byte, each at the end of one of its steps.
            assert!(
                computed.abs_diff(so_far) <= STEP_LEN,
                "{name} at {at}: {so_far} {computed}"
            );
            decoded.push(so_far);
        }
        assert!(decoded[0] <= 2 * STEP_LEN, "{name}: {decoded:?}");
        assert_eq!(decoded[0], decoded[1], "{name}");
        assert_eq!(decoded[2], decoded[3], "{name}");
        assert_eq!(decoded[4], decoded[5], "{name}");
        assert!(
            decoded[1] < decoded[2] && decoded[3] < decoded[4],
            "{name}: {decoded:?}"
        );
        let len = expected.len();
        for at in (0..len).step_by(300_001) {
            read(&image, name, expected, at, 300_001);
        }
        let all = image.decoded_len().0;
        let stored: u64 = (0..8).map(|no| image.stream_len(no)).sum();
        assert!(all <= stored, "{name}: {all} of {stored}");
    }
}

/// Would catch: bytes returned before they are decoded or while they change, readers that wait
/// forever, memory above the limit, and blocks evicted while they are decoded.
#[test]
fn concurrent_readers_get_the_right_bytes() {
    let scratch = tempfile::tempdir().unwrap();
    let (path, files) = build(scratch.path());
    for (cache_len, seed) in [(256 << 20, 1), (20 << 20, 2), (8 << 20, 3), (0, 4)] {
        let cache = SharedCache::new(ByteLen(cache_len));
        let options = OpenOptions {
            cache: Some(cache.clone()),
            prefetch_threads: 2,
            ..OpenOptions::default()
        };
        let image = Arc::new(Image::open_path(&path, 0, &options).unwrap());
        let round_count = if cache_len < 20 << 20 { 10 } else { 150 };
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let (image, files, cache) = (&image, &files, &cache);
                scope.spawn(move || {
                    let mut rng = Rng::new(seed * 100 + thread);
                    for _ in 0..round_count {
                        let (name, bytes) = &files[rng.below(3) as usize];
                        let at = rng.below(bytes.len() as u64) as usize;
                        let len_max = if rng.one_in(2) { 5000 } else { 300_000 };
                        let len = 1 + rng.below(len_max) as usize;
                        read(image, name, bytes, at, len);
                        let counts = cache.counts();
                        assert!(counts.used_len <= counts.len_max, "{counts:?}");
                    }
                });
            }
        });
    }
}
