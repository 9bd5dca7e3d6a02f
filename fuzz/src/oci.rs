//! Archives of OCI images from the fuzzer's bytes.

use std::sync::Arc;
use weald_builder::{BuildOptions, Silent};
use weald_ingest::{OciChoice, scan_oci};
use weald_testkit::oci::{CONFIG, MANIFEST, TAR, Tar, descriptor, digest, index};

/// First byte of an input that is an archive as it is.
pub const ARCHIVE: u8 = 0;
/// First byte of an input whose pieces are layers; see [`layers`].
pub const LAYERS: u8 = 1;
/// First byte of an input that describes the members of layers; see [`described`].
pub const DESCRIBED: u8 = 2;

/// Maximum number of layers: what many of them cost is not under test.
const LAYERS_MAX: usize = 32;
/// Maximum length of a name in a described layer: that of a header of tar.
const NAME_LEN_MAX: usize = 90;

/// Scans the archive that `data` is or describes. Errors are fine; panics, hangs and unbounded
/// memory are not.
pub fn examine_oci(data: &[u8]) {
    let Some((&kind, rest)) = data.split_first() else {
        return;
    };
    let archive = match kind {
        LAYERS => archive_of(first(&layers(rest))),
        DESCRIBED => archive_of(first(&described(rest))),
        _ => rest.to_vec(),
    };
    // Compressed archives may grow to any length, and decompression is not under test.
    if [&[0x1f, 0x8b][..], &[0x28, 0xb5, 0x2f, 0xfd]]
        .iter()
        .any(|magic| archive.starts_with(magic))
    {
        return;
    }
    let mut options = BuildOptions::level(0).expect("a level");
    options.memory_len = 4 << 20;
    let choice = OciChoice {
        tag: None,
        platform: None,
    };
    let temp_dir = std::env::temp_dir();
    if let Ok(scanned) = scan_oci(Arc::new(archive), &choice, &temp_dir, &options, &Silent) {
        assert!(scanned.kept_count <= scanned.member_count);
    }
}

fn first(layers: &[Vec<u8>]) -> &[Vec<u8>] {
    layers.get(..LAYERS_MAX).unwrap_or(layers)
}

/// Splits the fuzzer's bytes into layers: length (2 bytes) and bytes, again and again.
pub fn layers(mut data: &[u8]) -> Vec<Vec<u8>> {
    let mut layers = Vec::new();
    while let Some((len, rest)) = data.split_first_chunk::<2>() {
        let len = usize::from(u16::from_le_bytes(*len)).min(rest.len());
        let (layer, rest) = rest.split_at(len);
        // Compressed layers may grow to any length.
        if !layer.starts_with(&[0x1f, 0x8b]) && !layer.starts_with(&[0x28, 0xb5]) {
            layers.push(layer.to_vec());
        }
        data = rest;
    }
    layers
}

/// Layers of members that the fuzzer's bytes describe. A member is a byte for its kind, and two
/// lengths with names: its path, and its target or contents. Kind 0 begins the next layer.
pub fn described(mut data: &[u8]) -> Vec<Vec<u8>> {
    let (mut layers, mut tar) = (Vec::new(), Tar::default());
    while let Some((&kind, rest)) = data.split_first() {
        data = rest;
        if kind % 8 == 0 {
            layers.push(std::mem::take(&mut tar).finish());
            continue;
        }
        let (path, target) = (name(&mut data), name(&mut data));
        tar = match kind % 8 {
            1 => tar.dir(&path),
            2 => tar.file(&path, target.as_bytes()),
            3 => tar.symlink(&path, &target),
            4 => tar.hard_link(&path, &target),
            5 => tar.device(&path),
            6 => tar.file(&format!("{path}/.wh.{target}"), b""),
            _ => tar.file(&format!("{path}/.wh..wh..opq"), b""),
        };
    }
    layers.push(tar.finish());
    layers
}

fn name(data: &mut &[u8]) -> String {
    let Some((&len, rest)) = data.split_first() else {
        return String::new();
    };
    let (name, rest) = rest.split_at(usize::from(len % 16).min(rest.len()));
    *data = rest;
    let text: String = String::from_utf8_lossy(name)
        .chars()
        .filter(|&c| c != '\0')
        .collect();
    match text.len() + 20 <= NAME_LEN_MAX {
        true => text,
        false => String::new(),
    }
}

/// An archive of a layout with an image of these layers. All digests are right.
pub fn archive_of(layers: &[Vec<u8>]) -> Vec<u8> {
    let blob = |tar: Tar, bytes: &[u8]| {
        let path = format!("blobs/{}", digest(bytes).replace(':', "/"));
        tar.file(&path, bytes)
    };
    let quoted = layers.iter().map(|layer| format!("\"{}\"", digest(layer)));
    let config = format!(
        r#"{{"os":"linux","rootfs":{{"diff_ids":[{}]}}}}"#,
        quoted.collect::<Vec<_>>().join(",")
    );
    let descriptors: Vec<String> = layers.iter().map(|layer| descriptor(TAR, layer)).collect();
    let manifest = format!(
        r#"{{"config":{},"layers":[{}]}}"#,
        descriptor(CONFIG, config.as_bytes()),
        descriptors.join(",")
    );
    let index = index(&[descriptor(MANIFEST, manifest.as_bytes())]);
    let mut tar = Tar::default()
        .file("oci-layout", b"{}")
        .file("index.json", index.as_bytes());
    tar = blob(tar, config.as_bytes());
    tar = blob(tar, manifest.as_bytes());
    for layer in layers {
        tar = blob(tar, layer);
    }
    tar.finish()
}
