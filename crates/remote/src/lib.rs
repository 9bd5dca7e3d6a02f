//! Images by URL: objects of web servers and buckets as the storage of an image.
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

pub use bucket::{Bucket, Condition, FetchedObject, Put};
pub use location::{InStore, Location, ServerKind, is_url, shown, without_secrets};
pub use probe::{Check, Needed, Probed, probe};
pub use publication::{Publication, Published};
pub use publish::{find, publish};
pub use settings::{CacheSettings, Settings, TIMEOUT_DEFAULT, configure, settings};
pub use source::RemoteSource;
