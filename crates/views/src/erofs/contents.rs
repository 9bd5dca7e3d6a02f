//! The first pass: writes the data of all files, each distinct content once.

use super::options::{ErofsOptions, block_no, check_cancelled};
use super::shared::SetUses;
use super::sparse::{Chunks, RUNS_MAX};
use crate::spill::Spill;
use std::ops::{ControlFlow, Range};
use weald_erofs::layout::{BLOCK_LEN, chunk};
use weald_erofs::writer::{CLUSTER_LEN_MAX, Codec, put_compressed, put_plain};
use weald_format::{ContentId, Error, FileKind, Result};
use weald_image::{Image, Inode};
use weald_io::OutputFile;
use weald_vfs::{Located, Step, Walker, parallel, shown_path};

/// Longest tail of a file that lies behind its inode, bytes. A longer one gets a block, because the
/// search for room behind inodes would leave more unused.
const TAIL_LEN_MAX: u64 = BLOCK_LEN / 2;

/// Bytes of memory for a [`Stored`].
pub(super) const STORED_LEN: usize = size_of::<Option<Stored>>();

/// How a content lies in the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    /// Blocks from this one on; the tail, if any, is in the list.
    Plain(u32),
    /// Chunks of so many blocks (base-2 logarithm); the index is in the list.
    Chunks(u8),
    /// Compressed into so many blocks; the entries of the index are in the list.
    Compressed(u32),
}

/// A content that is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stored {
    pub layout: Layout,
    /// Bytes in the list of tails and indexes.
    pub extra_len: u32,
    /// Their offset.
    pub extra_start: u64,
}

/// All contents that are written.
pub(super) struct Contents {
    stored: Vec<Option<Stored>>,
    /// Tails and indexes.
    pub extras: Spill,
    pub count: u64,
    /// Bytes of data, without holes.
    pub data_len: u64,
    pub has_chunks: bool,
    pub has_compressed: bool,
    /// Uses of sets of xattrs.
    pub set_uses: SetUses,
}

impl Contents {
    /// The content of `inode`, unless the file is empty.
    ///
    /// # Errors
    /// `Invalid`: the content was not written.
    pub fn of(&self, inode: &Inode) -> Result<Option<Stored>> {
        let Some(id) = inode.content.filter(|_| inode.kind == FileKind::Regular) else {
            return Ok(None);
        };
        let stored = self.stored.get(id.0 as usize).copied().flatten();
        let missing = || Error::invalid(format!("content {} was not written", id.0));
        stored.ok_or_else(missing).map(Some)
    }
}

/// One step of the work, in order.
enum Job {
    /// A content begins.
    Begin(ContentId, Form),
    /// Its next data. Only the last ones may not be whole blocks.
    Data(Vec<u8>, Option<Codec>),
    /// Chunks without data.
    Holes(u64),
    /// It ends.
    End,
}

/// Form in which a content is written, if its data allow it.
#[derive(Debug, Clone, Copy)]
enum Form {
    Plain,
    Chunks(Chunks),
    Compressed,
}

/// A job whose data are compressed.
enum Done {
    Begin(ContentId, Form),
    /// Data as they are, or their length and the blocks that hold them.
    Plain(Vec<u8>),
    Compressed(usize, Vec<u8>),
    Holes(u64),
    End,
}

/// Writes all contents of `image` to `out`.
pub(super) fn write_contents(
    image: &Image,
    out: &mut OutputFile,
    options: &ErofsOptions<'_>,
) -> Result<Contents> {
    let root = image.root()?;
    let start = Located {
        path: Vec::new(),
        inode: root,
    };
    let mut reader = Reader {
        image,
        options,
        walker: Walker::new(image, start),
        seen: vec![false; image.summary().content_count as usize],
        file: None,
        set_uses: SetUses::default(),
    };
    let mut writer = Writer::new(out, image, options);
    let (mut failed, mut result) = (None, Ok(()));
    parallel::ordered(
        options.thread_count,
        || match reader.next() {
            Ok(job) => job,
            Err(error) => {
                failed = Some(error);
                None
            }
        },
        work,
        |done| match done.and_then(|done| writer.take(done)) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                result = Err(error);
                ControlFlow::Break(())
            }
        },
    );
    result?;
    match failed {
        Some(error) => Err(error),
        None => {
            let mut contents = writer.contents;
            contents.set_uses = reader.set_uses;
            Ok(contents)
        }
    }
}

fn work(job: Job) -> Result<Done> {
    Ok(match job {
        Job::Begin(id, form) => Done::Begin(id, form),
        Job::Holes(count) => Done::Holes(count),
        Job::End => Done::End,
        Job::Data(data, None) => Done::Plain(data),
        Job::Data(data, Some(codec)) => match codec.compress(&data)? {
            Some(blocks) => Done::Compressed(data.len(), blocks),
            None => Done::Plain(data),
        },
    })
}

/// A file that is being read.
struct File {
    inode: Inode,
    form: Form,
    next: u64,
    /// Runs of data that are not read yet, of a sparse file.
    runs: Vec<Range<u64>>,
    run_no: usize,
}

/// Reads contents in the order of the tree.
struct Reader<'a> {
    image: &'a Image,
    options: &'a ErofsOptions<'a>,
    walker: Walker<'a>,
    seen: Vec<bool>,
    file: Option<File>,
    set_uses: SetUses,
}

impl Reader<'_> {
    fn next(&mut self) -> Result<Option<Job>> {
        check_cancelled(self.options)?;
        if let Some(file) = &mut self.file {
            let job = read_next(self.image, file, self.options.codec);
            let job = job.map_err(|e| e.context(shown_path(self.walker.path())))?;
            if matches!(job, Job::End) {
                self.file = None;
            }
            return Ok(Some(job));
        }
        while let Some(step) = self.walker.step()? {
            let Step::Enter(visit) = step else { continue };
            let inode = visit.inode;
            self.set_uses.note(&inode);
            let Some(id) = inode.content.filter(|_| inode.kind == FileKind::Regular) else {
                continue;
            };
            let index = id.0 as usize;
            if self.seen.len() <= index {
                self.seen.resize(index + 1, false);
            }
            if self
                .seen
                .get_mut(index)
                .is_some_and(|seen| std::mem::replace(seen, true))
            {
                continue;
            }
            let file = self.open(inode);
            let file = file.map_err(|e| e.context(shown_path(self.walker.path())))?;
            let form = file.form;
            self.file = Some(file);
            return Ok(Some(Job::Begin(id, form)));
        }
        Ok(None)
    }

    fn open(&self, inode: Inode) -> Result<File> {
        let size = inode.size.0;
        let (mut runs, mut has_hole) = (Vec::new(), false);
        self.image.runs(&inode, 0, &mut |run| {
            has_hole |= run.is_hole;
            if !run.is_hole {
                runs.push(run.offset..run.offset.saturating_add(run.len));
            }
            if runs.len() > RUNS_MAX {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })?;
        if runs.len() > RUNS_MAX {
            let what = format!("a sparse file of more than {RUNS_MAX} runs");
            return Err(Error::limit(what));
        }
        let form = match (has_hole, self.options.codec) {
            (true, _) => Form::Chunks(Chunks::choose(size, &runs)?),
            (false, Some(_)) if size > BLOCK_LEN => Form::Compressed,
            _ => Form::Plain,
        };
        if !has_hole {
            runs.clear();
        }
        Ok(File {
            inode,
            form,
            next: 0,
            runs,
            run_no: 0,
        })
    }
}

fn read_next(image: &Image, file: &mut File, codec: Option<Codec>) -> Result<Job> {
    let size = file.inode.size.0;
    if file.next >= size {
        return Ok(Job::End);
    }
    let mut end = size.min(file.next + CLUSTER_LEN_MAX as u64);
    if let Form::Chunks(chunks) = file.form {
        let chunk_no = file.next / chunks.len();
        while file
            .runs
            .get(file.run_no)
            .is_some_and(|run| run.end <= file.next)
        {
            file.run_no += 1;
        }
        let next_data = file.runs.get(file.run_no).map(|run| run.start);
        let next_chunk = next_data.map(|start| start / chunks.len());
        let is_at_start = file.next == chunk_no * chunks.len();
        if is_at_start && next_chunk != Some(chunk_no) {
            let next_chunk = next_chunk.unwrap_or_else(|| size.div_ceil(chunks.len()));
            let count = next_chunk.saturating_sub(chunk_no).max(1);
            file.next = next_chunk.saturating_mul(chunks.len()).max(file.next + 1);
            return Ok(Job::Holes(count));
        }
        end = end.min((chunk_no + 1).saturating_mul(chunks.len()));
    }
    let mut data = vec![0; (end - file.next) as usize];
    let mut filled = 0;
    while filled < data.len() {
        let part = data.get_mut(filled..).unwrap_or_default();
        let len = image.read_at(&file.inode, file.next + filled as u64, part)?;
        if len == 0 {
            return Err(Error::invalid("the file ends before its size"));
        }
        filled += len;
    }
    file.next = end;
    let codec = codec.filter(|_| matches!(file.form, Form::Compressed));
    Ok(Job::Data(data, codec))
}

/// Writes contents in order.
struct Writer<'a> {
    out: &'a mut OutputFile,
    contents: Contents,
    /// The content that is being written.
    id: ContentId,
    form: Form,
    /// First block of the content, and bytes of it that are written.
    start: u64,
    written_len: u64,
    extra_start: u64,
    has_compressed: bool,
    /// Bytes behind the last whole block.
    tail: Vec<u8>,
    buffer: Vec<u8>,
}

impl<'a> Writer<'a> {
    fn new(out: &'a mut OutputFile, image: &Image, options: &ErofsOptions<'_>) -> Self {
        let memory_len = (options.memory_len / 8).min(64 << 20) as usize;
        let count = image.summary().content_count as usize;
        Self {
            start: out.position(),
            out,
            contents: Contents {
                stored: vec![None; count],
                extras: Spill::new(memory_len, options.temp_dir.to_owned()),
                count: 0,
                data_len: 0,
                has_chunks: false,
                has_compressed: false,
                set_uses: SetUses::default(),
            },
            id: ContentId(0),
            form: Form::Plain,
            written_len: 0,
            extra_start: 0,
            has_compressed: false,
            tail: Vec::new(),
            buffer: Vec::new(),
        }
    }

    fn take(&mut self, done: Done) -> Result<()> {
        match done {
            Done::Begin(id, form) => {
                (self.id, self.form) = (id, form);
                (self.start, self.written_len) = (self.out.position(), 0);
                self.extra_start = self.contents.extras.len();
                self.has_compressed = false;
                self.tail.clear();
                Ok(())
            }
            Done::Plain(data) => self.plain(&data),
            Done::Compressed(data_len, blocks) => self.compressed(data_len as u64, &blocks),
            Done::Holes(count) => self.holes(count),
            Done::End => self.end(),
        }
    }

    fn plain(&mut self, data: &[u8]) -> Result<()> {
        let (block, len) = (block_no(self.out.position())?, data.len() as u64);
        self.contents.data_len += len;
        self.buffer.clear();
        match self.form {
            Form::Plain => {}
            Form::Compressed => put_plain(&mut self.buffer, len, block),
            Form::Chunks(chunks) => {
                if self.written_len.is_multiple_of(chunks.len()) {
                    self.buffer.extend_from_slice(&block.to_le_bytes());
                }
            }
        }
        self.contents.extras.append(&self.buffer)?;
        self.written_len += len;
        let whole_len = data.len() - data.len() % BLOCK_LEN as usize;
        let (whole, tail) = data.split_at(whole_len);
        self.out.write_all(whole)?;
        let is_inline = matches!(self.form, Form::Plain) && tail.len() as u64 <= TAIL_LEN_MAX;
        if is_inline {
            self.tail.extend_from_slice(tail);
            Ok(())
        } else {
            self.padded(tail)
        }
    }

    /// Writes bytes and zeros up to the end of their block.
    fn padded(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.write_all(bytes)?;
        let position = self.out.position();
        let zeros = [0; BLOCK_LEN as usize];
        let len = position.next_multiple_of(BLOCK_LEN) - position;
        self.out
            .write_all(zeros.get(..len as usize).unwrap_or_default())
    }

    fn compressed(&mut self, data_len: u64, blocks: &[u8]) -> Result<()> {
        let block = block_no(self.out.position())?;
        self.has_compressed = true;
        self.contents.data_len += data_len;
        self.written_len += data_len;
        self.buffer.clear();
        let block_count = (blocks.len() as u64 / BLOCK_LEN) as u16;
        put_compressed(&mut self.buffer, data_len, block, block_count);
        self.contents.extras.append(&self.buffer)?;
        self.out.write_all(blocks)
    }

    fn holes(&mut self, count: u64) -> Result<()> {
        if let Form::Chunks(chunks) = self.form {
            let len = chunks.len().saturating_mul(count);
            self.written_len = self.written_len.saturating_add(len);
        }
        for _ in 0..count {
            self.contents.extras.append(&chunk::HOLE.to_le_bytes())?;
        }
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        let block_count = block_no(self.out.position())? - block_no(self.start)?;
        let mut extra_len = self.contents.extras.len() - self.extra_start;
        let layout = match self.form {
            Form::Chunks(chunks) => {
                self.contents.has_chunks = true;
                Layout::Chunks(chunks.bits as u8)
            }
            Form::Compressed if self.has_compressed => {
                self.contents.has_compressed = true;
                Layout::Compressed(block_count)
            }
            Form::Compressed => {
                extra_len = 0;
                Layout::Plain(block_no(self.start)?)
            }
            Form::Plain => {
                extra_len = self.tail.len() as u64;
                self.contents.extras.append(&self.tail)?;
                Layout::Plain(block_no(self.start)?)
            }
        };
        let too_long = |_| Error::limit("a file whose index has more than 4 GiB");
        let stored = Stored {
            layout,
            extra_len: u32::try_from(extra_len).map_err(too_long)?,
            extra_start: self.extra_start,
        };
        self.contents.count += 1;
        let index = self.id.0 as usize;
        if self.contents.stored.len() <= index {
            self.contents.stored.resize(index + 1, None);
        }
        if let Some(slot) = self.contents.stored.get_mut(index) {
            *slot = Some(stored);
        }
        Ok(())
    }
}
