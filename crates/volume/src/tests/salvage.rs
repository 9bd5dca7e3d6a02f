//! Salvage of a store with two volumes whose tables are damaged.

use super::{TestStore, dir, file, noise};
use crate::{CheckOptions, OpenOptions, Volume, VolumeOptions, check, create};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use weald_format::VolumeNo;
use weald_format::volume::VolumeRow;
use weald_store::disk::{Access, HostDisk, LocalFiles, ReadOnlyDisk};
use weald_store::engine::redb::RedbEngine;
use weald_store::engine::{Batch, Engine, Table};
use weald_store::simulated_disk::Random;
use weald_store::{Store, WriteOptions};
use weald_vfs::{Ino, WritableFs, XattrMode};

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

pub(super) fn options(is_read_only: bool) -> OpenOptions {
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
pub(super) type AllRows = BTreeMap<String, BTreeMap<Table, Option<Vec<(Vec<u8>, Vec<u8>)>>>>;

pub(super) fn rows(place: &TestStore) -> Option<AllRows> {
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
        let volume_no = VolumeRow::parse(&value).ok()?.volume_no.to_be_bytes();
        let mut tables =
            BTreeMap::from(Table::OF_VOLUMES.map(|table| (table, scan(table, &volume_no))));
        // Those of all volumes lie in one group.
        tables.insert(Table::Blocks, scan(Table::Blocks, &[]));
        Some((String::from_utf8(key).ok()?, tables))
    });
    Some(all.collect())
}

// Would catch: a volume that goes although its rows are whole, a loss without its path, a damaged
// volume that nothing opens, wrong bytes, and a change of tables that cannot be read at all.
#[test]
fn damage_of_tables_without_a_journal_costs_what_it_hits() {
    let [whole, damaged, refused] = damage_tables(|place, _| {
        std::fs::remove_dir_all(place.dir.path().join("store/journal")).expect("remove");
    });
    assert!(whole > 150 && damaged > 2 && refused < 10);
}

// Would catch: rows that one of two damaged copies has and a salvage drops, and a loss of both that
// is not told.
#[test]
fn damage_of_both_copies_of_the_tables_costs_what_both_lack() {
    let [whole, damaged, refused] = damage_tables(|place, random| {
        let paths = journal_files(place);
        let path = &paths[random.below(paths.len() as u64) as usize];
        let mut bytes = std::fs::read(path).expect("read");
        let at = random.below((bytes.len() - DAMAGED_LEN) as u64) as usize;
        for byte in &mut bytes[at..at + DAMAGED_LEN] {
            *byte ^= random.below(255) as u8 + 1;
        }
        std::fs::write(path, bytes).expect("write");
    });
    assert!(whole > 300 && damaged < 20 && refused == 0);
}

/// Damages the tables in 200 places, and the journal by `damage_journal`. Returns how many volumes
/// were whole after a salvage, how many had losses, and how many stores it refused.
fn damage_tables(damage_journal: impl Fn(&TestStore, &mut Random)) -> [usize; 3] {
    let place = TestStore::new();
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
        damage_journal(&after, &mut random);
        let found = rows(&after);
        let store = after.store();
        let salvaged = match store.salvage(&weald_store::SalvageOptions::default()) {
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
                assert!(names.contains(name), "{what}: {salvaged:?}");
                assert!(readable(&store, name) == *tree, "{what}: {salvaged:?}");
                let report = check(&store, name, &CheckOptions { reads_data: true });
                let findings = report.expect("a check").findings;
                assert!(findings.is_empty(), "{what}: {findings:?}");
                whole_count += 1;
            }
        }
        for volume in &salvaged.damaged_volumes {
            let name = &volume.name;
            names.insert(name);
            let (_, tree) = trees.iter().find(|(of, _)| of == name).expect("a volume");
            let left = readable(&store, name);
            let losses = volume.losses.iter();
            let text: String = losses.map(|loss| format!("{loss}\n")).collect();
            for (path, bytes) in tree
                .iter()
                .filter(|(path, of)| left.get(*path) != Some(*of))
            {
                // It has its content in another place, or the list says what is lost of it.
                let is_adopted = left
                    .iter()
                    .any(|(place, found)| place.starts_with("lost+found/") && found == bytes);
                let is_told = text.contains(&format!("{path:?}"));
                assert!(
                    is_adopted || is_told,
                    "round {round}, byte {at}, {path}: {text}"
                );
            }
            damaged_count += 1;
        }
        names.extend(salvaged.lost_volumes.iter().map(String::as_str));
        assert_eq!(names.len(), 2, "round {round}, byte {at}: {names:?}");
        // Damaged volumes can be removed.
        for volume in &salvaged.damaged_volumes {
            crate::remove(&store, &volume.name, false).expect("remove");
        }
    }
    println!(
        "{whole_count} volumes whole, {damaged_count} damaged, {refused_count} stores refused, of \
         200 places in {} bytes",
        whole.len()
    );
    [whole_count, damaged_count, refused_count]
}

/// Files of the journal, the newest last.
fn journal_files(place: &TestStore) -> Vec<std::path::PathBuf> {
    let dir = place.dir.path().join("store/journal");
    let entries = std::fs::read_dir(dir).expect("a journal");
    let mut paths: Vec<_> = entries
        .map(|entry| entry.expect("an entry").path())
        .collect();
    paths.sort();
    paths
}

// Would catch: damage of one copy of the tables that costs a row, and a salvage or a check that
// says something else.
#[test]
fn damage_of_one_copy_of_the_tables_costs_nothing() {
    let place = TestStore::new();
    let store = place.store();
    create(&store, "w", &VolumeOptions::default(), [8; 16], 5).expect("a volume");
    for name in ["v", "w"] {
        fill(&store, name);
    }
    let known = rows(&place).expect("tables");
    let mut random = Random::new(21);
    for round in 0..1000 {
        let after = place.crashed();
        let mut paths = journal_files(&after);
        let is_meta = round % 2 == 0;
        if is_meta {
            paths = vec![after.dir.path().join("store/meta")];
        }
        let path = &paths[random.below(paths.len() as u64) as usize];
        let mut bytes = std::fs::read(path).expect("read");
        let at = random.below((bytes.len() - DAMAGED_LEN) as u64) as usize;
        match round % 50 {
            // All of a file.
            0 | 1 => std::fs::remove_file(path).expect("remove"),
            2 | 3 => std::fs::write(path, &bytes[..at]).expect("write"),
            _ => {
                for byte in &mut bytes[at..at + DAMAGED_LEN] {
                    *byte ^= random.below(255) as u8 + 1;
                }
                std::fs::write(path, &bytes).expect("write");
            }
        }
        let what = format!("round {round}, {}, byte {at}", path.display());
        let store = after.store();
        if !is_meta {
            let writer = store.write_for_check("a check").expect("open");
            let checked = writer.check(false, &mut |_| {}).expect("a check");
            assert_eq!(checked.findings.len(), 1, "{what}: {checked:?}");
        }
        let salvaged = salvage(&store);
        assert_eq!(salvaged.damaged_count(), 0, "{what}: {salvaged:?}");
        assert_eq!(salvaged.volumes, ["v", "w"], "{what}");
        let mut found = rows(&after).expect("tables");
        let mut wanted = known.clone();
        for tables in found.values_mut().chain(wanted.values_mut()) {
            // A salvage counts commits and drops blocks without references.
            tables.remove(&Table::Blocks);
        }
        assert!(found == wanted, "{what}");
        assert_eq!(findings(&store), "", "{what}");
    }
}

// Would catch: a volume that goes without a word because its own row is damaged, another one that
// goes with it, and a sync log that the next writer removes.
#[test]
fn a_volume_without_its_row_is_named_and_its_log_stays() {
    let place = TestStore::new();
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
    let of_w = readable(&store, "w");
    let salvage = || {
        change(&store, |_, batch| batch.put(Table::Volumes, b"w", vec![1]));
        let options = weald_store::SalvageOptions::default();
        store.salvage(&options).expect("salvage")
    };
    // The file that shows the name has a copy of the row.
    let salvaged = salvage();
    assert_eq!(salvaged.volumes, ["v", "w"]);
    assert!(readable(&store, "w") == of_w);
    let report = check(&store, "w", &CheckOptions { reads_data: true });
    assert!(report.expect("a check").findings.is_empty());
    assert_eq!(logs(), [".00000002.log"]);
    // That of older versions has none.
    std::fs::write(place.dir.path().join("store/volumes/w"), []).expect("write");
    let salvaged = salvage();
    assert_eq!(
        (salvaged.volumes, salvaged.lost_volumes),
        (vec!["v".into()], vec!["w".into()])
    );
    assert!(readable(&store, "v") == tree);
    assert_eq!(logs(), [".00000002.log.damaged"]);
    // The number of the lost volume is not given away again.
    create(&store, "x", &VolumeOptions::default(), [7; 16], 5).expect("a volume");
    let writer = store.write(WriteOptions::new("a look")).expect("write");
    assert_eq!(
        writer.volume_row("x").expect("a row").volume_no,
        VolumeNo(3)
    );
    drop(writer);
    let report = check(&store, "x", &CheckOptions { reads_data: true });
    assert!(report.expect("a check").findings.is_empty());
}

/// Changes rows behind the back of everything.
fn change(store: &Store, change: impl FnOnce(&dyn Engine, &mut Batch)) {
    let writer = store.write(WriteOptions::new("damage")).expect("write");
    let mut batch = Batch::default();
    change(&*writer.engine(), &mut batch);
    writer.engine().commit(&batch).expect("commit");
}

/// Rows of a table of the volume `v`.
fn rows_of(engine: &dyn Engine, table: Table) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut rows = Vec::new();
    let scanned = engine.scan(table, &[], &mut |key, value| {
        rows.push((key.to_vec(), value.to_vec()));
        Ok(ControlFlow::Continue(()))
    });
    scanned.expect("scan");
    rows
}

fn findings(store: &Store) -> String {
    let report = check(store, "v", &CheckOptions { reads_data: true }).expect("a check");
    report
        .findings
        .iter()
        .map(|finding| format!("{finding}\n"))
        .collect()
}

pub(super) fn salvage(store: &Store) -> weald_store::Salvaged {
    crate::salvage_store(store, &weald_store::SalvageOptions::default()).expect("salvage")
}

/// What is lost of the volume `v`.
pub(super) fn lost(salvaged: &weald_store::Salvaged) -> String {
    let volumes = salvaged
        .damaged_volumes
        .iter()
        .filter(|volume| volume.name == "v");
    let losses = volumes.flat_map(|volume| &volume.losses);
    losses.map(|loss| format!("{loss}\n")).collect()
}

// Would catch: rows that a check passes and no reader can use, and files that a salvage leaves
// where nobody can reach them.
#[test]
fn what_no_name_leads_to_is_in_lost_and_found() {
    use weald_format::volume::{InodeRow, NamePlace, NameRow, inode_key};
    let place = TestStore::new();
    let store = place.store();
    let volume = place.open();
    let inos: Vec<Ino> = ["a", "b", "c", "circle"]
        .map(|name| dir(&volume, Ino::ROOT, name).ino)
        .into();
    for (no, at) in inos.iter().enumerate() {
        let inner = dir(&volume, *at, "inner").ino;
        for below in [*at, inner] {
            let ino = file(&volume, below, "file").ino;
            volume
                .write(ino, 0, format!("content {no} {}", below.0).as_bytes(), 1)
                .expect("write");
        }
    }
    volume.close().expect("close");
    drop(volume);
    assert_eq!(findings(&store), "");
    let before = readable(&store, "v");
    change(&store, |engine, batch| {
        for (key, value) in rows_of(engine, Table::Names) {
            let mut row = NameRow::parse(&value).expect("a row");
            match row.name.as_slice() {
                // The name of a directory is lost; another one has a name that none can have.
                b"a" => batch.remove(Table::Names, &key),
                b"b" => {
                    row.name = b"..".to_vec();
                    batch.put(Table::Names, &key, row.encode());
                }
                // A name lies where no reader looks for it.
                b"c" => {
                    batch.remove(Table::Names, &key);
                    let mut other = key.clone();
                    other[15] ^= 1;
                    batch.put(Table::Names, &other, value.clone());
                }
                b"circle" => batch.remove(Table::Names, &key),
                _ => {}
            }
        }
    });
    let found = findings(&store);
    for word in [
        "no directory can have this name",
        "no reader looks for it",
        "links",
    ] {
        assert!(found.contains(word), "{word}: {found}");
    }
    assert!(
        found.contains("\"c\"") && found.contains("(no path)"),
        "{found}"
    );
    let salvaged = salvage(&store);
    let text = lost(&salvaged);
    assert_eq!(salvaged.damaged_volumes[0].adopted_count, 3, "{text}");
    assert!(text.contains("lost+found/#"), "{text}");
    let after = readable(&store, "v");
    for (path, bytes) in &before {
        let is_kept = path.starts_with("c/") && after.get(path) == Some(bytes);
        let adopted = after
            .iter()
            .filter(|(place, found)| place.starts_with("lost+found/#") && *found == bytes);
        assert!(is_kept || adopted.count() == 1, "{path}: {after:?}");
    }
    assert_eq!(findings(&store), "");
    // It can be written to.
    let volume = place.open();
    dir(&volume, Ino::ROOT, "new");
    volume.close().expect("close");
    drop(volume);
    assert_eq!(findings(&store), "");
    // A circle of directories hangs nothing, and comes out of it.
    let d = inos[2];
    change(&store, |engine, batch| {
        for (key, value) in rows_of(engine, Table::Names) {
            let row = NameRow::parse(&value).expect("a row");
            if row.ino == d {
                batch.remove(Table::Names, &key);
                let (volume_no, place) = NamePlace::split_key(&key).expect("a key");
                let inner = rows_of(engine, Table::Names)
                    .into_iter()
                    .find_map(|(key, value)| {
                        let (_, place) = NamePlace::split_key(&key).expect("a key");
                        let row = NameRow::parse(&value).expect("a row");
                        (place.dir == d && row.name == b"inner").then_some(row.ino)
                    });
                let inner = inner.expect("a directory");
                let place = NamePlace {
                    dir: inner,
                    ..place
                };
                let key = place.key(volume_no);
                batch.put(Table::Names, &key, value);
                let key = inode_key(volume_no, d);
                let inode = engine
                    .get(Table::Inodes, &key)
                    .expect("get")
                    .expect("a row");
                let mut inode = InodeRow::parse(&inode).expect("a row");
                inode.parent = inner;
                batch.put(Table::Inodes, &key, inode.encode());
            }
        }
    });
    assert!(
        findings(&store).contains("do not lead to the root"),
        "{}",
        findings(&store)
    );
    let text = lost(&salvage(&store));
    assert!(text.contains(&format!("lost+found/#{d}")), "{text}");
    assert_eq!(findings(&store), "");
    let last = readable(&store, "v");
    assert_eq!(last.len(), after.len(), "{last:?}");
}

// Would catch: a salvage that says "complete" although a segment is missing, that leaves a store
// which no writer opens, or that gives up what comes back.
#[test]
fn a_missing_segment_is_told_and_can_come_back() {
    let place = TestStore::new();
    let store = place.store();
    let volume = place.open();
    let mut names = Vec::new();
    for no in 0..5 {
        let name = format!("file-{no}");
        let ino = file(&volume, Ino::ROOT, &name).ino;
        volume.write(ino, 0, &noise(700_000, no), 1).expect("write");
        volume.commit().expect("commit");
        names.push(name);
    }
    volume.close().expect("close");
    drop(volume);
    let before = readable(&store, "v");
    let segments = place.dir.path().join("store/segments");
    let mut files: Vec<_> = std::fs::read_dir(&segments)
        .expect("list")
        .flatten()
        .collect();
    files.sort_by_key(std::fs::DirEntry::file_name);
    assert!(files.len() >= 3, "{files:?}");
    let gone = files[1].path();
    let aside = place.dir.path().join("aside");
    std::fs::rename(&gone, &aside).expect("rename");
    let found = findings(&store);
    assert!(
        found.contains("\"file-") && found.contains("is missing"),
        "{found}"
    );
    let salvaged = salvage(&store);
    let text = lost(&salvaged);
    let after = readable(&store, "v");
    assert!(
        salvaged.volumes.is_empty() && salvaged.lost_block_count > 0,
        "{salvaged:?}"
    );
    for name in &names {
        let is_lost = after.get(name) != before.get(name);
        assert_eq!(
            is_lost,
            text.contains(&format!("{name:?}")),
            "{name}: {text}"
        );
    }
    assert!(after.len() < before.len());
    let volume = place.open();
    let ino = file(&volume, Ino::ROOT, "new").ino;
    volume.write(ino, 0, &noise(100_000, 99), 1).expect("write");
    volume.close().expect("close");
    drop(volume);
    std::fs::rename(&aside, &gone).expect("rename");
    let mut last = readable(&store, "v");
    assert_eq!(last.remove("new"), Some(noise(100_000, 99)));
    assert!(last == before);
    assert_eq!(findings(&store), "");
    let salvaged = salvage(&store);
    assert_eq!(salvaged.volumes, ["v"], "{salvaged:?}");
}

// Would catch: a damaged block that a salvage does not read, and a log that it does not look at.
#[test]
fn damaged_blocks_and_logs_are_told() {
    let place = TestStore::new();
    let store = place.store();
    let volume = place.open();
    for no in 0..20 {
        let ino = file(&volume, Ino::ROOT, &format!("file-{no}")).ino;
        volume.write(ino, 0, &noise(50_000, no), 1).expect("write");
    }
    volume.close().expect("close");
    drop(volume);
    let segment = place.dir.path().join("store/segments/0000000000000001");
    let mut bytes = std::fs::read(&segment).expect("read");
    // Not where the header of a record may lie.
    let at = bytes.len() / 3;
    bytes[at..at + DAMAGED_LEN].fill(0x5a);
    std::fs::write(&segment, bytes).expect("write");
    let quick = weald_store::SalvageOptions {
        skips_data: true,
        ..weald_store::SalvageOptions::default()
    };
    let salvaged = crate::salvage_store(&store, &quick).expect("salvage");
    assert_eq!((salvaged.volumes.len(), salvaged.verified_len), (1, 0));
    let salvaged = salvage(&store);
    let text = lost(&salvaged);
    let left = readable(&store, "v");
    let found = findings(&store);
    assert!(left.len() < 20, "{text}");
    for no in 0..20 {
        let name = format!("file-{no}");
        let is_lost = !left.contains_key(&name);
        assert_eq!(
            is_lost,
            text.contains(&format!("{name:?}")),
            "{name}: {text}"
        );
        assert_eq!(
            is_lost,
            found.contains(&format!("{name:?}")),
            "{name}: {found}"
        );
    }
}

// Would catch: a check or a salvage whose time grows with the square of the depth.
#[test]
fn a_deep_tree_takes_as_long_as_a_wide_one() {
    const DEPTH: usize = 70_000;
    let place = TestStore::new();
    let store = place.store();
    let volume = place.open();
    let mut at = Ino::ROOT;
    for _ in 0..DEPTH {
        at = dir(&volume, at, "d").ino;
    }
    file(&volume, at, "f");
    volume.close().expect("close");
    drop(volume);
    let start = std::time::Instant::now();
    assert_eq!(findings(&store), "");
    let salvaged = salvage(&store);
    assert_eq!(salvaged.volumes, ["v"]);
    // Paths of what is lost end near the root.
    change(&store, |engine, batch| {
        for (key, _) in rows_of(engine, Table::Names).into_iter().step_by(100) {
            batch.remove(Table::Names, &key);
        }
    });
    let count = findings(&store).lines().count();
    assert!(count >= DEPTH / 100, "{count}");
    let salvaged = salvage(&store);
    assert!(salvaged.damaged_volumes[0].adopted_count >= DEPTH as u64 / 100);
    assert_eq!(findings(&store), "");
    println!("{DEPTH} levels: {:?}", start.elapsed());
    assert!(start.elapsed().as_secs() < 300);
}
