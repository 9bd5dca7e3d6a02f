//! `weald replica status`.

use super::manage::timestamp;
use crate::help::{DONE_OR_FAILED, Help};
use crate::json::{Object, put_time};
use crate::metrics::{gauge, label};
use crate::open_store::{StoreDir, open};
use crate::output::Output;
use crate::progress::{bytes, count, duration};
use clap::Args;
use std::path::Path;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};
use weald_store::{ReplicaStatus, Role, StandbyStatus, Store, WhenLost};
use weald_vfs::utc_seconds;

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[],
    notes: &[
        "Behind are the commits of the store that the replica does not have, and the bytes of its \
         segments. The place itself is not asked: weald replica verify reads it.",
        "Of a standby, it shows which state it has, and how old that is.",
    ],
    examples: &[
        (
            "Show how far replicas are",
            "weald replica status /srv/store",
        ),
        (
            "Write figures for the textfile collector of Prometheus",
            "weald replica status --prometheus /srv/store > replicas.prom",
        ),
        (
            "Print how many commits a replica lacks",
            "weald replica status --json /srv/store | jq .behind",
        ),
    ],
    exit_status: DONE_OR_FAILED,
};

/// Show how far the replicas of a store are
#[derive(Args, Debug)]
#[command(after_help = HELP.short(), after_long_help = HELP.long())]
pub(super) struct StatusArgs {
    #[command(flatten)]
    location: StoreDir,
    /// Print one JSON object per replica
    #[arg(long)]
    json: bool,
    /// Print figures for Prometheus
    #[arg(long, conflicts_with = "json")]
    prometheus: bool,
}

/// Whole seconds since a time in nanoseconds since 1970.
fn seconds_since(time: i64) -> Option<u64> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    let seconds = now
        .as_secs()
        .checked_sub(u64::try_from(time).ok()? / 1_000_000_000)?;
    Some(seconds)
}

pub(super) fn run(args: &StatusArgs) -> anyhow::Result<ExitCode> {
    let store = open(&args.location.store)?;
    let mut output = Output::new();
    if args.prometheus {
        output.text(&metrics(&store, &args.location.store)?)?;
        output.finish()?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(status) = store.standby_status()? {
        if args.json {
            output.json(&json_of_standby(&status).into())?;
        } else {
            output.text(&text_of_standby(&status))?;
        }
    }
    if let Role::Replaced(by) = store.role()?
        && !args.json
    {
        writeln!(output, "replaced by {by}: nothing is written to this store")?;
    }
    for name in store.replica_names()? {
        let status = store.replica_status(&name)?;
        if args.json {
            output.json(&json_of(&status).into())?;
        } else {
            output.text(&text_of(&status))?;
        }
    }
    output.finish()?;
    Ok(ExitCode::SUCCESS)
}

/// The figures of a replica.
pub(in crate::commands) fn json_of(status: &ReplicaStatus) -> Object {
    let mut object = Object::new();
    object.insert("name".into(), status.name.as_str().into());
    object.insert("place".into(), status.place.as_str().into());
    object.insert("every".into(), status.settings.every_s.into());
    object.insert("is_paused".into(), status.settings.is_paused.into());
    object.insert("rate".into(), status.settings.rate.into());
    let sync = status.settings.sync.map(WhenLost::word);
    object.insert("sync".into(), sync.into());
    object.insert(
        "commit".into(),
        status.sent.map(|(commit, _)| commit.0).into(),
    );
    if let Some((_, time)) = status.sent {
        put_time(&mut object, "sent", timestamp(time));
    }
    object.insert("behind".into(), status.behind.into());
    object.insert("behind_len".into(), status.behind_len.into());
    object.insert("is_interrupted".into(), status.has_pending.into());
    object.insert("error".into(), status.error.clone().into());
    object
}

fn json_of_standby(status: &StandbyStatus) -> Object {
    let mut object = Object::new();
    object.insert("follows".into(), status.place.as_str().into());
    object.insert("every".into(), status.settings.every_s.into());
    let commit = status.commit.map(|(commit, _)| commit.0);
    object.insert("commit".into(), commit.into());
    if let Some((_, time)) = status.commit {
        put_time(&mut object, "sent", timestamp(time));
    }
    object
}

fn text_of_standby(status: &StandbyStatus) -> String {
    let mut text = format!("standby of {}\n", status.place);
    match status.commit {
        None => text.push_str("  between two states: the next call completes the later one\n"),
        Some(state) => text.push_str(&has_commit(state)),
    }
    text
}

/// Which commit is there, and how old it is.
fn has_commit((commit, time): (weald_format::CommitNo, i64)) -> String {
    let ago = match seconds_since(time) {
        Some(seconds) => format!(", {} ago", duration(seconds)),
        None => String::new(),
    };
    let time = utc_seconds(timestamp(time));
    format!("  has commit {commit}, sent {time}{ago}\n")
}

/// A metric: name and help text, and the value, if it is known.
type Metric = (
    (&'static str, &'static str),
    fn(&ReplicaStatus) -> Option<f64>,
);

const STANDBY_METRIC: (&str, &str) = (
    "weald_standby_sent_time_seconds",
    "When the state that the standby has was sent, in seconds since 1970.",
);

const METRICS: [Metric; 5] = [
    (
        (
            "weald_replica_behind_commits",
            "Commits of the store that the replica does not have.",
        ),
        |status| status.behind.map(|behind| behind as f64),
    ),
    (
        (
            "weald_replica_behind_bytes",
            "Bytes of segments of the store that the replica does not have.",
        ),
        |status| Some(status.behind_len as f64),
    ),
    (
        (
            "weald_replica_sent_time_seconds",
            "When something was sent last, in seconds since 1970.",
        ),
        |status| status.sent.map(|(_, time)| time as f64 / 1e9),
    ),
    (
        (
            "weald_replica_failed",
            "Whether the last try to send failed.",
        ),
        |status| Some(f64::from(u8::from(status.error.is_some()))),
    ),
    (
        (
            "weald_replica_paused",
            "Whether nothing is sent because somebody said so.",
        ),
        |status| Some(f64::from(u8::from(status.settings.is_paused))),
    ),
];

/// All figures: each metric once, with a line for each replica.
fn metrics(store: &Store, path: &Path) -> anyhow::Result<String> {
    // The same, however it was typed.
    let path = std::fs::canonicalize(path)?;
    let shown = path.to_string_lossy();
    let mut all = Vec::new();
    for name in store.replica_names()? {
        let labels = format!("replica=\"{}\",store=\"{}\"", label(&name), label(&shown));
        all.push((labels, store.replica_status(&name)?));
    }
    let mut text = String::new();
    if let Some((_, time)) = store.standby_status()?.and_then(|status| status.commit) {
        let line = (format!("store=\"{}\"", label(&shown)), time as f64 / 1e9);
        text.push_str(&gauge(STANDBY_METRIC, &[line]));
    }
    for (head, value) in METRICS {
        let lines = all.iter().filter_map(|(labels, status)| {
            let value = value(status)?;
            Some((labels.clone(), value))
        });
        text.push_str(&gauge(head, &lines.collect::<Vec<_>>()));
    }
    Ok(text)
}

/// How far a replica is, in a few words.
pub(in crate::commands) fn words_of(status: &ReplicaStatus) -> String {
    let since = status.sent.and_then(|(_, time)| seconds_since(time));
    let since = since.map_or("nothing was sent yet".to_owned(), |seconds| {
        format!("sent to {} ago", duration(seconds))
    });
    let behind = match status.behind {
        Some(0) => "has everything".to_owned(),
        Some(behind) => {
            let (commits, len) = (count(behind), bytes(status.behind_len));
            format!("behind by {commits} commits, {len}")
        }
        None => "not known how far behind".to_owned(),
    };
    let failed = status
        .error
        .as_ref()
        .map_or("", |_| ", the last try failed");
    format!("{behind}, {since}{failed}")
}

fn text_of(status: &ReplicaStatus) -> String {
    let mut text = format!("{}: {}\n", status.name, status.place);
    match status.sent {
        None => text.push_str("  nothing was sent yet\n"),
        Some(state) => text.push_str(&has_commit(state)),
    }
    match status.behind {
        Some(0) => text.push_str("  has all that the store has committed\n"),
        Some(behind) => {
            let (commits, len) = (count(behind), bytes(status.behind_len));
            text.push_str(&format!("  behind by {commits} commits, {len} of blocks\n"));
        }
        None => {
            text.push_str("  how far it is behind is not known: the store has no journal now\n")
        }
    }
    let settings = status.settings;
    if settings.is_paused {
        text.push_str("  paused\n");
    } else if settings.every_s > 0 {
        let every = duration(settings.every_s);
        text.push_str(&format!(
            "  the server of a mounted volume sends every {every}\n"
        ));
    }
    if settings.rate > 0 {
        let rate = bytes(settings.rate);
        text.push_str(&format!("  gets at most {rate} a second\n"));
    }
    match settings.sync {
        Some(WhenLost::Wait) => text.push_str("  a sync waits for it, also while it is lost\n"),
        Some(WhenLost::Degrade) => text.push_str("  a sync waits for it, unless it is lost\n"),
        None => {}
    }
    if status.has_pending {
        text.push_str("  a sending was interrupted: the next one completes it\n");
    }
    if let Some(error) = &status.error {
        text.push_str(&format!("  the last try failed: {error}\n"));
    }
    text
}
