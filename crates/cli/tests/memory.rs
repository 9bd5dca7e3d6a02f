//! Memory of a build whose options need more than the usual limit.
#![allow(missing_docs)]

mod support;

use support::Bench;

/// Would catch: plain commands that fail because of the default limit.
#[test]
fn the_memory_limit_rises_as_the_options_require() {
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
        let reported = bench.sh(&script);
        assert!(reported.lines().count() <= 1, "{words}: {reported}");
        for line in reported.lines() {
            let is_told = line.starts_with("weald: memory: these options need ")
                && line.ends_with("; -m sets a limit");
            assert!(is_told, "{words}: {line}");
        }
    }
    // On two processors or fewer, the first of them needs more than the usual 1,280 MiB.
    let reported = bench.sh("\"$WEALD\" build -q -l 9 --block-size 64M - packed < source.tar 2>&1");
    assert!(reported.contains("these options need"), "{reported}");
}

/// Would catch: a message that does not name the option to change and a sufficient value.
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
