//! An open image.

use super::source::{ImageStorage, Windows};
use super::superblock::Geometry;
use std::sync::OnceLock;
use weald_format::Result;

/// An open EROFS image.
pub struct Volume {
    pub(super) windows: Windows,
    pub(super) geometry: Geometry,
    /// Long prefixes of xattr names, read when an xattr first needs them.
    pub(super) prefixes: OnceLock<Vec<Vec<u8>>>,
}

impl Volume {
    /// Opens the image that `source` holds.
    ///
    /// # Errors
    /// `Io`; `Invalid` for another format and for damage; `Unsupported` for features that the
    /// reader lacks.
    pub fn open(source: impl ImageStorage + 'static) -> Result<Self> {
        let windows = Windows::new(Box::new(source));
        let geometry = Geometry::read(&windows)?;
        Ok(Self {
            windows,
            geometry,
            prefixes: OnceLock::new(),
        })
    }

    /// Bytes of a block.
    pub fn block_len(&self) -> u64 {
        self.geometry.block_len()
    }
}
