//! The map of a sparse file in a tar stream: where its data lie (GNU's format 1.0).
//!
//! Invariant: the whole map is read before the header of the file is written, because the header
//! announces its length. [`SparseMap::write`] reads nothing of the image.

use crate::restore::READ_LEN;
use crate::tar_output::TarOutput;
use std::ops::ControlFlow;
use std::path::Path;
use weald_format::{FileKind, Result};
use weald_image::{Image, Inode};
use weald_io::{ReadAt, Spool};

/// Bytes of a map that are held in memory. The rest goes to a temporary file: 256 KiB has
/// the runs of 16,000 holes.
const MAP_MEMORY_LEN_MAX: usize = 256 << 10;

/// The data runs of a file as text, with their totals.
pub struct SparseMap {
    /// Bytes of data.
    pub data_len: u64,
    /// Whether the file has a hole; only then the map is written.
    pub has_hole: bool,
    run_count: u64,
    spool: Option<Spool>,
    /// The text behind that in the spool.
    held: String,
}

impl SparseMap {
    /// Reads the runs of `inode`. A map that is too long for memory goes to a temporary file in
    /// `temp_dir`.
    ///
    /// # Errors
    /// `Io`, `Corrupt` from the image; `Io`, `Full` from the temporary file.
    pub fn read(image: &Image, inode: &Inode, temp_dir: &Path) -> Result<Self> {
        let mut map = Self {
            data_len: 0,
            has_hole: false,
            run_count: 0,
            spool: None,
            held: String::new(),
        };
        if inode.kind != FileKind::Regular {
            return Ok(map);
        }
        let (mut data_end, mut result) = (0, Ok(()));
        image.runs(inode, 0, &mut |run| {
            if run.is_hole {
                map.has_hole = true;
                return ControlFlow::Continue(());
            }
            data_end = run.offset + run.len;
            result = map.add(run.offset, run.len, temp_dir);
            match result {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            }
        })?;
        result?;
        if map.has_hole && data_end < inode.size.0 {
            // GNU tar writes an empty run at the end, which gives the file its length.
            map.add(inode.size.0, 0, temp_dir)?;
        }
        Ok(map)
    }

    fn add(&mut self, offset: u64, len: u64, temp_dir: &Path) -> Result<()> {
        self.run_count += 1;
        self.data_len += len;
        self.held += &format!("{offset}\n{len}\n");
        if self.held.len() < MAP_MEMORY_LEN_MAX {
            return Ok(());
        }
        let spool = match &mut self.spool {
            Some(spool) => spool,
            empty => empty.insert(Spool::create(temp_dir)?),
        };
        spool.append(self.held.as_bytes())?;
        self.held.clear();
        Ok(())
    }

    fn first_line(&self) -> String {
        format!("{}\n", self.run_count)
    }

    /// Bytes of the text, without padding.
    pub fn text_len(&self) -> u64 {
        let spooled_len = self.spool.as_ref().map_or(0, ReadAt::len);
        self.first_line().len() as u64 + spooled_len + self.held.len() as u64
    }

    /// Writes the text and pads it.
    ///
    /// # Errors
    /// `Io`, `Full` from the stream; `Io` from the temporary file.
    pub fn write(&self, output: &mut TarOutput<'_>) -> Result<()> {
        output.write(self.first_line().as_bytes())?;
        if let Some(spool) = &self.spool {
            let mut offset = 0;
            while offset < spool.len() {
                let len = (spool.len() - offset).min(READ_LEN);
                let mut piece = vec![0; usize::try_from(len).unwrap_or_default()];
                spool.read_exact_at(&mut piece, offset)?;
                output.write(&piece)?;
                offset += len;
            }
        }
        output.write(self.held.as_bytes())?;
        output.pad(self.text_len())
    }
}
