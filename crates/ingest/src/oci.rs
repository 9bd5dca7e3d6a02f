//! Builds an image of the layers of an OCI image.
//!
//! `layout` gives the files of a layout, `choose` finds the image in it, `layer` reads one layer,
//! `survivors` decides which members are in the tree, and `source` hands them to the builder.
//!
//! A layout is not trusted. Nothing outside it is read, every blob is verified before the image
//! gets its name, documents are limited to 8 MiB and layers to 1 GiB or 256 times their compressed
//! size.
//!
//! Source: OCI image specification 1.1, layer.md, image-layout.md.

mod choose;
mod digest;
mod documents;
mod layer;
mod layout;
mod platform;
mod source;
mod survivors;

pub use choose::Choice;
pub use platform::Platform;

use choose::choose;
use layout::Layout;
use source::LayersSource;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use weald_builder::stream::{build_stream, spool_dir};
use weald_builder::{BuildOptions, Observer, Report};
use weald_format::Result;
use weald_io::ReadAt;

use crate::refuse_options;
use crate::source::DECODER_SHARE;

/// An imported image.
#[derive(Debug)]
pub struct OciImport {
    /// Report of the build.
    pub report: Report,
    /// Configuration of the image, as it is in the layout.
    pub config: Vec<u8>,
    /// Annotations of its manifest.
    pub annotations: BTreeMap<String, String>,
    /// Count of its layers.
    pub layer_count: usize,
}

/// Counts of a scanned image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OciScanned {
    /// Members of all layers.
    pub member_count: u64,
    /// Members that are in the tree.
    pub kept_count: u64,
}

/// Reads the image `choice` of the archive `archive`, verifies it, and keeps nothing. Temporary
/// files go to `temp_dir`.
///
/// # Errors
/// As [`import_oci`].
pub fn scan_oci(
    archive: Arc<dyn ReadAt>,
    choice: &Choice,
    temp_dir: &Path,
    options: &BuildOptions,
    observer: &dyn Observer,
) -> Result<OciScanned> {
    let layout = Layout::archive(archive, temp_dir, options.source_len() / DECODER_SHARE)?;
    let chosen = choose(&layout, choice)?;
    let (member_count, survivors) =
        LayersSource::new(&chosen, temp_dir.to_owned(), options, observer).survivors()?;
    Ok(OciScanned {
        member_count,
        kept_count: survivors.kept_count(),
    })
}

/// Builds an image of the image `choice` of `layout`: an OCI layout directory, a tar archive of
/// one, or the output of `docker save`. The image appears at `target` when it is complete.
///
/// # Errors
/// As [`weald_builder::build_image`]; `NotFound` for a tag, platform or blob that is not there;
/// `Invalid` for a digest that differs and for layers that describe no tree; `Limit` for documents
/// and layers beyond the limits; `Unsupported` for encrypted layers and for artifacts.
/// # Cost
/// Reads and decompresses each layer twice. Temporary files beside the image as for
/// [`crate::build_from_stream`]; also the whole of a compressed archive.
pub fn import_oci(
    layout: &Path,
    choice: &Choice,
    target: &Path,
    overwrite: bool,
    options: &BuildOptions,
    observer: &dyn Observer,
) -> Result<OciImport> {
    refuse_options(options)?;
    if !overwrite {
        weald_io::refuse_existing(target)?;
    }
    let dir = spool_dir(target);
    let layout = Layout::open(layout, &dir, options.source_len() / DECODER_SHARE)?;
    let chosen = choose(&layout, choice)?;
    let mut source = LayersSource::new(&chosen, dir, options, observer);
    let report = build_stream(&mut source, target, overwrite, options, observer)?;
    let problem_count = source.problem_count;
    Ok(OciImport {
        report: Report {
            problem_count,
            ..report
        },
        layer_count: chosen.layers.len(),
        config: chosen.config,
        annotations: chosen.annotations,
    })
}
