//! Alone in its process, because it measures all memory of the process.
#![cfg(all(target_os = "linux", target_env = "gnu"))]

use weald_sys::{resident_len, trim_heap};

const PIECE_LEN: usize = 64 << 10;
const PIECE_COUNT: usize = 1024;

/// Catches: memory that a long-lived process never returns because a small live allocation lies
/// behind it.
#[test]
fn free_memory_between_live_allocations_is_returned() {
    let mut pieces: Vec<Vec<u8>> = (0..PIECE_COUNT).map(|_| vec![1; PIECE_LEN]).collect();
    let mut number = 0;
    pieces.retain(|_| {
        number += 1;
        number % 8 == 0
    });
    let before = resident_len().unwrap();
    trim_heap();
    let after = resident_len().unwrap();
    let freed = (PIECE_LEN * PIECE_COUNT) as u64 / 8 * 7;
    assert!(after + freed / 2 < before, "{before} {after}");
    assert!(pieces.iter().flatten().all(|byte| *byte == 1));
}
