//! The layers of an image as the source of a build.
//!
//! The first pass reads the members of all layers without their contents, verifies all digests, and
//! finds the members that are in the tree. The second pass stores the contents of these alone, so
//! that nothing that an upper layer hides takes space, and verifies the digests again.

use super::choose::Chosen;
use super::layer::LayerReader;
use super::survivors::{FindOptions, Kind, Survivors, find, put_record};
use crate::assemble::{Tree, assemble};
use crate::gather::{GatherOptions, KnownDirs, check_limits, store_content};
use crate::links::LinkTexts;
use crate::member::{self, Member, MemberKind};
use crate::members::Members;
use crate::path::{self, SEPARATOR};
use crate::sort::Sorter;
use crate::source::{CONTENTS_SHARE, DECODER_SHARE, DIRS_SHARE, SORT_SHARE, send_links, send_tree};
use std::path::PathBuf;
use weald_builder::stream::{ContentStore, StreamRoot, StreamSize, TreeSink, TreeSource};
use weald_builder::{BuildOptions, Observer, Problem};
use weald_format::pages::Link;
use weald_format::{Error, FileKind, Result};

/// Share of the memory for tables of members. A larger one would raise the default memory limit of
/// level 7. While the tables grow, the share of the contents is still unused.
const TABLES_SHARE: u64 = 64;
/// Members between two checks for an interrupt.
const CANCEL_CHECK_COUNT: u64 = 1 << 12;
/// Prefix of whiteouts.
const WHITEOUT_PREFIX: &[u8] = b".wh.";
/// Prefix of marks that are no whiteouts of a name.
const MARK_PREFIX: &[u8] = b".wh..wh.";
/// Name of the mark of an opaque directory.
const OPAQUE: &[u8] = b".wh..wh..opq";

/// Layers that become an image.
pub struct LayersSource<'a> {
    chosen: &'a Chosen,
    dir: PathBuf,
    options: &'a BuildOptions,
    observer: &'a dyn Observer,
    tree: Option<Tree>,
    has_one_mtime: bool,
    /// Problems reported to the observer.
    pub problem_count: u64,
}

/// Meaning of a member's path.
enum Meaning {
    Member,
    /// Hides this path in lower layers.
    Whiteout(Vec<u8>),
    /// Hides the entries of this directory in lower layers.
    Opaque(Vec<u8>),
    Ignored,
}

/// The meaning of `path`; leading slashes are removed from it, as container engines do.
fn meaning(path: &mut Vec<u8>) -> Result<Meaning> {
    let slashes = path.iter().take_while(|&&b| b == b'/').count();
    path.drain(..slashes);
    if path.is_empty() {
        path.push(b'.');
    }
    let mut names = path.split(|&b| b == b'/');
    if names.any(|name| name == b"..") {
        return Ok(Meaning::Member);
    }
    let end = path.iter().rposition(|&b| b != b'/').map_or(0, |at| at + 1);
    let start = path[..end]
        .iter()
        .rposition(|&b| b == b'/')
        .map_or(0, |at| at + 1);
    let (dir, name) = (&path[..start], &path[start..end]);
    if name == OPAQUE {
        return Ok(Meaning::Opaque([b"./", dir].concat()));
    }
    if name.starts_with(MARK_PREFIX) {
        return Ok(Meaning::Ignored);
    }
    match name.strip_prefix(WHITEOUT_PREFIX) {
        None => Ok(Meaning::Member),
        Some(b"" | b"." | b"..") => {
            let shown = weald_vfs::shown_path(path);
            Err(Error::invalid(format!("{shown}: a whiteout of no name")))
        }
        Some(hidden) => Ok(Meaning::Whiteout([dir, hidden].concat())),
    }
}

impl<'a> LayersSource<'a> {
    /// The layers of `chosen`. Temporary files go to `dir`.
    pub fn new(
        chosen: &'a Chosen,
        dir: PathBuf,
        options: &'a BuildOptions,
        observer: &'a dyn Observer,
    ) -> Self {
        Self {
            chosen,
            dir,
            options,
            observer,
            tree: None,
            has_one_mtime: true,
            problem_count: 0,
        }
    }

    fn of_layout(&self, error: Error) -> Error {
        error.context(&self.chosen.shown)
    }

    fn share(&self, share: u64) -> u64 {
        self.options.source_len() / share
    }

    /// Reads all members of all layers and verifies the layers. `take` gets the number of the
    /// layer, the number of the member, and the member.
    fn each_member(&mut self, is_first: bool, take: &mut TakeMember<'_>) -> Result<u64> {
        let (mut seq, mut member) = (0_u64, Member::default());
        for (no, file) in (1..).zip(&self.chosen.layers) {
            let opened = LayerReader::open(file, no, self.share(DECODER_SHARE));
            let mut reader = opened.map_err(|e| self.of_layout(e))?;
            loop {
                let (observer, count) = (self.observer, &mut self.problem_count);
                let mut tell = |path: &[u8], what| {
                    if is_first {
                        *count += 1;
                        let path = path.to_vec();
                        observer.problem(&Problem { path, what });
                    }
                };
                let next = reader.next(&mut member, &mut tell);
                if !next.map_err(|e| self.of_layout(e))? {
                    break;
                }
                let taken = take(no as u64, seq, &mut member, &mut reader);
                taken.map_err(|e| self.of_layout(reader.explain(e)))?;
                seq += 1;
                if seq.is_multiple_of(CANCEL_CHECK_COUNT) && self.observer.is_cancelled() {
                    return Err(Error::invalid("interrupted"));
                }
            }
            reader.finish().map_err(|e| self.of_layout(e))?;
        }
        Ok(seq)
    }

    /// The first pass: verifies all layers. Returns the count of their members, and which of these
    /// are in the tree.
    ///
    /// # Errors
    /// As [`super::import_oci`].
    pub fn survivors(&mut self) -> Result<(u64, Survivors)> {
        let mut first = FirstPass {
            sorter: Sorter::new(&self.dir, self.share(SORT_SHARE))?,
            texts: LinkTexts::default(),
            dirs: KnownDirs::new(self.share(DIRS_SHARE)),
            dirs_len: self.share(DIRS_SHARE),
            layer: 0,
            layer_start: 0,
            dir: self.dir.clone(),
            record: Vec::new(),
        };
        let count = self.each_member(true, &mut |layer, seq, member, _| {
            first.take(layer, seq, member)
        })?;
        let options = FindOptions {
            member_count: count,
            memory_len: self.share(TABLES_SHARE),
            filter: &self.options.filter,
        };
        let found = find(first.sorter.finish()?, &options);
        let found = found.map_err(|e| self.of_layout(e))?;
        match found {
            Ok(survivors) => Ok((count, survivors)),
            Err(no) => Err(self.of_layout(first.texts.unbound(no))),
        }
    }
}

/// Takes a member: number of its layer, its own number, and the reader of its data.
type TakeMember<'t> = dyn FnMut(u64, u64, &mut Member, &mut LayerReader<'_>) -> Result<()> + 't;

struct FirstPass {
    sorter: Sorter,
    texts: LinkTexts,
    dirs: KnownDirs,
    dirs_len: u64,
    layer: u64,
    /// Number of the layer's first member.
    layer_start: u64,
    dir: PathBuf,
    record: Vec<u8>,
}

impl FirstPass {
    fn take(&mut self, layer: u64, seq: u64, member: &mut Member) -> Result<()> {
        if self.layer != layer {
            self.dirs = KnownDirs::new(self.dirs_len);
            (self.layer, self.layer_start) = (layer, seq);
        }
        let start = self.layer_start;
        match meaning(&mut member.path)? {
            Meaning::Ignored => Ok(()),
            Meaning::Whiteout(path) => self.push(Kind::Whiteout, start, path),
            Meaning::Opaque(path) => self.push(Kind::Opaque, start, path),
            Meaning::Member => {
                self.put_dirs(seq, &member.path)?;
                if member.kind == MemberKind::HardLink {
                    let slashes = member.target.iter().take_while(|&&b| b == b'/').count();
                    let target = member.target.split_off(slashes);
                    self.texts.push(&self.dir, &member.path, &target)?;
                    let pushed = self.push(Kind::Request, seq, target);
                    pushed.map_err(|e| {
                        let shown = weald_vfs::shown_path(&member.path);
                        e.context(format!("{shown}: hard link"))
                    })?;
                }
                let kind = match member.kind {
                    MemberKind::Entry(FileKind::Directory) => Kind::Directory,
                    _ => Kind::Other,
                };
                self.push(kind, seq, member.path.clone())
            }
        }
    }

    fn push(&mut self, kind: Kind, seq: u64, mut path: Vec<u8>) -> Result<()> {
        path::make_walk_key(&mut path)?;
        if path.is_empty() && matches!(kind, Kind::Other | Kind::Whiteout) {
            return Err(Error::invalid("/: the root of an image is a directory"));
        }
        if kind == Kind::Other && self.dirs.has(&path) {
            // The tree below the path is gone, so directories there have no record any more.
            self.dirs.forget_all();
        }
        put_record(kind, self.layer, seq, &mut self.record);
        self.sorter.push(&path, &self.record)
    }

    /// Adds records of the directories above `path`, the path of member `seq`.
    fn put_dirs(&mut self, seq: u64, path: &[u8]) -> Result<()> {
        let mut key = path.to_vec();
        path::make_walk_key(&mut key)?;
        while let Some(at) = key.iter().rposition(|&b| b == SEPARATOR) {
            key.truncate(at);
            if !self.dirs.add(&key) {
                break;
            }
            put_record(Kind::Weak, self.layer, seq, &mut self.record);
            self.sorter.push(&key, &self.record)?;
        }
        Ok(())
    }
}

/// Stores what the first pass has kept.
struct SecondPass<'a> {
    options: &'a GatherOptions<'a>,
    survivors: &'a Survivors,
    store: &'a mut dyn ContentStore,
    sorter: Sorter,
    dirs: KnownDirs,
    key: Vec<u8>,
    record: Vec<u8>,
    content_count: u64,
    has_one_mtime: bool,
}

impl SecondPass<'_> {
    fn take(&mut self, seq: u64, member: &mut Member, reader: &mut LayerReader<'_>) -> Result<()> {
        let is_kept = self.survivors.keeps(seq);
        let has_names = self.survivors.links_to(seq).next().is_some();
        if !matches!(meaning(&mut member.path)?, Meaning::Member) || !(is_kept || has_names) {
            return Ok(());
        }
        path::put_key(&member.path, &mut self.key)?;
        if !self.options.keep_xattrs {
            member.remove_xattrs();
        }
        self.record.clear();
        match member.kind {
            MemberKind::Entry(kind) => {
                let len = reader.layout().map_or(0, |layout| layout.len);
                check_limits(member, kind, len)?;
                self.has_one_mtime &= member.mtime == Default::default();
                let content = match reader.layout().filter(|layout| layout.len > 0).cloned() {
                    Some(layout) => {
                        let count = &mut self.content_count;
                        let options = self.options;
                        Some(store_content(&layout, reader, self.store, options, count)?)
                    }
                    None => None,
                };
                if is_kept {
                    member::put_entry(member, kind, content, &mut self.record)
                } else {
                    let mut bare = Vec::new();
                    member::put_entry(member, kind, None, &mut bare);
                    member::put_hidden(&bare, content, &mut self.record)?;
                }
            }
            MemberKind::HardLink | MemberKind::Name => member::put_link(seq, &mut self.record),
        }
        if is_kept {
            self.put_dirs()?;
        }
        self.sorter.push(&self.key, &self.record)?;
        for link in self.survivors.links_to(seq) {
            self.record.clear();
            member::put_request(link, &mut self.record);
            self.sorter.push(&self.key, &self.record)?;
        }
        Ok(())
    }

    /// Adds records of the directories above the key, except those known to have one.
    fn put_dirs(&mut self) -> Result<()> {
        let mut dir = path::split(&self.key).map_or(Vec::new(), |(dir, _)| dir.to_vec());
        while !dir.is_empty() && self.dirs.add(&dir) {
            path::dir_to_key(&mut dir);
            self.sorter.push(&dir, &member::WEAK)?;
            let above = path::split(&dir).map_or(0, |(above, _)| above.len());
            dir.truncate(above);
        }
        Ok(())
    }
}

impl TreeSource for LayersSource<'_> {
    fn size(&self) -> StreamSize {
        match &self.tree {
            None => StreamSize {
                memory_len: self.share(SORT_SHARE)
                    + self.share(CONTENTS_SHARE)
                    + 2 * self.share(DIRS_SHARE)
                    + self.share(TABLES_SHARE)
                    + self.share(DECODER_SHARE),
                ..StreamSize::default()
            },
            Some(tree) => StreamSize {
                entry_count: tree.entry_count,
                directory_count_max: tree.directory_count_max,
                depth: tree.depth,
                memory_len: tree.links.memory_len(),
                has_one_mtime: self.has_one_mtime,
                ..StreamSize::default()
            },
        }
    }

    fn root(&self) -> Result<StreamRoot> {
        let record = self
            .tree
            .as_ref()
            .map_or(&member::WEAK[..], |tree| &tree.root);
        let root = member::parse(record)?;
        Ok(StreamRoot {
            attributes: root.attributes,
            mtime: root.mtime,
            xattrs: root.xattrs,
        })
    }

    fn contents(&mut self, store: &mut dyn ContentStore) -> Result<()> {
        let (_, survivors) = self.survivors()?;
        let dir = self.dir.clone();
        let options = GatherOptions {
            dir: &dir,
            filter: &self.options.filter,
            keep_xattrs: self.options.keep_xattrs,
            sort_len: self.share(SORT_SHARE),
            dirs_len: self.share(DIRS_SHARE),
            contents_len: self.share(CONTENTS_SHARE),
            excluded_len: 0,
            observer: self.observer,
        };
        let mut second = SecondPass {
            options: &options,
            survivors: &survivors,
            store,
            sorter: Sorter::new(&dir, options.sort_len)?,
            dirs: KnownDirs::new(options.dirs_len),
            key: Vec::new(),
            record: Vec::new(),
            content_count: 0,
            has_one_mtime: true,
        };
        self.each_member(false, &mut |_, seq, member, reader| {
            second.take(seq, member, reader)
        })?;
        for path in &survivors.empty_dirs {
            path::put_key(path, &mut second.key)?;
            second.put_dirs()?;
            second.sorter.push(&second.key, &member::WEAK)?;
        }
        self.has_one_mtime = second.has_one_mtime;
        let sorted = second.sorter.finish()?;
        self.tree = Some(assemble(
            sorted,
            &LinkTexts::default(),
            &dir,
            options.sort_len,
        )?);
        Ok(())
    }

    fn tree(&mut self, sink: &mut dyn TreeSink) -> Result<()> {
        send_tree(self.tree.as_ref(), sink)
    }

    fn links(&mut self, sink: &mut dyn FnMut(&Link) -> Result<()>) -> Result<()> {
        send_links(self.tree.as_ref(), sink)
    }
}
