//! Formats one inode: as the letters of `ls -l`, and as JSON.

use crate::json::{Object, hex, put_name, put_time};
use serde_json::Value;
use weald_format::{FileKind, Result, Timestamp};
use weald_image::{Image, Inode};

/// Mode as letters, for example `drwxr-xr-t`.
pub fn mode_letters(inode: &Inode) -> String {
    weald_vfs::mode_letters(inode.kind, inode.attributes.permissions)
}

/// `8, 1` (major, minor) for a device, otherwise the size.
pub fn size_column(inode: &Inode) -> String {
    if inode.kind.is_device() {
        let rdev = inode.attributes.rdev;
        return format!("{}, {}", rdev >> 32, rdev & 0xffff_ffff);
    }
    inode.size.to_string()
}

/// Word for a kind of file in JSON and in `find --type`.
pub const fn kind_word(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Directory => "directory",
        FileKind::Regular => "file",
        FileKind::Symlink => "symlink",
        FileKind::CharDevice => "char_device",
        FileKind::BlockDevice => "block_device",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
    }
}

/// All attributes of an inode except xattrs.
pub fn json(image: &Image, path: &[u8], inode: &Inode) -> Result<Object> {
    let mut object = Object::new();
    put_name(&mut object, "path", path);
    let attributes = &inode.attributes;
    object.insert("type".into(), kind_word(inode.kind).into());
    object.insert(
        "mode".into(),
        format!("{:04o}", attributes.permissions).into(),
    );
    object.insert("uid".into(), attributes.uid.into());
    object.insert("gid".into(), attributes.gid.into());
    object.insert("ino".into(), inode.ino.0.into());
    object.insert("nlink".into(), inode.nlink.into());
    object.insert("size".into(), inode.size.0.into());
    let times = &inode.times;
    let optional = [
        ("atime", times.atime),
        ("ctime", times.ctime),
        ("btime", times.btime),
    ];
    let known: Vec<(&str, Timestamp)> = optional
        .iter()
        .filter_map(|&(key, time)| Some((key, time?)))
        .collect();
    put_time(&mut object, "mtime", times.mtime);
    known
        .into_iter()
        .for_each(|(key, time)| put_time(&mut object, key, time));
    if inode.kind.is_device() {
        object.insert("rdev_major".into(), (attributes.rdev >> 32).into());
        object.insert("rdev_minor".into(), (attributes.rdev & 0xffff_ffff).into());
    }
    if inode.kind == FileKind::Symlink {
        put_name(&mut object, "target", &image.read_link(inode)?);
    }
    object.insert("has_xattrs".into(), inode.xattr_set.is_some().into());
    Ok(object)
}

/// The xattrs of an inode: objects with name and value. A value that is not UTF-8 has only
/// `value_hex`.
pub fn json_xattrs(image: &Image, inode: &Inode) -> Result<Value> {
    let xattrs = image.xattrs(inode)?;
    let objects = xattrs.iter().map(|xattr| {
        let mut object = Object::new();
        put_name(&mut object, "name", &xattr.name);
        match std::str::from_utf8(&xattr.value) {
            Ok(text) => object.insert("value".into(), text.into()),
            Err(_) => object.insert("value_hex".into(), hex(&xattr.value).into()),
        };
        Value::from(object)
    });
    Ok(objects.collect())
}
