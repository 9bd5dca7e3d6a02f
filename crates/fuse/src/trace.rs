//! Writes every request to a trace file for the viewers of Chrome and Perfetto.
//!
//! # Source
//! "Trace Event Format", Google, JSON array format. The format allows a missing closing bracket, so
//! the trace of a killed server stays readable.

use crate::wire::Opcode;
use parking_lot::Mutex;
use rustix::io::Errno;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weald_format::{Error, InodeNo, Result};

/// Trace file under construction.
#[derive(Debug)]
pub struct Trace {
    start: Instant,
    /// `None` after a failed write, and after the end.
    file: Mutex<Option<BufWriter<File>>>,
}

/// An answered request.
pub(crate) struct Event {
    /// Index of the worker thread.
    pub(crate) worker: usize,
    pub(crate) opcode: Opcode,
    pub(crate) ino: InodeNo,
    pub(crate) begun: Instant,
    pub(crate) took: Duration,
    /// Offset and size of a read, in the file or listing.
    pub(crate) range: Option<(u64, u32)>,
    /// Bytes of the answer, or its errno.
    pub(crate) done: std::result::Result<usize, Errno>,
}

impl Trace {
    /// Creates the trace file at `path`; truncates an existing one.
    ///
    /// # Errors
    /// `Io`, `NotFound`.
    pub fn create(path: &Path) -> Result<Arc<Self>> {
        let failed = |error| Error::io(path.display().to_string(), error);
        let mut file = BufWriter::new(File::create(path).map_err(failed)?);
        file.write_all(b"[\n").map_err(failed)?;
        Ok(Arc::new(Self {
            start: Instant::now(),
            file: Mutex::new(Some(file)),
        }))
    }

    pub(crate) fn add(&self, event: &Event) {
        let micros = |time: Duration| time.as_nanos() as f64 / 1e3;
        let name = event.opcode.word();
        let mut line = format!(
            r#"{{"name":"{name}","ph":"X","pid":1,"tid":{},"ts":{:.3},"dur":{:.3},"#,
            event.worker,
            micros(event.begun.saturating_duration_since(self.start)),
            micros(event.took),
        );
        line.push_str(&format!(r#""args":{{"ino":{}"#, event.ino));
        if let Some((offset, size)) = event.range {
            line.push_str(&format!(r#","offset":{offset},"size":{size}"#));
        }
        match event.done {
            Ok(len) => line.push_str(&format!(r#","len":{len}}}}},"#)),
            Err(errno) => line.push_str(&format!(r#","errno":{}}}}},"#, errno.raw_os_error())),
        }
        line.push('\n');
        self.write(line.as_bytes());
    }

    /// Completes the file. Later events are dropped.
    pub(crate) fn end(&self) {
        // Every event ends with a comma; this empty one, which viewers ignore, does not.
        self.write(b"{}]\n");
        let flushed = self.file.lock().take().map(|mut file| file.flush());
        if let Some(Err(error)) = flushed {
            log::error!("the trace is incomplete: {error}");
        }
    }

    fn write(&self, bytes: &[u8]) {
        let mut file = self.file.lock();
        if let Some(open) = &mut *file
            && let Err(error) = open.write_all(bytes)
        {
            log::error!("the trace ends here: {error}");
            *file = None;
        }
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_json() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("trace.json");
        let trace = Trace::create(&path).expect("created");
        for done in [Ok(12), Err(Errno::IO)] {
            trace.add(&Event {
                worker: 1,
                opcode: Opcode::Read,
                ino: InodeNo(7),
                begun: Instant::now(),
                took: Duration::from_micros(3),
                range: Some((4096, 12)),
                done,
            });
        }
        drop(trace);
        let text = std::fs::read(&path).expect("written");
        let events: Vec<serde_json::Value> = serde_json::from_slice(&text).expect("JSON");
        assert_eq!(events.len(), 3);
        assert_eq!(events[0]["args"]["len"], 12);
        assert_eq!(events[1]["args"]["errno"], 5);
        assert_eq!(events[1]["dur"], 3.0);
    }
}
