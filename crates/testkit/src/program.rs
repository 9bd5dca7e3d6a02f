//! Where the program under test lies: at a path that scripts need not quote and that every user
//! reaches, wherever the clone and the build directory are.

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{self, Command};

/// Returns `built`, or where its copy lies if a shell would split its path, or if other users
/// cannot reach it, as in a clone below `/root`.
///
/// # Panics
/// If the copy cannot be made.
pub(crate) fn at_plain_path(built: &Path) -> PathBuf {
    if is_plain(built) && is_open(built) {
        return built.to_owned();
    }
    let temp = std::env::temp_dir();
    let base = if is_plain(&temp) && is_open(&temp) {
        temp
    } else {
        "/tmp".into()
    };
    copy_of(built, &base)
}

/// Tells whether no byte of a path means anything to a shell.
fn is_plain(path: &Path) -> bool {
    let bytes = path.as_os_str().as_encoded_bytes();
    bytes
        .iter()
        .all(|byte| byte.is_ascii_alphanumeric() || b"/._+-".contains(byte))
}

/// Tells whether all users may enter the directories of a path, and execute what lies there.
fn is_open(path: &Path) -> bool {
    let may_enter = |path: &Path| {
        let mode = fs::metadata(path).map_or(0, |meta| meta.mode());
        mode & 0o001 != 0
    };
    path.is_absolute() && path.ancestors().all(may_enter)
}

/// Copies the program into a directory of this user, one for each path; a copy that is as old and
/// as long as the program is taken as it is.
fn copy_of(built: &Path, base: &Path) -> PathBuf {
    let user = rustix::process::geteuid().as_raw();
    let mut hasher = DefaultHasher::new();
    built.hash(&mut hasher);
    let dir = base.join(format!("weald-tested-{user}-{:016x}", hasher.finish()));
    if fs::create_dir(&dir).is_ok() {
        fs::set_permissions(&dir, PermissionsExt::from_mode(0o755)).expect("chmod");
    }
    let found = fs::symlink_metadata(&dir).expect("the directory of the copy");
    assert!(
        found.is_dir() && found.uid() == user && found.mode() & 0o022 == 0,
        "{}: expected a directory that only user {user} can write to",
        dir.display()
    );
    let copy = dir.join("weald");
    let same = |one: &fs::Metadata, two: &fs::Metadata| {
        (one.len(), one.mtime(), one.mtime_nsec()) == (two.len(), two.mtime(), two.mtime_nsec())
    };
    let original = fs::metadata(built).expect("the program");
    if fs::metadata(&copy).is_ok_and(|copy| same(&copy, &original)) {
        return copy;
    }
    // A process of its own writes it: a descriptor that a fork of another thread inherits would
    // make the program busy.
    let fresh = dir.join(format!("weald.{}", process::id()));
    let mut cp = Command::new("cp");
    let status = cp
        .arg("--preserve=mode,timestamps")
        .arg(built)
        .arg(&fresh)
        .status();
    assert!(
        status.is_ok_and(|status| status.success()),
        "cp of the program"
    );
    fs::set_permissions(&fresh, PermissionsExt::from_mode(0o755)).expect("chmod");
    fs::rename(&fresh, &copy).expect("rename of the copy");
    copy
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch: tests that depend on where the clone lies.
    #[test]
    fn a_program_in_an_odd_or_closed_directory_is_copied_to_a_plain_open_one() {
        let base = tempfile::tempdir().expect("directory");
        fs::set_permissions(base.path(), PermissionsExt::from_mode(0o755)).expect("chmod");
        let put = |name: &str, mode: u32| {
            let dir = base.path().join(name);
            fs::create_dir(&dir).expect("mkdir");
            fs::write(dir.join("weald"), name).expect("write");
            fs::set_permissions(dir.join("weald"), PermissionsExt::from_mode(0o755)).expect("mode");
            fs::set_permissions(&dir, PermissionsExt::from_mode(mode)).expect("chmod");
            dir.join("weald")
        };
        let plain = put("plain", 0o755);
        assert_eq!(is_open(&plain), is_open(base.path()));
        for (name, mode) in [("ein Täst", 0o755), ("closed", 0o700), ("a'b\"$c", 0o755)] {
            let built = put(name, mode);
            assert!(!is_plain(&built) || !is_open(&built));
            let copy = copy_of(&built, base.path());
            assert!(is_plain(&copy), "{}", copy.display());
            assert_eq!(fs::read(&copy).expect("copy"), name.as_bytes());
            // A program that was built again is copied again.
            fs::write(&built, "new").expect("write");
            assert_eq!(copy_of(&built, base.path()), copy);
            assert_eq!(fs::read(&copy).expect("copy"), b"new");
        }
    }
}
