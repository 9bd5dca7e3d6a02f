//! Contents of files: reading, writing, and everything that changes ranges.

use crate::core::{Core, stat_of};
use crate::flags::{check_attributes, check_content};
use crate::layer::{ContentRange, RangeContent};
use crate::options::PlantedBug;
use crate::quotas::{Charge, Limits, difference};
use crate::state::State;
use rustix::io::Errno;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use weald_format::limits::FILE_LEN_MAX;
use weald_format::{Error, FileKind, Result};
use weald_vfs::{AllocateMode, FilePlace, Ino, Nanoseconds, NewStat, Outcome, Stat};

/// Longest file, bytes: what an image can hold, so that a seal keeps it.
pub const SIZE_MAX: u64 = FILE_LEN_MAX;
/// Aligned runs of this many bytes of zeros become holes.
const HOLE_LEN: usize = 4096;

/// Makes pieces of `bytes` at `offset`: aligned runs of zeros become holes.
fn cut(offset: u64, bytes: &[u8]) -> Vec<ContentRange> {
    let mut segments: Vec<ContentRange> = Vec::new();
    let mut shared: Option<Arc<[u8]>> = None;
    let mut at = 0;
    while at < bytes.len() {
        let absolute = offset + at as u64;
        let rest = (HOLE_LEN as u64 - absolute % HOLE_LEN as u64) as usize;
        let len = rest.min(bytes.len() - at);
        let part = &bytes[at..at + len];
        let is_hole = len == HOLE_LEN && part[0] == 0 && part.iter().all(|byte| *byte == 0);
        let range = absolute..absolute + len as u64;
        match segments.last_mut() {
            Some(last) if last.source.is_hole() == is_hole => last.range.end = range.end,
            _ => {
                let source = if is_hole {
                    RangeContent::Hole
                } else {
                    let shared = shared.get_or_insert_with(|| bytes.into());
                    RangeContent::Bytes(shared.clone(), at)
                };
                segments.push(ContentRange { range, source });
            }
        }
        at += len;
    }
    segments
}

fn data_len(segments: &[ContentRange]) -> u64 {
    let data = segments.iter().filter(|s| !s.source.is_hole());
    data.map(ContentRange::len).sum()
}

impl Core {
    fn regular(&self, state: &State, ino: Ino) -> Outcome<Arc<weald_format::volume::InodeRow>> {
        let row = self.inode(state, ino)?;
        match row.kind {
            FileKind::Regular => Ok(row),
            FileKind::Directory => Err(Errno::ISDIR.into()),
            _ => Err(Errno::INVAL.into()),
        }
    }

    /// Allocated bytes in `range` below the end of the file.
    fn taken(&self, state: &State, ino: Ino, range: &Range<u64>, size: u64) -> Result<u64> {
        if range.start < size {
            self.allocated(state, ino, range.start..range.end.min(size))
        } else {
            Ok(0)
        }
    }

    /// Appends the bytes at `offset` to `out`. Takes the lock itself, and reads blocks without it.
    ///
    /// # Errors
    /// EISDIR, EINVAL, EIO.
    pub fn read(&self, ino: Ino, offset: u64, len: usize, out: &mut Vec<u8>) -> Outcome<()> {
        let _gate = self.shared.gate.read();
        let mut segments = Vec::new();
        let _ahead = self.prefetch_content(ino, &(offset..offset.saturating_add(len as u64)));
        {
            let state = self.state.read();
            let row = self.regular(&state, ino)?;
            let size = row.size;
            let end = offset.saturating_add(len as u64).min(size);
            if offset >= end {
                return Ok(());
            }
            out.reserve((end - offset) as usize);
            let _ = self.each_segment(&state, ino, offset..end, &mut |segment| {
                segments.push(segment);
                ControlFlow::Continue(())
            })?;
            if row.allocated == size && segments.iter().any(|s| s.source.is_hole()) {
                let what = format!("inode {ino} has no hole, and pieces of it are missing");
                return Err(Error::corrupt("extents row", offset, "V-4.4", what).into());
            }
        }
        self.copy_out(&segments, out)?;
        Ok(())
    }

    /// Appends the bytes of `segments` to `out`.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn copy_out(&self, segments: &[ContentRange], out: &mut Vec<u8>) -> Result<()> {
        for segment in segments {
            let len = segment.len() as usize;
            match &segment.source {
                RangeContent::Hole => out.resize(out.len() + len, 0),
                RangeContent::Bytes(bytes, at) => out.extend_from_slice(&bytes[*at..*at + len]),
                RangeContent::Block(id, at) => {
                    let block = self.blocks.get(*id)?;
                    let at = *at as usize;
                    let bytes = block.get(at..at + len).ok_or_else(|| {
                        let what = format!("a piece ends behind block {id}");
                        Error::corrupt("extents row", 0, "V-4.3", what)
                    })?;
                    out.extend_from_slice(bytes);
                }
            }
        }
        Ok(())
    }

    /// Replaces the content of `range` by `segments`, which cover it, and counts what is allocated.
    fn put(
        &self,
        state: &mut State,
        ino: Ino,
        range: &Range<u64>,
        segments: Vec<ContentRange>,
        limits: Limits,
    ) -> Outcome<()> {
        let (size, quota) = {
            let row = self.inode(state, ino)?;
            (row.size, row.quota)
        };
        let old = self.taken(state, ino, range, size)?;
        let new = data_len(&segments);
        self.charge(state, quota, Charge::of_len(difference(new, old)), limits)?;
        for segment in segments {
            // Behind the end of the file there is a hole already.
            if !segment.source.is_hole() || segment.range.start < size {
                state.active.put_range(ino, segment);
            }
        }
        let row = self.inode_mut(state, ino)?;
        row.allocated = row.allocated.saturating_add(new).saturating_sub(old);
        row.size = row.size.max(range.end);
        state.change_totals(0, difference(new, old));
        Ok(())
    }

    fn touch(&self, state: &mut State, ino: Ino, now: Nanoseconds) -> Outcome<()> {
        let row = self.inode_mut(state, ino)?;
        row.mtime = now;
        row.ctime = now;
        Ok(())
    }

    /// Writes all of `bytes`.
    ///
    /// # Errors
    /// EFBIG, EISDIR, EINVAL.
    pub fn write(
        &self,
        state: &mut State,
        ino: Ino,
        offset: u64,
        segments: Vec<ContentRange>,
        now: Nanoseconds,
    ) -> Outcome<()> {
        let row = self.regular(state, ino)?;
        check_content(&row, Some(offset))?;
        if let Some(last) = segments.last() {
            let range = offset..last.range.end;
            self.put(state, ino, &range, segments, Limits::Hold)?;
        }
        self.touch(state, ino, now)
    }

    /// Prepares `bytes` for [`Core::write`], without the lock.
    ///
    /// # Errors
    /// EFBIG.
    pub fn prepare(&self, offset: u64, bytes: &[u8]) -> Outcome<Vec<ContentRange>> {
        let end = offset.checked_add(bytes.len() as u64);
        if end.is_none_or(|end| end > SIZE_MAX) {
            Err(Errno::FBIG.into())
        } else {
            Ok(cut(offset, bytes))
        }
    }

    fn truncate(&self, state: &mut State, ino: Ino, size: u64) -> Outcome<()> {
        let old = self.inode(state, ino)?.size;
        if size < old {
            let taken = match size {
                0 => self.inode(state, ino)?.allocated,
                _ => self.allocated(state, ino, size..old)?,
            };
            let keeps = self.has_bug(PlantedBug::TruncateKeepsTail);
            if !keeps {
                let hole = ContentRange {
                    range: size..old,
                    source: RangeContent::Hole,
                };
                state.active.put_range(ino, hole);
            }
            let row = self.inode_mut(state, ino)?;
            row.allocated = row.allocated.saturating_sub(taken);
            let quota = row.quota;
            let freed = difference(0, taken);
            state.change_totals(0, freed);
            self.charge(state, quota, Charge::of_len(freed), Limits::Ignore)?;
        }
        self.inode_mut(state, ino)?.size = size;
        Ok(())
    }

    /// Changes attributes.
    ///
    /// # Errors
    /// EFBIG, EISDIR, EINVAL.
    pub fn set_stat(
        &self,
        state: &mut State,
        ino: Ino,
        new: &NewStat,
        now: Nanoseconds,
    ) -> Outcome<Stat> {
        let row = self.inode(state, ino)?;
        if new.size.is_some() {
            self.regular(state, ino)?;
        }
        check_attributes(&row, new, now)?;
        if let Some(size) = new.size {
            if size > SIZE_MAX {
                return Err(Errno::FBIG.into());
            }
            self.truncate(state, ino, size)?;
            self.touch(state, ino, now)?;
        }
        let row = self.inode_mut(state, ino)?;
        if let Some(permissions) = new.permissions {
            row.permissions = permissions & 0o7777;
        }
        row.flags = new.flags.unwrap_or(row.flags);
        row.uid = new.uid.unwrap_or(row.uid);
        row.gid = new.gid.unwrap_or(row.gid);
        row.atime = new.atime.unwrap_or(row.atime);
        row.mtime = new.mtime.unwrap_or(row.mtime);
        row.ctime = new.ctime.unwrap_or(now);
        Ok(stat_of(ino, row))
    }

    /// Does what fallocate(2) does.
    ///
    /// # Errors
    /// EFBIG, EINVAL, EISDIR.
    pub fn allocate(
        &self,
        state: &mut State,
        ino: Ino,
        mode: AllocateMode,
        range: Range<u64>,
        now: Nanoseconds,
    ) -> Outcome<()> {
        let row = self.regular(state, ino)?;
        check_content(&row, None)?;
        let size = row.size;
        let len = range.end - range.start;
        let hole = |range: Range<u64>| ContentRange {
            range,
            source: RangeContent::Hole,
        };
        match mode {
            AllocateMode::PunchHole | AllocateMode::Zero { .. } => {
                let inside = range.start.min(size)..range.end.min(size);
                if !inside.is_empty() {
                    let all = vec![hole(inside.clone())];
                    self.put(state, ino, &inside, all, Limits::Hold)?;
                }
                if range.end > size && mode == (AllocateMode::Zero { keeps_size: false }) {
                    self.truncate(state, ino, range.end)?;
                }
            }
            AllocateMode::Collapse => {
                if range.end >= size || !is_aligned(&range) {
                    return Err(Errno::INVAL.into());
                }
                let tail = self.shifted(state, ino, range.end..size, |at| at - len)?;
                // Data that moves is in both places for a moment.
                let to = range.start..size - len;
                self.put(state, ino, &to, tail, Limits::Ignore)?;
                self.truncate(state, ino, size - len)?;
            }
            AllocateMode::Insert => {
                if range.start >= size || !is_aligned(&range) {
                    return Err(Errno::INVAL.into());
                }
                if size.checked_add(len).is_none_or(|size| size > SIZE_MAX) {
                    return Err(Errno::FBIG.into());
                }
                let mut all = vec![hole(range.clone())];
                all.extend(self.shifted(state, ino, range.start..size, |at| at + len)?);
                self.truncate(state, ino, size + len)?;
                let to = range.start..size + len;
                self.put(state, ino, &to, all, Limits::Ignore)?;
            }
        }
        self.touch(state, ino, now)
    }

    /// The content of `range`, moved.
    fn shifted(
        &self,
        state: &State,
        ino: Ino,
        range: Range<u64>,
        shift: impl Fn(u64) -> u64,
    ) -> Result<Vec<ContentRange>> {
        let mut segments = Vec::new();
        let _ = self.each_segment(state, ino, range, &mut |segment| {
            segments.push(ContentRange {
                range: shift(segment.range.start)..shift(segment.range.end),
                source: segment.source,
            });
            ControlFlow::Continue(())
        })?;
        Ok(segments)
    }

    /// Copies a range; the copy shares its blocks.
    ///
    /// # Errors
    /// EINVAL, EFBIG, EISDIR.
    pub fn copy_range(
        &self,
        state: &mut State,
        from: FilePlace,
        to: FilePlace,
        len: u64,
        now: Nanoseconds,
    ) -> Outcome<u64> {
        let size = self.regular(state, from.ino)?.size;
        check_content(&*self.regular(state, to.ino)?, Some(to.offset))?;
        let len = len.min(size.saturating_sub(from.offset));
        let ends = (from.offset.checked_add(len), to.offset.checked_add(len));
        let (Some(from_end), Some(to_end)) = ends else {
            return Err(Errno::FBIG.into());
        };
        if from.ino == to.ino && from.offset < to_end && to.offset < from_end {
            return Err(Errno::INVAL.into());
        }
        if len == 0 {
            return Ok(0);
        }
        if to_end > SIZE_MAX {
            return Err(Errno::FBIG.into());
        }
        let shift = |at: u64| at - from.offset + to.offset;
        let segments = self.shifted(state, from.ino, from.offset..from_end, shift)?;
        let range = to.offset..to_end;
        self.put(state, to.ino, &range, segments, Limits::Hold)?;
        self.touch(state, to.ino, now)?;
        Ok(len)
    }

    /// The first byte at or behind `offset` that is data, or in a hole.
    ///
    /// # Errors
    /// ENXIO.
    pub fn seek(&self, state: &State, ino: Ino, offset: u64, wants_hole: bool) -> Outcome<u64> {
        let size = self.regular(state, ino)?.size;
        if offset >= size {
            return Err(Errno::NXIO.into());
        }
        let mut found = None;
        let _ = self.each_segment(state, ino, offset..size, &mut |segment| {
            if segment.source.is_hole() == wants_hole {
                found = Some(segment.range.start);
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        })?;
        match found {
            Some(found) => Ok(found),
            None if wants_hole => Ok(size),
            None => Err(Errno::NXIO.into()),
        }
    }
}

/// Whether a range may be collapsed or inserted: the manual page of fallocate(2) allows a file
/// system to ask for whole blocks.
fn is_aligned(range: &Range<u64>) -> bool {
    /// Bytes of a block of the file system.
    const ALIGNMENT_LEN: u64 = 4096;
    range.start.is_multiple_of(ALIGNMENT_LEN) && range.end.is_multiple_of(ALIGNMENT_LEN)
}
