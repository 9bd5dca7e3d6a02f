//! Reader of zip archives, by the list of members at their end.
//!
//! The list is read as it goes, never held. Members that lie over each other are refused, so that
//! an archive unpacks to no more than its codecs allow for its length. The modules, each using only
//! those above it:
//!
//! 1. `stretch` reads a part of the file, `dos_time` a time; `end` finds the list, `extra` reads
//!    extra fields, `names` decodes names.
//! 2. `record` reads a record of the list, and the header before a member's data.
//! 3. `data` decodes data.
//!
//! Source: APPNOTE.TXT 6.3.10 of PKWARE; `proginfo/extrafld.txt` of Info-ZIP for the extra fields
//! of Unix, and unzip 6.0 for what attributes mean.

mod data;
mod dos_time;
mod end;
mod extra;
mod names;
mod record;
mod stretch;

use crate::member::{Member, MemberKind};
use crate::members::{Layout, Members, Tell};
use data::MemberData;
use end::List;
use record::Record;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stretch::Stretch;
use weald_format::limits::TARGET_LEN_MAX;
use weald_format::{Attributes, Error, FileKind, Result, XattrSet};
use weald_io::FileSource;

/// Bytes of the list that are read at once.
const LIST_BUFFER_LEN: usize = 256 << 10;

/// Reads a zip archive member by member, in the order of its list.
pub struct ZipReader {
    /// The archive's path, for messages.
    path: PathBuf,
    file: Arc<FileSource>,
    list: List,
    records: BufReader<Stretch>,
    /// Bytes of the list that are still to be read, and members of it that were read.
    remaining_len: u64,
    member_count: u64,
    /// Bytes of the archive that no member so far has taken.
    unused_len: u64,
    data: Option<MemberData>,
    layout: Option<Layout>,
    /// Bytes of memory that a decoder may take.
    decoder_len: u64,
    /// Path of the current member, for messages.
    current: Vec<u8>,
}

impl ZipReader {
    /// Whether `front`, the first bytes of a file, is the start of a zip archive, also of one
    /// without members.
    pub fn is_zip(front: &[u8]) -> bool {
        front.starts_with(record::LOCAL_MAGIC) || front.starts_with(end::END_MAGIC)
    }

    /// Opens the archive at `path`, in which other bytes may stand before the members. A decoder
    /// may take `decoder_len` bytes.
    ///
    /// # Errors
    /// `NotFound`, `Io`; `Invalid` for a file that does not end as an archive does; `Unsupported`
    /// for a part of an archive in several files.
    pub fn open(path: &Path, decoder_len: u64) -> Result<Self> {
        let file = Arc::new(FileSource::open(path, 0)?);
        let list = List::find(&file).map_err(|e| e.context(path.display()))?;
        let records = Stretch {
            file: file.clone(),
            at: list.start,
            end: list.start + list.len,
        };
        Ok(Self {
            path: path.to_owned(),
            records: BufReader::with_capacity(LIST_BUFFER_LEN, records),
            remaining_len: list.len,
            member_count: 0,
            unused_len: list.start,
            list,
            file,
            data: None,
            layout: None,
            decoder_len,
            current: Vec::new(),
        })
    }

    /// Adds the archive and the member to an error.
    fn located(&self, error: Error) -> Error {
        let error = if self.current.is_empty() {
            error
        } else {
            error.context(weald_vfs::shown_path(&self.current))
        };
        error.context(self.path.display())
    }

    /// The next record of the list; `None` at its end.
    fn record(&mut self) -> Result<Option<Record>> {
        self.current.clear();
        if self.remaining_len == 0 {
            self.list.check_count(self.member_count)?;
            return Ok(None);
        }
        let read = Record::read(&mut self.records, self.remaining_len)?;
        let Some((record, len)) = read else {
            // A signature of the list may end it.
            self.remaining_len = 0;
            return self.record();
        };
        self.remaining_len -= len;
        self.member_count += 1;
        Ok(Some(record))
    }

    /// Fills `member`; false for one that is left out.
    fn take(
        &mut self,
        mut record: Record,
        member: &mut Member,
        tell: &mut Tell<'_>,
    ) -> Result<bool> {
        self.current.clone_from(&record.path);
        record.refuse_encrypted()?;
        let data_start = record.read_local(&self.file, self.list.before_len)?;
        let taken_len = record.taken_len();
        let unused_len = self.unused_len.checked_sub(taken_len);
        self.unused_len = unused_len.ok_or_else(|| {
            Error::invalid("members of the archive lie over each other: it is made to fill a disk")
        })?;
        let Some(kind) = record.kind() else {
            let what = "left out: is a device, a fifo or a socket, which zip archives do not hold";
            tell(&record.path, what.to_owned());
            return Ok(false);
        };
        *member = Member {
            path: std::mem::take(&mut record.path),
            kind: MemberKind::Entry(kind),
            attributes: Attributes {
                permissions: record.permissions(kind),
                uid: record.extra.uid.unwrap_or(0),
                gid: record.extra.gid.unwrap_or(0),
                rdev: 0,
            },
            mtime: record.mtime(),
            xattrs: XattrSet::new(),
            target: Vec::new(),
        };
        if kind == FileKind::Directory {
            return Ok(true);
        }
        record.check_lens(self.list.start, data_start)?;
        let stored = Stretch {
            file: self.file.clone(),
            at: data_start,
            end: data_start + record.stored_len,
        };
        let mut data = MemberData::new(stored, &record, self.decoder_len)?;
        if kind == FileKind::Symlink {
            let len = record.data_len;
            if len > TARGET_LEN_MAX as u64 {
                return Err(Error::invalid(format!(
                    "a symlink whose target has {len} bytes, expected 1 to {TARGET_LEN_MAX}"
                )));
            }
            member.target = vec![0; len as usize];
            data.read(&mut member.target)?;
            data.finish()?;
        } else {
            if data.is_at_end() {
                data.finish()?;
            }
            self.layout = Some(Layout {
                len: record.data_len,
                runs: None,
            });
            self.data = Some(data);
        }
        Ok(true)
    }

    fn next_member(&mut self, member: &mut Member, tell: &mut Tell<'_>) -> Result<bool> {
        loop {
            // What nobody wanted is not decoded.
            (self.data, self.layout) = (None, None);
            let Some(record) = self.record()? else {
                return Ok(false);
            };
            if self.take(record, member, tell)? {
                return Ok(true);
            }
        }
    }
}

impl Members for ZipReader {
    fn next(&mut self, member: &mut Member, tell: &mut Tell<'_>) -> Result<bool> {
        let next = self.next_member(member, tell);
        next.map_err(|e| self.located(e))
    }

    fn has_contents(&self) -> bool {
        true
    }

    fn layout(&self) -> Option<&Layout> {
        self.layout.as_ref()
    }

    fn read_data(&mut self, out: &mut [u8]) -> Result<()> {
        let Some(data) = &mut self.data else {
            return Err(Error::invalid("data are read of a member that has none"));
        };
        let read = data.read(out).and_then(|()| {
            if data.is_at_end() {
                data.finish()
            } else {
                Ok(())
            }
        });
        read.map_err(|e| self.located(e))
    }
}

#[cfg(test)]
mod tests;
