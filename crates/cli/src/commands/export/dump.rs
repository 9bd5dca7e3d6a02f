//! `weald export dump`.

use super::write_args::ListMemory;
use crate::help::{DONE_OR_FAILED, Help};
use crate::open::{ImageArgs, thread_count};
use crate::output::{Output, has_no_reader};
use crate::parse;
use clap::Args;
use std::io::Write;
use std::process::ExitCode;
use weald_format::Error;
use weald_views::composefs::{DumpOptions, write_dump};

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[],
    notes: &[
        "The dump has one line for each entry, in the format of composefs. Fields: path, size, \
         mode, links, owner, group, device, time, target or object, content, fs-verity digest, \
         xattrs. Files of up to 64 bytes are in the dump itself.",
        "mkcomposefs --from-file makes the image of weald export composefs of it.",
    ],
    examples: &[
        (
            "Write the tree as text",
            "weald export dump forest.weald > forest.dump",
        ),
        (
            "Compare two trees line by line",
            "diff <(weald export dump v1.weald) <(weald export dump v1.weald)",
        ),
    ],
    exit_status: DONE_OR_FAILED,
};

/// Write the tree as text, in the dump format of composefs
#[derive(Args, Debug)]
#[command(after_help = HELP.short(), after_long_help = HELP.long())]
pub(super) struct DumpArgs {
    #[command(flatten)]
    source: ImageArgs,
    /// Number of threads, 0 for one per CPU
    #[arg(short, long, value_name = "COUNT", default_value_t = 0, value_parser = parse::threads)]
    threads: usize,
    #[command(flatten)]
    memory: ListMemory,
}

pub(super) fn run(args: &DumpArgs) -> anyhow::Result<ExitCode> {
    let image = args.memory.open(&args.source)?;
    let options = DumpOptions {
        thread_count: thread_count(args.threads),
        memory_len: args.memory.list_len(),
        is_cancelled: &has_no_reader,
    };
    let mut output = Output::new();
    let mut failure = None;
    let written = write_dump(
        &image,
        &mut |line| {
            output.raw().write_all(line).map_err(|error| {
                let kind = error.kind();
                failure = Some(error);
                Error::io("standard output", kind.into())
            })
        },
        &options,
    );
    if let Some(error) = failure {
        return Err(error.into());
    }
    written?;
    output.finish()?;
    Ok(ExitCode::SUCCESS)
}
