//! Writes a tree onto a volume, then a tar file of it, a second copy, and its bytes in one file
//! twice, the second time moved. Prints for each kind of chunking what each of them adds to the
//! store, in percent of its length, and the processor time. Then opens the volume again and reads
//! files in order. Nothing goes through FUSE.
//!
//! `cargo run --release -p weald-volume --example chunking -- TREE [fixed|auto|content]...`

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use weald_format::FileKind;
use weald_store::Store;
use weald_store::disk::HostDisk;
use weald_vfs::{Ino, NewInode, WritableFs};
use weald_volume::{Chunking, OpenOptions, Volume, VolumeOptions, create};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Bytes of one write of tar(1), and of cp(1) as FUSE passes it on.
const TAR_WRITE_LEN: usize = 10240;
const COPY_WRITE_LEN: usize = 128 << 10;

/// A tree in memory, parents first.
#[derive(Default)]
struct Tree {
    entries: Vec<(PathBuf, Kind)>,
    len: usize,
}

enum Kind {
    Dir,
    Symlink(Vec<u8>),
    File(Vec<u8>),
}

impl Tree {
    fn read(top: &Path) -> Result<Self> {
        let mut tree = Self::default();
        tree.add(top, Path::new(""))?;
        Ok(tree)
    }

    fn add(&mut self, top: &Path, below: &Path) -> Result<()> {
        // tar(1) has the order of the directory, too.
        for entry in std::fs::read_dir(top.join(below))? {
            let entry = entry?;
            let path = below.join(entry.file_name());
            let kind = entry.file_type()?;
            if kind.is_dir() {
                self.entries.push((path.clone(), Kind::Dir));
                self.add(top, &path)?;
            } else if kind.is_symlink() {
                let target = std::fs::read_link(entry.path())?;
                let target = target.into_os_string().into_encoded_bytes();
                self.entries.push((path, Kind::Symlink(target)));
            } else if kind.is_file() {
                let bytes = std::fs::read(entry.path())?;
                self.len += bytes.len();
                self.entries.push((path, Kind::File(bytes)));
            }
        }
        Ok(())
    }

    /// The bytes of all files, one after the other.
    fn joined(&self) -> Vec<u8> {
        let mut joined = Vec::with_capacity(self.len);
        for (_, kind) in &self.entries {
            if let Kind::File(bytes) = kind {
                joined.extend_from_slice(bytes);
            }
        }
        joined
    }
}

struct Bench {
    volume: Arc<Volume>,
    store: PathBuf,
}

impl Bench {
    fn new(dir: &Path, chunking: Chunking) -> Result<Self> {
        let path = dir.join(chunking.word());
        let store = Store::create(Arc::new(HostDisk::new(&path)), [1; 16], 64 << 20)?;
        let options = VolumeOptions {
            chunking,
            ..VolumeOptions::default()
        };
        create(&store, "v", &options, [2; 16], 0)?;
        let volume = Volume::open(&store, "v", OpenOptions::default())?;
        Ok(Self {
            volume,
            store: path,
        })
    }

    /// Bytes that the store takes on the disk.
    fn stored(&self) -> Result<u64> {
        let out = Command::new("du")
            .arg("-s")
            .arg("-B1")
            .arg(&self.store)
            .output()?;
        let text = String::from_utf8(out.stdout)?;
        Ok(text.split_whitespace().next().unwrap_or_default().parse()?)
    }

    fn create(&self, dir: Ino, name: &[u8], kind: FileKind, target: &[u8]) -> Result<Ino> {
        let new = NewInode {
            kind,
            permissions: 0o644,
            uid: 0,
            gid: 0,
            rdev: 0,
            target,
            xattrs: &[],
        };
        let created = self
            .volume
            .create(dir, name, &new, 1_700_000_000_123_456_789);
        Ok(created.map_err(|failure| format!("{failure:?}"))?.ino)
    }

    fn file(&self, dir: Ino, name: &[u8], bytes: &[u8], write_len: usize) -> Result<()> {
        let ino = self.create(dir, name, FileKind::Regular, b"")?;
        for (part, at) in bytes.chunks(write_len).zip((0..).step_by(write_len)) {
            let written = self.volume.write(ino, at, part, 1_700_000_000_123_456_789);
            written.map_err(|failure| format!("{failure:?}"))?;
        }
        Ok(())
    }

    fn tree(&self, name: &str, tree: &Tree) -> Result<()> {
        let top = self.create(Ino::ROOT, name.as_bytes(), FileKind::Directory, b"")?;
        let mut dirs = std::collections::HashMap::from([(PathBuf::new(), top)]);
        for (path, kind) in &tree.entries {
            let parent = path.parent().unwrap_or(Path::new(""));
            let name = path.file_name().unwrap_or_default().as_encoded_bytes();
            match kind {
                Kind::Dir => {
                    let ino = self.create(dirs[parent], name, FileKind::Directory, b"")?;
                    dirs.insert(path.clone(), ino);
                }
                Kind::Symlink(target) => {
                    self.create(dirs[parent], name, FileKind::Symlink, target)?;
                }
                Kind::File(bytes) => self.file(dirs[parent], name, bytes, COPY_WRITE_LEN)?,
            }
        }
        Ok(())
    }

    fn step(&self, what: &str, len: usize, write: impl FnOnce() -> Result<()>) -> Result<()> {
        let (before, start) = (self.stored()?, cpu_time());
        write()?;
        self.volume.commit()?;
        let time = cpu_time() - start;
        let added = self.stored()?.saturating_sub(before);
        println!(
            "  {what:<24} {:>6.2}%   {:>7.2} ms of processor time for a MiB",
            100.0 * added as f64 / len as f64,
            1000.0 * time / (len as f64 / f64::from(1 << 20)),
        );
        Ok(())
    }
}

/// Seconds of processor time of this process.
fn cpu_time() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let top = PathBuf::from(args.next().ok_or("expected TREE")?);
    let words: Vec<_> = args.collect();
    let all = Chunking::WORDS.map(|(_, chunking)| chunking);
    let wanted = all.into_iter();
    let wanted = wanted.filter(|it| words.is_empty() || words.iter().any(|w| w == it.word()));
    let tree = Tree::read(&top)?;
    let tar = Command::new("tar")
        .arg("-cC")
        .arg(&top)
        .arg(".")
        .output()?
        .stdout;
    let joined = tree.joined();
    let mut moved = joined.clone();
    moved.splice(0..0, b"a line".iter().copied());
    let names = tree.entries.len();
    println!("{}: {} bytes in {names} names", top.display(), tree.len);
    let dir = tempfile::tempdir()?;
    for chunking in wanted {
        println!("{}", chunking.word());
        let bench = Bench::new(dir.path(), chunking)?;
        bench.step("the tree", tree.len, || bench.tree("first", &tree))?;
        bench.step("a tar of it", tar.len(), || {
            bench.file(Ino::ROOT, b"tar", &tar, TAR_WRITE_LEN)
        })?;
        bench.step("a second copy", tree.len, || bench.tree("second", &tree))?;
        bench.step("its bytes in one file", joined.len(), || {
            bench.file(Ino::ROOT, b"joined", &joined, COPY_WRITE_LEN)
        })?;
        bench.step("the same, moved", moved.len(), || {
            bench.file(Ino::ROOT, b"moved", &moved, COPY_WRITE_LEN)
        })?;
        bench.volume.close()?;
        let path = bench.store.clone();
        drop(bench);
        for name in ["tar", "joined", "moved"] {
            read(&path, name)?;
        }
    }
    Ok(())
}

/// Opens the volume, whose blocks are then not in its cache, and reads a file in order.
fn read(store: &Path, name: &str) -> Result<()> {
    let store = Store::open(Arc::new(HostDisk::new(store)))?;
    let options = OpenOptions {
        is_read_only: true,
        ..OpenOptions::default()
    };
    let volume = Volume::open(&store, "v", options)?;
    let found = volume.lookup(Ino::ROOT, name.as_bytes());
    let file = found.map_err(|failure| format!("{failure:?}"))?;
    let start = cpu_time();
    let mut bytes = Vec::new();
    for at in (0..file.size).step_by(COPY_WRITE_LEN) {
        bytes.clear();
        let done = volume.read(file.ino, at, COPY_WRITE_LEN, &mut bytes);
        done.map_err(|failure| format!("{failure:?}"))?;
    }
    println!(
        "  {:<24} {:>6}    {:>7.2} ms of processor time for a MiB",
        format!("reading '{name}'"),
        "",
        1000.0 * (cpu_time() - start) / (file.size as f64 / f64::from(1 << 20)),
    );
    Ok(())
}
