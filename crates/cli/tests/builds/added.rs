//! `weald build --add` and `rewrite --add`: lines of mtree(5) over a source. The oracles are trees
//! that root makes with the tools of the host, and descriptions by bsdtar and by mtree.

use crate::support::*;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use weald_testkit::Rng;

/// Would catch: a user without privileges who cannot pack devices and files of others, an attribute
/// that is not changed or one too many, a path that is not made, contents of another file, a rule
/// that changes what a line gives, an image of another tree by `rewrite`.
#[test]
fn a_user_packs_devices_and_files_of_others() {
    let scratch = Scratch::new("1g");
    let dir = scratch.path();
    shell(
        dir,
        "mkdir -p src/etc src/gone/deep; echo a > src/etc/a; echo b > src/etc/b; ln src/etc/b src/b2
         echo old > src/etc/link; touch src/gone/deep/f; ln -s a src/etc/soft; chmod 604 src/etc/b
         printf 'new contents' > made; touch -d @7.25 made; find src -exec touch -hd @1000 {} +
         cp -a src want; cd want; chown 5:6 etc/a; chmod 4755 etc/a; touch -d @2000.5 etc/a
         chown 8 etc/b; mkdir -p dev/pts; mknod -m 666 dev/null c 1 3; mknod -m 660 dev/sda b 8 0
         chown 0:6 dev/sda; mkfifo -m 600 dev/pipe; chmod 700 etc; rm etc/link; ln -s x/y etc/link
         ln -sfn b etc/soft; chown -h 9:9 etc/soft; rm -r gone; cp ../made gone; chmod 600 gone
         mkdir -p opt/deep; cp -p ../made opt/deep/file; chmod 644 opt/deep/file; : > opt/empty
         chown 3:4 .; mknod 'tab\there' c 400000 70000 2>/dev/null || mknod 'tab\there' c 400 70000
         find dev opt etc/link etc/soft -exec touch -hd @1000 {} +
         touch -d @7.25 opt/deep/file gone
         touch -d @1000 tab* . etc; chmod 644 tab*; touch -d @3000 opt",
    );
    let major = printed(dir, "stat -c %t want/tab*").trim().to_owned();
    let device = format!("linux,0x{major},70000");
    let lines = format!(
        "#mtree
# what is changed
./etc/a uid=5 gid=6 mode=4755 time=2000.500000000
/set uid=0 gid=0
./dev/null type=char device=native,1,3 mode=0666
./dev/pts type=dir
type=block device=linux,8,0 mode=660 gid=6 ./dev/sda
./dev/pipe type=fifo mode=0600
/unset all
etc type=dir mode=700
    b uid=8
..
./etc/link type=link link=x/y
./etc/soft link=b uid=9 gid=9
./gone type=file content=made mode=600 sha256=SHA
./opt/deep/file type=file contents=made size=12
./opt/empty type=file
./opt type=dir time=3000
. uid=3 gid=4
./tab\\there type=char device={device}
"
    );
    let sum = printed(dir, "sha256sum made | cut -d' ' -f1");
    fs::write(scratch.at("lines"), lines.replace("SHA", sum.trim())).expect("write");
    printed(
        dir,
        "cp $WEALD weald-of-all; mkdir -m 777 out; chmod 755 . weald-of-all",
    );
    let as_user =
        "setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps=-all ./weald-of-all";
    printed(
        dir,
        &format!(
            "{as_user} build -q -l 1 --add lines src out/image >&2; $WEALD diff out/image want >&2
             {as_user} build -q -l 1 -t 4 --add lines src out/four; cmp out/image out/four >&2
             {as_user} build -q -l 1 src out/plain
             {as_user} rewrite -q --add lines out/plain out/again; $WEALD diff out/again want >&2
             $WEALD build -q -l 1 --keep-ctime --keep-btime --add lines src out/times"
        ),
    );
    for image in ["out/image", "out/four", "out/again", "out/times"] {
        check(&scratch.at(image));
    }
    // Rules change what no line gives, and leave nothing out that a line names.
    printed(
        dir,
        "chown -R -h 77 want; chown -h 5 want/etc/a; chmod 4755 want/etc/a
         chown 8 want/etc/b; chown -h 9 want/etc/soft
         chown 3 want; chown -h 0 want/dev/null want/dev/pts want/dev/sda want/dev/pipe
         $WEALD build -q -f -l 1 --owner 77 --exclude /dev --exclude null --add lines src out/image
         $WEALD diff out/image want >&2; $WEALD build --list --add lines src x > listed
         $WEALD find out/image | diff - listed >&2
         $WEALD store create s; $WEALD store add -q s src --name one --owner 77 --add lines
         $WEALD diff s:one want >&2",
    );
    let null = fs::symlink_metadata(scratch.at("want/dev/null")).expect("stat");
    assert_eq!(
        (null.rdev(), null.permissions().mode() & 0o777),
        (0x103, 0o666)
    );
}

/// Would catch: a description of a tree that is not laid over another one as it says.
#[test]
fn descriptions_by_other_tools_are_laid_over_a_tree() {
    for seed in 1..=6 {
        let scratch = Scratch::new("64m");
        let dir = scratch.path();
        let mut rng = Rng::new(seed);
        shell(dir, "mkdir want");
        for n in 0..40 {
            let place = *rng.pick(&["want", "want/d", "want/d/e", "want/x y"]);
            let (time, uid) = (rng.below(2_000_000_000), rng.below(9));
            let path = format!("'{place}/n{n}'");
            let make = match rng.below(6) {
                0 => format!("mkdir {path}"),
                1 => format!("ln -s 'to {n}' {path}"),
                // mtree writes devices as bare numbers, which are refused.
                2 if seed % 2 == 0 => {
                    let (major, minor) = (rng.below(4000), rng.below(1 << 20));
                    format!("mknod {path} c {major} {minor}")
                }
                3 => format!("mkfifo {path}"),
                _ => format!("head -c {} /dev/urandom > {path}", rng.below(3000)),
            };
            let mode = rng.below(0o7777);
            shell(
                dir,
                &format!(
                    "mkdir -p '{place}'; {make}; chown -h {uid}:{n} {path}
                     [ -L {path} ] || chmod {mode:o} {path}; touch -hd @{time}.{n:03} {path}"
                ),
            );
        }
        let script =
            "bsdtar -c --format=mtree --options='!all,type,mode,uid,gid,time,link,device,size' \
             -C want . > by-bsdtar
             mtree -c -k type,mode,uid,gid,time,link,device -p want | sed 's/\\.\\.\\.//' > by-mtree
             mtree -C -k type,mode,uid,gid,time,link,device < by-mtree > by-mtree-C
             mtree -D -k type,mode,uid,gid,time,link,device < by-mtree > by-mtree-D || rm by-mtree-D
             cp -a want src; find src ! -type f ! -type d -exec rm {} +; chmod -R 777 src
             chown -R 99:99 src; find src -exec touch -d @5 {} +
             if [ $(find want -type c | wc -l) -gt 0 ]; then rm by-mtree*; fi
             for by in by-*; do [ -s $by ]; $WEALD build -q -l 1 --add $by src image-$by
             $WEALD diff image-$by want >&2; $WEALD build -q -l 1 src plain-$by
             $WEALD rewrite -q --add $by plain-$by again >&2; $WEALD diff again want >&2; rm again
             done";
        printed(dir, script);
    }
}

/// Would catch: a bad line that is dropped, an error that does not name it, an image that is made
/// all the same.
#[test]
fn bad_lines_are_errors_with_their_number() {
    let scratch = Scratch::new("64m");
    let dir = scratch.path();
    shell(dir, "mkdir -p src/d; echo x > src/f; echo long > made");
    let long = "n".repeat(300);
    for (line, said) in [
        (
            "./new mode=600",
            "lines, line 2: new: no type, and nothing there",
        ),
        (
            "./f/below type=dir",
            "lines, line 2: 'f' is a regular file in the tree",
        ),
        ("../x type=dir", "lines, line 2: "),
        ("./a/../x type=dir", "lines, line 2: "),
        (
            ". type=file",
            "lines, line 2: the root of a tree is a directory",
        ),
        ("./n type=char mode=600", "lines, line 2: n: no device"),
        (
            "./n type=char device=259",
            "line 2: device '259': expected FORMAT,MAJOR,MINOR",
        ),
        ("./n type=link", "lines, line 2: n: link: expected a target"),
        ("./n type=file contents=gone", "lines, line 2: n: gone: "),
        (
            "./n type=file contents=src",
            "lines, line 2: n: src: expected a regular file",
        ),
        (
            "./n type=file contents=made size=4",
            "line 2: n: size: the line says 4 bytes, made has 5",
        ),
        (
            "./n type=file size=4",
            "line 2: n: size: a file without contents= is empty",
        ),
        (
            "./f sha256=00 contents=made",
            "line 2: sha256: expected 64 hexadecimal digits",
        ),
        ("./n type=file uname=lp", "line 2: 'lp' without a number"),
        ("./n type=file colour=red", "line 2: "),
        ("./n type=pipe", "line 2: type 'pipe' is not known"),
        (&format!("./{long} type=file"), "line 2: "),
        ("/etc type=dir", "line 2: '/etc' is no word of mtree"),
    ] {
        fs::write(scratch.at("lines"), format!("#mtree\n{line}\n")).expect("write");
        for words in [
            &["build", "-q", "--add", "lines", "src", "image"][..],
            &["build", "--list", "--add", "lines", "src", "image"],
        ] {
            let built = weald(dir, words);
            let told = stderr(&built);
            assert_eq!(built.status.code(), Some(2), "{line}: {told}");
            assert!(told.contains(said), "{line}: {told}");
            assert!(!scratch.at("image").exists());
        }
    }
    let sum = "0".repeat(64);
    let wrong = format!("./n type=file contents=made sha256digest={sum}");
    fs::write(scratch.at("lines"), wrong).expect("write");
    let told = stderr(&weald(dir, &["build", "--add", "lines", "src", "image"]));
    assert!(
        told.contains("line 1: sha256: made has another digest"),
        "{told}"
    );
    // What is replaced is told, and streams cannot be added to.
    printed(
        dir,
        "echo './d type=file' > lines; $WEALD build --add lines src image 2>&1 >/dev/null |
         grep -F 'd: replaced by that of lines, line 1'
         (tar c src | $WEALD build --add lines - x 2>&1 || true) | grep -F 'adding entries needs a'
         ($WEALD build --append --at a --add lines src image 2>&1 || true) |
         grep -F 'use rewrite --add'",
    );
}
