//! Machines with several disks, and the time that the calls to a disk take.

use super::{random_image, read_all};
use crate::disk::{Access, LocalFiles, Objects};
use crate::layout;
use crate::simulated_disk::{Fault, Latency, Random, SimDisk};
use crate::{Store, WriteOptions};
use std::collections::BTreeSet;
use std::sync::Arc;

const MS: u64 = 1_000_000;

/// Would catch: a simulated disk whose writes become durable when another disk of the machine is
/// synced, which would hide that a store on two disks has to sync both.
#[test]
fn disks_of_a_machine_lose_power_together_and_writes_apart() {
    let mut outcomes = BTreeSet::new();
    for seed in 0..50 {
        let first = SimDisk::new(seed);
        let second = first.beside(seed + 1000);
        for disk in [&first, &second] {
            disk.make_dir("").expect("make");
            disk.sync_dir("").expect("sync");
        }
        let early = first.open("early", Access::Create).expect("create");
        early.write_at(b"x", 0).expect("write");
        let late = second.open("late", Access::Create).expect("create");
        late.write_at(b"y", 0).expect("write");
        late.sync().expect("sync");
        second.sync_dir("").expect("sync");
        second.fail_after(0, Fault::PowerCut);
        assert!(second.sync_dir("").is_err());
        assert!(early.sync().is_err(), "the power is off for both");
        let [first, second] = SimDisk::reboot_all([&first, &second]);
        let bytes = |disk: &SimDisk, name: &str| disk.read_file(name, 10).ok();
        assert_eq!(bytes(&second, "late"), Some(b"y".to_vec()));
        outcomes.insert(bytes(&first, "early"));
    }
    // The later write is there in each run; of the earlier one all, nothing, the name alone, or the
    // name and the length.
    assert_eq!(outcomes.len(), 4, "{outcomes:?}");
}

/// Would catch: a clock that stands still in a call, or that a reboot sets back.
#[test]
fn the_clock_counts_calls_syncs_and_bytes() {
    let disk = SimDisk::new(1);
    disk.make_dir("images").expect("make");
    disk.set_latency(Latency {
        call_ns: MS,
        sync_ns: 10 * MS,
        byte_ns: 1,
    });
    // A removal, a creation, a write of 1,000 bytes and two syncs.
    disk.put(&layout::map("a"), &[7; 1000]).expect("put");
    assert_eq!(disk.now_ns(), 4 * MS + 20 * MS + 1000);
    assert_eq!(disk.reboot().now_ns(), disk.now_ns());
}

/// Would catch: one more round trip for each reader of a store on a slow disk. With 20 ms a call,
/// as over a network, the first byte of an image takes a quarter of a second.
#[test]
fn an_image_is_opened_in_few_calls() {
    let disk = SimDisk::new(2);
    let store = Store::create(Arc::new(disk.clone()), [2; 16], 1 << 20).expect("create");
    let image = random_image(&mut Random::new(2), &mut Vec::new());
    let mut writer = store.write(WriteOptions::new("test")).expect("write");
    writer.import("image", &image).expect("import");
    drop(writer);
    disk.set_latency(Latency {
        call_ns: 20 * MS,
        ..Latency::default()
    });
    let (calls, now) = (disk.calls(), disk.now_ns());
    let store = Store::open(Arc::new(disk.clone())).expect("open");
    assert_eq!(read_all(&store, "image").expect("read"), image);
    let calls = disk.calls() - calls;
    assert_eq!(disk.now_ns() - now, calls * 20 * MS);
    assert!(calls <= 12, "{calls} calls");
}
