//! `weald replica verify`.

use super::manage::{open_place, timestamp};
use super::send::send_to;
use crate::help::{DONE_OR_DAMAGED, DONE_OR_FAILED, Help};
use crate::json::{self, hex, put_time};
use crate::messages;
use crate::open_store::{open_dir, show_path};
use crate::output::Output;
use crate::progress::{bytes, count};
use crate::status::exit_code;
use anyhow::bail;
use clap::Args;
use std::path::Path;
use std::process::ExitCode;
use weald_store::{
    PlaceLocation, ReplicaState, Store, Verified, is_store, replica_states, verify_replica,
};
use weald_vfs::utc_seconds;

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[],
    notes: &[
        "Verify reads all files of a replica, compares them with their digests, and the rows of \
         each item with what the item says. It lists what is wrong, and which state is the last \
         one that is whole.",
        "With the directory of a store, it verifies the replicas of the store, or one of them with \
         --name, and knows what was sent last. --repair then removes damaged files and sends \
         everything again that is missing: the last state is whole after that. Earlier states may \
         have lost what the store has not any more.",
    ],
    examples: &[
        ("Verify a replica", "weald replica verify backup"),
        (
            "Verify the replicas of a store, and repair them",
            "weald replica verify /srv/store --repair",
        ),
    ],
    exit_status: DONE_OR_DAMAGED,
};

/// Read everything that a replica has
#[derive(Args, Debug)]
#[command(after_help = HELP.short(), after_long_help = HELP.long())]
pub(super) struct VerifyArgs {
    /// A replica, or the store of which all are verified
    #[arg(value_name = "PLACE|STORE")]
    place: String,
    /// Of the replicas of the store, only this one
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Send damaged and missing files again; needs the store
    #[arg(long)]
    repair: bool,
    /// Print one JSON object per replica
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &VerifyArgs) -> anyhow::Result<ExitCode> {
    let path = Path::new(&args.place);
    let mut output = Output::new();
    let mut finding_count = 0;
    if !is_store(path) {
        if args.repair || args.name.is_some() {
            bail!("--repair and --name need the directory of a store, which this is not");
        }
        let verified = verify_replica(&*open_place(&args.place)?)?;
        finding_count += tell(&mut output, &args.place, &verified, args.json)?;
        output.finish()?;
        return Ok(exit_code(finding_count));
    }
    let store = open_dir(path)?;
    let names = match &args.name {
        Some(name) => vec![name.clone()],
        None => store.replica_names()?,
    };
    if names.is_empty() {
        bail!("{}: has no replica", show_path(path));
    }
    for name in names {
        let place = PlaceLocation::parse(&store.replica_place(&name)?)?.open()?;
        let mut verified = store.verify_replica(&name, &*place)?;
        if args.repair && !verified.findings.is_empty() {
            verified = repair(&store, &name, &verified)?;
        }
        finding_count += tell(&mut output, &name, &verified, args.json)?;
    }
    output.finish()?;
    Ok(exit_code(finding_count))
}

/// Puts files again that are damaged or missing. Returns what is wrong after that.
fn repair(store: &Store, name: &str, verified: &Verified) -> anyhow::Result<Verified> {
    let place = PlaceLocation::parse(&store.replica_place(name)?)?.open()?;
    for what in &verified.findings {
        messages::error(&anyhow::anyhow!("replica {name}: {what}"));
    }
    if !store.repair_replica(&*place, verified)? {
        send_to(store, name, true)?;
    }
    Ok(store.verify_replica(name, &*place)?)
}

/// Tells what is wrong. Returns how many things are.
fn tell(
    output: &mut Output,
    name: &str,
    verified: &Verified,
    is_json: bool,
) -> anyhow::Result<u64> {
    let last = verified.states.last().copied();
    let whole = verified.last_whole();
    if is_json {
        let numbers = [
            ("state_count", verified.states.len() as u64),
            ("verified_len", verified.verified_len),
        ];
        let mut object = json::numbers(&numbers);
        object.insert("name".into(), name.into());
        object.insert("uuid".into(), hex(&verified.uuid).into());
        object.insert("findings".into(), verified.findings.clone().into());
        for (key, state) in [("last", last), ("last_whole", whole)] {
            if let Some(state) = state {
                object.insert(format!("{key}_commit"), state.commit.0.into());
                put_time(&mut object, key, timestamp(state.time));
            }
        }
        output.json(&object.into())?;
        return Ok(verified.findings.len() as u64);
    }
    let len = bytes(verified.verified_len);
    let states = count(verified.states.len() as u64);
    writeln!(output, "{name}: {states} states, {len} verified")?;
    for what in &verified.findings {
        writeln!(output, "  {}", messages::detailed(what))?;
    }
    let shown = |state: ReplicaState| {
        let time = utc_seconds(timestamp(state.time));
        format!("commit {}, sent {time}", state.commit)
    };
    match (last, whole) {
        (None, _) => writeln!(output, "  nothing was sent yet")?,
        (Some(last), Some(whole)) if last == whole => {
            writeln!(output, "  the last state is whole: {}", shown(last))?;
        }
        (Some(last), Some(whole)) => {
            writeln!(output, "  the last state is damaged: {}", shown(last))?;
            writeln!(output, "  the last one that is whole: {}", shown(whole))?;
        }
        (Some(_), None) => writeln!(output, "  no state is whole")?,
    }
    Ok(verified.findings.len() as u64)
}

/// Sections of the help.
pub const STATES_HELP: Help = Help {
    lists: &[],
    notes: &[
        "Each line has a commit of the store, and when it was sent: restore takes either with \
         --at. Whether all that belongs to a state is there, weald replica verify tells.",
    ],
    examples: &[(
        "List the states of a replica",
        "weald replica states backup",
    )],
    exit_status: DONE_OR_FAILED,
};

/// List the states that a replica has
#[derive(Args, Debug)]
#[command(after_help = STATES_HELP.short(), after_long_help = STATES_HELP.long())]
pub(super) struct StatesArgs {
    /// The replica: a directory, ssh://HOST/PATH, or command:COMMAND
    #[arg(value_name = "PLACE")]
    place: String,
}

pub(super) fn states(args: &StatesArgs) -> anyhow::Result<ExitCode> {
    let place = open_place(&args.place)?;
    let mut output = Output::new();
    for state in replica_states(&*place)? {
        let time = utc_seconds(timestamp(state.time));
        let note = if state.is_whole {
            ""
        } else {
            "  an item before it is missing"
        };
        writeln!(output, "{:>12}  {time}{note}", state.commit)?;
    }
    output.finish()?;
    Ok(ExitCode::SUCCESS)
}
