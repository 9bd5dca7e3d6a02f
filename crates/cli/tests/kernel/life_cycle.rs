//! Mounts that end, and commands that are killed.

use crate::ground::{Ground, names};
use std::fs;
use std::process::Command;
use std::time::Instant;
use weald_testkit::Rng;
use weald_testkit::mounts::finish;

/// Would catch: a mount that needs a process, and a mount, loop device or file that stays when it
/// is unmounted, busy or not.
#[test]
fn unmounting_takes_all_of_it_away() {
    let ground = Ground::with_image();
    ground.mount(&[]);
    let servers = names(&ground.at("run"));
    assert_eq!(servers, [""; 0], "a server runs");
    let file = fs::File::open(ground.mnt().join("dir/long")).expect("open");
    let said = ground.weald(&["umount", "mnt"]).expect(2);
    assert!(said.stderr.contains("in use"), "{}", said.stderr);
    ground.weald(&["umount", "--lazy", "mnt"]).expect(0);
    assert!(!ground.is_mounted());
    drop(file);
    ground.mount(&[]);
    ground.umount();
    let said = ground.weald(&["umount", "mnt"]).expect(2);
    assert!(
        said.stderr.contains("no image is mounted there"),
        "{}",
        said.stderr
    );
    assert_eq!(
        ground.of_testkit().mounts(),
        [""; 0].map(std::path::PathBuf::from)
    );
    ground.expect_no_loop_device();
}

/// Would catch: an overlay of another program that weald takes for its own.
#[test]
fn mounts_of_others_stay() {
    let ground = Ground::with_image();
    ground.dir("one");
    ground.dir("two");
    let mut command = Command::new("mount");
    command.args(["-t", "overlay", "overlay", "-o", "lowerdir=one:two", "mnt"]);
    finish(command.current_dir(ground.at(""))).expect(0);
    let said = ground.weald(&["umount", "mnt"]).expect(2);
    assert!(
        said.stderr.contains("no image is mounted there"),
        "{}",
        said.stderr
    );
    assert!(ground.is_mounted());
    finish(Command::new("umount").arg(ground.mnt())).expect(0);
}

/// Would catch: a mount, a loop device, a lock or half a view that a killed command leaves in the
/// way of the next one, and that no command removes.
#[test]
fn a_killed_mount_hinders_no_later_one() {
    let ground = Ground::with_image();
    let mut rng = Rng::from_environment();
    let mut mounted_count = 0;
    let start = Instant::now();
    ground.mount(&["--upper", "changes"]);
    let span = start.elapsed();
    ground.umount();
    for round in 0..40 {
        if round % 4 == 0 {
            ground.weald(&["store", "gc", "--views", "cache"]).expect(0);
        }
        let mut command = ground.of_testkit().command();
        command.args([
            "mount",
            "--kernel",
            "--view-cache",
            "cache",
            "--upper",
            "changes",
        ]);
        let mut child = command.args(["a.weald", "mnt"]).spawn().expect("weald");
        // Some kills come after the end: the command may have ended by itself.
        std::thread::sleep(span.mul_f64(rng.below(1000) as f64 / 800.0));
        let _ = child.kill();
        child.wait().expect("reaped");
        if ground.is_mounted() {
            mounted_count += 1;
            ground.umount();
        }
        ground.expect_no_loop_device();
        assert!(
            ground.of_testkit().mounts().is_empty(),
            "{:?}",
            ground.of_testkit().mounts()
        );
        if round % 5 == 4 {
            ground.mount(&["--upper", "changes"]);
            let text = fs::read_to_string(ground.mnt().join("dir/long")).expect("read");
            assert_eq!(text, "a\n".repeat(4000));
            ground.umount();
            assert!(!ground.at(".changes.weald-work").exists());
        }
    }
    eprintln!("{mounted_count} of 40 were mounted");
    ground.weald(&["store", "gc", "--views", "cache"]).expect(0);
    let left = finish(
        Command::new("find")
            .arg(ground.at("cache"))
            .args(["-type", "f"]),
    );
    let mut left: Vec<_> = left.text().lines().map(str::to_owned).collect();
    left.sort();
    let expected = ["lock", "making", "weald-views"];
    let expected = expected.map(|name| ground.at("cache").join(name).display().to_string());
    assert_eq!(left, expected);
}

/// Would catch: a line of fstab that mount(8) cannot mount, a second mount by mount -a, and options
/// that are lost on the way.
#[test]
fn fstab_can_ask_for_the_kernel() {
    let ground = Ground::with_image();
    let script = r#"set -e
mkdir sbin; ln -s "$0" sbin/mount.weald; export PATH="$PWD/sbin:$PATH"
for time in 1 2; do
    mount.weald "$PWD/a.weald" "$PWD/mnt" -o rw,nofail,kernel,viewcache=cache,upperdir=changes
done
echo written > mnt/new"#;
    let mut command = Command::new("sh");
    command
        .args(["-c", script])
        .arg(weald_testkit::command::weald_path());
    finish(command.current_dir(ground.at(""))).expect(0);
    assert_eq!(ground.of_testkit().mounts(), [ground.mnt()]);
    ground.umount();
    assert_eq!(
        fs::read_to_string(ground.at("changes/new")).expect("read"),
        "written\n"
    );
}
