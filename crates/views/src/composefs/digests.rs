//! The digests of the contents, and the order of those that several inodes have.

use super::bits::Bits;
use super::gather::Uses;
use crate::spill::{Numbers, Spill};
use weald_codec::FSVERITY_DIGEST_LEN as DIGEST_LEN;
use weald_format::Result;

/// Bits of the filter that finds equal digests, for each digest. One in 16 digests is compared in
/// vain.
const FILTER_BITS_PER_DIGEST: u64 = 16;

/// Digests of all contents that are objects.
pub(super) struct Digests {
    contents: Bits,
    /// In ascending order of contents.
    list: Spill,
    /// Places in the list of the contents that several inodes have.
    shared: Bits,
    /// For each of them, its rank by digest; equal digests have one rank.
    ranks: Vec<u32>,
    /// For each rank, a place in the list.
    sorted: Vec<u32>,
}

impl Digests {
    /// `list` has the digests of the contents of `uses.once` in ascending order.
    ///
    /// # Errors
    /// `Io`: the temporary file of `list`.
    pub fn new(mut uses: Uses, list: Spill) -> Result<Self> {
        uses.once.rank_ready();
        let mut shared = Bits::default();
        for content in uses.repeated.iter() {
            shared.insert(uses.once.rank(content));
        }
        let mut digests = Self {
            contents: uses.once,
            list,
            shared,
            ranks: Vec::new(),
            sorted: Vec::new(),
        };
        digests.share_equal()?;
        digests.shared.rank_ready();
        digests.sort()?;
        Ok(digests)
    }

    fn count(&self) -> u64 {
        self.list.len() / DIGEST_LEN as u64
    }

    /// Marks contents with equal bytes as shared: one with holes and one without are two contents.
    fn share_equal(&mut self) -> Result<()> {
        let filter_len = (self.count() * FILTER_BITS_PER_DIGEST).max(1);
        let mut reader = Numbers::new(&self.list);
        let (mut seen, mut repeated) = (Bits::default(), Bits::default());
        for place in 0..self.count() {
            let bit = prefix(&digest_at(&mut reader, place)?) % filter_len;
            if seen.insert(bit) {
                repeated.insert(bit);
            }
        }
        drop(seen);
        let mut candidates = Vec::new();
        for place in 0..self.count() {
            let digest = digest_at(&mut reader, place)?;
            if repeated.contains(prefix(&digest) % filter_len) {
                candidates.push((prefix(&digest), place as u32));
            }
        }
        drop(repeated);
        candidates.sort_unstable();
        for group in candidates.chunk_by(|a, b| a.0 == b.0) {
            if group.len() == 1 {
                continue;
            }
            let group = with_digests(group, &mut reader)?;
            for equal in group.chunk_by(|a, b| a.0 == b.0) {
                for (_, place) in equal.iter().filter(|_| equal.len() > 1) {
                    self.shared.insert(u64::from(*place));
                }
            }
        }
        Ok(())
    }

    fn sort(&mut self) -> Result<()> {
        let mut reader = Numbers::new(&self.list);
        let mut order = Vec::with_capacity(self.shared.count() as usize);
        for place in self.shared.iter() {
            order.push((prefix(&digest_at(&mut reader, place)?), place as u32));
        }
        order.sort_unstable();
        self.ranks = vec![0; order.len()];
        for group in order.chunk_by(|a, b| a.0 == b.0) {
            let group = with_digests(group, &mut reader)?;
            for equal in group.chunk_by(|a, b| a.0 == b.0) {
                let rank = self.sorted.len() as u32;
                for (_, place) in equal {
                    let index = self.shared.rank(u64::from(*place)) as usize;
                    if let Some(slot) = self.ranks.get_mut(index) {
                        *slot = rank;
                    }
                }
                self.sorted.extend(equal.first().map(|(_, place)| *place));
            }
        }
        Ok(())
    }

    /// Distinct digests that several inodes have.
    pub fn shared_count(&self) -> u64 {
        self.sorted.len() as u64
    }

    /// The rank of the digest of `content` among those, in ascending order.
    pub fn shared_rank(&self, content: u64) -> Option<u64> {
        let place = self.contents.rank(content);
        if !self.shared.contains(place) {
            return None;
        }
        let index = self.shared.rank(place) as usize;
        self.ranks.get(index).map(|rank| u64::from(*rank))
    }

    /// Reads digests.
    pub fn reader(&self) -> DigestReader<'_> {
        DigestReader {
            digests: self,
            numbers: Numbers::new(&self.list),
        }
    }
}

pub(super) struct DigestReader<'a> {
    digests: &'a Digests,
    numbers: Numbers<'a>,
}

impl DigestReader<'_> {
    /// The digest of `content`.
    ///
    /// # Errors
    /// `Io`: the temporary file of the digests.
    pub fn of(&mut self, content: u64) -> Result<[u8; DIGEST_LEN]> {
        digest_at(&mut self.numbers, self.digests.contents.rank(content))
    }

    /// The shared digest with this rank.
    ///
    /// # Errors
    /// `Io`: the temporary file of the digests.
    pub fn shared(&mut self, rank: u64) -> Result<[u8; DIGEST_LEN]> {
        let place = self.digests.sorted.get(rank as usize).copied();
        digest_at(&mut self.numbers, u64::from(place.unwrap_or_default()))
    }
}

/// The places of `group` with their digests, sorted. Digests with one prefix are equal, except by
/// accident.
fn with_digests(
    group: &[(u64, u32)],
    reader: &mut Numbers<'_>,
) -> Result<Vec<([u8; DIGEST_LEN], u32)>> {
    let digest = |place: u32| digest_at(reader, u64::from(place));
    let places = group.iter().map(|(_, place)| *place);
    let found: Result<Vec<_>> = places
        .scan(digest, |digest, place| Some((digest(place), place)))
        .map(|(digest, place)| Ok((digest?, place)))
        .collect();
    let mut found = found?;
    found.sort_unstable();
    Ok(found)
}

fn digest_at(reader: &mut Numbers<'_>, place: u64) -> Result<[u8; DIGEST_LEN]> {
    let mut digest = [0; DIGEST_LEN];
    reader.get(&mut digest, place * DIGEST_LEN as u64)?;
    Ok(digest)
}

fn prefix(digest: &[u8; DIGEST_LEN]) -> u64 {
    u64::from_be_bytes(digest.first_chunk().copied().unwrap_or_default())
}
