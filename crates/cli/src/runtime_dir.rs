//! The directory where the servers of this user have their sockets.

use std::path::PathBuf;
use weald_daemon::RuntimeDir;

/// Opens the runtime directory of this user's servers; creates it if it is missing.
///
/// # Errors
/// As [`RuntimeDir::make`].
pub fn runtime_dir() -> weald_format::Result<RuntimeDir> {
    RuntimeDir::make(&runtime_dir_path())
}

/// Path of the runtime directory of this user's servers.
pub fn runtime_dir_path() -> PathBuf {
    let uid = rustix::process::geteuid().as_raw();
    weald_io::runtime_dir_path(|name| std::env::var_os(name), uid)
}
