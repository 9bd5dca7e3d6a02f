//! `weald store create` and `import`.

use super::import_target::ImportTarget;
use super::names;
use super::wait::WaitArgs;
use crate::foreign;
use crate::help::{DONE_OR_FAILED, Help};
use crate::json::{Object, hex, put_name};
use crate::open::{default_cache_len, thread_count};
use crate::open_store::{StoreDir, new_image_at, open_dir, show_path};
use crate::output::Output;
use crate::progress::{bytes, count};
use crate::uuid::random_uuid;
use crate::writer_name::writer_name;
use anyhow::{Context, bail};
use clap::{Args, ValueHint};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use weald_format::{Error, ErrorKind, ErrorPlace};
use weald_image::{Image, ImageStart, Members, OpenOptions};
use weald_io::{FileSource, ReadAt};
use weald_store::{Imported, SEGMENT_LEN_DEFAULT, Store, StoreLocation, WriteOptions, check_name};

/// Sections of the help.
pub const CREATE_HELP: Help = Help {
    lists: &[],
    notes: &[
        "The directory is created if it is missing; otherwise it must be empty. Put a store on a \
         file system with file locks: a local one, not every network file system.",
    ],
    examples: &[
        ("Make a store", "weald store create new-store"),
        (
            "Make a store of small segment files",
            "weald store create --segment-size 8M new-store-2",
        ),
    ],
    exit_status: DONE_OR_FAILED,
};

/// Make an empty store
#[derive(Args, Debug)]
#[command(after_help = CREATE_HELP.short(), after_long_help = CREATE_HELP.long())]
pub(super) struct CreateArgs {
    #[command(flatten)]
    location: StoreDir,
    /// Size of the segment files that hold the blocks (default: 64M)
    #[arg(long, value_name = "SIZE", value_parser = crate::parse::size)]
    segment_size: Option<u64>,
    /// Print nothing
    #[arg(short, long)]
    quiet: bool,
    /// Print one JSON object
    #[arg(long, conflicts_with = "quiet")]
    json: bool,
}

pub(super) fn create(args: &CreateArgs) -> anyhow::Result<ExitCode> {
    let path = &args.location.store;
    let words = show_path(path);
    let has_colon = |name: &std::ffi::OsStr| name.as_bytes().contains(&b':');
    if path.file_name().is_some_and(has_colon) {
        bail!(
            "{words}: the name of a store has no colon, which stands before the name of an image \
             or volume: 'weald store add' makes an image, 'weald volume create' a volume"
        );
    }
    if weald_store::is_store(path) {
        bail!("{words}: a store is here already: 'weald store info {words}' describes it");
    }
    let segment_len = args.segment_size.unwrap_or(SEGMENT_LEN_DEFAULT);
    let was_there = path.exists();
    let store = match StoreLocation::from(path.as_path()).create(random_uuid()?, segment_len) {
        Err(error) if error.kind() == ErrorKind::Busy => {
            bail!("{error}: a store needs a directory of its own, which this command makes")
        }
        Err(error) => {
            undo_create(path, was_there);
            return Err(error.into());
        }
        Ok(store) => store,
    };
    let mut output = Output::new();
    if args.json {
        let mut object = Object::new();
        put_name(&mut object, "store", path.as_os_str().as_bytes());
        object.insert("uuid".into(), hex(&store.uuid()).into());
        object.insert("segment_len".into(), segment_len.into());
        output.json(&object.into())?;
    } else if !args.quiet {
        writeln!(output, "{words}: an empty store")?;
    }
    output.finish()?;
    Ok(ExitCode::SUCCESS)
}

/// Removes the files that a failed creation left in a directory that was empty.
fn undo_create(path: &Path, was_there: bool) {
    // Missing files are fine. If a file cannot be removed, the first error is the one to report.
    for file in ["store.new", "store", "store.copy", "lock", "meta", "mark"] {
        let _ = std::fs::remove_file(path.join(file));
    }
    for dir in ["segments", "images"] {
        let _ = std::fs::remove_dir(path.join(dir));
    }
    if !was_there {
        let _ = std::fs::remove_dir(path);
    }
}

/// Sections of the help.
pub const IMPORT_HELP: Help = Help {
    lists: &[],
    notes: &[
        "Import verifies every record on the way and stores those that the store does not have. It \
         refuses an image whose structure is damaged, unless its base images are missing, and \
         before, it reads the image and compares its tree with the tree digest that it claims, \
         unless --no-verify is given. An image may also be STORE:NAME of another store. If an \
         image has base images, import these too: they are searched in the store first. Import \
         says which of them are missing.",
        "The name is that of the file without .weald, unless --name gives another. A name has 1 \
         to 200 bytes of UTF-8, no '/', no control character and no dot in front. No two images \
         of a store have the same name.",
        "With --replace, a name can move, as that of the latest version: readers find the old \
         image until the new one is complete. Mounts of the old image go on with it, and it keeps \
         its space until they end.",
        "If a volume of the store is mounted, by the same user, its server stores the image while \
         the volume goes on. --verify-duplicates is then refused, and --index-memory is without \
         effect.",
    ],
    examples: &[
        (
            "Put an image into a store",
            "weald store import /srv/store v1.weald",
        ),
        (
            "Put several images into a store",
            "weald store import /srv/store monday.weald tuesday.weald",
        ),
        (
            "Put an image into a store under another name",
            "weald store import /srv/store v1.weald --name tools-1.0",
        ),
    ],
    exit_status: DONE_OR_FAILED,
};

/// Put image files into a store
#[derive(Args, Debug)]
#[command(after_help = IMPORT_HELP.short(), after_long_help = IMPORT_HELP.long())]
pub(super) struct ImportArgs {
    #[command(flatten)]
    location: StoreDir,
    /// Image files
    #[arg(value_name = "IMAGE", required = true, value_hint = ValueHint::FilePath)]
    images: Vec<PathBuf>,
    /// Name of the image in the store (default: the file's name without .weald)
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Memory for the index that finds blocks the store already has
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = crate::parse::size)]
    index_memory: u64,
    /// Read and verify a block of the store before it replaces one of the image; store a damaged
    /// one again
    #[arg(long)]
    verify_duplicates: bool,
    #[command(flatten)]
    wait: WaitArgs,
    /// Replace an image of the same name: its name means the old image or the new one at any
    /// moment
    #[arg(long)]
    replace: bool,
    /// Do not compare the tree digest of the image with its tree
    #[arg(long)]
    no_verify: bool,
    /// Print nothing
    #[arg(short, long)]
    quiet: bool,
    /// Print one JSON object per image
    #[arg(long, conflicts_with = "quiet")]
    json: bool,
}

/// An image to import, and its name in the store.
struct Incoming<'a> {
    path: &'a Path,
    name: String,
    source: Box<dyn ReadAt>,
}

/// Default name of an image: its file name, or its name in another store.
fn default_name(image: &Path) -> anyhow::Result<String> {
    if let Some((_, name)) = weald_store::split(image) {
        return Ok(name);
    }
    let name = image.file_name().and_then(|name| name.to_str());
    let name = name.map(|name| name.strip_suffix(".weald").unwrap_or(name));
    let words = show_path(image);
    let name = name.with_context(|| format!("{words}: no name in UTF-8: give one with --name"))?;
    check_name(name).with_context(|| format!("{words}: give another name with --name"))?;
    Ok(name.to_owned())
}

/// Opens an image whose bytes are to be imported.
fn open_image(path: &Path) -> anyhow::Result<Box<dyn ReadAt>> {
    if let Some(what) = foreign::describe(path, ImageStart::default()) {
        bail!("{}: {what}", show_path(path));
    }
    Ok(match weald_store::find(path)? {
        Some(image) => Box::new(image),
        None => Box::new(FileSource::open(path, 0)?),
    })
}

pub(super) fn import(args: &ImportArgs) -> anyhow::Result<ExitCode> {
    let (dir, name) = new_image_at(&args.location.store, args.name.as_deref())?;
    if name.is_some() && args.images.len() > 1 {
        bail!(
            "one name for {} images: import them one by one",
            args.images.len()
        );
    }
    let store = open_dir(&dir)?;
    let mut incoming: Vec<Incoming<'_>> = Vec::new();
    for path in &args.images {
        let name = name.clone().map_or_else(|| default_name(path), Ok)?;
        check_name(&name)?;
        if let Some(same) = incoming.iter().find(|other| other.name == name) {
            let (first, second) = (show_path(same.path), show_path(path));
            bail!("{first} and {second} would both be called {name}: use --name");
        }
        let source = open_image(path)?;
        incoming.push(Incoming { path, name, source });
    }
    let options = WriteOptions {
        index_len: args.index_memory,
        verifies_duplicates: args.verify_duplicates,
        ..WriteOptions::new(writer_name("store import"))
    };
    args.wait.until_free(&store)?;
    let mut target = ImportTarget::open(&store, &dir, options)?;
    let mut taken = Vec::new();
    if args.replace {
        for image in &incoming {
            if names::prepare_to_replace(&store, &image.name)? {
                taken.push(image.name.clone());
            }
        }
    } else {
        refuse_taken(&store, &incoming)?;
    }
    let mut output = Output::new();
    for image in &incoming {
        check_structure(&store, image)?;
        if !args.no_verify {
            verify_tree(image.path, &store)?;
        }
        let imported = if taken.contains(&image.name) {
            let imported = import_image(&mut target, image, &names::name_before(&image.name))?;
            names::replace(&store, &mut target, &image.name)?;
            imported
        } else {
            import_image(&mut target, image, &image.name)?
        };
        if args.json {
            output.json(&imported_json(&image.name, &imported).into())?;
        } else if !args.quiet {
            output.text(&imported_text(&image.name, &imported))?;
        }
        output.flush()?;
    }
    output.finish()?;
    let members = Members::read(&store)?;
    for image in &incoming {
        members.warn_missing(&store, &image.name)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Refuses the command before any image is read, if a name is already in the store.
fn refuse_taken(store: &Store, incoming: &[Incoming<'_>]) -> anyhow::Result<()> {
    let names = store.names()?;
    for image in incoming {
        if names.contains(&image.name) {
            bail!(
                "{}:{}: the store has an image of this name: give another one with --name, \
                 replace that one with --replace, or remove it with 'weald store rm'",
                store.shown(),
                image.name
            );
        }
    }
    Ok(())
}

/// Whether a base image was not found.
fn is_base_missing(error: &Error) -> bool {
    let is_base = |place: &ErrorPlace| place.rule == "F-22.1";
    error.kind() == ErrorKind::NotFound || error.place().is_some_and(is_base)
}

/// Refuses an image whose structure is damaged. Its records may be whole all the same: a writer
/// with other limits made it. An image whose base images are not here yet is not checked.
fn check_structure(store: &Store, image: &Incoming<'_>) -> anyhow::Result<()> {
    let options = OpenOptions {
        store: Some(store.clone()),
        ..OpenOptions::default()
    };
    let opened = match Image::open_path(image.path, ImageStart::default(), &options) {
        Err(error) if is_base_missing(&error) => return Ok(()),
        opened => opened,
    };
    match opened.and_then(|opened| opened.check_structure(None)) {
        Err(error) if is_of_image(&error) => {
            Err(foreign::explain(image.path, ImageStart::default(), error))
        }
        checked => Ok(checked?),
    }
}

/// Refuses an image that claims another tree digest than that of its tree: the store would show it.
fn verify_tree(path: &Path, store: &Store) -> anyhow::Result<()> {
    let options = OpenOptions {
        cache_len: default_cache_len(),
        store: Some(store.clone()),
        ..OpenOptions::default()
    };
    let image = match Image::open_path(path, ImageStart::default(), &options) {
        Err(error) if is_base_missing(&error) => {
            log::warn!(
                "{}: the tree digest is not verified: {error}",
                show_path(path)
            );
            return Ok(());
        }
        Err(error) => return Err(foreign::explain(path, ImageStart::default(), error)),
        Ok(image) => image,
    };
    let claimed = image.summary().tree_digest;
    let digest = || image.computed_tree_digest(&image.content_digests(thread_count(0))?);
    let digest = digest().with_context(|| show_path(path))?;
    if digest != claimed {
        bail!(
            "{}: claims the tree digest {claimed}, and its tree has {digest}: 'weald rewrite' \
             writes the right one; --no-verify imports the image as it is",
            show_path(path)
        );
    }
    Ok(())
}

fn import_image(
    target: &mut ImportTarget,
    image: &Incoming<'_>,
    name: &str,
) -> anyhow::Result<Imported> {
    match target.import(name, &*image.source) {
        Err(error) if is_of_image(&error) => {
            Err(foreign::explain(image.path, ImageStart::default(), error))
        }
        other => Ok(other?),
    }
}

/// Whether the image is damaged. (Errors of the store name its own files.)
fn is_of_image(error: &Error) -> bool {
    match error.kind() {
        ErrorKind::Corrupt | ErrorKind::Lost => true,
        ErrorKind::Unsupported => error.io_source().is_none(),
        _ => false,
    }
}

fn imported_json(name: &str, imported: &Imported) -> Object {
    let mut object = Object::new();
    object.insert("name".into(), name.into());
    let digests = [
        ("image_digest", imported.image_digest),
        ("tree_digest", imported.tree_digest),
    ];
    for (key, digest) in digests {
        object.insert(key.into(), digest.to_string().into());
    }
    let numbers = [
        ("image_len", imported.image_len),
        ("block_count", imported.block_count),
        ("new_block_count", imported.new_block_count),
        ("new_len", imported.new_len),
    ];
    for (key, number) in numbers {
        object.insert(key.into(), number.into());
    }
    object
}

fn imported_text(name: &str, imported: &Imported) -> String {
    format!(
        "{name}: {} of {} blocks are new; the store grew by {} for an image of {}\n",
        count(imported.new_block_count),
        count(imported.block_count),
        bytes(imported.new_len),
        bytes(imported.image_len),
    )
}
