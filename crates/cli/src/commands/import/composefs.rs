//! `weald import composefs`.

use crate::commands::build;
use crate::help::{DONE_OR_FAILED, Help};
use crate::open::refuse_stored_target;
use crate::pack::{DisplayArgs, PackArgs, ResourceArgs};
use crate::shape::OUTPUT;
use anyhow::bail;
use clap::{Args, ValueHint};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;
use weald_builder::{Observer, Report};
use weald_format::{Error, ErrorKind, Result};
use weald_ingest::{ComposefsSource, InputStream, import_composefs};
use weald_vfs::shown;

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[],
    notes: &[
        "'composefs-info dump' and 'weald export dump' write dumps. With '-', weald reads the dump \
         from standard input, and decompresses gzip, zstd or xz.",
        "The bytes of each object must have the fs-verity digest that the image or the dump says. \
         Whiteouts and xattrs of the tree are those that it had before composefs escaped them.",
        "weald export composefs writes the same image again, byte for byte.",
    ],
    examples: &[
        (
            "Import a composefs image and its objects",
            "weald import composefs --image root.cfs --objects objects root.weald",
        ),
        (
            "Import a dump",
            "weald import composefs --from-dump root.dump --objects objects dumped.weald",
        ),
    ],
    exit_status: DONE_OR_FAILED,
};

/// Build an image from a composefs image or from a dump of one
#[derive(Args, Debug)]
#[command(after_help = HELP.short(), after_long_help = HELP.long())]
#[command(group = clap::ArgGroup::new("input").required(true).args(["source", "from_dump"]))]
pub(super) struct ComposefsArgs {
    /// Image to write
    #[arg(value_name = "IMAGE", value_hint = ValueHint::FilePath)]
    target: PathBuf,
    /// Composefs image to read
    #[arg(
        long = "image",
        id = "source",
        value_name = "FILE",
        value_hint = ValueHint::FilePath
    )]
    source: Option<PathBuf>,
    /// Dump to read; - for standard input
    #[arg(
        long,
        value_name = "FILE",
        value_hint = ValueHint::FilePath
    )]
    from_dump: Option<PathBuf>,
    /// Directory of the objects
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    objects: Option<PathBuf>,
    /// Replace IMAGE if it exists
    #[arg(short, long, help_heading = OUTPUT)]
    force: bool,
    #[command(flatten)]
    pack: PackArgs,
    #[command(flatten)]
    display: DisplayArgs,
    #[command(flatten)]
    resources: ResourceArgs,
}

pub(super) fn run(args: &ComposefsArgs) -> anyhow::Result<ExitCode> {
    refuse_stored_target(&args.target)?;
    let options = args.pack.options(&args.resources)?;
    options.validate()?;
    weald_sys::want_large_pages();
    let display = args.display.display()?;
    let start = Instant::now();
    let built = import(args, &options, &display);
    display.finish();
    let report = match built {
        Err(error) if error.kind() == ErrorKind::Busy => bail!("{error}; --force replaces it"),
        other => other?,
    };
    build::print(&args.display, &report, start.elapsed())
}

fn import(
    args: &ComposefsArgs,
    options: &weald_builder::BuildOptions,
    observer: &dyn Observer,
) -> Result<Report> {
    let source = match (&args.source, &args.from_dump) {
        (Some(image), _) => ComposefsSource::Image(image),
        (None, dump) => open_dump(dump.as_deref().unwrap_or(Path::new("-")))?,
    };
    let objects = args.objects.as_deref();
    import_composefs(source, objects, &args.target, args.force, options, observer)
}

fn open_dump(path: &Path) -> Result<ComposefsSource<'static>> {
    if path == Path::new("-") {
        let name = "standard input".to_owned();
        return Ok(ComposefsSource::Dump(Box::new(std::io::stdin()), name));
    }
    let file = File::open(path);
    let stream: InputStream = Box::new(file.map_err(|e| Error::io(path.display().to_string(), e))?);
    let name = shown(path.as_os_str().as_bytes());
    Ok(ComposefsSource::Dump(stream, name))
}
