//! Superblock, record header and footer: parsed bytes encode to the same bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weald_format::container::{Footer, RecordRef, SuperblockRecord};
use weald_fuzz::with_checksum;
use zerocopy::IntoBytes;

fuzz_target!(|data: &[u8]| {
    let Some((&which, bytes)) = data.split_first() else {
        return;
    };
    // Half of the inputs get the correct checksum; otherwise no code after the check would be
    // reached.
    let bytes = if which & 1 == 0 {
        bytes.to_vec()
    } else {
        with_checksum(bytes)
    };
    let _ = SuperblockRecord::parse(&bytes);
    if let Ok(header) = RecordRef::parse_header(&bytes, 64) {
        assert_eq!(header.header().as_bytes(), bytes);
        let _ = header.end();
    }
    let offset = bytes
        .get(32..40)
        .and_then(|b| b.try_into().ok())
        .map_or(0, u64::from_le_bytes);
    if let Ok(footer) = Footer::parse(&bytes, offset) {
        assert_eq!(footer.encode().as_bytes(), bytes);
    }
});
