//! Volumes of stores that cannot be written to: a file system that became read-only, a disk that is
//! attached for reading.

use super::{Ground, MOUNTED, TREE, VOLUME};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use weald_testkit::compare::assert_same;
use weald_testkit::mounts;

/// A ground whose store lies on an ext4 of its own, in the file `disk`, mounted on `host`.
fn on_a_disk() -> Ground {
    let ground = Ground(mounts::Ground::new());
    ground.sh(
        "mkdir host; truncate -s 400M disk; mkfs.ext4 -q -F disk; mount -o loop disk host
         ln -s host/store store",
    );
    ground.weald(&["store", "create", "-q", "host/store"]);
    ground.weald(&["volume", "create", "-q", VOLUME]);
    ground
}

/// Runs the last command of `script` until it succeeds: a child that another test has just forked
/// may hold a file open until its exec.
#[track_caller]
fn insist(ground: &Ground, script: &str) {
    mounts::eventually(script, || ground.run(script).code == Some(0));
}

/// Every command that reads the volume, on a store that cannot be written to.
#[track_caller]
fn assert_read(ground: &Ground, log_record_count: impl Fn(u64) -> bool) {
    let sums = "cd host/store; find . -type f -printf '%p %T@ %s ' -exec sha256sum {} +";
    let before = ground.sh(sums);
    let dir = ground.mount(&["-o", "ro"]);
    assert_same(&ground.at("tree"), &dir, &MOUNTED);
    let refused = fs::write(dir.join("new"), "x").expect_err("read-only");
    assert_eq!(refused.raw_os_error(), Some(30));
    let refused = fs::remove_file(dir.join("noise")).expect_err("read-only");
    assert_eq!(refused.raw_os_error(), Some(30));
    ground.umount();
    ground.refused(
        &["mount", VOLUME, "mnt"],
        &["Read-only file system", "weald mount -o ro"],
    );
    assert!(ground.weald(&["volume", "ls", "store"]).contains(" v\n"));
    assert_eq!(ground.info()["is_mounted"], false);
    let said = ground.weald(&["volume", "stat", "--json", VOLUME]);
    assert!(said.contains("\"logical_len\""), "{said}");
    let said = ground.weald(&["volume", "check", "--data", "--json", VOLUME]);
    let said: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(said["clean"], true, "{said}");
    let count = said["log_record_count"].as_u64().expect("a number");
    assert!(log_record_count(count), "{said}");
    ground.weald(&[
        "volume", "seal", "-q", VOLUME, "--force", "--image", "v.weald",
    ]);
    ground.weald(&["diff", "v.weald", "tree"]);
    assert_eq!(ground.sh(sums), before);
}

/// Would catch: a volume that needs a disk that can be written to, changes that only the sync log
/// has and that are not shown, and a byte that is written.
#[test]
fn a_volume_on_a_read_only_disk_is_read() {
    let ground = on_a_disk();
    ground.sh(TREE);
    let dir = ground.mount(&["-o", "commit-interval=3600"]);
    for number in 0..20 {
        let mut file = File::create(dir.join(format!("early-{number}"))).expect("create");
        file.write_all(b"makes the log").expect("write");
        file.sync_all().expect("fsync");
    }
    ground.sh("rm mnt/early-*; rsync -aHAX --numeric-ids tree/ mnt/; sync mnt");
    // More than a commit has: small changes that only the log has.
    ground.sh("for d in tree mnt; do echo last > $d/last; touch -d @1 $d/last $d; done");
    File::open(&dir)
        .and_then(|dir| dir.sync_all())
        .expect("fsync");
    ground.kill();
    // As the kernel does after an error of the disk. The tables are as the kill left them.
    insist(&ground, "mount -o remount,ro host");
    assert_read(&ground, |count| count > 0);
    // As with an image of a disk that fails.
    insist(&ground, "umount host && mount -o ro,loop disk host");
    assert_read(&ground, |count| count > 0);
    insist(&ground, "umount host && mount -o loop disk host");
    let dir = ground.mount(&[]);
    assert_same(&ground.at("tree"), &dir, &MOUNTED);
    ground.umount();
    ground.assert_clean();
    insist(&ground, "mount -o remount,ro host");
    assert_read(&ground, |count| count == 0);
}

/// Would catch: two readers of a read-only store that keep each other out, and a reader beside a
/// writer that reaches the same store by another path.
#[test]
fn readers_of_a_read_only_store_exclude_writers_only() {
    let ground = Ground::new();
    ground.sh("mkdir again; mount --bind store again && mount -o remount,bind,ro again");
    let dir = ground.mount(&["-o", "ro"]);
    let second = ground.0.dir("second");
    let refused = ground
        .0
        .weald(["mount", "-o", "ro", "again:v", "second"])
        .expect(2);
    assert!(
        refused.stderr.contains("is being written"),
        "{}",
        refused.stderr
    );
    ground.0.umount(&dir);
    ground.0.mount(Path::new("again:v"), &second, &["-o", "ro"]);
    ground.weald(&["store", "check", "again"]);
    // A check only reads.
    ground.assert_clean();
    ground.refused(&["volume", "create", "store:new"], &["is being written"]);
    ground.refused(&["store", "gc", "store"], &["could not be written"]);
    ground.0.umount(&second);
    ground.assert_clean();
}
