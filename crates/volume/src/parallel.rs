//! Threads that share the digests and the encoding of a commit.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use weald_codec::{CodecSpec, Encoder};
use weald_format::Result;

/// Less work, in bytes, is done by the calling thread alone: a thread takes 50 µs to start.
const SHARED_LEN_MIN: u64 = 512 << 10;

/// Encoders of a thread: that of the volume, and those of files that have a codec of their own.
pub struct Encoders {
    usual: Encoder,
    others: Vec<(CodecSpec, Encoder)>,
    block_len: u64,
}

impl Encoders {
    fn new(spec: CodecSpec, block_len: u64) -> Result<Self> {
        Ok(Self {
            usual: Encoder::new(spec, block_len)?,
            others: Vec::new(),
            block_len,
        })
    }

    /// The encoder of a codec, `None` for that of the volume.
    ///
    /// # Errors
    /// `Invalid` for a level that the codec does not have.
    pub fn of(&mut self, codec: Option<CodecSpec>) -> Result<&mut Encoder> {
        let Some(codec) = codec else {
            return Ok(&mut self.usual);
        };
        let known = self.others.iter().position(|(of, _)| *of == codec);
        let at = match known {
            Some(at) => at,
            None => {
                let encoder = Encoder::new(codec, self.block_len)?;
                self.others.push((codec, encoder));
                self.others.len() - 1
            }
        };
        Ok(&mut self.others[at].1)
    }
}

/// Encoders of each thread.
pub struct Workers(Vec<Encoders>);

impl Workers {
    /// For `threads` threads, the calling one included.
    ///
    /// # Errors
    /// `Invalid` for a level that the codec does not have.
    pub fn new(threads: usize, spec: CodecSpec, block_len: u64) -> Result<Self> {
        let encoders = (0..threads.max(1)).map(|_| Encoders::new(spec, block_len));
        encoders.collect::<Result<_>>().map(Self)
    }

    /// Results of `work` on all items, which have `len` bytes, in their order. The number of
    /// threads does not change them.
    pub fn map<T: Sync, R: Send>(
        &mut self,
        items: &[T],
        len: u64,
        work: impl Fn(&mut Encoders, &T) -> R + Sync,
    ) -> Vec<R> {
        let next = AtomicUsize::new(0);
        let run = |encoders: &mut Encoders| {
            let mut done = Vec::new();
            while let at = next.fetch_add(1, Ordering::Relaxed)
                && let Some(item) = items.get(at)
            {
                done.push((at, work(encoders, item)));
            }
            done
        };
        let Some((own, others)) = self.0.split_first_mut() else {
            return Vec::new();
        };
        if len < SHARED_LEN_MIN || items.len() < 2 {
            return run(own).into_iter().map(|(_, result)| result).collect();
        }
        let mut done = thread::scope(|scope| {
            let spawn = |encoders| {
                let builder = thread::Builder::new().name("weald-encode".into());
                // A thread that does not start leaves its work to the others.
                builder.spawn_scoped(scope, || run(encoders)).ok()
            };
            let spawned: Vec<_> = others.iter_mut().filter_map(spawn).collect();
            let mut done = run(own);
            for thread in spawned {
                match thread.join() {
                    Ok(more) => done.extend(more),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            done
        });
        done.sort_unstable_by_key(|(at, _)| *at);
        done.into_iter().map(|(_, result)| result).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Would catch: results that depend on the thread that was first.
    #[test]
    fn results_have_the_order_of_the_items() {
        let items: Vec<u64> = (0..1000).collect();
        for (threads, len) in [(1, 1 << 30), (4, 1 << 30), (4, 0)] {
            let mut workers = Workers::new(threads, CodecSpec::Lz4, 4096).expect("encoders");
            let found = workers.map(&items, len, |_, item| item * 2);
            let expected: Vec<u64> = items.iter().map(|item| item * 2).collect();
            assert_eq!(found, expected);
        }
    }
}
