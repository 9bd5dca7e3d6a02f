//! `weald store salvage`.

use crate::help::Help;
use crate::json::{self, Object, put_name};
use crate::messages::detailed;
use crate::open_store::{StoreDir, open};
use crate::output::Output;
use crate::progress::{bytes, count};
use crate::status::exit_code;
use crate::writer_name::writer_name;
use clap::Args;
use serde_json::Value;
use std::process::ExitCode;
use weald_format::Timestamp;
use weald_store::{Loss, SalvageOptions, Salvaged};
use weald_vfs::{shown_path, utc_seconds};
use weald_volume::salvage_store;

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[],
    notes: &[
        "Salvage is for a store whose metadata file is damaged, lost or older than its images, or \
         whose segments are damaged or missing. It reads the image maps and all blocks that images \
         and volumes have, and lists what cannot be read, by path. The old metadata file stays as \
         meta.old. An image of which blocks are lost stays, and its other files can be read. An \
         image whose map is damaged is set aside as images/.NAME.damaged.",
        "A store has its metadata twice: in the file meta, and in the journal. If one of them is \
         whole, salvage makes the other again, and nothing is lost. Only if both are damaged, rows \
         are lost.",
        "Volumes then need the rows of the old file. Each row that can be read is taken over, and \
         what is lost of a volume is listed. What no name leads to any more is in the directory \
         lost+found of the volume, under its inode number: files with their content, directories \
         with all that is below them. Lost attributes are those of a new file of root. Of a volume \
         whose own row is lost, nothing can be read; its blocks stay until weald store gc, its log \
         stays as volumes/.NUMBER.log.damaged. If no row of any volume can be read, salvage \
         changes nothing and says so.",
        "Reading all data takes about as long as a copy of the store. --no-data reads headers only \
         and finds missing blocks, but not damaged ones.",
        "A block that is lost keeps its place: when its segment file is back, its files can be \
         read again.",
    ],
    examples: &[(
        "Rebuild the metadata of a store",
        "weald store salvage /srv/store",
    )],
    exit_status: &[
        ("0", "All images and volumes are complete."),
        ("1", "Something of at least one image or volume is missing."),
        ("2", "The command failed; standard error says why."),
    ],
};

/// Rebuild the metadata of a store from its segments and image maps
#[derive(Args, Debug)]
#[command(after_help = HELP.short(), after_long_help = HELP.long())]
pub(super) struct SalvageArgs {
    #[command(flatten)]
    location: StoreDir,
    /// Read the headers of blocks only, not their data
    #[arg(long)]
    no_data: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &SalvageArgs) -> anyhow::Result<ExitCode> {
    let store = open(&args.location.store)?;
    let options = SalvageOptions {
        writer_name: writer_name("store salvage"),
        skips_data: args.no_data,
    };
    let salvaged = salvage_store(&store, &options)?;
    let mut output = Output::new();
    if args.json {
        output.json(&json_of(&salvaged, !args.no_data).into())?
    } else {
        output.text(&text_of(&salvaged, !args.no_data))?
    }
    output.finish()?;
    Ok(exit_code(salvaged.damaged_count() as u64))
}

fn loss_object(loss: &Loss) -> Value {
    let mut object = Object::new();
    if let Some(path) = &loss.path {
        put_name(&mut object, "path", path);
    }
    object.insert("what".into(), loss.what.as_str().into());
    if !loss.why.is_empty() {
        object.insert("why".into(), loss.why.as_str().into());
    }
    object.into()
}

fn lost(losses: &[Loss]) -> Vec<Value> {
    losses.iter().map(loss_object).collect()
}

fn json_of(salvaged: &Salvaged, reads_data: bool) -> Object {
    let numbers = [
        ("block_count", salvaged.block_count),
        ("lost_block_count", salvaged.lost_block_count),
        ("segment_count", salvaged.segment_count),
        ("verified_len", salvaged.verified_len),
    ];
    let mut object = json::numbers(&numbers);
    let restored = salvaged.restored_commit.map(|commit| commit.0);
    object.insert("restored_commit".into(), restored.into());
    object.insert("images".into(), salvaged.images.clone().into());
    let damaged = salvaged.damaged.iter().map(|image| {
        let (name, what) = (&image.name, &image.what);
        serde_json::json!({ "name": name, "what": what, "lost": lost(&image.losses) })
    });
    object.insert("damaged".into(), damaged.collect());
    let set_aside = salvaged.set_aside.iter();
    let set_aside = set_aside.map(|(name, what)| serde_json::json!({ "name": name, "what": what }));
    object.insert("set_aside".into(), set_aside.collect());
    let damaged = salvaged.damaged_volumes.iter().map(|volume| {
        let losses: Vec<String> = volume.losses.iter().map(Loss::to_string).collect();
        serde_json::json!({
            "name": volume.name,
            "losses": losses,
            "lost": lost(&volume.losses),
            "adopted_count": volume.adopted_count,
            "last_commit": volume.last_commit.map(|last| {
                serde_json::json!({ "number": last.commit.0, "time": shown_time(last.time) })
            }),
        })
    });
    object.insert("volumes".into(), salvaged.volumes.clone().into());
    object.insert("damaged_volumes".into(), damaged.collect());
    object.insert("lost_volumes".into(), salvaged.lost_volumes.clone().into());
    object.insert("data_read".into(), reads_data.into());
    object
}

/// Nanoseconds since 1970 in words.
fn shown_time(time: i128) -> String {
    utc_seconds(Timestamp {
        seconds: i64::try_from(time.div_euclid(1_000_000_000)).unwrap_or(0),
        nanoseconds: 0,
    })
}

/// A loss as one line.
fn line(loss: &Loss) -> String {
    let why = match loss.why.as_str() {
        "" => String::new(),
        why => format!(": {}", detailed(why)),
    };
    let what = detailed(&loss.what);
    match &loss.path {
        Some(path) => format!("{}: {what}{why}", shown_path(path)),
        None => format!("{what}{why}"),
    }
}

fn text_of(salvaged: &Salvaged, reads_data: bool) -> String {
    let mut lines = Vec::new();
    if let Some(commit) = salvaged.restored_commit {
        lines.push(format!(
            "the metadata was made again from the journal, as of its commit {commit}"
        ));
    }
    for image in &salvaged.damaged {
        lines.push(format!(
            "damaged: {}: {}",
            image.name,
            detailed(&image.what)
        ));
        let losses = image.losses.iter();
        lines.extend(losses.map(|loss| format!("damaged: {}: lost: {}", image.name, line(loss))));
    }
    for (name, what) in &salvaged.set_aside {
        let what = detailed(what);
        lines.push(format!(
            "damaged: {name}: set aside as images/.{name}.damaged: {what}"
        ));
    }
    for volume in &salvaged.damaged_volumes {
        let name = &volume.name;
        let losses = volume.losses.iter();
        lines.extend(losses.map(|loss| format!("damaged: volume {name}: lost: {}", line(loss))));
        if let Some(last) = volume.last_commit {
            lines.push(format!(
                "volume {name}: what was changed after its commit {} of {} is lost",
                last.commit,
                shown_time(last.time)
            ));
        }
        if volume.adopted_count > 0 {
            lines.push(format!(
                "volume {name}: {} files and directories without a name are in lost+found",
                count(volume.adopted_count)
            ));
        }
    }
    for name in &salvaged.lost_volumes {
        lines.push(format!(
            "damaged: volume {name}: the tables have no row of it that can be read"
        ));
    }
    let word = if reads_data {
        "are complete"
    } else {
        "have all their blocks (which were not read)"
    };
    let lost_blocks = match salvaged.lost_block_count {
        0 => String::new(),
        lost => format!(", {} of which cannot be read", count(lost)),
    };
    let verified = if reads_data {
        format!("; {} verified", bytes(salvaged.verified_len))
    } else {
        String::new()
    };
    let image_count = salvaged.damaged.len() + salvaged.set_aside.len();
    let volume_count = salvaged.damaged_volumes.len() + salvaged.lost_volumes.len();
    lines.push(format!(
        "{} images {word}, {} are damaged; {} volumes {word}, {} are damaged; {} blocks in {} \
         segment files{lost_blocks}{verified}\n",
        count(salvaged.images.len() as u64),
        count(image_count as u64),
        count(salvaged.volumes.len() as u64),
        count(volume_count as u64),
        count(salvaged.block_count),
        count(salvaged.segment_count),
    ));
    lines.join("\n")
}
