//! The output file of a builder. It appears under its name only when it is complete.
//!
//! Claim: no partial file ever has the final name. Argument by cases:
//! 1. The file system has files without names (`O_TMPFILE`): until `commit` there is no name at
//!    all, so even SIGKILL or power loss leaves nothing. `commit` syncs the bytes, then names them
//!    with one link(2).
//! 2. The file system has none, or an existing file is replaced: the file has a hidden name
//!    (`.NAME.weald-…`) until one rename(2). A kill leaves at most the hidden file; an error or a
//!    panic removes it.
//! 3. The output is appended to an existing file ([`OutputFile::append`]): the old bytes are never
//!    written again. An error or a panic truncates the file to its old length. A kill leaves a tail
//!    without a footer.
//! 4. The output is no regular file (`-`, a pipe, a device): nothing is atomic, and the reader of
//!    the pipe must check the exit status.
//!
//! The mode of the file is 0600 until the file is complete. Then the file gets the mode of a new
//! file, or owner, group, mode and ACL of the file that it replaces (`access`), and only then its
//! name. Symlinks of other users are not followed (`place`). A process can make its new files
//! private ([`crate::keep_new_files_private`]).

use crate::hidden_name::{create_hidden, with_hidden_name};
use crate::place::{Named, Target, resolve};
use crate::{FileSource, access};
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use weald_format::{Error, ErrorKind, FileKind, Result};

/// Bytes of small writes that are buffered. Larger writes go directly to the operating system.
const OUTPUT_BUFFER_LEN: usize = 256 << 10;

/// Permissions of a new file before the umask.
const NEW_FILE: u16 = 0o666;

/// A sequential output; the module states its guarantees. If it is dropped without
/// [`OutputFile::commit`], it leaves no file behind.
///
/// Invariant: after a failed write the object is dead; every further call is an error.
pub struct OutputFile {
    file: File,
    place: OutputPlace,
    mode: FinalMode,
    shown: String,
    buffer: Vec<u8>,
    /// Bytes before the output's first one.
    head_len: u64,
    /// Bytes handed to the operating system, without the head.
    written_len: u64,
    is_dead: bool,
}

/// Kind of file that a caller expects at the path of an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TargetKind {
    /// A regular file, or nothing yet; also `-` and an open descriptor of the caller
    /// (`/dev/stdout`).
    File,
    /// A device or a named pipe. The output goes into it directly.
    Device,
}

/// Owner and mode of a complete file.
enum FinalMode {
    /// Unchanged.
    Unchanged,
    /// The mode of a new file.
    New(u16),
    /// Those of another file.
    Like(OwnedFd),
    /// Those of the replaced file (`O_PATH`); the mode is for a file that replaces nothing after
    /// all.
    Of(OwnedFd, u16),
}

/// Where the file is until it is committed.
enum OutputPlace {
    /// A file without a name, to be linked as `name` in `dir`.
    Unnamed { dir: OwnedFd, name: Vec<u8> },
    /// The hidden file `temp`, to be renamed to `name` in `dir`.
    Hidden {
        dir: OwnedFd,
        name: Vec<u8>,
        temp: Vec<u8>,
    },
    /// Behind the `old_len` bytes of an existing file.
    Behind { old_len: u64 },
    /// A pipe, a device, standard output.
    Stream,
    /// Under its final name.
    Done,
}

impl OutputFile {
    /// Prepares an output at `path`; `-` is standard output. A symlink is followed if root or the
    /// caller owns it. A new file gets mode 0666 less the umask.
    ///
    /// # Errors
    /// `NotFound` if the directory is missing; `Invalid` if `path` is a directory or not of the
    /// kind `target`; `Io`, also for a symlink of another user.
    pub fn create(path: &Path, target: TargetKind) -> Result<Self> {
        let shown = format!("{}", path.display());
        if path == Path::new("-") {
            let file = std::io::stdout().as_fd().try_clone_to_owned();
            let file = file.map_err(|e| Error::io(shown.clone(), e))?;
            return Ok(Self::stream(file.into(), shown));
        }
        let found = resolve(path, false).map_err(|e| Error::io(shown.clone(), e))?;
        let named = match found {
            Target::Dir(_) => return Err(Error::invalid(format!("{shown}: is a directory"))),
            Target::Opened(node) => return Self::direct(&node, shown),
            Target::Name(named) => named,
        };
        let kind = named.node.as_ref().map(|(_, stat)| stat.kind);
        match (kind, target) {
            (Some(FileKind::Directory), _) => {
                Err(Error::invalid(format!("{shown}: is a directory")))
            }
            (None | Some(FileKind::Regular), TargetKind::File) => Self::in_dir(named, shown),
            (None | Some(FileKind::Regular), TargetKind::Device) => Err(Error::invalid(format!(
                "{shown}: is no device or named pipe: leave --output-device out"
            ))),
            (Some(_), TargetKind::File) => Err(Error::invalid(format!(
                "{shown}: is a device, a named pipe or a socket, no file: --output-device writes \
                 to devices and named pipes"
            ))),
            (Some(_), TargetKind::Device) if named.is_through_link => Err(Error::invalid(format!(
                "{shown}: is a symlink to a device or named pipe: name the device itself"
            ))),
            (Some(_), TargetKind::Device) => match named.node {
                Some((node, _)) => Self::direct(&node, shown),
                None => Err(Error::invalid(shown)),
            },
        }
    }

    /// Prepares an output with the name `name` in the open directory `dir`, whatever path leads
    /// there; errors call it `shown`. A file that has the name is never opened, and a symlink never
    /// followed: a commit with `overwrite` replaces either.
    ///
    /// # Errors
    /// `Io`, `Full`.
    pub fn create_in(dir: impl AsFd, name: &[u8], shown: String) -> Result<Self> {
        let dir = dir.as_fd().try_clone_to_owned();
        let named = Named {
            dir: dir.map_err(|e| Error::io(shown.clone(), e))?,
            name: name.to_vec(),
            node: None,
            is_through_link: false,
        };
        Self::in_dir(named, shown)
    }

    /// Prepares to append to the file at `path`, which has `old_len` bytes. A lock keeps other
    /// writers out.
    ///
    /// # Errors
    /// `Busy` if another process appends to the file, or has done so since `old_len` was read;
    /// `NotFound`; `Io`, also for a symlink of another user.
    pub fn append(path: &Path, old_len: u64) -> Result<Self> {
        let shown = format!("{}", path.display());
        let mut file = open_to_update(path)?;
        let end = file.seek(SeekFrom::End(0));
        let end = end.map_err(|e| Error::io(shown.clone(), e))?;
        if end != old_len {
            let what = format!("{shown}: {end} bytes long, was {old_len} when it was read");
            return Err(Error::new(ErrorKind::Busy, what));
        }
        let mut output = Self::new(
            file,
            OutputPlace::Behind { old_len },
            FinalMode::Unchanged,
            shown,
        );
        output.written_len = old_len;
        Ok(output)
    }

    fn new(file: File, place: OutputPlace, mode: FinalMode, shown: String) -> Self {
        Self {
            file,
            place,
            mode,
            shown,
            buffer: Vec::new(),
            head_len: 0,
            written_len: 0,
            is_dead: false,
        }
    }

    fn stream(file: File, shown: String) -> Self {
        Self::new(file, OutputPlace::Stream, FinalMode::Unchanged, shown)
    }

    /// Writes to `node` (`O_PATH`) itself, whatever its path leads to now.
    fn direct(node: &OwnedFd, shown: String) -> Result<Self> {
        let file = weald_sys::open_for_writing(node);
        let file = file.map_err(|e| Error::io(shown.clone(), e))?;
        Ok(Self::stream(file, shown))
    }

    fn in_dir(named: Named, shown: String) -> Result<Self> {
        let name = named.name;
        let made = || {
            // Opened for reading: the sync of the new name needs such a descriptor.
            let dir = weald_sys::open_dir_at(&named.dir, b".")?;
            // fakeroot and pseudo would not know whose a file without a name is.
            if !weald_sys::is_pretended()
                && let Ok(probe) = weald_sys::create_unnamed_at(&dir, NEW_FILE)
            {
                let mode = weald_sys::stat_fd(&probe)?.permissions;
                drop(probe);
                let file = weald_sys::create_unnamed_at(&dir, access::UNFINISHED_MODE)?;
                let mode = access::mode_of_new(&file, mode)?;
                return Ok((file, OutputPlace::Unnamed { dir, name }, mode));
            }
            let (probe, probe_name) = create_hidden(&dir, &name, NEW_FILE)?;
            let mode = weald_sys::stat_fd(&probe).map(|stat| stat.permissions);
            weald_sys::remove_file_at(&dir, &probe_name)?;
            let (file, temp) = create_hidden(&dir, &name, access::UNFINISHED_MODE)?;
            let mode = access::mode_of_new(&file, mode?)?;
            Ok((file, OutputPlace::Hidden { dir, name, temp }, mode))
        };
        let (file, place, mode) = made().map_err(|e| Error::io(shown.clone(), e))?;
        let mode = match named.node {
            Some((old, _)) => FinalMode::Of(old, mode),
            None => FinalMode::New(mode),
        };
        Ok(Self::new(file, place, mode, shown))
    }

    /// Begins a new output with `head`. What is written later counts from the end of the head: it
    /// begins at offset 0.
    ///
    /// # Errors
    /// `Full`, `Io`; `Invalid` behind other bytes.
    pub fn begin_with(&mut self, head: &[u8]) -> Result<()> {
        if self.position() > 0 || self.head_len > 0 {
            let what = "a head stands at the beginning of a file";
            return Err(Error::invalid(format!("{}: {what}", self.shown)));
        }
        self.write_through(head)?;
        (self.head_len, self.written_len) = (self.written_len, 0);
        Ok(())
    }

    /// Lets those execute the complete file who may read it. A file that is replaced and whose mode
    /// stays is not changed.
    pub fn make_executable(&mut self) {
        if let FinalMode::New(mode) | FinalMode::Of(_, mode) = &mut self.mode {
            *mode |= (*mode & 0o444) >> 2;
        }
    }

    /// Device (major << 32 | minor) and inode number of the output if it is a regular file, so that
    /// a build does not pack its own output.
    pub fn regular_inode(&self) -> Option<(u64, u64)> {
        let stat = weald_sys::stat_fd(&self.file).ok()?;
        (stat.kind == FileKind::Regular).then_some((stat.dev, stat.ino))
    }

    /// Bytes written so far: the offset of the next byte.
    pub fn position(&self) -> u64 {
        self.written_len + self.buffer.len() as u64
    }

    /// Whether written bytes can be read back and a failure leaves no file. False for pipes,
    /// devices and standard output.
    pub fn is_atomic(&self) -> bool {
        !matches!(self.place, OutputPlace::Stream)
    }

    /// Appends `bytes`. An error may be about bytes of earlier calls.
    ///
    /// # Errors
    /// `Full` if the file system is full; `Io`, also for a closed pipe. The output is dead then.
    pub fn write_all(&mut self, bytes: &[u8]) -> Result<()> {
        self.check_alive()?;
        if self.buffer.len() + bytes.len() > OUTPUT_BUFFER_LEN {
            self.flush()?;
        }
        if bytes.len() >= OUTPUT_BUFFER_LEN {
            return self.write_through(bytes);
        }
        self.buffer.extend_from_slice(bytes);
        Ok(())
    }

    fn write_through(&mut self, bytes: &[u8]) -> Result<()> {
        if let Err(error) = self.file.write_all(bytes) {
            self.is_dead = true;
            return Err(Error::io(
                format!("{}: write at {}", self.shown, self.written_len),
                error,
            ));
        }
        self.written_len += bytes.len() as u64;
        Ok(())
    }

    /// Writes all buffered bytes to the operating system, without a sync.
    ///
    /// # Errors
    /// As [`OutputFile::write_all`].
    pub fn flush(&mut self) -> Result<()> {
        self.check_alive()?;
        let mut buffer = std::mem::take(&mut self.buffer);
        let written = self.write_through(&buffer);
        buffer.clear();
        self.buffer = buffer;
        written
    }

    /// Reads bytes written before, for a writer that verifies its output.
    ///
    /// # Errors
    /// `Io`, also if the range passes the end; `Invalid` for an output that is not atomic.
    pub fn read_exact_at(&mut self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.flush()?;
        if !self.is_atomic() {
            return Err(Error::invalid(format!(
                "{}: cannot be read back",
                self.shown
            )));
        }
        let read = self.file.read_exact_at(buf, self.head_len + offset);
        read.map_err(|e| {
            Error::io(
                format!("{}: read of {} bytes at {offset}", self.shown, buf.len()),
                e,
            )
        })
    }

    /// Replaces bytes written before, for a writer whose first bytes depend on the last ones.
    ///
    /// # Errors
    /// `Full`, `Io`; `Invalid` for an output that is not atomic, and behind the end. The output is
    /// dead after a failed write.
    pub fn rewrite_at(&mut self, bytes: &[u8], offset: u64) -> Result<()> {
        self.flush()?;
        let end = offset.checked_add(bytes.len() as u64);
        if !matches!(
            self.place,
            OutputPlace::Unnamed { .. } | OutputPlace::Hidden { .. }
        ) || end.is_none_or(|end| end > self.written_len)
        {
            let what = format!("{}: {} bytes at {offset}", self.shown, bytes.len());
            return Err(Error::invalid(format!("{what} cannot be written again")));
        }
        if let Err(error) = self.file.write_all_at(bytes, self.head_len + offset) {
            self.is_dead = true;
            let what = format!("{}: write at {offset}", self.shown);
            return Err(Error::io(what, error));
        }
        Ok(())
    }

    /// Makes the output `len` bytes longer. They are zeros until [`OutputFile::rewrite_at`] writes
    /// them.
    ///
    /// # Errors
    /// `Full`, `Io`; `Invalid` for an output that is not atomic.
    pub fn extend(&mut self, len: u64) -> Result<()> {
        self.flush()?;
        if !matches!(
            self.place,
            OutputPlace::Unnamed { .. } | OutputPlace::Hidden { .. }
        ) {
            return Err(Error::invalid(format!("{}: is no new file", self.shown)));
        }
        let end = self.written_len.saturating_add(len);
        let file_end = self.head_len + end;
        let extended = self.file.set_len(file_end);
        let moved = extended.and_then(|()| self.file.seek(SeekFrom::Start(file_end)));
        if let Err(error) = moved {
            self.is_dead = true;
            return Err(Error::io(format!("{}: {end} bytes", self.shown), error));
        }
        self.written_len = end;
        Ok(())
    }

    /// Gives the complete file the owner, group, mode and POSIX ACL of `file`, for an output that
    /// tells what is in it. What cannot be kept is not granted to others.
    ///
    /// # Errors
    /// `Io`.
    pub fn take_access_of(&mut self, file: &File) -> Result<()> {
        let of = file.as_fd().try_clone_to_owned();
        let of = of.map_err(|e| Error::io(self.shown.clone(), e))?;
        self.mode = FinalMode::Like(of);
        Ok(())
    }

    /// Bytes that the operating system has, and that [`OutputFile::reader`] can read.
    pub fn written_len(&self) -> u64 {
        self.written_len
    }

    /// A reader of the written bytes, which works while more are written; `None` for an output that
    /// is not atomic.
    ///
    /// # Errors
    /// `Io`.
    pub fn reader(&self) -> Result<Option<FileSource>> {
        if !self.is_atomic() {
            return Ok(None);
        }
        let file = self.file.try_clone();
        let file = file.map_err(|e| Error::io(self.shown.clone(), e))?;
        Ok(Some(FileSource::of_growing(file, self.head_len)))
    }

    /// Syncs the bytes written so far before those that follow, if the output is appended to a
    /// file. (A new file needs no barrier: it has no name before all of it is durable.)
    ///
    /// # Errors
    /// `Full`, `Io`.
    pub fn barrier(&mut self) -> Result<()> {
        if !matches!(self.place, OutputPlace::Behind { .. }) {
            return Ok(());
        }
        self.flush()?;
        let synced = self.file.sync_data();
        synced.map_err(|e| Error::io(format!("{}: sync", self.shown), e))
    }

    /// Changes the name, in the same directory, that [`OutputFile::commit`] gives the file: for a
    /// name that depends on the bytes. Nothing may exist under the name that the output was created
    /// with. No effect on an output that gets no name.
    pub fn set_name(&mut self, new: &[u8]) {
        if let OutputPlace::Unnamed { name, .. } | OutputPlace::Hidden { name, .. } =
            &mut self.place
        {
            *name = new.to_vec();
        }
    }

    /// Makes the output durable and gives it its name. With `overwrite` it replaces an existing
    /// file and gets owner, group, mode and POSIX ACL of the file that was there at the beginning.
    /// If the caller may not give the file that owner or group, the mode allows no user more than
    /// the old file did, and a warning in the log says so.
    ///
    /// # Errors
    /// `Busy` if the name is taken and `overwrite` is off; `Full`, `Io`. No file is left behind
    /// then, except that a failed sync of the directory leaves the complete file under its name.
    pub fn commit(mut self, overwrite: bool) -> Result<()> {
        self.flush()?;
        let named = self.commit_file(overwrite);
        let difference = named.map_err(|error| match error.kind() {
            std::io::ErrorKind::AlreadyExists => {
                Error::new(ErrorKind::Busy, format!("{}: already exists", self.shown))
            }
            _ => Error::io(format!("{}: naming the finished file", self.shown), error),
        })?;
        if let Some(difference) = difference {
            log::warn!("{}: {difference}", self.shown);
        }
        Ok(())
    }

    /// Returns a message about what of the replaced file could not be kept.
    fn commit_file(&mut self, overwrite: bool) -> std::io::Result<Option<String>> {
        let dir = match &self.place {
            OutputPlace::Unnamed { dir, .. } | OutputPlace::Hidden { dir, .. } => {
                dir.try_clone()?
            }
            OutputPlace::Behind { .. } => {
                self.file.sync_all()?;
                self.place = OutputPlace::Done;
                return Ok(None);
            }
            OutputPlace::Stream | OutputPlace::Done => return Ok(None),
        };
        let mut difference = None;
        match &self.mode {
            FinalMode::Like(of) => difference = access::keep(of, &self.file)?,
            FinalMode::Of(old, _) if overwrite => difference = access::keep(old, &self.file)?,
            FinalMode::New(mode) | FinalMode::Of(_, mode) => access::set_mode(&self.file, *mode)?,
            FinalMode::Unchanged => {}
        }
        self.file.sync_all()?;
        if let OutputPlace::Unnamed { dir, name } = &self.place {
            match weald_sys::link_unnamed_at(&self.file, dir, name) {
                Err(error) if overwrite && error.kind() == std::io::ErrorKind::AlreadyExists => {
                    self.link_hidden()?;
                }
                other => {
                    other?;
                    self.place = OutputPlace::Done;
                }
            }
        }
        if let OutputPlace::Hidden { dir, name, temp } = &self.place {
            if overwrite {
                weald_sys::rename_at(dir, temp, dir, name)?
            } else {
                weald_sys::rename_new_at(dir, temp, dir, name)?
            }
            self.place = OutputPlace::Done;
        }
        File::from(dir).sync_all()?;
        Ok(difference)
    }

    /// Gives a file without a name a hidden one, so that a rename can replace an existing file.
    fn link_hidden(&mut self) -> std::io::Result<()> {
        let OutputPlace::Unnamed { dir, name } = &self.place else {
            return Ok(());
        };
        let (file, dir) = (&self.file, dir.try_clone()?);
        let (name, temp) = (
            name.clone(),
            with_hidden_name(name, |temp| weald_sys::link_unnamed_at(file, &dir, temp))?.1,
        );
        self.place = OutputPlace::Hidden { dir, name, temp };
        Ok(())
    }

    fn check_alive(&self) -> Result<()> {
        if self.is_dead {
            Err(Error::new(
                ErrorKind::Io,
                format!("{}: unusable after a failed write", self.shown),
            ))
        } else {
            Ok(())
        }
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        match &self.place {
            // No caller is left to report a failure to. The file is hidden, and its name tells its
            // origin.
            OutputPlace::Hidden { dir, temp, .. } => drop(weald_sys::remove_file_at(dir, temp)),
            // If this fails, the tail has no footer, and `recover` finds the old end.
            OutputPlace::Behind { old_len } => {
                // Cutting what has the right length would change its mtime.
                if self.file.metadata().is_ok_and(|m| m.len() != *old_len) {
                    drop(self.file.set_len(*old_len));
                }
            }
            OutputPlace::Unnamed { .. } | OutputPlace::Stream | OutputPlace::Done => {}
        }
    }
}

/// Refuses a `path` at which a regular file or directory exists, before a long build begins.
///
/// # Errors
/// `Busy` if it exists; pipes, devices and `-` pass.
pub fn refuse_existing(path: &Path) -> Result<()> {
    let is_kept = |kind| matches!(kind, FileKind::Regular | FileKind::Directory);
    let found = || weald_sys::stat_path(path).is_ok_and(|stat| is_kept(stat.kind));
    if path != Path::new("-") && found() {
        Err(Error::new(
            ErrorKind::Busy,
            format!("{}: already exists", path.display()),
        ))
    } else {
        Ok(())
    }
}

/// Truncates the file at `path` from `old_len` to `len` bytes, durably.
///
/// # Errors
/// `Busy` if another process appends to the file or its length is not `old_len`; `NotFound`, `Io`.
pub fn truncate(path: &Path, len: u64, old_len: u64) -> Result<()> {
    let mut output = OutputFile::append(path, old_len)?;
    // Otherwise the drop would set the old length again.
    output.place = OutputPlace::Done;
    let cut = output.file.set_len(len);
    let cut = cut.and_then(|()| output.file.sync_all());
    cut.map_err(|e| Error::io(output.shown.clone(), e))
}

/// Opens the regular file at `path` for reading and writing. A lock keeps other writers out until
/// it is closed.
///
/// # Errors
/// `Busy` if another process has the lock; `NotFound`; `Io`, also for a symlink of another user.
pub fn open_to_update(path: &Path) -> Result<File> {
    let failed = |e| Error::io(format!("{}", path.display()), e);
    let file = open_writable(path).map_err(failed)?;
    file.try_lock().map_err(|e| match e {
        std::fs::TryLockError::WouldBlock => Error::new(
            ErrorKind::Busy,
            format!("{}: another process appends to it", path.display()),
        ),
        std::fs::TryLockError::Error(e) => failed(e),
    })?;
    Ok(file)
}

fn open_writable(path: &Path) -> std::io::Result<File> {
    let node = match resolve(path, false)? {
        Target::Dir(_) => return Err(std::io::ErrorKind::IsADirectory.into()),
        Target::Opened(node) => Some(node),
        Target::Name(named) => named.node.map(|(node, _)| node),
    };
    let node = node.ok_or(std::io::ErrorKind::NotFound)?;
    if weald_sys::stat_fd(&node)?.kind != FileKind::Regular {
        return Err(std::io::Error::other("no regular file"));
    }
    weald_sys::open_for_update(&node)
}

#[cfg(test)]
mod tests;
