//! Which store sends to a place, after others have taken over.
//!
//! A store that takes over puts a file with an epoch of its own, and lists the items after that.
//! One that sends puts an item, and lists the epochs after that. So either the first sees the item,
//! or the second sees the epoch and does not count the item as sent. No item that was counted as
//! sent is lost, and of two stores only one can go on.

use super::place::{EPOCHS, Place, epoch_path, parse_epoch_name};
use super::record::{Record, write};
use crate::layout;
use crate::store::Store;
use weald_format::replica::Epoch;
use weald_format::store::Uuid;
use weald_format::{Error, ErrorKind, Result};

/// Most bytes of the text of an epoch.
const TEXT_LEN_MAX: u64 = 4096;
/// How often another epoch is tried while other stores take over.
const TRIES: u32 = 8;

/// The epochs of a place, sorted.
///
/// # Errors
/// `Io`.
fn epochs(place: &dyn Place) -> Result<Vec<(Epoch, Uuid)>> {
    let names = place.list(EPOCHS)?;
    let mut epochs: Vec<_> = names.iter().filter_map(|n| parse_epoch_name(n)).collect();
    epochs.sort_unstable();
    Ok(epochs)
}

/// Takes a place over for a store that has sent, or followed, in the epoch `after`. `id` must be
/// random; `text` says in messages which store it is. Returns its epoch.
///
/// # Errors
/// `Busy` if other stores take over at the same time; those of the place.
pub(super) fn take_over(place: &dyn Place, after: Epoch, id: Uuid, text: &str) -> Result<Epoch> {
    for _ in 0..TRIES {
        let last = epochs(place)?.last().map(|(epoch, _)| *epoch);
        let own = last.unwrap_or_default().max(after).next();
        place.put(&epoch_path(own, id), text.as_bytes())?;
        let is_taken = |(epoch, other): &(Epoch, Uuid)| *epoch >= own && *other != id;
        if !epochs(place)?.iter().any(is_taken) {
            return Ok(own);
        }
    }
    let what = format!("{}: other stores are being promoted, too", place.shown());
    Err(Error::new(ErrorKind::Busy, what))
}

/// Refuses to send to a place that another store has taken over, and notes that this store was
/// replaced.
///
/// # Errors
/// `Invalid` if it has; those of the place.
pub(super) fn refuse_replaced(store: &Store, place: &dyn Place, record: &Record) -> Result<()> {
    let last = epochs(place)?.pop();
    let Some((epoch, id)) = last.filter(|(epoch, _)| *epoch > record.epoch) else {
        return Ok(());
    };
    let text = place.read(&epoch_path(epoch, id), TEXT_LEN_MAX);
    let text = text.map_or_else(
        |_| "another store".to_owned(),
        |text| {
            let text = String::from_utf8_lossy(&text);
            let line = text.lines().next().unwrap_or_default();
            line.chars().filter(|c| !c.is_control()).collect()
        },
    );
    write(store, layout::REPLACED, text.as_bytes())?;
    let shown = store.disk.shown();
    Err(Error::invalid(format!(
        "{shown}: was replaced by {text}: nothing is written to it any more; 'weald replica follow \
         {place} {shown}' makes it a standby of the other one",
        place = record.place
    )))
}

#[cfg(test)]
mod tests {
    use super::super::place::DirPlace;
    use super::*;
    use crate::simulated_disk::SimDisk;
    use std::sync::Arc;

    // Would catch two stores that take over with one epoch.
    #[test]
    fn each_store_gets_an_epoch_of_its_own() {
        let place = DirPlace::new(Arc::new(SimDisk::new(1)));
        let first = take_over(&place, Epoch(0), [1; 16], "one").expect("an epoch");
        let second = take_over(&place, Epoch(0), [2; 16], "two").expect("an epoch");
        assert_eq!((first, second), (Epoch(1), Epoch(2)));
        // One that was put at the same time, and whose store then took another.
        let put = place.put(&epoch_path(Epoch(3), [3; 16]), b"three");
        put.expect("put");
        let again = take_over(&place, second, [2; 16], "two").expect("an epoch");
        assert_eq!(again, Epoch(4));
        assert_eq!(parse_epoch_name("00000001-01"), None);
    }
}
