//! Tests of a store that another user of the machine may write to, or read.

use super::{Access, HostDisk, LocalFiles};
use crate::{Store, WriteOptions};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;
use weald_format::ErrorKind;

fn store(dir: &Path) -> Store {
    Store::create(Arc::new(HostDisk::new(dir)), [7; 16], 64 << 20).expect("a store")
}

/// Would catch: a writer that truncates the file that a planted symlink names, or removes the files
/// of the directory that it names.
#[test]
fn symlinks_in_a_store_lead_to_no_other_file() {
    let place = tempfile::tempdir().expect("a directory");
    for name in ["lock", "meta", "images", "segments", "volumes"] {
        let dir = place.path().join(format!("store-{name}"));
        let store = store(&dir);
        let victim = place.path().join(format!("victim-{name}"));
        let planted = dir.join(name);
        let inside = if planted.is_file() {
            fs::write(&victim, "precious, and longer than the name of a writer").expect("write");
            fs::remove_file(&planted).expect("remove");
            victim.clone()
        } else {
            fs::create_dir(&victim).expect("mkdir");
            let _ = fs::remove_dir(&planted);
            let inside = victim.join("precious");
            fs::write(&inside, "precious").expect("write");
            inside
        };
        let before = fs::read(&inside).expect("read");
        symlink(&victim, &planted).expect("symlink");
        let error = match name {
            // A writer opens the directory when it appends.
            "segments" => store.disk.list(name).expect_err(name),
            _ => store.write(WriteOptions::new("a test")).expect_err(name),
        };
        assert_eq!(error.kind(), ErrorKind::Invalid, "{name}: {error}");
        assert!(error.to_string().contains("symlink"), "{name}: {error}");
        assert_eq!(fs::read(&inside).expect("still there"), before, "{name}");
    }
}

/// Would catch: a store whose directory is looked up again, so that its parent's owner exchanges it
/// between two calls.
#[test]
fn the_directory_of_a_store_is_looked_up_once() {
    let place = tempfile::tempdir().expect("a directory");
    let (dir, moved) = (place.path().join("store"), place.path().join("moved"));
    let store = store(&dir);
    fs::rename(&dir, &moved).expect("rename");
    fs::create_dir(&dir).expect("mkdir");
    drop(store.write(WriteOptions::new("a test")).expect("a writer"));
    assert_eq!(fs::read_dir(&dir).expect("list").count(), 0);
    fs::write(moved.join("images/.0000000000000009.map"), "").expect("write");
    assert!(store.names().expect("names").is_empty());
}

/// Would catch: a lock file that every user may open, and so lock: any user would keep the writers
/// of a store out.
#[test]
fn only_writers_open_the_lock() {
    let place = tempfile::tempdir().expect("a directory");
    let dir = place.path().join("store");
    drop(store(&dir));
    let mode = |name: &str| {
        let metadata = fs::metadata(dir.join(name)).expect("metadata");
        metadata.permissions().mode() & 0o777
    };
    let (lock, superblock) = (mode("lock"), mode("store"));
    let writers = superblock & 0o222;
    assert_eq!(lock, writers | writers << 1, "{lock:o}");
}

/// Would catch: a store that counts as full on a file system that tells no size, as FUSE programs
/// without statfs do.
#[test]
fn a_file_system_without_a_size_has_room() {
    use super::{DiskSpace, LocalFiles};
    let space = HostDisk::new(Path::new("/proc")).space();
    assert_eq!(space.expect("statvfs"), DiskSpace::UNKNOWN);
    let tmp = HostDisk::new(&std::env::temp_dir()).space();
    assert_ne!(tmp.expect("statvfs"), DiskSpace::UNKNOWN);
}

/// Would catch: bytes of a file that were freed in place and count as taken.
#[test]
fn freed_ranges_take_no_space() {
    use super::LocalFiles;
    let place = tempfile::tempdir().expect("a directory");
    let disk = HostDisk::new(place.path());
    let file = disk.open("f", super::Access::Create).expect("made");
    file.write_at(&[1; 1 << 20], 0).expect("written");
    file.sync().expect("synced");
    let len = || disk.allocated_len("f").expect("known").expect("told");
    let before = len();
    assert!(before >= 1 << 20, "{before}");
    file.punch(0, 1 << 19).expect("freed");
    assert!(len() <= before - (1 << 19) + 4096, "{}", len());
    assert_eq!(disk.allocated_len("gone").expect("known"), Some(0));
}

/// Would catch: a new image that looks for a number for ever, because a directory of the store was
/// replaced by a symlink while the writer has it open.
#[test]
fn a_planted_symlink_ends_an_import_with_an_error() {
    let place = tempfile::tempdir().expect("a directory");
    let dir = place.path().join("store");
    let store = store(&dir);
    let mut writer = store.write(WriteOptions::new("test")).expect("a writer");
    fs::rename(dir.join("images"), place.path().join("away")).expect("rename");
    symlink(place.path().join("away"), dir.join("images")).expect("symlink");
    let image = weald_format::container::SuperblockRecord::current();
    let image = zerocopy::IntoBytes::as_bytes(&image).to_vec();
    let before = fs::read_dir(place.path().join("away"))
        .expect("read")
        .count();
    assert!(writer.import("i", &image).is_err());
    let _ = writer.take_image_no();
    let after = fs::read_dir(place.path().join("away"))
        .expect("read")
        .count();
    assert_eq!(before, after, "nothing is written through the symlink");
}

// Would catch: a name of a table that somebody else made, which leads out of the store.
#[test]
fn no_name_leads_out_of_the_directory() {
    let temp = tempfile::tempdir().expect("a directory");
    let disk = HostDisk::new(&temp.path().join("store"));
    disk.make_dir("").expect("made");
    disk.make_dir("images").expect("made");
    disk.write_file("images/a", b"a").expect("written");
    for bad in [
        "images/../../out",
        "images/../out",
        "images/x/../../out",
        "images/..",
        "images/.",
    ] {
        let renamed = disk.rename("images/a", bad).expect_err(bad);
        assert_eq!(renamed.kind(), ErrorKind::Invalid, "{bad}: {renamed}");
        disk.write_file(bad, b"x").expect_err(bad);
        disk.remove(bad).expect_err(bad);
        disk.open(bad, Access::Read).expect_err(bad);
    }
    assert!(!temp.path().join("out").exists() && !temp.path().join("store/out").exists());
    assert_eq!(disk.read_file("images/a", 10).expect("read"), b"a");
}
