//! Compares the data and the holes of two files of equal length.

use crate::rng::Rng;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use weald_sys::Stat;

const PIECE_LEN: usize = 1 << 20;

/// Maximum length of a data run that is compared completely, bytes. A longer run is a hole that the
/// file system does not show; it is only probed.
const RUN_LEN_MAX: u64 = 1 << 30;

/// Number of probes of such a run.
const PROBE_COUNT: u64 = 1000;

/// Allowed difference in allocated blocks (of 512 bytes): file systems also store extents and
/// xattrs in blocks.
const BLOCK_SLACK: u64 = 64;

/// Offset of the first difference in `range`.
pub fn content_difference(files: &[File; 2], range: Range<u64>) -> io::Result<Option<u64>> {
    let mut buffers = [vec![0; PIECE_LEN], vec![0; PIECE_LEN]];
    let mut offset = range.start;
    while offset < range.end {
        let len = (range.end - offset).min(PIECE_LEN as u64) as usize;
        for (file, buffer) in files.iter().zip(&mut buffers) {
            file.read_exact_at(&mut buffer[..len], offset)?;
        }
        let [a, b] = &buffers;
        if a[..len] != b[..len] {
            let at = a[..len].iter().zip(&b[..len]).position(|(a, b)| a != b);
            return Ok(at.map(|at| offset + at as u64));
        }
        offset += len as u64;
    }
    Ok(None)
}

/// Offset of the first difference where either file has data. Common holes are not read.
pub fn data_difference(files: &[File; 2], len: u64) -> io::Result<Option<u64>> {
    for side in files {
        let mut from = 0;
        while let Some(run) = weald_sys::next_data(side, from, len)? {
            from = run.end;
            let difference = if run.end - run.start > RUN_LEN_MAX {
                probe(files, run)?
            } else {
                content_difference(files, run)?
            };
            if difference.is_some() {
                return Ok(difference);
            }
        }
    }
    Ok(None)
}

fn probe(files: &[File; 2], run: Range<u64>) -> io::Result<Option<u64>> {
    const PROBE_LEN: u64 = 64 << 10;
    let mut rng = Rng::new(run.start ^ run.end);
    let ends = [run.start, run.end - PROBE_LEN].into_iter();
    let inside = (0..PROBE_COUNT).map(|_| run.start + rng.below(run.end - run.start - PROBE_LEN));
    for offset in ends.chain(inside) {
        if let Some(difference) = content_difference(files, offset..offset + PROBE_LEN)? {
            return Ok(Some(difference));
        }
    }
    Ok(None)
}

/// Describes how holes and allocated space of two files differ.
pub fn hole_difference(files: &[File; 2], stats: [&Stat; 2]) -> io::Result<Vec<String>> {
    let mut differences = Vec::new();
    let mut from = [0; 2];
    loop {
        let next = |side: usize| weald_sys::next_data(&files[side], from[side], stats[side].size);
        let runs = [next(0)?, next(1)?];
        if runs[0] != runs[1] {
            let [a, b] = runs.map(|run| run.map_or("none".to_owned(), |run| format!("{run:?}")));
            differences.push(format!("data at {a} against {b}"));
            break;
        }
        match runs {
            [Some(a), Some(b)] => from = [a.end, b.end],
            _ => break,
        }
    }
    let [a, b] = stats.map(|stat| stat.blocks);
    if a.abs_diff(b) > BLOCK_SLACK + a.max(b) / 16 {
        differences.push(format!("{a} blocks against {b}"));
    }
    Ok(differences)
}
