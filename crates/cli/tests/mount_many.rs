//! A hundred images under one server: everything that is in them is read by several readers at
//! once, and nothing is left of them afterwards. Runs as root, needs `/dev/fuse`.
#![allow(missing_docs)]

use rustix::fs::Advice;
use rustix::process::{Pid, Signal};
use serde_json::Value;
use std::fs::{self, File};
use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use weald_testkit::Rng;
use weald_testkit::command::weald_path;
use weald_testkit::mounts::{Ground, Server, eventually};

const IMAGE_COUNT: usize = 100;
const READER_COUNT: usize = 8;

/// Files of an image; the one with index `i` has up to `FILE_LEN` × (`i` + 1) bytes.
const FILE_COUNT: usize = 4;
const FILE_LEN: u64 = 80_000;

/// The cache of the server, less than what the images hold in all.
const CACHE_LEN: u64 = 16 << 20;

/// What a server may hold beside its cache: code, stacks, buffers of requests, metadata of a
/// hundred images.
const MORE_LEN_MAX: u64 = 512 << 20;

/// Descriptors that the server may have more afterwards: connections of those who ask.
const DESCRIPTORS_MORE: u64 = 8;

/// An image, where it is mounted, and the digests of its files.
struct Mounted {
    image: PathBuf,
    dir: PathBuf,
    digests: Vec<blake3::Hash>,
}

/// Makes image `index`: no two hold the same bytes, and half of each compresses.
fn make(ground: &Ground, index: usize) -> Mounted {
    let (source, mut rng) = (ground.dir("source"), Rng::new(index as u64));
    let digests = (0..FILE_COUNT).map(|file| {
        let len = 1 + rng.below(FILE_LEN * (file as u64 + 1)) as usize;
        let mut bytes = rng.bytes(len);
        if file % 2 == 0 {
            bytes.iter_mut().for_each(|byte| *byte = b'a' + *byte % 8);
        }
        fs::write(source.join(file.to_string()), &bytes).expect("write");
        blake3::hash(&bytes)
    });
    let digests = digests.collect();
    let image = ground.image(&index.to_string());
    ground.build(&source, &image, &["--level", "3"]);
    Mounted {
        image,
        dir: ground.dir(&format!("m/{index}")),
        digests,
    }
}

/// A server for all mounts of the ground, with a soft limit of descriptors as shells set it.
fn serve(ground: &Ground) -> Server {
    let script = r#"ulimit -S -n 1024; exec "$0" serve --cache "$1""#;
    let mut command = Command::new("bash");
    command
        .args(["-c", script])
        .arg(weald_path())
        .arg(CACHE_LEN.to_string())
        .env("WEALD_RUNTIME_DIR", ground.runtime_dir())
        .stdin(Stdio::null());
    let mut server = Server::start(&mut command);
    eventually("the server", || {
        assert!(server.is_running(), "{}", server.log());
        !reports(ground, "server").is_empty()
    });
    server
}

/// What `weald mounts --json` says of servers or of mounts.
fn reports(ground: &Ground, kind: &str) -> Vec<Value> {
    let said = ground.weald(["mounts", "--json"]).expect(0).text();
    let lines = said
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    lines.filter(|line| line["type"] == kind).collect()
}

/// A number that the one server says of itself.
#[track_caller]
fn number(ground: &Ground, key: &str) -> u64 {
    let servers = reports(ground, "server");
    assert_eq!(servers.len(), 1, "{servers:?}");
    servers[0][key].as_u64().expect(key)
}

/// Reads everything once, by several readers, the kernel's own copy dropped before.
fn read_all(all: &[Mounted]) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..READER_COUNT {
            scope.spawn(|| {
                while let Some(mounted) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                    for (file, digest) in mounted.digests.iter().enumerate() {
                        let path = mounted.dir.join(file.to_string());
                        let (mut file, mut bytes) = (File::open(&path).expect("open"), Vec::new());
                        rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).expect("fadvise");
                        file.read_to_end(&mut bytes).expect("read");
                        assert!(
                            blake3::hash(&bytes) == *digest,
                            "{} has other bytes",
                            path.display()
                        );
                    }
                }
            });
        }
    });
}

// Would catch images that mix in the shared cache, a budget that counts each image apart, and
// whatever a mount leaves in its server.
#[test]
fn a_hundred_images_share_a_server_and_leave_nothing_in_it() {
    let ground = Ground::new();
    let all: Vec<Mounted> = (0..IMAGE_COUNT).map(|index| make(&ground, index)).collect();
    let mut server = serve(&ground);
    let mount = |mounted: &Mounted| ground.mount(&mounted.image, &mounted.dir, &[]);
    mount(&all[0]);
    read_all(&all[..1]);
    let descriptors = number(&ground, "descriptor_count");
    for round in 0..2 {
        all[1..].iter().for_each(mount);
        assert_eq!(number(&ground, "mount_count"), IMAGE_COUNT as u64);
        for _ in 0..2 {
            read_all(&all);
        }
        let resident = number(&ground, "resident_len");
        assert!(resident <= CACHE_LEN + MORE_LEN_MAX, "{resident} bytes");
        for mounted in &all[1..] {
            ground.umount(&mounted.dir);
        }
        assert_eq!(number(&ground, "mount_count"), 1, "round {round}");
        // A thread that has served may need a moment to let go.
        eventually("the end of descriptors", || {
            number(&ground, "descriptor_count") <= descriptors + DESCRIPTORS_MORE
        });
        read_all(&all[..1]);
    }
    ground.umount(&all[0].dir);
    let pid = Pid::from_raw(server.id() as i32).expect("a process");
    rustix::process::kill_process(pid, Signal::TERM).expect("signal");
    let status = server.wait();
    assert!(status.success(), "{status}: {}", server.log());
    assert!(!server.log().contains("panicked"), "{}", server.log());
    assert_eq!(reports(&ground, "server").len(), 0);
}
