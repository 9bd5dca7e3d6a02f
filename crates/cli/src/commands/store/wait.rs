//! Waiting for another command that writes to a store.

use super::import_target::held;
use crate::writer_name::writer_name;
use clap::Args;
use std::path::Path;
use std::time::{Duration, Instant};
use weald_format::ErrorKind;
use weald_store::{Store, WriteOptions};

/// Time between two looks.
const INTERVAL: Duration = Duration::from_millis(100);

/// How long to wait.
#[derive(Args, Debug)]
pub(in crate::commands) struct WaitArgs {
    /// Wait so many seconds for another command that writes to the store
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 0,
        hide_short_help = true
    )]
    wait: u64,
}

impl WaitArgs {
    /// Waits until nobody writes to `store`, or the time is over: then the command fails as it
    /// does without waiting. The server of a mounted volume is not waited for: it does the work.
    pub(in crate::commands) fn until_free(&self, store: &Store) -> anyhow::Result<()> {
        until_free(store, Duration::from_secs(self.wait))
    }
}

/// As [`WaitArgs::until_free`], for at most `wait`.
pub(in crate::commands) fn until_free(store: &Store, wait: Duration) -> anyhow::Result<()> {
    let start = Instant::now();
    while start.elapsed() < wait {
        match store.write(WriteOptions::new(writer_name("store"))) {
            Err(error) if error.kind() == ErrorKind::Busy => {}
            // Another error is told by the command.
            done => {
                drop(done);
                // Threads of the writer may end a moment later, and have its lock until then.
                let own = std::process::id();
                while store.writers().contains(&own) && start.elapsed() < wait {
                    std::thread::sleep(INTERVAL / 10);
                }
                return Ok(());
            }
        }
        if held(Path::new(&store.shown()))?.is_some() {
            return Ok(());
        }
        std::thread::sleep(INTERVAL);
    }
    Ok(())
}
