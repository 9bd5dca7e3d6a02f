//! Standard output: buffered, quiet about a closed pipe, safe for terminals.

use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the reader of standard output has gone.
static IS_CLOSED: AtomicBool = AtomicBool::new(false);

/// Whether a write met a closed pipe: then the command has done what it could.
pub fn is_closed() -> bool {
    IS_CLOSED.load(Ordering::Relaxed)
}

/// Notes whether `error` is a closed pipe.
struct Guarded(StdoutLock<'static>);

impl Write for Guarded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).inspect_err(note)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().inspect_err(note)
    }
}

fn note(error: &io::Error) {
    if error.kind() == io::ErrorKind::BrokenPipe {
        IS_CLOSED.store(true, Ordering::Relaxed);
    }
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

    /// Writes a name: on a terminal with control characters escaped, otherwise as it is.
    pub fn name(&mut self, name: &[u8]) -> io::Result<()> {
        if self.is_terminal {
            return self.writer.write_all(weald_vfs::shown(name).as_bytes());
        }
        self.writer.write_all(name)
    }

    /// Writes a name and ends the line.
    pub fn name_line(&mut self, name: &[u8]) -> io::Result<()> {
        self.name(name)?;
        self.writer.write_all(b"\n")
    }

    /// Writes one JSON value on a line.
    pub fn json(&mut self, value: &serde_json::Value) -> io::Result<()> {
        serde_json::to_writer(&mut self.writer, value)?;
        self.writer.write_all(b"\n")
    }

    /// Whether a human looks.
    pub fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    /// Writes what is buffered.
    pub fn finish(mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}
