//! Reads the members of one layer, and verifies the digests of its bytes.

use super::choose::{LayerFile, differs};
use super::digest::{BlobDigest, BlobHasher};
use crate::input::Input;
use crate::member::Member;
use crate::members::{Layout, Members, Tell};
use crate::tar::TarReader;
use crate::through::Reach;
use std::io::{BufReader, Read};
use std::sync::{Arc, Mutex, PoisonError};
use weald_format::{Error, ErrorKind, Result};

/// Bytes read at once.
const LAYER_READ_LEN: usize = 64 << 10;
/// Bytes that any layer may have when it is decompressed, however small it is in the layout.
const PLAIN_LEN_MIN: u64 = 1 << 30;
/// Bytes that a longer layer may have for each compressed byte. Layers of programs have 2 to 10;
/// gzip can reach 1032 and zstd 30,000: a bomb, which would be read for hours.
const RATIO_MAX: u64 = 256;

/// Bytes that passed a [`Tap`].
struct Passed {
    hasher: Option<BlobHasher>,
    len: u64,
}

/// A reader that digests what passes, up to a limit.
struct Tap<R> {
    inner: R,
    passed: Arc<Mutex<Passed>>,
    len_max: u64,
}

impl<R: Read> Read for Tap<R> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let len = self.inner.read(out)?;
        let mut passed = self.passed.lock().unwrap_or_else(PoisonError::into_inner);
        passed.len += len as u64;
        if let Some(hasher) = &mut passed.hasher {
            hasher.update(&out[..len]);
        }
        if passed.len > self.len_max {
            // `LayerReader::explain` gives the reason.
            Err(std::io::Error::other("too long"))
        } else {
            Ok(len)
        }
    }
}

fn tap<R>(inner: R, digest: Option<&BlobDigest>, len_max: u64) -> (Tap<R>, Arc<Mutex<Passed>>) {
    let passed = Arc::new(Mutex::new(Passed {
        hasher: digest.map(BlobDigest::hasher),
        len: 0,
    }));
    let tap = Tap {
        inner,
        passed: passed.clone(),
        len_max,
    };
    (tap, passed)
}

/// The members of one layer.
pub struct LayerReader<'a> {
    file: &'a LayerFile,
    /// For messages.
    shown: String,
    tar: TarReader,
    stored: Arc<Mutex<Passed>>,
    plain: Arc<Mutex<Passed>>,
    plain_len_max: u64,
}

impl<'a> LayerReader<'a> {
    /// Opens layer `no`, counted from 1. A decoder may take `memory_len` bytes.
    ///
    /// # Errors
    /// `Io`; `Invalid`, `Unsupported` for its compression.
    pub fn open(file: &'a LayerFile, no: usize, memory_len: u64) -> Result<Self> {
        let shown = format!(
            "layer {no} ({})",
            file.digest.as_ref().unwrap_or(&file.diff_id)
        );
        let (stored_tap, stored) = tap(file.blob.reader(0), file.digest.as_ref(), u64::MAX);
        let plain_len_max = PLAIN_LEN_MIN.max(file.blob.len.saturating_mul(RATIO_MAX));
        let opened = Input::decoded(Box::new(stored_tap), memory_len).and_then(|decoded| {
            let (plain_tap, plain) = tap(decoded, Some(&file.diff_id), plain_len_max);
            let reader = BufReader::with_capacity(LAYER_READ_LEN, plain_tap);
            let tar = TarReader::new(Input::plain(Box::new(reader))?);
            Ok((tar.following(Reach::Rooted).verified(), plain))
        });
        let (tar, plain) = match opened {
            Ok(opened) => opened,
            Err(error) => return Err(of_blob(file, &stored, error).context(&shown)),
        };
        Ok(Self {
            file,
            shown,
            tar,
            stored,
            plain,
            plain_len_max,
        })
    }

    /// Adds the name of the layer to an error. If the bytes of the layer are not those of its
    /// digest, the error says that instead: it is the cause.
    pub fn explain(&self, error: Error) -> Error {
        let plain_len = self
            .plain
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .len;
        if plain_len > self.plain_len_max {
            let what = format!(
                "more than {} bytes when decompressed: a layer may have {} GiB, or {RATIO_MAX} \
                 times its compressed size; store it without compression if that is meant",
                self.plain_len_max,
                PLAIN_LEN_MIN >> 30
            );
            return Error::limit(what).context(&self.shown);
        }
        of_blob(self.file, &self.stored, error).context(&self.shown)
    }

    /// Verifies the layer, whose members were all read.
    ///
    /// # Errors
    /// `Invalid` if a digest differs; `Io`.
    pub fn finish(&self) -> Result<()> {
        let verified = verify_blob(self.file, &self.stored).and_then(|()| {
            let plain = self.plain.lock().unwrap_or_else(PoisonError::into_inner);
            match plain.hasher.as_ref().map(BlobHasher::finish) {
                Some(found) if found != self.file.diff_id => {
                    Err(differs(&self.file.diff_id, &found).context("uncompressed"))
                }
                _ => Ok(()),
            }
        });
        verified.map_err(|e| e.context(&self.shown))
    }
}

fn of_blob(file: &LayerFile, stored: &Mutex<Passed>, error: Error) -> Error {
    match (error.kind(), verify_blob(file, stored)) {
        (ErrorKind::Invalid, Err(cause)) => cause,
        _ => error,
    }
}

/// Reads the rest of the blob, and compares the digest of all of it.
fn verify_blob(file: &LayerFile, stored: &Mutex<Passed>) -> Result<()> {
    let mut passed = stored.lock().unwrap_or_else(PoisonError::into_inner);
    let mut reader = file.blob.reader(passed.len);
    let unread_len = file.blob.len.saturating_sub(passed.len);
    let Some(hasher) = &mut passed.hasher else {
        return Ok(());
    };
    let mut piece = vec![0; unread_len.min(LAYER_READ_LEN as u64) as usize];
    let mut rest_len = 0;
    loop {
        let len = reader.read(&mut piece);
        let len = len.map_err(|e| Error::io("cannot be read", e))?;
        if len == 0 {
            break;
        }
        hasher.update(&piece[..len]);
        rest_len += len as u64;
    }
    let found = hasher.finish();
    passed.len += rest_len;
    match &file.digest {
        Some(digest) if *digest != found => Err(differs(digest, &found)),
        _ => Ok(()),
    }
}

impl Members for LayerReader<'_> {
    fn next(&mut self, member: &mut Member, tell: &mut Tell<'_>) -> Result<bool> {
        let next = self.tar.next(member, tell);
        next.map_err(|e| self.explain(e))
    }

    fn has_contents(&self) -> bool {
        true
    }

    fn layout(&self) -> Option<&Layout> {
        self.tar.layout()
    }

    fn read_data(&mut self, out: &mut [u8]) -> Result<()> {
        self.tar.read_data(out)
    }
}
