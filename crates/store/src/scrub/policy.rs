//! The file `scrub.policy`: how often a store is scrubbed by itself, and what was begun for that.

use super::record::{ScrubReport, ScrubWish, WHOLE};
use crate::layout;
use crate::sealed_text::{replace, sealed, unsealed};
use crate::store::{Store, is_bad_or_missing};
use crate::tier::Hours;
use std::fmt::Write;
use weald_format::{Error, ErrorKind, Result};

/// First line of the file.
const LINE: &str = "weald scrub policy 1";
/// Most bytes of it.
const LEN_MAX: u64 = 4 << 10;

/// The last run that the policy has begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PolicyRun {
    /// Its number.
    pub run: u64,
    /// When, in seconds since 1970.
    pub begun_s: u64,
}

/// How often a store is scrubbed by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScrubPolicy {
    /// Seconds from the end of a whole pass to the next one.
    pub every_s: u64,
    /// Bytes a second that are read at most; 0: as many as the others leave.
    pub rate: u64,
    /// Hours of the day, by the clock of the machine, in which it reads.
    pub hours: Hours,
    /// What it has begun.
    pub begun: Option<PolicyRun>,
}

impl ScrubPolicy {
    /// When the next pass begins, in seconds since 1970, if its hours let it; 0 for a store that
    /// was never read as a whole.
    pub fn next_s(&self, report: Option<&ScrubReport>) -> u64 {
        // A pass that could not read everything is not begun anew at once.
        let begun = self.begun.map(|begun| begun.begun_s);
        let last = report.and_then(|report| report.whole_s).max(begun);
        last.map_or(0, |last| last.saturating_add(self.every_s))
    }

    /// The scrub that begins at `now_s`, if one does: not while another one is under way or paused.
    pub fn due(
        &self,
        now_s: u64,
        (wish, report): (Option<&ScrubWish>, Option<&ScrubReport>),
    ) -> Option<ScrubWish> {
        let is_open = wish.is_some_and(|wish| {
            !report.is_some_and(|report| report.wish.run == wish.run && report.is_done())
        });
        // Of a clock that was set back, the last pass is in the future.
        let next_s = self.next_s(report);
        let is_time = next_s <= now_s || next_s > now_s.saturating_add(self.every_s);
        if is_open || !is_time || !self.is_hour(now_s) {
            return None;
        }
        let last = wish.map(|wish| wish.run);
        let last = last.max(report.map(|report| report.wish.run));
        Some(ScrubWish {
            run: last.unwrap_or(0).saturating_add(1),
            tries: 0,
            is_paused: false,
            rate: self.rate,
            share: WHOLE,
            is_since: false,
        })
    }

    /// Whether the scrub that `wish` asks for is one of the policy, and rests at this hour.
    pub fn rests(&self, wish: &ScrubWish, now_s: u64) -> bool {
        self.begun.is_some_and(|begun| begun.run == wish.run) && !self.is_hour(now_s)
    }

    fn is_hour(&self, now_s: u64) -> bool {
        let hour = i64::try_from(now_s).ok().map(weald_sys::local_hour);
        hour.is_none_or(|hour| self.hours.has(hour))
    }

    fn encode(&self) -> String {
        let (every, rate, hours) = (self.every_s, self.rate, self.hours.word());
        let mut text = format!("{LINE}\npolicy {every} {rate} {hours}\n");
        if let Some(begun) = &self.begun {
            // Writing to a string does not fail.
            let _ = writeln!(text, "begun {} {}", begun.run, begun.begun_s);
        }
        sealed(text)
    }

    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let mut lines = unsealed(bytes)?.lines();
        if lines.next()? != LINE {
            return None;
        }
        let mut words = lines.next()?.strip_prefix("policy ")?.split(' ');
        let every_s = words.next()?.parse().ok().filter(|every| *every > 0)?;
        let rate = words.next()?.parse().ok()?;
        let hours = Hours::parse(words.next()?)?;
        let begun = match lines.next() {
            None => None,
            Some(line) => {
                let (run, begun_s) = line.strip_prefix("begun ")?.split_once(' ')?;
                Some(PolicyRun {
                    run: run.parse().ok()?,
                    begun_s: begun_s.parse().ok()?,
                })
            }
        };
        Some(Self {
            every_s,
            rate,
            hours,
            begun,
        })
    }
}

/// The file of the policy.
enum PolicyFile {
    Missing,
    /// It is damaged.
    Bad,
    Whole(ScrubPolicy),
}

impl Store {
    fn read_policy(&self) -> Result<PolicyFile> {
        match self.disk.read_file(layout::SCRUB_POLICY, LEN_MAX) {
            Ok(bytes) => Ok(ScrubPolicy::parse(&bytes).map_or(PolicyFile::Bad, PolicyFile::Whole)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(PolicyFile::Missing),
            Err(error) if is_bad_or_missing(&error) => Ok(PolicyFile::Bad),
            // It is longer than any policy.
            Err(error) if error.kind() == ErrorKind::Limit => Ok(PolicyFile::Bad),
            Err(error) => Err(error),
        }
    }

    /// How often the store is scrubbed by itself; nothing if nobody said so, or it is damaged.
    ///
    /// # Errors
    /// `Io`.
    pub fn scrub_policy(&self) -> Result<Option<ScrubPolicy>> {
        match self.read_policy()? {
            PolicyFile::Whole(policy) => Ok(Some(policy)),
            PolicyFile::Missing => Ok(None),
            PolicyFile::Bad => {
                let (shown, name) = (self.shown(), layout::SCRUB_POLICY);
                log::warn!("{shown}/{name}: is damaged, and not used");
                Ok(None)
            }
        }
    }

    /// Says how often the store is scrubbed by itself; `None` for never. Whoever has the writer
    /// follows it.
    ///
    /// # Errors
    /// `Io`, `Full`; `Invalid` where nothing can be written.
    pub fn put_scrub_policy(&self, policy: Option<&ScrubPolicy>) -> Result<()> {
        let put = match policy {
            Some(policy) => replace(&*self.disk, &[layout::SCRUB_POLICY], &policy.encode()),
            None => self.disk.remove_if_there(layout::SCRUB_POLICY),
        };
        put.map_err(|error: Error| error.context("the policy of the scrub is as before"))
    }

    /// Asks for the scrub that the policy has begin at `now_s`, if it has one begin.
    ///
    /// # Errors
    /// `Io`, `Full`.
    pub fn begin_due_scrub(&self, now_s: u64) -> Result<Option<ScrubWish>> {
        let Some(policy) = self.scrub_policy()? else {
            return Ok(None);
        };
        let (wish, report) = (self.scrub_wish()?, self.scrub_report()?);
        let due = policy.due(now_s, (wish.as_ref(), report.as_ref()));
        if let Some(wish) = &due {
            self.put_scrub_wish(wish)?;
            let begun = Some(PolicyRun {
                run: wish.run,
                begun_s: now_s,
            });
            self.put_scrub_policy(Some(&ScrubPolicy { begun, ..policy }))?;
        }
        Ok(due)
    }

    /// Whether the scrub that `wish` asks for rests at `now_s` by the policy.
    ///
    /// # Errors
    /// `Io`.
    pub fn scrub_rests(&self, wish: &ScrubWish, now_s: u64) -> Result<bool> {
        let policy = self.scrub_policy()?;
        Ok(policy.is_some_and(|policy| policy.rests(wish, now_s)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::HostDisk;
    use std::sync::Arc;

    const DAY: u64 = 86_400;

    fn policy() -> ScrubPolicy {
        ScrubPolicy {
            every_s: 30 * DAY,
            rate: 1 << 20,
            hours: Hours::default(),
            begun: None,
        }
    }

    // Would catch: a field that is lost, and a policy that damage has changed.
    #[test]
    fn a_policy_is_parsed_and_damage_is_noticed() {
        let begun = PolicyRun {
            run: 3,
            begun_s: 77,
        };
        for policy in [
            policy(),
            ScrubPolicy {
                hours: Hours::parse("22-6").expect("hours"),
                begun: Some(begun),
                ..policy()
            },
        ] {
            let text = policy.encode();
            assert_eq!(ScrubPolicy::parse(text.as_bytes()), Some(policy));
            for at in 0..text.len() {
                let mut bytes = text.clone().into_bytes();
                bytes[at] ^= 1;
                assert_eq!(ScrubPolicy::parse(&bytes), None, "byte {at}");
                assert_eq!(ScrubPolicy::parse(&text.as_bytes()[..at]), None);
            }
        }
    }

    // Would catch: a check that calls a store clean of which the policy is damaged, and a damaged
    // one that ends a command or is taken for one.
    #[test]
    fn a_damaged_policy_is_found() {
        let dir = tempfile::tempdir().expect("a directory");
        let disk = Arc::new(HostDisk::new(&dir.path().join("store")));
        let store = Store::create(disk, [7; 16], 1 << 20).expect("create");
        let findings = || {
            let checker = store.write_for_check("test").expect("a checker");
            let checked = checker.check(false, &mut |_| {}).expect("check");
            checked.findings.len()
        };
        assert_eq!(findings(), 0);
        store.put_scrub_policy(Some(&policy())).expect("put");
        assert_eq!(findings(), 0);
        let path = dir.path().join("store").join(layout::SCRUB_POLICY);
        let whole = std::fs::read(&path).expect("read");
        let mut bytes = whole.clone();
        bytes[9] ^= 16;
        for bad in [Vec::new(), bytes, vec![b'x'; 1 << 20]] {
            std::fs::write(&path, bad).expect("write");
            assert_eq!(store.scrub_policy().expect("read"), None);
            assert_eq!(findings(), 1);
        }
        std::fs::remove_file(&path).expect("remove");
        assert_eq!(findings(), 0);
    }

    // Would catch: a scrub that is begun twice, outside its hours, beside another one, or never
    // again.
    #[test]
    fn a_scrub_is_due_once_a_period() {
        let dir = tempfile::tempdir().expect("a directory");
        let disk = Arc::new(HostDisk::new(&dir.path().join("store")));
        let store = Store::create(disk, [1; 16], 1 << 20).expect("a store");
        let now = 1_000 * DAY;
        assert_eq!(store.begin_due_scrub(now).expect("no policy"), None);
        store.put_scrub_policy(Some(&policy())).expect("put");
        let first = store.begin_due_scrub(now).expect("due").expect("a scrub");
        assert_eq!((first.run, first.rate, first.share), (1, 1 << 20, WHOLE));
        // It is under way for long.
        assert_eq!(store.begin_due_scrub(now + 90 * DAY).expect("open"), None);
        let known = store.scrub_policy().expect("read").expect("a policy");
        let done = |begun_s, whole_s| {
            let mut report = ScrubReport::of(&first, begun_s);
            report.at = super::super::ScrubPlace::End;
            report.whole_s = whole_s;
            report
        };
        let due = |now, report: &ScrubReport| known.due(now, (Some(&first), Some(report)));
        // One that could not read everything counts from its begin, and one that did from its end.
        let report = done(now, None);
        assert_eq!(due(now + 30 * DAY - 1, &report), None);
        assert_eq!(due(now + 30 * DAY, &report).map(|wish| wish.run), Some(2));
        let report = done(now, Some(now + 2 * DAY));
        assert_eq!(due(now + 31 * DAY, &report), None);
        assert!(due(now + 32 * DAY, &report).is_some());
        // A clock that was set back.
        assert!(due(now - 40 * DAY, &report).is_some());
        let hours: Vec<u64> = (0..24).map(|hour| now + 40 * DAY + hour * 3600).collect();
        let night = ScrubPolicy {
            hours: Hours::parse("22-6").expect("hours"),
            ..known
        };
        let is_due = |at: &&u64| night.due(**at, (Some(&first), Some(&report))).is_some();
        assert_eq!(hours.iter().filter(is_due).count(), 8);
        assert_eq!(
            hours.iter().filter(|at| night.rests(&first, **at)).count(),
            16
        );
        let of_user = ScrubWish { run: 9, ..first };
        assert!(!hours.iter().any(|at| night.rests(&of_user, *at)));
        store.put_scrub_policy(None).expect("remove");
        assert_eq!(store.scrub_policy().expect("read"), None);
    }
}
