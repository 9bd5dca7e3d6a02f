//! `weald tier ls` and `stat`.

use crate::help::{DONE_OR_FAILED, Help};
use crate::json::Object;
use crate::metrics::{gauge, label};
use crate::open_store::{StoreDir, open};
use crate::output::Output;
use crate::progress::{bytes, count, duration};
use clap::Args;
use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;
use weald_store::tier::{Hours, TierReport, TierState, is_far};
use weald_vfs::safe_line;

/// Sections of the help.
pub const LS_HELP: Help = Help {
    lists: &[],
    notes: &["Each line has the name of a tier, its rank and its directory. The home comes first."],
    examples: &[("List the tiers of a store", "weald tier ls /srv/store")],
    exit_status: DONE_OR_FAILED,
};

/// List the tiers of a store
#[derive(Args, Debug)]
#[command(after_help = LS_HELP.short(), after_long_help = LS_HELP.long())]
pub(super) struct LsArgs {
    #[command(flatten)]
    location: StoreDir,
}

pub(super) fn ls(args: &LsArgs) -> anyhow::Result<ExitCode> {
    let store = open(&args.location.store)?;
    let mut output = Output::new();
    for tier in store.tiers()? {
        write!(output, "{} {} ", tier.name, tier.rank)?;
        output.name(tier.place.as_bytes())?;
        writeln!(output)?;
    }
    output.finish()?;
    Ok(ExitCode::SUCCESS)
}

/// Sections of the help.
pub const STAT_HELP: Help = Help {
    lists: &[],
    notes: &[
        "Of each tier, its segments and their bytes, the free space of its disk, and what moves by \
         itself. Waiting is what should have moved in the last run and could not, with the reason.",
    ],
    examples: &[
        ("Show what lies where", "weald tier stat /srv/store"),
        (
            "Print how many bytes each tier has",
            "weald tier stat --json /srv/store | jq -c '[.name, .bytes]'",
        ),
        (
            "Write figures for the textfile collector of Prometheus",
            "weald tier stat --prometheus /srv/store > tiers.prom",
        ),
    ],
    exit_status: DONE_OR_FAILED,
};

/// Show what lies on the tiers of a store
#[derive(Args, Debug)]
#[command(after_help = STAT_HELP.short(), after_long_help = STAT_HELP.long())]
pub(super) struct StatArgs {
    #[command(flatten)]
    location: StoreDir,
    /// Print one JSON object per tier
    #[arg(long)]
    json: bool,
    /// Print figures for Prometheus
    #[arg(long, conflicts_with = "json")]
    prometheus: bool,
}

pub(super) fn stat(args: &StatArgs) -> anyhow::Result<ExitCode> {
    let store = open(&args.location.store)?;
    let report = store.tier_report()?.unwrap_or_default();
    let tiers = store.tiers()?;
    let mut output = Output::new();
    if args.prometheus {
        output.text(&metrics(&tiers, &report, &args.location.store)?)?;
    }
    for tier in &tiers {
        if args.json {
            output.json(&json_of(tier, &report).into())?;
        } else if !args.prometheus {
            output.text(&text_of(tier, &report))?;
        }
    }
    output.finish()?;
    Ok(ExitCode::SUCCESS)
}

/// Name and meaning of a metric, and its figure.
type Metric = (
    (&'static str, &'static str),
    fn(&TierState, &TierReport) -> u64,
);

/// The metric of free space.
const FREE: &str = "weald_tier_free_bytes";

const METRICS: [Metric; 4] = [
    (
        ("weald_tier_here", "Whether the tier is here."),
        |tier, _| tier.why_away.is_none().into(),
    ),
    (
        ("weald_tier_bytes", "Bytes of segments on the tier."),
        |tier, _| tier.len(),
    ),
    ((FREE, "Free bytes of its disk."), |tier, _| tier.space.free),
    (
        (
            "weald_tier_waiting_bytes",
            "Bytes that should have moved away and could not.",
        ),
        |tier, report| waiting(tier, report).map(|(len, _)| len).sum(),
    ),
];

fn waiting<'a>(
    tier: &'a TierState,
    report: &'a TierReport,
) -> impl Iterator<Item = (u64, &'a str)> {
    let of_tier = report
        .parked
        .iter()
        .filter(|(_, from, _)| *from == tier.name);
    of_tier.map(|(len, _, why)| (*len, why.as_str()))
}

/// The figures of a tier.
pub(in crate::commands) fn json_of(tier: &TierState, report: &TierReport) -> Object {
    let mut object = Object::new();
    let policy = &tier.policy;
    object.insert("name".into(), tier.name.as_str().into());
    object.insert("rank".into(), tier.rank.into());
    object.insert("place".into(), tier.place.as_str().into());
    object.insert("is_here".into(), tier.why_away.is_none().into());
    object.insert("error".into(), tier.why_away.clone().into());
    object.insert("segments".into(), (tier.segments.len() as u64).into());
    object.insert("bytes".into(), tier.len().into());
    let space = (!is_far(&tier.place)).then_some(tier.space);
    object.insert("disk_bytes".into(), space.map(|space| space.total).into());
    object.insert(
        "disk_free_bytes".into(),
        space.map(|space| space.free).into(),
    );
    object.insert("max_age".into(), policy.max_age_s.into());
    object.insert("reserve".into(), policy.reserve.into());
    object.insert("hits".into(), policy.hits.into());
    object.insert("rate".into(), policy.rate.into());
    object.insert("hours".into(), policy.hours.word().into());
    object.insert("is_off".into(), policy.is_off.into());
    object.insert("is_draining".into(), policy.is_draining.into());
    let sum: u64 = waiting(tier, report).map(|(len, _)| len).sum();
    object.insert("waiting_bytes".into(), sum.into());
    let whys: Vec<String> = waiting(tier, report)
        .map(|(_, why)| why.to_owned())
        .collect();
    object.insert("waiting_for".into(), whys.into());
    object
}

fn text_of(tier: &TierState, report: &TierReport) -> String {
    let place = safe_line(&tier.place);
    let mut text = format!("{} (rank {}) in {place}\n", tier.name, tier.rank);
    // Writing to a string does not fail.
    let _ = match &tier.why_away {
        Some(why) => writeln!(text, "  not here: {}", safe_line(why)),
        None if is_far(&tier.place) => writeln!(
            text,
            "  {} in {} segments",
            bytes(tier.len()),
            count(tier.segments.len() as u64)
        ),
        None => writeln!(
            text,
            "  {} in {} segments; {} of {} are free",
            bytes(tier.len()),
            count(tier.segments.len() as u64),
            bytes(tier.space.free),
            bytes(tier.space.total)
        ),
    };
    let policy = &tier.policy;
    let mut words = Vec::new();
    if policy.max_age_s > 0 {
        words.push(format!(
            "what is older than {} moves on",
            duration(policy.max_age_s)
        ));
    }
    if policy.reserve > 0 {
        words.push(format!("{} stay free", bytes(policy.reserve)));
    }
    if policy.hits > 0 {
        words.push(format!("{} reads move a segment back", count(policy.hits)));
    }
    if policy.rate > 0 {
        words.push(format!("at most {} a second", bytes(policy.rate)));
    }
    if policy.hours != Hours::default() {
        words.push(format!("at the hours {}", policy.hours.word()));
    }
    if policy.is_off {
        words.push("off".into());
    }
    if policy.is_draining {
        words.push("everything moves away".into());
    }
    if !words.is_empty() {
        let _ = writeln!(text, "  policy: {}", words.join(", "));
    }
    for (len, why) in waiting(tier, report) {
        let _ = writeln!(text, "  waiting: {}: {}", bytes(len), safe_line(why));
    }
    text
}

/// What lies on a tier, in a few words.
pub(in crate::commands) fn words_of(tier: &TierState) -> String {
    match &tier.why_away {
        Some(why) => format!("is not here: {}", safe_line(why)),
        None if is_far(&tier.place) => bytes(tier.len()),
        None => format!("{}, {} are free", bytes(tier.len()), bytes(tier.space.free)),
    }
}

/// All figures: each metric once, with a line for each tier.
fn metrics(tiers: &[TierState], report: &TierReport, store: &Path) -> anyhow::Result<String> {
    // The same, however it was typed.
    let path = std::fs::canonicalize(store)?;
    let shown = label(&path.to_string_lossy());
    let mut text = String::new();
    for (head, figure) in METRICS {
        // A bucket says nothing of its space.
        let is_told = |tier: &&TierState| head.0 != FREE || !is_far(&tier.place);
        let lines = tiers.iter().filter(is_told).map(|tier| {
            let labels = format!("store=\"{shown}\",tier=\"{}\"", label(&tier.name));
            (labels, figure(tier, report) as f64)
        });
        text.push_str(&gauge(head, &lines.collect::<Vec<_>>()));
    }
    Ok(text)
}
