//! The interface between session and driver, and answers that all drivers share.

use crate::options::Access;
use crate::request::Request;
use crate::wire::{GetxattrOut, NodeId, Opcode};
use rustix::io::Errno;
use std::ops::Deref;
use weald_format::InodeNo;
use zerocopy::{Immutable, IntoBytes};

/// Outcome of a request.
pub(crate) enum Answer<C> {
    /// The kernel expects no answer.
    NoReply,
    /// The request fails.
    Failed(Errno),
    /// The output buffer holds the answer.
    Buffered,
    /// Content of a file, in consecutive chunks. The session sends them without a copy.
    Content(Vec<C>),
}

/// A driver: answers the requests of one mount.
pub(crate) trait Answers: Send + Sync + 'static {
    /// Bytes of a file: part of [`Answer::Content`].
    type Chunk: Deref<Target = [u8]>;

    /// Bytes of a worker's request buffer: the longest request that the kernel sends.
    const REQUEST_LEN_MAX: usize;

    /// Most bytes that a worker's answer buffer keeps between requests.
    const ANSWER_LEN_KEPT: usize;

    /// Prepares the thread of a worker.
    fn begin_thread(&self) {}

    /// Whether the operation makes everything durable and may take long. Such requests share one
    /// answer: that to a request with the opcode `Syncfs`.
    fn is_sync(&self, _opcode: Opcode) -> bool {
        false
    }

    /// Answers `request`. Every answer but file content goes into `out`.
    fn answer(
        &self,
        opcode: Opcode,
        request: &Request<'_>,
        out: &mut Vec<u8>,
    ) -> Answer<Self::Chunk>;

    /// The mount ends: makes everything durable and frees what the driver has. Waits for the
    /// requests in progress; later ones fail.
    fn end(&self) {}

    /// Nobody waits for answers any more: the kernel has ended the connection. Requests in progress
    /// that wait for something may fail.
    fn abandon(&self) {}

    /// Directories whose listings the kernel must drop from its cache before it gets the answer to
    /// `request`, which was carried out.
    fn outdated_listings(&self, _request: &Request<'_>) -> Vec<NodeId> {
        Vec::new()
    }

    /// Inode number of a node, for traces.
    fn ino(&self, node: NodeId) -> InodeNo;
}

/// Enforces `allow_root`: the kernel knows only `allow_other`, which admits every user.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Admission {
    /// With `allow_root`: the user who mounted. The driver refuses all other users except root.
    owner: Option<u32>,
}

impl Admission {
    /// `owner` is the user id of the process that mounted.
    pub(crate) fn new(access: Access, owner: u32) -> Self {
        Self {
            owner: (access == Access::OwnerAndRoot).then_some(owner),
        }
    }

    /// Whether users are checked at all.
    pub(crate) const fn is_checked(self) -> bool {
        self.owner.is_some()
    }

    /// Whether user `uid` may send this request. READ and WRITE need no check: the user could open
    /// the file, and requests for readahead and for mapped pages carry any user's id.
    pub(crate) fn admits(self, opcode: Opcode, uid: u32) -> bool {
        match self.owner {
            None => true,
            Some(owner) => {
                uid == 0
                    || uid == owner
                    || matches!(
                        opcode,
                        Opcode::Read
                            | Opcode::Write
                            | Opcode::Forget
                            | Opcode::BatchForget
                            | Opcode::Release
                            | Opcode::Releasedir
                            | Opcode::Interrupt
                            | Opcode::Destroy
                    )
            }
        }
    }
}

/// Answers with one record.
pub(crate) fn record<C>(out: &mut Vec<u8>, record: &(impl IntoBytes + Immutable)) -> Answer<C> {
    bytes(out, record.as_bytes())
}

/// Answers with bytes.
pub(crate) fn bytes<C>(out: &mut Vec<u8>, bytes: &[u8]) -> Answer<C> {
    out.extend_from_slice(bytes);
    Answer::Buffered
}

/// Answers a request for a value of unknown length. The answer is the length if `size` is 0, and
/// ERANGE if the value is longer than `size`.
pub(crate) fn sized<C>(out: &mut Vec<u8>, size: u32, value: &[u8]) -> Result<Answer<C>, Errno> {
    if size == 0 {
        // Linux limits a value to 64 KiB, and a list of names as well.
        let size = u32::try_from(value.len()).unwrap_or(u32::MAX);
        Ok(record(out, &GetxattrOut { size, padding: 0 }))
    } else if value.len() > size as usize {
        Err(Errno::RANGE)
    } else {
        Ok(bytes(out, value))
    }
}
