//! First paths of files whose other names are still to come, for streams that number their files.

use std::collections::HashMap;
use std::hash::Hash;
use weald_format::{Error, Result};

/// Bytes of memory for a file whose other names are still to come, besides its path.
const LINK_MEMORY_LEN: u64 = 96;

/// First paths of files, by what identifies a file in its stream.
pub struct FirstNames<K> {
    first: HashMap<K, (Vec<u8>, u32)>,
    len: u64,
    len_max: u64,
}

impl<K: Eq + Hash> FirstNames<K> {
    /// No paths; they may take `len_max` bytes.
    pub fn new(len_max: u64) -> Self {
        Self {
            first: HashMap::new(),
            len: 0,
            len_max,
        }
    }

    /// The first path of the file `key` with `nlink` names, if `path` is another one.
    ///
    /// # Errors
    /// `Limit` for more paths than fit in memory.
    pub fn first_path(&mut self, key: K, nlink: u32, path: &[u8]) -> Result<Option<Vec<u8>>> {
        if nlink < 2 {
            return Ok(None);
        }
        let Some((first, remaining)) = self.first.get_mut(&key) else {
            self.len += LINK_MEMORY_LEN + path.len() as u64;
            if self.len > self.len_max {
                return Err(Error::limit(format!(
                    "memory: more than {} files have several names, far apart; more memory takes \
                     more of them",
                    self.first.len()
                )));
            }
            self.first.insert(key, (path.to_vec(), nlink - 1));
            return Ok(None);
        };
        if *remaining > 1 {
            *remaining -= 1;
            return Ok(Some(first.clone()));
        }
        // The last name: the stream may have more than it announces, and they become files of
        // their own.
        let first = self.first.remove(&key).map(|(first, _)| first);
        self.len -= LINK_MEMORY_LEN + first.as_ref().map_or(0, |path| path.len() as u64);
        Ok(first)
    }

    /// Whether the first path of the file is known, and other names are to come.
    pub fn has(&self, key: &K) -> bool {
        self.first.contains_key(key)
    }

    /// Forgets all paths.
    pub fn forget_all(&mut self) {
        self.first.clear();
        self.len = 0;
    }
}
