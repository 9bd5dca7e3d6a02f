//! Mounts by URL, and what they do when the server goes or the object changes.

use crate::ground::{Ground, LARGE_LEN, files, noise};
use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// EIO.
const EIO: Option<i32> = Some(5);

/// Would catch: a mount that shows something else than the image, or a password in a list of
/// processes or mounts.
#[test]
fn a_mount_by_url_shows_the_image_and_no_secret() {
    let ground = Ground::new(false);
    let secret = ground
        .web
        .url("closed/small")
        .replace("http://", "http://me:secret%20word@");
    for url in [&secret, &ground.bucket("small")] {
        let mounted = ground.mount(url, &[]);
        ground
            .bench
            .sh("diff -r --no-dereference source/etc mnt/etc; stat mnt/fifo");
        ground.weald(["diff", "small", "mnt"]).expect(0, "");
        let lists = [
            ground.weald(["mounts"]).expect(0, "").text(),
            ground.weald(["mounts", "--json"]).expect(0, "").text(),
            ground
                .weald(["mounts", "--prometheus"])
                .expect(0, "")
                .text(),
            weald_testkit::mounts::mount_lines("/proc/self/mounts").concat(),
            ground.bench.sh("ps axww -o args"),
        ];
        for list in lists {
            assert!(!list.contains("secret"), "{list}");
        }
        mounted.end();
    }
    let output = ground.weald(["mount", "--kernel", &ground.bucket("small"), "mnt"]);
    assert_eq!(output.code, Some(2), "{}", output.stderr);
}

/// Would catch: a mount that fails for good when its server was away, one that hangs, one that does
/// not show what it has, and an umount that waits for the server.
#[test]
fn a_server_that_comes_back_serves_again() {
    let mut ground = Ground::new(true);
    let url = ground.bucket("large");
    fs::create_dir(ground.at("mnt")).expect("mkdir");
    let words = [
        "mount",
        "--url-timeout",
        "2s",
        "-o",
        "max_readahead=4K",
        &url,
        "mnt",
    ];
    ground.weald(words).expect(0, "");
    let at = |name: &str| ground.bench.at("mnt").join(name);
    let text = fs::read(at("text3")).expect("read");
    ground.s3.kill();
    assert!(fs::read(at("text3")).expect("what is cached") == text);
    let start = Instant::now();
    let failed = fs::read(at("noise"))
        .map(drop)
        .expect_err("the server is away");
    assert_eq!(failed.raw_os_error(), EIO, "{failed}");
    let time = start.elapsed();
    let expected = Duration::from_secs(1)..Duration::from_secs(15);
    assert!(expected.contains(&time), "{time:?}");
    ground.s3.restart();
    let at = |name: &str| ground.bench.at("mnt").join(name);
    assert!(fs::read(at("noise")).expect("the server is back") == noise(LARGE_LEN));
    ground.s3.kill();
    let start = Instant::now();
    ground.weald(["umount", "mnt"]).expect(0, "");
    assert!(
        start.elapsed() < Duration::from_secs(5),
        "{:?}",
        start.elapsed()
    );
}

/// Would catch: a reader that waits for less than the time that was asked for, although the server
/// is back before it is over.
#[test]
fn a_reader_waits_for_a_server_that_restarts() {
    let mut ground = Ground::new(true);
    let url = ground.bucket("large");
    fs::create_dir(ground.at("mnt")).expect("mkdir");
    ground.weald(["mount", &url, "mnt"]).expect(0, "");
    ground.s3.kill();
    let path = ground.at("mnt/noise");
    let reader = std::thread::spawn(move || fs::read(path));
    std::thread::sleep(Duration::from_secs(3));
    ground.s3.restart();
    let found = reader.join().expect("no panic").expect("read");
    assert!(found == noise(LARGE_LEN));
    ground.weald(["umount", "mnt"]).expect(0, "");
}

/// Would catch: an umount that waits for a reader that waits for a server.
#[test]
fn an_unmount_does_not_wait_for_the_server() {
    let mut ground = Ground::new(true);
    let url = ground.bucket("large");
    let server = |ground: &Ground| {
        let servers = ground.weald(["mounts", "--json"]).expect(0, "").json();
        servers.len()
    };
    for how in ["umount", "umount --lazy"] {
        fs::create_dir_all(ground.at("mnt")).expect("mkdir");
        ground.weald(["mount", &url, "mnt"]).expect(0, "");
        ground.s3.kill();
        let mut reader = Command::new("cat");
        reader.arg(ground.at("mnt/noise")).stdout(Stdio::null());
        let mut reader = reader.stderr(Stdio::null()).spawn().expect("cat");
        std::thread::sleep(Duration::from_millis(700));
        if how == "umount" {
            reader.kill().expect("kill");
        }
        let start = Instant::now();
        ground.weald(how.split(' ').chain(["mnt"])).expect(0, "");
        if how == "umount" {
            assert_eq!(server(&ground), 0, "the server is gone");
        } else {
            reader.kill().expect("kill");
        }
        reader.wait().expect("wait");
        let time = start.elapsed();
        assert!(time < Duration::from_secs(3), "{how}: {time:?}");
        ground.s3.restart();
    }
}

/// Would catch: bytes of two images in one mount, and an error that does not say what happened.
#[test]
fn an_object_that_changed_is_named() {
    let ground = Ground::new(true);
    ground
        .weald(["build", "-q", "source", "other"])
        .expect(0, "");
    let longer = fs::read(ground.at("large")).expect("read");
    for url in [ground.web.url("large"), ground.bucket("large")] {
        ground.serve("large");
        let log = ground.at("log");
        let words = ["--log", "log", "-o", "max_readahead=4K"];
        let mounted = ground.mount(&url, &words);
        // Of the same length, so that only ETag and time tell.
        let mut changed = longer.clone();
        changed[30 << 20] ^= 1;
        fs::write(ground.at("changed"), &changed).expect("write");
        std::thread::sleep(Duration::from_millis(1100));
        fs::copy(ground.at("changed"), ground.web.file("large")).expect("copy");
        ground
            .weald(["publish", "-q", "-f", "changed", &ground.bucket("large")])
            .expect(0, "");
        let failed = fs::read(mounted.at("noise"))
            .map(drop)
            .expect_err("another object");
        assert_eq!(failed.raw_os_error(), EIO);
        let said = fs::read_to_string(&log).expect("log");
        assert!(said.contains("the object was replaced"), "{said}");
        mounted.end();
        fs::remove_file(log).expect("remove");
    }
    let words = |name: &str| {
        [
            "ls".to_owned(),
            "--digest".into(),
            digest(&ground),
            ground.web.url(name),
        ]
    };
    ground.serve("small");
    fs::copy(ground.at("other"), ground.web.file("large")).expect("copy");
    let output = ground.weald(words("large"));
    assert_eq!(output.code, Some(2));
    assert!(
        output.stderr.contains("image digest: expected"),
        "{}",
        output.stderr
    );
}

fn digest(ground: &Ground) -> String {
    let info = ground.weald(["info", "--json", "large"]).expect(0, "");
    info.json()[0]["image_digest"]
        .as_str()
        .expect("a digest")
        .to_owned()
}

/// Would catch: words of fstab that are accepted and do nothing, and a mount by URL that a server
/// with the credentials and the cache of other mounts takes over.
#[test]
fn words_of_fstab_set_the_cache_and_the_time() {
    let mut ground = Ground::new(true);
    let url = ground.bucket("large");
    for dir in ["mnt", "local"] {
        fs::create_dir(ground.at(dir)).expect("mkdir");
    }
    let mut shared = ground.command();
    shared.env_remove("AWS_SECRET_ACCESS_KEY");
    crate::support::run(shared.args(["mount", "small", "local"])).expect(0, "");
    std::os::unix::fs::symlink(
        weald_testkit::command::weald_path(),
        ground.at("mount.weald"),
    )
    .expect("link");
    let helper = |words: &[&str]| {
        let weald = ground.command();
        let mut helper = Command::new(ground.at("mount.weald"));
        helper.current_dir(weald.get_current_dir().expect("a directory"));
        for (name, value) in weald.get_envs() {
            match value {
                Some(value) => helper.env(name, value),
                None => helper.env_remove(name),
            };
        }
        crate::support::run(helper.args(words))
    };
    for (words, said) in [
        ("urlcache=cache", "go together"),
        ("urlcachesize=64M", "go together"),
        ("urlcache=cache,urlcachesize=1M", "16M or more"),
        ("urltimeout=5", "expected a time"),
        ("kernel,urltimeout=5s", "only FUSE"),
    ] {
        let refused = helper(&[&url, "mnt", "-o", words]);
        assert!(
            refused.code != Some(0) && refused.stderr.contains(said),
            "{}",
            refused.stderr
        );
    }
    let refused = helper(&["small", "mnt", "-o", "urltimeout=5s"]);
    assert!(
        refused.stderr.contains("images by URL"),
        "{}",
        refused.stderr
    );
    let words = "_netdev,max_readahead=4K,urlcache=cache,urlcachesize=200M,urltimeout=2s";
    helper(&[&url, "mnt", "-o", words]).expect(0, "");
    let rows = ground.weald(["mounts", "--json"]).expect(0, "").json();
    let servers = rows.iter().filter(|row| row["type"] == "server");
    assert_eq!(servers.count(), 2, "each has a server of its own: {rows:?}");
    let text = fs::read(ground.at("mnt/text3")).expect("read");
    assert!(!text.is_empty() && !files(&ground.at("cache")).is_empty());
    ground.s3.kill();
    let start = Instant::now();
    let failed = fs::read(ground.at("mnt/noise")).expect_err("the server is away");
    let time = start.elapsed();
    assert!(
        failed.raw_os_error() == EIO && time < Duration::from_secs(15),
        "{failed}: {time:?}"
    );
    ground.weald(["umount", "mnt"]).expect(0, "");
    ground.weald(["umount", "local"]).expect(0, "");
}
