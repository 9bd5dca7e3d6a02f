//! Collects the store by itself while its volumes are open.
//!
//! Removed and overwritten data is freed in place where the file system can; what stays are short
//! ranges, and segments of which little is used. Once that is a share of the store, and again when
//! it has grown, a collection copies what lives elsewhere. While volumes change, it works for a
//! fifth of the time; a store that nobody uses is collected at full speed. A store without garbage
//! costs a pass over the rows of segments, after changes. While the file `collect.paused` is there,
//! nothing is collected, and a collection that is under way comes to its end.

use super::collecting::{CollectStep, Collecting};
use crate::background;
use crate::open_store::OpenStore;
use crate::state::State;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};
use weald_format::{CommitNo, Error, ErrorKind, Result};
use weald_store::CollectOptions;

/// Time between two looks at the store.
const LOOK_TIME: Duration = Duration::from_secs(5);
/// Time without a commit after which a store is idle.
const IDLE_TIME: Duration = Duration::from_secs(10);
/// Garbage, per cent of the segments, from which on a store is collected: less when it is idle.
const IDLE_PERCENT: u64 = 3;
const BUSY_PERCENT: u64 = 10;
/// Segments of which less is used are emptied.
const COPY_BELOW_PERCENT: u64 = 90;
/// Less garbage than this is never worth a collection, bytes.
const GARBAGE_LEN_MIN: u64 = 4 << 20;
/// How long it sleeps for each time unit that it worked, while volumes change.
const SLEEP_FACTOR: u32 = 4;
/// Longest pause between two steps.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// What was seen of a store.
struct Seen {
    /// The last commit, and when it was seen first.
    commit: CommitNo,
    since: Instant,
    /// The commit after which the garbage was counted or collected last.
    counted: Option<CommitNo>,
    /// Garbage that the last collection left.
    left: u64,
}

impl Seen {
    fn new() -> Self {
        Self {
            commit: CommitNo::default(),
            since: Instant::now(),
            counted: None,
            left: 0,
        }
    }
}

impl OpenStore {
    /// Starts the thread that collects, until all volumes of the store are closed.
    ///
    /// # Errors
    /// `Io` if the thread does not start.
    pub(super) fn begin_idle_collections(self: &Arc<Self>) -> Result<()> {
        let weak = Arc::downgrade(self);
        background::start("weald-collect", move || run(&weak))
    }
}

fn run(weak: &Weak<OpenStore>) {
    let mut seen = Seen::new();
    loop {
        // Nothing of the store is held meanwhile: it may be closed.
        thread::sleep(LOOK_TIME);
        let Some(shared) = weak.upgrade().filter(|shared| !shared.is_closed()) else {
            return;
        };
        match look(&shared, &mut seen) {
            // A seal, or another collection.
            Err(error) if error.kind() == ErrorKind::Busy => {}
            Err(error) => log::warn!("{}: is not collected: {error}", shared.store.shown()),
            Ok(()) => {}
        }
    }
}

/// Collects the store if it is worth it.
fn look(shared: &Arc<OpenStore>, seen: &mut Seen) -> Result<()> {
    if shared.store.is_collection_paused() {
        return Ok(());
    }
    let commit = shared.writing.lock().writer.commit_no();
    if commit != seen.commit {
        (seen.commit, seen.since) = (commit, Instant::now());
    }
    let is_idle = is_idle(shared) && seen.since.elapsed() >= IDLE_TIME;
    if seen.counted == Some(commit) {
        return Ok(());
    }
    let (garbage, total) = shared.reader.garbage_and_total()?;
    let percent = if is_idle { IDLE_PERCENT } else { BUSY_PERCENT };
    let grown = garbage.saturating_sub(seen.left);
    let is_worth_it = grown >= GARBAGE_LEN_MIN && grown.saturating_mul(100) >= total * percent;
    if is_idle || is_worth_it {
        seen.counted = Some(commit);
    }
    if !is_worth_it {
        return Ok(());
    }
    let done = collect(shared);
    // What cannot be done now, such as copies on a full disk, waits for more garbage.
    let commit = shared.writing.lock().writer.commit_no();
    seen.counted = Some(commit);
    seen.left = shared.reader.garbage_and_total()?.0;
    done
}

/// Whether no volume has changes that wait.
fn is_idle(shared: &OpenStore) -> bool {
    shared.sum_of_others(None, State::written) == 0
}

fn collect(shared: &Arc<OpenStore>) -> Result<()> {
    let options = CollectOptions {
        copy_below_percent: COPY_BELOW_PERCENT,
        ..CollectOptions::default()
    };
    let mut collecting = Collecting::begin(shared, &options, false)?;
    loop {
        let begun = Instant::now();
        match collecting.step()? {
            CollectStep::Done => return Ok(()),
            // A seal has begun. The next collection continues.
            CollectStep::Waiting => return Err(Error::new(ErrorKind::Busy, "a hold lasts")),
            CollectStep::More => {}
        }
        if shared.is_closed() || shared.store.is_collection_paused() {
            collecting.stop();
        } else if !is_idle(shared) {
            thread::sleep((begun.elapsed() * SLEEP_FACTOR).min(PAUSE_MAX));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::VolumeOptions;
    use crate::tests::{TestStore, file, noise};
    use weald_vfs::{Ino, WritableFs};

    // Would catch: a store that is collected although users have paused that, and one that is not
    // collected any more afterwards.
    #[test]
    fn a_pause_lasts_until_it_is_ended() {
        // A block for each file, too short for its space to be freed in place.
        let place = TestStore::with(&VolumeOptions {
            chunk_len: 4096,
            ..VolumeOptions::default()
        });
        let volume = place.open();
        for number in 0..3000 {
            let ino = file(&volume, Ino::ROOT, &format!("f{number}")).ino;
            volume
                .write(ino, 0, &noise(3000, number), 1)
                .expect("write");
        }
        volume.commit().expect("commit");
        for number in (0..3000).filter(|number| number % 10 > 0) {
            let name = format!("f{number}");
            let gone = volume
                .unlink(Ino::ROOT, name.as_bytes(), 2)
                .expect("unlink");
            volume.forget(gone.ino).expect("forget");
        }
        volume.commit().expect("commit");
        let shared = volume.core.shared.clone();
        let garbage = || shared.reader.garbage_and_total().expect("figures").0;
        let before = garbage();
        assert!(before > GARBAGE_LEN_MIN, "{before}");
        let mut seen = Seen::new();
        shared.store.pause_collection(true).expect("paused");
        look(&shared, &mut seen).expect("a look");
        collect(&shared).expect("a collection that ends at once");
        assert_eq!(garbage(), before);
        shared.store.pause_collection(false).expect("resumed");
        shared.store.pause_collection(false).expect("again");
        look(&shared, &mut seen).expect("a look");
        assert!(garbage() < before / 4, "{}", garbage());
        volume.close().expect("close");
    }
}
