//! How servers begin and end, and who joins which.

use crate::ground::{Ground, hear, say};
use rustix::process::{Signal, kill_process};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use weald_testkit::command::{refused, succeeded, text, weald_bin};
use weald_testkit::mounts::{PATIENCE, Server, eventually};

#[test]
fn mounts_share_a_server_that_ends_with_the_last() {
    let ground = Ground::new();
    ["a", "b"].iter().for_each(|name| ground.build(name));
    ground.mount("a", "m1", &[]);
    let server = ground.server();
    ground.mount("b", "m2", &[]);
    ground.mount("a", "m3", &["-o", "cachesize=9M"]);
    assert_eq!(ground.server(), server);
    ground.mount("b", "m4", &["--isolated"]);
    let servers = ground.told("server");
    assert_eq!(servers.len(), 2, "{servers:?}");
    let mounts = ground.told("mount");
    let dirs: Vec<_> = mounts
        .iter()
        .map(|mount| Path::new(mount["dir"].as_str().expect("text")))
        .collect();
    assert_eq!(dirs, ["m1", "m2", "m3", "m4"].map(|name| ground.at(name)));
    assert_eq!(mounts[0]["image_digest"], mounts[2]["image_digest"]);
    assert_ne!(mounts[0]["server_pid"], mounts[3]["server_pid"]);
    assert_eq!(mounts[2]["cache"]["len_max"], 9 << 20, "a cache of its own");
    assert_eq!(
        mounts[0]["cache"]["len_max"],
        servers[0]["cache"]["len_max"]
    );
    ["m1", "m3", "m4"].iter().for_each(|dir| ground.umount(dir));
    assert_eq!(ground.server(), server);
    ground.compare("b", "m2");
    ground.umount("m2");
    ground.until_unserved();
    ground.mount("a", "m1", &[]);
    assert_ne!(ground.server(), server);
    ground.umount("m1");
    ground.until_unserved();
}

/// Would catch: a starter that hangs because the server keeps its pipes, a client that waits for a
/// process by its number.
#[test]
fn a_server_holds_nothing_of_its_starter() {
    let ground = Ground::new();
    ground.build("a");
    fs::create_dir(ground.at("m1")).expect("mkdir");
    let mut shell = Command::new("bash");
    shell
        .args(["-c", "exec 7>&1 8>&2; \"$0\" mount a m1", weald_bin()])
        .current_dir(ground.path());
    // Its output ends when nobody holds the pipe any more, also under other numbers.
    succeeded(
        &shell
            .env("WEALD_RUNTIME_DIR", &ground.run)
            .output()
            .expect("bash"),
    );
    ground.compare("a", "m1");
    ground.umount("m1");
}

#[test]
fn a_killed_server_leaves_mounts_that_umount_clears_and_a_socket_that_is_replaced() {
    let ground = Ground::new();
    ground.build("a");
    ground.mount("a", "m1", &[]);
    ground.mount("a", "m2", &[]);
    kill_process(ground.server(), Signal::KILL).expect("kill");
    ground.until_unserved();
    for dir in ["m1", "m2"] {
        let error = fs::metadata(ground.at(dir).join("new")).expect_err("nobody serves it");
        assert!(matches!(error.raw_os_error(), Some(103 | 107)), "{error}");
    }
    assert_eq!(ground.sockets().len(), 1, "left behind");
    succeeded(&ground.weald(&["mounts"]));
    ground.umount("m1");
    ground.mount("a", "m1", &[]);
    ground.umount("m2");
    ground.compare("a", "m1");
    ground.umount("m1");
}

#[test]
fn many_clients_at_once_end_with_one_server() {
    let ground = Ground::new();
    ["a", "b"].iter().for_each(|name| ground.build(name));
    let dirs: Vec<String> = (0..20).map(|i| format!("m{i}")).collect();
    let start = |dir: &String| {
        fs::create_dir(ground.at(dir)).expect("mkdir");
        let name = if dir.len() > 2 { "a" } else { "b" };
        let mut command = ground.command(&["mount", name, dir]);
        Server::start(&mut command)
    };
    let clients: Vec<Server> = dirs.iter().map(start).collect();
    for mut client in clients {
        assert_eq!(client.wait().code(), Some(0), "{}", client.log());
    }
    ground.server();
    assert_eq!(ground.told("mount").len(), dirs.len());
    for dir in &dirs {
        ground.compare(if dir.len() > 2 { "a" } else { "b" }, dir);
        ground.umount(dir);
    }
    ground.until_unserved();
}

#[test]
fn a_place_for_servers_may_have_a_long_path_or_be_no_place() {
    let mut ground = Ground::new();
    ground.build("a");
    ground.run = ground.at(&"x".repeat(150)).join("y");
    ground.mount("a", "m1", &[]);
    ground.mount("a", "m2", &["--isolated"]);
    assert_eq!(ground.told("mount").len(), 2);
    ["m1", "m2"].iter().for_each(|dir| ground.umount(dir));
    ground.run = ground.at("open");
    fs::create_dir(&ground.run).expect("mkdir");
    fs::set_permissions(&ground.run, PermissionsExt::from_mode(0o777)).expect("chmod");
    refused(&ground.weald(&["mounts"]), "mode 0777");
    let warned = ground.weald(&["mount", "a", "m1"]);
    assert_eq!(warned.status.code(), Some(0));
    assert!(
        text(&warned).contains("a server of its own"),
        "{}",
        text(&warned)
    );
    ground.compare("a", "m1");
    ground.umount("m1");
}

#[test]
fn few_descriptors_are_enough() {
    let ground = Ground::new();
    ["a", "b"].iter().for_each(|name| ground.build(name));
    let script =
        "ulimit -n 256; for i in 1 2 3 4 5 6 7 8; do mkdir m$i; \"$0\" mount a m$i || exit; done";
    let mut shell = Command::new("bash");
    shell
        .args(["-c", script, weald_bin()])
        .current_dir(ground.path());
    succeeded(
        &shell
            .env("WEALD_RUNTIME_DIR", &ground.run)
            .output()
            .expect("bash"),
    );
    let before = ground.told("server").remove(0)["descriptor_count"]
        .as_u64()
        .expect("a number");
    for i in 1..=8 {
        ground.compare("a", &format!("m{i}"));
    }
    (2..=8).for_each(|i| ground.umount(&format!("m{i}")));
    let after = ground.told("server").remove(0)["descriptor_count"]
        .as_u64()
        .expect("a number");
    assert!(after < before && before < 256, "{after} of {before}");
    ground.umount("m1");
}

#[test]
fn helpers_join_a_server_but_start_none_that_others_join() {
    let ground = Ground::new();
    ground.build("a");
    let help = |dir: &str| {
        fs::create_dir_all(ground.at(dir)).expect("mkdir");
        let mut command = ground.command(&["a", dir, "-o", "rw,nofail"]);
        succeeded(&command.arg0("mount.weald").output().expect("mount.weald"));
        ground.compare("a", dir);
    };
    help("m1");
    assert_eq!(ground.told("server")[0]["is_shared"], false);
    ground.umount("m1");
    ground.mount("a", "m1", &[]);
    help("m2");
    ground.server();
    ["m1", "m2"].iter().for_each(|dir| ground.umount(dir));
}

#[test]
fn a_server_that_was_asked_for_stays_without_mounts() {
    let ground = Ground::new();
    ground.build("a");
    succeeded(&ground.weald(&["serve", "--background", "--cache", "64M"]));
    let server = ground.server();
    assert_eq!(ground.told("server")[0]["cache"]["len_max"], 64 << 20);
    refused(&ground.weald(&["serve"]), "a server runs already");
    ground.mount("a", "m1", &[]);
    ground.umount("m1");
    let systemd = UnixDatagram::bind(ground.at("notify")).expect("bind");
    systemd.set_read_timeout(Some(PATIENCE)).expect("timeout");
    let mut command = ground.command(&["serve", "--background", "--take-over"]);
    command.env("NOTIFY_SOCKET", ground.at("notify"));
    succeeded(&command.output().expect("weald"));
    let mut told = [0; 100];
    let len = systemd.recv(&mut told).expect("a word for systemd");
    let pid = ground.server();
    assert_ne!(pid, server);
    let expected = format!("READY=1\nMAINPID={}\n", pid.as_raw_nonzero());
    assert_eq!(String::from_utf8_lossy(&told[..len]), expected);
    assert_eq!(ground.told("server")[0]["cache"]["len_max"], 64 << 20);
    ground.mount("a", "m1", &[]);
    kill_process(ground.server(), Signal::TERM).expect("kill");
    ground.until_unserved();
    assert!(!ground.at("m1/text").exists());
}

#[test]
fn umount_tries_a_mount_in_use_again() {
    let ground = Ground::new();
    ground.build("a");
    ground.mount("a", "m1", &[]);
    let file = File::open(ground.at("m1/text")).expect("open");
    refused(&ground.weald(&["umount", "m1"]), "m1: it is in use");
    let mut command = ground.command(&["umount", "m1"]);
    let mut child = Server::start(&mut command);
    drop(file);
    assert_eq!(child.wait().code(), Some(0), "{}", child.log());
}

/// Would catch: a second signal within milliseconds, as `timeout` sends it, that takes the mount
/// away from its users.
#[test]
fn two_signals_at_once_are_one_request() {
    let ground = Ground::new();
    ground.build("a");
    // An attempt in which this test itself was too slow for "at once" shows nothing.
    let is_shown = (0..20).any(|_| {
        ground.mount("a", "m1", &[]);
        let server = ground.server();
        let file = File::open(ground.at("m1/text")).expect("open");
        let start = Instant::now();
        kill_process(server, Signal::TERM).expect("kill");
        eventually("the unmount", || !ground.at("m1/text").exists());
        kill_process(server, Signal::TERM).expect("kill");
        let is_at_once = start.elapsed() < Duration::from_millis(300);
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("fadvise");
        // The server has looked at the second signal when it ends or has answered some requests.
        let is_served = (0..100).all(|_| {
            let _ = rustix::fs::fstatvfs(&file);
            let mut word = [0; 2];
            rustix::fs::fstatvfs(&file).is_ok() && file.read_exact_at(&mut word, 0).is_ok()
        });
        drop(file);
        ground.until_unserved();
        if is_at_once {
            assert!(is_served, "the mount was lost");
        }
        is_at_once
    });
    assert!(is_shown, "never fast enough");
}

/// Would catch: a size that is ignored, or a complaint about a server that is about to end.
#[test]
fn a_server_that_is_asked_for_replaces_an_idle_one_and_no_other() {
    let ground = Ground::new();
    ground.build("a");
    ground.mount("a", "m1", &[]);
    let words = ["serve", "--background", "--cache", "64M"];
    refused(&ground.weald(&words), "not of the 64 MiB asked for");
    ground.compare("a", "m1");
    ground.umount("m1");
    succeeded(&ground.weald(&words));
    let server = ground.server();
    assert_eq!(ground.told("server")[0]["cache"]["len_max"], 64 << 20);
    let taker = ground.connect();
    say(&taker, r#"{"protocol":3,"request":"TakeOver"}"#);
    assert_eq!(hear(&taker)["Server"]["ends_when_idle"], false);
    drop(taker);
    refused(&ground.weald(&words), "a server runs already");
    let other = ground.weald(&["serve", "--cache", "32M"]);
    refused(&other, "a cache of 64 MiB, not of the 32 MiB asked for");
    assert_eq!(ground.server(), server);
    kill_process(server, Signal::TERM).expect("kill");
    ground.until_unserved();
}
