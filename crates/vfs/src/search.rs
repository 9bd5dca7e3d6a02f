//! A search through a tree by several threads. A directory that is stored once is searched once.
//!
//! Equal directories share a template. If a query depends only on the entry itself, every instance
//! of a template has the same matches, so that the search remembers them: it skips later instances
//! without a match, reads only the entries of others that lead to one, and counts without a read.
//! For every query and number of threads, the matches and their order are those of a plain walk.
//!
//! `hit.rs` has the types of the interface, `known.rs` the remembered matches, `part.rs` searches
//! some entries of a directory with everything below them on one thread, `driver.rs` divides the
//! tree into such parts.

mod driver;
mod hit;
mod known;
mod part;

pub use hit::{Hit, SearchOptions};

use crate::path::Located;
use crate::{Event, Query, SelectedWalk, parallel};
use driver::Driver;
use known::Known;
use part::{Batch, Shared};
use std::cell::RefCell;
use std::ops::ControlFlow;
use weald_format::Error;
use weald_image::Image;

/// A piece of the result of a search.
#[derive(Debug)]
pub enum Found<E> {
    /// Output of `write` for some matches.
    Bytes(Vec<u8>),
    /// Number of some matches; only if [`SearchOptions::is_counted`].
    Count(u64),
    /// An error of the reader about one directory, with its path; the search continues behind it.
    Problem(Error),
    /// `write` failed for an entry, so that the rest of its part was not searched; the caller
    /// should stop.
    Failed(E),
}

/// Searches `start` and everything below it for `query`. `write` is called for every match, on any
/// thread, and appends output about it; `sink` gets the pieces on the calling thread in the order
/// of a walk, until it breaks.
///
/// # Cost
/// At most 64 parts for each thread are in flight, each with 1 MiB of output and the output of one
/// `write`.
pub fn search<'a, E: Send>(
    image: &'a Image,
    start: Located,
    query: &'a Query,
    options: SearchOptions,
    write: &(impl Fn(Hit<'_>, &mut Vec<u8>) -> Result<(), E> + Sync),
    sink: &mut dyn FnMut(Found<E>) -> ControlFlow<()>,
) {
    let is_deep = options.depth_max.is_some() || query.depth_min > 0;
    let is_shared = !is_deep && query.depends_on_entry_only(image.has_times_overlay());
    let shared = Shared {
        image,
        query,
        options,
        known: is_shared.then(Known::default),
    };
    let driver = RefCell::new(Driver::new(&shared, start));
    let produce = || driver.borrow_mut().next_job();
    let work = |job: driver::Job<'a>| job.run(&shared, write);
    // Consecutive parts of one directory that meet the same damage report it once.
    let mut last_problem = String::new();
    let mut emit_once = |mut batch: Batch<E>| {
        batch.problems.retain(|problem| {
            let before = std::mem::replace(&mut last_problem, format!("{problem:?}"));
            before != last_problem
        });
        emit_batch(batch, sink)
    };
    let emit = |done: driver::Done<'a, E>| {
        let (batch, mut unfinished) = driver.borrow_mut().take(done);
        emit_once(batch)?;
        while let Some(mut part) = unfinished.take() {
            let mut batch = Batch::default();
            let is_done = part.advance(&shared, write, &mut batch);
            driver.borrow_mut().add(&batch);
            emit_once(batch)?;
            unfinished = (!is_done).then_some(part);
        }
        ControlFlow::Continue(())
    };
    parallel::ordered(options.thread_count, produce, work, emit);
}

/// Searches what `walk` chooses for `query`, on this thread; the rest as [`search`]. Rules may
/// decide otherwise about each instance of a directory, so that every one is read.
pub fn search_walk<E>(
    mut walk: SelectedWalk<'_>,
    query: &Query,
    is_counted: bool,
    write: &impl Fn(Hit<'_>, &mut Vec<u8>) -> Result<(), E>,
    sink: &mut dyn FnMut(Found<E>) -> ControlFlow<()>,
) {
    loop {
        let flow = match walk.step() {
            Ok(None) => return,
            Ok(Some(Event::Leave)) => continue,
            Ok(Some(Event::Enter(visit))) => {
                let (path, inode, depth) = (walk.path(), &visit.inode, visit.depth);
                if !query.wants(path, &visit.name, inode, depth) {
                    continue;
                }
                let mut bytes = Vec::new();
                if is_counted {
                    sink(Found::Count(1))
                } else {
                    match write(Hit { path, inode, depth }, &mut bytes) {
                        Ok(()) => sink(Found::Bytes(bytes)),
                        Err(error) => sink(Found::Failed(error)),
                    }
                }
            }
            Err(error) => sink(Found::Problem(error)),
        };
        if flow.is_break() {
            return;
        }
    }
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
