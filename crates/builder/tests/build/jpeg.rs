//! JPEG files: stored as Lepton files if that is smaller, and restored exactly in every case.

use crate::support::*;
use weald_builder::{BuildOptions, Categories};
use weald_image::{Image, OpenOptions};
use weald_testkit::jpeg::Jpeg;

fn options() -> BuildOptions {
    BuildOptions {
        memory_len: 512 << 20,
        categories: Categories {
            incompressible: true,
            jpeg: true,
            ..Categories::none()
        },
        ..quick()
    }
}

/// Would catch: a kind of picture that is not encoded, takes as much space as before, or changes;
/// data around pictures lost.
#[test]
fn pictures_are_restored_and_smaller() {
    let mut plan = Plan::default();
    let mut whole = 0;
    for is_color in [false, true] {
        for is_progressive in [false, true] {
            let jpeg = Jpeg {
                is_color,
                is_progressive,
                ..Jpeg::new(12, 9)
            };
            let data = jpeg.draw(1);
            whole += data.len() as u64;
            plan.file(format!("{is_color}-{is_progressive}.jpg"), data);
        }
    }
    let two = [Jpeg::new(12, 9).draw(2), Jpeg::new(7, 5).draw(3)].concat();
    whole += two.len() as u64;
    plan.file("two.jpg", [&two[..], &noise(1, 5000)].concat());
    let without = BuildOptions {
        categories: Categories {
            jpeg: false,
            ..options().categories
        },
        ..options()
    };
    let (with, _) = assert_recipes_save(&plan, &options(), &without, "pictures");
    assert_eq!(with.made_len, whole);
}

/// Would catch: data encoded by mistake, or not restored.
#[test]
fn broken_data_and_data_that_gains_nothing_is_stored_unchanged() {
    let whole = Jpeg::new(12, 9).draw(1);
    let mut plan = Plan::default();
    plan.file("cut.jpg", whole[..whole.len() - 1].to_vec());
    plan.file("magic.jpg", whole[..3].to_vec());
    plan.file("short.jpg", Jpeg::new(1, 1).draw(1));
    let mut large = whole.clone();
    let frame = large.windows(2).position(|w| w == b"\xff\xc0").unwrap();
    large[frame + 5..frame + 9].fill(0xff);
    plan.file("large.jpg", large);
    let scan = whole.windows(2).position(|w| w == b"\xff\xda").unwrap() + 14;
    let noise: Vec<u8> = noise(1, 20_000)
        .into_iter()
        .filter(|&b| b != 0xff)
        .collect();
    plan.file("noise.jpg", [&whole[..scan], &noise, b"\xff\xd9"].concat());
    assert_eq!(report_of(&plan, &options()).made_len, 0);
}

/// Would catch: pictures with flipped bits, which may still be valid, that are not restored.
#[test]
fn damaged_pictures_are_restored_exactly() {
    let whole = Jpeg::new(6, 6).draw(1);
    let mut plan = Plan::default();
    for n in 0..60 {
        let mut damaged = whole.clone();
        damaged[2 + n * (whole.len() - 2) / 60] ^= 1 << (n % 8);
        plan.file(format!("{n:02}.jpg"), damaged);
    }
    report_of(&plan, &options());
}

/// Would catch: a read that begins or ends within a picture and returns wrong bytes.
#[test]
fn any_part_can_be_read() {
    let data = [Jpeg::new(5, 5).draw(1), noise(2, 300)].concat();
    let mut plan = Plan::default();
    plan.file("a.jpg", data.clone());
    let scratch = Scratch::tmpfs("16m");
    let source = scratch.dir("source");
    plan.make(&source, 1);
    let target = scratch.path().join("image");
    assert!(build(&source, &target, &options()).made_len > 0);
    let image = Image::open_path(&target, 0, &OpenOptions::default()).unwrap();
    let inode = at(&image, "a.jpg").unwrap();
    for offset in (0..data.len()).step_by(7) {
        let mut found = vec![0; 40.min(data.len() - offset)];
        let len = image.read_at(&inode, offset as u64, &mut found).unwrap();
        assert!(len > 0 && found[..len] == data[offset..offset + len]);
    }
}

/// Would catch: pictures stored differently with another number of threads.
#[test]
fn images_do_not_depend_on_threads() {
    let mut plan = Plan::default();
    for n in 0..12 {
        plan.file(format!("{n:02}.jpg"), Jpeg::new(6, 6).draw(n / 2));
    }
    let scratch = Scratch::tmpfs("64m");
    let source = scratch.dir("source");
    plan.make(&source, 1);
    let images = [1, 4].map(|threads| {
        let target = scratch.path().join(threads.to_string());
        let options = BuildOptions {
            threads,
            ..options()
        };
        assert!(build(&source, &target, &options).made_len > 0);
        std::fs::read(target).unwrap()
    });
    assert!(images[0] == images[1]);
}
