//! `weald store salvage` of a store with volumes.

use super::{Ground, MOUNTED};
use serde_json::Value;
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use weald_store::disk::{Access, HostDisk, LocalFiles};
use weald_store::engine::redb::RedbEngine;
use weald_store::engine::{Batch, Engine, Table};
use weald_testkit::compare::assert_same;

/// Would catch: a volume that goes with another one, a loss without a line or with status 0, and a
/// damaged volume that cannot be mounted or removed.
#[test]
fn damage_of_one_volume_leaves_the_other() {
    let ground = Ground::new();
    ground.weald(&["volume", "create", "-q", "store:w"]);
    for name in ["v", "w"] {
        let dir = ground.0.dir("mnt");
        let volume = format!("store:{name}");
        ground.0.mount(Path::new(&volume), &dir, &[]);
        ground.sh(&format!(
            "for d in $(seq 40); do mkdir mnt/{name}$d; for f in $(seq 25); do echo {name}$f > \
             mnt/{name}$d/$f; done; done; cp -a mnt keep-{name}"
        ));
        ground.umount();
    }
    ground.sh("cp -a store whole");
    let salvage = |args: &[&str]| {
        let args = [&["store", "salvage"][..], args, &["store"]].concat();
        ground.0.weald(args)
    };
    assert!(
        salvage(&[])
            .expect(0)
            .text()
            .contains("2 volumes are complete, 0 are damaged")
    );
    ground.weald(&["store", "check", "--data", "store"]);
    let meta = ground.at("store/meta");
    let bytes = fs::read(ground.at("whole/meta")).expect("meta");
    let mut found = None;
    for at in (0..bytes.len()).rev().step_by(1024) {
        let mut damaged = bytes.clone();
        damaged[at.saturating_sub(16)..at].fill(0x5a);
        fs::write(&meta, damaged).expect("write");
        // With its journal, nothing would be lost.
        ground.sh("rm -r store/journal");
        let salvaged = salvage(&["--json"]);
        if salvaged.code == Some(2) {
            continue;
        }
        let report: Value = serde_json::from_str(&salvaged.text()).expect("JSON");
        let of = |key: &str| report[key].as_array().expect("a list").len();
        let damaged = of("damaged_volumes") + of("lost_volumes");
        assert_eq!(of("volumes") + damaged, 2, "byte {at}: {report}");
        assert_eq!(
            salvaged.code,
            Some(i32::from(damaged > 0)),
            "byte {at}: {report}"
        );
        if of("damaged_volumes") == 1 && of("volumes") == 1 {
            found = Some((at, report));
            break;
        }
    }
    let (at, report) = found.expect("damage of one volume");
    let text = |value: &Value| value.as_str().expect("a name").to_owned();
    let (whole, lost) = (&report["volumes"][0], &report["damaged_volumes"][0]);
    let (whole, lost_name) = (text(whole), text(&lost["name"]));
    println!(
        "byte {at}: {} losses of {lost_name}",
        lost["losses"].as_array().expect("a list").len()
    );
    // Lines are the same for people.
    let mut damaged = bytes.clone();
    damaged[at.saturating_sub(16)..at].fill(0x5a);
    fs::write(&meta, damaged).expect("write");
    ground.sh("rm -r store/journal");
    let said = salvage(&[]).expect(1).text();
    for loss in lost["lost"].as_array().expect("a list") {
        let (path, what) = (text(&loss["path"]), text(&loss["what"]));
        assert!(said.contains(&format!("{path}: {what}")), "{loss}: {said}");
    }
    assert!(
        said.contains("1 volumes are complete, 1 are damaged"),
        "{said}"
    );
    let dir = ground.0.dir("mnt");
    ground
        .0
        .mount(Path::new(&format!("store:{whole}")), &dir, &[]);
    assert_same(&ground.at(&format!("keep-{whole}")), &dir, &MOUNTED);
    ground.umount();
    ground.0.mount(
        Path::new(&format!("store:{lost_name}")),
        &dir,
        &["-o", "ro"],
    );
    // Listings of what is left work; no content is another one.
    ground.sh(&format!(
        "ls -R mnt > listed; cd mnt; find . -path ./lost+found -prune -o -type f -print | \
         while read -r f; do \
         ! cat \"$f\" > ../got 2>> ../errors || cmp ../got \"../keep-{lost_name}/$f\"; done"
    ));
    ground.umount();
    ground.weald(&["volume", "rm", &format!("store:{lost_name}")]);
    ground.weald(&["store", "check", "--data", "store"]);
}

/// Would catch: a check that says "clean" of a volume that has lost rows of `meta`, and with them
/// names, files or contents.
#[test]
fn a_check_is_not_clean_if_a_mount_shows_less() {
    let ground = Ground::new();
    ground.mount(&[]);
    ground.sh("for f in $(seq 40); do head -c 100000 /dev/urandom > mnt/$f; done");
    ground.umount();
    ground.sh("cp -a store whole");
    let show = || {
        ground.sh("\"$WEALD\" mount -o ro store:v mnt
            (cd mnt; sha256sum $(seq 40) 2>&1) || true; \"$WEALD\" umount mnt")
    };
    let whole = show();
    for table in [Table::Names, Table::Inodes, Table::Extents] {
        ground.sh("rm -r store; cp -a whole store");
        let meta = HostDisk::new(&ground.at("store")).open("meta", Access::Write);
        let meta = Arc::from(meta.expect("meta"));
        let engine = RedbEngine::open(meta, "meta".into(), 1 << 20).expect("tables");
        let mut last = Vec::new();
        let scanned = engine.scan(table, &[], &mut |key, _| {
            last = key.to_vec();
            Ok(ControlFlow::Continue(()))
        });
        scanned.expect("rows");
        let mut batch = Batch::default();
        batch.remove(table, &last);
        engine.commit(&batch).expect("commit");
        drop(engine);
        let found = ground.0.weald(["store", "check", "--data", "store"]);
        assert_eq!(found.code, Some(1), "{table:?}: {}", found.text());
        assert_ne!(show(), whole, "{table:?}: a mount shows everything");
    }
}
