//! `weald extract`: an image becomes a tree again.

use crate::commands::build::ProgressWord;
use crate::open::{ImageArgs, thread_count};
use crate::progress::Display;
use crate::{commands::exit_code, messages, parse};
use clap::{Args, ValueHint};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::ExitCode;
use weald_export::{ExtractOptions, ExtractWatch, XattrPolicy, extract};
use weald_format::Error;
use weald_vfs::Selection;

const EXAMPLES: &str = "\
Examples:
  weald extract forest.weald out
  weald extract forest.weald out usr/bin 'usr/lib/**/*.so'
  weald extract --overwrite forest.weald out etc

A pattern selects what it matches and everything below; the directories that lead there are made with their
attributes. '*' and '?' stop at '/', '**' as a whole name stands for any number of directories.

As root everything is restored. Others get the files for themselves: owners, set-uid and set-gid bits of files, and
trusted.* and security.* attributes are not restored (--same-owner asks for them all the same). Directories that are
there are entered and keep their attributes; files that are there are reported, not replaced, without --overwrite.";

/// Unpack into a directory, with all attributes
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ExtractArgs {
    #[command(flatten)]
    image: ImageArgs,
    /// Directory to unpack into; made if missing
    #[arg(value_hint = ValueHint::DirPath)]
    target: PathBuf,
    /// Patterns of paths from the root of the image [default: everything]
    #[arg(value_name = "PATTERN", value_hint = ValueHint::Other)]
    patterns: Vec<OsString>,
    /// Replace files that are there, and give directories that are there the image's attributes
    #[arg(long)]
    overwrite: bool,
    /// Restore owners (the default for root)
    #[arg(long, overrides_with = "no_same_owner")]
    same_owner: bool,
    /// Do not restore owners
    #[arg(long)]
    no_same_owner: bool,
    /// Do not restore extended attributes
    #[arg(long)]
    no_xattrs: bool,
    /// Threads; 0 for one on each processor
    #[arg(short, long, value_name = "COUNT", default_value_t = 0)]
    threads: usize,
    /// Show nothing but problems
    #[arg(short, long)]
    quiet: bool,
    /// Show progress: a bar, lines, nothing, or what suits standard error
    #[arg(long, value_enum, default_value = "auto", conflicts_with = "quiet")]
    progress: ProgressWord,
}

/// Runs the command.
pub fn run(args: &ExtractArgs) -> anyhow::Result<ExitCode> {
    let is_root = rustix::process::geteuid().is_root();
    let keeps_owner = !args.no_same_owner && (is_root || args.same_owner);
    let xattrs = match (args.no_xattrs, is_root || args.same_owner) {
        (true, _) => XattrPolicy::Nothing,
        (false, false) => XattrPolicy::Ordinary,
        (false, true) => XattrPolicy::Everything,
    };
    let options = ExtractOptions {
        selection: selection(&args.patterns)?,
        thread_count: thread_count(args.threads),
        overwrite: args.overwrite,
        keeps_owner,
        xattrs,
    };
    weald_sys::want_large_pages();
    let image = args.image.open()?;
    if let Err(error) = weald_sys::raise_open_file_limit() {
        log::info!("limit of open files: {error}");
    }
    let progress = if args.quiet {
        ProgressWord::None
    } else {
        args.progress
    };
    let display = Display::new(progress, crate::commands::interrupt_flag()?);
    let extracted = extract(&image, &args.target, &options, &display);
    display.finish();
    let report = extracted?;
    let unmatched_count = say_unmatched(&args.patterns, &report.unmatched);
    Ok(exit_code(report.problem_count + unmatched_count))
}

/// Parses patterns of paths.
pub fn selection(patterns: &[OsString]) -> weald_format::Result<Selection> {
    let patterns = patterns.iter().map(|pattern| parse::path_glob(pattern));
    Ok(Selection::new(patterns.collect::<Result<_, _>>()?))
}

/// Tells which patterns selected nothing; returns how many.
pub fn say_unmatched(patterns: &[OsString], unmatched: &[usize]) -> u64 {
    for pattern in unmatched.iter().filter_map(|&index| patterns.get(index)) {
        messages::line(&format!(
            "{}: nothing in the image matches",
            weald_vfs::shown(pattern.as_bytes())
        ));
    }
    unmatched.len() as u64
}

/// Tells of problems.
pub struct Problems;

impl ExtractWatch for Problems {
    fn problem(&self, path: &[u8], error: &Error) {
        messages::problem(path, error);
    }
}
