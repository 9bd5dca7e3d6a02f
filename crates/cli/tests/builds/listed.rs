//! `weald build --list`: names what the same words would pack.

use crate::sources::make_tree;
use crate::support::*;
use std::fs;
use weald_testkit::Rng;

/// Would catch: a path of the list that is not in the image that the same words build, or is
/// missing; another order; an image that is written; a source of another kind that is forgotten.
#[test]
fn a_list_has_the_paths_of_the_image_that_is_built() {
    for seed in 1..=8 {
        let scratch = Scratch::new("64m");
        let mut rng = Rng::new(seed);
        for name in ["x", "y"] {
            make_tree(&scratch.dir(name), &mut rng);
            fs::create_dir(scratch.at(name).join("empty")).expect("mkdir");
            fs::write(scratch.at(name).join("new\nline.o"), "o").expect("write");
        }
        printed(
            scratch.path(),
            "echo 'function filter(e) return e.size % 3 > 0 or e.type ~= \"file\" end' > odd.lua
             tar cf x.tar x -C y .; (cd x; find . -print0) > x.paths; tr '\\0' '\\n' < x.paths \
             | grep -v '^line' > x.lines; bsdtar -c --format=mtree -C x . > x.mtree
             mkfs.erofs --quiet x.erofs x; $WEALD build -q y old",
        );
        let words: [(&str, &str); 13] = [
            ("x", ""),
            ("x y:/deep/er y", ""),
            ("--exclude '*.o' --include '/a/***' --exclude /b x y", ""),
            (
                "--filter 'dir-merge .rules' --exclude c/ --prune-empty-dirs x",
                "",
            ),
            ("--script odd.lua x", ""),
            ("--from paths --root x --exclude a/ x.paths", ""),
            ("--exclude /x/a -", "<x.tar"),
            ("--from listing --exclude '*.o' x.paths", ""),
            ("--from lines x.lines", ""),
            ("--from mtree --contents-root x --exclude b x.mtree", ""),
            ("--from-image --exclude a x.erofs", ""),
            ("--append --at in/side --exclude a x", ""),
            ("--append --allow-removal x", ""),
        ];
        for (words, input) in words {
            let is_appended = words.contains("--append");
            shell(scratch.path(), "rm -f image; cp old image.old");
            if is_appended {
                shell(scratch.path(), "cp old image");
            }
            let before = fs::read(scratch.at("image")).ok();
            // Listed paths below excluded directories are problems both times.
            let listed =
                format!("c=0; $WEALD build --list --print0 {words} image {input} || c=$?; echo $c");
            let listed = printed(scratch.path(), &listed);
            assert_eq!(fs::read(scratch.at("image")).ok(), before, "{words}");
            let built = format!(
                "c=0; $WEALD build -q -l 0 {words} image {input} >&2 || c=$?
                 $WEALD find --print0 image; echo $c"
            );
            let built = printed(scratch.path(), &built);
            assert_eq!(listed, built, "seed {seed}: {words}");
        }
        // Without the word for the image.
        printed(
            scratch.path(),
            "$WEALD build --list x none > with; $WEALD build --list x > without; cmp with without
             $WEALD build --list - none < x.tar > with; $WEALD build --list - < x.tar > without
             cmp with without; test ! -e none",
        );
        // The image in its own source is none of its files.
        let listed = printed(
            scratch.path(),
            "cp old x/image; $WEALD build --list x x/image; $WEALD build -q -f x x/image >&2
             $WEALD find x/image >&2; $WEALD find x/image > found; $WEALD build --list x x/image \
             | diff - found >&2",
        );
        assert!(!listed.contains("image"), "{listed}");
    }
}

/// Would catch: an entry that is left out without its rule, with another rule or under another
/// path; a rule that is told although nobody asked; JSON that lacks either.
#[test]
fn what_is_left_out_is_listed_with_its_rule() {
    let scratch = Scratch::new("64m");
    shell(
        scratch.path(),
        "mkdir -p src/d/e; touch src/a.o src/b src/d/c.o src/d/e/f src/keep
         printf '# objects\\n*.o\\n' > rules; printf -- '- f\\n' > src/d/.rules
         echo 'function filter(e) return e.name ~= \"b\" end' > no-b.lua; cp rules src/image",
    );
    let words = "--exclude-from rules --filter 'dir-merge .rules' --script no-b.lua src:/opt \
                 src/image";
    let packed = ".\nopt\nopt/d\nopt/d/.rules\nopt/d/e\nopt/keep\n";
    let list = |more: &str| {
        printed(
            scratch.path(),
            &format!("$WEALD build --list {more} {words}"),
        )
    };
    assert_eq!(list(""), packed);
    let left_out = "left out: opt/a.o: *.o (rules, line 2)\n\
                    left out: opt/b: the function filter of the script\n\
                    left out: opt/d/c.o: *.o (rules, line 2)\n\
                    left out: opt/d/e/f: f (d/.rules, line 1)\n\
                    left out: opt/image: the image itself\n";
    let verbose = list("-v");
    assert!(verbose.starts_with(packed), "{verbose}");
    for line in left_out.lines().filter(|line| !line.contains(".rules")) {
        assert!(verbose.contains(line), "{verbose}");
    }
    assert!(verbose.contains("left out: opt/d/e/f: f ("), "{verbose}");
    let json = list("--json -v");
    assert!(
        json.starts_with("{\"path\":\"\",\"type\":\"directory\"}\n"),
        "{json}"
    );
    let left_out = "{\"left_out\":\"*.o (rules, line 2)\",\"path\":\"opt/a.o\"}\n";
    assert!(json.contains(left_out), "{json}");
    assert!(!list("--json").contains("left_out"));
    // Of a stream, too.
    let stream = "tar c -C src . | $WEALD build --list -v --exclude '*.o' - image";
    let stream = printed(scratch.path(), stream);
    assert!(
        stream.ends_with("left out: a.o: *.o\nleft out: d/c.o: *.o\n"),
        "{stream}"
    );
}
