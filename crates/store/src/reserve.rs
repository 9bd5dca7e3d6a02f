//! The file `reserve`: space for removals and collections on a full disk, whose commits write new
//! pages of the tables before they free any.

use crate::disk::Access;
use crate::store::Store;
use crate::writer::StoreWriter;
use weald_format::{Digest, ErrorKind, Result};

/// Name of the file.
const RESERVE: &str = "reserve";
/// Its length, bytes: 64 pages of the tables. A commit of a removal replaces the pages of the rows
/// that it changes, and their parents.
const RESERVE_LEN: usize = 256 << 10;
/// Free bytes below which a removal may take the reserve.
const RELEASE_BELOW: u64 = 1 << 20;
/// Free bytes from which on the reserve is made again.
const RENEW_FROM: u64 = 4 << 20;

impl Store {
    /// Gives the reserve to the disk if that is nearly full, and returns whether it is. The caller
    /// then removes something, or commits what may be a removal.
    ///
    /// # Errors
    /// `Io`.
    pub fn release_reserve(&self) -> Result<bool> {
        if self.disk.space()?.free >= RELEASE_BELOW {
            return Ok(false);
        }
        self.disk.remove_if_there(RESERVE)?;
        Ok(true)
    }
}

impl StoreWriter {
    /// Makes the reserve if it is missing and the disk has space; returns whether it is there. A
    /// failure is told to the log alone, because the reserve is no part of what was asked for.
    pub fn renew_reserve(&self) -> bool {
        self.try_renew_reserve().unwrap_or_else(|error| {
            log::debug!("{}/{RESERVE}: {error}", self.store().disk.shown());
            false
        })
    }

    fn try_renew_reserve(&self) -> Result<bool> {
        let disk = &*self.store().disk;
        let is_missing = match disk.open(RESERVE, Access::Read) {
            Err(error) if error.kind() == ErrorKind::NotFound => true,
            file => file?.len()? != RESERVE_LEN as u64,
        };
        if !is_missing || disk.space()?.free < RENEW_FROM {
            return Ok(!is_missing);
        }
        // Bytes that a file system cannot compress or leave out.
        let mut bytes = Vec::with_capacity(RESERVE_LEN);
        let mut digest = Digest::of(&self.store().uuid());
        while bytes.len() < RESERVE_LEN {
            bytes.extend_from_slice(&digest.0);
            digest = Digest::of(&digest.0);
        }
        disk.write_file(RESERVE, &bytes)?;
        disk.sync_dir("")?;
        Ok(true)
    }
}
