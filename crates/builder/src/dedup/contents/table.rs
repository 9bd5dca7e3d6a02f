//! The digests of all contents.

use hashbrown::HashTable;
use weald_format::{ContentId, Digest, Error, Result};

/// Digests of all contents so far, and the ids by digest.
#[derive(Default)]
pub struct ContentTable {
    digests: Vec<Digest>,
    ids: HashTable<u32>,
}

fn bucket_hash(digest: &Digest) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&digest.0[..8]);
    u64::from_le_bytes(bytes)
}

impl ContentTable {
    /// Returns the content with this digest, if the image has one.
    pub fn find(&self, digest: &Digest) -> Option<ContentId> {
        let same = |&id: &u32| self.digests[id as usize] == *digest;
        self.ids
            .find(bucket_hash(digest), same)
            .map(|&id| ContentId(u64::from(id)))
    }

    /// Returns the digest of a content.
    pub fn digest(&self, id: ContentId) -> Digest {
        self.digests[id.0 as usize]
    }

    /// Number of contents.
    pub fn count(&self) -> u64 {
        self.digests.len() as u64
    }

    /// Adds a content with this digest, and returns its number.
    ///
    /// # Errors
    /// `Limit` for more than 2^32 contents.
    pub fn insert(&mut self, digest: Digest) -> Result<ContentId> {
        let id = u32::try_from(self.digests.len())
            .map_err(|_| Error::limit("more than 2^32 contents"))?;
        self.digests.push(digest);
        let digests = &self.digests;
        self.ids.insert_unique(bucket_hash(&digest), id, |&id| {
            bucket_hash(&digests[id as usize])
        });
        Ok(ContentId(u64::from(id)))
    }
}
