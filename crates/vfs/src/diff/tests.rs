//! Comparisons of trees in memory.

use super::*;
use std::collections::BTreeMap;
use weald_format::{Attributes, Times};

/// A tree in memory: paths with their inodes. The listing of the directory `broken` fails.
#[derive(Default, Clone)]
struct Memory {
    entries: BTreeMap<Vec<u8>, (Facts, Vec<u8>)>,
    broken: Option<Vec<u8>>,
}

struct MemoryDir {
    path: Vec<u8>,
    names: std::vec::IntoIter<Vec<u8>>,
}

struct MemoryFile(Vec<u8>);

impl FileReader for MemoryFile {
    fn next_data(&mut self, offset: u64) -> Result<u64> {
        let zeros = self.0.iter().skip(offset as usize).take_while(|&&b| b == 0);
        Ok(offset + zeros.count() as u64)
    }

    fn read_at(&mut self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let rest = self.0.get(offset as usize..).unwrap_or_default();
        let len = rest.len().min(buf.len());
        buf[..len].copy_from_slice(&rest[..len]);
        Ok(len)
    }
}

fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    if dir.is_empty() {
        name.to_vec()
    } else {
        [dir, b"/", name].concat()
    }
}

impl Memory {
    fn with(mut self, path: &str, kind: FileKind, content: &str) -> Self {
        let ino = self.entries.len() as u64;
        let facts = Facts {
            link_key: LinkKey { device: 0, ino },
            kind,
            attributes: Attributes::default(),
            nlink: 1,
            size: content.len() as u64,
            times: Times::default(),
        };
        self.entries.insert(path.into(), (facts, content.into()));
        self
    }

    fn new() -> Self {
        Self::default().with("", FileKind::Directory, "")
    }

    fn link(mut self, path: &str, to: &str) -> Self {
        let (facts, content) = self.entries.get_mut(to.as_bytes()).expect("a target");
        facts.nlink += 1;
        let linked = (*facts, content.clone());
        self.entries.insert(path.into(), linked);
        self
    }
}

impl Tree for Memory {
    type Node = Vec<u8>;
    type Dir = MemoryDir;

    fn root(&self) -> Result<Child<Vec<u8>>> {
        Ok(Child {
            name: Vec::new(),
            facts: self.entries[&b""[..]].0,
            node: Vec::new(),
        })
    }

    fn open_dir(&self, _: Option<&MemoryDir>, child: &Child<Vec<u8>>) -> Result<MemoryDir> {
        let path = child.node.clone();
        let below = self.entries.keys().filter(|key| !key.is_empty());
        let split = |key: &Vec<u8>| match key.iter().rposition(|&b| b == b'/') {
            Some(at) => (key[..at].to_vec(), key[at + 1..].to_vec()),
            None => (Vec::new(), key.clone()),
        };
        let mut names: Vec<_> = below
            .map(split)
            .filter(|(dir, _)| *dir == path)
            .map(|(_, name)| name)
            .collect();
        names.sort();
        Ok(MemoryDir {
            path,
            names: names.into_iter(),
        })
    }

    fn next_child(&self, dir: &mut MemoryDir) -> Result<Option<Child<Vec<u8>>>> {
        if self.broken.as_ref() == Some(&dir.path) {
            return Err(Error::invalid("broken"));
        }
        Ok(dir.names.next().map(|name| {
            let node = join(&dir.path, &name);
            Child {
                name,
                facts: self.entries[&node].0,
                node,
            }
        }))
    }

    fn link_target(&self, _: Option<&MemoryDir>, child: &Child<Vec<u8>>) -> Result<Vec<u8>> {
        Ok(self.entries[&child.node].1.clone())
    }

    fn xattrs(&self, _: Option<&MemoryDir>, _: &Child<Vec<u8>>) -> Result<XattrSet> {
        Ok(XattrSet::new())
    }

    fn open_file(
        &self,
        _: Option<&MemoryDir>,
        child: &Child<Vec<u8>>,
    ) -> Result<Box<dyn FileReader + '_>> {
        Ok(Box::new(MemoryFile(self.entries[&child.node].1.clone())))
    }
}

/// All differences, as one word for each.
fn differences(left: &Memory, right: &Memory) -> Vec<String> {
    differences_with(left, right, CompareOptions::default())
}

fn differences_with(left: &Memory, right: &Memory, options: CompareOptions<'_>) -> Vec<String> {
    let mut lines = Vec::new();
    let compared = compare(left, right, &options, &mut |path, difference| {
        let path = String::from_utf8_lossy(path);
        lines.push(match difference {
            Difference::OnlyLeft(_) => format!("-{path}"),
            Difference::OnlyRight(_) => format!("+{path}"),
            Difference::Failed(error) => format!("!{path}: {error}"),
            Difference::Changed(changed) => {
                let words: Vec<_> = changed
                    .changes
                    .iter()
                    .map(|c| format!("{} {}", c.aspect.word(), c.right))
                    .collect();
                format!("*{path}: {}", words.join(", "))
            }
        });
        ControlFlow::Continue(())
    });
    compared.expect("roots can be read");
    lines
}

use FileKind::{Directory as D, Regular as F, Symlink as L};

#[test]
fn equal_trees_do_not_differ() {
    let tree = Memory::new()
        .with("a", D, "")
        .with("a/b", F, "x")
        .with("c", L, "a/b");
    assert!(differences(&tree, &tree.clone()).is_empty());
}

/// Would catch: an entry below a new directory that is left out, or that counts for both sides.
#[test]
fn what_is_below_a_missing_directory_is_listed_on_request() {
    let left = Memory::new().with("a", F, "").with("z", F, "");
    let right = Memory::new()
        .with("b", D, "")
        .with("b/c", D, "")
        .with("b/c/d", F, "x")
        .with("b/e", L, "x")
        .with("z", F, "");
    let all = CompareOptions {
        lists_all: true,
        ..CompareOptions::default()
    };
    let found = differences_with(&left, &right, all);
    assert_eq!(found, ["-a", "+b", "+b/c", "+b/c/d", "+b/e"]);
    let found = differences_with(&right, &left, all);
    assert_eq!(found, ["+a", "-b", "-b/c", "-b/c/d", "-b/e"]);
    let broken = Memory {
        broken: Some(b"b/c".to_vec()),
        ..right.clone()
    };
    let found = differences_with(&left, &broken, all);
    assert_eq!(found, ["-a", "+b", "+b/c", "!b/c: broken", "+b/e"]);
    assert_eq!(differences(&left, &right), ["-a", "+b"]);
}

#[test]
fn names_are_merged_in_byte_order() {
    let left = Memory::new()
        .with("a", F, "")
        .with("d", D, "")
        .with("d/x", F, "")
        .with("z", F, "");
    let right = Memory::new()
        .with("b", D, "")
        .with("b/c", F, "")
        .with("d", D, "")
        .with("d/y", F, "")
        .with("z", L, "a");
    assert_eq!(
        differences(&left, &right),
        ["-a", "+b", "-d/x", "+d/y", "*z: type symbolic link"]
    );
}

#[test]
fn contents_are_compared_behind_holes_and_across_pieces() {
    let long = "x".repeat(PIECE_LEN) + "\0\0\0" + &"y".repeat(10);
    let mut other = long.clone();
    other.replace_range(long.len() - 1.., "z");
    let of = |content: &str| Memory::new().with("f", F, content);
    assert!(differences(&of(&long), &of(&long)).is_empty());
    let expected = format!("*f: content differs from byte {} on", long.len() - 1);
    assert_eq!(differences(&of(&long), &of(&other)), [expected]);
    assert_eq!(
        differences(&of("\0\0\0\0"), &of("\0\0b\0")),
        ["*f: content differs from byte 2 on"]
    );
    assert_eq!(differences(&of("abc"), &of("abcd")), ["*f: size 4"]);
}

#[test]
fn links_must_join_the_same_names() {
    let left = Memory::new()
        .with("a", F, "x")
        .link("b", "a")
        .with("c", F, "x");
    let right = Memory::new()
        .with("a", F, "x")
        .with("b", F, "x")
        .link("c", "b");
    assert_eq!(
        differences(&left, &right),
        ["*b: links ", "*c: links linked to b"]
    );
}

#[test]
fn a_listing_that_fails_does_not_call_the_rest_missing() {
    let tree = Memory::new()
        .with("a", D, "")
        .with("a/x", F, "")
        .with("b", F, "1");
    let broken = Memory {
        broken: Some(b"a".to_vec()),
        ..tree.clone()
    };
    assert_eq!(differences(&tree, &broken), ["!a: broken"]);
}
