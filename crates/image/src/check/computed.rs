//! The tree digest of an image, computed from its tree.

use super::templates::check_template;
use super::tree_digest::holder_digest;
use crate::image::Image;
use weald_format::container::RecordType;
use weald_format::tree_digest::TreeHasher;
use weald_format::{Digest, Error, Result};

/// The tree digest of `image`, computed from its entries and the digests of its contents. The
/// image claims one too, which only a check compares.
///
/// # Errors
/// `Io`; `Corrupt` for the first rule that the tree breaks.
/// # Cost
/// Reads the metadata.
pub fn compute(image: &Image, contents: &[Option<Digest>]) -> Result<Digest> {
    let holder = match image.records.item_count(RecordType::Times, 0) {
        0 => last_template(image, contents)?,
        _ => holder_digest(image, contents)?,
    };
    let mut hasher = TreeHasher::new(&holder);
    image
        .all_links()?
        .iter()
        .for_each(|link| hasher.add_link(link));
    Ok(hasher.finish())
}

/// The digest of the last template, which holds the root.
fn last_template(image: &Image, contents: &[Option<Digest>]) -> Result<Digest> {
    let count = image.tree.template_count().saturating_add(1);
    let mut checked = Vec::new();
    let mut entry_end = 0;
    for id in 0..count {
        checked.push(check_template(
            image,
            id,
            &mut entry_end,
            contents,
            &checked,
        )?);
    }
    let last = checked.last().and_then(|template| template.digest);
    last.ok_or_else(|| Error::corrupt("tree", 0, "F-9.3", "no root"))
}
