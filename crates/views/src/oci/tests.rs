//! Layouts without the programs that judge them: `crates/cli/tests/oci` asks skopeo and umoci.

use super::*;

fn amd64() -> Platform {
    Platform {
        os: "linux".to_owned(),
        architecture: "amd64".to_owned(),
        variant: None,
    }
}

fn options() -> OciOptions {
    OciOptions {
        tag: "v1".to_owned(),
        compression: Compression::Gzip(6),
        platform: None,
        default_platform: amd64(),
        config: None,
        overwrite: false,
    }
}

fn export(path: &Path, options: &OciOptions, layer: &[u8]) -> Result<OciReport> {
    let exported = export_layout(path, options, |out| {
        out.write_all(layer).map_err(|e| Error::io("layer", e))
    });
    exported.map(|(report, ())| report)
}

fn names(path: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for entry in fs::read_dir(path).expect("list") {
        let entry = entry.expect("entry");
        let name = entry.file_name().into_string().expect("UTF-8");
        if entry.path().is_dir() {
            names.extend(
                self::names(&entry.path())
                    .iter()
                    .map(|below| format!("{name}/{below}")),
            );
        }
        names.push(name);
    }
    names.sort();
    names
}

/// Would catch: an image that removes another one, a tag that is replaced unasked, blobs that
/// depend on the time.
#[test]
fn images_are_added_to_a_layout() {
    let temp = tempfile::tempdir().expect("directory");
    let path = temp.path().join("layout");
    let first = export(&path, &options(), b"first").expect("exported");
    assert_eq!(first.plain_len, 5);
    let before = names(&path);
    assert_eq!(before.len(), 7, "{before:?}");
    let busy = export(&path, &options(), b"second").expect_err("the tag exists");
    assert_eq!(busy.kind(), ErrorKind::Busy);
    assert_eq!(names(&path), before);
    for (tag, compression) in [("v2", Compression::None), ("a/b:v3", Compression::Zstd(3))] {
        let options = OciOptions {
            tag: tag.to_owned(),
            compression,
            ..options()
        };
        let report = export(&path, &options, b"first").expect("exported");
        assert_eq!(report.diff_id, first.diff_id);
        assert_eq!(report.config_digest, first.config_digest);
    }
    let overwrite = OciOptions {
        overwrite: true,
        ..options()
    };
    assert_eq!(
        export(&path, &overwrite, b"first").expect("exported"),
        first
    );
    let index = fs::read_to_string(path.join("index.json")).expect("index");
    assert_eq!(index.matches("ref.name").count(), 3, "{index}");
}

/// Would catch: a failed export that leaves files, or that makes a directory of another kind a
/// layout.
#[test]
fn a_failed_export_changes_nothing() {
    let temp = tempfile::tempdir().expect("directory");
    let path = temp.path().join("layout");
    let fail = |path: &Path| {
        let exported = export_layout(path, &options(), |out| -> Result<()> {
            out.write_all(&[7; 1 << 20]).expect("written");
            Err(Error::invalid("the image is damaged"))
        });
        exported.expect_err("failed").to_string()
    };
    assert_eq!(fail(&path), "the image is damaged");
    assert_eq!(names(temp.path()), [""; 0]);
    fs::create_dir(&path).expect("mkdir");
    assert_eq!(fail(&path), "the image is damaged");
    assert_eq!(names(temp.path()), ["layout"]);
    fs::write(path.join("file"), b"text").expect("write");
    assert!(fail(&path).contains("has other files and no file oci-layout"));
    assert!(fail(&path.join("file")).contains("a file: expected a directory"));
    fs::write(path.join("oci-layout"), LAYOUT_VERSION).expect("write");
    fs::write(path.join("index.json"), b"[]").expect("write");
    assert!(fail(&path).contains("index.json: no JSON object"));
    assert_eq!(names(&path), ["file", "index.json", "oci-layout"]);
}

/// Would catch: a layout that a killed export has left, in which no later export succeeds.
#[test]
fn an_export_continues_after_a_killed_one() {
    let temp = tempfile::tempdir().expect("directory");
    let path = temp.path().join("layout");
    fs::create_dir_all(path.join("blobs/sha256")).expect("mkdir");
    fs::write(path.join("oci-layout"), LAYOUT_VERSION).expect("write");
    fs::write(path.join("blobs/sha256/.weald-unfinished.weald-1"), b"half").expect("write");
    export(&path, &options(), b"layer").expect("exported");
    assert!(path.join("index.json").is_file());
}

/// Would catch: a configuration that loses the command of a container, or keeps layers that the
/// image does not have.
#[test]
fn a_given_configuration_is_taken_over() {
    let temp = tempfile::tempdir().expect("directory");
    let path = temp.path().join("layout");
    let config =
        br#"{"architecture":"arm64","os":"linux","variant":"v8","created":"2024-01-01T00:00:00Z",
        "config":{"Cmd":["/bin/true"],"Env":["A=1"]},"rootfs":{"type":"layers","diff_ids":["x"]},
        "history":[{"created_by":"a"},{"created_by":"b"}]}"#;
    let read = |options: &OciOptions| -> (String, serde_json::Value) {
        let report = export(&path, options, b"layer").expect("exported");
        let name = report.config_digest.replace(':', "/");
        let bytes = fs::read(path.join("blobs").join(name)).expect("read");
        (
            report.diff_id,
            serde_json::from_slice(&bytes).expect("JSON"),
        )
    };
    let options = OciOptions {
        config: Some(config.to_vec()),
        overwrite: true,
        ..options()
    };
    let (diff_id, found) = read(&options);
    assert_eq!(found["config"]["Cmd"][0], "/bin/true");
    assert_eq!(found["created"], "2024-01-01T00:00:00Z");
    assert_eq!(found["rootfs"]["diff_ids"], serde_json::json!([diff_id]));
    assert_eq!(found["history"].as_array().map(Vec::len), Some(1));
    assert_eq!(
        (&found["architecture"], &found["variant"]),
        (&"arm64".into(), &"v8".into())
    );
    let asked = OciOptions {
        platform: Some(amd64()),
        ..options.clone()
    };
    let (_, found) = read(&asked);
    assert_eq!(
        (&found["architecture"], found.get("variant")),
        (&"amd64".into(), None)
    );
    let text = OciOptions {
        config: Some(b"text".to_vec()),
        ..options
    };
    let error = export(&path, &text, b"layer").expect_err("no JSON");
    assert!(
        error.to_string().contains("expected a JSON object"),
        "{error}"
    );
}

#[test]
fn tags_are_checked() {
    for tag in [
        "v1",
        "latest",
        "localhost/a-b:v1.2",
        "docker.io/library/x:1",
    ] {
        assert!(documents::check_tag(tag).is_ok(), "{tag}");
    }
    for tag in ["", "a b", "-a", "a/", "/a", "a\u{1b}", &"a".repeat(300)] {
        assert!(documents::check_tag(tag).is_err(), "{tag}");
    }
}
