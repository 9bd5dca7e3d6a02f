//! Tar archives and OCI layouts written by hand, so that a test decides about every byte.

use sha2::{Digest, Sha256};
use std::fs;
use std::path::{Path, PathBuf};

/// Bytes of a block of a tar archive.
const TAR_BLOCK_LEN: usize = 512;
/// Media type of an uncompressed layer.
pub const TAR: &str = "application/vnd.oci.image.layer.v1.tar";
/// Media type of a layer that is compressed by gzip.
pub const TAR_GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
/// Media type of a layer that is compressed by zstd.
pub const TAR_ZSTD: &str = "application/vnd.oci.image.layer.v1.tar+zstd";
/// Media type of a manifest.
pub const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
/// Media type of a configuration.
pub const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
/// Media type of an index.
pub const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// A tar archive in the making. Paths and targets have at most 100 bytes.
#[derive(Debug, Clone, Default)]
pub struct Tar(Vec<u8>);

impl Tar {
    /// Adds a member: type flag, path, link target, data; `size` is what its header says.
    #[must_use]
    pub fn raw(mut self, flag: u8, path: &str, target: &str, data: &[u8], size: u64) -> Self {
        let mut header = [0; TAR_BLOCK_LEN];
        let mut put = |at: usize, text: &[u8]| header[at..at + text.len()].copy_from_slice(text);
        put(0, path.as_bytes());
        let mode: &[u8] = if flag == b'5' { b"0000755" } else { b"0000644" };
        put(100, mode);
        put(108, b"0000000");
        put(116, b"0000000");
        put(124, format!("{size:011o}").as_bytes());
        put(136, b"14524770400");
        put(148, b"        ");
        put(156, &[flag]);
        put(157, target.as_bytes());
        put(257, b"ustar\x0000");
        put(329, b"0000001");
        put(337, b"0000003");
        let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.0.extend_from_slice(&header);
        self.0.extend_from_slice(data);
        self.0
            .resize(self.0.len().next_multiple_of(TAR_BLOCK_LEN), 0);
        self
    }

    /// Adds a directory.
    #[must_use]
    pub fn dir(self, path: &str) -> Self {
        self.raw(b'5', path, "", b"", 0)
    }

    /// Adds a regular file.
    #[must_use]
    pub fn file(self, path: &str, data: &[u8]) -> Self {
        self.raw(b'0', path, "", data, data.len() as u64)
    }

    /// Adds a hard link.
    #[must_use]
    pub fn hard_link(self, path: &str, target: &str) -> Self {
        self.raw(b'1', path, target, b"", 0)
    }

    /// Adds a symlink.
    #[must_use]
    pub fn symlink(self, path: &str, target: &str) -> Self {
        self.raw(b'2', path, target, b"", 0)
    }

    /// Adds a character device 1:3.
    #[must_use]
    pub fn device(self, path: &str) -> Self {
        self.raw(b'3', path, "", b"", 0)
    }

    /// The archive, with its end.
    pub fn finish(mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + 2 * TAR_BLOCK_LEN, 0);
        self.0
    }
}

/// The digest of `bytes` as OCI writes it.
pub fn digest(bytes: &[u8]) -> String {
    let hex = |byte: u8| format!("{byte:02x}");
    let found = Sha256::digest(bytes).into_iter().map(hex);
    format!("sha256:{}", found.collect::<String>())
}

/// A descriptor of `bytes` as JSON.
pub fn descriptor(media_type: &str, bytes: &[u8]) -> String {
    format!(
        r#"{{"mediaType":"{media_type}","digest":"{}","size":{}}}"#,
        digest(bytes),
        bytes.len()
    )
}

/// One layer: media type, stored bytes, uncompressed bytes.
#[derive(Debug, Clone)]
pub struct Layer {
    /// Media type.
    pub media_type: &'static str,
    /// Bytes in the layout.
    pub stored: Vec<u8>,
    /// Digest of the uncompressed bytes.
    pub diff_id: String,
}

impl Layer {
    /// An uncompressed layer.
    pub fn plain(bytes: Vec<u8>) -> Self {
        Self {
            media_type: TAR,
            diff_id: digest(&bytes),
            stored: bytes,
        }
    }
}

/// An OCI layout directory in the making.
#[derive(Debug)]
pub struct LayoutDir(PathBuf);

impl LayoutDir {
    /// Makes the directory at `path`, with an empty index.
    ///
    /// # Panics
    /// If a file cannot be written.
    pub fn create(path: &Path) -> Self {
        fs::create_dir_all(path.join("blobs/sha256")).expect("mkdir");
        let layout = r#"{"imageLayoutVersion":"1.0.0"}"#;
        fs::write(path.join("oci-layout"), layout).expect("write");
        let made = Self(path.to_owned());
        made.index(&[]);
        made
    }

    /// Writes a blob; returns its path.
    ///
    /// # Panics
    /// If the file cannot be written.
    pub fn blob(&self, bytes: &[u8]) -> PathBuf {
        let path = self.0.join("blobs").join(digest(bytes).replace(':', "/"));
        fs::write(&path, bytes).expect("write");
        path
    }

    /// Writes `index.json` with these descriptors.
    ///
    /// # Panics
    /// If the file cannot be written.
    pub fn index(&self, descriptors: &[String]) {
        fs::write(self.0.join("index.json"), index(descriptors)).expect("write");
    }

    /// Writes layers, configuration and manifest of an image; returns the manifest.
    ///
    /// # Panics
    /// If a file cannot be written.
    pub fn manifest(&self, layers: &[Layer]) -> Vec<u8> {
        let diff_ids = layers.iter().map(|layer| format!(r#""{}""#, layer.diff_id));
        let diff_ids = diff_ids.collect::<Vec<_>>().join(",");
        let config = format!(
            r#"{{"architecture":"amd64","os":"linux","rootfs":{{"type":"layers",
            "diff_ids":[{diff_ids}]}}}}"#
        );
        self.blob(config.as_bytes());
        let layers = layers.iter().map(|layer| {
            self.blob(&layer.stored);
            descriptor(layer.media_type, &layer.stored)
        });
        let manifest = format!(
            r#"{{"schemaVersion":2,"mediaType":"{MANIFEST}","config":{},"layers":[{}]}}"#,
            descriptor(CONFIG, config.as_bytes()),
            layers.collect::<Vec<_>>().join(",")
        );
        self.blob(manifest.as_bytes());
        manifest.into_bytes()
    }

    /// Writes an image and an index that names it alone.
    ///
    /// # Panics
    /// If a file cannot be written.
    pub fn image(&self, layers: &[Layer]) {
        let manifest = self.manifest(layers);
        self.index(&[descriptor(MANIFEST, &manifest)]);
    }
}

/// An index of these descriptors.
pub fn index(descriptors: &[String]) -> String {
    let manifests = descriptors.join(",");
    format!(r#"{{"schemaVersion":2,"mediaType":"{INDEX}","manifests":[{manifests}]}}"#)
}
