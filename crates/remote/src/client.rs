//! Connections to web servers and buckets: the library `object_store`, with our limits around each
//! request.
//!
//! [`Guard`] stands between the library and the network. It adds the credentials of a URL, takes no
//! more than a few kilobytes of an answer that is an error, recognises a page that is not the
//! object, and gives up early while an image is being opened, when a wrong address is the likely
//! cause.

use crate::failure::{Answer, NotTheObject};
use crate::location::{Location, ServerKind};
use crate::profile::Profile;
use crate::settings::settings;
use async_trait::async_trait;
use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpResponseBody, HttpService, ReqwestConnector,
};
use object_store::http::HttpBuilder;
use object_store::path::Path as Key;
use object_store::{BackoffConfig, ClientOptions, HeaderValue, ObjectStore, RetryConfig};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Once, OnceLock};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use weald_format::{Error, Result};

/// Time for one attempt to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time without any byte after which an attempt ends and the next one begins.
pub const SILENCE_MAX: Duration = Duration::from_secs(10);
/// Pause before the second attempt; it doubles from attempt to attempt.
pub const PAUSE: Duration = Duration::from_millis(100);
/// Longest pause between two attempts: how late a reader notices that a server is back.
pub const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Failed attempts after which opening an image fails.
const OPENING_ATTEMPTS_MAX: u32 = 4;
/// Bytes of an error's answer that are read.
const ANSWER_LEN_MAX: usize = 16 << 10;
/// Bytes of an answer that are read; a request asks for less.
const BODY_LEN_MAX: usize = 8 << 20;
/// Threads that wait for sockets and decrypt.
const THREADS: usize = 2;

/// The threads of all requests of this process.
///
/// # Errors
/// `Io` if the threads cannot be started.
pub fn runtime() -> Result<&'static Runtime> {
    static RUNTIME: OnceLock<std::io::Result<Runtime>> = OnceLock::new();
    let started = RUNTIME.get_or_init(|| {
        let mut builder = Builder::new_multi_thread();
        builder
            .worker_threads(THREADS)
            .thread_name("weald-url")
            .enable_all();
        builder.build()
    });
    started.as_ref().map_err(|error| {
        let error = std::io::Error::new(error.kind(), error.to_string());
        Error::io("threads for requests", error)
    })
}

/// What several requests for one object share.
#[derive(Debug, Default)]
pub struct Shared {
    /// Whether the object is open: its readers are patient.
    is_patient: AtomicBool,
    /// Attempts that failed since the last success.
    failed_in_a_row: AtomicU32,
    /// Requests that were sent, attempts that failed among them.
    request_count: AtomicU64,
}

impl Shared {
    /// From now on requests are repeated until the time of their reader is over.
    pub fn be_patient(&self) {
        self.is_patient.store(true, Ordering::Relaxed);
    }

    /// Whether a request succeeded before.
    pub fn is_patient(&self) -> bool {
        self.is_patient.load(Ordering::Relaxed)
    }

    /// Requests that were sent so far.
    pub fn request_count(&self) -> u64 {
        self.request_count.load(Ordering::Relaxed)
    }
}

/// A connection to the server of one object.
#[derive(Clone)]
pub struct Connection {
    /// The server.
    pub store: Arc<dyn ObjectStore>,
    /// The object.
    pub key: Key,
    /// What its requests share.
    pub shared: Arc<Shared>,
    /// Whether there are credentials for a bucket, as far as can be seen.
    pub has_credentials: bool,
}

impl Connection {
    /// The same server and bucket, for the object `key`.
    ///
    /// # Errors
    /// `Invalid` for a key that no object can have.
    pub fn at(&self, key: &str) -> Result<Self> {
        let parsed = Key::parse(key);
        Ok(Self {
            key: parsed.map_err(|_| Error::invalid(format!("{key}: not the key of an object")))?,
            ..self.clone()
        })
    }
}

/// Prepares requests for the object at `location`, without any. An attempt fails after
/// `silence_max` without a byte from the server.
///
/// # Errors
/// `Invalid` for a key or an environment that cannot be used.
pub fn connect(location: &Location, silence_max: Duration) -> Result<Connection> {
    install_tls();
    let shared = Arc::new(Shared::default());
    let connector = Connector {
        shared: shared.clone(),
        authorization: location
            .credentials()
            .and_then(|(user, word)| basic(&user, &word)),
    };
    let bad = |error: object_store::Error| {
        let what = crate::failure::brief(&error);
        Error::invalid(format!("{}: {what}", location.shown()))
    };
    let (store, key, has_credentials): (Arc<dyn ObjectStore>, Key, bool) = match location.place() {
        ServerKind::Web => {
            let options = options(silence_max).with_allow_http(location.is_plain_http());
            let builder = HttpBuilder::new()
                .with_url(location.request_url())
                .with_client_options(options)
                .with_retry(retry())
                .with_http_connector(connector);
            (
                Arc::new(builder.build().map_err(bad)?),
                Key::default(),
                true,
            )
        }
        ServerKind::Bucket { bucket, key } => {
            let key = Key::parse(&key).map_err(|error| bad(error.into()))?;
            let (builder, has_credentials) = bucket_builder(&bucket, silence_max);
            let builder = builder.with_retry(retry()).with_http_connector(connector);
            (
                Arc::new(builder.build().map_err(bad)?),
                key,
                has_credentials,
            )
        }
    };
    Ok(Connection {
        store,
        key,
        shared,
        has_credentials,
    })
}

/// A bucket as the environment says, and the profile where that says nothing.
fn bucket_builder(bucket: &str, silence_max: Duration) -> (AmazonS3Builder, bool) {
    let mut builder = AmazonS3Builder::from_env().with_bucket_name(bucket);
    let has = |builder: &AmazonS3Builder, key| builder.get_config_value(&key).is_some();
    let profile = Profile::read();
    if !has(&builder, AmazonS3ConfigKey::AccessKeyId)
        && let Some(id) = profile.get("aws_access_key_id")
    {
        let secret = profile.get("aws_secret_access_key").unwrap_or_default();
        builder = builder
            .with_access_key_id(id)
            .with_secret_access_key(secret);
        if let Some(token) = profile.get("aws_session_token") {
            builder = builder.with_token(token);
        }
    }
    if !has(&builder, AmazonS3ConfigKey::Region)
        && let Some(region) = profile.get("region")
    {
        builder = builder.with_region(region);
    }
    if !has(&builder, AmazonS3ConfigKey::Endpoint)
        && !has(&builder, AmazonS3ConfigKey::S3Endpoint)
        && let Some(endpoint) = profile.get("endpoint_url")
    {
        builder = builder.with_endpoint(endpoint);
    }
    let endpoint = builder
        .get_config_value(&AmazonS3ConfigKey::S3Endpoint)
        .or_else(|| builder.get_config_value(&AmazonS3ConfigKey::Endpoint));
    // Who writes http:// asks for it.
    let is_plain = endpoint.is_some_and(|endpoint| endpoint.starts_with("http://"));
    let sources = [
        AmazonS3ConfigKey::AccessKeyId,
        AmazonS3ConfigKey::WebIdentityTokenFile,
        AmazonS3ConfigKey::ContainerCredentialsRelativeUri,
        AmazonS3ConfigKey::ContainerCredentialsFullUri,
    ];
    let skips = builder.get_config_value(&AmazonS3ConfigKey::SkipSignature);
    let has_credentials = skips.is_some_and(|word| word == "true")
        || sources.into_iter().any(|key| has(&builder, key));
    let options = options(silence_max).with_allow_http(is_plain);
    // Removals go one by one, which every server takes.
    let builder = builder.with_disable_bulk_delete(true);
    (builder.with_client_options(options), has_credentials)
}

fn options(silence_max: Duration) -> ClientOptions {
    let timeout = settings().timeout;
    ClientOptions::new()
        .with_user_agent(HeaderValue::from_static(concat!(
            "weald/",
            env!("CARGO_PKG_VERSION")
        )))
        .with_connect_timeout(timeout.min(CONNECT_TIMEOUT))
        .with_read_timeout(silence_max)
        .with_timeout_disabled()
}

fn retry() -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig {
            init_backoff: PAUSE,
            max_backoff: PAUSE_MAX,
            base: 2.0,
        },
        max_retries: usize::MAX,
        retry_timeout: settings().timeout,
    }
}

/// Makes ring the cryptography of TLS, once in a process.
fn install_tls() {
    static ONCE: Once = Once::new();
    // It fails only if somebody did so before, whose choice then stays.
    ONCE.call_once(|| drop(rustls::crypto::ring::default_provider().install_default()));
}

/// The header that sends user and password.
fn basic(user: &str, password: &str) -> Option<HeaderValue> {
    let text = format!("Basic {}", base64(format!("{user}:{password}").as_bytes()));
    let mut value = HeaderValue::from_str(&text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let byte = |at: usize| u32::from(group.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for place in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * place) & 63) as usize];
            text.push(if place <= group.len() {
                char::from(digit)
            } else {
                '='
            });
        }
    }
    text
}

/// Makes clients with a guard.
#[derive(Debug)]
struct Connector {
    shared: Arc<Shared>,
    authorization: Option<HeaderValue>,
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let inner = ReqwestConnector::default().connect(options)?;
        Ok(HttpClient::new(Guard {
            inner,
            shared: self.shared.clone(),
            authorization: self.authorization.clone(),
        }))
    }
}

/// Stands before each request.
#[derive(Debug)]
struct Guard {
    inner: HttpClient,
    shared: Arc<Shared>,
    authorization: Option<HeaderValue>,
}

impl Guard {
    /// `error`, or one that is not repeated if there were many and nobody is patient.
    fn failed(&self, error: HttpError) -> HttpError {
        let count = self.shared.failed_in_a_row.fetch_add(1, Ordering::Relaxed);
        let is_patient = self.shared.is_patient();
        if is_patient || count.saturating_add(1) < OPENING_ATTEMPTS_MAX {
            return error;
        }
        HttpError::new(HttpErrorKind::Unknown, error)
    }
}

#[async_trait]
impl HttpService for Guard {
    async fn call(&self, mut request: HttpRequest) -> std::result::Result<HttpResponse, HttpError> {
        self.shared.request_count.fetch_add(1, Ordering::Relaxed);
        if let Some(value) = &self.authorization {
            request.headers_mut().insert("authorization", value.clone());
        }
        let asks_for_part = request.headers().contains_key("range");
        let answered = self.inner.execute(request).await;
        let response = answered.map_err(|error| self.failed(error))?;
        let status = response.status();
        if status.is_success() {
            self.shared.failed_in_a_row.store(0, Ordering::Relaxed);
            let is_part = status.as_u16() == 206;
            if asks_for_part && !is_part && is_page(&response) {
                return Err(HttpError::new(HttpErrorKind::Unknown, NotTheObject));
            }
            return Ok(limited(response));
        }
        let code = status.as_u16();
        let answer = Answer::new(code, &front(response).await);
        Err(match code {
            408 | 429 | 500..=599 => {
                self.failed(HttpError::new(HttpErrorKind::Interrupted, answer))
            }
            _ => HttpError::new(HttpErrorKind::Unknown, answer),
        })
    }
}

/// `response` with a body that ends at the longest that is asked for.
fn limited(response: HttpResponse) -> HttpResponse {
    response.map(|body| {
        let body = Limited::new(body, BODY_LEN_MAX);
        HttpResponseBody::new(body.map_err(|error| match error.downcast::<HttpError>() {
            Ok(error) => *error,
            Err(error) => HttpError::new_boxed(HttpErrorKind::Unknown, error),
        }))
    })
}

/// Whether a response says that it is a page for people.
fn is_page(response: &HttpResponse) -> bool {
    let kind = response.headers().get("content-type");
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/html"))
}

/// The first bytes of the body of `response`.
async fn front(response: HttpResponse) -> Vec<u8> {
    let mut body = response.into_body();
    let mut bytes = Vec::new();
    while bytes.len() < ANSWER_LEN_MAX {
        let Some(Ok(frame)) = body.frame().await else {
            break;
        };
        let data: Bytes = frame.into_data().unwrap_or_default();
        let room = ANSWER_LEN_MAX.saturating_sub(bytes.len()).min(data.len());
        bytes.extend_from_slice(data.get(..room).unwrap_or_default());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::base64;

    /// Would catch: a password that a server cannot read.
    #[test]
    fn base64_of_all_lengths() {
        // RFC 4648, section 10.
        let table = [
            "", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy",
        ];
        for (len, expected) in table.into_iter().enumerate() {
            assert_eq!(base64(&b"foobar"[..len]), expected);
        }
    }
}
