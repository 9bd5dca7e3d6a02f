//! The kernel's cache of a directory's listing, as far as the driver knows it.
//!
//! Without OPENDIR, Linux (6.18, `fs/fuse/readdir.c`) keeps the entries of the listing that it
//! reads first. An empty answer at the end completes the cache, and later listings come from it
//! without a request, until a name of the directory changes. Three facts make that unsafe, and the
//! driver completes a cache only where they do no harm:
//!
//! - A change does not empty an incomplete cache. A listing that began after the change and goes on
//!   when another one completes the cache would show removed names and lack new ones. So a
//!   directory that changed while its cache was incomplete is never cached again.
//! - A complete cache is compared with the directory only by listings that begin. A listing that
//!   began while it was incomplete goes on from it. So the driver tells the kernel to drop the
//!   pages of a complete cache before the first change is acknowledged.
//! - A listing whose position was removed can end where a page of the cache is full. So only
//!   listings within one page are cached.

/// Most bytes of a cached listing, as READDIR encodes it: less than the smallest page.
const CACHED_LEN_MAX: usize = 4095;

/// State of the kernel's cache of one directory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum ListingCache {
    /// It has nothing, or a complete listing that the kernel compares with the directory before
    /// use.
    #[default]
    Unused,
    /// It has entries up to the position `next`, which take `len` bytes.
    Filling { next: u64, len: usize },
    /// It has the whole listing, up to the position `next`.
    Complete { next: u64 },
    /// It has entries from before a change, for as long as the kernel knows the directory.
    Outdated,
}

impl ListingCache {
    /// Notes an answer: `len` bytes of entries from the position `offset` to `next`.
    pub(crate) fn fill(&mut self, offset: u64, next: u64, len: usize) {
        *self = match *self {
            Self::Outdated => Self::Outdated,
            _ if offset == 0 => Self::Filling { next, len },
            Self::Filling {
                next: end,
                len: sum,
            } if end == offset => Self::Filling {
                next,
                len: sum + len,
            },
            other => other,
        };
    }

    /// Whether an empty answer at the position `offset` may complete the cache.
    pub(crate) fn complete(&mut self, offset: u64) -> bool {
        match *self {
            Self::Filling { next, len } if next == offset && len <= CACHED_LEN_MAX => {
                *self = Self::Complete { next };
                true
            }
            Self::Complete { next } => next == offset,
            _ => false,
        }
    }

    /// Notes that a name changed. True if the kernel must drop the pages of the cache.
    pub(crate) fn change(&mut self) -> bool {
        let was = *self;
        *self = match was {
            Self::Unused | Self::Complete { .. } => Self::Unused,
            Self::Filling { .. } | Self::Outdated => Self::Outdated,
        };
        matches!(was, Self::Complete { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_in_several_answers_completes_the_cache() {
        let mut cache = ListingCache::default();
        cache.fill(0, 40, 2000);
        cache.fill(40, 70, 2095);
        assert!(!cache.complete(40));
        assert!(cache.complete(70));
        assert!(cache.complete(70));
        assert!(cache.change());
        assert_eq!(cache, ListingCache::Unused);
        assert!(!cache.change());
    }

    /// Would catch: a listing of two pages, which can end at the border between them.
    #[test]
    fn a_long_listing_is_not_cached() {
        let mut cache = ListingCache::default();
        cache.fill(0, 40, 2000);
        cache.fill(40, 70, 2096);
        assert!(!cache.complete(70));
    }

    /// Would catch: entries that the kernel does not have.
    #[test]
    fn a_listing_with_a_gap_is_not_cached() {
        let mut cache = ListingCache::default();
        cache.fill(40, 70, 100);
        assert!(!cache.complete(70));
        cache.fill(0, 40, 100);
        cache.fill(50, 70, 100);
        assert!(!cache.complete(70));
    }

    /// Would catch: a cache that is completed from entries before and after a change.
    #[test]
    fn a_change_of_an_incomplete_cache_ends_caching() {
        let mut cache = ListingCache::default();
        cache.fill(0, 40, 100);
        assert!(!cache.change());
        cache.fill(0, 40, 100);
        assert!(!cache.complete(40));
    }
}
