//! `weald volume set`: properties of files and quotas of directories.

use crate::commands::store::wait::WaitArgs;
use crate::help::{DONE_OR_FAILED, Help};
use crate::named_volume::{Named, VolumePath, inner_path};
use crate::open_store::show_path;
use crate::parse;
use crate::progress::bytes;
use crate::reported_mounts::{Ask, place_of};
use crate::writer_name::writer_name;
use anyhow::{Context, anyhow, bail};
use clap::{Args, ValueHint};
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, XattrFlags};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use weald_format::FileKind;
use weald_fuse::DeviceNo;
use weald_store::tier::{HOME, check_tier_name};
use weald_vfs::{Ino, WritableFs, XattrMode};
use weald_volume::properties::{
    CHUNK, CHUNKING, COMPRESS, DEDUP, QUOTA, QUOTA_COUNT, QUOTA_COUNT_SHOWN, QUOTA_SHOWN,
    SNAPSHOTS, TIER, USED, USED_COUNT, parse_codec,
};
use weald_volume::retention::SnapshotPolicy;
use weald_volume::{OpenOptions, Volume};

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[],
    notes: &[
        "PATH is a path in the volume, from its root on; '.' is the root. The volume may be \
         mounted by the same user. The properties are the extended attributes \
         user.weald.compress, .chunk, .chunking and .dedup, which setfattr(1) sets and getfattr(1) \
         shows on the mount.",
        "A new file or directory takes codec, chunk, chunking and dedup from its directory. They \
         hold for data that is written later. Existing data stays as it is, and so do files below \
         a directory whose properties change. The word 'default' stands for the volume's own. The \
         chunking of the root directory is that of the volume: it holds for all files that have \
         none.",
        "--snapshots lets the server of the mounted volume take snapshots by itself, and remove \
         them: one in each of the shortest period that is named, of which each word keeps as many \
         as it says: hourly, daily, weekly, monthly, yearly, last. The word every=20m gives \
         another time. They have names such as auto-2024-02-29T12.00.00Z; others are not removed. \
         It is the attribute user.weald.snapshots of the root directory.",
        "--tier lets the data of a file lie on a tier of the store (weald tier), with that of \
         everything below a directory, what is there already included; 'home' is the store's own \
         directory. The data goes there within about a minute, and stays, whatever the policies of \
         tiers say. New files take the tier from their directory. It is the attribute \
         user.weald.tier. Of data that several files share, the fastest of their tiers counts.",
        "A quota limits the bytes (--quota) or the inodes (--quota-count) below a directory. Bytes \
         count as written: holes do not, repeats and compressed data do in full. At the limit, \
         writes fail with EDQUOT. A quota below what is used is refused. Names do not move \
         between directories with different quotas: rename(2) and link(2) fail with EXDEV, and mv \
         copies. A directory with a quota may lie in another one, and counts for both. The first \
         quota of a directory visits everything below it. On a mount, only root changes quotas: \
         they are the attributes trusted.weald.quota and trusted.weald.quota.count. Everybody \
         sees them as user.weald.quota and .quota.count, and the use as user.weald.used and \
         .used.count, by name only (getfattr -n). df shows bytes and use, too.",
    ],
    examples: &[
        (
            "Compress what is written below a directory more",
            "weald volume set /srv/store:home . --compress zstd:9",
        ),
        (
            "Cut files of a database into small chunks, and look for no repeats",
            "weald volume set /srv/store:home . --chunk 16K --dedup off",
        ),
        (
            "Find data again that moved within files, in a directory of backups",
            "weald volume set /srv/store:home . --chunking content",
        ),
        (
            "Limit a directory to ten gigabytes and a million files",
            "weald volume set /srv/store:home . --quota 10G --quota-count 1000000",
        ),
        (
            "Take a snapshot each hour, and keep those of a day and the daily ones of a week",
            "weald volume set /srv/store:home . --snapshots 'hourly=24 daily=7'",
        ),
        (
            "Keep a directory on the fast disk of a store with tiers",
            "weald volume set /srv/store:home . --tier home",
        ),
        (
            "Lift the limit",
            "weald volume set /srv/store:home . --quota none --quota-count none",
        ),
        (
            "Show the properties of a directory",
            "weald volume info /srv/store:home .",
        ),
    ],
    exit_status: DONE_OR_FAILED,
};

/// Set how files are stored, and the quotas of directories
#[derive(Args, Debug)]
#[command(after_help = HELP.short(), after_long_help = HELP.long())]
pub(super) struct SetArgs {
    #[command(flatten)]
    path: VolumePath,
    /// Files and directories in the volume
    #[arg(required = true, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    paths: Vec<PathBuf>,
    /// Codec of new data: lz4, zstd[:1-22], none or default
    #[arg(long, value_name = "CODEC", value_parser = codec)]
    compress: Option<Setting>,
    /// Size of the chunks of new data, from 4K to that of the volume, or default
    #[arg(long, value_name = "SIZE", value_parser = chunk)]
    chunk: Option<Setting>,
    /// Where new files are cut: auto, fixed, content or default
    #[arg(long, value_name = "WORD", value_parser = chunking)]
    chunking: Option<Setting>,
    /// Whether to look for repeats of new data: on, off or default
    #[arg(long, value_name = "WORD", value_parser = dedup)]
    dedup: Option<Setting>,
    /// Snapshots to take and keep, such as 'hourly=24 daily=7', or none
    #[arg(long, value_name = "POLICY", value_parser = snapshots)]
    snapshots: Option<Setting>,
    /// Tier on which the data lies, with that of everything below, or default
    #[arg(long, value_name = "TIER", value_parser = tier)]
    tier: Option<Setting>,
    /// Most bytes below a directory, or none
    #[arg(long, value_name = "SIZE", value_parser = quota)]
    quota: Option<Setting>,
    /// Most files and directories below a directory, or none
    #[arg(long, value_name = "COUNT", value_parser = quota)]
    quota_count: Option<Setting>,
    #[command(flatten)]
    wait: WaitArgs,
}

/// A value, or none to remove it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Setting(Option<String>);

fn codec(text: &str) -> Result<Setting, String> {
    match text {
        "default" => Ok(Setting(None)),
        _ if parse_codec(text).is_some() => Ok(Setting(Some(text.to_owned()))),
        _ => Err("expected lz4, zstd, zstd:1 to zstd:22, none or default".to_owned()),
    }
}

fn chunk(text: &str) -> Result<Setting, String> {
    match text {
        "default" => Ok(Setting(None)),
        _ => {
            let len = super::change::chunk(text)?;
            Ok(Setting(Some(len.to_string())))
        }
    }
}

fn chunking(text: &str) -> Result<Setting, String> {
    match text {
        "default" => Ok(Setting(None)),
        _ => match super::change::chunking(text) {
            Ok(chunking) => Ok(Setting(Some(chunking.word().to_owned()))),
            Err(_) => Err("expected auto, fixed, content or default".to_owned()),
        },
    }
}

fn dedup(text: &str) -> Result<Setting, String> {
    match text {
        "default" => Ok(Setting(None)),
        "on" | "off" => Ok(Setting(Some(text.to_owned()))),
        _ => Err("expected on, off or default".to_owned()),
    }
}

fn tier(text: &str) -> Result<Setting, String> {
    match text {
        "default" => Ok(Setting(None)),
        HOME => Ok(Setting(Some(text.to_owned()))),
        _ => match check_tier_name(text) {
            Ok(()) => Ok(Setting(Some(text.to_owned()))),
            Err(error) => Err(error.to_string()),
        },
    }
}

fn snapshots(text: &str) -> Result<Setting, String> {
    match text {
        "none" => Ok(Setting(None)),
        _ if SnapshotPolicy::parse(text).is_some() => Ok(Setting(Some(text.to_owned()))),
        _ => Err(
            "expected what to keep, such as 'hourly=24 daily=7' or 'every=20m last=72', or none"
                .to_owned(),
        ),
    }
}

fn quota(text: &str) -> Result<Setting, String> {
    if text == "none" {
        return Ok(Setting(None));
    }
    match parse::size(text)? {
        0 => Err("expected a number above 0, or none".to_owned()),
        number if number > i64::MAX as u64 => Err("expected a number below 8E".to_owned()),
        number => Ok(Setting(Some(number.to_string()))),
    }
}

pub(super) fn set(args: &SetArgs) -> anyhow::Result<ExitCode> {
    let named = Named::open(&args.path.volume)?;
    named.find()?;
    args.wait.until_free(&named.store)?;
    let (properties, _) = named.properties()?;
    if let Some(Setting(Some(len))) = &args.chunk
        && len.parse::<u32>()? > properties.chunk_len
    {
        bail!(
            "--chunk {len}: the chunks of this volume have {}, and those of its files cannot be \
             longer",
            bytes(properties.chunk_len.into())
        );
    }
    let settings = [
        (COMPRESS, &args.compress),
        (CHUNK, &args.chunk),
        (CHUNKING, &args.chunking),
        (DEDUP, &args.dedup),
        (TIER, &args.tier),
        (SNAPSHOTS, &args.snapshots),
        (QUOTA, &args.quota),
        (QUOTA_COUNT, &args.quota_count),
    ];
    if settings.iter().all(|(_, setting)| setting.is_none()) {
        bail!(
            "nothing to set: add --compress, --chunk, --chunking, --dedup, --tier, --snapshots, \
             --quota or --quota-count"
        );
    }
    if let Some(Setting(Some(tier))) = &args.tier {
        let names = named.store.tier_names()?;
        if !names.contains(tier) {
            let store = named.store.shown();
            bail!("--tier {tier}: no such tier: 'weald tier ls {store}' lists them");
        }
    }
    let files = Files::open(&named, false)?;
    // A path that is missing is noticed before anything changes.
    for path in &args.paths {
        files.properties(path)?;
    }
    for path in &args.paths {
        let inner = inner_path(path)?;
        for (name, setting) in settings {
            let Some(Setting(value)) = setting else {
                continue;
            };
            let set = if name == TIER {
                files.set_below(&inner, name, value.as_deref())
            } else {
                files.set(&inner, name, value.as_deref())
            };
            set.map_err(|errno| explained(path, name, errno))?;
        }
    }
    files.close()?;
    Ok(ExitCode::SUCCESS)
}

fn explained(path: &Path, name: &[u8], errno: Errno) -> anyhow::Error {
    let path = show_path(path);
    let is_quota = name == QUOTA || name == QUOTA_COUNT;
    match errno {
        Errno::INVAL if name == SNAPSHOTS => {
            anyhow!("{path}: snapshots are of the whole volume: set them at its root, '.'")
        }
        Errno::NOENT => anyhow!("{path}: no such file in the volume"),
        Errno::NOTDIR => anyhow!("{path}: a part of this path is no directory"),
        Errno::LOOP => anyhow!("{path}: a symlink has no properties, and is not followed"),
        Errno::INVAL | Errno::OPNOTSUPP if is_quota => {
            anyhow!("{path}: is no directory: a quota limits a directory")
        }
        Errno::PERM | Errno::ACCESS if is_quota => anyhow!(
            "{path}: only root changes quotas while the volume is mounted: unmount it first, or \
             run the command as root"
        ),
        Errno::DQUOT => anyhow!(
            "{path}: more is used already than this quota allows: remove files, or choose a \
             larger quota"
        ),
        Errno::XDEV => anyhow!(
            "{path}: a file in this directory has another name outside (a hard link): remove one \
             of the names, so that the file counts for one quota"
        ),
        errno => anyhow!("{path}: {}", std::io::Error::from(errno)),
    }
}

/// The files of a volume: through its mount, or of the volume itself.
pub(super) enum Files {
    Mounted(OwnedFd),
    Own(Arc<Volume>),
}

impl Files {
    /// Opens the volume, for reading only if `is_read_only`.
    pub(super) fn open(named: &Named, is_read_only: bool) -> anyhow::Result<Self> {
        if let Some((pid, mount)) = named.mounted(Ask::Mounts)? {
            let dir = Path::new(&mount.dir);
            // Without the mount, this is a directory of the host.
            if weald_fuse::device_of(dir).ok() != DeviceNo::parse(&mount.device) {
                bail!("{}: {}", named.shown(), place_of(&mount).describe(pid));
            }
            let file = File::open(dir).with_context(|| show_path(dir))?;
            return Ok(Self::Mounted(file.into()));
        }
        let options = OpenOptions {
            is_read_only,
            writer_name: writer_name("volume set"),
            ..OpenOptions::default()
        };
        Ok(Self::Own(Volume::open(&named.store, &named.name, options)?))
    }

    fn find(volume: &Volume, path: &Path) -> Result<Ino, Errno> {
        let mut ino = Ino::ROOT;
        for name in path {
            let found = volume.lookup(ino, name.as_bytes());
            ino = found.map_err(|failure| failure.errno)?.ino;
        }
        match volume.stat(ino).map_err(|failure| failure.errno)?.kind {
            FileKind::Symlink => Err(Errno::LOOP),
            _ => Ok(ino),
        }
    }

    fn open_file(dir: &OwnedFd, path: &Path) -> Result<OwnedFd, Errno> {
        let path = if path.as_os_str().is_empty() {
            Path::new(".")
        } else {
            path
        };
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        rustix::fs::openat2(dir, path, flags, Mode::empty(), resolve)
    }

    fn set(&self, path: &Path, name: &[u8], value: Option<&str>) -> Result<(), Errno> {
        let set = match self {
            Self::Mounted(dir) => {
                let file = Self::open_file(dir, path)?;
                match value {
                    Some(value) => {
                        rustix::fs::fsetxattr(file, name, value.as_bytes(), XattrFlags::empty())
                    }
                    None => rustix::fs::fremovexattr(file, name),
                }
            }
            Self::Own(volume) => {
                let ino = Self::find(volume, path)?;
                let now = SystemTime::now().duration_since(UNIX_EPOCH);
                let now = now.map_or(0, |since| since.as_nanos() as i128);
                let set = match value {
                    Some(value) => {
                        volume.set_xattr(ino, name, value.as_bytes(), XattrMode::Set, now)
                    }
                    None => volume.remove_xattr(ino, name, now),
                };
                set.map_err(|failure| failure.errno)
            }
        };
        match set {
            Err(Errno::NODATA) if value.is_none() => Ok(()),
            other => other,
        }
    }

    /// As [`Files::set`], of everything below `path`, too; symlinks and special files are left out.
    fn set_below(&self, path: &Path, name: &[u8], value: Option<&str>) -> Result<(), Errno> {
        let mut paths = vec![path.to_owned()];
        while let Some(path) = paths.pop() {
            match self.set(&path, name, value) {
                // It was removed meanwhile.
                Err(Errno::NOENT) => continue,
                other => other?,
            }
            for (name, kind) in self.names(&path)? {
                if matches!(kind, FileKind::Directory | FileKind::Regular) {
                    paths.push(path.join(name));
                }
            }
        }
        Ok(())
    }

    /// The names in a directory; none of a file.
    fn names(&self, path: &Path) -> Result<Vec<(OsString, FileKind)>, Errno> {
        match self {
            Self::Mounted(dir) => {
                let file = Self::open_file(dir, path)?;
                let mut found = Vec::new();
                let mode = rustix::fs::fstat(&file)?.st_mode;
                if FileType::from_raw_mode(mode) != FileType::Directory {
                    return Ok(found);
                }
                for entry in rustix::fs::Dir::read_from(&file)? {
                    let entry = entry?;
                    let kind = match entry.file_type() {
                        FileType::Directory => FileKind::Directory,
                        FileType::RegularFile => FileKind::Regular,
                        _ => continue,
                    };
                    let name = entry.file_name().to_bytes();
                    if !matches!(name, b"." | b".." | b".snapshots") {
                        found.push((OsString::from_vec(name.to_vec()), kind));
                    }
                }
                Ok(found)
            }
            Self::Own(volume) => {
                let dir = Self::find(volume, path)?;
                if volume.stat(dir).map_err(|failure| failure.errno)?.kind != FileKind::Directory {
                    return Ok(Vec::new());
                }
                let mut found = Vec::new();
                let listed = volume.list(dir, 0, &mut |entry| {
                    found.push((OsString::from_vec(entry.name.to_vec()), entry.stat.kind));
                    true
                });
                listed.map_err(|failure| failure.errno)?;
                Ok(found)
            }
        }
    }

    fn get(&self, path: &Path, name: &[u8]) -> Result<Option<String>, Errno> {
        let value = match self {
            Self::Mounted(dir) => {
                let file = Self::open_file(dir, path)?;
                let mut value = vec![0; 256];
                rustix::fs::fgetxattr(file, name, &mut value).map(|len| {
                    value.truncate(len);
                    value
                })
            }
            Self::Own(volume) => {
                let value = volume.xattr(Self::find(volume, path)?, name);
                value.map_err(|failure| failure.errno)
            }
        };
        match value {
            Ok(value) => Ok(Some(String::from_utf8_lossy(&value).into_owned())),
            Err(Errno::NODATA) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// The properties of `path`, by their words.
    pub(super) fn properties(&self, path: &Path) -> anyhow::Result<Properties> {
        let inner = inner_path(path)?;
        let get = |name| {
            let value = self.get(&inner, name);
            value.map_err(|errno| explained(path, name, errno))
        };
        Ok([
            ("compress", get(COMPRESS)?),
            ("chunk", get(CHUNK)?),
            ("chunking", get(CHUNKING)?),
            ("dedup", get(DEDUP)?),
            ("tier", get(TIER)?),
            ("quota", get(QUOTA_SHOWN)?),
            ("quota_count", get(QUOTA_COUNT_SHOWN)?),
            ("used", get(USED)?),
            ("used_count", get(USED_COUNT)?),
        ])
    }

    /// Commits the changes.
    pub(super) fn close(&self) -> anyhow::Result<()> {
        match self {
            Self::Mounted(_) => Ok(()),
            Self::Own(volume) => Ok(volume.close()?),
        }
    }
}

/// Properties by their words; `None` for those that are not set.
pub(super) type Properties = [(&'static str, Option<String>); 9];

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch: a setting that no volume takes, or a word that is taken for a value.
    #[test]
    fn settings_have_limits() {
        let value = |text: &str| Ok(Setting(Some(text.to_owned())));
        assert_eq!(codec("zstd:9"), value("zstd:9"));
        assert_eq!(
            (codec("default"), quota("none")),
            (Ok(Setting(None)), Ok(Setting(None)))
        );
        assert_eq!((chunk("16K"), quota("2K")), (value("16384"), value("2048")));
        assert_eq!(chunking("content"), value("content"));
        assert_eq!(chunking("default"), Ok(Setting(None)));
        assert!(chunking("CONTENT").is_err());
        assert!(codec("gzip").is_err() && chunk("3").is_err() && dedup("yes").is_err());
        assert!(quota("0").is_err() && quota("-1").is_err() && quota("9999999T").is_err());
        assert!(inner_path(Path::new("../x")).is_err());
        assert_eq!(inner_path(Path::new("/a/./b")).ok(), Some("a/b".into()));
    }
}
