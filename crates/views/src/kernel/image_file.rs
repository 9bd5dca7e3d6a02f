//! A metadata image as the reader of EROFS takes it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use weald_erofs::reader::{ImageStorage, Volume};
use weald_format::{Error, Result};

/// Opens the metadata image `file` of `len` bytes; `shown` names it in errors.
///
/// # Errors
/// As [`Volume::open`].
pub fn open_volume(file: File, len: u64, shown: String) -> Result<Volume> {
    Volume::open(ImageFile { file, len, shown })
}

struct ImageFile {
    file: File,
    len: u64,
    shown: String,
}

impl ImageStorage for ImageFile {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_exact_at(&self, out: &mut [u8], offset: u64) -> Result<()> {
        let read = self.file.read_exact_at(out, offset);
        read.map_err(|error| Error::io(self.shown.clone(), error))
    }
}
