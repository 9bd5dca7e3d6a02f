//! Writes bytes of segments, and maps under their hidden names, as files of data have them.

use super::place::{Place, read_data};
use crate::disk::{Access, Disk, LocalFile, Objects};
use crate::layout;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use weald_format::replica::{DataFile, DataKind, unpack_segment};
use weald_format::{ErrorKind, Result, SegmentNo};

/// Files of data that are read ahead of what is written.
const READ_AHEAD: usize = 2;
/// Number of segments that are kept open while they are written.
const OPEN_MAX: usize = 64;

/// Segments and maps that are written, of which the last segments are open.
pub(super) struct ObjectWriter<'a> {
    disk: &'a dyn Disk,
    /// How long the segments become.
    lens: &'a BTreeMap<SegmentNo, u64>,
    /// Those that were written to.
    seen: BTreeSet<SegmentNo>,
    open: VecDeque<(SegmentNo, Box<dyn LocalFile>)>,
    /// Bytes that were written.
    pub written_len: u64,
}

impl<'a> ObjectWriter<'a> {
    /// Segments become as long as `lens` says.
    pub fn new(disk: &'a dyn Disk, lens: &'a BTreeMap<SegmentNo, u64>) -> Self {
        Self {
            disk,
            lens,
            seen: BTreeSet::new(),
            open: VecDeque::new(),
            written_len: 0,
        }
    }

    /// Opens segment `number`, and makes it as long as it becomes.
    fn file(&mut self, number: SegmentNo) -> Result<&dyn LocalFile> {
        if let Some(index) = self.open.iter().position(|(no, _)| *no == number) {
            let found = self.open.remove(index);
            self.open.extend(found);
        } else {
            let name = layout::segment_file(number);
            let file = match self.disk.open(&name, Access::Write) {
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    self.disk.open(&name, Access::Create)
                }
                other => other,
            }?;
            let is_new = self.seen.insert(number);
            if let Some(len) = self.lens.get(&number).filter(|_| is_new) {
                file.set_len(*len)?;
            }
            self.open.push_back((number, file));
            if self.open.len() > OPEN_MAX
                && let Some((_, file)) = self.open.pop_front()
            {
                file.sync()?;
            }
        }
        match self.open.back() {
            Some((_, file)) => Ok(&**file),
            None => Err(weald_format::Error::limit("no segment is open")),
        }
    }

    /// Gives a segment that is there the length that it becomes.
    ///
    /// # Errors
    /// `Io`, `Full`.
    pub fn settle_len(&mut self, number: SegmentNo) -> Result<()> {
        match self.disk.open(&layout::segment_file(number), Access::Write) {
            Err(error) if crate::store::is_bad_or_missing(&error) => Ok(()),
            Err(error) => Err(error),
            Ok(file) if Some(&file.len()?) == self.lens.get(&number) => Ok(()),
            Ok(_) => self.file(number).map(drop),
        }
    }

    /// Writes the bytes of a file of data; rows are none of a file.
    ///
    /// # Errors
    /// `Corrupt`, `Io`, `Full`.
    pub fn write(&mut self, file: &DataFile, bytes: &[u8]) -> Result<()> {
        match file.kind {
            DataKind::Rows => {}
            DataKind::Segment {
                number,
                offset,
                len,
            } => {
                let runs = unpack_segment(bytes, len)?;
                let target = self.file(number)?;
                let mut written_len = 0;
                for (from, run) in runs {
                    target.write_at(run, offset + from)?;
                    written_len += run.len() as u64;
                }
                self.written_len += written_len;
            }
            DataKind::Map(image_no) => {
                Objects::put(self.disk, &layout::hidden_map(image_no), bytes)?;
                self.written_len += bytes.len() as u64;
            }
        }
        Ok(())
    }

    /// Makes everything durable. Returns the bytes that were written.
    ///
    /// # Errors
    /// `Io`.
    pub fn finish(self) -> Result<u64> {
        for (_, file) in &self.open {
            file.sync()?;
        }
        self.disk.sync_dir(layout::SEGMENTS)?;
        Ok(self.written_len)
    }
}

/// Callback that receives a file of data and its bytes, or why it cannot be read.
pub(super) type VisitRead<'a> = dyn FnMut(&DataFile, Result<Vec<u8>>) -> Result<()> + 'a;

/// Reads files of data ahead of `visit`, in order.
///
/// # Errors
/// Those of `visit`; `Io` if no thread starts.
pub(super) fn each_read(
    place: &dyn Place,
    files: &[&DataFile],
    visit: &mut VisitRead<'_>,
) -> Result<()> {
    std::thread::scope(|scope| {
        let (sender, receiver) = std::sync::mpsc::sync_channel(READ_AHEAD);
        let reading = move || {
            for &file in files {
                // Nobody waits for it after an error.
                if sender.send((file, read_data(place, file))).is_err() {
                    return;
                }
            }
        };
        let builder = std::thread::Builder::new().name("weald-read".into());
        let spawned = builder.spawn_scoped(scope, reading);
        spawned.map_err(|error| weald_format::Error::io("a thread", error))?;
        for (file, read) in receiver {
            visit(file, read)?;
        }
        Ok(())
    })
}
