//! `weald volume stat`: the space of a volume, and what a power cut would take.

use super::show::failure_text;
use crate::commands::replica::status::{json_of as replica_json, words_of as replica_words};
use crate::commands::tier::show::{json_of as tier_json, words_of as tier_words};
use crate::help::{DONE_OR_FAILED, Help};
use crate::json::{Object, hex};
use crate::metrics::{gauge, label};
use crate::named_volume::Named;
use crate::output::Output;
use crate::progress::bytes;
use crate::reported_mounts::Ask;
use crate::writer_name::writer_name;
use clap::{Args, ValueHint};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;
use weald_daemon::VolumeReport;
use weald_store::Store;
use weald_vfs::safe_line;
use weald_volume::{OpenOptions, Volume};

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[],
    notes: &[
        "Logical: bytes of all files, holes left out. Unique: bytes of distinct data. Shared: \
         bytes that are stored once and used more than once. Stored: bytes on disk, after \
         compression. Ratio: logical to stored. Attributes: names and values of extended \
         attributes, which lie in the file meta.",
        "Debt: bytes of the store's segments that belong to no block any more, and bytes of the \
         volume's blocks that overwrites left without use. Ranges of 4 KiB and more are punched \
         out if the file system can do that, and segments without a live block are removed within \
         a minute. Of a block of which less than 80% is used, a mounted volume writes the rest \
         again when nothing waits. What is left is for weald store gc. What was punched out is no \
         debt.",
        "Dirty bytes are written and not yet on disk. Seconds at risk is the age of the oldest of \
         them. A power cut now would take back that much time, except for synced data. After an \
         error of the disk the time grows on.",
        "With --prometheus, the labels are the name of the volume, the path of its store without \
         symlinks, and the UUID of the store.",
        "Of a mounted volume, the server of this user answers. The replicas and tiers of its store \
         follow, with how far they are and what lies there.",
    ],
    examples: &[
        (
            "Show the space of a volume",
            "weald volume stat /srv/store:home",
        ),
        (
            "Print the bytes that are not on disk yet",
            "weald volume stat --json /srv/store:home | jq .dirty_len",
        ),
        (
            "Export metrics of all volumes of a store to Prometheus",
            "cd /var/lib/node_exporter/; weald volume stat --prometheus /srv/store >t;\
             mv t weald.prom",
        ),
    ],
    exit_status: DONE_OR_FAILED,
};

/// Show the space of a volume, and what is not on disk yet
#[derive(Args, Debug)]
#[command(after_help = HELP.short(), after_long_help = HELP.long())]
pub(super) struct StatArgs {
    /// Volumes: STORE:NAME, or STORE for all volumes of a store
    #[arg(value_name = "STORE:NAME", value_hint = ValueHint::DirPath, required = true)]
    volumes: Vec<PathBuf>,
    /// Print one JSON object per volume
    #[arg(long)]
    json: bool,
    /// Print metrics in the text format of Prometheus
    #[arg(long, conflicts_with = "json")]
    prometheus: bool,
}

pub(super) fn run(args: &StatArgs) -> anyhow::Result<ExitCode> {
    let mut measured = Vec::new();
    for path in &args.volumes {
        for named in Named::open_all(path)? {
            named.find()?;
            measured.push((report(&named)?, named));
        }
    }
    let mut output = Output::new();
    if args.prometheus {
        output.text(&metrics(&measured))?;
    }
    for (report, named) in measured.iter().filter(|_| !args.prometheus) {
        if args.json {
            let mut object = json(&named.name, report);
            put_places(&mut object, &named.store)?;
            output.json(&object.into())?;
            continue;
        }
        if measured.len() > 1 {
            writeln!(output, "{:<20}{}", "volume", safe_line(&named.shown()))?;
        }
        output.text(&text(report))?;
        output.text(&places_text(&named.store)?)?;
    }
    output.finish()?;
    Ok(ExitCode::SUCCESS)
}

/// The replicas and tiers of the store, in lines.
fn places_text(store: &Store) -> anyhow::Result<String> {
    let mut text = String::new();
    for name in store.replica_names()? {
        let words = replica_words(&store.replica_status(&name)?);
        text.push_str(&format!("{:<20}{}\n", format!("replica {name}"), words));
    }
    if store.has_tiers() {
        for tier in store.tiers()? {
            let words = tier_words(&tier);
            text.push_str(&format!("{:<20}{words}\n", format!("tier {}", tier.name)));
        }
    }
    Ok(text)
}

/// The same in JSON.
fn put_places(object: &mut Object, store: &Store) -> anyhow::Result<()> {
    let mut replicas = Vec::new();
    for name in store.replica_names()? {
        replicas.push(replica_json(&store.replica_status(&name)?));
    }
    object.insert("replicas".into(), replicas.into());
    let mut tiers = Vec::new();
    if store.has_tiers() {
        let report = store.tier_report()?.unwrap_or_default();
        tiers.extend(store.tiers()?.iter().map(|tier| tier_json(tier, &report)));
    }
    object.insert("tiers".into(), tiers.into());
    Ok(())
}

/// Figures of a volume: of its server, or of the tables.
fn report(named: &Named) -> anyhow::Result<VolumeReport> {
    let mounted = named.mounted(Ask::Space)?;
    if let Some(report) = mounted.and_then(|(_, mount)| mount.space) {
        return Ok(report);
    }
    let options = OpenOptions {
        is_read_only: true,
        writer_name: writer_name("volume stat"),
        ..OpenOptions::default()
    };
    let volume = Volume::open(&named.store, &named.name, options)?;
    let report = VolumeReport::from(volume.status()?);
    volume.close()?;
    Ok(report)
}

/// Logical to stored bytes; 1 for an empty volume.
fn ratio(report: &VolumeReport) -> f64 {
    match report.stored_len {
        0 => 1.0,
        stored => report.logical_len as f64 / stored as f64,
    }
}

fn json(name: &str, report: &VolumeReport) -> Object {
    let mut object = Object::new();
    object.insert("name".into(), name.into());
    for (key, number) in [
        ("logical_len", report.logical_len),
        ("unique_len", report.unique_len),
        ("shared_len", report.shared_len),
        ("stored_len", report.stored_len),
        ("attribute_len", report.attribute_len),
        ("dead_len", report.dead_len),
        ("dirty_len", report.dirty_len),
    ] {
        object.insert(key.into(), number.into());
    }
    object.insert("ratio".into(), ratio(report).into());
    object.insert("risk_seconds".into(), report.risk_seconds.into());
    object.insert("failure".into(), report.failure.clone().into());
    object.insert("failed_at".into(), report.failed_at.into());
    object
}

fn text(report: &VolumeReport) -> String {
    let mut lines = vec![
        ("logical", bytes(report.logical_len)),
        ("unique", bytes(report.unique_len)),
        ("shared", bytes(report.shared_len)),
        ("stored", bytes(report.stored_len)),
        ("attributes", bytes(report.attribute_len)),
        ("ratio", format!("{:.2}", ratio(report))),
        ("debt", bytes(report.dead_len)),
        ("dirty", bytes(report.dirty_len)),
        ("seconds at risk", format!("{:.1}", report.risk_seconds)),
    ];
    if let Some(failure) = failure_text(report) {
        lines.push(("read-only since", failure));
    }
    lines
        .iter()
        .map(|(word, value)| format!("{word:<20}{value}\n"))
        .collect()
}

/// A metric: name, help text, value.
type Metric = (&'static str, &'static str, fn(&VolumeReport) -> f64);

const METRICS: [Metric; 7] = [
    (
        "weald_volume_logical_bytes",
        "Bytes of all files, holes left out.",
        |report| report.logical_len as f64,
    ),
    (
        "weald_volume_unique_bytes",
        "Bytes of distinct data.",
        |report| report.unique_len as f64,
    ),
    (
        "weald_volume_shared_bytes",
        "Bytes that are stored once and used more than once.",
        |report| report.shared_len as f64,
    ),
    (
        "weald_volume_stored_bytes",
        "Bytes on disk, after compression.",
        |report| report.stored_len as f64,
    ),
    (
        "weald_volume_dirty_bytes",
        "Bytes that are written and not yet on disk.",
        |report| report.dirty_len as f64,
    ),
    (
        "weald_volume_risk_seconds",
        "Age of the oldest byte that is not on disk.",
        |report| report.risk_seconds,
    ),
    (
        "weald_volume_failed",
        "Whether an error of the disk made the volume read-only.",
        |report| f64::from(u8::from(report.failure.is_some())),
    ),
];

/// The store's debt, which its volumes share.
const DEBT: Metric = (
    "weald_store_debt_bytes",
    "Bytes of the store's segments on the disk that belong to no block.",
    |report| report.dead_len as f64,
);

/// All figures: each metric once, with a line for each volume.
fn metrics(measured: &[(VolumeReport, Named)]) -> String {
    let mut stores = BTreeSet::new();
    let labels = |named: &Named| {
        let store = label(&named.dir.to_string_lossy());
        format!("store=\"{store}\",uuid=\"{}\"", hex(&named.store.uuid()))
    };
    let of_volumes = measured.iter().map(|(report, named)| {
        let name = label(&named.name);
        (format!("volume=\"{name}\",{}", labels(named)), report)
    });
    let of_volumes: Vec<_> = of_volumes.collect();
    let of_stores = measured
        .iter()
        .filter(|(_, named)| stores.insert(named.store.uuid()));
    let of_stores: Vec<_> = of_stores
        .map(|(report, named)| (labels(named), report))
        .collect();
    let mut text: String = METRICS.iter().map(|one| metric(one, &of_volumes)).collect();
    text.push_str(&metric(&DEBT, &of_stores));
    text
}

fn metric((name, help, value): &Metric, lines: &[(String, &VolumeReport)]) -> String {
    let lines = lines.iter();
    let lines = lines.map(|(labels, report)| (labels.clone(), value(report)));
    gauge((name, help), &lines.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch: a label that ends early, and a ratio of an empty volume that is no number.
    #[test]
    fn figures_of_an_empty_volume_are_numbers() {
        let empty = VolumeReport::default();
        assert_eq!(ratio(&empty), 1.0);
        let text = metric(
            &DEBT,
            &[(format!("store=\"{}\"", label("/a\"b\\")), &empty)],
        );
        let line = "weald_store_debt_bytes{store=\"/a\\\"b\\\\\"} 0\n";
        assert!(text.ends_with(line), "{text}");
        let json = json("v", &empty);
        assert_eq!(json["ratio"], 1.0);
    }
}
