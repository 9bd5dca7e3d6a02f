//! Mount options (`-o`) of volumes: their own words; all others are those of
//! [`MountOptions`](weald_fuse::MountOptions).

use std::time::Duration;
use weald_format::{Error, Result};
use weald_fuse::{MountOptions, WritableOptions, parse_size};
use weald_volume::{OpenOptions, SyncMode};

/// Longest interval between two commits.
const COMMIT_INTERVAL_MAX: Duration = Duration::from_secs(3600);

/// Smallest memory for changes that are not on disk, in bytes.
const CACHE_LEN_MIN: u64 = 4 << 20;

/// Longest time to wait for another writer.
const WAIT_MAX: Duration = Duration::from_secs(86400);

/// Interval between two commits with `mode=ram`.
const MEMORY_INTERVAL: Duration = Duration::from_secs(30);

/// Memory with `mode=ram`, in bytes.
const MEMORY_CACHE_LEN: u64 = 1 << 30;

/// Parsed `-o` options of the mount of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeMountOptions {
    /// `commit-interval=`: the longest time between two commits.
    pub commit_interval: Duration,
    /// `cache=`: memory for changes that are not on disk yet, in bytes.
    pub cache_len: u64,
    /// `fsync=`: what fsync(2) waits for.
    pub sync_mode: SyncMode,
    /// `barrier=ignore`: whether the disk is not synced before the volume is unmounted.
    pub ignores_barriers: bool,
    /// `log=off`: whether a sync always commits.
    pub has_log: bool,
    /// `log=drop`: whether a volume is mounted although synced changes are damaged.
    pub drops_damaged_log: bool,
    /// `mode=ram`: whether the volume is loaded into memory, and saved at intervals.
    pub is_in_memory: bool,
    /// `snapdir=visible`: whether listings of the root have `.snapshots`.
    pub shows_snapshots: bool,
    /// `wait=`: how long the mount waits for another command that writes to the store.
    pub wait: Duration,
    /// Which of the three words above `mode=` were given; it does not change them then.
    given: Given,
    /// The words that images have, too.
    pub mount: MountOptions,
    /// `ro`, `noatime` and the like.
    pub writable: WritableOptions,
}

/// Words that `mode=ram` gives other defaults.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Given {
    interval: bool,
    cache: bool,
    sync: bool,
}

impl Default for VolumeMountOptions {
    fn default() -> Self {
        let open = OpenOptions::default();
        Self {
            commit_interval: open.commit_interval,
            cache_len: open.cache_len,
            sync_mode: open.sync_mode,
            ignores_barriers: false,
            has_log: true,
            drops_damaged_log: false,
            is_in_memory: false,
            shows_snapshots: false,
            wait: Duration::ZERO,
            given: Given::default(),
            mount: MountOptions::default(),
            writable: WritableOptions::default(),
        }
    }
}

impl VolumeMountOptions {
    /// Parses the arguments of all `-o`. A later option overrides an earlier one.
    ///
    /// # Errors
    /// `Invalid` for unknown options, options of images and bad values.
    pub fn parse<S: AsRef<str>>(lists: impl IntoIterator<Item = S>) -> Result<Self> {
        let mut options = Self::default();
        let parsed = MountOptions::parse_writable(lists, &mut |word| options.apply(word))?;
        (options.mount, options.writable) = parsed;
        if options.is_in_memory {
            options.default_to_memory();
        }
        options.refuse_contradiction()?;
        Ok(options)
    }

    /// As [`VolumeMountOptions::parse`], for a volume of a store that only root can write if
    /// `is_roots`. In another one, set-uid bits and devices need the words `suid` and `dev`, and a
    /// block device needs `fuseblk`: sync(2) of all users waits for the volume then, and its owner
    /// could make it wait for long.
    ///
    /// # Errors
    /// As [`VolumeMountOptions::parse`].
    pub fn parse_in<S: AsRef<str>>(is_roots: bool, lists: &[S]) -> Result<Self> {
        let first = if is_roots {
            ""
        } else {
            "nosuid,nodev,nofuseblk"
        };
        Self::parse(std::iter::once(first).chain(lists.iter().map(AsRef::as_ref)))
    }

    /// `sync` promises that a change is on the disk; some words take that back.
    fn refuse_contradiction(&self) -> Result<()> {
        let live = self.writable.live;
        let word = match self.sync_mode {
            _ if !live.is_sync && !live.is_dirsync => return Ok(()),
            _ if self.ignores_barriers => "barrier=ignore",
            SyncMode::Strict => return Ok(()),
            _ if self.is_in_memory && !self.given.sync => "mode=ram",
            SyncMode::Data => "fsync=data",
            SyncMode::Ignore => "fsync=ignore",
        };
        Err(Error::invalid(format!(
            "options sync and dirsync mean that a change is on the disk when its call returns, and \
             {word} means that it need not be: leave one of them out"
        )))
    }

    /// Options to open the volume with; `writer_name` is this process, for refused writers.
    pub fn open_options(&self, writer_name: String) -> OpenOptions {
        let default = OpenOptions::default();
        OpenOptions {
            is_read_only: self.writable.is_read_only,
            commit_interval: self.commit_interval,
            cache_len: self.cache_len,
            sync_mode: self.sync_mode,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            ignores_barriers: self.ignores_barriers,
            log_len: if self.has_log { default.log_len } else { 0 },
            drops_damaged_log: self.drops_damaged_log,
            is_preloaded: self.is_in_memory,
            shows_snapshots: self.shows_snapshots,
            writer_name,
            ..default
        }
    }

    /// Sets what `mode=ram` changes and no word gives.
    fn default_to_memory(&mut self) {
        if !self.given.interval {
            self.commit_interval = MEMORY_INTERVAL;
        }
        if !self.given.cache {
            self.cache_len = MEMORY_CACHE_LEN;
        }
        if !self.given.sync {
            self.sync_mode = SyncMode::Ignore;
        }
    }

    /// Applies a word of volumes; returns false for another word.
    fn apply(&mut self, word: &str) -> Result<bool> {
        let (key, value) = match word.split_once('=') {
            Some((key, value)) => (key, Some(value)),
            None => (word, None),
        };
        match (key, value) {
            ("commit-interval", Some(value)) => {
                (self.commit_interval, self.given.interval) = (interval(value)?, true);
            }
            ("cache", Some(value)) => {
                (self.cache_len, self.given.cache) = (cache_len(value)?, true);
            }
            ("fsync", Some(value)) => {
                (self.sync_mode, self.given.sync) = (sync_mode(value)?, true);
            }
            ("barrier", Some("honour")) => self.ignores_barriers = false,
            ("barrier", Some("ignore")) => self.ignores_barriers = true,
            ("barrier", _) => return Err(Error::invalid("expected honour or ignore")),
            ("log", Some("on")) => self.has_log = true,
            ("log", Some("off")) => self.has_log = false,
            ("log", Some("drop")) => self.drops_damaged_log = true,
            ("log", _) => return Err(Error::invalid("expected on, off or drop")),
            ("snapdir", Some("hidden")) => self.shows_snapshots = false,
            ("snapdir", Some("visible")) => self.shows_snapshots = true,
            ("snapdir", _) => return Err(Error::invalid("expected hidden or visible")),
            ("wait", Some(value)) => self.wait = wait(value)?,
            ("mode", Some("disk")) => self.is_in_memory = false,
            ("mode", Some("ram")) => self.is_in_memory = true,
            ("mode", _) => return Err(Error::invalid("expected disk or ram")),
            _ => return Ok(false),
        }
        Ok(true)
    }
}

fn interval(value: &str) -> Result<Duration> {
    let seconds = value.strip_suffix('s').unwrap_or(value);
    let seconds: Option<f64> = seconds.parse().ok();
    seconds
        .filter(|seconds| (0.01..=COMMIT_INTERVAL_MAX.as_secs_f64()).contains(seconds))
        .map(Duration::from_secs_f64)
        .ok_or_else(|| Error::invalid("expected seconds from 0.01 to 3600, such as 5"))
}

fn wait(value: &str) -> Result<Duration> {
    let seconds = value.strip_suffix('s').unwrap_or(value);
    let wait = seconds.parse().ok().map(Duration::from_secs);
    wait.filter(|wait| *wait <= WAIT_MAX)
        .ok_or_else(|| Error::invalid("expected whole seconds from 0 to 86400, such as 30"))
}

fn cache_len(value: &str) -> Result<u64> {
    let len = parse_size(value).ok().map(|len| len.0);
    len.filter(|len| *len >= CACHE_LEN_MIN)
        .ok_or_else(|| Error::invalid("expected a size of 4M or more, such as 64M"))
}

fn sync_mode(value: &str) -> Result<SyncMode> {
    match value {
        "strict" => Ok(SyncMode::Strict),
        "data" => Ok(SyncMode::Data),
        "ignore" => Ok(SyncMode::Ignore),
        _ => Err(Error::invalid("expected strict, data or ignore")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weald_fuse::BlockUse;

    fn parse(list: &str) -> Result<VolumeMountOptions> {
        VolumeMountOptions::parse([list])
    }

    #[test]
    fn words_of_volumes_are_parsed() {
        let options = parse(
            "rw,ro,noatime,commit-interval=0.5,cache=1G,fsync=ignore,allow_other,suid,x-a=b,nofail",
        );
        let options = options.expect("all words are known");
        assert!(options.writable.is_read_only && options.mount.is_noatime);
        assert_eq!(options.commit_interval, Duration::from_millis(500));
        assert_eq!(options.cache_len, 1 << 30);
        assert_eq!(options.sync_mode, SyncMode::Ignore);
        assert_eq!(options.mount.access, Some(weald_fuse::Access::Everybody));
        let default = parse("").expect("no option");
        assert_eq!(default.commit_interval, Duration::from_secs(5));
        assert_eq!(default.sync_mode, SyncMode::Strict);
        assert!(!default.ignores_barriers && !default.open_options(String::new()).is_preloaded);
        assert!(parse("barrier=ignore").expect("known").ignores_barriers);
        let log_len = |words| {
            let options = parse(words).expect("known").open_options(String::new());
            (options.log_len > 0, options.drops_damaged_log)
        };
        assert_eq!(log_len("noatime"), (true, false));
        assert_eq!(log_len("log=off"), (false, false));
        assert_eq!(log_len("log=off,log=on"), (true, false));
        assert_eq!(log_len("log=drop"), (true, true));
        assert!(parse("log=no").is_err());
        let barriers = parse("barrier=ignore,barrier=honour").expect("known");
        assert!(!barriers.ignores_barriers);
    }

    /// Would catch: programs of another user's volume that root runs with that user's set-uid bits,
    /// and a word that does not count.
    #[test]
    fn what_a_store_that_others_can_write_must_not_do_needs_a_word() {
        let flags = |is_roots, list: &str| {
            let mount = VolumeMountOptions::parse_in(is_roots, &[list])
                .expect("known")
                .mount;
            (mount.has_suid, mount.has_devices)
        };
        let is_root = rustix::process::geteuid().is_root();
        assert_eq!(flags(true, "rw"), (is_root, is_root));
        assert_eq!(flags(true, "nosuid"), (false, is_root));
        assert_eq!(flags(false, "rw,noatime"), (false, false));
        assert_eq!(flags(false, "suid"), (true, false));
        assert_eq!(flags(false, "dev,suid"), (true, true));
        let block = |is_roots, list: &str| {
            let options = VolumeMountOptions::parse_in(is_roots, &[list]).expect("known");
            options.writable.block
        };
        assert_eq!(block(true, "rw"), BlockUse::IfPossible);
        assert_eq!(block(true, "nofuseblk"), BlockUse::Never);
        assert_eq!(block(false, "rw"), BlockUse::Never);
        assert_eq!(block(false, "fuseblk"), BlockUse::Always);
    }

    /// Would catch: a mode that overrides what the user says.
    #[test]
    fn the_mode_gives_defaults() {
        let ram = parse("mode=ram").expect("known");
        assert_eq!(
            (ram.commit_interval, ram.cache_len),
            (MEMORY_INTERVAL, MEMORY_CACHE_LEN)
        );
        assert_eq!(ram.sync_mode, SyncMode::Ignore);
        assert!(ram.open_options(String::new()).is_preloaded);
        let given = parse("commit-interval=9,fsync=strict,mode=ram,cache=8M").expect("known");
        assert_eq!(
            (given.commit_interval.as_secs(), given.cache_len),
            (9, 8 << 20)
        );
        assert_eq!(given.sync_mode, SyncMode::Strict);
        assert!(!parse("mode=ram,mode=disk").expect("known").is_in_memory);
    }

    /// Would catch: `sync` that another word makes a lie.
    #[test]
    fn words_that_contradict_sync_are_refused() {
        for (words, is_fine) in [
            ("sync", true),
            ("sync,fsync=strict,mode=ram", true),
            ("sync,fsync=data", false),
            ("fsync=ignore,dirsync", false),
            ("sync,barrier=ignore", false),
            ("mode=ram,sync", false),
            ("mode=ram,sync,async", true),
        ] {
            assert_eq!(parse(words).is_ok(), is_fine, "{words}");
        }
        assert!(parse("sync").expect("known").writable.live.is_sync);
    }

    /// Would catch: a mount that ignores a mistyped word, or one that only images have.
    #[test]
    fn bad_words_are_refused_by_name() {
        for word in [
            "fast",
            "wait=-1",
            "wait=86401",
            "wait=x",
            "wait",
            "commit-interval=0",
            "commit-interval=-1",
            "commit-interval=NaN",
            "commit-interval=4000",
            "cache=1K",
            "cache=lots",
            "fsync=maybe",
            "barrier=maybe",
            "barrier",
            "mode=tape",
            "generation=2",
            "kernel",
            "uid=1",
            "cache=99999999T",
        ] {
            let error = parse(word).expect_err(word).to_string();
            assert!(error.contains(&format!("option '{word}'")), "{error}");
        }
    }
}
