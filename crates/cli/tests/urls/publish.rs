//! `weald publish`.

use crate::ground::Ground;
use std::fs;
use std::process::Stdio;
use std::time::Duration;
use weald_testkit::link::{Link, LinkOptions};

/// Would catch: an object that is replaced without being asked for, bytes that are sent twice, and
/// a report that says something else than what was sent.
#[test]
fn publishing_says_what_was_sent() {
    let ground = Ground::new(true);
    let url = ground.bucket("dir/new.weald");
    let report = |words: &[&str]| {
        let output = ground.weald([&["publish", "--json"], words].concat());
        output.expect(0, "").json().remove(0)
    };
    let len = fs::metadata(ground.at("large")).expect("stat").len();
    let sent = |found: &serde_json::Value| found["sent_len"].as_u64().expect("a number");
    let first = report(&["large", &url]);
    assert_eq!((sent(&first), &first["url"]), (len, &url.as_str().into()));
    let stored = fs::read(ground.s3.file("dir/new.weald")).expect("object");
    assert!(stored == fs::read(ground.at("large")).expect("image"));
    assert_eq!(sent(&report(&["large", &url])), 0, "it is there already");
    let output = ground.weald(["publish", "small", &url]);
    assert_eq!(output.code, Some(2));
    assert!(
        output.stderr.contains("--force replaces it"),
        "{}",
        output.stderr
    );
    report(&["--force", "small", &url]);
    ground.weald(["diff", &url, "source"]).expect(0, "");
    // From a store.
    ground
        .weald(["store", "create", "-q", "store"])
        .expect(0, "");
    ground
        .weald(["store", "import", "-q", "store", "large"])
        .expect(0, "");
    report(&["-f", "store:large", &url]);
    ground.weald(["diff", "-q", &url, "big"]).expect(0, "");
}

/// Would catch: half an object under its name, or an old one that is gone, after an upload that was
/// killed.
#[test]
fn a_killed_upload_shows_nothing() {
    let ground = Ground::new(true);
    let url = ground.bucket("small");
    let options = LinkOptions {
        rate: 20_000_000,
        ..LinkOptions::default()
    };
    let link = Link::start(ground.s3.address(), options).expect("a link");
    for milliseconds in [200, 700, 1200, 2000] {
        let mut command = ground.command();
        let endpoint = format!("http://{}", link.address());
        command.env("AWS_ENDPOINT_URL", endpoint);
        command
            .args(["publish", "-f", "large", &url])
            .stdout(Stdio::null());
        let mut child = command.spawn().expect("weald");
        std::thread::sleep(Duration::from_millis(milliseconds));
        child.kill().expect("kill");
        child.wait().expect("wait");
        ground.weald(["diff", &url, "source"]).expect(0, "");
    }
}

/// Would catch: an upload to a web server, or of something that is no image.
#[test]
fn only_images_go_and_only_to_buckets() {
    let ground = Ground::new(false);
    fs::write(ground.at("text"), "text").expect("write");
    let refused = |words: [&str; 2], said: &str| {
        let output = ground.weald([&["publish"], &words[..]].concat());
        assert_eq!(output.code, Some(2));
        assert!(output.stderr.contains(said), "{}", output.stderr);
    };
    refused(["text", &ground.bucket("text")], "not a Weald image");
    refused(["gone", &ground.bucket("gone")], "No such file");
    refused(
        ["small", &ground.web.url("new")],
        "a web server takes no images",
    );
    refused(["small", "/tmp/x"], "expected a URL");
    let output = ground.weald(["build", "source", &ground.bucket("built")]);
    assert_eq!(output.code, Some(2));
    assert!(
        output.stderr.contains("then 'weald publish"),
        "{}",
        output.stderr
    );
    refused(["small", "s3://none/x"], "no such bucket");
    assert!(!ground.s3.file("text").exists());
}
