//! Words of `-o`, and what users do with mounts every day: remount, umount(8), copies in other
//! mount namespaces, servers that are killed or stopped.

use super::{Ground, TREE, VOLUME};
use std::process::Command;
use std::time::{Duration, Instant};
use weald_testkit::command::weald_path;
use weald_testkit::mounts::{FORGET_OTHERS, eventually, finish, mount_lines};

/// Runs the helper that mount(8) or umount(8) calls.
pub fn helper(ground: &Ground, name: &str) -> Command {
    let path = ground.at(name);
    if !path.exists() {
        std::os::unix::fs::symlink(weald_path(), &path).expect("link");
    }
    let mut command = Command::new(path);
    command
        .current_dir(ground.0.path())
        .env("WEALD_RUNTIME_DIR", ground.0.runtime_dir());
    command
}

/// Kernel's options of the mount.
fn kernel_options(ground: &Ground) -> String {
    ground.sh("findmnt -no OPTIONS,FS-OPTIONS mnt")
}

/// Every kind of change, one after the other, and no sync.
const CHANGES: &str = "
    echo one > mnt/file; printf two >> mnt/file; truncate -s 6 mnt/file
    mkdir mnt/dir; ln -s file mnt/link; ln mnt/file mnt/dir/twin; mkfifo mnt/fifo
    echo x > mnt/gone; rm mnt/gone; mkdir mnt/gone; rmdir mnt/gone
    echo old > mnt/old; mv mnt/old mnt/new; chmod 600 mnt/new; touch -d @5 mnt/new
    setfattr -n user.a -v 1 mnt/new; setfattr -n user.b -v 1 mnt/new; setfattr -x user.b mnt/new
    fallocate -p -o 0 -l 1 mnt/dir/twin; python3 -c '
import os
a = os.open(\"mnt/new\", os.O_RDONLY); b = os.open(\"mnt/copy\", os.O_WRONLY | os.O_CREAT)
os.copy_file_range(a, b, 4)'";

/// What [`CHANGES`] leave.
const STATE: &str = "cd mnt; find . -printf '%P %y %m %s %n %l %T@\n' | sed 's/^ d.*//' | sort;
    cat file | od -c; cat new copy; getfattr -d new";

/// Would catch: `-o sync` that is accepted and ignored, for any kind of change, at the mount or at
/// a remount; `/proc/mounts` that does not show it.
#[test]
fn every_change_of_a_synchronous_mount_outlives_its_server() {
    for word in ["sync", "remount"] {
        let ground = Ground::new();
        let long = "commit-interval=3600";
        match word {
            "sync" => drop(ground.mount(&["-o", &format!("sync,{long}")])),
            _ => {
                ground.mount(&["-o", long]);
                let mut mount = helper(&ground, "mount.fuse.weald");
                let words = "rw,relatime,user_id=0,group_id=0,remount,sync";
                finish(mount.args([VOLUME, "mnt", "-o", words])).expect(0);
            }
        }
        assert!(kernel_options(&ground).contains("sync"));
        ground.sh(CHANGES);
        let before = ground.sh(STATE);
        assert!(before.contains("copy f"), "{before}");
        ground.kill();
        ground.mount(&[]);
        assert_eq!(ground.sh(STATE), before, "{word}");
        ground.umount();
        ground.assert_clean();
    }
}

/// Would catch: `dirsync` that is ignored, and `async` that is.
#[test]
fn names_of_a_dirsync_mount_outlive_its_server() {
    let ground = Ground::new();
    ground.mount(&["-o", "dirsync,commit-interval=3600"]);
    assert!(kernel_options(&ground).contains("dirsync"));
    ground.sh("mkdir mnt/dir; echo x > mnt/dir/name; mv mnt/dir/name mnt/dir/other");
    ground.kill();
    ground.mount(&["-o", "commit-interval=3600"]);
    assert_eq!(ground.sh("ls mnt/dir"), "other\n");
    let remount = |words: &str| {
        let mut mount = helper(&ground, "mount.fuse.weald");
        finish(mount.args([VOLUME, "mnt", "-o", &format!("remount,{words}")]))
    };
    let refused = |words: &str, why: &str| {
        let said = remount(words);
        assert!(
            said.code == Some(32) && said.stderr.contains(why),
            "{}",
            said.stderr
        );
    };
    refused("dirsync", "a remount cannot change it");
    remount("sync").expect(0);
    assert!(kernel_options(&ground).contains("sync"));
    remount("async").expect(0);
    assert!(!kernel_options(&ground).contains("sync"));
    ground.sh("echo x > mnt/late");
    ground.kill();
    ground.mount(&[]);
    assert_eq!(ground.sh("ls mnt"), "dir\n");
    // What a remount cannot change is refused, and what is so already is not.
    refused("commit-interval=1", "a remount cannot change it");
    refused("noxattr", "a remount cannot change it");
    remount("xattr,ro").expect(0);
    ground.sh("! touch mnt/x 2> log || exit 1; grep -q Read-only log");
    remount("rw,noatime").expect(0);
    ground.sh("touch mnt/x");
    assert!(kernel_options(&ground).contains("noatime"));
    ground.umount();
    ground.mount(&["-o", "mode=ram"]);
    refused("sync", "sync and dirsync mean");
    ground.umount();
}

/// Would catch: `nodiratime` that is ignored.
#[test]
fn listings_do_not_change_times_with_nodiratime() {
    let ground = Ground::new();
    ground.mount(&["-o", "nodiratime"]);
    let times = "mkdir -p mnt/d; touch -d @5 -a mnt/d; ls mnt/d; stat -c %X mnt/d";
    assert_eq!(ground.sh(times), "5\n");
    ground.weald(&["mount", "-o", "remount,diratime", VOLUME, "mnt"]);
    assert_ne!(ground.sh(times), "5\n");
    ground.umount();
}

/// Would catch: an unmount that waits for ever while a container has a copy of the mount, and
/// commands that do not agree about it.
#[test]
fn a_copy_in_another_namespace_does_not_hold_an_unmount() {
    let ground = Ground::new();
    ground.mount(&[]);
    ground.sh("echo kept > mnt/f");
    let mut copy = Command::new("unshare");
    let script = format!("{FORGET_OTHERS} exec sleep 600");
    copy.args(["-m", "--propagation", "private", "bash", "-c", &script])
        .current_dir(ground.0.path());
    let mut copy = weald_testkit::mounts::Server::start(&mut copy);
    let pid = copy.id();
    let device = ground.sh("findmnt -no MAJ:MIN mnt");
    let device = device.trim();
    eventually("a copy of the mount", || {
        let own = std::fs::read_link("/proc/self/ns/mnt").expect("namespace");
        let word = format!(" {device} ");
        std::fs::read_link(format!("/proc/{pid}/ns/mnt")).is_ok_and(|its| its != own)
            && mount_lines(&format!("/proc/{pid}/mountinfo"))
                .iter()
                .any(|line| line.contains(&word))
    });
    let begun = Instant::now();
    let said = ground.run("\"$WEALD\" umount mnt").expect(0);
    let took = begun.elapsed();
    assert!(
        took >= Duration::from_secs(9) && took < Duration::from_secs(40),
        "{took:?}"
    );
    let holder = format!("process {pid} (sleep)");
    for words in ["everything is on disk", "another mount namespace", &holder] {
        assert!(said.stderr.contains(words), "{}", said.stderr);
    }
    // All of them know.
    let words = ["in another mount namespace", &holder];
    assert!(
        ground
            .weald(&["volume", "info", VOLUME])
            .contains(&words.join(", such as a container, by "))
    );
    assert_eq!(ground.info()["is_mounted_here"], false);
    ground.refused(&["mount", VOLUME, "mnt"], &words);
    ground.refused(&["volume", "check", VOLUME], &words);
    ground.refused(
        &["volume", "set", VOLUME, "f", "--compress", "none"],
        &words,
    );
    ground.refused(&["umount", "mnt"], &words);
    copy.kill();
    // The server ends with the copy; the next mount waits for it.
    assert_eq!(
        ground.sh("\"$WEALD\" mount store:v mnt; cat mnt/f"),
        "kept\n"
    );
    ground.umount();
}

/// Would catch: a mount or a check that is refused because the server of the last mount is closing.
#[test]
fn a_volume_is_mounted_again_right_after_umount_of_the_system() {
    let ground = Ground::new();
    ground.sh("mkdir mnt; for i in $(seq 12); do
        \"$WEALD\" mount store:v mnt; seq 3000 > mnt/f$i; umount -i mnt
        [ $((i % 3)) != 0 ] || \"$WEALD\" volume check -q store:v
        [ $((i % 3)) != 1 ] || \"$WEALD\" volume info store:v | grep -q 'mounted *no'
    done");
    // Beside another volume, whose server goes on.
    ground.weald(&["volume", "create", "-q", "store:w"]);
    ground.sh("mkdir -p other; \"$WEALD\" mount store:w other
        for i in $(seq 12); do
            \"$WEALD\" mount store:v mnt; seq 3000 > mnt/g$i; umount -i mnt
        done; \"$WEALD\" umount other; \"$WEALD\" mount store:v mnt; ls mnt | wc -l");
    ground.umount();
}

/// Would catch: a helper of umount(8) that leaves a server or does not understand its flags.
#[test]
fn the_helper_of_umount_waits_for_the_server() {
    let ground = Ground::new();
    let dir = ground.mount(&[]);
    ground.sh("seq 100000 > mnt/f");
    finish(helper(&ground, "umount.fuse.weald").args(["mnt", "-n", "-v", "-t", "fuse.weald"]))
        .expect(0);
    assert!(!ground.0.is_mounted(&dir));
    ground.assert_clean();
    ground.mount(&[]);
    let held = std::fs::File::open(dir.join("f")).expect("open");
    let busy = finish(helper(&ground, "umount.fuse.weald").arg("mnt"));
    assert_eq!(busy.code, Some(32));
    let own = format!("process {} (", std::process::id());
    assert!(busy.stderr.contains(&own), "{}", busy.stderr);
    finish(helper(&ground, "umount.fuse.weald").args(["mnt", "-r"])).expect(0);
    ground.sh("! touch mnt/x 2> log || exit 1; grep -q Read-only log");
    finish(helper(&ground, "umount.fuse.weald").args(["mnt", "-l"])).expect(0);
    assert!(!ground.0.is_mounted(&dir));
    drop(held);
    ground.assert_clean();
}

/// Would catch: commands that wait for ever for a server that is stopped.
#[test]
fn a_stopped_server_is_named_and_left() {
    let ground = Ground::new();
    let dir = ground.mount(&[]);
    ground.sh("echo x > mnt/f; sync mnt");
    let pid = ground.info()["server_pid"].as_u64().expect("a process id");
    ground.sh(&format!("kill -STOP {pid}"));
    let begun = Instant::now();
    let named = format!("kill -9 {pid}");
    ground.refused(&["umount", "mnt"], &["is stopped", &named, "--lazy"]);
    assert!(
        begun.elapsed() < Duration::from_secs(8),
        "{:?}",
        begun.elapsed()
    );
    let begun = Instant::now();
    ground.weald(&["umount", "--lazy", "mnt"]);
    assert!(
        begun.elapsed() < Duration::from_secs(5),
        "{:?}",
        begun.elapsed()
    );
    assert!(!ground.0.is_mounted(&dir));
    // A volume of another store can be mounted meanwhile.
    ground.weald(&["store", "create", "-q", "second"]);
    ground.weald(&["volume", "create", "-q", "second:v"]);
    let begun = Instant::now();
    ground.sh("mkdir -p other; \"$WEALD\" mount second:v other; \"$WEALD\" umount other");
    assert!(
        begun.elapsed() < Duration::from_secs(30),
        "{:?}",
        begun.elapsed()
    );
    ground.sh(&format!("kill -9 {pid}; tail --pid={pid} -f /dev/null"));
    assert_eq!(ground.sh("\"$WEALD\" mount store:v mnt; cat mnt/f"), "x\n");
    ground.umount();
}

/// Would catch: mounts whose servers have died that stack below new ones, that no list shows, and
/// that come back at an unmount.
#[test]
fn dead_mounts_are_shown_and_cleared() {
    let ground = Ground::new();
    let dir = ground.mount(&[]);
    let end = |ground: &Ground| {
        let pid = ground.info()["server_pid"].as_u64().expect("a process id");
        ground.sh(&format!("kill -9 {pid}; tail --pid={pid} -f /dev/null"));
    };
    ground.sh("echo x > mnt/f; sync mnt");
    end(&ground);
    let shown = ground.weald(&["mounts"]);
    assert!(shown.contains("dead, their servers have ended"), "{shown}");
    let json = ground.weald(&["mounts", "--json"]);
    assert!(
        json.contains("\"dead_mount\"") && json.contains("mnt"),
        "{json}"
    );
    assert!(
        ground
            .weald(&["mounts", "--prometheus"])
            .contains("\nweald_dead_mount{dir=")
    );
    let said = ground.run("\"$WEALD\" mount store:v mnt").expect(0);
    assert!(
        said.stderr
            .contains("whose server has died; it is unmounted"),
        "{}",
        said.stderr
    );
    let count = || ground.0.mounts().iter().filter(|one| **one == dir).count();
    assert_eq!((count(), ground.sh("cat mnt/f")), (1, "x\n".to_owned()));
    assert!(!ground.weald(&["mounts"]).contains("dead"));
    // Stacked ones, of an older version or of mount(2), go with the one above.
    end(&ground);
    ground.sh(
        "\"$WEALD\" volume create -q store:w; mkdir -p other; \"$WEALD\" mount store:w other
        mount --move other mnt",
    );
    assert_eq!(count(), 2);
    ground.weald(&["umount", "mnt"]);
    assert_eq!(count(), 0);
}

/// Would catch: `noacl` that is ignored, or that lets in whom the list denies.
#[test]
fn access_lists_do_not_count_with_noacl_and_nobody_gets_more() {
    let ground = Ground::new();
    ground.mount(&[
        "-o",
        "acl,user_xattr,discard,errors=remount-ro,data=ordered",
    ]);
    ground.sh(
        "chmod 755 mnt; echo secret > mnt/f; chown 0:1000 mnt/f; chmod 600 mnt/f
        setfacl -m u:1001:rw,g::---,m::rw mnt/f; setfattr -n user.a -v 1 mnt/f",
    );
    ground.umount();
    ground.mount(&["-q", "-o", "noacl"]);
    ground.sh(
        "! getfacl -cn mnt/f | grep -q user:1001 || exit 1; getfattr -n user.a mnt/f > log
        ! setfacl -m u:1002:r mnt/f 2> log || exit 1; grep -qi 'not supported' log
        ! setpriv --reuid 1000 --regid 1000 --clear-groups cat mnt/f 2> log || exit 1
        ! setpriv --reuid 1001 --regid 1001 --clear-groups cat mnt/f 2> log || exit 1",
    );
    ground.umount();
    ground.mount(&[]);
    ground.sh("getfacl -cn mnt/f | grep -q user:1001:rw");
    ground.umount();
    for word in ["usrquota", "errors=panic", "mand", "nouser_xattr"] {
        ground.refused(
            &["mount", "-o", word, VOLUME, "mnt"],
            &[&format!("option '{word}'")],
        );
    }
}

/// Would catch: a writing command that is refused although it was told to wait, that waits longer
/// than it was told to, or that waits for the server of a mount, which does its work.
#[test]
fn commands_wait_for_another_writer_if_asked_to() {
    let ground = Ground::new();
    ground.sh(TREE);
    let other_adds = "
        rm -f stream; mkfifo stream
        $WEALD store add -q store - --name slow --replace < stream & other=$!
        exec 3> stream
        until grep -qs \"process $other (weald store add)\" store/lock; do sleep 0.05; done;";
    let other_ends = "(sleep 1; tar -c tree >&3) & exec 3>&-; ";
    ground.sh(&format!(
        "mkdir -p mnt; $WEALD snapshot create -q {VOLUME}@old; {other_adds}
        ! timeout 20 $WEALD mount --wait 1 {VOLUME} mnt 2> said || exit 1
        grep -q 'store add' said
        ! timeout 20 $WEALD snapshot create --wait 1 {VOLUME}@s 2> said || exit 1
        grep -q 'store add' said
        {other_ends}
        $WEALD mount -o wait=60 {VOLUME} mnt; wait $other; echo there > mnt/file
        timeout 20 $WEALD snapshot create -q --wait 60 {VOLUME}@mounted
        $WEALD umount mnt"
    ));
    let commands = [
        "snapshot create -q --wait 60 store:v@new",
        "snapshot hold --wait 60 tag store:v@new",
        "snapshot release --wait 60 tag store:v@new",
        "snapshot clone -q --wait 60 store:v@new store:clone",
        "snapshot rollback -q --wait 60 store:v@new",
        "snapshot rm -q --wait 60 store:v@new",
        "snapshot prune -q --wait 60 --keep-last 1 store:v",
        "volume create -q --wait 60 store:more",
        "volume set --wait 60 --compress zstd store:more .",
        "volume rm --wait 60 store:more",
    ];
    for command in commands {
        ground.sh(&format!(
            "{other_adds} {other_ends} $WEALD {command} || {{ echo {command} >&2; exit 1; }}
            wait $other"
        ));
    }
    assert_eq!(
        ground.sh("$WEALD volume ls --json store | grep -c clone"),
        "1\n"
    );
}
