//! `weald scrub set` and `run-due`.

use super::due::{next_of, now_s};
use super::perform::{Shown, perform};
use crate::help::{DONE_OR_FAILED, Help, SCRUBBED};
use crate::open_store::{StoreDir, open, show_path};
use crate::output::Output;
use anyhow::bail;
use clap::Args;
use std::process::ExitCode;
use weald_store::scrub::{ScrubPolicy, ScrubReport};
use weald_store::tier::Hours;

/// Shortest time between two scrubs, in seconds.
const EVERY_MIN_S: u64 = 3600;

/// Sections of the help.
pub const SET_HELP: Help = Help {
    lists: &[],
    notes: &[
        "Has a store read as a whole from time to time, and keeps that in it. The server of a \
         mounted volume obeys; weald scrub run-due does it for a store without one, from a timer. \
         The time counts from the end of the last scrub that read every block.",
        "Outside --hours, by the clock of the machine, a scrub of the policy rests. One that weald \
         scrub start begins does not. --rate 0 reads as fast as others leave.",
    ],
    examples: &[
        (
            "Read everything once a month, at night",
            "weald scrub set /srv/store --every 30d --rate 50M --hours 22-6",
        ),
        ("Do so no more", "weald scrub set /srv/store --never"),
    ],
    exit_status: DONE_OR_FAILED,
};

/// A period of scrubs.
fn every(text: &str) -> Result<u64, String> {
    let seconds = crate::parse::seconds(text)?;
    if seconds < EVERY_MIN_S {
        return Err("expected an hour or more, such as 30d".to_owned());
    }
    Ok(seconds)
}

fn hours(text: &str) -> Result<Hours, String> {
    Hours::parse(text).ok_or_else(|| "expected two full hours, such as 22-6, or any".to_owned())
}

/// Say how often a store is scrubbed by itself
#[derive(Args, Debug)]
#[command(after_help = SET_HELP.short(), after_long_help = SET_HELP.long())]
pub(super) struct SetArgs {
    #[command(flatten)]
    location: StoreDir,
    /// Time between two scrubs, such as 30d
    #[arg(long, value_name = "TIME", value_parser = every)]
    every: Option<u64>,
    /// Bytes a second that are read at most; 0 for as many as others leave
    #[arg(long, value_name = "SIZE", value_parser = crate::parse::size)]
    rate: Option<u64>,
    /// Read only at these hours of the day, such as 22-6, or any
    #[arg(long, value_name = "HOURS", value_parser = hours)]
    hours: Option<Hours>,
    /// Scrub no more by itself
    #[arg(long, conflicts_with_all = ["every", "rate", "hours"])]
    never: bool,
}

pub(super) fn set(args: &SetArgs) -> anyhow::Result<ExitCode> {
    let store = open(&args.location.store)?;
    let words = show_path(&args.location.store);
    if args.never {
        store.put_scrub_policy(None)?;
        return Ok(ExitCode::SUCCESS);
    }
    let known = store.scrub_policy()?;
    let every_s = args.every.or(known.map(|known| known.every_s));
    let Some(every_s) = every_s else {
        bail!("{words}: --every says how often, as in 'weald scrub set {words} --every 30d'");
    };
    let policy = ScrubPolicy {
        every_s,
        rate: args.rate.or(known.map(|known| known.rate)).unwrap_or(0),
        hours: args
            .hours
            .or(known.map(|known| known.hours))
            .unwrap_or_default(),
        begun: known.and_then(|known| known.begun),
    };
    store.put_scrub_policy(Some(&policy))?;
    Ok(ExitCode::SUCCESS)
}

/// Sections of the help.
pub const RUN_DUE_HELP: Help = Help {
    lists: &[],
    notes: &[
        "For a timer: begins the scrub that the policy of weald scrub set has begin, and performs \
         it, or goes on with one that was interrupted, or rested. If nothing is due, it says when, \
         and ends at once. Where a server has the store, it does the same by itself.",
    ],
    examples: &[("Scrub what is due", "weald scrub run-due /srv/store")],
    exit_status: SCRUBBED,
};

/// Perform the scrub that is due
#[derive(Args, Debug)]
#[command(after_help = RUN_DUE_HELP.short(), after_long_help = RUN_DUE_HELP.long())]
pub(super) struct RunDueArgs {
    #[command(flatten)]
    location: StoreDir,
    /// Print nothing
    #[arg(short, long)]
    quiet: bool,
}

pub(super) fn run_due(args: &RunDueArgs) -> anyhow::Result<ExitCode> {
    let store = open(&args.location.store)?;
    let words = show_path(&args.location.store);
    let Some(policy) = store.scrub_policy()? else {
        bail!("{words}: has no policy: 'weald scrub set {words} --every 30d' makes one");
    };
    let now = now_s();
    let mut wish = store.begin_due_scrub(now)?;
    let report = store.scrub_report()?;
    if wish.is_none() {
        // One that is not complete goes on, unless users paused it.
        let is_done = |run| {
            let of_run = report.as_ref().filter(|report| report.wish.run == run);
            of_run.is_some_and(ScrubReport::is_done)
        };
        wish = store.scrub_wish()?;
        wish = wish.filter(|wish| !is_done(wish.run) && !wish.is_paused);
    }
    let shown = Shown {
        waits: false,
        is_quiet: args.quiet,
        is_json: false,
    };
    match wish {
        Some(wish) if !policy.rests(&wish, now) => perform(&store, &wish, shown),
        wish => {
            let mut output = Output::new();
            if !args.quiet {
                let what = match wish {
                    Some(_) => "a scrub rests until its hours".to_owned(),
                    None => format!("nothing is due until {}", next_of(&policy, report.as_ref())),
                };
                writeln!(output, "{what}")?;
            }
            output.finish()?;
            Ok(ExitCode::SUCCESS)
        }
    }
}
