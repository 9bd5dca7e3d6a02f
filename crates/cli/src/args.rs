//! The single definition of commands and options: parser, help, man pages and completions are
//! generated from it.

use crate::commands;
use crate::help::Help;
use clap::{ArgAction, Parser, Subcommand};

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[],
    notes: &[
        "Sizes take the suffixes K, M, G and T, powers of 1024. Times are UTC. Options may \
         stand before or after paths; '--' ends them.",
        "With --json, output is one JSON object per line. A name that is not UTF-8 appears \
         twice: under its key with U+FFFD, and under key_hex with all its bytes in hexadecimal. \
         A time has two keys: mtime has the seconds since 1970, mtime_nsec the nanoseconds that \
         follow.",
        "IMAGE is an image file, or STORE:NAME for an image of a store. A file whose name is \
         STORE:NAME comes first; ./ before a path makes no difference.",
        "Commands that read an image keep decoded data in a cache; --cache sets its size. The \
         cache reserves a quarter of its size, at least 8M, for metadata. The limit is 96M or 1/16 \
         of the cache, whichever is larger.",
        "Messages and JSON escape control characters and bidirectional controls. The commands ls, \
         find and sum escape names on a terminal; in a pipe or a file they write names as they \
         are.",
    ],
    examples: &[
        ("Pack a tree", "weald build project/ project.weald"),
        (
            "Mount it like any read-only file system",
            "weald mount project.weald /mnt",
        ),
        ("Extract it", "weald extract project.weald out"),
        (
            "Compare it with its source",
            "weald diff project.weald project/",
        ),
        ("Verify every byte", "weald check project.weald"),
    ],
    exit_status: &[
        ("0", "The command did its work."),
        (
            "1",
            "The command did its work, but found differences, damage or problems.",
        ),
        ("2", "The command failed; standard error says why."),
    ],
};

/// Pack large trees of similar files into one compressed, verified image, and mount it
#[derive(Parser, Debug)]
#[command(
    name = "weald",
    version,
    after_help = HELP.short(),
    after_long_help = HELP.long(),
    max_term_width = 100
)]
pub struct Cli {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
    /// Show causes of errors, and messages of the libraries; twice for details
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub verbose: u8,
}

/// The commands.
#[derive(Subcommand, Debug)]
#[allow(clippy::large_enum_variant)] // one, parsed once
pub enum Command {
    Build(commands::build::BuildArgs),
    Mount(commands::mount::MountArgs),
    Umount(commands::umount::UmountArgs),
    Mounts(commands::mounts::MountsArgs),
    Serve(commands::serve::ServeArgs),
    Ls(commands::ls::LsArgs),
    Tree(commands::tree::TreeArgs),
    Stat(commands::stat::StatArgs),
    Cat(commands::cat::CatArgs),
    Find(commands::find::FindArgs),
    Extract(commands::extract::ExtractArgs),
    Tar(commands::tar::TarArgs),
    Sum(commands::sum::SumArgs),
    Diff(commands::diff::DiffArgs),
    Info(commands::info::InfoArgs),
    Check(commands::check::CheckArgs),
    Generations(commands::generations::GenerationsArgs),
    Recover(commands::recover::RecoverArgs),
    Rewrite(commands::rewrite::RewriteArgs),
    Store(commands::store::StoreArgs),
    Volume(commands::volume::VolumeArgs),
    Export(commands::export::ExportArgs),
    Import(commands::import::ImportArgs),
    Forest(commands::forest::ForestArgs),
    Completions(commands::completions::CompletionsArgs),
    Man(commands::man::ManArgs),
}
