//! `weald replica promote`.

use super::follow::{follow_options, json_of, line_of};
use super::manage::DEFAULT_NAME;
use crate::help::{DONE_OR_DAMAGED, Help};
use crate::messages;
use crate::open_store::{StoreDir, open, show_path};
use crate::output::Output;
use crate::status::exit_code;
use crate::uuid::random_uuid;
use anyhow::bail;
use clap::Args;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};
use weald_format::Timestamp;
use weald_store::{PlaceLocation, PromoteOptions};
use weald_vfs::utc_seconds;

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[],
    notes: &[
        "The standby first takes what the replica has and it has not. Then it is a store like any \
         other, in place of the one that sent to the replica, and sends to the replica itself. The \
         other store, if it still runs, is refused at its next sending, and is read-only from then \
         on: what it had acknowledged as sent is in the new one.",
        "With --without-place, the replica is not asked, and learns nothing: the standby becomes a \
         store of its own, with what it has, and the other store goes on.",
        "What the replica has lost is named, and the rest is there: weald volume check tells the \
         files that it belongs to.",
    ],
    examples: &[(
        "Let a standby take the place of a store that is lost",
        "weald replica promote standby",
    )],
    exit_status: DONE_OR_DAMAGED,
};

/// Make a standby take the place of the store that it follows
#[derive(Args, Debug)]
#[command(after_help = HELP.short(), after_long_help = HELP.long())]
pub(super) struct PromoteArgs {
    #[command(flatten)]
    location: StoreDir,
    /// Name that the replica gets in this store
    #[arg(long, value_name = "NAME", default_value = DEFAULT_NAME)]
    name: String,
    /// Make a store of its own, without the replica
    #[arg(long)]
    without_place: bool,
    /// Print nothing
    #[arg(short, long)]
    quiet: bool,
    /// Print one JSON object
    #[arg(long, conflicts_with = "quiet")]
    json: bool,
}

/// Which store this is, for messages of the one that it replaces.
fn words_for(path: &std::path::Path) -> String {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let time = utc_seconds(Timestamp {
        seconds: since.map_or(0, |since| since.as_secs() as i64),
        nanoseconds: 0,
    });
    let words = format!("{} on {}, promoted {time}", show_path(&path), host.trim());
    words.chars().filter(|c| !c.is_control()).collect()
}

pub(super) fn run(args: &PromoteArgs) -> anyhow::Result<ExitCode> {
    let path = &args.location.store;
    let store = open(path)?;
    let words = show_path(path);
    let Some(status) = store.standby_status()? else {
        bail!("{words}: is no standby: 'weald replica follow PLACE {words}' makes a store one");
    };
    let follow = follow_options(true);
    let promoted = if args.without_place {
        store.end_following(&follow.writer_name)?
    } else {
        let place = PlaceLocation::parse(&status.place)?.open()?;
        let options = PromoteOptions {
            follow,
            name: args.name.clone(),
            id: random_uuid()?,
            text: words_for(path),
        };
        store.promote(&*place, &options)?
    };
    let followed = &promoted.followed;
    let mut output = Output::new();
    if args.json {
        let mut object = json_of(followed);
        let epoch = promoted.epoch.map(|epoch| epoch.0);
        object.insert("epoch".into(), epoch.into());
        output.json(&object.into())?;
    } else if !args.quiet {
        let line = line_of(path, followed);
        match promoted.epoch {
            Some(_) => writeln!(output, "{line}; it sends to {} from now on", status.place)?,
            None => writeln!(output, "{line}; it knows no replica")?,
        }
    }
    output.finish()?;
    for what in &followed.damage {
        messages::error(&anyhow::anyhow!("not there: {what}"));
    }
    Ok(exit_code(followed.damage.len() as u64))
}
