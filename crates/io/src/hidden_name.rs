//! Hidden names of unfinished files: `.NAME.weald-…`.

use std::fs::File;
use std::os::fd::AsFd;

/// Creates a hidden file for `name` in `dir`; returns it and its name.
pub fn create_hidden(
    dir: impl AsFd,
    name: &[u8],
    permissions: u16,
) -> std::io::Result<(File, Vec<u8>)> {
    with_hidden_name(name, |temp| {
        weald_sys::create_file_at(&dir, temp, permissions)
    })
}

/// Calls `make` with hidden names derived from `name` until one is free; returns what it made and
/// the name.
///
/// # Errors
/// Those of `make`, except that a name is taken.
pub fn with_hidden_name<T>(
    name: &[u8],
    mut make: impl FnMut(&[u8]) -> std::io::Result<T>,
) -> std::io::Result<(T, Vec<u8>)> {
    const STEM_LEN_MAX: usize = 200;
    loop {
        let mut random = [0; 8];
        weald_sys::fill_random(&mut random)?;
        let mut temp = b".".to_vec();
        temp.extend_from_slice(&name[..name.len().min(STEM_LEN_MAX)]);
        temp.extend_from_slice(format!(".weald-{:016x}", u64::from_le_bytes(random)).as_bytes());
        match make(&temp) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            other => return Ok((other?, temp)),
        }
    }
}
