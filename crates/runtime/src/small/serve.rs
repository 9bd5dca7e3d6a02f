//! Mounts the image behind the program: `OFFSET FILE DIRECTORY`. The server of a mount is this
//! program once more. It says on its standard output when the mount is complete; until then, errors
//! go to the standard error of the process that started it.

use super::words::{Words, thread_count};
use crate::failure::{Context, refuse};
use crate::program::itself;
use rustix::fs::{Mode, OFlags};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::ffi::OsString;
use std::io::{Read, Write};
use std::process::{ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use weald_format::ErrorKind;
use weald_format::Result;
use weald_fuse::{Busy, MountOptions, Unmounter};
use weald_image::OpenOptions;

/// The name under which the program is a server.
pub const SERVER: &str = "weald-app-server";

/// What the server says when the mount is complete.
const READY: &[u8] = b"ready\n";

/// A further signal within this time is the same request to end.
const SAME_SIGNAL_GRACE: Duration = Duration::from_secs(2);

/// Starts the server, and returns when the mount is complete.
pub fn start(words: &[OsString]) -> Result<ExitCode> {
    weald_sys::close_all_on_exec();
    let mut server = itself(SERVER);
    server
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let mut server = server.spawn().context("start of the server")?;
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
        // The server has said why.
        Some(code) if code != 0 => Ok(ExitCode::FAILURE),
        _ => refuse(format!("the server ended before it was ready ({status})")),
    }
}

/// Mounts, and serves until the mount ends.
pub fn run(words: &[OsString]) -> Result<ExitCode> {
    let words = Words::parse(words)?;
    // The end of the program's session is not that of its files. This fails for the leader of a
    // process group, which a new process is not.
    let _ = rustix::process::setsid();
    let signals = Signals::new([SIGHUP, SIGINT, SIGTERM]).context("signal handler")?;
    weald_sys::share_heap();
    let image = words.open(&OpenOptions {
        prefetch_threads: thread_count(),
        ..OpenOptions::default()
    })?;
    if let Err(error) = weald_sys::raise_open_file_limit() {
        log::info!("limit of open files: {error}");
    }
    let source = words.file.as_os_str();
    let mount = weald_fuse::mount(Arc::new(image), source, words.dir, &MountOptions::default())?;
    // A working directory elsewhere would keep its file system busy.
    std::env::set_current_dir("/").context("/")?;
    let unmounter = mount.unmounter();
    let waiting = std::thread::Builder::new();
    let waiting = waiting.spawn(move || end_after_signal(signals, &unmounter));
    waiting.context("thread for signals")?;
    say_ready()?;
    mount.wait()?;
    Ok(ExitCode::SUCCESS)
}

/// Tells the process that started this one, and leaves its terminal.
fn say_ready() -> Result<()> {
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .context("/dev/null")?;
    let mut stdout = std::io::stdout();
    // The mount stays even if that process has ended meanwhile.
    let _ = stdout.write_all(READY).and_then(|()| stdout.flush());
    rustix::stdio::dup2_stderr(&null).context("standard error")?;
    rustix::stdio::dup2_stdout(&null).context("standard output")?;
    Ok(())
}

/// Unmounts at the first signal: who uses the mount goes on. A second one ends the process.
fn end_after_signal(mut signals: Signals, unmounter: &Unmounter) {
    let mut first: Option<Instant> = None;
    for _ in signals.forever() {
        match first {
            Some(since) if since.elapsed() < SAME_SIGNAL_GRACE => {}
            Some(_) => std::process::exit(2),
            None => {
                first = Some(Instant::now());
                let unmounted = match unmounter.unmount(Busy::Refuse) {
                    Err(error) if error.kind() == ErrorKind::Busy => {
                        unmounter.unmount(Busy::Detach)
                    }
                    other => other,
                };
                if let Err(error) = unmounted {
                    log::error!("{error}");
                }
            }
        }
    }
}
