//! Alone in its process, because it measures all memory of the process.
#![cfg(all(target_os = "linux", target_env = "gnu"))]

use std::sync::{Barrier, Mutex};
use weald_sys::{resident_len, share_heap};

const PIECE_LEN: usize = 64 << 10;
const PIECE_COUNT: usize = 256;
const THREAD_COUNT: usize = 8;

/// Catches: a process that keeps, for each of its threads, memory that only one of them needs at a
/// time.
#[test]
fn memory_freed_by_one_thread_is_reused_by_others() {
    share_heap();
    let before = resident_len().unwrap();
    let (started, turn) = (Barrier::new(THREAD_COUNT), Mutex::new(()));
    std::thread::scope(|scope| {
        for _ in 0..THREAD_COUNT {
            scope.spawn(|| {
                let own = vec![1u8; 100];
                started.wait();
                let _turn = turn.lock().unwrap();
                let mut pieces: Vec<Vec<u8>> =
                    (0..PIECE_COUNT).map(|_| vec![1; PIECE_LEN]).collect();
                // A live allocation behind all others keeps the heap from shrinking.
                std::mem::forget(pieces.pop());
                drop((pieces, own));
            });
        }
    });
    let more = resident_len().unwrap() - before;
    let most = (PIECE_LEN * PIECE_COUNT * 3) as u64;
    assert!(more < most, "{more} of {most}");
}
