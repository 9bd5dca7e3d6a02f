//! `weald snapshot prune`.

use super::named::do_work;
use crate::commands::store::wait::WaitArgs;
use crate::help::{DONE_OR_FAILED, Help};
use crate::keep_args::KeepArgs;
use crate::named_volume::{Named, VolumePath};
use crate::output::Output;
use clap::Args;
use std::collections::BTreeSet;
use std::process::ExitCode;
use weald_daemon::SnapshotWork;
use weald_vfs::safe_line;
use weald_volume::retention::Dated;

/// Snapshots that are removed by one request.
const REMOVED_AT_ONCE: usize = 500;

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[],
    notes: &[
        "Each option keeps the newest snapshot of as many hours, days, weeks, months or years, \
         counting those that have one; a snapshot that one option keeps stays. Hours and days are \
         those of UTC, and weeks begin on Monday. Snapshots that are held, mounted or read stay, \
         too.",
    ],
    examples: &[
        (
            "Keep one snapshot of each of 24 hours and 7 days",
            "weald snapshot prune --keep-hourly 24 --keep-daily 7 /srv/store:home",
        ),
        (
            "Show what would go",
            "weald snapshot prune --dry-run --keep-last 3 /srv/store:home",
        ),
    ],
    exit_status: DONE_OR_FAILED,
};

/// Remove snapshots by age
#[derive(Args, Debug)]
#[command(after_help = HELP.short(), after_long_help = HELP.long())]
pub(super) struct PruneArgs {
    #[command(flatten)]
    path: VolumePath,
    #[command(flatten)]
    keep: KeepArgs,
    /// Only show what would go
    #[arg(short = 'n', long)]
    dry_run: bool,
    #[command(flatten)]
    wait: WaitArgs,
    /// Print nothing
    #[arg(short, long, conflicts_with = "dry_run")]
    quiet: bool,
}

pub(super) fn prune(args: &PruneArgs) -> anyhow::Result<ExitCode> {
    let rules = args.keep.rules()?;
    let volume = Named::open(&args.path.volume)?;
    volume.find()?;
    args.wait.until_free(&volume.store)?;
    let all = do_work(&volume, &SnapshotWork::List(false))?;
    let dated = all.iter().map(|snapshot| Dated {
        name: &snapshot.name,
        created: snapshot.created.into(),
        stays: snapshot.is_mounted || !snapshot.holds.is_empty(),
    });
    let names = rules.unkept(&dated.collect::<Vec<_>>());
    let names: Vec<String> = names.into_iter().map(str::to_owned).collect();
    let mut read = BTreeSet::new();
    // A request to a server has a longest length.
    for part in names.chunks(REMOVED_AT_ONCE).filter(|_| !args.dry_run) {
        let stay = do_work(&volume, &SnapshotWork::Prune(part.to_vec()))?;
        read.extend(stay.into_iter().map(|snapshot| snapshot.name));
    }
    let mut output = Output::new();
    let done = if args.dry_run {
        "would be removed"
    } else {
        "removed"
    };
    for name in names.iter().filter(|_| !args.quiet) {
        let shown = format!("{}@{name}", volume.shown());
        let done = if read.contains(name) {
            "stays: is being read"
        } else {
            done
        };
        writeln!(output, "{}: {done}", safe_line(&shown))?;
    }
    output.finish()?;
    Ok(ExitCode::SUCCESS)
}
