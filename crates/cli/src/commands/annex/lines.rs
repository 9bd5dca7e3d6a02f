//! Lines of the protocol: words with a space between, of which the last may contain spaces. Names
//! are bytes, in whatever encoding.

use anyhow::{Context, Result, bail};
use std::ffi::OsStr;
use std::io::{BufRead, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Longest line in bytes: twice two paths of the longest kind that Linux takes.
const LINE_LEN_MAX: u64 = 16 * 1024;

/// A conversation with git-annex.
pub trait Lines {
    /// Waits for a line; returns it without its end, or `None` when git-annex has closed the
    /// conversation.
    fn receive(&mut self) -> Result<Option<Vec<u8>>>;

    /// Sends one line.
    fn send(&mut self, words: &[&[u8]]) -> Result<()>;

    /// Sends a question and returns the value that git-annex answers.
    fn ask(&mut self, words: &[&[u8]]) -> Result<Vec<u8>> {
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
    fn progress(&mut self, done: u64) -> Result<()> {
        self.send(&[b"PROGRESS", done.to_string().as_bytes()])
    }
}

/// A conversation over two streams.
pub struct Streams<R, W> {
    input: R,
    output: W,
}

impl<R: BufRead, W: Write> Streams<R, W> {
    /// A conversation over these streams.
    pub const fn new(input: R, output: W) -> Self {
        Self { input, output }
    }

    /// The two streams, from git-annex and to it.
    pub fn parts(&mut self) -> (&mut R, &mut W) {
        (&mut self.input, &mut self.output)
    }

    /// The stream to git-annex, for tests.
    #[cfg(test)]
    pub const fn sent(&self) -> &W {
        &self.output
    }
}

impl<R: BufRead, W: Write> Lines for Streams<R, W> {
    fn receive(&mut self) -> Result<Option<Vec<u8>>> {
        receive(&mut self.input)
    }

    fn send(&mut self, words: &[&[u8]]) -> Result<()> {
        send(&mut self.output, words)
    }
}

/// Reads a line without its end from git-annex; `None` at the end of the stream.
pub fn receive(input: &mut impl BufRead) -> Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    let mut limited = input.by_ref().take(LINE_LEN_MAX);
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

/// Sends one line to git-annex.
pub fn send(output: &mut impl Write, words: &[&[u8]]) -> Result<()> {
    let mut line = words.join(&b' ');
    line.push(b'\n');
    output.write_all(&line).context("git-annex")?;
    output.flush().context("git-annex")
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

/// A message with its causes, without the line breaks that would end it.
pub fn one_line(error: &anyhow::Error) -> String {
    format!("{error:#}").replace(['\n', '\r'], " ")
}
