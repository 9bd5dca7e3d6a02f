//! Mounts of images on storage that fails, returns wrong bytes, is slow or hangs. The tests run as
//! root and need `/dev/fuse`.
#![allow(missing_docs)]

mod support;

use parking_lot::Mutex;
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use support::{Door, Live, Opener, errno, public_dir, wait_until};
use tempfile::TempDir;
use weald_builder::{BuildOptions, Silent, build_image};
use weald_format::{ByteLen, Error, Result};
use weald_image::{Image, OpenOptions};
use weald_io::{FileSource, ReadAt};

const EIO: i32 = 5;

/// Number of files in the tree; each has its own blocks.
const FILE_COUNT: u64 = 12;
const FILE_LEN: usize = 1 << 20;

/// Fault of reads that overlap the faulty range of the image.
#[derive(Clone)]
enum Fault {
    None,
    /// The read fails.
    Fails,
    /// The read succeeds with wrong bytes.
    Lies,
    /// The read is slow.
    Slow(Duration),
    /// The read hangs until the door opens.
    Hangs(Arc<Door>),
}

/// Storage of an image file with a fault from offset `from` on.
struct FaultyStorage {
    file: FileSource,
    fault: Mutex<(Fault, std::ops::Range<u64>)>,
}

impl FaultyStorage {
    fn set(&self, fault: Fault, range: std::ops::Range<u64>) {
        *self.fault.lock() = (fault, range);
    }
}

impl ReadAt for FaultyStorage {
    fn len(&self) -> u64 {
        self.file.len()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let (fault, range) = self.fault.lock().clone();
        let is_hit = offset < range.end && offset + buf.len() as u64 > range.start;
        match fault {
            Fault::Fails if is_hit => {
                let error = std::io::Error::from_raw_os_error(EIO);
                return Err(Error::io("read of the disk", error));
            }
            Fault::Slow(time) if is_hit => std::thread::sleep(time),
            Fault::Hangs(door) if is_hit => door.pass(),
            Fault::Lies if is_hit => {
                self.file.read_exact_at(buf, offset)?;
                let at = range.start.saturating_sub(offset) as usize;
                buf[at.min(buf.len() - 1)] ^= 0x40;
                return Ok(());
            }
            _ => {}
        }
        self.file.read_exact_at(buf, offset)
    }
}

/// An image of incompressible, distinct files, so that each has a range of its own.
struct Ground {
    base: TempDir,
}

impl Ground {
    fn image(&self) -> PathBuf {
        self.base.path().join("image")
    }
}

fn name(index: u64) -> String {
    format!("file{index:02}")
}

fn content(index: u64) -> Vec<u8> {
    weald_testkit::Rng::new(index + 1).bytes(FILE_LEN)
}

static GROUND: LazyLock<Ground> = LazyLock::new(|| {
    let ground = Ground { base: public_dir() };
    let source = ground.base.path().join("source");
    fs::create_dir(&source).expect("mkdir");
    for index in 0..FILE_COUNT {
        fs::write(source.join(name(index)), content(index)).expect("write");
    }
    let mut options = BuildOptions::level(1).expect("level");
    options.block_len = 256 << 10;
    build_image(&source, &ground.image(), false, &options, &Silent).expect("build");
    ground
});

/// The mounted image and its storage; faults go into the third quarter.
fn live(words: &str) -> (Live, Arc<FaultyStorage>) {
    let file = FileSource::open(&GROUND.image(), 0).expect("image");
    let storage = Arc::new(FaultyStorage {
        file,
        fault: Mutex::new((Fault::None, 0..0)),
    });
    let options = OpenOptions {
        cache_len: ByteLen(16 << 20),
        prefetch_threads: 1,
        ..OpenOptions::default()
    };
    let image = Image::open(Arc::clone(&storage) as _, &options).expect("open");
    (Live::new(image, words), storage)
}

/// An offset in the middle of the data; the test does not assume which files it affects.
fn third_quarter(storage: &FaultyStorage) -> std::ops::Range<u64> {
    let quarter = storage.len() / 4;
    2 * quarter..2 * quarter + 1
}

/// Reads every file and checks its bytes; returns the indices of files that fail with EIO.
fn failing(live: &Live) -> Vec<u64> {
    let mut failing = Vec::new();
    for index in 0..FILE_COUNT {
        match fs::read(live.path(&name(index))) {
            Ok(bytes) => assert!(bytes == content(index), "{} reads wrong", name(index)),
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(EIO), "{}", name(index));
                failing.push(index);
            }
        }
    }
    failing
}

/// Would catch: one bad block that breaks the mount, other files or the directory, and wrong bytes
/// in a reader.
#[test]
fn a_bad_place_is_an_error_of_its_file_alone_and_heals() {
    for fault in [Fault::Fails, Fault::Lies] {
        let (live, storage) = live("");
        storage.set(fault, third_quarter(&storage));
        let failed = failing(&live);
        // The fault is in one block; the block may hold parts of two files.
        assert!((1..=2).contains(&failed.len()), "{failed:?}");
        assert_eq!(
            fs::read_dir(&live.dir).expect("list").count() as u64,
            FILE_COUNT
        );
        let errors = live.mount.as_ref().expect("mounted").counters().error_count;
        assert!(errors >= failed.len() as u64);
        storage.set(Fault::None, 0..0);
        assert_eq!(failing(&live), [0u64; 0], "a failure is not remembered");
    }
}

#[test]
fn a_disk_that_fails_everywhere_fails_what_is_not_known_yet() {
    let (live, storage) = live("");
    assert_eq!(fs::read(live.path(&name(0))).expect("read"), content(0));
    storage.set(Fault::Fails, 0..u64::MAX);
    assert_eq!(fs::read(live.path(&name(0))).expect("cached"), content(0));
    assert_eq!(errno(fs::read(live.path(&name(9)))), EIO);
    storage.set(Fault::None, 0..0);
    assert_eq!(fs::read(live.path(&name(9))).expect("read"), content(9));
}

#[test]
fn a_slow_disk_is_slow_and_right() {
    let (live, storage) = live("workers=2");
    storage.set(Fault::Slow(Duration::from_millis(20)), 0..u64::MAX);
    std::thread::scope(|scope| {
        for index in 0..4 {
            let path = live.path(&name(index));
            scope.spawn(move || assert!(fs::read(path).expect("read") == content(index)));
        }
    });
}

/// Would catch: a hanging read of one file that blocks the rest of the mount.
#[test]
fn a_disk_that_hangs_holds_only_those_who_wait_for_it() {
    let (live, storage) = live("workers=2");
    // Free workers serve cached data; other reads wait for the disk.
    assert_eq!(fs::read(live.path(&name(0))).expect("read"), content(0));
    let door = Arc::new(Door::default());
    door.close();
    storage.set(Fault::Hangs(Arc::clone(&door)), third_quarter(&storage));
    std::thread::scope(|scope| {
        let _opener = Opener(Arc::clone(&door));
        let readers: Vec<_> = (0..FILE_COUNT)
            .map(|index| {
                let path = live.path(&name(index));
                scope.spawn(move || fs::read(path).expect("read") == content(index))
            })
            .collect();
        wait_until("somebody hangs", || door.waiting_count() >= 1);
        for index in 0..FILE_COUNT {
            let found = fs::metadata(live.path(&name(index))).expect("stat");
            assert_eq!(found.len() as usize, FILE_LEN);
        }
        assert_eq!(fs::read(live.path(&name(0))).expect("cached"), content(0));
        door.open();
        for reader in readers {
            assert!(reader.join().expect("no panic"));
        }
    });
}
