//! Publishes an image into a store in a bucket: records that are there are not read.

use crate::uuid::random_uuid;
use anyhow::bail;
use std::path::Path;
use weald_format::container::{HEADER_LEN, RecordRef};
use weald_format::store::{ImageMap, Part};
use weald_format::{Digest, Error, Result};
use weald_io::ReadAt;
use weald_remote::Publication;
use weald_store::{PartSink, StoreLocation, read_parts};

/// What became of the bytes of an image.
pub struct Lens {
    /// Bytes that were sent.
    pub sent: u64,
    /// Bytes that were there already.
    pub present: u64,
}

/// Publishes `source`, the image at `path`, whose image digest is `digest`. `replaces` says whether
/// another image may have the name.
pub fn publish(
    mut publication: Publication,
    path: &Path,
    source: &dyn ReadAt,
    digest: Digest,
    replaces: bool,
) -> anyhow::Result<Lens> {
    match publication.digest() {
        Some(found) if found == digest && !replaces => {
            return Ok(Lens {
                sent: 0,
                present: source.len(),
            });
        }
        Some(found) if found == digest => publication.repair(),
        Some(_) if !replaces => {
            bail!("another image has this name: --force replaces it, and sends what is new only")
        }
        _ => {}
    }
    publication.learn()?;
    let digests = match weald_store::split(path) {
        Some((store, name)) => {
            let map = StoreLocation::Path(store).open()?.map(&name)?;
            put_map(&mut publication, source, &map)?;
            (map.image_digest, map.tree_digest)
        }
        None => read_parts(source, &mut Sink(&mut publication))?,
    };
    if digests.0 != digest {
        bail!("the image was replaced while it was read: publish it again");
    }
    let published = publication.finish(digests, random_uuid()?)?;
    log::info!("{} requests", published.request_count);
    Ok(Lens {
        sent: published.sent_len,
        present: published.present_len,
    })
}

/// Takes what is read from front to back.
struct Sink<'a>(&'a mut Publication);

impl PartSink for Sink<'_> {
    fn put_inline(&mut self, bytes: &[u8]) -> Result<()> {
        self.0.put_inline(bytes);
        Ok(())
    }

    fn put_record(&mut self, record: &RecordRef, stored: &[u8]) -> Result<()> {
        if self.0.put_known(record)? {
            return Ok(());
        }
        self.0.put_new(record, &record.with_header(stored))
    }

    fn put_part(&mut self, _part: Part) -> Result<()> {
        Err(Error::invalid("an image file has no blocks of a store"))
    }
}

/// Puts the parts of an image of a store, of which those that are known are not read.
fn put_map(publication: &mut Publication, source: &dyn ReadAt, map: &ImageMap) -> Result<()> {
    let mut at = 0u64;
    for part in &map.parts {
        match part {
            Part::Inline(bytes) => publication.put_inline(bytes),
            Part::Block { record, .. } if publication.put_known(record)? => {}
            Part::Block { record, .. } => {
                let mut bytes = vec![0; part.len() as usize];
                source.read_exact_at(&mut bytes, at)?;
                let stored = bytes.get(HEADER_LEN..).unwrap_or_default();
                if bytes != record.with_header(stored) || Digest::of(stored) != record.digest {
                    let what = "a block of the store is damaged: 'weald store check --data' names \
                                the files";
                    return Err(Error::corrupt("record", at, "F-3.15", what));
                }
                publication.put_new(record, &bytes)?;
            }
        }
        at = at.saturating_add(part.len());
    }
    Ok(())
}
