//! `weald parity`: a file beside a file, from which damaged bytes of it come back.

use crate::help::{DONE_OR_DAMAGED, DONE_OR_FAILED, Help};
use crate::json::{Object, numbers, put_name};
use crate::open::{refuse_all_but_files, thread_count};
use crate::output::Output;
use crate::parse;
use crate::progress::count;
use crate::status::exit_code;
use anyhow::{Context, bail};
use clap::{Args, Subcommand, ValueHint};
use std::ffi::OsString;
use std::fs::File;
use std::ops::{ControlFlow, Range};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use weald_io::{OutputFile, TargetKind};
use weald_parity::{Layout, Parity, Report, Share, create};
use weald_vfs::shown;

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[],
    notes: &[
        "A parity file repairs one other file: an image, or any other. It has a digest of each \
         4096 bytes of it, so that it tells exactly what is damaged, and recovery data of the \
         share that was asked for.",
        "Any damage in one piece up to the share is repaired for certain, wherever it lies. \
         Damage of single sectors is repaired up to about three fifths of the share. Both files \
         may be damaged, and the file may have lost its end; a file that is gone does not come \
         back.",
    ],
    examples: &[
        (
            "Make parity beside an image",
            "weald parity add forest.weald",
        ),
        ("Compare", "weald parity verify forest.weald"),
        ("Repair", "weald parity repair forest.weald"),
    ],
    exit_status: DONE_OR_DAMAGED,
};

/// Make parity of a file, and repair the file by it
#[derive(Args, Debug)]
#[command(after_help = HELP.short(), after_long_help = HELP.long())]
#[command(disable_help_subcommand = true)]
pub struct ParityArgs {
    #[command(subcommand)]
    command: ParityCommand,
}

#[derive(Subcommand, Debug)]
enum ParityCommand {
    Add(AddArgs),
    Verify(VerifyArgs),
    Repair(RepairArgs),
}

/// Runs the command.
pub fn run(args: &ParityArgs) -> anyhow::Result<ExitCode> {
    match &args.command {
        ParityCommand::Add(args) => add(args),
        ParityCommand::Verify(args) => verify(args),
        ParityCommand::Repair(args) => repair(args),
    }
}

/// Sections of the help of the command `name` of this group.
pub fn help_of(name: &str) -> Option<&'static Help> {
    Some(match name {
        "add" => &ADD_HELP,
        "verify" => &VERIFY_HELP,
        "repair" => &REPAIR_HELP,
        _ => return None,
    })
}

/// The two files.
#[derive(Args, Debug)]
struct Files {
    /// File that the parity is for
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    file: PathBuf,
    /// Parity file (default: FILE.parity)
    #[arg(long, value_name = "PARITY", value_hint = ValueHint::FilePath)]
    parity: Option<PathBuf>,
    /// Number of threads, 0 for one per CPU
    #[arg(short, long, value_name = "COUNT", default_value_t = 0, value_parser = parse::threads)]
    threads: usize,
}

impl Files {
    /// The path of the parity file; refuses what is no file on a disk.
    fn parity(&self) -> anyhow::Result<PathBuf> {
        for path in [Some(&self.file), self.parity.as_ref()]
            .into_iter()
            .flatten()
        {
            refuse_all_but_files(
                path,
                "is an object of a server, and parity is for files",
                "is an image of a store: 'weald replica' keeps what a store has in other places",
            )?;
        }
        Ok(self
            .parity
            .clone()
            .unwrap_or_else(|| parity_beside(&self.file)))
    }
}

/// The usual path of the parity of `file`.
pub fn parity_beside(file: &Path) -> PathBuf {
    let mut path = OsString::from(file);
    path.push(".parity");
    path.into()
}

/// Shows a path in messages.
fn name_of(path: &Path) -> String {
    shown(path.as_os_str().as_bytes())
}

/// Ends the work at a signal.
fn watch(flag: &Arc<AtomicBool>) -> impl Fn(u64) -> ControlFlow<()> + Sync + use<> {
    let flag = Arc::clone(flag);
    move |_| {
        if flag.load(Ordering::Relaxed) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }
}

/// Sections of the help.
const ADD_HELP: Help = Help {
    lists: &[],
    notes: &[
        "The parity file is somewhat longer than the share of the file: it has digests, too. It \
         gets the owner and the permissions of the file, since it tells what is in it. The same \
         file and share always give the same parity.",
        "Parity is of the file as it is now. After weald build --append, weald rewrite or \
         anything else that changes the file, make it again with --force.",
    ],
    examples: &[
        (
            "Make parity beside an image",
            "weald parity add forest.weald",
        ),
        (
            "Repair up to a tenth, and keep the parity on another disk",
            "weald parity add --share 10% --parity /backup/forest.parity forest.weald",
        ),
    ],
    exit_status: DONE_OR_FAILED,
};

/// Write the parity of a file
#[derive(Args, Debug)]
#[command(after_help = ADD_HELP.short(), after_long_help = ADD_HELP.long())]
struct AddArgs {
    #[command(flatten)]
    files: Files,
    /// How much of the file can be repaired, in percent of its length
    #[arg(long, value_name = "PERCENT", default_value = "5%")]
    share: Share,
    /// Replace an existing parity file
    #[arg(short, long)]
    force: bool,
    /// Print nothing
    #[arg(short, long)]
    quiet: bool,
    /// Print a JSON object
    #[arg(long, conflicts_with = "quiet")]
    json: bool,
}

fn add(args: &AddArgs) -> anyhow::Result<ExitCode> {
    let parity = args.files.parity()?;
    let flag = crate::interrupt::interrupt_flag()?;
    let target = Target {
        path: &parity,
        overwrite: args.force,
        threads: thread_count(args.files.threads),
    };
    let layout = write_parity(&args.files.file, args.share, &target, &flag)?;
    if args.quiet {
        return Ok(ExitCode::SUCCESS);
    }
    let mut output = Output::new();
    let lens = [
        ("file_len", layout.file_len),
        ("parity_len", layout.parity_len()),
        ("repairable_len", layout.repairable_len()),
    ];
    if args.json {
        let mut object = numbers(&lens);
        put_name(&mut object, "parity", parity.as_os_str().as_bytes());
        output.json(&object.into())?;
    } else {
        writeln!(output, "{}", told(&layout, &parity))?;
    }
    output.finish()?;
    Ok(ExitCode::SUCCESS)
}

/// What a parity file is good for.
pub fn told(layout: &Layout, path: &Path) -> String {
    format!(
        "{}: {} bytes, which repair any {} bytes of {} in one piece",
        name_of(path),
        count(layout.parity_len()),
        count(layout.repairable_len()),
        count(layout.file_len)
    )
}

/// Where a parity file is written, and how.
pub struct Target<'a> {
    /// Its path.
    pub path: &'a Path,
    /// Whether an existing file is replaced.
    pub overwrite: bool,
    /// Number of threads.
    pub threads: usize,
}

/// Writes the parity of the file at `file`, for damage of `share` of it in one piece.
///
/// # Errors
/// If either cannot be read or written, or the file changes meanwhile.
pub fn write_parity(
    file: &Path,
    share: Share,
    target: &Target<'_>,
    flag: &Arc<AtomicBool>,
) -> anyhow::Result<Layout> {
    let source = open_regular(file)?;
    let len = source.metadata().with_context(|| name_of(file))?.len();
    let layout = Layout::for_share(len, share).with_context(|| name_of(file))?;
    make(&source, file, &layout, target, flag)?;
    Ok(layout)
}

/// Writes the parity of `source`, which is the file at `file`.
fn make(
    source: &File,
    file: &Path,
    layout: &Layout,
    target: &Target<'_>,
    flag: &Arc<AtomicBool>,
) -> anyhow::Result<()> {
    if !target.overwrite {
        weald_io::refuse_existing(target.path)?;
    }
    let mut output = OutputFile::create(target.path, TargetKind::File)?;
    if !output.is_atomic() {
        bail!("{}: is no place for a file", name_of(target.path));
    }
    output.take_access_of(source)?;
    create(source, layout, &mut output, target.threads, &watch(flag))
        .with_context(|| name_of(file))?;
    output.commit(target.overwrite)?;
    Ok(())
}

/// Opens a file that parity can be of.
fn open_regular(path: &Path) -> anyhow::Result<File> {
    let file = weald_io::open_to_read(path)?;
    let metadata = file.metadata().with_context(|| name_of(path))?;
    if !metadata.is_file() {
        bail!("{}: is no regular file", name_of(path));
    }
    Ok(file)
}

/// Opens a parity file.
fn open_parity(path: &Path, file: &Path) -> anyhow::Result<File> {
    let hint = || {
        let name = name_of(path);
        if path.exists() {
            name
        } else {
            format!("{name}: there is no parity of {}", name_of(file))
        }
    };
    weald_io::open_to_read(path).with_context(hint)
}

/// Refuses the parity file `parity` of another user for a repair of `file`: it decides what is
/// written.
fn refuse_foreign(parity: &File, path: &Path, file: &File) -> anyhow::Result<()> {
    let owner_of = |file: &File| file.metadata().map(|metadata| metadata.uid());
    let owner = owner_of(parity).with_context(|| name_of(path))?;
    let of_file = owner_of(file).with_context(|| name_of(path))?;
    if ![0, weald_sys::effective_ids().0, of_file].contains(&owner) {
        bail!(
            "{}: belongs to user {owner}, and decides what a repair writes: copy it first if you \
             trust it",
            name_of(path)
        );
    }
    Ok(())
}

/// Sections of the help.
const VERIFY_HELP: Help = Help {
    lists: &[],
    notes: &[
        "Each line is a range of bytes: 'repairable: START-END' is damaged, and weald parity \
         repair restores it; 'lost: START-END' has too much damage near it; 'unknown: START-END' \
         may be right or wrong, since its digest is lost. END is the byte behind the last one.",
        "Nothing is written. What a verification calls repairable is what a repair restores.",
    ],
    examples: &[
        (
            "Compare a file with its parity",
            "weald parity verify forest.weald",
        ),
        (
            "The same as JSON, with the parity elsewhere",
            "weald parity verify --json --parity /backup/forest.weald.parity forest.weald",
        ),
    ],
    exit_status: &[
        ("0", "The file is as it was when its parity was made."),
        (
            "1",
            "The file or its parity is damaged, or the file is longer than it was.",
        ),
        ("2", "The command failed; standard error says why."),
    ],
};

/// Compare a file with its parity
#[derive(Args, Debug)]
#[command(after_help = VERIFY_HELP.short(), after_long_help = VERIFY_HELP.long())]
struct VerifyArgs {
    #[command(flatten)]
    files: Files,
    /// Print one JSON object for each line
    #[arg(long)]
    json: bool,
}

fn verify(args: &VerifyArgs) -> anyhow::Result<ExitCode> {
    let path = args.files.parity()?;
    let flag = crate::interrupt::interrupt_flag()?;
    let file = open_regular(&args.files.file)?;
    let opened = open_parity(&path, &args.files.file)?;
    let parity = Parity::open(opened).with_context(|| name_of(&path))?;
    let threads = thread_count(args.files.threads);
    let report = parity
        .examine(&file, false, threads, &watch(&flag))
        .with_context(|| name_of(&args.files.file))?;
    let words = Words {
        repairable: "repairable",
        sum: "can be repaired",
        parity: "a repair of the file makes them again",
    };
    print(&args.files.file, &report, args.json, &words)?;
    Ok(exit_code(u64::from(!report.is_clean())))
}

/// Sections of the help.
const REPAIR_HELP: Help = Help {
    lists: &[],
    notes: &[
        "Damaged bytes are restored in the file itself, and in nothing else of it; if it has lost \
         its end, the end comes back. Each range is a line, as weald parity verify prints it, \
         with 'repaired' for what was restored. Then a damaged parity file is made again.",
        "A file that was changed on purpose since its parity was made is not damaged, but the \
         repair cannot know that: it brings back what the file had. A repair that was \
         interrupted is done by the next one.",
    ],
    examples: &[(
        "Repair a file, and its parity",
        "weald parity repair forest.weald",
    )],
    exit_status: &[
        (
            "0",
            "The file is as it was when its parity was made, and so is the parity.",
        ),
        (
            "1",
            "Something is lost; what could be restored is. Or the file is longer than it was.",
        ),
        ("2", "The command failed; standard error says why."),
    ],
};

/// Restore damaged bytes of a file
#[derive(Args, Debug)]
#[command(after_help = REPAIR_HELP.short(), after_long_help = REPAIR_HELP.long())]
struct RepairArgs {
    #[command(flatten)]
    files: Files,
    /// Print one JSON object for each line
    #[arg(long)]
    json: bool,
}

fn repair(args: &RepairArgs) -> anyhow::Result<ExitCode> {
    let path = args.files.parity()?;
    let flag = crate::interrupt::interrupt_flag()?;
    let file = weald_io::open_to_update(&args.files.file)?;
    let opened = open_parity(&path, &args.files.file)?;
    refuse_foreign(&opened, &path, &file)?;
    let parity = Parity::open(opened).with_context(|| name_of(&path))?;
    let target = Target {
        path: &path,
        overwrite: true,
        threads: thread_count(args.files.threads),
    };
    let report = parity
        .examine(&file, true, target.threads, &watch(&flag))
        .with_context(|| name_of(&args.files.file))?;
    let is_whole = report.is_file_repairable() && report.extra_len == 0;
    if is_whole && report.damaged_parity_count > 0 {
        make(&file, &args.files.file, parity.layout(), &target, &flag)?;
    }
    let words = Words {
        repairable: "repaired",
        sum: "repaired",
        parity: if is_whole {
            "made again"
        } else {
            "left as they are"
        },
    };
    print(&args.files.file, &report, args.json, &words)?;
    Ok(exit_code(u64::from(!is_whole)))
}

/// What a command says of a report.
struct Words {
    /// Before each range that can be or was repaired.
    repairable: &'static str,
    /// Behind their sum.
    sum: &'static str,
    /// Of damaged blocks of the parity file.
    parity: &'static str,
}

/// Prints the lines of a report, and a last line with the sums.
fn print(file: &Path, report: &Report, is_json: bool, words: &Words) -> std::io::Result<()> {
    let mut output = Output::new();
    let kinds = [
        (words.repairable, &report.repairable),
        ("lost", &report.lost),
        ("unknown", &report.unknown),
    ];
    for (word, ranges) in kinds {
        for range in ranges {
            if is_json {
                let mut object = numbers(&[("start", range.start), ("end", range.end)]);
                object.insert("type".into(), word.into());
                output.json(&object.into())?;
            } else {
                writeln!(output, "{word}: {}-{}", range.start, range.end)?;
            }
        }
    }
    let sum = |ranges: &[Range<u64>]| ranges.iter().map(|range| range.end - range.start).sum();
    let sums = [
        (words.repairable, sum(&report.repairable)),
        ("lost", sum(&report.lost)),
        ("unknown", sum(&report.unknown)),
        ("extra", report.extra_len),
        ("damaged_parity_blocks", report.damaged_parity_count),
    ];
    if is_json {
        let mut object: Object = numbers(&sums);
        object.insert("type".into(), "summary".into());
        put_name(&mut object, "file", file.as_os_str().as_bytes());
        output.json(&object.into())?;
        return output.finish();
    }
    let name = name_of(file);
    let [(_, repairable), (_, lost), (_, unknown), ..] = sums;
    if repairable + lost + unknown == 0 {
        writeln!(output, "{name}: as it was when its parity was made")?;
    }
    for (len, what) in [
        (repairable, words.sum),
        (lost, "lost: too much is damaged near them"),
        (unknown, "unknown: their digests are lost"),
    ] {
        if len > 0 {
            writeln!(output, "{name}: {} bytes {what}", count(len))?;
        }
    }
    if report.extra_len > 0 {
        writeln!(
            output,
            "{name}: {} bytes more than when its parity was made, which the parity is not for: \
             'weald parity add --force' makes it for all",
            count(report.extra_len)
        )?;
    }
    if report.damaged_parity_count > 0 {
        writeln!(
            output,
            "parity: {} damaged blocks: {}",
            count(report.damaged_parity_count),
            words.parity
        )?;
    }
    output.finish()
}
