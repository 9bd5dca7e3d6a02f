//! `weald extract`: writes the tree of an image to a directory.

use crate::attribute_args::AttributeChoiceArgs;
use crate::choice_args::{ChoiceArgs, StripArgs};
use crate::foreign;
use crate::help::{DONE_OR_PARTLY, Help};
use crate::open::{SourceArgs, thread_count};
use crate::progress::{Display, ProgressWord, count};
use crate::{messages, parse, status::exit_code};
use clap::{Args, ValueHint};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use weald_export::{ExtractObserver, ExtractOptions, XattrPolicy, extract};
use weald_format::Error;

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[],
    notes: &[
        "A pattern selects every path that it matches and everything below. Weald creates the \
         directories that lead to a selected path, with their attributes. '*' and '?' stop at \
         '/'; '**' as a whole name matches any number of directories. Of what patterns and \
         --files-from select, the rules leave out some: they are those of 'weald build', and the \
         first that matches a path decides.",
        "With --strip-components, directories that become one get the attributes of the first, \
         and of files that become one the first stays.",
        "Root restores all attributes. Other users own the files that they extract. Without \
         --same-owner, weald does not restore owners, set-uid and set-gid bits, and trusted.* and \
         security.* attributes for them. It leaves devices out and counts them.",
        "Under fakeroot and pseudo, extract works as for root: they pretend the owners, set-uid \
         and set-gid bits, devices and attributes. When they end, these are lost unless they were \
         saved (fakeroot -s FILE).",
        "A new target has mode 700 until everything in it is extracted. Existing directories, \
         the target itself too, keep their attributes. Existing files are reported and not \
         replaced, unless --overwrite is given.",
    ],
    examples: &[
        ("Extract everything", "weald extract forest.weald out"),
        (
            "Extract a directory and some files",
            "weald extract forest.weald part usr/bin 'usr/lib/**/*.so'",
        ),
        (
            "Leave out sources, and the first directory of each path",
            "weald extract --exclude '*.c' --strip-components 1 forest.weald out",
        ),
        (
            "Replace files in an existing directory",
            "weald extract --overwrite forest.weald out etc",
        ),
    ],
    exit_status: DONE_OR_PARTLY,
};

/// Extract files into a directory, with all attributes
#[derive(Args, Debug)]
#[command(after_help = HELP.short(), after_long_help = HELP.long())]
pub struct ExtractArgs {
    #[command(flatten)]
    image: SourceArgs,
    /// Directory to extract into; created if missing
    #[arg(value_hint = ValueHint::DirPath)]
    target: PathBuf,
    /// Patterns of paths from the root of the image (default: everything)
    #[arg(value_name = "PATTERN", value_hint = ValueHint::Other)]
    patterns: Vec<OsString>,
    #[command(flatten)]
    choice: ChoiceArgs,
    #[command(flatten)]
    strip: StripArgs,
    /// Replace existing files and the attributes of existing directories
    #[arg(long)]
    overwrite: bool,
    /// Restore owners (default for root)
    #[arg(long, overrides_with = "no_same_owner")]
    same_owner: bool,
    /// Do not restore owners (default for other users)
    #[arg(long)]
    no_same_owner: bool,
    /// Do not restore extended attributes
    #[arg(long)]
    no_xattrs: bool,
    #[command(flatten)]
    attributes: AttributeChoiceArgs,
    /// Exit with status 1 if devices are left out, which only root can make
    #[arg(long)]
    strict: bool,
    /// Leave out devices, without a word
    #[arg(long, conflicts_with = "strict")]
    skip_devices: bool,
    /// Keep damaged files, with holes in place of what cannot be read; standard error names each,
    /// with the ranges of bytes
    #[arg(long)]
    keep_damaged: bool,
    /// Number of threads, 0 for one per CPU
    #[arg(short, long, value_name = "COUNT", default_value_t = 0, value_parser = parse::threads)]
    threads: usize,
    /// Print nothing but problems
    #[arg(short, long)]
    quiet: bool,
    /// How to show progress on standard error
    #[arg(long, value_enum, default_value = "auto", conflicts_with = "quiet")]
    progress: ProgressWord,
}

/// Problems from which on a line says how many there were.
const SUMMED_COUNT: u64 = 10;

/// Runs the command.
pub fn run(args: &ExtractArgs) -> anyhow::Result<ExitCode> {
    weald_sys::check_preload()?;
    let usage = "weald extract IMAGE DIRECTORY";
    foreign::refuse_swapped(&args.image.image, &args.target, usage)?;
    let was_there = args.target.symlink_metadata().is_ok();
    let is_root = weald_sys::effective_ids().0 == 0;
    let keeps_owner = !args.no_same_owner && (is_root || args.same_owner);
    let xattrs = match (args.no_xattrs, is_root || args.same_owner) {
        (true, _) => XattrPolicy::Nothing,
        (false, false) => XattrPolicy::Ordinary,
        (false, true) => XattrPolicy::Everything,
    };
    let mut chosen = args.choice.chosen(&args.patterns)?;
    chosen.choice.dropped_names = args.strip.strip_components;
    let options = ExtractOptions {
        choice: chosen.choice.clone(),
        thread_count: thread_count(args.threads),
        overwrite: args.overwrite,
        keeps_owner,
        xattrs,
        attributes: args.attributes.choice(),
        skips_devices: args.skip_devices,
        keeps_damaged: args.keep_damaged,
    };
    weald_sys::want_large_pages();
    let source = if options.choice.is_everything() {
        args.image.open_for_everything(0)?
    } else {
        args.image.open(&chosen.looks())?
    };
    let root = source.directory()?;
    if let Err(error) = weald_sys::raise_open_file_limit() {
        log::info!("limit of open files: {error}");
    }
    let progress = if args.quiet {
        ProgressWord::None
    } else {
        args.progress
    };
    let display = Display::new(progress, crate::interrupt::interrupt_flag()?);
    let extracted = extract(&source, root, &args.target, &options, &display);
    display.finish();
    let report = extracted?;
    let unmatched_count = chosen.report(&report.unmatched);
    if unmatched_count > 0 && !was_there {
        // Nothing was asked for that is there. A directory with something in it stays.
        let _ = std::fs::remove_dir(&args.target);
    }
    if report.problem_count >= SUMMED_COUNT {
        messages::line(&format!(
            "{} entries are written; {} could not be, as told above",
            count(report.entry_count),
            count(report.problem_count)
        ));
    }
    if report.copy_count > 0 {
        messages::line(&format!(
            "{} hard links became files of their own: the file system takes no more links",
            count(report.copy_count)
        ));
    }
    let left_out_count = report_left_out(args, report.device_count);
    Ok(exit_code(
        report.problem_count + unmatched_count + left_out_count,
    ))
}

/// Reports how many devices were left out; returns how many of them count as problems.
fn report_left_out(args: &ExtractArgs, count: u64) -> u64 {
    let devices = match count {
        0 => return 0,
        1 => "1 device was left out: only root makes devices".to_owned(),
        count => format!("{count} devices were left out: only root makes devices"),
    };
    if args.strict {
        messages::line(&devices)
    } else {
        messages::line(&format!("{devices} (--strict makes the exit status 1)"))
    }
    if args.strict { count } else { 0 }
}

/// Reports problems and entries that were left out.
pub struct Problems;

impl ExtractObserver for Problems {
    fn problem(&self, path: &[u8], error: &Error) {
        messages::problem(path, error);
    }

    fn left_out(&self, path: &[u8], why: &Error) {
        messages::problem(path, why);
    }
}
