//! Creates, lists and removes volumes.

use crate::open_store::OpenStore;
use crate::options::{CHUNK_LEN_MAX, CHUNK_LEN_MIN, Chunking, VolumeOptions};
use crate::properties::CHUNKING;
use weald_codec::CodecSpec;
use weald_format::container::Codec;
use weald_format::volume::{InodeRow, VolumeRow, inode_key, xattr_key};
use weald_format::{
    Digest, Error, ErrorKind, FileKind, Ino, InodeFlags, Result, VolumeCommitNo, VolumeNo,
};
use weald_store::engine::{Batch, Table};
use weald_store::{Store, WriteOptions, snapshot, snapshots};

/// Figures about a volume that is not open.
#[derive(Debug, Clone)]
pub struct VolumeInfo {
    /// Its name.
    pub name: String,
    /// When it was created, nanoseconds since 1970.
    pub created: i128,
    /// Length of the blocks that files are cut into.
    pub chunk_len: u32,
    /// Codec of new blocks.
    pub codec: CodecSpec,
    /// Whether names that differ in case only are equal.
    pub is_case_insensitive: bool,
    /// Number of commits so far.
    pub commits: u64,
}

impl VolumeInfo {
    /// The figures in the row of the volume `name`.
    ///
    /// # Errors
    /// `Unsupported` for a codec that volumes do not write.
    pub(crate) fn of(name: String, row: &VolumeRow) -> Result<Self> {
        Ok(Self {
            name,
            created: row.created,
            chunk_len: row.chunk_len,
            codec: codec_spec(row)?,
            is_case_insensitive: row.is_case_insensitive,
            commits: row.commit.0,
        })
    }
}

impl OpenStore {
    /// Whether `name` has the form `VOLUME@NAME` and no volume has it.
    pub fn names_snapshot(&self, name: &str) -> bool {
        let is_missing = || {
            let row = self.writing.lock().writer.volume_row(name);
            row.is_err_and(|error| error.kind() == ErrorKind::NotFound)
        };
        name.contains('@') && is_missing()
    }

    /// Figures about the volume `name`, or about that of a snapshot `VOLUME@NAME`.
    ///
    /// # Errors
    /// `NotFound`; `Unsupported` for a volume of a newer Weald; `Io`, `Corrupt`.
    pub fn info(&self, name: &str) -> Result<VolumeInfo> {
        let writing = self.writing.lock();
        let row = match (
            writing.writer.volume_row(name),
            weald_store::split_state(name),
        ) {
            (Err(error), Some((volume, of))) if error.kind() == ErrorKind::NotFound => {
                let volume_no = writing.writer.volume_row(volume)?.volume_no;
                snapshot(self.reader.engine(), volume_no, of)?.volume
            }
            (row, _) => row?,
        };
        VolumeInfo::of(name.to_owned(), &row)
    }
}

fn writer(store: &Store) -> Result<weald_store::StoreWriter> {
    let writer_name = format!("process {}", std::process::id());
    store.write(WriteOptions::new(writer_name))
}

fn codec_row(spec: CodecSpec) -> Result<(Codec, i64)> {
    match spec {
        CodecSpec::None => Ok((Codec::None, 0)),
        CodecSpec::Lz4 => Ok((Codec::Lz4, 0)),
        CodecSpec::Lz4Hc(level) => Ok((Codec::Lz4, level.into())),
        CodecSpec::Zstd(level) => Ok((Codec::Zstd, level.into())),
        _ => Err(Error::invalid(
            "codec of a volume: expected none, lz4 or zstd",
        )),
    }
}

/// The codec that a volume's row names.
///
/// # Errors
/// `Unsupported` for a codec that volumes do not write.
pub fn codec_spec(row: &VolumeRow) -> Result<CodecSpec> {
    let level = i32::try_from(row.level).unwrap_or(0);
    match row.codec {
        Codec::None => Ok(CodecSpec::None),
        Codec::Lz4 if level == 0 => Ok(CodecSpec::Lz4),
        Codec::Lz4 => Ok(CodecSpec::Lz4Hc(level.clamp(1, 12))),
        Codec::Zstd => Ok(CodecSpec::Zstd(level.clamp(1, 22))),
        other => {
            let what = format!("a volume with codec {}: use a newer Weald", other.name());
            Err(Error::new(ErrorKind::Unsupported, what))
        }
    }
}

/// Creates an empty volume. `secret` must be random, `now` is the time in nanoseconds since 1970.
///
/// # Errors
/// `Busy` if the store has an image or a volume of this name, or is being written; `Invalid` for
/// impossible options; `Io`, `Full`.
pub fn create(
    store: &Store,
    name: &str,
    options: &VolumeOptions,
    secret: [u8; 16],
    now: i128,
) -> Result<()> {
    let (row, root) = first_rows(options, secret, now)?;
    let mut writer = writer(store)?;
    writer.create_volume(name, row, &|volume_no| {
        root_batch(volume_no, &root, options.chunking)
    })?;
    writer.renew_reserve();
    Ok(())
}

/// The rows of a new volume and of its root directory.
///
/// # Errors
/// `Invalid`, `Unsupported`: the options.
pub fn first_rows(
    options: &VolumeOptions,
    secret: [u8; 16],
    now: i128,
) -> Result<(VolumeRow, InodeRow)> {
    let is_possible = (CHUNK_LEN_MIN..=CHUNK_LEN_MAX).contains(&options.chunk_len);
    if !is_possible || !options.chunk_len.is_power_of_two() {
        return Err(Error::invalid(format!(
            "chunks of {} bytes: expected a power of two from 4K to 16M",
            options.chunk_len
        )));
    }
    let (codec, level) = codec_row(options.codec)?;
    let row = VolumeRow {
        volume_no: VolumeNo(0),
        root: Ino::ROOT,
        next_ino: Ino::ROOT.next(),
        secret,
        chunk_len: options.chunk_len,
        codec,
        level,
        is_case_insensitive: options.is_case_insensitive,
        created: now,
        commit: VolumeCommitNo::NONE,
        chain: Digest::default(),
        has_sync_log: false,
        counts_attributes: false,
        has_flags: false,
    };
    let root = InodeRow {
        kind: FileKind::Directory,
        permissions: options.permissions & 0o7777,
        flags: InodeFlags::NONE,
        uid: options.uid,
        gid: options.gid,
        nlink: 2,
        rdev: 0,
        size: 0,
        allocated: 0,
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
        parent: Ino::ROOT,
        quota: Ino::NONE,
        xattr_count: (options.chunking != Chunking::Auto).into(),
        target: Vec::new(),
    };
    Ok((row, root))
}

/// The rows that a new volume begins with, its own aside.
pub fn root_batch(volume_no: VolumeNo, root: &InodeRow, chunking: Chunking) -> Batch {
    let mut batch = Batch::default();
    batch.put(
        Table::Inodes,
        &inode_key(volume_no, Ino::ROOT),
        root.encode(),
    );
    if chunking != Chunking::Auto {
        let key = xattr_key(volume_no, Ino::ROOT, CHUNKING);
        batch.put(Table::Xattrs, &key, chunking.word().into());
    }
    batch
}

/// The volumes of a store, sorted by name.
///
/// # Errors
/// `Busy` while a volume of the store is open; [`Store::volume_names`] needs no lock.
pub fn list(store: &Store) -> Result<Vec<VolumeInfo>> {
    let rows = writer(&store.for_reading())?.volume_rows()?;
    let info = |(name, row): (String, VolumeRow)| VolumeInfo::of(name, &row);
    rows.into_iter().map(info).collect()
}

/// Removes a volume and frees the space that only it used; with its snapshots if
/// `takes_snapshots`.
///
/// # Errors
/// `NotFound`, `Io`, `Full`; `Busy` if the store is being written, or if the volume has snapshots
/// that are to stay, that are held, or that are being read.
pub fn remove(store: &Store, name: &str, takes_snapshots: bool) -> Result<()> {
    store.release_reserve()?;
    let mut writer = writer(store)?;
    let volume_no = writer.volume_row(name)?.volume_no;
    let snapshots = snapshots(&*writer.engine(), volume_no);
    let snapshots = match snapshots {
        // What cannot be read goes with the volume, if the user says so.
        Err(error) if takes_snapshots && error.kind() == ErrorKind::Corrupt => Vec::new(),
        found => found?,
    };
    if !snapshots.is_empty() && !takes_snapshots {
        let count = snapshots.len();
        let what = format!(
            "{name}: the volume has {count} snapshots: 'weald snapshot ls' lists them, and \
             --snapshots removes them, too"
        );
        return Err(Error::new(ErrorKind::Busy, what));
    }
    for snapshot in &snapshots {
        snapshot.refuse_held()?;
        if store.is_snapshot_read(volume_no, snapshot.no)? {
            let what = format!("@{}: the snapshot is being read", snapshot.name);
            return Err(Error::new(ErrorKind::Busy, what));
        }
    }
    writer.remove_volume(name)?;
    let options = weald_store::CollectOptions {
        copy_below_percent: 0,
        ..weald_store::CollectOptions::default()
    };
    writer.collect(&options, &mut |_| std::ops::ControlFlow::Continue(()))?;
    writer.renew_reserve();
    Ok(())
}
