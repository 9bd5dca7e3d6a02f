//! Builds an image of a tree that comes as a stream: no directory on disk, and nothing kept of the
//! part that has passed.
//!
//! The source first hands over its contents, then its tree, directory by directory. A directory
//! comes whole and before its subdirectories. The builder holds only the directories on the path to
//! the current one, so a tree may have any number of entries.

mod blocks;
mod contents;
mod reporter;
mod rules;
mod source;
mod tree;
mod walk;

use crate::dedup::contents::ContentTable;
use crate::options::BuildOptions;
use crate::options::plan::Plan;
use crate::pipeline::plan::{self, TreeSize};
use crate::pipeline::report::{Outcome, StoredLens};
use crate::progress::{Observer, Report, Stage};
use crate::write::emit::Emitted;
use crate::write::image_writer::{ImageWriter, Sink};
use crate::write::metadata::MetadataWriter;
pub use blocks::{
    BlockExtent, BlockSink, BlockTree, Digests, EncodedBlock, FileTarget, GetBlock,
    build_of_blocks, build_of_own_blocks, build_of_parts,
};
use contents::{Stored, write_contents};
use reporter::ProgressReporter;
use rules::Rules;
pub use source::{
    ContentStore, StreamBody, StreamEntry, StreamRoot, StreamSize, TreeSink, TreeSource, WalkSink,
};
use std::path::Path;
use tree::write_tree;
use weald_format::label::Label;
use weald_format::{Error, ErrorKind, Result};

pub use crate::pipeline::destination::spool_dir;
pub use crate::write::tree_writer::LinkInfo;

/// Builds an image of `source` at `target`. The image appears there only when it is complete.
///
/// # Errors
/// As [`crate::build_image`], and those of the source. `Unsupported` for appending and for base
/// images.
/// # Cost
/// Reads the contents once (those of more than 4 MiB twice), the tree once, and up to 2^20 of its
/// entries once more.
pub fn build_stream(
    source: &mut dyn TreeSource,
    target: &Path,
    overwrite: bool,
    options: &BuildOptions,
    observer: &dyn Observer,
) -> Result<Report> {
    options.validate()?;
    if options.append || !options.bases.is_empty() {
        let what = "an input stream can neither be appended nor use base images";
        return Err(Error::new(ErrorKind::Unsupported, what));
    }
    if !overwrite {
        weald_io::refuse_existing(target)?;
    }
    let size = source.size();
    let names_alone;
    let options = if size.has_no_contents {
        names_alone = options.without_contents();
        &names_alone
    } else {
        options
    };
    let cpu_count = std::thread::available_parallelism().map_or(1, |n| n.get());
    let plan = Plan::new(options, cpu_count, &tree_size(&size), size.memory_len)?;
    plan.report_raised_limit(observer);
    let out = options.new_output(target)?;
    let mut image = ImageWriter::begin(Sink::File(out))?;
    let mut metadata = MetadataWriter::new(options.metadata_level);
    let mut reporter = ProgressReporter::new(observer, &size);
    let stored = write_contents(
        source,
        &mut image,
        &mut metadata,
        &plan,
        options,
        target,
        &mut reporter,
    )?;
    reporter.begin(Stage::Tree, 0);
    let size = source.size();
    let contents_count = stored.contents.table.count();
    let check = |tree: &TreeSize| Plan::check_tree(options, tree, contents_count, size.memory_len);
    check(&tree_size(&size))?;
    let held_len = size.memory_len
        + contents_count * plan::CONTENT_MEMORY_LEN
        + options.memory_len / rules::KNOWN_SHARE;
    let threads = plan.metadata_threads(&tree_size(&size), held_len);
    metadata.encode_with(threads);
    reporter.entry_total = size.entry_count;
    let emitted = write_tree(
        source,
        (&mut image, &mut metadata),
        &Rules::new(&stored.contents.table, options, &check),
        threads,
        &mut reporter,
    )?;
    seal(
        image,
        stored,
        &emitted,
        (&options.label.clone().unwrap_or_default(), overwrite),
    )
}

/// Writes the tree of `source`, whose contents `image` has already; `table` has their digests.
///
/// # Errors
/// As [`build_stream`].
pub fn write_salvaged(
    source: &mut dyn TreeSource,
    writers: (&mut ImageWriter, &mut MetadataWriter),
    (table, options, check): (&ContentTable, &BuildOptions, CheckTree<'_>),
    observer: &dyn Observer,
) -> Result<Emitted> {
    let size = source.size();
    check(&tree_size(&size))?;
    let mut reporter = ProgressReporter::new(observer, &size);
    reporter.begin(Stage::Tree, 0);
    let rules = Rules::new(table, options, check);
    write_tree(source, writers, &rules, 1, &mut reporter)
}

/// Refuses trees that take too much memory.
type CheckTree<'a> = &'a dyn Fn(&TreeSize) -> Result<()>;

fn tree_size(size: &StreamSize) -> TreeSize {
    TreeSize {
        // Only the entries of the directories on the current path are held.
        entry_count: size.directory_count_max,
        depth: size.depth,
        xattr_set_count: 0,
        xattrs_len: 0,
    }
}

fn seal(
    image: ImageWriter,
    mut stored: Stored,
    emitted: &Emitted,
    (label, overwrite): (&Label, bool),
) -> Result<Report> {
    let lens = StoredLens::of(&image);
    let streams = std::mem::take(&mut stored.contents.streams);
    let name_count = emitted.summary.name_count;
    let sealed = image.seal(
        label,
        emitted.tree_digest,
        name_count,
        streams,
        Vec::new(),
        overwrite,
    )?;
    let outcome = Outcome {
        sealed,
        old_len: None,
        changes: None,
        stored: lens,
        emitted,
        contents: &stored.contents,
        file_len: stored.file_len,
        old_decoded_len: 0,
        dedup_len: stored.dedup_len,
    };
    Ok(outcome.report())
}
