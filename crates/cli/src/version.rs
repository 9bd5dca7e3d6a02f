//! `weald -V`: the program's version, what it was made from, and what it reads and writes.

use crate::messages;
use crate::output::Output;
use serde_json::json;
use std::ffi::OsString;
use std::process::ExitCode;
use weald_format::{container, snapshot, store, volume};

/// The commit of the sources, if the build was told (`make`, `make static`).
const COMMIT: Option<&str> = option_env!("WEALD_COMMIT");

/// Words of `--codec`.
const CODECS: [&str; 8] = [
    "none",
    "lz4",
    "lz4hc",
    "zstd",
    "zstd-lean",
    "zstd-code",
    "xz",
    "brotli",
];

/// Names of formats and their highest versions.
const FORMATS: [(&str, u64); 5] = [
    ("image", container::VERSION as u64),
    ("store", store::STORE_VERSION as u64),
    ("volume", volume::VOLUME_VERSION_MAX),
    ("snapshot", snapshot::SNAPSHOT_VERSION),
    ("server_protocol", weald_daemon::PROTOCOL as u64),
];

/// Version of the keys of all commands with --json: docs/json.md says when it changes.
const JSON_VERSION: u64 = 1;

/// Answers if `words`, those of a command line, ask for the version: `weald -V [--json]`.
pub fn answer(words: &[OsString]) -> Option<ExitCode> {
    let (asked, rest) = words.get(1..)?.split_first()?;
    let is_json = match rest {
        [] => false,
        [word] if word == "--json" => true,
        _ => return None,
    };
    if asked != "-V" && asked != "--version" {
        return None;
    }
    match print(is_json) {
        Ok(()) => Some(ExitCode::SUCCESS),
        Err(error) => {
            messages::error(&error);
            Some(ExitCode::from(crate::status::FAILED))
        }
    }
}

fn print(is_json: bool) -> anyhow::Result<()> {
    let version = env!("CARGO_PKG_VERSION");
    let commit = COMMIT.filter(|commit| !commit.is_empty());
    let mut output = Output::new();
    if is_json {
        let formats = FORMATS.map(|(name, version)| (name.to_owned(), version.into()));
        let formats: serde_json::Map<String, serde_json::Value> = formats.into_iter().collect();
        let object = json!({
            "version": version,
            "json_version": JSON_VERSION,
            "commit": commit,
            "formats": formats,
            "codecs": CODECS,
        });
        output.json(&object)?;
    } else {
        let commit = commit.map(|commit| format!(" ({commit})"));
        let formats = FORMATS.map(|(name, version)| format!("{name} {version}").replace('_', " "));
        let (commit, formats) = (commit.unwrap_or_default(), formats.join(", "));
        let codecs = CODECS.join(", ");
        output.text(&format!(
            "weald {version}{commit}\nformats: {formats}\ncodecs: {codecs}\n"
        ))?;
    }
    output.finish()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch: a codec that is listed and unknown.
    #[test]
    fn every_listed_codec_is_one() {
        for codec in CODECS {
            crate::parse::codec_choice(codec).unwrap();
        }
    }
}
