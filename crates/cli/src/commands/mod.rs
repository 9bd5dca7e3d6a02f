//! The commands, one module each: arguments, help and output.

pub mod annex;
pub mod build;
pub mod cat;
pub mod check;
pub mod completions;
pub mod dead;
pub mod diff;
pub mod export;
pub mod extract;
pub mod find;
pub mod forest;
pub mod generations;
pub mod import;
pub mod info;
pub mod ls;
pub mod man;
pub mod mount;
pub mod mount_helper;
pub mod mount_kernel;
pub mod mount_overlay;
pub mod mounts;
pub mod recover;
pub mod rewrite;
mod sent_image;
pub mod serve;
pub mod stat;
pub mod store;
pub mod sum;
pub mod tar;
pub mod tree;
pub mod umount;
pub mod umount_helper;
pub mod volume;

use crate::args::Command;
use crate::help::Help;
use std::process::ExitCode;

/// Runs `command`.
pub fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Build(args) => build::run(&args),
        Command::Mount(args) => mount::run(args),
        Command::Umount(args) => umount::run(args),
        Command::Mounts(args) => mounts::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Ls(args) => ls::run(&args),
        Command::Tree(args) => tree::run(&args),
        Command::Stat(args) => stat::run(&args),
        Command::Cat(args) => cat::run(&args),
        Command::Find(args) => find::run(&args),
        Command::Forest(args) => forest::run(&args),
        Command::Extract(args) => extract::run(&args),
        Command::Tar(args) => tar::run(&args),
        Command::Sum(args) => sum::run(&args),
        Command::Diff(args) => diff::run(&args),
        Command::Info(args) => info::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Generations(args) => generations::run(&args),
        Command::Recover(args) => recover::run(&args),
        Command::Rewrite(args) => rewrite::run(&args),
        Command::Store(args) => store::run(&args),
        Command::Volume(args) => volume::run(&args),
        Command::Export(args) => export::run(&args),
        Command::Import(args) => import::run(&args),
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => man::run(&args),
    }
}

/// Sections of the help of the command `name`.
pub fn help_of(name: &str) -> Option<&'static Help> {
    Some(match name {
        "build" => &build::HELP,
        "mount" => &mount::HELP,
        "umount" => &umount::HELP,
        "mounts" => &mounts::HELP,
        "serve" => &serve::HELP,
        "ls" => &ls::HELP,
        "tree" => &tree::HELP,
        "stat" => &stat::HELP,
        "cat" => &cat::HELP,
        "find" => &find::HELP,
        "extract" => &extract::HELP,
        "tar" => &tar::HELP,
        "sum" => &sum::HELP,
        "diff" => &diff::HELP,
        "info" => &info::HELP,
        "check" => &check::HELP,
        "generations" => &generations::HELP,
        "recover" => &recover::HELP,
        "rewrite" => &rewrite::HELP,
        "store" => &store::HELP,
        "volume" => &volume::HELP,
        "export" => &export::HELP,
        "import" => &import::HELP,
        "forest" => &forest::HELP,
        "completions" => &completions::HELP,
        _ => return None,
    })
}

/// Sections of the help of the command `name` of the group `group`.
pub fn help_in_group(group: &str, name: &str) -> Option<&'static Help> {
    match group {
        "store" => store::help_of(name),
        "volume" => volume::help_of(name),
        "export" => export::help_of(name),
        "import" => import::help_of(name),
        _ => None,
    }
}
