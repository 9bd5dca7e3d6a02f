//! Runs the real `weald` binary.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{self, Command};

/// Result of a finished command.
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

    /// Checks the exit code and returns the output, for chaining.
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

    /// Checks that the command failed with status 2 and one line that has all of `words`.
    ///
    /// # Panics
    /// If it did not.
    #[track_caller]
    pub fn expect_refusal(&self, words: &[&str]) {
        let said = &self.stderr;
        assert_eq!(self.code, Some(2), "{}{said}", self.text());
        assert_eq!(said.lines().count(), 1, "{said}");
        for word in words {
            assert!(said.contains(word), "{word:?} is not in {said:?}");
        }
    }
}

/// Path of the binary: `WEALD_BIN`, or beside the running test in Cargo's target directory; or of
/// its copy, if other users cannot reach it or a shell would split its path.
///
/// # Panics
/// If there is none; `cargo build -p weald-cli` makes it.
pub fn weald_path() -> PathBuf {
    weald_bin().into()
}

/// Path of the small runtime as text: `WEALD_RUNTIME_BIN`, or as [`weald_path`].
///
/// # Panics
/// If there is none; `cargo build -p weald-runtime` makes it.
pub fn runtime_bin() -> String {
    let path = built_path("weald-runtime", "WEALD_RUNTIME_BIN");
    let path = crate::program::at_plain_path(&path);
    let path = path.into_os_string().into_string();
    path.expect("a path in UTF-8")
}

/// Path of the program `name`: the value of `variable`, or in Cargo's target directory.
fn built_path(name: &str, variable: &str) -> PathBuf {
    let path = std::env::var_os(variable)
        .map(PathBuf::from)
        .unwrap_or_else(|| {
            let test = std::env::current_exe().expect("the path of this program");
            let dirs = test.ancestors().skip(1).take(3);
            let mut candidates = dirs.map(|dir| dir.join(name));
            candidates
                .find(|path| path.is_file())
                .unwrap_or_else(|| Path::new("target/debug").join(name))
        });
    assert!(
        path.is_file(),
        "{} is missing: run `cargo build -p weald-cli -p weald-runtime` first, or set {variable}",
        path.display()
    );
    std::path::absolute(path).expect("the working directory")
}

/// The same path as text, for the scripts of a shell.
///
/// # Panics
/// As [`weald_path`], and if it is not UTF-8.
pub fn weald_bin() -> &'static str {
    static PATH: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    PATH.get_or_init(|| {
        let path = crate::program::at_plain_path(&built_path("weald", "WEALD_BIN"));
        let path = path.into_os_string().into_string();
        path.expect("a path in UTF-8")
    })
}

/// Copies the binary to `target`, for everyone to run. Another process does it: a program that this
/// one writes cannot be started while a child that another thread starts has the file open, too.
///
/// # Panics
/// As [`weald_path`], and if it cannot be copied.
pub fn copy_weald(target: impl AsRef<Path>) {
    let mut command = Command::new("install");
    command
        .args(["-m", "755", weald_bin()])
        .arg(target.as_ref());
    succeeded(&command.output().expect("install starts"));
}

/// Makes a command for the binary, in an environment in which its output does not vary. Only this
/// process finds servers that it starts.
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

/// Standard output of a command, followed by its standard error.
pub fn text(output: &process::Output) -> String {
    let [out, err] =
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    out + &err
}

/// Checks that a command succeeded without output.
///
/// # Panics
/// If it did not.
#[track_caller]
pub fn succeeded(output: &process::Output) {
    assert_eq!((output.status.code(), text(output).as_str()), (Some(0), ""));
}

/// Checks that `weald` refused with one line that contains `reason`.
///
/// # Panics
/// If it did not.
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

/// Path of a directory for servers of this process, below the directory for temporary files. The
/// directory is not made here.
fn runtime_dir_of_process() -> &'static Path {
    static DIR: std::sync::OnceLock<PathBuf> = std::sync::OnceLock::new();
    DIR.get_or_init(|| {
        // Process numbers are reused; in another name space even at the same time.
        let now = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
        let name = format!("wr-{}-{:x}", std::process::id(), now.as_nanos());
        std::env::temp_dir().join(name)
    })
}
