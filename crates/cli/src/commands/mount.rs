//! `weald mount`: has an image served as a read-only file system, by the server that many mounts
//! share unless told otherwise.

use crate::background;
use crate::open::default_cache_len;
use anyhow::{Context, Result};
use clap::{Args, ValueHint};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use weald_daemon::{MountRequest, Place, Prefetch, Server, ServerOptions, Started, default_dir};
use weald_fuse::{MountOptions, is_automount};

/// Mount an image, read-only
///
/// Returns when the mount is live. All mounts of a user are served by one process with one cache,
/// which is started where none runs and ends with the last of them; weald mounts shows it. With
/// --isolated a mount gets a process of its own, which SIGINT, SIGTERM and SIGHUP make unmount.
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
    /// cachesize=SIZE  most memory for decoded data (default: a sixteenth of the memory, but 256M
    /// to 2G); a quarter, but
    ///                 at least 8M, is sure to the tree, which takes 96M or a sixteenth at most; data that nobody
    ///                 reads any more is dropped after a minute or two.
    ///                 Mounts of one server share one cache; one that asks for another size gets its own
    /// workers=N       threads that answer the kernel (default: CPUs and four, or CPUs and two
    /// where no codec makes nine
    ///                 tenths of the data smaller)
    /// max_readahead=SIZE  how far the kernel reads ahead (default: 256K, or 4M where no codec
    /// makes nine tenths of the
    ///                 data smaller; only root's mounts)
    /// offset=SIZE     where the image begins in the file; auto finds one that something was put in
    /// front of digest=HEX      refuse any image but the one with this image digest generation=N
    /// mount the image as it was then; see weald generations basedir=DIR     look for base images
    /// there too; may be given several times subdir=PATH     mount this directory of the image
    /// instead of its root uid=N, gid=N    show everything as owned by this user, this group
    /// umask=OCTAL     take these permission bits away from everything allow_other     let all
    /// users in (what root's mounts do anyway) allow_root      let only yourself and root in
    /// fsname=NAME, subtype=NAME  what /proc/mounts shows nodev, nosuid, noexec, noatime, and dev,
    /// suid, exec, atime
    ///
    /// Words that only mount(8), fstab or systemd understand are accepted; rw is refused.
    #[arg(
        short = 'o',
        long = "options",
        value_name = "OPTIONS",
        verbatim_doc_comment
    )]
    pub options: Vec<String>,
    /// Decode ahead of everybody, in the background: what a file written by --record says, or all
    #[arg(long, value_name = "FILE|all", value_hint = ValueHint::FilePath)]
    pub prefetch: Option<OsString>,
    /// Write to this file, when the mount ends, what was read of the image and in which order
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub record: Option<PathBuf>,
    /// Write a trace of all requests to this file, as chrome://tracing and Perfetto show it
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub trace: Option<PathBuf>,
    /// Give the mount a process of its own, with a cache of its own
    #[arg(long)]
    pub isolated: bool,
    /// Serve in the foreground, alone, and log to standard error
    #[arg(short, long)]
    pub foreground: bool,
    /// Append what the server in the background logs to this file; a shared one logs there from now
    /// on
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub log: Option<PathBuf>,
    /// Be the server in the background: say on standard output when the mount is live
    #[arg(long, hide = true)]
    pub ready_stdout: bool,
}

const MOUNT_EXAMPLES: &str = "\
Examples:
  weald mount forest.weald /mnt
  weald mount -o cachesize=1G,noexec forest.weald /mnt
  weald mount --isolated forest.weald /mnt
  weald mount --record hot forest.weald /mnt   what a program's start reads, until weald umount
  weald mount --prefetch hot forest.weald /mnt
  weald umount /mnt

With a link /sbin/mount.weald to this program, mount(8) and fstab know the type:
  mount -t weald forest.weald /mnt
  /srv/forest.weald  /mnt  weald  ro,nofail  0  0

Servers are found in WEALD_RUNTIME_DIR, else in /run/weald (root), else in $XDG_RUNTIME_DIR/weald, else in /tmp/weald-UID.";

/// Who serves a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// The shared server, which is started if need be.
    Join,
    /// The shared server if one runs, else a process of its own.
    JoinIfThere,
    /// A process of its own.
    Alone,
}

impl MountArgs {
    /// A mount without anything else.
    pub fn of(image: PathBuf, dir: PathBuf, options: Vec<String>) -> Self {
        Self {
            image,
            dir,
            options,
            prefetch: None,
            record: None,
            trace: None,
            isolated: false,
            foreground: false,
            log: None,
            ready_stdout: false,
        }
    }

    /// The same with absolute paths, as a server of another directory understands it.
    fn request(&self) -> Result<MountRequest> {
        MountOptions::parse(&self.options)?;
        let existing = |path: &Path| {
            path.canonicalize()
                .with_context(|| path.display().to_string())
        };
        let to_make = |path: &PathBuf| std::path::absolute(path).map(PathBuf::into_os_string);
        let prefetch = match &self.prefetch {
            None => None,
            Some(word) if word == "all" => Some(Prefetch::All),
            Some(path) => Some(Prefetch::File(existing(path.as_ref())?.into())),
        };
        Ok(MountRequest {
            image: existing(&self.image)?.into(),
            dir: existing(&self.dir)?.into(),
            options: self.options.clone(),
            working_dir: std::env::current_dir().context("working directory")?.into(),
            prefetch,
            record: self.record.as_ref().map(to_make).transpose()?,
            trace: self.trace.as_ref().map(to_make).transpose()?,
            log: self.log.as_ref().map(to_make).transpose()?,
        })
    }
}

/// Mounts an image; returns when the mount is live, or with `--foreground` when it is gone.
///
/// # Errors
/// Whatever keeps the mount from going live.
pub fn run(args: MountArgs) -> Result<ExitCode> {
    if args.foreground {
        return serve(&args);
    }
    mount(&args, if args.isolated { Way::Alone } else { Way::Join })
}

/// Mounts an image in the background.
///
/// # Errors
/// As [`run`].
pub fn mount(args: &MountArgs, way: Way) -> Result<ExitCode> {
    let request = args.request()?;
    if way == Way::Alone {
        return start_alone(&request);
    }
    let place = match place() {
        Ok(place) => place,
        Err(error) => {
            log::warn!("{error}; the mount gets a server of its own");
            return start_alone(&request);
        }
    };
    match way {
        Way::JoinIfThere if !weald_daemon::attach(&place, &request)? => start_alone(&request),
        Way::JoinIfThere => Ok(ExitCode::SUCCESS),
        _ => {
            let mut start = || match background::start(["serve", "--ready-stdout", "--until-idle"])
            {
                Ok(true) => Ok(Started::Yes),
                Ok(false) => Ok(Started::No),
                Err(error) => Err(weald_format::Error::invalid(format!("{error:#}"))),
            };
            match weald_daemon::mount(&place, &request, &mut start)? {
                Started::Yes => Ok(ExitCode::SUCCESS),
                Started::No => Ok(ExitCode::from(crate::FAILED)),
            }
        }
    }
}

/// The place of this user's servers, made if it is missing.
///
/// # Errors
/// As [`Place::make`].
pub fn place() -> weald_format::Result<Place> {
    Place::make(&place_dir())
}

/// Where the place of this user's servers is.
pub fn place_dir() -> PathBuf {
    let uid = rustix::process::geteuid().as_raw();
    default_dir(|name| std::env::var_os(name), uid)
}

/// Starts a server for this mount alone.
fn start_alone(request: &MountRequest) -> Result<ExitCode> {
    let mut words: Vec<OsString> = ["mount", "--foreground", "--ready-stdout"]
        .map(Into::into)
        .into();
    for options in &request.options {
        words.extend(["-o".into(), options.into()]);
    }
    let prefetch = match &request.prefetch {
        None => None,
        Some(Prefetch::All) => Some(OsString::from("all")),
        Some(Prefetch::File(path)) => Some(path.clone()),
    };
    for (flag, value) in [
        ("--prefetch", &prefetch),
        ("--record", &request.record),
        ("--trace", &request.trace),
        ("--log", &request.log),
    ] {
        if let Some(value) = value {
            words.extend([flag.into(), value.clone()]);
        }
    }
    words.extend([OsStr::new("--"), &request.image, &request.dir].map(OsString::from));
    match background::start(words)? {
        true => Ok(ExitCode::SUCCESS),
        false => Ok(ExitCode::from(crate::FAILED)),
    }
}

/// Mounts, and serves until the mount is gone.
fn serve(args: &MountArgs) -> Result<ExitCode> {
    let request = MountRequest {
        log: None,
        ..args.request()?
    };
    let options = MountOptions::parse(&args.options)?;
    // Only its own group of processes an automounter lets in while it waits for this mount.
    let stays = is_automount(&args.dir);
    if args.ready_stdout && !stays {
        background::detach()?;
    }
    let place = place().inspect_err(|error| log::info!("{error}")).ok();
    let server_options = ServerOptions {
        cache_len: options.cache_len.unwrap_or_else(default_cache_len),
        is_shared: false,
        ends_when_idle: true,
        log: None,
    };
    let server = Server::start(place, server_options, Some(request))?;
    if args.ready_stdout {
        if stays {
            background::detach()?;
        }
        background::say_ready(args.log.as_deref())?;
    }
    server.run()?;
    Ok(ExitCode::SUCCESS)
}
