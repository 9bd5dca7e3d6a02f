//! `weald volume check`.

use crate::findings::{put_finding, shown_finding};
use crate::help::Help;
use crate::json::{self, Object};
use crate::named_volume::{Named, VolumePath};
use crate::output::Output;
use crate::progress::{bytes, count, verdict};
use crate::status::exit_code;
use clap::Args;
use std::process::ExitCode;
use weald_volume::{CheckOptions, Report};

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[],
    notes: &[
        "Check compares the rows of the volume with each other and with the blocks of its files. \
         Every name leads to an inode, every inode has as many names as it counts, parents lead to \
         the root, and every piece of a file lies in a block. All counts of space must equal a \
         recount. With --data it also reads every block of the volume and compares it with its \
         digest. Each finding is one line with the path of the file. Where names are lost, the \
         number of the inode stands there. Rows that cannot be read are findings, and the check \
         goes on.",
        "Damage of other volumes and images of the store does not count: weald store check checks \
         all of them.",
        "Check verifies every record of the sync log that waits for a commit. A record that a \
         crash left in part at the end is no damage: no sync acknowledged it.",
        "The volume must not be mounted. A volume needs no check after a crash: it is consistent \
         at once.",
    ],
    examples: &[
        ("Check the structure", "weald volume check /srv/store:home"),
        (
            "Verify every byte",
            "weald volume check --data /srv/store:home",
        ),
    ],
    exit_status: &[
        ("0", "The volume is clean."),
        ("1", "The volume is damaged."),
        (
            "2",
            "The volume could not be checked; standard error says why.",
        ),
    ],
};

/// Verify a volume
#[derive(Args, Debug)]
#[command(after_help = HELP.short(), after_long_help = HELP.long())]
pub(super) struct CheckArgs {
    #[command(flatten)]
    path: VolumePath,
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

pub(super) fn run(args: &CheckArgs) -> anyhow::Result<ExitCode> {
    let named = Named::open(&args.path.volume)?;
    named.find()?;
    named.refuse_mounted("checked")?;
    let options = CheckOptions {
        reads_data: args.data,
    };
    let report = weald_volume::check(&named.store, &named.name, &options)?;
    let found = report.findings.len() as u64;
    if args.quiet {
        return Ok(exit_code(found));
    }
    let mut output = Output::new();
    for finding in &report.findings {
        if args.json {
            let mut object = Object::new();
            object.insert("finding".into(), finding.to_string().into());
            put_finding(&mut object, finding);
            output.json(&object.into())?;
        } else {
            writeln!(output, "damaged: {}", shown_finding(finding))?
        }
    }
    if args.json {
        output.json(&summary(&report).into())?
    } else {
        output.text(&text(&report, args.data))?
    }
    output.finish()?;
    Ok(exit_code(found))
}

fn summary(report: &Report) -> Object {
    let numbers = [
        ("inode_count", report.inode_count),
        ("name_count", report.name_count),
        ("logical_len", report.logical_len),
        ("verified_len", report.verified_len),
        ("log_record_count", report.log_record_count),
        ("finding_count", report.findings.len() as u64),
    ];
    let mut object = json::numbers(&numbers);
    object.insert("clean".into(), report.findings.is_empty().into());
    object
}

fn text(report: &Report, reads_data: bool) -> String {
    let what = format!(
        "{} inodes, {} names, {} of content",
        count(report.inode_count),
        count(report.name_count),
        bytes(report.logical_len)
    );
    let verified = reads_data.then_some(report.verified_len);
    verdict(&what, verified, report.findings.len(), "")
}
