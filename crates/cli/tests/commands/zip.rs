//! `weald tar --format zip`, read by unzip(1), Python's zipfile and Weald.

use crate::support::Bench;

/// Lists a tree: type, mode, owner, time, length, target, path.
const LIST: &str = "find . -mindepth 1 -printf '%y %m %T@ %l %P\\n' | sort -k5";

fn tree() -> Bench {
    let bench = Bench::new();
    bench.sh(
        "mkdir -p source/dir/deep source/empty; seq 1300000 > source/long
        head -c 9M /dev/urandom > source/noise; echo short > source/dir/short; : > source/none
        ln -s dir/short source/link; printf 'u' > 'source/\u{fc}nicode'
        chmod 4751 source/dir/short; chmod 1777 source/empty; mkdir 'source/sp ace'
        chown 70000:123456 source/none; chmod 600 source/noise
        find source -depth -exec touch -hd @1234567891 {} +; $WEALD build -q source image",
    );
    bench
}

/// Would catch: a field at a wrong place, a length or CRC that is not that of the data, an entry or
/// an attribute that is lost in silence.
#[test]
fn zip_archives_unpack_to_the_same_tree() {
    let bench = tree();
    bench.sh(
        "$WEALD tar --format zip image > a.zip; $WEALD tar --format zip image | cat > piped.zip
        cmp a.zip piped.zip; unzip -tqq a.zip; mkdir out
        (cd out; LC_ALL=C.UTF-8 TZ=UTC unzip -qXK ../a.zip)
        test $(stat -c %s a.zip) -lt $(du -sb source | cut -f1)
        python3 -c 'import zipfile; assert zipfile.ZipFile(\"a.zip\").testzip() is None'",
    );
    // unzip does not set the times of symlinks.
    bench.sh("touch -hd @1234567891 out/link");
    let listed = |dir: &str| bench.sh(&format!("cd {dir}; {LIST}"));
    assert_eq!(listed("source"), listed("out"));
    bench.sh("diff -r --no-dereference source out");
    // Weald reads back also owners, and the root's attributes are those of no member.
    bench.sh(
        "$WEALD build -q a.zip again; chown 0:0 source; chmod 755 source; touch -d @0 source
        $WEALD build -qf source image; $WEALD diff again image; unzip -tqq a.zip",
    );
    let part = bench.sh("$WEALD tar --format zip image dir/short > p.zip; unzip -Z1 p.zip");
    assert_eq!(part, "dir/\ndir/short\n");
    let empty = bench.sh("mkdir e; $WEALD build -q e none; $WEALD tar --format zip none | wc -c");
    assert_eq!(empty, "22\n");
}

/// Would catch: a loss that nobody is told of, and fractions of times that are lost.
#[test]
fn what_zip_does_not_hold_is_counted() {
    let bench = Bench::new();
    bench.sh(
        "mkdir source; mkfifo source/pipe; mknod source/null c 1 3; echo x > source/a
        ln source/a source/b; ln source/a source/c; setfattr -n user.a -v b source/a
        touch -d '2020-01-02 03:04:05.1234567 UTC' source/a; touch -d '1931-01-01 UTC' source
        mkdir source/old; printf b > $'source/b\\377'
        touch -d '1850-06-07 08:09:10.5 UTC' source/old
        $WEALD build -q source image",
    );
    let said = bench.sh("$WEALD tar --format zip image 2>&1 >a.zip || echo status $?");
    for expected in [
        "entries that have some: 3",
        "no form for them: 2",
        "zip has no hard links: 3",
        "status 1",
    ] {
        assert!(said.contains(expected), "{said}");
    }
    assert_eq!(
        bench.sh("unzip -Z1 a.zip | tr '\\377' '?'"),
        "a\nb\nb?\nc\nold/\n"
    );
    bench.sh("$WEALD build -q a.zip again");
    let times = |image: &str| bench.sh(&format!("$WEALD find {image} --name a --printf '%T@\\n'"));
    assert_eq!(times("again"), times("image"));
    let old = |image: &str| bench.sh(&format!("$WEALD find {image} --name old --printf '%T@\\n'"));
    assert_eq!(old("again"), old("image"));
    let said = bench.sh(
        "$WEALD tar --format zip --no-xattrs --exclude pipe --exclude null image \
         2>&1 >b.zip; echo status $?",
    );
    assert!(!said.contains("extended"), "{said}");
    assert!(said.ends_with("status 0\n"), "{said}");
}

/// Would catch: more members than 16 bits count, which take records for large numbers.
#[test]
fn many_members_are_listed() {
    let bench = Bench::new();
    bench.sh(
        "seq -f 'd%.0f/' 70000 | $WEALD build -q --from lines - image
        $WEALD tar --format zip image > a.zip",
    );
    let counts = bench.sh("unzip -Z1 a.zip | wc -l; python3 -c 'import zipfile; \
         print(len(zipfile.ZipFile(\"a.zip\").infolist()))'");
    assert_eq!(counts, "70000\n70000\n");
}
