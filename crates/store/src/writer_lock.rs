//! The lock of a store's one writer.

use crate::disk::{Access, LocalFile};
use crate::layout;
use crate::store::Store;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weald_format::{Error, ErrorKind, Result};

/// What a command that only reads a volume calls itself: nobody may change the store meanwhile.
pub const READER_OF_VOLUME: &str = "reading a volume";

/// How long others wait for such a command: most of them list a directory or read a file.
const READER_PATIENCE: Duration = Duration::from_secs(30);

/// How long a writer may take to write its name.
const NAME_PATIENCE: Duration = Duration::from_millis(500);

/// Time between two looks.
const INTERVAL: Duration = Duration::from_millis(20);

/// Locks `store` for a single writer, and waits for a command that reads a volume. Returns also
/// whether the writer before failed or was killed.
pub(crate) fn lock(store: &Store, writer_name: &str) -> Result<(Arc<dyn LocalFile>, bool)> {
    let shown = store.disk.shown();
    let file = match store.disk.open(layout::LOCK, Access::Write) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let what = format!(
                "{shown}/{}: is missing: 'weald store salvage {shown}' makes it again",
                layout::LOCK
            );
            return Err(Error::not_found(what));
        }
        other => other.map_err(explain_denied)?,
    };
    let start = Instant::now();
    while !file.try_lock(0, true)? {
        let mut text = vec![0; file.len()?.min(512) as usize];
        let writer = match file.read_at(&mut text, 0) {
            Ok(()) => String::from_utf8_lossy(&text).trim_end().to_owned(),
            Err(_) => String::new(),
        };
        let holder = if writer.is_empty() {
            "another process"
        } else {
            &writer
        };
        let is_reader = holder.contains(READER_OF_VOLUME);
        // One that has just come has not written its name yet, and one that goes has taken it away.
        let is_unnamed = writer.is_empty() || text.len() <= 1;
        let is_new = is_unnamed && start.elapsed() < NAME_PATIENCE;
        if is_new || is_reader && start.elapsed() < READER_PATIENCE {
            std::thread::sleep(INTERVAL);
            continue;
        }
        let verb = if is_reader { "read" } else { "written" };
        let way = if holder.contains("(weald mount") {
            "unmount it, or try again when it has ended"
        } else {
            "try again when it has ended"
        };
        let what = format!("{shown}: is being {verb} by {holder}: {way}");
        return Err(Error::new(ErrorKind::Busy, what));
    }
    store.repair_superblock()?;
    store.require_row_groups()?;
    // A writer that closed the tables in order left one byte.
    let is_left = file.len()? > 1;
    file.write_at(writer_name.as_bytes(), 0)?;
    file.set_len(writer_name.len() as u64)?;
    Ok((Arc::from(file), is_left))
}

/// Says what a writer needs, and that readers of images need less.
fn explain_denied(error: Error) -> Error {
    let (cause, way) = match error.io_source().map(std::io::Error::kind) {
        Some(std::io::ErrorKind::PermissionDenied) => (
            "Permission denied",
            "only a user who may write to the store's files can do this",
        ),
        Some(std::io::ErrorKind::ReadOnlyFilesystem) => (
            "Read-only file system",
            "this needs a store that can be written to: copy the store to another file system; \
             images and, with 'weald mount -o ro', volumes can be read where they are",
        ),
        _ => return error,
    };
    Error::new(ErrorKind::Io, format!("{error}: {cause}: {way}"))
}
