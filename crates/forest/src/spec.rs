//! What a forest is made of: a small TOML file, or words of the command line; both are read by the
//! same rules.

use crate::draw::Share;
use crate::names::{NAME_STYLES, NameStyle};
use crate::shapes::{FILE_LEN_MAX, SizeRule, TimeRule};
use weald_format::{Error, Result};

/// The keys of a spec, what their values look like, and what they mean.
pub const KEYS: [(&str, &str, &str); 21] = [
    (
        "seed",
        "NUMBER",
        "Another forest for every other number [default: 1]",
    ),
    (
        "fanout",
        "NxN…xFILES",
        "Directories of each level and files of the lowest ones [default: 10x10x10]",
    ),
    ("names", "STYLE", "How files are called [default: counter]"),
    (
        "dir-names",
        "STYLE",
        "How directories are called [default: counter]",
    ),
    ("sizes", "RULE", "How long files are [default: empty]"),
    (
        "duplicates",
        "SHARE",
        "Files that have the content of another one",
    ),
    ("sparse", "SHARE", "Files that have holes"),
    (
        "hard-links",
        "SHARE",
        "Files that are one more name of a file of their directory",
    ),
    (
        "hard-links-across",
        "SHARE",
        "Files that are one more name of a file of the directory before",
    ),
    ("symlinks", "SHARE", "Symlinks among the files"),
    (
        "symlink-style",
        "STYLE",
        "What symlinks point to [default: mixed]",
    ),
    (
        "xattrs",
        "SHARE",
        "Files that have an attribute of the namespace user",
    ),
    ("acls", "SHARE", "Files that have an access control list"),
    (
        "modes",
        "MODE,…",
        "Permissions of files, each as likely [default: 0644]",
    ),
    (
        "dir-mode",
        "MODE",
        "Permissions of directories [default: 0755]",
    ),
    (
        "owners",
        "UID:GID,…",
        "Owners, each as likely [default: who makes it]",
    ),
    (
        "times",
        "RULE",
        "When files were changed [default: constant:1700000000]",
    ),
    (
        "versions",
        "NUMBER",
        "Versions of the tree side by side; 0 is the tree alone [default: 0]",
    ),
    (
        "content-changes",
        "SHARE",
        "Files whose content changes with a version",
    ),
    (
        "name-changes",
        "SHARE",
        "Files that are renamed with a version",
    ),
    (
        "time-changes",
        "SHARE",
        "Files whose time changes with a version",
    ),
];

/// Files that one directory may get: a directory is made in memory, at about 150 bytes a file.
pub const DIRECTORY_COUNT_MAX: u64 = 1 << 24;
/// Files of a forest, and directories: far more than any file system holds.
const FOREST_COUNT_MAX: u64 = 1 << 48;
/// Levels of directories: deeper paths pass `PATH_MAX` with long names.
const LEVEL_COUNT_MAX: usize = 16;

/// A forest: the same spec gives the same names, bytes and times anywhere.
#[derive(Debug, Clone, PartialEq)]
pub struct Spec {
    /// Another forest for every other seed.
    pub seed: u64,
    /// Directories of every level, and last the files of each of the lowest directories.
    pub fanout: Vec<u64>,
    /// How files are called.
    pub names: NameStyle,
    /// How directories are called.
    pub dir_names: NameStyle,
    /// How long files are.
    pub sizes: SizeRule,
    /// Files whose content is that of another one.
    pub duplicates: Share,
    /// Files with holes.
    pub sparse: Share,
    /// Files that are one more name of another file of their directory.
    pub hard_links: Share,
    /// Files that are one more name of a file of the directory before theirs.
    pub hard_links_across: Share,
    /// Symlinks among the files.
    pub symlinks: Share,
    /// What symlinks point to.
    pub symlink_style: SymlinkStyle,
    /// Files with attributes of the namespace `user`.
    pub xattrs: Share,
    /// Files with an access control list.
    pub acls: Share,
    /// Permissions of files, each as likely as the others.
    pub modes: Vec<u16>,
    /// Permissions of directories.
    pub dir_mode: u16,
    /// Owners and groups, each pair as likely as the others; none leaves everything to who makes
    /// it.
    pub owners: Vec<(u32, u32)>,
    /// mtimes.
    pub times: TimeRule,
    /// Versions of the tree, side by side; 0 = the tree alone, not in a directory of its own.
    pub versions: u64,
    /// Files whose content changes from one version to the next.
    pub content_changes: Share,
    /// Files that are renamed from one version to the next.
    pub name_changes: Share,
    /// Files whose mtime changes from one version to the next.
    pub time_changes: Share,
}

/// What symlinks point to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SymlinkStyle {
    /// Other files of the forest, by relative paths.
    Relative,
    /// Nothing.
    Dangling,
    /// Where git-annex would keep the content.
    Annex,
    /// Some of each.
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
    /// The spec that a TOML file holds: `key = value` lines, values as [`Spec::set`] reads them,
    /// numbers also bare.
    ///
    /// # Errors
    /// `Invalid` for text that is no TOML, unknown keys and impossible values.
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
            _ => return Err(Error::invalid(format!("{key}: no key of a forest"))),
        }
        Ok(())
    }

    /// Refuses what cannot be made.
    ///
    /// # Errors
    /// `Invalid` for no fan-out, empty levels, and shares that are more than all files together;
    /// `Limit` for forests that are too big.
    pub fn validate(&self) -> Result<()> {
        let Some((&files, dirs)) = self.fanout.split_last() else {
            return Err(Error::invalid("fanout: no level"));
        };
        if self.fanout.contains(&0) {
            return Err(Error::invalid("fanout: a level of 0"));
        }
        if files > DIRECTORY_COUNT_MAX {
            let what =
                format!("fanout: {files} files in a directory, at most {DIRECTORY_COUNT_MAX}");
            return Err(Error::limit(what));
        }
        if dirs.len() > LEVEL_COUNT_MAX {
            let what = format!("fanout: {} levels, at most {LEVEL_COUNT_MAX}", dirs.len());
            return Err(Error::limit(what));
        }
        let all = self
            .fanout
            .iter()
            .try_fold(self.versions.max(1), |all, &n| all.checked_mul(n));
        if all.is_none_or(|all| all > FOREST_COUNT_MAX) {
            return Err(Error::limit("fanout: more than 2^48 files"));
        }
        let kinds = [self.symlinks, self.hard_links, self.hard_links_across];
        if Share::sum(&kinds).is_none() {
            let what = "symlinks, hard-links and hard-links-across: more than all files together";
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
        .or_else(|_| refuse(key, value, "a number from 0 on"))
}

/// A number of bytes, with K, M, G or T behind it for powers of 1024.
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
    match len.filter(|&len| len <= FILE_LEN_MAX) {
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
        // Most file systems hold no others.
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

    /// Would catch: a key that is listed and not known.
    #[test]
    fn every_key_is_known() {
        for (key, ..) in KEYS {
            let error = Spec::default().set(key, "?").unwrap_err().to_string();
            assert!(error.contains("expected"), "{error}");
        }
    }

    /// Would catch: help that tells another default than there is.
    #[test]
    fn defaults_are_those_that_help_tells() {
        let mut told_count = 0;
        for (key, _, help) in KEYS {
            let told = help
                .split_once("[default: ")
                .map(|(_, rest)| rest.trim_end_matches(']'));
            let Some(value) = told.filter(|_| key != "owners") else {
                continue;
            };
            let mut spec = Spec::default();
            spec.set(key, value).unwrap();
            assert_eq!(spec, Spec::default(), "{key}");
            told_count += 1;
        }
        assert_eq!(told_count, 10);
    }

    #[test]
    fn a_spec_file_says_everything() {
        let spec = Spec::parse(
            "seed = 7\nfanout = \"10x20x30\"\nnames = \"hex\"\nsizes = \"log-normal:8K:1.5\"\nduplicates = 0.25\n\
             times = \"random:1700000000:86400\"\nversions = 3\nmodes = \"0644,0755\"\nowners = \"0:0,1000:1000\"\n",
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

    /// Would catch: impossible values that are taken.
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
