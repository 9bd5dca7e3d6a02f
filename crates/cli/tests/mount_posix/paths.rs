//! Names and paths at their limits, flags of open(2), and operations that a read-only file system
//! refuses.

use crate::sides::{Answer, Expected, Side, Sides};
use rustix::fs::{
    Access, AtFlags, CWD, FileType, Gid, Mode, OFlags, RenameFlags, Timespec, Timestamps, Uid,
    XattrFlags,
};
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

/// Longest name in bytes, and longest path in bytes including its NUL, in the kernel.
const NAME_LEN_MAX: usize = 255;
const PATH_LEN_MAX: usize = 4096;

/// Largest number of symlinks in a path (`MAXSYMLINKS` of the kernel).
const LINK_COUNT_MAX: usize = 40;

/// Number of nested directories with long names. With the last name the path has `PATH_LEN_MAX` - 1
/// bytes.
const DEEP_COUNT: usize = 16;
const DEEP_NAME_LEN: usize = 250;

fn long_name() -> String {
    "n".repeat(NAME_LEN_MAX)
}

/// Path of the deepest directory.
fn deep() -> String {
    vec!["d".repeat(DEEP_NAME_LEN); DEEP_COUNT].join("/")
}

/// Last name, which makes the path as long as possible.
fn deepest() -> String {
    let deep = deep();
    let remaining = PATH_LEN_MAX - 1 - deep.len() - 1;
    format!("{deep}/{}", "x".repeat(remaining))
}

fn make(root: &Path) {
    fs::create_dir_all(root.join("dir/sub")).expect("mkdir");
    fs::write(root.join("file"), "content").expect("write");
    fs::write(root.join("dir/inside"), "inside").expect("write");
    fs::write(root.join(long_name()), "long").expect("write");
    fs::write(root.join("new\nline \u{e4}"), "odd").expect("write");
    for (target, name) in [
        ("file", "to-file"),
        ("dir", "to-dir"),
        ("absent", "dangling"),
        ("self", "self"),
        ("loop-b", "loop-a"),
        ("loop-a", "loop-b"),
        ("dir/../file", "by-dots"),
    ] {
        symlink(target, root.join(name)).expect("symlink");
    }
    symlink("file", root.join("chain1")).expect("symlink");
    for index in 2..=LINK_COUNT_MAX + 1 {
        symlink(
            format!("chain{}", index - 1),
            root.join(format!("chain{index}")),
        )
        .expect("symlink");
    }
    // One directory at a time: the whole path would be too long.
    let mut dir = weald_sys::open_dir(root).expect("open");
    for name in deep().split('/') {
        weald_sys::make_dir_at(&dir, name.as_bytes(), 0o755).expect("mkdir");
        dir = weald_sys::open_dir_at(&dir, name.as_bytes()).expect("open");
    }
    let name = deepest().rsplit('/').next().expect("a name").to_owned();
    weald_sys::create_file_at(&dir, name.as_bytes(), 0o644).expect("create");
}

fn stat(side: &Side, path: &str, flags: AtFlags) -> Answer {
    let stat = rustix::fs::statat(&side.root, path, flags)?;
    let len = if FileType::from_raw_mode(stat.st_mode).is_dir() {
        0
    } else {
        stat.st_size
    };
    Ok(format!("{:o} {len} {}", stat.st_mode, stat.st_mtime))
}

fn open(side: &Side, path: &str, flags: OFlags) -> Answer {
    let fd = rustix::fs::openat(&side.root, path, flags | OFlags::CLOEXEC, Mode::RUSR)?;
    Ok(format!("{:o}", rustix::fs::fstat(&fd)?.st_mode))
}

/// Paths, and what a lookup of each answers.
fn path_rows() -> Vec<(String, Expected)> {
    use Expected::{Done, Refused};
    let (not_dir, none, too_long, many) = (
        Refused(Errno::NOTDIR),
        Refused(Errno::NOENT),
        Refused(Errno::NAMETOOLONG),
        Refused(Errno::LOOP),
    );
    let long = long_name();
    vec![
        (".".into(), Done),
        ("dir/.".into(), Done),
        ("dir/./sub/..//inside".into(), Done),
        ("dir/sub/../../file".into(), Done),
        ("dir/".into(), Done),
        ("to-dir/".into(), Done),
        ("to-dir/inside".into(), Done),
        ("by-dots".into(), Done),
        ("new\nline \u{e4}".into(), Done),
        (long.clone(), Done),
        (format!("{long}n"), too_long),
        (format!("dir/{long}"), none),
        (format!("dir/{long}n"), too_long),
        (format!("file/{long}n"), not_dir),
        (deepest(), Done),
        (format!("{}y", deepest()), too_long),
        (format!("./{}", deepest()), too_long),
        (format!("{}/..", deep()), Done),
        ("./".repeat(2047), Done),
        ("./".repeat(2048), too_long),
        (String::new(), none),
        ("absent".into(), none),
        ("File".into(), none),
        ("absent/..".into(), none),
        ("dangling".into(), none),
        ("dangling/x".into(), none),
        ("file/".into(), not_dir),
        ("file/.".into(), not_dir),
        ("file/..".into(), not_dir),
        ("file/x".into(), not_dir),
        ("to-file/".into(), not_dir),
        ("to-file/x".into(), not_dir),
        ("self".into(), many),
        ("self/x".into(), many),
        ("loop-a".into(), many),
        (format!("chain{LINK_COUNT_MAX}"), Done),
        (format!("chain{}", LINK_COUNT_MAX + 1), many),
    ]
}

// Would catch names that are cut off, path lengths that are counted wrongly, and lookups through
// files that are not directories.
#[test]
fn paths_resolve_as_on_ext4() {
    let rows = path_rows();
    let sides = Sides::new(make);
    // Twice: the kernel may answer the second time from its cache.
    for _ in 0..2 {
        for (path, expected) in &rows {
            let name: String = path.escape_debug().take(60).collect();
            sides.hold(&format!("stat {name}"), *expected, |side| {
                stat(side, path, AtFlags::empty())
            });
            sides.hold(&format!("lstat {name}"), Expected::Same, |side| {
                stat(side, path, AtFlags::SYMLINK_NOFOLLOW)
            });
            sides.hold(&format!("access {name}"), *expected, |side| {
                let found = rustix::fs::accessat(
                    &side.root,
                    path.as_str(),
                    Access::READ_OK,
                    AtFlags::empty(),
                );
                found.map(|()| String::new())
            });
            sides.hold(&format!("readlink {name}"), Expected::Same, |side| {
                Ok(format!(
                    "{:?}",
                    rustix::fs::readlinkat(&side.root, path.as_str(), Vec::new())?
                ))
            });
        }
    }
    sides.finish();
}

#[test]
fn open_obeys_its_flags() {
    use Expected::{Done, Refused};
    let (read_only, not_dir, many, is_dir, exists) = (
        Refused(Errno::ROFS),
        Refused(Errno::NOTDIR),
        Refused(Errno::LOOP),
        Refused(Errno::ISDIR),
        Refused(Errno::EXIST),
    );
    let rows = [
        ("file", OFlags::RDONLY, Done),
        ("file", OFlags::RDONLY | OFlags::NOATIME, Done),
        ("file", OFlags::DIRECTORY, not_dir),
        ("dir", OFlags::DIRECTORY, Done),
        ("to-dir", OFlags::DIRECTORY, Done),
        ("to-dir", OFlags::DIRECTORY | OFlags::NOFOLLOW, not_dir),
        ("to-file", OFlags::NOFOLLOW, many),
        ("to-file", OFlags::NOFOLLOW | OFlags::PATH, Done),
        ("self", OFlags::PATH, many),
        ("dangling", OFlags::RDONLY, Refused(Errno::NOENT)),
        ("dangling", OFlags::RDONLY | OFlags::CREATE, read_only),
        ("file", OFlags::WRONLY, read_only),
        ("file", OFlags::RDWR, read_only),
        ("file", OFlags::WRONLY | OFlags::TRUNC, read_only),
        ("file", OFlags::RDONLY | OFlags::TRUNC, read_only),
        ("file", OFlags::WRONLY | OFlags::APPEND, read_only),
        ("file", OFlags::RDONLY | OFlags::CREATE, Done),
        (
            "file",
            OFlags::RDONLY | OFlags::CREATE | OFlags::EXCL,
            exists,
        ),
        (
            "to-file",
            OFlags::RDONLY | OFlags::CREATE | OFlags::EXCL,
            exists,
        ),
        ("new", OFlags::WRONLY | OFlags::CREATE, read_only),
        (
            "new",
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL,
            read_only,
        ),
        ("new/", OFlags::WRONLY | OFlags::CREATE, is_dir),
        ("dir", OFlags::WRONLY, is_dir),
        ("dir", OFlags::RDWR, is_dir),
        ("dir", OFlags::RDONLY | OFlags::CREATE, is_dir),
        (".", OFlags::TMPFILE | OFlags::RDWR, read_only),
        ("file", OFlags::TMPFILE | OFlags::RDWR, not_dir),
        ("file/x", OFlags::RDONLY, not_dir),
    ];
    let sides = Sides::new(make);
    for (path, flags, expected) in rows {
        sides.hold(&format!("open {path} {flags:?}"), expected, |side| {
            open(side, path, flags)
        });
    }
    sides.finish();
}

type Change = (&'static str, Expected, fn(&Side) -> Result<(), Errno>);

fn change_rows() -> Vec<Change> {
    use Expected::{Refused, Same};
    let refused = Refused(Errno::ROFS);
    vec![
        ("unlink", refused, |side| {
            rustix::fs::unlinkat(&side.root, "file", AtFlags::empty())
        }),
        ("unlink a directory", Same, |side| {
            rustix::fs::unlinkat(&side.root, "dir", AtFlags::empty())
        }),
        ("unlink nothing", Same, |side| {
            rustix::fs::unlinkat(&side.root, "absent", AtFlags::empty())
        }),
        ("rmdir", refused, |side| {
            rustix::fs::unlinkat(&side.root, "dir/sub", AtFlags::REMOVEDIR)
        }),
        ("rmdir .", Refused(Errno::INVAL), |side| {
            rustix::fs::unlinkat(&side.root, "dir/.", AtFlags::REMOVEDIR)
        }),
        ("rmdir a file", Same, |side| {
            rustix::fs::unlinkat(&side.root, "file", AtFlags::REMOVEDIR)
        }),
        ("mkdir", refused, |side| {
            rustix::fs::mkdirat(&side.root, "new", Mode::RWXU)
        }),
        ("mkdir on a name", Refused(Errno::EXIST), |side| {
            rustix::fs::mkdirat(&side.root, "file", Mode::RWXU)
        }),
        ("mkdir nowhere", Refused(Errno::NOENT), |side| {
            rustix::fs::mkdirat(&side.root, "absent/new", Mode::RWXU)
        }),
        ("mkdir in a file", Refused(Errno::NOTDIR), |side| {
            rustix::fs::mkdirat(&side.root, "file/new", Mode::RWXU)
        }),
        ("mknod", refused, |side| {
            rustix::fs::mknodat(&side.root, "new", FileType::Fifo, Mode::RWXU, 0)
        }),
        ("mknod of a device", refused, |side| {
            rustix::fs::mknodat(
                &side.root,
                "new",
                FileType::CharacterDevice,
                Mode::RWXU,
                259,
            )
        }),
        ("symlink", refused, |side| {
            rustix::fs::symlinkat("file", &side.root, "new")
        }),
        ("symlink on a name", Refused(Errno::EXIST), |side| {
            rustix::fs::symlinkat("file", &side.root, "to-file")
        }),
        ("link", refused, |side| {
            rustix::fs::linkat(&side.root, "file", &side.root, "new", AtFlags::empty())
        }),
        ("link of a directory", Same, |side| {
            rustix::fs::linkat(&side.root, "dir", &side.root, "new", AtFlags::empty())
        }),
        ("link on a name", Refused(Errno::EXIST), |side| {
            rustix::fs::linkat(&side.root, "file", &side.root, "dir", AtFlags::empty())
        }),
        ("rename", refused, |side| {
            rustix::fs::renameat(&side.root, "file", &side.root, "new")
        }),
        ("rename over", refused, |side| {
            rustix::fs::renameat(&side.root, "file", &side.root, "to-file")
        }),
        ("rename of nothing", Same, |side| {
            rustix::fs::renameat(&side.root, "absent", &side.root, "new")
        }),
        ("rename of .", Refused(Errno::BUSY), |side| {
            rustix::fs::renameat(&side.root, "dir/.", &side.root, "new")
        }),
        ("rename, exchanging", refused, |side| {
            rustix::fs::renameat_with(&side.root, "file", &side.root, "dir", RenameFlags::EXCHANGE)
        }),
        ("chmod", refused, |side| {
            rustix::fs::chmodat(&side.root, "file", Mode::RWXU, AtFlags::empty())
        }),
        ("chown", refused, |side| {
            rustix::fs::chownat(
                &side.root,
                "file",
                Some(Uid::from_raw(5)),
                Some(Gid::from_raw(5)),
                AtFlags::empty(),
            )
        }),
        ("chown of a symlink", refused, |side| {
            rustix::fs::chownat(
                &side.root,
                "to-file",
                Some(Uid::from_raw(5)),
                None,
                AtFlags::SYMLINK_NOFOLLOW,
            )
        }),
        ("utimensat", refused, |side| {
            let time = Timespec {
                tv_sec: 1,
                tv_nsec: 1,
            };
            let times = Timestamps {
                last_access: time,
                last_modification: time,
            };
            rustix::fs::utimensat(&side.root, "file", &times, AtFlags::empty())
        }),
        ("setxattr", refused, |side| {
            rustix::fs::setxattr(
                side.path.join("file"),
                "user.new",
                b"x",
                XattrFlags::empty(),
            )
        }),
        ("setxattr, trusted", refused, |side| {
            rustix::fs::setxattr(
                side.path.join("dir"),
                "trusted.new",
                b"x",
                XattrFlags::empty(),
            )
        }),
        ("setting an ACL", Same, |side| {
            rustix::fs::setxattr(
                side.path.join("file"),
                "system.posix_acl_access",
                &[2, 0, 0, 0],
                XattrFlags::empty(),
            )
        }),
        ("removexattr", refused, |side| {
            rustix::fs::removexattr(side.path.join("file"), "user.none")
        }),
        ("fchmod", refused, |side| {
            rustix::fs::fchmod(plain(side)?, Mode::RWXU)
        }),
        ("fchown", refused, |side| {
            rustix::fs::fchown(plain(side)?, Some(Uid::from_raw(5)), None)
        }),
        ("fsetxattr", refused, |side| {
            rustix::fs::fsetxattr(plain(side)?, "user.new", b"x", XattrFlags::empty())
        }),
        ("ftruncate", Refused(Errno::INVAL), |side| {
            rustix::fs::ftruncate(plain(side)?, 0)
        }),
        ("write", Refused(Errno::BADF), |side| {
            rustix::io::write(plain(side)?, b"x").map(drop)
        }),
        ("fsync", Expected::Done, |side| {
            rustix::fs::fsync(plain(side)?)
        }),
        ("syncfs", Expected::Done, |side| {
            rustix::fs::syncfs(plain(side)?)
        }),
    ]
}

fn plain(side: &Side) -> Result<std::os::fd::OwnedFd, Errno> {
    rustix::fs::openat(
        &side.root,
        "file",
        OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    )
}

// Would catch a change that is accepted, and an errno that misleads programs.
#[test]
fn nothing_can_be_changed() {
    let sides = Sides::new(make);
    for (what, expected, change) in change_rows() {
        sides.hold(what, expected, |side| change(side).map(|()| String::new()));
    }
    let file = fs::read(sides.mounted.path.join("file")).expect("read");
    assert_eq!(file, b"content");
    sides.finish();
}

// The `..` of a directory is its parent, also if it was reached through a symlink. Above the root
// of the mount it is the parent of the mount point.
#[test]
fn dots_lead_up() {
    let sides = Sides::new(make);
    sides.hold("up from a symlink", Expected::Done, |side| {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::openat(&side.root, "to-dir/sub", flags, Mode::empty())?;
        let up = rustix::fs::openat(&dir, "..", flags, Mode::empty())?;
        let top = rustix::fs::openat(&up, "..", flags, Mode::empty())?;
        let [here, root] = [&top, &side.root].map(rustix::fs::fstat);
        let (here, root) = (here?, root?);
        Ok(format!(
            "{}",
            (here.st_ino, here.st_dev) == (root.st_ino, root.st_dev)
        ))
    });
    sides.hold("up from the root", Expected::Done, |side| {
        let above = rustix::fs::statat(&side.root, "..", AtFlags::empty())?;
        let ground = rustix::fs::statat(CWD, sides.ground.path(), AtFlags::empty())?;
        Ok(format!(
            "{}",
            (above.st_ino, above.st_dev) == (ground.st_ino, ground.st_dev)
        ))
    });
    sides.hold("the numbers of . and ..", Expected::Done, |side| {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::openat(&side.root, "dir/sub", flags, Mode::empty())?;
        let (here, up) = (
            rustix::fs::fstat(&dir)?,
            rustix::fs::statat(&side.root, "dir", AtFlags::empty())?,
        );
        let mut listed = rustix::fs::Dir::new(dir)?;
        let mut numbers = Vec::new();
        while let Some(entry) = listed.read() {
            let entry = entry?;
            let number = if entry.file_name().to_bytes() == b"." {
                here.st_ino
            } else {
                up.st_ino
            };
            numbers.push(entry.ino() == number);
        }
        Ok(format!("{numbers:?}"))
    });
    sides.finish();
}
