//! `weald replica follow`.

use super::manage::{location_of, open_place, timestamp};
use crate::help::{DONE_OR_DAMAGED, Help};
use crate::json::{self, Object, put_time};
use crate::messages;
use crate::open_store::{open, show_path};
use crate::output::Output;
use crate::progress::bytes;
use crate::status::exit_code;
use crate::writer_name::writer_name;
use anyhow::bail;
use clap::{Args, ValueHint};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use weald_format::ErrorKind;
use weald_store::faults::Faults;
use weald_store::{
    FollowOptions, Followed, Place, ReplicaSettings, StandbyOptions, Store, StoreLocation, Unsent,
};
use weald_vfs::utc_seconds;

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[],
    notes: &[
        "STORE becomes a standby: it has what the replica has, and its images and volumes can be \
         mounted read-only. A directory that is missing or empty gets everything; afterwards each \
         call takes what is new. With --every it goes on until it is stopped. Volumes of a standby \
         that are mounted keep it from following.",
        "If the store that sends is lost, weald replica promote makes the standby take its place. \
         The old store learns it at its next sending, and is read-only then. When its machine is \
         back, weald replica follow makes it the standby: it takes only what it does not have. \
         What it had not sent is lost by that, so it is listed first, and nothing is changed \
         without --discard; until then the old store can be mounted with -o ro, and what is listed \
         copied.",
        "A replica that tells another history than the standby has followed, as one of a restored \
         store does, is refused; with --as-clone it is followed all the same.",
    ],
    examples: &[
        (
            "Make a standby, or bring it to the last state",
            "weald replica follow backup standby",
        ),
        (
            "Make a store that was replaced the standby of its successor",
            "weald replica follow --discard backup /srv/store",
        ),
    ],
    exit_status: DONE_OR_DAMAGED,
};

/// Make a store follow a replica, as a standby
#[derive(Args, Debug)]
#[command(after_help = HELP.short(), after_long_help = HELP.long())]
pub(super) struct FollowArgs {
    /// The replica: a directory, ssh://HOST/PATH, or command:COMMAND
    #[arg(value_name = "PLACE")]
    place: String,
    /// The standby: a directory that is missing or empty, a standby, or a store that was replaced
    #[arg(value_name = "STORE", value_hint = ValueHint::DirPath)]
    store: PathBuf,
    /// Go on, and look for new states after each such time, such as 10s, 5m or 1h
    #[arg(long, value_name = "TIME", value_parser = crate::parse::seconds)]
    every: Option<u64>,
    /// Lose what only this store has
    #[arg(long)]
    discard: bool,
    /// Follow a replica that tells another history
    #[arg(long)]
    as_clone: bool,
    /// Print nothing
    #[arg(short, long)]
    quiet: bool,
    /// Print one JSON object per call, or per state with --every
    #[arg(long, conflicts_with = "quiet")]
    json: bool,
}

/// How a standby follows.
pub(super) fn follow_options(accepts_damage: bool) -> FollowOptions {
    FollowOptions {
        writer_name: writer_name("replica follow"),
        accepts_damage,
        faults: Faults::default(),
    }
}

pub(super) fn run(args: &FollowArgs) -> anyhow::Result<ExitCode> {
    let location = location_of(&args.place)?;
    let place = open_place(&args.place)?;
    let store = match prepare(args, &*place, &location.text())? {
        Ok(store) => store,
        Err(unsent) => {
            let mut output = Output::new();
            list(&mut output, &unsent)?;
            output.finish()?;
            let words = show_path(&args.store);
            bail!(
                "{words}: has what was never sent, as listed above: --discard loses it; 'weald \
                 mount -o ro' shows the volumes of the store until then"
            );
        }
    };
    let followed = store.follow(&*place, &follow_options(false))?;
    tell(args, &followed)?;
    let Some(every) = args.every else {
        return Ok(exit_code(followed.damage.len() as u64));
    };
    follow_on(args, &store, place, Duration::from_secs(every))
}

/// Opens the standby, or makes the store one. Returns what would be lost, if it may not be.
fn prepare(
    args: &FollowArgs,
    place: &dyn Place,
    shown: &str,
) -> anyhow::Result<Result<Store, Unsent>> {
    let settings = ReplicaSettings {
        every_s: args.every.unwrap_or(0),
        ..ReplicaSettings::default()
    };
    if !weald_store::is_store(&args.store) {
        let target = StoreLocation::from(args.store.as_path());
        return Ok(Ok(target.create_standby(place, (shown, settings))?));
    }
    let store = open(&args.store)?;
    let known = store.standby_status();
    if let Ok(Some(status)) = &known
        && status.place == shown
        && (args.every.is_none() || status.settings == settings)
        && !args.as_clone
    {
        return Ok(Ok(store));
    }
    let options = StandbyOptions {
        writer_name: writer_name("replica follow"),
        settings,
        discards: args.discard,
        is_clone: args.as_clone,
        faults: Faults::default(),
    };
    let unsent = store.become_standby(place, shown, &options)?;
    Ok(if unsent.is_empty() {
        Ok(store)
    } else {
        Err(unsent)
    })
}

/// Follows until an error that another try does not mend, or until somebody promotes the store.
fn follow_on(
    args: &FollowArgs,
    store: &Store,
    mut place: Box<dyn Place>,
    every: Duration,
) -> anyhow::Result<ExitCode> {
    let mut last_error = String::new();
    loop {
        std::thread::sleep(every);
        if store.standby_status()?.is_none() {
            return Ok(ExitCode::SUCCESS);
        }
        match store.follow(&*place, &follow_options(false)) {
            Ok(followed) => {
                last_error.clear();
                if followed.state_count > 0 {
                    tell(args, &followed)?;
                }
            }
            Err(error) if error.kind() == ErrorKind::Invalid => return Err(error.into()),
            Err(error) => {
                // Once, however long it lasts.
                let text = error.with_causes();
                if text != last_error {
                    messages::error(&error.into());
                    last_error = text;
                }
                if let Ok(again) = open_place(&args.place) {
                    place = again;
                }
            }
        }
    }
}

fn list(output: &mut Output, unsent: &Unsent) -> anyhow::Result<()> {
    for name in &unsent.images {
        writeln!(output, "image {name}")?;
    }
    for (name, volume) in &unsent.volumes {
        let count = volume.inode_count;
        writeln!(output, "volume {name}: {count} files and directories")?;
        for path in &volume.paths {
            output.name(b"  ")?;
            output.name(path)?;
            writeln!(output)?;
        }
        if volume.has_log {
            writeln!(output, "  what its sync log has, which was not committed")?;
        }
    }
    Ok(())
}

/// Figures of a standby.
pub(super) fn json_of(followed: &Followed) -> Object {
    let numbers = [
        ("commit", followed.commit.0),
        ("states", followed.state_count),
        ("read_len", followed.read_len),
    ];
    let mut object = json::numbers(&numbers);
    put_time(&mut object, "sent", timestamp(followed.time));
    object.insert("damage".into(), followed.damage.clone().into());
    object
}

/// A line about a standby.
pub(super) fn line_of(path: &Path, followed: &Followed) -> String {
    let (words, commit) = (show_path(path), followed.commit);
    let time = utc_seconds(timestamp(followed.time));
    format!("{words}: commit {commit}, sent {time}")
}

fn tell(args: &FollowArgs, followed: &Followed) -> anyhow::Result<()> {
    let mut output = Output::new();
    if args.json {
        output.json(&json_of(followed).into())?;
    } else if !args.quiet {
        let read = match followed.state_count {
            0 => "nothing is new".to_owned(),
            _ => format!("{} taken", bytes(followed.read_len)),
        };
        writeln!(output, "{}; {read}", line_of(&args.store, followed))?;
    }
    output.finish()?;
    for what in &followed.damage {
        messages::error(&anyhow::anyhow!("not there: {what}"));
    }
    Ok(())
}
