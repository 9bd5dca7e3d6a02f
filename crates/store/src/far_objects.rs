//! Objects on another machine: each request takes time, may be lost, and may arrive after it was
//! given up.

use crate::faults::{Bug, Faults};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::hash::{BuildHasher, Hasher};
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use weald_format::{Error, ErrorKind, Result};
use weald_remote::{
    Bucket, Bytes, Condition, Location, Put, ServerKind, VerifiedObject, VerifiedReader, is_url,
};

/// Time after a failure in which nothing is sent; it doubles with each further one.
const PAUSE: Duration = Duration::from_secs(10);
/// Longest time in which nothing is sent.
const PAUSE_MAX: Duration = Duration::from_secs(600);

/// What a bucket does. Requests are repeated below this.
pub trait FarObjects: Debug + Send + Sync {
    /// Its name in messages.
    fn shown(&self) -> String;

    /// Puts an object, durably when this returns.
    ///
    /// # Errors
    /// `Io`: it may be there or not, also later.
    fn put(&self, key: &str, pieces: &[Bytes]) -> Result<()>;

    /// Puts an object if there is none of this name; returns whether it did.
    ///
    /// # Errors
    /// As [`FarObjects::put`].
    fn put_new(&self, key: &str, bytes: &[u8]) -> Result<bool>;

    /// Reads a whole object of at most `len_max` bytes, as it is now.
    ///
    /// # Errors
    /// `NotFound`; `Limit` if it is longer; `Io`.
    fn read(&self, key: &str, len_max: u64) -> Result<Vec<u8>>;

    /// Reads a part of an object, as it is now.
    ///
    /// # Errors
    /// `NotFound`, `Io`.
    fn read_part(&self, key: &str, range: Range<u64>) -> Result<Bytes>;

    /// Fills `buf` from an object whose digests are known; copies of it may be near.
    ///
    /// # Errors
    /// `Lost` if it is missing or has other bytes; `Io`.
    fn read_verified(&self, object: &VerifiedObject, buf: &mut [u8], offset: u64) -> Result<()>;

    /// Bytes of an object; `None` if there is none.
    ///
    /// # Errors
    /// `Io`.
    fn len(&self, key: &str) -> Result<Option<u64>>;

    /// Removes an object, which may be gone already.
    ///
    /// # Errors
    /// `Io`.
    fn remove(&self, key: &str) -> Result<()>;
}

/// Those below a prefix of a bucket.
#[derive(Debug)]
struct BucketObjects {
    bucket: Bucket,
    reader: VerifiedReader,
}

impl FarObjects for BucketObjects {
    fn shown(&self) -> String {
        self.bucket.shown()
    }

    fn put(&self, key: &str, pieces: &[Bytes]) -> Result<()> {
        self.bucket.put_pieces(key, pieces)
    }

    fn put_new(&self, key: &str, bytes: &[u8]) -> Result<bool> {
        Ok(self.bucket.put(key, bytes, Condition::Absent)? == Put::Done)
    }

    fn read(&self, key: &str, len_max: u64) -> Result<Vec<u8>> {
        Ok(self.bucket.get(key, len_max)?.bytes.to_vec())
    }

    fn read_part(&self, key: &str, range: Range<u64>) -> Result<Bytes> {
        self.bucket.get_part(key, range)
    }

    fn read_verified(&self, object: &VerifiedObject, buf: &mut [u8], offset: u64) -> Result<()> {
        self.reader.read_at(object, buf, offset)
    }

    fn len(&self, key: &str) -> Result<Option<u64>> {
        self.bucket.len(key)
    }

    fn remove(&self, key: &str) -> Result<()> {
        self.bucket.remove(key)
    }
}

/// Where objects lie, and what this process does there: all that have opened the place share it.
#[derive(Debug)]
pub struct FarPlace {
    /// The objects.
    pub objects: Box<dyn FarObjects>,
    /// Planted bugs, in tests.
    pub faults: Faults<Bug>,
    /// Keys of objects that are being put: what knows them is not written yet.
    going: Mutex<BTreeSet<String>>,
    trouble: Mutex<Option<Trouble>>,
    pause: Duration,
}

/// What failed last.
#[derive(Debug)]
struct Trouble {
    why: String,
    until: Instant,
    pause: Duration,
}

/// A key that stays in mind until this is dropped.
#[derive(Debug)]
pub struct GoingKey {
    place: Arc<FarPlace>,
    key: String,
}

impl GoingKey {
    /// The key.
    pub fn key(&self) -> &str {
        &self.key
    }
}

impl Drop for GoingKey {
    fn drop(&mut self) {
        self.place.going.lock().remove(&self.key);
    }
}

impl FarPlace {
    /// A place that sends nothing for a while after a failure; `pause` is the first while.
    pub fn new(objects: Box<dyn FarObjects>, faults: Faults<Bug>, pause: Duration) -> Self {
        Self {
            objects,
            faults,
            going: Mutex::default(),
            trouble: Mutex::default(),
            pause,
        }
    }

    /// Keeps in mind that the object `key` is being put.
    pub fn begin(self: &Arc<Self>, key: String) -> GoingKey {
        self.going.lock().insert(key.clone());
        GoingKey {
            place: self.clone(),
            key,
        }
    }

    /// Whether the object `key` is being put.
    pub fn is_going(&self, key: &str) -> bool {
        self.going.lock().contains(key)
    }

    /// The place answers: from now on everything is sent again.
    pub fn is_back(&self) {
        *self.trouble.lock() = None;
    }

    /// Sends something, unless that failed a moment ago.
    ///
    /// # Errors
    /// Those of `send`; the last one again while nothing is sent.
    pub fn attempt<T>(&self, send: impl FnOnce(&dyn FarObjects) -> Result<T>) -> Result<T> {
        if let Some(trouble) = &*self.trouble.lock()
            && Instant::now() < trouble.until
        {
            return Err(Error::lost(trouble.why.clone()));
        }
        let done = send(&*self.objects);
        let mut trouble = self.trouble.lock();
        match &done {
            Ok(_) => *trouble = None,
            Err(error) => {
                log::warn!("{error}");
                let last = trouble.as_ref().map(|last| last.pause.saturating_mul(2));
                let pause = last.unwrap_or(self.pause).min(PAUSE_MAX);
                *trouble = Some(Trouble {
                    why: error.to_string(),
                    until: Instant::now() + pause,
                    pause,
                });
            }
        }
        done
    }
}

/// 128 bits that no other call gets.
pub fn nonce() -> [u8; 16] {
    let random = || std::hash::RandomState::new().build_hasher().finish();
    (u128::from(random()) << 64 | u128::from(random())).to_le_bytes()
}

/// Whether the place of a tier is a URL.
pub fn is_far(place: &str) -> bool {
    is_url(Path::new(place))
}

/// The place of a tier in a bucket, as it is written down.
///
/// # Errors
/// `Invalid` for anything else than a prefix of a bucket, and for what may have a secret in it.
pub fn parse_place(text: &str) -> Result<Location> {
    let location = Location::parse(Path::new(text));
    let location = location.unwrap_or_else(|| Err(Error::invalid(format!("{text}: not a URL"))))?;
    let shown = location.shown();
    let is_prefix = matches!(location.place(), ServerKind::Bucket { .. })
        && location.in_store().is_none()
        && shown == text;
    if is_prefix {
        return Ok(location);
    }
    let what = format!(
        "{shown}: expected s3://BUCKET/PREFIX, without a user, a query, and a colon behind the \
         last slash: a web server is no tier"
    );
    Err(Error::invalid(what))
}

/// Opens the place `text`. No request is made.
///
/// # Errors
/// As [`parse_place`]; `Invalid` for an environment that cannot be used.
pub fn open(text: &str) -> Result<Arc<FarPlace>> {
    static OPEN: Mutex<BTreeMap<String, Weak<FarPlace>>> = Mutex::new(BTreeMap::new());
    let location = parse_place(text)?;
    let mut open = OPEN.lock();
    if let Some(found) = open.get(text).and_then(Weak::upgrade) {
        return Ok(found);
    }
    let bucket = Bucket::open(&location)?;
    let objects = BucketObjects {
        reader: VerifiedReader::new(bucket.clone()),
        bucket,
    };
    let place = FarPlace::new(Box::new(objects), Faults::default(), PAUSE);
    let place = Arc::new(place);
    open.retain(|_, place| place.strong_count() > 0);
    open.insert(text.to_owned(), Arc::downgrade(&place));
    Ok(place)
}

/// An error of a request as that of a place: what failed there is no failure of the store's disk.
pub fn of_place(error: Error) -> Error {
    match error.kind() {
        ErrorKind::Io => Error::lost(error.what().to_owned()),
        _ => error,
    }
}
