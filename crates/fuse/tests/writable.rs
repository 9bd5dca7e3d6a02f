//! Real mounts of a file system that can change. The tests run as root and need `/dev/fuse`.
#![allow(missing_docs)]

mod support;

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use support::memory::Memory;
use support::{Live, wait_until};

fn live(fs: &Arc<Memory>, options: &str) -> Live {
    Live::writable(Arc::clone(fs) as Arc<_>, options)
}

#[test]
fn files_are_created_written_read_renamed_and_removed() {
    let fs = Arc::new(Memory::default());
    let live = live(&fs, "");
    let large: Vec<u8> = (0..5_000_000u32).map(|at| (at / 7) as u8).collect();
    fs::create_dir(live.path("a")).expect("mkdir");
    fs::write(live.path("a/one"), &large).expect("written");
    assert!(fs::read(live.path("a/one")).expect("read") == large);
    fs::rename(live.path("a/one"), live.path("two")).expect("renamed");
    assert!(fs::read(live.path("two")).expect("read") == large);
    fs::remove_dir(live.path("a")).expect("removed");
    let mut appended = OpenOptions::new()
        .append(true)
        .open(live.path("two"))
        .expect("opened");
    appended.write_all(b"more").expect("appended");
    appended.sync_all().expect("synced");
    drop(appended);
    assert!(fs.sync_count() > 0);
    let mut file = File::open(live.path("two")).expect("opened");
    fs::remove_file(live.path("two")).expect("removed");
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)
        .expect("an open file stays readable");
    assert_eq!(bytes.len(), large.len() + 4);
    assert_eq!(fs.inode_count(), 2);
    drop(file);
    wait_until("the removal", || fs.inode_count() == 1);
    let file = File::create(live.path("x")).expect("created");
    file.write_at(b"xyz", 4000).expect("written");
    assert_eq!(file.metadata().expect("stat").len(), 4003);
}
