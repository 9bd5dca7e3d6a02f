//! Trees of two versions, their images, and a store.

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use weald_testkit::command::{Output, weald_path};
use weald_testkit::mounts::{self, finish};

/// A tree with every kind of entry, and a second version with a few changes.
const TREES: &str = "
    mkdir -p v1/bin v1/etc/deep v1/empty v1/usr
    seq 20000 > v1/bin/tool; chmod 755 v1/bin/tool; echo main > v1/etc/main
    ln v1/etc/main v1/etc/twin; ln -s ../etc/main v1/bin/link; mkfifo v1/fifo
    echo leaf > v1/etc/deep/leaf; truncate -s 1M v1/sparse; echo zzz > v1/usr/version
    python3 -c 'import os, random; random.seed(1)
os.setxattr(\"v1/etc/main\", \"user.note\", b\"a note\")
open(\"v1/noise\", \"wb\").write(random.randbytes(600000))'
    cp -a v1 v2; echo two > v2/usr/version; seq 1000 > v2/usr/zz-new
    find v1 v2 -depth -exec touch -h -d '2024-02-29 12:00:00 UTC' {} +";

/// Build options that let two versions share blocks.
const SHAPE: [&str; 7] = [
    "--level",
    "1",
    "--block-size",
    "64K",
    "--order",
    "name",
    "--threads=1",
];

/// A directory with mounts, images and stores.
pub struct Ground(pub mounts::Ground);

impl Ground {
    pub fn new() -> Self {
        Self(mounts::Ground::new())
    }

    /// Creates `v1` and `v2`, their images `v1.weald` and `v2.weald`, and the store `store` with
    /// both.
    pub fn with_store() -> Self {
        let ground = Self::with_images();
        ground.weald(&["store", "create", "-q", "store"]);
        ground.weald(&["store", "import", "-q", "store", "v1.weald", "v2.weald"]);
        ground
    }

    pub fn with_images() -> Self {
        let ground = Self::new();
        ground.sh(TREES);
        for name in ["v1", "v2"] {
            ground
                .0
                .build(&ground.at(name), &ground.0.image(name), &SHAPE);
        }
        ground
    }

    pub fn at(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.at(name)
    }

    /// Runs the command, which must succeed; returns its output.
    #[track_caller]
    pub fn weald(&self, args: &[&str]) -> String {
        self.0.weald(args).expect(0).text()
    }

    /// Runs the command, which must fail with one line that contains all of `words`.
    #[track_caller]
    pub fn refused(&self, args: &[&str], words: &[&str]) {
        refused(&self.0.weald(args), words);
    }

    /// Output of a command with --json, one object per line.
    #[track_caller]
    pub fn json(&self, args: &[&str]) -> Vec<Value> {
        lines(&self.weald(args))
    }

    /// Runs a script in the directory; `$WEALD` is the binary. The script must succeed.
    #[track_caller]
    pub fn sh(&self, script: &str) -> String {
        finish(&mut self.0.script(script)).expect(0).text()
    }

    /// Checks that `weald store check --data` finds no defect.
    #[track_caller]
    pub fn assert_clean(&self, store: &str) {
        let report = self.0.weald(["store", "check", "--data", store]);
        assert_eq!(report.code, Some(0), "{}{}", report.text(), report.stderr);
        assert!(report.text().starts_with("clean: "), "{}", report.text());
    }

    /// Checks that the image `STORE:NAME` equals the file `NAME.weald`, byte for byte.
    #[track_caller]
    pub fn assert_exported(&self, store: &str, name: &str) {
        let target = self.at("exported");
        let image = format!("{store}:{name}");
        self.weald(&["store", "export", "--force", &image, "exported"]);
        let same = fs::read(&target).expect("read") == fs::read(self.0.image(name)).expect("read");
        assert!(same, "{image} is not {name}.weald");
    }

    /// All files below `dir`, with their contents.
    pub fn contents(&self, dir: &str) -> Vec<(PathBuf, Vec<u8>)> {
        let mut found = Vec::new();
        let mut waiting = vec![self.at(dir)];
        while let Some(dir) = waiting.pop() {
            for entry in fs::read_dir(dir).expect("list") {
                let path = entry.expect("entry").path();
                if path.is_dir() {
                    waiting.push(path)
                } else {
                    found.push((path.clone(), fs::read(path).expect("read")))
                }
            }
        }
        found.sort();
        found
    }
}

/// The headings of a manual, as `## …`, and its commands `weald …`, in order.
pub fn steps_of_manual(name: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let manual = fs::read_to_string(path.join(name)).expect("the manual");
    let mut is_code = false;
    let mut steps = Vec::new();
    for line in manual.lines() {
        is_code ^= line.starts_with("```");
        if line.starts_with("## ") || (is_code && line.starts_with("weald ")) {
            steps.push(line.to_owned());
        }
    }
    steps
}

impl Ground {
    /// Runs a command of a manual, with the directories `roots` in this one.
    pub fn run_of_manual(&self, line: &str, roots: &[&str]) {
        let here = self.0.path().display().to_string();
        let mut line = line.replacen("weald", "\"$WEALD\"", 1);
        for root in roots {
            line = line.replace(&format!(" {root}"), &format!(" '{here}'{root}"));
        }
        self.sh(&line);
    }
}

#[track_caller]
pub fn refused(output: &Output, words: &[&str]) {
    output.expect_refusal(words);
}

/// The command of `weald` in `ground` with calls of the system that fail, as `inject` of strace(1)
/// says.
pub fn injected(ground: &Ground, inject: &str, args: &[&str]) -> Output {
    let mut command = Command::new("strace");
    command
        .args(["-f", "-qq", "-o", "/dev/null", "-e"])
        .arg(format!("inject={inject}"))
        .arg(weald_path())
        .args(args)
        .current_dir(ground.0.path())
        .env("LC_ALL", "C")
        .stdin(Stdio::null());
    finish(&mut command)
}

#[track_caller]
pub fn lines(text: &str) -> Vec<Value> {
    text.lines()
        .map(|line| serde_json::from_str(line).expect("a line of JSON"))
        .collect()
}
