//! Trees that are large in one respect: number of entries, number of directories, depth.

use super::maker::Maker;
use std::path::Path;
use weald_format::{Error, Result};
use weald_sys::NodeKind;

/// Makes the directory `dir` with `million/`, a directory of `entry_count` empty files, and
/// `spread/`, `dir_count` empty directories with a hundred per parent.
///
/// # Errors
/// `Io`, `Full` (inodes may run out).
pub fn make_big(dir: &Path, entry_count: u32, dir_count: u32) -> Result<()> {
    std::fs::create_dir(dir).map_err(|e| Error::io(format!("{}", dir.display()), e))?;
    let root = Maker::open(dir)?;
    let million = root.dir("million")?;
    for number in 0..entry_count {
        let name = format!("entry-{number:07}");
        let made =
            weald_sys::make_node_at(&million.fd, name.as_bytes(), NodeKind::EmptyFile, 0o644);
        million.named(name.as_bytes(), "make node", made)?;
    }
    let spread = root.dir("spread")?;
    for parent in 0..dir_count.div_ceil(100) {
        let dir = spread.dir(format!("{parent:04}"))?;
        for number in 0..100.min(dir_count - parent * 100) {
            let name = format!("{number}");
            dir.named(
                name.as_bytes(),
                "make",
                weald_sys::make_dir_at(&dir.fd, name.as_bytes(), 0o755),
            )?;
        }
    }
    Ok(())
}

/// Makes `depth` directories in each other in `dir`, with a file at the bottom: at 1000 levels and
/// more the path is longer than `PATH_MAX`, which rsync and most tools cannot walk. Remove it with
/// rm(1).
///
/// # Errors
/// `Io`, `Full`.
pub fn make_deep(dir: &Path, depth: u32) -> Result<()> {
    let mut at = Maker::open(dir)?;
    for level in 0..depth {
        let name = format!("level-{level:05}");
        at.named(
            name.as_bytes(),
            "make",
            weald_sys::make_dir_at(&at.fd, name.as_bytes(), 0o755),
        )?;
        at.fd = at.named(
            name.as_bytes(),
            "open",
            weald_sys::open_dir_at(&at.fd, name.as_bytes()),
        )?;
    }
    at.file("bottom", b"as deep as it gets")
}
