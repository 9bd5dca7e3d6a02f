//! `weald store ls`, `info` and `check`.

use super::views;
use crate::findings::{put_finding, shown_finding};
use crate::help::Help;
use crate::json::{self, Object, hex};
use crate::messages;
use crate::open_store::{StoreDir, open};
use crate::output::Output;
use crate::progress::{bytes, count, verdict};
use crate::status::exit_code;
use crate::version_order::version_order;
use crate::writer_name::writer_name;
use clap::Args;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::ExitCode;
use weald_format::label::Label;
use weald_format::store::SEGMENT_SUPERBLOCK_LEN;
use weald_format::{ByteLen, Error, Timestamp};
use weald_image::{Image, ImageStart, OpenOptions};
use weald_store::{ImageInfo, Store, StoreInfo};
use weald_vfs::utc_seconds;
use weald_views::kernel::Usage;
use weald_volume::{CheckOptions, Finding, StoreReport, check_store};

/// Exit status of commands that show images.
const DONE_OR_DAMAGED: &[(&str, &str)] = &[
    ("0", "The command did its work."),
    (
        "1",
        "The command did its work, except for damaged images; standard error names each.",
    ),
    ("2", "The command failed; standard error says why."),
];

/// Sections of the help.
pub const LS_HELP: Help = Help {
    lists: &[],
    notes: &[
        "Columns: bytes of the image as a file; bytes that no other image of the store shares, \
         which removing it would return; when it came into the store, in UTC; tree digest; name; \
         label, if the image has one. The order is that of names, with numbers in them as \
         numbers. A volume has the word volume in place of the digest; weald volume stat shows \
         its space. The tree digest is what the image claims: weald store import and weald check \
         compare it with the tree.",
    ],
    examples: &[
        ("List what a store has", "weald store ls /srv/store"),
        (
            "Print their names",
            "weald store ls --json /srv/store | jq -r .name",
        ),
    ],
    exit_status: DONE_OR_DAMAGED,
};

/// List the images and volumes of a store
#[derive(Args, Debug)]
#[command(after_help = LS_HELP.short(), after_long_help = LS_HELP.long())]
pub(super) struct LsArgs {
    #[command(flatten)]
    location: StoreDir,
    /// Print one JSON object per image and per volume
    #[arg(long)]
    json: bool,
}

pub(super) fn ls(args: &LsArgs) -> anyhow::Result<ExitCode> {
    let store = open(&args.location.store)?;
    let mut damaged = Vec::new();
    let (_, mut images) = store.info(&mut |error| damaged.push(error))?;
    images.sort_by(|a, b| version_order(&a.name, &b.name));
    let mut output = Output::new();
    for image in &images {
        if args.json {
            output.json(&json(image, &label_of(&store, &image.name)).into())?;
            continue;
        }
        let (len, own) = (bytes(image.image_len), bytes(image.own_len));
        let added = image.added.map(time_of).map(utc_seconds);
        let added = added.as_deref().unwrap_or("-");
        let digest = image.tree_digest;
        write!(output, "{len:>12}  {own:>12}  {added:<19}  {digest}  ")?;
        output.name(image.name.as_bytes())?;
        let label = label_of(&store, &image.name);
        if !label.is_empty() {
            write!(output, "  ")?;
            output.name(label.as_str().as_bytes())?;
        }
        writeln!(output)?;
    }
    let mut volumes = store.volume_names()?;
    volumes.sort_by(|a, b| version_order(a, b));
    for volume in volumes {
        if args.json {
            let mut object = Object::new();
            object.insert("name".into(), volume.as_str().into());
            object.insert("is_volume".into(), true.into());
            output.json(&object.into())?;
            continue;
        }
        write!(
            output,
            "{:>12}  {:>12}  {:<19}  {:<64}  ",
            "-", "-", "-", "volume"
        )?;
        output.name(volume.as_bytes())?;
        writeln!(output)?;
    }
    output.finish()?;
    Ok(report_damaged(damaged))
}

/// A time in nanoseconds since 1970.
fn time_of(nanoseconds: i64) -> Timestamp {
    Timestamp {
        seconds: nanoseconds.div_euclid(1_000_000_000),
        nanoseconds: nanoseconds.rem_euclid(1_000_000_000) as u32,
    }
}

/// Names the images that could not be shown.
fn report_damaged(damaged: Vec<Error>) -> ExitCode {
    let code = exit_code(damaged.len() as u64);
    for error in damaged {
        messages::error(&error.into());
    }
    code
}

/// The label of the last generation of an image. One that cannot be opened, for example because a
/// base image is missing, has none here.
fn label_of(store: &Store, name: &str) -> Label {
    let options = OpenOptions {
        cache_len: ByteLen(0),
        store: Some(store.clone()),
        ..OpenOptions::default()
    };
    let opened = Image::open_stored(store.clone(), name, ImageStart::default(), &options);
    let opened = opened.inspect_err(|error| log::info!("{name}: {error}"));
    opened.map_or_else(
        |_| Label::default(),
        |image| image.directory().label.clone(),
    )
}

fn json(image: &ImageInfo, label: &Label) -> Object {
    let mut object = Object::new();
    object.insert("name".into(), image.name.as_str().into());
    object.insert("image_len".into(), image.image_len.into());
    object.insert("own_len".into(), image.own_len.into());
    object.insert("block_count".into(), image.block_count.into());
    if let Some(added) = image.added {
        json::put_time(&mut object, "added", time_of(added));
    }
    object.insert("image_digest".into(), image.image_digest.to_string().into());
    object.insert("tree_digest".into(), image.tree_digest.to_string().into());
    json::put_label(&mut object, label);
    object
}

/// Sections of the help.
pub const INFO_HELP: Help = Help {
    lists: &[],
    notes: &[
        "Views are what mounts with --kernel keep in the store; weald store gc --views removes \
         those that no mount has.",
        "Unused bytes belong to no image. The command weald store gc returns them, some of them in \
         place: then a segment file takes less disk space than its length. The command weald store \
         ls shows the bytes of each image.",
    ],
    examples: &[
        ("Show what images share", "weald store info /srv/store"),
        (
            "Print the bytes of all segment files",
            "weald store info --json /srv/store | jq .segments_len",
        ),
    ],
    exit_status: DONE_OR_DAMAGED,
};

/// Show what a store holds and what its images share
#[derive(Args, Debug)]
#[command(after_help = INFO_HELP.short(), after_long_help = INFO_HELP.long())]
pub(super) struct InfoArgs {
    #[command(flatten)]
    location: StoreDir,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn info(args: &InfoArgs) -> anyhow::Result<ExitCode> {
    let store = open(&args.location.store)?;
    let mut damaged = Vec::new();
    let (info, images) = store.info(&mut |error| damaged.push(error))?;
    let own_len: u64 = images.iter().map(|image| image.own_len).sum();
    let own_len = own_len + info.replaced_len;
    let allocated_len = allocated_len(&args.location.store.join("segments"))?;
    let superblocks_len = info.segment_count * SEGMENT_SUPERBLOCK_LEN as u64;
    let used_len = info.live_len.saturating_add(superblocks_len);
    let numbers = Numbers {
        allocated_len,
        unused_len: info.segments_len.saturating_sub(used_len),
        shared_len: info.live_len.saturating_sub(own_len),
        volume_count: store.volume_names()?.len() as u64,
        views: views::usage(&store).unwrap_or_default(),
        info,
    };
    let uuid = hex(&store.uuid());
    let mut output = Output::new();
    if args.json {
        output.json(&numbers.json(&uuid).into())?
    } else {
        output.text(&numbers.text(&uuid))?
    }
    output.finish()?;
    Ok(report_damaged(damaged))
}

/// Bytes of disk space of the files in `dir`: less than their length where `gc` freed space in
/// place.
pub(super) fn allocated_len(dir: &Path) -> anyhow::Result<u64> {
    let mut len = 0;
    for entry in std::fs::read_dir(dir)? {
        // A file may have gone since it was listed.
        if let Ok(metadata) = entry?.metadata() {
            len += metadata.blocks() * 512;
        }
    }
    Ok(len)
}

struct Numbers {
    info: StoreInfo,
    /// Bytes of disk space of the segment files.
    allocated_len: u64,
    /// Bytes of segment files that no image refers to.
    unused_len: u64,
    /// Bytes of blocks that two or more images share.
    shared_len: u64,
    /// Number of volumes. Their blocks are among those that no image refers to.
    volume_count: u64,
    /// Views that mounts by the kernel keep beside the images.
    views: Usage,
}

impl Numbers {
    fn json(&self, uuid: &str) -> Object {
        let info = &self.info;
        let numbers = [
            ("image_count", info.image_count),
            ("volume_count", self.volume_count),
            ("image_len", info.image_len),
            ("replaced_count", info.replaced_count),
            ("replaced_len", info.replaced_len),
            ("block_count", info.block_count),
            ("live_len", info.live_len),
            ("shared_len", self.shared_len),
            ("segment_count", info.segment_count),
            ("segments_len", info.segments_len),
            ("allocated_len", self.allocated_len),
            ("without_image_len", self.unused_len),
            ("maps_len", info.maps_len),
            ("tables_len", info.tables_len),
            ("journal_len", info.journal_len),
            ("view_count", self.views.view_count),
            ("mounted_view_count", self.views.mounted_view_count),
            ("views_len", self.views.len),
        ];
        let mut object = json::numbers(&numbers);
        // Volumes use some of what no image has.
        let unused = (self.volume_count == 0).then_some(self.unused_len);
        object.insert("unused_len".into(), unused.into());
        object.insert("uuid".into(), uuid.into());
        object
    }

    fn text(&self, uuid: &str) -> String {
        let info = &self.info;
        let saved = info.image_len.saturating_sub(info.live_len);
        let share = 100.0 * saved as f64 / info.image_len.max(1) as f64;
        let rest = match self.volume_count {
            0 => "are unused",
            _ => "belong to no image, but perhaps to volumes",
        };
        let lines = [
            ("store", uuid.to_owned()),
            (
                "images",
                format!(
                    "{}, {} as files",
                    count(info.image_count),
                    bytes(info.image_len)
                ),
            ),
            (
                "blocks",
                format!("{}, {}", count(info.block_count), bytes(info.live_len)),
            ),
            (
                "shared",
                format!("{} in two or more images", bytes(self.shared_len)),
            ),
            ("saved", format!("{} ({share:.1}%)", bytes(saved))),
            (
                "segment files",
                format!(
                    "{}, {}, of which {} {rest}; {} on disk",
                    count(info.segment_count),
                    bytes(info.segments_len),
                    bytes(self.unused_len),
                    bytes(self.allocated_len)
                ),
            ),
            ("image maps", bytes(info.maps_len)),
            ("metadata", bytes(info.tables_len)),
            ("journal", bytes(info.journal_len)),
            ("volumes", count(self.volume_count)),
        ];
        let views = (
            "views",
            format!(
                "{}, {} of them mounted, {}",
                count(self.views.view_count),
                count(self.views.mounted_view_count),
                bytes(self.views.len)
            ),
        );
        let replaced = (
            "replaced images",
            format!(
                "{}, which are still being read or wait for the next command that writes, {}",
                count(info.replaced_count),
                bytes(info.replaced_len)
            ),
        );
        let has_views = self.views.len > 0;
        lines
            .iter()
            .chain((info.replaced_count > 0).then_some(&replaced))
            .chain(has_views.then_some(&views))
            .map(|(word, value)| format!("{word:<20}{value}\n"))
            .collect()
    }
}

/// Sections of the help.
pub const CHECK_HELP: Help = Help {
    lists: &[],
    notes: &[
        "Check compares tables, image maps and segments with each other, opens every image with \
         its base images, and compares the rows of every volume as weald volume check does. With \
         --data it reads every block and compares it with its digest, and computes the tree digest \
         of every image from its files: this decodes each image, also what it shares with others. \
         Each finding is one line: \
         'damaged: NAME: REASON' for an image or volume that cannot be read completely, for a \
         volume with the path of the file, 'structure: REASON' for the rest. \
         The command weald check STORE:NAME names the damaged files of an image.",
        "Check verifies every record of the sync logs of volumes that waits for a commit. A \
         record that a crash left in part at the end is no damage: no sync acknowledged it.",
        "Check finishes what an interrupted command left in memory, changes nothing of the store, \
         and keeps writers out meanwhile. What somebody meets is damage: docs/store.md lists it.",
    ],
    examples: &[
        ("Check the structure", "weald store check /srv/store"),
        ("Verify every byte", "weald store check --data /srv/store"),
    ],
    exit_status: &[
        ("0", "The store is clean."),
        ("1", "The store is damaged."),
        (
            "2",
            "The store could not be checked; standard error says why.",
        ),
    ],
};

/// Verify a store and name its damaged images
#[derive(Args, Debug)]
#[command(after_help = CHECK_HELP.short(), after_long_help = CHECK_HELP.long())]
pub(super) struct CheckArgs {
    #[command(flatten)]
    location: StoreDir,
    /// Read every block and compare it with its digest
    #[arg(long)]
    data: bool,
    /// Print nothing; only set the exit status
    #[arg(short, long)]
    quiet: bool,
    /// Print one JSON object per finding, and one with "clean"
    #[arg(long, conflicts_with = "quiet")]
    json: bool,
}

pub(super) fn check(args: &CheckArgs) -> anyhow::Result<ExitCode> {
    let store = open(&args.location.store)?;
    let writer = store.write_for_check(writer_name("store check"))?;
    let options = CheckOptions {
        reads_data: args.data,
    };
    let checked = check_store(&writer, &options, &mut |_| {})?;
    if !args.quiet {
        let mut output = Output::new();
        for finding in &checked.findings {
            print(finding, args.json, &mut output)?;
        }
        if args.json {
            output.json(&checked_json(&checked).into())?
        } else {
            let away = store.tiers_away().unwrap_or_default();
            output.text(&checked_text(&checked, args.data, !away.is_empty()))?
        }
        output.finish()?;
    }
    Ok(exit_code(checked.findings.len() as u64))
}

fn print(finding: &Finding, is_json: bool, output: &mut Output) -> io::Result<()> {
    let of = finding.image.as_ref().or(finding.volume.as_ref());
    if is_json {
        let mut object = Object::new();
        let kind = match of {
            Some(_) => "damaged",
            None => "structure",
        };
        object.insert("finding".into(), kind.into());
        if let Some(image) = &finding.image {
            object.insert("image".into(), image.as_str().into());
        }
        if let Some(volume) = &finding.volume {
            object.insert("volume".into(), volume.as_str().into());
        }
        put_finding(&mut object, finding);
        return output.json(&object.into());
    }
    let what = shown_finding(finding);
    match of {
        Some(name) => writeln!(output, "damaged: {name}: {what}"),
        None => writeln!(output, "structure: {what}"),
    }
}

fn checked_json(checked: &StoreReport) -> Object {
    let numbers = [
        ("image_count", checked.image_count),
        ("volume_count", checked.volume_count),
        ("inode_count", checked.inode_count),
        ("block_count", checked.block_count),
        ("segment_count", checked.segment_count),
        ("log_record_count", checked.log_record_count),
        ("verified_len", checked.verified_len),
        ("finding_count", checked.findings.len() as u64),
    ];
    let mut object = json::numbers(&numbers);
    object.insert("clean".into(), checked.findings.is_empty().into());
    object
}

fn checked_text(checked: &StoreReport, reads_data: bool, has_tier_away: bool) -> String {
    let what = format!(
        "{} images, {} volumes, {} blocks, {} segment files",
        count(checked.image_count),
        count(checked.volume_count),
        count(checked.block_count),
        count(checked.segment_count)
    );
    let hint = if has_tier_away {
        "a tier is not here, and what lies there is not lost: 'weald tier stat' says why\n"
    } else {
        "'weald store salvage' rebuilds the tables; 'weald check STORE:NAME' names the damaged \
         files of an image\n"
    };
    let verified = reads_data.then_some(checked.verified_len);
    verdict(&what, verified, checked.findings.len(), hint)
}
