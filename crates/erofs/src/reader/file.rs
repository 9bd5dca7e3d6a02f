//! The data of a file.

use super::{Inode, Volume, damaged, unsupported};
use weald_format::limits::TARGET_LEN_MAX;
use weald_format::{Error, FileKind, Result};

/// Reads the data of one file. It keeps what it decoded last, so that reading in order decodes
/// everything once.
#[derive(Debug)]
pub struct FileReader {
    inode: Inode,
}

impl FileReader {
    /// A reader of `inode`.
    pub fn new(inode: &Inode) -> Self {
        Self { inode: *inode }
    }

    /// Fills `out` with the bytes from `start` on. `volume` is the one that has the inode.
    ///
    /// # Errors
    /// `Io`; `Invalid` for damage and behind the end of the file; `Unsupported` for codecs that
    /// the reader lacks.
    pub fn read_exact_at(&mut self, volume: &Volume, start: u64, out: &mut [u8]) -> Result<()> {
        let nid = self.inode.nid;
        let context = |e: Error| e.context(format_args!("inode {nid}"));
        let end = start.saturating_add(out.len() as u64);
        if end > self.inode.size {
            let size = self.inode.size;
            let what = format!("{} bytes at {start}, the file has {size}", out.len());
            return Err(context(damaged(what)));
        }
        if self.inode.is_compressed() {
            return Err(context(unsupported("compressed data")));
        }
        volume.read_plain(&self.inode, start, out).map_err(context)
    }
}

impl Volume {
    /// The target of a symlink.
    ///
    /// # Errors
    /// `Io`; `Invalid` for damage and for targets that Linux does not allow.
    pub fn target(&self, inode: &Inode) -> Result<Vec<u8>> {
        let nid = inode.nid;
        let is_fit = (1..=TARGET_LEN_MAX as u64).contains(&inode.size);
        if inode.kind != FileKind::Symlink || !is_fit {
            let what = format!("inode {nid}: a symlink to {} bytes", inode.size);
            return Err(damaged(what));
        }
        let mut target = vec![0; inode.size as usize];
        FileReader::new(inode).read_exact_at(self, 0, &mut target)?;
        match target.contains(&0) {
            true => Err(damaged(format_args!("inode {nid}: a zero in a symlink"))),
            false => Ok(target),
        }
    }
}
