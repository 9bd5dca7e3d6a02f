//! URLs of images: which words are URLs, and how they are shown.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use url::Url;
use weald_format::{Error, Result};

/// Schemes that name an object, with what follows them in a URL.
const SCHEMES: [&str; 3] = ["http://", "https://", "s3://"];

/// What stands for a secret.
const HIDDEN: &str = "…";

/// Whether `path` is a URL. This is the only place that decides it: a file whose name begins like
/// one is named with `./` before it.
pub fn is_url(path: &Path) -> bool {
    let bytes = path.as_os_str().as_bytes();
    SCHEMES.iter().any(|scheme| {
        let begin = bytes.get(..scheme.len());
        begin.is_some_and(|begin| begin.eq_ignore_ascii_case(scheme.as_bytes()))
    })
}

/// `path` as it may be shown: of a URL without the password and the query, both of which may be
/// secrets; any other path as it is.
pub fn shown(path: &Path) -> String {
    match Location::parse(path) {
        Some(Ok(location)) => location.shown(),
        _ => without_secrets(&path.display().to_string()),
    }
}

/// `text` without the user and the password of the URLs in it.
pub fn without_secrets(text: &str) -> String {
    let mut rest = text;
    let mut safe = String::with_capacity(text.len());
    while let Some((before, after)) = rest.split_once("://") {
        safe.push_str(before);
        safe.push_str("://");
        let end = after.find(|c: char| c == '/' || c == '?' || c.is_whitespace());
        let (authority, tail) = after.split_at(end.unwrap_or(after.len()));
        match authority.rsplit_once('@') {
            Some((_, host)) => safe.extend([HIDDEN, "@", host]),
            None => safe.push_str(authority),
        }
        rest = tail;
    }
    safe.push_str(rest);
    safe
}

/// The server and the name of an object.
#[derive(Clone)]
pub struct Location {
    url: Url,
}

/// What kind of server has an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerKind {
    /// A web server.
    Web,
    /// A bucket, and the name of the object in it.
    Bucket {
        /// Name of the bucket.
        bucket: String,
        /// Name of the object.
        key: String,
    },
}

/// The words behind the last slash that name an image of a store in a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InStore {
    /// What the keys of the store begin with: empty, or it ends with a slash.
    pub prefix: String,
    /// Name of the image.
    pub name: String,
}

impl Location {
    /// The location that `path` names, or `None` if it is no URL.
    pub fn parse(path: &Path) -> Option<Result<Self>> {
        is_url(path).then(|| Self::of_url(path.as_os_str()))
    }

    fn of_url(text: &OsStr) -> Result<Self> {
        let bad = |what: &str| {
            let shown = without_secrets(&text.to_string_lossy());
            Error::invalid(format!("{shown}: {what}"))
        };
        let text = text.to_str().ok_or_else(|| bad("a URL is UTF-8"))?;
        let url = Url::parse(text).map_err(|error| bad(&format!("not a URL: {error}")))?;
        if url.host_str().is_none_or(str::is_empty) {
            return Err(bad("the URL names no host and no bucket"));
        }
        let is_bucket = url.scheme() == "s3";
        if is_bucket && (!url.username().is_empty() || url.password().is_some()) {
            return Err(bad(
                "credentials of a bucket come from the environment or ~/.aws, not from the URL",
            ));
        }
        if url.path().len() < 2 {
            return Err(bad(
                "the URL names no object: expected a path behind the host",
            ));
        }
        Ok(Self { url })
    }

    /// Where the object lies.
    ///
    /// # Errors
    /// `Invalid` for a key that is not UTF-8 after its percent signs are decoded.
    pub fn place(&self) -> ServerKind {
        if self.url.scheme() != "s3" {
            return ServerKind::Web;
        }
        ServerKind::Bucket {
            bucket: self.url.host_str().unwrap_or_default().to_owned(),
            key: decoded(self.url.path().trim_start_matches('/')),
        }
    }

    /// The image of a store that `s3://BUCKET/STORE:NAME` names; `None` for an object. The store
    /// ends at the first colon behind the last slash; an object with a colon in its name is written
    /// with `%3A`.
    ///
    /// # Errors
    /// `Invalid` for a name that no image can have.
    pub fn in_store(&self) -> Option<Result<InStore>> {
        let (store, name) = self.store_and_name()?;
        let (store, name) = (decoded(store.trim_start_matches('/')), decoded(name));
        let is_bad = name.is_empty()
            || name.starts_with('.')
            || name.chars().any(|c| c == '/' || c.is_control());
        if is_bad {
            let what = format!(
                "{}: expected s3://BUCKET/STORE:NAME, with a name without '/' and without a dot in \
                 front; the colon in the name of an object is written %3A",
                self.shown()
            );
            return Some(Err(Error::invalid(what)));
        }
        let prefix = match store.as_str() {
            "" => store,
            store => format!("{store}/"),
        };
        Some(Ok(InStore { prefix, name }))
    }

    /// Path of the store and name of the image, as they stand in the URL.
    fn store_and_name(&self) -> Option<(&str, &str)> {
        let path = self.url.path();
        let last = path.rfind('/').map_or(0, |at| at.saturating_add(1));
        let colon = path.get(last..)?.find(':')?;
        let (store, name) = path.split_at_checked(last.saturating_add(colon))?;
        self.is_in_bucket().then_some((store, name.get(1..)?))
    }

    /// An object of the store, or below the prefix, that this location names.
    pub(crate) fn object(&self, key: &str) -> Self {
        let mut url = self.url.clone();
        let dir = match self.store_and_name() {
            Some((store, _)) => store,
            None => url.path(),
        };
        let path = format!("{}/{key}", dir.trim_end_matches('/'));
        url.set_path(&path);
        Self { url }
    }

    /// The URL for requests: without user and password, which [`Location::credentials`] has.
    pub(crate) fn request_url(&self) -> String {
        let mut url = self.url.clone();
        let _ = url.set_username("");
        let _ = url.set_password(None);
        url.set_fragment(None);
        url.to_string()
    }

    /// User and password that the URL itself gives.
    pub(crate) fn credentials(&self) -> Option<(String, String)> {
        let user = self.url.username();
        let password = self.url.password();
        let has_any = !user.is_empty() || password.is_some();
        has_any.then(|| (decoded(user), decoded(password.unwrap_or_default())))
    }

    /// Whether requests go without TLS.
    pub(crate) fn is_plain_http(&self) -> bool {
        self.url.scheme() == "http"
    }

    /// The URL without secrets, for messages and lists.
    pub fn shown(&self) -> String {
        let mut url = self.url.clone();
        let _ = url.set_username("");
        let _ = url.set_password(None);
        url.set_fragment(None);
        let has_query = url.query().is_some_and(|query| !query.is_empty());
        url.set_query(None);
        let query = if has_query {
            format!("?{HIDDEN}")
        } else {
            String::new()
        };
        format!("{url}{query}")
    }

    /// Whether the object lies in a bucket.
    pub(crate) fn is_in_bucket(&self) -> bool {
        self.url.scheme() == "s3"
    }

    /// Host, or bucket.
    pub(crate) fn host(&self) -> String {
        let host = self.url.host_str().unwrap_or_default();
        match self.url.port() {
            Some(port) => format!("{host}:{port}"),
            None => host.to_owned(),
        }
    }

    /// The whole URL of the directory of the object, for a search beside it; of an image of a store
    /// what stands before its name.
    pub fn parent(&self) -> String {
        let mut url = self.url.clone();
        url.set_query(None);
        url.set_fragment(None);
        if let Some((store, _)) = self.store_and_name() {
            let store = format!("{store}:");
            url.set_path(&store);
            return url.to_string();
        }
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop();
        }
        url.to_string()
    }

    /// The object `name` in the directory that `dir`, a URL, names; or the image of the store.
    ///
    /// # Errors
    /// `Invalid` for a name that is not UTF-8.
    pub fn beside(dir: &Path, name: &OsStr) -> Result<Self> {
        let bad = || Error::invalid(format!("{}: not the URL of a directory", shown(dir)));
        let text = dir.to_str().ok_or_else(bad)?;
        let mut url = Url::parse(text).map_err(|_| bad())?;
        let name = name.to_str().ok_or_else(bad)?;
        let store = url.path().strip_suffix(':').map(str::to_owned);
        if let Some(store) = store.filter(|_| url.scheme() == "s3") {
            url.path_segments_mut()
                .map_err(|()| bad())?
                .clear()
                .push(name);
            let path = format!("{store}:{}", url.path().trim_start_matches('/'));
            url.set_path(&path);
            return Ok(Self { url });
        }
        url.path_segments_mut()
            .map_err(|()| bad())?
            .pop_if_empty()
            .push(name);
        Ok(Self { url })
    }

    /// The last part of the path, decoded.
    pub fn name(&self) -> String {
        let last = self.url.path().rsplit('/').next();
        decoded(last.unwrap_or_default())
    }
}

impl std::fmt::Debug for Location {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.shown())
    }
}

/// `text` with its percent signs decoded; as it is if that gives no UTF-8.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let digits = tail.get(..2).filter(|_| *first == b'%');
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = tail.get(2..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8(bytes).unwrap_or_else(|_| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn location(text: &str) -> Result<Location> {
        Location::parse(Path::new(text)).expect("a URL")
    }

    /// Would catch: a file that is taken for a URL, and a URL that is taken for a file.
    #[test]
    fn urls_are_told_by_their_scheme() {
        for text in ["https://h/x", "HTTP://h/x", "s3://b/x", "s3://"] {
            assert!(is_url(Path::new(text)), "{text}");
        }
        for text in [
            "./https://h/x",
            "https:/h/x",
            "store:x",
            "s3:x",
            "ftp://h/x",
            "",
            "/s3://b",
        ] {
            assert!(!is_url(Path::new(text)), "{text}");
        }
    }

    /// Would catch: a password or a signature in a message.
    #[test]
    fn secrets_are_not_shown() {
        for (text, expected) in [
            (
                "https://me:secret@h:1/a%20b.weald",
                "https://h:1/a%20b.weald",
            ),
            ("https://h/x?X-Amz-Signature=secret", "https://h/x?…"),
            ("https://token-secret@h/x#secret", "https://h/x"),
        ] {
            let shown = shown(Path::new(text));
            assert_eq!(shown, expected);
            assert_eq!(format!("{:?}", location(text).expect("valid")), expected);
        }
        let text = "a https://me:secret@h/x and s3://k:secret@b, http://h/y@z";
        let expected = "a https://…@h/x and s3://…@b, http://h/y@z";
        assert_eq!(without_secrets(text), expected);
        let error = location("s3://k:secret@b/x").expect_err("refused");
        assert!(!error.to_string().contains("secret"), "{error}");
    }

    /// Would catch: a key that is encoded twice, a base image that is searched elsewhere.
    #[test]
    fn objects_and_their_neighbours() {
        let found = location("s3://bucket/a b/%C3%BC.weald").expect("valid");
        let (bucket, key) = ("bucket".into(), "a b/ü.weald".into());
        assert_eq!(found.place(), ServerKind::Bucket { bucket, key });
        assert_eq!(found.name(), "ü.weald");
        let found = location("https://u:p@h/dir/x.weald?q").expect("valid");
        assert_eq!(found.place(), ServerKind::Web);
        assert_eq!(found.request_url(), "https://h/dir/x.weald?q");
        assert_eq!(found.credentials(), Some(("u".into(), "p".into())));
        let base = Location::beside(Path::new(&found.parent()), OsStr::new("b c")).expect("name");
        assert_eq!(base.request_url(), "https://h/dir/b%20c");
        assert_eq!(base.credentials(), Some(("u".into(), "p".into())));
        let found = location("s3://b/dir/store:gcc:14%2e1").expect("valid");
        let stored = found.in_store().expect("an image").expect("a name");
        assert_eq!(
            (stored.prefix.as_str(), stored.name.as_str()),
            ("dir/store/", "gcc:14.1")
        );
        assert_eq!(found.parent(), "s3://b/dir/store:");
        let base = Location::beside(Path::new(&found.parent()), OsStr::new("a b")).expect("name");
        assert_eq!(base.shown(), "s3://b/dir/store:a%20b");
        assert_eq!(base.object("maps/x").shown(), "s3://b/dir/store/maps/x");
        let root = location("s3://b/:x").expect("valid").in_store();
        assert_eq!(root.expect("an image").expect("a name").prefix, "");
        for object in ["s3://b/a:b/x", "s3://b/a%3Ab", "https://h/store:x"] {
            assert!(location(object).expect("valid").in_store().is_none());
        }
        for bad in ["s3://b/store:", "s3://b/store:.x", "s3://b/store:a%2Fb"] {
            let found = location(bad).expect("a URL").in_store();
            assert!(found.expect("a store").is_err(), "{bad}");
        }
        for bad in ["https://", "https://h", "https://h/", "s3://b", "s3:///x"] {
            assert!(location(bad).is_err(), "{bad}");
        }
    }
}
