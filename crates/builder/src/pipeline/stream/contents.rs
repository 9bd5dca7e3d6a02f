//! Writes the contents of a stream.

use super::reporter::ProgressReporter;
use super::source::{ContentStore, StreamBody, TreeSource};
use crate::dedup::contents::{ContentSummary, ContentWriter};
use crate::dedup::starting_images::OpenedImages;
use crate::options::BuildOptions;
use crate::options::plan::Plan;
use crate::pipeline::destination::spool_dir;
use crate::read::readers::WHOLE_LEN_MAX;
use crate::scan::source::Layout;
use crate::write::image_writer::ImageWriter;
use crate::write::metadata::MetadataWriter;
use std::ops::Range;
use std::path::Path;
use weald_format::{ContentId, Result};

/// Bytes of a long content that are processed at once.
const READ_LEN: u64 = 1 << 20;

/// Result of writing the contents of a stream.
pub struct Stored {
    /// Summary of the contents.
    pub contents: ContentSummary,
    /// Length of all files, bytes.
    pub file_len: u64,
    /// Length of the files whose content was stored already, bytes.
    pub dedup_len: u64,
}

/// Calls `source` for its contents and writes them.
///
/// # Errors
/// As [`super::build_stream`].
pub fn write_contents(
    source: &mut dyn TreeSource,
    image: &mut ImageWriter,
    metadata: &mut MetadataWriter,
    plan: &Plan,
    options: &BuildOptions,
    target: &Path,
    reporter: &mut ProgressReporter<'_>,
) -> Result<Stored> {
    let total_len = source.size().data_len;
    let opened = OpenedImages::open(target, false, options, plan.threads)?;
    let starting = opened.read(options, plan)?;
    let spool_dir = spool_dir(target);
    // The data comes once and cannot be sampled before it is compressed, so its blocks share no
    // dictionary.
    let writer = ContentWriter::new(
        image, metadata, plan, total_len, &spool_dir, &starting, None,
    )?;
    let mut store = Store {
        writer,
        reporter,
        buffer: Vec::new(),
        file_len: 0,
        dedup_len: 0,
    };
    source.contents(&mut store)?;
    let (file_len, dedup_len) = (store.file_len, store.dedup_len);
    let Store {
        writer, reporter, ..
    } = store;
    reporter.begin(crate::progress::Stage::Compress, 0);
    let mut on_progress = |remaining_len: u64, written_len| {
        reporter.read_total = remaining_len.max(reporter.read_total);
        let done = reporter.read_total - remaining_len;
        reporter.advance(0, done - reporter.read_len.min(done), written_len)
    };
    Ok(Stored {
        contents: writer.finish(&[], &mut on_progress)?,
        file_len,
        dedup_len,
    })
}

struct Store<'a, 't, 'w> {
    writer: ContentWriter<'w>,
    reporter: &'a mut ProgressReporter<'t>,
    buffer: Vec<u8>,
    file_len: u64,
    dedup_len: u64,
}

impl ContentStore for Store<'_, '_, '_> {
    fn store(&mut self, body: &dyn StreamBody) -> Result<ContentId> {
        let layout = Layout {
            len: body.content_len(),
            runs: body.runs(),
        };
        self.file_len += layout.len;
        let id = if layout.data_len() <= WHOLE_LEN_MAX {
            self.store_whole(body, &layout)?
        } else {
            self.store_long(body, &layout)?
        };
        self.reporter
            .advance(1, layout.len, self.writer.written_len())?;
        Ok(id)
    }
}

impl Store<'_, '_, '_> {
    fn store_whole(&mut self, body: &dyn StreamBody, layout: &Layout) -> Result<ContentId> {
        let mut data = std::mem::take(&mut self.buffer);
        data.clear();
        for run in runs(layout) {
            let start = data.len();
            data.resize(start + (run.end - run.start) as usize, 0);
            body.read(run.start, &mut data[start..])?;
        }
        let mut hasher = layout.hasher();
        hasher.update(&data);
        let digest = hasher.finish();
        let known = self.writer.find(&digest)?;
        let id = match known {
            Some(id) => {
                self.dedup_len += layout.len;
                id
            }
            None => self.writer.add(layout, &data, None, digest)?,
        };
        self.buffer = data;
        Ok(id)
    }

    /// Stores a long content. It reads the content twice: first for the digest, because a known
    /// content need not be stored.
    fn store_long(&mut self, body: &dyn StreamBody, layout: &Layout) -> Result<ContentId> {
        let mut hasher = layout.hasher();
        for run in runs(layout) {
            self.each_piece(body, run, &mut |_, piece| {
                hasher.update(piece);
                Ok(())
            })?;
        }
        let digest = hasher.finish();
        if let Some(id) = self.writer.find(&digest)? {
            self.dedup_len += layout.len;
            return Ok(id);
        }
        let (mut at, mut is_first) = (0, true);
        for run in runs(layout) {
            self.writer.hole(run.start - at)?;
            at = run.end;
            self.each_piece(body, run, &mut |store, piece| {
                if std::mem::take(&mut is_first) {
                    store.writer.begin(piece);
                }
                store.writer.data(piece)?;
                store.reporter.advance(0, 0, store.writer.written_len())
            })?;
        }
        self.writer.hole(layout.len - at)?;
        self.writer.end(layout.len, digest)
    }

    fn each_piece(
        &mut self,
        body: &dyn StreamBody,
        run: Range<u64>,
        visit: &mut dyn FnMut(&mut Self, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut piece = std::mem::take(&mut self.buffer);
        let mut at = run.start;
        while at < run.end {
            piece.resize((run.end - at).min(READ_LEN) as usize, 0);
            body.read(at, &mut piece)?;
            visit(self, &piece)?;
            at += piece.len() as u64;
        }
        self.buffer = piece;
        Ok(())
    }
}

fn runs(layout: &Layout) -> Vec<Range<u64>> {
    match &layout.runs {
        Some(runs) => runs.clone(),
        None => std::iter::once(0..layout.len).collect(),
    }
}
