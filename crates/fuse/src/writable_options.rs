//! Options of mounts that can change.

/// When a read changes the access time of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AccessTime {
    /// If it is not later than the last change, or a day old (`relatime`).
    #[default]
    Relative,
    /// Never (`noatime`).
    Never,
    /// Always (`strictatime`).
    Always,
}

/// Options of a mount of a file system that can change, beside [`MountOptions`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WritableOptions {
    /// `ro`: the kernel refuses all changes. `mount -o remount,rw` ends that.
    pub is_read_only: bool,
    /// `relatime`, `noatime`, `strictatime`; `lazytime` is as `relatime`. Reads that the kernel
    /// answers from its page cache do not count.
    pub access_time: AccessTime,
    /// `remount`: mount(8) asks for a change of the flags of a mount that exists. The caller must
    /// do that with mount(2), and not mount again.
    pub is_remount: bool,
    /// Names that differ in case are equal: the kernel must not cache names.
    pub ignores_case: bool,
    /// `noxattr`: nobody reads or sets extended attributes, and the kernel does not ask for the
    /// capability of each file that is written. Modes decide; they give nobody more than the hidden
    /// access lists do.
    pub hides_xattrs: bool,
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
            "noatime" => self.access_time = AccessTime::Never,
            "strictatime" => self.access_time = AccessTime::Always,
            "atime" | "relatime" | "lazytime" | "norelatime" | "nostrictatime" => {
                self.access_time = AccessTime::Relative;
            }
            _ => return false,
        }
        true
    }
}
