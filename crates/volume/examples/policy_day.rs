//! A day of snapshots by a policy, compressed: a snapshot each 20 seconds of the day, of which the
//! newest 72 stay, with a share of the files changed between. Removals run in the background, as
//! on a mount. Prints the figures that say whether they keep up.
//!
//! usage: policy_day DIR [FILES [PER_MILLE [SNAPSHOTS [PACE]]]]
//!
//! PACE (100): milliseconds from one snapshot to the next at least; 100 make a day of 7 minutes.
#![forbid(unsafe_code)]

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use weald_format::{FileKind, Ino};
use weald_store::Store;
use weald_store::disk::HostDisk;
use weald_vfs::{NewInode, WritableFs};
use weald_volume::{OpenOptions, OpenStore, PolicyStep, Volume, VolumeOptions, properties};

/// Nanoseconds of the day between two snapshots.
const PERIOD: i128 = 20_000_000_000;
/// Time between two turns of the thread that removes.
const TURN: Duration = Duration::from_millis(200);
/// Files of a directory.
const DIR_FILES: u64 = 1000;

type Outcome<T> = Result<T, Box<dyn Error>>;

fn number(at: usize, default: u64) -> Outcome<u64> {
    let found = std::env::args().nth(at);
    Ok(found.map_or(Ok(default), |text| text.parse())?)
}

fn new(kind: FileKind) -> NewInode<'static> {
    NewInode {
        kind,
        permissions: 0o755,
        uid: 0,
        gid: 0,
        rdev: 0,
        target: b"",
        xattrs: &[],
    }
}

fn failed(failure: weald_vfs::Failure) -> Box<dyn Error> {
    format!("{failure:?}").into()
}

fn make_files(volume: &Volume, count: u64) -> Outcome<Vec<Ino>> {
    let (mut files, mut dir) = (Vec::new(), Ino::ROOT);
    for number in 0..count {
        let name = number.to_string();
        if number % DIR_FILES == 0 {
            let made = volume.create(Ino::ROOT, name.as_bytes(), &new(FileKind::Directory), 1);
            dir = made.map_err(failed)?.ino;
        }
        let made = volume.create(dir, name.as_bytes(), &new(FileKind::Regular), 1);
        let ino = made.map_err(failed)?.ino;
        volume.write(ino, 0, name.as_bytes(), 1).map_err(failed)?;
        files.push(ino);
    }
    volume.commit()?;
    Ok(files)
}

fn percentile(times: &mut [Duration], per_mille: usize) -> Duration {
    times.sort_unstable();
    let at = times.len() * per_mille / 1000;
    times
        .get(at.min(times.len().saturating_sub(1)))
        .copied()
        .unwrap_or_default()
}

fn main() -> Outcome<()> {
    let dir = std::env::args()
        .nth(1)
        .ok_or("usage: policy_day DIR [FILES [PER_MILLE [SNAPSHOTS [PACE]]]]")?;
    let (files, per_mille, snapshots) = (number(2, 100_000)?, number(3, 10)?, number(4, 4320)?);
    let store = Store::create(Arc::new(HostDisk::new(Path::new(&dir))), [1; 16], 64 << 20)?;
    weald_volume::create(&store, "v", &VolumeOptions::default(), [1; 16], 0)?;
    // Without its own thread, which would look at the present time.
    let options = OpenOptions {
        background: false,
        ..OpenOptions::default()
    };
    let shared = OpenStore::open(&store, &options)?;
    let volume = Volume::open_in(&shared, "v", options)?;
    let inos = make_files(&volume, files)?;
    let policy = b"every=20s last=72";
    let set = volume.set_xattr(
        Ino::ROOT,
        properties::SNAPSHOTS,
        policy,
        weald_vfs::XattrMode::Set,
        1,
    );
    set.map_err(failed)?;
    volume.commit()?;
    let changed = (files * per_mille / 1000).max(1);
    let (mut behind, mut backlog_max) = (0u64, 0);
    let (mut writes, mut takes) = (Vec::new(), Vec::new());
    let mut plain = Vec::new();
    let begun = Instant::now();
    let is_over = Arc::new(AtomicBool::new(false));
    let (remover, ends) = (volume.clone(), is_over.clone());
    // As the thread of a mount does it.
    let remover = thread::spawn(move || {
        while !ends.load(Ordering::Relaxed) {
            thread::sleep(remover.pause_of_removals().unwrap_or(TURN));
            remover.remove_snapshots_for_a_while();
        }
    });
    let pace = Duration::from_millis(number(5, 100)?);
    let mut next = Instant::now();
    for round in 0..snapshots {
        thread::sleep(next.saturating_duration_since(Instant::now()));
        next = Instant::now() + pace;
        for at in 0..changed {
            let file = (at * (files / changed) + round) % files;
            let Some(ino) = inos.get(file as usize) else {
                continue;
            };
            let start = Instant::now();
            let text = format!("{round:08}");
            volume.write(*ino, 0, text.as_bytes(), 1).map_err(failed)?;
            let times = if round < 72 { &mut plain } else { &mut writes };
            times.push(start.elapsed());
        }
        let start = Instant::now();
        match volume.follow_snapshot_policy((i128::from(round) + 1) * PERIOD)? {
            PolicyStep::Taken => takes.push(start.elapsed()),
            PolicyStep::Behind(_) => behind += 1,
            PolicyStep::Nothing => {}
        }
        let engine_backlog = volume.removed_snapshots()?;
        backlog_max = backlog_max.max(engine_backlog);
    }
    let seconds = begun.elapsed().as_secs_f64();
    println!("{snapshots} times {changed} of {files} files changed, in {seconds:.1} s");
    println!(
        "snapshots taken {}, skipped because removals were behind {behind}",
        takes.len()
    );
    println!("most removals under way {backlog_max}");
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    println!(
        "a snapshot: median {:.1} ms, 99% {:.1} ms",
        ms(percentile(&mut takes, 500)),
        ms(percentile(&mut takes, 990))
    );
    println!(
        "a write: 99% {:.3} ms before the first removal, {:.3} ms after",
        ms(percentile(&mut plain, 990)),
        ms(percentile(&mut writes, 990))
    );
    println!("snapshots at the end {}", volume.snapshots()?.len());
    is_over.store(true, Ordering::Relaxed);
    remover
        .join()
        .map_err(|_| "the thread that removes panicked")?;
    volume.close()?;
    Ok(())
}
