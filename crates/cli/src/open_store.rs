//! The store that a command line names, by its directory or by `STORE:NAME`, and how commands open
//! it.

use anyhow::bail;
use clap::{Args, ValueHint};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use weald_format::ErrorKind;
use weald_store::{Store, StoreLocation};
use weald_vfs::shown;

/// A store on disk.
#[derive(Args, Debug)]
pub struct StoreDir {
    /// Directory of the store
    #[arg(value_name = "STORE", value_hint = ValueHint::DirPath)]
    pub store: PathBuf,
}

/// `path` in messages.
pub fn show_path(path: &Path) -> String {
    shown(path.as_os_str().as_bytes())
}

/// Opens the store at `path`.
pub fn open(path: &Path) -> anyhow::Result<Store> {
    if let Some((store, _)) = weald_store::split(path) {
        bail!(
            "{}: names one image; this command takes the whole store, {}",
            show_path(path),
            show_path(&store)
        );
    }
    open_dir(path)
}

/// As [`open`], for a path that is not STORE:NAME.
pub fn open_dir(path: &Path) -> anyhow::Result<Store> {
    let words = show_path(path);
    match StoreLocation::from(path).open() {
        Err(_) if path.is_file() => {
            bail!("{words}: a file, and a store is a directory: 'weald store create' makes one")
        }
        Err(error) if error.kind() == ErrorKind::NotFound && path.is_dir() => {
            bail!("{words}: this directory is no store: it has no file called 'store'")
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            bail!("{words}: no store is here: 'weald store create {words}' makes one")
        }
        other => Ok(other?),
    }
}

/// Opens the store of `STORE:NAME`; returns it with the name.
pub fn open_named(path: &Path) -> anyhow::Result<(Store, String)> {
    if let Some((store, name)) = weald_store::split(path) {
        return Ok((open_dir(&store)?, name));
    }
    let words = show_path(path);
    if weald_store::is_store(path) {
        bail!("{words}: names a store: add the image, as in {words}:NAME");
    }
    let text = path.as_os_str().as_bytes();
    if let Some(at) = text.iter().rposition(|&byte| byte == b':') {
        let store = std::ffi::OsStr::from_bytes(text.get(..at).unwrap_or_default());
        open_dir(Path::new(store))?;
    }
    bail!("{words}: expected STORE:NAME, with the directory of a store before the colon")
}

/// The store of a new image, and the name that `path` gives it, if it is `STORE:NAME`, or `option`,
/// the value of `--name`. Two different names are refused.
pub fn new_image_at(
    path: &Path,
    option: Option<&str>,
) -> anyhow::Result<(PathBuf, Option<String>)> {
    let (dir, named) = match weald_store::split(path) {
        Some((dir, name)) => (dir, Some(name)),
        None => (path.to_owned(), None),
    };
    match (option, named) {
        (Some(option), Some(named)) if option != named => bail!(
            "the new image has two names, {named} in STORE:NAME and {option} in --name: leave one \
             out"
        ),
        (option, named) => Ok((dir, option.map(str::to_owned).or(named))),
    }
}

/// A panic of the metadata engine is an error about its file, which says what to do.
pub fn silence_engine() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let place = info.location().map(std::panic::Location::file);
        if !place.is_some_and(|file| file.contains("/redb-")) {
            usual(info);
        }
    }));
}
