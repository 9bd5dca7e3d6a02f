//! Sections: finding the record that has a number, or that holds an item.

use weald_format::Error;
use weald_format::container::{RecordRef, RecordType};
use weald_format::directory::{Directory, Section, raw_len_max};

/// A record that a search found.
#[derive(Debug, Clone, Copy)]
pub struct FoundRecord {
    /// Number of the record in its section.
    pub no: u64,
    /// Its reference.
    pub record: RecordRef,
    /// First item of the record, counted from the start of the section.
    pub first_item: u64,
    /// Items of the record.
    pub item_count: u64,
}

/// Running sums over a section, for the search in it.
pub struct SectionIndex {
    /// Index of the section in the directory.
    pub section_no: usize,
    /// Type of its records.
    pub record_type: RecordType,
    /// Its stream.
    pub stream: u8,
    /// Most raw bytes of a record.
    pub raw_len_max: u64,
    /// First record of each index page, and the count of all records at the end.
    pub record_starts: Vec<u64>,
    /// First item of each index page, and the count of all items at the end.
    pub item_starts: Vec<u64>,
}

impl SectionIndex {
    /// The index of section `section_no` of `directory`.
    pub fn new(directory: &Directory, section_no: usize, section: &Section) -> Self {
        let stream = usize::try_from(section.stream)
            .ok()
            .and_then(|s| directory.streams.get(s));
        let raw_len_max = match (section.record_type, stream) {
            (RecordType::Data, Some(stream)) => stream.block_len_max,
            (other, _) => raw_len_max(other),
        };
        Self {
            section_no,
            record_type: section.record_type,
            stream: section.stream as u8,
            raw_len_max,
            record_starts: sums(section.pages.iter().map(|p| p.record_count)),
            item_starts: sums(section.pages.iter().map(|p| p.item_count)),
        }
    }
}

fn sums(values: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut sum = 0u64;
    let running = values.map(|v| {
        sum = sum.saturating_add(v);
        sum
    });
    std::iter::once(0).chain(running).collect()
}

/// The error about a record or an item that a section does not have.
pub fn missing(record_type: RecordType, what: &str, no: u64) -> Error {
    let rule = match record_type {
        RecordType::Dictionary => "F-3.12",
        RecordType::Templates => "F-9.2",
        RecordType::Entries => "F-9.8",
        RecordType::Contents => "F-10.2",
        RecordType::Extents => "F-11.4",
        RecordType::Data | RecordType::Recipes => "F-11.5",
        RecordType::Attributes => "F-12.2",
        RecordType::Xattrs => "F-13.2",
        RecordType::Links => "F-14.2",
        RecordType::Times => "F-15.2",
        RecordType::Fsverity => "F-28.2",
        RecordType::Index | RecordType::Directory | RecordType::Copies => "F-7.9",
    };
    Error::corrupt(
        "directory",
        0,
        rule,
        format!("no {} {what} {no}", record_type.name()),
    )
}
