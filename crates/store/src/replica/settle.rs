//! The names and files of a standby, which follow its rows.

use crate::disk::{Access, remove_if_there};
use crate::engine::{Engine, Table, number_of};
use crate::layout::{self, ObjectKind};
use crate::store::{Store, is_bad_or_missing};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use weald_format::store::{ImageRow, ImageState, MAP_LEN_MAX, SegmentRow};
use weald_format::volume::VolumeRow;
use weald_format::{Digest, Error, ImageNo, Result, SegmentNo};

/// Makes the names that readers see those of the rows, and removes files that no row names.
pub(super) fn settle(store: &Store, engine: &dyn Engine) -> Result<bool> {
    let mut images = Vec::new();
    engine.scan(Table::Images, &[], &mut |key, value| {
        let name = String::from_utf8_lossy(key).into_owned();
        images.push((name, ImageRow::parse(value)?));
        Ok(ControlFlow::Continue(()))
    })?;
    let has_reader = settle_images(store, &images)?;
    settle_volumes(store, engine)?;
    let mut lens = BTreeMap::new();
    engine.scan(Table::Segments, &[], &mut |key, value| {
        if let Some(number) = number_of(key) {
            lens.insert(SegmentNo(number), SegmentRow::parse(value)?.len);
        }
        Ok(ControlFlow::Continue(()))
    })?;
    for name in store.disk.list(layout::SEGMENTS)? {
        let Some(number) = layout::segment_number(&name) else {
            continue;
        };
        match lens.get(&number) {
            Some(len) => cut(store, number, *len)?,
            // A reader may have an image whose rows are gone.
            None if has_reader => {}
            None => remove_if_there(&*store.disk, &layout::segment(number))?,
        }
    }
    store.disk.settle(ObjectKind::Segment)?;
    Ok(has_reader)
}

/// Cuts off what was written for a state that is none any more.
fn cut(store: &Store, number: SegmentNo, len: u64) -> Result<()> {
    let name = layout::segment_file(number);
    let file = match store.disk.open(&name, Access::Write) {
        Err(error) if is_bad_or_missing(&error) => return Ok(()),
        other => other?,
    };
    if file.len()? > len {
        file.set_len(len)?;
        file.sync()?;
    }
    Ok(())
}

/// Returns whether a reader has an image that is gone.
fn settle_images(store: &Store, images: &[(String, ImageRow)]) -> Result<bool> {
    let disk = &*store.disk;
    let is_open = |image_no| Ok::<_, Error>(store.lock_out_readers(image_no)?.is_none());
    let present = images
        .iter()
        .filter(|(_, row)| row.state == ImageState::Present);
    let shown: BTreeMap<&str, &ImageRow> =
        present.map(|(name, row)| (name.as_str(), row)).collect();
    let known: BTreeSet<ImageNo> = images.iter().map(|(_, row)| row.image_no).collect();
    for name in store.names_of_maps()? {
        let map = store.map(&name).ok();
        let old = map.map(|map| map.image_no);
        let row = shown.get(name.as_str());
        // A store that went its own way may have used the number for another image.
        let is_its_map = |image_no: ImageNo| {
            let bytes = store.read_object(&layout::map(&name), MAP_LEN_MAX)?;
            let digest = Digest::of(&bytes);
            let mut rows = images.iter().map(|(_, row)| row);
            Ok::<_, Error>(rows.any(|r| r.image_no == image_no && r.map_digest == digest))
        };
        if row.is_some_and(|row| old.is_none_or(|old| old == row.image_no)) {
            continue;
        }
        match old {
            // Its removal is not complete, or a reader needs it.
            Some(old) if is_its_map(old)? || (!known.contains(&old) && is_open(old)?) => {
                disk.switch(&layout::map(&name), &layout::hidden_map(old))?;
            }
            _ => remove_if_there(disk, &layout::map(&name))?,
        }
    }
    for (name, row) in &shown {
        store.show_map(name, row)?;
    }
    let mut has_reader = false;
    for name in disk.list_objects(ObjectKind::Map)? {
        let Some(image_no) = layout::hidden_map_image(&name) else {
            continue;
        };
        if is_open(image_no)? {
            has_reader = true;
        } else if !known.contains(&image_no) {
            remove_if_there(disk, &layout::hidden_map(image_no))?;
        }
    }
    disk.settle(ObjectKind::Map)?;
    for name in disk.list(layout::IMAGES)? {
        let of = layout::digested_image(&name);
        if let Some(image_no) = of.filter(|image_no| !known.contains(image_no)) {
            store.forget_content_digests(image_no)?;
        }
    }
    Ok(has_reader)
}

fn settle_volumes(store: &Store, engine: &dyn Engine) -> Result<()> {
    let mut rows = BTreeMap::new();
    engine.scan(Table::Volumes, &[], &mut |key, value| {
        let name = String::from_utf8_lossy(key).into_owned();
        if !layout::is_replaced_key(&name) {
            rows.insert(name, VolumeRow::parse(value)?);
        }
        Ok(ControlFlow::Continue(()))
    })?;
    let mut shown = BTreeSet::new();
    for name in store.volume_names()? {
        let first = store.first_volume_row(&name).ok().flatten();
        let row = rows.get(&name);
        let is_it =
            row.is_some_and(|row| first.is_some_and(|first| first.volume_no == row.volume_no));
        if is_it {
            shown.insert(name);
        } else {
            store.hide_volume(&name)?;
        }
    }
    for (name, row) in rows.iter().filter(|(name, _)| !shown.contains(*name)) {
        store.show_volume(name, &row.encode())?;
    }
    Ok(())
}
