//! Real mounts of the model of a file system that can change. The tests run as root and need
//! `/dev/fuse`.
#![allow(missing_docs)]

mod attributes;
mod listings;
#[path = "../support/mod.rs"]
mod support;

use rustix::fs::{AtFlags, CWD, FallocateFlags, FileType, Mode, OFlags, RenameFlags, SeekFrom};
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use support::slow::Slow;
use support::{Live, Opener, errno, wait_until};
use weald_format::ErrorKind;
use weald_fuse::{MountOptions, MountPoint, WritableOptions};
use weald_model::ModelFs;

const EROFS: i32 = 30;

fn mounted(options: &str) -> (Arc<ModelFs>, Live) {
    let fs = Arc::new(ModelFs::new(0o755, 0));
    let live = Live::writable(Arc::clone(&fs) as Arc<_>, options);
    (fs, live)
}

fn permissions(path: &Path) -> u32 {
    fs::symlink_metadata(path).expect("stat").mode() & 0o7777
}

fn chmod(path: &Path, bits: u32) {
    fs::set_permissions(path, PermissionsExt::from_mode(bits)).expect("chmod");
}

/// Requests named `operation` that the kernel sent so far.
fn request_count(live: &Live, operation: &str) -> u64 {
    let mount = live.mount.as_ref().expect("mounted");
    // A request is counted a moment after its answer.
    wait_until("all answers", || mount.counters().in_flight == 0);
    let counters = mount.counters();
    let found = counters.operations.iter().find(|o| o.name == operation);
    found.map_or(0, |found| found.count)
}

/// Bytes that differ from page to page.
fn content(len: u32) -> Vec<u8> {
    (0..len).map(|at| (at / 7) as u8).collect()
}

#[test]
fn files_are_created_written_renamed_and_removed() {
    let (_, live) = mounted("");
    let large = content(5_000_000);
    fs::create_dir(live.path("a")).expect("mkdir");
    fs::write(live.path("a/one"), &large).expect("written");
    assert!(fs::read(live.path("a/one")).expect("read") == large);
    fs::rename(live.path("a/one"), live.path("two")).expect("renamed");
    assert!(fs::read(live.path("two")).expect("read") == large);
    fs::remove_dir(live.path("a")).expect("removed");
    fs::hard_link(live.path("two"), live.path("three")).expect("linked");
    let stat = fs::metadata(live.path("two")).expect("stat");
    assert_eq!((stat.nlink(), stat.size()), (2, 5_000_000));
    fs::remove_file(live.path("two")).expect("removed");
    assert_eq!(fs::metadata(live.path("three")).expect("stat").nlink(), 1);
    std::os::unix::fs::symlink("three", live.path("link")).expect("symlink");
    assert!(fs::read(live.path("link")).expect("read") == large);
    let names: BTreeSet<_> = fs::read_dir(&live.dir)
        .expect("list")
        .flatten()
        .collect_names();
    assert_eq!(names, ["link", "three"].map(String::from).into());
}

/// Names of directory entries.
trait CollectNames {
    fn collect_names(self) -> BTreeSet<String>;
}

impl<I: Iterator<Item = fs::DirEntry>> CollectNames for I {
    fn collect_names(self) -> BTreeSet<String> {
        self.map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect()
    }
}

#[test]
fn an_appending_writer_never_overwrites() {
    let (_, live) = mounted("");
    let open = || {
        let mut options = OpenOptions::new();
        options
            .append(true)
            .create(true)
            .open(live.path("log"))
            .expect("opened")
    };
    std::thread::scope(|scope| {
        for letter in *b"abcd" {
            let mut file = open();
            scope.spawn(move || {
                for _ in 0..100 {
                    file.write_all(&[letter; 9]).expect("written");
                }
            });
        }
    });
    let bytes = fs::read(live.path("log")).expect("read");
    assert_eq!(bytes.len(), 3600);
    assert!(
        bytes
            .chunks(9)
            .all(|part| part.iter().all(|b| *b == part[0]))
    );
}

/// Would catch: an unlinked file that vanishes while it is open, or whose space never returns.
#[test]
fn an_unlinked_file_stays_while_it_is_open() {
    let (fs, live) = mounted("");
    fs::write(live.path("file"), b"content").expect("written");
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(live.path("file"));
    let file = file.as_mut().expect("opened");
    fs::remove_file(live.path("file")).expect("removed");
    assert_eq!(file.metadata().expect("stat").nlink(), 0);
    file.write_at(b"C", 0).expect("written");
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).expect("read");
    assert_eq!(bytes, b"Content");
    assert_eq!(fs.inos().len(), 2);
    fs::create_dir(live.path("dir")).expect("mkdir");
    let dir = File::open(live.path("dir")).expect("opened");
    fs::remove_dir(live.path("dir")).expect("removed");
    assert_eq!(fs.inos().len(), 3);
    drop(dir);
    wait_until("the removal of the directory", || fs.inos().len() == 2);
}

#[test]
fn closing_an_unlinked_file_drops_it() {
    let (fs, live) = mounted("");
    fs::write(live.path("file"), b"content").expect("written");
    let file = File::open(live.path("file")).expect("opened");
    fs::remove_file(live.path("file")).expect("removed");
    assert_eq!(fs.inos().len(), 2);
    drop(file);
    wait_until("the removal", || fs.inos().len() == 1);
}

#[test]
fn the_end_of_the_mount_drops_what_was_open() {
    let (fs, live) = mounted("");
    let file = File::create(live.path("file")).expect("created");
    fs::remove_file(live.path("file")).expect("removed");
    live.sh(r#"umount -l "$1""#);
    drop(file);
    drop(live);
    assert_eq!(fs.inos().len(), 1);
}

#[test]
fn a_file_without_a_name_can_get_one() {
    let (fs, live) = mounted("");
    let unnamed = || {
        let flags = OFlags::TMPFILE | OFlags::RDWR;
        let fd = rustix::fs::open(&live.dir, flags, Mode::from_raw_mode(0o640));
        File::from(fd.expect("opened"))
    };
    let mut file = unnamed();
    file.write_all(b"kept").expect("written");
    assert_eq!(file.metadata().expect("stat").nlink(), 0);
    rustix::fs::linkat(&file, "", CWD, live.path("name"), AtFlags::EMPTY_PATH).expect("linked");
    drop(file);
    drop(unnamed());
    wait_until("the removal of the other", || fs.inos().len() == 2);
    assert_eq!(fs::read(live.path("name")).expect("read"), b"kept");
    assert_eq!(permissions(&live.path("name")), 0o640);
}

#[test]
fn renames_replace_keep_exchange_and_leave_whiteouts() {
    let (fs, live) = mounted("");
    let path = |name| live.path(name);
    for name in ["a", "b", "c"] {
        fs::write(path(name), name).expect("written");
    }
    let rename = |from, to, flags| rustix::fs::renameat_with(CWD, path(from), CWD, path(to), flags);
    let kept = rename("a", "b", RenameFlags::NOREPLACE);
    assert_eq!(kept, Err(rustix::io::Errno::EXIST));
    rename("a", "b", RenameFlags::EXCHANGE).expect("exchanged");
    assert_eq!(fs::read(path("a")).expect("read"), b"b");
    assert_eq!(fs::read(path("b")).expect("read"), b"a");
    rename("a", "b", RenameFlags::empty()).expect("replaced");
    assert_eq!(fs::read(path("b")).expect("read"), b"b");
    wait_until("the removal of the replaced", || fs.inos().len() == 3);
    rename("c", "d", RenameFlags::WHITEOUT).expect("renamed");
    let whiteout = fs::symlink_metadata(path("c")).expect("stat");
    assert!(whiteout.file_type().is_char_device());
    assert_eq!(whiteout.rdev(), 0);
    fs::create_dir_all(path("x/y")).expect("mkdir");
    let inside = rename("x", "x/y/z", RenameFlags::empty());
    assert_eq!(inside, Err(rustix::io::Errno::INVAL));
}

#[test]
fn shared_mappings_reach_the_file() {
    let (_, live) = mounted("");
    let script = r#"
        python3 - "$1/mapped" <<'END'
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, 3 * 4096 + 5)
with mmap.mmap(fd, 0) as mapped:
    mapped[4090:4100] = b"0123456789"
    mapped[3 * 4096:] = b"abcde"
    mapped.flush()
os.pwrite(fd, b"X", 4091)
with mmap.mmap(fd, 0) as mapped:
    assert mapped[4090:4100] == b"0X23456789", mapped[4090:4100]
END"#;
    live.sh(script);
    let file = OpenOptions::new()
        .read(true)
        .custom_flags_direct()
        .open(live.path("mapped"))
        .expect("opened");
    let mut bytes = vec![0; 4096 * 4];
    assert_eq!(file.read_at(&mut bytes, 0).expect("read"), 3 * 4096 + 5);
    assert_eq!(&bytes[4090..4100], b"0X23456789");
    assert_eq!(&bytes[3 * 4096..3 * 4096 + 5], b"abcde");
}

/// Opens a file without the page cache.
trait Direct {
    fn custom_flags_direct(&mut self) -> &mut Self;
}

impl Direct for OpenOptions {
    fn custom_flags_direct(&mut self) -> &mut Self {
        use std::os::unix::fs::OpenOptionsExt;
        self.custom_flags(OFlags::DIRECT.bits() as i32)
    }
}

#[test]
fn direct_writes_bypass_the_cache() {
    let (_, live) = mounted("");
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .custom_flags_direct();
    let file = options.open(live.path("direct")).expect("opened");
    let large = content(3 << 20);
    file.write_all_at(&large, 0).expect("written");
    assert!(fs::read(live.path("direct")).expect("read") == large);
    file.write_all_at(&[7; 4096], 4096).expect("written");
    let cached = fs::read(live.path("direct")).expect("read");
    assert!(cached[4096..8192].iter().all(|byte| *byte == 7));
}

#[test]
fn ranges_are_allocated_punched_zeroed_copied_and_found() {
    let (_, live) = mounted("");
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(live.path("f"));
    let file = file.expect("created");
    let allocate = |flags, offset, len| rustix::fs::fallocate(&file, flags, offset, len);
    // Nothing is reserved, so nothing is promised.
    for flags in [FallocateFlags::empty(), FallocateFlags::KEEP_SIZE] {
        assert_eq!(
            allocate(flags, 0, 10_000),
            Err(rustix::io::Errno::OPNOTSUPP)
        );
    }
    assert_eq!(file.metadata().expect("stat").len(), 0);
    file.write_all_at(&[1; 16384], 0).expect("written");
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    allocate(punch, 4096, 4096).expect("punched");
    allocate(FallocateFlags::ZERO_RANGE, 16000, 1000).expect("zeroed");
    let bytes = fs::read(live.path("f")).expect("read");
    assert_eq!(bytes.len(), 17_000);
    assert!(
        bytes[4096..8192]
            .iter()
            .chain(&bytes[16000..])
            .all(|b| *b == 0)
    );
    assert!(
        bytes[..4096]
            .iter()
            .chain(&bytes[8192..16000])
            .all(|b| *b == 1)
    );
    let seek = |from| rustix::fs::seek(&file, from);
    assert_eq!(seek(SeekFrom::Hole(0)), Ok(4096));
    assert_eq!(seek(SeekFrom::Data(4096)), Ok(8192));
    assert_eq!(seek(SeekFrom::Data(1 << 30)), Err(rustix::io::Errno::NXIO));

    let copy = File::create(live.path("copy")).expect("created");
    let (mut from, mut to) = (8192, 100);
    let copied = rustix::fs::copy_file_range(&file, Some(&mut from), &copy, Some(&mut to), 5000);
    assert_eq!(copied, Ok(5000));
    let bytes = fs::read(live.path("copy")).expect("read");
    assert!(bytes.len() == 5100 && bytes[100..].iter().all(|byte| *byte == 1));
    copy.set_len(50).expect("cut");
    copy.set_len(200).expect("extended");
    assert_eq!(fs::read(live.path("copy")).expect("read"), [0; 200]);
}

#[test]
fn nodes_of_every_kind_exist() {
    let (_, live) = mounted("");
    let make = |name, kind, device| {
        let mode = Mode::from_raw_mode(0o666);
        rustix::fs::mknodat(CWD, live.path(name), kind, mode, device).expect("mknod");
    };
    let zero = rustix::fs::makedev(1, 5);
    make("zero", FileType::CharacterDevice, zero);
    make(
        "disk",
        FileType::BlockDevice,
        rustix::fs::makedev(259, 0x12345),
    );
    make("file", FileType::RegularFile, 0);
    let stat = fs::symlink_metadata(live.path("zero")).expect("stat");
    assert!(stat.file_type().is_char_device() && stat.rdev() == zero);
    let disk = fs::symlink_metadata(live.path("disk"))
        .expect("stat")
        .rdev();
    assert_eq!(
        (rustix::fs::major(disk), rustix::fs::minor(disk)),
        (259, 0x12345)
    );
    let mut bytes = [9; 10];
    let mut device = File::open(live.path("zero")).expect("devices work for root");
    device.read_exact(&mut bytes).expect("read");
    assert_eq!(bytes, [0; 10]);
    let listener = std::os::unix::net::UnixListener::bind(live.path("socket")).expect("bound");
    let client = std::os::unix::net::UnixStream::connect(live.path("socket"));
    let _connected = (
        client.expect("connected"),
        listener.accept().expect("accepted"),
    );
    live.sh(r#"mkfifo "$1/pipe"; echo hello > "$1/pipe" & test "$(cat "$1/pipe")" = hello; wait"#);
    live.sh(r#"exec 3> "$1/file"; flock -n 3; ! flock -n "$1/file" true"#);
}

#[test]
fn long_names_fit_up_to_255_bytes() {
    let (_, live) = mounted("");
    File::create(live.path(&"n".repeat(255))).expect("created");
    let long = live.path(&"n".repeat(256));
    assert_eq!(errno(File::create(&long)), 36);
    assert_eq!(errno(fs::create_dir(&long)), 36);
    assert_eq!(errno(fs::rename(live.path(&"n".repeat(255)), &long)), 36);
}

#[test]
fn a_remount_makes_the_mount_read_only_and_back() {
    let (_, live) = mounted("");
    fs::write(live.path("f"), b"x").expect("written");
    live.sh(r#"mount -i -o remount,ro "$1""#);
    assert_eq!(errno(fs::write(live.path("f"), b"y")), EROFS);
    assert_eq!(errno(File::create(live.path("g"))), EROFS);
    live.sh(r#"mount -i -o remount,rw "$1""#);
    fs::write(live.path("f"), b"y").expect("written");
    assert_eq!(fs::read(live.path("f")).expect("read"), b"y");
    drop(live);
    let (_, live) = mounted("ro");
    assert_eq!(errno(File::create(live.path("g"))), EROFS);
}

#[test]
fn file_handles_find_their_inodes() {
    let (_, live) = mounted("");
    let script = r#"
        python3 - "$1" <<'END'
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint), ("type", ctypes.c_int), ("data", ctypes.c_char * 128)]
root = os.open(sys.argv[1], os.O_RDONLY)
def handle(path):
    found, mount_id = Handle(bytes=128), ctypes.c_int()
    if libc.name_to_handle_at(-100, path.encode(), ctypes.byref(found),
                              ctypes.byref(mount_id), 0) != 0:
        raise OSError(ctypes.get_errno(), "name_to_handle_at")
    return found
def open_handle(found):
    fd = libc.open_by_handle_at(root, ctypes.byref(found), os.O_RDONLY)
    if fd < 0:
        raise OSError(ctypes.get_errno(), "open_by_handle_at")
    return os.fdopen(fd, "rb") if os.path.isfile(f"/proc/self/fd/{fd}") else fd
os.makedirs(sys.argv[1] + "/a/b")
path = sys.argv[1] + "/a/b/file"
open(path, "w").write("content")
of_file, of_dir = handle(path), handle(sys.argv[1] + "/a/b")
open("/proc/sys/vm/drop_caches", "w").write("2")
assert open_handle(of_file).read() == b"content"
assert os.listdir(open_handle(of_dir)) == ["file"]
os.rename(sys.argv[1] + "/a/b", sys.argv[1] + "/c")
open("/proc/sys/vm/drop_caches", "w").write("2")
assert open_handle(of_file).read() == b"content"
os.unlink(sys.argv[1] + "/c/file")
try:
    open_handle(of_file)
    raise SystemExit("the handle of a removed file works")
except OSError as error:
    assert error.errno == 116, error
END"#;
    live.sh(script);
}

#[test]
fn options_of_images_are_refused_and_the_mount_stays_with_its_server() {
    let (_, live) = mounted("");
    let mount = live.mount.as_ref().expect("mounted");
    assert_eq!(mount.pause().expect_err("writable").kind(), ErrorKind::Busy);
    let base = support::public_dir();
    let point = MountPoint::open(base.path()).expect("directory");
    let writable = WritableOptions::default();
    for list in ["uid=5", "umask=077", "subdir=a"] {
        let options = MountOptions::parse([list]).expect("known");
        let fs = Arc::new(ModelFs::new(0o755, 0));
        let source = "x".as_ref();
        let refused =
            weald_fuse::mount_writable(fs, source, &point, &options, &writable, None).err();
        assert_eq!(refused.map(|error| error.kind()), Some(ErrorKind::Invalid));
    }
}

#[test]
fn the_figures_of_the_file_system_are_its_own() {
    let (_, live) = mounted("");
    File::create(live.path("f")).expect("created");
    let stat = rustix::fs::statvfs(&live.dir).expect("statvfs");
    assert_eq!((stat.f_namemax, stat.f_frsize), (255, 4096));
    assert!(stat.f_bfree <= stat.f_blocks && stat.f_files - stat.f_ffree == 2);
}

/// Would catch: a mount that stands still while many processes wait for a sync, a sync that nobody
/// answers, and one commit for each of them.
#[test]
fn syncs_leave_the_other_requests_alone_and_share_the_work() {
    let slow = Slow::new();
    let live = Live::writable(Arc::clone(&slow) as Arc<_>, "workers=2");
    fs::write(live.path("file"), b"x").expect("written");
    let _opener = Opener(Arc::clone(&slow.door));
    slow.door.close();
    std::thread::scope(|scope| {
        // A failed assertion opens the door, so that the threads of the scope end.
        let _opener = Opener(Arc::clone(&slow.door));
        for at in 0..40 {
            let path = live.path(&format!("file-{at}"));
            scope.spawn(move || {
                let file = File::create(path).expect("created");
                file.sync_all().expect("synced");
            });
        }
        let mount = live.mount.as_ref().expect("mounted");
        wait_until("the syncs", || mount.counters().in_flight >= 40);
        fs::write(live.path("other"), b"other").expect("written");
        fs::rename(live.path("other"), live.path("another")).expect("renamed");
        assert_eq!(fs::read(live.path("another")).expect("read"), b"other");
        assert_eq!(slow.sync_count.load(Ordering::SeqCst), 0);
        slow.door.open();
    });
    // One for the first, one for those that waited, and perhaps one for a thread that came late.
    let sync_count = slow.sync_count.load(Ordering::SeqCst);
    assert!((2..=4).contains(&sync_count), "{sync_count}");
    drop(live);
    let last_count = slow.sync_count.load(Ordering::SeqCst);
    assert_eq!(last_count, sync_count + 1, "the last sync");
}

#[test]
fn a_failed_sync_is_reported_to_every_caller() {
    let slow = Slow::new();
    let live = Live::writable(Arc::clone(&slow) as Arc<_>, "");
    let file = File::create(live.path("file")).expect("created");
    slow.is_failing.store(true, Ordering::SeqCst);
    for _ in 0..2 {
        assert_eq!(errno(file.sync_all()), 5);
        assert_eq!(
            errno(File::open(&live.dir).and_then(|dir| dir.sync_all())),
            5
        );
    }
    slow.is_failing.store(false, Ordering::SeqCst);
    file.sync_data().expect("synced");
}
