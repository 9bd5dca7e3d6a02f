//! `weald forest` on real file systems: killed, and without disk space.
#![allow(missing_docs)]

#[path = "../builds/support/mod.rs"]
mod build_support;
mod direct;

use build_support::*;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};
use weald_testkit::Rng;

const RICH: [&str; 22] = [
    "--fanout",
    "5x20x20",
    "--names",
    "words",
    "--sizes",
    "log-normal:1K:1",
    "--duplicates",
    "0.2",
    "--hard-links",
    "0.05",
    "--hard-links-across",
    "0.1",
    "--symlinks",
    "0.1",
    "--xattrs",
    "0.1",
    "--sparse",
    "0.05",
    "--times",
    "random:1600000000:86400",
    "--modes",
    "0644,0600,0755",
];

fn forest(args: &[&str], target: &Path) -> Output {
    let mut command = Command::new(weald_bin());
    command.args(["forest", "--quiet"]).args(args).arg(target);
    command.env("LC_ALL", "C").output().unwrap()
}

/// Runs a script in `scratch`, up to its first error.
fn bash(scratch: &Scratch, script: &str) -> Output {
    let mut command = Command::new("bash");
    command.args(["-euo", "pipefail", "-c", script]);
    command.env("WEALD", weald_bin()).env("LC_ALL", "C");
    command
        .current_dir(scratch.at(""))
        .output()
        .expect("bash runs")
}

/// An exFAT file system; drop unmounts it and frees its device.
struct ExFat<'a>(&'a Scratch);

impl ExFat<'_> {
    /// Mounts exFAT from a loop device in `exfat` on `mnt` with its FUSE driver: the file system of
    /// memory sticks.
    fn mount(scratch: &Scratch) -> ExFat<'_> {
        let script = "truncate -s 64M exfat; mkfs.exfat exfat >/dev/null; mkdir mnt
            losetup -f --show exfat >device; mount.exfat-fuse \"$(cat device)\" mnt >/dev/null \
             2>log || { cat log >&2; exit 1; }
            mountpoint -q mnt";
        let guard = ExFat(scratch);
        let output = bash(scratch, script);
        assert!(output.status.success(), "{}", stderr(&output));
        guard
    }
}

impl Drop for ExFat<'_> {
    fn drop(&mut self) {
        bash(self.0, "umount mnt; losetup -d \"$(cat device)\"");
    }
}

/// exFAT ignores case, has no symlinks and no hard links, and cannot rename without replacing.
/// Would catch: an entry that it cannot hold and that is not reported by name, or any other entry
/// that is missing.
#[test]
fn unsupported_entries_are_reported_by_name() {
    let scratch = Scratch::new("64m");
    let guard = ExFat::mount(&scratch);
    let at = |name: &str| scratch.at("mnt").join(name);
    for (name, args) in [
        ("numbers", &["--fanout", "3x4x20"][..]),
        ("unicode", &["--fanout", "5x20", "--names", "unicode"]),
        ("long", &["--fanout", "3x20", "--names", "long"]),
        (
            "filled",
            &["--fanout", "3x20", "--sizes", "log-normal:1K:1"],
        ),
    ] {
        done(args, &at(name));
        let output = bash(&scratch, &format!("find mnt/{name} -type f | wc -l"));
        let files: u32 = String::from_utf8_lossy(&output.stdout)
            .trim()
            .parse()
            .unwrap();
        assert_eq!(
            files,
            if name == "numbers" {
                240
            } else {
                20 * u32::from(args[1].as_bytes()[0] - b'0')
            }
        );
    }
    for (args, what) in [
        (
            ["--names", "case"],
            "LEAF-A: the file system treats it as equal to a name that exists",
        ),
        (
            ["--symlinks", "0.5"],
            "cannot be made: Function not implemented",
        ),
        (
            ["--hard-links", "0.5"],
            "cannot be linked: Operation not permitted",
        ),
    ] {
        let reported = refused(&[&["--fanout", "2x20"][..], &args].concat(), &at(args[0]));
        assert!(
            reported.contains("mnt/--") && reported.contains(what),
            "{reported}"
        );
    }
    // The target has a forest already.
    let reported = refused(&["--fanout", "2x20"], &at("numbers"));
    assert!(reported.contains("not empty; use --resume"), "{reported}");
    drop(guard);
}

#[track_caller]
fn done(args: &[&str], target: &Path) {
    let output = forest(args, target);
    assert_eq!(
        (output.status.code(), stderr(&output)),
        (Some(0), String::new())
    );
}

#[track_caller]
fn refused(args: &[&str], target: &Path) -> String {
    let output = forest(args, target);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    stderr(&output)
}

/// Output of find and sha256sum for a tree: names, kinds, modes, sizes, times, hard links,
/// contents.
fn listing(dir: &Path) -> String {
    let script = "find . -printf '%p %y %m %s %T@ %n %l\n' | LC_ALL=C sort
        find . -type f -links +1 -printf '%i %p\n' | LC_ALL=C sort -k2 | awk '!($1 in n) { n[$1] \
         = NR } { print n[$1], $2 }'
        find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum";
    let output = Command::new("bash")
        .args(["-ec", script])
        .current_dir(dir)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    // The size of a directory depends on how it was filled, and so does the line of the root.
    let is_told = |line: &&str| line.split(' ').nth(1) != Some("d");
    text.lines().filter(is_told).collect::<Vec<_>>().join("\n")
}

/// Makes a forest and kills the program at a random moment within `time`; returns false if it had
/// finished.
fn kill_within(time: Duration, rng: &mut Rng, args: &[&str], target: &Path) -> bool {
    let mut command = Command::new(weald_bin());
    command.args(["forest", "--quiet"]).args(args).arg(target);
    let mut child = command.spawn().unwrap();
    std::thread::sleep(Duration::from_micros(rng.below(time.as_micros() as u64)));
    child.kill().unwrap();
    !child.wait().unwrap().success()
}

/// Would catch: a resumed forest with missing, incomplete or different entries.
#[test]
fn killed_at_any_moment_a_forest_can_be_resumed() {
    let scratch = Scratch::new("512m");
    let whole = scratch.at("whole");
    let start = Instant::now();
    done(&RICH, &whole);
    let time = start.elapsed();
    let expected = listing(&whole);
    assert!(expected.lines().count() > 4000);
    let mut rng = Rng::from_environment();
    let mut killed_count = 0;
    let resumed = scratch.at("resumed");
    let resuming: Vec<&str> = RICH.into_iter().chain(["--resume"]).collect();
    // The speed of this machine varies with its load.
    for _ in 0..400 {
        if killed_count >= 12 {
            break;
        }
        // At most a quarter of the time, so that several kills are needed.
        let was_killed = kill_within(time / 4, &mut rng, &resuming, &resumed);
        killed_count += u32::from(was_killed);
        if !was_killed || rng.one_in(6) {
            done(&resuming, &resumed);
            assert!(
                listing(&resumed) == expected,
                "another tree than undisturbed"
            );
            fs::remove_dir_all(&resumed).unwrap();
        }
    }
    assert!(
        killed_count >= 12,
        "only {killed_count} were killed in time"
    );
    done(&resuming, &resumed);
    assert!(
        listing(&resumed) == expected,
        "another tree than undisturbed"
    );
    let verifying: Vec<&str> = RICH.into_iter().chain(["--verify"]).collect();
    done(&verifying, &resumed);
    fs::write(resumed.join("2/07/stranger"), "").unwrap();
    let output = forest(&verifying, &resumed);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("2/07/stranger: not part of the forest"),
        "{}",
        stderr(&output)
    );
}

/// Would catch: a forest larger than the window of the threads, in which missing leaves are not
/// found, or leaves after the first gap.
#[test]
fn a_forest_of_many_leaves_can_be_resumed() {
    let scratch = Scratch::new("512m");
    let (whole, resumed) = (scratch.at("whole"), scratch.at("resumed"));
    // Five times as many leaves as the window has, in smaller directories, which threads fill in
    // parallel.
    let words = ["--fanout", "50x100x2"];
    let resuming = ["--fanout", "50x100x2", "--resume"];
    let start = Instant::now();
    done(&words, &whole);
    let time = start.elapsed();
    let mut rng = Rng::from_environment();
    let mut killed_count = 0;
    for _ in 0..100 {
        if killed_count >= 5 {
            break;
        }
        if kill_within(time / 3, &mut rng, &resuming, &resumed) {
            killed_count += 1
        } else {
            fs::remove_dir_all(&resumed).unwrap()
        }
    }
    assert!(killed_count >= 5, "only {killed_count} were killed in time");
    done(&resuming, &resumed);
    assert!(
        listing(&resumed) == listing(&whole),
        "another tree than undisturbed"
    );
    done(&["--fanout", "50x100x2", "--verify"], &resumed);
}

/// Would catch: a file system that is too small for the forest, that stays mounted, or that remains
/// after a failure.
#[test]
fn a_file_system_is_made_around_a_forest() {
    let scratch = Scratch::new("2g");
    for kind in ["ext4", "xfs", "btrfs"] {
        let file = scratch.at(kind);
        let making: Vec<&str> = RICH.into_iter().chain(["--mkfs", kind]).collect();
        done(&making, &file);
        assert_eq!(names(scratch.path()), [kind]);
        let mnt = tempfile::tempdir().unwrap();
        let mount = |args: &[&str], path: &Path| {
            let status = Command::new("mount")
                .args(args)
                .arg(path)
                .arg(mnt.path())
                .status();
            assert!(status.unwrap().success(), "{kind}");
        };
        mount(&["-o", "loop,ro"], &file);
        let verifying: Vec<&str> = RICH.into_iter().chain(["--verify"]).collect();
        let output = forest(&verifying, mnt.path());
        assert!(
            Command::new("umount")
                .arg(mnt.path())
                .status()
                .unwrap()
                .success()
        );
        assert_eq!(
            (output.status.code(), stderr(&output)),
            (Some(0), String::new()),
            "{kind}"
        );
        let error = refused(&making, &file);
        assert!(
            error.contains(&format!("{kind}: already exists")),
            "{error}"
        );
        fs::remove_file(&file).unwrap();
    }
}

/// Would catch: a missing resource that is not named, a forest that cannot be resumed then, and
/// free space that is not usable for a file.
#[test]
fn missing_space_is_reported_and_more_space_lets_it_resume() {
    let scratch = Scratch::new("1g");
    let small = |inodes: &str, len: &str| {
        let file = scratch.at("small");
        let script = "truncate -s \"$2\" \"$1\" && mkfs.ext4 -q -F -m 0 -N \"$3\" \"$1\"";
        let status = Command::new("bash")
            .args(["-ec", script, "-"])
            .arg(&file)
            .args([len, inodes])
            .status();
        assert!(status.unwrap().success());
        let mnt = scratch.dir("mnt");
        let status = Command::new("mount")
            .args(["-o", "loop"])
            .arg(&file)
            .arg(&mnt)
            .status();
        assert!(status.unwrap().success());
        mnt
    };
    let away = || {
        let status = Command::new("umount").arg(scratch.at("mnt")).status();
        assert!(status.unwrap().success());
        fs::remove_dir(scratch.at("mnt")).unwrap();
    };
    let args = ["--fanout", "20x100"];
    let mnt = small("500", "64M");
    let error = refused(&args, &mnt);
    assert!(
        error.contains("no inode is left; --resume continues"),
        "{error}"
    );
    let error = refused(&args, &mnt);
    assert!(error.contains("not empty; use --resume"), "{error}");
    away();
    let args = ["--fanout", "20x100", "--sizes", "constant:40K", "--resume"];
    let mnt = small("5000", "64M");
    let error = refused(&args, &mnt);
    assert!(
        error.contains("no space is left; --resume continues"),
        "{error}"
    );
    let status = Command::new("bash")
        .args([
            "-ec",
            "umount mnt && truncate -s 256M small && e2fsck -pf small >/dev/null && \
         resize2fs small 2>/dev/null >&2 && mount -o loop small mnt",
        ])
        .current_dir(scratch.path())
        .status();
    assert!(status.unwrap().success());
    done(&args, &mnt);
    done(
        &["--fanout", "20x100", "--sizes", "constant:40K", "--verify"],
        &mnt,
    );
    let status = Command::new("mount")
        .args(["-o", "remount,ro"])
        .arg(&mnt)
        .status();
    assert!(status.unwrap().success());
    let error = refused(&["--fanout", "2x2"], &mnt.join("new"));
    assert!(error.contains("Read-only file system"), "{error}");
    away();
}

/// Checks that every value that a refusal of `option` names is in the help and is accepted.
fn check_rules_are_named(option: &str, help: &str) {
    let run = |rule: &str| {
        let words = ["forest", "--dry-run", "--fanout", "2x2", option, rule];
        Command::new(weald_bin()).args(words).output().unwrap()
    };
    let refused = String::from_utf8(run("no-such-rule").stderr).unwrap();
    let (_, rest) = refused.split_once("expected ").unwrap();
    let (rules, _) = rest.split_once(", found").unwrap();
    for rule in rules.split(", ").flat_map(|r| r.split(" or ")) {
        assert!(help.contains(rule), "{option} {rule}: not in the help");
        let mut parts = rule.split(':');
        let name = parts.next().unwrap().to_owned();
        let example = parts.fold(name, |example, _| example + ":2");
        let output = run(&example);
        assert!(output.status.success(), "{option} {example}: {output:?}");
    }
}

/// Would catch: impossible values that are accepted.
#[test]
fn impossible_options_are_refused() {
    let scratch = Scratch::new("256m");
    let target = scratch.at("forest");
    let impossible: [(&[&str], &str); 12] = [
        (&["--fanout", "10x0"], "expected levels above 0"),
        (&["--fanout", "ten"], "--fanout: expected a number"),
        (
            &["--fanout", "9999999x9999999x9999999"],
            "at most 2^48 files",
        ),
        (&["--fanout", "20000000"], "at most 16777216"),
        (&["--versions", "999999999999"], "at most 2^48 files"),
        (&["--names", "klingon"], "expected counter, words, hex"),
        (&["--sizes", "huge"], "expected empty, constant:BYTES"),
        (&["--sizes", "constant:2T"], "at most 1T"),
        (&["--times", "constant:9999999999"], "below 2^33"),
        (&["--symlinks", "2"], "expected a share from 0 to 1"),
        (
            &["--symlinks", "0.9", "--hard-links", "0.9"],
            "a sum of at most 1",
        ),
        (&["--spec", "gone.toml"], "gone.toml: No such file"),
    ];
    for (args, expected) in impossible {
        let error = refused(args, &target);
        assert!(error.contains(expected), "{error}");
        assert!(!target.exists());
    }
}

/// Would catch: a rule or a style that the help does not name.
#[test]
fn the_help_names_all_styles_and_rules() {
    let help = Command::new(weald_bin())
        .args(["forest", "--help"])
        .output()
        .unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    for (style, _) in weald_forest::NAME_STYLES {
        assert!(help.contains(style), "{style}: not in the help");
    }
    for option in ["--sizes", "--times", "--symlink-style"] {
        check_rules_are_named(option, &help);
    }
}

/// Would catch: a prediction that differs from the forest.
#[test]
fn predictions_are_right() {
    let scratch = Scratch::new("256m");
    let target = scratch.at("forest");
    let spec = scratch.at("spec.toml");
    fs::write(
        &spec,
        "fanout = \"3x7\"\nsizes = \"constant:1000\"\nsymlinks = 0.3\n",
    )
    .unwrap();
    let spec = spec.to_str().unwrap();
    let output = Command::new(weald_bin())
        .args([
            "forest",
            "--spec",
            spec,
            "--fanout",
            "4x50",
            "--dry-run",
            "--json",
        ])
        .output()
        .unwrap();
    let reported: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    done(&["--spec", spec, "--fanout", "4x50"], &target);
    let count = |kind: &str| {
        let output = Command::new("find")
            .arg(&target)
            .args(["-type", kind, "-printf", "x"])
            .output();
        output.unwrap().stdout.len() as u64
    };
    assert_eq!(reported["directories"], 5);
    assert_eq!(
        (reported["symlinks"].as_u64(), reported["files"].as_u64()),
        (Some(count("l")), Some(count("f")))
    );
    assert_eq!(reported["len"].as_u64(), Some(count("f") * 1000));
}
