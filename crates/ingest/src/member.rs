//! One member of a stream, and its encoding as a short record until the tree is written.

use weald_format::cursor::{Cursor, put_varint, unzigzag, zigzag};
use weald_format::pages::{encode_xattrs, parse_xattrs};
use weald_format::{
    Attributes, ContentId, Error, ErrorKind, FileKind, Ids, Result, Timestamp, XattrSet,
    permissions_without_acl,
};

/// Attributes of a directory that the stream does not name.
pub const DIRECTORY_DEFAULT: Attributes = Attributes {
    permissions: 0o755,
    uid: 0,
    gid: 0,
    rdev: 0,
};
/// Attributes of a file in a stream without attributes.
pub const FILE_DEFAULT: Attributes = Attributes {
    permissions: 0o644,
    ..DIRECTORY_DEFAULT
};

/// Kind of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MemberKind {
    /// A name without attributes: a directory if a member lies below it, otherwise an empty file.
    #[default]
    Name,
    /// An entry of this kind.
    Entry(FileKind),
    /// One more name of the file that `target` names.
    HardLink,
}

/// One member of a stream.
#[derive(Debug, Clone, Default)]
pub struct Member {
    /// Path as in the stream.
    pub path: Vec<u8>,
    /// Kind.
    pub kind: MemberKind,
    /// Permissions, owner, device.
    pub attributes: Attributes,
    /// mtime.
    pub mtime: Timestamp,
    /// Extended attributes.
    pub xattrs: XattrSet,
    /// Target of a symlink, or path of a hard link's file.
    pub target: Vec<u8>,
}

impl Member {
    /// Removes the extended attributes. Permissions that an ACL denied stay denied.
    pub fn remove_xattrs(&mut self) {
        let permissions = self.attributes.permissions;
        self.attributes.permissions = permissions_without_acl(permissions, &self.xattrs, Ids::Kept);
        self.xattrs.clear();
    }
}

/// First bytes of the records in the sorter.
mod tag {
    pub const WEAK: u8 = 0;
    pub const REQUEST: u8 = 1;
    pub const NAME: u8 = 2;
    pub const LINK: u8 = 3;
    pub const DIRECTORY: u8 = 4;
    pub const EMPTY: u8 = 5;
    pub const FILE: u8 = 6;
    pub const SYMLINK: u8 = 7;
    pub const CHAR_DEVICE: u8 = 8;
    pub const BLOCK_DEVICE: u8 = 9;
    pub const FIFO: u8 = 10;
    pub const SOCKET: u8 = 11;
    pub const HIDDEN: u8 = 12;
}

/// Record of a directory that a member lies below.
pub const WEAK: [u8; 1] = [tag::WEAK];
/// Record of a name without attributes.
pub const NAME: [u8; 1] = [tag::NAME];

/// Kind of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Record {
    /// A directory that a member lies below.
    Weak,
    /// The link of this number becomes a name of the file at this path.
    Request(u64),
    /// A name without attributes.
    Name,
    /// The link of this number.
    Link(u64),
    /// An entry.
    Entry(FileKind),
    /// An excluded file that a link names. Its own record follows the tag.
    Hidden,
}

/// Appends the request of link `no`, for the path of its target.
pub fn put_request(no: u64, out: &mut Vec<u8>) {
    out.push(tag::REQUEST);
    put_varint(out, no);
}

/// Appends the record of link `no`, for its own path.
pub fn put_link(no: u64, out: &mut Vec<u8>) {
    out.push(tag::LINK);
    put_varint(out, no);
}

/// Appends the record of an entry.
pub fn put_entry(member: &Member, kind: FileKind, content: Option<ContentId>, out: &mut Vec<u8>) {
    out.push(match kind {
        FileKind::Directory => tag::DIRECTORY,
        FileKind::Regular if content.is_none() => tag::EMPTY,
        FileKind::Regular => tag::FILE,
        FileKind::Symlink => tag::SYMLINK,
        FileKind::CharDevice => tag::CHAR_DEVICE,
        FileKind::BlockDevice => tag::BLOCK_DEVICE,
        FileKind::Fifo => tag::FIFO,
        FileKind::Socket => tag::SOCKET,
    });
    let Attributes {
        permissions,
        uid,
        gid,
        rdev,
    } = member.attributes;
    for number in [
        permissions.into(),
        uid.into(),
        gid.into(),
        zigzag(member.mtime.seconds),
        member.mtime.nanoseconds.into(),
    ] {
        put_varint(out, number);
    }
    if kind.is_device() {
        put_varint(out, rdev);
    }
    if let (FileKind::Regular, Some(id)) = (kind, content) {
        put_varint(out, id.0);
    }
    if kind == FileKind::Symlink {
        put_varint(out, member.target.len() as u64);
        out.extend_from_slice(&member.target);
    }
    if !member.xattrs.is_empty() {
        out.extend_from_slice(&encode_xattrs(std::slice::from_ref(&member.xattrs)));
    }
}

/// Appends the record of an excluded file that a link names. `record` is that of the file without
/// contents.
/// Returns the file's mtime.
///
/// # Errors
/// `Io` if `record` is damaged.
pub fn put_hidden(
    record: &[u8],
    content: Option<ContentId>,
    out: &mut Vec<u8>,
) -> Result<Timestamp> {
    let file = parse(record)?;
    let member = Member {
        attributes: file.attributes,
        mtime: file.mtime,
        target: file.target.to_vec(),
        xattrs: file.xattrs,
        ..Member::default()
    };
    out.push(tag::HIDDEN);
    put_entry(&member, file.kind, content, out);
    Ok(file.mtime)
}

/// The kind of a record.
///
/// # Errors
/// `Io` if it has none: the temporary file is damaged.
pub fn kind_of_record(bytes: &[u8]) -> Result<Record> {
    let mut cursor = Cursor::new(bytes, "temporary record");
    Ok(match kind_of(cursor.byte().map_err(damaged)?)? {
        Some(kind) => Record::Entry(kind),
        None => match bytes.first() {
            Some(&tag::WEAK) => Record::Weak,
            Some(&tag::NAME) => Record::Name,
            Some(&tag::LINK) => Record::Link(cursor.varint().map_err(damaged)?),
            Some(&tag::HIDDEN) => Record::Hidden,
            _ => Record::Request(cursor.varint().map_err(damaged)?),
        },
    })
}

fn kind_of(tag: u8) -> Result<Option<FileKind>> {
    Ok(Some(match tag {
        tag::WEAK | tag::REQUEST | tag::NAME | tag::LINK | tag::HIDDEN => return Ok(None),
        tag::DIRECTORY => FileKind::Directory,
        tag::EMPTY | tag::FILE => FileKind::Regular,
        tag::SYMLINK => FileKind::Symlink,
        tag::CHAR_DEVICE => FileKind::CharDevice,
        tag::BLOCK_DEVICE => FileKind::BlockDevice,
        tag::FIFO => FileKind::Fifo,
        tag::SOCKET => FileKind::Socket,
        _ => return Err(damaged(Error::invalid("a record of no kind"))),
    }))
}

/// Error for a temporary file whose bytes have changed.
pub fn damaged(error: Error) -> Error {
    Error::new(ErrorKind::Io, "temporary file").with_source(error)
}

/// An entry of the tree, parsed from its record; byte strings point into the record.
#[derive(Debug, Clone)]
pub struct StoredEntry<'a> {
    /// Kind.
    pub kind: FileKind,
    /// Permissions, owner, device.
    pub attributes: Attributes,
    /// mtime.
    pub mtime: Timestamp,
    /// Content of a regular file that is not empty.
    pub content: Option<ContentId>,
    /// Target of a symlink.
    pub target: &'a [u8],
    /// Extended attributes.
    pub xattrs: XattrSet,
}

/// The entry of a record: an entry, a name without attributes, or a directory that a member lies
/// below.
///
/// # Errors
/// `Io` if it is no such record: the temporary file is damaged.
pub fn parse(bytes: &[u8]) -> Result<StoredEntry<'_>> {
    read(bytes).map_err(damaged)
}

fn read(bytes: &[u8]) -> Result<StoredEntry<'_>> {
    let mut cursor = Cursor::new(bytes, "temporary record");
    let tag = cursor.byte()?;
    let plain = |kind, attributes| StoredEntry {
        kind,
        attributes,
        mtime: Timestamp::default(),
        content: None,
        target: &[],
        xattrs: XattrSet::new(),
    };
    let kind = match tag {
        tag::WEAK => return Ok(plain(FileKind::Directory, DIRECTORY_DEFAULT)),
        tag::NAME => return Ok(plain(FileKind::Regular, FILE_DEFAULT)),
        tag => kind_of(tag)?.ok_or_else(|| Error::invalid("no entry"))?,
    };
    let max = u64::from(u32::MAX);
    let mut entry = plain(
        kind,
        Attributes {
            permissions: cursor.bounded(0o7777, "permissions")? as u16,
            uid: cursor.bounded(max, "owner")? as u32,
            gid: cursor.bounded(max, "group")? as u32,
            rdev: 0,
        },
    );
    entry.mtime = Timestamp {
        seconds: unzigzag(cursor.varint()?),
        nanoseconds: cursor.bounded(999_999_999, "nanoseconds")? as u32,
    };
    if kind.is_device() {
        entry.attributes.rdev = cursor.varint()?;
    }
    if tag == tag::FILE {
        entry.content = Some(ContentId(cursor.varint()?));
    }
    if kind == FileKind::Symlink {
        let len = cursor.bounded(bytes.len() as u64, "target")?;
        entry.target = cursor.bytes(len as usize)?;
    }
    let rest = cursor.bytes(cursor.remaining())?;
    if !rest.is_empty() {
        entry.xattrs = parse_xattrs(rest)?.pop().unwrap_or_default();
    }
    Ok(entry)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weald_format::Xattr;

    #[test]
    fn entries_come_back_as_they_were_put_aside() {
        let member = Member {
            attributes: Attributes {
                permissions: 0o4711,
                uid: u32::MAX,
                gid: 7,
                rdev: 5 << 32 | 6,
            },
            mtime: Timestamp {
                seconds: -3,
                nanoseconds: 999_999_999,
            },
            target: b"there".to_vec(),
            xattrs: vec![Xattr {
                name: b"user.x".to_vec(),
                value: vec![0, 1],
            }],
            ..Member::default()
        };
        for kind in [
            FileKind::Directory,
            FileKind::Regular,
            FileKind::Symlink,
            FileKind::CharDevice,
            FileKind::BlockDevice,
            FileKind::Fifo,
            FileKind::Socket,
        ] {
            for content in [None, Some(ContentId(300))] {
                let content = content.filter(|_| kind == FileKind::Regular);
                let mut bytes = Vec::new();
                put_entry(&member, kind, content, &mut bytes);
                assert_eq!(kind_of_record(&bytes).unwrap(), Record::Entry(kind));
                let back = parse(&bytes).unwrap();
                assert_eq!((back.kind, back.content), (kind, content));
                assert_eq!((back.mtime, &back.xattrs), (member.mtime, &member.xattrs));
                let is_link = kind == FileKind::Symlink;
                assert_eq!(back.target, if is_link { &b"there"[..] } else { b"" });
                let rdev = if kind.is_device() { 5 << 32 | 6 } else { 0 };
                let attributes = Attributes {
                    rdev,
                    ..member.attributes
                };
                assert_eq!(back.attributes, attributes);
                let (mut bare, mut hidden) = (Vec::new(), Vec::new());
                put_entry(&member, kind, None, &mut bare);
                assert_eq!(
                    put_hidden(&bare, content, &mut hidden).unwrap(),
                    member.mtime
                );
                assert_eq!(kind_of_record(&hidden).unwrap(), Record::Hidden);
                assert_eq!(hidden[1..], bytes);
            }
        }
    }

    #[test]
    fn links_and_requests_keep_their_numbers() {
        let mut bytes = Vec::new();
        put_request(1 << 40, &mut bytes);
        assert_eq!(kind_of_record(&bytes).unwrap(), Record::Request(1 << 40));
        bytes.clear();
        put_link(77, &mut bytes);
        assert_eq!(kind_of_record(&bytes).unwrap(), Record::Link(77));
        assert_eq!(kind_of_record(&WEAK).unwrap(), Record::Weak);
        assert_eq!(kind_of_record(&NAME).unwrap(), Record::Name);
        assert!(kind_of_record(&[99]).is_err() && kind_of_record(&[]).is_err());
    }
}
