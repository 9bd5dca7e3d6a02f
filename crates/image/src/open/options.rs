//! Options for opening an image.

use crate::cache::shared::{SharedCache, Tag};
use std::path::PathBuf;
use std::sync::Arc;
use weald_format::{ByteLen, ByteOffset, Digest};
#[cfg(feature = "places")]
use weald_store::Store;

/// Options for opening an image.
#[derive(Debug, Clone)]
pub struct OpenOptions {
    /// Hard limit of cached decoded bytes, a quarter of it for metadata. Metadata get at least 8
    /// MiB, which may exceed the limit: with less, a walk would decode them over and over. 0 keeps
    /// nothing.
    pub cache_len: ByteLen,
    /// The cache to use, which may be shared with other images, instead of a private one of
    /// `cache_len` bytes.
    pub cache: Option<Arc<SharedCache>>,
    /// Refuse an image with another image digest. If `generation` is `None`, older generations are
    /// searched for the digest.
    pub expected_digest: Option<Digest>,
    /// Read this generation; `None` reads the last one.
    pub generation: Option<u64>,
    /// Threads that decode ahead of sequential readers; 0 = none. Images with the same cache share
    /// the threads of the first image that has any.
    pub prefetch_threads: usize,
    /// Most of the image will be read. Each block is decoded as a whole when its first byte is
    /// requested, if the cache has room for several such blocks. Decoding in steps serves readers
    /// of single files, and costs more.
    pub reads_everything: bool,
    /// Directories in which base images are searched, besides the directory of the image itself.
    /// The images of a store count as files of its directory.
    pub base_dirs: Vec<PathBuf>,
    /// The store of the image itself. Base images are searched there first, and the cache holds
    /// blocks and pages once for all images of the store.
    #[cfg(feature = "places")]
    pub store: Option<Store>,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            cache_len: ByteLen(256 << 20),
            cache: None,
            expected_digest: None,
            generation: None,
            prefetch_threads: 0,
            reads_everything: false,
            base_dirs: Vec::new(),
            #[cfg(feature = "places")]
            store: None,
        }
    }
}

impl OpenOptions {
    /// What the cache knows the blocks of the image's store by.
    pub(crate) fn shared_tag(&self, cache: &Arc<SharedCache>) -> Option<Arc<Tag>> {
        #[cfg(feature = "places")]
        return self.store.as_ref().map(|store| cache.store_tag(store));
        #[cfg(not(feature = "places"))]
        {
            let _ = cache;
            None
        }
    }
}

/// Start of an image in its file; the image ends at the end of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageStart {
    /// This byte offset.
    At(ByteOffset),
    /// The offset that follows from the footer at the end of the file. Any data may precede the
    /// image, for instance a script that mounts it or a boot loader.
    Auto,
}

impl Default for ImageStart {
    fn default() -> Self {
        Self::At(ByteOffset(0))
    }
}

impl From<u64> for ImageStart {
    fn from(offset: u64) -> Self {
        Self::At(ByteOffset(offset))
    }
}
