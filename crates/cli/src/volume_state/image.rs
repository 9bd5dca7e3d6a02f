//! A volume or a snapshot as an image that is nowhere stored, for the commands that read images.
//!
//! The image has the names and attributes in memory; its blocks are those of the store. Contents
//! are told apart by where they lie, so that no data is read before a command asks for it. The
//! digests of contents are therefore not those of a sealed image, and commands that show or compare
//! digests of images do not open one of these.

use super::leased::LeasedTables;
use super::mounted::MountedState;
use super::own_writer::writer_of_newest;
use super::source::{Identity, SealSource};
use crate::messages;
use crate::named_volume::Named;
use crate::reported_mounts::Ask;
use anyhow::{Context, bail};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use weald_builder::stream::{EncodedBlock, build_of_parts};
use weald_builder::{BuildOptions, Silent};
use weald_daemon::HeldVolume;
use weald_format::store::Part;
use weald_format::{BlockId, Error, ErrorKind, Result};
use weald_image::{Image, OpenOptions};
use weald_io::ReadAt;
use weald_store::engine::Engine;
use weald_store::{PartsInMemory, SnapshotLock, Store, StoreWriter, StoredImage};
use weald_volume::{ShownPath, VolumeReader};

/// Whether damaged parts of a volume are missing in what this process opened.
static HAS_LEFT_OUT: AtomicBool = AtomicBool::new(false);

/// Whether damaged parts of a volume are missing in what this process opened: it has told of them.
pub fn has_left_out() -> bool {
    HAS_LEFT_OUT.load(Ordering::Relaxed)
}

/// Opens the volume or the snapshot that `path` names as `STORE:VOLUME` or `STORE:VOLUME@NAME`;
/// returns `None` if it names neither. Damaged parts are left out and told of. With `shown`, it has
/// what lies at these paths, and the way there.
///
/// A volume that is not mounted does not change as long as it is read: writers wait. Those beside a
/// reader of a snapshot go on; it cannot be removed.
///
/// # Errors
/// A store that another process writes; a volume whose rows cannot be read.
/// # Cost
/// Reads the names and attributes that are shown. Of a mounted volume, a copy of the tables goes to
/// a temporary file, about 150 bytes for a file.
pub fn open(
    path: &Path,
    options: &OpenOptions,
    shown: Option<&[ShownPath]>,
) -> anyhow::Result<Option<Image>> {
    if weald_store::split(path).is_none() {
        return Ok(None);
    }
    let mut named = Named::open(path)?;
    let state = named.name.clone();
    let volumes = named.store.volume_names()?;
    if !volumes.contains(&state) {
        let Some((volume, _)) = weald_store::split_state(&state) else {
            return Ok(None);
        };
        volume.clone_into(&mut named.name);
        if !volumes.contains(&named.name) {
            return Ok(None);
        }
    }
    let words = format!("{}:{state}", named.store.shown());
    if options.expected_digest.is_some() || options.generation.is_some() {
        bail!(
            "{words}: a volume has no image digest and no generations: 'weald volume seal {words} \
             --image FILE' makes an image of it"
        );
    }
    let is_missing = |error: &anyhow::Error| {
        let cause = error.downcast_ref::<Error>();
        cause.is_some_and(|cause| cause.kind() == ErrorKind::NotFound)
    };
    match open_named(&named, &state, (options, shown)) {
        Err(error) if state != named.name && is_missing(&error) => bail!(
            "{words}: no such snapshot: 'weald snapshot ls {}' lists them",
            named.shown()
        ),
        image => image.map(Some).context(words),
    }
}

/// Opens two states of one volume without what they have in common, if the two paths name such
/// states.
///
/// # Errors
/// As [`open`].
/// # Cost
/// As [`VolumeReader::open_changed`].
pub fn open_changed(
    paths: [&Path; 2],
    options: &OpenOptions,
) -> anyhow::Result<Option<[Image; 2]>> {
    let [Some(left), Some(right)] = paths.map(weald_store::split) else {
        return Ok(None);
    };
    let is_plain = options.expected_digest.is_none() && options.generation.is_none();
    if !is_plain || left.0.canonicalize().ok() != right.0.canonicalize().ok() {
        return Ok(None);
    }
    let mut named = Named::open(paths[0])?;
    let (volumes, images) = (named.store.volume_names()?, named.store.names()?);
    let split = |name: &str| match weald_store::split_state(name) {
        _ if images.iter().any(|image| image == name) => None,
        _ if volumes.iter().any(|volume| volume == name) => Some((name.to_owned(), None)),
        Some((volume, of)) if volumes.iter().any(|name| name == volume) => {
            Some((volume.to_owned(), Some(of.to_owned())))
        }
        _ => None,
    };
    let (Some((volume, first)), Some((other, second))) = (split(&left.1), split(&right.1)) else {
        return Ok(None);
    };
    if volume != other {
        return Ok(None);
    }
    named.name = volume;
    let states = [first.as_deref(), second.as_deref()];
    let shown = named.shown();
    let opened = open_changed_of(&named, states, options);
    opened.map(Some).context(shown)
}

fn open_changed_of(
    named: &Named,
    states: [Option<&str>; 2],
    options: &OpenOptions,
) -> anyhow::Result<[Image; 2]> {
    // Waits for a server that is closing the volume.
    let _ = named.mounted(Ask::Mounts)?;
    let (store, keepers, readers) = match MountedState::find_changes(named, states)? {
        Some((held, readers)) => {
            let held = Arc::new(held);
            let keeper = || Keeper::Server(held.clone());
            (named.store.clone(), [keeper(), keeper()], readers)
        }
        None => match states {
            [Some(left), Some(right)] => return open_leased_changes(named, [left, right], options),
            _ => {
                let writer = writer_of_newest(named)?;
                let (store, readers) = {
                    let writer = writer.lock().unwrap_or_else(PoisonError::into_inner);
                    let readers = VolumeReader::open_changed(&writer, &named.name, states)?;
                    (writer.store().clone(), readers)
                };
                let keeper = || Keeper::Writer(writer.clone());
                (store, [keeper(), keeper()], readers)
            }
        },
    };
    let [left, right] = readers;
    let [left_keeper, right_keeper] = keepers;
    Ok([
        image_of(store.clone(), tree_of(&left)?, left_keeper, options)?,
        image_of(store, tree_of(&right)?, right_keeper, options)?,
    ])
}

/// Opens what differs between two snapshots of a volume that is not mounted.
fn open_leased_changes(
    named: &Named,
    states: [&str; 2],
    options: &OpenOptions,
) -> anyhow::Result<[Image; 2]> {
    let opened = states.map(|of| {
        let tables = LeasedTables::new(named, &format!("{}@{of}", named.name));
        let lock = lock_snapshot(named, &tables, of);
        tables.give_back();
        anyhow::Ok((tables, lock?))
    });
    let [left, right] = opened;
    let (left, right) = (left?, right?);
    let engine: Arc<dyn Engine> = left.0.clone();
    let store = &named.store;
    let read = || {
        let what = (named.name.as_str(), states);
        let [older, newer] = VolumeReader::open_changed_snapshots(store, &engine, what)?;
        anyhow::Ok([tree_of(&older)?, tree_of(&newer)?])
    };
    let parts = read();
    left.0.give_back();
    let [left_parts, right_parts] = parts?;
    Ok([
        image_of(store.clone(), left_parts, Keeper::of_lease(left), options)?,
        image_of(store.clone(), right_parts, Keeper::of_lease(right), options)?,
    ])
}

/// Keeps a snapshot of `named` from being removed.
fn lock_snapshot(named: &Named, tables: &LeasedTables, of: &str) -> anyhow::Result<SnapshotLock> {
    let row = weald_volume::volume_row(tables, &named.name)?;
    let locked = named.store.lock_snapshot(tables, (row.volume_no, of));
    Ok(locked?.1)
}

/// Calls `read` with the volume, mounted or not, as it is now.
///
/// # Errors
/// As [`open`]; those of `read`.
pub fn with_reader<T>(
    named: &Named,
    read: impl FnOnce(&VolumeReader) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    match Holder::of(named, &named.name)? {
        Holder::Server(held) => read(held.reader()),
        Holder::Leased(_) => bail!("{}: names a snapshot", named.shown()),
        Holder::Own(writer) => {
            let writer = writer.lock().unwrap_or_else(PoisonError::into_inner);
            read(&VolumeReader::open(&writer, &named.name)?)
        }
    }
}

/// How long a command waits for a mount that has taken the store and does not answer yet.
const MOUNTING_PATIENCE: Duration = Duration::from_secs(10);

/// Time between two looks.
const INTERVAL: Duration = Duration::from_millis(50);

/// Who keeps a state of a volume as it is while it is read.
enum Holder {
    /// The server that has the volume mounted.
    Server(Box<MountedState>),
    /// This process, as the writer of the store.
    Own(Arc<Mutex<StoreWriter>>),
    /// This process, for a snapshot, and the others in turn.
    Leased(Arc<LeasedTables>),
}

impl Holder {
    /// Finds the server, or becomes the writer. A mount can come first while this waits for the
    /// store.
    fn of(named: &Named, state: &str) -> anyhow::Result<Self> {
        let start = Instant::now();
        loop {
            // Waits for a server that is closing the volume.
            let _ = named.mounted(Ask::Mounts)?;
            if let Some(held) = MountedState::find(named, state)? {
                return Ok(Self::Server(Box::new(held)));
            }
            if state != named.name {
                return Ok(Self::Leased(LeasedTables::new(named, state)));
            }
            match writer_of_newest(named) {
                Err(error) if is_of_mount(&error) && start.elapsed() < MOUNTING_PATIENCE => {
                    std::thread::sleep(INTERVAL);
                }
                writer => return Ok(Self::Own(writer?)),
            }
        }
    }
}

/// Whether a mount has the store.
fn is_of_mount(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<Error>();
    error.is_some_and(|error| {
        error.kind() == ErrorKind::Busy && error.to_string().contains("(weald mount")
    })
}

fn open_named(
    named: &Named,
    state: &str,
    (options, shown): (&OpenOptions, Option<&[ShownPath]>),
) -> anyhow::Result<Image> {
    let showing = |reader: VolumeReader| match shown {
        Some(paths) => reader.showing(paths),
        None => Ok(reader),
    };
    match Holder::of(named, state)? {
        Holder::Server(held) => {
            let (held, reader) = held.into_parts();
            let parts = tree_of(&showing(reader)?)?;
            let keeper = Keeper::Server(Arc::new(held));
            image_of(named.store.clone(), parts, keeper, options)
        }
        Holder::Own(writer) => {
            let (store, parts) = {
                let writer = writer.lock().unwrap_or_else(PoisonError::into_inner);
                let reader = showing(VolumeReader::open(&writer, state)?)?;
                (writer.store().clone(), tree_of(&reader)?)
            };
            image_of(store, parts, Keeper::Writer(writer), options)
        }
        Holder::Leased(tables) => {
            let read = || {
                let of = weald_store::split_state(state).map_or("", |(_, of)| of);
                let lock = lock_snapshot(named, &tables, of)?;
                let engine: Arc<dyn Engine> = tables.clone();
                let place = (named.name.as_str(), of);
                let (reader, _) = VolumeReader::open_snapshot(&named.store, &engine, place)?;
                anyhow::Ok((lock, tree_of(&showing(reader)?)?))
            };
            let read = read();
            tables.give_back();
            let (lock, parts) = read?;
            let keeper = Keeper::of_lease((tables, lock));
            image_of(named.store.clone(), parts, keeper, options)
        }
    }
}

/// The parts of an image of what `reader` reads, which the files of the store do not have.
fn tree_of(reader: &VolumeReader) -> anyhow::Result<Vec<Part>> {
    let tell = |path: &[u8], error: &Error| {
        HAS_LEFT_OUT.store(true, Ordering::Relaxed);
        messages::problem(path, error);
        Ok(())
    };
    let mut source = SealSource::new(reader, &tell, (false, Identity::Places))?;
    let blocks = &mut |id| Ok(EncodedBlock::Stored(reader.part(id)?));
    let parts = PartsInMemory::default();
    let options = BuildOptions::default();
    build_of_parts(&mut source, blocks, parts.clone(), &options, &Silent)?;
    Ok(parts.take())
}

fn image_of(
    store: Store,
    parts: Vec<Part>,
    keeper: Keeper,
    options: &OpenOptions,
) -> anyhow::Result<Image> {
    let image = match &keeper {
        Keeper::Lock { tables, .. } => {
            let tables = tables.clone();
            let find = Box::new(move |ids: &[BlockId]| tables.locations(ids));
            StoredImage::of_moving_parts(store.clone(), parts, find)
        }
        _ => StoredImage::of_parts(store.clone(), parts),
    };
    let source = StateSource { image, keeper };
    let options = OpenOptions {
        store: Some(store),
        ..options.clone()
    };
    Ok(Image::open(Arc::new(source), &options)?)
}

/// What keeps the blocks of the image in their place.
enum Keeper {
    Server(Arc<HeldVolume>),
    /// Held, so that nothing else changes the store meanwhile.
    #[expect(dead_code, reason = "its lock ends with it")]
    Writer(Arc<Mutex<StoreWriter>>),
    /// The snapshot stays, and its blocks can move: the tables say whereto.
    Lock {
        tables: Arc<LeasedTables>,
        #[expect(dead_code, reason = "it ends with the image")]
        lock: SnapshotLock,
    },
}

impl Keeper {
    fn of_lease((tables, lock): (Arc<LeasedTables>, SnapshotLock)) -> Self {
        Self::Lock { tables, lock }
    }
}

/// The bytes of the image.
struct StateSource {
    image: StoredImage,
    keeper: Keeper,
}

impl ReadAt for StateSource {
    fn len(&self) -> u64 {
        self.image.len()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let read = self.image.read_exact_at(buf, offset);
        match &self.keeper {
            // Then the blocks may be gone, and others in their place.
            Keeper::Server(held) if held.is_over() => {
                let what = "the volume was unmounted while it was read: try again";
                Err(Error::new(ErrorKind::Busy, what))
            }
            _ => read,
        }
    }
}
