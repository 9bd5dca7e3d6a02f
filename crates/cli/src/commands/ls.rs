//! `weald ls`: lists directories, with attributes on request.

use crate::entry::{self, mode_letters, size_column};
use crate::help::{DONE_OR_PARTLY, Help};
use crate::looks::Looks;
use crate::messages;
use crate::open::SourceArgs;
use crate::output::Output;
use crate::status::exit_code;
use clap::{Args, ValueHint};
use std::ffi::OsString;
use std::io;
use std::ops::ControlFlow;
use std::process::ExitCode;
use weald_format::FileKind;
use weald_image::{Image, Inode};
use weald_vfs::{Follow, Located, Step, Walker, utc_nanoseconds, utc_seconds};
use weald_volume::Levels;

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[],
    notes: &[
        "Times are UTC. Owners are numbers, as in the image.",
        "Names on a terminal are escaped: control characters and bytes that are not UTF-8 \
         become \\xNN. In a pipe or a file, names are written as they are.",
    ],
    examples: &[
        ("List the root directory", "weald ls forest.weald"),
        (
            "List with attributes; '+' marks extended attributes",
            "weald ls -l forest.weald usr/bin",
        ),
        (
            "List everything, one JSON object per line",
            "weald ls -R --json forest.weald",
        ),
    ],
    exit_status: DONE_OR_PARTLY,
};

/// List directories of an image
#[derive(Args, Debug)]
#[command(after_help = HELP.short(), after_long_help = HELP.long())]
pub struct LsArgs {
    #[command(flatten)]
    image: SourceArgs,
    /// Paths in the image, or patterns of them (default: its root)
    #[arg(value_hint = ValueHint::Other)]
    paths: Vec<OsString>,
    /// Show type, mode, link count, owner, group, size and mtime
    #[arg(short, long)]
    long: bool,
    /// Show sizes as 1.5K or 234M; -lh means the same
    #[arg(long)]
    human_readable: bool,
    /// Names that begin with a dot are listed in any case
    #[arg(short, long, hide = true)]
    all: bool,
    /// Show times with nanoseconds
    #[arg(long)]
    full_time: bool,
    /// Show inode numbers
    #[arg(short, long)]
    inode: bool,
    /// List subdirectories recursively, with full paths
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Show directories themselves instead of their entries
    #[arg(short, long, conflicts_with = "recursive")]
    directory: bool,
    /// Print one JSON object per entry
    #[arg(long)]
    json: bool,
}

impl LsArgs {
    /// Levels of names below each path that are listed. The size of a directory is the number of
    /// its names.
    fn levels(&self) -> Levels {
        if self.recursive {
            Levels::ALL
        } else if self.long || self.json {
            Levels(2)
        } else {
            Levels::NAMES
        }
    }
}

/// Runs the command.
pub fn run(args: &LsArgs) -> anyhow::Result<ExitCode> {
    let image = args.image.open(&Looks::at(&args.paths, args.levels()))?;
    let paths = image.expanded(image.paths_or_root(&args.paths))?;
    let mut lister = Lister {
        image: &image,
        args,
        output: Output::new(),
    };
    let mut problem_count = 0;
    for (index, path) in paths.iter().enumerate() {
        // As in ls(1): without `-l` and `-d`, a symlink given as an argument is followed.
        let follow = if args.long || args.directory {
            Follow::No
        } else {
            Follow::Yes
        };
        // Of a symlink to something else than a directory, the link itself is shown.
        let is_dir = |located: &Located| located.inode.kind == FileKind::Directory;
        let located = match image.locate(path, follow) {
            Ok(located) if follow == Follow::Yes && !is_dir(&located) => {
                image.locate(path, Follow::No)
            }
            located => located,
        };
        match located {
            Ok(located) => {
                if paths.len() > 1
                    && !args.json
                    && !args.recursive
                    && located.inode.kind == FileKind::Directory
                {
                    lister.heading(&located.path, index)?;
                }
                problem_count += lister.path(located)?;
            }
            Err(error) => {
                messages::error(&error.into());
                problem_count += 1;
            }
        }
    }
    lister.output.finish()?;
    Ok(exit_code(problem_count))
}

struct Lister<'a> {
    image: &'a Image,
    args: &'a LsArgs,
    output: Output,
}

impl Lister<'_> {
    fn heading(&mut self, path: &[u8], index: usize) -> io::Result<()> {
        if index > 0 {
            writeln!(self.output)?;
        }
        self.output
            .name(if path.is_empty() { b"/" } else { path })?;
        writeln!(self.output, ":")
    }

    /// Lists one path; returns the number of problems.
    fn path(&mut self, located: Located) -> anyhow::Result<u64> {
        let is_dir = located.inode.kind == FileKind::Directory;
        if self.args.recursive {
            return self.recursive(located);
        }
        if !is_dir || self.args.directory {
            let name = if located.path.is_empty() {
                b"."
            } else {
                located.path.as_slice()
            };
            self.entry(name, &located.path, &located.inode)?;
            return Ok(0);
        }
        let prefix = if located.path.is_empty() {
            Vec::new()
        } else {
            [&located.path[..], b"/"].concat()
        };
        let mut result = Ok(());
        self.image
            .read_dir(located.inode.ino, 0, &mut |_, name, inode| {
                result = self.entry(name, &[&prefix[..], name].concat(), inode);
                if result.is_ok() {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(())
                }
            })?;
        result?;
        Ok(0)
    }

    fn recursive(&mut self, located: Located) -> anyhow::Result<u64> {
        let mut walker = Walker::new(self.image, located);
        let mut problem_count = 0;
        loop {
            match walker.step() {
                Ok(None) => return Ok(problem_count),
                Ok(Some(Step::Leave)) => {}
                Ok(Some(Step::Enter(visit))) => {
                    let path = walker.path();
                    let name = if path.is_empty() { b"." } else { path };
                    self.entry(name, path, &visit.inode)?;
                }
                Err(error) => {
                    messages::error(&error.into());
                    problem_count += 1;
                }
            }
        }
    }

    fn entry(&mut self, name: &[u8], path: &[u8], inode: &Inode) -> anyhow::Result<()> {
        if self.args.json {
            let object = entry::json(self.image, path, inode)?;
            return Ok(self.output.json(&object.into())?);
        }
        if self.args.inode {
            write!(self.output, "{:>8} ", inode.ino)?;
        }
        if self.args.long {
            self.columns(inode)?;
        }
        self.output.name(name)?;
        if self.args.long && inode.kind == FileKind::Symlink {
            write!(self.output, " -> ")?;
            let target = self.image.read_link(inode)?;
            self.output.name(&target)?;
        }
        Ok(writeln!(self.output)?)
    }

    fn columns(&mut self, inode: &Inode) -> io::Result<()> {
        let mark = if inode.xattr_set.is_some() { '+' } else { ' ' };
        let time = inode.times.mtime;
        let time = if self.args.full_time {
            utc_nanoseconds(time)
        } else {
            utc_seconds(time)
        };
        let is_short = self.args.human_readable && inode.kind == FileKind::Regular;
        let size = if is_short {
            short_size(inode.size.0)
        } else {
            size_column(inode)
        };
        let (mode, nlink) = (mode_letters(inode), inode.nlink);
        let (uid, gid) = (inode.attributes.uid, inode.attributes.gid);
        write!(
            self.output,
            "{mode}{mark} {nlink:>3} {uid:>5} {gid:>5} {size:>11} {time} "
        )
    }
}

/// A size as ls(1) shows it with `-h`: rounded up, in powers of 1024.
fn short_size(len: u64) -> String {
    if len < 1024 {
        return len.to_string();
    }
    let (mut unit, mut at) = (1024_u64, 0);
    while at < 5 && len.div_ceil(unit) >= 1024 {
        unit <<= 10;
        at += 1;
    }
    let tenths = (u128::from(len) * 10).div_ceil(u128::from(unit));
    let letter = ['K', 'M', 'G', 'T', 'P', 'E'][at];
    if tenths < 100 {
        format!("{}.{}{letter}", tenths / 10, tenths % 10)
    } else {
        format!("{}{letter}", len.div_ceil(unit))
    }
}

#[cfg(test)]
mod tests {
    use super::short_size;

    /// Would catch: another number than `ls -lh` shows.
    #[test]
    fn short_sizes_are_those_of_ls() {
        for (len, text) in [
            (0, "0"),
            (1023, "1023"),
            (1024, "1.0K"),
            (1025, "1.1K"),
            (10_137, "9.9K"),
            (10_138, "10K"),
            (1_047_552, "1023K"),
            (1_047_553, "1.0M"),
            (123_456_789, "118M"),
            (u64::MAX, "16E"),
        ] {
            assert_eq!(short_size(len), text, "{len}");
        }
    }
}
