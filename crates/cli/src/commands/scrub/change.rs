//! `weald scrub start`, `pause` and `resume`.

use super::perform::{Shown, perform, show, wait_for_pause};
use crate::help::{DONE_OR_FAILED, Help, SCRUBBED};
use crate::messages;
use crate::open_store::{StoreDir, open, show_path};
use anyhow::bail;
use clap::Args;
use std::process::ExitCode;
use weald_store::Store;
use weald_store::scrub::{PolicyRun, ScrubPolicy, ScrubReport, ScrubWish, WHOLE};

/// Sections of the help.
pub const START_HELP: Help = Help {
    lists: &[],
    notes: &[
        "If a volume of the store is mounted, its server begins, and the command returns; --wait \
         waits for the end. Otherwise the command performs the scrub. What is written after the \
         begin is not read.",
        "Without --rate, a scrub reads as fast as it can while nobody writes, and works a fifth of \
         the time otherwise. The rate counts stored bytes of blocks.",
        "--since reads only blocks that were written since the last complete scrub began. --sample \
         reads a share of the blocks, other ones each time. Both read and count everything else.",
    ],
    examples: &[
        ("Read every byte", "weald scrub start /srv/store"),
        (
            "Wait for the end, also if a server does it",
            "weald scrub start --wait /srv/store",
        ),
        (
            "Read what is new since the last complete scrub",
            "weald scrub start --since /srv/store",
        ),
        (
            "Read a hundredth of the blocks, each night another one",
            "weald scrub start --sample 1% /srv/store",
        ),
    ],
    exit_status: SCRUBBED,
};

/// A share, in millionths.
fn share(text: &str) -> Result<u32, String> {
    let number = text.strip_suffix('%').and_then(|text| text.parse().ok());
    let number = number.filter(|percent: &f64| *percent > 0.0 && *percent <= 100.0);
    let share = number.map(|percent| (percent / 100.0 * f64::from(WHOLE)).ceil() as u32);
    share.ok_or_else(|| "expected a share above 0% and up to 100%, as 1% or 0.5%".to_owned())
}

/// Begin a scrub
#[derive(Args, Debug)]
#[command(after_help = START_HELP.short(), after_long_help = START_HELP.long())]
pub(super) struct StartArgs {
    #[command(flatten)]
    location: StoreDir,
    /// Bytes a second that are read at most
    #[arg(long, value_name = "SIZE", value_parser = crate::parse::size)]
    rate: Option<u64>,
    /// Read only blocks that were written since the last complete scrub
    #[arg(long)]
    since: bool,
    /// Read this share of the blocks, such as 1%
    #[arg(long, value_name = "SHARE", value_parser = share)]
    sample: Option<u32>,
    /// Begin anew, also if a scrub is under way or paused
    #[arg(long)]
    anew: bool,
    #[command(flatten)]
    waiting: WaitArgs,
}

/// What is shown, and whether the command waits.
#[derive(Args, Debug)]
struct WaitArgs {
    /// Wait for the end, also if a server does it
    #[arg(long)]
    wait: bool,
    /// Print nothing
    #[arg(short, long)]
    quiet: bool,
    /// Print one JSON object at the end
    #[arg(long, conflicts_with = "quiet")]
    json: bool,
}

impl WaitArgs {
    fn shown(&self) -> Shown {
        Shown {
            waits: self.wait,
            is_quiet: self.quiet,
            is_json: self.json,
        }
    }
}

/// The wish and the report of a store, and whether something of that run is left to do.
fn state_of(store: &Store) -> anyhow::Result<(Option<ScrubWish>, Option<ScrubReport>, bool)> {
    let (wish, report) = (store.scrub_wish()?, store.scrub_report()?);
    let is_open = wish.is_some_and(|wish| {
        let of_run = report.as_ref().filter(|report| report.wish.run == wish.run);
        !of_run.is_some_and(ScrubReport::is_done)
    });
    Ok((wish, report, is_open))
}

/// The store, or what stands for it in memory if nothing can be written.
fn writable(store: &Store) -> Store {
    let reading = store.for_reading();
    if reading.keeps_changes_in_memory() {
        let shown = weald_vfs::safe_line(&store.shown()).into_owned();
        messages::line(&format!(
            "{shown}: nothing is written there: where the scrub is, and what it finds, is not kept"
        ));
    }
    reading
}

pub(super) fn start(args: &StartArgs) -> anyhow::Result<ExitCode> {
    let store = writable(&open(&args.location.store)?);
    let (wish, report, is_open) = state_of(&store)?;
    let words = show_path(&args.location.store);
    if let Some(wish) = wish.filter(|_| is_open && !args.anew) {
        let is = if wish.is_paused {
            "paused"
        } else {
            "under way"
        };
        bail!(
            "{words}: a scrub is {is}: 'weald scrub status {words}' shows how far it is, 'weald \
             scrub resume {words}' goes on with it, and --anew begins another one"
        );
    }
    let last = wish.map(|wish| wish.run);
    let last = last.max(report.map(|report| report.wish.run));
    let wish = ScrubWish {
        run: last.unwrap_or(0).saturating_add(1),
        tries: 0,
        is_paused: false,
        rate: args.rate.unwrap_or(0),
        share: args.sample.unwrap_or(WHOLE),
        is_since: args.since,
    };
    store.put_scrub_wish(&wish)?;
    perform(&store, &wish, args.waiting.shown())
}

/// Sections of the help.
pub const PAUSE_HELP: Help = Help {
    lists: &[],
    notes: &[
        "The scrub stays where it is, also over restarts, until weald scrub resume. A scrub that \
         another command performs ends.",
    ],
    examples: &[("Pause a scrub", "weald scrub pause /srv/store")],
    exit_status: DONE_OR_FAILED,
};

/// Pause a scrub
#[derive(Args, Debug)]
#[command(after_help = PAUSE_HELP.short(), after_long_help = PAUSE_HELP.long())]
pub(super) struct PauseArgs {
    #[command(flatten)]
    location: StoreDir,
}

pub(super) fn pause(args: &PauseArgs) -> anyhow::Result<ExitCode> {
    let store = open(&args.location.store)?;
    let (wish, _, is_open) = state_of(&store)?;
    let words = show_path(&args.location.store);
    let Some(wish) = wish.filter(|_| is_open) else {
        bail!("{words}: no scrub is under way");
    };
    let wish = ScrubWish {
        is_paused: true,
        ..wish
    };
    store.put_scrub_wish(&wish)?;
    wait_for_pause(&store, &wish)?;
    Ok(ExitCode::SUCCESS)
}

/// Sections of the help.
pub const RESUME_HELP: Help = Help {
    lists: &[],
    notes: &[
        "Goes on where the scrub was: after a pause, after a kill, and after an error. Of a scrub \
         that is complete, it reads what could not be read then, such as segments of a tier that \
         was away; if there is nothing of that kind, it shows what was found.",
    ],
    examples: &[
        ("Go on with a scrub", "weald scrub resume /srv/store"),
        (
            "Go on at another rate",
            "weald scrub resume --rate 200M /srv/store",
        ),
    ],
    exit_status: SCRUBBED,
};

/// Go on with a scrub
#[derive(Args, Debug)]
#[command(after_help = RESUME_HELP.short(), after_long_help = RESUME_HELP.long())]
pub(super) struct ResumeArgs {
    #[command(flatten)]
    location: StoreDir,
    /// Bytes a second that are read at most; 0 for as many as others leave
    #[arg(long, value_name = "SIZE", value_parser = crate::parse::size)]
    rate: Option<u64>,
    #[command(flatten)]
    waiting: WaitArgs,
}

pub(super) fn resume(args: &ResumeArgs) -> anyhow::Result<ExitCode> {
    let store = writable(&open(&args.location.store)?);
    let (wish, report, is_open) = state_of(&store)?;
    let words = show_path(&args.location.store);
    let Some(wish) = wish else {
        bail!("{words}: there is no scrub to go on with: 'weald scrub start {words}' begins one");
    };
    if let Some(report) = report.filter(|report| !is_open && report.parked.is_empty()) {
        return show(&report, args.waiting.shown());
    }
    // A user who goes on with a scrub of the policy means now, whatever its hours are.
    if let Some(policy) = store.scrub_policy()?
        && let Some(begun) = policy.begun.filter(|begun| begun.run == wish.run)
    {
        let begun = Some(PolicyRun { run: 0, ..begun });
        store.put_scrub_policy(Some(&ScrubPolicy { begun, ..policy }))?;
    }
    let wish = ScrubWish {
        tries: wish.tries.saturating_add(1),
        is_paused: false,
        rate: args.rate.unwrap_or(wish.rate),
        ..wish
    };
    store.put_scrub_wish(&wish)?;
    perform(&store, &wish, args.waiting.shown())
}
