//! Images by URL: objects of web servers and buckets as the storage of an image.
//!
//! ```
//! use weald_remote::{Location, is_url};
//!
//! # fn main() -> weald_format::Result<()> {
//! let path = std::path::Path::new("https://example.org/tools.weald");
//! assert!(is_url(path) && !is_url("tools.weald".as_ref()));
//! let location = Location::parse(path).expect("a URL")?;
//! // An image is opened with `weald_image::Image::open_path`, which reads what is asked for.
//! assert_eq!(location.shown(), "https://example.org/tools.weald");
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod bucket;
mod chunks;
mod client;
mod disk_cache;
mod failure;
mod location;
mod object;
mod probe;
mod profile;
mod publication;
mod publish;
mod read_ahead;
mod settings;
mod source;
mod stored;
mod verified;

pub use bucket::{Bucket, Condition, FetchedObject, Put};
pub use bytes::Bytes;
pub use location::{InStore, Location, ServerKind, is_url, shown, without_secrets};
pub use probe::{Check, Needed, Probed, probe};
pub use publication::{Publication, Published};
pub use publish::{find, publish};
pub use settings::{CacheSettings, Settings, TIMEOUT_DEFAULT, configure, settings};
pub use source::RemoteSource;
pub use verified::{CHUNK_LEN, VerifiedObject, VerifiedReader};
