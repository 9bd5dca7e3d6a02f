//! `weald diff`: compares two images, or an image with a directory.

use crate::entry;
use crate::help::Help;
use crate::json::{Object, put_name};
use crate::open::{TrustArgs, thread_count};
use crate::output::Output;
use crate::status::FOUND;
use crate::{messages, parse};
use clap::{Args, ValueHint};
use std::io;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;
use weald_export::HostTree;
use weald_format::FileKind;
use weald_vfs::{Aspect, Change, Difference, ImageTree, compare, shown_path};

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[],
    notes: &[
        "Output: '- PATH' for a path in A only, '+ PATH' for a path in B only (with everything \
         below), '* PATH: ASPECT: A -> B' for a difference, '! PATH: REASON' for a path that could \
         not be compared.",
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
            "Ignore times and owners",
            "weald diff --ignore mtime,uid,gid monday.weald tuesday.weald",
        ),
        (
            "Compare two generations of an image",
            "weald diff --generation 1 versions.weald versions.weald",
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

/// Compare two images, or an image with a directory
#[derive(Args, Debug)]
#[command(after_help = HELP.short(), after_long_help = HELP.long())]
pub struct DiffArgs {
    /// Image file, or STORE:NAME
    #[arg(value_name = "A", value_hint = ValueHint::FilePath)]
    left: PathBuf,
    /// Image file, STORE:NAME, or directory
    #[arg(value_name = "B", value_hint = ValueHint::AnyPath)]
    right: PathBuf,
    #[command(flatten)]
    trust: TrustArgs,
    /// Aspects to ignore, separated by commas
    #[arg(
        long,
        value_name = "ASPECT,…",
        value_delimiter = ',',
        value_parser = parse::aspect
    )]
    ignore: Vec<Aspect>,
    /// Print nothing; only set the exit status
    #[arg(short, long)]
    quiet: bool,
    /// Print one JSON object per difference
    #[arg(long, conflicts_with = "quiet")]
    json: bool,
}

/// Runs the command.
pub fn run(args: &DiffArgs) -> anyhow::Result<ExitCode> {
    let thread_count = thread_count(0);
    let mut output = Output::new();
    let (mut count, mut result) = (0_u64, Ok(()));
    let mut report = |path: &[u8], difference: Difference| {
        count += 1;
        if args.quiet {
            return ControlFlow::Break(());
        }
        result = if args.json {
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
    let changed = args.trust.open_changed([&args.left, &args.right])?;
    if let Some([left, right]) = changed {
        compare(
            &ImageTree(&left),
            &ImageTree(&right),
            &args.ignore,
            &mut report,
        )?;
    } else if args.right.is_dir() {
        let left = args.trust.open_tree(&args.left, thread_count)?;
        // Each level of directories needs a descriptor.
        if let Err(error) = weald_sys::raise_open_file_limit() {
            log::info!("limit of open files: {error}");
        }
        let right = HostTree::open(&args.right)?;
        compare(&ImageTree(&left), &right, &args.ignore, &mut report)?;
    } else {
        let left = args.trust.open_tree(&args.left, thread_count)?;
        let trust = TrustArgs {
            digest: None,
            generation: None,
            ..args.trust.clone()
        };
        let right = trust.open_tree(&args.right, thread_count)?;
        compare(
            &ImageTree(&left),
            &ImageTree(&right),
            &args.ignore,
            &mut report,
        )?;
    }
    result?;
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
        Difference::OnlyLeft(kind) => writeln!(output, "- {path}{}", slash(kind)),
        Difference::OnlyRight(kind) => writeln!(output, "+ {path}{}", slash(kind)),
        Difference::Changed(changes) => {
            let words: Vec<String> = changes.iter().map(change_words).collect();
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
        Difference::OnlyLeft(kind) => {
            put("difference", "only_in_a".into());
            put("type", entry::kind_word(*kind).into());
        }
        Difference::OnlyRight(kind) => {
            put("difference", "only_in_b".into());
            put("type", entry::kind_word(*kind).into());
        }
        Difference::Changed(changes) => {
            put("difference", "changed".into());
            let changes = changes.iter().map(|change| {
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
