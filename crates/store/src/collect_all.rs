//! A collection from its begin to its end, for a store of which no volume is open.

use crate::StoreWriter;
use crate::collect::{CollectOptions, Collected};
use crate::collection::{Collection, NextCopy, Sorting};
use crate::faults::Bug;
use crate::volume::Dead;
use std::ops::ControlFlow;
use weald_format::Result;
use weald_format::store::ImageState;

/// Rows of blocks that one transaction removes.
const FORGET_COUNT: usize = 1 << 15;

impl StoreWriter {
    /// Frees the space of blocks that no image refers to: all steps of a [`Collection`], one after
    /// the other. `tick` is called between them; if it returns `Break`, the collection ends, and
    /// the finished steps remain done.
    ///
    /// A segment of which a live block cannot be read stays as it is, apart from its dead blocks.
    /// Beside a damaged map, all segments with live blocks do.
    ///
    /// # Errors
    /// `Io`, `Full`, `Corrupt`.
    ///
    /// # Cost
    /// A pass over the rows of blocks for each 32 segments to empty and one more, two reads and one
    /// write of the live bytes of the copied segments, and one read of all maps, or two if a
    /// segment is emptied. Each block of these segments takes about 50 bytes of memory.
    pub fn collect(
        &mut self,
        options: &CollectOptions,
        tick: &mut dyn FnMut(&Collected) -> ControlFlow<()>,
    ) -> Result<Collected> {
        self.collect_with(Collection::begin(self, options), tick)
    }

    /// Sorts blocks into segments by class: all steps of [`Collection::sort`].
    ///
    /// # Errors
    /// `Io`, `Full`, `Corrupt`.
    ///
    /// # Cost
    /// As [`StoreWriter::collect`], for the segments that are named.
    pub fn sort(
        &mut self,
        sorting: Sorting,
        tick: &mut dyn FnMut(&Collected) -> ControlFlow<()>,
    ) -> Result<Collected> {
        self.collect_with(Collection::sort(self, sorting), tick)
    }

    fn collect_with(
        &mut self,
        mut collection: Collection,
        tick: &mut dyn FnMut(&Collected) -> ControlFlow<()>,
    ) -> Result<Collected> {
        let (store, engine) = (self.store().clone(), self.engine());
        let (goes_on, nobody_reads) = (|| Ok(()), &mut |_: &[Dead]| {});
        collection.find_damaged_maps((&store, &*engine), &goes_on)?;
        collection.choose(self)?;
        while collection.find_group(&*engine, &goes_on)? {
            while collection.next_copy() != NextCopy::None {
                if tick(collection.done()).is_break() {
                    collection.stop();
                    break;
                }
                collection.empty_some(self, nobody_reads)?;
            }
        }
        if collection.has_emptied() {
            if self.faults.has(Bug::SegmentRemovedBeforeMaps) {
                collection.remove_emptied(self)?;
            }
            // Beside a damaged map nothing has moved.
            if collection.done().maps_damaged == 0 {
                for (name, row) in self.image_rows()? {
                    let is_shown = row.state == ImageState::Present;
                    if is_shown && collection.has_moved(&store, &name)? {
                        collection.renew(self, &name)?;
                    }
                }
            }
            collection.remove_emptied(self)?;
        }
        collection.find_dead(&*engine, &goes_on)?;
        while collection.dead_count() > 0 {
            let dead = collection.forget_some(self, FORGET_COUNT, nobody_reads)?;
            self.free(&dead)?;
        }
        self.keep_damaged();
        collection.finish(&store, &*engine)?;
        Ok(*collection.done())
    }
}
