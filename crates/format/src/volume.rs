//! Rows of volumes: trees that can change, in the tables of a store.
//!
//! Every key of a volume's row begins with the number of the volume in big-endian order.

use crate::container::Codec;
use crate::cursor::{Cursor, put_varint, unzigzag, zigzag};
use crate::limits::BLOCK_LEN_MAX;
pub use crate::limits::{NAME_LEN_MAX, TARGET_LEN_MAX};
use crate::{
    BlockId, Cookie, Digest, Error, FileKind, Ino, InodeFlags, Result, VolumeCommitNo, VolumeNo,
    WindowNo,
};

/// Version of the rows of a volume whose changes are all in the tables.
pub const VOLUME_VERSION: u64 = 1;
/// Version of the row of a volume whose sync log may hold changes. The other rows are the same.
pub const VOLUME_VERSION_LOGGED: u64 = 2;
/// Version of a volume whose quotas count attributes and targets of symlinks, too.
pub const VOLUME_VERSION_COUNTED: u64 = 3;
/// The same, and the sync log may hold changes.
pub const VOLUME_VERSION_COUNTED_LOGGED: u64 = 4;
/// Versions 5 to 8 are versions 1 to 4 of a volume whose inodes may have flags.
pub const VOLUME_VERSION_MAX: u64 = 8;
/// Bits of a mode that are none of `st_mode`, but the flags of the inode.
const FLAGS_SHIFT: u32 = 16;
/// Most pieces of one window.
pub const PIECES_MAX: usize = 1 << 17;

fn bad(rule: &'static str, what: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::corrupt("volume row", 0, rule, what)
}

/// The row of a volume; its key is the name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeRow {
    /// Number that the keys of its rows begin with.
    pub volume_no: VolumeNo,
    /// The root directory.
    pub root: Ino,
    /// The number that the next new inode gets.
    pub next_ino: Ino,
    /// Key of the hash of names, random.
    pub secret: [u8; 16],
    /// Length of a window, bytes.
    pub chunk_len: u32,
    /// Codec of new blocks.
    pub codec: Codec,
    /// Level of the codec.
    pub level: i64,
    /// Whether names that differ in case only are equal.
    pub is_case_insensitive: bool,
    /// When it was created, nanoseconds since 1970.
    pub created: i128,
    /// Number of the last commit.
    pub commit: VolumeCommitNo,
    /// Digest of the chain of commits, as in the last row of the log.
    pub chain: Digest,
    /// Whether the sync log may hold changes that the tables do not have.
    pub has_sync_log: bool,
    /// Whether the bytes of quotas contain extended attributes and targets of symlinks.
    pub counts_attributes: bool,
    /// Whether an inode may have flags. Stays when the last flag is gone.
    pub has_flags: bool,
}

impl VolumeRow {
    /// The value of the row.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(96);
        let version = match (self.counts_attributes, self.has_sync_log) {
            (false, false) => VOLUME_VERSION,
            (false, true) => VOLUME_VERSION_LOGGED,
            (true, false) => VOLUME_VERSION_COUNTED,
            (true, true) => VOLUME_VERSION_COUNTED_LOGGED,
        };
        let above = if self.has_flags {
            VOLUME_VERSION_COUNTED_LOGGED
        } else {
            0
        };
        put_varint(&mut out, version.saturating_add(above));
        for number in [self.volume_no.0.into(), self.root.0, self.next_ino.0] {
            put_varint(&mut out, number);
        }
        out.extend_from_slice(&self.secret);
        put_varint(&mut out, self.chunk_len.into());
        out.push(self.codec as u8);
        put_varint(&mut out, zigzag(self.level));
        out.push(self.is_case_insensitive.into());
        put_time(&mut out, self.created);
        put_varint(&mut out, self.commit.0);
        out.extend_from_slice(&self.chain.0);
        out
    }

    /// Checks a value.
    ///
    /// # Errors
    /// `Corrupt`; `Unsupported` if a newer Weald wrote it.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let mut cursor = Cursor::new(bytes, "volume row");
        let version = cursor.varint()?;
        if !(VOLUME_VERSION..=VOLUME_VERSION_MAX).contains(&version) {
            return Err(Error::newer_version(
                "the volume",
                version,
                VOLUME_VERSION_MAX,
            ));
        }
        let has_flags = version > VOLUME_VERSION_COUNTED_LOGGED;
        let version = if has_flags {
            version.saturating_sub(VOLUME_VERSION_COUNTED_LOGGED)
        } else {
            version
        };
        let row = Self {
            volume_no: VolumeNo(cursor.bounded(u32::MAX.into(), "number of the volume")? as u32),
            root: Ino(cursor.varint()?),
            next_ino: Ino(cursor.varint()?),
            secret: array(cursor.bytes(16)?),
            chunk_len: cursor.bounded(BLOCK_LEN_MAX, "chunk length")? as u32,
            codec: Codec::from_code(cursor.byte()?).ok_or_else(|| bad("V-1.1", "unknown codec"))?,
            level: unzigzag(cursor.varint()?),
            is_case_insensitive: flag(&mut cursor)?,
            created: time(&mut cursor)?,
            commit: VolumeCommitNo(cursor.varint()?),
            chain: cursor.digest()?,
            has_sync_log: matches!(
                version,
                VOLUME_VERSION_LOGGED | VOLUME_VERSION_COUNTED_LOGGED
            ),
            counts_attributes: version >= VOLUME_VERSION_COUNTED,
            has_flags,
        };
        cursor.finish()?;
        if row.root.is_none() || row.next_ino <= row.root {
            return Err(bad(
                "V-1.2",
                "the next inode number is not above the root's",
            ));
        }
        if row.chunk_len < 4096 || !row.chunk_len.is_power_of_two() {
            return Err(bad(
                "V-1.3",
                "the chunk length is no power of two from 4096 on",
            ));
        }
        Ok(row)
    }
}

/// Whether a directory can have an entry of this name: `.` and `..` are in every listing already.
pub fn is_entry_name(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..") && !name.iter().any(|byte| matches!(byte, 0 | b'/'))
}

/// `name` as names of a volume are compared.
pub fn fold_case(name: &[u8], is_case_insensitive: bool) -> std::borrow::Cow<'_, [u8]> {
    match std::str::from_utf8(name) {
        Ok(text) if is_case_insensitive => text.to_lowercase().into_bytes().into(),
        _ => name.into(),
    }
}

/// The first cookie of names with the hash of `name`, in a volume with this secret.
pub fn first_cookie(secret: &[u8; 16], name: &[u8], is_case_insensitive: bool) -> Cookie {
    let key: [u8; 32] = array(&[*secret, *secret].concat());
    let digest = blake3::keyed_hash(&key, &fold_case(name, is_case_insensitive));
    let [a, b, c, d, e, f, g, ..] = *digest.as_bytes();
    Cookie::of_hash(u64::from_be_bytes([0, a, b, c, d, e, f, g]).max(1))
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.try_into().unwrap_or([0; N])
}

fn flag(cursor: &mut Cursor<'_>) -> Result<bool> {
    match cursor.byte()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(bad("V-1.4", "a flag is neither 0 nor 1")),
    }
}

pub(crate) fn put_time(out: &mut Vec<u8>, time: i128) {
    let seconds = time.div_euclid(1_000_000_000);
    let seconds = i64::try_from(seconds).unwrap_or(if seconds < 0 { i64::MIN } else { i64::MAX });
    put_varint(out, zigzag(seconds));
    put_varint(out, time.rem_euclid(1_000_000_000) as u64);
}

pub(crate) fn time(cursor: &mut Cursor<'_>) -> Result<i128> {
    let seconds = i128::from(unzigzag(cursor.varint()?));
    let nanoseconds = i128::from(cursor.bounded(999_999_999, "nanoseconds")?);
    Ok(seconds
        .saturating_mul(1_000_000_000)
        .saturating_add(nanoseconds))
}

/// The row of an inode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InodeRow {
    /// Kind of file.
    pub kind: FileKind,
    /// The low twelve bits of the mode.
    pub permissions: u16,
    /// What chattr(1) has set.
    pub flags: InodeFlags,
    /// User id of the owner.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Number of names; a directory counts itself and its subdirectories too.
    pub nlink: u32,
    /// Device number of a device node, else 0.
    pub rdev: u32,
    /// Length, bytes.
    pub size: u64,
    /// Bytes that are no hole.
    pub allocated: u64,
    /// Last access, nanoseconds since 1970, as the other times.
    pub atime: i128,
    /// Last change of the content.
    pub mtime: i128,
    /// Last change of content or attributes.
    pub ctime: i128,
    /// Creation.
    pub btime: i128,
    /// The directory that contains it, for directories, else [`Ino::NONE`].
    pub parent: Ino,
    /// The directory whose quota it counts for, or [`Ino::NONE`].
    pub quota: Ino,
    /// Number of extended attributes.
    pub xattr_count: u32,
    /// Target of a symlink, else empty.
    pub target: Vec<u8>,
}

impl InodeRow {
    /// The value of the row.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64usize.saturating_add(self.target.len()));
        let mode = self.kind.mode_bits() | u32::from(self.permissions);
        let flags = u64::from(self.flags.bits()).wrapping_shl(FLAGS_SHIFT);
        put_varint(&mut out, u64::from(mode) | flags);
        for number in [self.uid, self.gid, self.nlink, self.rdev] {
            put_varint(&mut out, number.into());
        }
        put_varint(&mut out, self.size);
        put_varint(&mut out, self.allocated);
        for at in [self.atime, self.mtime, self.ctime, self.btime] {
            put_time(&mut out, at);
        }
        put_varint(&mut out, self.parent.0);
        put_varint(&mut out, self.quota.0);
        put_varint(&mut out, self.xattr_count.into());
        put_varint(&mut out, self.target.len() as u64);
        out.extend_from_slice(&self.target);
        out
    }

    /// Checks a value.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let mut cursor = Cursor::new(bytes, "inode row");
        let flags_max = u64::from(InodeFlags::ALL.bits()).wrapping_shl(FLAGS_SHIFT);
        let mode = cursor.bounded(flags_max | 0o177_777, "mode")? as u32;
        let small = |cursor: &mut Cursor<'_>, name| {
            Ok::<u32, Error>(cursor.bounded(u32::MAX.into(), name)? as u32)
        };
        let row = Self {
            kind: FileKind::from_mode(mode).ok_or_else(|| bad("V-2.1", "unknown kind of file"))?,
            permissions: (mode & 0o7777) as u16,
            flags: InodeFlags::from_bits(mode.wrapping_shr(FLAGS_SHIFT) as u8),
            uid: small(&mut cursor, "uid")?,
            gid: small(&mut cursor, "gid")?,
            nlink: small(&mut cursor, "nlink")?,
            rdev: small(&mut cursor, "device number")?,
            size: cursor.bounded(i64::MAX as u64, "size")?,
            allocated: cursor.varint()?,
            atime: time(&mut cursor)?,
            mtime: time(&mut cursor)?,
            ctime: time(&mut cursor)?,
            btime: time(&mut cursor)?,
            parent: Ino(cursor.varint()?),
            quota: Ino(cursor.varint()?),
            xattr_count: small(&mut cursor, "number of attributes")?,
            target: {
                let len = cursor.count(TARGET_LEN_MAX, "target")?;
                cursor.bytes(len)?.to_vec()
            },
        };
        cursor.finish()?;
        let is_symlink = row.kind == FileKind::Symlink;
        if is_symlink ^ row.target.is_empty() {
            Ok(row)
        } else {
            Err(bad(
                "V-2.2",
                "a symlink without a target, or a target without one",
            ))
        }
    }
}

/// The row of a name in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameRow {
    /// The name.
    pub name: Vec<u8>,
    /// The inode.
    pub ino: Ino,
    /// Kind of the inode.
    pub kind: FileKind,
}

impl NameRow {
    /// The value of the row.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(12usize.saturating_add(self.name.len()));
        put_varint(&mut out, self.ino.0);
        put_varint(&mut out, (self.kind.mode_bits() >> 12).into());
        put_varint(&mut out, self.name.len() as u64);
        out.extend_from_slice(&self.name);
        out
    }

    /// Checks a value.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let mut cursor = Cursor::new(bytes, "name row");
        let ino = Ino(cursor.varint()?);
        let kind = cursor.bounded(0o17, "kind")? as u32;
        let kind = kind.checked_shl(12).and_then(FileKind::from_mode);
        let kind = kind.ok_or_else(|| bad("V-3.1", "unknown kind of file"))?;
        let len = cursor.count(NAME_LEN_MAX, "name")?;
        let name = cursor.bytes(len)?.to_vec();
        cursor.finish()?;
        if name.is_empty() || name.iter().any(|b| matches!(b, 0 | b'/')) || ino.is_none() {
            return Err(bad(
                "V-3.2",
                "an empty name, a name with a slash, or inode 0",
            ));
        }
        Ok(Self { name, ino, kind })
    }
}

/// A piece of a window: bytes of a file that lie in a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// First byte, from the start of the window.
    pub start: u32,
    /// Length, bytes.
    pub len: u32,
    /// The block.
    pub block: BlockId,
    /// First byte in the decoded block.
    pub offset: u32,
}

impl Piece {
    /// The byte after the last one, from the start of the window.
    pub fn end(&self) -> u32 {
        self.start.saturating_add(self.len)
    }
}

/// The pieces of one window of a file, in order; holes lie between them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExtentsRow(pub Vec<Piece>);

impl ExtentsRow {
    /// The value of the row.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.0.len().saturating_mul(12));
        let (mut end, mut block) = (0u32, BlockId::default());
        for piece in &self.0 {
            put_varint(&mut out, piece.start.wrapping_sub(end).into());
            put_varint(&mut out, piece.len.into());
            put_varint(&mut out, zigzag(piece.block.steps_from(block)));
            put_varint(&mut out, piece.offset.into());
            (end, block) = (piece.end(), piece.block);
        }
        out
    }

    /// Checks a value for a window of `window_len` bytes.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn parse(bytes: &[u8], window_len: u32) -> Result<Self> {
        let mut cursor = Cursor::new(bytes, "extents row");
        let mut pieces = Vec::new();
        let (mut end, mut block) = (0u32, BlockId::default());
        while cursor.remaining() > 0 {
            let gap = cursor.bounded(window_len.into(), "gap")? as u32;
            let start = end.saturating_add(gap);
            let len = cursor.bounded(window_len.into(), "length of a piece")? as u32;
            block = block.moved(unzigzag(cursor.varint()?));
            let offset = cursor.bounded(BLOCK_LEN_MAX, "offset in a block")? as u32;
            let piece = Piece {
                start,
                len,
                block,
                offset,
            };
            end = piece.end();
            if len == 0 || end > window_len || pieces.len() >= PIECES_MAX {
                return Err(bad("V-4.1", "a piece is empty or ends behind its window"));
            }
            pieces.push(piece);
        }
        if pieces.is_empty() {
            Err(bad("V-4.2", "a window without a piece has no row"))
        } else {
            Ok(Self(pieces))
        }
    }
}

/// The quota of a directory: the account of everything below it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QuotaRow {
    /// The directory with a quota that this one lies in, or [`Ino::NONE`].
    pub parent: Ino,
    /// Most bytes below the directory; 0 for no limit.
    pub len_max: u64,
    /// Most inodes below the directory; 0 for no limit.
    pub count_max: u64,
    /// Allocated bytes of all inodes below the directory, and those of their attributes and
    /// targets ([`VolumeRow::counts_attributes`]).
    pub len: u64,
    /// Number of these inodes.
    pub count: u64,
}

impl QuotaRow {
    /// The value of the row.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(32);
        for number in [
            self.parent.0,
            self.len_max,
            self.count_max,
            self.len,
            self.count,
        ] {
            put_varint(&mut out, number);
        }
        out
    }

    /// Checks a value.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let mut cursor = Cursor::new(bytes, "quota row");
        let row = Self {
            parent: Ino(cursor.varint()?),
            len_max: cursor.varint()?,
            count_max: cursor.varint()?,
            len: cursor.varint()?,
            count: cursor.varint()?,
        };
        cursor.finish()?;
        Ok(row)
    }
}

/// A row of the log of commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogRow {
    /// Digest of the row before and of all changes of the commit.
    pub chain: Digest,
    /// When the commit began, nanoseconds since 1970.
    pub time: i128,
}

impl LogRow {
    /// The value of the row.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = self.chain.0.to_vec();
        put_time(&mut out, self.time);
        out
    }

    /// Checks a value.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let mut cursor = Cursor::new(bytes, "log row");
        let row = Self {
            chain: cursor.digest()?,
            time: time(&mut cursor)?,
        };
        cursor.finish()?;
        Ok(row)
    }
}

/// Bytes that an extended attribute counts for a quota. Those that say how the volume stores a file
/// count none: their values are short, and new files take them from their directory.
pub fn counted_xattr_len(name: &[u8], value: &[u8]) -> u64 {
    let is_property = [&b"user.weald."[..], b"trusted.weald."];
    if is_property.iter().any(|prefix| name.starts_with(prefix)) {
        0
    } else {
        (name.len() as u64).saturating_add(value.len() as u64)
    }
}

/// Key of an inode, of an orphan and of a quota; first bytes of all keys of what an inode has.
pub fn inode_key(volume_no: VolumeNo, ino: Ino) -> Vec<u8> {
    number_key(volume_no, ino.0)
}

/// Key of a commit in the log.
pub fn commit_key(volume_no: VolumeNo, commit: VolumeCommitNo) -> Vec<u8> {
    number_key(volume_no, commit.0)
}

fn number_key(volume_no: VolumeNo, number: u64) -> Vec<u8> {
    let mut key = Vec::with_capacity(20);
    key.extend_from_slice(&volume_no.to_be_bytes());
    key.extend_from_slice(&number.to_be_bytes());
    key
}

fn pair_key(volume_no: VolumeNo, ino: Ino, second: u64) -> Vec<u8> {
    let mut key = inode_key(volume_no, ino);
    key.extend_from_slice(&second.to_be_bytes());
    key
}

/// Where a name of a volume lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamePlace {
    /// The directory.
    pub dir: Ino,
    /// The position in it.
    pub cookie: Cookie,
}

impl NamePlace {
    /// Key of the row of the name.
    pub fn key(self, volume_no: VolumeNo) -> Vec<u8> {
        pair_key(volume_no, self.dir, self.cookie.0)
    }

    /// Splits the key of a name: its volume, its place there.
    ///
    /// # Errors
    /// `Corrupt` if the key does not have 20 bytes.
    pub fn split_key(key: &[u8]) -> Result<(VolumeNo, Self)> {
        let (volume_no, dir, cookie) = split_pair_key(key)?;
        let cookie = Cookie(cookie);
        Ok((volume_no, Self { dir, cookie }))
    }
}

/// A window of a file of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WindowPlace {
    /// The file.
    pub ino: Ino,
    /// The window of it.
    pub window: WindowNo,
}

impl WindowPlace {
    /// In front of all windows of a volume.
    pub const START: Self = Self {
        ino: Ino::NONE,
        window: WindowNo::FIRST,
    };

    /// Key of the extents of the window.
    pub fn key(self, volume_no: VolumeNo) -> Vec<u8> {
        pair_key(volume_no, self.ino, self.window.0)
    }

    /// Splits the key of extents: the volume, the window there.
    ///
    /// # Errors
    /// `Corrupt` if the key does not have 20 bytes.
    pub fn split_key(key: &[u8]) -> Result<(VolumeNo, Self)> {
        let (volume_no, ino, window) = split_pair_key(key)?;
        let window = WindowNo(window);
        Ok((volume_no, Self { ino, window }))
    }
}

/// Key of an extended attribute.
pub fn xattr_key(volume_no: VolumeNo, ino: Ino, name: &[u8]) -> Vec<u8> {
    let mut key = inode_key(volume_no, ino);
    key.extend_from_slice(name);
    key
}

/// Splits a key into the volume, the inode behind it, and the rest. In keys of the log, the number
/// of a commit is there: [`split_commit_key`].
///
/// # Errors
/// `Corrupt` if the key is too short.
pub fn split_key(key: &[u8]) -> Result<(VolumeNo, Ino, &[u8])> {
    let (volume_no, number, rest) = split_number_key(key)?;
    Ok((volume_no, Ino(number), rest))
}

/// Splits the key of a commit in the log: volume, commit.
///
/// # Errors
/// `Corrupt` if the key is too short.
pub fn split_commit_key(key: &[u8]) -> Result<(VolumeNo, VolumeCommitNo)> {
    let (volume_no, commit, _) = split_number_key(key)?;
    Ok((volume_no, VolumeCommitNo(commit)))
}

fn split_number_key(key: &[u8]) -> Result<(VolumeNo, u64, &[u8])> {
    let short = || bad("V-5.1", "a key is too short");
    let (volume_no, rest) = key.split_first_chunk().ok_or_else(short)?;
    let (number, rest) = rest.split_first_chunk().ok_or_else(short)?;
    Ok((
        VolumeNo(u32::from_be_bytes(*volume_no)),
        u64::from_be_bytes(*number),
        rest,
    ))
}

fn split_pair_key(key: &[u8]) -> Result<(VolumeNo, Ino, u64)> {
    let (volume_no, ino, rest) = split_key(key)?;
    let second = rest.try_into().map(u64::from_be_bytes);
    let second = second.map_err(|_| bad("V-5.1", "a key does not have 20 bytes"))?;
    Ok((volume_no, ino, second))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inode() -> InodeRow {
        InodeRow {
            kind: FileKind::Symlink,
            permissions: 0o7777,
            flags: InodeFlags::NONE,
            uid: u32::MAX,
            gid: 1000,
            nlink: 3,
            rdev: 0,
            size: 5,
            allocated: 0,
            atime: -1,
            mtime: 1_700_000_000_123_456_789,
            ctime: i128::from(i64::MIN) * 1_000_000_000,
            btime: 0,
            parent: Ino(7),
            quota: Ino::NONE,
            xattr_count: 2,
            target: b"a/b/c".to_vec(),
        }
    }

    // Would catch: a field that is written in another order than it is read.
    #[test]
    fn rows_come_back_and_every_shorter_value_is_refused() {
        let volume = VolumeRow {
            volume_no: VolumeNo(9),
            root: Ino(1),
            next_ino: Ino(2),
            secret: [7; 16],
            chunk_len: 131_072,
            codec: Codec::Lz4,
            level: -1,
            is_case_insensitive: true,
            created: -5,
            commit: VolumeCommitNo(12),
            chain: Digest::of(b"x"),
            has_sync_log: true,
            counts_attributes: false,
            has_flags: false,
        };
        // The three facts in the version, and what programs without flags refuse.
        for bits in 0..8_u8 {
            let other = VolumeRow {
                has_sync_log: bits & 1 != 0,
                counts_attributes: bits & 2 != 0,
                has_flags: bits & 4 != 0,
                ..volume.clone()
            };
            let bytes = other.encode();
            assert_eq!(bytes[0], bits + 1);
            assert_eq!(VolumeRow::parse(&bytes).unwrap(), other);
        }
        let mut newer = volume.encode();
        newer[0] = VOLUME_VERSION_MAX as u8 + 1;
        let newer = VolumeRow::parse(&newer).unwrap_err();
        assert_eq!(newer.kind(), crate::ErrorKind::Unsupported);
        let bytes = volume.encode();
        assert_eq!(VolumeRow::parse(&bytes).unwrap(), volume);
        let cut = |bytes: &[u8]| (0..bytes.len()).collect::<Vec<_>>();
        for len in cut(&bytes) {
            assert!(VolumeRow::parse(&bytes[..len]).is_err(), "{len}");
        }
        let bytes = inode().encode();
        assert_eq!(InodeRow::parse(&bytes).unwrap(), inode());
        for len in cut(&bytes) {
            assert!(InodeRow::parse(&bytes[..len]).is_err(), "{len}");
        }
        // Rows without flags are as they were, and no bit of a mode is a flag.
        for bits in 0..=InodeFlags::ALL.bits() {
            let row = InodeRow {
                flags: InodeFlags::from_bits(bits),
                ..inode()
            };
            assert_eq!(InodeRow::parse(&row.encode()).unwrap(), row);
        }
        let mut beyond = Vec::new();
        put_varint(&mut beyond, 1 << 20 | 0o100_644);
        beyond.extend_from_slice(&bytes[3..]);
        assert!(InodeRow::parse(&beyond).is_err());
        let name = NameRow {
            name: b"n\xff".to_vec(),
            ino: Ino(300),
            kind: FileKind::Socket,
        };
        assert_eq!(NameRow::parse(&name.encode()).unwrap(), name);
        let log = LogRow {
            chain: Digest::of(b"y"),
            time: 12,
        };
        assert_eq!(LogRow::parse(&log.encode()).unwrap(), log);
    }

    #[test]
    fn pieces_lie_in_their_window_in_order() {
        let piece = |start, len, block, offset| Piece {
            start,
            len,
            block,
            offset,
        };
        let row = ExtentsRow(vec![
            piece(0, 10, BlockId(900), 5),
            piece(10, 5, BlockId(3), 0),
            piece(4000, 96, BlockId(4), 9),
        ]);
        assert_eq!(ExtentsRow::parse(&row.encode(), 4096).unwrap(), row);
        assert!(ExtentsRow::parse(&row.encode(), 4095).is_err());
        assert!(ExtentsRow::parse(&[], 4096).is_err());
    }

    #[test]
    fn keys_sort_by_number_and_come_apart() {
        let name = |dir, cookie| NamePlace {
            dir: Ino(dir),
            cookie: Cookie(cookie),
        };
        let volume_no = VolumeNo(1);
        assert!(name(2, 300).key(volume_no) > name(2, 255).key(volume_no));
        assert!(inode_key(VolumeNo(2), Ino::NONE) > name(u64::MAX, u64::MAX).key(volume_no));
        let key = name(2, 3).key(volume_no);
        assert_eq!(
            key,
            [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3]
        );
        assert_eq!(NamePlace::split_key(&key).unwrap(), (volume_no, name(2, 3)));
        let window = WindowPlace {
            ino: Ino(2),
            window: WindowNo(3),
        };
        assert_eq!(window.key(volume_no), key);
        assert_eq!(WindowPlace::split_key(&key).unwrap(), (volume_no, window));
        let key = xattr_key(VolumeNo(1), Ino(2), b"user.a");
        assert_eq!(
            split_key(&key).unwrap(),
            (VolumeNo(1), Ino(2), &b"user.a"[..])
        );
        assert!(NamePlace::split_key(&key[..11]).is_err());
        assert!(WindowPlace::split_key(&key[..11]).is_err());
    }
}
