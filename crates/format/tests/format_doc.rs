//! Compares `docs/format.md` with the code in both directions: tables, limits, examples and rules.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use weald_format::column::Column;
use weald_format::container::{Codec, FOOTER_FIELDS, HEADER_FIELDS, RecordType, SUPERBLOCK_FIELDS};
use weald_format::cursor::Cursor;
use weald_format::directory::{Category, items_max, raw_len_max};
use weald_format::entries::EntryKind;
use weald_format::journal::{FRAME_FIELDS, JOURNAL_FIELDS};
use weald_format::names::Names;
use weald_format::replica::{DATA_LEN_MAX, ITEM_FIELDS, ITEM_LIST_LEN_MAX, PLACE_FIELDS};
use weald_format::store::{MAP_FIELDS, MARK_FIELDS, SEGMENT_FIELDS, STORE_FIELDS};
use weald_format::sync_log::{DELTA_FIELDS, SYNC_LOG_FIELDS};
use weald_format::{VolumeNo, limits};

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn document() -> String {
    std::fs::read_to_string(workspace().join("docs/format.md")).unwrap()
}

/// Rows of the first table below the heading that begins with `heading`, without the header row.
/// Cells come without back-quotes.
fn table(document: &str, heading: &str) -> Vec<Vec<String>> {
    let mut lines = document
        .lines()
        .skip_while(|l| !l.trim_start_matches('#').trim_start().starts_with(heading));
    assert!(
        lines.next().is_some_and(|l| l.starts_with('#')),
        "no heading {heading}"
    );
    let rows = lines
        .take_while(|l| !l.starts_with('#'))
        .skip_while(|l| !l.starts_with('|'));
    rows.take_while(|l| l.starts_with('|'))
        .skip(2)
        .map(cells)
        .collect()
}

fn cells(row: &str) -> Vec<String> {
    let inner = row.trim().trim_start_matches('|').trim_end_matches('|');
    inner
        .split(" | ")
        .map(|c| c.trim().trim_matches('`').to_owned())
        .collect()
}

fn record_table(document: &str, heading: &str) -> Vec<(String, usize, usize)> {
    let row = |r: &Vec<String>| (r[0].clone(), r[1].parse().unwrap(), r[2].parse().unwrap());
    table(document, heading).iter().map(row).collect()
}

#[test]
fn record_tables_say_what_the_structs_say() {
    let document = document();
    for (heading, fields) in [
        ("Superblock\n", SUPERBLOCK_FIELDS),
        ("Record header\n", HEADER_FIELDS),
        ("Footer\n", FOOTER_FIELDS),
        ("Store superblock\n", STORE_FIELDS),
        ("Segments\n", SEGMENT_FIELDS),
        ("Mark\n", MARK_FIELDS),
        ("Journal\n", JOURNAL_FIELDS),
        ("Frames of the journal\n", FRAME_FIELDS),
        ("Image map\n", MAP_FIELDS),
        ("Place of a replica\n", PLACE_FIELDS),
        ("Items of a replica\n", ITEM_FIELDS),
        ("Sync log\n", SYNC_LOG_FIELDS),
        ("Records of the sync log\n", DELTA_FIELDS),
    ] {
        let fields: Vec<_> = fields
            .iter()
            .map(|(name, at, len)| (name.to_string(), *at, *len))
            .collect();
        assert_eq!(record_table(&document, heading.trim()), fields, "{heading}");
        let end = fields.iter().fold(0, |end, (name, at, len)| {
            assert_eq!(
                end, *at,
                "{name} of {heading}: fields leave a gap or overlap"
            );
            at + len
        });
        assert!([64, 96, 128, 192, 256].contains(&end));
    }
}

/// Would catch a limit of replicas that the document gives as another number.
#[test]
fn limits_of_replicas_are_those_of_the_code() {
    let document = document();
    let section = document.split("\n## 29. Replicas\n").nth(1);
    let section = section.expect("a section");
    for limit in [DATA_LEN_MAX, ITEM_LIST_LEN_MAX] {
        assert!(section.contains(&format!("at most {limit}")), "{limit}");
    }
}

fn codes(document: &str, heading: &str) -> Vec<(u64, String)> {
    table(document, heading)
        .iter()
        .map(|r| (r[0].parse().unwrap(), r[1].clone()))
        .collect()
}

#[test]
fn code_tables_say_what_the_enums_say() {
    let document = document();
    let types: Vec<_> = RecordType::ALL
        .iter()
        .map(|(_, code, name)| (u64::from(*code), name.to_string()))
        .collect();
    assert_eq!(codes(&document, "Record types"), types);
    let codecs: Vec<_> = Codec::ALL
        .iter()
        .map(|(_, code, name)| (u64::from(*code), name.to_string()))
        .collect();
    assert_eq!(codes(&document, "Codecs"), codecs);
    let categories: Vec<_> = (0..=255)
        .filter_map(Category::from_code)
        .map(|c| (c as u64, c.name().to_owned()))
        .collect();
    assert_eq!(codes(&document, "Categories"), categories);
    let kinds = codes(&document, "Kinds");
    assert_eq!(
        kinds.len(),
        (0..300).filter_map(EntryKind::from_code).count()
    );
    for (code, name) in kinds {
        let squeezed: String = name.split(' ').collect();
        let kind = format!("{:?}", EntryKind::from_code(code).unwrap()).to_lowercase();
        assert_eq!(kind, squeezed, "kind {code}");
    }
}

#[test]
fn limits_are_those_of_the_code() {
    let document = document();
    let row = |r: &Vec<String>| (r[0].clone(), r[1].parse().unwrap());
    let documented: Vec<(String, u64)> = table(&document, "2. Numbers and limits")
        .iter()
        .map(row)
        .collect();
    let coded: Vec<(String, u64)> = limits::ALL
        .iter()
        .map(|(name, value)| (name.to_string(), *value))
        .collect();
    assert_eq!(documented, coded);
}

#[test]
fn item_limits_are_those_of_the_code() {
    let document = document();
    let limit = |name: &str| match name {
        "1" => 1,
        name => {
            limits::ALL
                .iter()
                .find(|(n, _)| *n == name)
                .unwrap_or_else(|| panic!("no limit {name}"))
                .1
        }
    };
    // The item table is the last table of section 7, below the heading of the categories.
    let start = document
        .find("| record type | items of a record |")
        .unwrap();
    let rows: Vec<_> = document[start..]
        .lines()
        .take_while(|l| l.starts_with('|'))
        .skip(2)
        .map(cells)
        .collect();
    let mut seen = 0;
    for row in rows {
        for name in row[0].split(", ") {
            let record_type = RecordType::ALL
                .iter()
                .find(|(_, _, n)| *n == name)
                .unwrap()
                .0;
            assert_eq!(items_max(record_type), limit(&row[2]), "{name}");
            seen += 1;
        }
    }
    // All types except index, directory and copies.
    assert_eq!(seen, RecordType::ALL.len() - 3);
    assert_eq!(
        raw_len_max(RecordType::Directory),
        limits::DIRECTORY_LEN_MAX
    );
}

fn bytes_of(hex: &str) -> Vec<u8> {
    hex.split_whitespace()
        .map(|b| u8::from_str_radix(b, 16).unwrap())
        .collect()
}

/// Rows of the table of examples whose first column is `heading` and whose second has bytes.
fn examples(document: &str, heading: &str) -> Vec<Vec<String>> {
    let start = document.find(&format!("| {heading} | bytes |")).unwrap();
    let rows = document[start..].lines();
    let rows = rows.take_while(|l| l.starts_with('|')).skip(2);
    rows.map(cells).collect()
}

#[test]
fn worked_columns_decode_to_their_values() {
    let document = document();
    let rows = examples(&document, "values");
    for (tag, row) in rows.iter().enumerate() {
        let values: Vec<u64> = row[0].split(' ').map(|v| v.parse().unwrap()).collect();
        let bytes = bytes_of(&row[1]);
        assert_eq!(
            usize::from(bytes[0]),
            tag,
            "one example of each encoding, in order"
        );
        let mut cursor = Cursor::new(&bytes, "example");
        let column = Column::decode(&mut cursor, values.len()).unwrap();
        cursor.finish().unwrap();
        assert_eq!(column.iter(values.len()).collect::<Vec<_>>(), values);
    }
    assert_eq!(rows.len(), 8);
}

#[test]
fn worked_names_decode_to_their_names() {
    let document = document();
    let rows = examples(&document, "names");
    for (tag, row) in rows.iter().enumerate() {
        let expected: Vec<&str> = row[0].split(' ').collect();
        let bytes = bytes_of(&row[1]);
        assert_eq!(usize::from(bytes[0]), tag);
        let mut cursor = Cursor::new(&bytes, "example");
        let names = Names::decode(&mut cursor, expected.len()).unwrap();
        cursor.finish().unwrap();
        let names: Vec<_> = (0..names.count())
            .map(|i| String::from_utf8_lossy(names.get(i)).into_owned())
            .collect();
        assert_eq!(names, expected);
    }
    assert_eq!(rows.len(), 4);
}

/// Catches an example of a group of rows that the code does not make.
#[test]
fn the_group_of_two_names_is_the_one_in_the_document() {
    use weald_format::row_group::{Rows, Shape};
    use weald_format::volume::{NamePlace, NameRow};
    use weald_format::{Cookie, Ino};
    let mut rows = Rows::default();
    for (name, ino, hash) in [(b"a", 5, 16u64), (b"b", 6, 48)] {
        let row = NameRow {
            name: name.to_vec(),
            ino: Ino(ino),
            kind: weald_format::FileKind::Regular,
        };
        let place = NamePlace {
            dir: Ino(2),
            cookie: Cookie(hash * 128),
        };
        rows.push(&place.key(VolumeNo(1)), &row.encode()).unwrap();
    }
    let document = document();
    let (_, text) = document
        .split_once("The body of a group with two names")
        .unwrap();
    let (text, _) = text.split_once("Stores of older versions").unwrap();
    let bytes: Vec<u8> = text
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`'))
        .flat_map(|(hex, _)| hex.split(' '))
        .map(|byte| u8::from_str_radix(byte, 16).unwrap())
        .collect();
    assert_eq!(bytes, rows.encode(0..2, Some(Shape::Names)));
}

/// All ids in `text` that begin with `letter`, such as `F-3.14`; if `before` is not empty, only
/// those directly after it.
fn ids(text: &str, letter: char, before: &str) -> BTreeSet<String> {
    let pattern = format!("{before}{letter}-");
    let id = |at: usize| {
        let rest = &text[at + before.len() + 2..];
        let end = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(rest.len());
        rest[..end].trim_end_matches('.').to_owned()
    };
    // UTF-8 is no rule.
    let is_alone = |at: usize| !text[..at].ends_with(|c: char| c.is_ascii_alphanumeric());
    let found = text.match_indices(&pattern);
    let found = found.filter(|(at, _)| is_alone(*at)).map(|(at, _)| id(at));
    found
        .filter(|id| !id.is_empty())
        .map(|id| format!("{letter}-{id}"))
        .collect()
}

fn rust_files(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
}

/// Text of all sources (or all tests) of these crates. Unit tests do not count as sources.
fn texts(crates: &[&str], dir: &str) -> BTreeMap<PathBuf, String> {
    let mut files = Vec::new();
    crates
        .iter()
        .for_each(|c| rust_files(&workspace().join("crates").join(c).join(dir), &mut files));
    files
        .into_iter()
        .map(|f| (f.clone(), std::fs::read_to_string(f).unwrap()))
        .collect()
}

fn without_unit_tests(text: &str) -> &str {
    text.split("#[cfg(test)]\nmod tests {")
        .next()
        .unwrap_or_default()
}

#[test]
fn every_rule_is_enforced_and_every_enforced_rule_is_documented() {
    let document = document();
    let documented = ids(&document, 'F', "**");
    let sources = texts(&["format", "codec", "image", "parity"], "src");
    let enforced: BTreeSet<String> = sources
        .values()
        .flat_map(|t| ids(without_unit_tests(t), 'F', "\""))
        .collect();
    assert!(documented.len() > 70, "{documented:?}");
    let undocumented: Vec<_> = enforced.difference(&documented).collect();
    let unenforced: Vec<_> = documented.difference(&enforced).collect();
    assert!(
        undocumented.is_empty() && unenforced.is_empty(),
        "not documented: {undocumented:?}; not enforced: {unenforced:?}"
    );
    let mentioned = ids(&document, 'F', "");
    assert_eq!(
        mentioned, documented,
        "rules are mentioned that are not defined"
    );
}

/// Catches a rule of stores that no code enforces, and one that no document has.
#[test]
fn every_rule_of_stores_is_enforced_and_documented() {
    let document = document();
    let documented = ids(&document, 'S', "**");
    let sources = texts(&["format", "store", "builder"], "src");
    let enforced: BTreeSet<String> = sources
        .values()
        .flat_map(|t| ids(without_unit_tests(t), 'S', "\""))
        .collect();
    assert_eq!(documented, enforced);
    assert!(documented.len() > 20, "{documented:?}");
}

/// Catches a rule of sync logs that no code enforces, and one that no document has.
#[test]
fn every_rule_of_sync_logs_is_enforced_and_documented() {
    let of_logs = |ids: BTreeSet<String>| -> BTreeSet<String> {
        ids.into_iter().filter(|id| id.starts_with("V-6")).collect()
    };
    let documented = of_logs(ids(&document(), 'V', "**"));
    let sources = texts(&["format", "store", "volume"], "src");
    let enforced = sources
        .values()
        .flat_map(|t| ids(without_unit_tests(t), 'V', "\""));
    assert_eq!(documented, of_logs(enforced.collect()));
    assert_eq!(documented.len(), 6, "{documented:?}");
}

#[test]
fn every_rule_is_documented_once() {
    let document = document();
    for id in ids(&document, 'F', "**")
        .iter()
        .chain(&ids(&document, 'S', "**"))
        .chain(&ids(&document, 'V', "**"))
        .chain(&ids(&document, 'W', "**"))
    {
        assert_eq!(document.matches(&format!("**{id}**")).count(), 1, "{id}");
    }
}

#[test]
fn every_rule_has_a_test() {
    let document = document();
    let tests = texts(&["format", "codec", "image", "builder", "parity"], "tests");
    let tested = |letter| -> BTreeSet<String> {
        tests.values().flat_map(|t| ids(t, letter, "\"")).collect()
    };
    for letter in ['F', 'W'] {
        let documented = ids(&document, letter, "**");
        let tested = tested(letter);
        let untested: Vec<_> = documented.difference(&tested).collect();
        assert!(untested.is_empty(), "no test cites {untested:?}");
    }
}
