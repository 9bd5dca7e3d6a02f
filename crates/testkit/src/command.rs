//! Running the real `weald` binary.

use crate::mounts::runtime_dir_of_process;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{self, Command};

/// What a finished command said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// Exit code; `None` if a signal ended it.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error, as text.
    pub stderr: String,
}

impl Output {
    /// Standard output as text; bytes that are not UTF-8 are replaced.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// The same output, for chaining.
    ///
    /// # Panics
    /// If the exit code is not `code`.
    #[track_caller]
    pub fn expect(self, code: i32) -> Self {
        assert_eq!(
            self.code,
            Some(code),
            "stdout: {}\nstderr: {}",
            self.text(),
            self.stderr
        );
        self
    }
}

/// Where the binary is: `WEALD_BIN`, or beside the running test in Cargo's target directory.
///
/// # Panics
/// If there is none; `cargo build -p weald-cli` makes it.
pub fn weald_path() -> PathBuf {
    let path = std::env::var_os("WEALD_BIN")
        .map(PathBuf::from)
        .unwrap_or_else(|| {
            let test = std::env::current_exe().expect("the path of this program");
            let dirs = test.ancestors().skip(1).take(3);
            let mut candidates = dirs.map(|dir| dir.join("weald"));
            candidates
                .find(|path| path.is_file())
                .unwrap_or_else(|| "target/debug/weald".into())
        });
    assert!(
        path.is_file(),
        "{} is missing: run `cargo build -p weald-cli` first, or set WEALD_BIN",
        path.display()
    );
    path
}

/// A command for the binary, with an environment in which its output does not vary; servers that it
/// starts are found by this process only.
///
/// # Panics
/// As [`weald_path`].
pub fn weald_command() -> Command {
    let mut command = Command::new(weald_path());
    command
        .env("LC_ALL", "C")
        .env("TZ", "UTC")
        .env("WEALD_RUNTIME_DIR", runtime_dir_of_process())
        .env_remove("SOURCE_DATE_EPOCH");
    command
}

/// Runs the binary with `args` to its end.
///
/// # Panics
/// As [`weald_path`], and if it cannot be started.
pub fn weald<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Output {
    let output = weald_command().args(args).output().expect("weald starts");
    Output {
        code: output.status.code(),
        stdout: output.stdout,
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// All that a command said, what it found before what went wrong.
pub fn text(output: &process::Output) -> String {
    let [out, err] =
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    out + &err
}

/// It did what was asked, and said nothing.
///
/// # Panics
/// Where it did not.
#[track_caller]
pub fn succeeded(output: &process::Output) {
    assert_eq!((output.status.code(), text(output).as_str()), (Some(0), ""));
}

/// `weald` refused, in one line that gives `reason`.
///
/// # Panics
/// Where it did not.
#[track_caller]
pub fn refused(output: &process::Output, reason: &str) {
    let text = text(output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(
        text.starts_with("weald: ") && text.contains(reason),
        "{reason}: {text}"
    );
    assert_eq!(text.lines().count(), 1, "{text}");
}
