//! Numbers that the commands print about space and failures, and the order in which volumes of a
//! store are mounted.

use super::{Ground, VOLUME, eventually};
use serde_json::Value;
use std::fs::File;
use weald_testkit::exposition;

/// Would catch: two lines of fstab that race at boot, since a read-only mount keeps a later one
/// from writing.
#[test]
fn read_only_and_writable_volumes_are_mounted_in_either_order() {
    let ground = Ground::new();
    ground.weald(&["volume", "create", "-q", "store:w"]);
    ground.sh("mkdir a b");
    for first in ["ro", "rw"] {
        let second = if first == "ro" { "rw" } else { "ro" };
        let (ro, rw) = if first == "ro" {
            ("a", "b")
        } else {
            ("b", "a")
        };
        ground.weald(&["mount", "-o", first, VOLUME, "a"]);
        ground.weald(&["mount", "-o", second, "store:w", "b"]);
        ground.sh(&format!(
            "echo {first} > {rw}/f; sync {rw}/f; ! touch {ro}/g 2> log || exit 1
            grep -q Read-only log"
        ));
        ground.sh("\"$WEALD\" umount a; \"$WEALD\" umount b");
    }
    ground.assert_clean();
    ground.sh(
        "\"$WEALD\" mount store:w a; [ \"$(cat a/f)\" = rw ] || [ \"$(cat a/f)\" = ro ]
        \"$WEALD\" umount a",
    );
}

/// Would catch: ranges that were punched out and count as debt, and a collection that tells another
/// space than the disk got back.
#[test]
fn debt_and_returned_space_are_those_of_the_disk() {
    let ground = Ground::new();
    ground.mount(&[]);
    let on_disk = || -> u64 {
        let blocks =
            "stat -c %b store/segments/* store/meta | awk '{ n += $1 } END { print n * 512 }'";
        ground.sh(blocks).trim().parse().expect("a number")
    };
    ground.sh("for i in $(seq 6); do
            head -c 200000 /dev/urandom > mnt/small$i; head -c 9000000 /dev/urandom > mnt/large$i
            sync mnt; rm mnt/large$i; sync mnt
        done");
    ground.umount();
    let stat = ground.weald(&["volume", "stat", "--json", VOLUME]);
    let stat: Value = serde_json::from_str(&stat).expect("JSON");
    let debt = stat["dead_len"].as_u64().expect("a number");
    assert!(debt <= on_disk(), "{debt} of {}", on_disk());
    let before = on_disk();
    let done = ground.weald(&["store", "gc", "--json", "store"]);
    let done: Value = serde_json::from_str(&done).expect("JSON");
    let freed = done["freed_len"].as_u64().expect("a number");
    // The tables shrink once more when they are closed.
    let gone = before.saturating_sub(on_disk());
    assert!(freed.abs_diff(gone) <= 256 << 10, "{gone}: {done}");
    let unused = done["unused_len"].as_u64().expect("a number");
    assert!(unused <= on_disk(), "{done}");
}

/// Would catch: overwritten parts of blocks whose space no collection returns.
#[test]
fn the_space_of_overwritten_data_comes_back() {
    const LEN: u64 = 8 << 20;
    let ground = Ground::new();
    ground.mount(&[]);
    ground.sh("python3 - <<'END'
import os, random
random.seed(7)
f = os.open('mnt/f', os.O_RDWR | os.O_CREAT)
os.write(f, random.randbytes(8 << 20))
os.fsync(f)
for no in range(2500):
    os.pwrite(f, random.randbytes(4096), random.randrange(2048) * 4096)
    if no % 25 == 0:
        os.fsync(f)
os.close(f)
END
sha256sum < mnt/f > sum");
    ground.umount();
    ground.weald(&["store", "gc", "-q", "store"]);
    let blocks = ground.sh("stat -c %b store/segments/* | awk '{ n += $1 } END { print n * 512 }'");
    let len: u64 = blocks.trim().parse().expect("a number");
    assert!(len <= LEN + LEN / 4, "{len} bytes for a file of {LEN}");
    ground.mount(&[]);
    ground.sh("sha256sum < mnt/f | cmp - sum");
    ground.umount();
    ground.assert_clean();
}

/// Would catch: the data of volumes that is called unused.
#[test]
fn data_of_volumes_is_not_unused() {
    let ground = Ground::new();
    ground.mount(&[]);
    ground.sh("head -c 500000 /dev/urandom > mnt/f");
    ground.umount();
    let info = |ground: &Ground| -> Value {
        let text = ground.weald(&["store", "info", "--json", "store"]);
        serde_json::from_str(&text).expect("JSON")
    };
    let with = info(&ground);
    assert!(with["unused_len"].is_null(), "{with}");
    assert!(with["without_image_len"].as_u64() > Some(400_000), "{with}");
    ground.weald(&["volume", "rm", VOLUME]);
    assert!(info(&ground)["unused_len"].is_u64());
}

/// Would catch: labels as the user typed them, and a metric that is described twice.
#[test]
fn metrics_of_several_volumes_have_one_head_and_canonical_labels() {
    let ground = Ground::new();
    ground.weald(&["volume", "create", "-q", "store:w"]);
    ground.sh("ln -s store link; mkdir deep");
    let typed = [
        vec!["store"],
        vec!["link"],
        vec!["deep/../store:v", "link:w"],
    ];
    let texts = typed.map(|names| {
        let mut words = vec!["volume", "stat", "--prometheus"];
        words.extend(names);
        ground.weald(&words)
    });
    let store = ground.at("store");
    for text in &texts {
        assert_eq!(*text, texts[0]);
        let samples = exposition::samples(text);
        let of_store = samples
            .iter()
            .filter(|sample| sample.name == "weald_store_debt_bytes");
        assert_eq!(of_store.count(), 1, "{text}");
        for name in ["v", "w"] {
            let line = format!(
                "weald_volume_failed{{volume=\"{name}\",store=\"{}\",uuid=\"",
                store.display()
            );
            assert!(text.contains(&line), "{text}");
        }
    }
    // Names that need escapes; a volume that is mounted.
    ground.sh(r#"mkdir 'o"d\d'; cp -a store 'o"d\d/'"#);
    let odd = ground.weald(&["volume", "stat", "--prometheus", r#"o"d\d/store"#]);
    let wanted = ground.at(r#"o"d\d/store"#).display().to_string();
    for sample in exposition::samples(&odd) {
        assert_eq!(sample.labels["store"], wanted);
    }
    let dir = ground.mount(&[]);
    ground.sh("seq 10000 > mnt/f; cat mnt/f > /dev/null");
    exposition::samples(&ground.weald(&["volume", "stat", "--prometheus", VOLUME]));
    let samples = exposition::samples(&ground.weald(&["mounts", "--prometheus"]));
    let is_shown = |label: &String| *label == dir.display().to_string();
    assert!(
        samples
            .iter()
            .any(|sample| sample.labels.values().any(is_shown))
    );
    ground.umount();
    let both = ground.weald(&["volume", "stat", "store:v", "store:w"]);
    assert!(
        both.starts_with("volume") && both.matches("logical").count() == 2,
        "{both}"
    );
}

/// Inodes of `df -i` at a path: all, used, free.
fn inodes(ground: &Ground, path: &str) -> [u64; 3] {
    let said = ground.sh(&format!("df --output=itotal,iused,iavail {path} | tail -1"));
    let numbers: Vec<u64> = said
        .split_whitespace()
        .map(|number| number.parse().expect("a number"))
        .collect();
    numbers.try_into().expect("three numbers")
}

/// Would catch: a number of inodes that never falls, and one that knows nothing of a quota.
#[test]
fn df_counts_inodes_and_knows_quotas() {
    let ground = Ground::new();
    ground.mount(&[]);
    let used = |path| inodes(&ground, path)[1];
    let before = used("mnt");
    ground.sh("cd mnt; mkdir many; touch many/{1..500}; ln many/1 many/link");
    assert_eq!(used("mnt"), before + 501);
    ground.sh("rm -r mnt/many/{1..250} mnt/many/link");
    eventually("removed inodes are gone", || used("mnt") == before + 251);
    // An unlinked file counts as long as it is open, and so does its directory, which the kernel
    // keeps with it.
    let open = File::open(ground.at("mnt/many/300")).expect("open");
    ground.sh("rm -r mnt/many");
    eventually("removed inodes are gone", || used("mnt") == before + 2);
    drop(open);
    eventually("the last one is gone", || used("mnt") == before);
    ground.umount();
    ground.mount(&[]);
    assert_eq!(used("mnt"), before);
    ground.sh(
        "mkdir -p mnt/q/inner; $WEALD volume set --quota-count 100 store:v q
         touch mnt/q/inner/{1..30}",
    );
    assert_eq!(inodes(&ground, "mnt/q"), [100, 31, 69]);
    assert_eq!(inodes(&ground, "mnt/q/inner"), [100, 31, 69]);
    let full = ground.run("touch mnt/q/{1..100}");
    assert!(full.stderr.contains("quota exceeded"), "{}", full.stderr);
    assert_eq!(inodes(&ground, "mnt/q"), [100, 100, 0]);
    ground.sh("rm mnt/q/inner/*");
    eventually("the quota has room", || {
        inodes(&ground, "mnt/q") == [100, 70, 30]
    });
    assert!(inodes(&ground, "mnt")[2] > 1000);
    ground.umount();
    ground.assert_clean();
}

/// Would catch: a failure without its time, and a risk that stands still at 0 while nothing becomes
/// durable.
#[test]
fn a_failed_volume_says_since_when_and_its_risk_grows() {
    let ground = Ground::new();
    ground.sh("mkdir host; truncate -s 200M disk; mkfs.ext4 -q -F disk
        mount -o loop,errors=remount-ro disk host
        \"$WEALD\" store create -q host/s; \"$WEALD\" volume create -q host/s:v; mkdir mnt");
    ground.weald(&["mount", "-o", "commit-interval=3600", "host/s:v", "mnt"]);
    ground.sh("echo x > mnt/f; sync mnt");
    // The file system of the store becomes read-only, as after an error of its disk.
    ground.sh(
        "device=$(findmnt -no SOURCE host); echo 1 > /sys/fs/ext4/${device#/dev/}/trigger_fs_error
         head -c 100000 /dev/urandom > mnt/g || true; ! sync mnt 2> log || exit 1",
    );
    let info = ground.weald(&["volume", "info", "host/s:v"]);
    let line = info
        .lines()
        .find(|line| line.starts_with("read-only since"));
    let line = line.unwrap_or_else(|| panic!("{info}"));
    assert!(line.contains(" UTC: "), "{line}");
    let risk = || -> f64 {
        let stat = ground.weald(&["volume", "stat", "--json", "host/s:v"]);
        let stat: Value = serde_json::from_str(&stat).expect("JSON");
        assert!(stat["failed_at"].as_u64() > Some(1_600_000_000), "{stat}");
        stat["risk_seconds"].as_f64().expect("a number")
    };
    let first = risk();
    weald_testkit::mounts::eventually("a growing risk", || risk() > first.max(0.0));
    ground.sh("\"$WEALD\" umount --lazy mnt; umount -l host");
}

/// Would catch: an image in use without a word by whom.
#[test]
fn an_image_in_use_names_its_user() {
    let ground = Ground::new();
    ground.sh(
        "mkdir tree im; echo x > tree/f; \"$WEALD\" build -q tree img.weald
         \"$WEALD\" store import -q store img.weald",
    );
    ground.weald(&["mount", "--isolated", "store:img", "im"]);
    let dir = ground.at("im");
    ground.refused(
        &["store", "rm", "store:img"],
        &[
            "is in use by process",
            "(weald)",
            &format!("mounted on {}", dir.display()),
        ],
    );
    ground.sh("\"$WEALD\" umount im; \"$WEALD\" store rm store:img");
}
