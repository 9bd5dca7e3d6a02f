//! Properties and quotas of directories.

use super::*;

/// Sets properties of a directory of the volume.
fn set(ground: &Ground, args: &[&str]) {
    ground.weald(&[&["volume", "set", VOLUME], args].concat());
}

/// Checks that `volume set` refuses `args` with these words.
fn refused_set(ground: &Ground, args: &[&str], words: &[&str]) {
    ground.refused(&[&["volume", "set", VOLUME], args].concat(), words);
}

/// The properties of `path` in `volume`.
fn properties(ground: &Ground, volume: &str, path: &str) -> Value {
    let said = ground.weald(&["volume", "info", "--json", volume, path]);
    serde_json::from_str(&said).expect("JSON")
}

/// Would catch: a property out of its range that a volume accepts.
#[test]
fn impossible_properties_are_refused() {
    let ground = Ground::new();
    let refused = |args: &[&str], words: &[&str]| refused_set(&ground, args, words);
    refused(&[".", "--chunk", "1M"], &["128.0 KiB", "cannot be longer"]);
    for (args, word) in [
        (&[".", "--chunk", "3"][..], "power of two"),
        (&["."], "--quota"),
    ] {
        let output = ground.0.weald([&["volume", "set", VOLUME], args].concat());
        assert_eq!(output.code, Some(2));
        assert!(output.stderr.contains(word), "{}", output.stderr);
    }
    let output = ground
        .0
        .weald(["volume", "set", VOLUME, ".", "--chunking", "some"]);
    assert_eq!(output.code, Some(2));
    assert!(
        output.stderr.contains("fixed, content"),
        "{}",
        output.stderr
    );
    refused(&["missing", "--dedup", "off"], &["missing: no such file"]);
    refused(&["../x", "--dedup", "off"], &["../x", "without '..'"]);
}

/// Checks on the mount that a quota is kept and that users cannot lift it.
fn check_quota_on_the_mount(ground: &Ground) {
    let full = ground.run("head -c 800000 /dev/urandom > mnt/a/big");
    assert!(full.stderr.contains("quota exceeded"), "{}", full.stderr);
    ground.sh(
        "rm mnt/a/big; df --output=size,used -B1 mnt/a | tail -1 > df
        chown 1000 mnt/a
        as='setpriv --reuid 1000 --clear-groups'; for name in user trusted; do
        ! $as setfattr -n $name.weald.quota -v 1T mnt/a 2> log || exit 1
        grep -q 'not permitted' log
        ! $as setfattr -x $name.weald.quota mnt/a 2> log || exit 1; done
        $as getfattr -n user.weald.quota mnt/a | grep -q 1048576
        setfattr -n trusted.weald.quota -v 2M mnt/a; setfattr -n trusted.weald.quota -v 1M mnt/a
         seq 10 > mnt/outside; mv mnt/outside mnt/a/moved
        test ! -e mnt/outside; test \"$(tail -1 mnt/a/moved)\" = 10
        ! python3 -c 'import os; os.rename(\"mnt/a/moved\", \"mnt/x\")' 2> log || exit 1
        grep -q 'cross-device' log",
    );
    let df = fs::read_to_string(ground.at("df")).expect("read");
    assert!(df.trim().starts_with("1048576 "), "{df}");
}

/// Checks that an image keeps the properties of the directory `a`, which are `before`.
fn check_image_of_properties(ground: &Ground, before: &Value) {
    ground.weald(&["volume", "seal", "-q", VOLUME, "--name", "i"]);
    ground.weald(&["volume", "create", "-q", "store:w", "--from", "store:i"]);
    assert_eq!(properties(ground, "store:w", "a"), *before);
    ground.weald(&["volume", "seal", "-q", "store:w", "--name", "j"]);
    ground.weald(&["diff", "store:i", "store:j"]);
}

/// Would catch: a property that is set on the mount and not in the volume or the other way round, a
/// quota that users lift, and a limit that the mount does not keep.
#[test]
fn properties_and_quotas_hold_with_and_without_a_mount() {
    let ground = Ground::new();
    let refused = |args: &[&str], words: &[&str]| refused_set(&ground, args, words);
    let of_a = || properties(&ground, VOLUME, "a");
    set(&ground, &["/", "--compress", "zstd:9", "--chunk", "16K"]);
    let dir = ground.mount(&[]);
    ground.sh(
        "mkdir mnt/a mnt/a/b; seq 100000 > mnt/a/b/text; chmod 777 mnt/a; ln -s a mnt/link
        getfattr -n user.weald.compress mnt/a/b/text | grep -q zstd:9
        setfattr -n user.weald.dedup -v off mnt/a
        ! setfattr -n user.weald.chunk -v 3 mnt/a 2> log || exit 1; grep -q 'Invalid argument' log
        ! setfattr -n user.weald.other -v 3 mnt/a 2> log || exit 1; grep -q 'Invalid argument' log",
    );
    let shown = of_a();
    assert_eq!(
        (&shown["dedup"], &shown["chunk"]),
        (&"off".into(), &16384.into()),
        "{shown}"
    );
    refused(&["a", "--quota", "100K"], &["a: more is used already"]);
    refused(
        &["a/b/text", "--quota", "1M"],
        &["a/b/text: is no directory"],
    );
    refused(&["link", "--dedup", "on"], &["link: a symlink"]);
    set(&ground, &["a", "--quota", "1M", "--quota-count", "5"]);
    check_quota_on_the_mount(&ground);
    ground.sh("sync mnt");
    let before = of_a();
    ground.kill();
    assert_eq!(of_a(), before);
    assert_eq!(
        (&before["used_count"], &before["quota"]),
        (&3.into(), &(1 << 20).into())
    );
    ground.assert_clean();
    check_image_of_properties(&ground, &before);
    let defaults = "a --quota none --quota-count none --compress default";
    set(&ground, &defaults.split(' ').collect::<Vec<_>>());
    let shown = of_a();
    assert_eq!(
        (&shown["used"], &shown["compress"]),
        (&Value::Null, &Value::Null),
        "{shown}"
    );
    let text = ground.weald(&["volume", "info", VOLUME, "a"]);
    assert!(
        text.contains("\ncompress            default\nchunk               16.0 KiB\n"),
        "{text}"
    );
    ground.mount(&[]);
    ground.sh("head -c 3000000 /dev/urandom > mnt/a/big; mv mnt/a/moved mnt/x");
    assert!(dir.join("x").exists());
    ground.umount();
    ground.assert_clean();
}
