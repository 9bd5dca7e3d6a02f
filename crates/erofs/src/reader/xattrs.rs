//! Extended attributes.

use super::file::FileReader;
use super::{Inode, Volume, damaged, unsupported};
use crate::layout::{XATTR_PREFIXES, XattrEntry, XattrHeader};
use weald_format::limits::{XATTR_NAME_LEN_MAX, XATTR_SET_LEN_MAX};
use weald_format::pages::{XATTR_SET_LEN_MIN, xattr_len};
use weald_format::{Error, Result, Xattr, XattrSet};
use zerocopy::FromBytes;

/// Bit of `name_index` that makes the rest the number of a long prefix.
const LONG_PREFIX: u8 = 0x80;
/// Bytes of the number of a shared xattr, and the unit in which they are counted.
const SHARED_LEN: usize = 4;

impl Volume {
    /// The xattrs of `inode`, sorted by name.
    ///
    /// # Errors
    /// `Io`; `Invalid` for damage; `Limit` for more than 4 MiB of them.
    pub fn xattrs(&self, inode: &Inode) -> Result<XattrSet> {
        if inode.xattr_len == 0 {
            return Ok(XattrSet::new());
        }
        self.read_xattrs(inode)
            .map_err(|e| e.context(format_args!("inode {}: xattrs", inode.nid)))
    }

    fn read_xattrs(&self, inode: &Inode) -> Result<XattrSet> {
        // An inode has at most 256 KiB of its own.
        let mut body = vec![0; inode.xattr_len as usize];
        self.windows.read(inode.xattr_start, &mut body, "xattrs")?;
        let parsed = XattrHeader::read_from_prefix(&body);
        let (header, rest) = parsed.map_err(|_| damaged("the header"))?;
        let shared_len = usize::from(header.shared_count).saturating_mul(SHARED_LEN);
        let Some((shared, mut inline)) = rest.split_at_checked(shared_len) else {
            return Err(damaged(format_args!(
                "{} shared xattrs in {} bytes",
                header.shared_count,
                rest.len()
            )));
        };
        let (mut set, mut set_len) = (XattrSet::new(), XATTR_SET_LEN_MIN);
        let mut add = |xattr: Xattr| {
            set_len = set_len.saturating_add(xattr_len(xattr.name.len(), xattr.value.len()));
            set.push(xattr);
            if set_len > XATTR_SET_LEN_MAX {
                Err(Error::limit(format!("more than {XATTR_SET_LEN_MAX} bytes")))
            } else {
                Ok(())
            }
        };
        for no in shared.as_chunks::<SHARED_LEN>().0 {
            add(self.shared_xattr(u32::from_le_bytes(*no))?)?;
        }
        // A writer may leave zeros at the end.
        while inline.iter().any(|&b| b != 0) {
            let (xattr, rest) = self.inline_xattr(inline)?;
            add(xattr)?;
            inline = rest;
        }
        set.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        if set.is_sorted_by(|a, b| a.name < b.name) {
            Ok(set)
        } else {
            Err(damaged("a name that is there twice"))
        }
    }

    /// Parses the xattr at the start of `bytes`; returns it and what follows.
    fn inline_xattr<'b>(&self, bytes: &'b [u8]) -> Result<(Xattr, &'b [u8])> {
        let short = || damaged("an xattr passes the end of its inode");
        let (entry, rest) = XattrEntry::read_from_prefix(bytes).map_err(|_| short())?;
        let name_len = usize::from(entry.name_len);
        let (name, rest) = rest.split_at_checked(name_len).ok_or_else(short)?;
        let value_len = usize::from(entry.value_len.get());
        let (value, _) = rest.split_at_checked(value_len).ok_or_else(short)?;
        let len = size_of::<XattrEntry>()
            .saturating_add(name_len)
            .saturating_add(value_len);
        let rest = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Ok((self.xattr(&entry, name, value)?, rest))
    }

    fn shared_xattr(&self, no: u32) -> Result<Xattr> {
        let start = u64::from(no).saturating_mul(SHARED_LEN as u64);
        let start = start.saturating_add(self.geometry.xattr_start);
        let mut head = [0; size_of::<XattrEntry>()];
        self.windows.read(start, &mut head, "shared xattr")?;
        let entry = XattrEntry::read_from_bytes(&head).map_err(|_| damaged("shared xattr"))?;
        let name_len = usize::from(entry.name_len);
        let len = name_len.saturating_add(entry.value_len.get().into());
        let mut bytes = vec![0; len];
        let body = start.saturating_add(size_of::<XattrEntry>() as u64);
        self.windows.read(body, &mut bytes, "shared xattr")?;
        let (name, value) = bytes.split_at_checked(name_len).unwrap_or_default();
        self.xattr(&entry, name, value)
    }

    /// The long prefixes.
    fn prefixes(&self) -> Result<&[Vec<u8>]> {
        if let Some(prefixes) = self.prefixes.get() {
            return Ok(prefixes);
        }
        let prefixes = read_prefixes(self)?;
        Ok(self.prefixes.get_or_init(|| prefixes))
    }

    fn xattr(&self, entry: &XattrEntry, name: &[u8], value: &[u8]) -> Result<Xattr> {
        let mut full = match entry.name_index {
            index if index & LONG_PREFIX != 0 => {
                let no = usize::from(index & !LONG_PREFIX);
                let prefix = self.prefixes()?.get(no).cloned();
                prefix.ok_or_else(|| damaged(format_args!("no long prefix {no}")))?
            }
            index => short_prefix(index)?.to_vec(),
        };
        full.extend_from_slice(name);
        if full.is_empty() || full.len() > XATTR_NAME_LEN_MAX || full.contains(&0) {
            let shown = full.escape_ascii().to_string();
            return Err(damaged(format_args!("the name '{shown}'")));
        }
        Ok(Xattr {
            name: full,
            value: value.to_vec(),
        })
    }
}

/// The prefix with the number `index`. Number 0 is the empty prefix, which composefs uses.
fn short_prefix(index: u8) -> Result<&'static [u8]> {
    if index == 0 {
        return Ok(b"");
    }
    let found = XATTR_PREFIXES.iter().find(|(number, _)| *number == index);
    match found {
        Some((_, prefix)) => Ok(prefix),
        None => Err(unsupported(format_args!("xattr prefix {index}"))),
    }
}

/// Reads the long prefixes: a length of 16 bits, the number of a short prefix and the bytes behind
/// it, each at a multiple of 4.
fn read_prefixes(volume: &Volume) -> Result<Vec<Vec<u8>>> {
    let geometry = &volume.geometry;
    let is_packed = geometry.packed_nid != 0 && geometry.has_packed_prefixes;
    let packed = if is_packed {
        Some(volume.inode(geometry.packed_nid)?)
    } else {
        None
    };
    let mut packed = packed.as_ref().map(FileReader::new);
    let mut read = |start: u64, out: &mut [u8]| match &mut packed {
        Some(packed) => packed.read_exact_at(volume, start, out),
        None => volume.windows.read(start, out, "xattr prefixes"),
    };
    let (mut prefixes, mut start) = (Vec::new(), geometry.prefix_start);
    for _ in 0..geometry.prefix_count {
        let mut len = [0; 2];
        read(start, &mut len)?;
        let mut bytes = vec![0; u16::from_le_bytes(len).into()];
        read(start.saturating_add(2), &mut bytes)?;
        let Some((&index, infix)) = bytes.split_first() else {
            return Err(damaged("a long xattr prefix without bytes"));
        };
        prefixes.push([short_prefix(index)?, infix].concat());
        let end = start.saturating_add(2).saturating_add(bytes.len() as u64);
        start = end.checked_next_multiple_of(4).unwrap_or(u64::MAX);
    }
    Ok(prefixes)
}
