//! The tree for the operations, and the entries that these choose from.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use weald_format::FileKind;
use weald_testkit::{Rng, torture};

/// Files in `data`: long enough for reads at many offsets, with compressible and incompressible
/// bytes.
const DATA_COUNT: u64 = 24;
const DATA_LEN_MAX: u64 = 1 << 20;

/// Entries of the directory `many`: more than one readdir reply holds.
const MANY_COUNT: u64 = 2500;

/// Makes the torture tree of `seed` in the empty directory `dir`, with additional long files and a
/// long directory.
pub fn make(dir: &Path, seed: u64) {
    torture::make(dir, &torture::Options { seed, big: false }).expect("torture tree");
    let mut rng = Rng::new(!seed);
    for name in ["data", "many"] {
        fs::create_dir(dir.join(name)).expect("mkdir");
    }
    for index in 0..DATA_COUNT {
        let len = rng.below(DATA_LEN_MAX) as usize;
        let bytes = match index % 3 {
            0 => rng.bytes(len),
            1 => rng.bytes(len).iter().map(|byte| b'a' + byte % 4).collect(),
            _ => rng.bytes(997).repeat(len / 997 + 1),
        };
        fs::write(dir.join(format!("data/{index}")), bytes).expect("write");
    }
    for index in 0..MANY_COUNT {
        let name = format!(
            "many/{index:x}-{:0width$}",
            0,
            width = 1 + index as usize % 60
        );
        fs::write(dir.join(name), index.to_le_bytes()).expect("write");
    }
}

/// An entry below the root.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Path relative to the root.
    pub path: PathBuf,
    /// Kind of file; symlinks are not followed.
    pub kind: FileKind,
    /// Length in bytes.
    pub len: u64,
}

/// All entries below a root, grouped by top-level name. A group with few entries is chosen as often
/// as a group with many.
pub struct Entries {
    groups: Vec<Vec<Entry>>,
    files: Vec<Entry>,
}

impl Entries {
    /// Reads the entries below `root`.
    pub fn of(root: &Path) -> Self {
        let mut groups = Vec::new();
        for name in sorted(root) {
            let mut group = Vec::new();
            collect(root, PathBuf::from(&name), &mut group);
            groups.push(group);
        }
        let is_data = |entry: &&Entry| entry.kind == FileKind::Regular && entry.len > 0;
        let files = groups
            .iter()
            .flatten()
            .filter(is_data)
            // Keeps only some of the thousands of short files.
            .enumerate()
            .filter(|(index, entry)| entry.len > 64 || index % 64 == 0)
            .map(|(_, entry)| entry.clone())
            .collect();
        Self { groups, files }
    }

    /// A random entry.
    pub fn any(&self, rng: &mut Rng) -> &Entry {
        let group = rng.pick(&self.groups);
        rng.pick(group)
    }

    /// A random file that is not empty.
    pub fn file(&self, rng: &mut Rng) -> &Entry {
        rng.pick(&self.files)
    }

    /// A random directory.
    pub fn dir(&self, rng: &mut Rng) -> &Entry {
        loop {
            let entry = self.any(rng);
            if entry.kind == FileKind::Directory {
                return entry;
            }
        }
    }
}

fn sorted(dir: &Path) -> Vec<std::ffi::OsString> {
    let entries = fs::read_dir(dir).expect("directory");
    let mut names: Vec<_> = entries.map(|e| e.expect("entry").file_name()).collect();
    names.sort_by(|a, b| a.as_bytes().cmp(b.as_bytes()));
    names
}

fn collect(root: &Path, path: PathBuf, all: &mut Vec<Entry>) {
    let dir = weald_sys::open_dir(root).expect("root");
    let stat = weald_sys::stat_at(&dir, path.as_os_str().as_bytes()).expect("stat");
    let names = match stat.kind {
        FileKind::Directory => sorted(&root.join(&path)),
        _ => Vec::new(),
    };
    all.push(Entry {
        path: path.clone(),
        kind: stat.kind,
        len: stat.size,
    });
    for name in names {
        collect(root, path.join(name), all);
    }
}
