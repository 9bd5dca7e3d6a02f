//! A packer and a reader of DwarFS images for the benchmarks, on the crates `dwarfs-enc` and
//! `dwarfs`. It does what `mkdwarfs` does by default, as far as the crates can: blocks of 16 MiB,
//! Zstandard at level 22, times of last change only. The crates cannot order files by similarity,
//! and they find repeats by content-defined chunking instead of at any byte.

use dwarfs::archive::{Config as ReadConfig, IsInode};
use dwarfs::section::{Header, SectionReader};
use dwarfs::{Archive, ArchiveIndex, AsChunks, Dir, Inode, InodeKind};
use dwarfs_enc::chunker::{BasicChunker, CdcChunker, Chunker};
use dwarfs_enc::metadata::{Builder, Config, DirId, FileId, InodeMetadata};
use dwarfs_enc::section::{CompressParam, Writer};
use std::collections::HashMap;
use std::error::Error;
use std::fs::{self, DirEntry, File, FileTimes, Permissions};
use std::io::{self, BufRead, BufWriter, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

const USAGE: &str = "usage: weald-bench-dwarfs pack TREE IMAGE [LEVEL]
       weald-bench-dwarfs read IMAGE
       weald-bench-dwarfs extract IMAGE DIR
       weald-bench-dwarfs check IMAGE
       weald-bench-dwarfs version";

/// The level of `mkdwarfs` by default.
const LEVEL: i32 = 22;

/// Decoded blocks that a reader keeps, in bytes: the `cachesize` of `dwarfs` by default.
const CACHE_LEN: usize = 512 << 20;

type Done = Result<(), Box<dyn Error>>;

/// Puts a tree into an image, directory by directory, names in order.
struct Packer<'a> {
    tree: Builder,
    contents: &'a mut dyn Chunker,
    /// Files that have several names, by device and inode number.
    linked: HashMap<(u64, u64), FileId>,
}

impl Packer<'_> {
    fn pack_dir(&mut self, path: &Path, dir: DirId) -> Done {
        let mut entries = fs::read_dir(path)?.collect::<io::Result<Vec<DirEntry>>>()?;
        entries.sort_by_key(DirEntry::file_name);
        for entry in entries {
            self.pack_entry(&entry, dir)
                .map_err(|error| format!("{}: {error}", entry.path().display()))?;
        }
        Ok(())
    }

    fn pack_entry(&mut self, entry: &DirEntry, dir: DirId) -> Done {
        let name = entry.file_name();
        let name = name.to_str().ok_or("the crate takes names in UTF-8 only")?;
        let found = entry.metadata()?;
        let attributes = InodeMetadata::from(&found);
        let kind = found.file_type();
        if kind.is_dir() {
            let below = self.tree.put_dir(dir, name, &attributes)?;
            self.pack_dir(&entry.path(), below)?;
        } else if kind.is_file() {
            self.pack_file(entry, name, &found, dir)?;
        } else if kind.is_symlink() {
            let target = fs::read_link(entry.path())?;
            let target = target
                .to_str()
                .ok_or("the crate takes targets in UTF-8 only")?;
            self.tree.put_symlink(dir, name, &attributes, target)?;
        } else if kind.is_char_device() {
            self.tree
                .put_char_device(dir, name, &attributes, found.rdev())?;
        } else if kind.is_block_device() {
            self.tree
                .put_block_device(dir, name, &attributes, found.rdev())?;
        } else if kind.is_fifo() {
            self.tree.put_fifo(dir, name, &attributes)?;
        } else {
            self.tree.put_socket(dir, name, &attributes)?;
        }
        Ok(())
    }

    fn pack_file(
        &mut self,
        entry: &DirEntry,
        name: &str,
        found: &fs::Metadata,
        dir: DirId,
    ) -> Done {
        let inode = (found.dev(), found.ino());
        if let Some(&first) = self.linked.get(&inode) {
            self.tree.put_hard_link(dir, name, first)?;
            return Ok(());
        }
        let chunks = self.contents.put_reader(&mut File::open(entry.path())?)?;
        let file = self
            .tree
            .put_file(dir, name, &InodeMetadata::from(found), chunks)?;
        if found.nlink() > 1 {
            self.linked.insert(inode, file);
        }
        Ok(())
    }
}

fn pack(source: &Path, image: &Path, level: i32) -> Done {
    let root = InodeMetadata::from(&fs::metadata(source)?);
    let mut config = Config::default();
    config.mtime_only(true);
    let tree = Builder::new_with_config(&config, &root);
    let compression = CompressParam::Zstd(level);
    let writer = Writer::new(BufWriter::new(File::create_new(image)?))?;
    let mut contents = CdcChunker::new(BasicChunker::new(writer, tree.block_size(), compression));
    let mut packer = Packer {
        tree,
        contents: &mut contents,
        linked: HashMap::new(),
    };
    let top = packer.tree.root();
    packer.pack_dir(source, top)?;
    let tree = packer.tree.finish()?;
    let mut writer = contents.finish()?;
    writer.write_metadata_sections(&tree, compression)?;
    writer.finish()?.into_inner()?;
    Ok(())
}

fn open(image: &Path) -> Result<(ArchiveIndex, Archive<File>), Box<dyn Error>> {
    let mut config = ReadConfig::default();
    config.block_cache_size_limit(CACHE_LEN);
    Ok(Archive::new_with_config(File::open(image)?, &config)?)
}

/// Writes the contents of all files to standard output, in the order of the image's inodes.
fn read(image: &Path) -> Done {
    let (index, mut archive) = open(image)?;
    let mut out = io::stdout().lock();
    for inode in index.inodes() {
        if let InodeKind::File(file) = inode.classify() {
            copy(&mut file.as_reader(&mut archive), &mut out)?;
        }
    }
    out.flush()?;
    Ok(())
}

fn copy(reader: &mut impl BufRead, out: &mut impl Write) -> io::Result<()> {
    loop {
        let piece = reader.fill_buf()?;
        let len = piece.len();
        if len == 0 {
            return Ok(());
        }
        out.write_all(piece)?;
        reader.consume(len);
    }
}

/// Writes the tree of an image into a new directory.
struct Extractor {
    archive: Archive<File>,
    /// The first path of each file, by its inode number.
    written: HashMap<u32, PathBuf>,
}

impl Extractor {
    fn dir(&mut self, dir: Dir<'_>, path: &Path) -> Done {
        fs::create_dir(path)?;
        for entry in dir.entries() {
            let name = entry.name();
            if matches!(name, "" | "." | "..") || name.contains('/') {
                return Err(format!("{}: a name is {name:?}", path.display()).into());
            }
            self.entry(entry.inode(), &path.join(name))?;
        }
        attributes(&dir.to_inode(), path, false)
    }

    fn entry(&mut self, inode: Inode<'_>, path: &Path) -> Done {
        match inode.classify() {
            InodeKind::Directory(dir) => self.dir(dir, path),
            InodeKind::Symlink(link) => {
                symlink(link.target(), path)?;
                attributes(&inode, path, true)
            }
            InodeKind::File(file) => {
                if let Some(first) = self.written.get(&inode.inode_num()) {
                    return Ok(fs::hard_link(first, path)?);
                }
                let mut out = File::create_new(path)?;
                copy(&mut file.as_reader(&mut self.archive), &mut out)?;
                self.written.insert(inode.inode_num(), path.to_owned());
                attributes(&inode, path, false)
            }
            _ => Err(format!("{}: devices and sockets are not extracted", path.display()).into()),
        }
    }
}

/// Gives a path the owner and, unless it is a symlink, the mode and time of an inode.
fn attributes(inode: &Inode<'_>, path: &Path, is_symlink: bool) -> Done {
    let found = inode.metadata();
    lchown(path, Some(found.uid()), Some(found.gid()))?;
    if !is_symlink {
        let time = UNIX_EPOCH + Duration::from_secs(found.mtime());
        File::open(path)?.set_times(FileTimes::new().set_modified(time))?;
        let mode = found.file_type_mode().mode_bits();
        fs::set_permissions(path, Permissions::from_mode(mode))?;
    }
    Ok(())
}

fn extract(image: &Path, target: &Path) -> Done {
    let (index, archive) = open(image)?;
    let written = HashMap::new();
    Extractor { archive, written }.dir(index.root(), target)
}

/// Compares the SHA-512/256 checksum of each section with its bytes, as `dwarfsck` does with
/// `--check-integrity`.
fn check(image: &Path) -> Done {
    let (index, _) = open(image)?;
    let file = File::open(image)?;
    let mut sections = SectionReader::new(File::open(image)?);
    if index.section_index().is_empty() {
        return Err("the image lists no sections".into());
    }
    for section in index.section_index() {
        let at = section.offset();
        let header = sections.read_header_at(at)?;
        let mut stored = vec![0; usize::try_from(header.payload_size.get())?];
        file.read_exact_at(&mut stored, at + size_of::<Header>() as u64)?;
        header
            .validate_slow_checksum(&stored)
            .map_err(|error| format!("the section at {at}: {error}"))?;
    }
    Ok(())
}

fn run(words: &[&str]) -> Done {
    match words {
        ["pack", tree, image] => pack(Path::new(tree), Path::new(image), LEVEL),
        ["pack", tree, image, level] => pack(Path::new(tree), Path::new(image), level.parse()?),
        ["read", image] => read(Path::new(image)),
        ["extract", image, dir] => extract(Path::new(image), Path::new(dir)),
        ["check", image] => check(Path::new(image)),
        ["version"] => {
            println!("crates dwarfs-enc 0.1.0 and dwarfs 0.2.1");
            Ok(())
        }
        _ => Err(USAGE.into()),
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    if let Err(error) = run(&words) {
        eprintln!("weald-bench-dwarfs: {error}");
        std::process::exit(2);
    }
}
