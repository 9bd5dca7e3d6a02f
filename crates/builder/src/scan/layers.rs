//! Scans directories that lie over each other, and over the tree of an image.

use super::add::assemble_with;
use super::error::{source_error, walk_error};
use super::image::walk_image;
use super::layer::{Layer, LayerKind};
use super::merge::merge;
use super::options::ScanOptions;
use super::prune::prune_empty_dirs;
use super::shard::SHARD_COUNT_MAX;
use super::tree::ScannedTree;
use super::walk::{Walked, walk};
use crate::{LeftOut, Observer, Progress};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use weald_filter::Filter;
use weald_format::{Error, Result};
use weald_image::Image;

/// Scans `layers`, the first of which lies lowest, over the tree of `image`. The options about what
/// to keep apply to the layers, not to the image.
///
/// # Errors
/// As [`super::scan`] and [`super::scan_image`]; `Invalid` if a component of [`Layer::at`] is no
/// directory in the tree below; `Limit` for more than 4095 threads, or for so many layers that no
/// thread is left to read one.
/// # Cost
/// As those, and 48 more bytes for each entry of a directory that two of them have.
pub fn scan_layers(
    image: Option<&Arc<Image>>,
    layers: &[Layer<'_>],
    options: &ScanOptions<'_>,
    observer: &dyn Observer,
) -> Result<ScannedTree> {
    let everything = ScanOptions {
        filter: &Filter::new(),
        script: None,
        keep_xattrs: true,
        splits_links: false,
        ..*options
    };
    if options.threads > SHARD_COUNT_MAX {
        return Err(Error::limit(format!(
            "{} threads: at most {SHARD_COUNT_MAX} are possible",
            options.threads
        )));
    }
    let options = &ScanOptions {
        threads: options.threads.min(threads_max(layers.len())?),
        ..*options
    };
    for layer in layers {
        check_below(layer, image)?;
    }
    let image = image.map(|image| walk_image(image, &everything, observer));
    let mut lower = image.transpose()?;
    let is_alone = layers.len() == 1;
    for layer in layers {
        lower = Some(match lower.take() {
            Some(lower) => {
                let upper = walk_layer(layer, lower.shards.len(), is_alone, options, observer)?;
                let told = |path: &[u8]| observer.replaced(path, layer.dir);
                merge(upper, lower, layer, &told)?
            }
            None if layer.at.path.is_empty() => walk_layer(layer, 0, is_alone, options, observer)?,
            None => {
                let upper = walk_layer(layer, 1, is_alone, options, observer)?;
                let lower = Walked::empty(&upper, &layer.at);
                merge(upper, lower, layer, &|_| {})?
            }
        });
    }
    let walked = lower.ok_or_else(|| Error::invalid("no source"))?;
    let (tree, mut problems) = assemble_with(walked, options, observer)?;
    problems.sort_by(|a, b| a.path.cmp(&b.path));
    problems
        .iter()
        .for_each(|problem| observer.problem(problem));
    Ok(tree)
}

/// Most threads for each of so many layers: each has shards of its own, and one for what it shares
/// with those below.
fn threads_max(layer_count: usize) -> Result<usize> {
    let shards = (SHARD_COUNT_MAX - 1).checked_div(layer_count);
    let threads = shards.and_then(|shards| shards.checked_sub(1));
    threads.filter(|&threads| threads > 0).ok_or_else(|| {
        Error::limit(format!(
            "{layer_count} sources: at most {} can be packed at once",
            (SHARD_COUNT_MAX - 1) / 2
        ))
    })
}

/// Refuses a layer of overlayfs over another tree than its own.
fn check_below(layer: &Layer<'_>, image: Option<&Arc<Image>>) -> Result<()> {
    let LayerKind::Upper { over, .. } = layer.kind else {
        return Ok(());
    };
    if image.is_some_and(|image| image.summary().tree_digest == over) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "{}: the image below this layer has not the tree {over}",
        layer.dir.display()
    )))
}

/// Puts the place of a layer before the paths of what is left out of it. A walk reports nothing
/// else but its progress.
struct Placed<'a> {
    inner: &'a dyn Observer,
    prefix: Vec<u8>,
}

impl Observer for Placed<'_> {
    fn progress(&self, progress: &Progress) {
        self.inner.progress(progress);
    }

    fn left_out(&self, path: &[u8], why: LeftOut<'_>) {
        self.inner.left_out(&[&self.prefix, path].concat(), why);
    }

    fn is_cancelled(&self) -> bool {
        self.inner.is_cancelled()
    }
}

/// Walks a layer. Unless it `is_alone`, its path goes before the paths of its problems.
fn walk_layer(
    layer: &Layer<'_>,
    first_shard: usize,
    is_alone: bool,
    options: &ScanOptions<'_>,
    observer: &dyn Observer,
) -> Result<Walked> {
    let is_upper = matches!(layer.kind, LayerKind::Upper { .. });
    if is_upper && !options.keep_xattrs {
        return Err(Error::invalid(
            "a layer of overlayfs cannot be read without xattrs",
        ));
    }
    let root = match layer.root {
        Some(root) => root.try_clone_to_owned(),
        None => weald_sys::open_dir(layer.dir),
    };
    let root = root.map_err(|e| source_error(layer.dir, e))?;
    let observer = &Placed {
        inner: observer,
        prefix: match &*layer.at.path {
            b"" => Vec::new(),
            path => [path, b"/"].concat(),
        },
    };
    let walked = walk(root, options, (layer.list, first_shard), observer);
    let mut walked = walked.map_err(|e| walk_error(layer.dir, e))?;
    if options.prune_empty_dirs {
        prune_empty_dirs(&mut walked);
    }
    if !is_alone {
        let dir = [layer.dir.as_os_str().as_bytes(), b"/"].concat();
        for problem in walked.shards.iter_mut().flat_map(|s| &mut s.problems) {
            problem.path = [&*dir, &*problem.path].concat();
        }
        walked.origin.name(dir);
    }
    Ok(walked)
}
