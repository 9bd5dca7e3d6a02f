//! `weald store`: one store of blocks under many images.

pub(super) mod add;
mod change;
mod collect;
mod export;
pub(super) mod import_target;
mod names;
pub(super) mod names_writer;
mod probe;
mod salvage;
mod scrub;
mod show;
pub(super) mod store_lock;
mod views;
pub(super) mod wait;

use super::replica::{BACKUP_HELP, BackupArgs, backup};
use crate::help::Help;
use crate::open_store::silence_engine;
use clap::{Args, Subcommand};
use std::process::ExitCode;

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[],
    notes: &[
        "A store is a directory. It keeps each block once, however many of its images have it. \
         STORE:NAME names an image of a store wherever a command reads an image: weald mount, \
         ls, cat, find, diff, sum, extract, tar, check, info, rewrite and build --base.",
        "One process writes to a store at a time; any number reads beside it. A second writer \
         is refused with the process id and the command of the first. While a volume of the store \
         is mounted, its server is that process: weald store import and add send images to it, \
         and weald store rm and gc let it remove and collect.",
        "weald store rm forgets an image, and weald store gc returns its space. Both work while \
         other images of the store are mounted. They can be interrupted or killed at any moment: \
         the next command that writes to the store finishes or undoes what was begun.",
    ],
    examples: &[
        ("Make a store", "weald store create /srv/store"),
        (
            "Build an image of a directory into it",
            "weald store add /srv/store project --name project-1",
        ),
        (
            "Put image files into it",
            "weald store import /srv/store v1.weald forest.weald",
        ),
        ("List its images", "weald store ls /srv/store"),
        ("Read one of them", "weald ls -l /srv/store:forest"),
        ("Mount one of them", "weald mount /srv/store:forest /mnt"),
        (
            "Write one of them to a file",
            "weald store export /srv/store:forest copy.weald",
        ),
        ("Remove one of them", "weald store rm /srv/store:v1"),
        ("Return its space", "weald store gc /srv/store"),
        ("Verify every byte", "weald store check --data /srv/store"),
    ],
    exit_status: &[
        ("0", "The command did its work."),
        ("1", "The store is damaged (check, info, ls, salvage)."),
        ("2", "The command failed; standard error says why."),
    ],
};

/// Keep many images in one store, each block once
#[derive(Args, Debug)]
#[command(after_help = HELP.short(), after_long_help = HELP.long())]
#[command(disable_help_subcommand = true)]
pub struct StoreArgs {
    #[command(subcommand)]
    command: StoreCommand,
}

#[derive(Subcommand, Debug)]
enum StoreCommand {
    Create(change::CreateArgs),
    Add(Box<add::AddArgs>),
    Import(change::ImportArgs),
    Export(export::ExportArgs),
    Ls(show::LsArgs),
    Info(show::InfoArgs),
    Rm(names::RmArgs),
    Forget(names::ForgetArgs),
    Mv(names::MvArgs),
    Gc(collect::GcArgs),
    Check(show::CheckArgs),
    Salvage(salvage::SalvageArgs),
    Scrub(scrub::ScrubArgs),
    Backup(BackupArgs),
    Probe(probe::ProbeArgs),
}

/// Runs the command.
pub fn run(args: &StoreArgs) -> anyhow::Result<ExitCode> {
    silence_engine();
    match &args.command {
        StoreCommand::Create(args) => change::create(args),
        StoreCommand::Add(args) => add::run(args),
        StoreCommand::Import(args) => change::import(args),
        StoreCommand::Export(args) => export::run(args),
        StoreCommand::Ls(args) => show::ls(args),
        StoreCommand::Info(args) => show::info(args),
        StoreCommand::Rm(args) => names::rm(args),
        StoreCommand::Forget(args) => names::forget(args),
        StoreCommand::Mv(args) => names::mv(args),
        StoreCommand::Gc(args) => collect::gc(args),
        StoreCommand::Check(args) => show::check(args),
        StoreCommand::Salvage(args) => salvage::run(args),
        StoreCommand::Scrub(args) => scrub::run(args),
        StoreCommand::Backup(args) => backup(args),
        StoreCommand::Probe(args) => probe::run(args),
    }
}

/// Sections of the help of `weald store NAME`.
pub fn help_of(name: &str) -> Option<&'static Help> {
    Some(match name {
        "create" => &change::CREATE_HELP,
        "add" => &add::HELP,
        "import" => &change::IMPORT_HELP,
        "export" => &export::HELP,
        "ls" => &show::LS_HELP,
        "info" => &show::INFO_HELP,
        "rm" => &names::RM_HELP,
        "forget" => &names::FORGET_HELP,
        "mv" => &names::MV_HELP,
        "gc" => &collect::GC_HELP,
        "check" => &show::CHECK_HELP,
        "salvage" => &salvage::HELP,
        "scrub" => &scrub::HELP,
        "backup" => &BACKUP_HELP,
        "probe" => &probe::HELP,
        _ => return None,
    })
}
