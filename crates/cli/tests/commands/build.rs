//! `weald build`: summaries, errors, and the resulting images.
use crate::support::{Bench, run, set_mtime};
use std::fs;
use std::os::unix::process::CommandExt;

#[test]
fn the_summary_reports_the_build() {
    let bench = Bench::new();
    bench.make_source();
    let text = bench
        .weald(["build", "--progress", "none", "source", "image"])
        .expect(0, "")
        .text();
    let words: Vec<&str> = text
        .lines()
        .map(|line| line.split("  ").next().unwrap_or_default())
        .collect();
    let rows = [
        "entries",
        "bytes in files",
        "",
        "",
        "",
        "",
        "",
        "data stored",
        "tree stored",
        "extents stored",
    ];
    assert_eq!(words[..10], rows, "{text}");
    assert_eq!(
        words[10..],
        ["image", "ratio", "time", "image digest", "tree digest"],
        "{text}"
    );
    assert!(
        text.starts_with("entries                         17\n"),
        "{text}"
    );
    let info = bench
        .weald(["info", "--json", "image"])
        .expect(0, "")
        .json();
    for key in ["image", "tree"] {
        let digest = info[0][format!("{key}_digest")]
            .as_str()
            .expect("a digest")
            .to_owned();
        assert!(text.contains(&digest), "{text}");
    }
}

#[test]
fn json_and_quiet() {
    let bench = Bench::new();
    bench.make_source();
    let report = bench
        .weald(["build", "--json", "--progress", "none", "source", "image"])
        .expect(0, "")
        .json();
    assert_eq!(
        (report.len(), report[0]["entry_count"].as_u64()),
        (1, Some(17))
    );
    assert_eq!(
        report[0]["image_len"].as_u64(),
        fs::metadata(bench.at("image")).ok().map(|m| m.len())
    );
    assert_eq!(
        bench
            .weald(["build", "-q", "source", "other"])
            .expect(0, "")
            .text(),
        ""
    );
}

#[test]
fn an_existing_image_is_replaced_only_by_force() {
    let bench = Bench::with_image();
    fs::write(bench.at("image"), "precious").expect("write");
    let refused = bench.weald(["build", "-q", "source", "image"]);
    assert_eq!(refused.code, Some(2));
    assert!(
        refused.stderr.starts_with("weald: image: ")
            && refused.stderr.ends_with("; --force replaces it\n"),
        "{}",
        refused.stderr
    );
    assert_eq!(fs::read(bench.at("image")).expect("read"), b"precious");
    bench
        .weald(["build", "-q", "--force", "source", "image"])
        .expect(0, "");
    bench.weald(["check", "-q", "image"]).expect(0, "");
}

#[test]
fn invalid_options_are_refused_with_one_line() {
    let bench = Bench::new();
    bench.make_source();
    for (args, stderr) in [
        (
            &["missing", "x"][..],
            "weald: missing: No such file or directory\n",
        ),
        (
            &["-l", "10", "source", "x"],
            "weald: level: expected 0 to 9, found 10\n",
        ),
        (
            &["--block-size", "1K", "source", "x"],
            "weald: block size: expected 4K to 64M, found 1024 bytes\n",
        ),
        (
            &["--codec", "zstd:23", "source", "x"],
            "weald: zstd level: expected 1 to 22, found 23\n",
        ),
        (
            &["--exclude-from", "gone", "source", "x"],
            "weald: gone: No such file or directory\n",
        ),
    ] {
        let output = bench.weald(["build", "-q"].iter().chain(args));
        assert_eq!(
            (output.code, output.stderr.as_str()),
            (Some(2), stderr),
            "{args:?}"
        );
        assert!(!bench.at("x").exists(), "{args:?}");
    }
    for args in [
        &["--codec", "gzip"][..],
        &["--memory", "much"],
        &["--owner", "no such user"],
        &["--mode", "u=q"],
        &["--mtime", "noon"],
    ] {
        let output = bench.weald(["build", "source", "x"].iter().chain(args));
        assert_eq!(output.code, Some(2), "{args:?}");
        assert!(
            output.stderr.starts_with("error: invalid value"),
            "{}",
            output.stderr
        );
    }
    let mut command = bench.command();
    let output = run(command
        .args(["build", "-q", "source", "x"])
        .env("SOURCE_DATE_EPOCH", "noon"));
    output.expect(
        2,
        "weald: SOURCE_DATE_EPOCH: expected seconds since 1970, found \"noon\"\n",
    );
}

#[test]
fn each_unreadable_file_is_reported_and_gives_status_1() {
    let bench = Bench::new();
    fs::create_dir_all(bench.at("source/dir")).expect("mkdir");
    fs::write(bench.at("source/open"), "open").expect("write");
    fs::write(bench.at("source/secret"), "secret").expect("write");
    bench.sh("chown -R 65534:65534 . && chmod 0 source/secret source/dir");
    let mut command = bench.command();
    let output = run(command
        .args(["build", "-q", "source", "image"])
        .uid(65534)
        .gid(65534));
    assert_eq!(output.code, Some(1), "{}", output.stderr);
    let mut lines: Vec<&str> = output.stderr.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(
        lines[0].starts_with("weald: dir: ") && lines[1].starts_with("weald: secret: "),
        "{lines:?}"
    );
    assert!(
        lines.iter().all(|line| line.contains("Permission denied")),
        "{lines:?}"
    );
    // No file is silently empty: an unreadable file is left out, or its contents are reported as
    // missing.
    assert_eq!(
        bench.weald(["cat", "image", "open"]).expect(0, "").text(),
        "open"
    );
    assert_ne!(bench.weald(["cat", "image", "secret"]).code, Some(0));
}

#[test]
fn rules_apply_in_the_order_of_the_command_line() {
    let bench = Bench::new();
    bench.make_source();
    let idle = "decides about nothing: no path matches, or an earlier rule does\n";
    let names = |args: &[&str]| {
        let built = bench.weald(["build", "-qf", "source", "image"].iter().chain(args));
        assert_eq!(built.code, Some(0), "{}", built.stderr);
        // The only rule that another one hides.
        let is_hidden = args.last() == Some(&"main.conf");
        assert_eq!(built.stderr.ends_with(idle), is_hidden, "{args:?}");
        assert_eq!(built.stderr.is_empty(), !is_hidden, "{args:?}");
        bench
            .weald(["find", "image", "etc", "--type", "f"])
            .expect(0, "")
            .text()
    };
    assert_eq!(names(&["--exclude", "*.conf"]), "");
    assert_eq!(
        names(&["--include", "main.conf", "--exclude", "*.conf"]),
        "etc/main.conf\n"
    );
    assert_eq!(
        names(&["--exclude", "*.conf", "--include", "main.conf"]),
        ""
    );
    fs::write(bench.at("rules"), "# comment\n/etc/deep/\ntwin.*\n").expect("write");
    assert_eq!(names(&["--exclude-from", "rules"]), "etc/main.conf\n");
    assert_eq!(
        names(&["--include", "twin.conf", "--exclude-from", "rules"]),
        "etc/main.conf\netc/twin.conf\n"
    );
}

#[test]
fn owners_modes_and_times_can_be_normalised() {
    let bench = Bench::new();
    bench.make_source();
    set_mtime(&bench.at("source/zero"), 5000);
    let stat = |args: &[&str], path: &str| {
        bench
            .weald(["build", "-qf", "source", "image"].iter().chain(args))
            .expect(0, "");
        bench
            .weald(["stat", "--json", "image", path])
            .expect(0, "")
            .json()
            .remove(0)
    };
    let zero = stat(&["--owner", "7:8", "--mode", "F600"], "zero");
    assert_eq!(
        (
            zero["uid"].as_u64(),
            zero["gid"].as_u64(),
            zero["mode"].as_str()
        ),
        (Some(7), Some(8), Some("0600"))
    );
    assert_eq!(stat(&["--owner", "7:8", "--group", "9"], "zero")["gid"], 9);
    assert_eq!(stat(&["--mtime", "@77"], "zero")["mtime"], 77);
    assert_eq!(stat(&["--mtime", "clamp:4000"], "zero")["mtime"], 4000);
    assert_eq!(stat(&["--mtime", "clamp:6000"], "zero")["mtime"], 5000);
    assert_eq!(stat(&["--no-xattrs"], "zero")["has_xattrs"], false);
    assert_eq!(stat(&[], "zero")["atime"], serde_json::Value::Null);
    assert!(stat(&["--keep-atime"], "zero")["atime"].is_i64());
    assert!(stat(&["--keep-ctime"], "zero")["ctime"].is_i64());
}

#[test]
fn source_date_epoch_makes_the_same_bytes() {
    let bench = Bench::new();
    bench.make_source();
    let image = |name: &str, threads: &str| {
        let mut command = bench.command();
        let args = ["build", "-q", "--threads", threads, "source", name];
        run(command.args(args).env("SOURCE_DATE_EPOCH", "1000")).expect(0, "");
        fs::read(bench.at(name)).expect("read")
    };
    let first = image("first", "1");
    // The names are created in another order, and files have other times.
    bench.sh(
        "mv source old; mkdir source; cp -a old/zero source/zero; cp -a old/. source/; touch \
     source/etc source",
    );
    assert!(image("second", "4") == first, "the images differ");
    assert_eq!(
        bench.weald(["stat", "--json", "first", "zero"]).json()[0]["mtime"],
        1000
    );
}

#[test]
fn progress_lines_appear_on_request_or_without_a_terminal() {
    let bench = Bench::new();
    bench.make_source();
    // So short a build shows no progress line: these come every five seconds.
    bench
        .weald(["build", "--progress", "lines", "source", "image"])
        .expect(0, "");
    // A terminal shows a bar, which is removed at the end.
    let shown = bench.sh("script -qec '$WEALD build -f source image' /dev/null");
    assert!(shown.contains("image digest"), "{shown}");
}

/// Would catch: an explanation that builds an image, or that names another rule than the one that
/// decides.
#[test]
fn rules_are_explained() {
    let bench = Bench::new();
    bench.make_source();
    std::fs::write(bench.at("rules"), "# no objects\n*.o\n").unwrap();
    let explain = |path: &str| {
        let words = [
            "build",
            "--include",
            "/d/",
            "--exclude-from",
            "rules",
            "--explain-filter",
        ];
        let output = bench.weald(words.iter().chain(&[path, "source", "image"]));
        output.expect(0, "").text()
    };
    assert_eq!(
        explain("new/x.o"),
        "kept: new: no rule matches\nleft out: new/x.o: *.o (rules, line 2)\n"
    );
    assert_eq!(explain("source/d/"), "kept: d: /d/\n");
    assert!(!bench.at("image").exists());
    let outside = bench.weald(["build", "--explain-filter", "../x", "source", "image"]);
    outside.expect(2, "weald: ../x: expected a path below the source\n");
}

/// Would catch: a hotness file that is ignored, that changes the tree, or that is accepted where it
/// has no effect.
#[test]
fn hot_files_are_stored_first_and_the_tree_stays_the_same() {
    let bench = Bench::new();
    fs::create_dir(bench.at("source")).expect("mkdir");
    for name in ["a", "b", "c"] {
        fs::write(bench.at(format!("source/{name}")), name.repeat(5000)).expect("write");
    }
    let image = "0".repeat(64);
    let text = format!("weald hotness 1\nimage {image}\nfile 0-5 c\nfile 0-9 gone\n");
    fs::write(bench.at("hot"), text).expect("write");
    let quiet = ["build", "--quiet", "source"];
    bench.weald([&quiet[..], &["plain"]].concat()).expect(0, "");
    let hot = [&quiet[..], &["hot.weald", "--hotness", "hot"]].concat();
    bench.weald(&hot).expect(0, "");
    let rewrite = ["rewrite", "--quiet", "--hotness", "hot", "plain", "again"];
    bench.weald(rewrite).expect(0, "");
    let digest = |image: &str, key: &str| {
        let info = bench.weald(["info", "--json", image]).expect(0, "").json();
        info[0][key].as_str().expect("a digest").to_owned()
    };
    for image in ["hot.weald", "again"] {
        assert_eq!(digest(image, "tree_digest"), digest("plain", "tree_digest"));
        assert_ne!(
            digest(image, "image_digest"),
            digest("plain", "image_digest")
        );
    }
    fs::write(bench.at("bad"), "weald hotness 1\ncheese\n").expect("write");
    let bad = [&quiet[..], &["x", "--hotness", "bad"]].concat();
    let why =
        "hotness: line 2: expected `page`, `block`, `made`, `file` or `base`, and `image` first";
    bench.weald(&bad).expect(2, &format!("weald: bad: {why}\n"));
    let stream = [
        "build",
        "-q",
        "--from",
        "listing",
        "hot",
        "x",
        "--hotness",
        "hot",
    ];
    let why = "a hotness needs a directory; a stream comes once, and in its own order";
    bench.weald(stream).expect(2, &format!("weald: {why}\n"));
    assert!(!bench.at("x").exists());
}
