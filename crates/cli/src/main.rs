//! The `weald` command: options and messages around the libraries, without logic of its own.
//!
//! Exit status: 0 done; 1 done, but differences, damage or problems were found; 2 failed. A closed
//! pipe gives 0.
#![forbid(unsafe_code)]

mod args;
mod attribute_args;
mod background;
mod choice_args;
mod commands;
mod entry;
mod findings;
mod foreign;
mod help;
mod input_args;
mod interrupt;
mod json;
mod keep_args;
mod looks;
mod messages;
mod metrics;
mod named_volume;
mod open;
mod open_store;
mod other_words;
mod output;
mod pack;
mod parse;
mod printf;
mod progress;
mod reading;
mod remark_args;
mod reported_mounts;
mod rules;
mod runtime_dir;
mod script_args;
mod self_mounting;
mod shape;
mod stages;
mod status;
mod url_args;
mod uuid;
mod version;
mod version_order;
mod volume_state;
mod writer_name;

use clap::{CommandFactory, FromArgMatches};
use signal_hook::consts::SIGXFSZ;
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

/// The allocator of the system; commands that pack ask it for large pages.
#[global_allocator]
static ALLOCATOR: weald_sys::Allocator = weald_sys::Allocator;

fn main() -> ExitCode {
    let mut words: Vec<OsString> = std::env::args_os().collect();
    let is_called = |names: &[&str]| {
        let called = words.first().map(Path::new);
        called.is_some_and(|called| names.iter().any(|name| called.ends_with(name)))
    };
    if is_called(&[weald_runtime::KEEPER]) {
        return weald_runtime::run_keeper(words.get(1..).unwrap_or_default());
    }
    if let Some(status) = weald_runtime::run_if_carried(&self_mounting::Whole, &words) {
        return status;
    }
    // mount(8) calls the other names to remount what /proc/mounts shows as fuse.weald or
    // fuseblk.weald.
    if is_called(&["mount.weald", "mount.fuse.weald", "mount.fuseblk.weald"]) {
        // Only the environment says more about URLs than the options of a mount.
        if let Err(error) = url_args::UrlArgs::default().apply() {
            messages::error(&error);
            return ExitCode::from(status::FAILED);
        }
        return commands::mount_helper::run(words.into_iter().skip(1).collect());
    }
    if is_called(&["umount.weald", "umount.fuse.weald", "umount.fuseblk.weald"]) {
        return commands::umount_helper::run(words.into_iter().skip(1).collect());
    }
    if is_called(&["git-annex-remote-weald"]) {
        return commands::annex::run();
    }
    if let Some(status) = version::answer(&words) {
        return status;
    }
    other_words::as_usual(&mut words);
    let matches = match args::Cli::command().try_get_matches_from(&words) {
        Ok(matches) => matches,
        Err(error) => match other_words::answer(&words, &error) {
            Some(answer) => {
                messages::line(&answer);
                return ExitCode::from(status::FAILED);
            }
            None => return messages::usage(error),
        },
    };
    let cli = args::Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    messages::init(cli.verbose);
    survive_file_size_limit();
    if let Err(error) = cli.urls.apply() {
        messages::error(&error);
        return ExitCode::from(status::FAILED);
    }
    match args::run(cli.command) {
        Ok(_) if volume_state::image::has_left_out() => ExitCode::from(status::FOUND),
        Ok(code) => code,
        Err(_) if output::is_closed() => ExitCode::SUCCESS,
        Err(error) => {
            messages::error(&error);
            ExitCode::from(status::FAILED)
        }
    }
}

/// Installs a handler for SIGXFSZ. The default action of the signal ends the process at `ulimit
/// -f`. With a handler the write fails with an error, so that the command cleans up and reports it,
/// as for a full disk.
fn survive_file_size_limit() {
    // If this fails, the default action stays.
    let _ = signal_hook::flag::register(SIGXFSZ, Arc::default());
}
