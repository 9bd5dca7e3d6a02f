//! The sync log of a volume: what an open volume keeps of it, and what a crash left in it.

use crate::delta::decode;
use crate::layer::Layer;
use crate::options::OpenOptions;
use crate::options::PlantedBug;
use weald_format::volume::VolumeRow;
use weald_format::{Error, ErrorKind, Result, VolumeNo};
use weald_store::faults::Bug;
use weald_store::{DAMAGED_LOG_HINT, StoreWriter, SyncLog};

/// Longest body of a record, bytes. A commit is faster for more.
pub const BODY_LEN_MAX: u64 = 4 << 20;

/// State of the log that syncs share.
#[derive(Debug, Default)]
pub struct Logger {
    /// The log that receives records.
    pub log: Option<SyncLog>,
    /// A log that receives records after the next commit, whose row says that there is one.
    pub prepared: Option<SyncLog>,
    /// Number of syncs that committed.
    pub syncs: u64,
    /// Whether this mount writes no more records.
    pub is_off: bool,
}

impl Logger {
    /// Notes a commit.
    pub fn committed(&mut self, row: &VolumeRow) {
        if let Some(mut log) = self.prepared.take() {
            log.start(row);
            self.log = Some(log);
        } else if let Some(log) = &mut self.log {
            log.committed(row);
        }
    }

    /// Writes no more records.
    pub fn end(&mut self) {
        self.log = None;
        self.prepared = None;
        self.is_off = true;
    }
}

/// Opens the log of a volume, if it is there and whole.
///
/// # Errors
/// `Unsupported`, `Io`.
pub fn open_log(
    writer: &StoreWriter,
    volume_no: VolumeNo,
    options: &OpenOptions,
) -> Result<Option<SyncLog>> {
    match writer.open_sync_log(volume_no) {
        Err(error) if error.kind() == ErrorKind::Corrupt => Ok(None),
        Ok(Some(log)) => Ok(Some(with_bug(log, options))),
        other => other,
    }
}

/// `log`, with the deliberate bug of the options.
pub fn with_bug(mut log: SyncLog, options: &OpenOptions) -> SyncLog {
    log.faults = options.faults.map(|bug| match bug {
        PlantedBug::LogUnsynced => Some(Bug::LogUnsynced),
        PlantedBug::LogDeadRead => Some(Bug::LogDeadRead),
        PlantedBug::LogTornRead => Some(Bug::LogTornRead),
        PlantedBug::LogReusedEarly => Some(Bug::LogReusedEarly),
        PlantedBug::LogAheadCounted => Some(Bug::LogAheadCounted),
        _ => None,
    });
    log
}

/// Changes of the log above the last commit.
#[derive(Debug, Default)]
pub struct Replay {
    /// The layers that the next commits take, in order: at most two. The first may be unchanged.
    pub layers: Vec<Layer>,
    /// The damage, if acknowledged changes are damaged.
    pub damage: Option<Error>,
}

impl Replay {
    /// Reads it. Nothing of a volume whose row says that the log is empty.
    ///
    /// # Errors
    /// `Io`, `Unsupported`.
    pub fn read(writer: &StoreWriter, row: &VolumeRow, options: &OpenOptions) -> Result<Self> {
        let records = writer.read_sync_log(row, &|log| with_bug(log, options))?;
        for what in &records.repaired {
            log::warn!("{what}: nothing is lost");
        }
        let has_rest = records.has_rest && !options.faults.has(PlantedBug::LogRestKept);
        let mut replay = Self {
            layers: Vec::new(),
            damage: records.damage,
        };
        for bodies in [records.first, records.second] {
            let below = replay.layers.last();
            let mut layer = Layer {
                next_ino: below.map_or(row.next_ino, |below| below.next_ino),
                now: below.map_or(0, |below| below.now),
                ..Layer::default()
            };
            for body in bodies {
                match decode(&body, row.volume_no) {
                    Ok(mut newer) => {
                        // A salvage gives inodes to what has lost its own.
                        newer.next_ino = newer.next_ino.max(row.next_ino);
                        layer.merge(newer);
                    }
                    Err(error) => {
                        replay.damage = Some(error);
                        replay.layers.push(layer);
                        return Ok(replay);
                    }
                }
            }
            replay.layers.push(layer);
        }
        // Two commits make the rest dead: it may belong to either layer.
        if replay.damage.is_none() && !has_rest {
            while replay.layers.pop_if(|layer| !layer.is_changed).is_some() {}
        }
        Ok(replay)
    }

    /// Refuses damage, unless the options accept it.
    ///
    /// # Errors
    /// `Corrupt`; the message says how to mount the volume.
    pub fn accepted(mut self, options: &OpenOptions) -> Result<Self> {
        let Some(damage) = &self.damage else {
            return Ok(self);
        };
        if !options.is_read_only && !options.drops_damaged_log {
            let what = format!("{damage}: {DAMAGED_LOG_HINT}");
            return Err(Error::corrupt("sync log", 0, "V-6.4", what));
        }
        log::warn!("changes that were synced are lost: {damage}");
        // Records of both layers may lie behind the damage. Two commits make all of them dead.
        self.layers.resize_with(2, Layer::default);
        Ok(self)
    }
}
