//! This program before an image: `weald_runtime` starts what is in it, and this command mounts and
//! extracts.

use crate::commands::dead;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use weald_format::Result;
use weald_runtime::{Carried, Program, itself};

/// Places of the small runtime, from the directory of this program.
const RUNTIMES: [&str; 2] = ["weald-runtime", "../libexec/weald/weald-runtime"];

/// The command `weald` before an image.
pub struct Whole;

impl Program for Whole {
    fn mounting(&self, image: Carried<'_>, dir: &Path) -> Command {
        let mut mount = itself("weald");
        mount.args(["mount", "--isolated", "-q", "-o"]);
        mount.arg(format!("offset={}", image.offset));
        mount.arg("--").arg(image.file).arg(dir);
        mount
    }

    fn extraction(
        &self,
        image: Carried<'_>,
        target: &Path,
        patterns: &[OsString],
        is_quiet: bool,
    ) -> Command {
        let mut extract = itself("weald");
        extract.arg("extract");
        if is_quiet {
            extract.arg("-q");
        }
        extract.arg("--offset").arg(image.offset.to_string());
        extract.arg("--").arg(image.file).arg(target).args(patterns);
        extract
    }

    fn take_away_dead(&self, dir: &Path) -> Result<()> {
        dead::take_away(dir)
    }

    fn notes(&self) -> &str {
        "WEALD_AS_ITSELF=1                 be weald: WEALD_AS_ITSELF=1 ./APP ls --offset auto \
         ./APP\n"
    }
}

/// The small runtime that is installed with this program.
pub fn installed_runtime() -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    let dir = own.parent()?;
    let mut places = RUNTIMES.iter().map(|place| dir.join(place));
    places.find(|place| place.is_file())
}
