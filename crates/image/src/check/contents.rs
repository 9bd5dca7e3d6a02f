//! Checks contents: those that decode, or those whose records did not fail.

use super::content_digests::{bad, check_starts, digest_and_verify, each_source, no_digests};
use super::findings::Checker;
use crate::image::Image;
use weald_format::container::RecordType;
use weald_format::{ContentId, Digest, Error, Result};

/// The digest of every content; `None` if it cannot be read.
pub fn check_contents(checker: &mut Checker<'_>) -> Vec<Option<Digest>> {
    let image = checker.image;
    let count = image.summary.content_count;
    if let Err(error) = check_starts(image, count) {
        checker.found(error);
    }
    let verified = contents_to_verify(checker);
    let results = digest_and_verify(image, count, checker.options.threads, &verified);
    checker.report.content_count = results.digests.len() as u64;
    checker.report.content_len = results.len;
    results
        .errors
        .into_iter()
        .for_each(|error| checker.found(error));
    results.digests
}

/// Checks that the image has `count` contents, that they tile the logical space, and that every
/// extent lies in a block that is listed. Reads no data.
///
/// # Errors
/// `Corrupt`, `Io`.
pub fn check_layout(image: &Image, count: u64) -> Result<()> {
    let found = image.summary.content_count;
    if found != count {
        return Err(bad(format!("expected {count} contents, found {found}")));
    }
    check_starts(image, count)?;
    for id in (0..count).map(ContentId) {
        each_source(image, id, &mut |stream, mut range| {
            let is_elsewhere =
                image.map.is_base_stream(stream) || image.map.is_recipe_stream(stream);
            while !is_elsewhere && range.start < range.end {
                let found = image
                    .records
                    .record_of_item(RecordType::Data, stream, range.start)?;
                range.start = found.first_item.saturating_add(found.item_count);
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// The contents whose kept fs-verity digests are compared: those that the tree uses. A store may
/// have replaced blocks of the others.
fn contents_to_verify(checker: &mut Checker<'_>) -> Vec<bool> {
    let image = checker.image;
    let count = image.summary.content_count;
    let kept_count = image.records.item_count(RecordType::Fsverity, 0);
    if kept_count == 0 {
        return Vec::new();
    }
    if kept_count != count {
        let what = format!("fs-verity digests: expected {count}, found {kept_count}");
        checker.found(Error::corrupt("directory", 0, "F-28.2", what));
        return Vec::new();
    }
    // The check of the templates reports what is wrong with a tree that cannot be read.
    image.used_contents().unwrap_or_default()
}

/// For every content: a zero digest if its records did not fail, else `None`. Decodes nothing.
///
/// # Cost
/// O(contents + extents): a recipe counts as readable if its input is, however many extents refer
/// to it.
pub fn probe_contents(checker: &mut Checker<'_>) -> Vec<Option<Digest>> {
    let image = checker.image;
    let mut contents = no_digests(image.summary.content_count);
    // Contents that recipes make partly or entirely, ascending.
    let mut made: Vec<u64> = Vec::new();
    for (id, slot) in contents.iter_mut().enumerate() {
        let id = id as u64;
        if let Ok(is_made) = probe(image, ContentId(id)) {
            *slot = Some(Digest::default());
            if is_made {
                made.push(id);
            }
        }
    }
    let is_whole = |plain: ContentId| {
        let index = usize::try_from(plain.0).unwrap_or(usize::MAX);
        contents.get(index).is_some_and(Option::is_some) && made.binary_search(&plain.0).is_err()
    };
    let is_damaged = |&id: &u64| probe_recipes(image, ContentId(id), &is_whole).is_err();
    let damaged: Vec<u64> = made.iter().copied().filter(is_damaged).collect();
    for id in damaged {
        let index = usize::try_from(id).unwrap_or(usize::MAX);
        if let Some(slot) = contents.get_mut(index) {
            *slot = None;
        }
    }
    contents
}

/// Fails if a block of the content failed. Otherwise returns whether recipes make a part of it.
fn probe(image: &Image, id: ContentId) -> Result<bool> {
    let mut is_made = false;
    each_source(image, id, &mut |stream, mut range| {
        if image.map.is_recipe_stream(stream) {
            is_made = true;
            return Ok(());
        }
        if image.map.is_base_stream(stream) {
            return Ok(());
        }
        while range.start < range.end {
            let found = image
                .records
                .record_of_item(RecordType::Data, stream, range.start)?;
            if image.records.has_failed(&found.record) {
                return Err(bad(format!("content {id} is in a damaged block")));
            }
            range.start = found.first_item.saturating_add(found.item_count);
        }
        Ok(())
    })?;
    Ok(is_made)
}

/// Fails if a recipe that makes a part of content `id` cannot be read, or its input is damaged.
fn probe_recipes(image: &Image, id: ContentId, is_whole: &dyn Fn(ContentId) -> bool) -> Result<()> {
    each_source(image, id, &mut |stream, mut range| {
        while image.map.is_recipe_stream(stream) && range.start < range.end {
            let found = image.map.recipe_at(range.start)?;
            let recipe = found.recipe()?;
            if !is_whole(recipe.plain) {
                return Err(bad(format!(
                    "the input of a recipe for content {id} is damaged"
                )));
            }
            range.start = found.first.saturating_add(recipe.len);
        }
        Ok(())
    })
}
