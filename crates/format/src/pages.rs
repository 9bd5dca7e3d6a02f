//! The smaller metadata pages: templates, contents, extents, attributes, xattr sets, links, times.

mod extents;

pub use extents::*;

use crate::column::{self, Column};
use crate::cursor::{Cursor, put_varint, unzigzag, zigzag};
use crate::entries::TimeColumns;
use crate::limits::{ITEMS_PER_PAGE, NUMBER_MAX, TIMES_PER_PAGE, TIMES_PER_RUN, XATTR_SET_LEN_MAX};
use crate::{Attributes, Result, Timestamp, Xattr, XattrSet};

/// A template: one distinct directory, without its entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Template {
    /// Index of its first entry.
    pub entry_start: u64,
    /// Number of its entries.
    pub entry_count: u64,
    /// Number of names in the subtree below it, its own entries included.
    pub subtree_count: u64,
    /// Number of its entries that are directories.
    pub directory_count: u64,
}

/// A page of up to `ITEMS_PER_PAGE` templates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplatePage {
    entry_starts: Vec<u64>,
    subtree_counts: Column,
    directory_counts: Column,
}

impl TemplatePage {
    /// Encodes consecutive templates. Only the first `entry_start` is stored; the others follow
    /// from it.
    // trusted input: values of this program
    #[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
    pub fn encode(templates: &[Template]) -> Vec<u8> {
        let mut out = Vec::new();
        put_varint(&mut out, templates.len() as u64);
        put_varint(&mut out, templates.first().map_or(0, |t| t.entry_start));
        let columns: [fn(&Template) -> u64; 3] = [
            |t| t.entry_count,
            |t| t.subtree_count - t.entry_count,
            |t| t.directory_count,
        ];
        for of in columns {
            column::encode(&mut out, &templates.iter().map(of).collect::<Vec<_>>());
        }
        out
    }

    /// Parses a page.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let mut cursor = Cursor::new(bytes, "template page");
        let count = cursor.count(ITEMS_PER_PAGE, "template count")?;
        let first = cursor.bounded(NUMBER_MAX, "first entry")?;
        let entry_counts = Column::decode(&mut cursor, count)?;
        let deeper_counts = Column::decode(&mut cursor, count)?;
        let directory_counts = Column::decode(&mut cursor, count)?;
        let mut entry_starts = vec![first];
        let mut start = first;
        let mut subtree_counts = Vec::with_capacity(count);
        for i in 0..count {
            start = start.saturating_add(entry_counts.get(i));
            entry_starts.push(start);
            let subtree = entry_counts.get(i).saturating_add(deeper_counts.get(i));
            if start > NUMBER_MAX
                || subtree > NUMBER_MAX
                || directory_counts.get(i) > entry_counts.get(i)
            {
                return Err(cursor.error(
                    "F-9.1",
                    format!("template {i} of the page: counts out of range"),
                ));
            }
            subtree_counts.push(subtree);
        }
        cursor.finish()?;
        Ok(Self {
            entry_starts,
            subtree_counts: Column::Values(subtree_counts),
            directory_counts,
        })
    }

    /// Templates in the page.
    pub fn count(&self) -> usize {
        self.entry_starts.len().saturating_sub(1)
    }

    /// Template `index` of the page.
    pub fn get(&self, index: usize) -> Option<Template> {
        let &start = self.entry_starts.get(index)?;
        let &end = self.entry_starts.get(index.checked_add(1)?)?;
        Some(Template {
            entry_start: start,
            entry_count: end.saturating_sub(start),
            subtree_count: self.subtree_counts.get(index),
            directory_count: self.directory_counts.get(index),
        })
    }

    /// Bytes of heap memory of the page.
    pub fn memory_len(&self) -> usize {
        self.count().saturating_mul(24)
    }
}

/// A page of up to `ITEMS_PER_PAGE` contents: the position of each in the logical space.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContentPage {
    /// Logical start of each content; the last element is the end of the last content.
    starts: Vec<u64>,
}

impl ContentPage {
    /// Encodes consecutive contents of these lengths. The first begins at `start` in the logical
    /// space.
    pub fn encode(start: u64, lens: &[u64]) -> Vec<u8> {
        let mut out = Vec::new();
        put_varint(&mut out, lens.len() as u64);
        put_varint(&mut out, start);
        column::encode(&mut out, lens);
        out
    }

    /// Parses a page.
    ///
    /// # Errors
    /// `Corrupt`, also for a content of length 0.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let mut cursor = Cursor::new(bytes, "content page");
        let count = cursor.count(ITEMS_PER_PAGE, "content count")?;
        let mut start = cursor.bounded(NUMBER_MAX, "logical start")?;
        let lens = Column::decode(&mut cursor, count)?;
        let mut starts = vec![start];
        for len in lens.iter(count) {
            start = start.saturating_add(len);
            if len == 0 || start > NUMBER_MAX {
                return Err(cursor.error("F-10.1", format!("content length {len}: out of range")));
            }
            starts.push(start);
        }
        cursor.finish()?;
        Ok(Self { starts })
    }

    /// Contents in the page.
    pub fn count(&self) -> usize {
        self.starts.len().saturating_sub(1)
    }

    /// Logical start and length of content `index` of the page.
    pub fn get(&self, index: usize) -> Option<(u64, u64)> {
        let &start = self.starts.get(index)?;
        let &end = self.starts.get(index.checked_add(1)?)?;
        Some((start, end.saturating_sub(start)))
    }

    /// Bytes of heap memory of the page.
    pub fn memory_len(&self) -> usize {
        self.starts.len().saturating_mul(8)
    }
}

/// Encodes a page of attributes.
pub fn encode_attributes(items: &[Attributes]) -> Vec<u8> {
    let mut out = Vec::new();
    put_varint(&mut out, items.len() as u64);
    let columns: [fn(&Attributes) -> u64; 4] = [
        |a| u64::from(a.permissions),
        |a| u64::from(a.uid),
        |a| u64::from(a.gid),
        |a| a.rdev,
    ];
    for of in columns {
        column::encode(&mut out, &items.iter().map(of).collect::<Vec<_>>());
    }
    out
}

/// Parses a page of attributes.
///
/// # Errors
/// `Corrupt`, also for permissions over 0o7777 and owners over 32 bits.
pub fn parse_attributes(bytes: &[u8]) -> Result<Vec<Attributes>> {
    let mut cursor = Cursor::new(bytes, "attribute page");
    let count = cursor.count(ITEMS_PER_PAGE, "attribute count")?;
    let permissions = Column::decode(&mut cursor, count)?;
    let uids = Column::decode(&mut cursor, count)?;
    let gids = Column::decode(&mut cursor, count)?;
    let rdevs = Column::decode(&mut cursor, count)?;
    let item = |i| {
        Some(Attributes {
            permissions: u16::try_from(permissions.get(i))
                .ok()
                .filter(|p| *p <= 0o7777)?,
            uid: u32::try_from(uids.get(i)).ok()?,
            gid: u32::try_from(gids.get(i)).ok()?,
            rdev: rdevs.get(i),
        })
    };
    let items: Option<Vec<_>> = (0..count).map(item).collect();
    let items = items.ok_or_else(|| cursor.error("F-12.1", "attributes out of range"))?;
    cursor.finish()?;
    Ok(items)
}

/// Bytes of an fs-verity digest.
pub const FSVERITY_LEN: usize = 32;

/// Parses a page of fs-verity digests, one for each of consecutive contents.
///
/// # Errors
/// `Corrupt`.
pub fn parse_fsverity(bytes: &[u8]) -> Result<Vec<[u8; FSVERITY_LEN]>> {
    let mut cursor = Cursor::new(bytes, "fsverity page");
    let (digests, rest) = bytes.as_chunks();
    if digests.is_empty() || digests.len() > ITEMS_PER_PAGE || !rest.is_empty() {
        let what = format!(
            "fs-verity digests: expected 1 to {ITEMS_PER_PAGE} of {FSVERITY_LEN} bytes, found {} \
             bytes",
            bytes.len()
        );
        return Err(cursor.error("F-28.1", what));
    }
    cursor.bytes(bytes.len())?;
    Ok(digests.to_vec())
}

/// Length of a set as `XATTR_SET_LEN_MAX` counts it, bytes: about its length in a page.
pub fn xattr_set_len(set: &[Xattr]) -> usize {
    set.iter()
        .map(|x| x.name.len().saturating_add(x.value.len()).saturating_add(4))
        .fold(1, usize::saturating_add)
}

/// Encodes a page of xattr sets.
pub fn encode_xattrs(sets: &[XattrSet]) -> Vec<u8> {
    let mut out = Vec::new();
    put_varint(&mut out, sets.len() as u64);
    for set in sets {
        put_varint(&mut out, set.len() as u64);
        for part in set.iter().flat_map(|x| [&x.name, &x.value]) {
            put_varint(&mut out, part.len() as u64);
            out.extend_from_slice(part);
        }
    }
    out
}

/// Parses a page of xattr sets.
///
/// # Errors
/// `Corrupt`, also for unsorted, repeated, empty or NUL-holding names.
pub fn parse_xattrs(bytes: &[u8]) -> Result<Vec<XattrSet>> {
    let mut cursor = Cursor::new(bytes, "xattr page");
    let count = cursor.count(ITEMS_PER_PAGE, "xattr set count")?;
    let sets = (0..count)
        .map(|_| parse_xattr_set(&mut cursor))
        .collect::<Result<_>>()?;
    cursor.finish()?;
    Ok(sets)
}

fn parse_xattr_set(cursor: &mut Cursor<'_>) -> Result<XattrSet> {
    let count = cursor.count(cursor.remaining() / 2, "xattr count")?;
    let mut set: XattrSet = Vec::with_capacity(count.min(64));
    for _ in 0..count {
        let name_len = cursor.count(255, "xattr name length")?;
        let name = cursor.bytes(name_len)?.to_vec();
        let value_len = cursor.count(XATTR_SET_LEN_MAX, "xattr value length")?;
        let value = cursor.bytes(value_len)?.to_vec();
        let sorted = set.last().is_none_or(|last| last.name < name);
        if !sorted || name.is_empty() || name.contains(&0) {
            return Err(cursor.error(
                "F-13.1",
                "xattr names: expected sorted, distinct, not empty, no NUL",
            ));
        }
        set.push(Xattr { name, value });
    }
    let len = xattr_set_len(&set);
    match len <= XATTR_SET_LEN_MAX {
        true => Ok(set),
        false => Err(cursor.error(
            "F-13.3",
            format!("xattr set: expected {XATTR_SET_LEN_MAX} bytes at most, found {len}"),
        )),
    }
}

/// One row of the link table: a name of a hard-linked inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    /// Number of the name.
    pub name_no: u64,
    /// Number of the first name of the same inode.
    pub first_no: u64,
    /// Number of names of the inode.
    pub nlink: u64,
}

/// Encodes a page of links, sorted by `name_no`.
// trusted input: values of this program
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
pub fn encode_links(links: &[Link]) -> Vec<u8> {
    let mut out = Vec::new();
    put_varint(&mut out, links.len() as u64);
    let columns: [fn(&Link) -> u64; 3] = [|l| l.name_no, |l| l.name_no - l.first_no, |l| l.nlink];
    for of in columns {
        column::encode(&mut out, &links.iter().map(of).collect::<Vec<_>>());
    }
    out
}

/// Parses a page of links.
///
/// # Errors
/// `Corrupt`, also for unsorted names and for a first name after a later one.
pub fn parse_links(bytes: &[u8]) -> Result<Vec<Link>> {
    let mut cursor = Cursor::new(bytes, "link page");
    let count = cursor.count(ITEMS_PER_PAGE, "link count")?;
    let names = Column::decode(&mut cursor, count)?;
    let backs = Column::decode(&mut cursor, count)?;
    let nlinks = Column::decode(&mut cursor, count)?;
    let mut links: Vec<Link> = Vec::with_capacity(count);
    for i in 0..count {
        let name_no = names.get(i);
        let first_no = name_no.checked_sub(backs.get(i)).filter(|&f| f > 0);
        let sorted = links.last().is_none_or(|l| l.name_no < name_no);
        match (first_no, nlinks.get(i)) {
            (Some(first_no), nlink) if sorted && nlink >= 2 => links.push(Link {
                name_no,
                first_no,
                nlink,
            }),
            _ => {
                return Err(cursor.error(
                    "F-14.1",
                    "links: expected sorted names, each at or after its first name, two or more",
                ));
            }
        }
    }
    cursor.finish()?;
    Ok(links)
}

/// A page of the times overlay: the times of consecutive names. It lists up to `TIMES_PER_PAGE` of
/// them one by one, or up to `TIMES_PER_RUN` in equal steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimesPage {
    count: usize,
    times: PageTimes,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum PageTimes {
    Columns(TimeColumns),
    Run(TimesRun),
}

/// Forms of a times page.
mod times_form {
    pub const COLUMNS: u8 = 1;
    pub const RUN: u8 = 2;
}

/// Times in equal steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimesRun {
    /// The first time, nanoseconds since 1970.
    first: i128,
    /// Difference between neighbours, nanoseconds.
    step: i64,
}

/// Nanoseconds per second.
const SECOND: i128 = 1_000_000_000;

/// Converts a time to nanoseconds since 1970.
fn total_nanoseconds(time: Timestamp) -> i128 {
    i128::from(time.seconds)
        .wrapping_mul(SECOND)
        .wrapping_add(time.nanoseconds.into())
}

impl TimesRun {
    /// Makes the run that begins with these two times; `None` if they are too far apart.
    pub fn of(first: Timestamp, second: Timestamp) -> Option<Self> {
        let first = total_nanoseconds(first);
        let step = total_nanoseconds(second).wrapping_sub(first);
        Some(Self {
            first,
            step: i64::try_from(step).ok()?,
        })
    }

    /// Time `index` in nanoseconds. `index` is less than 2^62, so the sum cannot overflow.
    fn total(&self, index: u64) -> i128 {
        let offset = i128::from(self.step).wrapping_mul(index.into());
        self.first.wrapping_add(offset)
    }

    /// Whether time `index` of the run equals `time`.
    pub fn has_at(&self, index: u64, time: Timestamp) -> bool {
        self.total(index) == total_nanoseconds(time)
    }

    /// Time `index`.
    fn get(&self, index: u64) -> Timestamp {
        let total = self.total(index);
        Timestamp {
            seconds: total.div_euclid(SECOND) as i64,
            nanoseconds: total.rem_euclid(SECOND) as u32,
        }
    }
}

impl TimesPage {
    /// Encodes a page of times one by one.
    pub fn encode(mtimes: &[Timestamp]) -> Vec<u8> {
        let mut out = Vec::new();
        put_varint(&mut out, mtimes.len() as u64);
        out.push(times_form::COLUMNS);
        TimeColumns::encode(&mut out, mtimes);
        out
    }

    /// Encodes a page of the first `count` times of a run.
    pub fn encode_run(run: &TimesRun, count: u64) -> Vec<u8> {
        let first = run.get(0);
        let mut out = Vec::new();
        put_varint(&mut out, count);
        out.push(times_form::RUN);
        put_varint(&mut out, zigzag(first.seconds));
        put_varint(&mut out, first.nanoseconds.into());
        put_varint(&mut out, zigzag(run.step));
        out
    }

    /// Parses a page.
    ///
    /// # Errors
    /// `Corrupt`.
    /// # Cost
    /// A run takes no memory, however long it is.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let mut cursor = Cursor::new(bytes, "times page");
        let count = cursor.bounded(TIMES_PER_RUN as u64, "time count")?;
        let times = match cursor.byte()? {
            times_form::COLUMNS if count <= TIMES_PER_PAGE as u64 => {
                PageTimes::Columns(TimeColumns::decode(&mut cursor, count as usize)?)
            }
            times_form::RUN => PageTimes::Run(parse_run(&mut cursor, count)?),
            form => {
                return Err(cursor.error(
                    "F-15.1",
                    format!(
                        "form: expected 2, or 1 with at most {TIMES_PER_PAGE} times, \
                         found {form} with {count}"
                    ),
                ));
            }
        };
        cursor.finish()?;
        Ok(Self {
            count: count as usize,
            times,
        })
    }

    /// Times in the page.
    pub fn count(&self) -> usize {
        self.count
    }

    /// mtime `index` of the page.
    pub fn mtime(&self, index: usize) -> Timestamp {
        match &self.times {
            PageTimes::Columns(columns) => columns.get(index),
            PageTimes::Run(run) => run.get(index as u64),
        }
    }

    /// Bytes of heap memory of the page.
    pub fn memory_len(&self) -> usize {
        match &self.times {
            PageTimes::Columns(columns) => columns.memory_len(),
            PageTimes::Run(_) => 0,
        }
    }
}

fn parse_run(cursor: &mut Cursor<'_>, count: u64) -> Result<TimesRun> {
    let seconds = unzigzag(cursor.varint()?);
    let nanoseconds = cursor.bounded(999_999_999, "nanoseconds")? as u32;
    let first = Timestamp {
        seconds,
        nanoseconds,
    };
    let run = TimesRun {
        first: total_nanoseconds(first),
        step: unzigzag(cursor.varint()?),
    };
    // If the first and the last time are in range, all others are.
    let last = run.total(count.saturating_sub(1));
    match i64::try_from(last.div_euclid(SECOND)) {
        Ok(_) if count > 0 => Ok(run),
        _ => Err(cursor.error(
            "F-15.4",
            format!("run of {count} times: expected at least one, all in the range of seconds"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that `parse` refuses every prefix and that no flipped bit makes it panic.
    fn check_damaged<T>(bytes: &[u8], parse: fn(&[u8]) -> Result<T>) {
        for len in 0..bytes.len() {
            assert!(parse(&bytes[..len]).is_err(), "prefix of {len}");
        }
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.to_vec();
            bad[bit / 8] ^= 1 << (bit % 8);
            let _ = parse(&bad);
        }
    }

    #[test]
    fn templates_round_trip() {
        let mut start = 77;
        let templates: Vec<Template> = (0..50)
            .map(|i| {
                let t = Template {
                    entry_start: start,
                    entry_count: i % 7,
                    subtree_count: i % 7 + i,
                    directory_count: i % 3 % (i % 7 + 1),
                };
                start += t.entry_count;
                t
            })
            .collect();
        let bytes = TemplatePage::encode(&templates);
        let page = TemplatePage::parse(&bytes).unwrap();
        assert_eq!(
            (0..50).map(|i| page.get(i).unwrap()).collect::<Vec<_>>(),
            templates
        );
        assert!(page.get(50).is_none());
        check_damaged(&bytes, TemplatePage::parse);
    }

    #[test]
    fn contents_and_extents_round_trip() {
        let bytes = ContentPage::encode(1000, &[5, 6, 1 << 40]);
        let page = ContentPage::parse(&bytes).unwrap();
        assert_eq!(page.get(1), Some((1005, 6)));
        check_damaged(&bytes, ContentPage::parse);
        let at = |stream, address, len| Extent {
            len,
            source: Source::Stream { stream, address },
        };
        let hole = Extent {
            len: 1 << 41,
            source: Source::Hole,
        };
        let extents = vec![
            at(0, 100, 10),
            at(1, 0, 7),
            at(0, 110, 5),
            at(0, 3, 9),
            at(0, 12, 9),
            hole,
            at(0, 115, 1),
            at(1, 9, 4),
            at(1, 13, 2),
        ];
        let mut heads = vec![100, 0];
        let bytes = ExtentPage::encode(&extents, &mut heads);
        // An extent two bytes beyond the head moves the head. The next extent starts at the head
        // and needs no address.
        assert_eq!(heads, [116, 15]);
        let page = ExtentPage::parse(&bytes).unwrap();
        assert_eq!(
            (0..9).map(|i| page.get(i).unwrap().1).collect::<Vec<_>>(),
            extents
        );
        assert_eq!(page.find(17), Some(2));
        assert_eq!(page.find(page.logical_len()), None);
        check_damaged(&bytes, ExtentPage::parse);
    }

    #[test]
    fn runs_of_base_images_become_their_extents() {
        let at = |stream, address, len| Extent {
            len,
            source: Source::Stream { stream, address },
        };
        let run = |base, start, len| BaseRun { base, start, len };
        let runs = [
            ExtentRun::Own(at(0, 0, 10)),
            ExtentRun::Base(run(0, 1000, 50)),
            ExtentRun::Base(run(1, 7, 20)),
            ExtentRun::Own(at(1, 3, 5)),
            ExtentRun::Base(run(0, 1050, 4)),
        ];
        let bytes = ExtentPage::encode_runs(&runs, &mut vec![0, 0]);
        // Each run resolves to two extents, the second of which is a hole. The test records the
        // requests.
        let resolve = |asked: &mut Vec<BaseRun>, bytes: &[u8]| {
            ExtentPage::parse_with_bases(bytes, &mut |run, take| {
                asked.push(run);
                take(at(1, run.start, 1))?;
                let source = Source::Hole;
                take(Extent {
                    len: run.len - 1,
                    source,
                })
            })
        };
        let mut asked = Vec::new();
        let page = resolve(&mut asked, &bytes).unwrap();
        assert_eq!(asked, [run(0, 1000, 50), run(1, 7, 20), run(0, 1050, 4)]);
        assert!(page.has_base_runs() && page.logical_len() == 89);
        assert_eq!(page.count(), 8);
        assert_eq!(page.get(6), Some((85, at(1, 1050, 1))));
        for len in 0..bytes.len() {
            assert!(resolve(&mut Vec::new(), &bytes[..len]).is_err(), "{len}");
        }
        let rule = |bytes: &[u8]| ExtentPage::parse(bytes).unwrap_err().to_string();
        assert!(rule(&bytes).contains("F-11.2"));
        // More extents than a page may have, then fewer bytes than the run says.
        let endless = ExtentPage::parse_with_bases(&bytes, &mut |run, take| loop {
            take(at(0, run.start, 1))?;
        });
        assert!(endless.unwrap_err().to_string().contains("F-11.6"));
        let short = ExtentPage::parse_with_bases(&bytes, &mut |_, take| take(at(0, 0, 1)));
        assert!(short.unwrap_err().to_string().contains("F-11.6"));
    }

    #[test]
    fn attributes_xattrs_links_and_times_round_trip() {
        let items: Vec<Attributes> = (0..40)
            .map(|i| Attributes {
                permissions: i as u16 * 100,
                uid: u32::MAX - i,
                gid: i * 7,
                rdev: u64::from(i) << 32,
            })
            .collect();
        let bytes = encode_attributes(&items);
        assert_eq!(parse_attributes(&bytes).unwrap(), items);
        check_damaged(&bytes, parse_attributes);
        let x = |n: &str, v: &[u8]| Xattr {
            name: n.into(),
            value: v.into(),
        };
        let sets = vec![
            vec![x("user.a", b""), x("user.b", b"\0\xff")],
            vec![x("security.capability", &[1; 20])],
        ];
        let bytes = encode_xattrs(&sets);
        assert_eq!(parse_xattrs(&bytes).unwrap(), sets);
        check_damaged(&bytes, parse_xattrs);
        let links: Vec<Link> = (1..30)
            .map(|i| Link {
                name_no: i * 9,
                first_no: i * 9 - (i % 4),
                nlink: 2 + i % 2,
            })
            .collect();
        let bytes = encode_links(&links);
        assert_eq!(parse_links(&bytes).unwrap(), links);
        check_damaged(&bytes, parse_links);
        let times: Vec<Timestamp> = (0..99)
            .map(|i| Timestamp {
                seconds: i * i - 400,
                nanoseconds: i as u32,
            })
            .collect();
        let bytes = TimesPage::encode(&times);
        let page = TimesPage::parse(&bytes).unwrap();
        assert_eq!((0..99).map(|i| page.mtime(i)).collect::<Vec<_>>(), times);
        check_damaged(&bytes, TimesPage::parse);
    }

    /// Catches: a lost step across a second, a wrong time before 1970, a run that allocates.
    #[test]
    fn runs_of_times_come_back() {
        let time = |seconds, nanoseconds| Timestamp {
            seconds,
            nanoseconds,
        };
        for (first, second, far, count) in [
            (time(5, 0), time(5, 0), time(5, 0), 65536),
            (time(5, 7), time(5, 8), time(5, 65_542), 65536),
            (time(-1, 999_999_999), time(1, 500_000_000), time(13, 3), 11),
            (time(i64::MIN, 1), time(i64::MIN, 0), time(i64::MIN, 0), 2),
        ] {
            let run = TimesRun::of(first, second).unwrap();
            let bytes = TimesPage::encode_run(&run, count);
            let page = TimesPage::parse(&bytes).unwrap();
            assert_eq!((page.count() as u64, page.memory_len()), (count, 0));
            assert_eq!((page.mtime(0), page.mtime(1)), (first, second));
            assert!(run.has_at(1, second) && !run.has_at(1, time(77, 77)));
            if count != 11 {
                assert_eq!(page.mtime(page.count() - 1), far);
            }
            check_damaged(&bytes, TimesPage::parse);
        }
        assert!(TimesRun::of(time(i64::MIN, 0), time(i64::MAX, 0)).is_none());
    }
}
