//! Real mounts of the model of a file system that can change. The tests run as root and need
//! `/dev/fuse`.
#![allow(missing_docs)]

mod support;

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Mode, OFlags, RawDir, RenameFlags, SeekFrom,
    StatxFlags, Timespec, Timestamps, UTIME_NOW, XattrFlags,
};
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, chown};
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
    allocate(FallocateFlags::empty(), 0, 10_000).expect("allocated");
    assert_eq!(file.metadata().expect("stat").len(), 10_000);
    allocate(FallocateFlags::KEEP_SIZE, 0, 1 << 20).expect("allocated");
    assert_eq!(file.metadata().expect("stat").len(), 10_000);
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
fn times_are_set_and_kept() {
    let (_, live) = mounted("");
    fs::write(live.path("f"), b"x").expect("written");
    let before = fs::metadata(live.path("f")).expect("stat");
    let time = |tv_sec, tv_nsec| Timespec { tv_sec, tv_nsec };
    let set = |last_access, last_modification| {
        let times = Timestamps {
            last_access,
            last_modification,
        };
        rustix::fs::utimensat(CWD, live.path("f"), &times, AtFlags::empty()).expect("set");
    };
    set(time(-5, 7), time(1 << 33, 999_999_999));
    let stat = fs::metadata(live.path("f")).expect("stat");
    assert_eq!((stat.atime(), stat.atime_nsec()), (-5, 7));
    assert_eq!((stat.mtime(), stat.mtime_nsec()), (1 << 33, 999_999_999));
    assert!((stat.ctime(), stat.ctime_nsec()) > (before.ctime(), before.ctime_nsec()));
    set(time(0, UTIME_NOW), time(3, 4));
    let stat = fs::metadata(live.path("f")).expect("stat");
    assert!(stat.atime() >= before.atime() && stat.mtime() == 3);

    let flags = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let statx = rustix::fs::statx(CWD, live.path("f"), AtFlags::empty(), flags).expect("statx");
    assert_ne!(statx.stx_mask & StatxFlags::BTIME.bits(), 0);
    let birth = (statx.stx_btime.tv_sec, i64::from(statx.stx_btime.tv_nsec));
    assert!(birth <= (before.ctime(), before.ctime_nsec()) && birth.0 > 1_700_000_000);
}

/// Sets the access time to `seconds`, reads the file past every cache, and returns the access time.
fn atime_after_read(live: &Live, seconds: i64) -> i64 {
    let path = live.path("read");
    fs::write(&path, b"content").expect("written");
    let times = Timestamps {
        last_access: Timespec {
            tv_sec: seconds,
            tv_nsec: 0,
        },
        last_modification: Timespec {
            tv_sec: 1000,
            tv_nsec: 0,
        },
    };
    rustix::fs::utimensat(CWD, &path, &times, AtFlags::empty()).expect("set");
    let file = OpenOptions::new()
        .read(true)
        .custom_flags_direct()
        .open(&path)
        .expect("opened");
    assert_eq!(file.read_at(&mut [0; 4096], 0).expect("read"), 7);
    fs::metadata(&path).expect("stat").atime()
}

#[test]
fn reads_change_access_times_as_the_options_say() {
    const FAR: i64 = 1 << 33;
    for (options, old_changes, far_changes) in [
        ("", true, false),
        ("lazytime", true, false),
        ("noatime", false, false),
        ("strictatime", true, true),
    ] {
        let (_, live) = mounted(options);
        assert_eq!(
            atime_after_read(&live, 500) != 500,
            old_changes,
            "{options}"
        );
        assert_eq!(
            atime_after_read(&live, FAR) != FAR,
            far_changes,
            "{options}"
        );
    }
}

#[test]
fn attributes_have_values_of_any_kind() {
    let (_, live) = mounted("");
    let path = live.path("f");
    fs::write(&path, b"x").expect("written");
    let set = |name, value: &[u8], flags| rustix::fs::setxattr(&path, name, value, flags);
    set("user.a", b"1\0\xff", XattrFlags::CREATE).expect("created");
    let again = set("user.a", b"2", XattrFlags::CREATE);
    assert_eq!(again, Err(rustix::io::Errno::EXIST));
    let missing = set("user.b", b"2", XattrFlags::REPLACE);
    assert_eq!(missing, Err(rustix::io::Errno::NODATA));
    set("trusted.t", b"", XattrFlags::empty()).expect("set");
    let large = content(60_000);
    set("user.large", &large, XattrFlags::empty()).expect("set");
    let mut value = vec![0; 65536];
    let len = rustix::fs::getxattr(&path, "user.large", &mut value[..]).expect("read");
    assert!(value[..len] == large);
    let len = rustix::fs::listxattr(&path, &mut value[..]).expect("listed");
    assert_eq!(&value[..len], b"trusted.t\0user.a\0user.large\0");
    rustix::fs::removexattr(&path, "user.a").expect("removed");
    let gone = rustix::fs::getxattr(&path, "user.a", &mut value[..]);
    assert_eq!(gone, Err(rustix::io::Errno::NODATA));
}

#[test]
fn access_lists_are_inherited_enforced_and_agree_with_the_mode() {
    let (_, live) = mounted("");
    live.sh(r#"
        cd "$1"; umask 077
        mkdir d; chmod 755 d
        setfacl -d -m u::rwx,u:1234:rwx,g::rx,m::rwx,o::rx d
        echo x > d/file; mkdir d/sub; ln -s file d/link
        "#);
    assert_eq!(permissions(&live.path("d/file")), 0o664);
    assert_eq!(permissions(&live.path("d/sub")), 0o775);
    assert_eq!(permissions(&live.path("d/link")), 0o777);
    let list = |path| live.sh(&format!(r#"cd "$1"; getfacl -cE --numeric {path}"#));
    let file = "user::rw-\nuser:1234:rwx\ngroup::r-x\nmask::rw-\nother::r--\n\n";
    assert_eq!(list("d/file"), file);
    assert!(list("d/sub").contains("default:user:1234:rwx"));
    chmod(&live.path("d/file"), 0o640);
    assert!(list("d/file").contains("group::r-x\nmask::r--\nother::---"));
    live.sh(r#"cd "$1"; setfacl -m m::rwx d/file"#);
    assert_eq!(permissions(&live.path("d/file")), 0o670);
    live.sh(r#"cd "$1"; echo y | setpriv --reuid 1234 --regid 1235 --clear-groups tee d/file"#);
    live.sh(r#"cd "$1"; ! setpriv --reuid 1235 --regid 1235 --clear-groups cat d/file"#);
    live.sh(r#"cd "$1"; setfacl -b d/file"#);
    let mut value = [0; 100];
    let gone = rustix::fs::getxattr(
        live.path("d/file"),
        "system.posix_acl_access",
        &mut value[..],
    );
    assert_eq!(gone, Err(rustix::io::Errno::NODATA));
    live.sh(r#"cd "$1"; umask 027; setfacl -k d; echo z > d/plain; mkdir d/dir"#);
    assert_eq!(permissions(&live.path("d/plain")), 0o640);
    assert_eq!(permissions(&live.path("d/dir")), 0o750);
}

#[test]
fn new_files_belong_to_their_creator_or_to_the_group_of_the_directory() {
    let (_, live) = mounted("");
    live.sh(r#"
        cd "$1"; umask 022; mkdir plain shared; chmod 777 plain
        chgrp 77 shared; chmod 2777 shared
        setpriv --reuid 1234 --regid 55 --clear-groups bash -c '
            for dir in plain shared; do
                touch $dir/file; mkdir $dir/dir; mknod $dir/fifo p; ln -s x $dir/link
            done
            touch shared/set; chmod 2755 shared/set'
        "#);
    for (name, gid, bits) in [
        ("plain/file", 55, 0o644),
        ("plain/dir", 55, 0o755),
        ("shared/file", 77, 0o644),
        ("shared/dir", 77, 0o2755),
        ("shared/fifo", 77, 0o644),
        ("shared/link", 77, 0o777),
        // The owner is not in the group.
        ("shared/set", 77, 0o755),
    ] {
        let stat = fs::symlink_metadata(live.path(name)).expect(name);
        assert_eq!((stat.uid(), stat.gid()), (1234, gid), "{name}");
        assert_eq!(stat.mode() & 0o7777, bits, "{name}");
    }
}

/// Would catch: a set-uid program that another user changes and that keeps its bit.
#[test]
fn writes_truncations_and_chown_take_privileges_away() {
    let (_, live) = mounted("");
    let path = live.path("f");
    let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let has_capability = || rustix::fs::getxattr(&path, "security.capability", &mut [0; 64]);
    let give = |bits| {
        fs::write(&path, b"content").expect("written");
        chown(&path, Some(0), Some(0)).expect("chown");
        chmod(&path, bits);
        let flags = XattrFlags::empty();
        rustix::fs::setxattr(&path, "security.capability", &capability, flags).expect("set");
    };
    let as_user = "setpriv --reuid 1234 --clear-groups";
    for (script, bits, left) in [
        (format!("echo x | {as_user} tee -a f"), 0o6777, 0o777),
        (format!("echo x | {as_user} tee -a f"), 0o6767, 0o2767),
        (
            format!("{as_user} dd if=/dev/zero of=f bs=4k count=1 oflag=direct"),
            0o6777,
            0o777,
        ),
        (format!("{as_user} truncate -s 3 f"), 0o6777, 0o777),
        (format!("{as_user} bash -c ': > f'"), 0o6777, 0o777),
        (format!("{as_user} fallocate -l 100000 f"), 0o6777, 0o777),
        ("chown 5 f".to_owned(), 0o6777, 0o777),
        ("chgrp 5 f".to_owned(), 0o6767, 0o2767),
        ("echo x >> f".to_owned(), 0o777, 0o777),
    ] {
        give(bits);
        live.sh(&format!(r#"cd "$1"; {script}"#));
        assert_eq!(permissions(&path), left, "{script}");
        assert_eq!(has_capability(), Err(rustix::io::Errno::NODATA), "{script}");
    }
    // Root keeps the bits.
    chmod(&path, 0o6777);
    live.sh(r#"cd "$1"; echo x >> f; truncate -s 3 f"#);
    assert_eq!(permissions(&path), 0o6777);
    fs::create_dir(live.path("d")).expect("mkdir");
    chmod(&live.path("d"), 0o2775);
    chown(live.path("d"), Some(5), Some(6)).expect("chown");
    assert_eq!(permissions(&live.path("d")), 0o2775);
}

/// Would catch: a capability, a set-uid bit or an access list that hiding extended attributes
/// removes or keeps against the rules.
#[test]
fn noxattr_hides_attributes_and_keeps_them() {
    let fs = Arc::new(ModelFs::new(0o755, 0));
    let prepare = Live::writable(Arc::clone(&fs) as Arc<_>, "");
    let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    for name in ["kept", "written"] {
        fs::write(prepare.path(name), b"content").expect("written");
        for (xattr, value) in [("security.capability", &capability[..]), ("user.a", b"b")] {
            let flags = XattrFlags::empty();
            rustix::fs::setxattr(prepare.path(name), xattr, value, flags).expect("set");
        }
    }
    prepare.sh(
        r#"mkdir -m 777 "$1/d"; setfacl -d -m u:1234:rwx "$1/d"; setfacl -m u:1234:--- "$1/kept""#,
    );
    drop(prepare);

    let live = Live::writable(Arc::clone(&fs) as Arc<_>, "noxattr");
    let unsupported = Err(rustix::io::Errno::OPNOTSUPP);
    for _ in 0..2 {
        let kept = live.path("kept");
        let read = rustix::fs::getxattr(&kept, "user.a", &mut [0; 64]);
        assert_eq!(read, unsupported);
        let listed = rustix::fs::listxattr(&kept, &mut [0; 64]);
        assert_eq!(listed, unsupported);
        let set = rustix::fs::setxattr(&kept, "user.a", b"c", XattrFlags::empty());
        assert_eq!(set, unsupported.map(|_: usize| ()));
        let removed = rustix::fs::removexattr(&kept, "user.a");
        assert_eq!(removed, unsupported.map(|_: usize| ()));
    }
    // Modes alone decide.
    live.sh(r#"setpriv --reuid 1234 --regid 1234 --clear-groups cat "$1/kept""#);
    // A write takes privileges away all the same.
    chmod(&live.path("written"), 0o6777);
    live.sh(r#"cd "$1"; echo x | setpriv --reuid 1234 --clear-groups tee -a written; touch d/new"#);
    assert_eq!(permissions(&live.path("written")), 0o777);
    for at in 0..10 {
        fs::write(live.path(&format!("new-{at}")), b"content").expect("written");
        fs::write(live.path("written"), b"content").expect("written");
    }
    assert_eq!(request_count(&live, "getxattr"), 1);
    drop(live);

    let live = Live::writable(fs, "noxattr,xattr");
    let mut value = [0; 64];
    let read = rustix::fs::getxattr(live.path("kept"), "security.capability", &mut value);
    assert_eq!(read, Ok(capability.len()));
    let read = rustix::fs::getxattr(live.path("written"), "security.capability", &mut value);
    assert_eq!(read, Err(rustix::io::Errno::NODATA));
    let read = rustix::fs::getxattr(live.path("written"), "user.a", &mut value);
    assert_eq!((read, value[0]), (Ok(1), b'b'));
    let list = live.sh(r#"getfacl -cE --numeric "$1/kept" "$1/d/new""#);
    assert!(
        list.contains("user:1234:---") && list.contains("user:1234:rwx"),
        "{list}"
    );
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
fn a_large_directory_is_listed_once_and_whole() {
    let (_, live) = mounted("");
    let names: BTreeSet<String> = (0..10_000).map(|at| format!("name-{at:05}")).collect();
    for name in &names {
        File::create(live.path(name)).expect("created");
    }
    let listed: Vec<_> = fs::read_dir(&live.dir).expect("list").flatten().collect();
    assert_eq!(listed.len(), names.len());
    assert_eq!(listed.into_iter().collect_names(), names);
    // A listing that goes on while names come and go.
    let mut seen = BTreeSet::new();
    for (at, entry) in fs::read_dir(&live.dir).expect("list").flatten().enumerate() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with("name-") {
            assert!(seen.insert(name.clone()), "{name} came twice");
            fs::remove_file(live.path(&name)).expect("removed");
        }
        if at % 100 == 0 {
            File::create(live.path(&format!("more-{at}"))).expect("created");
            assert!(fs::read_dir(&live.dir).expect("list").count() > 0);
        }
    }
    assert_eq!(seen, names);
    live.sh(r#"rm -r "$1"/more-*"#);
    assert_eq!(fs::read_dir(&live.dir).expect("list").count(), 0);
}

/// Requests named `operation` that the kernel sent so far.
fn request_count(live: &Live, operation: &str) -> u64 {
    let counters = live.mount.as_ref().expect("mounted").counters();
    let found = counters.operations.iter().find(|o| o.name == operation);
    found.map_or(0, |found| found.count)
}

/// Would catch: the end of a listing whose position was removed, at the end of pages that the
/// kernel filled for another listing.
#[test]
fn a_listing_goes_on_whatever_others_remove_and_list() {
    let (_, live) = mounted("");
    // With "." and "..", and without one name: entries of 32 bytes that fill eight pages.
    let names: BTreeSet<String> = (0..8 * 128 - 1).map(|at| format!("n-{at:06}")).collect();
    for name in &names {
        File::create(live.path(name)).expect("created");
    }
    let dir = File::open(&live.dir).expect("opened");
    let mut buffer = [std::mem::MaybeUninit::uninit(); 256];
    let mut listing = RawDir::new(&dir, &mut buffer);
    let mut seen = BTreeSet::new();
    let mut last = String::new();
    while seen.len() < 300 || !listing.is_buffer_empty() {
        let entry = listing.next().expect("more entries").expect("list");
        last = entry.file_name().to_string_lossy().into_owned();
        seen.insert(last.clone());
    }
    fs::remove_file(live.path(&last)).expect("removed");
    for _ in 0..2 {
        let others = fs::read_dir(&live.dir).expect("list").flatten();
        assert_eq!(others.count(), names.len() - 1);
    }
    while let Some(entry) = listing.next() {
        let name = entry
            .expect("list")
            .file_name()
            .to_string_lossy()
            .into_owned();
        assert!(seen.insert(name.clone()), "{name} came twice");
    }
    assert_eq!(seen.len(), names.len() + 2);
}

/// Would catch: removed names in a listing that began later, because the kernel completes it from
/// the pages of an older one.
#[test]
fn a_listing_lacks_what_was_gone_when_it_began() {
    let (_, live) = mounted("");
    for at in 0..2000 {
        File::create(live.path(&format!("n-{at:06}"))).expect("created");
    }
    let lists_some = |listing: &mut RawDir<'_, &File>, count: usize| {
        let mut names = Vec::new();
        while names.len() < count || !listing.is_buffer_empty() {
            let Some(entry) = listing.next() else { break };
            names.push(entry.expect("list").file_name().to_owned());
        }
        names
    };
    // The first listing fills pages with names and stops.
    let first = File::open(&live.dir).expect("opened");
    let mut buffer = [std::mem::MaybeUninit::uninit(); 256];
    let mut old = RawDir::new(&first, &mut buffer);
    lists_some(&mut old, 1500);
    for at in 1000..1400 {
        fs::remove_file(live.path(&format!("n-{at:06}"))).expect("removed");
    }
    // The second one begins after that, and goes on when the third one has reached the end.
    let second = File::open(&live.dir).expect("opened");
    let mut buffer = [std::mem::MaybeUninit::uninit(); 256];
    let mut listing = RawDir::new(&second, &mut buffer);
    let mut names = lists_some(&mut listing, 10);
    assert_eq!(fs::read_dir(&live.dir).expect("list").count(), 1600);
    names.extend(lists_some(&mut listing, usize::MAX));
    let distinct: BTreeSet<_> = names.iter().collect();
    assert_eq!((names.len(), distinct.len()), (1602, 1602));
}

#[test]
fn opening_a_directory_takes_no_request() {
    let (_, live) = mounted("");
    fs::create_dir(live.path("dir")).expect("mkdir");
    for at in 1..20 {
        File::create(live.path("dir").join(at.to_string())).expect("created");
        let before = request_count(&live, "readdir") + request_count(&live, "readdirplus");
        assert_eq!(fs::read_dir(live.path("dir")).expect("list").count(), at);
        File::open(live.path("dir"))
            .expect("opened")
            .sync_all()
            .expect("synced");
        let after = request_count(&live, "readdir") + request_count(&live, "readdirplus");
        assert!(after > before, "the kernel answered a listing");
    }
    assert_eq!(request_count(&live, "opendir"), 1);
    assert_eq!(request_count(&live, "releasedir"), 0);
    // The driver checks the user of each directory that is opened.
    let (_, live) = mounted("allow_root");
    for _ in 0..3 {
        assert_eq!(fs::read_dir(&live.dir).expect("list").count(), 0);
    }
    // A request is counted a moment after its answer.
    wait_until("three opens", || request_count(&live, "opendir") == 3);
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
