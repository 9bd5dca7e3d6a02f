//! `weald stat`: shows all attributes of an inode.

use crate::entry::{self, mode_letters};
use crate::help::{DONE_OR_PARTLY, Help};
use crate::json::Object;
use crate::looks::Looks;
use crate::messages;
use crate::open::SourceArgs;
use crate::output::Output;
use crate::status::exit_code;
use clap::{Args, ValueHint};
use std::ffi::OsString;
use std::ops::ControlFlow;
use std::process::ExitCode;
use weald_format::{Error, FileKind, Result};
use weald_image::{Image, Inode, PlacedRange, RangePlace};
use weald_vfs::{Follow, Located, kind_word, shown, shown_path, utc_nanoseconds};
use weald_volume::Levels;

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[],
    notes: &[
        "--extents says where the bytes of a file lie: from which offset of the image on the \
         stored bytes of their block stand, its codec, and from which byte of the decoded block on \
         the range begins. A hole has no bytes; a recipe makes bytes from other contents of the \
         image.",
    ],
    examples: &[
        ("Show one file", "weald stat forest.weald etc/passwd"),
        (
            "Show where its bytes lie",
            "weald stat --extents forest.weald etc/passwd",
        ),
        (
            "Show several paths as JSON",
            "weald stat --json forest.weald usr/bin usr/lib",
        ),
    ],
    exit_status: DONE_OR_PARTLY,
};

/// Show all attributes of paths in an image
#[derive(Args, Debug)]
#[command(after_help = HELP.short(), after_long_help = HELP.long())]
pub struct StatArgs {
    #[command(flatten)]
    image: SourceArgs,
    /// Paths in the image, or patterns of them
    #[arg(value_hint = ValueHint::Other)]
    paths: Vec<OsString>,
    /// Follow symlinks
    #[arg(short = 'L', long)]
    dereference: bool,
    /// List where the bytes of files lie in the image
    #[arg(long)]
    extents: bool,
    /// Print one JSON object per path
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &StatArgs) -> anyhow::Result<ExitCode> {
    let image = args.image.open(&Looks::at(&args.paths, Levels::NAMES))?;
    let mut output = Output::new();
    let mut problem_count = 0;
    let follow = if args.dereference {
        Follow::Yes
    } else {
        Follow::No
    };
    for path in &image.expanded(image.paths_or_place(&args.paths)?)? {
        let described = image.locate(path, follow).and_then(|located| {
            if args.json {
                json(&image, &located, args.extents).map(Described::Json)
            } else {
                text(&image, &located, args.extents).map(Described::Text)
            }
        });
        match described {
            Ok(Described::Json(object)) => output.json(&object.into())?,
            Ok(Described::Text(text)) => output.text(&text)?,
            Err(error) => {
                messages::error(&error.into());
                problem_count += 1;
            }
        }
    }
    output.finish()?;
    Ok(exit_code(problem_count))
}

/// Output for one path.
enum Described {
    Text(String),
    Json(Object),
}

fn json(image: &Image, located: &Located, has_extents: bool) -> Result<Object> {
    let inode = &located.inode;
    let mut object = entry::json(image, &located.path, inode)?;
    object.insert("xattrs".into(), entry::json_xattrs(image, inode)?);
    if inode.kind == FileKind::Regular {
        object.insert("hole_len".into(), hole_len(image, inode)?.into());
        if has_extents {
            let ranges: Vec<serde_json::Value> =
                placed(image, inode)?.iter().map(range_json).collect();
            object.insert("extents".into(), ranges.into());
        }
    }
    Ok(object)
}

fn text(image: &Image, located: &Located, has_extents: bool) -> Result<String> {
    let inode = &located.inode;
    let attributes = &inode.attributes;
    let mut lines = vec![
        ("path", shown_path(&located.path)),
        ("type", kind_word(inode.kind).to_owned()),
    ];
    match inode.kind {
        FileKind::Regular => {
            lines.push(("size", inode.size.to_string()));
            let hole_len = hole_len(image, inode)?;
            if hole_len > 0 {
                lines.push(("holes", hole_len.to_string()));
            }
        }
        FileKind::Directory => lines.push(("entries", inode.size.to_string())),
        FileKind::Symlink => lines.push(("target", shown(&image.read_link(inode)?))),
        FileKind::CharDevice | FileKind::BlockDevice => {
            lines.push((
                "device",
                format!(
                    "{}:{}",
                    attributes.rdev >> 32,
                    attributes.rdev & 0xffff_ffff
                ),
            ));
        }
        FileKind::Fifo | FileKind::Socket => {}
    }
    lines.push((
        "mode",
        format!("{:04o} {}", attributes.permissions, mode_letters(inode)),
    ));
    lines.push(("owner", format!("{}:{}", attributes.uid, attributes.gid)));
    lines.push(("inode", inode.ino.to_string()));
    lines.push(("names", inode.nlink.to_string()));
    let times = &inode.times;
    let known = [
        ("mtime", Some(times.mtime)),
        ("atime", times.atime),
        ("ctime", times.ctime),
        ("btime", times.btime),
    ];
    lines.extend(
        known
            .iter()
            .filter_map(|&(word, time)| Some((word, utc_nanoseconds(time?) + " UTC"))),
    );
    for xattr in image.xattrs(inode)?.iter() {
        lines.push((
            "xattr",
            format!(
                "{} = \"{}\"",
                shown(&xattr.name),
                xattr.value.escape_ascii()
            ),
        ));
    }
    if has_extents && inode.kind == FileKind::Regular {
        let ranges = placed(image, inode)?;
        lines.extend(ranges.iter().map(|range| ("extent", range_text(range))));
    }
    Ok(lines
        .iter()
        .map(|(word, value)| format!("{word:>7}: {value}\n"))
        .collect())
}

/// Ranges of a file that are listed; a file of a hostile image may have one for each byte. As JSON,
/// one takes about 1 KiB of memory.
const RANGES_MAX: usize = 1 << 17;

fn placed(image: &Image, inode: &Inode) -> Result<Vec<PlacedRange>> {
    let mut ranges = Vec::new();
    image.each_placed_range(inode, &mut |range| {
        ranges.push(range);
        if ranges.len() > RANGES_MAX {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    })?;
    if ranges.len() > RANGES_MAX {
        return Err(Error::limit(format!(
            "the file has more than {RANGES_MAX} extents"
        )));
    }
    Ok(ranges)
}

fn range_text(range: &PlacedRange) -> String {
    let place = match &range.place {
        RangePlace::Hole => "hole".to_owned(),
        RangePlace::Block { record, at } => format!(
            "{} bytes ({}) at {} of the image, of {} decoded from {at} on",
            record.stored_len,
            record.codec.name(),
            range.place.stored_at().unwrap_or_default(),
            record.raw_len
        ),
        RangePlace::Recipe { no, at } => format!("recipe {no}, from {at} on"),
    };
    let base = range
        .base
        .map_or(String::new(), |digest| format!(", base {digest}"));
    format!("{}+{}: {place}{base}", range.offset, range.len)
}

fn range_json(range: &PlacedRange) -> serde_json::Value {
    let mut object = Object::new();
    object.insert("offset".into(), range.offset.into());
    object.insert("len".into(), range.len.into());
    match &range.place {
        RangePlace::Hole => {
            object.insert("place".into(), "hole".into());
        }
        RangePlace::Block { record, at } => {
            object.insert("place".into(), "block".into());
            object.insert("stored_at".into(), range.place.stored_at().into());
            object.insert("stored_len".into(), record.stored_len.into());
            object.insert("codec".into(), record.codec.name().into());
            object.insert("block_len".into(), record.raw_len.into());
            object.insert("at".into(), (*at).into());
        }
        RangePlace::Recipe { no, at } => {
            object.insert("place".into(), "recipe".into());
            object.insert("recipe".into(), (*no).into());
            object.insert("at".into(), (*at).into());
        }
    }
    if let Some(digest) = range.base {
        object.insert("base".into(), digest.to_string().into());
    }
    object.into()
}

fn hole_len(image: &Image, inode: &Inode) -> Result<u64> {
    let mut hole_len = 0;
    image.runs(inode, 0, &mut |run| {
        hole_len += if run.is_hole { run.len } else { 0 };
        ControlFlow::Continue(())
    })?;
    Ok(hole_len)
}
