//! A volume or a snapshot as an image that is nowhere stored, for the commands that read images.
//!
//! The image has the names and attributes in memory; its blocks are those of the store. Contents
//! are told apart by where they lie, so that no data is read before a command asks for it. The
//! digests of contents are therefore not those of a sealed image, and commands that show or compare
//! digests of images do not open one of these.

use super::mounted::MountedState;
use super::source::{Identity, SealSource};
use crate::messages;
use crate::named_volume::Named;
use crate::reported_mounts::Ask;
use crate::writer_name::writer_name;
use anyhow::{Context, bail};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};
use weald_builder::stream::{EncodedBlock, build_of_parts};
use weald_builder::{BuildOptions, Silent};
use weald_daemon::HeldVolume;
use weald_format::store::Part;
use weald_format::{Error, ErrorKind, Result};
use weald_image::{Image, OpenOptions};
use weald_io::ReadAt;
use weald_store::{PartsInMemory, READER_OF_VOLUME, Store, StoreWriter, StoredImage, WriteOptions};
use weald_volume::VolumeReader;

/// Whether damaged parts of a volume are missing in what this process opened.
static HAS_LEFT_OUT: AtomicBool = AtomicBool::new(false);

/// Whether damaged parts of a volume are missing in what this process opened: it has told of them.
pub fn has_left_out() -> bool {
    HAS_LEFT_OUT.load(Ordering::Relaxed)
}

/// Opens the volume or the snapshot that `path` names as `STORE:VOLUME` or `STORE:VOLUME@NAME`;
/// returns `None` if it names neither. Damaged parts are left out and told of.
///
/// # Errors
/// A store that another process writes; a volume whose rows cannot be read.
/// # Cost
/// Reads all names and attributes. Of a mounted volume, a copy of the tables goes to a temporary
/// file, about 150 bytes for a file.
pub fn open(path: &Path, options: &OpenOptions) -> anyhow::Result<Option<Image>> {
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
    let shown = format!("{}:{state}", named.store.shown());
    if options.expected_digest.is_some() || options.generation.is_some() {
        bail!(
            "{shown}: a volume has no image digest and no generations: 'weald volume seal {shown} \
             --image FILE' makes an image of it"
        );
    }
    let is_missing = |error: &anyhow::Error| {
        let cause = error.downcast_ref::<Error>();
        cause.is_some_and(|cause| cause.kind() == ErrorKind::NotFound)
    };
    match open_named(&named, &state, options) {
        Err(error) if state != named.name && is_missing(&error) => bail!(
            "{shown}: no such snapshot: 'weald snapshot ls {}' lists them",
            named.shown()
        ),
        image => image.map(Some).context(shown),
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
        None => {
            let writer = writer_of(named)?;
            let (store, readers) = {
                let writer = writer.lock().unwrap_or_else(PoisonError::into_inner);
                let readers = VolumeReader::open_changed(&writer, &named.name, states)?;
                (writer.store().clone(), readers)
            };
            let keeper = || Keeper::Writer(writer.clone());
            (store, [keeper(), keeper()], readers)
        }
    };
    let [left, right] = readers;
    let [left_keeper, right_keeper] = keepers;
    Ok([
        image_of(store.clone(), tree_of(&left)?, left_keeper, options)?,
        image_of(store, tree_of(&right)?, right_keeper, options)?,
    ])
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
            match writer_of(named) {
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

fn open_named(named: &Named, state: &str, options: &OpenOptions) -> anyhow::Result<Image> {
    let writer = match Holder::of(named, state)? {
        Holder::Server(held) => {
            let parts = tree_of(held.reader())?;
            return image_of(
                named.store.clone(),
                parts,
                Keeper::Server(Arc::new(held.into_held())),
                options,
            );
        }
        Holder::Own(writer) => writer,
    };
    let (store, parts) = {
        let writer = writer.lock().unwrap_or_else(PoisonError::into_inner);
        let parts = tree_of(&VolumeReader::open(&writer, state)?)?;
        (writer.store().clone(), parts)
    };
    image_of(store, parts, Keeper::Writer(writer), options)
}

/// The writer of the store, which nothing else changes meanwhile. Two trees of one store have the
/// same one.
fn writer_of(named: &Named) -> anyhow::Result<Arc<Mutex<StoreWriter>>> {
    static WRITERS: Mutex<Vec<(PathBuf, Weak<Mutex<StoreWriter>>)>> = Mutex::new(Vec::new());
    let mut writers = WRITERS.lock().unwrap_or_else(PoisonError::into_inner);
    let mut known = writers.iter().filter(|(dir, _)| *dir == named.dir);
    if let Some(writer) = known.find_map(|(_, writer)| writer.upgrade()) {
        return Ok(writer);
    }
    let store = named.store.for_reading();
    let own_name = writer_name(READER_OF_VOLUME);
    weald_volume::apply_sync_log(&store, &named.name, &own_name)?;
    let writer = store.write(WriteOptions::new(own_name))?;
    let writer = Arc::new(Mutex::new(writer));
    writers.push((named.dir.clone(), Arc::downgrade(&writer)));
    Ok(writer)
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
    let source = StateSource {
        image: StoredImage::of_parts(store.clone(), parts),
        keeper,
    };
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
