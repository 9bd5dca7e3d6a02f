//! Starting threads where there may be no more of them.

use std::thread::{Builder, Scope, ScopedJoinHandle};
use weald_format::{Error, Result};

/// Starts a thread of `scope`.
///
/// # Errors
/// `Io` where the system has no thread to give (`ulimit -u`, the limits of a container).
pub fn start<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>> {
    Builder::new()
        .spawn_scoped(scope, work)
        .map_err(|e| Error::io("starting a thread", e))
}
