//! Replicas in a bucket.

use crate::ground::{Ground, files, noise};
use crate::support::run;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use weald_testkit::compare::{CompareOptions, assert_same};
use weald_testkit::mounts::eventually;
use weald_testkit::servers::KEY;

/// A store with the image `one`.
fn with_store() -> Ground {
    let ground = Ground::new(false);
    ground
        .weald(["store", "create", "-q", "store"])
        .expect(0, "");
    add(&ground, "source", "one");
    ground
}

#[track_caller]
fn add(ground: &Ground, tree: &str, name: &str) {
    let words = ["store", "add", "-q", "store", tree, "--name", name];
    ground.weald(words).expect(0, "");
}

#[track_caller]
fn must(ground: &Ground, words: &[&str]) -> String {
    ground.weald(words).expect(0, "").text()
}

#[track_caller]
fn refused(command: &mut Command, words: &str) {
    let start = Instant::now();
    let output = run(command);
    let said = &output.stderr;
    assert_eq!(output.code, Some(2), "{said}");
    assert!(said.contains(words), "{words:?} is not in {said:?}");
    assert!(!said.contains("secret"), "{said}");
    // A server that is not there is told soon, not after the time for one that goes away.
    assert!(start.elapsed() < Duration::from_secs(20), "{said}");
}

/// Restores the replica and compares the image `name` of both stores.
#[track_caller]
fn restore(ground: &Ground, url: &str, names: &[&str]) {
    let _ = fs::remove_dir_all(ground.at("restored"));
    must(ground, &["replica", "restore", "-q", url, "restored"]);
    must(ground, &["store", "check", "--data", "restored"]);
    for name in names {
        let (one, two) = (format!("store:{name}"), format!("restored:{name}"));
        must(ground, &["diff", "-q", &one, &two]);
    }
}

/// Would catch: a state that was sent and cannot be restored, a place of another store that is
/// taken, a sender that goes on after another store took over, and credentials in what is stored.
#[test]
fn a_replica_in_a_bucket_is_sent_verified_restored_and_followed() {
    let ground = with_store();
    let url = ground.bucket("replicas/store");
    must(&ground, &["replica", "add", "store", &url, "--name", "far"]);
    must(&ground, &["replica", "send", "-q", "store"]);
    let first = ground.s3.requests().len();
    fs::write(ground.at("source/new"), noise(300_000)).expect("write");
    add(&ground, "source", "two");
    must(&ground, &["replica", "send", "-q", "store"]);
    let requests = ground.s3.requests().split_off(first);
    assert!(requests.len() <= 25, "{requests:#?}");
    must(&ground, &["replica", "verify", "store"]);
    must(&ground, &["replica", "verify", &url]);
    let listed = must(&ground, &["replica", "ls", "store"]);
    assert!(listed.ends_with(&format!("  {url}\n")), "{listed}");
    let states = must(&ground, &["replica", "states", &url]);
    assert_eq!(states.lines().count(), 2, "{states}");
    restore(&ground, &url, &["one", "two"]);
    let status = must(&ground, &["replica", "status", "--json", "store"]);
    assert!(status.contains("\"behind\":0"), "{status}");
    for path in files(&ground.at("store"))
        .iter()
        .chain(&files(&ground.s3.file("replicas")))
    {
        let bytes = fs::read(path).expect("read");
        let has = |word: &str| {
            bytes
                .windows(word.len())
                .any(|bytes| bytes == word.as_bytes())
        };
        assert!(!has(KEY.0) && !has(KEY.1), "{path:?}");
    }
    // Another store, and another replica.
    must(&ground, &["store", "create", "-q", "other"]);
    let add_other = |store: &str| {
        let words = ["replica", "add", store, &url, "--name", "second"];
        ground.command().args(words).output().expect("weald")
    };
    for (store, words) in [("other", "another store"), ("store", "this store already")] {
        let output = add_other(store);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.status.code() == Some(2) && said.contains(words),
            "{said}"
        );
    }
    // Old states go, and what they alone had.
    must(&ground, &["replica", "send", "-q", "--anew", "store"]);
    must(
        &ground,
        &[
            "replica", "prune", "-q", "store", "--name", "far", "--keep", "1",
        ],
    );
    must(&ground, &["replica", "verify", "store"]);
    restore(&ground, &url, &["one", "two"]);
    // A standby takes over.
    must(&ground, &["replica", "follow", "-q", &url, "standby"]);
    must(&ground, &["replica", "promote", "-q", "standby"]);
    add(&ground, "source", "three");
    refused(
        ground.command().args(["replica", "send", "store"]),
        "was replaced by",
    );
    must(&ground, &["replica", "send", "-q", "standby"]);
    must(&ground, &["replica", "verify", "standby"]);
    must(&ground, &["diff", "-q", "standby:two", "source"]);
}

/// Would catch: an acknowledged state that is lost, or a server that never sends again, when the
/// bucket goes away under load.
#[test]
fn a_server_that_is_killed_and_comes_back_costs_nothing() {
    let mut ground = with_store();
    let url = ground.bucket("replica");
    must(&ground, &["volume", "create", "-q", "store:home"]);
    let words = ["replica", "add", "-q", "store", &url, "--every", "1s"];
    must(&ground, &words);
    fs::create_dir(ground.at("mnt")).expect("mkdir");
    let words = ["mount", "--url-timeout", "3s", "store:home", "mnt"];
    must(&ground, &words);
    for round in 0..6 {
        for no in 0..20 {
            let path = ground.at(format!("mnt/{round}-{no}"));
            fs::write(&path, noise(20_000 + no)).expect("write");
            let file = fs::File::open(&path).expect("open");
            file.sync_all().expect("sync");
            std::thread::sleep(Duration::from_millis(20));
        }
        ground.s3.kill();
        std::thread::sleep(Duration::from_millis(300 * (round % 3)));
        ground.s3.restart();
    }
    let caught_up = || {
        let status = must(&ground, &["replica", "status", "--json", "store"]);
        status.contains("\"behind\":0")
    };
    eventually("the replica has everything", caught_up);
    must(&ground, &["umount", "mnt"]);
    must(&ground, &["replica", "send", "-q", "store"]);
    must(&ground, &["replica", "verify", &url]);
    must(&ground, &["replica", "restore", "-q", &url, "restored"]);
    fs::create_dir(ground.at("again")).expect("mkdir");
    must(&ground, &["mount", "restored:home", "again"]);
    must(&ground, &["mount", "store:home", "mnt"]);
    let options = CompareOptions {
        rsync: false,
        holes: false,
        link_counts: true,
    };
    assert_eq!(files(&ground.at("again")).len(), 120);
    assert_same(&ground.at("mnt"), &ground.at("again"), &options);
    must(&ground, &["umount", "again"]);
    must(&ground, &["umount", "mnt"]);
}

/// Would catch: two copies of a store that send to one place, and of which both believe that their
/// state is there.
#[test]
fn copies_of_a_store_do_not_overwrite_each_other() {
    let ground = with_store();
    let url = ground.bucket("replica");
    must(&ground, &["replica", "add", "-q", "store", &url]);
    must(&ground, &["replica", "send", "-q", "store"]);
    let mut copy = Command::new("cp");
    copy.arg("-a")
        .arg(ground.at("store"))
        .arg(ground.at("copy"));
    assert!(copy.status().expect("cp").success());
    for (store, text) in [("store", "one"), ("copy", "two")] {
        fs::write(ground.at("source/which"), text).expect("write");
        let words = ["store", "add", "-q", store, "source", "--name", "which"];
        must(&ground, &words);
    }
    let start = |store: &str| {
        let mut command = ground.command();
        command
            .args(["replica", "send", "-q", store])
            .stderr(std::process::Stdio::piped());
        command.spawn().expect("weald")
    };
    let children = [start("store"), start("copy")];
    let mut done = Vec::new();
    for (child, store) in children.into_iter().zip(["store", "copy"]) {
        let output = child.wait_with_output().expect("weald");
        if output.status.success() {
            done.push(store);
        }
    }
    assert_eq!(done.len(), 1, "{done:?}");
    let other = if done == ["store"] { "copy" } else { "store" };
    refused(
        ground.command().args(["replica", "send", other]),
        "another copy of",
    );
    must(&ground, &["replica", "verify", &url]);
    must(&ground, &["replica", "restore", "-q", &url, "restored"]);
    let (sent, restored) = (format!("{}:which", done[0]), "restored:which");
    must(&ground, &["diff", "-q", &sent, restored]);
}

/// Would catch: wrong endpoints, credentials and pages that are taken for a bucket, errors that do
/// not help, and a store that has a replica after `add` failed.
#[test]
fn what_does_not_work_is_told_and_changes_nothing() {
    let ground = with_store();
    let url = ground.bucket("replica");
    let closed = {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        format!("http://{}", listener.local_addr().expect("address"))
    };
    let page = ground.web.url("page");
    let ignoring = format!("http://{}", server_without_conditions());
    for (name, value, words) in [
        ("AWS_ENDPOINT_URL", closed.as_str(), "see AWS_ENDPOINT_URL"),
        ("AWS_ENDPOINT_URL", &page, "a page (text/html)"),
        ("AWS_ENDPOINT_URL", &ignoring, "ignores conditional writes"),
        (
            "AWS_ACCESS_KEY_ID",
            "nobody",
            "does not know AWS_ACCESS_KEY_ID",
        ),
        (
            "AWS_SECRET_ACCESS_KEY",
            "secret-wrong",
            "AWS_SECRET_ACCESS_KEY does not fit",
        ),
    ] {
        let mut command = ground.command();
        command
            .env(name, value)
            .args(["replica", "add", "store", &url]);
        refused(&mut command, words);
    }
    for (place, words) in [
        ("s3://none/replica", "no such bucket"),
        ("s3://bucket/x?secret", "without a query"),
        ("s3://bucket/x:y", "without a colon"),
        ("https://host/x", "a web server takes no replicas"),
    ] {
        refused(
            ground.command().args(["replica", "add", "store", place]),
            words,
        );
    }
    assert_eq!(must(&ground, &["replica", "ls", "store"]), "");
    must(&ground, &["replica", "add", "-q", "store", &url]);
    must(&ground, &["replica", "send", "-q", "store"]);
    add(&ground, "source", "two");
    let mut command = ground.command();
    command
        .env("AWS_ENDPOINT_URL", &closed)
        .args(["replica", "send", "store"]);
    refused(&mut command, "see AWS_ENDPOINT_URL");
    // Lost parts of the log are told, and the last state can be restored.
    must(&ground, &["replica", "send", "-q", "store"]);
    let first = ground.s3.file("replica/log/0000000000000001");
    fs::remove_file(&first).expect("remove");
    refused(
        ground
            .command()
            .args(["replica", "send", "-q", "--anew", "store"]),
        "is missing",
    );
    let _ = fs::remove_dir_all(ground.at("restored"));
    let output = ground.weald(["replica", "restore", "-q", &url, "restored"]);
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    assert!(
        output.stderr.contains("begin a new replica"),
        "{}",
        output.stderr
    );
    must(&ground, &["diff", "-q", "restored:two", "source"]);
}

/// Would catch: a manual whose commands for buckets do not work.
#[test]
fn the_manual_of_replicas_in_buckets_works() {
    let ground = with_store();
    fs::create_dir(ground.at("srv")).expect("mkdir");
    fs::rename(ground.at("store"), ground.at("srv/store")).expect("rename");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/replicas.md");
    let manual = fs::read_to_string(path).expect("the manual");
    let (_, section) = manual.split_once("\n## A bucket\n").expect("a section");
    let (section, _) = section.split_once("\n## ").expect("its end");
    let commands: Vec<&str> = section
        .lines()
        .filter(|line| line.starts_with("weald "))
        .collect();
    assert_eq!(commands.len(), 4);
    for line in commands {
        let words = line
            .split(' ')
            .skip(1)
            .map(|word| word.replace("/srv/", "srv/"));
        ground.weald(words).expect(0, "");
    }
    must(&ground, &["diff", "-q", "srv/again:one", "srv/store:one"]);
}

/// Would catch: a probe that calls a good bucket bad, or leaves objects there.
#[test]
fn the_probe_finds_what_the_server_does() {
    let ground = Ground::new(false);
    let url = ground.bucket("probe");
    let text = must(&ground, &["store", "probe", &url]);
    assert!(text.contains("safe for replicas and for stores"), "{text}");
    assert!(!text.contains("NO"), "{text}");
    let json = must(&ground, &["store", "probe", "--json", &url]);
    let found: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(found["replicas"], true);
    assert!(found["request_count"].as_u64() <= Some(150), "{json}");
    assert_eq!(files(&ground.s3.file("probe")).len(), 0);
    refused(
        ground
            .command()
            .args(["store", "probe", &ground.web.url("x")]),
        "a web server takes no objects",
    );
}

/// Starts a server of objects that forgets all of them, and refuses no write.
fn server_without_conditions() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("address");
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            std::thread::spawn(move || answer(client));
        }
    });
    address
}

fn answer(client: TcpStream) {
    let mut reader = BufReader::new(client.try_clone().expect("socket"));
    let mut client = client;
    loop {
        let mut head = Vec::new();
        loop {
            let mut line = String::new();
            match reader.read_line(&mut line) {
                Ok(len) if len > 2 => head.push(line.to_ascii_lowercase()),
                Ok(2) => break,
                _ => return,
            }
        }
        let len = head
            .iter()
            .find_map(|line| line.strip_prefix("content-length:"));
        let len: usize = len.map_or(0, |len| len.trim().parse().expect("a length"));
        std::io::copy(&mut (&mut reader).take(len as u64), &mut std::io::sink()).expect("a body");
        let list = "<ListBucketResult></ListBucketResult>";
        let (status, body) = match head.first() {
            Some(line) if line.contains("list-type=2") => ("200 OK", list),
            Some(line) if line.starts_with("post ") => ("200 OK", "<DeleteResult></DeleteResult>"),
            Some(line) if line.starts_with("put ") => ("200 OK", ""),
            _ => ("404 Not Found", "<Error><Code>NoSuchKey</Code></Error>"),
        };
        let answer = format!(
            "HTTP/1.1 {status}\r\nETag: \"x\"\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        if client.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}
