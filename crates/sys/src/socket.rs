//! Credentials of a socket's peer.

use rustix::fd::{AsRawFd, BorrowedFd};
use std::io;
use std::mem::MaybeUninit;

/// Effective user id of the process at the other end of a connected Unix socket (`SO_PEERCRED`):
/// that of the client when it called connect(2), or of the server when it called listen(2).
///
/// `rustix` has the same call, but refuses process id 0. The kernel returns 0 for a process in a
/// PID namespace that this process cannot see.
///
/// # Errors
/// The errno of getsockopt(2).
///
/// # Source
/// unix(7), "SO_PEERCRED".
pub fn peer_uid(socket: BorrowedFd<'_>) -> io::Result<u32> {
    peer(socket).map(|peer| peer.uid)
}

/// Process id of the process at the other end, as [`peer_uid`]; `None` if this process cannot see
/// it.
///
/// # Errors
/// The errno of getsockopt(2).
pub fn peer_pid(socket: BorrowedFd<'_>) -> io::Result<Option<u32>> {
    let pid = peer(socket)?.pid;
    Ok(u32::try_from(pid).ok().filter(|pid| *pid != 0))
}

fn peer(socket: BorrowedFd<'_>) -> io::Result<libc::ucred> {
    let mut found = MaybeUninit::<libc::ucred>::zeroed();
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the borrow keeps the descriptor open. `found` and `len` are local, and the kernel
    // writes at most `len` bytes to `found`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            found.as_mut_ptr().cast(),
            &mut len,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `found` is three integers, zeroed above. Any bytes that the kernel wrote are valid
    // for them.
    let found = unsafe { found.assume_init() };
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn the_peer_of_a_pair_is_this_user_and_a_file_has_none() {
        let (ours, _theirs) = UnixStream::pair().expect("pair");
        let own = rustix::process::geteuid().as_raw();
        assert_eq!(peer_uid(ours.as_fd()).expect("credentials"), own);
        let pid = peer_pid(ours.as_fd()).expect("credentials");
        assert_eq!(pid, Some(std::process::id()));
        let file = std::fs::File::open("/dev/null").expect("open");
        peer_uid(file.as_fd()).expect_err("no socket");
    }
}
