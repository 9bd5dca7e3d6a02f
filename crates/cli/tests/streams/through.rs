//! Members below symlinks of their own archive, as GNU tar extracts them.

use crate::support::Bench;
use weald_testkit::oci::Tar;

fn merged() -> Tar {
    Tar::default().dir("usr/bin").symlink("bin", "usr/bin")
}

/// Archives that GNU tar extracts without an error.
fn extracted() -> Vec<(&'static str, Tar)> {
    let tar = Tar::default;
    vec![
        ("below", merged().file("bin/foo", b"x")),
        ("deep", merged().dir("bin/sub").file("./bin/sub/foo", b"x")),
        (
            "chain",
            tar()
                .dir("usr/bin")
                .symlink("b1", "usr")
                .symlink("b2", "b1/bin")
                .file("b2/sub/foo", b"x"),
        ),
        ("directory", merged().dir("bin").file("bin/foo", b"x")),
        ("file", merged().file("bin", b"x")),
        (
            "late",
            tar().dir("bin").symlink("bin", "usr").file("usr/x", b"y"),
        ),
        (
            "hard",
            tar()
                .dir("usr/bin")
                .file("usr/bin/a", b"a")
                .symlink("usr/bin/l", "a")
                .symlink("bin", "usr/bin")
                .hard_link("usr/bin/b", "bin/a")
                .hard_link("bin/m", "bin/l"),
        ),
        (
            "again",
            merged()
                .file("bin/foo", b"x")
                .file("usr/bin/foo", b"longer"),
        ),
        // The record says the size of the file; no data follows the link.
        (
            "size",
            tar()
                .file("a", b"x")
                .raw(b'x', "pax", "", b"10 size=1\n", 10)
                .hard_link("b", "a")
                .file("c", b"y"),
        ),
    ]
}

/// Would catch: a member of a tar stream that lies elsewhere than where GNU tar puts it.
#[test]
fn members_below_symlinks_lie_where_gnu_tar_puts_them() {
    let bench = Bench::new();
    for (name, tar) in extracted() {
        std::fs::write(bench.0.path().join("tar"), tar.finish()).expect("write");
        let said = bench.sh("rm -rf out image; mkdir -m 755 out; tar -xpf tar -C out
            $WEALD build -q -l 0 - image < tar; $WEALD check -q image
            $WEALD diff --ignore mtime image out || test $? = 1");
        assert_eq!(said, "", "{name}");
    }
}

/// Would catch: a member that leaves the image through a symlink, or lies where nothing else would
/// find it.
#[test]
fn ways_that_gnu_tar_does_not_go_are_refused() {
    let bench = Bench::new();
    let tar = Tar::default;
    for (name, tar) in [
        (
            "absolute",
            tar().symlink("bin", "/usr").file("bin/foo", b"x"),
        ),
        (
            "escape",
            tar().symlink("bin", "../out").file("bin/foo", b"x"),
        ),
        (
            "circle",
            tar()
                .symlink("a", "b")
                .symlink("b", "a")
                .file("a/foo", b"x"),
        ),
        (
            "late",
            tar().file("bin/foo", b"x").symlink("bin", "usr").dir("usr"),
        ),
        ("file", tar().file("bin", b"x").file("bin/foo", b"x")),
    ] {
        std::fs::write(bench.0.path().join("tar"), tar.finish()).expect("write");
        let said = bench.sh(
            "rm -rf outer; mkdir -p outer/out; ! tar -xpf tar -C outer/out 2> log || exit 1
            $WEALD build -q -l 0 - image < tar 2>&1 && exit 1; test ! -e image; ls outer",
        );
        assert!(
            said.contains("other members lie below it"),
            "{name}: {said}"
        );
        assert!(said.ends_with("out\n"), "{name}: {said}");
    }
}
