//! Names of trees: `IMAGE@2` is a generation of an image, `IMAGE:/DIR` a directory in it, and
//! `STORE:NAME/DIR` one in an image or a volume of a store.

use super::generations::generations;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use weald_format::{Digest, Error, Result};

/// Fewest digits of a digest that name a generation: the numbers of generations are shorter.
const DIGEST_DIGITS_MIN: usize = 7;

/// A tree, or a directory in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreePlace {
    /// The image file, `STORE:NAME` or URL.
    pub image: PathBuf,
    /// Which generation of the image, if the name says so.
    pub generation: Option<Named>,
    /// The path in the tree, empty for its root.
    pub path: OsString,
}

/// How a name tells a generation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Named {
    /// By its number.
    Number(u64),
    /// By the first digits of its image digest.
    Digest(String),
}

impl TreePlace {
    /// Takes `path` apart. What exists under the whole name comes first, so that every name keeps
    /// the meaning that it had.
    pub fn parse(path: &Path) -> Self {
        let whole = |image: &Path| Self {
            image: image.to_owned(),
            generation: None,
            path: OsString::new(),
        };
        if path.symlink_metadata().is_ok() {
            return whole(path);
        }
        let (image, inside) = split_path(path);
        let (image, generation) = split_generation(&image);
        Self {
            generation,
            path: inside,
            ..whole(&image)
        }
    }

    /// The generation to open, if the name tells one.
    ///
    /// # Errors
    /// `NotFound` if no generation has a digest that begins so, `Invalid` if several have; as
    /// [`generations`].
    pub fn generation(&self) -> Result<Option<u64>> {
        let digits = match &self.generation {
            None => return Ok(None),
            Some(Named::Number(number)) => return Ok(Some(*number)),
            Some(Named::Digest(digits)) => digits,
        };
        let begins = |digest: Digest| digest.to_string().starts_with(digits.as_str());
        let all = generations(&self.image)?;
        let mut found = all.iter().filter(|found| begins(found.image_digest));
        let shown = weald_remote::shown(&self.image);
        match (found.next(), found.next()) {
            (Some(one), None) => Ok(Some(one.number)),
            (None, _) => Err(Error::not_found(format!(
                "{shown}: no generation has an image digest that begins with {digits}: 'weald \
                 generations {shown}' lists them"
            ))),
            _ => Err(Error::invalid(format!(
                "{shown}: several generations have digests that begin with {digits}"
            ))),
        }
    }

    /// `path`, which is relative to this place, as a path in the tree.
    pub fn join(&self, path: &OsStr) -> OsString {
        if self.path.is_empty() {
            return path.to_owned();
        }
        let mut joined = self.path.clone();
        if !path.is_empty() {
            joined.push("/");
            joined.push(path);
        }
        joined
    }
}

/// Splits a path in a tree from the name of the tree.
fn split_path(path: &Path) -> (PathBuf, OsString) {
    let bytes = path.as_os_str().as_bytes();
    let whole = || (path.to_owned(), OsString::new());
    let cut = |end: usize, from: usize| {
        let (image, inside) = (bytes.get(..end)?, bytes.get(from..)?);
        let image = PathBuf::from(OsStr::from_bytes(image));
        Some((image, OsStr::from_bytes(inside).to_owned()))
    };
    if weald_remote::is_url(path) {
        let scheme_len = find(bytes, b"://", 0).map_or(0, |at| at.saturating_add(3));
        let colon = find(bytes, b":/", scheme_len);
        let found = colon.and_then(|colon| cut(colon, colon.saturating_add(1)));
        return found.unwrap_or_else(whole);
    }
    // A name in a store has no slash, so that the first one begins a path.
    if let Some((store, name)) = weald_store::split(path)
        && let Some(slash) = name.bytes().position(|byte| byte == b'/')
        && slash > 0
    {
        let before = store.as_os_str().len().saturating_add(slash);
        // STORE:NAME:/DIR is accepted as well as STORE:NAME/DIR.
        let is_twice = bytes.get(before) == Some(&b':');
        let from = before.saturating_add(1);
        let end = if is_twice { before } else { from };
        return cut(end, from).unwrap_or_else(whole);
    }
    let mut start = 0;
    while let Some(end) = find(bytes, b":/", start) {
        start = end.saturating_add(1);
        if let Some((image, inside)) = cut(end, start)
            && split_generation(&image).0.is_file()
        {
            return (image, inside);
        }
    }
    whole()
}

/// Splits a generation from the name of an image.
fn split_generation(path: &Path) -> (PathBuf, Option<Named>) {
    let plain = || (path.to_owned(), None);
    if path.symlink_metadata().is_ok() || weald_remote::is_url(path) {
        return plain();
    }
    let bytes = path.as_os_str().as_bytes();
    let mut parts = bytes.rsplitn(2, |byte| *byte == b'@');
    let (Some(generation), Some(image)) = (parts.next(), parts.next()) else {
        return plain();
    };
    let Some(named) = std::str::from_utf8(generation).ok().and_then(named) else {
        return plain();
    };
    let image = Path::new(OsStr::from_bytes(image));
    if image.is_file() || is_image_of_store(image) && !is_image_of_store(path) {
        (image.to_owned(), Some(named))
    } else {
        plain()
    }
}

/// Whether `path` is STORE:NAME of an image. (NAME@STATE of a volume is a snapshot.)
fn is_image_of_store(path: &Path) -> bool {
    let names = |store: &Path| weald_store::StoreLocation::from(store).open()?.names();
    weald_store::split(path)
        .is_some_and(|(store, name)| names(&store).is_ok_and(|names| names.contains(&name)))
}

fn named(text: &str) -> Option<Named> {
    let is_hex = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
    let number = Some(text).filter(|text| text.bytes().all(|c| c.is_ascii_digit()));
    let number = number.filter(|text| text.len() < DIGEST_DIGITS_MIN);
    if let Some(number) = number.and_then(|text| text.parse().ok()) {
        return Some(Named::Number(number));
    }
    let is_digest = (DIGEST_DIGITS_MIN..=64).contains(&text.len()) && text.bytes().all(is_hex);
    is_digest.then(|| Named::Digest(text.to_owned()))
}

/// Where `part` stands in `text`, from byte `start` on.
fn find(text: &[u8], part: &[u8], start: usize) -> Option<usize> {
    let mut windows = text.get(start..)?.windows(part.len());
    let found = windows.position(|window| window == part)?;
    found.checked_add(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch: a file whose whole name means something else, a path that is split at the wrong
    /// place, a URL of which the scheme or a port is taken for a path.
    #[test]
    fn places_are_taken_apart_unless_a_file_has_the_whole_name() {
        let scratch = tempfile::tempdir().expect("temporary directory");
        let at = |name: &str| scratch.path().join(name);
        for name in ["image", "image@2", "a:b"] {
            std::fs::write(at(name), "").expect("write");
        }
        std::fs::create_dir_all(at("dir:/deep")).expect("mkdir");
        let number = |number| Some(Named::Number(number));
        let digest = |text: &str| Some(Named::Digest(text.to_owned()));
        for (text, image, generation, path) in [
            ("image", "image", None, ""),
            ("image@2", "image@2", None, ""),
            ("image@3", "image", number(3), ""),
            ("image@0123abc", "image", digest("0123abc"), ""),
            ("image@1234567", "image", digest("1234567"), ""),
            ("image@", "image@", None, ""),
            ("image@3x", "image@3x", None, ""),
            ("image:/", "image", None, "/"),
            ("image:/usr/a:/b", "image", None, "/usr/a:/b"),
            ("image@3:/usr", "image", number(3), "/usr"),
            ("image@2:/usr", "image@2", None, "/usr"),
            ("a:b:/usr", "a:b", None, "/usr"),
            ("gone:/usr", "gone:/usr", None, ""),
            ("gone@3", "gone@3", None, ""),
            ("dir:/deep", "dir:/deep", None, ""),
            ("dir:/gone", "dir:/gone", None, ""),
        ] {
            let place = TreePlace::parse(&at(text));
            let wanted = TreePlace {
                image: at(image),
                generation,
                path: path.into(),
            };
            assert_eq!(place, wanted, "{text}");
        }
        for (text, image, path) in [
            ("https://host:81/a@2", "https://host:81/a@2", ""),
            ("https://host:81/a:/usr", "https://host:81/a", "/usr"),
            (
                "s3://b/store:name:/usr/lib",
                "s3://b/store:name",
                "/usr/lib",
            ),
        ] {
            let place = TreePlace::parse(Path::new(text));
            assert_eq!(place.image, Path::new(image), "{text}");
            assert_eq!(place.path, path, "{text}");
        }
        let place = TreePlace::parse(&at("image:/usr"));
        assert_eq!(place.join(OsStr::new("lib/a")), "/usr/lib/a");
        assert_eq!(place.join(OsStr::new("")), "/usr");
    }
}
