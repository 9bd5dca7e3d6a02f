//! Requests to servers: what they answer, report and refuse.

use crate::ground::{Ground, receive_frame, request, send_frame};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use weald_daemon::PROTOCOL;
use weald_testkit::command::{refused, succeeded, text};
use weald_testkit::mounts::{Server, eventually};

#[test]
fn a_refused_mount_does_not_affect_others() {
    let ground = Ground::new();
    ground.build("a");
    ground.mount("a", "m1", &[]);
    fs::create_dir(ground.at("m2")).expect("mkdir");
    fs::write(ground.at("text"), "garbage ".repeat(5000)).expect("write");
    let digest = "0".repeat(64);
    let table: [(&[&str], &str); 8] = [
        (&["missing", "m2"], "missing: No such file"),
        (&["a", "missing"], "missing: No such file"),
        (&["text", "m2"], "text: not a Weald image"),
        (&["a", "text"], "not a directory"),
        (&["a", "m2", "-o", "fast"], "option 'fast'"),
        (
            &["a", "m2", "-o", &format!("digest={digest}")],
            "image digest: expected 000000000000",
        ),
        (
            &["a", "m2", "--prefetch", "missing"],
            "missing: No such file",
        ),
        (
            &["a", "m2", "--record", "missing/hot"],
            "missing: No such file",
        ),
    ];
    for (args, reason) in table {
        refused(&ground.weald(&[&["mount"], args].concat()), reason);
    }
    ground.server();
    assert_eq!(ground.reports("mount").len(), 1);
    ground.compare("a", "m1");
    ground.umount("m1");
}

#[test]
fn recorded_hotness_can_be_prefetched() {
    let ground = Ground::new();
    ground.build("a");
    ground.mount("a", "m1", &["--record", "hot", "--log", "log"]);
    ground.umount("m1");
    let hot = fs::read_to_string(ground.at("hot")).expect("written when umount returns");
    assert!(
        hot.starts_with("weald hotness 1\n") && hot.contains("noise"),
        "{hot}"
    );
    ground.mount("a", "m1", &["--prefetch", "hot"]);
    ground.mount("a", "m2", &["--prefetch", "all", "--isolated"]);
    ground.umount("m1");
    ground.umount("m2");
    refused(
        &ground.weald(&["mount", "a", "m1", "--prefetch", "log"]),
        "log",
    );
    ground.mount("a", "m1", &["--trace", "trace"]);
    ground.umount("m1");
    let trace = fs::read(ground.at("trace")).expect("written");
    serde_json::from_slice::<Value>(&trace).expect("a trace is JSON when umount returns");
    assert_eq!(fs::read_to_string(ground.at("log")).expect("log"), "");
}

#[test]
fn servers_report_their_activity() {
    let ground = Ground::new();
    ground.build("a");
    succeeded(&ground.weald(&["mounts"]));
    ground.mount("a", "m\"1", &[]);
    let mount = ground.reports("mount").remove(0);
    for key in ["request_count", "read_len", "started", "generation"] {
        assert!(mount[key].as_u64() > Some(0), "{key}: {mount}");
    }
    let server = ground.reports("server").remove(0);
    for key in ["pid", "resident_len", "descriptor_count", "mount_count"] {
        assert!(server[key].as_u64() > Some(0), "{key}: {server}");
    }
    let table = text(&ground.weald(&["mounts", "--latency"]));
    assert!(
        table.contains("m\"1") && table.contains("P99") && table.contains("(shared, "),
        "{table}"
    );
    let exposed = text(&ground.weald(&["mounts", "--prometheus"]));
    let mut typed = BTreeSet::new();
    for line in exposed.lines() {
        match line
            .strip_prefix("# ")
            .map(|comment| comment.split(' ').collect::<Vec<_>>())
            .as_deref()
        {
            Some(["TYPE", name, _]) => assert!(typed.insert((*name).to_owned()), "{name} twice"),
            Some(["HELP", _, ..]) => {}
            Some(other) => panic!("{other:?}"),
            None => {
                let (sample, value) = line.rsplit_once(' ').expect("a value");
                let (name, labels) = sample.split_once('{').expect("labels");
                let ends = ["_bucket", "_sum", "_count", ""].map(|end| name.strip_suffix(end));
                assert!(
                    ends.iter().flatten().any(|name| typed.contains(*name)),
                    "{line}"
                );
                assert!(
                    labels.ends_with("\"}") && value.parse::<f64>().is_ok(),
                    "{line}"
                );
            }
        }
    }
    assert!(exposed.contains(r#"m\"1""#), "{exposed}");
    let mut command = ground.command(&["mounts", "--watch"]);
    let child = Server::start(&mut command);
    eventually("a second look", || {
        let said = child.log();
        said.lines()
            .filter(|line| line.starts_with("server "))
            .count()
            > 1
    });
    drop(child);
    ground.umount("m\"1");
}

/// Would catch: clients that delay other clients, and requests that break the server.
#[test]
fn slow_and_malformed_clients_delay_no_one() {
    let ground = Ground::new();
    ground.build("a");
    ground.mount("a", "m1", &[]);
    let mut slow = ground.connect();
    slow.write_all(&[200, 0]).expect("half a length");
    let other = ground.connect();
    send_frame(&other, r#"{"protocol":99,"request":"Dance"}"#);
    let refusal = receive_frame(&other).to_string();
    assert!(
        refusal.contains(&format!("protocol {PROTOCOL},")) && refusal.contains("then mount again"),
        "{refusal}"
    );
    let wrong = request(r#"{"Mount":7}"#);
    for garbage in ["", "{}", "[[[[", &wrong] {
        let stream = ground.connect();
        send_frame(&stream, garbage);
        // The server refuses the message or closes the connection.
        let _ = (&stream).read(&mut [0; 100]);
    }
    ground.mount("a", "m2", &[]);
    ["m1", "m2"].iter().for_each(|dir| ground.umount(dir));
}
