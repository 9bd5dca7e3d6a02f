//! The two trees, users to ask them as, and the table of what differed.

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use weald_testkit::mounts::{Ground, eventually, finish};

/// What is said of a side, or the errno of a refusal.
pub type Answer = Result<String, Errno>;

/// What an operation must say on both sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// It is done; both say the same.
    Done,
    /// Both refuse it so.
    Refused(Errno),
    /// Both say the same, whatever that is.
    Same,
}

/// One side: by an open directory, for users who may not walk there, and by its path, for calls
/// that take nothing else.
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

/// A mount, and a file system of the kernel with the same tree, read-only.
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

/// Mounts a new file system on `dir`: ext4 over a loop device.
fn new_file_system(ground: &Ground, dir: &Path) {
    let disk = ground.at("disk");
    File::create(&disk)
        .and_then(|file| file.set_len(64 << 20))
        .expect("file");
    system(&["mkfs.ext4", "-q", "-F", "-N", "8000"], &[&disk]);
    system(&["mount", "-o", "loop"], &[&disk, dir]);
}

impl Sides {
    /// Makes the tree by `make`, packs it, mounts both sides.
    pub fn new(make: impl FnOnce(&Path)) -> Self {
        let ground = Ground::new();
        // Names of one length, so that a path too long for one is too long for the other.
        let (mounted, reference, image) = (ground.dir("m"), ground.dir("r"), ground.image("image"));
        new_file_system(&ground, &reference);
        let _ = fs::remove_dir(reference.join("lost+found"));
        make(&reference);
        ground.build(&reference, &image, &["--level", "1"]);
        // A child that another test has just forked may hold a file that was written, until it
        // becomes another program.
        eventually("the file system made read-only", || {
            let mut command = Command::new("mount");
            let command = command.args(["-o", "remount,ro"]).arg(&reference);
            finish(command).code == Some(0)
        });
        // As the file system beside it, which root mounts without `nosuid` and `nodev`.
        ground.mount(&image, &mounted, &["-o", "suid,dev"]);
        let (mounted, reference) = (Side::of(&mounted), Side::of(&reference));
        Self {
            ground,
            mounted,
            reference,
            failures: Mutex::default(),
        }
    }

    /// Asks both sides.
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

    /// Lets go of both sides.
    ///
    /// # Panics
    /// If anything differed.
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

/// Who asks.
#[derive(Debug, Clone)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
    pub groups: &'static [u32],
}

/// Root; the owner; one of its group; one who has that group besides; somebody else; one whom ACLs
/// name, and one of a group that they name.
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
    /// Runs `work` in a thread that is this user; the other threads stay who they are.
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
