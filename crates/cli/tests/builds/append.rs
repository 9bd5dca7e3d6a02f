//! `weald build --append`: counted changes, refused appends, and additions with `--at`.
use crate::support::*;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

/// Runs a command that must exit with status 2 and not change `image`; returns its message.
#[track_caller]
fn refused(dir: &Path, image: &str, args: &[&str]) -> String {
    let path = dir.join(image);
    let before = (fs::read(&path).unwrap(), fs::metadata(&path).unwrap());
    let output = weald(dir, args);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(output.stdout.is_empty());
    assert!(
        fs::read(&path).unwrap() == before.0,
        "the image was touched"
    );
    let time = |m: &fs::Metadata| (m.mtime(), m.mtime_nsec());
    assert_eq!(time(&fs::metadata(&path).unwrap()), time(&before.1));
    stderr(&output)
}

fn make_files(dir: &Path, names: &[&str]) {
    for name in names {
        let path = dir.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, name).unwrap();
    }
}

/// Would catch: names that are counted twice or not at all, entries below a new directory that are
/// not counted, changes of contents or modes that are missed, a changed mtime of a directory that
/// is counted.
#[test]
fn appended_generations_count_added_changed_and_removed_names() {
    let scratch = Scratch::new("64m");
    let run = |args: &[&str]| weald(scratch.path(), args);
    let tree = scratch.dir("tree");
    make_files(
        &tree,
        &["a", "b", "c", "d/1", "d/2", "gone/1", "gone/x/2", "kind"],
    );
    let first = done(&run(&["build", "--append", "tree", "image"]));
    assert!(!first.contains(" added, "), "{first}");

    fs::write(tree.join("a"), "A").unwrap();
    fs::set_permissions(tree.join("b"), PermissionsExt::from_mode(0o600)).unwrap();
    fs::remove_dir_all(tree.join("gone")).unwrap();
    fs::remove_file(tree.join("kind")).unwrap();
    make_files(&tree, &["kind/new", "d/0", "new/x/y"]);
    // Added: kind/new, d/0, new, new/x, new/x/y. Changed: a, b, and kind, which is a directory now.
    let second = done(&run(&["build", "--append", "tree", "image"]));
    let line = "5 added, 3 changed, 4 removed; generation 1 keeps them\n";
    assert!(second.contains(line), "{second}");

    make_files(&tree, &["d/3"]);
    let third = done(&run(&["build", "--append", "--json", "tree", "image"]));
    for field in [
        "\"added_count\":1",
        "\"changed_count\":0",
        "\"removed_count\":0",
    ] {
        assert!(third.replace(' ', "").contains(field), "{third}");
    }
    make_files(&tree, &["d/4"]);
    let fourth = done(&run(&["build", "--append", "tree", "image"]));
    assert!(
        fourth.contains(" 1 added, 0 changed, 0 removed\n"),
        "{fourth}"
    );
    let fifth = done(&run(&["build", "--append", "tree", "image"]));
    assert!(!fifth.contains(" added, "), "{fifth}");
    check(&scratch.at("image"));
}

/// Would catch: a tree that is replaced although the user meant to add to it, an image that is
/// changed before the refusal, a refusal although at most half of the names are removed.
#[test]
fn an_append_that_removes_most_names_is_refused() {
    let scratch = Scratch::new("64m");
    let run = |args: &[&str]| weald(scratch.path(), args);
    make_files(&scratch.dir("tree"), &["a", "b", "c", "d"]);
    make_files(&scratch.dir("more"), &["a", "new"]);
    fs::write(scratch.at("more/a"), "another").unwrap();
    make_files(&scratch.dir("half"), &["a", "b"]);
    done(&run(&["build", "-q", "tree", "image"]));
    let append = ["build", "--append", "more", "image"];
    let message = refused(scratch.path(), "image", &append);
    for part in [
        "image: ",
        "3 of the 4 names",
        "--allow-removal",
        "--at PATH",
    ] {
        assert!(message.contains(part), "{message}");
    }
    let said = done(&run(&[&append[..], &["--allow-removal"]].concat()));
    let line = " 1 added, 1 changed, 3 removed; generation 1 keeps them\n";
    assert!(said.contains(line), "{said}");
    assert_eq!(done(&run(&["ls", "image"])), "a\nnew\n");
    let first = ["ls", "--generation", "1", "image"];
    assert_eq!(done(&run(&first)), "a\nb\nc\nd\n");

    done(&run(&["build", "-q", "tree", "other"]));
    done(&run(&["build", "-q", "--append", "half", "other"]));
    assert_eq!(done(&run(&["ls", "other"])), "a\nb\n");
    check(&scratch.at("image"));
}

/// A tree with links, holes, xattrs and owners, and a tree to add to it.
const TREES: &str = "
    mkdir -p tree/usr/local/share/doc tree/usr/lib tree/kind more/share/doc more/bin more/deep/er
    cd tree; echo tool > usr/lib/tool; ln usr/lib/tool usr/local/twin; ln usr/lib/tool again
    echo old > usr/local/share/doc/readme; echo stays > usr/local/share/doc/stays
    echo one > usr/local/linked; ln usr/local/linked other; ln -s share usr/local/link
    setfattr -n user.a -v b usr/local/share/doc/stays; chown 7:8 usr/local/share/doc/stays usr/lib
    truncate -s 1M holes; echo end >> holes; mkfifo pipe; : > usr/local/empty; chmod 711 .
    head -c 300000 /dev/urandom > usr/local/noise; cp usr/local/noise usr/lib/twin
    cd ../more; echo new > share/doc/readme; echo more > share/doc/more; cp share/doc/more linked
    ln linked bin/linked; ln -s ../share bin/s; chmod 750 share; chown 5:6 share share/doc/more
    setfattr -n user.c -v d share/doc; head -c 300000 /dev/urandom > deep/er/noise; : > deep/none
    cp ../tree/usr/lib/tool deep/tool; echo z > zz; echo a > -a; chmod 700 .";

/// Would catch: lost entries of either tree; attributes, links, holes or contents that come from
/// the wrong tree; missing parents; entries in the wrong order.
#[test]
fn addition_at_a_path_equals_a_merged_directory() {
    let scratch = Scratch::new("128m");
    let run = |args: &[&str]| weald(scratch.path(), args);
    shell(scratch.path(), TREES);
    done(&run(&["build", "-q", "tree", "first"]));
    let copy = "cp -a --remove-destination more/.";
    for (name, at, merge) in [
        ("there", "usr/local", format!("{copy} merged/usr/local/")),
        (
            "new",
            "/usr/new/",
            format!("mkdir merged/usr/new; {copy} merged/usr/new/"),
        ),
        (
            "parents",
            "./usr/a/b//c",
            format!(
                "mkdir -p merged/usr/a/b/c; {copy} merged/usr/a/b/c/
                 touch -r more merged/usr/a/b merged/usr/a"
            ),
        ),
        (
            "top",
            "new",
            format!("mkdir merged/new; {copy} merged/new/"),
        ),
        ("root", "/", format!("{copy} merged/")),
    ] {
        shell(
            scratch.path(),
            &format!(
                "rm -rf merged; cp -a tree merged; {merge}
                 test {name} = root || touch -r tree merged; touch -r tree/usr merged/usr
                 cp first {name}"
            ),
        );
        let args = ["build", "-l", "3", "--append", "--at", at, "more", name];
        let said = done(&run(&args));
        assert!(said.contains(" 0 removed\n"), "{said}");
        if name == "there" {
            // Added: bin, bin/linked, bin/s, deep, deep/er, deep/er/noise, deep/none, deep/tool,
            // share/doc/more, zz, -a. Changed: linked, readme, local, share and doc.
            assert!(said.contains(" 11 added, 5 changed, 0 removed\n"), "{said}");
        }
        same(scratch.path(), name, "merged");
        check(&scratch.at(name));
        // Adding the same tree again changes nothing.
        assert!(done(&run(&args)).contains("nothing has changed"));
        let first = ["diff", "--generation", "1", name, "first"];
        done(&run(&first));
    }
    // The bytes do not depend on the number of threads.
    for threads in ["1", "3"] {
        shell(scratch.path(), "cp first again");
        let args = ["build", "-q", "-l", "3", "--append", "--at", "usr/local"];
        done(&run(
            &[&args[..], &["-t", threads, "more", "again"]].concat()
        ));
        let cut = fs::read(scratch.at("again")).unwrap();
        assert!(fs::read(scratch.at("there")).unwrap() == cut, "{threads}");
    }
}

/// Would catch: rules, owners, modes and times that also change the existing tree, contents that
/// are stored again, times that only the old tree has and that are lost.
#[test]
fn options_apply_only_to_the_added_tree() {
    let scratch = Scratch::new("128m");
    let run = |args: &[&str]| weald(scratch.path(), args);
    shell(scratch.path(), TREES);
    shell(
        scratch.path(),
        "cp -a tree merged; mkdir merged/x; cp -a more/. merged/x; rm merged/x/zz
         chown -Rh 3:4 merged/x; chmod -R go= merged/x; find merged/x -exec touch -hd @99 {} +
         setfattr -x user.c merged/x/share/doc; touch -r tree merged; echo z > tree/zz
         cp -p tree/zz merged; touch -r tree merged",
    );
    done(&run(&["build", "-q", "--keep-atime", "tree", "image"]));
    let atime = |path: &str| {
        let text = done(&run(&["stat", "image", path]));
        let found = text.lines().find(|line| line.contains("atime: "));
        found.expect("an atime").to_owned()
    };
    let before = atime("usr/lib/tool");
    let len = fs::metadata(scratch.at("image")).unwrap().len();
    let added = [
        "build",
        "-q",
        "--append",
        "--at",
        "x",
        "--exclude",
        "zz",
        "--owner",
        "3:4",
        "--mode",
        "go=",
        "--mtime",
        "99",
        "--no-xattrs",
        "more",
        "image",
    ];
    done(&run(&added));
    let grown = fs::metadata(scratch.at("image")).unwrap().len() - len;
    assert!((300_000..320_000).contains(&grown), "{grown}");
    same(scratch.path(), "image", "merged");
    assert_eq!(atime("usr/lib/tool"), before);
    check(&scratch.at("image"));
}

/// Would catch: an addition through a symlink or below a file, an image that is changed before the
/// error, a removal of most of the tree that is not refused.
#[test]
fn addition_below_files_and_symlinks_is_refused() {
    let scratch = Scratch::new("128m");
    let run = |args: &[&str]| weald(scratch.path(), args);
    shell(scratch.path(), TREES);
    done(&run(&["build", "-q", "tree", "image"]));
    for (at, expected) in [
        (
            "usr/local/link",
            "'usr/local/link' is a symlink in the image",
        ),
        ("usr/local/link/x", "'usr/local/link' is a symlink"),
        ("usr/lib/tool", "'usr/lib/tool' is a regular file"),
        ("usr/lib/tool/x/y", "'usr/lib/tool' is a regular file"),
        ("pipe", "'pipe' is a fifo"),
        ("usr/../x", "other than '..', found '..'"),
    ] {
        let args = ["build", "--append", "--at", at, "more", "image"];
        let message = refused(scratch.path(), "image", &args);
        assert!(message.contains(expected), "{at}: {message}");
    }
    // The first addition makes the image.
    done(&run(&[
        "build", "-q", "--append", "--at", "x/y", "more", "none",
    ]));
    shell(
        scratch.path(),
        "mkdir -p below/x/y; cp -a more/. below/x/y; touch -r more below below/x",
    );
    same(scratch.path(), "none", "below");
    assert_eq!(
        run(&["build", "--at", "x", "more", "image"]).status.code(),
        Some(2)
    );

    // A file that replaces a directory removes everything below it.
    shell(scratch.path(), "mkdir file; echo usr > file/usr");
    let args = ["build", "--append", "--at", "/", "file", "image"];
    let message = refused(scratch.path(), "image", &args);
    assert!(message.contains("--allow-removal"), "{message}");
    done(&run(&[&args[..], &["--allow-removal"]].concat()));
    assert_eq!(done(&run(&["cat", "image", "usr"])), "usr\n");
    check(&scratch.at("image"));
}

/// Would catch: names that the next generation lacks because their files cannot be read this time,
/// or that have new attributes with old contents.
#[test]
fn files_that_cannot_be_read_stay_as_they_were() {
    // It takes a copy of the program, too.
    let scratch = Scratch::new("1g");
    let run = |args: &[&str]| weald(scratch.path(), args);
    let long = "head -c 5000000 /dev/zero | tr '\\0'";
    shell(
        scratch.path(),
        &format!(
            "mkdir -p tree/d; cd tree; echo old > a; echo first > d/secret; chmod 640 d/secret
             setfattr -n user.a -v b d/secret; ln d/secret d/twin; {long} x > long; : > empty
             touch -d @99 d/secret empty long; chmod 755 . d"
        ),
    );
    done(&run(&["build", "-q", "tree", "image"]));
    done(&run(&["build", "-q", "tree", "below"]));
    done(&run(&[
        "build", "-q", "--append", "--at", "x/y", "tree", "below",
    ]));
    shell(
        scratch.path(),
        &format!(
            "cd tree; echo new > a; echo second > d/secret; {long} y > long; echo more > empty
             setfattr -n user.a -v c d/secret; chmod 600 d/secret long empty; echo none > none
             chmod 600 none; chown -R 65534:65534 ../image ../below
             chmod 777 ..; cp \"$0\" ../weald"
        )
        .replace("$0", weald_bin()),
    );
    for (image, at, below) in [("image", &[][..], ""), ("below", &["--at", "x/y"], "x/y/")] {
        let generation = ["1", "2"][usize::from(image == "below")];
        let mut command = Command::new("setpriv");
        command.args([
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "./weald",
        ]);
        command
            .args(["build", "--progress", "none", "--append"])
            .args(at);
        command.args(["tree", image]).current_dir(scratch.path());
        let output = command.env("LC_ALL", "C").output().unwrap();
        let (said, text) = (stderr(&output), String::from_utf8_lossy(&output.stdout));
        assert_eq!(output.status.code(), Some(1), "{said}{text}");
        let reason = "cannot be opened: Permission denied\n";
        let stays = ["d/secret", "d/twin", "empty", "long"];
        for name in stays {
            let line = format!("weald: {name}: stays as in the generation before: {reason}");
            assert!(said.contains(&line), "{line}{said}");
        }
        let line = format!("weald: none: left out: {reason}");
        assert!(said.contains(&line) && said.lines().count() == 7, "{said}");
        assert_eq!(
            said.matches("extended attributes cannot be read").count(),
            2
        );
        assert!(text.contains(" 0 added, 1 changed, 0 removed"), "{text}");
        for name in stays {
            let path = format!("{below}{name}");
            for words in ["cat", "stat"] {
                let before = done(&run(&[words, "--generation", generation, image, &path]));
                let now = done(&run(&[words, image, &path]));
                assert!(before == now, "{words} {path}: {before:.2000} {now:.2000}");
            }
        }
        assert_eq!(done(&run(&["cat", image, &format!("{below}a")])), "new\n");
        check(&scratch.at(image));
    }
}
