//! Headers of members, and the list at the end.

use flate2::Crc;
use std::path::{Path, PathBuf};
use weald_format::{Result, Timestamp};
use weald_image::Inode;
use weald_io::{ReadAt, Spool};

/// Versions that a reader needs: for plain members, DEFLATE and directories, large numbers.
const VERSION_PLAIN: u16 = 20;
const VERSION_LARGE: u16 = 45;
/// Unix, in the upper byte of the version that wrote a member.
const UNIX: u16 = 3 << 8;
/// Flags: numbers follow the data; the name is in UTF-8.
const NUMBERS_FOLLOW: u16 = 1 << 3;
const UTF8: u16 = 1 << 11;
/// Lengths from which a member has large numbers. Data that cannot be compressed become longer by
/// less than the margin.
const LARGE_FROM: u64 = 0xff00_0000;
/// Number that stands in an extra field instead.
const LARGE: u32 = u32::MAX;
/// Attribute of MS-DOS: a directory.
const DOS_DIRECTORY: u32 = 1 << 4;
/// Bytes of the list that are held in memory.
const HELD_LIST_LEN: usize = 16 << 20;
/// Bytes of a list in a temporary file that are read at once.
const PIECE_LEN: u64 = 256 << 10;
/// Members from which the end has large numbers.
const MANY: u64 = 0xffff;

/// How data are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    Stored,
    Deflate,
}

/// A member.
#[derive(Debug, Clone)]
pub struct Member {
    name: Vec<u8>,
    mode: u32,
    is_dir: bool,
    uid: u32,
    gid: u32,
    mtime: Timestamp,
    offset: u64,
    pub method: Method,
    pub crc: u32,
    pub stored_len: u64,
    pub data_len: u64,
    /// The numbers follow the data.
    are_behind: bool,
}

impl Member {
    /// A member without data, at `offset` of the archive.
    pub fn new(name: Vec<u8>, inode: &Inode, permissions: u16, offset: u64) -> Self {
        Self {
            is_dir: name.ends_with(b"/"),
            name,
            mode: inode.kind.mode_bits() | u32::from(permissions),
            uid: inode.attributes.uid,
            gid: inode.attributes.gid,
            mtime: inode.times.mtime,
            offset,
            method: Method::Stored,
            crc: 0,
            stored_len: 0,
            data_len: 0,
            are_behind: false,
        }
    }

    /// Takes the numbers of `data`, which are stored as they are.
    pub fn set_data(&mut self, data: &[u8]) {
        let mut crc = Crc::new();
        crc.update(data);
        self.crc = crc.sum();
        (self.data_len, self.stored_len) = (data.len() as u64, data.len() as u64);
    }

    /// The data are compressed to so many bytes.
    pub fn set_compressed(&mut self, stored_len: u64) {
        (self.method, self.stored_len) = (Method::Deflate, stored_len);
    }

    /// The numbers follow the data.
    pub fn follow_data(&mut self) {
        self.are_behind = true;
    }

    /// Whether the lengths need large numbers. Known before the data are compressed.
    fn is_long(&self) -> bool {
        self.data_len >= LARGE_FROM
    }

    fn flags(&self) -> u16 {
        let is_utf8 = !self.name.is_ascii() && std::str::from_utf8(&self.name).is_ok();
        let follow = NUMBERS_FOLLOW * u16::from(self.are_behind);
        follow | (UTF8 * u16::from(is_utf8))
    }

    fn version(&self, is_large: bool) -> u16 {
        if is_large {
            VERSION_LARGE
        } else {
            VERSION_PLAIN
        }
    }

    /// The fields that the header and the record of the list share, up to the lengths.
    fn put_shared(&self, out: &mut Vec<u8>) {
        let method: u16 = match self.method {
            Method::Stored => 0,
            Method::Deflate => 8,
        };
        let dos = DosTime::of(self.mtime.seconds);
        for number in [self.flags(), method, dos.time, dos.date] {
            out.extend(number.to_le_bytes());
        }
    }

    /// The header before the data.
    pub fn local_header(&self) -> Vec<u8> {
        let is_long = self.is_long();
        let mut out = b"PK\x03\x04".to_vec();
        out.extend(self.version(is_long).to_le_bytes());
        self.put_shared(&mut out);
        let (crc, stored_len, data_len) = match (self.are_behind, is_long) {
            (true, true) => (0, LARGE, LARGE),
            (true, false) => (0, 0, 0),
            (false, _) => (self.crc, self.stored_len as u32, self.data_len as u32),
        };
        for number in [crc, stored_len, data_len] {
            out.extend(number.to_le_bytes());
        }
        let mut extra = Vec::new();
        if is_long {
            // Both lengths, as APPNOTE wants them here; they follow the data.
            extra.extend([1, 0, 16, 0]);
            extra.extend([0; 16]);
        }
        self.put_extra(&mut extra);
        for len in [self.name.len(), extra.len()] {
            out.extend((len as u16).to_le_bytes());
        }
        out.extend_from_slice(&self.name);
        out.extend(extra);
        out
    }

    /// What follows the data of a member with numbers behind them.
    pub fn descriptor(&self) -> Vec<u8> {
        let mut out = b"PK\x07\x08".to_vec();
        out.extend(self.crc.to_le_bytes());
        for len in [self.stored_len, self.data_len] {
            if self.is_long() {
                out.extend(len.to_le_bytes());
            } else {
                out.extend((len as u32).to_le_bytes());
            }
        }
        out
    }

    /// Times and owner.
    fn put_extra(&self, out: &mut Vec<u8>) {
        let mtime = self.mtime;
        let seconds = i32::try_from(mtime.seconds).ok();
        if let Some(seconds) = seconds {
            out.extend([0x55, 0x54, 5, 0, 1]);
            out.extend(seconds.to_le_bytes());
        }
        if seconds.is_none() || mtime.nanoseconds > 0 {
            put_ntfs_time(mtime, out);
        }
        out.extend([0x75, 0x78, 11, 0, 1, 4]);
        out.extend(self.uid.to_le_bytes());
        out.push(4);
        out.extend(self.gid.to_le_bytes());
    }

    /// The record of the list.
    fn record(&self) -> Vec<u8> {
        let (is_long, is_far) = (self.is_long(), self.offset >= u64::from(LARGE));
        let mut out = b"PK\x01\x02".to_vec();
        let version = self.version(is_long || is_far);
        out.extend((UNIX | version).to_le_bytes());
        out.extend(version.to_le_bytes());
        self.put_shared(&mut out);
        let (mut large, mut small) = (Vec::new(), Vec::new());
        let numbers = [
            (self.data_len, is_long),
            (self.stored_len, is_long),
            (self.offset, is_far),
        ];
        for (number, is_large) in numbers {
            if is_large {
                large.extend(number.to_le_bytes());
                small.push(LARGE);
            } else {
                small.push(number as u32);
            }
        }
        let [data_len, stored_len, offset] = [small[0], small[1], small[2]];
        for number in [self.crc, stored_len, data_len] {
            out.extend(number.to_le_bytes());
        }
        let mut extra = Vec::new();
        if !large.is_empty() {
            extra.extend([1, 0, large.len() as u8, 0]);
            extra.extend(large);
        }
        self.put_extra(&mut extra);
        // Name, extra fields, comment, disk, attributes inside.
        for number in [self.name.len(), extra.len(), 0, 0, 0] {
            out.extend((number as u16).to_le_bytes());
        }
        let attributes = (self.mode << 16) | (DOS_DIRECTORY * u32::from(self.is_dir));
        out.extend(attributes.to_le_bytes());
        out.extend(offset.to_le_bytes());
        out.extend_from_slice(&self.name);
        out.extend(extra);
        out
    }
}

/// The times of NTFS: units of 100 ns since 1601. A time that they do not hold has none.
fn put_ntfs_time(mtime: Timestamp, out: &mut Vec<u8>) {
    let seconds = mtime.seconds.checked_add(11_644_473_600);
    let units = seconds
        .and_then(|seconds| u64::try_from(seconds).ok()?.checked_mul(10_000_000))
        .and_then(|units| units.checked_add(u64::from(mtime.nanoseconds / 100)));
    let Some(units) = units else {
        return;
    };
    out.extend([0x0a, 0, 32, 0, 0, 0, 0, 0, 1, 0, 24, 0]);
    for _ in ["mtime", "atime", "ctime"] {
        out.extend(units.to_le_bytes());
    }
}

/// A time of MS-DOS, in UTC, clamped to what it holds: 1980 to 2107, steps of two seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct DosTime {
    date: u16,
    time: u16,
}

impl DosTime {
    fn of(seconds: i64) -> Self {
        let seconds = seconds.clamp(315_532_800, 4_354_819_199);
        let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
        // The calendar that begins in March of the year 0.
        let days = days + 719_468;
        let (era, day_of_era) = (days / 146_097, days % 146_097);
        let year_of_era =
            (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let from_march = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * from_march + 2) / 5 + 1;
        let month = (from_march + 2) % 12 + 1;
        let year = era * 400 + year_of_era + i64::from(month <= 2);
        let date = (year - 1980) << 9 | month << 5 | day;
        let time = (second / 3600) << 11 | (second / 60 % 60) << 5 | (second % 60 / 2);
        Self {
            date: date as u16,
            time: time as u16,
        }
    }
}

/// The list of members: in memory, or in a temporary file if it is long.
pub struct ListWriter {
    temp_dir: PathBuf,
    spool: Option<Spool>,
    held: Vec<u8>,
    count: u64,
    len: u64,
}

impl ListWriter {
    /// An empty list.
    pub fn new(temp_dir: &Path) -> Self {
        Self {
            temp_dir: temp_dir.to_owned(),
            spool: None,
            held: Vec::new(),
            count: 0,
            len: 0,
        }
    }

    /// Adds a member.
    ///
    /// # Errors
    /// `Io`, `Full` for the temporary file.
    pub fn push(&mut self, member: &Member) -> Result<()> {
        let record = member.record();
        self.count += 1;
        self.len += record.len() as u64;
        self.held.extend(record);
        if self.held.len() < HELD_LIST_LEN {
            return Ok(());
        }
        let spool = match &mut self.spool {
            Some(spool) => spool,
            none => none.insert(Spool::create(&self.temp_dir)?),
        };
        spool.append(&self.held)?;
        self.held.clear();
        Ok(())
    }

    /// Hands the list to `put`, in parts.
    ///
    /// # Errors
    /// Those of `put`; `Io` for the temporary file.
    pub fn read(&self, put: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let spooled_len = self.spool.as_ref().map_or(0, ReadAt::len);
        let (mut piece, mut offset) = (Vec::new(), 0);
        while let Some(spool) = self.spool.as_ref().filter(|_| offset < spooled_len) {
            piece.resize((spooled_len - offset).min(PIECE_LEN) as usize, 0);
            spool.read_exact_at(&mut piece, offset)?;
            put(&piece)?;
            offset += piece.len() as u64;
        }
        put(&self.held)
    }

    /// What follows the list, which begins at `start`.
    pub fn end(&self, start: u64) -> Vec<u8> {
        let mut out = Vec::new();
        let is_large = self.count >= MANY || start.max(self.len) >= u64::from(LARGE);
        if is_large {
            out.extend(b"PK\x06\x06");
            out.extend(44_u64.to_le_bytes());
            out.extend((UNIX | VERSION_LARGE).to_le_bytes());
            out.extend(VERSION_LARGE.to_le_bytes());
            out.extend([0; 8]);
            for number in [self.count, self.count, self.len, start] {
                out.extend(number.to_le_bytes());
            }
            out.extend(b"PK\x06\x07");
            out.extend([0; 4]);
            out.extend((start + self.len).to_le_bytes());
            out.extend(1_u32.to_le_bytes());
        }
        out.extend(b"PK\x05\x06");
        out.extend([0; 4]);
        let count = self.count.min(MANY) as u16;
        out.extend(count.to_le_bytes());
        out.extend(count.to_le_bytes());
        for number in [self.len, start] {
            let number = number.min(u64::from(LARGE)) as u32;
            out.extend(number.to_le_bytes());
        }
        out.extend([0; 2]);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch: a calendar that is off by a day, and times that wrap around.
    #[test]
    fn times_of_dos_are_those_of_the_calendar() {
        let of = |year: u16, month: u16, day: u16, time| DosTime {
            date: (year - 1980) << 9 | month << 5 | day,
            time,
        };
        // As `date -u -d @…` says.
        for (seconds, expected) in [
            (951_827_697, of(2000, 2, 29, 12 << 11 | 34 << 5 | 28)),
            (981_173_106, of(2001, 2, 3, 4 << 11 | 5 << 5 | 3)),
            (4_107_542_400, of(2100, 3, 1, 0)),
            (-5, of(1980, 1, 1, 0)),
            (i64::MAX, of(2107, 12, 31, 23 << 11 | 59 << 5 | 29)),
        ] {
            assert_eq!(DosTime::of(seconds), expected, "{seconds}");
        }
    }
}
