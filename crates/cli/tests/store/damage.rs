//! Damage: how it is found and reported, and what salvage restores. Refused commands must change
//! nothing.

use crate::ground::Ground;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weald_store::Store;
use weald_store::disk::HostDisk;
use weald_testkit::Rng;
use weald_vfs::{Ino, NewStat, WritableFs};
use weald_volume::{OpenOptions, Volume};

fn segments(ground: &Ground) -> Vec<PathBuf> {
    let list = fs::read_dir(ground.at("store/segments")).expect("list");
    let mut paths: Vec<PathBuf> = list.map(|entry| entry.expect("entry").path()).collect();
    paths.sort();
    paths
}

/// Tree digest of the file `image`.
fn tree_digest(ground: &Ground, image: &str) -> String {
    let report = ground.json(&["info", "--json", image]).remove(0);
    report["tree_digest"].as_str().expect("a digest").to_owned()
}

/// Would catch: a salvage that needs the metadata although maps and segments have all data, and a
/// restored image that differs.
#[test]
fn salvage_brings_every_image_back() {
    let ground = Ground::with_store();
    for loss in [
        "rm store/meta",
        ": > store/meta",
        "head -c 5000 /dev/urandom > store/meta",
        "rm store/meta store/lock",
    ] {
        ground.sh(loss);
        // Readers do not need the metadata.
        ground.weald(&["cat", "store:v1", "bin/tool"]);
        ground.refused(&["store", "gc", "store"], &["weald store salvage"]);
        let report = ground
            .json(&["store", "salvage", "--json", "store"])
            .remove(0);
        assert_eq!(report["images"], serde_json::json!(["v1", "v2"]), "{loss}");
        assert_eq!(report["damaged"], serde_json::json!([]), "{loss}");
        ground.assert_clean("store");
        for name in ["v1", "v2"] {
            let image = format!("store:{name}");
            assert_eq!(
                tree_digest(&ground, &image),
                tree_digest(&ground, &format!("{name}.weald"))
            );
            ground.assert_exported("store", name);
        }
        ground.weald(&["store", "rm", "store:v2"]);
        ground.weald(&["store", "gc", "-q", "store"]);
        ground.weald(&["store", "import", "-q", "store", "v2.weald"]);
    }
}

/// Would catch: tables from a backup, older than maps and segments, by which a command gives away
/// what images need, or that salvage cannot put right.
#[test]
fn older_tables_lose_nothing() {
    let ground = Ground::with_images();
    ground.weald(&["store", "create", "-q", "--segment-size", "128K", "store"]);
    ground.weald(&["store", "import", "-q", "store", "v1.weald", "v2.weald"]);
    ground.sh("cp store/meta older");
    // Blocks move and segments go, and an image of the same name is another one.
    ground.weald(&["store", "rm", "store:v1"]);
    ground.weald(&["store", "gc", "-q", "--copy-below", "100", "store"]);
    ground.weald(&["store", "import", "-q", "store", "v1.weald"]);
    ground.sh("cp older store/meta");
    let older = "store/meta: is older than the rest of the store";
    ground.refused(&["store", "check", "store"], &[older]);
    ground.refused(
        &["store", "gc", "-q", "--copy-below", "100", "store"],
        &[older],
    );
    ground.refused(
        &["store", "import", "-q", "store", "v2.weald", "--name", "v3"],
        &[older],
    );
    ground.weald(&["store", "salvage", "store"]);
    ground.assert_clean("store");
    for name in ["v1", "v2"] {
        ground.assert_exported("store", name);
    }
}

/// Would catch: metadata whose damage crashes a command, hangs it, or is not said to be damage.
#[test]
fn damaged_metadata_is_an_error_or_is_found() {
    let ground = Ground::with_store();
    let whole = fs::read(ground.at("store/meta")).expect("read");
    let mut rng = Rng::from_environment();
    let (mut refused_count, mut panicked_count) = (0, 0);
    for round in 0..60 {
        let mut bytes = whole.clone();
        let page = rng.below(bytes.len() as u64 / 4096) as usize * 4096;
        match round % 3 {
            0 => bytes.truncate(page + 100),
            1 => bytes[page..page + 4096].copy_from_slice(&rng.bytes(4096)),
            _ => bytes[page..page + 4096].fill(0xff),
        }
        fs::write(ground.at("store/meta"), bytes).expect("write");
        let report = ground.0.weald(["store", "check", "store"]);
        assert!(
            report.code.is_some_and(|code| code <= 2),
            "{}",
            report.stderr
        );
        assert!(!report.stderr.contains("panicked"), "{}", report.stderr);
        if report.code == Some(2) {
            let has_way = report.stderr.contains("weald store salvage");
            assert!(has_way, "round {round}: {}", report.stderr);
            refused_count += 1;
            panicked_count += u64::from(report.stderr.contains("makes no sense"));
        }
    }
    println!("{refused_count} of 60 damaged files refused, {panicked_count} by a caught panic");
    assert!(refused_count > 20, "{refused_count}");
    ground.weald(&["store", "salvage", "store"]);
    ground.assert_clean("store");
}

/// Would catch: damage that no check finds, that is reported for the wrong image, or that a reader
/// serves.
#[test]
fn damaged_bytes_are_found_and_refused() {
    let ground = Ground::with_store();
    let noise = fs::read(ground.at("v1/noise")).expect("read");
    let segment = segments(&ground).remove(0);
    let bytes = fs::read(&segment).expect("read");
    let needle = &noise[300_000..300_016];
    let at = bytes.windows(16).position(|bytes| bytes == needle);
    let at = at.expect("noise is stored as it is") as u64;
    let file = fs::OpenOptions::new().write(true).open(&segment);
    let file = file.expect("open");
    file.write_all_at(&[0x5a; 16], at).expect("write");
    let clean = ground.weald(&["store", "check", "store"]);
    assert!(clean.contains("contents were not read"), "{clean}");
    let report = ground
        .0
        .weald(["store", "check", "--data", "store"])
        .expect(1)
        .text();
    for name in ["v1", "v2"] {
        let line = format!("damaged: {name}: segments/0000000000000001, byte ");
        assert!(report.contains(&line), "{report}");
    }
    assert!(report.contains("not clean: 2 findings"), "{report}");
    let report = ground
        .0
        .weald(["store", "check", "--data", "--json", "store"]);
    let report = crate::ground::lines(&report.expect(1).text());
    assert_eq!(report[0]["image"], "v1");
    assert_eq!(report[2]["clean"], false);
    // The image knows which of its files is damaged.
    let report = ground.0.weald(["check", "store:v1"]).expect(1).text();
    assert!(report.contains("damaged: noise: "), "{report}");
    let read = ground.0.weald(["cat", "store:v1", "noise"]);
    assert_ne!(read.code, Some(0));
    assert!(
        read.stderr.contains("the image is damaged"),
        "{}",
        read.stderr
    );
    assert!(!read.stdout.windows(16).any(|bytes| bytes == [0x5a; 16]));
    ground.weald(&["cat", "store:v1", "bin/tool"]);
    // Repair: import the same image again; every existing block is verified before it counts as a
    // duplicate.
    ground.weald(&["store", "rm", "store:v1", "store:v2"]);
    ground.weald(&[
        "store",
        "import",
        "-q",
        "--verify-duplicates",
        "store",
        "v1.weald",
        "v2.weald",
    ]);
    ground.weald(&["store", "gc", "-q", "store"]);
    ground.assert_clean("store");
    ground.assert_exported("store", "v1");
}

/// Would catch: a lost or shortened segment that damages other images, or that is not found.
#[test]
fn lost_segments_are_told_and_salvaged_around() {
    let ground = Ground::with_images();
    ground.weald(&["store", "create", "-q", "--segment-size", "64K", "store"]);
    ground.sh("mkdir apart && seq 5000 > apart/numbers && $WEALD build -q apart apart.weald");
    ground.weald(&[
        "store",
        "import",
        "-q",
        "store",
        "apart.weald",
        "v1.weald",
        "v2.weald",
    ]);
    ground.sh("cp -a store whole");
    for (loss, word) in [
        ("rm store/segments/$last", "is missing"),
        ("truncate -s 100 store/segments/$last", "were committed"),
    ] {
        ground.sh("rm -rf store && cp -a whole store");
        // Only v2 has data in the last segment.
        ground.sh(&format!("last=$(ls store/segments | tail -n 1); {loss}"));
        let report = ground.0.weald(["store", "check", "store"]).expect(1).text();
        assert!(
            report.contains("damaged: v2: segments/") && report.contains(word),
            "{report}"
        );
        assert!(
            !report.contains("damaged: v1") && !report.contains("damaged: apart"),
            "{report}"
        );
        ground.assert_exported("store", "v1");
        let read = ground.0.weald(["check", "store:v2"]);
        assert_ne!(read.code, Some(0), "{}", read.text());
        let report = ground
            .0
            .weald(["store", "salvage", "store"])
            .expect(1)
            .text();
        assert!(report.contains("damaged: v2: "), "{report}");
        assert!(
            report.contains("2 images are complete, 1 are damaged"),
            "{report}"
        );
        // What lies elsewhere can be read, and the list names the rest by path.
        assert!(report.contains("damaged: v2: lost: "), "{report}");
        let report = ground.0.weald(["store", "check", "store"]).expect(1).text();
        assert!(!report.contains("damaged: v1"), "{report}");
        ground.assert_exported("store", "v1");
        // A writer opens the store. An import stores lost blocks again.
        ground.weald(&["store", "rm", "store:v2"]);
        let import = [
            "store",
            "import",
            "-q",
            "--verify-duplicates",
            "store",
            "v2.weald",
        ];
        ground.weald(&import);
        ground.assert_clean("store");
        ground.assert_exported("store", "v2");
    }
}

/// Arguments of `store` with invalid input, and the words of each refusal.
const BAD_INPUT: &[(&[&str], &[&str])] = &[
    (&["import", "store", "v1.weald"], &["store:v1", "rm"]),
    (
        &["import", "store", "cut.weald"],
        &["cut.weald", "truncated"],
    ),
    (&["import", "store", "bad.weald"], &["bad.weald"]),
    (&["import", "store", "text"], &["text: not a Weald image"]),
    (
        &["import", "store", "v1"],
        &["v1: a directory, not a Weald image"],
    ),
    (&["import", "store", "store"], &["store: a store of images"]),
    (&["import", "store", "gone"], &["gone: No such file"]),
    (&["import", "foreign", "v1.weald"], &["foreign"]),
    (
        &["import", "store", "v1.weald", "--name", "../x"],
        &["name", "'/'"],
    ),
    (&["import", "store", "v1.weald", "--name", "a/b"], &["name"]),
    (
        &["import", "store", "v1.weald", "--name", ".hidden"],
        &["name"],
    ),
    (&["import", "store", "v1.weald", "--name", ""], &["name"]),
    (
        &["import", "store", "v1.weald", "v2.weald", "--name", "x"],
        &["one by one"],
    ),
    (
        &["create", "store:x"],
        &["store:x", "weald store add", "weald volume create"],
    ),
    (&["rm", "store:../meta"], &["name"]),
    (&["rm", "store:v1", "store:gone"], &["no such image"]),
    (
        &["export", "store:v1", "v2.weald"],
        &["--force replaces it"],
    ),
    (&["export", "store:v1", "gone/file"], &["gone"]),
    (&["ls", "foreign"], &["foreign"]),
    (&["gc", "foreign"], &["foreign"]),
];

/// Would catch: invalid input that is accepted, and a refused command that leaves files.
#[test]
fn bad_input_changes_nothing() {
    let ground = Ground::with_store();
    ground.sh("head -c 9000 v1.weald > cut.weald; cp v1.weald bad.weald
        printf 12345678 | dd of=bad.weald bs=1 seek=5000 conv=notrunc status=none
        echo text > text; mkdir -p foreign/images foreign/segments; echo x > foreign/store");
    let before = ground.contents("store");
    for (args, words) in BAD_INPUT {
        ground.refused(&[&["store"], *args].concat(), words);
    }
    let other = "1".repeat(64);
    ground.refused(
        &["export", "oci", "--config", "text", "v1.weald", "layout:x"],
        &["text: configuration", "JSON object"],
    );
    ground.refused(
        &["ls", "--digest", &other, "store:v1"],
        &["image digest: expected"],
    );
    // The space of the damaged image is freed; the lock file names the last writer.
    ground.weald(&["store", "gc", "-q", "store"]);
    ground.assert_clean("store");
    for name in ["v1", "v2"] {
        ground.assert_exported("store", name);
    }
    let kept = |files: Vec<(PathBuf, Vec<u8>)>| -> Vec<(PathBuf, Vec<u8>)> {
        let is_kept = |path: &PathBuf| {
            path.ends_with("store/store") || {
                path.parent().is_some_and(|dir| dir.ends_with("images"))
            }
        };
        files
            .into_iter()
            .filter(|(path, _)| is_kept(path))
            .collect()
    };
    assert!(kept(ground.contents("store")) == kept(before));
}

/// Would catch: an old program that changes a store of a newer version.
#[test]
fn a_newer_store_is_refused() {
    let ground = Ground::with_store();
    let whole = fs::read(ground.at("store/store")).expect("read");
    for (at, word) in [(8, "version"), (48, "feature")] {
        let mut bytes = whole.clone();
        bytes[at] = 0x40;
        let checksum = blake3::hash(&bytes[..80]);
        bytes[80..96].copy_from_slice(&checksum.as_bytes()[..16]);
        fs::write(ground.at("store/store"), &bytes).expect("write");
        let before = ground.contents("store");
        for args in [
            &["store", "ls", "store"][..],
            &["store", "import", "store", "v1.weald", "--name", "x"],
            &["store", "gc", "store"],
            &["store", "check", "store"],
            &["store", "salvage", "store"],
            &["ls", "store:v1"],
            &["mount", "store:v1", "v1"],
        ] {
            ground.refused(args, &["store", word]);
        }
        assert!(ground.contents("store") == before);
    }
}

/// Would catch: one damaged map that hides all images, and a message about it that leads nowhere.
#[test]
fn a_damaged_map_hides_its_image_alone() {
    let ground = Ground::with_store();
    let map = ground.at("store/images/v1");
    let file = fs::OpenOptions::new().write(true).open(&map);
    let file = file.expect("open");
    file.write_all_at(&[0x5a; 16], 500).expect("write");
    for command in ["ls", "info"] {
        let said = ground.0.weald(["store", command, "store"]).expect(1);
        let way = "store:v1: the map of this image is damaged";
        assert!(said.stderr.contains(way), "{}", said.stderr);
        assert!(said.stderr.contains("weald store salvage store"));
        assert_eq!(said.text().contains("  v2\n"), command == "ls");
    }
    // Blocks that only the damaged image has are no defects of their own.
    let report = ground.0.weald(["store", "check", "store"]).expect(1).text();
    assert!(report.contains("not clean: 1 findings"), "{report}");
    ground.refused(&["store", "rm", "store:v1"], &["weald store salvage"]);
    ground.0.weald(["store", "salvage", "store"]).expect(1);
    ground.assert_clean("store");
    ground.assert_exported("store", "v2");
    ground.weald(&["store", "import", "store", "v1.weald"]);
    ground.assert_exported("store", "v1");
}

/// Would catch: an incomplete image that is reported as success because the reader of the pipe has
/// ended, or because the disk is full.
#[test]
fn an_image_whose_reader_ended_is_an_error() {
    let ground = Ground::with_store();
    let commands = [
        "store export store:v1 -",
        "export composefs v1.weald --image -",
    ];
    for command in commands {
        let script = format!("exec 9> >(true); wait $!; $WEALD {command} >&9 || echo $?");
        assert_eq!(ground.sh(&script), "2\n", "{command}");
    }
    ground.sh(
        "! $WEALD store export store:v1 - 2>said >/dev/full || exit 1
    grep -q 'No space left' said",
    );
}

/// Would catch: damage of the log of a volume that a check passes, or that it reports without the
/// path, the way out or the status.
#[test]
fn damage_of_the_log_of_a_volume_is_found() {
    let ground = Ground::with_store();
    ground.weald(&["volume", "create", "store:home"]);
    let disk = Arc::new(HostDisk::new(&ground.at("store")));
    let store = Store::open(disk).expect("the store");
    let options = OpenOptions {
        syncs_without_log: 0,
        background: false,
        ..OpenOptions::default()
    };
    let volume = Volume::open(&store, "home", options).expect("the volume");
    for mode in 0..4 {
        let new = NewStat {
            permissions: Some(0o700 + mode),
            ..NewStat::default()
        };
        volume.set_stat(Ino::ROOT, &new, 1).expect("a change");
        volume.sync().expect("a sync");
    }
    // As a crash leaves it: the first sync committed, and the others are in the log.
    ground.sh("cp -a store after; cp -a store torn");
    drop((volume, store));
    let report = ground.json(&["store", "check", "--json", "after"]);
    assert_eq!(report[0]["log_record_count"], 3);
    assert_eq!(report[0]["clean"], true);
    let path = ground.at("after/volumes/.00000001.log");
    let log = fs::OpenOptions::new().write(true).open(path).expect("log");
    log.write_all_at(&[0; 16], 4096 + 4096).expect("damage");
    let check = ground.0.weald(["store", "check", "after"]).expect(1).text();
    for word in ["damaged: home", "volumes/.00000001.log", "nothing is lost"] {
        assert!(check.contains(word), "{word}: {check}");
    }
    log.write_all_at(&[0; 4096], 4096 + 4096)
        .expect("damage of a page");
    let check = ground.0.weald(["store", "check", "after"]).expect(1).text();
    for word in ["damaged: home", "volumes/.00000001.log", "log=drop"] {
        assert!(check.contains(word), "{word}: {check}");
    }
    let check = ["volume", "check", "after:home"];
    assert!(ground.0.weald(check).expect(1).text().contains("log=drop"));
    let report = ground.0.weald(["store", "check", "--json", "after"]);
    let report = report.expect(1).text();
    assert!(report.contains("\"log_record_count\":1"), "{report}");
    // Nobody was told of the last record, if it is torn.
    ground.sh("rm -r after; mv torn after");
    let path = ground.at("after/volumes/.00000001.log");
    let log = fs::OpenOptions::new().write(true).open(path).expect("log");
    log.write_all_at(&[0; 4096], 3 * 4096).expect("a torn end");
    let report = ground.json(&["store", "check", "--json", "after"]);
    assert_eq!(report[0]["log_record_count"], 2);
    assert_eq!(report[0]["clean"], true);
}

/// Would catch: a store that damage of the 96 bytes of `store` makes unreadable, a repair that is
/// silent or makes another file, and readers that a removal does not see meanwhile.
#[test]
fn either_copy_of_the_superblock_is_enough() {
    let ground = Ground::with_store();
    ground.sh("$WEALD volume create -q store:v; mkdir m; cp store/store whole");
    let dir = ground.0.dir("mnt");
    for file in ["store", "store.copy"] {
        let bytes_at = |at: usize| {
            let dd = format!("dd of=store/{file} bs=1 seek={at} conv=notrunc status=none");
            format!("head -c 16 /dev/urandom | {dd}")
        };
        let mut damages: Vec<String> = (0..6).map(|n| bytes_at(n * 16)).collect();
        damages.extend(["rm ", ": > ", "cat whole >> "].map(|how| format!("{how}store/{file}")));
        for damage in damages {
            ground.sh(&damage);
            // Readers work, and change nothing.
            ground.assert_exported("store", "v1");
            ground.weald(&["store", "ls", "store"]);
            ground.0.mount(Path::new("store:v2"), &dir, &[]);
            let inode = "stat -c %i store/store 2>/dev/null || true";
            let before = ground.sh(inode);
            let said = ground
                .0
                .weald(["store", "gc", "-q", "store"])
                .expect(0)
                .stderr;
            assert_eq!(
                said.lines().count(),
                usize::from(said.contains("made again from")),
                "{said}"
            );
            assert!(
                damage.starts_with("rm store/store.copy") || said.contains("made again from"),
                "{damage}: {said}"
            );
            assert!(
                before.is_empty() || ground.sh(inode) == before,
                "{damage}: another file"
            );
            ground.refused(&["store", "rm", "store:v2"], &["store:v2: is in use"]);
            ground.0.umount(&dir);
            ground.sh("cmp whole store/store; cmp whole store/store.copy");
            ground.assert_clean("store");
        }
    }
    ground.sh("for f in store store.copy; do : > store/$f; done");
    for args in [
        &["store", "ls", "store"][..],
        &["store", "gc", "store"],
        &["check", "store:v1"],
        &["store", "salvage", "store"],
    ] {
        ground.refused(
            args,
            &[
                "the store cannot be opened",
                "'store'",
                "'store.copy'",
                "backup",
            ],
        );
    }
}

/// Would catch: something else than a file in the place of a segment, as a disk that fails leaves
/// it, that takes other images with it: a check that ends there, a writer that does not open, an
/// image that continues the damaged one, a collection or a salvage that fails.
#[test]
fn what_is_no_segment_costs_what_lay_in_it() {
    let ground = Ground::with_store();
    let said = ground.sh(
        "mkdir whole broken later; for name in whole broken later; do
            head -c 3000000 /dev/urandom >$name/data; done
        $WEALD store create -q --segment-size 1M own
        $WEALD store add -q own whole --name i1; $WEALD store add -q own broken --name i2
        last=own/segments/$(ls own/segments | tail -n 1); mv $last kept; mkdir $last
        $WEALD store check own >checked && echo clean
        grep -c 'damaged: i2: segments/.*something else than a file is here' checked
        ! grep -q 'damaged: i1' checked || exit 1
        $WEALD store add -q own later --name i3 2>added || echo $?
        grep -c 'i2: damaged, and not continued' added
        $WEALD check -q own:i1; $WEALD check -q own:i3; $WEALD extract -q own:i3 out
        cmp later/data out/data; $WEALD cat own:i2 data >/dev/null 2>read && echo read
        $WEALD store gc -q own; $WEALD store salvage own >salvaged 2>&1 || echo $?
        $WEALD check -q own:i1; $WEALD check -q own:i3
        rmdir $last; mv kept $last; $WEALD check -q own:i2; $WEALD store check -q --data own
        $WEALD extract -q own:i2 back; cmp broken/data back/data",
    );
    let lines: Vec<&str> = said.lines().collect();
    let [damaged, added, named, salvaged] = lines.as_slice() else {
        panic!("{said}");
    };
    assert!(
        damaged.parse::<u32>().is_ok_and(|count| count > 0),
        "{said}"
    );
    assert_eq!((*added, *named, *salvaged), ("1", "1", "1"), "{said}");
}

/// Would catch: a block in the middle of an image that cannot be read, and ends the addition of an
/// image that would continue it; and a new image that has the damaged block, too.
#[test]
fn an_image_that_turns_out_to_be_damaged_is_not_continued() {
    let ground = Ground::with_store();
    let said = ground.sh(
        "mkdir one two; head -c 6000000 /dev/urandom >one/data; cp one/data two/data
        head -c 300 /dev/urandom | dd of=two/data bs=1 seek=3000000 conv=notrunc status=none
        $WEALD store create -q own; $WEALD store add -q own one --name i1
        segment=own/segments/$(ls own/segments)
        for at in 1000000 2900000 5000000; do head -c 16 /dev/urandom |
            dd of=$segment bs=1 seek=$at conv=notrunc status=none; done
        $WEALD store add -q own two --name i2 2>added || echo $?
        grep -c 'i1: damaged, and not continued' added
        $WEALD check -q own:i2; $WEALD cat own:i2 data | cmp - two/data; echo same",
    );
    assert_eq!(said.lines().collect::<Vec<_>>(), ["1", "1", "same"]);
}

/// Would catch: a collection that ends the writer, or a writer that does not open, because a
/// directory lies where a segment that nobody needs, or a map that is not complete, would be
/// removed; and a check that does not name what is left.
#[test]
fn what_is_no_file_of_a_store_is_passed_over_when_it_would_be_removed() {
    let ground = Ground::with_store();
    let said = ground.sh(
        "mkdir one two; for name in one two; do head -c 3000000 /dev/urandom >$name/data; done
        $WEALD store create -q --segment-size 1M own
        $WEALD store add -q own one --name i1
        mkdir own/images/.0000000000000009.map own/images/.0000000000000009.digests
        last=own/segments/$(ls own/segments | tail -n 1); rm $last; mkdir $last
        rm -f own/reserve; mkdir own/reserve own/unsynced
        rm -r own/journal; mkdir -p own/journal/new
        $WEALD store rm own:i1; $WEALD store gc -q own; $WEALD store add -q own two --name i2
        $WEALD check -q own:i2; test -d $last
        $WEALD store check own >checked && echo clean
        grep -c 'no row knows this file' checked
        rmdir $last own/images/.*9.map own/images/.*9.digests own/reserve own/unsynced
        rmdir own/journal/new; $WEALD store check -q --data own",
    );
    assert_eq!(said.lines().collect::<Vec<_>>(), ["1"], "{said}");
}
