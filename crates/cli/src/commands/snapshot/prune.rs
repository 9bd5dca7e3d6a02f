//! `weald snapshot prune`.

use super::named::do_work;
use super::show::time_of;
use crate::commands::volume::{Named, VolumePath};
use crate::help::{DONE_OR_FAILED, Help};
use crate::output::Output;
use anyhow::bail;
use clap::Args;
use std::process::ExitCode;
use weald_daemon::{SnapshotReport, SnapshotWork};
use weald_vfs::{safe_line, utc_seconds};

/// Snapshots that are removed by one request.
const REMOVED_AT_ONCE: usize = 500;

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[],
    notes: &[
        "Each option keeps the newest snapshot of as many hours, days, weeks, months or years, \
         counting those that have one; a snapshot that one option keeps stays. Hours and days are \
         those of UTC, and weeks begin on Monday. Snapshots that are held stay, too.",
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
    /// Keep this many of the newest
    #[arg(long, value_name = "N")]
    keep_last: Option<u64>,
    /// Keep the newest of each of this many hours
    #[arg(long, value_name = "N")]
    keep_hourly: Option<u64>,
    /// Keep the newest of each of this many days
    #[arg(long, value_name = "N")]
    keep_daily: Option<u64>,
    /// Keep the newest of each of this many weeks
    #[arg(long, value_name = "N")]
    keep_weekly: Option<u64>,
    /// Keep the newest of each of this many months
    #[arg(long, value_name = "N")]
    keep_monthly: Option<u64>,
    /// Keep the newest of each of this many years
    #[arg(long, value_name = "N")]
    keep_yearly: Option<u64>,
    /// Only show what would go
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Print nothing
    #[arg(short, long, conflicts_with = "dry_run")]
    quiet: bool,
}

/// A period of time by name.
type Period = fn(&SnapshotReport) -> String;

fn text(snapshot: &SnapshotReport, len: usize) -> String {
    utc_seconds(time_of(snapshot)).chars().take(len).collect()
}

fn week(snapshot: &SnapshotReport) -> String {
    // 1970-01-01 was a Thursday.
    let day = time_of(snapshot).seconds.div_euclid(86_400);
    day.saturating_add(3).div_euclid(7).to_string()
}

/// The names of the snapshots that no rule keeps. `all` has the oldest first.
fn unkept(all: &[SnapshotReport], rules: &[(u64, Period)]) -> Vec<String> {
    let mut rules: Vec<_> = rules
        .iter()
        .map(|(count, period)| (*count, period, None))
        .collect();
    let mut unkept = Vec::new();
    for snapshot in all.iter().rev() {
        let mut is_kept = !snapshot.holds.is_empty();
        for (left, period, last) in &mut rules {
            let period = Some(period(snapshot));
            if *left > 0 && period != *last {
                *left -= 1;
                *last = period;
                is_kept = true;
            }
        }
        if !is_kept {
            unkept.push(snapshot.name.clone());
        }
    }
    unkept.reverse();
    unkept
}

pub(super) fn prune(args: &PruneArgs) -> anyhow::Result<ExitCode> {
    let periods: [(Option<u64>, Period); 6] = [
        // Names differ, so that each is a period of its own.
        (args.keep_last, |snapshot| snapshot.name.clone()),
        (args.keep_hourly, |snapshot| text(snapshot, 13)),
        (args.keep_daily, |snapshot| text(snapshot, 10)),
        (args.keep_weekly, week),
        (args.keep_monthly, |snapshot| text(snapshot, 7)),
        (args.keep_yearly, |snapshot| text(snapshot, 4)),
    ];
    let rules = periods.into_iter();
    let rules: Vec<_> = rules
        .filter_map(|(count, period)| Some((count?, period)))
        .collect();
    if rules.iter().all(|(count, _)| *count == 0) {
        bail!("nothing would be kept: name what to keep, as in --keep-daily 7");
    }
    let volume = Named::open(&args.path.volume)?;
    volume.find()?;
    let all = do_work(&volume, &SnapshotWork::List(false))?;
    let names = unkept(&all, &rules);
    // A request to a server has a longest length.
    for part in names.chunks(REMOVED_AT_ONCE).filter(|_| !args.dry_run) {
        do_work(&volume, &SnapshotWork::Remove(part.to_vec()))?;
    }
    let mut output = Output::new();
    let done = if args.dry_run {
        "would be removed"
    } else {
        "removed"
    };
    for name in names.iter().filter(|_| !args.quiet) {
        let shown = format!("{}@{name}", volume.shown());
        writeln!(output, "{}: {done}", safe_line(&shown))?;
    }
    output.finish()?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(name: &str, hour: i64) -> SnapshotReport {
        SnapshotReport {
            name: name.to_owned(),
            created: hour * 3_600_000_000_000,
            commit: 1,
            holds: Vec::new(),
            space: None,
        }
    }

    // Would catch: a period that keeps its oldest snapshot, or that counts periods without one.
    #[test]
    fn the_newest_of_each_period_stays() {
        // Days 0, 0, 1 and 9; a week begins with day 4.
        let mut all = vec![
            at("a", 1),
            at("b", 5),
            at("c", 30),
            at("d", 220),
            at("e", 220),
        ];
        let day: Period = |snapshot| text(snapshot, 10);
        assert_eq!(unkept(&all, &[(2, day)]), ["a", "b", "d"]);
        assert_eq!(unkept(&all, &[(9, day)]), ["a", "d"]);
        assert_eq!(unkept(&all, &[(9, week)]), ["a", "b", "d"]);
        let last: Period = |snapshot| snapshot.name.clone();
        assert_eq!(unkept(&all, &[(2, last)]), ["a", "b", "c"]);
        assert_eq!(unkept(&all, &[(1, last), (3, day)]), ["a", "d"]);
        all[0].holds.push("tag".to_owned());
        assert_eq!(unkept(&all, &[(1, last)]), ["b", "c", "d"]);
    }
}
