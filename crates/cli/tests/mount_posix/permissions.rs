//! Access rights of users: modes, groups, ACLs, search permission.

use crate::sides::{Answer, Expected, Side, Sides, USERS, User, system};
use rustix::fs::{Access, AtFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;

/// Owner and group of all files.
const OWNER: u32 = 1000;
const GROUP: u32 = 1000;

/// The name of every file in `modes` is its mode. The same holds for directories in `dirs`; each
/// contains a file `child` that everybody may read.
const CLASSES: [u32; 8] = [0, 1, 2, 3, 4, 5, 6, 7];

/// ACLs in the syntax of setfacl(1). User 1004 and group 2000 are named in them; 1000 is the owner
/// and the owning group.
const ACLS: [&str; 14] = [
    "u:1004:r",
    "u:1004:rwx,m::r",
    "u:1004:-,o::rwx",
    "g:2000:r",
    "g:2000:-,o::rwx",
    "g:2000:r,g:2001:x",
    "g:2000:rwx,m::x",
    "g::-,g:1000:r,o::rwx",
    "u::-,g::r,o::r",
    "u::r,g::-,o::-,u:1001:r",
    "u:1001:-,g::rwx",
    "u:1002:r,g:77:x,g::w",
    "u:0:-,g::-,o::-,m::-",
    "u:1003:rwx,g:78:-,m::rwx,o::-",
];

fn owned(path: &Path, mode: u32) {
    chown(path, Some(OWNER), Some(GROUP)).expect("chown");
    fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("chmod");
}

fn dir_with_child(path: &Path, mode: u32) {
    fs::create_dir(path).expect("mkdir");
    fs::write(path.join("child"), "child").expect("write");
    owned(path, mode);
}

fn make(root: &Path) {
    for dir in ["modes", "dirs", "acls", "acl-dirs"] {
        fs::create_dir(root.join(dir)).expect("mkdir");
    }
    for mode in 0..0o1000 {
        let path = root.join(format!("modes/{mode:03o}"));
        fs::write(&path, "content").expect("write");
        owned(&path, mode);
    }
    for class in CLASSES {
        for shift in [0, 3, 6] {
            // One class has the mode under test, the others have all or no rights.
            for others in [0o777, 0] {
                let mode = others & !(7 << shift) | class << shift;
                let path = root.join(format!("dirs/{mode:03o}"));
                if !path.exists() {
                    dir_with_child(&path, mode);
                }
            }
        }
    }
    for (index, acl) in ACLS.iter().enumerate() {
        let (file, dir) = (
            root.join(format!("acls/{index}")),
            root.join(format!("acl-dirs/{index}")),
        );
        fs::write(&file, "content").expect("write");
        owned(&file, 0o640);
        dir_with_child(&dir, 0o750);
        system(&["setfacl", "-m", acl], &[&file, &dir]);
        system(&["setfacl", "-d", "-m", acl], &[&dir]);
    }
    for (name, mode) in [
        ("set-uid", 0o4755),
        ("set-gid", 0o2755),
        ("sticky", 0o1755),
        ("all", 0o7777),
    ] {
        let path = root.join(name);
        fs::copy("/usr/bin/id", &path).expect("copy");
        owned(&path, mode);
    }
}

/// Rights by mode: the first matching class alone decides.
fn may(user: &User, mode: u32, wanted: u32) -> bool {
    let class = if user.uid == OWNER {
        mode >> 6
    } else if user.gid == GROUP || user.groups.contains(&GROUP) {
        mode >> 3
    } else {
        mode
    };
    match user.uid {
        // Root may do everything, except execute a file without any execute bit.
        0 => wanted & 1 == 0 || mode & 0o111 != 0,
        _ => class & wanted == wanted,
    }
}

fn expected(is_allowed: bool) -> Expected {
    if is_allowed {
        Expected::Done
    } else {
        Expected::Refused(Errno::ACCESS)
    }
}

fn done<T>(result: Result<T, Errno>) -> Answer {
    result.map(|_| String::new())
}

fn open(side: &Side, path: &str, flags: OFlags) -> Answer {
    done(rustix::fs::openat(
        &side.root,
        path,
        flags | OFlags::CLOEXEC,
        Mode::empty(),
    ))
}

fn access(side: &Side, path: &str, mode: Access, flags: AtFlags) -> Answer {
    done(rustix::fs::accessat(&side.root, path, mode, flags))
}

fn stat(side: &Side, path: &str) -> Answer {
    let stat = rustix::fs::statat(&side.root, path, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(format!(
        "{:o} {}:{}",
        stat.st_mode, stat.st_uid, stat.st_gid
    ))
}

fn hold_modes(sides: &Sides, user: &User) {
    for mode in 0..0o1000 {
        let (path, who) = (
            format!("modes/{mode:03o}"),
            format!("as {}: {mode:03o}", user.uid),
        );
        let hold = |what: &str, expected, ask: &dyn Fn(&Side) -> Answer| {
            sides.hold(&format!("{who}: {what}"), expected, ask)
        };
        hold("open to read", expected(may(user, mode, 4)), &|side| {
            open(side, &path, OFlags::RDONLY)
        });
        hold("open to write", Expected::Refused(Errno::ROFS), &|side| {
            open(side, &path, OFlags::WRONLY)
        });
        hold("access R_OK", expected(may(user, mode, 4)), &|side| {
            access(side, &path, Access::READ_OK, AtFlags::empty())
        });
        hold("access W_OK", Expected::Refused(Errno::ROFS), &|side| {
            access(side, &path, Access::WRITE_OK, AtFlags::empty())
        });
        hold("access X_OK", expected(may(user, mode, 1)), &|side| {
            access(side, &path, Access::EXEC_OK, AtFlags::empty())
        });
        hold("access RX", expected(may(user, mode, 5)), &|side| {
            access(
                side,
                &path,
                Access::READ_OK | Access::EXEC_OK,
                AtFlags::EACCESS,
            )
        });
        hold("stat", Expected::Done, &|side| stat(side, &path));
    }
}

fn hold_dirs(sides: &Sides, user: &User) {
    for entry in fs::read_dir(sides.reference.path.join("dirs")).expect("directory") {
        let name = entry
            .expect("entry")
            .file_name()
            .into_string()
            .expect("ASCII");
        let mode = u32::from_str_radix(&name, 8).expect("a mode");
        let (dir, child) = (format!("dirs/{name}"), format!("dirs/{name}/child"));
        // Root may search every directory.
        let may = |wanted| user.uid == 0 || may(user, mode, wanted);
        let hold = |what: &str, expected, ask: &dyn Fn(&Side) -> Answer| {
            sides.hold(
                &format!("as {}: directory {name}: {what}", user.uid),
                expected,
                ask,
            )
        };
        hold("list", expected(may(4)), &|side| {
            open(side, &dir, OFlags::RDONLY | OFlags::DIRECTORY)
        });
        hold("stat in it", expected(may(1)), &|side| stat(side, &child));
        hold("open in it", expected(may(1)), &|side| {
            open(side, &child, OFlags::RDONLY)
        });
        hold(
            "absent in it",
            Expected::Refused(if may(1) { Errno::NOENT } else { Errno::ACCESS }),
            &|side| stat(side, &format!("{dir}/absent")),
        );
        hold("..", expected(may(1)), &|side| {
            stat(side, &format!("{dir}/.."))
        });
        hold("access X_OK", expected(may(1)), &|side| {
            access(side, &dir, Access::EXEC_OK, AtFlags::empty())
        });
        hold("a place only", Expected::Done, &|side| {
            open(side, &dir, OFlags::PATH)
        });
    }
}

fn hold_acls(sides: &Sides, user: &User) {
    for (index, acl) in ACLS.iter().enumerate() {
        let (file, dir) = (format!("acls/{index}"), format!("acl-dirs/{index}"));
        let hold = |what: &str, ask: &dyn Fn(&Side) -> Answer| {
            sides.hold(
                &format!("as {}: ACL {acl}: {what}", user.uid),
                Expected::Same,
                ask,
            )
        };
        for mode in [
            Access::READ_OK,
            Access::EXEC_OK,
            Access::WRITE_OK,
            Access::READ_OK | Access::EXEC_OK,
        ] {
            hold("access to the file", &|side| {
                access(side, &file, mode, AtFlags::empty())
            });
            hold("access to the directory", &|side| {
                access(side, &dir, mode, AtFlags::EACCESS)
            });
        }
        hold("open to read", &|side| open(side, &file, OFlags::RDONLY));
        hold("list", &|side| {
            open(side, &dir, OFlags::RDONLY | OFlags::DIRECTORY)
        });
        hold("stat in it", &|side| stat(side, &format!("{dir}/child")));
        hold("mode", &|side| stat(side, &file));
        for name in ["system.posix_acl_access", "system.posix_acl_default"] {
            for path in [&file, &dir] {
                hold(name, &|side| {
                    let mut value = [0; 1024];
                    let len = rustix::fs::lgetxattr(side.path.join(path), name, &mut value)?;
                    Ok(format!("{:?}", &value[..len]))
                });
            }
        }
    }
}

// Would catch permissions that neither the server nor the kernel checks, checks of the wrong class,
// and ACLs that are shown but not enforced.
#[test]
fn every_user_has_exactly_the_rights_in_the_tree() {
    let sides = Sides::new(make);
    for user in &USERS {
        user.run(|| {
            hold_modes(&sides, user);
            hold_dirs(&sides, user);
            hold_acls(&sides, user);
        });
    }
    // The expected rights of the ACLs, written by hand, so that an error on both sides is found.
    let acl_rows = [
        (0, 5, true),
        (0, 4, false),
        (2, 5, false),
        (2, 4, true),
        (3, 6, true),
        (4, 6, false),
        (8, 1, false),
        (8, 2, true),
    ];
    for (acl, user, is_allowed) in acl_rows {
        USERS[user].run(|| {
            let path = format!("acls/{acl}");
            let what = format!("as {}: ACL {}: by hand", USERS[user].uid, ACLS[acl]);
            sides.hold(&what, expected(is_allowed), |side| {
                open(side, &path, OFlags::RDONLY)
            });
        });
    }
    sides.finish();
}

// access(2) checks the real user, faccessat(2) with AT_EACCESS the effective user.
#[test]
fn real_and_effective_users_are_distinguished() {
    let sides = Sides::new(make);
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let (real, effective, group) = (
                Uid::from_raw(OWNER),
                Uid::from_raw(1003),
                Gid::from_raw(1003),
            );
            rustix::thread::set_thread_groups(&[]).expect("groups");
            rustix::thread::set_thread_res_gid(group, group, group).expect("group");
            rustix::thread::set_thread_res_uid(real, effective, effective).expect("user");
            for (path, by_real, by_effective) in [
                ("modes/400", true, false),
                ("modes/004", false, true),
                ("modes/444", true, true),
            ] {
                sides.hold(path, expected(by_real), |side| {
                    access(side, path, Access::READ_OK, AtFlags::empty())
                });
                sides.hold(path, expected(by_effective), |side| {
                    access(side, path, Access::READ_OK, AtFlags::EACCESS)
                });
                sides.hold(path, expected(by_effective), |side| {
                    open(side, path, OFlags::RDONLY)
                });
            }
        });
        thread.join().expect("no panic");
    });
    sides.finish();
}

#[test]
fn set_id_bits_are_shown_and_work() {
    let sides = Sides::new(make);
    for name in ["set-uid", "set-gid", "sticky", "all"] {
        sides.hold(name, Expected::Done, |side| stat(side, name));
        for flag in ["-u", "-g", "-ru"] {
            sides.hold(&format!("{name} {flag}"), Expected::Done, |side| {
                let mut command = std::process::Command::new(side.path.join(name));
                let said = weald_testkit::mounts::finish(command.arg(flag));
                Ok(format!("{:?} {}", said.code, said.text()))
            });
        }
    }
    sides.finish();
}
