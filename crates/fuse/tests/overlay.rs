//! overlayfs over a mount: writes go to the upper layer, and copied-up files keep all attributes.
#![allow(missing_docs)]

mod support;

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use support::stub::{SPARSE_LEN, Stub};
use support::{Live, sh};
use weald_testkit::mounts::mount_lines;

/// An overlay whose lower layer is a mount of the computed tree.
struct Overlay {
    live: Live,
    dir: PathBuf,
}

impl Overlay {
    fn new(options: &str) -> Self {
        let live = Live::new(Stub::new(3, 20), "");
        let base = live.base.path().to_owned();
        let script = r#"cd "$1"; mkdir upper work overlay
            mount -t overlay over -o "lowerdir=mount,upperdir=upper,workdir=work$2" overlay"#;
        sh(script, &[&base, Path::new(options)]);
        Self {
            live,
            dir: base.join("overlay"),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn upper(&self, name: &str) -> PathBuf {
        self.live.base.path().join("upper").join(name)
    }

    /// Runs a shell script in the merged directory; `../upper` and `../mount` are the layers.
    fn sh(&self, script: &str) -> String {
        sh(&format!("cd \"$1\"; {script}"), &[&self.dir])
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.dir, rustix::mount::UnmountFlags::DETACH);
    }
}

#[test]
fn writes_go_above_and_leave_the_image_as_it_was() {
    let over = Overlay::new("");
    let mut file = fs::OpenOptions::new()
        .append(true)
        .open(over.path("hello"))
        .expect("open");
    file.write_all(b"and more\n").expect("append");
    fs::write(over.path("d0000001/new"), "fresh").expect("create");
    assert_eq!(
        fs::read(over.path("hello")).expect("read"),
        b"Hello, Weald\nand more\n"
    );
    assert_eq!(
        fs::read(over.live.path("hello")).expect("read"),
        b"Hello, Weald\n"
    );
    assert_eq!(
        fs::read_dir(over.path("d0000001")).expect("list").count(),
        21
    );
    assert_eq!(
        fs::read_dir(over.live.path("d0000001"))
            .expect("list")
            .count(),
        20
    );
}

#[test]
fn removed_names_are_whited_out_and_can_come_back() {
    let over = Overlay::new("");
    over.sh("rm hello; rm -r d0000000");
    assert!(!over.path("hello").exists());
    let whiteout = fs::symlink_metadata(over.upper("hello")).expect("whiteout");
    assert_eq!(
        (whiteout.mode() & 0o170_000, whiteout.rdev()),
        (0o020_000, 0)
    );
    over.sh("mkdir d0000000; echo back > hello");
    assert_eq!(
        fs::read_dir(over.path("d0000000")).expect("list").count(),
        0,
        "opaque"
    );
    assert_eq!(fs::read(over.path("hello")).expect("read"), b"back\n");
}

#[test]
fn files_and_directories_can_be_renamed() {
    let over = Overlay::new(",redirect_dir=on");
    over.sh("mv closed d0000002/; mv d0000001 moved; mv link elsewhere");
    let listed = over.sh("ls -A moved | wc -l; cat d0000002/closed | wc -c; readlink elsewhere");
    assert_eq!(listed, "20\n5\nhello\n");
    assert!(!over.path("d0000001").exists() && !over.path("closed").exists());
}

#[test]
fn copy_up_keeps_acls_capabilities_and_extended_attributes() {
    let over = Overlay::new("");
    let dump = "getfattr --absolute-names -d -m - -e hex acl capable tagged
                getcap capable; getfacl -n acl";
    let stat = "stat -c '%n %a %u %g %y' acl capable tagged";
    let before = (over.sh(dump), over.sh(stat));
    over.sh("touch -a acl capable tagged");
    for name in ["acl", "capable", "tagged"] {
        assert!(over.upper(name).exists(), "{name} was copied up");
    }
    assert_eq!((over.sh(dump), over.sh(stat)), before);
    assert!(before.0.contains("cap_net_bind_service=ep") && before.0.contains("user:1234:r--"));
}

#[test]
fn copy_up_of_a_sparse_file_copies_no_holes() {
    let over = Overlay::new("");
    over.sh("touch sparse");
    let copied = fs::metadata(over.upper("sparse")).expect("copied up");
    assert_eq!(copied.len(), SPARSE_LEN);
    assert!(
        copied.blocks() * 512 < 1 << 22,
        "{} blocks",
        copied.blocks()
    );
}

#[test]
fn hard_links_stay_together_with_an_index_and_handles_are_decoded() {
    // Both need that the lower layer encodes and decodes file handles (FUSE_EXPORT_SUPPORT).
    let over = Overlay::new(",index=on,nfs_export=on");
    let mounts = mount_lines("/proc/mounts");
    let dir = over.dir.to_str().expect("UTF-8").to_owned();
    let line = mounts
        .iter()
        .find(|line| line.contains(&dir))
        .expect("mounted");
    assert!(
        line.contains("index=on") && line.contains("nfs_export=on"),
        "{line}"
    );
    over.sh("echo more >> hello; echo 2 > /proc/sys/vm/drop_caches; tail -1 twin | grep -qx more");
    let inos = over.sh("stat -c %i hello twin | uniq | wc -l");
    assert_eq!(inos, "1\n");
}

#[test]
fn a_file_is_removed_in_a_listing_of_types() {
    let over = Overlay::new("");
    over.sh("rm fifo device");
    let types = over.sh(r#"find . -maxdepth 1 ! -name 'd0*' -printf '%y %f\n' | sort"#);
    let expected = "d .\nf acl\nf big\nf capable\nf closed\nf damaged\nf hello\nf sparse\n\
                    f tagged\nf twin\nl link\n";
    assert_eq!(types, expected);
}
