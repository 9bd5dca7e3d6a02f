//! Mounts and unmounts with `fusermount3`, a set-uid program that performs these privileged calls
//! for users other than root.
//!
//! It mounts and sends the descriptor of `/dev/fuse` over a socket. An environment variable gives
//! it the socket's descriptor number.

use crate::busy::{Busy, in_use, not_mounted};
use crate::options::Access;
use crate::plan::Plan;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use std::ffi::OsStr;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use weald_format::{Error, ErrorKind, Result};

/// Program of libfuse 3. (libfuse 2 has `fusermount`, which is obsolete.)
const PROGRAM: &str = "fusermount3";

/// Environment variable with the number of the socket's descriptor.
const SOCKET_VARIABLE: &str = "_FUSE_COMMFD";

/// Mounts as `plan` says and returns the device of the new connection.
///
/// `fusermount3` refuses symlinks as mount points, also those in `/proc/self/fd`. We therefore
/// start it in the directory and let it mount on `.`. It then asks the kernel for the path of the
/// directory and resolves that path again.
///
/// # Errors
/// `NotFound` if `fusermount3` is not installed; `Io` with its message if it refuses.
pub(crate) fn mount(source: &OsStr, subtype: &str, plan: &Plan<'_>) -> Result<OwnedFd> {
    let (ours, theirs) = UnixStream::pair().map_err(|error| Error::io("socket", error))?;
    let mut command = Command::new(PROGRAM);
    command
        .args(["-o", &words(source, subtype, plan)])
        .args(["--", "."])
        .current_dir(format!("/proc/self/fd/{}", plan.point.as_fd().as_raw_fd()));
    // The socket becomes standard input of the child: other descriptors are closed by exec.
    command
        .env(SOCKET_VARIABLE, "0")
        .stdin(OwnedFd::from(theirs));
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let child = child.map_err(|error| Error::io(PROGRAM, error))?;
    // `command` holds the other end of the socket. Without this drop we would not notice that the
    // child has ended.
    drop(command);
    let device = receive_device(&ours);
    let output = child
        .wait_with_output()
        .map_err(|error| Error::io(PROGRAM, error))?;
    match device? {
        Some(device) => Ok(device),
        None => Err(refusal(&output.stderr)),
    }
}

/// Builds the mount options. `fusermount3` adds `nodev` and `nosuid`, and permits `allow_other`
/// only if `/etc/fuse.conf` allows it.
fn words(source: &OsStr, subtype: &str, plan: &Plan<'_>) -> String {
    let name = source
        .to_string_lossy()
        .replace('\\', r"\\")
        .replace(',', r"\,");
    let mode = if plan.is_read_only { "ro" } else { "rw" };
    let mut words = format!("{mode},default_permissions,subtype={subtype},fsname={name}");
    for (is_set, word) in [
        (plan.access != Access::Owner, ",allow_other"),
        (plan.options.is_noexec, ",noexec"),
        (plan.options.is_noatime, ",noatime"),
        (plan.live.is_sync, ",sync"),
        (plan.live.is_dirsync, ",dirsync"),
    ] {
        if is_set {
            words.push_str(word);
        }
    }
    words
}

/// Receives a file descriptor over the socket; `None` if the socket closes first.
fn receive_device(socket: &UnixStream) -> Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0u8];
    let mut parts = [IoSliceMut::new(&mut byte)];
    rustix::io::retry_on_intr(|| {
        recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)
    })
    .map_err(|errno| Error::io(PROGRAM, errno.into()))?;
    let device = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok(device)
}

/// Unmounts `dir`.
///
/// # Errors
/// `Invalid` if nothing is mounted there; `Busy`; `NotFound` if `fusermount3` is not installed;
/// `Io`.
pub(crate) fn unmount(dir: &Path, busy: Busy) -> Result<()> {
    let mut command = Command::new(PROGRAM);
    command.arg("-u");
    if busy == Busy::Detach {
        command.arg("-z");
    }
    let output = command.arg("--").arg(dir).stdin(Stdio::null()).output();
    let output = output.map_err(|error| Error::io(PROGRAM, error))?;
    if output.status.success() {
        Ok(())
    } else {
        Err(refusal(&output.stderr))
    }
}

/// Converts the message of `fusermount3` to an error.
fn refusal(stderr: &[u8]) -> Error {
    let text = String::from_utf8_lossy(stderr).trim().to_owned();
    if text.contains("busy") {
        in_use()
    } else if text.contains("not found in") || text.contains("not mounted") {
        not_mounted()
    } else {
        Error::new(ErrorKind::Io, text)
    }
}
