//! What commands do with the snapshots of a volume: in the server that has the store open, or in a
//! process of their own.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use weald_format::{Error, ErrorKind, Result, SnapshotNo};
use weald_store::snapshots;
use weald_store::{Snapshot, SnapshotSpace, SnapshotSpaces, Store, StoreWriter, WriteOptions};
use weald_volume::{OpenOptions, OpenStore, Volume};

/// Something to do with the snapshots of one volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SnapshotWork {
    /// Take a snapshot of this name.
    Take(String),
    /// Tell what there is; with what each removal would free if this is true.
    List(bool),
    /// Tell what the removal of the snapshots from one to another would free: a list of one.
    Range {
        /// The first.
        first: String,
        /// The last.
        last: String,
    },
    /// Remove these. All are looked at before the first goes.
    Remove(Vec<String>),
    /// Remove these but for those that are being read, of which the answer is a list.
    Prune(Vec<String>),
    /// Hold this one by a tag, or take the tag away.
    Hold {
        /// The snapshot.
        name: String,
        /// The tag.
        tag: String,
        /// Whether it is held from now on.
        is_held: bool,
    },
    /// Make a volume that starts as a snapshot.
    Clone {
        /// The snapshot.
        name: String,
        /// Name of the volume.
        new: String,
    },
    /// Give the volume the state of this one again.
    RollBack(String),
}

impl SnapshotWork {
    /// Whether it changes nothing.
    pub const fn is_reading(&self) -> bool {
        matches!(self, Self::List(_) | Self::Range { .. })
    }
}

/// A snapshot of a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotReport {
    /// Its name.
    pub name: String,
    /// When it was taken, nanoseconds since 1970.
    pub created: i64,
    /// Number of the volume's commit with which it ends.
    pub commit: u64,
    /// Tags that hold it.
    pub holds: Vec<String>,
    /// Whether it is mounted, on its own.
    #[serde(default)]
    pub is_mounted: bool,
    /// What its removal would free, if the list has that.
    pub space: Option<SnapshotSpaceReport>,
}

/// What the removal of a snapshot would free.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotSpaceReport {
    /// Rows that changed after it.
    pub kept_count: u64,
    /// Those that no older snapshot has.
    pub own_count: u64,
    /// Bytes of blocks that only it has.
    pub own_len: u64,
}

fn now() -> i128 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as i128)
}

/// Does `work` with the volume `name` of an open store. `mounted` is the volume, if it is mounted.
/// Returns the list that was asked for.
///
/// # Errors
/// Those of [`Volume`]'s functions of the same names; `Busy` for a rollback of a mounted volume.
pub(crate) fn work_in(
    store: &Arc<OpenStore>,
    name: &str,
    mounted: Option<Arc<Volume>>,
    work: &SnapshotWork,
) -> Result<Vec<SnapshotReport>> {
    if let SnapshotWork::RollBack(of) = work {
        if mounted.is_some() {
            let what = format!("{name}: the volume is mounted: unmount it first");
            return Err(Error::new(ErrorKind::Busy, what));
        }
        return store.roll_back(name, of).map(|()| Vec::new());
    }
    if let Some(volume) = mounted {
        return with_volume(&volume, work);
    }
    let options = OpenOptions {
        background: false,
        ..OpenOptions::default()
    };
    let volume = Volume::open_in(store, name, options)?;
    let done = with_volume(&volume, work);
    let removed = finish_removals(&volume, work);
    let closed = volume.close();
    let done = done?;
    removed.and(closed).map(|()| done)
}

/// Does `work` with the volume `name` of a store that no server has open. `writer_name` is for
/// messages of other processes.
///
/// # Errors
/// `Busy` if another process writes to the store; those of [`Volume`]'s functions of the same
/// names.
pub fn work_alone(
    store: &Store,
    name: &str,
    work: &SnapshotWork,
    writer_name: String,
) -> Result<Vec<SnapshotReport>> {
    let options = OpenOptions {
        background: false,
        writer_name,
        is_read_only: work.is_reading(),
        ..OpenOptions::default()
    };
    if let SnapshotWork::RollBack(_) = work {
        // Changes of a crash are older than the rollback.
        weald_volume::apply_sync_log(store, name, &options.writer_name)?;
    }
    if let SnapshotWork::List(has_space) = work {
        return list_alone(store, name, *has_space, &options.writer_name);
    }
    let opened = OpenStore::open(store, &options)?;
    if !work.is_reading() {
        return work_in(&opened, name, None, work);
    }
    let volume = Volume::open_in(&opened, name, options)?;
    let done = with_volume(&volume, work);
    volume.close()?;
    done
}

/// A volume without a thread of its own removes what was taken away at once.
fn finish_removals(volume: &Volume, work: &SnapshotWork) -> Result<()> {
    if matches!(work, SnapshotWork::Remove(_) | SnapshotWork::Prune(_)) {
        while volume.snapshot_step()? {}
        volume.return_space()?;
    }
    Ok(())
}

fn with_volume(volume: &Arc<Volume>, work: &SnapshotWork) -> Result<Vec<SnapshotReport>> {
    match work {
        SnapshotWork::Take(name) => volume.take_snapshot(name, now()).map(drop)?,
        SnapshotWork::List(has_space) => return list(volume, *has_space),
        SnapshotWork::Range { first, last } => return range(volume, (first, last)),
        SnapshotWork::Remove(names) => {
            for found in to_remove(volume, names)? {
                volume.remove_snapshot(&found.name)?;
            }
        }
        SnapshotWork::Prune(names) => {
            let mut read = Vec::new();
            for found in to_remove(volume, names)? {
                if !volume.remove_unless_read(&found)? {
                    read.push(report_of(&found, false));
                }
            }
            return Ok(read);
        }
        SnapshotWork::Hold { name, tag, is_held } => {
            volume.hold_snapshot(name, (tag, *is_held))?;
        }
        SnapshotWork::Clone { name, new } => volume.clone_snapshot(name, new, now())?,
        SnapshotWork::RollBack(_) => {
            return Err(Error::invalid("a rollback is not for an open volume"));
        }
    }
    Ok(Vec::new())
}

/// The snapshots `names`, of which none is held.
fn to_remove(volume: &Volume, names: &[String]) -> Result<Vec<Snapshot>> {
    let mut missing: BTreeSet<&str> = names.iter().map(String::as_str).collect();
    let mut found = volume.snapshots()?;
    found.retain(|snapshot| missing.remove(snapshot.name.as_str()));
    if let Some(name) = missing.first() {
        return Err(Error::not_found(format!(
            "@{name}: the volume has no such snapshot"
        )));
    }
    for snapshot in &found {
        snapshot.refuse_held()?;
    }
    Ok(found)
}

impl From<SnapshotSpace> for SnapshotSpaceReport {
    fn from(space: SnapshotSpace) -> Self {
        Self {
            kept_count: space.kept_count,
            own_count: space.own_count,
            own_len: space.own_len,
        }
    }
}

fn range(volume: &Volume, (first, last): (&str, &str)) -> Result<Vec<SnapshotReport>> {
    let all = volume.snapshots()?;
    let find = |name: &str| {
        let found = all.iter().position(|snapshot| snapshot.name == name);
        found.ok_or_else(|| Error::not_found(format!("@{name}: the volume has no such snapshot")))
    };
    let (from, to) = (find(first)?, find(last)?);
    let (Some(oldest), Some(newest)) = (all.get(from.min(to)), all.get(from.max(to))) else {
        return Ok(Vec::new());
    };
    let spaces = volume.snapshot_spaces(&[[oldest.no, newest.no]])?;
    Ok(vec![SnapshotReport {
        name: format!("{}..{}", oldest.name, newest.name),
        space: spaces.first().map(|space| (*space).into()),
        ..report_of(oldest, volume.is_snapshot_mounted(oldest.no))
    }])
}

fn list(volume: &Volume, has_space: bool) -> Result<Vec<SnapshotReport>> {
    let all = volume.snapshots()?;
    let mut spaces = Vec::new();
    if has_space {
        let ranges: Vec<_> = all.iter().map(|found| [found.no; 2]).collect();
        spaces = volume.snapshot_spaces(&ranges)?;
    }
    let reports = all.iter().enumerate().map(|(at, found)| SnapshotReport {
        space: spaces.get(at).map(|space| (*space).into()),
        ..report_of(found, volume.is_snapshot_mounted(found.no))
    });
    Ok(reports.collect())
}

/// How long a list keeps the store from others, and how long it lets them have it then. One
/// snapshot is looked at as a whole.
const LIST_TIME: Duration = Duration::from_millis(200);
const LIST_PAUSE: Duration = Duration::from_millis(60);

/// The snapshots of a volume of a store that no server has open. Others have the store in turn.
fn list_alone(
    store: &Store,
    name: &str,
    has_space: bool,
    writer_name: &str,
) -> Result<Vec<SnapshotReport>> {
    let mut reports = Vec::new();
    let mut next = Some(SnapshotNo::FIRST);
    while let Some(from) = next {
        let writer = store.write(WriteOptions::new(writer_name))?;
        next = list_for_a_while(&writer, name, (from, has_space), &mut reports)?;
        drop(writer);
        if next.is_some() {
            std::thread::sleep(LIST_PAUSE);
        }
    }
    Ok(reports)
}

/// Adds the snapshots from `from` on to `reports`. Returns where to go on when others had their
/// turn.
fn list_for_a_while(
    writer: &StoreWriter,
    name: &str,
    (from, has_space): (SnapshotNo, bool),
    reports: &mut Vec<SnapshotReport>,
) -> Result<Option<SnapshotNo>> {
    let begun = Instant::now();
    let volume_no = writer.volume_row(name)?.volume_no;
    let engine = writer.engine();
    let spaces = SnapshotSpaces::of(&*engine, volume_no)?;
    let mut all = snapshots(&*engine, volume_no)?;
    all.retain(|found| found.no >= from);
    for found in &all {
        let mut report = report_of(found, false);
        if has_space {
            report.space = Some(spaces.space((found.no, found.no))?.into());
        }
        reports.push(report);
        let is_over = begun.elapsed() >= LIST_TIME;
        if is_over && !writer.store().keeps_changes_in_memory() {
            return Ok(Some(found.no.next()));
        }
    }
    Ok(None)
}

/// The report of a snapshot, without its space.
fn report_of(of: &Snapshot, is_mounted: bool) -> SnapshotReport {
    SnapshotReport {
        is_mounted,
        name: of.name.clone(),
        created: i64::try_from(of.created).unwrap_or_default(),
        commit: of.volume.commit.0,
        holds: of.holds.clone(),
        space: None,
    }
}
