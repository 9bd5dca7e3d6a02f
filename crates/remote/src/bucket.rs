//! Objects below a prefix of a bucket: put, read, listed and removed, each with repetitions.
//!
//! A request whose answer is lost is repeated, and may then meet its own success. So a conditional
//! write that is refused says no more than that an object is there: the caller compares what is
//! there with what it wanted to write.

use crate::client::{Connection, PAUSE, PAUSE_MAX, connect, runtime};
use crate::failure::{self, Moment, explain, explain_opening, is_transient, status, too_late};
use crate::location::{Location, ServerKind};
use crate::object::RATE_MIN;
use crate::settings::settings;
use bytes::{Bytes, BytesMut};
use object_store::{GetOptions, GetRange, ObjectStore, ObjectStoreExt, PutMode, PutOptions};
use object_store::{PutPayload, UpdateVersion};
use std::future::Future;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout_at};
use weald_format::{Error, ErrorKind, Result};

/// Bytes of one request for a part of a large object.
const STEP_LEN: u64 = 4 << 20;
/// Requests for parts of one object at a time.
const STEPS_IN_FLIGHT: usize = 4;
/// Slowest sending of an object out of pieces that is no failure, bytes in a second.
const PIECES_RATE_MIN: u64 = 256 << 10;
/// How long a server may be silent while it receives an object.
const SILENCE_MAX: Duration = Duration::from_secs(600);

/// When an object is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// In any case.
    Always,
    /// If there is none of this name.
    Absent,
    /// If the one that is there has this ETag.
    Same(String),
}

/// What became of a conditional write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Put {
    /// It is there, durably.
    Done,
    /// The condition does not hold: another writer, or an attempt of this one whose answer was
    /// lost.
    Refused,
}

/// An object that was read.
#[derive(Debug, Clone)]
pub struct FetchedObject {
    /// Its bytes.
    pub bytes: Bytes,
    /// Its ETag, if the server gives one.
    pub tag: Option<String>,
}

/// The objects of a bucket whose keys begin with a prefix.
#[derive(Clone)]
pub struct Bucket {
    location: Location,
    prefix: String,
    connection: Connection,
    timeout: Duration,
}

impl std::fmt::Debug for Bucket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.shown())
    }
}

/// An attempt that failed.
struct Failed {
    status: Option<u16>,
    error: Error,
}

impl Bucket {
    /// The objects below `location`: those of its store if it names an image of one. No request is
    /// made.
    ///
    /// # Errors
    /// `Invalid` for a location that is not in a bucket, or an environment that cannot be used.
    pub fn open(location: &Location) -> Result<Self> {
        let prefix = match (location.in_store(), location.place()) {
            (Some(stored), _) => stored?.prefix,
            (None, ServerKind::Bucket { key, .. }) => format!("{}/", key.trim_end_matches('/')),
            (None, ServerKind::Web) => {
                let what = format!(
                    "{}: expected s3://BUCKET/PREFIX: a web server takes no objects",
                    location.shown()
                );
                return Err(Error::invalid(what));
            }
        };
        Ok(Self {
            connection: connect(location, SILENCE_MAX)?,
            location: location.clone(),
            prefix,
            timeout: settings().timeout,
        })
    }

    /// Where it lies, for messages.
    pub fn shown(&self) -> String {
        let shown = self.location.object("").shown();
        shown.trim_end_matches('/').to_owned()
    }

    /// Requests that were sent so far.
    pub fn request_count(&self) -> u64 {
        self.connection.shared.request_count()
    }

    /// A connection for the object `key` below the prefix.
    pub(crate) fn connection(&self, key: &str) -> Result<Connection> {
        self.connection.at(&format!("{}{key}", self.prefix))
    }

    /// The location of the object `key` below the prefix.
    pub(crate) fn location(&self, key: &str) -> Location {
        self.location.object(key)
    }

    /// Makes a request until it succeeds, fails for good, or the time is over.
    async fn attempt<T, F>(
        &self,
        key: &str,
        (moment, len): (Moment, u64),
        once: impl Fn() -> F,
    ) -> std::result::Result<T, Failed>
    where
        F: Future<Output = object_store::Result<T>>,
    {
        let longest = Duration::from_secs(len / RATE_MIN);
        let limit = self.timeout.saturating_add(longest);
        self.attempt_within(key, moment, (limit, limit), once).await
    }

    /// Makes a request until it succeeds, fails for good, or `limit` is over; none is repeated
    /// after `repeat_limit`.
    async fn attempt_within<T, F>(
        &self,
        key: &str,
        moment: Moment,
        (limit, repeat_limit): (Duration, Duration),
        once: impl Fn() -> F,
    ) -> std::result::Result<T, Failed>
    where
        F: Future<Output = object_store::Result<T>>,
    {
        let location = self.location(key);
        let begun = Instant::now();
        let deadline = begun + limit;
        let mut pause = PAUSE;
        let mut last = None;
        loop {
            let Ok(answered) = timeout_at(deadline, once()).await else {
                let late = || Failed {
                    status: None,
                    error: too_late(&location, limit),
                };
                return Err(last.unwrap_or_else(late));
            };
            let shared = &self.connection.shared;
            let error = match answered {
                Ok(done) => {
                    shared.be_patient();
                    return Ok(done);
                }
                Err(error) => error,
            };
            let failed = Failed {
                status: status(&error),
                error: if shared.is_patient() {
                    explain(&location, moment, &error)
                } else {
                    explain_opening(&location, &error, self.connection.has_credentials)
                },
            };
            let is_last = Instant::now() + pause >= begun + repeat_limit;
            if is_last || !is_transient(&error) {
                return Err(failed);
            }
            log::debug!("{}: once more: {}", location.shown(), failed.error);
            last = Some(failed);
            sleep(pause).await;
            pause = pause.saturating_mul(2).min(PAUSE_MAX);
        }
    }

    /// As [`Bucket::put`].
    pub(crate) async fn put_async(
        &self,
        key: &str,
        bytes: Bytes,
        condition: Condition,
    ) -> Result<Put> {
        let connection = self.connection(key)?;
        let is_conditional = condition != Condition::Always;
        let mode = match condition {
            Condition::Always => PutMode::Overwrite,
            Condition::Absent => PutMode::Create,
            Condition::Same(tag) => PutMode::Update(UpdateVersion {
                e_tag: Some(tag),
                version: None,
            }),
        };
        let len = bytes.len() as u64;
        let (store, at) = (&connection.store, &connection.key);
        let once = || {
            let options = PutOptions::from(mode.clone());
            store.put_opts(at, PutPayload::from(bytes.clone()), options)
        };
        match self.attempt(key, (Moment::Publishing, len), once).await {
            Ok(_) => Ok(Put::Done),
            Err(failed) if is_conditional && matches!(failed.status, Some(304 | 412)) => {
                self.connection.shared.be_patient();
                Ok(Put::Refused)
            }
            // The object that was to be replaced is gone.
            Err(failed)
                if failed.error.kind() == ErrorKind::NotFound
                    && matches!(mode, PutMode::Update(_)) =>
            {
                Ok(Put::Refused)
            }
            Err(failed) => Err(failed.error),
        }
    }

    /// As [`Bucket::get`].
    pub(crate) async fn get_async(&self, key: &str, len_max: u64) -> Result<FetchedObject> {
        let first = self.range(key, 0..len_max.clamp(1, STEP_LEN)).await?;
        let (mut bytes, tag, len) = first;
        if len > len_max {
            let shown = self.location(key).shown();
            let what = format!("{shown}: has {len} bytes, expected at most {len_max}");
            return Err(Error::limit(what));
        }
        let mut all = BytesMut::new();
        let mut at = bytes.len() as u64;
        while at < len {
            all.extend_from_slice(&bytes);
            let mut steps = Vec::new();
            while at < len && steps.len() < STEPS_IN_FLIGHT {
                let range = at..at.saturating_add(STEP_LEN).min(len);
                at = range.end;
                let (bucket, key) = (self.clone(), key.to_owned());
                let step = async move { bucket.range(&key, range).await };
                steps.push(tokio::spawn(step));
            }
            bytes = Bytes::new();
            for step in steps {
                let stopped = |_| Error::limit("a request was stopped");
                let (part, ..) = step.await.map_err(stopped)??;
                all.extend_from_slice(&part);
            }
        }
        if !all.is_empty() {
            bytes = all.freeze();
        }
        if bytes.len() as u64 == len {
            Ok(FetchedObject { bytes, tag })
        } else {
            Err(failure::cut_short(&self.location(key), len, bytes.len()))
        }
    }

    /// Bytes of an object, its ETag, and its length.
    async fn range(
        &self,
        key: &str,
        range: std::ops::Range<u64>,
    ) -> Result<(Bytes, Option<String>, u64)> {
        let connection = self.connection(key)?;
        let (store, at) = (&connection.store, &connection.key);
        let len = range.end.saturating_sub(range.start);
        let once = || async {
            let options = GetOptions {
                range: Some(GetRange::Bounded(range.clone())),
                ..GetOptions::default()
            };
            let found = store.get_opts(at, options).await?;
            let (tag, len) = (found.meta.e_tag.clone(), found.meta.size);
            Ok((found.bytes().await?, tag, len))
        };
        match self.attempt(key, (Moment::Opening, len), once).await {
            // There is no first byte.
            Err(failed) if failed.status == Some(416) => Ok((Bytes::new(), None, 0)),
            other => other.map_err(|failed| failed.error),
        }
    }

    /// The bytes of the object `key`, or `None` if there is none.
    pub(crate) async fn len_async(&self, key: &str) -> Result<Option<u64>> {
        let connection = self.connection(key)?;
        let once = || connection.store.head(&connection.key);
        match self.attempt(key, (Moment::Opening, 0), once).await {
            Ok(meta) => Ok(Some(meta.size)),
            Err(failed) if failed.status == Some(404) => Ok(None),
            Err(failed) => Err(failed.error),
        }
    }

    /// As [`Bucket::list`].
    pub(crate) async fn list_async(&self, dir: &str) -> Result<Vec<String>> {
        let connection = self.connection(dir)?;
        let prefix = Some(&connection.key);
        let once = || connection.store.list_with_delimiter(prefix);
        let listed = self.attempt(dir, (Moment::Opening, 0), once).await;
        let listed = listed.map_err(|failed| failed.error)?;
        let names = listed.objects.iter();
        let names = names.filter_map(|meta| meta.location.filename().map(str::to_owned));
        Ok(names.collect())
    }

    /// Puts an object, durably when this returns.
    ///
    /// # Errors
    /// `Io`: it may be there or not, also later.
    pub fn put(&self, key: &str, bytes: &[u8], condition: Condition) -> Result<Put> {
        let bytes = Bytes::copy_from_slice(bytes);
        runtime()?.block_on(self.put_async(key, bytes, condition))
    }

    /// Puts an object out of `pieces`, durably when this returns. It is sent again only within the
    /// time for one request, and fails if it gets slower than 256 KiB a second.
    ///
    /// # Errors
    /// As [`Bucket::put`].
    pub fn put_pieces(&self, key: &str, pieces: &[Bytes]) -> Result<()> {
        let connection = self.connection(key)?;
        let len: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
        let limit = Duration::from_secs(len / PIECES_RATE_MIN);
        let limits = (self.timeout.saturating_add(limit), self.timeout);
        let payload: PutPayload = pieces.iter().cloned().collect();
        let once = || connection.store.put(&connection.key, payload.clone());
        let attempts = self.attempt_within(key, Moment::Publishing, limits, once);
        let done = runtime()?.block_on(attempts);
        done.map(drop).map_err(|failed| failed.error)
    }

    /// Reads a whole object of at most `len_max` bytes.
    ///
    /// # Errors
    /// `NotFound`; `Limit` if it is longer; `Io`.
    /// # Cost
    /// A request for each 4 MiB.
    pub fn get(&self, key: &str, len_max: u64) -> Result<FetchedObject> {
        runtime()?.block_on(self.get_async(key, len_max))
    }

    /// Bytes of an object.
    ///
    /// # Errors
    /// `NotFound`, `Io`.
    pub fn get_part(&self, key: &str, range: std::ops::Range<u64>) -> Result<Bytes> {
        Ok(runtime()?.block_on(self.range(key, range))?.0)
    }

    /// Bytes of the object `key`; `None` if there is none.
    ///
    /// # Errors
    /// `Io`.
    pub fn len(&self, key: &str) -> Result<Option<u64>> {
        runtime()?.block_on(self.len_async(key))
    }

    /// Whether there is an object.
    ///
    /// # Errors
    /// `Io`.
    pub fn has(&self, key: &str) -> Result<bool> {
        Ok(self.len(key)?.is_some())
    }

    /// Names of the objects in a directory. A server may list late: objects that are there may be
    /// left out, and such that are gone named.
    ///
    /// # Errors
    /// `Io`.
    /// # Cost
    /// A request for each 1,000 objects.
    pub fn list(&self, dir: &str) -> Result<Vec<String>> {
        runtime()?.block_on(self.list_async(dir))
    }

    /// Removes an object, which may be gone already.
    ///
    /// # Errors
    /// `Io`.
    pub fn remove(&self, key: &str) -> Result<()> {
        let connection = self.connection(key)?;
        let once = || connection.store.delete(&connection.key);
        let removed = runtime()?.block_on(self.attempt(key, (Moment::Publishing, 0), once));
        match removed {
            Err(failed) if failed.status != Some(404) => Err(failed.error),
            _ => Ok(()),
        }
    }
}
