//! `weald replica receive`.

use crate::help::{DONE_OR_FAILED, Help};
use clap::{Args, ValueHint};
use std::path::PathBuf;
use std::process::ExitCode;
use weald_store::{PlaceLocation, Receiving, receive};

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[],
    notes: &[
        "This is the other side of a replica: it answers requests on its standard input and \
         output, and touches the files of a replica in DIR only. ssh starts it for a place \
         ssh://HOST/DIR.",
        "With --keep-all, it neither removes nor replaces a file. A machine that was broken into \
         then cannot destroy the replica. To make a key good for nothing else, put command=\"weald \
         replica receive --keep-all DIR\",restrict in front of it in authorized_keys.",
    ],
    examples: &[(
        "Make a replica by a command of one's own",
        "weald replica add /srv/store 'command:weald replica receive /mnt/far' --name far",
    )],
    exit_status: DONE_OR_FAILED,
};

/// Answer the requests of another machine for a replica here
#[derive(Args, Debug)]
#[command(after_help = HELP.short(), after_long_help = HELP.long())]
pub(super) struct ReceiveArgs {
    /// Directory of the replica
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    dir: PathBuf,
    /// Neither remove nor replace files of the replica
    #[arg(long)]
    keep_all: bool,
}

pub(super) fn run(args: &ReceiveArgs) -> anyhow::Result<ExitCode> {
    let place = PlaceLocation::Dir(args.dir.clone()).open()?;
    let receiving = if args.keep_all {
        Receiving::KeepsAll
    } else {
        Receiving::All
    };
    let (mut input, mut output) = (std::io::stdin().lock(), std::io::stdout().lock());
    receive(&*place, receiving, (&mut input, &mut output))?;
    Ok(ExitCode::SUCCESS)
}
