//! `weald find`: prints the paths that match conditions.

use crate::choice_args::RuleChoiceArgs;
use crate::entry;
use crate::help::{DONE_OR_PARTLY, Help};
use crate::looks::Looks;
use crate::open::{SourceArgs, thread_count};
use crate::output::Output;
use crate::rules::tell_idle;
use crate::{json, messages, parse, printf, status::exit_code};
use anyhow::anyhow;
use clap::{Args, ValueHint};
use std::ffi::OsString;
use std::io::Write;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use std::slice::from_ref;
use weald_format::{FileKind, Timestamp};
use weald_image::Image;
use weald_vfs::{Choice, SelectedWalk, search, search_walk};
use weald_vfs::{Comparison, Follow, Found, Hit, Permissions, Query, SearchOptions};
use weald_volume::Levels;

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[],
    notes: &[
        "An entry must meet all conditions; of several --name, --iname, --path, --type or \
         --size, it must meet one.",
        "In patterns, '*' and '?' stop at '/', '**' as a whole name matches any number of \
         directories, and [a-z] matches one character. Patterns of --path begin at the root of \
         the image.",
        "Names on a terminal are escaped: control characters and bytes that are not UTF-8 \
         become \\xNN. In a pipe or a file, names are written as they are. --print0 never \
         escapes.",
    ],
    examples: &[
        (
            "Find large shared libraries",
            "weald find forest.weald --name '*.so*' --type f --size +1M",
        ),
        (
            "Hand paths to another program",
            "weald find forest.weald usr --path 'usr/**/doc/*' --print0 | xargs -0 printf \
             '%s\\n'",
        ),
        (
            "List recent changes as JSON",
            "weald find forest.weald --newer 2024-06-01 --json",
        ),
        (
            "Print size and path of headers",
            "weald find forest.weald --name '*.h' --printf '%s %p\\n'",
        ),
        ("Count them", "weald find forest.weald --name '*.h' --count"),
    ],
    exit_status: DONE_OR_PARTLY,
};

/// Find paths in an image
#[derive(Args, Debug)]
#[command(after_help = HELP.short(), after_long_help = HELP.long())]
pub struct FindArgs {
    #[command(flatten)]
    image: SourceArgs,
    /// Directory to search (default: the root of the image)
    #[arg(default_value = "", hide_default_value = true, value_hint = ValueHint::Other)]
    path: OsString,
    #[command(flatten)]
    rules: RuleChoiceArgs,
    /// Name matches
    #[arg(long, value_name = "PATTERN", allow_hyphen_values = true)]
    name: Vec<OsString>,
    /// Name matches, ignoring case
    #[arg(long, value_name = "PATTERN", allow_hyphen_values = true)]
    iname: Vec<OsString>,
    /// Path matches, from the root of the image
    #[arg(long = "path", value_name = "PATTERN", allow_hyphen_values = true)]
    path_patterns: Vec<OsString>,
    /// Type: f regular file, d directory, l symlink, c character device, b block device, p FIFO, s
    /// socket; several are separated by commas
    #[arg(long = "type", value_name = "LETTER", value_delimiter = ',', value_parser = parse::kind)]
    kinds: Vec<FileKind>,
    /// Size of a regular file: more than (+), less than (-) or exactly this
    #[arg(
        long,
        value_name = "[+-]SIZE",
        allow_hyphen_values = true,
        value_parser = parse::comparison
    )]
    size: Vec<Comparison>,
    /// Modified after TIME: @SECONDS since 1970 or YYYY-MM-DD[ HH:MM[:SS]], UTC
    #[arg(long, value_name = "TIME", value_parser = parse::time)]
    newer: Option<Timestamp>,
    /// Modified before TIME
    #[arg(long, value_name = "TIME", value_parser = parse::time)]
    older: Option<Timestamp>,
    /// Permission bits in octal: exactly these, all of these (-) or any of these (/)
    #[arg(
        long,
        value_name = "[-/]MODE",
        allow_hyphen_values = true,
        value_parser = parse::permissions
    )]
    perm: Option<Permissions>,
    /// Owner
    #[arg(long, value_parser = parse::number::<u32>)]
    uid: Option<u32>,
    /// Group
    #[arg(long, value_parser = parse::number::<u32>)]
    gid: Option<u32>,
    /// Link count: more than (+), less than (-) or exactly this
    #[arg(
        long,
        value_name = "[+-]COUNT",
        allow_hyphen_values = true,
        value_parser = parse::comparison
    )]
    links: Option<Comparison>,
    /// Regular file or directory is empty
    #[arg(long)]
    empty: bool,
    /// Has extended attributes
    #[arg(long)]
    xattrs: bool,
    /// Minimum depth below the start
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    min_depth: usize,
    /// Maximum depth below the start (default: no limit)
    #[arg(long, value_name = "COUNT")]
    max_depth: Option<usize>,
    /// End each path with a zero byte instead of a newline
    #[arg(short = '0', long, conflicts_with = "json")]
    print0: bool,
    /// Print one JSON object per entry
    #[arg(long)]
    json: bool,
    /// Print the number of entries only
    #[arg(long, conflicts_with_all = ["json", "print0", "printf"])]
    count: bool,
    /// Print this for each entry: %p path, %f name, %h directory, %y type, %s size, %m mode in
    /// octal, %M mode in letters, %U owner, %G group, %n link count, %i inode number, %d depth, %l
    /// symlink target, %T@ mtime, %% a percent sign; escapes are \n, \t, \r, \0 and \\
    #[arg(
        long,
        value_name = "FORMAT",
        allow_hyphen_values = true,
        conflicts_with_all = ["json", "print0"]
    )]
    printf: Option<OsString>,
    /// Number of threads, 0 for one per CPU
    #[arg(long, value_name = "COUNT", default_value_t = 0, value_parser = parse::threads)]
    threads: usize,
}

/// Runs the command.
pub fn run(args: &FindArgs) -> anyhow::Result<ExitCode> {
    let query = query(args)?;
    let parse = |text: &OsString| printf::Format::parse(text.as_bytes());
    let format = args.printf.as_ref().map(parse).transpose();
    let format = format.map_err(|what| anyhow!("--printf: {what}"))?;
    // The size of a directory is the number of its names.
    let levels = args
        .max_depth
        .map_or(Levels::ALL, |depth| Levels(depth.saturating_add(1)));
    let image = args.image.open(&Looks::at(from_ref(&args.path), levels))?;
    let start = image.locate(&args.path, Follow::Yes)?;
    let options = SearchOptions {
        depth_max: args.max_depth,
        is_counted: args.count,
        thread_count: thread_count(args.threads),
    };
    let mut output = Output::new();
    let words = Words {
        args,
        format,
        is_terminal: output.is_terminal(),
        image: &image,
    };
    let write = |hit: Hit<'_>, out: &mut Vec<u8>| words.write(hit, out);
    let (mut count, mut problem_count, mut result) = (0, 0, Ok(()));
    let choice = Choice {
        depth_max: args.max_depth,
        ..args.rules.choice()?
    };
    let mut take = |found| {
        match found {
            Found::Bytes(bytes) => result = output.raw().write_all(&bytes).map_err(Into::into),
            Found::Count(found) => count = u64::saturating_add(count, found),
            Found::Problem(error) => {
                messages::error(&error.into());
                problem_count += 1;
            }
            Found::Failed(error) => result = Err(error),
        }
        match result {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    };
    if choice.filter.is_empty() {
        search(&image, start, &query, options, &write, &mut take);
    } else {
        let walk = SelectedWalk::new(&image, start, &choice);
        search_walk(walk, &query, options.is_counted, &write, &mut take);
        tell_idle(&choice.filter);
    }
    result?;
    if args.count {
        writeln!(output, "{count}")?;
    }
    output.finish()?;
    Ok(exit_code(problem_count))
}

/// Prints an entry as the options require.
struct Words<'a> {
    args: &'a FindArgs,
    format: Option<printf::Format>,
    is_terminal: bool,
    image: &'a Image,
}

impl Words<'_> {
    fn write(&self, hit: Hit<'_>, out: &mut Vec<u8>) -> anyhow::Result<()> {
        let Hit { path, inode, depth } = hit;
        if self.args.json {
            let object = entry::json(self.image, path, inode)?;
            return Ok(json::write_line(out, &object.into())?);
        }
        let path = if path.is_empty() { b"." } else { path };
        if let Some(format) = &self.format {
            let entry = printf::Entry { path, inode, depth };
            return format.print(self.image, &entry, self.is_terminal, out);
        }
        if self.is_terminal && !self.args.print0 {
            out.extend_from_slice(weald_vfs::shown(path).as_bytes())
        } else {
            out.extend_from_slice(path)
        }
        out.push(if self.args.print0 { b'\0' } else { b'\n' });
        Ok(())
    }
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
