//! Readers of few paths: what they are shown, and what it costs.

use super::*;
use crate::{Levels, OpenStore, ShownPath, VolumeReader};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use weald_format::Result;
use weald_format::journal::RowSum;
use weald_format::volume::NameRow;
use weald_store::engine::{BeforeCommit, Engine, ReadView, VisitDamage, VisitRow};
use weald_store::simulated_disk::{Random, SimDisk};

/// Tables that count the rows that they hand out.
#[derive(Debug)]
struct Counting {
    below: Arc<dyn Engine>,
    row_count: AtomicU64,
}

impl Counting {
    fn new(below: Arc<dyn Engine>) -> Arc<Self> {
        Arc::new(Self {
            below,
            row_count: AtomicU64::new(0),
        })
    }

    fn taken(&self) -> u64 {
        self.row_count.swap(0, Ordering::Relaxed)
    }
}

impl Engine for Counting {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.row_count.fetch_add(1, Ordering::Relaxed);
        self.below.get(table, key)
    }

    fn scan_readable(
        &self,
        table: Table,
        start: &[u8],
        visit: &mut VisitRow<'_>,
        damaged: &mut VisitDamage<'_>,
    ) -> Result<()> {
        let mut count = |key: &[u8], value: &[u8]| {
            self.row_count.fetch_add(1, Ordering::Relaxed);
            visit(key, value)
        };
        self.below.scan_readable(table, start, &mut count, damaged)
    }

    fn commit_after(&self, _: &Batch, _: &mut BeforeCommit<'_>) -> Result<()> {
        unreachable!("a reader commits nothing")
    }

    fn row_sum(&self) -> Result<RowSum> {
        self.below.row_sum()
    }

    fn compact(&self) -> Result<()> {
        self.below.compact()
    }

    fn read_view(self: Arc<Self>) -> Result<Box<dyn ReadView>> {
        self.below.clone().read_view()
    }
}

/// A store in memory with the volume `v`.
fn volume_in_memory(seed: u64) -> (Store, Arc<Volume>) {
    let disk = SimDisk::new(seed);
    let store = Store::create(Arc::new(disk), [1; 16], 1 << 20).expect("a store");
    create(&store, "v", &VolumeOptions::default(), [1; 16], 0).expect("a volume");
    let options = OpenOptions {
        background: false,
        ..OpenOptions::default()
    };
    let shared = OpenStore::open(&store, &options).expect("a store");
    let volume = Volume::open_in(&shared, "v", options).expect("a volume");
    (store, volume)
}

fn engine_of(volume: &Volume) -> Arc<dyn Engine> {
    volume.core.shared.writing.lock().writer.engine()
}

fn shown(path: &str, levels: Levels) -> ShownPath {
    ShownPath {
        path: path.into(),
        levels,
    }
}

/// All names below the root that a reader shows, by path.
fn walk(reader: &VolumeReader) -> BTreeMap<String, Arc<NameRow>> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![(String::new(), reader.root())];
    while let Some((path, dir)) = waiting.pop() {
        for name in reader.names(dir).expect("names") {
            let at = format!("{path}/{}", String::from_utf8_lossy(&name.name));
            if name.kind == FileKind::Directory {
                waiting.push((at.clone(), name.ino));
            }
            found.insert(at, name);
        }
    }
    found
}

/// Would catch: a look at one path of a snapshot that reads rows by the size of the volume, or of
/// the directories on the way.
#[test]
fn a_path_costs_the_rows_on_its_way() {
    let (store, volume) = volume_in_memory(1);
    let one = dir(&volume, Ino::ROOT, "one").ino;
    let few = dir(&volume, Ino::ROOT, "few").ino;
    for number in 0..100_000 {
        file(&volume, one, &number.to_string());
    }
    for number in 0..10 {
        file(&volume, few, &number.to_string());
    }
    volume.take_snapshot("s", 1).expect("a snapshot");
    // Rows that are kept for it, in the midst of the others.
    for number in 0..20_000 {
        let name = (number * 5).to_string();
        volume.unlink(one, name.as_bytes(), 2).expect("unlink");
    }
    volume.commit().expect("commit");
    let tables = Counting::new(engine_of(&volume));
    let engine: Arc<dyn Engine> = tables.clone();
    let open = |paths: &[ShownPath]| {
        let (reader, _) = VolumeReader::open_snapshot(&store, &engine, ("v", "s")).expect("open");
        reader.showing(paths).expect("a part")
    };
    for path in ["one/7", "one/99995", "one/10", "/one/../few/./3"] {
        tables.taken();
        let reader = open(&[shown(path, Levels::NAMES)]);
        let names = walk(&reader);
        let last = path.rsplit('/').next().expect("a name");
        assert!(
            names.keys().any(|at| at.ends_with(last)),
            "{path}: {names:?}"
        );
        let count = tables.taken();
        assert!(count < 300, "{path}: {count} rows");
    }
    let reader = open(&[shown("few", Levels::ALL), shown("none/x", Levels::ALL)]);
    assert_eq!(walk(&reader).len(), 11);
    let count = tables.taken();
    assert!(count < 300, "a directory of ten: {count} rows");
    // That the rows are counted at all.
    let reader = open(&[shown("", Levels::ALL)]);
    assert_eq!(walk(&reader).len(), 100_012);
    assert!(tables.taken() > 100_000);
    volume.close().expect("close");
}

/// Would catch: a name that a path leads to, or that lies below it within its levels, and that is
/// not shown; a name that is none of these.
#[test]
fn a_part_has_what_its_paths_lead_to() {
    for seed in 0..40 {
        let (store, volume) = volume_in_memory(seed);
        let mut random = Random::new(seed);
        let mut dirs = vec![Ino::ROOT];
        for number in 0..random.below(60) {
            let parent = dirs[random.below(dirs.len() as u64) as usize];
            let name = format!("n{number}");
            if random.below(2) == 0 {
                dirs.push(dir(&volume, parent, &name).ino);
            } else {
                file(&volume, parent, &name);
            }
        }
        volume.take_snapshot("s", 1).expect("a snapshot");
        let engine = engine_of(&volume);
        let open = || VolumeReader::open_snapshot(&store, &engine, ("v", "s")).expect("open");
        let whole = walk(&open().0);
        let all: Vec<&String> = whole.keys().collect();
        for _ in 0..10 {
            let mut paths = Vec::new();
            for _ in 0..=random.below(3) {
                let path = match all.len() {
                    0 => "/none",
                    len => all[random.below(len as u64) as usize],
                };
                let levels = [Levels(0), Levels(1), Levels(2), Levels::ALL];
                paths.push(shown(path, levels[random.below(4) as usize]));
            }
            let part = walk(&open().0.showing(&paths).expect("a part"));
            let is_shown = |at: &String| {
                paths.iter().any(|shown| {
                    let path = String::from_utf8_lossy(&shown.path);
                    let is_way = path == at.as_str() || path.starts_with(&format!("{at}/"));
                    let below = at.strip_prefix(&*path).filter(|rest| rest.starts_with('/'));
                    let depth = below.map(|rest| rest.matches('/').count());
                    is_way || depth.is_some_and(|depth| depth <= shown.levels.0)
                })
            };
            let wanted: BTreeSet<&String> = whole.keys().filter(|at| is_shown(at)).collect();
            assert_eq!(part.keys().collect::<BTreeSet<_>>(), wanted, "{paths:?}");
            assert!(part.iter().all(|(at, name)| whole.get(at) == Some(name)));
        }
        volume.close().expect("close");
    }
}
