//! Performs a scrub: its steps, the pauses between them, and what users want meanwhile.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use weald_format::{Error, Result};
use weald_store::Store;
use weald_store::scrub::{Scrub, ScrubHost, ScrubReport, ScrubWish};

/// Time between two looks at what users want.
const LOOK_TIME: Duration = Duration::from_millis(500);
/// Longest sleep without a look.
const NAP_TIME: Duration = Duration::from_millis(100);
/// How long it sleeps for each time unit that it worked, while volumes change.
const SLEEP_FACTOR: u32 = 4;
/// Longest pause between two steps, without a rate.
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// Most bytes that are read again after a kill.
const SAVE_LEN: u64 = 256 << 20;

/// Who performs a scrub, and when it has to end or to rest.
pub trait Driven: ScrubHost {
    /// Whether it has to end now.
    fn should_stop(&self) -> bool;

    /// Whether others use the disk, so that it rests between steps.
    fn is_busy(&self) -> bool;

    /// Time after which it is written down how far it is.
    fn save_time(&self) -> Duration;

    /// Writes down how far it is.
    ///
    /// # Errors
    /// `Io`, `Full`; `Busy` if another process has the store by now.
    fn save(&mut self, scrub: &Scrub) -> Result<()>;
}

/// Why a scrub goes on no further.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScrubEnd {
    /// Everything was read that can be read.
    Done(Box<ScrubReport>),
    /// Somebody asked for a pause.
    Paused,
    /// The policy has it read at other hours only.
    Rested,
    /// It was asked to stop, or another run was asked for.
    Stopped,
}

/// Seconds since 1970.
pub fn now_s() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// The scrub that `wish` asks for: the one that was under way, or a new one.
///
/// # Errors
/// Those of the host.
pub fn take_up(host: &mut impl ScrubHost, wish: &ScrubWish) -> Result<Scrub> {
    host.with_writer(|writer| {
        let report = writer.store().scrub_report()?;
        match report {
            Some(report) if report.wish.run == wish.run => {
                let mut scrub = Scrub::resume(writer.store(), report);
                scrub.follow(wish);
                scrub.set_error(None);
                scrub.save(writer)?;
                Ok(scrub)
            }
            before => Scrub::begin(writer, wish, before.as_ref(), now_s()),
        }
    })
}

/// Performs a scrub until it is complete, or has to end. `tick` gets how far it is.
///
/// # Errors
/// Those of the host and of the tables, which are in the report, too.
pub fn drive(
    host: &mut impl Driven,
    store: &Store,
    scrub: &mut Scrub,
    tick: &mut dyn FnMut(&ScrubReport),
) -> Result<ScrubEnd> {
    let driven = steps(host, store, scrub, tick);
    match &driven {
        // Whoever else has the store goes on.
        Err(error) if error.kind() == weald_format::ErrorKind::Busy => {}
        Err(error) => {
            scrub.set_error(Some(error.to_string()));
            host.save(scrub)?;
        }
        Ok(_) => host.save(scrub)?,
    }
    driven
}

fn steps(
    host: &mut impl Driven,
    store: &Store,
    scrub: &mut Scrub,
    tick: &mut dyn FnMut(&ScrubReport),
) -> Result<ScrubEnd> {
    let mut rate = Rate::new(scrub.report().wish.rate);
    let (mut looked, mut saved) = (Instant::now(), Instant::now());
    let mut unsaved_len = 0u64;
    while !scrub.report().is_done() {
        if host.should_stop() {
            return Ok(ScrubEnd::Stopped);
        }
        if looked.elapsed() >= LOOK_TIME {
            looked = Instant::now();
            match store.scrub_wish()? {
                Some(wish) if wish.run == scrub.report().wish.run => {
                    scrub.follow(&wish);
                    if wish.is_paused {
                        return Ok(ScrubEnd::Paused);
                    }
                    if store.scrub_rests(&wish, now_s())? {
                        return Ok(ScrubEnd::Rested);
                    }
                    rate.set(wish.rate);
                }
                Some(_) => return Ok(ScrubEnd::Stopped),
                // Damaged, or removed: it goes on as it was.
                None => {}
            }
        }
        let begun = Instant::now();
        let len = match scrub.step(host) {
            Err(_) if host.should_stop() => return Ok(ScrubEnd::Stopped),
            done => done?,
        };
        let worked = begun.elapsed();
        rate.rest(host, len, worked);
        scrub.add_time(begun.elapsed().as_millis() as u64, now_s());
        tick(scrub.report());
        unsaved_len = unsaved_len.saturating_add(len);
        if unsaved_len >= SAVE_LEN || saved.elapsed() >= host.save_time() {
            host.save(scrub)?;
            (unsaved_len, saved) = (0, Instant::now());
        }
    }
    let report = Box::new(scrub.report().clone());
    Ok(ScrubEnd::Done(report))
}

/// How fast it reads.
struct Rate {
    /// Bytes a second at most; 0: as many as others leave.
    rate: u64,
    since: Instant,
    len: u64,
}

impl Rate {
    fn new(rate: u64) -> Self {
        Self {
            rate,
            since: Instant::now(),
            len: 0,
        }
    }

    fn set(&mut self, rate: u64) {
        if self.rate != rate {
            *self = Self::new(rate);
        }
    }

    /// Sleeps after a step that read `len` bytes.
    fn rest(&mut self, host: &impl Driven, len: u64, worked: Duration) {
        self.len = self.len.saturating_add(len);
        let until = if self.rate > 0 {
            let due = self.len as f64 / self.rate as f64;
            self.since + Duration::from_secs_f64(due.min(1e9))
        } else if host.is_busy() {
            Instant::now() + (worked * SLEEP_FACTOR).min(PAUSE_MAX)
        } else {
            return;
        };
        while !host.should_stop() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(NAP_TIME));
        }
    }
}

/// The error of a host whose store is closed.
pub fn closed() -> Error {
    let what = "the volumes of the store are being unmounted";
    Error::new(weald_format::ErrorKind::Busy, what)
}
