//! The steps of a scrub.

use super::blocks::{BlockFile, Planned, PlannedSegment, Range, next_group};
use super::counts::{Counted, Wrong, count};
use super::record::{LastScrub, ScrubPlace, ScrubReport, ScrubUser, ScrubWish, WHOLE};
use super::view::TablesView;
use crate::check::{WrongNote, why_unopened, wrong_notes};
use crate::collect::{suspect_maps, why_bad_map};
use crate::engine::{Table, number_of};
use crate::faults::{Bug, Faults};
use crate::journal::verify_beside;
use crate::layout;
use crate::segment::{self, read_record};
use crate::steps::Steps;
use crate::store::Store;
use crate::writer::StoreWriter;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::ControlFlow;
use weald_format::store::{Location, SEGMENT_SUPERBLOCK_LEN, SegmentRow, check_segment_superblock};
use weald_format::{BlockId, Error, ErrorKind, ImageNo, Result, SegmentNo};

/// Bytes that a step reads at least, however low the rate is.
const STEP_LEN_MIN: u64 = 64 << 10;
/// How often references are counted while the tables change.
const COUNT_TRIES: u32 = 3;
/// How often the journal is read while commits are written to it.
const JOURNAL_TRIES: u32 = 3;
/// Users of damaged blocks that a report names.
const USERS_MAX: usize = 100_000;

/// Who performs the steps: the writer of a store that is open, or a command.
pub trait ScrubHost {
    /// Calls `step` with the writer, between two commits.
    ///
    /// # Errors
    /// Those of `step`, and of the writer.
    fn with_writer<T>(&mut self, step: impl FnOnce(&mut StoreWriter) -> Result<T>) -> Result<T>;

    /// Calls `pass` with the tables of now, while the writer goes on.
    ///
    /// # Errors
    /// Those of `pass`, and of the tables.
    fn beside<T>(&mut self, pass: impl FnOnce(&TablesView) -> Result<T>) -> Result<T>;

    /// Who uses these blocks: files of volumes, of their snapshots, and of images.
    ///
    /// # Errors
    /// Those of the tables.
    fn users_of(&mut self, ids: &BTreeSet<BlockId>) -> Result<BTreeMap<BlockId, Vec<ScrubUser>>>;

    /// Images that cannot be opened, beside those of the names `known`, and why: because their base
    /// images are damaged.
    ///
    /// # Errors
    /// `Io`.
    fn unopened_images(&mut self, known: &BTreeSet<String>) -> Result<Vec<(String, String)>>;

    /// Whether nobody else changes the store: then the pages of the tables can be verified, too.
    fn is_alone(&self) -> bool;
}

/// A scrub that is under way.
#[derive(Debug)]
pub struct Scrub {
    store: Store,
    report: ScrubReport,
    /// Segments of the group that are left.
    group: VecDeque<PlannedSegment>,
    file: BlockFile,
    /// Blocks that were noted as damaged before.
    noted: BTreeSet<BlockId>,
    /// As the writer has them.
    steps: Steps,
    faults: Faults<Bug>,
}

/// A finding about an image or a volume itself.
fn user(name: &str) -> ScrubUser {
    ScrubUser {
        name: name.to_owned(),
        snapshot: None,
        path: None,
        inode: None,
    }
}

impl Scrub {
    /// Begins the run that `wish` asks for, after that of `before`. What is written from now on is
    /// not in it.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn begin(
        writer: &StoreWriter,
        wish: &ScrubWish,
        before: Option<&ScrubReport>,
        now_s: u64,
    ) -> Result<Self> {
        let last = before.and_then(|report| report.last);
        let nowhere = Location {
            segment: SegmentNo(0),
            offset: 0,
        };
        let from = match last {
            Some(last) if wish.is_since => last.end,
            _ => nowhere,
        };
        let (mut total_len, mut end) = (0u64, nowhere);
        let visit = &mut |key: &[u8], value: &[u8]| {
            if let (Some(number), Ok(row)) = (number_of(key), SegmentRow::parse(value)) {
                let number = SegmentNo(number);
                end = Location {
                    segment: number,
                    offset: row.len,
                };
                if number >= from.segment {
                    total_len = total_len.saturating_add(row.live_len);
                }
            }
            Ok(ControlFlow::Continue(()))
        };
        writer
            .tables()
            .scan_readable(Table::Segments, &[], visit, &mut |_, _| Ok(()))?;
        let total_len = u128::from(total_len) * u128::from(wish.share) / u128::from(WHOLE);
        let report = ScrubReport {
            from,
            end,
            total_len: total_len as u64,
            last,
            whole_s: before.and_then(|report| report.whole_s),
            ..ScrubReport::of(wish, now_s)
        };
        let scrub = Self::resume(writer.store(), report);
        scrub.save(writer)?;
        Ok(scrub)
    }

    /// Goes on where `report` ends.
    pub fn resume(store: &Store, report: ScrubReport) -> Self {
        Self {
            store: store.clone(),
            report,
            group: VecDeque::new(),
            file: BlockFile::default(),
            noted: BTreeSet::new(),
            steps: Steps::default(),
            faults: Faults::default(),
        }
    }

    /// How far it is.
    pub fn report(&self) -> &ScrubReport {
        &self.report
    }

    /// Follows `wish`, which is of this run. What was parked is tried again if that is asked for.
    pub fn follow(&mut self, wish: &ScrubWish) {
        let is_new_try = self.report.wish.tries != wish.tries;
        self.report.wish = *wish;
        if is_new_try && self.report.is_done() && !self.report.parked.is_empty() {
            self.report.at = match self.report.parked.first() {
                Some((None, _)) => ScrubPlace::Counts,
                _ => ScrubPlace::Parked(SegmentNo(0)),
            };
        }
    }

    /// Adds to the time that it worked, and notes what the time is.
    pub fn add_time(&mut self, worked_ms: u64, now_s: u64) {
        self.report.worked_ms = self.report.worked_ms.saturating_add(worked_ms);
        self.report.time_s = now_s;
    }

    /// Notes why it goes on no further; `None` if it does.
    pub fn set_error(&mut self, error: Option<String>) {
        self.report.error = error;
    }

    /// Writes down how far it is, so that it goes on there after a crash.
    ///
    /// # Errors
    /// `Io`, `Full`.
    pub fn save(&self, writer: &StoreWriter) -> Result<()> {
        self.save_to(writer.store())
    }

    /// As [`Scrub::save`], of a process that has the writer.
    ///
    /// # Errors
    /// `Io`, `Full`.
    pub fn save_to(&self, store: &Store) -> Result<()> {
        store.put_scrub_report(&self.report)
    }

    fn range(&self) -> Range {
        let at = match self.report.at {
            ScrubPlace::Blocks(at) => at.max(self.report.from),
            _ => self.report.from,
        };
        Range {
            from: at,
            end: self.report.end,
            sample: (self.report.wish.run, self.report.wish.share),
        }
    }

    fn find(&mut self, what: impl Into<String>) {
        self.report.find(what.into(), Vec::new());
    }

    fn find_of(&mut self, name: &str, what: impl Into<String>) {
        self.find(what);
        let user = user(name);
        if let Some(last) = self.report.findings.last_mut() {
            last.users.get_or_insert_default().push(user);
        }
    }

    /// Does the next step. Returns the bytes of blocks that it read.
    ///
    /// # Errors
    /// `Busy` if it was asked to stop; those of the tables and of the writer. What was found until
    /// then is in the report, and the step is done again.
    pub fn step(&mut self, host: &mut impl ScrubHost) -> Result<u64> {
        let next = match self.report.at {
            ScrubPlace::Tables => {
                self.read_tables(host)?;
                ScrubPlace::Files
            }
            ScrubPlace::Files => {
                self.read_files(host)?;
                ScrubPlace::Maps
            }
            ScrubPlace::Maps => {
                self.read_maps(host)?;
                ScrubPlace::Counts
            }
            ScrubPlace::Counts => {
                let is_first = self.report.read_len == 0;
                self.count(host)?;
                if is_first {
                    ScrubPlace::Blocks(self.report.from)
                } else {
                    ScrubPlace::Parked(SegmentNo(0))
                }
            }
            ScrubPlace::Blocks(_) | ScrubPlace::Parked(_) => return self.read_blocks(host),
            ScrubPlace::End => return Ok(0),
        };
        self.report.at = next;
        Ok(0)
    }

    /// Reads the small files of the store.
    fn read_files(&mut self, host: &mut impl ScrubHost) -> Result<()> {
        let (damaged, bad): (_, Vec<ImageNo>) = host.beside(|view| {
            let mut bad = Vec::new();
            for (_, row) in &view.images.rows {
                if view.store.has_bad_content_digests(row.image_no)? {
                    bad.push(row.image_no);
                }
            }
            Ok((view.store.damaged_state_files()?, bad))
        })?;
        for finding in damaged {
            self.find(finding);
        }
        for image_no in bad {
            // A build makes do without them; one that is being written looks the same.
            host.with_writer(|writer| {
                let store = writer.store();
                if store.has_bad_content_digests(image_no)? {
                    log::info!("{}: damaged digests of contents are dropped", store.shown());
                    store.forget_content_digests(image_no)?;
                }
                Ok(())
            })?;
        }
        let idle = host.beside(|view| {
            let mut idle = view.volumes.rows.clone();
            idle.retain(|(_, row)| !view.open.contains(&row.volume_no));
            Ok(idle)
        })?;
        for (name, row) in idle {
            let found = host.with_writer(|writer| match writer.check_sync_log(&row) {
                // It may have been removed, or mounted, which truncates the log.
                Ok(log) => {
                    let found: Vec<_> = log.findings().collect();
                    let is_same = || writer.keyed_volume_row(&name).is_ok_and(|now| now == row);
                    if found.is_empty() || is_same() {
                        Ok(found)
                    } else {
                        Ok(Vec::new())
                    }
                }
                Err(error) if error.kind() == ErrorKind::Unsupported => Ok(vec![error.to_string()]),
                Err(error) => Err(error),
            })?;
            for what in found {
                self.find_of(&name, what);
            }
        }
        Ok(())
    }

    /// Reads all maps.
    fn read_maps(&mut self, host: &mut impl ScrubHost) -> Result<()> {
        let suspects = host.beside(|view| {
            let go_on = || view.go_on().map(drop);
            match suspect_maps(&view.store, view.live(), &go_on) {
                Err(error) if error.kind() == ErrorKind::Corrupt => Ok(Vec::new()),
                other => other,
            }
        })?;
        let mut damaged = BTreeSet::new();
        for name in suspects {
            let why =
                host.with_writer(|writer| why_bad_map(writer.store(), writer.tables(), &name))?;
            if let Some(why) = why {
                self.find_of(&name, why);
                damaged.insert(name);
            }
        }
        if !damaged.is_empty() {
            for (name, why) in host.unopened_images(&damaged)? {
                self.find_of(&name, why);
            }
        }
        Ok(())
    }

    /// Adds up all rows, and compares them with the journal.
    fn read_tables(&mut self, host: &mut impl ScrubHost) -> Result<()> {
        let is_alone = host.is_alone();
        let shown = self.store.shown();
        let mut is_suspect = true;
        for _ in 0..JOURNAL_TRIES {
            // A commit that is being written looks like damage.
            let look = |view: &TablesView| verify_beside(&view.store, view.state);
            is_suspect = host.beside(look)?.is_some();
            if !is_suspect {
                break;
            }
        }
        let mut wrong = host.beside(wrong_tables)?;
        if !wrong.is_empty() {
            // Readers of rows make damaged groups again from the journal; views do not.
            host.beside(|view| view.read_live())?;
            wrong = host.beside(wrong_tables)?;
        }
        wrong.into_iter().for_each(|what| self.find(what));
        let (journal, pages) = host.with_writer(|writer| {
            let journal = if is_suspect {
                writer.journal().verify(writer.tables_state()?)?
            } else {
                None
            };
            let pages = if is_alone {
                writer.check_pages()?
            } else {
                None
            };
            Ok((journal, pages))
        })?;
        if let Some(error) = journal {
            self.find(format!(
                "{error}: the metadata is there once only, without its journal: 'weald store \
                 salvage {shown}' makes the journal again"
            ));
        }
        if let Some(what) = pages {
            self.find(what);
        }
        Ok(())
    }

    /// Counts references and live bytes.
    fn count(&mut self, host: &mut impl ScrubHost) -> Result<()> {
        self.report.parked.retain(|(number, _)| number.is_some());
        let mut why = "";
        for _ in 0..COUNT_TRIES {
            match host.beside(count)? {
                Counted::Wrong(wrong) => {
                    for Wrong { of, what, blocks } in wrong {
                        match of {
                            Some(name) => self.find_of(&name, what),
                            None => self.report.find(what, blocks),
                        }
                    }
                    return self.name_users(host);
                }
                Counted::Inconclusive(what) => why = what,
            }
        }
        let why = format!("the references to blocks were not counted: {why}");
        self.report.park(None, why);
        Ok(())
    }

    /// Looks up who uses damaged blocks.
    fn name_users(&mut self, host: &mut impl ScrubHost) -> Result<()> {
        let unnamed = self.report.findings.iter().filter(|f| f.users.is_none());
        let ids: BTreeSet<BlockId> = unnamed.flat_map(|f| f.blocks.iter().copied()).collect();
        if ids.is_empty() {
            return Ok(());
        }
        let users = host.users_of(&ids)?;
        let named = self.report.findings.iter().filter_map(|f| f.users.as_ref());
        let mut left = USERS_MAX.saturating_sub(named.map(Vec::len).sum());
        for finding in &mut self.report.findings {
            if finding.users.is_some() {
                continue;
            }
            let of = finding.blocks.iter().filter_map(|id| users.get(id));
            let mut of: Vec<ScrubUser> = of.flatten().cloned().collect();
            of.sort_unstable();
            of.dedup();
            of.truncate(left);
            left -= of.len();
            finding.users = Some(of);
            finding.blocks.clear();
        }
        Ok(())
    }

    fn read_blocks(&mut self, host: &mut impl ScrubHost) -> Result<u64> {
        let Some(segment) = self.group.front() else {
            self.name_users(host)?;
            return self.begin_group(host).map(|()| 0);
        };
        let number = segment.number;
        if segment.blocks.is_empty() {
            self.group.pop_front();
            self.file.close();
            return Ok(0);
        }
        let is_begun = self.file.is_of(number);
        if !is_begun && self.store.disk.is_far(&layout::segment_file(number)) {
            self.group.pop_front();
            return Ok(0);
        }
        if let Err(error) = self.file.open(&self.store, number) {
            return self.pass_over(host, number, error).map(|()| 0);
        }
        if !is_begun {
            self.read_segment(host, number)?;
        }
        // At a low rate, short steps.
        let len_max = match self.report.wish.rate {
            0 => self.steps.scrub_len,
            rate => self.steps.scrub_len.min((rate / 4).max(STEP_LEN_MIN)),
        };
        let Some(PlannedSegment { blocks, .. }) = self.group.front_mut() else {
            return Ok(0);
        };
        let (count, suspects) = self.file.verify(blocks, len_max);
        let rest = blocks.split_off(count);
        let done = std::mem::replace(blocks, rest);
        let damaged = self.confirm(host, &done, &suspects)?;
        let len: u64 = done.iter().map(|(_, row)| row.len()).sum();
        self.report.read_len = self.report.read_len.saturating_add(len);
        self.report.block_count += done.len() as u64;
        for (id, what) in damaged {
            self.report.find(what, vec![id]);
        }
        let next = match self.group.front().map(|segment| segment.blocks.first()) {
            Some(Some((_, row))) => row.location,
            _ => Location {
                segment: SegmentNo(number.0.saturating_add(1)),
                offset: 0,
            },
        };
        if let ScrubPlace::Blocks(at) = &mut self.report.at {
            *at = next;
            if self.faults.has(Bug::ScrubSkipsStep) {
                at.offset = at.offset.saturating_add(1);
            }
        }
        Ok(len)
    }

    /// Chooses the next segments, or ends.
    fn begin_group(&mut self, host: &mut impl ScrubHost) -> Result<()> {
        let range = self.range();
        let only = match self.report.at {
            ScrubPlace::Parked(after) => {
                let numbers = self.report.parked.iter().filter_map(|(number, _)| *number);
                Some(numbers.filter(|number| *number >= after).collect())
            }
            _ => None,
        };
        (self.noted, self.steps, self.faults) = host.with_writer(|writer| {
            let noted = writer.damaged_blocks().into_keys().collect();
            Ok((noted, writer.options().steps, writer.faults))
        })?;
        let count_max = self.steps.scrub_block_count;
        let group = host.beside(|view| next_group(view, &range, only.as_ref(), count_max))?;
        if group.is_empty() {
            self.end();
            return Ok(());
        }
        if let ScrubPlace::Parked(after) = &mut self.report.at {
            // They are parked again if they are still away.
            let is_tried = |number: &SegmentNo| group.iter().any(|tried| tried.number == *number);
            let parked = &mut self.report.parked;
            parked.retain(|(number, _)| number.as_ref().is_none_or(|number| !is_tried(number)));
            *after = SegmentNo(
                group
                    .back()
                    .map_or(0, |last| last.number.0.saturating_add(1)),
            );
        }
        self.group = group;
        Ok(())
    }

    fn end(&mut self) {
        self.report.at = ScrubPlace::End;
        self.file.close();
        // A sample is no complete run, and neither is one that begins behind what was never read.
        let is_complete = self.report.wish.share == WHOLE;
        if is_complete && self.report.parked.is_empty() {
            self.report.last = Some(LastScrub {
                time_s: self.report.time_s,
                end: self.report.end,
                finding_count: self.report.finding_count(),
            });
            if !self.report.wish.is_since {
                self.report.whole_s = Some(self.report.time_s);
            }
        }
    }

    /// Goes on behind a segment that cannot be opened.
    fn pass_over(
        &mut self,
        host: &mut impl ScrubHost,
        number: SegmentNo,
        error: Error,
    ) -> Result<()> {
        if !error.is_unreadable() {
            return Err(error);
        }
        let name = layout::segment_file(number);
        let again = host.with_writer(|writer| {
            let opened = segment::open_unnoted(&*writer.store().disk, number);
            Ok(opened.map(drop))
        })?;
        // It has moved to another tier, or the disk failed once.
        if again.is_ok() && !self.faults.has(Bug::ScrubUnconfirmed) {
            return Ok(());
        }
        let Some(PlannedSegment { blocks, .. }) = self.group.pop_front() else {
            return Ok(());
        };
        match self.store.disk.why_missing(&name) {
            Some(why) => {
                let len: u64 = blocks.iter().map(|(_, row)| row.len()).sum();
                let why = format!("{name}, {len} bytes, was not read: {why}");
                self.report.park(Some(number), why);
            }
            None => {
                // All of its blocks may have moved meanwhile.
                let is_sure = self.faults.has(Bug::ScrubUnconfirmed);
                let lost = host.with_writer(|writer| {
                    let mut lost = Vec::new();
                    for (id, _) in &blocks {
                        let row = writer.find_block_row(*id)?;
                        let is_here = row.is_some_and(|row| {
                            row.references > 0 && row.location.segment == number
                        });
                        if is_here || is_sure {
                            lost.push(*id);
                        }
                    }
                    Ok(lost)
                })?;
                if !lost.is_empty() {
                    let why = why_unopened(error)?;
                    self.report.find(format!("{name}: {why}"), lost);
                }
            }
        }
        if let ScrubPlace::Blocks(at) = &mut self.report.at {
            *at = Location {
                segment: SegmentNo(number.0.saturating_add(1)),
                offset: 0,
            };
        }
        Ok(())
    }

    /// Reads what a segment has beside its blocks.
    fn read_segment(&mut self, host: &mut impl ScrubHost, number: SegmentNo) -> Result<()> {
        let Some(segment) = self.group.front() else {
            return Ok(());
        };
        let (uuid, name) = (self.store.uuid(), layout::segment_file(number));
        let file = self.file.open(&self.store, number)?;
        let mut superblock = [0; SEGMENT_SUPERBLOCK_LEN];
        let mut read = || {
            let read = file.read_at(&mut superblock, 0);
            read.and_then(|()| check_segment_superblock(&superblock, uuid, number))
        };
        let mut found = Vec::new();
        // What fails once is no damage.
        if read().is_err()
            && let Err(error) = read()
        {
            found.push(format!("{name}: {error}"));
        }
        let end = segment.len.min(file.len()?);
        // The writer looks whether those are equal blocks.
        let wrong = wrong_notes((file, (uuid, number)), end, &segment.blocks, &|_| Ok(None))?;
        if !wrong.is_empty() {
            let wrong = host.with_writer(|writer| confirm_notes(writer, number, wrong))?;
            found.extend(wrong.iter().map(|wrong| wrong.what(number)));
        }
        found.into_iter().for_each(|what| self.find(what));
        Ok(())
    }

    /// Looks at suspects again, and notes those that are damaged, with the reason.
    fn confirm(
        &mut self,
        host: &mut impl ScrubHost,
        done: &[Planned],
        suspects: &[Planned],
    ) -> Result<Vec<(BlockId, String)>> {
        let is_suspect = |id: &BlockId| suspects.iter().any(|(suspect, _)| suspect == id);
        let good = done.iter().map(|(id, _)| *id);
        let good = good.filter(|id| self.noted.contains(id) && !is_suspect(id));
        let good: Vec<BlockId> = good.collect();
        if good.is_empty() && suspects.is_empty() {
            return Ok(Vec::new());
        }
        let is_sure = self.faults.has(Bug::ScrubUnconfirmed);
        let mut damaged = Vec::new();
        // A disk that fails takes its time: others get the writer between two blocks. Without
        // others, the next call has another writer.
        let count = if host.is_alone() { usize::MAX } else { 1 };
        for some in suspects.chunks(count) {
            let mut found = host.with_writer(|writer| {
                let found = confirmed(writer, some, is_sure)?;
                if count > 1 {
                    writer.keep_damaged();
                }
                Ok(found)
            })?;
            damaged.append(&mut found);
        }
        host.with_writer(|writer| {
            good.iter().for_each(|id| writer.damaged().forget(*id));
            writer.keep_damaged();
            Ok(())
        })?;
        Ok(damaged)
    }
}

/// The blocks among `suspects` that are damaged, which are noted, with the reason.
fn confirmed(
    writer: &StoreWriter,
    suspects: &[Planned],
    is_sure: bool,
) -> Result<Vec<(BlockId, String)>> {
    let mut damaged = Vec::new();
    for (id, planned) in suspects {
        let why = if is_sure {
            Some(Error::not_found("it has moved"))
        } else {
            writer.why_damaged_now(*id)?
        };
        if let Some(error) = why {
            let at = planned.location;
            let (name, offset) = (layout::segment_file(at.segment), at.offset);
            damaged.push((*id, format!("{name}, byte {offset}: {}", error.what())));
            writer.note_damaged(*id, &error);
        }
    }
    Ok(damaged)
}

/// What is wrong with the rows of the tables.
fn wrong_tables(view: &TablesView) -> Result<Vec<String>> {
    let mut wrong = Vec::new();
    for (name, error) in view.images.damaged.iter().chain(&view.volumes.damaged) {
        wrong.push(format!("{}: the row of {name}: {error}", layout::META));
    }
    match view.is_sum() {
        Ok(true) => {}
        Ok(false) => wrong.push(format!(
            "{}: the rows are not those that were written: 'weald store salvage {}' makes them \
             again from the journal",
            layout::META,
            view.store.shown()
        )),
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            wrong.push(format!("{}: {}", layout::META, error.what()));
        }
        Err(error) => return Err(error),
    }
    Ok(wrong)
}

/// The notes that are still wrong between two commits.
fn confirm_notes(
    writer: &StoreWriter,
    number: SegmentNo,
    wrong: Vec<WrongNote>,
) -> Result<Vec<WrongNote>> {
    let mut confirmed = Vec::new();
    for note in wrong {
        let Some(row) = writer.find_block_row(note.id)? else {
            continue;
        };
        let is_here = row.location.segment == number && row.location.offset == note.offset;
        let other = writer.find_block_row(note.noted)?;
        let is_equal = other.is_some_and(|other| other.record == row.record);
        if is_here && row.references > 0 && !is_equal {
            confirmed.push(note);
        }
    }
    Ok(confirmed)
}

impl StoreWriter {
    /// Why block `id` cannot be read now; `None` if it can, or if nothing refers to it.
    fn why_damaged_now(&self, id: BlockId) -> Result<Option<Error>> {
        let row = match self.find_block_row(id) {
            Ok(Some(row)) if row.references > 0 => row,
            Ok(_) => return Ok(None),
            // The look at the tables tells it.
            Err(error) if error.kind() == ErrorKind::Corrupt => return Ok(None),
            Err(error) => return Err(error),
        };
        if self.is_unwritten(row.location) {
            return Ok(None);
        }
        let file = segment::open_unnoted(&*self.store().disk, row.location.segment);
        match file.and_then(|file| read_record(&*file, row.location, &row.record)) {
            Ok(_) => Ok(None),
            Err(error) if error.is_unreadable() => Ok(Some(error)),
            Err(error) => Err(error),
        }
    }
}
