//! What a salvage tells of a volume whose sync log has changes.

use super::salvage::{lost, options, rows, salvage};
use super::*;
use std::collections::BTreeMap;
use weald_store::disk::{Access, LocalFiles};
use weald_store::engine::Engine;
use weald_store::engine::redb::RedbEngine;

/// Everything that readers see of the volume `v`, without what the number of names tells.
fn seen(store: &Store) -> BTreeMap<String, String> {
    let volume = Volume::open(store, "v", options(true)).expect("open");
    let mut tree = BTreeMap::new();
    let root = volume.stat(Ino::ROOT).expect("the root");
    let mut waiting = vec![(root, String::new())];
    while let Some((stat, path)) = waiting.pop() {
        let nlink = match stat.kind {
            FileKind::Directory => 0,
            _ => stat.nlink,
        };
        let mut text = format!(
            "{:?} {:o} {} {} {nlink} {} {} {}",
            stat.kind, stat.permissions, stat.uid, stat.gid, stat.size, stat.mtime, stat.ctime
        );
        for name in volume.xattr_names(stat.ino).expect("names") {
            let value = volume.xattr(stat.ino, &name).map_err(|f| f.errno);
            if !name.starts_with(b"user.weald.") {
                text.push_str(&format!(" {name:?}={value:?}"));
            }
        }
        match stat.kind {
            FileKind::Directory => {
                let listed = volume.list(stat.ino, 0, &mut |entry| {
                    let name = String::from_utf8_lossy(entry.name);
                    waiting.push((*entry.stat, format!("{path}/{name}")));
                    true
                });
                listed.expect("a list");
            }
            _ => {
                let mut bytes = Vec::new();
                let read = volume.read(stat.ino, 0, stat.size as usize, &mut bytes);
                let digest = read.map(|()| weald_format::Digest::of(&bytes));
                text.push_str(&format!(" {:?}", digest.map_err(|f| f.errno)));
            }
        }
        tree.insert(path, text);
    }
    tree
}

// Would catch: losses that the log of the volume restores, losses of what the log removed or wrote
// anew, and losses of the log's own changes that nobody tells.
#[test]
fn the_list_is_what_a_reader_misses_with_the_log() {
    let place = TestStore::new();
    let store = place.store();
    let logged = OpenOptions {
        log_len: 128 << 10,
        syncs_without_log: 0,
        ..options(false)
    };
    let volume = Volume::open(&store, "v", logged).expect("open");
    let (kept, changed) = (
        dir(&volume, Ino::ROOT, "kept").ino,
        dir(&volume, Ino::ROOT, "changed").ino,
    );
    let user = b"user.a";
    let mut inos = Vec::new();
    for no in 0..8u64 {
        for below in [kept, changed] {
            let ino = file(&volume, below, &format!("file-{no}")).ino;
            volume.write(ino, 0, &noise(100_000, no), 1).expect("write");
            let set = volume.set_xattr(ino, user, b"before", XattrMode::Set, 1);
            set.expect("an attribute");
            inos.push(ino);
        }
    }
    let [
        _,
        written,
        _,
        cut,
        _,
        moved,
        _,
        removed,
        _,
        linked,
        _,
        punched,
    ] = inos[..12]
    else {
        unreachable!()
    };
    let quota = b"trusted.weald.quota";
    let set = volume.set_xattr(changed, quota, b"1000000000", XattrMode::Set, 1);
    set.expect("a quota");
    volume.sync().expect("sync");
    let truncate = NewStat {
        size: Some(30_000),
        ..NewStat::default()
    };
    volume
        .write(written, 0, &noise(70_000, 50), 5)
        .expect("write");
    volume.set_stat(cut, &truncate, 6).expect("truncate");
    volume.sync().expect("sync");
    let of = |no: u64| format!("file-{no}").into_bytes();
    let inner = dir(&volume, changed, "inner").ino;
    volume
        .rename((changed, &of(2)), (inner, b"moved"), RenameMode::Replace, 7)
        .expect("rename");
    volume.unlink(changed, &of(3), 8).expect("unlink");
    volume.link(linked, inner, b"second", 9).expect("link");
    let hole = AllocateMode::PunchHole;
    volume.allocate(punched, hole, 0, 65_536, 5).expect("punch");
    let set = volume.set_xattr(moved, user, b"after", XattrMode::Set, 7);
    set.expect("an attribute");
    let copy = file(&volume, inner, "copy").ino;
    volume
        .copy_range(
            FilePlace::new(inos[0], 0),
            FilePlace::new(copy, 0),
            100_000,
            10,
        )
        .expect("copy");
    volume.sync().expect("sync");
    assert!(removed.0 > 0);
    let crashed = || place.crashed();
    let whole = seen(&crashed().store());
    let mut told_count = 0;
    let mut round = |of: Option<(Table, Vec<u8>)>| {
        let after = crashed();
        let what = format!("{of:?}");
        if let Some((table, key)) = of {
            let path = after.dir.path().join("store/meta");
            let file = HostDisk::new(path.parent().expect("a directory"));
            let meta = file.open("meta", Access::Write).expect("meta");
            let engine = RedbEngine::open(Arc::from(meta), "meta".into(), 1 << 20);
            let mut batch = Batch::default();
            batch.remove(table, &key);
            engine.expect("tables").commit(&batch).expect("commit");
        }
        let store = after.store();
        let salvaged = salvage(&store);
        let text = lost(&salvaged);
        let left = seen(&store);
        let differs = whole.iter().find(|(path, of)| left.get(*path) != Some(of));
        assert_eq!(
            differs.is_some(),
            !text.is_empty(),
            "{what}: {differs:?}, {:?}: {text}",
            differs.and_then(|(path, _)| left.get(path))
        );
        told_count += usize::from(!text.is_empty());
        let no_data = CheckOptions { reads_data: false };
        let findings = |when: &str| {
            let report = check(&store, "v", &no_data).expect("a check");
            let found = report.findings.iter().map(|finding| format!("{finding}"));
            let found: Vec<_> = found.filter(|text| !text.contains("is missing")).collect();
            assert!(found.is_empty(), "{what}, {when}: {found:?}: {text}");
        };
        findings("before the mount");
        let volume = Volume::open(&store, "v", options(false)).expect("a mount");
        volume.close().expect("close");
        drop(volume);
        assert_eq!(seen(&store), left, "{what}");
        findings("after the mount");
    };
    round(None);
    let after = crashed();
    let rows = rows(&after).expect("tables");
    let mut count = 0;
    for (table, rows) in &rows["v"] {
        if !Table::OF_VOLUMES.contains(table) || *table == Table::Log {
            continue;
        }
        for (key, _) in rows.iter().flatten() {
            count += 1;
            round(Some((*table, key.clone())));
        }
    }
    println!("{count} rows, {told_count} told");
    assert!(count > 60 && told_count > 30 && told_count < count);
}
