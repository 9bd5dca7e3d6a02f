//! The decision how far a block is decoded for a read.

use crate::cached_records::block_key::Wanted;

/// Access pattern of a client on a file. The default is a read at a random offset.
#[derive(Debug, Clone, Copy, Default)]
pub struct AccessPattern {
    /// The client reads sequentially.
    pub is_sequential: bool,
    /// Bytes of the request.
    pub read_len: u64,
    /// Uncompressed blocks do not enter the cache: the client has several large requests in flight,
    /// and each reads its blocks for itself.
    pub bypasses_cache: bool,
}

/// Read size from which on a client is expected to request more of the same block. The kernel sends
/// such requests for page faults of a program, which are scattered over its file.
const CONTINUED_READ_LEN: u64 = 64 << 10;

/// The part of a block that a read requests, in bytes.
#[derive(Debug, Clone, Copy)]
pub struct RequestedPart {
    /// Offset of the first requested byte in the block.
    pub start: u64,
    /// Requested bytes.
    pub len: u64,
    /// Bytes from `start` to the end of the extent; the extent may pass the end of the block.
    pub extent_len: u64,
}

/// Properties of a block that decide how far it is decoded.
#[derive(Debug, Clone, Copy)]
pub struct BlockShape {
    /// Bytes of the decoded block.
    pub raw_len: u64,
    /// Whether decoding can stop and continue later.
    pub is_resumable: bool,
}

/// Returns how far to decode a block for a client that requests `part` of it.
///
/// A sequential reader of the stream needs the whole block. A sequential reader of a file needs the
/// block up to the end of the extent. A block that is not resumable is decoded whole if the extent
/// covers a quarter of it, because other readers are likely to need the rest; likewise if a large
/// request needs a quarter of it anyway.
pub fn decode_goal(
    part: RequestedPart,
    block: BlockShape,
    pattern: AccessPattern,
    is_stream_sequential: bool,
) -> Wanted {
    let covers_quarter_of_block =
        |len: u64| !block.is_resumable && len.saturating_mul(4) >= block.raw_len;
    let file_needs_whole = pattern.is_sequential && covers_quarter_of_block(part.extent_len);
    if is_stream_sequential || file_needs_whole {
        return Wanted::Whole;
    }
    let front_len = if pattern.is_sequential {
        part.start.saturating_add(part.extent_len)
    } else {
        part.start.saturating_add(part.len)
    };
    if pattern.read_len >= CONTINUED_READ_LEN && covers_quarter_of_block(front_len) {
        Wanted::Whole
    } else {
        Wanted::Front(front_len)
    }
}
