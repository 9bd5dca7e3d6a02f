//! A store as readers see it: its superblock, the names of its images, and their maps.
//!
//! Readers never open the metadata engine. All that they need is in the map of each image, and the
//! writer replaces a map as a whole. Any number of readers therefore work beside one writer,
//! without locks and also from read-only media.

use crate::disk::{Access, Disk, ReadOnlyDisk};
use crate::engine::redb::RedbEngine;
use crate::engine::{Batch, Engine, Table};
use crate::layout::{self, ObjectKind, ObjectName};
use std::collections::BTreeSet;
use std::sync::Arc;
use weald_format::store::{
    ImageMap, MAP_LEN_MAX, MarkRecord, SEGMENT_SUPERBLOCK_LEN, STORE_ROW_GROUPS, STORE_SNAPSHOTS,
    STORE_TIERS, StoreSuperblock, Uuid,
};
use weald_format::{BlockId, CommitNo, Error, ErrorKind, Result, SegmentNo};
use zerocopy::IntoBytes;

/// Default length at which a segment is closed, in bytes.
pub const SEGMENT_LEN_DEFAULT: u64 = 64 << 20;
/// Memory for pages of the metadata engine, in bytes.
pub(crate) const ENGINE_CACHE_LEN: usize = 32 << 20;
/// The counter that contains the store's UUID. It distinguishes the store's own engine file from an
/// empty or foreign file.
pub(crate) const UUID_KEY: &[u8] = b"uuid";

/// A store, open for reading.
#[derive(Debug, Clone)]
pub struct Store {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) superblock: StoreSuperblock,
}

/// Opens the metadata engine of the store `uuid`. `reads_anew` says that the memory of the system
/// may differ from the disk.
///
/// # Errors
/// `Corrupt` if the engine's file is missing, damaged or belongs to another store; `Busy`, `Io`.
pub(crate) fn open_engine(disk: &dyn Disk, uuid: Uuid, reads_anew: bool) -> Result<RedbEngine> {
    let shown = format!("{}/{}", disk.shown(), layout::META);
    let missing = |found: &str| {
        let what = format!(
            "{shown}: {found}: 'weald store salvage' makes the metadata again from the journal"
        );
        Error::corrupt("store metadata", 0, "S-5.1", what)
    };
    let file = match disk.open(layout::META, Access::Write) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Err(missing("is missing")),
        other => other?,
    };
    if file.len()? == 0 {
        return Err(missing("is empty"));
    }
    if reads_anew {
        file.read_anew()?;
    }
    let engine = RedbEngine::open(Arc::from(file), shown.clone(), ENGINE_CACHE_LEN)?;
    match engine.get(Table::Counters, UUID_KEY)? {
        Some(found) if found == uuid => Ok(engine),
        _ => Err(missing("belongs to another store")),
    }
}

/// Creates an engine with the file name `name`.
pub(crate) fn create_engine(disk: &dyn Disk, name: &str, uuid: Uuid) -> Result<RedbEngine> {
    let file = disk.open(name, Access::Create)?;
    let shown = format!("{}/{name}", disk.shown());
    let engine = RedbEngine::open(Arc::from(file), shown, ENGINE_CACHE_LEN)?;
    let mut batch = Batch::default();
    batch.put(Table::Counters, UUID_KEY, uuid.to_vec());
    engine.commit(&batch)?;
    Ok(engine)
}

impl Store {
    /// Creates an empty store on `disk`, whose directory must be missing or empty. `uuid` must be
    /// random.
    ///
    /// The superblock is written last: a directory without a superblock is not a store.
    ///
    /// # Errors
    /// `Busy` if the directory is not empty; `Invalid` for a segment length under 4 KiB;
    /// `Unsupported` if the file system has no locks or no fsync; `Io`, `Full`. After an error,
    /// files may remain.
    pub fn create(disk: Arc<dyn Disk>, uuid: Uuid, segment_len: u64) -> Result<Self> {
        let superblock = StoreSuperblock {
            uuid,
            incompat: STORE_ROW_GROUPS,
            segment_len,
        };
        Self::create_filled(disk, superblock, |_, _| Ok(()))
    }

    /// As [`Store::create`]. `fill` writes objects, and rows to the tables, before the directory is
    /// a store.
    pub(crate) fn create_filled(
        disk: Arc<dyn Disk>,
        superblock: StoreSuperblock,
        fill: impl FnOnce(&dyn Disk, &dyn Engine) -> Result<()>,
    ) -> Result<Self> {
        let StoreSuperblock {
            uuid, segment_len, ..
        } = superblock;
        if segment_len < (4 << 10).max(SEGMENT_SUPERBLOCK_LEN as u64) {
            return Err(Error::invalid(format!(
                "segments of {segment_len} bytes: at least 4 KiB"
            )));
        }
        match disk.list("") {
            Ok(names) if names.is_empty() => {}
            Ok(_) => {
                let what = format!("{}: the directory is not empty", disk.shown());
                return Err(Error::new(ErrorKind::Busy, what));
            }
            Err(error) if error.kind() == ErrorKind::NotFound => disk.make_dir("")?,
            Err(error) => return Err(error),
        }
        disk.make_dir(layout::SEGMENTS)?;
        disk.make_dir(layout::IMAGES)?;
        let engine = create_engine(&*disk, layout::META, uuid)?;
        fill(&*disk, &engine)?;
        drop(engine);
        let lock = disk.open(layout::LOCK, Access::CreatePrivate)?;
        // Detects a file system without locks now, before the first writer does.
        lock.try_lock(0, true)?;
        lock.sync()?;
        let mark = MarkRecord::of(uuid, CommitNo::default());
        disk.write_file(layout::MARK, mark.as_bytes())?;
        let bytes = superblock.encode();
        disk.write_file(layout::SUPERBLOCK_COPY, bytes.as_bytes())?;
        disk.write_file("store.new", bytes.as_bytes())?;
        disk.sync_dir("")?;
        disk.rename("store.new", layout::SUPERBLOCK)?;
        disk.sync_dir("")?;
        Ok(Self { disk, superblock })
    }

    /// Opens the store on `disk`.
    ///
    /// # Errors
    /// `NotFound` if there is no store; `Unsupported` if a newer version of Weald made it;
    /// `Corrupt`, `Io`.
    pub fn open(disk: Arc<dyn Disk>) -> Result<Self> {
        let superblock = crate::superblock_files::open(&*disk)?;
        Ok(Self { disk, superblock })
    }

    /// The store for callers that read its tables. On a read-only file system, and in a standby,
    /// changes stay in memory, because the engine and the recovery of the store write. Such a store
    /// is kept as long as its changes are needed.
    #[must_use]
    pub fn for_reading(&self) -> Self {
        use std::io::ErrorKind::ReadOnlyFilesystem;
        let opened = self.disk.open(layout::LOCK, Access::Write);
        let is_refused = |error: Error| {
            let cause = error.io_source().map(std::io::Error::kind);
            cause == Some(ReadOnlyFilesystem)
        };
        if opened.is_err_and(is_refused) || self.has_other_role() {
            Self {
                disk: Arc::new(ReadOnlyDisk::new(self.disk.clone())),
                superblock: self.superblock,
            }
        } else {
            self.clone()
        }
    }

    /// Whether changes stay in memory: see [`Store::for_reading`].
    pub fn keeps_changes_in_memory(&self) -> bool {
        self.disk.is_in_memory()
    }

    /// Keeps programs without groups of rows out of the store: to them, its tables would look
    /// empty. The writer has the lock, and calls this before it opens the tables.
    pub(crate) fn require_row_groups(&self) -> Result<()> {
        if self.superblock.incompat & STORE_ROW_GROUPS != 0 {
            return Ok(());
        }
        self.set_feature(STORE_ROW_GROUPS, true)
    }

    /// Says whether a program has to know the feature `bit` to use the store.
    ///
    /// The file stays the same, since readers have locks on it. Its 96 bytes lie in one sector of
    /// the disk, which changes as a whole.
    pub(crate) fn set_feature(&self, bit: u64, is_on: bool) -> Result<()> {
        let mut superblock = Self::open(self.disk.clone())?.superblock;
        if is_on == (superblock.incompat & bit != 0) {
            return Ok(());
        }
        superblock.incompat ^= bit;
        crate::superblock_files::write(&*self.disk, layout::SUPERBLOCK, superblock)?;
        crate::superblock_files::write(&*self.disk, layout::SUPERBLOCK_COPY, superblock)
    }

    /// Features that a store needs that is made of this one elsewhere. Another writer of the same
    /// process may have added one since this was opened.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub(crate) fn features_elsewhere(&self) -> Result<u64> {
        let superblock = Self::open(self.disk.clone())?.superblock;
        Ok(superblock.incompat & !STORE_TIERS)
    }

    /// Takes over features that a store has of which this one gets the rows.
    ///
    /// # Errors
    /// `Io`, `Full`.
    pub(crate) fn add_features(&self, incompat: u64) -> Result<()> {
        if incompat & STORE_SNAPSHOTS == 0 {
            return Ok(());
        }
        self.set_feature(STORE_SNAPSHOTS, true)
    }

    /// UUID of the store.
    pub fn uuid(&self) -> Uuid {
        self.superblock.uuid
    }

    /// Identity of the store among all that are open: see [`Disk::identity`].
    pub fn identity(&self) -> Option<[u64; 2]> {
        self.disk.identity()
    }

    /// Path of the store in messages.
    pub fn shown(&self) -> String {
        self.disk.shown()
    }

    /// Names of the images, sorted.
    ///
    /// # Errors
    /// `Io`.
    pub fn names(&self) -> Result<Vec<String>> {
        let mut names = self.disk.list_objects(ObjectKind::Map)?;
        names.retain(|name| layout::check_name(name).is_ok());
        names.sort_unstable();
        Ok(names)
    }

    /// Names of the images, and the reserved names of those that were replaced while they are read.
    ///
    /// # Errors
    /// `Io`.
    pub fn names_of_maps(&self) -> Result<Vec<String>> {
        let mut names = self.disk.list_objects(ObjectKind::Map)?;
        names.retain(|name| layout::check_map_name(name).is_ok());
        names.sort_unstable();
        Ok(names)
    }

    /// Numbers of the segments whose files are there.
    ///
    /// # Errors
    /// `Io`.
    pub fn segment_numbers(&self) -> Result<BTreeSet<SegmentNo>> {
        let names = self.disk.list_objects(ObjectKind::Segment)?;
        let numbers = names.iter().map(|name| layout::segment_number(name));
        Ok(numbers.flatten().collect())
    }

    /// Reads a whole object of at most `len_max` bytes.
    pub(crate) fn read_object(&self, name: &ObjectName, len_max: u64) -> Result<Vec<u8>> {
        let object = self.disk.open_object(name)?;
        object.read_all(len_max, &format_args!("{}/{name}", self.disk.shown()))
    }

    /// Reads the map of the image `name`, which may be the reserved name of a replaced one.
    ///
    /// # Errors
    /// `NotFound` if there is no such image; `Invalid` for a name that no image can have;
    /// `Corrupt`, `Io`.
    pub fn map(&self, name: &str) -> Result<ImageMap> {
        layout::check_map_name(name)?;
        match self.read_object(&layout::map(name), MAP_LEN_MAX) {
            Ok(bytes) => ImageMap::parse(&bytes, self.superblock.uuid)
                .map_err(|error| self.damaged_map(name, &error)),
            Err(error) if error.kind() == ErrorKind::NotFound => Err(self.no_image(name)),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn parse_map(&self, name: &str, bytes: &[u8]) -> Result<ImageMap> {
        let parsed = ImageMap::parse(bytes, self.superblock.uuid);
        parsed.map_err(|e| e.context(format_args!("{}:{name}", self.disk.shown())))
    }

    /// Says what to do about a damaged map, whose image no command can remove or collect.
    fn damaged_map(&self, name: &str, error: &Error) -> Error {
        let shown = self.disk.shown();
        if error.kind() != ErrorKind::Corrupt {
            return error.duplicate().context(format_args!("{shown}:{name}"));
        }
        // The reason is one part of the message, of which the parts end at colons.
        let reason = error.what().replace(": ", ", ");
        let what = format!(
            "{shown}:{name}: the map of this image is damaged ({reason}): 'weald store salvage \
             {shown}' sets the image aside"
        );
        let rule = error.place().map_or("S-3.1", |place| place.rule);
        Error::corrupt("image map", 0, rule, what)
    }

    fn no_image(&self, name: &str) -> Error {
        let shown = self.disk.shown();
        let names = self.names().unwrap_or_default();
        let volumes = self.volume_names().unwrap_or_default();
        let is_volume = volumes.iter().any(|n| n == name);
        if let Some((volume, _)) = crate::split_state(name)
            && volumes.iter().any(|n| n == volume)
        {
            return Error::not_found(format!(
                "{shown}:{name}: names a snapshot of a volume, and this command takes an image: \
                 'weald volume seal {shown}:{name} --name IMAGE' makes one"
            ));
        }
        let what = match names.len() {
            _ if is_volume => format!(
                "{shown}:{name}: names a volume, and this command takes an image: 'weald volume \
                 seal {shown}:{name} --name IMAGE' makes one, 'weald volume rm' removes the volume"
            ),
            0 if volumes.is_empty() => format!(
                "{shown}:{name}: no such image and no such volume: the store has no image yet"
            ),
            0 => format!(
                "{shown}:{name}: no such image and no such volume: the store has no image yet, and \
                 'weald volume ls {shown}' lists its volumes"
            ),
            _ => format!("{shown}:{name}: no such image: 'weald store ls {shown}' lists them"),
        };
        Error::not_found(what)
    }
}

/// Whether a file is there, and cannot be used: it is damaged, too long or no regular file, or the
/// disk cannot read it. It costs what is in it, and nothing else.
pub(crate) fn is_bad_file(error: &Error) -> bool {
    use ErrorKind::{Invalid, Limit};
    error.is_unreadable() || matches!(error.kind(), Invalid | Limit)
}

/// As [`is_bad_file`], or the file is missing.
pub(crate) fn is_bad_or_missing(error: &Error) -> bool {
    is_bad_file(error) || error.kind() == ErrorKind::NotFound
}

/// Figures about a store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StoreInfo {
    /// Number of images.
    pub image_count: u64,
    /// Total length of all images as files, in bytes.
    pub image_len: u64,
    /// Number of images that were replaced and are still being read, or not yet removed.
    pub replaced_count: u64,
    /// Total length of the records that only these refer to, in bytes.
    pub replaced_len: u64,
    /// Number of distinct records that images refer to.
    pub block_count: u64,
    /// Total length of these records including headers, in bytes.
    pub live_len: u64,
    /// Total length of all segment files, in bytes.
    pub segments_len: u64,
    /// Number of segment files.
    pub segment_count: u64,
    /// Total length of all image maps, in bytes.
    pub maps_len: u64,
    /// Length of the tables, in bytes.
    pub tables_len: u64,
    /// Total length of the journal of the tables, in bytes.
    pub journal_len: u64,
}

/// Figures about an image of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageInfo {
    /// Name of the image.
    pub name: String,
    /// Digest of the directory record.
    pub image_digest: weald_format::Digest,
    /// Tree digest: identity of names, attributes and contents.
    pub tree_digest: weald_format::Digest,
    /// When the image came into the store, in nanoseconds since 1970; `None` if that is not known.
    pub added: Option<i64>,
    /// Length of the image as a file, in bytes.
    pub image_len: u64,
    /// Number of records.
    pub block_count: u64,
    /// Total length of the records that only this image refers to, in bytes.
    pub own_len: u64,
}

/// Maps a record id to the record's length and to the index of the image that refers to it; `None`
/// if several images do.
type Owners = hashbrown::HashMap<BlockId, (u64, Option<usize>)>;

/// Index of all images that were replaced.
const REPLACED: usize = usize::MAX;

impl Store {
    /// Returns figures about the store and about every image, sorted by name. An image that is
    /// added or removed during the call may be counted or not. `damaged` gets the errors of images
    /// whose maps are damaged; these do not count.
    ///
    /// # Errors
    /// `Io`.
    ///
    /// # Cost
    /// Reads all maps; 32 bytes of memory for each distinct record.
    pub fn info(&self, damaged: &mut dyn FnMut(Error)) -> Result<(StoreInfo, Vec<ImageInfo>)> {
        let (mut store, mut images) = (StoreInfo::default(), Vec::new());
        let mut owners = Owners::new();
        for name in self.names_of_maps()? {
            let map = match self.map(&name) {
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                // A map that is too long or no regular file hides its own image alone, too.
                Err(error) if is_bad_file(&error) => {
                    damaged(error);
                    continue;
                }
                other => other?,
            };
            let is_replaced = layout::replaced_image(&name).is_some();
            let no = if is_replaced { REPLACED } else { images.len() };
            let mut block_count = 0;
            for part in &map.parts {
                if let weald_format::store::Part::Block { id, .. } = part {
                    block_count += 1;
                    let (_, owner) = owners.entry(*id).or_insert((part.len(), Some(no)));
                    if *owner != Some(no) {
                        *owner = None;
                    }
                }
            }
            if is_replaced {
                store.replaced_count += 1;
                continue;
            }
            store.image_len += map.image_len();
            images.push(ImageInfo {
                name,
                image_digest: map.image_digest,
                tree_digest: map.tree_digest,
                added: (map.added != 0).then_some(map.added),
                image_len: map.image_len(),
                block_count,
                own_len: 0,
            });
        }
        for (len, owner) in owners.values() {
            store.live_len += len;
            if *owner == Some(REPLACED) {
                store.replaced_len += len;
            }
            if let Some(image) = owner.and_then(|no| images.get_mut(no)) {
                image.own_len += len;
            }
        }
        store.image_count = images.len() as u64;
        store.block_count = owners.len() as u64;
        (store.segment_count, store.segments_len) = self.objects_len(ObjectKind::Segment)?;
        (_, store.maps_len) = self.objects_len(ObjectKind::Map)?;
        let len_of = |name: &str| match self.disk.open(name, Access::Read) {
            Err(error) if is_bad_or_missing(&error) => Ok(0),
            file => file?.len(),
        };
        store.tables_len = len_of(layout::META)?;
        for name in self.disk.list(layout::JOURNAL).unwrap_or_default() {
            store.journal_len += len_of(&format!("{}/{name}", layout::JOURNAL))?;
        }
        Ok((store, images))
    }

    /// Number and total length in bytes of the objects of one kind.
    fn objects_len(&self, kind: ObjectKind) -> Result<(u64, u64)> {
        let (mut count, mut len) = (0, 0);
        for name in self.disk.list_objects(kind)? {
            match self.disk.open_object(&ObjectName::new(kind, &name)) {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                file => {
                    count += 1;
                    len += file?.len()?;
                }
            }
        }
        Ok((count, len))
    }
}
