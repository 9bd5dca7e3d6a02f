//! Reads the rows of a volume, past those that cannot be read.

use std::ops::ControlFlow;
use weald_format::volume::split_key;
use weald_format::{ErrorKind, Result, VolumeNo};
use weald_store::engine::{Engine, Table};

/// Gets the key and the value of a row.
pub type VisitRow<'a> = dyn FnMut(&[u8], &[u8]) -> Result<()> + 'a;

/// Visits the rows of a table of a volume that can be read. Returns what is wrong with the others.
pub fn each_row(
    engine: &dyn Engine,
    (table, volume_no): (Table, VolumeNo),
    visit: &mut VisitRow<'_>,
) -> Result<Vec<String>> {
    let prefix = volume_no.to_be_bytes();
    let (mut wrong, mut damaged) = (Vec::new(), Vec::new());
    let read = engine.scan_readable(
        table,
        &prefix,
        &mut |key, value| {
            let (of, number, _) = split_key(key)?;
            if of != volume_no {
                return Ok(ControlFlow::Break(()));
            }
            match visit(key, value) {
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    let name = table.name();
                    wrong.push(format!("table {name}, a row of {number}: {error}"));
                }
                other => other?,
            }
            Ok(ControlFlow::Continue(()))
        },
        &mut |key, error| {
            // A group that begins with rows of another volume may have none of this one. If it
            // has, the other rows tell.
            if let Some(rest) = key.strip_prefix(&prefix) {
                let ino = rest.first_chunk().map_or(0, |ino| u64::from_be_bytes(*ino));
                damaged.push(format!(
                    "table {}: rows from inode {ino} on cannot be read: {}",
                    table.name(),
                    error.what()
                ));
            }
            Ok(())
        },
    );
    wrong.append(&mut damaged);
    match read {
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            wrong.push(format!("table {}: {}", table.name(), error.what()));
            Ok(wrong)
        }
        other => other.map(|()| wrong),
    }
}
