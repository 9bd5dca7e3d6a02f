//! The specification of a forest: a small TOML file, or words of the command line. Both have the
//! same syntax for values.

use crate::draw::Share;
use crate::names::{NAME_STYLES, NameStyle};
use crate::shapes::{DRAWN_FILE_LEN_MAX, SizeRule, TimeRule};
use weald_format::{Error, Result};

/// Keys of a spec, the format of their values, and their help texts.
pub const KEYS: [(&str, &str, &str); 21] = [
    ("seed", "NUMBER", "Seed of all random numbers [default: 1]"),
    (
        "fanout",
        "NxN…xFILES",
        "Directories per level, and files per lowest directory [default: 10x10x10]",
    ),
    ("names", "STYLE", "Style of file names [default: counter]"),
    (
        "dir-names",
        "STYLE",
        "Style of directory names [default: counter]",
    ),
    ("sizes", "RULE", "File lengths [default: empty]"),
    (
        "duplicates",
        "SHARE",
        "Share of files with the content of another file",
    ),
    ("sparse", "SHARE", "Share of files with holes"),
    (
        "hard-links",
        "SHARE",
        "Share of hard links to files of the same directory",
    ),
    (
        "hard-links-across",
        "SHARE",
        "Share of hard links to files of the previous directory",
    ),
    ("symlinks", "SHARE", "Share of symlinks"),
    (
        "symlink-style",
        "STYLE",
        "Targets of symlinks [default: mixed]",
    ),
    (
        "xattrs",
        "SHARE",
        "Share of files with an extended attribute (user.*)",
    ),
    (
        "acls",
        "SHARE",
        "Share of files with an access control list",
    ),
    (
        "modes",
        "MODE,…",
        "Permissions of files, equally likely [default: 0644]",
    ),
    (
        "dir-mode",
        "MODE",
        "Permissions of directories [default: 0755]",
    ),
    (
        "owners",
        "UID:GID,…",
        "Owners, equally likely [default: the calling user]",
    ),
    (
        "times",
        "RULE",
        "Modification times [default: constant:1700000000]",
    ),
    (
        "versions",
        "NUMBER",
        "Number of versions, side by side; 0 makes one tree only [default: 0]",
    ),
    (
        "content-changes",
        "SHARE",
        "Share of files whose content changes per version",
    ),
    (
        "name-changes",
        "SHARE",
        "Share of files that are renamed per version",
    ),
    (
        "time-changes",
        "SHARE",
        "Share of files whose time changes per version",
    ),
];

/// Maximum files in one directory. A directory is drawn in memory, about 150 bytes per file.
pub const DIRECTORY_COUNT_MAX: u64 = 1 << 24;
/// Maximum number of files and of directories in a forest: far more than any file system holds.
const FOREST_COUNT_MAX: u64 = 1 << 48;
/// Maximum levels of directories. With long names, deeper paths exceed `PATH_MAX`.
const LEVEL_COUNT_MAX: usize = 16;

/// Specification of a forest. The same spec gives the same names, bytes and times on any machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Spec {
    /// Seed of all random numbers.
    pub seed: u64,
    /// Number of directories per directory on each level; the last element is the number of files
    /// in each lowest directory.
    pub fanout: Vec<u64>,
    /// Style of file names.
    pub names: NameStyle,
    /// Style of directory names.
    pub dir_names: NameStyle,
    /// Distribution of file lengths.
    pub sizes: SizeRule,
    /// Share of files with the content of another file.
    pub duplicates: Share,
    /// Share of files with holes.
    pub sparse: Share,
    /// Share of files that are hard links to another file of their directory.
    pub hard_links: Share,
    /// Share of files that are hard links to a file of the directory before.
    pub hard_links_across: Share,
    /// Share of symlinks.
    pub symlinks: Share,
    /// Target style of symlinks.
    pub symlink_style: SymlinkStyle,
    /// Share of files with an attribute in the namespace `user`.
    pub xattrs: Share,
    /// Share of files with an access control list.
    pub acls: Share,
    /// Permissions of files, with equal probability.
    pub modes: Vec<u16>,
    /// Permissions of directories.
    pub dir_mode: u16,
    /// Owners and groups, with equal probability. If empty, files keep the owner of the process.
    pub owners: Vec<(u32, u32)>,
    /// Distribution of mtimes.
    pub times: TimeRule,
    /// Number of versions of the tree, side by side; 0 makes the tree alone, not in a directory of
    /// its own.
    pub versions: u64,
    /// Share of files whose content changes from one version to the next.
    pub content_changes: Share,
    /// Share of files that are renamed from one version to the next.
    pub name_changes: Share,
    /// Share of files whose mtime changes from one version to the next.
    pub time_changes: Share,
}

/// Target style of symlinks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SymlinkStyle {
    /// Other files of the forest, by relative paths.
    Relative,
    /// Missing files.
    Dangling,
    /// The path where git-annex would keep the content.
    Annex,
    /// All of these styles.
    Mixed,
}

const SYMLINK_STYLES: [(&str, SymlinkStyle); 4] = [
    ("relative", SymlinkStyle::Relative),
    ("dangling", SymlinkStyle::Dangling),
    ("annex", SymlinkStyle::Annex),
    ("mixed", SymlinkStyle::Mixed),
];

impl Default for Spec {
    fn default() -> Self {
        Self {
            seed: 1,
            fanout: vec![10, 10, 10],
            names: NameStyle::Counter,
            dir_names: NameStyle::Counter,
            sizes: SizeRule::Empty,
            duplicates: Share::NONE,
            sparse: Share::NONE,
            hard_links: Share::NONE,
            hard_links_across: Share::NONE,
            symlinks: Share::NONE,
            symlink_style: SymlinkStyle::Mixed,
            xattrs: Share::NONE,
            acls: Share::NONE,
            modes: vec![0o644],
            dir_mode: 0o755,
            owners: Vec::new(),
            times: TimeRule::Constant(1_700_000_000),
            versions: 0,
            content_changes: Share::NONE,
            name_changes: Share::NONE,
            time_changes: Share::NONE,
        }
    }
}

impl Spec {
    /// Parses a TOML file of `key = value` lines. Values have the syntax of [`Spec::set`]; numbers
    /// may also be TOML numbers.
    ///
    /// # Errors
    /// `Invalid` for text that is not TOML, unknown keys and impossible values.
    pub fn parse(text: &str) -> Result<Self> {
        let table: toml::Table = text
            .parse()
            .map_err(|e: toml::de::Error| Error::invalid(format!("spec: {}", e.message())))?;
        let mut spec = Self::default();
        for (key, value) in &table {
            let value = match value {
                toml::Value::String(value) => value.clone(),
                toml::Value::Integer(value) => value.to_string(),
                toml::Value::Float(value) => value.to_string(),
                other => {
                    let found = other.type_str();
                    let what = format!("{key}: expected text or a number, found {found}");
                    return Err(Error::invalid(what));
                }
            };
            spec.set(key, &value)?;
        }
        Ok(spec)
    }

    /// Sets one key.
    ///
    /// # Errors
    /// `Invalid` for unknown keys and impossible values.
    pub fn set(&mut self, key: &str, value: &str) -> Result<()> {
        match key {
            "seed" => self.seed = number(key, value)?,
            "fanout" => self.fanout = list(key, value, 'x', number)?,
            "names" => self.names = word(key, value, &NAME_STYLES)?,
            "dir-names" => self.dir_names = word(key, value, &NAME_STYLES)?,
            "sizes" => self.sizes = sizes(key, value)?,
            "duplicates" => self.duplicates = share(key, value)?,
            "sparse" => self.sparse = share(key, value)?,
            "hard-links" => self.hard_links = share(key, value)?,
            "hard-links-across" => self.hard_links_across = share(key, value)?,
            "symlinks" => self.symlinks = share(key, value)?,
            "symlink-style" => self.symlink_style = word(key, value, &SYMLINK_STYLES)?,
            "xattrs" => self.xattrs = share(key, value)?,
            "acls" => self.acls = share(key, value)?,
            "modes" => self.modes = list(key, value, ',', mode)?,
            "dir-mode" => self.dir_mode = mode(key, value)?,
            "owners" => self.owners = list(key, value, ',', owner)?,
            "times" => self.times = times(key, value)?,
            "versions" => self.versions = number(key, value)?,
            "content-changes" => self.content_changes = share(key, value)?,
            "name-changes" => self.name_changes = share(key, value)?,
            "time-changes" => self.time_changes = share(key, value)?,
            _ => return Err(Error::invalid(format!("{key}: unknown key of a forest"))),
        }
        Ok(())
    }

    /// Refuses impossible specifications.
    ///
    /// # Errors
    /// `Invalid` for a missing fan-out, empty levels, and shares with a sum above 1; `Limit` for
    /// forests that are too large.
    pub fn validate(&self) -> Result<()> {
        let Some((&files, dirs)) = self.fanout.split_last() else {
            return Err(Error::invalid("fanout: expected at least one level"));
        };
        if self.fanout.contains(&0) {
            return Err(Error::invalid("fanout: expected levels above 0, found a 0"));
        }
        if files > DIRECTORY_COUNT_MAX {
            let what = format!(
                "fanout: expected at most {DIRECTORY_COUNT_MAX} files in a directory, found {files}"
            );
            return Err(Error::limit(what));
        }
        if dirs.len() > LEVEL_COUNT_MAX {
            let what = format!(
                "fanout: expected at most {LEVEL_COUNT_MAX} levels, found {}",
                dirs.len()
            );
            return Err(Error::limit(what));
        }
        let all = self
            .fanout
            .iter()
            .try_fold(self.versions.max(1), |all, &n| all.checked_mul(n));
        if all.is_none_or(|all| all > FOREST_COUNT_MAX) {
            return Err(Error::limit("fanout: expected at most 2^48 files in all"));
        }
        let kinds = [self.symlinks, self.hard_links, self.hard_links_across];
        if Share::sum(&kinds).is_none() {
            let what = "symlinks, hard-links and hard-links-across: expected a sum of at most 1";
            return Err(Error::invalid(what));
        }
        Ok(())
    }
}

fn refuse<T>(key: &str, value: &str, expected: &str) -> Result<T> {
    Err(Error::invalid(format!(
        "{key}: expected {expected}, found {value:?}"
    )))
}

fn number(key: &str, value: &str) -> Result<u64> {
    value
        .parse()
        .or_else(|_| refuse(key, value, "a number, 0 or more"))
}

/// Parses a number of bytes, with an optional suffix K, M, G or T for powers of 1024.
fn bytes(key: &str, value: &str) -> Result<u64> {
    let (digits, shift) = match value.char_indices().next_back() {
        Some((at, 'K')) => (&value[..at], 10),
        Some((at, 'M')) => (&value[..at], 20),
        Some((at, 'G')) => (&value[..at], 30),
        Some((at, 'T')) => (&value[..at], 40),
        _ => (value, 0),
    };
    let len = digits
        .parse::<u64>()
        .ok()
        .and_then(|n| n.checked_mul(1 << shift));
    match len.filter(|&len| len <= DRAWN_FILE_LEN_MAX) {
        Some(len) => Ok(len),
        None => refuse(key, value, "a number of bytes, at most 1T"),
    }
}

fn share(key: &str, value: &str) -> Result<Share> {
    match value.parse().ok().and_then(Share::new) {
        Some(share) => Ok(share),
        None => refuse(key, value, "a share from 0 to 1"),
    }
}

fn mode(key: &str, value: &str) -> Result<u16> {
    match u16::from_str_radix(value, 8) {
        Ok(mode) if mode <= 0o7777 => Ok(mode),
        _ => refuse(key, value, "an octal mode, at most 7777"),
    }
}

fn owner(key: &str, value: &str) -> Result<(u32, u32)> {
    let pair = value
        .split_once(':')
        .and_then(|(uid, gid)| Some((uid.parse().ok()?, gid.parse().ok()?)));
    match pair {
        Some(pair) => Ok(pair),
        None => refuse(key, value, "UID:GID"),
    }
}

fn list<T>(
    key: &str,
    value: &str,
    separator: char,
    item: impl Fn(&str, &str) -> Result<T>,
) -> Result<Vec<T>> {
    value.split(separator).map(|v| item(key, v)).collect()
}

fn word<T: Copy>(key: &str, value: &str, words: &[(&str, T)]) -> Result<T> {
    match words.iter().find(|(word, _)| *word == value) {
        Some(&(_, found)) => Ok(found),
        None => {
            let words: Vec<&str> = words.iter().map(|w| w.0).collect();
            refuse(key, value, &words.join(", "))
        }
    }
}

fn factor(key: &str, value: &str) -> Result<f64> {
    match value.parse() {
        Ok(factor) if (0.0..=8.0).contains(&factor) => Ok(factor),
        _ => refuse(key, value, "a number from 0 to 8"),
    }
}

fn sizes(key: &str, value: &str) -> Result<SizeRule> {
    let parts: Vec<&str> = value.split(':').collect();
    Ok(match parts[..] {
        ["empty"] => SizeRule::Empty,
        ["constant", len] => SizeRule::Constant(bytes(key, len)?),
        ["log-normal", median, sigma] => SizeRule::LogNormal {
            median: bytes(key, median)?,
            sigma: factor(key, sigma)?,
        },
        ["zipf", max, exponent] => SizeRule::Zipf {
            max: bytes(key, max)?,
            exponent: factor(key, exponent)?,
        },
        _ => {
            let expected = "empty, constant:BYTES, log-normal:MEDIAN:SIGMA or zipf:MAX:EXPONENT";
            return refuse(key, value, expected);
        }
    })
}

fn times(key: &str, value: &str) -> Result<TimeRule> {
    let seconds = |value: &str| match value.parse::<i64>() {
        // Most file systems cannot store other times.
        Ok(seconds) if (0..1 << 33).contains(&seconds) => Ok(seconds),
        _ => refuse(key, value, "seconds since 1970, below 2^33"),
    };
    let parts: Vec<&str> = value.split(':').collect();
    Ok(match parts[..] {
        ["now"] => TimeRule::Now,
        ["constant", at] => TimeRule::Constant(seconds(at)?),
        ["affine", start, step] => TimeRule::Affine {
            start: seconds(start)?,
            step: number(key, step)?,
        },
        ["random", start, span] => TimeRule::Random {
            start: seconds(start)?,
            span: match seconds(span)? {
                0 => return refuse(key, span, "a span above 0"),
                span => span as u64,
            },
        },
        _ => {
            let expected =
                "now, constant:SECONDS, affine:START:NANOSECONDS or random:START:SECONDS";
            return refuse(key, value, expected);
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches: a key in the list that the parser does not know.
    #[test]
    fn every_key_is_known() {
        for (key, ..) in KEYS {
            let error = Spec::default().set(key, "?").unwrap_err().to_string();
            assert!(error.contains("expected"), "{error}");
        }
    }

    /// Catches: a help text with a wrong default.
    #[test]
    fn defaults_match_their_help_texts() {
        let mut documented_count = 0;
        for (key, _, help) in KEYS {
            let documented = help
                .split_once("[default: ")
                .map(|(_, rest)| rest.trim_end_matches(']'));
            let Some(value) = documented.filter(|_| key != "owners") else {
                continue;
            };
            let mut spec = Spec::default();
            spec.set(key, value).unwrap();
            assert_eq!(spec, Spec::default(), "{key}");
            documented_count += 1;
        }
        assert_eq!(documented_count, 10);
    }

    #[test]
    fn a_spec_file_sets_everything() {
        let spec = Spec::parse(
            "seed = 7\nfanout = \"10x20x30\"\nnames = \"hex\"\nsizes = \"log-normal:8K:1.5\"\n\
             duplicates = 0.25\ntimes = \"random:1700000000:86400\"\nversions = 3\n\
             modes = \"0644,0755\"\nowners = \"0:0,1000:1000\"\n",
        )
        .unwrap();
        assert_eq!(spec.fanout, [10, 20, 30]);
        let sizes = SizeRule::LogNormal {
            median: 8192,
            sigma: 1.5,
        };
        assert_eq!((spec.sizes, spec.versions), (sizes, 3));
        assert_eq!(spec.modes, [0o644, 0o755]);
        spec.validate().unwrap();
    }

    /// Catches: impossible values that are accepted.
    #[test]
    fn impossible_values_are_refused_by_name() {
        for text in [
            "fanout = \"10xx3\"",
            "fanout = \"\"",
            "names = \"klingon\"",
            "sizes = \"constant:2T\"",
            "sizes = \"log-normal:4K\"",
            "duplicates = 1.5",
            "duplicates = \"nan\"",
            "modes = \"0999\"",
            "owners = \"root\"",
            "times = \"random:0:0\"",
            "times = \"constant:-1\"",
            "trees = 1",
            "seed = [1]",
            "seed = ",
        ] {
            assert!(Spec::parse(text).is_err(), "{text}");
        }
        for text in [
            "fanout = \"0x3\"",
            "fanout = \"10x99999999\"",
            "fanout = \"16777216x16777216x16777216\"",
            "symlinks = 0.9\nhard-links = 0.2",
        ] {
            assert!(Spec::parse(text).unwrap().validate().is_err(), "{text}");
        }
    }
}
