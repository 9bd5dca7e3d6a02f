//! A run of moves: what should move by now, in which order, how fast, and what is told afterwards.
//!
//! What cannot be done is not tried again within a run: a tier that has failed or is full gets
//! nothing more, and the report says what waits for what. The next run comes after a while, or when
//! the tiers are changed.
//!
//! What users want on a tier is looked for after commits, for at most a hundredth of the time. A
//! segment with other data, too, is sorted first; one that is there afterwards, because a block of
//! it cannot be read for example, is not sorted again by itself.

use super::heat::Heat;
use super::manage::{KnownLens, no_tier};
use super::moving::Moved;
use super::pins::{self, PinnedSegments, Pins};
use super::plan::{PlannedMove, Use, Why, plan};
use super::record::{HOME, TiersRecord};
use crate::collection::Sorting;
use crate::engine::{COMMIT, Engine};
use crate::layout;
use crate::sealed_text::{replace, sealed, unsealed};
use crate::store::{Store, is_bad_file};
use crate::writer::{StoreWriter, counter};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use weald_format::{BlockId, CommitNo, Error, ErrorKind, Result, SegmentNo};

/// Longest time between two looks whether a run has to end.
const LOOK_TIME: Duration = Duration::from_millis(100);
/// Shortest time between two looks for what users want on a tier.
const PINS_TIME: Duration = Duration::from_secs(60);
/// How many times as long as the last look the time until the next one is.
const PINS_TIME_FACTOR: u32 = 100;
/// How long a segment that may get more data has to be unchanged before what users want on a tier
/// leaves it, seconds.
const OPEN_TIME_S: u64 = 60;
/// Bytes of the segments that one run sorts, more or less.
const SORT_LEN: u64 = 256 << 20;
/// Bytes that stay free when segments are sorted.
const SORT_RESERVE: u64 = 16 << 20;
/// Why a part of a segment stays.
const COMES_BETWEEN: &str = "it lies among other data, and could not be copied out of it";
/// First line of the report.
const REPORT_LINE: &str = "weald moves 1";
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
    /// Where data lies that users want on a tier, and after which commit.
    pinned: PinnedSegments,
    pinned_at: Option<CommitNo>,
    /// When that was found, and how long it took.
    looked: Option<(Instant, Duration)>,
    /// Segments that were there after they had been sorted.
    unsortable: BTreeSet<SegmentNo>,
    /// Whether a user waits for the next run.
    is_asked: bool,
}

/// Use of a segment, and where it lies.
#[derive(Debug, Clone, PartialEq)]
pub struct SegmentUse {
    /// The tier.
    pub tier: String,
    /// Its length in bytes.
    pub len: u64,
    /// Its use.
    pub used: Use,
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

    /// The committed rows, beside the writer.
    ///
    /// # Errors
    /// `Busy` if the store is being closed.
    fn rows(&mut self) -> Result<Arc<dyn Engine>>;

    /// Pins all blocks that users want on a tier, of the volumes that `engine` has.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    fn pin_all(&mut self, engine: &Arc<dyn Engine>, pins: &mut Pins) -> Result<()>;

    /// Does all of [`StoreWriter::sort`]. Returns false if it cannot be done now, because somebody
    /// reads an older state.
    ///
    /// # Errors
    /// Those of the writer.
    fn sort(&mut self, sorting: Sorting) -> Result<bool>;

    /// Whether the run has to end.
    fn should_stop(&self) -> bool;
}

/// Pins all blocks that users want on a tier.
pub type PinAll<'a> = &'a dyn Fn(&Arc<dyn Engine>, &mut Pins) -> Result<()>;

/// A writer that nobody else needs meanwhile.
pub struct OwnWriter<'a, F> {
    /// The writer.
    pub writer: &'a mut StoreWriter,
    /// Finds what users want on a tier.
    pub pin_all: PinAll<'a>,
    /// Whether the run has to end.
    pub should_stop: F,
}

impl<F> std::fmt::Debug for OwnWriter<'_, F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OwnWriter").finish_non_exhaustive()
    }
}

impl<F: Fn() -> bool> MoveHost for OwnWriter<'_, F> {
    fn with_writer<T>(&mut self, step: impl FnOnce(&mut StoreWriter) -> Result<T>) -> Result<T> {
        step(self.writer)
    }

    fn rows(&mut self) -> Result<Arc<dyn Engine>> {
        Ok(self.writer.engine())
    }

    fn pin_all(&mut self, engine: &Arc<dyn Engine>, pins: &mut Pins) -> Result<()> {
        (self.pin_all)(engine, pins)
    }

    fn sort(&mut self, sorting: Sorting) -> Result<bool> {
        let should_stop = &self.should_stop;
        let sorted = self.writer.sort(sorting, &mut |_| {
            if should_stop() {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        sorted.map(|_| true)
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
        let home = store.home()?;
        let known = pins::read(&*home);
        let (commit, pinned) = known.map_or((None, PinnedSegments::new()), |(commit, pinned)| {
            (Some(commit), pinned)
        });
        Ok(Self {
            store: store.clone(),
            heat: Heat::read(&*home),
            lens: KnownLens::new(),
            settled: None,
            pinned,
            pinned_at: commit,
            looked: None,
            unsortable: BTreeSet::new(),
            is_asked: false,
        })
    }

    /// Lets the next run look after what interrupted moves have left, and after segments that died
    /// while a tier was away, also if the same tiers are here as in the last run; and after all
    /// that users want on a tier.
    pub fn settle_again(&mut self) {
        self.settled = None;
        self.unsortable.clear();
        self.is_asked = true;
    }

    /// Finds where data lies that users want on a tier, if commits may have changed that. Returns
    /// the blocks if it looked.
    ///
    /// # Errors
    /// Those of the host; `Io`, `Full`.
    pub fn look_for_pins(
        &mut self,
        host: &mut impl MoveHost,
        is_forced: bool,
    ) -> Result<Option<Pins>> {
        let engine = host.rows()?;
        let commit = CommitNo(counter(&*engine, COMMIT)?);
        let is_due = self.looked.is_none_or(|(at, took)| {
            at.elapsed() >= PINS_TIME.max(took.saturating_mul(PINS_TIME_FACTOR))
        });
        if !is_forced && (!is_due || self.pinned_at == Some(commit)) {
            return Ok(None);
        }
        let begun = Instant::now();
        let names = self.store.tier_names()?;
        let mut pins = Pins::new(names);
        host.pin_all(&engine, &mut pins)?;
        self.pinned = pins.segments(&*engine)?;
        self.pinned_at = Some(commit);
        self.looked = Some((begun, begun.elapsed()));
        pins::write(&*self.store.home()?, commit, &self.pinned)?;
        Ok(Some(pins))
    }

    /// Sorts the segments of which only a part belongs on a tier. What cannot be sorted is in the
    /// report. Returns whether a new plan is needed.
    fn sort_parts(
        &mut self,
        host: &mut impl MoveHost,
        (planned, pins): (&[PlannedMove], Option<Pins>),
        report: &mut TierReport,
    ) -> Result<bool> {
        let mut sorting = Sorting::default();
        let mut len = 0u64;
        let is_part = |planned: &&PlannedMove| planned.why == Why::PinnedPart;
        for planned in planned.iter().filter(is_part).filter(|p| p.to.is_some()) {
            if self.unsortable.contains(&planned.number) {
                report.park(planned, COMES_BETWEEN);
            } else if len < SORT_LEN || self.is_asked {
                sorting.segments.insert(planned.number);
                len = len.saturating_add(self.pinned_len(planned.number));
            }
        }
        if sorting.segments.is_empty() || host.should_stop() {
            return Ok(false);
        }
        let pins = match pins {
            Some(pins) => pins,
            None => match self.look_for_pins(host, true)? {
                Some(pins) => pins,
                None => return Ok(false),
            },
        };
        sorting.classes = pins.into_blocks();
        let segments = sorting.segments.clone();
        // The copies land at home, or where there is room.
        let has_room = self.store.capacity()?.free >= len.saturating_add(SORT_RESERVE);
        let sorted = if has_room {
            host.sort(sorting)
        } else {
            Err(Error::new(ErrorKind::Full, "there is no room for copies"))
        };
        match sorted {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            Err(error) if error.is_failed_write() && error.kind() != ErrorKind::Full => {
                return Err(error);
            }
            Err(error) => {
                let parts = planned.iter().filter(is_part);
                for planned in parts.filter(|p| segments.contains(&p.number)) {
                    report.park(planned, &error.to_string());
                }
                if has_room {
                    self.unsortable.extend(segments);
                }
                return Ok(false);
            }
        }
        self.look_for_pins(host, true)?;
        let left = segments
            .iter()
            .filter(|number| self.pinned.contains_key(number));
        self.unsortable.extend(left);
        Ok(true)
    }

    fn pinned_len(&self, number: SegmentNo) -> u64 {
        self.pinned.get(&number).map_or(0, |pinned| pinned.live_len)
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
        if let Ok(home) = self.store.home() {
            self.heat.follow(&*home);
        }
        let reads = self.store.disk.take_reads();
        self.heat.add(&reads, now_s());
    }

    /// How much each segment was used, as of the last run, by number.
    ///
    /// # Errors
    /// As [`Store::tiers`].
    /// # Cost
    /// Lists the segments of all tiers.
    pub fn uses(&mut self) -> Result<BTreeMap<SegmentNo, SegmentUse>> {
        let tiers = self.store.tiers_with(&mut self.lens)?;
        let disk = self.store.disk.clone();
        let changed_at = |number: SegmentNo| disk.changed_at(&layout::segment_file(number));
        let used = self.heat.uses(&tiers, now_s(), &changed_at);
        let mut all = BTreeMap::new();
        for tier in &tiers {
            for (number, len) in &tier.segments {
                let used = used.get(number).copied().unwrap_or_default();
                let tier = tier.name.clone();
                all.insert(
                    *number,
                    SegmentUse {
                        tier,
                        len: *len,
                        used,
                    },
                );
            }
        }
        Ok(all)
    }

    /// Sets the counters of reads of these segments to zero, or of all. A server that has the store
    /// open takes it over in its next run.
    ///
    /// # Errors
    /// `Io`, `Full`.
    pub fn reset_heat(&mut self, numbers: Option<&BTreeSet<SegmentNo>>) -> Result<()> {
        self.heat.reset(numbers);
        self.heat.write(&*self.store.home()?)
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
        let mut pinned = std::borrow::Cow::Borrowed(&self.pinned);
        // The newest one may get more data.
        let all = tiers.iter().flat_map(|tier| &tier.segments);
        let newest = all.map(|(number, _)| *number).max();
        let is_new = |number: &SegmentNo| {
            let since = changed_at(*number).map(|at| now_s.saturating_sub(at));
            since.is_some_and(|since| since < OPEN_TIME_S)
        };
        if let Some(newest) = newest.filter(|newest| !self.is_asked && is_new(newest)) {
            pinned.to_mut().remove(&newest);
        }
        let mut uses: BTreeMap<SegmentNo, Use> = self.heat.uses(&tiers, now_s, &changed_at);
        let hour = i64::try_from(now_s).ok().map(weald_sys::local_hour);
        let planned = plan(&tiers, &uses, &pinned, hour);
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
            plan(&tiers, &uses, &pinned, hour)
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
        if self.is_asked
            && let Err(error) = self.ask_again(|_| true)
        {
            log::debug!("{error}");
        }
        // What was told already: the next run tries again.
        if let Err(error) = self.store.sweep_tiers() {
            log::debug!("{error}");
        }
        let rates = self.rates()?;
        let mut report = TierReport::default();
        let pins = self.look_for_pins(host, self.is_asked)?;
        let mut planned = self.plan()?;
        if self.sort_parts(host, (&planned, pins), &mut report)? {
            planned = self.plan()?;
        }
        self.is_asked = false;
        let mut failed: BTreeMap<String, String> = BTreeMap::new();
        for planned in planned {
            if host.should_stop() {
                break;
            }
            let Some(to) = planned.to.clone() else {
                report.park(&planned, planned.waits_for.as_deref().unwrap_or_default());
                continue;
            };
            if planned.why == Why::PinnedPart {
                continue;
            }
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
        self.ask_again(|name| name == to)?;
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

    /// Moves these blocks to the tier `to`, whatever its policy. Segments in which most of the data
    /// is of other blocks are sorted first.
    ///
    /// # Errors
    /// As [`Mover::move_all`].
    /// # Cost
    /// Reads the row of each block, and writes the sorted segments twice.
    pub fn move_blocks(
        &mut self,
        host: &mut impl MoveHost,
        blocks: &BTreeSet<BlockId>,
        to: &str,
    ) -> Result<TierReport> {
        let mut pins = Pins::new(vec![to.to_owned()]);
        blocks.iter().for_each(|id| pins.pin(*id, to));
        let store = self.store.clone();
        let here = |store: &Store| -> Result<BTreeSet<SegmentNo>> {
            let tiers = store.tiers()?;
            let tier = tiers.iter().find(|tier| tier.name == to);
            let tier = tier.ok_or_else(|| no_tier(&store.shown(), to))?;
            match &tier.why_away {
                Some(why) => Err(Error::lost(format!("tier {to} is not here: {why}"))),
                None => Ok(tier.segments.iter().map(|(number, _)| *number).collect()),
            }
        };
        let elsewhere = |pinned: &PinnedSegments, is_whole: bool| -> Result<BTreeSet<SegmentNo>> {
            let here = here(&store)?;
            let found = pinned.iter().filter(|(number, pinned)| {
                !here.contains(number) && pinned.owner().is_some() == is_whole
            });
            Ok(found.map(|(number, _)| *number).collect())
        };
        let mut pinned = pins.segments(&*host.rows()?)?;
        let segments = elsewhere(&pinned, false)?;
        if !segments.is_empty() {
            let classes = pins.blocks().clone();
            if !host.sort(Sorting { segments, classes })? {
                let what = "a volume of the store is being sealed, or an image is being added: \
                            try again when that has ended";
                return Err(Error::new(ErrorKind::Busy, what));
            }
            pinned = pins.segments(&*host.rows()?)?;
        }
        let mut report = self.move_all(host, &elsewhere(&pinned, true)?, to)?;
        for number in elsewhere(&pinned, false)? {
            let len = pinned
                .get(&number)
                .map_or(0, |pinned| pinned.lens.values().sum());
            report
                .parked
                .push((len, HOME.to_owned(), COMES_BETWEEN.to_owned()));
        }
        Ok(report)
    }

    /// Asks tiers on other machines whether they are here, also if they failed a moment ago: a user
    /// waits.
    fn ask_again(&self, is_asked: impl Fn(&str) -> bool) -> Result<()> {
        for tier in self.store.tier_disks()? {
            if let (true, Ok(disk)) = (is_asked(&tier.name), &tier.disk) {
                let asked = disk.check_here();
                asked.map_err(|error| {
                    Error::lost(format!("tier {} is not here: {error}", tier.name))
                })?;
            }
        }
        Ok(())
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
            "{REPORT_LINE}\ntime {}\nmoved {} {}\n",
            report.time_s, report.moved_count, report.moved_len
        );
        for (len, from, why) in &report.parked {
            text.push_str(&format!("parked {len} {from} {}\n", why.replace('\n', " ")));
        }
        replace(&*home, &[layout::TIERS_REPORT], &sealed(text))?;
        self.heat.write(&*home)
    }
}

impl TierReport {
    /// Parses the file of a report; nothing if it is damaged.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let mut lines = unsealed(bytes)?.lines();
        if lines.next()? != REPORT_LINE {
            return None;
        }
        let mut report = Self::default();
        for line in lines {
            let mut words = line.splitn(4, ' ');
            match words.next()? {
                "time" => report.time_s = words.next()?.parse().ok()?,
                "moved" => {
                    report.moved_count = words.next()?.parse().ok()?;
                    report.moved_len = words.next()?.parse().ok()?;
                }
                "parked" => {
                    let len = words.next()?.parse().ok()?;
                    let (from, why) = (words.next()?.into(), words.next()?.into());
                    report.parked.push((len, from, why));
                }
                _ => return None,
            }
        }
        Some(report)
    }

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
        match self.home()?.read_file(layout::TIERS_REPORT, REPORT_LEN_MAX) {
            Ok(bytes) => {
                let report = TierReport::parse(&bytes);
                if report.is_none() {
                    let (shown, name) = (self.shown(), layout::TIERS_REPORT);
                    log::warn!("{shown}/{name}: is damaged, and not used");
                }
                Ok(report)
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) if is_bad_file(&error) => {
                log::warn!("{error}: is not used");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}
