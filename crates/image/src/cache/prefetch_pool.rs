//! Threads that decode ahead of who reads in order, for all images of a cache.

use crate::cache::SharedCache;
use crate::content::Contents;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use std::sync::Weak;
use std::time::Duration;

/// How many pieces may wait: more would be decoded for readers that have gone elsewhere.
const QUEUE_COUNT: usize = 64;

/// Blocks that nobody asked for during this time, or twice it at most, are dropped where an image
/// has a cache of its own.
const REST_AFTER: Duration = Duration::from_secs(60);

/// Bytes that somebody will read soon.
pub struct Job {
    /// The contents that have the stream. An image that is closed meanwhile needs nothing.
    pub contents: Weak<Contents>,
    /// The stream.
    pub stream: u8,
    /// Address of the first of them.
    pub address: u64,
    /// How many there are, also in later blocks; those of the first are decoded.
    pub len: u64,
}

/// The threads; they end when it is dropped.
pub struct Pool {
    sender: Sender<Job>,
    thread_count: usize,
}

impl Pool {
    /// Starts threads; one of them has `resting` rest every minute.
    pub fn start(thread_count: usize, resting: Option<Weak<SharedCache>>) -> Self {
        let (sender, receiver) = bounded::<Job>(QUEUE_COUNT);
        for no in 0..thread_count {
            let receiver = receiver.clone();
            let resting = resting.clone().filter(|_| no == 0);
            let started = std::thread::Builder::new()
                .name(format!("ahead-{no}"))
                .spawn(move || match resting {
                    Some(cache) => work_and_rest(&receiver, &cache),
                    None => receiver.iter().for_each(|job| work(&job)),
                });
            if let Err(error) = started {
                log::warn!("{no} threads read ahead, not {thread_count}: {error}");
                break;
            }
        }
        Self {
            sender,
            thread_count,
        }
    }

    /// How many threads there are.
    pub fn thread_count(&self) -> usize {
        self.thread_count
    }

    /// Has a job done soon, or never where there are too many.
    pub fn send(&self, job: Job) {
        let _ = self.sender.try_send(job);
    }
}

fn work(job: &Job) {
    if let Some(contents) = job.contents.upgrade() {
        // A failure here is met again, and reported, by the reader itself.
        let _ = contents.load_ahead(job.stream, job.address, job.len);
    }
}

fn work_and_rest(receiver: &Receiver<Job>, cache: &Weak<SharedCache>) {
    loop {
        match receiver.recv_timeout(REST_AFTER) {
            Ok(job) => work(&job),
            Err(RecvTimeoutError::Timeout) => {
                if let Some(cache) = cache.upgrade() {
                    cache.rest_blocks();
                }
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}
