//! The two trees, the users of the tests, and the table of differences.

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use weald_testkit::mounts::{Ground, eventually, finish};

/// Result of an operation on one side, or its errno.
pub type Answer = Result<String, Errno>;

/// Expected result of an operation on both sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// It succeeds with the same result on both sides.
    Done,
    /// Both sides refuse it with this errno.
    Refused(Errno),
    /// Both sides give the same result.
    Same,
}

/// One side: an open directory, for users without search permission above it, and its path, for
/// calls that need a path.
#[derive(Debug)]
pub struct Side {
    pub root: OwnedFd,
    pub path: PathBuf,
}

impl Side {
    fn of(path: &Path) -> Self {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(CWD, path, flags, Mode::empty()).expect("open");
        Self {
            root,
            path: path.to_owned(),
        }
    }
}

/// A mount and a read-only ext4 with the same tree.
#[derive(Debug)]
pub struct Sides {
    pub ground: Ground,
    pub mounted: Side,
    pub reference: Side,
    failures: Mutex<Vec<String>>,
}

/// Runs a command of the system, which must succeed.
#[track_caller]
pub fn system(words: &[&str], paths: &[&Path]) {
    finish(Command::new(words[0]).args(&words[1..]).args(paths)).expect(0);
}

/// Mounts a new ext4 on `dir`, from a loop device.
fn new_file_system(ground: &Ground, dir: &Path) {
    let disk = ground.at("disk");
    File::create(&disk)
        .and_then(|file| file.set_len(64 << 20))
        .expect("file");
    system(&["mkfs.ext4", "-q", "-F", "-N", "8000"], &[&disk]);
    system(&["mount", "-o", "loop"], &[&disk, dir]);
}

impl Sides {
    /// Creates the tree with `make`, packs it, and mounts both sides.
    pub fn new(make: impl FnOnce(&Path)) -> Self {
        let ground = Ground::new();
        // The names have the same length, so that the path limits are the same.
        let (mounted, reference, image) = (ground.dir("m"), ground.dir("r"), ground.image("image"));
        new_file_system(&ground, &reference);
        let _ = fs::remove_dir(reference.join("lost+found"));
        make(&reference);
        ground.build(&reference, &image, &["--level", "1"]);
        // A child that another test has just forked may hold a written file open until its exec.
        eventually("the file system made read-only", || {
            let mut command = Command::new("mount");
            let command = command.args(["-o", "remount,ro"]).arg(&reference);
            finish(command).code == Some(0)
        });
        // The ext4 beside it is mounted by root without `nosuid` and `nodev`.
        ground.mount(&image, &mounted, &["-o", "suid,dev"]);
        let (mounted, reference) = (Side::of(&mounted), Side::of(&reference));
        Self {
            ground,
            mounted,
            reference,
            failures: Mutex::default(),
        }
    }

    /// Runs an operation on both sides and compares.
    pub fn hold(&self, what: &str, expected: Expected, ask: impl Fn(&Side) -> Answer) {
        let [ours, theirs] = [&self.mounted, &self.reference].map(ask);
        let is_expected = match (expected, &ours) {
            (Expected::Done, Ok(_)) | (Expected::Same, _) => true,
            (Expected::Refused(errno), Err(found)) => errno == *found,
            _ => false,
        };
        if !is_expected || ours != theirs {
            self.fail(format!(
                "{what}: {ours:?}, the kernel's file system says {theirs:?}, expected {expected:?}"
            ));
        }
    }

    pub fn fail(&self, what: String) {
        self.failures.lock().expect("no panic").push(what);
    }

    /// Unmounts both sides.
    ///
    /// # Panics
    /// If any operation differed.
    #[track_caller]
    pub fn finish(self) {
        let failures = self.failures.into_inner().expect("no panic");
        let listed = failures.iter().take(30).map(String::as_str);
        assert!(
            failures.is_empty(),
            "{} differ:\n{}",
            failures.len(),
            listed.collect::<Vec<_>>().join("\n")
        );
        drop((self.mounted, self.reference));
        self.ground.umount(&self.ground.at("m"));
    }
}

/// The user of an operation.
#[derive(Debug, Clone)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
    pub groups: &'static [u32],
}

/// Root; the owner; a member of the owning group; a user with that group as a supplementary one;
/// another user; a user named in ACLs; a member of a group named in ACLs.
pub const USERS: [User; 7] = [
    User {
        uid: 0,
        gid: 0,
        groups: &[],
    },
    User {
        uid: 1000,
        gid: 1000,
        groups: &[],
    },
    User {
        uid: 1001,
        gid: 1000,
        groups: &[],
    },
    User {
        uid: 1002,
        gid: 1002,
        groups: &[77, 1000],
    },
    User {
        uid: 1003,
        gid: 1003,
        groups: &[78],
    },
    User {
        uid: 1004,
        gid: 1004,
        groups: &[],
    },
    User {
        uid: 1005,
        gid: 1005,
        groups: &[2000, 2001],
    },
];

impl User {
    /// Runs `work` in a thread with this user's ids; other threads keep theirs.
    pub fn run(&self, work: impl FnOnce() + Send) {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let groups: Vec<Gid> = self.groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
                let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
                rustix::thread::set_thread_groups(&groups).expect("groups");
                rustix::thread::set_thread_res_gid(gid, gid, gid).expect("group");
                rustix::thread::set_thread_res_uid(uid, uid, uid).expect("user");
                work();
            });
            thread.join().expect("no panic");
        });
    }
}
