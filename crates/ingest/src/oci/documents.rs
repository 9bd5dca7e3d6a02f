//! The JSON documents of a layout, as far as an import needs them. Unknown fields are ignored, as
//! the specification asks.
//!
//! Source: OCI image specification 1.1, descriptor.md, image-index.md, manifest.md, config.md;
//! Docker image specification 1.2, `manifest.json` of `docker save`.

use serde::Deserialize;
use std::collections::BTreeMap;
use weald_format::{Error, Result};

/// Bytes of a document. Registries take manifests of at most 4 MiB.
pub const DOCUMENT_LEN_MAX: u64 = 8 << 20;
/// Layers of an image. Docker takes 127; overlayfs 500.
pub const LAYERS_MAX: usize = 1024;
/// Annotation with the tag of a descriptor in `index.json`.
pub const REF_NAME: &str = "org.opencontainers.image.ref.name";

/// A reference to a blob.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Descriptor {
    /// Media type.
    pub media_type: String,
    /// Digest.
    pub digest: String,
    /// Bytes.
    pub size: u64,
    /// Places outside the layout.
    pub urls: Option<Vec<String>>,
    /// Annotations.
    pub annotations: Option<BTreeMap<String, String>>,
    /// Platform of a manifest.
    pub platform: Option<PlatformDocument>,
}

impl Descriptor {
    /// The tag.
    pub fn tag(&self) -> Option<&str> {
        let annotations = self.annotations.as_ref()?;
        annotations.get(REF_NAME).map(String::as_str)
    }

    /// Whether the manifest describes another image: a signature, an attestation.
    pub fn is_attachment(&self) -> bool {
        let annotations = self.annotations.as_ref();
        let is_attestation = annotations
            .is_some_and(|annotations| annotations.contains_key("vnd.docker.reference.digest"));
        let platform = self.platform.as_ref();
        is_attestation || platform.is_some_and(|platform| platform.os == "unknown")
    }
}

/// Platform of a manifest.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct PlatformDocument {
    /// Architecture, as Go names it.
    pub architecture: String,
    /// Operating system, as Go names it.
    pub os: String,
    /// Variant of the architecture.
    pub variant: Option<String>,
}

/// `index.json`, an index or a manifest: the fields tell which.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Document {
    /// Manifests of an index.
    pub manifests: Option<Vec<Descriptor>>,
    /// Configuration of a manifest.
    pub config: Option<Descriptor>,
    /// Layers of a manifest, the lowest first.
    pub layers: Option<Vec<Descriptor>>,
    /// Annotations.
    pub annotations: Option<BTreeMap<String, String>>,
}

/// Configuration of an image.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct ConfigDocument {
    /// Architecture.
    pub architecture: String,
    /// Operating system.
    pub os: String,
    /// Variant of the architecture.
    pub variant: Option<String>,
    /// Layers.
    pub rootfs: Option<RootFs>,
}

/// Layers in a configuration.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct RootFs {
    /// Digests of the uncompressed layers, the lowest first.
    pub diff_ids: Vec<String>,
}

/// An image in the `manifest.json` of `docker save`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct SavedImage {
    /// Path of the configuration.
    pub config: String,
    /// Names with tags.
    pub repo_tags: Option<Vec<String>>,
    /// Paths of the layers, the lowest first.
    pub layers: Vec<String>,
}

/// Parses a document; `name` is for messages.
///
/// # Errors
/// `Invalid`.
pub fn parse<'b, T: Deserialize<'b>>(bytes: &'b [u8], name: &str) -> Result<T> {
    serde_json::from_slice(bytes)
        .map_err(|e| Error::invalid(format!("{name}: not the JSON that was expected: {e}")))
}
