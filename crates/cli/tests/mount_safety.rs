//! What an image and other users of the machine gain by a mount of root's: nothing that root has
//! not asked for. Runs as root, needs `/dev/fuse`; the other users are numbers.
#![allow(missing_docs)]

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use weald_testkit::mounts::{Ground, finish};

/// A user without any rights of her own.
const USER: u32 = 12_345;

/// A ground with an image that holds a set-uid program of root's and a device.
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

/// The options of the mount on `dir`, as the kernel's list of mounts has them.
fn flags(dir: &Path) -> Vec<String> {
    let list = fs::read_to_string("/proc/self/mountinfo").expect("list of mounts");
    let dir = dir.to_str().expect("UTF-8");
    let mut lines = list.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let line = lines.find(|words| words[4] == dir).expect("mounted");
    line[5].split(',').map(str::to_owned).collect()
}

/// Who the set-uid program on the mount says that it is when `USER` runs it.
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

/// Looks at the mount on `dir`: `suid` and `dev` must be in force exactly where `options` say so.
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

/// Would catch: a way to mount by which an image of somebody else brings set-uid programs or device
/// nodes that work, without root having asked for them.
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
