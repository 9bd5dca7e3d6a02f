//! Two stores with one UUID in one server.

use crate::ground::{Ground, noise};
use std::fs;
use weald_testkit::command::succeeded;

/// Would catch: blocks of a store that are found by its UUID, which another store claims too: the
/// twin has the names and digests of the first store and no data of its own.
#[test]
fn a_twin_of_a_store_shows_no_block_of_it() {
    let ground = Ground::new();
    ground.build("a");
    ground.script("$0 store create -q store; $0 store import -q store a; cp -a store twin");
    // Random bytes are stored as they are.
    let noise_start = noise("a")[..64].to_vec();
    let mut zeroed_count = 0;
    for segment in fs::read_dir(ground.at("twin/segments")).expect("segments") {
        let path = segment.expect("a segment").path();
        let mut bytes = fs::read(&path).expect("read");
        if let Some(at) = bytes.windows(64).position(|part| part == noise_start) {
            bytes[at..at + 64].fill(0);
            fs::write(&path, bytes).expect("write");
            zeroed_count += 1;
        }
    }
    assert_eq!(zeroed_count, 1);
    for dir in ["m1", "m2"] {
        fs::create_dir(ground.at(dir)).expect("mkdir");
    }
    succeeded(&ground.weald(&["mount", "store:a", "m1"]));
    let found = fs::read(ground.at("m1/noise")).expect("read");
    assert!(found == noise("a"));
    succeeded(&ground.weald(&["mount", "twin:a", "m2"]));
    assert!(
        ground.server().as_raw_nonzero().get() > 0,
        "one server has both"
    );
    let read = fs::read(ground.at("m2/noise"));
    assert_eq!(read.expect_err("no data").raw_os_error(), Some(5));
    ["m1", "m2"].iter().for_each(|dir| ground.umount(dir));
}
