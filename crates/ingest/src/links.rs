//! Hard links: groups the names of each file, by number, after the whole stream was read.
//!
//! A link gets a number when it is read. A request at the path of its target then binds that number
//! to the file at the path at that moment. A later member may replace the target, and the link is
//! still a name of the old file, as after `tar -x`. Memory grows with the names of linked files
//! only.

use std::collections::HashMap;
use weald_builder::stream::LinkInfo;
use weald_format::pages::Link;
use weald_format::{Error, Result};
use weald_io::{ReadAt, Spool};

/// Target of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Binding {
    File(u32),
    /// The target of that link, an earlier one.
    Link(u64),
}

/// A name in the tree.
#[derive(Debug, Clone, Copy)]
struct Name {
    no: u64,
    dir_no: u64,
}

/// Collects links while the tree is assembled.
#[derive(Debug, Default)]
pub struct LinkGatherer {
    bindings: Vec<(u64, Binding)>,
    /// Names that are links, by the number of the link.
    link_names: Vec<(u64, Name)>,
    /// Names of members that are no links.
    names: Vec<(u32, Name)>,
    bodies: Vec<u8>,
    body_ends: Vec<usize>,
}

impl LinkGatherer {
    /// Bytes that it takes now and after [`LinkGatherer::finish`].
    pub fn memory_len(&self) -> u64 {
        let names = self.names.len() + self.link_names.len();
        let len = self.bindings.len() * size_of::<(u64, Binding)>()
            + self.link_names.len() * size_of::<(u64, Name)>()
            + names * (size_of::<(u32, Name)>() + size_of::<Linked>())
            + self.bodies.len()
            + self.body_ends.len() * size_of::<usize>();
        len as u64
    }

    /// Adds a file that a link names; `body` is its record. Returns its number.
    ///
    /// # Errors
    /// `Limit` for more than 2^32 of them.
    pub fn add_file(&mut self, body: &[u8]) -> Result<u32> {
        let no = u32::try_from(self.body_ends.len())
            .map_err(|_| Error::limit("more than 2^32 files with several names"))?;
        self.bodies.extend_from_slice(body);
        self.body_ends.push(self.bodies.len());
        Ok(no)
    }

    /// Makes link `no` a name of `file`.
    pub fn bind(&mut self, no: u64, file: u32) {
        self.bindings.push((no, Binding::File(file)));
    }

    /// Makes link `no` a name of the file of link `other`.
    pub fn bind_to_link(&mut self, no: u64, other: u64) {
        self.bindings.push((no, Binding::Link(other)));
    }

    /// Adds the name of the member that is no link.
    pub fn add_name(&mut self, file: u32, name_no: u64, dir_no: u64) {
        self.names.push((
            file,
            Name {
                no: name_no,
                dir_no,
            },
        ));
    }

    /// Adds the name of link `no`.
    pub fn add_link_name(&mut self, no: u64, name_no: u64, dir_no: u64) {
        self.link_names.push((
            no,
            Name {
                no: name_no,
                dir_no,
            },
        ));
    }

    /// All names of linked files, by number. The error is the number of the first link without a
    /// file.
    ///
    /// # Cost
    /// O(links · log links).
    pub fn finish(mut self) -> std::result::Result<Links, u64> {
        self.bindings.sort_unstable_by_key(|&(no, _)| no);
        // A link is bound to an earlier one only, whose file is known at this point.
        for at in 0..self.bindings.len() {
            let (earlier, rest) = self.bindings.split_at_mut(at);
            if let Some((_, binding)) = rest.first_mut()
                && let Binding::Link(other) = *binding
                && let Ok(found) = earlier.binary_search_by_key(&other, |&(no, _)| no)
            {
                *binding = earlier[found].1;
            }
        }
        let mut unbound = None;
        for &(no, name) in &self.link_names {
            let found = self.bindings.binary_search_by_key(&no, |&(no, _)| no);
            match found.map(|at| self.bindings[at].1) {
                Ok(Binding::File(file)) => self.names.push((file, name)),
                _ => unbound = Some(unbound.map_or(no, |other: u64| other.min(no))),
            }
        }
        if let Some(no) = unbound {
            return Err(no);
        }
        let mut names = self.names;
        names.sort_unstable_by_key(|&(file, name)| (file, name.no));
        let mut linked = Vec::with_capacity(names.len());
        for group in names.chunk_by(|a, b| a.0 == b.0) {
            let first = group[0].1;
            let is_across = group.iter().any(|(_, name)| name.dir_no != first.dir_no);
            linked.extend(group.iter().map(|&(file, name)| Linked {
                name_no: name.no,
                first_no: first.no,
                file,
                nlink: group.len() as u32,
                is_across,
            }));
        }
        linked.sort_unstable_by_key(|l| l.name_no);
        Ok(Links {
            linked,
            bodies: self.bodies,
            body_ends: self.body_ends,
        })
    }
}

/// One name of a linked file.
#[derive(Debug, Clone, Copy)]
pub struct Linked {
    name_no: u64,
    first_no: u64,
    file: u32,
    nlink: u32,
    is_across: bool,
}

impl Linked {
    /// Number of the name.
    pub fn name_no(&self) -> u64 {
        self.name_no
    }

    /// The link information of the tree's entry.
    pub fn info(&self) -> LinkInfo {
        match (self.nlink, self.is_across) {
            (..=1, _) => LinkInfo::Single,
            (_, true) => LinkInfo::Across,
            (nlink, false) => LinkInfo::Inside {
                nlink: nlink.into(),
                back: self.name_no - self.first_no,
            },
        }
    }
}

/// The names of linked files.
#[derive(Debug, Default)]
pub struct Links {
    linked: Vec<Linked>,
    bodies: Vec<u8>,
    body_ends: Vec<usize>,
}

impl Links {
    /// All names, by number.
    pub fn names(&self) -> &[Linked] {
        &self.linked
    }

    /// The record of the file behind a name.
    pub fn body(&self, linked: &Linked) -> &[u8] {
        let no = linked.file as usize;
        let start = no
            .checked_sub(1)
            .and_then(|before| self.body_ends.get(before));
        let end = self.body_ends.get(no).copied().unwrap_or_default();
        self.bodies
            .get(start.copied().unwrap_or(0)..end)
            .unwrap_or_default()
    }

    /// Names of files whose names lie in several directories.
    pub fn across(&self) -> impl Iterator<Item = Link> {
        let linked = self.linked.iter().filter(|l| l.is_across);
        linked.map(|l| Link {
            name_no: l.name_no,
            first_no: l.first_no,
            nlink: l.nlink.into(),
        })
    }

    /// Bytes that the table takes.
    pub fn memory_len(&self) -> u64 {
        let len = self.linked.capacity() * size_of::<Linked>()
            + self.bodies.capacity()
            + self.body_ends.capacity() * size_of::<usize>();
        len as u64
    }
}

/// Paths and targets of links, for the message about a link without a file.
#[derive(Default)]
pub struct LinkTexts {
    spool: Option<Spool>,
    pending: Vec<u8>,
    count: u64,
}

impl LinkTexts {
    /// Adds the next link; returns its number.
    ///
    /// # Errors
    /// `Io`, `Full`.
    pub fn push(&mut self, dir: &std::path::Path, path: &[u8], target: &[u8]) -> Result<u64> {
        for text in [path, target] {
            self.pending.extend_from_slice(text);
            self.pending.push(0);
        }
        if self.pending.len() >= 64 << 10 {
            if self.spool.is_none() {
                self.spool = Some(Spool::create(dir)?);
            }
            if let Some(spool) = &mut self.spool {
                spool.append(&self.pending)?;
                self.pending.clear();
            }
        }
        self.count += 1;
        Ok(self.count - 1)
    }

    /// The error about link `no`.
    pub fn unbound(&self, no: u64) -> Error {
        let texts = self.texts(no).unwrap_or_default();
        let shown = |name| {
            texts
                .get(name)
                .map_or_else(String::new, |text: &Vec<u8>| weald_vfs::shown_path(text))
        };
        Error::invalid(format!(
            "{}: a hard link to '{}', of which no earlier member is kept",
            shown(&0),
            shown(&1)
        ))
    }

    fn texts(&self, no: u64) -> Result<HashMap<u64, Vec<u8>>> {
        let (mut texts, mut at) = (HashMap::new(), 0);
        let mut visit = |bytes: &[u8]| {
            for &byte in bytes {
                match byte {
                    0 => at += 1,
                    byte if at / 2 == no => texts.entry(at % 2).or_insert_with(Vec::new).push(byte),
                    _ => {}
                }
            }
        };
        if let Some(spool) = &self.spool {
            let mut piece = vec![0; 64 << 10];
            let mut offset = 0;
            while offset < spool.len() {
                let len = (spool.len() - offset).min(piece.len() as u64);
                let piece = &mut piece[..len as usize];
                spool.read_exact_at(piece, offset)?;
                visit(piece);
                offset += len;
            }
        }
        visit(&self.pending);
        Ok(texts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch: links to links that are not followed, a file of one name that is called linked,
    /// names in the wrong order.
    #[test]
    fn names_are_told_with_the_file_that_they_are_of() {
        let mut gatherer = LinkGatherer::default();
        let (a, b) = (
            gatherer.add_file(b"A").unwrap(),
            gatherer.add_file(b"BB").unwrap(),
        );
        // Link 2 is a link to link 0, both come before the file in the tree; link 1 is all that is
        // left of b.
        gatherer.bind_to_link(2, 0);
        gatherer.add_link_name(0, 5, 2);
        gatherer.add_link_name(2, 3, 1);
        gatherer.bind(0, a);
        gatherer.add_name(a, 9, 2);
        gatherer.bind(1, b);
        gatherer.add_link_name(1, 7, 2);
        let links = gatherer.finish().unwrap();
        let reported: Vec<_> = links
            .names()
            .iter()
            .map(|l| (l.name_no, l.info(), links.body(l)))
            .collect();
        let across = LinkInfo::Across;
        assert_eq!(
            reported,
            [
                (3, across, &b"A"[..]),
                (5, across, b"A"),
                (7, LinkInfo::Single, b"BB"),
                (9, across, b"A")
            ]
        );
        let across: Vec<_> = links
            .across()
            .map(|l| (l.name_no, l.first_no, l.nlink))
            .collect();
        assert_eq!(across, [(3, 3, 3), (5, 3, 3), (9, 3, 3)]);
    }

    #[test]
    fn a_link_that_leads_nowhere_is_named() {
        let temp = tempfile::tempdir().unwrap();
        let mut texts = LinkTexts::default();
        for no in 0..5000 {
            let path = format!("some/where/{no}");
            assert_eq!(
                texts.push(temp.path(), path.as_bytes(), b"gone").unwrap(),
                no
            );
        }
        assert!(texts.spool.is_some());
        for no in [17, 4999] {
            let error = texts.unbound(no).to_string();
            let expected = format!(
                "some/where/{no}: a hard link to 'gone', of which no earlier member is kept"
            );
            assert_eq!(error, expected);
        }
        let mut gatherer = LinkGatherer::default();
        gatherer.add_link_name(4, 1, 1);
        gatherer.bind_to_link(4, 3);
        assert_eq!(gatherer.finish().err(), Some(4));
    }
}
