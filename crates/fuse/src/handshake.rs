//! The first request of a connection, by which both sides learn what the other can do.

use crate::request::split;
use crate::wire::{
    InitIn, InitOut, MAJOR, MINOR, MINOR_MIN, Opcode, OutHeader, READ_BUFFER_MIN, init,
};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::io::IoSlice;
use std::os::fd::OwnedFd;
use weald_format::{Error, ErrorKind, Result};
use zerocopy::{FromBytes, IntoBytes};

/// Bytes that one request carries: what the kernel allows by default
/// (`/proc/sys/fs/fuse/max_pages_limit`).
pub(crate) const REQUEST_PAGES_MAX: u16 = 256;

/// Requests that the kernel may have under way without anybody waiting (read-ahead). Enough to keep
/// every worker busy with the next blocks of several sequential readers; each holds at most 1 MiB
/// of page cache.
const BACKGROUND_COUNT_MAX: u16 = 64;

/// Bytes of one write, which nobody makes: the least that the kernel accepts, so that its buffer is
/// small.
const WRITE_LEN_MAX: u32 = 4096;

/// What was agreed with the kernel when a connection began; it holds for whoever answers on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Negotiated {
    /// Minor version of the protocol (major is 7).
    pub minor: u32,
    /// Bits of `FUSE_INIT` that both sides know, the upper half in the upper 32.
    pub flags: u64,
    /// Most pages of one request.
    pub max_pages: u32,
}

/// Answers the kernel's first request on `device`, asking for the bits `wanted`.
///
/// # Errors
/// `Unsupported` where the kernel is older than Linux 3.15, `Io`.
pub(crate) fn shake_hands(device: &OwnedFd, wanted: u64) -> Result<Negotiated> {
    let mut buffer = vec![0u8; READ_BUFFER_MIN];
    let (unique, offer) = loop {
        match rustix::io::read(device, &mut buffer[..]) {
            Ok(len) => break first_request(buffer.get(..len).unwrap_or(&[]))?,
            Err(Errno::INTR | Errno::NOENT) => {}
            Err(errno) => return Err(Error::io("handshake with the kernel", errno.into())),
        }
    };
    if offer.major != MAJOR || offer.minor < MINOR_MIN {
        let what = format!(
            "the kernel speaks version {}.{} of FUSE; expected {MAJOR}.{MINOR_MIN} or later",
            offer.major, offer.minor
        );
        return Err(Error::new(ErrorKind::Unsupported, what));
    }
    let (answer, negotiated) = agree(&offer, wanted);
    let body = answer.as_bytes();
    let header = OutHeader {
        len: (size_of::<OutHeader>() + body.len()) as u32,
        error: 0,
        unique,
    };
    let parts = [IoSlice::new(header.as_bytes()), IoSlice::new(body)];
    rustix::io::writev(device, &parts)
        .map_err(|errno| Error::io("handshake with the kernel", errno.into()))?;
    Ok(negotiated)
}

fn first_request(bytes: &[u8]) -> Result<(u64, InitIn)> {
    let parsed = split(bytes).filter(|(header, _)| header.opcode == Opcode::Init as u32);
    let (header, body) = parsed.ok_or_else(|| {
        Error::new(
            ErrorKind::Unsupported,
            "handshake with the kernel: it began with something else",
        )
    })?;
    // Older kernels send less: what is missing is 0.
    let mut whole = [0u8; size_of::<InitIn>()];
    for (to, from) in whole.iter_mut().zip(body) {
        *to = *from;
    }
    Ok((
        header.unique,
        InitIn::read_from_bytes(&whole).unwrap_or_default(),
    ))
}

fn agree(offer: &InitIn, wanted: u64) -> (InitOut, Negotiated) {
    let offered = match u64::from(offer.flags) & init::INIT_EXT {
        0 => u64::from(offer.flags),
        _ => u64::from(offer.flags) | u64::from(offer.flags2) << 32,
    };
    let flags = offered & wanted;
    if flags != wanted {
        log::info!("this kernel lacks {:#x} of FUSE", wanted & !offered);
    }
    let minor = offer.minor.min(MINOR);
    let answer = InitOut {
        major: MAJOR,
        minor,
        max_readahead: offer.max_readahead,
        flags: flags as u32,
        flags2: (flags >> 32) as u32,
        max_background: BACKGROUND_COUNT_MAX,
        congestion_threshold: BACKGROUND_COUNT_MAX / 4 * 3,
        max_write: WRITE_LEN_MAX,
        time_gran: 1,
        max_pages: REQUEST_PAGES_MAX,
        ..InitOut::default()
    };
    let negotiated = Negotiated {
        minor,
        flags,
        max_pages: REQUEST_PAGES_MAX.into(),
    };
    (answer, negotiated)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_kernel_gets_what_it_knows() {
        let offer = InitIn {
            major: 7,
            minor: 23,
            flags: (init::ASYNC_READ | init::EXPORT_SUPPORT) as u32,
            // Not to be believed without INIT_EXT.
            flags2: u32::MAX,
            ..InitIn::default()
        };
        let wanted = init::ASYNC_READ | init::NO_OPEN_SUPPORT | init::ALLOW_IDMAP;
        let (answer, negotiated) = agree(&offer, wanted);
        assert_eq!((answer.minor, answer.flags2), (23, 0));
        assert_eq!(negotiated.flags, init::ASYNC_READ);
    }

    #[test]
    fn upper_bits_count_where_the_kernel_says_so() {
        let offer = InitIn {
            major: 7,
            minor: 99,
            flags: init::INIT_EXT as u32,
            flags2: (init::ALLOW_IDMAP >> 32) as u32,
            ..InitIn::default()
        };
        let (answer, negotiated) = agree(&offer, init::INIT_EXT | init::ALLOW_IDMAP);
        assert_eq!(answer.minor, MINOR);
        assert_eq!(negotiated.flags, init::INIT_EXT | init::ALLOW_IDMAP);
        assert_eq!(answer.flags2, (init::ALLOW_IDMAP >> 32) as u32);
    }

    #[test]
    fn what_is_no_handshake_is_refused() {
        assert!(first_request(b"").is_err());
        assert!(first_request(&[0; 104]).is_err());
    }
}
