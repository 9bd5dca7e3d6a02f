//! Follows the symlinks of a stream on the way to its members, as an extraction does: after
//! `bin -> usr/bin` the member `bin/foo` is `usr/bin/foo`.
//!
//! A member of another kind at the path of a symlink replaces it, a directory included. Symlinks of
//! other streams, such as lower layers, do not count. Nothing outside of the tree can be reached:
//! paths are only rewritten.
//!
//! Source: GNU tar 1.34, podman 4.3 and umoci 0.4.7, which `crates/cli/tests/oci` compares.

use crate::member::{Member, MemberKind};
use crate::path::PATH_LEN_MAX;
use std::collections::BTreeMap;
use weald_format::FileKind;

/// Symlinks followed on the way to one member: the limit of Linux (`MAXSYMLINKS`).
const LINK_COUNT_MAX: usize = 40;
/// Components that the targets of these symlinks may add, so that a member costs a bounded time.
const STEP_COUNT_MAX: usize = 1024;
/// Bytes of memory for symlinks. Others are not followed.
const LINKS_LEN_MAX: usize = 4 << 20;
/// Bytes of memory for a symlink besides its path and target.
const LINK_LEN: usize = 96;

/// Targets that are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Relative ones that stay inside the tree, as in GNU tar, which makes the others only after
    /// all members.
    Inside,
    /// All, with `/` for the root of the tree, above which nothing lies, as in a container.
    Rooted,
}

/// The symlinks that a stream has had so far.
#[derive(Debug)]
pub struct Through {
    reach: Reach,
    /// Targets by path, which has no symlinks itself.
    links: BTreeMap<Vec<u8>, Vec<u8>>,
    len: usize,
    len_max: usize,
    /// The directory of the last member, and where it leads.
    last: Option<(Vec<u8>, Option<Vec<u8>>)>,
}

impl Through {
    /// No symlinks yet.
    pub fn new(reach: Reach) -> Self {
        Self {
            reach,
            links: BTreeMap::new(),
            len: 0,
            len_max: LINKS_LEN_MAX,
            last: None,
        }
    }

    /// Replaces symlinks in the directories of the member's path, and of a hard link's target, by
    /// where they lead; then takes note of the member. A path that leads nowhere stays as it is,
    /// and so do paths that no tree can have.
    pub fn follow(&mut self, member: &mut Member) {
        let is_link = member.kind == MemberKind::Entry(FileKind::Symlink);
        if self.links.is_empty() && !is_link {
            return;
        }
        let leads = self.rewrite(&mut member.path);
        if member.kind == MemberKind::HardLink {
            self.rewrite(&mut member.target);
        }
        if leads && let Some(path) = plain(&member.path, self.reach) {
            let target = is_link.then_some(member.target.as_slice());
            self.note(path, target, member.kind);
        }
    }

    /// Rewrites a path; false if it leads nowhere.
    fn rewrite(&mut self, path: &mut Vec<u8>) -> bool {
        let end = path.iter().rposition(|&b| b != b'/').map_or(0, |at| at + 1);
        let slash = path[..end].iter().rposition(|&b| b == b'/');
        let Some(slash) = slash.filter(|_| !self.links.is_empty()) else {
            return true;
        };
        let Some(dir) = plain(&path[..slash], self.reach) else {
            return false;
        };
        let known = self.last.as_ref().filter(|(last, _)| *last == dir);
        let resolved = match known {
            Some((_, resolved)) => resolved.clone(),
            None => self.resolve(&dir),
        };
        self.last = Some((dir.clone(), resolved.clone()));
        match resolved {
            None => false,
            Some(resolved) if resolved == dir => true,
            Some(mut resolved) => {
                if resolved.is_empty() {
                    resolved.push(b'.');
                }
                *path = [&resolved, &path[slash..]].concat();
                true
            }
        }
    }

    /// The directory that `dir`, a path of plain names, leads to.
    fn resolve(&self, dir: &[u8]) -> Option<Vec<u8>> {
        let mut remaining: Vec<&[u8]> = names(dir).rev().collect();
        let mut found: Vec<u8> = Vec::new();
        let (mut link_count, mut step_count) = (0, 0);
        while let Some(name) = remaining.pop() {
            step_count += usize::from(link_count > 0);
            if step_count > STEP_COUNT_MAX || found.len() > PATH_LEN_MAX {
                return None;
            }
            let above = found.iter().rposition(|&b| b == b'/').unwrap_or(0);
            match name {
                b"." => continue,
                b".." if found.is_empty() && self.reach == Reach::Inside => return None,
                b".." => {
                    found.truncate(above);
                    continue;
                }
                _ => {}
            }
            let before = found.len();
            if before > 0 {
                found.push(b'/');
            }
            found.extend_from_slice(name);
            let Some(target) = self.links.get(&found) else {
                continue;
            };
            link_count += 1;
            let is_absolute = target.first() == Some(&b'/');
            if link_count > LINK_COUNT_MAX || (is_absolute && self.reach == Reach::Inside) {
                return None;
            }
            found.truncate(if is_absolute { 0 } else { before });
            remaining.extend(names(target).rev());
        }
        Some(found)
    }

    /// Remembers a symlink, and forgets what a member replaces.
    fn note(&mut self, path: Vec<u8>, target: Option<&[u8]>, kind: MemberKind) {
        self.forget(&path);
        if kind != MemberKind::Entry(FileKind::Directory) {
            let below = [&path[..], b"/"].concat();
            let behind = [&path[..], b"0"].concat();
            let gone: Vec<Vec<u8>> = self
                .links
                .range(below..behind)
                .map(|(path, _)| path.clone())
                .collect();
            gone.iter().for_each(|path| self.forget(path));
        }
        let Some(target) = target else {
            return;
        };
        let len = path.len() + target.len() + LINK_LEN;
        if self.len + len <= self.len_max {
            self.len += len;
            self.last = None;
            self.links.insert(path, target.to_vec());
        }
    }

    fn forget(&mut self, path: &[u8]) {
        if let Some(target) = self.links.remove(path) {
            self.len -= path.len() + target.len() + LINK_LEN;
            self.last = None;
        }
    }
}

fn names(path: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    path.split(|&b| b == b'/').filter(|name| !name.is_empty())
}

/// The names of a path with single slashes between; `None` for one that may lead out of a tree, or
/// that is too long.
fn plain(path: &[u8], reach: Reach) -> Option<Vec<u8>> {
    let is_absolute = path.first() == Some(&b'/');
    if (is_absolute && reach == Reach::Inside) || path.len() > PATH_LEN_MAX {
        return None;
    }
    let mut found: Vec<u8> = Vec::with_capacity(path.len());
    for name in names(path).filter(|name| *name != b".") {
        if name == b".." {
            return None;
        }
        if !found.is_empty() {
            found.push(b'/');
        }
        found.extend_from_slice(name);
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(kind: FileKind, path: &str, target: &str) -> Member {
        Member {
            path: path.as_bytes().to_vec(),
            kind: MemberKind::Entry(kind),
            target: target.as_bytes().to_vec(),
            ..Member::default()
        }
    }

    /// Where a file at `path` lies after the symlinks `links`.
    fn led(reach: Reach, links: &[(&str, &str)], path: &str) -> String {
        let mut through = Through::new(reach);
        for (path, target) in links {
            through.follow(&mut member(FileKind::Symlink, path, target));
        }
        let mut file = member(FileKind::Regular, path, "");
        through.follow(&mut file);
        String::from_utf8(file.path).unwrap()
    }

    /// Would catch: a symlink that leads elsewhere than in an extraction, or out of the tree.
    #[test]
    fn symlinks_on_the_way_lead_where_an_extraction_goes() {
        let bin: &[(&str, &str)] = &[("bin", "usr/bin")];
        let both = [Reach::Inside, Reach::Rooted];
        for (links, path, expected) in [
            (bin, "bin/foo", "usr/bin/foo"),
            (bin, "./bin//sub/foo/", "usr/bin/sub/foo/"),
            (bin, "bin", "bin"),
            (bin, "bing/foo", "bing/foo"),
            (&[("a", "b"), ("b", "c/d")], "a/x/y", "c/d/x/y"),
            (&[("usr/l", "../lib/./x")], "usr/l/foo", "lib/x/foo"),
            (&[("a", ".")], "a/a/foo", "./foo"),
            (&[("a", "b"), ("a/c", "d")], "b/c/foo", "b/d/foo"),
            // Circles are left for the refusal.
            (&[("a", "b"), ("b", "a")], "a/foo", "a/foo"),
            (&[("a", "a/x")], "a/foo", "a/foo"),
            (bin, "../bin/foo", "../bin/foo"),
            (bin, "x/../bin/foo", "x/../bin/foo"),
        ] {
            for reach in both {
                assert_eq!(led(reach, links, path), expected, "{reach:?} {links:?}");
            }
        }
        for (target, rooted) in [
            ("/usr/bin", "usr/bin/foo"),
            ("/", "./foo"),
            ("../../out", "out/foo"),
            ("/../out", "out/foo"),
        ] {
            let links = [("bin", target)];
            assert_eq!(led(Reach::Rooted, &links, "bin/foo"), rooted);
            assert_eq!(
                led(Reach::Rooted, &links, "/bin/foo"),
                match rooted {
                    "./foo" => "./foo",
                    rooted => rooted,
                }
            );
            assert_eq!(led(Reach::Inside, &links, "bin/foo"), "bin/foo");
        }
    }

    #[test]
    fn what_replaces_a_symlink_or_the_directory_above_ends_it() {
        for kind in [FileKind::Directory, FileKind::Regular] {
            let mut through = Through::new(Reach::Rooted);
            through.follow(&mut member(FileKind::Symlink, "d/bin", "../usr"));
            through.follow(&mut member(kind, "./d/bin/", ""));
            let mut file = member(FileKind::Regular, "d/bin/foo", "");
            through.follow(&mut file);
            assert_eq!(file.path, b"d/bin/foo");
        }
        let mut through = Through::new(Reach::Rooted);
        through.follow(&mut member(FileKind::Symlink, "d/bin", "../usr"));
        through.follow(&mut member(FileKind::Symlink, "d", "e"));
        let mut file = member(FileKind::Regular, "d/bin/foo", "");
        through.follow(&mut file);
        assert_eq!(file.path, b"e/bin/foo");
    }

    /// Would catch: memory and time that a hostile stream chooses.
    #[test]
    fn many_symlinks_and_long_ways_are_bounded() {
        let mut through = Through::new(Reach::Rooted);
        through.len_max = 1000;
        for no in 0..100 {
            through.follow(&mut member(FileKind::Symlink, &format!("l{no}"), "usr"));
        }
        assert!(through.len <= 1000 && through.links.len() < 12);
        let far = "a/".repeat(1300);
        assert_eq!(led(Reach::Rooted, &[("l", &far)], "l/foo"), "l/foo");
        let chain: Vec<(String, String)> = (0..60)
            .map(|no| (format!("l{no}"), format!("l{}", no + 1)))
            .collect();
        let links: Vec<(&str, &str)> = chain.iter().map(|(a, b)| (&**a, &**b)).collect();
        assert_eq!(led(Reach::Rooted, &links, "l0/foo"), "l0/foo");
        assert_eq!(led(Reach::Rooted, &links, "l30/foo"), "l60/foo");
    }
}
