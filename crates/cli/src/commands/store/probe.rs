//! `weald store probe`.

use crate::help::Help;
use crate::json::Object;
use crate::output::Output;
use crate::status::exit_code;
use crate::uuid::random_uuid;
use anyhow::bail;
use clap::{Args, ValueHint};
use std::path::PathBuf;
use std::process::ExitCode;
use weald_remote::{Check, Location, Needed, Probed};
use weald_vfs::safe_line;

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[],
    notes: &[
        "Not every server does what Weald needs: that a write under a condition is refused if the \
         condition does not hold, also if several writers come at the same moment, and that a read \
         shows what was written before it. The probe makes about 100 requests for objects below \
         URL/probe-ID, and removes them.",
        "A replica in a bucket needs If-None-Match; weald replica add refuses a bucket without it. \
         Several writers of one name of a store need If-Match, too. Late lists do no harm.",
    ],
    examples: &[("Probe a bucket", "weald store probe s3://bucket/replicas")],
    exit_status: &[
        ("0", "Replicas and stores are safe there."),
        ("1", "The bucket lacks something; the list says what."),
        ("2", "The command failed; standard error says why."),
    ],
};

/// Tell whether a bucket is safe for replicas and stores
#[derive(Args, Debug)]
#[command(after_help = HELP.short(), after_long_help = HELP.long())]
pub(super) struct ProbeArgs {
    /// The bucket, and a prefix in it: s3://BUCKET/PREFIX
    #[arg(value_name = "URL", value_hint = ValueHint::Url)]
    url: PathBuf,
    /// Print nothing
    #[arg(short, long)]
    quiet: bool,
    /// Print one JSON object
    #[arg(long, conflicts_with = "quiet")]
    json: bool,
}

pub(super) fn run(args: &ProbeArgs) -> anyhow::Result<ExitCode> {
    let shown = weald_remote::shown(&args.url);
    let Some(location) = Location::parse(&args.url) else {
        bail!("{shown}: expected a URL, s3://BUCKET/PREFIX");
    };
    let id = u128::from_be_bytes(random_uuid()?) as u64;
    let probed = weald_remote::probe(&location?, id)?;
    let mut output = Output::new();
    if args.json {
        output.json(&json(&shown, &probed).into())?;
    } else if !args.quiet {
        output.text(&text(&shown, &probed))?;
    }
    output.finish()?;
    let is_safe = probed.is_safe_for_replicas() && probed.is_safe_for_stores();
    Ok(exit_code(u64::from(!is_safe)))
}

fn json(shown: &str, probed: &Probed) -> Object {
    let check = |check: &Check| {
        let mut object = Object::new();
        object.insert("name".into(), check.name.into());
        object.insert("is_right".into(), check.is_right.into());
        object.insert("is_needed".into(), (check.needed != Needed::Nothing).into());
        serde_json::Value::from(object)
    };
    let checks: Vec<_> = probed.checks.iter().map(check).collect();
    let mut object = Object::new();
    object.insert("url".into(), shown.into());
    object.insert("checks".into(), checks.into());
    object.insert("replicas".into(), probed.is_safe_for_replicas().into());
    object.insert("stores".into(), probed.is_safe_for_stores().into());
    object.insert("request_count".into(), probed.request_count.into());
    object
}

fn text(shown: &str, probed: &Probed) -> String {
    let mut text = String::new();
    for check in &probed.checks {
        let found = match (check.is_right, check.needed) {
            (true, _) => "yes",
            (false, Needed::Nothing) => "no, which does no harm",
            (false, _) => "NO",
        };
        text.push_str(&format!("{:18}{found}: {}\n", check.name, check.what));
    }
    let verdict = match (probed.is_safe_for_replicas(), probed.is_safe_for_stores()) {
        (true, true) => "safe for replicas and for stores",
        (true, false) => "safe for replicas, and for stores with one writer at a time",
        (false, _) => "not safe for replicas",
    };
    let requests = probed.request_count;
    text.push_str(&format!(
        "{}: {verdict} ({requests} requests)\n",
        safe_line(shown)
    ));
    text
}
