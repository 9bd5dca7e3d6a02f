//! Many images of one store in one server: shared blocks are in memory once.

use crate::ground::Ground;
use std::fs;
use std::path::Path;

/// Number of sibling versions.
const IMAGE_COUNT: usize = 50;

/// Bytes that all versions share, and bytes that each version has alone.
const SHARED_LEN: usize = 3 << 20;
const OWN_LEN: usize = 20 << 10;

/// Bytes of metadata that the cache may hold for each image.
const PAGES_LEN_MAX: u64 = 64 << 10;

/// Bytes that compress to less than half and contain no repeats.
fn text(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = weald_testkit::Rng::new(seed).bytes(len);
    bytes.iter_mut().for_each(|byte| *byte = b'a' + *byte % 8);
    bytes
}

/// Creates the image of version `index`; returns its name.
fn make(ground: &Ground, index: usize) -> String {
    let source = ground.0.dir("source");
    let own = text(1000 + index as u64, OWN_LEN);
    fs::write(source.join("z-own"), own).expect("write");
    let name = format!("version-{index}");
    let shape = ["--level", "1", "--block-size", "64K", "--order", "name"];
    ground.0.build(&source, &ground.0.image(&name), &shape);
    name
}

/// Mounts `image` and reads all of it.
fn mount_and_read(ground: &Ground, image: &str, index: usize) {
    let dir = ground.0.dir(&format!("m/{image}"));
    ground.0.mount(Path::new(image), &dir, &[]);
    let shared = fs::read(dir.join("a-shared")).expect("read");
    assert!(shared == fs::read(ground.at("source/a-shared")).expect("read"));
    let own = fs::read(dir.join("z-own")).expect("read");
    assert!(own == text(1000 + index as u64, OWN_LEN));
}

/// Bytes in the cache of the server.
fn cached_len(ground: &Ground) -> u64 {
    let report = ground.json(&["mounts", "--json"]);
    let servers: Vec<_> = report
        .iter()
        .filter(|report| report["type"] == "server")
        .collect();
    assert_eq!(servers.len(), 1);
    servers[0]["cache"]["used_len"].as_u64().expect("a number")
}

/// Would catch: a cache that holds a shared block once per image.
#[test]
fn images_of_a_store_share_blocks_in_memory() {
    let ground = Ground::new();
    let shared = text(1, SHARED_LEN);
    fs::write(ground.0.dir("source").join("a-shared"), shared).expect("write");
    ground.weald(&["store", "create", "-q", "store"]);
    let names: Vec<String> = (0..IMAGE_COUNT).map(|index| make(&ground, index)).collect();
    for name in &names {
        let image = format!("{name}.weald");
        ground.weald(&["store", "import", "-q", "store", &image]);
    }
    mount_and_read(&ground, &format!("store:{}", names[0]), 0);
    let one = cached_len(&ground);
    assert!(one > SHARED_LEN as u64, "{one}");
    for (index, name) in names.iter().enumerate().skip(1) {
        mount_and_read(&ground, &format!("store:{name}"), index);
    }
    let all = cached_len(&ground);
    let more_max = (IMAGE_COUNT as u64 - 1) * (4 * OWN_LEN as u64 + PAGES_LEN_MAX);
    // The same images as files, to prove that there is something to share.
    let before = cached_len(&ground);
    mount_and_read(&ground, "version-1.weald", 1);
    let file = cached_len(&ground).saturating_sub(before);
    println!(
        "in the cache: {one} bytes of one image, {all} of {IMAGE_COUNT}; {file} more of a file"
    );
    assert!(
        all < one + more_max,
        "{one} bytes of one image, {all} of {IMAGE_COUNT}"
    );
    assert!(file > SHARED_LEN as u64 / 2, "{file}");
}

/// Versions in small blocks that a dictionary compresses.
const ADDED_COUNT: usize = 6;

/// Would catch: blocks that are shared on disk, and in memory not, because they need a dictionary.
#[test]
fn blocks_with_a_dictionary_are_shared_in_memory() {
    let ground = Ground::new();
    let source = ground.0.dir("source");
    let (file_count, file_len) = (100, 20_000);
    for file in 0..file_count {
        let words = weald_testkit::rng::words(file, file_len);
        // Letters that repeat from file to file only as words.
        let noise = text(file + 1000, file_len);
        fs::write(source.join(format!("{file:03}")), [words, noise].concat()).expect("write");
    }
    ground.weald(&["store", "create", "-q", "store"]);
    let mut cached = Vec::new();
    for version in 0..ADDED_COUNT {
        let name = format!("version-{version}");
        fs::write(source.join("z-own"), text(version as u64, OWN_LEN)).expect("write");
        let add = [
            "store",
            "add",
            "-q",
            "--profile",
            "interactive",
            "store",
            "source",
        ];
        ground.weald(&[&add[..], &["--name", &name]].concat());
        let dir = ground.0.dir(&format!("m/{name}"));
        ground
            .0
            .mount(Path::new(&format!("store:{name}")), &dir, &[]);
        for entry in fs::read_dir(&dir).expect("list") {
            let entry = entry.expect("entry");
            let found = fs::read(entry.path()).expect("read");
            assert!(found == fs::read(source.join(entry.file_name())).expect("read"));
        }
        cached.push(cached_len(&ground));
    }
    let info = ground.weald(&["info", "store:version-3"]);
    assert!(info.contains("zstd-dictionary"), "{info}");
    let (first, last) = (cached[0], cached[ADDED_COUNT - 1]);
    println!("in the cache: {first} bytes of one image, {last} of {ADDED_COUNT}");
    let more_max = (ADDED_COUNT as u64 - 1) * (4 * OWN_LEN as u64 + 2 * PAGES_LEN_MAX);
    assert!(last < first + more_max, "{cached:?}");
}
