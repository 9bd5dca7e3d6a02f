//! The cache on disk.

use crate::ground::{Ground, LARGE_LEN, files, noise};
use crate::support::run;
use std::fs;
use std::process::Stdio;

/// Bytes of the cache. Nobody makes room or counts more meanwhile, so that no copy counts twice.
fn used(ground: &Ground) -> u64 {
    let usage = fs::File::open(ground.at("cache/usage")).ok();
    if let Some(usage) = &usage {
        rustix::fs::flock(usage, rustix::fs::FlockOperation::LockExclusive).expect("lock");
    }
    let files = files(&ground.at("cache"));
    let lens = files
        .iter()
        .filter_map(|file| Some(fs::metadata(file).ok()?.len()));
    let used = lens.sum();
    drop(usage);
    used
}

/// Would catch: a cache that another process does not use, or that a URL with the same image does
/// not share.
#[test]
fn processes_and_servers_share_the_cache() {
    let ground = Ground::new(true);
    let read = |url: &str| {
        let before = ground.web.request_count();
        let words = ["--url-cache", "cache,200M", "sum", url];
        let text = ground.weald(words).expect(0, "").text();
        (text, ground.web.request_count() - before)
    };
    let (expected, cold) = read(&ground.web.url("large"));
    let (found, warm) = read(&ground.web.url("large"));
    assert_eq!(found, expected);
    assert!(cold > 40 && warm <= 2, "{cold} requests, then {warm}");
    // The same image, in a bucket and under another name of the web server.
    assert_eq!(read(&ground.bucket("large")).0, expected);
    fs::copy(ground.at("large"), ground.web.file("twin")).expect("copy");
    let (found, other) = read(&ground.web.url("twin"));
    assert_eq!(found, expected);
    assert!(other <= 2, "{other} requests");
}

/// Would catch: bytes of a damaged copy in an answer, or damage reported where the server's object
/// has none.
#[test]
fn damage_of_the_cache_is_noticed_and_mended() {
    let ground = Ground::new(true);
    let url = ground.web.url("large");
    let words = ["--url-cache", "cache,200M", "sum", &url];
    let expected = ground.weald(words).expect(0, "").text();
    let copies = files(&ground.at("cache"));
    assert!(copies.len() > 100, "{} files", copies.len());
    for (no, copy) in copies.iter().enumerate() {
        let mut bytes = fs::read(copy).expect("read");
        let len = bytes.len();
        let at = (no * 7919) % len.saturating_sub(16).max(1);
        match no % 5 {
            0..3 => bytes
                .iter_mut()
                .skip(at)
                .take(16)
                .for_each(|byte| *byte ^= 0x5a),
            3 => bytes.truncate(at),
            _ => bytes.extend_from_slice(b"more"),
        }
        fs::write(copy, bytes).expect("write");
    }
    let output = ground.weald(words);
    assert_eq!(
        (output.code, output.text()),
        (Some(0), expected.clone()),
        "{}",
        output.stderr
    );
    let output = ground.weald(["--url-cache", "cache,200M", "check", "-q", &url]);
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    fs::remove_dir_all(ground.at("cache")).expect("remove");
    assert_eq!(ground.weald(words).expect(0, "").text(), expected);
}

/// Would catch: a copy with a right digest, of bytes that another server sent, that passes for the
/// image; and a reader that does not ask the server again.
#[test]
fn what_a_bad_server_sent_does_not_stay() {
    let ground = Ground::new(true);
    let mut bytes = fs::read(ground.at("large")).expect("read");
    // Data far from both ends, so that the image opens.
    for at in (4 << 20..40 << 20).step_by(300_000) {
        bytes[at] ^= 1;
    }
    fs::write(ground.web.file("bad"), bytes).expect("write");
    let sum =
        |name: &str| ground.weald(["--url-cache", "cache,200M", "sum", &ground.web.url(name)]);
    let bad = sum("bad");
    assert_ne!(bad.code, Some(0), "the object of the server is damaged");
    let expected = ground.weald(["sum", "large"]).expect(0, "").text();
    assert_eq!(sum("large").expect(0, "").text(), expected);
}

/// Would catch: a cache larger than its limit, or processes that break each other's copies.
#[test]
fn several_processes_stay_within_the_limit() {
    let ground = Ground::new(true);
    let url = ground.web.url("large");
    let expected = ground.weald(["sum", "large"]).expect(0, "").text();
    let spawn = || {
        let mut command = ground.command();
        command.args(["--url-cache", "cache,20M", "sum", &url]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("weald")
    };
    let mut children = [spawn(), spawn(), spawn()];
    let mut most = 0;
    while children
        .iter_mut()
        .any(|child| child.try_wait().expect("state").is_none())
    {
        most = most.max(used(&ground));
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    for child in children {
        let output = child.wait_with_output().expect("output");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            expected,
            "{stderr}"
        );
    }
    most = most.max(used(&ground));
    assert!((10 << 20..=(20 << 20) + 8).contains(&most), "{most} bytes");
}

/// Would catch: a cache in a directory that others can write to, and words that are no cache.
#[test]
fn a_cache_is_for_its_user_alone() {
    let ground = Ground::new(true);
    let url = ground.web.url("large");
    ground
        .bench
        .sh("mkdir -m 755 open; mkdir -m 700 other; chown 1000 other");
    for dir in ["open,100M", "other,100M"] {
        let output = ground.weald(["--url-cache", dir, "ls", &url]);
        assert_eq!(output.code, Some(2), "{dir}");
        assert!(output.stderr.contains("chmod 700"), "{}", output.stderr);
    }
    for word in ["cache", "cache,", "cache,1K", ",20M", "cache,20X"] {
        let output = ground.weald(["--url-cache", word, "ls", &url]);
        assert_eq!(output.code, Some(2), "{word}: {}", output.stderr);
        let mut command = ground.command();
        command.env("WEALD_URL_CACHE", word).args(["ls", &url]);
        let output = run(&mut command);
        assert!(
            output.stderr.starts_with("weald: WEALD_URL_CACHE: "),
            "{}",
            output.stderr
        );
    }
    let mut command = ground.command();
    command.env("WEALD_URL_CACHE", "cache,20M");
    run(command.args(["ls", &url])).expect(0, "");
    assert!(
        !files(&ground.at("cache")).is_empty(),
        "the variable counts"
    );
}

/// Would catch: a mount that fails when its cache goes away.
#[test]
fn the_cache_may_be_deleted_under_a_mount() {
    let ground = Ground::new(true);
    let url = ground.web.url("large");
    let mounted = ground.mount(&url, &["--url-cache", "cache,100M"]);
    fs::read(mounted.at("text1")).expect("read");
    fs::remove_dir_all(ground.at("cache")).expect("remove");
    assert!(fs::read(mounted.at("noise")).expect("read") == noise(LARGE_LEN));
    mounted.end();
}
