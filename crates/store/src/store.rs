//! A store as readers see it: its superblock, the names of its images, and their maps.
//!
//! Readers never open the metadata engine. What they need stands in the map of each image, which
//! is replaced as a whole, so that any number of readers goes on beside one writer, without
//! locks and from read-only media too.

use crate::disk::{Access, Disk, DiskFile};
use crate::engine::redb::RedbEngine;
use crate::engine::{Batch, Engine, Table};
use crate::layout;
use std::sync::Arc;
use weald_format::store::{
    ImageMap, MAP_LEN_MAX, SEGMENT_SUPERBLOCK_LEN, STORE_SUPERBLOCK_LEN, StoreSuperblock, Uuid,
};
use weald_format::{Error, ErrorKind, Result};
use zerocopy::IntoBytes;

/// Bytes after which a segment is closed, if nobody says otherwise.
pub const SEGMENT_LEN_DEFAULT: u64 = 64 << 20;
/// Pages of the metadata engine that stay in memory, bytes.
pub(crate) const ENGINE_CACHE_LEN: usize = 32 << 20;
/// The counter that holds the store's identity, so that an engine's file that is empty or foreign
/// is never taken for the store's.
pub(crate) const UUID_KEY: &[u8] = b"uuid";

/// A store, open for reading.
#[derive(Debug, Clone)]
pub struct Store {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) superblock: StoreSuperblock,
}

/// Reads the whole file `name`, which must not be longer than `len_max`.
pub(crate) fn read_file(disk: &dyn Disk, name: &str, len_max: u64) -> Result<Vec<u8>> {
    let file = disk.open(name, Access::Read)?;
    let len = file.len()?;
    if len > len_max {
        let what = format!(
            "{}/{name}: {len} bytes, expected at most {len_max}",
            disk.shown()
        );
        return Err(Error::limit(what));
    }
    let mut bytes = vec![0; len as usize];
    file.read_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// Writes the new file `name` and makes its bytes durable, not its name.
pub(crate) fn write_file(disk: &dyn Disk, name: &str, bytes: &[u8]) -> Result<()> {
    match disk.remove(name) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = disk.open(name, Access::Create)?;
    file.write_at(bytes, 0)?;
    file.sync()
}

/// Opens the metadata engine of the store `uuid`.
///
/// # Errors
/// `Corrupt` where it is missing, damaged or another store's; `Busy`, `Io`.
pub(crate) fn open_engine(disk: &dyn Disk, uuid: Uuid) -> Result<RedbEngine> {
    let shown = format!("{}/{}", disk.shown(), layout::META);
    let missing = |found: &str| {
        let what = format!(
            "{shown}: {found}: 'weald store salvage' rebuilds the metadata from the segments"
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
    let engine = RedbEngine::open(Arc::from(file), shown.clone(), ENGINE_CACHE_LEN)?;
    match engine.get(Table::Counters, UUID_KEY)? {
        Some(found) if found == uuid => Ok(engine),
        _ => Err(missing("belongs to another store")),
    }
}

/// Makes a new engine's file under the name `name`.
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
    /// Makes an empty store on `disk`, whose directory must be missing or empty. `uuid` is random.
    ///
    /// The superblock comes last: a directory without one is no store.
    ///
    /// # Errors
    /// `Busy` where the directory is not empty; `Invalid` for a segment length under 4 KiB;
    /// `Unsupported` where the file system has no locks or no fsync; `Io`, `Full`. Files may be
    /// left behind then.
    pub fn create(disk: Arc<dyn Disk>, uuid: Uuid, segment_len: u64) -> Result<Self> {
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
        drop(create_engine(&*disk, layout::META, uuid)?);
        let lock = disk.open(layout::LOCK, Access::Create)?;
        // A file system without locks is refused now, not by the first writer.
        lock.try_lock(0, true)?;
        lock.sync()?;
        let superblock = StoreSuperblock { uuid, segment_len };
        write_file(&*disk, "store.new", superblock.encode().as_bytes())?;
        disk.sync_dir("")?;
        disk.rename("store.new", layout::SUPERBLOCK)?;
        disk.sync_dir("")?;
        Ok(Self { disk, superblock })
    }

    /// Opens the store on `disk`.
    ///
    /// # Errors
    /// `NotFound` where there is no store; `Unsupported` where a newer Weald made it; `Corrupt`,
    /// `Io`.
    pub fn open(disk: Arc<dyn Disk>) -> Result<Self> {
        let bytes = read_file(&*disk, layout::SUPERBLOCK, STORE_SUPERBLOCK_LEN as u64 * 16)?;
        let superblock = StoreSuperblock::parse(&bytes).map_err(|e| e.context(disk.shown()))?;
        Ok(Self { disk, superblock })
    }

    /// Identity of the store.
    pub fn uuid(&self) -> Uuid {
        self.superblock.uuid
    }

    /// The path of the store, for messages.
    pub fn shown(&self) -> String {
        self.disk.shown()
    }

    /// Names of the images, sorted.
    ///
    /// # Errors
    /// `Io`.
    pub fn names(&self) -> Result<Vec<String>> {
        let mut names = self.disk.list(layout::IMAGES)?;
        names.retain(|name| layout::check_name(name).is_ok());
        names.sort_unstable();
        Ok(names)
    }

    /// The map of the image `name`.
    ///
    /// # Errors
    /// `NotFound` where there is no such image, with the names that there are; `Invalid` for a
    /// name that no image can have; `Corrupt`, `Io`.
    pub fn map(&self, name: &str) -> Result<ImageMap> {
        layout::check_name(name)?;
        match read_file(&*self.disk, &layout::map(name), MAP_LEN_MAX) {
            Ok(bytes) => self.parse_map(name, &bytes),
            Err(error) if error.kind() == ErrorKind::NotFound => Err(self.no_image(name)),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn parse_map(&self, name: &str, bytes: &[u8]) -> Result<ImageMap> {
        let parsed = ImageMap::parse(bytes, self.superblock.uuid);
        parsed.map_err(|e| e.context(format_args!("{}:{name}", self.disk.shown())))
    }

    fn no_image(&self, name: &str) -> Error {
        let shown = self.disk.shown();
        let names = self.names().unwrap_or_default();
        let what = match names.len() {
            0 => format!("{shown}:{name}: the store has no image yet"),
            _ => format!("{shown}:{name}: no such image: 'weald store ls {shown}' lists them"),
        };
        Error::not_found(what)
    }

    /// An open superblock, whose bytes behind [`layout::IMAGE_LOCKS`] are the images' locks.
    pub(crate) fn lock_file(&self, access: Access) -> Result<Box<dyn DiskFile>> {
        self.disk.open(layout::SUPERBLOCK, access)
    }
}

/// What a store holds, in numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StoreInfo {
    /// Images.
    pub image_count: u64,
    /// Bytes of all images as files.
    pub image_len: u64,
    /// Distinct records that images name.
    pub block_count: u64,
    /// Bytes of them, headers included.
    pub live_len: u64,
    /// Bytes of all segment files.
    pub segments_len: u64,
    /// Segment files.
    pub segment_count: u64,
    /// Bytes of all image maps.
    pub maps_len: u64,
}

/// An image of a store, in numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageInfo {
    /// Its name.
    pub name: String,
    /// Digest of its directory record.
    pub image_digest: weald_format::Digest,
    /// Logical identity of its tree.
    pub tree_digest: weald_format::Digest,
    /// Bytes of the image as a file.
    pub image_len: u64,
    /// Records in it.
    pub block_count: u64,
    /// Bytes of those records that no other image of the store names.
    pub own_len: u64,
}

/// Records by id: their bytes, and the one image that names them, if it is one.
type Owners = hashbrown::HashMap<u64, (u64, Option<usize>)>;

impl Store {
    /// Numbers about every image, by name, and about the store. Images that come or go meanwhile
    /// may be counted or not.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    ///
    /// # Cost
    /// Reads all maps; 32 bytes of memory for each distinct record.
    pub fn info(&self) -> Result<(StoreInfo, Vec<ImageInfo>)> {
        let (mut store, mut images) = (StoreInfo::default(), Vec::new());
        let mut owners = Owners::new();
        for name in self.names()? {
            let map = match self.map(&name) {
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                other => other?,
            };
            let no = images.len();
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
            store.image_len += map.image_len();
            images.push(ImageInfo {
                name,
                image_digest: map.image_digest,
                tree_digest: map.tree_digest,
                image_len: map.image_len(),
                block_count,
                own_len: 0,
            });
        }
        for (len, owner) in owners.values() {
            store.live_len += len;
            if let Some(image) = owner.and_then(|no| images.get_mut(no)) {
                image.own_len += len;
            }
        }
        store.image_count = images.len() as u64;
        store.block_count = owners.len() as u64;
        (store.segment_count, store.segments_len) = self.files_len(layout::SEGMENTS)?;
        (_, store.maps_len) = self.files_len(layout::IMAGES)?;
        Ok((store, images))
    }

    /// Files in `dir`, and their bytes.
    fn files_len(&self, dir: &str) -> Result<(u64, u64)> {
        let (mut count, mut len) = (0, 0);
        for name in self.disk.list(dir)? {
            match self.disk.open(&format!("{dir}/{name}"), Access::Read) {
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
