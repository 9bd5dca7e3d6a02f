//! Objects: files named by the fs-verity digest of their bytes, which is compared as they are read.

use crate::members::Layout;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use weald_codec::FsVerity;
use weald_format::{Error, ErrorKind, Result};

/// Bytes of a digest.
pub(super) const DIGEST_LEN: usize = 32;

/// A directory of objects, if there is one.
pub(super) struct ObjectDir(Option<(OwnedFd, String)>);

impl ObjectDir {
    pub fn open(path: Option<&Path>) -> Result<Self> {
        let Some(path) = path else {
            return Ok(Self(None));
        };
        let shown = path.display().to_string();
        let opened = weald_sys::open_dir(path);
        let fd = opened.map_err(|error| Error::io(shown.clone(), error))?;
        Ok(Self(Some((fd, shown))))
    }

    /// Opens the object at `path`, which has `len` bytes and this digest.
    pub fn object(
        &self,
        path: &[u8],
        len: u64,
        digest: Option<[u8; DIGEST_LEN]>,
    ) -> Result<Object> {
        let words = weald_vfs::shown(path);
        let Some((dir, shown)) = &self.0 else {
            return Err(Error::invalid(format!(
                "its data are the object {words}: --objects names the directory of the objects"
            )));
        };
        let shown = format!("{shown}/{words}");
        let file = match weald_sys::open_file_at(dir, path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(Error::not_found(format!(
                    "its object {shown} is missing: is it in another directory?"
                )));
            }
            Err(error) if weald_sys::is_of_link(&error) => {
                return Err(Error::invalid(format!(
                    "its object {shown} is a symlink, which is not followed"
                )));
            }
            other => other.map_err(|error| Error::io(shown.clone(), error))?,
        };
        let meta = file.metadata();
        let meta = meta.map_err(|error| Error::io(shown.clone(), error))?;
        if !meta.is_file() {
            return Err(Error::invalid(format!(
                "its object {shown} is no regular file"
            )));
        }
        if meta.len() != len {
            return Err(Error::invalid(format!(
                "its object {shown} has {} bytes instead of {len}: the object is damaged",
                meta.len()
            )));
        }
        let runs = weald_sys::data_runs(&file, len);
        let runs = runs.map_err(|error| Error::io(shown.clone(), error))?;
        let mut object = Object {
            file,
            shown,
            layout: Layout {
                len,
                runs: Some(runs.clone()),
            },
            runs,
            run_no: 0,
            at: 0,
            state: FsVerity::new(),
            digest,
        };
        object.skip_holes();
        object.check_at_end()?;
        Ok(object)
    }
}

/// An open object.
pub(super) struct Object {
    file: File,
    shown: String,
    pub layout: Layout,
    runs: Vec<Range<u64>>,
    run_no: usize,
    /// Where the next bytes are.
    at: u64,
    state: FsVerity,
    digest: Option<[u8; DIGEST_LEN]>,
}

impl Object {
    /// Fills `out` with the next data.
    pub fn read(&mut self, mut out: &mut [u8]) -> Result<()> {
        while !out.is_empty() {
            let run = self.runs.get(self.run_no).cloned();
            let run = run.ok_or_else(|| Error::invalid("a read behind the data"))?;
            let len = run.end.saturating_sub(self.at).min(out.len() as u64);
            let (head, rest) = out.split_at_mut(len as usize);
            let read = self.file.read_exact_at(head, self.at);
            read.map_err(|error| Error::io(self.shown.clone(), error))?;
            self.state.update(head);
            self.at += len;
            self.skip_holes();
            out = rest;
        }
        self.check_at_end()
    }

    /// Goes to the next data, or to the end.
    fn skip_holes(&mut self) {
        loop {
            let run = self.runs.get(self.run_no);
            let next = run.map_or(self.layout.len, |run| run.start.max(self.at));
            self.state.update_zeros(next.saturating_sub(self.at));
            self.at = next;
            match run {
                Some(run) if run.end <= self.at => self.run_no += 1,
                _ => return,
            }
        }
    }

    /// Compares the digest after the last data.
    fn check_at_end(&self) -> Result<()> {
        if self.at < self.layout.len {
            return Ok(());
        }
        let found = self.state.clone().finish();
        match self.digest {
            Some(expected) if expected != found => Err(Error::new(
                ErrorKind::Invalid,
                format!(
                    "its object {} has other bytes than its fs-verity digest says: the object is \
                     damaged, or the directory has objects of another digest algorithm",
                    self.shown
                ),
            )),
            _ => Ok(()),
        }
    }
}
