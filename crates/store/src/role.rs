//! What a store is besides a store that is written to: a standby, which follows another store, or
//! one in whose place another one has been promoted. Both can be read.

use crate::disk::Access;
use crate::layout;
use crate::store::Store;
use weald_format::{Error, ErrorKind, Result};

/// Most bytes of the text of a store that was replaced.
const TEXT_LEN_MAX: u64 = 4096;

/// Who may change a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// Its writers.
    Primary,
    /// Only what it gets from a replica.
    Standby,
    /// Nobody: another store has been promoted in its place. The text says when, and to what.
    Replaced(String),
}

impl Store {
    /// Who may change the store.
    ///
    /// # Errors
    /// `Io`.
    pub fn role(&self) -> Result<Role> {
        for path in [layout::STANDBY, layout::STANDBY_COPY] {
            match self.disk.open(path, Access::Read) {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) if error.kind() == ErrorKind::Io => return Err(error),
                // A damaged file says so, too, and one of them alone.
                _ => return Ok(Role::Standby),
            }
        }
        match self.disk.read_file(layout::REPLACED, TEXT_LEN_MAX) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Role::Primary),
            Err(error) if error.kind() == ErrorKind::Io => Err(error),
            Err(_) => Ok(Role::Replaced("another store".to_owned())),
            Ok(text) => {
                let text = String::from_utf8_lossy(&text);
                Ok(Role::Replaced(text.trim_end().to_owned()))
            }
        }
    }

    /// Refuses to change a store that others change, or that nobody may change.
    ///
    /// # Errors
    /// `Invalid` if it is one; `Io`.
    pub fn refuse_role(&self) -> Result<()> {
        let shown = self.disk.shown();
        Err(Error::invalid(match self.role()? {
            Role::Primary => return Ok(()),
            Role::Standby => format!(
                "{shown}: is a standby, which another store changes through a replica: it can be \
                 mounted with 'weald mount -o ro'; 'weald replica promote {shown}' makes it take \
                 the place of that store"
            ),
            Role::Replaced(by) => format!(
                "{shown}: was replaced by {by}: it can be mounted with 'weald mount -o ro', and \
                 'weald replica follow PLACE {shown}' makes it a standby of the other one"
            ),
        }))
    }

    /// Refuses to read a standby that is between two states.
    ///
    /// # Errors
    /// `Invalid` if it is; `Io`.
    pub(crate) fn refuse_between_states(&self) -> Result<()> {
        if self.role()? != Role::Standby {
            return Ok(());
        }
        let read = [layout::STANDBY, layout::STANDBY_COPY]
            .into_iter()
            .map(|path| self.disk.read_file(path, layout::REPLICA_RECORD_LEN_MAX));
        let is_state = |text: Vec<u8>| text.windows(6).any(|window| window == b"\nitem ");
        if read.flatten().any(is_state) {
            return Ok(());
        }
        let shown = self.disk.shown();
        Err(Error::invalid(format!(
            "{shown}: is between two states of the replica that it follows: 'weald replica \
             follow PLACE {shown}' completes the later one"
        )))
    }

    /// Whether the tables must stay as they are: see [`Store::refuse_role`].
    pub(crate) fn has_other_role(&self) -> bool {
        self.role().is_ok_and(|role| role != Role::Primary)
    }
}
