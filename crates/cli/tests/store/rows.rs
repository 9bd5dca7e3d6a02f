//! Damage of single rows and blocks: it costs what it hits, and is told by name.

use crate::ground::Ground;
#[path = "../../../image/tests/support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use support::Parts;
use weald_format::container::HEADER_LEN;
use weald_format::store::Location;
use weald_format::{BlockId, SegmentNo};
use weald_store::disk::HostDisk;
use weald_store::engine::{Batch, Table};
use weald_store::{Store, WriteOptions};

fn store(ground: &Ground) -> Store {
    Store::open(Arc::new(HostDisk::new(&ground.at("store")))).expect("the store")
}

/// A row and its new value; none removes it.
type Change<'a> = (Table, &'a str, Option<&'a [u8]>);

/// Gives rows other values, or removes them.
fn change(ground: &Ground, rows: &[Change]) {
    let writer = store(ground).write(WriteOptions::new("damage"));
    let engine = writer.expect("a writer").engine();
    let mut batch = Batch::default();
    for (table, key, value) in rows {
        match value {
            Some(value) => batch.put(*table, key.as_bytes(), value.to_vec()),
            None => batch.remove(*table, key.as_bytes()),
        }
    }
    engine.commit(&batch).expect("commit");
    // Otherwise the journal would say that these rows are others.
    ground.sh("rm -rf store/journal");
}

/// The findings of `store check`, which ends with status 1: name and text.
#[track_caller]
fn findings(ground: &Ground) -> Vec<(String, String)> {
    let said = ground
        .0
        .weald(["store", "check", "--data", "--json", "store"]);
    let said = crate::ground::lines(&said.expect(1).text());
    let named = said.iter().filter(|line| line["finding"].is_string());
    let named = named.map(|line| {
        let of = line["image"].as_str().or(line["volume"].as_str());
        let what = line["reason"].as_str().or(line["what"].as_str());
        (of.unwrap_or("").to_owned(), what.unwrap_or("").to_owned())
    });
    named.collect()
}

fn with_volumes() -> Ground {
    let ground = Ground::with_store();
    ground.sh("$WEALD volume create -q --from store:v1 store:v
         $WEALD volume create -q --from store:v2 store:w");
    ground
}

/// Would catch: a damaged row of a volume or an image that ends a check, or keeps the other images
/// and volumes from being checked and written; and a writer that takes a volume whose row is
/// damaged or lost for one that was removed, with its name and its log.
#[test]
fn a_damaged_row_costs_one_image_or_volume() {
    let ground = with_volumes();
    let whole = ground.contents("store");
    let restore = || {
        ground.sh("rm -r store; mkdir -p store/segments store/images store/volumes store/journal");
        for (path, bytes) in &whole {
            fs::write(path, bytes).expect("write");
        }
    };
    let cases: [(&str, &[Change]); 4] = [
        ("v", &[(Table::Volumes, "v", Some(b"\x04no row"))]),
        ("v", &[(Table::Volumes, "v", None)]),
        ("v1", &[(Table::Images, "v1", Some(b"no row"))]),
        ("w", &[(Table::Volumes, "w", Some(b""))]),
    ];
    for (name, rows) in cases {
        restore();
        change(&ground, rows);
        let log = match name {
            "w" => "volumes/.00000002.log",
            _ => "volumes/.00000001.log",
        };
        if name != "v1" {
            fs::write(ground.at("store").join(log), b"a log").expect("write");
        }
        let before = ground.contents("store");
        let found = findings(&ground);
        assert!(
            !found.is_empty() && found.iter().all(|(of, _)| of == name),
            "{name}: {found:?}"
        );
        assert!(
            ground.contents("store") == before,
            "a check changes the store"
        );
        if ["v", "w"].contains(&name) {
            let of = format!("store:{name}");
            ground.0.weald(["volume", "check", &of]).expect(1);
        }
        // The others work: a writer opens the store, and keeps what a salvage needs.
        ground.weald(&[
            "store", "import", "-q", "store", "v2.weald", "--name", "again",
        ]);
        ground.weald(&["check", "store:again"]);
        for other in ["v", "w"].iter().filter(|other| **other != name) {
            ground.weald(&["volume", "check", "--data", &format!("store:{other}")]);
        }
        for file in ["volumes/v", "volumes/w", "images/v1"] {
            assert!(ground.at("store").join(file).exists(), "{name}: {file}");
        }
        if name != "v1" {
            fs::remove_file(ground.at("store").join(log)).expect("the log is there");
        }
        let salvaged = ground
            .0
            .weald(["store", "salvage", "--json", "store"])
            .expect(0);
        let salvaged = crate::ground::lines(&salvaged.text()).remove(0);
        let volumes = serde_json::json!(["v", "w"]);
        assert_eq!(salvaged["volumes"], volumes, "{salvaged}");
        ground.assert_clean("store");
        for name in ["v", "w"] {
            ground.weald(&["volume", "check", "--data", &format!("store:{name}")]);
        }
    }
}

/// Would catch: a claimed tree digest of an image of a store that nobody compares with its tree.
#[test]
fn a_check_computes_tree_digests() {
    let ground = Ground::new();
    ground.weald(&["store", "create", "-q", "store"]);
    let good = Parts::verity();
    let mut forged = Parts::verity();
    forged
        .blocks
        .iter_mut()
        .flatten()
        .for_each(|byte| *byte ^= 0xff);
    forged.fsverity = Vec::new();
    let mut writer = store(&ground)
        .write(WriteOptions::new("test"))
        .expect("a writer");
    writer.import("good", &good.bytes()).expect("import");
    writer.import("forged", &forged.bytes()).expect("import");
    drop(writer);
    ground.weald(&["store", "check", "store"]);
    let found = findings(&ground);
    let is_told = |(of, what): &(String, String)| of == "forged" && what.contains("tree digest");
    assert!(found.len() == 1 && found.iter().all(is_told), "{found:?}");
}

/// Blocks of an image by number.
fn blocks(ground: &Ground, name: &str) -> BTreeMap<BlockId, (Location, u64)> {
    let map = store(ground).map(name).expect("a map");
    map.blocks()
        .map(|(id, at, record)| (id, (at, record.stored_len)))
        .collect()
}

/// Would catch: a damaged block that keeps a collection from returning the space of everything
/// else, that it does not name, that is lost with its segment, or that new data becomes.
#[test]
fn a_damaged_block_stops_no_collection_and_no_import() {
    let ground = Ground::new();
    ground.sh("mkdir x y; for n in 1 2 3 4 5 6; do
            head -c 100000 /dev/urandom > x/$n; head -c 100000 /dev/urandom > y/$n; done");
    for name in ["x", "y"] {
        let shape = ["--block-size", "16K", "--order", "name"];
        ground
            .0
            .build(&ground.at(name), &ground.0.image(name), &shape);
    }
    ground.weald(&["store", "create", "-q", "--segment-size", "256K", "store"]);
    ground.weald(&["store", "import", "-q", "store", "y.weald", "x.weald"]);
    let of_removed: Vec<SegmentNo> = blocks(&ground, "y")
        .values()
        .map(|(at, _)| at.segment)
        .collect();
    let of_x = blocks(&ground, "x");
    let shared = of_x
        .iter()
        .find(|(_, (at, len))| of_removed.contains(&at.segment) && *len > 9000);
    let (_, (at, _)) = shared.expect("a segment with blocks of both");
    ground.weald(&["store", "rm", "store:y"]);
    let path = ground.at(format!("store/segments/{:016x}", at.segment));
    let segment = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(&path)
        .expect("open");
    let place = at.offset + HEADER_LEN as u64 + 5000;
    let mut before = [0; 16];
    segment.read_exact_at(&mut before, place).expect("read");
    segment
        .write_all_at(&before.map(|byte| !byte), place)
        .expect("damage");

    let gc = [
        "store",
        "gc",
        "--json",
        "--reencode-below",
        "0",
        "--copy-below",
        "100",
        "store",
    ];
    let said = ground.0.weald(gc).expect(1);
    let done = crate::ground::lines(&said.text()).remove(0);
    assert_eq!(done["segments_kept"], 1, "{done}");
    assert_eq!(done["damaged"], serde_json::json!(["x"]), "{done}");
    assert!(done["segments_removed"].as_u64() >= Some(2), "{done}");
    assert!(
        said.stderr
            .contains("1 segment file stays: blocks of x in it"),
        "{}",
        said.stderr
    );
    let found = findings(&ground);
    assert!(
        !found.is_empty() && found.iter().all(|(of, _)| of == "x"),
        "{found:?}"
    );
    // Nothing else is lost, and new data are whole.
    let listed = ground.sh("for n in 1 2 3 4 5 6; do
            if $WEALD cat store:x $n 2>/dev/null | cmp -s - x/$n; then echo $n; fi; done");
    assert!(listed.lines().count() >= 4, "{listed}");
    ground.weald(&[
        "store", "import", "-q", "--name", "again", "store", "x.weald",
    ]);
    ground.weald(&["check", "store:again"]);
    ground.sh("$WEALD store export store:again out.weald; cmp out.weald x.weald");
    // The bytes are back, and the segment is as any other.
    segment.write_all_at(&before, place).expect("mend");
    ground.assert_clean("store");
    let done = ground.json(&gc).remove(0);
    assert_eq!(done["segments_kept"], 0, "{done}");
    ground.assert_clean("store");
}
