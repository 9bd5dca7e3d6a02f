//! Whole things with names: closed segments, maps, and names of volumes.
//!
//! Nothing here asks for a file: an object is put as a whole, read in ranges, and never changed.
//! What is published takes its name by a switch. So objects may also lie where nothing can be
//! renamed, locked or written in place.

use super::{Access, LocalFiles, Object};
use crate::layout::{ObjectKind, ObjectName};
use std::fmt::Debug;
use weald_format::{ErrorKind, Result};

/// The objects of a store.
pub trait Objects: Debug + Send + Sync {
    /// Opens an object for reading.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` if something else than an object is in its place; `Io`.
    fn open_object(&self, name: &ObjectName) -> Result<Box<dyn Object>>;

    /// Stores `bytes` under `name`, durably when this returns. An object of that name is replaced,
    /// but a crash may leave neither: what readers see is replaced by [`Objects::switch`].
    ///
    /// # Errors
    /// `Io`, `Full`: nothing, a part or all of the object may be there.
    fn put(&self, name: &ObjectName, bytes: &[u8]) -> Result<()>;

    /// Gives the object `from` the name `to`, durably when this returns. What was called `to` is
    /// gone. After a crash, `to` is the old object or the new one, never a part of one.
    ///
    /// # Errors
    /// `NotFound`; `Io`: the switch may be done or not.
    fn switch(&self, from: &ObjectName, to: &ObjectName) -> Result<()>;

    /// Removes an object. After a crash it may be there again, until [`Objects::settle`].
    ///
    /// # Errors
    /// `NotFound`; `Invalid` if something else than an object is in its place; `Io`.
    fn remove_object(&self, name: &ObjectName) -> Result<()>;

    /// Makes removals durable, and switches that failed after they were done.
    ///
    /// # Errors
    /// `Io`.
    fn settle(&self, kind: ObjectKind) -> Result<()>;

    /// Lists the names of one kind, in any order, without what stands before them for the kind.
    /// There may be names among them that no object of this version has.
    ///
    /// # Errors
    /// `NotFound` if no object of this kind was ever put; `Io`.
    fn list_objects(&self, kind: ObjectKind) -> Result<Vec<String>>;
}

/// Objects are files of the same names, one directory for each kind.
impl<F: LocalFiles + ?Sized> Objects for F {
    fn open_object(&self, name: &ObjectName) -> Result<Box<dyn Object>> {
        Ok(self.open(name.path(), Access::Read)?)
    }

    fn put(&self, name: &ObjectName, bytes: &[u8]) -> Result<()> {
        self.write_file(name.path(), bytes)?;
        self.settle(name.kind())
    }

    fn switch(&self, from: &ObjectName, to: &ObjectName) -> Result<()> {
        self.rename(from.path(), to.path())?;
        self.settle(to.kind())
    }

    fn remove_object(&self, name: &ObjectName) -> Result<()> {
        self.remove(name.path())
    }

    fn settle(&self, kind: ObjectKind) -> Result<()> {
        self.sync_dir(kind.dir())
    }

    fn list_objects(&self, kind: ObjectKind) -> Result<Vec<String>> {
        self.list(kind.dir())
    }
}

/// Removes an object that may be gone already. What is no object, such as a directory in its place,
/// stays.
///
/// # Errors
/// `Io`.
pub(crate) fn remove_if_there(objects: &dyn Objects, name: &ObjectName) -> Result<()> {
    match objects.remove_object(name) {
        Err(error) if error.kind() == ErrorKind::Invalid => {
            log::warn!("{error}: it stays");
            Ok(())
        }
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
