//! Random bytes of the kernel, which need no device.

use std::io;

/// Fills `bytes` with random bytes. Waits until the kernel has gathered enough randomness, which it
/// has shortly after the start of the machine.
///
/// # Errors
/// The errno of getrandom(2).
pub fn fill_random(bytes: &mut [u8]) -> io::Result<()> {
    let mut filled = 0;
    while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        // SAFETY: the pointer and the length are those of `rest`, which the call only writes to.
        let got = unsafe { libc::getrandom(rest.as_mut_ptr().cast(), rest.len(), 0) };
        match usize::try_from(got) {
            Ok(count) => filled += count,
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch: bytes that are left as they were, also in a range that takes several calls.
    #[test]
    fn all_bytes_are_filled() {
        for len in [0, 1, 16, 1000, 1 << 20] {
            let (mut one, mut two) = (vec![0; len], vec![0; len]);
            fill_random(&mut one).unwrap();
            fill_random(&mut two).unwrap();
            for bytes in [one, two] {
                let zeros = bytes.iter().filter(|byte| **byte == 0).count();
                assert!(len < 16 || zeros < len / 4 + 2, "{zeros} of {len}");
            }
        }
    }
}
