//! `weald build` of several directories, and of the files that a list names.

use crate::support::*;
use std::fs;
use std::path::Path;
use weald_testkit::Rng;

/// Lays the directory `$1` over `$2`, entry by entry.
const LAY: &str = r#"
lay() {
    find "$1" -mindepth 1 -printf '%P\0' | sort -z | while IFS= read -r -d '' path; do
        if [ -d "$1/$path" ] && [ ! -L "$1/$path" ]; then
            [ -d "$2/$path" ] && [ ! -L "$2/$path" ] || rm -rf "$2/$path"
            mkdir -p "$2/$path"
        else
            rm -rf "$2/$path"
            cp -a "$1/$path" "$2/$path"
        fi
    done
    find "$1" -depth -type d -printf '%P\0' | while IFS= read -r -d '' path; do
        chmod --reference "$1/$path" "$2/$path"
        chown --reference "$1/$path" "$2/$path"
        touch -r "$1/$path" "$2/$path"
    done
}
"#;

fn lay(dir: &Path, script: &str) {
    // The times of a directory are set last by the one that is laid last.
    shell(dir, &format!("{LAY}{script}"));
}

/// A tree with few names, so that trees meet.
pub fn make_tree(dir: &Path, rng: &mut Rng) {
    let names = ["a", "b", "c"];
    for _ in 0..25 {
        let depth = 1 + rng.below(4);
        let path: Vec<&str> = (0..depth).map(|_| *rng.pick(&names)).collect();
        let path = dir.join(path.join("/"));
        // What is a file already stays one.
        let _ = path.parent().map(fs::create_dir_all);
        let len = rng.below(9_000) as usize;
        let _ = match rng.below(4) {
            0 => fs::create_dir(&path),
            1 => std::os::unix::fs::symlink("a/b", &path),
            _ if path.symlink_metadata().is_err() => fs::write(&path, rng.bytes(len)),
            _ => Ok(()),
        };
        if rng.one_in(3) {
            let mode = 0o700 + rng.below(64) as u32;
            let _ = fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(mode));
        }
    }
}

/// Would catch: an entry of an earlier source that stays, one of a later source that is lost, names
/// or contents of the wrong source, bytes that depend on the number of threads.
#[test]
fn later_sources_lie_over_earlier_ones() {
    for seed in 1..=12 {
        let scratch = Scratch::new("64m");
        let mut rng = Rng::new(seed);
        for name in ["x", "y", "z"] {
            make_tree(&scratch.dir(name), &mut rng);
        }
        lay(
            scratch.path(),
            "mkdir all; lay x all; lay y all; lay z all; touch -r z all",
        );
        for (threads, image) in [("1", "one"), ("4", "four")] {
            let args = [
                "build", "-q", "-l", "1", "-t", threads, "x", "y", "z", image,
            ];
            done(&weald(scratch.path(), &args));
        }
        same(scratch.path(), "one", "all");
        check(&scratch.at("one"));
        let bytes = |name| fs::read(scratch.at(name)).expect("read");
        assert!(bytes("one") == bytes("four"), "seed {seed}");
        // The same as one addition after the other.
        for source in ["x", "y", "z"] {
            let args = ["build", "-q", "--append", "--allow-removal", "--at", "/"];
            done(&weald(
                scratch.path(),
                &[&args[..], &[source, "steps"]].concat(),
            ));
        }
        same(scratch.path(), "steps", "all");
        // As the next generation, at a place.
        let words = [
            "build", "-q", "--append", "--at", "in/side", "x", "y", "z:/", "one",
        ];
        let twice = weald(scratch.path(), &words);
        if twice.status.success() {
            let shown = done(&weald(scratch.path(), &["diff", "one:/in/side", "all"]));
            assert_eq!(shown, "", "seed {seed}");
        }
    }
}

/// Would catch: a replaced file that nobody hears of, a directory at the wrong place, a directory
/// whose own name has a colon taken for a place, options of streams that are dropped.
#[test]
fn sources_have_places_and_what_they_replace_is_named() {
    let scratch = Scratch::new("64m");
    let run = |args: &[&str]| weald(scratch.path(), args);
    shell(
        scratch.path(),
        "mkdir -p base/etc site/etc tools 'odd:/x' over; echo 1 > base/etc/conf
         echo 2 > site/etc/conf; echo 3 > tools/tool; echo 4 > 'odd:/x/file'
         echo 5 > over/etc; for n in $(seq 30); do echo a > base/$n; echo b > site/$n; done",
    );
    let built = run(&[
        "build",
        "base",
        "site",
        "tools:/opt/tools",
        "odd:/x",
        "image",
    ]);
    done(&built);
    let said = stderr(&built);
    assert!(
        said.contains("weald: 1: replaced by that of site\n"),
        "{said}"
    );
    assert!(
        said.contains("weald: 11 more were replaced by later sources\n"),
        "{said}"
    );
    let cat = |path: &str| done(&run(&["cat", "image", path]));
    assert_eq!(
        cat("etc/conf") + &cat("opt/tools/tool") + &cat("file"),
        "2\n3\n4\n"
    );
    // Where there is only one source, at its place.
    done(&run(&["build", "-q", "tools:/opt", "placed"]));
    let names = done(&run(&["find", "placed"]));
    assert_eq!(names, ".\nopt\nopt/tool\n");
    let mode = done(&run(&["stat", "placed", "/"]));
    assert!(mode.contains("0755"), "{mode}");
    for (args, expected) in [
        (
            &["base", "-", "no"][..],
            "only directories can be packed together",
        ),
        (&["--from", "tar", "base", "site", "no"], "only directories"),
        (&["base", "missing", "no"], "missing"),
        (&["base", "missing:/x", "no"], "missing"),
        (&["base", "base/etc/conf", "no"], "not a directory"),
        (
            &["over", "tools:/etc/x", "no"],
            "'etc' is a regular file in an earlier source",
        ),
        (&["base", "tools:/../x", "no"], "other than '..'"),
        (&["--root", "base", "base", "no"], "--from"),
        (
            &["--from", "tar", "--root", "base", "-", "no"],
            "add --from paths",
        ),
    ] {
        let output = run(&[&["build"], args].concat());
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(
            stderr(&output).contains(expected),
            "{args:?}: {}",
            stderr(&output)
        );
        assert!(!scratch.at("no").exists());
    }
}

/// Would catch: files that are not listed, attributes of directories above them that are made up, a
/// missing path that nobody hears of, a list that is read as another source's.
#[test]
fn listed_files_are_packed_with_the_directories_above_them() {
    let scratch = Scratch::new("64m");
    let at = scratch.path().display().to_string();
    shell(
        scratch.path(),
        "mkdir -p tree/a/b tree/c tree/d; echo 1 > tree/a/b/x.c; echo 2 > tree/a/y.c
         echo 3 > tree/a/y.o; echo 4 > tree/c/z.o; echo 5 > 'tree/d/new
line.c'; chmod 700 tree/a; chown 3:4 tree/a/b; ln -s x.c tree/a/b/l
         cp -a tree part; rm part/a/y.o part/c/z.o part/a/b/l; rmdir part/c
         touch -r tree/a part/a; touch -r tree/a/b part/a/b; touch -r tree part",
    );
    for (list, options) in [
        ("cd tree; find . -name '*.c' -print0", "--root tree"),
        ("find tree/ -name '*.c' -printf '%P\\0'", "--root tree"),
        ("find $PWD/tree -name '*.c' -print0", "--root tree"),
        (
            "find tree -name '*.c' -print0 | sed -z 's|^tree/||'",
            "--root tree/",
        ),
    ] {
        let script = format!(
            "{{ ({list}); }} | {} build -q --from paths {options} - image --force",
            weald_bin()
        );
        shell(scratch.path(), &script);
        same(scratch.path(), "image", "part");
    }
    // The same into a store, and from a file of lines.
    shell(
        scratch.path(),
        &format!(
            "(cd tree; find . -name '?.c') > list; W={}; $W store create st
             $W store add -q st list --name v1 --from paths --root tree
             rm part/d/*; rmdir part/d; touch -r tree part",
            weald_bin()
        ),
    );
    same(scratch.path(), "st:v1", "part");
    // A directory stands for itself.
    shell(
        scratch.path(),
        "printf 'tree/a\\ntree/none\\n./gone/far\\n' > list",
    );
    let output = weald(
        scratch.path(),
        &["build", "-q", "--from", "paths", "list", "dir"],
    );
    assert_eq!(output.status.code(), Some(1));
    let said = stderr(&output);
    for path in ["gone/far", "tree/none"] {
        assert!(
            said.contains(&format!("{path}: listed, and not there\n")),
            "{said}"
        );
    }
    let names = done(&weald(scratch.path(), &["find", "dir"]));
    assert_eq!(names, ".\ntree\ntree/a\n");
    for (list, expected) in [
        ("../x".to_owned(), "'..' is not allowed"),
        (format!("{at}/tree/a"), "is not below"),
    ] {
        fs::write(scratch.at("list"), list).expect("write");
        let args = ["build", "--from", "paths", "--root", "part", "list", "no"];
        let output = weald(scratch.path(), &args);
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains(expected), "{}", stderr(&output));
    }
}

/// Would catch: a directory that rules emptied and that stays, one with a file far below that goes,
/// and problems that leave an image although none may.
#[test]
fn empty_directories_go_and_problems_end_a_strict_build() {
    let scratch = Scratch::new("64m");
    let run = |args: &[&str]| weald(scratch.path(), args);
    shell(
        scratch.path(),
        "mkdir -p tree/a/b/c tree/d/e/f tree/g tree/h; echo 1 > tree/d/e/f/x.c
         echo 2 > tree/a/b/y.o; ln -s x tree/g/link; cp -a tree more; echo 3 > more/h/z.c",
    );
    let args = [
        "build",
        "-q",
        "--keep-atime",
        "--prune-empty-dirs",
        "--exclude",
        "*.o",
    ];
    done(&run(&[&args[..], &["tree", "image"]].concat()));
    let names = done(&run(&["find", "image"]));
    assert_eq!(names, ".\nd\nd/e\nd/e/f\nd/e/f/x.c\ng\ng/link\n");
    check(&scratch.at("image"));
    done(&run(&[&args[..], &["tree", "more:/p", "both"]].concat()));
    let names = done(&run(&["find", "both", "--type", "d"]));
    assert_eq!(
        names,
        ".\nd\nd/e\nd/e/f\ng\np\np/d\np/d/e\np/d/e/f\np/g\np/h\n"
    );
    // A name of a list that is not there is a problem.
    fs::write(scratch.at("list"), "tree/a\ntree/none\n").expect("write");
    let strict = run(&[
        "build", "-q", "--strict", "--from", "paths", "list", "strict",
    ]);
    assert_eq!(strict.status.code(), Some(2));
    let said = stderr(&strict);
    assert!(
        said.contains("strict: 1 problem,") && said.contains("tree/none: "),
        "{said}"
    );
    assert!(!scratch.at("strict").exists());
    done(&run(&["build", "-q", "--strict", "tree", "strict"]));
    let refused = run(&["build", "--strict", "--from", "lines", "list", "no"]);
    assert!(
        stderr(&refused).contains("not for streams"),
        "{}",
        stderr(&refused)
    );
}
