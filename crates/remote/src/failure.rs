//! Errors of servers as texts that say what to do.
//!
//! The texts are made of the status and of the code that S3 servers give. They never quote what a
//! library prints, which has the whole URL, nor more than a code of what a server says.

use crate::location::Location;
use object_store::client::{HttpError, HttpErrorKind};
use std::error::Error as StdError;
use std::time::Duration;
use weald_format::{Error, ErrorKind};

/// Most characters of a code that an S3 server gives.
const CODE_LEN_MAX: usize = 40;

/// When a request was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// The object is being opened.
    Opening,
    /// The object is open.
    Reading,
    /// The object is being written.
    Publishing,
}

/// An answer that is an error: its status, and the code that S3 servers give.
#[derive(Debug)]
pub struct Answer {
    status: u16,
    code: Option<String>,
}

impl Answer {
    /// An answer with the first bytes of its body.
    pub fn new(status: u16, body: &[u8]) -> Self {
        let code = code_of(&String::from_utf8_lossy(body));
        Self { status, code }
    }

    /// Status and code, for a message.
    fn said(&self) -> String {
        match &self.code {
            Some(code) => format!("status {}, {code}", self.status),
            None => format!("status {}", self.status),
        }
    }
}

impl std::fmt::Display for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.said())
    }
}

impl StdError for Answer {}

/// An answer that is a page for people and not the object.
#[derive(Debug)]
pub struct NotTheObject;

impl std::fmt::Display for NotTheObject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(
            "the answer is a page (text/html) and not the object: a proxy or a login page may \
             answer in its place",
        )
    }
}

impl StdError for NotTheObject {}

/// The status of the answer that `error` is, if it is one.
pub fn status(error: &object_store::Error) -> Option<u16> {
    cause::<Answer>(error).map(|answer| answer.status)
}

/// Whether the same request may succeed a moment later: the server is overloaded, restarts, or
/// another writer is at work (409).
pub fn is_transient(error: &object_store::Error) -> bool {
    match status(error) {
        Some(status) => matches!(status, 408 | 409 | 429 | 500..=599),
        // The outermost kind: a failure that is to be the last one lies in another kind.
        None => matches!(
            cause::<HttpError>(error).map(HttpError::kind),
            Some(
                HttpErrorKind::Connect
                    | HttpErrorKind::Request
                    | HttpErrorKind::Timeout
                    | HttpErrorKind::Interrupted
            )
        ),
    }
}

/// An object that is named by its digest, and is missing or has another length.
pub fn lost(location: &Location, found: &str) -> Error {
    let what = format!(
        "{}: {found}: publish the image again with --force",
        location.shown()
    );
    Error::new(ErrorKind::Lost, what)
}

/// The first cause of `error` that is a `T`.
fn cause<'a, T: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a T> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<T>() {
            return Some(found);
        }
        next = error.source();
    }
    None
}

/// The innermost cause of `error`.
fn innermost(error: &(dyn StdError + 'static)) -> String {
    let mut last = error;
    while let Some(next) = last.source() {
        last = next;
    }
    last.to_string()
}

/// `error`, which a request for `location` met, as an error of ours.
pub fn explain(location: &Location, moment: Moment, error: &object_store::Error) -> Error {
    if let Some(answer) = cause::<Answer>(error) {
        return of_answer(location, moment, answer);
    }
    let (kind, what) = match error {
        object_store::Error::NotSupported { .. } => (ErrorKind::Unsupported, no_ranges()),
        error if error.to_string().contains("non-partial") => (ErrorKind::Unsupported, no_ranges()),
        error => match cause::<NotTheObject>(error) {
            Some(page) => (ErrorKind::Invalid, page.to_string()),
            None => (ErrorKind::Io, of_transport(location, error)),
        },
    };
    Error::new(kind, format!("{}: {what}", location.shown()))
}

fn of_answer(location: &Location, moment: Moment, answer: &Answer) -> Error {
    let (kind, what) = match answer.status {
        412 => return changed(location, "another one"),
        404 | 410 if moment == Moment::Reading => return changed(location, "nothing now"),
        401 | 403 => (ErrorKind::Io, refused(location, answer)),
        // What versitygw answers to an access key that it does not know.
        404 if answer.code.as_deref() == Some("XAdminUserNotFound") => {
            (ErrorKind::Io, refused(location, answer))
        }
        404 | 410 => (ErrorKind::NotFound, missing(answer)),
        416 => (ErrorKind::Invalid, "the object is empty".to_owned()),
        _ => (ErrorKind::Io, of_status(answer)),
    };
    Error::new(kind, format!("{}: {what}", location.shown()))
}

/// A text of the library about words that it does not take.
pub fn brief(error: &object_store::Error) -> String {
    innermost(error)
}

/// An object that is another one than the one that was opened.
pub fn changed(location: &Location, found: &str) -> Error {
    let what = format!(
        "{}: the object was replaced since it was opened (its place has {found}): open or mount it \
         again",
        location.shown()
    );
    Error::new(ErrorKind::Moved, what)
}

/// No answer within `limit`, the time that readers wait.
pub fn too_late(location: &Location, limit: Duration) -> Error {
    let what = format!(
        "{}: no answer within {} s (--url-timeout)",
        location.shown(),
        limit.as_secs_f64()
    );
    Error::new(ErrorKind::Io, what)
}

/// An answer that ended before its end.
pub fn cut_short(location: &Location, expected: u64, found: usize) -> Error {
    let what = format!(
        "{}: the answer has {found} bytes of {expected}",
        location.shown()
    );
    Error::new(ErrorKind::Io, what)
}

/// A bucket for which nobody gave credentials, on a machine that has none by itself.
pub fn no_credentials(location: &Location) -> Error {
    let what = format!(
        "{}: there are no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or \
         AWS_PROFILE, or AWS_SKIP_SIGNATURE=true for a public bucket",
        location.shown()
    );
    Error::new(ErrorKind::Io, what)
}

/// As [`explain`], of the first request. Without credentials the library asks the machine for them,
/// which only a machine of a cloud answers.
pub fn explain_opening(
    location: &Location,
    error: &object_store::Error,
    has_credentials: bool,
) -> Error {
    if has_credentials || cause::<Answer>(error).is_some_and(|answer| answer.code.is_some()) {
        explain(location, Moment::Opening, error)
    } else {
        no_credentials(location)
    }
}

fn no_ranges() -> String {
    "the server does not answer requests for a part of an object: a proxy or a login page may \
     answer in its place, or it is too simple a server; download the image and open the file"
        .to_owned()
}

fn refused(location: &Location, answer: &Answer) -> String {
    let advice = match answer.code.as_deref() {
        Some("ExpiredToken" | "TokenRefreshRequired") => "the credentials expired: get new ones",
        Some("RequestTimeTooSkewed") => "set the clock of this machine",
        Some("InvalidAccessKeyId" | "XAdminUserNotFound") => {
            "the server does not know AWS_ACCESS_KEY_ID"
        }
        Some("SignatureDoesNotMatch") => "AWS_SECRET_ACCESS_KEY does not fit the access key",
        _ if location.is_in_bucket() => {
            "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, and what they may \
             do; AWS_SKIP_SIGNATURE=true reads a public bucket"
        }
        _ => "check user and password of the URL, or whether a signed URL has expired",
    };
    format!("the server refuses access ({}): {advice}", answer.said())
}

fn missing(answer: &Answer) -> String {
    match answer.code.as_deref() {
        Some("NoSuchBucket") => "there is no such bucket at this server".to_owned(),
        _ => format!("there is no such object ({})", answer.said()),
    }
}

fn of_status(answer: &Answer) -> String {
    let said = answer.said();
    match answer.status {
        300..=399 => format!(
            "the server sends elsewhere ({said}): for a bucket, set AWS_REGION to its region, or \
             AWS_ENDPOINT_URL to its server"
        ),
        407 => format!("a proxy wants credentials ({said}): set HTTPS_PROXY or NO_PROXY"),
        429 | 503 => format!("the server is overloaded ({said}): try again later"),
        _ => format!("the server failed ({said})"),
    }
}

fn of_transport(location: &Location, error: &object_store::Error) -> String {
    let host = location.host();
    let cause_text = innermost(error);
    match transport_kind(error) {
        _ if cause_text.contains("certificate") => format!(
            "the certificate of the server is not trusted (SSL_CERT_FILE names further ones): \
             {cause_text}"
        ),
        Some(HttpErrorKind::Connect) if location.is_in_bucket() => format!(
            "cannot connect to the server of the bucket, see AWS_ENDPOINT_URL: {cause_text}"
        ),
        Some(HttpErrorKind::Connect) => format!("cannot connect to {host}: {cause_text}"),
        Some(HttpErrorKind::Timeout) => format!("{host} does not answer"),
        _ => format!("the request failed: {cause_text}"),
    }
}

/// The kind of the innermost error of the connection.
fn transport_kind(error: &(dyn StdError + 'static)) -> Option<HttpErrorKind> {
    let mut kind = None;
    let mut next = Some(error);
    while let Some(error) = next {
        kind = error.downcast_ref().map(HttpError::kind).or(kind);
        next = error.source();
    }
    kind
}

/// The code in the XML that an S3 server sends with an error.
fn code_of(body: &str) -> Option<String> {
    let (_, rest) = body.split_once("<Code>")?;
    let (code, _) = rest.split_once("</Code>")?;
    let is_code = code.len() <= CODE_LEN_MAX && code.bytes().all(|b| b.is_ascii_alphanumeric());
    is_code.then(|| code.to_owned())
}

#[cfg(test)]
mod tests {
    use super::code_of;

    /// Would catch: text of a hostile server in our messages.
    #[test]
    fn only_a_code_is_taken_from_an_answer() {
        let body = "<Error><Code>NoSuchBucket</Code><Message>x</Message></Error>";
        assert_eq!(code_of(body).as_deref(), Some("NoSuchBucket"));
        for body in ["", "<Code>a b</Code>", "<Code>\x1b[2J</Code>", "<Code>open"] {
            assert_eq!(code_of(body), None, "{body}");
        }
        let long = format!("<Code>{}</Code>", "a".repeat(1000));
        assert_eq!(code_of(&long), None);
    }
}
