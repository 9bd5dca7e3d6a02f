//! Errors of this crate: those of the libraries, with what was being done in front.

use std::borrow::Cow;
use weald_format::{Error, Result};

/// Says of a failure what was being done.
pub trait Context<T> {
    /// The error with `what` in front of it.
    ///
    /// # Errors
    /// If this is one.
    fn context(self, what: impl Into<Cow<'static, str>>) -> Result<T>;
}

impl<T> Context<T> for std::io::Result<T> {
    fn context(self, what: impl Into<Cow<'static, str>>) -> Result<T> {
        self.map_err(|error| Error::io(what, error))
    }
}

impl<T> Context<T> for rustix::io::Result<T> {
    fn context(self, what: impl Into<Cow<'static, str>>) -> Result<T> {
        self.map_err(|errno| Error::io(what, errno.into()))
    }
}

impl<T> Context<T> for Option<T> {
    fn context(self, what: impl Into<Cow<'static, str>>) -> Result<T> {
        self.ok_or_else(|| Error::invalid(what))
    }
}

/// The error that says `what`.
///
/// # Errors
/// Always.
pub fn refuse<T>(what: impl Into<Cow<'static, str>>) -> Result<T> {
    Err(Error::invalid(what))
}
