//! The record of a view in a view cache: lines of a small text file. The file appears when the
//! view is complete.

use weald_format::{Digest, Error, Result};

/// First line of a record.
const FIRST_LINE: &str = "weald view 2";

/// Longest record, in bytes.
pub const RECORD_LEN_MAX: u64 = 4096;

/// A complete view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Digest of the image that the view was made of.
    pub source: Digest,
    /// Bytes of the metadata image.
    pub image_len: u64,
    /// Its fs-verity digest.
    pub image_digest: [u8; 32],
    /// Objects that it names.
    pub object_count: u64,
    /// Their bytes.
    pub object_len: u64,
    /// Whether fs-verity protects all of them.
    pub is_protected: bool,
}

impl Record {
    /// The text of the file.
    pub fn encode(&self) -> String {
        format!(
            "{FIRST_LINE}\nsource {}\n\
             image-len {}\nimage-digest {}\nobject-count {}\nobject-len {}\n\
             protected {}\n",
            self.source,
            self.image_len,
            hex(&self.image_digest),
            self.object_count,
            self.object_len,
            self.is_protected
        )
    }

    /// Parses the text of the file.
    ///
    /// # Errors
    /// `Invalid` if it has another form.
    pub fn parse(text: &str) -> Result<Self> {
        let mut lines = text.lines();
        let parsed = (|| {
            if lines.next()? != FIRST_LINE {
                return None;
            }
            let mut value = |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix(' ');
            Some(Self {
                source: Digest(digest(value("source")?)?),
                image_len: value("image-len")?.parse().ok()?,
                image_digest: digest(value("image-digest")?)?,
                object_count: value("object-count")?.parse().ok()?,
                object_len: value("object-len")?.parse().ok()?,
                is_protected: value("protected")?.parse().ok()?,
            })
        })();
        parsed.ok_or_else(|| Error::invalid("not the record of a view"))
    }
}

/// The digits of a digest.
pub fn hex(digest: &[u8; 32]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Parses 64 hexadecimal digits.
pub fn digest(text: &str) -> Option<[u8; 32]> {
    let mut digest = [0; 32];
    let digits = text.as_bytes();
    if digits.len() != 64 {
        return None;
    }
    for (byte, pair) in digest.iter_mut().zip(digits.chunks_exact(2)) {
        let pair = std::str::from_utf8(pair).ok()?;
        *byte = if pair.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            u8::from_str_radix(pair, 16).ok()?
        } else {
            return None;
        };
    }
    Some(digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch: a value that is written and read in another order, and a torn record that
    /// counts as a complete view.
    #[test]
    fn a_record_is_read_back_whole_or_not_at_all() {
        let record = Record {
            source: Digest::of(b"an image"),
            image_len: 1 << 40,
            image_digest: [0xa5; 32],
            object_count: 7,
            object_len: 8,
            is_protected: true,
        };
        let text = record.encode();
        assert_eq!(Record::parse(&text).expect("whole"), record);
        for len in 0..text.trim_end().len() {
            let torn = &text[..len];
            let is_shorter_word = torn.ends_with("protected true");
            assert!(is_shorter_word || Record::parse(torn).is_err(), "{torn:?}");
        }
    }
}
