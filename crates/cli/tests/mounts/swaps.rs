//! Paths that change after the client has opened them: the opened files must be mounted.

use crate::ground::{Ground, noise};
use rustix::process::{Signal, kill_process};
use std::fs;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use weald_daemon::{MountRequest, OpenedRequest};
use weald_testkit::command::refused;
use weald_testkit::mounts::{Server, eventually};

/// Runs `weald mount` with `args`, and runs `swap` after the client's request while the server is
/// stopped.
#[track_caller]
fn mount_while(ground: &Ground, args: &[&str], swap: impl FnOnce()) {
    let server = ground.server();
    kill_process(server, Signal::STOP).expect("stop");
    let mut client = Server::start(&mut ground.command(&[&["mount"], args].concat()));
    eventually("a connection of the client", || {
        assert!(client.is_running(), "{}", client.log());
        has_socket(client.id())
    });
    swap();
    kill_process(server, Signal::CONT).expect("continue");
    let status = client.wait();
    assert!(status.success(), "{}", client.log());
    assert_eq!(ground.server(), server);
}

/// Whether the process has created a socket. A client does so after it has opened image and mount
/// point.
fn has_socket(pid: u32) -> bool {
    let entries = fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten();
    let mut links = entries.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    links.any(|link| link.to_string_lossy().starts_with("socket:"))
}

/// Would catch: a server that opens the image again by its path and serves another one.
#[test]
fn the_image_that_the_client_opened_is_served() {
    let ground = Ground::new();
    ["a", "b", "c"].iter().for_each(|name| ground.build(name));
    fs::copy(ground.at("a"), ground.at("image")).expect("copy");
    fs::create_dir(ground.at("m1")).expect("mkdir");
    ground.mount("c", "m0", &[]);
    mount_while(&ground, &["image", "m1"], || {
        fs::rename(ground.at("b"), ground.at("image")).expect("swap");
    });
    ground.compare("a", "m1");
    let reported = &ground.reports("mount")[1];
    let path = ground.at("image");
    assert_eq!(
        reported["image"].as_str(),
        path.to_str(),
        "shown as it was asked for"
    );
    // Another server can open the image only by its path, which leads to another image now.
    let take_over = ground.weald(&["serve", "--take-over", "--background"]);
    refused(&take_over, "image digest");
    ground.compare("a", "m1");
    ["m0", "m1"].iter().for_each(|dir| ground.umount(dir));
    ground.until_unserved();
}

/// Would catch: a server that opens the mount point again by its path.
#[test]
fn the_mount_point_that_the_client_opened_is_used() {
    let ground = Ground::new();
    ["a", "b"].iter().for_each(|name| ground.build(name));
    fs::create_dir(ground.at("m1")).expect("mkdir");
    ground.mount("b", "m0", &[]);
    mount_while(&ground, &["a", "m1"], || {
        fs::rename(ground.at("m1"), ground.at("m2")).expect("rename");
        fs::create_dir(ground.at("m1")).expect("mkdir");
    });
    ground.compare("a", "m2");
    assert!(!ground.at("m1/text").exists(), "mounted by the path");
    let reported = &ground.reports("mount")[1];
    assert_eq!(reported["dir"].as_str(), ground.at("m2").to_str());
    ["m0", "m2"].iter().for_each(|dir| ground.umount(dir));
    ground.until_unserved();
}

/// Would catch: a server of a single mount that opens the paths of its command line.
#[test]
fn an_isolated_server_gets_the_opened_files() {
    let ground = Ground::new();
    ["a", "b"].iter().for_each(|name| ground.build(name));
    fs::create_dir(ground.at("m1")).expect("mkdir");
    let request = MountRequest::default();
    let opened = OpenedRequest::open(&ground.at("a"), &ground.at("m1"), request).expect("open");
    fs::rename(ground.at("b"), ground.at("a")).expect("swap");
    fs::rename(ground.at("m1"), ground.at("m2")).expect("rename");
    fs::create_dir(ground.at("m1")).expect("mkdir");
    let (ours, theirs) = UnixStream::pair().expect("pair");
    let mut command = ground.command(&["mount", "--foreground", "--ready-stdout", "a", "m1"]);
    command.stdin(OwnedFd::from(theirs)).stdout(Stdio::piped());
    let mut server = command.spawn().expect("starts");
    drop(command);
    opened.send(&ours).expect("sent");
    let mut said = String::new();
    let mut stdout = server.stdout.take().expect("a pipe");
    stdout.read_to_string(&mut said).expect("an answer");
    assert_eq!(said, "ready\n");
    let found = fs::read(ground.at("m2/noise")).expect("mounted on what was opened");
    assert!(found == noise("a"), "another image");
    ground.umount("m2");
    assert!(server.wait().expect("the end").success());
}
