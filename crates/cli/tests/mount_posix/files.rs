//! Open files and directories: locks, directory offsets, direct I/O, statfs.

use crate::sides::{Answer, Expected, Side, Sides};
use rustix::fs::{FlockOperation, Mode, OFlags, RawDir, SeekFrom};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use weald_testkit::Rng;

/// Entries of `many`: more than one readdir reply holds.
const ENTRY_COUNT: usize = 700;

fn make(root: &Path) {
    fs::write(root.join("file"), Rng::new(7).bytes(300_000)).expect("write");
    fs::create_dir(root.join("many")).expect("mkdir");
    for index in 0..ENTRY_COUNT {
        let name = format!("{index}-{}", "n".repeat(index % 200));
        fs::write(root.join("many").join(name), "").expect("write");
    }
}

fn open(side: &Side, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(&side.root, path, flags | OFlags::CLOEXEC, Mode::empty())
}

// Locks of one file conflict with each other, as those of several programs do, and with no others.
#[test]
fn files_can_be_locked() {
    let sides = Sides::new(make);
    let flock = |side: &Side, first, second| -> Answer {
        let [one, two] = [
            open(side, "file", OFlags::RDONLY)?,
            open(side, "file", OFlags::RDONLY)?,
        ];
        rustix::fs::flock(&one, first)?;
        rustix::fs::flock(&two, second).map(|()| String::new())
    };
    use FlockOperation::{NonBlockingLockExclusive as Exclusive, NonBlockingLockShared as Shared};
    let would_block = Expected::Refused(Errno::WOULDBLOCK);
    for (first, second, expected) in [
        (Shared, Shared, Expected::Done),
        (Shared, Exclusive, would_block),
        (Exclusive, Shared, would_block),
        (Exclusive, Exclusive, would_block),
    ] {
        sides.hold(
            &format!("flock {first:?}, then {second:?}"),
            expected,
            |side| flock(side, first, second),
        );
    }
    for (kind, expected) in [
        (Shared, Expected::Done),
        (Exclusive, Expected::Refused(Errno::BADF)),
    ] {
        sides.hold(&format!("fcntl {kind:?}"), expected, |side| {
            rustix::fs::fcntl_lock(open(side, "file", OFlags::RDONLY)?, kind)
                .map(|()| String::new())
        });
    }
    sides.finish();
}

/// Names from the current directory offset on, each with the offset after it.
fn names(dir: &OwnedFd) -> Result<Vec<(String, u64)>, Errno> {
    let mut buffer = [MaybeUninit::uninit(); 2048];
    let (mut entries, mut names) = (RawDir::new(dir, &mut buffer), Vec::new());
    while let Some(entry) = entries.next() {
        let entry = entry?;
        names.push((
            entry.file_name().to_string_lossy().into_owned(),
            entry.next_entry_cookie(),
        ));
    }
    Ok(names)
}

// Would catch an offset that leads to another entry, to an entry twice, or to the end.
#[test]
fn every_directory_offset_can_be_sought() {
    let sides = Sides::new(make);
    sides.hold("seekdir", Expected::Done, |side| {
        let dir = open(side, "many", OFlags::DIRECTORY)?;
        let all = names(&dir)?;
        let distinct: BTreeSet<&String> = all.iter().map(|(name, _)| name).collect();
        assert_eq!(
            (all.len(), distinct.len()),
            (ENTRY_COUNT + 2, ENTRY_COUNT + 2)
        );
        for index in (0..all.len()).step_by(23) {
            rustix::fs::seek(&dir, SeekFrom::Start(all[index].1))?;
            let rest = names(&dir)?;
            let is_rest = rest
                .iter()
                .map(|(name, _)| name)
                .eq(all[index + 1..].iter().map(|(name, _)| name));
            assert!(is_rest, "behind entry {index} of {}", side.path.display());
        }
        // The offsets are also valid for another open directory.
        let again = open(side, "many", OFlags::DIRECTORY)?;
        rustix::fs::seek(&again, SeekFrom::Start(all[300].1))?;
        assert_eq!(names(&again)?.len(), all.len() - 301);
        rustix::fs::seek(&again, SeekFrom::Start(0))?;
        Ok(format!("{} entries", names(&again)?.len()))
    });
    sides.hold(
        "read(2) of a directory",
        Expected::Refused(Errno::ISDIR),
        |side| {
            let mut byte = [0];
            rustix::io::read(open(side, "many", OFlags::RDONLY)?, &mut byte).map(|_| String::new())
        },
    );
    sides.finish();
}

#[test]
fn files_can_be_read_with_direct_io() {
    let sides = Sides::new(make);
    let expected = fs::read(sides.reference.path.join("file")).expect("read");
    let file = File::from(open(&sides.mounted, "file", OFlags::DIRECT).expect("open"));
    for (at, len) in [
        (0, 4096),
        (4096, 65536),
        (131_072, 131_072),
        (299_008, 4096),
        (300_000, 4096),
        (8192, 1 << 20),
    ] {
        let mut bytes = vec![0; len];
        let read = file.read_at(&mut bytes, at as u64).expect("read");
        let wanted = &expected[at.min(expected.len())..(at + len).min(expected.len())];
        // A file system may return fewer bytes than requested, but not zero.
        assert!(
            read <= wanted.len() && (read > 0 || wanted.is_empty()),
            "{read} bytes at {at}"
        );
        assert!(bytes[..read] == wanted[..read], "other bytes at {at}");
    }
    drop(file);
    sides.finish();
}

#[test]
fn statfs_describes_the_file_system() {
    let sides = Sides::new(make);
    let reported = rustix::fs::statvfs(&sides.mounted.path).expect("statvfs");
    assert!(
        reported
            .f_flag
            .contains(rustix::fs::StatVfsMountFlags::RDONLY)
    );
    assert_eq!(
        (
            reported.f_namemax,
            reported.f_bfree,
            reported.f_bavail,
            reported.f_ffree
        ),
        (255, 0, 0, 0)
    );
    assert!(reported.f_blocks * reported.f_frsize >= 300_000);
    assert!(reported.f_files >= ENTRY_COUNT as u64);
    sides.hold("flags and names", Expected::Done, |side| {
        let reported = rustix::fs::statvfs(&side.path)?;
        Ok(format!(
            "{} {}",
            reported.f_namemax,
            reported
                .f_flag
                .contains(rustix::fs::StatVfsMountFlags::RDONLY)
        ))
    });
    sides.finish();
}

// Reads at the end, after the end, and of odd lengths.
#[test]
fn reads_end_where_the_file_ends() {
    let sides = Sides::new(make);
    for (at, len) in [
        (0, 0),
        (0, 1),
        (299_999, 1),
        (299_999, 100),
        (300_000, 1),
        (300_001, 1),
        (1 << 40, 1),
        (1, 299_999),
    ] {
        sides.hold(&format!("{len} bytes at {at}"), Expected::Done, |side| {
            let mut bytes = vec![0; len];
            let read = rustix::io::pread(open(side, "file", OFlags::RDONLY)?, &mut bytes[..], at)?;
            Ok(format!("{read} {}", blake3::hash(&bytes)))
        });
    }
    for (from, expected) in [
        (SeekFrom::End(-1), Expected::Done),
        (SeekFrom::End(5), Expected::Done),
        (SeekFrom::Data(300_000), Expected::Refused(Errno::NXIO)),
        (SeekFrom::Hole(0), Expected::Done),
        (SeekFrom::Data(17), Expected::Done),
    ] {
        sides.hold(&format!("lseek {from:?}"), expected, |side| {
            rustix::fs::seek(open(side, "file", OFlags::RDONLY)?, from).map(|at| at.to_string())
        });
    }
    sides.finish();
}
