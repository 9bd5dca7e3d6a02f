//! What the commands and servers of a process share: how long they wait, and their cache on disk.

use parking_lot::RwLock;
use std::path::PathBuf;
use std::time::Duration;
use weald_format::ByteLen;

/// How long a read waits for a server, if nothing else is said.
pub const TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);

/// A directory for copies of what was fetched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheSettings {
    /// The directory; it is made if it is missing.
    pub dir: PathBuf,
    /// Most bytes of copies in it.
    pub len_max: ByteLen,
}

/// How the process reads URLs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// How long a read waits for a server before it fails.
    pub timeout: Duration,
    /// The cache on disk, if any.
    pub cache: Option<CacheSettings>,
}

static SETTINGS: RwLock<Settings> = RwLock::new(Settings {
    timeout: TIMEOUT_DEFAULT,
    cache: None,
});

/// Sets how this process reads URLs that it opens from now on. The program calls it once: images
/// are opened in many places, base images among them, and all of them share cache and connections.
pub fn configure(settings: Settings) {
    *SETTINGS.write() = settings;
}

/// How this process reads URLs.
pub fn settings() -> Settings {
    SETTINGS.read().clone()
}
