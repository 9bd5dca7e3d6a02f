//! A disk in memory that loses and tears unsynced writes, and fails on request. It has a clock, and
//! a machine may have several.

mod file_state;
mod machine;
mod random;

pub use machine::Latency;
pub use random::Random;

use crate::disk::{Access, Disk, DiskSpace, LocalFile, LocalFiles, Object, of_change};
use crate::far_objects::FarPlace;
use file_state::{FileState, Pending, apply};
use machine::Machine;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use weald_format::{Error, ErrorKind, Result};

/// Bytes of a limited disk that others take.
const OTHERS_LEN: u64 = 16 << 20;

/// Bytes that a file takes at least.
const PAGE_LEN: usize = 4096;

/// Bytes of the pages of a file that are not all zeros.
fn taken(bytes: &[u8]) -> u64 {
    let pages = bytes.chunks(PAGE_LEN);
    let zeros = [0; PAGE_LEN];
    let pages = pages.filter(|page| **page != zeros[..page.len()]);
    pages.count() as u64 * PAGE_LEN as u64
}

/// A failure of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The power fails: every call fails until [`SimDisk::reboot`].
    PowerCut,
    /// The call fails with EIO; a write may be partly done.
    Io,
    /// A call that needs space fails with ENOSPC; a write may be partly done.
    NoSpace,
}

type FileNo = usize;

#[derive(Debug, Clone)]
enum NameChange {
    Set(String, FileNo),
    Remove(String),
    Dir(String),
}

#[derive(Debug, Clone, Default)]
struct Names {
    files: BTreeMap<String, FileNo>,
    dirs: BTreeSet<String>,
}

impl Names {
    fn apply(&mut self, changes: &[NameChange]) {
        for change in changes {
            match change {
                NameChange::Set(name, file) => drop(self.files.insert(name.clone(), *file)),
                NameChange::Remove(name) => drop(self.files.remove(name)),
                NameChange::Dir(name) => drop(self.dirs.insert(name.clone())),
            }
        }
    }
}

#[derive(Debug)]
struct DiskState {
    machine: Arc<Machine>,
    latency: Latency,
    files: Vec<FileState>,
    current: Names,
    durable: Names,
    /// Unsynced changes of names, by directory; each inner list is atomic.
    pending: BTreeMap<String, Vec<Vec<NameChange>>>,
    locks: Vec<(FileNo, u64, u64, bool)>,
    next_handle: u64,
    random: Random,
    calls: u64,
    fault: Option<(u64, Fault)>,
    fault_count: u64,
    /// Whether the disk refuses to be changed, without a count of its calls.
    is_read_only: bool,
    /// Bytes that all files may have together.
    capacity: u64,
    /// Whether the disk is unplugged.
    is_gone: bool,
    /// Other disks, by the paths under which users know them.
    places: BTreeMap<String, SimDisk>,
    far: BTreeMap<String, Arc<FarPlace>>,
}

/// The simulated disk; clones share its state.
#[derive(Debug, Clone)]
pub struct SimDisk(Arc<Mutex<DiskState>>);

#[derive(Debug)]
struct SimFile {
    disk: SimDisk,
    file: FileNo,
    handle: u64,
}

fn dir_of(name: &str) -> String {
    name.rsplit_once('/')
        .map_or(String::new(), |(dir, _)| dir.to_owned())
}

fn failed(code: i32) -> Error {
    Error::io("simulated disk", std::io::Error::from_raw_os_error(code))
}

const EROFS: i32 = 30;
const EIO: i32 = 5;
const ENOENT: i32 = 2;
const ENOSPC: i32 = 28;

impl DiskState {
    /// A disk of `machine` with these files, which no process uses.
    fn new(machine: Arc<Machine>, files: Vec<FileState>, names: Names, random: Random) -> Self {
        Self {
            machine,
            latency: Latency::default(),
            files,
            current: names.clone(),
            durable: names,
            pending: BTreeMap::new(),
            locks: Vec::new(),
            next_handle: 0,
            random,
            calls: 0,
            fault: None,
            fault_count: 0,
            is_read_only: false,
            capacity: u64::MAX,
            is_gone: false,
            places: BTreeMap::new(),
            far: BTreeMap::new(),
        }
    }
}

impl SimDisk {
    /// An empty disk in a machine of its own, whose tears follow from `seed`.
    pub fn new(seed: u64) -> Self {
        Self::of_machine(Machine::at(0), seed)
    }

    fn of_machine(machine: Arc<Machine>, seed: u64) -> Self {
        let random = Random::new(seed ^ 0xd15c);
        Self::of(DiskState::new(
            machine,
            Vec::new(),
            Names::default(),
            random,
        ))
    }

    fn of(state: DiskState) -> Self {
        Self(Arc::new(Mutex::new(state)))
    }

    /// An empty disk in the same machine: it has the same clock and loses power at the same moment,
    /// but what either has made durable says nothing about the other.
    pub fn beside(&self, seed: u64) -> Self {
        Self::of_machine(self.0.lock().machine.clone(), seed)
    }

    /// Makes another disk known under a path, or an unplugged one in its place.
    pub fn set_place(&self, path: &str, disk: &Self) {
        let mut state = self.0.lock();
        state.places.insert(path.to_owned(), disk.clone());
    }

    /// Makes a place on another machine known under a path.
    pub fn set_far(&self, path: &str, place: Arc<FarPlace>) {
        self.0.lock().far.insert(path.to_owned(), place);
    }

    /// Unplugs the disk, or plugs it in again. All calls fail meanwhile.
    pub fn set_gone(&self, is_gone: bool) {
        self.0.lock().is_gone = is_gone;
    }

    /// Sets what calls take from now on.
    pub fn set_latency(&self, latency: Latency) {
        self.0.lock().latency = latency;
    }

    /// The time that all calls to the disks of the machine took, in nanoseconds.
    pub fn now_ns(&self) -> u64 {
        self.0.lock().machine.now_ns()
    }

    /// Number of calls since the disk was made, or [`SimDisk::reboot`].
    pub fn calls(&self) -> u64 {
        self.0.lock().calls
    }

    /// Lets all files together have at most `capacity` bytes. The rest of the disk is taken by
    /// others.
    pub fn limit(&self, capacity: u64) {
        self.0.lock().capacity = capacity;
    }

    /// Makes a later call fail: the one after `count` more calls.
    pub fn fail_after(&self, count: u64, fault: Fault) {
        let mut state = self.0.lock();
        state.fault = Some((state.calls + count, fault));
    }

    /// Cancels a failure that has not happened yet.
    pub fn cancel_fault(&self) {
        self.0.lock().fault = None;
    }

    /// Whether the power is off.
    pub fn is_off(&self) -> bool {
        self.0.lock().machine.is_off()
    }

    /// Returns the disk after a power cut: all synced changes and some of the others.
    pub fn reboot(&self) -> Self {
        let [disk] = Self::reboot_all([self]);
        disk
    }

    /// Returns the disks of one machine after a power cut.
    pub fn reboot_all<const N: usize>(disks: [&Self; N]) -> [Self; N] {
        let now_ns = disks.map(Self::now_ns).into_iter().max().unwrap_or(0);
        let machine = Machine::at(now_ns);
        disks.map(|disk| disk.rebooted(machine.clone()))
    }

    fn rebooted(&self, machine: Arc<Machine>) -> Self {
        let state = self.0.lock();
        state.machine.is_off.store(true, Ordering::SeqCst);
        let mut random = state.random.clone();
        let mut names = state.durable.clone();
        for changes in state.pending.values() {
            // A journal keeps the order of changes, so that a prefix of them survives.
            let kept = random.below(changes.len() as u64 + 1) as usize;
            changes[..kept]
                .iter()
                .for_each(|change| names.apply(change));
        }
        let mut files = state.files.clone();
        files.iter_mut().for_each(|file| file.crash(&mut random));
        Self::of(DiskState {
            latency: state.latency,
            capacity: state.capacity,
            ..DiskState::new(machine, files, names, random)
        })
    }

    /// Returns the disk after the process was killed: all that it wrote, synced or not. The killed
    /// process cannot reach it, nor the other disks of its machine.
    pub fn restart(&self) -> Self {
        let state = self.0.lock();
        state.machine.is_off.store(true, Ordering::SeqCst);
        Self::of(DiskState {
            durable: state.durable.clone(),
            pending: state.pending.clone(),
            ..state.copied()
        })
    }

    /// Returns a copy of the disk as the processes see it, which no call can change.
    pub fn frozen(&self) -> Self {
        let state = self.0.lock();
        Self::of(DiskState {
            durable: state.durable.clone(),
            is_read_only: true,
            ..state.copied()
        })
    }

    /// Names and bytes of all files.
    pub fn contents(&self) -> BTreeMap<String, Vec<u8>> {
        let state = self.0.lock();
        let files = state.current.files.iter();
        let bytes_of = |no: FileNo| state.files[no].current.clone();
        files
            .map(|(name, &no)| (name.clone(), bytes_of(no)))
            .collect()
    }

    /// Number of failures that happened since the disk was made, or [`SimDisk::reboot`].
    pub fn fault_count(&self) -> u64 {
        self.0.lock().fault_count
    }

    /// Bytes of all files that have a name.
    pub fn used(&self) -> u64 {
        self.0.lock().used()
    }

    /// Names of all files.
    pub fn file_names(&self) -> Vec<String> {
        self.0.lock().current.files.keys().cloned().collect()
    }

    /// Bytes of all files below `dir`.
    pub fn len_below(&self, dir: &str) -> usize {
        let state = self.0.lock();
        let files = state
            .current
            .files
            .iter()
            .filter(|(name, _)| name.starts_with(dir));
        files
            .map(|(_, &file)| state.files[file].current.len())
            .sum()
    }

    /// Flips a bit of the file `name` durably, as a failing medium does.
    pub fn flip(&self, name: &str, byte: usize, bit: u8) {
        let mut state = self.0.lock();
        let file = state.current.files[name];
        state.files[file].current[byte] ^= 1 << bit;
        if let Some(byte) = state.files[file].durable.get_mut(byte) {
            *byte ^= 1 << bit;
        }
    }

    /// Gives the file `name` other bytes, durably, as a backup that is put back does.
    pub fn put_back(&self, name: &str, bytes: &[u8]) {
        let mut state = self.0.lock();
        let file = state.current.files[name];
        state.files[file] = FileState {
            durable: bytes.to_vec(),
            current: bytes.to_vec(),
            ..FileState::default()
        };
    }

    /// Takes the file `name` away, durably, as the disk of a tier that is unplugged. Open files
    /// stay. Returns its bytes.
    pub fn lose(&self, name: &str) -> Vec<u8> {
        let mut state = self.0.lock();
        let file = state.current.files.remove(name);
        state.durable.files.remove(name);
        for changes in state.pending.values_mut().flatten() {
            changes.retain(|change| !matches!(change, NameChange::Set(set, _) if set == name));
        }
        file.map_or(Vec::new(), |file| state.files[file].current.clone())
    }

    /// Makes reads of the file `name` fail, or succeed again.
    pub fn set_unreadable(&self, name: &str, is_unreadable: bool) {
        let mut state = self.0.lock();
        let file = state.current.files[name];
        state.files[file].is_unreadable = is_unreadable;
    }

    /// Puts something else than a file in the place of the file `name`, or the file again.
    pub fn set_irregular(&self, name: &str, is_irregular: bool) {
        let mut state = self.0.lock();
        let file = state.current.files[name];
        state.files[file].is_irregular = is_irregular;
    }

    /// Whether something else than a file is in the place of `name`.
    pub fn is_irregular(&self, name: &str) -> bool {
        let state = self.0.lock();
        let file = state.current.files.get(name);
        file.is_some_and(|file| state.files[*file].is_irregular)
    }

    /// Whether reads of the file `name` fail.
    pub fn is_unreadable(&self, name: &str) -> bool {
        let state = self.0.lock();
        let file = state.current.files.get(name);
        file.is_some_and(|file| state.files[*file].is_unreadable)
    }

    /// Makes the file `name`, durably.
    pub fn bring_back(&self, name: &str, bytes: &[u8]) {
        let mut state = self.0.lock();
        state.files.push(FileState {
            durable: bytes.to_vec(),
            current: bytes.to_vec(),
            ..FileState::default()
        });
        let file = state.files.len() - 1;
        state.current.files.insert(name.to_owned(), file);
        state.durable.files.insert(name.to_owned(), file);
    }

    /// Counts a call and returns the failure to simulate, if any.
    fn call(&self, state: &mut DiskState) -> Result<Option<Fault>> {
        if state.machine.is_off() || state.is_gone {
            return Err(failed(EIO));
        }
        state.machine.wait(state.latency.call_ns);
        state.calls += 1;
        match state.fault {
            Some((at, fault)) if state.calls > at => {
                state.fault = None;
                state.fault_count += 1;
                if fault == Fault::PowerCut {
                    state.machine.is_off.store(true, Ordering::SeqCst);
                }
                Ok(Some(fault))
            }
            _ => Ok(None),
        }
    }

    /// Counts a call that needs no space.
    fn plain_call(&self, state: &mut DiskState) -> Result<()> {
        match self.call(state)? {
            None | Some(Fault::NoSpace) => Ok(()),
            Some(_) => Err(failed(EIO)),
        }
    }

    /// Counts a call that may need space.
    fn growing_call(&self, state: &mut DiskState) -> Result<()> {
        match self.call(state)? {
            None => Ok(()),
            Some(Fault::NoSpace) => Err(failed(ENOSPC)),
            Some(_) => Err(failed(EIO)),
        }
    }
}

impl DiskState {
    /// A disk with the same bytes in a machine of its own.
    fn copied(&self) -> Self {
        let machine = Machine::at(self.machine.now_ns());
        let (files, names) = (self.files.clone(), self.current.clone());
        Self {
            latency: self.latency,
            capacity: self.capacity,
            ..Self::new(machine, files, names, self.random.clone())
        }
    }

    /// Lets the clock go on for bytes that are read or written.
    fn move_bytes(&self, len: usize) {
        self.machine.wait(self.latency.byte_ns * len as u64);
    }

    /// Lets the clock go on for what is made durable.
    fn make_durable(&self) {
        self.machine.wait(self.latency.sync_ns);
    }

    /// Bytes that all files with a name take. A page of zeros takes none, as if it were a hole.
    fn used(&self) -> u64 {
        let files = self.current.files.values();
        files.map(|&no| taken(&self.files[no].current)).sum()
    }

    /// Bytes that `change` of a file takes anew.
    fn growth(&self, file: FileNo, change: &Pending) -> u64 {
        let Pending::Write(offset, bytes) = change else {
            return 0;
        };
        if taken(bytes) == 0 {
            return 0;
        }
        let current = &self.files[file].current;
        let pages = offset / PAGE_LEN..(offset + bytes.len()).div_ceil(PAGE_LEN);
        let is_hole = |page: &usize| {
            let end = ((page + 1) * PAGE_LEN).min(current.len());
            let page = current.get(page * PAGE_LEN..end);
            page.is_none_or(|page| taken(page) == 0)
        };
        pages.filter(is_hole).count() as u64 * PAGE_LEN as u64
    }

    /// Refuses a change of a frozen disk.
    fn refuse_read_only(&self) -> Result<()> {
        if self.is_read_only {
            Err(failed(EROFS))
        } else {
            Ok(())
        }
    }

    fn change_names(&mut self, dir: String, changes: Vec<NameChange>) {
        self.current.apply(&changes);
        self.pending.entry(dir).or_default().push(changes);
    }
}

impl LocalFiles for SimDisk {
    fn open(&self, name: &str, access: Access) -> Result<Box<dyn LocalFile>> {
        let mut state = self.0.lock();
        if state.is_gone {
            return Err(failed(EIO));
        }
        let found = state.current.files.get(name).copied();
        if access != Access::Read && found.is_some() == (access == Access::Write) {
            state.refuse_read_only()?;
        }
        let file = match (access, found) {
            (Access::Create | Access::CreatePrivate, None) => {
                of_change(self.growing_call(&mut state))?;
                state.files.push(FileState::default());
                let file = state.files.len() - 1;
                let change = NameChange::Set(name.to_owned(), file);
                state.change_names(dir_of(name), vec![change]);
                file
            }
            (Access::Create | Access::CreatePrivate, Some(_)) => {
                return Err(Error::new(ErrorKind::Busy, "exists"));
            }
            (_, None) => return Err(failed(ENOENT)),
            (_, Some(file)) => {
                self.plain_call(&mut state)?;
                if state.files[file].is_irregular {
                    return Err(Error::invalid("expected a regular file"));
                }
                file
            }
        };
        state.next_handle += 1;
        let handle = state.next_handle;
        Ok(Box::new(SimFile {
            disk: self.clone(),
            file,
            handle,
        }))
    }

    fn list(&self, dir: &str) -> Result<Vec<String>> {
        let mut state = self.0.lock();
        self.plain_call(&mut state)?;
        if !state.current.dirs.contains(dir) {
            return Err(failed(ENOENT));
        }
        let names = state.current.files.keys().chain(&state.current.dirs);
        let below = names.filter(|name| !name.is_empty() && dir_of(name) == dir);
        Ok(below
            .map(|name| name.rsplit('/').next().unwrap_or(name).to_owned())
            .collect())
    }

    fn make_dir(&self, dir: &str) -> Result<()> {
        let mut state = self.0.lock();
        of_change(state.refuse_read_only())?;
        of_change(self.growing_call(&mut state))?;
        state.change_names(dir_of(dir), vec![NameChange::Dir(dir.to_owned())]);
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let mut state = self.0.lock();
        of_change(state.refuse_read_only())?;
        of_change(self.plain_call(&mut state))?;
        let file = *state
            .current
            .files
            .get(from)
            .ok_or_else(|| failed(ENOENT))?;
        let changes = vec![
            NameChange::Remove(from.to_owned()),
            NameChange::Set(to.to_owned(), file),
        ];
        state.change_names(dir_of(to), changes);
        Ok(())
    }

    fn remove(&self, name: &str) -> Result<()> {
        let mut state = self.0.lock();
        of_change(state.refuse_read_only())?;
        if state.is_gone {
            return of_change(Err(failed(EIO)));
        }
        let Some(&file) = state.current.files.get(name) else {
            return Err(failed(ENOENT));
        };
        of_change(self.plain_call(&mut state))?;
        if state.files[file].is_irregular {
            return Err(Error::invalid("expected a regular file"));
        }
        state.change_names(dir_of(name), vec![NameChange::Remove(name.to_owned())]);
        Ok(())
    }

    fn sync_dir(&self, dir: &str) -> Result<()> {
        let mut state = self.0.lock();
        of_change(self.plain_call(&mut state))?;
        state.make_durable();
        for changes in state.pending.remove(dir).unwrap_or_default() {
            state.durable.apply(&changes);
        }
        Ok(())
    }

    fn shown(&self) -> String {
        "store".to_owned()
    }

    fn space(&self) -> Result<DiskSpace> {
        let mut state = self.0.lock();
        self.plain_call(&mut state)?;
        let total = state.capacity.saturating_add(OTHERS_LEN).min(1 << 62);
        Ok(DiskSpace {
            total,
            free: state.capacity.min(1 << 62).saturating_sub(state.used()),
        })
    }

    fn open_place(&self, place: &str) -> Result<Arc<dyn Disk>> {
        let state = self.0.lock();
        let disk = state.places.get(place).cloned();
        Ok(Arc::new(disk.ok_or_else(|| failed(ENOENT))?))
    }

    fn open_far(&self, place: &str) -> Result<Arc<FarPlace>> {
        let found = self.0.lock().far.get(place).cloned();
        found.ok_or_else(|| failed(ENOENT))
    }
}

impl SimFile {
    fn with<T>(&self, change: impl FnOnce(&SimDisk, &mut DiskState) -> Result<T>) -> Result<T> {
        change(&self.disk, &mut self.disk.0.lock())
    }

    fn changed(&self, change: Pending) -> Result<()> {
        self.with(|disk, state| {
            of_change(state.refuse_read_only())?;
            let fault = of_change(disk.call(state))?;
            if let Pending::Write(_, bytes) = &change {
                state.move_bytes(bytes.len());
            }
            let is_full = state.capacity < u64::MAX
                && state.used() + state.growth(self.file, &change) > state.capacity;
            let code = match fault {
                None if is_full => Some(ENOSPC),
                None => None,
                Some(Fault::NoSpace) => Some(ENOSPC),
                Some(Fault::Io | Fault::PowerCut) => Some(EIO),
            };
            // A failed write may be partly done.
            let done = match (code, change) {
                (None, change) => Some(change),
                (Some(_), Pending::Write(offset, mut bytes)) => {
                    let kept = state.random.below(bytes.len() as u64 + 1) as usize;
                    bytes.truncate(kept);
                    Some(Pending::Write(offset, bytes))
                }
                (Some(_), Pending::SetLen(_)) => None,
            };
            if let Some(done) = done {
                state.files[self.file].change(done);
            }
            code.map_or(Ok(()), |code| Err(failed(code).of_failed_write()))
        })
    }
}

impl Object for SimFile {
    fn len(&self) -> Result<u64> {
        self.with(|disk, state| {
            disk.plain_call(state)?;
            Ok(state.files[self.file].current.len() as u64)
        })
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.with(|disk, state| {
            disk.plain_call(state)?;
            if state.files[self.file].is_unreadable {
                return Err(failed(EIO));
            }
            state.move_bytes(buf.len());
            let at = offset as usize;
            let bytes = state.files[self.file].current.get(at..at + buf.len());
            buf.copy_from_slice(bytes.ok_or_else(|| failed(EIO))?);
            Ok(())
        })
    }
}

impl LocalFile for SimFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.changed(Pending::Write(offset as usize, bytes.to_vec()))
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.changed(Pending::SetLen(len as usize))
    }

    fn sync(&self) -> Result<()> {
        self.with(|disk, state| {
            let called = of_change(disk.plain_call(state));
            state.make_durable();
            if state.machine.is_off() {
                // The power failed while the disk was writing: it has any part of the changes.
                return called;
            }
            let file = &mut state.files[self.file];
            let pending = std::mem::take(&mut file.pending);
            // After a failed sync the kernel marks the pages clean, so that they may never be
            // written. The journal still knows the length.
            if called.is_err() && file.current.len() != file.durable.len() {
                file.pending = vec![Pending::SetLen(file.current.len())];
            }
            called?;
            pending
                .iter()
                .for_each(|change| apply(&mut file.durable, change));
            Ok(())
        })
    }

    fn read_anew(&self) -> Result<()> {
        self.sync()?;
        self.with(|_, state| {
            let file = &mut state.files[self.file];
            file.current = file.durable.clone();
            Ok(())
        })
    }

    fn punch(&self, offset: u64, len: u64) -> Result<()> {
        // The length stays.
        let end = self.disk.0.lock().files[self.file].current.len() as u64;
        let len = len.min(end.saturating_sub(offset));
        if len == 0 {
            return Ok(());
        }
        self.changed(Pending::Write(offset as usize, vec![0; len as usize]))
    }

    fn try_lock(&self, offset: u64, is_exclusive: bool) -> Result<bool> {
        self.with(|_, state| {
            let clash = state.locks.iter().any(|&(file, handle, at, exclusive)| {
                file == self.file
                    && handle != self.handle
                    && at == offset
                    && (exclusive || is_exclusive)
            });
            if !clash {
                state
                    .locks
                    .push((self.file, self.handle, offset, is_exclusive));
            }
            Ok(!clash)
        })
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        self.disk
            .0
            .lock()
            .locks
            .retain(|(_, handle, ..)| *handle != self.handle);
    }
}
