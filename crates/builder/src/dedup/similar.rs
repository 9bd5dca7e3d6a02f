//! Chooses the contents of a continued image that a new content may repeat in part, so that a
//! build decodes these and not the whole image.
//!
//! The choice is advisory: the segmenter compares every repeat byte by byte. It depends on names
//! and lengths alone, never on time or threads.

use crate::dedup::starting_images::IndexedImage;
use std::ops::ControlFlow;
use weald_format::entries::EntryKind;
use weald_format::{ContentId, FileKind, Result};
use weald_image::{Image, Inode};

/// Share of the source, in per cent, that may be new before the whole image is sampled. So many new
/// contents repeat data of most blocks, and compressing them takes longer than decoding all.
const NEW_PERCENT_MAX: u64 = 30;
/// Image, in bytes of contents, that is sampled whole at once: decoding it takes milliseconds.
const SMALL_IMAGE_LEN: u64 = 1 << 20;
/// Number of contents with the same base name that are chosen for a file with a new path.
const NAMESAKES_MAX: usize = 4;
/// Number of neighbours in byte order, on each side, that are chosen for a new name.
const NAME_NEIGHBOUR_COUNT: u64 = 2;

/// The data to sample before a new content is added.
#[derive(Debug, PartialEq, Eq)]
pub enum Choice {
    /// The whole image.
    All,
    /// These contents, none of which was chosen before.
    Contents(Vec<ContentId>),
}

/// A file of the image by its base name.
struct Namesake {
    name: u32,
    /// Hash of the name of its directory.
    dir: u32,
    id: u32,
}

/// Chooses contents for one new content after the other.
pub struct SimilarContents {
    /// For each content by number, whether it was chosen.
    is_chosen: Vec<bool>,
    /// Files sorted by the hash of their base names; made when the first new path comes.
    namesakes: Option<Vec<Namesake>>,
    new_len: u64,
    new_len_max: u64,
    takes_all: bool,
}

impl SimilarContents {
    /// Creates a choice among the contents of `image` for a source of `total_len` bytes.
    pub fn new(image: &Image, total_len: u64) -> Self {
        let summary = image.summary();
        let is_small = summary.content_len <= SMALL_IMAGE_LEN;
        Self {
            is_chosen: vec![false; summary.content_count as usize],
            namesakes: None,
            new_len: 0,
            new_len_max: if is_small {
                0
            } else {
                total_len / 100 * NEW_PERCENT_MAX
            },
            takes_all: false,
        }
    }

    /// Chooses contents for a new content of `len` bytes at `path`, which is relative to the root
    /// of the tree: the one at the same path; if there is none, those with the same base name and
    /// the neighbours in the same directory.
    ///
    /// # Errors
    /// `Io`, `Corrupt` from the image.
    pub fn choose(&mut self, indexed: &IndexedImage, path: &[u8], len: u64) -> Result<Choice> {
        if self.takes_all {
            return Ok(Choice::Contents(Vec::new()));
        }
        self.new_len = self.new_len.saturating_add(len);
        if self.new_len > self.new_len_max {
            self.takes_all = true;
            return Ok(Choice::All);
        }
        let image = &*indexed.image;
        let mut found = match inode_at(image, path)?.and_then(|inode| inode.content) {
            Some(id) => vec![id],
            None => self.of_new_path(indexed, path)?,
        };
        for id in found.clone() {
            if indexed.made.binary_search(&id).is_ok() {
                found.extend(image.recipe_inputs_of(id)?);
            }
        }
        found.retain(|id| {
            let mark = self.is_chosen.get_mut(id.0 as usize);
            mark.is_some_and(|mark| !std::mem::replace(mark, true))
        });
        Ok(Choice::Contents(found))
    }

    /// Contents that a file at a path that the image does not have may have come from.
    fn of_new_path(&mut self, indexed: &IndexedImage, path: &[u8]) -> Result<Vec<ContentId>> {
        let image = &*indexed.image;
        let (dir, name) = split(path);
        let namesakes = match &self.namesakes {
            Some(namesakes) => namesakes,
            None => self.namesakes.insert(namesakes(indexed)?),
        };
        let (name_hash, dir_hash) = (hash(name), hash(split(dir).1));
        let first = namesakes.partition_point(|file| file.name < name_hash);
        let same = namesakes[first..].iter();
        let same = same.take_while(|file| file.name == name_hash);
        let (near, far): (Vec<_>, Vec<_>) = same.partition(|file| file.dir == dir_hash);
        let chosen = near.into_iter().chain(far).take(NAMESAKES_MAX);
        let mut found: Vec<ContentId> = chosen.map(|file| ContentId(u64::from(file.id))).collect();
        if let Some(dir) = inode_at(image, dir)?.filter(|dir| dir.kind == FileKind::Directory) {
            found.extend(neighbours(image, &dir, name)?);
        }
        Ok(found)
    }
}

/// Directory and base name of a path.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}

/// The inode at `path` from the root of `image`.
///
/// # Errors
/// `Io`, `Corrupt`.
pub fn inode_at(image: &Image, path: &[u8]) -> Result<Option<Inode>> {
    let mut inode = image.root()?;
    for name in path.split(|&byte| byte == b'/').filter(|n| !n.is_empty()) {
        if inode.kind != FileKind::Directory {
            return Ok(None);
        }
        match image.lookup(inode.ino, name)? {
            Some(below) => inode = below,
            None => return Ok(None),
        }
    }
    Ok(Some(inode))
}

/// Contents of the files next to `name` in the byte order of names in `dir`.
fn neighbours(image: &Image, dir: &Inode, name: &[u8]) -> Result<Vec<ContentId>> {
    let (mut low, mut high) = (0, dir.size.0);
    while low < high {
        let middle = low + (high - low) / 2;
        let mut is_before = false;
        image.read_dir(dir.ino, middle, &mut |_, other, _| {
            is_before = other < name;
            ControlFlow::Break(())
        })?;
        if is_before {
            low = middle + 1
        } else {
            high = middle
        }
    }
    let (start, end) = (
        low.saturating_sub(NAME_NEIGHBOUR_COUNT),
        low + NAME_NEIGHBOUR_COUNT,
    );
    let mut found = Vec::new();
    image.read_dir(dir.ino, start, &mut |index, _, inode| {
        if index >= end {
            return ControlFlow::Break(());
        }
        found.extend(inode.content);
        ControlFlow::Continue(())
    })?;
    Ok(found)
}

/// The files of the image's tree, sorted by the hash of their base names.
fn namesakes(indexed: &IndexedImage) -> Result<Vec<Namesake>> {
    let image = &indexed.image;
    let mut dirs = vec![0; image.summary().template_count as usize];
    let mut files = Vec::new();
    image.each_template(&mut |template_no, template| {
        image.each_entry_of(&template, &mut |block, index| {
            let (name, body) = (hash(block.name(index)), block.body(index));
            match block.kind(index) {
                EntryKind::File if indexed.is_used(ContentId(body)) => files.push(Namesake {
                    name,
                    // The name of the directory is not known yet, only its number.
                    dir: template_no as u32,
                    id: body as u32,
                }),
                EntryKind::Directory => {
                    if let Some(dir) = dirs.get_mut(body as usize) {
                        *dir = name;
                    }
                }
                _ => {}
            }
            Ok(())
        })
    })?;
    for file in &mut files {
        file.dir = dirs.get(file.dir as usize).copied().unwrap_or(0);
    }
    files.sort_unstable_by_key(|file| (file.name, file.id, file.dir));
    files.dedup_by_key(|file| (file.name, file.id));
    Ok(files)
}

/// A hash of a name: FNV-1a.
fn hash(name: &[u8]) -> u32 {
    name.iter().fold(0x811c_9dc5, |hash, &byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}
