//! Entry blocks: parsed entries survive encoding and parsing.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weald_format::entries::{EntryBlock, EntryBlockBuilder, EntryFields};

fuzz_target!(|data: &[u8]| {
    let Ok(block) = EntryBlock::parse(data) else {
        return;
    };
    let mut builder = EntryBlockBuilder::default();
    let mut mask = 0;
    for i in 0..block.count() {
        let times = [0, 1, 2, 3].map(|which| {
            let time = block.time(which, i);
            mask |= u8::from(time.is_some()) << which;
            time.unwrap_or_default()
        });
        let fields = EntryFields {
            kind: block.kind(i),
            attributes: block.attributes(i),
            xattrs: block.xattrs(i),
            nlink: block.nlink(i),
            link_back: block.link_back(i),
            times,
            body: block.body(i),
        };
        builder.push(block.name(i), block.target(i), &fields);
    }
    let again = EntryBlock::parse(&builder.encode(mask)).unwrap();
    for i in 0..block.count() {
        assert_eq!(
            (block.name(i), block.target(i), block.body(i)),
            (again.name(i), again.target(i), again.body(i))
        );
        assert_eq!(
            (block.kind(i), block.nlink(i)),
            (again.kind(i), again.nlink(i))
        );
        assert_eq!(
            (block.time(0, i), block.time(3, i)),
            (again.time(0, i), again.time(3, i))
        );
    }
    assert!(block.memory_len() < 64 << 20);
});
