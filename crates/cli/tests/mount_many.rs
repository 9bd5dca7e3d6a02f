//! A hundred images in one server: several readers read all files at the same time, and the server
//! must release everything afterwards. Needs root and `/dev/fuse`.
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

/// Files per image; the file with index `i` has up to `FILE_LEN` × (`i` + 1) bytes.
const FILE_COUNT: usize = 4;
const FILE_LEN: u64 = 80_000;

/// Cache of the server in bytes, smaller than the contents of all images.
const CACHE_LEN: u64 = 16 << 20;

/// Memory of a server besides its cache, in bytes: code, stacks, request buffers, metadata of a
/// hundred images.
const MORE_LEN_MAX: u64 = 512 << 20;

/// Descriptors that the server may have in addition afterwards: connections of clients.
const DESCRIPTORS_MORE: u64 = 8;

/// An image, its mount point, and the digests of its files.
struct Mounted {
    image: PathBuf,
    dir: PathBuf,
    digests: Vec<blake3::Hash>,
}

/// Makes image `index`. No two images share data, and half of the data compresses.
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

/// Starts a server for all mounts of the ground, with the soft descriptor limit that shells set.
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

/// Objects of type `kind` from `weald mounts --json`.
fn reports(ground: &Ground, kind: &str) -> Vec<Value> {
    let said = ground.weald(["mounts", "--json"]).expect(0).text();
    let lines = said
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    lines.filter(|line| line["type"] == kind).collect()
}

/// A figure from the report of the server.
#[track_caller]
fn number(ground: &Ground, key: &str) -> u64 {
    let servers = reports(ground, "server");
    assert_eq!(servers.len(), 1, "{servers:?}");
    servers[0][key].as_u64().expect(key)
}

/// Reads everything once with several readers, without the page cache.
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

// Would catch data of one image under another, a cache limit per image, and resources that a mount
// leaves in its server.
#[test]
fn a_server_of_a_hundred_images_releases_all_resources() {
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
        // A worker thread may need a moment to release its descriptors.
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
