//! The threads that decode ahead of sequential readers, for all images of one cache.
//!
//! The pool knows neither images nor the cache: a job names its target by [`PrefetchTarget`], and
//! the owner of the pool says what to do when it is idle.

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use std::sync::Weak;
use std::time::Duration;

/// Jobs that wait at most. A longer queue would decode for readers that have gone elsewhere.
const QUEUE_COUNT_MAX: usize = 64;

/// Time without a job after which a thread calls the idle hook.
const IDLE_AFTER: Duration = Duration::from_secs(60);

/// Something that can decode a part of a stream before a reader requests it.
pub trait PrefetchTarget: Send + Sync {
    /// Decodes what lies at `address` of `stream` into the cache, up to `len` bytes of the first
    /// block. Ignores failures: the reader meets them again and reports them.
    fn decode_ahead(&self, stream: u8, address: u64, len: u64);
}

/// A range of a stream that a reader will request soon.
pub struct PrefetchJob {
    /// The owner of the stream. The job is void if the owner is dropped meanwhile.
    pub target: Weak<dyn PrefetchTarget>,
    /// Number of the stream.
    pub stream: u8,
    /// Address of its first byte.
    pub address: u64,
    /// Bytes, also of later blocks; only those of the first block are decoded.
    pub len: u64,
}

/// Called by one thread of a pool that has been idle for a minute.
pub type IdleHook = Box<dyn Fn() + Send>;

/// The threads. They end when the pool is dropped.
pub struct PrefetchPool {
    sender: Sender<PrefetchJob>,
    thread_count: usize,
}

impl PrefetchPool {
    /// Starts `thread_count` threads; the first of them calls `idle_hook` after each idle minute.
    pub fn start(thread_count: usize, mut idle_hook: Option<IdleHook>) -> Self {
        let (sender, receiver) = bounded::<PrefetchJob>(QUEUE_COUNT_MAX);
        for no in 0..thread_count {
            let receiver = receiver.clone();
            let idle_hook = idle_hook.take();
            let started = std::thread::Builder::new()
                .name(format!("prefetch-{no}"))
                .spawn(move || match idle_hook {
                    Some(idle_hook) => run_with_hook(&receiver, &idle_hook),
                    None => receiver.iter().for_each(|job| run(&job)),
                });
            if let Err(error) = started {
                log::warn!("started {no} of {thread_count} prefetch threads: {error}");
                break;
            }
        }
        Self {
            sender,
            thread_count,
        }
    }

    /// Threads of the pool.
    pub fn thread_count(&self) -> usize {
        self.thread_count
    }

    /// Queues a job; drops it if the queue is full.
    pub fn queue(&self, job: PrefetchJob) {
        let _ = self.sender.try_send(job);
    }
}

fn run(job: &PrefetchJob) {
    if let Some(target) = job.target.upgrade() {
        target.decode_ahead(job.stream, job.address, job.len);
    }
}

fn run_with_hook(receiver: &Receiver<PrefetchJob>, idle_hook: &IdleHook) {
    loop {
        match receiver.recv_timeout(IDLE_AFTER) {
            Ok(job) => run(&job),
            Err(RecvTimeoutError::Timeout) => idle_hook(),
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}
