//! Effect of SIGINT and SIGTERM on a command that takes long.

use anyhow::Context;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Returns a flag that the first SIGINT or SIGTERM sets. A second signal kills the process, as it
/// would without a handler, even if a thread waits in the kernel or in a script.
pub fn interrupt_flag() -> anyhow::Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // The order matters: at the first signal, the conditional default must run before the flag
        // is set.
        let ending = signal_hook::flag::register_conditional_default(signal, Arc::clone(&flag));
        let raising = signal_hook::flag::register(signal, Arc::clone(&flag));
        ending.and(raising).context("signal handler")?;
    }
    Ok(flag)
}
