//! Mounts by older methods of the kernel. Needs root, EROFS, overlayfs and loop devices.

use rustix::mount::MountAttrFlags;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::Path;
use weald_builder::{BuildOptions, Silent, build_image};
use weald_image::{Image, OpenOptions};
use weald_testkit::mounts::{Ground, eventually};
use weald_testkit::{CompareOptions, compare};
use weald_views::composefs::VerityPolicy;
use weald_views::kernel::{self, KernelOptions, Methods, ViewCache, ViewLimit, ViewOptions};

/// Files that are attached to loop devices and lie below `dir`.
fn loop_files(dir: &Path) -> Vec<String> {
    let devices = fs::read_dir("/sys/block").expect("/sys/block");
    let files = devices.filter_map(|device| {
        let file = device.expect("a device").path().join("loop/backing_file");
        fs::read_to_string(file).ok()
    });
    let dir = dir.display().to_string();
    files.filter(|file| file.starts_with(&dir)).collect()
}

/// Would catch: a method of older kernels that shows another tree, an image on a loop device that
/// is not the one of the cache, and a loop device that stays.
#[test]
fn older_methods_show_the_same_tree_and_leave_nothing() {
    let ground = Ground::new();
    let (source, mnt) = (ground.dir("source"), ground.dir("mnt"));
    fs::create_dir(source.join("dir")).expect("mkdir");
    for name in 0..300 {
        let text = format!("{name}\n").repeat(name);
        fs::write(source.join(format!("dir/{name}")), text).expect("write");
    }
    let image = ground.image("a");
    let options = BuildOptions::level(1).expect("level");
    build_image(&source, &image, false, &options, &Silent).expect("build");
    let image = Image::open_path(&image, 0_u64, &OpenOptions::default()).expect("open");
    let cache = ViewCache::open(&ground.at("cache")).expect("cache");
    for number in 0..8 {
        let has = |bit: u32| number >> bit & 1 == 1;
        let methods = Methods {
            file_backed: has(0),
            direct_loop: has(1),
            layer_options: has(2),
        };
        let options = KernelOptions {
            upper: None,
            expected_digest: None,
            attributes: MountAttrFlags::empty(),
            methods,
            view: ViewOptions {
                verity: VerityPolicy::Off,
                thread_count: 2,
                memory_len: 1 << 20,
                limit: ViewLimit::NONE,
                is_cancelled: &|| false,
            },
        };
        let point = File::open(&mnt).expect("mount point");
        let name = OsStr::new("a.weald");
        kernel::mount(&image, &cache, name, point.as_fd(), &options).expect("mount");
        let loops = loop_files(ground.path()).len();
        assert_eq!(loops, usize::from(!methods.file_backed), "{methods:?}");
        let options = CompareOptions {
            holes: false,
            ..CompareOptions::default()
        };
        compare::assert_same(&source, &mnt, &options);
        let mounts = kernel::mounts().expect("mounts");
        let found = mounts
            .iter()
            .find(|mount| mount.dir == mnt)
            .expect("in the table");
        assert_eq!(
            found.objects,
            Some(ground.at("cache/objects")),
            "{methods:?}"
        );
        assert_eq!(
            kernel::mount_on(&mnt).expect("mounts").as_ref(),
            Some(found)
        );
        kernel::unmount(found, false).expect("umount");
        eventually("the loop device is free", || {
            loop_files(ground.path()).is_empty()
        });
        assert!(!ground.is_mounted(&mnt), "{methods:?}");
    }
}

/// Would catch: a limit that the cache exceeds while a view is made, a view that is removed
/// although the new one fits beside it, and a view that is removed before it is used again.
#[test]
fn views_beyond_the_limit_are_removed_before_another_is_made() {
    let ground = Ground::new();
    let cache = ViewCache::open(&ground.at("cache")).expect("cache");
    let images = ["a", "b"].map(|name| {
        let source = ground.dir(&format!("source-{name}"));
        fs::write(source.join("file"), name.repeat(100_000)).expect("write");
        let image = ground.image(name);
        let options = BuildOptions::level(1).expect("level");
        build_image(&source, &image, false, &options, &Silent).expect("build");
        Image::open_path(&image, 0_u64, &OpenOptions::default()).expect("open")
    });
    let view = |image, len_max, is_strict| {
        let options = ViewOptions {
            verity: VerityPolicy::Off,
            thread_count: 1,
            memory_len: 1 << 20,
            limit: ViewLimit { len_max, is_strict },
            is_cancelled: &|| false,
        };
        kernel::view(image, &cache, &options).map(|(view, _)| view.is_new)
    };
    let count = |dir: &str| walk(&ground.at("cache").join(dir));
    assert!(view(&images[0], u64::MAX, false).expect("view"));
    // A view that is there stays, whatever the limit.
    assert!(!view(&images[0], 1, true).expect("view"));
    assert!(view(&images[1], 1_000_000, true).expect("view"));
    assert_eq!((count("images"), count("objects")), (4, 2));
    kernel::collect(&cache, 0, true).expect("collected");
    assert!(view(&images[0], u64::MAX, false).expect("view"));
    // Both do not fit: the first one makes room.
    assert!(view(&images[1], 150_000, true).expect("view"));
    assert_eq!((count("images"), count("objects")), (2, 1));
    // A view that does not fit alone is refused, and nothing of it is left.
    let refused = view(&images[0], 90_000, true).expect_err("a limit");
    assert_eq!(refused.kind(), weald_format::ErrorKind::Limit);
    assert!(
        refused.to_string().contains("have 100000 bytes"),
        "{refused}"
    );
    assert!(count("objects") <= 1);
    assert!(view(&images[0], 90_000, false).expect("a limit that is not strict"));
}

/// Number of files below a directory.
fn walk(dir: &Path) -> usize {
    let entries = fs::read_dir(dir).expect("a directory");
    let count = entries.map(|entry| {
        let path = entry.expect("an entry").path();
        if path.is_dir() { walk(&path) } else { 1 }
    });
    count.sum()
}
