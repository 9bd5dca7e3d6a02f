//! Options about images by URL. Every command takes them: which of its arguments are URLs, the
//! library decides.

use anyhow::{Context, Result, bail};
use clap::{Args, ValueHint};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;
use weald_format::ByteLen;
use weald_fuse::UrlOptions;
use weald_remote::{CacheSettings, Settings, TIMEOUT_DEFAULT, configure, settings};

/// Heading of the options in the help.
const URLS: &str = "Images by URL";

/// Smallest cache in bytes: a few chunks for each of a few readers.
const CACHE_LEN_MIN: u64 = 16 << 20;

/// Variables of the environment with the same meaning as the options.
const CACHE_VARIABLE: &str = "WEALD_URL_CACHE";
const TIMEOUT_VARIABLE: &str = "WEALD_URL_TIMEOUT";

/// Options about images by URL.
#[derive(Args, Debug, Default, Clone)]
pub struct UrlArgs {
    /// Keep what is read by URL in this directory, at most SIZE (default: $WEALD_URL_CACHE, or
    /// nothing is kept)
    #[arg(
        long,
        global = true,
        value_name = "DIR,SIZE",
        value_hint = ValueHint::DirPath,
        hide_short_help = true,
        help_heading = URLS
    )]
    url_cache: Option<OsString>,
    /// How long a read waits for a server, such as 10s or 5m (default: $WEALD_URL_TIMEOUT, or 30s)
    #[arg(
        long,
        global = true,
        value_name = "TIME",
        value_parser = crate::parse::seconds,
        hide_short_help = true,
        help_heading = URLS
    )]
    url_timeout: Option<u64>,
}

impl UrlArgs {
    /// Sets how this process reads URLs.
    ///
    /// # Errors
    /// A variable of the environment, or an option, that cannot be used.
    pub fn apply(&self) -> Result<()> {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let cache = match (&self.url_cache, variable(CACHE_VARIABLE)) {
            (Some(word), _) => Some(parse_cache(word).context("--url-cache")?),
            (None, Some(word)) => Some(parse_cache(&word).context(CACHE_VARIABLE)?),
            (None, None) => None,
        };
        let timeout = match (self.url_timeout, variable(TIMEOUT_VARIABLE)) {
            (Some(seconds), _) => Duration::from_secs(seconds),
            (None, Some(word)) => {
                let parsed = crate::parse::seconds(&word.to_string_lossy());
                let parsed = parsed.map_err(anyhow::Error::msg).context(TIMEOUT_VARIABLE);
                Duration::from_secs(parsed?)
            }
            (None, None) => TIMEOUT_DEFAULT,
        };
        configure(Settings { timeout, cache });
        Ok(())
    }
}

/// The words by which another process of this program gets the same settings.
pub fn words() -> Vec<OsString> {
    let settings = settings();
    let timeout = format!("{}s", settings.timeout.as_secs());
    let mut words = vec!["--url-timeout".into(), timeout.into()];
    if let Some(cache) = settings.cache {
        let mut word = cache.dir.into_os_string();
        word.push(format!(",{}", cache.len_max.0));
        words.extend(["--url-cache".into(), word]);
    }
    words
}

/// Sets what the words after `-o` of a mount say instead of the options and the environment.
///
/// # Errors
/// Words for a mount that reads no URL; a directory without a size, or the reverse; a small cache.
pub fn apply_options(image: &Path, words: &UrlOptions) -> Result<()> {
    if words.is_empty() {
        return Ok(());
    }
    if !weald_remote::is_url(image) {
        bail!("options urlcache, urlcachesize and urltimeout are for images by URL");
    }
    let mut settings = settings();
    settings.cache = match (&words.cache, words.cache_len) {
        (Some(dir), Some(len_max)) => Some(cache_settings(dir, len_max)?),
        (None, None) => settings.cache,
        _ => bail!("options urlcache=DIR and urlcachesize=SIZE go together"),
    };
    settings.timeout = words.timeout.unwrap_or(settings.timeout);
    configure(settings);
    Ok(())
}

/// DIR,SIZE.
fn parse_cache(word: &OsStr) -> Result<CacheSettings> {
    let bytes = word.as_bytes();
    let comma = bytes.iter().rposition(|byte| *byte == b',');
    let comma = comma.filter(|comma| *comma > 0);
    let comma = comma.context("expected DIR,SIZE, such as /var/cache/weald-url,10G")?;
    let (dir, size) = bytes.split_at(comma);
    let size = String::from_utf8_lossy(size.get(1..).unwrap_or_default());
    let len = crate::parse::size(&size).map_err(anyhow::Error::msg)?;
    cache_settings(Path::new(OsStr::from_bytes(dir)), ByteLen(len))
}

/// The directory becomes absolute: servers work elsewhere.
fn cache_settings(dir: &Path, len_max: ByteLen) -> Result<CacheSettings> {
    if len_max.0 < CACHE_LEN_MIN {
        bail!("expected a size of 16M or more");
    }
    let dir = std::path::absolute(dir)?;
    Ok(CacheSettings { dir, len_max })
}
