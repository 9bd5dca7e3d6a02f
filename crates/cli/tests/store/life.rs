//! The usual life of a store: images are imported, share blocks, are read like files, and are
//! removed.

use crate::ground::{Ground, lines};
use serde_json::Value;
use std::fs;
use weald_testkit::mounts::finish;

/// Would catch: a command that does nothing or too much, figures that differ from the files, an
/// exported image that differs from the imported one.
#[test]
fn a_store_lives_by_its_commands() {
    let ground = Ground::with_images();
    let created = ground.json(&["store", "create", "--json", "store"]);
    assert_eq!(created[0]["segment_len"], 64 << 20);
    let imported = ground.json(&["store", "import", "--json", "store", "v1.weald", "v2.weald"]);
    assert_eq!(
        (&imported[0]["name"], &imported[1]["name"]),
        (&"v1".into(), &"v2".into())
    );
    let number = |value: &Value, key: &str| value[key].as_u64().expect("a number");
    let len = |name: &str| fs::metadata(ground.at(name)).expect("stat").len();
    assert_eq!(number(&imported[0], "image_len"), len("v1.weald"));
    let (old, new) = (
        number(&imported[0], "new_len"),
        number(&imported[1], "new_len"),
    );
    assert!(
        new > 0 && new < old / 4,
        "the second version brings {new}, the first {old}"
    );
    let listed = ground.json(&["store", "ls", "--json", "store"]);
    let info = ground.json(&["info", "--json", "v2.weald"]);
    for key in ["image_digest", "tree_digest", "image_len"] {
        assert_eq!(listed[1][key], info[0][key], "{key}");
    }
    let report = ground.json(&["store", "info", "--json", "store"]).remove(0);
    assert_eq!(number(&report, "image_count"), 2);
    assert!(number(&report, "shared_len") > old / 2, "{report}");
    // The rest are the notes of commits.
    let notes_len = number(&report, "segments_len") - (old + new + 64);
    assert!((1..1000).contains(&notes_len), "{report}");
    assert_eq!(number(&report, "unused_len"), notes_len, "{report}");
    assert!(number(&report, "allocated_len") >= old + new, "{report}");
    ground.assert_clean("store");
    for name in ["v1", "v2"] {
        ground.assert_exported("store", name);
    }
    ground.weald(&["store", "rm", "store:v1"]);
    let listed = ground.json(&["store", "ls", "--json", "store"]);
    assert_eq!((listed.len(), &listed[0]["name"]), (1, &"v2".into()));
    let report = ground.json(&["store", "info", "--json", "store"]).remove(0);
    assert!(number(&report, "unused_len") > 0, "{report}");
    let collected = ground.json(&["store", "gc", "--json", "store"]).remove(0);
    assert!(number(&collected, "blocks_forgotten") > 0, "{collected}");
    ground.assert_clean("store");
    ground.assert_exported("store", "v2");
    ground.weald(&["store", "rm", "store", "v2"]);
    ground.weald(&["store", "gc", "-q", "store"]);
    let report = ground.json(&["store", "info", "--json", "store"]).remove(0);
    assert_eq!(number(&report, "segments_len"), 0, "{report}");
    assert_eq!(ground.weald(&["store", "ls", "store"]), "");
}

/// Command lines in which `@` is an image. The output must be the same for a file and for an image
/// in a store.
const READERS: [&str; 21] = [
    "ls -lR @",
    "ls -R --json @",
    "tree @",
    "stat @ / bin/tool fifo",
    "cat @ bin/tool",
    "find @ --printf %p|%s|%m\\n",
    "find @ --name *o* --json",
    "sum @",
    "sum --algorithm sha256 --json @ noise",
    "diff @ v1",
    "diff @ v2.weald",
    "diff v2.weald @",
    "tar @",
    "info @",
    "info --json --stages --reading @",
    "check @",
    "check --digests-only @",
    "generations @",
    "generations --json @",
    "ls --offset auto @ etc",
    "cat --generation 1 @ etc/main",
];

/// Would catch: a command that accepts only image files, and one that reads an image of a store
/// differently.
#[test]
fn every_reader_takes_an_image_of_a_store() {
    let ground = Ground::with_store();
    for line in READERS {
        let run = |image: &str| {
            let words = line.split(' ').map(|word| match word {
                "@" => image.to_owned(),
                word => word.to_owned(),
            });
            let words: Vec<String> = words.collect();
            let output = ground.0.weald(&words);
            assert!(!output.stdout.is_empty() || line == "diff @ v1", "{line}");
            (output.code, output.stdout, output.stderr)
        };
        let (file, stored) = (run("v1.weald"), run("store:v1"));
        assert_eq!(file.2, "", "{line}");
        assert!(file == stored, "{line}: {}", stored.2);
    }
    for (line, target) in [
        ("extract -q @", "tree"),
        ("rewrite -q -l 3 -t 1 @", "image"),
        ("rewrite -q --repack -t 1 @", "image"),
    ] {
        for (image, name) in [("v1.weald", "a"), ("store:v1", "b")] {
            let line = format!("{} {name}", line.replace('@', image));
            ground.weald(&line.split(' ').collect::<Vec<_>>());
        }
        match target {
            "tree" => ground.sh("diff -r --no-dereference a/etc b/etc && cmp a/noise b/noise"),
            _ => ground.sh("cmp a b"),
        };
        ground.sh("rm -rf a b");
    }
}

/// Would catch: a base image in a store that is not found, by a build or by a later reader.
#[test]
fn an_image_of_a_store_can_be_a_base() {
    let ground = Ground::with_store();
    ground.weald(&["build", "-q", "--base", "store:v1", "v2", "based.weald"]);
    let len = |name: &str| fs::metadata(ground.at(name)).expect("stat").len();
    assert!(len("based.weald") < len("v2.weald") / 2);
    ground.sh("mkdir apart && mv based.weald apart");
    let based = "apart/based.weald";
    ground.refused(&["ls", based], &["v1", "is not in apart"]);
    ground.weald(&["diff", "--base-dir", "store", based, "v2"]);
    ground.weald(&["store", "import", "-q", "store", based]);
    ground.weald(&["diff", "store:based", "v2"]);
    ground.weald(&["check", "store:based"]);
    // A base with another name in another store is found by its digest.
    ground.weald(&["store", "create", "-q", "other"]);
    ground.weald(&["store", "import", "-q", "other", "store:based"]);
    ground.refused(&["ls", "other:based"], &["is not in"]);
    ground.weald(&[
        "store", "import", "-q", "other", "store:v1", "--name", "first",
    ]);
    ground.weald(&["diff", "other:based", "v2"]);
}

/// Would catch: names that a new user types and that a command refuses or misinterprets.
#[test]
fn words_of_newcomers_are_understood() {
    let ground = Ground::with_store();
    for words in [
        &["store", "ls", "store:v1"][..],
        &["store", "gc", "store:v1"],
        &["store", "check", "store:v1"],
    ] {
        ground.refused(words, &["names one image", "the whole store, store"]);
    }
    for command in ["ls", "info", "check", "tree", "mount"] {
        let more: &[&str] = if command == "mount" { &["v1"] } else { &[] };
        let words = [&[command, "store"][..], more].concat();
        ground.refused(
            &words,
            &["a store of images", "store:NAME", "'weald store ls store'"],
        );
    }
    ground.refused(
        &["ls", "store:gone"],
        &["no such image", "'weald store ls store'"],
    );
    ground.refused(
        &["store", "ls", "v1.weald"],
        &["a file, and a store is a directory"],
    );
    ground.refused(&["store", "ls", "v1"], &["this directory is no store"]);
    ground.refused(&["store", "ls", "gone"], &["'weald store create gone'"]);
    ground.refused(&["store", "rm", "store"], &["store:NAME"]);
    ground.refused(&["store", "create", "store"], &["a store is here already"]);
    ground.refused(
        &["store", "create", "v1"],
        &["not empty", "directory of its own"],
    );
    for words in [
        &["build", "v1", "store:new"][..],
        &["build", "--append", "v2", "store:v1"],
        &["rewrite", "v1.weald", "store:new"],
        &["recover", "store:v1"],
    ] {
        ground.refused(words, &["weald store add store SOURCE --name"]);
    }
    ground.weald(&["store", "export", "store", "v1", "copy"]);
    ground.sh("cmp copy v1.weald");
    ground.refused(
        &["store", "export", "store:v1", "copy"],
        &["--force replaces it"],
    );
    let imported = ground.weald(&["store", "import", "--json", "store:again", "v1.weald"]);
    assert_eq!(lines(&imported)[0]["new_block_count"], 0);
    // A file whose name looks like STORE:NAME keeps its meaning.
    ground.sh("cp v2.weald store:v1");
    let listed = ground.weald(&["cat", "store:v1", "usr/version"]);
    assert_eq!(listed, "two\n");
    let exported = finish(
        ground
            .0
            .command()
            .args(["store", "export", "store:again", "-"]),
    );
    assert_eq!(
        exported.stdout,
        fs::read(ground.at("v1.weald")).expect("read")
    );
}

/// Would catch: a store that cannot be moved, and a copy of a store that does not work.
#[test]
fn a_store_can_be_moved_and_copied() {
    let ground = Ground::with_store();
    ground.sh("cp -a store copy && mkdir deep && mv store deep/renamed");
    for store in ["copy", "deep/renamed"] {
        ground.assert_clean(store);
        ground.assert_exported(store, "v2");
        ground.weald(&["store", "rm", store, "v1"]);
    }
}

/// Would catch: a base image that is removed before the images that lie on it, also through others
/// and beside a mounted volume, and an import that does not say that a base image is missing.
#[test]
fn a_base_image_stays_as_long_as_others_lie_on_it() {
    let ground = Ground::with_images();
    ground.sh(
        "mkdir m; $WEALD store create -q store; $WEALD volume create -q store:v
         cp -a v2 v3; seq 77 > v3/more; cp v1.weald copy.weald
         $WEALD build -q --base v1.weald v2 second.weald
         $WEALD build -q --base second.weald v3 third.weald",
    );
    let import = |names: &[&str]| {
        let args = [&["store", "import", "-q", "store"], names].concat();
        ground.0.weald(args).expect(0).stderr
    };
    let said = import(&["third.weald"]);
    assert!(
        said.contains("store:third: its base image second.weald is not in the store"),
        "{said}"
    );
    let said = import(&["v1.weald", "second.weald"]);
    assert_eq!(said, "");
    for is_mounted in [false, true] {
        if is_mounted {
            ground.sh("$WEALD mount store:v m");
        }
        ground.refused(
            &["store", "rm", "store:v1"],
            &["base image of second", "--force"],
        );
        ground.refused(&["store", "rm", "store:second"], &["base image of third"]);
        ground.refused(
            &["store", "rm", "store", "second", "v1"],
            &["base image of third"],
        );
        // Another image with the same digest is as good.
        import(&["copy.weald"]);
        ground.weald(&["store", "rm", "store:v1"]);
        ground.weald(&["check", "store:third"]);
        ground.refused(&["store", "rm", "store:copy"], &["base image of second"]);
        import(&["v1.weald"]);
        ground.weald(&["store", "rm", "store:copy"]);
        ground.weald(&["store", "gc", "-q", "store"]);
        ground.weald(&["check", "store:third"]);
    }
    ground.weald(&["store", "rm", "store", "v1", "second", "third"]);
    ground.sh("$WEALD umount m");
    assert_eq!(
        ground
            .weald(&["store", "ls", "store"])
            .matches("v1")
            .count(),
        0
    );
    ground.assert_clean("store");
}
