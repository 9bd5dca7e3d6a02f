//! Options of mounts that can change.

use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU8, Ordering};

/// When a read changes the access time of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum AccessTime {
    /// If it is not later than the last change, or a day old (`relatime`).
    #[default]
    Relative,
    /// Never (`noatime`).
    Never,
    /// Always (`strictatime`).
    Always,
}

/// Whether a mount is of type `fuseblk`, which has a block device: the kernel passes sync(2) and
/// syncfs(2) on, and its umount(2) waits for the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BlockUse {
    /// Where the kernel and the rights of this process allow it, and `fsname=` asks for no other
    /// source.
    #[default]
    IfPossible,
    /// `fuseblk`: the mount fails otherwise.
    Always,
    /// `nofuseblk`: the mount is of type `fuse`.
    Never,
}

/// Options that a remount can change while the mount is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LiveOptions {
    /// `relatime`, `noatime`, `strictatime`; `lazytime` is as `relatime`. Reads that the kernel
    /// answers from its page cache do not count.
    pub access_time: AccessTime,
    /// `nodiratime`: reading a directory does not change its access time.
    pub skips_directories: bool,
    /// `sync`: every change is durable before its call returns.
    pub is_sync: bool,
    /// `dirsync`: every change of names is durable before its call returns.
    pub is_dirsync: bool,
}

impl LiveOptions {
    /// Takes the option `word` if it is one of these; false if not.
    pub fn apply(&mut self, word: &str) -> bool {
        match word {
            "noatime" => self.access_time = AccessTime::Never,
            "strictatime" => self.access_time = AccessTime::Always,
            "atime" | "relatime" | "lazytime" | "norelatime" | "nostrictatime" => {
                self.access_time = AccessTime::Relative;
            }
            "nodiratime" => self.skips_directories = true,
            "diratime" => self.skips_directories = false,
            "sync" => self.is_sync = true,
            "dirsync" => self.is_dirsync = true,
            "async" => (self.is_sync, self.is_dirsync) = (false, false),
            _ => return false,
        }
        true
    }
}

/// [`LiveOptions`] that threads read while another one changes them.
#[derive(Debug)]
pub(crate) struct SharedOptions(AtomicU8);

const NEVER: u8 = 1;
const ALWAYS: u8 = 2;
const SKIPS_DIRECTORIES: u8 = 4;
const SYNC: u8 = 8;
const DIRSYNC: u8 = 16;

impl SharedOptions {
    pub(crate) fn new(options: LiveOptions) -> Self {
        let shared = Self(AtomicU8::new(0));
        shared.set(options);
        shared
    }

    pub(crate) fn set(&self, options: LiveOptions) {
        let access_time = match options.access_time {
            AccessTime::Relative => 0,
            AccessTime::Never => NEVER,
            AccessTime::Always => ALWAYS,
        };
        let bit = |is_on, bit| if is_on { bit } else { 0 };
        let bits = access_time
            | bit(options.skips_directories, SKIPS_DIRECTORIES)
            | bit(options.is_sync, SYNC)
            | bit(options.is_dirsync, DIRSYNC);
        self.0.store(bits, Ordering::SeqCst);
    }

    pub(crate) fn get(&self) -> LiveOptions {
        let bits = self.0.load(Ordering::SeqCst);
        LiveOptions {
            access_time: match bits & (NEVER | ALWAYS) {
                NEVER => AccessTime::Never,
                ALWAYS => AccessTime::Always,
                _ => AccessTime::Relative,
            },
            skips_directories: bits & SKIPS_DIRECTORIES != 0,
            is_sync: bits & SYNC != 0,
            is_dirsync: bits & DIRSYNC != 0,
        }
    }
}

/// Options of a mount of a file system that can change, beside [`MountOptions`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WritableOptions {
    /// `ro`: the kernel refuses all changes. `mount -o remount,rw` ends that.
    pub is_read_only: bool,
    /// `sync`, `noatime` and the like.
    pub live: LiveOptions,
    /// `remount`: mount(8) asks for a change of the flags of a mount that exists. The caller must
    /// do that with mount(2), and not mount again.
    pub is_remount: bool,
    /// Names that differ in case are equal: the kernel must not cache names.
    pub ignores_case: bool,
    /// `noxattr`: nobody reads or sets extended attributes, and the kernel does not ask for the
    /// capability of each file that is written. Modes decide; they give nobody more than the hidden
    /// access lists do.
    pub hides_xattrs: bool,
    /// `noacl`: access lists cannot be read or set and do not count. The modes of files that have
    /// one give nobody more than the list does.
    pub hides_acls: bool,
    /// `fuseblk`, `nofuseblk`.
    pub block: BlockUse,
    /// The file system changes by other ways than this mount: the kernel must look again.
    pub changes_elsewhere: bool,
}

impl WritableOptions {
    /// Takes the option `word` if it concerns writable mounts only; false if not.
    pub(crate) fn apply(&mut self, word: &str) -> bool {
        match word {
            "rw" => self.is_read_only = false,
            "ro" => self.is_read_only = true,
            "remount" => self.is_remount = true,
            "xattr" => self.hides_xattrs = false,
            "noxattr" => self.hides_xattrs = true,
            "acl" => self.hides_acls = false,
            "noacl" => self.hides_acls = true,
            "fuseblk" => self.block = BlockUse::Always,
            "nofuseblk" => self.block = BlockUse::Never,
            word => return self.live.apply(word),
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_options_come_back() {
        for word in [
            "relatime",
            "noatime",
            "strictatime",
            "nodiratime",
            "sync",
            "dirsync",
        ] {
            let mut options = LiveOptions::default();
            assert!(options.apply(word));
            let shared = SharedOptions::new(LiveOptions {
                is_sync: true,
                ..LiveOptions::default()
            });
            shared.set(options);
            assert_eq!(shared.get(), options, "{word}");
        }
    }
}
