//! File handles, as NFS servers keep them for their clients: valid after the next mount, stale if
//! the inode is gone.

use rustix::fs::OFlags;
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::Path;
use weald_sys::{FileHandle, handle_at, open_handle};
use weald_testkit::mounts::Ground;

const ESTALE: i32 = 116;

/// Files in directories; each contains its path.
const PATHS: [&str; 4] = ["file-0", "a/file-1", "a/b/file-2", "a/b/c/d/file-3"];

fn make(ground: &Ground, name: &str, paths: &[&str]) -> std::path::PathBuf {
    let (source, image) = (ground.dir(name), ground.image(name));
    for path in paths {
        let path = source.join(path);
        fs::create_dir_all(path.parent().expect("a directory")).expect("mkdir");
        fs::write(&path, path.file_name().expect("a name").as_encoded_bytes()).expect("write");
    }
    ground.build(&source, &image, &[]);
    image
}

fn handles(dir: &Path) -> Vec<FileHandle> {
    let root = weald_sys::open_dir(dir).expect("open");
    let paths = PATHS.iter().chain(&["a", "a/b/c", ""]);
    paths
        .map(|path| handle_at(&root, path.as_bytes()).expect(path))
        .collect()
}

fn opened(dir: &Path, handle: &FileHandle) -> std::io::Result<OwnedFd> {
    open_handle(
        weald_sys::open_dir(dir).expect("open"),
        handle,
        OFlags::RDONLY,
    )
}

fn content(fd: OwnedFd) -> String {
    let mut text = String::new();
    File::from(fd).read_to_string(&mut text).expect("read");
    text
}

// Would catch inode numbers that change from mount to mount, and a handle that opens another file.
#[test]
fn handles_outlive_the_mount_and_go_stale_with_the_inode() {
    let ground = Ground::new();
    let (image, other) = (
        make(&ground, "image", &PATHS),
        make(&ground, "other", &["only"]),
    );
    let dir = ground.dir("mnt");
    ground.mount(&image, &dir, &[]);
    let kept = handles(&dir);
    ground.umount(&dir);
    ground.mount(&image, &dir, &[]);
    // The kernel has nothing cached, so that each of these requests reaches the server.
    for (path, handle) in PATHS.iter().zip(&kept) {
        let name = path.rsplit('/').next().expect("a name");
        assert_eq!(content(opened(&dir, handle).expect(path)), name);
    }
    let inner = opened(&dir, &kept[PATHS.len() + 1]).expect("a directory");
    let entry = fs::read_dir(format!(
        "/proc/self/fd/{}",
        std::os::fd::AsRawFd::as_raw_fd(&inner)
    ))
    .expect("directory")
    .next();
    assert_eq!(entry.expect("an entry").expect("an entry").file_name(), "d");
    // The directory is connected to the tree: its `..` leads up.
    let up = weald_sys::stat_at(&inner, b"..").expect("stat");
    assert_eq!(
        up.ino,
        weald_sys::stat_at(weald_sys::open_dir(&dir).expect("open"), b"a/b")
            .expect("stat")
            .ino
    );
    drop(inner);
    assert_eq!(handles(&dir), kept, "made again, they are the same");
    ground.umount(&dir);
    // This image has a single file, so that all other inode numbers are unused.
    ground.mount(&other, &dir, &[]);
    let stale = kept.iter().filter(|handle| {
        opened(&dir, handle).is_err_and(|error| error.raw_os_error() == Some(ESTALE))
    });
    assert!(
        stale.count() >= PATHS.len(),
        "the other image has two inodes only"
    );
    for handle in &kept {
        if let Err(error) = opened(&dir, handle) {
            assert_eq!(error.raw_os_error(), Some(ESTALE), "{error}");
        }
    }
    ground.umount(&dir);
}

// Would catch a server that trusts forged handles of an NFS client.
#[test]
fn forged_handles_open_nothing() {
    let ground = Ground::new();
    let image = make(&ground, "image", &PATHS);
    let dir = ground.dir("mnt");
    ground.mount(&image, &dir, &[]);
    let real = handles(&dir).remove(0);
    for flipped in [1, 3, 7] {
        let mut handle = real.clone();
        if let Some(byte) = handle.bytes.get_mut(flipped) {
            *byte ^= 0x55;
            let error = opened(&dir, &handle).expect_err("no such inode");
            assert_eq!(
                error.raw_os_error(),
                Some(ESTALE),
                "byte {flipped}: {error}"
            );
        }
    }
    for (form, len) in [
        (real.form, 0),
        (real.form, 1),
        (0x77, real.bytes.len()),
        (0xff, 8),
    ] {
        let handle = FileHandle {
            form,
            bytes: vec![0xa5; len],
        };
        assert!(opened(&dir, &handle).is_err(), "form {form}, {len} bytes");
    }
    ground.umount(&dir);
}
