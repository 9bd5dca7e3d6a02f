//! LZ4 blocks, of which only the first bytes may be asked for: the decoder of `lz4_flex` needs the
//! whole length, which the index of EROFS does not give for shared clusters.
//!
//! Source: `doc/lz4_Block_format.md` of LZ4 1.10.

/// Shortest match, bytes.
const LZ4_MATCH_LEN_MIN: usize = 4;
/// Value of a length field that more bytes follow.
const LONG: u8 = 15;

/// Fills `out`. Returns `None` for data that are damaged or shorter.
pub fn decode(mut data: &[u8], out: &mut [u8]) -> Option<()> {
    let mut at = 0_usize;
    while at < out.len() {
        let token = take_byte(&mut data)?;
        let literal_len = length(token >> 4, &mut data)?.min(out.len().saturating_sub(at));
        let (literals, rest) = data.split_at_checked(literal_len)?;
        let end = at.saturating_add(literal_len);
        out.get_mut(at..end)?.copy_from_slice(literals);
        (data, at) = (rest, end);
        if at == out.len() {
            break;
        }
        let (distance, rest) = data.split_first_chunk::<2>()?;
        data = rest;
        let distance = usize::from(u16::from_le_bytes(*distance));
        let match_len = length(token & LONG, &mut data)?.saturating_add(LZ4_MATCH_LEN_MIN);
        let end = at.saturating_add(match_len).min(out.len());
        let from = at.checked_sub(distance).filter(|_| distance > 0)?;
        copy_match(out, from, at, end)?;
        at = end;
    }
    Some(())
}

/// Copies bytes from `from` to `at..end`. A match may overlap its own copy.
fn copy_match(out: &mut [u8], from: usize, at: usize, end: usize) -> Option<()> {
    let mut at = at;
    while at < end {
        // All bytes from `from` to `at` repeat.
        let len = at.checked_sub(from)?.min(end.checked_sub(at)?);
        let (done, rest) = out.split_at_mut_checked(at)?;
        let source = done.get(from..from.checked_add(len)?)?;
        rest.get_mut(..len)?.copy_from_slice(source);
        at = at.checked_add(len)?;
    }
    Some(())
}

fn take_byte(data: &mut &[u8]) -> Option<u8> {
    let (&byte, rest) = data.split_first()?;
    *data = rest;
    Some(byte)
}

/// A length whose first four bits are `field`.
fn length(field: u8, data: &mut &[u8]) -> Option<usize> {
    let mut len = usize::from(field);
    if field < LONG {
        return Some(len);
    }
    loop {
        let byte = take_byte(data)?;
        len = len.saturating_add(byte.into());
        if byte != u8::MAX {
            return Some(len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Would catch: overlapping matches copied as they were before, and lengths of many bytes.
    #[test]
    fn any_beginning_of_a_block_can_be_decoded() {
        let mut data: Vec<u8> = (0..3000_u32).flat_map(|n| (n * n).to_le_bytes()).collect();
        data.extend([7; 5000]);
        data.extend(b"abc".repeat(700));
        let stored = lz4_flex::block::compress(&data);
        for len in (0..data.len()).step_by(97).chain([data.len()]) {
            let mut out = vec![0; len];
            decode(&stored, &mut out).unwrap();
            assert!(out == data[..len], "{len} bytes");
        }
        for len in 0..stored.len() - 1 {
            let mut out = vec![0; data.len()];
            assert_eq!(decode(&stored[..len], &mut out), None, "{len} bytes");
        }
    }
}
