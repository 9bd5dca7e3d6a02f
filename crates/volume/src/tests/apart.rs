//! Operations do not wait for the rows of others.

use super::*;
use crate::WindowSteps;
use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use weald_format::journal::RowSum;
use weald_format::{Error, Ino, Result};
use weald_store::engine::{BeforeCommit, Engine, ReadView, VisitDamage, VisitRow};

/// Operations at once.
const CLIENT_COUNT: usize = 32;
/// Longest time that a read waits for the reads of the others.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a read of a row waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waits {
    /// Nothing.
    No,
    /// A read of each other client.
    ForAll,
    /// Time to pass.
    Slow(Duration),
}

#[derive(Debug)]
struct Reads {
    waits: Waits,
    waiting_count: usize,
    meeting_count: usize,
    read_count: usize,
}

/// Holds up reads of rows of inodes, names, windows and extended attributes.
#[derive(Debug)]
pub struct Gate {
    reads: Mutex<Reads>,
    met: Condvar,
}

impl Gate {
    fn new() -> Arc<Self> {
        let reads = Reads {
            waits: Waits::No,
            waiting_count: 0,
            meeting_count: 0,
            read_count: 0,
        };
        Arc::new(Self {
            reads: Mutex::new(reads),
            met: Condvar::new(),
        })
    }

    /// The rows of `engine`, behind this gate.
    pub fn before(self: &Arc<Self>, engine: Arc<dyn Engine>) -> Arc<dyn Engine> {
        Arc::new(Gated {
            engine,
            gate: self.clone(),
        })
    }

    fn set(&self, waits: Waits) {
        let mut reads = self.reads.lock();
        reads.waits = waits;
        reads.read_count = 0;
    }

    fn pass(&self, table: Table) -> Result<()> {
        let is_of_files = matches!(
            table,
            Table::Inodes | Table::Names | Table::Extents | Table::Xattrs
        );
        if !is_of_files {
            return Ok(());
        }
        let mut reads = self.reads.lock();
        reads.read_count += 1;
        match reads.waits {
            Waits::No => return Ok(()),
            Waits::Slow(time) => {
                drop(reads);
                thread::sleep(time);
                return Ok(());
            }
            Waits::ForAll => {}
        }
        reads.waiting_count += 1;
        if reads.waiting_count == CLIENT_COUNT {
            reads.waiting_count = 0;
            reads.meeting_count += 1;
            self.met.notify_all();
            return Ok(());
        }
        let meeting = reads.meeting_count;
        let deadline = Instant::now() + PATIENCE;
        while reads.meeting_count == meeting {
            if reads.waits == Waits::No || self.met.wait_until(&mut reads, deadline).timed_out() {
                // The other reads need not wait as long.
                reads.waits = Waits::No;
                self.met.notify_all();
                return Err(Error::invalid("a read waits for the end of another"));
            }
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Gated {
    engine: Arc<dyn Engine>,
    gate: Arc<Gate>,
}

impl Engine for Gated {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.gate.pass(table)?;
        self.engine.get(table, key)
    }

    fn scan_readable(
        &self,
        table: Table,
        start: &[u8],
        visit: &mut VisitRow<'_>,
        damaged: &mut VisitDamage<'_>,
    ) -> Result<()> {
        self.gate.pass(table)?;
        self.engine.scan_readable(table, start, visit, damaged)
    }

    fn commit_after(&self, batch: &Batch, before: &mut BeforeCommit<'_>) -> Result<()> {
        self.engine.commit_after(batch, before)
    }

    fn row_sum(&self) -> Result<RowSum> {
        self.engine.row_sum()
    }

    fn compact(&self) -> Result<()> {
        self.engine.compact()
    }

    fn read_view(self: Arc<Self>) -> Result<Box<dyn ReadView>> {
        self.engine.clone().read_view()
    }
}

/// What a client works with: a directory, and in it two files, a directory and a symlink.
#[derive(Debug, Clone, Copy)]
struct Owned {
    dir: Ino,
    file: Ino,
    other: Ino,
    sub_dir: Ino,
    link: Ino,
}

/// Files are of more windows than the caches are filled with.
fn place() -> (TestStore, Vec<Owned>) {
    let place = TestStore::with(&VolumeOptions {
        chunk_len: 4096,
        ..VolumeOptions::default()
    });
    let volume = place.open();
    let content: Vec<u8> = (0..300_000u32).map(|n| (n / 7) as u8).collect();
    let owned = (0..CLIENT_COUNT).map(|n| {
        let home = dir(&volume, Ino::ROOT, &format!("d{n}")).ino;
        let files = ["file", "other"].map(|name| {
            let file = file(&volume, home, name).ino;
            volume.write(file, 0, &content, 10).expect("write");
            let create = XattrMode::Create;
            volume
                .set_xattr(file, b"user.a", b"value", create, 10)
                .expect("set");
            file
        });
        let link = NewInode {
            target: b"target",
            ..new_inode(FileKind::Symlink)
        };
        Owned {
            dir: home,
            file: files[0],
            other: files[1],
            sub_dir: dir(&volume, home, "sub").ino,
            link: volume.create(home, b"link", &link, 10).expect("link").ino,
        }
    });
    let owned = owned.collect();
    volume.close().expect("close");
    (place, owned)
}

fn open_behind(place: &TestStore, gate: &Arc<Gate>) -> Arc<Volume> {
    let options = OpenOptions {
        background: false,
        gate: Some(gate.clone()),
        windows: WindowSteps::default(),
        ..OpenOptions::default()
    };
    Volume::open(&place.store(), "v", options).expect("open")
}

type Operation = fn(&Volume, &Owned) -> Outcome<()>;

const OPERATIONS: [(&str, Operation); 24] = [
    ("stat", |v, o| v.stat(o.file).map(drop)),
    ("lookup", |v, o| v.lookup(o.dir, b"file").map(drop)),
    ("parent", |v, o| v.parent(o.sub_dir).map(drop)),
    ("list", |v, o| v.list(o.dir, 0, &mut |_| true)),
    ("read", |v, o| v.read(o.file, 0, 1 << 20, &mut Vec::new())),
    ("read_link", |v, o| v.read_link(o.link).map(drop)),
    ("seek", |v, o| v.seek(o.file, 0, true).map(drop)),
    ("seek_data", |v, o| v.seek(o.file, 4096, false).map(drop)),
    ("xattr", |v, o| v.xattr(o.file, b"user.a").map(drop)),
    ("xattr_names", |v, o| v.xattr_names(o.file).map(drop)),
    ("write", |v, o| v.write(o.file, 100_000, &[1; 100_000], 20)),
    ("truncate", |v, o| {
        let new = NewStat {
            size: Some(10),
            ..NewStat::default()
        };
        v.set_stat(o.file, &new, 20).map(drop)
    }),
    ("punch", |v, o| {
        v.allocate(o.file, AllocateMode::PunchHole, 100, 200_000, 20)
    }),
    ("collapse", |v, o| {
        v.allocate(o.file, AllocateMode::Collapse, 4096, 8192, 20)
    }),
    ("insert", |v, o| {
        v.allocate(o.file, AllocateMode::Insert, 4096, 8192, 20)
    }),
    ("copy_range", |v, o| {
        v.copy_range(
            FilePlace::new(o.file, 0),
            FilePlace::new(o.other, 0),
            300_000,
            20,
        )
        .map(drop)
    }),
    ("create", |v, o| {
        let new = new_inode(FileKind::Regular);
        v.create(o.dir, b"new", &new, 20).map(drop)
    }),
    ("link", |v, o| v.link(o.file, o.dir, b"new", 20).map(drop)),
    ("unlink", |v, o| v.unlink(o.dir, b"file", 20).map(drop)),
    ("rmdir", |v, o| v.rmdir(o.dir, b"sub", 20).map(drop)),
    ("rename", |v, o| {
        let (from, to): ((_, &[u8]), (_, &[u8])) = ((o.dir, b"file"), (o.sub_dir, b"new"));
        v.rename(from, to, RenameMode::Replace, 20).map(drop)
    }),
    ("set_xattr", |v, o| {
        v.set_xattr(o.file, b"user.a", b"new", XattrMode::Replace, 20)
    }),
    ("remove_xattr", |v, o| v.remove_xattr(o.file, b"user.a", 20)),
    ("forget", |v, o| v.forget(o.file)),
];

fn perform(volume: &Volume, owned: &[Owned], operation: Operation) -> Vec<Outcome<()>> {
    thread::scope(|scope| {
        let start = |owned| scope.spawn(move || operation(volume, owned));
        let threads: Vec<_> = owned.iter().map(start).collect();
        let results = threads.into_iter().map(|thread| thread.join());
        results
            .map(|result| result.expect("an operation"))
            .collect()
    })
}

/// Would catch: a row that is read under the lock of the volume. Each read of a row waits until
/// each of the 32 clients reads one.
#[test]
fn no_operation_waits_for_the_rows_of_others() {
    let (place, owned) = place();
    for (name, operation) in OPERATIONS {
        let place = place.crashed();
        let gate = Gate::new();
        let volume = open_behind(&place, &gate);
        gate.set(Waits::ForAll);
        let is_done = AtomicBool::new(false);
        let results = thread::scope(|scope| {
            // A change that waits for the lock holds up all that look at the state after it.
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    drop(volume.core.state.write());
                    thread::yield_now();
                }
            });
            let results = perform(&volume, &owned, operation);
            is_done.store(true, Ordering::Relaxed);
            results
        });
        let reads = gate.reads.lock();
        let met = reads.waits == Waits::ForAll && reads.meeting_count > 0;
        assert!(met, "{name}: a read waits for the end of another");
        drop(reads);
        assert!(results.iter().all(Result::is_ok), "{name}: {results:?}");
        gate.set(Waits::No);
        volume.close().expect("close");
        drop(volume);
        place.check();
    }
}

/// 32 clients that need 20 ms for each row wait as long as one client does.
#[test]
fn slow_rows_are_read_at_once() {
    const ROW_TIME: Duration = Duration::from_millis(20);
    let (place, owned) = place();
    for (name, operation) in OPERATIONS {
        let seconds = [&owned[..1], &owned[..]].map(|owned| {
            let place = place.crashed();
            let gate = Gate::new();
            let volume = open_behind(&place, &gate);
            gate.set(Waits::Slow(ROW_TIME));
            let start = Instant::now();
            let results = perform(&volume, owned, operation);
            let time = start.elapsed();
            assert!(results.iter().all(Result::is_ok), "{name}: {results:?}");
            let read_count = gate.reads.lock().read_count;
            gate.set(Waits::No);
            volume.close().expect("close");
            println!(
                "{name}: {} clients: {read_count} rows, {time:.0?}",
                owned.len()
            );
            time.as_secs_f64()
        });
        // One after the other, they would take 32 times as long.
        assert!(seconds[1] < 8.0 * seconds[0], "{name}: {seconds:?}");
    }
}

/// Would catch: rows that were read before the lock was taken and that are used although a commit
/// has changed them; a range that is not read behind those that were read ahead.
#[test]
fn rows_read_ahead_are_those_of_the_last_commit() {
    let place = TestStore::with(&VolumeOptions {
        chunk_len: 4096,
        ..VolumeOptions::default()
    });
    // Six windows are read ahead, of 100.
    let volume = place.open();
    let ino = file(&volume, Ino::ROOT, "long").ino;
    let mut content = noise(100 * 4096, 1);
    volume.write(ino, 0, &content, 1).expect("write");
    volume.commit().expect("commit");
    for round in 0..20 {
        let at = round * 4096 * 5;
        let _ahead = volume.core.prefetch_content(ino, &(at as u64..u64::MAX));
        assert!(read(&volume, ino) == content, "round {round}");
        let new = noise(4096 * 3, 2 + round as u64);
        let end = content.len().min(at + new.len());
        content[at..end].copy_from_slice(&new[..end - at]);
        volume
            .write(ino, at as u64, &content[at..end], 2)
            .expect("write");
        assert!(read(&volume, ino) == content, "round {round}, written");
        volume.commit().expect("commit");
        assert!(read(&volume, ino) == content, "round {round}, committed");
    }
    let hole = AllocateMode::PunchHole;
    let ahead = volume.core.prefetch_content(ino, &(0..u64::MAX));
    volume.allocate(ino, hole, 0, 90 * 4096, 3).expect("punch");
    volume.commit().expect("commit");
    assert_eq!(volume.seek(ino, 0, false).expect("data"), 90 * 4096);
    assert_eq!(volume.seek(ino, 0, true).expect("a hole"), 0);
    assert_eq!(
        volume.seek(ino, 90 * 4096, true).expect("the end"),
        100 * 4096
    );
    drop(ahead);
    volume.close().expect("close");
    drop(volume);
    place.check();
}
