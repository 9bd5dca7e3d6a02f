//! `weald build --dereference`, `--dereference-unsafe`, `--hard-links` and `-xx`: what becomes of
//! symlinks, hard links and mount points. The oracles are rsync(1) and hardlink(1).

use crate::support::*;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use weald_testkit::Rng;

/// A source with symlinks to files and directories inside and outside, and to nothing. Directories
/// that links lead to have no links to directories themselves, so that nothing contains itself.
fn make_linked(dir: &Path, rng: &mut Rng) {
    for path in ["src/plain/in", "src/a/b", "src/c", "out/deep"] {
        fs::create_dir_all(dir.join(path)).expect("mkdir");
    }
    let files = [
        "src/plain/f",
        "src/plain/in/g",
        "src/a/f",
        "src/a/b/f",
        "src/c/f",
        "out/f",
        "out/deep/g",
    ];
    for path in files {
        let len = rng.below(5000) as usize;
        fs::write(dir.join(path), rng.bytes(len)).expect("write");
    }
    symlink("f", dir.join("out/inner")).expect("symlink");
    symlink("../../gone", dir.join("out/deep/nothing")).expect("symlink");
    fs::hard_link(dir.join("out/f"), dir.join("src/a/hard")).expect("link");
    fs::hard_link(dir.join("src/c/f"), dir.join("src/c/hard")).expect("link");
    let absolute = |path: &str| dir.join(path).to_str().expect("text").to_owned();
    for n in 0..30 {
        let place = *rng.pick(&["src", "src/a", "src/a/b", "src/c"]);
        let up = "../".repeat(place.matches('/').count());
        let target = match rng.below(12) {
            0 => absolute("out/f"),
            1 => absolute("out"),
            2 => absolute("src/plain"),
            3 => format!("{up}../out/deep"),
            4 => format!("{up}../out/f"),
            5 => format!("{up}plain/in"),
            6 => format!("{up}plain/f"),
            7 => "gone".to_owned(),
            8 => absolute("gone"),
            9 => format!("{up}plain/../plain/in"),
            10 => format!("./{up}plain//in/g"),
            _ => format!("{up}../src/plain"),
        };
        symlink(target, dir.join(place).join(format!("l{n}"))).expect("symlink");
    }
    shell(
        dir,
        "setfattr -n user.x -v 1 out/f src/plain/f; chmod 700 out/deep; chmod 604 out/f",
    );
}

/// Would catch: a link that is followed and should stay, or the other way round; the attributes,
/// contents or names of another file; hard links that rsync has not; threads that decide.
#[test]
fn links_lead_where_rsync_follows_them() {
    for seed in 1..=6 {
        let scratch = Scratch::new("64m");
        let dir = scratch.path();
        make_linked(dir, &mut Rng::new(seed));
        // Where it has met links to nothing, rsync sets no times of directories and no xattrs; cp
        // does, but links what it copies twice.
        for (ours, theirs, words) in [
            (
                "--dereference",
                "cp -aL --preserve=all src want",
                "--ignore links",
            ),
            (
                "--dereference",
                "rsync -aHL src/ want/",
                "--ignore mtime,xattrs",
            ),
            (
                "--dereference --hard-links split",
                "rsync -aL src/ want/",
                "--ignore mtime,xattrs",
            ),
            (
                "--dereference-unsafe",
                "rsync -aH --copy-unsafe-links src/ want/",
                "--ignore mtime,xattrs",
            ),
            (
                "--dereference-unsafe --hard-links split",
                "rsync -a --copy-unsafe-links src/ want/",
                "--ignore mtime,xattrs",
            ),
            (
                "--dereference --exclude plain/ --exclude l1*",
                "rsync -aHL --exclude plain/ --exclude 'l1*' src/ want/",
                "--ignore mtime,xattrs",
            ),
            (
                "--dereference --no-xattrs",
                "cp -aL --no-preserve=xattr src want",
                "--ignore links",
            ),
        ] {
            let script = format!(
                "rm -rf want image*; code=0
                 {theirs} 2>said || code=$?
                 ours=0; $WEALD build -q -l 0 -t 1 {ours} src image 2>told || ours=$?
                 $WEALD build -q -l 0 -t 4 {ours} src image4 2>told4 || true
                 cmp image image4 >&2; cmp told told4 >&2
                 case $code in 0) [ $ours = 0 ] ;; 1 | 23) [ $ours = 1 ] ;; *) exit 9 ;; esac
                 $WEALD diff {words} image want
                 [ $code = 0 ] || grep -q 'which is not there' told"
            );
            let differences = printed(dir, &script);
            assert_eq!(differences, "", "seed {seed}: {ours}");
            check(&scratch.at("image"));
        }
    }
}

/// Would catch: a build that never ends, or ends with an error that does not say which link leads
/// where; a refusal of what is no cycle.
#[test]
fn a_directory_that_would_contain_itself_is_refused() {
    let scratch = Scratch::new("64m");
    let dir = scratch.path();
    for (make, words) in [
        ("ln -s . src/loop", "loop: leads back to the source itself"),
        ("ln -s .. src/a/up", "a/up: leads back to the source itself"),
        ("ln -s ../../a src/a/b/top", "a/b/top: leads back to a,"),
        ("ln -s ../c src/a/x; ln -s ../a src/c/y", "leads back to"),
        (
            "ln -s $PWD src/all",
            "all/src: leads back to the source itself",
        ),
    ] {
        shell(
            dir,
            &format!("rm -rf src; mkdir -p src/a/b src/c; touch src/a/f; {make}"),
        );
        let built = weald(dir, &["build", "-q", "--dereference", "src", "image"]);
        let said = stderr(&built);
        assert_eq!(built.status.code(), Some(2), "{said}");
        assert!(said.contains(words) && said.contains("--exclude"), "{said}");
        assert!(!scratch.at("image").exists());
        let words = "--exclude /loop --exclude up --exclude top --exclude y --exclude /all";
        printed(
            dir,
            &format!("$WEALD build -q --dereference {words} src image; rm image"),
        );
    }
    // Two links to one directory are no cycle.
    shell(
        dir,
        "rm -rf src; mkdir -p src/a; touch src/a/f; ln -s a src/b; ln -s a src/c",
    );
    let names = printed(dir, "$WEALD build -q --dereference src i; $WEALD find i");
    assert_eq!(names, ".\na\na/f\nb\nb/f\nc\nc/f\n");
    for (words, said) in [
        ("--dereference", "are for directories, not for streams"),
        (
            "--hard-links all-equal",
            "linking equal files needs a directory",
        ),
    ] {
        let script =
            format!("(tar c src | $WEALD build -q {words} - no 2>&1 || true) | grep -F '{said}'");
        printed(dir, &script);
    }
}

/// Groups of the names of one file, as text.
const GROUPS: &str = r#"
groups() { (cd "$1"; find . -type f -links +1 -printf '%i %P\n' | sort -k2 |
    awk '{ names[$1] = names[$1] " " $2 } END { for (i in names) print names[i] }' | sort); }
"#;

/// Would catch: equal files that are not linked, others that are, hard links of the source that are
/// lost, and a file system that differs in anything but its links.
#[test]
fn equal_files_become_hard_links_as_hardlink_makes_them() {
    for seed in 1..=6 {
        let scratch = Scratch::new("64m");
        let dir = scratch.path();
        let mut rng = Rng::new(seed);
        for name in ["src", "src/d", "src/d/e"] {
            scratch.dir(name);
        }
        for n in 0..60 {
            let path = dir
                .join(rng.pick(&["src", "src/d", "src/d/e"]))
                .join(format!("f{n:02}"));
            let text = rng
                .pick(&["", "one", "two", "a longer text"])
                .repeat(*rng.pick(&[1, 900]));
            fs::write(&path, text).expect("write");
            let path = path.to_str().expect("text");
            let mode = rng.pick(&["600", "644"]);
            let time = rng.pick(&["1000", "2000"]);
            let mut script = format!("chmod {mode} {path}; touch -d @{time} {path}");
            if rng.one_in(4) {
                script += &format!("; setfattr -n user.x -v {} {path}", rng.below(2));
            }
            if rng.one_in(6) {
                script += &format!("; chown 7:8 {path}");
            }
            if rng.one_in(5) {
                script += &format!("; ln {path} {path}.link");
            }
            shell(dir, &script);
        }
        printed(
            dir,
            &format!(
                "{GROUPS}
                 cp -a --preserve=all src want; hardlink -q -X -s 1 want
                 rm -f want/..x; $WEALD build -q -l 0 --hard-links all-equal src image
                 $WEALD extract -q image got; groups got > groups.got; groups want > groups.want
                 diff groups.want groups.got >&2; [ -s groups.got ]
                 $WEALD build -q -l 0 --hard-links split src apart; $WEALD extract -q apart parted
                 groups parted > groups.parted; [ ! -s groups.parted ]
                 rsync -aXn --delete -i --checksum src/ got/ | grep -v '^\\.d\\.\\.t' >&2 || true
                 rsync -aXn --delete -i --checksum src/ parted/ | grep . >&2 && exit 9
                 $WEALD build -q -l 0 src plain; $WEALD rewrite -q --hard-links all-equal plain re
                 $WEALD diff image re >&2; $WEALD rewrite -q --hard-links split image re2
                 $WEALD diff apart re2 >&2
                 tar c -C src . | $WEALD build -q -l 0 --hard-links split - tarred
                 $WEALD extract -q tarred untarred; groups untarred > groups.un; [ ! -s groups.un ]
                 # What an image has already keeps its links, and nothing joins it.
                 cp plain two; $WEALD build -q -l 0 --append --at new --hard-links all-equal src two
                 $WEALD diff plain two:/ >&2 || true; $WEALD diff image two:/new >&2"
            ),
        );
        check(&scratch.at("image"));
        check(&scratch.at("two"));
    }
}

/// Would catch: mount points that are entered or kept where rsync leaves them out, and symlinks to
/// directories of other file systems that are followed there.
#[test]
fn mount_points_are_left_out_as_rsync_does() {
    let scratch = Scratch::new("64m");
    shell(
        scratch.path(),
        "mkdir -p src/a/mount src/b; touch src/a/f src/b/f src/a/mount/hidden",
    );
    shell(
        scratch.path(),
        "mount -t tmpfs tmpfs src/a/mount; touch src/a/mount/over",
    );
    shell(
        scratch.path(),
        "ln -s /proc/self src/process; ln -s a/mount src/link; ln -s b src/c",
    );
    for (ours, theirs) in [
        ("-x", "-ax"),
        ("-xx", "-axx"),
        ("-xx --dereference", "-axxL"),
        ("-x --dereference", "-axL"),
    ] {
        let script = format!(
            "rm -rf want; rsync {theirs} src/ want/ >&2; $WEALD build -qf {ours} src image >&2
             $WEALD diff --ignore mtime image want; $WEALD find image"
        );
        let names = printed(scratch.path(), &script);
        assert_eq!(
            names.contains("a/mount\n"),
            !ours.starts_with("-xx"),
            "{ours}: {names}"
        );
        assert!(!names.contains("over"), "{names}");
    }
    let why = printed(scratch.path(), "$WEALD build -xx --list -v src image");
    assert!(why.contains("left out: a/mount: a mount point\n"), "{why}");
    shell(scratch.path(), "umount src/a/mount");
}
