//! Real mounts of a computed tree: the kernel's view of it. The tests run as root and need
//! `/dev/fuse`.
#![allow(missing_docs)]

mod support;

use rustix::fs::{SeekFrom, XattrFlags};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use support::stub::{BIG_LEN, SPARSE_DATA, SPARSE_LEN, Stub};
use support::{Counting, Live, errno, public_dir, sh};
use weald_format::ErrorKind;
use weald_fuse::{Busy, Features, MountOptions};
use weald_testkit::mounts::mount_lines;

const EROFS: i32 = 30;
const EIO: i32 = 5;

fn live() -> Live {
    Live::new(Stub::new(3, 20), "")
}

#[test]
fn the_mount_is_shown_as_what_it_is() {
    let live = Live::new(Stub::new(1, 1), "noexec,dev,suid,noatime");
    let mounts = mount_lines("/proc/mounts");
    let dir = live.dir.to_str().expect("UTF-8");
    let line = mounts
        .iter()
        .find(|line| line.contains(dir))
        .expect("mounted");
    let words: Vec<&str> = line.split(' ').collect();
    assert_eq!(words[0], r"the\040source");
    assert_eq!(words[2], "fuse.weald");
    let flags: Vec<&str> = words[3].split(',').collect();
    for flag in [
        "ro",
        "noexec",
        "noatime",
        "default_permissions",
        "allow_other",
    ] {
        assert!(flags.contains(&flag), "{flag} is missing in {line}");
    }
    for flag in ["nosuid", "nodev"] {
        assert!(!flags.contains(&flag), "{flag} was not asked for: {line}");
    }
}

fn write_attempts(live: &Live) -> Vec<(&'static str, i32)> {
    let path = |name| live.path(name);
    let write = |name| OpenOptions::new().write(true).open(path(name));
    vec![
        ("create", errno(File::create(path("new")))),
        ("mkdir", errno(fs::create_dir(path("new")))),
        ("unlink", errno(fs::remove_file(path("hello")))),
        ("rmdir", errno(fs::remove_dir(path("d0000000")))),
        ("rename", errno(fs::rename(path("hello"), path("new")))),
        (
            "symlink",
            errno(std::os::unix::fs::symlink("x", path("new"))),
        ),
        ("link", errno(fs::hard_link(path("hello"), path("new")))),
        (
            "chmod",
            errno(fs::set_permissions(path("hello"), perm(0o600))),
        ),
        (
            "chown",
            errno(std::os::unix::fs::chown(path("hello"), Some(1), Some(1))),
        ),
        (
            "truncate",
            errno(write("hello").and_then(|file| file.set_len(0))),
        ),
        (
            "write",
            errno(write("hello").and_then(|file| file.write_at(b"x", 0))),
        ),
        (
            "setxattr",
            xattr_errno(rustix::fs::setxattr(
                path("hello"),
                "user.a",
                b"b",
                XattrFlags::empty(),
            )),
        ),
        (
            "removexattr",
            xattr_errno(rustix::fs::removexattr(path("tagged"), "user.text")),
        ),
    ]
}

fn perm(mode: u32) -> fs::Permissions {
    std::os::unix::fs::PermissionsExt::from_mode(mode)
}

fn xattr_errno(result: rustix::io::Result<()>) -> i32 {
    result.expect_err("must fail").raw_os_error()
}

#[test]
fn every_way_to_write_ends_in_erofs() {
    let live = live();
    for (what, errno) in write_attempts(&live) {
        assert_eq!(errno, EROFS, "{what}");
    }
    assert_eq!(
        errno(OpenOptions::new().write(true).open(live.path("hello"))),
        EROFS
    );
}

#[test]
fn the_driver_itself_refuses_when_remounted_rw() {
    let live = live();
    live.sh(r#"mount -i -o remount,rw "$1""#);
    for (what, errno) in write_attempts(&live) {
        assert_eq!(errno, EROFS, "{what}");
    }
}

#[test]
fn attributes_are_those_of_the_tree() {
    let live = live();
    let hello = fs::metadata(live.path("hello")).expect("stat");
    assert_eq!(
        (hello.len(), hello.mode(), hello.nlink(), hello.ino()),
        (13, 0o100_644, 2, 9)
    );
    assert_eq!(
        (hello.mtime(), hello.mtime_nsec()),
        (1_700_000_000, 123_456_789)
    );
    let twin = fs::metadata(live.path("twin")).expect("stat");
    assert_eq!((twin.ino(), twin.dev()), (hello.ino(), hello.dev()));
    let device = fs::metadata(live.path("device")).expect("stat");
    assert!(device.file_type().is_char_device());
    assert_eq!(device.rdev(), rustix::fs::makedev(1, 3));
    assert!(
        fs::metadata(live.path("fifo"))
            .expect("stat")
            .file_type()
            .is_fifo()
    );
    let root = fs::metadata(&live.dir).expect("stat");
    assert_eq!((root.ino(), root.nlink()), (1, 5));
}

#[test]
fn devices_work_only_where_root_asks_for_them() {
    let live = Live::new(Stub::new(1, 1), "dev");
    let device = OpenOptions::new()
        .write(true)
        .open(live.path("device"))
        .expect("null device");
    assert_eq!(
        device.write_at(b"x", 0).expect("write to the null device"),
        1
    );
    for options in ["", "suid", "dev,nodev"] {
        let nodev = Live::new(Stub::new(1, 1), options);
        let refused = errno(File::open(nodev.path("device")));
        assert_eq!(refused, Errno::ACCESS.raw_os_error(), "{options}");
    }
}

#[test]
fn links_and_contents_read_back() {
    let live = live();
    assert_eq!(
        fs::read_link(live.path("link")).expect("readlink"),
        Path::new("hello")
    );
    assert_eq!(
        fs::read(live.path("link")).expect("read"),
        b"Hello, Weald\n"
    );
    let file = File::open(live.path("big")).expect("open");
    let mut tail = [1u8; 100];
    assert_eq!(file.read_at(&mut tail, BIG_LEN - 7).expect("read"), 7);
    assert_eq!(file.read_at(&mut tail, BIG_LEN + 7).expect("read"), 0);
    let computed = fs::metadata(live.path("d0000001/f0000019")).expect("stat");
    let expected: Vec<u8> = (0..19).map(|at| (at + computed.ino()) as u8).collect();
    assert_eq!(
        fs::read(live.path("d0000001/f0000019")).expect("read"),
        expected
    );
}

#[test]
fn missing_and_overlong_names_fail_as_elsewhere() {
    let live = live();
    assert_eq!(
        errno(fs::metadata(live.path("missing"))),
        Errno::NOENT.raw_os_error()
    );
    assert_eq!(
        errno(fs::metadata(live.path(&"n".repeat(256)))),
        Errno::NAMETOOLONG.raw_os_error()
    );
    assert_eq!(
        errno(fs::metadata(live.path("hello/x"))),
        Errno::NOTDIR.raw_os_error()
    );
}

#[test]
fn a_hundred_thousand_entries_are_listed_once_each_and_in_order() {
    let live = Live::new(Stub::new(1, 100_000), "");
    let listed = live.sh(r#"ls -f "$1/d0000000" | grep -v '^\.\.*$'"#);
    let expected: String = (0..100_000).map(|index| format!("f{index:07}\n")).collect();
    assert!(listed == expected, "the listing differs");
    let long = live.sh(r#"ls -lR "$1" | grep -c ' f0'"#);
    assert_eq!(long, "100000\n");
}

#[test]
fn a_listing_can_go_on_from_any_offset() {
    let live = Live::new(Stub::new(1, 1000), "");
    let dir = File::open(live.path("d0000000")).expect("open");
    let mut entries = rustix::fs::Dir::read_from(&dir).expect("opendir");
    let offsets: Vec<(String, i64)> = std::iter::from_fn(|| entries.next())
        .map(|entry| entry.expect("entry"))
        .map(|entry| {
            (
                entry.file_name().to_string_lossy().into_owned(),
                entry.offset(),
            )
        })
        .collect();
    assert_eq!(offsets.len(), 1002);
    for at in [0, 1, 2, 500, 1000] {
        let mut entries = rustix::fs::Dir::read_from(&dir).expect("opendir");
        entries.seek(offsets[at].1).expect("seekdir");
        let next = entries.next().expect("more").expect("entry");
        assert_eq!(next.file_name().to_string_lossy(), offsets[at + 1].0);
    }
}

/// The inode number that getdents64(2) gives for a name.
fn listed_ino(dir: &Path, name: &str) -> u64 {
    let dir = File::open(dir).expect("open");
    let mut entries = rustix::fs::Dir::read_from(dir).expect("opendir");
    let is_it = |entry: &rustix::fs::DirEntry| entry.file_name().to_bytes() == name.as_bytes();
    let found = entries.find(|entry| entry.as_ref().is_ok_and(is_it));
    found.expect("listed").expect("entry").ino()
}

#[test]
fn dots_have_the_inodes_of_the_directory_and_its_parent() {
    let live = live();
    let ino = |name| listed_ino(&live.path("d0000002"), name);
    assert_eq!(
        ino("."),
        fs::metadata(live.path("d0000002")).expect("stat").ino()
    );
    assert_eq!(ino(".."), 1);
}

#[test]
fn extended_attributes_are_told_and_absent_ones_denied() {
    let live = live();
    let get = |name: &str, len: usize| {
        let mut value = vec![0; len];
        rustix::fs::getxattr(live.path("tagged"), name, value.as_mut_slice())
            .map(|len| value[..len].to_vec())
    };
    assert_eq!(get("user.text", 100), Ok(b"value".to_vec()));
    assert_eq!(get("user.text", 4), Err(Errno::RANGE));
    assert_eq!(get("user.empty", 100), Ok(vec![]));
    assert_eq!(get("user.big", 2000), Ok(vec![7; 2000]));
    assert_eq!(get("user.none", 100), Err(Errno::NODATA));
    assert_eq!(
        rustix::fs::getxattr_query(live.path("tagged"), "user.big"),
        Ok(2000)
    );
    let names = live.sh(r#"getfattr --absolute-names -m - "$1/tagged" | grep -v ^#"#);
    assert_eq!(names, "trusted.secret\nuser.big\nuser.empty\nuser.text\n\n");
    let secret = r#"getfattr -n trusted.secret "$1/tagged" 2>/dev/null || echo denied"#;
    assert!(live.sh(secret).contains("root only"));
    let secret = format!("setpriv --reuid 1234 --clear-groups {secret}");
    assert_eq!(live.sh(&secret), "denied\n");
    let mut names = vec![0; 100];
    assert_eq!(
        rustix::fs::listxattr(live.path("hello"), names.as_mut_slice()),
        Ok(0)
    );
    assert_eq!(
        rustix::fs::getxattr_query(live.path("hello"), "user.text"),
        Err(Errno::NODATA)
    );
}

#[test]
fn a_tree_without_extended_attributes_is_asked_once() {
    let mut stub = Stub::new(1, 10);
    stub.features = Features {
        has_xattrs: false,
        has_acls: false,
        has_holes: true,
        has_btimes: false,
        is_plain: false,
    };
    let (tree, calls) = Counting::new(stub);
    let live = Live::new(tree, "");
    let ask = |name| rustix::fs::getxattr_query(live.path(name), "user.text");
    assert_eq!(ask("tagged"), Err(Errno::OPNOTSUPP));
    fs::metadata(live.path("hello")).expect("stat");
    let before = calls.load(Ordering::Relaxed);
    assert_eq!(ask("hello"), Err(Errno::OPNOTSUPP));
    assert_eq!(calls.load(Ordering::Relaxed), before);
}

#[test]
fn acls_permissions_and_capabilities_are_enforced() {
    let live = live();
    let read_as = |uid: u32, name: &str| {
        let script = format!(
            r#"setpriv --reuid {uid} --regid 99 --clear-groups cat "$1/{name}" >/dev/null &&
               echo yes || echo no"#
        );
        live.sh(&format!("({script}) 2>/dev/null"))
    };
    assert_eq!(read_as(1234, "acl"), "yes\n", "named by the ACL");
    assert_eq!(read_as(1235, "acl"), "no\n", "not named by the ACL");
    assert_eq!(read_as(1234, "closed"), "no\n");
    assert_eq!(read_as(1234, "hello"), "yes\n");
    assert!(
        live.sh(r#"getfacl -cpn "$1/acl""#)
            .contains("user:1234:r--")
    );
    assert!(
        live.sh(r#"getcap "$1/capable""#)
            .contains("cap_net_bind_service=ep")
    );
}

#[test]
fn owner_group_and_umask_can_be_set_and_silence_acls() {
    let live = Live::new(Stub::new(1, 1), "uid=1234,gid=77,umask=077");
    let listed = live.sh(r#"stat -c '%u %g %a' "$1/hello" "$1/d0000000" && stat -c %A "$1/link""#);
    assert_eq!(listed, "1234 77 600\n1234 77 700\nlrwxrwxrwx\n");
    assert_eq!(
        live.sh(r#"getfacl -cpn "$1/acl" | grep -c user:1235 || true"#),
        "0\n"
    );
    assert_eq!(
        rustix::fs::getxattr_query(live.path("acl"), "system.posix_acl_access"),
        Err(Errno::NODATA)
    );
}

#[test]
fn holes_are_found_and_not_counted() {
    let live = live();
    let file = File::open(live.path("sparse")).expect("open");
    let seek = |to| rustix::fs::seek(&file, to);
    let [(_, first_len), (second, second_len)] = SPARSE_DATA;
    assert_eq!(seek(SeekFrom::Data(0)), Ok(0));
    assert_eq!(seek(SeekFrom::Hole(0)), Ok(first_len));
    assert_eq!(seek(SeekFrom::Data(first_len)), Ok(second));
    assert_eq!(seek(SeekFrom::Hole(first_len + 5)), Ok(first_len + 5));
    assert_eq!(seek(SeekFrom::Hole(second)), Ok(second + second_len));
    assert_eq!(seek(SeekFrom::Data(second + second_len)), Err(Errno::NXIO));
    assert_eq!(seek(SeekFrom::Hole(SPARSE_LEN)), Err(Errno::NXIO));
    let full = File::open(live.path("big")).expect("open");
    assert_eq!(rustix::fs::seek(&full, SeekFrom::Hole(5)), Ok(BIG_LEN));
    let blocks = fs::metadata(live.path("sparse")).expect("stat").blocks();
    assert_eq!(blocks, (first_len + second_len) / 512);
}

#[test]
fn a_damaged_file_fails_alone() {
    let live = live();
    let file = File::open(live.path("damaged")).expect("open");
    let mut page = [0u8; 4096];
    assert_eq!(file.read_at(&mut page, 0).expect("before the damage"), 4096);
    assert_eq!(page[4095], (4095u64 + 6) as u8);
    for _ in 0..3 {
        assert_eq!(errno(file.read_at(&mut page, 1 << 19)), EIO);
    }
    assert_eq!(
        fs::read(live.path("hello")).expect("others go on"),
        b"Hello, Weald\n"
    );
    assert_eq!(
        fs::metadata(live.path("damaged")).expect("stat").len(),
        1 << 20
    );
}

#[test]
fn statfs_tells_content_and_names_and_no_room() {
    let live = live();
    let stats = rustix::fs::statvfs(&live.dir).expect("statvfs");
    assert_eq!(stats.f_blocks * stats.f_frsize, 4096 * 12345);
    assert_eq!((stats.f_bfree, stats.f_bavail, stats.f_ffree), (0, 0, 0));
    assert_eq!((stats.f_files, stats.f_namemax), (1 + 12 + 3 * 21, 255));
    assert!(stats.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY));
}

#[test]
fn a_subdirectory_can_be_the_root() {
    let live = Live::new(Stub::new(3, 20), "subdir=/d0000002/");
    assert_eq!(fs::read_dir(&live.dir).expect("list").count(), 20);
    assert_eq!(fs::metadata(&live.dir).expect("stat").ino(), 1);
    let ino = |name| listed_ino(&live.dir, name);
    assert_eq!((ino("."), ino("..")), (1, 1));
    assert_eq!(fs::read(live.path("f0000003")).expect("read").len(), 3);
    let refused = |subdir: &str| {
        let base = public_dir();
        let options = MountOptions::parse([format!("subdir={subdir}")]).expect("options");
        let mount = weald_fuse::mount(Stub::new(1, 1), "x".as_ref(), base.path(), &options);
        mount.map(|_| ()).expect_err("must fail").kind()
    };
    assert_eq!(refused("missing"), ErrorKind::NotFound);
    assert_eq!(refused("hello"), ErrorKind::Invalid);
}

#[test]
fn a_second_look_asks_the_tree_nothing() {
    let mut stub = Stub::new(5, 100);
    // The kernel caches no extended attributes, and `ls -l` asks for them.
    stub.features.has_xattrs = false;
    stub.features.has_acls = false;
    let (tree, calls) = Counting::new(stub);
    let live = Live::new(tree, "");
    let walk = r#"ls -lR "$1" >/dev/null
        stat "$1/missing" 2>/dev/null || true
        cat "$1/link" "$1"/d*/* >/dev/null"#;
    live.sh(walk);
    let first = calls.load(Ordering::Relaxed);
    assert!(first > 500, "the first walk reads files: {first}");
    // The kernel may reclaim memory at any time, and then repeats requests for evicted entries.
    support::wait_until("a walk that the kernel's caches answer", || {
        let before = calls.load(Ordering::Relaxed);
        live.sh(walk);
        calls.load(Ordering::Relaxed) == before
    });
}

#[test]
fn one_listing_gives_the_attributes_of_all() {
    let mut stub = Stub::new(2, 1000);
    stub.features.has_holes = false;
    let (tree, calls) = Counting::new(stub);
    let live = Live::new(tree, "");
    assert_eq!(
        live.sh(r#"find "$1" -type f -printf '%s\n' | wc -l"#),
        "2009\n"
    );
    let asked = calls.load(Ordering::Relaxed);
    assert!(asked < 200, "2015 entries took {asked} calls");
}

#[test]
fn a_busy_mount_is_refused_or_detached_and_its_session_ends() {
    let mut live = live();
    let mount = live.mount.take().expect("mounted");
    let unmounter = mount.unmounter();
    let file = File::open(live.path("hello")).expect("open");
    let refused = unmounter.unmount(Busy::Refuse).expect_err("in use");
    assert_eq!(refused.kind(), ErrorKind::Busy);
    assert_eq!(
        weald_fuse::unmount(&live.dir, Busy::Refuse)
            .expect_err("in use")
            .kind(),
        ErrorKind::Busy
    );
    unmounter.unmount(Busy::Detach).expect("detach");
    let mut text = [0; 5];
    file.read_exact_at(&mut text, 0)
        .expect("still served to its last user");
    assert_eq!(&text, b"Hello");
    drop(file);
    mount.wait().expect("ends with its last user");
    assert_eq!(fs::read_dir(&live.dir).expect("list").count(), 0);
    let gone = weald_fuse::unmount(&live.dir, Busy::Refuse).expect_err("not mounted");
    assert_eq!(gone.kind(), ErrorKind::Invalid);
}

#[test]
fn an_unmounter_leaves_a_mount_above_alone() {
    let live = live();
    let unmounter = live.mount.as_ref().expect("mounted").unmounter();
    live.sh(r#"mount -t tmpfs above "$1" && touch "$1/mine""#);
    unmounter.unmount(Busy::Refuse).expect("nothing to do");
    assert!(live.path("mine").exists());
    live.sh(r#"umount "$1""#);
    assert!(live.path("hello").exists());
}

#[test]
fn umount_ends_the_session() {
    let mut live = live();
    let mount = live.mount.take().expect("mounted");
    live.sh(r#"umount "$1""#);
    mount.wait().expect("session");
}

#[test]
fn a_bad_mount_point_is_named() {
    let base = public_dir();
    let try_mount = |path: &Path| {
        let options = MountOptions::default();
        weald_fuse::mount(Stub::new(1, 1), "x".as_ref(), path, &options)
            .map(|_| ())
            .expect_err("must fail")
    };
    assert_eq!(
        try_mount(&base.path().join("missing")).kind(),
        ErrorKind::NotFound
    );
    let file = base.path().join("file");
    fs::write(&file, "").expect("write");
    let error = try_mount(&file);
    let expected = format!("mount point: {}: not a directory", file.display());
    assert_eq!(
        (error.kind(), error.to_string()),
        (ErrorKind::Invalid, expected)
    );
}

#[test]
fn only_root_may_come_in_when_asked_so() {
    let live = Live::new(Stub::new(1, 1), "allow_root");
    let script =
        r#"(setpriv --reuid 1234 --clear-groups cat "$1/hello" || echo refused) 2>/dev/null"#;
    assert_eq!(live.sh(script), "refused\n");
    assert_eq!(live.sh(r#"cat "$1/hello""#), "Hello, Weald\n");
}

#[test]
fn programs_run_and_maps_work() {
    let live = live();
    let dir = public_dir();
    // Another program maps a file, shared and read-only.
    let script = r#"cmp -n 1000000 "$1/big" /dev/zero &&
        sha256sum < "$1/hello" | cut -c1-8 &&
        md5sum < "$1/hello" > "$2/sum""#;
    sh(script, &[&live.dir, dir.path()]);
    let child = Command::new("ls")
        .arg(live.path("d0000000"))
        .stdout(Stdio::piped())
        .output()
        .expect("ls");
    assert_eq!(String::from_utf8_lossy(&child.stdout).lines().count(), 20);
}
