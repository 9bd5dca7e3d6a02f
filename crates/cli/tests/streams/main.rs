//! Streams as input: from GNU tar and bsdtar, in any order, damaged, and listings.
#![allow(missing_docs)]

mod cpio;
mod lists;
mod squashfs;
#[path = "../support/mod.rs"]
mod support;
mod through;
mod zip;

use std::fs;
use support::{Bench, Output};

/// A source with holes, hard links across directories, devices, xattrs, long names and targets, and
/// times with fractions.
fn rich() -> Bench {
    let bench = Bench::new();
    bench.make_source();
    bench.sh(&format!(
        "cd source
         mkdir -p {d}/{d} later
         echo deep > {d}/{d}/{name}; ln {d}/{d}/{name} later/twin; ln {d}/{d}/{name} later/third
         ln -s {d}/{d}/{name} long-target
         truncate -s 300K sparse; for at in 8 20 60; do echo data | dd of=sparse bs=4K seek=$at \
          conv=notrunc status=none; done
         truncate -s 64K hole; (truncate -s 20K tail; echo front | dd of=tail conv=notrunc \
          status=none)
         for no in $(seq 40); do echo $no | dd of=many-holes bs=4K seek=$((no * 2)) conv=notrunc \
          status=none; done
         head -c 5000000 /dev/zero | tr '\\0' x > large; echo small > last
         setfattr -n user.one -v 1 last; setfattr -n user.two -v '' last; setfattr -n user.dir -v \
          d later
         chown 70000:80000 last; chmod 4711 last
         touch -d '@1600000000.123456789' last; touch -d '@-5.25' later; touch -d @1500000000 .",
        d = "d".repeat(90),
        name = "n".repeat(200),
    ));
    bench.sh("find source -type s -delete");
    bench
}

fn tree_digest(bench: &Bench, image: &str) -> String {
    let info = bench.weald(["info", "--json", image]).expect(0, "").json();
    info[0]["tree_digest"]
        .as_str()
        .expect("a digest")
        .to_owned()
}

/// Runs a script; returns its exit status and standard error.
fn status(bench: &Bench, script: &str) -> (i32, String) {
    let said = bench.sh(&format!(
        "rm -f image; status=0; ({script}) 2> said || status=$?; echo $status; cat said"
    ));
    let (status, said) = said.split_once('\n').expect("a status");
    (status.parse().expect("a number"), said.to_owned())
}

/// Checks that the image of the stream that `make` writes equals the tree that `unpack` extracts
/// from it.
#[track_caller]
fn same_as_unpacked(bench: &Bench, make: &str, unpack: &str) {
    bench.sh(&format!(
        "rm -rf out stream built.weald streamed.weald; ({make}) > stream; mkdir out; ({unpack}) < \
         stream
         $WEALD build -q -l 1 out built.weald; $WEALD build -q -l 1 - streamed.weald < stream; \
          $WEALD check streamed.weald"
    ));
    if tree_digest(bench, "built.weald") != tree_digest(bench, "streamed.weald") {
        let reported = bench.weald(["diff", "streamed.weald", "out"]);
        panic!("{make}: another tree than unpacked:\n{}", reported.text());
    }
}

const GNU_UNPACK: &str = "tar -xp --xattrs --xattrs-include='*' --numeric-owner -C out";

#[test]
fn gnu_tar_streams_equal_their_unpacked_tree() {
    let bench = rich();
    for options in [
        "--format=gnu",
        "--format=gnu --sparse",
        "--format=oldgnu --sparse",
        "--format=pax --xattrs --xattrs-include='*'",
        "--format=pax --sparse --sparse-version=0.0",
        "--format=pax --sparse --sparse-version=0.1",
        "--format=pax --sparse --sparse-version=1.0 --xattrs --xattrs-include='*' --sort=name",
        "--format=pax --hard-dereference",
        "--format=gnu --label=volume --sort=none",
    ] {
        let make = format!("tar -c {options} --numeric-owner -C source .");
        same_as_unpacked(&bench, &make, GNU_UNPACK);
    }
    // Removes what the format cannot represent.
    bench.sh(
        "rm -r source/d* source/long-target; touch -d @5 source/later; chown -R 0:0 \
     source/last; rm source/later/t*",
    );
    for format in ["ustar", "v7"] {
        if format == "v7" {
            bench.sh("find source '(' -type c -o -type b -o -type p ')' -delete");
        }
        let make = format!("tar -c --format={format} --numeric-owner -C source .");
        same_as_unpacked(&bench, &make, GNU_UNPACK);
    }
}

/// Would catch: a table of samples without entries, because the length of the stream is unknown.
#[test]
fn distant_repeats_are_found_in_a_pipe() {
    let bench = Bench::new();
    bench.sh(
        "mkdir source; head -c 8000000 /dev/urandom > source/a; (echo head; cat source/a; \
     echo tail) > source/b
              tar -c -C source . | $WEALD build -q -l 1 - piped.weald; $WEALD check piped.weald",
    );
    let len = fs::metadata(bench.at("piped.weald")).unwrap().len();
    assert!(len < 8_200_000, "{len}");
}

#[test]
fn bsdtar_streams_equal_their_unpacked_tree() {
    let bench = rich();
    // bsdtar writes times with fractions before 1970 in its own way, which differs from pax.
    bench.sh("touch -d @-5 source/later; touch -d @1500000000 source");
    for format in ["pax", "gnutar", "restrict"] {
        let format = format.replace("restrict", "pax --no-xattrs");
        let make = format!("bsdtar -c --format={format} --numeric-owner -f - -C source .");
        // bsdtar does not set the time of the directory that it unpacks to.
        let unpack = "bsdtar -xp --numeric-owner -f - -C out && touch -d @1500000000 out";
        same_as_unpacked(&bench, &make, unpack);
    }
}

#[test]
fn weald_tar_comes_back_as_the_same_tree() {
    let bench = rich();
    bench.sh("$WEALD build -q -l 1 source image; $WEALD tar image | $WEALD build -q -l 1 - again");
    assert_eq!(tree_digest(&bench, "image"), tree_digest(&bench, "again"));
}

/// Would catch: an order of members that the sort does not undo, and links whose first name in the
/// tree is not the first in the stream.
#[test]
fn members_may_come_in_any_order_and_compressed() {
    let bench = rich();
    bench.sh("$WEALD build -q -l 1 source image
        (cd source; find . -print0) > names
        # The file behind several names is reported by the one that comes first.
        for seed in 1 2 3; do
            shuf -z --random-source=<(yes $seed) names > shuffled
            tar -c --format=pax --sparse --xattrs --xattrs-include='*' --numeric-owner -C source \
             --null --no-recursion -T shuffled > tar$seed
            $WEALD build -q -l 1 - shuffled$seed < tar$seed
        done
        gzip < tar1 > packed; cat tar1 | $WEALD build -q -l 1 --from tar - pipe; $WEALD build -q \
         -l 1 --from auto packed gzip
        xz -0 < tar1 | $WEALD build -q -l 1 - xz; zstd -q < tar1 | $WEALD build -q -l 1 - zstd");
    let expected = tree_digest(&bench, "image");
    for image in [
        "shuffled1",
        "shuffled2",
        "shuffled3",
        "pipe",
        "gzip",
        "xz",
        "zstd",
    ] {
        assert_eq!(tree_digest(&bench, image), expected, "{image}");
    }
}

/// Would catch: a first member that takes precedence over the last, a link whose contents change
/// with a later member of its target's name, and lost directories.
#[test]
fn later_members_replace_earlier_ones_as_they_do_for_tar() {
    let bench = Bench::new();
    bench.sh("mkdir -p 1/dir 2/dir 3
        echo one > 1/file; echo one > 1/other; ln 1/file 1/link; ln 1/file 1/dir/link; touch -d \
         @1 1/* 1/dir 1
        echo two > 2/file; ln -s file 2/other; chmod 700 2/dir; touch -h -d @2 2/* 2
        echo three > 3/file; ln 3/file 3/third; touch -d @3 3/* 3
        tar cf all --format=pax -C 1 .; tar rf all -C 2 .; tar rf all -C 3 .");
    same_as_unpacked(&bench, "cat all", "tar -xp -C out");
    // A chain: a hard link to a name that is itself a hard link.
    bench.sh(
        "mkdir 4; echo four > 4/a; ln 4/a 4/b; ln 4/a 4/c; touch -d @4 4/*
        tar cf 4.tar --format=ustar -C 4 a b; tar cf 5.tar --format=ustar -C 4 b c
        # The second stream without its first member.
        head -c 1024 4.tar > chain; dd if=4.tar bs=512 skip=2 count=1 status=none >> chain
        dd if=5.tar bs=512 skip=2 >> chain 2>&1 || true",
    );
    same_as_unpacked(
        &bench,
        "head -c 1536 chain; dd if=5.tar bs=512 skip=2 status=none",
        "tar -xp -C out && touch -d @0 out",
    );
    assert!(
        bench.sh("stat -c %h out/c").trim() == "3",
        "the chain is one"
    );
}

#[test]
fn missing_parent_directories_are_created() {
    let bench = rich();
    bench.sh(
        "tar -c --format=pax -C source etc/deep/leaf.conf bin/tool | $WEALD build -q -l 1 - image",
    );
    let reported = bench
        .weald(["stat", "--json", "image", "etc/deep"])
        .expect(0, "")
        .json();
    assert_eq!(
        (
            &reported[0]["mode"],
            &reported[0]["uid"],
            &reported[0]["mtime"]
        ),
        (&"0755".into(), &0.into(), &0.into()),
        "{reported:?}"
    );
}

#[track_caller]
fn refused(bench: &Bench, script: &str, expected: &str) {
    let output = bench.sh(&format!(
        "({script}) > said 2>&1 && echo done || echo $?; cat said"
    ));
    assert!(
        output.starts_with("2\n") && output.contains(expected),
        "{script}: {output}"
    );
    assert!(!bench.at("image").exists());
}

#[test]
fn invalid_streams_are_refused_with_the_member() {
    let bench = rich();
    bench.sh(
        "tar -c --format=pax -C source . > tar; mkdir odd; echo x > odd/file; ln -s /etc \
     odd/link; mkdir odd2; mkdir odd2/link; echo x > odd2/link/passwd",
    );
    let build = "$WEALD build -q -l 1 - image";
    for (script, expected) in [
        (
            "tar -cP --format=pax \"$PWD/odd/file\" | BUILD",
            "odd/file: an absolute path",
        ),
        (
            "tar -c --transform='s,file,../file,' -P -C odd file | BUILD",
            "../file: a path with '..'",
        ),
        (
            "tar cf two -C odd link && tar rf two -C odd2 link/passwd && BUILD < two",
            "link: is a symlink, and other members lie below it",
        ),
        ("head -c 30000 tar | BUILD", "the stream is cut short"),
        (
            "gzip < tar | head -c 3000 | BUILD",
            "the stream cannot be decompressed",
        ),
        (
            "head -c 5000 /dev/urandom | BUILD",
            "name its format with --from",
        ),
        (
            "head -c 5000 /dev/urandom | BUILD --from tar",
            "byte 512: not a tar header",
        ),
        ("BUILD < /dev/null", "the stream is empty"),
        ("BUILD --append < tar", "appending needs a directory"),
        (
            "BUILD --order name < tar",
            "an order of contents needs a directory",
        ),
        (
            "BUILD --keep-atime < tar",
            "keeping other times than mtime needs a directory",
        ),
        (
            "BUILD --filter 'dir-merge .rules' < tar",
            "a rule 'dir-merge' needs a directory",
        ),
        ("BUILD --memory 20M < tar", "memory: these options need"),
        (
            "tar -c --sort=name -C source etc | tar --delete etc/main.conf | BUILD",
            "etc/twin.conf: a hard link to 'etc/main.conf', of which no earlier member is kept",
        ),
    ] {
        refused(&bench, &script.replace("BUILD", build), expected);
    }
    let names = bench.sh("ls -A");
    assert!(
        !names.contains(".weald") && !names.contains("image"),
        "left behind: {names}"
    );
}

/// Would catch: a build that fails because the filter excludes the first name of a file with
/// several names, and contents of another file or of an earlier member with the same name.
#[test]
fn a_link_to_an_excluded_file_gets_its_contents() {
    let bench = Bench::new();
    bench.sh("mkdir -p source/skip/deep source/keep; cd source
        echo first > skip/a; ln skip/a keep/one; ln skip/a keep/two; ln skip/a zz-skip; ln skip/a \
         other
        head -c 9000000 /dev/urandom > skip/long; ln skip/long keep/long
        truncate -s 200K skip/holes; echo end | dd of=skip/holes bs=4K seek=40 conv=notrunc \
         status=none
        ln skip/holes keep/holes; touch skip/empty; ln skip/empty keep/empty; ln -s ../keep \
         skip/deep/link
        ln skip/deep/link keep/link; mkfifo skip/pipe; ln skip/pipe keep/pipe
        setfattr -n user.x -v y skip/a; chmod 640 skip/a; chown 5:6 skip/long
        find . -depth -exec touch -h -d @1500000000.5 {} +
        # The excluded names before, between and behind the names that are kept.
        find skip keep other zz-skip > ../list.1
        (echo keep; echo keep/two; grep -vxe keep -e keep/two ../list.1) > ../list.2
        find zz-skip other skip keep > ../list.3; cd ..
        for no in 1 2 3; do
            tar -c --format=pax --sparse --xattrs --numeric-owner --no-recursion -C source -T \
             list.$no > tar.$no; done
        for no in 1 2 3; do mkdir out.$no; tar -xp --xattrs --numeric-owner -C out.$no < tar.$no
            set -- -q -l 1 --exclude '*skip*'
            touch -d @1500000000.5 out.$no/keep; touch -d @0 out.$no; $WEALD build \"$@\" out.$no \
             built.$no; $WEALD build \"$@\" - image.$no < tar.$no
            $WEALD check -q image.$no; done");
    for no in 1..4 {
        let reported = bench.weald(["diff", &format!("built.{no}"), &format!("image.{no}")]);
        assert_eq!(reported.text(), "", "stream {no}");
        let link_counts = ["keep/one", "keep/long", "keep/pipe"].map(|name| {
            let stat = bench.weald(["stat", "--json", &format!("image.{no}"), name]);
            stat.expect(0, "").json()[0]["nlink"].as_u64()
        });
        assert_eq!(link_counts, [Some(3), Some(1), Some(1)]);
    }
    // Excluded files with one name: each link refers to the member before it.
    bench.sh(
        "mkdir 1 2; for no in 1 2; do echo $no > $no/skip; ln $no/skip $no/keep$no; done
        tar cf two --format=ustar -C 1 skip keep1; tar rf two -C 2 skip keep2
        $WEALD build -q -l 1 --exclude skip - two.weald < two; test \"$($WEALD cat two.weald \
         keep1 keep2 | tr '\\n' ' ')\" = '1 2 '
        # A link to an excluded link, whose target is kept.
        mkdir 3; echo 3 > 3/a; ln 3/a 3/b; ln 3/a 3/c; tar cf ab --format=ustar -C 3 a b; tar cf \
         bc --format=ustar -C 3 b c
        (head -c 1536 ab; dd if=bc bs=512 skip=2 status=none) > chain
        $WEALD build -q -l 1 --exclude b - chain.weald < chain; test $($WEALD cat chain.weald c) \
         = 3",
    );
    // If an excluded member comes after its link, its contents are missing, as for tar.
    refused(
        &bench,
        "tar cf late --format=ustar -C 1 skip keep1; (dd if=late bs=512 skip=2 count=1; head -c \
         1024 late; head -c 9000 /dev/zero) 2> /dev/null |
         $WEALD build -q -l 1 --exclude skip - image",
        "keep1: a hard link to 'skip', of which no earlier member is kept",
    );
}

/// Would catch: memory for excluded members that grows with the stream, and a build that fails at
/// its limit.
#[test]
fn a_link_to_a_file_over_the_limit_is_left_out_and_reported() {
    let bench = Bench::new();
    bench.sh(
        "mkdir -p source/skip source/keep && cd source/skip && seq -f \
     'a-file-with-a-long-name-%.0f' 20000 | xargs touch
        echo last > z; ln z ../keep/z; ln a-file-with-a-long-name-1 ../keep/a
        cd ..; (cd ..; tar -c --sort=name --format=ustar -C source skip keep > tar)",
    );
    let output = bench.sh(
        "$WEALD build -q -l 0 --memory 128M --exclude skip - image < tar 2> said && echo 0 || \
         echo $?
         cat said; $WEALD ls image keep; $WEALD check -q image",
    );
    let lines: Vec<_> = output.lines().collect();
    assert_eq!((lines[0], &lines[2..]), ("1", &["a"][..]), "{output}");
    assert!(
        lines[1].starts_with(
            "weald: keep/z: left out: a hard link to 'skip/z', which the filter excludes"
        ),
        "{output}"
    );
}

#[test]
fn rules_and_attributes_hold_for_streams() {
    let bench = rich();
    bench.sh(
        "tar -c --format=pax --sort=name --sparse --xattrs --numeric-owner -C source . > tar
        set -- -q -l 1 --exclude 'n*' --exclude /etc/deep/ --exclude 'twin*' --exclude third \
         --owner 5:6 --mode go-rwx --no-xattrs
        SOURCE_DATE_EPOCH=1550000000 $WEALD build \"$@\" source built
        SOURCE_DATE_EPOCH=1550000000 $WEALD build \"$@\" - streamed < tar",
    );
    let reported = bench.weald(["diff", "built", "streamed"]).text();
    assert_eq!(reported, "");
    assert_eq!(
        tree_digest(&bench, "built"),
        tree_digest(&bench, "streamed")
    );
    // A member of an unknown type is reported and left out.
    bench.sh(
        "printf x > odd; tar -c --format=ustar odd > tar2; printf Q | dd of=tar2 bs=1 \
     seek=156 conv=notrunc status=none
        python3 -c \"d=bytearray(open('tar2','rb').read()); d[148:156]=b' '*8; \
         d[148:156]=b'%06o\\0 '%sum(d[:512]); open('tar2','wb').write(d)\"",
    );
    let mut command = bench.command();
    command
        .args(["build", "-q", "-", "odd.weald"])
        .stdin(fs::File::open(bench.at("tar2")).expect("open"));
    let output = command.output().expect("weald");
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        said,
        "weald: odd: left out: a tar member of type 'Q', which is not known\n"
    );
}

/// Would catch: a list that is lost without a message.
#[test]
fn textual_acls_are_reported() {
    let bench = Bench::new();
    bench.sh("mkdir in; echo x > in/file; setfacl -m u:77:r in/file
        tar -c --format=pax --acls -C in . > words; tar -c --format=pax --xattrs \
         --xattrs-include='*' -C in . > plain
        $WEALD build -q in built; $WEALD build -q --from tar plain streamed");
    let output = bench.weald(["build", "-q", "--from", "tar", "words", "image"]);
    output.expect(
        1,
        "weald: ./file: its access control list is left out: only those in SCHILY.xattr are read\n",
    );
    assert_eq!(
        tree_digest(&bench, "built"),
        tree_digest(&bench, "streamed")
    );
}

/// Would catch: an image that depends on the number of threads or on the boundaries of sorted runs.
#[test]
fn memory_and_threads_do_not_change_the_tree() {
    let bench = Bench::new();
    bench.sh(
        "python3 -c \"for n in range(800000): print('d%d/some-longer-name/%d' % (n * 7919 % \
     20011, n), end='\\0')\" > names
        for memory in 144M 512M; do $WEALD build -q -l 1 --threads 1 --memory $memory --from \
         listing - image$memory < names; done
        $WEALD build -q -l 1 --threads 2 --memory 144M --from listing names again; cmp image144M \
         again",
    );
    assert_eq!(
        tree_digest(&bench, "image144M"),
        tree_digest(&bench, "image512M")
    );
}

/// Would catch: a second half of a tree that is left out without a message, and padding that is
/// reported.
#[test]
fn data_after_a_tar_archive_is_reported() {
    let bench = rich();
    bench.sh(
        "tar c -C source bin > 1.tar; tar c -C source etc > 2.tar; cat 1.tar 2.tar > two
        gzip < 1.tar > 1.gz; gzip < 2.tar > 2.gz; cat 1.gz 2.gz > two.gz
        (cat 1.tar; printf 'signature') > signed; (cat 1.tar; head -c 100000 /dev/zero) > padded",
    );
    for stream in ["two", "two.gz"] {
        let (code, said) = status(&bench, &format!("$WEALD build -q - image < {stream}"));
        assert_eq!(code, 2, "{said}");
        assert_eq!(
            said,
            "weald: tar stream, byte 10240: a second archive follows the first: make one of both \
             with tar --concatenate, or build an image of each\n"
        );
        assert!(!bench.at("image").exists());
    }
    let reported = "weald: byte 10240: data follows the end of the tar archive: it is not read\n";
    let build = |stream| status(&bench, &format!("$WEALD build -q - image < {stream}"));
    assert_eq!(build("signed"), (1, reported.to_owned()));
    assert_eq!(build("padded"), (0, String::new()));
}
