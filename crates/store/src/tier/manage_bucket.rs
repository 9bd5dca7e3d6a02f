//! Adds tiers in buckets, and removes what nobody needs there.

use super::bucket::{MARK, SEGMENT_LEN_MAX, Whose, make_receipts};
use super::manage::{NewTier, is_of_another_store, is_taken};
use super::record::{LEN_MAX, Tier, TierMark, TiersRecord};
use crate::disk::Disk;
use crate::far_objects::FarPlace;
use crate::store::Store;
use std::sync::Arc;
use weald_format::{Error, ErrorKind, Result};

/// What the place says of itself; nothing if it is no tier.
fn mark_of(place: &FarPlace) -> Result<Option<TierMark>> {
    let shown = place.objects.shown();
    match place.objects.read(MARK, LEN_MAX) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
        Ok(bytes) => {
            let what =
                format!("{shown}/{MARK}: is damaged, or something else: take another prefix");
            let bad = || Error::corrupt("tier", 0, "S-10.4", what);
            TierMark::parse(&bytes).map(Some).ok_or_else(bad)
        }
    }
}

impl Store {
    /// Adds a tier in a bucket.
    ///
    /// # Errors
    /// `Busy` if it is a tier already; `Invalid` for a place that is no prefix of a bucket; `Limit`
    /// for a store with long segments; `Io`, `Full`.
    /// # Cost
    /// Three requests.
    pub(super) fn add_bucket(
        &self,
        home: &Arc<dyn Disk>,
        record: &mut TiersRecord,
        new: &NewTier,
    ) -> Result<()> {
        let busy = |what: String| Err(Error::new(ErrorKind::Busy, what));
        let place = home.open_far(&new.place)?;
        let shown = place.objects.shown();
        if self.superblock.segment_len > SEGMENT_LEN_MAX {
            let what = format!(
                "{shown}: the store has segments of more than 256 MiB, which go to no bucket"
            );
            return Err(Error::limit(what));
        }
        let mark = mark_of(&place)?;
        let uuid = match &mark {
            Some(mark) if mark.store != self.uuid() => return busy(is_of_another_store(&shown)),
            Some(mark) if new.is_again => mark.uuid,
            Some(_) => return busy(is_taken(&shown)),
            None if new.is_again => {
                return Err(Error::not_found(format!("{shown}: is no tier")));
            }
            None => new.uuid,
        };
        let text = TierMark {
            store: self.uuid(),
            uuid,
            home: Whose::of(&**home, uuid).home,
        }
        .text();
        match mark {
            Some(_) => place.objects.put(MARK, &[text.clone().into()])?,
            // The object may be there because an answer was lost.
            None => drop(place.objects.put_new(MARK, text.as_bytes())?),
        }
        if place.objects.read(MARK, LEN_MAX)? != text.as_bytes() {
            return busy(format!(
                "{shown}: another store has taken it at the same time, or the bucket does not show \
                 what was written to it"
            ));
        }
        make_receipts(&**home, uuid)?;
        record
            .tiers
            .retain(|tier| tier.uuid != uuid && tier.name != new.name);
        record.tiers.push(Tier {
            name: new.name.clone(),
            uuid,
            rank: new.rank,
            place: new.place.clone(),
            policy: new.policy,
        });
        Ok(())
    }

    /// Removes what was dropped in buckets, and what interrupted moves have left there.
    ///
    /// # Errors
    /// `Lost` if a bucket does not answer: another call removes the rest.
    /// # Cost
    /// Two requests for each bucket with an object to remove, and one for each further object; none
    /// without.
    pub fn sweep_tiers(&self) -> Result<()> {
        self.disk.sweep(false)
    }
}
