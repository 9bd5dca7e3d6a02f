//! Mounts of type `fuseblk`: sync(2), syncfs(2) and umount(2) wait for the volume, and no loop
//! device stays.

use super::mounting::helper;
use super::*;
use rustix::mount::UnmountFlags;
use weald_testkit::mounts::FORGET_OTHERS;

/// Without a commit of its own.
const LONG: &str = "commit-interval=3600";

/// Whether root can have such mounts here: the kernel has them, and this is no container.
fn is_possible() -> bool {
    let types = fs::read_to_string("/proc/filesystems").expect("types");
    let of_self = fs::read_link("/proc/self/ns/mnt").expect("a namespace");
    // Linux 6.18 gives the first mount namespace this number.
    let is_first = of_self == Path::new("mnt:[4026531832]")
        || fs::read_link("/proc/self/ns/pid").is_ok_and(|id| id == Path::new("pid:[4026531836]"))
            && fs::read_link("/proc/1/ns/mnt").is_ok_and(|first| first == of_self);
    is_first
        && types.lines().any(|line| line.trim() == "fuseblk")
        && Path::new("/dev/loop-control").exists()
}

/// Whether the kernel passes syncfs(2) on: Linux 6.18.
fn has_syncfs() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("release");
    let mut numbers = release.split(['.', '-']).map(|word| word.parse::<u32>());
    let mut next = || numbers.next().and_then(Result::ok).expect("a number");
    (next(), next()) >= (6, 18)
}

/// Type of the mount on `mnt`.
fn kind(ground: &Ground) -> String {
    ground.sh("findmnt -nro FSTYPE mnt").trim().to_owned()
}

#[track_caller]
fn assert_kind(ground: &Ground, is_on_device: bool) {
    let expected = if is_on_device {
        "fuseblk.weald"
    } else {
        "fuse.weald"
    };
    assert_eq!(kind(ground), expected);
}

/// Backing files of loop devices that belong to this ground.
fn devices(ground: &Ground) -> Vec<PathBuf> {
    let found = fs::read_dir("/sys/block").expect("/sys").flatten();
    let text = found.filter_map(|one| fs::read(one.path().join("loop/backing_file")).ok());
    let paths = text.map(|text| PathBuf::from(OsStr::from_bytes(text.trim_ascii_end())));
    paths
        .filter(|path| path.starts_with(ground.0.path()))
        .collect()
}

/// Processes that have a file of the store open.
fn users_of_store(ground: &Ground) -> Vec<PathBuf> {
    let store = ground.at("store");
    let entries = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten();
    let descriptors = entries(Path::new("/proc")).flat_map(|one| entries(&one.path().join("fd")));
    let links = descriptors.filter_map(|fd| Some((fs::read_link(fd.path()).ok()?, fd.path())));
    links
        .filter(|(to, _)| to.starts_with(&store))
        .map(|(_, fd)| fd)
        .collect()
}

fn raw_umount(dir: &Path) {
    rustix::mount::unmount(dir, UnmountFlags::empty()).expect("umount(2)");
}

fn server(ground: &Ground) -> u64 {
    ground.info()["server_pid"].as_u64().expect("a process id")
}

/// Would catch: `sync -f` that returns before everything is on disk, and a mount that does not
/// fall back, or that is lost, without a block device.
#[test]
fn a_sync_of_the_file_system_reaches_the_disk() {
    for (word, is_on_device) in [("rw", is_possible()), ("nofuseblk", false)] {
        let ground = Ground::new();
        ground.mount(&["-o", &format!("{word},{LONG}")]);
        assert_kind(&ground, is_on_device);
        ground.sh(
            "for i in $(seq 300); do seq $i > mnt/f$i; done; mkdir mnt/d; mv mnt/f1 mnt/d
            python3 -c '
import mmap, os
f = os.open(\"mnt/map\", os.O_RDWR | os.O_CREAT); os.ftruncate(f, 8192)
m = mmap.mmap(f, 8192); m[5000:5003] = b\"abc\"
os.system(\"sync -f mnt\"); os._exit(0)'",
        );
        let state = "cd mnt; find . -type f | sort | xargs -r cat | md5sum; find . | wc -l";
        let before = ground.sh(state);
        ground.kill();
        ground.mount(&["-o", word]);
        let after = ground.sh(state);
        if is_on_device && has_syncfs() {
            assert_eq!(after, before, "{word}")
        } else {
            // As the table says: nothing more than before.
            assert_ne!(after, before, "{word}")
        }
        ground.umount();
        ground.assert_clean();
        assert!(devices(&ground).is_empty());
    }
}

/// Would catch: an umount(2) that returns before the volume is closed: the next mount is refused,
/// the store is busy, or a kill takes the last changes.
#[test]
fn umount_of_the_system_returns_when_the_volume_is_closed() {
    let ground = Ground::new();
    for round in 0..20 {
        let dir = ground.mount(&["-o", LONG]);
        assert_kind(&ground, is_possible());
        assert_eq!(devices(&ground).len(), usize::from(is_possible()));
        fs::write(dir.join(format!("f{round}")), vec![7; 300_000]).expect("written");
        let pid = server(&ground);
        raw_umount(&dir);
        if is_possible() {
            assert_eq!(users_of_store(&ground), Vec::<PathBuf>::new());
            // It may have ended.
            ground.sh(&format!("kill -9 {pid} 2> log || true"));
            assert!(devices(&ground).is_empty());
        }
        ground.mount(&["-o", "ro"]);
        assert_eq!(ground.sh("ls mnt | wc -l"), format!("{}\n", round + 1));
        raw_umount(&dir);
    }
    // Beside another volume, whose server goes on.
    ground.weald(&["volume", "create", "-q", "store:w"]);
    let other = ground.0.dir("other");
    ground.0.mount(Path::new("store:w"), &other, &["-o", LONG]);
    for round in 20..30 {
        let dir = ground.mount(&["-o", LONG]);
        fs::write(dir.join(format!("f{round}")), "text").expect("written");
        raw_umount(&dir);
        ground.mount(&[]);
        assert_eq!(ground.sh("ls mnt | wc -l"), format!("{}\n", round + 1));
        raw_umount(&dir);
    }
    raw_umount(&other);
    ground.assert_clean();
    assert!(devices(&ground).is_empty());
}

/// Would catch: loop devices that stay, and mounts that stay after a failure.
#[test]
fn no_loop_device_outlives_its_mount() {
    let ground = Ground::new();
    let dir = ground.mount(&[]);
    let count = usize::from(is_possible());
    assert_eq!(devices(&ground), vec![ground.at(VOLUME); count]);
    ground.kill();
    eventually("the end of the device", || devices(&ground).is_empty());
    // A mount that fails after the kernel has made it.
    ground.refused(
        &["mount", "--log", "none/log", VOLUME, "mnt"],
        &["none/log"],
    );
    assert!(!ground.0.is_mounted(&dir));
    eventually("the end of the device", || devices(&ground).is_empty());
    // One that ends with SIGTERM while it is used.
    ground.mount(&[]);
    let held = File::create(dir.join("held")).expect("created");
    ground.sh(&format!("kill {}", server(&ground)));
    eventually("a detached mount", || !ground.0.is_mounted(&dir));
    (&held).write_all(b"late").expect("still served");
    drop(held);
    eventually("the end of the device", || devices(&ground).is_empty());
    ground.mount(&["-o", "ro"]);
    assert_eq!(ground.sh("cat mnt/held"), "late");
    assert_eq!(devices(&ground).len(), count);
    ground.umount();
    assert!(devices(&ground).is_empty());
}

/// Would catch: mount(8) that mounts a line of fstab a second time, or that cannot remount what
/// /proc/mounts shows; a device that no command of Weald can name.
#[test]
fn programs_of_the_system_find_the_volume_of_a_block_device() {
    let ground = Ground::new();
    let dir = ground.mount(&[]);
    let volume = ground.at(VOLUME);
    fs::write(
        ground.at("fstab"),
        format!("{} {} weald noatime 0 0\n", volume.display(), dir.display()),
    )
    .expect("written");
    let said = ground.sh("mount --all --fake --verbose --fstab fstab");
    assert!(said.contains("already mounted"), "{said}");
    let source = ground.sh("findmnt -nro SOURCE mnt");
    if is_possible() {
        assert!(source.starts_with("/dev/loop"), "{source}");
        assert!(ground.sh("losetup -nO BACK-FILE").contains(VOLUME));
    }
    for (words, is_ro) in [("ro", true), ("rw,noatime", false)] {
        let mut mount = helper(&ground, "mount.fuseblk.weald");
        let kept = "relatime,user_id=0,group_id=0,allow_other,blksize=4096,remount";
        let words = format!("{kept},{words}");
        finish(mount.args([source.trim(), "mnt", "-o", &words])).expect(0);
        assert_eq!(fs::write(dir.join("f"), "x").is_err(), is_ro);
    }
    ground.sh("findmnt -nro OPTIONS mnt | grep -q rw,.*noatime");
    // What is dead is listed by the volume's name.
    ground.sh(&format!(
        "kill -9 {0}; tail --pid={0} -f /dev/null",
        server(&ground)
    ));
    let shown = ground.weald(&["mounts"]);
    assert!(shown.contains("dead") && shown.contains(VOLUME), "{shown}");
    ground.weald(&["umount", "mnt"]);
    let read_ahead = |words: &[&str]| {
        ground.mount(words);
        let suffix = if is_possible() { "-fuseblk" } else { "" };
        let text = ground.sh(&format!(
            "cat /sys/class/bdi/$(mountpoint -d mnt){suffix}/read_ahead_kb"
        ));
        finish(helper(&ground, "umount.fuseblk.weald").args(["mnt", "-t", "fuseblk.weald"]))
            .expect(0);
        text
    };
    assert_eq!(read_ahead(&[]), "2048\n");
    assert_eq!(read_ahead(&["-o", "max_readahead=1M"]), "1024\n");
    assert!(devices(&ground).is_empty());
}

/// Would catch: words that do not count, and a user namespace in which volumes cannot be mounted.
#[test]
fn a_block_device_is_taken_where_it_is_possible() {
    let ground = Ground::new();
    for (words, is_on_device) in [
        ("rw", is_possible()),
        ("nofuseblk", false),
        ("fuseblk,nofuseblk", false),
        ("fsname=name", false),
    ] {
        ground.mount(&["-o", words]);
        assert_kind(&ground, is_on_device);
        ground.umount();
    }
    // In a store of another user it needs the word.
    ground.sh("chown 1000 store");
    ground.mount(&[]);
    assert_kind(&ground, false);
    ground.umount();
    ground.sh("chown 0 store");
    let dir = ground.0.dir("mnt");
    let dir = dir.to_str().expect("UTF-8");
    let refused = |words: &str, why: &str| {
        ground.refused(&["mount", "-o", words, VOLUME, dir], &["fuseblk", why]);
    };
    refused("fuseblk,fsname=name", "the source of such a mount");
    // A server that is the last process of its namespace unmounts at its own end.
    let pid = ground.sh(&format!(
        "unshare --mount --propagation private bash -euc '{FORGET_OTHERS}
        \"$WEALD\" mount store:v mnt; findmnt -nro FSTYPE mnt > kind; echo x > mnt/f; sync mnt
        \"$WEALD\" volume info --json store:v' | jq .server_pid"
    ));
    assert_eq!(ground.sh("cat kind"), "fuse.weald\n");
    ground.sh(&format!(
        "kill -9 {0}; timeout 60 tail --pid={0} -f /dev/null",
        pid.trim()
    ));
    assert_eq!(
        ground.sh("\"$WEALD\" mount -o ro store:v mnt; cat mnt/f"),
        "x\n"
    );
    ground.umount();
    // Without the mounts of other tests, which would stay while this namespace has them.
    ground.sh(
        "echo '\"$WEALD\" mount -o \"$1\" store:v mnt; findmnt -nro FSTYPE mnt
         \"$WEALD\" umount mnt' > inside",
    );
    let inside = format!(
        "unshare --mount --propagation private bash -euc '{FORGET_OTHERS}
         exec unshare --user --map-root-user --mount bash -eu inside \"$0\"'"
    );
    assert_eq!(ground.sh(&format!("{inside} rw")), "fuse.weald\n");
    let said = ground.run(&format!("{inside} fuseblk"));
    assert!(
        said.code != Some(0) && said.stderr.contains("option 'fuseblk'"),
        "{}",
        said.stderr
    );
    if is_possible() {
        drop(ground.mount(&["-o", "fuseblk"]))
    } else {
        refused("fuseblk", "option");
        ground.mount(&[]);
    }
    assert_kind(&ground, is_possible());
    let mut mount = helper(&ground, "mount.weald");
    let said = finish(mount.args([VOLUME, "mnt", "-o", "remount,nofuseblk"]));
    assert!(
        said.stderr.contains("a remount cannot change it"),
        "{}",
        said.stderr
    );
    ground.umount();
    assert!(devices(&ground).is_empty());
}
