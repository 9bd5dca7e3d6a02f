//! Threads that decode the next block of a sequential reader while it uses the one before.

use crate::content::Prefetch;
use crate::records::Records;
use crossbeam_channel::{Sender, bounded};
use std::sync::Arc;
use weald_format::container::RecordType;

/// How many blocks may wait: more would be decoded for readers that have gone elsewhere.
const QUEUE_COUNT: usize = 4;

/// A handle to the threads; they end when it is dropped.
pub struct Prefetcher(Sender<(u8, u64)>, Arc<Records>);

impl Prefetcher {
    /// Starts `threads` threads that load blocks of `records` into its cache.
    pub fn start(records: &Arc<Records>, threads: usize) -> Option<Self> {
        let (sender, receiver) = bounded::<(u8, u64)>(QUEUE_COUNT);
        for n in 0..threads {
            let (receiver, records) = (receiver.clone(), records.clone());
            let run = move || {
                while let Ok((stream, no)) = receiver.recv() {
                    // A failure here is met again, and reported, by the reader itself.
                    let found = records.record(RecordType::Data, stream, no);
                    let _ = found.and_then(|f| records.block(stream, &f));
                }
            };
            let started = std::thread::Builder::new()
                .name(format!("prefetch-{n}"))
                .spawn(run);
            if let Err(error) = started {
                log::warn!("no read-ahead: {error}");
                return None;
            }
        }
        Some(Self(sender, records.clone()))
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
