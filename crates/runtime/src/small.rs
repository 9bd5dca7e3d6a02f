//! The program of this crate: it starts what lies in the image behind it, and does nothing else.

mod serve;
mod unpack;
mod words;

use crate::failure::refuse;
use crate::program::{Carried, Program, itself};
use crate::{app, keeper, message};
use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, ExitCode};
use weald_format::Result;

/// Names under which the program is started again.
const MOUNT: &str = "weald-app-mount";
const UNPACK: &str = "weald-app-unpack";

const HELP: &str = "\
This program stands before an image and starts the program in it, with its files:
weald build --self-mounting --runtime weald-runtime TREE APP. It reads image files, and nothing
else; the command weald does the rest.
";

/// Runs the program with `words`, its name first; returns its status.
pub fn main(words: &[OsString]) -> ExitCode {
    log::set_max_level(log::LevelFilter::Warn);
    // Fails only if a logger is there already, which is used.
    let _ = log::set_logger(&message::Logger);
    let (name, rest) = match words.split_first() {
        Some((name, rest)) => (name.to_str().unwrap_or_default(), rest),
        None => ("", words),
    };
    let done = match name {
        keeper::KEEPER => return keeper::run(rest),
        MOUNT => serve::start(rest),
        serve::SERVER => serve::run(rest),
        UNPACK => unpack::run(rest),
        _ => match app::run_if_carried(&Small, words) {
            Some(status) => return status,
            None => alone(rest),
        },
    };
    done.unwrap_or_else(|error| message::failed(&error))
}

/// What the program does without an image.
fn alone(words: &[OsString]) -> Result<ExitCode> {
    if std::fs::exists("/proc/self/exe").is_ok_and(|exists| !exists) {
        return refuse("/proc is not mounted, and without it no program finds its image");
    }
    match words.first().and_then(|word| word.to_str()) {
        Some("-V" | "--version") => {
            app::print(concat!("weald-runtime ", env!("CARGO_PKG_VERSION"), "\n"))
        }
        Some("-h" | "--help") => app::print(HELP),
        _ => refuse(
            "no image is behind this program: weald build --self-mounting makes files with one",
        ),
    }
}

/// The program of this crate.
struct Small;

impl Program for Small {
    fn mounting(&self, image: Carried<'_>, dir: &Path) -> Command {
        let mut command = itself(MOUNT);
        command
            .arg(image.offset.to_string())
            .arg(image.file)
            .arg(dir);
        command
    }

    fn extraction(
        &self,
        image: Carried<'_>,
        target: &Path,
        patterns: &[OsString],
        _is_quiet: bool,
    ) -> Command {
        let mut command = itself(UNPACK);
        command
            .arg(image.offset.to_string())
            .arg(image.file)
            .arg(target);
        command.args(patterns);
        command
    }

    fn take_away_dead(&self, dir: &Path) -> Result<()> {
        weald_fuse::take_away_dead(dir, weald_fuse::is_dead)
    }

    fn notes(&self) -> &str {
        ""
    }
}
