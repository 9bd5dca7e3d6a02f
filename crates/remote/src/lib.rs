//! Images by URL: objects of web servers and buckets as the storage of an image.
#![forbid(unsafe_code)]

mod chunks;
mod client;
mod disk_cache;
mod failure;
mod location;
mod object;
mod profile;
mod publish;
mod read_ahead;
mod settings;
mod source;

pub use location::{Location, Place, is_url, shown, without_secrets};
pub use publish::{find, publish};
pub use settings::{CacheSettings, Settings, TIMEOUT_DEFAULT, configure, settings};
pub use source::RemoteSource;
