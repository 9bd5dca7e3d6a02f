//! Byte strings that identify an entry: for the template of its directory, and for the tree digest.

use super::entry::{LinkInfo, NewEntry};
use weald_format::entries::{EntryBlock, EntryFields, EntryKind};
use weald_format::{Digest, Timestamp};

/// Returns the fields of a stored entry, and the mask of its times.
pub fn stored_fields(block: &EntryBlock, index: usize) -> (EntryFields, u8) {
    let kind = block.kind(index);
    let mut mask = 0;
    let times = [0, 1, 2, 3].map(|which| match block.time(which, index) {
        Some(time) => {
            mask |= 1 << which;
            time
        }
        None => Timestamp::default(),
    });
    let fields = EntryFields {
        kind,
        attributes: block.attributes(index),
        xattrs: block.xattrs(index),
        nlink: block.nlink(index),
        link_back: block.link_back(index),
        times,
        // The body of a symlink is only the offset of its target in the block.
        body: match kind {
            EntryKind::Symlink => 0,
            _ => block.body(index),
        },
    };
    (fields, mask)
}

/// Appends everything that distinguishes an entry from others in its template.
pub fn append_key(
    out: &mut Vec<u8>,
    mask: u8,
    name: &[u8],
    target: Option<&[u8]>,
    fields: &EntryFields,
) {
    out.push(name.len() as u8);
    out.extend_from_slice(name);
    out.push(fields.kind as u8);
    for value in [
        fields.attributes,
        fields.xattrs,
        fields.nlink,
        fields.link_back,
        fields.body,
    ] {
        out.extend_from_slice(&value.to_le_bytes());
    }
    for (bit, time) in fields.times.iter().enumerate() {
        if mask & (1 << bit) != 0 {
            out.extend_from_slice(&time.seconds.to_le_bytes());
            out.extend_from_slice(&time.nanoseconds.to_le_bytes());
        }
    }
    if let Some(target) = target {
        out.extend_from_slice(&(target.len() as u16).to_le_bytes());
        out.extend_from_slice(target);
    }
}

/// Appends an entry's part of its directory's digest, as `docs/format.md`, section "Tree digest",
/// defines it.
pub fn append_logical(out: &mut Vec<u8>, entry: &NewEntry<'_>, xattrs: &Digest, body: &[u8]) {
    let (nlink, back) = match entry.link {
        LinkInfo::Inside { nlink, back } => (nlink, back),
        LinkInfo::Single | LinkInfo::Across => (1, 0),
    };
    weald_format::tree_digest::LogicalEntry {
        name: entry.name,
        kind: entry.kind,
        attributes: entry.attributes,
        mtime: entry.times[0],
        xattrs: *xattrs,
        nlink,
        back,
        body,
    }
    .append(out);
}
