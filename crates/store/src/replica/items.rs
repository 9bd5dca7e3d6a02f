//! The items of a replica, and the chain that they form.

use super::place::{FIRST, IDENTITY, ITEMS, Place, item_path, parse_first_name, parse_item_name};
use std::collections::BTreeMap;
use weald_format::replica::{
    Epoch, ITEM_HEADER_LEN, ITEM_LIST_LEN_MAX, Item, ItemNo, PlaceIdentity,
};
use weald_format::{Digest, Error, ErrorKind, Result};

/// Most bytes of the file that says of which store a place is a replica.
const IDENTITY_LEN_MAX: u64 = 4096;
/// Most bytes of an item.
const ITEM_LEN_MAX: u64 = ITEM_HEADER_LEN as u64 + ITEM_LIST_LEN_MAX;

/// Of which store a place is a replica; `None` if it is one of none yet.
///
/// # Errors
/// `Corrupt`, also if there are items and nothing says of what; `Io`.
pub(super) fn read_identity(place: &dyn Place) -> Result<Option<PlaceIdentity>> {
    let shown = format!("{}/{IDENTITY}", place.shown());
    match place.read(IDENTITY, IDENTITY_LEN_MAX) {
        Ok(bytes) => {
            let parsed = PlaceIdentity::parse(&bytes);
            parsed.map(Some).map_err(|error| error.context(shown))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => match place.list(ITEMS)?.len() {
            0 => Ok(None),
            _ => {
                let what = format!("{shown}: is missing");
                Err(Error::corrupt("replica", 0, "S-9.1", what))
            }
        },
        Err(error) => Err(error),
    }
}

/// As [`read_identity`]. If the file that says it is damaged or missing, the items say it, which
/// all do.
///
/// # Errors
/// Those of [`read_identity`], if no item can be read.
pub(super) fn find_identity(place: &dyn Place) -> Result<Option<PlaceIdentity>> {
    let error = match read_identity(place) {
        Err(error) if error.kind() == ErrorKind::Corrupt => error,
        other => return other,
    };
    for (number, digest) in list_items(place)? {
        let path = item_path(number, &digest);
        let item = place
            .read(&path, ITEM_LEN_MAX)
            .and_then(|b| Item::parse(&b));
        if let Ok(item) = item.as_ref()
            && item.header.digest() == digest
        {
            log::warn!("{error}: the items say it");
            return Ok(Some(item.header.place));
        }
    }
    Err(error)
}

/// Names of the items of a place, in order of their numbers. There may be two of one number.
pub(super) fn list_items(place: &dyn Place) -> Result<Vec<(ItemNo, Digest)>> {
    let names = place.list(ITEMS)?;
    let mut items: Vec<_> = names.iter().filter_map(|n| parse_item_name(n)).collect();
    items.sort_unstable_by_key(|(number, digest)| (*number, digest.0));
    Ok(items)
}

/// Reads an item, and compares it with its name.
///
/// # Errors
/// `Corrupt`, `NotFound`, `Unsupported`, `Io`.
pub(super) fn read_item(
    place: &dyn Place,
    of: &PlaceIdentity,
    (number, digest): (ItemNo, &Digest),
) -> Result<Item> {
    let path = item_path(number, digest);
    let shown = format!("{}/{path}", place.shown());
    let bytes = place.read(&path, ITEM_LEN_MAX)?;
    let item = Item::parse(&bytes).map_err(|error| error.context(&shown))?;
    if item.header.digest() != *digest || item.header.number != number {
        let what = format!("{shown}: is another item than its name says");
        return Err(Error::corrupt("replica", 0, "S-9.6", what));
    }
    if item.header.place != *of {
        let what = format!("{shown}: belongs to another replica");
        return Err(Error::corrupt("replica", 0, "S-9.6", what));
    }
    Ok(item)
}

/// The item with which the items of a place begin, as far as older ones were removed on purpose.
///
/// # Errors
/// `Io`.
pub(super) fn first_item(place: &dyn Place) -> Result<ItemNo> {
    let names = place.list(FIRST)?;
    let first = names.iter().filter_map(|name| parse_first_name(name)).max();
    Ok(first.unwrap_or(ItemNo(1)))
}

/// What is wrong with an item.
#[derive(Debug)]
pub(super) struct BadItem {
    pub number: ItemNo,
    pub why: String,
    /// Whether it may be read another time: the place failed, or cannot be reached.
    pub is_of_place: bool,
}

/// The items that can be read.
#[derive(Debug, Default)]
pub(super) struct Items {
    /// By digest.
    items: BTreeMap<[u8; 32], Item>,
    /// The others.
    pub bad: Vec<BadItem>,
    /// Those of stores that had been replaced, which have no meaning.
    pub ended: Vec<(ItemNo, Digest)>,
}

impl Items {
    /// Reads all.
    ///
    /// # Errors
    /// `Io` if the place cannot be listed.
    pub fn read(place: &dyn Place, of: &PlaceIdentity) -> Result<Self> {
        let mut items = Self::default();
        let first = first_item(place)?;
        for (number, digest) in list_items(place)? {
            // One that was removed may be put once more by a sender of that time.
            if number < first {
                continue;
            }
            match read_item(place, of, (number, &digest)) {
                Ok(item) => drop(items.items.insert(digest.0, item)),
                Err(error) => items.bad.push(BadItem {
                    number,
                    is_of_place: error.kind() == ErrorKind::Io,
                    why: error.to_string(),
                }),
            }
        }
        items.end_replaced();
        Ok(items)
    }

    /// As [`Items::read`], where an item that cannot be read just now must not be left out.
    ///
    /// # Errors
    /// `Io` if the place cannot be listed, or an item may be read another time.
    pub fn read_all(place: &dyn Place, of: &PlaceIdentity) -> Result<Self> {
        let items = Self::read(place, of)?;
        match items.bad.iter().find(|bad| bad.is_of_place) {
            Some(bad) => Err(Error::new(ErrorKind::Io, bad.why.clone())),
            None => Ok(items),
        }
    }

    /// Leaves out the items that a store has sent after another one took over.
    fn end_replaced(&mut self) {
        let mut begins: BTreeMap<Epoch, ItemNo> = BTreeMap::new();
        for item in self.items.values() {
            let first = begins
                .entry(item.header.epoch)
                .or_insert(item.header.number);
            *first = item.header.number.min(*first);
        }
        let ended = &mut self.ended;
        self.items.retain(|digest, item| {
            let header = &item.header;
            let mut later = begins.range(header.epoch.next()..);
            let is_ended = later.any(|(_, first)| *first <= header.number);
            if is_ended {
                ended.push((header.number, Digest(*digest)));
            }
            !is_ended
        });
    }

    /// Items that end no chain, or an interrupted one: those that no other item follows, by number.
    pub fn last(&self) -> Vec<&Item> {
        let previous: std::collections::BTreeSet<[u8; 32]> = {
            let items = self.items.values();
            items.map(|item| item.header.previous.0).collect()
        };
        let ends = self.items.iter();
        let ends = ends.filter(|(digest, _)| !previous.contains(*digest));
        let mut ends: Vec<&Item> = ends.map(|(_, item)| item).collect();
        ends.sort_unstable_by_key(|item| item.header.number);
        ends
    }

    /// All that can be read, by number.
    pub fn all(&self) -> Vec<&Item> {
        let mut items: Vec<&Item> = self.items.values().collect();
        items.sort_unstable_by_key(|item| item.header.number);
        items
    }

    /// The item before.
    pub fn before(&self, item: &Item) -> Option<&Item> {
        let before = self.items.get(&item.header.previous.0)?;
        let is_next = before.header.number.next() == item.header.number
            && before.header.commit == item.header.base
            && before.header.after == item.header.before;
        is_next.then_some(before)
    }
}
