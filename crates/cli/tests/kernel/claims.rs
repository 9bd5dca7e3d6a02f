//! An image must not decide by its claims what another image shows. Each forged image
//! has right digests of all its records: only its tree digest, or a kept fs-verity digest, is that
//! of something else.

use crate::ground::{Ground, json, names};
use crate::support::Parts;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use weald_codec::fsverity_digest;
use weald_format::directory::{Category, Stream};

/// The small tree, which every user may enter.
fn good() -> Parts {
    let mut parts = Parts::verity();
    parts.attributes[0].permissions = 0o755;
    parts
}

/// The tree with other contents, which claims the tree digest of the first.
fn evil() -> Parts {
    let mut parts = good();
    parts
        .blocks
        .iter_mut()
        .flatten()
        .for_each(|byte| *byte ^= 0xff);
    let data = parts.blocks.concat();
    let sparse = [&[0; 1000], &data[150..]].concat();
    let contents = [&data[..100], &data[100..150], &sparse];
    parts.fsverity = contents.map(fsverity_digest).to_vec();
    parts
}

fn image_digest(ground: &Ground, image: &str) -> String {
    let said = json(&ground.weald(&["info", "--json", image]).expect(0));
    said["image_digest"].as_str().expect("a digest").to_owned()
}

/// The bytes of two of its files.
fn shown(ground: &Ground) -> (Vec<u8>, Vec<u8>) {
    let read = |name| fs::read(ground.mnt().join(name)).expect("read");
    (read("a"), read("h1"))
}

/// Would catch: an image that gets the fs-verity digests which an older one merely claims, by an
/// append, a rewrite, or as the next version in a store.
#[test]
fn a_new_image_has_computed_fsverity_digests() {
    let ground = Ground::new();
    let mut lying = good();
    lying.fsverity[0] = [7; 32];
    // The streams of an image that can be continued.
    for category in [
        Category::Incompressible,
        Category::X86,
        Category::Made,
        Category::Arm64,
    ] {
        let first = lying.streams[0];
        lying.streams.push(Stream { category, ..first });
    }
    fs::write(ground.image("lie"), lying.bytes()).expect("write");
    let said = ground.weald(&["check", "lie.weald"]).expect(1);
    let what = "another fs-verity digest than the image keeps";
    assert!(said.text().contains(what), "{}", said.text());
    fs::write(ground.dir("tree").join("new"), "new").expect("write");
    ground.weald(&[
        "rewrite",
        "-q",
        "--codec",
        "zstd",
        "lie.weald",
        "rewritten.weald",
    ]);
    ground.weald(&["rewrite", "-q", "--repack", "lie.weald", "packed.weald"]);
    ground.weald(&["store", "create", "-q", "store"]).expect(0);
    let imported = ["store", "import", "-q", "--no-verify", "store", "lie.weald"];
    ground.weald(&imported).expect(0);
    let added = ["store", "add", "-q", "--like", "lie", "store", "tree"];
    ground.weald(&added).expect(0);
    let appended = [
        "build",
        "-q",
        "--append",
        "--allow-removal",
        "tree",
        "lie.weald",
    ];
    ground.weald(&appended).expect(0);
    for image in ["rewritten.weald", "packed.weald", "store:tree", "lie.weald"] {
        ground.weald(&["check", image]).expect(0);
        let info = json(&ground.weald(&["info", "--json", image]).expect(0));
        assert_eq!(info["has_fsverity"], true, "{image}");
    }
}

/// Would catch: a view that is found by the tree digest, which nobody compares with the tree. The
/// forged image is mounted first and decides what the other one shows.
#[test]
fn a_claimed_tree_digest_finds_no_view() {
    let ground = Ground::new();
    fs::write(ground.image("a"), good().bytes()).expect("write");
    fs::write(ground.image("evil"), evil().bytes()).expect("write");
    let alone = [
        "mount",
        "--kernel",
        "--view-cache",
        "alone",
        "a.weald",
        "mnt",
    ];
    ground.weald(&alone).expect(0);
    let right = shown(&ground);
    ground.umount();
    let digest = image_digest(&ground, "a.weald");
    let demanded = format!("digest={digest}");
    let mount_evil = [
        "mount",
        "--kernel",
        "--view-cache",
        "cache",
        "evil.weald",
        "mnt",
    ];
    ground.weald(&mount_evil).expect(0);
    let wrong = shown(&ground);
    assert!(wrong != right);
    ground.umount();
    for words in [&[][..], &["-o", &demanded]] {
        ground.mount(words);
        assert!(shown(&ground) == right, "{words:?}");
        ground.umount();
    }
    // The same in a store, whose images share a cache.
    ground.weald(&["store", "create", "-q", "store"]).expect(0);
    for name in ["evil", "a"] {
        let path = format!("{name}.weald");
        let words = ["store", "import", "--no-verify", "store", path.as_str()];
        ground.weald(&words).expect(0);
        let stored = format!("store:{name}");
        ground
            .weald(&["mount", "--kernel", &stored, "mnt"])
            .expect(0);
        assert!(
            shown(&ground)
                == if name == "a" {
                    right.clone()
                } else {
                    wrong.clone()
                }
        );
        ground.umount();
    }
}

/// Would catch: a cache of the version before, whose views have the names of tree digests, that is
/// used; and its views that stay for ever.
#[test]
fn views_with_the_names_of_tree_digests_are_thrown_away() {
    let ground = Ground::new();
    fs::write(ground.image("a"), good().bytes()).expect("write");
    ground.mount(&[]);
    let right = shown(&ground);
    ground.umount();
    let images = ground.at("cache/images");
    let tree = good().tree_digest.to_string();
    for name in names(&images) {
        let end = name.rsplit_once('.').expect("a suffix").1.to_owned();
        fs::rename(images.join(name), images.join(format!("{tree}.{end}"))).expect("rename");
    }
    let record = images.join(format!("{tree}.view"));
    let text = fs::read_to_string(&record).expect("a record");
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.starts_with("source"))
        .collect();
    let old = lines.join("\n").replace("weald view 2", "weald view 1") + "\n";
    fs::write(&record, old).expect("write");
    fs::write(ground.at("cache/weald-views"), "version 1\n").expect("write");
    ground.mount(&[]);
    assert!(shown(&ground) == right);
    assert!(!record.exists() && !images.join(format!("{tree}.cfs")).exists());
    let mark = fs::read_to_string(ground.at("cache/weald-views")).expect("the mark");
    assert_eq!(mark, "version 2\n");
    ground.umount();
}

/// Would catch: an image that names the object of another one, of the same length, by a kept
/// digest, and so shows a file that only root may read; in a view cache, and among the objects of
/// `export composefs`.
#[test]
fn a_kept_digest_shows_no_object_of_another_image() {
    let ground = Ground::new();
    fs::write(ground.image("secret"), good().bytes()).expect("write");
    let mut forged = evil();
    forged.fsverity = good().fsverity;
    fs::write(ground.image("a"), forged.bytes()).expect("write");
    let mount = ["mount", "--kernel", "--view-cache", "cache"];
    ground
        .weald(&[&mount[..], &["secret.weald", "mnt"]].concat())
        .expect(0);
    ground.umount();
    let what = "another fs-verity digest than the image keeps";
    let said = ground.try_mount(&[]).expect(2);
    assert!(said.stderr.contains(what), "{}", said.stderr);
    assert!(!ground.is_mounted());
    let export = |image, target| {
        let words = [
            "export",
            "composefs",
            "-q",
            "--objects",
            "objects",
            image,
            "--image",
            target,
        ];
        ground.weald(&words)
    };
    export("secret.weald", "secret.cfs").expect(0);
    let said = export("a.weald", "forged.cfs").expect(2);
    assert!(said.stderr.contains(what), "{}", said.stderr);
    assert!(!ground.at("forged.cfs").exists());
    let said = ground.weald(&[
        "export",
        "composefs",
        "-q",
        "a.weald",
        "--image",
        "forged.cfs",
    ]);
    assert!(said.expect(2).stderr.contains(what));
}

/// Would catch: an image whose digests were compared with its contents once, and that pays for it
/// again when its view is made anew although the objects are there.
#[test]
fn the_contents_of_an_image_are_read_for_its_first_view_only() {
    let ground = Ground::new();
    let text = "contents\n".repeat(100);
    fs::write(ground.dir("a").join("file"), &text).expect("write");
    let words = ["--fsverity", "-l", "0"];
    ground
        .of_testkit()
        .build(&ground.at("a"), &ground.image("a"), &words);
    let read = || fs::read_to_string(ground.mnt().join("file")).expect("read");
    ground.mount(&[]);
    assert_eq!(read(), text);
    ground.umount();
    let remove_view = || {
        for name in names(&ground.at("cache/images")) {
            if !name.ends_with(".verified") {
                fs::remove_file(ground.at("cache/images").join(name)).expect("remove");
            }
        }
    };
    remove_view();
    // The same image digest, and contents that cannot be read any more.
    let mut damaged = fs::read(ground.image("a")).expect("read");
    let at = damaged.windows(8).position(|part| part == b"contents");
    damaged[at.expect("a block without compression")] ^= 1;
    fs::write(ground.image("a"), &damaged).expect("write");
    ground.mount(&[]);
    assert_eq!(read(), text);
    ground.umount();
    remove_view();
    for name in names(&ground.at("cache/images")) {
        fs::remove_file(ground.at("cache/images").join(name)).expect("remove");
    }
    ground.try_mount(&[]).expect(2);
}

/// Would catch: a cache that root opens although another user owns it, a directory above it or a
/// directory in it; and a symlink in it that root follows.
#[test]
fn a_cache_in_the_reach_of_another_user_is_refused() {
    let ground = Ground::with_image();
    let nobody = |path: &Path| std::os::unix::fs::chown(path, Some(65534), Some(65534));
    let refused = |cache: &str| {
        let words = ["mount", "--kernel", "--view-cache", cache, "a.weald", "mnt"];
        let said = ground.weald(&words).expect(2);
        assert!(!ground.is_mounted(), "{cache}");
        said.stderr
    };
    // Another user could exchange the directory while root works in it.
    nobody(&ground.dir("home")).expect("chown");
    assert!(refused("home/cache").contains("/home belongs to user 65534"));
    let open = ground.dir("open");
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).expect("chmod");
    assert!(refused("open/below/cache").contains("/open belongs to user 0 and has mode 777"));
    // Planted entries of the cache itself.
    let target = ground.at("planted");
    for name in [
        "lock",
        "making",
        "weald-views",
        "images",
        "objects",
        "below",
    ] {
        ground.mount(&[]);
        ground.umount();
        let path = ground.at("cache").join(name);
        if path.is_dir() {
            fs::remove_dir_all(&path).expect("remove")
        } else {
            fs::remove_file(&path).expect("remove")
        }
        // Otherwise the view is there, and nothing is made.
        for view in names(&ground.at("cache"))
            .iter()
            .filter(|name| *name == "images")
        {
            fs::remove_dir_all(ground.at("cache").join(view)).expect("remove");
        }
        symlink(&target, &path).expect("symlink");
        refused("cache");
        assert!(
            fs::symlink_metadata(&target).is_err(),
            "{name}: root made the target of the link"
        );
        fs::remove_dir_all(ground.at("cache")).expect("remove");
    }
    // A directory of the cache that another user owns.
    ground.mount(&[]);
    ground.umount();
    nobody(&ground.at("cache/images")).expect("chown");
    assert!(refused("cache").contains("belongs to user 65534"));
}

/// Would catch: root that keeps a cache in the store of another user, who can exchange the whole
/// store while root writes to it.
#[test]
fn the_store_of_another_user_has_no_cache_of_root() {
    let ground = Ground::with_image();
    ground.weald(&["store", "create", "-q", "store"]).expect(0);
    ground
        .weald(&["store", "import", "store", "a.weald"])
        .expect(0);
    let store = ground.at("store");
    std::os::unix::fs::chown(&store, Some(65534), Some(65534)).expect("chown");
    let mount = |command: &mut std::process::Command| {
        let words = ["mount", "--kernel", "store:a", "mnt"];
        let command = command.args(words).env("XDG_CACHE_HOME", ground.at("own"));
        weald_testkit::mounts::finish(command).expect(0);
    };
    mount(&mut ground.of_testkit().command());
    assert!(!store.join("views").exists());
    assert!(ground.at("own/weald/views/images").is_dir());
    ground.umount();
    std::os::unix::fs::chown(&store, Some(0), Some(0)).expect("chown");
    mount(&mut ground.of_testkit().command());
    assert!(store.join("views").is_dir());
    ground.umount();
}

/// Exchanges two names until it is dropped, as fast as it goes.
struct Exchanging {
    is_over: std::sync::Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<u64>>,
}

impl Exchanging {
    fn begin(first: std::path::PathBuf, second: std::path::PathBuf) -> Self {
        let is_over = std::sync::Arc::new(AtomicBool::new(false));
        let over = is_over.clone();
        let thread = std::thread::spawn(move || {
            let (mut count, flags) = (0, rustix::fs::RenameFlags::EXCHANGE);
            while !over.load(Ordering::Relaxed) {
                let cwd = rustix::fs::CWD;
                count +=
                    u64::from(rustix::fs::renameat_with(cwd, &first, cwd, &second, flags).is_ok());
            }
            count
        });
        Self {
            is_over,
            thread: Some(thread),
        }
    }

    /// Ends, and returns the number of exchanges.
    fn end(&mut self) -> u64 {
        self.is_over.store(true, Ordering::Relaxed);
        let thread = self.thread.take();
        thread.map_or(0, |thread| thread.join().expect("the thread"))
    }
}

impl Drop for Exchanging {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

/// Paths below `dir` with their kinds and lengths.
fn everything_below(ground: &Ground, dir: &str) -> String {
    let mut find = std::process::Command::new("find");
    find.arg(ground.at(dir)).args(["-printf", "%P %y %m %s\\n"]);
    let said = weald_testkit::mounts::finish(&mut find).expect(0).text();
    let mut lines: Vec<&str> = said.lines().collect();
    lines.sort_unstable();
    lines.join("\n")
}

/// Would catch: root that looks at a directory and then works by its path, which leads elsewhere by
/// then: another user exchanges the directory and a symlink all the time.
#[test]
fn a_cache_that_is_exchanged_leads_root_nowhere() {
    const TRIES: usize = 60;
    let ground = Ground::with_image();
    // A cache of root's own, whose views must stay and whose directory gets no other.
    let outside = [
        "mount",
        "--kernel",
        "--view-cache",
        "outside",
        "a.weald",
        "mnt",
    ];
    ground.weald(&outside).expect(0);
    ground.umount();
    ground.build("b");
    let before = everything_below(&ground, "outside");
    // The cache itself, the directory above it, and the store with its own cache.
    for (real, cache) in [
        ("theirs/cache", "theirs/cache"),
        ("theirs/above", "theirs/above/cache"),
    ] {
        ground.dir("theirs");
        ground.dir(real);
        let link = ground.at("theirs/link");
        symlink(ground.at("outside"), &link).expect("symlink");
        for path in ["theirs", real, "theirs/link"] {
            let path = ground.at(path);
            std::os::unix::fs::lchown(path, Some(65534), Some(65534)).expect("chown");
        }
        let mut exchanging = Exchanging::begin(ground.at(real), link);
        for _ in 0..TRIES {
            let words = ["mount", "--kernel", "--view-cache", cache, "b.weald", "mnt"];
            if ground.weald(&words).code == Some(0) {
                ground.umount();
            }
            ground.weald(&["store", "gc", "--views", cache]);
        }
        assert!(exchanging.end() > 1000, "hardly an exchange");
        assert_eq!(everything_below(&ground, "outside"), before, "{cache}");
        fs::remove_dir_all(ground.at("theirs")).expect("remove");
    }
}
