//! `weald replica restore`.

use super::manage::{open_place, timestamp};
use crate::help::{DONE_OR_DAMAGED, Help};
use crate::json::{self, put_time};
use crate::messages;
use crate::open_store::show_path;
use crate::output::Output;
use crate::progress::bytes;
use crate::status::exit_code;
use crate::writer_name::writer_name;
use anyhow::bail;
use clap::{Args, ValueHint};
use std::path::PathBuf;
use std::process::ExitCode;
use weald_format::CommitNo;
use weald_store::{AsOf, StoreLocation, WriteOptions};
use weald_vfs::utc_seconds;

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[],
    notes: &[
        "The new store has the images and volumes that the store had when the state was sent. It \
         is a store like any other, which can be mounted and written to; for a replica of its own \
         it needs another place.",
        "What the replica has lost, or the store had lost itself, is named, and the rest is \
         restored: weald volume check tells the files that it belongs to. If the last state is \
         damaged, --at restores an earlier one; weald replica verify lists those that are whole.",
    ],
    examples: &[
        (
            "Make a store of the last state",
            "weald replica restore backup restored-3",
        ),
        (
            "Make one of the last state that was sent before a time",
            "weald replica restore backup restored-4 --at '2099-12-31 23:59'",
        ),
    ],
    exit_status: DONE_OR_DAMAGED,
};

/// Make a store of what a replica has
#[derive(Args, Debug)]
#[command(after_help = HELP.short(), after_long_help = HELP.long())]
pub(super) struct RestoreArgs {
    /// The replica: a directory, s3://BUCKET/PREFIX, ssh://HOST/PATH, or command:COMMAND
    #[arg(value_name = "PLACE")]
    place: String,
    /// Directory of the new store
    #[arg(value_name = "STORE", value_hint = ValueHint::DirPath)]
    store: PathBuf,
    /// The state: a commit of the store, or @SECONDS or YYYY-MM-DD[ HH:MM[:SS]] for the last one
    /// that was sent by then
    #[arg(long, value_name = "COMMIT|TIME", value_parser = parse_as_of)]
    at: Option<AsOf>,
    /// Print nothing
    #[arg(short, long)]
    quiet: bool,
    /// Print one JSON object
    #[arg(long, conflicts_with = "quiet")]
    json: bool,
}

fn parse_as_of(text: &str) -> Result<AsOf, String> {
    if let Ok(commit) = text.parse() {
        return Ok(AsOf::Commit(CommitNo(commit)));
    }
    let time = crate::parse::time(text).map_err(|error| format!("{error}, or a whole number"))?;
    // The whole second belongs to it: lists of states show no parts of one.
    let nanoseconds = i128::from(time.seconds) * 1_000_000_000 + 999_999_999;
    Ok(AsOf::Time(i64::try_from(nanoseconds).unwrap_or(i64::MAX)))
}

pub(super) fn run(args: &RestoreArgs) -> anyhow::Result<ExitCode> {
    let words = show_path(&args.store);
    if weald_store::is_store(&args.store) {
        bail!("{words}: a store is here already: a restored store needs a directory of its own");
    }
    let was_there = args.store.exists();
    let place = open_place(&args.place)?;
    let options = WriteOptions::new(writer_name("replica restore"));
    let target = StoreLocation::from(args.store.as_path());
    let as_of = args.at.unwrap_or_default();
    let restored = match target.restore(&*place, as_of, options) {
        Err(error) => {
            if !was_there && !weald_store::is_store(&args.store) {
                // It was made by this command, and is no store.
                let _ = std::fs::remove_dir_all(&args.store);
            }
            return Err(error.into());
        }
        Ok(restored) => restored,
    };
    let mut output = Output::new();
    let time = timestamp(restored.time);
    if args.json {
        let numbers = [
            ("commit", restored.commit.0),
            ("written_len", restored.written_len),
        ];
        let mut object = json::numbers(&numbers);
        put_time(&mut object, "sent", time);
        object.insert("damage".into(), restored.damage.clone().into());
        output.json(&object.into())?;
    } else if !args.quiet {
        let (commit, time) = (restored.commit, utc_seconds(time));
        let len = bytes(restored.written_len);
        writeln!(output, "{words}: {len}, as of commit {commit}, sent {time}")?;
    }
    output.finish()?;
    for what in &restored.damage {
        messages::error(&anyhow::anyhow!("not restored: {what}"));
    }
    Ok(exit_code(restored.damage.len() as u64))
}
