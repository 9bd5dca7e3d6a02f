//! One object of a server: its end when it is opened, then any range of it, always of the same
//! state of the object.

use crate::client::{Connection, SILENCE_MAX, connect};
use crate::failure::{
    Moment, changed, cut_short, explain, explain_opening, lost, no_credentials, status, too_late,
};
use crate::location::Location;
use crate::settings::settings;
use bytes::Bytes;
use object_store::{GetOptions, GetRange, GetResult, ObjectMeta};
use std::ops::Range;
use std::time::Duration;
use tokio::time::timeout;
use weald_format::{Error, Result};

/// Bytes of the end of an object that are fetched when it is opened: footer, directory and index
/// pages of most images, in one request.
pub const TAIL_LEN: u64 = 1 << 20;

/// Slowest transfer that is no failure, bytes in a second.
pub const RATE_MIN: u64 = 16 << 10;

/// An object that is open.
pub struct Object {
    location: Location,
    connection: Connection,
    timeout: Duration,
    /// Size, ETag and time of the state that was opened.
    meta: ObjectMeta,
    /// Whether the key is the digest of the bytes, so that there is one state only.
    is_named_by_digest: bool,
}

/// The last bytes of an object.
pub struct Tail {
    /// Offset of the first of them.
    pub start: u64,
    /// The bytes, up to the end of the object.
    pub bytes: Bytes,
}

impl Object {
    /// Opens the object at `location`.
    ///
    /// # Errors
    /// `NotFound`, `Io`; `Unsupported` if the server does not send parts of objects.
    /// # Cost
    /// One request.
    pub async fn open(location: &Location) -> Result<(Self, Tail)> {
        let limit = settings().timeout;
        let connection = connect(location, limit.min(SILENCE_MAX))?;
        let options = GetOptions {
            range: Some(GetRange::Suffix(TAIL_LEN)),
            ..GetOptions::default()
        };
        let asked = connection.store.get_opts(&connection.key, options);
        let found = match timeout(limit, asked).await {
            Ok(Ok(found)) => found,
            Ok(Err(error)) => {
                return Err(explain_opening(
                    location,
                    &error,
                    connection.has_credentials,
                ));
            }
            Err(_) if connection.has_credentials => return Err(too_late(location, limit)),
            Err(_) => return Err(no_credentials(location)),
        };
        let (meta, range) = (found.meta.clone(), found.range.clone());
        let object = Self {
            location: location.clone(),
            connection,
            timeout: limit,
            meta,
            is_named_by_digest: false,
        };
        let bytes = object.body(found, &range, Moment::Opening).await?;
        object.connection.shared.be_patient();
        let start = range.start;
        Ok((object, Tail { start, bytes }))
    }

    /// The object behind `connection`, which is named by the digest of its `len` bytes. No request
    /// is made.
    pub fn of_digest(location: Location, connection: Connection, len: u64) -> Self {
        Self {
            timeout: settings().timeout,
            meta: ObjectMeta {
                location: connection.key.clone(),
                last_modified: Default::default(),
                size: len,
                e_tag: None,
                version: None,
            },
            location,
            connection,
            is_named_by_digest: true,
        }
    }

    /// Bytes of the object.
    pub fn len(&self) -> u64 {
        self.meta.size
    }

    /// Where it lies.
    pub fn location(&self) -> &Location {
        &self.location
    }

    /// How long its readers wait for the server.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Requests that were sent so far.
    pub fn request_count(&self) -> u64 {
        self.connection.shared.request_count()
    }

    /// The bytes in `range` of the state that was opened.
    ///
    /// # Errors
    /// `Moved` if the object is another one now; `Io`.
    pub async fn read(&self, range: Range<u64>) -> Result<Bytes> {
        let mut options = GetOptions {
            range: Some(GetRange::Bounded(range.clone())),
            ..GetOptions::default()
        };
        // A weak ETag fits no If-Match.
        match self
            .meta
            .e_tag
            .as_ref()
            .filter(|tag| !tag.starts_with("W/"))
        {
            Some(tag) => options.if_match = Some(tag.clone()),
            None if self.meta.last_modified.timestamp() > 0 => {
                options.if_unmodified_since = Some(self.meta.last_modified);
            }
            None => {}
        }
        let asked = self
            .connection
            .store
            .get_opts(&self.connection.key, options);
        let late = |_| too_late(&self.location, self.timeout);
        let asked = timeout(self.timeout, asked).await.map_err(late)?;
        let found = asked.map_err(|error| self.explain(&error))?;
        self.check_same(&found.meta)?;
        self.body(found, &range, Moment::Reading).await
    }

    fn explain(&self, error: &object_store::Error) -> Error {
        match status(error) {
            Some(404 | 410) if self.is_named_by_digest => {
                lost(&self.location, "the object is missing")
            }
            Some(416) if self.is_named_by_digest => lost(&self.location, "the object is cut"),
            _ => explain(&self.location, Moment::Reading, error),
        }
    }

    /// Refuses an answer from another state of the object.
    fn check_same(&self, found: &ObjectMeta) -> Result<()> {
        let opened = &self.meta;
        if self.is_named_by_digest {
            let len = found.size;
            let what = format!("the object has {len} bytes and not {}", opened.size);
            return if len == opened.size {
                Ok(())
            } else {
                Err(lost(&self.location, &what))
            };
        }
        let is_same = found.size == opened.size
            && match (&found.e_tag, &opened.e_tag) {
                (Some(found), Some(opened)) => found == opened,
                _ => found.last_modified == opened.last_modified,
            };
        if is_same {
            Ok(())
        } else {
            Err(changed(&self.location, "another one"))
        }
    }

    /// The body of an answer, which must have the bytes in `range`.
    async fn body(&self, found: GetResult, range: &Range<u64>, moment: Moment) -> Result<Bytes> {
        let len = range.end.saturating_sub(range.start);
        let slowest = Duration::from_secs(len / RATE_MIN);
        let limit = self.timeout.saturating_add(slowest);
        let read = timeout(limit, found.bytes()).await;
        let read = read.map_err(|_| too_late(&self.location, limit))?;
        let bytes = read.map_err(|error| explain(&self.location, moment, &error))?;
        if bytes.len() as u64 == len {
            Ok(bytes)
        } else {
            Err(cut_short(&self.location, len, bytes.len()))
        }
    }
}

/// A text of an error that several readers get.
pub struct Failure {
    kind: weald_format::ErrorKind,
    what: String,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self {
            kind: error.kind(),
            what: error.what().to_owned(),
        }
    }
}

impl Failure {
    /// The error for one reader.
    pub fn error(&self) -> Error {
        Error::new(self.kind, self.what.clone())
    }
}
