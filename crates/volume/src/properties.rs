//! Properties of files and directories: extended attributes that say how new data is stored. A new
//! file or directory takes those of its directory.

use crate::core::Core;
use crate::layer::Layer;
use crate::options::{CHUNK_LEN_MIN, Chunking};
use crate::retention::SnapshotPolicy;
use crate::state::State;
use rustix::io::Errno;
use weald_codec::CodecSpec;
use weald_format::volume::InodeRow;
use weald_format::{FileKind, Ino, Result};
use weald_store::tier::{HOME, check_tier_name};
use weald_vfs::{Outcome, parse_size};

/// Beginning of the names of properties of files.
const FILE_PREFIX: &[u8] = b"user.weald.";
/// Beginning of the names of limits of directories. The kernel lets only root change such
/// attributes, so that owners of directories cannot lift their limits.
const LIMIT_PREFIX: &[u8] = b"trusted.weald.";
/// Codec of new data: `none`, `lz4`, `zstd` or `zstd:N`.
pub const COMPRESS: &[u8] = b"user.weald.compress";
/// Length of the pieces that new data is cut into, at most the chunk length of the volume.
pub const CHUNK: &[u8] = b"user.weald.chunk";
/// Whether repeats of new data are looked for: `on` or `off`.
pub const DEDUP: &[u8] = b"user.weald.dedup";
/// Where new data is cut: `auto`, `fixed` or `content`. The value of the root directory holds for
/// all files that have none.
pub const CHUNKING: &[u8] = b"user.weald.chunking";
/// Tier on which the data of a file belongs, `home` included: it goes there, and stays.
pub const TIER: &[u8] = b"user.weald.tier";
/// Snapshots that the server takes by itself, of the root directory alone: see
/// [`SnapshotPolicy::parse`].
pub const SNAPSHOTS: &[u8] = b"user.weald.snapshots";
/// Most bytes below a directory.
pub const QUOTA: &[u8] = b"trusted.weald.quota";
/// Most inodes below a directory.
pub const QUOTA_COUNT: &[u8] = b"trusted.weald.quota.count";
/// The quota, for users to read. No call sets it, and listings have neither it nor the next three.
pub const QUOTA_SHOWN: &[u8] = b"user.weald.quota";
/// The other quota, for users.
pub const QUOTA_COUNT_SHOWN: &[u8] = b"user.weald.quota.count";
/// Bytes below a directory with a quota.
pub const USED: &[u8] = b"user.weald.used";
/// Inodes below a directory with a quota.
pub const USED_COUNT: &[u8] = b"user.weald.used.count";

/// The properties that a new inode takes from its directory.
pub(crate) const INHERITED: [&[u8]; 5] = [COMPRESS, CHUNK, DEDUP, CHUNKING, TIER];
/// Those of them that say how data is stored.
const OF_RULES: [&[u8]; 4] = [COMPRESS, CHUNK, DEDUP, CHUNKING];
/// The root directory, whose chunking needs no copies.
const ROOT: Ino = Ino::ROOT;

/// How the data of a file is stored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rules {
    /// Codec; `None` for that of the volume.
    pub codec: Option<CodecSpec>,
    /// Length of the pieces that data is cut into, bytes.
    pub chunk_len: u32,
    /// Whether repeats are looked for.
    pub finds_repeats: bool,
    /// Where data that was written in order is cut.
    pub chunking: Chunking,
}

/// Whether an attribute is a property.
pub fn is_property(name: &[u8]) -> bool {
    name.starts_with(FILE_PREFIX) || name.starts_with(LIMIT_PREFIX)
}

/// Parses a codec.
pub fn parse_codec(text: &str) -> Option<CodecSpec> {
    match text.split_once(':') {
        None => match text {
            "none" => Some(CodecSpec::None),
            "lz4" => Some(CodecSpec::Lz4),
            "zstd" => Some(CodecSpec::Zstd(3)),
            _ => None,
        },
        Some(("zstd", level)) => {
            let level = level.parse().ok().filter(|level| (1..=22).contains(level));
            level.map(CodecSpec::Zstd)
        }
        Some(_) => None,
    }
}

/// Parses a length that a file may have.
fn parse_len(text: &str) -> Option<u64> {
    parse_size(text).filter(|len| *len <= i64::MAX as u64)
}

fn parse_chunk(text: &str, len_max: u32) -> Option<u32> {
    let len = parse_len(text).filter(|len| len.is_power_of_two())?;
    let is_possible = (CHUNK_LEN_MIN.into()..=u64::from(len_max)).contains(&len);
    is_possible.then_some(len as u32)
}

/// The number of a quota.
pub fn parse_quota(value: &[u8]) -> Option<u64> {
    parse_len(std::str::from_utf8(value).ok()?).filter(|number| *number > 0)
}

impl Core {
    /// The value that is kept for the attribute `name` of `ino`: that of a property in its usual
    /// form, any other as it is.
    ///
    /// # Errors
    /// EINVAL for a property that does not exist, or for a value that it cannot have; EPERM for one
    /// that no call sets.
    pub fn property_value(
        &self,
        state: &State,
        ino: Ino,
        name: &[u8],
        value: &[u8],
    ) -> Outcome<Vec<u8>> {
        if !is_property(name) {
            return Ok(value.to_vec());
        }
        let text = std::str::from_utf8(value).map_err(|_| Errno::INVAL)?;
        let usual = match name {
            COMPRESS => parse_codec(text).map(|_| text.to_owned()),
            CHUNK => parse_chunk(text, self.tables.chunk_len()).map(|len| len.to_string()),
            CHUNKING => Chunking::parse(text).map(|_| text.to_owned()),
            SNAPSHOTS if ino == ROOT => SnapshotPolicy::parse(text).map(|_| text.to_owned()),
            // There may be such a tier later.
            TIER => (text == HOME || check_tier_name(text).is_ok()).then(|| text.to_owned()),
            DEDUP => matches!(text, "on" | "off").then(|| text.to_owned()),
            QUOTA | QUOTA_COUNT => {
                if self.inode(state, ino)?.kind != FileKind::Directory {
                    return Err(Errno::INVAL.into());
                }
                parse_quota(value).map(|number| number.to_string())
            }
            QUOTA_SHOWN | QUOTA_COUNT_SHOWN | USED | USED_COUNT => return Err(Errno::PERM.into()),
            _ => None,
        };
        let usual = usual.ok_or(Errno::INVAL)?;
        Ok(usual.into_bytes())
    }

    /// The properties that a new inode in `dir` takes, those of `own` attributes left out.
    ///
    /// # Errors
    /// Errors of storage.
    pub fn inherited(
        &self,
        state: &State,
        dir: Ino,
        own: &[(&[u8], &[u8])],
    ) -> Outcome<Vec<(&'static [u8], Vec<u8>)>> {
        let mut inherited = Vec::new();
        if self.inode(state, dir)?.xattr_count == 0 {
            return Ok(inherited);
        }
        for name in INHERITED {
            let is_everywhere = dir == ROOT && name == CHUNKING;
            if !is_everywhere
                && !own.iter().any(|(own, _)| *own == name)
                && let Some(value) = self.find_xattr(state, dir, name)?
            {
                inherited.push((name, value));
            }
        }
        Ok(inherited)
    }

    /// Where files that say nothing themselves are cut.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn usual_chunking(&self, layer: &Layer) -> Result<Chunking> {
        let root = self.rules(layer, ROOT, Chunking::default())?;
        Ok(root.chunking)
    }

    /// How the data of `ino` in `layer`, which is being committed, is stored. `usual` holds if it
    /// does not say where it is cut.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn rules(&self, layer: &Layer, ino: Ino, usual: Chunking) -> Result<Rules> {
        let mut rules = Rules {
            codec: None,
            chunk_len: self.tables.chunk_len(),
            finds_repeats: true,
            chunking: usual,
        };
        let row = match layer.inodes.get(&ino) {
            Some(row) => row.clone(),
            None => self.tables.inode(ino)?,
        };
        if row.is_none_or(|row: std::sync::Arc<InodeRow>| row.xattr_count == 0) {
            return Ok(rules);
        }
        for name in OF_RULES {
            let value = match layer.xattrs.get(&(ino, name.to_vec())) {
                Some(value) => value.clone(),
                None => self.tables.xattr(ino, name)?,
            };
            let text = value.and_then(|value| String::from_utf8(value.to_vec()).ok());
            let Some(text) = text else { continue };
            match name {
                COMPRESS => rules.codec = parse_codec(&text),
                CHUNK => {
                    let len = parse_chunk(&text, self.tables.chunk_len());
                    rules.chunk_len = len.unwrap_or(rules.chunk_len);
                }
                CHUNKING => rules.chunking = Chunking::parse(&text).unwrap_or(usual),
                _ => rules.finds_repeats = text != "off",
            }
        }
        Ok(rules)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Would catch: a chunk that no file can have, and a quota that is no number.
    #[test]
    fn values_have_limits() {
        assert_eq!(parse_chunk("16K", 1 << 17), Some(16 << 10));
        assert_eq!(parse_chunk("131072", 1 << 17), Some(1 << 17));
        for text in [
            "3", "0", "2K", "96K", "256K", "", "K", "-4K", "+4K", "4 K", "4X",
        ] {
            assert_eq!(parse_chunk(text, 1 << 17), None, "{text}");
        }
        assert_eq!(parse_quota(b"10G"), Some(10 << 30));
        for text in ["", "0", "none", "9999999T", "\u{ff}"] {
            assert_eq!(parse_quota(text.as_bytes()), None, "{text}");
        }
        assert_eq!(parse_codec("zstd:22"), Some(CodecSpec::Zstd(22)));
        for text in ["zstd:0", "zstd:23", "zstd:", "lz4:1", "gzip", ""] {
            assert_eq!(parse_codec(text), None, "{text}");
        }
    }
}
