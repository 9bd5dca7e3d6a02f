//! `weald store gc` and `salvage`.

use super::{Place, explain_write, open, who, write};
use crate::commands::{exit_code, interrupt_flag};
use crate::help::{DONE_OR_FAILED, Help};
use crate::json::Object;
use crate::output::Output;
use crate::progress::{bytes, count};
use anyhow::bail;
use clap::Args;
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use weald_store::{CollectOptions, Collected, Salvaged, WriteOptions};

/// Sections of the help.
pub const GC_HELP: Help = Help {
    lists: &[],
    notes: &[
        "Gc works while images of the store are mounted and read. It removes segment files in \
         which no image has a block, copies what is still used of sparse ones, and frees the \
         unused ranges of the others in place if the file system can.",
        "Gc can be interrupted or killed at any moment. What it did until then stays done, and \
         the next gc continues.",
    ],
    examples: &[
        (
            "Return the space of removed images",
            "weald store gc /srv/store",
        ),
        (
            "Return what costs no copying",
            "weald store gc --copy-below 0 /srv/store",
        ),
        (
            "Copy at most a gigabyte",
            "weald store gc --max-copy 1G /srv/store",
        ),
    ],
    exit_status: DONE_OR_FAILED,
};

/// Return the space of blocks that no image of the store has
#[derive(Args, Debug)]
#[command(after_help = GC_HELP.short(), after_long_help = GC_HELP.long())]
pub(super) struct GcArgs {
    #[command(flatten)]
    place: Place,
    /// Copy what is used of a segment file, and remove the file, if less than this share of it is
    /// used; 0 copies nothing
    #[arg(long, value_name = "PERCENT", default_value_t = 80,
        value_parser = clap::value_parser!(u64).range(0..=100))]
    copy_below: u64,
    /// Copy at most this many bytes; the next gc continues
    #[arg(long, value_name = "SIZE", value_parser = crate::parse::size)]
    max_copy: Option<u64>,
    /// Print nothing
    #[arg(short, long)]
    quiet: bool,
    /// Print one JSON object
    #[arg(long, conflicts_with = "quiet")]
    json: bool,
}

pub(super) fn gc(args: &GcArgs) -> anyhow::Result<ExitCode> {
    let flag = interrupt_flag()?;
    let store = open(&args.place.store)?;
    let mut writer = write(&store, WriteOptions::new(who("gc")))?;
    let options = CollectOptions {
        copy_below_percent: args.copy_below,
        copy_len_max: args.max_copy.unwrap_or(u64::MAX),
    };
    let is_over = || flag.load(Ordering::Relaxed);
    let done = writer.collect(&options, &mut |_| match is_over() {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    })?;
    let mut output = Output::new();
    if args.json {
        output.json(&json(&done).into())?;
    } else if !args.quiet {
        output.text(&text(&done))?;
    }
    output.finish()?;
    if is_over() {
        bail!("interrupted: what was collected until then is done; the next gc continues");
    }
    Ok(ExitCode::SUCCESS)
}

fn json(done: &Collected) -> Object {
    let numbers = [
        ("segments_removed", done.segments_removed),
        ("removed_len", done.removed_len),
        ("copied_len", done.copied_len),
        ("punched_len", done.punched_len),
        ("blocks_forgotten", done.blocks_forgotten),
        ("unused_len", done.dead_len.saturating_sub(done.punched_len)),
    ];
    numbers
        .iter()
        .map(|&(key, number)| (key.to_owned(), number.into()))
        .collect()
}

fn text(done: &Collected) -> String {
    let freed = done
        .removed_len
        .saturating_sub(done.copied_len)
        .saturating_add(done.punched_len);
    format!(
        "{} returned: {} segment files removed ({}), {} copied, {} freed in place; \
         {} stay unused\n",
        bytes(freed),
        count(done.segments_removed),
        bytes(done.removed_len),
        bytes(done.copied_len),
        bytes(done.punched_len),
        bytes(done.dead_len.saturating_sub(done.punched_len)),
    )
}

/// Sections of the help.
pub const SALVAGE_HELP: Help = Help {
    lists: &[],
    notes: &[
        "Salvage is for a store whose metadata file is damaged, lost or older than its images. \
         It reads the image maps and the headers of all blocks. The old file stays as meta.old. \
         An image of which something is missing is set aside as images/.NAME.damaged and named.",
        "Contents are not tested: weald store check --data does that.",
    ],
    examples: &[(
        "Rebuild the metadata of a store",
        "weald store salvage /srv/store",
    )],
    exit_status: &[
        ("0", "All images are complete."),
        ("1", "Something of at least one image is missing."),
        ("2", "The command failed; standard error says why."),
    ],
};

/// Rebuild the metadata of a store from its segments and image maps
#[derive(Args, Debug)]
#[command(after_help = SALVAGE_HELP.short(), after_long_help = SALVAGE_HELP.long())]
pub(super) struct SalvageArgs {
    #[command(flatten)]
    place: Place,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn salvage(args: &SalvageArgs) -> anyhow::Result<ExitCode> {
    let store = open(&args.place.store)?;
    let salvaged = store.salvage(&who("salvage")).map_err(explain_write)?;
    let mut output = Output::new();
    match args.json {
        true => output.json(&salvaged_json(&salvaged).into())?,
        false => output.text(&salvaged_text(&salvaged))?,
    }
    output.finish()?;
    Ok(exit_code(salvaged.damaged.len() as u64))
}

fn salvaged_json(salvaged: &Salvaged) -> Object {
    let damaged = salvaged
        .damaged
        .iter()
        .map(|(name, what)| serde_json::json!({ "name": name, "what": what }));
    let mut object = Object::new();
    object.insert("images".into(), salvaged.images.clone().into());
    object.insert("damaged".into(), damaged.collect());
    object.insert("block_count".into(), salvaged.block_count.into());
    object.insert("segment_count".into(), salvaged.segment_count.into());
    object
}

fn salvaged_text(salvaged: &Salvaged) -> String {
    let damaged = salvaged
        .damaged
        .iter()
        .map(|(name, what)| format!("damaged: {name}: {}\n", crate::messages::detailed(what)));
    let mut text: String = damaged.collect();
    text.push_str(&format!(
        "{} images are complete, {} are damaged; {} blocks in {} segment files\n",
        count(salvaged.images.len() as u64),
        count(salvaged.damaged.len() as u64),
        count(salvaged.block_count),
        count(salvaged.segment_count),
    ));
    text
}
