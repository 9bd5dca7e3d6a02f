//! A directory with a small image and a large one, and servers that show them.

use crate::support::{Bench, Output, run};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use weald_testkit::servers::{BUCKET, S3Server, WebServer};

/// Bytes of the large file in the image `large`: more than the chunks that stay in memory.
pub const LARGE_LEN: usize = 56 << 20;

pub struct Ground {
    pub bench: Bench,
    pub web: WebServer,
    pub s3: S3Server,
}

impl Ground {
    /// The images `small` and, if asked for, `large`, as files and on both servers.
    pub fn new(with_large: bool) -> Self {
        let bench = Bench::new();
        bench.make_source();
        bench
            .weald(["build", "--quiet", "source", "small"])
            .expect(0, "");
        fs::create_dir(bench.at("web")).expect("mkdir");
        let web = WebServer::start(&bench.at("web"));
        let s3 = S3Server::start(&bench.at("s3"));
        let ground = Self { bench, web, s3 };
        if with_large {
            fs::create_dir(ground.at("big")).expect("mkdir");
            fs::write(ground.at("big/noise"), noise(LARGE_LEN)).expect("write");
            for no in 0..200 {
                let text = format!("text {no}\n").repeat(3000 + no);
                fs::write(ground.at("big").join(format!("text{no}")), text).expect("write");
            }
            ground
                .weald(["build", "-q", "-l", "1", "big", "large"])
                .expect(0, "");
            ground.serve("large");
        }
        ground.serve("small");
        ground
    }

    /// Puts the image file `name` on both servers.
    pub fn serve(&self, name: &str) {
        fs::copy(self.at(name), self.web.file(name)).expect("copy");
        // In place of an object, which versitygw keeps with attributes.
        self.weald(["publish", "-q", "-f", name, &self.bucket(name)])
            .expect(0, "");
    }

    pub fn at(&self, name: impl AsRef<Path>) -> PathBuf {
        self.bench.at(name)
    }

    /// The URL of an object of the bucket.
    pub fn bucket(&self, name: &str) -> String {
        format!("s3://{BUCKET}/{name}")
    }

    pub fn command(&self) -> Command {
        let mut command = self.bench.command();
        command
            .env("WEALD_RUNTIME_DIR", self.at("run"))
            .env("HOME", self.at("home"))
            .env_remove("WEALD_URL_CACHE")
            .envs(self.s3.environment());
        command
    }

    pub fn weald<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Output {
        run(self.command().args(args))
    }

    /// Mounts the URL on the new directory `mnt`.
    #[track_caller]
    pub fn mount(&self, url: &str, args: &[&str]) -> Mounted<'_> {
        fs::create_dir_all(self.at("mnt")).expect("mkdir");
        self.weald([&["mount"], args, &[url, "mnt"]].concat())
            .expect(0, "");
        Mounted(self)
    }
}

/// A mount, which ends when this is dropped.
pub struct Mounted<'a>(&'a Ground);

impl Mounted<'_> {
    /// A file of the mount.
    pub fn at(&self, name: &str) -> PathBuf {
        self.0.at("mnt").join(name)
    }

    /// Unmounts; returns how long it took.
    #[track_caller]
    pub fn end(self) -> Duration {
        let start = Instant::now();
        self.0.weald(["umount", "mnt"]).expect(0, "");
        start.elapsed()
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = self.0.weald(["umount", "--lazy", "mnt"]);
    }
}

/// Bytes that no codec makes smaller.
pub fn noise(len: usize) -> Vec<u8> {
    let mut random = weald_testkit::Rng::new(49);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&random.next_u64().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// All files below `dir`.
pub fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path);
        }
    }
    found
}
