//! `weald volume seal`: an image of a volume.

mod source;

use super::{Named, VolumePath};
use crate::commands::build::{json as build_json, summary};
use crate::help::{DONE_OR_FAILED, Help};
use crate::open::refuse_stored_target;
use crate::output::Output;
use crate::pack::{DisplayArgs, ResourceArgs, set_memory};
use crate::progress::{bytes, count};
use crate::shape::OUTPUT;
use anyhow::bail;
use clap::{Args, ValueHint};
use source::{SealSource, Used};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;
use weald_builder::stream::{EncodedBlock, build_of_blocks, build_of_own_blocks};
use weald_builder::{BuildOptions, Observer, Report};
use weald_format::ErrorKind;
use weald_store::Imported;
use weald_volume::VolumeReader;

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[],
    notes: &[
        "The image has the files of the volume as they are: names, attributes, mtimes, extended \
         attributes, hard links, holes. Like every image it keeps no atimes and ctimes. The \
         volume stays as it is. It must not be mounted.",
        "With --name, the image lies in the store of the volume and shares all blocks of data \
         with it: it takes the space of its names and attributes. The image and the volume can be \
         changed and removed without each other.",
        "With --image, the blocks are copied as they are stored. Blocks that hold data of removed \
         files too are written without that data.",
        "All data is read once, for the digests of the image.",
    ],
    examples: &[
        (
            "Keep the present state of a volume in its store",
            "weald volume seal /srv/store:home --name home-2024-02",
        ),
        (
            "Write the volume to an image file",
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
    named.refuse_mounted("sealed")?;
    let mut options = BuildOptions {
        threads: args.resources.threads,
        ..BuildOptions::default()
    };
    set_memory(&mut options, args.resources.memory);
    options.validate()?;
    weald_volume::settle(&named.store, &named.name)?;
    let display = args.display.display()?;
    let start = Instant::now();
    let sealed = match (&args.image, &args.name) {
        (Some(image), _) => {
            refuse_stored_target(image)?;
            let to = (image.as_path(), args.force);
            to_file(&named, to, &options, &display).map(|report| (report, None))
        }
        (None, Some(name)) => to_store(&named, name, &options, &display)
            .map(|(report, imported)| (report, Some((name, imported)))),
        (None, None) => bail!("expected --image FILE or --name NAME"),
    };
    display.finish();
    let (report, stored) = sealed?;
    print(&args.display, &report, stored, start)?;
    Ok(ExitCode::SUCCESS)
}

fn to_file(
    named: &Named,
    (image, is_forced): (&Path, bool),
    options: &BuildOptions,
    observer: &dyn Observer,
) -> anyhow::Result<Report> {
    let writer = named.store.write(super::write_options("seal"))?;
    let reader = VolumeReader::open(&writer, &named.name)?;
    let mut source = SealSource::new(&reader)?;
    let used = Used::of(&source)?;
    let blocks = &mut |id| {
        let (record, stored) = reader.block(id, used.ranges(id))?;
        Ok(EncodedBlock::Bytes(record, stored))
    };
    match build_of_blocks(&mut source, blocks, (image, is_forced), options, observer) {
        Err(error) if error.kind() == ErrorKind::Busy => bail!("{error}; --force replaces it"),
        other => Ok(other?),
    }
}

fn to_store(
    named: &Named,
    name: &str,
    options: &BuildOptions,
    observer: &dyn Observer,
) -> anyhow::Result<(Report, Imported)> {
    let writer = named.store.write(super::write_options("seal"))?;
    let reader = VolumeReader::open(&writer, &named.name)?;
    let mut source = SealSource::new(&reader)?;
    let blocks = &mut |id| Ok(EncodedBlock::Stored(reader.part(id)?));
    let target = (writer, name);
    Ok(build_of_own_blocks(
        &mut source,
        blocks,
        target,
        options,
        observer,
    )?)
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
