//! Several volumes of one store that are mounted at the same time.

use super::*;

/// Another volume of the same store.
const OTHER: &str = "store:w";

struct Both {
    ground: Ground,
    dirs: [PathBuf; 2],
}

impl Both {
    /// Two volumes, which are not mounted yet.
    fn new() -> Self {
        let ground = Ground::new();
        ground.weald(&["volume", "create", "-q", OTHER]);
        let dirs = ["mnt", "other"].map(|name| ground.0.dir(name));
        Self { ground, dirs }
    }

    #[track_caller]
    fn mount(&self) {
        for (volume, dir) in [VOLUME, OTHER].iter().zip(&self.dirs) {
            self.ground.0.mount(Path::new(volume), dir, &[]);
        }
    }

    #[track_caller]
    fn pid_of(&self, volume: &str) -> u64 {
        let text = self.ground.weald(&["volume", "info", "--json", volume]);
        let info: Value = serde_json::from_str(&text).expect("JSON");
        info["server_pid"].as_u64().expect("a process id")
    }

    #[track_caller]
    fn umount(&self) {
        for dir in self.dirs.iter().rev() {
            self.ground.0.umount(dir);
        }
    }

    #[track_caller]
    fn assert_clean(&self) {
        for volume in [VOLUME, OTHER] {
            let said = self.ground.weald(&["volume", "check", "--data", volume]);
            assert!(said.starts_with("clean: "), "{said}");
        }
    }
}

/// Would catch: a second volume that is refused or gets a process of its own, content that two
/// volumes store twice, and synced files of either that a kill takes.
#[test]
fn two_volumes_of_a_store_are_written_at_once_and_survive_a_kill() {
    let both = Both::new();
    both.mount();
    let pid = both.pid_of(VOLUME);
    assert_eq!(both.pid_of(OTHER), pid);
    let listed = both.ground.weald(&["mounts"]);
    assert!(
        listed.contains("mnt") && listed.contains("other"),
        "{listed}"
    );
    let ground = &both.ground;
    let lens = ground.sh(
        "head -c 6000000 /dev/urandom > noise; sync_all() { sync mnt other; }
         len() { du -s -B1 store/segments | cut -f1; }
         cp noise mnt/noise; sync_all; len; cp mnt/noise other/noise; sync_all
         for i in 1 2 3 4; do seq $i 90000 > mnt/m$i & seq $i 80000 > other/o$i & done; wait
         mv mnt/m1 mnt/renamed; rm other/o1; sync_all; len",
    );
    let lens: Vec<u64> = lens
        .lines()
        .map(|len| len.parse().expect("bytes"))
        .collect();
    assert!(lens[1] - lens[0] < 4_000_000, "{lens:?}");
    ground.sh(&format!(
        "mkdir kept; cp -a mnt other kept/
         kill -9 {pid}; umount -l mnt other; tail --pid={pid} -f /dev/null"
    ));
    both.mount();
    assert_ne!(both.pid_of(VOLUME), pid);
    ground.sh("diff -r kept/mnt mnt; diff -r kept/other other; cmp noise other/noise");
    both.umount();
    both.assert_clean();
}

/// Would catch: a volume that goes with another one, an unmount that waits for the other mount, and
/// changes that the end of the process loses.
#[test]
fn volumes_come_and_go_beside_each_other() {
    let both = Both::new();
    both.mount();
    let ground = &both.ground;
    let pid = both.pid_of(OTHER);
    ground.sh("echo first > mnt/file; echo second > other/file");
    ground.0.umount(&both.dirs[0]);
    ground.sh("echo more >> other/file; sync other");
    ground.refused(&["volume", "rm", VOLUME], &["process", &pid.to_string()]);
    ground.0.mount(Path::new(VOLUME), &both.dirs[0], &[]);
    assert_eq!(both.pid_of(VOLUME), pid);
    ground.sh("test \"$(cat mnt/file)\" = first; echo again > mnt/again; echo last > other/last");
    ground.sh(&format!("kill {pid}; tail --pid={pid} -f /dev/null"));
    both.mount();
    ground.sh("cat mnt/file mnt/again other/file other/last > found
         printf 'first\\nagain\\nsecond\\nmore\\nlast\\n' | cmp - found");
    both.umount();
    both.assert_clean();
    ground.weald(&["volume", "rm", VOLUME]);
    ground.0.mount(Path::new(OTHER), &both.dirs[1], &[]);
    ground.sh("test \"$(cat other/last)\" = last");
    ground.0.umount(&both.dirs[1]);
}

/// Would catch: two first mounts of a store that start two servers, of which one is refused.
#[test]
fn volumes_that_are_mounted_at_the_same_moment_share_a_process() {
    let both = Both::new();
    for _ in 0..5 {
        both.ground.sh("\"$WEALD\" mount store:v mnt & first=$!
             \"$WEALD\" mount store:w other; wait $first");
        assert_eq!(both.pid_of(VOLUME), both.pid_of(OTHER));
        both.ground
            .sh("\"$WEALD\" umount mnt & first=$!; \"$WEALD\" umount other; wait $first");
    }
    both.assert_clean();
}

/// Would catch: modes of a store that differ between its volumes, a volume that is mounted twice,
/// and another user who gets into the process.
#[test]
fn what_cannot_be_mounted_beside_another_volume_is_refused_with_a_reason() {
    let both = Both::new();
    let ground = &both.ground;
    ground.0.mount(Path::new(VOLUME), &both.dirs[0], &[]);
    let pid = both.pid_of(VOLUME).to_string();
    ground.refused(&["mount", VOLUME, "other"], &["is mounted on", &pid]);
    let refused = |words: &[&str], reasons: &[&str]| {
        let args = [&["mount"], words, &[OTHER, "other"]].concat();
        ground.refused(&args, reasons);
    };
    refused(&["-o", "barrier=ignore"], &["barrier=honour"]);
    refused(&["--isolated"], &["is being written by process", &pid]);
    refused(&["--foreground"], &["is being written by process", &pid]);
    let other_user = || {
        ground.run(
            "mkdir -p -m 700 theirs; chown 65534 theirs
             WEALD_RUNTIME_DIR=theirs setpriv --reuid=65534 --regid=65534 --clear-groups \\
                 \"$WEALD\" mount store:w other",
        )
    };
    ground.sh("chmod a+rwx . other; chmod 700 store");
    let closed = other_user().stderr;
    assert!(closed.contains("store: Permission denied"), "{closed}");
    ground.sh("chmod -R a+rwX store");
    let other_user = other_user();
    assert_eq!(other_user.code, Some(2), "{}", other_user.stderr);
    let is_refused = other_user.stderr.contains(&format!("process {pid}"));
    assert!(is_refused, "{}", other_user.stderr);
    ground
        .0
        .mount(Path::new(OTHER), &both.dirs[1], &["-o", "ro"]);
    ground.sh("echo text > mnt/file; ! touch other/file || exit 1");
    let info = ground.weald(&["store", "info", "store"]);
    assert!(info.contains("perhaps to volumes"), "{info}");
    both.umount();
    // The other way round, too.
    ground
        .0
        .mount(Path::new(VOLUME), &both.dirs[0], &["-o", "ro"]);
    ground.0.mount(Path::new(OTHER), &both.dirs[1], &[]);
    ground.sh("echo text > other/file; ! touch mnt/new || exit 1");
    assert_eq!(both.pid_of(VOLUME), both.pid_of(OTHER));
    both.umount();
    both.assert_clean();
}
