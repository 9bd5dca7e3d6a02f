//! Finds the mounts of Weald that the kernel has, in `/proc/self/mountinfo`. No other record of
//! them exists, so that none can be wrong.

use rustix::fs::{AtFlags, CWD, StatxFlags};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use weald_format::{Error, Result};
use weald_sys::unescaped;

/// Prefix of the image in the source of a mount.
pub const SOURCE_MARK: &str = "weald:";

/// The table of the mounts of this process.
const MOUNTINFO: &str = "/proc/self/mountinfo";

/// `STATX_MNT_ID` of statx(2), Linux 5.8.
const STATX_MNT_ID: StatxFlags = StatxFlags::from_bits_retain(0x1000);

/// A mount of overlayfs that Weald made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelMount {
    /// Number of the mount.
    pub id: u64,
    /// Mount point.
    pub dir: PathBuf,
    /// The image as it was named, after `...` if its path is long.
    pub image: PathBuf,
    /// Directory of objects.
    pub objects: Option<PathBuf>,
    /// Writable layer.
    pub upper: Option<PathBuf>,
    /// Work directory of the writable layer.
    pub work: Option<PathBuf>,
    /// Whether the kernel verifies objects.
    pub is_verified: bool,
}

/// All mounts of Weald by the kernel that this process sees, in the order of mounting.
///
/// # Errors
/// `Io` without `/proc`.
pub fn mounts() -> Result<Vec<KernelMount>> {
    let table = std::fs::read(MOUNTINFO).map_err(|error| Error::io(MOUNTINFO, error))?;
    Ok(table
        .split(|byte| *byte == b'\n')
        .filter_map(parse)
        .collect())
}

/// The mount that the directory `dir` shows, if Weald made it and the kernel serves it.
///
/// # Errors
/// `Io` without `/proc`.
pub fn mount_on(dir: &Path) -> Result<Option<KernelMount>> {
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    let Ok(stat) = rustix::fs::statx(CWD, dir, flags, STATX_MNT_ID) else {
        return Ok(None);
    };
    let id = stat.stx_mnt_id;
    let mut all = mounts()?;
    let index = all
        .iter()
        .position(|mount| mount.id == id && mount.dir == dir);
    Ok(index.map(|index| all.swap_remove(index)))
}

/// Parses a line: `ID PARENT MAJOR:MINOR ROOT DIR OPTIONS … - TYPE SOURCE OPTIONS`.
fn parse(line: &[u8]) -> Option<KernelMount> {
    let mut words = line.split(|byte| *byte == b' ');
    let id = std::str::from_utf8(words.next()?).ok()?.parse().ok()?;
    let dir = path(words.nth(3)?);
    let mut words = words.skip_while(|word| *word != b"-").skip(1);
    if words.next()? != b"overlay" {
        return None;
    }
    let source = unescaped(words.next()?);
    let image = source.as_bytes().strip_prefix(SOURCE_MARK.as_bytes())?;
    let mut mount = KernelMount {
        id,
        dir,
        image: OsStr::from_bytes(image).into(),
        objects: None,
        upper: None,
        work: None,
        is_verified: false,
    };
    for option in words.next()?.split(|byte| *byte == b',') {
        let Some(at) = option.iter().position(|byte| *byte == b'=') else {
            continue;
        };
        let (key, value) = option.split_at(at);
        let value = value.get(1..).unwrap_or_default();
        match key {
            b"datadir+" => mount.objects = Some(path(value)),
            b"lowerdir" => mount.objects = data_only(value),
            b"upperdir" => mount.upper = Some(path(value)),
            b"workdir" => mount.work = Some(path(value)),
            b"verity" => mount.is_verified = value != b"off",
            _ => {}
        }
    }
    Some(mount)
}

/// The part of `lowerdir=METADATA::OBJECTS` behind the two colons.
fn data_only(value: &[u8]) -> Option<PathBuf> {
    let at = value.windows(2).position(|pair| pair == b"::")?;
    value.get(at + 2..).map(path)
}

fn path(word: &[u8]) -> PathBuf {
    unescaped(word).into()
}

/// Whether a path can be an option of overlayfs as it is, and is shown as it is.
pub fn is_plain(path: &Path) -> bool {
    let bytes = path.as_os_str().as_bytes();
    bytes.len() < 256 && !bytes.iter().any(|byte| b",:\\".contains(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch: a mount of another program that counts as one of Weald, and a path with spaces
    /// that is cut or keeps its escapes.
    #[test]
    fn only_mounts_of_weald_are_found() {
        let line = b"91 29 0:54 / /mnt/a\\040b rw,nosuid shared:7 - overlay weald:/i\\040j ro,\
                     lowerdir+=/c/below,datadir+=/c/obj\\134ects,upperdir=/u,workdir=/w,verity=on";
        let found = parse(line).expect("a mount");
        assert_eq!((found.id, found.dir.as_path()), (91, Path::new("/mnt/a b")));
        assert_eq!(found.image, Path::new("/i j"));
        assert_eq!(found.objects.as_deref(), Some(Path::new("/c/obj\\ects")));
        assert_eq!(found.upper.as_deref(), Some(Path::new("/u")));
        assert_eq!(found.work.as_deref(), Some(Path::new("/w")));
        assert!(found.is_verified);
        let old = b"91 29 0:54 / /m ro - overlay weald:i ro,lowerdir=below::/c/objects,xino=off";
        let found = parse(old).expect("a mount");
        assert_eq!(found.objects.as_deref(), Some(Path::new("/c/objects")));
        for line in [
            &b"91 29 0:54 / /m rw - overlay overlay rw,lowerdir=a"[..],
            b"91 29 0:54 / /m rw - fuse.weald weald:a rw",
            b"91 29 0:54 / /m rw - overlay weald:a",
            b"91",
            b"",
        ] {
            assert_eq!(parse(line), None, "{}", line.escape_ascii());
        }
    }
}
