//! Who uses damaged blocks: files of volumes, of their snapshots, and of images.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use weald_format::snapshot::{KeptKey, parse_kept};
use weald_format::volume::{
    ExtentsRow, InodeRow, NamePlace, NameRow, VolumeRow, WindowPlace, inode_key,
};
use weald_format::{
    BlockId, ByteLen, ErrorKind, FileKind, Ino, Result, SnapshotNo, VolumeNo, limits,
};
use weald_image::{
    CheckOptions as ImageCheckOptions, Finding as ImageFinding, Image, OpenOptions as ImageOptions,
};
use weald_store::engine::{Engine, Table, VisitRow};
use weald_store::scrub::{ScrubUser, TablesView};
use weald_store::{Names, Snapshot, Store, path_of, snapshots};

/// Names of one file that are told.
const NAMES_MAX: usize = 16;
/// Snapshots of a volume whose names are read; in others, files are told by their inodes.
const SNAPSHOTS_MAX: usize = 64;
/// Most damaged paths of an image that are told.
const PATH_COUNT_MAX: u64 = 1000;
/// Memory for the metadata of an image that is opened, bytes.
const IMAGE_CACHE_LEN: u64 = 8 << 20;
/// Most directories above a file.
const DEPTH_MAX: usize = 2048;

/// Blocks, and who uses them.
pub type Users = BTreeMap<BlockId, Vec<ScrubUser>>;

/// A row of extents with damaged blocks: its key without the number of the volume, and the blocks.
type Hit = (Vec<u8>, BTreeSet<BlockId>);

/// Files with the blocks that they lack.
type Files = BTreeMap<Ino, BTreeSet<BlockId>>;

/// The files of volumes and of their snapshots that use the blocks `ids`.
///
/// # Errors
/// `Io`; `Busy` if the view has to end.
/// # Cost
/// Passes over all extents and kept rows, and over the names of each volume and snapshot that is
/// concerned.
pub fn users_in_volumes(view: &TablesView, ids: &BTreeSet<BlockId>) -> Result<Users> {
    let engine = view.engine();
    let live = hits_of(&*engine, ids)?;
    let kept = kept_hits_of(&*engine, ids)?;
    let mut users = Users::new();
    for (name, row) in view.volumes() {
        let volume_no = row.volume_no;
        let of_live = live.get(&volume_no).map_or(&[][..], Vec::as_slice);
        let of_kept = kept.get(&volume_no).map_or(&[][..], Vec::as_slice);
        if of_live.is_empty() && of_kept.is_empty() {
            continue;
        }
        let of_volume = files_of(of_live)?;
        put(&mut users, (name, None), &*engine, row, &of_volume)?;
        let all = snapshots_or_none(&*engine, volume_no)?;
        let of_snapshots = files_of_snapshots(&*engine, volume_no, &all, (of_live, of_kept))?;
        for (count, (at, files)) in of_snapshots.into_iter().enumerate() {
            let Some(found) = all.get(at) else { continue };
            let of = (name.as_str(), Some(found.name.as_str()));
            if count < SNAPSHOTS_MAX {
                let rows = found.view(engine.clone());
                put(&mut users, of, &rows, &found.volume, &files)?;
            } else {
                put_unnamed(&mut users, of, &files);
            }
        }
    }
    Ok(users)
}

/// Adds the users of some blocks to those of others.
pub fn add(users: &mut Users, more: Users) {
    for (id, mut of) in more {
        users.entry(id).or_default().append(&mut of);
    }
}

/// Visits the rows of a table that can be read.
fn each(engine: &dyn Engine, table: Table, start: &[u8], visit: &mut VisitRow<'_>) -> Result<()> {
    let read = engine.scan_readable(table, start, visit, &mut |_, _| Ok(()));
    match read {
        Err(error) if error.kind() == ErrorKind::Corrupt => Ok(()),
        other => other,
    }
}

/// The blocks of a row of extents that are damaged.
fn damaged_in(row: &[u8], ids: &BTreeSet<BlockId>) -> Result<BTreeSet<BlockId>> {
    let pieces = ExtentsRow::parse(row, limits::BLOCK_LEN_MAX as u32)?.0;
    let blocks = pieces.iter().map(|piece| piece.block);
    Ok(blocks.filter(|id| ids.contains(id)).collect())
}

fn hits_of(engine: &dyn Engine, ids: &BTreeSet<BlockId>) -> Result<BTreeMap<VolumeNo, Vec<Hit>>> {
    let mut hits: BTreeMap<VolumeNo, Vec<Hit>> = BTreeMap::new();
    each(engine, Table::Extents, &[], &mut |key, value| {
        let damaged = damaged_in(value, ids)?;
        if !damaged.is_empty() {
            let (volume_no, _) = WindowPlace::split_key(key)?;
            let rest = key.get(volume_no.to_be_bytes().len()..).unwrap_or_default();
            hits.entry(volume_no)
                .or_default()
                .push((rest.to_vec(), damaged));
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(hits)
}

/// Rows that snapshots keep, each with the newest snapshot that has it.
type KeptHits = BTreeMap<VolumeNo, Vec<(SnapshotNo, Hit)>>;

fn kept_hits_of(engine: &dyn Engine, ids: &BTreeSet<BlockId>) -> Result<KeptHits> {
    let mut hits = KeptHits::new();
    each(engine, Table::Kept, &[], &mut |key, value| {
        let key = KeptKey::parse(key)?;
        if key.table != Table::Extents.code() {
            return Ok(ControlFlow::Continue(()));
        }
        let Some(row) = parse_kept(value)? else {
            return Ok(ControlFlow::Continue(()));
        };
        let damaged = damaged_in(row, ids)?;
        if !damaged.is_empty() {
            let of = hits.entry(key.volume_no).or_default();
            of.push((key.no, (key.rest, damaged)));
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(hits)
}

fn ino_of(rest: &[u8]) -> Result<Ino> {
    let key = [&[0; 4], rest].concat();
    Ok(WindowPlace::split_key(&key)?.1.ino)
}

fn files_of(hits: &[Hit]) -> Result<Files> {
    let mut files = Files::new();
    for (rest, ids) in hits {
        files.entry(ino_of(rest)?).or_default().extend(ids);
    }
    Ok(files)
}

fn snapshots_or_none(engine: &dyn Engine, volume_no: VolumeNo) -> Result<Vec<Snapshot>> {
    match snapshots(engine, volume_no) {
        Err(error) if error.kind() == ErrorKind::Corrupt => Ok(Vec::new()),
        other => other,
    }
}

/// The numbers of the snapshots for which something was kept of a row.
fn kept_numbers(engine: &dyn Engine, volume_no: VolumeNo, rest: &[u8]) -> Result<Vec<SnapshotNo>> {
    let mut numbers = Vec::new();
    let start = KeptKey::prefix(volume_no, Table::Extents.code(), rest);
    each(engine, Table::Kept, &start, &mut |key, _| {
        let key = KeptKey::parse(key)?;
        let is_of = (key.volume_no, key.table) == (volume_no, Table::Extents.code());
        if !is_of || key.rest != rest {
            return Ok(ControlFlow::Break(()));
        }
        numbers.push(key.no);
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(numbers)
}

/// The damaged files of each snapshot, by its place in `all`.
fn files_of_snapshots(
    engine: &dyn Engine,
    volume_no: VolumeNo,
    all: &[Snapshot],
    (live, kept): (&[Hit], &[(SnapshotNo, Hit)]),
) -> Result<BTreeMap<usize, Files>> {
    let mut files: BTreeMap<usize, Files> = BTreeMap::new();
    let mut add = |after: Option<SnapshotNo>, to: Option<SnapshotNo>, hit: &Hit| -> Result<()> {
        let (rest, ids) = hit;
        let ino = ino_of(rest)?;
        for (at, found) in all.iter().enumerate() {
            let is_behind = after.is_none_or(|after| found.no > after);
            let is_before = to.is_none_or(|to| found.no <= to);
            if is_behind && is_before && ino < found.volume.next_ino {
                let of = files.entry(at).or_default();
                of.entry(ino).or_default().extend(ids);
            }
        }
        Ok(())
    };
    for hit in live {
        let newest = kept_numbers(engine, volume_no, &hit.0)?.into_iter().max();
        add(newest, None, hit)?;
    }
    for (no, hit) in kept {
        let numbers = kept_numbers(engine, volume_no, &hit.0)?.into_iter();
        let before = numbers.filter(|other| other < no).max();
        add(before, Some(*no), hit)?;
    }
    Ok(files)
}

/// Adds files as users, by their names in these rows.
fn put(
    users: &mut Users,
    (name, snapshot): (&str, Option<&str>),
    engine: &dyn Engine,
    volume: &VolumeRow,
    files: &Files,
) -> Result<()> {
    let wanted: BTreeSet<Ino> = files.keys().copied().collect();
    if wanted.is_empty() {
        return Ok(());
    }
    let mut paths = paths_of(engine, volume, &wanted)?;
    for (ino, ids) in files {
        let of_file = paths.remove(ino).unwrap_or_default();
        let mut of_file: Vec<Option<Vec<u8>>> = of_file.into_iter().map(Some).collect();
        if of_file.is_empty() {
            of_file.push(None);
        }
        for path in of_file {
            for id in ids {
                users.entry(*id).or_default().push(ScrubUser {
                    name: name.to_owned(),
                    snapshot: snapshot.map(str::to_owned),
                    path: path.clone(),
                    inode: Some(*ino),
                });
            }
        }
    }
    Ok(())
}

fn put_unnamed(users: &mut Users, (name, snapshot): (&str, Option<&str>), files: &Files) {
    for (ino, ids) in files {
        for id in ids {
            users.entry(*id).or_default().push(ScrubUser {
                name: name.to_owned(),
                snapshot: snapshot.map(str::to_owned),
                path: None,
                inode: Some(*ino),
            });
        }
    }
}

/// The paths of files from the root, by inode.
fn paths_of(
    engine: &dyn Engine,
    volume: &VolumeRow,
    wanted: &BTreeSet<Ino>,
) -> Result<BTreeMap<Ino, Vec<Vec<u8>>>> {
    let volume_no = volume.volume_no;
    let mut found: BTreeMap<Ino, Vec<(Ino, Vec<u8>)>> = BTreeMap::new();
    let start = volume_no.to_be_bytes();
    each(engine, Table::Names, &start, &mut |key, value| {
        let (of, NamePlace { dir, .. }) = NamePlace::split_key(key)?;
        if of != volume_no {
            return Ok(ControlFlow::Break(()));
        }
        let row = NameRow::parse(value)?;
        if wanted.contains(&row.ino) {
            let names = found.entry(row.ino).or_default();
            if names.len() < NAMES_MAX {
                names.push((dir, row.name));
            }
        }
        Ok(ControlFlow::Continue(()))
    })?;
    let mut dirs = Names::new();
    let mut paths = BTreeMap::new();
    for (ino, names) in found {
        let mut of_file = Vec::new();
        for (dir, name) in names {
            climb(engine, volume, dir, &mut dirs)?;
            of_file.push(path_of(&dirs, volume.root, dir, &name));
        }
        paths.insert(ino, of_file);
    }
    Ok(paths)
}

/// Finds the names of a directory and of those above it.
fn climb(engine: &dyn Engine, volume: &VolumeRow, dir: Ino, dirs: &mut Names) -> Result<()> {
    let volume_no = volume.volume_no;
    let mut at = dir;
    for _ in 0..DEPTH_MAX {
        if at == volume.root || dirs.contains_key(&at) {
            return Ok(());
        }
        let row = match engine.get(Table::Inodes, &inode_key(volume_no, at)) {
            Ok(Some(row)) => row,
            Ok(None) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::Corrupt => return Ok(()),
            Err(error) => return Err(error),
        };
        let parent = match InodeRow::parse(&row) {
            Ok(row) if row.kind == FileKind::Directory => row.parent,
            _ => return Ok(()),
        };
        let start = [&volume_no.to_be_bytes()[..], &parent.0.to_be_bytes()].concat();
        let mut name = None;
        each(engine, Table::Names, &start, &mut |key, value| {
            let (of, NamePlace { dir, .. }) = NamePlace::split_key(key)?;
            if (of, dir) != (volume_no, parent) {
                return Ok(ControlFlow::Break(()));
            }
            let row = NameRow::parse(value)?;
            if row.ino == at {
                name = Some(row.name);
                return Ok(ControlFlow::Break(()));
            }
            Ok(ControlFlow::Continue(()))
        })?;
        let Some(name) = name else { return Ok(()) };
        dirs.insert(at, (parent, name));
        at = parent;
    }
    Ok(())
}

/// The images, and their files, that use the blocks `ids`, also by their base images. All damaged
/// files of an image stand at each of its damaged blocks.
///
/// # Errors
/// `Io`.
/// # Cost
/// Reads all maps, and all of each image that is concerned or has a base image.
pub fn users_in_images(store: &Store, ids: &BTreeSet<BlockId>) -> Result<Users> {
    let mut of_images: BTreeMap<String, BTreeSet<BlockId>> = BTreeMap::new();
    for name in store.names()? {
        let of_image: BTreeSet<BlockId> = match store.map(&name) {
            Ok(map) => map
                .blocks()
                .map(|(id, _, _)| id)
                .filter(|id| ids.contains(id))
                .collect(),
            // The look at the maps has told it, or it is gone.
            Err(error) if error.is_unreadable() || error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        of_images.insert(name, of_image);
    }
    // Blocks of base images.
    let all: BTreeSet<BlockId> = of_images.values().flatten().copied().collect();
    let mut users = Users::new();
    if all.is_empty() {
        return Ok(users);
    }
    for (name, of_image) in of_images {
        let mut paths = match opened(store, &name).ok() {
            Some(image) if !of_image.is_empty() || image.has_bases() => damaged_paths(&image),
            Some(_) => continue,
            None => vec![None],
        };
        if paths.is_empty() && !of_image.is_empty() {
            paths.push(None);
        }
        let blamed = if of_image.is_empty() { &all } else { &of_image };
        for id in blamed {
            let of_block = users.entry(*id).or_default();
            of_block.extend(paths.iter().map(|path| ScrubUser {
                name: name.clone(),
                snapshot: None,
                path: path.clone(),
                inode: None,
            }));
        }
    }
    Ok(users)
}

/// Images that cannot be opened, beside those of the names `known`, and why.
///
/// # Errors
/// `Io`.
pub fn unopened_images(store: &Store, known: &BTreeSet<String>) -> Result<Vec<(String, String)>> {
    let mut found = Vec::new();
    for name in store
        .names()?
        .into_iter()
        .filter(|name| !known.contains(name))
    {
        match opened(store, &name) {
            Ok(_) => {}
            // It is gone, or going.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Busy) => {}
            Err(error) => found.push((name, format!("cannot be opened: {error}"))),
        }
    }
    Ok(found)
}

/// The image `name`.
fn opened(store: &Store, name: &str) -> Result<Image> {
    let options = ImageOptions {
        cache_len: ByteLen(IMAGE_CACHE_LEN),
        ..ImageOptions::default()
    };
    Image::open_stored(store.clone(), name, 0, &options)
}

/// The paths of an image that cannot be read.
fn damaged_paths(image: &Image) -> Vec<Option<Vec<u8>>> {
    let options = ImageCheckOptions {
        digests_only: false,
        threads: 1,
        path_count_max: PATH_COUNT_MAX,
    };
    let mut paths = Vec::new();
    image.check(&options, &mut |found| {
        if let ImageFinding::Path { path, .. } = found {
            paths.push(Some(path));
        }
    });
    paths
}
