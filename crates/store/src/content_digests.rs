//! The digests of an image's contents, in a file beside its map. With them, a build finds whole
//! files that the image has without decoding it.
//!
//! The file is advisory: if it is missing or damaged, a build computes the digests from the data.

use crate::layout;
use crate::store::{Store, is_bad_or_missing};
use crate::writer::StoreWriter;
use weald_format::store::{CONTENT_DIGESTS_MAGIC, ImageMap};
use weald_format::{Digest, Error, ErrorKind, ImageNo, Result};

/// Longest file that is read, bytes: 32 million contents.
const DIGESTS_LEN_MAX: u64 = 1 << 30;
/// Length of a digest in bytes.
const DIGEST_LEN: usize = 32;

/// Encodes the file: magic number, image digest, the digest of each content (zero if unknown), and
/// the digest of all bytes before.
fn encode(image_digest: &Digest, digests: &[Option<Digest>]) -> Vec<u8> {
    let mut bytes = CONTENT_DIGESTS_MAGIC.to_vec();
    bytes.extend_from_slice(&image_digest.0);
    for digest in digests {
        bytes.extend_from_slice(&digest.unwrap_or_default().0);
    }
    let sum = Digest::of(&bytes);
    bytes.extend_from_slice(&sum.0);
    bytes
}

/// Parses the file of the image `image_digest`; `None` if it is damaged or another image's.
fn parse(bytes: &[u8], image_digest: &Digest) -> Option<Vec<Option<Digest>>> {
    let (body, sum) = bytes.split_last_chunk::<DIGEST_LEN>()?;
    if Digest::of(body).0 != *sum {
        return None;
    }
    let rest = body.strip_prefix(&CONTENT_DIGESTS_MAGIC)?;
    let rest = rest.strip_prefix(&image_digest.0)?;
    let (digests, []) = rest.as_chunks::<DIGEST_LEN>() else {
        return None;
    };
    let known = |bytes: &[u8; DIGEST_LEN]| Some(Digest(*bytes)).filter(|d| *d != Digest::default());
    Some(digests.iter().map(known).collect())
}

impl Store {
    /// The digests of the contents of the image of `map`, by number; `None` for each that is not
    /// known. Returns `None` if the store does not have them.
    pub fn content_digests(&self, map: &ImageMap) -> Option<Vec<Option<Digest>>> {
        let name = layout::content_digests(map.image_no);
        let bytes = self.disk.read_file(&name, DIGESTS_LEN_MAX).ok()?;
        parse(&bytes, &map.image_digest)
    }
}

impl Store {
    /// Whether the digests of the contents of an image are there, and damaged.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn has_bad_content_digests(&self, image_no: ImageNo) -> Result<bool> {
        let name = layout::content_digests(image_no);
        let bytes = match self.disk.read_file(&name, DIGESTS_LEN_MAX) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            Err(error) if is_bad_or_missing(&error) => return Ok(true),
            other => other?,
        };
        let parts = bytes.split_last_chunk::<DIGEST_LEN>();
        Ok(parts.is_none_or(|(body, sum)| Digest::of(body).0 != *sum))
    }

    /// Forgets the digests of the contents of an image, if there are any.
    pub(crate) fn forget_content_digests(&self, image_no: ImageNo) -> Result<()> {
        match self.disk.remove(&layout::content_digests(image_no)) {
            // What is no file of ours stays, and is used for nothing.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Invalid) => {
                Ok(())
            }
            done => done,
        }
    }
}

impl StoreWriter {
    /// Keeps the digests of the contents of the image `name`, by number.
    ///
    /// # Errors
    /// `NotFound` if there is no such image; `Io`, `Full`. The image is complete without them.
    pub fn put_content_digests(&self, name: &str, digests: &[Option<Digest>]) -> Result<()> {
        let map = self.store().map(name)?;
        let bytes = encode(&map.image_digest, digests);
        if bytes.len() as u64 > DIGESTS_LEN_MAX {
            return Err(Error::limit(format!("{name}: too many contents")));
        }
        let path = layout::content_digests(map.image_no);
        self.store().disk.write_file(&path, &bytes)
    }

    /// Forgets the digests of the contents of the image `name`, if there are any: an image that
    /// continues it has them.
    ///
    /// # Errors
    /// `NotFound` if there is no such image; `Io`.
    pub fn remove_content_digests(&self, name: &str) -> Result<()> {
        let map = self.store().map(name)?;
        self.store().forget_content_digests(map.image_no)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch: digests that are damaged or of another image and are used.
    #[test]
    fn only_whole_digests_of_the_image_are_used() {
        let image = Digest::of(b"image");
        let digests = [Some(Digest::of(b"a")), None, Some(Digest::of(b"b"))];
        let bytes = encode(&image, &digests);
        assert_eq!(parse(&bytes, &image).as_deref(), Some(&digests[..]));
        assert_eq!(parse(&bytes, &Digest::of(b"other")), None);
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert_eq!(parse(&damaged, &image), None, "byte {at}");
            assert_eq!(parse(&bytes[..at], &image), None, "{at} bytes");
        }
        assert_eq!(parse(&encode(&image, &[]), &image), Some(Vec::new()));
    }
}
