//! Images, mount points and servers for the tests, and the messages to servers.

use rustix::process::{Pid, Signal, getpid, kill_process, set_child_subreaper};
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use weald_builder::{BuildOptions, Silent, build_image};
use weald_daemon::PROTOCOL;
use weald_testkit::command::{succeeded, text, weald_bin};
use weald_testkit::mounts::{self, PATIENCE, eventually};

/// A ground with its own runtime directory and images with distinct contents.
pub struct Ground {
    ground: mounts::Ground,
    /// Runtime directory: the sockets of its servers.
    pub run: PathBuf,
}

impl Ground {
    pub fn new() -> Self {
        set_child_subreaper(Some(getpid())).expect("subreaper");
        let ground = mounts::Ground::new();
        let run = ground.runtime_dir();
        Self { ground, run }
    }

    pub fn path(&self) -> &Path {
        self.ground.path()
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.ground.at(name)
    }

    /// Builds the image `name` from `NAME.source`; no other image has its `noise` and `text`.
    pub fn build(&self, name: &str) {
        let source = self.at(&format!("{name}.source"));
        fs::create_dir_all(&source).expect("mkdir");
        fs::write(source.join("noise"), noise(name)).expect("write");
        fs::write(source.join("text"), format!("{name}\n").repeat(5000)).expect("write");
        let options = BuildOptions::level(1).expect("level");
        build_image(&source, &self.at(name), false, &options, &Silent).expect("build");
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = self.ground.command();
        command
            .args(args)
            .env("WEALD_RUNTIME_DIR", &self.run)
            .env("LC_ALL", "C");
        command
    }

    /// Runs a script in the directory, which must succeed; `$0` is the binary.
    #[track_caller]
    pub fn script(&self, script: &str) {
        let mut shell = Command::new("bash");
        shell
            .args(["-c", script, weald_bin()])
            .current_dir(self.path())
            .env("WEALD_RUNTIME_DIR", &self.run);
        succeeded(&shell.output().expect("bash"));
    }

    /// Runs weald until it exits and closes its output pipe.
    pub fn weald(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("weald")
    }

    /// Mounts the image `name` on the new directory `dir`.
    #[track_caller]
    pub fn mount(&self, name: &str, dir: &str, args: &[&str]) {
        fs::create_dir_all(self.at(dir)).expect("mkdir");
        succeeded(&self.weald(&[&["mount"], args, &[name, dir]].concat()));
        self.compare(name, dir);
    }

    #[track_caller]
    pub fn umount(&self, dir: &str) {
        succeeded(&self.weald(&["umount", dir]));
    }

    /// Compares the mount on `dir` with the source of the image `name`.
    #[track_caller]
    pub fn compare(&self, name: &str, dir: &str) {
        let found = fs::read(self.at(dir).join("noise")).expect("read");
        assert!(
            found == noise(name),
            "{dir} shows another image than {name}"
        );
        let text = fs::read_to_string(self.at(dir).join("text")).expect("read");
        assert_eq!(text, format!("{name}\n").repeat(5000));
    }

    /// Objects of one type from `weald mounts --json`.
    #[track_caller]
    pub fn reports(&self, kind: &str) -> Vec<Value> {
        let output = self.weald(&["mounts", "--json"]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output));
        let lines = String::from_utf8(output.stdout).expect("UTF-8");
        let objects = lines
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        objects.filter(|object| object["type"] == kind).collect()
    }

    /// The report of the shared server; there must be exactly one server.
    #[track_caller]
    pub fn server(&self) -> Pid {
        let servers = self.reports("server");
        assert_eq!(
            (servers.len(), &servers[0]["is_shared"]),
            (1, &Value::Bool(true))
        );
        let pid = servers[0]["pid"]
            .as_i64()
            .and_then(|pid| i32::try_from(pid).ok());
        pid.and_then(Pid::from_raw).expect("a process id")
    }

    pub fn sockets(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.run).into_iter().flatten();
        let paths = entries.map(|entry| entry.expect("entry").path());
        paths
            .filter(|path| {
                path.extension()
                    .is_some_and(|e| e != "lock" && e != "mounts")
            })
            .collect()
    }

    /// Connects to the shared server.
    pub fn connect(&self) -> UnixStream {
        let sockets = self.sockets();
        let shared = sockets
            .iter()
            .find(|path| path.extension().is_some_and(|e| e == "shared"));
        let stream = UnixStream::connect(shared.expect("a socket")).expect("connect");
        stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
        stream
    }

    /// Waits until no server answers.
    pub fn until_unserved(&self) {
        eventually("the end of the servers", || {
            !self
                .sockets()
                .iter()
                .any(|socket| UnixStream::connect(socket).is_ok())
        });
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        // A lasting server must be stopped; all others end with their mounts.
        if std::thread::panicking()
            && let Ok(output) = self.command(&["mounts", "--json"]).output()
        {
            let lines = String::from_utf8_lossy(&output.stdout).into_owned();
            let servers = lines
                .lines()
                .filter_map(|line| serde_json::from_str::<Value>(line).ok());
            for pid in servers
                .filter(|s| s["type"] == "server")
                .filter_map(|s| s["pid"].as_i64())
            {
                let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
                let _ = pid.map(|pid| kill_process(pid, Signal::TERM));
            }
        }
    }
}

/// Half a megabyte that does not compress.
pub fn noise(name: &str) -> Vec<u8> {
    let mut bytes = vec![0; 500_000];
    blake3::Hasher::new()
        .update(name.as_bytes())
        .finalize_xof()
        .fill(&mut bytes);
    bytes
}

/// A message that asks for `what`, which is JSON, in the version of the protocol that servers
/// speak.
pub fn request(what: &str) -> String {
    format!(r#"{{"protocol":{PROTOCOL},"request":{what}}}"#)
}

/// Sends a frame of the protocol.
pub fn send_frame(mut stream: &UnixStream, message: &str) {
    let len = u32::try_from(message.len()).expect("short");
    let frame = [&len.to_le_bytes(), message.as_bytes()].concat();
    stream.write_all(&frame).expect("said");
}

/// Receives a frame; a descriptor that comes with it is closed.
pub fn receive_frame(mut stream: &UnixStream) -> Value {
    let mut len = [0; 4];
    stream.read_exact(&mut len).expect("length");
    let mut body = vec![0; u32::from_le_bytes(len) as usize];
    stream.read_exact(&mut body).expect("body");
    serde_json::from_slice(&body).expect("JSON")
}
