//! Threads that work for an open store until its volumes are closed.

use std::thread;
use weald_format::{Error, Result};

/// Starts a thread of this name. Whoever waits for its end keeps something that it uses.
///
/// # Errors
/// `Io` if the thread does not start.
pub fn start(name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
    let spawned = thread::Builder::new().name(name.into()).spawn(work);
    spawned.map(drop).map_err(|e| Error::io("a thread", e))
}
