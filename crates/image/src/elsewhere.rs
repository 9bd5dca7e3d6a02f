//! Images that are no files: those of stores, and of web servers and buckets.

use crate::image::Image;
use crate::open::directory::find_start;
use crate::open::options::{ImageStart, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weald_format::{ByteOffset, Error, Result};
use weald_remote::{Location, RemoteSource};
use weald_store::{Store, StoreLocation, StoredImage};

impl Image {
    /// Opens the image that `path` names as `STORE:NAME` or as a URL; `None` if it names a file.
    pub(crate) fn open_elsewhere(
        path: &Path,
        start: ImageStart,
        options: &OpenOptions,
    ) -> Option<Result<Self>> {
        if let Some(location) = Location::parse(path) {
            return Some(location.and_then(|at| Self::open_remote(&at, start, options)));
        }
        let (dir, name) = weald_store::split(path)?;
        let store = StoreLocation::Path(dir).open();
        Some(store.and_then(|store| Self::open_stored(store, &name, start, options)))
    }

    /// Opens the image at a URL. Base images are searched beside it first.
    ///
    /// # Errors
    /// As [`RemoteSource::open`] and [`Image::open`].
    /// # Cost
    /// Two requests, if superblock and directory lie in the first and the last bytes of the object.
    fn open_remote(
        location: &Location,
        start: impl Into<ImageStart>,
        options: &OpenOptions,
    ) -> Result<Self> {
        let source = RemoteSource::open(location)?;
        let start = match start.into() {
            ImageStart::At(offset) => offset,
            ImageStart::Auto => {
                let found = find_start(&source);
                found.map_err(|e| e.context("find the image").context(location.shown()))?
            }
        };
        Self::open_beside_url(source.from_offset(start.0)?, options, 0)
    }

    /// Opens the image in `source`; base images are searched beside it first.
    pub(crate) fn open_beside_url(
        source: RemoteSource,
        options: &OpenOptions,
        depth: usize,
    ) -> Result<Self> {
        let mut options = options.clone();
        let (dir, shown) = (source.location().parent(), source.location().shown());
        if !options.base_dirs.contains(&PathBuf::from(&dir)) {
            options.base_dirs.insert(0, dir.into());
        }
        let opened = Self::open_at_depth(Arc::new(source), &options, depth);
        opened.map_err(|error| error.context(shown))
    }

    /// Opens the image `name` of `store`. Base images are searched in the store first.
    ///
    /// # Errors
    /// `NotFound` if the store has no such image; `Busy` while it is being removed; `Invalid` for
    /// a `start` other than byte 0; as [`Image::open`].
    pub fn open_stored(
        store: Store,
        name: &str,
        start: impl Into<ImageStart>,
        options: &OpenOptions,
    ) -> Result<Self> {
        let shown = format!("{}:{name}", store.shown());
        if !matches!(
            start.into(),
            ImageStart::At(ByteOffset(0)) | ImageStart::Auto
        ) {
            let what =
                format!("{shown}: an image of a store begins at byte 0: leave out the offset");
            return Err(Error::invalid(what));
        }
        let source = StoredImage::open(store.clone(), name)?;
        let options = OpenOptions {
            store: Some(store),
            ..options.clone()
        };
        Self::open_at_depth(Arc::new(source), &options, 0).map_err(|e| e.context(shown))
    }
}
