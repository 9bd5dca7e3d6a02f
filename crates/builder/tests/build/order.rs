//! Order of contents in the image, for every order option.

use crate::support::*;
use std::path::Path;
use weald_builder::{BuildOptions, Order, Silent, build_image};
use weald_format::{ErrorKind, ROOT_INODE};
use weald_image::{Image, OpenOptions};

/// Two versions of two unrelated files, and of one that did not change.
fn make(source: &Path) {
    for (version, seed) in [("v1", 1), ("v2", 2)] {
        std::fs::create_dir_all(source.join(version).join("deep")).unwrap();
        for (name, text_seed) in [("deep/a", 10), ("deep/b", 20)] {
            let mut content = text(text_seed, 60_000);
            content.extend_from_slice(&text(seed, 100));
            std::fs::write(source.join(version).join(name), content).unwrap();
        }
        std::fs::write(source.join(version).join("same"), text(30, 1000)).unwrap();
    }
}

fn options(order: Order) -> BuildOptions {
    BuildOptions { order, ..quick() }
}

/// Paths of the source in the order of their contents in the image.
fn laid_out(image: &Path) -> Vec<&'static str> {
    let image = Image::open_path(image, 0, &OpenOptions::default()).unwrap();
    let id = |path: &str| {
        let mut ino = ROOT_INODE;
        let mut content = None;
        for name in path.split('/') {
            let inode = image.lookup(ino, name.as_bytes()).unwrap().unwrap();
            (ino, content) = (inode.ino, inode.content);
        }
        content.unwrap()
    };
    let mut paths = [
        "v1/deep/a",
        "v1/deep/b",
        "v1/same",
        "v2/deep/a",
        "v2/deep/b",
    ];
    paths.sort_by_key(|path| id(path));
    paths.to_vec()
}

/// Would catch: orders without effect, that depend on threads, or that change the tree.
#[test]
fn contents_have_the_requested_order() {
    let scratch = Scratch::tmpfs("64m");
    let source = scratch.dir("source");
    make(&source);
    let (image, other) = (scratch.path().join("image"), scratch.path().join("other"));
    let list = |paths: &[&str]| Order::List(paths.iter().map(|p| p.as_bytes().to_vec()).collect());
    let by_name = [
        "v1/deep/a",
        "v2/deep/a",
        "v1/deep/b",
        "v2/deep/b",
        "v1/same",
    ];
    let expected = [
        (
            Order::Path,
            [
                "v1/same",
                "v1/deep/a",
                "v1/deep/b",
                "v2/deep/a",
                "v2/deep/b",
            ],
        ),
        (Order::Name, by_name),
        (Order::ReversePath, by_name),
        (
            list(&["v2/same", "v2/deep", "nothing", "v1/deep/b"]),
            [
                "v1/same",
                "v2/deep/a",
                "v2/deep/b",
                "v1/deep/b",
                "v1/deep/a",
            ],
        ),
    ];
    let mut digests = Vec::new();
    for (order, paths) in expected {
        let mut options = options(order);
        digests.push(build(&source, &image, &options).tree_digest);
        assert_eq!(laid_out(&image), paths, "{:?}", options.order);
        assert_same(&image, &source);
        options.threads = 1;
        build(&source, &other, &options);
        assert!(std::fs::read(&image).unwrap() == std::fs::read(&other).unwrap());
    }
    digests.dedup();
    assert_eq!(digests.len(), 1);
}

/// Would catch: similar contents that are stored apart, and an order that depends on threads or
/// changes the tree.
#[test]
fn similar_contents_are_neighbours() {
    let scratch = Scratch::tmpfs("64m");
    let source = scratch.dir("source");
    make(&source);
    let (image, other) = (scratch.path().join("image"), scratch.path().join("other"));
    let mut digests = vec![build(&source, &image, &options(Order::Path)).tree_digest];
    for (order, threads) in [
        (Order::Similarity, 1),
        (Order::Similarity, 4),
        (Order::Nilsimsa, 4),
        (Order::Nilsimsa, 1),
    ] {
        let mut options = options(order);
        options.threads = threads;
        digests.push(build(&source, &image, &options).tree_digest);
        let paths = laid_out(&image);
        let place = |path: &str| paths.iter().position(|p| *p == path).unwrap();
        for name in ["deep/a", "deep/b"] {
            let (one, two) = (place(&format!("v1/{name}")), place(&format!("v2/{name}")));
            assert_eq!(one.abs_diff(two), 1, "{paths:?}");
        }
    }
    assert_eq!(std::fs::read(&image).unwrap(), {
        let mut options = options(Order::Nilsimsa);
        options.threads = 4;
        build(&source, &other, &options);
        std::fs::read(&other).unwrap()
    });
    digests.dedup();
    assert_eq!(digests.len(), 1);
}

/// Would catch: a list for another tree that is accepted silently.
#[test]
fn a_list_that_names_nothing_is_refused() {
    let scratch = Scratch::tmpfs("64m");
    let source = scratch.dir("source");
    make(&source);
    let image = scratch.path().join("image");
    let order = Order::List([b"v3".to_vec(), b"v1/deep/".to_vec()].into());
    let error = build_image(&source, &image, false, &options(order), &Silent).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("names no file"), "{error}");
    // An empty tree has no order.
    let empty = scratch.dir("empty");
    build(
        &empty,
        &image,
        &options(Order::List([b"v3".to_vec()].into())),
    );
}
