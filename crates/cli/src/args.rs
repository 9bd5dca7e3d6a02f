//! The one definition of all words: parser, help, man pages and completions are made from it.

use crate::commands;
use clap::{ArgAction, Parser, Subcommand};

const EXAMPLES: &str = "\
Examples:
  weald build versions/ versions.weald       pack a tree
  weald mount versions.weald /mnt            use it like any read-only file system
  weald extract versions.weald out           get the tree back
  weald diff versions.weald versions/        compare it with its source
  weald check versions.weald                 verify every byte

With --json, output is one object a line. A name that is not UTF-8 also comes whole, in hexadecimal, under its key with
_hex behind it; times are seconds since 1970 and, under _ns, nanoseconds after them.

Exit status: 0 done; 1 done, but differences, damage or problems were found; 2 could not be done.";

/// Packs huge trees of similar files into one sealed, verified, compressed image, and serves it
#[derive(Parser, Debug)]
#[command(name = "weald", version, after_help = EXAMPLES, max_term_width = 100)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// Show the causes of errors and what the libraries have to say; twice for details
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
    Forest(commands::forest::ForestArgs),
    Completions(commands::completions::CompletionsArgs),
    Man(commands::man::ManArgs),
}
