//! File handles, which outlive mounts, as NFS servers give them to their clients:
//! name_to_handle_at(2) and open_by_handle_at(2).

use rustix::fs::OFlags;
use std::ffi::{CString, c_int};
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

/// Maximum length of a handle: `MAX_HANDLE_SZ` of the kernel.
const HANDLE_LEN_MAX: usize = libc::MAX_HANDLE_SZ as usize;

/// A file system's own identifier of an inode. Only that file system understands it. If the file
/// system says so, it stays valid after a remount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileHandle {
    /// Format of the bytes, as chosen by the file system.
    pub form: i32,
    /// At most 128 bytes that only the file system understands.
    pub bytes: Vec<u8>,
}

/// `struct file_handle` with space for every handle.
#[repr(C)]
struct RawHandle {
    len: u32,
    form: c_int,
    bytes: [u8; HANDLE_LEN_MAX],
}

/// Gets the handle of `name` in `dir`, or of `dir` itself if `name` is empty. Symlinks are not
/// followed.
///
/// # Errors
/// The errno of name_to_handle_at(2): `EOPNOTSUPP` if the file system has no handles; `EINVAL` for
/// a name with NUL.
pub fn handle_at(dir: impl AsFd, name: &[u8]) -> io::Result<FileHandle> {
    let name = CString::new(name).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    let mut raw = RawHandle {
        len: HANDLE_LEN_MAX as u32,
        form: 0,
        bytes: [0; HANDLE_LEN_MAX],
    };
    let mut mount_id: c_int = 0;
    // SAFETY: `name` ends with NUL and outlives the call. `raw` has the layout of `struct
    // file_handle` followed by as many bytes as its length says, and `mount_id` is an int. Both are
    // written in this call only.
    let done = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            dir.as_fd().as_raw_fd(),
            name.as_ptr(),
            &raw mut raw,
            &raw mut mount_id,
            libc::AT_EMPTY_PATH,
        )
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(FileHandle {
        form: raw.form,
        bytes: raw.bytes[..(raw.len as usize).min(HANDLE_LEN_MAX)].to_vec(),
    })
}

/// Opens the inode of `handle`. `mount` is any open file of its file system. Needs
/// `CAP_DAC_READ_SEARCH`.
///
/// # Errors
/// The errno of open_by_handle_at(2): `ESTALE` if the file system has no such inode; `EINVAL` for a
/// handle of more than 128 bytes.
pub fn open_handle(mount: impl AsFd, handle: &FileHandle, flags: OFlags) -> io::Result<OwnedFd> {
    if handle.bytes.len() > HANDLE_LEN_MAX {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mut raw = RawHandle {
        len: handle.bytes.len() as u32,
        form: handle.form,
        bytes: [0; HANDLE_LEN_MAX],
    };
    raw.bytes[..handle.bytes.len()].copy_from_slice(&handle.bytes);
    let flags = flags | OFlags::CLOEXEC;
    // SAFETY: `raw` has the layout of `struct file_handle` followed by as many bytes as its length
    // says, and outlives the call, which only reads it.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_open_by_handle_at,
            mount.as_fd().as_raw_fd(),
            &raw mut raw,
            flags.bits() as c_int,
        )
    };
    let fd = c_int::try_from(fd).ok().filter(|fd| *fd >= 0);
    let fd = fd.ok_or_else(io::Error::last_os_error)?;
    // SAFETY: the call has just opened the descriptor, and no other code knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_opens_its_inode() {
        let temp = tempfile::tempdir().unwrap();
        let dir = crate::open_dir(temp.path()).unwrap();
        std::fs::write(temp.path().join("file"), "x").unwrap();
        let handle = match handle_at(&dir, b"file") {
            Ok(handle) => handle,
            // Temporary files may be on a file system without handles, such as overlayfs.
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => return,
            Err(error) => panic!("{error}"),
        };
        let again = handle_at(crate::open_file_at(&dir, b"file").unwrap(), b"").unwrap();
        assert_eq!(handle, again);
        let ino = crate::stat_at(&dir, b"file").unwrap().ino;
        // Only root opens handles, and not in every container.
        if let Ok(opened) = open_handle(&dir, &handle, OFlags::RDONLY) {
            assert_eq!(crate::stat_fd(&opened).unwrap().ino, ino);
        }
        let long = FileHandle {
            form: handle.form,
            bytes: vec![0; 129],
        };
        let refused = open_handle(&dir, &long, OFlags::RDONLY).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EINVAL));
    }
}
