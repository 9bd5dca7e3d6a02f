use super::*;
use std::io::Cursor;

fn header(ino: u32, mode: u32, nlink: u32, len: usize, name_len: usize) -> Vec<u8> {
    let fields = [
        ino,
        mode,
        0,
        0,
        nlink,
        7,
        len as u32,
        0,
        0,
        0,
        0,
        name_len as u32,
        0,
    ];
    let hex: String = fields.iter().map(|field| format!("{field:08x}")).collect();
    [NEWC_MAGIC, hex.as_bytes()].concat()
}

fn put(out: &mut Vec<u8>, ino: u32, nlink: u32, name: &str, data: &[u8]) {
    let pad = |out: &mut Vec<u8>| out.resize(out.len().next_multiple_of(4), 0);
    let mode = if name == "TRAILER!!!" { 0 } else { 0o100_644 };
    out.extend(header(ino, mode, nlink, data.len(), name.len() + 1));
    out.extend_from_slice(name.as_bytes());
    out.push(0);
    pad(out);
    out.extend_from_slice(data);
    pad(out);
}

fn read(bytes: Vec<u8>, links_len: u64) -> Result<Vec<String>> {
    let input = Input::new(Box::new(Cursor::new(bytes)), 1 << 20)?;
    let mut reader = CpioReader::new(input, 1 << 20, links_len);
    let (mut member, mut seen) = (Member::default(), Vec::new());
    while reader.next(&mut member, &mut |_, _| {})? {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let len = reader.layout().map_or(0, |layout| layout.len);
        seen.push(format!(
            "{} {} {len}",
            text(&member.path),
            text(&member.target)
        ));
    }
    Ok(seen)
}

/// Would catch: names before the data of their file that become empty files, files without data
/// that are lost, and a file that takes the names of another archive's.
#[test]
fn names_wait_for_the_data_of_their_file() {
    let mut bytes = Vec::new();
    put(&mut bytes, 1, 3, "a", b"");
    put(&mut bytes, 2, 2, "empty", b"");
    put(&mut bytes, 1, 3, "b", b"data");
    put(&mut bytes, 2, 2, "void", b"");
    put(&mut bytes, 1, 3, "c", b"data");
    put(&mut bytes, 0, 1, "TRAILER!!!", b"");
    put(&mut bytes, 1, 2, "d", b"other");
    put(&mut bytes, 0, 1, "TRAILER!!!", b"");
    let expected = ["b  4", "a b 0", "c b 0", "empty  0", "void empty 0", "d  5"];
    assert_eq!(read(bytes.clone(), 1 << 20).unwrap(), expected);
    let error = read(bytes, 200).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Limit, "{error}");
}

/// Would catch: a panic or an endless loop on a prefix of an archive.
#[test]
fn every_prefix_ends() {
    let mut bytes = Vec::new();
    put(&mut bytes, 1, 2, "a", b"");
    put(&mut bytes, 1, 2, "b", b"data");
    let len = bytes.len();
    put(&mut bytes, 0, 1, "TRAILER!!!", b"");
    for end in 0..=bytes.len() {
        let read = read(bytes[..end].to_vec(), 1 << 20);
        assert_eq!(read.is_ok(), end == bytes.len(), "{end} of {len}");
    }
}
