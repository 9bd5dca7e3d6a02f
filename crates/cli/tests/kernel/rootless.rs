//! `weald mount --overlay` as nobody in a user namespace.

use crate::ground::{Ground, names};
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use std::fs;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::process::Command;
use weald_testkit::command::{Output, weald_path};
use weald_testkit::mounts::finish;

/// Runs `script` as nobody, as root of a user namespace with its own mounts; `$0` is weald.
pub fn as_nobody(ground: &Ground, script: &str) -> Output {
    let home = ground.dir("home");
    chown(&home, Some(65534), Some(65534)).expect("chown");
    // A device that every user may open, as on most systems.
    let device = ground.at("fuse");
    let mode = Mode::from_raw_mode(0o666);
    let made = mknodat(
        CWD,
        &device,
        FileType::CharacterDevice,
        mode,
        makedev(10, 229),
    );
    made.expect("mknod");
    let outer = "chmod 666 fuse && mount --bind fuse /dev/fuse && cd home && exec setpriv --reuid \
                 65534 --regid 65534 --clear-groups unshare -rm sh -e -c \"$1\" \"$0\"";
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", outer]).arg(weald_path());
    command.arg(script).current_dir(ground.at(""));
    command
        .env("HOME", &home)
        .env("WEALD_RUNTIME_DIR", home.join("run"));
    finish(command.env_remove("XDG_CACHE_HOME").env("LC_ALL", "C"))
}

/// Whether the kernel has what `--overlay` needs: Linux 6.16.
fn is_new_enough() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("release");
    let mut numbers = release
        .split('.')
        .map_while(|number| number.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(16))
}

/// Would catch: a user who cannot mount, files that differ from the tree, changes that are lost, a
/// server that stays, and a kernel that is too old without a message that says so.
#[test]
fn a_user_mounts_reads_writes_and_unmounts() {
    let ground = Ground::with_image();
    let script = r#"
mkdir m
"$0" mount --overlay ../a.weald m
cmp ../a/dir/long m/dir/long; cmp ../a/short m/short; test "$(readlink m/symlink)" = dir/long
test "$(stat -c '%a %h %s %Y' m/dir/long)" = "$(stat -c '%a %h %s %Y' ../a/dir/long)"
test "$(stat -c %i m/dir/long)" = "$(stat -c %i m/link)"
"$0" mounts | grep -q 'a.weald *no *-'
"$0" umount m
"$0" mount --overlay --upper changes ../a.weald m
echo more >>m/dir/long; echo new >m/new; rm m/symlink
"$0" umount m
"$0" mount --overlay --upper changes ../a.weald m
tail -n 1 m/dir/long; cat m/new; test ! -e m/symlink
"$0" umount m
"$0" mount --overlay ../a.weald m
for file in /proc/[0-9]*/cmdline; do
    test -O $file || continue
    if { tr '\0' ' ' <$file; } 2>/dev/null | grep -q -e 'mount --foreground --ready-stdou[t]'; then
        pid=${file#/proc/}; kill -9 ${pid%/cmdline}; echo killed
    fi
done
"$0" umount m
ls -A m
"#;
    let said = as_nobody(&ground, script);
    if said_or_too_old(said, "more\nnew\nkilled\n") {
        let expected = [".cache", "changes", "m"];
        assert_eq!(names(&ground.at("home")), expected);
    }
}

/// Compares what a script said on a kernel that has what `--overlay` needs; returns whether the
/// kernel is one. An older one must be named.
#[track_caller]
pub fn said_or_too_old(said: Output, expected: &str) -> bool {
    if !is_new_enough() {
        let text = "--overlay needs Linux 6.16";
        assert!(said.stderr.contains(text), "{}", said.stderr);
        return false;
    }
    let output = said.expect(0);
    let found = (output.text(), output.stderr.as_str());
    assert_eq!(found, (expected.to_owned(), ""));
    true
}

/// Would catch: a word of fstab that mount(8) of a user namespace cannot mount, that is mounted
/// twice by mount -a, or whose other words are lost.
#[test]
fn fstab_of_a_user_namespace_can_ask_for_an_overlay() {
    let ground = Ground::with_image();
    let script = r#"
mkdir m sbin; ln -s "$0" sbin/mount.weald; export PATH="$PWD/sbin:$PATH"
for time in 1 2; do
    mount.weald "$(realpath ..)/a.weald" "$PWD/m" -o rw,nofail,overlay,noexec,upperdir=changes
done
grep -c "/m overlay rw.*noexec.*userxattr" /proc/mounts
cmp ../a/dir/long m/dir/long; echo written >m/new
"$0" umount m; cat changes/new
"$0" mount -o overlay,upperdir=changes ../a.weald m; cat m/new; "$0" umount m
! "$0" mount -o overlay,kernel ../a.weald m 2>said || exit 1
grep -q 'kernel and overlay are two ways to mount' said; rm said
"#;
    let said = as_nobody(&ground, script);
    if said_or_too_old(said, "1\nwritten\nwritten\n") {
        let expected = [".cache", "changes", "m", "sbin"];
        assert_eq!(names(&ground.at("home")), expected);
    }
}

/// Would catch: a line in root's fstab that starts a server and a second cache in root's home,
/// where `kernel` was meant.
#[test]
fn fstab_of_root_refuses_an_overlay() {
    let ground = Ground::with_image();
    let mut helper = Command::new(weald_path());
    helper.arg0("mount.weald").current_dir(ground.at(""));
    let said = finish(helper.args(["a.weald", "mnt", "-o", "rw,overlay"])).expect(1);
    let expected = "mount.weald: option overlay: is for users in a user namespace; root mounts \
                    with the option kernel, which needs no server\n";
    assert_eq!(said.stderr, expected);
    assert!(!ground.is_mounted());
}
