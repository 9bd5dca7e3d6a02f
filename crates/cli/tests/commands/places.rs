//! Names of trees: generations, and directories in trees, wherever a command reads one.
use crate::support::{Bench, Output, run};
use std::fs;

/// An image with two generations, and the same trees in directories and in a store.
fn bench() -> Bench {
    let bench = Bench::new();
    let script = "
        mkdir -p v1/usr/lib v1/etc v2; echo one > v1/etc/conf; seq 100 > v1/usr/lib/a
        cp -a v1/. v2; echo three > v2/etc/conf; rm v2/usr/lib/a; mkdir -p v2/usr/new/deep
        seq 10 > v2/usr/new/deep/b; ln -s b v2/usr/new/deep/link
        weald build -q v1 image; weald build -q --append v2 image
        weald store create -q store; weald store add -q store v1 --name one
        weald store add -q store v2 --name two";
    let mut command = std::process::Command::new("bash");
    command.args(["-euc", &script.replace("weald ", "\"$WEALD\" ")]);
    command.env("WEALD", crate::support::weald_path());
    run(command.current_dir(bench.0.path())).expect(0, "");
    bench
}

fn weald(bench: &Bench, line: &str) -> Output {
    bench.weald(line.split(' '))
}

#[track_caller]
fn says(bench: &Bench, line: &str, text: &str) {
    assert_eq!(weald(bench, line).expect(0, "").text(), text, "{line}");
}

#[track_caller]
fn refused(bench: &Bench, line: &str, part: &str) {
    let output = weald(bench, line);
    assert_eq!(output.code, Some(2), "{line}: {}", output.stderr);
    assert!(output.stderr.contains(part), "{line}: {}", output.stderr);
}

/// Would catch: another generation or directory than the named one, a name that some command does
/// not take, a file of this very name that is overlooked.
#[test]
fn generations_and_directories_are_named() {
    let bench = bench();
    says(&bench, "cat image@1:/etc/conf", "one\n");
    says(&bench, "cat image@2 etc/conf", "three\n");
    says(&bench, "cat image:/etc conf", "three\n");
    says(&bench, "cat store:one/etc/conf", "one\n");
    says(&bench, "cat store:two:/etc/conf", "three\n");
    says(&bench, "ls image@1:/usr", "lib\n");
    says(&bench, "ls image:/usr new", "deep\n");
    says(&bench, "find image:/usr/new --name b", "usr/new/deep/b\n");
    let tree = weald(&bench, "tree image:/usr/new").expect(0, "").text();
    assert!(tree.contains("deep") && !tree.contains("etc"), "{tree}");
    let sum = weald(&bench, "sum image@1:/etc").expect(0, "").text();
    assert!(
        sum.ends_with("etc/conf\n") && sum.lines().count() == 1,
        "{sum}"
    );
    let stat = weald(&bench, "stat --json store:one/etc/conf").expect(0, "");
    assert_eq!(stat.json()[0]["size"], 4);

    let list = weald(&bench, "generations --json image")
        .expect(0, "")
        .json();
    let digest = list[1]["image_digest"].as_str().expect("a digest");
    says(
        &bench,
        &format!("cat image@{}:/etc/conf", &digest[..12]),
        "one\n",
    );
    says(&bench, &format!("cat image@{digest}:/etc/conf"), "one\n");

    refused(&bench, "ls image@3", "generation");
    refused(
        &bench,
        "ls image@0123456789abcdef",
        "no generation has an image digest",
    );
    refused(&bench, "ls --generation 1 image@1", "leave one out");
    refused(&bench, "cat image", "which path?");
    refused(&bench, "stat image@1", "which path?");
    refused(&bench, "ls gone:/etc", "gone:/etc");
    weald(&bench, "ls image:/gone")
        .expect(1, "weald: /gone: no such file or directory in the image\n");

    fs::copy(bench.at("image"), bench.at("image@1")).expect("copy");
    says(&bench, "cat image@1:/etc/conf", "three\n");
}

/// Would catch: sides that only some forms work on, a new directory of which the contents are not
/// told, wrong sums.
#[test]
fn any_two_trees_are_compared() {
    let bench = bench();
    let all = "\
        * etc/conf: size 4 -> 6\n\
        - usr/lib/a\n\
        + usr/new/\n\
        + usr/new/deep/\n\
        + usr/new/deep/b\n\
        + usr/new/deep/link\n";
    for pair in [
        "image@1 image",
        "image@1 image@2",
        "v1 v2",
        "v1 image",
        "image@1 v2",
        "store:one store:two",
        "v1/ store:two",
        "image@1:/ store:two",
    ] {
        let line = format!("diff --ignore mtime --recursive {pair}");
        assert_eq!(weald(&bench, &line).expect(1, "").text(), all, "{pair}");
    }
    let inside = "- lib/a\n+ new/\n";
    for pair in [
        "image@1:/usr image:/usr",
        "v1/usr store:two/usr",
        "store:one/usr v2/usr",
    ] {
        let line = format!("diff --ignore mtime {pair}");
        assert_eq!(weald(&bench, &line).expect(1, "").text(), inside, "{pair}");
    }
    weald(&bench, "diff image@1:/etc image@1:/etc").expect(0, "");
    refused(&bench, "diff image:/etc/conf v1", "is no directory");

    let stat = weald(&bench, "diff --ignore mtime --stat image@1 image")
        .expect(1, "")
        .text();
    let words = |line: &str| {
        line.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let lines: Vec<Vec<String>> = stat.lines().map(words).collect();
    assert_eq!(lines[0], ["+0", "0", "-0", "0", "*1", "+2", "etc/"]);
    assert_eq!(lines[1], ["+4", "21", "-1", "292", "*0", "+0", "usr/"]);
    assert_eq!(lines[2], ["+4", "21", "-1", "292", "*1", "+2", "in", "all"]);
    let line = "diff --ignore mtime --stat --depth 2 --json image@1 image";
    let json = weald(&bench, line).expect(1, "").json();
    assert_eq!(json.len(), 4, "{json:?}");
    assert_eq!(json[3]["path"], "usr/new");
    assert_eq!(json[3]["added_len"], 21);
    let json = weald(&bench, "diff --ignore mtime --json v1 v2")
        .expect(1, "")
        .json();
    assert_eq!(
        (&json[0]["size_a"], &json[0]["size_b"]),
        (&4.into(), &6.into())
    );
    assert_eq!(json[1]["size"], 292);
}

/// Would catch: a pattern that matches nothing or too much, one that hides a file of this name, and
/// words of other programs that are answered by a usage text.
#[test]
fn patterns_and_words_of_other_programs_are_understood() {
    let bench = bench();
    says(&bench, "cat image@1 etc/*", "one\n");
    says(&bench, "cat image /etc/c?nf", "three\n");
    says(
        &bench,
        "ls image:/usr new/deep/*",
        "usr/new/deep/b\nusr/new/deep/link\n",
    );
    let stat = weald(&bench, "stat --json image usr/new/deep/[bl]*")
        .expect(0, "")
        .json();
    assert_eq!(stat.len(), 2, "{stat:?}");
    fs::write(bench.at("v1/etc/c*"), "star\n").expect("write");
    weald(&bench, "build -q v1 starred").expect(0, "");
    says(&bench, "cat starred etc/c*", "star\n");
    let gone = "weald: etc/x*: no such file or directory in the image\n";
    weald(&bench, "cat image etc/x*").expect(1, gone);

    says(&bench, "list -a image@1", "etc\nusr\n");
    let list = weald(&bench, "ls -lh image@1:/usr/lib")
        .expect(0, "")
        .text();
    assert!(list.contains(" 292 "), "{list}");
    weald(&bench, "verify -q image").expect(0, "");
    refused(
        &bench,
        "create v1 new",
        "'weald build SOURCE IMAGE' makes an image",
    );
    refused(&bench, "find image -name x", "two hyphens");
    let log = weald(&bench, "log image").expect(0, "").text();
    let words: Vec<&str> = log
        .lines()
        .next()
        .expect("a line")
        .split_whitespace()
        .collect();
    assert_eq!(
        (words[0], words[3].len(), words.len()),
        ("2", 1, 9),
        "{log}"
    );
}

/// Would catch: swapped arguments, a pipe, and an image behind other bytes that get a message which
/// names no way out; a directory that is left of an extraction of nothing.
#[test]
fn mistakes_of_the_first_day_are_answered() {
    let bench = bench();
    fs::create_dir(bench.at("dir")).expect("mkdir");
    let swapped = "the arguments are the other way round: 'weald ";
    refused(&bench, "extract dir image", swapped);
    refused(&bench, "build image dir", swapped);
    refused(&bench, "mount dir image", swapped);
    refused(&bench, "ls -", "name a file");
    let image = fs::read(bench.at("image")).expect("read");
    fs::write(bench.at("behind"), [b"some bytes".to_vec(), image].concat()).expect("write");
    refused(&bench, "ls behind", "--offset auto reads it");
    weald(&bench, "ls --offset auto behind").expect(0, "");
    let nothing = "weald: nope: nothing in the image matches\n";
    weald(&bench, "extract image new nope").expect(1, nothing);
    assert!(!bench.at("new").exists());
    weald(&bench, "extract image dir nope").expect(1, nothing);
    assert!(bench.at("dir").exists());
}
