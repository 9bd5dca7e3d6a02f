//! Images, view caches and mount points for the tests.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use weald_testkit::command::Output;
use weald_testkit::mounts::{self, PATIENCE};

/// A ground with a view cache and the image `a` of a small tree.
pub struct Ground {
    ground: mounts::Ground,
}

impl Ground {
    pub fn new() -> Self {
        let ground = Self {
            ground: mounts::Ground::new(),
        };
        ground.ground.dir("mnt");
        ground
    }

    /// With the image `a.weald` of the directory `a`.
    pub fn with_image() -> Self {
        let ground = Self::new();
        ground.build("a");
        ground
    }

    /// Builds the image `NAME.weald` of a tree at `NAME`, whose contents no other name has.
    pub fn build(&self, name: &str) {
        let source = self.dir(name);
        fs::create_dir(source.join("dir")).expect("mkdir");
        let text = format!("{name}\n").repeat(4000);
        fs::write(source.join("dir/long"), text).expect("write");
        fs::write(source.join("short"), "short\n").expect("write");
        fs::write(source.join("secret"), format!("{name} of root\n").repeat(9)).expect("write");
        let mode = |mode| fs::Permissions::from_mode(mode);
        fs::set_permissions(source.join("secret"), mode(0o600)).expect("chmod");
        fs::set_permissions(&source, mode(0o755)).expect("chmod");
        fs::hard_link(source.join("dir/long"), source.join("link")).expect("link");
        symlink("dir/long", source.join("symlink")).expect("symlink");
        chown(source.join("short"), Some(1234), Some(4321)).expect("chown");
        self.ground.build(&source, &self.image(name), &[]);
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.ground.at(name)
    }

    pub fn dir(&self, name: &str) -> PathBuf {
        self.ground.dir(name)
    }

    pub fn image(&self, name: &str) -> PathBuf {
        self.ground.image(name)
    }

    pub fn mnt(&self) -> PathBuf {
        self.at("mnt")
    }

    pub fn of_testkit(&self) -> &mounts::Ground {
        &self.ground
    }

    /// Runs weald with these words.
    #[track_caller]
    pub fn weald(&self, words: &[&str]) -> Output {
        self.ground.weald(words)
    }

    /// Mounts `a.weald` on `mnt` by the kernel.
    #[track_caller]
    pub fn mount(&self, words: &[&str]) {
        let said = self.try_mount(words);
        assert_eq!(
            (said.expect(0).stderr.as_str(), self.is_mounted()),
            ("", true)
        );
    }

    /// As [`Ground::mount`], whatever comes of it.
    #[track_caller]
    pub fn try_mount(&self, words: &[&str]) -> Output {
        let first = ["mount", "--kernel", "--view-cache", "cache"];
        self.weald(&[&first, words, &["a.weald", "mnt"]].concat())
    }

    #[track_caller]
    pub fn umount(&self) {
        self.ground.umount(&self.mnt());
    }

    pub fn is_mounted(&self) -> bool {
        self.ground.is_mounted(&self.mnt())
    }

    /// Loop devices of files below this directory.
    pub fn loop_devices(&self) -> Vec<String> {
        let devices = fs::read_dir("/sys/block").expect("/sys/block");
        let files = devices.filter_map(|device| {
            let file = device.expect("a device").path().join("loop/backing_file");
            fs::read_to_string(file).ok()
        });
        let here = self.at("").display().to_string();
        files.filter(|file| file.starts_with(&here)).collect()
    }

    /// Waits until no loop device has a file below this directory: the kernel frees them in the
    /// background.
    #[track_caller]
    pub fn expect_no_loop_device(&self) {
        let start = std::time::Instant::now();
        while !self.loop_devices().is_empty() {
            assert!(start.elapsed() < PATIENCE, "{:?}", self.loop_devices());
            std::thread::yield_now();
        }
    }
}

/// Names in a directory, sorted.
pub fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("a directory");
    let mut names: Vec<String> = entries
        .map(|entry| entry.expect("entry").file_name().display().to_string())
        .collect();
    names.sort();
    names
}

/// The JSON that a command printed.
#[track_caller]
pub fn json(said: &Output) -> serde_json::Value {
    serde_json::from_slice(&said.stdout).expect("JSON")
}
