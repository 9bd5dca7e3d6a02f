//! A seal beside operations, commits and crashes: it must read the tree of the moment it began.

use super::perform::Difference;
use crate::{BlockPlace, Hold, Volume, VolumeReader};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::sync::Arc;
use weald_format::container::{Codec, HEADER_LEN, RecordRef, RecordType};
use weald_format::store::Part;
use weald_format::{Digest, Error, ErrorKind, FileKind, Result};
use weald_io::ReadAt;
use weald_model::ModelFs;
use weald_store::engine::RowsFile;
use weald_store::{NewPart, Store, StoredImage};
use weald_vfs::{Ino, WritableFs};

/// A seal that is under way.
pub struct Sealing {
    hold: Hold,
    rows: Option<Vec<u8>>,
    /// The blocks that the tree refers to, when it was compared.
    parts: Vec<NewPart>,
    /// The tree when it began.
    model: ModelFs,
    /// Name of the volume.
    name: &'static str,
}

impl Sealing {
    /// Begins a seal of `volume`, whose name is `name` and which is as `model`.
    pub fn begin(
        (volume, name): (&Arc<Volume>, &'static str),
        model: &ModelFs,
        is_late: bool,
    ) -> Result<Self> {
        let mut sealing = Self {
            hold: volume.hold()?,
            rows: None,
            parts: Vec::new(),
            model: model.clone(),
            name,
        };
        if !is_late {
            sealing.copy()?;
        }
        Ok(sealing)
    }

    fn copy(&mut self) -> Result<()> {
        let mut rows = Vec::new();
        self.hold.copy_rows(&mut |bytes| {
            rows.extend_from_slice(bytes);
            Ok(())
        })?;
        self.rows = Some(rows);
        Ok(())
    }

    /// Whether it has lost its state.
    pub fn is_over(&self) -> bool {
        self.hold.is_over()
    }

    /// Reads everything, and compares it with the tree when it began.
    pub fn compare(&mut self, store: &Store) -> std::result::Result<(), Difference> {
        let unreadable = |error: Error| match error.kind() {
            // A disk that failed answers this, and nothing else does.
            ErrorKind::Io => Difference::Unreadable(error.to_string()),
            _ => Difference::Differs(error.to_string()),
        };
        if self.rows.is_none() {
            self.copy().map_err(unreadable)?;
        }
        let rows = self.rows.take().unwrap_or_default();
        let rows = RowsFile::open(Box::new(rows)).map_err(unreadable)?;
        let reader = VolumeReader::of_rows(store, Arc::new(rows), self.name).map_err(unreadable)?;
        let found = compare_inode(&reader, &self.model, Ino::ROOT, "/");
        found
            .and_then(|()| self.note_blocks(&reader))
            .map_err(unreadable)
    }

    fn note_blocks(&mut self, reader: &VolumeReader) -> Result<()> {
        for ino in self.model.inos() {
            let stat = self.model.stat(ino).expect("an inode of the model");
            if stat.kind != FileKind::Regular || stat.nlink == 0 {
                continue;
            }
            for extent in reader.extents(ino)? {
                if let Some(BlockPlace { block, .. }) = extent.block
                    && let Part::Block { record, .. } = reader.part(block)?
                {
                    self.parts.push(NewPart::Stored(block, record));
                }
            }
        }
        Ok(())
    }

    /// The records of the image `name` that [`Sealing::add`] makes: a new one, and those of the
    /// tree.
    pub fn records(&self, name: &str) -> Vec<RecordRef> {
        let stored = self.parts.iter().filter_map(|part| match part {
            NewPart::Stored(_, record) => Some(*record),
            _ => None,
        });
        std::iter::once(new_record(name).0).chain(stored).collect()
    }

    /// Adds an image of these records to the store. `beside` happens in between, and returns
    /// whether the image is given up.
    pub fn add(&mut self, name: &str, beside: &mut dyn FnMut() -> bool) -> Result<Addition> {
        let (record, stored) = new_record(name);
        let mut adding = self.hold.add_image(name)?;
        adding.put(vec![
            NewPart::Inline(SUPERBLOCK.to_vec()),
            NewPart::Record(record, stored),
        ])?;
        if beside() {
            return Ok(Addition::GivenUp);
        }
        let mut parts = std::mem::take(&mut self.parts);
        parts.push(NewPart::End(Digest::default(), Digest::default()));
        adding.put(parts)?;
        if beside() {
            return Ok(Addition::GivenUp);
        }
        adding.write_map()?;
        loop {
            let has_more = adding.count_some()?;
            if beside() {
                return Ok(Addition::GivenUp);
            }
            if !has_more {
                return adding.show().map(|_| Addition::Done);
            }
        }
    }
}

/// End of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Addition {
    Done,
    GivenUp,
}

const SUPERBLOCK: &[u8] = b"superblock";

/// The new record of the image `name`.
fn new_record(name: &str) -> (RecordRef, Vec<u8>) {
    let stored = name.as_bytes().repeat(1000);
    let record = RecordRef {
        record_type: RecordType::Data,
        codec: Codec::None,
        offset: 0,
        stored_len: stored.len() as u64,
        raw_len: stored.len() as u64,
        digest: Digest::of(&stored),
    };
    (record, stored)
}

/// Reads the image `name`, which must have these records.
pub fn compare_image(store: &Store, name: &str, records: &[RecordRef]) -> Result<()> {
    let image = StoredImage::open(store.clone(), name)?;
    let wrong = |what: String| Error::corrupt("image", 0, "none", format!("{name}: {what}"));
    let mut at = SUPERBLOCK.len() as u64;
    for (index, record) in records.iter().enumerate() {
        let mut header = [0; HEADER_LEN];
        image.read_exact_at(&mut header, at)?;
        at += HEADER_LEN as u64;
        let mut stored = vec![0; record.stored_len as usize];
        image.read_exact_at(&mut stored, at)?;
        at += record.stored_len;
        let found = RecordRef::parse_header(&header, 0)?;
        if found != *record || Digest::of(&stored) != record.digest {
            return Err(wrong(format!("record {index} differs")));
        }
    }
    if image.len() == at {
        Ok(())
    } else {
        Err(wrong(format!("has {} bytes, not {at}", image.len())))
    }
}

fn differs(path: &str, what: &str) -> Error {
    Error::invalid(format!("sealed {path}: {what}"))
}

fn compare_inode(reader: &VolumeReader, model: &ModelFs, ino: Ino, path: &str) -> Result<()> {
    let wanted = model.stat(ino).expect("an inode of the model");
    let row = reader.inode(ino)?;
    let found = (row.kind, row.permissions, row.uid, row.gid, row.nlink);
    let of = (
        wanted.kind,
        wanted.permissions,
        wanted.uid,
        wanted.gid,
        wanted.nlink,
    );
    if found != of || (row.size, row.mtime) != (wanted.size, wanted.mtime) {
        return Err(differs(path, &format!("{row:?}, not {wanted:?}")));
    }
    let mut attributes = BTreeMap::new();
    for name in model.xattr_names(ino).expect("names of attributes") {
        let value = model.xattr(ino, &name).expect("an attribute of the model");
        attributes.insert(name, value);
    }
    let mut found = BTreeMap::new();
    for xattr in reader.xattrs(ino)?.iter() {
        found.insert(xattr.name.clone(), xattr.value.clone());
    }
    if found != attributes {
        return Err(differs(path, "other attributes"));
    }
    match wanted.kind {
        FileKind::Directory => compare_dir(reader, model, ino, path),
        FileKind::Regular => compare_content(reader, model, ino, path),
        FileKind::Symlink if row.target != model.read_link(ino).expect("a target") => {
            Err(differs(path, "another target"))
        }
        _ => Ok(()),
    }
}

fn compare_dir(reader: &VolumeReader, model: &ModelFs, dir: Ino, path: &str) -> Result<()> {
    let mut wanted = BTreeMap::new();
    let listed = model.list(dir, 0, &mut |entry| {
        wanted.insert(entry.name.to_vec(), entry.stat.ino);
        true
    });
    listed.expect("a listing of the model");
    let names = reader.names(dir)?;
    let found: BTreeMap<_, _> = names
        .iter()
        .map(|row| (row.name.clone(), row.ino))
        .collect();
    if found != wanted {
        return Err(differs(path, &format!("lists {found:?}, not {wanted:?}")));
    }
    for (name, ino) in wanted {
        let path = format!("{path}{}/", String::from_utf8_lossy(&name));
        compare_inode(reader, model, ino, &path)?;
    }
    Ok(())
}

fn compare_content(reader: &VolumeReader, model: &ModelFs, ino: Ino, path: &str) -> Result<()> {
    let extents = reader.extents(ino)?;
    for extent in extents.iter().filter(|extent| extent.block.is_some()) {
        let mut wanted = Vec::new();
        let read = model.read(ino, extent.start, extent.len as usize, &mut wanted);
        read.expect("content of the model");
        let mut is_equal = false;
        reader.read(extent, &mut |bytes| is_equal = bytes == wanted)?;
        if !is_equal {
            return Err(differs(path, &format!("other content in {extent:?}")));
        }
    }
    // Data of the model must not be a hole, unless it is zero.
    let mut at = 0;
    loop {
        let start = match model.seek(ino, at, false) {
            Err(failure) if failure.errno == Errno::NXIO => return Ok(()),
            sought => sought.expect("data of the model"),
        };
        at = model.seek(ino, start, true).expect("a hole of the model");
        let mut bytes = Vec::new();
        let read = model.read(ino, start, (at - start) as usize, &mut bytes);
        read.expect("content of the model");
        for hole in extents.iter().filter(|extent| extent.block.is_none()) {
            let from = hole.start.clamp(start, at) - start;
            let to = (hole.start + hole.len).clamp(start, at) - start;
            if bytes[from as usize..to as usize]
                .iter()
                .any(|byte| *byte != 0)
            {
                return Err(differs(path, &format!("data is missing in {hole:?}")));
            }
        }
    }
}
