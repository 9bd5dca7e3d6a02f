//! `weald store rm`, `forget` and `mv`.

use super::import_target::ImportTarget;
use super::names_writer::NamesWriter;
use super::views;
use super::wait::WaitArgs;
use crate::help::{DONE_OR_FAILED, Help};
use crate::json::Object;
use crate::keep_args::KeepArgs;
use crate::messages;
use crate::open_store::{StoreDir, open, open_named};
use crate::output::Output;
use crate::version_order::version_order;
use crate::writer_name::writer_name;
use anyhow::{Context, bail};
use clap::Args;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use weald_format::ErrorKind;
use weald_image::Members;
use weald_store::{IfTaken, Removal, Store, WriteOptions};
use weald_vfs::{Glob, safe_line};
use weald_volume::retention::Dated;

/// Sections of the help.
pub const RM_HELP: Help = Help {
    lists: &[],
    notes: &[
        "An image that is mounted or being read is not removed, unless --force is given: its \
         readers then get errors after the next weald store gc. The same for an image that the \
         kernel has mounted (weald mount --kernel): with --force that mount goes on, but there is \
         no image for the next one.",
        "An image that is the base image of other images of the store is not removed without \
         them, unless --force is given: they can then not be read.",
        "The space of the image stays in use until weald store gc returns it.",
        "A name with *, ? or [ is a pattern, unless an image has this very name: all images that \
         match are removed. Volumes are never meant.",
        "If a volume of the store is mounted, by the same user, its server removes the image \
         while the volume goes on, also if this command is interrupted.",
    ],
    examples: &[
        ("Remove an image", "weald store rm /srv/store:v1"),
        (
            "Remove several images",
            "weald store rm /srv/store monday tuesday",
        ),
        (
            "Show which images a pattern means",
            "weald store rm --dry-run /srv/store 'f*'",
        ),
    ],
    exit_status: DONE_OR_FAILED,
};

/// Remove images from a store; weald store gc then returns their space
#[derive(Args, Debug)]
#[command(after_help = RM_HELP.short(), after_long_help = RM_HELP.long())]
pub(super) struct RmArgs {
    /// Images to remove, all of one store: STORE:NAME…, or STORE NAME…
    #[arg(value_name = "STORE:NAME", required = true)]
    images: Vec<PathBuf>,
    /// Remove an image even if it is mounted, being read, or the base image of another one
    #[arg(short, long)]
    force: bool,
    #[command(flatten)]
    wait: WaitArgs,
    /// Only show what would go
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Print one JSON object per image
    #[arg(long)]
    json: bool,
}

/// The store, and the names of the images to remove.
fn to_remove(images: &[PathBuf]) -> anyhow::Result<(Store, Vec<String>)> {
    let mut store: Option<(Store, PathBuf)> = None;
    let mut rest = images;
    if let [dir, names @ ..] = images
        && !names.is_empty()
        && weald_store::is_store(dir)
    {
        store = Some((open(dir)?, dir.canonicalize()?));
        rest = names;
    }
    let mut words = Vec::new();
    let takes_names = store.is_some();
    for image in rest {
        let bare = image.to_str().filter(|_| takes_names);
        let bare = bare.filter(|_| weald_store::split(image).is_none());
        let name = match bare {
            Some(name) => name.to_owned(),
            None => {
                let (other, name) = open_named(image)?;
                // Compare paths, not UUIDs: a copy of a store has the same UUID.
                let dir = Path::new(&other.shown()).canonicalize()?;
                let (_, first) = store.get_or_insert_with(|| (other, dir.clone()));
                if *first != dir {
                    bail!("the images lie in several stores: remove them store by store");
                }
                name
            }
        };
        words.push(name);
    }
    let (store, _) = store.context("no image is given")?;
    let names = matching(&store, &words)?;
    Ok((store, names))
}

/// The images of `store` that `words` mean, each once: names, or patterns that match some.
fn matching(store: &Store, words: &[String]) -> anyhow::Result<Vec<String>> {
    let all = store.names()?;
    let mut names: Vec<String> = Vec::new();
    for word in words {
        let is_pattern = word.contains(['*', '?', '[']) && !all.contains(word);
        let mut meant = vec![word.clone()];
        if is_pattern {
            let glob =
                Glob::parse(word.as_bytes()).with_context(|| safe_line(word).into_owned())?;
            meant = all
                .iter()
                .filter(|name| glob.matches(name.as_bytes()))
                .cloned()
                .collect();
            meant.sort_by(|a, b| version_order(a, b));
            if meant.is_empty() {
                bail!("{}: no image of {} matches", safe_line(word), store.shown());
            }
        }
        for name in meant {
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    Ok(names)
}

pub(super) fn rm(args: &RmArgs) -> anyhow::Result<ExitCode> {
    let (store, names) = to_remove(&args.images)?;
    // A mistyped name ends the command before anything is removed.
    for name in &names {
        store.map(name)?;
        if !args.force {
            views::refuse_mounted(&store, name)?;
        }
    }
    args.wait.until_free(&store)?;
    let writer = writer_of(&store, args.dry_run)?;
    let members = Members::read(&store)?;
    if !args.force {
        members.refuse_needed(&store, &names)?;
    }
    let names = members.in_order(&names);
    let told = if args.dry_run {
        Told::WouldBe
    } else if args.json {
        Told::Removed
    } else {
        Told::Nothing
    };
    remove((&store, writer), &names, told, args.json, args.force)
}

/// What removes images, unless nothing is removed.
fn writer_of(store: &Store, is_dry_run: bool) -> anyhow::Result<Option<NamesWriter>> {
    if is_dry_run {
        return Ok(None);
    }
    store.release_reserve()?;
    let options = WriteOptions::new(writer_name("store rm"));
    Ok(Some(NamesWriter::open(store, options)?))
}

/// What is said of each image.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Told {
    /// Nothing.
    Nothing,
    /// That it is gone.
    Removed,
    /// That it would be removed; nothing is.
    WouldBe,
}

/// Removes the images `names`, in this order, if there is a writer.
fn remove(
    (store, mut writer): (&Store, Option<NamesWriter>),
    names: &[String],
    told: Told,
    is_json: bool,
    is_forced: bool,
) -> anyhow::Result<ExitCode> {
    let mut output = Output::new();
    for name in names {
        if let Some(writer) = &mut writer {
            writer.remove(store, name, is_forced)?;
        }
        let (key, word) = match told {
            Told::Nothing => continue,
            Told::Removed => ("removed", "removed"),
            Told::WouldBe => ("would_be_removed", "would be removed"),
        };
        if is_json {
            let mut object = Object::new();
            object.insert(key.into(), name.as_str().into());
            output.json(&object.into())?;
        } else {
            writeln!(
                output,
                "{}: {word}",
                safe_line(&format!("{}:{name}", store.shown()))
            )?;
        }
        output.flush()?;
    }
    output.finish()?;
    Ok(ExitCode::SUCCESS)
}

/// Sections of the help.
pub const FORGET_HELP: Help = Help {
    lists: &[],
    notes: &[
        "Each option keeps the newest image of as many hours, days, weeks, months or years, \
         counting those that have one; an image that one option keeps stays. Hours and days are \
         those of UTC, and weeks begin on Monday. What counts is when an image came into the \
         store: weald store ls shows it. Images of which that is not known count as the oldest.",
        "Names that differ only in their numbers are versions of one thing, and the rules hold \
         for each thing: of tools-1 to tools-9 and root-1 to root-9, --keep-last 3 keeps six. So \
         an image without another version always stays.",
        "Images that are mounted, being read, or the base image of one that stays, stay, too. The \
         space comes back with weald store gc.",
    ],
    examples: &[
        (
            "Show what would go if the last five versions of everything stay",
            "weald store forget --dry-run --keep-last 5 /srv/store",
        ),
        (
            "Keep the newest of each of seven days and four weeks of some images",
            "weald store forget --keep-daily 7 --keep-weekly 4 /srv/store 'v*'",
        ),
    ],
    exit_status: DONE_OR_FAILED,
};

/// Remove old versions of images
#[derive(Args, Debug)]
#[command(after_help = FORGET_HELP.short(), after_long_help = FORGET_HELP.long())]
pub(super) struct ForgetArgs {
    #[command(flatten)]
    location: StoreDir,
    /// Names or patterns of the images that the rules are for (default: all)
    #[arg(value_name = "PATTERN")]
    patterns: Vec<String>,
    #[command(flatten)]
    keep: KeepArgs,
    #[command(flatten)]
    wait: WaitArgs,
    /// Only show what would go
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Print nothing
    #[arg(short, long, conflicts_with = "dry_run")]
    quiet: bool,
    /// Print one JSON object per image
    #[arg(long, conflicts_with = "quiet")]
    json: bool,
}

pub(super) fn forget(args: &ForgetArgs) -> anyhow::Result<ExitCode> {
    let rules = args.keep.rules()?;
    let store = open(&args.location.store)?;
    let names = match args.patterns.as_slice() {
        [] => store.names()?,
        patterns => matching(&store, patterns)?,
    };
    let mut things: BTreeMap<String, Vec<(i64, String)>> = BTreeMap::new();
    for name in names {
        let added = match store.map(&name) {
            Ok(map) => map.added,
            // Another command was faster.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            // Its damage is its own: it stays.
            Err(error) => {
                messages::error(&error.into());
                continue;
            }
        };
        things
            .entry(without_numbers(&name))
            .or_default()
            .push((added, name));
    }
    let mut leaving = Vec::new();
    for images in things.values_mut() {
        images.sort_by(|(a, a_name), (b, b_name)| a.cmp(b).then(version_order(a_name, b_name)));
        let dated: Vec<Dated<'_>> = images
            .iter()
            .map(|(added, name)| Dated {
                name,
                created: i128::from(*added),
                stays: false,
            })
            .collect();
        leaving.extend(rules.unkept(&dated).into_iter().map(str::to_owned));
    }
    args.wait.until_free(&store)?;
    let writer = writer_of(&store, args.dry_run)?;
    let members = Members::read(&store)?;
    let stay = leave_out_used(&store, &members, &mut leaving)?;
    if !args.quiet && !args.json {
        let mut output = Output::new();
        for (name, why) in stay {
            let shown = format!("{}:{name}", store.shown());
            writeln!(output, "{}: stays: {why}", safe_line(&shown))?;
        }
        output.finish()?;
    }
    let told = match (args.dry_run, args.quiet) {
        (true, _) => Told::WouldBe,
        (false, true) => Told::Nothing,
        (false, false) => Told::Removed,
    };
    let leaving = members.in_order(&leaving);
    remove((&store, writer), &leaving, told, args.json, false)
}

/// `name` with one mark in place of each run of numbers with dots and the like between them.
fn without_numbers(name: &str) -> String {
    let mut thing = String::new();
    let mut waiting = String::new();
    for c in name.chars() {
        match c {
            '0'..='9' => {
                if !thing.ends_with('#') {
                    thing.push_str(&waiting);
                    thing.push('#');
                }
                waiting.clear();
            }
            '.' | '-' | '_' | ':' | 'T' => waiting.push(c),
            other => {
                thing.push_str(&waiting);
                waiting.clear();
                thing.push(other);
            }
        }
    }
    thing + &waiting
}

/// Takes images out of `leaving` that are in use, or that images need which stay; returns them, and
/// why they stay.
fn leave_out_used(
    store: &Store,
    members: &Members,
    leaving: &mut Vec<String>,
) -> anyhow::Result<Vec<(String, &'static str)>> {
    let mut stay = Vec::new();
    for name in leaving.iter() {
        if views::refuse_mounted(store, name).is_err() {
            stay.push((name.clone(), "is mounted by the kernel"));
            continue;
        }
        match Removal::begin(store, name, false) {
            Err(error) if error.kind() == ErrorKind::Busy => {
                stay.push((name.clone(), "is mounted or being read"));
            }
            begun => drop(begun?),
        }
    }
    leaving.retain(|name| !stay.iter().any(|(other, _)| other == name));
    loop {
        let needed = |name: &&String| !members.users_of(name, leaving).is_empty();
        let Some(name) = leaving.iter().find(needed).cloned() else {
            return Ok(stay);
        };
        leaving.retain(|other| *other != name);
        stay.push((name, "is the base image of one that stays"));
    }
}

/// The name that a new image has until it replaces the image `name`.
pub(super) fn name_before(name: &str) -> String {
    format!("{name}~new")
}

/// Refuses to replace the image `name` if others need it. Returns whether there is an image to
/// replace.
pub(super) fn prepare_to_replace(store: &Store, name: &str) -> anyhow::Result<bool> {
    let names = store.names()?;
    let before = name_before(name);
    // It may be somebody's image.
    if names.contains(&before) {
        bail!(
            "{}:{before}: this name is needed for a moment, and is taken, perhaps by an \
             interrupted command: 'weald store mv' or 'weald store rm' frees it",
            store.shown()
        );
    }
    if !names.iter().any(|other| other == name) {
        return Ok(false);
    }
    Members::read(store)?.refuse_needed(store, &[name.to_owned()])?;
    Ok(true)
}

/// Gives the image that is called [`name_before`] the name `name`, in place of the one that has it.
pub(super) fn replace(store: &Store, target: &mut ImportTarget, name: &str) -> anyhow::Result<()> {
    let before = name_before(name);
    // The new image itself may need the old one.
    let renamed = Members::read(store)
        .and_then(|members| members.refuse_needed(store, &[name.to_owned()]))
        .and_then(|()| target.rename(store, &before, name, IfTaken::Replace));
    renamed.with_context(|| format!("{name}: stays as it was; the new image is called {before}"))
}

/// Sections of the help.
pub const MV_HELP: Help = Help {
    lists: &[],
    notes: &[
        "An image that is mounted or being read goes on under its mount. What mounts it by the old \
         name, such as a line of fstab, must be changed.",
        "With --replace, NEW may be the name of an image: at any moment it means the old image or \
         the moved one. Mounts of the old image go on with it; it keeps its space until a command \
         that writes to the store, such as weald store gc, finds that nobody reads it. A store has \
         at most 64 such images.",
        "If a volume of the store is mounted, by the same user, its server moves the name while \
         the volume goes on, also if this command is interrupted.",
    ],
    examples: &[
        (
            "Give an image another name",
            "weald store mv /srv/store:monday tools-1",
        ),
        (
            "Let the name latest mean another image",
            "weald store mv --replace /srv/store:tuesday latest",
        ),
    ],
    exit_status: DONE_OR_FAILED,
};

/// Give an image of a store another name
#[derive(Args, Debug)]
#[command(after_help = MV_HELP.short(), after_long_help = MV_HELP.long())]
pub(super) struct MvArgs {
    /// The image
    #[arg(value_name = "STORE:NAME")]
    image: PathBuf,
    /// Its new name
    #[arg(value_name = "NEW")]
    new: String,
    /// Replace an image that has the new name: the name means the old image or the new one at any
    /// moment
    #[arg(long)]
    replace: bool,
    #[command(flatten)]
    wait: WaitArgs,
}

pub(super) fn mv(args: &MvArgs) -> anyhow::Result<ExitCode> {
    let (store, name) = open_named(&args.image)?;
    if weald_store::split(Path::new(&args.new)).is_some() {
        bail!(
            "{}: the new name stands alone, without the store: the image stays in its store",
            safe_line(&args.new)
        );
    }
    args.wait.until_free(&store)?;
    let options = WriteOptions::new(writer_name("store mv"));
    let mut writer = NamesWriter::open(&store, options)?;
    let mut if_taken = IfTaken::Fail;
    if args.replace && store.names()?.contains(&args.new) && name != args.new {
        Members::read(&store)?.refuse_needed(&store, std::slice::from_ref(&args.new))?;
        if_taken = IfTaken::Replace;
    }
    writer.rename(&store, &name, &args.new, if_taken)?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch: versions of one thing that count as several things, or several as one.
    #[test]
    fn names_that_differ_in_numbers_are_one_thing() {
        for (name, thing) in [
            ("tools-5.2.10", "tools-#"),
            ("tools-6", "tools-#"),
            ("tools-6-rc1", "tools-#-rc#"),
            ("etc-2026-11-29T06:20:00", "etc-#"),
            ("latest", "latest"),
            ("gcc14-arm", "gcc#-arm"),
            ("a-", "a-"),
            ("1a2", "#a#"),
        ] {
            assert_eq!(without_numbers(name), thing, "{name}");
        }
    }
}
