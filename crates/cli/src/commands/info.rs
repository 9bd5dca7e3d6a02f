//! `weald info`: shows properties of an image and where its bytes go.

mod html;
mod markup;
mod stages;
mod treemap;

use crate::help::{DONE_OR_FAILED, Help};
use crate::json::{self, Object};
use crate::open::{ImageArgs, keep_private, refuse_stored_target};
use crate::output::Output;
use crate::progress::{bytes, count};
use anyhow::{anyhow, bail};
use clap::{Args, ValueHint};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use weald_format::ErrorKind;
use weald_format::container::RecordType;
use weald_format::directory::Base;
use weald_format::label::Label;
use weald_image::{RecipeShare, SectionInfo, Share, Summary};
use weald_io::{OutputFile, TargetKind};
use weald_vfs::{ReadingCost, Spread, reading_cost, shown};

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[],
    notes: &[
        "The image digest was computed when the image was opened, and authenticates all of \
         it. The tree digest is what the image claims: weald check compares it with the tree.",
        "The page of --html needs no script and loads nothing. Files that are equal to others take \
         bytes where their first name is, and a block with several files is divided among them. \
         Small entries are counted together, so that a page has a few MB at most.",
    ],
    examples: &[
        (
            "Show digests, counts and sections",
            "weald info forest.weald",
        ),
        (
            "Show what each stage of the build saved",
            "weald info --stages forest.weald",
        ),
        (
            "Show how much data small reads decode",
            "weald info --reading forest.weald",
        ),
        (
            "Write a page for a browser: bytes by directory, generation and codec",
            "weald info --html forest.html forest.weald",
        ),
        (
            "Print the image digest",
            "weald info --json forest.weald | jq -r .image_digest",
        ),
    ],
    exit_status: DONE_OR_FAILED,
};

/// Show digests, counts and the use of space in an image
#[derive(Args, Debug)]
#[command(after_help = HELP.short(), after_long_help = HELP.long())]
pub struct InfoArgs {
    #[command(flatten)]
    image: ImageArgs,
    /// Show how many bytes a read decodes with an empty cache: 4 KiB at random, a whole file, all
    /// files of a directory
    #[arg(long)]
    reading: bool,
    /// Show what each stage saved: sharing, repeats, recipes, codecs
    #[arg(long)]
    stages: bool,
    /// Write an HTML page with the bytes by directory, generation and codec; - is standard output
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath,
          conflicts_with_all = ["reading", "stages", "json"])]
    html: Option<PathBuf>,
    /// Replace the page if it exists
    #[arg(short, long, requires = "html")]
    force: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &InfoArgs) -> anyhow::Result<ExitCode> {
    if let Some(target) = &args.html {
        return write_page(args, target);
    }
    let image = args.image.open()?;
    let summary = image.summary();
    let (bases, label) = (&image.directory().bases, &image.directory().label);
    let sections = image.sections()?;
    let stages = args.stages.then(|| image.space_usage()).transpose()?;
    let made = image.recipe_shares()?;
    let reading = args.reading.then(|| reading_cost(&image)).transpose()?;
    let mut output = Output::new();
    if args.json {
        let mut object = json(summary, bases, &sections);
        json::put_label(&mut object, label);
        json::put_remarks(&mut object, label);
        if let Some(stages) = &stages {
            object.insert("stages".into(), stages::json(stages));
        }
        object.insert("made".into(), made_json(&made));
        if let Some(cost) = &reading {
            object.insert("reading".into(), reading_json(cost));
        }
        output.json(&object.into())?;
    } else {
        output.text(&text(summary, label, bases, &sections))?;
        if let Some(stages) = &stages {
            output.text(&stages::text(stages))?;
        }
        output.text(&made_text(&made))?;
        if let Some(cost) = &reading {
            output.text(&reading_text(cost))?;
        }
    }
    output.finish()?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the page of `--html`: complete, or not at all.
fn write_page(args: &InfoArgs, path: &Path) -> anyhow::Result<ExitCode> {
    refuse_stored_target(path)?;
    if !args.force {
        let refused = weald_io::refuse_existing(path);
        refused.map_err(|error| anyhow!("{error}; --force replaces it"))?;
    }
    let image = args.image.open()?;
    keep_private(&args.image.image);
    let page = html::page(&image, args.image.image.as_os_str().as_bytes())?;
    let mut target = OutputFile::create(path, TargetKind::File)?;
    target.write_all(page.as_bytes())?;
    match target.commit(args.force) {
        Err(error) if error.kind() == ErrorKind::Busy => {
            bail!("{error}; --force replaces it")
        }
        other => other?,
    }
    Ok(ExitCode::SUCCESS)
}

/// One line of the table: the part of a section that one codec has encoded.
struct Row<'a> {
    section: &'a SectionInfo,
    codec: &'static str,
    share: Share,
}

fn rows(sections: &[SectionInfo]) -> Vec<Row<'_>> {
    let mut rows = Vec::new();
    for section in sections {
        let shares = section.by_codec.iter();
        rows.extend(shares.map(|(codec, share)| Row {
            section,
            codec: codec.name(),
            share: *share,
        }));
    }
    rows
}

fn section_name(section: &SectionInfo) -> String {
    let name = section.record_type.name();
    match section.stream {
        Some((number, category)) => format!("{name} {number} ({})", category.name()),
        None => name.to_owned(),
    }
}

/// Stored bytes of all sections with a wanted type, except streams of data.
fn stored_len(sections: &[SectionInfo], is_wanted: fn(RecordType) -> bool) -> u64 {
    let wanted = sections
        .iter()
        .filter(|section| section.stream.is_none() && is_wanted(section.record_type));
    wanted.map(|section| section.total().stored_len).sum()
}

/// Stored bytes of extents and recipes.
fn extents_len(sections: &[SectionInfo]) -> u64 {
    stored_len(sections, |t| {
        matches!(t, RecordType::Extents | RecordType::Recipes)
    })
}

/// Stored bytes of names, attributes, content lengths, index and directory.
fn tree_len(sections: &[SectionInfo]) -> u64 {
    stored_len(sections, |t| {
        !matches!(
            t,
            RecordType::Extents | RecordType::Recipes | RecordType::Fsverity
        )
    })
}

fn has_fsverity(sections: &[SectionInfo]) -> bool {
    let mut types = sections.iter().map(|section| section.record_type);
    types.any(|record_type| record_type == RecordType::Fsverity)
}

fn text(summary: &Summary, label: &Label, bases: &[Base], sections: &[SectionInfo]) -> String {
    let each = |len: u64| len as f64 / summary.name_count.max(1) as f64;
    let (tree, extents) = (tree_len(sections), extents_len(sections));
    let lines = [
        ("image digest", summary.image_digest.to_string()),
        ("tree digest", format!("{} (claimed)", summary.tree_digest)),
        ("generation", summary.generation.to_string()),
        (
            "image",
            format!(
                "{} ({} bytes)",
                bytes(summary.image_len),
                count(summary.image_len)
            ),
        ),
        ("names", count(summary.name_count)),
        ("entries stored", count(summary.entry_count)),
        ("directories stored", count(summary.template_count)),
        (
            "contents stored",
            format!(
                "{}, {}",
                count(summary.content_count),
                bytes(summary.content_len)
            ),
        ),
        (
            "fs-verity digests",
            if has_fsverity(sections) {
                "kept".to_owned()
            } else {
                "not kept".to_owned()
            },
        ),
        ("largest block", bytes(summary.block_len_max)),
        (
            "tree",
            format!("{}, {:.2} bytes a name", bytes(tree), each(tree)),
        ),
        (
            "extents",
            format!("{}, {:.2} bytes a name", bytes(extents), each(extents)),
        ),
    ];
    let mut text: String = lines
        .iter()
        .map(|(word, value)| format!("{word:<20}{value}\n"))
        .collect();
    if !label.is_empty() {
        let line = shown(label.as_str().as_bytes());
        text.push_str(&format!("{:<20}{line}\n", "label"));
    }
    for (word, lines) in [
        ("comment", label.comment().lines().collect::<Vec<_>>()),
        ("made by", label.command_lines().collect()),
    ] {
        for (no, line) in lines.into_iter().enumerate() {
            let word = if no == 0 { word } else { "" };
            text.push_str(&format!("{word:<20}{}\n", shown(line.as_bytes())));
        }
    }
    for base in bases {
        let name = shown(&base.name);
        text.push_str(&format!(
            "{:<20}{name}, image digest {}\n",
            "base", base.image_digest
        ));
    }
    text.push_str(&section_table(summary.image_len, sections));
    text
}

/// A table of the sections of an image of `image_len` bytes.
fn section_table(image_len: u64, sections: &[SectionInfo]) -> String {
    let mut text = format!(
        "\n{:<28}{:<6}{:>12}{:>12}{:>14}{:>14}{:>8}\n",
        "section", "codec", "items", "records", "raw bytes", "stored bytes", "share"
    );
    for Row {
        section,
        codec,
        share,
    } in rows(sections)
    {
        let part = 100.0 * share.stored_len as f64 / image_len.max(1) as f64;
        text.push_str(&format!(
            "{:<28}{codec:<6}{:>12}{:>12}{:>14}{:>14}{part:>7.1}%\n",
            section_name(section),
            section.item_count,
            share.record_count,
            share.raw_len,
            share.stored_len
        ));
    }
    text
}

fn json(summary: &Summary, bases: &[Base], sections: &[SectionInfo]) -> Object {
    let numbers = [
        ("generation", summary.generation),
        ("image_len", summary.image_len),
        ("name_count", summary.name_count),
        ("entry_count", summary.entry_count),
        ("template_count", summary.template_count),
        ("content_count", summary.content_count),
        ("content_len", summary.content_len),
        ("block_len_max", summary.block_len_max),
        ("tree_len", tree_len(sections)),
        ("extents_len", extents_len(sections)),
    ];
    let mut object = json::numbers(&numbers);
    object.insert(
        "image_digest".into(),
        summary.image_digest.to_string().into(),
    );
    object.insert("tree_digest".into(), summary.tree_digest.to_string().into());
    object.insert("has_fsverity".into(), has_fsverity(sections).into());
    let bases = bases.iter().map(|base| {
        json!({
            "name": shown(&base.name),
            "image_digest": base.image_digest.to_string(),
        })
    });
    object.insert("bases".into(), bases.collect::<Vec<_>>().into());
    let sections = rows(sections).into_iter().map(
        |Row {
             section,
             codec,
             share,
         }| {
            json!({
                "section": section.record_type.name(),
                "stream": section.stream.map(|(number, _)| number),
                "category": section.stream.map(|(_, category)| category.name()),
                "codec": codec,
                "item_count": section.item_count,
                "record_count": share.record_count,
                "raw_len": share.raw_len,
                "stored_len": share.stored_len,
            })
        },
    );
    object.insert("sections".into(), sections.collect::<Value>());
    object
}

fn made_text(made: &BTreeMap<&str, RecipeShare>) -> String {
    if made.is_empty() {
        return String::new();
    }
    let mut text = format!(
        "\n{:<28}{:>12}{:>14}{:>14}\n",
        "made by recipes", "recipes", "made bytes", "of bytes"
    );
    for (name, share) in made {
        text.push_str(&format!(
            "{name:<28}{:>12}{:>14}{:>14}\n",
            share.recipe_count, share.made_len, share.plain_len
        ));
    }
    text
}

fn made_json(made: &BTreeMap<&str, RecipeShare>) -> Value {
    let rows = made.iter().map(|(name, share)| {
        json!({
            "method": name,
            "recipe_count": share.recipe_count,
            "made_len": share.made_len,
            "plain_len": share.plain_len,
        })
    });
    rows.collect()
}

/// Kinds of reads, each with its name in the text and in JSON.
fn reading_rows(cost: &ReadingCost) -> [(&'static str, &'static str, Spread); 3] {
    [
        ("4 KiB anywhere", "small_read", cost.small_read),
        ("a file", "file", cost.file),
        ("a directory's files", "directory", cost.directory),
    ]
}

fn reading_text(cost: &ReadingCost) -> String {
    let mut text = format!(
        "\n{:<28}{:>12}{:>12}{:>12}{:>12}{:>12}\n",
        "decoded to read", "samples", "mean", "median", "99%", "most"
    );
    for (word, _, spread) in reading_rows(cost) {
        text.push_str(&format!(
            "{word:<28}{:>12}{:>12}{:>12}{:>12}{:>12}\n",
            count(spread.count),
            bytes(spread.mean),
            bytes(spread.median),
            bytes(spread.percentile_99),
            bytes(spread.max)
        ));
    }
    text
}

fn reading_json(cost: &ReadingCost) -> Value {
    let spread = |s: Spread| {
        json!({
            "count": s.count,
            "mean": s.mean,
            "median": s.median,
            "percentile_99": s.percentile_99,
            "max": s.max,
        })
    };
    let rows = reading_rows(cost).into_iter();
    rows.map(|(_, key, s)| (key.to_owned(), spread(s)))
        .collect::<Object>()
        .into()
}
