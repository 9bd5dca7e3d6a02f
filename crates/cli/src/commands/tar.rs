//! `weald tar`: an image as a tar stream.

use crate::commands::exit_code;
use crate::commands::extract::{Problems, say_unmatched, selection};
use crate::open::{ImageArgs, thread_count};
use crate::output::Output;
use anyhow::bail;
use clap::{Args, ValueHint};
use std::ffi::OsString;
use std::process::ExitCode;
use weald_export::{TarOptions, write_tar};

const EXAMPLES: &str = "\
Examples:
  weald tar forest.weald | tar -xpC out
  weald tar forest.weald usr/lib 'etc/*.conf' | zstd > part.tar.zst

The stream is pax: all names, times with nanoseconds, extended attributes (SCHILY.xattr), hard links, and holes as GNU
sparse files. The same image gives the same bytes. Sockets cannot be said in tar; they are reported and left out.
GNU tar restores extended attributes with: tar -xp --xattrs --xattrs-include='*'
Those with '=' in their names are there as GNU tar writes them and once more as bsdtar does (LIBARCHIVE.xattr); of the
latter GNU tar says that it ignores them, and bsdtar makes the former too, under names with '%3D'.";

/// Write a tar stream to standard output
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct TarArgs {
    #[command(flatten)]
    image: ImageArgs,
    /// Patterns of paths from the root of the image [default: everything]
    #[arg(value_name = "PATTERN", value_hint = ValueHint::Other)]
    patterns: Vec<OsString>,
    /// Leave extended attributes out
    #[arg(long)]
    no_xattrs: bool,
}

/// Runs the command.
pub fn run(args: &TarArgs) -> anyhow::Result<ExitCode> {
    let options = TarOptions {
        selection: selection(&args.patterns)?,
        drops_xattrs: args.no_xattrs,
    };
    let image = args.image.open_for_reading(thread_count(0))?;
    let mut output = Output::new();
    if output.is_terminal() {
        bail!("a tar stream is not written to a terminal");
    }
    let report = write_tar(&image, &options, output.raw(), &Problems)?;
    output.finish()?;
    let unmatched_count = say_unmatched(&args.patterns, &report.unmatched);
    Ok(exit_code(report.problem_count + unmatched_count))
}
