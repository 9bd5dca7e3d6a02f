//! A run of moves: what should move by now, in which order, how fast, and what is told afterwards.
//!
//! What cannot be done is not tried again within a run: a tier that has failed or is full gets
//! nothing more, and the report says what waits for what. The next run comes after a while, or when
//! the tiers are changed.

use super::heat::Heat;
use super::manage::KnownLens;
use super::moving::Moved;
use super::plan::{PlannedMove, Use, Why, plan};
use super::record::{HOME, TiersRecord};
use crate::layout;
use crate::store::Store;
use crate::writer::StoreWriter;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use weald_format::{ErrorKind, Result, SegmentNo};

/// Longest time between two looks whether a run has to end.
const LOOK_TIME: Duration = Duration::from_millis(100);
/// Most bytes of the report.
const REPORT_LEN_MAX: u64 = 1 << 20;

/// What moves by itself, run after run.
#[derive(Debug)]
pub struct Mover {
    store: Store,
    heat: Heat,
    lens: KnownLens,
    /// The tiers that were here when the last run looked after what is left in them.
    settled: Option<Vec<String>>,
}

/// What the last run did and could not do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TierReport {
    /// When it ended, in seconds since 1970.
    pub time_s: u64,
    /// Segments that moved, and their bytes.
    pub moved_count: u64,
    /// Their bytes.
    pub moved_len: u64,
    /// What should move and cannot: bytes, where they lie, and why.
    pub parked: Vec<(u64, String, String)>,
}

/// Who moves: the writer of a store that is open, or one that nobody else has.
pub trait MoveHost {
    /// Calls `step` with the writer, between two commits. No reader has a segment open meanwhile.
    ///
    /// # Errors
    /// Those of `step`, and of the writer.
    fn with_writer<T>(&mut self, step: impl FnOnce(&mut StoreWriter) -> Result<T>) -> Result<T>;

    /// Whether the run has to end.
    fn should_stop(&self) -> bool;
}

/// A writer that nobody else needs meanwhile.
#[derive(Debug)]
pub struct OwnWriter<'a, F> {
    /// The writer.
    pub writer: &'a mut StoreWriter,
    /// Whether the run has to end.
    pub should_stop: F,
}

impl<F: Fn() -> bool> MoveHost for OwnWriter<'_, F> {
    fn with_writer<T>(&mut self, step: impl FnOnce(&mut StoreWriter) -> Result<T>) -> Result<T> {
        step(self.writer)
    }

    fn should_stop(&self) -> bool {
        (self.should_stop)()
    }
}

/// Moves one segment; nothing if it stays, or the run has to end.
fn move_segment(
    host: &mut impl MoveHost,
    (number, to): (SegmentNo, &str),
    rate: u64,
) -> Result<u64> {
    let begun = Instant::now();
    let Some(mut moving) = host.with_writer(|writer| writer.begin_move(number, to))? else {
        return Ok(0);
    };
    let mut copied = 0u64;
    loop {
        let len = moving.copy_some()?;
        if len == 0 {
            break;
        }
        copied += len;
        while !host.should_stop() && rate > 0 {
            let due = Duration::from_secs_f64(copied as f64 / rate as f64);
            let Some(early) = due.checked_sub(begun.elapsed()).filter(|d| !d.is_zero()) else {
                break;
            };
            std::thread::sleep(early.min(LOOK_TIME));
        }
        if host.should_stop() {
            return Ok(0);
        }
    }
    match host.with_writer(|writer| moving.finish(writer))? {
        Moved::Done(len) => Ok(len),
        Moved::Stays => Ok(0),
    }
}

/// Seconds since 1970.
fn now_s() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

impl Mover {
    /// The tiers of `store`.
    ///
    /// # Errors
    /// `Unsupported` if it cannot have tiers.
    pub fn new(store: &Store) -> Result<Self> {
        Ok(Self {
            store: store.clone(),
            heat: Heat::read(&*store.home()?),
            lens: KnownLens::new(),
            settled: None,
        })
    }

    /// Lets the next run look after what interrupted moves have left, and after segments that died
    /// while a tier was away, also if the same tiers are here as in the last run.
    pub fn settle_again(&mut self) {
        self.settled = None;
    }

    fn settle(&mut self, host: &mut impl MoveHost) -> Result<()> {
        let disks = self.store.tier_disks()?.into_iter();
        let here = disks.filter(|tier| tier.disk.is_ok()).map(|tier| tier.name);
        let here: Vec<String> = here.collect();
        if self.settled.as_ref() != Some(&here) {
            host.with_writer(|writer| writer.settle_tiers())?;
            self.settled = Some(here);
        }
        Ok(())
    }

    /// Keeps in mind which segments were read since the last call.
    pub fn note_reads(&mut self) {
        let reads = self.store.disk.take_reads();
        self.heat.add(&reads, now_s());
    }

    /// What should move by now.
    ///
    /// # Errors
    /// As [`Store::tiers`].
    /// # Cost
    /// Lists the segments of all tiers.
    pub fn plan(&mut self) -> Result<Vec<PlannedMove>> {
        let tiers = self.store.tiers_with(&mut self.lens)?;
        let now_s = now_s();
        let disk = self.store.disk.clone();
        let changed_at = |number: SegmentNo| disk.changed_at(&layout::segment_file(number));
        let mut uses: BTreeMap<SegmentNo, Use> = self.heat.uses(&tiers, now_s, &changed_at);
        let planned = plan(&tiers, &uses);
        // A segment may have been written to since it was seen first.
        let mut is_newer = false;
        for old in &planned {
            let Why::Idle(idle_s) = old.why else { continue };
            let written = changed_at(old.number).unwrap_or(0);
            let since = now_s.saturating_sub(written);
            if since < idle_s && written <= now_s {
                uses.entry(old.number).or_default().idle_s = since;
                is_newer = true;
            }
        }
        Ok(if is_newer {
            plan(&tiers, &uses)
        } else {
            planned
        })
    }

    /// Moves what should move by now, and keeps the report of it.
    ///
    /// # Errors
    /// As [`Mover::plan`]; those of the tables. What a tier cannot do is in the report.
    pub fn run(&mut self, host: &mut impl MoveHost) -> Result<TierReport> {
        self.note_reads();
        self.settle(host)?;
        let planned = self.plan()?;
        let rates = self.rates()?;
        let mut report = TierReport::default();
        let mut failed: BTreeMap<String, String> = BTreeMap::new();
        for planned in planned {
            if host.should_stop() {
                break;
            }
            let Some(to) = planned.to.clone() else {
                report.park(&planned, "no tier that may take it has room");
                continue;
            };
            if let Some(why) = failed.get(&to) {
                report.park(&planned, why);
                continue;
            }
            let rate = rates.get(&to).copied().unwrap_or(0);
            match move_segment(host, (planned.number, &to), rate) {
                Ok(0) => {}
                Ok(len) => report.add(len),
                Err(error) if error.is_failed_write() => return Err(error),
                Err(error) => {
                    log::warn!("{error}");
                    report.park(&planned, &error.to_string());
                    failed.insert(to, error.to_string());
                }
            }
        }
        self.end_run(&mut report)?;
        Ok(report)
    }

    /// Moves these segments to the tier `to`, whatever its policy.
    ///
    /// # Errors
    /// `NotFound` if there is no such tier; `Lost` if it is not here; `Full`, `Io`. What has moved
    /// until then has moved.
    pub fn move_all(
        &mut self,
        host: &mut impl MoveHost,
        numbers: &BTreeSet<SegmentNo>,
        to: &str,
    ) -> Result<TierReport> {
        let rate = self.rates()?.get(to).copied().unwrap_or(0);
        let mut report = TierReport::default();
        for number in numbers {
            if host.should_stop() {
                break;
            }
            match move_segment(host, (*number, to), rate)? {
                0 => {}
                len => report.add(len),
            }
        }
        Ok(report)
    }

    /// Bytes a second that each tier gets at most.
    fn rates(&self) -> Result<BTreeMap<String, u64>> {
        let record = TiersRecord::read(&*self.store.home()?)?;
        let tiers = record.tiers.iter();
        let tiers = tiers.map(|tier| (tier.name.clone(), tier.policy.rate));
        Ok(tiers.chain([(HOME.to_owned(), record.home.rate)]).collect())
    }

    /// Keeps what is known of the use of segments, and the report of a run.
    ///
    /// # Errors
    /// `Io`, `Full`.
    fn end_run(&mut self, report: &mut TierReport) -> Result<()> {
        let home = self.store.home()?;
        report.time_s = now_s();
        let mut text = format!(
            "time {}\nmoved {} {}\n",
            report.time_s, report.moved_count, report.moved_len
        );
        for (len, from, why) in &report.parked {
            text.push_str(&format!("parked {len} {from} {}\n", why.replace('\n', " ")));
        }
        home.write_file(layout::TIERS_REPORT, text.as_bytes())?;
        self.heat.write(&*home)
    }
}

impl TierReport {
    /// Notes that a segment of so many bytes has moved.
    fn add(&mut self, len: u64) {
        self.moved_count += 1;
        self.moved_len += len;
    }

    /// Notes what should have moved and could not.
    fn park(&mut self, planned: &PlannedMove, why: &str) {
        let found = self
            .parked
            .iter_mut()
            .find(|(_, from, reason)| *from == planned.from && reason == why);
        match found {
            Some((len, ..)) => *len += planned.len,
            None => self
                .parked
                .push((planned.len, planned.from.clone(), why.to_owned())),
        }
    }
}

impl Store {
    /// The report of the last run; nothing if there was none.
    ///
    /// # Errors
    /// `Io`.
    pub fn tier_report(&self) -> Result<Option<TierReport>> {
        let bytes = match self.home()?.read_file(layout::TIERS_REPORT, REPORT_LEN_MAX) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        let text = String::from_utf8_lossy(&bytes);
        let mut report = TierReport::default();
        for line in text.lines() {
            let mut words = line.splitn(4, ' ');
            let mut next = || words.next().unwrap_or_default();
            let number = |word: &str| word.parse().unwrap_or(0);
            match next() {
                "time" => report.time_s = number(next()),
                "moved" => {
                    (report.moved_count, report.moved_len) = (number(next()), number(next()));
                }
                "parked" => {
                    let (len, from, why) = (number(next()), next().into(), next().into());
                    report.parked.push((len, from, why));
                }
                _ => {}
            }
        }
        Ok(Some(report))
    }
}
