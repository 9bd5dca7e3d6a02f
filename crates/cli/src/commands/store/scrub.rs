//! `weald store scrub`.

use crate::help::{DONE_OR_DAMAGED, Help};
use crate::json;
use crate::messages;
use crate::open_store::{StoreDir, open, show_path};
use crate::output::Output;
use crate::progress::{bytes, count};
use crate::status::exit_code;
use crate::writer_name::writer_name;
use clap::Args;
use std::process::ExitCode;
use weald_store::{Place, PlaceLocation, Scrubbed, Store, WriteOptions};

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[],
    notes: &[
        "Scrub reads every block and every map, as weald store check --data does. What is damaged \
         or missing is made again, where it lies, from a replica that has it. Nothing is written \
         that is not what the digests of the store name.",
        "It needs the store for itself: unmount its volumes. Damaged tables come back from the \
         journal, with weald store salvage; a store that has lost both, from a replica, with weald \
         replica restore.",
    ],
    examples: &[
        (
            "Repair a store from its replicas",
            "weald store scrub /srv/store",
        ),
        (
            "Repair it from a replica that it does not know",
            "weald store scrub /srv/store --from backup",
        ),
    ],
    exit_status: DONE_OR_DAMAGED,
};

/// Read every byte of a store, and repair it from its replicas
#[derive(Args, Debug)]
#[command(after_help = HELP.short(), after_long_help = HELP.long())]
pub(super) struct ScrubArgs {
    #[command(flatten)]
    location: StoreDir,
    /// A place with a replica of the store; may be repeated (default: all replicas of the store)
    #[arg(long, value_name = "PLACE")]
    from: Vec<String>,
    /// Print nothing
    #[arg(short, long)]
    quiet: bool,
    /// Print one JSON object
    #[arg(long, conflicts_with = "quiet")]
    json: bool,
}

pub(super) fn run(args: &ScrubArgs) -> anyhow::Result<ExitCode> {
    let store = open(&args.location.store)?;
    let mut places = Vec::new();
    for from in &args.from {
        places.push(PlaceLocation::parse(from)?.open()?);
    }
    if args.from.is_empty() {
        places = places_of(&store)?;
    }
    let mut writer = store.write(WriteOptions::new(writer_name("store scrub")))?;
    let places: Vec<&dyn Place> = places.iter().map(|place| &**place).collect();
    let scrubbed = writer.scrub(&places)?;
    drop(writer);
    let mut output = Output::new();
    if args.json {
        let numbers = [
            ("block_count", scrubbed.block_count),
            ("verified_len", scrubbed.verified_len),
            ("repaired_count", scrubbed.repaired_count),
        ];
        let mut object = json::numbers(&numbers);
        object.insert(
            "repaired_maps".into(),
            scrubbed.repaired_maps.clone().into(),
        );
        object.insert("damage".into(), scrubbed.damage.clone().into());
        output.json(&object.into())?;
    } else if !args.quiet {
        output.text(&text_of(&scrubbed))?;
    }
    output.finish()?;
    for what in &scrubbed.damage {
        messages::error(&anyhow::anyhow!("{what}"));
    }
    if !scrubbed.damage.is_empty() {
        let words = show_path(&args.location.store);
        let hint = "names the files that this costs, and what a replica restores is whole";
        messages::error(&anyhow::anyhow!(
            "'weald store check --data {words}' {hint}"
        ));
    }
    Ok(exit_code(scrubbed.damage.len() as u64))
}

/// The replicas of a store that can be reached.
fn places_of(store: &Store) -> anyhow::Result<Vec<Box<dyn Place>>> {
    let mut places = Vec::new();
    for name in store.replica_names()? {
        let opened = store
            .replica_place(&name)
            .and_then(|place| PlaceLocation::parse(&place)?.open());
        match opened {
            Ok(place) => places.push(place),
            Err(error) => messages::error(&error.context(format_args!("replica {name}")).into()),
        }
    }
    Ok(places)
}

fn text_of(scrubbed: &Scrubbed) -> String {
    let (blocks, len) = (count(scrubbed.block_count), bytes(scrubbed.verified_len));
    let mut text = format!("{blocks} blocks; read and verified {len}\n");
    if scrubbed.repaired_count > 0 {
        let repaired = count(scrubbed.repaired_count);
        text.push_str(&format!("repaired: {repaired} blocks\n"));
    }
    for name in &scrubbed.repaired_maps {
        text.push_str(&format!("repaired: the map of image {name}\n"));
    }
    match scrubbed.damage.len() as u64 {
        0 => text.push_str("nothing is damaged any more\n"),
        left => text.push_str(&format!("still damaged: {} things\n", count(left))),
    }
    text
}
