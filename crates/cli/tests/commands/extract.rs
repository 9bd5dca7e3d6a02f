//! `weald extract`: restores the same tree, and never writes outside the target.
use crate::support::{Bench, run};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use weald_testkit::compare::assert_same;
use weald_testkit::{CompareOptions, torture};

#[test]
fn everything_comes_back() {
    let bench = Bench::with_image();
    for threads in ["1", "3"] {
        let target = format!("out{threads}");
        bench
            .weald(["extract", "--threads", threads, "image", &target])
            .expect(0, "");
        assert_same(
            &bench.at("source"),
            &bench.at(&target),
            &CompareOptions::default(),
        );
    }
}

#[test]
fn the_torture_tree_comes_back() {
    let bench = Bench::with_torture(7);
    bench
        .weald(["build", "-q", "-l", "1", "source", "image"])
        .expect(0, "");
    bench.weald(["extract", "-q", "image", "out"]).expect(0, "");
    assert_same(
        &bench.at("source"),
        &bench.at("out"),
        &CompareOptions::default(),
    );
    bench.weald(["diff", "image", "source"]).expect(0, "");
    bench.weald(["diff", "image", "out"]).expect(0, "");
}

#[test]
fn trees_deeper_than_paths_come_back_with_few_descriptors() {
    let bench = Bench::new();
    fs::create_dir(bench.at("source")).expect("mkdir");
    torture::make_deep(&bench.at("source"), 3000).expect("deep tree");
    bench
        .weald(["build", "-q", "-l", "1", "source", "image"])
        .expect(0, "");
    bench.sh("ulimit -n 256 && $WEALD extract image out");
    let options = CompareOptions {
        rsync: false,
        ..CompareOptions::default()
    };
    assert_same(&bench.at("source"), &bench.at("out"), &options);
    bench.weald(["diff", "image", "out"]).expect(0, "");
    // Remove the directory here: the tempfile crate fails, because it uses whole paths.
    bench.sh("rm -rf source out");
}

/// Would catch: waiting jobs that each hold the descriptor of their directory.
#[test]
fn many_directories_come_back_with_few_descriptors() {
    let bench = Bench::new();
    bench.sh("head -c 1M /dev/urandom > bytes; for d in {1..400}; do \
         mkdir -p source/$((d % 7))/$d; cp bytes source/$((d % 7))/$d/f; done; \
         $WEALD build -q -l 1 source image; \
         ulimit -n 180; $WEALD extract -q -t 2 image out; diff -r source out");
}

#[test]
fn patterns_select_entries_and_their_parents() {
    let bench = Bench::with_image();
    let listed = |target: &str| bench.sh(&format!("cd {target} && find . | sort"));
    bench
        .weald(["extract", "image", "a", "etc/deep", "zero"])
        .expect(0, "");
    assert_eq!(
        listed("a"),
        ".\n./etc\n./etc/deep\n./etc/deep/leaf.conf\n./zero\n"
    );
    assert_eq!(
        fs::metadata(bench.at("a/etc")).expect("stat").mtime(),
        1_709_208_000
    );
    bench
        .weald(["extract", "image", "b", "**/t*"])
        .expect(0, "");
    assert_eq!(
        listed("b"),
        ".\n./bin\n./bin/tool\n./etc\n./etc/twin.conf\n"
    );
    let output = bench.weald(["extract", "image", "c", "zero", "no*thing", "etc/gone"]);
    output.expect(
        1,
        "weald: no*thing: nothing in the image matches\nweald: etc/gone: nothing in \
     the image matches\n",
    );
    assert_eq!(listed("c"), ".\n./zero\n");
}

#[test]
fn existing_files_are_not_replaced_without_overwrite() {
    let bench = Bench::with_image();
    fs::create_dir_all(bench.at("out/etc")).expect("mkdir");
    fs::set_permissions(bench.at("out/etc"), PermissionsExt::from_mode(0o700)).expect("chmod");
    fs::write(bench.at("out/etc/main.conf"), "mine").expect("write");
    bench
        .weald(["extract", "image", "out"])
        .expect(1, "weald: etc/main.conf: exists already\n");
    assert_eq!(
        fs::read(bench.at("out/etc/main.conf")).expect("read"),
        b"mine"
    );
    // The second name of the inode is still created, and existing directories keep their
    // attributes.
    assert_eq!(
        fs::read(bench.at("out/etc/twin.conf")).expect("read"),
        b"main\n"
    );
    assert_eq!(
        fs::metadata(bench.at("out/etc")).expect("stat").mode() & 0o7777,
        0o700
    );
    bench
        .weald(["extract", "--overwrite", "image", "out"])
        .expect(0, "");
    assert_same(
        &bench.at("source"),
        &bench.at("out"),
        &CompareOptions::default(),
    );
}

#[test]
fn symlinks_in_the_target_are_not_followed() {
    let bench = Bench::with_image();
    fs::create_dir_all(bench.at("outside")).expect("mkdir");
    fs::create_dir(bench.at("out")).expect("mkdir");
    fs::write(bench.at("victim"), "victim").expect("write");
    symlink("../outside", bench.at("out/etc")).expect("symlink");
    symlink("../victim", bench.at("out/zero")).expect("symlink");
    let output = bench.weald(["extract", "image", "out"]);
    let mut lines: Vec<&str> = output.stderr.lines().collect();
    lines.sort_unstable();
    assert_eq!(
        (output.code, lines),
        (
            Some(1),
            vec!["weald: etc: exists already", "weald: zero: exists already"]
        )
    );
    assert_eq!(fs::read_dir(bench.at("outside")).expect("list").count(), 0);
    bench
        .weald(["extract", "--overwrite", "image", "out"])
        .expect(0, "");
    assert_eq!(fs::read_dir(bench.at("outside")).expect("list").count(), 0);
    assert_eq!(fs::read(bench.at("victim")).expect("read"), b"victim");
    assert!(
        fs::symlink_metadata(bench.at("out/etc"))
            .expect("stat")
            .is_dir()
    );
}

#[test]
fn an_acl_of_the_target_is_not_inherited() {
    let bench = Bench::with_image();
    bench.sh("mkdir out && setfacl -d -m u:1234:rwx out && touch out/there");
    bench.weald(["extract", "image", "out"]).expect(0, "");
    let acls =
        bench.sh("cd out && rm there && getfacl -R --skip-base -p bin etc zero sparse fifo null");
    assert_eq!(acls, "");
}

/// Would catch: entries that inherit the ACL of a directory in the target below its root, so that
/// a user reads what the image denies; an ACL of that directory itself that stays.
#[test]
fn an_acl_of_a_directory_in_the_target_is_not_inherited() {
    let bench = Bench::new();
    bench.sh(
        "mkdir -p source/d/sub; cd source/d; echo secret > f; chmod 660 f; ln f hard
         echo own > listed; setfacl -m u:7:r listed; mkfifo fifo; mknod null c 1 3; ln -s f link
         chmod 770 sub; chmod 755 .; cd ../..; cp -a source bare
         setfacl -m d:u:1234:rwx source/d; setfacl -m u:4321:rx source/d
         $WEALD build -q source image; $WEALD build -q bare plain",
    );
    let denied =
        "! setpriv --reuid 1234 --regid 1234 --clear-groups cat out/d/f 2>/dev/null || exit 1";
    for as_user in ["", "setpriv --reuid 1001 --regid 1001 --clear-groups"] {
        // Into a directory that is there without its entries.
        bench.sh(&format!(
            "rm -rf out; mkdir -p out/d/sub; setfacl -m u:1234:rwx,d:u:1234:rwx out/d out/d/sub
             chown -R 1001:1001 out; {as_user} $WEALD extract -q plain out
             chmod 777 out/d; {denied}
             getfacl -pn out/d/f out/d/hard out/d/fifo > acls; ! grep :1234: acls || exit 1
             ! getfacl -pn out/d/listed | grep :1234: || exit 1
             getfacl -pn out/d/listed | grep user:7:r
             getfacl -pn out/d | grep default:user:1234"
        ));
        // Over everything: the directory gets the image's own lists.
        for image in ["plain", "image"] {
            let source = if image == "plain" { "bare" } else { "source" };
            bench.sh(&format!(
                "rm -rf out; mkdir out; cp -a {source}/d out/; rm -rf out/d/sub
                 setfacl -m u:1234:rwx,d:u:1234:rwx out/d; chown -hR 1001:1001 out
                 {as_user} $WEALD extract -q --overwrite {image} out
                 getfacl -pn out/d/f out/d/hard out/d/fifo out/d/sub > acls
                 ! grep :1234: acls || exit 1
                 getfacl -cn {source}/d > want; getfacl -cn out/d > found; diff want found
                 chmod 777 out/d; {denied}"
            ));
        }
    }
    bench.sh("rm -rf out; cp -a source out; $WEALD extract -q --overwrite image out");
    assert_same(
        &bench.at("source"),
        &bench.at("out"),
        &CompareOptions::default(),
    );
}

/// Would catch: owners and modes that are assumed right because files were created with them,
/// although a umask or the group of the directory changed them.
#[test]
fn owners_and_modes_do_not_depend_on_umask_or_setgid() {
    let bench = Bench::new();
    bench.sh(
        "mkdir source && cd source && mkdir -m 2775 dir && echo in > dir/in
        for mode in 0 444 600 644 666 777 1644 2755 4755; do echo $mode > $mode; chmod $mode \
         $mode; done
        for name in other suid; do echo $name > $name; chown 12:34 $name; done; chmod 660 other; \
         chmod 4711 suid
        echo x > xattr; setfattr -n user.a -v b xattr; chmod 444 xattr",
    );
    bench
        .weald(["build", "-q", "source", "image"])
        .expect(0, "");
    for umask in ["0", "022", "077"] {
        for target in ["chmod 755 out", "chgrp 4321 out && chmod 2770 out"] {
            bench.sh(&format!(
                "rm -rf out && mkdir out && {target} && umask {umask} && $WEALD extract -q \
                 --overwrite image out"
            ));
            assert_same(
                &bench.at("source"),
                &bench.at("out"),
                &CompareOptions::default(),
            );
        }
    }
}

#[test]
fn ordinary_users_own_the_extracted_files() {
    let bench = Bench::with_image();
    fs::create_dir(bench.at("out")).expect("mkdir");
    bench.sh("chown 65534:65534 out");
    let mut command = bench.command();
    let output = run(command
        .args(["extract", "image", "out"])
        .uid(65534)
        .gid(65534));
    // Only root can make device nodes; everything else is extracted.
    output.expect(
        0,
        "weald: 1 device was left out: only root makes devices (--strict makes the exit status \
         1)\n",
    );
    bench.sh("ln source/null source/null2; mknod source/b b 7 0; $WEALD build -qf source image");
    let mut command = bench.command();
    let strict = command.args(["extract", "--strict", "--overwrite", "image", "out"]);
    let output = run(strict.uid(65534).gid(65534));
    output.expect(
        1,
        "weald: 3 devices were left out: only root makes devices\n",
    );
    let leaf = fs::metadata(bench.at("out/etc/deep/leaf.conf")).expect("stat");
    assert_eq!(
        (leaf.uid(), leaf.mtime(), leaf.mtime_nsec()),
        (65534, 1_709_208_000, 123_456_789)
    );
    assert_eq!(
        fs::metadata(bench.at("out/zero")).expect("stat").mode() & 0o7777,
        0o711
    );
    assert_eq!(
        bench.sh("getfattr --only-values -n user.note out/zero"),
        "nothing here"
    );
}

#[test]
fn a_damaged_file_is_reported_and_removed() {
    let bench = Bench::new();
    fs::create_dir(bench.at("source")).expect("mkdir");
    // Random data is stored raw, so that the test can find its block.
    let noise: Vec<u8> = (0..100_000_u32)
        .flat_map(|i| *blake3::hash(&i.to_le_bytes()).as_bytes())
        .collect();
    fs::write(bench.at("source/noise"), &noise).expect("write");
    fs::write(bench.at("source/text"), "text").expect("write");
    bench
        .weald([
            "build",
            "-q",
            "-l",
            "0",
            "--block-size",
            "64K",
            "source",
            "image",
        ])
        .expect(0, "");
    let mut image = fs::read(bench.at("image")).expect("read");
    let needle = &noise[2_000_000..2_000_032];
    let at = image
        .windows(32)
        .position(|window| window == needle)
        .expect("raw bytes");
    image[at] ^= 1;
    fs::write(bench.at("image"), image).expect("write");
    let output = bench.weald(["extract", "image", "out"]);
    assert_eq!(output.code, Some(1));
    assert!(
        output.stderr.starts_with("weald: noise: ") && output.stderr.lines().count() == 1,
        "{}",
        output.stderr
    );
    assert!(!bench.at("out/noise").exists());
    assert_eq!(fs::read(bench.at("out/text")).expect("read"), b"text");
    let check = bench.weald(["check", "image"]);
    assert_eq!(check.code, Some(1));
    assert!(
        check.text().contains("damaged: noise: "),
        "{}",
        check.text()
    );
    let cat = bench.weald(["cat", "image", "noise"]);
    assert_eq!(cat.code, Some(1));
    assert!(noise.starts_with(&cat.stdout), "cat wrote wrong bytes");
}

#[test]
fn a_full_disk_is_reported_once() {
    // One thread: with two, the second could meet the full disk with a small file first.
    let bench = Bench::with_image();
    let output = bench.sh(
        "mkdir small && mount -t tmpfs -o size=64k tmpfs small && trap 'umount small' EXIT
         head -c 1000000 /dev/urandom > source/big && $WEALD build -qf source image
         set +e; $WEALD extract --threads 1 image small/out 2>&1 | sed 's/small.*out//'; echo \
          ${PIPESTATUS[0]}",
    );
    assert_eq!(output, "weald: big: write: No space left on device\n2\n");
}

// Would catch an extraction that shows nothing on a terminal, or that shows progress with
// `--quiet`.
#[test]
fn a_terminal_shows_a_bar_unless_disabled() {
    let bench = Bench::with_image();
    let entry_count = bench.sh("find source -printf x | wc -c");
    let shown = |words: &str| {
        bench.sh(&format!(
            "TERM=xterm script -qec 'stty cols 120; $WEALD extract {words}' /dev/null </dev/null"
        ))
    };
    let bar = shown("image bar");
    let total = format!("/{} entries, ", entry_count.trim());
    assert!(bar.contains("extract [") && bar.contains(&total), "{bar:?}");
    let part = shown("image part etc");
    assert!(part.contains(" 1 entries, "), "no total is known: {part:?}");
    assert_eq!(shown("-q image quiet"), "");
    assert_eq!(shown("--progress none image none"), "");
    // The extraction is over before the first line, which comes after five seconds.
    bench
        .weald(["extract", "--progress", "lines", "image", "lines"])
        .expect(0, "");
    let both = bench.weald(["extract", "-q", "--progress", "bar", "image", "both"]);
    assert!(both.stderr.contains("cannot be used with"), "{both:?}");
}

/// Would catch: a long list of damaged files without what became of the rest.
#[test]
fn many_problems_are_summed_up() {
    let bench = Bench::new();
    bench.sh(
        "mkdir many out; for i in $(seq 30); do seq $i 900 > many/$i; done
        $WEALD build -q many image; for i in $(seq 12); do echo > out/$i; done",
    );
    let output = bench.weald(["extract", "image", "out"]);
    assert_eq!(output.code, Some(1));
    let last = output.stderr.lines().last().expect("a line");
    assert_eq!(
        last,
        "weald: 19 entries are written; 12 could not be, as told above"
    );
}

/// Would catch: a damaged file of which more is lost than the damaged block, bytes that are neither
/// those of the source nor zeros of a named range, a damaged file that nobody is told of.
#[test]
fn what_is_intact_of_a_damaged_file_is_kept_on_request() {
    let bench = Bench::new();
    bench.sh(
        "mkdir source; head -c 6000000 /dev/urandom > source/noise; echo whole > source/text
         head -c 3000000 /dev/zero | tr '\\0' z >> source/noise
         $WEALD build -q -l 1 --block-size 256K source image; cp image intact",
    );
    let source = fs::read(bench.at("source/noise")).expect("read");
    for (seed, at) in [1_000_000, 2_500_000, 4_000_000].into_iter().enumerate() {
        let damaged = format!(
            "cp intact image
             printf DAMAGED-BY-A-DISK | dd of=image bs=1 seek={at} conv=notrunc status=none"
        );
        bench.sh(&damaged);
        let target = format!("out{seed}");
        let plain = bench.weald(["extract", "-q", "image", "plain"]);
        assert_eq!(plain.code, Some(1));
        assert!(!bench.at("plain/noise").exists());
        bench.sh("rm -r plain");
        let kept = bench.weald(["extract", "-q", "--keep-damaged", "image", &target]);
        assert_eq!(kept.code, Some(1), "{}", kept.stderr);
        let found = fs::read(bench.at(&target).join("noise")).expect("read");
        assert_eq!(found.len(), source.len());
        let said = kept.stderr.lines().next().expect("a line");
        let (_, ranges) = said
            .split_once("kept with zeros in place of ")
            .expect("kept");
        let (_, ranges) = ranges.split_once(" bytes, ").expect("ranges");
        let range = ranges.split([',', ':']).next().expect("a range");
        let (first, last) = range.trim().split_once('-').expect("a range");
        let (first, last): (usize, usize) = (
            first.parse().expect("a number"),
            last.parse().expect("a number"),
        );
        assert!(last - first < 600_000, "{said}");
        assert!(found[first..=last].iter().all(|&byte| byte == 0), "{said}");
        assert!(found[..first] == source[..first] && found[last + 1..] == source[last + 1..]);
        assert_eq!(
            fs::read(bench.at(&target).join("text")).expect("read"),
            b"whole\n"
        );
    }
}

/// Would catch: a name of a file with many names that is missing because the file system takes no
/// more links, or that has other bytes.
#[test]
fn links_that_cannot_be_made_become_copies() {
    let bench = Bench::new();
    // ext4 takes 65,000 links of a file, tmpfs has no limit.
    let said = bench.sh("mkdir source disk; mount -t tmpfs none source
         trap 'umount source; umount disk || true' EXIT
         echo linked > source/file
         python3 -P -c \"import os
for n in range(65010): os.link('source/file', f'source/link{n}')\"
         $WEALD build -q -l 1 source image
         truncate -s 300M file; mkfs.ext4 -q -N 200000 file; mount -o loop file disk
         $WEALD extract -q image disk/out 2> said; cat said
         ls disk/out | wc -l; find disk/out -links 1 -type f | wc -l
         find disk/out -type f -print0 | xargs -0 cat | sort -u");
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[1..], ["65011", "11", "linked"], "{said}");
    assert!(
        lines[0].contains("11 hard links became files of their own"),
        "{said}"
    );
}

/// Would catch: devices that are made, or told of, although they were not wanted.
#[test]
fn devices_are_left_out_on_request() {
    let bench = Bench::new();
    bench.sh(
        "mkdir source; mknod source/null c 1 3; mknod source/disk b 7 99; mkfifo source/pipe
         $WEALD build -q source image",
    );
    let skipped = ["extract", "-q", "--skip-devices", "image", "out"];
    bench.weald(skipped).expect(0, "");
    assert_eq!(bench.sh("ls out"), "pipe\n");
}
