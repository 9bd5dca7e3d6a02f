//! Names of the files of a store.

use std::fmt::{Display, Formatter};
use weald_format::{CommitNo, Error, ImageNo, Result, SegmentNo, SnapshotNo, VolumeNo};

/// What an object is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectKind {
    /// A segment of records.
    Segment,
    /// The map of an image, shown to readers or hidden.
    Map,
    /// The name of a volume, with a copy of its first row.
    VolumeName,
}

impl ObjectKind {
    /// Where objects of this kind lie.
    pub fn dir(self) -> &'static str {
        match self {
            Self::Segment => SEGMENTS,
            Self::Map => IMAGES,
            Self::VolumeName => VOLUMES,
        }
    }
}

/// The name of an object: no name of a local file is one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectName {
    kind: ObjectKind,
    path: String,
}

impl ObjectName {
    /// The object of this kind with this name among its kind.
    pub fn new(kind: ObjectKind, name: &str) -> Self {
        let path = format!("{}/{name}", kind.dir());
        Self { kind, path }
    }

    /// What the object is.
    pub fn kind(&self) -> ObjectKind {
        self.kind
    }

    /// Its path below the store.
    pub fn path(&self) -> &str {
        &self.path
    }
}

impl Display for ObjectName {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.path)
    }
}

/// The superblock. Readers lock bytes of this file, see [`image_lock`].
pub const SUPERBLOCK: &str = "store";
/// The superblock once more, for when [`SUPERBLOCK`] is damaged or missing.
pub const SUPERBLOCK_COPY: &str = "store.copy";
/// File of the metadata engine.
pub const META: &str = "meta";
/// [`META`] when a salvage makes it again, until it is complete.
pub const META_NEW: &str = "meta.new";
/// The old [`META`], after a salvage.
pub const META_OLD: &str = "meta.old";
/// File that the writer locks; it contains the writer's process id and command.
pub const LOCK: &str = "lock";
/// Names a commit that the tables have, so that older tables are noticed.
pub const MARK: &str = "mark";
/// Empty file that is there while writes are not synced (`barrier=ignore`).
pub const UNSYNCED: &str = "unsynced";
/// Blocks that were found damaged: see [`crate::damaged_blocks`].
pub const DAMAGED: &str = "damaged";
/// Directory of the journal.
pub const JOURNAL: &str = "journal";
/// A file of rows of the journal until it is complete.
pub const JOURNAL_NEW: &str = "journal/new";
/// Directory of segments.
pub const SEGMENTS: &str = "segments";
/// Directory of image maps.
pub const IMAGES: &str = "images";
/// Directory with an empty file for each volume, so that readers see the names of volumes.
pub const VOLUMES: &str = "volumes";
/// A reader of image *n* locks the byte of [`SUPERBLOCK`] at this offset plus *n*.
const IMAGE_LOCKS: u64 = 1 << 40;
/// A reader of snapshot *s* of volume *v* locks the byte of [`SUPERBLOCK`] at this offset plus
/// *v* * 2^24 + *s*. No image has so high a number.
const SNAPSHOT_LOCKS: u64 = 1 << 62;
/// Directory of what the store remembers of its replicas.
pub const REPLICAS: &str = "replicas";
/// Most bytes of what a store remembers of a replica: 10 million segments.
pub const REPLICA_RECORD_LEN_MAX: u64 = 300 << 20;
/// What a standby remembers of the replica that it follows; it is there in a standby alone.
pub const STANDBY: &str = "replicas/.standby";
/// [`STANDBY`] once more.
pub const STANDBY_COPY: &str = "replicas/.standby.copy";
/// How many bytes of each segment of a standby are those of its replica, while it has others of its
/// own.
pub const STANDBY_OWN: &str = "replicas/.standby.own";
/// A line about the store that was promoted in place of this one; it is there in such a store
/// alone.
pub const REPLACED: &str = "replicas/.replaced";
/// What the store knows of its tiers; it is there in a store with tiers alone.
pub const TIERS: &str = "tiers";
/// [`TIERS`] once more.
pub const TIERS_COPY: &str = "tiers.copy";
/// Which segments were used, and when: see [`crate::tier`].
pub const TIERS_HEAT: &str = "tiers.heat";
/// In which segments data lies that belongs on a tier.
pub const TIERS_PINS: &str = "tiers.pins";
/// What the last moves between tiers did, and what they could not do.
pub const TIERS_REPORT: &str = "tiers.report";
/// It is there while servers do not collect by themselves.
pub const COLLECT_PAUSED: &str = "collect.paused";
/// What users want of the scrub: see [`crate::scrub`].
pub const SCRUB: &str = "scrub";
/// How far the scrub is, and what it has found.
pub const SCRUB_REPORT: &str = "scrub.report";
/// How often the store is scrubbed by itself.
pub const SCRUB_POLICY: &str = "scrub.policy";
/// In the directory of a tier: to which store it belongs.
pub const TIER_MARK: &str = "tier";
/// [`TIER_MARK`] once more.
pub const TIER_MARK_COPY: &str = "tier.copy";
/// Begin of the name of a directory with what the store knows of its segments in a bucket: one for
/// each such tier.
pub const RECEIPTS: &str = "receipts.";
/// A segment on its way into a directory, until all of it is there.
pub const MOVING: &str = "moving";
/// Most images of a store that were replaced while they are read. Each keeps its space; more mean
/// that readers never end.
pub const REPLACED_COUNT_MAX: usize = 64;
/// Longest name of an image, in bytes.
pub const IMAGE_NAME_LEN_MAX: usize = 200;

/// Segment `number`.
pub fn segment(number: SegmentNo) -> ObjectName {
    ObjectName::new(ObjectKind::Segment, &format!("{number:016x}"))
}

/// The file of segment `number` while it receives records, is cut off or loses ranges.
pub fn segment_file(number: SegmentNo) -> String {
    segment(number).path
}

/// Offset of the byte of [`SUPERBLOCK`] that readers of an image lock. Forged maps may have any
/// number; the last byte of the longest file is locked for those that no store reaches.
pub fn image_lock(image_no: ImageNo) -> u64 {
    IMAGE_LOCKS
        .saturating_add(image_no.0)
        .min(i64::MAX as u64 - 1)
}

/// Offset of the byte of [`SUPERBLOCK`] that readers of a snapshot lock.
pub fn snapshot_lock(volume_no: VolumeNo, no: SnapshotNo) -> u64 {
    SNAPSHOT_LOCKS | u64::from(volume_no.0) << 24 | u64::from(no.0 & 0xff_ffff)
}

/// Parses the file name of a segment; `None` if `name` is not one.
pub fn segment_number(name: &str) -> Option<SegmentNo> {
    let number = u64::from_str_radix(name, 16).ok()?;
    (segment_file(SegmentNo(number))
        .strip_prefix(SEGMENTS)?
        .strip_prefix('/')?
        == name)
        .then_some(SegmentNo(number))
}

/// The map that readers open for the image `name`.
pub fn map(name: &str) -> ObjectName {
    ObjectName::new(ObjectKind::Map, name)
}

/// The object that shows the volume `name`.
pub fn volume(name: &str) -> ObjectName {
    ObjectName::new(ObjectKind::VolumeName, name)
}

/// Path of the sync log of the volume with this number.
pub fn sync_log(volume_no: VolumeNo) -> String {
    format!("{VOLUMES}/.{volume_no:08x}.log")
}

/// Parses the file name of a sync log; `None` if `name` is not one.
pub fn sync_log_number(name: &str) -> Option<VolumeNo> {
    let digits = name.strip_prefix('.')?.strip_suffix(".log")?;
    let number = VolumeNo(u32::from_str_radix(digits, 16).ok()?);
    (sync_log(number).strip_prefix(VOLUMES)?.strip_prefix('/')? == name).then_some(number)
}

/// The file of the journal with all rows as of a commit.
pub fn journal_rows(commit: CommitNo) -> String {
    format!("{JOURNAL}/{:016x}.rows", commit.0)
}

/// The file of the journal with the commits after `base`.
pub fn journal_log(base: CommitNo) -> String {
    format!("{JOURNAL}/{:016x}.log", base.0)
}

/// The commit of a file of rows with this name; `None` if it is none.
pub fn journal_rows_commit(name: &str) -> Option<CommitNo> {
    commit_of(name, ".rows")
}

/// The commit before those of a file of commits with this name; `None` if it is none.
pub fn journal_log_base(name: &str) -> Option<CommitNo> {
    commit_of(name, ".log")
}

fn commit_of(name: &str, suffix: &str) -> Option<CommitNo> {
    let digits = name.strip_suffix(suffix)?;
    let commit = u64::from_str_radix(digits, 16).ok()?;
    (format!("{commit:016x}") == digits).then_some(CommitNo(commit))
}

/// A map that readers do not see: its image is being added or removed.
pub fn hidden_map(image_no: ImageNo) -> ObjectName {
    ObjectName::new(ObjectKind::Map, &format!(".{image_no:016x}.map"))
}

/// The file with the digests of an image's contents.
pub fn content_digests(image_no: ImageNo) -> String {
    format!("{IMAGES}/.{image_no:016x}.digests")
}

/// The reserved name of an image that was replaced while it was read: of its map and of its row. No
/// image that users add can have it.
pub fn replaced_name(image_no: ImageNo) -> String {
    format!(".{image_no:016x}.replaced")
}

/// Image whose [`replaced_name`] this is; `None` if it is none.
pub fn replaced_image(name: &str) -> Option<ImageNo> {
    image_of(name, ".replaced")
}

/// Image of a hidden map with this file name; `None` if it is none.
pub fn hidden_map_image(name: &str) -> Option<ImageNo> {
    image_of(name, ".map")
}

/// Image of a file of content digests with this name; `None` if it is none.
pub fn digested_image(name: &str) -> Option<ImageNo> {
    image_of(name, ".digests")
}

fn image_of(name: &str, suffix: &str) -> Option<ImageNo> {
    let digits = name.strip_prefix('.')?.strip_suffix(suffix)?;
    let image_no = ImageNo(u64::from_str_radix(digits, 16).ok()?);
    (format!("{image_no:016x}") == digits).then_some(image_no)
}

/// The map of the image `name` once a salvage has set it aside.
pub fn damaged_map(name: &str) -> ObjectName {
    map(&format!(".{name}.damaged"))
}

/// The name of the volume `name` once a salvage has found it lost.
pub fn damaged_volume(name: &str) -> ObjectName {
    volume(&format!(".{name}.damaged"))
}

/// Key of the hidden row of an image that replaces the image `name`, or that was replaced. It is
/// not a valid image name.
pub fn replaced_key(name: &str) -> String {
    format!("\u{1}{name}")
}

/// Whether `key` is a result of [`replaced_key`].
pub fn is_replaced_key(key: &str) -> bool {
    key.starts_with('\u{1}')
}

/// The name of the image to which a row with this key belongs.
pub fn strip_replaced(key: &str) -> &str {
    key.strip_prefix('\u{1}').unwrap_or(key)
}

/// Checks that `name` can be the name of an image or a volume in a store.
///
/// # Errors
/// `Invalid` unless the name has 1 to 200 bytes, no slash, no control character and no leading dot.
/// Such a name stays inside the store, and listings show it.
pub fn check_name(name: &str) -> Result<()> {
    let is_good = !name.is_empty()
        && name.len() <= IMAGE_NAME_LEN_MAX
        && !name.starts_with('.')
        && !name.chars().any(|c| c == '/' || c.is_control());
    if is_good {
        Ok(())
    } else {
        Err(Error::invalid(format!(
            "name {name:?}: expected 1 to {IMAGE_NAME_LEN_MAX} bytes without '/', without control \
         characters and without a dot in front"
        )))
    }
}

/// As [`check_name`], for a name that may be the reserved one of a replaced image.
///
/// # Errors
/// As [`check_name`].
pub fn check_map_name(name: &str) -> Result<()> {
    if replaced_image(name).is_some() {
        return Ok(());
    }
    check_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_leave_the_store() {
        for good in ["a", "gcc-14.2", "tag:latest", "ünïcode", "a..b"] {
            check_name(good).expect(good);
        }
        for bad in [
            "",
            ".",
            "..",
            "../x",
            "a/b",
            "/a",
            ".hidden",
            "a\nb",
            &"x".repeat(201),
        ] {
            check_name(bad).expect_err(bad);
        }
    }

    #[test]
    fn names_of_replaced_images_are_numbers_that_nobody_can_give() {
        for number in [0, 0x1234, u64::MAX].map(ImageNo) {
            let name = replaced_name(number);
            assert_eq!(replaced_image(&name), Some(number));
            assert_eq!(hidden_map_image(&name), None);
            check_name(&name).expect_err(&name);
        }
        for bad in ["", ".replaced", ".1.replaced", "0000000000000001.replaced"] {
            assert_eq!(replaced_image(bad), None, "{bad}");
        }
    }

    #[test]
    fn names_of_sync_logs_are_numbers_and_back() {
        for number in [0, 1, 0x1234, u32::MAX].map(VolumeNo) {
            let name = sync_log(number);
            let name = name.strip_prefix("volumes/").expect("a prefix");
            assert_eq!(sync_log_number(name), Some(number));
        }
        for bad in [
            "",
            ".log",
            ".1.log",
            ".+0000001.log",
            "00000001.log",
            ".0000000G.log",
        ] {
            assert_eq!(sync_log_number(bad), None, "{bad}");
        }
    }

    #[test]
    fn segment_names_are_numbers_and_back() {
        for number in [0, 1, 0x1234, u64::MAX] {
            let number = SegmentNo(number);
            let name = segment_file(number);
            let name = name.strip_prefix("segments/").expect("a prefix");
            assert_eq!(segment_number(name), Some(number));
        }
        for bad in [
            "",
            "1",
            "+000000000000001",
            "000000000000000G",
            "0000000000000001.tmp",
        ] {
            assert_eq!(segment_number(bad), None, "{bad}");
        }
    }
}
