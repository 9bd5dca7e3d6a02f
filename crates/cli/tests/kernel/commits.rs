//! `weald commit`: what a writable layer has changed becomes the next image.

use crate::ground::Ground;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use weald_testkit::{CompareOptions, Rng, compare};

/// Mounts `image` by the kernel with the layer `up`.
fn mount(ground: &Ground, image: &str) {
    let words = [
        "mount",
        "--kernel",
        "--view-cache",
        "cache",
        "--upper",
        "up",
    ];
    ground
        .weald(&[&words[..], &[image, "mnt"]].concat())
        .expect(0);
}

/// Unmounts, and removes the layer.
fn end(ground: &Ground) {
    ground.umount();
    fs::remove_dir_all(ground.at("up")).expect("remove the layer");
}

/// Fails if the tree of `image` is not that of the mount. Mounts show no holes of a layer.
#[track_caller]
fn same(ground: &Ground, image: &str, context: &str) {
    let shown = ground.at("shown");
    fs::create_dir_all(&shown).expect("mkdir");
    ground.weald(&["mount", image, "shown"]).expect(0);
    let options = CompareOptions {
        holes: false,
        // Overlayfs shows the link counts of the files below.
        link_counts: false,
        ..CompareOptions::default()
    };
    let found = compare(&ground.mnt(), &shown, &options);
    ground.of_testkit().umount(&shown);
    let found = found.expect("compare");
    assert!(found.is_empty(), "{context}:\n{}", found.join("\n"));
}

/// All paths of the mount below its root.
fn paths(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(dir) = waiting.pop() {
        for entry in fs::read_dir(&dir).expect("readdir") {
            let entry = entry.expect("an entry");
            if entry.file_type().expect("a type").is_dir() {
                waiting.push(entry.path());
            }
            found.push(entry.path());
        }
    }
    found.sort();
    found
}

/// A tree with files, links and directories of all kinds.
fn make_tree(dir: &Path, rng: &mut Rng) {
    for name in ["a", "a/b", "a/b/c", "d", "d/e", "f"] {
        fs::create_dir_all(dir.join(name)).expect("mkdir");
    }
    for (number, place) in ["", "a", "a/b", "a/b/c", "d", "d/e"].iter().enumerate() {
        for file in 0..4 {
            let path = dir.join(place).join(format!("file{number}{file}"));
            let len = rng.below(40_000) as usize;
            fs::write(&path, rng.bytes(len)).expect("write");
            if rng.one_in(3) {
                let xattr = rng.bytes(9);
                weald_sys::set_xattr_fd(File::open(&path).expect("open"), b"user.x", &xattr)
                    .expect("xattr");
            }
        }
        symlink("file00", dir.join(place).join(format!("link{number}"))).expect("symlink");
    }
    fs::hard_link(dir.join("a/file10"), dir.join("d/hard")).expect("link");
}

/// Changes something in the mount; what cannot be done is left.
fn change(root: &Path, rng: &mut Rng, step: u64) {
    let all = paths(root);
    let path = rng.pick(&all).clone();
    let other = rng.pick(&all).clone();
    let new = |dir: &Path| dir.join(format!("new{step}"));
    let dir = if other.is_dir() && !other.is_symlink() {
        other.clone()
    } else {
        other.parent().expect("a parent").to_owned()
    };
    let is_file = path.is_file() && !path.is_symlink();
    let _ = match rng.below(14) {
        0 => {
            let len = rng.below(30_000) as usize;
            fs::write(new(&dir), rng.bytes(len))
        }
        1 => fs::create_dir(new(&dir)),
        2 if is_file => File::options()
            .write(true)
            .open(&path)
            .and_then(|file| file.write_all_at(&rng.bytes(50), rng.below(60_000))),
        3 => fs::remove_file(&path),
        // Opaque, if the image has this directory.
        4 => fs::remove_dir_all(&path).and_then(|()| fs::create_dir(&path)),
        5 | 6 => fs::rename(&path, new(&dir)),
        7 => fs::rename(&path, &other),
        8 => fs::set_permissions(
            &path,
            fs::Permissions::from_mode(0o600 + rng.below(64) as u32),
        ),
        9 => chown(&path, Some(rng.below(99) as u32), None),
        10 if is_file => fs::hard_link(&path, new(&dir)),
        11 => symlink(format!("target{step}"), new(&dir)),
        12 if is_file => File::open(&path)
            .and_then(|file| weald_sys::set_xattr_fd(file, b"user.y", &rng.bytes(5))),
        _ if is_file => {
            let file = File::options().write(true).open(&path);
            file.and_then(|file| file.set_len(rng.below(50_000)))
        }
        _ => Ok(()),
    };
}

/// Would catch: a name that a whiteout removed and that comes back, files of a renamed directory
/// that are gone, data of the wrong file under a changed owner, xattrs of overlayfs in the image.
#[test]
fn the_next_image_is_what_the_mount_shows() {
    for seed in 1..=8 {
        let ground = Ground::new();
        let mut rng = Rng::new(seed);
        make_tree(&ground.dir("source"), &mut rng);
        ground.weald(&["store", "create", "st"]).expect(0);
        ground
            .weald(&["store", "add", "-q", "st:v0", "source"])
            .expect(0);
        ground.weald(&["build", "-q", "source", "image"]).expect(0);
        for version in 1..=3 {
            let (in_store, in_file) = (seed % 2 == 0, seed % 2 == 1);
            let base = format!("st:v{}", version - 1);
            let base = if in_file { "image" } else { &base };
            mount(&ground, base);
            for step in 0..25 {
                change(&ground.mnt(), &mut rng, 100 * version + step);
            }
            let target = format!("st:v{version}");
            let target = if in_store { &target } else { "image" };
            ground.weald(&["commit", "-q", "mnt", target]).expect(0);
            same(&ground, target, &format!("seed {seed}, version {version}"));
            end(&ground);
        }
        let checked: &[&str] = match seed % 2 {
            0 => &["store", "check", "--data", "st"],
            _ => &["check", "image"],
        };
        ground.weald(checked).expect(0);
        // What lies in between is still there.
        let first = if seed % 2 == 0 { "st:v0" } else { "image@1" };
        ground.weald(&["diff", first, "source"]).expect(0);
    }
}

/// Would catch: hard links that become files of their own, or that join a file below.
#[test]
fn new_links_to_files_of_the_image_stay_links() {
    let ground = Ground::new();
    let source = ground.dir("source");
    fs::write(source.join("file"), "data").expect("write");
    fs::hard_link(source.join("file"), source.join("twin")).expect("link");
    fs::write(source.join("alone"), "alone").expect("write");
    ground.weald(&["build", "-q", "source", "image"]).expect(0);
    mount(&ground, "image");
    fs::hard_link(ground.mnt().join("file"), ground.mnt().join("new")).expect("link");
    chown(ground.mnt().join("file"), Some(7), None).expect("chown");
    // The layer has no data of this one.
    chown(ground.mnt().join("alone"), Some(8), None).expect("chown");
    fs::hard_link(ground.mnt().join("alone"), ground.mnt().join("pair")).expect("link");
    ground.weald(&["commit", "-q", "mnt", "image"]).expect(0);
    same(&ground, "image", "links");
    end(&ground);
    fs::create_dir_all(ground.at("shown")).expect("mkdir");
    ground.weald(&["mount", "image", "shown"]).expect(0);
    let stat = |name: &str| fs::metadata(ground.at("shown").join(name)).expect("stat");
    let (file, new, twin) = (stat("file"), stat("new"), stat("twin"));
    assert_eq!((file.ino(), file.nlink(), file.uid()), (new.ino(), 2, 7));
    assert_eq!((twin.nlink(), twin.uid()), (1, 0));
    let (alone, pair) = (stat("alone"), stat("pair"));
    assert_eq!(
        (alone.ino(), alone.nlink(), alone.uid()),
        (pair.ino(), 2, 8)
    );
    ground.of_testkit().umount(&ground.at("shown"));
}

/// Would catch: a layer committed over a tree that it was not made over, a target that is neither
/// the image nor in its store, and a mount without a layer that gives an empty commit.
#[test]
fn what_cannot_be_committed_is_refused_with_a_way_out() {
    let ground = Ground::with_image();
    ground.build("b");
    ground.weald(&["store", "create", "st"]).expect(0);
    ground
        .weald(&["store", "import", "-q", "st:x", "b.weald"])
        .expect(0);
    let refused = |words: &[&str], text: &str| {
        let said = ground.weald(&[&["commit"], words].concat()).expect(2);
        assert!(said.stderr.contains(text), "{}", said.stderr);
    };
    refused(&["a", "a.weald"], "--base names the image");
    ground.mount(&[]);
    refused(&["mnt", "a.weald"], "has no writable layer");
    ground.umount();
    mount(&ground, "a.weald");
    fs::write(ground.mnt().join("new"), "new").expect("write");
    fs::remove_file(ground.mnt().join("short")).expect("remove");
    refused(&["mnt", "other.weald"], "expected the base image");
    refused(&["mnt", "st:new"], "the base image is not in the store");
    refused(&["mnt", "nowhere:new"], "nowhere");
    refused(&["--no-xattrs", "mnt", "a.weald"], "--no-xattrs");
    let other = ["--base", "b.weald", "mnt", "b.weald"];
    refused(&other, "was made over another tree");
    ground.umount();
    refused(&["up", "a.weald"], "--base names the image");
    // Nothing in this layer depends on the image that it was made over.
    let adopted = [
        "commit",
        "-q",
        "--adopt-upper",
        "--base",
        "st:x",
        "up",
        "st:y",
    ];
    ground.weald(&adopted).expect(0);
    ground
        .weald(&["commit", "-q", "--base", "a.weald", "up", "a.weald"])
        .expect(0);
    for image in ["st:y", "a.weald"] {
        let names = ground.weald(&["ls", image]).expect(0).text();
        assert!(names.contains("new") && !names.contains("short"), "{names}");
    }
    // A layer of a mount with the option userxattr says so in other xattrs.
    let up = ground.dir("foreign");
    fs::create_dir(up.join("dir")).expect("mkdir");
    let dir = File::open(up.join("dir")).expect("open");
    weald_sys::set_xattr_fd(dir, b"user.overlay.opaque", b"y").expect("xattr");
    let foreign = ["--base", "a.weald", "foreign", "a.weald"];
    refused(&foreign, "nothing says over which image");
    refused(&[&["--adopt-upper"], &foreign[..]].concat(), "--userxattr");
    let words = ["commit", "-q", "--adopt-upper", "--userxattr"];
    ground.weald(&[&words[..], &foreign].concat()).expect(0);
    assert_eq!(ground.weald(&["ls", "a.weald", "dir"]).expect(0).text(), "");
}
