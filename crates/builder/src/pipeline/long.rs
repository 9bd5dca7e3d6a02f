//! Files that are too long for memory: the builder streams them piece by piece.

use super::state::Build;
use crate::dedup::contents::ContentWriter;
use crate::progress::Stage;
use crate::read::pieces::{PIECE_LEN, Piece, PieceReader};
use crate::read::readers::Job;
use crate::read::recode::{self, pcm};
use crate::scan::source::{Layout, SourceFile};
use crate::write::emit::FileState;
use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;
use weald_format::{ContentId, Digest, Error, Result};

impl Build<'_> {
    /// Stores a long file. If another file has the same length, a reader has hashed it, so that an
    /// equal content is found before it is streamed.
    pub(super) fn take_long(
        &mut self,
        writer: &mut ContentWriter<'_>,
        pieces: &mut PieceReader,
        job: &Job,
        hashed: Option<Result<Digest>>,
    ) -> Result<()> {
        let opened = self
            .tree
            .open_file(job.entry)
            .and_then(|f| Ok((f.layout()?, Arc::new(f))));
        let (layout, file) = match opened {
            Ok(opened) => opened,
            Err(error) => return self.omit(job, &error),
        };
        let known = match hashed {
            Some(Ok(digest)) => Ok(writer.find(&digest)?),
            Some(Err(error)) => Err(error),
            None => Ok(None),
        };
        let taken = match known {
            Ok(Some(id)) => {
                self.dedup_len += layout.len;
                self.done_len += layout.len;
                Ok(Some(id))
            }
            Ok(None) => {
                writer.expect(&self.tree.tree_path_of(job.entry), layout.data_len())?;
                let is_plain = self.tree.is_plain(job.entry);
                let samples = if is_plain {
                    Ok(Vec::new())
                } else {
                    self.take_samples(writer, &file, &layout)?
                };
                match samples {
                    Ok(parts) if parts.is_empty() => {
                        self.stream_long(writer, pieces, (&file, &layout), is_plain)?
                    }
                    Ok(parts) => self.stream_parts(writer, &file, &layout, &parts)?,
                    Err(error) => Err(error),
                }
            }
            Err(error) => Err(error),
        };
        match taken {
            Ok(Some(id)) => self.set_state(job.entry, FileState::content(id)),
            // The file has become empty since the scan.
            Ok(None) => {}
            Err(error) => return self.omit(job, &error),
        }
        if !self.tree.is_unchanged(job.entry, &file).unwrap_or(false) {
            self.report(job.entry, "changed while it was read; stored as read");
        }
        Ok(())
    }

    /// Streams a file into a new content; returns `None` if the file is empty. The inner error is
    /// the file's, the outer one the build's. If reading fails, the data read so far stays in the
    /// image as a content that nothing refers to.
    fn stream_long(
        &mut self,
        writer: &mut ContentWriter<'_>,
        pieces: &mut PieceReader,
        (file, layout): (&Arc<SourceFile>, &Layout),
        is_plain: bool,
    ) -> Result<Result<Option<ContentId>>> {
        let (mut is_first, mut len) = (true, 0);
        let rule = writer.preparing().rule;
        let (whole, digest) = pieces.each_piece(file, layout, rule, &mut |piece| {
            len += piece.len();
            self.done_len += piece.len();
            match piece {
                Piece::Hole(len) => writer.hole(len)?,
                Piece::Data(bytes, marks) => {
                    if std::mem::take(&mut is_first) {
                        if is_plain {
                            writer.begin_plain();
                        } else {
                            writer.begin(&bytes);
                        }
                    }
                    writer.marked_data(&bytes, marks.as_ref())?;
                }
                Piece::Failed(_) => {}
            }
            self.report_progress(Stage::Write, writer.written_len(), false);
            self.check_cancelled()
        })?;
        let id = match len {
            0 => None,
            _ => Some(writer.end(len, digest)?),
        };
        Ok(whole.map(|()| id))
    }

    /// Searches a long file for audio samples and adds their plain contents. Returns the parts that
    /// recipes make of those contents. The file may still change, so the parts are read again when
    /// they are streamed. The inner error is the file's, the outer one the build's.
    fn take_samples(
        &mut self,
        writer: &mut ContentWriter<'_>,
        file: &SourceFile,
        layout: &Layout,
    ) -> Result<Result<Vec<LongPart>>> {
        let categories = self.options.categories;
        let mut parts = Vec::new();
        if layout.runs.is_some() || !categories.uses_recipes() {
            return Ok(Ok(parts));
        }
        let mut buffer = vec![0; layout.len.min(PIECE_LEN as u64) as usize];
        if let Err(error) = file.read_run(&mut buffer, 0) {
            return Ok(Err(error));
        }
        for run in pcm::runs(&buffer, layout.len, &categories) {
            for piece in run.pieces() {
                self.check_cancelled()?;
                buffer.resize((piece.end - piece.start) as usize, 0);
                if let Err(error) = file.read_run(&mut buffer, piece.start) {
                    return Ok(Err(error));
                }
                let range = piece.start as usize..piece.end as usize;
                if let Some((stream, flac)) = pcm::take(&run, range, &buffer) {
                    let plain =
                        writer.add_plain(&stream, &|| Cow::Borrowed(&buffer), Some(flac.into()))?;
                    parts.push(LongPart { stream, plain });
                }
                self.report_progress(Stage::Write, writer.written_len(), false);
            }
        }
        Ok(Ok(parts))
    }

    /// Streams a file into a new content; recipes make `parts` of it. A part that changed since it
    /// was encoded is stored as plain data. The inner error is the file's, the outer one the
    /// build's.
    fn stream_parts(
        &mut self,
        writer: &mut ContentWriter<'_>,
        file: &SourceFile,
        layout: &Layout,
        parts: &[LongPart],
    ) -> Result<Result<Option<ContentId>>> {
        let mut hasher = layout.hasher();
        let mut buffer = Vec::with_capacity(PIECE_LEN);
        let mut parts = parts.iter().peekable();
        writer.begin(&[]);
        let mut at = 0;
        while at < layout.len {
            self.check_cancelled()?;
            let part = parts.next_if(|part| part.range().start == at);
            let end = match (part, parts.peek()) {
                (Some(part), _) => part.range().end,
                (None, Some(next)) => next.range().start,
                (None, None) => layout.len,
            };
            let len = match part {
                Some(_) => end - at,
                None => (end - at).min(PIECE_LEN as u64),
            };
            buffer.resize(len as usize, 0);
            if let Err(error) = file.read_run(&mut buffer, at) {
                return self.cut_short(writer, at, hasher.finish(), error);
            }
            hasher.update(&buffer);
            let is_made = match part.filter(|p| p.stream.makes(&buffer)) {
                Some(part) => writer.add_made_part(&part.stream, part.plain, &buffer)?,
                None => false,
            };
            if !is_made {
                writer.data(&buffer)?;
            }
            at += len;
            self.done_len += len;
            self.report_progress(Stage::Write, writer.written_len(), false);
        }
        Ok(Ok(Some(writer.end_with_recipes(at, hasher.finish())?)))
    }

    /// Ends a content whose file cannot be read any further. Nothing will refer to it.
    fn cut_short(
        &self,
        writer: &mut ContentWriter<'_>,
        len: u64,
        digest: Digest,
        error: Error,
    ) -> Result<Result<Option<ContentId>>> {
        if len > 0 {
            writer.end_with_recipes(len, digest)?;
        }
        Ok(Err(error))
    }
}

/// A part of a long file, and the plain content that a recipe makes it of.
struct LongPart {
    stream: recode::Stream,
    plain: ContentId,
}

impl LongPart {
    /// Location in the file. The bytes of samples are contiguous, so there is one range.
    fn range(&self) -> Range<u64> {
        let range = self.stream.ranges.first().cloned().unwrap_or_default();
        range.start as u64..range.end as u64
    }
}
