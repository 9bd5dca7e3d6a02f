//! Attacks by another user of the machine on outputs: this user must not read an unfinished or
//! private output, and must not redirect an output.
//!
//! The attacker is user 65534. The attacker's symlinks are in the attacker's own directory without
//! a sticky bit, to which `fs.protected_symlinks` does not apply. The tests therefore do not depend
//! on that setting.
use crate::support::{Bench, Output, run};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;

const ATTACKER: u32 = 65534;
const USER: u32 = 1000;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("stat").mode() & 0o7777
}

fn owner(path: &Path) -> (u32, u32) {
    let found = fs::metadata(path).expect("stat");
    (found.uid(), found.gid())
}

/// Runs a script as a user without supplementary groups.
fn as_user(bench: &Bench, uid: u32, script: &str) -> Output {
    let mut command = bench.command();
    let weald = command.get_program().to_owned();
    command = std::process::Command::new("setpriv");
    let ids = [format!("--reuid={uid}"), format!("--regid={uid}")];
    command
        .args(ids)
        .args(["--clear-groups", "bash", "-c", script]);
    run(command
        .current_dir(bench.0.path())
        .env("WEALD", weald)
        .env("LC_ALL", "C"))
}

/// Would catch: a private image that everybody can read after it was replaced.
#[test]
fn a_replaced_image_keeps_owner_mode_and_acl() {
    let bench = Bench::with_image();
    let image = bench.at("image");
    for words in ["build -qf source image", "rewrite -qf -l 1 image image"] {
        for wanted in [0o600, 0o640, 0o444, 0o666] {
            chown(&image, Some(12), Some(34)).expect("chown");
            fs::set_permissions(&image, PermissionsExt::from_mode(wanted)).expect("chmod");
            let ino = fs::metadata(&image).expect("stat").ino();
            bench.sh(&format!("umask 0; $WEALD {words}"));
            assert_ne!(fs::metadata(&image).expect("stat").ino(), ino);
            assert_eq!((mode(&image), owner(&image)), (wanted, (12, 34)), "{words}");
        }
        bench.sh("chmod 640 image; setfacl -m u:1000:r,g:50:- image; getfacl -n image > before");
        bench.sh(&format!("$WEALD {words}; getfacl -n image | diff before -"));
        bench.sh("setfacl -b image");
    }
    // Default ACLs of the directory apply to new files, not to replaced ones.
    bench.sh(
        "mkdir shared && setfacl -d -m u:1000:rwx shared && mv image shared/ && chmod 600 \
     shared/image
        $WEALD build -qf source shared/image && getfacl -cn shared/image | tr '\\n' ' ' > found
        $WEALD build -q source shared/new; touch shared/like; diff <(getfacl -cn shared/new) \
         <(getfacl -cn shared/like)",
    );
    let found = bench.sh("cat found");
    assert_eq!(found.trim(), "user::rw- group::--- other::---");
    bench.sh("umask 027; $WEALD build -q source new");
    assert_eq!(mode(&bench.at("new")), 0o640);
}

/// Would catch: what is in a store that others cannot enter, and that others read in a file made of
/// it: by its mode, or by the default ACL of the directory that it goes to.
#[test]
fn what_leaves_a_private_store_is_for_its_owner() {
    let bench = Bench::with_image();
    bench.sh("umask 022; mkdir above; $WEALD store create -q above/store
        $WEALD store import -q above/store image --name i
        $WEALD volume create -q above/store:v --from image");
    let commands = "
        $WEALD volume seal -q above/store:v --image out/sealed
        $WEALD store export above/store:i out/exported
        $WEALD rewrite -q -l 1 above/store:i out/rewritten
        $WEALD export composefs -q above/store:i --objects out/objects --image out/composefs
        $WEALD export erofs -q above/store:i out/erofs
        $WEALD export oci -q above/store:i out/layout:v";
    let readable = "find out ! -path out -type f";
    let readers = |uid: u32| {
        let script = format!("{readable} -readable");
        let files = as_user(&bench, uid, &script).text();
        files.lines().count()
    };
    let count = || bench.sh(readable).lines().count();
    for (store, is_private) in [
        ("chmod 700 above/store", true),
        // A new file may belong to another group.
        ("chmod 755 above; chmod 750 above/store", true),
        ("chmod 755 above/store; chmod 700 above", true),
        ("chmod 755 above/store above", false),
    ] {
        for acl in ["true", "setfacl -d -m u:1000:rwx,g:1000:rwx out"] {
            bench.sh(&format!(
                "{store}; rm -rf out; mkdir -m 755 out; {acl}; umask 022; {commands}"
            ));
            let files = count();
            assert!(files > 9, "{files} files");
            for uid in [USER, ATTACKER] {
                let shown = format!("{store}, {acl}: readable to {uid}");
                match is_private {
                    true => assert_eq!(readers(uid), 0, "{shown}"),
                    // An ACL that gives rights to some says nothing about the others.
                    false if acl == "true" || uid == USER => {
                        assert_eq!(readers(uid), files, "{shown}");
                    }
                    false => {}
                }
            }
            if is_private {
                let open = format!("{readable} ! -perm 600");
                assert_eq!(bench.sh(&open), "", "{store}, {acl}");
                // The directories of new objects, too, and no list gives more.
                assert_eq!(
                    bench.sh("getfacl -Rps out/objects | grep -c user:1000 || true"),
                    "0\n"
                );
            }
        }
    }
    bench.sh("rm -rf out; mkdir out; umask 022; $WEALD rewrite -q image out/plain");
    assert_eq!(mode(&bench.at("out/plain")), 0o644);
}

/// Would catch: a user who could not read the old image because of its mode or ACL, and who can
/// read the new one because its owner differs.
#[test]
fn an_owner_that_cannot_be_kept_grants_no_access() {
    let bench = Bench::with_image();
    bench.sh("mkdir dir && chmod 777 dir");
    let image = bench.at("dir/image");
    let replaced = |prepare: &str, old: &str, new: &str| {
        bench.sh(&format!("rm -f dir/image; cp image dir/image; {prepare}"));
        let build = "$WEALD build -qf --exclude null --exclude zero source dir/image";
        let expected = format!(
            "weald: dir/image: {old} of the replaced file cannot be kept: the new file has {new}\n"
        );
        as_user(&bench, USER, build).expect(0, &expected);
        assert_eq!(owner(&image), (USER, USER));
        mode(&image)
    };
    let closed = "owner 1000:1000 and mode 0600";
    let open = "owner 1000:1000 and mode 0644";
    let mode = replaced("chmod 644 dir/image", "owner 0:0 and mode 0644", open);
    assert_eq!(mode, 0o644);
    for old in [0o640, 0o604] {
        let old = format!("{old:04o}");
        let reported = format!("owner 0:0 and mode {old}");
        let mode = replaced(&format!("chmod {old} dir/image"), &reported, closed);
        assert_eq!(mode, 0o600);
    }
    let mode = replaced(
        "chgrp 1000 dir/image; chmod 640 dir/image",
        "owner 0:1000 and mode 0640",
        "owner 1000:1000 and mode 0640",
    );
    assert_eq!(mode, 0o640);
    let mode = replaced(
        "chmod 644 dir/image; setfacl -m u:65534:- dir/image",
        "owner 0:0 and mode 0644, with an ACL",
        closed,
    );
    assert_eq!(mode, 0o600);
    as_user(
        &bench,
        ATTACKER,
        "cat dir/image > /dev/null && exit 7; exit 0",
    )
    .expect(0, "cat: dir/image: Permission denied\n");
}

/// Would catch: an image that other users can open while it is being written.
#[test]
fn only_the_owner_can_open_an_unfinished_image() {
    let bench = Bench::with_image();
    bench.sh("chmod 644 image; mkfifo stream");
    let here = fs::canonicalize(bench.0.path()).expect("path");
    for target in ["image", "new"] {
        let script = format!("umask 0; exec $WEALD build -qf --from tar stream {target}");
        let mut command = std::process::Command::new("bash");
        command.args(["-c", &script]).current_dir(bench.0.path());
        let mut child = command
            .env("WEALD", crate::support::weald_path())
            .spawn()
            .expect("spawn");
        // The build reads the stream after it has created the output, and ends when this writer
        // closes.
        let stream = fs::File::options()
            .write(true)
            .open(bench.at("stream"))
            .expect("open");
        let tar = bench.weald(["tar", "image"]).stdout;
        std::io::Write::write_all(&mut &stream, &tar).expect("write");
        let open = format!("/proc/{}/fd", child.id());
        let found = loop {
            let entries = fs::read_dir(&open).expect("list").flatten();
            // The file has no name, but the kernel still shows its directory.
            let is_ours = |path: &Path| fs::read_link(path).is_ok_and(|p| p.starts_with(&here));
            let opened = entries.map(|entry| entry.path());
            let regular = opened
                .filter(|path| is_ours(path))
                .filter_map(|path| fs::metadata(path).ok());
            let modes: Vec<_> = regular
                .filter(|found| found.is_file() && found.nlink() == 0)
                .map(|found| found.mode() & 0o7777)
                .collect();
            if !modes.is_empty() {
                break modes;
            }
            std::thread::yield_now();
        };
        assert!(found.iter().all(|mode| mode & 0o77 == 0), "{found:?}");
        drop(stream);
        assert!(child.wait().expect("wait").success());
        let expected = if target == "new" { 0o666 } else { 0o644 };
        assert_eq!(mode(&bench.at(target)), expected);
    }
}

/// Would catch: an image of root that is written over a file of root or to a device through an
/// attacker's symlink.
#[test]
fn symlinks_of_others_do_not_redirect_outputs() {
    let bench = Bench::with_image();
    bench.sh(
        "mkdir trap own && chown 65534:65534 trap && chmod 755 trap && echo secret > own/victim",
    );
    for (link, target) in [
        ("file", "../own/victim"),
        ("dir", "../own"),
        ("dev", "/dev/full"),
        ("new", "../own/new"),
    ] {
        symlink(target, bench.at("trap").join(link)).expect("symlink");
        std::os::unix::fs::lchown(bench.at("trap").join(link), Some(ATTACKER), Some(ATTACKER))
            .expect("lchown");
    }
    let refused = |output: Output, what: &str| {
        assert_eq!(output.code, Some(2), "{what}: {}", output.stderr);
        assert!(
            output.stderr.contains("user 65534 may have planted"),
            "{what}: {}",
            output.stderr
        );
    };
    for name in ["file", "dir/victim", "dev", "new", "dir/new"] {
        let path = format!("trap/{name}");
        refused(bench.weald(["build", "-qf", "source", &path]), name);
        refused(
            bench.weald(["build", "-qf", "--output-device", "source", &path]),
            name,
        );
        refused(bench.weald(["rewrite", "-qf", "image", &path]), name);
    }
    bench.sh("cp image own/image; ln -s ../own/image trap/image; chown -h 65534 trap/image");
    refused(
        bench.weald(["build", "-q", "--append", "source", "trap/image"]),
        "append",
    );
    assert_eq!(
        bench.sh("cat own/victim; ls own; cmp image own/image"),
        "secret\nimage\nvictim\n"
    );
    // Symlinks of the caller are followed, for root and for other users.
    bench.sh(
        "ln -s own/victim mine && $WEALD build -qf source mine && $WEALD check -q mine && \
     test -L mine",
    );
    bench.sh("mkdir -m 777 open");
    as_user(
        &bench,
        USER,
        "ln -s ../open/image open/link && $WEALD build -q --exclude null --exclude zero source \
         open/link",
    )
    .expect(0, "");
    assert_eq!(owner(&bench.at("open/image")), (USER, USER));
}

/// Would catch: a disk that a mistyped name overwrites.
#[test]
fn devices_are_written_only_on_request() {
    let bench = Bench::with_image();
    bench.sh("mkfifo pipe; ln -s pipe link");
    for target in ["/dev/full", "pipe"] {
        for words in [["build", "-qf", "source"], ["rewrite", "-qf", "image"]] {
            let output = bench.weald(words.iter().chain(&[target]));
            let expected = format!(
                "weald: {target}: is a device, a named pipe or a socket, no file: --output-device \
                 writes to devices and named pipes\n"
            );
            output.expect(2, &expected);
        }
    }
    bench
        .weald(["build", "-q", "--output-device", "source", "link"])
        .expect(
            2,
            "weald: link: is a symlink to a device or named pipe: name the device itself\n",
        );
    bench
        .weald(["build", "-q", "--output-device", "source", "new"])
        .expect(
            2,
            "weald: new: is no device or named pipe: leave --output-device out\n",
        );
    bench
        .weald(["build", "-q", "--output-device", "source", "/dev/null"])
        .expect(0, "");
    bench.sh(
        "cat pipe > through & $WEALD build -q --output-device source pipe; wait; cmp through image",
    );
    // The caller's own descriptors need no option.
    bench.sh(
        "$WEALD build -q source /dev/stdout | cmp - image; cmp image <($WEALD build -q source -)",
    );
    assert!(fs::metadata("/dev/null").expect("stat").rdev() != 0);
}

/// Would catch: a directory that other users can enter while it is being filled, although only the
/// owner may enter the image's root.
#[test]
fn others_cannot_enter_an_unfinished_target() {
    let bench = Bench::new();
    bench.sh("mkdir source && head -c 1000000 /dev/urandom > source/big && chmod 700 source");
    bench
        .weald(["build", "-q", "source", "image"])
        .expect(0, "");
    // The full disk ends the extraction before it sets the attributes of directories.
    let found = bench.sh(
        "mkdir small && mount -t tmpfs -o size=64k,mode=755 tmpfs small && trap 'umount small' EXIT
         mkdir -m 755 small/there; umask 0; for words in small/new small/above/new '--overwrite \
          small/there'; do
             $WEALD extract -q image $words 2> /dev/null && exit 1; done
         stat -c '%a %n' small/new small/above small/above/new small/there",
    );
    assert_eq!(
        found,
        "700 small/new\n777 small/above\n700 small/above/new\n700 small/there\n"
    );
}

/// Would catch: a directory of root that gets the owner of the image, and a directory of a user
/// that others can then not enter.
#[test]
fn an_existing_directory_keeps_owner_and_mode() {
    let bench = Bench::with_image();
    bench.sh("chmod 711 source && chown 5:6 source && $WEALD build -qf source image");
    bench.sh("mkdir -m 2750 there && chown 1000:50 there && touch -d @5 there");
    bench
        .weald(["extract", "-q", "image", "there"])
        .expect(0, "");
    assert_eq!(
        (mode(&bench.at("there")), owner(&bench.at("there"))),
        (0o2750, (USER, 50))
    );
    bench
        .weald(["extract", "-q", "image", "new/"])
        .expect(0, "");
    assert_eq!(
        (mode(&bench.at("new")), owner(&bench.at("new"))),
        (0o711, (5, 6))
    );
    bench
        .weald(["extract", "-q", "--overwrite", "image", "there"])
        .expect(0, "");
    assert_eq!(
        (mode(&bench.at("there")), owner(&bench.at("there"))),
        (0o711, (5, 6))
    );
}

/// Would catch: a user's file that is removed for a device that this user cannot create.
#[test]
fn entries_that_cannot_be_created_replace_nothing() {
    let bench = Bench::with_image();
    bench.sh(
        "mkdir -p there/null.d && chown 1000:1000 there && mkdir there/empty there/bin
        echo mine > there/null; echo old > there/fifo; ln -s nowhere there/loop; echo old > \
         there/etc
        ln there/fifo there/zero; chown -hR 1000:1000 there",
    );
    as_user(&bench, USER, "$WEALD extract --overwrite image there").expect(
        0,
        "weald: 1 device was left out: only root makes devices (--strict makes the exit status \
         1)\n",
    );
    let found = bench.sh(
        "cd there; cat null; readlink loop; stat -c '%n %F' etc fifo zero; find . -name '*weald-*'
         stat -c %h etc/main.conf; $WEALD extract --overwrite -q ../image . && stat -c '%F %t:%T' \
          null",
    );
    assert_eq!(
        found,
        "mine\nloop\netc directory\nfifo fifo\nzero regular empty file\n2\n\
         character special file 1:3\n"
    );
}

/// Would catch: an extraction to the target of an attacker's symlink.
#[test]
fn symlinks_of_others_do_not_redirect_extractions() {
    let bench = Bench::with_image();
    bench.sh("mkdir trap own && ln -s ../own trap/link && chown -h 65534:65534 trap trap/link");
    for target in ["trap/link", "trap/link/", "trap/link/new"] {
        let output = bench.weald(["extract", "-q", "image", target]);
        assert_eq!(output.code, Some(2), "{}", output.stderr);
        assert!(
            output.stderr.contains("user 65534 may have planted"),
            "{}",
            output.stderr
        );
    }
    assert_eq!(bench.sh("ls own"), "");
    bench.sh("ln -s own mine && $WEALD extract -q image mine && test -e own/bin/tool");
}
