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

/// Words of images that a volume does not have: it is one state, without base images.
const WORDS_OF_IMAGES: [&str; 14] = [
    "generation",
    "digest",
    "basedir",
    "offset",
    "subdir",
    "uid",
    "gid",
    "umask",
    "kernel",
    "upperdir",
    "workdir",
    "verity",
    "fsverity",
    "cachesize",
];

/// Parsed `-o` options of the mount of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeMountOptions {
    /// `commit-interval=`: the longest time between two commits.
    pub commit_interval: Duration,
    /// `cache=`: memory for changes that are not on disk yet, in bytes.
    pub cache_len: u64,
    /// `fsync=`: what fsync(2) waits for.
    pub sync_mode: SyncMode,
    /// The words that images have, too.
    pub mount: MountOptions,
    /// `ro`, `noatime` and the like.
    pub writable: WritableOptions,
}

impl Default for VolumeMountOptions {
    fn default() -> Self {
        let open = OpenOptions::default();
        Self {
            commit_interval: open.commit_interval,
            cache_len: open.cache_len,
            sync_mode: open.sync_mode,
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
        Ok(options)
    }

    /// Options to open the volume with; `who` is this process, for writers that are refused.
    pub fn open_options(&self, who: String) -> OpenOptions {
        OpenOptions {
            is_read_only: self.writable.is_read_only,
            commit_interval: self.commit_interval,
            cache_len: self.cache_len,
            sync_mode: self.sync_mode,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            who,
            ..OpenOptions::default()
        }
    }

    /// Applies a word of volumes; returns false for another word.
    fn apply(&mut self, word: &str) -> Result<bool> {
        let (key, value) = match word.split_once('=') {
            Some((key, value)) => (key, Some(value)),
            None => (word, None),
        };
        match (key, value) {
            ("commit-interval", Some(value)) => self.commit_interval = interval(value)?,
            ("cache", Some(value)) => self.cache_len = cache_len(value)?,
            ("fsync", Some(value)) => self.sync_mode = sync_mode(value)?,
            (key, _) if WORDS_OF_IMAGES.contains(&key) => {
                return Err(Error::invalid(
                    "this is an option of images, not of volumes",
                ));
            }
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
    }

    /// Would catch: a mount that ignores a mistyped word, or one that only images have.
    #[test]
    fn bad_words_are_refused_by_name() {
        for word in [
            "fast",
            "commit-interval=0",
            "commit-interval=-1",
            "commit-interval=NaN",
            "commit-interval=4000",
            "cache=1K",
            "cache=lots",
            "fsync=maybe",
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
