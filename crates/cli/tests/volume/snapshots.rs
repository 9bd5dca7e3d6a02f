//! Snapshots: taken beside writers, read on the mount, removed, rolled back, cloned, damaged.

use super::sealing::{Ended, Writer, generation};
use super::*;
use std::thread;
use std::time::Duration;

/// The figure `key` of the snapshot `name`.
#[track_caller]
fn figure(ground: &Ground, name: &str, key: &str) -> u64 {
    let listed = ground.weald(&["snapshot", "ls", "--json", VOLUME]);
    let mut objects = listed.lines().map(|line| {
        let object: Value = serde_json::from_str(line).expect("JSON");
        object
    });
    let found = objects.find(|object| object["name"] == name);
    let found = found.unwrap_or_else(|| panic!("{name}: {listed}"));
    found[key].as_u64().expect("a number")
}

#[track_caller]
fn names(ground: &Ground) -> Vec<String> {
    let listed = ground.weald(&["snapshot", "ls", VOLUME]);
    let names = listed.lines().map(|line| {
        let words = line.split_whitespace();
        words
            .skip(3)
            .find(|word| word.starts_with('s'))
            .map(str::to_owned)
    });
    names.flatten().collect()
}

/// Would catch: a snapshot that is of no moment of the call, that changes, that cannot be read on
/// the mount or after another mount, or that keeps space when it is gone.
#[test]
fn a_snapshot_stays_as_it_was_at_the_call() {
    let ground = Ground::new();
    ground.sh(TREE);
    let dir = ground.mount(&["-o", "commit-interval=0.05"]);
    ground.sh("rsync -aHAX --numeric-ids tree mnt/");
    let writer = Writer::new();
    writer.replace(&dir);
    let mut found = Vec::new();
    thread::scope(|scope| {
        let _ended = Ended(&writer);
        scope.spawn(|| writer.run(&dir));
        for number in 0..6 {
            let (name, before) = (format!("s{number}"), writer.done());
            ground.weald(&["snapshot", "create", "-q", &format!("{VOLUME}@{name}")]);
            let after = writer.begun();
            let at = dir.join(".snapshots").join(&name);
            let [first, second] = ["first", "second"].map(|name| generation(&at.join(name)));
            assert!(
                before <= second && second <= first && first <= after,
                "{before}..{after}: {first}, {second}"
            );
            found.push((name, first, second));
            thread::sleep(Duration::from_millis(50));
        }
    });
    ground.sh("rm -rf mnt/tree");
    for is_mounted_again in [false, true] {
        if is_mounted_again {
            ground.umount();
            ground.mount(&[]);
        }
        for (name, first, second) in &found {
            let at = dir.join(".snapshots").join(name);
            assert_eq!(generation(&at.join("first")), *first);
            assert_eq!(generation(&at.join("second")), *second);
            assert_same(&ground.at("tree"), &at.join("tree"), &MOUNTED);
        }
    }
    assert_eq!(names(&ground), ["s0", "s1", "s2", "s3", "s4", "s5"]);
    // All have the tree, and none has it alone.
    assert!(figure(&ground, "s2", "own_bytes") < 1_000_000);
    let rm = |name: &str| ground.weald(&["snapshot", "rm", "-q", &format!("{VOLUME}@{name}")]);
    for name in ["s3", "s0", "s5", "s1", "s2"] {
        rm(name);
        assert!(!dir.join(".snapshots").join(name).exists());
    }
    assert_same(
        &ground.at("tree"),
        &dir.join(".snapshots/s4/tree"),
        &MOUNTED,
    );
    eventually("the rows of the others to go", || {
        figure(&ground, "s4", "own_bytes") > 3_000_000
    });
    rm("s4");
    ground.umount();
    ground.assert_clean();
    ground.sh("$WEALD store gc -q store; $WEALD store check --data store");
    let left: u64 = ground
        .sh("du -sk store/segments | cut -f1")
        .trim()
        .parse()
        .expect("KiB");
    assert!(left < 1500, "{left} KiB are left");
}

/// Would catch: a rollback that leaves something, that takes newer snapshots along, or that a
/// killed command leaves half done; a clone that shares changes.
#[test]
fn a_volume_comes_back_and_a_clone_goes_its_own_way() {
    let ground = Ground::new();
    ground.sh(TREE);
    let dir = ground.mount(&[]);
    ground.sh("rsync -aHAX --numeric-ids tree/ mnt/; $WEALD snapshot create -q store:v@s1");
    ground.sh("rm -rf mnt/*; mkdir mnt/new; seq 100000 > mnt/new/data; sync mnt");
    ground.sh("$WEALD snapshot create -q store:v@s2; echo later > mnt/later");
    let mounted = ["mounted on", "cannot be rolled back", "weald umount"];
    ground.refused(&["snapshot", "rollback", "store:v@s1"], &mounted);
    ground.weald(&["snapshot", "clone", "-q", "store:v@s1", "store:c"]);
    ground.umount();
    ground.weald(&["snapshot", "rollback", "-q", "store:v@s1"]);
    ground.mount(&[]);
    assert_same(&ground.at("tree"), &dir, &MOUNTED);
    assert_eq!(ground.sh("ls mnt/.snapshots/s2"), "new\n");
    assert_eq!(ground.sh("tail -1 mnt/.snapshots/s2/new/data"), "100000\n");
    ground.umount();
    ground.assert_clean();
    // And forth again.
    ground.weald(&["snapshot", "rollback", "-q", "store:v@s2"]);
    ground.mount(&[]);
    assert_eq!(ground.sh("ls mnt; tail -1 mnt/new/data"), "new\n100000\n");
    ground.sh("mkdir c; $WEALD mount store:c c; rm c/noise; echo own > c/own");
    assert_same(&ground.at("tree"), &dir.join(".snapshots/s1"), &MOUNTED);
    // The clone needs nothing of the volume.
    ground.umount();
    ground.sh("$WEALD umount c; $WEALD volume rm --snapshots store:v; $WEALD store gc -q store");
    ground.sh("$WEALD mount store:c c; test ! -e c/noise; cmp c/bin/tool tree/bin/tool");
    ground.sh("$WEALD umount c; $WEALD store check --data store");
}

/// Would catch: an image of a snapshot that has something of another state, or data of its own.
#[test]
fn a_snapshot_is_sealed_mounted_or_not() {
    let ground = Ground::new();
    ground.sh(TREE);
    ground.mount(&[]);
    ground.sh("rsync -aHAX --numeric-ids tree/ mnt/; $WEALD snapshot create -q store:v@s1");
    ground.sh("rm -rf mnt/*; seq 1000 > mnt/later");
    for name in ["mounted", "closed"] {
        let said = ground.weald(&["volume", "seal", "--json", "store:v@s1", "--name", name]);
        let said: Value = serde_json::from_str(&said).expect("JSON");
        assert!(said["new_len"].as_u64() < Some(30_000), "{said}");
        ground.sh(&format!(
            "$WEALD check store:{name}; $WEALD extract -q store:{name} {name}"
        ));
        assert_same(&ground.at("tree"), &ground.at(name), &EXTRACTED);
        let gone = ["@s9", "no such snapshot"];
        ground.refused(&["volume", "seal", "store:v@s9", "--name", "x"], &gone);
        if name == "mounted" {
            ground.umount();
        }
    }
    ground.sh("$WEALD snapshot rm -q store:v@s1; $WEALD check store:closed");
    ground.sh("$WEALD store check --data store");
}

/// Would catch: a rollback or a removal that a killed process leaves half done.
#[test]
fn what_a_kill_cuts_off_goes_on() {
    let ground = Ground::new();
    let dir = ground.mount(&[]);
    ground.sh(
        "mkdir mnt/d; for i in $(seq 3000); do echo $i > mnt/d/$i; done
        $WEALD snapshot create -q store:v@s1; rm -rf mnt/d
        mkdir mnt/e; for i in $(seq 3000); do echo $i > mnt/e/$i; done
        $WEALD snapshot create -q store:v@s2; rm -rf mnt/e; echo now > mnt/now; sync mnt",
    );
    ground.umount();
    let (mut before, mut after) = (0, 0);
    for delay in [1, 2, 4, 6, 9, 12, 16, 20, 30, 50, 80, 150] {
        for (to, tree) in [("s1", "d"), ("s2", "e")] {
            let ms = f64::from(delay) / 1000.0;
            ground.run(&format!(
                "timeout --foreground -s KILL {ms} $WEALD snapshot rollback -q store:v@{to}"
            ));
            ground.mount(&[]);
            let listed = ground.sh("ls mnt; ls mnt/* | wc -l");
            let (listed, count) = listed.split_once('\n').expect("two lines");
            if listed == tree {
                after += 1;
            } else {
                before += 1;
            }
            let is_whole = listed == "now" || count.trim() == "3000";
            assert!(is_whole, "{listed}: {count} after {ms} s");
            let counts = ["d", "e"].map(|name| {
                let at = if name == "d" { "s1" } else { "s2" };
                let listed = fs::read_dir(dir.join(".snapshots").join(at).join(name));
                listed.expect("a directory").count()
            });
            assert_eq!(counts, [3000, 3000]);
            ground.umount();
            ground.assert_clean();
        }
    }
    assert!(before > 0 && after > 0, "{before} before, {after} after");
    for delay in [10, 30, 50, 70] {
        let ms = f64::from(delay) / 1000.0;
        ground.sh(&format!(
            "$WEALD snapshot create -q store:v@s3
            timeout --foreground -s KILL {ms} $WEALD snapshot rm -q store:v@s3 || true
            $WEALD snapshot rm -q store:v@s3 2> log || true"
        ));
        assert_eq!(names(&ground), ["s1", "s2"]);
    }
    ground.sh("$WEALD snapshot rm -q store:v@s1 store:v@s2; $WEALD store check --data store");
    ground.mount(&[]);
    ground.kill();
    ground.mount(&[]);
    ground.umount();
    ground.assert_clean();
}

/// Would catch: a name that leaves the volume, a message that does not say what to do, a held
/// snapshot that goes, a change through `.snapshots`, a volume that goes with its snapshots.
#[test]
fn refused_commands_change_nothing() {
    let ground = Ground::new();
    ground.mount(&[]);
    ground.sh("echo one > mnt/a; ln -s a mnt/l; $WEALD snapshot create -q store:v@s1");
    let long = format!("store:v@{}", "x".repeat(201));
    for bad in [
        "store:v@a/b",
        "store:v@",
        "store:v@.",
        "store:v@..",
        "store:v@.h",
        &long,
    ] {
        ground.refused(&["snapshot", "create", bad], &["expected 1 to 200 bytes"]);
    }
    ground.refused(
        &["snapshot", "create", "store:v@a\nb"],
        &["control characters"],
    );
    ground.refused(
        &["snapshot", "create", "store:v"],
        &["expected the name", "@NAME"],
    );
    ground.refused(&["snapshot", "create", "store:w@s1"], &["no such volume"]);
    ground.refused(
        &["snapshot", "create", "store:v@s1"],
        &["has a snapshot of this name"],
    );
    ground.refused(
        &["snapshot", "rm", "store:v@s1", "store:v@s9"],
        &["@s9", "no such snapshot"],
    );
    ground.refused(
        &["snapshot", "rm", "store:v@s1", "store:v@s1"],
        &["named twice"],
    );
    ground.refused(
        &["snapshot", "release", "t", "store:v@s1"],
        &["not held by the tag"],
    );
    ground.refused(&["snapshot", "prune", VOLUME], &["--keep-daily 7"]);
    ground.refused(&["snapshot", "clone", "store:v@s1", "store:v"], &["v"]);
    ground.refused(
        &["snapshot", "clone", "store:v@s9", "store:w"],
        &["no such snapshot"],
    );
    ground.weald(&["snapshot", "hold", "audit", "store:v@s1"]);
    ground.refused(&["snapshot", "hold", "audit", "store:v@s1"], &["already"]);
    ground.refused(
        &["snapshot", "rm", "store:v@s1"],
        &["audit", "weald snapshot release"],
    );
    ground.weald(&["snapshot", "prune", "--keep-last", "1", "-q", VOLUME]);
    ground.sh("$WEALD snapshot create -q store:v@s2");
    ground.weald(&["snapshot", "prune", "--keep-last", "1", "-q", VOLUME]);
    assert_eq!(names(&ground), ["s1", "s2"]);
    let words = ["names a snapshot", "weald volume seal"];
    ground.refused(&["info", "store:v@s1"], &words);
    let words = ["names a snapshot", "takes a volume"];
    ground.refused(&["volume", "stat", "store:v@s1"], &words);
    for change in [
        "touch mnt/.snapshots/x",
        "echo x > mnt/.snapshots/s1/a",
        "rm mnt/.snapshots/s1/a",
        "mkdir mnt/.snapshots/s1/d",
        "chmod 600 mnt/.snapshots/s1/a",
        "setfattr -n user.a -v b mnt/.snapshots/s1/a",
        "mv mnt/.snapshots mnt/other",
        "mv mnt/.snapshots/s1/a mnt/b",
        "ln mnt/.snapshots/s1/a mnt/b",
        "rmdir mnt/.snapshots",
        "mkdir mnt/.snapshots",
    ] {
        assert_ne!(ground.run(change).code, Some(0), "{change}");
    }
    assert_eq!(
        ground.sh("cat mnt/.snapshots/s1/a mnt/.snapshots/s1/l; ls -A mnt"),
        "one\none\na\nl\n"
    );
    ground.sh("cp -a mnt/.snapshots/s1/a mnt/copy; cmp mnt/a mnt/copy");
    ground.umount();
    ground.refused(&["volume", "rm", VOLUME], &["2 snapshots", "--snapshots"]);
    ground.refused(
        &["volume", "rm", "--snapshots", VOLUME],
        &["audit", "release"],
    );
    ground.weald(&["snapshot", "release", "audit", "store:v@s1"]);
    ground.mount(&["-o", "ro"]);
    ground.refused(&["snapshot", "create", "store:v@s3"], &["read-only"]);
    assert_eq!(ground.sh("cat mnt/.snapshots/s2/a"), "one\n");
    ground.umount();
    ground.weald(&["volume", "rm", "--snapshots", VOLUME]);
    ground.sh("$WEALD store check --data store");
}

/// Would catch: a replica or a standby without snapshots, or one that programs without snapshots
/// would change, because its superblock is older than they are.
#[test]
fn replicas_and_standbys_have_snapshots() {
    let ground = Ground::new();
    ground.sh("$WEALD store backup -q store r; $WEALD replica follow -q r standby");
    ground.sh("$WEALD replica add -q store r2 --name r2");
    ground.mount(&[]);
    ground.sh("echo old > mnt/a; $WEALD snapshot create -q store:v@s1; echo new > mnt/a");
    ground.sh("$WEALD replica send -q store");
    ground.umount();
    ground.sh(
        "$WEALD store backup -q store r; $WEALD replica follow -q r standby
        $WEALD replica restore -q r2 back",
    );
    // Bit 2 of the features.
    for store in ["store", "standby", "back"] {
        let bits = ground.sh(&format!("od -An -tu1 -j48 -N1 {store}/store"));
        assert_eq!(bits.trim(), "5", "{store}");
    }
    ground.sh(
        "$WEALD mount back:v mnt; grep new mnt/a; grep old mnt/.snapshots/s1/a; $WEALD umount mnt
        $WEALD replica promote -q standby --without-place
        $WEALD mount standby:v mnt; grep old mnt/.snapshots/s1/a; $WEALD umount mnt",
    );
}

/// Would catch: a directory of snapshots that is listed unasked, twice, not at the end of a long
/// listing, or in the place of a real entry of that name.
#[test]
fn the_directory_is_listed_on_request() {
    let ground = Ground::new();
    ground.mount(&["-o", "snapdir=visible"]);
    ground.sh("cd mnt; seq 3000 | xargs touch; $WEALD snapshot create -q ../store:v@s1");
    assert_eq!(ground.sh("ls -A mnt | grep -c snapshots"), "1\n");
    assert_eq!(ground.sh("ls -A mnt | wc -l"), "3001\n");
    assert_eq!(
        ground.sh("find mnt -name 7"),
        "mnt/7\nmnt/.snapshots/s1/7\n"
    );
    assert_eq!(
        ground
            .sh("ls -di mnt/.snapshots; ls -ai mnt | grep snapshots")
            .lines()
            .count(),
        2
    );
    ground.sh("mkdir mnt/own; mv mnt/own mnt/.snapshots 2> log || mkdir mnt/x");
    ground.umount();
    ground.mount(&[]);
    assert_eq!(ground.sh("ls -A mnt | grep -c snapshots || true"), "0\n");
    assert_eq!(ground.sh("ls mnt/.snapshots"), "s1\n");
    ground.umount();
    let bad = ["mount", "-o", "snapdir=seen", VOLUME, "mnt"];
    ground.refused(&bad, &["hidden or visible"]);
}

/// Would catch: a policy that is not followed while the volume changes, that removes other
/// snapshots or held ones, that lets removals pile up, or that is set where it says nothing.
#[test]
fn a_policy_takes_and_removes_snapshots() {
    let ground = Ground::new();
    let set = |value: &str| ["volume", "set", VOLUME, ".", "--snapshots", value].map(str::to_owned);
    ground.weald(&set("every=1s last=2").each_ref().map(String::as_str));
    let dir = ground.mount(&["-o", "commit-interval=0.05"]);
    assert_eq!(
        ground.sh("getfattr -n user.weald.snapshots --only-values mnt"),
        "every=1s last=2"
    );
    ground.sh("$WEALD snapshot create -q store:v@own");
    let writer = Writer::new();
    writer.replace(&dir);
    let auto = || ground.sh("$WEALD snapshot ls store:v | grep -o 'auto-.*' || true");
    thread::scope(|scope| {
        let _ended = Ended(&writer);
        scope.spawn(|| writer.run(&dir));
        eventually("two snapshots of the policy", || {
            auto().lines().count() == 2
        });
        let first = auto().lines().next().expect("a name").to_owned();
        ground.weald(&["snapshot", "hold", "mine", &format!("{VOLUME}@{first}")]);
        eventually("the others to go on", || {
            let now = auto();
            now.lines().count() == 3
                && now.contains(&first)
                && !now.ends_with(&format!("{first}\n"))
        });
        thread::sleep(Duration::from_secs(3));
        assert!((3..=4).contains(&auto().lines().count()), "{}", auto());
    });
    assert!(ground.sh("$WEALD snapshot ls store:v").contains("own"));
    // Without changes there is nothing to take.
    ground.sh("sync mnt");
    thread::sleep(Duration::from_secs(3));
    let quiet = auto();
    thread::sleep(Duration::from_secs(3));
    assert_eq!(auto(), quiet);
    ground.weald(&set("none").each_ref().map(String::as_str));
    ground.sh("mkdir mnt/d; echo more > mnt/d/file");
    thread::sleep(Duration::from_secs(2));
    assert_eq!(auto(), quiet);
    for bad in ["hourly", "hourly=0", "last=3", "soon", ""] {
        let refused = ground.run(&format!("$WEALD volume set {VOLUME} . --snapshots '{bad}'"));
        assert_ne!(refused.code, Some(0), "{bad}");
        assert!(refused.stderr.contains("what to keep") || bad.is_empty());
        let set = format!("setfattr -n user.weald.snapshots -v '{bad}' mnt");
        assert_ne!(ground.run(&set).code, Some(0), "{bad}");
    }
    ground.refused(
        &["volume", "set", VOLUME, "d", "--snapshots", "hourly=1"],
        &["whole volume", "'.'"],
    );
    ground.umount();
    ground.assert_clean();
}

/// Would catch: damage of the tables that shows other content in a snapshot, or that stops what it
/// does not concern; a salvage that calls lost snapshots complete.
#[test]
fn sixteen_damaged_bytes_cost_no_snapshot_its_truth() {
    let ground = Ground::new();
    ground.mount(&[]);
    ground.sh("for i in $(seq 400); do echo old $i > mnt/$i; done
        $WEALD snapshot create -q store:v@s1; for i in $(seq 400); do echo new $i > mnt/$i; done
        sync mnt");
    ground.umount();
    let wanted = ground.sh("for i in $(seq 400); do echo old $i; done");
    let read = "for i in $(seq 400); do cat mnt/.snapshots/s1/$i; done";
    ground.sh("cp -a store whole");
    let len = fs::metadata(ground.at("store/meta")).expect("meta").len();
    let (mut refused, mut right) = (0, 0);
    for at in (0..40).map(|step| len / 40 * step + 17) {
        ground.sh("rm -rf store; cp -a whole store");
        let meta = File::options().write(true).open(ground.at("store/meta"));
        meta.expect("meta")
            .write_all_at(&[0xa5; 16], at)
            .expect("damage");
        let mounted = ground.run("$WEALD mount store:v mnt");
        if mounted.code != Some(0) {
            refused += 1;
            ground.run("$WEALD store salvage store");
            let mounted = ground.run("$WEALD mount store:v mnt");
            assert_eq!(mounted.code, Some(0), "byte {at}: no mount after a salvage");
        }
        let found = ground.run(read);
        if found.code == Some(0) {
            assert_eq!(found.text(), wanted, "byte {at}");
            right += 1;
        }
        ground.umount();
    }
    assert!(right >= 38, "{right} of 40 read, {refused} refused");
    // Without the journal, what is lost is said.
    ground.sh("rm -rf store; cp -a whole store; rm store/journal/*");
    for at in (0..len / 4096).map(|page| page * 4096 + 100) {
        let meta = File::options().write(true).open(ground.at("store/meta"));
        if at % 3 == 0 {
            meta.expect("meta")
                .write_all_at(&[0xa5; 16], at)
                .expect("damage");
        }
    }
    let salvaged = ground.run("$WEALD store salvage store");
    let mounted = ground.run("$WEALD mount store:v mnt");
    if mounted.code == Some(0) {
        let found = ground.run(read);
        assert!(found.code != Some(0) || found.text() == wanted);
        ground.umount();
    }
    assert_ne!(salvaged.code, Some(0), "a salvage that lost rows says so");
}

/// Would catch: a figure for Prometheus that is not that of the list, mounted or not, and a name
/// that leaves its label.
#[test]
fn figures_of_snapshots_are_those_of_the_list() {
    let ground = Ground::new();
    ground.mount(&[]);
    ground.sh(
        "for n in 1 2 3; do head -c 100000 /dev/urandom > mnt/f; sync mnt
        $WEALD snapshot create -q \"store:v@s$n\"; done; rm mnt/f; sync mnt
        $WEALD snapshot hold audit store:v@s2",
    );
    for is_mounted in [true, false] {
        if !is_mounted {
            ground.umount();
        }
        let listed = ground.weald(&["snapshot", "ls", "--json", VOLUME]);
        let text = ground.weald(&["snapshot", "ls", "--prometheus", VOLUME]);
        let samples = weald_testkit::exposition::samples(&text);
        let figure = |name: &str, snapshot: &str| {
            let mut found = samples.iter().filter(|sample| sample.name == name);
            let found = found.find(|sample| sample.labels["snapshot"] == snapshot);
            found.map(|sample| sample.value as u64)
        };
        let count = samples
            .iter()
            .find(|sample| sample.name == "weald_snapshots");
        assert_eq!(count.map(|sample| sample.value as u64), Some(3), "{text}");
        for line in listed.lines() {
            let object: Value = serde_json::from_str(line).expect("JSON");
            let name = object["name"].as_str().expect("a name");
            for (of, key) in [
                ("weald_snapshot_kept_rows", "kept_rows"),
                ("weald_snapshot_own_bytes", "own_bytes"),
            ] {
                assert_eq!(figure(of, name), object[key].as_u64(), "{of}: {text}");
            }
            assert!(object["own_bytes"].as_u64() > Some(90_000), "{listed}");
            let is_held = u64::from(name == "s2");
            assert_eq!(figure("weald_snapshot_holds", name), Some(is_held));
        }
    }
}
