//! What is left of a damaged tree, as the builder takes it.

use super::tree::{DamagedTree, Dir, Entry, Lost, Names, TellLost};
use crate::pipeline::stream::{
    ContentStore, LinkInfo, StreamEntry, StreamRoot, StreamSize, TreeSink, TreeSource,
};
use crate::progress::Observer;
use std::collections::{BTreeMap, HashMap};
use weald_format::pages::Link;
use weald_format::{Error, FileKind, Result};

/// Memory of a linked name, bytes.
const LINKED_LEN: u64 = 48;

/// A name of an inode that has names in several directories: its number, and that of the first
/// name in its directory.
#[derive(Debug, Clone, Copy)]
struct LinkedName {
    no: u64,
    dir_no: u64,
}

/// The tree of a damaged image.
pub struct SalvageSource<'a> {
    tree: DamagedTree<'a>,
    size: StreamSize,
    /// The names that are left of inodes with names in several directories, by the number that the
    /// first name had.
    linked: HashMap<u64, Vec<LinkedName>>,
}

impl<'a> SalvageSource<'a> {
    /// Counts `tree`; `tell` gets what is lost of it.
    ///
    /// # Errors
    /// `Invalid` ("interrupted") if `observer` ends it.
    pub fn new(
        tree: DamagedTree<'a>,
        tell: &TellLost<'_>,
        observer: &dyn Observer,
    ) -> Result<Self> {
        let mut size = StreamSize {
            entry_count: 1,
            data_len: Some(0),
            ..StreamSize::default()
        };
        let mut linked: HashMap<u64, Vec<LinkedName>> = HashMap::new();
        let mut next_no = 2u64;
        tree.each_dir(tell, &mut |dir| {
            // A forged tree can be large without an end in sight.
            if observer.is_cancelled() {
                return Err(Error::invalid("interrupted"));
            }
            let count = dir.entries.len() as u64;
            size.entry_count += count;
            size.directory_count_max = size.directory_count_max.max(count);
            size.depth = size.depth.max(dir.depth);
            let dir_no = next_no;
            for (no, entry) in (next_no..).zip(dir.entries) {
                if let Names::Across(first) = entry.names {
                    let names = linked.entry(first).or_default();
                    names.push(LinkedName { no, dir_no });
                }
            }
            next_no += count;
            Ok(true)
        })?;
        let linked_count: u64 = linked.values().map(|names| names.len() as u64).sum();
        size.memory_len = linked_count * LINKED_LEN;
        Ok(Self { tree, size, linked })
    }

    fn link_info(&self, entry: &Entry, no: u64) -> LinkInfo {
        let first = match entry.names {
            Names::One => return LinkInfo::Single,
            Names::Inside { nlink, back } => return LinkInfo::Inside { nlink, back },
            Names::Across(first) => first,
        };
        let Some(names) = self.linked.get(&first).filter(|names| names.len() > 1) else {
            return LinkInfo::Single;
        };
        if is_one_dir(names) {
            LinkInfo::Inside {
                nlink: names.len() as u64,
                back: no - names[0].no,
            }
        } else {
            LinkInfo::Across
        }
    }

    fn each_dir(&self, visit: &mut dyn FnMut(&Dir<'_>) -> Result<bool>) -> Result<()> {
        self.tree.each_dir(&|_, _: Lost| {}, visit)
    }
}

fn is_one_dir(names: &[LinkedName]) -> bool {
    let mut others = names.iter().skip(1);
    others.all(|name| name.dir_no == names[0].dir_no)
}

impl TreeSource for SalvageSource<'_> {
    fn size(&self) -> StreamSize {
        self.size
    }

    fn root(&self) -> Result<StreamRoot> {
        let root = self.tree.root();
        Ok(StreamRoot {
            attributes: root.attributes,
            mtime: root.mtime,
            xattrs: root.xattrs.as_deref().cloned().unwrap_or_default(),
        })
    }

    fn contents(&mut self, _: &mut dyn ContentStore) -> Result<()> {
        Ok(())
    }

    fn tree(&mut self, sink: &mut dyn TreeSink) -> Result<()> {
        let mut next_no = 2u64;
        self.each_dir(&mut |dir| {
            let entries = (next_no..).zip(dir.entries).map(|(no, entry)| StreamEntry {
                name: &entry.name,
                kind: entry.kind,
                attributes: entry.attributes,
                mtime: entry.mtime,
                xattrs: entry.xattrs.as_deref().filter(|set| !set.is_empty()),
                content: entry.content,
                target: if entry.kind == FileKind::Symlink {
                    &entry.target
                } else {
                    b""
                },
                link: self.link_info(entry, no),
            });
            next_no += dir.entries.len() as u64;
            sink.directory(&entries.collect::<Vec<_>>())
        })
    }

    fn links(&mut self, sink: &mut dyn FnMut(&Link) -> Result<()>) -> Result<()> {
        let groups = self.linked.values();
        let mut links = BTreeMap::new();
        for names in groups.filter(|names| names.len() > 1 && !is_one_dir(names)) {
            for name in names {
                let link = Link {
                    name_no: name.no,
                    first_no: names[0].no,
                    nlink: names.len() as u64,
                };
                links.insert(name.no, link);
            }
        }
        links.values().try_for_each(sink)
    }
}
