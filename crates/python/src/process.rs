//! What a forked process lacks: the threads of its parent.

use std::path::Path;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

/// The process whose threads wait for servers; 0 before there are any.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Whether `image` is read by threads that a parent of this process started and that this process
/// lacks. If there are none yet, those that opening it starts are of this process.
pub fn lacks_threads_for(image: &Path) -> bool {
    if !weald_remote::is_url(image) {
        return false;
    }
    let this = process::id();
    let before = PROCESS.compare_exchange(0, this, Ordering::Relaxed, Ordering::Relaxed);
    before.is_err_and(|owner| owner != this)
}
