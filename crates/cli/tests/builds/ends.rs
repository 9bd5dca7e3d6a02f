//! Interrupted builds: killed, cancelled by a signal, or without disk space. No file may remain,
//! and an existing image must stay intact.
use crate::support::*;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};
use weald_testkit::Rng;

/// A tree that takes about a second to build and uses all stages.
fn make_source(dir: &Path) {
    for n in 0..300 {
        let sub = dir.join(format!("d{n}"));
        fs::create_dir(&sub).unwrap();
        (0..10).for_each(|f| fs::write(sub.join(format!("f{f}")), noise(n * 10 + f, 700)).unwrap());
    }
    (0..20).for_each(|n| fs::write(dir.join(format!("n{n}")), noise(n, 1_500_000)).unwrap());
    (0..8).for_each(|n| fs::write(dir.join(format!("t{n}")), lines(n, 2_500_000)).unwrap());
    fs::write(dir.join("long"), lines(99, 12 << 20)).unwrap();
}

const OPTIONS: [&str; 4] = ["--level", "3", "--threads", "2"];

/// Would catch: an incomplete image under its final name, temporary files that remain, an old image
/// that is changed before the new one is complete.
#[test]
fn a_killed_build_leaves_nothing_and_keeps_the_old_image() {
    let scratch = Scratch::new("512m");
    let (source, other) = (scratch.dir("source"), scratch.dir("other"));
    make_source(&source);
    fs::write(other.join("file"), "old").unwrap();
    build(&OPTIONS, &other, &scratch.at("old"));
    let start = Instant::now();
    build(&OPTIONS, &source, &scratch.at("new"));
    let mut time = start.elapsed();
    let (old, new) = (
        fs::read(scratch.at("old")).unwrap(),
        fs::read(scratch.at("new")).unwrap(),
    );
    let mut rng = Rng::from_environment();
    let mut killed_count = 0;
    for round in 0..96 {
        if round >= 24 && killed_count >= 10 {
            break;
        }
        let is_forced = round % 2 == 1;
        let dir = scratch.dir(&format!("target{round}"));
        let target = dir.join("image");
        let force: &[&str] = if is_forced { &["--force"] } else { &[] };
        if is_forced {
            fs::write(&target, &old).unwrap();
        }
        let delay = time.mul_f64(((round % 24) as f64 + rng.below(1000) as f64 / 1000.0) / 24.0);
        let start = Instant::now();
        let was_killed = killed_after(&[&OPTIONS[..], force].concat(), &source, &target, delay);
        if was_killed {
            killed_count += 1
        } else {
            // The machine is less loaded than at the first measurement.
            time = time.min(start.elapsed())
        }
        let found = names(&dir);
        match (found.as_slice(), is_forced) {
            ([], false) => assert!(was_killed, "done, but no image"),
            // The kill may come after the image got its name.
            ([name], _) => {
                let bytes = fs::read(dir.join(name)).unwrap();
                let is_whole = bytes == new || is_forced && was_killed && bytes == old;
                let what = (
                    is_forced,
                    was_killed,
                    bytes == old,
                    bytes == new,
                    bytes.len(),
                );
                assert!(
                    name == "image" && is_whole,
                    "{round}: {delay:?}: {name} {what:?}"
                );
            }
            _ => panic!("after {delay:?}: {found:?}"),
        }
        fs::remove_dir_all(&dir).unwrap();
    }
    assert!(
        killed_count >= 10,
        "only {killed_count} builds were killed in time"
    );
}

/// Starts a build and kills it after `delay`; returns false if it had finished.
fn killed_after(options: &[&str], source: &Path, target: &Path, delay: Duration) -> bool {
    let mut child = build_command(options, source, target).spawn().unwrap();
    let end = Instant::now() + delay;
    while Instant::now() < end && child.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let _ = child.kill();
    let status = child.wait().unwrap();
    assert!(status.success() || status.signal() == Some(9), "{status}");
    !status.success()
}

/// Waits until the process has an open unnamed file in `dir` with data in it.
fn wait_until_writing(child: &Child, dir: &Path) {
    let fds = PathBuf::from(format!("/proc/{}/fd", child.id()));
    let is_output = |fd: fs::DirEntry| {
        fs::read_link(fd.path())
            .is_ok_and(|to| to.starts_with(dir) && to.to_string_lossy().ends_with("(deleted)"))
    };
    let end = Instant::now() + Duration::from_secs(120);
    while !fs::read_dir(&fds).unwrap().any(|fd| is_output(fd.unwrap())) {
        assert!(Instant::now() < end, "no output file after two minutes");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Would catch: death by the signal, an exit status of success, files that remain, a lost old
/// image.
#[test]
fn signals_cancel_a_build_with_a_message() {
    let scratch = Scratch::new("256m");
    let source = scratch.dir("source");
    make_source(&source);
    for (round, signal) in ["INT", "TERM", "TERM"].iter().enumerate() {
        let dir = scratch.dir(&format!("target{round}"));
        let target = dir.join("image");
        let is_forced = round == 2;
        let options: &[&str] = if is_forced {
            &["--level", "9", "--force"]
        } else {
            &["--level", "9"]
        };
        if is_forced {
            fs::write(&target, "old").unwrap();
        }
        let child = build_command(options, &source, &target).spawn().unwrap();
        wait_until_writing(&child, &dir);
        let sent = Command::new("kill")
            .args(["-s", signal, &child.id().to_string()])
            .status();
        assert!(sent.unwrap().success());
        let output = child.wait_with_output().unwrap();
        assert_eq!(
            (output.status.code(), stderr(&output).as_str()),
            (Some(2), "weald: interrupted\n")
        );
        if is_forced {
            assert_eq!(fs::read(&target).unwrap(), b"old")
        } else {
            assert_eq!(names(&dir), Vec::<String>::new())
        }
    }
}

#[track_caller]
fn assert_full(output: &Output, words: &[&str]) {
    let text = stderr(output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(
        text.starts_with("weald: ") && text.lines().count() == 1,
        "{text}"
    );
    words
        .iter()
        .for_each(|word| assert!(text.contains(word), "{word:?} is not in {text:?}"));
}

/// Would catch: a part of an image that remains under the name, a message that does not name the
/// full disk.
#[test]
fn a_full_disk_is_reported_and_no_file_remains() {
    let scratch = Scratch::new("256m");
    let source = scratch.dir("source");
    make_source(&source);
    for size in ["64k", "1m", "8m"] {
        let small = Scratch::new(size);
        let target = small.at("image");
        for options in [&OPTIONS[..], &["--level", "0"], &["--level", "9"]] {
            let output = build_command(options, &source, &target).output().unwrap();
            assert_full(
                &output,
                // The failed write is to the image, or to the unnamed file beside it that holds
                // data for repeats outside memory.
                &[small.path().to_str().unwrap(), "No space left on device"],
            );
            assert_eq!(names(small.path()), Vec::<String>::new());
        }
    }
    let options = [&OPTIONS[..], &["--output-device"]].concat();
    let output = build_command(&options, &source, Path::new("/dev/full"))
        .output()
        .unwrap();
    assert_full(&output, &["/dev/full", "No space left on device"]);
}

/// Would catch: a full disk that destroys the old image.
#[test]
fn a_full_disk_leaves_the_old_image() {
    let scratch = Scratch::new("256m");
    let source = scratch.dir("source");
    make_source(&source);
    let small = Scratch::new("4m");
    fs::write(small.at("image"), "old").unwrap();
    let options = [&OPTIONS[..], &["--force"]].concat();
    let output = build_command(&options, &source, &small.at("image"))
        .output()
        .unwrap();
    assert_full(&output, &["image", "No space left on device"]);
    assert_eq!(names(small.path()), ["image"]);
    assert_eq!(fs::read(small.at("image")).unwrap(), b"old");
}

/// Would catch: a full disk below the spool that is not reported, or whose place is not named.
#[test]
fn a_full_disk_below_the_spool_is_reported() {
    let scratch = Scratch::new("256m");
    let source = scratch.dir("source");
    (0..24).for_each(|n| fs::write(source.join(format!("t{n}")), lines(n, 2_500_000)).unwrap());
    let small = Scratch::new("16m");
    let options = [
        "--level",
        "3",
        "--memory",
        "110M",
        "--categorize",
        "incompressible,x86",
    ];
    let output = build_command(&options, &source, &small.at("image"))
        .output()
        .unwrap();
    let dir = small.path().to_str().unwrap();
    assert_full(&output, &[dir, "temporary file", "No space left on device"]);
    assert_eq!(names(small.path()), Vec::<String>::new());
    build(&options, &source, &scratch.at("image"));
    let image_len = fs::metadata(scratch.at("image")).unwrap().len();
    assert!(
        image_len < 15 << 20,
        "the image itself fills the disk: {image_len}"
    );
}

/// Would catch: death by SIGXFSZ, without a message and without cleaning up.
#[test]
fn a_file_size_limit_is_an_error_like_a_full_disk() {
    let scratch = Scratch::new("256m");
    let source = scratch.dir("source");
    make_source(&source);
    let dir = scratch.dir("target");
    let limited = |target: &str| {
        let mut command = Command::new("bash");
        command.args([
            "-c",
            "ulimit -f 2048; exec \"$0\" build --quiet --level 1 \"$1\" \"$2\"",
            weald_bin(),
        ]);
        command.arg(&source).arg(target).current_dir(&dir);
        command
    };
    let output = limited("image").output().unwrap();
    assert_full(&output, &["image", "File too large"]);
    assert_eq!(names(&dir), Vec::<String>::new());
    let stdout = fs::File::create(dir.join("stream")).unwrap();
    let output = limited("-").stdout(stdout).output().unwrap();
    assert_full(&output, &["File too large"]);
}

/// Would catch: an incomplete image that is reported as success because the reader of the pipe has
/// ended.
#[test]
fn a_closed_pipe_is_reported() {
    let scratch = Scratch::new("256m");
    let source = scratch.dir("source");
    make_source(&source);
    let script =
        r#""$0" build --quiet --level 1 "$1" - | head -c 1000 >/dev/null; exit ${PIPESTATUS[0]}"#;
    let mut command = Command::new("bash");
    let output = command
        .args(["-c", script, weald_bin()])
        .arg(&source)
        .output()
        .unwrap();
    assert_full(&output, &["-: ", "Broken pipe"]);
}
