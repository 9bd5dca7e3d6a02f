//! Mounting and unmounting by `fusermount3`, the set-uid program that does for others what only
//! root may.
//!
//! It mounts, and sends the open device over a socket whose number it finds in the environment.

use crate::mount::{Busy, in_use, not_mounted};
use crate::mount_point::MountPoint;
use crate::options::{Access, MountOptions};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use std::ffi::OsStr;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use weald_format::{Error, ErrorKind, Result};

/// Part of libfuse3; `libfuse` 2 has another name for it, which nobody needs any more.
const PROGRAM: &str = "fusermount3";

/// The variable that tells it the number of its socket.
const SOCKET_VARIABLE: &str = "_FUSE_COMMFD";

/// Mounts on the directory of `point` and gives the device of the new connection.
///
/// The program refuses symlinks as mount points, those of `/proc/self/fd` too. So it starts in the
/// directory and is told to mount on `.`: it asks the kernel for the directory's path then, and
/// looks that path up once more.
///
/// # Errors
/// `NotFound` where there is no `fusermount3`, `Io` with its own words where it refuses.
pub(crate) fn mount(
    source: &OsStr,
    subtype: &str,
    point: &MountPoint,
    options: &MountOptions,
    access: Access,
) -> Result<OwnedFd> {
    let (ours, theirs) = UnixStream::pair().map_err(|error| Error::io("socket", error))?;
    let mut command = Command::new(PROGRAM);
    command
        .args(["-o", &words(source, subtype, options, access)])
        .args(["--", "."])
        .current_dir(format!("/proc/self/fd/{}", point.as_fd().as_raw_fd()));
    // The socket becomes its standard input: no other number survives exec.
    command
        .env(SOCKET_VARIABLE, "0")
        .stdin(OwnedFd::from(theirs));
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let child = child.map_err(|error| Error::io(PROGRAM, error))?;
    // Holds the other end of the socket, which must close for us to notice that the child has given
    // up.
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

/// `fusermount3` adds `nodev` and `nosuid`, and allows `allow_other` only where `/etc/fuse.conf`
/// does.
fn words(source: &OsStr, subtype: &str, options: &MountOptions, access: Access) -> String {
    let name = source
        .to_string_lossy()
        .replace('\\', r"\\")
        .replace(',', r"\,");
    let mut words = format!("ro,default_permissions,subtype={subtype},fsname={name}");
    for (is_set, word) in [
        (access != Access::Owner, ",allow_other"),
        (options.is_noexec, ",noexec"),
        (options.is_noatime, ",noatime"),
    ] {
        if is_set {
            words.push_str(word);
        }
    }
    words
}

/// The file descriptor that comes over the socket; `None` where it ends without one.
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
/// `Invalid` where nothing is mounted there, `Busy`, `NotFound` without `fusermount3`, `Io`.
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

/// What `fusermount3` says, as an error.
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
