//! Streams without data: lists of paths and descriptions of mtree.

use super::*;

#[test]
fn a_listing_is_a_tree_of_empty_files() {
    let bench = Bench::new();
    bench.sh(
        "mkdir -p tree/a/b tree/a/empty tree/-x; touch tree/a/b/one tree/a/two tree/-x/file \
     $'tree/new\\nline' tree/a-b
        chmod 755 tree tree/*/ tree/a/*/; find tree -type f -exec chmod 644 {} +; find tree -exec \
         touch -d @0 {} +
        $WEALD build -q -l 1 --owner 0:0 tree built
        (cd tree; find . -type d -printf '%p/\\0' -o -printf '%p\\0') | shuf -z | $WEALD build -q \
         -l 1 --from listing - listed
        (cd tree; find . -print0; printf 'a/empty/\\0a/two\\0') | $WEALD build -q -l 1 --from \
         listing - plain",
    );
    let expected = tree_digest(&bench, "built");
    assert_eq!(tree_digest(&bench, "listed"), expected);
    assert_eq!(
        tree_digest(&bench, "plain"),
        expected,
        "find -print0, and the empty directory named as one"
    );
    refused(
        &bench,
        "printf 'a/../b\\0' | $WEALD build --from listing - image",
        "a/../b: a path with '..'",
    );
}

/// Would catch, without a message: a list of lines that becomes one file with a long name, a
/// truncated list, and empty input.
#[test]
fn malformed_lists_are_reported() {
    let bench = Bench::new();
    let long = "python3 -c \"print('\\n'.join(str(n) for n in range(99999)))\"";
    for (list, from, expected) in [
        ("printf 'a\\nb\\n'", "listing", "lines with --from lines"),
        (long, "listing", "lines with --from lines"),
        (
            "printf 'a\\0b\\0'",
            "lines",
            "zero bytes with --from listing",
        ),
        ("true", "listing", "the list is empty"),
        ("true", "lines", "the list is empty"),
        ("true", "mtree", "the mtree description has no entry"),
        (
            "printf '#mtree\\n'",
            "mtree",
            "the mtree description has no entry",
        ),
        ("true", "tar", "the stream is cut short"),
        ("true", "auto", "the stream is empty"),
    ] {
        let script = format!("{list} | $WEALD build -q -l 1 --from {from} - image");
        let (code, said) = status(&bench, &script);
        assert!(
            code == 2 && said.contains(expected),
            "{script}: {code} {said}"
        );
        assert!(!bench.at("image").exists(), "{script}");
    }
    for (list, from, word) in [
        ("printf 'a/b\\0c/d'", "listing", "a zero byte"),
        ("printf 'a/b\\nc/d'", "lines", "a newline"),
    ] {
        let script = format!("{list} | $WEALD build -q -l 1 --from {from} - image");
        let expected = format!(
            "weald: c/d: the last path of the list does not end in {word}: is the list cut short?\n"
        );
        assert_eq!(status(&bench, &script), (1, expected));
        assert_eq!(bench.sh("$WEALD find image --type f"), "a/b\nc/d\n");
    }
    bench.sh(
        "printf 'a b\\nc/\\nd/e\\n' | $WEALD build -q --from lines - lines
        printf 'a b\\0c/\\0d/e\\0' | $WEALD build -q --from listing - listing; cmp lines listing",
    );
}

/// Would catch: memory for contents that is reserved although there are none, or an image that
/// differs because of that.
#[test]
fn names_alone_need_no_memory_for_contents() {
    let bench = Bench::new();
    bench.sh(
        "printf 'a/b\\0c\\0d/e/f\\0' > names; printf '#mtree\\n. type=dir\\na type=file \
     size=0 mode=0644\\n' > tree.mtree
        for level in 0 1 5 7 9; do for from in 'listing names' 'mtree tree.mtree'; do
            $WEALD build -q -l $level --memory 128M --from $from small; $WEALD build -q -l $level \
             --memory 4G --from $from large
            cmp small large; $WEALD check -q small; rm small large
        done; done",
    );
}

/// Would catch: a dialect that gives another tree, contents of another file, a name that vis(3)
/// encodes differently.
#[test]
fn mtree_descriptions_give_the_described_tree() {
    let bench = rich();
    // A description does not include hard links, holes and extended attributes.
    bench.sh(
        "cp -r --no-preserve=links,xattr --preserve=mode,ownership,timestamps --sparse=never \
     source plain
        printf x > $'plain/a b\\n\\xc3\\xa4\\\\[*#='; touch -d @1700000000.000000001 plain/*=
        find plain -name 'char*' -delete; find plain '(' -type b -o -type c ')' -delete
        find plain -type d -exec touch -d @1700000001 {} +
        $WEALD build -q -l 1 plain image
        mtree -c -p plain -K sha256,sha512,uid,gid,device > netbsd
        mtree -C -K uid,gid < netbsd > netbsd-full
        bsdtar -c --format=mtree --options=mtree:sha256,mtree:use-set -f bsd-set -C plain .
        bsdtar -c --format=mtree --options=mtree:all,mtree:!indent -f bsd -C plain .
        for form in netbsd netbsd-full bsd-set bsd; do
            $WEALD build -q -l 1 --from mtree --contents-root plain - $form.weald < $form
            $WEALD check $form.weald
        done",
    );
    let expected = tree_digest(&bench, "image");
    for form in ["netbsd", "netbsd-full", "bsd-set", "bsd"] {
        if tree_digest(&bench, &format!("{form}.weald")) != expected {
            let reported = bench.weald(["diff", &format!("{form}.weald"), "plain"]);
            panic!("{form}: another tree than described:\n{}", reported.text());
        }
    }
}

/// Would catch: a description with other contents than the forest, or with less data about a forest
/// without links than its tar stream.
#[test]
fn a_forest_as_mtree_equals_a_forest_as_tar() {
    let bench = Bench::new();
    for words in [
        "--fanout 3x40 --times random:1600000000:86400 --symlinks 0.1",
        "--fanout 2x3x20 --sizes log-normal:500:1 --times random:1600000000:86400",
    ] {
        bench.sh(&format!(
            "rm -rf made *.weald; $WEALD forest {words} -q made; $WEALD forest {words} --stream \
             mtree forest.mtree
             $WEALD forest {words} --stream tar - | $WEALD build -q -l 1 - tar.weald
             $WEALD build -q -l 1 --from mtree --contents-root made forest.mtree mtree.weald; rm \
              forest.mtree"
        ));
        assert_eq!(
            tree_digest(&bench, "tar.weald"),
            tree_digest(&bench, "mtree.weald"),
            "{words}"
        );
    }
}

/// SHA-256 digest of `hello` and a newline.
const HELLO_SUM: &str = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";

/// A bench with contents inside and outside the directory `root`.
fn bench_with_contents() -> Bench {
    let bench = Bench::new();
    bench.sh(
        "mkdir -p root/dir outside; echo hello > root/dir/file; echo other > outside/file; \
     ln -s ../outside root/way",
    );
    bench
}

/// Builds an image from the description `text` with these further arguments.
fn build_described(bench: &Bench, text: &str, more: &[&str]) -> Output {
    fs::write(bench.0.path().join("description"), text).expect("a description");
    let args = [
        "build",
        "-q",
        "-f",
        "--from",
        "mtree",
        "description",
        "image",
    ];
    bench.weald([&args[..], more].concat())
}

#[test]
fn contents_that_differ_from_their_description_are_refused() {
    let bench = bench_with_contents();
    let build = |text: &str, more: &[&str]| build_described(&bench, text, more);
    let (root, sum) = (["--contents-root", "root"], HELLO_SUM);
    build(&format!("./dir/file type=file size=6 sha256={sum}"), &root).expect(0, "");
    build("./renamed type=file contents=./dir/file", &root).expect(0, "");
    let cat = bench.weald(["cat", "image", "renamed"]).expect(0, "");
    assert_eq!(cat.text(), "hello\n");
    let of_other = sum.replace('5', "6");
    for (line, root, what) in [
        (
            format!("./dir/file type=file sha256={of_other}"),
            &root[..],
            "sha256: the content has another digest",
        ),
        (
            "./dir/file type=file size=7".into(),
            &root,
            "the description says 7 bytes, the file has 6",
        ),
        (
            "./dir/file type=file size=6".into(),
            &[],
            "--contents-root names one",
        ),
        (
            "./a type=file contents=../outside/file".into(),
            &root,
            "'..'",
        ),
        (
            "./a type=file contents=/etc/passwd".into(),
            &root,
            "absolute",
        ),
        ("./dir type=file".into(), &root, "no regular file"),
    ] {
        let output = build(&line, root);
        assert_eq!(output.code, Some(2), "{line}");
        assert!(output.stderr.contains(what), "{line}: {}", output.stderr);
    }
}

/// Would catch: an empty file with the digest of another, a symlink that leads out of the directory
/// of contents, and a missing file that is not reported.
#[test]
fn contents_that_cannot_be_found_are_reported() {
    let bench = bench_with_contents();
    let build = |text: &str, more: &[&str]| build_described(&bench, text, more);
    let (root, sum) = (["--contents-root", "root"], HELLO_SUM);
    // An empty file needs no contents, but its digest must be that of empty data.
    let of_nothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    build(
        &format!("./gone type=file size=0 sha256={of_nothing}"),
        &root,
    )
    .expect(0, "");
    let output = build(&format!("./gone type=file size=0 sha256={sum}"), &root);
    assert_eq!(output.code, Some(2), "{}", output.stderr);
    // A symlink must not lead out of the directory. A missing file is reported and left out.
    for line in ["./way/file type=file", "./gone type=file"] {
        let output = build(line, &root);
        assert_eq!(output.code, Some(1), "{line}");
        assert!(output.stderr.contains("left out"), "{}", output.stderr);
    }
    let output = bench.weald(["build", "--contents-root", "root", "root", "other"]);
    assert_eq!(output.code, Some(2));
}
