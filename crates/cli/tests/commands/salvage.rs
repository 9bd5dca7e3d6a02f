//! `weald salvage`: what is left of a damaged image, in a directory and in an image, and nothing
//! outside of them. Second copies: readers use them, and say so.
use crate::support::{Bench, Output};
use std::fs;
use weald_testkit::Rng;

/// A bench with `source` and its image, long enough for second copies.
fn bench() -> Bench {
    let bench = Bench::with_image();
    fs::write(bench.at("source/long"), Rng::new(1).bytes(600_000)).expect("write");
    let build = ["build", "-q", "-f", "-l", "1", "source", "image"];
    bench.weald(build).expect(0, "");
    bench
}

/// Overwrites 16 bytes of `image` as `damaged`: those at `at` from the start, or from the end.
fn damage(bench: &Bench, at: i64) {
    let mut bytes = fs::read(bench.at("image")).expect("read");
    let end = bytes.len() as i64;
    let at = usize::try_from(if at < 0 { end + at } else { at }).expect("a place");
    bytes[at..at + 16].iter_mut().for_each(|byte| *byte ^= 0x55);
    fs::write(bench.at("damaged"), bytes).expect("write");
}

/// Where the first block of data is, behind superblock and header.
const IN_FIRST_BLOCK: i64 = 64 + 64 + 20;

/// Checks status and standard error of a command: each line has `part`, and most commands open an
/// image once.
#[track_caller]
fn says(output: Output, code: i32, part: &str) -> Output {
    assert_eq!(output.code, Some(code), "{}", output.stderr);
    let lines: Vec<&str> = output.stderr.lines().collect();
    let says = !lines.is_empty() && lines.len() < 3;
    let is_same = lines.iter().all(|line| line.contains(part));
    assert!(says && is_same, "{}", output.stderr);
    output
}

/// Would catch: a result that differs from what is left; a loss that is not named, or that has
/// status 0; two forms of the result that differ.
#[test]
fn what_is_left_comes_back_in_both_forms() {
    let bench = bench();
    damage(&bench, IN_FIRST_BLOCK);
    let text = bench
        .weald(["salvage", "damaged", "out"])
        .expect(1, "")
        .text();
    let lines = text.lines();
    let lost: Vec<&str> = lines
        .filter_map(|line| line.strip_prefix("lost: "))
        .collect();
    assert!(!lost.is_empty(), "{text}");
    for line in &lost {
        let path = line.strip_suffix(": its content is damaged");
        let path = path.unwrap_or_else(|| panic!("{line}"));
        assert!(!bench.at("out").join(path).exists(), "{path}");
        fs::remove_file(bench.at("source").join(path)).expect("a file of the source");
    }
    let json = ["salvage", "--json", "--image", "damaged", "new"];
    let json = bench.weald(json).expect(1, "").json();
    assert_eq!(json.len(), lost.len() + 1);
    assert_eq!(json[lost.len()]["complete"], false);
    bench.weald(["check", "-q", "new"]).expect(0, "");
    let again = bench.weald(["salvage", "-q", "--image", "damaged", "new"]);
    says(again, 2, "new");
    bench.weald(["diff", "new", "out"]).expect(0, "");
    // The directories have other mtimes since files were removed.
    let diff = ["diff", "--ignore", "mtime", "new", "source"];
    bench.weald(diff).expect(0, "");
}

/// Would catch: superblock, footer or directory whose damage costs anything, or is called clean.
#[test]
fn the_root_of_an_image_survives() {
    let bench = bench();
    let copy = "weald: the image is damaged at byte ";
    for at in [0, 40, -16, -100, -200, -400] {
        damage(&bench, at);
        says(bench.weald(["diff", "damaged", "source"]), 0, copy);
        // It reads footers only.
        assert_eq!(bench.weald(["generations", "damaged"]).code, Some(0));
        let check = says(bench.weald(["check", "damaged"]), 1, copy);
        assert!(
            check.text().contains("their second copy is whole"),
            "{}",
            check.text()
        );
        let out = format!("out{at}");
        let text = bench
            .weald(["salvage", "damaged", &out])
            .expect(0, "")
            .text();
        assert!(text.contains("everything is there"), "{text}");
        let append = bench.weald(["build", "--append", "source", "damaged"]);
        assert_eq!(append.code, Some(2), "{}", append.stderr);
    }
    for count in [1, 100, 127] {
        bench.sh(&format!("cp image damaged; truncate -s -{count} damaged"));
        says(bench.weald(["diff", "damaged", "source"]), 0, copy);
        let recover = bench.weald(["recover", "damaged"]);
        says(recover, 2, "its second copy is whole");
    }
}

/// Would catch: a salvage that writes through a symlink that another user left in the target, or
/// that replaces a file of the target.
#[test]
fn the_target_leads_nowhere_else() {
    let bench = bench();
    damage(&bench, IN_FIRST_BLOCK);
    bench.sh("mkdir out elsewhere; echo mine > elsewhere/x");
    let names = bench.weald(["ls", "image"]).expect(0, "").text();
    for name in names.lines() {
        bench.sh(&format!("ln -s ../elsewhere 'out/{name}'"));
    }
    let out = bench.weald(["salvage", "damaged", "out"]);
    assert_eq!(out.code, Some(1), "{}", out.stderr);
    assert_eq!(bench.sh("ls elsewhere; cat elsewhere/x"), "x\nmine\n");
}

/// Would catch: a salvage without end, since the end of a directory of ext4 is at 2^63 - 1, and a
/// command that waits for the writer of a named pipe.
#[test]
fn what_is_no_file_is_refused_at_once() {
    let bench = Bench::new();
    bench.sh("mkdir tree; mkfifo pipe");
    for name in ["tree", "pipe", "/dev/zero"] {
        for command in ["salvage", "check", "ls", "generations", "recover", "info"] {
            let out = if command == "salvage" { "out" } else { "" };
            let words = format!("timeout 20 \"$WEALD\" {command} {name} {out}");
            let status = bench.sh(&format!("{words} >said 2>&1 && echo 0 || echo $?"));
            let said = fs::read_to_string(bench.at("said")).unwrap();
            assert_eq!(status.trim(), "2", "{words}: {said}");
            assert!(!bench.at("out").exists(), "{words}");
        }
    }
}
