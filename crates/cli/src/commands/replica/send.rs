//! `weald replica send`, and `weald store backup`.

use super::manage::{add_replica, location_of};
use crate::commands::store::store_lock::open_lock;
use crate::help::{DONE_OR_DAMAGED, Help};
use crate::json::{self, Object};
use crate::messages;
use crate::open_store::{StoreDir, open, show_path};
use crate::output::Output;
use crate::progress::bytes;
use crate::runtime_dir::runtime_dir_path;
use crate::status::exit_code;
use crate::writer_name::writer_name;
use anyhow::bail;
use clap::Args;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;
use weald_daemon::RuntimeDir;
use weald_store::faults::Faults;
use weald_store::{PlaceLocation, ReplicaSettings, SendOptions, Sent, Store, WriteOptions};

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[],
    notes: &[
        "Sends what was committed since the last time: the rows that changed, new bytes of \
         segments, and maps of images. It works beside mounted volumes, whose server first writes \
         to disk what programs have written. Interrupted, it is repeated without harm.",
        "What the store itself cannot read is named, and the rest is sent.",
        "If a replica has lost files, --anew sends everything that it does not have, whatever was \
         sent before; weald replica verify --repair does that after a look at all of them.",
    ],
    examples: &[
        (
            "Send what is new to all replicas of a store",
            "weald replica send /srv/store",
        ),
        (
            "Send it to one of them",
            "weald replica send /srv/store --name disk2",
        ),
    ],
    exit_status: DONE_OR_DAMAGED,
};

/// Send what a store has committed to its replicas
#[derive(Args, Debug)]
#[command(after_help = HELP.short(), after_long_help = HELP.long())]
pub(super) struct SendArgs {
    #[command(flatten)]
    location: StoreDir,
    /// Send to this replica only, even if it is paused; may be repeated
    #[arg(long, value_name = "NAME")]
    name: Vec<String>,
    /// Send everything that the place does not have, whatever was sent before
    #[arg(long)]
    anew: bool,
    /// Print nothing
    #[arg(short, long)]
    quiet: bool,
    /// Print one JSON object per replica
    #[arg(long, conflicts_with = "quiet")]
    json: bool,
}

/// Lets the server of mounted volumes write them to disk, so that what was written before is sent.
/// Without such a server of this user, what is committed is sent.
fn commit_mounted(store: &Store) {
    let commit = || -> weald_format::Result<bool> {
        let lock = open_lock(Path::new(&store.shown()))?;
        match RuntimeDir::find(&runtime_dir_path())? {
            Some(runtime_dir) => weald_daemon::commit(&runtime_dir, lock.as_fd()),
            None => Ok(false),
        }
    };
    if let Err(error) = commit() {
        log::info!("what is not committed is not sent: {error}");
    }
}

/// Sends to one replica.
pub(super) fn send_to(store: &Store, name: &str, is_anew: bool) -> weald_format::Result<Sent> {
    send_with(store, name, (is_anew, false))
}

/// Sends all rows to one replica, also those that were sent before.
pub(super) fn send_all_rows(store: &Store, name: &str) -> weald_format::Result<Sent> {
    send_with(store, name, (false, true))
}

fn send_with(
    store: &Store,
    name: &str,
    (is_anew, has_all_rows): (bool, bool),
) -> weald_format::Result<Sent> {
    let place = PlaceLocation::parse(&store.replica_place(name)?)?.open()?;
    commit_mounted(store);
    let options = SendOptions {
        writer: Some(WriteOptions::new(writer_name("replica send"))),
        is_anew,
        has_all_rows,
        faults: Faults::default(),
    };
    store.send_replica(name, &*place, &options)
}

pub(super) fn run(args: &SendArgs) -> anyhow::Result<ExitCode> {
    let store = open(&args.location.store)?;
    let mut names = args.name.clone();
    if names.is_empty() {
        names = store.replica_names()?;
        if names.is_empty() {
            let words = show_path(&args.location.store);
            bail!("{words}: has no replica: 'weald replica add {words} PLACE' makes one");
        }
        names.retain(|name| {
            let settings = store.replica_settings(name);
            !settings.is_ok_and(|settings| settings.is_paused)
        });
    }
    let mut output = Output::new();
    let (mut failed, mut damage_count) = (None, 0);
    for name in &names {
        // One place that cannot be reached keeps nothing from the others.
        match send_to(&store, name, args.anew) {
            Ok(sent) => {
                store.note_replica_error(name, None);
                damage_count += tell(&mut output, name, &sent, (args.quiet, args.json))?;
            }
            Err(error) => {
                store.note_replica_error(name, Some(&error.with_causes()));
                if let Some(error) = failed.replace(error.context(format_args!("replica {name}"))) {
                    messages::error(&error.into());
                }
            }
        }
    }
    output.finish()?;
    match failed {
        Some(error) => Err(error.into()),
        None => Ok(exit_code(damage_count)),
    }
}

/// Tells what was sent. Returns the number of things that the store could not read.
fn tell(
    output: &mut Output,
    name: &str,
    sent: &Sent,
    (is_quiet, is_json): (bool, bool),
) -> anyhow::Result<u64> {
    if is_json {
        let numbers = [("commit", sent.commit.0), ("sent_len", sent.sent_len)];
        let mut object: Object = json::numbers(&numbers);
        object.insert("name".into(), name.into());
        object.insert("is_new".into(), sent.is_new.into());
        object.insert("has_all_rows".into(), sent.has_all_rows.into());
        object.insert("damage".into(), sent.damage.clone().into());
        output.json(&object.into())?;
    } else if !is_quiet && sent.is_new {
        let len = bytes(sent.sent_len);
        writeln!(output, "{name}: {len} sent, up to commit {}", sent.commit)?;
    } else if !is_quiet {
        writeln!(
            output,
            "{name}: nothing is new after commit {}",
            sent.commit
        )?;
    }
    for what in &sent.damage {
        let error = anyhow::anyhow!("the store cannot read what the replica should get: {what}");
        messages::error(&error);
    }
    Ok(sent.damage.len() as u64)
}

/// Sections of the help.
pub const BACKUP_HELP: Help = Help {
    lists: &[],
    notes: &[
        "The first time, this makes a replica of the store in the place; each time, it sends what \
         is new. It is weald replica add and weald replica send in one.",
        "A backup that was never restored is none: weald replica restore PLACE DIR makes a store \
         of it, of the last state or of any before it, and weald replica verify PLACE reads all of \
         it.",
    ],
    examples: &[
        ("Back a store up", "weald store backup /srv/store backup"),
        ("Restore it", "weald replica restore backup restored-2"),
    ],
    exit_status: DONE_OR_DAMAGED,
};

/// Send what is new in a store to a place for backups
#[derive(Args, Debug)]
#[command(after_help = BACKUP_HELP.short(), after_long_help = BACKUP_HELP.long())]
pub struct BackupArgs {
    #[command(flatten)]
    location: StoreDir,
    /// Where the backup lies: a directory, ssh://HOST/PATH, or command:COMMAND
    #[arg(value_name = "PLACE")]
    place: String,
    /// Name of the replica, if this makes it
    #[arg(long, value_name = "NAME", default_value = "backup")]
    name: String,
    /// Print nothing
    #[arg(short, long)]
    quiet: bool,
}

/// Runs `weald store backup`.
pub fn backup(args: &BackupArgs) -> anyhow::Result<ExitCode> {
    let store = open(&args.location.store)?;
    let text = location_of(&args.place)?.text();
    let mut name = None;
    for of in store.replica_names()? {
        if store.replica_place(&of).is_ok_and(|place| place == text) {
            name = Some(of);
        }
    }
    let name = match name {
        Some(name) => name,
        None => {
            let settings = ReplicaSettings::default();
            add_replica(&store, (&args.name, &args.place), settings)?;
            args.name.clone()
        }
    };
    let sent = send_to(&store, &name, false)?;
    let mut output = Output::new();
    let damage_count = tell(&mut output, &name, &sent, (args.quiet, false))?;
    output.finish()?;
    Ok(exit_code(damage_count))
}
