//! fs-verity: a file that nobody can change any more, and whose digest the kernel knows.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Number of SHA-256 among the algorithms of fs-verity.
const SHA256: u32 = 1;

/// Bytes of a digest of SHA-256.
const DIGEST_LEN: usize = 32;

/// `FS_IOC_ENABLE_VERITY` of `linux/fsverity.h`.
const ENABLE: libc::Ioctl = 0x4080_6685;

/// `FS_IOC_MEASURE_VERITY` of `linux/fsverity.h`.
const MEASURE: libc::Ioctl = 0xc004_6686_u32 as libc::Ioctl;

/// `struct fsverity_enable_arg` of `linux/fsverity.h`.
#[repr(C)]
struct EnableArgument {
    version: u32,
    hash_algorithm: u32,
    block_size: u32,
    salt_size: u32,
    salt: u64,
    signature_size: u32,
    reserved1: u32,
    signature: u64,
    reserved2: [u64; 11],
}

const _: () = assert!(size_of::<EnableArgument>() == 128);

/// `struct fsverity_digest` of `linux/fsverity.h`, with room for the largest digest.
#[repr(C)]
struct MeasureArgument {
    algorithm: u16,
    size: u16,
    digest: [u8; 64],
}

/// Protects a file by fs-verity with SHA-256, blocks of 4096 bytes and no salt. `file` is open for
/// reading only, and nobody has it open for writing. This cannot be undone.
///
/// # Errors
/// The errno of the kernel: `ENOTTY` or `EOPNOTSUPP` if the file system cannot do so, `EEXIST` if
/// it is done already, `ETXTBSY` while the file is open for writing.
pub fn enable_verity(file: &File) -> io::Result<()> {
    let argument = EnableArgument {
        version: 1,
        hash_algorithm: SHA256,
        block_size: 4096,
        salt_size: 0,
        salt: 0,
        signature_size: 0,
        reserved1: 0,
        signature: 0,
        reserved2: [0; 11],
    };
    // SAFETY: the descriptor is open for the call. The kernel reads 128 bytes, which is the size of
    // the argument; it has no pointers, because salt and signature are absent.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), ENABLE, &raw const argument) };
    match result {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// The fs-verity digest of a file that is protected with SHA-256.
///
/// # Errors
/// The errno of the kernel: `ENODATA` if the file is not protected, `ENOTTY` or `EOPNOTSUPP` if the
/// file system cannot do so. `InvalidData` for another algorithm.
pub fn measure_verity(file: impl AsFd) -> io::Result<[u8; DIGEST_LEN]> {
    let mut argument = MeasureArgument {
        algorithm: 0,
        size: 64,
        digest: [0; 64],
    };
    let fd = file.as_fd().as_raw_fd();
    // SAFETY: the descriptor is open for the call. The kernel writes the header and at most `size`
    // bytes of digest behind it, all of which the argument has.
    let result = unsafe { libc::ioctl(fd, MEASURE, &raw mut argument) };
    if result == -1 {
        return Err(io::Error::last_os_error());
    }
    let digest = argument.digest.first_chunk::<DIGEST_LEN>();
    match digest {
        Some(digest) if (u32::from(argument.algorithm), argument.size) == (SHA256, 32) => {
            Ok(*digest)
        }
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the file is protected with another algorithm than SHA-256",
        )),
    }
}

/// Whether `error` of [`enable_verity`] or [`measure_verity`] says that kernel or file system do
/// not have fs-verity.
pub fn is_without_verity(error: &io::Error) -> bool {
    let errno = error.raw_os_error();
    [libc::ENOTTY, libc::EOPNOTSUPP, libc::ENOSYS]
        .into_iter()
        .any(|without| errno == Some(without))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch: a wrong number of the call, which no file system knows, and an answer of a
    /// kernel without fs-verity that is not recognized.
    #[test]
    fn digest_is_that_of_the_kernel_or_not_supported() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("file");
        std::fs::write(&path, b"").unwrap();
        let file = File::open(&path).unwrap();
        match enable_verity(&file) {
            Ok(()) => {
                let digest = measure_verity(&file).unwrap();
                assert_eq!(digest.get(..2), Some(&[0x3d, 0x24][..]));
            }
            Err(error) => assert!(is_without_verity(&error), "{error}"),
        }
    }
}
