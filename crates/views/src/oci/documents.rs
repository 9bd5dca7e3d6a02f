//! The JSON documents of a layout. Fields that are not known stay as they are.

use super::blob::{Blob, Compression, LayerBlob};
use serde_json::{Map, Value, json};
use weald_format::{Error, Result};

/// Bytes of a document that is read.
pub const DOCUMENT_LEN_MAX: u64 = 8 << 20;
/// Media types.
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
/// Annotation with the tag of a manifest.
const REF_NAME: &str = "org.opencontainers.image.ref.name";
/// Time of an image whose configuration has none, so that equal images have equal digests.
const CREATED_DEFAULT: &str = "1970-01-01T00:00:00Z";
/// Bytes of a tag. Registries take 128; names before it may be longer.
const TAG_LEN_MAX: usize = 255;

/// Platform of an image, in Go's words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Platform {
    /// Operating system: `linux`.
    pub os: String,
    /// Architecture: `amd64`, `arm64`.
    pub architecture: String,
    /// Variant of the architecture: `v7`.
    pub variant: Option<String>,
}

/// Checks that OCI allows `tag` in an index.
///
/// # Errors
/// `Invalid`.
///
/// # Source
/// OCI image specification 1.1, annotations.md: `ref.name`.
pub fn check_tag(tag: &str) -> Result<()> {
    let is_part = |part: &str| {
        let is_end = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
        let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:@+".contains(&byte);
        is_end(part.bytes().next()) && is_end(part.bytes().last()) && part.bytes().all(is_inner)
    };
    if tag.len() <= TAG_LEN_MAX && tag.split('/').all(is_part) {
        Ok(())
    } else {
        Err(Error::invalid(format!(
            "tag '{}': expected letters and digits, with -._:@+ between them, as in v1.2",
            weald_vfs::shown(tag.as_bytes())
        )))
    }
}

/// The images of a layout.
#[derive(Debug, Default)]
pub struct Index {
    other_fields: Map<String, Value>,
    manifests: Vec<Value>,
}

impl Index {
    /// Parses `index.json`.
    ///
    /// # Errors
    /// `Invalid`.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let wrong = |what: String| Error::invalid(format!("index.json: {what}"));
        let parsed: std::result::Result<Map<String, Value>, _> = serde_json::from_slice(bytes);
        let mut fields = parsed.map_err(|e| wrong(format!("no JSON object: {e}")))?;
        match fields.remove("manifests") {
            Some(Value::Array(manifests)) => Ok(Self {
                other_fields: fields,
                manifests,
            }),
            None | Some(Value::Null) => Ok(Self {
                other_fields: fields,
                manifests: Vec::new(),
            }),
            Some(_) => Err(wrong("manifests is no list".to_owned())),
        }
    }

    /// Whether an image has the tag.
    pub fn has_tag(&self, tag: &str) -> bool {
        self.manifests
            .iter()
            .any(|manifest| is_tagged(manifest, tag))
    }

    /// The index with one more image, instead of the one that has the tag.
    ///
    /// # Errors
    /// `Invalid` if the index becomes too long.
    pub fn with_image(self, tag: &str, manifest: &Blob) -> Result<Vec<u8>> {
        let mut manifests = self.manifests;
        manifests.retain(|manifest| !is_tagged(manifest, tag));
        let mut entry = descriptor(MANIFEST, manifest);
        entry["annotations"] = json!({ REF_NAME: tag });
        manifests.push(entry);
        let mut fields = self.other_fields;
        fields.insert("schemaVersion".into(), 2.into());
        fields.entry("mediaType").or_insert_with(|| INDEX.into());
        fields.insert("manifests".into(), manifests.into());
        encode(&Value::Object(fields))
    }
}

fn is_tagged(manifest: &Value, tag: &str) -> bool {
    let annotations = manifest.get("annotations");
    annotations
        .and_then(|all| all.get(REF_NAME))
        .and_then(Value::as_str)
        == Some(tag)
}

fn descriptor(media_type: &str, blob: &Blob) -> Value {
    json!({ "mediaType": media_type, "digest": blob.digest, "size": blob.len })
}

fn encode(value: &Value) -> Result<Vec<u8>> {
    let bytes = serde_json::to_vec(value);
    let bytes = bytes.map_err(|e| Error::invalid(format!("document: {e}")))?;
    if bytes.len() as u64 > DOCUMENT_LEN_MAX {
        Err(Error::limit(format!(
            "a document of {} bytes, at most {DOCUMENT_LEN_MAX} are read again: use another layout",
            bytes.len()
        )))
    } else {
        Ok(bytes)
    }
}

/// Parses a configuration that is taken over.
///
/// # Errors
/// `Invalid`, `Limit`.
pub fn parse_config(bytes: &[u8]) -> Result<Map<String, Value>> {
    if bytes.len() as u64 > DOCUMENT_LEN_MAX {
        return Err(Error::limit(format!(
            "configuration: {} bytes, at most {DOCUMENT_LEN_MAX} are taken",
            bytes.len()
        )));
    }
    serde_json::from_slice(bytes).map_err(|e| {
        Error::invalid(format!(
            "configuration: expected a JSON object, as 'skopeo inspect --config --raw' prints it: \
             {e}"
        ))
    })
}

/// The configuration of the image, with its one layer.
///
/// # Errors
/// `Limit`.
pub fn config_of(
    given: Option<Map<String, Value>>,
    platform: &Platform,
    diff_id: &str,
) -> Result<Vec<u8>> {
    let mut config = given.unwrap_or_default();
    config.insert("architecture".into(), platform.architecture.clone().into());
    config.insert("os".into(), platform.os.clone().into());
    match &platform.variant {
        Some(variant) => config.insert("variant".into(), variant.clone().into()),
        None => config.remove("variant"),
    };
    let rootfs = json!({ "type": "layers", "diff_ids": [diff_id] });
    config.insert("rootfs".into(), rootfs);
    let created = config
        .entry("created")
        .or_insert_with(|| CREATED_DEFAULT.into());
    // The history of other layers would be read as that of this one.
    let history = json!([{ "created": created, "created_by": "weald export oci" }]);
    config.insert("history".into(), history);
    encode(&Value::Object(config))
}

/// The manifest of an image of one layer.
///
/// # Errors
/// `Limit`.
pub fn manifest_of(config: &Blob, layer: &LayerBlob, compression: Compression) -> Result<Vec<u8>> {
    encode(&json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": descriptor(CONFIG, config),
        "layers": [descriptor(compression.media_type(), &layer.blob)],
    }))
}

/// The platform that a configuration names.
pub fn platform_of(config: &Map<String, Value>) -> Option<Platform> {
    let word = |key: &str| config.get(key).and_then(Value::as_str).map(str::to_owned);
    Some(Platform {
        os: word("os")?,
        architecture: word("architecture")?,
        variant: word("variant"),
    })
}
