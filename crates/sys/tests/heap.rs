//! Alone in its process: it looks at all memory that the process has.
#![cfg(all(target_os = "linux", target_env = "gnu"))]

use weald_sys::{resident_len, trim_heap};

const PIECE_LEN: usize = 64 << 10;
const PIECE_COUNT: usize = 1024;

/// Would catch: memory that a long-lived process holds for ever because something small lies behind
/// it.
#[test]
fn what_was_freed_between_what_lives_goes_back_to_the_system() {
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
