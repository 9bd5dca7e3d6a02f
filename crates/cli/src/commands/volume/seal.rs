//! `weald volume seal`: an image of a volume.

use super::change::left_out_json;
use crate::commands::build::{json as build_json, summary};
use crate::commands::sent_image::SentImage;
use crate::commands::store::names_writer::remove_image;
use crate::help::{DONE_OR_PARTLY, Help};
use crate::messages;
use crate::named_volume::{Named, VolumePath};
use crate::open::{keep_private_of_store, refuse_stored_target};
use crate::output::Output;
use crate::pack::{DisplayArgs, ResourceArgs, set_memory};
use crate::progress::{bytes, count};
use crate::reported_mounts::{Ask, Mounted};
use crate::shape::OUTPUT;
use crate::status::exit_code;
use crate::volume_state::mounted::MountedState;
use crate::volume_state::source::{Identity, SealSource, Used};
use crate::writer_name::writer_name;
use anyhow::{Context, anyhow, bail};
use clap::{Args, ValueHint};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;
use weald_builder::stream::{
    Digests, EncodedBlock, FileTarget, build_of_blocks, build_of_own_blocks, build_of_parts,
};
use weald_builder::{BuildOptions, Observer, Problem, Report};
use weald_format::{Digest, Error, ErrorKind};
use weald_image::{Image, ImageStart, OpenOptions};
use weald_store::{Imported, WriteOptions};
use weald_vfs::shown_path;
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
        "STORE:VOLUME@NAME seals a snapshot.",
        "All data is read once, for the digests of the image. A file with a damaged block is left \
         out whole, and so is what else an image cannot have: damaged rows with what is below \
         them, the longest of files that have more than 2^62 bytes together, directories nested \
         deeper than 65,535 levels. Standard error names each by its path, and the exit status is \
         1. Of a file with damaged extended attributes, or with more than 4 MiB of them, only \
         these are left out. With --strict, the seal ends at the first of these, without an image.",
        "Before the image is complete, its structure is checked as it was written: names, \
         attributes, hard links, digests. The command weald check reads its data too. A pipe is \
         not checked.",
        "An image file of a store that other users cannot enter has mode 0600.",
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
    exit_status: DONE_OR_PARTLY,
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
    /// End at the first file that must be left out, without an image
    #[arg(long)]
    strict: bool,
    /// Do not check the image that was written
    #[arg(long)]
    no_verify: bool,
    #[command(flatten)]
    display: DisplayArgs,
    #[command(flatten)]
    resources: ResourceArgs,
}

pub(super) fn seal(args: &SealArgs) -> anyhow::Result<ExitCode> {
    let mut named = Named::open(&args.path.volume)?;
    let state = named.name.clone();
    if !named.store.volume_names()?.contains(&state)
        && let Some((volume, _)) = weald_store::split_state(&state)
    {
        volume.clone_into(&mut named.name);
    }
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
            keep_private_of_store(&named.dir);
            Target::File(FileTarget {
                path: image,
                overwrite: args.force,
                is_verified: !args.no_verify,
            })
        }
        (None, Some(name)) => Target::Store(name),
        (None, None) => bail!("expected --image FILE or --name NAME"),
    };
    let display = args.display.display()?;
    let start = Instant::now();
    let seal = Seal {
        options: &options,
        observer: &display,
        is_strict: args.strict,
        left_out: Mutex::default(),
    };
    let sealed = match named.mounted(Ask::Mounts)? {
        Some(mount) => seal.mounted((&named, &state), &mount, target),
        None => seal.closed((&named, &state), target),
    };
    let sealed = sealed.and_then(|sealed| {
        if let Some((name, _)) = sealed.stored.filter(|_| !args.no_verify) {
            verify(&named, name, &sealed.digests)?;
        }
        Ok(sealed)
    });
    display.finish();
    let sealed = sealed?;
    let left_out = seal
        .left_out
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    let code = exit_code(left_out.len() as u64);
    print(&args.display, sealed, left_out, start)?;
    Ok(code)
}

/// Checks the structure of the image `name`, as the store has it now. A damaged one is removed.
fn verify(named: &Named, name: &str, digests: &[Option<Digest>]) -> anyhow::Result<()> {
    let store = &named.store;
    let checked = Image::open_stored(
        store.clone(),
        name,
        ImageStart::Auto,
        &OpenOptions::default(),
    )
    .and_then(|image| image.check_structure(Some(digests)));
    let Err(error) = checked else {
        return Ok(());
    };
    let removed = remove_image(store, name, WriteOptions::new(writer_name("volume seal")));
    removed.context("the image that was written is damaged and cannot be removed")?;
    Err(anyhow::Error::new(error).context("the image that was written is damaged, and was removed"))
}

/// Place of the image.
#[derive(Clone, Copy)]
enum Target<'a> {
    /// A file.
    File(FileTarget<'a>),
    /// A name in the store of the volume.
    Store(&'a String),
}

/// A seal that is done.
struct Sealed<'a> {
    report: Report,
    /// Name of an image in the store, and figures about it.
    stored: Option<(&'a String, Imported)>,
    digests: Digests,
}

/// How a volume is sealed.
struct Seal<'a> {
    options: &'a BuildOptions,
    observer: &'a dyn Observer,
    is_strict: bool,
    /// Paths that are left out, and why.
    left_out: Mutex<Vec<Problem>>,
}

impl Seal<'_> {
    /// Seals `state`, the volume or a snapshot of it, which is not mounted.
    fn closed<'a>(
        &self,
        (named, state): (&Named, &str),
        target: Target<'a>,
    ) -> anyhow::Result<Sealed<'a>> {
        let store = match target {
            Target::File(..) => named.store.for_reading(),
            Target::Store(_) => named.store.clone(),
        };
        let own_name = writer_name("volume seal");
        weald_volume::apply_sync_log(&store, &named.name, &own_name)?;
        let writer = store.write(WriteOptions::new(own_name))?;
        let reader = VolumeReader::open(&writer, state)?;
        let tell = |path: &[u8], error: &Error| self.tell(path, error);
        let mut source = SealSource::new(&reader, &tell, (self.is_strict, Identity::Bytes))?;
        match target {
            Target::File(file) => self.to_file(&reader, source, file),
            Target::Store(name) => {
                let blocks = &mut |id| Ok(EncodedBlock::Stored(reader.part(id)?));
                let to = (writer, name.as_str());
                let (options, observer) = (self.options, self.observer);
                let built = build_of_own_blocks(&mut source, blocks, to, options, observer);
                let (report, imported, digests) = built?;
                Ok(Sealed {
                    report,
                    stored: Some((name, imported)),
                    digests,
                })
            }
        }
    }

    /// Seals a volume that a server has mounted, and that goes on meanwhile.
    fn mounted<'a>(
        &self,
        named: (&Named, &str),
        mount: &Mounted,
        target: Target<'a>,
    ) -> anyhow::Result<Sealed<'a>> {
        if let Target::File(FileTarget {
            path,
            overwrite: false,
            ..
        }) = target
        {
            weald_io::refuse_existing(path).map_err(with_force)?;
        }
        let state = MountedState::open(named, mount)?;
        state.explained(self.of_state(&state, target))
    }

    fn of_state<'a>(&self, state: &MountedState, target: Target<'a>) -> anyhow::Result<Sealed<'a>> {
        let reader = state.reader();
        let tell = |path: &[u8], error: &Error| {
            if state.held().is_over() {
                // Nothing is damaged: the server has given the blocks up.
                Err(Error::invalid("the volume was unmounted"))
            } else {
                self.tell(path, error)
            }
        };
        let mut source = SealSource::new(reader, &tell, (self.is_strict, Identity::Bytes))?;
        let name = match target {
            Target::File(file) => return self.to_file(reader, source, file),
            Target::Store(name) => name,
        };
        let blocks = &mut |id| Ok(EncodedBlock::Stored(reader.part(id)?));
        // Sends the parts of the image to the server, which writes the store.
        let image = SentImage::begin(state.held(), name)?;
        let (options, observer) = (self.options, self.observer);
        let built = build_of_parts(&mut source, blocks, image.sink(), options, observer);
        let (report, digests) = built?;
        let imported = image.finish(report.image_digest, report.tree_digest)?;
        Ok(Sealed {
            report,
            stored: Some((name, imported)),
            digests,
        })
    }

    fn to_file<'a>(
        &self,
        reader: &VolumeReader,
        mut source: SealSource<'_>,
        target: FileTarget<'_>,
    ) -> anyhow::Result<Sealed<'a>> {
        let used = Used::of(&source)?;
        let blocks = &mut |id| {
            let (record, stored) = reader.block(id, used.ranges(id))?;
            Ok(EncodedBlock::Bytes(record, stored))
        };
        let (options, observer) = (self.options, self.observer);
        let built = build_of_blocks(&mut source, blocks, target, options, observer);
        Ok(Sealed {
            report: built.map_err(with_force)?,
            stored: None,
            digests: Digests::new(),
        })
    }

    /// Reports something that is left out; with `--strict`, that is the error of the command.
    fn tell(&self, path: &[u8], error: &Error) -> Result<(), Error> {
        if self.is_strict {
            return Err(error.duplicate().context(shown_path(path)));
        }
        let problem = Problem {
            path: path.to_vec(),
            what: messages::one_line(error),
        };
        self.observer.problem(&problem);
        let mut left_out = self.left_out.lock().unwrap_or_else(PoisonError::into_inner);
        left_out.push(problem);
        Ok(())
    }
}

fn with_force(error: Error) -> anyhow::Error {
    match error.kind() {
        ErrorKind::Busy => anyhow!("{error}; --force replaces it"),
        _ => error.into(),
    }
}

fn print(
    display: &DisplayArgs,
    sealed: Sealed<'_>,
    left_out: Vec<Problem>,
    start: Instant,
) -> anyhow::Result<()> {
    let (stored, mut report) = (sealed.stored, sealed.report);
    report.problem_count = left_out.len() as u64;
    let report = &report;
    let mut output = Output::new();
    if display.json {
        let mut object = build_json(report, start.elapsed());
        object.insert("left_out".into(), left_out_json(&left_out));
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
