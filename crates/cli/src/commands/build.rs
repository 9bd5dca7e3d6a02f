//! `weald build`: a directory becomes an image.

use crate::commands::{exit_code, interrupt_flag};
use crate::json::Object;
use crate::output::Output;
use crate::parse;
use crate::progress::{Display, bytes, count};
use crate::rules::RuleArgs;
use crate::shape::{self, AttributeArgs, CodecArgs, LayoutArgs};
use anyhow::bail;
use clap::{Args, ValueEnum, ValueHint};
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weald_builder::filter::{Filter, Verdict};
use weald_builder::script::Script;
use weald_builder::{BuildOptions, MtimeRule, Report, Watch, build_image};
use weald_format::{Error, ErrorKind, Result};
use weald_ingest::{Format, Source, build_from_stream};
use weald_vfs::shown;

const EXAMPLES: &str = "\
Examples:
  weald build versions/ versions.weald
  weald build -l 9 --memory 4G versions/ versions.weald
  weald build --exclude '*.o' --exclude /target/ --include '*.keep' project/ project.weald
  weald build --append versions/ versions.weald     what has changed since, as generation 2
  weald build --base v1.weald v2/ v2.weald           only what v1.weald does not hold
  tar c tree | weald build - tree.weald              a tar stream, in any order, also compressed
  find . -print0 | weald build --from listing - names.weald
  mtree -c -p root | weald build --from mtree --contents-root root - root.weald
  SOURCE_DATE_EPOCH=0 weald build --owner 0:0 --mode u=rwX,go=rX root/ root.weald

Rules are rsync's: the first that matches decides, in the order of the command line; a leading '/' anchors at the source,
a trailing '/' matches directories only. --filter 'dir-merge .rules' reads rules from .rules in each directory, for it and all
below; letters may follow (dir-merge,en): - or + for patterns alone, w for words, e to leave the file out, n for the directory
alone, C as CVS does. --explain-filter PATH tells which rule decides.

A stream is read once. Of each path its last member counts; directories that it does not name belong to root, with mode 755 and no time.
It may be compressed by gzip, zstd or xz. In a listing, every path ends in a zero byte and is an empty file of root with mode 644, unless it ends in a slash
or something lies below it. A description of mtree says names and attributes; regular files that are not empty have their contents below --contents-root, or where
contents= says there, and must have the size and the SHA-2 digests that are told. Other digests, nlink and flags are passed over.

The image appears under its name only when it is complete; where it lies in its own source, it is left out. The same source
gives the same bytes, whatever the number of threads. Files that cannot be read or that change meanwhile are reported, one line each, and the exit status is 1.";

/// Build an image of a directory
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct BuildArgs {
    /// Directory to pack; - for a stream from standard input, with --from a file that holds one
    #[arg(value_hint = ValueHint::AnyPath)]
    source: PathBuf,
    /// Image file to make
    #[arg(value_hint = ValueHint::FilePath)]
    image: PathBuf,
    /// What the stream is: found out, or said
    #[arg(
        long,
        value_enum,
        value_name = "FORMAT",
        conflicts_with = "explain_filter"
    )]
    from: Option<FormatWord>,
    /// Directory that has the contents of the regular files which a description of mtree tells
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, conflicts_with = "explain_filter")]
    contents_root: Option<PathBuf>,
    /// Replace the image if it exists
    #[arg(short, long)]
    force: bool,
    /// Append to the image what is new, as its next generation; the older ones stay. Where there is
    /// no image yet, make it
    #[arg(short, long, conflicts_with = "force")]
    append: bool,
    /// Do not store again what this image holds, but refer to it; may be given several times.
    /// Readers look for it beside the new image and in --base-dir
    #[arg(long, value_name = "IMAGE", value_hint = ValueHint::FilePath)]
    base: Vec<PathBuf>,
    /// Level, 0 (fastest) to 9 (smallest): sets codec, block size, shortest repeat and memory where
    /// they are not given
    #[arg(short, long, value_name = "LEVEL", default_value_t = BuildOptions::LEVEL_DEFAULT)]
    level: u8,
    #[command(flatten)]
    codec: CodecArgs,
    /// Raw bytes of a block, 4K to 64M: larger compresses better, smaller reads faster at random;
    /// what is stored as it is has 512K at most
    #[arg(long, value_name = "SIZE", value_parser = parse::size)]
    block_size: Option<u64>,
    #[command(flatten)]
    layout: LayoutArgs,
    /// Threads; 0 for one on each processor
    #[arg(short, long, value_name = "COUNT", default_value_t = 0)]
    threads: usize,
    /// Most memory to use
    #[arg(short, long, value_name = "SIZE", value_parser = parse::size)]
    memory: Option<u64>,
    #[command(flatten)]
    rules: RuleArgs,
    /// A script in Lua: filter(entry) says what is kept of what the rules keep, order(entries) in
    /// which order contents lie
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    script: Option<PathBuf>,
    /// Say what the rules decide about this path in the source, and why; nothing is built
    #[arg(long, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    explain_filter: Option<PathBuf>,
    #[command(flatten)]
    attributes: AttributeArgs,
    /// Keep times of access
    #[arg(long)]
    keep_atime: bool,
    /// Keep times of inode change
    #[arg(long)]
    keep_ctime: bool,
    /// Keep times of birth
    #[arg(long)]
    keep_btime: bool,
    /// Leave extended attributes (ACLs, capabilities, labels) out
    #[arg(long)]
    no_xattrs: bool,
    /// Do not descend into other file systems
    #[arg(short = 'x', long)]
    one_file_system: bool,
    /// Show nothing but problems
    #[arg(short, long)]
    quiet: bool,
    /// Show progress: a bar, lines, nothing, or what suits standard error
    #[arg(long, value_enum, default_value = "auto", conflicts_with = "quiet")]
    progress: ProgressWord,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
}

/// What a stream is.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
enum FormatWord {
    /// Found out
    Auto,
    /// A tar stream
    Tar,
    /// Paths that end in zero bytes, as find -print0 has them
    Listing,
    /// Paths, each on a line
    Lines,
    /// A description as of mtree(5), with the contents in --contents-root
    Mtree,
}

/// How progress is shown.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProgressWord {
    /// A bar on a terminal, lines elsewhere
    Auto,
    /// A bar
    Bar,
    /// A line every few seconds
    Lines,
    /// Nothing
    None,
}

/// Runs the command.
pub fn run(args: &BuildArgs) -> anyhow::Result<ExitCode> {
    let options = options(args)?;
    if let Some(path) = &args.explain_filter {
        return explain(args, &options.filter, path);
    }
    weald_sys::want_large_pages();
    let progress = if args.quiet {
        ProgressWord::None
    } else {
        args.progress
    };
    let display = Display::new(progress, interrupt_flag()?);
    let start = Instant::now();
    let built = build(args, &options, &display);
    display.finish();
    let report = match built {
        Err(error) if error.kind() == ErrorKind::Busy => bail!("{error}; --force replaces it"),
        built => built?,
    };
    let mut output = Output::new();
    if args.json {
        output.json(&json(&report, start.elapsed()).into())?;
    } else if !args.quiet {
        output.text(&summary(&report, start.elapsed()))?;
    }
    output.finish()?;
    Ok(exit_code(report.problem_count))
}

fn build(args: &BuildArgs, options: &BuildOptions, watch: &dyn Watch) -> Result<Report> {
    let (source, target) = (&args.source, &args.image);
    let is_standard = source == Path::new("-");
    let Some(word) = args.from.or(is_standard.then_some(FormatWord::Auto)) else {
        if args.contents_root.is_some() {
            return Err(Error::invalid(
                "--contents-root: a directory has its contents itself",
            ));
        }
        return build_image(source, target, args.force, options, watch);
    };
    if args.contents_root.is_some() && word != FormatWord::Mtree {
        let what = "--contents-root: only a description of mtree has its contents elsewhere; --from mtree says that it is one";
        return Err(Error::invalid(what));
    }
    let stream: Source = match is_standard {
        true => Box::new(std::io::stdin()),
        false => {
            let file = File::open(source);
            Box::new(file.map_err(|e| Error::io(source.display().to_string(), e))?)
        }
    };
    let format = match word {
        FormatWord::Auto => Format::Auto,
        FormatWord::Tar => Format::Tar,
        FormatWord::Listing => Format::Listing,
        FormatWord::Lines => Format::Lines,
        FormatWord::Mtree => Format::Mtree {
            contents: args.contents_root.clone(),
        },
    };
    build_from_stream(stream, format, target, args.force, options, watch)
}

fn options(args: &BuildArgs) -> anyhow::Result<BuildOptions> {
    let mut options = BuildOptions::level(args.level)?;
    shape::apply(&args.codec, &args.layout, &mut options)?;
    options.block_len = args.block_size.unwrap_or(options.block_len);
    options.threads = args.threads;
    options.memory_len = args.memory.unwrap_or(options.memory_len);
    options.filter = args.rules.filter()?;
    if let Some(path) = &args.script {
        // A quarter of the budget: an entry that is put in order takes about 400 bytes.
        options.script = Some(Arc::new(Script::load(path, options.memory_len / 4)?));
    }
    options.mtime = mtime_of_environment()?;
    args.attributes.apply(&mut options);
    options.keep_atime = args.keep_atime;
    options.keep_ctime = args.keep_ctime;
    options.keep_btime = args.keep_btime;
    options.keep_xattrs = !args.no_xattrs;
    options.one_file_system = args.one_file_system;
    options.append = args.append;
    options.bases.clone_from(&args.base);
    options.validate()?;
    Ok(options)
}

/// Prints what decides about each directory on the way to `path`, and about itself.
fn explain(args: &BuildArgs, filter: &Filter, path: &Path) -> anyhow::Result<ExitCode> {
    let relative = path.strip_prefix(&args.source).unwrap_or(path);
    let relative = relative.strip_prefix("/").unwrap_or(relative);
    let components: Vec<_> = relative
        .components()
        .filter(|c| !matches!(c, Component::CurDir))
        .collect();
    let is_plain = |c: &Component<'_>| matches!(c, Component::Normal(_));
    if components.is_empty() || !components.iter().all(is_plain) {
        bail!("{}: expected a path below the source", path.display());
    }
    let relative: PathBuf = components.iter().collect();
    let is_dir =
        args.source.join(&relative).is_dir() || path.as_os_str().as_bytes().ends_with(b"/");
    let mut output = Output::new();
    let read = &mut |dir: &[u8], name: &[u8]| {
        let dir = args.source.join(OsStr::from_bytes(dir));
        weald_builder::scan::read_dir_rules(&dir, name)
    };
    for reason in filter.explain(relative.as_os_str().as_bytes(), is_dir, read)? {
        let word = match reason.verdict() {
            Verdict::Included => "kept",
            Verdict::Excluded => "left out",
        };
        let why = match reason.rule {
            None => "no rule matches".to_owned(),
            Some(rule) => {
                let place = rule.place.as_ref().map(|place| format!(" ({place})"));
                format!("{}{}", shown(&rule.text), place.unwrap_or_default())
            }
        };
        writeln!(output, "{word}: {}: {why}", shown(reason.path))?;
    }
    output.finish()?;
    Ok(ExitCode::SUCCESS)
}

/// `SOURCE_DATE_EPOCH`, if it is set, clamps.
///
/// Source: <https://reproducible-builds.org/specs/source-date-epoch/>, "should … exit with a
/// non-zero error code" if malformed.
fn mtime_of_environment() -> anyhow::Result<MtimeRule> {
    let Some(value) = std::env::var_os("SOURCE_DATE_EPOCH") else {
        return Ok(MtimeRule::Keep);
    };
    let seconds = value.to_str().and_then(|text| text.parse().ok());
    match seconds {
        Some(seconds) => Ok(MtimeRule::Clamp(seconds)),
        None => bail!("SOURCE_DATE_EPOCH: expected seconds since 1970, found {value:?}"),
    }
}

/// What share `part` has of `whole`, as text; nothing has no shares.
fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        String::new()
    } else {
        format!("{:.1}%", 100.0 * part as f64 / whole as f64)
    }
}

/// What a build tells in the end.
pub fn summary(report: &Report, time: Duration) -> String {
    let saved = |len: u64| (bytes(len), percent(len, report.file_len));
    let (dedup, dedup_share) = saved(report.dedup_len);
    let (segment, segment_share) = saved(report.segment_len);
    let (hole, hole_share) = saved(report.hole_len);
    let (image, image_share) = saved(report.image_len);
    let entry_len = report.tree_len as f64 / report.entry_count.max(1) as f64;
    let rate = report.file_len as f64 / time.as_secs_f64().max(1e-3);
    let rows = [
        ("entries", count(report.entry_count), String::new()),
        ("bytes in files", bytes(report.file_len), String::new()),
        ("  in holes", hole, hole_share),
        ("  whole files shared", dedup, dedup_share),
        ("  repeats shared", segment, segment_share),
        (
            "  streams expanded",
            bytes(report.made_len),
            format!("to {} more", bytes(report.plain_len)),
        ),
        (
            "  left to compress",
            bytes(report.block_raw_len),
            percent(report.block_raw_len, report.file_len),
        ),
        (
            "data stored",
            bytes(report.block_stored_len),
            percent(report.block_stored_len, report.file_len),
        ),
        (
            "tree stored",
            bytes(report.tree_len),
            format!("{entry_len:.2} bytes an entry"),
        ),
        ("extents stored", bytes(report.extents_len), String::new()),
        ("image", image, image_share),
        ("ratio", ratio(report), String::new()),
        (
            "time",
            format!("{:.1} s", time.as_secs_f64()),
            format!("{}/s", bytes(rate as u64)),
        ),
    ];
    let mut text: String = rows
        .iter()
        .map(|(word, value, note)| line(word, value, note))
        .collect();
    if report.base_len > 0 {
        let note = percent(report.base_len, report.file_len);
        text.push_str(&line(
            "whole files in bases",
            &bytes(report.base_len),
            &note,
        ));
    }
    if let Some(len) = report.appended_len {
        text.push_str(&match len {
            0 => format!(
                "generation    {}, as before: nothing has changed\n",
                report.generation
            ),
            len => format!(
                "generation    {}, {} appended\n",
                report.generation,
                bytes(len)
            ),
        });
    }
    text.push_str(&format!(
        "image digest  {}\ntree digest   {}\n",
        report.image_digest, report.tree_digest
    ));
    text
}

fn line(word: &str, value: &str, note: &str) -> String {
    format!("{word:<22}{value:>12}  {note}")
        .trim_end()
        .to_owned()
        + "\n"
}

fn ratio(report: &Report) -> String {
    format!(
        "{:.2}",
        report.file_len as f64 / report.image_len.max(1) as f64
    )
}

fn json(report: &Report, time: Duration) -> Object {
    let numbers = [
        ("entry_count", report.entry_count),
        ("stored_entry_count", report.stored_entry_count),
        ("template_count", report.template_count),
        ("content_count", report.content_count),
        ("file_len", report.file_len),
        ("hole_len", report.hole_len),
        ("dedup_len", report.dedup_len),
        ("base_len", report.base_len),
        ("segment_len", report.segment_len),
        ("made_len", report.made_len),
        ("plain_len", report.plain_len),
        ("block_raw_len", report.block_raw_len),
        ("block_stored_len", report.block_stored_len),
        ("extents_len", report.extents_len),
        ("tree_len", report.tree_len),
        ("image_len", report.image_len),
        ("generation", report.generation),
        (
            "appended_len",
            report.appended_len.unwrap_or(report.image_len),
        ),
        ("problem_count", report.problem_count),
        (
            "time_ms",
            u64::try_from(time.as_millis()).unwrap_or(u64::MAX),
        ),
    ];
    let mut object: Object = numbers
        .iter()
        .map(|&(key, number)| (key.to_owned(), number.into()))
        .collect();
    object.insert(
        "image_digest".into(),
        report.image_digest.to_string().into(),
    );
    object.insert("tree_digest".into(), report.tree_digest.to_string().into());
    object
}
