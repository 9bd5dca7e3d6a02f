//! Small text files that end with the digest of the text.

use crate::Digest;

/// The text, which ends with a line, and its digest.
pub fn sealed(mut text: String) -> String {
    let digest = Digest::of(text.as_bytes());
    text.push_str(&format!("digest {digest}\n"));
    text
}

/// The text before its digest, if that is right.
pub fn unsealed(bytes: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(bytes).ok()?;
    let (before, digest) = text.strip_suffix('\n')?.rsplit_once("\ndigest ")?;
    let body = text.get(..before.len().saturating_add(1))?;
    (Digest::from_hex(digest)? == Digest::of(body.as_bytes())).then_some(body)
}
