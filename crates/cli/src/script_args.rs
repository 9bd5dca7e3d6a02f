//! Options of the script that chooses, orders and changes entries.

use crate::shape::SELECTION;
use clap::{Args, ValueHint};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use weald_builder::BuildOptions;
use weald_builder::script::{Script, ScriptLimits};

/// The script.
#[derive(Args, Debug)]
pub struct ScriptArgs {
    /// Lua script with one or more functions: filter(entry) decides about entries that the rules
    /// keep; owner(entry), mode(entry), xattrs(entry) and codec(entry) change them; order(entries)
    /// sets the order of contents
    #[arg(
        long,
        value_name = "FILE",
        value_hint = ValueHint::FilePath,
        hide_short_help = true,
        help_heading = SELECTION
    )]
    script: Option<PathBuf>,
    /// Time that all calls of the script may take together; then the build ends
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 300,
        value_parser = clap::value_parser!(u64).range(1..),
        requires = "script",
        hide_short_help = true,
        help_heading = SELECTION
    )]
    script_timeout: u64,
}

impl ScriptArgs {
    /// Whether there is one.
    pub fn is_given(&self) -> bool {
        self.script.is_some()
    }

    /// Loads the script into `options`, whose memory limit is set.
    ///
    /// # Errors
    /// As [`Script::load`].
    pub fn apply(&self, options: &mut BuildOptions) -> weald_format::Result<()> {
        if let Some(path) = &self.script {
            // A quarter of the memory limit: sorting takes about 400 bytes per entry.
            let limits = ScriptLimits {
                memory_len: options.memory_len / 4,
                time: Duration::from_secs(self.script_timeout),
            };
            options.script = Some(Arc::new(Script::load(path, &limits)?));
        }
        Ok(())
    }
}
