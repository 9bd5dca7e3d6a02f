//! Contents and attributes on a mount by the kernel.

use crate::ground::{Ground, names};
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use rustix::process::Uid;
use std::fs;
use std::process::Command;
use weald_testkit::mounts::finish;
use weald_testkit::{CompareOptions, compare, torture};

/// A mount through overlayfs shows no holes.
pub const OPTIONS: CompareOptions = CompareOptions {
    rsync: true,
    holes: false,
    link_counts: true,
};

/// Would catch: a content, mode, owner, time, xattr, ACL, hard link or device that the
/// kernel's view has otherwise than the tree, and otherwise than the mount through FUSE.
#[test]
fn every_file_is_as_in_the_tree_and_on_the_other_mount() {
    let ground = Ground::new();
    let source = ground.dir("a");
    torture::make(
        &source,
        &torture::Options {
            seed: 30,
            big: false,
        },
    )
    .expect("torture tree");
    ground.of_testkit().build(&source, &ground.image("a"), &[]);
    ground.mount(&[]);
    compare::assert_same(&source, &ground.mnt(), &OPTIONS);
    let fuse = ground.dir("fuse");
    ground.of_testkit().mount(&ground.image("a"), &fuse, &[]);
    compare::assert_same(&fuse, &ground.mnt(), &OPTIONS);
    ground.of_testkit().umount(&fuse);
    ground.umount();
}

/// Would catch: a whiteout that hides a file of the tree itself. As composefs does, the view has a
/// file that another overlayfs on top takes for a whiteout.
#[test]
fn a_whiteout_is_a_file_that_acts_as_one_in_an_overlay_above() {
    let ground = Ground::new();
    let source = ground.dir("a");
    fs::create_dir(source.join("dir")).expect("mkdir");
    fs::write(source.join("dir/kept"), "kept").expect("write");
    let mode = Mode::from_raw_mode(0o600);
    let whiteout = source.join("dir/gone");
    mknodat(
        CWD,
        &whiteout,
        FileType::CharacterDevice,
        mode,
        makedev(0, 0),
    )
    .expect("mknod");
    ground.of_testkit().build(&source, &ground.image("a"), &[]);
    ground.mount(&[]);
    assert_eq!(names(&ground.mnt().join("dir")), ["gone", "kept"]);
    let (lower, above) = (ground.dir("lower"), ground.dir("above"));
    fs::create_dir(lower.join("dir")).expect("mkdir");
    fs::write(lower.join("dir/gone"), "of the layer below").expect("write");
    let layers = format!("lowerdir={}:{}", ground.mnt().display(), lower.display());
    let mut command = Command::new("mount");
    command.args(["-t", "overlay", "overlay", "-o", &layers]);
    finish(command.arg(&above)).expect(0);
    assert_eq!(names(&above.join("dir")), ["kept"]);
    finish(Command::new("umount").arg(&above)).expect(0);
    ground.umount();
}

/// Would catch: data that only the user who mounted can read, and data that everybody can read.
#[test]
fn another_user_reads_what_the_modes_allow() {
    let ground = Ground::with_image();
    ground.mount(&[]);
    let (mnt, cache) = (ground.mnt(), ground.at("cache/objects"));
    let (long, secret, objects) = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let uid = Uid::from_raw(65534);
            // The ids change for this thread only.
            rustix::thread::set_thread_res_uid(uid, uid, uid).expect("another user");
            (
                fs::read_to_string(mnt.join("dir/long")),
                fs::read(mnt.join("secret")).map_err(|error| error.kind()),
                fs::read_dir(&cache).map_err(|error| error.kind()).err(),
            )
        });
        thread.join().expect("the other user")
    });
    assert_eq!(long.expect("readable by all"), "a\n".repeat(4000));
    let denied = std::io::ErrorKind::PermissionDenied;
    assert_eq!((secret, objects), (Err(denied), Some(denied)));
    ground.umount();
}

/// Would catch: a program that the kernel cannot map or run from the mount, and options of the
/// mount that are lost.
#[test]
fn programs_run_from_the_mount_unless_it_has_noexec() {
    let ground = Ground::new();
    let source = ground.dir("a");
    let script = "set -e; for file in /bin/true $(ldd /bin/true | grep -o '/[^ ]*'); do \
                  mkdir -p \"$0$(dirname $file)\"; cp -L $file \"$0$file\"; done";
    finish(Command::new("sh").args(["-c", script]).arg(&source)).expect(0);
    ground.of_testkit().build(&source, &ground.image("a"), &[]);
    ground.mount(&[]);
    let run = || {
        Command::new("chroot")
            .arg(ground.mnt())
            .arg("/bin/true")
            .output()
    };
    let output = run().expect("chroot");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    ground.umount();
    ground.mount(&["-o", "noexec"]);
    let output = run().expect("chroot");
    assert!(!output.status.success(), "noexec has no effect");
    ground.umount();
}
