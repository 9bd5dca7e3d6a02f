//! A spool of extents that wait for their final addresses.

use weald_format::Result;
use weald_format::pages::{BaseRun, Extent, ExtentRun, Source};
use weald_io::{ReadAt, Spool};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Extents written and read at once.
const EXTENTS_PER_BATCH: usize = 4096;

/// Kinds of records.
const HOLE: u8 = 0;
const STREAM: u8 = 1;
const BASE: u8 = 2;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Record {
    kind: u8,
    /// Number of the stream or base.
    no: u8,
    /// Number of extents that the record stands for.
    count: U32,
    /// Start address in the stream or base.
    start: U64,
    len: U64,
}

impl Record {
    fn of(run: &ExtentRun, count: usize) -> Self {
        let (kind, no, start, len) = match run {
            ExtentRun::Own(Extent { len, source }) => match *source {
                Source::Hole => (HOLE, 0, 0, *len),
                Source::Stream { stream, address } => (STREAM, stream, address, *len),
            },
            ExtentRun::Base(BaseRun { base, start, len }) => (BASE, *base, *start, *len),
        };
        Self {
            kind,
            no,
            count: (count as u32).into(),
            start: start.into(),
            len: len.into(),
        }
    }

    fn run(&self) -> ExtentRun {
        let (len, start) = (self.len.get(), self.start.get());
        let source = match self.kind {
            BASE => {
                let base = self.no;
                return ExtentRun::Base(BaseRun { base, start, len });
            }
            HOLE => Source::Hole,
            _ => Source::Stream {
                stream: self.no,
                address: start,
            },
        };
        ExtentRun::Own(Extent { len, source })
    }
}

/// A spool of extents.
pub struct ExtentSpool {
    spool: Spool,
    batch: Vec<Record>,
}

impl ExtentSpool {
    /// Uses `spool`, which is empty.
    pub fn new(spool: Spool) -> Self {
        let batch = Vec::with_capacity(EXTENTS_PER_BATCH);
        Self { spool, batch }
    }

    /// Appends an extent, or a run of `count` extents.
    ///
    /// # Errors
    /// `Io`, `Full`.
    pub fn push(&mut self, run: ExtentRun, count: usize) -> Result<()> {
        self.batch.push(Record::of(&run, count));
        match self.batch.len() {
            EXTENTS_PER_BATCH => self.close(),
            _ => Ok(()),
        }
    }

    /// Writes the open batch to the spool.
    ///
    /// # Errors
    /// As [`ExtentSpool::push`].
    pub fn close(&mut self) -> Result<()> {
        self.spool.append(self.batch.as_bytes())?;
        self.batch.clear();
        Ok(())
    }

    /// Visits all written extents, in order.
    ///
    /// # Errors
    /// `Io`; those of `visit`.
    pub fn each(&self, visit: &mut dyn FnMut(ExtentRun, usize) -> Result<()>) -> Result<()> {
        let mut batch = vec![Record::of(&ExtentRun::Own(EMPTY_EXTENT), 0); EXTENTS_PER_BATCH];
        let mut at = 0;
        while at < self.spool.len() {
            let remaining_count = (self.spool.len() - at) / size_of::<Record>() as u64;
            let batch = &mut batch[..remaining_count.min(EXTENTS_PER_BATCH as u64) as usize];
            self.spool.read_exact_at(batch.as_mut_bytes(), at)?;
            at += size_of_val(batch) as u64;
            for record in batch {
                visit(record.run(), record.count.get() as usize)?;
            }
        }
        Ok(())
    }
}

const EMPTY_EXTENT: Extent = Extent {
    len: 0,
    source: Source::Hole,
};

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch: extents that come back reordered or changed, across batches.
    #[test]
    fn extents_are_read_back_unchanged() {
        let dir = tempfile::tempdir().unwrap();
        let mut spool = ExtentSpool::new(Spool::create(dir.path()).unwrap());
        let run = |i: u64| match i % 3 {
            0 => ExtentRun::Base(BaseRun {
                base: (i % 5) as u8,
                start: i << 30,
                len: i,
            }),
            1 => ExtentRun::Own(Extent {
                len: i,
                source: Source::Hole,
            }),
            _ => ExtentRun::Own(Extent {
                len: i << 40,
                source: Source::Stream {
                    stream: (i % 7) as u8,
                    address: i << 20,
                },
            }),
        };
        let all: Vec<(ExtentRun, usize)> = (0..10_000).map(|i| (run(i), i as usize % 9)).collect();
        for (run, count) in &all {
            spool.push(*run, *count).unwrap();
        }
        spool.close().unwrap();
        let mut found = Vec::new();
        let mut take = |run, count| {
            found.push((run, count));
            Ok(())
        };
        spool.each(&mut take).unwrap();
        assert!(found == all);
    }
}
