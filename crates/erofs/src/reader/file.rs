//! The data of a file.

use super::compressed::{ExtentSource, Extents, Mapped, decode};
use super::{Inode, Volume, damaged};
use weald_format::limits::TARGET_LEN_MAX;
use weald_format::{Error, FileKind, Result};

/// Reads the data of files, one after the other. It keeps the extent that it decoded last, so that
/// reading in order decodes everything once.
#[derive(Debug)]
pub struct FileReader {
    inode: Inode,
    compressed: Option<Box<Compressed>>,
    /// Reads the packed inode, which holds tails of many files.
    packed: Option<Box<FileReader>>,
    /// This is the reader of the packed inode.
    is_packed: bool,
}

/// State of a compressed file.
#[derive(Debug)]
struct Compressed {
    extents: Extents,
    /// The extent in `data`.
    current: Option<Mapped>,
    data: Vec<u8>,
    stored: Vec<u8>,
}

impl FileReader {
    /// A reader of `inode`.
    pub fn new(inode: &Inode) -> Self {
        Self {
            inode: *inode,
            compressed: None,
            packed: None,
            is_packed: false,
        }
    }

    /// Goes to another file of the same image.
    pub fn set(&mut self, inode: &Inode) {
        self.inode = *inode;
        self.compressed = None;
    }

    /// Fills `out` with the bytes from `start` on. `volume` is the one that has the inode.
    ///
    /// # Errors
    /// `Io`; `Invalid` for damage and behind the end of the file; `Unsupported` for codecs that
    /// the reader lacks.
    /// # Cost
    /// Decodes an extent, at most 12 MiB, unless it holds the last byte that was read.
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
            self.read_compressed(volume, start, out)
        } else {
            volume.read_plain(&self.inode, start, out)
        }
        .map_err(context)
    }

    fn read_compressed(&mut self, volume: &Volume, start: u64, out: &mut [u8]) -> Result<()> {
        let (mut at, mut rest) = (start, out);
        while !rest.is_empty() {
            let file = match &mut self.compressed {
                Some(file) => file,
                none => none.insert(Box::new(Compressed {
                    extents: Extents::read(volume, &self.inode)?,
                    current: None,
                    data: Vec::new(),
                    stored: Vec::new(),
                })),
            };
            let extent = file.seek(volume, at)?;
            let skip = at.saturating_sub(extent.range.start);
            let len = extent.range.end.saturating_sub(at).min(rest.len() as u64);
            let (head, tail) = std::mem::take(&mut rest).split_at_mut(len as usize);
            match extent.source {
                ExtentSource::Packed(offset) => {
                    let offset = offset.saturating_add(skip);
                    self.read_packed(volume, offset, head)?;
                }
                _ => {
                    let data = file.data.get(skip as usize..).unwrap_or_default();
                    let data = data.get(..head.len());
                    head.copy_from_slice(data.ok_or_else(|| damaged("an extent is short"))?);
                }
            }
            (rest, at) = (tail, at.saturating_add(len));
        }
        Ok(())
    }

    fn read_packed(&mut self, volume: &Volume, offset: u64, out: &mut [u8]) -> Result<()> {
        let nid = volume.geometry.packed_nid;
        if self.is_packed || nid == 0 {
            return Err(damaged("a fragment without a packed inode"));
        }
        let packed = match &mut self.packed {
            Some(packed) => packed,
            none => {
                let mut packed = Self::new(&volume.inode(nid)?);
                packed.is_packed = true;
                none.insert(Box::new(packed))
            }
        };
        packed.read_exact_at(volume, offset, out)
    }
}

impl Compressed {
    /// Goes to the extent of `offset` and decodes it.
    fn seek(&mut self, volume: &Volume, offset: u64) -> Result<Mapped> {
        if let Some(current) = &self.current
            && current.range.contains(&offset)
        {
            return Ok(current.clone());
        }
        self.current = None;
        let extent = self.extents.at(volume, offset)?;
        let len = extent.range.end.saturating_sub(extent.range.start) as usize;
        match &extent.source {
            ExtentSource::Packed(_) => {}
            ExtentSource::Plain { place, shift } => {
                self.stored.resize(len, 0);
                // The data may go round the end of their block.
                let block_rest = volume.block_len().saturating_sub(*shift);
                let split = (block_rest as usize).min(len);
                let split = if *shift == 0 { len } else { split };
                let (head, tail) = self.stored.split_at_mut(split);
                let start = place.start.saturating_add(*shift);
                volume.windows.read_data(start, head, "data")?;
                volume.windows.read_data(place.start, tail, "data")?;
                std::mem::swap(&mut self.data, &mut self.stored);
            }
            ExtentSource::Codec { place, codec } => {
                let stored_len = place.end.saturating_sub(place.start) as usize;
                self.stored.resize(stored_len, 0);
                volume
                    .windows
                    .read_data(place.start, &mut self.stored, "data")?;
                self.data.resize(len, 0);
                decode(*codec, &self.stored, &mut self.data)?;
            }
        }
        self.current = Some(extent.clone());
        Ok(extent)
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
        if target.contains(&0) {
            Err(damaged(format_args!("inode {nid}: a zero in a symlink")))
        } else {
            Ok(target)
        }
    }
}
