//! A search through a tree: what is wanted, in the order of a walk, by several threads, directories
//! that are stored once searched once.
//!
//! Equal directories share a template. Where a query asks only what an entry itself says, every
//! instance of a template holds the same answers, so that the search remembers them: later
//! instances without one are passed over, of others only the entries that lead to one are read, and
//! counting needs none. Whatever the query and the number of threads, what is found and its order
//! are those of a plain walk.
//!
//! `known.rs` has what is remembered, `part.rs` searches a run of entries with all that is below
//! them on one thread, `driver.rs` cuts the tree into such parts.

mod driver;
mod known;
mod part;

use crate::path::Located;
use crate::{Query, parallel};
use driver::Driver;
use known::Known;
use part::{Batch, Shared};
use std::cell::RefCell;
use std::ops::ControlFlow;
use weald_format::Error;
use weald_image::{Image, Inode};

/// An entry that is wanted.
#[derive(Debug, Clone, Copy)]
pub struct Hit<'a> {
    /// Path from the root of the image; empty for the root.
    pub path: &'a [u8],
    /// What it is.
    pub inode: &'a Inode,
    /// 0 for where the search started, 1 for its entries, and so on.
    pub depth: usize,
}

/// What a search came to, piece by piece.
#[derive(Debug)]
pub enum Found<E> {
    /// What was written of entries that are wanted.
    Bytes(Vec<u8>),
    /// So many of them; only where they are to be counted.
    Count(u64),
    /// What the reader reports about one directory, with its path; the search goes on behind it.
    Problem(Error),
    /// Writing about an entry failed, so that the rest of its part was not searched: no reason to
    /// go on.
    Failed(E),
}

/// How a search goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SearchOptions {
    /// Greatest depth below the start.
    pub depth_max: Option<usize>,
    /// Only the number of entries is asked for.
    pub is_counted: bool,
    /// Threads that search.
    pub thread_count: usize,
}

/// Searches `start` and all below it for `query`. `write` is called for every entry that is wanted,
/// on any thread, and appends what is to be said of it; `sink` gets the pieces on the calling
/// thread in the order of a walk, until it breaks.
///
/// # Cost
/// 64 parts a thread are in flight at most, each of a mebibyte and what `write` says of one entry.
pub fn search<'a, E: Send>(
    image: &'a Image,
    start: Located,
    query: &'a Query,
    options: SearchOptions,
    write: &(impl Fn(Hit<'_>, &mut Vec<u8>) -> Result<(), E> + Sync),
    sink: &mut dyn FnMut(Found<E>) -> ControlFlow<()>,
) {
    let is_deep = options.depth_max.is_some() || query.depth_min > 0;
    let is_shared = !is_deep && query.asks_entries_alone(image.has_times_overlay());
    let shared = Shared {
        image,
        query,
        options,
        known: is_shared.then(Known::default),
    };
    let driver = RefCell::new(Driver::new(&shared, start));
    let produce = || driver.borrow_mut().next_job();
    let work = |job: driver::Job<'a>| job.run(&shared, write);
    // Parts of one directory that meet the same damage, one after the other, tell it once.
    let mut told = String::new();
    let mut tell = |mut batch: Batch<E>| {
        batch.problems.retain(|problem| {
            let before = std::mem::replace(&mut told, format!("{problem:?}"));
            before != told
        });
        emit_batch(batch, sink)
    };
    let emit = |done: driver::Done<'a, E>| {
        let (batch, mut rest) = driver.borrow_mut().take(done);
        tell(batch)?;
        while let Some(mut part) = rest.take() {
            let mut batch = Batch::default();
            let is_done = part.advance(&shared, write, &mut batch);
            driver.borrow_mut().add(&batch);
            tell(batch)?;
            rest = (!is_done).then_some(part);
        }
        ControlFlow::Continue(())
    };
    parallel::ordered(options.thread_count, produce, work, emit);
}

fn emit_batch<E>(
    batch: Batch<E>,
    sink: &mut dyn FnMut(Found<E>) -> ControlFlow<()>,
) -> ControlFlow<()> {
    if !batch.bytes.is_empty() {
        sink(Found::Bytes(batch.bytes))?;
    }
    if batch.count > 0 {
        sink(Found::Count(batch.count))?;
    }
    for problem in batch.problems {
        sink(Found::Problem(problem))?;
    }
    match batch.failure {
        Some(failure) => sink(Found::Failed(failure)),
        None => ControlFlow::Continue(()),
    }
}
