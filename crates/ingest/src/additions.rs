//! Reads the entries that are laid over a source, as lines of mtree(5).

use crate::input::Input;
use crate::mtree::{Line, Lines, owner};
use crate::path;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use weald_builder::{Addition, Given};
use weald_format::{Error, Result};

/// Most lines of a file: each takes about 300 bytes of memory.
const ADDITIONS_MAX: usize = 1 << 20;
/// Bytes of contents that are compared with a digest at once.
const PIECE_LEN: usize = 1 << 20;

/// Reads the lines of the file at `file`, and compares contents with the digests of their lines.
/// Paths of contents lead from the working directory.
///
/// # Errors
/// `Io`, `NotFound`; `Invalid`, `Unsupported` and `Limit` with the file and the number of the line.
pub fn read_additions(file: &Path) -> Result<Vec<Addition>> {
    let shown = file.display();
    let opened = File::open(file).map_err(|e| Error::io(shown.to_string(), e))?;
    let mut lines = Lines::new(Input::plain(Box::new(BufReader::new(opened)))?);
    let mut additions = Vec::new();
    while let Some(line) = lines.next_entry().map_err(|e| e.context(&shown))? {
        if additions.len() == ADDITIONS_MAX {
            return Err(Error::limit(format!(
                "{shown}: more than {ADDITIONS_MAX} entries"
            )));
        }
        let place = format!("{shown}, line {}", lines.line_no());
        let addition = addition(line, &place).map_err(|e| e.context(&place))?;
        additions.push(addition);
    }
    Ok(additions)
}

fn addition(Line { path, keys }: Line, place: &str) -> Result<Addition> {
    let mut key = Vec::new();
    path::put_key(&path, &mut key)?;
    let has_uid = keys.uid.is_some() || keys.uname.is_some();
    let has_gid = keys.gid.is_some() || keys.gname.is_some();
    let uid = has_uid
        .then(|| owner(keys.uid, keys.uname.as_ref()))
        .transpose()?;
    let gid = has_gid
        .then(|| owner(keys.gid, keys.gname.as_ref()))
        .transpose()?;
    let contents = keys
        .contents
        .map(|path| PathBuf::from(OsStr::from_bytes(&path)));
    if let Some(path) = contents.as_deref().filter(|_| !keys.checks.is_empty()) {
        let read = compare(path, keys.checks);
        if let Some(word) = read.map_err(|e| Error::io(path.display().to_string(), e))? {
            let what = format!("{word}: {} has another digest", path.display());
            return Err(Error::invalid(what));
        }
    }
    Ok(Addition {
        path: path::path_of(&key),
        kind: keys.kind,
        given: Given {
            permissions: keys.mode,
            uid,
            gid,
            mtime: keys.time,
        },
        rdev: keys.device,
        target: keys.link,
        contents,
        size: keys.size,
        place: place.to_owned(),
    })
}

/// The keyword of a digest that the file at `path` does not have.
fn compare(
    path: &Path,
    mut checks: Vec<crate::mtree::Check>,
) -> std::io::Result<Option<&'static str>> {
    let (mut file, mut piece) = (File::open(path)?, vec![0; PIECE_LEN]);
    loop {
        let len = file.read(&mut piece)?;
        if len == 0 {
            break;
        }
        let bytes = piece.get(..len).unwrap_or_default();
        checks.iter_mut().for_each(|check| check.update(bytes));
    }
    Ok(checks.into_iter().find_map(crate::mtree::Check::wrong))
}
