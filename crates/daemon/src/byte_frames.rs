//! Many bytes on a connection: frames with their length in front. An empty frame ends them.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use weald_format::{Error, Result};

/// Bytes of a frame that is full.
const FRAME_LEN: usize = 256 << 10;

fn lost(error: std::io::Error) -> Error {
    Error::io("connection between server and client", error)
}

/// Sends bytes.
#[derive(Debug)]
pub(crate) struct ByteSender {
    stream: UnixStream,
    waiting: Vec<u8>,
}

impl ByteSender {
    /// Sends to the other side of `stream`.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn new(stream: &UnixStream) -> Result<Self> {
        Ok(Self {
            stream: stream.try_clone().map_err(lost)?,
            waiting: Vec::with_capacity(FRAME_LEN),
        })
    }

    /// Sends `bytes`, with others or later. Returns whether a frame went out.
    ///
    /// # Errors
    /// `Io`, also if the receiver takes nothing for the timeout of the connection.
    pub(crate) fn put(&mut self, mut bytes: &[u8]) -> Result<bool> {
        let mut is_sent = false;
        while !bytes.is_empty() {
            let free_len = FRAME_LEN.saturating_sub(self.waiting.len());
            let (now, later) = bytes.split_at(free_len.min(bytes.len()));
            self.waiting.extend_from_slice(now);
            bytes = later;
            if self.waiting.len() >= FRAME_LEN {
                self.send()?;
                is_sent = true;
            }
        }
        Ok(is_sent)
    }

    fn send(&mut self) -> Result<()> {
        let mut stream = &self.stream;
        let len = (self.waiting.len() as u32).to_le_bytes();
        stream.write_all(&len).map_err(lost)?;
        stream.write_all(&self.waiting).map_err(lost)?;
        self.waiting.clear();
        Ok(())
    }

    /// Sends the rest and the end.
    ///
    /// # Errors
    /// As [`ByteSender::put`].
    pub(crate) fn finish(&mut self) -> Result<()> {
        if !self.waiting.is_empty() {
            self.send()?;
        }
        self.send()
    }
}

/// Receives frames up to their end and passes them on. `wait` is called before each.
///
/// # Errors
/// `Limit` for a frame that no sender makes; `Io`; those of `wait` and `put`.
pub(crate) fn receive_bytes(
    mut stream: &UnixStream,
    wait: &dyn Fn() -> Result<()>,
    put: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let mut frame = vec![0; FRAME_LEN];
    loop {
        wait()?;
        let mut head = [0; 4];
        stream.read_exact(&mut head).map_err(lost)?;
        let len = u32::from_le_bytes(head) as usize;
        let bytes = frame.get_mut(..len);
        let bytes = bytes.ok_or_else(|| Error::limit(format!("a frame of {len} bytes")))?;
        if bytes.is_empty() {
            return Ok(());
        }
        stream.read_exact(bytes).map_err(lost)?;
        put(bytes)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weald_format::ErrorKind;

    // Would catch bytes that are lost between frames, and an end that is not noticed.
    #[test]
    fn bytes_come_back_in_order() {
        let (ours, theirs) = UnixStream::pair().expect("pair");
        let parts: Vec<Vec<u8>> = [0, 1, FRAME_LEN - 1, FRAME_LEN, 3 * FRAME_LEN + 5]
            .iter()
            .map(|len| (0..*len).map(|at| (at * 7 + len) as u8).collect())
            .collect();
        let mut found = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut sender = ByteSender::new(&theirs).expect("sender");
                for part in &parts {
                    sender.put(part).expect("put");
                }
                sender.finish().expect("end");
            });
            let mut keep = |bytes: &[u8]| {
                found.extend_from_slice(bytes);
                Ok(())
            };
            receive_bytes(&ours, &|| Ok(()), &mut keep).expect("all bytes");
        });
        assert!(found == parts.concat(), "{} bytes", found.len());
    }

    // Would catch a sender that ended in the middle, and memory that the length of a frame takes.
    #[test]
    fn a_cut_and_a_long_frame_are_refused() {
        let ignore = &mut |_: &[u8]| Ok(());
        let (ours, theirs) = UnixStream::pair().expect("pair");
        let mut sender = ByteSender::new(&theirs).expect("sender");
        sender.put(b"abc").expect("put");
        sender.send().expect("send");
        drop((sender, theirs));
        let cut = receive_bytes(&ours, &|| Ok(()), ignore).expect_err("no end");
        assert_eq!(cut.kind(), ErrorKind::Io);
        let (ours, mut theirs) = UnixStream::pair().expect("pair");
        theirs.write_all(&u32::MAX.to_le_bytes()).expect("write");
        let long = receive_bytes(&ours, &|| Ok(()), ignore).expect_err("a long frame");
        assert_eq!(long.kind(), ErrorKind::Limit);
    }
}
