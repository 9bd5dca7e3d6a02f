//! The objects of a store in a bucket: names, maps, and packs of records.
//!
//! Maps and packs are named by their digests and never change. A name is replaced as a whole, under
//! the condition that nobody else did so meanwhile; a random number in it tells two writers apart.

use crate::cursor::{Cursor, put_varint};
use crate::sealed_text::{sealed, unsealed};
use crate::store::{ImageMap, Part, Uuid};
use crate::{Digest, Error, ErrorKind, Result};

/// First bytes of every map of a bucket.
pub const PACKS_MAGIC: [u8; 8] = *b"\x89WPACKS\n";
/// Most bytes of a name.
pub const NAME_LEN_MAX: u64 = 4096;
/// Most bytes of a map: 5 million records and 2 million packs.
pub const BUCKET_MAP_LEN_MAX: u64 = 384 << 20;
/// Most bytes of a pack: one record of the largest size and what came before it.
pub const PACK_LEN_MAX: u64 = 1 << 30;

/// First line of a name.
const NAME_LINE: &str = "weald image 1";
/// First words of a name of any version.
const NAME_WORDS: &str = "weald image ";

/// Key of the name `name` in the store with this prefix.
pub fn name_key(name: &str) -> String {
    format!("names/{name}")
}

/// Key of the map with this digest.
pub fn map_key(digest: &Digest) -> String {
    format!("maps/{digest}")
}

/// Key of the pack with this digest.
pub fn pack_key(digest: &Digest) -> String {
    format!("packs/{digest}")
}

/// What a name says: which image it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketName {
    /// Digest of the image's directory record.
    pub image_digest: Digest,
    /// Logical identity of its tree.
    pub tree_digest: Digest,
    /// Bytes of the image.
    pub image_len: u64,
    /// Digest of its map.
    pub map_digest: Digest,
    /// Bytes of its map.
    pub map_len: u64,
    /// How often the name was given to an image before, and one.
    pub version: u64,
    /// Random: no other writer wrote this object.
    pub nonce: Uuid,
}

impl BucketName {
    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let text = format!(
            "{NAME_LINE}\nimage {} {}\ntree {}\nmap {} {}\nversion {}\nnonce {:032x}\n",
            self.image_digest,
            self.image_len,
            self.tree_digest,
            self.map_digest,
            self.map_len,
            self.version,
            u128::from_be_bytes(self.nonce)
        );
        sealed(text).into_bytes()
    }

    /// Checks the bytes of a name.
    ///
    /// # Errors
    /// `Corrupt`; `Unsupported` where a newer Weald wrote it.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let bad = |what: &'static str| Error::corrupt("name in a bucket", 0, "S-13.1", what);
        let text = unsealed(bytes).ok_or_else(|| bad("this is not a name of a Weald store"))?;
        if text.starts_with(NAME_WORDS) && !text.starts_with(&format!("{NAME_LINE}\n")) {
            let what = "the image was published by a newer Weald: use a newer one";
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        let parsed = Self::parse_lines(text).filter(|parsed| parsed.encode() == bytes);
        parsed.ok_or_else(|| bad("its lines are not those of a name"))
    }

    fn parse_lines(text: &str) -> Option<Self> {
        let mut lines = text.strip_prefix(NAME_LINE)?.strip_prefix('\n')?.lines();
        let mut value = |word: &str| lines.next()?.strip_prefix(word)?.strip_prefix(' ');
        let (image, tree) = (value("image")?, value("tree")?);
        let (map, version, nonce) = (value("map")?, value("version")?, value("nonce")?);
        let (image_digest, image_len) = image.split_once(' ')?;
        let (map_digest, map_len) = map.split_once(' ')?;
        Some(Self {
            image_digest: Digest::from_hex(image_digest)?,
            tree_digest: Digest::from_hex(tree)?,
            image_len: image_len.parse().ok()?,
            map_digest: Digest::from_hex(map_digest)?,
            map_len: map_len.parse().ok()?,
            version: version.parse().ok()?,
            nonce: u128::from_str_radix(nonce, 16).ok()?.to_be_bytes(),
        })
    }
}

/// A pack: records with their headers, one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pack {
    /// BLAKE3-256 of its bytes.
    pub digest: Digest,
    /// Its bytes.
    pub len: u64,
}

/// The map of an image in a bucket: its parts, whose segments are packs by their index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketMap {
    /// The packs, all of them used.
    pub packs: Vec<Pack>,
    /// The parts. The number of a segment is the index of a pack.
    pub map: ImageMap,
}

impl BucketMap {
    /// Its bytes, which have no identity of a store: equal images have equal maps.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = PACKS_MAGIC.to_vec();
        put_varint(&mut bytes, self.packs.len() as u64);
        for pack in &self.packs {
            put_varint(&mut bytes, pack.len);
            bytes.extend_from_slice(&pack.digest.0);
        }
        bytes.extend(self.map.encode(Uuid::default()));
        bytes
    }

    /// Checks the bytes of a map.
    ///
    /// # Errors
    /// `Corrupt` where they are none, also if a part lies outside its pack; `Unsupported` where a
    /// newer Weald wrote them.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        const RECORD: &str = "map in a bucket";
        let bad = |what: &'static str| Error::corrupt(RECORD, 0, "S-13.2", what);
        let rest = bytes.strip_prefix(&PACKS_MAGIC);
        let rest = rest.ok_or_else(|| bad("this is not the map of an image in a bucket"))?;
        let mut cursor = Cursor::new(rest, RECORD);
        // A pack takes 33 bytes at least.
        let count = cursor.count(rest.len(), "packs")?;
        let mut packs = Vec::with_capacity(count.min(1 << 16));
        for _ in 0..count {
            packs.push(Pack {
                len: cursor.bounded(PACK_LEN_MAX, "bytes of a pack")?,
                digest: cursor.digest()?,
            });
        }
        let rest = cursor.bytes(cursor.remaining())?;
        let map = ImageMap::parse(rest, Uuid::default())?;
        let is_inside = |part: &Part| match part {
            Part::Inline(_) => true,
            Part::Block { location, .. } => {
                let pack = usize::try_from(location.segment.0).ok();
                let pack = pack.and_then(|index| packs.get(index));
                let end = location.offset.checked_add(part.len());
                pack.is_some_and(|pack| end.is_some_and(|end| end <= pack.len))
            }
        };
        if map.parts.iter().all(is_inside) {
            Ok(Self { packs, map })
        } else {
            Err(bad("a part lies outside its pack"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::container::{Codec, RecordRef, RecordType};
    use crate::store::Location;
    use crate::{BlockId, ImageNo, SegmentNo};

    fn name() -> BucketName {
        BucketName {
            image_digest: Digest([1; 32]),
            tree_digest: Digest([2; 32]),
            image_len: 300,
            map_digest: Digest([3; 32]),
            map_len: 400,
            version: 7,
            nonce: [9; 16],
        }
    }

    fn map(segment: u64, offset: u64) -> BucketMap {
        let record = RecordRef {
            record_type: RecordType::ALL[0].0,
            codec: Codec::ALL[0].0,
            offset: 0,
            stored_len: 36,
            raw_len: 36,
            digest: Digest([4; 32]),
        };
        let block = Part::Block {
            id: BlockId(0),
            location: Location {
                segment: SegmentNo(segment),
                offset,
            },
            record,
        };
        BucketMap {
            packs: vec![Pack {
                digest: Digest([5; 32]),
                len: 150,
            }],
            map: ImageMap {
                image_no: ImageNo(0),
                image_digest: Digest([1; 32]),
                tree_digest: Digest([2; 32]),
                added: 0,
                parts: vec![Part::Inline(vec![1, 2, 3]), block],
            },
        }
    }

    /// Would catch: a name that is read as another one, and damage that is not noticed.
    #[test]
    fn names_round_trip_and_damage_is_found() {
        let bytes = name().encode();
        assert!(bytes.len() as u64 <= NAME_LEN_MAX);
        assert_eq!(BucketName::parse(&bytes).unwrap(), name());
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 1;
            BucketName::parse(&bad).unwrap_err();
            BucketName::parse(&bytes[..at]).unwrap_err();
        }
        let newer = sealed("weald image 2\nx\n".to_owned());
        let error = BucketName::parse(newer.as_bytes()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }

    /// Would catch: a part outside its pack, which would be read from other bytes; a huge count.
    #[test]
    fn maps_round_trip_and_parts_lie_in_their_packs() {
        let bytes = map(0, 50).encode();
        assert_eq!(BucketMap::parse(&bytes).unwrap(), map(0, 50));
        for at in 0..bytes.len() {
            BucketMap::parse(&bytes[..at]).unwrap_err();
        }
        for outside in [map(0, 51), map(1, 0), map(0, 1 << 50)] {
            BucketMap::parse(&outside.encode()).unwrap_err();
        }
        let mut huge = PACKS_MAGIC.to_vec();
        put_varint(&mut huge, u64::MAX);
        BucketMap::parse(&huge).unwrap_err();
    }
}
