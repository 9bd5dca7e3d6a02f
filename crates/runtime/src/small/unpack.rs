//! Extracts the image behind the program: `OFFSET FILE TARGET [PATTERN…]`.

use super::words::{Words, thread_count};
use crate::failure::Context;
use crate::message;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use weald_export::{ExtractObserver, ExtractOptions, XattrPolicy, extract};
use weald_format::Error;
use weald_format::Result;
use weald_image::OpenOptions;
use weald_vfs::{Choice, PathGlob, Selection, shown};

/// Reports problems, and stops after a signal.
struct Observer {
    is_cancelled: Arc<AtomicBool>,
}

impl ExtractObserver for Observer {
    fn problem(&self, path: &[u8], error: &Error) {
        message::problem(path, error);
    }

    fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Relaxed)
    }
}

/// Extracts as `weald extract` does: all attributes for root, and what other users may set.
pub fn run(words: &[OsString]) -> Result<ExitCode> {
    let words = Words::parse(words)?;
    let was_there = words.dir.symlink_metadata().is_ok();
    let is_root = weald_sys::effective_ids().0 == 0;
    let globs = words
        .rest
        .iter()
        .map(|word| PathGlob::parse(word.as_bytes()));
    let choice = Choice {
        selection: Selection::new(globs.collect::<Result<_, _>>()?),
        ..Choice::default()
    };
    let open_options = OpenOptions {
        reads_everything: choice.is_everything(),
        ..OpenOptions::default()
    };
    let options = ExtractOptions {
        choice,
        thread_count: thread_count(),
        overwrite: false,
        keeps_owner: is_root,
        xattrs: if is_root {
            XattrPolicy::Everything
        } else {
            XattrPolicy::Ordinary
        },
        attributes: Default::default(),
        skips_devices: false,
        keeps_damaged: false,
    };
    let image = words.open(&open_options)?;
    if let Err(error) = weald_sys::raise_open_file_limit() {
        log::info!("limit of open files: {error}");
    }
    let is_cancelled = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&is_cancelled)).context("signal handler")?;
    }
    let observer = Observer { is_cancelled };
    let report = extract(&image, image.root()?, words.dir, &options, &observer)?;
    let unmatched = &report.unmatched.patterns;
    for pattern in unmatched.iter().filter_map(|&no| words.rest.get(no)) {
        let pattern = shown(pattern.as_bytes());
        message::line(&format!("{pattern}: nothing in the image matches"));
    }
    if !unmatched.is_empty() && !was_there {
        // A directory with something in it stays.
        let _ = std::fs::remove_dir(words.dir);
    }
    if report.device_count > 0 {
        let count = report.device_count;
        message::line(&format!("devices left out, which only root makes: {count}"));
    }
    Ok(match report.problem_count + unmatched.len() as u64 {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::from(message::FOUND),
    })
}
