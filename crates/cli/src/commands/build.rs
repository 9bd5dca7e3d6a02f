//! `weald build`: packs a directory, a stream, an archive or an image of another file system.

mod chosen;
mod summary;

use self::chosen::{Form, explain, list};
pub use self::summary::{json, summary};
use crate::attribute_args::EntryArgs;
use crate::commands::parity;
use crate::commands::rewrite::kept::{Kept, write_kept};
use crate::foreign;
use crate::help::Help;
use crate::input_args::{FollowArgs, Input, InputArgs, WalkArgs};
use crate::messages;
use crate::open::{TrustArgs, refuse_stored_target, thread_count};
use crate::open_store::show_path;
use crate::output::Output;
use crate::pack::{DisplayArgs, PackArgs, ResourceArgs};
use crate::rules::tell_idle;
use crate::self_mounting;
use crate::shape::{INPUT, OUTPUT, SELECTION};
use crate::stages::Stages;
use crate::status::exit_code;
use anyhow::{Context, bail};
use clap::{Args, ValueHint};
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use weald_builder::{AddAt, BuildOptions, Head, Observer, Report, TargetKind};
use weald_format::{Error, ErrorKind, Result};
use weald_image::{ImageStart, generations};
use weald_parity::{Layout, Share};

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[],
    notes: &[
        "SOURCE is a directory, an archive, an image of another file system, or '-' for a stream \
         on standard input. Files are told by their first bytes: tar and cpio (newc, crc), also \
         compressed by gzip, zstd or xz, zip, mtree(5) with '#mtree', EROFS and SquashFS 4. --from \
         says the format where they do not, as for lists of paths. Zip archives and images are \
         read at any place, so not from '-'.",
        "In a zip archive, times without a zone are taken as UTC, and members without attributes \
         of Unix are root's, with mode 644 or 755. Encrypted members end the build. Several cpio \
         archives in a row are one tree, as in an initramfs.",
        "With several directories, each is laid over those before it: a file replaces what has its \
         name, and directories become one, with the attributes of the last. Weald names what is \
         replaced. DIR:/PATH lays DIR at PATH; missing directories above PATH get mode 755 and the \
         caller's owner. Rules start at each DIR.",
        "--from paths packs the files that a list names, as find prints them, with the directories \
         above them. A directory of the list stands for itself, not for what lies below it. Paths \
         lead from --root, or begin with it. A path that is not there is a problem, with exit \
         status 1.",
        "Filter rules are rsync's. Weald tries them in the order of the command line, and the \
         first rule that matches a path decides. Those that decide about no path are named; rules \
         from files are not. A leading '/' anchors a pattern at the source; a \
         trailing '/' matches directories only. --filter 'dir-merge .rules' reads more rules from \
         the file .rules of each directory, for this directory and everything below it. Modifiers \
         follow the comma in 'dir-merge,en'. '-' or '+' means a file of plain patterns, 'w' \
         patterns separated by spaces, and 'C' the rules of CVS. 'e' leaves the file itself out; \
         'n' applies the rules to this directory only.",
        "--list names the root as '.', and writes no image; no file is read, so that files that \
         cannot be read are in the list. A stream is read to its end. With --json, each path is an \
         object. IMAGE may be left out where there is one SOURCE.",
        "--dereference follows symlinks; a directory that would contain itself ends the build, and \
         a symlink to nothing is a problem. --dereference-unsafe goes by the text of a symlink, as \
         rsync's --copy-unsafe-links does.",
        "A line of --add names a path of the tree. Where something of this type is, it gets the \
         attributes that the line gives, and contents= or link= if they are there. Anything else \
         is replaced, or new: of root, with mode 755 for directories and 644 for others. So \
         anybody can pack devices and files of others. These attributes stay whatever --owner, \
         --mode and --mtime say; rules and scripts do not apply.",
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
            "Pack the tree of an image of EROFS or SquashFS",
            "weald build --from-image root.erofs packed.weald",
        ),
        (
            "Pack the members of a zip archive",
            "weald build release.zip release.weald",
        ),
        (
            "Make a reproducible image whose files belong to root",
            "SOURCE_DATE_EPOCH=0 weald build --owner 0:0 --mode u=rwX,go=rX project/ root.weald",
        ),
        (
            "Add a device, as any user",
            "echo './null type=char device=native,1,3' > l; weald build --add l project/ d.weald",
        ),
        (
            "Pack what symlinks lead to, and link files that are equal",
            "weald build --dereference --hard-links all-equal project/ whole.weald",
        ),
        (
            "Show which rule decides about a path; build nothing",
            "weald build --exclude '*.o' --explain-filter main.o project/ project.weald",
        ),
        (
            "Name what would be packed and what is left out; build nothing",
            "weald build --exclude '*.o' --list -v project/ project.weald",
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
    /// Directory, archive or image to pack, or - for a stream on standard input; last, the image
    /// file to write. Of several directories, each is laid over those before it; DIR:/PATH goes to
    /// PATH in the image
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
    follow: FollowArgs,
    #[command(flatten)]
    pack: PackArgs,
    #[command(flatten)]
    entries: EntryArgs,
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
    /// Print the paths that would be packed, and write no image; with -v also what is left out, and
    /// the rule that excludes it
    #[arg(long, hide_short_help = true, help_heading = SELECTION)]
    list: bool,
    /// End each path of --list with a zero byte instead of a newline
    #[arg(
        long,
        requires = "list",
        conflicts_with = "json",
        hide_short_help = true,
        help_heading = SELECTION
    )]
    print0: bool,
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
    /// Make IMAGE a program that mounts itself and starts AppRun or --run in it: --runtime, else
    /// the installed weald-runtime, else this program, stands before the image
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
    /// Program of Weald before a self-mounting image, such as that of make runtime or make static
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
        match &*self.paths {
            [_] if self.list => &self.paths,
            paths => paths.split_last().map_or(&[], |(_, sources)| sources),
        }
    }

    /// The image to write; a list of one source needs none.
    fn image(&self) -> &Path {
        match &*self.paths {
            [_] if self.list => Path::new("-"),
            paths => paths.last().map_or(Path::new(""), PathBuf::as_path),
        }
    }
}

/// Runs the command.
pub fn run(args: &BuildArgs) -> anyhow::Result<ExitCode> {
    if let ([only], false) = (&*args.paths, args.list) {
        bail!(
            "{}: expected a source and an image: weald build SOURCE... IMAGE",
            show_path(only)
        );
    }
    let mut options = options(args)?;
    if let Some(path) = &args.explain_filter {
        return explain(args.sources(), &options.filter, path);
    }
    refuse_stored_target(args.image())?;
    if let [source] = args.sources() {
        foreign::refuse_swapped(args.image(), source, "weald build DIRECTORY IMAGE")?;
    }
    let input = args.input.input(args.sources())?;
    args.walk.apply(input.is_stream(), &mut options)?;
    args.follow.apply(input.is_stream(), &mut options)?;
    weald_sys::check_preload()?;
    if args.list {
        let form = match (args.display.json, args.print0) {
            (true, _) => Form::Json,
            (false, true) => Form::Zeros,
            (false, false) => Form::Lines,
        };
        let image = args.image();
        let listed = list(input, image, form, &options, &args.display.display()?)?;
        tell_idle(&options.filter);
        return Ok(listed);
    }
    let parity = parity_target(args)?;
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
    tell_idle(&options.filter);
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
    args.entries.apply(&mut options)?;
    if args.at.is_some() && args.entries.is_given() {
        bail!("--add is about the whole tree, and --at about a part: use rewrite --add");
    }
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
    let installed = match args.runtime {
        Some(_) => None,
        None => self_mounting::installed_runtime(),
    };
    let runtime = args.runtime.as_deref().or(installed.as_deref());
    let bytes = weald_runtime::make(runtime.unwrap_or(Path::new("/proc/self/exe")), run)?;
    if args.runtime.is_none() && !args.display.quiet {
        let what = match runtime {
            Some(path) => weald_vfs::shown(path.as_os_str().as_bytes()),
            None => "this program, which reads and builds: no weald-runtime is beside it".into(),
        };
        messages::line(&format!("before the image: {what}, {} bytes", bytes.len()));
    }
    Ok(Some(Head {
        bytes: bytes.into(),
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
