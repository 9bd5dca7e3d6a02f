//! Images of the past: each was written once, by the version of its time, and stays readable.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use weald_image::{CheckOptions, Image, OpenOptions, generations};

fn dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

/// The tree digest of each generation: the lines of `digests` have image, generation and digest.
fn expected() -> BTreeMap<(String, u64), String> {
    let lines = std::fs::read_to_string(dir().join("digests")).unwrap();
    let line = |line: &str| {
        let mut words = line.split(' ').map(str::to_owned);
        let mut next = || words.next().unwrap();
        ((next(), next().parse().unwrap()), next())
    };
    lines.lines().map(line).collect()
}

/// Would catch: a codec, a record or a rule of old images that this version does not read, or reads
/// as something else.
#[test]
fn images_of_every_version_stay_readable() {
    let expected = expected();
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(dir()).unwrap() {
        let path = entry.unwrap().path();
        if path
            .extension()
            .is_none_or(|extension| extension != "weald")
        {
            continue;
        }
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        for generation in generations(&path).unwrap() {
            let options = OpenOptions {
                generation: Some(generation.number),
                ..OpenOptions::default()
            };
            let image = Image::open_path(&path, 0, &options).unwrap();
            let options = CheckOptions {
                digests_only: false,
                threads: 1,
                path_count_max: 10,
            };
            let mut findings = Vec::new();
            let report = image.check(&options, &mut |finding| findings.push(finding));
            assert!(report.is_clean(), "{name}: {findings:?}");
            let contents = image.content_digests(1).unwrap();
            let computed = image.computed_tree_digest(&contents).unwrap();
            found.insert((name.clone(), generation.number), computed.to_string());
        }
    }
    assert_eq!(found, expected);
    assert!(found.len() > 12, "{}", found.len());
}
