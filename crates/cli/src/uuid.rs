//! Random UUIDs of new stores and volumes.

use anyhow::Context;

/// Sixteen random bytes.
pub fn random_uuid() -> anyhow::Result<[u8; 16]> {
    let mut uuid = [0; 16];
    weald_sys::fill_random(&mut uuid).context("random bytes")?;
    Ok(uuid)
}
