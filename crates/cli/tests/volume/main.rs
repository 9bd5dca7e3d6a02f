//! Volumes that are mounted, written, killed, filled and damaged. Needs root and `/dev/fuse`.
#![allow(missing_docs)]

mod adding;
mod beside_readers;
mod block;
mod case;
mod collecting;
mod figures;
mod flags;
mod images;
mod leaving_out;
mod limits;
mod many;
mod mounting;
mod properties;
mod read_only;
mod removing;
mod reserve;
mod salvage;
mod scrubbing;
mod sealing;
mod snapshots;
mod states;

use serde_json::Value;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use weald_testkit::command::{Output, weald_path};
use weald_testkit::compare::{CompareOptions, assert_same};
use weald_testkit::mounts::{self, eventually, finish};

/// A tree with every kind of entry, and a name that is not UTF-8.
const TREE: &str = "
    mkdir -p tree/bin tree/etc/deep tree/empty; seq 20000 > tree/bin/tool; chmod 4755 tree/bin/tool
    echo main > tree/etc/main; ln tree/etc/main tree/etc/twin; ln -s ../etc/main tree/bin/link
    mkfifo tree/fifo; mknod tree/null c 1 3; touch $'tree/caf\\xe9' $'tree/new\\nline'
    truncate -s 1M tree/sparse; printf x | dd of=tree/sparse seek=300000 bs=1 conv=notrunc 2> log
    head -c 3000000 /dev/urandom > tree/noise; chown 1000:100 tree/noise
    setfattr -n user.note -v 'a note' tree/etc/main; setfacl -m u:1000:r tree/etc/deep
    find tree -depth -exec touch -h -d '2024-02-29 12:00:00.123456789 UTC' {} +";

/// The volume of a ground.
const VOLUME: &str = "store:v";

struct Ground(mounts::Ground);

impl Ground {
    /// Creates the volume [`VOLUME`].
    fn new() -> Self {
        let ground = Self(mounts::Ground::new());
        ground.weald(&["store", "create", "-q", "store"]);
        ground.weald(&["volume", "create", "-q", VOLUME]);
        ground
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.at(name)
    }

    /// Runs the command, which must succeed; returns its output.
    #[track_caller]
    fn weald(&self, args: &[&str]) -> String {
        self.0.weald(args).expect(0).text()
    }

    /// Runs the command, which must fail with one line that contains all of `words`.
    #[track_caller]
    fn refused(&self, args: &[&str], words: &[&str]) {
        self.0.weald(args).expect_refusal(words);
    }

    /// Runs a script in the directory; `$WEALD` is the binary.
    fn run(&self, script: &str) -> Output {
        finish(self.0.script(script).env("HOME", self.0.path()))
    }

    #[track_caller]
    fn sh(&self, script: &str) -> String {
        self.run(script).expect(0).text()
    }

    /// Mounts the volume on `mnt`.
    #[track_caller]
    fn mount(&self, args: &[&str]) -> PathBuf {
        let dir = self.0.dir("mnt");
        self.0.mount(Path::new(VOLUME), &dir, args);
        dir
    }

    #[track_caller]
    fn umount(&self) {
        self.0.umount(&self.at("mnt"));
    }

    #[track_caller]
    fn info(&self) -> Value {
        let text = self.weald(&["volume", "info", "--json", VOLUME]);
        serde_json::from_str(&text).expect("JSON")
    }

    #[track_caller]
    fn assert_clean(&self) {
        let said = self.weald(&["volume", "check", "--data", VOLUME]);
        assert!(said.starts_with("clean: "), "{said}");
    }

    /// Kills the server of the mount and detaches the mount.
    #[track_caller]
    fn kill(&self) {
        let pid = self.info()["server_pid"].as_u64().expect("a process id");
        // A process keeps its locks until it is gone.
        self.sh(&format!(
            "kill -9 {pid}; umount -l mnt; tail --pid={pid} -f /dev/null"
        ));
    }
}

const MOUNTED: CompareOptions = CompareOptions {
    rsync: true,
    holes: false,
    link_counts: true,
};

/// Would catch: an attribute, a name or a byte that a volume changes or forgets, now or after it
/// was mounted again.
#[test]
fn a_tree_comes_back_as_it_was() {
    let ground = Ground::new();
    ground.sh(TREE);
    let dir = ground.mount(&[]);
    ground.sh("rsync -aHAX --numeric-ids tree/ mnt/");
    assert_same(&ground.at("tree"), &dir, &MOUNTED);
    ground.umount();
    ground.assert_clean();
    ground.mount(&["-o", "ro"]);
    assert_same(&ground.at("tree"), &dir, &MOUNTED);
    let refused = fs::write(dir.join("new"), "x").expect_err("read-only");
    assert_eq!(refused.raw_os_error(), Some(30));
    ground.sh("mkdir back; rsync -aHAX --numeric-ids mnt/ back/");
    assert_same(&ground.at("tree"), &ground.at("back"), &MOUNTED);
    ground.umount();
    // A second copy shares its data.
    ground.mount(&[]);
    ground.sh("cp -a mnt/noise mnt/again; sync mnt");
    let stat = ground.weald(&["volume", "stat", "--json", VOLUME]);
    let stat: Value = serde_json::from_str(&stat).expect("JSON");
    let len = |key: &str| stat[key].as_u64().expect("a number");
    assert!(len("logical_len") > 6_000_000, "{stat}");
    assert!(len("stored_len") < 3_500_000, "{stat}");
    assert_eq!(len("dirty_len"), 0, "{stat}");
    ground.umount();
    let metrics = ground.weald(&["volume", "stat", "--prometheus", VOLUME]);
    let labels = format!("volume=\"v\",store=\"{}\"", ground.at("store").display());
    let begin = format!("weald_volume_dirty_bytes{{{labels},uuid=\"");
    let dirty = metrics.lines().find(|line| line.starts_with(&begin));
    assert!(
        dirty.is_some_and(|line| line.ends_with("\"} 0")),
        "{metrics}"
    );
    ground.weald(&["volume", "rm", VOLUME]);
    assert_eq!(ground.weald(&["volume", "ls", "store"]), "");
}

/// Would catch: a crash that takes synced data, that leaves a later operation without an earlier
/// one, or after which the volume is inconsistent.
#[test]
fn a_killed_server_leaves_a_prefix() {
    let ground = Ground::new();
    let mut kept = 0;
    for round in 0..5 {
        let dir = ground.mount(&["-o", "commit-interval=0.05"]);
        let synced = dir.join(format!("synced-{round}"));
        let mut file = File::create(&synced).expect("create");
        file.write_all(&[round; 300_000]).expect("write");
        file.sync_all().expect("fsync");
        // Renames over one file and new files, in turn, as fast as they go.
        let count = 300 * (u32::from(round) + 1);
        for number in 0..count {
            fs::write(dir.join("new"), number.to_string()).expect("write");
            fs::rename(dir.join("new"), dir.join("current")).expect("rename");
            fs::write(dir.join(format!("{round}-{number}")), "x").expect("write");
        }
        ground.kill();
        let dir = ground.mount(&[]);
        for earlier in 0..=round {
            let bytes = fs::read(dir.join(format!("synced-{earlier}"))).expect("synced");
            assert!(bytes.len() == 300_000 && bytes.iter().all(|byte| *byte == earlier));
        }
        let is_there = |number: &u32| dir.join(format!("{round}-{number}")).exists();
        let found = (0..count).filter(is_there).count() as u32;
        assert!((0..found).all(|number| is_there(&number)), "no prefix");
        kept += found;
        if found > 0 {
            let current = fs::read_to_string(dir.join("current")).expect("current");
            let current: u32 = current
                .parse()
                .expect("a whole number, never an empty file");
            assert!(
                current + 1 == found || current == found,
                "{current} of {found}"
            );
        }
        ground.umount();
        ground.assert_clean();
    }
    assert!(kept > 0, "nothing was ever committed");
}

/// Would catch: a signal after which the last changes are lost.
#[test]
fn sigterm_writes_everything() {
    let ground = Ground::new();
    let dir = ground.0.dir("mnt");
    let options = ["-o", "commit-interval=3600"];
    let mut server = ground.0.serve(Path::new(VOLUME), &dir, &options);
    fs::write(dir.join("file"), "not synced").expect("write");
    ground.sh(&format!("kill {}", server.id()));
    let status = server.wait();
    assert!(status.success(), "{status}: {}", server.log());
    ground.mount(&[]);
    let text = fs::read_to_string(dir.join("file"));
    assert_eq!(text.expect("a file"), "not synced");
    ground.umount();
}

/// Would catch: two writers of one volume, and a volume that is removed under its mount.
#[test]
fn a_mounted_volume_has_one_owner() {
    let ground = Ground::new();
    let dir = ground.mount(&["-o", "noatime,cache=32M,fsync=data"]);
    fs::write(dir.join("file"), "kept").expect("write");
    let info = ground.info();
    let pid = info["server_pid"]
        .as_u64()
        .expect("a process id")
        .to_string();
    assert_eq!(info["dir"], dir.to_str().expect("UTF-8"));
    assert_eq!(
        (&info["codec"], &info["chunk_len"]),
        (&"lz4".into(), &131_072.into())
    );
    ground.0.dir("other");
    ground.refused(&["mount", VOLUME, "other"], &["process", &pid]);
    ground.refused(&["volume", "rm", VOLUME], &["is mounted", &pid, "umount"]);
    ground.refused(&["volume", "check", VOLUME], &["is mounted", &pid]);
    ground.refused(&["volume", "create", "store:w"], &["process", &pid]);
    ground.refused(&["info", VOLUME], &["names a volume", "weald volume seal"]);
    assert!(ground.weald(&["volume", "ls", "store"]).contains(" v\n"));
    assert!(ground.weald(&["store", "ls", "store"]).contains("volume"));
    assert!(ground.weald(&["mounts"]).contains("volume"));
    assert_eq!(
        fs::read_to_string(dir.join("file")).expect("a file"),
        "kept"
    );
    ground.umount();
    ground.weald(&["volume", "rm", VOLUME]);
    ground.refused(&["mount", VOLUME, "mnt"], &["store:v"]);
}

/// Would catch: fstab options that a mount helper refuses or drops.
#[test]
fn the_mount_helper_mounts_a_volume() {
    let ground = Ground::new();
    ground.sh("ln -s \"$WEALD\" mount.weald; mkdir mnt
         ./mount.weald store:v mnt -s -o rw,nofail,x-a=b,unknown,commit-interval=1,noatime
         echo text > mnt/file; umount mnt");
    eventually("the end of the server", || {
        ground.0.weald(["volume", "check", VOLUME]).code == Some(0)
    });
    let dir = ground.mount(&[]);
    assert_eq!(
        fs::read_to_string(dir.join("file")).expect("a file"),
        "text\n"
    );
    ground.umount();
}

/// Would catch: damage of a table page that is delivered as data or that panics. A page that no
/// read needs may stay unnoticed.
#[test]
fn damaged_tables_are_noticed() {
    let ground = Ground::new();
    ground.mount(&[]);
    ground.sh("for i in $(seq 300); do seq $i 400 > mnt/$i; done; cp -a mnt keep; sync mnt");
    ground.umount();
    ground.sh("cp -a store whole");
    let len = fs::metadata(ground.at("store/meta")).expect("meta").len();
    let (mut noticed, place_count) = (0, 24);
    for place in 0..place_count {
        ground.sh("rm -rf store; cp -a whole store");
        let meta = File::options()
            .read(true)
            .write(true)
            .open(ground.at("store/meta"));
        let meta = meta.expect("open");
        let mut bytes = [0; 16];
        let at = len / place_count * place + 64 * place % 4000;
        meta.read_exact_at(&mut bytes, at).expect("read");
        meta.write_all_at(&bytes.map(|byte| byte ^ 0x5a), at)
            .expect("write");
        let dir = ground.0.dir("mnt");
        let mounted = ground.0.weald(["mount", VOLUME, "mnt"]);
        assert!(
            !mounted.stderr.contains("panicked"),
            "{at}: {}",
            mounted.stderr
        );
        let mut is_noticed = mounted.code != Some(0);
        if is_noticed {
            assert_eq!((mounted.code, mounted.stderr.lines().count()), (Some(2), 1));
        } else {
            for number in 1..=300 {
                match fs::read(dir.join(number.to_string())) {
                    Ok(bytes) => {
                        let kept = fs::read(ground.at(&format!("keep/{number}")));
                        assert!(kept.expect("a copy") == bytes, "{at}: wrong content");
                    }
                    Err(error) => {
                        // A damaged branch of a table may hide a name (ENOENT); the check finds it.
                        assert!(matches!(error.raw_os_error(), Some(2 | 5)), "{at}: {error}");
                        is_noticed = true;
                    }
                }
            }
            ground.run("$WEALD umount mnt || $WEALD umount --lazy mnt");
            eventually("the unmount", || !ground.0.is_mounted(&dir));
            let said = ground.0.weald(["volume", "check", "--data", VOLUME]);
            assert!(!is_noticed || said.code != Some(0), "{at}: {}", said.text());
        }
        noticed += u64::from(is_noticed);
    }
    assert!(noticed > 0, "no damage was noticed in {len} bytes");
}

/// Would catch: a store or a volume of a newer version that is changed.
#[test]
fn a_newer_store_is_refused() {
    let ground = Ground::new();
    let mut store = fs::read(ground.at("store/store")).expect("read");
    store[8] = 0x40;
    let checksum = blake3::hash(&store[..80]);
    store[80..96].copy_from_slice(&checksum.as_bytes()[..16]);
    fs::write(ground.at("store/store"), store).expect("write");
    ground.0.dir("mnt");
    for args in [
        &["mount", VOLUME, "mnt"][..],
        &["volume", "check", VOLUME],
        &["volume", "rm", VOLUME],
        &["volume", "create", "store:w"],
    ] {
        ground.refused(args, &["newer"]);
    }
}

/// Would catch: a volume whose files everybody reads in the segments of its store, and images of a
/// store that nobody reads any more because a volume was made beside them.
#[test]
fn others_do_not_read_a_volume_in_its_store() {
    let ground = Ground::new();
    ground.sh(TREE);
    let said = ground.sh("umask 022
        $WEALD store create -q new; stat -c %a new
        $WEALD volume create -q new:a; stat -c %a new
        chmod 755 new; $WEALD volume create -q new:b; stat -c %a new
        $WEALD store create -q shared; $WEALD store add -q shared tree --name t
        $WEALD volume create shared:v 2>&1; stat -c %a shared");
    let expected = "755\n700\n755\nweald: shared: other users can enter this directory, and read \
                    what is in the volume whatever the modes of its files are: 'chmod go= shared' \
                    keeps them out\nshared:v: an empty volume\n755\n";
    assert_eq!(said, expected);
    let private = ground.run(
        "setpriv --reuid=65534 --regid=65534 --clear-groups cat shared/segments/* | wc -c
        $WEALD store create -q other; $WEALD volume create -q other:v
        ! setpriv --reuid=65534 --regid=65534 --clear-groups ls other || exit 1",
    );
    assert!(private.expect(0).stderr.contains("Permission denied"));
}

/// Would catch: a full disk that makes a volume read-only, loses what was synced, or from which
/// nothing can be removed.
#[test]
fn a_full_disk_can_be_emptied() {
    let ground = Ground(mounts::Ground::new());
    ground.sh("truncate -s 96M disk; mkfs.ext4 -q -F disk; mkdir small; mount -o loop disk small");
    ground.sh("$WEALD store create -q --segment-size 4M small/store; ln -s small/store store");
    ground.weald(&["volume", "create", "-q", "--compress", "none", VOLUME]);
    let dir = ground.mount(&[]);
    fs::write(dir.join("synced"), vec![7; 1 << 20]).expect("write");
    ground.sh("sync mnt/synced");
    let full = ground.run("head -c 200M /dev/urandom > mnt/big");
    assert!(full.stderr.contains("No space left"), "{}", full.stderr);
    ground.sh("rm mnt/big; sync mnt");
    eventually("space", || {
        ground.run("head -c 20M /dev/urandom > mnt/other").code == Some(0)
    });
    ground.sh("sync mnt");
    assert_eq!(
        fs::read(dir.join("synced")).expect("synced"),
        vec![7; 1 << 20]
    );
    ground.umount();
    ground.assert_clean();
    ground.mount(&[]);
    assert_eq!(
        fs::read(dir.join("synced")).expect("synced"),
        vec![7; 1 << 20]
    );
    ground.umount();
    ground.sh("umount small");
}

/// Would catch: a name of any bytes that cannot be made, found, listed or removed.
#[test]
fn names_are_bytes() {
    let ground = Ground::new();
    let dir = ground.mount(&[]);
    let long = [0xfe; 255];
    for name in [&b"caf\xe9"[..], b"\x01\n", b"-", &long] {
        let path = dir.join(OsStr::from_bytes(name));
        fs::write(&path, name).expect("write");
    }
    ground.umount();
    ground.mount(&[]);
    let mut count = 0;
    for entry in fs::read_dir(&dir).expect("list") {
        let path = entry.expect("entry").path();
        let name = path.file_name().expect("a name").as_bytes().to_vec();
        assert_eq!(fs::read(&path).expect("read"), name);
        fs::remove_file(&path).expect("remove");
        count += 1;
    }
    assert_eq!(count, 4);
    ground.umount();
    ground.assert_clean();
}

/// Would catch: a real program whose data a volume damages.
#[test]
fn git_and_sqlite_find_their_data() {
    let ground = Ground::new();
    ground.mount(&[]);
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    ground.sh(&format!(
        "git config --global --add safe.directory '*'
         git clone -q --no-hardlinks '{root}' mnt/clone; git -C mnt/clone fsck --full
         git -C mnt/clone gc -q; git -C mnt/clone status --porcelain"
    ));
    let database = "import sqlite3, sys
c = sqlite3.connect('mnt/' + sys.argv[1])
assert c.execute('PRAGMA journal_mode=' + sys.argv[1]).fetchone()[0] == sys.argv[1]
c.execute('CREATE TABLE IF NOT EXISTS t (a INTEGER PRIMARY KEY, b BLOB)')
for i in range(60):
    with c:
        c.executemany('INSERT INTO t (b) VALUES (randomblob(?))', [(i * 7 + j,) for j in range(30)])
        c.execute('DELETE FROM t WHERE a % 3 = 0')
assert c.execute('PRAGMA integrity_check').fetchall() == [('ok',)]
print(c.execute('SELECT count(*) FROM t').fetchone()[0])";
    fs::write(ground.at("database.py"), database).expect("write");
    for mode in ["wal", "delete"] {
        ground.sh(&format!("python3 database.py {mode}"));
    }
    ground.umount();
    ground.assert_clean();
    ground.mount(&[]);
    ground.sh("git -C mnt/clone fsck --full; test -z \"$(git -C mnt/clone status --porcelain)\"");
    for mode in ["wal", "delete"] {
        ground.sh(&format!("python3 database.py {mode}"));
    }
    ground.umount();
}

/// Options of a comparison of trees on a disk.
const EXTRACTED: CompareOptions = CompareOptions {
    rsync: true,
    holes: true,
    link_counts: true,
};

/// Would catch: a kernel that writes, or a tar that reads, in a way in which members are not found
/// again, and a chunking that the commands do not set.
#[test]
fn a_tar_on_a_mount_shares_the_data_of_its_tree() {
    let ground = Ground::new();
    let stored = || {
        let stat = ground.weald(&["volume", "stat", "--json", VOLUME]);
        let stat: Value = serde_json::from_str(&stat).expect("JSON");
        stat["stored_len"].as_u64().expect("a length")
    };
    ground.mount(&[]);
    ground.sh("mkdir mnt/tree; for i in $(seq 40); do
        head -c $((i * i * 311)) /dev/urandom > mnt/tree/$i; done; sync mnt");
    let tree = stored();
    ground.sh("tar -cf mnt/tar -C mnt/tree .; sync mnt");
    let both = stored();
    assert!(both - tree < tree / 20, "{tree} {both}");
    ground.weald(&["volume", "set", VOLUME, ".", "--chunking", "fixed"]);
    let shown = ground.weald(&["volume", "info", VOLUME, "."]);
    assert!(shown.contains("\nchunking            fixed\n"), "{shown}");
    ground.sh("tar -cf mnt/fixed -C mnt/tree .; sync mnt");
    let all = stored();
    assert!(all - both > tree / 2, "{both} {all}");
    ground.sh("mkdir x; tar -xf mnt/tar -C x; diff -r mnt/tree x; cmp mnt/tar mnt/fixed");
    ground.umount();
    ground.weald(&["volume", "check", "--data", VOLUME]);
}

/// Would catch: an option that a mount refuses or drops, and changes in memory that an unmount does
/// not save.
#[test]
fn a_volume_in_memory_is_saved_when_it_is_unmounted() {
    let ground = Ground::new();
    let unsynced = ground.at("store/unsynced");
    let dir = ground.mount(&["-o", "mode=ram,barrier=ignore,commit-interval=3600"]);
    fs::write(dir.join("kept"), vec![7; 300_000]).expect("write");
    ground.sh("sync mnt/kept; rm -f x");
    let stat = ground.weald(&["volume", "stat", "--json", VOLUME]);
    let stat: Value = serde_json::from_str(&stat).expect("JSON");
    assert!(stat["dirty_len"].as_u64() >= Some(300_000), "{stat}");
    assert!(stat["risk_seconds"].as_f64() > Some(0.0), "{stat}");
    assert!(unsynced.exists());
    ground.umount();
    assert!(!unsynced.exists());
    ground.mount(&["-o", "mode=ram,barrier=ignore,commit-interval=3600"]);
    assert_eq!(fs::read(dir.join("kept")).expect("read"), vec![7; 300_000]);
    fs::write(dir.join("lost"), "x").expect("write");
    ground.kill();
    ground.mount(&["-o", "fsync=data"]);
    assert!(dir.join("kept").exists() && !dir.join("lost").exists());
    assert!(!unsynced.exists());
    ground.sh(
        "head -c 2000000 /dev/urandom > mnt/noise; sync mnt/noise; rm mnt/noise
         echo x > mnt/y; sync mnt/y",
    );
    // Most of its space returns at once, and only what the disk still has is a debt.
    eventually("a debt on the disk", || {
        let stat = ground.weald(&["volume", "stat", "--json", VOLUME]);
        let stat: Value = serde_json::from_str(&stat).expect("JSON");
        let dead = stat["dead_len"].as_u64().expect("a length");
        let on_disk = ground.sh("du -sB1 store/segments | cut -f1");
        let on_disk = on_disk.trim().parse().expect("a number");
        dead > 0 && dead <= on_disk
    });
    assert!(
        ground
            .weald(&["volume", "stat", VOLUME])
            .contains("\ndebt  ")
    );
    ground.umount();
    ground.assert_clean();
}
