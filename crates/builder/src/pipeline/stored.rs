//! Builds images straight into a store.
//!
//! The new image continues an image of the store, so that files and parts of files that the store
//! has are not stored again. The result is an image of its own. It has only those blocks of the
//! continued image that it uses.

mod reencode;
mod trim;
mod used_blocks;

use crate::dedup::starting_images::takes_more;
use crate::options::{AddAt, BuildOptions};
use crate::pipeline::build::build_tree;
use crate::pipeline::destination::{Continued, Destination, Intake};
use crate::progress::{Observer, Problem, Report};
use crate::scan::{Layer, scan_image, scan_layers};
use crate::write::image_writer::Sealed;
use parking_lot::Mutex;
use std::path::Path;
use std::sync::Arc;
use trim::trim;
use weald_format::{Digest, Error, ErrorKind, ImageNo, Result};
use weald_image::{CheckOptions, Image, OpenOptions};
use weald_io::ReadAt;
use weald_store::{Imported, Incoming, Store, StoreWriter, StoredImage};

pub use reencode::{ReencodeOptions, Reencoded, reencode};

/// Source of an image of a store.
#[derive(Clone, Copy)]
pub enum StoreSource<'a> {
    /// An image.
    Image(&'a Arc<Image>),
    /// Directories that lie over each other.
    Layers(&'a [Layer<'a>]),
    /// Directories that lie over the tree of the continued image.
    Onto(&'a [Layer<'a>]),
}

/// Destination of an image in a store.
#[derive(Debug)]
pub struct StoreTarget<'a> {
    /// The store.
    pub writer: StoreWriter,
    /// Directory of the store; the spools go there.
    pub dir: &'a Path,
    /// Name of the new image.
    pub name: &'a str,
    /// Image of the store that the new one resembles; `None` chooses by name.
    pub like: Option<&'a str>,
}

/// Result of adding an image.
#[derive(Debug)]
pub struct Added {
    /// Report of the build.
    pub report: Report,
    /// Result of adding the image's blocks to the store.
    pub imported: Imported,
    /// The image that the new one continues.
    pub like: Option<String>,
}

/// Builds an image of `source` into a store.
///
/// # Errors
/// As [`crate::build_image`]; `Busy` if the name is taken; `NotFound` if `like` names no image;
/// `Unsupported` if the image `like` cannot be continued.
/// # Cost
/// Reads the source once. Decodes those contents of the continued image that new files may repeat
/// in part; all contents if a third of the source is new, or if the store lost their digests.
pub fn build_into_store(
    source: StoreSource<'_>,
    target: StoreTarget<'_>,
    options: &BuildOptions,
    observer: &dyn Observer,
) -> Result<Added> {
    if options.append || options.at.is_some() || !options.bases.is_empty() {
        let what = "an image of a store is never appended to, and lies on no base image";
        return Err(Error::new(ErrorKind::Unsupported, what));
    }
    let store = target.writer.store().clone();
    let incoming = Incoming::new(target.writer, target.name)?;
    let ToContinue { image, problem } = continued(&store, target.name, target.like)?;
    if let Some(problem) = &problem {
        observer.problem(problem);
    }
    let mut problem_count = u64::from(problem.is_some());
    let mut intake = Intake {
        incoming: Arc::new(Mutex::new(incoming)),
        continued: image,
        spool_dir: target.dir.to_owned(),
        digests: Mutex::default(),
    };
    let mut built = build(&intake, source, options, observer);
    if let Err(error) = &built
        && target.like.is_none()
        && error.is_unreadable()
        && let Some(old) = intake.continued.take_if(|old| is_damaged(old))
    {
        observer.problem(&not_continued(&old.name, error));
        problem_count += 1;
        intake.digests = Mutex::default();
        let mut incoming = intake.incoming.lock();
        incoming.begin_with(Vec::new());
        // New files may have what is damaged.
        incoming.verify_duplicates();
        drop(incoming);
        built = build(&intake, source, options, observer);
    }
    let mut report = built?;
    report.problem_count += problem_count;
    finish(intake, target.name, report)
}

/// Whether the image cannot be read.
fn is_damaged(continued: &Continued) -> bool {
    let options = CheckOptions {
        digests_only: true,
        threads: 1,
        path_count_max: 0,
    };
    let image = Image::open(continued.source.clone(), &OpenOptions::default());
    image.is_err() || image.is_ok_and(|image| !image.check(&options, &mut |_| {}).is_clean())
}

/// Builds the image that `intake` receives.
fn build(
    intake: &Intake,
    source: StoreSource<'_>,
    options: &BuildOptions,
    observer: &dyn Observer,
) -> Result<Report> {
    if let Some(continued) = &intake.continued {
        let parts = continued.parts.clone();
        intake.incoming.lock().begin_with(parts);
    }
    let destination = Destination::Store(intake);
    // The label of the image that it continues is not that of this one.
    let options = &BuildOptions {
        label: Some(options.label.clone().unwrap_or_default()),
        ..options.clone()
    };
    match source {
        StoreSource::Layers(layers) => {
            build_tree(&destination, options, observer, &|options, _, observer| {
                scan_layers(None, layers, options, observer)
            })
        }
        StoreSource::Onto(layers) => {
            let options = BuildOptions {
                at: Some(AddAt::root()),
                append: true,
                allow_removal: true,
                ..options.clone()
            };
            build_tree(
                &destination,
                &options,
                observer,
                &|options, old, observer| {
                    let old = old.ok_or_else(|| Error::not_found("the image below the layer"))?;
                    scan_layers(Some(old), layers, options, observer)
                },
            )
        }
        StoreSource::Image(image) => {
            let mut options = options.clone();
            options.keep_fsverity |= image.keeps_fsverity();
            build_tree(&destination, &options, observer, &|options, _, observer| {
                scan_image(image, options, observer)
            })
        }
    }
}

/// Publishes the finished image in the store, with the digests of its contents.
fn finish(intake: Intake, name: &str, mut report: Report) -> Result<Added> {
    let Intake {
        incoming,
        continued,
        digests,
        ..
    } = intake;
    let digests = digests.into_inner().into_iter().map(Some).collect();
    let digests = match &continued {
        None => Some(digests),
        // The tree is unchanged: publish the same image again.
        Some(continued) if report.appended_len == Some(0) => {
            incoming.lock().begin_with(continued.parts.clone());
            continued.digests.clone()
        }
        Some(_) => {
            let (sealed, is_used) = without_unused(&incoming)?;
            (report.image_digest, report.image_len) = (sealed.image_digest, sealed.image_len);
            Some(of_used(digests, &is_used))
        }
    };
    (report.appended_len, report.generation) = (None, 1);
    let mut incoming = incoming.lock();
    let imported = incoming.publish(report.image_digest, report.tree_digest)?;
    if let Some(digests) = digests {
        // The image is complete and listed. Without its digests, the next build computes them.
        let kept = incoming.writer().put_content_digests(name, &digests);
        // The next build continues this image rather than the older one: digests of one suffice.
        if let (Ok(()), Some(continued)) = (kept, &continued) {
            let _ = incoming.writer().remove_content_digests(&continued.name);
        }
    }
    drop(incoming);
    Ok(Added {
        report,
        imported,
        like: continued.map(|continued| continued.name),
    })
}

/// The digests of contents that are used. Zeros may have replaced data of the others.
fn of_used(digests: Vec<Option<Digest>>, is_used: &[bool]) -> Vec<Option<Digest>> {
    let pairs = digests.into_iter().zip(is_used);
    pairs
        .map(|(digest, is_used)| digest.filter(|_| *is_used))
        .collect()
}

/// Writes the image again without the blocks that its tree does not use. Also returns which of its
/// contents the tree uses.
fn without_unused(incoming: &Arc<Mutex<Incoming>>) -> Result<(Sealed, Vec<bool>)> {
    let (bytes, map) = incoming.lock().read_back()?;
    let image = Image::open(Arc::new(bytes), &OpenOptions::default())?;
    let is_used = image.used_contents()?;
    let sealed = trim(&image, &map, &is_used, incoming)?;
    Ok((sealed, is_used))
}

/// What a new image continues.
#[derive(Debug)]
pub struct ToContinue<T> {
    /// The image, if there is one.
    pub image: Option<T>,
    /// Why it is not the one whose name is most similar: that is damaged.
    pub problem: Option<Problem>,
}

impl<T> From<Option<T>> for ToContinue<T> {
    fn from(image: Option<T>) -> Self {
        Self {
            image,
            problem: None,
        }
    }
}

/// Name of the image of `store` that [`build_into_store`] continues for the image `name`.
///
/// # Errors
/// As [`build_into_store`].
pub fn image_to_continue(
    store: &Store,
    name: &str,
    like: Option<&str>,
) -> Result<ToContinue<String>> {
    let ToContinue { image, problem } = continued(store, name, like)?;
    Ok(ToContinue {
        image: image.map(|continued| continued.name),
        problem,
    })
}

/// The problem of the image `name`, which is damaged, so that no image continues it.
pub fn not_continued(name: &str, error: &Error) -> Problem {
    let error = error.duplicate().context("damaged, and not continued");
    Problem {
        path: name.as_bytes().to_vec(),
        what: error.to_string(),
    }
}

/// Chooses the image of `store` that the image `name` continues: `like`, or else the image with the
/// most similar name, the newest of several.
fn continued(store: &Store, name: &str, like: Option<&str>) -> Result<ToContinue<Continued>> {
    let chosen = match like {
        Some(like) => Some(like.to_owned()),
        None => most_similar(store, name)?,
    };
    let Some(chosen) = chosen else {
        return Ok(None.into());
    };
    match opened(store, &chosen, like) {
        // Nobody has asked for it.
        Err(error) if like.is_none() && error.is_unreadable() => Ok(ToContinue {
            image: None,
            problem: Some(not_continued(&chosen, &error)),
        }),
        found => found.map(ToContinue::from),
    }
}

/// Opens the image `chosen` to continue it; `None` if it is not the one that `like` names and
/// cannot be continued.
fn opened(store: &Store, chosen: &str, like: Option<&str>) -> Result<Option<Continued>> {
    let map = store.map(chosen)?;
    let segments = store.segment_numbers()?;
    let is_whole = map
        .blocks()
        .all(|(_, place, _)| segments.contains(&place.segment));
    let source: Arc<dyn ReadAt> = Arc::new(StoredImage::open(store.clone(), chosen)?);
    // The new image would lie on a base image, or on blocks that are lost.
    let lies_on_others = || weald_image::bases_of(&*source).is_ok_and(|bases| !bases.is_empty());
    if like.is_none() && (!is_whole || lies_on_others()) {
        return Ok(None);
    }
    let (digests, parts) = (store.content_digests(&map), map.parts);
    let opened = Image::open(source.clone(), &OpenOptions::default());
    let can_continue = |image: &Image| takes_more(image) && image.directory().bases.is_empty();
    match (opened, like) {
        (Ok(image), _) if can_continue(&image) => Ok(Some(Continued {
            source,
            parts,
            name: chosen.to_owned(),
            digests,
        })),
        (Err(error), _) => Err(error.context(chosen.to_owned())),
        (Ok(_), None) => Ok(None),
        (Ok(_), Some(like)) => {
            let what = format!("{like}: its streams are not those that new data can follow");
            Err(Error::new(ErrorKind::Unsupported, what))
        }
    }
}

/// Length of the front that two names have in common, bytes. A number counts only as a whole:
/// `5.2.10` has as much in common with `5.2.9` as with `5.2.1`.
fn common_len(a: &str, b: &str) -> usize {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let pairs = a.iter().zip(b);
    let len = pairs.take_while(|(a, b)| a == b).count();
    let is_digit = |name: &[u8]| name.get(len).is_some_and(u8::is_ascii_digit);
    let common = &a[..len];
    if is_digit(a) || is_digit(b) {
        let digits = common.iter().rev().take_while(|byte| byte.is_ascii_digit());
        len - digits.count()
    } else {
        len
    }
}

/// The image whose name has most in common with `name`; of several, the newest.
fn most_similar(store: &Store, name: &str) -> Result<Option<String>> {
    let names = store.names()?;
    let most = names.iter().map(|other| common_len(name, other)).max();
    let mut newest: Option<(ImageNo, String)> = None;
    for other in names {
        if Some(common_len(name, &other)) == most {
            let id = store.map(&other)?.image_no;
            if newest.as_ref().is_none_or(|(known, _)| *known < id) {
                newest = Some((id, other));
            }
        }
    }
    Ok(newest.map(|(_, name)| name))
}

#[cfg(test)]
mod tests {
    use super::common_len;

    /// Would catch: version 5.2.10 that continues the old 5.2.1 instead of the newest version.
    #[test]
    fn a_number_in_a_name_counts_as_a_whole() {
        for (a, b, len) in [
            ("5.2.10", "5.2.1", 4),
            ("5.2.10", "5.2.9", 4),
            ("5.2.10", "5.2", 3),
            ("5.2.10", "5.20", 2),
            ("v12", "v12-rc1", 3),
            ("v12", "v123", 1),
            ("project-2", "project-1", 8),
            ("same", "same", 4),
            ("10", "1", 0),
            ("", "a", 0),
        ] {
            assert_eq!((common_len(a, b), common_len(b, a)), (len, len), "{a} {b}");
        }
    }
}
