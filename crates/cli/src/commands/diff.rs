//! `weald diff`: compares two trees.

mod totals;

use crate::choice_args::ChoiceArgs;
use crate::entry;
use crate::help::Help;
use crate::json::{Object, put_name};
use crate::looks::Looks;
use crate::open::{OpenTree, SourceArgs, TrustArgs, thread_count};
use crate::output::Output;
use crate::reading::ReadingArgs;
use crate::status::FOUND;
use crate::{messages, parse};
use clap::{Args, ValueHint};
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use totals::Totals;
use weald_export::HostTree;
use weald_format::FileKind;
use weald_image::Image;
use weald_image::Inode;
use weald_vfs::{Aspect, Change, CompareOptions, Difference, ImageTree, compare, shown_path};

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[],
    notes: &[
        "Output: '- PATH' for a path in A only, '+ PATH' for a path in B only (with everything \
         below), '* PATH: ASPECT: A -> B' for a difference, '! PATH: REASON' for a path that could \
         not be compared. Trees whose files were only copied differ in mtime: --ignore mtime.",
        "With --stat, each line is a directory: files that only B has and their bytes, files that \
         only A has and theirs, files that differ and by how many bytes B's are longer; then the \
         sums. Directories, links and devices count as files of no bytes.",
        "Aspects are type, mode, uid, gid, device, size, content, target, mtime, xattrs, links \
         (which names share an inode), and atime, ctime and btime if both sides store them.",
    ],
    examples: &[
        (
            "Compare two images",
            "weald diff monday.weald tuesday.weald",
        ),
        (
            "Compare an image with its source",
            "weald diff forest.weald forest/",
        ),
        (
            "Compare sources only",
            "weald diff --include '*/' --include '*.[ch]' --exclude '*' monday.weald tuesday.weald",
        ),
        (
            "Ignore times and owners",
            "weald diff --ignore mtime,uid,gid monday.weald tuesday.weald",
        ),
        (
            "Compare two generations of an image",
            "weald diff versions.weald@1 versions.weald",
        ),
        (
            "Show where two versions of a directory differ",
            "weald diff --stat --depth 2 monday.weald:/ tuesday.weald:/",
        ),
    ],
    exit_status: &[
        ("0", "Both sides are equal."),
        (
            "1",
            "The sides differ, or some paths could not be compared.",
        ),
        ("2", "The command failed; standard error says why."),
    ],
};

/// Compare two trees: images, generations, directories in images or of this machine
#[derive(Args, Debug)]
#[command(after_help = HELP.short(), after_long_help = HELP.long())]
pub struct DiffArgs {
    /// Image file, STORE:NAME, STORE:VOLUME@SNAPSHOT, or directory; IMAGE@2 is a generation of an
    /// image, IMAGE:/DIR a directory in it
    #[arg(value_name = "A", value_hint = ValueHint::AnyPath)]
    left: PathBuf,
    /// The same, for the other side
    #[arg(value_name = "B", value_hint = ValueHint::AnyPath)]
    right: PathBuf,
    #[command(flatten)]
    trust: TrustArgs,
    #[command(flatten)]
    choice: ChoiceArgs,
    /// Aspects to ignore, separated by commas
    #[arg(
        long,
        value_name = "ASPECT,…",
        value_delimiter = ',',
        value_parser = parse::aspect
    )]
    ignore: Vec<Aspect>,
    /// Print everything below a directory that one side lacks, too
    #[arg(short, long)]
    recursive: bool,
    /// Print how many files and bytes differ in each directory
    #[arg(long, conflicts_with_all = ["recursive", "quiet"])]
    stat: bool,
    /// Levels of directories that --stat tells apart
    #[arg(long, value_name = "LEVELS", default_value_t = 1, requires = "stat")]
    depth: usize,
    /// Print nothing; only set the exit status
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    reading: ReadingArgs,
    /// Print one JSON object per difference, or per directory with --stat
    #[arg(long, conflicts_with = "quiet")]
    json: bool,
}

/// One side of a comparison.
#[allow(clippy::large_enum_variant)] // two of them
enum Side {
    /// A directory of this machine.
    Host(HostTree),
    /// A tree, and the directory in it.
    Image(OpenTree, Inode),
}

impl Side {
    fn image(&self) -> Option<&Image> {
        match self {
            Self::Host(_) => None,
            Self::Image(image, _) => Some(image),
        }
    }

    fn open(path: &Path, trust: &TrustArgs) -> anyhow::Result<Self> {
        if path.is_dir() && !weald_store::is_store(path) {
            // Each level of directories needs a descriptor.
            if let Err(error) = weald_sys::raise_open_file_limit() {
                log::info!("limit of open files: {error}");
            }
            return Ok(Self::Host(HostTree::open(path)?));
        }
        let args = SourceArgs {
            image: path.to_owned(),
            trust: trust.clone(),
        };
        let source = args.open_for_reading(&Looks::everything(), thread_count(0))?;
        let root = source.directory()?;
        Ok(Self::Image(source, root))
    }
}

/// Runs the command.
pub fn run(args: &DiffArgs) -> anyhow::Result<ExitCode> {
    let mut output = Output::new();
    let mut totals = Totals::new(args.depth);
    let (mut count, mut result) = (0_u64, Ok(()));
    let mut report = |path: &[u8], difference: Difference| {
        count += 1;
        if args.quiet {
            return ControlFlow::Break(());
        }
        result = if args.stat {
            totals.add(path, &difference, &mut output)
        } else if args.json {
            json(path, &difference, &mut output)
        } else {
            text(path, &difference, &mut output)
        };
        if result.is_ok() {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    };
    let chosen = args.choice.chosen(&[])?;
    let options = CompareOptions {
        ignored: &args.ignore,
        lists_all: args.recursive || args.stat,
        choice: Some(&chosen.choice),
    };
    let changed = args.trust.open_changed([&args.left, &args.right])?;
    if let Some([left, right]) = &changed {
        let images: [&Image; 2] = [left, right];
        let (left, right) = (ImageTree::new(left)?, ImageTree::new(right)?);
        (args.reading).during("diff", &images, true, || {
            compare(&left, &right, &options, &mut report)
        })?;
    } else {
        // What tells a digest or a generation by an option means the first side.
        let other = TrustArgs {
            digest: None,
            generation: None,
            ..args.trust.clone()
        };
        let left = Side::open(&args.left, &args.trust)?;
        let right = Side::open(&args.right, &other)?;
        let images: Vec<&Image> = [&left, &right]
            .into_iter()
            .filter_map(Side::image)
            .collect();
        let compared = || match (&left, &right) {
            (Side::Host(left), Side::Host(right)) => compare(left, right, &options, &mut report),
            (Side::Host(left), Side::Image(image, root)) => {
                let right = ImageTree::at(image, root.clone());
                compare(left, &right, &options, &mut report)
            }
            (Side::Image(image, root), Side::Host(right)) => {
                let left = ImageTree::at(image, root.clone());
                compare(&left, right, &options, &mut report)
            }
            (Side::Image(image, root), Side::Image(other, other_root)) => {
                let left = ImageTree::at(image, root.clone());
                let right = ImageTree::at(other, other_root.clone());
                compare(&left, &right, &options, &mut report)
            }
        };
        args.reading.during("diff", &images, true, compared)?;
    }
    result?;
    if args.stat {
        totals.print(args.json, &mut output)?;
    }
    output.finish()?;
    Ok(if count == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(FOUND)
    })
}

fn text(path: &[u8], difference: &Difference, output: &mut Output) -> io::Result<()> {
    let path = shown_path(path);
    let slash = |kind: &FileKind| {
        if *kind == FileKind::Directory {
            "/"
        } else {
            ""
        }
    };
    match difference {
        Difference::OnlyLeft(only) => writeln!(output, "- {path}{}", slash(&only.kind)),
        Difference::OnlyRight(only) => writeln!(output, "+ {path}{}", slash(&only.kind)),
        Difference::Changed(changed) => {
            let words: Vec<String> = changed.changes.iter().map(change_words).collect();
            writeln!(output, "* {path}: {}", words.join(", "))
        }
        Difference::Failed(error) => writeln!(output, "! {path}: {}", messages::one_line(error)),
    }
}

fn change_words(change: &Change) -> String {
    let word = change.aspect.word();
    match (change.left.as_str(), change.right.as_str()) {
        ("", right) if change.aspect == Aspect::Content => format!("{word} {right}"),
        (left, right) => format!("{word} {} -> {}", or_none(left), or_none(right)),
    }
}

fn or_none(text: &str) -> &str {
    if text.is_empty() { "(none)" } else { text }
}

fn json(path: &[u8], difference: &Difference, output: &mut Output) -> io::Result<()> {
    let mut object = Object::new();
    put_name(&mut object, "path", path);
    let mut put = |key: &str, value: serde_json::Value| drop(object.insert(key.to_owned(), value));
    match difference {
        Difference::OnlyLeft(only) => {
            put("difference", "only_in_a".into());
            put("type", entry::kind_word(only.kind).into());
            put("size", only.len.into());
        }
        Difference::OnlyRight(only) => {
            put("difference", "only_in_b".into());
            put("type", entry::kind_word(only.kind).into());
            put("size", only.len.into());
        }
        Difference::Changed(changed) => {
            put("difference", "changed".into());
            put("size_a", changed.lens[0].into());
            put("size_b", changed.lens[1].into());
            let changes = changed.changes.iter().map(|change| {
                let aspect = change.aspect.word();
                serde_json::json!({ "aspect": aspect, "a": change.left, "b": change.right })
            });
            put("changes", changes.collect());
        }
        Difference::Failed(error) => {
            put("difference", "failed".into());
            put("error", messages::one_line(error).into());
        }
    }
    output.json(&object.into())
}
