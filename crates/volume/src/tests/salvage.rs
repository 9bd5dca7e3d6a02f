//! Salvage of a store with two volumes whose tables are damaged.

use super::{Place, dir, file, noise};
use crate::{CheckOptions, OpenOptions, Volume, VolumeOptions, check, create};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use weald_format::volume::VolumeRow;
use weald_store::disk::{Access, Disk, HostDisk, ReadOnlyDisk};
use weald_store::engine::redb::RedbEngine;
use weald_store::engine::{Batch, Engine, Table};
use weald_store::simulated_disk::Random;
use weald_store::{Store, WriteOptions};
use weald_vfs::{Ino, WritableFs, XattrMode};

const TABLES: [Table; 7] = [
    Table::Inodes,
    Table::Names,
    Table::Extents,
    Table::Xattrs,
    Table::Orphans,
    Table::Quotas,
    Table::Log,
];
/// Bytes that are damaged together.
const DAMAGED_LEN: usize = 16;

/// Contents of a volume by path.
type Tree = BTreeMap<String, Vec<u8>>;

fn fill(store: &Store, name: &str) -> Tree {
    let volume = Volume::open(store, name, options(false)).expect("open");
    let mut tree = Tree::new();
    for no in 0..30 {
        let below = dir(&volume, Ino::ROOT, &format!("dir-{name}-{no}")).ino;
        for number in 0..40 {
            let path = format!("dir-{name}-{no}/file-{number}");
            let ino = file(&volume, below, &format!("file-{number}")).ino;
            let bytes = noise(50 + 400 * (number % 7), (no * 100 + number) as u64);
            volume.write(ino, 0, &bytes, 1).expect("write");
            if number % 5 == 0 {
                let value = path.as_bytes();
                let set = volume.set_xattr(ino, b"user.path", value, XattrMode::Set, 1);
                set.expect("an attribute");
            }
            tree.insert(path, bytes);
        }
    }
    volume.close().expect("close");
    tree
}

fn options(is_read_only: bool) -> OpenOptions {
    OpenOptions {
        is_read_only,
        background: false,
        ..OpenOptions::default()
    }
}

/// The paths and contents that can be read, and the errors of others.
fn readable(store: &Store, name: &str) -> Tree {
    let volume = Volume::open(store, name, options(true)).expect("open");
    let mut tree = Tree::new();
    let mut dirs = vec![(Ino::ROOT, String::new())];
    while let Some((dir, path)) = dirs.pop() {
        let mut found = Vec::new();
        let listed = volume.list(dir, 0, &mut |entry| {
            let name = String::from_utf8_lossy(entry.name).into_owned();
            found.push((entry.stat.ino, entry.stat.kind, format!("{path}{name}")));
            true
        });
        listed.expect("a list");
        for (ino, kind, path) in found {
            match kind {
                weald_format::FileKind::Directory => dirs.push((ino, format!("{path}/"))),
                _ => {
                    let mut bytes = Vec::new();
                    if volume.read(ino, 0, 1 << 20, &mut bytes).is_ok() {
                        tree.insert(path, bytes);
                    }
                }
            }
        }
    }
    tree
}

/// Rows of the volumes in the tables, or nothing if they cannot be opened; `None` for a table that
/// cannot be read.
type AllRows = BTreeMap<String, BTreeMap<Table, Option<Vec<(Vec<u8>, Vec<u8>)>>>>;

fn rows(place: &Place) -> Option<AllRows> {
    let disk = HostDisk::new(&place.dir.path().join("store"));
    let disk = ReadOnlyDisk::new(Arc::new(disk));
    let meta = disk.open("meta", Access::Write).expect("meta");
    let engine = RedbEngine::open(Arc::from(meta), "meta".into(), 1 << 20).ok()?;
    let scan = |table: Table, prefix: &[u8]| {
        let mut rows = Vec::new();
        let scanned = engine.scan(table, prefix, &mut |key, value| {
            if !key.starts_with(prefix) {
                return Ok(ControlFlow::Break(()));
            }
            rows.push((key.to_vec(), value.to_vec()));
            Ok(ControlFlow::Continue(()))
        });
        scanned.ok().map(|()| rows)
    };
    let volumes = scan(Table::Volumes, &[]).unwrap_or_default();
    let all = volumes.into_iter().filter_map(|(key, value)| {
        let snapshot = VolumeRow::parse(&value).ok()?.snapshot.to_be_bytes();
        let mut tables = BTreeMap::from(TABLES.map(|table| (table, scan(table, &snapshot))));
        // Those of all volumes lie in one group.
        tables.insert(Table::Blocks, scan(Table::Blocks, &[]));
        Some((String::from_utf8(key).ok()?, tables))
    });
    Some(all.collect())
}

// Would catch: a volume that goes although its rows are whole, a loss without its path, a damaged
// volume that nothing opens, wrong bytes, and a change of tables that cannot be read at all.
#[test]
fn damage_of_tables_costs_what_it_hits() {
    let place = Place::new();
    let store = place.store();
    create(&store, "w", &VolumeOptions::default(), [8; 16], 5).expect("a volume");
    let trees = ["v", "w"].map(|name| (name, fill(&store, name)));
    let meta = place.dir.path().join("store/meta");
    let whole = std::fs::read(&meta).expect("read");
    // As a killed server leaves them.
    let open = Volume::open(&store, "v", options(false)).expect("open");
    let left_open = std::fs::read(&meta).expect("read");
    drop(open);
    assert!(left_open != whole);
    let known = rows(&place).expect("tables");
    let mut random = Random::new(20);
    let (mut whole_count, mut damaged_count, mut refused_count) = (0, 0, 0);
    for round in 0..200 {
        let at = random.below((whole.len() - DAMAGED_LEN) as u64) as usize;
        let after = place.crashed();
        let mut bytes = match round % 2 {
            0 => whole.clone(),
            _ => left_open.clone(),
        };
        for byte in &mut bytes[at..at + DAMAGED_LEN] {
            *byte ^= random.below(255) as u8 + 1;
        }
        let damaged = after.dir.path().join("store/meta");
        std::fs::write(&damaged, &bytes).expect("write");
        // The tables before the last open are older than the mark, which would be told.
        std::fs::remove_file(after.dir.path().join("store/mark")).expect("remove");
        let found = rows(&after);
        let store = after.store();
        let salvaged = match store.salvage("a test") {
            Ok(salvaged) => salvaged,
            Err(error) => {
                assert!(found.is_none(), "round {round}, byte {at}: {error}");
                assert!(error.to_string().contains("backup"), "{error}");
                assert!(std::fs::read(&damaged).expect("read") == bytes);
                refused_count += 1;
                continue;
            }
        };
        assert!(std::fs::read(after.dir.path().join("store/meta.old")).expect("read") == bytes);
        let mut names: BTreeSet<&str> = salvaged.volumes.iter().map(String::as_str).collect();
        for (name, tree) in &trees {
            let is_whole = found
                .as_ref()
                .is_some_and(|found| found.get(*name) == known.get(*name));
            if is_whole || salvaged.volumes.iter().any(|whole| whole == name) {
                let what = format!("round {round}, byte {at}: {name}");
                assert!(names.contains(name), "{what}");
                assert!(readable(&store, name) == *tree, "{what}");
                let report = check(&store, name, &CheckOptions { reads_data: true });
                let mut findings = report.expect("a check").findings;
                // Those of the other volume are here, too.
                findings.retain(|finding| !finding.starts_with(&other(name)));
                assert!(findings.is_empty(), "{what}: {findings:?}");
                whole_count += 1;
            }
        }
        for (name, losses) in &salvaged.damaged_volumes {
            names.insert(name);
            let (_, tree) = trees.iter().find(|(of, _)| of == name).expect("a volume");
            let left = readable(&store, name);
            let text = losses.join("\n");
            for (path, bytes) in tree {
                let is_told = text.contains(&format!("{path:?}"))
                    || text.contains(&format!("{:?}", path.split('/').next().expect("a name")))
                    || text.contains("inode");
                match left.get(path) {
                    Some(found) if found == bytes => {}
                    _ => assert!(is_told, "round {round}, byte {at}, {path}"),
                }
            }
            damaged_count += 1;
        }
        names.extend(salvaged.lost_volumes.iter().map(String::as_str));
        assert_eq!(names.len(), 2, "round {round}, byte {at}: {names:?}");
        // Damaged volumes can be removed.
        for (name, _) in &salvaged.damaged_volumes {
            crate::remove(&store, name).expect("remove");
        }
    }
    println!(
        "{whole_count} volumes whole, {damaged_count} damaged, {refused_count} stores refused, of \
         200 places in {} bytes",
        whole.len()
    );
    assert!(whole_count > 100 && damaged_count > 10 && refused_count < 10);
}

/// Begin of the findings about the other volume.
fn other(name: &str) -> String {
    match name {
        "v" => "w: ".to_owned(),
        _ => "v: ".to_owned(),
    }
}

// Would catch: a volume that goes without a word because its own row is damaged, another one that
// goes with it, and a sync log that the next writer removes.
#[test]
fn a_volume_without_its_row_is_named_and_its_log_stays() {
    let place = Place::new();
    let store = place.store();
    create(&store, "w", &VolumeOptions::default(), [8; 16], 5).expect("a volume");
    let tree = fill(&store, "v");
    let logged = OpenOptions {
        log_len: 64 << 10,
        syncs_without_log: 0,
        ..options(false)
    };
    let volume = Volume::open(&store, "w", logged).expect("open");
    file(&volume, Ino::ROOT, "f");
    volume.sync().expect("sync");
    volume.close().expect("close");
    drop(volume);
    let logs = || {
        let listed = std::fs::read_dir(place.dir.path().join("store/volumes")).expect("list");
        let names = listed.map(|entry| entry.expect("an entry").file_name());
        let names = names.map(|name| name.to_string_lossy().into_owned());
        names
            .filter(|name| name.contains(".log"))
            .collect::<Vec<_>>()
    };
    assert_eq!(logs(), [".00000002.log"]);
    let writer = store.write(WriteOptions::new("damage")).expect("write");
    let mut damage = Batch::default();
    damage.put(Table::Volumes, b"w", vec![1]);
    writer.engine().commit(&damage).expect("commit");
    drop(writer);
    let salvaged = store.salvage("a test").expect("salvage");
    assert_eq!(
        (salvaged.volumes, salvaged.lost_volumes),
        (vec!["v".into()], vec!["w".into()])
    );
    assert!(readable(&store, "v") == tree);
    assert_eq!(logs(), [".00000002.log.damaged"]);
    // The number of the lost volume is not given away again.
    create(&store, "x", &VolumeOptions::default(), [7; 16], 5).expect("a volume");
    let writer = store.write(WriteOptions::new("a look")).expect("write");
    assert_eq!(writer.volume_row("x").expect("a row").snapshot, 3);
    drop(writer);
    let report = check(&store, "x", &CheckOptions { reads_data: true });
    assert!(report.expect("a check").findings.is_empty());
}
