//! `mount.weald`, the helper that mount(8) calls, also for fstab and systemd. It mounts as `weald
//! mount` does.
//!
//! The helper uses the shared server if it runs, but does not start it. A server that starts in the
//! systemd unit of one mount ends with that unit, and would end the other mounts too. For an
//! automounter, the helper always starts an own process.

use super::dead;
use super::mount::{self, ServerChoice};
use super::mount_args::MountArgs;
use super::mount_kernel::{self, MountMethod};
use super::mount_overlay;
use super::remount;
use crate::messages;
use anyhow::{Context, Result, bail};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use weald_daemon::VolumeMountOptions;
use weald_fuse::{MountOptions, is_automount, mount_at};
use weald_views::kernel;

/// Exit codes of mount helpers, defined by mount(8).
const HELPER_USAGE: u8 = 1;
const HELPER_FAILURE: u8 = 32;

/// Command line that mount(8) passes to a helper.
#[derive(Debug, Default, PartialEq, Eq)]
struct HelperLine {
    image: PathBuf,
    dir: PathBuf,
    options: Vec<String>,
    is_fake: bool,
    is_volume: bool,
    /// mount(8) changes the flags of a mount that exists.
    is_remount: bool,
}

/// Does what `mount.weald SPEC DIR [-sfnv] [-N ns] [-o options] [-t type]` means; `args` begins
/// after the program's name.
///
/// Exits as mount(8) wants: 0 done, 1 bad usage, 32 could not be mounted.
pub fn run(args: Vec<OsString>) -> ExitCode {
    let line = match parse_helper_line(args) {
        Ok(line) => line,
        Err(error) => return helper_failed(&error, HELPER_USAGE),
    };
    if line.is_fake {
        return ExitCode::SUCCESS;
    }
    let is_volume = line.is_volume;
    if line.is_remount {
        let done = remount::run(&line.image, &line.dir, &line.options);
        return mounted(done.map(|()| ExitCode::SUCCESS));
    }
    let mut args = MountArgs::of(line.image, line.dir, line.options);
    if is_volume {
        return mounted(mount::mount(&args, ServerChoice::Own));
    }
    let method = mount_kernel::choose_method(&mut args);
    if !matches!(method, Ok(MountMethod::Fuse))
        && let Err(error) = dead::clear(&args.dir)
    {
        return helper_failed(&error, HELPER_FAILURE);
    }
    match method {
        Ok(MountMethod::Kernel) => return mounted(mount_kernel::run_once(&args)),
        Ok(MountMethod::Overlay) => return overlay(&args),
        Ok(MountMethod::Fuse) => {}
        Err(error) => return helper_failed(&error, HELPER_USAGE),
    }
    // A running server is outside the automounter's process group: it would block on the mount
    // point that it has to mount. That of a URL has credentials and a cache of its own.
    let choice = if is_automount(&args.dir) || weald_remote::is_url(&args.image) {
        ServerChoice::Own
    } else {
        ServerChoice::SharedIfRunning
    };
    mounted(mount::mount(&args, choice))
}

/// Mounts with the word `overlay`. A line of root's fstab with this word would start a server that
/// root does not need, and leave objects in a second view cache.
fn overlay(args: &MountArgs) -> ExitCode {
    match kernel::is_in_user_namespace() {
        Ok(true) => mounted(mount_overlay::run_once(args)),
        Ok(false) => {
            let error = anyhow::anyhow!(
                "option overlay: is for users in a user namespace; root mounts with the option \
                 kernel, which needs no server"
            );
            helper_failed(&error, HELPER_USAGE)
        }
        Err(error) => helper_failed(&error.into(), HELPER_FAILURE),
    }
}

fn mounted(result: Result<ExitCode>) -> ExitCode {
    match result {
        Ok(code) if code == ExitCode::SUCCESS => code,
        Ok(_) => ExitCode::from(HELPER_FAILURE),
        Err(error) => helper_failed(&error, HELPER_FAILURE),
    }
}

fn helper_failed(error: &anyhow::Error, code: u8) -> ExitCode {
    messages::error_of("mount.weald", error);
    ExitCode::from(code)
}

fn parse_helper_line(args: Vec<OsString>) -> Result<HelperLine> {
    let (mut line, mut paths, mut lists) = (HelperLine::default(), Vec::new(), Vec::new());
    let mut is_sloppy = false;
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        let Some(letters) = arg.to_str().and_then(|arg| arg.strip_prefix('-')) else {
            paths.push(PathBuf::from(arg));
            continue;
        };
        for letter in letters.chars() {
            match letter {
                's' => is_sloppy = true,
                'f' => line.is_fake = true,
                'n' | 'v' => {}
                'o' => lists.push(value_of(letter, &mut args)?),
                't' => drop(value_of(letter, &mut args)?),
                'N' => bail!("mounting into another namespace (-N) is not supported"),
                _ => bail!("there is no option -{letter}"),
            }
        }
    }
    let [image, dir] = <[PathBuf; 2]>::try_from(paths)
        .map_err(|_| anyhow::anyhow!("usage: mount.weald IMAGE DIR [-sfnv] [-o OPTIONS]"))?;
    let image = source_of(image, &dir);
    line.is_volume = mount::is_volume(&image)?;
    // For a remount, mount(8) repeats all words of /proc/mounts, those of the kernel included.
    is_sloppy |= lists
        .iter()
        .any(|list| list.split(',').any(|word| word == "remount"));
    let lists = lists.iter();
    if line.is_volume {
        let is_known = |word: &&str| VolumeMountOptions::parse([word]).is_ok();
        let keeps = |word: &&str| !is_sloppy || is_known(word);
        let known = lists.map(|list| list.split(',').filter(keeps).collect::<Vec<_>>().join(","));
        line.options = known.collect();
        line.is_remount = VolumeMountOptions::parse(&line.options)?
            .writable
            .is_remount;
    } else {
        let known = lists.map(|list| MountOptions::for_helper(list, is_sloppy));
        line.options = known.collect();
        MountOptions::parse(&line.options)?;
    }
    Ok(HelperLine { image, dir, ..line })
}

/// What is mounted on `dir`, if `image` is its block device: for a remount, mount(8) passes what
/// /proc/mounts shows.
fn source_of(image: PathBuf, dir: &Path) -> PathBuf {
    if !image.starts_with("/dev") {
        return image;
    }
    let mounted = weald_fuse::path_of(dir).ok().and_then(|dir| mount_at(&dir));
    match mounted {
        Some(entry) if entry.is_on_block_device() && entry.shown == image => entry.source.into(),
        _ => image,
    }
}

fn value_of(letter: char, args: &mut impl Iterator<Item = OsString>) -> Result<String> {
    let value = args
        .next()
        .with_context(|| format!("-{letter} needs a value"))?;
    value
        .into_string()
        .map_err(|value| anyhow::anyhow!("-{letter} {}: not UTF-8", value.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<HelperLine> {
        parse_helper_line(words.iter().map(OsString::from).collect())
    }

    #[test]
    fn the_line_of_mount_is_understood() {
        let line = parse(&[
            "a.weald",
            "/mnt",
            "-nv",
            "-o",
            "rw,nofail,noexec",
            "-t",
            "weald",
        ]);
        let line = line.expect("well formed");
        assert_eq!(
            (line.image, line.dir),
            (PathBuf::from("a.weald"), PathBuf::from("/mnt"))
        );
        assert_eq!(line.options, ["nofail,noexec"]);
        assert!(
            parse(&["a", "b", "-sf", "-o", "fast"])
                .expect("sloppy")
                .is_fake
        );
    }

    #[test]
    fn bad_lines_are_refused_with_a_reason() {
        let table: [(&[&str], &str); 5] = [
            (&["a"], "usage: mount.weald"),
            (&["a", "b", "c"], "usage: mount.weald"),
            (&["a", "b", "-x"], "there is no option -x"),
            (&["a", "b", "-o"], "-o needs a value"),
            (
                &["a", "b", "-o", "fast"],
                "option 'fast': there is no such option",
            ),
        ];
        for (words, text) in table {
            let error = parse(words).expect_err(text).to_string();
            assert!(error.contains(text), "{words:?}: {error}");
        }
    }
}
