//! Recognises files that are not Weald images by their first bytes, so that a message can name
//! their format.

use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use weald_format::container::SUPERBLOCK_MAGIC;
use weald_format::{ByteOffset, Error, ErrorKind};
use weald_image::{Image, ImageStart, OpenOptions};
use weald_io::ReadAt;
use weald_remote::{Location, RemoteSource};
use weald_vfs::error_text::plain;

/// A format: offset of its magic number, the magic number, and the format's name with an article.
type Magic = (usize, &'static [u8], &'static str);

/// # Source
/// magic(5) of file 5.45; the formats' own documents.
const MAGICS: &[Magic] = &[
    (0, b"hsqs", SQUASHFS),
    (0, b"DWARFS", "a DwarFS image"),
    (1024, b"\xe2\xe1\xf5\xe0", EROFS),
    (0, b"\x45\x3d\xcd\x28", "a cramfs image"),
    (0x8001, b"CD001", "an ISO 9660 image"),
    (0x438, b"\x53\xef", "an ext2, ext3 or ext4 file system"),
    (0, b"XFSB", "an XFS file system"),
    (0x10040, b"_BHRfS_M", "a btrfs file system"),
    (257, b"ustar", TAR),
    (0, b"070701", CPIO),
    (0, b"070702", CPIO),
    (0, b"\x1f\x8b", "gzip data"),
    (0, b"\xfd7zXZ\0", "xz data"),
    (0, b"\x28\xb5\x2f\xfd", "zstd data"),
    (0, b"\x04\x22\x4d\x18", "lz4 data"),
    (0, b"BZh", "bzip2 data"),
    (0, b"PK\x03\x04", ZIP),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (0, b"\x7fELF", "an ELF program"),
    (0, b"#!", "a script"),
    (0, b"<!DOCTYPE html", "a page of HTML"),
    (0, b"<!doctype html", "a page of HTML"),
    (0, b"<html", "a page of HTML"),
];

const TAR: &str = "a tar archive";
const CPIO: &str = "a cpio archive";
const ZIP: &str = "a zip archive";
const EROFS: &str = "an EROFS image";
const SQUASHFS: &str = "a SquashFS image";

/// Formats whose tree `weald build` packs.
const TREES: &[&str] = &[TAR, CPIO, ZIP, EROFS, SQUASHFS];

/// Formats that may contain a tar or cpio archive.
const COMPRESSED: &[&str] = &["gzip data", "xz data", "zstd data"];

/// Number of bytes to read so that every magic number is included.
const FRONT_LEN: usize = 0x10040 + 8;

/// Number of bytes of an unknown file that a message shows.
const SHOWN_LEN: usize = 8;

/// Error for a file that is not an image. It wraps the error of the reader.
#[derive(Debug)]
pub struct Foreign {
    text: String,
    cause: Error,
}

impl Foreign {
    /// The error of the reader.
    pub fn cause(&self) -> &Error {
        &self.cause
    }
}

impl fmt::Display for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

// There is no `source()`: its text would repeat this one in technical words. `-v` shows it.
impl std::error::Error for Foreign {}

/// Converts the error of opening the image at `path` to one that names the format of the file, if
/// the file has another format.
pub fn explain(path: &Path, start: ImageStart, error: Error) -> anyhow::Error {
    // A server that fails once is not asked again.
    let is_of_content = match error.kind() {
        ErrorKind::Corrupt => true,
        ErrorKind::Io => !weald_remote::is_url(path),
        _ => false,
    };
    let what = match start {
        _ if !is_of_content => None,
        ImageStart::At(_) => describe(path, start),
        ImageStart::Auto => describe_search(&error),
    };
    if path == Path::new("-") && error.kind() == ErrorKind::NotFound {
        let text = "-: an image is read at any place, which a pipe does not allow: name a file";
        return Foreign {
            text: text.to_owned(),
            cause: error,
        }
        .into();
    }
    match what {
        Some(what) => Foreign {
            text: format!("{}: {what}", weald_remote::shown(path)),
            cause: error,
        }
        .into(),
        None => anyhow::Error::from(error).context(weald_remote::shown(path)),
    }
}

/// Message for a search that found no image: the end of the file, where a search begins, is not a
/// footer.
fn describe_search(error: &Error) -> Option<String> {
    let is_damaged = plain(&error.to_string()).contains(": the image is damaged (");
    is_damaged.then(|| "find the image: no image ends where the file ends".into())
}

/// Describes the file at `path` if it is not an image. Returns `None` for images, also damaged
/// ones, and for files that cannot be read.
pub fn describe(path: &Path, start: ImageStart) -> Option<String> {
    let ImageStart::At(offset) = start else {
        return None;
    };
    if let Some(location) = Location::parse(path) {
        let source = RemoteSource::open(&location.ok()?).ok()?;
        let len = source.len().saturating_sub(offset.0).min(FRONT_LEN as u64);
        let mut front = vec![0; len as usize];
        source.read_exact_at(&mut front, offset.0).ok()?;
        return describe_start(&front, offset);
    }
    let file = File::open(path).ok()?;
    let metadata = file.metadata().ok()?;
    if metadata.is_dir() && weald_store::is_store(path) {
        let store = path.display();
        return Some(format!(
            "a store of images, not an image: {store}:NAME names an image of it, 'weald store ls \
             {store}' lists them, 'weald store info' and 'weald store check' are about the store"
        ));
    }
    if metadata.is_dir() {
        return Some(
            "a directory, not a Weald image; \"weald build DIR IMAGE\" packs directories".into(),
        );
    }
    let mut front = vec![0; FRONT_LEN];
    let len = read_front(&file, offset.0, &mut front)?;
    front.truncate(len);
    let mut text = describe_start(&front, offset)?;
    if metadata.is_file() && offset.0 == 0 && ends_with_image(path) {
        text.push_str("; an image ends where the file ends: --offset auto reads it");
    }
    Some(text)
}

/// Whether the end of a file is that of an image.
fn ends_with_image(path: &Path) -> bool {
    Image::open_path(path, ImageStart::Auto, &OpenOptions::default()).is_ok()
}

/// Refuses arguments that were swapped: `image` is a directory, and `other` an image file. `usage`
/// is how the command is called.
pub fn refuse_swapped(image: &Path, other: &Path, usage: &str) -> anyhow::Result<()> {
    let is_image = |path: &Path| {
        let mut front = [0; SUPERBLOCK_MAGIC.len()];
        let read = weald_io::open_to_read(path).ok();
        read.is_some_and(|file| file.read_exact_at(&mut front, 0).is_ok())
            && front == SUPERBLOCK_MAGIC
    };
    if image.is_dir() && !weald_store::is_store(image) && is_image(other) {
        anyhow::bail!(
            "{} is a directory and {} an image: the arguments are the other way round: '{usage}'",
            weald_remote::shown(image),
            weald_remote::shown(other)
        );
    }
    Ok(())
}

/// As [`describe`], of the bytes `front` at `offset`.
fn describe_start(front: &[u8], offset: ByteOffset) -> Option<String> {
    if front.is_empty() && offset.0 == 0 {
        return Some("not a Weald image: the file is empty".into());
    }
    let begins = |magic: &[u8]| front.starts_with(magic.get(..front.len()).unwrap_or(magic));
    if front.is_empty() || begins(&SUPERBLOCK_MAGIC) {
        return None;
    }
    Some(format!("not a Weald image ({})", describe_front(front)))
}

fn read_front(file: &File, offset: u64, front: &mut [u8]) -> Option<usize> {
    let mut len = 0;
    while len < front.len() {
        match file
            .read_at(front.get_mut(len..)?, offset + len as u64)
            .ok()?
        {
            0 => break,
            count => len += count,
        }
    }
    Some(len)
}

fn describe_front(front: &[u8]) -> String {
    let is = |(at, magic, _): &&Magic| front.get(*at..).is_some_and(|rest| rest.starts_with(magic));
    let begin = front.get(..SHOWN_LEN).unwrap_or(front);
    let Some(&(at, magic, name)) = MAGICS.iter().find(is) else {
        return if begin.iter().all(|&byte| byte == 0) {
            "it begins with zero bytes".into()
        } else {
            format!("it begins with \"{}\"", begin.escape_ascii())
        };
    };
    let mut text = match at {
        0 => format!("it begins with \"{}\": {name}", magic.escape_ascii()),
        _ => format!("it is {name}"),
    };
    if TREES.contains(&name) {
        text.push_str("; \"weald build FILE IMAGE\" packs its tree");
    }
    if COMPRESSED.contains(&name) {
        text.push_str("; \"weald build FILE IMAGE\" packs archives of tar and cpio in it");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch: a magic number outside the bytes that are read, or one that an earlier format
    /// in the list hides.
    #[test]
    fn every_format_is_recognised() {
        for &(at, magic, name) in MAGICS {
            let mut front = vec![0; FRONT_LEN];
            front[at..at + magic.len()].copy_from_slice(magic);
            let text = describe_front(&front);
            assert!(text.contains(name), "{name}: {text}");
        }
        assert_eq!(describe_front(b"abc\n"), "it begins with \"abc\\n\"");
    }
}
