//! Standard output: buffered, quiet about a closed pipe, safe for terminals.
//!
//! There are four ways to write, one for each kind of output, and each but the last escapes control
//! characters and bidirectional controls:
//! - words for people ([`Output::write_fmt`], so `write!`): always, newlines excepted;
//! - JSON ([`Output::json`]): always, as `\u` escapes;
//! - names in lists that programs read too ([`Output::name`]: ls, find, sum): on a terminal, as GNU
//!   ls and find do; in a pipe or a file they are written as they are;
//! - bytes that are the result ([`Output::raw`]: cat, tar, --print0): never.

use crate::{json, messages};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, OFlags, SeekFrom};
use std::fmt;
use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the reader of standard output has gone.
static IS_CLOSED: AtomicBool = AtomicBool::new(false);

/// Whether a write met a closed pipe: then the command has done what it could.
pub fn is_closed() -> bool {
    IS_CLOSED.load(Ordering::Relaxed)
}

/// Whether the reader of standard output has gone, asked of the system: for work that takes long
/// between two writes.
pub fn has_no_reader() -> bool {
    let stdout = rustix::stdio::stdout();
    let mut asked = [PollFd::new(&stdout, PollFlags::empty())];
    let now = Timespec::default();
    // Asked in vain, the next write finds out.
    let is_gone = poll(&mut asked, Some(&now)).is_ok_and(|count| count > 0)
        && asked[0].revents().contains(PollFlags::ERR);
    if is_gone {
        IS_CLOSED.store(true, Ordering::Relaxed);
    }
    is_gone
}

/// Shortest hole that is made by a seek: a shorter one takes no block less on most file systems.
const SKIP_LEN_MIN: u64 = 4096;

/// Notes closed pipes, and names standard output in errors.
struct Guarded(StdoutLock<'static>);

impl Write for Guarded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(named)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(named)
    }
}

/// Notes whether `error` is a closed pipe, and says where it happened.
fn named(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::BrokenPipe {
        IS_CLOSED.store(true, Ordering::Relaxed);
    }
    let text = error.to_string();
    let what = format!("standard output: {}", messages::without_errno(&text));
    io::Error::new(error.kind(), what)
}

/// Standard output. Flush it with [`Output::finish`]: an error in `drop` would be lost.
pub struct Output {
    writer: BufWriter<Guarded>,
    is_terminal: bool,
}

impl Output {
    /// Takes standard output.
    pub fn new() -> Self {
        let stdout = io::stdout().lock();
        let is_terminal = stdout.is_terminal();
        Self {
            writer: BufWriter::with_capacity(1 << 16, Guarded(stdout)),
            is_terminal,
        }
    }

    /// Writes words for people: `write!` and `writeln!` call this.
    pub fn write_fmt(&mut self, words: fmt::Arguments<'_>) -> io::Result<()> {
        match words.as_str() {
            Some(text) => self.text(text),
            None => self.text(&words.to_string()),
        }
    }

    /// Writes words for people, several lines of them.
    pub fn text(&mut self, text: &str) -> io::Result<()> {
        self.writer.write_all(weald_vfs::safe_text(text).as_bytes())
    }

    /// Writes a name: on a terminal with control characters escaped, otherwise as it is.
    pub fn name(&mut self, name: &[u8]) -> io::Result<()> {
        if self.is_terminal {
            return self.writer.write_all(weald_vfs::shown(name).as_bytes());
        }
        self.writer.write_all(name)
    }

    /// Writes one JSON value on a line.
    pub fn json(&mut self, value: &serde_json::Value) -> io::Result<()> {
        json::write_line(&mut self.writer, value)
    }

    /// Where bytes go that are written as they are: contents, streams, and names that end in zero
    /// bytes.
    pub fn raw(&mut self) -> &mut (impl Write + use<>) {
        &mut self.writer
    }

    /// Writes what is buffered.
    pub fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }

    /// Whether a human looks.
    pub fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    /// Writes `len` zeros; as a hole where standard output is a file that ends here.
    pub fn zeros(&mut self, len: u64) -> io::Result<()> {
        if len >= SKIP_LEN_MIN && self.skip(len)? {
            return Ok(());
        }
        let mut result = Ok(());
        let _ = weald_vfs::each_zeros(len, &mut |piece| {
            result = self.writer.write_all(piece);
            match result {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            }
        });
        result
    }

    /// Lengthens standard output by `len` without writing; false where that cannot be or would show
    /// what was there before.
    fn skip(&mut self, len: u64) -> io::Result<bool> {
        self.writer.flush()?;
        let stdout = rustix::stdio::stdout();
        let stat = rustix::fs::fstat(stdout)?;
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        let is_appending = || rustix::fs::fcntl_getfl(stdout).map(|f| f.contains(OFlags::APPEND));
        if !is_file || is_appending()? {
            return Ok(false);
        }
        let at = rustix::fs::seek(stdout, SeekFrom::Current(0))?;
        let Some(end) = at.checked_add(len).filter(|_| stat.st_size as u64 <= at) else {
            return Ok(false);
        };
        rustix::fs::ftruncate(stdout, end)?;
        rustix::fs::seek(stdout, SeekFrom::Start(end))?;
        Ok(true)
    }

    /// Writes what is buffered.
    pub fn finish(mut self) -> io::Result<()> {
        self.writer.flush()
    }
}
