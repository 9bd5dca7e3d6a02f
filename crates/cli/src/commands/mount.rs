//! `weald mount`: mounts an image as a read-only file system, or a volume as one that can be
//! written to. By default a server that many mounts share serves an image; each volume has its own.

use super::dead;
use super::mount_args::MountArgs;
use super::mount_kernel::{self, MountMethod};
use super::mount_overlay;
use super::remount;
use super::store::wait::until_free;
use crate::background;
use crate::foreign;
use crate::open::default_cache_len;
use crate::open_store::{open_dir, silence_engine};
use crate::runtime_dir::runtime_dir;
use crate::url_args;
use anyhow::{Context, Result, bail};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use weald_daemon::{
    MountRequest, OpenedRequest, Prefetch, Server, ServerOptions, Started, VolumeMountOptions,
};
use weald_format::ByteLen;
use weald_fuse::{MountOptions, is_automount};
use weald_store::LOCK_FILE;

/// The server that serves a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerChoice {
    /// The shared server; it is started if it does not run.
    Shared,
    /// The shared server if it runs, otherwise an own process.
    SharedIfRunning,
    /// An own process.
    Own,
}

/// Mounts an image; returns when the mount is complete, or with `--foreground` when it has ended.
///
/// # Errors
/// Any error before the mount is complete.
pub fn run(mut args: MountArgs) -> Result<ExitCode> {
    if args.quiet {
        log::set_max_level(log::LevelFilter::Error);
    }
    foreign::refuse_swapped(&args.image, &args.dir, "weald mount IMAGE DIRECTORY")?;
    if args.follow {
        args.options.push("follow".to_owned());
    }
    let uids = args.map_uid.iter().map(|range| format!("map_uid={range}"));
    let gids = args.map_gid.iter().map(|range| format!("map_gid={range}"));
    let maps: Vec<String> = uids.chain(gids).collect();
    args.options.extend(maps);
    if is_volume(&args.image)? {
        refuse_kernel_flags(&args)?;
        args.options
            .extend(args.wait.map(|seconds| format!("wait={seconds}")));
        if VolumeMountOptions::parse(&args.options)?
            .writable
            .is_remount
        {
            remount::run(&args.image, &args.dir, &args.options)?;
            return Ok(ExitCode::SUCCESS);
        }
        return if args.foreground {
            // Who starts a server has waited.
            if !args.ready_stdout {
                wait_for_writer(&args)?;
            }
            serve(&args)
        } else {
            mount(&args, ServerChoice::Own)
        };
    }
    let method = mount_kernel::choose_method(&mut args)?;
    if method != MountMethod::Fuse {
        dead::clear(&args.dir)?;
    }
    match method {
        MountMethod::Kernel => return mount_kernel::run(&args),
        MountMethod::Overlay => return mount_overlay::run(&args),
        MountMethod::Fuse if args.foreground => return serve(&args),
        MountMethod::Fuse => {}
    }
    mount(
        &args,
        // Credentials, proxies and cache are those of this process: its own server inherits them.
        if args.isolated || weald_remote::is_url(&args.image) {
            ServerChoice::Own
        } else {
            ServerChoice::Shared
        },
    )
}

/// Whether `image` is STORE:NAME of a volume.
///
/// # Errors
/// A store that cannot be read.
pub fn is_volume(image: &Path) -> Result<bool> {
    match weald_store::split(image) {
        Some((store, name)) => Ok(weald_daemon::is_volume(&open_dir(&store)?, &name)?),
        None => Ok(false),
    }
}

/// Refuses the options of mounts by the kernel, which shows only images.
fn refuse_kernel_flags(args: &MountArgs) -> Result<()> {
    if args.kernel.kernel || args.kernel.overlay {
        let what = "--kernel and --overlay mount images; a volume needs neither";
        bail!("{}: {what}: it can be written to", args.image.display());
    }
    Ok(())
}

/// Opens the image and the mount point, and makes all paths absolute: a server has another
/// working directory.
fn open_request(args: &MountArgs) -> Result<OpenedRequest> {
    if is_volume(&args.image)? {
        VolumeMountOptions::parse(&args.options)?;
    } else {
        let options = MountOptions::parse(&args.options)?;
        url_args::apply_options(&args.image, &options.url)?;
        // The server alone asks for the object of a URL.
        let described = !weald_remote::is_url(&args.image);
        let described = described.then(|| foreign::describe(&args.image, options.start));
        if let Some(what) = described.flatten() {
            bail!("{}: {what}", args.image.display());
        }
    }
    let existing = |path: &Path| {
        path.canonicalize()
            .with_context(|| path.display().to_string())
    };
    let to_make = |path: &PathBuf| std::path::absolute(path).map(PathBuf::into_os_string);
    let prefetch = match &args.prefetch {
        None => None,
        Some(word) if word == "all" => Some(Prefetch::All),
        Some(path) => Some(Prefetch::File(existing(path.as_ref())?.into())),
    };
    let request = MountRequest {
        options: args.options.clone(),
        working_dir: std::env::current_dir().context("working directory")?.into(),
        prefetch,
        record: args.record.as_ref().map(to_make).transpose()?,
        trace: args.trace.as_ref().map(to_make).transpose()?,
        log: args.log.as_ref().map(to_make).transpose()?,
        ..MountRequest::default()
    };
    dead::clear(&args.dir)?;
    let opened = OpenedRequest::open(&args.image, &args.dir, request)?;
    dead::refuse_twice(opened.request())?;
    Ok(opened)
}

/// Mounts an image or a volume in the background.
///
/// # Errors
/// As [`run`].
pub fn mount(args: &MountArgs, choice: ServerChoice) -> Result<ExitCode> {
    let request = open_request(args)?;
    if !rustix::process::geteuid().is_root() {
        warn_of_ignored(&args.options);
    }
    if request.request().is_volume {
        return mount_volume(args, &request);
    }
    if choice == ServerChoice::Own {
        return start_alone(&request);
    }
    let runtime_dir = match runtime_dir() {
        Ok(runtime_dir) => runtime_dir,
        Err(error) => {
            log::warn!("{error}; the mount gets a server of its own");
            return start_alone(&request);
        }
    };
    match choice {
        ServerChoice::SharedIfRunning if !weald_daemon::attach(&runtime_dir, &request)? => {
            start_alone(&request)
        }
        ServerChoice::SharedIfRunning => Ok(ExitCode::SUCCESS),
        _ => {
            let words = ["serve", "--ready-stdout", "--until-idle"];
            let mut start = || match background::start(words, None) {
                Ok(true) => Ok(Started::Yes),
                Ok(false) => Ok(Started::No),
                Err(error) => Err(weald_format::Error::invalid(format!("{error:#}"))),
            };
            match weald_daemon::mount(&runtime_dir, &request, &mut start)? {
                Started::Yes => Ok(ExitCode::SUCCESS),
                Started::No => Ok(ExitCode::from(crate::status::FAILED)),
            }
        }
    }
}

/// Says which words have no effect for a user who is not root: fusermount3 mounts without them.
fn warn_of_ignored(options: &[String]) {
    let words = options.iter().flat_map(|list| list.split(','));
    let ignored: Vec<&str> = words
        .filter(|word| ["suid", "dev"].contains(word))
        .collect();
    if !ignored.is_empty() {
        let words = ignored.join(",");
        log::warn!("-o {words}: only root's mounts can have that: mounted with nosuid,nodev");
    }
}

/// Waits as long as `wait=` says until nobody writes to the store of a volume.
fn wait_for_writer(args: &MountArgs) -> Result<()> {
    let wait = VolumeMountOptions::parse(&args.options)?.wait;
    match weald_store::split(&args.image) {
        Some((store, _)) if !wait.is_zero() => until_free(&open_dir(&store)?, wait),
        _ => Ok(()),
    }
}

/// Mounts a volume: the process that has its store open mounts it, too, or else a new one.
fn mount_volume(args: &MountArgs, request: &OpenedRequest) -> Result<ExitCode> {
    wait_for_writer(args)?;
    // A process outside the group of an automounter would block on the mount point.
    if args.isolated || is_automount(&args.dir) {
        return start_alone(request);
    }
    let lock = weald_store::split(&args.image).map(|(store, _)| store.join(LOCK_FILE));
    let lock = lock.and_then(|path| File::options().read(true).write(true).open(path).ok());
    // A user who may not write to the store can mount a volume of it read-only.
    let Some(lock) = lock else {
        return start_alone(request);
    };
    let runtime_dir = match runtime_dir() {
        Ok(runtime_dir) => runtime_dir,
        Err(error) => {
            log::warn!("{error}; no other volume of the store can be mounted meanwhile");
            return start_alone(request);
        }
    };
    let _alone = runtime_dir.lock_store(lock.as_fd())?;
    if weald_daemon::join(&runtime_dir, request, lock.as_fd())? {
        Ok(ExitCode::SUCCESS)
    } else {
        start_alone(request)
    }
}

/// Starts a server for this mount only.
fn start_alone(opened: &OpenedRequest) -> Result<ExitCode> {
    let request = opened.request();
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
    words.extend(url_args::words());
    words.extend([OsStr::new("--"), &request.image, &request.dir].map(OsString::from));
    if background::start(words, Some(opened))? {
        Ok(ExitCode::SUCCESS)
    } else {
        Ok(ExitCode::from(crate::status::FAILED))
    }
}

/// Mounts the image and serves it until it is unmounted.
fn serve(args: &MountArgs) -> Result<ExitCode> {
    silence_engine();
    let request = if args.ready_stdout {
        OpenedRequest::receive(&background::take_stdin()?)?
    } else {
        open_request(args)?
    };
    let request = request.without_log();
    let cache_len = if request.request().is_volume {
        // A volume has a cache of its own.
        Some(ByteLen(0))
    } else {
        let options = MountOptions::parse(&args.options)?;
        url_args::apply_options(&args.image, &options.url)?;
        options.cache_len
    };
    // While an automounter waits for this mount, only processes of its own group can enter the
    // directory. This process therefore stays in that group until the mount is complete.
    let is_for_automounter = is_automount(&args.dir);
    if args.ready_stdout && !is_for_automounter {
        background::detach()?;
    }
    let runtime_dir = runtime_dir()
        .inspect_err(|error| log::info!("{error}"))
        .ok();
    let server_options = ServerOptions {
        cache_len: cache_len.unwrap_or_else(default_cache_len),
        is_shared: false,
        ends_when_idle: true,
        log: None,
    };
    let url = request.request().url.clone();
    let start = |_: &String| MountOptions::parse(&args.options).map(|options| options.start);
    let start = url.as_ref().map(start).transpose()?;
    let server = Server::start(runtime_dir, server_options, Some(request));
    let server = server.map_err(|error| match url.as_ref().zip(start) {
        Some((url, start)) => foreign::explain(url.as_ref(), start, error),
        None => error.into(),
    })?;
    if args.ready_stdout {
        if is_for_automounter {
            background::detach()?;
        }
        if let Err(error) = background::report_ready(args.log.as_deref()) {
            server.end()?;
            return Err(error);
        }
    }
    server.run()?;
    Ok(ExitCode::SUCCESS)
}
