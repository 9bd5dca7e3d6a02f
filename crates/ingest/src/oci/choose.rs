//! Chooses the image of a layout: tag, platform, manifest, configuration.

use super::digest::BlobDigest;
use super::documents::{ConfigDocument, Descriptor, Document, LAYERS_MAX, SavedImage, parse};
use super::layout::{Blob, Layout};
use super::platform::Platform;
use std::collections::{BTreeMap, BTreeSet};
use weald_format::{Error, ErrorKind, Result};

/// Indexes inside each other.
const INDEX_DEPTH_MAX: usize = 8;
/// Tags that a message lists.
const TAGS_SHOWN_MAX: usize = 20;

/// The image to import.
#[derive(Debug, Clone)]
pub struct Choice {
    /// Tag, or digest of a manifest; `None` if the layout has one image.
    pub tag: Option<String>,
    /// Platform that the image must have; `None` prefers that of this machine.
    pub platform: Option<Platform>,
}

impl Choice {
    fn preferred(&self) -> Platform {
        let here = || Platform::linux_on(std::env::consts::ARCH);
        self.platform.clone().unwrap_or_else(here)
    }
}

/// A layer of the chosen image.
pub struct LayerFile {
    /// Its bytes in the layout.
    pub blob: Blob,
    /// Digest of these bytes; `docker save` has none.
    pub digest: Option<BlobDigest>,
    /// Digest of the uncompressed layer.
    pub diff_id: BlobDigest,
}

/// The chosen image.
pub struct Chosen {
    /// Layers, the lowest first.
    pub layers: Vec<LayerFile>,
    /// Its configuration, as it is.
    pub config: Vec<u8>,
    /// Annotations of the manifest.
    pub annotations: BTreeMap<String, String>,
    /// The path of the layout, for messages.
    pub shown: String,
}

/// Finds the image `choice` in `layout` and verifies its documents.
///
/// # Errors
/// `NotFound` for a tag, a platform or a blob that is not there; `Invalid`, `Limit`, `Unsupported`
/// for documents that describe no image.
pub fn choose(layout: &Layout, choice: &Choice) -> Result<Chosen> {
    chosen(layout, choice).map_err(|e| e.context(layout.shown()))
}

fn chosen(layout: &Layout, choice: &Choice) -> Result<Chosen> {
    if layout.find_document("oci-layout")?.is_some() {
        let index = layout.document("index.json")?;
        return from_index(layout, &index, choice);
    }
    match layout.find_document("manifest.json")? {
        Some(saved) if is_object(&saved) => from_dir(layout, &saved, choice),
        Some(saved) => saved_image(layout, &saved, choice),
        None => Err(Error::invalid(
            "has neither the file oci-layout nor manifest.json: expected an OCI layout, as 'skopeo \
             copy SOURCE oci:DIR:TAG' makes one, or the output of docker save",
        )),
    }
}

/// Whether a JSON document is an object. The `manifest.json` of `docker save` is a list.
fn is_object(json: &[u8]) -> bool {
    json.trim_ascii_start().first() == Some(&b'{')
}

/// Opens a blob: of an OCI layout, or of a directory of skopeo.
///
/// # Errors
/// As [`Layout::blob`].
fn blob_of(layout: &Layout, digest: &BlobDigest) -> Result<Blob> {
    let hex = digest.hex();
    for path in [digest.path(), hex.to_owned()] {
        match layout.blob(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            found => return found,
        }
    }
    layout.blob(&format!("{hex}.manifest.json"))
}

fn from_index(layout: &Layout, index: &[u8], choice: &Choice) -> Result<Chosen> {
    let index: Document = parse(index, "index.json")?;
    let mut descriptors = index.manifests.unwrap_or_default();
    if let Some(tag) = &choice.tag {
        let tags = tags(&descriptors);
        descriptors.retain(|d| d.tag() == Some(tag) || d.digest == *tag);
        if descriptors.is_empty() {
            return Err(no_tag(tag, &tags));
        }
    }
    let tags = tags(&descriptors);
    if choice.tag.is_none() && tags.len() > 1 {
        return Err(Error::invalid(format!(
            "has several images: add the tag of one of them, as in LAYOUT:{}; its tags are {}",
            tags.first().map(String::as_str).unwrap_or_default(),
            listed(&tags)
        )));
    }
    let document = Document {
        manifests: Some(descriptors),
        ..Document::default()
    };
    from_document(layout, document, "index.json".to_owned(), choice)
}

/// The image of a directory that `skopeo copy SOURCE dir:DIR` made: blobs by the digits of their
/// digests, and the manifest, or the index of several, in `manifest.json`.
fn from_dir(layout: &Layout, manifest: &[u8], choice: &Choice) -> Result<Chosen> {
    if choice.tag.is_some() {
        return Err(Error::not_found(
            "a directory of skopeo has one image without a tag: leave the tag out",
        ));
    }
    let name = "manifest.json";
    from_document(layout, parse(manifest, name)?, name.to_owned(), choice)
}

/// The image of the document `name`: of the manifest that it is, or that it leads to.
fn from_document(
    layout: &Layout,
    mut document: Document,
    mut name: String,
    choice: &Choice,
) -> Result<Chosen> {
    for _ in 0..=INDEX_DEPTH_MAX {
        match (document.manifests, document.config, document.layers) {
            (Some(manifests), None, None) => {
                let descriptor = of_platform(&manifests, &choice.preferred())?;
                document = parse(&verified(layout, &descriptor)?, &descriptor.digest)?;
                name = descriptor.digest;
            }
            (None, Some(config), Some(layers)) => {
                let chosen = from_manifest(layout, &config, &layers)?;
                check_platform(&chosen.config, choice)?;
                let annotations = document.annotations.unwrap_or_default();
                return Ok(Chosen {
                    annotations,
                    ..chosen
                });
            }
            _ => {
                return Err(Error::invalid(format!(
                    "{name}: expected an index with manifests, or a manifest with config and layers"
                )));
            }
        }
    }
    Err(Error::limit(format!(
        "more than {INDEX_DEPTH_MAX} indexes refer to each other in a row: name the manifest by \
         its digest, as in LAYOUT:sha256:…"
    )))
}

fn tags(descriptors: &[Descriptor]) -> BTreeSet<String> {
    let tags = descriptors.iter().filter_map(Descriptor::tag);
    tags.map(|tag| weald_vfs::shown(tag.as_bytes())).collect()
}

fn listed(tags: &BTreeSet<String>) -> String {
    let shown: Vec<&str> = tags
        .iter()
        .map(String::as_str)
        .take(TAGS_SHOWN_MAX)
        .collect();
    match tags.len() - shown.len() {
        0 if shown.is_empty() => "none".to_owned(),
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

fn no_tag(tag: &str, tags: &BTreeSet<String>) -> Error {
    let shown = weald_vfs::shown(tag.as_bytes());
    Error::not_found(format!(
        "has no image '{shown}': its tags are {}",
        listed(tags)
    ))
}

/// The descriptor for `platform`. One that names no platform is taken if it is the only one.
fn of_platform(descriptors: &[Descriptor], platform: &Platform) -> Result<Descriptor> {
    let images: Vec<&Descriptor> = descriptors.iter().filter(|d| !d.is_attachment()).collect();
    if let [only] = images[..]
        && only.platform.is_none()
    {
        return Ok(only.clone());
    }
    if images.is_empty() {
        return Err(Error::not_found("the index names no image of a container"));
    }
    if images.iter().all(|d| d.platform.is_none()) {
        let first = images
            .first()
            .map(|d| weald_vfs::shown(d.digest.as_bytes()));
        return Err(Error::invalid(format!(
            "has {} images without tag and platform: name one by the digest of its manifest, as in \
             LAYOUT:{}",
            images.len(),
            first.unwrap_or_default()
        )));
    }
    let platforms = images.iter().filter_map(|d| d.platform.as_ref());
    let platforms: BTreeSet<String> = platforms.map(|p| Platform::of(p).to_string()).collect();
    let is_fit = |d: &&&Descriptor| {
        d.platform
            .as_ref()
            .is_some_and(|p| platform.takes(&Platform::of(p)))
    };
    match images.iter().find(is_fit) {
        Some(found) => Ok((*found).clone()),
        None => Err(Error::not_found(format!(
            "has no image for {platform}: it has {}; --platform chooses one of them",
            listed(&platforms)
        ))),
    }
}

/// Reads a document and compares it with its descriptor.
fn verified(layout: &Layout, descriptor: &Descriptor) -> Result<Vec<u8>> {
    let digest = BlobDigest::parse(&descriptor.digest)?;
    let bytes = match blob_of(layout, &digest) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Err(missing(&digest)),
        blob => blob?.document(&descriptor.digest)?,
    };
    if bytes.len() as u64 != descriptor.size {
        return Err(Error::invalid(format!(
            "{digest}: has {} bytes, and its descriptor says {}: the layout is damaged, copy it \
             again",
            bytes.len(),
            descriptor.size
        )));
    }
    let mut hasher = digest.hasher();
    hasher.update(&bytes);
    if hasher.finish() == digest {
        Ok(bytes)
    } else {
        Err(differs(&digest, &hasher.finish()))
    }
}

fn missing(digest: &BlobDigest) -> Error {
    Error::not_found(format!(
        "{digest}: the manifest names this blob, and the layout does not have it: copy the whole \
         image again"
    ))
}

/// The error about bytes that do not have their digest.
pub fn differs(expected: &BlobDigest, found: &BlobDigest) -> Error {
    Error::invalid(format!(
        "its digest differs: expected {expected}, found {found}: the layout is damaged, copy it \
         again"
    ))
}

fn from_manifest(layout: &Layout, config: &Descriptor, layers: &[Descriptor]) -> Result<Chosen> {
    let bytes = verified(layout, config).map_err(|e| e.context("configuration"))?;
    let diff_ids = diff_ids(&bytes, layers.len())?;
    let mut files = Vec::new();
    for (no, (layer, diff_id)) in layers.iter().zip(diff_ids).enumerate() {
        let file = layer_file(layout, layer, diff_id);
        files.push(file.map_err(|e| e.context(format!("layer {}", no + 1)))?);
    }
    Ok(Chosen {
        layers: files,
        config: bytes,
        annotations: BTreeMap::new(),
        shown: layout.shown().to_owned(),
    })
}

/// Compares the platform that the caller wants with that of the configuration.
fn check_platform(config: &[u8], choice: &Choice) -> Result<()> {
    let Some(wanted) = &choice.platform else {
        return Ok(());
    };
    let config: ConfigDocument = parse(config, "configuration")?;
    let found = Platform {
        os: config.os,
        architecture: config.architecture,
        variant: config.variant,
    };
    if wanted.takes(&found) {
        Ok(())
    } else {
        Err(Error::not_found(format!(
            "the image is for {found}, and --platform asks for {wanted}"
        )))
    }
}

/// Digests of the uncompressed layers, of which there must be `layer_count`.
fn diff_ids(config: &[u8], layer_count: usize) -> Result<Vec<BlobDigest>> {
    let config: ConfigDocument = parse(config, "configuration")?;
    let Some(rootfs) = config.rootfs else {
        return Err(Error::new(
            ErrorKind::Unsupported,
            "the configuration names no layers (rootfs): an artifact, not the image of a container",
        ));
    };
    if layer_count > LAYERS_MAX {
        return Err(Error::limit(format!(
            "{layer_count} layers, at most {LAYERS_MAX} are taken"
        )));
    }
    if rootfs.diff_ids.len() != layer_count {
        return Err(Error::invalid(format!(
            "layers: the manifest has {layer_count}, and the configuration {}",
            rootfs.diff_ids.len()
        )));
    }
    rootfs
        .diff_ids
        .iter()
        .map(|text| BlobDigest::parse(text))
        .collect()
}

/// Whether the media type is one of a layer that is read. The first bytes tell the compression.
///
/// Source: OCI image specification 1.1, layer.md; Docker image manifest 2.2.
fn is_layer_type(media_type: &str) -> bool {
    let bases = [
        "application/vnd.oci.image.layer.v1.tar",
        "application/vnd.oci.image.layer.nondistributable.v1.tar",
        "application/vnd.docker.image.rootfs.diff.tar",
        "application/vnd.docker.image.rootfs.foreign.diff.tar",
    ];
    let rest = bases.iter().find_map(|base| media_type.strip_prefix(base));
    rest.is_some_and(|rest| ["", "+gzip", ".gzip", "+zstd", ".zstd"].contains(&rest))
}

fn layer_file(layout: &Layout, layer: &Descriptor, diff_id: BlobDigest) -> Result<LayerFile> {
    let media_type = weald_vfs::shown(layer.media_type.as_bytes());
    let unsupported = |what: String| Err(Error::new(ErrorKind::Unsupported, what));
    if layer.media_type.ends_with("+encrypted") {
        return unsupported(format!(
            "{media_type}: an encrypted layer: decrypt it first, with skopeo copy --decryption-key"
        ));
    }
    if !is_layer_type(&layer.media_type) {
        return unsupported(format!(
            "media type '{media_type}': expected a tar archive of OCI or Docker, plain or \
             compressed by gzip or zstd: copy the image with 'skopeo copy --format oci'"
        ));
    }
    let digest = BlobDigest::parse(&layer.digest)?;
    let blob = match blob_of(layout, &digest) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Err(match layer.urls.as_deref() {
                Some([url, ..]) => Error::not_found(format!(
                    "{digest}: a foreign layer, which is not in the layout: fetch it from {} into \
                     {}",
                    weald_vfs::shown(url.as_bytes()),
                    digest.path()
                )),
                _ => missing(&digest),
            });
        }
        blob => blob?,
    };
    if blob.len != layer.size {
        return Err(Error::invalid(format!(
            "{digest}: has {} bytes, and the manifest says {}: the layout is damaged, copy it \
             again",
            blob.len, layer.size
        )));
    }
    Ok(LayerFile {
        blob,
        digest: Some(digest),
        diff_id,
    })
}

/// Whether `tag` means the image `named`: container engines add the name of their registry.
fn is_same_tag(named: &str, tag: &str) -> bool {
    let rest = named.strip_prefix("docker.io/").unwrap_or(named);
    [named, rest, rest.strip_prefix("library/").unwrap_or(rest)].contains(&tag)
}

/// Verifies a configuration of `docker save`, whose path has its SHA-256 digest: `HEX.json` or
/// `blobs/sha256/HEX`. Other names are taken as they are.
fn verify_named(path: &str, bytes: &[u8]) -> Result<()> {
    let name = path.rsplit('/').next().unwrap_or(path);
    let hex = name.strip_suffix(".json").unwrap_or(name);
    let Ok(digest) = BlobDigest::parse(&format!("sha256:{hex}")) else {
        return Ok(());
    };
    let mut hasher = digest.hasher();
    hasher.update(bytes);
    match hasher.finish() {
        found if found == digest => Ok(()),
        found => Err(differs(&digest, &found).context("configuration")),
    }
}

fn saved_image(layout: &Layout, saved: &[u8], choice: &Choice) -> Result<Chosen> {
    let images: Vec<SavedImage> = parse(saved, "manifest.json")?;
    let all = images
        .iter()
        .flat_map(|image| image.repo_tags.iter().flatten());
    let tags: BTreeSet<String> = all.map(|tag| weald_vfs::shown(tag.as_bytes())).collect();
    let has = |image: &SavedImage, tag: &String| {
        image
            .repo_tags
            .iter()
            .flatten()
            .any(|named| is_same_tag(named, tag))
    };
    let image = match (&choice.tag, &images[..]) {
        (Some(tag), _) => images
            .iter()
            .find(|image| has(image, tag))
            .ok_or_else(|| no_tag(tag, &tags))?,
        (None, [only]) => only,
        (None, _) => {
            return Err(Error::invalid(format!(
                "has {} images: add the tag of one of them, as in LAYOUT:TAG; its tags are {}",
                images.len(),
                listed(&tags)
            )));
        }
    };
    let config = layout.document(&image.config)?;
    verify_named(&image.config, &config)?;
    check_platform(&config, choice)?;
    let diff_ids = diff_ids(&config, image.layers.len())?;
    let mut layers = Vec::new();
    for (no, (path, diff_id)) in image.layers.iter().zip(diff_ids).enumerate() {
        let blob = layout.blob(path);
        layers.push(LayerFile {
            blob: blob.map_err(|e| e.context(format!("layer {}", no + 1)))?,
            digest: None,
            diff_id,
        });
    }
    Ok(Chosen {
        layers,
        config,
        annotations: BTreeMap::new(),
        shown: layout.shown().to_owned(),
    })
}
