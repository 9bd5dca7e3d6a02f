//! Dumps in the format of composefs: what is read is written and read again as the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weald_erofs::dump::DumpEntry;

fuzz_target!(|data: &[u8]| {
    for line in data.split(|byte| *byte == b'\n') {
        let Ok(entry) = DumpEntry::parse(line) else {
            continue;
        };
        let mut again = Vec::new();
        entry.put(&mut again);
        assert_eq!(again.pop(), Some(b'\n'));
        assert_eq!(DumpEntry::parse(&again).expect("what was written"), entry);
    }
});
