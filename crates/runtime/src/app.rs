//! The start of a program that carries an image.

use crate::failure::{Context, refuse};
use crate::head::{self, OwnImage};
use crate::message;
use crate::program::{AS_ITSELF, Carried, Program};
use crate::tree::{Carrier, How, Tree};
use rustix::io::FdFlags;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use weald_format::Result;

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
";

/// If this executable carries an image, starts its program, and returns only if that fails.
pub fn run_if_carried(program: &dyn Program, words: &[OsString]) -> Option<ExitCode> {
    if std::env::var_os(AS_ITSELF).is_some() {
        return None;
    }
    let own = File::open("/proc/self/exe").ok()?;
    let started = match head::read(&own) {
        Ok(None) => return None,
        Ok(Some(found)) => start(program, &own, &found, words),
        Err(error) => Err(error),
    };
    Some(started.unwrap_or_else(|error| {
        let name = words.first().map(|word| weald_vfs::shown(word.as_bytes()));
        message::failed(&error.context(name.unwrap_or_default()))
    }))
}

fn start(
    program: &dyn Program,
    own: &File,
    found: &OwnImage,
    words: &[OsString],
) -> Result<ExitCode> {
    let path = std::env::current_exe().context("/proc/self/exe")?;
    let image = Carried {
        file: &path,
        offset: found.offset,
    };
    let carrier = Carrier {
        program,
        opened: own,
        image,
    };
    let run = |tree: &Tree, words: &[OsString]| run(&path, &found.run, tree, words);
    let rest = words.get(1..).unwrap_or_default();
    let word = rest.first().and_then(|word| word.to_str());
    let behind = rest.get(1..).unwrap_or_default();
    let how = || match std::env::var("APPIMAGE_EXTRACT_AND_RUN").as_deref() {
        Ok("1") => Ok(How::Extract),
        _ => How::parse(&std::env::var("WEALD_APP").unwrap_or_default()),
    };
    match word.filter(|word| word.starts_with("--appimage-")) {
        None => run(&carrier.tree(how()?, &kept()?)?, rest),
        Some("--appimage-extract-and-run") => run(&carrier.tree(How::Extract, &kept()?)?, behind),
        Some("--appimage-help") => print(&format!("{HELP}{}", program.notes())),
        Some("--appimage-version") => print(&format!("weald {}\n", env!("CARGO_PKG_VERSION"))),
        Some("--appimage-offset") => print(&format!("{}\n", found.offset)),
        Some("--appimage-extract") => {
            let mut extract = program.extraction(image, EXTRACTED.as_ref(), behind, false);
            Err(extract.exec()).context("extract")
        }
        Some("--appimage-mount") => {
            let tree = carrier.tree(How::Mount, &kept()?)?;
            let mut signals = signal_hook::iterator::Signals::new([SIGHUP, SIGINT, SIGTERM])
                .context("signal handler")?;
            let mut line = tree.dir.as_os_str().as_bytes().to_vec();
            line.push(b'\n');
            std::io::stdout()
                .write_all(&line)
                .context("standard output")?;
            let _ = signals.forever().next();
            Ok(ExitCode::SUCCESS)
        }
        Some(other) => refuse(format!(
            "{other}: unknown; --appimage-help lists what is there"
        )),
    }
}

/// Writes `text` to standard output.
pub fn print(text: &str) -> Result<ExitCode> {
    std::io::stdout()
        .write_all(text.as_bytes())
        .context("standard output")?;
    Ok(ExitCode::SUCCESS)
}

/// The value of `WEALD_APP_KEEP`.
fn kept() -> Result<String> {
    let kept = std::env::var("WEALD_APP_KEEP").unwrap_or_default();
    match kept.as_str() {
        "" => Ok("0".into()),
        "always" => Ok(kept),
        seconds if seconds.parse::<u32>().is_ok() => Ok(kept),
        other => refuse(format!(
            "WEALD_APP_KEEP={other}: expected seconds or always"
        )),
    }
}

/// Becomes `program` in `tree`, which inherits the lock; `path` is the file that carries it.
fn run(path: &Path, program: &str, tree: &Tree, words: &[OsString]) -> Result<ExitCode> {
    let mut command = Command::new(tree.dir.join(program.trim_start_matches('/')));
    command.args(words);
    let set = |name: &str| std::env::var_os(name);
    command.env("APPDIR", &tree.dir).env("APPIMAGE", path);
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
        let dir = beside(path, ending);
        if dir.is_dir() && set(variable).is_none_or(|value| value != dir) {
            command.env(variable, dir);
        }
    }
    rustix::io::fcntl_setfd(&tree.lock, FdFlags::empty()).context("lock")?;
    let error = command.exec();
    refuse(format!(
        "/{program} of the image cannot be started: {error}"
    ))
}

/// The path with `ending` behind its name.
fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(OsStr::new(ending));
    name.into()
}
