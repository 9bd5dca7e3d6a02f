//! Measures the cost of reading an image: `reading IMAGE [THREADS]`. It reads every file
//! sequentially with this number of prefetch threads, reads 4 KiB at random offsets, and reads
//! cached data from several threads. It prints decoded bytes and seconds.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use weald_format::{ByteLen, FileKind};
use weald_image::{Image, Inode, OpenOptions, SharedCache};

/// Length of a request of the kernel, bytes.
const READ_LEN: usize = 128 << 10;
const RANDOM_COUNT: u64 = 2000;
const HIT_COUNT: u64 = 2_000_000;

fn files(image: &Image, dir: &Inode, found: &mut Vec<Inode>) {
    let mut below = Vec::new();
    let visit = &mut |_, _: &[u8], inode: &Inode| {
        match inode.kind {
            FileKind::Directory => below.push(inode.clone()),
            FileKind::Regular if inode.size.0 > 0 => found.push(inode.clone()),
            _ => {}
        }
        ControlFlow::Continue(())
    };
    image.read_dir(dir.ino, 0, visit).expect("directory");
    below.iter().for_each(|dir| files(image, dir, found));
}

fn measured(image: &Image, what: &str, work: impl FnOnce() -> u64) {
    let (before, start) = (image.decoded_len().0, Instant::now());
    let len = work();
    let seconds = start.elapsed().as_secs_f64();
    let decoded = image.decoded_len().0 - before;
    println!("{what}: {len} bytes, {decoded} decoded, {seconds:.3} s");
}

fn open(path: &Path, threads: usize, cache: &Arc<SharedCache>) -> Image {
    let options = OpenOptions {
        cache: Some(cache.clone()),
        prefetch_threads: threads,
        ..OpenOptions::default()
    };
    Image::open_path(path, 0, &options).expect("image")
}

fn main() {
    let mut args = std::env::args().skip(1);
    let path = args.next().expect("usage: reading IMAGE [THREADS]");
    let threads = args.next().map_or(0, |text| text.parse().expect("number"));
    let cache = SharedCache::new(ByteLen(256 << 20));
    let image = open(Path::new(&path), threads, &cache);
    let mut all = Vec::new();
    files(&image, &image.root().expect("root"), &mut all);
    measured(&image, "in order", || {
        let mut len = 0;
        for inode in &all {
            for at in (0..inode.size.0).step_by(READ_LEN) {
                len += image.read(inode, at, READ_LEN).expect("read").len() as u64;
            }
        }
        len
    });
    image.drop_caches();
    measured(&image, "at random, 4 KiB", || {
        let mut state = 1u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
            (state >> 33) % below
        };
        let mut len = 0;
        for _ in 0..RANDOM_COUNT {
            let inode = &all[random(all.len() as u64) as usize];
            let at = random(inode.size.0);
            len += image.read(inode, at, 4096).expect("read").len() as u64;
        }
        len
    });
    for readers in [1, 2, 4] {
        let inode = &all[0];
        measured(&image, &format!("hits of {readers} threads"), || {
            std::thread::scope(|scope| {
                for _ in 0..readers {
                    scope.spawn(|| {
                        (0..HIT_COUNT / readers)
                            .for_each(|_| drop(image.read(inode, 0, 4096).expect("read")));
                    });
                }
            });
            HIT_COUNT * 4096
        });
    }
    println!("{:?}", cache.counts());
}
