//! How servers start and end, and which server a mount uses.

use crate::ground::{Ground, receive_frame, request, send_frame};
use rustix::process::{Signal, kill_process};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::time::{Duration, Instant};
use weald_testkit::command::{refused, succeeded, text};
use weald_testkit::mounts::{PATIENCE, Server, eventually, finish};

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
    let servers = ground.reports("server");
    assert_eq!(servers.len(), 2, "{servers:?}");
    let mounts = ground.reports("mount");
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

/// Would catch: a parent process that blocks because the server keeps its pipes open, a client that
/// waits for a process id.
#[test]
fn a_server_keeps_nothing_of_its_parent_open() {
    let ground = Ground::new();
    ground.build("a");
    fs::create_dir(ground.at("m1")).expect("mkdir");
    // The output ends when no process has the pipe open, also as another descriptor.
    ground.script("exec 7>&1 8>&2; \"$0\" mount a m1");
    ground.compare("a", "m1");
    ground.umount("m1");
}

#[test]
fn mounts_and_socket_of_a_killed_server_are_cleaned_up() {
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
    let shown = finish(&mut ground.command(&["mounts"])).expect(0).text();
    assert!(shown.contains("m1") && shown.contains("m2"), "{shown}");
    ground.umount("m1");
    ground.mount("a", "m1", &[]);
    ground.umount("m2");
    ground.compare("a", "m1");
    ground.umount("m1");
}

#[test]
fn simultaneous_clients_start_one_server() {
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
    assert_eq!(ground.reports("mount").len(), dirs.len());
    for dir in &dirs {
        ground.compare(if dir.len() > 2 { "a" } else { "b" }, dir);
        ground.umount(dir);
    }
    ground.until_unserved();
}

#[test]
fn the_runtime_directory_may_have_a_long_path_or_be_unusable() {
    let mut ground = Ground::new();
    ground.build("a");
    ground.run = ground.at(&"x".repeat(150)).join("y");
    ground.mount("a", "m1", &[]);
    ground.mount("a", "m2", &["--isolated"]);
    assert_eq!(ground.reports("mount").len(), 2);
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
    ground.script(script);
    let before = ground.reports("server").remove(0)["descriptor_count"]
        .as_u64()
        .expect("a number");
    for i in 1..=8 {
        ground.compare("a", &format!("m{i}"));
    }
    (2..=8).for_each(|i| ground.umount(&format!("m{i}")));
    let after = ground.reports("server").remove(0)["descriptor_count"]
        .as_u64()
        .expect("a number");
    assert!(after < before && before < 256, "{after} of {before}");
    ground.umount("m1");
}

#[test]
fn helpers_use_a_shared_server_but_start_none() {
    let ground = Ground::new();
    ground.build("a");
    let help = |dir: &str| {
        fs::create_dir_all(ground.at(dir)).expect("mkdir");
        let mut command = ground.command(&["a", dir, "-o", "rw,nofail"]);
        succeeded(&command.arg0("mount.weald").output().expect("mount.weald"));
        ground.compare("a", dir);
    };
    help("m1");
    assert_eq!(ground.reports("server")[0]["is_shared"], false);
    ground.umount("m1");
    ground.mount("a", "m1", &[]);
    help("m2");
    ground.server();
    ["m1", "m2"].iter().for_each(|dir| ground.umount(dir));
}

#[test]
fn a_lasting_server_stays_without_mounts() {
    let ground = Ground::new();
    ground.build("a");
    succeeded(&ground.weald(&["serve", "--background", "--cache", "64M"]));
    let server = ground.server();
    assert_eq!(ground.reports("server")[0]["cache"]["len_max"], 64 << 20);
    refused(&ground.weald(&["serve"]), "a server runs already");
    ground.mount("a", "m1", &[]);
    ground.umount("m1");
    let systemd = UnixDatagram::bind(ground.at("notify")).expect("bind");
    systemd.set_read_timeout(Some(PATIENCE)).expect("timeout");
    let mut command = ground.command(&["serve", "--background", "--take-over"]);
    command.env("NOTIFY_SOCKET", ground.at("notify"));
    succeeded(&command.output().expect("weald"));
    let mut reported = [0; 100];
    let len = systemd.recv(&mut reported).expect("a word for systemd");
    let pid = ground.server();
    assert_ne!(pid, server);
    let expected = format!("READY=1\nMAINPID={}\n", pid.as_raw_nonzero());
    assert_eq!(String::from_utf8_lossy(&reported[..len]), expected);
    assert_eq!(ground.reports("server")[0]["cache"]["len_max"], 64 << 20);
    ground.mount("a", "m1", &[]);
    kill_process(ground.server(), Signal::TERM).expect("kill");
    ground.until_unserved();
    assert!(!ground.at("m1/text").exists());
}

#[test]
fn umount_retries_a_busy_mount() {
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

/// Would catch: a second signal within milliseconds, as `timeout` sends it, that detaches the mount
/// from its users.
#[test]
fn two_simultaneous_signals_are_one_request() {
    let ground = Ground::new();
    ground.build("a");
    // An attempt in which the test itself sent the second signal too late proves nothing.
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
        // The server has handled the second signal if it has ended or answered a number of
        // requests.
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

/// Would catch: a size that is ignored, or an error about a server that is about to end.
#[test]
fn a_lasting_server_replaces_only_an_idle_one() {
    let ground = Ground::new();
    ground.build("a");
    ground.mount("a", "m1", &[]);
    let words = ["serve", "--background", "--cache", "64M"];
    refused(&ground.weald(&words), "not of the 64 MiB asked for");
    ground.compare("a", "m1");
    ground.umount("m1");
    succeeded(&ground.weald(&words));
    let server = ground.server();
    assert_eq!(ground.reports("server")[0]["cache"]["len_max"], 64 << 20);
    let taker = ground.connect();
    send_frame(&taker, &request("\"TakeOver\""));
    assert_eq!(receive_frame(&taker)["Server"]["ends_when_idle"], false);
    drop(taker);
    refused(&ground.weald(&words), "a server runs already");
    let other = ground.weald(&["serve", "--cache", "32M"]);
    refused(&other, "a cache of 64 MiB, not of the 32 MiB asked for");
    assert_eq!(ground.server(), server);
    kill_process(server, Signal::TERM).expect("kill");
    ground.until_unserved();
}

/// Would catch: a unit of systemd whose server was killed and that starts an empty one: the mounts
/// stay dead. A mount that was unmounted meanwhile stays unmounted.
#[test]
fn a_lasting_server_that_was_killed_brings_its_mounts_back() {
    let ground = Ground::new();
    ["a", "b"].iter().for_each(|name| ground.build(name));
    succeeded(&ground.weald(&["serve", "--background"]));
    for (name, dir) in [("a", "m1"), ("b", "m2"), ("a", "m3")] {
        ground.mount(name, dir, &[]);
    }
    ground.umount("m3");
    kill_process(ground.server(), Signal::KILL).expect("kill");
    ground.until_unserved();
    ground.umount("m2");
    let said = finish(&mut ground.command(&["serve", "--background"])).expect(0);
    assert!(said.stderr.contains("m1: mounted again"), "{}", said.stderr);
    ground.compare("a", "m1");
    let mounts = ground.reports("mount");
    assert_eq!(mounts.len(), 1, "{mounts:?}");
    ground.umount("m1");
    // Nothing is left to bring back.
    kill_process(ground.server(), Signal::KILL).expect("kill");
    ground.until_unserved();
    succeeded(&ground.weald(&["serve", "--background"]));
    assert!(ground.reports("mount").is_empty());
    kill_process(ground.server(), Signal::TERM).expect("ended");
    ground.until_unserved();
}

/// Would catch: the same image twice on one directory, of which an unmount takes one away.
#[test]
fn an_image_is_not_mounted_twice_on_one_directory() {
    let ground = Ground::new();
    ground.build("a");
    ground.build("b");
    ground.mount("a", "m1", &[]);
    for isolated in [&[][..], &["--isolated"]] {
        let mut words = vec!["mount"];
        words.extend(isolated);
        words.extend(["a", "m1"]);
        refused(&ground.weald(&words), "already: unmount it there first");
    }
    ground.mount("b", "m1", &[]);
    ground.compare("b", "m1");
    ground.umount("m1");
    ground.compare("a", "m1");
    ground.umount("m1");
}
