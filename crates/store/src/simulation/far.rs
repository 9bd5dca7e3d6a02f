//! Objects on another machine, with the troubles of a network: requests are lost, come twice, or
//! arrive after the client has given them up, removals too; answers are lost; the machine is away.

use super::Random;
use crate::far_objects::FarObjects;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use weald_format::{Digest, Error, ErrorKind, Result};
use weald_remote::{Bytes, CHUNK_LEN, VerifiedObject};

/// How often a client repeats a request.
const ATTEMPTS: u32 = 3;

/// A request that changes something.
#[derive(Debug, Clone)]
enum Change {
    Put(String, Vec<u8>),
    Remove(String),
}

#[derive(Debug)]
struct FarState {
    objects: BTreeMap<String, Vec<u8>>,
    /// What arrives later.
    late: Vec<Change>,
    random: Random,
    fails_one_in: u64,
    is_gone: bool,
}

impl FarState {
    fn arrive(&mut self, change: Change) {
        match change {
            Change::Put(key, bytes) => drop(self.objects.insert(key, bytes)),
            Change::Remove(key) => drop(self.objects.remove(&key)),
        }
    }

    /// Makes an attempt. Returns whether the client gets an answer.
    fn attempt(&mut self, change: Option<&Change>) -> bool {
        if !self.late.is_empty() && self.random.is_one_in(3) {
            let index = self.random.below(self.late.len() as u64) as usize;
            let late = self.late.remove(index);
            self.arrive(late);
        }
        if self.is_gone {
            return false;
        }
        let has_trouble = self.fails_one_in > 0 && self.random.is_one_in(self.fails_one_in);
        let trouble = if has_trouble { self.random.below(4) } else { 4 };
        let Some(change) = change.cloned() else {
            return trouble > 1;
        };
        match trouble {
            0 => {}
            1 => self.late.push(change),
            2 => self.arrive(change),
            3 => {
                self.late.push(change.clone());
                self.arrive(change);
            }
            _ => self.arrive(change),
        }
        trouble > 2
    }
}

/// The objects, which clones share.
#[derive(Debug, Clone)]
pub(super) struct SimFar(Arc<Mutex<FarState>>);

fn cut() -> Error {
    Error::io("bucket", std::io::ErrorKind::ConnectionReset.into())
}

impl SimFar {
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(FarState {
            objects: BTreeMap::new(),
            late: Vec::new(),
            random: Random::new(seed ^ 0x6661_7200),
            fails_one_in: 0,
            is_gone: false,
        })))
    }

    /// From now on one of so many attempts has trouble; none if zero.
    pub fn set_trouble(&self, fails_one_in: u64) {
        self.0.lock().fails_one_in = fails_one_in;
    }

    /// From now on no request is answered, or all are.
    pub fn set_gone(&self, is_gone: bool) {
        self.0.lock().is_gone = is_gone;
    }

    /// Lets all arrive that is on its way.
    pub fn arrive_all(&self) {
        let mut state = self.0.lock();
        for late in std::mem::take(&mut state.late) {
            state.arrive(late);
        }
    }

    /// Keys of all objects.
    pub fn keys(&self) -> Vec<String> {
        self.0.lock().objects.keys().cloned().collect()
    }

    fn send(&self, change: Option<&Change>) -> Result<()> {
        let mut state = self.0.lock();
        let is_answered = (0..ATTEMPTS).any(|_| state.attempt(change));
        if is_answered { Ok(()) } else { Err(cut()) }
    }

    fn object(&self, key: &str) -> Result<Vec<u8>> {
        self.send(None)?;
        let missing = || Error::new(ErrorKind::NotFound, format!("{key}: no such object"));
        self.0.lock().objects.get(key).cloned().ok_or_else(missing)
    }
}

impl FarObjects for SimFar {
    fn shown(&self) -> String {
        "bucket".to_owned()
    }

    fn put(&self, key: &str, pieces: &[Bytes]) -> Result<()> {
        self.send(Some(&Change::Put(key.to_owned(), pieces.concat())))
    }

    fn put_new(&self, key: &str, bytes: &[u8]) -> Result<bool> {
        let is_new = !self.0.lock().objects.contains_key(key);
        if is_new {
            self.send(Some(&Change::Put(key.to_owned(), bytes.to_owned())))?;
        }
        Ok(is_new)
    }

    fn read(&self, key: &str, _len_max: u64) -> Result<Vec<u8>> {
        self.object(key)
    }

    fn read_part(&self, key: &str, range: Range<u64>) -> Result<Bytes> {
        let bytes = self.object(key)?;
        let part = bytes.get(range.start as usize..range.end as usize);
        Ok(Bytes::copy_from_slice(part.ok_or_else(cut)?))
    }

    fn read_verified(&self, object: &VerifiedObject, buf: &mut [u8], offset: u64) -> Result<()> {
        let lost = || Error::lost("bucket: the object is missing, or another one");
        let bytes = match self.object(&object.key) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Err(lost()),
            other => other?,
        };
        let digests: Vec<Digest> = bytes.chunks(CHUNK_LEN as usize).map(Digest::of).collect();
        if *digests != *object.digests {
            return Err(lost());
        }
        let from = offset as usize;
        buf.copy_from_slice(&bytes[from..from + buf.len()]);
        Ok(())
    }

    fn len(&self, key: &str) -> Result<Option<u64>> {
        match self.object(key) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            other => other.map(|bytes| Some(bytes.len() as u64)),
        }
    }

    fn remove(&self, key: &str) -> Result<()> {
        self.send(Some(&Change::Remove(key.to_owned())))
    }
}
