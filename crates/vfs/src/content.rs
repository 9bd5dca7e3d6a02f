//! The content of a regular file in consecutive parts. Holes are reported, not read.

use std::ops::ControlFlow;
use weald_format::Result;
use weald_image::{Image, Inode, Run};

/// Bytes of one read.
const PIECE_LEN: u64 = 1 << 20;

/// Content of a hole.
static ZEROS: [u8; 1 << 16] = [0; 1 << 16];

/// A part of a content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentPart<'a> {
    /// Bytes, at most 1 MiB.
    Data(&'a [u8]),
    /// The length of a hole in bytes.
    Hole(u64),
}

/// Visits the content of a regular file from its beginning, until `visit` breaks.
///
/// # Errors
/// Errors of the reader, after all parts before the failure were visited.
///
/// # Cost
/// Reads the data in pieces of 1 MiB. A hole costs nothing, whatever its length.
pub fn each_part(
    image: &Image,
    inode: &Inode,
    visit: &mut dyn FnMut(ContentPart<'_>) -> ControlFlow<()>,
) -> Result<()> {
    let mut result = Ok(());
    image.runs(inode, 0, &mut |run| {
        if run.is_hole {
            return visit(ContentPart::Hole(run.len));
        }
        let read = each_piece(image, inode, run, visit);
        read.unwrap_or_else(|error| {
            result = Err(error);
            ControlFlow::Break(())
        })
    })?;
    result
}

/// Visits the zeros of a hole of `len` bytes in pieces of at most 64 KiB, until `visit` breaks.
pub fn each_zeros(len: u64, visit: &mut dyn FnMut(&[u8]) -> ControlFlow<()>) -> ControlFlow<()> {
    let mut remaining_len = len;
    while remaining_len > 0 {
        let piece_len = remaining_len.min(ZEROS.len() as u64) as usize;
        visit(ZEROS.get(..piece_len).unwrap_or(&ZEROS))?;
        remaining_len -= piece_len as u64;
    }
    ControlFlow::Continue(())
}

fn each_piece(
    image: &Image,
    inode: &Inode,
    run: Run,
    visit: &mut dyn FnMut(ContentPart<'_>) -> ControlFlow<()>,
) -> Result<ControlFlow<()>> {
    let end = run.offset + run.len;
    let mut offset = run.offset;
    while offset < end {
        let len = usize::try_from((end - offset).min(PIECE_LEN)).unwrap_or(usize::MAX);
        let piece = image.read(inode, offset, len)?;
        if piece.is_empty() || visit(ContentPart::Data(&piece)).is_break() {
            return Ok(ControlFlow::Break(()));
        }
        offset += piece.len() as u64;
    }
    Ok(ControlFlow::Continue(()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch: a hole that reads longer or shorter than it is.
    #[test]
    fn a_hole_reads_as_zeros_of_its_length() {
        let unit = ZEROS.len() as u64;
        for len in [0, 1, unit - 1, unit, unit + 1, 3 * unit + 7] {
            let mut found = 0;
            let flow = each_zeros(len, &mut |piece| {
                assert!(!piece.is_empty() && piece.iter().all(|&byte| byte == 0));
                found += piece.len() as u64;
                ControlFlow::Continue(())
            });
            assert_eq!((found, flow), (len, ControlFlow::Continue(())));
        }
        assert_eq!(
            each_zeros(u64::MAX, &mut |_| ControlFlow::Break(())),
            ControlFlow::Break(())
        );
    }
}
