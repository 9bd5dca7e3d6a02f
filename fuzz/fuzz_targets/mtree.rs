//! Descriptions as of mtree(5).
#![no_main]

use libfuzzer_sys::fuzz_target;
use weald_ingest::{Format, scan_stream};

fuzz_target!(|data: &[u8]| {
    // What is compressed may come to any length; decompressing is not ours.
    let magics = [&[0x1f, 0x8b][..], &[0x28, 0xb5, 0x2f, 0xfd], b"\xfd7zXZ\0"];
    if magics.iter().any(|magic| data.starts_with(magic)) {
        return;
    }
    let source = Box::new(std::io::Cursor::new(data.to_vec()));
    if let Ok(scanned) = scan_stream(source, Format::Mtree { contents: None }, 1 << 20) {
        assert!(scanned.data_len <= data.len() as u64);
    }
});
