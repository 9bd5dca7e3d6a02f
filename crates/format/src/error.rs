//! The one error of every Weald library.
//!
//! Rules:
//! 1. The kind says what a caller can do; the text says what was wrong, where, what was expected
//!    and what was found.
//! 2. `Corrupt` always carries a [`Place`]: record, absolute file offset, rule of `docs/format.md`.
//! 3. One type serves all rooms, so that one function maps kinds to errno and one to exit codes
//!    (`docs/design/0002-one-error.md` says why it is not one type a crate).
//! 4. Nothing here allocates on the success path.

use std::borrow::Cow;
use std::fmt;

/// What went wrong, in terms of what the caller can do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The operating system refused or failed an operation; `source()` has its error.
    Io,
    /// Bytes do not obey `docs/format.md`, or do not match their digest.
    Corrupt,
    /// Valid, but from a newer writer or for a feature this build lacks.
    Unsupported,
    /// A declared limit (memory, length, count) would be exceeded.
    Limit,
    /// The caller asked for something that makes no sense.
    Invalid,
    /// There is no such thing.
    NotFound,
    /// No space is left where bytes were to be written.
    Full,
    /// Somebody else holds it.
    Busy,
}

/// Where in an image a `Corrupt` error was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Name of the record or structure, as in `docs/format.md`.
    pub record: &'static str,
    /// Absolute byte offset in the image of the record (not of the field); 0 where it is not known.
    pub offset: u64,
    /// Rule id of `docs/format.md`, such as `F-3.2`.
    pub rule: &'static str,
}

/// An error of any Weald library; see the module's rules.
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    what: Cow<'static, str>,
    place: Option<Place>,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// Shorthand for results of Weald libraries.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of `kind` that says `what`.
    pub fn new(kind: ErrorKind, what: impl Into<Cow<'static, str>>) -> Self {
        Self(Box::new(Inner {
            kind,
            what: what.into(),
            place: None,
            source: None,
        }))
    }

    /// A `Corrupt` error: `record` at `offset` breaks `rule`; `what` names expected and found.
    pub fn corrupt(
        record: &'static str,
        offset: u64,
        rule: &'static str,
        what: impl Into<Cow<'static, str>>,
    ) -> Self {
        let mut error = Self::new(ErrorKind::Corrupt, what);
        error.0.place = Some(Place {
            record,
            offset,
            rule,
        });
        error
    }

    /// An `Io` error (`Full` for ENOSPC, EDQUOT and EFBIG, `NotFound` for ENOENT) while doing
    /// `what`.
    pub fn io(what: impl Into<Cow<'static, str>>, source: std::io::Error) -> Self {
        use std::io::ErrorKind as K;
        let kind = match source.kind() {
            K::StorageFull | K::QuotaExceeded | K::FileTooLarge => ErrorKind::Full,
            K::NotFound => ErrorKind::NotFound,
            K::ResourceBusy => ErrorKind::Busy,
            _ => ErrorKind::Io,
        };
        Self::new(kind, what).with_source(source)
    }

    /// An `Invalid` error.
    pub fn invalid(what: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Invalid, what)
    }

    /// A `Limit` error.
    pub fn limit(what: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Limit, what)
    }

    /// A `NotFound` error.
    pub fn not_found(what: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::NotFound, what)
    }

    /// The same error with its cause attached.
    pub fn with_source(
        mut self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// The same error, its text prefixed by what was being done (`context: text`).
    pub fn context(mut self, context: impl fmt::Display) -> Self {
        self.0.what = Cow::Owned(format!("{context}: {}", self.0.what));
        self
    }

    /// The same error, its place moved to the absolute `offset` of the record, where it had none
    /// yet.
    pub fn at_offset(mut self, offset: u64) -> Self {
        if let Some(place) = &mut self.0.place
            && place.offset == 0
        {
            place.offset = offset;
        }
        self
    }

    /// What the caller can do about it.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Where a `Corrupt` error was found.
    pub fn place(&self) -> Option<&Place> {
        self.0.place.as_ref()
    }

    /// The operating system's error behind an `Io` error, if there is one.
    pub fn io_source(&self) -> Option<&std::io::Error> {
        self.0.source.as_ref().and_then(|s| s.downcast_ref())
    }

    /// A copy that can be handed to several waiting callers; the source is kept as text only.
    pub fn duplicate(&self) -> Self {
        let what = match &self.0.source {
            Some(source) => Cow::Owned(format!("{}: {source}", self.0.what)),
            None => self.0.what.clone(),
        };
        Self(Box::new(Inner {
            kind: self.0.kind,
            what,
            place: self.0.place.clone(),
            source: None,
        }))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.what)?;
        if let Some(place) = &self.0.place {
            write!(
                f,
                " ({} at byte {}, rule {})",
                place.record, place.offset, place.rule
            )?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.0.kind)?;
        match &self.0.source {
            Some(source) => write!(f, ": {source}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|s| s as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_space_is_full_and_missing_is_not_found() {
        let full = Error::io("write", std::io::Error::from_raw_os_error(28));
        assert_eq!(full.kind(), ErrorKind::Full);
        let missing = Error::io("open", std::io::Error::from_raw_os_error(2));
        assert_eq!(missing.kind(), ErrorKind::NotFound);
    }

    #[test]
    fn corrupt_says_where() {
        let error = Error::corrupt("footer", 0, "F-4.1", "expected a, found b").at_offset(77);
        assert_eq!(
            error.to_string(),
            "expected a, found b (footer at byte 77, rule F-4.1)"
        );
    }
}
