//! Jobs over one pair of streams: the extension ASYNC of the protocol. Each line from git-annex has
//! the number of a job, and a thread of its own answers each job.
//!
//! # Source
//! git-annex, `doc/design/external_special_remote_protocol/async_appendix`.

use super::lines::{self, Lines, split};
use anyhow::{Context, Result, anyhow, bail};
use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, Scope, ScopedJoinHandle};

/// Most jobs of one process. git-annex starts about as many as its `--jobs` says.
const JOB_COUNT_MAX: usize = 1024;

/// The conversation about one job.
pub struct Job<'a, W> {
    number: Vec<u8>,
    received: Receiver<Vec<u8>>,
    output: &'a Mutex<W>,
}

impl<W: Write> Lines for Job<'_, W> {
    fn receive(&mut self) -> Result<Option<Vec<u8>>> {
        Ok(self.received.recv().ok())
    }

    fn send(&mut self, words: &[&[u8]]) -> Result<()> {
        let tag: &[&[u8]] = &[b"J", &self.number];
        send(self.output, &[tag, words].concat())
    }
}

/// Hands the lines from git-annex to their jobs until it closes the stream. `converse` answers one
/// job, in a thread of its own.
///
/// # Errors
/// The first error of a job, which git-annex hears at once, or a line without a job.
pub fn serve<W: Write + Send>(
    input: &mut impl BufRead,
    output: W,
    converse: &(impl Fn(Job<'_, W>) -> Result<()> + Sync),
) -> Result<()> {
    let output = Mutex::new(output);
    thread::scope(|scope| {
        let mut jobs = Jobs {
            scope,
            output: &output,
            converse,
            running: BTreeMap::new(),
        };
        let outcome = jobs.receive_all(input);
        let ended = jobs.end();
        outcome.and(ended)
    })
}

/// A running job: where its lines go, and its thread.
type Running<'s> = (Sender<Vec<u8>>, ScopedJoinHandle<'s, Result<()>>);

/// The jobs that git-annex has begun.
struct Jobs<'s, 'e, W, F> {
    scope: &'s Scope<'s, 'e>,
    output: &'s Mutex<W>,
    converse: &'s F,
    running: BTreeMap<Vec<u8>, Running<'s>>,
}

impl<'s, W: Write + Send, F: Fn(Job<'_, W>) -> Result<()> + Sync> Jobs<'s, '_, W, F> {
    fn receive_all(&mut self, input: &mut impl BufRead) -> Result<()> {
        while let Some(line) = lines::receive(input)? {
            let (word, rest) = split(&line);
            let (number, request) = split(rest);
            match word {
                b"J" if !number.is_empty() => self.hand_over(number, request)?,
                b"ERROR" => bail!("git-annex ended: {}", String::from_utf8_lossy(rest)),
                _ => bail!(
                    "git-annex sent '{}', the rest of a name with a line break: the protocol of \
                     special remotes cannot carry such a name; rename the file",
                    String::from_utf8_lossy(&line).escape_debug()
                ),
            }
        }
        Ok(())
    }

    /// Gives a line to its job, which begins with its first line.
    fn hand_over(&mut self, number: &[u8], line: &[u8]) -> Result<()> {
        if !self.running.contains_key(number) {
            if self.running.len() == JOB_COUNT_MAX {
                bail!("git-annex began more than {JOB_COUNT_MAX} jobs");
            }
            let job = self.begin(number)?;
            self.running.insert(number.to_vec(), job);
        }
        let (inbox, _) = &self.running[number];
        // The job has said why it ended.
        inbox
            .send(line.to_vec())
            .map_err(|_| anyhow!("a job has failed"))
    }

    fn begin(&self, number: &[u8]) -> Result<Running<'s>> {
        let (inbox, received) = channel();
        let (output, converse) = (self.output, self.converse);
        let job = Job {
            number: number.to_vec(),
            received,
            output,
        };
        let thread = thread::Builder::new().spawn_scoped(self.scope, move || {
            converse(job).inspect_err(|error| {
                // git-annex closes the streams when it hears this, so that the reader ends, too.
                let _ = send(output, &[b"ERROR", lines::one_line(error).as_bytes()]);
            })
        });
        Ok((inbox, thread.context("a thread for a job")?))
    }

    /// Waits for all jobs, which see the end of their conversations; returns the first error.
    fn end(self) -> Result<()> {
        let threads = self.running.into_values().map(|(_, thread)| thread);
        // All inboxes are closed before the first wait.
        let threads: Vec<_> = threads.collect();
        let mut outcome = Ok(());
        for thread in threads {
            let ended = thread.join();
            outcome = outcome.and(ended.unwrap_or_else(|_| Err(anyhow!("a job has panicked"))));
        }
        outcome
    }
}

/// Sends one whole line: lines of several jobs never mix.
fn send(output: &Mutex<impl Write>, words: &[&[u8]]) -> Result<()> {
    let mut output = output.lock().unwrap_or_else(PoisonError::into_inner);
    lines::send(&mut *output, words)
}
