//! The words after `-o`: ours, the kernel's, and those that mount(8) and fstab pass to everybody.

use crate::attr::Overrides;
use std::path::PathBuf;
use weald_format::{ByteLen, Digest, Error, Result};
use weald_image::ImageStart;

/// Most session threads that `workers=` accepts: each costs a stack and a request buffer.
const WORKER_COUNT_MAX: usize = 1024;

/// Most that `max_readahead=` accepts: the kernel holds as much for every file that is read in
/// order.
const READ_AHEAD_LEN_MAX: u64 = 64 << 20;

/// Who may enter the mount, file permissions aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Everybody, as on a kernel file system.
    Everybody,
    /// Who mounted it, and root.
    OwnerAndRoot,
    /// Who mounted it.
    Owner,
}

/// What the `-o` options of a mount say; [`Default`] is what none of them say.
///
/// Set-uid bits and device nodes of an image do nothing unless root asks for each by its own word:
/// an image is data of somebody else. `None` in `access` means everybody for root's mounts, and
/// only themselves for others, as FUSE allows it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MountOptions {
    /// `allow_other`, `allow_root`.
    pub access: Option<Access>,
    /// `uid=`, `gid=`, `umask=`.
    pub overrides: Overrides,
    /// `cachesize=`: most bytes of decoded blocks and pages kept; less than 32 MiB keeps up to 8
    /// MiB of pages all the same, 0 nothing.
    pub cache_len: Option<ByteLen>,
    /// `workers=`: threads that answer the kernel; where it is not given four more than CPUs, or
    /// two more where nothing is decoded.
    pub worker_count: Option<usize>,
    /// `max_readahead=`: how far the kernel reads ahead, if root mounts.
    pub read_ahead_len: Option<ByteLen>,
    /// `offset=`: where the image begins in its file; `auto` finds it.
    pub start: ImageStart,
    /// `digest=`: the image digest that the image must have.
    pub expected_digest: Option<Digest>,
    /// `generation=`: which state of the image is mounted instead of the last.
    pub generation: Option<u64>,
    /// `basedir=`, any number of times: where base images are looked for, besides the directory of
    /// the image.
    pub base_dirs: Vec<PathBuf>,
    /// `subdir=`: the directory of the image that is mounted instead of its root.
    pub subdir: Option<PathBuf>,
    /// `fsname=`: what `/proc/mounts` shows as source instead of the path of the image.
    pub source_name: Option<String>,
    /// `subtype=`: what it shows after `fuse.` instead of `weald`.
    pub subtype: Option<String>,
    /// `dev`, `nodev`: whether device nodes can be opened; only in root's mounts.
    pub has_devices: bool,
    /// `suid`, `nosuid`: whether set-uid and set-gid bits and file capabilities count; only in
    /// root's mounts.
    pub has_suid: bool,
    /// `noexec`.
    pub is_noexec: bool,
    /// `noatime`.
    pub is_noatime: bool,
}

impl MountOptions {
    /// Parses the arguments of any number of `-o`, each a list separated by commas; a later word
    /// wins over an earlier. `\` takes the meaning from the character after it, so that a value can
    /// hold a comma.
    ///
    /// # Errors
    /// `Invalid` for unknown words, `rw` and bad values.
    pub fn parse<S: AsRef<str>>(lists: impl IntoIterator<Item = S>) -> Result<Self> {
        let mut options = Self::default();
        for list in lists {
            for word in split(list.as_ref()) {
                options
                    .take(&word)
                    .map_err(|error| error.context(format!("option '{word}'")))?;
            }
        }
        Ok(options)
    }

    /// The list that a mount helper should go by: without `rw`, which mount(8) passes whenever
    /// nobody says `ro`, and without unknown words where `is_sloppy` (mount's `-s`).
    pub fn for_helper(list: &str, is_sloppy: bool) -> String {
        let keeps = |word: &String| {
            let is_known = || Self::default().take(word).is_ok();
            word != "rw" && (!is_sloppy || is_known())
        };
        let escape = |word: String| word.replace('\\', r"\\").replace(',', r"\,");
        let words: Vec<String> = split(list).into_iter().filter(keeps).map(escape).collect();
        words.join(",")
    }

    fn take(&mut self, word: &str) -> Result<()> {
        match word.split_once('=') {
            Some((key, value)) => self.take_value(key, value),
            None => self.take_flag(word),
        }
    }

    fn take_flag(&mut self, flag: &str) -> Result<()> {
        match flag {
            "rw" => {
                return Err(Error::invalid(
                    "an image is read-only; leave it out or say ro",
                ));
            }
            "allow_other" => self.access = Some(Access::Everybody),
            "allow_root" => self.access = Some(Access::OwnerAndRoot),
            "dev" => self.has_devices = true,
            "nodev" => self.has_devices = false,
            "suid" => self.has_suid = true,
            "nosuid" => self.has_suid = false,
            "exec" => self.is_noexec = false,
            "noexec" => self.is_noexec = true,
            "atime" => self.is_noatime = false,
            "noatime" => self.is_noatime = true,
            "user" | "users" | "owner" | "group" => {
                // mount(8) implies these, and lets words that follow take them back.
                self.has_devices = false;
                self.has_suid = false;
                self.is_noexec |= matches!(flag, "user" | "users");
            }
            _ if is_for_others(flag) => {}
            _ => return Err(unknown()),
        }
        Ok(())
    }

    fn take_value(&mut self, key: &str, value: &str) -> Result<()> {
        match key {
            "uid" => self.overrides.uid = Some(number(value)?),
            "gid" => self.overrides.gid = Some(number(value)?),
            "umask" => self.overrides.umask = octal(value)?,
            "cachesize" => self.cache_len = Some(size(value)?),
            "workers" => self.worker_count = Some(worker_count(value)?),
            "max_readahead" => self.read_ahead_len = Some(read_ahead_len(value)?),
            "offset" => self.start = offset(value)?,
            "digest" => self.expected_digest = Some(digest(value)?),
            "generation" => self.generation = Some(number(value)?.into()),
            "basedir" => self.base_dirs.push(PathBuf::from(value)),
            "subdir" => self.subdir = Some(PathBuf::from(value)),
            "fsname" => self.source_name = Some(value.to_owned()),
            "subtype" => self.subtype = Some(subtype(value)?),
            "comment" => {}
            _ if key.starts_with("x-") || key.starts_with("X-") => {}
            _ => return Err(unknown()),
        }
        Ok(())
    }
}

/// Words that mean nothing to a read-only image, or that mount(8), fstab and systemd keep for
/// themselves.
fn is_for_others(flag: &str) -> bool {
    const WORDS: &[&str] = &[
        "",
        "ro",
        "defaults",
        "default_permissions",
        "auto",
        "noauto",
        "nouser",
        "nousers",
        "noowner",
        "nogroup",
        "nofail",
        "_netdev",
        "async",
        "sync",
        "dirsync",
        "relatime",
        "norelatime",
        "strictatime",
        "nostrictatime",
        "diratime",
        "nodiratime",
        "lazytime",
        "nolazytime",
        "silent",
        "loud",
        "iversion",
        "noiversion",
        "mand",
        "nomand",
    ];
    WORDS.contains(&flag) || flag.starts_with("x-") || flag.starts_with("X-")
}

fn unknown() -> Error {
    Error::invalid("there is no such option ('weald mount --help' lists them)")
}

/// Splits at commas that no `\` precedes, and takes the `\` away.
fn split(list: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut letters = list.chars();
    while let Some(letter) = letters.next() {
        let taken = match letter {
            ',' => {
                words.push(String::new());
                continue;
            }
            '\\' => letters.next().unwrap_or('\\'),
            other => other,
        };
        if let Some(word) = words.last_mut() {
            word.push(taken);
        }
    }
    words
}

fn number(value: &str) -> Result<u32> {
    value
        .parse()
        .map_err(|_| Error::invalid("expected a number from 0 to 4294967295"))
}

fn octal(value: &str) -> Result<u16> {
    u16::from_str_radix(value, 8)
        .ok()
        .filter(|bits| *bits <= 0o7777)
        .ok_or_else(|| Error::invalid("expected an octal number up to 7777, such as 022"))
}

fn worker_count(value: &str) -> Result<usize> {
    value
        .parse()
        .ok()
        .filter(|count| (1..=WORKER_COUNT_MAX).contains(count))
        .ok_or_else(|| {
            Error::invalid(format!(
                "expected a number of threads from 1 to {WORKER_COUNT_MAX}"
            ))
        })
}

/// Bytes, or with a suffix KiB, MiB, GiB, TiB (`K`, `M`, `G`, `T`, of either case, `iB` or not).
fn size(value: &str) -> Result<ByteLen> {
    let lower = value.to_ascii_lowercase();
    let text = lower.trim_end_matches("ib");
    let (digits, shift) = match text.char_indices().last() {
        Some((at, 'k')) => (&text[..at], 10),
        Some((at, 'm')) => (&text[..at], 20),
        Some((at, 'g')) => (&text[..at], 30),
        Some((at, 't')) => (&text[..at], 40),
        _ => (text, 0),
    };
    digits
        .parse::<u64>()
        .ok()
        .and_then(|count| count.checked_mul(1 << shift))
        .map(ByteLen)
        .ok_or_else(|| Error::invalid("expected a size such as 512M or 2G"))
}

fn read_ahead_len(value: &str) -> Result<ByteLen> {
    let len = size(value)?;
    match len.0 <= READ_AHEAD_LEN_MAX {
        true => Ok(len),
        false => Err(Error::invalid("expected a size of 64M at most")),
    }
}

fn offset(value: &str) -> Result<ImageStart> {
    match value {
        "auto" => Ok(ImageStart::Auto),
        value => Ok(size(value)?.0.into()),
    }
}

fn digest(value: &str) -> Result<Digest> {
    Digest::from_hex(value).ok_or_else(|| Error::invalid("expected 64 hexadecimal digits"))
}

fn subtype(value: &str) -> Result<String> {
    let is_plain = !value.is_empty()
        && value
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
    if is_plain {
        Ok(value.to_owned())
    } else {
        Err(Error::invalid("expected letters, digits, '.', '_' or '-'"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weald_format::ErrorKind;

    fn parse(list: &str) -> Result<MountOptions> {
        MountOptions::parse([list])
    }

    #[test]
    fn our_words_are_understood() {
        let options = parse(
            "allow_other,uid=7,gid=8,umask=027,cachesize=2G,workers=3,max_readahead=131072,offset=4k,nodev,suid,noexec",
        );
        let options = options.expect("all words are known");
        assert_eq!(options.access, Some(Access::Everybody));
        assert_eq!(
            options.overrides,
            Overrides {
                uid: Some(7),
                gid: Some(8),
                umask: 0o027
            }
        );
        assert_eq!(options.cache_len, Some(ByteLen(2 << 30)));
        assert_eq!(options.worker_count, Some(3));
        assert_eq!(options.read_ahead_len, Some(ByteLen(128 << 10)));
        assert_eq!(options.start, 4096.into());
        assert_eq!(parse("offset=auto").expect("known").start, ImageStart::Auto);
        assert_eq!((options.has_devices, options.has_suid), (false, true));
        assert!(options.is_noexec);
    }

    /// Would catch: `-o dev` that brings set-uid bits along, or the words of fstab that bring both.
    #[test]
    fn set_uid_bits_and_devices_are_asked_for_one_by_one() {
        for (list, expected) in [
            ("", (false, false)),
            ("defaults,exec,allow_other", (false, false)),
            ("dev", (true, false)),
            ("suid", (false, true)),
            ("suid,dev", (true, true)),
            ("suid,dev,nosuid", (true, false)),
            ("suid,dev,user", (false, false)),
        ] {
            let options = parse(list).expect(list);
            assert_eq!((options.has_devices, options.has_suid), expected, "{list}");
        }
    }

    #[test]
    fn words_of_mount_and_fstab_change_nothing() {
        let list = "defaults,auto,noauto,nouser,nofail,_netdev,x-systemd.automount,x-gvfs-name=a b,comment=hello,async,\
                    relatime,nodiratime,ro,";
        assert_eq!(parse(list).expect("accepted"), MountOptions::default());
    }

    #[test]
    fn user_implies_what_mount_says_and_later_words_win() {
        let options = parse("user,suid").expect("accepted");
        assert_eq!((options.has_devices, options.has_suid), (false, true));
        assert!(options.is_noexec);
        assert!(!parse("user,exec").expect("accepted").is_noexec);
    }

    #[test]
    fn commas_can_be_escaped() {
        let options = parse(r"fsname=a\,b\\c,ro").expect("accepted");
        assert_eq!(options.source_name.as_deref(), Some(r"a,b\c"));
    }

    #[test]
    fn a_helper_overlooks_rw_and_if_asked_the_unknown() {
        let list = r"rw,noexec,fsname=a\,b,fast";
        assert_eq!(
            MountOptions::for_helper(list, false),
            r"noexec,fsname=a\,b,fast"
        );
        assert_eq!(MountOptions::for_helper(list, true), r"noexec,fsname=a\,b");
    }

    #[test]
    fn refusals_name_the_word_and_the_reason() {
        let table = [
            (
                "rw",
                ErrorKind::Invalid,
                "option 'rw': an image is read-only",
            ),
            (
                "fast",
                ErrorKind::Invalid,
                "option 'fast': there is no such option",
            ),
            (
                "speed=9",
                ErrorKind::Invalid,
                "option 'speed=9': there is no such option",
            ),
            (
                "umask=9",
                ErrorKind::Invalid,
                "option 'umask=9': expected an octal number",
            ),
            (
                "uid=-1",
                ErrorKind::Invalid,
                "option 'uid=-1': expected a number",
            ),
            (
                "workers=0",
                ErrorKind::Invalid,
                "option 'workers=0': expected a number of threads",
            ),
            (
                "cachesize=big",
                ErrorKind::Invalid,
                "option 'cachesize=big': expected a size",
            ),
            ("cachesize=99999999T", ErrorKind::Invalid, "expected a size"),
            ("max_readahead=65M", ErrorKind::Invalid, "64M at most"),
            (
                "digest=12",
                ErrorKind::Invalid,
                "option 'digest=12': expected 64 hexadecimal digits",
            ),
            (
                "offset=end",
                ErrorKind::Invalid,
                "option 'offset=end': expected a size",
            ),
            (
                "subtype=a/b",
                ErrorKind::Invalid,
                "option 'subtype=a/b': expected letters",
            ),
        ];
        for (list, kind, text) in table {
            let error = parse(list).expect_err(list);
            assert_eq!(error.kind(), kind, "{list}");
            assert!(error.to_string().contains(text), "{list}: {error}");
        }
    }

    #[test]
    fn sizes_have_binary_suffixes() {
        for (text, len) in [
            ("12", 12),
            ("1K", 1024),
            ("1KiB", 1024),
            ("3m", 3 << 20),
            ("1T", 1 << 40),
        ] {
            assert_eq!(size(text).expect(text), ByteLen(len));
        }
    }
}
