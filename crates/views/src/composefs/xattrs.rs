//! The xattrs of the inodes: those of the image, escaped where overlayfs would act on them, and
//! those that overlayfs needs. A pair of name and value that two inodes have is stored once.

use super::digests::{DigestReader, Digests};
use super::gather::{Census, Uses};
use super::levels::{Data, Node};
use super::options::{Format, ImageOptions, object_name};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use weald_codec::FSVERITY_DIGEST_LEN as DIGEST_LEN;
use weald_erofs::writer::{
    EROFS_VALUE_LEN_MAX, area_len, filter_bit, is_acl, put_area_header, put_xattr, suffix_of,
    xattr_len,
};
use weald_format::{Attributes, Error, FileKind, InodeNo, Result, XattrSetId};
use weald_image::{Image, Inode};

const OVERLAY_PREFIX: &[u8] = b"trusted.overlay.";
const ESCAPED_OVERLAY: &[u8] = b"trusted.overlay.overlay.";
const METACOPY: &[u8] = b"trusted.overlay.metacopy";
const REDIRECT: &[u8] = b"trusted.overlay.redirect";
const ROOT_OPAQUE: (&[u8], &[u8]) = (b"trusted.overlay.opaque", b"y");
const SELINUX: &[u8] = b"security.selinux";

/// Xattrs of a whiteout of the tree, which is a regular file in the image.
const WHITEOUT: [(&[u8], &[u8]); 2] = [
    (b"trusted.overlay.overlay.whiteout", b""),
    (b"user.overlay.whiteout", b""),
];

/// Xattrs of a directory with whiteouts; format 0 has the first two.
const WHITEOUT_DIR: [(&[u8], &[u8]); 4] = [
    (b"trusted.overlay.overlay.whiteouts", b""),
    (b"user.overlay.whiteouts", b""),
    (b"trusted.overlay.overlay.opaque", b"x"),
    (b"user.overlay.opaque", b"x"),
];

/// Bytes of the value of `trusted.overlay.metacopy`: a header and the digest.
const METACOPY_LEN: usize = 4 + DIGEST_LEN;

/// Bytes of the path of an object, `/ab/cdef…`.
const REDIRECT_LEN: usize = 2 + 2 * DIGEST_LEN;

/// Number of shared xattrs of one inode; the others are stored with it. Readers of composefs need
/// it.
const SHARED_COUNT_MAX: usize = 128;

/// Words of 4 bytes that 16 bits count behind the header of an inode's xattrs.
const AREA_LEN_MAX: u64 = (u16::MAX as u64 - 1) * 4 + 12;

/// Shared xattrs are numbered in words of 4 bytes, with 32 bits.
const TABLE_LEN_MAX: u64 = u32::MAX as u64 * 4 - 4096;

/// Number of prepared sets that are kept.
const KEPT_SET_COUNT: usize = 1024;

/// Bytes of memory that xattrs may take at least, whatever the limit.
const MEMORY_LEN_MIN: u64 = 4 << 20;

/// Bytes of memory for a pair of which only the hash is known.
const HASHED_PAIR_LEN: u64 = 32;

fn whiteout_dir(format: Format) -> &'static [(&'static [u8], &'static [u8])] {
    match format {
        Format::V0 => WHITEOUT_DIR.get(..2).unwrap_or_default(),
        Format::V1 | Format::AsNeeded => &WHITEOUT_DIR,
    }
}

/// A name and a value.
struct Pair {
    name: Vec<u8>,
    value: Vec<u8>,
    /// Offset in the table of shared xattrs.
    shared: Option<u64>,
}

/// The order of xattrs: by name, then by the length of the value, then by the value.
fn order<'a>(name: &'a [u8], value: &'a [u8]) -> (&'a [u8], usize, &'a [u8]) {
    (name, value.len(), value)
}

/// The name that an xattr of the tree has in the image.
fn escaped(name: &[u8]) -> Vec<u8> {
    match name.strip_prefix(OVERLAY_PREFIX) {
        Some(rest) => [ESCAPED_OVERLAY, rest].concat(),
        None => name.to_vec(),
    }
}

/// The table of shared xattrs, and the xattrs of each inode.
pub(super) struct XattrTable<'a> {
    image: &'a Image,
    format: Format,
    digests: &'a Digests,
    /// In ascending order.
    pairs: Vec<Pair>,
    /// Offsets of the shared values of these two names; the highest digest comes first.
    metacopy_offset: u64,
    redirect_offset: u64,
    len: u64,
    /// Number of the root's xattr set plus one.
    root_set: u64,
    has_acl: bool,
    kept: HashMap<u64, Arc<Vec<Pair>>>,
}

impl<'a> XattrTable<'a> {
    /// The table of the xattrs that several inodes have.
    ///
    /// # Errors
    /// `Io`, `Corrupt` of the image; `Limit` of the format.
    pub fn new(
        image: &'a Image,
        census: &Census,
        digests: &'a Digests,
        options: &ImageOptions<'_>,
    ) -> Result<Self> {
        let mut table = Self {
            image,
            format: options.format,
            digests,
            pairs: Vec::new(),
            metacopy_offset: 0,
            redirect_offset: 0,
            len: 0,
            root_set: census.root_set,
            has_acl: false,
            kept: HashMap::new(),
        };
        let memory_len = (options.memory_len / 4).max(MEMORY_LEN_MIN);
        let likely = table.likely_shared(&census.sets, memory_len)?;
        table.count(census, &likely, memory_len)?;
        table.place()?;
        Ok(table)
    }

    /// Hashes of the pairs that may be used twice.
    fn likely_shared(&mut self, sets: &Uses, memory_len: u64) -> Result<HashMap<u64, bool>> {
        let mut found: HashMap<u64, bool> = HashMap::new();
        for set in sets.once.iter() {
            let is_repeated = sets.repeated.contains(set);
            for xattr in set_of(self.image, set)?.iter() {
                check_len(&xattr.name, &xattr.value)?;
                self.has_acl |= is_acl(&xattr.name);
                let hash = hash_of(&escaped(&xattr.name), &xattr.value);
                let entry = found.entry(hash);
                entry.and_modify(|many| *many = true).or_insert(is_repeated);
            }
            check_memory(found.len() as u64 * HASHED_PAIR_LEN, memory_len)?;
        }
        Ok(found)
    }

    /// Counts the pairs that may be shared, and keeps those that are.
    fn count(&mut self, census: &Census, likely: &HashMap<u64, bool>, memory: u64) -> Result<()> {
        let mut counts: HashMap<(Vec<u8>, Vec<u8>), u64> = HashMap::new();
        let mut add = |name: &[u8], value: &[u8], count: u64| {
            let pair = (name.to_vec(), value.to_vec());
            *counts.entry(pair).or_default() += count;
        };
        for (name, value) in WHITEOUT {
            add(name, value, census.whiteout_count);
        }
        for (name, value) in whiteout_dir(self.format) {
            add(name, value, census.whiteout_dir_count);
        }
        if let Some(label) = self.root_label()? {
            add(SELINUX, &label, census.stub_count);
        }
        let mut len = 0;
        for set in census.sets.once.iter() {
            let count = 1 + u64::from(census.sets.repeated.contains(set));
            for xattr in set_of(self.image, set)?.iter() {
                let name = escaped(&xattr.name);
                let is_own = WHITEOUT
                    .iter()
                    .chain(&WHITEOUT_DIR)
                    .any(|own| own.0 == name);
                let is_likely = likely.get(&hash_of(&name, &xattr.value)) == Some(&true);
                if is_likely || is_own || name == SELINUX {
                    add(&name, &xattr.value, count);
                    len += (name.len() + xattr.value.len()) as u64;
                }
            }
            check_memory(len, memory)?;
        }
        let mut pairs: Vec<Pair> = Vec::new();
        for ((name, value), count) in counts {
            if count > 1 {
                let shared = None;
                pairs.push(Pair {
                    name,
                    value,
                    shared,
                });
            }
        }
        pairs.sort_by(|a, b| order(&a.name, &a.value).cmp(&order(&b.name, &b.value)));
        self.pairs = pairs;
        Ok(())
    }

    /// Gives each shared xattr its offset; the table is in descending order.
    fn place(&mut self) -> Result<()> {
        let count = self.digests.shared_count();
        let redirect_len = xattr_len(REDIRECT, REDIRECT_LEN) * count;
        let metacopy_len = xattr_len(METACOPY, METACOPY_LEN) * count;
        let mut at = 0;
        let mut is_redirect_placed = false;
        let mut is_metacopy_placed = false;
        for pair in self.pairs.iter_mut().rev() {
            if !is_redirect_placed && pair.name.as_slice() < REDIRECT {
                is_redirect_placed = true;
                self.redirect_offset = at;
                at += redirect_len;
            }
            if !is_metacopy_placed && pair.name.as_slice() < METACOPY {
                is_metacopy_placed = true;
                self.metacopy_offset = at;
                at += metacopy_len;
            }
            pair.shared = Some(at);
            at += xattr_len(&pair.name, pair.value.len());
        }
        if !is_redirect_placed {
            self.redirect_offset = at;
            at += redirect_len;
        }
        if !is_metacopy_placed {
            self.metacopy_offset = at;
            at += metacopy_len;
        }
        self.len = at;
        if at > TABLE_LEN_MAX {
            Err(Error::limit("the shared xattrs need more than 16 GiB"))
        } else {
            Ok(())
        }
    }

    /// Bytes of the table.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether any inode has an ACL.
    pub fn has_acl(&self) -> bool {
        self.has_acl
    }

    fn root_label(&self) -> Result<Option<Vec<u8>>> {
        let Some(set) = self.root_set.checked_sub(1) else {
            return Ok(None);
        };
        let set = set_of(self.image, set)?;
        let label = set.iter().find(|xattr| xattr.name == SELINUX);
        Ok(label.map(|xattr| xattr.value.clone()))
    }

    /// Offset of a shared pair.
    fn find(&self, name: &[u8], value: &[u8]) -> Option<u64> {
        let wanted = order(name, value);
        let found = self
            .pairs
            .binary_search_by(|pair| order(&pair.name, &pair.value).cmp(&wanted));
        found.ok().and_then(|at| self.pairs.get(at)?.shared)
    }

    /// The pairs of a set of the image, sorted.
    fn prepared(&mut self, set: u64) -> Result<Arc<Vec<Pair>>> {
        if let Some(kept) = self.kept.get(&set) {
            return Ok(kept.clone());
        }
        let mut pairs: Vec<Pair> = set_of(self.image, set)?
            .iter()
            .map(|xattr| {
                let name = escaped(&xattr.name);
                let shared = self.find(&name, &xattr.value);
                let value = xattr.value.clone();
                Pair {
                    name,
                    value,
                    shared,
                }
            })
            .collect();
        pairs.sort_by(|a, b| order(&a.name, &a.value).cmp(&order(&b.name, &b.value)));
        if self.kept.len() >= KEPT_SET_COUNT {
            self.kept.clear();
        }
        let pairs = Arc::new(pairs);
        self.kept.insert(set, pairs.clone());
        Ok(pairs)
    }

    /// The xattrs of an inode. `digest` is that of its object; any value gives the same lengths.
    ///
    /// # Errors
    /// `Io`, `Corrupt` of the image.
    pub fn of(
        &mut self,
        node: &Node,
        place: NodePlace,
        digest: &[u8; DIGEST_LEN],
    ) -> Result<Xattrs> {
        let mut found = Xattrs::default();
        let prepared = match node.xattr_set.checked_sub(1) {
            Some(set) => Some(self.prepared(set)?),
            None => None,
        };
        let own = self.own_pairs(node, place, digest)?;
        let mut pairs: Vec<&Pair> = own.iter().collect();
        for pair in prepared.iter().flat_map(|pairs| pairs.iter()) {
            // An xattr that overlayfs needs replaces one of the same name.
            if !own.iter().any(|own| own.name == pair.name) {
                pairs.push(pair);
            }
        }
        pairs.sort_by(|a, b| order(&a.name, &a.value).cmp(&order(&b.name, &b.value)));
        for pair in pairs {
            found.push(pair);
        }
        if found.len() > AREA_LEN_MAX {
            Err(Error::limit(
                "the xattrs of one inode need more than 256 KiB, which EROFS cannot hold",
            ))
        } else {
            Ok(found)
        }
    }

    /// The pairs that overlayfs needs.
    fn own_pairs(
        &self,
        node: &Node,
        place: NodePlace,
        digest: &[u8; DIGEST_LEN],
    ) -> Result<Vec<Pair>> {
        let mut own = Vec::new();
        let plain = |(name, value): &(&[u8], &[u8])| Pair {
            name: name.to_vec(),
            value: value.to_vec(),
            shared: self.find(name, value),
        };
        match &node.data {
            Data::External { content, .. } => {
                let rank = self.digests.shared_rank(*content);
                own.extend(self.object_pairs(rank, digest));
            }
            Data::Stub => {
                let label = self.root_label()?;
                own.extend(label.map(|label| plain(&(SELINUX, &label))));
            }
            _ => {}
        }
        if place.is_whiteout {
            own.extend(WHITEOUT.iter().map(plain));
        }
        if place.has_whiteout {
            own.extend(whiteout_dir(self.format).iter().map(plain));
        }
        if place.is_root {
            own.push(plain(&ROOT_OPAQUE));
        }
        Ok(own)
    }

    fn object_pairs(&self, rank: Option<u64>, digest: &[u8; DIGEST_LEN]) -> [Pair; 2] {
        let offset = |start: u64, name: &[u8], len: usize| {
            let behind = rank.map(|rank| self.digests.shared_count() - 1 - rank);
            behind.map(|behind| start + behind * xattr_len(name, len))
        };
        [
            Pair {
                name: METACOPY.to_vec(),
                value: metacopy(digest),
                shared: offset(self.metacopy_offset, METACOPY, METACOPY_LEN),
            },
            Pair {
                name: REDIRECT.to_vec(),
                value: redirect(digest),
                shared: offset(self.redirect_offset, REDIRECT, REDIRECT_LEN),
            },
        ]
    }

    /// Passes the bytes of the table to `visit`, one xattr at a time.
    ///
    /// # Errors
    /// `Io`, `Corrupt` of the image, and those of `visit`.
    pub fn each_shared(&self, visit: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let mut reader = self.digests.reader();
        let mut at = 0;
        let mut bytes = Vec::new();
        for pair in self.pairs.iter().rev() {
            at += self.objects_at(at, &mut reader, visit)?;
            bytes.clear();
            put_xattr(&mut bytes, &pair.name, &pair.value);
            at += bytes.len() as u64;
            visit(&bytes)?;
        }
        self.objects_at(at, &mut reader, visit)?;
        Ok(())
    }

    /// Passes the xattrs of objects that begin at `start`; returns their length.
    fn objects_at(
        &self,
        start: u64,
        reader: &mut DigestReader<'_>,
        visit: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<u64> {
        let groups: [(u64, &[u8], ValueOf); 2] = [
            (self.redirect_offset, REDIRECT, redirect),
            (self.metacopy_offset, METACOPY, metacopy),
        ];
        let mut at = start;
        for (offset, name, value_of) in groups {
            if at != offset {
                continue;
            }
            for rank in (0..self.digests.shared_count()).rev() {
                let mut bytes = Vec::new();
                put_xattr(&mut bytes, name, &value_of(&reader.shared(rank)?));
                at += bytes.len() as u64;
                visit(&bytes)?;
            }
        }
        Ok(at - start)
    }
}

/// Context of an inode that changes its xattrs.
#[derive(Clone, Copy, Default)]
pub(super) struct NodePlace {
    pub is_root: bool,
    /// Whether it is a directory with whiteouts.
    pub has_whiteout: bool,
    /// Whether it is a whiteout of the tree.
    pub is_whiteout: bool,
}

/// The xattrs of one inode, in order.
#[derive(Default)]
pub(super) struct Xattrs {
    name_bits: u32,
    shared: Vec<u64>,
    local: Vec<u8>,
}

impl Xattrs {
    fn push(&mut self, pair: &Pair) {
        self.name_bits |= filter_bit(&pair.name);
        match pair.shared {
            Some(offset) if self.shared.len() < SHARED_COUNT_MAX => self.shared.push(offset),
            _ => put_xattr(&mut self.local, &pair.name, &pair.value),
        }
    }

    /// Bytes behind the inode.
    pub fn len(&self) -> u64 {
        area_len(self.shared.len(), self.local.len() as u64)
    }

    /// Appends them. The table begins at `table_offset` of the image.
    pub fn put(&self, out: &mut Vec<u8>, table_offset: u64) {
        if self.len() == 0 {
            return;
        }
        put_area_header(out, self.name_bits, self.shared.len() as u8);
        for offset in &self.shared {
            let word = (table_offset % weald_erofs::layout::BLOCK_LEN + offset) / 4;
            out.extend_from_slice(&(word as u32).to_le_bytes());
        }
        out.extend_from_slice(&self.local);
    }
}

/// The value of an xattr of an object.
type ValueOf = fn(&[u8; DIGEST_LEN]) -> Vec<u8>;

fn metacopy(digest: &[u8; DIGEST_LEN]) -> Vec<u8> {
    // Version, length, flags, and SHA-256 among the algorithms of fs-verity.
    let mut value = vec![0, METACOPY_LEN as u8, 0, 1];
    value.extend_from_slice(digest);
    value
}

fn redirect(digest: &[u8; DIGEST_LEN]) -> Vec<u8> {
    format!("/{}", object_name(digest)).into_bytes()
}

/// The set of xattrs number `set`.
fn set_of(image: &Image, set: u64) -> Result<Arc<weald_format::XattrSet>> {
    image.xattrs(&Inode {
        ino: InodeNo(0),
        name_no: InodeNo(0),
        kind: FileKind::Regular,
        attributes: Attributes::default(),
        nlink: 1,
        size: weald_format::ByteLen(0),
        times: weald_format::Times::default(),
        xattr_set: Some(XattrSetId(set)),
        content: None,
        template: None,
        entry: weald_format::EntryIndex(0),
    })
}

fn hash_of(name: &[u8], value: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (name, value).hash(&mut hasher);
    hasher.finish()
}

fn check_len(name: &[u8], value: &[u8]) -> Result<()> {
    let name_len = suffix_of(&escaped(name)).1.len();
    let shown = weald_vfs::shown(name);
    if name_len > usize::from(u8::MAX) {
        return Err(Error::limit(format!(
            "the name of the xattr {shown} has more than 255 bytes in the image, which EROFS \
             cannot hold"
        )));
    }
    if value.len() > EROFS_VALUE_LEN_MAX {
        Err(Error::limit(format!(
            "the xattr {shown} has {} bytes; EROFS holds {EROFS_VALUE_LEN_MAX}",
            value.len()
        )))
    } else {
        Ok(())
    }
}

fn check_memory(used: u64, limit: u64) -> Result<()> {
    if used > limit {
        Err(Error::limit(
            "the xattrs of this tree need more memory than the limit allows: give a larger \
         --memory",
        ))
    } else {
        Ok(())
    }
}
