//! Scrubs of the store of an open volume, in which nothing is damaged.

use super::{Verdict, VolumeRun};
use crate::options::PlantedBug;
use crate::scrub::{host_of, take_up};
use crate::simulation::steps::{Scrub, Step};
use std::sync::Arc;
use weald_format::ErrorKind;
use weald_store::faults::Bug;
use weald_store::scrub::{ScrubHost, ScrubWish, WHOLE};

/// Steps of a scrub that has an end.
const STEP_COUNT_MAX: u64 = 10_000;

impl VolumeRun {
    /// The scrub that is under way, or a new one.
    fn scrub_wish(&self) -> weald_format::Result<ScrubWish> {
        let report = self.volume().core.shared.store.scrub_report()?;
        let run = report.map_or(1, |report| report.wish.run + u64::from(report.is_done()));
        Ok(ScrubWish {
            run,
            tries: 0,
            is_paused: false,
            rate: 0,
            share: WHOLE,
            is_since: run.is_multiple_of(3),
        })
    }

    /// Whether an error has a reason.
    fn is_expected(&self, error: &weald_format::Error) -> bool {
        let is_full = self.world().lock().is_limited && error.kind() == ErrorKind::Full;
        self.has_failed() || is_full
    }

    pub(super) fn scrub(&mut self, step: &Scrub) -> Verdict {
        let shared = self.volume().core.shared.clone();
        let mut host = host_of(&shared);
        let _ = host.with_writer(|writer| {
            let bug = PlantedBug::ScrubUnconfirmed;
            bug.plant(shared.faults, writer, Bug::ScrubUnconfirmed);
            Ok(())
        });
        let taken = self.scrub_wish().and_then(|wish| take_up(&mut host, &wish));
        let mut scrub = match taken {
            Ok(scrub) => scrub,
            Err(error) if self.is_expected(&error) => return Ok(()),
            Err(error) => return Err(format!("begin a scrub: {error}")),
        };
        let mut between = step.between.iter().peekable();
        for count in 0..STEP_COUNT_MAX {
            while let Some((_, what)) = between.next_if(|(after, _)| *after <= count) {
                self.step(what)?;
                let volume = self.side().volume.clone();
                let is_open = volume.is_some_and(|it| Arc::ptr_eq(&it.core.shared, &shared));
                if !is_open {
                    return Ok(());
                }
            }
            if step.cut_after == Some(count) {
                return self.step(&Step::PowerCut);
            }
            if step.left_after == Some(count) {
                return Ok(());
            }
            let done = scrub.step(&mut host);
            let done = done.and_then(|_| scrub.save_to(&shared.store));
            match done {
                Ok(()) => {}
                Err(error) if self.is_expected(&error) => return Ok(()),
                Err(error) => return Err(format!("scrub: {error}")),
            }
            if let Some(found) = scrub.report().findings.first()
                && !self.has_failed()
            {
                return Err(format!("scrub: {found:?}"));
            }
            if scrub.report().is_done() {
                self.world().lock().note("scrubbed");
                return self.compare_live();
            }
        }
        Err("a scrub has no end".to_owned())
    }
}
