//! Servers that stay when the command returns: this program started anew, which says on its
//! standard output when it is ready, and what went wrong on the standard error that it shares with
//! us until then.

use anyhow::{Context, Result, bail};
use log::LevelFilter;
use rustix::fs::{Mode, OFlags};
use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use weald_daemon::OpenedRequest;

/// What the server says when it is ready.
const READY: &[u8] = b"ready\n";

/// Starts `weald` with `words` and waits until it is ready (true) or has told the user why it
/// cannot be. The request, if there is one, goes to its standard input.
pub fn start<A: AsRef<OsStr>>(
    words: impl IntoIterator<Item = A>,
    request: Option<&OpenedRequest>,
) -> Result<bool> {
    weald_sys::close_all_on_exec();
    let mut command = Command::new("/proc/self/exe");
    command.arg0("weald");
    match log::max_level() {
        LevelFilter::Info => drop(command.arg("-v")),
        LevelFilter::Debug | LevelFilter::Trace => drop(command.arg("-vv")),
        _ => {}
    }
    command.args(words);
    let (ours, theirs) = UnixStream::pair().context("socket")?;
    command.stdin(match request {
        Some(_) => Stdio::from(OwnedFd::from(theirs)),
        None => Stdio::null(),
    });
    command.stdout(Stdio::piped());
    let mut server = command.spawn().context("start of the server")?;
    // Holds the other end of the socket.
    drop(command);
    // Where the server has ended already, its status says more than the lost connection.
    let sent = request.map_or(Ok(()), |request| request.send(&ours));
    drop(ours);
    let mut said = Vec::new();
    if let Some(mut stdout) = server.stdout.take() {
        stdout
            .read_to_end(&mut said)
            .context("answer of the server")?;
    }
    if said == READY {
        return Ok(true);
    }
    let status = server.wait().context("end of the server")?;
    match status.code() {
        Some(2) => {
            sent?;
            Ok(false)
        }
        _ => bail!("the server ended before it was ready ({status})"),
    }
}

/// The socket that is the standard input of a server, which gets an empty one instead.
pub fn take_stdin() -> Result<UnixStream> {
    let stdin = std::io::stdin().as_fd().try_clone_to_owned()?;
    let null = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(&null)?;
    Ok(UnixStream::from(stdin))
}

/// Leaves the session and the directory of whoever has started us; for the server itself.
pub fn detach() -> Result<()> {
    // Fails only for the leader of a process group, which a new process is not.
    rustix::process::setsid().context("new session")?;
    // Nobody is kept from unmounting where we are.
    std::env::set_current_dir("/").context("/")
}

/// Tells the starter that we are ready, then lets go of its terminal; messages go to `log` from
/// here on.
pub fn say_ready(log: Option<&Path>) -> Result<()> {
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let mut stdout = std::io::stdout();
    if log.is_some() {
        weald_daemon::log_to(log)?;
    }
    // A starter that has gone away meanwhile is no reason to end.
    let _ = stdout.write_all(READY).and_then(|()| stdout.flush());
    if log.is_none() {
        weald_daemon::log_to(None)?;
    }
    rustix::stdio::dup2_stdout(&null)?;
    Ok(())
}
