//! `umount.fuse.weald`, also called `umount.fuseblk.weald`, the helper that umount(8) calls for
//! mounts of these types. It unmounts as `weald umount` does: when it returns, the server has
//! closed what it had mounted, and everything is on disk.

use super::umount::{self, UmountArgs};
use crate::messages;
use anyhow::{Context, Result, bail};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

/// Exit codes of helpers, defined by mount(8).
const HELPER_USAGE: u8 = 1;
const HELPER_FAILURE: u8 = 32;

/// Command line that umount(8) passes to a helper.
#[derive(Debug, Default, PartialEq, Eq)]
struct Line {
    dir: PathBuf,
    is_lazy: bool,
    is_forced: bool,
    /// A busy mount becomes read-only.
    is_read_only: bool,
}

/// Does what `umount.fuse.weald DIR [-nlfvr] [-N ns] [-t type]` means; `args` begins after the
/// program's name.
///
/// Exits as umount(8) wants: 0 done, 1 bad usage, 32 could not be unmounted.
pub fn run(args: Vec<OsString>) -> ExitCode {
    let failed = |error: &anyhow::Error, code| {
        messages::error_of("umount.fuse.weald", error);
        ExitCode::from(code)
    };
    let line = match parse(args) {
        Ok(line) => line,
        Err(error) => return failed(&error, HELPER_USAGE),
    };
    match unmount(line) {
        Ok(code) => code,
        Err(error) => failed(&error, HELPER_FAILURE),
    }
}

fn unmount(line: Line) -> Result<ExitCode> {
    let args = UmountArgs {
        dir: line.dir,
        lazy: line.is_lazy,
        in_this_process: false,
    };
    if line.is_forced {
        return umount::force(&args);
    }
    let dir = args.dir.clone();
    let unmounted = umount::run(args);
    if unmounted.is_err() && line.is_read_only {
        let flags = rustix::mount::MountFlags::RDONLY;
        rustix::mount::mount_remount(&dir, flags, c"")
            .with_context(|| format!("{}: remount", dir.display()))?;
        return Ok(ExitCode::SUCCESS);
    }
    unmounted
}

fn parse(args: Vec<OsString>) -> Result<Line> {
    let (mut line, mut paths) = (Line::default(), Vec::new());
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        let Some(letters) = arg.to_str().and_then(|arg| arg.strip_prefix('-')) else {
            paths.push(PathBuf::from(arg));
            continue;
        };
        for letter in letters.chars() {
            match letter {
                'l' => line.is_lazy = true,
                'f' => line.is_forced = true,
                'r' => line.is_read_only = true,
                'n' | 'v' => {}
                't' => drop(args.next().context("-t needs a value")?),
                'N' => bail!("unmounting in another namespace (-N) is not supported"),
                _ => bail!("there is no option -{letter}"),
            }
        }
    }
    let [dir] = <[PathBuf; 1]>::try_from(paths)
        .map_err(|_| anyhow::anyhow!("usage: umount.fuse.weald DIR [-nlfvr]"))?;
    Ok(Line { dir, ..line })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_umount_is_understood() {
        let words = |words: &[&str]| parse(words.iter().map(OsString::from).collect());
        let line = words(&["/mnt", "-lv", "-n", "-t", "fuse.weald"]).expect("well formed");
        assert!(line.is_lazy && !line.is_forced && !line.is_read_only);
        assert_eq!(line.dir, PathBuf::from("/mnt"));
        for (bad, text) in [
            (&["/a", "/b"][..], "usage"),
            (&[], "usage"),
            (&["/a", "-x"], "no option -x"),
            (&["/a", "-N", "5"], "another namespace"),
        ] {
            let error = words(bad).expect_err(text).to_string();
            assert!(error.contains(text), "{error}");
        }
    }
}
