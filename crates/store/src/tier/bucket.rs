//! The disk of a tier in a bucket: its names are receipts in the home, its bytes are objects.
//!
//! In `receipts.TIER` lie, beside the receipts, empty notes that name objects to remove:
//! `going.KEY` before an object is put, `gone.KEY` when its segment was dropped, and `late.KEY`
//! while what was given up may still arrive. A receipt with the key wins. No key is used twice, so
//! that nothing that arrives late can replace or remove what counts.

use super::receipt::{self, RECEIPT_LEN_MAX, key_name, parse_key_name};
use super::record::{LEN_MAX, Tier, TierMark, home_of, owner_of};
use crate::disk::{Access, Disk, DiskSpace, LocalFile, LocalFiles, Object};
use crate::far_objects::{FarPlace, GoingKey, nonce, of_place};
use crate::faults::Bug;
use crate::hex::hex;
use crate::layout;
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use weald_format::store::Uuid;
use weald_format::{Digest, Error, ErrorKind, Result, SegmentNo};
use weald_remote::{Bytes, CHUNK_LEN, VerifiedObject};

/// The object that says whose tier it is.
pub(super) const MARK: &str = "tier";
/// Notes of objects that are being put.
const GOING: &str = "going.";
/// Notes of objects of segments that were dropped.
const GONE: &str = "gone.";
/// Notes of objects that may still arrive.
const LATE: &str = "late.";
/// Seconds after which nothing arrives any more.
const LATE_TIME_S: u64 = 3600;
/// A receipt until all of it is there.
const NEW: &str = "new";
/// Longest segment that goes to a bucket: it is in memory while it is put.
pub(super) const SEGMENT_LEN_MAX: u64 = 256 << 20;
/// Bytes that are read at once by those who want no copy: a few chunks.
const STEP_LEN: u64 = 4 * CHUNK_LEN;
/// Zeros in place of ranges that nobody writes.
static ZEROS: [u8; 1 << 20] = [0; 1 << 20];

/// A note of an object to remove now.
struct Due {
    name: String,
    key: String,
    /// Its name afterwards, if the object may still arrive.
    later: Option<String>,
}

/// What a bucket says if it is the tier.
#[derive(Debug, Clone)]
pub(super) struct Whose {
    /// The tier.
    pub uuid: Uuid,
    /// Inode of the store's directory; machine and path.
    pub home: (u64, String),
}

/// A tier in a bucket.
#[derive(Debug)]
pub(super) struct BucketTier {
    home: Arc<dyn Disk>,
    /// Directory of receipts in the home.
    dir: String,
    place: Arc<FarPlace>,
    whose: Whose,
    /// The segment on its way there.
    staged: Mutex<Option<Arc<Staged>>>,
    /// Note of the object whose receipt has just got its name.
    settled: Mutex<Option<String>>,
}

/// A segment on its way to the bucket.
#[derive(Debug)]
struct Staged {
    note: String,
    home: Arc<dyn Disk>,
    dir: String,
    place: Arc<FarPlace>,
    whose: Whose,
    key: GoingKey,
    state: Mutex<StagedState>,
}

#[derive(Debug, Default)]
struct StagedState {
    pieces: Vec<Bytes>,
    len: u64,
    /// What was put.
    object: Option<VerifiedObject>,
}

/// Stands for the segment on its way among files.
#[derive(Debug)]
struct StagedFile(Arc<Staged>);

/// A segment in the bucket.
#[derive(Debug)]
struct FarFile {
    place: Arc<FarPlace>,
    object: VerifiedObject,
    /// What was read last, for readers who want what the bucket has now; nothing for others.
    now: Option<Mutex<(u64, Bytes)>>,
}

/// Refuses a bucket that is not this tier, as it says itself.
///
/// # Errors
/// `Lost`.
fn check_mark(place: &FarPlace, whose: &Whose) -> Result<()> {
    let shown = place.objects.shown();
    let bytes = match place.objects.read(MARK, LEN_MAX) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let what = format!("{shown}: is no tier: {}", error.what());
            return Err(Error::lost(what));
        }
        other => other.map_err(of_place)?,
    };
    let Some(found) = TierMark::parse(&bytes) else {
        return Err(Error::lost(format!("{shown}/{MARK}: is damaged")));
    };
    if found.uuid != whose.uuid {
        let what = format!("{shown}: is another tier than the store knows");
        return Err(Error::lost(what));
    }
    let ((machine, path), (of, of_path)) = (parts(&whose.home.1), parts(&found.home.1));
    if machine == of && (whose.home.0 == found.home.0 || path == of_path) {
        return Ok(());
    }
    let what = format!(
        "{shown}: belongs to the store {of_path}, of which {path} may be a copy: 'weald tier add \
         --again' takes it over"
    );
    Err(Error::lost(what))
}

/// Machine, and path of the store there.
fn parts(home: &str) -> (&str, &str) {
    home.split_once(' ').unwrap_or(("", home))
}

impl Whose {
    /// The tier `uuid` of the store in `home`.
    pub fn of(home: &dyn LocalFiles, uuid: Uuid) -> Self {
        let (inode, path) = home_of(home);
        let machine = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
        let mut words = machine.split_whitespace();
        let machine = words.next().unwrap_or("-");
        Self {
            uuid,
            home: (inode, format!("{machine} {path}")),
        }
    }
}

/// Directory of the receipts of a tier.
fn receipts_of(tier: Uuid) -> String {
    format!("{}{}", layout::RECEIPTS, hex(&tier))
}

/// Makes the directory for the receipts of a tier.
///
/// # Errors
/// `Io`, `Full`.
pub(super) fn make_receipts(home: &dyn LocalFiles, tier: Uuid) -> Result<()> {
    match home.make_dir(&receipts_of(tier)) {
        Err(error) if error.kind() != ErrorKind::Busy => Err(error),
        _ => home.sync_dir(""),
    }
}

/// Lets the place of a tier on which nothing lies be none any more.
///
/// # Errors
/// `Lost`, `Io`.
pub(super) fn leave(home: &Arc<dyn Disk>, tier: &Tier, disk: &dyn Disk) -> Result<()> {
    disk.check_here()?;
    disk.sweep(true)?;
    home.open_far(&tier.place)?.objects.remove(MARK)
}

fn now_s() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// The name of a segment without its directory.
fn number_of(name: &str) -> Option<SegmentNo> {
    layout::segment_number(name.strip_prefix(layout::SEGMENTS)?.strip_prefix('/')?)
}

impl BucketTier {
    /// The tier of the store in `home`. No request is made.
    pub fn new(home: Arc<dyn Disk>, place: Arc<FarPlace>, whose: Whose) -> Self {
        Self {
            dir: receipts_of(whose.uuid),
            home,
            place,
            whose,
            staged: Mutex::default(),
            settled: Mutex::default(),
        }
    }

    /// Opens the tier `tier` of the store in `home`, or says why that cannot be.
    pub fn attach(home: &Arc<dyn Disk>, tier: &Tier) -> Result<Self> {
        let owner = owner_of(&**home, [layout::TIERS, layout::TIERS_COPY])?;
        let user = rustix::process::geteuid().as_raw();
        // The credentials of this user are not used for what another one has written.
        if owner.is_some_and(|owner| owner != user && owner != 0) {
            let what = format!(
                "{}: the list of tiers belongs to another user, for whom no credentials are used",
                home.shown()
            );
            return Err(Error::invalid(what));
        }
        let place = home.open_far(&tier.place)?;
        let whose = Whose::of(&**home, tier.uuid);
        Ok(Self::new(home.clone(), place, whose))
    }

    fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.dir)
    }

    fn receipt_path(&self, number: SegmentNo) -> String {
        self.path(&format!("{number:016x}"))
    }

    /// The object of a segment.
    fn object(&self, number: SegmentNo) -> Result<VerifiedObject> {
        let path = self.receipt_path(number);
        let bytes = self.home.read_file(&path, RECEIPT_LEN_MAX)?;
        receipt::parse(&bytes, number).ok_or_else(|| {
            let what = format!("{}/{path}: is damaged", self.home.shown());
            Error::corrupt("receipt", 0, "S-10.7", what)
        })
    }

    /// The file of a segment, for readers who want what the bucket has `now`.
    fn file(&self, name: &str, is_now: bool) -> Result<Box<dyn LocalFile>> {
        let missing = || Error::not_found(format!("{name}: no such segment"));
        let object = self.object(number_of(name).ok_or_else(missing)?)?;
        Ok(Box::new(FarFile {
            place: self.place.clone(),
            object,
            now: is_now.then(Mutex::default),
        }))
    }

    /// Whether the receipt of its segment names this key.
    fn is_known(&self, key: &str, number: SegmentNo) -> Result<bool> {
        if self.place.faults.has(Bug::ReceiptIgnored) {
            return Ok(false);
        }
        match self.object(number) {
            Ok(object) => Ok(object.key == key),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Notes of objects whose turn it is.
    fn notes(&self, is_all: bool) -> Result<Vec<Due>> {
        let names = match self.home.list(&self.dir) {
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            names => names?,
        };
        let mut due = Vec::new();
        for name in names {
            let kinds = [GOING, GONE, LATE];
            let Some(rest) = kinds.iter().find_map(|kind| name.strip_prefix(kind)) else {
                continue;
            };
            let Some((key, number)) = parse_key_name(rest) else {
                continue;
            };
            // First: what was put meanwhile has its receipt before it is no longer on its way.
            if self.place.is_going(&key) {
                continue;
            }
            let path = self.path(&name);
            if self.is_known(&key, number)? {
                self.home.remove_if_there(&path)?;
                continue;
            }
            // A note of what was dropped has the time of its receipt.
            let changed = self.home.changed_at(&path);
            let is_early = changed.is_none_or(|at| now_s() < at.saturating_add(LATE_TIME_S));
            let may_arrive = is_early && !is_all;
            if !may_arrive || !name.starts_with(LATE) {
                let later = may_arrive.then(|| format!("{LATE}{rest}"));
                due.push(Due { name, key, later });
            }
        }
        Ok(due)
    }
}

impl LocalFiles for BucketTier {
    fn open(&self, name: &str, access: Access) -> Result<Box<dyn LocalFile>> {
        match access {
            Access::Read | Access::Write => self.file(name, false),
            Access::Create | Access::CreatePrivate => {
                let what = format!("{}: no new data lands in a bucket", self.shown());
                Err(Error::new(ErrorKind::Unsupported, what))
            }
        }
    }

    fn open_unnoted(&self, name: &str) -> Result<Box<dyn LocalFile>> {
        self.file(name, true)
    }

    fn create_moving(&self, number: SegmentNo) -> Result<Box<dyn LocalFile>> {
        let nonce = if self.place.faults.has(Bug::KeyUsedAgain) {
            [0; 16]
        } else {
            nonce()
        };
        let key = receipt::key_of(number, nonce);
        let staged = Arc::new(Staged {
            note: self.path(&format!("{GOING}{}", key_name(&key))),
            home: self.home.clone(),
            dir: self.dir.clone(),
            place: self.place.clone(),
            whose: self.whose.clone(),
            key: self.place.begin(key),
            state: Mutex::default(),
        });
        *self.staged.lock() = Some(staged.clone());
        Ok(Box::new(StagedFile(staged)))
    }

    fn list(&self, dir: &str) -> Result<Vec<String>> {
        if dir != layout::SEGMENTS {
            return Ok(Vec::new());
        }
        let names = self.home.list(&self.dir)?.into_iter();
        let is_receipt = |name: &String| layout::segment_number(name).is_some();
        Ok(names.filter(is_receipt).collect())
    }

    fn make_dir(&self, _dir: &str) -> Result<()> {
        Ok(())
    }

    fn rename(&self, _from: &str, to: &str) -> Result<()> {
        let missing = || Error::not_found(format!("{to}: nothing was put there"));
        let staged = self.staged.lock().take().ok_or_else(missing)?;
        let number = number_of(to).ok_or_else(missing)?;
        let object = staged.state.lock().object.clone().ok_or_else(missing)?;
        let new = self.path(NEW);
        let text = receipt::encode(&object);
        self.home.write_file(&new, text.as_bytes())?;
        self.home.rename(&new, &self.receipt_path(number))?;
        *self.settled.lock() = Some(staged.note.clone());
        Ok(())
    }

    fn remove(&self, name: &str) -> Result<()> {
        let missing = || Error::not_found(format!("{name}: no such segment"));
        if name == layout::MOVING {
            // The note of the object stays.
            return self.staged.lock().take().map(drop).ok_or_else(missing);
        }
        let number = number_of(name).ok_or_else(missing)?;
        let path = self.receipt_path(number);
        match self.object(number) {
            Ok(object) => {
                let gone = self.path(&format!("{GONE}{}", key_name(&object.key)));
                self.home.rename(&path, &gone)
            }
            Err(error) if error.kind() == ErrorKind::Corrupt => self.home.remove(&path),
            Err(error) => Err(error),
        }
    }

    fn sync_dir(&self, _dir: &str) -> Result<()> {
        self.home.sync_dir(&self.dir)?;
        if let Some(note) = self.settled.lock().take() {
            self.home.remove_if_there(&note)?;
        }
        Ok(())
    }

    fn sync_all(&self) -> Result<()> {
        Ok(())
    }

    fn shown(&self) -> String {
        self.place.objects.shown()
    }

    // It takes nothing of the home's disk.
    fn allocated_len(&self, _name: &str) -> Result<Option<u64>> {
        Ok(Some(0))
    }

    fn space(&self) -> Result<DiskSpace> {
        Ok(DiskSpace::UNKNOWN)
    }

    fn changed_at(&self, name: &str) -> Option<u64> {
        self.home.changed_at(&self.receipt_path(number_of(name)?))
    }

    fn is_far(&self, _name: &str) -> bool {
        true
    }

    fn check_here(&self) -> Result<()> {
        check_mark(&self.place, &self.whose)?;
        self.place.is_back();
        Ok(())
    }

    fn sweep(&self, is_all: bool) -> Result<()> {
        let due = self.notes(is_all)?;
        if due.is_empty() {
            return Ok(());
        }
        // A receipt that a crash brings back would name an object that is gone.
        self.home.sync_dir(&self.dir)?;
        self.place.attempt(|objects| {
            check_mark(&self.place, &self.whose)?;
            for due in &due {
                objects.remove(&due.key).map_err(of_place)?;
                let path = self.path(&due.name);
                match &due.later {
                    Some(later) => self.home.rename(&path, &self.path(later))?,
                    None => self.home.remove_if_there(&path)?,
                }
            }
            Ok(())
        })
    }
}

impl Staged {
    /// The error of what cannot be done with an object.
    fn whole_only(&self) -> Error {
        let what = format!("{}: objects are put as a whole", self.place.objects.shown());
        Error::new(ErrorKind::Unsupported, what)
    }

    /// Puts the object, after a note that names it.
    fn put(&self, state: &mut StagedState) -> Result<()> {
        let key = self.key.key();
        let digests = digests_of(&state.pieces);
        self.home.write_file(&self.note, b"")?;
        self.home.sync_dir(&self.dir)?;
        let put = self.place.attempt(|objects| {
            check_mark(&self.place, &self.whose)?;
            objects.put(key, &state.pieces).map_err(of_place)
        });
        if !self.place.faults.has(Bug::PutUnconfirmed) {
            put?;
        }
        state.pieces = Vec::new();
        state.object = Some(VerifiedObject {
            key: key.to_owned(),
            len: state.len,
            digests: digests.into(),
        });
        Ok(())
    }
}

/// Digest of each chunk of what `pieces` are together.
fn digests_of(pieces: &[Bytes]) -> Vec<Digest> {
    let mut digests = Vec::new();
    let mut hasher = blake3::Hasher::new();
    let mut len = 0;
    for piece in pieces {
        let mut rest = &piece[..];
        while !rest.is_empty() {
            let left = (CHUNK_LEN as usize).saturating_sub(len).min(rest.len());
            let (head, tail) = rest.split_at(left);
            hasher.update(head);
            len = len.saturating_add(left);
            rest = tail;
            if len as u64 == CHUNK_LEN {
                digests.push(Digest(hasher.finalize().into()));
                hasher.reset();
                len = 0;
            }
        }
    }
    if len > 0 {
        digests.push(Digest(hasher.finalize().into()));
    }
    digests
}

impl StagedState {
    /// Adds zeros up to `len`.
    fn fill(&mut self, len: u64) {
        while self.len < len {
            let left = len.saturating_sub(self.len).min(ZEROS.len() as u64);
            let zeros = ZEROS.get(..left as usize).unwrap_or_default();
            self.pieces.push(Bytes::from_static(zeros));
            self.len = self.len.saturating_add(left);
        }
    }
}

impl Object for StagedFile {
    fn len(&self) -> Result<u64> {
        Ok(self.0.state.lock().len)
    }

    /// What the bucket has now.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let range = offset..offset.saturating_add(buf.len() as u64);
        let read = self.0.place.objects.read_part(self.0.key.key(), range);
        fill(buf, &read.map_err(of_place)?, &self.0.place)
    }
}

impl LocalFile for StagedFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        let mut state = self.0.state.lock();
        let end = offset.saturating_add(bytes.len() as u64);
        if end > SEGMENT_LEN_MAX {
            let what = format!("a segment of more than {SEGMENT_LEN_MAX} bytes goes to no bucket");
            return Err(Error::limit(what));
        }
        if offset < state.len || state.object.is_some() {
            return Err(self.0.whole_only());
        }
        state.fill(offset);
        state.pieces.push(Bytes::copy_from_slice(bytes));
        state.len = end;
        Ok(())
    }

    fn set_len(&self, len: u64) -> Result<()> {
        let mut state = self.0.state.lock();
        if len < state.len || len > SEGMENT_LEN_MAX {
            return Err(self.0.whole_only());
        }
        state.fill(len);
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        let mut state = self.0.state.lock();
        match state.object {
            Some(_) => Ok(()),
            None => self.0.put(&mut state),
        }
    }

    fn read_anew(&self) -> Result<()> {
        Ok(())
    }

    fn punch(&self, _offset: u64, _len: u64) -> Result<()> {
        Err(self.0.whole_only())
    }

    fn try_lock(&self, _offset: u64, _is_exclusive: bool) -> Result<bool> {
        Err(self.0.whole_only())
    }
}

/// Fills `buf` with what was read.
fn fill(buf: &mut [u8], bytes: &[u8], place: &FarPlace) -> Result<()> {
    if bytes.len() != buf.len() {
        let shown = place.objects.shown();
        return Err(Error::lost(format!("{shown}: an object is cut")));
    }
    buf.copy_from_slice(bytes);
    Ok(())
}

impl FarFile {
    /// The object in messages.
    fn shown(&self) -> String {
        format!("{}/{}", self.place.objects.shown(), self.object.key)
    }

    /// The part from `start` on, as the bucket has it now, damaged or not: each block has a digest
    /// of its own, which costs less of what lies around damage.
    fn part(&self, start: u64) -> Result<Bytes> {
        let range = start..start.saturating_add(STEP_LEN).min(self.object.len);
        let len = range.end.saturating_sub(range.start);
        let read = self.place.objects.read_part(&self.object.key, range);
        let bytes = read.map_err(of_place)?;
        if bytes.len() as u64 == len {
            return Ok(bytes);
        }
        Err(Error::lost(format!("{}: is cut", self.shown())))
    }

    /// Reads around all copies what differs from the digests of its chunk: the digest of a block
    /// tells which of the bytes are damaged. `error` says that they differ.
    fn read_damaged(&self, error: Error, buf: &mut [u8], range: Range<u64>) -> Result<()> {
        match self.place.objects.read_part(&self.object.key, range) {
            Ok(bytes) if bytes.len() == buf.len() => {
                buf.copy_from_slice(&bytes);
                Ok(())
            }
            // It may lie elsewhere by now: the caller looks again.
            _ => Err(Error::new(ErrorKind::Io, error.what().to_owned())),
        }
    }

    /// Reads past all copies.
    fn read_now(
        &self,
        now: &Mutex<(u64, Bytes)>,
        buf: &mut [u8],
        range: &Range<u64>,
    ) -> Result<()> {
        let mut last = now.lock();
        let (mut at, mut rest) = (range.start, buf);
        while !rest.is_empty() {
            let start = at / STEP_LEN * STEP_LEN;
            if last.0 != start || last.1.is_empty() {
                *last = (start, self.part(start)?);
            }
            let from = usize::try_from(at - start).unwrap_or(usize::MAX);
            let bytes = last.1.get(from..).unwrap_or_default();
            let len = bytes.len().min(rest.len());
            if len == 0 {
                return Err(Error::lost(format!("{}: is cut", self.shown())));
            }
            let (head, tail) = rest.split_at_mut(len);
            head.copy_from_slice(bytes.get(..len).unwrap_or_default());
            (at, rest) = (at.saturating_add(len as u64), tail);
        }
        Ok(())
    }
}

impl Object for FarFile {
    fn len(&self) -> Result<u64> {
        Ok(self.object.len)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let end = offset.saturating_add(buf.len() as u64);
        if end > self.object.len {
            let eof = std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
            return Err(Error::io(self.shown(), eof));
        }
        match &self.now {
            Some(now) => self.read_now(now, buf, &(offset..end)),
            None => {
                let objects = &self.place.objects;
                match objects.read_verified(&self.object, buf, offset) {
                    Err(error) if matches!(error.kind(), ErrorKind::Lost | ErrorKind::NotFound) => {
                        self.read_damaged(error, buf, offset..end)
                    }
                    read => read.map_err(of_place),
                }
            }
        }
    }
}

impl LocalFile for FarFile {
    fn write_at(&self, _bytes: &[u8], _offset: u64) -> Result<()> {
        let what = format!(
            "{}: what lies in a bucket is not written to: 'weald tier move' brings it back first",
            self.shown()
        );
        Err(Error::new(ErrorKind::Unsupported, what))
    }

    fn set_len(&self, len: u64) -> Result<()> {
        match self.object.len.cmp(&len) {
            std::cmp::Ordering::Equal => Ok(()),
            _ => self.write_at(&[], 0),
        }
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn read_anew(&self) -> Result<()> {
        Ok(())
    }

    // What dies in a bucket is freed with the whole segment.
    fn punch(&self, _offset: u64, _len: u64) -> Result<()> {
        Ok(())
    }

    fn try_lock(&self, _offset: u64, _is_exclusive: bool) -> Result<bool> {
        Ok(false)
    }

    fn confirm(&self) -> Result<()> {
        let found = self.place.objects.len(&self.object.key).map_err(of_place)?;
        let what = match found {
            Some(len) if len == self.object.len => return Ok(()),
            Some(len) => format!("has {len} bytes, and not {}", self.object.len),
            None => "is missing".to_owned(),
        };
        Err(Error::lost(format!("{}: {what}", self.shown())))
    }
}
