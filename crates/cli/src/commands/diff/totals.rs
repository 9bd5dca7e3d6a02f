//! What differs in each directory, in files and bytes.

use crate::json::{numbers, put_name};
use crate::messages;
use crate::output::Output;
use crate::progress::count;
use std::collections::BTreeMap;
use std::io;
use weald_format::FileKind;
use weald_vfs::{Difference, Only, shown_path};

/// Files and bytes that differ.
#[derive(Debug, Default, Clone, Copy)]
struct Total {
    added_count: u64,
    added_len: u64,
    removed_count: u64,
    removed_len: u64,
    changed_count: u64,
    /// By how much the changed files are longer.
    grown_len: i64,
    failed_count: u64,
}

impl Total {
    fn plus(&mut self, other: &Self) {
        self.added_count += other.added_count;
        self.added_len += other.added_len;
        self.removed_count += other.removed_count;
        self.removed_len += other.removed_len;
        self.changed_count += other.changed_count;
        self.grown_len += other.grown_len;
        self.failed_count += other.failed_count;
    }

    fn line(&self) -> String {
        let sign = if self.grown_len < 0 { '-' } else { '+' };
        let cells = [
            format!("+{}", count(self.added_count)),
            count(self.added_len),
            format!("-{}", count(self.removed_count)),
            count(self.removed_len),
            format!("*{}", count(self.changed_count)),
            format!("{sign}{}", count(self.grown_len.unsigned_abs())),
        ];
        let [added, added_len, removed, removed_len, changed, grown] = cells;
        format!(
            "{added:>9} {added_len:>16}  {removed:>9} {removed_len:>16}  {changed:>9} {grown:>16}"
        )
    }
}

/// The totals of all directories down to a level.
#[derive(Debug)]
pub struct Totals {
    depth: usize,
    dirs: BTreeMap<Vec<u8>, Total>,
}

impl Totals {
    /// Totals of directories down to `depth` levels; everything below counts for them.
    pub fn new(depth: usize) -> Self {
        Self {
            depth,
            dirs: BTreeMap::new(),
        }
    }

    /// Counts a difference. What could not be compared is a line of its own.
    pub fn add(
        &mut self,
        path: &[u8],
        difference: &Difference,
        output: &mut Output,
    ) -> io::Result<()> {
        let len = |only: &Only| match only.kind {
            FileKind::Regular => only.len,
            _ => 0,
        };
        let mut total = Total::default();
        match difference {
            Difference::OnlyLeft(only) => {
                (total.removed_count, total.removed_len) = (1, len(only));
            }
            Difference::OnlyRight(only) => (total.added_count, total.added_len) = (1, len(only)),
            Difference::Changed(changed) => {
                let [old, new] = changed.lens;
                total.changed_count = 1;
                // A directory or a symlink has a size, too, which is not that of a content.
                if changed.is_file {
                    total.grown_len = new.wrapping_sub(old) as i64;
                }
            }
            Difference::Failed(error) => {
                total.failed_count = 1;
                let why = messages::one_line(error);
                writeln!(output, "! {}: {why}", shown_path(path))?;
            }
        }
        let dir = self.dir_of(path).to_vec();
        self.dirs.entry(dir).or_default().plus(&total);
        Ok(())
    }

    /// The directory that `path` counts for.
    fn dir_of<'a>(&self, path: &'a [u8]) -> &'a [u8] {
        let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        let within = slashes.map(|(at, _)| at).take(self.depth).last();
        &path[..within.unwrap_or(0)]
    }

    /// Prints a line for each directory in which something differs, and the sums.
    pub fn print(&self, is_json: bool, output: &mut Output) -> io::Result<()> {
        let mut sum = Total::default();
        for (dir, total) in &self.dirs {
            sum.plus(total);
            if is_json {
                let mut object = numbers(&[
                    ("added_count", total.added_count),
                    ("added_len", total.added_len),
                    ("removed_count", total.removed_count),
                    ("removed_len", total.removed_len),
                    ("changed_count", total.changed_count),
                    ("failed_count", total.failed_count),
                ]);
                object.insert("grown_len".into(), total.grown_len.into());
                put_name(&mut object, "path", dir);
                output.json(&object.into())?;
            } else {
                writeln!(output, "{}  {}/", total.line(), shown_path(dir))?;
            }
        }
        if !is_json {
            writeln!(output, "{}  in all", sum.line())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch: a path that counts for a directory beside it, or too deep.
    #[test]
    fn paths_count_for_directories_down_to_a_level() {
        for (depth, path, dir) in [
            (0, "a/b/c", ""),
            (1, "a", ""),
            (1, "a/b", "a"),
            (1, "a/b/c", "a"),
            (2, "a/b", "a"),
            (2, "a/b/c/d", "a/b"),
            (9, "a/b/c", "a/b"),
        ] {
            let found = Totals::new(depth);
            assert_eq!(found.dir_of(path.as_bytes()), dir.as_bytes(), "{path}");
        }
    }
}
