//! `weald diff`: every aspect, with an image and with a directory as the second argument.
use crate::support::Bench;
use std::fs;

/// Changes to `source`, each with the output of `diff image source`.
const CHANGES: [(&str, &str); 14] = [
    ("chmod 600 zero", "* zero: mode 4711 -> 0600\n"),
    ("chown 5 zero; chmod 4711 zero", "* zero: uid 0 -> 5\n"),
    ("chgrp 6 zero; chmod 4711 zero", "* zero: gid 0 -> 6\n"),
    ("printf longer > zero; ref zero", "* zero: size 0 -> 6\n"),
    (
        "printf 'maim\\n' > etc/main.conf; refconf",
        "* etc/main.conf: content differs from byte 3 on\n",
    ),
    (
        "touch -d @5 zero",
        "* zero: mtime 2024-02-29 12:00:00.123456789 -> 1970-01-01 00:00:05.000000000\n",
    ),
    (
        "touch -d '2024-02-29 12:00:00.123456788 UTC' zero",
        "* zero: mtime 2024-02-29 12:00:00.123456789 -> 2024-02-29 12:00:00.123456788\n",
    ),
    (
        "setfattr -n user.note -v else zero",
        "* zero: xattrs user.note* -> user.note*\n",
    ),
    (
        "setfattr -x user.note zero",
        "* zero: xattrs user.note -> (none)\n",
    ),
    ("rm zero; ref .", "- zero\n"),
    ("echo > added; ref .", "+ added\n"),
    ("mkdir -p more/below; ref .", "+ more/\n"),
    (
        "rm zero; mkdir zero; ref .",
        "* zero: type regular file -> directory\n",
    ),
    (
        "ln -sf other bin/link; ref bin/link; ref bin",
        "* bin/link: target ../etc/main.conf -> other\n",
    ),
];

/// `ref` and `refconf` restore the original mtime of a changed file.
const HELPERS: &str = "ref() { touch -h -d '2024-02-29 12:00:00.123456789 UTC' \"$1\"; }
    refconf() { touch -d '2001-01-01 00:00:00 UTC' etc/main.conf; }
    export -f ref refconf; cd source; ";

#[test]
fn every_aspect_is_reported() {
    for (change, expected) in CHANGES {
        let bench = Bench::with_image();
        bench.weald(["diff", "image", "source"]).expect(0, "");
        let script = format!("{HELPERS}{change}");
        bench.sh(&script);
        // The replaced `zero` also has another mode and no xattr; only the expected line matters.
        let found = bench
            .weald(["diff", "image", "source"])
            .expect(1, "")
            .text();
        let is_whole = found == expected;
        let is_first = found.starts_with(expected.trim_end()) && change.contains("printf longer");
        assert!(
            is_whole || is_first,
            "{change}\nexpected: {expected}found: {found}"
        );
        bench
            .weald(["build", "-q", "source", "other"])
            .expect(0, "");
        let images = bench.weald(["diff", "image", "other"]).expect(1, "").text();
        assert_eq!(images, found, "{change}");
    }
}

#[test]
fn broken_hard_links_are_reported() {
    let bench = Bench::with_image();
    bench.sh(
        "cd source/etc && cp -p main.conf copy && mv copy twin.conf && touch -d '2024-02-29 \
     12:00:00.123456789 UTC' .",
    );
    let found = bench
        .weald(["diff", "image", "source"])
        .expect(1, "")
        .text();
    assert_eq!(
        found,
        "* etc/twin.conf: links linked to etc/main.conf -> (none)\n"
    );
    bench
        .weald(["diff", "--ignore", "links", "image", "source"])
        .expect(0, "");
}

#[test]
fn aspects_can_be_ignored() {
    let bench = Bench::with_image();
    bench.sh("touch source/zero; chmod 600 source/zero");
    bench
        .weald(["diff", "--ignore", "mtime,mode", "image", "source"])
        .expect(0, "");
    let output = bench.weald(["diff", "--ignore", "everything", "image", "source"]);
    assert_eq!(output.code, Some(2));
    assert!(
        output.stderr.contains("expected one of type, mode, uid"),
        "{}",
        output.stderr
    );
}

#[test]
fn quiet_and_json() {
    let bench = Bench::with_image();
    bench.sh("touch -d @0 source/zero; mkdir source/more; touch -d @0 source");
    assert_eq!(
        bench
            .weald(["diff", "-q", "image", "source"])
            .expect(1, "")
            .text(),
        ""
    );
    let json = bench
        .weald(["diff", "--json", "image", "source"])
        .expect(1, "")
        .json();
    let differences: Vec<_> = json
        .iter()
        .map(|d| (d["path"].as_str(), d["difference"].as_str()))
        .collect();
    let expected = [("", "changed"), ("more", "only_in_b"), ("zero", "changed")];
    assert_eq!(
        differences,
        expected.map(|(path, what)| (Some(path), Some(what)))
    );
    assert_eq!(json[2]["changes"][0]["aspect"], "mtime");
}

#[test]
fn incomparable_entries_are_reported() {
    let bench = Bench::with_image();
    bench
        .weald(["diff", "image", "nowhere"])
        .expect(2, "weald: nowhere: No such file or directory\n");
    fs::write(
        bench.at("text"),
        "not an image, and long enough to hold a superblock or two".repeat(200),
    )
    .expect("write");
    let output = bench.weald(["diff", "image", "text"]);
    assert_eq!(output.code, Some(2));
    assert!(
        output.stderr.starts_with("weald: text: "),
        "{}",
        output.stderr
    );
}

/// Would catch: a comparison of forests whose time grows with their size although both store equal
/// directories once, a leaf that is skipped because an equal one was compared before, and one that
/// is skipped although hard links lead out of it.
#[test]
fn subtrees_stored_once_are_compared_once() {
    let bench = Bench::new();
    for (name, fanout) in [
        ("a", "1001x100x50"),
        ("b", "1001x100x50"),
        ("c", "1002x100x50"),
    ] {
        let words = ["forest", "-q", "--fanout", fanout, "--image", name];
        bench.weald(words).expect(0, "");
    }
    // Each takes a hundredth of a CPU second; comparing every entry takes ten.
    bench.sh("ulimit -t 3; $WEALD diff a b");
    let more = bench.sh("ulimit -t 3; $WEALD diff a c || test $? = 1");
    assert!(more == "+ 1001/\n", "not one directory more");

    // Directories 1 and 2 differ only in the file that their `two` is a hard link to.
    bench.sh(
        "mkdir -p x/1 x/2 x/3; for i in 1 2 3; do echo same > x/$i/one; done; cp -a x y
        ln x/1/one x/1/two; ln x/2/one x/2/two; ln x/3/one x/3/two
        ln y/1/one y/1/two; ln y/1/one y/2/two; rm y/2/one; ln y/1/one y/2/one; ln y/3/one y/3/two
        find x y -exec touch -hd @1700000000 {} +",
    );
    bench.weald(["build", "-q", "x", "x.weald"]).expect(0, "");
    bench.weald(["build", "-q", "y", "y.weald"]).expect(0, "");
    let links = bench.weald(["diff", "x.weald", "y.weald"]).expect(1, "");
    assert_eq!(
        links.text(),
        "* 2/one: links (none) -> linked to 1/one\n* 2/two: links linked to 2/one -> linked to \
         1/one\n"
    );
}
