//! The single definition of commands and options: parser, help, man pages and completions are
//! generated from it. Each command has a module of [`commands`], which runs it.

use crate::commands;
use crate::commands::man::Manual;
use crate::help::Help;
use crate::url_args::UrlArgs;
use anyhow::bail;
use clap::{ArgAction, CommandFactory, Parser, Subcommand};
use std::path::Path;
use std::process::ExitCode;

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
        "IMAGE is an image file, or STORE:NAME for an image of a store, or a URL for an image on a \
         web server or in a bucket: https://HOST/PATH, http://HOST/PATH or s3://BUCKET/KEY. A file \
         whose name is STORE:NAME comes first; ./ before a path makes no difference, and makes a \
         file of what begins like a URL.",
        "Credentials of buckets come from the environment (AWS_ACCESS_KEY_ID, \
         AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL, AWS_REGION, AWS_PROFILE) or from ~/.aws. \
         $WEALD_URL_CACHE and $WEALD_URL_TIMEOUT are as --url-cache and --url-timeout.",
        "Commands that read an image keep decoded data in a cache; --cache sets its size. The \
         cache reserves a quarter of its size, at least 8M, for metadata. The limit is 96M or 1/16 \
         of the cache, whichever is larger.",
        "Messages and JSON escape control characters and bidirectional controls. The commands ls, \
         find, sum and build --list escape names on a terminal; in a pipe or a file they write \
         names as they are.",
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
    #[command(flatten)]
    pub urls: UrlArgs,
}

/// The commands.
#[derive(Subcommand, Debug)]
#[allow(clippy::large_enum_variant)] // one, parsed once
pub enum Command {
    Build(commands::build::BuildArgs),
    Mount(commands::mount_args::MountArgs),
    #[command(aliases = ["unmount"])]
    Umount(commands::umount::UmountArgs),
    Mounts(commands::mounts::MountsArgs),
    Serve(commands::serve::ServeArgs),
    #[command(aliases = ["list", "dir"])]
    Ls(commands::ls::LsArgs),
    Tree(commands::tree::TreeArgs),
    Stat(commands::stat::StatArgs),
    Cat(commands::cat::CatArgs),
    Find(commands::find::FindArgs),
    #[command(aliases = ["unpack"])]
    Extract(commands::extract::ExtractArgs),
    Tar(commands::tar::TarArgs),
    Sum(commands::sum::SumArgs),
    Diff(commands::diff::DiffArgs),
    Info(commands::info::InfoArgs),
    #[command(aliases = ["verify", "fsck"])]
    Check(commands::check::CheckArgs),
    #[command(aliases = ["log", "history"])]
    Generations(commands::generations::GenerationsArgs),
    Recover(commands::recover::RecoverArgs),
    Salvage(commands::salvage::SalvageArgs),
    Parity(commands::parity::ParityArgs),
    Rewrite(commands::rewrite::RewriteArgs),
    Commit(commands::commit::CommitArgs),
    Publish(commands::publish::PublishArgs),
    Store(commands::store::StoreArgs),
    Replica(commands::replica::ReplicaArgs),
    Tier(commands::tier::TierArgs),
    Scrub(commands::scrub::ScrubArgs),
    Volume(commands::volume::VolumeArgs),
    Snapshot(commands::snapshot::SnapshotArgs),
    Export(commands::export::ExportArgs),
    Import(commands::import::ImportArgs),
    Forest(commands::forest::ForestArgs),
    Completions(commands::completions::CompletionsArgs),
    Man(commands::man::ManArgs),
}

/// Runs `command`.
pub fn run(command: Command) -> anyhow::Result<ExitCode> {
    if needs_proc(&command) && !Path::new("/proc/self/fd").exists() {
        bail!(
            "/proc is not mounted, and files are opened safely through it: \
             mount -t proc proc /proc"
        );
    }
    match command {
        Command::Build(args) => commands::build::run(&args),
        Command::Mount(args) => commands::mount::run(args),
        Command::Umount(args) => commands::umount::run(args),
        Command::Mounts(args) => commands::mounts::run(&args),
        Command::Serve(args) => commands::serve::run(&args),
        Command::Ls(args) => commands::ls::run(&args),
        Command::Tree(args) => commands::tree::run(&args),
        Command::Stat(args) => commands::stat::run(&args),
        Command::Cat(args) => commands::cat::run(&args),
        Command::Find(args) => commands::find::run(&args),
        Command::Forest(args) => commands::forest::run(&args),
        Command::Extract(args) => commands::extract::run(&args),
        Command::Tar(args) => commands::tar::run(&args),
        Command::Sum(args) => commands::sum::run(&args),
        Command::Diff(args) => commands::diff::run(&args),
        Command::Info(args) => commands::info::run(&args),
        Command::Check(args) => commands::check::run(&args),
        Command::Generations(args) => commands::generations::run(&args),
        Command::Recover(args) => commands::recover::run(&args),
        Command::Salvage(args) => commands::salvage::run(&args),
        Command::Parity(args) => commands::parity::run(&args),
        Command::Rewrite(args) => commands::rewrite::run(&args),
        Command::Commit(args) => commands::commit::run(&args),
        Command::Publish(args) => commands::publish::run(&args),
        Command::Store(args) => commands::store::run(&args),
        Command::Replica(args) => commands::replica::run(&args),
        Command::Tier(args) => commands::tier::run(&args),
        Command::Scrub(args) => commands::scrub::run(&args),
        Command::Volume(args) => commands::volume::run(&args),
        Command::Snapshot(args) => commands::snapshot::run(&args),
        Command::Export(args) => commands::export::run(&args),
        Command::Import(args) => commands::import::run(&args),
        Command::Completions(args) => commands::completions::run(&args, &mut Cli::command()),
        Command::Man(args) => commands::man::run(&args, manual()),
    }
}

/// Whether a command does more than to read an image.
fn needs_proc(command: &Command) -> bool {
    !matches!(
        command,
        Command::Ls(_)
            | Command::Tree(_)
            | Command::Stat(_)
            | Command::Cat(_)
            | Command::Find(_)
            | Command::Tar(_)
            | Command::Sum(_)
            | Command::Info(_)
            | Command::Check(_)
            | Command::Generations(_)
            | Command::Completions(_)
            | Command::Man(_)
    )
}

/// All that the manual pages are made from.
fn manual() -> Manual {
    Manual {
        command: Cli::command(),
        help: &HELP,
        help_of,
        help_in_group,
    }
}

/// Sections of the help of the command `name`.
fn help_of(name: &str) -> Option<&'static Help> {
    Some(match name {
        "build" => &commands::build::HELP,
        "mount" => &commands::mount_args::HELP,
        "umount" => &commands::umount::HELP,
        "mounts" => &commands::mounts::HELP,
        "serve" => &commands::serve::HELP,
        "ls" => &commands::ls::HELP,
        "tree" => &commands::tree::HELP,
        "stat" => &commands::stat::HELP,
        "cat" => &commands::cat::HELP,
        "find" => &commands::find::HELP,
        "extract" => &commands::extract::HELP,
        "tar" => &commands::tar::HELP,
        "sum" => &commands::sum::HELP,
        "diff" => &commands::diff::HELP,
        "info" => &commands::info::HELP,
        "check" => &commands::check::HELP,
        "generations" => &commands::generations::HELP,
        "recover" => &commands::recover::HELP,
        "salvage" => &commands::salvage::HELP,
        "parity" => &commands::parity::HELP,
        "rewrite" => &commands::rewrite::HELP,
        "commit" => &commands::commit::HELP,
        "publish" => &commands::publish::HELP,
        "store" => &commands::store::HELP,
        "replica" => &commands::replica::HELP,
        "tier" => &commands::tier::HELP,
        "scrub" => &commands::scrub::HELP,
        "volume" => &commands::volume::HELP,
        "snapshot" => &commands::snapshot::HELP,
        "export" => &commands::export::HELP,
        "import" => &commands::import::HELP,
        "forest" => &commands::forest::HELP,
        "completions" => &commands::completions::HELP,
        _ => return None,
    })
}

/// Sections of the help of the command `name` of the group `group`.
fn help_in_group(group: &str, name: &str) -> Option<&'static Help> {
    match group {
        "parity" => commands::parity::help_of(name),
        "store" => commands::store::help_of(name),
        "replica" => commands::replica::help_of(name),
        "tier" => commands::tier::help_of(name),
        "scrub" => commands::scrub::help_of(name),
        "volume" => commands::volume::help_of(name),
        "snapshot" => commands::snapshot::help_of(name),
        "export" => commands::export::help_of(name),
        "import" => commands::import::help_of(name),
        _ => None,
    }
}
