//! `ls`, `tree`, `stat`, `cat`, `find`, `sum`: exact output.
use crate::support::Bench;
use std::os::unix::ffi::OsStrExt;

#[test]
fn ls_lists_names_in_byte_order() {
    let bench = Bench::with_image();
    let output = bench.weald(["ls", "image"]).expect(0, "");
    let names = b"bin\ncaf\xe9\nempty\netc\nfifo\nloop\nnew\nline\nnull\nsparse\nzero\n";
    assert_eq!(output.stdout, names);
    assert_eq!(
        bench.weald(["ls", "image", "empty"]).expect(0, "").stdout,
        b""
    );
    assert_eq!(
        bench
            .weald(["ls", "image", "etc/main.conf"])
            .expect(0, "")
            .text(),
        "etc/main.conf\n"
    );
    assert_eq!(
        bench
            .weald(["ls", "-d", "image", "/etc/"])
            .expect(0, "")
            .text(),
        "etc\n"
    );
}

#[test]
fn ls_long_shows_attributes() {
    let bench = Bench::with_image();
    let output = bench
        .weald(["ls", "-l", "image", "bin", "etc/deep", "null", "zero"])
        .expect(0, "");
    let expected = "\
bin:
lrwxrwxrwx    1     0     0          16 2024-02-29 12:00:00 link -> ../etc/main.conf
-rwxr-xr-x    1     0     0        2000 2024-02-29 12:00:00 tool

etc/deep:
-rw-r--r--    1  1000   100           5 2024-02-29 12:00:00 leaf.conf
crw-r--r--    1     0     0        1, 3 2024-02-29 12:00:00 null
-rws--x--x+   1     0     0           0 2024-02-29 12:00:00 zero
";
    assert_eq!(output.text(), expected);
    let full = bench
        .weald(["ls", "-l", "--full-time", "image", "zero"])
        .expect(0, "")
        .text();
    assert!(
        full.contains(" 2024-02-29 12:00:00.123456789 zero"),
        "{full}"
    );
}

#[test]
fn ls_recursive_json_has_everything_once() {
    let bench = Bench::with_image();
    let objects = bench
        .weald(["ls", "-R", "--json", "image"])
        .expect(0, "")
        .json();
    assert_eq!(objects.len(), 17);
    let find = |path: &str| objects.iter().find(|o| o["path"] == path).expect(path);
    let leaf = find("etc/deep/leaf.conf");
    assert_eq!(
        (
            leaf["uid"].as_u64(),
            leaf["gid"].as_u64(),
            leaf["mode"].as_str()
        ),
        (Some(1000), Some(100), Some("0644"))
    );
    assert_eq!(
        (leaf["mtime"].as_i64(), leaf["mtime_nsec"].as_u64()),
        (Some(1_709_208_000), Some(123_456_789))
    );
    assert_eq!(find("bin/link")["target"], "../etc/main.conf");
    assert_eq!(find("caf\u{fffd}")["path_hex"], "636166e9");
    assert_eq!(find("null")["rdev_minor"], 3);
    assert_eq!(find("etc/main.conf")["ino"], find("etc/twin.conf")["ino"]);
    assert_eq!(find("etc/twin.conf")["nlink"], 2);
}

#[test]
fn tree_draws() {
    let bench = Bench::with_image();
    let expected = "\
/
├── bin
│   ├── link -> ../etc/main.conf
│   └── tool
├── caf\\xe9
├── empty
├── etc
│   ├── deep
│   │   └── leaf.conf
│   ├── main.conf
│   └── twin.conf
├── fifo
├── loop -> loop
├── new\\x0aline
├── null
├── sparse
└── zero

4 directories, 12 files
";
    assert_eq!(
        bench.weald(["tree", "image"]).expect(0, "").text(),
        expected
    );
    let shallow = bench
        .weald(["tree", "--ascii", "-L", "1", "image", "etc"])
        .expect(0, "")
        .text();
    assert_eq!(
        shallow,
        "etc\n|-- deep\n|-- main.conf\n`-- twin.conf\n\n1 directory, 2 files\n"
    );
}

#[test]
fn stat_shows_everything() {
    let bench = Bench::with_image();
    let text = bench
        .weald(["stat", "image", "sparse", "zero"])
        .expect(0, "")
        .text();
    let inode =
        |path: &str| bench.weald(["stat", "--json", "image", path]).json()[0]["ino"].clone();
    let expected = format!(
        "   path: sparse
   type: regular file
   size: 1048576
  holes: 1044480
   mode: 0644 -rw-r--r--
  owner: 0:0
  inode: {}
  names: 1
  mtime: 2024-02-29 12:00:00.123456789 UTC
   path: zero
   type: regular file
   size: 0
   mode: 4711 -rws--x--x
  owner: 0:0
  inode: {}
  names: 1
  mtime: 2024-02-29 12:00:00.123456789 UTC
  xattr: user.note = \"nothing here\"
",
        inode("sparse"),
        inode("zero")
    );
    assert_eq!(text, expected);
    let json = bench
        .weald(["stat", "-L", "--json", "image", "bin/link"])
        .expect(0, "")
        .json();
    assert_eq!(
        (json[0]["path"].as_str(), json[0]["type"].as_str()),
        (Some("etc/main.conf"), Some("file"))
    );
    let json = bench
        .weald(["stat", "--json", "image", "zero"])
        .expect(0, "")
        .json();
    assert_eq!(
        json[0]["xattrs"][0],
        serde_json::json!({ "name": "user.note", "value": "nothing here" })
    );
}

#[test]
fn paths_resolve_as_in_the_kernel_but_never_out_of_the_image() {
    let bench = Bench::with_image();
    for path in [
        "etc/main.conf",
        "/etc/main.conf",
        "bin/link",
        "bin/../etc/./main.conf",
        "../../etc//main.conf",
    ] {
        assert_eq!(
            bench.weald(["cat", "image", path]).expect(0, "").text(),
            "main\n",
            "{path}"
        );
    }
    for (path, why) in [
        ("loop", "too many levels of symbolic links"),
        ("nothing", "no such file or directory in the image"),
        ("zero/x", "not a directory"),
        ("zero/", "not a directory"),
        ("etc", "not a regular file"),
        ("fifo", "not a regular file"),
    ] {
        bench
            .weald(["cat", "image", path])
            .expect(1, &format!("weald: {path}: {why}\n"));
    }
}

#[test]
fn cat_continues_after_errors() {
    let bench = Bench::with_image();
    let output = bench.weald([
        "cat",
        "image",
        "etc/main.conf",
        "gone",
        "etc/deep/leaf.conf",
    ]);
    let output = output.expect(1, "weald: gone: no such file or directory in the image\n");
    assert_eq!(output.text(), "main\nleaf\n");
    let sparse = bench.weald(["cat", "image", "sparse"]).expect(0, "").stdout;
    assert!(
        sparse.len() == 1 << 20
            && sparse.starts_with(b"head")
            && sparse[4..].iter().all(|&b| b == 0)
    );
    let mut odd = bench.command();
    odd.args(["cat", "image"])
        .arg(std::ffi::OsStr::from_bytes(b"caf\xe9"));
    assert_eq!(
        crate::support::run(&mut odd).expect(0, "").text(),
        "latin\n"
    );
}

#[test]
fn find_filters() {
    let bench = Bench::with_image();
    let find = |args: &[&str]| {
        let args = ["find", "image"].iter().chain(args);
        bench.weald(args).expect(0, "").text()
    };
    assert_eq!(
        find(&["--name", "*.conf"]),
        "etc/deep/leaf.conf\netc/main.conf\netc/twin.conf\n"
    );
    assert_eq!(find(&["--iname", "LEAF*"]), "etc/deep/leaf.conf\n");
    assert_eq!(
        find(&["--path", "etc/*"]),
        "etc/deep\netc/main.conf\netc/twin.conf\n"
    );
    assert_eq!(find(&["--type", "d"]), ".\nbin\nempty\netc\netc/deep\n");
    assert_eq!(find(&["--type", "l,p,c"]), "bin/link\nfifo\nloop\nnull\n");
    assert_eq!(find(&["--size", "+1K"]), "bin/tool\nsparse\n");
    assert_eq!(
        find(&["--size", "-5", "--type", "f", "--name", "*e*"]),
        "new\nline\nzero\n"
    );
    assert_eq!(
        find(&["--older", "2010-01-01"]),
        "etc/main.conf\netc/twin.conf\n"
    );
    assert_eq!(find(&["--perm", "-4000"]), "zero\n");
    assert_eq!(
        find(&["--uid", "1000", "--gid", "100"]),
        "etc/deep/leaf.conf\n"
    );
    assert_eq!(
        find(&["--links", "+1", "--type", "f"]),
        "etc/main.conf\netc/twin.conf\n"
    );
    assert_eq!(find(&["--empty"]), "empty\nzero\n");
    assert_eq!(find(&["--xattrs"]), "zero\n");
    assert_eq!(
        find(&["etc", "--max-depth", "1", "--min-depth", "1"]),
        "etc/deep\netc/main.conf\netc/twin.conf\n"
    );
    assert_eq!(find(&["--name", "new*", "--print0"]), "new\nline\0");
    let json = bench
        .weald(["find", "image", "--name", "zero", "--json"])
        .expect(0, "")
        .json();
    assert_eq!(json[0]["has_xattrs"], true);
    bench
        .weald(["find", "image", "--name", "[x"])
        .expect(2, "weald: pattern '[x': a '[' has no ']'\n");
}

/// Would catch: a digest that another program does not find, a hole that is read otherwise.
#[test]
fn other_sums_equal_those_of_their_programs() {
    let bench = Bench::with_image();
    // xxhsum escapes nothing.
    let names = r"cd source && find . -type f -printf '%P\0' | grep -zav '[[:cntrl:]\]'";
    for (algorithm, program) in [
        ("sha512", "sha512sum"),
        ("md5", "md5sum"),
        ("xxh3", "xxhsum -q -H128"),
    ] {
        let ours = format!(
            "$WEALD sum -a {algorithm} image | grep -av '^\\\\' | grep -av '[[:cntrl:]]' | sort"
        );
        let theirs = format!("({names} | xargs -0 {program}) | grep -av '^\\\\' | sort");
        let ours = bench.sh(&ours);
        assert!(ours.lines().count() > 5, "{ours}");
        assert_eq!(ours, bench.sh(&theirs), "{algorithm}");
        let json = bench
            .weald(["sum", "--json", "-a", algorithm, "image"])
            .expect(0, "")
            .json();
        assert_eq!(json[0]["algorithm"], algorithm);
    }
    for program in ["sha512sum", "md5sum"] {
        let algorithm = program.trim_end_matches("sum");
        bench.sh(&format!(
            "$WEALD sum -a {algorithm} image > sums; cd source; {program} --quiet -c ../sums"
        ));
    }
}

#[test]
fn sums_equal_b3sum_and_sha256sum() {
    let bench = Bench::with_image();
    let sums = bench
        .weald(["sum", "--algorithm", "sha256", "image"])
        .expect(0, "");
    std::fs::write(bench.at("sums"), &sums.stdout).expect("write");
    let expected = bench.sh(
        "cd source && find . -type f -printf '%P\\0' | sort -z | xargs -0 sha256sum | sha256sum",
    );
    let found = bench.sh("sha256sum < sums");
    assert_eq!(found, expected);
    assert_eq!(
        bench.sh("cd source && sha256sum --quiet --check ../sums"),
        ""
    );
    let leaf = blake3::hash(b"leaf\n").to_hex();
    let line = bench
        .weald(["sum", "image", "etc/deep"])
        .expect(0, "")
        .text();
    assert_eq!(line, format!("{leaf}  etc/deep/leaf.conf\n"));
    let one = bench
        .weald(["sum", "--threads", "1", "image"])
        .expect(0, "");
    assert_eq!(one, bench.weald(["sum", "--threads", "5", "image"]));
    assert!(one.text().contains("  new\\nline\n"));
    let json = bench.weald(["sum", "--json", "image"]).expect(0, "").json();
    assert_eq!(json.len(), 8);
}

/// A bench with an image of two sparse files: `big` has 1 TiB and 4 bytes (4 of data, a hole, 4 of
/// data); `tail` has 1 GiB (4 of data, a hole).
fn bench_with_holes() -> Bench {
    let bench = Bench::new();
    bench.sh(
        "mkdir source; echo top > source/big; truncate -s 1T source/big; echo end >> source/big
              echo top > source/tail; truncate -s 1G source/tail; $WEALD build -q source image",
    );
    bench
}

// Would catch a terabyte of zeros that is written to a file, or a lost hole at the end of a file.
#[test]
fn cat_keeps_holes_in_a_new_file() {
    let bench = bench_with_holes();
    bench.sh("ulimit -t 20; $WEALD cat image big tail big > out");
    let kib = bench.sh("du -k out | cut -f1");
    assert!(kib.trim().parse::<u64>().expect("a number") < 100, "{kib}");
    assert_eq!(
        bench.sh("stat -c %s out"),
        format!("{}\n", (2_u64 << 40) + (1 << 30) + 8)
    );
    bench.sh("tail -c 4 out | grep -qx end && head -c 4 out | grep -qx top");
    // The shared offset of standard output must be after the hole.
    bench.sh("($WEALD cat image tail; echo next) > out; tail -c 5 out | grep -qx next");
    assert_eq!(bench.sh("stat -c %s out"), format!("{}\n", (1 << 30) + 5));
}

// Would catch holes over old data, or in a file that is open for appending.
#[test]
fn cat_writes_zeros_where_holes_are_impossible() {
    let bench = Bench::with_image();
    bench.sh(
        "cat source/sparse source/sparse > expected; ($WEALD cat image sparse sparse | cat) \
     > out; cmp out expected",
    );
    bench.sh("$WEALD cat image sparse > out; $WEALD cat image sparse >> out; cmp out expected");
    bench.sh(
        "tr '\\0' x < expected > out; $WEALD cat image sparse sparse 1<> out; cmp out expected",
    );
    bench.sh(
        "head -c 2M /dev/urandom > out; $WEALD cat image sparse 1<> out; cmp -n 1M out \
     source/sparse",
    );
}

// Would catch a command that continues for minutes after its reader has closed the pipe.
#[test]
fn writing_a_hole_ends_when_the_reader_is_gone() {
    let bench = bench_with_holes();
    bench.sh("timeout 120 $WEALD cat image big | head -c 9 > out");
    bench.sh("timeout 120 $WEALD sum image big | true");
    bench.sh("code=0; timeout -s INT -k 120 0.5 $WEALD sum image big || code=$?; test $code = 124");
}

// Would catch digests of a hole with a wrong number of zeros.
#[test]
fn sums_of_holes_equal_sums_of_zeros() {
    let bench = bench_with_holes();
    let sum = bench.sh("$WEALD sum -a sha256 image tail | cut -c -64");
    assert_eq!(sum, bench.sh("sha256sum < source/tail | cut -c -64"));
}

/// Would catch: a command that reads for minutes and shows nothing, a display in a pipe that nobody
/// asked for, or one that stays on the terminal.
#[test]
fn long_reads_show_their_progress_on_a_terminal() {
    let bench = Bench::new();
    bench.sh(
        "mkdir source; head -c 50M /dev/zero | openssl enc -aes-128-ctr -pass pass:x \
              -nosalt 2>/dev/null > source/noise; cp source/noise source/more; echo x >> source/more
              $WEALD build -q -l 1 --match-size 0 source image
              touch source/noise; $WEALD build -q -l 1 --match-size 0 source other",
    );
    for (name, command) in [
        ("check", "check image"),
        ("tar", "tar image > /dev/null"),
        ("sum", "sum image > /dev/null"),
        ("diff", "diff image source > /dev/null || true"),
    ] {
        let shown = bench.sh(&format!(
            "script -qec \"$WEALD {command}\" log > /dev/null; cat log"
        ));
        let line = shown.split('\r').find(|line| line.contains(" or less"));
        assert!(
            line.is_some_and(|line| line.contains(name)),
            "{name}: {shown}"
        );
        let silent = command.replacen(' ', " --progress none ", 1);
        let shown = bench.sh(&format!(
            "script -qec \"$WEALD {silent}\" log > /dev/null; cat log"
        ));
        assert!(!shown.contains("or less"), "{name}: {shown}");
        let piped = command.replace("> /dev/null", "");
        let said = bench.sh(&format!("({{ $WEALD {piped}; }} 2>&1 >/dev/null) | cat"));
        assert_eq!(said, "", "{name}");
    }
}

/// Would catch: an extent at another place than its bytes, a range that is missing or twice, a hole
/// with a place, an extent of a base image or of a recipe that is said to lie here.
#[test]
fn extents_lie_where_stat_says() {
    let bench = Bench::new();
    bench.sh(
        "mkdir a b; head -c 3000000 /dev/urandom > a/noise; seq 200000 > a/text
        head -c 100000 /dev/urandom > a/sparse; truncate -s 9M a/sparse
        tail -c 70000 a/noise >> a/sparse; cp -r a/. b/; (cat a/noise; seq 3) > b/more
        mkdir z; seq 90000 | gzip > z/zipped; $WEALD build -q z z.weald
        $WEALD build -q -l 3 --block-size 64K a a.weald
        $WEALD build -q --base a.weald -l 3 b b.weald",
    );
    let (mut compared, mut holes, mut bases, mut recipes) = (0, 0, 0, 0);
    for (image, tree) in [("a.weald", "a"), ("b.weald", "b"), ("z.weald", "z")] {
        let digest = bench.sh("$WEALD info --json a.weald | jq -r .image_digest");
        for entry in std::fs::read_dir(bench.at(tree)).expect("list") {
            let name = entry.expect("entry").file_name();
            let name = name.to_str().expect("UTF-8");
            let content = std::fs::read(bench.at(tree).join(name)).expect("read");
            let words = ["stat", "--extents", "--json", image, name];
            let said = bench.weald(words).expect(0, "").json();
            let ranges = said[0]["extents"].as_array().expect("extents");
            let lines = bench
                .weald(["stat", "--extents", image, name])
                .expect(0, "");
            let shown = lines
                .text()
                .lines()
                .filter(|line| line.contains("extent: "))
                .count();
            assert_eq!(shown, ranges.len());
            let mut end = 0;
            for range in ranges {
                let number = |key: &str| range[key].as_u64().expect("a number") as usize;
                assert_eq!(number("offset"), end, "{said:?}");
                let bytes = &content[end..end + number("len")];
                end += number("len");
                let of_base = range["base"].as_str();
                bases += usize::from(of_base.is_some());
                match range["place"].as_str() {
                    Some("hole") => {
                        holes += 1;
                        assert!(bytes.iter().all(|&byte| byte == 0));
                        assert_eq!(range.as_object().expect("an object").len(), 3, "{range}");
                    }
                    Some("recipe") => recipes += 1,
                    place => {
                        assert_eq!(place, Some("block"));
                        let file = match of_base {
                            Some(found) => {
                                assert_eq!(found, digest.trim());
                                "a.weald"
                            }
                            None => image,
                        };
                        let stored = std::fs::read(bench.at(file)).expect("read");
                        let stored = &stored[number("stored_at")..][..number("stored_len")];
                        assert!(number("at") + bytes.len() <= number("block_len"));
                        if range["codec"] == "none" {
                            assert!(&stored[number("at")..][..bytes.len()] == bytes, "{range}");
                            compared += 1;
                        }
                    }
                }
            }
            assert_eq!(end, content.len(), "{name}");
        }
    }
    println!("{compared} compared, {holes} holes, {bases} of the base, {recipes} recipes");
    assert!(compared > 40 && holes > 1 && bases > 40 && recipes > 0);
}
