//! Table of the inodes with several names: the path of the first name, to which hard links are
//! made.
//!
//! Memory: one entry per inode until the walk has met all its names.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use weald_format::InodeNo;

#[derive(Debug)]
enum LinkState {
    /// The first name is being made.
    Pending,
    Made(Made),
}

#[derive(Debug)]
struct Made {
    path: Box<[u8]>,
    /// Names that the walk has not met yet.
    remaining_count: u64,
}

/// Action for a name of an inode with several names.
pub(crate) enum Meeting<'a> {
    /// Make the inode, then call [`FirstName::made`].
    First(FirstName<'a>),
    /// Make a hard link to this path (from the root of the target).
    Further(Box<[u8]>),
}

/// The table, shared by all threads.
#[derive(Default)]
pub(crate) struct Links {
    states: Mutex<HashMap<InodeNo, LinkState>>,
    changed: Condvar,
}

/// Obligation to make the first name of an inode. If it is dropped without [`Self::made`], the next
/// name becomes the first.
pub(crate) struct FirstName<'a> {
    links: &'a Links,
    ino: InodeNo,
    nlink: u64,
}

impl Links {
    /// Registers a name of inode `ino`, which has `nlink` names. Waits while another thread makes
    /// the first name.
    pub(crate) fn meet(&self, ino: InodeNo, nlink: u64) -> Meeting<'_> {
        let mut states = self.lock();
        while let Some(LinkState::Pending) = states.get(&ino) {
            states = self
                .changed
                .wait(states)
                .unwrap_or_else(PoisonError::into_inner);
        }
        let Some(LinkState::Made(made)) = states.get_mut(&ino) else {
            states.insert(ino, LinkState::Pending);
            return Meeting::First(FirstName {
                links: self,
                ino,
                nlink,
            });
        };
        made.remaining_count = made.remaining_count.saturating_sub(1);
        let path = made.path.clone();
        if made.remaining_count == 0 {
            states.remove(&ino);
        }
        Meeting::Further(path)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<InodeNo, LinkState>> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_state(&self, ino: InodeNo, state: Option<LinkState>) {
        let mut states = self.lock();
        match state {
            Some(state) => states.insert(ino, state),
            None => states.remove(&ino),
        };
        drop(states);
        self.changed.notify_all();
    }
}

impl FirstName<'_> {
    /// Records that the inode exists, at `path` from the root of the target.
    pub(crate) fn made(self, path: &[u8]) {
        let remaining_count = self.nlink.saturating_sub(1);
        let made = LinkState::Made(Made {
            path: path.into(),
            remaining_count,
        });
        self.links
            .set_state(self.ino, (remaining_count > 0).then_some(made));
        std::mem::forget(self);
    }
}

impl Drop for FirstName<'_> {
    fn drop(&mut self) {
        self.links.set_state(self.ino, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first<'a>(links: &'a Links, nlink: u64) -> FirstName<'a> {
        match links.meet(InodeNo(5), nlink) {
            Meeting::First(first) => first,
            Meeting::Further(path) => panic!("linked to {path:?}"),
        }
    }

    #[test]
    fn later_names_link_to_the_first_and_then_it_is_forgotten() {
        let links = Links::default();
        first(&links, 3).made(b"a");
        for _ in 0..2 {
            assert!(matches!(links.meet(InodeNo(5), 3), Meeting::Further(path) if &*path == b"a"));
        }
        assert!(links.lock().is_empty());
    }

    #[test]
    fn after_a_failure_the_next_name_is_the_first() {
        let links = Links::default();
        drop(first(&links, 3));
        first(&links, 3).made(b"b");
        assert!(matches!(links.meet(InodeNo(5), 3), Meeting::Further(path) if &*path == b"b"));
    }

    #[test]
    fn a_later_name_waits_for_the_first() {
        let links = Links::default();
        let promise = first(&links, 2);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| matches!(links.meet(InodeNo(5), 2), Meeting::Further(_)));
            promise.made(b"a");
            assert!(waiter.join().unwrap());
        });
    }
}
