//! Source of the bytes of a scanned file: a directory on disk, or an image.

use std::fs::File;
use std::io::ErrorKind;
use std::ops::{ControlFlow, Range};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use weald_format::tree_digest::ContentHasher;
use weald_format::{Digest, Error, Result};
use weald_image::{Image, Inode};

/// Source of a scanned tree: one layer, or several of which later ones lie over earlier ones.
pub struct Origin {
    layers: Vec<OriginLayer>,
    has_upper: bool,
    /// The files that are laid over all layers, one by one.
    added: Option<OriginLayer>,
}

/// A directory or an image from which entries of a tree come.
pub struct OriginLayer {
    /// Shards with the names of its entries.
    shards: Range<usize>,
    /// Where its files are.
    pub from: LayerSource,
    /// Length of the prefix that paths in the tree have compared with paths in the layer, bytes.
    pub at_len: usize,
    /// What goes before a path of the layer in a message; empty for an only one.
    pub shown: Vec<u8>,
    /// Whether symlinks of the directory were followed.
    pub follows: bool,
}

/// Where the files of a layer are.
pub enum LayerSource {
    /// In a directory, open.
    Directory(OwnedFd),
    /// In the tree of an image.
    Image(Arc<Image>),
    /// At these paths of the host, by the number of the file.
    Files(Vec<PathBuf>),
}

/// Device number of the inodes of an image below other layers; no file system has it.
pub const IMAGE_DEV: u64 = u64::MAX;

impl Origin {
    /// The origin of a tree whose names are all in `shards`.
    pub fn new(from: LayerSource, shards: Range<usize>) -> Self {
        Self {
            layers: vec![OriginLayer {
                shards,
                from,
                at_len: 0,
                shown: Vec::new(),
                follows: false,
            }],
            has_upper: false,
            added: None,
        }
    }

    /// The same, with symlinks followed.
    pub fn following(mut self) -> Self {
        self.layers
            .iter_mut()
            .for_each(|layer| layer.follows = true);
        self
    }

    /// The origin of a tree without files.
    pub fn none() -> Self {
        Self {
            layers: Vec::new(),
            has_upper: false,
            added: None,
        }
    }

    /// Puts `shown` before the paths of all layers in messages.
    pub fn name(&mut self, shown: Vec<u8>) {
        for layer in &mut self.layers {
            layer.shown.clone_from(&shown);
        }
    }

    /// Whether a layer is one of overlayfs.
    pub fn has_upper(&self) -> bool {
        self.has_upper
    }

    /// Puts the layers of `other`, whose shards come later, over these; it `is_upper` if they are
    /// of overlayfs. Their paths get a prefix of `at_len` bytes.
    pub fn push(&mut self, other: Self, at_len: usize, is_upper: bool) {
        self.has_upper |= is_upper;
        self.layers
            .extend(other.layers.into_iter().map(|layer| OriginLayer {
                at_len: layer.at_len + at_len,
                ..layer
            }));
    }

    /// Lays the files at `paths`, whose names are in `shard`, over all layers.
    pub fn add_files(&mut self, paths: Vec<PathBuf>, shard: usize) {
        self.added = Some(OriginLayer {
            shards: shard..shard + 1,
            from: LayerSource::Files(paths),
            at_len: 0,
            shown: Vec::new(),
            follows: false,
        });
    }

    /// The layer with the names of `shard`; none has those of directories made between layers.
    pub fn layer(&self, shard: usize) -> Option<&OriginLayer> {
        if let Some(added) = self.added.as_ref().filter(|a| a.shards.contains(&shard)) {
            return Some(added);
        }
        let after = self.layers.partition_point(|l| l.shards.start <= shard);
        let layer = self.layers.get(after.checked_sub(1)?)?;
        layer.shards.contains(&shard).then_some(layer)
    }

    /// Whether the tree is that of an image and nothing else.
    pub fn is_image(&self) -> bool {
        matches!(
            &*self.layers,
            [OriginLayer {
                from: LayerSource::Image(_),
                ..
            }]
        )
    }

    /// Index of the shard of the entries kept from the image that lies below other layers.
    pub fn image_shard(&self) -> Option<usize> {
        match &*self.layers {
            [
                OriginLayer {
                    from: LayerSource::Image(_),
                    shards,
                    ..
                },
                _,
                ..,
            ] => Some(shards.start),
            _ => None,
        }
    }
}

/// A regular file, open for reading.
pub enum SourceFile {
    /// A file on disk, and its length when it was opened, bytes.
    Disk(File, u64),
    /// A file in an image.
    Stored(Arc<Image>, Box<Inode>),
}

impl std::fmt::Debug for SourceFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Disk(file, len) => f.debug_tuple("Disk").field(file).field(len).finish(),
            Self::Stored(_, inode) => f.debug_tuple("Stored").field(inode).finish(),
        }
    }
}

impl SourceFile {
    /// Returns the data runs of the file, which had its length when it was opened.
    ///
    /// # Errors
    /// `Io`; `Corrupt` in an image.
    pub fn layout(&self) -> Result<Layout> {
        match self {
            Self::Disk(file, len) => Layout::of_file(file, *len),
            Self::Stored(image, inode) => Layout::of_inode(image, inode),
        }
    }

    /// Appends `len` bytes from the start of the file to `data`, fewer if the file is shorter.
    ///
    /// # Errors
    /// `Io`; `Corrupt` in an image.
    pub fn read_front(&self, len: u64, data: &mut Vec<u8>) -> Result<()> {
        match self {
            Self::Disk(file, _) => {
                let start = data.len();
                data.reserve_exact(len as usize);
                let mut at = 0;
                while at < len {
                    let read = weald_sys::append_at(file, at, data);
                    match read.map_err(|e| Error::io("cannot be read", e))? {
                        0 => break,
                        read_len => at += read_len as u64,
                    }
                }
                // The vector may have had more room.
                data.truncate(start + len as usize);
                Ok(())
            }
            Self::Stored(image, inode) => {
                data.extend_from_slice(&image.read(inode, 0, len as usize)?);
                Ok(())
            }
        }
    }

    /// Reads a file of at most `len_max` bytes whole, if it is on disk, and appends its data
    /// without holes to `data`, which is empty. Returns `None`, and appends nothing, for any other
    /// file.
    ///
    /// # Errors
    /// `Io`; [`is_cut`] tells if the file ends before its last run does.
    /// # Cost
    /// Reads holes too, and searches for them only if the bytes read have a zero: a hole reads as
    /// zeros.
    pub fn read_whole(&self, len_max: u64, data: &mut Vec<u8>) -> Result<Option<Layout>> {
        let Self::Disk(file, len) = self else {
            return Ok(None);
        };
        if *len > len_max {
            return Ok(None);
        }
        self.read_front(*len, data)?;
        if !data.contains(&0) {
            return Ok(Some(Layout::new(*len, std::iter::once(0..*len).collect())));
        }
        let layout = Layout::of_file(file, *len)?;
        if let Some(runs) = &layout.runs {
            if runs.last().is_some_and(|run| run.end > data.len() as u64) {
                return Err(ended_early(ErrorKind::UnexpectedEof.into()));
            }
            let mut at = 0;
            for run in runs {
                data.copy_within(run.start as usize..run.end as usize, at);
                at += (run.end - run.start) as usize;
            }
            data.truncate(at);
        }
        Ok(Some(layout))
    }

    /// Fills `run` with the bytes from `start` on.
    ///
    /// # Errors
    /// `Io`; [`is_cut`] tells if the file ends before the run does. `Corrupt` in an image.
    pub fn read_run(&self, run: &mut [u8], start: u64) -> Result<()> {
        let file = match self {
            Self::Disk(file, _) => file,
            Self::Stored(image, inode) => {
                return if image.read_at(inode, start, run)? == run.len() {
                    Ok(())
                } else {
                    Err(ended_early(ErrorKind::UnexpectedEof.into()))
                };
            }
        };
        file.read_exact_at(run, start).map_err(|e| match e.kind() {
            ErrorKind::UnexpectedEof => ended_early(e),
            _ => Error::io("cannot be read", e),
        })
    }
}

fn ended_early(error: std::io::Error) -> Error {
    let cause = std::io::Error::new(error.kind(), "it ended early");
    Error::io("changed while it was read", cause)
}

/// Whether the error means that a file ended before the length it had when it was opened.
pub fn is_cut(error: &Error) -> bool {
    error
        .io_source()
        .is_some_and(|e| e.kind() == ErrorKind::UnexpectedEof)
}

/// Length and data runs of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Length in bytes, holes included.
    pub len: u64,
    /// Data runs of a file with holes; `None` for a dense file.
    pub runs: Option<Vec<Range<u64>>>,
}

impl Layout {
    fn of_file(file: &File, len: u64) -> Result<Self> {
        // Do not use st_blocks: file systems count other data in it (xattrs, extent trees), which
        // would hide small holes.
        let runs = match len {
            0 => Vec::new(),
            len => weald_sys::data_runs(file, len)
                .map_err(|e| Error::io("cannot be searched for holes", e))?,
        };
        Ok(Self::new(len, runs))
    }

    fn of_inode(image: &Image, inode: &Inode) -> Result<Self> {
        let mut runs = Vec::new();
        image.runs(inode, 0, &mut |run| {
            if !run.is_hole {
                runs.push(run.offset..run.offset.saturating_add(run.len));
            }
            ControlFlow::Continue(())
        })?;
        Ok(Self::new(inode.size.0, runs))
    }

    fn new(len: u64, runs: Vec<Range<u64>>) -> Self {
        let is_dense = len == 0 || runs.len() == 1 && runs.first() == Some(&(0..len));
        Self {
            len,
            runs: (!is_dense).then_some(runs),
        }
    }

    /// Bytes of data, without holes.
    pub fn data_len(&self) -> u64 {
        self.runs
            .as_ref()
            .map_or(self.len, |runs| runs.iter().map(|r| r.end - r.start).sum())
    }

    /// Digest of the content of this layout whose data, without holes, is `data`.
    pub fn digest_of(&self, data: &[u8]) -> Digest {
        if self.runs.is_none() {
            return ContentHasher::dense_digest(data);
        }
        let mut hasher = self.hasher();
        hasher.update(data);
        hasher.finish()
    }

    /// Returns the hasher for contents of this layout.
    pub fn hasher(&self) -> ContentHasher {
        match &self.runs {
            None => ContentHasher::dense(),
            Some(runs) => {
                let runs: Vec<(u64, u64)> =
                    runs.iter().map(|r| (r.start, r.end - r.start)).collect();
                ContentHasher::sparse(self.len, &runs)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch: a hole that is taken for data, or zeros that are taken for a hole; data that
    /// differs from what the runs name.
    #[test]
    fn a_file_read_whole_has_its_holes() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("file");
        let block = |byte| vec![byte; 1 << 16];
        for (parts, end) in [
            (vec![(0, block(1))], 1 << 16),
            (vec![(0, block(0))], 1 << 16),
            (vec![(0, block(1)), (1 << 18, block(2))], 5 << 16),
            (vec![(1 << 16, block(3))], 1 << 18),
            (vec![], 1 << 17),
            (vec![], 0),
        ] {
            let file = File::create(&path).unwrap();
            file.set_len(end).unwrap();
            for (at, bytes) in &parts {
                file.write_all_at(bytes, *at).unwrap();
            }
            let file = SourceFile::Disk(File::open(&path).unwrap(), end);
            let (layout, mut data) = (file.layout().unwrap(), Vec::new());
            let whole = file.read_whole(end, &mut data).unwrap();
            assert_eq!(whole, Some(layout.clone()));
            assert_eq!(data.len() as u64, layout.data_len());
            let bytes = std::fs::read(&path).unwrap();
            let runs = layout
                .runs
                .unwrap_or_else(|| std::iter::once(0..end).collect());
            let expected = runs
                .iter()
                .flat_map(|r| &bytes[r.start as usize..r.end as usize]);
            assert!(data.iter().eq(expected), "{parts:?}");
            assert_eq!(
                file.read_whole(end.wrapping_sub(1), &mut Vec::new())
                    .unwrap()
                    .is_none(),
                end > 0
            );
        }
    }
}
