//! Commands that read images read volumes and snapshots, and snapshots are mounted.

use super::*;
use std::io::Read;
use std::process::Stdio;
use std::time::Duration;

/// Where a volume may be while it is read.
const PLACES: [&str; 4] = ["mounted", "beside another", "closed", "standby"];

/// Would catch: a command that reads other names, attributes or bytes of a state than the mount
/// has, that changes something, or that needs the volume to be mounted or not.
#[test]
fn a_state_is_read_like_an_image() {
    let ground = Ground::new();
    ground.sh(TREE);
    ground.sh("$WEALD volume create -q store:other");
    ground.mount(&[]);
    ground.sh(
        "rsync -aHAX --numeric-ids tree/ mnt/; $WEALD snapshot create -q store:v@s1
        rm -rf mnt/bin; seq 1000 > mnt/later",
    );
    let mut store = "store";
    for place in PLACES {
        match place {
            "beside another" => {
                ground.umount();
                ground.sh("$WEALD mount store:other mnt");
            }
            "closed" => ground.umount(),
            "standby" => {
                ground.sh("$WEALD store backup -q store r; $WEALD replica follow -q r standby");
                store = "standby";
            }
            _ => {}
        }
        let state = format!("{store}:v@s1");
        ground.weald(&["extract", "-q", &state, "out"]);
        assert_same(&ground.at("tree"), &ground.at("out"), &EXTRACTED);
        assert_eq!(ground.weald(&["diff", &state, "out"]), "");
        let tool = ground.sh("sha256sum tree/bin/tool | cut -d' ' -f1");
        let sum = ground.weald(&["sum", "-a", "sha256", &state, "bin/tool"]);
        assert!(sum.starts_with(tool.trim()), "{place}: {sum}");
        let cat = ground.sh(&format!(
            "$WEALD cat {state} bin/tool | cmp - tree/bin/tool"
        ));
        assert_eq!(cat, "");
        let listed = ground.sh(&format!("$WEALD tar {state} | tar t | wc -l"));
        let found = ground.sh(&format!("$WEALD find {state} | sed 1d | wc -l"));
        assert_eq!(listed, found, "{place}");
        assert!(ground.weald(&["ls", &state]).contains("bin"), "{place}");
        assert!(
            !ground.weald(&["tree", &state]).contains("later"),
            "{place}"
        );
        let volume = format!("{store}:v");
        assert_eq!(
            ground.sh(&format!("$WEALD cat {volume} later | tail -1")),
            "1000\n"
        );
        let changes = ground.run(&format!("$WEALD diff --ignore mtime {state} {volume}"));
        assert_eq!(changes.code, Some(1));
        assert_eq!(changes.text(), "- bin/\n+ later\n", "{place}");
        ground.refused(
            &["ls", &format!("{store}:v@s9")],
            &["no such snapshot", "snapshot ls"],
        );
        ground.refused(&["ls", &format!("{store}:w@s1")], &["no such image"]);
        for command in ["info", "check"] {
            ground.refused(&[command, &state], &["takes an image", "weald volume seal"]);
        }
        ground.refused(&["ls", "--generation", "1", &state], &["no generations"]);
        ground.sh("rm -rf out");
    }
    ground.sh("$WEALD store check --data store");
}

/// Would catch: a mount of a snapshot that can be written to, that keeps its volume from being
/// mounted, or whose snapshot is removed below it.
#[test]
fn a_snapshot_is_mounted_alone_and_beside_its_volume() {
    let ground = Ground::new();
    ground.sh(TREE);
    let dir = ground.mount(&[]);
    ground.sh(
        "rsync -aHAX --numeric-ids tree/ mnt/; $WEALD snapshot create -q store:v@s1
        rm -rf mnt/*; echo new > mnt/new; mkdir old again",
    );
    let old = ground.at("old");
    let busy = ["@s1", "is mounted", "unmount it first"];
    ground.sh("$WEALD mount store:v@s1 old");
    for is_alone in [false, true] {
        if is_alone {
            ground.umount();
        }
        assert_same(&ground.at("tree"), &old, &MOUNTED);
        assert!(ground.sh("grep -c ' fuse.*weald ro,' /proc/mounts").trim() >= "1");
        for change in ["touch old/x", "rm old/noise", "chmod 700 old/bin"] {
            assert_ne!(ground.run(change).code, Some(0), "{change}");
        }
        ground.refused(&["snapshot", "rm", "store:v@s1"], &busy);
        ground.refused(&["mount", "store:v@s1", "again"], &["mounted on"]);
        assert_eq!(ground.weald(&["ls", "store:v"]), "new\n");
        assert!(ground.weald(&["mounts"]).contains("store:v@s1"));
    }
    // The volume comes and goes, and goes back, below the mount of its snapshot.
    ground.mount(&[]);
    ground.sh("echo newer > mnt/new; sync mnt; $WEALD snapshot create -q store:v@s2");
    // The mounted one stays.
    ground.weald(&["snapshot", "prune", "-q", "--keep-last", "1", "store:v"]);
    assert_eq!(ground.sh("$WEALD snapshot ls store:v | wc -l"), "2\n");
    ground.umount();
    ground.weald(&["snapshot", "rollback", "-q", "store:v@s1"]);
    assert_same(&ground.at("tree"), &old, &MOUNTED);
    ground.mount(&[]);
    assert_same(&ground.at("tree"), &dir, &MOUNTED);
    ground.umount();
    ground.sh("$WEALD umount old");
    ground.weald(&["snapshot", "rm", "-q", "store:v@s1"]);
    ground.refused(&["mount", "store:v@s1", "old"], &["no such snapshot"]);
    // As fstab has it.
    ground.sh("$WEALD mount -o ro,noatime store:v@s2 old; grep newer old/new; $WEALD umount old");
    ground.sh("$WEALD store check --data store");
}

/// Would catch: damaged rows that end a command which reads a volume, or that it passes over in
/// silence.
#[test]
fn a_damaged_state_is_read_as_far_as_it_goes() {
    let ground = Ground::new();
    ground.mount(&[]);
    ground.sh(
        "for i in $(seq 300); do seq $i 2000 > mnt/$i; done; sync mnt
        $WEALD snapshot create -q store:v@s1",
    );
    ground.umount();
    // The blocks themselves: each file is read, or named.
    let segment = ground.sh("ls store/segments/* | head -1");
    let segment = ground.at(segment.trim());
    let len = fs::metadata(&segment).expect("segment").len();
    let file = File::options().write(true).open(&segment).expect("segment");
    for step in 1..6 {
        file.write_all_at(&[0xa5; 16], len / 6 * step)
            .expect("damage");
    }
    let sums = ground.run("$WEALD sum -a sha256 store:v@s1 > sums");
    assert_eq!(sums.code, Some(1));
    let right = ground
        .sh("wc -l < sums")
        .trim()
        .parse::<u32>()
        .expect("a number");
    let named = sums
        .stderr
        .lines()
        .filter(|line| line.contains("damaged"))
        .count();
    assert!(right < 300 && named > 0, "{right} right, {named} named");
    ground.sh("sed 's/  /  mnt\\//' sums > wanted");
    ground.mount(&["-o", "ro"]);
    ground.sh("sha256sum --quiet -c wanted");
    let unread = ground.sh("for f in mnt/*; do cat $f > /dev/null 2>&1 || echo $f; done | wc -l");
    assert_eq!(right + unread.trim().parse::<u32>().expect("a number"), 300);
}

/// Would catch: a comparison of two snapshots that leaves out what a comparison of their trees
/// finds, with the volume mounted, beside another one, or closed.
#[test]
fn two_states_differ_as_their_trees_do() {
    let ground = Ground::new();
    ground.sh(TREE);
    ground.sh("$WEALD volume create -q store:other");
    ground.mount(&[]);
    ground.sh(
        "rsync -aHAX --numeric-ids tree/ mnt/; mkdir -p mnt/many/{a,b,c}/{d,e}
        for i in $(seq 300); do echo $i > mnt/many/a/d/$i; done; cp -r mnt/many/a mnt/many/b/x
        $WEALD snapshot create -q store:v@s1
        echo more >> mnt/etc/twin; echo other > mnt/many/a/d/7; chmod 600 mnt/many/a/d/8
        mv mnt/many/b/x mnt/many/c/y; mkdir mnt/many/b/x; echo 9 > mnt/many/b/x/9
        mv mnt/many/a mnt/z; mv mnt/many/c mnt/many/a; mv mnt/z mnt/many/c
        rm -r mnt/empty mnt/fifo; mkdir mnt/fifo; setfattr -x user.note mnt/etc/main
        $WEALD snapshot create -q store:v@s2; rm mnt/noise; echo new > mnt/many/new",
    );
    let states = ["store:v@s1", "store:v@s2", "store:v"];
    for state in states {
        ground.sh(
            &format!("$WEALD extract -q {state} x-{state}", state = state)
                .replace("x-store:", "x-"),
        );
    }
    for place in ["mounted", "beside another", "closed"] {
        match place {
            "beside another" => {
                ground.umount();
                ground.sh("$WEALD mount store:other mnt");
            }
            "closed" => ground.umount(),
            _ => {}
        }
        for left in states {
            for right in states {
                let tree = right.replace("store:", "x-");
                let fast = ground.run(&format!("$WEALD diff {left} {right}"));
                let ignored = "--ignore atime --ignore ctime --ignore btime";
                let whole = ground.run(&format!("$WEALD diff {ignored} {left} {tree}"));
                assert_eq!(fast.text(), whole.text(), "{place}: {left} {right}");
                assert_eq!(fast.code, Some(i32::from(left != right)), "{}", fast.stderr);
            }
        }
        ground.refused(&["diff", "store:v@s1", "store:v@s7"], &["no such snapshot"]);
    }
    ground.sh("$WEALD store check --data store");
}

/// Would catch: a mount, or another command that reads, that fails because a command reads the
/// volume.
#[test]
fn others_wait_for_a_command_that_reads_a_volume() {
    let ground = Ground::new();
    ground.mount(&[]);
    ground.sh("head -c 3000000 /dev/urandom > mnt/noise");
    ground.umount();
    // Its pipe is full, so that it holds the store until somebody reads.
    let mut reader = ground.0.command();
    let mut reader = reader
        .args(["cat", "store:v", "noise"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("weald");
    let mut pipe = reader.stdout.take().expect("a pipe");
    pipe.read_exact(&mut [0; 1000]).expect("read");
    let (lists, mounts) = std::thread::scope(|scope| {
        let lists = scope.spawn(|| ground.sh("$WEALD ls store:v"));
        let mounts = scope.spawn(|| ground.mount(&[]));
        std::thread::sleep(Duration::from_millis(500));
        assert!(!mounts.is_finished(), "mounted while the volume was read");
        std::io::copy(&mut pipe, &mut std::io::sink()).expect("read");
        (lists.join(), mounts.join())
    });
    assert_eq!(lists.expect("ls"), "noise\n");
    mounts.expect("mount");
    assert!(reader.wait().expect("wait").success());
    assert_eq!(
        fs::metadata(ground.at("mnt/noise")).expect("stat").len(),
        3_000_000
    );
    ground.umount();
}
