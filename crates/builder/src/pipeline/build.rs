//! The build from start to end. `files` processes files that fit in memory, `long` streams
//! longer ones.

use crate::dedup::contents::ContentSummary;
use crate::dedup::starting_images::{IndexedImage, OpenedImages, StartingImages};
use crate::options::plan::Plan;
use crate::options::walk::HardLinks;
use crate::options::{AddAt, BuildOptions};
use crate::pipeline::changes;
use crate::pipeline::destination::Destination;
use crate::pipeline::plan::{self, TreeSize};
use crate::pipeline::report::{Outcome, StoredLens};
use crate::pipeline::state::{Build, interrupted};
use crate::progress::{Changes, LeftOut, Observer, Problem, Progress, Report, Stage};
use crate::scan::{Layer, ScanOptions, ScannedTree, scan_image, scan_layers};
use crate::write::changed_xattrs::ChangedXattrs;
use crate::write::emit::{Emitted, Emitter};
use crate::write::equal_files::equal_files;
use crate::write::image_writer::{ImageWriter, Sealed, Sink};
use crate::write::metadata::MetadataWriter;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use weald_format::{Digest, Error, Result};
use weald_image::Image;

/// Builds an image of directory `source` at `target`. The image appears there only when it is
/// complete.
///
/// # Errors
/// `Io`, `Full`, `Limit`; `Invalid` for bad options, for a source that is no directory, or if the
/// build is cancelled; `Busy` if `target` exists and `overwrite` is off.
/// # Cost
/// Reads the source's data once (long files of equal length twice); memory up to
/// `options.memory_len`.
pub fn build_image(
    source: &Path,
    target: &Path,
    overwrite: bool,
    options: &BuildOptions,
    observer: &dyn Observer,
) -> Result<Report> {
    build_layers(
        &[Layer::plain(source)],
        target,
        overwrite,
        options,
        observer,
    )
}

/// Builds an image of the directories of `layers`, each laid over those before it.
///
/// # Errors
/// As [`build_image`]; `Invalid` where a layer lies below something that is no directory.
/// # Cost
/// As [`build_image`].
pub fn build_layers(
    layers: &[Layer<'_>],
    target: &Path,
    overwrite: bool,
    options: &BuildOptions,
    observer: &dyn Observer,
) -> Result<Report> {
    build_tree(
        &Destination::File { target, overwrite },
        options,
        observer,
        &|scan_options, old, observer| {
            scan_all(layers, options.at.as_ref(), old, scan_options, observer)
        },
    )
}

/// Scans `layers`; where they are added at a path, over the tree of the image `old`.
///
/// # Errors
/// As [`scan_layers`].
pub fn scan_all(
    layers: &[Layer<'_>],
    at: Option<&AddAt>,
    old: Option<&Arc<Image>>,
    scan_options: &ScanOptions<'_>,
    observer: &dyn Observer,
) -> Result<ScannedTree> {
    let Some(at) = at else {
        return scan_layers(None, layers, scan_options, observer);
    };
    let layers: Vec<Layer<'_>> = (layers.iter())
        .map(|layer| Layer {
            at: at.join(&layer.at),
            ..*layer
        })
        .collect();
    scan_layers(old, &layers, scan_options, observer)
}

/// Builds an image of the tree of `source`, which may be the image at `target`.
///
/// # Errors
/// As [`build_image`]; `Corrupt`, `Io` if anything of `source` cannot be read, because a copy never
/// omits files.
/// # Cost
/// As [`build_image`], and the memory of the open `source`.
pub fn build_from_image(
    source: &Arc<Image>,
    target: &Path,
    overwrite: bool,
    options: &BuildOptions,
    observer: &dyn Observer,
) -> Result<Report> {
    if options.at.is_some() {
        return Err(Error::invalid("--at needs a directory as its source"));
    }
    let mut options = options.clone();
    options.keep_fsverity |= source.keeps_fsverity();
    build_tree(
        &Destination::File { target, overwrite },
        &options,
        observer,
        &|scan_options, _, observer| scan_image(source, scan_options, observer),
    )
}

/// Produces the tree to be packed. It gets the appended image, whose tree it may extend.
pub type Scan<'a> =
    dyn Fn(&ScanOptions<'_>, Option<&Arc<Image>>, &dyn Observer) -> Result<ScannedTree> + 'a;

/// Builds an image of the tree that `scan` produces.
///
/// # Errors
/// As [`build_image`].
pub fn build_tree(
    destination: &Destination<'_>,
    options: &BuildOptions,
    observer: &dyn Observer,
    scan: &Scan<'_>,
) -> Result<Report> {
    options.validate()?;
    let problems = CountProblems::new(observer);
    let cpu_count = std::thread::available_parallelism().map_or(1, |n| n.get());
    let threads = match options.threads {
        0 => cpu_count,
        threads => threads,
    };
    let starting = destination.open_starting(options, threads)?;
    let options = &with_times(options, starting.appended())?;
    let (sink, own) = destination.open_sink(&starting, options)?;
    let scan_options = scan_options(options, threads, &own);
    let tree = scan(&scan_options, starting.appended(), &problems)?;
    if let (Some(old), Destination::File { target, .. }, false) =
        (starting.appended(), destination, options.allow_removal)
    {
        let shown = target.display().to_string();
        changes::refuse_removal(&tree, old, (&shown, options.at.is_some()), observer)?;
    }
    let script_len = options.script.as_ref().map_or(0, |s| s.memory_len());
    let images_len = starting.memory_len(options) + script_len;
    let mut plan = Plan::new(options, cpu_count, &TreeSize::of(&tree), images_len)?;
    // The blocks of a store live on in other images, or in part.
    if matches!(destination, Destination::Store(_)) {
        plan.small_tree = None;
    }
    plan.report_raised_limit(observer);
    let mut build = Build::new(&tree, options, threads, &problems)?;
    let (mut image, mut metadata) = writers(sink, &starting, options)?;
    build.report_progress(Stage::Write, image.position(), true);
    let starting = starting.read(options, &plan)?;
    let old = starting.appended.as_ref().map(|indexed| &*indexed.image);
    // An image of a store keeps no entries of the image that it continues.
    build.old = old.filter(|_| matches!(destination, Destination::File { .. }));
    let spool_dir = destination.spool_dir();
    let contents = build.write_contents(&mut image, &mut metadata, &plan, &spool_dir, &starting)?;
    build.report_progress(Stage::Tree, image.position(), true);
    build.omitted.sort_unstable();
    let contents_len = contents.table.count() * plan::CONTENT_MEMORY_LEN;
    metadata.encode_with(plan.metadata_threads(&TreeSize::of(&tree), images_len + contents_len));
    let changed = ChangedXattrs::new(&tree, &options.rules);
    let emitter = Emitter {
        tree: &tree,
        changed: &changed,
        states: &build.states,
        contents: &contents.table,
        options,
        omitted: &build.omitted,
        previous: &build.previous,
        appended_to: old,
    };
    if options.hard_links == HardLinks::AllEqual {
        tree.link_equal(&equal_files(&emitter));
    }
    let emitted = emitter.emit(&mut image, &mut metadata)?;
    destination.keep_digests(&contents.table);
    if observer.is_cancelled() {
        return Err(interrupted());
    }
    options.refuse_problems(problems.count())?;
    let changes = old.map(|old| changes::count(&tree, old, Some(&emitter), observer));
    let changes = changes.transpose()?;
    let overwrites = destination.overwrites();
    let report = build.seal(image, contents, (&emitted, changes), &starting, overwrites)?;
    Ok(Report {
        problem_count: problems.count(),
        ..report
    })
}

/// The options of an addition (`--at`): it keeps all kinds of times that the image `old` has.
fn with_times(options: &BuildOptions, old: Option<&Arc<Image>>) -> Result<BuildOptions> {
    let mut options = options.clone();
    if let (Some(old), true) = (old, options.at.is_some()) {
        let times = old.root()?.times;
        options.keep_atime |= times.atime.is_some();
        options.keep_ctime |= times.ctime.is_some();
        options.keep_btime |= times.btime.is_some();
    }
    Ok(options)
}

/// Creates the writers of a new image in `sink`, or of a generation behind the existing one.
fn writers(
    sink: Sink,
    starting: &OpenedImages,
    options: &BuildOptions,
) -> Result<(ImageWriter, MetadataWriter)> {
    let level = options.metadata_level;
    match starting.appended() {
        Some(old) => {
            let metadata = MetadataWriter::appending_to(level, old)?;
            Ok((ImageWriter::resume(sink, old), metadata))
        }
        None => {
            let metadata = MetadataWriter::with_bases(level, starting.base_sections());
            Ok((ImageWriter::begin(sink)?, metadata))
        }
    }
}

/// The options of the scan of a build.
pub fn scan_options<'a>(
    options: &'a BuildOptions,
    threads: usize,
    own: &'a [(u64, u64)],
) -> ScanOptions<'a> {
    ScanOptions {
        omitted_inodes: own,
        threads,
        filter: &options.filter,
        script: options.script.as_deref(),
        additions: &options.additions,
        mount_points: options.mount_points,
        follow: options.follow,
        splits_links: options.hard_links == HardLinks::Split,
        prune_empty_dirs: options.prune_empty_dirs,
        keep_xattrs: options.keep_xattrs,
        keep_atime: options.keep_atime,
        keep_ctime: options.keep_ctime,
        keep_btime: options.keep_btime,
    }
}

/// Whether the tree of an image has this digest. The claim of the image is not believed: somebody
/// else may have made it. Its contents were read and hashed when it was opened.
fn is_tree_of(indexed: &IndexedImage, digest: &Digest) -> bool {
    let image = &indexed.image;
    let computed = || image.computed_tree_digest(&indexed.digests);
    image.summary().tree_digest == *digest && computed().is_ok_and(|computed| computed == *digest)
}

/// Counts problems.
pub struct CountProblems<'a> {
    inner: &'a dyn Observer,
    count: AtomicU64,
}

impl<'a> CountProblems<'a> {
    /// Counts those that `inner` gets.
    pub fn new(inner: &'a dyn Observer) -> Self {
        Self {
            inner,
            count: AtomicU64::new(0),
        }
    }

    /// Their number so far.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}

impl Observer for CountProblems<'_> {
    fn progress(&self, progress: &Progress) {
        self.inner.progress(progress);
    }

    fn problem(&self, problem: &Problem) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.inner.problem(problem);
    }

    fn replaced(&self, path: &[u8], by: &Path) {
        self.inner.replaced(path, by);
    }

    fn left_out(&self, path: &[u8], why: LeftOut<'_>) {
        self.inner.left_out(path, why);
    }

    fn memory_raised(&self, from: u64, to: u64, threads: usize) {
        self.inner.memory_raised(from, to, threads);
    }

    fn is_cancelled(&self) -> bool {
        self.inner.is_cancelled()
    }
}

impl Build<'_> {
    /// Completes the image, unless the new generation would equal the one before. The caller sets
    /// the problem count of the report.
    fn seal(
        &self,
        image: ImageWriter,
        mut contents: ContentSummary,
        (emitted, changes): (&Emitted, Option<Changes>),
        starting: &StartingImages,
        overwrite: bool,
    ) -> Result<Report> {
        let options = self.options;
        let stored = StoredLens::of(&image);
        let appended = starting.appended.as_ref();
        let old = appended.map(|indexed| indexed.image.summary());
        // These times are not part of the tree digest; mtime is.
        let has_other_times = options.keep_atime || options.keep_ctime || options.keep_btime;
        let has_other_label = appended.is_some_and(|indexed| {
            let before = &indexed.image.directory().label;
            options.label.as_ref().is_some_and(|label| label != before)
        });
        let is_same = !has_other_times
            && !has_other_label
            && appended.is_some_and(|indexed| is_tree_of(indexed, &emitted.tree_digest));
        let sealed = match old.filter(|_| is_same) {
            // When the image is dropped, the output is truncated to its old length.
            Some(old) => Sealed {
                image_digest: old.image_digest,
                image_len: old.image_len,
                generation: old.generation,
            },
            None => {
                let bases = starting.base_list();
                let digest = emitted.tree_digest;
                image.seal(
                    &options.label.clone().unwrap_or_default(),
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
            changes,
            stored,
            emitted,
            contents: &contents,
            file_len: self.file_len + self.kept_len,
            dedup_len: self.dedup_len + self.kept_len,
            old_decoded_len: (starting.appended.as_ref())
                .map_or(0, |indexed| indexed.image.decoded_len().0),
        };
        Ok(outcome.report())
    }
}
