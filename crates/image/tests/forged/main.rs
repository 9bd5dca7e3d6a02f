//! Forged images with correct digests. Every forgery must be an error with its rule, in bounded
//! time and memory, in every operation that meets it.

mod contents;
mod records;
#[path = "../support/mod.rs"]
mod support;
mod tree;

use std::time::{Duration, Instant};
use support::*;
use weald_format::Error;
use weald_format::container::{RecordRef, RecordType};

/// Limits that the documentation promises for any hostile image of this size.
const TIME_MAX: Duration = Duration::from_secs(60);
const MEMORY_MAX: u64 = 256 << 20;

/// Operation that detects a forgery.
#[derive(Clone, Copy, PartialEq)]
enum Shows {
    /// The image does not open.
    Open,
    /// Reading everything fails, and a check fails, too.
    Read,
    /// Reading gives valid data or fails elsewhere; a check reports the rule.
    Check,
}

struct Case {
    what: &'static str,
    rule: &'static str,
    shows: Shows,
    forge: Box<dyn Fn(&mut Parts)>,
}

fn case(
    what: &'static str,
    rule: &'static str,
    shows: Shows,
    forge: impl Fn(&mut Parts) + 'static,
) -> Case {
    Case {
        what,
        rule,
        shows,
        forge: Box::new(forge),
    }
}

/// A case that edits the raw records.
fn records(what: &'static str, rule: &'static str, shows: Shows, edit: fn(&mut Vec<Raw>)) -> Case {
    case(what, rule, shows, move |p| {
        p.edit_records = Some(Box::new(edit))
    })
}

/// A case that edits the index entries of the records of one type.
fn refs(
    what: &'static str,
    rule: &'static str,
    shows: Shows,
    of: RecordType,
    edit: impl Fn(&mut RecordRef, &mut u64) + Clone + 'static,
) -> Case {
    case(what, rule, shows, move |p| {
        let edit = edit.clone();
        p.edit_refs = Some((
            of,
            Box::new(move |refs, items| edit(&mut refs[0], &mut items[0])),
        ));
    })
}

fn of_type(records: &mut [Raw], record_type: RecordType) -> &mut Raw {
    records
        .iter_mut()
        .find(|r| r.record_type == record_type)
        .unwrap()
}

fn position(parts: &Parts, name: &str) -> usize {
    parts
        .entries
        .iter()
        .position(|e| e.name == name.as_bytes())
        .unwrap()
}

fn named<'a>(parts: &'a mut Parts, name: &str) -> &'a mut Entry {
    let at = position(parts, name);
    &mut parts.entries[at]
}

/// Peak memory since the last call, in bytes.
fn peak_len() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|l| l.strip_prefix("VmHWM:"))
        .unwrap();
    let peak = line
        .trim()
        .trim_end_matches("kB")
        .trim()
        .parse::<u64>()
        .unwrap()
        * 1024;
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    peak
}

fn rule_of(error: &Error) -> &'static str {
    error.place().map_or("?", |p| p.rule)
}

/// Opens, reads and checks; returns the deviations from `case` as text.
fn try_case(case: &Case) -> Result<(), String> {
    let mut parts = Parts::base();
    (case.forge)(&mut parts);
    let bytes = parts.bytes();
    drop(parts);
    let image = match open(bytes) {
        Err(error) => {
            let is_right = case.shows == Shows::Open && rule_of(&error) == case.rule;
            return if is_right {
                Ok(())
            } else {
                Err(format!("does not open: {error}"))
            };
        }
        Ok(_) if case.shows == Shows::Open => return Err("opens".into()),
        Ok(image) => image,
    };
    let (findings, report) = timed("check", || check(&image, false))?;
    image.drop_caches();
    let shown = timed("reading", || read_some(&image, 500))?;
    if shown.is_ok() && case.shows == Shows::Read {
        return Err("everything can be read".into());
    }
    let is_met =
        shown.is_err_and(|e| rule_of(&e) == case.rule) || rules(&findings).contains(&case.rule);
    if report.is_clean() || !is_met {
        return Err(format!("check finds {findings:?}"));
    }
    image.drop_caches();
    timed("check of digests", || check(&image, true))?;
    image.drop_caches();
    let structure = timed("check of the structure", || image.check_structure(None))?;
    let needs_data = NEEDS_DATA.iter().any(|rule| case.rule.starts_with(rule));
    if structure.is_ok() && !needs_data {
        Err("the check of the structure finds nothing".into())
    } else {
        Ok(())
    }
}

/// Rules that a check without the data cannot see broken, or the beginnings of their names: of data
/// records, dictionaries, histories and recipes, and of digests of contents.
const NEEDS_DATA: [&str; 9] = [
    "F-3.11", "F-3.14", "F-11.5", "F-15.3", "F-16.1", "F-20.", "F-24.", "F-25.", "F-28.",
];

fn timed<T>(what: &str, run: impl FnOnce() -> T) -> Result<T, String> {
    peak_len();
    let start = Instant::now();
    let out = run();
    let (time, memory) = (start.elapsed(), peak_len());
    if time < TIME_MAX && memory < MEMORY_MAX {
        Ok(out)
    } else {
        Err(format!("{what} took {time:?} and {} MiB", memory >> 20))
    }
}

#[test]
fn every_lie_is_an_error_in_bounded_time_and_memory() {
    let cases = [
        records::container_cases(),
        records::codec_cases(),
        tree::entry_cases(),
        tree::template_cases(),
        contents::content_cases(),
        contents::page_cases(),
    ];
    let mut wrong = Vec::new();
    for case in cases.iter().flatten() {
        if let Err(what) = try_case(case) {
            wrong.push(format!("{} ({}): {what}", case.what, case.rule));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
