//! `find --printf`: the directives of find(1) for which an image has data.

use crate::entry::mode_letters;
use std::io::Write;
use weald_format::{FileKind, Result};
use weald_image::{Image, Inode};

/// A parsed format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Format(Vec<Piece>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Text(Vec<u8>),
    Field(Field),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Path,
    Name,
    Parent,
    Kind,
    Size,
    Permissions,
    Letters,
    Uid,
    Gid,
    Links,
    Ino,
    Depth,
    Target,
    Mtime,
}

/// The entry to print.
pub struct Entry<'a> {
    /// Path from the root of the image; "." is the root.
    pub path: &'a [u8],
    /// Inode of the entry.
    pub inode: &'a Inode,
    /// Depth below the start of the search.
    pub depth: usize,
}

impl Format {
    /// Parses a format. The error text describes the first mistake.
    pub fn parse(text: &[u8]) -> std::result::Result<Self, String> {
        let mut pieces = Vec::new();
        let mut plain = Vec::new();
        let mut rest = text.iter().copied();
        while let Some(byte) = rest.next() {
            match byte {
                b'\\' => plain.push(escaped(rest.next())?),
                b'%' => match field(&mut rest)? {
                    Some(field) => {
                        pieces.push(Piece::Text(std::mem::take(&mut plain)));
                        pieces.push(Piece::Field(field));
                    }
                    None => plain.push(b'%'),
                },
                other => plain.push(other),
            }
        }
        pieces.push(Piece::Text(plain));
        pieces.retain(|piece| *piece != Piece::Text(Vec::new()));
        Ok(Self(pieces))
    }

    /// Prints `entry`. `is_terminal` escapes control characters in names; the text of the format
    /// itself is printed unchanged.
    ///
    /// # Errors
    /// The errors of `out`, and errors of reading the target of a symlink.
    pub fn print(
        &self,
        image: &Image,
        entry: &Entry,
        is_terminal: bool,
        out: &mut impl Write,
    ) -> anyhow::Result<()> {
        let mut name = Vec::new();
        for piece in &self.0 {
            match piece {
                Piece::Text(text) => out.write_all(text)?,
                Piece::Field(field) if is_terminal => {
                    name.clear();
                    field.print(image, entry, &mut name)?;
                    out.write_all(weald_vfs::shown(&name).as_bytes())?;
                }
                Piece::Field(field) => field.print(image, entry, out)?,
            }
        }
        Ok(())
    }
}

impl Field {
    fn print(self, image: &Image, entry: &Entry, out: &mut impl Write) -> anyhow::Result<()> {
        let Entry { path, inode, depth } = *entry;
        let attributes = &inode.attributes;
        let slash = path.iter().rposition(|&b| b == b'/');
        match self {
            Self::Path => out.write_all(path)?,
            Self::Name => out.write_all(&path[slash.map_or(0, |at| at + 1)..])?,
            Self::Parent => out.write_all(slash.map_or(b".", |at| &path[..at]))?,
            Self::Kind => out.write_all(&[kind_letter(inode.kind)])?,
            Self::Size => write!(out, "{}", inode.size)?,
            Self::Permissions => write!(out, "{:o}", attributes.permissions)?,
            Self::Letters => write!(out, "{}", mode_letters(inode))?,
            Self::Uid => write!(out, "{}", attributes.uid)?,
            Self::Gid => write!(out, "{}", attributes.gid)?,
            Self::Links => write!(out, "{}", inode.nlink)?,
            Self::Ino => write!(out, "{}", inode.ino.0)?,
            Self::Depth => write!(out, "{depth}")?,
            // Ten digits, as in find(1).
            Self::Mtime => {
                let time = inode.times.mtime;
                let all = i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanoseconds);
                let sign = if all < 0 { "-" } else { "" };
                let all = all.unsigned_abs();
                write!(
                    out,
                    "{sign}{}.{:09}0",
                    all / 1_000_000_000,
                    all % 1_000_000_000
                )?;
            }
            Self::Target => out.write_all(&target(image, inode)?)?,
        }
        Ok(())
    }
}

fn target(image: &Image, inode: &Inode) -> Result<Vec<u8>> {
    match inode.kind {
        FileKind::Symlink => image.read_link(inode),
        _ => Ok(Vec::new()),
    }
}

/// File type as the letter that `--type` accepts.
const fn kind_letter(kind: FileKind) -> u8 {
    match kind {
        FileKind::Directory => b'd',
        FileKind::Regular => b'f',
        FileKind::Symlink => b'l',
        FileKind::CharDevice => b'c',
        FileKind::BlockDevice => b'b',
        FileKind::Fifo => b'p',
        FileKind::Socket => b's',
    }
}

fn escaped(byte: Option<u8>) -> std::result::Result<u8, String> {
    Ok(match byte {
        Some(b'n') => b'\n',
        Some(b't') => b'\t',
        Some(b'r') => b'\r',
        Some(b'0') => 0,
        Some(b'\\') => b'\\',
        other => {
            return Err(format!(
                "expected \\n, \\t, \\r, \\0 or \\\\, found \\{}",
                shown(other)
            ));
        }
    })
}

/// Parses the directive after a '%'; `None` for a second '%'.
fn field(rest: &mut impl Iterator<Item = u8>) -> std::result::Result<Option<Field>, String> {
    let byte = rest.next();
    Ok(Some(match byte {
        Some(b'%') => return Ok(None),
        Some(b'p') => Field::Path,
        Some(b'f') => Field::Name,
        Some(b'h') => Field::Parent,
        Some(b'y') => Field::Kind,
        Some(b's') => Field::Size,
        Some(b'm') => Field::Permissions,
        Some(b'M') => Field::Letters,
        Some(b'U') => Field::Uid,
        Some(b'G') => Field::Gid,
        Some(b'n') => Field::Links,
        Some(b'i') => Field::Ino,
        Some(b'd') => Field::Depth,
        Some(b'l') => Field::Target,
        Some(b'T') if rest.next() == Some(b'@') => Field::Mtime,
        other => {
            let all = "%p %f %h %y %s %m %M %U %G %n %i %d %l %T@ or %%";
            return Err(format!("expected one of {all}, found %{}", shown(other)));
        }
    }))
}

fn shown(byte: Option<u8>) -> String {
    byte.map_or_else(|| "the end".into(), |b| weald_vfs::shown(&[b]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_read_or_refused() {
        let text = |text: &str| Piece::Text(text.into());
        let parsed = Format::parse(b"%p\\t100%% %T@\\n").unwrap();
        let expected = [
            Piece::Field(Field::Path),
            text("\t100% "),
            Piece::Field(Field::Mtime),
            text("\n"),
        ];
        assert_eq!(parsed.0, expected);
        assert_eq!(Format::parse(b"").unwrap().0, []);
        for wrong in [&b"%"[..], b"%q", b"%T", b"%Tx", b"\\", b"\\x"] {
            assert!(Format::parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
