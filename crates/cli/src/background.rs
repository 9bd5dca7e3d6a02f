//! Starts servers that keep running when the command returns. The server is this program, started
//! again. It reports on its standard output when it is ready. Until then it shares our standard
//! error and writes its errors there.

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

/// Message of the server when it is ready.
const READY: &[u8] = b"ready\n";

/// Starts `weald` with `words` and waits. Returns true when the server is ready, false if it failed
/// and told the user why. `request`, if given, is sent to its standard input.
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
    // `command` holds the other end of the socket.
    drop(command);
    // If the server has ended already, its exit status explains more than the lost connection.
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

/// Takes the socket that is the server's standard input, and replaces it with `/dev/null`.
pub fn take_stdin() -> Result<UnixStream> {
    let stdin = std::io::stdin().as_fd().try_clone_to_owned()?;
    let null = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(&null)?;
    Ok(UnixStream::from(stdin))
}

/// Makes this server independent of its parent: a new session, and `/` as the working directory.
pub fn detach() -> Result<()> {
    // setsid(2) fails only for the leader of a process group, which a new process is not.
    rustix::process::setsid().context("new session")?;
    // A working directory elsewhere would keep its file system busy.
    std::env::set_current_dir("/").context("/")
}

/// Tells the parent process that this server is ready, then closes its terminal. Later messages go
/// to `log`.
pub fn report_ready(log: Option<&Path>) -> Result<()> {
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let mut stdout = std::io::stdout();
    if log.is_some() {
        weald_daemon::log_to(log)?;
    }
    // The server continues even if the parent process has ended meanwhile.
    let _ = stdout.write_all(READY).and_then(|()| stdout.flush());
    if log.is_none() {
        weald_daemon::log_to(None)?;
    }
    rustix::stdio::dup2_stdout(&null)?;
    Ok(())
}
