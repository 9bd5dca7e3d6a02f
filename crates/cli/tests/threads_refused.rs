//! Commands that start threads, where the system refuses them (`ulimit -u`): they work with those
//! that they have, or end with an error. They never panic and never wait for work that nobody does.
//!
//! The limit does not apply to root, so the commands run as a user that nothing else uses.
#![allow(missing_docs)]

mod support;

use std::fs;
use std::os::unix::fs::chown;
use std::process::Command;
use support::{Bench, Output, run};
use weald_testkit::command::copy_weald;

const USER: u32 = 54_321;
const SECONDS_MAX: &str = "120";

/// Commands, and what shows that they did their work.
const COMMANDS: [(&str, &str); 21] = [
    ("build -q -f source out/image", "cmp image out/image"),
    ("build -q -f -l 7 source out/seven", "test -s out/seven"),
    ("check image", "true"),
    ("check -q image", "true"),
    ("extract -q image out/tree", "diff -r source out/tree"),
    ("tar image", "tar -d -C source -f stdout"),
    ("sum image", "test $(wc -l < stdout) = 40"),
    ("diff image source", "test ! -s stdout"),
    ("find image --name f7", "grep -q f7 stdout"),
    ("cat image d/f7", "cmp stdout source/d/f7"),
    ("info --json image", "grep -q digest stdout"),
    ("rewrite -q -f -l 5 image out/five", "test -s out/five"),
    ("export erofs -f image out/erofs", "test -s out/erofs"),
    (
        "export composefs --image out/composefs image",
        "test -s out/composefs",
    ),
    ("forest -q --fanout 5x5x4 out/forest", "test -d out/forest"),
    ("store create out/store", "test -e out/store"),
    (
        "store add out/store:a source",
        "$WEALD diff out/store:a source",
    ),
    (
        "store import out/store image",
        "$WEALD diff out/store:image source",
    ),
    ("store check --data out/store", "true"),
    ("volume create out/store:v --from image", "true"),
    (
        "volume seal out/store:v --image out/sealed",
        "test -s out/sealed",
    ),
];

/// Runs a script as the user, who may have `threads` threads.
fn as_user(bench: &Bench, threads: u32, script: &str) -> Output {
    let mut command = Command::new("timeout");
    let ids = [format!("--reuid={USER}"), format!("--regid={USER}")];
    let limits = format!("ulimit -u {threads}; exec {script}");
    command.args(["-k", "9", SECONDS_MAX, "setpriv"]).args(ids);
    command.args(["--clear-groups", "bash", "-c", &limits]);
    run(command.current_dir(bench.0.path()).env("LC_ALL", "C"))
}

/// Would catch: a number of threads that takes all memory, or that one command takes and another
/// does not.
#[test]
fn too_many_threads_are_refused_by_every_command() {
    let bench = Bench::with_image();
    for words in [
        "build -qf source image",
        "check image",
        "extract image out",
        "sum image",
        "find image",
        "export dump image",
        "export erofs image out",
        "forest out",
    ] {
        for count in ["4096", "1000000", "18446744073709551615", "-1"] {
            let words = words.split(' ').map(str::to_owned);
            let option = format!("--threads={count}");
            let found = bench.weald(words.chain([option]));
            assert_eq!(found.code, Some(2), "{count}: {}", found.stderr);
            let way = "expected a number from 0 to 4095";
            assert!(found.stderr.contains(way), "{}", found.stderr);
        }
    }
    bench
        .weald(["extract", "-q", "--threads=4095", "image", "many"])
        .expect(0, "");
}

/// Would catch: a panic, a wait without end or a wrong result where a thread is refused.
#[test]
fn commands_work_or_end_where_threads_are_refused() {
    let bench = Bench::new();
    copy_weald(bench.at("weald"));
    fs::create_dir_all(bench.at("source/d")).expect("mkdir");
    let mut state = 1u64;
    for no in 0..40 {
        let random = std::iter::repeat_with(|| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        });
        let bytes: Vec<u8> = random.take(100_000 + 7919 * no).collect();
        fs::write(bench.at(format!("source/d/f{no}")), bytes).expect("write");
    }
    bench
        .weald(["build", "-q", "source", "image"])
        .expect(0, "");
    let mut refused = 0;
    for threads in 1..=4 {
        let mut is_store_short = false;
        let _ = fs::remove_dir_all(bench.at("out"));
        fs::create_dir(bench.at("out")).expect("mkdir");
        chown(bench.at("out"), Some(USER), Some(USER)).expect("chown");
        for (words, proof) in COMMANDS {
            let found = as_user(&bench, threads, &format!("./weald {words}"));
            let said = format!(
                "{threads} threads, {words}: {:?} {}",
                found.code, found.stderr
            );
            assert!(!found.stderr.contains("panicked"), "{said}");
            match found.code {
                Some(0) => {
                    fs::write(bench.at("stdout"), &found.stdout).expect("write");
                    bench.sh(proof);
                }
                Some(1 | 2) if found.stderr.contains("thread") => {
                    is_store_short |= words.contains("out/store");
                    refused += 1;
                }
                // It needs what an earlier command of the store could not make.
                Some(1 | 2) if words.contains("out/store") && is_store_short => {}
                _ => panic!("{said}"),
            }
        }
        eprintln!("{threads} threads: {refused} commands were refused so far");
    }
}
