//! The error type of every Weald library.
//!
//! Rules:
//! 1. The kind tells the caller which reaction makes sense. The text says what is wrong, where,
//!    what was expected and what was found.
//! 2. `Corrupt` always carries an [`ErrorPlace`]: record, absolute file offset, rule of
//!    `docs/format.md`.
//! 3. All crates share one type, so that one function maps kinds to errno and one to exit codes
//!    (`docs/design/0002-one-error.md` explains why no crate has its own type).
//! 4. A write or a sync that the disk failed is marked where the disk is called
//!    ([`Error::of_failed_write`]): nobody knows what is on the disk then, and writers stop. Any
//!    other error is of one item, and everything else goes on.
//! 5. The success path never allocates.

use std::borrow::Cow;
use std::fmt;

/// Kind of an error: tells the caller which reaction makes sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The operating system refused an operation or failed; `source()` returns its error.
    Io,
    /// Bytes break a rule of `docs/format.md` or do not match their digest.
    Corrupt,
    /// The input is valid, but a newer writer made it or this build lacks a feature that it needs.
    Unsupported,
    /// The operation would exceed a declared limit (memory, length, count).
    Limit,
    /// The caller's request contradicts itself or names an impossible value.
    Invalid,
    /// No object of the requested name exists.
    NotFound,
    /// What the caller has open was moved, replaced or removed meanwhile: it has to be opened
    /// again.
    Moved,
    /// The metadata names an object that is not where it should be, such as a segment or a map
    /// whose file is missing. Readers must not take it for something that never existed.
    Lost,
    /// The device that we write to has no space left.
    Full,
    /// Another process holds the object.
    Busy,
}

/// Position of a `Corrupt` error in an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorPlace {
    /// Name of the record or structure, as in `docs/format.md`.
    pub record: &'static str,
    /// Absolute byte offset of the record (not of the field) in the image; 0 if unknown.
    pub offset: u64,
    /// Rule id of `docs/format.md`, such as `F-3.2`.
    pub rule: &'static str,
}

/// Error of any Weald library; see the rules in the module's documentation.
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    what: Cow<'static, str>,
    place: Option<ErrorPlace>,
    is_failed_write: bool,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// Result type of Weald libraries.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Makes an error of `kind` with the text `what`.
    pub fn new(kind: ErrorKind, what: impl Into<Cow<'static, str>>) -> Self {
        Self(Box::new(Inner {
            kind,
            what: what.into(),
            place: None,
            is_failed_write: false,
            source: None,
        }))
    }

    /// Makes a `Corrupt` error: `record` at `offset` breaks `rule`. `what` names the expected and
    /// the found value.
    pub fn corrupt(
        record: &'static str,
        offset: u64,
        rule: &'static str,
        what: impl Into<Cow<'static, str>>,
    ) -> Self {
        let mut error = Self::new(ErrorKind::Corrupt, what);
        error.0.place = Some(ErrorPlace {
            record,
            offset,
            rule,
        });
        error
    }

    /// `Unsupported`: `what` has a version that a newer Weald wrote.
    pub fn newer_version(what: &str, version: impl fmt::Display, known: impl fmt::Display) -> Self {
        let text = format!(
            "{what} has format version {version}, this Weald reads version {known}: use a newer \
             Weald"
        );
        Self::new(ErrorKind::Unsupported, text)
    }

    /// Makes an error from a failed system call during `what`: `Full` for ENOSPC, EDQUOT and EFBIG,
    /// `NotFound` for ENOENT, `Busy` for EBUSY, else `Io`.
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

    /// Makes an `Invalid` error.
    pub fn invalid(what: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Invalid, what)
    }

    /// Makes a `Limit` error.
    pub fn limit(what: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Limit, what)
    }

    /// Makes a `NotFound` error.
    pub fn not_found(what: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::NotFound, what)
    }

    /// Makes a `Lost` error.
    pub fn lost(what: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Lost, what)
    }

    /// Marks the error of a write or a sync that the disk failed: what the disk has is unknown.
    #[must_use]
    pub fn of_failed_write(mut self) -> Self {
        self.0.is_failed_write = true;
        self
    }

    /// Whether the disk failed a write or a sync, so that nobody knows what it has.
    pub fn is_failed_write(&self) -> bool {
        self.0.is_failed_write
    }

    /// Whether an item cannot be read: it is damaged or lost, or the disk cannot read it.
    /// Everything else can still be used.
    pub fn is_unreadable(&self) -> bool {
        let is_of_reading = matches!(
            self.kind(),
            ErrorKind::Corrupt | ErrorKind::Lost | ErrorKind::Io
        );
        is_of_reading && !self.is_failed_write()
    }

    /// Attaches the cause.
    pub fn with_source(
        mut self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// Prefixes the text with the operation that failed (`context: text`).
    pub fn context(mut self, context: impl fmt::Display) -> Self {
        self.0.what = Cow::Owned(format!("{context}: {}", self.0.what));
        self
    }

    /// Sets the place to the absolute `offset` of the record if the offset is unknown so far.
    pub fn at_offset(mut self, offset: u64) -> Self {
        if let Some(place) = &mut self.0.place
            && place.offset == 0
        {
            place.offset = offset;
        }
        self
    }

    /// Kind of the error.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Description without the position of a `Corrupt` error.
    pub fn what(&self) -> &str {
        &self.0.what
    }

    /// Position of a `Corrupt` error in the image.
    pub fn place(&self) -> Option<&ErrorPlace> {
        self.0.place.as_ref()
    }

    /// Its text with those of its causes.
    pub fn with_causes(&self) -> String {
        let mut text = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            text = format!("{text}: {error}");
            cause = error.source();
        }
        text
    }

    /// Returns the operating system's error behind an `Io` error, if there is one.
    pub fn io_source(&self) -> Option<&std::io::Error> {
        self.0.source.as_ref().and_then(|s| s.downcast_ref())
    }

    /// Copies the error, so that several waiting callers each get one. The copy keeps the source
    /// only as text.
    pub fn duplicate(&self) -> Self {
        let what = match &self.0.source {
            Some(source) => Cow::Owned(format!("{}: {source}", self.0.what)),
            None => self.0.what.clone(),
        };
        Self(Box::new(Inner {
            kind: self.0.kind,
            what,
            place: self.0.place.clone(),
            is_failed_write: self.0.is_failed_write,
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

    // Would catch a writer that goes on after a failed write of which a waiting caller was told.
    #[test]
    fn a_failed_write_stays_one() {
        let full = std::io::Error::from_raw_os_error(28);
        let failed = Error::io("write", full).of_failed_write().context("store");
        assert!(failed.is_failed_write() && failed.duplicate().is_failed_write());
        assert!(!Error::lost("a segment").is_failed_write());
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
