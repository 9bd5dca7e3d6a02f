//! Probes what a bucket does: conditional writes, also of several writers at the same moment, and
//! whether reads and lists show what was written.

use crate::bucket::{Bucket, Condition, Put};
use crate::client::runtime;
use crate::location::Location;
use bytes::Bytes;
use weald_format::{Error, ErrorKind, Result};

/// Writers of one object at the same time.
const WRITERS: u8 = 8;
/// How often they write.
const ROUNDS: u32 = 4;
/// Most bytes of an object of the probe.
const LEN_MAX: u64 = 4096;

/// What a check is needed for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needed {
    /// Replicas, and images of stores.
    Always,
    /// Images of stores.
    Stores,
    /// Nothing: it is good to know.
    Nothing,
}

/// One thing that was looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Check {
    /// Its name.
    pub name: &'static str,
    /// What is asked.
    pub what: &'static str,
    /// Whether the bucket does it.
    pub is_right: bool,
    /// What it is needed for.
    pub needed: Needed,
}

/// What a bucket does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probed {
    /// All checks.
    pub checks: Vec<Check>,
    /// Requests that were made.
    pub request_count: u64,
}

impl Probed {
    fn has_all(&self, is_needed: impl Fn(Needed) -> bool) -> bool {
        let mut needed = self.checks.iter().filter(|check| is_needed(check.needed));
        needed.all(|check| check.is_right)
    }

    /// Whether replicas are safe there.
    pub fn is_safe_for_replicas(&self) -> bool {
        self.has_all(|needed| needed == Needed::Always)
    }

    /// Whether several writers may publish images of stores there.
    pub fn is_safe_for_stores(&self) -> bool {
        self.has_all(|needed| needed != Needed::Nothing)
    }
}

/// Probes the bucket at `location`, with objects below `probe-ID/` there, which it removes. `id`
/// must be random.
///
/// # Errors
/// `Io` if a request fails; `Invalid` for a web server.
/// # Cost
/// About 100 requests.
pub fn probe(location: &Location, id: u64) -> Result<Probed> {
    let bucket = Bucket::open(location)?;
    let dir = format!("probe-{id:016x}");
    let checks = checks(&bucket, &dir);
    for name in ["one", "same", "race", "replaced"] {
        if let Err(error) = bucket.remove(&format!("{dir}/{name}")) {
            log::warn!("{error}");
        }
    }
    Ok(Probed {
        checks: checks?,
        request_count: bucket.request_count(),
    })
}

fn checks(bucket: &Bucket, dir: &str) -> Result<Vec<Check>> {
    let key = |name: &str| format!("{dir}/{name}");
    let (one, same) = (key("one"), key("same"));
    let mut checks = Vec::new();
    let mut add = |name, what, needed, is_right| {
        checks.push(Check {
            name,
            what,
            is_right,
            needed,
        });
    };
    // Its answer may be lost, so that the repetition is refused.
    let _ = bucket.put(&one, b"first", Condition::Absent)?;
    let second = bucket.put(&one, b"second", Condition::Absent)?;
    let first = bucket.get(&one, LEN_MAX)?;
    add(
        "create-if-absent",
        "a second If-None-Match: * is refused",
        Needed::Always,
        second == Put::Refused && first.bytes.as_ref() == b"first",
    );
    let _ = bucket.put(&one, b"third", Condition::Always)?;
    let third = bucket.get(&one, LEN_MAX)?;
    add(
        "read-after-write",
        "a read shows what was written before it",
        Needed::Always,
        third.bytes.as_ref() == b"third",
    );
    let part = bucket.get_part(&one, 1..3)?;
    add(
        "ranges",
        "a part of an object can be read",
        Needed::Always,
        part.as_ref() == b"hi",
    );
    let (stale, right) = (first.tag.clone(), third.tag.clone());
    let stale = bucket.put(&one, b"wrong", Condition::Same(stale.unwrap_or_default()))?;
    add(
        "replace-if-other",
        "If-Match with the ETag of an earlier state is refused",
        Needed::Stores,
        stale == Put::Refused && bucket.get(&one, LEN_MAX)?.bytes.as_ref() == b"third",
    );
    let _ = bucket.put(&one, b"fourth", Condition::Same(right.unwrap_or_default()))?;
    let fourth = bucket.get(&one, LEN_MAX)?;
    add(
        "replace-if-same",
        "If-Match with the right ETag replaces",
        Needed::Stores,
        fourth.tag.is_some() && fourth.bytes.as_ref() == b"fourth",
    );
    let names = bucket.list(dir)?;
    add(
        "list-after-write",
        "a list has what was written before it",
        Needed::Nothing,
        names.contains(&"one".to_owned()),
    );
    let _ = bucket.put(&same, b"fourth", Condition::Always)?;
    add(
        "other-etags",
        "equal bytes have other ETags",
        Needed::Nothing,
        bucket.get(&same, LEN_MAX)?.tag != fourth.tag,
    );
    bucket.remove(&one)?;
    let gone = bucket.get(&one, LEN_MAX);
    add(
        "read-after-remove",
        "a read shows that an object was removed",
        Needed::Always,
        gone.is_err_and(|error| error.kind() == ErrorKind::NotFound),
    );
    let mut creates_once = true;
    let mut replaces_once = true;
    for _ in 0..ROUNDS {
        let (race, replaced) = (key("race"), key("replaced"));
        bucket.remove(&race)?;
        creates_once &= races_once(bucket, &race, &Condition::Absent)?;
        let _ = bucket.put(&replaced, &[WRITERS], Condition::Always)?;
        let tag = bucket.get(&replaced, LEN_MAX)?.tag.unwrap_or_default();
        replaces_once &= races_once(bucket, &replaced, &Condition::Same(tag))?;
    }
    add(
        "create-race",
        "of 8 writers that create an object one succeeds",
        Needed::Always,
        creates_once,
    );
    add(
        "replace-race",
        "of 8 writers that replace an object one succeeds",
        Needed::Stores,
        replaces_once,
    );
    Ok(checks)
}

/// Whether of several writers at the same moment one succeeds, and its bytes are there.
fn races_once(bucket: &Bucket, key: &str, condition: &Condition) -> Result<bool> {
    let runtime = runtime()?;
    let writers = (0..WRITERS).map(|writer| {
        let (bucket, key, condition) = (bucket.clone(), key.to_owned(), condition.clone());
        let bytes = Bytes::copy_from_slice(&[writer]);
        runtime.spawn(async move { bucket.put_async(&key, bytes, condition).await })
    });
    let writers: Vec<_> = writers.collect();
    let mut winners = Vec::new();
    for (writer, done) in (0..WRITERS).zip(writers) {
        let stopped = |_| Error::limit("a request was stopped");
        if runtime.block_on(done).map_err(stopped)?? == Put::Done {
            winners.push(writer);
        }
    }
    let found = bucket.get(key, LEN_MAX)?.bytes;
    Ok(match winners.as_slice() {
        [winner] => found.as_ref() == [*winner],
        // The answer of the winner was lost.
        [] => found.first().is_some_and(|writer| *writer < WRITERS),
        _ => false,
    })
}
