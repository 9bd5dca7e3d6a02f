//! `weald forest`: generates test trees of files, compares them with their spec, predicts sizes.

mod file_system;
mod source;
mod stream;
mod ticker;

use crate::commands::build::summary;
use crate::help::Help;
use crate::interrupt::interrupt_flag;
use crate::json::Object;
use crate::messages;
use crate::open::refuse_stored_target;
use crate::output::Output;
use crate::pack::set_memory;
use crate::parse;
use crate::progress::ProgressWord;
use crate::progress::{Display, bytes, count};
use crate::status::exit_code;
use anyhow::{Context, anyhow, bail};
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches, ValueHint};
use file_system::{FileSystem, MkfsWord};
use source::ForestSource;
use std::fs::File;
use std::io::BufWriter;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use stream::{StreamWord, write_stream};
use ticker::Ticker;
use weald_builder::BuildOptions;
use weald_builder::stream::build_stream;
use weald_forest::{Forest, KEYS, MakeOptions, Spec, Totals, make, totals, verify};
use weald_vfs::error_text::without_errno;
use weald_vfs::shown;

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[(
        "STYLES AND RULES",
        &[
            (
                "names, dir-names",
                "counter, words, hex, annex, unicode, long (255 bytes), case (groups of four \
                 names that differ in case only)",
            ),
            (
                "sizes",
                "empty, constant:BYTES, log-normal:MEDIAN:SIGMA, zipf:MAX:EXPONENT",
            ),
            (
                "times",
                "now, constant:SECONDS, affine:START:NANOSECONDS (step from file to file), \
                 random:START:SECONDS (span)",
            ),
            ("symlink-style", "relative, dangling, annex, mixed"),
        ],
    )],
    notes: &[
        "The same options give the same names, bytes and times on any machine. The option --fanout \
         lists the number of directories on each level, and last the number of files in each \
         directory of the lowest level.",
        "A spec is a TOML file whose keys are the long options. Options on the command line \
         override it. A SHARE is a number from 0 to 1. Options with 'changes' give the share \
         that changes from one version to the next.",
    ],
    examples: &[
        (
            "Make ten thousand empty files",
            "weald forest --fanout 100x100 empty/",
        ),
        (
            "Continue an interrupted forest",
            "weald forest --fanout 100x100 --resume empty/",
        ),
        (
            "Compare a forest with its spec",
            "weald forest --fanout 100x100 --verify empty/",
        ),
        (
            "Count ten million files without making them",
            "weald forest --fanout 100x1000x100 --dry-run",
        ),
        (
            "Make five versions of a tree",
            "weald forest --fanout 5x20 --sizes log-normal:8K:1.5 --versions 5 trees/",
        ),
        (
            "Make a forest in an ext4 file system of its own",
            "weald forest --fanout 10x100 --mkfs ext4 forest.ext4",
        ),
        (
            "Write a million files straight into an image",
            "weald forest --fanout 1000x1000 --image million.weald",
        ),
        (
            "Pack a forest through tar",
            "weald forest --fanout 10x100 --stream tar - | weald build - linked.weald",
        ),
    ],
    exit_status: &[
        ("0", "The command did its work."),
        ("1", "--verify found differences."),
        ("2", "The command failed; standard error says why."),
    ],
};

/// Generate a test tree of files from a few options
#[derive(Args, Debug)]
#[command(after_help = HELP.short(), after_long_help = HELP.long())]
pub struct ForestArgs {
    /// Directory for the forest; with --mkfs, --image or --stream, the file to write
    #[arg(value_hint = ValueHint::AnyPath, required_unless_present = "dry_run")]
    target: Option<PathBuf>,
    /// TOML file with options
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    spec: Option<PathBuf>,
    #[command(flatten)]
    keys: KeyArgs,
    /// Continue an interrupted forest
    #[arg(long)]
    resume: bool,
    /// Compare an existing forest with its spec and print every difference
    #[arg(long, conflicts_with_all = ["resume", "dry_run", "mkfs"])]
    verify: bool,
    /// Print counts and sizes, and make nothing
    #[arg(short = 'n', long, conflicts_with = "resume")]
    dry_run: bool,
    /// Make a file with a file system that holds the forest; needs permission to mount
    #[arg(long, value_enum, value_name = "KIND", conflicts_with = "resume")]
    mkfs: Option<MkfsWord>,
    /// Write the forest directly into an image
    #[arg(long, conflicts_with_all = ["resume", "verify", "mkfs"])]
    image: bool,
    /// Write the forest as a stream to a file, or to standard output if the target is -
    #[arg(
        long,
        value_enum,
        value_name = "FORMAT",
        conflicts_with_all = ["resume", "verify", "mkfs", "image"]
    )]
    stream: Option<StreamWord>,
    /// Compression level of the image, 0 to 9
    #[arg(short, long, default_value_t = BuildOptions::LEVEL_DEFAULT, requires = "image")]
    level: u8,
    /// Memory limit for the image (default: set by the level)
    #[arg(short, long, value_name = "SIZE", value_parser = parse::size, requires = "image")]
    memory: Option<u64>,
    /// Number of threads, 0 for one per CPU
    #[arg(short, long, value_name = "COUNT", default_value_t = 0, value_parser = parse::threads)]
    threads: usize,
    /// Print nothing but problems
    #[arg(short, long)]
    quiet: bool,
    /// Print counts and sizes as JSON, with --dry-run or without a directory
    #[arg(long)]
    json: bool,
}

/// The keys of a spec; each is an option.
#[derive(Debug, Default)]
struct KeyArgs(Vec<(&'static str, String)>);

impl Args for KeyArgs {
    fn augment_args(command: Command) -> Command {
        KEYS.iter().fold(command, |command, &(key, value, help)| {
            command.arg(Arg::new(key).long(key).value_name(value).help(help))
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for KeyArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut keys = Self::default();
        keys.update_from_arg_matches(matches)?;
        Ok(keys)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        let given = KEYS.iter().filter_map(|&(key, ..)| {
            let value = matches.get_one::<String>(key)?;
            Some((key, value.clone()))
        });
        self.0 = given.collect();
        Ok(())
    }
}

/// Runs the command.
pub fn run(args: &ForestArgs) -> anyhow::Result<ExitCode> {
    let forest = Forest::new(spec(args)?)?;
    let thread_count = match args.threads {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        count => count,
    };
    let start = Instant::now();
    let ticker = |words| Ticker::start(words, &forest, args.quiet);
    let Some(target) = &args.target else {
        return predict(args, &forest, thread_count, start);
    };
    if args.dry_run {
        return predict(args, &forest, thread_count, start);
    }
    if args.json {
        bail!("--json prints the counts of a forest that is not made: add --dry-run");
    }
    if args.verify {
        let ticker = ticker("verify")?;
        let tell = |difference: &_| {
            let text = format!("{difference}");
            ticker.print_above_bar(|| messages::line(without_errno(&text)));
        };
        let found = verify(&forest, target, thread_count, ticker.progress(), &tell);
        ticker.finish();
        let found = found?;
        if !args.quiet {
            let mut output = Output::new();
            let shown = shown(target.as_os_str().as_bytes());
            writeln!(output, "{shown}: {} differences", count(found))?;
            output.finish()?;
        }
        return Ok(exit_code(found));
    }
    if let Some(word) = args.stream {
        return make_stream(&forest, word, target);
    }
    if args.image {
        return make_image(args, &forest, target, thread_count);
    }
    let file_system = match args.mkfs {
        Some(kind) => Some(make_file_system(kind, target, &forest, thread_count)?),
        None => None,
    };
    let place = file_system
        .as_ref()
        .map_or(target.as_path(), FileSystem::mount_point);
    let options = MakeOptions {
        thread_count,
        umask: weald_sys::umask().unwrap_or(0o7777),
        resume: args.resume,
    };
    let ticker = ticker("make")?;
    let made = make(&forest, place, &options, ticker.progress());
    let entries = ticker.finish();
    match file_system {
        Some(file_system) if made.is_ok() => file_system.seal()?,
        file_system => drop(file_system),
    }
    made?;
    if !args.quiet {
        print_made(entries, start.elapsed())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn spec(args: &ForestArgs) -> anyhow::Result<Spec> {
    let mut spec = match &args.spec {
        Some(path) => {
            let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
            Spec::parse(&text).with_context(|| path.display().to_string())?
        }
        None => Spec::default(),
    };
    for (key, value) in &args.keys.0 {
        spec.set(key, value).map_err(|error| anyhow!("--{error}"))?;
    }
    Ok(spec)
}

fn make_stream(forest: &Forest, word: StreamWord, target: &Path) -> anyhow::Result<ExitCode> {
    let flag = interrupt_flag()?;
    let is_over = || flag.load(Ordering::Relaxed);
    if target != Path::new("-") {
        let file = File::create_new(target).with_context(|| target.display().to_string())?;
        write_stream(forest, word, &mut BufWriter::new(file), &is_over)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut output = Output::new();
    if output.is_terminal() {
        bail!("a stream is not written to a terminal");
    }
    write_stream(forest, word, output.raw(), &is_over)?;
    output.finish()?;
    Ok(ExitCode::SUCCESS)
}

fn make_image(
    args: &ForestArgs,
    forest: &Forest,
    target: &Path,
    thread_count: usize,
) -> anyhow::Result<ExitCode> {
    refuse_stored_target(target)?;
    weald_io::refuse_existing(target)?;
    let mut source = ForestSource::new(forest, count_quietly(forest, thread_count)?)?;
    let mut options = BuildOptions::level(args.level)?;
    options.threads = args.threads;
    set_memory(&mut options, args.memory);
    let word = if args.quiet {
        ProgressWord::None
    } else {
        ProgressWord::Auto
    };
    let display = Display::new(word, interrupt_flag()?);
    let start = Instant::now();
    let built = build_stream(&mut source, target, false, &options, &display);
    display.finish();
    let report = built?;
    if !args.quiet {
        let mut output = Output::new();
        output.text(&summary(&report, start.elapsed()))?;
        output.finish()?;
    }
    Ok(ExitCode::SUCCESS)
}

fn count_quietly(forest: &Forest, thread_count: usize) -> anyhow::Result<Totals> {
    let ticker = Ticker::start("count", forest, true)?;
    let totals = totals(forest, thread_count, ticker.progress());
    ticker.finish();
    Ok(totals?)
}

fn make_file_system(
    kind: MkfsWord,
    target: &Path,
    forest: &Forest,
    thread_count: usize,
) -> anyhow::Result<FileSystem> {
    weald_io::refuse_existing(target)?;
    let totals = count_quietly(forest, thread_count)?;
    FileSystem::make(kind, target, &totals)
}

fn predict(
    args: &ForestArgs,
    forest: &Forest,
    thread_count: usize,
    start: Instant,
) -> anyhow::Result<ExitCode> {
    let ticker = Ticker::start("count", forest, args.quiet)?;
    let counted = totals(forest, thread_count, ticker.progress());
    ticker.finish();
    let totals = counted?;
    let mut output = Output::new();
    if args.json {
        output.json(&json(&totals).into())?
    } else {
        let mut line = |what: &str, value: String| writeln!(output, "{what:<16}{value:>24}");
        line("directories", count(totals.directories))?;
        line("files", count(totals.files))?;
        line("of them empty", count(totals.empty_files))?;
        line("symlinks", count(totals.symlinks))?;
        line("hard links", count(totals.hard_links))?;
        line("inodes", count(totals.inode_count()))?;
        line(
            "bytes",
            format!("{} ({})", bytes(totals.len), count(totals.len)),
        )?;
        line(
            "without holes",
            format!("{} ({})", bytes(totals.data_len), count(totals.data_len)),
        )?;
        line(
            "counted in",
            format!("{:.1} s", start.elapsed().as_secs_f64()),
        )?;
    }
    output.finish()?;
    Ok(ExitCode::SUCCESS)
}

fn json(totals: &Totals) -> Object {
    let mut object = Object::new();
    object.insert("directories".into(), totals.directories.into());
    object.insert("files".into(), totals.files.into());
    object.insert("empty_files".into(), totals.empty_files.into());
    object.insert("symlinks".into(), totals.symlinks.into());
    object.insert("hard_links".into(), totals.hard_links.into());
    object.insert("inodes".into(), totals.inode_count().into());
    object.insert("len".into(), totals.len.into());
    object.insert("data_len".into(), totals.data_len.into());
    object
}

fn print_made(entries: u64, elapsed: Duration) -> anyhow::Result<()> {
    let seconds = elapsed.as_secs_f64();
    let mut output = Output::new();
    let rate = count((entries as f64 / seconds.max(1e-9)) as u64);
    match entries {
        0 => writeln!(output, "nothing was missing")?,
        entries => writeln!(
            output,
            "{} entries made in {seconds:.1} s, {rate}/s",
            count(entries)
        )?,
    }
    output.finish()?;
    Ok(())
}
