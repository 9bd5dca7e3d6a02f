//! A bucket with the troubles of a network and of a server: requests are lost, delayed and doubled,
//! answers are lost, servers are overloaded (503) or busy with another writer (409), and lists are
//! late. As a real client it repeats a request that failed, and then meets its own success (412).

use super::Random;
use super::network::NetworkState;
use crate::faults::Faults;
use crate::replica::{BucketObjects, BucketPlace, Place};
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use weald_format::{Error, ErrorKind, Result};

/// How often a client repeats a request.
const ATTEMPTS: u32 = 3;
/// Changes that a list may lack, or have not yet forgotten.
const LATE_MAX: usize = 12;

/// A write that arrives later.
#[derive(Debug)]
struct Late {
    key: String,
    bytes: Vec<u8>,
    is_conditional: bool,
}

#[derive(Debug)]
struct BucketState {
    objects: BTreeMap<String, Vec<u8>>,
    late: Vec<Late>,
    /// The last changes: which object, and whether it was there before.
    changes: VecDeque<(String, bool)>,
    random: Random,
}

impl BucketState {
    /// Puts an object, if the condition holds; returns whether it does.
    fn put(&mut self, key: &str, bytes: &[u8], is_conditional: bool) -> bool {
        let was_there = self.objects.contains_key(key);
        if was_there && is_conditional {
            return false;
        }
        self.objects.insert(key.to_owned(), bytes.to_owned());
        self.change(key, was_there);
        true
    }

    fn change(&mut self, key: &str, was_there: bool) {
        self.changes.push_back((key.to_owned(), was_there));
        if self.changes.len() > LATE_MAX {
            self.changes.pop_front();
        }
    }

    fn arrive(&mut self, index: usize) {
        let late = self.late.remove(index);
        self.put(&late.key, &late.bytes, late.is_conditional);
    }
}

/// What happens to an attempt.
enum Trouble {
    Nothing,
    /// The request is lost, or the server is overloaded: 503, 409.
    Lost,
    AnswerLost,
    /// It arrives twice, the second time later.
    Doubled,
    /// It arrives later, after the client has given it up.
    Delayed,
}

/// A bucket, which clones share.
#[derive(Debug, Clone)]
pub(super) struct SimBucket {
    state: Arc<Mutex<BucketState>>,
    /// How often there is trouble; none if absent.
    network: Option<Arc<Mutex<NetworkState>>>,
}

impl SimBucket {
    pub fn new(seed: u64, network: Arc<Mutex<NetworkState>>) -> Self {
        Self {
            state: Arc::new(Mutex::new(BucketState {
                objects: BTreeMap::new(),
                late: Vec::new(),
                changes: VecDeque::new(),
                random: Random::new(seed ^ 0x6275_636b),
            })),
            network: Some(network),
        }
    }

    /// The same objects without trouble. Lists are late all the same.
    pub fn quiet(&self) -> Self {
        Self {
            state: self.state.clone(),
            network: None,
        }
    }

    /// All objects.
    pub fn contents(&self) -> BTreeMap<String, Vec<u8>> {
        self.state.lock().objects.clone()
    }

    /// Lets all arrive that is on its way.
    pub fn arrive_all(&self) {
        let mut state = self.state.lock();
        while !state.late.is_empty() {
            state.arrive(0);
        }
    }

    fn trouble(&self) -> Trouble {
        let one_in = self.network.as_ref().map_or(0, |n| n.lock().fails_one_in);
        let mut state = self.state.lock();
        let len = state.late.len() as u64;
        if len > 0 && state.random.is_one_in(3) {
            let index = state.random.below(len) as usize;
            state.arrive(index);
        }
        // A client repeats: trouble is more frequent than errors.
        if one_in == 0 || !state.random.is_one_in(one_in.div_ceil(2)) {
            return Trouble::Nothing;
        }
        match state.random.below(4) {
            0 => Trouble::Lost,
            1 => Trouble::AnswerLost,
            2 => Trouble::Doubled,
            _ => Trouble::Delayed,
        }
    }

    fn put(&self, key: &str, bytes: &[u8], is_conditional: bool) -> Result<bool> {
        let late = || Late {
            key: key.to_owned(),
            bytes: bytes.to_owned(),
            is_conditional,
        };
        for _ in 0..ATTEMPTS {
            let trouble = self.trouble();
            let mut state = self.state.lock();
            match trouble {
                Trouble::Nothing => return Ok(state.put(key, bytes, is_conditional)),
                Trouble::Lost => {}
                Trouble::AnswerLost => drop(state.put(key, bytes, is_conditional)),
                Trouble::Doubled => {
                    state.late.push(late());
                    return Ok(state.put(key, bytes, is_conditional));
                }
                Trouble::Delayed => state.late.push(late()),
            }
        }
        Err(cut())
    }

    /// Whether a request without effect is answered.
    fn ask(&self) -> Result<()> {
        for _ in 0..ATTEMPTS {
            if !matches!(self.trouble(), Trouble::Lost | Trouble::AnswerLost) {
                return Ok(());
            }
        }
        Err(cut())
    }
}

fn cut() -> Error {
    Error::io("bucket", std::io::ErrorKind::ConnectionReset.into())
}

impl BucketObjects for SimBucket {
    fn shown(&self) -> String {
        "bucket".to_owned()
    }

    fn put_new(&self, key: &str, bytes: &[u8]) -> Result<bool> {
        self.put(key, bytes, true)
    }

    fn put_over(&self, key: &str, bytes: &[u8]) -> Result<()> {
        self.put(key, bytes, false).map(drop)
    }

    fn read(&self, key: &str, len_max: u64) -> Result<Vec<u8>> {
        self.ask()?;
        let state = self.state.lock();
        let missing = || Error::new(ErrorKind::NotFound, format!("{key}: no such object"));
        let bytes = state.objects.get(key).ok_or_else(missing)?;
        if bytes.len() as u64 > len_max {
            return Err(Error::limit(format!("{key}: too long")));
        }
        Ok(bytes.clone())
    }

    fn has(&self, key: &str) -> Result<bool> {
        self.ask()?;
        Ok(self.state.lock().objects.contains_key(key))
    }

    fn list(&self, dir: &str) -> Result<Vec<String>> {
        self.ask()?;
        let mut state = self.state.lock();
        let mut seen: BTreeMap<String, bool> = state
            .objects
            .keys()
            .map(|key| (key.clone(), true))
            .collect();
        let len = state.changes.len() as u64;
        let late = state.random.below(len + 1) as usize;
        for (key, was_there) in state.changes.iter().rev().take(late) {
            seen.insert(key.clone(), *was_there);
        }
        let prefix = format!("{dir}/");
        let names = seen.into_iter().filter(|(_, is_there)| *is_there);
        Ok(names
            .filter_map(|(key, _)| key.strip_prefix(&prefix).map(str::to_owned))
            .collect())
    }

    fn remove(&self, key: &str) -> Result<()> {
        for _ in 0..ATTEMPTS {
            let trouble = self.trouble();
            if matches!(trouble, Trouble::Lost | Trouble::Delayed) {
                continue;
            }
            let mut state = self.state.lock();
            if state.objects.remove(key).is_some() {
                state.change(key, true);
            }
            if !matches!(trouble, Trouble::AnswerLost) {
                return Ok(());
            }
        }
        Err(cut())
    }
}

fn quiet_bucket() -> SimBucket {
    let network = NetworkState {
        random: Random::new(1),
        fails_one_in: 0,
        late: Vec::new(),
    };
    SimBucket::new(1, Arc::new(Mutex::new(network)))
}

fn place_in(bucket: &SimBucket) -> BucketPlace {
    BucketPlace::new(Box::new(bucket.clone()), Faults::default())
}

// Would catch: a file of data that counts as there because a late list names it, and an item that a
// late list lacks.
#[test]
fn late_lists_are_not_believed() {
    let bucket = quiet_bucket();
    let place = place_in(&bucket);
    let mut late = 0;
    for number in 0..40u64 {
        let data = format!("data/{number}");
        place.put(&data, b"data").expect("put");
        place
            .put(&format!("first/{number:016x}"), b"")
            .expect("put");
        assert_eq!(place.list("first").expect("list").len() as u64, number + 1);
        assert!(place.is_there(&data).expect("asked"));
        place.remove(&data).expect("removed");
        let listed = place.list("data").expect("list");
        late += listed
            .iter()
            .filter(|name| **name == number.to_string())
            .count();
        assert!(!place.is_there(&data).expect("asked"));
    }
    assert!(late > 0, "no list was late");
    // A new process reads the same, with the hint and without it, and notices what is lost.
    for is_hinted in [true, false] {
        if !is_hinted {
            bucket.remove("log/last").expect("removed");
        }
        assert_eq!(place_in(&bucket).list("first").expect("list").len(), 40);
    }
    bucket.remove("log/0000000000000003").expect("removed");
    let lost = place_in(&bucket).put("first/ff", b"").expect_err("a gap");
    assert_eq!(lost.kind(), ErrorKind::Corrupt, "{lost}");
}
