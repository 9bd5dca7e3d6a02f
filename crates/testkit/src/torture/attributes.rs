//! Modes, owners, times, kinds, extended attributes and ACLs.

use super::maker::Maker;
use crate::Rng;
use weald_format::{Result, Timestamp};
use weald_sys::NodeKind;

/// All 4096 modes for files, and for directories all modes that differ in one class.
pub fn make_modes(root: &Maker) -> Result<()> {
    let (files, dirs) = (root.dir("files")?, root.dir("dirs")?);
    for mode in 0..=0o7777_u16 {
        let name = format!("{mode:04o}");
        files.node(&name, NodeKind::EmptyFile)?;
        files.chmod(&name, mode)?;
        if mode % 0o111 == 0 || mode & 0o777 == 0o755 || mode.count_ones() == 1 {
            dirs.dir(&name)?.file("child", b"")?;
            dirs.chmod(&name, mode)?;
        }
    }
    Ok(())
}

/// Ids at the limits of 16, 31 and 32 bits. 0xFFFFFFFF is not an id.
pub fn make_owners(root: &Maker) -> Result<()> {
    let ids = [
        0,
        1,
        1000,
        65533,
        65534,
        65535,
        65536,
        0x7FFF_FFFF,
        0x8000_0000,
        0xFFFF_FFFE,
    ];
    for uid in ids {
        for gid in ids {
            let name = format!("{uid}.{gid}");
            root.file(&name, b"owned")?;
            root.chown(&name, uid, gid)?;
        }
        root.symlink(format!("link{uid}"), b"0.0")?;
        root.chown(format!("link{uid}"), uid, uid)?;
        root.dir(format!("dir{uid}"))?.chown("", uid, uid)?;
    }
    // A set-id file of another owner: a chown after the chmod would have cleared the bits.
    root.file("set-ids", b"")?;
    root.chown("set-ids", 1000, 1000)?;
    root.chmod("set-ids", 0o6755)
}

/// Times from 1901 to 2446, the range of ext4, with nanoseconds at both ends. In the very first and
/// last second the kernel drops them.
pub fn make_times(root: &Maker) -> Result<()> {
    let seconds = [
        -0x7FFF_FFFF,
        -1_000_000_001,
        -1,
        0,
        1,
        0x7FFF_FFFF,
        0x8000_0000,
        0xFFFF_FFFF,
        0x1_0000_0000,
        13_569_465_600,
        0x3_7FFF_FFFE,
    ];
    for seconds in seconds {
        for nanoseconds in [0, 1, 100, 123_456_789, 999_999_999] {
            let name = format!("{seconds}.{nanoseconds:09}");
            let mtime = Timestamp {
                seconds,
                nanoseconds,
            };
            root.file(&name, b"")?;
            root.set_mtime(&name, mtime)?;
            root.symlink(format!("link{name}"), b"target")?;
            root.set_mtime(format!("link{name}"), mtime)?;
            root.dir(format!("dir{name}"))?.set_mtime("", mtime)?;
        }
    }
    Ok(())
}

/// Every kind of inode, devices with numbers at the limits. Not character device 0/0: overlayfs
/// treats it as a whiteout.
pub fn make_kinds(root: &Maker) -> Result<()> {
    root.file("regular", b"regular")?;
    root.dir("directory")?;
    root.symlink("symlink", b"regular")?;
    root.node("fifo", NodeKind::Fifo)?;
    root.node("socket", NodeKind::Socket)?;
    for (major, minor) in [
        (0, 1),
        (1, 3),
        (8, 0),
        (255, 255),
        (256, 256),
        (4095, 1_048_575),
    ] {
        let rdev = major << 32 | minor;
        root.node(format!("char{major}.{minor}"), NodeKind::CharDevice(rdev))?;
        root.node(format!("block{major}.{minor}"), NodeKind::BlockDevice(rdev))?;
    }
    for name in ["fifo", "socket", "char1.3", "block8.0"] {
        root.chown(name, 7, 0xFFFF_FFFE)?;
        root.chmod(name, 0o1642)?;
        root.xattr(name, "trusted.special", name.as_bytes())?;
    }
    Ok(())
}

/// Xattrs of all namespaces except ACLs, on every kind that supports them.
pub fn make_xattrs(root: &Maker, rng: &mut Rng) -> Result<()> {
    for name in [
        "plain", "many", "large", "empty", "same1", "same2", "binary",
    ] {
        root.file(name, name.as_bytes())?;
    }
    root.xattr("plain", "user.comment", b"a comment")?;
    root.xattr("plain", "trusted.thing", b"a thing")?;
    root.xattr("plain", "security.weald", b"a label")?;
    for number in 0..40 {
        root.xattr(
            "many",
            format!("user.number-{number}"),
            format!("{number}").as_bytes(),
        )?;
    }
    root.xattr("large", "user.large", &rng.bytes(3500))?;
    root.xattr("empty", "user.empty", b"")?;
    root.xattr(
        "empty",
        [b"user.".as_slice(), &[b'n'; 250]].concat(),
        b"the longest name",
    )?;
    root.xattr("binary", b"user.\xff\n\\", b"\0\xff\0")?;
    for name in ["same1", "same2"] {
        root.xattr(name, "user.same", b"same")?;
    }
    root.symlink("link", b"plain")?;
    root.xattr("link", "trusted.link", b"of the link")?;
    let dir = root.dir("dir")?;
    dir.xattr("", "user.dir", b"of the directory")?;
    dir.xattr("", "trusted.dir", b"of the directory")?;
    make_capabilities(&root.dir("capabilities")?)
}

/// `struct vfs_ns_cap_data` of linux/capability.h: revision 2, and revision 3 with the root user id
/// of a namespace.
fn make_capabilities(root: &Maker) -> Result<()> {
    let value = |magic: u32, permitted: u64, inheritable: u64| {
        let halves = [permitted, inheritable, permitted >> 32, inheritable >> 32];
        let words = std::iter::once(magic).chain(halves.map(|half| half as u32));
        words.flat_map(u32::to_le_bytes).collect::<Vec<u8>>()
    };
    let cases = [
        ("net_raw-ep", value(0x0200_0001, 1 << 13, 0)),
        ("high-i", value(0x0200_0000, 0, 1 << 38)),
        ("all-ep", value(0x0200_0001, 0x1FF_FFFF_FFFF, 0)),
        (
            "namespaced",
            [
                value(0x0300_0001, 1 << 10, 0),
                1000_u32.to_le_bytes().to_vec(),
            ]
            .concat(),
        ),
    ];
    for (name, value) in cases {
        root.file(name, b"#!/bin/true\n")?;
        root.chmod(name, 0o755)?;
        root.xattr(name, "security.capability", &value)?;
    }
    Ok(())
}

/// POSIX ACLs: access and default ACLs, short and long.
pub fn make_acls(root: &Maker) -> Result<()> {
    for (name, entries) in [("one-user", 1), ("users", 5), ("long", 60)] {
        root.file(name, b"")?;
        root.xattr(name, "system.posix_acl_access", &acl(entries))?;
        let dir = root.dir(format!("dir-{name}"))?;
        dir.xattr("", "system.posix_acl_access", &acl(entries))?;
        dir.xattr("", "system.posix_acl_default", &acl(entries + 1))?;
        // These inherit: the kernel computes their ACLs.
        dir.file("inherits", b"")?;
        dir.dir("inherits-too")?.file("again", b"")?;
    }
    root.node("fifo", NodeKind::Fifo)?;
    root.xattr("fifo", "system.posix_acl_access", &acl(2))
}

/// An ACL with `count` named users and a named group in the kernel's format: version 2, then (tag,
/// permissions, id).
///
/// # Source
/// linux/posix_acl_xattr.h
fn acl(count: u32) -> Vec<u8> {
    const NO_ID: u32 = u32::MAX;
    let users = (0..count).map(|n| (2, (n % 8) as u16, 1000 + n * 70_000_001 % 0x7FFF_0000));
    let mut users: Vec<(u16, u16, u32)> = users.collect();
    users.sort_by_key(|&(_, _, id)| id);
    let mut entries = vec![(1, 6, NO_ID)];
    entries.extend(users);
    entries.extend([
        (4, 4, NO_ID),
        (8, 7, 0xFFFF_FFFE),
        (16, 7, NO_ID),
        (32, 1, NO_ID),
    ]);
    let mut value = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        value.extend_from_slice(&u16::to_le_bytes(tag));
        value.extend_from_slice(&u16::to_le_bytes(permissions));
        value.extend_from_slice(&u32::to_le_bytes(id));
    }
    value
}
