//! Lines of the protocol: words with a space between, of which the last may contain spaces. Names
//! are bytes, in whatever encoding.

use anyhow::{Context, Result, bail};
use std::ffi::OsStr;
use std::io::{BufRead, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Longest line in bytes: twice two paths of the longest kind that Linux takes.
const LINE_LEN_MAX: u64 = 16 * 1024;

/// Both directions of the conversation.
pub struct Lines<R, W> {
    input: R,
    output: W,
}

impl<R: BufRead, W: Write> Lines<R, W> {
    /// A conversation over these streams.
    pub const fn new(input: R, output: W) -> Self {
        Self { input, output }
    }

    /// Reads a line without its end; `None` when git-annex has closed the stream.
    pub fn receive(&mut self) -> Result<Option<Vec<u8>>> {
        let mut line = Vec::new();
        let mut limited = self.input.by_ref().take(LINE_LEN_MAX);
        let len = limited.read_until(b'\n', &mut line).context("git-annex")?;
        if len == 0 {
            return Ok(None);
        }
        // The stream may end within a line when git-annex is killed.
        if line.pop() != Some(b'\n') {
            bail!("a line of git-annex has no end within {LINE_LEN_MAX} bytes");
        }
        Ok(Some(line))
    }

    /// Sends one line.
    pub fn send(&mut self, words: &[&[u8]]) -> Result<()> {
        let mut line = words.join(&b' ');
        line.push(b'\n');
        self.output.write_all(&line).context("git-annex")?;
        self.output.flush().context("git-annex")
    }

    /// Sends a question and returns the value that git-annex answers.
    pub fn ask(&mut self, words: &[&[u8]]) -> Result<Vec<u8>> {
        self.send(words)?;
        let line = self
            .receive()?
            .context("git-annex closed the conversation")?;
        match split(&line) {
            (b"VALUE", value) => Ok(value.to_vec()),
            _ => bail!("git-annex answered without VALUE"),
        }
    }

    /// Reports the bytes of a transfer that are done.
    pub fn progress(&mut self, done: u64) -> Result<()> {
        self.send(&[b"PROGRESS", done.to_string().as_bytes()])
    }

    /// The stream to git-annex, for tests.
    #[cfg(test)]
    pub const fn sent(&self) -> &W {
        &self.output
    }
}

/// The first word of a line, and the rest.
pub fn split(line: &[u8]) -> (&[u8], &[u8]) {
    let space = line.iter().position(|&byte| byte == b' ');
    space.map_or((line, &[]), |at| (&line[..at], &line[at + 1..]))
}

/// The path that `bytes` are.
pub fn path(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(bytes))
}

/// The bytes of `path`.
pub fn bytes(path: &Path) -> Vec<u8> {
    path.as_os_str().as_bytes().to_vec()
}
