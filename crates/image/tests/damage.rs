//! Damage after an image was opened, small caches, and the report of damage by path.

mod support;

use std::sync::{Arc, RwLock};
use support::*;
use weald_format::container::RecordType;
use weald_format::entries::EntryKind;
use weald_format::pages::Template;
use weald_format::{ByteLen, Result};
use weald_image::{Image, OpenOptions};
use weald_io::ReadAt;

/// Storage whose bytes a test can damage.
struct Rotting(RwLock<Vec<u8>>);

impl Rotting {
    fn flip(&self, bit: usize) {
        self.0.write().unwrap()[bit / 8] ^= 1 << (bit % 8);
    }
}

impl ReadAt for Rotting {
    fn len(&self) -> u64 {
        self.0.read().unwrap().len() as u64
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.0.read().unwrap().read_exact_at(buf, offset)
    }
}

fn open_rotting(bytes: &[u8], cache_len: u64) -> (Arc<Rotting>, Image) {
    let storage = Arc::new(Rotting(RwLock::new(bytes.to_vec())));
    let options = OpenOptions {
        cache_len: ByteLen(cache_len),
        ..OpenOptions::default()
    };
    let image = Image::open(storage.clone(), &options).unwrap();
    (storage, image)
}

/// Bytes that an open image does not read again: superblock, directory and footer.
fn is_read_once(bytes: &[u8], byte: usize) -> bool {
    let footer = &bytes[bytes.len() - 128..];
    let directory_offset = u64::from_le_bytes(footer[16..24].try_into().unwrap()) as usize;
    byte < 64 || byte >= directory_offset
}

#[test]
fn later_damage_is_found_once_the_caches_are_dropped() {
    let bytes = Parts::base().bytes();
    let (storage, image) = open_rotting(&bytes, 1 << 20);
    let whole = read_everything(&image).unwrap();
    for bit in 0..bytes.len() * 8 {
        assert_eq!(read_everything(&image).unwrap(), whole);
        storage.flip(bit);
        image.drop_caches();
        match read_everything(&image) {
            Ok(shown) => assert!(is_read_once(&bytes, bit / 8) && shown == whole, "bit {bit}"),
            Err(error) => assert!(error.place().is_some(), "bit {bit}: {error}"),
        }
        storage.flip(bit);
        image.drop_caches();
    }
}

#[test]
fn without_any_cache_every_read_is_verified() {
    let bytes = Parts::overlay().bytes();
    let (storage, image) = open_rotting(&bytes, 0);
    let whole = read_everything(&image).unwrap();
    for bit in (0..bytes.len() * 8).step_by(3) {
        storage.flip(bit);
        match read_everything(&image) {
            Ok(shown) => assert!(shown == whole, "bit {bit}: other things than were written"),
            Err(error) => assert!(error.place().is_some(), "bit {bit}: {error}"),
        }
        storage.flip(bit);
    }
    assert_eq!(read_everything(&image).unwrap(), whole);
}

/// Would catch: idle blocks that are kept, or the eviction of blocks in use.
#[test]
fn unread_blocks_leave_the_cache() {
    let bytes = Parts::base().bytes();
    let (storage, image) = open_rotting(&bytes, 1 << 20);
    read_everything(&image).unwrap();
    // The first block, which is in the cache.
    storage.flip((64 + 64) * 8);
    image.evict_idle_blocks();
    read_everything(&image).unwrap();
    image.evict_idle_blocks();
    image.evict_idle_blocks();
    assert!(read_everything(&image).is_err());
}

#[test]
fn a_failed_check_does_not_outlive_the_damage() {
    let bytes = Parts::base().bytes();
    let (storage, image) = open_rotting(&bytes, 1 << 20);
    storage.flip((64 + 64) * 8);
    assert!(!check(&image, false).1.is_clean());
    storage.flip((64 + 64) * 8);
    assert!(check(&image, false).1.is_clean());
    read_everything(&image).unwrap();
}

#[test]
fn damage_is_named_by_the_paths_that_it_hits_and_no_others() {
    let bytes = Parts::base().bytes();
    // The second block begins behind superblock, first header, first block, second header.
    let in_second_block = 64 + 64 + 120 + 64;
    for (byte, expected) in [
        (64 + 64, vec!["a", "b", "d/x"]),
        (in_second_block, vec!["b", "d/x", "h1", "h2"]),
    ] {
        let mut bad = bytes.clone();
        bad[byte] ^= 1;
        let image = open(bad).unwrap();
        for digests_only in [true, false] {
            let (findings, report) = check(&image, digests_only);
            let mut named = paths(&findings);
            named.sort();
            assert_eq!(named, expected, "digests only: {digests_only}");
            assert_eq!(
                (report.path_count, rules(&findings)),
                (expected.len() as u64, vec!["F-3.15"])
            );
        }
    }
}

#[test]
fn a_directory_that_cannot_be_listed_is_named_itself() {
    let parts = Parts::base();
    let mut bytes = parts.bytes();
    let mut attributes_at = None;
    for at in 0..bytes.len() - 5 {
        if bytes[at..].starts_with(b"WRec") && bytes[at + 4] == RecordType::Attributes as u8 {
            attributes_at = Some(at);
        }
    }
    bytes[attributes_at.unwrap() + 64] ^= 1;
    let (findings, report) = check(&open(bytes).unwrap(), false);
    assert_eq!(paths(&findings), [""]);
    assert_eq!(report.path_count, 1);
}

#[test]
fn damage_in_2_pow_60_places_is_counted_but_not_walked() {
    let mut parts = Parts::base();
    let template = |entry_start, entry_count, subtree_count, directory_count| Template {
        entry_start,
        entry_count,
        subtree_count,
        directory_count,
    };
    parts.entries = vec![entry("a", EntryKind::File, 0)];
    parts.templates = vec![template(0, 1, 1, 0)];
    for level in 0..60 {
        parts.entries.push(entry("a", EntryKind::Directory, level));
        parts.entries.push(entry("b", EntryKind::Directory, level));
        let below = parts.templates[level as usize].subtree_count;
        parts
            .templates
            .push(template(1 + level * 2, 2, 2 + 2 * below, 2));
    }
    let below = parts.templates[60].subtree_count;
    parts.entries.push(entry("", EntryKind::Directory, 60));
    parts.templates.push(template(121, 1, 1 + below, 1));
    parts.name_count = 1 + below;
    parts.links.clear();
    let mut bytes = parts.bytes();
    bytes[64 + 64] ^= 1;
    let (findings, report) = check(&open(bytes).unwrap(), false);
    assert_eq!((paths(&findings).len(), report.path_count), (20, 1 << 60));
    assert!(
        paths(&findings).iter().all(|p| p.len() == 60 * 2 + 1),
        "{:?}",
        paths(&findings)
    );
}
