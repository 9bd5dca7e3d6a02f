//! `weald mount`: serves an image as a read-only file system, in the background unless told otherwise; and
//! `mount.weald`, by which mount(8) and fstab come to the same.
//!
//! The background server is this program started anew: it says on its standard output when the mount is live, and what
//! went wrong on the standard error that it shares with us until then.

use crate::open::default_cache_len;
use anyhow::{Context, Result, bail};
use clap::Args;
use log::LevelFilter;
use rustix::fs::{Mode, OFlags};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use weald_format::ErrorKind;
use weald_fuse::{Busy, MountOptions, Presence, Unmounter};
use weald_image::{Image, OpenOptions};

/// What the server says when the mount is live.
const READY: &[u8] = b"ready\n";

/// Exit codes of a mount helper, of mount(8).
const HELPER_USAGE: u8 = 1;
const HELPER_FAILURE: u8 = 32;

/// Mount an image, read-only
///
/// Returns when the mount is live; a server stays in the background until it is unmounted. SIGINT, SIGTERM and SIGHUP
/// make the server unmount.
#[derive(Debug, Args)]
#[command(after_long_help = MOUNT_EXAMPLES)]
pub struct MountArgs {
    /// The image to mount
    #[arg(value_name = "IMAGE")]
    pub image: PathBuf,
    /// The directory to mount it on
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// Mount options, separated by commas; may be given several times
    ///
    /// cachesize=SIZE  most memory for decoded data (default: a sixteenth of the memory, but 256M to 2G); a quarter, but
    ///                 at least 8M, is for the tree; data that nobody reads any more is dropped after a minute or two
    /// workers=N       threads that answer the kernel (default: one per CPU)
    /// offset=SIZE     where the image begins in the file; auto finds one that something was put in front of
    /// digest=HEX      refuse any image but the one with this image digest
    /// generation=N    mount the image as it was then; see weald generations
    /// basedir=DIR     look for base images there too; may be given several times
    /// subdir=PATH     mount this directory of the image instead of its root
    /// uid=N, gid=N    show everything as owned by this user, this group
    /// umask=OCTAL     take these permission bits away from everything
    /// allow_other     let all users in (what root's mounts do anyway)
    /// allow_root      let only yourself and root in
    /// fsname=NAME, subtype=NAME  what /proc/mounts shows
    /// nodev, nosuid, noexec, noatime, and dev, suid, exec, atime
    ///
    /// Words that only mount(8), fstab or systemd understand are accepted; rw is refused.
    #[arg(
        short = 'o',
        long = "options",
        value_name = "OPTIONS",
        verbatim_doc_comment
    )]
    pub options: Vec<String>,
    /// Serve in the foreground and log to standard error
    #[arg(short, long)]
    pub foreground: bool,
    /// Append what the server in the background logs to this file
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// Be the server in the background: say on standard output when the mount is live
    #[arg(long, hide = true)]
    pub ready_stdout: bool,
}

const MOUNT_EXAMPLES: &str = "\
Examples:
  weald mount forest.weald /mnt
  weald mount -o cachesize=1G,noexec forest.weald /mnt
  weald mount --foreground forest.weald /mnt
  weald umount /mnt

With a link /sbin/mount.weald to this program, mount(8) and fstab know the type:
  mount -t weald forest.weald /mnt
  /srv/forest.weald  /mnt  weald  ro,nofail  0  0";

/// Mounts an image; returns when the mount is live, or with `--foreground` when it is gone.
///
/// # Errors
/// Whatever keeps the mount from going live.
pub fn run(args: MountArgs) -> Result<ExitCode> {
    if args.foreground {
        serve(&args)
    } else {
        start_server(&args)
    }
}

/// Starts the server and waits until it is ready or has failed; it has told the user why.
fn start_server(args: &MountArgs) -> Result<ExitCode> {
    MountOptions::parse(&args.options)?;
    let image = args
        .image
        .canonicalize()
        .with_context(|| args.image.display().to_string())?;
    let dir = args
        .dir
        .canonicalize()
        .with_context(|| args.dir.display().to_string())?;
    let mut server = server_command(args, &image, &dir)?
        .spawn()
        .context("start of the server")?;
    let mut said = Vec::new();
    if let Some(mut stdout) = server.stdout.take() {
        stdout
            .read_to_end(&mut said)
            .context("answer of the server")?;
    }
    if said == READY {
        return Ok(ExitCode::SUCCESS);
    }
    let status = server.wait().context("end of the server")?;
    match status.code() {
        Some(2) => Ok(ExitCode::from(2)),
        _ => bail!("the server ended before the mount was live ({status})"),
    }
}

fn server_command(args: &MountArgs, image: &Path, dir: &Path) -> Result<Command> {
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0("weald")
        .args(["mount", "--foreground", "--ready-stdout"]);
    match log::max_level() {
        LevelFilter::Info => drop(command.arg("-v")),
        LevelFilter::Debug | LevelFilter::Trace => drop(command.arg("-vv")),
        _ => {}
    }
    for options in &args.options {
        command.arg("-o").arg(options);
    }
    if let Some(log) = &args.log {
        let log = std::path::absolute(log).with_context(|| log.display().to_string())?;
        command.arg("--log").arg(log);
    }
    command.arg("--").arg(image).arg(dir);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    Ok(command)
}

/// Mounts, and serves until the mount is gone.
fn serve(args: &MountArgs) -> Result<ExitCode> {
    if args.ready_stdout {
        // Fails only for the leader of a process group, which a new process is not.
        rustix::process::setsid().context("new session")?;
    }
    // From here on a signal waits for the mount instead of killing us with the mount half made.
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("signals")?;
    let signals_handle = signals.handle();
    let options = MountOptions::parse(&args.options)?;
    let image = open(&args.image, &options)?;
    if args.ready_stdout {
        // Base images may have been named from here; from now on nobody is kept from unmounting where we are.
        std::env::set_current_dir("/").context("/")?;
    }
    let source = std::path::absolute(&args.image)?;
    let mount = weald_fuse::mount(image, source.as_os_str(), &args.dir, &options)
        .with_context(|| args.dir.display().to_string())?;
    let presence = Presence::announce(&mount);
    let unmounter = mount.unmounter();
    let watcher = std::thread::spawn(move || unmount_on_signal(&mut signals, &unmounter));
    if args.ready_stdout {
        say_ready(args.log.as_deref())?;
    }
    mount
        .wait()
        .with_context(|| args.dir.display().to_string())?;
    signals_handle.close();
    // A watcher that panicked has said so; the mount is gone either way.
    let _ = watcher.join();
    drop(presence);
    Ok(ExitCode::SUCCESS)
}

fn open(path: &Path, options: &MountOptions) -> Result<Image> {
    let open_options = OpenOptions {
        cache_len: options.cache_len.unwrap_or_else(default_cache_len),
        expected_digest: options.expected_digest,
        generation: options.generation,
        base_dirs: options.base_dirs.clone(),
        prefetch_threads: std::thread::available_parallelism().map_or(1, usize::from),
        ..OpenOptions::default()
    };
    Ok(Image::open_path(path, options.start, &open_options)?)
}

/// The first signal unmounts; if the mount is in use it stays for its users, and the next signal ends us at once.
fn unmount_on_signal(signals: &mut Signals, unmounter: &Unmounter) {
    for (count, _) in signals.forever().enumerate() {
        if count > 0 {
            std::process::exit(2);
        }
        let unmounted = match unmounter.unmount(Busy::Refuse) {
            Err(error) if error.kind() == ErrorKind::Busy => {
                log::warn!(
                    "{error}; serving those who use it until they are done, or until the next signal"
                );
                unmounter.unmount(Busy::Detach)
            }
            other => other,
        };
        if let Err(error) = unmounted {
            log::error!("{error}");
        }
    }
}

/// Tells the parent, then lets go of its terminal.
fn say_ready(log: Option<&Path>) -> Result<()> {
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::CLOEXEC;
    let log = match log {
        Some(path) => Some(
            rustix::fs::open(path, flags, Mode::from_raw_mode(0o644))
                .with_context(|| path.display().to_string())?,
        ),
        None => None,
    };
    let mut stdout = std::io::stdout();
    // A parent that has gone away meanwhile is no reason to unmount.
    let _ = stdout.write_all(READY).and_then(|()| stdout.flush());
    rustix::stdio::dup2_stderr(log.as_ref().unwrap_or(&null))?;
    rustix::stdio::dup2_stdout(&null)?;
    Ok(())
}

/// The command line that mount(8) gives to a helper.
#[derive(Debug, Default, PartialEq, Eq)]
struct HelperLine {
    image: PathBuf,
    dir: PathBuf,
    options: Vec<String>,
    is_fake: bool,
}

/// Does what `mount.weald SPEC DIR [-sfnv] [-N ns] [-o options] [-t type]` means; `args` begins after the program's name.
///
/// Exits as mount(8) wants: 0 done, 1 bad usage, 32 could not be mounted.
pub fn run_mount_helper(args: Vec<OsString>) -> ExitCode {
    let line = match parse_helper_line(args) {
        Ok(line) => line,
        Err(error) => return helper_failed(&error, HELPER_USAGE),
    };
    if line.is_fake {
        return ExitCode::SUCCESS;
    }
    let HelperLine {
        image,
        dir,
        options,
        ..
    } = line;
    let args = MountArgs {
        image,
        dir,
        options,
        foreground: false,
        log: None,
        ready_stdout: false,
    };
    match run(args) {
        Ok(code) if code == ExitCode::SUCCESS => code,
        Ok(_) => ExitCode::from(HELPER_FAILURE),
        Err(error) => helper_failed(&error, HELPER_FAILURE),
    }
}

fn helper_failed(error: &anyhow::Error, code: u8) -> ExitCode {
    // Nothing can be done where even standard error is gone.
    let _ = writeln!(std::io::stderr(), "mount.weald: {error:#}");
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
    line.options = lists
        .iter()
        .map(|list| MountOptions::for_helper(list, is_sloppy))
        .collect();
    MountOptions::parse(&line.options)?;
    Ok(HelperLine { image, dir, ..line })
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
