//! `weald volume seal`: an image of a volume.

mod mounted;
mod source;

use super::{Ask, Mounted, Named, VolumePath};
use crate::commands::build::{json as build_json, summary};
use crate::commands::sent_image::SentImage;
use crate::help::{DONE_OR_FAILED, Help};
use crate::open::refuse_stored_target;
use crate::output::Output;
use crate::pack::{DisplayArgs, ResourceArgs, set_memory};
use crate::progress::{bytes, count};
use crate::shape::OUTPUT;
use anyhow::{anyhow, bail};
use clap::{Args, ValueHint};
use mounted::MountedState;
use source::{SealSource, Used};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;
use weald_builder::stream::{EncodedBlock, build_of_blocks, build_of_own_blocks, build_of_parts};
use weald_builder::{BuildOptions, Observer, Report};
use weald_format::{Error, ErrorKind};
use weald_store::{Imported, StoreWriter};
use weald_volume::VolumeReader;

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[],
    notes: &[
        "The image has the files of the volume as they are: names, attributes, mtimes, extended \
         attributes, hard links, holes. Like every image it keeps no atimes and ctimes. The \
         volume stays as it is.",
        "The volume may be mounted, by the same user, and written meanwhile: the image has its \
         state at the moment of the call. The server of the mount writes all changes to disk, and \
         keeps the space of what is removed until the seal ends. If the disk of the store becomes \
         full or the volume is unmounted meanwhile, the seal fails. A copy of the tables goes to \
         TMPDIR, about 150 bytes for a file.",
        "With --name, the image lies in the store of the volume and shares all blocks of data \
         with it: it takes the space of its names and attributes. The image and the volume can be \
         changed and removed without each other. If the volume is mounted, its server writes the \
         image, which a volume mounted with -o ro refuses.",
        "With --image, the blocks are copied as they are stored. Blocks that hold data of removed \
         files too are written without that data.",
        "All data is read once, for the digests of the image.",
    ],
    examples: &[
        (
            "Keep the present state of a volume in its store, mounted or not",
            "weald volume seal /srv/store:home --name home-2024-02",
        ),
        (
            "Back a volume up to an image file, mounted or not",
            "weald volume seal /srv/store:home --image home.weald",
        ),
        (
            "Make a volume of that state again",
            "weald volume create /srv/store:again --from /srv/store:home-2024-02",
        ),
    ],
    exit_status: DONE_OR_FAILED,
};

/// Make an image of a volume
#[derive(Args, Debug)]
#[command(after_help = HELP.short(), after_long_help = HELP.long())]
pub(super) struct SealArgs {
    #[command(flatten)]
    path: VolumePath,
    /// Write the image to this file
    #[arg(
        long,
        value_name = "FILE",
        value_hint = ValueHint::FilePath,
        conflicts_with = "name",
        help_heading = OUTPUT
    )]
    image: Option<PathBuf>,
    /// Make an image with this name in the store of the volume
    #[arg(long, value_name = "NAME", help_heading = OUTPUT)]
    name: Option<String>,
    /// Replace the image file if it exists
    #[arg(short, long, requires = "image", help_heading = OUTPUT)]
    force: bool,
    #[command(flatten)]
    display: DisplayArgs,
    #[command(flatten)]
    resources: ResourceArgs,
}

pub(super) fn seal(args: &SealArgs) -> anyhow::Result<ExitCode> {
    let named = Named::open(&args.path.volume)?;
    named.find()?;
    let mut options = BuildOptions {
        threads: args.resources.threads,
        ..BuildOptions::default()
    };
    set_memory(&mut options, args.resources.memory);
    options.validate()?;
    let target = match (&args.image, &args.name) {
        (Some(image), _) => {
            refuse_stored_target(image)?;
            Target::File(image, args.force)
        }
        (None, Some(name)) => Target::Store(name),
        (None, None) => bail!("expected --image FILE or --name NAME"),
    };
    let display = args.display.display()?;
    let start = Instant::now();
    let sealed = match named.mounted(Ask::Mounts)? {
        Some(mount) => seal_mounted(&named, &mount, target, &options, &display),
        None => seal_closed(&named, target, &options, &display),
    };
    display.finish();
    let (report, stored) = sealed?;
    print(&args.display, &report, stored, start)?;
    Ok(ExitCode::SUCCESS)
}

/// Place of the image.
#[derive(Clone, Copy)]
enum Target<'a> {
    /// A file, and whether it may replace another.
    File(&'a Path, bool),
    /// A name in the store of the volume.
    Store(&'a String),
}

/// The report of the builder, and what the store says of an image in it.
type Sealed<'a> = (Report, Option<(&'a String, Imported)>);

fn seal_closed<'a>(
    named: &Named,
    target: Target<'a>,
    options: &BuildOptions,
    observer: &dyn Observer,
) -> anyhow::Result<Sealed<'a>> {
    let store = match target {
        Target::File(..) => named.store.for_reading(),
        Target::Store(_) => named.store.clone(),
    };
    weald_volume::apply_sync_log(&store, &named.name)?;
    let writer = store.write(super::write_options("seal"))?;
    let reader = VolumeReader::open(&writer, &named.name)?;
    match target {
        Target::File(image, is_forced) => {
            let report = to_file(&reader, (image, is_forced), options, observer)?;
            Ok((report, None))
        }
        Target::Store(name) => {
            let (report, imported) = to_store((writer, &reader), name, options, observer)?;
            Ok((report, Some((name, imported))))
        }
    }
}

/// Seals a volume that a server has mounted, and that goes on meanwhile.
fn seal_mounted<'a>(
    named: &Named,
    mount: &Mounted,
    target: Target<'a>,
    options: &BuildOptions,
    observer: &dyn Observer,
) -> anyhow::Result<Sealed<'a>> {
    if let Target::File(image, false) = target {
        weald_io::refuse_existing(image).map_err(with_force)?;
    }
    let state = MountedState::open(named, mount)?;
    let sealed = match target {
        Target::File(image, is_forced) => {
            to_file(state.reader(), (image, is_forced), options, observer)
                .map(|report| (report, None))
        }
        Target::Store(name) => to_mounted_store(&state, name, options, observer)
            .map(|(report, imported)| (report, Some((name, imported)))),
    };
    state.explained(sealed)
}

fn with_force(error: Error) -> anyhow::Error {
    match error.kind() {
        ErrorKind::Busy => anyhow!("{error}; --force replaces it"),
        _ => error.into(),
    }
}

fn to_file(
    reader: &VolumeReader,
    to: (&Path, bool),
    options: &BuildOptions,
    observer: &dyn Observer,
) -> anyhow::Result<Report> {
    let mut source = SealSource::new(reader)?;
    let used = Used::of(&source)?;
    let blocks = &mut |id| {
        let (record, stored) = reader.block(id, used.ranges(id))?;
        Ok(EncodedBlock::Bytes(record, stored))
    };
    build_of_blocks(&mut source, blocks, to, options, observer).map_err(with_force)
}

fn to_store(
    (writer, reader): (StoreWriter, &VolumeReader),
    name: &str,
    options: &BuildOptions,
    observer: &dyn Observer,
) -> anyhow::Result<(Report, Imported)> {
    let mut source = SealSource::new(reader)?;
    let blocks = &mut |id| Ok(EncodedBlock::Stored(reader.part(id)?));
    let target = (writer, name);
    let built = build_of_own_blocks(&mut source, blocks, target, options, observer);
    Ok(built?)
}

/// Sends the parts of the image to the server, which writes the store.
fn to_mounted_store(
    state: &MountedState,
    name: &str,
    options: &BuildOptions,
    observer: &dyn Observer,
) -> anyhow::Result<(Report, Imported)> {
    let reader = state.reader();
    let mut source = SealSource::new(reader)?;
    let blocks = &mut |id| Ok(EncodedBlock::Stored(reader.part(id)?));
    let image = SentImage::begin(state.held(), name)?;
    let sink = image.sink();
    let report = build_of_parts(&mut source, blocks, sink, options, observer)?;
    let imported = image.finish(report.image_digest, report.tree_digest)?;
    Ok((report, imported))
}

fn print(
    display: &DisplayArgs,
    report: &Report,
    stored: Option<(&String, Imported)>,
    start: Instant,
) -> anyhow::Result<()> {
    let mut output = Output::new();
    if display.json {
        let mut object = build_json(report, start.elapsed());
        if let Some((name, imported)) = stored {
            object.insert("name".into(), name.as_str().into());
            object.insert("block_count".into(), imported.block_count.into());
            object.insert("new_block_count".into(), imported.new_block_count.into());
            object.insert("new_len".into(), imported.new_len.into());
        }
        output.json(&object.into())?;
    } else if !display.quiet {
        output.text(&summary(report, start.elapsed()))?;
        if let Some((name, imported)) = stored {
            writeln!(
                output,
                "store         {} new in {} blocks for {name}",
                bytes(imported.new_len),
                count(imported.new_block_count),
            )?;
        }
    }
    output.finish()?;
    Ok(())
}
