//! Arguments that several exports share: the target and its replacement, memory, threads, output.

use crate::open::{ImageArgs, refuse_stored_target};
use crate::parse;
use anyhow::bail;
use clap::Args;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use weald_format::ErrorKind;
use weald_image::Image;
use weald_io::OutputFile;
use weald_vfs::shown;

/// Arguments of commands that write an image of another program.
#[derive(Args, Debug)]
pub struct WriteArgs {
    /// Replace FILE if it exists
    #[arg(short, long)]
    pub force: bool,
    /// Number of threads, 0 for one per CPU
    #[arg(short, long, value_name = "COUNT", default_value_t = 0, value_parser = parse::threads)]
    pub threads: usize,
    #[command(flatten)]
    pub memory: ListMemory,
    /// Print nothing
    #[arg(short, long)]
    pub quiet: bool,
    /// Print one JSON object
    #[arg(long, conflicts_with = "quiet")]
    pub json: bool,
}

impl WriteArgs {
    /// Refuses a target in a store, and one that exists unless `--force` replaces it.
    pub fn check_target(&self, path: &Path) -> anyhow::Result<()> {
        refuse_stored_target(path)?;
        if self.force {
            Ok(())
        } else {
            refuse_existing(path)
        }
    }

    /// Gives the complete `target` its name.
    pub fn commit(&self, target: OutputFile) -> anyhow::Result<()> {
        match target.commit(self.force) {
            Err(error) if error.kind() == ErrorKind::Busy => bail!("{error}; --force replaces it"),
            other => Ok(other?),
        }
    }
}

/// Memory of commands that list the tree.
#[derive(Args, Debug)]
pub struct ListMemory {
    /// Memory limit of lists and cache; longer lists go to temporary files (default: 128M, and the
    /// limit of the cache)
    #[arg(short, long, value_name = "SIZE", value_parser = parse::size)]
    memory: Option<u64>,
}

/// Memory of lists without a limit.
const LISTS_MEMORY_LEN: u64 = 128 << 20;

impl ListMemory {
    /// Bytes for lists: a quarter of the limit. Threads and the allocator take another quarter.
    pub fn list_len(&self) -> u64 {
        self.memory.map_or(LISTS_MEMORY_LEN, |len| len / 4)
    }

    /// Opens the image with a cache of three eighths of the limit.
    pub fn open(&self, source: &ImageArgs) -> anyhow::Result<Image> {
        let mut source = source.clone();
        if let Some(len) = self.memory {
            source.trust.cache.get_or_insert(len / 8 * 3);
        }
        source.open()
    }
}

/// Refuses to replace the file at `path`.
fn refuse_existing(path: &Path) -> anyhow::Result<()> {
    let words = shown(path.as_os_str().as_bytes());
    match weald_io::refuse_existing(path) {
        Err(error) => bail!("{words}: {error}; --force replaces it"),
        Ok(()) => Ok(()),
    }
}
