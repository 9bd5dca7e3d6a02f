//! Everything that readers see of a store.

use super::{IMAGES, VOLUMES};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use weald_format::FileKind;
use weald_image::Image;
use weald_store::Store;
use weald_store::disk::HostDisk;
use weald_vfs::{Ino, Stat, WritableFs};
use weald_volume::{OpenOptions, Volume};

/// Attributes, and the content or its error, of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub attributes: String,
    pub content: Result<[u8; 32], String>,
}

/// Everything that can be read of an image or a volume; an error if nothing can.
pub type Tree = Result<BTreeMap<String, Entry>, String>;
pub type Trees = BTreeMap<String, Tree>;

pub fn digest(bytes: &[u8]) -> [u8; 32] {
    *blake3::hash(bytes).as_bytes()
}

fn tree_of_image(store: &Store, name: &str) -> Tree {
    let options = weald_image::OpenOptions::default();
    let image = Image::open_stored(store.clone(), name, 0, &options).map_err(|e| e.to_string())?;
    let mut tree = BTreeMap::new();
    let root = image.root().map_err(|e| e.to_string())?;
    let mut waiting = vec![(root, String::new())];
    while let Some((inode, path)) = waiting.pop() {
        let xattrs = image.xattrs(&inode).map(|set| format!("{set:?}"));
        let xattrs = xattrs.unwrap_or_else(|e| format!("error: {e}"));
        let content = match inode.kind {
            FileKind::Directory => {
                let mut below = Vec::new();
                let read = image.read_dir(inode.ino, 0, &mut |_, name, inode| {
                    let name = String::from_utf8_lossy(name);
                    below.push((inode.clone(), format!("{path}/{name}")));
                    ControlFlow::Continue(())
                });
                waiting.extend(below);
                read.map(|()| [0; 32])
            }
            FileKind::Regular => {
                let read = image.read(&inode, 0, inode.size.0 as usize);
                read.map(|bytes| digest(&bytes))
            }
            FileKind::Symlink => image.read_link(&inode).map(|target| digest(&target)),
            _ => Ok([0; 32]),
        };
        let attributes = format!(
            "{:?} {:?} {} {:?} {:?} {xattrs}",
            inode.kind, inode.attributes, inode.nlink, inode.size, inode.times
        );
        let content = content.map_err(|e| e.to_string());
        tree.insert(
            path,
            Entry {
                attributes,
                content,
            },
        );
    }
    Ok(tree)
}

pub fn options(is_read_only: bool) -> OpenOptions {
    OpenOptions {
        is_read_only,
        background: false,
        ..OpenOptions::default()
    }
}

fn entry_of(volume: &Volume, stat: &Stat) -> Entry {
    let names = volume.xattr_names(stat.ino);
    let mut xattrs = String::new();
    match names {
        Ok(names) => {
            for name in names
                .into_iter()
                .filter(|name| !name.starts_with(b"user.weald."))
            {
                let value = volume.xattr(stat.ino, &name).map_err(|f| f.errno);
                xattrs.push_str(&format!("{name:?}={value:?} "));
            }
        }
        Err(failure) => xattrs = format!("error: {:?}", failure.errno),
    }
    let content = match stat.kind {
        FileKind::Regular => {
            let mut bytes = Vec::new();
            let read = volume.read(stat.ino, 0, stat.size as usize, &mut bytes);
            read.map(|()| digest(&bytes))
        }
        FileKind::Symlink => volume.read_link(stat.ino).map(|target| digest(&target)),
        _ => Ok([0; 32]),
    };
    // Directories above of what is moved to lost+found have other numbers of links.
    let nlink = match stat.kind {
        FileKind::Directory => 0,
        _ => stat.nlink,
    };
    Entry {
        attributes: format!(
            "{:?} {:o} {} {} {nlink} {} {} {} {} {xattrs}",
            stat.kind,
            stat.permissions,
            stat.uid,
            stat.gid,
            stat.size,
            stat.mtime,
            stat.ctime,
            stat.btime
        ),
        content: content.map_err(|f| format!("{:?}", f.errno)),
    }
}

fn tree_of_volume(store: &Store, name: &str) -> Tree {
    let volume = Volume::open(store, name, options(true)).map_err(|e| e.to_string())?;
    let root = volume
        .stat(Ino::ROOT)
        .map_err(|f| format!("{:?}", f.errno))?;
    let mut tree = BTreeMap::new();
    let mut waiting = vec![(root, String::new())];
    let mut seen = BTreeSet::new();
    while let Some((stat, path)) = waiting.pop() {
        let mut entry = entry_of(&volume, &stat);
        if stat.kind == FileKind::Directory && seen.insert(stat.ino) {
            let mut below = Vec::new();
            let listed = volume.list(stat.ino, 0, &mut |listed| {
                below.push((*listed.stat, listed.name.to_vec()));
                true
            });
            if let Err(failure) = listed {
                entry.content = Err(format!("{:?}", failure.errno));
            }
            for (of, name) in below {
                // Readers look names up.
                let found = volume.lookup(stat.ino, &name).map(|found| found.ino);
                if found.is_ok_and(|ino| ino == of.ino) {
                    let name = String::from_utf8_lossy(&name);
                    waiting.push((of, format!("{path}/{name}")));
                }
            }
        }
        tree.insert(path, entry);
    }
    Ok(tree)
}

/// Reads everything.
pub fn look(dir: &Path) -> Trees {
    let Ok(store) = Store::open(Arc::new(HostDisk::new(dir))) else {
        let all = IMAGES.iter().chain(&VOLUMES);
        return all
            .map(|name| (name.to_string(), Err("no store".to_owned())))
            .collect();
    };
    let images = IMAGES
        .iter()
        .map(|name| (name.to_string(), tree_of_image(&store, name)));
    let mut trees: Trees = images.collect();
    trees.extend(
        VOLUMES
            .iter()
            .map(|name| (name.to_string(), tree_of_volume(&store, name))),
    );
    trees
}
