//! Properties of every command: help, errors, exit status, closed pipes, man pages and completions.
#![allow(missing_docs)]

mod support;

use std::fs;
use std::io::Read;
use std::process::Stdio;
use support::{Bench, COMMANDS};

/// Every command that reads an image, with the further arguments that it needs.
const READERS: [(&str, &[&str]); 12] = [
    ("ls", &[]),
    ("tree", &[]),
    ("stat", &["/"]),
    ("cat", &["zero"]),
    ("find", &[]),
    ("extract", &["target"]),
    ("tar", &[]),
    ("sum", &[]),
    ("diff", &["source"]),
    ("info", &[]),
    ("check", &[]),
    ("rewrite", &["target"]),
];

#[test]
fn a_missing_image_is_one_line_and_status_2() {
    let bench = Bench::new();
    for (command, args) in READERS {
        let output = bench.weald([&[command, "gone.weald"], args].concat());
        assert_eq!(
            output.stderr, "weald: gone.weald: No such file or directory\n",
            "{command}"
        );
        assert_eq!(
            (output.code, output.text().as_str()),
            (Some(2), ""),
            "{command}"
        );
    }
    assert!(!bench.at("target").exists());
}

#[test]
fn garbage_is_one_line_and_status_2() {
    let bench = Bench::with_image();
    let image = fs::read(bench.at("image")).expect("read");
    fs::write(bench.at("empty"), "").expect("write");
    fs::write(bench.at("text"), "garbage ".repeat(5000)).expect("write");
    fs::write(bench.at("cut"), &image[..image.len() - 1]).expect("write");
    for file in ["empty", "text", "cut", "source"] {
        // A directory is a side of a comparison.
        let refusing = READERS
            .iter()
            .filter(|(command, _)| *command != "diff" || file != "source");
        for (command, args) in refusing {
            let output = bench.weald([&[*command, file], *args].concat());
            assert_eq!(output.code, Some(2), "{command} {file}: {}", output.stderr);
            assert!(
                output.stderr.starts_with(&format!("weald: {file}: ")),
                "{command}: {}",
                output.stderr
            );
            assert_eq!(
                output.stderr.lines().count(),
                1,
                "{command}: {}",
                output.stderr
            );
        }
    }
    assert!(!bench.at("target").exists());
}

#[test]
fn verbose_shows_the_causes() {
    let bench = Bench::new();
    let output = bench.weald(["ls", "-v", "gone"]);
    let expected = "weald: gone: No such file or directory\n  because: No such file or directory\n";
    output.expect(2, expected);
}

#[test]
fn a_digest_can_be_demanded() {
    let bench = Bench::with_image();
    let info = bench.info();
    let digest = info["image_digest"].as_str().expect("a digest").to_owned();
    bench
        .weald(["ls", "--digest", &digest, "image"])
        .expect(0, "");
    let other = "0".repeat(64);
    let refused = bench.weald(["ls", "--digest", &other, "image"]);
    refused.expect(
        2,
        &format!(
            "weald: image: image digest: expected 000000000000…, found {}…\n",
            &digest[..12]
        ),
    );
}

#[test]
fn an_image_may_begin_inside_a_file() {
    let bench = Bench::with_image();
    let image = fs::read(bench.at("image")).expect("read");
    fs::write(bench.at("padded"), [&[7; 1000][..], &image].concat()).expect("write");
    let plain = bench.weald(["ls", "-lR", "image"]).expect(0, "");
    assert_eq!(
        bench
            .weald(["ls", "-lR", "--offset", "1000", "padded"])
            .expect(0, ""),
        plain
    );
}

// Would catch an image after a script that is not found, or one that is found although there is
// none.
#[test]
fn an_image_behind_a_script_is_found() {
    let bench = Bench::with_image();
    bench.sh(
        "printf '#!/bin/sh\\nexec \"$WEALD\" cat --offset auto \"$0\" \"$@\"\\n' > script
              cat script image > program; chmod +x program; cat program image > twice",
    );
    assert_eq!(bench.sh("./program etc/main.conf"), "main\n");
    let plain = bench.weald(["ls", "-lR", "image"]).expect(0, "");
    for file in ["image", "program", "twice"] {
        let found = bench.weald(["ls", "-lR", "--offset", "auto", file]);
        assert_eq!(found, plain, "{file}");
    }
    bench.sh(
        "(cat program; echo) > tail; : > empty; tail -c +65 image > headless; tail -c +2 \
     image > cut
              cp program bad; printf x | dd of=bad bs=1 conv=notrunc status=none seek=$(stat -c \
               %s script)",
    );
    for (file, why) in [
        ("tail", "no footer at the end"),
        ("script", "no image ends where the file ends"),
        ("empty", "no image ends where the file ends"),
        ("headless", "truncated at the front?"),
        ("cut", "truncated at the front?"),
        ("bad", "not a Weald image"),
    ] {
        let refused = bench.weald(["ls", "--offset", "auto", file]);
        assert_eq!(refused.code, Some(2), "{file}");
        let start = format!("weald: {file}: find the image: ");
        assert!(
            refused.stderr.starts_with(&start) && refused.stderr.contains(why),
            "{refused:?}"
        );
    }
}

#[test]
fn usage_errors_are_status_2() {
    let bench = Bench::new();
    for args in [
        &[][..],
        &["nonsense"],
        &["ls"],
        &["ls", "--nonsense", "x"],
        &["find", "x", "--type", "q"],
        &["cat", "image"],
    ] {
        assert_eq!(bench.weald(args).code, Some(2), "{args:?}");
    }
}

#[test]
fn every_command_has_help() {
    let bench = Bench::new();
    let top = bench.weald(["--help"]).expect(0, "").text();
    for command in COMMANDS {
        let (list, name) = match command.split_once(' ') {
            Some((group, name)) => (bench.weald([group, "--help"]).expect(0, "").text(), name),
            None => (top.clone(), command),
        };
        assert!(
            list.contains(&format!("\n  {name} ")),
            "{command} is not in --help"
        );
        let words = command.split(' ').chain(["--help"]);
        let help = bench.weald(words).expect(0, "").text();
        assert!(help.contains("Usage: weald"), "{command}");
    }
    assert!(!top.contains("\n  man "), "man is hidden");
    let version = bench.weald(["--version"]).expect(0, "").text();
    let first = format!("weald {}", env!("CARGO_PKG_VERSION"));
    assert!(version.starts_with(&first), "{version}");
    assert!(version.contains("\nformats: image 1, store "), "{version}");
    assert!(version.contains("\ncodecs: none, lz4, "), "{version}");
    assert_eq!(bench.weald(["-V"]).expect(0, "").text(), version);
    let json = &bench.weald(["-V", "--json"]).expect(0, "").json()[0];
    assert_eq!(json["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(json["formats"]["image"], 1);
    assert!(
        json["codecs"]
            .as_array()
            .is_some_and(|codecs| codecs.len() == 8)
    );
}

#[test]
fn man_pages_and_completions_list_all_options() {
    let bench = Bench::new();
    bench.weald(["man", "pages"]).expect(0, "");
    let mut pages: Vec<_> = fs::read_dir(bench.at("pages"))
        .expect("list")
        .map(|e| e.expect("entry").file_name())
        .collect();
    pages.sort_unstable();
    let mut expected: Vec<std::ffi::OsString> = COMMANDS
        .iter()
        .map(|command| format!("weald-{}.1", command.replace(' ', "-")).into())
        .collect();
    expected.extend(["weald.1", "mount.weald.8"].map(std::ffi::OsString::from));
    expected.sort_unstable();
    assert_eq!(pages, expected);
    let page = fs::read_to_string(bench.at("pages/weald-find.1")).expect("read");
    assert!(
        page.contains("\\-\\-print0") && page.contains(".SH EXAMPLES\n"),
        "{page}"
    );
    let page = |name: &str| fs::read_to_string(bench.at("pages").join(name)).expect("read");
    for name in ["mount.weald.8", "weald-mount.1"] {
        assert!(
            page(name).contains(".TP\n\\fBcachesize=SIZE\\fR\n"),
            "{name}"
        );
    }
    assert!(page("mount.weald.8").contains(".TP\n\\fB32\\fR\n"));
    // groff reports no warning for any page.
    let warnings =
        bench.sh("for page in pages/*; do groff -K utf8 -man -Tutf8 -ww -z $page 2>&1; done");
    assert_eq!(warnings, "");
    assert!(
        bench
            .weald(["man"])
            .expect(0, "")
            .text()
            .contains(".TH weald 1")
    );
    for shell in ["bash", "zsh", "fish"] {
        let script = bench.weald(["completions", shell]).expect(0, "").text();
        assert!(
            COMMANDS
                .iter()
                .flat_map(|command| command.split(' '))
                .all(|word| script.contains(word)),
            "{shell}"
        );
    }
    bench.sh("$WEALD completions bash | bash -n");
}

#[test]
fn a_closed_pipe_is_no_error() {
    let bench = Bench::new();
    bench.make_source();
    bench.sh(
        "seq 30000 | sed 's/^/source\\/f/' | xargs touch; head -c 3000000 /dev/urandom > \
     source/noise",
    );
    bench
        .weald(["build", "-q", "-l", "0", "source", "image"])
        .expect(0, "");
    for args in [
        &["ls", "image"][..],
        &["ls", "-lR", "--json", "image"],
        &["tree", "image"],
        &["find", "image"],
        &["cat", "image", "noise"],
        &["tar", "image"],
        &["sum", "image"],
    ] {
        let mut command = bench.command();
        let mut child = command
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("spawn");
        let mut stdout = child.stdout.take().expect("stdout");
        stdout.read_exact(&mut [0; 10]).expect("ten bytes");
        drop(stdout);
        let output = child.wait_with_output().expect("wait");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{args:?}");
        assert_eq!(output.status.code(), Some(0), "{args:?}");
    }
}

#[test]
fn a_full_output_is_an_error() {
    let bench = Bench::with_image();
    let full = bench.sh("set +e; $WEALD ls image 2>&1 > /dev/full; echo $?");
    assert_eq!(full, "weald: standard output: No space left on device\n2\n");
}

#[test]
fn info_and_check_agree_with_the_file() {
    let bench = Bench::with_image();
    let len = fs::metadata(bench.at("image")).expect("stat").len();
    let info = bench.info();
    assert_eq!(
        (info["image_len"].as_u64(), info["name_count"].as_u64()),
        (Some(len), Some(17))
    );
    let sections = info["sections"].as_array().expect("sections");
    let stored: u64 = sections
        .iter()
        .filter_map(|section| section["stored_len"].as_u64())
        .sum();
    assert!(stored <= len && len - stored < 8192, "{stored} of {len}");
    let text = bench.weald(["info", "image"]).expect(0, "").text();
    assert!(
        text.contains("image digest") && text.contains("section "),
        "{text}"
    );
    let clean = bench.weald(["check", "image"]).expect(0, "").text();
    assert!(clean.starts_with("clean: "), "{clean}");
    let json = bench
        .weald(["check", "--json", "image"])
        .expect(0, "")
        .json();
    assert_eq!((json.len(), json[0]["clean"].as_bool()), (1, Some(true)));
    assert_eq!(
        bench
            .weald(["check", "-q", "--digests-only", "image"])
            .expect(0, "")
            .text(),
        ""
    );
}

/// Would catch: a value that begins with a hyphen, as in the help, and that is parsed as an option.
#[test]
fn values_may_begin_with_a_hyphen() {
    let bench = Bench::with_image();
    bench.sh("cp -r source tree; touch -- tree/-foo; chmod 666 tree/zero");
    let listed = |args: &[&str]| {
        let build = [&["build", "-q", "-f"], args, &["tree", "built"]].concat();
        bench.weald(build).expect(0, "");
        bench.weald(["ls", "-l", "built"]).expect(0, "").text()
    };
    assert!(listed(&[]).contains(" -foo\n"));
    assert!(!listed(&["--exclude", "-foo"]).contains(" -foo\n"));
    assert!(!listed(&["--filter", "- -foo"]).contains(" -foo\n"));
    assert!(listed(&["--include", "-foo", "--filter", "- *o*"]).contains(" -foo\n"));
    assert!(listed(&["--mode", "-w"]).contains("-r--r--r--"));
    assert!(listed(&["--mtime", "-5"]).contains("1969-12-31 23:59:55"));
    let found = |args: &[&str]| {
        let find = [&["find", "built"], args].concat();
        bench.weald(find).expect(0, "").text()
    };
    assert_eq!(found(&["--name", "-f*"]), "-foo\n");
    assert_eq!(found(&["--name", "-f*", "--printf", "-%f"]), "--foo");
    assert_eq!(found(&["--perm", "-4000", "--size", "-1"]), "");
}

/// Would catch: a second image that is ignored, an unreadable image that ends the check of the
/// others, and a status that only reflects the last image.
#[test]
fn check_takes_several_images() {
    let bench = Bench::with_image();
    let mut image = fs::read(bench.at("image")).expect("read");
    fs::copy(bench.at("image"), bench.at("twin")).expect("copy");
    image[100] ^= 1;
    fs::write(bench.at("bad"), image).expect("write");
    let check = |args: &[&str]| bench.weald([&["check", "--digests-only"], args].concat());
    let clean = check(&["image", "twin"]).expect(0, "").text();
    let lines: Vec<&str> = clean.lines().collect();
    assert!(
        lines.len() == 2
            && lines[0].starts_with("image: clean: ")
            && lines[1].starts_with("twin: clean: "),
        "{clean}"
    );
    let damaged = check(&["bad", "image"]);
    assert_eq!(damaged.code, Some(1), "{damaged:?}");
    assert!(damaged.text().contains("bad: not clean: ") && damaged.text().contains("image: clean"));
    let missing = check(&["gone", "bad", "image"]);
    assert_eq!(missing.code, Some(2), "{missing:?}");
    assert_eq!(missing.stderr, "weald: gone: No such file or directory\n");
    assert!(missing.text().contains("image: clean"));
    let json = check(&["--json", "image", "twin"]).expect(0, "").json();
    assert_eq!(json[0]["image"], "image");
    assert_eq!((json.len(), &json[1]["image"]), (2, &"twin".into()));
    assert_eq!(check(&["--generation", "1", "image", "twin"]).code, Some(2));
}

/// Would catch: a man page with options that no longer exist or are spelled differently.
#[test]
fn the_page_of_mounts_lists_the_options() {
    let bench = Bench::new();
    let page = include_str!("../../../docs/mounting.md");
    let commands = ["mount", "umount", "mounts", "serve"];
    let help = |command: &&str| bench.weald([*command, "--help"]).expect(0, "").text();
    let help: String = commands.iter().map(help).collect();
    for line in page.lines().filter(|line| !line.contains("systemctl")) {
        let is_end = |c: char| !c.is_ascii_lowercase() && c != '-';
        for (at, _) in line.match_indices("--") {
            let flag = line[at..].split(is_end).next().expect("a word");
            assert!(
                help.contains(flag) || flag.trim_matches('-').is_empty(),
                "{flag}: {line}"
            );
        }
        for (at, word) in line.match_indices("weald ") {
            let command = line[at + word.len()..]
                .split(is_end)
                .next()
                .expect("a word");
            let is_prose =
                line[..at].ends_with(|c: char| c.is_ascii_alphanumeric() || " /.|".contains(c));
            let others = ["weald store gc --views", "weald store mv --replace"];
            let is_known =
                commands.contains(&command) || others.iter().any(|other| line.contains(other));
            assert!(is_prose || is_known, "{command}: {line}");
        }
    }
}
