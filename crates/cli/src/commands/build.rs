//! `weald build`: packs a directory, a stream or an EROFS image into an image.

use crate::commands::parity;
use crate::commands::rewrite::kept::{Kept, write_kept};
use crate::foreign;
use crate::help::Help;
use crate::input_args::{Input, InputArgs, WalkArgs};
use crate::json::{self, Object};
use crate::messages;
use crate::open::{TrustArgs, refuse_stored_target, thread_count};
use crate::open_store::show_path;
use crate::output::Output;
use crate::pack::{DisplayArgs, PackArgs, ResourceArgs};
use crate::progress::{bytes, count};
use crate::self_mounting;
use crate::shape::{INPUT, OUTPUT, SELECTION};
use crate::stages::Stages;
use crate::status::exit_code;
use anyhow::{Context, bail};
use clap::{Args, ValueHint};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use weald_builder::{AddAt, BuildOptions, Head, Observer, Report, TargetKind};
use weald_filter::{Filter, Verdict};
use weald_format::{Error, ErrorKind, Result};
use weald_image::{ImageStart, generations};
use weald_parity::{Layout, Share};
use weald_vfs::shown;

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[],
    notes: &[
        "SOURCE is a directory, or '-' for a stream on standard input. With --from it is a file \
         that holds a stream, with --from-image an EROFS image. Formats of streams are tar (gzip, \
         zstd and xz are decompressed), lists of paths, and mtree(5).",
        "With several directories, each is laid over those before it: a file replaces what has its \
         name, and directories become one, with the attributes of the last. Weald names what is \
         replaced. DIR:/PATH lays DIR at PATH; missing directories above PATH get mode 755 and the \
         caller's owner. Rules start at each DIR.",
        "--from paths packs the files that a list names, as find prints them, with the directories \
         above them. A directory of the list stands for itself, not for what lies below it. Paths \
         lead from --root, or begin with it. A path that is not there is a problem, with exit \
         status 1.",
        "Filter rules are rsync's. Weald tries them in the order of the command line, and the \
         first rule that matches a path decides. A leading '/' anchors a pattern at the source; a \
         trailing '/' matches directories only. --filter 'dir-merge .rules' reads more rules from \
         the file .rules of each directory, for this directory and everything below it. Modifiers \
         follow the comma in 'dir-merge,en'. '-' or '+' means a file of plain patterns, 'w' \
         patterns separated by spaces, and 'C' the rules of CVS. 'e' leaves the file itself out; \
         'n' applies the rules to this directory only.",
        "In a stream, the last member of each path wins. Symlinks of a tar stream that stay inside \
         the tree lead to its later members, as in GNU tar. Weald creates parent directories that \
         a stream does not name: owner root, mode 755, mtime 0. Each path of a list becomes an \
         empty file of root with mode 644. It becomes a directory if it ends in a slash or other \
         paths lie below it.",
        "An mtree description gives names and attributes. The contents of its regular files \
         come from --contents-root, or from the path in contents=; size and SHA-2 digests must \
         match. Weald ignores other digests, nlink and flags.",
        "With --at, SOURCE is the directory at PATH. Directories that are in the image and in \
         SOURCE become one, with the attributes of the one in SOURCE. Missing directories above \
         PATH get mode 755, the caller's owner and the mtime of SOURCE. Hard links never join \
         files of SOURCE and of the image.",
        "With --force, the new image keeps owner, mode and ACL of the image that it replaces. \
         Weald follows symlinks to the output only if root or the caller owns them.",
        "Under fakeroot and pseudo, the image gets the owners, modes, devices and attributes that \
         they pretend.",
        "A self-mounting image is an executable file with the conventions of AppImage: APPDIR, \
         APPIMAGE, --appimage-extract and others, which its --appimage-help lists. Without FUSE it \
         extracts itself. Its processes share one mount, which ends with the last of them.",
        "With --parity 5%, a file beside the image repairs damage of up to this part of it, \
         wherever it lies; weald parity verify and weald parity repair use it.",
        "The image appears under its name when it is complete, never before. Weald leaves the \
         image itself out if it lies in its own source. The same source and options give the \
         same bytes, with any number of threads.",
    ],
    examples: &[
        ("Pack a directory", "weald build project/ project.weald"),
        (
            "Pack it smaller, with more time and memory",
            "weald build -l 9 -m 4G project/ small.weald",
        ),
        (
            "Pack a tar stream",
            "tar c project | weald build - stream.weald",
        ),
        (
            "Leave out object files and the directory target",
            "weald build --exclude '*.o' --exclude /target/ project/ source.weald",
        ),
        (
            "Append what has changed as the next generation",
            "weald build --append versions/ versions.weald",
        ),
        (
            "Add the directory v2 to the tree of an image",
            "weald build --append --at releases/v2 v2/ versions.weald",
        ),
        (
            "Store only what v1.weald does not hold",
            "weald build --base v1.weald v2/ v2.weald",
        ),
        (
            "Pack the files that find names",
            "find project -name '*.c' -print0 | weald build --from paths - c.weald",
        ),
        (
            "Lay one directory over another, and a third one at /opt/versions in the image",
            "weald build project/ v2/ versions:/opt/versions layers.weald",
        ),
        (
            "Make empty files from a list of names",
            "find project -print0 | weald build --from listing - names.weald",
        ),
        (
            "Pack the files that an mtree description names",
            "bsdtar -c --format=mtree -C v2 . | weald build --from mtree --contents-root v2 - \
             s.weald",
        ),
        (
            "Pack the tree of an EROFS image",
            "weald build --from-image root.erofs packed.weald",
        ),
        (
            "Make a reproducible image whose files belong to root",
            "SOURCE_DATE_EPOCH=0 weald build --owner 0:0 --mode u=rwX,go=rX project/ root.weald",
        ),
        (
            "Show which rule decides about a path; build nothing",
            "weald build --exclude '*.o' --explain-filter main.o project/ project.weald",
        ),
    ],
    exit_status: &[
        ("0", "The image is complete."),
        (
            "1",
            "The image is complete except for files that could not be read or that changed \
             during the build; standard error names each.",
        ),
        ("2", "The build failed; there is no new image."),
    ],
};

/// Build an image from a directory or a stream
#[derive(Args, Debug)]
#[command(
    override_usage = "weald build [OPTIONS] <SOURCE>... <IMAGE>",
    after_help = HELP.short(),
    after_long_help = HELP.long()
)]
pub struct BuildArgs {
    /// Directory to pack, or - for a stream on standard input; last, the image file to write. Of
    /// several directories, each is laid over those before it; DIR:/PATH goes to PATH in the image
    // One list, so that options may stand between its words.
    #[arg(required = true, num_args = 1.., value_name = "PATH", value_hint = ValueHint::AnyPath)]
    paths: Vec<PathBuf>,
    #[command(flatten)]
    input: InputArgs,
    /// Refer to data in this image instead of storing it again; repeatable. Readers look for the
    /// base image beside the new one and in --base-dir
    #[arg(
        long,
        value_name = "IMAGE",
        value_hint = ValueHint::FilePath,
        help_heading = INPUT
    )]
    base: Vec<PathBuf>,
    #[command(flatten)]
    walk: WalkArgs,
    #[command(flatten)]
    pack: PackArgs,
    /// Show which rule decides about this path of the source, and build nothing
    #[arg(
        long,
        conflicts_with_all = ["from", "from_image", "contents_root"],
        value_name = "PATH",
        value_hint = ValueHint::AnyPath,
        hide_short_help = true,
        help_heading = SELECTION
    )]
    explain_filter: Option<PathBuf>,
    /// Replace the image if it exists
    #[arg(short, long, help_heading = OUTPUT)]
    force: bool,
    /// Write to IMAGE itself, a device or a named pipe, never through a symlink
    #[arg(
        long,
        conflicts_with = "append",
        hide_short_help = true,
        help_heading = OUTPUT
    )]
    output_device: bool,
    /// Append a generation to the image: SOURCE becomes its tree, and older generations keep
    /// theirs; create the image if it is missing
    #[arg(short, long, conflicts_with = "force", help_heading = OUTPUT)]
    append: bool,
    /// Add SOURCE to the tree of the image at this path, and keep the rest. Entries of SOURCE
    /// replace those that are there; options apply to SOURCE only
    #[arg(
        long,
        value_name = "PATH",
        requires = "append",
        hide_short_help = true,
        help_heading = OUTPUT
    )]
    at: Option<OsString>,
    /// Let the next generation lack more than half of the names in the image
    #[arg(long, requires = "append", hide_short_help = true, help_heading = OUTPUT)]
    allow_removal: bool,
    /// Keep so many of the newest generations: when there are more, pack these anew without the
    /// data that only older ones use
    #[arg(
        long,
        value_name = "COUNT",
        requires = "append",
        value_parser = clap::value_parser!(u64).range(1..),
        hide_short_help = true,
        help_heading = OUTPUT
    )]
    keep_last: Option<u64>,
    /// Make IMAGE a program that mounts itself and starts AppRun or --run in it: this program of
    /// Weald, or --runtime, stands before the image
    #[arg(
        long,
        conflicts_with_all = ["append", "output_device", "header"],
        hide_short_help = true,
        help_heading = OUTPUT
    )]
    self_mounting: bool,
    /// Path in the tree of the program that a self-mounting image starts
    #[arg(
        long,
        value_name = "PATH",
        default_value = "AppRun",
        requires = "self_mounting",
        hide_short_help = true,
        help_heading = OUTPUT
    )]
    run: String,
    /// Program of Weald before a self-mounting image, such as a static one (make static)
    #[arg(
        long,
        value_name = "FILE",
        value_hint = ValueHint::FilePath,
        requires = "self_mounting",
        hide_short_help = true,
        help_heading = OUTPUT
    )]
    runtime: Option<PathBuf>,
    /// Write the bytes of this file before the image; --offset auto finds the image behind them
    #[arg(
        long,
        value_name = "FILE",
        value_hint = ValueHint::FilePath,
        conflicts_with_all = ["append", "output_device"],
        hide_short_help = true,
        help_heading = OUTPUT
    )]
    header: Option<PathBuf>,
    /// Write IMAGE.parity, too, which repairs damage of the image up to this part of its length
    /// (weald parity)
    #[arg(
        long,
        value_name = "PERCENT",
        conflicts_with = "output_device",
        hide_short_help = true,
        help_heading = OUTPUT
    )]
    parity: Option<Share>,
    /// Print on standard error how long each stage took, with the CPU time and the waiting of its
    /// threads, and how long only one of them ran
    #[arg(long, hide_short_help = true, help_heading = OUTPUT)]
    stages: bool,
    #[command(flatten)]
    display: DisplayArgs,
    #[command(flatten)]
    resources: ResourceArgs,
}

impl BuildArgs {
    /// What is packed.
    fn sources(&self) -> &[PathBuf] {
        self.paths.split_last().map_or(&[], |(_, sources)| sources)
    }

    /// The image to write.
    fn image(&self) -> &Path {
        self.paths.last().map_or(Path::new(""), PathBuf::as_path)
    }
}

/// Runs the command.
pub fn run(args: &BuildArgs) -> anyhow::Result<ExitCode> {
    if let [only] = &*args.paths {
        bail!(
            "{}: expected a source and an image: weald build SOURCE... IMAGE",
            show_path(only)
        );
    }
    let mut options = options(args)?;
    if let Some(path) = &args.explain_filter {
        return explain(args, &options.filter, path);
    }
    refuse_stored_target(args.image())?;
    if let [source] = args.sources() {
        foreign::refuse_swapped(args.image(), source, "weald build DIRECTORY IMAGE")?;
    }
    let input = args.input.input(args.sources())?;
    args.walk.apply(input.is_stream(), &mut options)?;
    let parity = parity_target(args)?;
    weald_sys::check_preload()?;
    weald_sys::want_large_pages();
    let display = args.display.display()?;
    let start = Instant::now();
    let (built, stages) = if args.stages {
        let stages = Stages::begin(&display)?;
        (build(args, input, &options, &stages), Some(stages.end()))
    } else {
        (build(args, input, &options, &display), None)
    };
    let built = match (built, args.keep_last) {
        (Ok(report), Some(count)) => Ok(keep_last(args, count, report, &options, &display)?),
        (built, _) => built,
    };
    display.finish();
    if let Some(table) = stages {
        messages::table(&table);
    }
    let report = match built {
        Err(error) if error.kind() == ErrorKind::Busy => bail!("{error}; --force replaces it"),
        Err(error) => return Err(explain_inputs(args, error)),
        Ok(report) => report,
    };
    let layout = match (args.parity, &parity) {
        (Some(share), Some(path)) => {
            let target = parity::Target {
                path,
                // An image that is appended to has another parity each time.
                overwrite: args.force || args.append,
                threads: thread_count(args.resources.threads),
            };
            let flag = crate::interrupt::interrupt_flag()?;
            let written = parity::write_parity(args.image(), share, &target, &flag);
            Some(written.context("the image is complete, and has no parity")?)
        }
        _ => None,
    };
    let parity = layout.as_ref().zip(parity.as_deref());
    print_with(&args.display, &report, start.elapsed(), parity)
}

/// Leaves the newest `count` generations of the image that was appended to. Returns the report with
/// the length and the digest that the image has now.
fn keep_last(
    args: &BuildArgs,
    count: u64,
    mut report: Report,
    options: &BuildOptions,
    observer: &dyn Observer,
) -> anyhow::Result<Report> {
    let all = generations(args.image())?;
    let numbers = Kept::Last(count).numbers(&all)?;
    if numbers.len() == all.len() {
        return Ok(report);
    }
    // What the user chose and changed is about the source alone.
    let options = BuildOptions {
        keep_xattrs: true,
        at: None,
        ..options.without_rules()
    };
    let open = |number| {
        let trust = TrustArgs {
            digest: None,
            generation: Some(number),
            base_dir: Vec::new(),
            offset: ImageStart::default(),
            cache: None,
        };
        trust.open(args.image(), thread_count(args.resources.threads))
    };
    let target = (args.image(), true);
    let kept = write_kept(&numbers, &open, target, &options, observer)?;
    (report.image_len, report.image_digest) = (kept.image_len, kept.image_digest);
    report.problem_count += kept.problem_count;
    Ok(report)
}

/// Where the parity of the image goes, if it gets some.
fn parity_target(args: &BuildArgs) -> anyhow::Result<Option<PathBuf>> {
    if args.parity.is_none() {
        return Ok(None);
    }
    if args.image() == Path::new("-") {
        bail!("parity is of a file: name one, and not -");
    }
    let path = parity::parity_beside(args.image());
    if !args.force && !args.append && path.symlink_metadata().is_ok() {
        bail!("{}: exists; --force replaces it", show_path(&path));
    }
    Ok(Some(path))
}

/// Prints the report of a build that took `time`; returns the exit status.
pub fn print(display: &DisplayArgs, report: &Report, time: Duration) -> anyhow::Result<ExitCode> {
    print_with(display, report, time, None)
}

/// The same, with a parity file and its layout.
fn print_with(
    display: &DisplayArgs,
    report: &Report,
    time: Duration,
    parity: Option<(&Layout, &Path)>,
) -> anyhow::Result<ExitCode> {
    let mut output = Output::new();
    if display.json {
        let mut object = json(report, time);
        if let Some((layout, _)) = parity {
            object.insert("parity_len".into(), layout.parity_len().into());
            object.insert("repairable_len".into(), layout.repairable_len().into());
        }
        output.json(&object.into())?;
    } else if !display.quiet {
        output.text(&summary(report, time))?;
        if let Some((layout, path)) = parity {
            writeln!(output, "parity        {}", parity::told(layout, path))?;
        }
    }
    output.finish()?;
    Ok(exit_code(report.problem_count))
}

/// Names the format of the image to append to, or of a base image, if it is not a Weald image.
fn explain_inputs(args: &BuildArgs, error: Error) -> anyhow::Error {
    let appended = args.append.then_some(args.image());
    let bases = args.base.iter().map(PathBuf::as_path);
    let mut images = appended.into_iter().chain(bases);
    let start = ImageStart::default();
    match images.find(|image| foreign::describe(image, start).is_some()) {
        Some(image) => foreign::explain(image, start, error),
        None => error.into(),
    }
}

fn build(
    args: &BuildArgs,
    input: Input,
    options: &BuildOptions,
    observer: &dyn Observer,
) -> Result<Report> {
    input.build(args.image(), args.force, options, observer)
}

fn options(args: &BuildArgs) -> anyhow::Result<BuildOptions> {
    let mut options = args.pack.options(&args.resources)?;
    options.append = args.append;
    options.at = match &args.at {
        Some(path) => Some(AddAt::new(path.as_bytes(), weald_sys::effective_ids())?),
        None => None,
    };
    options.allow_removal = args.allow_removal;
    options.target_kind = target_kind(args.output_device);
    options.bases.clone_from(&args.base);
    options.head = head(args)?;
    options.validate()?;
    Ok(options)
}

/// Most bytes before an image: a device without an end fills no memory.
const HEADER_LEN_MAX: u64 = 256 << 20;

/// What stands before the image.
fn head(args: &BuildArgs) -> anyhow::Result<Option<Head>> {
    if let Some(path) = &args.header {
        let mut bytes = Vec::new();
        let file =
            File::open(path).and_then(|file| file.take(HEADER_LEN_MAX + 1).read_to_end(&mut bytes));
        file.with_context(|| path.display().to_string())?;
        if bytes.len() as u64 > HEADER_LEN_MAX {
            bail!("{}: more than 256 MiB", path.display());
        }
        return Ok(Some(Head {
            bytes: bytes.into(),
            is_executable: false,
        }));
    }
    if !args.self_mounting {
        return Ok(None);
    }
    let run = args.run.trim_start_matches('/');
    if let ([source], None) = (args.sources(), args.input.from)
        && source.is_dir()
    {
        let program = source.join(run);
        let stat = program.symlink_metadata();
        let stat = stat.with_context(|| format!("{}: the program to start", program.display()))?;
        if !stat.is_symlink() && (!stat.is_file() || stat.mode() & 0o111 == 0) {
            bail!("{}: cannot be started: it is no program", program.display());
        }
    }
    let own = Path::new("/proc/self/exe");
    let program = args.runtime.as_deref().unwrap_or(own);
    Ok(Some(Head {
        bytes: self_mounting::make(program, run)?.into(),
        is_executable: true,
    }))
}

/// Kind of target that `--output-device` selects.
pub fn target_kind(is_device: bool) -> TargetKind {
    if is_device {
        TargetKind::Device
    } else {
        TargetKind::File
    }
}

/// Prints the rule that decides about each directory on the way to `path`, and about `path`.
fn explain(args: &BuildArgs, filter: &Filter, path: &Path) -> anyhow::Result<ExitCode> {
    let [source] = args.sources() else {
        bail!("--explain-filter is about one source: name the one that has the path");
    };
    let relative = path.strip_prefix(source).unwrap_or(path);
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
    let is_dir = source.join(&relative).is_dir() || path.as_os_str().as_bytes().ends_with(b"/");
    let mut output = Output::new();
    let read = &mut |dir: &[u8], name: &[u8]| {
        let dir = source.join(OsStr::from_bytes(dir));
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

/// Formats `part` as a percentage of `whole`; an empty string if `whole` is 0.
fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        String::new()
    } else {
        format!("{:.1}%", 100.0 * part as f64 / whole as f64)
    }
}

/// Summary of a build.
pub fn summary(report: &Report, time: Duration) -> String {
    let rows = summary_rows(report, time);
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
        text.push_str(&names(report));
    }
    text.push_str(&format!(
        "image digest  {}\ntree digest   {}\n",
        report.image_digest, report.tree_digest
    ));
    text
}

/// Rows of the summary: word, value, note.
fn summary_rows(report: &Report, time: Duration) -> Vec<(&'static str, String, String)> {
    let saved = |len: u64| (bytes(len), percent(len, report.file_len));
    let (dedup, dedup_share) = saved(report.dedup_len);
    let (segment, segment_share) = saved(report.segment_len);
    let (hole, hole_share) = saved(report.hole_len);
    let (image, image_share) = saved(report.image_len);
    let entry_len = report.tree_len as f64 / report.entry_count.max(1) as f64;
    let rate = report.file_len as f64 / time.as_secs_f64().max(1e-3);
    vec![
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
    ]
}

/// Number of names that an appended generation adds, changes and removes; an empty string for a
/// first generation.
fn names(report: &Report) -> String {
    let Some(changes) = report.changes.filter(|_| report.appended_len != Some(0)) else {
        return String::new();
    };
    let kept = match changes.removed_count {
        0 => String::new(),
        _ => format!("; generation {} keeps them", report.generation - 1),
    };
    format!(
        "names         {} added, {} changed, {} removed{kept}\n",
        count(changes.added_count),
        count(changes.changed_count),
        count(changes.removed_count)
    )
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

/// The same as a JSON object.
pub fn json(report: &Report, time: Duration) -> Object {
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
    let mut object = json::numbers(&numbers);
    let changes = report.changes.map(|changes| {
        [
            ("added_count", changes.added_count),
            ("changed_count", changes.changed_count),
            ("removed_count", changes.removed_count),
        ]
    });
    for (key, number) in changes.into_iter().flatten() {
        object.insert(key.to_owned(), number.into());
    }
    object.insert(
        "image_digest".into(),
        report.image_digest.to_string().into(),
    );
    object.insert("tree_digest".into(), report.tree_digest.to_string().into());
    object
}
