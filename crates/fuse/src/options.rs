//! Mount options (`-o`): our own, the kernel's, and those that mount(8) and fstab pass to every
//! file system.

use crate::attr::Overrides;
use crate::words::{self, Mounted};
use crate::writable_options::WritableOptions;
use std::path::PathBuf;
use std::time::Duration;
use weald_filter::IdMap;
use weald_format::{ByteLen, Digest, Error, Result};
use weald_image::ImageStart;

/// Upper limit of `workers=`: each thread costs a stack and a request buffer.
const WORKER_COUNT_MAX: usize = 1024;

/// Upper limit of `max_readahead=`, in bytes: the kernel holds this much for every sequential
/// reader.
const READ_AHEAD_LEN_MAX: u64 = 64 << 20;

/// Users that may access the mount; file permissions apply as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// All users, as on a kernel file system.
    Everybody,
    /// The user who mounted, and root.
    OwnerAndRoot,
    /// Only the user who mounted.
    Owner,
}

/// Options of a mount that the kernel serves with overlayfs. A mount through FUSE has none of them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KernelOptions {
    /// `kernel`: the kernel serves the mount.
    pub is_on: bool,
    /// `overlay`: a server shows the metadata, in a user namespace.
    pub is_overlay: bool,
    /// `upperdir=`: directory of a writable layer.
    pub upper: Option<PathBuf>,
    /// `workdir=`: work directory of the writable layer.
    pub work: Option<PathBuf>,
    /// `adoptupper`: a writable layer of another image is taken.
    pub adopts_upper: bool,
    /// `verity=`: `require`, `try` or `off`.
    pub verity: Option<String>,
    /// `fsverity=`: expected fs-verity digest of the metadata image.
    pub metadata_digest: Option<Digest>,
    /// `viewcache=`: directory of metadata images and objects.
    pub cache: Option<PathBuf>,
    /// `viewlimit=`: limit of the view cache in bytes.
    pub cache_len: Option<ByteLen>,
}

/// Options of a mount of a URL; what none of them says is as the process has it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UrlOptions {
    /// `urlcache=`: directory that keeps what was read.
    pub cache: Option<PathBuf>,
    /// `urlcachesize=`: limit of that directory in bytes.
    pub cache_len: Option<ByteLen>,
    /// `urltimeout=`: how long a read waits for the server.
    pub timeout: Option<Duration>,
}

impl UrlOptions {
    /// Whether none of the words was given.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Parsed `-o` options of a mount; [`Default`] is a mount without options.
///
/// Set-uid bits and device nodes have no effect unless root gives `suid` or `dev`: an image may
/// come from another user. `None` in `access` admits all users to a mount of root. It admits only
/// the user who mounted otherwise, as FUSE does.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MountOptions {
    /// `allow_other`, `allow_root`.
    pub access: Option<Access>,
    /// `uid=`, `gid=`, `umask=`.
    pub overrides: Overrides,
    /// `map_uid=`, repeatable: what users become, in ACLs, too.
    pub uids: IdMap,
    /// `map_gid=`, repeatable: what groups become, in ACLs, too.
    pub gids: IdMap,
    /// `cachesize=`: cache limit for decoded blocks and pages, in bytes. A limit below 32 MiB still
    /// keeps up to 8 MiB of pages; 0 disables the cache.
    pub cache_len: Option<ByteLen>,
    /// `workers=`: threads that answer the kernel. The default is the number of CPUs plus four, or
    /// plus two if the image is stored without compression.
    pub worker_count: Option<usize>,
    /// `max_readahead=`: the kernel's readahead in bytes; only root can change it.
    pub read_ahead_len: Option<ByteLen>,
    /// `offset=`: start of the image in its file; `auto` searches for it.
    pub start: ImageStart,
    /// `digest=`: expected digest of the image.
    pub expected_digest: Option<Digest>,
    /// `generation=`: generation of the image to mount; the default is the last one.
    pub generation: Option<u64>,
    /// `follow`: the mount shows the image that has the name in the store at the moment.
    pub follows_name: bool,
    /// `basedir=`, repeatable: directories that hold base images, in addition to the directory of
    /// the image.
    pub base_dirs: Vec<PathBuf>,
    /// `subdir=`: directory of the image to mount instead of its root.
    pub subdir: Option<PathBuf>,
    /// `fsname=`: source in `/proc/mounts`; the default is the path of the image.
    pub source_name: Option<String>,
    /// `subtype=`: file system type in `/proc/mounts` after `fuse.`; the default is `weald`.
    pub subtype: Option<String>,
    /// `dev`, `nodev`: whether device nodes can be opened; only for mounts of root.
    pub has_devices: bool,
    /// `suid`, `nosuid`: whether set-uid bits, set-gid bits and file capabilities take effect; only
    /// for mounts of root.
    pub has_suid: bool,
    /// `noexec`: the kernel refuses to execute files of the mount.
    pub is_noexec: bool,
    /// `noatime`: the kernel shows the flag; an image never changes access times.
    pub is_noatime: bool,
    /// Options of a mount that the kernel serves.
    pub kernel: KernelOptions,
    /// Options of a mount of a URL.
    pub url: UrlOptions,
}

impl MountOptions {
    /// Parses the arguments of all `-o`, each a comma-separated list. A later option overrides an
    /// earlier one. `\` escapes the next character, so that a value can contain a comma.
    ///
    /// # Errors
    /// `Invalid` for unknown options, `rw` and bad values.
    pub fn parse<S: AsRef<str>>(lists: impl IntoIterator<Item = S>) -> Result<Self> {
        let mut options = Self::default();
        for list in lists {
            for word in split(list.as_ref()) {
                options
                    .apply_to_image(&word)
                    .map_err(|error| error.context(format!("option '{word}'")))?;
            }
        }
        Ok(options)
    }

    /// Parses the options of a file system that can change, as [`MountOptions::parse`] does. `own`
    /// takes the words that belong to that file system, such as `commit-interval=5`; it returns
    /// false for a word that it does not know. Device nodes and set-uid bits take effect for root,
    /// unless `nodev` or `nosuid` is among the words.
    ///
    /// # Errors
    /// `Invalid` for unknown options and bad values; errors of `own`.
    pub fn parse_writable<S: AsRef<str>>(
        lists: impl IntoIterator<Item = S>,
        own: &mut dyn FnMut(&str) -> Result<bool>,
    ) -> Result<(Self, WritableOptions)> {
        let is_root = rustix::process::geteuid().is_root();
        let mut options = Self {
            has_devices: is_root,
            has_suid: is_root,
            ..Self::default()
        };
        let mut writable = WritableOptions::default();
        for list in lists {
            for word in split(list.as_ref()) {
                let is_writable = writable.apply(&word);
                let mut apply = || match word.as_str() {
                    // mount(2) has flags for these, too.
                    word @ ("atime" | "noatime") => options.apply(word),
                    _ if is_writable => Ok(()),
                    // A word that the table lacks is refused here, too.
                    word if own(word)? => words::refuse_foreign(word, Mounted::Volume),
                    word if words::is_without_effect_on_volume(word)? => Ok(()),
                    word => {
                        words::refuse_foreign(word, Mounted::Volume)?;
                        options.apply(word)
                    }
                };
                apply().map_err(|error| error.context(format!("option '{word}'")))?;
            }
        }
        Ok((options, writable))
    }

    /// Filters the options of mount(8) for a mount helper. Drops `rw`, which mount(8) passes unless
    /// the user gives `ro`. Drops unknown options if `is_sloppy` (mount's `-s`).
    pub fn for_helper(list: &str, is_sloppy: bool) -> String {
        let keeps = |word: &String| {
            let is_known = || Self::default().apply_to_image(word).is_ok();
            word != "rw" && (!is_sloppy || is_known())
        };
        let escape = |word: String| word.replace('\\', r"\\").replace(',', r"\,");
        let words: Vec<String> = split(list).into_iter().filter(keeps).map(escape).collect();
        words.join(",")
    }

    /// Whether users or groups become others.
    pub fn maps_owners(&self) -> bool {
        !self.uids.is_empty() || !self.gids.is_empty()
    }

    fn apply_to_image(&mut self, word: &str) -> Result<()> {
        if word == "rw" {
            let what = "an image is read-only; remove 'rw' or use 'ro'";
            return Err(Error::invalid(what));
        }
        if words::is_without_effect_on_image(word) {
            return Ok(());
        }
        words::refuse_foreign(word, Mounted::Image)?;
        self.apply(word)
    }

    fn apply(&mut self, word: &str) -> Result<()> {
        match word.split_once('=') {
            Some((key, value)) => self.apply_value(key, value),
            None => self.apply_flag(word),
        }
    }

    fn apply_flag(&mut self, flag: &str) -> Result<()> {
        match flag {
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
            "follow" => self.follows_name = true,
            "kernel" => self.kernel.is_on = true,
            "overlay" => self.kernel.is_overlay = true,
            "adoptupper" => self.kernel.adopts_upper = true,
            "user" | "users" | "owner" | "group" => {
                // mount(8) implies these flags; later options may revert them.
                self.has_devices = false;
                self.has_suid = false;
                self.is_noexec |= matches!(flag, "user" | "users");
            }
            _ => return Err(unknown()),
        }
        Ok(())
    }

    fn apply_value(&mut self, key: &str, value: &str) -> Result<()> {
        match key {
            "uid" => self.overrides.uid = Some(number(value)?),
            "gid" => self.overrides.gid = Some(number(value)?),
            "map_uid" => self.uids.add(value.parse()?),
            "map_gid" => self.gids.add(value.parse()?),
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
            "upperdir" => self.kernel.upper = Some(PathBuf::from(value)),
            "workdir" => self.kernel.work = Some(PathBuf::from(value)),
            "verity" => self.kernel.verity = Some(verity(value)?),
            "fsverity" => self.kernel.metadata_digest = Some(digest(value)?),
            "viewcache" => self.kernel.cache = Some(PathBuf::from(value)),
            "viewlimit" => self.kernel.cache_len = Some(size(value)?),
            "urlcache" => self.url.cache = Some(PathBuf::from(value)),
            "urlcachesize" => self.url.cache_len = Some(size(value)?),
            "urltimeout" => self.url.timeout = Some(timeout(value)?),
            "comment" => {}
            _ => return Err(unknown()),
        }
        Ok(())
    }
}

/// Time with a unit, of at least a second.
fn timeout(value: &str) -> Result<Duration> {
    let unit = value.char_indices().next_back();
    let (number, seconds) = match unit {
        Some((at, 's')) => (value.get(..at), 1),
        Some((at, 'm')) => (value.get(..at), 60),
        Some((at, 'h')) => (value.get(..at), 3600),
        _ => (None, 0),
    };
    let number: Option<u64> = number.and_then(|number| number.parse().ok());
    number
        .and_then(|number| number.checked_mul(seconds))
        .filter(|seconds| *seconds > 0)
        .map(Duration::from_secs)
        .ok_or_else(|| Error::invalid("expected a time, such as 30s or 5m"))
}

/// A word that the table has and no parser takes in this form, such as one without its value.
fn unknown() -> Error {
    Error::invalid("there is no such option ('weald mount --help' lists them)")
}

/// Splits at commas without a preceding `\`, and removes the escapes.
fn split(list: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut chars = list.chars();
    while let Some(first) = chars.next() {
        let unescaped = match first {
            ',' => {
                words.push(String::new());
                continue;
            }
            '\\' => chars.next().unwrap_or('\\'),
            other => other,
        };
        if let Some(word) = words.last_mut() {
            word.push(unescaped);
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

/// Parses a size in bytes. The suffixes `K`, `M`, `G` and `T`, in either case and also with `iB`,
/// stand for KiB, MiB, GiB and TiB.
///
/// # Errors
/// `Invalid` for anything else, and for more than 2^64 bytes.
pub fn size(value: &str) -> Result<ByteLen> {
    weald_vfs::parse_size(value)
        .map(ByteLen)
        .ok_or_else(|| Error::invalid("expected a size such as 512M or 2G"))
}

fn read_ahead_len(value: &str) -> Result<ByteLen> {
    let len = size(value)?;
    if len.0 <= READ_AHEAD_LEN_MAX {
        Ok(len)
    } else {
        Err(Error::invalid("expected a size up to 64M"))
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

fn verity(value: &str) -> Result<String> {
    match value {
        "require" | "try" | "off" => Ok(value.to_owned()),
        _ => Err(Error::invalid("expected require, try or off")),
    }
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

    /// Would catch: a time or a size that means something else than it says.
    #[test]
    fn options_of_urls_are_parsed() {
        let parsed = parse("urlcache=/var/u,urlcachesize=2G,urltimeout=5m").expect("known");
        let expected = UrlOptions {
            cache: Some("/var/u".into()),
            cache_len: Some(ByteLen(2 << 30)),
            timeout: Some(Duration::from_secs(300)),
        };
        assert_eq!(parsed.url, expected);
        assert!(!expected.is_empty());
        assert!(parse("").expect("none").url.is_empty());
        let long = format!("urltimeout={}h", u64::MAX);
        for word in [
            "urltimeout=5",
            "urltimeout=0s",
            "urltimeout=s",
            "urlcachesize=-1",
            &long,
        ] {
            assert!(parse(word).is_err(), "{word}");
        }
    }

    #[test]
    fn options_of_the_kernel_are_parsed() {
        let hex = "ab".repeat(32);
        let list = format!(
            "kernel,upperdir=/u,workdir=/w,adoptupper,verity=require,fsverity={hex},viewcache=/c,\
             viewlimit=1G"
        );
        let expected = KernelOptions {
            is_on: true,
            is_overlay: false,
            upper: Some("/u".into()),
            work: Some("/w".into()),
            adopts_upper: true,
            verity: Some("require".to_owned()),
            metadata_digest: Digest::from_hex(&hex),
            cache: Some("/c".into()),
            cache_len: Some(ByteLen(1 << 30)),
        };
        assert_eq!(parse(&list).expect("known").kernel, expected);
        assert!(parse("verity=on").is_err());
        let expected = KernelOptions {
            is_overlay: true,
            cache: Some("/c".into()),
            ..KernelOptions::default()
        };
        assert_eq!(
            parse("overlay,viewcache=/c").expect("known").kernel,
            expected
        );
    }

    #[test]
    fn own_options_are_parsed() {
        let options = parse(
            "allow_other,uid=7,gid=8,umask=027,cachesize=2G,workers=3,max_readahead=131072,\
             offset=4k,nodev,suid,noexec",
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

    /// Would catch: `-o dev` that enables set-uid bits too, or options of fstab that enable both.
    #[test]
    fn dev_and_suid_are_independent() {
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
    fn options_of_mount_and_fstab_change_nothing() {
        let list = "defaults,auto,noauto,nouser,nofail,_netdev,x-systemd.automount,\
                    x-gvfs-name=a b,comment=hello,async,relatime,nodiratime,ro,";
        assert_eq!(parse(list).expect("accepted"), MountOptions::default());
    }

    #[test]
    fn user_implies_flags_and_later_options_win() {
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
    fn a_helper_drops_rw_and_with_sloppy_the_unknown() {
        let list = r"rw,noexec,fsname=a\,b,fast";
        assert_eq!(
            MountOptions::for_helper(list, false),
            r"noexec,fsname=a\,b,fast"
        );
        assert_eq!(MountOptions::for_helper(list, true), r"noexec,fsname=a\,b");
    }

    #[test]
    fn refusals_name_the_option_and_the_reason() {
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
            ("max_readahead=65M", ErrorKind::Invalid, "up to 64M"),
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
    fn a_writable_mount_has_options_of_its_own() {
        use crate::writable_options::AccessTime;
        let mut seen = Vec::new();
        let mut own = |word: &str| {
            seen.push(word.to_owned());
            Ok(word.starts_with("commit-interval="))
        };
        let list = "rw,remount,strictatime,noexec,commit-interval=5,nodev,lazytime,ro";
        let parsed = MountOptions::parse_writable([list], &mut own);
        let (options, writable) = parsed.expect("all words are known");
        let is_root = rustix::process::geteuid().is_root();
        assert_eq!((options.has_devices, options.has_suid), (false, is_root));
        assert!(options.is_noexec && writable.is_remount && writable.is_read_only);
        assert_eq!(writable.live.access_time, AccessTime::Relative);
        assert_eq!(seen, ["noexec", "commit-interval=5", "nodev"]);

        let error = MountOptions::parse_writable(["fast"], &mut |_| Ok(false)).expect_err("no");
        assert!(
            error
                .to_string()
                .contains("option 'fast': there is no such option")
        );
        let parsed = MountOptions::parse_writable(["noatime"], &mut |_| Ok(false));
        let (options, writable) = parsed.expect("known");
        assert!(options.is_noatime && writable.live.access_time == AccessTime::Never);
        assert!(!writable.hides_xattrs);
        let parsed = MountOptions::parse_writable(["xattr,noxattr"], &mut |_| Ok(false));
        assert!(parsed.expect("known").1.hides_xattrs);
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
