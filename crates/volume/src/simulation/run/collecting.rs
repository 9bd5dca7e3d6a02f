//! Collections of the store of an open volume.

use super::{Verdict, VolumeRun};
use crate::simulation::steps::{Between, Collect, Step};
use crate::{CollectStep, Collecting};
use std::ops::ControlFlow;
use weald_format::{BlockId, ErrorKind, SegmentNo};
use weald_store::engine::Table;
use weald_store::{CollectOptions, Sorting};

/// Steps of a collection that has an end.
const STEP_COUNT_MAX: u64 = 10_000;

/// End of a collection.
enum End {
    Done,
    /// A seal lasts.
    Waiting,
    Cut,
}

impl VolumeRun {
    /// Collects the store: the volume and the images stay as they are.
    pub(super) fn collect(&mut self, step: &Collect) -> Verdict {
        let ended = self.collect_in_steps(step)?;
        let mut is_cut = false;
        match ended {
            Ok(End::Done) => self.world().lock().note("collected"),
            Ok(End::Waiting) => self.world().lock().note("the collection waits"),
            Ok(End::Cut) => is_cut = true,
            Err(error) if self.has_failed() => {
                self.world().lock().note(format!("not collected: {error}"));
                return Ok(());
            }
            Err(error) => {
                let is_held = self.sealing.is_some() && error.kind() == ErrorKind::Busy;
                let is_full = self.world().lock().is_limited && error.kind() == ErrorKind::Full;
                if !is_held && !is_full {
                    return Err(format!("collect: {error}"));
                }
            }
        }
        if is_cut {
            return self.step(&Step::PowerCut);
        }
        self.compare_live()?;
        self.compare_images()
    }

    fn collect_in_steps(&mut self, step: &Collect) -> Result<weald_format::Result<End>, String> {
        let options = CollectOptions {
            copy_below_percent: step.copy_below_percent,
            copy_len_max: u64::MAX,
        };
        let begun = if self.sorts {
            self.begin_sort()
        } else {
            self.volume().begin_collection(&options)
        };
        let mut collecting = match begun {
            Ok(collecting) => collecting,
            Err(error) => return Ok(Err(error)),
        };
        let mut between = step.between.iter().peekable();
        for count in 0..STEP_COUNT_MAX {
            while let Some((_, what)) = between.next_if(|(after, _)| *after <= count) {
                self.between(*what)?;
            }
            if step.cut_after == Some(count) {
                return Ok(Ok(End::Cut));
            }
            if step.stopped_after == Some(count) {
                collecting.stop();
            }
            match collecting.step() {
                Ok(CollectStep::Done) => return Ok(Ok(End::Done)),
                Ok(CollectStep::Waiting) if step.stopped_after.is_none() => self.end_seal(None)?,
                Ok(CollectStep::Waiting) => return Ok(Ok(End::Waiting)),
                Ok(CollectStep::More) => {}
                Err(error) => return Ok(Err(error)),
            }
        }
        Err("a collection has no end".to_owned())
    }

    /// Begins to sort the blocks of most segments into three classes.
    fn begin_sort(&mut self) -> weald_format::Result<Collecting> {
        let volume = self.volume();
        let engine = volume.core.shared.reader.shared_engine();
        let mut sorting = Sorting::default();
        let random = &mut self.random;
        engine.scan(Table::Segments, &[], &mut |key, _| {
            let number = u64::from_be_bytes(key.try_into().unwrap_or_default());
            if !random.is_one_in(4) {
                sorting.segments.insert(SegmentNo(number));
            }
            Ok(ControlFlow::Continue(()))
        })?;
        engine.scan(Table::Blocks, &[], &mut |key, _| {
            let id = u64::from_be_bytes(key.try_into().unwrap_or_default());
            let class = random.below(3) as u8;
            if class < 2 {
                sorting.classes.insert(BlockId(id), class);
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Collecting::begin_sort(&volume.core.shared, sorting)
    }

    fn between(&mut self, what: Between) -> Verdict {
        self.world().lock().note(format!("between: {what:?}"));
        match what {
            Between::Do(op) => self.step(&Step::Do(op)),
            Between::Commit(op) => self.perform_and_commit(op),
            Between::Sync => self.step(&Step::Sync(Vec::new())),
            Between::ReturnSpace => self.step(&Step::ReturnSpace),
            Between::Compare => self.compare_live().and_then(|()| self.compare_images()),
            Between::Hold => self.begin_seal(false),
        }
    }
}
