//! Writes an image, or a selection of it, as lines of text: a description of mtree(5), or a listing
//! as `unsquashfs -llnumeric` prints it. The same input gives the same bytes.
//!
//! A description has type, mode, owners, time, size, link count, target and device of each entry;
//! a listing the same without the link count and parts of a minute.

use crate::extract::ExtractObserver;
use std::io::Write;
use weald_filter::AttributeChoice;
use weald_format::{Error, FileKind, Result};
use weald_image::{Image, Inode};
use weald_vfs::{
    Choice, Event, Located, SelectedWalk, Unmatched, mode_letters, shown, utc_seconds,
};

/// Characters that owners, a blank and a number take in a listing.
const OWNER_SIZE_LEN: usize = 25;

/// Form of the lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineFormat {
    /// mtree(5), with full paths.
    Mtree,
    /// As `unsquashfs -llnumeric`; names are escaped if they go to a terminal.
    Listing {
        /// Whether they do.
        is_terminal: bool,
    },
}

/// Result of writing lines.
#[derive(Debug, Clone, Default)]
pub struct LinesReport {
    /// Problems reported to the observer.
    pub problem_count: u64,
    /// What selected nothing.
    pub unmatched: Unmatched,
}

/// Writes a line for each chosen entry of `image` to `output`, with the ids that `attributes` gives
/// it. Paths begin at the directory `root`.
///
/// # Errors
/// Those of `output`; `Invalid` "interrupted" if the observer cancels. An entry that cannot be read
/// is left out and reported to `observer`.
pub fn write_lines(
    image: &Image,
    root: Inode,
    (choice, attributes): (&Choice, &AttributeChoice),
    format: LineFormat,
    output: &mut dyn Write,
    observer: &dyn ExtractObserver,
) -> Result<LinesReport> {
    let start = Located {
        path: Vec::new(),
        inode: root,
    };
    let put = |output: &mut dyn Write, bytes: &[u8]| {
        let written = output.write_all(bytes);
        written.map_err(|error| Error::io("lines", error))
    };
    if format == LineFormat::Mtree {
        put(output, b"#mtree\n")?;
    }
    let mut walk = SelectedWalk::new(image, start, choice);
    let mut report = LinesReport::default();
    loop {
        let line = match walk.step() {
            Ok(None) => break,
            Ok(Some(Event::Leave)) => Ok(Vec::new()),
            Ok(Some(Event::Enter(mut visit))) => {
                visit.inode.attributes = attributes.attributes_of(visit.inode.attributes);
                line(image, format, walk.shortened_path(), &visit.inode)
            }
            Err(error) => Err(error),
        };
        match line {
            Ok(line) => put(output, &line)?,
            Err(error) => {
                report.problem_count += 1;
                observer.problem(walk.path(), &error);
            }
        }
        if observer.is_cancelled() {
            return Err(Error::invalid("interrupted"));
        }
    }
    report.unmatched = walk.unmatched();
    Ok(report)
}

fn line(image: &Image, format: LineFormat, path: &[u8], inode: &Inode) -> Result<Vec<u8>> {
    let target = match inode.kind {
        FileKind::Symlink => Some(image.read_link(inode)?),
        _ => None,
    };
    let target = target.as_deref();
    Ok(match format {
        LineFormat::Mtree => mtree_line(path, inode, target).into_bytes(),
        LineFormat::Listing { is_terminal } => listing_line(path, inode, target, is_terminal),
    })
}

fn device_of(inode: &Inode) -> (u64, u64) {
    let rdev = inode.attributes.rdev;
    (rdev >> 32, rdev & u64::from(u32::MAX))
}

fn mtree_line(path: &[u8], inode: &Inode, target: Option<&[u8]>) -> String {
    let name = if path.is_empty() {
        ".".to_owned()
    } else {
        format!("./{}", vis(path))
    };
    let kind = match inode.kind {
        FileKind::Regular => "file",
        FileKind::Directory => "dir",
        FileKind::Symlink => "link",
        FileKind::CharDevice => "char",
        FileKind::BlockDevice => "block",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
    };
    let attributes = &inode.attributes;
    let mtime = inode.times.mtime;
    let mut line = format!(
        "{name} type={kind} mode={:04o} uid={} gid={} time={}.{:09}",
        attributes.permissions, attributes.uid, attributes.gid, mtime.seconds, mtime.nanoseconds
    );
    if inode.kind == FileKind::Regular {
        line += &format!(" size={}", inode.size.0);
    }
    if inode.kind != FileKind::Directory {
        line += &format!(" nlink={}", inode.nlink);
    }
    if let Some(target) = target {
        line += &format!(" link={}", vis(target));
    }
    if inode.kind.is_device() {
        let (major, minor) = device_of(inode);
        line += &format!(" device=native,{major},{minor}");
    }
    line + "\n"
}

/// A path in the escapes of vis(3): three octal digits for everything but plain characters.
fn vis(path: &[u8]) -> String {
    path.iter()
        .map(|&byte| match byte {
            b'\\' | b'#' | b'*' | b'?' | b'[' | b'=' => format!("\\{byte:03o}"),
            byte if byte.is_ascii_graphic() => char::from(byte).to_string(),
            byte => format!("\\{byte:03o}"),
        })
        .collect()
}

fn listing_line(path: &[u8], inode: &Inode, target: Option<&[u8]>, is_terminal: bool) -> Vec<u8> {
    let attributes = &inode.attributes;
    let (uid, gid) = (attributes.uid.to_string(), attributes.gid.to_string());
    let width = OWNER_SIZE_LEN.saturating_sub(uid.len() + gid.len());
    let size = if inode.kind.is_device() {
        let (major, minor) = device_of(inode);
        let device = format!("{major:3},{minor:3}");
        format!("{device:>width$}")
    } else {
        let size = match inode.kind {
            FileKind::Regular | FileKind::Directory => inode.size.0,
            _ => target.map_or(0, |target| target.len() as u64),
        };
        format!("{size:>width$}")
    };
    let letters = mode_letters(inode.kind, attributes.permissions);
    let time = utc_seconds(inode.times.mtime);
    let minutes = time.get(..time.len().saturating_sub(3)).unwrap_or_default();
    let mut line = format!("{letters} {uid}/{gid} {size} {minutes} ").into_bytes();
    let mut put = |name: &[u8]| {
        if is_terminal {
            line.extend_from_slice(shown(name).as_bytes());
        } else {
            line.extend_from_slice(name);
        }
    };
    put(if path.is_empty() { b"." } else { path });
    if let Some(target) = target {
        put(b" -> ");
        put(target);
    }
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_mtree_have_the_escapes_of_vis() {
        assert_eq!(
            vis(b"a b/\xff#=\n\\c"),
            "a\\040b/\\377\\043\\075\\012\\134c"
        );
    }
}
