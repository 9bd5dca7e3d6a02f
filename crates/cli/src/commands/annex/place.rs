//! The directory in which the remote keeps its files.
//!
//! A file is written without a name, synced, and then gets its name. So an interrupted transfer
//! leaves nothing, and what is present is whole. The directory is never the mount point itself: if
//! nothing is mounted, the directory is missing, and no file is taken for removed.
//!
//! Users who may write to the directory may be others than the one whom the remote runs for. So
//! each request finds its file component by component ([`locate`]), follows no symlink that
//! another user can have planted, and works through the descriptors that it found.

use super::lines;
use anyhow::{Context, Result, bail};
use std::fs::File;
use std::io::{Error, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};
use weald_format::FileKind;
use weald_io::{Named, OutputFile, TargetKind, locate, locate_dir};

/// Bytes of one read and write.
const STEP_LEN: usize = 1 << 20;

/// Bytes between two reports of progress.
const REPORT_LEN: u64 = 8 << 20;

/// Receives the number of bytes that were copied so far.
type OnProgress<'a> = &'a mut dyn FnMut(u64) -> Result<()>;

/// The directory, which existed when it was opened.
pub struct AnnexDir {
    root: PathBuf,
}

impl AnnexDir {
    /// Checks the directory that the user gave.
    pub fn open(root: PathBuf) -> Result<Self> {
        let shown = root.display();
        if root.as_os_str().is_empty() {
            bail!("directory= is missing: give it a directory inside a mounted Weald volume");
        }
        if !root.is_absolute() {
            bail!("directory={shown}: is relative: give the whole path, which begins with /");
        }
        let place = Self { root };
        let dir = place.require().with_context(|| {
            let shown = place.root.display();
            format!("directory={shown}: mount the volume first, and make the directory inside it")
        })?;
        let above = weald_sys::open_place_at(&dir, b"..")?;
        if weald_sys::stat_fd(&dir)?.dev == weald_sys::stat_fd(above)?.dev {
            return Ok(place);
        }
        bail!(
            "directory={}: is a mount point: give a directory inside the mount, so that a volume \
             that is not mounted is noticed",
            place.root.display()
        );
    }

    /// The directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Opens the directory; fails if it is gone, because the volume was unmounted.
    fn require(&self) -> Result<OwnedFd> {
        locate_dir(&self.root).with_context(|| self.root.display().to_string())
    }

    /// Path of the file of a key; `hash` is two directories that git-annex chose, and a slash.
    pub fn of_key(&self, hash: &[u8], key: &[u8]) -> Result<PathBuf> {
        let dir = self.inside(hash.strip_suffix(b"/").unwrap_or(hash))?;
        let name = escape(key);
        Ok(dir.join(lines::path(&name)))
    }

    /// Path of a file of an exported tree.
    pub fn exported(&self, name: &[u8]) -> Result<PathBuf> {
        self.inside(name)
    }

    /// The path `name` below the directory; refuses names that lead out of it.
    fn inside(&self, name: &[u8]) -> Result<PathBuf> {
        let path = lines::path(name);
        let is_plain = path
            .components()
            .all(|part| matches!(part, Component::Normal(_)));
        // Components do not show empty names and single dots.
        let is_exact = path.components().collect::<PathBuf>().as_os_str() == path.as_os_str();
        if name.is_empty() || !is_plain || !is_exact {
            bail!("{}: is no path inside the directory", path.display());
        }
        Ok(self.root.join(path))
    }

    /// Finds what lies at a path below the directory, as every request does. `None` if nothing
    /// does; an error if that cannot be known, because the directory is gone or another user has
    /// put a symlink on the way.
    fn find(&self, path: &Path) -> Result<Option<NamedInode>> {
        match locate(path) {
            Ok(Named {
                dir,
                name,
                node: Some((_, stat)),
                is_through_link: false,
            }) => Ok(Some(NamedInode {
                dir,
                name,
                kind: stat.kind,
            })),
            // The link itself is no file that this remote has stored.
            Ok(_) => self.require().map(|_| None),
            Err(error) if is_absent(error.kind()) => self.require().map(|_| None),
            Err(error) => Err(error).with_context(|| path.display().to_string()),
        }
    }

    fn find_file(&self, path: &Path) -> Result<Option<NamedInode>> {
        let found = self.find(path)?;
        Ok(found.filter(|found| found.kind == FileKind::Regular))
    }

    /// Stores the file `from` as `to`, durably.
    pub fn store(&self, from: &Path, to: &Path, on_progress: OnProgress<'_>) -> Result<()> {
        self.require()?;
        self.make_dirs(parent(to))?;
        let mut source = File::open(from).with_context(|| from.display().to_string())?;
        let mut output = OutputFile::create(to, TargetKind::File)?;
        copy(
            &mut source,
            &mut |bytes| Ok(output.write_all(bytes)?),
            on_progress,
        )?;
        Ok(output.commit(true)?)
    }

    /// Copies the stored file `from` to git-annex's file `to`.
    pub fn retrieve(&self, from: &Path, to: &Path, on_progress: OnProgress<'_>) -> Result<()> {
        let shown = || from.display().to_string();
        let Some(found) = self.find(from)? else {
            return Err(Error::from(ErrorKind::NotFound)).with_context(shown);
        };
        // Neither a fifo nor a device blocks the opening, and the look after it is at what is read.
        let opened = weald_sys::open_file_at(&found.dir, &found.name);
        let mut source = opened.with_context(shown)?;
        if weald_sys::stat_fd(&source)?.kind != FileKind::Regular {
            bail!("{}: is no regular file", from.display());
        }
        let mut target = File::create(to).with_context(|| to.display().to_string())?;
        copy(
            &mut source,
            &mut |bytes| Ok(target.write_all(bytes)?),
            on_progress,
        )
    }

    /// Makes the missing directories on the way to `dir`, durably.
    fn make_dirs(&self, dir: &Path) -> Result<()> {
        // Without the volume the directory itself is missing, and stays so.
        if dir == self.root {
            return Ok(());
        }
        let shown = || dir.display().to_string();
        let named = match locate(dir) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.make_dirs(parent(dir))?;
                locate(dir).with_context(shown)?
            }
            named => named.with_context(shown)?,
        };
        if named.node.is_some() {
            return Ok(());
        }
        match weald_sys::make_dir_at(&named.dir, &named.name, 0o777) {
            Ok(()) => sync(&named.dir).with_context(shown),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(error).with_context(shown),
        }
    }

    /// Whether the file is there. An error if it cannot be known.
    pub fn is_present(&self, path: &Path) -> Result<bool> {
        Ok(self.find_file(path)?.is_some())
    }

    /// Removes the file, durably; a missing one is removed already.
    pub fn remove(&self, path: &Path) -> Result<()> {
        let Some(found) = self.find_file(path)? else {
            return Ok(());
        };
        match weald_sys::remove_file_at(&found.dir, &found.name) {
            Ok(()) => sync(&found.dir),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
        .with_context(|| path.display().to_string())
    }

    /// Removes a directory of an exported tree, if it exists and is empty.
    pub fn remove_dir(&self, name: &[u8]) -> Result<()> {
        let path = self.inside(name)?;
        let Some(found) = self.find(&path)? else {
            return Ok(());
        };
        match weald_sys::remove_dir_at(&found.dir, &found.name) {
            Ok(()) => sync(&found.dir),
            Err(error) if is_absent(error.kind()) => Ok(()),
            Err(error) => Err(error),
        }
        .with_context(|| path.display().to_string())
    }

    /// Renames a file of an exported tree, durably.
    pub fn rename(&self, from: &[u8], to: &[u8]) -> Result<()> {
        let (from, to) = (self.inside(from)?, self.inside(to)?);
        let shown = || from.display().to_string();
        let Some(found) = self.find_file(&from)? else {
            return Err(Error::from(ErrorKind::NotFound)).with_context(shown);
        };
        self.make_dirs(parent(&to))?;
        let target = locate(&to).with_context(|| to.display().to_string())?;
        weald_sys::rename_at(&found.dir, &found.name, &target.dir, &target.name)
            .and_then(|()| sync(&target.dir))
            .and_then(|()| sync(&found.dir))
            .with_context(shown)
    }
}

/// A name in a directory, which is open (`O_PATH`), and the kind of its inode.
struct NamedInode {
    dir: OwnedFd,
    name: Vec<u8>,
    kind: FileKind,
}

fn copy(
    source: &mut File,
    write: &mut dyn FnMut(&[u8]) -> Result<()>,
    on_progress: OnProgress<'_>,
) -> Result<()> {
    let mut buffer = vec![0; STEP_LEN];
    let (mut done, mut reported) = (0, 0);
    loop {
        let len = match source.read(&mut buffer) {
            Ok(0) => return on_progress(done),
            Ok(len) => len,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error.into()),
        };
        write(&buffer[..len])?;
        done += len as u64;
        if done - reported >= REPORT_LEN {
            on_progress(done)?;
            reported = done;
        }
    }
}

/// The name of a key's file: git-annex's own escapes, which leave no slash.
fn escape(key: &[u8]) -> Vec<u8> {
    let mut name = Vec::with_capacity(key.len());
    for &byte in key {
        match byte {
            b'&' => name.extend_from_slice(b"&a"),
            b'%' => name.extend_from_slice(b"&s"),
            b':' => name.extend_from_slice(b"&c"),
            b'/' => name.push(b'%'),
            byte => name.push(byte),
        }
    }
    name
}

fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(path)
}

fn is_absent(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// Makes the names in a directory (`O_PATH`) durable.
fn sync(dir: &OwnedFd) -> std::io::Result<()> {
    File::from(weald_sys::open_dir_at(dir, b".")?).sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_with_slashes_is_one_name_and_no_other_keys() {
        let names = ["URL--http://a/b", "a%b", "a&sb", "a/b", "SHA256E-s1--0.txt"];
        let escaped = names.map(|name| String::from_utf8(escape(name.as_bytes())).expect("text"));
        let expected = [
            "URL--http&c%%a%b",
            "a&sb",
            "a&asb",
            "a%b",
            "SHA256E-s1--0.txt",
        ];
        assert_eq!(escaped, expected);
    }
}
