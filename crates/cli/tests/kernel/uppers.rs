//! The writable layer knows the tree that it was made over; the limit of the view cache.

use crate::ground::{Ground, json, names};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use weald_testkit::mounts::finish;

const OTHER: &str = "was made over another image";

/// A ground with two images of the same names: conf grows and lib shrinks.
fn two_versions() -> Ground {
    let ground = Ground::new();
    for (name, conf_len, lib_len) in [("a", 5000, 300_000), ("b", 9000, 100_000)] {
        let dir = ground.dir(name);
        fs::create_dir(dir.join("etc")).expect("mkdir");
        fs::write(dir.join("conf"), name.repeat(conf_len)).expect("write");
        fs::write(dir.join("lib"), name.repeat(lib_len)).expect("write");
        fs::write(dir.join("etc/short"), name).expect("write");
        ground.of_testkit().build(&dir, &ground.image(name), &[]);
    }
    ground
}

fn words<'a>(image: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let first = [
        "mount",
        "--kernel",
        "--view-cache",
        "cache",
        "--upper",
        "up",
    ];
    [&first[..], more, &[image, "mnt"]].concat()
}

#[track_caller]
fn refused(ground: &Ground, image: &str, more: &[&str], text: &str) {
    let said = ground.weald(&words(image, more)).expect(2);
    assert!(said.stderr.contains(text), "{}", said.stderr);
    assert!(!ground.is_mounted());
}

fn chmod(ground: &Ground, name: &str) {
    let mode = fs::Permissions::from_mode(0o600);
    fs::set_permissions(ground.mnt().join(name), mode).expect("chmod");
}

/// Would catch: a layer that is taken over another image: files of which the mode was changed show
/// the length of one image and the bytes of another.
#[test]
fn a_layer_of_another_image_is_refused() {
    let ground = two_versions();
    ground.weald(&words("a.weald", &[])).expect(0);
    ["conf", "lib"].iter().for_each(|name| chmod(&ground, name));
    ground.umount();
    refused(&ground, "b.weald", &[], OTHER);
    // The word takes it only if nothing in it depends on the other image.
    refused(
        &ground,
        "b.weald",
        &["--adopt-upper"],
        "2 entries have their data",
    );
    refused(&ground, "b.weald", &["-o", "adoptupper"], "conf, lib");
    // As the message says: each file gets its own data over its own image.
    ground.weald(&words("a.weald", &[])).expect(0);
    for name in ["conf", "lib"] {
        let opened = OpenOptions::new()
            .append(true)
            .open(ground.mnt().join(name));
        drop(opened.expect("open for writing"));
    }
    ground.umount();
    refused(&ground, "b.weald", &[], OTHER);
    ground
        .weald(&words("b.weald", &["--adopt-upper"]))
        .expect(0);
    let read = |name| fs::read_to_string(ground.mnt().join(name)).expect("read");
    assert_eq!(read("conf"), "a".repeat(5000));
    assert_eq!(read("lib"), "a".repeat(300_000));
    assert_eq!(read("etc/short"), "b");
    ground.umount();
    // Now it is a layer of this image.
    ground.weald(&words("b.weald", &[])).expect(0);
    ground.umount();
    refused(&ground, "a.weald", &[], OTHER);
}

/// Would catch: a layer without a note that is taken in silence, one of an equal tree in other
/// blocks that is refused, an empty one that is refused, and a renamed directory that is adopted.
#[test]
fn layers_go_by_the_tree_and_not_by_its_blocks() {
    let ground = two_versions();
    ground.weald(&words("a.weald", &[])).expect(0);
    fs::write(ground.mnt().join("new"), "new").expect("write");
    ground.umount();
    ground
        .weald(&["rewrite", "-q", "-l", "1", "a.weald", "again.weald"])
        .expect(0);
    ground.weald(&words("again.weald", &[])).expect(0);
    assert_eq!(fs::read(ground.mnt().join("new")).expect("read"), b"new");
    fs::rename(ground.mnt().join("etc"), ground.mnt().join("renamed")).expect("rename");
    ground.umount();
    refused(
        &ground,
        "b.weald",
        &["--adopt-upper"],
        "renamed: mount that image",
    );
    // Made by an earlier version.
    let mut setfattr = Command::new("setfattr");
    setfattr
        .args(["-x", "trusted.overlay.weald.tree"])
        .arg(ground.at("up"));
    finish(&mut setfattr).expect(0);
    refused(&ground, "a.weald", &[], "nothing says over which image");
    for name in names(&ground.at("up")) {
        let path = ground.at("up").join(name);
        let _ = fs::remove_dir_all(&path).or_else(|_| fs::remove_file(&path));
    }
    for image in ["a.weald", "b.weald"] {
        ground.weald(&words(image, &[])).expect(0);
        ground.umount();
    }
    // The mount does not show the note.
    ground.weald(&words("b.weald", &[])).expect(0);
    let mut getfattr = Command::new("getfattr");
    getfattr.args(["-m", "-", "-d"]).arg(ground.mnt());
    let said = finish(&mut getfattr).expect(0).text();
    assert!(!said.contains("weald"), "{said}");
    ground.umount();
}

/// Would catch: a new layer that gets the overlayfs xattrs of the root of an image as they are, so
/// that overlayfs acts on what an image says.
#[test]
fn xattrs_of_the_root_do_not_steer_the_overlay() {
    let ground = Ground::new();
    let source = ground.dir("a");
    fs::write(source.join("file"), "below").expect("write");
    for (name, value) in [
        ("trusted.overlay.opaque", "y"),
        ("trusted.overlay.redirect", "/elsewhere"),
        ("user.plain", "kept"),
    ] {
        let mut setfattr = Command::new("setfattr");
        setfattr.args(["-n", name, "-v", value]).arg(&source);
        finish(&mut setfattr).expect(0);
    }
    ground.of_testkit().build(&source, &ground.image("a"), &[]);
    let xattrs = |path: &str| {
        let mut getfattr = Command::new("getfattr");
        getfattr
            .args(["-m", "-", "-d", "--absolute-names"])
            .arg(ground.at(path));
        finish(&mut getfattr).expect(0).text()
    };
    ground.mount(&[]);
    let below = xattrs("mnt");
    ground.umount();
    ground.weald(&words("a.weald", &[])).expect(0);
    assert_eq!(fs::read(ground.mnt().join("file")).expect("read"), b"below");
    let above = xattrs("mnt");
    let layer = xattrs("up");
    ground.umount();
    assert_eq!(above, below);
    assert!(above.contains("user.plain=\"kept\""), "{above}");
    for line in layer.lines() {
        assert!(!line.starts_with("trusted.overlay.redirect"), "{layer}");
        assert!(!line.starts_with("trusted.overlay.opaque"), "{layer}");
    }
    assert!(
        layer.contains("trusted.overlay.overlay.redirect=\"/elsewhere\""),
        "{layer}"
    );
}

/// Would catch: a view beyond the limit that is made all the same, one that is refused without its
/// length, and objects of it that stay.
#[test]
fn a_view_beyond_the_limit_is_refused() {
    let ground = two_versions();
    let limited = |image, limit| {
        let first = [
            "mount",
            "--kernel",
            "--view-cache",
            "cache",
            "--view-limit",
            limit,
        ];
        ground.weald(&[&first[..], &[image, "mnt"]].concat())
    };
    let said = limited("a.weald", "290K").expect(2);
    assert!(!ground.is_mounted());
    let text = "files of the image have 305000 bytes";
    assert!(said.stderr.contains(text), "{}", said.stderr);
    assert!(names(&ground.at("cache/objects")).is_empty());
    limited("a.weald", "400K").expect(0);
    // A mounted view stays, and the next one does not fit beside it.
    ground.dir("other");
    let words = ["--view-limit", "400K", "b.weald", "other"];
    let first = ["mount", "--kernel", "--view-cache", "cache"];
    let said = ground.weald(&[&first[..], &words].concat()).expect(2);
    assert!(
        said.stderr.contains("is 409600, mounted views included"),
        "{}",
        said.stderr
    );
    let count = walk(&ground, "cache/objects");
    assert_eq!(count, 2);
    ground.umount();
    limited("b.weald", "400K").expect(0);
    ground.umount();
    assert_eq!(walk(&ground, "cache/images"), 2);
    // Holes take no room.
    let file = fs::File::create(ground.dir("c").join("hole")).expect("create");
    file.set_len(1 << 40).expect("a hole");
    ground
        .of_testkit()
        .build(&ground.at("c"), &ground.image("c"), &[]);
    limited("c.weald", "400K").expect(0);
    ground.umount();
}

fn walk(ground: &Ground, dir: &str) -> usize {
    let mut find = Command::new("find");
    let output = finish(find.arg(ground.at(dir)).args(["-type", "f"])).expect(0);
    output.text().lines().count()
}

/// Would catch: an image with a path longer than a reader of EROFS accepts, whose view keeps all
/// others from being removed.
#[test]
fn a_view_with_a_long_path_is_removed_like_others() {
    let ground = two_versions();
    let mut at = weald_sys::open_dir(&ground.dir("deep")).expect("open");
    for _ in 0..9000 {
        weald_sys::make_dir_at(&at, b"d", 0o755).expect("mkdir");
        at = weald_sys::open_place_at(&at, b"d").expect("open");
    }
    ground
        .of_testkit()
        .build(&ground.at("deep"), &ground.image("deep"), &[]);
    for _ in 0..9000 {
        at = weald_sys::open_place_at(&at, b"..").expect("open");
        weald_sys::remove_dir_at(&at, b"d").expect("rmdir");
    }
    let mount = |image| {
        let words = ["mount", "--kernel", "--view-cache", "cache", image, "mnt"];
        ground.weald(&words).expect(0);
    };
    mount("deep.weald");
    ground.umount();
    mount("a.weald");
    let gc = || {
        json(
            &ground
                .weald(&["store", "gc", "--views", "--json", "cache"])
                .expect(0),
        )
    };
    assert_eq!(gc()["removed_view_count"], 1);
    assert_eq!(walk(&ground, "cache/objects"), 2);
    ground.umount();
    assert_eq!(gc()["removed_view_count"], 1);
    assert_eq!(walk(&ground, "cache/objects"), 0);
    // A view that cannot be read is removed; one that is mounted keeps all objects.
    mount("a.weald");
    ground.umount();
    let images = ground.at("cache/images");
    let view = names(&images)
        .into_iter()
        .find(|name| name.ends_with(".cfs"));
    let view = images.join(view.expect("a view"));
    let len = fs::metadata(&view).expect("a view").len();
    fs::write(&view, vec![0; usize::try_from(len).expect("small")]).expect("write");
    assert_eq!(gc()["removed_view_count"], 1);
    assert_eq!(walk(&ground, "cache"), 3);
}

/// Would catch: an image that is removed although the kernel has it mounted, here or in another
/// mount namespace; a refusal that does not say where; views of removed images that stay; and an
/// account of the store without its views.
#[test]
fn the_store_knows_its_views() {
    let ground = two_versions();
    ground.weald(&["store", "create", "-q", "store"]).expect(0);
    ground
        .weald(&["store", "import", "-q", "store", "a.weald", "b.weald"])
        .expect(0);
    ground
        .weald(&["mount", "--kernel", "store:a", "mnt"])
        .expect(0);
    let rm = |name| ground.weald(&["store", "rm", name]);
    let said = rm("store:a").expect(2);
    let place = format!("is mounted by the kernel on {}", ground.mnt().display());
    assert!(said.stderr.contains(&place), "{}", said.stderr);
    let info = || {
        json(
            &ground
                .weald(&["store", "info", "--json", "store"])
                .expect(0),
        )
    };
    assert_eq!(
        (&info()["view_count"], &info()["mounted_view_count"]),
        (&1.into(), &1.into())
    );
    assert!(info()["views_len"].as_u64() > Some(300_000));
    let text = ground.weald(&["store", "info", "store"]).expect(0).text();
    assert!(text.contains("1, 1 of them mounted"), "{text}");
    ground.umount();
    // A mount that this process does not see.
    let script = "\"$0\" mount --kernel store:b mnt && echo && read end";
    let mut command = Command::new("unshare");
    command
        .args(["-m", "sh", "-c", script])
        .arg(weald_testkit::command::weald_path());
    command
        .current_dir(ground.at(""))
        .stdin(std::process::Stdio::piped());
    let mut hidden = command
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("unshare");
    let mut line = [0; 1];
    std::io::Read::read_exact(hidden.stdout.as_mut().expect("piped"), &mut line).expect("a line");
    let said = rm("store:b").expect(2);
    assert!(
        said.stderr.contains("in another mount namespace"),
        "{}",
        said.stderr
    );
    rm("store:a").expect(0);
    let gc = || json(&ground.weald(&["store", "gc", "--json", "store"]).expect(0));
    assert_eq!(gc()["removed_view_count"], 1);
    assert_eq!(walk(&ground, "store/views/objects"), 2);
    drop(hidden.stdin.take());
    hidden.wait().expect("end");
    assert_eq!(gc()["removed_view_count"], 0);
    rm("store:b").expect(0);
    assert_eq!(gc()["removed_view_count"], 1);
    assert_eq!(walk(&ground, "store/views/objects"), 0);
}
