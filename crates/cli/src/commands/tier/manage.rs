//! `weald tier add`, `set` and `remove`.

use crate::help::{DONE_OR_FAILED, Help};
use crate::open_store::{StoreDir, open, show_path};
use crate::output::Output;
use crate::uuid::random_uuid;
use anyhow::bail;
use clap::Args;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use weald_store::tier::{Hours, NewTier, TierPolicy, is_far, parse_place};

/// A time, or 0 for none.
fn seconds_or_none(text: &str) -> Result<u64, String> {
    if text == "0" {
        return Ok(0);
    }
    crate::parse::seconds(text)
}

fn hours(text: &str) -> Result<Hours, String> {
    Hours::parse(text).ok_or_else(|| "expected two full hours, such as 22-6, or any".to_owned())
}

/// What moves by itself.
#[derive(Args, Debug)]
pub(super) struct PolicyArgs {
    /// Move data to the next rank that was not read or written for this time, such as 12h or 30d; 0
    /// ends it
    #[arg(long, value_name = "TIME", value_parser = seconds_or_none)]
    max_age: Option<u64>,
    /// Keep this much space free: what was used least moves to the next rank
    #[arg(long, value_name = "SIZE", value_parser = crate::parse::size)]
    reserve: Option<u64>,
    /// Move a segment to the rank before after so many reads within about an hour; 0 ends it
    #[arg(long, value_name = "COUNT")]
    hits: Option<u64>,
    /// Write at most this much a second when segments move there; 0 ends the limit
    #[arg(long, value_name = "SIZE", value_parser = crate::parse::size)]
    rate: Option<u64>,
    /// Let data move there and away only at these hours of the day, such as 22-6, or any
    #[arg(long, value_name = "HOURS", value_parser = hours)]
    hours: Option<Hours>,
    /// Let nothing move there or away by itself, and no new segment land there
    #[arg(long)]
    off: bool,
}

impl PolicyArgs {
    fn change(&self, policy: &mut TierPolicy) {
        policy.max_age_s = self.max_age.unwrap_or(policy.max_age_s);
        policy.reserve = self.reserve.unwrap_or(policy.reserve);
        policy.hits = self.hits.unwrap_or(policy.hits);
        policy.rate = self.rate.unwrap_or(policy.rate);
        policy.hours = self.hours.unwrap_or(policy.hours);
        policy.is_off |= self.off;
    }
}

/// Sections of the help.
pub const ADD_HELP: Help = Help {
    lists: &[],
    notes: &[
        "A bucket is s3://BUCKET/PREFIX, with credentials from the environment. No new data lands \
         there: what is moved there by weald tier move, by a policy or by path is put there as a \
         whole segment.",
        "The directory is made if it is missing, and gets a file that says to which store it \
         belongs. A directory with other files, one of another store, and one on a disk that has a \
         tier already, or the home, are refused.",
        "Without a policy, data lands on the tier when the home is full, and by weald tier move. \
         The policy of the home is set with weald tier set STORE home.",
        "A tier remembers the directory of its store. A copy of the store does not get its tiers: \
         if the store was put back elsewhere, --again takes a tier over, and the directory where \
         the store was must not be used any more.",
    ],
    examples: &[
        (
            "Use another disk for what does not fit",
            "weald tier add /srv/store /mnt/hdd/tier --name slow",
        ),
        (
            "Let data come back from there when it is read again",
            "weald tier add /srv/store /mnt/hdd2 --name slower --rank 2 --hits 100",
        ),
        (
            "Use a bucket for what nobody needs soon",
            "weald tier add /srv/store s3://bucket/tier --name cold --rank 3",
        ),
    ],
    exit_status: DONE_OR_FAILED,
};

/// Let data of a store lie in another directory, too
#[derive(Args, Debug)]
#[command(after_help = ADD_HELP.short(), after_long_help = ADD_HELP.long())]
pub(super) struct AddArgs {
    #[command(flatten)]
    location: StoreDir,
    /// Directory of another disk, empty or missing, or s3://BUCKET/PREFIX
    #[arg(value_name = "PLACE")]
    place: PathBuf,
    /// Name of the tier
    #[arg(long, value_name = "NAME")]
    name: String,
    /// Order of the tiers: those with a lower rank are faster
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    rank: u32,
    #[command(flatten)]
    policy: PolicyArgs,
    /// Take a directory on the disk of the home or of another tier
    #[arg(long)]
    same_disk: bool,
    /// Take over a directory that is a tier of this store already, or of one that was copied
    #[arg(long)]
    again: bool,
    /// Print nothing
    #[arg(short, long)]
    quiet: bool,
}

/// The path of a directory that may be missing, without symlinks.
fn real_path(path: &Path) -> anyhow::Result<PathBuf> {
    let path = std::path::absolute(path)?;
    let mut missing = Vec::new();
    let mut there = path.as_path();
    loop {
        match there.canonicalize() {
            Ok(found) => {
                let names = missing.iter().rev();
                return Ok(names.fold(found, |path, name| path.join(name)));
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => bail!("{}: {error}", show_path(&path)),
        }
        match (there.file_name(), there.parent()) {
            (Some(name), Some(parent)) => {
                missing.push(name.to_owned());
                there = parent;
            }
            _ => bail!("{}: no such directory", show_path(&path)),
        }
    }
}

pub(super) fn add(args: &AddArgs) -> anyhow::Result<ExitCode> {
    let store = open(&args.location.store)?;
    let text = match args.place.to_str() {
        Some(text) if is_far(text) => {
            parse_place(text)?;
            text.trim_end_matches('/').to_owned()
        }
        _ => place_of(args)?,
    };
    let words = show_path(Path::new(&text));
    let mut policy = TierPolicy::default();
    args.policy.change(&mut policy);
    store.add_tier(&NewTier {
        name: args.name.clone(),
        place: text,
        rank: args.rank,
        policy,
        uuid: random_uuid()?,
        may_share_disk: args.same_disk,
        is_again: args.again,
    })?;
    if !args.quiet {
        let mut output = Output::new();
        let store = show_path(&args.location.store);
        writeln!(output, "{store}: tier {} in {words}", args.name)?;
        output.finish()?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The directory that is to be a tier.
fn place_of(args: &AddArgs) -> anyhow::Result<String> {
    let place = real_path(&args.place)?;
    let home = real_path(&args.location.store)?;
    let words = show_path(&place);
    if place
        .ancestors()
        .any(|dir| dir == home || weald_store::is_store(dir))
    {
        bail!("{words}: lies in a store, and a tier needs a directory of its own");
    }
    if home.ancestors().any(|dir| dir == place) {
        bail!("{words}: the store lies in it, and a tier needs a directory of its own");
    }
    let Some(text) = place.to_str() else {
        bail!("{words}: the path of a tier has to be UTF-8");
    };
    Ok(text.to_owned())
}

/// Sections of the help.
pub const SET_HELP: Help = Help {
    lists: &[],
    notes: &[
        "The tier home is the store's own directory. Without options, nothing changes. A server \
         that has the store open takes the settings over within seconds.",
    ],
    examples: &[
        (
            "Let what was not used for a week leave the home, and keep 100 MiB free there",
            "weald tier set /srv/store home --max-age 7d --reserve 100M",
        ),
        (
            "Write at most 50 MiB a second when data moves to a tier",
            "weald tier set /srv/store slow --rate 50M",
        ),
        (
            "Move data there and back at night only",
            "weald tier set /srv/store slow --hours 22-6",
        ),
    ],
    exit_status: DONE_OR_FAILED,
};

/// Change what moves to a tier, and away from it, by itself
#[derive(Args, Debug)]
#[command(after_help = SET_HELP.short(), after_long_help = SET_HELP.long())]
pub(super) struct SetArgs {
    #[command(flatten)]
    location: StoreDir,
    /// Name of the tier
    #[arg(value_name = "TIER")]
    name: String,
    /// Another rank
    #[arg(long, value_name = "NUMBER")]
    rank: Option<u32>,
    #[command(flatten)]
    policy: PolicyArgs,
    /// End what --off and weald tier drain have set
    #[arg(long, conflicts_with = "off")]
    on: bool,
}

pub(super) fn set(args: &SetArgs) -> anyhow::Result<ExitCode> {
    let store = open(&args.location.store)?;
    store.change_tier(&args.name, args.rank, &|policy| {
        args.policy.change(policy);
        if args.on {
            (policy.is_off, policy.is_draining) = (false, false);
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Sections of the help.
pub const REMOVE_HELP: Help = Help {
    lists: &[],
    notes: &[
        "A tier with data is refused: weald tier drain moves it away. The directory stays, without \
         the files that made it a tier.",
        "A tier that is gone for good is forgotten with --lost. What lies only there is lost then: \
         weald store check says what, and weald store salvage brings order to the rest.",
    ],
    examples: &[(
        "Empty a tier and remove it",
        "weald tier drain -q /srv/store slow && weald tier remove /srv/store slow",
    )],
    exit_status: DONE_OR_FAILED,
};

/// Remove a tier on which nothing lies
#[derive(Args, Debug)]
#[command(after_help = REMOVE_HELP.short(), after_long_help = REMOVE_HELP.long())]
pub(super) struct RemoveArgs {
    #[command(flatten)]
    location: StoreDir,
    /// Name of the tier
    #[arg(value_name = "TIER")]
    name: String,
    /// Forget a tier that is not here, with all data that lies only there
    #[arg(long)]
    lost: bool,
}

pub(super) fn remove(args: &RemoveArgs) -> anyhow::Result<ExitCode> {
    let store = open(&args.location.store)?;
    store.remove_tier(&args.name, args.lost)?;
    Ok(ExitCode::SUCCESS)
}
