//! Writes an OCI layout: one layer, its configuration and a manifest, beside the images that the
//! layout has.
//!
//! The caller writes the layer as a tar stream, so that this crate knows nothing about tar. `blob`
//! compresses and names what is written, `documents` makes and reads the JSON.
//!
//! Order of the writes: blobs first, `index.json` last, each complete under its name. Until the
//! index has its new name, every reader finds the images that were there before. An error removes
//! the blobs and directories that this call made.
//!
//! Source: OCI image specification 1.1, image-layout.md, manifest.md, config.md.

mod blob;
mod documents;

pub use blob::Compression;
pub use documents::{DOCUMENT_LEN_MAX, Platform};

use blob::{Blob, BlobWriter, store_blob};
use documents::{Index, config_of, manifest_of};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use weald_format::{Error, ErrorKind, Result};
use weald_io::{OutputFile, TargetKind};

/// The file that marks a layout, with its version.
const LAYOUT_FILE: &str = "oci-layout";
const LAYOUT_VERSION: &[u8] = br#"{"imageLayoutVersion":"1.0.0"}"#;

/// Options of an export.
#[derive(Debug, Clone)]
pub struct OciOptions {
    /// Tag of the image in the layout.
    pub tag: String,
    /// Compression of the layer.
    pub compression: Compression,
    /// Platform of the image; `None` takes that of `config`.
    pub platform: Option<Platform>,
    /// Platform if nothing else names one.
    pub default_platform: Platform,
    /// Configuration to take over: environment, command, user. Its layers and history are replaced.
    pub config: Option<Vec<u8>>,
    /// Replace the image that has the tag.
    pub overwrite: bool,
}

/// An exported image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OciReport {
    /// Digest of the manifest.
    pub manifest_digest: String,
    /// Digest of the configuration, which other programs call the image id.
    pub config_digest: String,
    /// Digest of the layer in the layout.
    pub layer_digest: String,
    /// Bytes of the layer in the layout.
    pub layer_len: u64,
    /// Digest of the uncompressed layer.
    pub diff_id: String,
    /// Bytes of the uncompressed layer.
    pub plain_len: u64,
}

/// Checks a configuration that [`OciOptions::config`] takes.
///
/// # Errors
/// `Invalid`, `Limit`.
pub fn check_config(bytes: &[u8]) -> Result<()> {
    documents::parse_config(bytes).map(drop)
}

/// Adds an image of one layer to the layout at `path`, which is made if it is missing.
/// `write_layer` writes the layer as an uncompressed tar stream.
///
/// # Errors
/// `Invalid` for a tag or a configuration that OCI does not allow, and for a directory with other
/// files; `Busy` for a tag that exists, unless `overwrite` is on; `Io`, `Full`; those of
/// `write_layer`. The layout is then as it was before.
/// # Cost
/// The layer is compressed by one thread; nothing of it is kept in memory.
pub fn export_layout<T>(
    path: &Path,
    options: &OciOptions,
    write_layer: impl FnOnce(&mut dyn Write) -> Result<T>,
) -> Result<(OciReport, T)> {
    documents::check_tag(&options.tag)?;
    let config = options
        .config
        .as_deref()
        .map(documents::parse_config)
        .transpose()?;
    let mut made = Made::default();
    let index = open_layout(path, &mut made)?;
    if index.has_tag(&options.tag) && !options.overwrite {
        return Err(Error::new(
            ErrorKind::Busy,
            format!("{}:{}: already exists", path.display(), options.tag),
        ));
    }
    let blobs = path.join("blobs/sha256");
    let mut writer = BlobWriter::create(&blobs, options.compression)?;
    let written = write_layer(&mut writer).map_err(|error| writer.cause(error))?;
    let layer = writer.finish()?;
    made.blob(&blobs, &layer.blob);
    let named = || config.as_ref().and_then(documents::platform_of);
    let platform = options.platform.clone().or_else(named);
    let platform = platform.unwrap_or_else(|| options.default_platform.clone());
    let config = config_of(config, &platform, &layer.diff_id)?;
    let config = made.blob(&blobs, &store_blob(&blobs, &config)?);
    let manifest = manifest_of(&config, &layer, options.compression)?;
    let manifest = made.blob(&blobs, &store_blob(&blobs, &manifest)?);
    let index = index.with_image(&options.tag, &manifest)?;
    store_document(path, "index.json", &index)?;
    made.keep();
    let report = OciReport {
        manifest_digest: manifest.digest,
        config_digest: config.digest,
        layer_digest: layer.blob.digest,
        layer_len: layer.blob.len,
        diff_id: layer.diff_id,
        plain_len: layer.plain_len,
    };
    Ok((report, written))
}

/// Files and directories that this call has made; removed when dropped, unless they are kept.
#[derive(Default)]
struct Made {
    files: Vec<PathBuf>,
    dirs: Vec<PathBuf>,
}

impl Made {
    fn blob(&mut self, blobs: &Path, blob: &Blob) -> Blob {
        if blob.is_new {
            self.files.push(blob.path(blobs));
        }
        blob.clone()
    }

    fn keep(&mut self) {
        self.files.clear();
        self.dirs.clear();
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        // The error that ends the export is the one to report. Directories of others stay, because
        // they are not empty.
        self.files
            .iter()
            .rev()
            .for_each(|file| drop(fs::remove_file(file)));
        self.dirs
            .iter()
            .rev()
            .for_each(|dir| drop(fs::remove_dir(dir)));
    }
}

/// Opens the layout at `path`, or makes an empty one.
fn open_layout(path: &Path, made: &mut Made) -> Result<Index> {
    let shown = path.display();
    let failed = |e| Error::io(shown.to_string(), e);
    match fs::read_dir(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            fs::create_dir(path).map_err(failed)?;
            made.dirs.push(path.to_owned());
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => {
            return Err(Error::invalid(format!(
                "{shown}: a file: expected a directory in the OCI image layout, or a name that is \
                 free; 'skopeo copy oci:DIR:TAG oci-archive:FILE' makes an archive of one"
            )));
        }
        Err(error) => return Err(failed(error)),
        Ok(mut entries) => {
            let is_layout = path.join(LAYOUT_FILE).is_file();
            if is_layout {
                let index = read_document(&path.join("index.json"));
                let index = match index {
                    // An export into a new layout was killed.
                    Err(error) if error.kind() == ErrorKind::NotFound => Index::default(),
                    index => Index::parse(&index?).map_err(|e| e.context(shown))?,
                };
                make_blobs(path, made)?;
                return Ok(index);
            }
            if entries.next().is_some() {
                return Err(Error::invalid(format!(
                    "{shown}: has other files and no file {LAYOUT_FILE}: expected an OCI layout, \
                     or an empty directory"
                )));
            }
        }
    }
    make_blobs(path, made)?;
    store_document(path, LAYOUT_FILE, LAYOUT_VERSION)?;
    made.files.push(path.join(LAYOUT_FILE));
    Ok(Index::default())
}

fn make_blobs(path: &Path, made: &mut Made) -> Result<()> {
    for dir in ["blobs", "blobs/sha256"] {
        let dir = path.join(dir);
        match fs::create_dir(&dir) {
            Ok(()) => made.dirs.push(dir),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(Error::io(dir.display().to_string(), error)),
        }
    }
    Ok(())
}

fn read_document(path: &Path) -> Result<Vec<u8>> {
    let shown = path.display().to_string();
    let failed = |e| Error::io(shown.clone(), e);
    let len = fs::metadata(path).map_err(failed)?.len();
    if len > DOCUMENT_LEN_MAX {
        return Err(Error::limit(format!(
            "{shown}: {len} bytes, and an index has at most {DOCUMENT_LEN_MAX}"
        )));
    }
    fs::read(path).map_err(failed)
}

fn store_document(dir: &Path, name: &str, bytes: &[u8]) -> Result<()> {
    let mut file = OutputFile::create(&dir.join(name), TargetKind::File)?;
    file.write_all(bytes)?;
    file.commit(true)
}

#[cfg(test)]
mod tests;
