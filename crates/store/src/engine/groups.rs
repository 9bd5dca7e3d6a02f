//! Changes of rows that lie in groups.
//!
//! The key of a group in redb is a lower bound: above the last key of the group before, and at most
//! the first key of the group. A group takes one page of redb. Rows that come in ascending order
//! leave full pages behind; a row between others divides a full group in the middle. A group that
//! became small joins a neighbour.

use super::page::pair_len_max;
use super::sealed_group::Sealer;
use super::{Change, Table};
use std::ops::{Bound, Range};
use std::sync::Arc;
use weald_format::Result;
use weald_format::journal::RowSum;
use weald_format::row_group::{GROUP_LEN_MAX, GROUP_ROWS_MAX, Rows, separator};

/// Bytes below which a group looks for a neighbour to join.
fn small_len() -> usize {
    pair_len_max() / 4
}

/// Most bytes of two groups that join. The rest is space for later rows.
fn joined_len_max() -> usize {
    pair_len_max() / 4 * 3
}

/// Trials for the number of rows that fill a page.
const TRIALS: usize = 4;

/// Key and stored bytes of a group.
pub(super) type Group = (Vec<u8>, Vec<u8>);

/// The groups of one table: keys, and values as [`Sealer::seal`] makes them.
pub(super) trait Groups {
    /// The group with the greatest key at or below `key`.
    fn at_or_before(&self, key: &[u8]) -> Result<Option<Group>>;

    /// The group with the greatest key below `key`.
    fn before(&self, key: &[u8]) -> Result<Option<Group>>;

    /// The smallest key of a group within `bounds`.
    fn first_key_in(&self, bounds: (Bound<&[u8]>, Bound<&[u8]>)) -> Result<Option<Vec<u8>>>;

    /// The rows of a group.
    fn open(&self, group: &Group) -> Result<Arc<Rows>>;

    /// Adds or replaces a group, which has `rows`.
    fn put(&mut self, key: &[u8], value: &[u8], rows: Rows) -> Result<()>;

    /// Removes a group.
    fn remove(&mut self, key: &[u8]) -> Result<()>;
}

/// Rows that one or more groups had, changed, on the way to new groups.
#[derive(Default)]
struct Open {
    /// Lower bound that the first new group keeps; `None` if it needs one.
    key: Option<Vec<u8>>,
    /// Last key of the group that was written before.
    last_key: Vec<u8>,
    /// Keys of the old groups.
    old_keys: Vec<Vec<u8>>,
    rows: Rows,
    /// Whether all new rows lie behind the old ones.
    is_appended: bool,
    /// Rows that filled a page before.
    filling_count: usize,
    /// Key of the next group.
    upper: Option<Vec<u8>>,
}

impl Open {
    /// Keeps the rows in `range`; those before it are written.
    fn keep(&mut self, range: Range<usize>) -> Result<()> {
        let mut rows = Rows::default();
        for (key, value) in self.rows.within(range.clone()) {
            rows.push(key, value)?;
        }
        let before = range.start.checked_sub(1).and_then(|i| self.rows.get(i));
        self.last_key = before.map(|(key, _)| key.to_vec()).unwrap_or_default();
        (self.key, self.rows) = (None, rows);
        Ok(())
    }
}

/// Applies changes to the groups of a table.
pub(super) struct Editor<'a, G> {
    pub table: Table,
    pub sealer: &'a Sealer,
    pub groups: G,
    /// Sum of the rows of the table and of others, which changes with them.
    pub sum: RowSum,
}

/// Part of the rows of an [`Open`], and its stored bytes.
type OpenPart = (Range<usize>, Vec<u8>);

impl<G: Groups> Editor<'_, G> {
    /// Applies `changes`, of which the last one of a key counts.
    ///
    /// # Errors
    /// `Corrupt`, and the errors of `groups`.
    pub fn apply(&mut self, mut changes: Vec<&Change>) -> Result<()> {
        changes.sort_by(|a, b| a.key.cmp(&b.key));
        let mut rest = changes.as_slice();
        while let Some(first) = rest.first() {
            let mut open = Open::default();
            let group = self.groups.at_or_before(&first.key)?;
            self.absorb(&mut open, group, &mut rest)?;
            while !self.write(&mut open, rest)? {
                let group = match open.upper.take() {
                    Some(key) => self.groups.at_or_before(&key)?,
                    None => None,
                };
                self.absorb(&mut open, group, &mut rest)?;
            }
        }
        Ok(())
    }

    /// Adds the rows of `group` and its changes to `open`.
    fn absorb(
        &mut self,
        open: &mut Open,
        group: Option<Group>,
        rest: &mut &[&Change],
    ) -> Result<()> {
        let old = match &group {
            Some(group) => self.groups.open(group)?,
            None => Arc::default(),
        };
        let from = group.as_ref().map(|(key, _)| key.as_slice());
        let after = from.map_or(Bound::Unbounded, Bound::Excluded);
        open.upper = self.groups.first_key_in((after, Bound::Unbounded))?;
        let count = match &open.upper {
            Some(upper) => rest.partition_point(|change| change.key < *upper),
            None => rest.len(),
        };
        let (own, others) = rest.split_at(count);
        *rest = others;
        let is_behind = |last: &[u8]| own.iter().all(|change| change.key.as_slice() > last);
        open.is_appended = old.last_key().is_none_or(is_behind);
        open.filling_count = old.count();
        // The bound of the first group stays; rows in front of it have another one.
        let is_first = open.rows.is_empty() && open.key.is_none() && open.last_key.is_empty();
        merge(&mut open.rows, &old, own, self.table, &mut self.sum)?;
        if let Some((key, _)) = group {
            if is_first {
                open.key = Some(key.clone());
            }
            open.old_keys.push(key);
        }
        Ok(())
    }

    /// Writes the rows of `open` as groups. Returns `false` if the rows that are left belong
    /// together with the next group.
    fn write(&mut self, open: &mut Open, rest: &[&Change]) -> Result<bool> {
        let count = open.rows.count();
        if count == 0 {
            self.replace(open, &[])?;
            return Ok(true);
        }
        let whole = if is_within_limits(&open.rows, &(0..count)) {
            Some(self.seal(open, 0..count)?)
        } else {
            None
        };
        if let Some(whole) = whole.filter(|(len, _)| *len <= pair_len_max()) {
            let (len, stored) = whole;
            if len < small_len() {
                if self.next_joins(open, len)? {
                    return Ok(false);
                }
                self.join_previous(open, len)?;
                if open.rows.count() != count {
                    return self.write(open, rest);
                }
            }
            self.replace(open, &[(0..count, stored)])?;
            return Ok(true);
        }
        let is_next_changed = match (&open.upper, rest.first()) {
            (Some(upper), Some(change)) => {
                let between = (
                    Bound::Excluded(upper.as_slice()),
                    Bound::Included(change.key.as_slice()),
                );
                self.groups.first_key_in(between)?.is_none()
            }
            _ => false,
        };
        let mut parts = if is_next_changed || open.is_appended {
            self.fill(open, 0..count)?
        } else {
            self.halve(open, 0..count)?
        };
        #[cfg(any(test, feature = "planted-bugs"))]
        if super::page::trial::loses_rows() && parts.len() > 1 {
            parts.pop();
        }
        // The last group is seldom full: the next one, which changes anyway, takes its rows.
        if is_next_changed
            && parts.len() > 1
            && let Some((left, _)) = parts.pop()
        {
            self.replace(open, &parts)?;
            open.keep(left)?;
            return Ok(false);
        }
        self.replace(open, &parts)?;
        Ok(true)
    }

    /// Whether the next group and `len` bytes join.
    fn next_joins(&self, open: &Open, len: usize) -> Result<bool> {
        let Some(upper) = &open.upper else {
            return Ok(false);
        };
        let next = self.groups.at_or_before(upper)?;
        Ok(next.is_some_and(|(_, stored)| stored.len() + len <= joined_len_max()))
    }

    /// Puts the rows of the group before in front of those of `open`, if both join.
    fn join_previous(&self, open: &mut Open, len: usize) -> Result<()> {
        let Some(first) = open.key.clone() else {
            return Ok(());
        };
        let Some(before) = self.groups.before(&first)? else {
            return Ok(());
        };
        if before.1.len() + len > joined_len_max() {
            return Ok(());
        }
        let mut rows = Rows::clone(&*self.groups.open(&before)?);
        for (key, value) in open.rows.iter() {
            rows.push(key, value)?;
        }
        open.rows = rows;
        open.key = Some(before.0.clone());
        open.old_keys.push(before.0);
        Ok(())
    }

    /// Replaces the old groups of `open` by `parts`.
    fn replace(&mut self, open: &mut Open, parts: &[OpenPart]) -> Result<()> {
        let keys: Vec<Vec<u8>> = parts.iter().map(|(range, _)| key_of(open, range)).collect();
        for old in open.old_keys.drain(..) {
            if !keys.contains(&old) {
                self.groups.remove(&old)?;
            }
        }
        for (key, (range, stored)) in keys.iter().zip(parts) {
            let rows = self.sealer.open(self.table, key, stored)?;
            let is_same = rows.iter().eq(open.rows.within(range.clone()));
            assert!(is_same, "a group does not decode to what was encoded");
            self.groups.put(key, stored, rows)?;
        }
        Ok(())
    }

    /// The stored bytes of the rows in `range`, and how many bytes of a page they need.
    fn seal(&self, open: &Open, range: Range<usize>) -> Result<(usize, Vec<u8>)> {
        let key = key_of(open, &range);
        let stored = self.sealer.seal(self.table, &key, &open.rows, range)?;
        Ok((key.len() + stored.len(), stored))
    }

    /// Divides the rows in `range` into groups that fill their pages, except the last.
    fn fill(&self, open: &Open, range: Range<usize>) -> Result<Vec<OpenPart>> {
        let mut parts = Vec::new();
        let mut start = range.start;
        let mut guess = open.filling_count.max(16);
        while start < range.end {
            let (count, stored) = self.fill_one(open, start..range.end, guess)?;
            parts.push((start..start + count, stored));
            start += count;
            guess = count;
        }
        Ok(parts)
    }

    /// Finds how many of the first rows in `range` fill a page.
    fn fill_one(&self, open: &Open, range: Range<usize>, guess: usize) -> Result<(usize, Vec<u8>)> {
        let most = largest_count(&open.rows, &range);
        let mut best: Option<(usize, Vec<u8>)> = None;
        let mut too_many = most + 1;
        let mut count = guess.clamp(1, most);
        for trial in 0.. {
            let (len, stored) = self.seal(open, range.start..range.start + count)?;
            if len <= pair_len_max() || count == 1 {
                let is_full = count == most || len >= pair_len_max() / 16 * 15;
                best = Some((count, stored));
                if is_full || trial >= TRIALS {
                    break;
                }
            } else {
                too_many = count;
                if trial >= TRIALS && best.is_some() {
                    break;
                }
            }
            let least = best.as_ref().map_or(1, |(count, _)| count + 1);
            if least >= too_many {
                break;
            }
            // The aim is a little below the limit, since a page that is not quite full costs less
            // than another trial.
            let aim = count * (pair_len_max() / 32 * 31) / len;
            count = aim.clamp(least, too_many - 1);
        }
        best.ok_or_else(|| weald_format::Error::invalid("a group without rows"))
    }

    /// Divides the rows in `range` into groups of about equal length that fit into their pages.
    fn halve(&self, open: &Open, range: Range<usize>) -> Result<Vec<OpenPart>> {
        let (mut parts, mut waiting) = (Vec::new(), vec![range]);
        while let Some(range) = waiting.pop() {
            if is_within_limits(&open.rows, &range) {
                let (len, stored) = self.seal(open, range.clone())?;
                if len <= pair_len_max() || range.len() == 1 {
                    parts.push((range, stored));
                    continue;
                }
            }
            let middle = middle_of(&open.rows, &range);
            waiting.push(middle..range.end);
            waiting.push(range.start..middle);
        }
        Ok(parts)
    }
}

/// Key of the group with the rows in `range`.
fn key_of(open: &Open, range: &Range<usize>) -> Vec<u8> {
    match &open.key {
        Some(key) if range.start == 0 => key.clone(),
        _ => {
            let before = range.start.checked_sub(1).and_then(|i| open.rows.get(i));
            let before = before.map_or(open.last_key.as_slice(), |(key, _)| key);
            let first = open.rows.get(range.start).map_or(&[][..], |(key, _)| key);
            separator(before, first).to_vec()
        }
    }
}

fn is_within_limits(rows: &Rows, range: &Range<usize>) -> bool {
    range.len() == 1 || (range.len() <= GROUP_ROWS_MAX && rows.len_of(range) <= GROUP_LEN_MAX)
}

/// The most rows at the start of `range` that may be one group: at least one.
fn largest_count(rows: &Rows, range: &Range<usize>) -> usize {
    let (mut low, mut high) = (1, range.len().max(1) + 1);
    while low + 1 < high {
        let middle = low.midpoint(high);
        if is_within_limits(rows, &(range.start..range.start + middle)) {
            low = middle
        } else {
            high = middle
        }
    }
    low
}

/// The row that divides `range`, of two rows or more, into halves of about equal length.
fn middle_of(rows: &Rows, range: &Range<usize>) -> usize {
    let half = rows.len_of(range) / 2;
    let (mut low, mut high) = (range.start + 1, range.end - 1);
    while low < high {
        let middle = low.midpoint(high);
        if rows.len_of(&(range.start..middle)) < half {
            low = middle + 1
        } else {
            high = middle
        }
    }
    low
}

/// Appends the rows of `old` to `rows`, with `changes`, which are in order of keys, and changes
/// `sum` likewise.
fn merge(
    rows: &mut Rows,
    old: &Rows,
    changes: &[&Change],
    table: Table,
    sum: &mut RowSum,
) -> Result<()> {
    let mut at = 0;
    for same in changes.chunk_by(|a, b| a.key == b.key) {
        let Some(change) = same.last() else {
            continue;
        };
        let end = old.lower_bound(&change.key);
        for (key, value) in old.within(at..end) {
            rows.push(key, value)?;
        }
        let there = old.get(end).filter(|(key, _)| *key == change.key);
        at = end + usize::from(there.is_some());
        if let Some((key, value)) = there {
            sum.remove(table.code(), key, value);
        }
        if let Some(value) = &change.value {
            rows.push(&change.key, value)?;
            sum.add(table.code(), &change.key, value);
        }
    }
    for (key, value) in old.within(at..old.count()) {
        rows.push(key, value)?;
    }
    Ok(())
}

/// Writes rows that come in ascending order to a table without groups.
pub(super) struct Filler<'a, G> {
    editor: Editor<'a, G>,
    open: Open,
}

impl<'a, G: Groups> Filler<'a, G> {
    /// Begins with no row.
    pub fn new(editor: Editor<'a, G>) -> Self {
        let open = Open::default();
        Self { editor, open }
    }

    /// Adds a row.
    ///
    /// # Errors
    /// `Corrupt` if the key is not above the last one; the errors of the groups.
    pub fn push(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.open.rows.push(key, value)?;
        if self.open.rows.byte_len() < 16 * GROUP_LEN_MAX {
            return Ok(());
        }
        let count = self.open.rows.count();
        let mut parts = self.editor.fill(&self.open, 0..count)?;
        match parts.pop() {
            Some((left, _)) if left.start > 0 => {
                self.editor.replace(&mut self.open, &parts)?;
                self.open.keep(left)
            }
            _ => Ok(()),
        }
    }

    /// Writes the last groups.
    ///
    /// # Errors
    /// The errors of the groups.
    pub fn finish(mut self) -> Result<()> {
        let count = self.open.rows.count();
        let parts = self.editor.fill(&self.open, 0..count)?;
        self.editor.replace(&mut self.open, &parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulated_disk::Random;
    use std::collections::BTreeMap;

    const TABLE: Table = Table::Names;

    /// Groups in memory.
    struct Memory<'a> {
        sealer: &'a Sealer,
        groups: BTreeMap<Vec<u8>, Vec<u8>>,
    }

    fn owned((key, value): (&Vec<u8>, &Vec<u8>)) -> Group {
        (key.clone(), value.clone())
    }

    impl Groups for Memory<'_> {
        fn at_or_before(&self, key: &[u8]) -> Result<Option<Group>> {
            Ok(self.groups.range(..=key.to_vec()).next_back().map(owned))
        }

        fn before(&self, key: &[u8]) -> Result<Option<Group>> {
            Ok(self.groups.range(..key.to_vec()).next_back().map(owned))
        }

        fn first_key_in(
            &self,
            (from, to): (Bound<&[u8]>, Bound<&[u8]>),
        ) -> Result<Option<Vec<u8>>> {
            let within = (from.map(<[u8]>::to_vec), to.map(<[u8]>::to_vec));
            Ok(self.groups.range(within).next().map(|(key, _)| key.clone()))
        }

        fn open(&self, (key, stored): &Group) -> Result<Arc<Rows>> {
            self.sealer.open(TABLE, key, stored).map(Arc::new)
        }

        fn put(&mut self, key: &[u8], value: &[u8], _: Rows) -> Result<()> {
            self.groups.insert(key.to_vec(), value.to_vec());
            Ok(())
        }

        fn remove(&mut self, key: &[u8]) -> Result<()> {
            assert!(self.groups.remove(key).is_some(), "no group {key:?}");
            Ok(())
        }
    }

    type Model = BTreeMap<Vec<u8>, Vec<u8>>;

    fn editor(sealer: &Sealer) -> Editor<'_, Memory<'_>> {
        let groups = Memory {
            sealer,
            groups: BTreeMap::new(),
        };
        Editor {
            table: TABLE,
            sealer,
            groups,
            sum: RowSum::default(),
        }
    }

    fn change(key: Vec<u8>, value: Option<Vec<u8>>) -> Change {
        Change {
            table: TABLE,
            key,
            value,
        }
    }

    /// Applies `changes` to both and compares.
    fn step(editor: &mut Editor<'_, Memory<'_>>, model: &mut Model, changes: Vec<Change>) {
        editor.apply(changes.iter().collect()).expect("apply");
        for Change { key, value, .. } in changes {
            match value {
                Some(value) => drop(model.insert(key, value)),
                None => drop(model.remove(&key)),
            }
        }
        let mut found = Vec::new();
        let mut last: Option<Vec<u8>> = None;
        for (key, stored) in &editor.groups.groups {
            let rows = editor.sealer.open(TABLE, key, stored).expect("a group");
            assert!(last.as_ref().is_none_or(|last| last < key), "bound {key:?}");
            let is_fitting = key.len() + stored.len() <= pair_len_max();
            assert!(is_fitting || rows.count() == 1, "{} bytes", stored.len());
            last = rows.last_key().map(<[u8]>::to_vec);
            found.extend(rows.iter().map(|(k, v)| (k.to_vec(), v.to_vec())));
        }
        let wanted: Vec<_> = model.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
        assert!(found == wanted, "{} rows for {}", found.len(), wanted.len());
    }

    fn noise(random: &mut Random, len: u64) -> Vec<u8> {
        (0..len).map(|_| random.next() as u8).collect()
    }

    /// Bytes of all groups over the bytes of their pages.
    fn fullness(editor: &Editor<'_, Memory<'_>>) -> f64 {
        let groups = &editor.groups.groups;
        let used: usize = groups
            .iter()
            .map(|(key, value)| key.len() + value.len())
            .sum();
        used as f64 / (groups.len() * pair_len_max()) as f64
    }

    fn random_changes(random: &mut Random, model: &Model) -> Vec<Change> {
        let space = [40, 3000, 1 << 40][random.below(3) as usize];
        let kind = random.below(8);
        let count = [1, 3, 60, 900][random.below(4) as usize];
        let near = random.below(space);
        let mut changes = Vec::new();
        for n in 0..count {
            let number = match kind {
                0..=2 => random.below(space),
                _ => near + n,
            };
            let key = match random.below(400) {
                0 => noise(random, 300),
                _ => number.to_be_bytes().to_vec(),
            };
            let len = match random.below(600) {
                0 => 40_000,
                n => n % 50,
            };
            let value = (kind != 7 && !random.is_one_in(4)).then(|| noise(random, len));
            changes.push(change(key, value));
        }
        if kind == 6 {
            let some = model.keys().filter(|_| !random.is_one_in(20));
            changes.extend(some.map(|key| change(key.clone(), None)));
        }
        changes
    }

    #[test]
    fn groups_have_the_rows_of_a_map_after_any_changes() {
        let sealer = Sealer::new().expect("a sealer");
        for seed in 0..60 {
            let mut random = Random::new(seed);
            let (mut editor, mut model) = (editor(&sealer), Model::new());
            for _ in 0..25 {
                let changes = random_changes(&mut random, &model);
                step(&mut editor, &mut model, changes);
            }
            let all = model.keys().map(|key| change(key.clone(), None)).collect();
            step(&mut editor, &mut model, all);
            assert!(editor.groups.groups.is_empty());
        }
    }

    #[test]
    fn rows_in_order_fill_their_pages_in_commits_of_any_length() {
        let sealer = Sealer::new().expect("a sealer");
        for per_commit in [1, 7, 100, 5000] {
            let mut random = Random::new(per_commit);
            let (mut editor, mut model) = (editor(&sealer), Model::new());
            let rows: Vec<Change> = (0..5000u64)
                .map(|n| change(n.to_be_bytes().to_vec(), Some(noise(&mut random, 20))))
                .collect();
            let commits = rows.chunks(per_commit as usize);
            let step_each = if per_commit < 100 { 1 } else { 0 };
            for (n, commit) in commits.enumerate() {
                if step_each == 1 && n % 50 != 0 {
                    editor.apply(commit.iter().collect()).expect("apply");
                    let rows = commit.iter().cloned();
                    model.extend(rows.map(|c| (c.key, c.value.unwrap_or_default())));
                } else {
                    step(&mut editor, &mut model, commit.to_vec())
                }
            }
            let full = fullness(&editor);
            assert!(full > 0.93, "{per_commit} rows a commit: {full}");
        }
    }

    /// A counter in every row changes, so that no group fits into its page any more.
    #[test]
    fn rows_that_grow_together_leave_full_pages() {
        let sealer = Sealer::new().expect("a sealer");
        let mut random = Random::new(5);
        let (mut editor, mut model) = (editor(&sealer), Model::new());
        for len in [30, 33] {
            let rows = (0..3000u64)
                .map(|n| change(n.to_be_bytes().to_vec(), Some(noise(&mut random, len))));
            let rows = rows.collect();
            step(&mut editor, &mut model, rows);
            let full = fullness(&editor);
            assert!(full > 0.93, "{len} bytes a row: {full}");
        }
    }

    #[test]
    fn groups_that_become_small_join() {
        let sealer = Sealer::new().expect("a sealer");
        let mut random = Random::new(6);
        let (mut editor, mut model) = (editor(&sealer), Model::new());
        let rows = (0..4000u64)
            .map(|n| change(n.to_be_bytes().to_vec(), Some(noise(&mut random, 30))))
            .collect();
        step(&mut editor, &mut model, rows);
        let before = editor.groups.groups.len();
        for round in 0..20 {
            let gone = model.keys().filter(|_| random.is_one_in(4));
            let gone = gone.map(|key| change(key.clone(), None)).collect();
            step(&mut editor, &mut model, gone);
            let most = before * model.len() / 4000 * 4 + 2;
            let groups = editor.groups.groups.len();
            assert!(
                groups <= most,
                "round {round}: {groups} groups, {most} at most"
            );
        }
    }
}
