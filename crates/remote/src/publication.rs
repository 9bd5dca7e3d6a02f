//! Publishes an image into a store in a bucket: what is new of its records goes into packs, then
//! comes the map, and the name last.
//!
//! Packs and maps never change, so that readers of other images, and of the one that had the name
//! before, go on. Which records are there already is known from the maps of images of the store: of
//! the one that has the name, and of some with similar names. The names are listed, and a list that
//! is late costs no more than records that are sent twice. A pack that is to be used again is
//! looked for first.

use crate::bucket::{Bucket, Condition, Put};
use crate::client::runtime;
use crate::location::{InStore, Location};
use crate::stored::{read_map, read_name};
use bytes::Bytes;
use std::collections::{BTreeMap, HashMap, VecDeque};
use tokio::task::JoinHandle;
use weald_format::bucket::{
    BUCKET_MAP_LEN_MAX, BucketMap, BucketName, Pack, map_key, name_key, pack_key,
};
use weald_format::container::{HEADER_LEN, RecordRef};
use weald_format::store::{ImageMap, Location as RecordLocation, Part};
use weald_format::{BlockId, Digest, Error, ErrorKind, ImageNo, Result, SegmentNo};

/// Bytes after which a pack is complete: what is sent at once, and what is sent again after an
/// interruption.
const PACK_LEN: usize = 16 << 20;
/// Packs that are sent at a time.
const PACKS_IN_FLIGHT: usize = 3;
/// Images whose records are known, besides the one that has the name.
const SIMILAR_MAX: usize = 8;
/// How often the name is tried while other writers replace it.
const TRIES: u32 = 3;

/// What tells a record from all others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct RecordKey {
    digest: [u8; 32],
    codes: [u8; 2],
    lens: [u64; 2],
}

impl RecordKey {
    fn of(record: &RecordRef) -> Self {
        Self {
            digest: record.digest.0,
            codes: [record.record_type as u8, record.codec as u8],
            lens: [record.stored_len, record.raw_len],
        }
    }
}

/// Whether a pack of an earlier image is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PackState {
    /// Nobody has looked.
    Unknown,
    /// It is.
    There,
    /// It is not, or has another length.
    Gone,
}

/// What was published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Published {
    /// Bytes that were sent: packs, map and name.
    pub sent_len: u64,
    /// Bytes of the image that were there already.
    pub present_len: u64,
    /// Requests that were made.
    pub request_count: u64,
}

/// The image of a store, as a name has it now.
#[derive(Debug)]
struct Now {
    name: BucketName,
    tag: Option<String>,
}

/// An image that is being published.
pub struct Publication {
    bucket: Bucket,
    in_store: InStore,
    now: Option<Now>,
    /// Whether packs replace those that are there.
    repairs: bool,
    packs: Vec<(Pack, PackState)>,
    /// Where records lie: index of the pack, and offset.
    known: HashMap<RecordKey, (usize, u64)>,
    /// The pack that is being filled, which has the next index.
    pack: Vec<u8>,
    parts: Vec<Part>,
    sending: VecDeque<JoinHandle<Result<()>>>,
    sent_len: u64,
    present_len: u64,
}

impl Publication {
    /// Begins to publish an image at `location`, which names an image of a store; `None` if
    /// `location` names an object.
    ///
    /// # Errors
    /// `Io`; `Corrupt` if the name is damaged.
    /// # Cost
    /// A request for the name and one for its map; one for a list, and two for each of up to eight
    /// similar names.
    pub fn begin(location: &Location) -> Result<Option<Self>> {
        let Some(in_store) = location.in_store() else {
            return Ok(None);
        };
        let in_store = in_store?;
        let bucket = Bucket::open(location)?;
        let now = find_name(&bucket, &in_store.name)?;
        Ok(Some(Self {
            bucket,
            in_store,
            now,
            repairs: false,
            packs: Vec::new(),
            known: HashMap::new(),
            pack: Vec::new(),
            parts: Vec::new(),
            sending: VecDeque::new(),
            sent_len: 0,
            present_len: 0,
        }))
    }

    /// The digest of the image that has the name now.
    pub fn digest(&self) -> Option<Digest> {
        self.now.as_ref().map(|now| now.name.image_digest)
    }

    /// Sends all records, in place of those that are there: they may be damaged.
    pub fn repair(&mut self) {
        self.repairs = true;
    }

    /// Learns which records are there.
    ///
    /// # Errors
    /// `Io`. Maps that are damaged or gone are left out.
    pub fn learn(&mut self) -> Result<()> {
        if self.repairs {
            return Ok(());
        }
        let own = self.now.as_ref().map(|now| now.name.clone());
        let mut names: Vec<BucketName> = own.into_iter().collect();
        for name in similar(&self.bucket, &self.in_store.name) {
            match find_name(&self.bucket, &name) {
                Ok(now) => names.extend(now.map(|now| now.name)),
                Err(error) if error.kind() == ErrorKind::Io => return Err(error),
                Err(error) => log::warn!("{error}: left out"),
            }
        }
        for name in names {
            match read_map(&self.bucket, &name) {
                Ok(map) => self.learn_map(&map),
                Err(error) if error.kind() == ErrorKind::Io => return Err(error),
                Err(error) => log::warn!("{error}: left out"),
            }
        }
        Ok(())
    }

    fn learn_map(&mut self, map: &BucketMap) {
        let first = self.packs.len();
        let packs = map.packs.iter().map(|pack| (*pack, PackState::Unknown));
        self.packs.extend(packs);
        for (_, location, record) in map.map.blocks() {
            let index = usize::try_from(location.segment.0).unwrap_or(usize::MAX);
            let place = (first.saturating_add(index), location.offset);
            self.known.entry(RecordKey::of(record)).or_insert(place);
        }
    }

    /// Appends bytes that are not a record.
    pub fn put_inline(&mut self, bytes: &[u8]) {
        self.parts.push(Part::Inline(bytes.to_vec()));
    }

    /// Appends `record` if the store has it; returns whether it does.
    ///
    /// # Errors
    /// `Io`.
    pub fn put_known(&mut self, record: &RecordRef) -> Result<bool> {
        let Some(&(pack, offset)) = self.known.get(&RecordKey::of(record)) else {
            return Ok(false);
        };
        if pack < self.packs.len() && !self.is_there(pack)? {
            return Ok(false);
        }
        self.push(record, (pack, offset));
        self.present_len += HEADER_LEN as u64 + record.stored_len;
        Ok(true)
    }

    /// Whether a pack is there, as far as its length tells.
    fn is_there(&mut self, index: usize) -> Result<bool> {
        let Some((pack, state)) = self.packs.get_mut(index) else {
            return Ok(false);
        };
        if *state == PackState::Unknown {
            let key = pack_key(&pack.digest);
            let len = runtime()?.block_on(self.bucket.len_async(&key))?;
            *state = if len == Some(pack.len) {
                PackState::There
            } else {
                log::warn!(
                    "{}/{key}: is missing or cut: sent again",
                    self.bucket.shown()
                );
                PackState::Gone
            };
        }
        Ok(*state == PackState::There)
    }

    fn push(&mut self, record: &RecordRef, (pack, offset): (usize, u64)) {
        let record = RecordRef {
            offset: 0,
            ..*record
        };
        self.parts.push(Part::Block {
            id: BlockId(self.parts.len() as u64),
            location: RecordLocation {
                segment: SegmentNo(pack as u64),
                offset,
            },
            record,
        });
    }

    /// Appends a record, with its header, that the store does not have.
    ///
    /// # Errors
    /// `Io`.
    pub fn put_new(&mut self, record: &RecordRef, bytes: &[u8]) -> Result<()> {
        if !self.pack.is_empty() && self.pack.len().saturating_add(bytes.len()) > PACK_LEN {
            self.send_pack()?;
        }
        let place = (self.packs.len(), self.pack.len() as u64);
        self.pack.extend_from_slice(bytes);
        self.known.insert(RecordKey::of(record), place);
        self.push(record, place);
        Ok(())
    }

    fn send_pack(&mut self) -> Result<()> {
        let bytes = Bytes::from(std::mem::take(&mut self.pack));
        if bytes.is_empty() {
            return Ok(());
        }
        let pack = Pack {
            digest: Digest::of(&bytes),
            len: bytes.len() as u64,
        };
        self.packs.push((pack, PackState::There));
        self.sent_len += pack.len;
        while self.sending.len() >= PACKS_IN_FLIGHT {
            self.wait_for_pack()?;
        }
        let (bucket, replaces) = (self.bucket.clone(), self.repairs);
        let key = pack_key(&pack.digest);
        let sending = async move { put_immutable(&bucket, &key, bytes, replaces).await };
        self.sending.push_back(runtime()?.spawn(sending));
        Ok(())
    }

    fn wait_for_pack(&mut self) -> Result<()> {
        let Some(sending) = self.sending.pop_front() else {
            return Ok(());
        };
        let stopped = |_| Error::limit("an upload was stopped");
        runtime()?.block_on(sending).map_err(stopped)?
    }

    /// Sends what is left, the map, and then the name. `nonce` must be random.
    ///
    /// # Errors
    /// `Io`; `Busy` if another writer replaced the name meanwhile. The name is then what it was.
    pub fn finish(
        mut self,
        (image_digest, tree_digest): (Digest, Digest),
        nonce: [u8; 16],
    ) -> Result<Published> {
        self.send_pack()?;
        let map = self.map(image_digest, tree_digest);
        let map_bytes = Bytes::from(map.encode());
        if map_bytes.len() as u64 > BUCKET_MAP_LEN_MAX {
            return Err(Error::limit("the image has too many records for a map"));
        }
        while !self.sending.is_empty() {
            self.wait_for_pack()?;
        }
        let mut name = BucketName {
            image_digest,
            tree_digest,
            image_len: map.map.image_len(),
            map_digest: Digest::of(&map_bytes),
            map_len: map_bytes.len() as u64,
            version: 1,
            nonce,
        };
        let key = map_key(&name.map_digest);
        self.sent_len += name.map_len;
        let put = put_immutable(&self.bucket, &key, map_bytes, self.repairs);
        runtime()?.block_on(put)?;
        let now = self.now.take();
        if let Some(now) = &now {
            name.version = now.name.version.saturating_add(1);
        }
        self.sent_len += name.encode().len() as u64;
        switch(&self.bucket, &self.in_store.name, &name, now)?;
        Ok(Published {
            sent_len: self.sent_len,
            present_len: self.present_len,
            request_count: self.bucket.request_count(),
        })
    }

    /// The map of the parts so far, with the packs that it uses.
    fn map(&mut self, image_digest: Digest, tree_digest: Digest) -> BucketMap {
        let mut parts = std::mem::take(&mut self.parts);
        let mut packs = Vec::new();
        let mut numbers: BTreeMap<u64, u64> = BTreeMap::new();
        for part in &mut parts {
            if let Part::Block { location, .. } = part {
                let old = location.segment.0;
                let number = *numbers.entry(old).or_insert_with(|| {
                    let pack = usize::try_from(old).ok().and_then(|at| self.packs.get(at));
                    packs.extend(pack.map(|(pack, _)| *pack));
                    (packs.len() as u64).saturating_sub(1)
                });
                location.segment = SegmentNo(number);
            }
        }
        BucketMap {
            packs,
            map: ImageMap {
                image_no: ImageNo(0),
                image_digest,
                tree_digest,
                added: 0,
                parts,
            },
        }
    }
}

/// What `name` is now; `None` if nothing.
fn find_name(bucket: &Bucket, name: &str) -> Result<Option<Now>> {
    match runtime()?.block_on(read_name(bucket, name)) {
        Ok((name, tag)) => Ok(Some(Now { name, tag })),
        Err(error)
            if error.kind() == ErrorKind::NotFound && !error.what().contains("bucket at") =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Names of the store that begin most like `name`, of which there may be others.
fn similar(bucket: &Bucket, name: &str) -> Vec<String> {
    let listed = bucket.list("names");
    let mut names = listed.unwrap_or_else(|error| {
        log::info!("{error}: other images are not looked at");
        Vec::new()
    });
    names.retain(|other| other != name);
    let shared = |other: &String| {
        let pairs = other.bytes().zip(name.bytes());
        pairs.take_while(|(one, two)| one == two).count()
    };
    names.sort_by_key(|other| (std::cmp::Reverse(shared(other)), other.clone()));
    names.truncate(SIMILAR_MAX);
    names
}

/// Puts an object that is named by the digest of its bytes.
async fn put_immutable(bucket: &Bucket, key: &str, bytes: Bytes, replaces: bool) -> Result<()> {
    let len = bytes.len() as u64;
    if !replaces {
        let put = bucket.put_async(key, bytes.clone(), Condition::Absent);
        match put.await? {
            Put::Done => return Ok(()),
            // Ours, or one with the same bytes; only a faulty server has another length.
            Put::Refused if bucket.len_async(key).await? == Some(len) => return Ok(()),
            Put::Refused => {}
        }
    }
    let put = bucket.put_async(key, bytes, Condition::Always).await?;
    debug_assert_eq!(put, Put::Done, "an unconditional write is not refused");
    Ok(())
}

/// Gives `name` to the image of `new`, in place of what it was when this began.
fn switch(bucket: &Bucket, name: &str, new: &BucketName, now: Option<Now>) -> Result<()> {
    let key = name_key(name);
    let condition = match now {
        None => Condition::Absent,
        Some(Now { tag: Some(tag), .. }) => Condition::Same(tag),
        Some(Now { tag: None, .. }) => {
            let what = format!(
                "{}: the server gives no ETags, so that two writers could replace each other's \
                 images: use another server",
                bucket.shown()
            );
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
    };
    let bytes = new.encode();
    for _ in 0..TRIES {
        if bucket.put(&key, &bytes, condition.clone())? == Put::Done {
            return Ok(());
        }
        match find_name(bucket, name)? {
            // An attempt whose answer was lost.
            Some(found) if found.name.nonce == new.nonce => return Ok(()),
            None if condition == Condition::Absent => {}
            _ => break,
        }
    }
    let what = format!(
        "{}:{name}: another writer published it at the same time, and its image stays: look at it, \
         then publish again",
        bucket.shown()
    );
    Err(Error::new(ErrorKind::Busy, what))
}
