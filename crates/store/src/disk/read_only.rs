//! A disk that is only read: the changes of its user stay in memory. Readers of tables use it for a
//! store on read-only media, since the engine and the recovery of a store write.

use super::{Access, Disk, DiskSpace, LocalFile, LocalFiles, Object};
use crate::far_objects::FarPlace;
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use weald_format::{Error, ErrorKind, Result};

/// Bytes of a file that are copied to memory together.
const PAGE_LEN: u64 = 4096;
/// Most changed bytes in memory: a recovery changes some pages, a commit of what lies in a sync log
/// about 32 MiB.
const CHANGED_LEN_MAX: u64 = 256 << 20;

/// A disk whose files are read from the disk below, until they change.
#[derive(Debug)]
pub struct ReadOnlyDisk {
    below: Arc<dyn LocalFiles>,
    state: Mutex<Names>,
    /// Bytes of changed pages.
    changed_len: Arc<AtomicU64>,
}

#[derive(Debug, Default)]
struct Names {
    /// Files that were opened for writing, and `None` for names that are gone.
    files: BTreeMap<String, Option<Arc<ChangedFile>>>,
    /// Directories that the disk below does not have.
    dirs: BTreeSet<String>,
}

/// A file with the pages that differ from the file below.
#[derive(Debug)]
struct ChangedFile {
    below: Option<Box<dyn LocalFile>>,
    shown: String,
    pages: RwLock<Pages>,
    changed_len: Arc<AtomicU64>,
}

#[derive(Debug, Default)]
struct Pages {
    len: u64,
    /// Bytes from here on are not those of the file below.
    below_len: u64,
    /// Changed pages by number.
    changed: BTreeMap<u64, Vec<u8>>,
}

/// An open file; all that are open have the same bytes.
#[derive(Debug)]
struct OpenFile(Arc<ChangedFile>);

fn not_found(shown: &str) -> Error {
    Error::io(shown.to_owned(), std::io::ErrorKind::NotFound.into())
}

impl ReadOnlyDisk {
    /// Reads `below`, and changes nothing there.
    pub fn new(below: Arc<dyn LocalFiles>) -> Self {
        Self {
            below,
            state: Mutex::default(),
            changed_len: Arc::default(),
        }
    }

    fn shown_file(&self, name: &str) -> String {
        format!("{}/{name}", self.below.shown())
    }

    fn file(&self, name: &str, below: Option<Box<dyn LocalFile>>) -> Result<Arc<ChangedFile>> {
        let len = below.as_ref().map_or(Ok(0), |file| file.len())?;
        Ok(Arc::new(ChangedFile {
            below,
            shown: self.shown_file(name),
            pages: RwLock::new(Pages {
                len,
                below_len: len,
                changed: BTreeMap::new(),
            }),
            changed_len: self.changed_len.clone(),
        }))
    }

    /// The file `name`, which changes from now on.
    fn changing(&self, names: &mut Names, name: &str) -> Result<Arc<ChangedFile>> {
        match names.files.get(name) {
            Some(Some(file)) => Ok(file.clone()),
            Some(None) => Err(not_found(&self.shown_file(name))),
            None => {
                let file = self.file(name, Some(self.below.open(name, Access::Read)?))?;
                names.files.insert(name.to_owned(), Some(file.clone()));
                Ok(file)
            }
        }
    }
}

/// The directory of a file, and its name there.
fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

impl LocalFiles for ReadOnlyDisk {
    fn open(&self, name: &str, access: Access) -> Result<Box<dyn LocalFile>> {
        let mut names = self.state.lock();
        let file = match access {
            // The many segments that are only read need no place here.
            Access::Read if !names.files.contains_key(name) => {
                return self.below.open(name, access);
            }
            Access::Read | Access::Write => self.changing(&mut names, name)?,
            Access::Create | Access::CreatePrivate => match self.changing(&mut names, name) {
                Ok(_) => {
                    let what = format!("{}: exists already", self.shown_file(name));
                    return Err(Error::new(ErrorKind::Busy, what));
                }
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    let file = self.file(name, None)?;
                    names.files.insert(name.to_owned(), Some(file.clone()));
                    file
                }
                Err(error) => return Err(error),
            },
        };
        Ok(Box::new(OpenFile(file)))
    }

    fn list(&self, dir: &str) -> Result<Vec<String>> {
        let names = self.state.lock();
        let mut listed: BTreeSet<String> = match self.below.list(dir) {
            Err(error) if error.kind() == ErrorKind::NotFound && names.dirs.contains(dir) => {
                BTreeSet::new()
            }
            other => other?.into_iter().collect(),
        };
        let dirs = names.dirs.iter().map(|path| split(path));
        listed.extend(
            dirs.filter(|(of, _)| *of == dir)
                .map(|(_, name)| name.into()),
        );
        for (path, file) in &names.files {
            match (split(path), file) {
                ((of, name), Some(_)) if of == dir => drop(listed.insert(name.to_owned())),
                ((of, name), None) if of == dir => drop(listed.remove(name)),
                _ => {}
            }
        }
        Ok(listed.into_iter().collect())
    }

    fn make_dir(&self, dir: &str) -> Result<()> {
        self.state.lock().dirs.insert(dir.to_owned());
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let mut names = self.state.lock();
        let file = self.changing(&mut names, from)?;
        names.files.insert(from.to_owned(), None);
        names.files.insert(to.to_owned(), Some(file));
        Ok(())
    }

    fn remove(&self, name: &str) -> Result<()> {
        let mut names = self.state.lock();
        self.changing(&mut names, name)?;
        names.files.insert(name.to_owned(), None);
        Ok(())
    }

    fn sync_dir(&self, _: &str) -> Result<()> {
        Ok(())
    }

    fn sync_all(&self) -> Result<()> {
        Ok(())
    }

    fn shown(&self) -> String {
        self.below.shown()
    }

    fn identity(&self) -> Option<[u64; 2]> {
        self.below.identity()
    }

    fn is_in_memory(&self) -> bool {
        true
    }

    fn owner(&self, name: &str) -> Result<Option<u32>> {
        self.below.owner(name)
    }

    fn holders_of_lock(&self, name: &str, offset: u64) -> Vec<u32> {
        self.below.holders_of_lock(name, offset)
    }

    fn allocated_len(&self, name: &str) -> Result<Option<u64>> {
        self.below.allocated_len(name)
    }

    fn space(&self) -> Result<DiskSpace> {
        self.below.space()
    }

    fn capacity(&self) -> Result<DiskSpace> {
        self.below.capacity()
    }

    fn changed_at(&self, name: &str) -> Option<u64> {
        self.below.changed_at(name)
    }

    fn open_place(&self, place: &str) -> Result<Arc<dyn Disk>> {
        self.below.open_place(place)
    }

    fn open_far(&self, place: &str) -> Result<Arc<FarPlace>> {
        self.below.open_far(place)
    }

    fn is_far(&self, name: &str) -> bool {
        self.below.is_far(name)
    }

    fn home(&self) -> Option<Arc<dyn Disk>> {
        self.below.home()
    }

    fn is_at_home(&self, name: &str) -> bool {
        self.below.is_at_home(name)
    }

    fn why_missing(&self, name: &str) -> Option<String> {
        self.below.why_missing(name)
    }

    fn open_unnoted(&self, name: &str) -> Result<Box<dyn LocalFile>> {
        if self.state.lock().files.contains_key(name) {
            return self.open(name, Access::Read);
        }
        self.below.open_unnoted(name)
    }

    fn take_reads(&self) -> BTreeMap<String, u64> {
        self.below.take_reads()
    }
}

impl ChangedFile {
    /// Fills `buf` with the bytes of the file below and zeros behind them.
    fn read_below(&self, buf: &mut [u8], offset: u64, below_len: u64) -> Result<()> {
        let len = below_len.saturating_sub(offset).min(buf.len() as u64);
        let (below, behind) = buf.split_at_mut(len as usize);
        behind.fill(0);
        match &self.below {
            Some(file) if !below.is_empty() => file.read_at(below, offset),
            _ => Ok(()),
        }
    }

    /// The page with this number, in memory.
    fn page<'a>(&self, pages: &'a mut Pages, number: u64) -> Result<&'a mut Vec<u8>> {
        if !pages.changed.contains_key(&number) {
            let mut page = vec![0; PAGE_LEN as usize];
            self.read_below(&mut page, number * PAGE_LEN, pages.below_len)?;
            let len = self.changed_len.fetch_add(PAGE_LEN, Ordering::Relaxed);
            if len >= CHANGED_LEN_MAX {
                let what = format!(
                    "{}: the store cannot be written to, and its recovery changes more than {} \
                     MiB: copy the store to a file system that can be written to",
                    self.shown,
                    CHANGED_LEN_MAX >> 20
                );
                return Err(Error::limit(what).of_failed_write());
            }
            pages.changed.insert(number, page);
        }
        let missing = || Error::limit("a page that was just made");
        pages.changed.get_mut(&number).ok_or_else(missing)
    }
}

/// Calls `visit` for each page of a range: its number, the range in the page, that in the range.
fn each_page(
    (offset, len): (u64, u64),
    visit: &mut dyn FnMut(u64, usize, std::ops::Range<usize>) -> Result<()>,
) -> Result<()> {
    let mut done = 0;
    while done < len {
        let at = offset + done;
        let start = at % PAGE_LEN;
        let count = (PAGE_LEN - start).min(len - done);
        visit(
            at / PAGE_LEN,
            start as usize,
            done as usize..(done + count) as usize,
        )?;
        done += count;
    }
    Ok(())
}

impl Object for OpenFile {
    fn len(&self) -> Result<u64> {
        Ok(self.0.pages.read().len)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let pages = self.0.pages.read();
        let len = buf.len() as u64;
        if offset.checked_add(len).is_none_or(|end| end > pages.len) {
            let short = std::io::ErrorKind::UnexpectedEof.into();
            return Err(Error::io(self.0.shown.clone(), short));
        }
        self.0.read_below(buf, offset, pages.below_len)?;
        if pages.changed.is_empty() {
            return Ok(());
        }
        each_page((offset, len), &mut |number, start, range| {
            if let Some(page) = pages.changed.get(&number) {
                let count = range.len();
                buf[range].copy_from_slice(&page[start..start + count]);
            }
            Ok(())
        })
    }
}

impl LocalFile for OpenFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        let mut pages = self.0.pages.write();
        let len = bytes.len() as u64;
        each_page((offset, len), &mut |number, start, range| {
            let count = range.len();
            let page = self.0.page(&mut pages, number)?;
            page[start..start + count].copy_from_slice(&bytes[range]);
            Ok(())
        })?;
        pages.len = pages.len.max(offset + len);
        Ok(())
    }

    fn set_len(&self, len: u64) -> Result<()> {
        let mut pages = self.0.pages.write();
        if len < pages.len {
            let gone = pages.changed.split_off(&len.div_ceil(PAGE_LEN));
            let gone_len = gone.len() as u64 * PAGE_LEN;
            self.0.changed_len.fetch_sub(gone_len, Ordering::Relaxed);
            if let Some(page) = pages.changed.get_mut(&(len / PAGE_LEN)) {
                page[(len % PAGE_LEN) as usize..].fill(0);
            }
            pages.below_len = pages.below_len.min(len);
        }
        pages.len = len;
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn read_anew(&self) -> Result<()> {
        // A disk that failed may refuse a sync for ever.
        if let Some(file) = &self.0.below
            && let Err(error) = file.read_anew()
        {
            log::debug!("{error}");
        }
        Ok(())
    }

    fn punch(&self, _: u64, _: u64) -> Result<()> {
        Ok(())
    }

    /// Locks the file below for reading: no process that can write to it is its writer meanwhile.
    fn try_lock(&self, offset: u64, _: bool) -> Result<bool> {
        match &self.0.below {
            Some(file) => file.try_lock(offset, false),
            None => Ok(true),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulated_disk::{Random, SimDisk};

    const NAMES: [&str; 4] = ["a", "b", "dir/a", "dir/b"];

    fn shown_outcome<T: std::fmt::Debug>(outcome: &Result<T>) -> String {
        match outcome {
            Ok(value) => format!("{value:?}"),
            Err(error) => format!("{:?}", error.kind()),
        }
    }

    /// Changes a disk at random. Returns what it answered.
    fn change(disk: &dyn LocalFiles, random: &mut Random) -> String {
        let name = |random: &mut Random| NAMES[random.below(4) as usize];
        let (first, second) = (name(random), name(random));
        let (at, len) = (random.below(20_000), random.below(9_000));
        let byte = random.below(255) as u8 + 1;
        let on_file = |access, call: &dyn Fn(&dyn LocalFile) -> Result<()>| {
            let done = disk.open(first, access).and_then(|file| call(&*file));
            shown_outcome(&done)
        };
        match random.below(8) {
            0 => on_file(Access::Create, &|_| Ok(())),
            1 | 2 => on_file(Access::Write, &|file| {
                file.write_at(&vec![byte; len as usize], at)
            }),
            3 => on_file(Access::Write, &|file| file.set_len(at)),
            4 if first != second => shown_outcome(&disk.rename(first, second)),
            5 => shown_outcome(&disk.remove(first)),
            _ => {
                let read = disk.open(first, Access::Read).and_then(|file| {
                    let mut bytes = vec![0; file.len()? as usize];
                    file.read_at(&mut bytes, 0)?;
                    Ok(weald_format::Digest::of(&bytes))
                });
                let mut listed = disk.list("dir").expect("a directory");
                listed.sort_unstable();
                format!("{} {listed:?}", shown_outcome(&read))
            }
        }
    }

    // Would catch: a byte, a length or a name that differs from those of a disk that can be written
    // to, and a change that reaches the disk below.
    #[test]
    fn changes_are_seen_above_and_not_below() {
        for seed in 0..300 {
            let mut random = Random::new(seed);
            let plain = SimDisk::new(seed);
            plain.make_dir("dir").expect("a directory");
            for _ in 0..20 {
                change(&plain, &mut random);
            }
            let frozen = plain.frozen();
            let read_only = ReadOnlyDisk::new(Arc::new(frozen.clone()));
            let before = frozen.contents();
            for step in 0..60 {
                let mut same = random.clone();
                let wanted = change(&plain, &mut random);
                let found = change(&read_only, &mut same);
                assert_eq!(found, wanted, "seed {seed}, step {step}");
            }
            assert!(frozen.contents() == before, "seed {seed}");
        }
    }

    // Would catch: memory without a limit.
    #[test]
    fn changed_pages_are_bounded() {
        let disk = ReadOnlyDisk::new(Arc::new(SimDisk::new(1)));
        let file = disk.open("a", Access::Create).expect("a file");
        let mut count = 0;
        let full = loop {
            match file.write_at(&vec![1; 1 << 20], count << 20) {
                Ok(()) => count += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(
            (count << 20, full.kind()),
            (CHANGED_LEN_MAX, ErrorKind::Limit)
        );
        file.set_len(0).expect("a shorter file");
        file.write_at(&[1; 4096], 0).expect("room again");
    }
}
