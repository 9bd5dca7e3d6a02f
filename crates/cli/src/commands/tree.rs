//! `weald tree`: draws the tree of an image.

use crate::help::{DONE_OR_PARTLY, Help};
use crate::looks::Looks;
use crate::messages;
use crate::open::SourceArgs;
use crate::output::Output;
use crate::status::exit_code;
use clap::{Args, ValueHint};
use std::ffi::OsString;
use std::process::ExitCode;
use std::slice::from_ref;
use weald_format::FileKind;
use weald_vfs::{Follow, Step, Visit, Walker};
use weald_volume::Levels;

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[],
    notes: &[],
    examples: &[
        ("Draw the whole tree", "weald tree forest.weald"),
        (
            "Draw two levels of one directory",
            "weald tree -L 2 forest.weald usr",
        ),
    ],
    exit_status: DONE_OR_PARTLY,
};

/// Draw the tree of an image
#[derive(Args, Debug)]
#[command(after_help = HELP.short(), after_long_help = HELP.long())]
pub struct TreeArgs {
    #[command(flatten)]
    image: SourceArgs,
    /// Directory in the image (default: its root)
    #[arg(default_value = "", hide_default_value = true, value_hint = ValueHint::Other)]
    path: OsString,
    /// Depth limit
    #[arg(short = 'L', long, value_name = "COUNT")]
    level: Option<usize>,
    /// Show sizes of regular files
    #[arg(short, long)]
    size: bool,
    /// Draw with ASCII characters only
    #[arg(long)]
    ascii: bool,
}

/// Runs the command.
pub fn run(args: &TreeArgs) -> anyhow::Result<ExitCode> {
    let levels = args
        .level
        .map_or(Levels::ALL, |level| Levels(level.saturating_add(1)));
    let image = args.image.open(&Looks::at(from_ref(&args.path), levels))?;
    let start = image.locate(&args.path, Follow::Yes)?;
    let mut walker = Walker::new(&image, start);
    let mut drawing = Drawing {
        args,
        output: Output::new(),
        is_last: Vec::new(),
        counts: [0; 2],
    };
    let mut problem_count = 0;
    loop {
        match walker.step() {
            Ok(None) => break,
            Ok(Some(Step::Leave)) => {}
            Ok(Some(Step::Enter(visit))) => {
                let target = match visit.inode.kind {
                    FileKind::Symlink => Some(image.read_link(&visit.inode)?),
                    _ => None,
                };
                drawing.entry(&visit, target.as_deref())?;
                let is_deep = args.level.is_some_and(|level| visit.depth >= level);
                if is_deep && visit.inode.kind == FileKind::Directory {
                    walker.skip_children();
                }
            }
            Err(error) => {
                messages::error(&error.into());
                problem_count += 1;
            }
        }
    }
    drawing.finish()?;
    Ok(exit_code(problem_count))
}

struct Drawing<'a> {
    args: &'a TreeArgs,
    output: Output,
    /// For each level above: whether its entry is the last of its directory.
    is_last: Vec<bool>,
    /// Number of directories and of other entries.
    counts: [u64; 2],
}

impl Drawing<'_> {
    fn entry(&mut self, visit: &Visit, target: Option<&[u8]>) -> std::io::Result<()> {
        let [through, branch, end, space] = if self.args.ascii {
            ["|   ", "|-- ", "`-- ", "    "]
        } else {
            ["│   ", "├── ", "└── ", "    "]
        };
        self.is_last.truncate(visit.depth.saturating_sub(1));
        if visit.depth > 0 {
            for &is_last in &self.is_last {
                write!(self.output, "{}", if is_last { space } else { through })?;
            }
            write!(self.output, "{}", if visit.is_last { end } else { branch })?;
            self.is_last.push(visit.is_last);
            self.counts[usize::from(visit.inode.kind != FileKind::Directory)] += 1;
        }
        if self.args.size && visit.inode.kind == FileKind::Regular {
            write!(self.output, "[{:>11}] ", visit.inode.size)?;
        }
        self.name(if visit.name.is_empty() {
            b"/"
        } else {
            &visit.name
        })?;
        if let Some(target) = target {
            write!(self.output, " -> ")?;
            self.name(target)?;
        }
        writeln!(self.output)
    }

    /// Always escapes the name: a newline would break the drawing.
    fn name(&mut self, name: &[u8]) -> std::io::Result<()> {
        write!(self.output, "{}", weald_vfs::shown(name))
    }

    fn finish(mut self) -> std::io::Result<()> {
        let [dirs, others] = self.counts;
        let dir_word = if dirs == 1 {
            "directory"
        } else {
            "directories"
        };
        let other_word = if others == 1 { "file" } else { "files" };
        writeln!(self.output, "\n{dirs} {dir_word}, {others} {other_word}")?;
        self.output.finish()
    }
}
