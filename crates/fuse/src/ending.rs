//! A driver that is gone when the kernel has announced the end of its mount, although threads still
//! refer to it. So the file system behind it can be closed before umount(2) returns.

use crate::answer::{Answer, Answers};
use crate::request::Request;
use crate::wire::{NodeId, Opcode};
use parking_lot::RwLock;
use rustix::io::Errno;
use weald_format::InodeNo;

/// `D` until [`Answers::end`].
pub(crate) struct Ending<D>(RwLock<Option<D>>);

impl<D> Ending<D> {
    pub(crate) fn new(driver: D) -> Self {
        Self(RwLock::new(Some(driver)))
    }
}

impl<D: Answers> Answers for Ending<D> {
    type Chunk = D::Chunk;

    const REQUEST_LEN_MAX: usize = D::REQUEST_LEN_MAX;
    const ANSWER_LEN_KEPT: usize = D::ANSWER_LEN_KEPT;

    fn begin_thread(&self) {
        if let Some(driver) = &*self.0.read() {
            driver.begin_thread();
        }
    }

    fn is_sync(&self, opcode: Opcode) -> bool {
        self.0.read().as_ref().is_some_and(|d| d.is_sync(opcode))
    }

    fn answer(&self, opcode: Opcode, request: &Request<'_>, out: &mut Vec<u8>) -> Answer<D::Chunk> {
        match &*self.0.read() {
            Some(driver) => driver.answer(opcode, request, out),
            None => Answer::Failed(Errno::NODEV),
        }
    }

    fn end(&self) {
        // The lock is free again before the driver is dropped, which may take long.
        let driver = self.0.write().take();
        drop(driver);
    }

    fn abandon(&self) {
        if let Some(driver) = &*self.0.read() {
            driver.abandon();
        }
    }

    fn outdated_listings(&self, request: &Request<'_>) -> Vec<NodeId> {
        let driver = self.0.read();
        driver
            .as_ref()
            .map(|driver| driver.outdated_listings(request))
            .unwrap_or_default()
    }

    fn ino(&self, node: NodeId) -> InodeNo {
        let driver = self.0.read();
        driver
            .as_ref()
            .map_or(InodeNo(node.0), |driver| driver.ino(node))
    }
}
