//! `weald store`: one store of blocks under many images.

pub(super) mod add;
mod change;
mod collect;
mod export;
mod import_target;
mod remover;
mod salvage;
mod show;
mod views;

pub(super) use remover::remove_image;

use crate::help::Help;
use anyhow::{Context, bail};
use clap::{Args, Subcommand, ValueHint};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use weald_format::ErrorKind;
use weald_store::{Store, StoreLocation};
use weald_vfs::shown;

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
    Rm(change::RmArgs),
    Gc(collect::GcArgs),
    Check(show::CheckArgs),
    Salvage(salvage::SalvageArgs),
}

/// A store on disk.
#[derive(Args, Debug)]
struct StoreDir {
    /// Directory of the store
    #[arg(value_name = "STORE", value_hint = ValueHint::DirPath)]
    store: PathBuf,
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
        StoreCommand::Rm(args) => change::rm(args),
        StoreCommand::Gc(args) => collect::gc(args),
        StoreCommand::Check(args) => show::check(args),
        StoreCommand::Salvage(args) => salvage::run(args),
    }
}

/// A panic of the metadata engine is an error about its file, which says what to do.
pub(super) fn silence_engine() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let place = info.location().map(std::panic::Location::file);
        if !place.is_some_and(|file| file.contains("/redb-")) {
            usual(info);
        }
    }));
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
        "rm" => &change::RM_HELP,
        "gc" => &collect::GC_HELP,
        "check" => &show::CHECK_HELP,
        "salvage" => &salvage::HELP,
        _ => return None,
    })
}

pub(super) fn show_path(path: &Path) -> String {
    shown(path.as_os_str().as_bytes())
}

/// Opens the store at `path`.
pub(super) fn open(path: &Path) -> anyhow::Result<Store> {
    if let Some((store, _)) = weald_store::split(path) {
        bail!(
            "{}: names one image; this command takes the whole store, {}",
            show_path(path),
            show_path(&store)
        );
    }
    open_dir(path)
}

pub(super) fn open_dir(path: &Path) -> anyhow::Result<Store> {
    let words = show_path(path);
    match StoreLocation::from(path).open() {
        Err(_) if path.is_file() => {
            bail!("{words}: a file, and a store is a directory: 'weald store create' makes one")
        }
        Err(error) if error.kind() == ErrorKind::NotFound && path.is_dir() => {
            bail!("{words}: this directory is no store: it has no file called 'store'")
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            bail!("{words}: no store is here: 'weald store create {words}' makes one")
        }
        other => Ok(other?),
    }
}

/// Opens the store of `STORE:NAME`; returns it with the name.
fn open_named(path: &Path) -> anyhow::Result<(Store, String)> {
    if let Some((store, name)) = weald_store::split(path) {
        return Ok((open_dir(&store)?, name));
    }
    let words = show_path(path);
    if weald_store::is_store(path) {
        bail!("{words}: names a store: add the image, as in {words}:NAME");
    }
    let text = path.as_os_str().as_bytes();
    if let Some(at) = text.iter().rposition(|&byte| byte == b':') {
        let store = std::ffi::OsStr::from_bytes(text.get(..at).unwrap_or_default());
        open_dir(Path::new(store))?;
    }
    bail!("{words}: expected STORE:NAME, with the directory of a store before the colon")
}

/// Refuses a new image with one name in `STORE:NAME` and another one in `--name`.
fn refuse_two_names(option: Option<&str>, named: Option<&str>) -> anyhow::Result<()> {
    match (option, named) {
        (Some(option), Some(named)) if option != named => bail!(
            "the new image has two names, {named} in STORE:NAME and {option} in --name: leave one \
             out"
        ),
        _ => Ok(()),
    }
}

/// Description of this writer that a second writer gets in its error message.
fn writer_name(command: &str) -> String {
    format!("process {} (weald store {command})", std::process::id())
}

/// Sixteen random bytes.
pub(super) fn random_uuid() -> anyhow::Result<[u8; 16]> {
    use std::io::Read;
    let mut uuid = [0; 16];
    let file = std::fs::File::open("/dev/urandom");
    file.and_then(|mut file| file.read_exact(&mut uuid))
        .context("/dev/urandom")?;
    Ok(uuid)
}
