//! Images that lie on each other.

mod support;

use support::*;
use weald_format::directory::{Base, Category, Stream};
use weald_image::{Image, OpenOptions, generations};

/// Would catch: a chain of forged images that takes a reader's stack, descriptors or time.
#[test]
fn images_do_not_lie_on_each_other_without_end() {
    let temp = tempfile::tempdir().unwrap();
    let path = |n: u64| temp.path().join(format!("image{n}"));
    std::fs::write(path(0), Parts::base().bytes()).unwrap();
    for n in 1..30 {
        let image_digest = generations(&path(n - 1)).unwrap()[0].image_digest;
        let mut parts = Parts::base();
        parts.edit_directory = Some(Box::new(move |directory| {
            let stream = Stream {
                category: Category::Base,
                block_len_max: 4096,
            };
            directory.streams.extend((0..n).map(|_| stream));
            directory.bases.push(Base {
                image_digest,
                name: format!("image{}", n - 1).into_bytes(),
                stream_count: n,
            });
        }));
        std::fs::write(path(n), parts.bytes()).unwrap();
        match Image::open_path(&path(n), 0, &OpenOptions::default()) {
            Ok(image) => assert!(n <= 16, "{}", image.summary().image_digest),
            Err(error) => assert!(
                n > 16 && error.to_string().contains("F-22.2"),
                "{n}: {error}"
            ),
        }
    }
    // What the rules are called: "F-22.1" is where a base is missing, "F-22.2" where there are too many.
    std::fs::remove_file(path(2)).unwrap();
    let error = Image::open_path(&path(4), 0, &OpenOptions::default()).err();
    assert!(error.unwrap().to_string().contains("F-22.1"));
}
