//! `weald cat`: writes contents to standard output.

use crate::help::{DONE_OR_PARTLY, Help};
use crate::looks::Looks;
use crate::messages;
use crate::open::{OpenTree, SourceArgs, thread_count};
use crate::output::Output;
use crate::status::exit_code;
use clap::{Args, ValueHint};
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::ops::ControlFlow;
use std::process::ExitCode;
use weald_format::{Error, FileKind};
use weald_vfs::{ContentPart, Follow, Located, each_part, shown_path};
use weald_volume::Levels;

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[],
    notes: &[
        "Holes of sparse files stay holes if standard output is a regular file and writing \
         starts at its end ('> FILE', not '>> FILE').",
    ],
    examples: &[
        ("Print a file", "weald cat forest.weald etc/passwd"),
        (
            "Search two files",
            "weald cat forest.weald etc/passwd etc/group | grep root",
        ),
    ],
    exit_status: DONE_OR_PARTLY,
};

/// Write files of an image to standard output
#[derive(Args, Debug)]
#[command(after_help = HELP.short(), after_long_help = HELP.long())]
pub struct CatArgs {
    #[command(flatten)]
    image: SourceArgs,
    /// Regular files in the image, or patterns of them; symlinks are followed
    #[arg(value_hint = ValueHint::Other)]
    paths: Vec<OsString>,
}

/// Runs the command.
pub fn run(args: &CatArgs) -> anyhow::Result<ExitCode> {
    let looks = Looks::at(&args.paths, Levels(0));
    let image = args.image.open_for_reading(&looks, thread_count(0))?;
    let mut output = Output::new();
    let mut problem_count = 0;
    for path in &image.expanded(image.paths_or_place(&args.paths)?)? {
        // The bytes before the error are written, and precede the message.
        if let Err(error) = cat(&image, path, &mut output)? {
            output.flush()?;
            messages::error(&error.into());
            problem_count += 1;
        }
    }
    output.finish()?;
    Ok(exit_code(problem_count))
}

/// Writes one file. The outer result is for errors of standard output, the inner one for errors of
/// the file.
fn cat(image: &OpenTree, path: &OsStr, output: &mut Output) -> std::io::Result<Result<(), Error>> {
    let Located { path, inode } = match image.locate(path, Follow::Yes) {
        Ok(located) => located,
        Err(error) => return Ok(Err(error)),
    };
    let name = shown_path(&path);
    if inode.kind != FileKind::Regular {
        return Ok(Err(Error::invalid(format!("{name}: not a regular file"))));
    }
    let mut written = Ok(());
    let read = each_part(image, &inode, &mut |part| {
        written = match part {
            ContentPart::Data(bytes) => output.raw().write_all(bytes),
            ContentPart::Hole(len) => output.zeros(len),
        };
        match written {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    });
    written.map(|()| read.map_err(|error| error.context(name)))
}
