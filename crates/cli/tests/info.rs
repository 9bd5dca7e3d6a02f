//! `weald info --reading`, against figures that follow from how the tree is laid out.
#![allow(missing_docs)]

mod support;

use support::Bench;

const BLOCK: u64 = 64 << 10;

/// Four files of two and a bit blocks: `a` and `b` share the first, `c` has the second, and `d/a` is `a` again.
fn bench() -> Bench {
    let bench = Bench::new();
    let script = "mkdir -p tree/d tree/none
        for i in 1 2 3; do seq -f \"$i line %06.0f of many\" 1 4000 > lines$i; done
        head -c 32768 lines1 > tree/a; head -c 32768 lines2 > tree/b; head -c 65536 lines3 > tree/c
        cp tree/a tree/d/a; truncate -s 1M tree/d/sparse; echo end >> tree/d/sparse
        ln -s a tree/d/link; : > tree/none/empty";
    bench.sh(script);
    let build = [
        "build",
        "-q",
        "--codec",
        "none",
        "--block-size",
        "64K",
        "--match-size",
        "0",
        "--categorize",
        "none",
        "tree",
        "image",
    ];
    bench.weald(build).expect(0, "");
    bench
}

/// Would catch: blocks counted twice, holes that cost something, directories without files counted as free ones.
#[test]
fn what_reads_decode_is_counted() {
    let bench = bench();
    let info = bench
        .weald(["info", "--reading", "--json", "image"])
        .expect(0, "");
    let reading = &info.json()[0]["reading"];
    let number = |what: &str, key: &str| reading[what][key].as_u64().unwrap();
    // What ends the sparse file lies in a third block, 4 bytes long.
    assert_eq!(number("file", "count"), 4);
    assert_eq!(number("file", "max"), BLOCK);
    assert_eq!(number("file", "mean"), (3 * BLOCK + 4) / 4);
    // The root's files lie in two blocks, those of d in one and the last; none has no data.
    assert_eq!(number("directory", "count"), 2);
    assert_eq!(number("directory", "max"), 2 * BLOCK);
    assert_eq!(number("directory", "median"), BLOCK + 4);
    // Most of the content is a hole.
    assert_eq!(number("small_read", "median"), 0);
    assert_eq!(number("small_read", "max"), BLOCK);
    let text = bench
        .weald(["info", "--reading", "image"])
        .expect(0, "")
        .text();
    assert!(text.contains("4 KiB anywhere"), "{text}");
    let plain = bench.weald(["info", "--json", "image"]).expect(0, "");
    assert!(plain.json()[0].get("reading").is_none());
}

/// Would catch: what recipes make, and what they are made of, left out.
#[test]
fn recipes_cost_what_they_make_and_what_they_need() {
    let bench = Bench::new();
    bench.sh("mkdir tree; seq 1 20000 | gzip -9 > tree/n.gz");
    let build = ["build", "-q", "--categorize", "deflate", "tree", "image"];
    bench.weald(build).expect(0, "");
    let info = bench
        .weald(["info", "--reading", "--json", "image"])
        .expect(0, "");
    let made = std::fs::metadata(bench.at("tree/n.gz")).unwrap().len();
    let plain: u64 = (1..=20000)
        .map(|n: u32| n.to_string().len() as u64 + 1)
        .sum();
    // The block also holds the gzip header and trailer.
    let most = info.json()[0]["reading"]["file"]["max"].as_u64().unwrap();
    assert!(
        (plain + made - 18..plain + made + 18).contains(&most),
        "{most}, {plain} plain, {made} made"
    );
}

/// Would catch: a profile that does nothing, or that overrules what was asked for.
#[test]
fn the_interactive_profile_has_small_blocks() {
    let bench = bench();
    let block_len = |options: &[&str]| {
        let fixed = ["build", "-qf", "--profile", "interactive"];
        let arguments: Vec<&str> = fixed.iter().chain(options).copied().collect();
        bench
            .weald(arguments.into_iter().chain(["tree", "small"]))
            .expect(0, "");
        let info = bench.weald(["info", "--json", "small"]).expect(0, "");
        info.json()[0]["block_len_max"].as_u64().unwrap()
    };
    assert_eq!(block_len(&[]), 256 << 10);
    assert_eq!(block_len(&["--block-size", "1M"]), 1 << 20);
}
