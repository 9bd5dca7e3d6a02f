//! Takes many snapshots of a volume with some files changed between, and prints what taking,
//! finding, listing and removing one, and a look-up in the oldest, cost at 1, 10, 100, … of them.
//!
//! usage: many_snapshots DIR [SNAPSHOTS [FILES [CHANGED]]]
#![forbid(unsafe_code)]

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weald_format::{FileKind, Ino};
use weald_store::Store;
use weald_store::disk::HostDisk;
use weald_vfs::{NewInode, WritableFs};
use weald_volume::{OpenOptions, Volume, VolumeOptions};

/// Times that each figure is measured; the median is shown.
const TRIES: u64 = 9;

type Outcome<T> = Result<T, Box<dyn Error>>;

fn number(at: usize, default: u64) -> Outcome<u64> {
    let found = std::env::args().nth(at);
    Ok(found.map_or(Ok(default), |text| text.parse())?)
}

fn failed(failure: weald_vfs::Failure) -> Box<dyn Error> {
    format!("{failure:?}").into()
}

/// The median time of some calls, milliseconds.
fn median(mut call: impl FnMut(u64) -> Outcome<()>) -> Outcome<f64> {
    let mut times = Vec::new();
    for no in 0..TRIES {
        let start = Instant::now();
        call(no)?;
        times.push(start.elapsed());
    }
    times.sort_unstable();
    let median: Duration = times.get(times.len() / 2).copied().unwrap_or_default();
    Ok(median.as_secs_f64() * 1e3)
}

fn main() -> Outcome<()> {
    let dir = std::env::args()
        .nth(1)
        .ok_or("usage: many_snapshots DIR [SNAPSHOTS [FILES [CHANGED]]]")?;
    let (count, files, changed) = (number(2, 10_000)?, number(3, 10_000)?, number(4, 10)?);
    let disk = HostDisk::new(Path::new(&dir));
    let store = Store::create(Arc::new(disk), [1; 16], 64 << 20)?;
    weald_volume::create(&store, "v", &VolumeOptions::default(), [1; 16], 0)?;
    let options = OpenOptions {
        background: false,
        ..OpenOptions::default()
    };
    let volume = Volume::open(&store, "v", options)?;
    let new = NewInode {
        kind: FileKind::Regular,
        permissions: 0o644,
        uid: 0,
        gid: 0,
        rdev: 0,
        target: b"",
        xattrs: &[],
    };
    let mut inos: Vec<Ino> = Vec::new();
    for number in 0..files {
        let name = number.to_string();
        let made = volume.create(Ino::ROOT, name.as_bytes(), &new, 1);
        inos.push(made.map_err(failed)?.ino);
    }
    volume.commit()?;
    let mut at = 0;
    let mut change = |round: u64| -> Outcome<()> {
        for _ in 0..changed {
            at = (at + 1) % files;
            if let Some(ino) = inos.get(at as usize) {
                let text = format!("{round:08}");
                volume.write(*ino, 0, text.as_bytes(), 1).map_err(failed)?;
            }
        }
        volume.commit()?;
        Ok(())
    };
    println!("{files} files, {changed} changed between two snapshots; milliseconds");
    println!(
        "snapshots take find list list-with-space stat-in-oldest remove-in-the-middle meta-bytes"
    );
    let mut shown = 1;
    for round in 1..=count {
        change(round)?;
        volume.take_snapshot(&format!("s{round}"), i128::from(round))?;
        if round != shown {
            continue;
        }
        shown = (shown * 10).min(count);
        let take = median(|no| {
            volume.take_snapshot(&format!("t{no}"), i128::from(round))?;
            Ok(())
        })?;
        for no in 0..TRIES {
            volume.remove_snapshot(&format!("t{no}"))?;
        }
        while volume.snapshot_step()? {}
        let middle = format!("s{}", round.div_ceil(2));
        let find = median(|_| {
            volume.open_snapshot(&middle)?;
            Ok(())
        })?;
        let list = median(|_| {
            volume.snapshots()?;
            Ok(())
        })?;
        let all = volume.snapshots()?;
        let ranges: Vec<_> = all.iter().map(|found| [found.no; 2]).collect();
        let spaces = median(|_| {
            volume.snapshot_spaces(&ranges)?;
            Ok(())
        })?;
        let stat = median(|no| {
            let oldest = volume.open_snapshot("s1")?;
            let at = (no + 1) * files / (TRIES + 1);
            if let Some(ino) = inos.get(at as usize) {
                oldest.stat(*ino).map_err(failed)?;
            }
            Ok(())
        })?;
        let remove = match round {
            0..100 => 0.0,
            _ => median(|no| {
                volume.remove_snapshot(&format!("s{}", round / 3 + no))?;
                while volume.snapshot_step()? {}
                Ok(())
            })?,
        };
        let meta = std::fs::metadata(Path::new(&dir).join("meta"))?.len();
        println!("{round} {take:.2} {find:.2} {list:.2} {spaces:.2} {stat:.2} {remove:.2} {meta}");
    }
    volume.close()?;
    Ok(())
}
