//! `weald store add`: builds an image straight into a store.

use super::import_target::ImportTarget;
use super::names;
use super::wait::WaitArgs;
use crate::attribute_args::EntryArgs;
use crate::commands::build::{json as build_json, summary};
use crate::help::Help;
use crate::input_args::{FollowArgs, Input, InputArgs, WalkArgs};
use crate::open_store::{new_image_at, open_dir, show_path};
use crate::output::Output;
use crate::pack::{DisplayArgs, PackArgs, ResourceArgs};
use crate::progress::{bytes, count};
use crate::rules::tell_idle;
use crate::shape::{OUTPUT, RESOURCES};
use crate::status::exit_code;
use crate::uuid::random_uuid;
use crate::writer_name::writer_name;
use anyhow::bail;
use clap::{Args, ValueHint};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;
use weald_builder::{
    Added, BuildOptions, Observer, StoreSource, StoreTarget, build_into_store, image_to_continue,
    not_continued,
};
use weald_image::{Image, OpenOptions};
use weald_store::{
    SEGMENT_LEN_DEFAULT, Store, StoreLocation, StoreWriter, StoredImage, WriteOptions, check_name,
};

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[],
    notes: &[
        "SOURCE and the options are those of 'weald build'. The new image continues the image of \
         the store that --like names: files that it has are not stored again, and repeats of its \
         data neither. The new image is a complete image of its own; the other one can be removed.",
        "Without --like, Weald takes the image whose name begins like the new one, with numbers \
         compared as a whole: 5.2.10 begins like 5.2.9 and like 5.2.1. Of several it takes the \
         newest.",
        "With --replace, a name can move, as that of the latest version: readers find the old \
         image until the new one is complete. Mounts of the old image go on with it, and it keeps \
         its space until they end.",
        "A stream, or an image of EROFS, is first packed into a temporary file in the store's \
         directory.",
        "If a volume of the store is mounted, by the same user, add builds the image in a \
         temporary store in the store's directory, and the server of the volume takes what is \
         new. This costs a copy of the image that is continued, for as long as the command runs. A \
         damaged image is named and not continued, with exit status 1. \
         --index-memory is for the temporary store then.",
    ],
    examples: &[
        (
            "Add the first version of a tree",
            "weald store add /srv/store project --name project-1",
        ),
        (
            "Add the next version, which takes the space of what is new in it",
            "weald store add /srv/store v2 --name project-2",
        ),
        (
            "Add the newest version under a name that moves",
            "weald store add /srv/store project --name latest --replace",
        ),
        (
            "Add a container root from a tar stream",
            "tar c project | weald store add /srv/store - --name project-3",
        ),
    ],
    exit_status: &[
        ("0", "The image is in the store."),
        (
            "1",
            "The image is in the store except for files that could not be read or that changed \
             during the build; standard error names each.",
        ),
        ("2", "The command failed; the store lists no new image."),
    ],
};

/// Build an image of a directory or stream into a store, without what the store has
#[derive(Args, Debug)]
#[command(after_help = HELP.short(), after_long_help = HELP.long())]
pub struct AddArgs {
    /// Directory of the store, or STORE:NAME with the name of the new image
    #[arg(value_name = "STORE", value_hint = ValueHint::DirPath)]
    store: PathBuf,
    /// Directory to pack, or - for a stream on standard input
    #[arg(value_hint = ValueHint::AnyPath)]
    source: PathBuf,
    /// Name of the new image in the store (default: the last component of SOURCE)
    #[arg(long, value_name = "NAME", help_heading = OUTPUT)]
    name: Option<String>,
    /// Image of the store that the new one resembles (default: the one with the most similar name)
    #[arg(long, value_name = "NAME", help_heading = OUTPUT)]
    like: Option<String>,
    #[command(flatten)]
    wait: WaitArgs,
    /// Replace an image of the same name: its name means the old image or the new one at any
    /// moment
    #[arg(long, help_heading = OUTPUT)]
    replace: bool,
    #[command(flatten)]
    input: InputArgs,
    #[command(flatten)]
    walk: WalkArgs,
    #[command(flatten)]
    follow: FollowArgs,
    #[command(flatten)]
    pack: PackArgs,
    #[command(flatten)]
    entries: EntryArgs,
    #[command(flatten)]
    display: DisplayArgs,
    #[command(flatten)]
    resources: ResourceArgs,
    /// Memory for the index that finds blocks the store already has
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "64M",
        value_parser = crate::parse::size,
        hide_short_help = true,
        help_heading = RESOURCES
    )]
    index_memory: u64,
}

/// The directory of the store and the name of the new image.
fn store_and_name(args: &AddArgs) -> anyhow::Result<(PathBuf, String)> {
    let (dir, given) = new_image_at(&args.store, args.name.as_deref())?;
    if let Some(name) = given {
        return Ok((dir, name));
    }
    // "." and "-" give no name.
    let name = args.source.file_name().and_then(|name| name.to_str());
    match name.filter(|_| args.source != Path::new("-")) {
        Some(name) => Ok((dir, name.to_owned())),
        None => bail!(
            "{}: this source gives the image no name: add --name NAME",
            show_path(&args.source)
        ),
    }
}

/// Runs the command.
pub(super) fn run(args: &AddArgs) -> anyhow::Result<ExitCode> {
    let (dir, name) = store_and_name(args)?;
    let mut options = args.pack.options(&args.resources)?;
    args.entries.apply(&mut options)?;
    options.validate()?;
    weald_sys::check_preload()?;
    weald_sys::want_large_pages();
    let write_options = WriteOptions {
        index_len: args.index_memory,
        ..WriteOptions::new(writer_name("store add"))
    };
    let store = open_dir(&dir)?;
    args.wait.until_free(&store)?;
    let target = ImportTarget::open(&store, &dir, write_options)?;
    let adding = Adding {
        store: &store,
        dir: &dir,
        name: &name,
        like: args.like.as_deref(),
        index_len: args.index_memory,
        replaces: args.replace,
        pack: &|target, observer| add(args, target, &options, observer),
    };
    let done = adding.run(target, &args.display)?;
    tell_idle(&options.filter);
    Ok(done)
}

/// An image that is to be added to a store.
pub(in crate::commands) struct Adding<'a> {
    /// The store.
    pub store: &'a Store,
    /// Its directory.
    pub dir: &'a Path,
    /// Name of the new image.
    pub name: &'a str,
    /// Image of the store that the new one resembles.
    pub like: Option<&'a str>,
    /// Memory for the index of a store's blocks, bytes.
    pub index_len: u64,
    /// Whether an image of the same name is replaced.
    pub replaces: bool,
    /// Builds the image into a store: this one, or a temporary one.
    pub pack: &'a Pack<'a>,
}

/// Builds an image into a store.
type Pack<'a> = dyn Fn(StoreTarget<'_>, &dyn Observer) -> anyhow::Result<Added> + 'a;

impl Adding<'_> {
    /// Adds the image and prints the report.
    pub fn run(&self, target: ImportTarget, args: &DisplayArgs) -> anyhow::Result<ExitCode> {
        let (store, dir, name) = (self.store, self.dir, self.name);
        let mut replaces = false;
        if self.replaces {
            replaces = names::prepare_to_replace(store, name)?;
        } else if matches!(target, ImportTarget::Mounted(_)) {
            refuse_taken(store, name)?;
        }
        let before = names::name_before(name);
        let new = if replaces { &before } else { name };
        let display = args.display()?;
        let start = Instant::now();
        let added = match target {
            ImportTarget::Own(writer) => {
                let target = StoreTarget {
                    writer,
                    dir,
                    name: new,
                    like: self.like,
                };
                (self.pack)(target, &display)
            }
            mounted => self.add_to_mounted(mounted, new, &display),
        };
        display.finish();
        let added = added?;
        if replaces {
            let options = WriteOptions::new(writer_name("store add"));
            names::replace(store, &mut ImportTarget::open(store, dir, options)?, name)?;
        }
        print(args, name, &added, start)?;
        Ok(exit_code(added.report.problem_count))
    }

    /// Builds the image in a temporary store, which has the image that it continues. The server of
    /// a mounted volume stores the blocks that the store lacks, as the image `new`.
    fn add_to_mounted(
        &self,
        mut mounted: ImportTarget,
        new: &str,
        observer: &dyn Observer,
    ) -> anyhow::Result<Added> {
        let (store, name) = (self.store, self.name);
        let temporary = tempfile::Builder::new()
            .prefix(".add-")
            .tempdir_in(store.shown())?;
        let mut dir = temporary.path().join("store");
        let (mut own, mut writer) = temporary_store(&dir, self.index_len)?;
        let found = image_to_continue(store, name, self.like)?;
        if let Some(problem) = &found.problem {
            observer.problem(problem);
        }
        let mut problem_count = u64::from(found.problem.is_some());
        let mut like = found.image;
        // Open until the new image is in the store: nobody removes it meanwhile, nor the base
        // images that both need.
        let mut continued = None;
        if let Some(old) = &like {
            let opened = StoredImage::open(store.clone(), old);
            match opened.and_then(|image| writer.import(old, &*continued.insert(image))) {
                Err(error) if error.is_unreadable() => {
                    observer.problem(&not_continued(old, &error));
                    problem_count += 1;
                    like = None;
                    drop(writer);
                    dir = temporary.path().join("without");
                    (own, writer) = temporary_store(&dir, self.index_len)?;
                }
                imported => drop(imported?),
            }
        }
        let target = StoreTarget {
            writer,
            dir: &dir,
            name: new,
            like: like.as_deref(),
        };
        let mut added = (self.pack)(target, observer)?;
        added.imported = mounted.import(new, &StoredImage::open(own, new)?)?;
        added.report.problem_count += problem_count;
        drop(continued);
        Ok(added)
    }
}

/// Fails, before anything is built, if the name is taken. The server has the last word.
fn refuse_taken(store: &Store, name: &str) -> anyhow::Result<()> {
    check_name(name)?;
    if store.names()?.iter().any(|other| other == name) {
        bail!(
            "{}:{name}: an image of this name exists: remove it first, or take another name",
            store.shown()
        );
    }
    Ok(())
}

/// Makes a store at `dir`.
fn temporary_store(dir: &Path, index_len: u64) -> anyhow::Result<(Store, StoreWriter)> {
    let location = StoreLocation::from(dir);
    let store = location.create(random_uuid()?, SEGMENT_LEN_DEFAULT)?;
    let writer = store.write(WriteOptions {
        index_len,
        ..WriteOptions::new(writer_name("store add"))
    })?;
    Ok((store, writer))
}

fn add(
    args: &AddArgs,
    target: StoreTarget<'_>,
    options: &BuildOptions,
    observer: &dyn Observer,
) -> anyhow::Result<Added> {
    let input = args.input.input(std::slice::from_ref(&args.source))?;
    let mut walk_options = options.clone();
    args.walk.apply(input.is_stream(), &mut walk_options)?;
    args.follow.apply(input.is_stream(), &mut walk_options)?;
    let input = match input {
        Input::Directories(dirs) => {
            let source = StoreSource::Layers(&dirs.layers());
            return Ok(build_into_store(source, target, &walk_options, observer)?);
        }
        input => input,
    };
    add_through_file(target, options, observer, |whole, quick| {
        Ok(input.build(whole, false, quick, observer)?.problem_count)
    })
}

/// Adds an image that `pack` builds as a temporary file in the directory of the store. `pack`
/// returns the count of problems that it has reported.
pub(in crate::commands) fn add_through_file(
    target: StoreTarget<'_>,
    options: &BuildOptions,
    observer: &dyn Observer,
    pack: impl FnOnce(&Path, &BuildOptions) -> weald_format::Result<u64>,
) -> anyhow::Result<Added> {
    let temporary = tempfile::Builder::new()
        .prefix(".add-")
        .tempdir_in(target.dir)?;
    let whole = temporary.path().join("image");
    let problem_count = pack(&whole, &options.for_temporary_image())?;
    let image = Image::open_path(&whole, 0, &OpenOptions::default())?;
    let source = StoreSource::Image(&Arc::new(image));
    let options = options.without_rules();
    let mut added = build_into_store(source, target, &options, observer)?;
    added.report.problem_count += problem_count;
    Ok(added)
}

/// Prints the report about an added image.
pub(in crate::commands) fn print(
    display: &DisplayArgs,
    name: &str,
    added: &Added,
    start: Instant,
) -> anyhow::Result<()> {
    let (imported, mut output) = (&added.imported, Output::new());
    if display.json {
        let mut object = build_json(&added.report, start.elapsed());
        object.insert("name".into(), name.into());
        object.insert("like".into(), added.like.clone().into());
        let decoded_len = added.report.old_decoded_len;
        object.insert("old_decoded_len".into(), decoded_len.into());
        object.insert("block_count".into(), imported.block_count.into());
        object.insert("new_block_count".into(), imported.new_block_count.into());
        object.insert("new_len".into(), imported.new_len.into());
        output.json(&object.into())?;
    } else if !display.quiet {
        output.text(&summary(&added.report, start.elapsed()))?;
        let like = added.like.as_ref();
        let like = like
            .map(|like| format!(", like {like}"))
            .unwrap_or_default();
        if let (Some(changes), Some(like)) = (added.report.changes, &added.like) {
            writeln!(
                output,
                "names         {} added, {} changed, {} removed since {like}",
                count(changes.added_count),
                count(changes.changed_count),
                count(changes.removed_count)
            )?;
        }
        writeln!(
            output,
            "store         {} new in {} blocks for {name}{like}",
            bytes(imported.new_len),
            count(imported.new_block_count),
        )?;
    }
    output.finish()?;
    Ok(())
}
