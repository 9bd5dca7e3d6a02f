//! `weald forest`: makes trees of files to try things on, compares them, says beforehand what they
//! come to.

mod file_system;
mod source;
mod stream;
mod ticker;

use crate::commands::build::{ProgressWord, summary};
use crate::commands::{exit_code, interrupt_flag};
use crate::json::Object;
use crate::messages;
use crate::output::Output;
use crate::parse;
use crate::progress::{Display, bytes, count};
use anyhow::{Context, bail};
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches, ValueEnum, ValueHint};
use file_system::FileSystem;
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
use weald_vfs::shown;

const EXAMPLES: &str = "\
Examples:
  weald forest --fanout 1000x1000 empty/                      a million empty files
  weald forest --spec forest.toml --resume forest/            go on where one was interrupted
  weald forest --spec forest.toml --verify forest/            is it still what it was?
  weald forest --fanout 1000x1000x1000 --dry-run              what would it come to?
  weald forest --fanout 100x1000 --sizes log-normal:8K:1.5 --names words --versions 5 trees/
  weald forest --fanout 1000x1000 --mkfs ext4 million.ext4    in a file system of its own, in a file
  weald forest --fanout 1000x1000x1000 --image billion.weald  a billion files, straight into an image
  weald forest --fanout 1000x1000 --hard-links 0.1 --stream tar - | weald build - linked.weald

A forest is drawn from its seed: the same words make the same names, bytes and times anywhere. --fanout has the directories of every level
and last the files of each of the lowest. A spec is a TOML file with the long options as keys; options given besides it count more.

Names: counter, words, hex, annex, unicode, long (255 bytes), case (four at a time differ in case only).
Sizes: empty, constant:BYTES, log-normal:MEDIAN:SIGMA, zipf:MAX:EXPONENT.
Times: now, constant:SECONDS, affine:START:NANOSECONDS (the step from file to file), random:START:SECONDS (the span).
Symlinks: relative, dangling, annex, mixed. A SHARE is a number from 0 to 1; changes are those from one version to the next.

Exit status: 0 done; 1 --verify found differences; 2 could not be done.";

/// Make a tree of files from a few words, always the same
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ForestArgs {
    /// Directory to make the forest in; with --mkfs, --image and --stream the file to make
    #[arg(value_hint = ValueHint::AnyPath, required_unless_present = "dry_run")]
    target: Option<PathBuf>,
    /// What the forest is made of
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    spec: Option<PathBuf>,
    #[command(flatten)]
    keys: KeyArgs,
    /// Go on with a forest that was interrupted
    #[arg(long)]
    resume: bool,
    /// Draw everything again and compare; tells every difference
    #[arg(long, conflicts_with_all = ["resume", "dry_run", "mkfs"])]
    verify: bool,
    /// Only say what it would come to
    #[arg(short = 'n', long, conflicts_with = "resume")]
    dry_run: bool,
    /// Make a file that holds a file system that holds the forest; needs the right to mount
    #[arg(long, value_enum, value_name = "KIND", conflicts_with = "resume")]
    mkfs: Option<MkfsWord>,
    /// Make an image of the forest, with no file system between
    #[arg(long, conflicts_with_all = ["resume", "verify", "mkfs"])]
    image: bool,
    /// Write the forest as a stream, to a file or, as -, to standard output
    #[arg(long, value_enum, value_name = "FORMAT", conflicts_with_all = ["resume", "verify", "mkfs", "image"])]
    stream: Option<StreamWord>,
    /// Level of the image, 0 to 9
    #[arg(short, long, default_value_t = BuildOptions::LEVEL_DEFAULT, requires = "image")]
    level: u8,
    /// Most memory to use for making the image
    #[arg(short, long, value_name = "SIZE", value_parser = parse::size, requires = "image")]
    memory: Option<u64>,
    /// Threads; 0 for one on each processor
    #[arg(short, long, value_name = "COUNT", default_value_t = 0)]
    threads: usize,
    /// Show nothing but problems
    #[arg(short, long)]
    quiet: bool,
    /// Print what it comes to as JSON
    #[arg(long)]
    json: bool,
}

/// File systems that can be made.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
enum MkfsWord {
    Ext4,
    Xfs,
    Btrfs,
}

/// The keys of a spec, each an option of its own.
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
    if args.verify {
        let ticker = ticker("verify")?;
        let tell = |difference: &_| ticker.tell(|| messages::line(&format!("{difference}")));
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
        tell_made(entries, start.elapsed())?;
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
        spec.set(key, value).context("--".to_owned() + key)?;
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
    weald_io::refuse_existing(target)?;
    let mut source = ForestSource::new(forest, count_quietly(forest, thread_count)?)?;
    let mut options = BuildOptions::level(args.level)?;
    options.threads = args.threads;
    options.memory_len = args.memory.unwrap_or(options.memory_len);
    let word = match args.quiet {
        true => ProgressWord::None,
        false => ProgressWord::Auto,
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
    match args.json {
        true => output.json(&json(&totals).into())?,
        false => {
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

fn tell_made(entries: u64, elapsed: Duration) -> anyhow::Result<()> {
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
