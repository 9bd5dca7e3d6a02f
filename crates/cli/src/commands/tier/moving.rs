//! `weald tier plan`, `run`, `move` and `drain`.

use crate::commands::store::store_lock::open_lock;
use crate::help::{DONE_OR_FAILED, Help, Item};
use crate::interrupt::interrupt_flag;
use crate::json::Object;
use crate::named_volume::inner_path;
use crate::open_store::{StoreDir, open, open_named};
use crate::output::Output;
use crate::progress::{bytes, count};
use crate::runtime_dir::runtime_dir_path;
use crate::status::exit_code;
use crate::writer_name::writer_name;
use anyhow::bail;
use clap::Args;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use weald_daemon::RuntimeDir;
use weald_format::ErrorKind;
use weald_store::tier::{Mover, PlannedMove, TierReport, Why};
use weald_store::{Store, WriteOptions};
use weald_volume::{TierMove, VolumePart};

const MOVED: &[Item] = &[
    ("0", "The command did its work."),
    (
        "1",
        "Something should have moved and could not; standard output says why.",
    ),
    ("2", "The command failed; standard error says why."),
];

/// Moves what users and the policies of the tiers ask for, or what `wanted` names: here, or in the
/// server that has a volume of the store mounted.
fn moved(store: &Store, wanted: Option<&TierMove>) -> anyhow::Result<TierReport> {
    let flag = interrupt_flag()?;
    let mut writer = match store.write(WriteOptions::new(writer_name("tier"))) {
        Err(busy) if busy.kind() == ErrorKind::Busy => {
            let lock = open_lock(Path::new(&store.shown()))?;
            let done = match RuntimeDir::find(&runtime_dir_path())? {
                Some(dir) => weald_daemon::move_tiers(&dir, lock.as_fd(), wanted)?,
                None => None,
            };
            return Ok(done.ok_or(busy)?);
        }
        other => other?,
    };
    let should_stop = || flag.load(Ordering::Relaxed);
    let report = weald_volume::move_alone(&mut writer, wanted, should_stop)?;
    if flag.load(Ordering::Relaxed) {
        bail!("interrupted: what has moved until now has moved");
    }
    Ok(report)
}

/// Prints what was done. Status 1 if something waits.
fn show(report: &TierReport, is_quiet: bool, is_json: bool) -> anyhow::Result<ExitCode> {
    let mut output = Output::new();
    let waiting: u64 = report.parked.iter().map(|(len, ..)| len).sum();
    if is_json {
        let mut object = Object::new();
        object.insert("moved_segments".into(), report.moved_count.into());
        object.insert("moved_bytes".into(), report.moved_len.into());
        object.insert("waiting_bytes".into(), waiting.into());
        let whys = report.parked.iter().map(|(.., why)| why.clone());
        object.insert("waiting_for".into(), whys.collect::<Vec<_>>().into());
        output.json(&object.into())?;
    } else if !is_quiet {
        writeln!(
            output,
            "moved {} segments, {}",
            count(report.moved_count),
            bytes(report.moved_len)
        )?;
        for (len, from, why) in &report.parked {
            let why = weald_vfs::safe_line(why);
            writeln!(output, "{} of {from} should move: {why}", bytes(*len))?;
        }
    }
    output.finish()?;
    Ok(exit_code(report.parked.len() as u64))
}

/// Sections of the help.
pub const PLAN_HELP: Help = Help {
    lists: &[],
    notes: &[
        "Each line has the tier where a segment lies, the one where it should lie, its bytes, and \
         why. Nothing moves. A hyphen stands for no tier with room. Reads that a server has \
         counted since its last run, at most 10 seconds ago, are not in it, and paths that were \
         pinned in the last minute may be missing while a volume is mounted.",
    ],
    examples: &[(
        "Show what would move, and why",
        "weald tier plan /srv/store",
    )],
    exit_status: DONE_OR_FAILED,
};

/// Show what would move between tiers, and why
#[derive(Args, Debug)]
#[command(after_help = PLAN_HELP.short(), after_long_help = PLAN_HELP.long())]
pub(super) struct PlanArgs {
    #[command(flatten)]
    location: StoreDir,
    /// Print one JSON object per segment
    #[arg(long)]
    json: bool,
}

fn why(planned: &PlannedMove) -> String {
    match planned.why {
        Why::Drain => "the tier is drained".into(),
        Why::Reserve => "the tier keeps more space free".into(),
        Why::Idle(seconds) => format!("not used for {}", crate::progress::duration(seconds)),
        Why::Hits(hits) => format!("read {} times", count(hits)),
        Why::Pinned => "pinned there".into(),
        Why::PinnedPart => "a part of a segment is pinned there".into(),
    }
}

/// What should move by now. Where a server has the store open, pins are those that it has found in
/// its last run.
fn planned_moves(store: &Store) -> anyhow::Result<Vec<PlannedMove>> {
    let mut mover = Mover::new(store)?;
    mover.settle_again();
    if store.has_tiers()
        && let Ok(mut writer) = store.write(WriteOptions::new(writer_name("tier")))
    {
        weald_volume::look_for_pins(&mut mover, &mut writer)?;
    }
    Ok(mover.plan()?)
}

pub(super) fn plan(args: &PlanArgs) -> anyhow::Result<ExitCode> {
    let store = open(&args.location.store)?;
    let mut output = Output::new();
    for planned in planned_moves(&store)? {
        let mut why = why(&planned);
        if let Some(waits_for) = &planned.waits_for {
            why = format!("{why}; {}", weald_vfs::safe_line(waits_for));
        }
        if args.json {
            let mut object = Object::new();
            object.insert("segment".into(), planned.number.0.into());
            object.insert("bytes".into(), planned.len.into());
            object.insert("from".into(), planned.from.into());
            object.insert("to".into(), planned.to.into());
            object.insert("why".into(), why.into());
            output.json(&object.into())?;
        } else {
            let to = planned.to.as_deref().unwrap_or("-");
            let (from, len) = (planned.from, bytes(planned.len));
            writeln!(output, "{from} -> {to}  {len}  {why}")?;
        }
    }
    output.finish()?;
    Ok(ExitCode::SUCCESS)
}

/// Sections of the help.
pub const RUN_HELP: Help = Help {
    lists: &[],
    notes: &[
        "While a volume of the store is mounted, its server does this every 10 seconds, and at \
         once when the settings change; then the command makes it do so now.",
    ],
    examples: &[(
        "Move what the policies ask for",
        "weald tier run /srv/store",
    )],
    exit_status: MOVED,
};

/// Move between tiers what their policies ask for
#[derive(Args, Debug)]
#[command(after_help = RUN_HELP.short(), after_long_help = RUN_HELP.long())]
pub(super) struct RunArgs {
    #[command(flatten)]
    location: StoreDir,
    /// Print nothing
    #[arg(short, long)]
    quiet: bool,
    /// Print one JSON object
    #[arg(long, conflicts_with = "quiet")]
    json: bool,
}

pub(super) fn run(args: &RunArgs) -> anyhow::Result<ExitCode> {
    let store = open(&args.location.store)?;
    show(&moved(&store, None)?, args.quiet, args.json)
}

/// Sections of the help.
pub const MOVE_HELP: Help = Help {
    lists: &[],
    notes: &[
        "Without a path, whole segments move: all those with a block that the image or volume \
         uses, and what else lies in them. With the path of a file or directory of a volume, its \
         data moves alone: where it lies among other data, it is copied into segments of its own \
         first.",
        "What is written later lands at home again, and policies go on moving it. weald volume set \
         --tier lets the data of a path stay on a tier.",
    ],
    examples: &[
        (
            "Move an image to a tier",
            "weald tier move /srv/store:forest --to slow",
        ),
        (
            "Move the files of a directory of a volume",
            "weald tier move /srv/store:home . --to slow",
        ),
        (
            "Bring it back",
            "weald tier move /srv/store:forest --to home",
        ),
    ],
    exit_status: DONE_OR_FAILED,
};

/// Move the data of an image or a volume to a tier
#[derive(Args, Debug)]
#[command(after_help = MOVE_HELP.short(), after_long_help = MOVE_HELP.long())]
pub(super) struct MoveArgs {
    /// The image or volume
    #[arg(value_name = "STORE:NAME")]
    name: std::path::PathBuf,
    /// A file or directory of the volume, from its root on
    #[arg(value_name = "PATH")]
    path: Option<std::path::PathBuf>,
    /// Only these bytes of the file, such as 0-64M: from the first number on, up to the second
    #[arg(long, value_name = "RANGE", value_parser = range, requires = "path")]
    range: Option<Range<u64>>,
    /// Name of the tier, or home
    #[arg(long, value_name = "TIER")]
    to: String,
    /// Print nothing
    #[arg(short, long)]
    quiet: bool,
    /// Print one JSON object
    #[arg(long, conflicts_with = "quiet")]
    json: bool,
}

/// A range of bytes: START-END, or START- up to the end of the file.
fn range(text: &str) -> Result<Range<u64>, String> {
    let wrong = "expected the first byte and the one behind the last, such as 0-64M or 1G-";
    let (start, end) = text.split_once('-').ok_or(wrong)?;
    let start = crate::parse::size(start)?;
    let end = match end {
        "" => u64::MAX,
        end => crate::parse::size(end)?,
    };
    if start < end {
        Ok(start..end)
    } else {
        Err(wrong.to_owned())
    }
}

pub(super) fn move_name(args: &MoveArgs) -> anyhow::Result<ExitCode> {
    let (store, name) = open_named(&args.name)?;
    let part = match &args.path {
        Some(path) => Some(VolumePart {
            path: inner_path(path)?.into_os_string().into_vec(),
            range: args.range.clone(),
        }),
        None => None,
    };
    let to = args.to.clone();
    let report = moved(&store, Some(&TierMove { name, to, part }))?;
    show(&report, args.quiet, args.json)
}

/// Sections of the help.
pub const DRAIN_HELP: Help = Help {
    lists: &[],
    notes: &[
        "Nothing lands on the tier from now on, and what lies there moves to the next rank with \
         room, or to one before. What finds no room stays, and moves when there is some; weald \
         tier set --on ends that.",
    ],
    examples: &[(
        "Move everything away from a tier",
        "weald tier drain /srv/store slow",
    )],
    exit_status: MOVED,
};

/// Move everything away from a tier
#[derive(Args, Debug)]
#[command(after_help = DRAIN_HELP.short(), after_long_help = DRAIN_HELP.long())]
pub(super) struct DrainArgs {
    #[command(flatten)]
    location: StoreDir,
    /// Name of the tier
    #[arg(value_name = "TIER")]
    name: String,
    /// Print nothing
    #[arg(short, long)]
    quiet: bool,
    /// Print one JSON object
    #[arg(long, conflicts_with = "quiet")]
    json: bool,
}

pub(super) fn drain(args: &DrainArgs) -> anyhow::Result<ExitCode> {
    let store = open(&args.location.store)?;
    store.change_tier(&args.name, None, &|policy| policy.is_draining = true)?;
    let report = moved(&store, None)?;
    show(&report, args.quiet, args.json)
}
