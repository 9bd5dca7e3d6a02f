//! The memory of a build: what happens where the options need more than their usual budget.
#![allow(missing_docs)]

mod support;

use support::Bench;

/// Would catch: plain commands that end with a limit that nobody asked for.
#[test]
fn the_limit_of_memory_rises_to_what_the_options_need() {
    let bench = Bench::with_image();
    bench.sh("tar cf source.tar source");
    for words in [
        "-l 9",
        "--block-size 64M",
        "--codec zstd:22 --block-size 16M",
        "--categorize all",
    ] {
        let script = format!(
            "\"$WEALD\" build -q {words} - packed < source.tar 2> raised; \"$WEALD\" diff image \
             packed \
             > /dev/null || true; rm packed; cat raised"
        );
        let told = bench.sh(&script);
        assert!(told.lines().count() <= 1, "{words}: {told}");
        for line in told.lines() {
            let is_told = line.starts_with("weald: memory: these options need ")
                && line.ends_with("; -m sets a limit");
            assert!(is_told, "{words}: {line}");
        }
    }
    // On two processors or fewer the first of them needs more than the usual 1,280 MiB.
    let told = bench.sh("\"$WEALD\" build -q -l 9 --block-size 64M - packed < source.tar 2>&1");
    assert!(told.contains("these options need"), "{told}");
}

/// Would catch: a message that leaves the user to guess which option to change, and to what.
#[test]
fn a_limit_that_is_too_low_says_what_would_fit() {
    let bench = Bench::with_image();
    let refused = bench.weald(["build", "-q", "-m", "400M", "-l", "9", "source", "packed"]);
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    let (_, rest) = refused
        .stderr
        .split_once("these options need ")
        .expect("the need");
    let (need, _) = rest.split_once(" MiB").expect("a number");
    assert!(
        rest.contains("and -m limits them to 400 MiB: use -m "),
        "{rest}"
    );
    let enough = format!("{need}M");
    bench
        .weald(["build", "-q", "-m", &enough, "-l", "9", "source", "packed"])
        .expect(0, "");
    let (_, blocks) = rest
        .split_once("--block-size ")
        .expect("blocks that would fit");
    let blocks = blocks.trim_end();
    let words = [
        "build",
        "-fq",
        "-m",
        "400M",
        "-l",
        "9",
        "--block-size",
        blocks,
    ];
    bench
        .weald([&words[..], &["source", "packed"]].concat())
        .expect(0, "");
}
