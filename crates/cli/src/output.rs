//! Standard output: buffered, silent about a closed pipe, and safe for terminals.
//!
//! There is one way to write for each kind of output. All except the last escape control characters
//! and bidirectional controls:
//! - text for users ([`Output::write_fmt`], so `write!`): always, except newlines;
//! - JSON ([`Output::json`]): always, as `\u` escapes;
//! - names in lists that programs read too ([`Output::name`]: ls, find, sum, build --list): only on
//!   a terminal, as GNU ls and find do;
//! - data ([`Output::raw`]: cat, tar, --print0): never.

use crate::json;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, OFlags, SeekFrom};
use std::fmt;
use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use weald_vfs::error_text::without_errno;

/// Whether standard output is a closed pipe.
static IS_CLOSED: AtomicBool = AtomicBool::new(false);

/// Whether a write met a closed pipe. The command then ends without an error.
pub fn is_closed() -> bool {
    IS_CLOSED.load(Ordering::Relaxed)
}

/// Asks the kernel whether standard output is a closed pipe. Commands that write rarely use this.
pub fn has_no_reader() -> bool {
    let stdout = rustix::stdio::stdout();
    let mut asked = [PollFd::new(&stdout, PollFlags::empty())];
    let now = Timespec::default();
    // If poll(2) fails, the next write detects the closed pipe.
    let is_gone = poll(&mut asked, Some(&now)).is_ok_and(|count| count > 0)
        && asked[0].revents().contains(PollFlags::ERR);
    if is_gone {
        IS_CLOSED.store(true, Ordering::Relaxed);
    }
    is_gone
}

/// Shortest hole to make, in bytes: shorter ones save no block on most file systems.
const SKIP_LEN_MIN: u64 = 4096;

/// Detects closed pipes, and names standard output in errors.
struct Guarded(StdoutLock<'static>);

impl Write for Guarded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(named)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(named)
    }
}

/// Records whether `error` is a closed pipe, and adds the name of standard output.
fn named(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::BrokenPipe {
        IS_CLOSED.store(true, Ordering::Relaxed);
    }
    let text = error.to_string();
    let what = format!("standard output: {}", without_errno(&text));
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

    /// Writes text for users; `write!` and `writeln!` call this.
    pub fn write_fmt(&mut self, words: fmt::Arguments<'_>) -> io::Result<()> {
        match words.as_str() {
            Some(text) => self.text(text),
            None => self.text(&words.to_string()),
        }
    }

    /// Writes text of several lines for users.
    pub fn text(&mut self, text: &str) -> io::Result<()> {
        self.writer.write_all(weald_vfs::safe_text(text).as_bytes())
    }

    /// Writes a name. On a terminal, control characters are escaped.
    pub fn name(&mut self, name: &[u8]) -> io::Result<()> {
        if self.is_terminal {
            return self.writer.write_all(weald_vfs::shown(name).as_bytes());
        }
        self.writer.write_all(name)
    }

    /// Writes one JSON value and a newline.
    pub fn json(&mut self, value: &serde_json::Value) -> io::Result<()> {
        json::write_line(&mut self.writer, value)
    }

    /// Writer for bytes that stay unchanged: contents, streams, and names that end in zero bytes.
    pub fn raw(&mut self) -> &mut (impl Write + use<>) {
        &mut self.writer
    }

    /// Writes the buffered bytes.
    pub fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }

    /// Whether standard output is a terminal.
    pub fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    /// Writes `len` zeros, as a hole if standard output is a file and the write position is its
    /// end.
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

    /// Extends standard output by `len` bytes without writing. Returns false if this is impossible
    /// or would keep old data there.
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

    /// Writes the buffered bytes and ends the output.
    pub fn finish(mut self) -> io::Result<()> {
        self.writer.flush()
    }
}
