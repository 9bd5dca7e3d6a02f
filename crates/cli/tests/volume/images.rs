//! Images of volumes, and volumes of images.

use super::*;

/// Would catch: an attribute or a byte that a seal changes, a block of data that it copies, and an
/// image that needs its volume.
#[test]
fn a_sealed_volume_is_an_image_that_shares_its_blocks() {
    let ground = Ground::new();
    ground.sh(TREE);
    ground.mount(&[]);
    ground.sh(
        "rsync -aHAXS --numeric-ids tree/ mnt/; dd if=tree/noise of=mnt/noise bs=1000 \
         seek=100 count=3 conv=notrunc 2> log; dd if=tree/noise of=tree/noise bs=1000 seek=100 \
         count=3 conv=notrunc 2> log; touch -r tree/bin tree/noise mnt/noise",
    );
    ground.umount();
    let sealed = ground.weald(&["volume", "seal", "--json", VOLUME, "--name", "i"]);
    let sealed: Value = serde_json::from_str(&sealed).expect("JSON");
    assert!(sealed["new_len"].as_u64() < Some(20_000), "{sealed}");
    assert!(sealed["file_len"].as_u64() > Some(3_000_000), "{sealed}");
    ground.weald(&["volume", "seal", "-q", VOLUME, "--image", "i.weald"]);
    ground.weald(&["check", "store:i"]);
    ground.weald(&["check", "i.weald"]);
    ground.weald(&["diff", "store:i", "i.weald"]);
    ground.weald(&["build", "-q", "tree", "tree.weald"]);
    ground.weald(&["diff", "store:i", "tree.weald"]);
    ground.refused(
        &["volume", "seal", VOLUME, "--name", "i"],
        &["store:i", "exists"],
    );
    ground.refused(
        &["volume", "seal", VOLUME, "--name", "v"],
        &["store:v", "exists"],
    );
    ground.refused(
        &["volume", "seal", VOLUME, "--image", "i.weald"],
        &["--force"],
    );
    ground.refused(
        &["volume", "seal", "store:i", "--name", "j"],
        &["names an image"],
    );
    ground.weald(&["volume", "seal", "-qf", VOLUME, "--image", "i.weald"]);
    ground.assert_clean();
    ground.weald(&["volume", "rm", VOLUME]);
    ground.weald(&["store", "gc", "-q", "store"]);
    ground.weald(&["check", "store:i"]);
    ground.sh("$WEALD extract -q store:i out");
    assert_same(&ground.at("tree"), &ground.at("out"), &EXTRACTED);
    ground.weald(&["store", "rm", "store:i"]);
    ground.weald(&["store", "gc", "-q", "store"]);
    assert_eq!(ground.sh("ls store/segments | wc -l"), "0\n");
}

/// Would catch: bytes of removed files that leave the store inside the blocks of others.
#[test]
fn an_image_file_has_no_data_of_removed_files() {
    let ground = Ground::new();
    ground.weald(&["volume", "create", "-q", "--compress", "none", "store:w"]);
    let dir = ground.0.dir("mnt");
    ground.0.mount(Path::new("store:w"), &dir, &[]);
    ground.sh(
        "for i in $(seq 20); do echo \"kept $i\" > mnt/$i; echo a secret number $i > mnt/s$i
         done; sync mnt; rm mnt/s*",
    );
    ground.umount();
    ground.weald(&["volume", "seal", "-q", "store:w", "--image", "w.weald"]);
    ground.weald(&["check", "w.weald"]);
    assert_eq!(ground.weald(&["cat", "w.weald", "7"]), "kept 7\n");
    let image = fs::read(ground.at("w.weald")).expect("read");
    assert!(!image.windows(8).any(|bytes| bytes == b"a secret"));
}

/// Would catch: an attribute, a link, a hole or a byte that changes on the way from an image into a
/// volume and back, a block that is copied, and a volume that needs its image.
#[test]
fn a_volume_of_an_image_has_its_files() {
    let ground = Ground::new();
    ground.sh(TREE);
    ground.sh(
        "chmod 3751 tree; chown 7:8 tree; setfattr -n user.top -v root tree
        touch -d '2001-02-03 04:05:06.7 UTC' tree
        $WEALD store add -q store tree --name i; $WEALD build -q tree i.weald",
    );
    let create = |name: &str, from: &str| {
        let made = ground.weald(&["volume", "create", "--json", name, "--from", from]);
        serde_json::from_str::<Value>(&made).expect("JSON")
    };
    let made = create("store:a", "store:i");
    assert!(made["shared_len"].as_u64() > Some(3_000_000), "{made}");
    assert_eq!(made["copied_len"], 0);
    let stat = ground.weald(&["volume", "stat", "--json", "store:a"]);
    let stat: Value = serde_json::from_str(&stat).expect("JSON");
    let made = create("store:b", "i.weald");
    assert!(made["copied_len"].as_u64() > Some(3_000_000), "{made}");
    for name in ["a", "b"] {
        ground.weald(&[
            "volume",
            "seal",
            "-q",
            &format!("store:{name}"),
            "--name",
            &format!("s{name}"),
        ]);
        ground.weald(&["diff", "store:i", &format!("store:s{name}")]);
        let said = ground.weald(&["volume", "check", "--data", &format!("store:{name}")]);
        assert!(said.starts_with("clean: "), "{said}");
    }
    let again = create("store:c", "store:sa");
    assert_eq!(
        (&again["copied_len"], &again["shared_len"]),
        (&0.into(), &stat["logical_len"])
    );
    ground.weald(&["store", "rm", "store:i"]);
    ground.weald(&["store", "rm", "store:sa"]);
    ground.weald(&["store", "gc", "-q", "store"]);
    let dir = ground.0.dir("mnt");
    ground.0.mount(Path::new("store:a"), &dir, &[]);
    assert_same(&ground.at("tree"), &dir, &MOUNTED);
    ground.sh(
        "echo more >> mnt/bin/tool; cat tree/bin/tool > tool; echo more >> tool
        cmp tool mnt/bin/tool; stat -c %b mnt/sparse > blocks",
    );
    let blocks = fs::read_to_string(ground.at("blocks")).expect("read");
    assert!(
        blocks.trim().parse::<u64>().expect("a number") < 200,
        "{blocks}"
    );
    ground.umount();
    ground.weald(&["check", "store:sb"]);
}

/// Would catch: a volume that is listed, or space that stays, after an import failed.
#[test]
fn a_failed_import_leaves_nothing() {
    let ground = Ground::new();
    ground.sh(
        "mkdir -p tree/sub; head -c 3000000 /dev/urandom > tree/noise; echo a > tree/sub/Twin
        echo b > tree/sub/twin; $WEALD build -q tree i.weald; $WEALD volume rm store:v
        cp i.weald bad.weald
        printf damaged! | dd of=bad.weald bs=1 seek=1500000 conv=notrunc 2> log
        head -c 100000 i.weald > short.weald; echo none > none.weald",
    );
    let refused = |args: &[&str], words: &[&str]| {
        let all = [&["volume", "create", VOLUME], args].concat();
        ground.refused(&all, words);
        assert_eq!(ground.weald(&["volume", "ls", "store"]), "");
        ground.weald(&["store", "gc", "-q", "store"]);
        assert_eq!(
            ground.sh("ls store/segments store/images store/volumes | grep -c 0 || true"),
            "0\n"
        );
    };
    refused(
        &["--strict", "--from", "bad.weald"],
        &["bad.weald", "noise", "damaged"],
    );
    refused(&["--from", "short.weald"], &["short.weald", "truncated"]);
    refused(&["--from", "none.weald"], &["none.weald"]);
    refused(
        &["--from", "missing.weald"],
        &["missing.weald", "No such file"],
    );
    refused(&["--from", "store:missing"], &["store:missing"]);
    refused(
        &["--from", "i.weald", "--case-insensitive"],
        &["/sub/twin", "--case-insensitive"],
    );
    ground.weald(&["volume", "create", "-q", VOLUME]);
    ground.refused(
        &["volume", "create", VOLUME, "--from", "i.weald"],
        &["is there already"],
    );
    ground.weald(&["store", "import", "-q", "store", "i.weald"]);
    ground.refused(
        &["volume", "create", "store:i", "--from", "i.weald"],
        &["an image of this name"],
    );
    ground.sh("for i in $(seq 20); do
        timeout --foreground -s KILL 0.0$i $WEALD volume create -q store:k --from i.weald ||
        true
        if $WEALD volume ls store | grep -q k; then $WEALD volume check -q --data store:k
        $WEALD volume rm store:k; fi; $WEALD volume check -q store:v; done; $WEALD store rm store:i
        $WEALD store gc -q store; test $(ls store/segments | wc -l) = 0
        $WEALD store check -q store");
}
