//! What a build says about the image that it made.

use crate::json::{self, Object};
use crate::progress::{bytes, count};
use std::time::Duration;
use weald_builder::Report;

/// Formats `part` as a percentage of `whole`; an empty string if `whole` is 0.
fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        String::new()
    } else {
        format!("{:.1}%", 100.0 * part as f64 / whole as f64)
    }
}

/// Summary of a build.
pub fn summary(report: &Report, time: Duration) -> String {
    let rows = summary_rows(report, time);
    let mut text: String = rows
        .iter()
        .map(|(word, value, note)| line(word, value, note))
        .collect();
    if report.base_len > 0 {
        let note = percent(report.base_len, report.file_len);
        text.push_str(&line(
            "whole files in bases",
            &bytes(report.base_len),
            &note,
        ));
    }
    if let Some(len) = report.appended_len {
        text.push_str(&match len {
            0 => format!(
                "generation    {}, as before: nothing has changed\n",
                report.generation
            ),
            len => format!(
                "generation    {}, {} appended\n",
                report.generation,
                bytes(len)
            ),
        });
        text.push_str(&names(report));
    }
    text.push_str(&format!(
        "image digest  {}\ntree digest   {}\n",
        report.image_digest, report.tree_digest
    ));
    text
}

/// Rows of the summary: word, value, note.
fn summary_rows(report: &Report, time: Duration) -> Vec<(&'static str, String, String)> {
    let saved = |len: u64| (bytes(len), percent(len, report.file_len));
    let (dedup, dedup_share) = saved(report.dedup_len);
    let (segment, segment_share) = saved(report.segment_len);
    let (hole, hole_share) = saved(report.hole_len);
    let (image, image_share) = saved(report.image_len);
    let entry_len = report.tree_len as f64 / report.entry_count.max(1) as f64;
    let rate = report.file_len as f64 / time.as_secs_f64().max(1e-3);
    vec![
        ("entries", count(report.entry_count), String::new()),
        ("bytes in files", bytes(report.file_len), String::new()),
        ("  in holes", hole, hole_share),
        ("  whole files shared", dedup, dedup_share),
        ("  repeats shared", segment, segment_share),
        (
            "  streams expanded",
            bytes(report.made_len),
            format!("to {} more", bytes(report.plain_len)),
        ),
        (
            "  left to compress",
            bytes(report.block_raw_len),
            percent(report.block_raw_len, report.file_len),
        ),
        (
            "data stored",
            bytes(report.block_stored_len),
            percent(report.block_stored_len, report.file_len),
        ),
        (
            "tree stored",
            bytes(report.tree_len),
            format!("{entry_len:.2} bytes an entry"),
        ),
        ("extents stored", bytes(report.extents_len), String::new()),
        ("image", image, image_share),
        ("ratio", ratio(report), String::new()),
        (
            "time",
            format!("{:.1} s", time.as_secs_f64()),
            format!("{}/s", bytes(rate as u64)),
        ),
    ]
}

/// Number of names that an appended generation adds, changes and removes; an empty string for a
/// first generation.
fn names(report: &Report) -> String {
    let Some(changes) = report.changes.filter(|_| report.appended_len != Some(0)) else {
        return String::new();
    };
    let kept = match changes.removed_count {
        0 => String::new(),
        _ => format!("; generation {} keeps them", report.generation - 1),
    };
    format!(
        "names         {} added, {} changed, {} removed{kept}\n",
        count(changes.added_count),
        count(changes.changed_count),
        count(changes.removed_count)
    )
}

fn line(word: &str, value: &str, note: &str) -> String {
    format!("{word:<22}{value:>12}  {note}")
        .trim_end()
        .to_owned()
        + "\n"
}

fn ratio(report: &Report) -> String {
    format!(
        "{:.2}",
        report.file_len as f64 / report.image_len.max(1) as f64
    )
}

/// The same as a JSON object.
pub fn json(report: &Report, time: Duration) -> Object {
    let numbers = [
        ("entry_count", report.entry_count),
        ("stored_entry_count", report.stored_entry_count),
        ("template_count", report.template_count),
        ("content_count", report.content_count),
        ("file_len", report.file_len),
        ("hole_len", report.hole_len),
        ("dedup_len", report.dedup_len),
        ("base_len", report.base_len),
        ("segment_len", report.segment_len),
        ("made_len", report.made_len),
        ("plain_len", report.plain_len),
        ("block_raw_len", report.block_raw_len),
        ("block_stored_len", report.block_stored_len),
        ("extents_len", report.extents_len),
        ("tree_len", report.tree_len),
        ("image_len", report.image_len),
        ("generation", report.generation),
        (
            "appended_len",
            report.appended_len.unwrap_or(report.image_len),
        ),
        ("problem_count", report.problem_count),
        (
            "time_ms",
            u64::try_from(time.as_millis()).unwrap_or(u64::MAX),
        ),
    ];
    let mut object = json::numbers(&numbers);
    let changes = report.changes.map(|changes| {
        [
            ("added_count", changes.added_count),
            ("changed_count", changes.changed_count),
            ("removed_count", changes.removed_count),
        ]
    });
    for (key, number) in changes.into_iter().flatten() {
        object.insert(key.to_owned(), number.into());
    }
    object.insert(
        "image_digest".into(),
        report.image_digest.to_string().into(),
    );
    object.insert("tree_digest".into(), report.tree_digest.to_string().into());
    object
}
