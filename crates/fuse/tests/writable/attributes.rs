//! Times, extended attributes, access lists, owners and privileges of files of a writable mount.

use super::*;
use rustix::fs::{StatxFlags, Timespec, Timestamps, UTIME_NOW, XattrFlags};
use std::os::unix::fs::chown;
use weald_format::FileKind;
use weald_vfs::{Ino, NewInode, WritableFs};

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
    let as_other = "setpriv --reuid 1234 --regid 1234 --clear-groups";
    let as_member = "setpriv --reuid 1234 --regid 1234 --groups 77,0";
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
        (format!("{as_user} fallocate -z -l 100000 f"), 0o6777, 0o777),
        // Set-gid without the execute bit of the group stays for members of the group only.
        (format!("echo x | {as_other} tee -a f"), 0o6666, 0o666),
        (format!("echo x | {as_member} tee -a f"), 0o6666, 0o2666),
        (format!("{as_other} truncate -s 3 f"), 0o6766, 0o766),
        (format!("{as_member} truncate -s 3 f"), 0o6766, 0o2766),
        (format!("{as_other} bash -c ': > f'"), 0o2666, 0o666),
        (
            format!("{as_other} fallocate -z -l 100000 f"),
            0o6666,
            0o666,
        ),
        (format!("{as_other} fallocate -p -l 4096 f"), 0o6666, 0o666),
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

/// Would catch: an attribute that ext4 refuses, and names that a user must not see.
#[test]
fn attributes_have_the_names_of_the_kernels_spaces() {
    use rustix::io::Errno;
    let fs = Arc::new(ModelFs::new(0o777, 0));
    // As an image may have brought it.
    let foreign = NewInode {
        kind: FileKind::Regular,
        permissions: 0o666,
        uid: 0,
        gid: 0,
        rdev: 0,
        target: b"",
        xattrs: &[
            (b"foo.old".as_slice(), b"value".as_slice()),
            (b"trusted.t", b"1"),
            (b"user.u", b"2"),
        ],
    };
    fs.create(Ino::ROOT, b"foreign", &foreign, 0).expect("made");
    let live = Live::writable(fs, "");
    let path = live.path("foreign");
    let set = |name: &str| rustix::fs::setxattr(&path, name, b"x", XattrFlags::empty());
    for name in ["foo.bar", "foo.old", "system.x", "system.nfs4_acl", "user"] {
        assert_eq!(set(name), Err(Errno::OPNOTSUPP), "{name}");
    }
    for name in ["user.", "trusted.", "security."] {
        assert_eq!(set(name), Err(Errno::INVAL), "{name}");
    }
    for name in ["user.a", "trusted.a", "security.a"] {
        assert_eq!(set(name), Ok(()), "{name}");
    }
    let get = |name: &str| rustix::fs::getxattr(&path, name, &mut [0; 16]);
    assert_eq!(
        (get("foo.bar"), get("user.b")),
        (Err(Errno::OPNOTSUPP), Err(Errno::NODATA))
    );
    assert_eq!(get("foo.old"), Ok(5));
    assert_eq!(
        rustix::fs::removexattr(&path, "foo.bar"),
        Err(Errno::OPNOTSUPP)
    );
    let list = r#"cd "$1"; $AS getfattr -m - foreign | grep -v ^# | xargs"#;
    let of_root = live.sh(&list.replace("$AS", ""));
    assert_eq!(
        of_root.trim(),
        "foo.old security.a trusted.a trusted.t user.a user.u"
    );
    for user in [
        "setpriv --reuid 1234 --regid 1234 --clear-groups",
        "setpriv --bounding-set -sys_admin",
        "unshare -r",
    ] {
        let seen = live.sh(&list.replace("$AS", user));
        // Root of a user namespace is nobody here.
        assert_eq!(seen.trim(), "foo.old security.a user.a user.u", "{user}");
    }
    assert_eq!(rustix::fs::removexattr(&path, "foo.old"), Ok(()));
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
        r#"mkdir -m 777 "$1/d"; setfacl -d -m u:1234:rwx "$1/d"; setfacl -m u:1234:--- "$1/kept"
        echo list > "$1/listed"; chmod 600 "$1/listed"; setfacl -m u:4321:rw "$1/listed""#,
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
    // Nobody gets in whom a hidden list denies; a mode cannot give what only a list gives.
    assert_eq!(
        (
            permissions(&live.path("kept")),
            permissions(&live.path("listed"))
        ),
        (0o600, 0o600)
    );
    for name in ["kept", "listed"] {
        live.sh(&format!(
            r#"! setpriv --reuid 1234 --regid 1234 --clear-groups cat "$1/{name}" 2>/dev/null"#
        ));
    }
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
