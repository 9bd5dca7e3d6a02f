//! `weald serve`: starts a shared server before the first mount.

use crate::background;
use crate::help::{DONE_OR_FAILED, Help};
use crate::open::default_cache_len;
use crate::runtime_dir::runtime_dir;
use anyhow::Result;
use clap::{Args, ValueHint};
use std::ffi::OsString;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::PathBuf;
use std::process::ExitCode;
use weald_daemon::{Server, ServerOptions};
use weald_format::{ByteLen, ErrorKind};

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[],
    notes: &[
        "weald mount starts a server if none runs; that server ends with its last mount. A \
         server that this command starts stays until SIGINT, SIGTERM or SIGHUP, which unmount \
         everything.",
        "With --take-over, open files stay open, and readers wait for some milliseconds. Mounts \
         with --record or --trace cannot be taken over. If anything prevents the take-over, the \
         old server goes on. Mounts with their own server (--isolated) are not touched.",
    ],
    examples: &[
        (
            "Start a server with a cache of 4 GiB",
            "weald serve --background --cache 4G",
        ),
        (
            "Replace the server after an upgrade; mounts stay",
            "weald serve --take-over --background",
        ),
    ],
    exit_status: DONE_OR_FAILED,
};

/// Start a server for many mounts with one cache
#[derive(Debug, Args)]
#[command(after_help = HELP.short(), after_long_help = HELP.long())]
pub struct ServeArgs {
    /// Run in the background; return when the server is ready
    #[arg(short, long)]
    pub background: bool,
    /// Take over all mounts of the running server, which then ends
    #[arg(long)]
    pub take_over: bool,
    /// Memory limit of the cache for decoded data (default: 1/16 of the memory, between 256M and
    /// 2G; with --take-over, that of the old server)
    #[arg(long, value_name = "SIZE", value_parser = crate::parse::size)]
    pub cache: Option<u64>,
    /// File to which the background server appends its log (default: no log)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub log: Option<PathBuf>,
    /// Be the background server: write to standard output when it is ready
    #[arg(long, hide = true)]
    pub ready_stdout: bool,
    /// End with the last mount, or at once and silently if another server runs
    #[arg(long, hide = true)]
    pub until_idle: bool,
}

/// Serves until sent to end; with `--background` returns when the server is ready.
///
/// # Errors
/// A server that runs already; with `--take-over`, whatever keeps its mounts where they are.
pub fn run(args: &ServeArgs) -> Result<ExitCode> {
    if args.background {
        return start(args);
    }
    let runtime_dir = runtime_dir()?;
    let log = args.log.as_ref().map(std::path::absolute).transpose()?;
    if args.ready_stdout {
        background::detach()?;
    }
    let cache_len = args.cache.map(ByteLen);
    let server = if args.take_over {
        weald_daemon::take_over(runtime_dir, cache_len)
    } else {
        let options = ServerOptions {
            cache_len: cache_len.unwrap_or_else(default_cache_len),
            is_shared: true,
            ends_when_idle: args.until_idle,
            log: log.clone(),
        };
        if args.until_idle {
            Server::start(Some(runtime_dir), options, None)
        } else {
            weald_daemon::start_lasting(&runtime_dir, &options, cache_len)
        }
    };
    let server = match server {
        Err(error) if error.kind() == ErrorKind::Busy && args.until_idle => {
            background::report_ready(None)?;
            return Ok(ExitCode::SUCCESS);
        }
        other => other?,
    };
    if !args.until_idle {
        notify_systemd();
    }
    if args.ready_stdout {
        background::report_ready(log.or_else(|| server.log()).as_deref())?;
    }
    server.run()?;
    Ok(ExitCode::SUCCESS)
}

fn start(args: &ServeArgs) -> Result<ExitCode> {
    let mut words: Vec<OsString> = vec!["serve".into(), "--ready-stdout".into()];
    if args.take_over {
        words.push("--take-over".into());
    }
    if let Some(len) = args.cache {
        words.extend(["--cache".into(), len.to_string().into()]);
    }
    if let Some(log) = &args.log {
        words.extend(["--log".into(), std::path::absolute(log)?.into()]);
    }
    if background::start(words, None)? {
        Ok(ExitCode::SUCCESS)
    } else {
        Ok(ExitCode::from(crate::status::FAILED))
    }
}

/// Reports with sd_notify(3) that the service is ready, and its process id, which changes in a
/// take-over.
fn notify_systemd() {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    let address = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&socket),
    };
    let text = format!("READY=1\nMAINPID={}\n", std::process::id());
    let sent = address
        .and_then(|address| UnixDatagram::unbound()?.send_to_addr(text.as_bytes(), &address));
    if let Err(error) = sent {
        log::warn!("{}: {error}", socket.display());
    }
}
