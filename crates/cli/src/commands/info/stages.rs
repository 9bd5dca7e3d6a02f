//! `weald info --stages`: how each step of the build changes the size, from the files to the image.

use crate::json;
use crate::progress::count;
use serde_json::{Value, json};
use weald_image::SpaceUsage;

/// A step, and how it changes the size.
struct Step {
    what: String,
    /// Bytes that the step saves.
    saved: u64,
    /// Bytes that the step adds.
    added: u64,
}

fn steps(usage: &SpaceUsage) -> Vec<Step> {
    let saved = |what: &str, saved| Step {
        what: what.to_owned(),
        saved,
        added: 0,
    };
    let added = |what: &str, added| Step {
        what: what.to_owned(),
        saved: 0,
        added,
    };
    let mut steps = vec![
        saved("equal files and hard links", usage.shared_len),
        added("contents without a name", usage.unnamed_len),
        saved("holes", usage.hole_len),
        saved("made by recipes", usage.made_len),
        saved("in base images", usage.base_len),
    ];
    for stream in &usage.streams {
        let name = stream.category.name();
        let repeats = saved(&format!("repeats in {name}"), stream.repeated_len);
        let padding = added(&format!("unused in {name}"), stream.unreferenced_len);
        steps.extend([repeats, padding]);
    }
    for stream in &usage.streams {
        let name = stream.category.name();
        for (codec, share) in &stream.section.by_codec {
            steps.push(Step {
                what: format!("{name} by {}", codec.name()),
                saved: share.raw_len.saturating_sub(share.stored_len),
                added: share.stored_len.saturating_sub(share.raw_len),
            });
        }
    }
    steps.push(added("tree, extents, recipes, index", usage.metadata_len));
    steps.push(added("footers and older records", usage.other_len));
    steps.retain(|step| step.saved != 0 || step.added != 0);
    steps
}

/// Table for users: the change by each step, and the remaining size.
pub fn text(usage: &SpaceUsage) -> String {
    let mut remaining = usage.named_len;
    let mut text = format!(
        "\n{:<32}{:>20}{:>20}{:>9}\n",
        "stage", "change", "left", "of files"
    );
    let mut row = |what: &str, change: String, remaining: u64| {
        let part = match usage.named_len {
            // There is no percentage of 0.
            0 => String::new(),
            all => format!("{:.1}%", 100.0 * remaining as f64 / all as f64),
        };
        text.push_str(&format!(
            "{what:<32}{change:>20}{:>20}{part:>9}\n",
            count(remaining)
        ));
    };
    row("files, as named", String::new(), remaining);
    for step in steps(usage) {
        remaining = remaining
            .saturating_add(step.added)
            .saturating_sub(step.saved);
        let change = match step.saved {
            0 => format!("+{}", count(step.added)),
            saved => format!("-{}", count(saved)),
        };
        row(&step.what, change, remaining);
    }
    row("image", String::new(), usage.image_len);
    text
}

/// The same data as JSON.
pub fn json(usage: &SpaceUsage) -> Value {
    let numbers = [
        ("named_len", usage.named_len),
        ("shared_len", usage.shared_len),
        ("unnamed_len", usage.unnamed_len),
        ("hole_len", usage.hole_len),
        ("made_len", usage.made_len),
        ("base_len", usage.base_len),
        ("metadata_len", usage.metadata_len),
        ("other_len", usage.other_len),
        ("image_len", usage.image_len),
    ];
    let mut object = json::numbers(&numbers);
    let streams = usage.streams.iter().map(|stream| {
        let codecs = stream.section.by_codec.iter().map(|(codec, share)| {
            json!({
                "codec": codec.name(),
                "raw_len": share.raw_len,
                "stored_len": share.stored_len,
            })
        });
        json!({
            "stream": stream.no,
            "category": stream.category.name(),
            "extent_len": stream.extent_len,
            "repeated_len": stream.repeated_len,
            "unreferenced_len": stream.unreferenced_len,
            "codecs": codecs.collect::<Vec<_>>(),
        })
    });
    object.insert("streams".into(), streams.collect::<Value>());
    object.into()
}
