//! `weald find`: paths by what is known of them.

use crate::entry;
use crate::open::{ImageArgs, locate};
use crate::output::Output;
use crate::{commands::exit_code, messages, parse};
use clap::{Args, ValueHint};
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;
use weald_format::{FileKind, Timestamp};
use weald_image::Image;
use weald_vfs::{Comparison, Follow, Permissions, Query, Step, Visit, Walker};

const EXAMPLES: &str = "\
Examples:
  weald find forest.weald --name '*.so*' --type f --size +1M
  weald find forest.weald usr --path 'usr/**/doc/*' --print0 | xargs -0 ...
  weald find forest.weald --newer 2024-06-01 --json

All conditions must hold; of several --name (--path, --type) one must. Patterns: '*' and '?' stop at '/', '**' as a
whole name stands for any number of directories, [a-z] for one character. --path is matched from the image's root.";

/// Search for paths
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct FindArgs {
    #[command(flatten)]
    image: ImageArgs,
    /// Where to start
    #[arg(default_value = "", hide_default_value = true, value_hint = ValueHint::Other)]
    path: OsString,
    /// The name matches
    #[arg(long, value_name = "PATTERN")]
    name: Vec<OsString>,
    /// The name matches, whatever the case of its letters
    #[arg(long, value_name = "PATTERN")]
    iname: Vec<OsString>,
    /// The path from the root of the image matches
    #[arg(long = "path", value_name = "PATTERN")]
    path_patterns: Vec<OsString>,
    /// Type: f regular file, d directory, l symlink, c and b devices, p fifo, s socket
    #[arg(long = "type", value_name = "LETTER", value_delimiter = ',', value_parser = parse::kind)]
    kinds: Vec<FileKind>,
    /// Bytes of a regular file: more than (+), less than (-) or exactly
    #[arg(long, value_name = "[+-]SIZE", allow_hyphen_values = true, value_parser = parse::comparison)]
    size: Vec<Comparison>,
    /// Modified after TIME (@SECONDS or YYYY-MM-DD[ HH:MM[:SS]], UTC)
    #[arg(long, value_name = "TIME", value_parser = parse::time)]
    newer: Option<Timestamp>,
    /// Modified before TIME
    #[arg(long, value_name = "TIME", value_parser = parse::time)]
    older: Option<Timestamp>,
    /// Permission bits, octal: exactly, all of (-) or any of (/)
    #[arg(long, value_name = "[-/]MODE", allow_hyphen_values = true, value_parser = parse::permissions)]
    perm: Option<Permissions>,
    /// Owner's number
    #[arg(long)]
    uid: Option<u32>,
    /// Group's number
    #[arg(long)]
    gid: Option<u32>,
    /// Number of names: more than (+), less than (-) or exactly
    #[arg(long, value_name = "[+-]COUNT", allow_hyphen_values = true, value_parser = parse::comparison)]
    links: Option<Comparison>,
    /// Empty regular files and directories
    #[arg(long)]
    empty: bool,
    /// Inodes with extended attributes
    #[arg(long)]
    xattrs: bool,
    /// Least depth below where the search starts
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    min_depth: usize,
    /// Greatest depth below where the search starts
    #[arg(long, value_name = "COUNT")]
    max_depth: Option<usize>,
    /// End each path with NUL instead of a newline
    #[arg(short = '0', long, conflicts_with = "json")]
    print0: bool,
    /// Print one JSON object for each entry
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &FindArgs) -> anyhow::Result<ExitCode> {
    let query = query(args)?;
    let image = args.image.open()?;
    let start = locate(&image, &args.path, Follow::Yes)?;
    let mut walker = Walker::new(&image, start);
    let mut output = Output::new();
    let mut problem_count = 0;
    loop {
        match walker.step() {
            Ok(None) => break,
            Ok(Some(Step::Leave)) => {}
            Ok(Some(Step::Enter(visit))) => {
                if query.wants(walker.path(), &visit.name, &visit.inode, visit.depth) {
                    print(args, &image, walker.path(), &visit, &mut output)?;
                }
                let is_deep = args
                    .max_depth
                    .is_some_and(|depth_max| visit.depth >= depth_max);
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
    output.finish()?;
    Ok(exit_code(problem_count))
}

fn print(
    args: &FindArgs,
    image: &Image,
    path: &[u8],
    visit: &Visit,
    output: &mut Output,
) -> anyhow::Result<()> {
    if args.json {
        let object = entry::json(image, path, &visit.inode)?;
        return Ok(output.json(&object.into())?);
    }
    let path = if path.is_empty() { b"." } else { path };
    if args.print0 {
        output.write_all(path)?;
        return Ok(output.write_all(b"\0")?);
    }
    Ok(output.name_line(path)?)
}

fn query(args: &FindArgs) -> weald_format::Result<Query> {
    let exact = args.name.iter().map(|pattern| parse::glob(pattern));
    let caseless = args
        .iname
        .iter()
        .map(|pattern| Ok(parse::glob(pattern)?.caseless()));
    Ok(Query {
        names: exact.chain(caseless).collect::<Result<_, _>>()?,
        paths: args
            .path_patterns
            .iter()
            .map(|pattern| parse::path_glob(pattern))
            .collect::<Result<_, _>>()?,
        kinds: args.kinds.clone(),
        sizes: args.size.clone(),
        newer_than: args.newer,
        older_than: args.older,
        permissions: args.perm,
        uid: args.uid,
        gid: args.gid,
        links: args.links,
        is_empty: args.empty,
        has_xattrs: args.xattrs,
        depth_min: args.min_depth,
    })
}
