//! Security of mounts by root: neither an image nor another user gets rights that root has not
//! granted. Needs root and `/dev/fuse`; the other users need no accounts.
#![allow(missing_docs)]

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::mount::{UnmountFlags, unmount};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use weald_testkit::mounts::{Ground, finish, mount_lines};

/// An unprivileged user.
const USER: u32 = 12_345;

/// A ground with an image that contains a set-uid program of root and a device.
fn ground_with_image() -> Ground {
    let ground = Ground::new();
    let source = ground.dir("source");
    fs::copy("/usr/bin/id", source.join("id")).expect("copy");
    set_mode(&source.join("id"), 0o4755);
    let mut mknod = Command::new("mknod");
    finish(mknod.arg(source.join("null")).args(["c", "1", "3"])).expect(0);
    set_mode(&source.join("null"), 0o666);
    ground.build(&source, &ground.image("image"), &["--level", "1"]);
    ground
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("chmod");
}

/// Mount options of `dir` in `/proc/self/mountinfo`.
fn flags(dir: &Path) -> Vec<String> {
    let list = mount_lines("/proc/self/mountinfo");
    let dir = dir.to_str().expect("UTF-8");
    let mut lines = list.iter().map(|line| line.split(' ').collect::<Vec<_>>());
    let line = lines.find(|words| words[4] == dir).expect("mounted");
    line[5].split(',').map(str::to_owned).collect()
}

/// Effective user of the set-uid program on the mount when `USER` runs it.
fn effective_user(dir: &Path) -> String {
    let mut id = Command::new(dir.join("id"));
    let said = finish(id.arg("-u").uid(USER).gid(USER)).expect(0);
    said.text().trim().to_owned()
}

fn can_open_device(dir: &Path) -> bool {
    let opened = fs::File::open(dir.join("null"));
    if let Err(error) = &opened {
        assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied);
    }
    opened.is_ok()
}

/// Checks the mount on `dir`: `suid` and `dev` must be in force exactly if `options` contain them.
#[track_caller]
fn hold(what: &str, dir: &Path, options: &str) {
    let flags = flags(dir);
    let [suid, dev] = ["suid", "dev"].map(|word| options.split(',').any(|option| option == word));
    for (flag, is_expected) in [("nosuid", !suid), ("nodev", !dev), ("ro", true)] {
        let found = flags.iter().any(|found| found == flag);
        assert_eq!(
            found, is_expected,
            "{what} -o '{options}': {flag}: {flags:?}"
        );
    }
    let user = if suid { "0" } else { "12345" };
    assert_eq!(effective_user(dir), user, "{what} -o '{options}'");
    assert_eq!(can_open_device(dir), dev, "{what} -o '{options}'");
}

/// Would catch: a way to mount in which set-uid programs or device nodes of a foreign image work
/// although root has not requested it.
#[test]
fn set_uid_programs_and_devices_work_only_where_root_asks() {
    let ground = ground_with_image();
    let (image, dir) = (ground.image("image"), ground.dir("m"));
    let helper = ground.at("mount.weald");
    symlink(weald_testkit::command::weald_path(), &helper).expect("symlink");
    for options in [
        "ro",
        "suid",
        "dev",
        "suid,dev",
        "defaults,exec",
        "suid,dev,user,exec",
    ] {
        let expected = options.strip_suffix(",user,exec").map_or(options, |_| "");
        ground.mount(&image, &dir, &["-o", options]);
        hold("weald mount", &dir, expected);
        finish(
            ground
                .command()
                .args(["serve", "--take-over", "--background"]),
        )
        .expect(0);
        hold("taken over", &dir, expected);
        ground.umount(&dir);
        ground.mount(&image, &dir, &["--isolated", "-o", options]);
        hold("weald mount --isolated", &dir, expected);
        ground.umount(&dir);
        let mut command = Command::new(&helper);
        command.env("WEALD_RUNTIME_DIR", ground.runtime_dir());
        let rw = format!("rw,{options}");
        finish(command.args([&image, &dir]).args(["-o", &rw])).expect(0);
        hold("mount.weald", &dir, expected);
        ground.umount(&dir);
    }
    let server = ground.serve(&image, &dir, &[]);
    hold("weald mount --foreground", &dir, "");
    ground.umount(&dir);
    drop(server);
}

/// Owner and group of the files below, a user of no class, and the ids named in ACLs.
const OWNER: u32 = 2_000;
const GROUP: u32 = 2_001;
const NAMED: u32 = 2_002;
const NAMED_GROUP: u32 = 2_003;
const NOBODY: u32 = 2_009;

/// A user and a group for every class of an ACL; some belong to two classes.
const READERS: [(u32, u32); 6] = [
    (OWNER, NOBODY),
    (NOBODY, GROUP),
    (NAMED, NOBODY),
    (NAMED, GROUP),
    (NOBODY, NAMED_GROUP),
    (NOBODY, NOBODY),
];

/// Modes, each with the arguments of setfacl(1).
const ACLS: [(u32, &str); 9] = [
    (0o640, "g::-,u:2002:r"),
    (0o644, "u:2002:-"),
    (0o644, "g:2003:-"),
    (0o644, "g::-,u:2002:r,o::r"),
    (0o664, "g::rw,u:2002:rw,m::-,o::r"),
    (0o644, "u::-,u:2002:r"),
    (0o600, "u:2002:r,g:2003:r"),
    (0o640, "u:2002:rw,m::r"),
    (0o604, "g:2001:r,g::-"),
];

/// Creates files named by their indices in `ACLS`, and their directory.
fn make_acls(source: &Path) {
    for (number, (mode, acl)) in ACLS.iter().enumerate() {
        let path = source.join(number.to_string());
        fs::write(&path, "content").expect("write");
        chown(&path, Some(OWNER), Some(GROUP)).expect("chown");
        set_mode(&path, *mode);
        finish(Command::new("setfacl").args(["-m", acl]).arg(&path)).expect(0);
    }
}

/// The files in `dir` that each reader can read: (reader, index of the file).
fn readable(dir: &Path) -> BTreeSet<(usize, usize)> {
    let mut found = BTreeSet::new();
    for (reader, (uid, gid)) in READERS.iter().enumerate() {
        for number in 0..ACLS.len() {
            let mut cat = Command::new("cat");
            let said = finish(cat.arg(dir.join(number.to_string())).uid(*uid).gid(*gid));
            if said.code == Some(0) {
                found.insert((reader, number));
            } else {
                assert!(said.stderr.contains("Permission denied"), "{}", said.stderr);
            }
        }
    }
    found
}

/// Members of `found` that are not in `allowed`, as text.
fn beyond(found: &BTreeSet<(usize, usize)>, allowed: &BTreeSet<(usize, usize)>) -> Vec<String> {
    let more = found.difference(allowed);
    more.map(|(reader, number)| format!("{:?} reads {:?}", READERS[*reader], ACLS[*number]))
        .collect()
}

/// Would catch, where ACLs are left out: the mask of an ACL that counts as the group's permissions,
/// and users denied by an ACL that count as others.
#[test]
fn acl_denials_hold_when_acls_are_left_out() {
    let ground = Ground::new();
    let (source, image, dir) = (ground.dir("source"), ground.image("image"), ground.dir("m"));
    make_acls(&source);
    ground.build(&source, &image, &[]);
    let allowed = readable(&source);
    assert!(
        allowed.contains(&(2, 0)) && !allowed.contains(&(1, 0)),
        "{allowed:?}"
    );
    ground.mount(&image, &dir, &[]);
    assert_eq!(readable(&dir), allowed);
    ground.umount(&dir);
    for options in [
        "umask=007",
        "umask=0,uid=77",
        "gid=77",
        "uid=77,gid=78",
        "umask=022",
    ] {
        ground.mount(&image, &dir, &["-o", options]);
        let found = readable(&dir);
        assert_eq!(beyond(&found, &allowed), [""; 0], "-o {options}");
        ground.umount(&dir);
    }
    // Owner, group and others keep the rights that no ACL entry denies them.
    ground.mount(&image, &dir, &["-o", "umask=02"]);
    let found = readable(&dir);
    for kept in [(0, 0), (1, 7), (5, 3)] {
        assert!(found.contains(&kept), "{kept:?}: {found:?}");
    }
    ground.umount(&dir);
    for (number, words) in ["--same-owner", "--no-same-owner"].iter().enumerate() {
        let out = ground.at(format!("out{number}"));
        let mut extract = ground.command();
        extract
            .args(["extract", "--no-xattrs", words])
            .arg(&image)
            .arg(&out);
        finish(&mut extract).expect(0);
        assert_eq!(
            beyond(&readable(&out), &allowed),
            [""; 0],
            "extract {words}"
        );
    }
    let script = r#"mkdir untarred; "$WEALD" tar --no-xattrs image.weald | tar -C untarred -xpf -
        "$WEALD" build -q --no-xattrs source from-dir.weald
        "$WEALD" tar image.weald | "$WEALD" build -q --no-xattrs - from-tar.weald"#;
    let mut bash = Command::new("bash");
    bash.args(["-euc", script]).current_dir(ground.path());
    bash.env("WEALD", weald_testkit::command::weald_path());
    finish(&mut bash).expect(0);
    let found = readable(&ground.at("untarred"));
    assert_eq!(beyond(&found, &allowed), [""; 0], "tar --no-xattrs");
    for name in ["from-dir", "from-tar"] {
        ground.mount(&ground.image(name), &dir, &[]);
        assert_eq!(beyond(&readable(&dir), &allowed), [""; 0], "{name}");
        ground.umount(&dir);
    }
}

/// Swaps the directory `a` and the symlink `b` repeatedly until dropped.
struct Swapper {
    is_done: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Swapper {
    fn start(a: PathBuf, b: PathBuf) -> Self {
        let is_done = Arc::new(AtomicBool::new(false));
        let done = Arc::clone(&is_done);
        let swap = move || {
            while !done.load(Ordering::Relaxed) {
                // The kernel refuses this while a file system is mounted on the directory.
                let _ = renameat_with(CWD, &a, CWD, &b, RenameFlags::EXCHANGE);
            }
        };
        let thread = Some(std::thread::spawn(swap));
        Self { is_done, thread }
    }
}

impl Drop for Swapper {
    fn drop(&mut self) {
        self.is_done.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(
            ended.is_some_and(|ended| ended.is_ok()),
            "the swapper has failed"
        );
    }
}

/// A mount point in a directory of another user, and that user's symlink to the directory `victim`.
fn trap(ground: &Ground) -> (PathBuf, PathBuf) {
    let (evil, point) = (ground.dir("evil"), ground.dir("evil/m"));
    let link = evil.join("link");
    symlink(ground.dir("victim"), &link).expect("symlink");
    for path in [&evil, &point, &link] {
        lchown(path, Some(USER), Some(USER)).expect("chown");
    }
    (point, link)
}

/// Would catch: a mount through another user's symlink.
#[test]
fn a_symlink_of_another_user_is_refused_as_mount_point() {
    let ground = ground_with_image();
    let (image, (_, link)) = (ground.image("image"), trap(&ground));
    let refused = ground
        .weald(["mount".as_ref(), image.as_os_str(), link.as_os_str()])
        .expect(2);
    let said = format!("the symlink link belongs to user {USER}");
    assert!(refused.stderr.contains(&said), "{}", refused.stderr);
    assert!(ground.mounts().is_empty(), "{:?}", ground.mounts());
}

/// Would catch: a mount whose target is changed by the owner of a directory above the mount point.
#[test]
fn owners_of_parent_directories_cannot_redirect_a_mount() {
    const TRIES: usize = 40;
    let ground = ground_with_image();
    let (image, victim, (point, link)) =
        (ground.image("image"), ground.dir("victim"), trap(&ground));
    let swapper = Swapper::start(point.clone(), link);
    let mut mounted_count = 0;
    for _ in 0..TRIES {
        let said = ground.weald(["mount".as_ref(), image.as_os_str(), point.as_os_str()]);
        assert!(
            !ground.is_mounted(&victim),
            "the mount went elsewhere: {}",
            said.stderr
        );
        for dir in ground.mounts() {
            mounted_count += 1;
            unmount(&dir, UnmountFlags::DETACH).expect("umount");
        }
    }
    drop(swapper);
    println!("{mounted_count} of {TRIES} mounts were made, none elsewhere");
}

/// Would catch: symlinks of root or of the user that are no longer followed.
#[test]
fn own_symlinks_to_mount_points_are_followed() {
    let ground = ground_with_image();
    let (image, dir) = (ground.image("image"), ground.dir("long/way/m"));
    symlink("long/way", ground.at("short")).expect("symlink");
    symlink(ground.at("short/../way/m"), ground.at("m")).expect("symlink");
    for name in ["short/m", "m"] {
        finish(ground.command().arg("mount").arg(&image).arg(name)).expect(0);
        assert!(ground.is_mounted(&dir), "{name}: {:?}", ground.mounts());
        ground.umount(&dir);
    }
}
