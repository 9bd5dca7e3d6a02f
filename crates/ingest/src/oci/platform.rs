//! Platforms: operating system, architecture and variant, by Go's names.

use super::documents::PlatformDocument;
use std::fmt;
use weald_format::{Error, Result};

/// A platform.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Platform {
    /// Operating system: `linux`.
    pub os: String,
    /// Architecture: `amd64`, `arm64`.
    pub architecture: String,
    /// Variant of the architecture: `v7`. `None` matches all.
    pub variant: Option<String>,
}

impl Platform {
    /// Parses `os/architecture` or `os/architecture/variant`.
    ///
    /// # Errors
    /// `Invalid`.
    pub fn parse(text: &str) -> Result<Self> {
        let parts: Vec<&str> = text.split('/').collect();
        let (os, architecture, variant) = match parts[..] {
            [os, architecture] => (os, architecture, None),
            [os, architecture, variant] => (os, architecture, Some(variant)),
            _ => ("", "", None),
        };
        let is_word = |word: &str| !word.is_empty() && word.bytes().all(|b| b.is_ascii_graphic());
        if is_word(os) && is_word(architecture) && variant.is_none_or(is_word) {
            Ok(Self {
                os: os.to_owned(),
                architecture: architecture.to_owned(),
                variant: variant.map(str::to_owned),
            })
        } else {
            Err(Error::invalid(format!(
                "platform '{}': expected OS/ARCHITECTURE or OS/ARCHITECTURE/VARIANT, as in \
             linux/arm64",
                weald_vfs::shown(text.as_bytes())
            )))
        }
    }

    /// The platform of Linux on the processor that Rust calls `arch`.
    pub fn linux_on(arch: &str) -> Self {
        let architecture = match arch {
            "x86_64" => "amd64",
            "x86" => "386",
            "aarch64" => "arm64",
            "powerpc64" => "ppc64le",
            "loongarch64" => "loong64",
            other => other,
        };
        Self {
            os: "linux".to_owned(),
            architecture: architecture.to_owned(),
            variant: None,
        }
    }

    /// The platform of a descriptor.
    pub fn of(document: &PlatformDocument) -> Self {
        Self {
            os: document.os.clone(),
            architecture: document.architecture.clone(),
            variant: document.variant.clone(),
        }
    }

    /// Whether an image for `other` is for this platform.
    pub fn takes(&self, other: &Self) -> bool {
        let is_variant = match (&self.variant, &other.variant) {
            (Some(variant), Some(other)) => variant == other,
            // v8 is the only variant of arm64 that images leave out.
            (Some(variant), None) => variant == "v8",
            (None, _) => true,
        };
        self.os == other.os && self.architecture == other.architecture && is_variant
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |text: &str| weald_vfs::shown(text.as_bytes());
        write!(f, "{}/{}", shown(&self.os), shown(&self.architecture))?;
        match &self.variant {
            Some(variant) => write!(f, "/{}", shown(variant)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variants_match_if_they_are_asked_for() {
        let platform = |text| Platform::parse(text).unwrap();
        for (asked, image, expected) in [
            ("linux/amd64", "linux/amd64", true),
            ("linux/amd64", "linux/arm64", false),
            ("linux/arm", "linux/arm/v7", true),
            ("linux/arm/v6", "linux/arm/v7", false),
            ("linux/arm64/v8", "linux/arm64", true),
            ("linux/amd64", "windows/amd64", false),
        ] {
            let found = platform(asked).takes(&platform(image));
            assert_eq!(found, expected, "{asked} {image}");
        }
        assert_eq!(Platform::linux_on("aarch64").to_string(), "linux/arm64");
        for bad in ["", "linux", "linux/", "/amd64", "a/b/c/d", "linux/a b"] {
            assert!(Platform::parse(bad).is_err(), "{bad}");
        }
    }
}
