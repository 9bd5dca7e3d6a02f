//! `weald build` by ordinary users: without privileges, in any directory, with limited memory.
use crate::support::*;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;
use weald_testkit::command::copy_weald;

const NOBODY: u32 = 65_534;

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

/// Runs a build as an unprivileged user, from a copy of the binary that this user may run. The
/// shell runs `before` first.
fn as_nobody(
    scratch: &Scratch,
    before: &[&str],
    options: &[&str],
    source: &Path,
    target: &Path,
) -> Command {
    let binary = scratch.at("weald-for-nobody");
    copy_weald(&binary);
    set_mode(scratch.path(), 0o755);
    let id = NOBODY.to_string();
    let mut command = Command::new("setpriv");
    command.args([
        "--reuid",
        &id,
        "--regid",
        &id,
        "--clear-groups",
        "--inh-caps=-all",
        "--",
    ]);
    command
        .args(before)
        .arg(binary)
        .args(["build", "--quiet"])
        .args(options)
        .arg(source)
        .arg(target);
    command.env("LC_ALL", "C").stdin(Stdio::null());
    command
}

fn build_as_nobody(scratch: &Scratch, options: &[&str], source: &Path, target: &Path) -> Output {
    as_nobody(scratch, &[], options, source, target)
        .output()
        .unwrap()
}

/// Would catch: unreadable files that are silently empty, reported twice, or that keep other files
/// out.
#[test]
fn unreadable_files_are_reported_and_left_out() {
    let scratch = Scratch::new("512m");
    let (source, target) = (scratch.dir("source"), scratch.dir("target"));
    chown(&target, Some(NOBODY), Some(NOBODY)).unwrap();
    for dir in ["open", "shut", "listed", "entered"] {
        fs::create_dir(source.join(dir)).unwrap();
        fs::write(source.join(dir).join("inner"), dir).unwrap();
    }
    fs::write(source.join("open/readable"), "may be read").unwrap();
    fs::write(source.join("open/secret"), "may not").unwrap();
    fs::hard_link(source.join("open/secret"), source.join("zz-link")).unwrap();
    fs::write(source.join("open/empty-secret"), "").unwrap();
    fs::write(source.join("open/long-secret"), noise(1, 5 << 20)).unwrap();
    symlink("secret", source.join("open/symlink")).unwrap();
    for file in ["open/secret", "open/empty-secret", "open/long-secret"] {
        set_mode(&source.join(file), 0o600);
    }
    set_mode(&source.join("shut"), 0o700);
    set_mode(&source.join("listed"), 0o744);
    set_mode(&source.join("entered"), 0o711);
    let image = target.join("image");
    let output = build_as_nobody(&scratch, &["--level", "1"], &source, &image);
    let text = stderr(&output);
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    let denied = "Permission denied";
    let expected = [
        format!("weald: entered: cannot be listed: {denied}"),
        format!("weald: listed/inner: cannot be examined: {denied}"),
        format!("weald: open/long-secret: left out: cannot be opened: {denied}"),
        format!("weald: open/secret: left out: cannot be opened: {denied}"),
        format!("weald: shut: cannot be listed: {denied}"),
        format!("weald: zz-link: left out: cannot be opened: {denied}"),
    ];
    assert_eq!(
        (output.status.code(), lines),
        (Some(1), expected.iter().map(String::as_str).collect())
    );
    check(&image);
    let found = Command::new(weald_bin())
        .arg("find")
        .arg(&image)
        .output()
        .unwrap();
    let found = String::from_utf8(found.stdout).unwrap();
    let shown: Vec<&str> = found
        .lines()
        .map(|l| l.trim_start_matches(['.', '/']))
        .filter(|l| !l.is_empty())
        .collect();
    // An empty file needs no reading, so that it is complete.
    let expected = [
        "listed",
        "open",
        "open/empty-secret",
        "open/inner",
        "open/readable",
        "open/symlink",
    ];
    assert_eq!(shown, expected);
}

/// Would catch: an unreadable source that counts as an empty one.
#[test]
fn an_unreadable_source_is_an_error() {
    let scratch = Scratch::new("512m");
    let (source, target) = (scratch.dir("source"), scratch.dir("target"));
    chown(&target, Some(NOBODY), Some(NOBODY)).unwrap();
    set_mode(&source, 0o700);
    let output = build_as_nobody(&scratch, &[], &source, &target.join("image"));
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(
        text.contains("source") && text.contains("Permission denied"),
        "{text}"
    );
    assert_eq!(names(&target), Vec::<String>::new());
    // A target directory without write permission is an error too.
    set_mode(&source, 0o755);
    set_mode(&target, 0o700);
    let output = build_as_nobody(&scratch, &[], &source, &scratch.at("image"));
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("Permission denied"),
        "{}",
        stderr(&output)
    );
}

/// Would catch: properties of the caller in the image (umask, working directory, spelling of the
/// source, locale, time zone), and a second build with other bytes.
#[test]
fn the_image_does_not_depend_on_the_caller() {
    let scratch = Scratch::new("512m");
    let source = scratch.dir("source");
    fs::create_dir(source.join("dir")).unwrap();
    for n in 0..50 {
        fs::write(source.join(format!("dir/f{n}")), noise(n, 3000)).unwrap();
    }
    scratch.dir("elsewhere");
    symlink("source", scratch.at("link")).unwrap();
    let script = r#"
        cd "$1"
        "$0" build -q source plain
        (umask 077; "$0" build -q ./source/ umask)
        (cd elsewhere; "$0" build -q ../source/. ../relative)
        (cd source; "$0" build -q . ../dot)
        "$0" build -q "$1/source" "$1/absolute"
        "$0" build -q link/ link-image
        LC_ALL=de_DE.UTF-8 TZ=Asia/Tokyo COLUMNS=40 "$0" build -q -t 7 source environment
        "$0" build -q source - >stream
        cp plain again; "$0" build -q --force source again
        for image in umask relative dot absolute link-image environment stream again; do
            cmp plain "$image"
        done
    "#;
    let output = Command::new("bash")
        .args(["-euc", script, weald_bin()])
        .arg(scratch.path())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        stderr(&output)
    );
    let mode = |name: &str| fs::metadata(scratch.at(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("umask"), mode("plain")), (0o600, 0o644));
}

/// Would catch: `SOURCE_DATE_EPOCH` that is ignored, also if it is malformed; `--mtime` that does
/// not take precedence.
#[test]
fn the_environment_clamps_times() {
    let scratch = Scratch::new("512m");
    let source = scratch.dir("source");
    fs::write(source.join("f"), "x").unwrap();
    let run = |epoch: &str, options: &[&str]| {
        let target = scratch.at("image");
        let mut command = build_command(&[&["--force"], options].concat(), &source, &target);
        let output = command.env("SOURCE_DATE_EPOCH", epoch).output().unwrap();
        let stat = Command::new(weald_bin())
            .args(["stat", "--json"])
            .arg(target)
            .arg("f")
            .output()
            .unwrap();
        (
            output.status.code(),
            stderr(&output),
            String::from_utf8(stat.stdout).unwrap(),
        )
    };
    let (code, _, stat) = run("1000000000", &[]);
    assert!(code == Some(0) && stat.contains("1000000000"), "{stat}");
    let (code, _, stat) = run("1000000000", &["--mtime", "keep"]);
    assert!(code == Some(0) && !stat.contains("1000000000"), "{stat}");
    let (code, text, _) = run("soon", &[]);
    assert!(
        code == Some(2) && text.contains("SOURCE_DATE_EPOCH") && text.contains("soon"),
        "{text}"
    );
}

/// Would catch: directories that are left out, or a panic, if the system allows few descriptors or
/// threads.
#[test]
fn few_descriptors_and_threads_are_enough() {
    let scratch = Scratch::new("512m");
    let (source, target) = (scratch.dir("source"), scratch.dir("target"));
    chown(&target, Some(NOBODY), Some(NOBODY)).unwrap();
    let mut dir = source.clone();
    for n in 0..150 {
        fs::create_dir_all(dir.join("b/c")).unwrap();
        fs::write(dir.join("b/f"), noise(n, 500)).unwrap();
        dir = dir.join("a");
    }
    build(&["-l", "1"], &source, &scratch.at("whole"));
    let whole = fs::read(scratch.at("whole")).unwrap();
    for limit in ["--nofile=24", "--nproc=24"] {
        let image = target.join("image");
        let options = ["-l", "1", "-t", "16", "--force"];
        let mut command = as_nobody(&scratch, &["prlimit", limit], &options, &source, &image);
        let output = command.output().unwrap();
        assert_eq!(
            (output.status.code(), stderr(&output)),
            (Some(0), String::new()),
            "{limit}"
        );
        assert!(fs::read(image).unwrap() == whole, "{limit}");
    }
    let mut command = as_nobody(
        &scratch,
        &["prlimit", "--nproc=1"],
        &[],
        &source,
        &target.join("none"),
    );
    let output = command.output().unwrap();
    let text = stderr(&output);
    assert!(
        output.status.code() == Some(2) && text.contains("starting a thread"),
        "{text}"
    );
    assert_eq!(text.lines().count(), 1, "{text}");
}

/// Would catch: an image that contains itself or the image that it replaces, and so grows with
/// every build.
#[test]
fn an_image_in_its_own_source_does_not_hold_itself() {
    let scratch = Scratch::new("512m");
    let source = scratch.dir("source");
    fs::write(source.join("file"), noise(1, 100_000)).unwrap();
    let script = r#"
        cd "$1"
        "$0" build -q --mtime 0 . image
        cp image ../first
        "$0" build -q --mtime 0 --force . image
        cmp image ../first
        rm image
        "$0" build -q --mtime 0 . - >image
        cmp image ../first
        "$0" find image
    "#;
    let mut command = Command::new("bash");
    let output = command
        .args(["-euc", script, weald_bin()])
        .arg(&source)
        .output()
        .unwrap();
    let found = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(
        (output.status.code(), stderr(&output)),
        (Some(0), String::new()),
        "{found}"
    );
    assert!(
        found.contains("file") && !found.contains("image"),
        "{found}"
    );
}

/// Runs a build and returns its peak memory in bytes.
fn peak_len(options: &[&str], source: &Path, target: &Path) -> u64 {
    let mut child = build_command(options, source, target).spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    let mut peak = 0;
    // The kernel keeps the peak while the process lives. Between the last sample and its end the
    // process grows little.
    while child.try_wait().unwrap().is_none() {
        let text = fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|l| l.strip_prefix("VmHWM:"));
        let kib = line.and_then(|l| l.trim().trim_end_matches(" kB").parse::<u64>().ok());
        peak = peak.max(kib.unwrap_or(0) << 10);
        std::thread::sleep(Duration::from_millis(2));
    }
    let output = child.wait_with_output().unwrap();
    assert_eq!(
        (output.status.code(), stderr(&output)),
        (Some(0), String::new())
    );
    assert!(peak > 4 << 20, "nothing was measured");
    peak
}

/// Would catch: a memory limit that is exceeded because buffers grow with the input or encoders
/// need more than planned.
#[test]
fn the_memory_budget_is_kept() {
    let scratch = Scratch::new("768m");
    let source = scratch.dir("source");
    for n in 0..40 {
        let data = noise(n, 3_000_000);
        fs::write(
            source.join(format!("copy{n}")),
            [&data[..1_000_000], b"edit", &data[1_000_000..2_000_000]].concat(),
        )
        .unwrap();
        fs::write(source.join(format!("noise{n}")), data).unwrap();
    }
    (0..5).for_each(|n| fs::write(source.join(format!("lines{n}")), lines(n, 4_000_000)).unwrap());
    fs::write(source.join("long"), lines(77, 12 << 20)).unwrap();
    let target = scratch.at("image");
    let cases: [(&[&str], u64); 4] = [
        (&["-l", "1", "--memory", "100M"], 100),
        (&["-l", "3", "-t", "16", "--memory", "200M"], 200),
        (&["-l", "7", "--memory", "300M", "--exclude", "long"], 300),
        (&["-l", "9"], 1024),
    ];
    for (options, mib) in cases {
        let peak = peak_len(&[options, &["--force"]].concat(), &source, &target) >> 20;
        assert!(peak < mib, "{options:?}: {peak} MiB at most, {mib} allowed");
        println!("{options:?}: {peak} of {mib} MiB");
    }
    check(&target);
}

/// Would catch: tables of the tree that the memory plan does not count.
#[test]
fn the_memory_budget_counts_the_tree() {
    let scratch = Scratch::new("768m");
    let source = scratch.dir("source");
    let dir = weald_sys::open_dir(&source).unwrap();
    for n in 0..120_000u64 {
        let name = format!("n{:x}", n * 2_654_435_761 % (1 << 32));
        weald_sys::make_node_at(&dir, name.as_bytes(), weald_sys::NodeKind::EmptyFile, 0o644)
            .unwrap();
        weald_sys::set_xattr_at(&dir, name.as_bytes(), b"user.digest", &noise(n, 64)).unwrap();
    }
    let peak = peak_len(
        &["-l", "1", "--memory", "190M"],
        &source,
        &scratch.at("image"),
    ) >> 20;
    assert!(peak < 190, "{peak} MiB");
    println!("{peak} of 190 MiB");
}
