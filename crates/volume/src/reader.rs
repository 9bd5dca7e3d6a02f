//! A volume without a writer, as its last commit left it. A sealed image is made of it.

use crate::cache::Blocks;
use crate::changes::changed_states;
use crate::create::codec_spec;
use crate::index::BlockPlace;
use crate::layer::RangeContent;
use crate::part::{Levels, ShownNames, ShownPart, ShownPath, Way};
use crate::tables::Tables;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use weald_codec::Encoder;
use weald_format::container::{Codec, RecordRef};
use weald_format::limits::XATTR_SET_LEN_MAX;
use weald_format::pages::{XATTR_SET_LEN_MIN, check_xattrs, xattr_len};
use weald_format::store::Part;
use weald_format::volume::{InodeRow, NameRow, VolumeRow, first_cookie, fold_case};
use weald_format::{
    BlockId, Cookie, Digest, Error, ErrorKind, FileKind, Ino, Result, Xattr, XattrSet,
};
use weald_store::engine::{Engine, Table};
use weald_store::{BlockReader, Snapshot, Store, StoreWriter, snapshot};

/// Decoded blocks that a reader keeps, bytes.
const READER_CACHE_LEN: u64 = 64 << 20;

/// A name in a directory, as the volume `row` compares names.
///
/// # Errors
/// `Io`, `Corrupt`.
pub(crate) fn find_name(
    tables: &Tables,
    row: &VolumeRow,
    (dir, name): (Ino, &[u8]),
) -> Result<Option<Arc<NameRow>>> {
    let folds = row.is_case_insensitive;
    let slots = tables.slots(dir, first_cookie(&row.secret, name, folds))?;
    let wanted = fold_case(name, folds);
    let mut found = slots.iter().map(|(_, row)| row);
    let found = found.find(|row| fold_case(&row.name, folds) == wanted);
    Ok(found.cloned())
}

/// A range of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileExtent {
    /// First byte in the file.
    pub start: u64,
    /// Length, bytes; never 0.
    pub len: u64,
    /// Where its bytes lie; `None` for a hole.
    pub block: Option<BlockPlace>,
}

/// A volume without its layers. Its blocks must stay: the store's writer exists as long and changes
/// nothing, or a server holds the state.
#[derive(Debug)]
pub struct VolumeReader {
    tables: Tables,
    blocks: Blocks,
    row: VolumeRow,
    /// What of the tree is shown; `None` for all of it.
    part: Option<ShownPart>,
}

impl VolumeReader {
    /// Opens the volume `name`, which is not mounted, since its server would be the writer, or the
    /// snapshot with the name `VOLUME@NAME`.
    ///
    /// # Errors
    /// `NotFound`, `Io`, `Corrupt`; `Busy` if the sync log may have changes, see
    /// [`crate::apply_sync_log`].
    pub fn open(writer: &StoreWriter, name: &str) -> Result<Self> {
        let row = match (writer.volume_row(name), weald_store::split_state(name)) {
            (Err(error), Some((volume, of))) if error.kind() == ErrorKind::NotFound => {
                let volume_no = writer.volume_row(volume)?.volume_no;
                let found = snapshot(&*writer.engine(), volume_no, of)?;
                let view = Arc::new(found.view(writer.engine()));
                return Ok(Self::of(view, writer.block_reader(), found.volume));
            }
            (row, _) => row?,
        };
        if row.has_sync_log {
            let what = format!("{name}: the volume was not unmounted in order: mount it first");
            return Err(Error::new(ErrorKind::Busy, what));
        }
        Ok(Self::of(writer.engine(), writer.block_reader(), row))
    }

    /// Opens the snapshot `of` of the volume `volume` in the tables `engine` of `store`, which may
    /// change meanwhile. The snapshot must not be removed as long as it is read, and blocks of it
    /// can move.
    ///
    /// # Errors
    /// `NotFound`, `Io`, `Corrupt`.
    pub fn open_snapshot(
        store: &Store,
        engine: &Arc<dyn Engine>,
        (volume, of): (&str, &str),
    ) -> Result<(Self, Snapshot)> {
        let row = volume_row(&**engine, volume)?;
        let found = snapshot(&**engine, row.volume_no, of)?;
        let view = Arc::new(found.view(engine.clone()));
        let blocks = BlockReader::of_rows(store.clone(), engine.clone());
        Ok((Self::of(view, blocks, found.volume.clone()), found))
    }

    /// Opens the volume `name` in `rows`, a copy of the tables that [`crate::Hold::copy_rows`] of
    /// its server made. The server holds the state meanwhile.
    ///
    /// # Errors
    /// `NotFound`, `Io`, `Corrupt`.
    pub fn of_rows(store: &Store, rows: Arc<dyn Engine>, name: &str) -> Result<Self> {
        let row = volume_row(&*rows, name)?;
        let blocks = BlockReader::of_rows(store.clone(), rows.clone());
        Ok(Self::of(rows, blocks, row))
    }

    /// Opens the states `names` of the volume `volume`, each a snapshot or, without a name, the
    /// newest state, with the files alone that differ between them, and the directories above.
    ///
    /// # Errors
    /// As [`VolumeReader::open`].
    pub fn open_changed(
        writer: &StoreWriter,
        volume: &str,
        names: [Option<&str>; 2],
    ) -> Result<[Self; 2]> {
        let newest = Self::open(writer, volume)?.row;
        let states = changed_states(&writer.engine(), &newest, names)?;
        Ok(states.map(|state| Self::of(state.engine, writer.block_reader(), state.row)))
    }

    /// As [`VolumeReader::open_changed`] of two snapshots, in tables that may change meanwhile, as
    /// for [`VolumeReader::open_snapshot`].
    ///
    /// # Errors
    /// As [`VolumeReader::open_snapshot`].
    pub fn open_changed_snapshots(
        store: &Store,
        engine: &Arc<dyn Engine>,
        (volume, names): (&str, [&str; 2]),
    ) -> Result<[Self; 2]> {
        let newest = volume_row(&**engine, volume)?;
        let states = changed_states(engine, &newest, names.map(Some))?;
        Ok(states.map(|state| {
            let blocks = BlockReader::of_rows(store.clone(), engine.clone());
            Self::of(state.engine, blocks, state.row)
        }))
    }

    /// Shows what lies at `paths`, and the way there. Reads what is on the way; a path that is not
    /// there, or that leads through damage, is shown as far as it goes.
    ///
    /// # Errors
    /// `Io`.
    /// # Cost
    /// A few rows for each name of the paths.
    #[must_use = "the reader shows all of the tree without it"]
    pub fn showing(mut self, paths: &[ShownPath]) -> Result<Self> {
        let part = ShownPart::default();
        for shown in paths {
            match self.show(&part, shown) {
                Err(error) if !error.is_unreadable() => return Err(error),
                _ => {}
            }
        }
        self.part = Some(part);
        Ok(self)
    }

    fn show(&self, part: &ShownPart, shown: &ShownPath) -> Result<()> {
        let mut way = Way::new(self.root(), &shown.path);
        while let Some(name) = way.next_name() {
            let found = self.find(way.dir(), &name);
            if found.is_err() {
                // Whoever reads all its names tells what is wrong with them.
                part.add_levels(way.dir(), Levels::NAMES);
            }
            let Some(row) = found? else { return Ok(()) };
            part.add_name(way.dir(), row.clone());
            match row.kind {
                FileKind::Directory => way.enter(row.ino),
                FileKind::Symlink if way.follow(&self.inode(row.ino)?.target) => {}
                _ => return Ok(()),
            }
        }
        part.add_levels(way.dir(), shown.levels);
        Ok(())
    }

    /// Whether parts of the tree are not shown, so that inodes may have names besides those.
    pub fn is_part(&self) -> bool {
        self.part.is_some()
    }

    fn of(engine: Arc<dyn Engine>, blocks: BlockReader, row: VolumeRow) -> Self {
        Self {
            tables: Tables::new(engine, row.volume_no, row.chunk_len, row.next_ino),
            blocks: Blocks::new(Arc::new(blocks), READER_CACHE_LEN),
            row,
            part: None,
        }
    }

    /// Number of the root directory.
    pub fn root(&self) -> Ino {
        self.row.root
    }

    /// The row of an inode.
    ///
    /// # Errors
    /// `Corrupt` if there is none; `Io`.
    pub fn inode(&self, ino: Ino) -> Result<Arc<InodeRow>> {
        self.tables.inode(ino)?.ok_or_else(|| {
            let what = format!("inode {ino} does not exist, and a name leads to it");
            Error::corrupt("inode row", 0, "V-3.3", what)
        })
    }

    /// The names in a directory that are shown, in byte order.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn names(&self, dir: Ino) -> Result<Vec<Arc<NameRow>>> {
        let shown = self.part.as_ref().map(|part| part.names(dir));
        match shown {
            None | Some(ShownNames::All) => {}
            Some(ShownNames::Nothing) => return Ok(Vec::new()),
            Some(ShownNames::Few(names)) => return Ok(names),
        }
        let mut names = Vec::new();
        self.tables.each_name(dir, Cookie::START, &mut |_, row| {
            names.push(row);
            ControlFlow::Continue(())
        })?;
        names.sort_unstable_by(|a: &Arc<NameRow>, b| a.name.cmp(&b.name));
        if let Some(part) = &self.part {
            part.enter(dir, &names);
        }
        Ok(names)
    }

    /// The extended attributes of an inode, sorted.
    ///
    /// # Errors
    /// `Limit` for more than an image holds, without reading them all; `Io`, `Corrupt`.
    pub fn xattrs(&self, ino: Ino) -> Result<XattrSet> {
        let count = self.inode(ino)?.xattr_count as usize;
        let (mut set, mut len) = (XattrSet::new(), XATTR_SET_LEN_MIN);
        let too_long = || {
            let what = format!("more than {XATTR_SET_LEN_MAX} bytes of extended attributes");
            Error::limit(what)
        };
        if count > XATTR_SET_LEN_MAX / xattr_len(1, 0) {
            return Err(too_long());
        }
        for name in self.tables.xattr_names(ino)?.iter() {
            let Some(value) = self.xattr(ino, name)? else {
                continue;
            };
            len += xattr_len(name.len(), value.len());
            if len > XATTR_SET_LEN_MAX {
                return Err(too_long());
            }
            let name = name.clone();
            set.push(Xattr { name, value });
        }
        if set.len() != count {
            let what = format!(
                "inode {ino} has {count} attributes, {} were found",
                set.len()
            );
            return Err(Error::corrupt("xattr row", 0, "V-3.3", what));
        }
        check_xattrs(&set)?;
        Ok(set)
    }

    /// The value of one extended attribute, if it is set.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let value = self.tables.xattr(ino, name)?;
        Ok(value.map(|value| value.to_vec()))
    }

    /// The ranges of a regular file, in order, without gaps.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn extents(&self, ino: Ino) -> Result<Vec<FileExtent>> {
        let row = self.inode(ino)?;
        let mut extents: Vec<FileExtent> = Vec::new();
        if row.kind != FileKind::Regular || row.size == 0 {
            return Ok(extents);
        }
        let _ = self.tables.each_segment(ino, 0..row.size, &mut |segment| {
            let block = match segment.source {
                RangeContent::Block(block, offset) => Some(BlockPlace { block, offset }),
                _ => None,
            };
            let len = segment.len();
            match extents.last_mut() {
                Some(last) if last.block.is_none() && block.is_none() => last.len += len,
                _ => extents.push(FileExtent {
                    start: segment.range.start,
                    len,
                    block,
                }),
            }
            ControlFlow::Continue(())
        })?;
        let data = extents.iter().filter(|extent| extent.block.is_some());
        let found: u64 = data.map(|extent| extent.len).sum();
        if found != row.allocated {
            let allocated = row.allocated;
            let what = format!("inode {ino} has {allocated} bytes of data, {found} were found");
            return Err(Error::corrupt("extents row", 0, "V-4.4", what));
        }
        Ok(extents)
    }

    /// The name `name` in a directory; nothing if there is none.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn find(&self, dir: Ino, name: &[u8]) -> Result<Option<Arc<NameRow>>> {
        find_name(&self.tables, &self.row, (dir, name))
    }

    /// Calls `visit` with the bytes of an extent that is no hole.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn read(&self, extent: &FileExtent, visit: &mut dyn FnMut(&[u8])) -> Result<()> {
        let Some(place) = extent.block else {
            return Ok(());
        };
        let block = self.blocks.get(place.block)?;
        let start = place.offset as usize;
        let bytes = block.get(start..start + extent.len as usize);
        let bytes = bytes.ok_or_else(|| past_end_of_block(place.block))?;
        visit(bytes);
        Ok(())
    }

    /// Block `id` as a part of an image of the same store.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn part(&self, id: BlockId) -> Result<Part> {
        self.blocks.reader().part(id)
    }

    /// Block `id` for a file outside the store: its record and stored bytes. Bytes outside the
    /// `used` ranges, which are in order, become zeros: they belonged to removed files.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn block(&self, id: BlockId, used: &[Range<u32>]) -> Result<(RecordRef, Vec<u8>)> {
        let (record, stored) = self.blocks.reader().read(id)?;
        let used_len: u64 = used.iter().map(|range| range.len() as u64).sum();
        if used_len == record.raw_len {
            return Ok((record, stored));
        }
        let old = self.blocks.get(id)?;
        let mut raw = vec![0; old.len()];
        for range in used {
            let range = range.start as usize..range.end as usize;
            let places = raw.get_mut(range.clone()).zip(old.get(range));
            let (to, from) = places.ok_or_else(|| past_end_of_block(id))?;
            to.copy_from_slice(from);
        }
        let encoded = Encoder::new(codec_spec(&self.row)?, raw.len() as u64)?.encode(&raw)?;
        let stored = match encoded.codec {
            Codec::None => raw,
            _ => encoded.stored,
        };
        let record = RecordRef {
            codec: encoded.codec,
            stored_len: stored.len() as u64,
            digest: Digest::of(&stored),
            ..record
        };
        Ok((record, stored))
    }
}

/// The row of the volume `name`.
///
/// # Errors
/// `NotFound`, `Io`, `Corrupt`.
pub fn volume_row(engine: &dyn Engine, name: &str) -> Result<VolumeRow> {
    let value = engine.get(Table::Volumes, name.as_bytes())?;
    let value = value.ok_or_else(|| Error::not_found(format!("{name}: no such volume")))?;
    VolumeRow::parse(&value)
}

fn past_end_of_block(id: BlockId) -> Error {
    let what = format!("a piece ends behind block {id}");
    Error::corrupt("extents row", 0, "V-4.3", what)
}
