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
            "\"$WEALD\" build {words} - packed < source.tar 2>&1 > /dev/null | grep memory: || true
            \"$WEALD\" diff image packed > /dev/null || true; rm packed"
        );
        let reported = bench.sh(&script);
        assert!(reported.lines().count() <= 1, "{words}: {reported}");
        for line in reported.lines() {
            let is_told = line.contains("may take") && line.ends_with("; -m sets a limit");
            assert!(is_told, "{words}: {line}");
        }
    }
    // One thread needs more than the usual 1,280 MiB.
    let words = "-t 1 -l 9 --block-size 64M - packed";
    let reported = bench.sh(&format!(
        "\"$WEALD\" build {words} < source.tar 2>&1; rm packed"
    ));
    assert!(
        reported.contains("memory: one thread may take "),
        "{reported}"
    );
    let quiet = bench.sh(&format!("\"$WEALD\" build -q {words} < source.tar 2>&1"));
    assert_eq!(quiet, "");
}

/// Would catch: threads that the usual limit of memory keeps from running on many processors, and
/// images whose bytes depend on the limit or on the number of threads.
#[test]
fn more_threads_take_more_memory_and_give_the_same_bytes() {
    let bench = Bench::with_image();
    bench.sh(
        "mkdir big; for i in $(seq 16); do head -c 300000 /dev/urandom | base64 > big/$i; done
        cat big/1 big/7 big/3 > big/again; cp -a source big/source",
    );
    for level in ["1", "5", "7"] {
        let told = bench.sh(&format!(
            "\"$WEALD\" build -l {level} -t 24 big many 2>&1 > /dev/null | grep memory: || true"
        ));
        // A machine with little free memory runs fewer threads.
        if level == "7" && available_len() > 12 << 30 {
            assert!(told.contains("memory: 24 threads may take "), "{told}");
        }
        bench.sh(&format!(
            "for words in '-t 1 -m 512M' '-t 3 -m 1G' '-t 16 -m 512M' '-t 16 -m 6G'; do
                \"$WEALD\" build -qf -l {level} $words big one; cmp one many
            done
            \"$WEALD\" build -qf -l {level} -t 1 big one; cmp one many
            tar cf big.tar -C big .; \"$WEALD\" build -qf -l {level} -t 16 - many < big.tar
            for m in 512M 6G; do
                \"$WEALD\" build -qf -l {level} -t 2 -m $m - one < big.tar; cmp one many
            done; rm one many"
        ));
    }
}

/// `MemAvailable` of `/proc/meminfo`, bytes.
fn available_len() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").expect("the memory");
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|l| l.trim().strip_suffix(" kB"));
    kib.expect("a number").parse::<u64>().expect("a number") << 10
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
