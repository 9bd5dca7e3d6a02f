//! `weald scrub status`.

use super::due::line_of;
use crate::help::{Help, SCRUBBED};
use crate::json::{self, Object, put_name};
use crate::messages;
use crate::metrics::{gauge, label};
use crate::open_store::{StoreDir, open};
use crate::output::Output;
use crate::progress::{bytes, count, duration};
use crate::status::exit_code;
use clap::Args;
use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};
use weald_format::Timestamp;
use weald_store::Store;
use weald_store::scrub::{ScrubFinding, ScrubPlace, ScrubReport, ScrubUser, ScrubWish, WHOLE};
use weald_vfs::{safe_line, shown, shown_path, utc_seconds};

/// Seconds within which who scrubs writes down how far it is, unless a step takes longer.
const FRESH_S: u64 = 30;

/// Sections of the help.
pub const STATUS_HELP: Help = Help {
    lists: &[],
    notes: &[
        "Shows how far the scrub is, as of a few seconds ago, how fast it reads, how long it will \
         take, and what it has found. Each finding is a line with the file that it costs: \
         VOLUME:/PATH, VOLUME@SNAPSHOT:/PATH or IMAGE:/PATH.",
        "Findings are those of this scrub: what was repaired since then is still listed. A scrub \
         that was interrupted goes on when a volume of the store is mounted, or with weald scrub \
         resume.",
    ],
    examples: &[
        ("Show how far it is", "weald scrub status /srv/store"),
        (
            "Write figures for node_exporter",
            "weald scrub status --prometheus /srv/store > /var/lib/node_exporter/scrub.prom",
        ),
        (
            "Print the share that was read",
            "weald scrub status --json /srv/store | jq .read_bytes/.total_bytes",
        ),
    ],
    exit_status: SCRUBBED,
};

/// Show how far a scrub is, and what it has found
#[derive(Args, Debug)]
#[command(after_help = STATUS_HELP.short(), after_long_help = STATUS_HELP.long())]
pub(super) struct StatusArgs {
    #[command(flatten)]
    location: StoreDir,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Print figures for Prometheus
    #[arg(long, conflicts_with = "json")]
    prometheus: bool,
}

pub(super) fn status(args: &StatusArgs) -> anyhow::Result<ExitCode> {
    let store = open(&args.location.store)?;
    let (wish, report) = (store.scrub_wish()?, store.scrub_report()?);
    let mut output = Output::new();
    let Some(wish) = wish else {
        if args.json {
            output.json(&json_of(None, &nothing(), "none").into())?;
        } else if args.prometheus {
            output.text(&metrics(None, "none", &args.location.store)?)?;
            output.text(&policy_metrics(&store, None, &args.location.store)?)?;
        } else {
            output.text("never scrubbed\n")?;
            output.text(&line_of(&store, None)?)?;
        }
        output.finish()?;
        return Ok(ExitCode::SUCCESS);
    };
    let report = report.filter(|report| report.wish.run == wish.run);
    let state = state_of(&store, &wish, report.as_ref());
    if args.json {
        output.json(&json_of(report.as_ref(), &wish, state).into())?;
    } else if args.prometheus {
        output.text(&metrics(report.as_ref(), state, &args.location.store)?)?;
        let policy = policy_metrics(&store, report.as_ref(), &args.location.store)?;
        output.text(&policy)?;
    } else {
        let text = match &report {
            Some(report) if report.is_done() => text_of(report),
            Some(report) => format!("{state}\n{}", progress_of(report)),
            None => format!("{state}\n"),
        };
        output.text(&text)?;
        output.text(&line_of(&store, report.as_ref())?)?;
    }
    output.finish()?;
    Ok(report.as_ref().map_or(ExitCode::SUCCESS, code_of))
}

fn nothing() -> ScrubWish {
    ScrubWish {
        run: 0,
        tries: 0,
        is_paused: false,
        rate: 0,
        share: WHOLE,
        is_since: false,
    }
}

fn now_s() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// All words of [`state_of`], and that of a store that was never scrubbed.
const STATES: [&str; 7] = [
    "none",
    "waiting",
    "running",
    "paused",
    "interrupted",
    "failed",
    "complete",
];

/// The state of a scrub in a word.
fn state_of(store: &Store, wish: &ScrubWish, report: Option<&ScrubReport>) -> &'static str {
    match report {
        Some(report) if report.is_done() => "complete",
        _ if wish.is_paused => "paused",
        Some(report) if report.error.is_some() => "failed",
        Some(report) if now_s().saturating_sub(report.time_s) <= FRESH_S => "running",
        _ if store.writers().is_empty() => "interrupted",
        Some(_) => "running",
        None => "waiting",
    }
}

/// Status 1 if something is damaged, or was not read.
pub fn code_of(report: &ScrubReport) -> ExitCode {
    exit_code(report.finding_count() + report.parked.len() as u64)
}

/// Bytes that were read a second; nothing if that is not known yet.
fn rate_of(report: &ScrubReport) -> Option<u64> {
    let rate = u128::from(report.read_len) * 1000;
    let rate = rate.checked_div(report.worked_ms.into())?;
    u64::try_from(rate).ok().filter(|rate| *rate > 0)
}

fn left_s(report: &ScrubReport) -> Option<u64> {
    let left = report.total_len.saturating_sub(report.read_len);
    left.checked_div(rate_of(report)?)
}

fn place_of(report: &ScrubReport) -> String {
    match report.at {
        ScrubPlace::Files => "small files".into(),
        ScrubPlace::Maps => "maps of images".into(),
        ScrubPlace::Tables => "tables and journal".into(),
        ScrubPlace::Counts => "references and space".into(),
        ScrubPlace::Blocks(at) => format!("segment {}, byte {}", at.segment, at.offset),
        ScrubPlace::Parked(_) => "what could not be read before".into(),
        ScrubPlace::End => "the end".into(),
    }
}

fn time_of(time_s: u64) -> String {
    utc_seconds(Timestamp {
        seconds: time_s as i64,
        nanoseconds: 0,
    })
}

/// How far a scrub is that is not complete, and what it has found.
fn progress_of(report: &ScrubReport) -> String {
    let mut text = String::new();
    let percent = 100.0 * report.read_len as f64 / report.total_len.max(1) as f64;
    // Writing to a string does not fail.
    let _ = writeln!(
        text,
        "read:     {} of {} ({:.1}%), at {}",
        bytes(report.read_len),
        bytes(report.total_len),
        percent.min(100.0),
        place_of(report)
    );
    if let Some(rate) = rate_of(report) {
        let most = match report.wish.rate {
            0 => String::new(),
            most => format!(", {} at most", bytes(most)),
        };
        let _ = writeln!(text, "rate:     {} a second{most}", bytes(rate));
    }
    if let Some(left) = left_s(report) {
        let _ = writeln!(text, "left:     about {}", duration(left));
    }
    let _ = writeln!(text, "begun:    {}", time_of(report.begun_s));
    if let Some(why) = &report.error {
        let _ = writeln!(text, "failed:   {}", safe_line(why));
    }
    if let Some(last) = &report.last {
        let _ = writeln!(
            text,
            "last:     complete {}, {} findings",
            time_of(last.time_s),
            count(last.finding_count)
        );
    }
    text + &findings_of(report)
}

/// The result of a scrub that is complete.
pub fn text_of(report: &ScrubReport) -> String {
    let verdict = if report.finding_count() > 0 {
        format!("not clean: {} findings", count(report.finding_count()))
    } else if !report.parked.is_empty() {
        "not complete".to_owned()
    } else {
        "clean".to_owned()
    };
    let what = if report.wish.share < WHOLE {
        let percent = 100.0 * f64::from(report.wish.share) / f64::from(WHOLE);
        format!(" of a sample of {percent}%")
    } else if report.wish.is_since {
        " that were new".to_owned()
    } else {
        String::new()
    };
    let mut text = format!(
        "{verdict}; read and verified {} blocks{what}, {}, until {}\n",
        count(report.block_count),
        bytes(report.read_len),
        time_of(report.time_s)
    );
    text.push_str(&findings_of(report));
    text
}

fn findings_of(report: &ScrubReport) -> String {
    let mut text = String::new();
    for (_, why) in &report.parked {
        let _ = writeln!(text, "waiting: {}", safe_line(why));
    }
    for finding in &report.findings {
        let what = messages::detailed(&finding.what);
        let what = safe_line(&what);
        match finding.users.as_deref() {
            Some([]) => {
                let _ = writeln!(text, "damaged: {what}");
            }
            None => {
                let _ = writeln!(text, "damaged: {what} (its files are not known yet)");
            }
            Some(users) => {
                for user in users {
                    let _ = writeln!(text, "damaged: {}: {what}", user_of(user));
                }
            }
        }
    }
    if report.more_count > 0 {
        let more = count(report.more_count);
        let _ = writeln!(text, "and {more} more");
    }
    text
}

/// `VOLUME:/PATH`, `VOLUME@SNAPSHOT:/PATH`, `IMAGE:/PATH` or the name alone.
fn user_of(user: &ScrubUser) -> String {
    let mut text = shown(user.name.as_bytes());
    if let Some(snapshot) = &user.snapshot {
        let _ = write!(text, "@{}", shown(snapshot.as_bytes()));
    }
    match (&user.path, user.inode) {
        (Some(path), _) => {
            let _ = write!(text, ":/{}", shown_path(path));
        }
        (None, Some(inode)) => {
            let _ = write!(text, ": inode {inode} (no path)");
        }
        (None, None) => {}
    }
    text
}

/// A scrub for programs.
pub fn json_of(report: Option<&ScrubReport>, wish: &ScrubWish, state: &str) -> Object {
    let mut object = Object::new();
    object.insert("state".into(), state.into());
    object.insert("run".into(), wish.run.into());
    object.insert("rate_limit".into(), wish.rate.into());
    let share = f64::from(wish.share) / f64::from(WHOLE);
    object.insert("share".into(), share.into());
    object.insert("is_since".into(), wish.is_since.into());
    let Some(report) = report else {
        return object;
    };
    let mut numbers = json::numbers(&[
        ("total_bytes", report.total_len),
        ("read_bytes", report.read_len),
        ("blocks", report.block_count),
        ("begun", report.begun_s),
        ("time", report.time_s),
        ("finding_count", report.finding_count()),
    ]);
    object.append(&mut numbers);
    object.insert("place".into(), place_of(report).into());
    object.insert("rate".into(), rate_of(report).into());
    object.insert("seconds_left".into(), left_s(report).into());
    object.insert("error".into(), report.error.clone().into());
    object.insert("last".into(), report.last.map(|last| last.time_s).into());
    object.insert("last_whole".into(), report.whole_s.into());
    let parked = report.parked.iter().map(|(_, why)| why.clone());
    object.insert("waiting_for".into(), parked.collect::<Vec<_>>().into());
    let findings: Vec<serde_json::Value> = report.findings.iter().map(finding_json).collect();
    object.insert("findings".into(), findings.into());
    let is_clean = report.is_done() && report.finding_count() == 0 && report.parked.is_empty();
    object.insert("clean".into(), is_clean.into());
    object
}

/// All figures: of a store that was never scrubbed, the state alone.
fn metrics(report: Option<&ScrubReport>, state: &str, store: &Path) -> anyhow::Result<String> {
    // The same, however it was typed.
    let path = std::fs::canonicalize(store)?;
    let labels = format!("store=\"{}\"", label(&path.to_string_lossy()));
    let of_store = |head, figure: u64| gauge(head, &[(labels.clone(), figure as f64)]);
    let states = STATES.map(|word| {
        let labels = format!("{labels},state=\"{word}\"");
        (labels, f64::from(u8::from(word == state)))
    });
    let mut text = gauge(
        ("weald_scrub_state", "1 for the state of the scrub."),
        &states,
    );
    let Some(report) = report else {
        return Ok(text);
    };
    // The last complete one: this or the one before.
    let done = report.is_done().then_some(report.time_s);
    let complete = done.or(report.last.map(|last| last.time_s));
    let figures = [
        (
            ("weald_scrub_read_bytes", "Bytes that the scrub has read."),
            Some(report.read_len),
        ),
        (
            ("weald_scrub_total_bytes", "Bytes that it is to read."),
            Some(report.total_len),
        ),
        (
            ("weald_scrub_findings", "What it found damaged."),
            Some(report.finding_count()),
        ),
        (
            ("weald_scrub_unread", "What it could not read, as of now."),
            Some(report.parked.len() as u64),
        ),
        (
            ("weald_scrub_start_time_seconds", "When it began."),
            Some(report.begun_s),
        ),
        (
            (
                "weald_scrub_complete_time_seconds",
                "When the last complete scrub ended.",
            ),
            complete,
        ),
    ];
    for (head, figure) in figures {
        if let Some(figure) = figure {
            text.push_str(&of_store(head, figure));
        }
    }
    Ok(text)
}

/// When the next scrub of the policy is due, and when the last one ended that read every block.
fn policy_metrics(
    store: &Store,
    report: Option<&ScrubReport>,
    dir: &Path,
) -> anyhow::Result<String> {
    let path = std::fs::canonicalize(dir)?;
    let labels = format!("store=\"{}\"", label(&path.to_string_lossy()));
    let policy = store.scrub_policy()?;
    let figures = [
        (
            (
                "weald_scrub_whole_time_seconds",
                "When the last scrub ended that read every block.",
            ),
            report.and_then(|report| report.whole_s),
        ),
        (
            (
                "weald_scrub_next_time_seconds",
                "When the next scrub is due by the policy.",
            ),
            policy.map(|policy| policy.next_s(report)),
        ),
    ];
    let mut text = String::new();
    for (head, figure) in figures {
        if let Some(figure) = figure {
            text.push_str(&gauge(head, &[(labels.clone(), figure as f64)]));
        }
    }
    Ok(text)
}

fn finding_json(finding: &ScrubFinding) -> serde_json::Value {
    let mut object = Object::new();
    object.insert("what".into(), finding.what.as_str().into());
    let users = finding.users.iter().flatten().map(|user| {
        let mut object = Object::new();
        object.insert("name".into(), user.name.as_str().into());
        if let Some(snapshot) = &user.snapshot {
            object.insert("snapshot".into(), snapshot.as_str().into());
        }
        if let Some(path) = &user.path {
            put_name(&mut object, "path", path);
        }
        if let Some(inode) = user.inode {
            object.insert("inode".into(), inode.0.into());
        }
        serde_json::Value::from(object)
    });
    let users: Vec<serde_json::Value> = users.collect();
    object.insert("files".into(), users.into());
    object.into()
}
