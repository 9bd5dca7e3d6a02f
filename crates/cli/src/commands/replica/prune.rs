//! `weald replica prune`.

use super::manage::DEFAULT_NAME;
use super::send::send_all_rows;
use crate::help::{DONE_OR_FAILED, Help};
use crate::open_store::{StoreDir, open};
use crate::output::Output;
use crate::progress::count;
use clap::Args;
use std::process::ExitCode;
use weald_store::PlaceLocation;

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[],
    notes: &[
        "A replica keeps every state that was sent, until this command removes the oldest. States \
         are counted, not dated, so that a wrong clock removes nothing. What older states alone \
         need goes with them.",
        "Each state builds on the ones before it, back to one with all rows of the store. If that \
         lies far back, all rows are sent once more, and the states before go the next time.",
    ],
    examples: &[(
        "Keep the last hundred states",
        "weald replica prune /srv/store --name disk2 --keep 100",
    )],
    exit_status: DONE_OR_FAILED,
};

/// Remove the oldest states of a replica
#[derive(Args, Debug)]
#[command(after_help = HELP.short(), after_long_help = HELP.long())]
pub(super) struct PruneArgs {
    #[command(flatten)]
    location: StoreDir,
    /// Name of the replica
    #[arg(long, value_name = "NAME", default_value = DEFAULT_NAME)]
    name: String,
    /// Number of states to keep, the newest
    #[arg(long, value_name = "COUNT", value_parser = crate::parse::number::<u64>)]
    keep: u64,
    /// Print nothing
    #[arg(short, long)]
    quiet: bool,
}

pub(super) fn run(args: &PruneArgs) -> anyhow::Result<ExitCode> {
    let store = open(&args.location.store)?;
    let location = PlaceLocation::parse(&store.replica_place(&args.name)?)?;
    let place = location.open()?;
    let mut pruned = store.prune_replica(&args.name, &*place, args.keep)?;
    // More than twice as many as were asked for are left.
    if pruned.needs_all_rows && pruned.state_count > args.keep.saturating_mul(2) {
        send_all_rows(&store, &args.name)?;
        pruned.state_count += 1;
    }
    if !args.quiet {
        let mut output = Output::new();
        let (removed, left) = (count(pruned.removed_count), count(pruned.state_count));
        writeln!(
            output,
            "{}: {removed} files removed, {left} states left",
            args.name
        )?;
        output.finish()?;
    }
    Ok(ExitCode::SUCCESS)
}
