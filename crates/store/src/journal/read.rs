//! Reads the files of a journal: frames, and which files follow each other.

use crate::disk::{Access, LocalFile};
use crate::layout;
use crate::store::Store;
use weald_format::journal::{
    Before, FRAME_HEADER_LEN, FRAME_MAGIC, FrameHeader, JOURNAL_SUPERBLOCK_LEN, JournalKind,
    JournalSuperblock, RowSum,
};
use weald_format::{CommitNo, Digest, Error, ErrorKind, Result};

/// What the tables are, to which a journal must lead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TablesState {
    pub commit: CommitNo,
    pub sum: RowSum,
}

/// The header of a frame, and its body.
pub(super) type Frame = (FrameHeader, Vec<u8>);

/// The frames of a file, in order.
#[derive(Debug)]
pub(super) struct Frames {
    file: Box<dyn LocalFile>,
    name: String,
    /// Where the next frame begins, and the length of the file.
    pub at: u64,
    pub len: u64,
    /// The digest of the frame before, or of the superblock.
    pub digest: Digest,
    /// What the next frame continues, if the one before is damaged.
    expected: Option<Before>,
}

/// Bytes that are searched for a header at once.
const SEARCH_LEN: usize = 1 << 20;

impl Frames {
    /// The error of a file of rows whose superblock is that of another file.
    fn of_other_rows(&self) -> Error {
        let what = format!("{}: is another file of the journal", self.name);
        Error::corrupt("journal", 0, "S-8.6", what)
    }
}

fn cut(at: u64) -> Error {
    Error::corrupt("journal", at, "S-8.3", "the journal is cut off")
}

impl Frames {
    /// Opens a file of the journal. `reads_anew` says that the memory of the system may differ from
    /// the disk.
    ///
    /// # Errors
    /// `NotFound`, `Corrupt`, `Io`.
    pub fn open(
        store: &Store,
        name: String,
        reads_anew: bool,
    ) -> Result<(JournalSuperblock, Self)> {
        let file = store.disk.open(&name, Access::Read)?;
        if reads_anew {
            file.read_anew()?;
        }
        let len = file.len()?;
        let mut bytes = [0; JOURNAL_SUPERBLOCK_LEN];
        if len < bytes.len() as u64 {
            return Err(cut(0).context(&name));
        }
        file.read_at(&mut bytes, 0)?;
        let superblock = JournalSuperblock::parse(&bytes, store.superblock.uuid);
        let superblock = superblock.map_err(|error| error.context(&name))?;
        let frames = Self {
            file,
            name,
            at: bytes.len() as u64,
            len,
            digest: superblock.digest(),
            expected: None,
        };
        Ok((superblock, frames))
    }

    /// Opens a file of which the superblock may be damaged, for [`Frames::next_whole`].
    ///
    /// # Errors
    /// `NotFound`, `Io`.
    pub fn open_damaged(store: &Store, name: String) -> Result<Self> {
        let file = store.disk.open(&name, Access::Read)?;
        let mut frames = Self {
            len: file.len()?,
            file,
            name,
            at: 0,
            digest: Digest::default(),
            expected: None,
        };
        let first = frames.header_from(0)?;
        frames.expected = first.map(|(_, header)| header.before);
        frames.at = first.map_or(frames.len, |(at, _)| at);
        Ok(frames)
    }

    /// The next frame and its body; `None` at the end of the file.
    ///
    /// # Errors
    /// `Corrupt`, `Io`. The position stays.
    pub fn next(&mut self) -> Result<Option<Frame>> {
        let read = self.read();
        read.map_err(|error| error.context(&self.name))
    }

    fn read(&mut self) -> Result<Option<Frame>> {
        if self.at == self.len {
            return Ok(None);
        }
        let mut header = [0; FRAME_HEADER_LEN];
        let start = self.at + header.len() as u64;
        if start > self.len {
            return Err(cut(self.at));
        }
        self.file.read_at(&mut header, self.at)?;
        let (header, digest) = FrameHeader::parse(&header, self.at)?;
        let end = start + u64::from(header.body_len);
        if end > self.len {
            return Err(cut(self.at));
        }
        let mut body = vec![0; header.body_len as usize];
        self.file.read_at(&mut body, start)?;
        header.check_body((&body, digest), self.at)?;
        let expected = self.expected.take();
        if header.before != expected.unwrap_or(Before::of(&self.digest)) {
            let what = "a frame does not follow the one before";
            return Err(Error::corrupt("journal", self.at, "S-8.6", what));
        }
        (self.at, self.digest) = (end, digest);
        Ok(Some((header, body)))
    }

    /// As [`Frames::next`], past what is damaged.
    ///
    /// # Errors
    /// `Io`.
    pub fn next_whole(&mut self) -> Result<Option<Frame>> {
        loop {
            match self.read() {
                Err(error) if error.is_unreadable() => {}
                other => return other,
            }
            let Some((at, header)) = self.header_from(self.at + 1)? else {
                self.at = self.len;
                return Ok(None);
            };
            // Its own digest says whether it is whole.
            (self.at, self.expected) = (at, Some(header.before));
        }
    }

    /// Finds the next header from `from` on, and where it lies.
    fn header_from(&self, from: u64) -> Result<Option<(u64, FrameHeader)>> {
        let mut at = from;
        let mut part = vec![0; SEARCH_LEN];
        while at + FRAME_HEADER_LEN as u64 <= self.len {
            let len = (self.len - at).min(SEARCH_LEN as u64) as usize;
            let part = part.get_mut(..len).unwrap_or_default();
            match self.file.read_at(part, at) {
                Ok(()) => {}
                // What the disk cannot read is no header.
                Err(error) if error.is_unreadable() => part.fill(0),
                Err(error) => return Err(error),
            }
            for (index, window) in part.windows(FRAME_HEADER_LEN).enumerate() {
                let offset = at + index as u64;
                if let Some(bytes) = window.first_chunk()
                    && window.starts_with(&FRAME_MAGIC)
                    && let Ok((header, _)) = FrameHeader::parse(bytes, offset)
                {
                    return Ok(Some((offset, header)));
                }
            }
            at += (len - (FRAME_HEADER_LEN - 1)) as u64;
        }
        Ok(None)
    }
}

/// Where a commit ends in the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CommitEnd {
    /// The file: the commit before its first one.
    pub base: CommitNo,
    pub commit: CommitNo,
    /// Sum of all rows after the commit.
    pub sum: RowSum,
    /// Where the next frame begins, and what it continues.
    pub end: u64,
    pub digest: Digest,
}

/// The files of a journal.
#[derive(Debug, Default)]
pub(super) struct Files {
    /// Commits of the files of rows, the newest first.
    pub rows: Vec<CommitNo>,
    /// The files of commits, by the commit before the first, in order.
    pub logs: Vec<CommitNo>,
}

impl Files {
    /// Lists them.
    ///
    /// # Errors
    /// `Io`.
    pub fn list(store: &Store) -> Result<Self> {
        let mut files = Self::default();
        let names = match store.disk.list(layout::JOURNAL) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(files),
            other => other?,
        };
        for name in names {
            files.rows.extend(layout::journal_rows_commit(&name));
            files.logs.extend(layout::journal_log_base(&name));
        }
        files.rows.sort_unstable_by(|a, b| b.cmp(a));
        files.logs.sort_unstable();
        Ok(files)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.logs.is_empty()
    }
}

/// What the chain of files has: all rows as of one commit, and the commits after it.
#[derive(Debug)]
pub(super) struct Chain {
    /// The commit of the file of rows.
    pub rows: CommitNo,
    pub rows_len: u64,
    /// Sum of all rows from which the files of commits go on.
    pub sum: Option<RowSum>,
    pub lineage: [u8; 16],
    /// Bytes of the files of commits.
    pub logs_len: u64,
    /// The files of commits that follow each other.
    pub logs: Vec<CommitNo>,
    /// Ends of the last commits, at most [`ENDS_MAX`], the last one last. The beginning of a file
    /// is the end of the commit before it once more.
    pub ends: Vec<CommitEnd>,
    /// Why the chain ends, if not because all is read.
    pub damage: Option<Error>,
    /// Why the superblock of the file of rows cannot be read.
    pub rows_damage: Option<Error>,
}

/// More than the writer has to look back: a commit that did not succeed, and a new file.
const ENDS_MAX: usize = 4;

impl Chain {
    /// Reads the files of commits behind the newest file of rows; `None` if there is no file of
    /// rows. That file is not read but for its superblock.
    ///
    /// # Errors
    /// `Io`.
    pub fn read(store: &Store, reads_anew: bool) -> Result<Option<Self>> {
        let files = Files::list(store)?;
        let mut damaged = None;
        for &commit in &files.rows {
            let name = layout::journal_rows(commit);
            let mut chain = Self {
                rows: commit,
                rows_len: 0,
                sum: None,
                lineage: [0; 16],
                logs_len: 0,
                logs: Vec::new(),
                ends: Vec::new(),
                damage: None,
                rows_damage: None,
            };
            match Frames::open(store, name, reads_anew) {
                Ok((superblock, frames)) if superblock.is_rows_of(commit) => {
                    (chain.rows_len, chain.lineage) = (frames.len, superblock.lineage);
                    chain.follow(store, &files.logs, reads_anew)?;
                    return Ok(Some(chain));
                }
                Ok((_, frames)) => chain.rows_damage = Some(frames.of_other_rows()),
                Err(error) if error.is_unreadable() => chain.rows_damage = Some(error),
                Err(error) => return Err(error),
            }
            damaged = damaged.or(Some(chain));
        }
        if let Some(chain) = &mut damaged {
            chain.follow(store, &files.logs, reads_anew)?;
        }
        Ok(damaged)
    }

    fn follow(&mut self, store: &Store, logs: &[CommitNo], reads_anew: bool) -> Result<()> {
        let rows = self.rows;
        for &base in logs.iter().filter(|base| **base >= rows) {
            let is_next = match self.ends.last() {
                Some(end) => end.commit == base,
                None => self.rows == base,
            };
            // Files behind a gap belong to an older journal, or the one between is lost.
            if !is_next {
                let what = format!("{} does not follow", layout::journal_log(base));
                self.damage = Some(Error::corrupt("journal", 0, "S-8.6", what));
                return Ok(());
            }
            match self.read_log(store, base, reads_anew) {
                Ok(()) => self.logs.push(base),
                Err(error) if error.is_unreadable() => {
                    self.damage = Some(error);
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        if self.ends.is_empty() {
            let what = format!("{} is missing", layout::journal_log(self.rows));
            self.damage = Some(Error::corrupt("journal", 0, "S-8.6", what));
        }
        Ok(())
    }

    fn read_log(&mut self, store: &Store, base: CommitNo, reads_anew: bool) -> Result<()> {
        let name = layout::journal_log(base);
        let (superblock, mut frames) = Frames::open(store, name, reads_anew)?;
        let sum = self.ends.last().map(|end| end.sum);
        let is_next = superblock.kind == JournalKind::Commits
            && superblock.base == base
            && sum.is_none_or(|sum| sum == superblock.sum);
        if !is_next {
            let what = format!("{} does not follow", layout::journal_log(base));
            return Err(Error::corrupt("journal", 0, "S-8.6", what));
        }
        self.logs_len += frames.len;
        self.sum = self.sum.or(Some(superblock.sum));
        self.push(CommitEnd {
            base,
            commit: base,
            sum: superblock.sum,
            end: frames.at,
            digest: frames.digest,
        });
        let mut last = base;
        while let Some((header, _)) = frames.next()? {
            if header.commit != last.next() {
                let what = "a frame is of another commit";
                return Err(Error::corrupt("journal", frames.at, "S-8.6", what));
            }
            if header.is_last {
                last = header.commit;
                self.push(CommitEnd {
                    base,
                    commit: last,
                    sum: header.sum,
                    end: frames.at,
                    digest: frames.digest,
                });
            }
        }
        Ok(())
    }

    fn push(&mut self, end: CommitEnd) {
        if self.ends.len() >= ENDS_MAX {
            self.ends.remove(0);
        }
        self.ends.push(end);
    }

    /// The last commit.
    pub fn last(&self) -> Option<CommitEnd> {
        self.ends.last().copied()
    }
}
