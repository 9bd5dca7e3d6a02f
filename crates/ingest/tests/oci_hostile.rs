//! Layouts that are damaged or hostile. Each gets an error that says what to do, and leaves no
//! file.
#![allow(missing_docs)]

use std::fs;
use std::io::Write;
use std::path::Path;
use weald_builder::{BuildOptions, Silent};
use weald_format::{ErrorKind, Result};
use weald_ingest::{OciChoice, OciImport, OciPlatform, import_oci};
use weald_testkit::oci::{
    CONFIG, INDEX, Layer, LayoutDir, MANIFEST, TAR, TAR_GZIP, TAR_ZSTD, Tar, descriptor, digest,
    index,
};

fn import(layout: &Path, target: &Path, choice: &OciChoice) -> Result<OciImport> {
    let mut options = BuildOptions::level(0)?;
    options.threads = 1;
    import_oci(layout, choice, target, true, &options, &Silent)
}

fn any() -> OciChoice {
    OciChoice {
        tag: None,
        platform: None,
    }
}

/// The error of an import of the layout at `dir/layout`, and its kind. The directory stays as it
/// was.
#[track_caller]
fn refused(dir: &Path, choice: &OciChoice) -> (ErrorKind, String) {
    let list = || {
        let names = fs::read_dir(dir)
            .expect("list")
            .map(|entry| entry.expect("entry").file_name());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    };
    let before = list();
    let error = import(&dir.join("layout"), &dir.join("image"), choice).expect_err("refused");
    assert_eq!(list(), before, "{error}");
    (error.kind(), error.to_string())
}

#[track_caller]
fn assert_refused(dir: &Path, kind: ErrorKind, parts: &[&str]) {
    let found = refused(dir, &any());
    println!("{:?}: {}", found.0, found.1);
    assert_eq!(found.0, kind, "{}", found.1);
    for part in parts {
        assert!(found.1.contains(part), "{part}: {}", found.1);
    }
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).expect("gzip");
    encoder.finish().expect("gzip")
}

/// Makes a layout of one plain layer in `dir/layout`.
fn with_layer(dir: &Path, tar: Tar) -> LayoutDir {
    let layout = LayoutDir::create(&dir.join("layout"));
    layout.image(&[Layer::plain(tar.finish())]);
    layout
}

/// Would catch: a member that leaves the root of the image, or the layout.
#[test]
fn members_that_lead_out_of_the_root_are_refused() {
    let below = "a stream may only name what lies below its root";
    let cases: [(Tar, &[&str]); 7] = [
        (
            Tar::default().file("../x", b"x"),
            &["layer 1", "../x", below],
        ),
        (
            Tar::default().file("a/../../x", b"x"),
            &["a/../../x", below],
        ),
        (Tar::default().file("/../x", b"x"), &["../x", below]),
        (
            Tar::default().hard_link("x", "../../etc/passwd"),
            &["x: hard link", below],
        ),
        (
            Tar::default().hard_link("x", "/etc/passwd"),
            &["etc/passwd", "no earlier member"],
        ),
        (Tar::default().file(".wh...", b""), &[".wh...", "whiteout"]),
        (
            Tar::default().file("a", b"x").file("a/b", b"x"),
            &["a: layer 1", "no directory"],
        ),
    ];
    for (tar, parts) in cases {
        let temp = tempfile::tempdir().expect("directory");
        with_layer(temp.path(), tar);
        assert_refused(temp.path(), ErrorKind::Invalid, parts);
    }
}

/// Would catch: a symlink of a layer that an upper layer's member is written through.
#[test]
fn symlinks_of_layers_are_not_followed() {
    let temp = tempfile::tempdir().expect("directory");
    let outside = temp.path().join("outside");
    fs::create_dir(&outside).expect("mkdir");
    let lower = Tar::default().symlink("etc", outside.to_str().expect("UTF-8"));
    let upper = Tar::default().file("etc/passwd", b"x").device("etc/null");
    let layout = LayoutDir::create(&temp.path().join("layout"));
    layout.image(&[Layer::plain(lower.finish()), Layer::plain(upper.finish())]);
    let imported = import(
        &temp.path().join("layout"),
        &temp.path().join("image"),
        &any(),
    );
    assert_eq!(imported.expect("imported").layer_count, 2);
    assert_eq!(fs::read_dir(&outside).expect("list").count(), 0);
}

/// Would catch: bytes that are taken although their digest or size differs, and a damaged layer
/// that is called a bad tar stream.
#[test]
fn damaged_blobs_are_refused() {
    let tar = || Tar::default().file("a", &[b'x'; 5000]).finish();
    let temp = tempfile::tempdir().expect("directory");
    let layout = LayoutDir::create(&temp.path().join("layout"));
    let manifest = layout.manifest(&[Layer::plain(tar())]);
    layout.index(&[descriptor(MANIFEST, &manifest)]);
    // One bit of the layer: in a header, and in data.
    for at in [3, 700] {
        let path = layout.blob(&tar());
        let mut bytes = tar();
        bytes[at] ^= 1;
        fs::write(path, bytes).expect("write");
        let parts = &[
            "layer 1",
            "digest differs",
            &digest(&tar()),
            "copy it again",
        ];
        assert_refused(temp.path(), ErrorKind::Invalid, parts);
    }
    let path = layout.blob(&tar());
    fs::write(&path, &tar()[..4000]).expect("write");
    assert_refused(
        temp.path(),
        ErrorKind::Invalid,
        &["has 4000 bytes", "manifest says"],
    );
    fs::remove_file(&path).expect("remove");
    let parts = &[
        "layer 1",
        "the manifest names this blob",
        "copy the whole image again",
    ];
    assert_refused(temp.path(), ErrorKind::NotFound, parts);
    layout.blob(&tar());
    // The manifest and the configuration.
    let mut changed = manifest.clone();
    changed[0] = b' ';
    fs::write(layout.blob(&manifest), changed).expect("write");
    assert_refused(
        temp.path(),
        ErrorKind::Invalid,
        &[&digest(&manifest), "digest differs"],
    );
    fs::remove_file(layout.blob(&manifest)).expect("remove");
    assert_refused(temp.path(), ErrorKind::NotFound, &["names this blob"]);
}

/// Would catch: a layer whose decompressed bytes are not those that the configuration names, in a
/// layer of each compression.
#[test]
fn wrong_diff_ids_are_refused() {
    let tar = Tar::default().file("a", b"x").finish();
    let zstd = zstd::encode_all(&tar[..], 1).expect("zstd");
    for (media_type, stored) in [(TAR, tar.clone()), (TAR_GZIP, gzip(&tar)), (TAR_ZSTD, zstd)] {
        let temp = tempfile::tempdir().expect("directory");
        let layout = LayoutDir::create(&temp.path().join("layout"));
        let layer = |diff_id| Layer {
            media_type,
            stored: stored.clone(),
            diff_id,
        };
        layout.image(&[layer(digest(b"other"))]);
        let parts = &["layer 1", "uncompressed", "digest differs", &digest(&tar)];
        assert_refused(temp.path(), ErrorKind::Invalid, parts);
        layout.image(&[layer(digest(&tar))]);
        import(
            &temp.path().join("layout"),
            &temp.path().join("image"),
            &any(),
        )
        .expect(media_type);
    }
}

/// Would catch: a bomb that is read to its end, or that fills the disk.
#[test]
fn bombs_are_refused() {
    let temp = tempfile::tempdir().expect("directory");
    let layout = LayoutDir::create(&temp.path().join("layout"));
    // A file of 64 GiB of zeros: two million bytes of zstd.
    let head = Tar::default().raw(b'0', "zeros", "", b"", 7 << 30).finish();
    let mut encoder = zstd::Encoder::new(Vec::new(), 1).expect("zstd");
    encoder.write_all(&head[..512]).expect("zstd");
    for _ in 0..1100 {
        encoder.write_all(&[0; 1 << 20]).expect("zstd");
    }
    let stored = encoder.finish().expect("zstd");
    assert!(stored.len() < 1 << 20);
    let diff_id = digest(b"never read to its end");
    layout.image(&[Layer {
        media_type: TAR_ZSTD,
        stored,
        diff_id,
    }]);
    assert_refused(
        temp.path(),
        ErrorKind::Limit,
        &["layer 1", "when decompressed", "1 GiB"],
    );
    // A document that is too long for memory.
    let path = temp.path().join("layout/index.json");
    fs::File::create(path)
        .and_then(|file| file.set_len(1 << 40))
        .expect("sparse");
    assert_refused(
        temp.path(),
        ErrorKind::Limit,
        &["index.json", "1099511627776 bytes"],
    );
}

/// Would catch: a search for an image that never ends, or whose error does not say what there is.
#[test]
fn indexes_that_name_no_image_are_refused() {
    let temp = tempfile::tempdir().expect("directory");
    let layout = LayoutDir::create(&temp.path().join("layout"));
    assert_refused(temp.path(), ErrorKind::NotFound, &["names no image"]);
    let manifest = layout.manifest(&[Layer::plain(Tar::default().file("a", b"x").finish())]);
    let mut inner = descriptor(MANIFEST, &manifest);
    for _ in 0..20 {
        let index = index(&[inner]);
        layout.blob(index.as_bytes());
        inner = descriptor(INDEX, index.as_bytes());
    }
    layout.index(&[inner]);
    assert_refused(
        temp.path(),
        ErrorKind::Limit,
        &["more than 8 indexes", "LAYOUT:sha256:"],
    );
    // The manifest itself can be named, though.
    let deep = descriptor(MANIFEST, &manifest);
    let tagged = |tag: &str, arch: &str| {
        let annotations =
            format!(r#","annotations":{{"org.opencontainers.image.ref.name":"{tag}"}}"#);
        let platform = format!(r#","platform":{{"os":"linux","architecture":"{arch}"}}}}"#);
        deep.trim_end_matches('}').to_owned() + &annotations + &platform
    };
    layout.index(&[tagged("one", "amd64"), tagged("two", "arm64")]);
    assert_refused(
        temp.path(),
        ErrorKind::Invalid,
        &["several images", "LAYOUT:one", "one, two"],
    );
    let choice = |tag: &str, platform: &str| OciChoice {
        tag: Some(tag.to_owned()),
        platform: Some(OciPlatform::parse(platform).expect("a platform")),
    };
    let found = refused(temp.path(), &choice("three", "linux/amd64"));
    assert!(
        found.1.contains("no image 'three': its tags are one, two"),
        "{}",
        found.1
    );
    let found = refused(temp.path(), &choice("two", "linux/riscv64"));
    assert!(
        found
            .1
            .contains("no image for linux/riscv64: it has linux/arm64"),
        "{}",
        found.1
    );
    // The configuration says amd64.
    let found = refused(temp.path(), &choice("two", "linux/arm64"));
    assert!(found.1.contains("is for linux/amd64"), "{}", found.1);
    let image = temp.path().join("image");
    import(
        &temp.path().join("layout"),
        &image,
        &choice("one", "linux/amd64"),
    )
    .expect("amd64");
    let by_digest = choice(&digest(&manifest), "linux/amd64");
    import(&temp.path().join("layout"), &image, &by_digest).expect("by digest");
}

/// Would catch: a layer of an unknown media type that is taken for another.
#[test]
fn unknown_media_types_are_refused() {
    let tar = Tar::default().file("a", b"x").finish();
    let layer = |media_type| Layer {
        media_type,
        ..Layer::plain(tar.clone())
    };
    let types: [(&str, &[&str]); 3] = [
        (
            "application/vnd.oci.image.layer.v1.tar+encrypted",
            &["encrypted", "decrypt it first"],
        ),
        (
            "application/vnd.oci.image.layer.v1.tar+lz9",
            &["media type", "gzip or zstd"],
        ),
        (
            "application/vnd.cncf.helm.chart.content.v1.tar",
            &["media type", "skopeo copy"],
        ),
    ];
    for (media_type, parts) in types {
        let temp = tempfile::tempdir().expect("directory");
        let layout = LayoutDir::create(&temp.path().join("layout"));
        layout.image(&[layer(media_type)]);
        assert_refused(temp.path(), ErrorKind::Unsupported, parts);
    }
}

/// Would catch: a document that is taken for another.
#[test]
fn unknown_documents_are_refused() {
    let documents: [(&[u8], ErrorKind, &[&str]); 5] = [
        (
            b"{",
            ErrorKind::Invalid,
            &["not the JSON that was expected"],
        ),
        (
            b"{}",
            ErrorKind::Invalid,
            &["expected an index with manifests, or a manifest"],
        ),
        (
            br#"{"schemaVersion":1,"fsLayers":[]}"#,
            ErrorKind::Invalid,
            &["expected an index with manifests, or a manifest"],
        ),
        (
            br#"{"config":{"digest":"md5:0","size":1},"layers":[]}"#,
            ErrorKind::Unsupported,
            &["configuration", "expected sha256:"],
        ),
        (
            br#"{"config":{"digest":"sha256:../../../etc/passwd","size":1},"layers":[]}"#,
            ErrorKind::Invalid,
            &["configuration", "64 lower-case hexadecimal digits"],
        ),
    ];
    for (document, kind, parts) in documents {
        let temp = tempfile::tempdir().expect("directory");
        let layout = LayoutDir::create(&temp.path().join("layout"));
        layout.blob(document);
        layout.index(&[descriptor(MANIFEST, document)]);
        assert_refused(temp.path(), kind, parts);
    }
}

/// Would catch: an artifact that is taken for an image, and a configuration of other layers.
#[test]
fn other_configurations_are_refused() {
    let tar = Tar::default().file("a", b"x").finish();
    for (config, kind, parts) in [
        (&b"{}"[..], ErrorKind::Unsupported, "an artifact"),
        (
            br#"{"rootfs":{"diff_ids":[]}}"#,
            ErrorKind::Invalid,
            "layers: the manifest has 1, and the configuration 0",
        ),
    ] {
        let temp = tempfile::tempdir().expect("directory");
        let layout = LayoutDir::create(&temp.path().join("layout"));
        layout.blob(config);
        layout.blob(&tar);
        let manifest = format!(
            r#"{{"config":{},"layers":[{}]}}"#,
            descriptor(CONFIG, config),
            descriptor(TAR, &tar)
        );
        layout.blob(manifest.as_bytes());
        layout.index(&[descriptor(MANIFEST, manifest.as_bytes())]);
        assert_refused(temp.path(), kind, &[parts]);
    }
}

/// Would catch: a layout that is read outside its directory, a pipe that blocks the import, and
/// paths of `docker save` that lead out.
#[test]
fn nothing_outside_the_layout_is_read() {
    let temp = tempfile::tempdir().expect("directory");
    let tar = Tar::default().file("a", b"x").finish();
    let layout = with_layer(temp.path(), Tar::default().file("a", b"x"));
    let path = layout.blob(&tar);
    let outside = temp.path().join("outside");
    fs::rename(&path, &outside).expect("rename");
    std::os::unix::fs::symlink(&outside, &path).expect("symlink");
    assert_refused(
        temp.path(),
        ErrorKind::Invalid,
        &["layer 1", "symlinks in a layout"],
    );
    fs::remove_file(&path).expect("remove");
    let dir = weald_sys::open_dir(path.parent().expect("a parent")).expect("open");
    let name = path.file_name().expect("a name").as_encoded_bytes();
    weald_sys::make_node_at(&dir, name, weald_sys::NodeKind::Fifo, 0o600).expect("mkfifo");
    assert_refused(
        temp.path(),
        ErrorKind::Invalid,
        &["layer 1", "is no regular file"],
    );
    fs::remove_dir_all(temp.path().join("layout")).expect("remove");
    fs::create_dir(temp.path().join("layout")).expect("mkdir");
    for (saved, parts) in [
        (
            r#"[{"Config":"../outside","Layers":[]}]"#,
            "leads out of the layout",
        ),
        (
            r#"[{"Config":"/etc/passwd","Layers":[]}]"#,
            "leads out of the layout",
        ),
        (
            r#"[{"Config":"none","Layers":[]}]"#,
            "none: cannot be opened",
        ),
        (r"[]", "has 0 images"),
    ] {
        fs::write(temp.path().join("layout/manifest.json"), saved).expect("write");
        let found = refused(temp.path(), &any());
        assert!(found.1.contains(parts), "{parts}: {}", found.1);
    }
}

/// Would catch: an archive whose links lead in a circle, and files that are no archive.
#[test]
fn archives_that_hold_no_image_are_refused() {
    let saved = br#"[{"Config":"config","Layers":["l/layer.tar"]}]"#;
    let config = br#"{"rootfs":{"diff_ids":["DIGEST"]}}"#;
    let config = String::from_utf8_lossy(config).replace("DIGEST", &digest(b""));
    let archive = |tar: Tar| {
        tar.file("manifest.json", saved)
            .file("config", config.as_bytes())
    };
    let cases: [(Vec<u8>, &[&str]); 5] = [
        (
            archive(Tar::default().symlink("l/layer.tar", "../l/layer.tar")).finish(),
            &["circle"],
        ),
        (
            archive(Tar::default().symlink("l/layer.tar", "/etc/passwd")).finish(),
            &["layer 1"],
        ),
        (
            archive(Tar::default()).finish(),
            &["layer 1", "is not in the archive"],
        ),
        (
            b"text".repeat(500),
            &["neither a directory nor a tar archive"],
        ),
        (
            Tar::default().file("a", b"x").finish(),
            &["neither the file oci-layout nor"],
        ),
    ];
    for (bytes, parts) in cases {
        let temp = tempfile::tempdir().expect("directory");
        for bytes in [gzip(&bytes), bytes] {
            fs::write(temp.path().join("layout"), bytes).expect("write");
            let found = refused(temp.path(), &any());
            println!("{:?}: {}", found.0, found.1);
            assert!(
                parts.iter().all(|part| found.1.contains(part)),
                "{parts:?}: {}",
                found.1
            );
        }
    }
}
