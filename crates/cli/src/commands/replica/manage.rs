//! `weald replica add`, `ls`, `set`, `pause`, `resume` and `remove`.

use crate::help::{DONE_OR_FAILED, Help};
use crate::open_store::{StoreDir, open, show_path};
use crate::output::Output;
use crate::uuid::random_uuid;
use anyhow::bail;
use clap::Args;
use std::process::ExitCode;
use weald_format::Timestamp;
use weald_store::{Place, PlaceLocation, ReplicaSettings, Store, WhenLost};

/// Sections of the help.
pub const ADD_HELP: Help = Help {
    lists: &[],
    notes: &[
        "The place gets a file that says of which store it is a replica; a directory is made if it \
         is missing. Nothing is sent yet: weald replica send does that, or with --every the server \
         of a mounted volume.",
        "With --sync, a sync of a mounted volume returns when the replica has what it syncs, too. \
         Each is a sending of its own, which those that come meanwhile share: it takes as long as \
         the place needs to put five small files. While the replica cannot be reached, a sync \
         waits, or with --when-lost degrade goes on without it until it is there again; weald \
         replica status says so.",
        "A bucket needs conditional writes: one without them is refused, and weald store probe \
         tells. Credentials come from the environment or ~/.aws of the process that sends, which \
         is the server of a mounted volume with --every; nothing stores them.",
        "A place belongs to one replica. Another replica, or one of a restored store, needs a \
         place of its own.",
    ],
    examples: &[
        (
            "Make a replica on another disk",
            "weald replica add /srv/store backup",
        ),
        (
            "Let each sync wait for a replica, as long as it can be reached",
            "weald replica add /srv/store backup-3 --name both --sync --when-lost degrade",
        ),
        (
            "Let the server of a mounted volume send every 10 seconds",
            "weald replica add /srv/store backup-2 --name near --every 10s",
        ),
    ],
    exit_status: DONE_OR_FAILED,
};

/// The name of a replica.
pub(super) const DEFAULT_NAME: &str = "replica";

fn when_lost(word: &str) -> Result<WhenLost, String> {
    WhenLost::of_word(word).ok_or_else(|| "expected wait or degrade".to_owned())
}

/// Make a replica of a store
#[derive(Args, Debug)]
#[command(after_help = ADD_HELP.short(), after_long_help = ADD_HELP.long())]
pub(super) struct AddArgs {
    #[command(flatten)]
    location: StoreDir,
    /// Where it lies: a directory, s3://BUCKET/PREFIX, ssh://HOST/PATH, or command:COMMAND
    #[arg(value_name = "PLACE")]
    place: String,
    /// Name of the replica
    #[arg(long, value_name = "NAME", default_value = DEFAULT_NAME)]
    name: String,
    /// Let the server of a mounted volume send after each such time, such as 10s, 5m or 1h
    #[arg(long, value_name = "TIME", value_parser = crate::parse::seconds)]
    every: Option<u64>,
    /// Let each sync of a mounted volume wait until the replica has what it syncs
    #[arg(long)]
    sync: bool,
    /// What a sync does while the replica cannot be reached: it waits, or goes on without it
    #[arg(long, value_name = "wait|degrade", default_value = "wait", value_parser = when_lost)]
    #[arg(requires = "sync")]
    when_lost: WhenLost,
    /// Print nothing
    #[arg(short, long)]
    quiet: bool,
}

/// The place that a command line names, by its whole path.
pub(super) fn location_of(text: &str) -> anyhow::Result<PlaceLocation> {
    Ok(match PlaceLocation::parse(text)? {
        PlaceLocation::Dir(path) => PlaceLocation::Dir(std::path::absolute(path)?),
        other => other,
    })
}

/// Opens the place of a replica that is there.
pub(super) fn open_place(text: &str) -> anyhow::Result<Box<dyn Place>> {
    let location = PlaceLocation::parse(text)?;
    match &location {
        PlaceLocation::Dir(path) if weald_store::is_store(path) => {
            bail!("{}: is a store, and no replica of one", show_path(path))
        }
        PlaceLocation::Dir(path) if !path.is_dir() => {
            bail!("{}: no such directory", show_path(path))
        }
        _ => Ok(location.open()?),
    }
}

/// Makes a replica.
pub(crate) fn add_replica(
    store: &Store,
    (name, place): (&str, &str),
    settings: ReplicaSettings,
) -> anyhow::Result<PlaceLocation> {
    let location = location_of(place)?;
    if let PlaceLocation::Dir(path) = &location
        && let Some(of) = path.ancestors().find(|dir| weald_store::is_store(dir))
    {
        let words = show_path(of);
        bail!(
            "{words}: is a store, and a replica needs a place of its own, such as {words}-replica"
        );
    }
    let place = location.open()?;
    let shown = location.text();
    store.add_replica(name, &*place, (&shown, random_uuid()?), settings)?;
    Ok(location)
}

pub(super) fn add(args: &AddArgs) -> anyhow::Result<ExitCode> {
    let store = open(&args.location.store)?;
    let settings = ReplicaSettings {
        every_s: args.every.unwrap_or(0),
        sync: args.sync.then_some(args.when_lost),
        ..ReplicaSettings::default()
    };
    let location = add_replica(&store, (&args.name, &args.place), settings)?;
    if !args.quiet {
        let mut output = Output::new();
        let words = show_path(&args.location.store);
        writeln!(
            output,
            "{words}: replica {} in {}",
            args.name,
            location.text()
        )?;
        output.finish()?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn timestamp(time: i64) -> Timestamp {
    Timestamp {
        seconds: time.div_euclid(1_000_000_000),
        nanoseconds: time.rem_euclid(1_000_000_000) as u32,
    }
}

/// Sections of the help.
pub const LS_HELP: Help = Help {
    lists: &[],
    notes: &["Each line has the name of a replica and its place."],
    examples: &[(
        "List the replicas of a store",
        "weald replica ls /srv/store",
    )],
    exit_status: DONE_OR_FAILED,
};

/// List the replicas of a store
#[derive(Args, Debug)]
#[command(after_help = LS_HELP.short(), after_long_help = LS_HELP.long())]
pub(super) struct LsArgs {
    #[command(flatten)]
    location: StoreDir,
}

pub(super) fn ls(args: &LsArgs) -> anyhow::Result<ExitCode> {
    let store = open(&args.location.store)?;
    let mut output = Output::new();
    let names = store.replica_names()?;
    let width = names.iter().map(|name| name.len()).max().unwrap_or(0);
    for name in names {
        let place = match store.replica_place(&name) {
            Ok(place) => place,
            Err(error) => error.to_string(),
        };
        write!(output, "{name:width$}  ")?;
        output.name(place.as_bytes())?;
        writeln!(output)?;
    }
    output.finish()?;
    Ok(ExitCode::SUCCESS)
}

/// Sections of the help.
pub const PAUSE_HELP: Help = Help {
    lists: &[],
    notes: &[
        "The server of a mounted volume sends nothing to a replica that is paused, nor does weald \
         replica send without --name.",
    ],
    examples: &[(
        "Pause a replica",
        "weald replica pause /srv/store --name disk2",
    )],
    exit_status: DONE_OR_FAILED,
};

/// A replica of a store.
#[derive(Args, Debug)]
struct Named {
    #[command(flatten)]
    location: StoreDir,
    /// Name of the replica
    #[arg(long, value_name = "NAME", default_value = DEFAULT_NAME)]
    name: String,
}

/// Send nothing to a replica for the time being
#[derive(Args, Debug)]
#[command(after_help = PAUSE_HELP.short(), after_long_help = PAUSE_HELP.long())]
pub(super) struct PauseArgs {
    #[command(flatten)]
    named: Named,
}

pub(super) fn pause(args: &PauseArgs) -> anyhow::Result<ExitCode> {
    set_paused(&args.named, true)
}

/// Sections of the help.
pub const SET_HELP: Help = Help {
    lists: &[],
    notes: &[
        "Without options, nothing changes. A server that has the store open takes the settings \
         over within seconds.",
        "A replica gets at most --rate bytes a second, of new data and of what describes it; 0 \
         ends the limit. For hours of the day, run weald replica pause and resume from timers.",
    ],
    examples: &[
        (
            "Let the server of a mounted volume send every 5 minutes, at most 10 MiB a second",
            "weald replica set /srv/store --name disk2 --every 5m --rate 10M",
        ),
        (
            "Let it send nothing by itself",
            "weald replica set /srv/store --name disk2 --no-every",
        ),
    ],
    exit_status: DONE_OR_FAILED,
};

/// Change what was set for a replica
#[derive(Args, Debug)]
#[command(after_help = SET_HELP.short(), after_long_help = SET_HELP.long())]
pub(super) struct SetArgs {
    #[command(flatten)]
    named: Named,
    /// Let the server of a mounted volume send after each such time, such as 10s, 5m or 1h
    #[arg(long, value_name = "TIME", value_parser = crate::parse::seconds)]
    every: Option<u64>,
    /// Let the server of a mounted volume send nothing by itself
    #[arg(long, conflicts_with = "every")]
    no_every: bool,
    /// Bytes a second that the place gets at most; 0 for no limit
    #[arg(long, value_name = "SIZE", value_parser = crate::parse::size)]
    rate: Option<u64>,
    /// Let each sync of a mounted volume wait for the replica; while it is lost: wait or degrade
    #[arg(long, value_name = "wait|degrade", value_parser = when_lost)]
    sync: Option<WhenLost>,
    /// Let no sync wait for the replica
    #[arg(long, conflicts_with = "sync")]
    no_sync: bool,
}

pub(super) fn set(args: &SetArgs) -> anyhow::Result<ExitCode> {
    let store = open(&args.named.location.store)?;
    let name = &args.named.name;
    let mut settings = store.replica_settings(name)?;
    if let Some(every) = args.every.or(args.no_every.then_some(0)) {
        settings.every_s = every;
    }
    if args.sync.is_some() || args.no_sync {
        settings.sync = args.sync;
    }
    settings.rate = args.rate.unwrap_or(settings.rate);
    store.set_replica(name, settings)?;
    Ok(ExitCode::SUCCESS)
}

/// Sections of the help.
pub const RESUME_HELP: Help = Help {
    lists: &[],
    notes: &["The next sending has all that was committed meanwhile."],
    examples: &[(
        "Send again to a replica that is paused",
        "weald replica resume /srv/store --name disk2",
    )],
    exit_status: DONE_OR_FAILED,
};

/// Send to a replica again
#[derive(Args, Debug)]
#[command(after_help = RESUME_HELP.short(), after_long_help = RESUME_HELP.long())]
pub(super) struct ResumeArgs {
    #[command(flatten)]
    named: Named,
}

pub(super) fn resume(args: &ResumeArgs) -> anyhow::Result<ExitCode> {
    set_paused(&args.named, false)
}

fn set_paused(named: &Named, is_paused: bool) -> anyhow::Result<ExitCode> {
    let store = open(&named.location.store)?;
    let settings = ReplicaSettings {
        is_paused,
        ..store.replica_settings(&named.name)?
    };
    store.set_replica(&named.name, settings)?;
    Ok(ExitCode::SUCCESS)
}

/// Sections of the help.
pub const REMOVE_HELP: Help = Help {
    lists: &[],
    notes: &[
        "The store forgets the replica. Its files stay where they are, and can be restored; the \
         place does not become a replica of the store again.",
    ],
    examples: &[(
        "Forget a replica",
        "weald replica remove /srv/store --name near",
    )],
    exit_status: DONE_OR_FAILED,
};

/// Forget a replica; its files stay
#[derive(Args, Debug)]
#[command(after_help = REMOVE_HELP.short(), after_long_help = REMOVE_HELP.long())]
pub(super) struct RemoveArgs {
    #[command(flatten)]
    named: Named,
}

pub(super) fn remove(args: &RemoveArgs) -> anyhow::Result<ExitCode> {
    let store = open(&args.named.location.store)?;
    store.remove_replica(&args.named.name)?;
    Ok(ExitCode::SUCCESS)
}
