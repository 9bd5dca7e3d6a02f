//! Cold reads decode exactly what the index predicts, only the front of a block if that is enough,
//! and return the right bytes.

use std::fs;
use std::path::Path;
use std::process::Command;
use weald_builder::{BuildOptions, CodecSpec, Silent, build_image};
use weald_format::ROOT_INODE;
use weald_image::{DecodeCost, Image, OpenOptions};
use weald_testkit::rng::{Rng, words};

const BLOCK_LEN: u64 = 1 << 20;
const READ_LEN: usize = 4096;
/// An odd step, so that reads begin anywhere in blocks and pages; some cross into the next block.
const STEP: usize = 97_961;

const FILES: [&str; 5] = ["a-text", "b-pieces", "c-program", "d-noise", "e-text.gz"];

fn make_tree(dir: &Path) {
    let base = words(1, 3 << 20);
    fs::write(dir.join("a-text"), &base).unwrap();
    // Pieces of the first file in other places, so that a read crosses from block to block.
    let mut pieces = Vec::new();
    for (no, piece) in base.chunks(6000).enumerate() {
        if no % 3 == 0 {
            pieces.extend_from_slice(piece);
            pieces.extend_from_slice(&words(no as u64 + 7, 700));
        }
    }
    fs::write(dir.join("b-pieces"), &pieces).unwrap();
    let program = fs::read(std::env::current_exe().unwrap()).unwrap();
    fs::write(
        dir.join("c-program"),
        &program[..program.len().min(3 << 20)],
    )
    .unwrap();
    let mut noise = vec![0; 2 << 20];
    blake3::Hasher::new().finalize_xof().fill(&mut noise);
    fs::write(dir.join("d-noise"), noise).unwrap();
    fs::write(dir.join("e-text"), words(99, 700 << 10)).unwrap();
    let gzip = Command::new("gzip")
        .arg("-n")
        .arg(dir.join("e-text"))
        .status();
    assert!(gzip.unwrap().success());
}

fn open(path: &Path) -> Image {
    Image::open_path(path, 0, &OpenOptions::default()).unwrap()
}

/// Reads at many offsets of file `name`, each with empty caches. Returns the mean of the bytes
/// decoded, and checks that the index predicts it.
fn cold_reads(image: &Image, dir: &Path, name: &str, read_len: usize) -> u64 {
    let expected = fs::read(dir.join(name)).unwrap();
    let inode = image.lookup(ROOT_INODE, name.as_bytes()).unwrap().unwrap();
    let (mut sum, mut count) = (0, 0);
    for at in (0..expected.len()).step_by(STEP) {
        image.drop_caches();
        let before = image.decoded_len().0;
        let read = image.read(&inode, at as u64, read_len).unwrap();
        let end = expected.len().min(at + read_len);
        assert!(*read == expected[at..end], "{name} at {at}");
        let decoded = image.decoded_len().0 - before;
        let mut cost = DecodeCost::default();
        let range = at as u64..end as u64;
        image
            .add_decode_cost(inode.content.unwrap(), range, &mut cost)
            .unwrap();
        assert_eq!(decoded, cost.decoded_len(), "{name} at {at}");
        (sum, count) = (sum + decoded, count + 1);
    }
    sum / count
}

/// Would catch: a prediction that differs from the reader's work; a front that is decoded too far,
/// or not far enough.
#[test]
fn cold_reads_decode_as_predicted_and_mostly_fronts() {
    let scratch = tempfile::tempdir().unwrap();
    let (tree, path) = (scratch.path().join("tree"), scratch.path().join("x.weald"));
    fs::create_dir(&tree).unwrap();
    make_tree(&tree);
    for (codec, has_fronts, dictionary_len) in [
        (CodecSpec::Zstd(3), true, 0),
        (CodecSpec::Zstd(3), true, 64 << 10),
        (CodecSpec::Xz(1), true, 0),
        (CodecSpec::None, true, 0),
        (CodecSpec::Lz4, false, 0),
    ] {
        let options = BuildOptions {
            codec,
            block_len: BLOCK_LEN,
            dictionary_len,
            x86_codec: None,
            ..BuildOptions::level(7).unwrap()
        };
        build_image(&tree, &path, true, &options, &Silent).unwrap();
        let image = open(&path);
        let has_dictionary = image.stream_dictionary(0).unwrap().is_some();
        assert_eq!(has_dictionary, dictionary_len > 0, "{codec:?}");
        let means = FILES.map(|name| cold_reads(&image, &tree, name, READ_LEN));
        // A block is one BLOCK_LEN. Fronts are half of it, rounded up; repeats take several blocks;
        // recipes take whole blocks.
        let [text, _, program, ..] = means;
        assert_eq!(
            program < BLOCK_LEN * 3 / 4,
            has_fronts,
            "{codec:?} {program}"
        );
        assert!(text < BLOCK_LEN * 3 / 4 || !has_fronts, "{codec:?} {text}");
    }
}

/// Would catch: a front that is returned when more bytes are needed, or that stays in memory next
/// to the whole block.
#[test]
fn a_second_read_decodes_the_whole_block_once() {
    let scratch = tempfile::tempdir().unwrap();
    let (tree, path) = (scratch.path().join("tree"), scratch.path().join("x.weald"));
    fs::create_dir(&tree).unwrap();
    let bytes = words(5, BLOCK_LEN as usize);
    fs::write(tree.join("file"), &bytes).unwrap();
    let options = BuildOptions {
        block_len: BLOCK_LEN,
        ..BuildOptions::level(3).unwrap()
    };
    build_image(&tree, &path, false, &options, &Silent).unwrap();
    let image = open(&path);
    let inode = image.lookup(ROOT_INODE, b"file").unwrap().unwrap();
    let mut decoded = Vec::new();
    for at in [0, 100_000, 700_000, 4096, 1_000_000] {
        let read = image.read(&inode, at as u64, READ_LEN).unwrap();
        assert!(*read == bytes[at..at + READ_LEN], "{at}");
        decoded.push(image.decoded_len().0);
    }
    let front = 128 << 10;
    let both = front + BLOCK_LEN;
    assert_eq!(decoded, [front, front, both, both, both]);
}

/// Would catch: bytes lost or misplaced at the borders of blocks or of the windows in which extents
/// are looked up; a large read that decodes a block twice.
#[test]
fn a_read_of_thousands_of_pieces_is_correct() {
    let scratch = tempfile::tempdir().unwrap();
    let (tree, path) = (scratch.path().join("tree"), scratch.path().join("x.weald"));
    fs::create_dir(&tree).unwrap();
    let base = words(1, 3 << 20);
    fs::write(tree.join("a-base"), &base).unwrap();
    let mut rng = Rng::new(5);
    let mut pieces = Vec::new();
    for no in 0..6000 {
        let from = rng.below(base.len() as u64 - 400) as usize;
        pieces.extend_from_slice(&base[from..from + 400]);
        pieces.extend_from_slice(&words(no + 7, rng.below(300) as usize));
        if rng.one_in(50) {
            pieces.extend_from_slice(&[0; 500]);
        }
    }
    fs::write(tree.join("b-pieces"), &pieces).unwrap();
    let options = BuildOptions {
        block_len: 100_000,
        ..BuildOptions::level(5).unwrap()
    };
    build_image(&tree, &path, false, &options, &Silent).unwrap();
    let image = open(&path);
    let inode = image.lookup(ROOT_INODE, b"b-pieces").unwrap().unwrap();
    let mut extent_count = 0;
    let mut count = |_| {
        extent_count += 1;
        Ok(())
    };
    image
        .each_extent_of(inode.content.unwrap(), &mut count)
        .unwrap();
    assert!(extent_count > 8000, "{extent_count}");
    let read = image.read(&inode, 0, pieces.len()).unwrap();
    assert!(*read == pieces[..], "all at once");
    for _ in 0..200 {
        let from = rng.below(pieces.len() as u64) as usize;
        let len = rng.below(2 << 20) as usize;
        let end = pieces.len().min(from + len);
        let read = image.read(&inode, from as u64, len).unwrap();
        assert!(*read == pieces[from..end], "{from}..{end}");
    }
    cold_reads(&image, &tree, "b-pieces", 200 << 10);
    // Blocks of which the reader could decode a front first.
    let options = BuildOptions {
        block_len: BLOCK_LEN,
        ..BuildOptions::level(5).unwrap()
    };
    build_image(&tree, &path, true, &options, &Silent).unwrap();
    let image = open(&path);
    let inode = image.lookup(ROOT_INODE, b"b-pieces").unwrap().unwrap();
    let read = image.read(&inode, 0, 1 << 20).unwrap();
    assert!(*read == pieces[..1 << 20], "a window");
    let (decoded, stored) = (image.decoded_len().0, image.stream_len(0));
    assert!(decoded <= stored, "{decoded} of {stored}");
}
