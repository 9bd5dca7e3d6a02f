//! Composefs images and dumps of them as streams of members. The data of their files come from a
//! directory of objects.

mod dump;
mod image;
mod objects;

use crate::input::{Input, InputStream};
use crate::members::Members;
use crate::refuse_options;
use crate::source::{DECODER_SHARE, build_members};
use dump::DumpReader;
use image::ImageReader;
use objects::ObjectDir;
use std::path::Path;
use weald_builder::{BuildOptions, Observer, Report};
use weald_format::Result;

/// Inputs of an import.
pub enum ComposefsSource<'a> {
    /// A composefs image.
    Image(&'a Path),
    /// A dump, and its name for messages.
    Dump(InputStream, String),
}

/// Builds an image of the tree of a composefs image or dump. The image appears at `target` when it
/// is complete. Without `objects`, the data of all files must be in the source itself.
///
/// # Errors
/// As [`crate::build_from_stream`]; `Invalid` for a damaged source, with the line of a dump, and
/// for an object whose bytes do not have its digest; `NotFound` for a missing object.
/// # Cost
/// As [`crate::build_from_stream`].
pub fn import_composefs(
    source: ComposefsSource<'_>,
    objects: Option<&Path>,
    target: &Path,
    overwrite: bool,
    options: &BuildOptions,
    observer: &dyn Observer,
) -> Result<Report> {
    refuse_options(options)?;
    let objects = ObjectDir::open(objects)?;
    let share = options.source_len() / DECODER_SHARE;
    let members: Box<dyn Members> = match source {
        ComposefsSource::Image(path) => Box::new(ImageReader::open(path, objects, share / 2)?),
        ComposefsSource::Dump(source, name) => {
            let input = Input::new(source, share)?;
            Box::new(DumpReader::new(input, name, objects))
        }
    };
    build_members(members, target, overwrite, options, observer)
}
