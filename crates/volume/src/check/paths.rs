//! Names the files of findings: the tables lead from names to inodes, and a finding has an inode.

use super::report::Finding;
use super::scan::each_row;
use std::collections::{BTreeMap, BTreeSet};
use weald_format::volume::{InodeRow, NamePlace, NameRow, VolumeRow};
use weald_format::{FileKind, Ino, Result};
use weald_store::engine::Table;
use weald_store::{Names, StoreWriter, path_of};

/// Most bytes of the names above a file that are looked up.
const PATH_LEN_MAX: usize = 4096;

/// What a finding is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// No file.
    Nothing,
    /// An inode.
    Inode(Ino),
    /// A name: its directory, and its inode.
    Entry(Ino, Vec<u8>, Ino),
}

/// A finding whose file has no path yet.
pub type PathlessFinding = (Subject, String);

/// Finds the paths of findings.
///
/// # Errors
/// `Io`.
pub fn named(
    writer: &StoreWriter,
    volume: &VolumeRow,
    inodes: &BTreeMap<Ino, InodeRow>,
    found: Vec<PathlessFinding>,
) -> Result<Vec<Finding>> {
    let mut wanted: BTreeSet<Ino> = BTreeSet::new();
    for (subject, _) in &found {
        match subject {
            Subject::Nothing => {}
            Subject::Inode(ino) => drop(wanted.insert(*ino)),
            Subject::Entry(dir, ..) => drop(wanted.insert(*dir)),
        }
    }
    let mut names = Names::new();
    read_names(writer, volume, &wanted, &mut names)?;
    // Names lead to the directories of files, and parents to those above.
    let mut above = BTreeSet::new();
    let known: Vec<Ino> = names.values().map(|(dir, _)| *dir).chain(wanted).collect();
    for ino in known {
        let (mut at, mut len) = (ino, 0);
        while at != volume.root && len < PATH_LEN_MAX && above.insert(at) {
            len += 2;
            match inodes.get(&at) {
                Some(row) if row.kind == FileKind::Directory => at = row.parent,
                _ => break,
            }
        }
    }
    above.retain(|ino| !names.contains_key(ino));
    if !above.is_empty() {
        read_names(writer, volume, &above, &mut names)?;
    }
    let finding = |(subject, what)| finding(volume.root, &names, subject, what);
    Ok(found.into_iter().map(finding).collect())
}

/// Reads one name of each inode that is `wanted`.
fn read_names(
    writer: &StoreWriter,
    volume: &VolumeRow,
    wanted: &BTreeSet<Ino>,
    names: &mut Names,
) -> Result<()> {
    if wanted.is_empty() {
        return Ok(());
    }
    let of = (Table::Names, volume.volume_no);
    // What is wrong with the rows is known.
    each_row(&*writer.engine(), of, &mut |key, value| {
        let (_, NamePlace { dir, .. }) = NamePlace::split_key(key)?;
        let row = NameRow::parse(value)?;
        if wanted.contains(&row.ino) {
            names.entry(row.ino).or_insert((dir, row.name));
        }
        Ok(())
    })?;
    Ok(())
}

fn finding(root: Ino, names: &Names, subject: Subject, what: String) -> Finding {
    let mut finding = Finding::new(what);
    match subject {
        Subject::Nothing => {}
        Subject::Inode(ino) => {
            finding.inode = Some(ino);
            finding.path = match names.get(&ino) {
                _ if ino == root => Some(Vec::new()),
                Some((dir, name)) => Some(path_of(names, root, *dir, name)),
                None => None,
            };
        }
        Subject::Entry(dir, name, ino) => {
            finding.inode = Some(ino);
            finding.path = Some(path_of(names, root, dir, &name));
        }
    }
    finding
}
