//! Chains of images of which each is the base image of the next.

mod support;

use std::path::Path;
use support::*;
use weald_format::ContentId;
use weald_format::container::RecordType;
use weald_format::directory::{Base, Category, Stream};
use weald_format::limits::EXTENTS_PER_PAGE;
use weald_format::pages::{BaseRun, ExtentPage, ExtentRun};
use weald_image::{CheckOptions, Image, OpenOptions, generations};

/// Would catch: a chain of forged images that exhausts the reader's stack, descriptors or time.
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
    // Rule "F-22.1": a base image is missing; "F-22.2": there are too many.
    std::fs::remove_file(path(2)).unwrap();
    let error = Image::open_path(&path(4), 0, &OpenOptions::default()).err();
    assert!(error.unwrap().to_string().contains("F-22.1"));
}

/// Logical bytes of [`Parts::base`], and its extents.
const LOGICAL_LEN: u64 = 1160;
const EXTENT_COUNT: usize = 3;

/// The image of [`Parts::base`] with the extents `runs` and the base image at `below`.
fn over(below: &Path, runs: Vec<BaseRun>) -> Vec<u8> {
    let below_image = Image::open_path(below, 0, &OpenOptions::default()).unwrap();
    let base = Base {
        image_digest: below_image.summary().image_digest,
        name: below.file_name().unwrap().as_encoded_bytes().to_vec(),
        stream_count: below_image.directory().streams.len() as u64,
    };
    let mut parts = Parts::base();
    parts.edit_records = Some(Box::new(move |records| {
        let is_extents = |r: &&mut Raw| r.record_type == RecordType::Extents;
        let page = records.iter_mut().find(is_extents).unwrap();
        let own: Vec<_> = runs.iter().copied().map(ExtentRun::Base).collect();
        let items = runs.iter().map(|r| r.len).sum();
        let bytes = ExtentPage::encode_runs(&own, &mut vec![0]);
        *page = Raw::plain(RecordType::Extents, bytes, items);
    }));
    parts.edit_directory = Some(Box::new(move |directory| {
        let stream = Stream {
            category: Category::Base,
            block_len_max: 4096,
        };
        let streams = (0..base.stream_count).map(|_| stream);
        directory.streams.extend(streams);
        directory.bases.push(base.clone());
    }));
    parts.bytes()
}

/// Would catch: runs of a base image that give other bytes, or that cost more than an extent page.
#[test]
fn runs_of_a_base_are_its_extents_and_no_more() {
    let temp = tempfile::tempdir().unwrap();
    let path = |name: &str| temp.path().join(name);
    std::fs::write(path("base"), Parts::base().bytes()).unwrap();
    let open = |name: &str| Image::open_path(&path(name), 0, &OpenOptions::default()).unwrap();
    let put = |name: &str, below: &str, runs: Vec<BaseRun>| {
        std::fs::write(path(name), over(&path(below), runs)).unwrap();
        open(name)
    };
    let run = |start, len| BaseRun {
        base: 0,
        start,
        len,
    };
    let check = CheckOptions {
        digests_only: false,
        threads: 1,
        path_count_max: 10,
    };
    // One run for everything, and two runs that meet inside a content.
    let whole = put("one", "base", vec![run(0, LOGICAL_LEN)]);
    let cut = put("two", "base", vec![run(0, 70), run(70, LOGICAL_LEN - 70)]);
    for image in [&whole, &cut] {
        let mut findings = Vec::new();
        image.check(&check, &mut |f| findings.push(format!("{f:?}")));
        assert_eq!(findings, Vec::<String>::new());
    }
    let mut extents = Vec::new();
    let visit = &mut |extent| {
        extents.push(extent);
        Ok(())
    };
    whole.each_extent_of(ContentId(2), visit).unwrap();
    assert_eq!(extents.len(), 2, "{extents:?}");
    assert_eq!(whole.own_range_of(ContentId(0)).unwrap(), None);
    assert_eq!(
        open("base").own_range_of(ContentId(0)).unwrap(),
        Some(0..100)
    );

    let rule = |image: Image| {
        let error = image.each_extent_of(ContentId(0), &mut |_| Ok(()));
        error.unwrap_err().to_string()
    };
    let most = EXTENTS_PER_PAGE / EXTENT_COUNT;
    let many = |count: usize| vec![run(0, LOGICAL_LEN); count];
    put("most", "base", many(most))
        .each_extent_of(ContentId(0), &mut |_| Ok(()))
        .unwrap();
    for (runs, below, wanted) in [
        (many(most + 1), "base", "F-11.6"),
        (vec![run(LOGICAL_LEN - 10, 100)], "base", "F-11.4"),
        (vec![run(1 << 60, 100)], "base", "F-11.4"),
        (
            vec![BaseRun {
                base: 1,
                ..run(0, 100)
            }],
            "base",
            "F-11.2",
        ),
        (vec![run(0, LOGICAL_LEN)], "one", "F-22.3"),
    ] {
        let text = rule(put("forged", below, runs));
        assert!(text.contains(wanted), "{wanted}: {text}");
    }
}
