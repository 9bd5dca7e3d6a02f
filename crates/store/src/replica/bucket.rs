//! A place in a bucket: objects that are put once, under the condition that there is none.
//!
//! Who sends and who takes over must see each other's files (`epochs.rs`), and a bucket may list
//! late. So the items, the epochs and the files that say where the items begin are listed in a log:
//! objects with numbers from 1 on, each of which one writer puts, under the condition that there is
//! none. A file counts from the moment at which a number of the log names it. A list is what all
//! numbers say up to the first one that is missing. From time to time one of them names everything,
//! and a hint says which: without it, a list reads the log from its begin.
//!
//! A conditional write that is refused may be the own one, of which the answer was lost. So what is
//! there is read and compared: a number of the log has a random nonce, all other files have names
//! that say what is in them.

use super::place::{DATA, EPOCHS, FIRST, IDENTITY, ITEMS, Place};
use crate::faults::{Bug, Faults};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::hash::{BuildHasher, Hasher};
use weald_format::replica::{ITEM_HEADER_LEN, ITEM_LIST_LEN_MAX, Item, PlaceIdentity};
use weald_format::sealed_text::{sealed, unsealed};
use weald_format::{Error, ErrorKind, Result};
use weald_remote::{Bucket, Condition, Put};

/// Directory of the log.
const LOG: &str = "log";
/// The hint: the last number that names everything, or an earlier one.
const HINT: &str = "log/last";
/// Each number that is a multiple of this names everything.
const WHOLE_EVERY: u64 = if cfg!(test) { 8 } else { 32 };
/// Most bytes of a number of the log.
const ENTRY_LEN_MAX: u64 = 64 << 20;
/// Most bytes of an item.
const ITEM_LEN_MAX: u64 = ITEM_HEADER_LEN as u64 + ITEM_LIST_LEN_MAX;
/// Most bytes of the hint.
const HINT_LEN_MAX: u64 = 4096;
/// How many other writers may be faster, one after the other.
const TRIES: u32 = 64;
/// First line of a number of the log.
const FIRST_LINE: &str = "weald log 1";
/// Directories whose files the log lists.
const LISTED: [&str; 3] = [ITEMS, FIRST, EPOCHS];

/// What a bucket does. Requests are repeated below this, so that a write that is refused may be the
/// own one.
pub trait BucketObjects: Debug + Send + Sync {
    /// Its name in messages.
    fn shown(&self) -> String;

    /// Puts an object if there is none of this name; returns whether it did. Durable when this
    /// returns.
    ///
    /// # Errors
    /// `Io`: it may be there or not, also later.
    fn put_new(&self, key: &str, bytes: &[u8]) -> Result<bool>;

    /// Puts an object, in place of one that is there.
    ///
    /// # Errors
    /// `Io`: it may be there or not, also later.
    fn put_over(&self, key: &str, bytes: &[u8]) -> Result<()>;

    /// Reads a whole object of at most `len_max` bytes, as it is now.
    ///
    /// # Errors
    /// `NotFound`; `Limit` if it is longer; `Io`.
    fn read(&self, key: &str, len_max: u64) -> Result<Vec<u8>>;

    /// Whether there is an object now.
    ///
    /// # Errors
    /// `Io`.
    fn has(&self, key: &str) -> Result<bool>;

    /// Names of the objects in a directory, as they were some time ago.
    ///
    /// # Errors
    /// `Io`.
    fn list(&self, dir: &str) -> Result<Vec<String>>;

    /// Removes an object, which may be gone already.
    ///
    /// # Errors
    /// `Io`.
    fn remove(&self, key: &str) -> Result<()>;
}

impl BucketObjects for Bucket {
    fn shown(&self) -> String {
        Self::shown(self)
    }

    fn put_new(&self, key: &str, bytes: &[u8]) -> Result<bool> {
        Ok(self.put(key, bytes, Condition::Absent)? == Put::Done)
    }

    fn put_over(&self, key: &str, bytes: &[u8]) -> Result<()> {
        self.put(key, bytes, Condition::Always).map(|_| ())
    }

    fn read(&self, key: &str, len_max: u64) -> Result<Vec<u8>> {
        Ok(self.get(key, len_max)?.bytes.to_vec())
    }

    fn has(&self, key: &str) -> Result<bool> {
        Self::has(self, key)
    }

    fn list(&self, dir: &str) -> Result<Vec<String>> {
        Self::list(self, dir)
    }

    fn remove(&self, key: &str) -> Result<()> {
        Self::remove(self, key)
    }
}

/// What a number of the log says.
#[derive(Debug, Default, PartialEq, Eq)]
struct Entry {
    /// Whether it names everything: what earlier numbers say has no meaning.
    is_whole: bool,
    added: Vec<String>,
    removed: Vec<String>,
}

impl Entry {
    fn text(&self, number: u64, nonce: u128) -> String {
        let mut text = format!("{FIRST_LINE}\nnumber {number}\nnonce {nonce:032x}\n");
        if self.is_whole {
            text.push_str("whole\n");
        }
        for (word, names) in [("add", &self.added), ("remove", &self.removed)] {
            text.extend(names.iter().map(|name| format!("{word} {name}\n")));
        }
        sealed(text)
    }

    fn parse(bytes: &[u8], number: u64) -> Result<Self> {
        let bad = || Error::corrupt("replica", 0, "S-9.9", format!("number {number} of the log"));
        let text = unsealed(bytes).ok_or_else(bad)?;
        let mut lines = text.lines();
        let is_right = lines.next() == Some(FIRST_LINE)
            && lines.next() == Some(&format!("number {number}"))
            && lines.next().is_some_and(|line| line.starts_with("nonce "));
        if !is_right {
            return Err(bad());
        }
        let mut entry = Self::default();
        for line in lines {
            match line.split_once(' ') {
                None if line == "whole" => entry.is_whole = true,
                Some(("add", name)) => entry.added.push(name.to_owned()),
                Some(("remove", name)) => entry.removed.push(name.to_owned()),
                _ => return Err(bad()),
            }
        }
        Ok(entry)
    }
}

fn entry_key(number: u64) -> String {
    format!("{LOG}/{number:016x}")
}

/// The log as far as it was read.
#[derive(Debug, Default)]
struct Log {
    /// The first number that was not read; 0 before the hint was.
    next: u64,
    names: BTreeSet<String>,
}

impl Log {
    fn apply(&mut self, entry: &Entry) {
        if entry.is_whole {
            self.names.clear();
        }
        for name in &entry.removed {
            self.names.remove(name);
        }
        self.names.extend(entry.added.iter().cloned());
        self.next += 1;
    }
}

/// A place in a bucket.
#[derive(Debug)]
pub struct BucketPlace {
    objects: Box<dyn BucketObjects>,
    log: Mutex<Log>,
    faults: Faults<Bug>,
}

fn random() -> u64 {
    std::hash::RandomState::new().build_hasher().finish()
}

fn is_listed(dir: &str) -> bool {
    LISTED.contains(&dir)
}

/// The directory of a file.
fn dir_of(name: &str) -> &str {
    name.split_once('/').map_or("", |(dir, _)| dir)
}

impl BucketPlace {
    /// The place in these objects, which may be empty.
    pub fn new(objects: Box<dyn BucketObjects>, faults: Faults<Bug>) -> Self {
        Self {
            objects,
            log: Mutex::default(),
            faults,
        }
    }

    fn read_entry(&self, number: u64) -> Result<Option<(Entry, Vec<u8>)>> {
        let key = entry_key(number);
        match self.objects.read(&key, ENTRY_LEN_MAX) {
            Ok(bytes) => {
                let parsed = Entry::parse(&bytes, number);
                let parsed = parsed.map_err(|e| e.context(format!("{}/{key}", self.shown())))?;
                Ok(Some((parsed, bytes)))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The number that the hint names, if it names everything.
    fn hinted(&self) -> Result<Option<(u64, Entry)>> {
        let hint = match self.objects.read(HINT, HINT_LEN_MAX) {
            Err(error) if error.kind() == ErrorKind::Io => return Err(error),
            Err(_) => return Ok(None),
            Ok(hint) => hint,
        };
        let text = unsealed(&hint).and_then(|text| text.strip_prefix("last "));
        let Some(number) = text.and_then(|text| text.trim_end().parse().ok()) else {
            return Ok(None);
        };
        Ok(match self.read_entry(number) {
            Err(error) if error.kind() == ErrorKind::Io => return Err(error),
            Ok(Some((entry, _))) if entry.is_whole => Some((number, entry)),
            _ => None,
        })
    }

    /// Reads what the log says up to now.
    fn refresh(&self, log: &mut Log) -> Result<()> {
        let is_first = log.next == 0;
        if is_first {
            log.next = 1;
            if let Some((number, entry)) = self.hinted()? {
                log.next = number;
                log.apply(&entry);
            }
        }
        loop {
            while let Some((entry, _)) = self.read_entry(log.next)? {
                log.apply(&entry);
            }
            if !is_first || self.last_listed()? < log.next {
                return Ok(());
            }
            // It may have been put a moment ago.
            if self.read_entry(log.next)?.is_none() {
                let what = format!("{}/{}: is missing", self.shown(), entry_key(log.next));
                log.next = 0;
                return Err(Error::corrupt("replica", 0, "S-9.9", what));
            }
        }
    }

    /// The last number of the log that the bucket lists; 0 if none.
    fn last_listed(&self) -> Result<u64> {
        let names = self.objects.list(LOG)?;
        let numbers = names
            .iter()
            .filter_map(|name| u64::from_str_radix(name, 16).ok());
        Ok(numbers.max().unwrap_or(0))
    }

    /// Appends to the log that the file `name` is there, or is not, if `refuse` agrees to what the
    /// log names before.
    fn note(
        &self,
        name: &str,
        is_there: bool,
        refuse: impl Fn(&BTreeSet<String>) -> Result<()>,
    ) -> Result<()> {
        let mut log = self.log.lock();
        let nonce = u128::from(random()) << 64 | u128::from(random());
        for _ in 0..TRIES {
            self.refresh(&mut log)?;
            if log.names.contains(name) == is_there {
                return Ok(());
            }
            refuse(&log.names)?;
            let number = log.next;
            let mut entry = Entry {
                is_whole: number.is_multiple_of(WHOLE_EVERY),
                ..Entry::default()
            };
            if entry.is_whole {
                entry.added = log.names.iter().filter(|n| *n != name).cloned().collect();
            }
            let names = if is_there {
                &mut entry.added
            } else {
                &mut entry.removed
            };
            names.push(name.to_owned());
            let text = entry.text(number, nonce);
            if !self.put_entry(number, text.as_bytes())? {
                continue;
            }
            log.apply(&entry);
            if entry.is_whole {
                self.put_hint(number);
            }
            return Ok(());
        }
        let what = format!("{}: too many writers at the same time", self.shown());
        Err(Error::new(ErrorKind::Busy, what))
    }

    /// Puts a number of the log; returns whether it is the own one.
    fn put_entry(&self, number: u64, text: &[u8]) -> Result<bool> {
        let key = entry_key(number);
        if self.faults.has(Bug::LogReplaced) {
            return self.objects.put_over(&key, text).map(|()| true);
        }
        if self.objects.put_new(&key, text)? || self.faults.has(Bug::RefusedIsDone) {
            return Ok(true);
        }
        // Another writer's, or the own one of which the answer was lost.
        let found = self.read_entry(number)?;
        Ok(found.is_some_and(|(_, bytes)| bytes == text))
    }

    /// Refuses the item `name` if there is one of the same number and epoch: of two copies of a
    /// store that send at the same moment, one is told.
    fn refuse_twin(&self, name: &str, bytes: &[u8], names: &BTreeSet<String>) -> Result<()> {
        let (Some((number, _)), Ok(own)) = (name.split_once('-'), Item::parse(bytes)) else {
            return Ok(());
        };
        let is_twin = |other: &&String| {
            let other_number = other.split_once('-').map(|(number, _)| number);
            other_number == Some(number) && *other != name
        };
        for other in names.iter().filter(is_twin) {
            let found = match self.objects.read(other, ITEM_LEN_MAX) {
                Err(error) if error.kind() == ErrorKind::Io => return Err(error),
                other => other.and_then(|bytes| Item::parse(&bytes)),
            };
            if found.is_ok_and(|found| found.header.epoch == own.header.epoch) {
                return Err(Error::invalid(format!(
                    "{}: has another item {} than this store sends: another copy of the store \
                     sends to this place; 'weald replica restore' brings back what the replica \
                     has, and 'weald replica remove' and 'add' begin a new one elsewhere",
                    self.shown(),
                    own.header.number.0
                )));
            }
        }
        Ok(())
    }

    fn put_hint(&self, number: u64) {
        let text = sealed(format!("last {number}\n"));
        if let Err(error) = self.objects.put_over(HINT, text.as_bytes()) {
            log::info!("{error}: the log is read from an earlier number on");
        }
    }

    /// Puts a file whose name says what is in it: one that is there and differs is damaged.
    fn put_named(&self, name: &str, bytes: &[u8]) -> Result<()> {
        if self.objects.put_new(name, bytes)? {
            return Ok(());
        }
        let len_max = (bytes.len() as u64).max(1);
        match self.objects.read(name, len_max) {
            Ok(found) if found == bytes => Ok(()),
            Err(error) if error.kind() == ErrorKind::Io => Err(error),
            _ => self.objects.put_over(name, bytes),
        }
    }

    /// Puts the file that says of which store this is a replica, unless it is one of another.
    fn put_identity(&self, bytes: &[u8]) -> Result<()> {
        if self.objects.put_new(IDENTITY, bytes)? {
            return Ok(());
        }
        match self.objects.read(IDENTITY, ENTRY_LEN_MAX) {
            Ok(found) if found == bytes => Ok(()),
            Ok(found) if PlaceIdentity::parse(&found).is_ok() => {
                let what = format!("{}: another replica was begun here", self.shown());
                Err(Error::new(ErrorKind::Busy, what))
            }
            Err(error) if error.kind() == ErrorKind::Io => Err(error),
            _ => self.objects.put_over(IDENTITY, bytes),
        }
    }
}

impl Place for BucketPlace {
    fn shown(&self) -> String {
        self.objects.shown()
    }

    fn prepare(&self) -> Result<()> {
        let key = format!("probe/{:016x}", random());
        // The first answer may be lost: what counts is that there is one now.
        self.objects.put_new(&key, b"a")?;
        let second = self.objects.put_new(&key, b"b")?;
        if let Err(error) = self.objects.remove(&key) {
            log::info!("{error}");
        }
        if !second {
            return Ok(());
        }
        let what = format!(
            "{}: the server ignores conditional writes (If-None-Match), so that two senders \
             could replace each other's files: use a bucket that has them; 'weald store probe' \
             tells",
            self.shown()
        );
        Err(Error::new(ErrorKind::Unsupported, what))
    }

    fn put(&self, name: &str, bytes: &[u8]) -> Result<()> {
        if name == IDENTITY {
            return self.put_identity(bytes);
        }
        self.put_named(name, bytes)?;
        if !is_listed(dir_of(name)) {
            return Ok(());
        }
        self.note(name, true, |names| self.refuse_twin(name, bytes, names))
    }

    fn read(&self, name: &str, len_max: u64) -> Result<Vec<u8>> {
        self.objects.read(name, len_max)
    }

    fn list(&self, dir: &str) -> Result<Vec<String>> {
        if !is_listed(dir) || self.faults.has(Bug::ListTrusted) {
            return self.objects.list(dir);
        }
        let mut log = self.log.lock();
        match self.refresh(&mut log) {
            // Nothing can be sent any more, because that needs the log; what is there can be read.
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                log::warn!("{error}: begin a new replica; the bucket lists what is there");
                return self.objects.list(dir);
            }
            other => other?,
        }
        let prefix = format!("{dir}/");
        let names = log.names.iter();
        Ok(names
            .filter_map(|name| name.strip_prefix(&prefix).map(str::to_owned))
            .collect())
    }

    fn is_there(&self, name: &str) -> Result<bool> {
        Ok(dir_of(name) != DATA || self.objects.has(name)?)
    }

    fn stays_open(&self) -> bool {
        true
    }

    fn remove(&self, name: &str) -> Result<()> {
        if is_listed(dir_of(name)) {
            // First: a name without a file would count as a loss.
            self.note(name, false, |_| Ok(()))?;
        }
        self.objects.remove(name)
    }
}
