//! The file of a volume's sync log: where records lie, how they become durable, and which of them
//! count after a crash.
//!
//! A record may be written while the records before it are being synced: at most [`SYNCS_MAX`] are
//! under way. Its header says how many records were durable before. A record that is not whole was
//! never acknowledged by a sync, unless a later header counts it: one of its layer as durable, or
//! one of the layer above. Then acknowledged changes are damaged.

use crate::disk::{Access, LocalFile};
use crate::engine::{Engine, Table};
use crate::faults::{Bug, Faults};
use crate::layout;
use crate::store::Store;
use crate::writer::StoreWriter;
use std::sync::Arc;
use weald_format::log_record::{LogRecord, body_len_max, encode_record, read_record, record_len};
use weald_format::sync_log::{
    ALIGN, DELTA_HEADER_LEN, DeltaHeader, HALF_LEN_MAX, SYNC_LOG_COPY_AT, SYNC_LOG_SUPERBLOCK_LEN,
    SyncLogId, SyncLogShape, chain_start, delta_len,
};
use weald_format::volume::{LogRow, VolumeRow, commit_key};
use weald_format::{Error, ErrorKind, RecordNo, Result, VolumeCommitNo, VolumeNo};
use zerocopy::IntoBytes;

/// Records that may be under way: written, and their syncs did not return yet. Two syncs at a time
/// keep a disk busy; each further one would make the groups of changes smaller.
pub const SYNCS_MAX: usize = 2;
/// The way out of a damaged log, for messages.
pub const DAMAGED_LOG_HINT: &str = "mount the volume read-only to see what is left, or with \
                                    '-o log=drop' to go on with it";
/// What to do with a log that was damaged and could be read all the same, for messages.
pub const REPAIRED_LOG_HINT: &str = "nothing is lost: the next mount for writing puts its changes \
                                     into the tables";
/// Name of a new log until it is complete.
const LOG_NEW: &str = "log.new";
/// Byte that a new log is filled with. File systems that take zeros for a hole keep its space.
const FILL: u8 = 0xa5;
/// Bytes that one write fills.
const FILL_LEN: u64 = 1 << 20;

/// The sync log of a volume, for its writer.
#[derive(Debug)]
pub struct SyncLog {
    /// The file, opened once for each record that may be under way. The kernel reports a failed
    /// write once to each open file, so no sync takes the error of another one.
    files: Vec<Arc<dyn LocalFile>>,
    shown: String,
    id: SyncLogId,
    half_len: u64,
    /// Whether its records have parity.
    has_parity: bool,
    /// Whether its superblock or the copy is damaged.
    is_damaged: bool,
    /// The next record, but for its sequence: the layer that receives changes, the last commit.
    next: DeltaHeader,
    /// Number of records of the layer.
    count: u64,
    /// Where the next record goes, from the start of the half.
    at: u64,
    /// A deliberate bug, if a simulation must find it.
    pub faults: Faults<Bug>,
}

/// A record that was written.
#[derive(Debug)]
pub struct WrittenRecord {
    file: Arc<dyn LocalFile>,
    is_skipped: bool,
}

impl WrittenRecord {
    /// Makes the record durable, and all before it.
    ///
    /// # Errors
    /// `Io`: the state of the disk is unknown.
    pub fn sync(&self) -> Result<()> {
        if self.is_skipped {
            return Ok(());
        }
        self.file.sync().map_err(|error| match error.kind() {
            // Unlike a write, a sync that failed leaves nothing to rely on.
            ErrorKind::Full => Error::new(ErrorKind::Io, error.to_string()),
            _ => error,
        })
    }
}

/// Records that count.
#[derive(Debug, Default)]
pub struct SyncLogRecords {
    /// Bodies of the layer above the last commit, in order.
    pub first: Vec<Vec<u8>>,
    /// Bodies of the layer above that one, which began while its commit was under way.
    pub second: Vec<Vec<u8>>,
    /// Whether records lie behind these that no sync acknowledged. They must be invalid before the
    /// log receives new ones: two commits do that.
    pub has_rest: bool,
    /// The damage, if acknowledged changes behind these are damaged.
    pub damage: Option<Error>,
    /// Places that are damaged, in words, and whose bytes were made good.
    pub repaired: Vec<String>,
}

impl SyncLogRecords {
    /// Whether there is no record.
    pub fn is_empty(&self) -> bool {
        self.first.is_empty() && self.second.is_empty()
    }
}

/// The beginning of the chain of an earlier commit, if the tables still have it. That of commit 0
/// is not asked for.
type ChainOf<'a> = dyn Fn(VolumeCommitNo) -> Result<Option<[u8; 16]>> + 'a;

/// [`ChainOf`] a volume in these tables.
fn chain_of(
    tables: &dyn Engine,
    volume_no: VolumeNo,
    commit: VolumeCommitNo,
) -> Result<Option<[u8; 16]>> {
    let value = tables.get(Table::Log, &commit_key(volume_no, commit))?;
    let row = value.map(|value| LogRow::parse(&value)).transpose()?;
    Ok(row.map(|row| chain_start(&row.chain)))
}

/// A commit that records are based on: the last one when they were written.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Base {
    commit: VolumeCommitNo,
    /// The beginning of its chain.
    chain: [u8; 16],
}

/// Where the half of a layer begins, in a log whose halves have `half_len` bytes.
fn half_start(layer: VolumeCommitNo, half_len: u64) -> u64 {
    ALIGN + layer.0 % 2 * half_len
}

/// The records of one half.
#[derive(Default)]
struct Half {
    bodies: Vec<Vec<u8>>,
    /// Records of the layer before that its headers count.
    before: Option<u64>,
    /// Where records end although a later header counts the next one as durable.
    damaged_at: Option<u64>,
    /// Whether there are later headers.
    has_rest: bool,
    /// Damaged records that were made good: their number, and where they begin.
    repaired: Vec<(RecordNo, u64)>,
    /// Records that headers count as durable.
    synced: u64,
}

impl Half {
    /// Where records begin that were made good, and are damaged, not torn. All that is durable if
    /// `is_durable`.
    fn repaired_at(&self, is_durable: bool) -> impl Iterator<Item = u64> {
        let synced = self.synced;
        let damaged = self.repaired.iter();
        let damaged = damaged.filter(move |(no, _)| is_durable || no.0 <= synced);
        damaged.map(|(_, at)| *at)
    }
}

impl Store {
    fn sync_log_id(&self, volume_no: VolumeNo) -> SyncLogId {
        SyncLogId {
            uuid: self.uuid(),
            volume_no,
        }
    }

    fn shown_sync_log(&self, volume_no: VolumeNo) -> String {
        format!("{}/{}", self.shown(), layout::sync_log(volume_no))
    }

    fn sync_log_of(
        &self,
        first: Box<dyn LocalFile>,
        volume_no: VolumeNo,
        (shape, is_damaged): (SyncLogShape, bool),
    ) -> Result<SyncLog> {
        let mut files = vec![Arc::from(first)];
        while files.len() < SYNCS_MAX {
            let name = layout::sync_log(volume_no);
            files.push(Arc::from(self.disk.open(&name, Access::Write)?));
        }
        Ok(SyncLog {
            files,
            shown: self.shown_sync_log(volume_no),
            id: self.sync_log_id(volume_no),
            half_len: shape.half_len,
            has_parity: shape.has_parity,
            is_damaged,
            next: DeltaHeader::default(),
            count: 0,
            at: 0,
            faults: Faults::default(),
        })
    }

    /// Opens the sync log of the volume `volume_no`, if it has one.
    ///
    /// # Errors
    /// `Corrupt` if the file is no whole log of this volume; `Unsupported`, `Io`.
    fn open_sync_log(&self, volume_no: VolumeNo) -> Result<Option<SyncLog>> {
        let shown = self.shown_sync_log(volume_no);
        let name = layout::sync_log(volume_no);
        let file = match self.disk.open(&name, Access::Write) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        let len = file.len()?;
        let mut superblock = [0; SYNC_LOG_SUPERBLOCK_LEN];
        let short = |half_len: u64| {
            let what = format!("{shown}: {len} bytes are too few for halves of {half_len} bytes");
            Error::corrupt("sync log", 0, "V-6.3", what)
        };
        if len < ALIGN {
            return Err(short(0));
        }
        file.read_at(&mut superblock, 0)?;
        let mut copy = [0; SYNC_LOG_SUPERBLOCK_LEN];
        file.read_at(&mut copy, SYNC_LOG_COPY_AT)?;
        let id = self.sync_log_id(volume_no);
        let found = id.check_superblock(&superblock);
        let found = match (found, id.check_superblock(&copy)) {
            (Err(error), Ok(shape)) if error.kind() == ErrorKind::Corrupt => Ok(shape),
            (found, _) => found,
        };
        let shape = found.map_err(|error| error.context(&shown))?;
        let is_damaged = shape.has_parity && superblock != copy;
        if len >= ALIGN + 2 * shape.half_len {
            let log = self.sync_log_of(file, volume_no, (shape, is_damaged));
            log.map(Some)
        } else {
            Err(short(shape.half_len))
        }
    }

    /// Reads the sync log of the volume with this row. No record counts unless the row says that
    /// the log may hold changes. Damage of the whole file is damage of the records. `prepare` may
    /// plant a bug.
    ///
    /// # Errors
    /// `Unsupported`, `Io`.
    pub(crate) fn read_sync_log(
        &self,
        row: &VolumeRow,
        chain_of: &ChainOf<'_>,
        prepare: &dyn Fn(SyncLog) -> SyncLog,
    ) -> Result<SyncLogRecords> {
        let of_damage = |damage| SyncLogRecords {
            damage: Some(damage),
            ..SyncLogRecords::default()
        };
        if !row.has_sync_log {
            return Ok(SyncLogRecords::default());
        }
        match self.open_sync_log(row.volume_no) {
            Ok(Some(log)) => prepare(log).read(row, chain_of),
            Ok(None) => {
                let shown = self.shown_sync_log(row.volume_no);
                let what = format!("{shown}: the sync log is missing: synced changes are lost");
                Ok(of_damage(Error::corrupt("sync log", 0, "V-6.1", what)))
            }
            Err(error) if error.kind() == ErrorKind::Corrupt => Ok(of_damage(error)),
            Err(error) => Err(error),
        }
    }

    /// Writes a log without a record.
    fn write_empty_log(
        &self,
        name: &str,
        volume_no: VolumeNo,
        half_len: u64,
    ) -> Result<Box<dyn LocalFile>> {
        let file = self.disk.open(name, Access::Create)?;
        let end = ALIGN + 2 * half_len;
        let fill = vec![FILL; FILL_LEN.min(end) as usize];
        let mut at = 0;
        while at < end {
            let len = FILL_LEN.min(end - at);
            file.write_at(fill.get(..len as usize).unwrap_or(&fill), at)?;
            at += len;
        }
        // The superblock says that the rest is there.
        file.sync()?;
        let superblock = self.sync_log_id(volume_no).encode_superblock(half_len);
        file.write_at(superblock.as_bytes(), 0)?;
        file.write_at(superblock.as_bytes(), SYNC_LOG_COPY_AT)?;
        file.sync()?;
        Ok(file)
    }

    /// Puts a log in place of that of the volume with this row, with one record above its last
    /// commit. A log that would be too long for a reader stays as it is.
    ///
    /// # Errors
    /// `Full`, and then the log is as before; `Io`, `Corrupt`.
    pub(crate) fn replace_sync_log(&self, row: &VolumeRow, body: &[u8]) -> Result<()> {
        let Some(old) = self.open_sync_log(row.volume_no)? else {
            return Ok(());
        };
        let half_len = old.half_len.max(record_len(body.len() as u64));
        if half_len > HALF_LEN_MAX {
            return Ok(());
        }
        let name = LOG_NEW;
        match self.disk.remove(name) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = self.write_empty_log(name, row.volume_no, half_len)?;
        let header = DeltaHeader {
            layer: row.commit.next(),
            base: row.commit,
            sequence: RecordNo::after(0),
            base_chain: chain_start(&row.chain),
            ..DeltaHeader::default()
        };
        let at = half_start(header.layer, half_len);
        let bytes = encode_record(&self.sync_log_id(row.volume_no), &header, body);
        file.write_at(&bytes, at)?;
        file.sync()?;
        drop(file);
        self.disk.rename(name, &layout::sync_log(row.volume_no))?;
        self.disk.sync_dir(layout::VOLUMES)
    }
}

impl StoreWriter {
    /// Opens the sync log of the volume `volume_no` for new records, if it has one that can take
    /// them: none of an older version, and none with damage.
    ///
    /// # Errors
    /// `Corrupt` if the file is no whole log of this volume; `Unsupported`, `Io`.
    pub fn open_sync_log(&self, volume_no: VolumeNo) -> Result<Option<SyncLog>> {
        let found = self.store().open_sync_log(volume_no)?;
        Ok(found.filter(|log| log.has_parity && !log.is_damaged))
    }

    /// Reads the sync log of the volume with this row. No record counts unless the row says that
    /// the log may hold changes. Damage of the whole file is damage of the records. `prepare` may
    /// plant a bug.
    ///
    /// # Errors
    /// `Unsupported`, `Io`.
    pub fn read_sync_log(
        &self,
        row: &VolumeRow,
        prepare: &dyn Fn(SyncLog) -> SyncLog,
    ) -> Result<SyncLogRecords> {
        let engine = self.engine();
        let chain_of = |commit| chain_of(&*engine, row.volume_no, commit);
        self.store().read_sync_log(row, &chain_of, prepare)
    }

    /// Makes the sync log of the volume `volume_no`, with two halves of `half_len` bytes, which the
    /// disk gives now. A later sync of a record then changes no metadata of the disk.
    ///
    /// # Errors
    /// `Full`, and then there is no log; `Io`.
    pub fn create_sync_log(&self, volume_no: VolumeNo, half_len: u64) -> Result<SyncLog> {
        let created = self.write_sync_log(volume_no, half_len);
        if created.is_err() {
            // The file is not whole, and the next writer makes it anew.
            let _left = self.remove_sync_log(volume_no);
        }
        let file = created?;
        let shape = SyncLogShape {
            half_len,
            has_parity: true,
        };
        self.store().sync_log_of(file, volume_no, (shape, false))
    }

    fn write_sync_log(&self, volume_no: VolumeNo, half_len: u64) -> Result<Box<dyn LocalFile>> {
        self.remove_sync_log(volume_no)?;
        let name = layout::sync_log(volume_no);
        let file = self.store().write_empty_log(&name, volume_no, half_len)?;
        self.store().disk.sync_dir(layout::VOLUMES)?;
        Ok(file)
    }

    /// Removes the file of the sync log, if there is one.
    ///
    /// # Errors
    /// `Io`.
    pub fn remove_sync_log(&self, volume_no: VolumeNo) -> Result<()> {
        match self.store().disk.remove(&layout::sync_log(volume_no)) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

impl SyncLog {
    /// Path in messages.
    pub fn shown(&self) -> &str {
        &self.shown
    }

    /// Receives changes above the last commit, which `row` has. Earlier records are dead.
    pub fn start(&mut self, row: &VolumeRow) {
        self.next.layer = row.commit.next();
        self.at = 0;
        self.count = 0;
        self.committed(row);
    }

    /// Receives the changes of the next layer: the commit of this one begins.
    pub fn next_layer(&mut self) {
        self.next.layer = self.next.layer.next();
        self.next.before = self.count;
        self.at = 0;
        self.count = 0;
    }

    /// Notes the commit that `row` has.
    pub fn committed(&mut self, row: &VolumeRow) {
        self.next.base = row.commit;
        self.next.base_chain = chain_start(&row.chain);
        self.next.before = 0;
    }

    /// Longest body that the layer has room for, bytes.
    pub fn free_len(&self) -> u64 {
        body_len_max(self.half_len - self.at)
    }

    /// Whether most of the half is taken.
    pub fn is_nearly_full(&self) -> bool {
        self.at >= self.half_len / 4 * 3
    }

    /// Writes a record, which the caller syncs. `body` fits into the room. The last `unsynced`
    /// records before it may not be durable yet.
    ///
    /// # Errors
    /// `Full` if it was not written; any other error leaves the state of the disk unknown.
    ///
    /// # Panics
    /// If the body does not fit.
    pub fn append(&mut self, body: &[u8], unsynced: u64) -> Result<WrittenRecord> {
        assert!(body.len() as u64 <= self.free_len(), "a record has no room");
        self.next.sequence = RecordNo::after(self.count);
        self.next.unsynced = unsynced;
        if self.faults.has(Bug::LogAheadCounted) {
            self.next.unsynced = 0;
        }
        let bytes = encode_record(&self.id, &self.next, body);
        let at = self.half(self.next.layer) + self.at;
        let turn = self.count as usize % self.files.len();
        let file = self.files.get(turn).unwrap_or(&self.files[0]).clone();
        file.write_at(&bytes, at)?;
        let is_skipped = self.faults.has(Bug::LogUnsynced);
        self.at += bytes.len() as u64;
        self.count += 1;
        Ok(WrittenRecord { file, is_skipped })
    }

    /// Where the half of a layer begins.
    fn half(&self, layer: VolumeCommitNo) -> u64 {
        if self.faults.has(Bug::LogReusedEarly) {
            return ALIGN;
        }
        half_start(layer, self.half_len)
    }

    /// Reads the records above the last commit, which `row` has.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    fn read(&self, row: &VolumeRow, chain_of: &ChainOf<'_>) -> Result<SyncLogRecords> {
        let now = Base {
            commit: row.commit,
            chain: chain_start(&row.chain),
        };
        let mut bases = vec![now];
        if let Some(earlier) = row.commit.before(1) {
            let chain = match earlier {
                VolumeCommitNo::NONE => Some([0; 16]),
                _ => chain_of(earlier)?,
            };
            bases.extend(chain.map(|chain| Base {
                commit: earlier,
                chain,
            }));
        }
        let layer = row.commit.next();
        let first = self.read_layer(layer, &bases)?;
        let mut second = self.read_layer(layer.next(), &[now])?;
        let mut damage = first.damaged_at.or(second.damaged_at);
        let places = first.repaired_at(second.before.is_some());
        let places = places.chain(second.repaired_at(false));
        let places = places.map(|at| format!("a record at byte {at}"));
        let superblock = self.is_damaged.then(|| "its superblock".to_owned());
        let repaired = superblock.into_iter().chain(places);
        let repaired = repaired.map(|place| {
            let shown = &self.shown;
            format!("{shown}: {place} is damaged, and could be read by its copy")
        });
        let repaired: Vec<_> = repaired.collect();
        let count = first.bodies.len() as u64;
        let is_short = second.before.is_some_and(|before| before != count);
        if first.damaged_at.is_some() || is_short {
            second.bodies.clear();
            damage = damage.or(Some(self.half(layer)));
        }
        Ok(SyncLogRecords {
            first: first.bodies,
            second: second.bodies,
            has_rest: first.has_rest || second.has_rest,
            repaired,
            damage: damage.map(|at| {
                let what = format!(
                    "{}: a record at byte {at} is damaged, and later ones are there: synced \
                     changes are lost",
                    self.shown
                );
                Error::corrupt("sync log", at, "V-6.4", what)
            }),
        })
    }

    fn read_layer(&self, layer: VolumeCommitNo, bases: &[Base]) -> Result<Half> {
        let start = self.half(layer);
        let mut bytes = vec![0; self.half_len as usize];
        self.files[0].read_at(&mut bytes, start)?;
        let any = self.faults.has(Bug::LogDeadRead);
        let is_ours = |header: &DeltaHeader| {
            let base = Base {
                commit: header.base,
                chain: header.base_chain,
            };
            any || header.layer == layer && bases.contains(&base)
        };
        // A record has its header at both ends: of one that is torn, either may be there.
        let headers_of = |page: u64| {
            let end = page + ALIGN - DELTA_HEADER_LEN as u64;
            let ends = [Some(page), self.has_parity.then_some(end)];
            let found = ends.map(|at| {
                let header = self.id.parse_header(bytes.get(at? as usize..)?);
                header.filter(is_ours)
            });
            found.into_iter().flatten()
        };
        let mut found = Half::default();
        let mut at = 0;
        while let Some(rest) = bytes.get(at as usize..) {
            let next = RecordNo::after(found.bodies.len() as u64);
            let is_next = |header: &DeltaHeader| is_ours(header) && header.sequence == next;
            let Some(record) = self.record(rest, &is_next) else {
                break;
            };
            found.before = found.before.max(Some(record.header.before));
            found.bodies.push(record.body);
            if record.is_repaired {
                found.repaired.push((next, start + at));
            }
            found.synced = found.synced.max(record.header.synced());
            at += record.len;
        }
        let next = RecordNo::after(found.bodies.len() as u64);
        let behind = (at..self.half_len).step_by(ALIGN as usize);
        for header in behind.filter(|_| !any).flat_map(headers_of) {
            found.before = found.before.max(Some(header.before));
            found.synced = found.synced.max(header.synced());
            found.has_rest |= header.sequence > next;
            if header.synced() >= next.0 {
                found.damaged_at = Some(start + at);
            }
        }
        Ok(found)
    }

    /// The record at the front of `bytes`, if it is whole or can be made good.
    fn record(&self, bytes: &[u8], is_next: &dyn Fn(&DeltaHeader) -> bool) -> Option<LogRecord> {
        let has_bug = self.faults.has(Bug::LogTornRead);
        if self.has_parity && !has_bug {
            return read_record(&self.id, bytes, is_next);
        }
        let header = self.id.parse_header(bytes).filter(is_next)?;
        let body = if has_bug {
            bytes.get(DELTA_HEADER_LEN..DELTA_HEADER_LEN + header.body_len as usize)
        } else {
            header.body(bytes)
        };
        let len = if self.has_parity {
            record_len(header.body_len)
        } else {
            delta_len(header.body_len)
        };
        Some(LogRecord {
            header,
            body: body?.to_vec(),
            len,
            is_repaired: false,
        })
    }
}
