//! A load for a file system that is about to be killed, and the judgement over what is left of it.
//!
//! The load makes one system call after the other, chosen from a seed, and notes each sync that
//! succeeded in a log elsewhere. Afterwards the tree must be as it was after one of the calls, and
//! not before the last sync.

use crate::rng::Rng;
use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::fs::{self, File, OpenOptions};
use std::hash::{Hash, Hasher};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Most names in the tree.
const NAME_COUNT: u64 = 60;
/// Longest write. FUSE passes it as one request.
const LOAD_WRITE_LEN_MAX: u64 = 100_000;
/// Longest file.
const LOAD_FILE_LEN_MAX: u64 = 400_000;

/// One system call.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Call {
    Create(String),
    Write(String, u64, Vec<u8>),
    Truncate(String, u64),
    Rename(String, String),
    Link(String, String),
    Unlink(String),
    Sync(String),
}

impl Call {
    fn shown(&self) -> String {
        match self {
            Self::Write(name, offset, bytes) => {
                format!("a write of {} bytes to {name} at {offset}", bytes.len())
            }
            other => format!("{other:?}"),
        }
    }
}

/// A file of the model; names of one file have the same number.
#[derive(Debug, Clone, Default)]
struct Content {
    bytes: Vec<u8>,
    hash: u64,
}

/// The tree as it should be, and the calls that come next.
struct Load {
    rng: Rng,
    names: BTreeMap<String, usize>,
    files: Vec<Content>,
}

fn hash_of(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

impl Load {
    fn new(seed: u64) -> Self {
        Self {
            rng: Rng::new(seed),
            names: BTreeMap::new(),
            files: Vec::new(),
        }
    }

    fn some_name(&mut self) -> String {
        format!("n{}", self.rng.below(NAME_COUNT))
    }

    /// The next call, which succeeds on the tree as it is now.
    fn next(&mut self) -> Call {
        let new = self.some_name();
        let names: Vec<&String> = self.names.keys().collect();
        let existing = if names.is_empty() {
            return Call::Create(new);
        } else {
            names[self.rng.below(names.len() as u64) as usize].clone()
        };
        let len = self.files[self.names[&existing]].bytes.len() as u64;
        let is_new = !self.names.contains_key(&new);
        match self.rng.below(40) {
            0..8 if is_new => Call::Create(new),
            8..12 if new != existing && !self.are_one(&new, &existing) => {
                Call::Rename(existing, new)
            }
            12..14 if is_new => Call::Link(existing, new),
            14..17 => Call::Unlink(existing),
            17..19 => Call::Truncate(existing, self.rng.below(len + 10_000)),
            19 => Call::Sync(existing),
            _ => {
                let offset = match self.rng.below(3) {
                    0 => len,
                    1 => self.rng.below(len + 1),
                    _ => self.rng.below(len + 1) / 4096 * 4096,
                };
                let offset = offset.min(LOAD_FILE_LEN_MAX - LOAD_WRITE_LEN_MAX);
                let len = 1 + self.rng.below(LOAD_WRITE_LEN_MAX);
                let seed = match self.rng.below(2) {
                    0 => self.rng.below(20),
                    _ => self.rng.next_u64(),
                };
                Call::Write(existing, offset, Rng::new(seed).bytes(len as usize))
            }
        }
    }

    fn are_one(&self, a: &str, b: &str) -> bool {
        self.names.get(a).is_some_and(|no| self.names[b] == *no)
    }

    fn apply(&mut self, call: &Call) {
        match call {
            Call::Create(name) => {
                self.files.push(Content::default());
                self.files.last_mut().expect("a file").hash = hash_of(&[]);
                self.names.insert(name.clone(), self.files.len() - 1);
            }
            Call::Write(name, offset, new) => self.change(name, |bytes| {
                let start = *offset as usize;
                let end = start + new.len();
                bytes.resize(bytes.len().max(end), 0);
                bytes[start..end].copy_from_slice(new);
            }),
            Call::Truncate(name, len) => self.change(name, |bytes| bytes.resize(*len as usize, 0)),
            Call::Rename(from, to) => {
                let file = self.names.remove(from).expect("a name");
                self.names.insert(to.clone(), file);
            }
            Call::Link(from, to) => drop(self.names.insert(to.clone(), self.names[from])),
            Call::Unlink(name) => drop(self.names.remove(name)),
            Call::Sync(_) => {}
        }
    }

    fn change(&mut self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let file = &mut self.files[self.names[name]];
        change(&mut file.bytes);
        file.hash = hash_of(&file.bytes);
    }

    /// Hash of each file by name.
    fn hashes(&self) -> BTreeMap<&str, u64> {
        let names = self.names.iter();
        names
            .map(|(name, file)| (name.as_str(), self.files[*file].hash))
            .collect()
    }
}

fn make(dir: &Path, call: &Call) -> io::Result<()> {
    let at = |name: &String| dir.join(name);
    let open = |name: &String| OpenOptions::new().write(true).open(at(name));
    match call {
        Call::Create(name) => File::create_new(at(name)).map(drop),
        Call::Write(name, offset, bytes) => open(name)?.write_all_at(bytes, *offset),
        Call::Truncate(name, len) => open(name)?.set_len(*len),
        Call::Rename(from, to) => fs::rename(at(from), at(to)),
        Call::Link(from, to) => fs::hard_link(at(from), at(to)),
        Call::Unlink(name) => fs::remove_file(at(name)),
        Call::Sync(name) => open(name)?.sync_all(),
    }
}

/// Works in the empty directory `dir` until a call fails, and returns the number of calls that
/// succeeded and the error. Appends the number of the call to `log` after each sync.
///
/// # Errors
/// Those of the log.
pub fn run(dir: &Path, seed: u64, log: &mut File) -> io::Result<(u64, io::Error)> {
    let mut load = Load::new(seed);
    for number in 0.. {
        let call = load.next();
        if let Err(error) = make(dir, &call) {
            return Ok((number, error));
        }
        load.apply(&call);
        if matches!(call, Call::Sync(_)) {
            writeln!(log, "{}", number + 1)?;
        }
    }
    Err(io::Error::other("the load ended"))
}

fn difference(name: &str, wanted: &[u8], found: Option<&Vec<u8>>) -> String {
    let Some(found) = found else {
        return format!("{name} is missing");
    };
    let equal = |(a, b): &(&u8, &u8)| a == b;
    let first = wanted.iter().zip(found).take_while(equal).count();
    let ends = wanted.iter().rev().zip(found.iter().rev());
    let behind = ends.take_while(equal).count();
    format!(
        "{name} has {} bytes, not {}; they differ from byte {first} to {behind} before the end",
        found.len(),
        wanted.len()
    )
}

/// Whether `found` is `old` with the beginning of the write: the kernel passes a write in several
/// requests.
fn is_part_of_write(old: &[u8], offset: usize, new: &[u8], found: &[u8]) -> bool {
    let equal = |(a, b): &(&u8, &u8)| a == b;
    let written = if found.len() > old.len() {
        found.len().saturating_sub(offset)
    } else {
        let found = found.get(offset..).unwrap_or_default();
        new.iter().zip(found).take_while(equal).count()
    };
    let mut wanted = old.to_vec();
    let Some(part) = new.get(..written) else {
        return false;
    };
    wanted.resize(old.len().max(offset + written), 0);
    wanted[offset..offset + written].copy_from_slice(part);
    wanted == found
}

/// Judges what is in `dir` after a crash that happened within call `made`, when `synced` calls were
/// acknowledged as durable. Returns the number of calls that survived.
///
/// # Errors
/// A description of what is wrong.
pub fn judge(dir: &Path, seed: u64, synced: u64, made: u64) -> Result<u64, String> {
    let mut found = BTreeMap::new();
    // Making the directory was an operation, too, and was not synced alone.
    if synced == 0 && !dir.exists() {
        return Ok(0);
    }
    let entries = fs::read_dir(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    for entry in entries {
        let path = entry.map_err(|e| e.to_string())?.path();
        let bytes = fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        found.insert(name.into_owned(), (hash_of(&bytes), bytes));
    }
    let mut load = Load::new(seed);
    let mut survived = None;
    let mut fewest = usize::MAX;
    let mut nearest = String::new();
    for number in 0..=made + 1 {
        let wanted = load.hashes();
        let differing = wanted
            .iter()
            .filter(|(name, hash)| found.get(**name).is_none_or(|(found, _)| found != *hash))
            .map(|(name, _)| (*name).to_owned());
        let differing: Vec<String> = differing.collect();
        let has_names = wanted.len() == found.len();
        drop(wanted);
        let call = load.next();
        let is_within_call = || match &call {
            // Each name of the file shows the part.
            Call::Write(name, offset, new) => {
                let file = load.names[name];
                let old = &load.files[file].bytes;
                differing.iter().all(|name| {
                    load.names[name] == file
                        && found.get(name).is_some_and(|(_, found)| {
                            is_part_of_write(old, *offset as usize, new, found)
                        })
                })
            }
            _ => false,
        };
        if has_names && (differing.is_empty() || is_within_call()) {
            survived = Some(number);
        } else if number >= synced && differing.len() < fewest {
            fewest = differing.len();
            let shown = differing.iter().map(|name| {
                let wanted = &load.files[load.names[name]].bytes;
                difference(name, wanted, found.get(name).map(|(_, bytes)| bytes))
            });
            let shown: Vec<String> = shown.collect();
            nearest = format!(
                "after {number} calls: {}; the next call is {}",
                shown.join("; "),
                call.shown()
            );
        }
        load.apply(&call);
    }
    match survived {
        Some(survived) if survived >= synced => Ok(survived),
        Some(survived) => Err(format!(
            "{survived} of {made} calls survived, and {synced} were synced"
        )),
        None => Err(format!(
            "the tree is none of its {made} states; {} names, {nearest}",
            found.len()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch: a load that its own judge does not accept, and a judge that accepts everything.
    #[test]
    fn a_load_that_ends_well_is_accepted_and_a_changed_one_is_not() {
        let place = tempfile::tempdir().expect("a directory");
        let (dir, log) = (place.path().join("dir"), place.path().join("log"));
        fs::create_dir(&dir).expect("a directory");
        let mut load = Load::new(5);
        for _ in 0..500 {
            let call = load.next();
            make(&dir, &call).expect("a call");
            load.apply(&call);
        }
        assert_eq!(judge(&dir, 5, 500, 500), Ok(500));
        judge(&dir, 5, 501, 501).expect_err("a lost call");
        let name = load.names.keys().next().expect("a name");
        let file = OpenOptions::new().append(true).open(dir.join(name));
        file.and_then(|mut file| file.write_all(b"x"))
            .expect("write");
        judge(&dir, 5, 0, 500).expect_err("another byte");
        drop(log);
    }

    /// Would catch: a judge that refuses the beginning of a write, or accepts the end of one.
    #[test]
    fn the_beginning_of_a_write_may_survive_alone() {
        let place = tempfile::tempdir().expect("a directory");
        let dir = place.path();
        let mut load = Load::new(11);
        let mut made = 0;
        // The next call writes behind the end of a file with several names.
        let (name, offset, bytes) = loop {
            let call = load.next();
            if let Call::Write(name, offset, bytes) = &call {
                let file = load.names[name];
                let names = load.names.values().filter(|other| **other == file);
                let len = load.files[file].bytes.len() as u64;
                if names.count() > 1 && *offset == len && bytes.len() > 1000 {
                    break (name.clone(), *offset, bytes.clone());
                }
            }
            make(dir, &call).expect("a call");
            load.apply(&call);
            made += 1;
        };
        let file = OpenOptions::new().write(true).open(dir.join(&name));
        let file = file.expect("open");
        file.write_all_at(&bytes[..1000], offset).expect("write");
        assert_eq!(judge(dir, 11, made, made), Ok(made));
        file.write_all_at(&[!bytes[999]], offset + 999)
            .expect("write");
        judge(dir, 11, made, made).expect_err("other bytes");
    }
}
