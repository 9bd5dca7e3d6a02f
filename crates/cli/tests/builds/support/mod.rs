//! Shared code of the tests of `weald build`: the binary, small file systems, data. Needs root, as
//! the whole test suite does.
#![allow(dead_code)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

pub use weald_testkit::command::weald_bin;

/// A tmpfs on a temporary directory, unmounted on drop; `size` has the syntax of mount(8).
pub struct Scratch(tempfile::TempDir);

impl Scratch {
    pub fn new(size: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let options = format!("size={size},nr_inodes=0,mode=755");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &options, "tmpfs"])
            .arg(dir.path())
            .status();
        assert!(mounted.unwrap().success(), "mounting needs root");
        Self(dir)
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn dir(&self, name: &str) -> PathBuf {
        let dir = self.at(name);
        fs::create_dir(&dir).unwrap();
        fs::set_permissions(&dir, PermissionsExt::from_mode(0o755)).unwrap();
        dir
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg("-l").arg(self.0.path()).status();
        assert!(unmounted.is_ok_and(|s| s.success()) || std::thread::panicking());
    }
}

/// A `weald build` command whose output is captured.
pub fn build_command(options: &[&str], source: &Path, target: &Path) -> Command {
    let mut command = Command::new(weald_bin());
    command
        .args(["build", "--quiet"])
        .args(options)
        .arg(source)
        .arg(target);
    command.env("LC_ALL", "C").env_remove("SOURCE_DATE_EPOCH");
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Runs a build, which must print nothing.
#[track_caller]
pub fn build(options: &[&str], source: &Path, target: &Path) {
    let output = build_command(options, source, target).output().unwrap();
    assert_eq!(
        (output.status.code(), stderr(&output)),
        (Some(0), String::new())
    );
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Checks that the image has no damage.
#[track_caller]
pub fn check(image: &Path) {
    let output = Command::new(weald_bin())
        .arg("check")
        .arg(image)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

/// Names in a directory, including hidden ones, sorted.
pub fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<_> = entries
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// `len` incompressible bytes; each `seed` gives another sequence.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let mut hasher = blake3::Hasher::new();
    hasher
        .update(&seed.to_le_bytes())
        .finalize_xof()
        .fill(&mut bytes);
    bytes
}

/// About `len` bytes of compressible lines without repeats long enough for deduplication.
pub fn lines(seed: u64, len: usize) -> Vec<u8> {
    let alphabet: Vec<String> = (0..64)
        .map(|n| {
            noise(seed << 8 | n, 40)
                .iter()
                .map(|b| format!("{b:02x}"))
                .collect::<String>()
                + "\n"
        })
        .collect();
    let order = noise(seed, len / 81);
    order
        .iter()
        .flat_map(|&b| alphabet[usize::from(b) % 64].bytes())
        .collect()
}

/// Runs the command in `dir`.
pub fn weald(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(weald_bin());
    let command = command.args(args).current_dir(dir).env("LC_ALL", "C");
    command.env_remove("SOURCE_DATE_EPOCH").output().unwrap()
}

/// Standard output of a command, which must have succeeded.
#[track_caller]
pub fn done(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{}{text}", stderr(output));
    text
}

/// `weald diff` finds no difference between an image and `other`.
#[track_caller]
pub fn same(dir: &Path, image: &str, other: &str) {
    let output = weald(dir, &["diff", image, other]);
    let found = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!((found, stderr(&output)), Default::default());
    assert_eq!(output.status.code(), Some(0));
}

/// Runs a script of bash, which ends with the first command that fails.
pub fn shell(dir: &Path, script: &str) {
    let mut command = Command::new("bash");
    command.args(["-euc", script]).current_dir(dir);
    let output = command.env("LC_ALL", "C").output().unwrap();
    assert!(output.status.success(), "{script}: {}", stderr(&output));
}

/// What a script of bash prints, in which no command fails; `$WEALD` is the binary.
#[track_caller]
pub fn printed(dir: &Path, script: &str) -> String {
    let mut command = Command::new("bash");
    command.args(["-euo", "pipefail", "-c", script]);
    command.current_dir(dir).env_remove("SOURCE_DATE_EPOCH");
    let command = command.env("LC_ALL", "C").env("WEALD", weald_bin());
    let output = command.output().unwrap();
    let (printed, said) = (String::from_utf8_lossy(&output.stdout), stderr(&output));
    assert!(output.status.success(), "{script}: {said}{printed}");
    printed.into_owned()
}
