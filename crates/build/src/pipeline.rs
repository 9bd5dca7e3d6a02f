//! The build from end to end.

use crate::contents::{ContentSummary, ContentWriter};
use crate::dictionary;
use crate::emit::{Emitted, Emitter, FileState};
use crate::image_writer::{ImageWriter, Sealed, Sink};
use crate::metadata::MetadataWriter;
use crate::options::BuildOptions;
use crate::order::arrange;
use crate::plan::{self, Plan, TreeSize};
use crate::prior::{Before, OpenedAll};
use crate::read::{Handed, Job, Loaded, Readers, WHOLE_LEN_MAX};
use crate::recode::{self, MAGIC_LEN, Recoder, is_archive, pcm};
use crate::report::{Outcome, StoredLens};
use crate::scan::{EntryNo, ScanOptions, ScannedTree, scan, scan_image};
use crate::source::{Layout, SourceFile};
use crate::threads::start;
use crate::watch::{Problem, Progress, Report, Stage, Watch};
use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use weald_format::limits::NUMBER_MAX;
use weald_format::{ContentId, Digest, Error, FileKind, Result};
use weald_image::{Image, Summary};
use weald_io::OutputFile;

/// Bytes of a long file read at once.
const PIECE_LEN: usize = 1 << 20;
/// Progress is told this often.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// Builds an image of directory `source` at `target`, which appears only when complete.
///
/// # Errors
/// `Io`, `Full`, `Limit`; `Invalid` for bad options, a source that is no directory, or when cancelled; `Busy` where
/// `target` exists and `overwrite` is off.
/// # Cost
/// One pass over the source's data (two over long files of equal length); memory as `options.memory_len` says.
pub fn build_image(
    source: &Path,
    target: &Path,
    overwrite: bool,
    options: &BuildOptions,
    watch: &dyn Watch,
) -> Result<Report> {
    build(target, overwrite, options, watch, &|scan_options, watch| {
        scan(source, scan_options, watch)
    })
}

/// Builds an image of the tree of `source`, which may be the image at `target`.
///
/// # Errors
/// As [`build_image`], and `Corrupt`, `Io` where anything of `source` cannot be read: nothing is left out.
/// # Cost
/// As [`build_image`], and the memory of the open `source`.
pub fn build_from_image(
    source: &Arc<Image>,
    target: &Path,
    overwrite: bool,
    options: &BuildOptions,
    watch: &dyn Watch,
) -> Result<Report> {
    build(target, overwrite, options, watch, &|scan_options, watch| {
        scan_image(source, scan_options, watch)
    })
}

/// Makes the tree that is to be packed.
type Scan<'a> = dyn Fn(&ScanOptions<'_>, &dyn Watch) -> Result<ScannedTree> + 'a;

fn build(
    target: &Path,
    overwrite: bool,
    options: &BuildOptions,
    watch: &dyn Watch,
    scan: &Scan<'_>,
) -> Result<Report> {
    options.validate()?;
    let is_appended = options.append && target != Path::new("-") && target.exists();
    if !overwrite && !is_appended {
        weald_io::refuse_existing(target)?;
    }
    let problems = CountProblems {
        inner: watch,
        count: AtomicU64::new(0),
    };
    let cpu_count = std::thread::available_parallelism().map_or(1, |n| n.get());
    let threads = match options.threads {
        0 => cpu_count,
        threads => threads,
    };
    let before = OpenedAll::open(target, is_appended, options, threads)?;
    let out = match before.appended() {
        Some(image) => OutputFile::append(target, image.summary().image_len)?,
        None => OutputFile::create(target)?,
    };
    let own = own_inodes(&out, target);
    let tree = scan(&scan_options(options, threads, &own), &problems)?;
    let script_len = options.script.as_ref().map_or(0, |s| s.memory_len());
    let prior_len = before.memory_len(options) + script_len;
    let plan = Plan::new(options, cpu_count, &TreeSize::of(&tree), prior_len)?;
    let mut build = Build::new(&tree, options, threads, &problems)?;
    let (mut image, mut metadata) = writers(out, &before, options)?;
    build.tell(Stage::Write, image.position(), true);
    let before = before.read(options, &plan)?;
    let old = before.appended.as_ref().map(|prior| &*prior.image);
    let spool_dir = spool_dir(target);
    let contents = build.write_contents(&mut image, &mut metadata, &plan, &spool_dir, &before)?;
    build.tell(Stage::Tree, image.position(), true);
    build.omitted.sort_unstable();
    let contents_len = contents.table.count() * plan::CONTENT_LEN;
    metadata.share_out(plan.metadata_threads(&TreeSize::of(&tree), prior_len + contents_len));
    let emitter = Emitter {
        tree: &tree,
        states: &build.states,
        contents: &contents.table,
        options,
        omitted: &build.omitted,
        prior: old,
    };
    let emitted = emitter.emit(&mut image, &mut metadata)?;
    if watch.is_cancelled() {
        return Err(interrupted());
    }
    let report = build.seal(image, contents, &emitted, &before, overwrite)?;
    Ok(Report {
        problem_count: problems.count.into_inner(),
        ..report
    })
}

/// Writers of a new image into `out`, or of a generation behind the one that is there `before`.
fn writers(
    out: OutputFile,
    before: &OpenedAll,
    options: &BuildOptions,
) -> Result<(ImageWriter, MetadataWriter)> {
    let (sink, level) = (Sink::File(out), options.metadata_level);
    match before.appended() {
        Some(old) => {
            let metadata = MetadataWriter::behind(level, old)?;
            Ok((ImageWriter::resume(sink, old), metadata))
        }
        None => {
            let metadata = MetadataWriter::over(level, before.base_places());
            Ok((ImageWriter::begin(sink)?, metadata))
        }
    }
}

fn interrupted() -> Error {
    Error::invalid("interrupted")
}

/// Raw data that must be seen again waits beside the image: there is room for that kind of data there, if anywhere.
pub fn spool_dir(target: &Path) -> std::path::PathBuf {
    match target.parent() {
        Some(dir) if target != Path::new("-") && dir != Path::new("") => dir.to_owned(),
        _ if target == Path::new("-") => std::env::temp_dir(),
        _ => ".".into(),
    }
}

/// What an image that lies in its own source must not hold: itself, and the one that it replaces.
fn own_inodes(out: &OutputFile, target: &Path) -> Vec<(u64, u64)> {
    let is_file = std::fs::metadata(target).is_ok_and(|m| m.is_file());
    let old = is_file
        .then(|| File::open(target).and_then(weald_sys::stat_fd).ok())
        .flatten();
    let old = old.map(|stat| (stat.dev, stat.ino));
    out.regular_inode().into_iter().chain(old).collect()
}

fn scan_options<'a>(
    options: &'a BuildOptions,
    threads: usize,
    own: &'a [(u64, u64)],
) -> ScanOptions<'a> {
    ScanOptions {
        left_out: own,
        threads,
        filter: &options.filter,
        script: options.script.as_deref(),
        one_file_system: options.one_file_system,
        keep_xattrs: options.keep_xattrs,
        keep_atime: options.keep_atime,
        keep_ctime: options.keep_ctime,
        keep_btime: options.keep_btime,
    }
}

struct CountProblems<'a> {
    inner: &'a dyn Watch,
    count: AtomicU64,
}

impl Watch for CountProblems<'_> {
    fn progress(&self, progress: &Progress) {
        self.inner.progress(progress);
    }

    fn problem(&self, problem: &Problem) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.inner.problem(problem);
    }

    fn is_cancelled(&self) -> bool {
        self.inner.is_cancelled()
    }
}

/// The state of a build between its stages.
struct Build<'a> {
    tree: &'a ScannedTree,
    options: &'a BuildOptions,
    watch: &'a dyn Watch,
    states: Vec<FileState>,
    omitted: Vec<u32>,
    jobs: Vec<Job>,
    job_count: u64,
    file_len: u64,
    dedup_len: u64,
    done_count: u64,
    done_len: u64,
    last_told: Instant,
}

impl<'a> Build<'a> {
    fn new(
        tree: &'a ScannedTree,
        options: &'a BuildOptions,
        threads: usize,
        watch: &'a dyn Watch,
    ) -> Result<Self> {
        let jobs: Vec<Job> = (0..tree.entry_count())
            .map(EntryNo)
            .filter_map(|e| job(tree, e))
            .collect();
        let jobs = arrange(tree, jobs, options, threads, watch)?;
        let file_len = jobs
            .iter()
            .fold(0u64, |sum, job| sum.saturating_add(job.len));
        if file_len > NUMBER_MAX {
            return Err(Error::limit(
                "the files are longer than 2^62 bytes together",
            ));
        }
        Ok(Self {
            tree,
            options,
            watch,
            states: vec![FileState::EMPTY; tree.entry_count() as usize],
            omitted: Vec::new(),
            file_len,
            job_count: jobs.len() as u64,
            jobs,
            dedup_len: 0,
            done_count: 0,
            done_len: 0,
            last_told: Instant::now(),
        })
    }

    fn tell(&mut self, stage: Stage, written_len: u64, is_due: bool) {
        self.tell_read(stage, (self.done_len, self.file_len), written_len, is_due);
    }

    /// Tells of a stage that reads something else than the files: how much of how much it has.
    fn tell_read(&mut self, stage: Stage, read: (u64, u64), written_len: u64, is_due: bool) {
        if is_due || self.last_told.elapsed() >= PROGRESS_INTERVAL {
            self.last_told = Instant::now();
            self.watch.progress(&Progress {
                stage,
                entry_count: self.done_count,
                entry_total: self.job_count,
                read_len: read.0,
                read_total: read.1,
                written_len,
            });
        }
    }

    /// Ends the image, unless it would be a generation that is like the one before. The problems are still to be counted.
    fn seal(
        &self,
        image: ImageWriter,
        mut contents: ContentSummary,
        emitted: &Emitted,
        before: &Before,
        overwrite: bool,
    ) -> Result<Report> {
        let options = self.options;
        let stored = StoredLens::of(&image);
        let old = before.appended.as_ref().map(|prior| prior.image.summary());
        // Only these times are no part of the tree digest.
        let has_other_times = options.keep_atime || options.keep_ctime || options.keep_btime;
        let is_same = |old: &&Summary| old.tree_digest == emitted.tree_digest && !has_other_times;
        let sealed = match old.filter(is_same) {
            // Dropped, the output is cut back to what it was.
            Some(old) => Sealed {
                image_digest: old.image_digest,
                image_len: old.image_len,
                generation: old.generation,
            },
            None => {
                let bases = before.base_list();
                let digest = emitted.tree_digest;
                image.seal(
                    digest,
                    emitted.summary.name_count,
                    std::mem::take(&mut contents.streams),
                    bases,
                    overwrite,
                )?
            }
        };
        let outcome = Outcome {
            sealed,
            old_len: old.map(|old| old.image_len),
            stored,
            emitted,
            contents: &contents,
            file_len: self.file_len,
            dedup_len: self.dedup_len,
        };
        Ok(outcome.report())
    }

    /// Reads all files and writes their contents.
    fn write_contents(
        &mut self,
        image: &mut ImageWriter,
        metadata: &mut MetadataWriter,
        plan: &Plan,
        spool_dir: &Path,
        before: &Before,
    ) -> Result<ContentSummary> {
        let mut jobs = std::mem::take(&mut self.jobs);
        let total_len = look_at_long_files(self.tree, &mut jobs, plan);
        let dictionary = match before.appended {
            // What is there has a dictionary, or does without.
            Some(_) => None,
            None => dictionary::learn(self.tree, &jobs, total_len, plan, &|| self.go_on())?,
        };
        let mut writer = ContentWriter::new(
            image, metadata, plan, total_len, spool_dir, before, dictionary,
        )?;
        self.tell(Stage::Write, writer.written_len(), true);
        let mut long_lens = long_lens(&jobs);
        // A content that is there is a twin too.
        for len in &before.long_lens {
            *long_lens.entry(*len).or_default() += 1;
        }
        let categories = self.options.categories;
        let recoder = categories
            .takes_apart()
            .then(|| Recoder::new(before.known.clone(), categories, plan.block_len));
        let readers = Readers::new(self.tree, &jobs, plan.read_ahead_len, recoder);
        let written = std::thread::scope(|scope| {
            let _stop = readers.stop_on_drop();
            start(scope, || readers.work())?;
            // With fewer threads it takes longer, and the image is the same.
            (1..plan.threads)
                .map_while(|_| start(scope, || readers.work()).ok())
                .for_each(drop);
            self.take_all(&mut writer, &readers, &long_lens)
        });
        self.jobs = jobs;
        written?;
        let old = before.appended.as_ref();
        let old = old.map(|prior| prior.image.directory().streams.as_slice());
        let (options, mut total) = (self.options, 0);
        let mut tell = |left: u64, written_len| {
            self.go_on()?;
            total = left.max(total);
            let read = (total - left, total);
            self.tell_read(Stage::Compress, read, written_len, false);
            Ok(())
        };
        writer.finish(options.block_len, old.unwrap_or(&[]), &mut tell)
    }

    fn take_all(
        &mut self,
        writer: &mut ContentWriter<'_>,
        readers: &Readers<'_>,
        long_lens: &HashMap<u64, u32>,
    ) -> Result<()> {
        while let Some(batch) = readers.next() {
            for handed in batch {
                self.go_on()?;
                match handed {
                    Handed::Whole(job, Ok(loaded)) => self.take_whole(writer, &job, loaded)?,
                    Handed::Whole(job, Err(error)) => self.omit(&job, &error)?,
                    Handed::Long(job) => {
                        let has_twin = long_lens.get(&job.len).is_some_and(|&count| count > 1);
                        self.take_long(writer, &job, has_twin)?;
                    }
                }
                self.done_count += 1;
                self.tell(Stage::Write, writer.written_len(), false);
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
        let known = writer.find(&loaded.digest)?;
        if known.is_some() {
            self.dedup_len += loaded.layout.len;
        }
        let id = match known {
            Some(id) => id,
            None if !loaded.taken.streams.is_empty() => {
                writer.add_apart(&loaded.data, &mut loaded.taken, loaded.digest)?
            }
            None => writer.add(&loaded.layout, &loaded.data, loaded.digest)?,
        };
        self.set_state(job.entry, FileState::content(id));
        Ok(())
    }

    /// A long file: hashed first where another has its length, then streamed.
    fn take_long(
        &mut self,
        writer: &mut ContentWriter<'_>,
        job: &Job,
        has_twin: bool,
    ) -> Result<()> {
        let opened = self
            .tree
            .open_file(job.entry)
            .and_then(|f| Ok((f.layout()?, f)));
        let (layout, file) = match opened {
            Ok(opened) => opened,
            Err(error) => return self.omit(job, &error),
        };
        let known = match has_twin {
            true => match self.hash_long(&file, &layout)? {
                Ok(digest) => Ok(writer.find(&digest)?),
                Err(error) => Err(error),
            },
            false => Ok(None),
        };
        let taken = match known {
            Ok(Some(id)) => {
                self.dedup_len += layout.len;
                self.done_len += layout.len;
                Ok(Some(id))
            }
            Ok(None) => match self.take_samples(writer, &file, &layout)? {
                Ok(parts) if parts.is_empty() => self.stream_long(writer, &file, &layout)?,
                Ok(parts) => self.stream_parts(writer, &file, &layout, &parts)?,
                Err(error) => Err(error),
            },
            Err(error) => Err(error),
        };
        match taken {
            Ok(Some(id)) => self.set_state(job.entry, FileState::content(id)),
            // It is empty now.
            Ok(None) => {}
            Err(error) => return self.omit(job, &error),
        }
        if !self.tree.is_unchanged(job.entry, &file).unwrap_or(false) {
            self.report(job.entry, "changed while it was read; stored as read");
        }
        Ok(())
    }

    /// The digest of a long file; the inner error is the file's, the outer the build's.
    fn hash_long(&self, file: &SourceFile, layout: &Layout) -> Result<Result<Digest>> {
        let mut hasher = layout.hasher();
        let whole = each_piece(file, layout, &mut |piece| {
            if let Piece::Data(bytes) = piece {
                hasher.update(bytes);
            }
            self.go_on()
        })?;
        Ok(whole.map(|()| hasher.finish()))
    }

    /// Streams a file into a content of its own, none if it is empty; the inner error is the file's, the outer the
    /// build's. What was read of a file that then fails stays behind as a content that nothing refers to.
    fn stream_long(
        &mut self,
        writer: &mut ContentWriter<'_>,
        file: &SourceFile,
        layout: &Layout,
    ) -> Result<Result<Option<ContentId>>> {
        let mut hasher = layout.hasher();
        let (mut is_first, mut len) = (true, 0);
        let whole = each_piece(file, layout, &mut |piece| {
            len += piece.len();
            self.done_len += piece.len();
            match piece {
                Piece::Hole(len) => writer.hole(len)?,
                Piece::Data(bytes) => {
                    if std::mem::take(&mut is_first) {
                        writer.begin(bytes);
                    }
                    hasher.update(bytes);
                    writer.data(bytes)?;
                }
            }
            self.tell(Stage::Write, writer.written_len(), false);
            self.go_on()
        })?;
        let id = match len {
            0 => None,
            _ => Some(writer.end(len, hasher.finish())?),
        };
        Ok(whole.map(|()| id))
    }

    /// Looks for samples in a long file; the parts of it that recipes make of contents, which are written first. Nothing is known
    /// yet of how the file goes on: each piece is read again when its turn comes. The inner error is the file's, the outer the
    /// build's.
    fn take_samples(
        &mut self,
        writer: &mut ContentWriter<'_>,
        file: &SourceFile,
        layout: &Layout,
    ) -> Result<Result<Vec<Part>>> {
        let categories = self.options.categories;
        let mut parts = Vec::new();
        if layout.runs.is_some() || !categories.takes_apart() {
            return Ok(Ok(parts));
        }
        let mut buffer = vec![0; layout.len.min(PIECE_LEN as u64) as usize];
        if let Err(error) = file.read_run(&mut buffer, 0) {
            return Ok(Err(error));
        }
        for run in pcm::runs(&buffer, layout.len, &categories) {
            for piece in run.pieces() {
                self.go_on()?;
                buffer.resize((piece.end - piece.start) as usize, 0);
                if let Err(error) = file.read_run(&mut buffer, piece.start) {
                    return Ok(Err(error));
                }
                let range = piece.start as usize..piece.end as usize;
                if let Some((stream, flac)) = pcm::take(&run, range, &buffer) {
                    let plain = writer.add_plain(&stream, &buffer, Some(flac))?;
                    parts.push(Part { stream, plain });
                }
                self.tell(Stage::Write, writer.written_len(), false);
            }
        }
        Ok(Ok(parts))
    }

    /// Streams a file, `parts` of which recipes make, into a content of its own. A part that has changed since it was taken apart is
    /// stored as it is. The inner error is the file's, the outer the build's.
    fn stream_parts(
        &mut self,
        writer: &mut ContentWriter<'_>,
        file: &SourceFile,
        layout: &Layout,
        parts: &[Part],
    ) -> Result<Result<Option<ContentId>>> {
        let mut hasher = layout.hasher();
        let mut buffer = Vec::with_capacity(PIECE_LEN);
        let mut parts = parts.iter().peekable();
        writer.begin(&[]);
        let mut at = 0;
        while at < layout.len {
            self.go_on()?;
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
                Some(part) => writer.part(&part.stream, part.plain)?,
                None => false,
            };
            if !is_made {
                writer.data(&buffer)?;
            }
            at += len;
            self.done_len += len;
            self.tell(Stage::Write, writer.written_len(), false);
        }
        Ok(Ok(Some(writer.end_made(at, hasher.finish())?)))
    }

    /// Ends a content that cannot be read any further; nothing will refer to it.
    fn cut_short(
        &self,
        writer: &mut ContentWriter<'_>,
        len: u64,
        digest: Digest,
        error: Error,
    ) -> Result<Result<Option<ContentId>>> {
        if len > 0 {
            writer.end_made(len, digest)?;
        }
        Ok(Err(error))
    }

    fn go_on(&self) -> Result<()> {
        match self.watch.is_cancelled() {
            true => Err(interrupted()),
            false => Ok(()),
        }
    }

    fn names_of(&self, entry: EntryNo) -> Vec<EntryNo> {
        match self.tree.link_group(entry) {
            Some(group) => self.tree.link_names(group).collect(),
            None => vec![entry],
        }
    }

    fn set_state(&mut self, entry: EntryNo, state: FileState) {
        for name in self.names_of(entry) {
            self.states[name.0 as usize] = state;
        }
    }

    fn report(&self, entry: EntryNo, what: impl Into<String>) {
        self.watch.problem(&Problem {
            path: self.tree.path_of(entry),
            what: what.into(),
        });
    }

    /// Leaves a file out, under all its names, and says so. An image is not written again without one of its files: the new
    /// one may be about to replace it.
    fn omit(&mut self, job: &Job, error: &Error) -> Result<()> {
        if self.tree.is_of_image() {
            let path = self.tree.path_of(job.entry);
            return Err(error
                .duplicate()
                .context(String::from_utf8_lossy(&path).into_owned()));
        }
        self.done_len += job.len;
        for name in self.names_of(job.entry) {
            self.states[name.0 as usize] = FileState::OMITTED;
            self.omitted.push(name.0);
            let cause = std::error::Error::source(error)
                .map(|s| format!(": {s}"))
                .unwrap_or_default();
            self.report(name, format!("left out: {error}{cause}"));
        }
        Ok(())
    }
}

/// The file to read for `entry`: a regular file that is not empty, by the first of its names.
fn job(tree: &ScannedTree, entry: EntryNo) -> Option<Job> {
    let len = tree.size(entry);
    let is_first = || {
        tree.link_group(entry)
            .is_none_or(|g| tree.link_names(g).next() == Some(entry))
    };
    (tree.kind(entry) == FileKind::Regular && len > 0 && is_first()).then_some(Job {
        entry,
        len,
        is_whole: len <= WHOLE_LEN_MAX,
    })
}

/// How many files that are streamed there are of each length.
fn long_lens(jobs: &[Job]) -> HashMap<u64, u32> {
    let mut lens = HashMap::new();
    for job in jobs.iter().filter(|j| !j.is_whole) {
        *lens.entry(job.len).or_default() += 1;
    }
    lens
}

/// Finds archives among the long files, which are to be read whole. Returns the bytes of data in all files, the holes of
/// long ones left out: how densely repeats are looked for follows from it, so it must not depend on anything but the files.
///
/// # Cost
/// Opens every long file.
fn look_at_long_files(tree: &ScannedTree, jobs: &mut [Job], plan: &Plan) -> u64 {
    let mut total = 0u64;
    for job in jobs {
        let mut len = job.len;
        if !job.is_whole {
            let looked = look(tree, job, plan);
            // A file that cannot be opened is met again, and reported, when it is to be read.
            let (data_len, is_archive) = looked.unwrap_or((0, false));
            (len, job.is_whole) = (data_len, is_archive);
        }
        total = total.saturating_add(len);
    }
    total
}

/// Bytes of data in a file, and whether it is to be read whole, to be taken apart.
fn look(tree: &ScannedTree, job: &Job, plan: &Plan) -> Result<(u64, bool)> {
    let file = tree.open_file(job.entry)?;
    let layout = file.layout()?;
    let mut front = Vec::with_capacity(MAGIC_LEN);
    if layout.runs.is_none() && layout.len <= plan.archive_len_max {
        file.read_front(MAGIC_LEN as u64, &mut front)?;
    }
    Ok((layout.data_len(), is_archive(&front, &plan.categories)))
}

/// A part of a long file, and the content that a recipe makes it of.
struct Part {
    stream: recode::Stream,
    plain: ContentId,
}

impl Part {
    /// Where it lies in the file: samples lie in one place.
    fn range(&self) -> Range<u64> {
        let range = self.stream.ranges.first().cloned().unwrap_or_default();
        range.start as u64..range.end as u64
    }
}

enum Piece<'a> {
    Hole(u64),
    Data(&'a [u8]),
}

impl Piece<'_> {
    fn len(&self) -> u64 {
        match self {
            Self::Hole(len) => *len,
            Self::Data(bytes) => bytes.len() as u64,
        }
    }
}

/// Visits a file piece by piece. The inner error is the file's, the outer one comes from `visit`.
fn each_piece(
    file: &SourceFile,
    layout: &Layout,
    visit: &mut dyn FnMut(Piece<'_>) -> Result<()>,
) -> Result<Result<()>> {
    let whole = 0..layout.len;
    let runs = layout
        .runs
        .as_deref()
        .unwrap_or(std::slice::from_ref(&whole));
    let mut buffer = vec![0; PIECE_LEN];
    let mut at = 0;
    for run in runs {
        if run.start > at {
            visit(Piece::Hole(run.start - at))?;
        }
        at = run.start;
        while at < run.end {
            let len = (run.end - at).min(PIECE_LEN as u64) as usize;
            if let Err(error) = file.read_run(&mut buffer[..len], at) {
                return Ok(Err(error));
            }
            visit(Piece::Data(&buffer[..len]))?;
            at += len as u64;
        }
    }
    if layout.len > at {
        visit(Piece::Hole(layout.len - at))?;
    }
    Ok(Ok(()))
}
