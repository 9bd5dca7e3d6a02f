//! Threads that decode the next block of a sequential reader while it uses the one before.

use crate::content::Prefetch;
use crate::records::{Records, Wanted};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use std::sync::Arc;
use std::time::Duration;
use weald_format::container::RecordType;

/// How many blocks may wait: more would be decoded for readers that have gone elsewhere.
const QUEUE_COUNT: usize = 4;

/// Blocks that nobody asked for during this time, or twice it at most, are dropped.
const REST_AFTER: Duration = Duration::from_secs(60);

/// A handle to the threads; they end when it is dropped.
pub struct Prefetcher(Sender<(u8, u64)>, Arc<Records>);

impl Prefetcher {
    /// Starts `threads` threads that load blocks of `records` into its cache.
    pub fn start(records: &Arc<Records>, threads: usize) -> Option<Self> {
        let (sender, receiver) = bounded::<(u8, u64)>(QUEUE_COUNT);
        for n in 0..threads {
            let (receiver, records) = (receiver.clone(), records.clone());
            let started = std::thread::Builder::new()
                .name(format!("prefetch-{n}"))
                .spawn(move || match n {
                    0 => load_and_rest(&receiver, &records),
                    _ => receiver.iter().for_each(|wanted| load(&records, wanted)),
                });
            if let Err(error) = started {
                log::warn!("no read-ahead: {error}");
                return None;
            }
        }
        Some(Self(sender, records.clone()))
    }
}

fn load(records: &Records, (stream, no): (u8, u64)) {
    // A failure here is met again, and reported, by the reader itself.
    let found = records.record(RecordType::Data, stream, no);
    let _ = found.and_then(|f| records.block(stream, &f, Wanted::Whole));
}

/// One of the threads also watches for readers that have gone.
fn load_and_rest(receiver: &Receiver<(u8, u64)>, records: &Records) {
    loop {
        match receiver.recv_timeout(REST_AFTER) {
            Ok(wanted) => load(records, wanted),
            Err(RecvTimeoutError::Timeout) => records.rest(),
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

impl Prefetch for Prefetcher {
    fn want(&self, stream: u8, no: u64) {
        let exists = no < self.1.record_count(RecordType::Data, stream);
        if exists && !self.1.has_block(stream, no) {
            let _ = self.0.try_send((stream, no));
        }
    }
}
