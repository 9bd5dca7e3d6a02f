//! Random UUIDs of new stores and volumes.

use anyhow::Context;

/// Sixteen random bytes.
pub fn random_uuid() -> anyhow::Result<[u8; 16]> {
    use std::io::Read;
    let mut uuid = [0; 16];
    let file = std::fs::File::open("/dev/urandom");
    file.and_then(|mut file| file.read_exact(&mut uuid))
        .context("/dev/urandom")?;
    Ok(uuid)
}
