//! Digests of blobs, as OCI writes them: `sha256:…`, `sha512:…`.

use sha2::{Digest as _, Sha256, Sha512};
use std::fmt;
use weald_format::{Error, ErrorKind, Result};

/// Algorithm of a digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Algorithm {
    Sha256,
    Sha512,
}

impl Algorithm {
    fn name(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::Sha512 => "sha512",
        }
    }

    fn hex_len(self) -> usize {
        match self {
            Self::Sha256 => 64,
            Self::Sha512 => 128,
        }
    }
}

/// The digest of a blob. Its text has lower-case hexadecimal digits only, so that no path made of
/// it leaves the directory of blobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlobDigest {
    algorithm: Algorithm,
    hex: String,
}

impl BlobDigest {
    /// Parses `text`.
    ///
    /// # Errors
    /// `Unsupported` for another algorithm; `Invalid` for malformed digits.
    pub fn parse(text: &str) -> Result<Self> {
        let shown = || weald_vfs::shown(text.get(..160).unwrap_or(text).as_bytes());
        let (name, hex) = text.split_once(':').unwrap_or_default();
        let algorithm = match name {
            "sha256" => Algorithm::Sha256,
            "sha512" => Algorithm::Sha512,
            _ => {
                let what = format!(
                    "digest '{}': expected sha256:… or sha512:…, the algorithms that the OCI \
                     image specification names",
                    shown()
                );
                return Err(Error::new(ErrorKind::Unsupported, what));
            }
        };
        let is_digit = |b: u8| matches!(b, b'0'..=b'9' | b'a'..=b'f');
        if hex.len() == algorithm.hex_len() && hex.bytes().all(is_digit) {
            Ok(Self {
                algorithm,
                hex: hex.to_owned(),
            })
        } else {
            Err(Error::invalid(format!(
                "digest '{}': expected {} lower-case hexadecimal digits after the colon",
                shown(),
                algorithm.hex_len()
            )))
        }
    }

    /// Path of the blob below the root of a layout.
    pub fn path(&self) -> String {
        format!("blobs/{}/{}", self.algorithm.name(), self.hex)
    }

    /// The digits.
    pub fn hex(&self) -> &str {
        &self.hex
    }

    /// A hasher of the same algorithm.
    pub fn hasher(&self) -> BlobHasher {
        match self.algorithm {
            Algorithm::Sha256 => BlobHasher::Sha256(Sha256::new()),
            Algorithm::Sha512 => BlobHasher::Sha512(Sha512::new()),
        }
    }
}

impl fmt::Display for BlobDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.algorithm.name(), self.hex)
    }
}

/// Computes a [`BlobDigest`].
pub enum BlobHasher {
    /// SHA-256.
    Sha256(Sha256),
    /// SHA-512.
    Sha512(Sha512),
}

impl BlobHasher {
    /// Adds `bytes`.
    pub fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hasher) => hasher.update(bytes),
            Self::Sha512(hasher) => hasher.update(bytes),
        }
    }

    /// The digest of all bytes so far.
    pub fn finish(&self) -> BlobDigest {
        let (algorithm, bytes) = match self {
            Self::Sha256(hasher) => (Algorithm::Sha256, hasher.clone().finalize().to_vec()),
            Self::Sha512(hasher) => (Algorithm::Sha512, hasher.clone().finalize().to_vec()),
        };
        let hex = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        BlobDigest { algorithm, hex }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch: a digest whose text leads out of the directory of blobs.
    #[test]
    fn only_digests_are_parsed() {
        let mut hasher = BlobDigest::parse(&format!("sha256:{}", "0".repeat(64)))
            .unwrap()
            .hasher();
        hasher.update(b"{}");
        // The digest of the empty JSON object, as the OCI image specification has it.
        let empty = "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a";
        assert_eq!(hasher.finish().to_string(), empty);
        let digest = BlobDigest::parse(empty).unwrap();
        assert_eq!(digest, hasher.finish());
        assert_eq!(
            digest.path(),
            empty.replace(':', "/").replace("sha", "blobs/sha")
        );
        for bad in [
            "",
            "sha256",
            "sha256:",
            "md5:00",
            "sha256:../../../../etc/shadow",
            &empty.to_uppercase().replace("SHA", "sha"),
            &format!("{empty}0"),
        ] {
            assert!(BlobDigest::parse(bad).is_err(), "{bad}");
        }
    }
}
