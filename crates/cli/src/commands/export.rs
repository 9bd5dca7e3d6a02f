//! `weald export`: an image in the form of another program.

mod composefs;
mod dump;
mod erofs;
mod oci;

use crate::help::Help;
use crate::open::{ImageArgs, refuse_stored_target};
use crate::parse;
use anyhow::bail;
use clap::{Args, Subcommand};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;
use weald_format::ErrorKind;
use weald_image::Image;
use weald_io::OutputFile;
use weald_vfs::shown;

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[],
    notes: &[
        "weald store export is another command: it writes an image of a store to an image file.",
    ],
    examples: &[
        (
            "Make a composefs image, and its objects",
            "weald export composefs forest.weald --image root.cfs --objects objects",
        ),
        (
            "Write the tree as text",
            "weald export dump forest.weald > forest.dump",
        ),
        (
            "Make an image with all data that the kernel mounts",
            "weald export erofs forest.weald forest.erofs",
        ),
        (
            "Make an OCI image, for podman and registries",
            "weald export oci forest.weald container:v1",
        ),
    ],
    exit_status: &[
        ("0", "The command did its work."),
        (
            "1",
            "The command did its work, but left entries out; standard error names each.",
        ),
        ("2", "The command failed; standard error says why."),
    ],
};

/// Write an image in the form of another program: composefs, a dump, EROFS, OCI
#[derive(Args, Debug)]
#[command(after_help = HELP.short(), after_long_help = HELP.long())]
#[command(disable_help_subcommand = true)]
pub struct ExportArgs {
    #[command(subcommand)]
    command: ExportCommand,
}

#[derive(Subcommand, Debug)]
enum ExportCommand {
    Composefs(Box<composefs::ComposefsArgs>),
    Dump(Box<dump::DumpArgs>),
    Erofs(Box<erofs::ErofsArgs>),
    Oci(Box<oci::OciArgs>),
}

/// Runs the command.
pub fn run(args: &ExportArgs) -> anyhow::Result<ExitCode> {
    match &args.command {
        ExportCommand::Composefs(args) => composefs::run(args),
        ExportCommand::Dump(args) => dump::run(args),
        ExportCommand::Erofs(args) => erofs::run(args),
        ExportCommand::Oci(args) => oci::run(args),
    }
}

/// Sections of the help of `weald export NAME`.
pub fn help_of(name: &str) -> Option<&'static Help> {
    Some(match name {
        "composefs" => &composefs::HELP,
        "dump" => &dump::HELP,
        "erofs" => &erofs::HELP,
        "oci" => &oci::HELP,
        _ => return None,
    })
}

/// Arguments of commands that write an image of another program.
#[derive(Args, Debug)]
struct WriteArgs {
    /// Replace FILE if it exists
    #[arg(short, long)]
    force: bool,
    /// Number of threads, 0 for one per CPU
    #[arg(short, long, value_name = "COUNT", default_value_t = 0, value_parser = parse::threads)]
    threads: usize,
    #[command(flatten)]
    memory: ListMemory,
    /// Print nothing
    #[arg(short, long)]
    quiet: bool,
    /// Print one JSON object
    #[arg(long, conflicts_with = "quiet")]
    json: bool,
}

impl WriteArgs {
    /// Refuses a target in a store, and one that exists unless `--force` replaces it.
    fn check_target(&self, path: &Path) -> anyhow::Result<()> {
        refuse_stored_target(path)?;
        if self.force {
            Ok(())
        } else {
            refuse_existing(path)
        }
    }

    /// Gives the complete `target` its name.
    fn commit(&self, target: OutputFile) -> anyhow::Result<()> {
        match target.commit(self.force) {
            Err(error) if error.kind() == ErrorKind::Busy => bail!("{error}; --force replaces it"),
            other => Ok(other?),
        }
    }
}

/// Memory of commands that list the tree.
#[derive(Args, Debug)]
struct ListMemory {
    /// Memory limit of lists and cache; longer lists go to temporary files (default: 128M, and the
    /// limit of the cache)
    #[arg(short, long, value_name = "SIZE", value_parser = parse::size)]
    memory: Option<u64>,
}

/// Memory of lists without a limit.
const LISTS_MEMORY_LEN: u64 = 128 << 20;

impl ListMemory {
    /// Bytes for lists: a quarter of the limit. Threads and the allocator take another quarter.
    fn list_len(&self) -> u64 {
        self.memory.map_or(LISTS_MEMORY_LEN, |len| len / 4)
    }

    /// Opens the image with a cache of three eighths of the limit.
    fn open(&self, source: &ImageArgs) -> anyhow::Result<Image> {
        let mut source = source.clone();
        if let Some(len) = self.memory {
            source.trust.cache.get_or_insert(len / 8 * 3);
        }
        source.open()
    }
}

/// Refuses to replace the file at `path`.
fn refuse_existing(path: &Path) -> anyhow::Result<()> {
    let words = shown(path.as_os_str().as_bytes());
    match weald_io::refuse_existing(path) {
        Err(error) => bail!("{words}: {error}; --force replaces it"),
        Ok(()) => Ok(()),
    }
}
