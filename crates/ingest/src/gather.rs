//! Makes a record of each member for the sorter, and stores the contents in the image.

use crate::excluded::{Excluded, ExcludedMember};
use crate::links::LinkTexts;
use crate::member::{self, Member, MemberKind};
use crate::members::{Layout, Members, Tell};
use crate::path;
use crate::sort::Sorter;
use hashbrown::DefaultHashBuilder;
use std::cell::RefCell;
use std::hash::BuildHasher;
use std::ops::Range;
use std::path::Path;
use weald_builder::stream::{ContentStore, StreamBody};
use weald_builder::{LeftOut, Observer, Problem};
use weald_filter::{DirRules, Filter, Rule};
use weald_format::limits::{FILE_LEN_MAX, TARGET_LEN_MAX};
use weald_format::pages::check_xattrs;
use weald_format::{ContentId, Error, FileKind, Result};
use weald_io::{ReadAt, Spool};

/// Contents up to this length are held in memory. Longer ones go to a temporary file, because the
/// writer reads contents twice.
const IN_MEMORY_LEN_MAX: u64 = 4 << 20;
/// Bytes of a long content read at once.
const SPOOL_PIECE_LEN: u64 = 1 << 20;
/// Members between two checks for an interrupt.
const CANCEL_CHECK_COUNT: u64 = 1 << 12;
/// Bytes that the contents of excluded files may take in a temporary file.
const EXCLUDED_SPOOL_LEN_MAX: u64 = 1 << 30;
/// Bytes of memory per content in the image's writer.
const CONTENT_MEMORY_LEN: u64 = 44;

/// Filter and memory limits of a stream.
pub struct GatherOptions<'a> {
    /// Directory for temporary files.
    pub dir: &'a Path,
    /// Rules about which members to keep.
    pub filter: &'a Filter,
    /// Keep extended attributes.
    pub keep_xattrs: bool,
    /// Bytes of memory for the sorter.
    pub sort_len: u64,
    /// Bytes for the table of known directories.
    pub dirs_len: u64,
    /// Bytes that tables of contents may take.
    pub contents_len: u64,
    /// Bytes for the table of excluded members.
    pub excluded_len: u64,
    /// Receives the members that are left out, and may cancel.
    pub observer: &'a dyn Observer,
}

/// Result of reading a stream.
pub struct Gathered {
    /// Records of all members.
    pub sorter: Sorter,
    /// Paths and targets of hard links, for messages.
    pub texts: LinkTexts,
    /// All members have one mtime.
    pub has_one_mtime: bool,
    /// Problems reported to the observer.
    pub problem_count: u64,
}

/// Reads `members` to their end, and stores their contents.
///
/// # Errors
/// As [`Members::next`], and those of `store`; `Invalid` for names that lead out of the tree and
/// for an interrupt.
pub fn gather(
    members: &mut dyn Members,
    store: &mut dyn ContentStore,
    options: &GatherOptions<'_>,
) -> Result<Gathered> {
    let mut gatherer = Gatherer {
        options,
        sorter: Sorter::new(options.dir, options.sort_len)?,
        dirs: KnownDirs::new(options.dirs_len),
        excluded: Excluded::new(options.dir, options.excluded_len, EXCLUDED_SPOOL_LEN_MAX),
        rules: DirRules::default(),
        texts: LinkTexts::default(),
        key: Vec::new(),
        record: Vec::new(),
        content_count: 0,
        has_one_mtime: true,
    };
    let mut member = Member::default();
    let (mut member_count, mut problem_count) = (0_u64, 0);
    let mut tell = |path: &[u8], what| {
        problem_count += 1;
        options.observer.problem(&Problem {
            path: path.to_vec(),
            what,
        });
    };
    while members.next(&mut member, &mut tell)? {
        gatherer.take(&mut member, members, store, &mut tell)?;
        member_count += 1;
        if member_count.is_multiple_of(CANCEL_CHECK_COUNT) && options.observer.is_cancelled() {
            return Err(Error::invalid("interrupted"));
        }
    }
    Ok(Gathered {
        sorter: gatherer.sorter,
        texts: gatherer.texts,
        has_one_mtime: gatherer.has_one_mtime,
        problem_count,
    })
}

struct Gatherer<'a> {
    options: &'a GatherOptions<'a>,
    sorter: Sorter,
    dirs: KnownDirs,
    excluded: Excluded,
    /// Those of directories, of which a stream has none.
    rules: DirRules,
    texts: LinkTexts,
    key: Vec<u8>,
    record: Vec<u8>,
    content_count: u64,
    has_one_mtime: bool,
}

impl Gatherer<'_> {
    fn take(
        &mut self,
        member: &mut Member,
        members: &mut dyn Members,
        store: &mut dyn ContentStore,
        tell: &mut Tell<'_>,
    ) -> Result<()> {
        path::put_key(&member.path, &mut self.key)?;
        if !self.options.keep_xattrs {
            member.remove_xattrs();
        }
        if !self.options.filter.is_empty() {
            let is_dir = member.kind == MemberKind::Entry(FileKind::Directory);
            let path = path::path_of(&self.key);
            if let Some(rule) = self.rule_against(&path, is_dir) {
                self.options.observer.left_out(&path, LeftOut::Rule(rule));
                return self.exclude(member, members);
            }
            self.excluded.remove(&self.key);
        }
        self.put_dirs()?;
        self.record.clear();
        match member.kind {
            MemberKind::Name => self.record.extend_from_slice(&member::NAME),
            MemberKind::HardLink => {
                if !self.take_link(member, store, tell)? {
                    return Ok(());
                }
            }
            MemberKind::Entry(kind) => {
                let len = members.layout().map_or(0, |layout| layout.len);
                check_limits(member, kind, len)?;
                // Directories that the stream does not name have the default mtime.
                self.has_one_mtime &= member.mtime == Default::default();
                let content = match members.layout().filter(|layout| layout.len > 0) {
                    Some(layout) => Some(self.store(&layout.clone(), members, store)?),
                    None => None,
                };
                member::put_entry(member, kind, content, &mut self.record);
            }
        }
        self.sorter.push(&self.key, &self.record)
    }

    /// Remembers a member that the filter excludes, for hard links to it.
    fn exclude(&mut self, member: &Member, members: &mut dyn Members) -> Result<()> {
        match member.kind {
            MemberKind::HardLink => {
                let mut target = Vec::new();
                // A target out of the tree does not matter here: the link is not in the image.
                if path::put_key(&member.target, &mut target).is_ok() {
                    self.excluded.add_link(&self.key, &target);
                }
                Ok(())
            }
            MemberKind::Entry(kind)
                if kind != FileKind::Directory && {
                    let len = members.layout().map_or(0, |layout| layout.len);
                    check_limits(member, kind, len).is_ok()
                } =>
            {
                self.excluded.add_file(&self.key, member, kind, members)
            }
            MemberKind::Entry(_) | MemberKind::Name => {
                self.excluded.remove(&self.key);
                Ok(())
            }
        }
    }

    /// Puts a request at the place of the link's target for the file that is there now. Returns
    /// false for a link that is left out.
    fn take_link(
        &mut self,
        member: &Member,
        store: &mut dyn ContentStore,
        tell: &mut Tell<'_>,
    ) -> Result<bool> {
        let mut target = Vec::new();
        let put = path::put_key(&member.target, &mut target);
        put.map_err(|e| {
            e.context(format!(
                "{}: hard link",
                weald_vfs::shown_path(&member.path)
            ))
        })?;
        if !self.options.filter.is_empty() && !self.keep_excluded(&mut target, store)? {
            let what = format!(
                "left out: a hard link to '{}', which the filter excludes and of which the \
                 contents did not fit into the space for excluded files (at most {} GiB of \
                 contents, a 64th of --memory for their names): keep the first name too",
                weald_vfs::shown_path(&member.target),
                EXCLUDED_SPOOL_LEN_MAX >> 30
            );
            tell(&member.path, what);
            return Ok(false);
        }
        let no = self
            .texts
            .push(self.options.dir, &member.path, &member.target)?;
        self.record.clear();
        member::put_request(no, &mut self.record);
        self.sorter.push(&target, &self.record)?;
        self.record.clear();
        member::put_link(no, &mut self.record);
        Ok(true)
    }

    /// Hands an excluded file that a link names to the sorter, with its contents, unless the sorter
    /// has it. `target` becomes the key of the file if it was that of an excluded link. Returns
    /// false if the file is excluded and not in the table.
    fn keep_excluded(
        &mut self,
        target: &mut Vec<u8>,
        store: &mut dyn ContentStore,
    ) -> Result<bool> {
        if let Some(ExcludedMember::Link(first)) = self.excluded.get(target) {
            *target = first.to_vec();
        }
        let file = match self.excluded.get(target) {
            Some(ExcludedMember::File(file)) if !file.is_kept => file,
            Some(_) => return Ok(true),
            None => {
                let is_known = self.excluded.is_complete()
                    || !path::is_excluded(self.options.filter, &path::path_of(target), false);
                return Ok(is_known);
            }
        };
        let content = match (&file.layout, self.excluded.spool()) {
            (Some(layout), Some(spool)) => {
                let body = Body::new(layout, Data::Excluded(spool, file.offset));
                let count = &mut self.content_count;
                Some(store_body(&body, count, self.options, store)?)
            }
            _ => None,
        };
        self.record.clear();
        let mtime = member::put_hidden(&file.record, content, &mut self.record)?;
        self.has_one_mtime &= mtime == Default::default();
        self.sorter.push(target, &self.record)?;
        self.excluded.set_kept(target);
        Ok(true)
    }

    fn rule_against(&self, path: &[u8], is_dir: bool) -> Option<&Rule> {
        let filter = self.options.filter;
        path::excluding(filter, &self.rules, path, is_dir).filter(|_| !path.is_empty())
    }

    /// Adds records of the directories above the key, except those known to have one.
    fn put_dirs(&mut self) -> Result<()> {
        let Some((dir, _)) = path::split(&self.key) else {
            return Ok(());
        };
        if dir.is_empty() || !self.dirs.add(dir) {
            return Ok(());
        }
        let mut dir = dir.to_vec();
        loop {
            path::dir_to_key(&mut dir);
            self.sorter.push(&dir, &member::WEAK)?;
            let above = path::split(&dir).map_or(0, |(above, _)| above.len());
            dir.truncate(above);
            if dir.is_empty() || !self.dirs.add(&dir) {
                return Ok(());
            }
        }
    }

    fn store(
        &mut self,
        layout: &Layout,
        members: &mut dyn Members,
        store: &mut dyn ContentStore,
    ) -> Result<ContentId> {
        store_content(
            layout,
            members,
            store,
            self.options,
            &mut self.content_count,
        )
    }
}

/// Reads the data of a member and stores the content.
///
/// # Errors
/// As [`Members::read_data`], and those of `store`; `Limit` for more contents than the memory
/// takes.
pub fn store_content(
    layout: &Layout,
    members: &mut dyn Members,
    store: &mut dyn ContentStore,
    options: &GatherOptions<'_>,
    content_count: &mut u64,
) -> Result<ContentId> {
    let data_len = layout.data_len();
    let data = if data_len <= IN_MEMORY_LEN_MAX {
        let mut data = vec![0; data_len as usize];
        members.read_data(&mut data)?;
        Data::Held(data)
    } else {
        Data::Spooled(spooled(data_len, members, options)?)
    };
    let body = Body::new(layout, data);
    store_body(&body, content_count, options, store)
}

fn store_body(
    body: &Body<'_>,
    content_count: &mut u64,
    options: &GatherOptions<'_>,
    store: &mut dyn ContentStore,
) -> Result<ContentId> {
    let id = store.store(body)?;
    *content_count = (*content_count).max(id.0 + 1);
    if *content_count * CONTENT_MEMORY_LEN > options.contents_len {
        Err(Error::limit(format!(
            "memory: more than {} contents; more memory takes more of them",
            *content_count - 1
        )))
    } else {
        Ok(id)
    }
}

/// Checks an entry with `file_len` bytes of content by the limits of the format that its path does
/// not have: every stream passes here.
///
/// # Errors
/// `Limit`, `Invalid`, with the path.
pub fn check_limits(member: &Member, kind: FileKind, file_len: u64) -> Result<()> {
    let named = |error: Error| error.context(weald_vfs::shown_path(&member.path));
    check_xattrs(&member.xattrs).map_err(named)?;
    if file_len > FILE_LEN_MAX {
        let what = format!("a file of {file_len} bytes, at most {FILE_LEN_MAX} (2^60)");
        return Err(named(Error::limit(what)));
    }
    let len = member.target.len();
    let is_fit = (1..=TARGET_LEN_MAX).contains(&len) && !member.target.contains(&0);
    if kind == FileKind::Symlink && !is_fit {
        Err(named(Error::invalid(format!(
            "a symlink whose target has {len} bytes, expected 1 to {TARGET_LEN_MAX} and no zeros"
        ))))
    } else {
        Ok(())
    }
}

/// Copies the data of a long content to a temporary file.
fn spooled(data_len: u64, members: &mut dyn Members, options: &GatherOptions<'_>) -> Result<Spool> {
    let mut spool = Spool::create(options.dir)?;
    let mut piece = vec![0; SPOOL_PIECE_LEN as usize];
    let mut remaining_len = data_len;
    while remaining_len > 0 {
        let piece = &mut piece[..remaining_len.min(SPOOL_PIECE_LEN) as usize];
        members.read_data(piece)?;
        spool.append(piece)?;
        remaining_len -= piece.len() as u64;
        if options.observer.is_cancelled() {
            return Err(Error::invalid("interrupted"));
        }
    }
    Ok(spool)
}

enum Data<'a> {
    Held(Vec<u8>),
    Spooled(Spool),
    /// Data of an excluded file, from an offset on.
    Excluded(&'a Spool, u64),
}

/// A content that is being stored.
struct Body<'a> {
    layout: &'a Layout,
    data: Data<'a>,
    /// Index of the run that was read last, and the offset of its data.
    place: RefCell<(usize, u64)>,
}

impl<'a> Body<'a> {
    fn new(layout: &'a Layout, data: Data<'a>) -> Self {
        Self {
            layout,
            data,
            place: RefCell::default(),
        }
    }

    /// Offset in the data of the file's byte `start`.
    fn place(&self, start: u64) -> u64 {
        let Some(runs) = &self.layout.runs else {
            return start;
        };
        let (mut no, mut at) = *self.place.borrow();
        if runs.get(no).is_none_or(|run| start < run.start) {
            (no, at) = (0, 0);
        }
        while let Some(run) = runs.get(no).filter(|run| start >= run.end) {
            at += run.end - run.start;
            no += 1;
        }
        *self.place.borrow_mut() = (no, at);
        at + runs
            .get(no)
            .map_or(0, |run| start.saturating_sub(run.start))
    }
}

impl StreamBody for Body<'_> {
    fn content_len(&self) -> u64 {
        self.layout.len
    }

    fn runs(&self) -> Option<Vec<Range<u64>>> {
        self.layout.runs.clone()
    }

    fn read(&self, start: u64, out: &mut [u8]) -> Result<()> {
        let place = self.place(start);
        match &self.data {
            Data::Spooled(spool) => spool.read_exact_at(out, place),
            Data::Excluded(spool, offset) => spool.read_exact_at(out, offset + place),
            Data::Held(bytes) => {
                let start = place as usize;
                let part = bytes.get(start..start + out.len());
                out.copy_from_slice(part.ok_or_else(|| Error::invalid("a read behind the end"))?);
                Ok(())
            }
        }
    }
}

/// A lossy set of the directories that have a record, and whose parents have one. A hash that
/// replaces another costs only a second record.
pub struct KnownDirs {
    hashes: Vec<u64>,
    hasher: DefaultHashBuilder,
    last: Vec<u8>,
    /// Part of the hashes, so that all of them can be forgotten at once.
    era: u64,
}

impl KnownDirs {
    /// A set of `memory_len` bytes.
    pub fn new(memory_len: u64) -> Self {
        let count = (memory_len / 8).max(2).ilog2();
        Self {
            hashes: vec![0; 1 << count],
            hasher: DefaultHashBuilder::default(),
            last: Vec::new(),
            era: 0,
        }
    }

    /// The hash of a directory, and its place in the table.
    fn place_of(&self, dir: &[u8]) -> (u64, usize) {
        // 0 marks an empty slot.
        let hash = self.hasher.hash_one((self.era, dir)) | 1;
        let place = hash.rotate_right(32) as usize & (self.hashes.len() - 1);
        (hash, place)
    }

    /// Whether the set has a directory, as far as it knows.
    pub fn has(&self, dir: &[u8]) -> bool {
        let (hash, place) = self.place_of(dir);
        self.hashes[place] == hash
    }

    /// Forgets all directories.
    pub fn forget_all(&mut self) {
        self.era += 1;
        self.last.clear();
    }

    /// Adds a directory; returns whether it is new.
    pub fn add(&mut self, dir: &[u8]) -> bool {
        if self.last == dir {
            return false;
        }
        let (hash, place) = self.place_of(dir);
        let is_new = self.hashes[place] != hash;
        self.hashes[place] = hash;
        self.last.clear();
        self.last.extend_from_slice(dir);
        is_new
    }
}
