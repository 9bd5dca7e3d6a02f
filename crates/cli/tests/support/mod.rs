//! The real binary, a small fixed source tree, and an image of it.
#![allow(dead_code)] // every test file uses a part

use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;
use weald_format::Timestamp;
use weald_sys::{NewTimes, NodeKind};
use weald_testkit::torture;

/// Every command except `man`, which is hidden. The commands of a group follow it.
pub const COMMANDS: [&str; 104] = [
    "build",
    "mount",
    "umount",
    "mounts",
    "serve",
    "ls",
    "tree",
    "stat",
    "cat",
    "find",
    "extract",
    "tar",
    "sum",
    "diff",
    "info",
    "check",
    "generations",
    "recover",
    "salvage",
    "parity",
    "parity add",
    "parity verify",
    "parity repair",
    "rewrite",
    "commit",
    "publish",
    "store",
    "store create",
    "store add",
    "store import",
    "store export",
    "store ls",
    "store info",
    "store rm",
    "store forget",
    "store mv",
    "store gc",
    "store check",
    "store salvage",
    "store scrub",
    "store probe",
    "store backup",
    "replica",
    "replica add",
    "replica ls",
    "replica status",
    "replica set",
    "replica pause",
    "replica resume",
    "replica send",
    "replica states",
    "replica verify",
    "replica restore",
    "replica follow",
    "replica promote",
    "replica prune",
    "replica receive",
    "replica remove",
    "tier",
    "tier add",
    "tier ls",
    "tier stat",
    "tier set",
    "tier heat",
    "tier plan",
    "tier run",
    "tier move",
    "tier drain",
    "tier remove",
    "scrub",
    "scrub start",
    "scrub pause",
    "scrub resume",
    "scrub status",
    "scrub set",
    "scrub run-due",
    "volume",
    "volume create",
    "volume ls",
    "volume info",
    "volume stat",
    "volume check",
    "volume rm",
    "volume seal",
    "volume set",
    "snapshot",
    "snapshot create",
    "snapshot ls",
    "snapshot rm",
    "snapshot prune",
    "snapshot hold",
    "snapshot release",
    "snapshot rollback",
    "snapshot clone",
    "export",
    "export composefs",
    "export dump",
    "export erofs",
    "export oci",
    "import",
    "import composefs",
    "import oci",
    "forest",
    "completions",
];

/// Output and exit status of a finished command.
#[derive(Debug, PartialEq, Eq)]
pub struct Output {
    pub code: Option<i32>,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

impl Output {
    /// Fails unless the command exited with `code` and wrote exactly `stderr` to standard error.
    #[track_caller]
    pub fn expect(self, code: i32, stderr: &str) -> Self {
        assert_eq!(
            (self.code, self.stderr.as_str()),
            (Some(code), stderr),
            "stdout: {}",
            self.text()
        );
        self
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Parses every line of standard output as a JSON object.
    #[track_caller]
    pub fn json(&self) -> Vec<serde_json::Value> {
        let text = std::str::from_utf8(&self.stdout).expect("JSON is UTF-8");
        let parse =
            |line: &str| serde_json::from_str::<serde_json::Value>(line).expect("a line of JSON");
        text.lines()
            .map(parse)
            .inspect(|value| assert!(value.is_object()))
            .collect()
    }
}

/// The binary under test; `WEALD_BIN` names another one.
pub fn weald_path() -> &'static Path {
    Path::new(weald_testkit::command::weald_bin())
}

/// A working directory, in which the binary runs.
pub struct Bench(pub TempDir);

impl Bench {
    pub fn new() -> Self {
        let base = tempfile::tempdir().expect("temporary directory");
        fs::set_permissions(base.path(), PermissionsExt::from_mode(0o755)).expect("chmod");
        Self(base)
    }

    /// Creates a bench with the small tree in `source` and its image in `image`.
    pub fn with_image() -> Self {
        let bench = Self::new();
        bench.make_source();
        bench
            .weald(["build", "--quiet", "source", "image"])
            .expect(0, "");
        bench
    }

    /// Creates a bench with the torture tree of `seed` in `source`.
    pub fn with_torture(seed: u64) -> Self {
        let bench = Self::new();
        fs::create_dir(bench.at("source")).expect("mkdir");
        let options = torture::Options { seed, big: false };
        torture::make(&bench.at("source"), &options).expect("torture tree");
        bench
    }

    /// Output of `weald info --json` about `image`.
    #[track_caller]
    pub fn info(&self) -> serde_json::Value {
        let info = self.weald(["info", "--json", "image"]).expect(0, "");
        info.json().remove(0)
    }

    pub fn at(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn command(&self) -> Command {
        let mut command = Command::new(weald_path());
        command
            .current_dir(self.0.path())
            .env("LC_ALL", "C")
            .env_remove("SOURCE_DATE_EPOCH");
        command
    }

    pub fn weald<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Output {
        run(self.command().args(args))
    }

    /// Runs a script in the directory; `$WEALD` is the binary. The script must succeed.
    #[track_caller]
    pub fn sh(&self, script: &str) -> String {
        let mut command = Command::new("bash");
        command
            .args(["-euo", "pipefail", "-c", script])
            .current_dir(self.0.path());
        let output = run(command.env("WEALD", weald_path()).env("LC_ALL", "C"));
        assert_eq!(
            output.code,
            Some(0),
            "{script}\nstdout: {}\nstderr: {}",
            output.text(),
            output.stderr
        );
        output.text()
    }

    /// Creates `source`: every kind of file, odd names, fixed times. Tests expect these sizes and
    /// times.
    pub fn make_source(&self) {
        let write = |name: &[u8], content: &[u8]| {
            fs::write(self.at("source").join(OsStr::from_bytes(name)), content).expect("write");
        };
        for dir in ["source/bin", "source/empty", "source/etc/deep"] {
            fs::create_dir_all(self.at(dir)).expect("mkdir");
        }
        write(b"bin/tool", &b"#!/bin/sh\n".repeat(200));
        write(b"etc/deep/leaf.conf", b"leaf\n");
        write(b"etc/main.conf", b"main\n");
        write(b"new\nline", b"odd\n");
        write(b"caf\xe9", b"latin\n");
        write(b"zero", b"");
        symlink("../etc/main.conf", self.at("source/bin/link")).expect("symlink");
        symlink("loop", self.at("source/loop")).expect("symlink");
        fs::hard_link(
            self.at("source/etc/main.conf"),
            self.at("source/etc/twin.conf"),
        )
        .expect("link");
        self.make_special();
        self.fix_attributes();
    }

    fn make_special(&self) {
        let source = weald_sys::open_dir(&self.at("source")).expect("open");
        weald_sys::make_node_at(&source, b"fifo", NodeKind::Fifo, 0o600).expect("mkfifo");
        weald_sys::make_node_at(&source, b"null", NodeKind::CharDevice(1 << 32 | 3), 0o600)
            .expect("mknod, as root");
        let mut sparse = fs::File::create(self.at("source/sparse")).expect("create");
        sparse.write_all(b"head").expect("write");
        sparse.set_len(1 << 20).expect("set_len");
        weald_sys::set_xattr_at(&source, b"zero", b"user.note", b"nothing here").expect("setxattr");
    }

    /// Sets modes, owners and times of everything below `source`.
    fn fix_attributes(&self) {
        let listed = self.sh("cd source && find . -print0");
        drop(listed);
        self.sh(
            "cd source && chown -hR 0:0 . && find . -type d -exec chmod 755 {} + && find . -type \
             f -exec chmod 644 {} +
             chmod 755 bin/tool; chmod 4711 zero; chown 1000:100 etc/deep/leaf.conf; chmod 644 \
              fifo null
             find . -depth -exec touch -h -d '2024-02-29 12:00:00.123456789 UTC' {} +
             touch -d '2001-01-01 00:00:00 UTC' etc/main.conf",
        );
    }
}

pub fn set_mtime(path: &Path, seconds: i64) {
    let dir = weald_sys::open_dir(path.parent().expect("a parent")).expect("open");
    let name = path.file_name().expect("a name").as_bytes();
    let mtime = Some(Timestamp {
        seconds,
        nanoseconds: 0,
    });
    weald_sys::set_times_at(&dir, name, NewTimes { mtime, atime: None }).expect("utimensat");
}

pub fn run(command: &mut Command) -> Output {
    let output = command
        .stdin(Stdio::null())
        .output()
        .expect("the program starts");
    Output {
        code: output.status.code(),
        stdout: output.stdout,
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Runs `command` with standard output on a raw terminal.
pub fn run_on_terminal(command: &mut Command) -> Output {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
    grantpt(&master)
        .and_then(|()| unlockpt(&master))
        .expect("the terminal's other side");
    let name = ptsname(&master, Vec::new()).expect("its name");
    let path = Path::new(OsStr::from_bytes(name.as_bytes()));
    let slave = fs::File::options()
        .read(true)
        .write(true)
        .open(path)
        .expect("open it");
    let mut attributes = tcgetattr(&slave).expect("tcgetattr");
    attributes.make_raw();
    tcsetattr(&slave, OptionalActions::Now, &attributes).expect("tcsetattr");
    let mut child = command
        .stdin(Stdio::null())
        .stdout(slave)
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    // The command also holds the other end until standard output is replaced.
    command.stdout(Stdio::null());
    let mut stdout = Vec::new();
    let mut master = fs::File::from(master);
    // The end of a terminal is reported as the error EIO.
    let _ = master.read_to_end(&mut stdout);
    let mut stderr = Vec::new();
    let mut pipe = child.stderr.take().expect("a pipe");
    pipe.read_to_end(&mut stderr).expect("read");
    Output {
        code: child.wait().expect("wait").code(),
        stdout,
        stderr: String::from_utf8_lossy(&stderr).into_owned(),
    }
}
