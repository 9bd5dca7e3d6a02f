//! Extra fields of members.

use crate::fields::Fields;
use weald_format::Timestamp;

const ZIP_64: u16 = 0x0001;
const NTFS: u16 = 0x000a;
const EXTENDED_TIME: u16 = 0x5455;
const UNICODE_PATH: u16 = 0x7075;
/// Owner and group of 16 bits, of Info-ZIP 2.
const UNIX_2: u16 = 0x7855;
/// Owner and group of any length, of Info-ZIP 3.
const UNIX_N: u16 = 0x7875;

/// Of the times of NTFS: units in a second, and seconds from its epoch to that of Unix.
const NTFS_UNITS: u64 = 10_000_000;
const NTFS_EPOCH_S: i64 = 11_644_473_600;

/// What the extra fields of a member say.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Extra {
    /// mtime in seconds.
    pub mtime_s: Option<i32>,
    /// mtime of NTFS, which is finer.
    pub ntfs_mtime: Option<Timestamp>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// A path in UTF-8, and the CRC-32 of the path that it replaces.
    pub path: Option<(u32, Vec<u8>)>,
    /// The field with large numbers.
    pub large: Vec<u8>,
}

impl Extra {
    /// Reads the fields in `bytes`. What was found before stays. Fields that break their format
    /// are passed over, as unzip does: other programs write what they like here.
    pub fn read(&mut self, bytes: &[u8]) {
        let mut rest = Fields(bytes);
        while let (Some(id), Some(len)) = (rest.u16(), rest.u16()) {
            let Some(field) = rest.take(len.into()) else {
                return;
            };
            self.read_field(id, Fields(field));
        }
    }

    fn read_field(&mut self, id: u16, mut field: Fields<'_>) {
        match id {
            ZIP_64 if self.large.is_empty() => self.large = field.0.to_vec(),
            NTFS => self.ntfs_mtime = self.ntfs_mtime.or_else(|| ntfs_mtime(field)),
            EXTENDED_TIME => {
                let has_mtime = field.u8().is_some_and(|flags| flags & 1 != 0);
                if let Some(mtime) = field.u32().filter(|_| has_mtime) {
                    self.mtime_s = self.mtime_s.or(Some(mtime.cast_signed()));
                }
            }
            UNICODE_PATH if self.path.is_none() => {
                if let (Some(1), Some(crc)) = (field.u8(), field.u32()) {
                    self.path = Some((crc, field.0.to_vec()));
                }
            }
            UNIX_N if field.u8() == Some(1) => {
                let (uid, gid) = (id_of(&mut field), id_of(&mut field));
                (self.uid, self.gid) = (self.uid.or(uid), self.gid.or(gid));
            }
            UNIX_2 => {
                let (uid, gid) = (field.u16().map(u32::from), field.u16().map(u32::from));
                (self.uid, self.gid) = (self.uid.or(uid), self.gid.or(gid));
            }
            _ => {}
        }
    }
}

/// An owner or a group behind the count of its bytes.
fn id_of(field: &mut Fields<'_>) -> Option<u32> {
    let len = field.u8()?;
    let bytes = field.take(len.into())?;
    let number = bytes.iter().rev().try_fold(0_u32, |number, &byte| {
        Some(number.checked_mul(256)? | u32::from(byte))
    });
    number.filter(|_| len > 0)
}

fn ntfs_mtime(mut field: Fields<'_>) -> Option<Timestamp> {
    let _reserved = field.u32()?;
    while let (Some(tag), Some(len)) = (field.u16(), field.u16()) {
        let mut attribute = Fields(field.take(len.into())?);
        if tag == 1 {
            let units = attribute.u64()?;
            return Some(Timestamp {
                seconds: (units / NTFS_UNITS).cast_signed() - NTFS_EPOCH_S,
                nanoseconds: (units % NTFS_UNITS) as u32 * 100,
            });
        }
    }
    None
}
