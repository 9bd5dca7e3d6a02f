//! Options of `weald build` about owners, extended attributes and the root.

use crate::support::*;
use std::path::Path;

/// Packs `tree` with `options`, from the directory and from a tar stream, and compares both images
/// with `expected`.
#[track_caller]
fn packs_as(scratch: &Scratch, options: &str, expected: &str) {
    let weald = weald_bin();
    shell(
        scratch.path(),
        &format!(
            "{weald} build -qf {options} tree image
             tar -C tree --xattrs --acls --xattrs-include='*' -cf s.tar .
             {weald} build -qf {options} - tar <s.tar
             {weald} build -qf tree plain; {weald} rewrite -qf {options} plain written"
        ),
    );
    for image in ["image", "tar", "written"] {
        same_but_root_time(scratch.path(), image, expected);
    }
}

/// The same, and of an image that is extracted or written as a stream with `options`.
#[track_caller]
fn passes_on_as(scratch: &Scratch, options: &str, expected: &str) {
    packs_as(scratch, options, expected);
    let weald = weald_bin();
    shell(
        scratch.path(),
        &format!(
            "rm -rf out; {weald} extract -q {options} plain out; {weald} build -qf out again
             {weald} tar {options} plain | {weald} build -qf - streamed"
        ),
    );
    for image in ["again", "streamed"] {
        same_but_root_time(scratch.path(), image, expected);
    }
}

#[track_caller]
fn same_but_root_time(dir: &Path, image: &str, other: &str) {
    let output = weald(dir, &["diff", "--ignore", "mtime", image, other]);
    let found = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!((found, stderr(&output)), Default::default(), "{image}");
}

const TREE: &str = "
    mkdir -p tree/dir; echo a > tree/file; ln -s file tree/link; echo b > tree/dir/acl
    chown 1000:1000 tree/file tree/dir; chown 1005:2000 tree/dir/acl; chown -h 3:1001 tree/link
    setfattr -n user.a -v 1 tree/file; setfattr -n user.cache.x -v 2 tree/file
    setfattr -n trusted.t -v 3 tree/dir; chmod 640 tree/dir/acl
    setfacl -m u:1003:rw,g:1002:r tree/dir/acl; setfacl -d -m u:1001:rx tree/dir
    cp -a tree want";

/// Would catch: an xattr that is kept or dropped against the patterns, an ACL that is dropped while
/// the mode still lets its users in, a stream that is packed by other rules than a directory.
#[test]
fn xattrs_are_chosen_by_patterns() {
    let scratch = Scratch::new("64m");
    shell(scratch.path(), TREE);
    shell(
        scratch.path(),
        "setfattr -x user.cache.x want/file; setfattr -x trusted.t want/dir",
    );
    passes_on_as(&scratch, "--xattrs '!trusted.*,!user.cache.*'", "want");
    // Without its ACL, the file is readable for nobody whom the ACL denied.
    shell(
        scratch.path(),
        "setfacl -bk want/dir/acl want/dir; chmod 640 want/dir/acl",
    );
    passes_on_as(&scratch, "--xattrs 'user.*,!user.cache.*'", "want");
    shell(
        scratch.path(),
        "for p in want want/file want/dir want/dir/acl; do setfattr -n user.from -v build $p; done
         setfattr -n user.a -v 9 want/file want want/dir want/dir/acl",
    );
    let set = "--set-xattr user.from=build --set-xattr user.a=9";
    packs_as(&scratch, &format!("--xattrs 'user.a' {set}"), "want");
}

/// Would catch: an id outside a range that moves, ids in ACLs that stay those of other users, an
/// owner of the root that goes to other entries.
#[test]
fn users_and_groups_are_mapped() {
    let scratch = Scratch::new("64m");
    shell(scratch.path(), TREE);
    shell(
        scratch.path(),
        "chown 101000:1000 want/file want/dir; chown 101005:2000 want/dir/acl
         chown -h 3:7 want/link; setfacl -x u:1003,g:1002 want/dir/acl
         setfacl -m u:101003:rw,g:8:r want/dir/acl; setfacl -k want/dir
         setfacl -d -m u:101001:rx want/dir; ",
    );
    let maps = "--map-uid 1000-1999:101000 --map-gid 1001:7 --map-gid 1002:8";
    passes_on_as(&scratch, maps, "want");
    shell(scratch.path(), "chown 5:6 want; chmod 700 want");
    packs_as(
        &scratch,
        &format!("{maps} --root-owner 5:6 --root-mode 700"),
        "want",
    );
    let run = |args: &[&str]| weald(scratch.path(), args);
    for (root, expected) in [
        ("--root-mtime 0", "1970-01-01"),
        ("--root-mtime 2020-02-03", "2020-02-03"),
    ] {
        let script = format!("{} build -qf {root} tree image", weald_bin());
        shell(scratch.path(), &script);
        let said = done(&run(&["stat", "image", "/"]));
        assert!(said.contains(&format!("mtime: {expected}")), "{said}");
        let found = run(&["diff", "image", "tree"]);
        let said = String::from_utf8_lossy(&found.stdout).into_owned();
        assert!(
            said.lines().count() == 1 && said.starts_with("* /: mtime"),
            "{said}"
        );
    }
    for (args, expected) in [
        (["--map-uid", "5"], "FIRST-LAST:TO"),
        (["--map-gid", "5-4:1"], "FIRST-LAST:TO"),
        (["--map-uid", "0-4294967295:0"], "FIRST-LAST:TO"),
        (["--xattrs", "user.*,"], "an empty pattern"),
        (["--set-xattr", "a=b"], "begins with user."),
        (["--set-xattr", "user.a"], "expected NAME=VALUE"),
        (["--root-mode", "x"], "chmod"),
    ] {
        let output = run(&[&["build"], &args[..], &["tree", "no"]].concat());
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(
            stderr(&output).contains(expected),
            "{args:?}: {}",
            stderr(&output)
        );
    }
}
