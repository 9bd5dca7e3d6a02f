//! Writes the tree: takes directories depth first and writes equal ones once.
//!
//! Memory: the entries of the open directories; a digest and three numbers for each remembered
//! directory; one page of each kind. Nothing is kept per entry.

mod entry;
mod keys;
mod open;

use crate::write::image_writer::ImageWriter;
use crate::write::known_dirs::KnownDirs;
use crate::write::metadata::MetadataWriter;
pub use entry::{Body, LinkInfo, NewEntry};
use hashbrown::HashMap;
use keys::{append_key, append_logical, stored_fields};
use open::{Digester, OpenDirectory, Pending};
use weald_format::container::RecordType;
use weald_format::entries::{EntryBlockBuilder, EntryFields, EntryKind, time_mask};
use weald_format::limits::{ENTRIES_PER_BLOCK, ITEMS_PER_PAGE};
use weald_format::pages::{self, Template};
use weald_format::{Attributes, Digest, Error, Result, XattrSet};
use weald_image::Image;

/// Largest tree, in entries, that gets blocks of `ENTRIES_PER_BLOCK`: all its decoded blocks fit in
/// a reader's cache.
const SMALL_TREE_COUNT: u64 = 1 << 21;
/// Entries per block of larger trees, where a random lookup usually decodes a block.
const LARGE_TREE_BLOCK: usize = 1024;
/// Bytes of names and targets at which an entry block is closed early.
const BLOCK_TEXT_MAX: usize = 1 << 20;
/// Bytes of xattr sets at which a page is closed early.
const XATTR_PAGE_MAX: usize = 1 << 20;

/// Facts about a finished directory.
#[derive(Debug, Clone, Copy)]
struct KnownTemplate {
    id: u64,
    subtree_count: u64,
    links_across: bool,
}

/// Result of writing the tree.
#[derive(Debug, Clone, Copy)]
pub struct TreeSummary {
    /// Names, the root included.
    pub name_count: u64,
    /// Entries written (of distinct templates).
    pub entry_count: u64,
    /// Distinct directories.
    pub template_count: u64,
    /// Digest of the logical root entry, without hard links across directories.
    pub root_digest: Digest,
}

/// Writes the tree of one image.
pub struct TreeWriter {
    mask: u8,
    block_count_max: usize,
    counts_only: bool,
    open: Vec<OpenDirectory>,
    /// Closed directories, whose memory is used again.
    spare: Vec<OpenDirectory>,
    known: KnownDirs<KnownTemplate>,
    /// Whether all known templates come from this writer, none from an older generation.
    is_alone: bool,
    attributes: HashMap<Attributes, u64>,
    last_attributes: Option<(Attributes, u64)>,
    attribute_page: Vec<Attributes>,
    xattrs: HashMap<Digest, u64>,
    xattr_page: Vec<XattrSet>,
    xattr_page_len: usize,
    templates: Vec<Template>,
    template_count: u64,
    entry_count: u64,
    block: EntryBlockBuilder,
}

/// Digest of an xattr set for the tree digest.
pub fn xattr_digest(set: &XattrSet) -> Digest {
    Digest::of(&pages::encode_xattrs(std::slice::from_ref(set)))
}

impl TreeWriter {
    /// Creates a writer whose entries carry the times in `mask` (see [`time_mask`]). With
    /// `counts_only` it only counts and writes nothing. `entry_count` is the approximate number of
    /// entries to come.
    pub fn new(mask: u8, entry_count: u64, counts_only: bool) -> Self {
        Self {
            mask,
            block_count_max: if entry_count <= SMALL_TREE_COUNT {
                ENTRIES_PER_BLOCK
            } else {
                LARGE_TREE_BLOCK
            },
            counts_only,
            open: vec![OpenDirectory::new()],
            spare: Vec::new(),
            known: KnownDirs::new(),
            is_alone: true,
            attributes: HashMap::new(),
            last_attributes: None,
            attribute_page: Vec::new(),
            xattrs: HashMap::new(),
            xattr_page: Vec::new(),
            xattr_page_len: 0,
            templates: Vec::new(),
            template_count: 0,
            entry_count: 0,
            block: EntryBlockBuilder::default(),
        }
    }

    /// Limits the memory for known directories to `memory_len` bytes. A directory that was
    /// forgotten and comes again is written again, which costs space and changes nothing else.
    pub fn limit_known(&mut self, memory_len: u64) {
        self.known.limit(memory_len);
    }

    /// Loads the attributes, xattr sets and templates of `image`, so that none of them is written
    /// again.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    /// # Cost
    /// Decodes all entries of `image`; memory for a key and two numbers per template.
    pub fn load_templates_of(&mut self, image: &Image) -> Result<()> {
        for attributes in image.all_attributes()? {
            let id = self.attributes.len() as u64;
            self.attributes.entry(attributes).or_insert(id);
        }
        let xattrs = &mut self.xattrs;
        image.each_xattr_set(&mut |set| {
            let id = xattrs.len() as u64;
            xattrs.entry(xattr_digest(set)).or_insert(id);
        })?;
        self.is_alone = false;
        let mask = self.mask;
        image.each_template(&mut |id, template| {
            let mut key = Digester::default();
            let mut has_same_times = true;
            image.each_entry_of(&template, &mut |block, index| {
                let (fields, held) = stored_fields(block, index);
                has_same_times &= held == mask;
                let target = (fields.kind == EntryKind::Symlink).then(|| block.target(index));
                key.add(|out| append_key(out, mask, block.name(index), target, &fields));
                Ok(())
            })?;
            if has_same_times {
                let subtree_count = template.subtree_count;
                let known = KnownTemplate {
                    id,
                    subtree_count,
                    links_across: true,
                };
                self.known.insert(key.finish(), known);
            }
            self.template_count = id + 1;
            self.entry_count = template.entry_start + template.entry_count;
            Ok(())
        })
    }

    /// Opens a directory. Its entries follow, then [`TreeWriter::leave`] with the directory's own
    /// entry.
    pub fn enter(&mut self) {
        let directory = self.spare.pop();
        self.open.push(directory.unwrap_or_else(OpenDirectory::new));
    }

    /// Number of entries of all open directories.
    pub fn open_entry_count(&self) -> u64 {
        self.open.iter().map(|d| d.entries.len() as u64).sum()
    }

    /// Adds an entry that is no directory to the innermost open directory. Names must come in byte
    /// order.
    ///
    /// # Errors
    /// `Io`, `Full`; `Invalid` if names are out of order.
    pub fn add(&mut self, out: &mut Out<'_>, entry: &NewEntry<'_>) -> Result<()> {
        let body = match entry.body {
            Body::Content(id, _) => id.0,
            _ => 0,
        };
        match entry.body {
            Body::None | Body::Empty => self.append(out, entry, body, &[]),
            Body::Content(_, digest) => self.append(out, entry, body, &digest.0),
            Body::Target(target) => self.append(out, entry, body, target),
        }
    }

    /// Closes the innermost open directory and adds `entry`, its own entry, to its parent.
    ///
    /// # Errors
    /// As [`TreeWriter::add`].
    pub fn leave(&mut self, out: &mut Out<'_>, entry: &NewEntry<'_>) -> Result<()> {
        let Some(mut directory) = self.open.pop() else {
            return Err(Error::invalid("no directory is open"));
        };
        let logical = Digest(directory.logical.finish());
        let known = self.template_of(out, &directory, &logical, false)?;
        directory.reuse();
        self.spare.push(directory);
        if let Some(parent) = self.open.last_mut() {
            parent.deeper_count += known.subtree_count;
            parent.directory_count += 1;
            parent.links_across |= known.links_across;
        }
        self.append(out, entry, known.id, &logical.0)
    }

    fn append(
        &mut self,
        out: &mut Out<'_>,
        entry: &NewEntry<'_>,
        body: u64,
        logical_body: &[u8],
    ) -> Result<()> {
        let attributes = self.attribute_id(out, entry.attributes)?;
        let (xattrs, xattr_digest) = match entry.xattrs {
            Some(set) if !set.is_empty() => self.xattr_id(out, set)?,
            _ => (0, Digest::default()),
        };
        let (nlink, link_back) = match entry.link {
            LinkInfo::Single => (1, 0),
            LinkInfo::Inside { nlink, back } => (nlink, back),
            LinkInfo::Across => (0, 0),
        };
        let fields = EntryFields {
            kind: entry.kind,
            attributes,
            xattrs,
            nlink,
            link_back,
            times: entry.times,
            body,
        };
        let Some(directory) = self.open.last_mut() else {
            return Err(Error::invalid("no directory is open"));
        };
        if directory.last_name().is_some_and(|last| last >= entry.name) {
            return Err(Error::invalid(format!(
                "names out of order at {:?}",
                entry.name.escape_ascii().to_string()
            )));
        }
        let target = match entry.body {
            Body::Target(target) => Some(target),
            _ => None,
        };
        directory.links_across |= entry.link == LinkInfo::Across;
        directory
            .logical
            .add(|out| append_logical(out, entry, &xattr_digest, logical_body));
        directory.names.extend_from_slice(entry.name);
        directory.targets.extend_from_slice(target.unwrap_or(b""));
        let (name_end, target_end) = (directory.names.len(), directory.targets.len());
        directory.entries.push(Pending {
            name_end,
            target_end,
            fields,
        });
        Ok(())
    }

    /// Returns the template of `directory` and writes it if it is new. With `is_last` it must be
    /// the last template, so an earlier equal one is written again.
    fn template_of(
        &mut self,
        out: &mut Out<'_>,
        directory: &OpenDirectory,
        logical: &Digest,
        is_last: bool,
    ) -> Result<KnownTemplate> {
        let key = self.key_of(directory, logical);
        if let Some(known) = self.known.get(&key)
            && (!is_last || known.id + 1 == self.template_count)
        {
            return Ok(known);
        }
        let template = Template {
            entry_start: self.entry_count,
            entry_count: directory.entries.len() as u64,
            subtree_count: directory.entries.len() as u64 + directory.deeper_count,
            directory_count: directory.directory_count,
        };
        if template.subtree_count >= weald_format::limits::NUMBER_MAX {
            return Err(Error::limit("more than 2^62 names"));
        }
        let known = KnownTemplate {
            id: self.template_count,
            subtree_count: template.subtree_count,
            links_across: directory.links_across,
        };
        self.write_entries(out, directory)?;
        self.entry_count += template.entry_count;
        self.template_count += 1;
        if !self.counts_only {
            self.templates.push(template);
            if self.templates.len() == ITEMS_PER_PAGE {
                self.write_templates(out)?;
            }
        }
        self.known.insert(key, known);
        Ok(known)
    }

    /// Key of the template of `directory`. If entries carry mtimes and no other times, the logical
    /// digest serves as key, so that nothing is digested twice. The logical digest does not say
    /// which names share an inode with names elsewhere; such directories need a key of their own.
    fn key_of(&self, directory: &OpenDirectory, logical: &Digest) -> [u8; 32] {
        if self.is_alone && self.mask == time_mask::MTIME && !directory.links_across {
            return logical.0;
        }
        let mut key = Digester::default();
        let (mut name_start, mut target_start) = (0, 0);
        for entry in &directory.entries {
            let name = &directory.names[name_start..entry.name_end];
            let target = &directory.targets[target_start..entry.target_end];
            let target = (entry.fields.kind == EntryKind::Symlink).then_some(target);
            key.add(|out| append_key(out, self.mask, name, target, &entry.fields));
            (name_start, target_start) = (entry.name_end, entry.target_end);
        }
        key.finish()
    }

    fn write_entries(&mut self, out: &mut Out<'_>, directory: &OpenDirectory) -> Result<()> {
        if self.counts_only {
            return Ok(());
        }
        if directory.entries.len() >= self.block_count_max / 4 {
            self.write_block(out)?;
        }
        let (mut name_start, mut target_start) = (0, 0);
        for entry in &directory.entries {
            let name = &directory.names[name_start..entry.name_end];
            let target = &directory.targets[target_start..entry.target_end];
            self.block.push(name, target, &entry.fields);
            (name_start, target_start) = (entry.name_end, entry.target_end);
            if self.block.count() == self.block_count_max || self.block.text_len() >= BLOCK_TEXT_MAX
            {
                self.write_block(out)?;
            }
        }
        Ok(())
    }

    fn write_block(&mut self, out: &mut Out<'_>) -> Result<()> {
        if self.block.count() == 0 {
            return Ok(());
        }
        let block = std::mem::take(&mut self.block);
        out.metadata.push_block(out.image, block, self.mask)
    }

    fn write_templates(&mut self, out: &mut Out<'_>) -> Result<()> {
        let templates = std::mem::take(&mut self.templates);
        match templates.len() {
            0 => Ok(()),
            count => out.push(
                RecordType::Templates,
                pages::TemplatePage::encode(&templates),
                count as u64,
            ),
        }
    }

    fn attribute_id(&mut self, out: &mut Out<'_>, attributes: Attributes) -> Result<u64> {
        if let Some((_, id)) = self.last_attributes.filter(|(last, _)| *last == attributes) {
            return Ok(id);
        }
        if let Some(&id) = self.attributes.get(&attributes) {
            self.last_attributes = Some((attributes, id));
            return Ok(id);
        }
        let id = self.attributes.len() as u64;
        self.attributes.insert(attributes, id);
        self.attribute_page.push(attributes);
        if self.attribute_page.len() == ITEMS_PER_PAGE {
            self.write_attributes(out)?;
        }
        Ok(id)
    }

    fn write_attributes(&mut self, out: &mut Out<'_>) -> Result<()> {
        let page = std::mem::take(&mut self.attribute_page);
        match page.len() {
            0 => Ok(()),
            count => out.push(
                RecordType::Attributes,
                pages::encode_attributes(&page),
                count as u64,
            ),
        }
    }

    fn xattr_id(&mut self, out: &mut Out<'_>, set: &XattrSet) -> Result<(u64, Digest)> {
        let digest = xattr_digest(set);
        if let Some(&id) = self.xattrs.get(&digest) {
            return Ok((id + 1, digest));
        }
        // Sources check their sets and name the file; this is the one place where all pass.
        pages::check_xattrs(set)?;
        let id = self.xattrs.len() as u64;
        self.xattrs.insert(digest, id);
        self.xattr_page_len += pages::xattr_set_len(set);
        self.xattr_page.push(set.clone());
        if self.xattr_page.len() == ITEMS_PER_PAGE || self.xattr_page_len >= XATTR_PAGE_MAX {
            self.write_xattrs(out)?;
        }
        Ok((id + 1, digest))
    }

    fn write_xattrs(&mut self, out: &mut Out<'_>) -> Result<()> {
        self.xattr_page_len = 0;
        let page = std::mem::take(&mut self.xattr_page);
        match page.len() {
            0 => Ok(()),
            count => out.push(
                RecordType::Xattrs,
                pages::encode_xattrs(&page),
                count as u64,
            ),
        }
    }

    /// Writes everything that is still buffered: the template that holds the root, and the last
    /// page of each kind. The root must have been left.
    ///
    /// # Errors
    /// As [`TreeWriter::add`].
    pub fn finish(mut self, out: &mut Out<'_>) -> Result<TreeSummary> {
        let Some(mut holder) = self
            .open
            .pop()
            .filter(|h| h.entries.len() == 1 && self.open.is_empty())
        else {
            return Err(Error::invalid("a tree needs exactly one root"));
        };
        let root_digest = Digest(holder.logical.finish());
        let known = self.template_of(out, &holder, &root_digest, true)?;
        if known.id + 1 != self.template_count {
            return Err(Error::invalid("the root's holder is not the last template"));
        }
        self.write_block(out)?;
        self.write_templates(out)?;
        self.write_attributes(out)?;
        self.write_xattrs(out)?;
        Ok(TreeSummary {
            name_count: known.subtree_count,
            entry_count: self.entry_count,
            template_count: self.template_count - 1,
            root_digest,
        })
    }
}

/// Destination of the tree writer's records.
pub struct Out<'a> {
    /// The image.
    pub image: &'a mut ImageWriter,
    /// The metadata writer, which encodes records and hands them to the image.
    pub metadata: &'a mut MetadataWriter,
}

impl Out<'_> {
    /// Hands a raw metadata record to the metadata writer.
    ///
    /// # Errors
    /// `Io`, `Full`, `Limit`.
    pub fn push(&mut self, record_type: RecordType, bytes: Vec<u8>, item_count: u64) -> Result<()> {
        self.metadata
            .push(self.image, record_type, bytes, item_count)
    }
}

/// Returns the mask for entries that carry these times.
pub fn mask_of(mtime: bool, atime: bool, ctime: bool, btime: bool) -> u8 {
    let bit = |on: bool, bit: u8| if on { bit } else { 0 };
    bit(mtime, time_mask::MTIME)
        | bit(atime, time_mask::ATIME)
        | bit(ctime, time_mask::CTIME)
        | bit(btime, time_mask::BTIME)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::write::image_writer::Sink;
    use weald_format::Timestamp;

    fn entry<'a>(name: &'a [u8], kind: EntryKind, body: Body<'a>) -> NewEntry<'a> {
        NewEntry {
            name,
            kind,
            attributes: Attributes::default(),
            times: [Timestamp::default(); 4],
            xattrs: None,
            body,
            link: LinkInfo::Single,
        }
    }

    /// Writes 600 directories with 200 distinct contents: each has one file, named by a number.
    fn written(known_len: Option<u64>) -> TreeSummary {
        let mut image = ImageWriter::begin(Sink::Count).unwrap();
        let mut metadata = MetadataWriter::new(1);
        let mut out = Out {
            image: &mut image,
            metadata: &mut metadata,
        };
        let mut writer = TreeWriter::new(time_mask::MTIME, 1200, false);
        if let Some(len) = known_len {
            writer.limit_known(len);
        }
        writer.enter();
        for no in 0..600 {
            writer.enter();
            let name = (no % 200).to_string();
            let file = entry(name.as_bytes(), EntryKind::Empty, Body::Empty);
            writer.add(&mut out, &file).unwrap();
            let name = format!("{no:04}");
            let dir = entry(name.as_bytes(), EntryKind::Directory, Body::None);
            writer.leave(&mut out, &dir).unwrap();
        }
        let root = entry(b"", EntryKind::Directory, Body::None);
        writer.leave(&mut out, &root).unwrap();
        writer.finish(&mut out).unwrap()
    }

    /// Would catch: a memory limit that changes the tree, or that has no effect.
    #[test]
    fn evicted_directories_are_written_again_and_the_tree_is_the_same() {
        let (all, some) = (written(None), written(Some(4 << 10)));
        assert_eq!(all.template_count, 201);
        assert_eq!(some.template_count, 601);
        assert_eq!(some.root_digest, all.root_digest);
        assert_eq!(some.name_count, all.name_count);
    }
}
