//! Locates the pixels of FITS images (FITS standard 4.0): big-endian integers.

use super::sample_run::SampleRun;
use weald_format::recipes::Samples;

/// Lengths of a card, and of the blocks that headers and data fill, bytes.
const CARD_LEN: usize = 80;
const FITS_BLOCK_LEN: u64 = 2880;
/// Maximum numbers of cards per header and of headers per file that are examined.
const CARDS_MAX: usize = 36 * 1000;
const HEADERS_MAX: usize = 1000;

/// Whether a file that begins with `front` is FITS.
pub fn is_fits(front: &[u8]) -> bool {
    front.starts_with(b"SIMPLE  =")
}

/// Fields of a header.
#[derive(Default)]
struct Header {
    is_image: bool,
    bits: i64,
    axes: Vec<u64>,
    parameters: u64,
    groups: u64,
    /// Length of the header in whole blocks, bytes.
    len: u64,
}

impl Header {
    /// Parses a header; `None` if `bytes` begin with none, or end before it does.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let mut header = Self {
            groups: 1,
            ..Self::default()
        };
        for (no, card) in bytes.chunks_exact(CARD_LEN).take(CARDS_MAX).enumerate() {
            let (word, value) = card.split_at_checked(8)?;
            match (no, word) {
                (0, b"SIMPLE  ") => header.is_image = true,
                (0, b"XTENSION") => header.is_image = value.starts_with(b"= 'IMAGE"),
                (0, _) => return None,
                (_, b"BITPIX  ") => header.bits = integer(value)?,
                (_, b"PCOUNT  ") => header.parameters = integer(value)?.try_into().ok()?,
                (_, b"GCOUNT  ") => header.groups = integer(value)?.try_into().ok()?,
                (_, b"END     ") => {
                    let len = (no as u64 + 1) * CARD_LEN as u64;
                    header.len = len.next_multiple_of(FITS_BLOCK_LEN);
                    return Some(header);
                }
                _ => {
                    let axis = word.strip_prefix(b"NAXIS");
                    if axis.is_some_and(|a| a[0].is_ascii_digit()) {
                        header.axes.push(integer(value)?.try_into().ok()?);
                    }
                }
            }
        }
        None
    }

    /// Length of the data, bytes.
    fn data_len(&self) -> Option<u64> {
        if self.axes.is_empty() {
            return Some(0);
        }
        let product = |product: u64, &axis: &u64| product.checked_mul(axis);
        let pixels = self.axes.iter().try_fold(1, product)?;
        let items = self
            .parameters
            .checked_add(pixels)?
            .checked_mul(self.groups)?;
        items.checked_mul(self.bits.unsigned_abs() / 8)
    }

    fn samples(&self) -> Option<Samples> {
        match self.bits {
            _ if !self.is_image => None,
            8 => Some(Samples::bytes(false)),
            16 => Samples::words(2, true),
            32 => Samples::words(4, true),
            _ => None,
        }
    }
}

/// Parses the integer of a card in any column.
fn integer(value: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(value.strip_prefix(b"=")?).ok()?;
    let text = text.split('/').next()?.trim();
    text.parse().ok()
}

/// Finds the images of a file of `len` bytes from its first bytes, `front`.
pub fn runs(front: &[u8], len: u64) -> Vec<SampleRun> {
    let mut runs = Vec::new();
    let mut at = 0u64;
    for _ in 0..HEADERS_MAX {
        let here = usize::try_from(at).ok().and_then(|at| front.get(at..));
        let Some(header) = here.and_then(Header::parse) else {
            break;
        };
        let start = at + header.len;
        let Some(end) = header.data_len().and_then(|len| start.checked_add(len)) else {
            break;
        };
        if let (Some(samples), true) = (header.samples(), start < end) {
            runs.push(SampleRun {
                range: start.min(len)..end.min(len),
                channels: 1,
                samples,
            });
        }
        match end.checked_next_multiple_of(FITS_BLOCK_LEN) {
            Some(next) => at = next,
            None => break,
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(cards: &[&str]) -> Vec<u8> {
        let mut out: String = cards.iter().map(|c| format!("{c:<80}")).collect();
        out.push_str("END");
        let mut out = out.into_bytes();
        out.resize(out.len().next_multiple_of(2880), b' ');
        out
    }

    /// Would catch: an image missed behind an empty header or a table, or pixels at a wrong offset.
    #[test]
    fn images_are_found_behind_other_headers() {
        let first = header(&[
            "SIMPLE  =                    T",
            "BITPIX  = 8",
            "NAXIS   =  0",
        ]);
        let table = [
            "XTENSION= 'BINTABLE'",
            "BITPIX  = 8",
            "NAXIS   = 2 / axes",
            "NAXIS1  = 10",
            "NAXIS2  = 7",
            "PCOUNT  = 5",
            "GCOUNT  = 1",
        ];
        let image = [
            "XTENSION= 'IMAGE   '",
            "BITPIX  =                   16 / bits",
            "NAXIS   =                    2",
            "NAXIS1  =                  100",
            "NAXIS2  =                   30",
        ];
        let mut file = [first, header(&table)].concat();
        file.resize(file.len() + 2880, 1);
        file.extend(header(&image));
        let start = file.len() as u64;
        file.resize(file.len() + 2880 * 3, 2);
        let float = image.map(|card| card.replace("16 /", "-32 /"));
        file.extend(header(&float.each_ref().map(String::as_str)));
        let found = runs(&file, 1 << 20);
        assert_eq!(found.len(), 1);
        assert_eq!(
            (found[0].range.clone(), found[0].channels),
            (start..start + 6000, 1)
        );
        assert_eq!(found[0].samples, Samples::words(2, true).unwrap());
        assert_eq!(runs(&file, start + 100)[0].range, start..start + 100);
        for len in 0..file.len() {
            runs(&file[..len], len as u64);
        }
        assert!(
            runs(
                &header(&[
                    "SIMPLE  = T",
                    "BITPIX  = 16",
                    "NAXIS1  = 9999999999999",
                    "NAXIS2  = 9999999999999"
                ]),
                1 << 20
            )
            .is_empty()
        );
    }
}
