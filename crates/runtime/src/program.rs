//! What a program that carries an image is, as far as the two programs differ.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use weald_format::Result;

/// Variable with which a program that carries an image is itself: `WEALD_AS_ITSELF=1 ./APP ls APP`.
pub const AS_ITSELF: &str = "WEALD_AS_ITSELF";

/// The image behind a program.
#[derive(Debug, Clone, Copy)]
pub struct Carried<'a> {
    /// The file that has both.
    pub file: &'a Path,
    /// Offset of the image, bytes.
    pub offset: u64,
}

/// A program that can stand before an image.
pub trait Program {
    /// The command that mounts the image on `dir` and ends when the mount is complete.
    fn mounting(&self, image: Carried<'_>, dir: &Path) -> Command;

    /// The command that extracts the image, or what `patterns` select of it, to `target`. Reports
    /// nothing but problems if `is_quiet`.
    fn extraction(
        &self,
        image: Carried<'_>,
        target: &Path,
        patterns: &[OsString],
        is_quiet: bool,
    ) -> Command;

    /// Takes away mounts on `dir` whose servers have died.
    ///
    /// # Errors
    /// A dead mount that cannot be unmounted.
    fn take_away_dead(&self, dir: &Path) -> Result<()>;

    /// Lines of the help about this program.
    fn notes(&self) -> &str;
}

/// This program, started again under the name `name` as itself.
pub fn itself(name: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0(name).env(AS_ITSELF, "1");
    command
}
