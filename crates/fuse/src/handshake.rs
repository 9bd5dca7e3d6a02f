//! Handshake of a connection (`FUSE_INIT`): negotiates version, features and limits.

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

/// Most pages of one request: the kernel's default limit
/// (`/proc/sys/fs/fuse/max_pages_limit`).
pub(crate) const REQUEST_PAGES_MAX: u16 = 256;

/// Most background requests (readahead) that the kernel keeps in flight. This many keep every
/// worker busy with the next blocks of several sequential readers. Each request holds at most 1 MiB
/// of page cache.
const BACKGROUND_COUNT_MAX: u16 = 64;

/// Most bytes of one write to a read-only mount: the kernel's minimum keeps its buffer small.
pub(crate) const WRITE_LEN_MIN: u32 = 4096;

/// Features and limits that a server requests from the kernel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wishes {
    /// Bits of `FUSE_INIT`.
    pub(crate) flags: u64,
    /// Most bytes of one write.
    pub(crate) write_len_max: u32,
}

/// Result of the handshake. It stays valid for the life of the connection, also for another server
/// that takes it over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Negotiated {
    /// Minor version of the protocol (major is 7).
    pub minor: u32,
    /// Bits of `FUSE_INIT` that both sides support; `flags2` in the upper 32 bits.
    pub flags: u64,
    /// Most pages of one request.
    pub max_pages: u32,
}

/// Answers the kernel's first request on `device` and asks for `wishes`.
///
/// # Errors
/// `Unsupported` if the kernel is older than Linux 3.15; `Io`.
pub(crate) fn shake_hands(device: &OwnedFd, wishes: Wishes) -> Result<Negotiated> {
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
            "the kernel has FUSE protocol {}.{}, expected {MAJOR}.{MINOR_MIN} or later (Linux \
             3.15); update the kernel",
            offer.major, offer.minor
        );
        return Err(Error::new(ErrorKind::Unsupported, what));
    }
    let (answer, negotiated) = agree(&offer, wishes);
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
            "handshake with the kernel: the first request is not FUSE_INIT",
        )
    })?;
    // Older kernels send a shorter record; the missing fields are 0.
    let mut whole = [0u8; size_of::<InitIn>()];
    for (to, from) in whole.iter_mut().zip(body) {
        *to = *from;
    }
    Ok((
        header.unique,
        InitIn::read_from_bytes(&whole).unwrap_or_default(),
    ))
}

fn agree(offer: &InitIn, wishes: Wishes) -> (InitOut, Negotiated) {
    let offered = match u64::from(offer.flags) & init::INIT_EXT {
        0 => u64::from(offer.flags),
        _ => u64::from(offer.flags) | u64::from(offer.flags2) << 32,
    };
    let wanted = wishes.flags;
    let flags = offered & wanted;
    if flags != wanted {
        log::info!(
            "this kernel lacks the FUSE features {:#x}",
            wanted & !offered
        );
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
        max_write: wishes.write_len_max,
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

    fn wishes(flags: u64) -> Wishes {
        Wishes {
            flags,
            write_len_max: WRITE_LEN_MIN,
        }
    }

    #[test]
    fn an_old_kernel_gets_only_bits_that_it_offers() {
        let offer = InitIn {
            major: 7,
            minor: 23,
            flags: (init::ASYNC_READ | init::EXPORT_SUPPORT) as u32,
            // Invalid without INIT_EXT.
            flags2: u32::MAX,
            ..InitIn::default()
        };
        let wanted = init::ASYNC_READ | init::NO_OPEN_SUPPORT | init::ALLOW_IDMAP;
        let (answer, negotiated) = agree(&offer, wishes(wanted));
        assert_eq!((answer.minor, answer.flags2), (23, 0));
        assert_eq!(negotiated.flags, init::ASYNC_READ);
    }

    #[test]
    fn upper_bits_count_if_the_kernel_sets_init_ext() {
        let offer = InitIn {
            major: 7,
            minor: 99,
            flags: init::INIT_EXT as u32,
            flags2: (init::ALLOW_IDMAP >> 32) as u32,
            ..InitIn::default()
        };
        let (answer, negotiated) = agree(&offer, wishes(init::INIT_EXT | init::ALLOW_IDMAP));
        assert_eq!(answer.minor, MINOR);
        assert_eq!(negotiated.flags, init::INIT_EXT | init::ALLOW_IDMAP);
        assert_eq!(answer.flags2, (init::ALLOW_IDMAP >> 32) as u32);
    }

    #[test]
    fn other_first_requests_are_refused() {
        assert!(first_request(b"").is_err());
        assert!(first_request(&[0; 104]).is_err());
    }
}
