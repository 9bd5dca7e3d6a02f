//! The start of a program that carries an image.

use super::AS_ITSELF;
use super::head::{self, Carried};
use super::tree::{Carrier, How, Tree, itself};
use crate::{messages, status};
use anyhow::{Context, Result, bail};
use rustix::io::FdFlags;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Where `--appimage-extract` puts the files; other runtimes of AppImage use the same name.
const EXTRACTED: &str = "squashfs-root";

const HELP: &str = "\
This file carries the files of a program, and starts it with them (weald build --self-mounting).

  --appimage-extract [PATTERN…]   extract the files to ./squashfs-root
  --appimage-extract-and-run …    start the program with extracted files
  --appimage-mount                mount the files, print where, and wait for Ctrl-C
  --appimage-offset               print the offset of the image in this file
  --appimage-version              print the version of Weald
  --appimage-help                 print this

WEALD_APP=mount|extract|auto      how the program gets its files (auto: by a mount where possible)
WEALD_APP_KEEP=SECONDS|always     how long they stay after its last process (0)
WEALD_AS_ITSELF=1                 be weald: WEALD_AS_ITSELF=1 ./APP ls --offset auto ./APP
";

/// If this executable carries an image, starts its program, and returns only if that fails.
pub fn run_if_carried(words: &[OsString]) -> Option<ExitCode> {
    if std::env::var_os(AS_ITSELF).is_some() {
        return None;
    }
    let own = File::open("/proc/self/exe").ok()?;
    let started = match head::read(&own) {
        Ok(None) => return None,
        Ok(Some(carried)) => start(&own, &carried, words),
        Err(error) => Err(error),
    };
    Some(started.unwrap_or_else(|error| {
        let name = words.first().map(|word| weald_vfs::shown(word.as_bytes()));
        messages::error(&error.context(name.unwrap_or_default()));
        ExitCode::from(status::FAILED)
    }))
}

fn start(own: &File, carried: &Carried, words: &[OsString]) -> Result<ExitCode> {
    let path = std::env::current_exe().context("/proc/self/exe")?;
    let carrier = Carrier {
        file: own,
        path: &path,
        carried,
    };
    let rest = words.get(1..).unwrap_or_default();
    let word = rest.first().and_then(|word| word.to_str());
    let behind = rest.get(1..).unwrap_or_default();
    let how = || match std::env::var("APPIMAGE_EXTRACT_AND_RUN").as_deref() {
        Ok("1") => Ok(How::Extract),
        _ => How::parse(&std::env::var("WEALD_APP").unwrap_or_default()),
    };
    match word.filter(|word| word.starts_with("--appimage-")) {
        None => run(&carrier, &carrier.tree(how()?, &kept()?)?, rest),
        Some("--appimage-extract-and-run") => {
            run(&carrier, &carrier.tree(How::Extract, &kept()?)?, behind)
        }
        Some("--appimage-help") => print(HELP),
        Some("--appimage-version") => print(&format!("weald {}\n", env!("CARGO_PKG_VERSION"))),
        Some("--appimage-offset") => print(&format!("{}\n", carried.offset)),
        Some("--appimage-extract") => {
            let mut extract = itself();
            extract
                .args(["extract", "--offset"])
                .arg(carried.offset.to_string());
            extract.arg("--").arg(&path).arg(EXTRACTED).args(behind);
            Err(extract.exec()).context("extract")
        }
        Some("--appimage-mount") => {
            let tree = carrier.tree(How::Mount, &kept()?)?;
            let mut signals = signal_hook::iterator::Signals::new([SIGHUP, SIGINT, SIGTERM])?;
            let mut line = tree.dir.as_os_str().as_bytes().to_vec();
            line.push(b'\n');
            std::io::stdout().write_all(&line)?;
            let _ = signals.forever().next();
            Ok(ExitCode::SUCCESS)
        }
        Some(other) => bail!("{other}: unknown; --appimage-help lists what is there"),
    }
}

fn print(text: &str) -> Result<ExitCode> {
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// The value of `WEALD_APP_KEEP`.
fn kept() -> Result<String> {
    let kept = std::env::var("WEALD_APP_KEEP").unwrap_or_default();
    match kept.as_str() {
        "" => Ok("0".into()),
        "always" => Ok(kept),
        seconds if seconds.parse::<u32>().is_ok() => Ok(kept),
        other => bail!("WEALD_APP_KEEP={other}: expected seconds or always"),
    }
}

/// Becomes the program in `tree`, which inherits the lock.
fn run(carrier: &Carrier<'_>, tree: &Tree, words: &[OsString]) -> Result<ExitCode> {
    let program = &carrier.carried.description.run;
    let mut command = Command::new(tree.dir.join(program.trim_start_matches('/')));
    command.args(words);
    let set = |name: &str| std::env::var_os(name);
    command
        .env("APPDIR", &tree.dir)
        .env("APPIMAGE", carrier.path);
    if let Some(called) = std::env::args_os().next() {
        command.env("ARGV0", called);
    }
    if let Ok(dir) = std::env::current_dir() {
        command.env("OWD", dir);
    }
    for (ending, variable) in [
        (".home", "HOME"),
        (".config", "XDG_CONFIG_HOME"),
        (".share", "XDG_DATA_HOME"),
        (".cache", "XDG_CACHE_HOME"),
    ] {
        let dir = beside(carrier.path, ending);
        if dir.is_dir() && set(variable).is_none_or(|value| value != dir) {
            command.env(variable, dir);
        }
    }
    rustix::io::fcntl_setfd(&tree.lock, FdFlags::empty()).context("lock")?;
    let error = command.exec();
    bail!("/{program} of the image cannot be started: {error}")
}

/// The path with `ending` behind its name.
fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(OsStr::new(ending));
    name.into()
}
