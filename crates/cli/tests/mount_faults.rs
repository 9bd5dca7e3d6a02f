//! Mounts whose image or disk fails, and mounts whose server is killed. Reads of damaged data must
//! give an error, other reads the right bytes, and no read wrong bytes. Needs root, `/dev/fuse` and
//! loop devices.
#![allow(missing_docs)]

use rustix::fs::Advice;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use weald_testkit::Rng;
use weald_testkit::mounts::{Ground, Server, eventually, finish};

/// Number of files in the tree. All have the same length and random bytes, which are stored raw, so
/// that the test can find them in the image.
const FILE_COUNT: usize = 16;
const FILE_LEN: usize = 256 << 10;

/// Block size. A file has blocks of its own; its first and last blocks are shared with a neighbour.
const BLOCK_SIZE: &str = "64K";

const EIO: i32 = 5;
const ENOTCONN: i32 = 107;
const ECONNABORTED: i32 = 103;

/// A tree of random files, its image, and a mount point.
struct Case {
    ground: Ground,
    files: Vec<Vec<u8>>,
    image: PathBuf,
    dir: PathBuf,
}

fn random_files(seed: u64) -> Vec<Vec<u8>> {
    let mut rng = Rng::new(seed);
    (0..FILE_COUNT).map(|_| rng.bytes(FILE_LEN)).collect()
}

fn name(index: usize) -> String {
    format!("f{index:02}")
}

impl Case {
    fn new() -> Self {
        let ground = Ground::new();
        let (image, dir) = (ground.image("image"), ground.dir("mnt"));
        let files = random_files(1);
        build(&ground, &files, &image);
        Self {
            ground,
            files,
            image,
            dir,
        }
    }

    fn path(&self, index: usize) -> PathBuf {
        self.dir.join(name(index))
    }

    fn serve(&self) -> Server {
        self.ground.serve(&self.image, &self.dir, &[])
    }

    /// Offset in the image of the byte `at` of a file.
    fn place(&self, index: usize, at: usize) -> u64 {
        let image = fs::read(&self.image).expect("read");
        let wanted = &self.files[index][at..at + 32];
        let found = image
            .windows(wanted.len())
            .position(|bytes| bytes == wanted);
        found.expect("stored raw") as u64
    }

    fn write_image(&self, bytes: &[u8], at: u64) {
        let file = OpenOptions::new()
            .write(true)
            .open(&self.image)
            .expect("open");
        file.write_all_at(bytes, at).expect("write");
    }

    /// Reads a file without the page cache. Wrong bytes, or an error other than EIO, fail the test.
    #[track_caller]
    fn is_whole(&self, index: usize) -> bool {
        match read_afresh(&self.path(index)) {
            Ok(bytes) => {
                assert!(
                    bytes == self.files[index],
                    "{} has other bytes",
                    name(index)
                );
                true
            }
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(EIO), "{}: {error}", name(index));
                false
            }
        }
    }

    #[track_caller]
    fn whole(&self) -> Vec<usize> {
        (0..FILE_COUNT)
            .filter(|index| self.is_whole(*index))
            .collect()
    }

    /// Checks all names, sizes and kinds.
    #[track_caller]
    fn listing_goes_on(&self) {
        let entries = fs::read_dir(&self.dir).expect("directory");
        let lens = entries.map(|entry| entry.and_then(|e| e.metadata()).expect("attributes").len());
        assert_eq!(lens.collect::<Vec<_>>(), [FILE_LEN as u64; FILE_COUNT]);
    }

    fn umount(&self, mut server: Server) -> String {
        self.ground.umount(&self.dir);
        let status = server.wait();
        assert!(status.success(), "{status}: {}", server.log());
        server.log()
    }
}

fn build(ground: &Ground, files: &[Vec<u8>], image: &Path) {
    let source = ground.dir("source");
    for (index, bytes) in files.iter().enumerate() {
        fs::write(source.join(name(index)), bytes).expect("write");
    }
    let words = [
        "--level",
        "1",
        "--order",
        "path",
        "--block-size",
        BLOCK_SIZE,
    ];
    ground.build(&source, image, &words);
}

fn read_afresh(path: &Path) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)?;
    let mut bytes = vec![0; FILE_LEN];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

fn all() -> Vec<usize> {
    (0..FILE_COUNT).collect()
}

// Would catch a block that is served without a check of its digest, damage that affects other
// blocks, a log that grows without limit, and an error that is cached.
#[test]
fn an_overwritten_image_fails_only_in_the_damaged_blocks() {
    let case = Case::new();
    let server = case.serve();
    assert!(case.is_whole(0));
    // Only this file uses the middle block; one wrong bit in it makes the whole block invalid.
    let damage: [(usize, &[u8]); 2] = [(5, &[0; 1000]), (9, &[])];
    for (index, bytes) in damage {
        let at = case.place(index, FILE_LEN / 2);
        match bytes {
            [] => case.write_image(&[case.files[index][FILE_LEN / 2] ^ 0x10], at),
            bytes => case.write_image(bytes, at),
        }
    }
    let rest: Vec<usize> = all()
        .into_iter()
        .filter(|index| ![5, 9].contains(index))
        .collect();
    for _ in 0..3 {
        assert_eq!(case.whole(), rest);
        case.listing_goes_on();
    }
    // The undamaged parts of the same file are readable.
    let mut front = vec![0; 4096];
    let file = File::open(case.path(5)).expect("open");
    file.read_exact_at(&mut front, 0).expect("not damaged here");
    assert!(front == case.files[5][..4096]);
    drop(file);
    for (index, _) in damage {
        let (from, to) = (FILE_LEN / 2, FILE_LEN / 2 + 1000);
        let at = case.place(index, FILE_LEN / 2 + 2000) - 2000;
        case.write_image(&case.files[index][from..to], at);
    }
    assert_eq!(case.whole(), all(), "nothing remembers damage that is gone");
    let log = case.umount(server);
    assert_eq!(log.lines().count(), 2, "one line for each place: {log}");
    assert!(
        log.lines()
            .all(|line| line.contains("digest") && line.contains("byte")),
        "{log}"
    );
}

// Would catch a mapping of the image (SIGBUS), a short read that counts as data, and a server that
// ends with its image.
#[test]
fn a_truncated_image_gives_errors_until_it_is_restored() {
    let case = Case::new();
    let server = case.serve();
    case.listing_goes_on();
    let image = fs::read(&case.image).expect("read");
    assert!(case.is_whole(0));
    let cut = case.place(8, FILE_LEN / 2);
    let file = OpenOptions::new()
        .write(true)
        .open(&case.image)
        .expect("open");
    for len in [cut, 4096, 0] {
        file.set_len(len).expect("truncate");
        for _ in 0..2 {
            let whole = case.whole();
            assert!(
                whole.len() < FILE_COUNT,
                "cut at {len}, and still {whole:?}"
            );
            assert_eq!(
                fs::metadata(case.path(3)).expect("known").len(),
                FILE_LEN as u64
            );
        }
    }
    case.write_image(&image, 0);
    assert_eq!(case.whole(), all(), "nothing remembers a cut that is gone");
    let log = case.umount(server);
    assert!(
        log.lines().count() < 40 * FILE_COUNT,
        "a line for each place, not for each request: {log}"
    );
    assert!(!log.contains("panicked"), "{log}");
}

// Would catch an image that is opened again by its path.
#[test]
fn an_image_replaced_or_deleted_stays_mounted() {
    let case = Case::new();
    let other = random_files(2);
    build(&case.ground, &other, &case.ground.image("other"));
    case.ground.mount(&case.image, &case.dir, &[]);
    fs::rename(case.ground.image("other"), &case.image).expect("rename");
    assert_eq!(case.whole(), all());
    // The path now leads to the new image, which can be mounted beside the old one.
    let beside = case.ground.dir("beside");
    case.ground.mount(&case.image, &beside, &[]);
    assert!(fs::read(beside.join(name(3))).expect("read") == other[3]);
    fs::remove_file(&case.image).expect("unlink");
    assert_eq!(case.whole(), all());
    assert!(fs::read(beside.join(name(7))).expect("read") == other[7]);
    let third = case.ground.dir("third");
    let mut command = case.ground.command();
    let refused = finish(command.arg("mount").arg(&case.image).arg(&third)).expect(2);
    assert!(refused.stderr.contains("image.weald"), "{}", refused.stderr);
    for dir in [&case.dir, &beside] {
        case.ground.umount(dir);
    }
}

/// Readers that run until they are stopped or get an error; drop stops them.
struct Readers<'a> {
    stop: &'a AtomicBool,
}

impl Drop for Readers<'_> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Reads random pieces of the mount until an error occurs or `stop` is set; counts the reads. Wrong
/// bytes fail the test.
fn read_pieces(case: &Case, seed: u64, stop: &AtomicBool, count: &AtomicU64) -> Option<i32> {
    let mut rng = Rng::new(seed);
    while !stop.load(Ordering::Relaxed) {
        let index = rng.below(FILE_COUNT as u64) as usize;
        let (at, len) = (
            rng.below(FILE_LEN as u64 - 70_000) as usize,
            1 + rng.below(70_000) as usize,
        );
        let mut bytes = vec![0; len];
        let read = File::open(case.path(index)).and_then(|file| {
            rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)?;
            file.read_exact_at(&mut bytes, at as u64)
        });
        match read {
            Ok(()) => assert!(
                bytes == case.files[index][at..at + len],
                "{}: other bytes at {at}",
                name(index)
            ),
            Err(error) => return error.raw_os_error(),
        }
        count.fetch_add(1, Ordering::Relaxed);
    }
    None
}

// Would catch wrong bytes while the server ends, readers that block for ever, and a mount that
// cannot be removed.
#[test]
fn a_killed_server_gives_errors_and_leaves_a_removable_mount() {
    let case = Case::new();
    for round in 0..3 {
        let mut server = case.serve();
        let (stop, count) = (AtomicBool::new(false), AtomicU64::new(0));
        let errors: Vec<Option<i32>> = std::thread::scope(|scope| {
            let _readers = Readers { stop: &stop };
            let threads: Vec<_> = (0..4)
                .map(|seed| {
                    scope.spawn({
                        let (case, stop, count) = (&case, &stop, &count);
                        move || read_pieces(case, round * 10 + seed, stop, count)
                    })
                })
                .collect();
            eventually("reads", || count.load(Ordering::Relaxed) > 200);
            server.kill();
            eventually("errors", || {
                threads.iter().all(|thread| thread.is_finished())
            });
            threads
                .into_iter()
                .map(|thread| thread.join().expect("right bytes"))
                .collect()
        });
        let is_expected =
            |error: &Option<i32>| matches!(error, Some(EIO | ENOTCONN | ECONNABORTED));
        assert!(errors.iter().all(is_expected), "{errors:?}");
        assert!(case.ground.is_mounted(&case.dir), "a mount of nobody's");
        case.ground.umount(&case.dir);
    }
    let server = case.serve();
    assert_eq!(case.whole(), all());
    case.umount(server);
}

// Would catch an unmount that removes the tree while a process reads it.
#[test]
fn a_busy_mount_stays_until_its_last_user_leaves() {
    let case = Case::new();
    let server = case.serve();
    let (stop, count) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let held = File::open(case.path(0)).expect("open");
        let readers = Readers { stop: &stop };
        let threads: Vec<_> = (0..2)
            .map(|seed| {
                scope.spawn({
                    let (case, stop, count) = (&case, &stop, &count);
                    move || read_pieces(case, seed, stop, count)
                })
            })
            .collect();
        eventually("reads", || count.load(Ordering::Relaxed) > 20);
        let refused = finish(case.ground.command().arg("umount").arg(&case.dir)).expect(2);
        assert!(refused.stderr.contains("in use"), "{}", refused.stderr);
        let before = count.load(Ordering::Relaxed);
        eventually("more reads", || count.load(Ordering::Relaxed) > before + 20);
        drop(readers);
        for thread in threads {
            assert_eq!(thread.join().expect("right bytes"), None);
        }
        let mut word = [0; 100];
        held.read_exact_at(&mut word, 1000).expect("still served");
        assert!(word == case.files[0][1000..1100]);
    });
    case.umount(server);
}

/// Runs a command of the system as root.
fn system(words: &[&str], paths: &[&Path]) -> Result<String, String> {
    let said = finish(Command::new(words[0]).args(&words[1..]).args(paths));
    match said.code {
        Some(0) => Ok(said.text().trim().to_owned()),
        _ => Err(said.stderr),
    }
}

/// Mounts a new ext4 of 64 MiB in a file; returns the file and the mount point.
fn small_disk(ground: &Ground) -> (PathBuf, PathBuf) {
    let (disk, dir) = (ground.at("disk"), ground.dir("host"));
    File::create(&disk)
        .and_then(|file| file.set_len(64 << 20))
        .expect("file");
    system(&["mkfs.ext4", "-q", "-F", "-O", "^has_journal"], &[&disk]).expect("mkfs.ext4");
    system(&["mount", "-o", "loop"], &[&disk, &dir]).expect("a loop device");
    (disk, dir)
}

// Would catch disk errors that are returned as data, and a mount that does not survive them.
#[test]
fn a_shortened_disk_gives_errors_for_its_lost_end() {
    let mut case = Case::new();
    let (disk, host) = small_disk(&case.ground);
    let image = host.join("image.weald");
    fs::copy(&case.image, &image).expect("copy");
    case.image = image;
    // Unmount and mount again, so that no part of the image is cached. A child that another test
    // has just forked may hold a descriptor until its exec.
    eventually("the unmount", || system(&["umount"], &[&host]).is_ok());
    system(&["mount", "-o", "loop"], &[&disk, &host]).expect("mount");
    let server = case.serve();
    case.listing_goes_on();
    assert!(case.is_whole(0));
    let file = OpenOptions::new().write(true).open(&disk).expect("open");
    file.set_len(1 << 20).expect("truncate");
    for _ in 0..2 {
        assert!(case.whole().len() < FILE_COUNT);
        assert_eq!(
            fs::metadata(case.path(3)).expect("known").len(),
            FILE_LEN as u64
        );
    }
    let log = case.umount(server);
    assert!(log.contains("weald") && !log.contains("panicked"), "{log}");
}

/// Remounts. A child that another test has just forked may hold a written file open until its exec.
fn remount(options: &str, dir: &Path) {
    eventually(options, || {
        system(&["mount", "-o", options], &[dir]).is_ok()
    });
}

#[test]
fn a_file_system_remounted_under_an_image_changes_nothing() {
    let mut case = Case::new();
    let (_, host) = small_disk(&case.ground);
    let image = host.join("image.weald");
    fs::copy(&case.image, &image).expect("copy");
    case.image = image;
    let server = case.serve();
    for options in ["remount,ro", "remount,rw", "remount,ro,noatime"] {
        remount(options, &host);
        assert_eq!(case.whole(), all(), "{options}");
    }
    // A frozen file system, as during a snapshot, is still readable.
    remount("remount,rw", &host);
    system(&["fsfreeze", "-f"], &[&host]).expect("freeze");
    let whole = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| case.whole()));
    system(&["fsfreeze", "-u"], &[&host]).expect("thaw");
    assert_eq!(whole.expect("right bytes"), all());
    case.umount(server);
}

/// A loop device that is freed on drop.
struct Loop(PathBuf);

impl Loop {
    fn over(file: &Path) -> Self {
        let made = system(&["losetup", "--find", "--show", "--read-only"], &[file]);
        Self(made.expect("a loop device").into())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = system(&["losetup", "--detach"], &[&self.0]);
    }
}

// Would catch an image that must be a regular file, and device errors that are returned as data.
#[test]
fn a_failing_device_gives_errors_for_its_bad_sectors() {
    let case = Case::new();
    // Devices end at a whole sector; an image ends at any byte, and may begin after other data.
    let image = fs::read(&case.image).expect("read");
    let front = 4096 + (512 - image.len() % 512) % 512;
    let backing = case.ground.at("backing");
    fs::write(&backing, [vec![0; front], image].concat()).expect("write");
    let device = Loop::over(&backing);
    // Without its own cache the server reads from the device each time.
    let server = case
        .ground
        .serve(&device.0, &case.dir, &["-o", "offset=auto,cachesize=0"]);
    case.listing_goes_on();
    assert!(case.is_whole(0));
    let file = OpenOptions::new().write(true).open(&backing).expect("open");
    let damaged = front as u64 + case.place(5, FILE_LEN / 2);
    weald_sys::punch_hole(&file, damaged / 4096 * 4096..damaged / 4096 * 4096 + 4096)
        .expect("punch");
    drop_pages(&device.0);
    let rest: Vec<usize> = all().into_iter().filter(|index| *index != 5).collect();
    assert_eq!(case.whole(), rest, "where a hole was punched");
    file.set_len(front as u64 + case.place(8, 0))
        .expect("truncate");
    drop_pages(&device.0);
    assert!(case.whole().len() < rest.len());
    assert_eq!(
        fs::metadata(case.path(3)).expect("known").len(),
        FILE_LEN as u64
    );
    let log = case.umount(server);
    assert!(!log.contains("panicked"), "{log}");
}

/// Drops the kernel's cached pages of a device.
fn drop_pages(device: &Path) {
    let file = File::open(device).expect("device");
    rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).expect("fadvise");
}
