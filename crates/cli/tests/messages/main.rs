//! Errors of all kinds. Those that name a way out are in one file for reviewers, `messages.golden`.
//! `WEALD_BLESS=1 cargo test -p weald-cli --test messages` rewrites it.
#![allow(missing_docs)]

mod lines;
#[path = "../support/mod.rs"]
mod support;

use lines::{LINES, PREPARE};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;
use support::{Bench, Output, run, weald_path};

fn bench() -> Bench {
    let bench = Bench::new();
    fs::create_dir(bench.at("bin")).expect("mkdir");
    symlink(weald_path(), bench.at("bin/weald")).expect("link");
    symlink(weald_path(), bench.at("bin/mount.weald")).expect("link");
    let prepared = shell(&bench, PREPARE);
    assert_eq!(prepared.code, Some(0), "{}", prepared.stderr);
    // Images of future versions: a newer version number, and an unknown required feature.
    let image = fs::read(bench.at("image")).expect("read");
    for (name, at) in [("newer-version", 8), ("newer-features", 39)] {
        let mut image = image.clone();
        image[at] = 0x40;
        let checksum = blake3::hash(&image[..48]);
        image[48..64].copy_from_slice(&checksum.as_bytes()[..16]);
        fs::write(bench.at(name), image).expect("write");
    }
    let mut store = fs::read(bench.at("store/store")).expect("read");
    store[8] = 0x40;
    let checksum = blake3::hash(&store[..80]);
    store[80..96].copy_from_slice(&checksum.as_bytes()[..16]);
    bench.sh("cp -a store newer-store");
    fs::write(bench.at("newer-store/store"), store).expect("write");
    bench
}

fn shell(bench: &Bench, line: &str) -> Output {
    let path = std::env::var("PATH").unwrap_or_default();
    let dir = bench.0.path();
    // A server that starts by mistake must not block the test.
    let mut command = Command::new("timeout");
    command
        .args(["60", "bash", "-c", line])
        .current_dir(dir)
        .env("PATH", format!("{}:{path}", dir.join("bin").display()))
        .env("WEALD_RUNTIME_DIR", dir.join("run/place"))
        .env("LC_ALL", "C")
        .env_remove("SOURCE_DATE_EPOCH");
    run(&mut command)
}

/// Replaces the digits of digests by stars, because digests change with the format of images.
fn without_digests(text: &str) -> String {
    let words = text.split_inclusive(|c: char| !c.is_ascii_hexdigit());
    let words = words.map(|word| {
        let digits = word.trim_end_matches(|c: char| !c.is_ascii_hexdigit());
        match digits.len() {
            12 | 64 if digits.starts_with("000000") => word.to_owned(),
            12 | 64 => "*".repeat(digits.len()) + &word[digits.len()..],
            _ => word.to_owned(),
        }
    });
    words.collect()
}

/// The text without process ids.
fn without_processes(text: &str) -> String {
    let mut parts = text.split("process ");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let rest = part.trim_start_matches(|c: char| c.is_ascii_digit());
        let id = if rest.len() < part.len() { "*" } else { "" };
        out.push_str(&format!("process {id}{rest}"));
    }
    out
}

/// The default size of the cache depends on the machine.
fn without_cache_size(text: &str) -> String {
    let Some((before, rest)) = text.split_once("a cache of ") else {
        return text.to_owned();
    };
    let (_, after) = rest.split_once(" MiB").expect("a size");
    format!("{before}a cache of * MiB{after}")
}

/// Whether messages say what to do: they name a command, an option or something to use.
fn name_a_way_out(said: &str) -> bool {
    let ways = [
        "'weald ", "\"weald ", " --", "use ", "put ", "remove ", "wait ",
    ];
    let is_own = |line: &&str| {
        let line = line.trim_start();
        line.starts_with("weald: ") || line.starts_with("mount.weald: ")
    };
    let mut own = said.lines().filter(is_own);
    own.any(|line| ways.iter().any(|way| line.contains(way)))
}

/// Runs a line in a fresh copy of the directory; returns its status and messages, if they name a
/// way out. All others end in order, too, and say something.
fn run_line(bench: &Bench, line: &str) -> String {
    let output = shell(bench, line);
    let dir = bench.0.path().display().to_string();
    let said = without_digests(&output.stderr.replace(&dir, "DIR"));
    let said = without_processes(&without_cache_size(&said));
    // How much memory the threads may take depends on the machine.
    let is_kept =
        |line: &&str| !line.starts_with("weald: memory: ") || !line.contains(" may take ");
    let said = said.lines().filter(is_kept);
    let said: String = said.map(|line| format!("    {line}\n")).collect();
    let listed = if line.starts_with("weald check") && output.code == Some(1) {
        output
            .text()
            .lines()
            .filter(|line| !line.starts_with("not clean"))
            .map(|line| format!("  | {line}\n"))
            .collect()
    } else {
        String::new()
    };
    let reset = "rm -rf x; if mountpoint -q mnt; then weald umount mnt; fi";
    if !line.contains("umount") && !line.starts_with("weald serve") {
        assert_eq!(shell(bench, reset).code, Some(0), "{line}");
    }
    let code = output.code.expect("a status");
    // 32 is that of mount(8).
    assert!(
        [0, 1, 2, 32].contains(&code),
        "{line}: status {code}: {said}"
    );
    let is_silent = said.is_empty() && output.text().is_empty();
    let may_be_silent = code == 0 || line.contains(" -q ");
    assert!(
        may_be_silent || !is_silent,
        "{line}: status {code}, no word"
    );
    if name_a_way_out(&said) {
        format!("$ {line}   -> {code}\n{listed}{said}")
    } else {
        String::new()
    }
}

/// Would catch: a changed message that says what to do, which a reviewer then reads and accepts;
/// and an error without a word, or with the status of a crash.
#[test]
fn messages_that_name_a_way_out_are_in_the_golden_file() {
    let bench = bench();
    let mut text = String::new();
    for (section, lines) in LINES {
        text.push_str(&format!("\n## {section}\n\n"));
        let is_mounted = *section == "Mounts while one is there";
        if is_mounted {
            assert_eq!(shell(&bench, "weald mount image mnt").code, Some(0));
        }
        for line in *lines {
            text.push_str(&run_line(&bench, line));
        }
        if is_mounted {
            assert_eq!(shell(&bench, "weald umount mnt").code, Some(0));
        }
    }
    let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/messages.golden");
    if std::env::var_os("WEALD_BLESS").is_some() {
        fs::write(&golden, &text).expect("write");
    }
    let expected = fs::read_to_string(&golden).expect("messages.golden");
    let lines = text.lines().zip(expected.lines());
    for (found, expected) in lines {
        assert_eq!(found, expected, "read it, then run with WEALD_BLESS=1");
    }
    assert_eq!(text.lines().count(), expected.lines().count());
}
