//! Measures the metadata engine on rows of blocks: commits per second, growth of the file, and the
//! time to open it. `cargo run --release -p weald-store --example engine -- DIR`.
//!
//! DIR must be on the file system to be measured. Each row of the output is one way of writing
//! 200,000 rows of 64 bytes.

use std::sync::Arc;
use std::time::Instant;
use weald_store::disk::{Access, HostDisk, LocalFiles};
use weald_store::engine::redb::RedbEngine;
use weald_store::engine::{Batch, Engine, Table, key_of};

const ROWS: u64 = 200_000;
const CACHE_LEN: usize = 32 << 20;

/// Spreads `n` over all keys.
fn scattered(n: u64) -> u64 {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn open(disk: &HostDisk, name: &str, access: Access) -> RedbEngine {
    let file = disk.open(name, access).expect("open");
    RedbEngine::open(Arc::from(file), name.to_owned(), CACHE_LEN).expect("engine")
}

fn measure(disk: &HostDisk, label: &str, per_commit: u64, rows: u64, key: fn(u64) -> u64) {
    let name = "engine-example";
    let engine = open(disk, name, Access::Create);
    let start = Instant::now();
    let mut next = 0;
    while next < rows {
        let mut batch = Batch::default();
        for n in next..rows.min(next + per_commit) {
            batch.put(Table::Blocks, &key_of(key(n)), vec![n as u8; 64]);
        }
        next += per_commit;
        engine.commit(&batch).expect("commit");
    }
    let seconds = start.elapsed().as_secs_f64();
    drop(engine);
    let len = disk.open(name, Access::Read).expect("open").len();
    let start = Instant::now();
    let engine = open(disk, name, Access::Write);
    let opened = start.elapsed();
    drop(engine);
    println!(
        "{label:<34} {:>9.0} rows/s {:>7.0} commits/s {:>6.1} MB {:>6.1} ms to open",
        rows as f64 / seconds,
        rows.div_ceil(per_commit) as f64 / seconds,
        len.expect("length") as f64 / 1e6,
        opened.as_secs_f64() * 1e3,
    );
    disk.remove(name).expect("remove");
}

fn main() {
    let dir = std::env::args_os().nth(1).expect("a directory");
    let disk = HostDisk::new(std::path::Path::new(&dir));
    measure(&disk, "one row a commit, in order", 1, 500, |n| n);
    measure(&disk, "1,000 rows a commit, in order", 1000, ROWS, |n| n);
    measure(
        &disk,
        "65,536 rows a commit, in order",
        1 << 16,
        ROWS,
        |n| n,
    );
    measure(
        &disk,
        "1,000 rows a commit, scattered",
        1000,
        ROWS,
        scattered,
    );
    measure(
        &disk,
        "65,536 rows a commit, scattered",
        1 << 16,
        ROWS,
        scattered,
    );
}
