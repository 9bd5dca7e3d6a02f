//! Writes blobs under the names of their digests.

use sha2::{Digest as _, Sha256};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use weald_format::{Error, ErrorKind, Result};
use weald_io::{OutputFile, TargetKind};

/// Name of a blob until its digest is known; no digest has this form.
const UNFINISHED_NAME: &str = "weald-unfinished";

/// A stored blob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blob {
    /// `sha256:` and hexadecimal digits.
    pub digest: String,
    /// Bytes.
    pub len: u64,
    /// The layout did not have it before.
    pub is_new: bool,
}

impl Blob {
    /// Its path below the directory `blobs`.
    pub fn path(&self, blobs: &Path) -> PathBuf {
        blobs.join(self.digest.rsplit(':').next().unwrap_or_default())
    }
}

/// Compression of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// The tar archive as it is.
    None,
    /// gzip, which every program reads; level 1 to 9.
    Gzip(u32),
    /// zstd; level 1 to 19.
    Zstd(i32),
}

impl Compression {
    /// Media type of such a layer.
    pub fn media_type(self) -> &'static str {
        match self {
            Self::None => "application/vnd.oci.image.layer.v1.tar",
            Self::Gzip(_) => "application/vnd.oci.image.layer.v1.tar+gzip",
            Self::Zstd(_) => "application/vnd.oci.image.layer.v1.tar+zstd",
        }
    }
}

/// A stored layer.
pub struct LayerBlob {
    /// The blob.
    pub blob: Blob,
    /// Digest of the uncompressed bytes.
    pub diff_id: String,
    /// Count of the uncompressed bytes.
    pub plain_len: u64,
}

/// A file that digests what is written to it, and keeps its first error.
struct Target {
    file: OutputFile,
    hasher: Sha256,
    error: Option<Error>,
}

impl Write for Target {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Err(error) = self.file.write_all(bytes) {
            self.error.get_or_insert(error);
            return Err(io::Error::other("the layer cannot be written"));
        }
        self.hasher.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

enum Encoder {
    None(Target),
    Gzip(flate2::write::GzEncoder<Target>),
    Zstd(zstd::Encoder<'static, Target>),
}

/// Compresses and stores a layer.
pub struct BlobWriter {
    encoder: Encoder,
    hasher: Sha256,
    plain_len: u64,
}

impl BlobWriter {
    /// A layer in the directory `blobs`.
    ///
    /// # Errors
    /// `Io`; `Invalid` for a level that does not exist.
    pub fn create(blobs: &Path, compression: Compression) -> Result<Self> {
        let target = Target {
            file: OutputFile::create(&blobs.join(UNFINISHED_NAME), TargetKind::File)?,
            hasher: Sha256::new(),
            error: None,
        };
        let encoder = match compression {
            Compression::None => Encoder::None(target),
            // The header has no time and no name, so that equal layers have equal digests.
            Compression::Gzip(level) => Encoder::Gzip(flate2::write::GzEncoder::new(
                target,
                flate2::Compression::new(level),
            )),
            Compression::Zstd(level) => {
                let encoder = zstd::Encoder::new(target, level).and_then(|mut encoder| {
                    encoder.include_checksum(true)?;
                    Ok(encoder)
                });
                Encoder::Zstd(encoder.map_err(|e| Error::io("zstd encoder", e))?)
            }
        };
        Ok(Self {
            encoder,
            hasher: Sha256::new(),
            plain_len: 0,
        })
    }

    fn target(&mut self) -> &mut Target {
        match &mut self.encoder {
            Encoder::None(target) => target,
            Encoder::Gzip(encoder) => encoder.get_mut(),
            Encoder::Zstd(encoder) => encoder.get_mut(),
        }
    }

    /// The error of the file behind `error`, if it has one.
    pub fn cause(&mut self, error: Error) -> Error {
        self.target().error.take().unwrap_or(error)
    }

    /// Ends the layer and gives the file its name.
    ///
    /// # Errors
    /// `Io`, `Full`.
    pub fn finish(self) -> Result<LayerBlob> {
        let failed = |e| Error::io("layer", e);
        let mut target = match self.encoder {
            Encoder::None(target) => target,
            Encoder::Gzip(mut encoder) => match encoder.try_finish() {
                Ok(()) => encoder.finish().map_err(failed)?,
                Err(error) => {
                    let cause = encoder.get_mut().error.take();
                    return Err(cause.unwrap_or_else(|| failed(error)));
                }
            },
            Encoder::Zstd(encoder) => match encoder.try_finish() {
                Ok(target) => target,
                Err((mut encoder, error)) => {
                    let cause = encoder.get_mut().error.take();
                    return Err(cause.unwrap_or_else(|| failed(error)));
                }
            },
        };
        if let Some(error) = target.error.take() {
            return Err(error);
        }
        Ok(LayerBlob {
            blob: name_blob(target.file, target.hasher)?,
            diff_id: text_of(self.hasher),
            plain_len: self.plain_len,
        })
    }
}

impl Write for BlobWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.encoder {
            Encoder::None(target) => target.write_all(bytes)?,
            Encoder::Gzip(encoder) => encoder.write_all(bytes)?,
            Encoder::Zstd(encoder) => encoder.write_all(bytes)?,
        }
        self.hasher.update(bytes);
        self.plain_len += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Stores a document.
///
/// # Errors
/// `Io`, `Full`.
pub fn store_blob(blobs: &Path, bytes: &[u8]) -> Result<Blob> {
    let mut file = OutputFile::create(&blobs.join(UNFINISHED_NAME), TargetKind::File)?;
    file.write_all(bytes)?;
    name_blob(file, Sha256::new_with_prefix(bytes))
}

fn name_blob(mut file: OutputFile, hasher: Sha256) -> Result<Blob> {
    let digest = text_of(hasher);
    let len = file.position();
    file.set_name(digest.trim_start_matches("sha256:").as_bytes());
    let is_new = match file.commit(false) {
        // Another image has the same blob.
        Err(error) if error.kind() == ErrorKind::Busy => false,
        other => other.map(|()| true)?,
    };
    Ok(Blob {
        digest,
        len,
        is_new,
    })
}

fn text_of(hasher: Sha256) -> String {
    let hex = hasher
        .finalize()
        .into_iter()
        .map(|byte| format!("{byte:02x}"));
    format!("sha256:{}", hex.collect::<String>())
}
