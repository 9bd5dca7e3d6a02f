//! `weald check`: verifies every digest, the whole structure and every content.

use crate::help::Help;
use crate::json::{self, Object, put_name};
use crate::messages;
use crate::open::{TrustArgs, thread_count};
use crate::output::{Output, is_closed};
use crate::parse;
use crate::progress::{bytes, count};
use crate::reading::ReadingArgs;
use crate::status::{FAILED, FOUND};
use anyhow::bail;
use clap::{Args, ValueHint};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use weald_image::{CheckOptions, CheckReport, Finding};

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[],
    notes: &[
        "Each finding is one line. 'damaged: PATH: REASON' means a file or directory that cannot \
         be read completely, 'structure: REASON' damage that belongs to no single path. With \
         several images, each line begins with the image.",
    ],
    examples: &[
        ("Verify one image", "weald check forest.weald"),
        (
            "Verify the stored bytes of many images",
            "weald check --digests-only /backup/*.weald",
        ),
        ("Print findings as JSON", "weald check --json forest.weald"),
    ],
    exit_status: &[
        ("0", "All images are clean."),
        ("1", "At least one image is damaged."),
        (
            "2",
            "At least one image could not be checked; standard error says why.",
        ),
    ],
};

/// Verify images and name damaged files
#[derive(Args, Debug)]
#[command(after_help = HELP.short(), after_long_help = HELP.long())]
pub struct CheckArgs {
    /// Image files, or STORE:NAME
    #[arg(value_name = "IMAGE", required = true, value_hint = ValueHint::FilePath)]
    images: Vec<PathBuf>,
    #[command(flatten)]
    trust: TrustArgs,
    /// Verify digests of stored bytes only, and decode nothing
    #[arg(long)]
    digests_only: bool,
    /// Number of damaged paths to name; all are counted
    #[arg(long, value_name = "COUNT", default_value_t = 1000)]
    max_paths: u64,
    /// Number of threads, 0 for one per CPU
    #[arg(short, long, value_name = "COUNT", default_value_t = 0, value_parser = parse::threads)]
    threads: usize,
    /// Print nothing; only set the exit status
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    reading: ReadingArgs,
    /// Print one JSON object per finding, and one with "clean" per image
    #[arg(long, conflicts_with = "quiet")]
    json: bool,
}

/// Contents per thread that keep all threads busy even if lengths differ much.
const CONTENTS_PER_THREAD: u64 = 8;

/// Runs the command.
pub fn run(args: &CheckArgs) -> anyhow::Result<ExitCode> {
    if args.images.len() > 1 && (args.trust.digest.is_some() || args.trust.generation.is_some()) {
        bail!("--digest and --generation are for one image: check the images one by one");
    }
    let mut output = Output::new();
    let mut status = 0;
    for image in &args.images {
        let of_image = match check(args, image, &mut output) {
            Ok(is_clean) => u8::from(!is_clean) * FOUND,
            // A closed pipe ends the command. After a missing image the next one is checked.
            Err(error) if is_closed() => return Err(error),
            Err(error) => {
                output.flush()?;
                messages::error(&error);
                FAILED
            }
        };
        status = status.max(of_image);
    }
    output.finish()?;
    Ok(ExitCode::from(status))
}

/// Checks one image; returns whether it has no damage.
fn check(args: &CheckArgs, path: &Path, output: &mut Output) -> anyhow::Result<bool> {
    let threads = thread_count(args.threads);
    weald_sys::want_large_pages();
    let mut image = args.trust.open_for_everything(path, 0)?;
    // With fewer contents per thread some threads would be idle: prefetch threads decode then.
    if image.summary().content_count < CONTENTS_PER_THREAD.saturating_mul(threads as u64) {
        image = args.trust.open_for_everything(path, threads)?;
    }
    let options = CheckOptions {
        digests_only: args.digests_only,
        threads,
        path_count_max: args.max_paths,
    };
    let mut result = Ok(());
    let report = args.reading.during("check", &[&image], false, || {
        image.check(&options, &mut |finding| {
            if result.is_ok() && !args.quiet {
                result = print(args, path, &finding, output);
            }
        })
    });
    result?;
    if !args.quiet {
        close(args, path, &report, output)?;
    }
    Ok(report.is_clean())
}

/// Starts a line with the name of the image, if there are several.
fn put_image(args: &CheckArgs, path: &Path, output: &mut Output) -> io::Result<()> {
    match args.images.len() {
        1 => Ok(()),
        _ => write!(
            output,
            "{}: ",
            weald_vfs::shown(path.as_os_str().as_bytes())
        ),
    }
}

fn print(args: &CheckArgs, image: &Path, finding: &Finding, output: &mut Output) -> io::Result<()> {
    if args.json {
        let mut object = Object::new();
        put_name(&mut object, "image", image.as_os_str().as_bytes());
        match finding {
            Finding::Structure(error) => {
                object.insert("finding".into(), "structure".into());
                object.insert("what".into(), error.to_string().into());
                if let Some(place) = error.place() {
                    object.insert("offset".into(), place.offset.into());
                    object.insert("record".into(), place.record.into());
                    object.insert("rule".into(), place.rule.into());
                }
            }
            Finding::Path { path, what } => {
                object.insert("finding".into(), "damaged".into());
                put_name(&mut object, "path", path);
                object.insert("what".into(), what.as_str().into());
            }
        }
        return output.json(&object.into());
    }
    put_image(args, image, output)?;
    match finding {
        Finding::Structure(error) => writeln!(output, "structure: {}", messages::one_line(error)),
        Finding::Path { path, what } => {
            let what = messages::detailed(what);
            writeln!(output, "damaged: {}: {what}", weald_vfs::shown_path(path))
        }
    }
}

fn close(
    args: &CheckArgs,
    image: &Path,
    report: &CheckReport,
    output: &mut Output,
) -> io::Result<()> {
    if args.json {
        let numbers = [
            ("record_count", report.record_count),
            ("stored_len", report.stored_len),
            ("template_count", report.template_count),
            ("entry_count", report.entry_count),
            ("content_count", report.content_count),
            ("content_len", report.content_len),
            ("structure_count", report.structure_count),
            ("path_count", report.path_count),
        ];
        let mut object = json::numbers(&numbers);
        put_name(&mut object, "image", image.as_os_str().as_bytes());
        object.insert("clean".into(), report.is_clean().into());
        return output.json(&object.into());
    }
    let (records, stored) = (count(report.record_count), bytes(report.stored_len));
    let what = if args.digests_only {
        format!("{records} records ({stored})")
    } else {
        let (entries, contents) = (count(report.entry_count), count(report.content_count));
        let len = bytes(report.content_len);
        format!("{records} records ({stored}), {entries} entries, {contents} contents ({len})")
    };
    if report.is_clean() {
        put_image(args, image, output)?;
        return writeln!(output, "clean: {what}");
    }
    let unnamed = report.path_count.saturating_sub(args.max_paths);
    if unnamed > 0 {
        put_image(args, image, output)?;
        writeln!(
            output,
            "{} more damaged paths are not named",
            count(unnamed)
        )?;
    }
    put_image(args, image, output)?;
    let (paths, rules) = (count(report.path_count), count(report.structure_count));
    writeln!(
        output,
        "not clean: {paths} damaged paths, {rules} broken rules; checked {what}"
    )
}
