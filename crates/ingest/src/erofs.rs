//! EROFS images as streams of members.

use crate::first_names::FirstNames;
use crate::member::{Member, MemberKind};
use crate::members::{DataBudget, Layout, Members, Tell};
use std::path::{Path, PathBuf};
use weald_erofs::reader::{FileReader, ImageStorage, Inode, Volume, Walker};
use weald_format::{Attributes, Error, FileKind, Result};
use weald_io::{FileSource, ReadAt};

/// Xattr by which overlayfs finds the data of a file in another layer.
const METACOPY: &[u8] = b"trusted.overlay.metacopy";

/// The file of an image.
struct ImageFile(FileSource);

impl ImageStorage for ImageFile {
    fn len(&self) -> u64 {
        self.0.len()
    }

    fn read_exact_at(&self, out: &mut [u8], offset: u64) -> Result<()> {
        self.0.read_exact_at(out, offset)
    }
}

/// Reads an EROFS image, depth first.
pub struct ErofsReader {
    /// The image's path, for messages.
    path: PathBuf,
    volume: Volume,
    walker: Walker,
    reader: Option<FileReader>,
    layout: Option<Layout>,
    /// The run of the layout that is read next, and the offset in the file.
    place: (usize, u64),
    links: FirstNames<u64>,
    budget: DataBudget,
}

impl ErofsReader {
    /// Opens the EROFS image at `path`: a regular file or a block device. Paths of files with
    /// several names may take `links_len` bytes.
    ///
    /// # Errors
    /// `NotFound`, `Io`; `Invalid` and `Unsupported` as [`Volume::open`].
    pub fn open(path: &Path, links_len: u64) -> Result<Self> {
        let file = FileSource::open(path, 0)?;
        let named = |e: Error| e.context(path.display());
        if file.len() == 0 {
            let what = "not an EROFS image: the file is empty";
            return Err(named(Error::invalid(what)));
        }
        let budget = DataBudget::of_image(file.len());
        let volume = Volume::open(ImageFile(file)).map_err(named)?;
        Ok(Self {
            budget,
            path: path.to_owned(),
            walker: Walker::new(&volume),
            volume,
            reader: None,
            layout: None,
            place: (0, 0),
            links: FirstNames::new(links_len),
        })
    }

    /// Path of the current entry; empty for the root.
    pub fn path(&self) -> &[u8] {
        self.walker.path()
    }

    /// The next entry.
    ///
    /// # Errors
    /// As [`Members::next`].
    pub fn next_inode(&mut self) -> Result<Option<Inode>> {
        let next = self.walker.next(&self.volume);
        next.map_err(|e| self.located(e))
    }

    /// Gives `member` the path of the current entry.
    pub fn put_path(&self, member: &mut Member) {
        member.path.clear();
        match self.walker.path() {
            // Every stream may name the root so.
            b"" => member.path.push(b'.'),
            path => member.path.extend_from_slice(path),
        }
    }

    /// Has no data for the current entry.
    pub fn forget_data(&mut self) {
        self.layout = None;
    }

    /// Adds the image and the entry to an error.
    pub fn located(&self, error: Error) -> Error {
        let entry = weald_vfs::shown_path(self.walker.path());
        error.context(format_args!("{}: {entry}", self.path.display()))
    }

    fn take(&mut self, inode: &Inode, member: &mut Member) -> Result<()> {
        self.put_path(member);
        self.layout = None;
        member.target.clear();
        if inode.kind != FileKind::Directory
            && let Some(first) = self
                .links
                .first_path(inode.nid, inode.nlink, &member.path)?
        {
            member.kind = MemberKind::HardLink;
            member.target = first;
            return Ok(());
        }
        self.take_inode(inode, member)?;
        refuse_outside_data(member, self.layout.as_ref())
    }

    /// Gives `member` everything about the current entry, and begins to read its data.
    ///
    /// # Errors
    /// As [`Members::next`].
    pub fn take_inode(&mut self, inode: &Inode, member: &mut Member) -> Result<()> {
        self.put_path(member);
        self.layout = None;
        member.target.clear();
        member.kind = MemberKind::Entry(inode.kind);
        member.attributes = Attributes {
            permissions: inode.permissions,
            uid: inode.uid,
            gid: inode.gid,
            rdev: inode.rdev,
        };
        member.mtime = inode.mtime;
        member.xattrs = self.volume.xattrs(inode)?;
        match inode.kind {
            FileKind::Symlink => member.target = self.volume.target(inode)?,
            FileKind::Regular => self.begin_data(inode)?,
            _ => {}
        }
        Ok(())
    }

    fn begin_data(&mut self, inode: &Inode) -> Result<()> {
        match &mut self.reader {
            Some(reader) => reader.set(inode),
            none => *none = Some(FileReader::new(inode)),
        }
        self.place = (0, 0);
        let layout = Layout {
            len: inode.size,
            runs: self.volume.data_runs(inode)?,
        };
        self.budget.take(layout.data_len())?;
        self.layout = Some(layout);
        Ok(())
    }
}

impl Members for ErofsReader {
    fn next(&mut self, member: &mut Member, _tell: &mut Tell<'_>) -> Result<bool> {
        let Some(inode) = self.next_inode()? else {
            return Ok(false);
        };
        let taken = self.take(&inode, member);
        taken.map(|()| true).map_err(|e| self.located(e))
    }

    fn has_contents(&self) -> bool {
        true
    }

    fn layout(&self) -> Option<&Layout> {
        self.layout.as_ref()
    }

    fn read_data(&mut self, out: &mut [u8]) -> Result<()> {
        self.read(out).map_err(|e| self.located(e))
    }
}

impl ErofsReader {
    /// Fills `out` with the next data of the file.
    fn read(&mut self, mut out: &mut [u8]) -> Result<()> {
        let (Some(layout), Some(reader)) = (&self.layout, &mut self.reader) else {
            return Err(Error::invalid("data are read of an entry that has none"));
        };
        while !out.is_empty() {
            let (no, at) = &mut self.place;
            let end = match &layout.runs {
                None => layout.len,
                Some(runs) => {
                    let run = runs.get(*no);
                    let run = run.ok_or_else(|| Error::invalid("a read behind the data"))?;
                    *at = run.start.max(*at);
                    if *at >= run.end {
                        *no += 1;
                        continue;
                    }
                    run.end
                }
            };
            let len = end.saturating_sub(*at).min(out.len() as u64);
            let (head, rest) = out.split_at_mut(len as usize);
            reader.read_exact_at(&self.volume, *at, head)?;
            *at += len.max(1);
            out = rest;
        }
        Ok(())
    }
}

/// Refuses a file of a composefs image whose data are in an object: it would be a file of zeros.
fn refuse_outside_data(member: &Member, layout: Option<&Layout>) -> Result<()> {
    let is_hole = layout.is_some_and(|layout| layout.len > 0 && layout.data_len() == 0);
    let is_redirected = member.xattrs.iter().any(|x| x.name == METACOPY);
    if is_hole && is_redirected {
        Err(Error::invalid(
            "its data are outside of the image, which composefs made: 'weald import composefs' \
         reads it with its objects",
        ))
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::members::{DATA_RATIO_MAX, IMAGE_DATA_LEN_MAX};
    use std::fs;
    use std::process::Command;
    use weald_format::ErrorKind;

    /// Would catch: a small image that fills the disk, because all its files name all its blocks.
    #[test]
    fn files_that_share_all_blocks_are_bounded() {
        const COUNT: u32 = 5000;
        let temp = tempfile::tempdir().unwrap();
        let (dir, image) = (temp.path().join("tree"), temp.path().join("image"));
        fs::create_dir(&dir).unwrap();
        for no in 0..COUNT {
            fs::write(dir.join(no.to_string()), "x").unwrap();
        }
        let made = Command::new("mkfs.erofs")
            .args(["--quiet", "-Eforce-inode-extended,noinline_data"])
            .args([&image, &dir])
            .status();
        assert!(made.unwrap().success());
        let mut bytes = fs::read(&image).unwrap();
        let volume = Volume::open(bytes.clone()).unwrap();
        let mut walker = Walker::new(&volume);
        let all_len = bytes.len() as u64;
        // No checksum; sizes at byte 8 of an inode, first blocks at byte 16.
        bytes[1032] &= !1;
        while let Some(inode) = walker.next(&volume).unwrap() {
            if inode.kind == FileKind::Regular {
                let start = inode.nid as usize * 32;
                bytes[start + 8..start + 16].copy_from_slice(&all_len.to_le_bytes());
                bytes[start + 16..start + 20].fill(0);
            }
        }
        fs::write(&image, bytes).unwrap();
        let mut reader = ErofsReader::open(&image, 1 << 20).unwrap();
        let (mut member, mut count) = (Member::default(), 0);
        let error = loop {
            match reader.next(&mut member, &mut |_, _| {}) {
                Ok(true) => count += 1,
                Ok(false) => panic!("{count} files of {all_len} bytes were taken"),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::Limit, "{error}");
        assert!(error.to_string().contains("many times its own length"));
        assert!(count >= DATA_RATIO_MAX.min(IMAGE_DATA_LEN_MAX / all_len));
    }
}
