//! Processes the files of a build: threads read them, and their contents are written in order.

use super::state::Build;
use crate::compress::dictionary;
use crate::dedup::contents::{ContentSummary, ContentWriter};
use crate::dedup::starting_images::StartingImages;
use crate::options::plan::Plan;
use crate::progress::{Problem, Stage};
use crate::read::pieces::PieceReader;
use crate::read::readers::{Job, Loaded, Preparation, ReadFile, Readers};
use crate::read::recode::{MAGIC_LEN, Recoder, is_archive};
use crate::scan::{EntryNo, ScannedTree};
use crate::threads::start;
use crate::write::emit::FileState;
use crate::write::image_writer::ImageWriter;
use crate::write::metadata::MetadataWriter;
use std::collections::HashMap;
use std::path::Path;
use weald_format::{Error, Result};

impl Build<'_> {
    /// Reads all files and writes their contents.
    pub(super) fn write_contents(
        &mut self,
        image: &mut ImageWriter,
        metadata: &mut MetadataWriter,
        plan: &Plan,
        spool_dir: &Path,
        starting: &StartingImages,
    ) -> Result<ContentSummary> {
        let mut jobs = std::mem::take(&mut self.jobs);
        let total_len = find_archives(self.tree, &mut jobs, plan);
        let dictionary = match starting.appended {
            // An appended image keeps its dictionary, or has none.
            Some(_) => None,
            None => dictionary::learn(self.tree, &jobs, total_len, plan, &|| {
                self.check_cancelled()
            })?,
        };
        let mut writer = ContentWriter::new(
            image,
            metadata,
            plan,
            Some(total_len),
            spool_dir,
            starting,
            dictionary,
        )?;
        self.report_progress(Stage::Write, writer.written_len(), true);
        let mut long_lens = long_lens(&jobs);
        // A content of the old generation is a possible twin too.
        for len in &starting.long_lens {
            *long_lens.entry(*len).or_default() += 1;
        }
        let categories = self.options.categories;
        let recoder = categories.uses_recipes().then(|| {
            Recoder::new(
                starting.known.clone(),
                categories,
                plan.block_len,
                plan.plains_len,
            )
        });
        let known = &starting.known;
        let readers = Readers::new(
            self.tree,
            &jobs,
            plan.read_ahead_len,
            Preparation {
                recoder,
                known,
                preparing: writer.preparing(),
                long_lens: &long_lens,
            },
        );
        let written = std::thread::scope(|scope| {
            let _stop = readers.stop_on_drop();
            start(scope, "read", || readers.work())?;
            // Fewer threads take longer and write the same image.
            (1..plan.threads)
                .map_while(|_| start(scope, "read", || readers.work()).ok())
                .for_each(drop);
            self.take_all(&mut writer, &readers, plan.threads)
        });
        self.jobs = jobs;
        written?;
        let old = starting.appended.as_ref();
        let old = old.map(|indexed| indexed.image.directory().streams.as_slice());
        let mut total = 0;
        let mut on_progress = |remaining_len: u64, written_len| {
            self.check_cancelled()?;
            total = remaining_len.max(total);
            let read = (total - remaining_len, total);
            self.report_stage_progress(Stage::Compress, read, written_len, false);
            Ok(())
        };
        writer.finish(old.unwrap_or(&[]), &mut on_progress)
    }

    fn take_all(
        &mut self,
        writer: &mut ContentWriter<'_>,
        readers: &Readers<'_>,
        threads: usize,
    ) -> Result<()> {
        let mut pieces = None;
        while let Some(batch) = readers.next() {
            for handed in batch {
                self.check_cancelled()?;
                match handed {
                    ReadFile::Whole(job, Ok(loaded)) => self.take_whole(writer, &job, loaded)?,
                    ReadFile::Whole(job, Err(error)) => self.omit(&job, &error)?,
                    ReadFile::Long(job, hashed) => {
                        let pieces = match &mut pieces {
                            Some(started) => started,
                            none => none.insert(PieceReader::start(threads)?),
                        };
                        self.take_long(writer, pieces, &job, hashed)?;
                    }
                }
                self.done_count += 1;
                self.report_progress(Stage::Write, writer.written_len(), false);
            }
        }
        Ok(())
    }

    fn take_whole(
        &mut self,
        writer: &mut ContentWriter<'_>,
        job: &Job,
        mut loaded: Loaded,
    ) -> Result<()> {
        self.done_len += job.len;
        if loaded.is_changed {
            self.report(job.entry, "changed while it was read; stored as last read");
        }
        if loaded.layout.len == 0 {
            return Ok(());
        }
        // The readers hand over the data of every content that the next line does not find.
        let known = writer.find(&loaded.digest)?;
        if known.is_some() {
            self.dedup_len += loaded.layout.len;
        }
        if known.is_none() {
            writer.expect(&self.tree.tree_path_of(job.entry), loaded.data_len)?;
        }
        let id = match known {
            Some(id) => id,
            None if !loaded.recoded.streams.is_empty() => {
                writer.add_with_recipes(&loaded.data, &mut loaded.recoded, loaded.digest)?
            }
            None => {
                let prepared = loaded.prepared.take();
                writer.add(&loaded.layout, &loaded.data, prepared, loaded.digest)?
            }
        };
        self.set_state(job.entry, FileState::content(id));
        Ok(())
    }

    pub(super) fn names_of(&self, entry: EntryNo) -> Vec<EntryNo> {
        match self.tree.link_group(entry) {
            Some(group) => self.tree.link_names(group).collect(),
            None => vec![entry],
        }
    }

    pub(super) fn set_state(&mut self, entry: EntryNo, state: FileState) {
        for name in self.names_of(entry) {
            self.states[name.0 as usize] = state;
        }
    }

    pub(super) fn report(&self, entry: EntryNo, what: impl Into<String>) {
        self.observer.problem(&Problem {
            path: self.tree.shown_path_of(entry),
            what: what.into(),
        });
    }

    /// Omits a file under all its names and reports that. If the build appends to an image that has
    /// such a name, its entry there stays. If the source is an image, the build fails instead: the
    /// new image may be about to replace the source.
    pub(super) fn omit(&mut self, job: &Job, error: &Error) -> Result<()> {
        if self.tree.is_of_image() {
            let path = self.tree.path_of(job.entry);
            return Err(error
                .duplicate()
                .context(String::from_utf8_lossy(&path).into_owned()));
        }
        self.done_len += job.len;
        let is_kept = self.keep_previous(job, error)?;
        let cause = std::error::Error::source(error)
            .map(|s| format!(": {s}"))
            .unwrap_or_default();
        for name in self.names_of(job.entry) {
            if is_kept {
                let what = format!("stays as in the generation before: {error}{cause}");
                self.report(name, what);
                continue;
            }
            self.states[name.0 as usize] = FileState::OMITTED;
            self.omitted.push(name.0);
            self.report(name, format!("left out: {error}{cause}"));
        }
        Ok(())
    }
}

/// Number of streamed files of each length.
fn long_lens(jobs: &[Job]) -> HashMap<u64, u32> {
    let mut lens = HashMap::new();
    for job in jobs.iter().filter(|j| !j.is_whole) {
        *lens.entry(job.len).or_default() += 1;
    }
    lens
}

/// Finds archives among the long files, which are then read whole. Returns the bytes of data in all
/// files, without the holes of long ones. The sampling distance of the segmenter follows from this
/// sum, so it must depend on nothing but the files.
///
/// # Cost
/// Opens every long file.
fn find_archives(tree: &ScannedTree, jobs: &mut [Job], plan: &Plan) -> u64 {
    let mut total = 0u64;
    for job in jobs {
        let mut len = job.len;
        if !job.is_whole {
            let examined = examine(tree, job, plan);
            // If a file cannot be opened now, the pipeline reports that when it reads the file.
            let (data_len, is_archive) = examined.unwrap_or((0, false));
            (len, job.is_whole) = (data_len, is_archive);
        }
        total = total.saturating_add(len);
    }
    total
}

/// Bytes of data in a file, and whether it is an archive that is read whole.
fn examine(tree: &ScannedTree, job: &Job, plan: &Plan) -> Result<(u64, bool)> {
    let file = tree.open_file(job.entry)?;
    let layout = file.layout()?;
    let mut front = Vec::with_capacity(MAGIC_LEN);
    if layout.runs.is_none() && layout.len <= plan.archive_len_max {
        file.read_front(MAGIC_LEN as u64, &mut front)?;
    }
    Ok((layout.data_len(), is_archive(&front, &plan.categories)))
}
