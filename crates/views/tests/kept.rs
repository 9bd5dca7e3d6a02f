//! Images whose kept fs-verity digests are wrong: an image of somebody else may promise anything.
#![allow(missing_docs)]

#[path = "../../image/tests/support/mod.rs"]
mod support;

use std::fs;
use std::path::Path;
use support::{Parts, open};
use weald_codec::fsverity_digest;
use weald_format::{Error, ErrorKind};
use weald_views::composefs::{
    Format, ImageOptions, ObjectPlace, VerityPolicy, object_name, write_image,
};
use weald_views::kernel::{self, ViewCache, ViewLimit, ViewOptions};

/// Contents of the small tree that become objects: those of more than 64 bytes.
const OBJECT_CONTENTS: [usize; 2] = [0, 2];

const OTHER_DIGEST: &str = "the content has another fs-verity digest than the image keeps";

/// Writes the composefs image of `parts` and its objects; returns the bytes of the image.
fn export(parts: &Parts, objects: &Path) -> Result<Vec<u8>, Error> {
    let image = open(parts.bytes()).expect("an image");
    let mut bytes = Vec::new();
    let options = ImageOptions {
        format: Format::V0,
        objects: Some(ObjectPlace::at(objects)),
        verity: VerityPolicy::Off,
        thread_count: 2,
        memory_len: 1 << 20,
        temp_dir: &std::env::temp_dir(),
        is_cancelled: &|| false,
    };
    let mut sink = |piece: &[u8]| {
        bytes.extend_from_slice(piece);
        Ok(())
    };
    write_image(&image, &mut sink, &options).map(|_| bytes)
}

/// Names of all files below `dir`; each must be the digest of the file's bytes.
fn objects_in(dir: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for sub_dir in fs::read_dir(dir).expect("objects") {
        let sub_dir = sub_dir.expect("entry").path();
        for file in fs::read_dir(&sub_dir).expect("only directories of objects") {
            let path = file.expect("entry").path();
            let bytes = fs::read(&path).expect("an object");
            let name = object_name(&fsverity_digest(&bytes));
            assert_eq!(path, dir.join(&name), "the object has another name");
            names.push(name);
        }
    }
    names.sort();
    names
}

#[track_caller]
fn assert_refused<T>(made: Result<T, Error>, content: usize) {
    let error = made.err().expect("the wrong digest is refused");
    let said = error.to_string();
    let place = format!("content {content}, whose files 'weald check' names");
    assert!(
        said.contains(&place) && said.contains(OTHER_DIGEST),
        "{said}"
    );
}

// Would catch: an object that gets the name that the image promises, or an image that names an
// object by a wrong digest; also where the digest is that of another file of the tree.
#[test]
fn a_wrong_digest_is_refused_and_leaves_no_wrong_object() {
    let temp = tempfile::tempdir().expect("directory");
    let right = Parts::verity();
    for content in OBJECT_CONTENTS {
        let objects = temp.path().join(format!("objects-{content}"));
        let mut wrong = Parts::verity();
        wrong.fsverity[content][31] ^= 1;
        let made = export(&wrong, &objects);
        assert_eq!(made.as_ref().map_err(Error::kind), Err(ErrorKind::Corrupt));
        assert_refused(made, content);
        let left = objects_in(&objects);
        for digest in [right.fsverity[content], wrong.fsverity[content]] {
            assert!(!left.contains(&object_name(&digest)), "{left:?}");
        }
        // The remaining objects serve the right image.
        let mut expected = OBJECT_CONTENTS.map(|at| object_name(&right.fsverity[at]));
        expected.sort();
        let bytes = export(&right, &objects).expect("right digests");
        assert_eq!(objects_in(&objects), expected);
        assert!(bytes == export(&Parts::base(), &objects).expect("computed digests"));
    }
}

// Would catch: a content whose promised object is there, with the bytes of another image, and that
// is not read because of it.
#[test]
fn a_digest_of_an_object_of_another_length_is_refused() {
    let temp = tempfile::tempdir().expect("directory");
    let objects = temp.path().join("objects");
    export(&Parts::verity(), &objects).expect("right digests");
    let before = objects_in(&objects);
    let mut wrong = Parts::verity();
    wrong.fsverity[2] = wrong.fsverity[0];
    assert_refused(export(&wrong, &objects), 2);
    assert_eq!(objects_in(&objects), before);
}

// Would catch: a view that is complete although its making was refused, so that the next mount
// uses it.
#[test]
fn a_view_with_a_wrong_digest_is_not_made() {
    let temp = tempfile::tempdir().expect("directory");
    let path = temp.path().join("cache");
    let cache = ViewCache::open(&path).expect("a cache");
    let options = ViewOptions {
        verity: VerityPolicy::Off,
        thread_count: 2,
        memory_len: 1 << 20,
        limit: ViewLimit::NONE,
        is_cancelled: &|| false,
    };
    let mut wrong = Parts::verity();
    wrong.fsverity[2][0] ^= 0x80;
    let image = open(wrong.bytes()).expect("an image");
    for _ in 0..2 {
        let made = kernel::view(&image, &cache, &options).map(|_| ());
        assert_refused(made, 2);
        let images = fs::read_dir(path.join("images")).expect("images");
        assert_eq!(images.count(), 0, "a metadata image or a record was left");
        let name = object_name(&wrong.fsverity[2]);
        assert!(!objects_in(&path.join("objects")).contains(&name));
    }
    let image = open(Parts::verity().bytes()).expect("an image");
    kernel::view(&image, &cache, &options).expect("right digests");
}
