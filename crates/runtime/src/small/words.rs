//! The words with which the program starts itself again: `OFFSET FILE DIRECTORY…`.

use crate::failure::{Context, refuse};
use std::ffi::OsString;
use std::path::Path;
use weald_format::Result;
use weald_image::{Image, OpenOptions};

/// An image, and where its tree goes.
pub struct Words<'a> {
    offset: u64,
    /// The file with the image.
    pub file: &'a Path,
    /// The mount point, or the target of an extraction.
    pub dir: &'a Path,
    /// The other words.
    pub rest: &'a [OsString],
}

impl<'a> Words<'a> {
    /// Takes the words apart.
    pub fn parse(words: &'a [OsString]) -> Result<Self> {
        let [offset, file, dir, rest @ ..] = words else {
            return refuse(
                "the words OFFSET FILE DIRECTORY are missing: this program starts itself so",
            );
        };
        let offset = offset.to_str().and_then(|text| text.parse().ok());
        Ok(Self {
            offset: offset.context("the offset is no number")?,
            file: Path::new(file),
            dir: Path::new(dir),
            rest,
        })
    }

    /// Opens the image.
    pub fn open(&self, options: &OpenOptions) -> weald_format::Result<Image> {
        let options = OpenOptions {
            cache_len: weald_image::default_cache_len(weald_sys::memory_len()),
            ..options.clone()
        };
        Image::open_path(self.file, self.offset, &options)
    }
}

/// One thread per processor.
pub fn thread_count() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
