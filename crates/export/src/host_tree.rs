//! A directory of the host as one side of a comparison.
//!
//! No symlink is followed: every step is relative to the descriptor of the directory that listed
//! the name.

use std::collections::VecDeque;
use std::fs::File;
use std::io::ErrorKind as IoKind;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use weald_format::{Attributes, Error, FileKind, Result, Times, XattrSet};
use weald_sys::{DirBuffer, Stat};
use weald_vfs::{Child, Facts, FileReader, LinkKey, Tree, shown};

/// A directory of the host, seen as a [`Tree`]. Its atimes, ctimes and btimes are not compared.
pub struct HostTree {
    root: OwnedFd,
}

/// A directory of the host while it is listed: a descriptor and the remaining names.
pub struct HostDir {
    fd: OwnedFd,
    names: VecDeque<Vec<u8>>,
}

impl HostTree {
    /// Opens the directory at `path`.
    ///
    /// # Errors
    /// `NotFound`, `Io`.
    pub fn open(path: &Path) -> Result<Self> {
        let root = weald_sys::open_dir(path);
        Ok(Self {
            root: root.map_err(|e| Error::io(path.display().to_string(), e))?,
        })
    }

    fn fd<'a>(&'a self, dir: Option<&'a HostDir>) -> &'a OwnedFd {
        dir.map_or(&self.root, |dir| &dir.fd)
    }
}

impl Tree for HostTree {
    type Node = ();
    type Dir = HostDir;

    fn root(&self) -> Result<Child<()>> {
        let stat = weald_sys::stat_fd(&self.root).map_err(|e| Error::io("stat", e))?;
        Ok(child(b"", &stat))
    }

    fn open_dir(&self, dir: Option<&HostDir>, child: &Child<()>) -> Result<HostDir> {
        let name: &[u8] = if child.name.is_empty() {
            b"."
        } else {
            &child.name
        };
        let fd = weald_sys::open_dir_at(self.fd(dir), name).map_err(|e| fail("open", name, e))?;
        let mut names = Vec::new();
        let listed = weald_sys::read_dir(&fd, &mut DirBuffer::default(), |entry| {
            names.push(entry.name.to_vec());
            Ok(())
        });
        listed.map_err(|e| fail("list", name, e))?;
        names.sort_unstable();
        Ok(HostDir {
            fd,
            names: names.into(),
        })
    }

    fn next_child(&self, dir: &mut HostDir) -> Result<Option<Child<()>>> {
        while let Some(name) = dir.names.pop_front() {
            match weald_sys::stat_at(&dir.fd, &name) {
                Ok(stat) => return Ok(Some(child(&name, &stat))),
                // Removed since the directory was listed: not part of the comparison.
                Err(error) if error.kind() == IoKind::NotFound => {}
                Err(error) => return Err(fail("stat", &name, error)),
            }
        }
        Ok(None)
    }

    fn link_target(&self, dir: Option<&HostDir>, child: &Child<()>) -> Result<Vec<u8>> {
        let mut target = Vec::new();
        let read = weald_sys::read_link_at(self.fd(dir), &child.name, &mut target);
        read.map_err(|e| fail("readlink", &child.name, e))?;
        Ok(target)
    }

    fn xattrs(&self, dir: Option<&HostDir>, child: &Child<()>) -> Result<XattrSet> {
        let read = weald_sys::read_xattrs_at(self.fd(dir), &child.name);
        read.map_err(|e| fail("xattrs", &child.name, e))
    }

    fn open_file(
        &self,
        dir: Option<&HostDir>,
        child: &Child<()>,
    ) -> Result<Box<dyn FileReader + '_>> {
        let file = weald_sys::open_file_at(self.fd(dir), &child.name);
        Ok(Box::new(HostFile {
            file: file.map_err(|e| fail("open", &child.name, e))?,
            len: child.facts.size,
            data_end: 0,
        }))
    }
}

fn fail(what: &str, name: &[u8], source: std::io::Error) -> Error {
    Error::io(format!("{what} {}", shown(name)), source)
}

fn child(name: &[u8], stat: &Stat) -> Child<()> {
    let attributes = Attributes {
        permissions: stat.permissions,
        uid: stat.uid,
        gid: stat.gid,
        rdev: if stat.kind.is_device() { stat.rdev } else { 0 },
    };
    let facts = Facts {
        link_key: LinkKey {
            device: stat.dev,
            ino: stat.ino,
        },
        kind: stat.kind,
        attributes,
        nlink: stat.nlink.into(),
        size: if stat.kind == FileKind::Regular {
            stat.size
        } else {
            0
        },
        times: Times {
            mtime: stat.mtime,
            ..Times::default()
        },
    };
    Child {
        name: name.to_vec(),
        facts,
        node: (),
    }
}

struct HostFile {
    file: File,
    /// Length in bytes when the file was listed.
    len: u64,
    /// End of the data run found last.
    data_end: u64,
}

impl FileReader for HostFile {
    fn next_data(&mut self, offset: u64) -> Result<u64> {
        if offset < self.data_end {
            return Ok(offset);
        }
        let run = weald_sys::next_data(&self.file, offset, self.len);
        let Some(run) = run.map_err(|e| Error::io("search for holes", e))? else {
            return Ok(self.len);
        };
        self.data_end = run.end;
        Ok(run.start)
    }

    fn read_at(&mut self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let mut len = 0;
        while let Some(rest) = buf.get_mut(len..).filter(|rest| !rest.is_empty()) {
            match self.file.read_at(rest, offset + len as u64) {
                Ok(0) => break,
                Ok(more) => len += more,
                Err(error) if error.kind() == IoKind::Interrupted => {}
                Err(error) => return Err(Error::io("read", error)),
            }
        }
        Ok(len)
    }
}
