//! Collections of the store of a mounted volume, beside writers and readers.

use super::adding::{assert_all_space_comes_back, images, start, with_image};
use super::sealing::{Ended, Writer, generation};
use super::*;
use signal_hook::consts::SIGINT;
use std::os::unix::process::ExitStatusExt;
use std::thread;
use std::time::Duration;

/// A ground whose store has small segments, an image `old`, and an image file `a.weald`.
fn with_small_segments() -> Ground {
    let ground = with_image();
    ground.sh(
        "rm -r store; $WEALD store create -q --segment-size 512K store
        $WEALD volume create -q store:v
        $WEALD store import -q store a.weald --name old",
    );
    ground
}

/// Adds the image `name` of a megabyte that no other image has, and a file of the volume, so that
/// blocks of both lie in the same segments.
#[track_caller]
fn add_mixed(ground: &Ground, name: &str) {
    ground.sh(&format!(
        "for part in 1 2 3 4; do
            rm -rf new; mkdir new; head -c 250000 /dev/urandom > new/data
            $WEALD build -q --block-size 64K --level 1 --force new new.weald
            $WEALD store import -q store new.weald --name {name}.$part
            head -c 150000 /dev/urandom > kept-{name}.$part
            cp kept-{name}.$part mnt/; sync mnt/kept-{name}.$part
        done"
    ));
}

#[track_caller]
fn remove_mixed(ground: &Ground, name: &str) {
    let names = [1, 2, 3, 4].map(|part| format!("store:{name}.{part}"));
    let mut args = vec!["store", "rm"];
    args.extend(names.iter().map(String::as_str));
    ground.weald(&args);
}

/// Would catch: space that does not come back, a file of the volume or an image that changes or
/// cannot be read while its blocks move, a writer that waits for the collection.
#[test]
fn the_store_of_a_mounted_volume_is_collected() {
    let ground = with_small_segments();
    let other = ground.0.dir("other");
    ground.0.mount(Path::new("store:old"), &other, &[]);
    let dir = ground.mount(&["-o", "commit-interval=0.05,cache=4M"]);
    ground.sh("rsync -aHAX --numeric-ids tree mnt/");
    let writer = Writer::new();
    writer.replace(&dir);
    thread::scope(|scope| {
        let _ended = Ended(&writer);
        scope.spawn(|| writer.run(&dir));
        for round in 0..3 {
            let name = format!("i{round}");
            add_mixed(&ground, &name);
            let before = writer.done();
            remove_mixed(&ground, &name);
            let said = ground.weald(&["store", "gc", "--json", "--copy-below", "95", "store"]);
            assert!(writer.begun() > before, "no write beside the collection");
            let said: Value = serde_json::from_str(&said).expect("JSON");
            assert!(said["segments_removed"].as_u64() > Some(0), "{said}");
            assert!(said["copied_len"].as_u64() > Some(100_000), "{said}");
            assert!(said["blocks_forgotten"].as_u64() >= Some(16), "{said}");
            assert_eq!(said["is_reencoding_skipped"], true);
            ground.sh("for file in kept-*; do cmp $file mnt/$file; done");
            ground.sh("rm -rf out; $WEALD check store:old; $WEALD extract -q store:old out");
            assert_same(&ground.at("tree"), &ground.at("out"), &EXTRACTED);
            assert_same(&ground.at("tree"), &other, &MOUNTED);
        }
    });
    let last = generation(&dir.join("second"));
    let said = ground.weald(&["store", "gc", "store"]);
    assert!(said.contains("no volume of the store is mounted"), "{said}");
    ground.refused(
        &["store", "gc", "--reencode-below", "30", "store"],
        &["process", "--reencode-below"],
    );
    ground.umount();
    ground.mount(&["-o", "ro"]);
    collect_beside_reader(&ground);
    assert_eq!(generation(&dir.join("second")), last);
    assert_same(&ground.at("tree"), &dir.join("tree"), &MOUNTED);
    ground.umount();
    ground.0.umount(&other);
    assert_eq!(images(&ground), ["old"]);
    assert_all_space_comes_back(&ground);
}

/// Removes an image and collects its space while the volume is mounted read-only.
#[track_caller]
fn collect_beside_reader(ground: &Ground) {
    ground.sh(
        "rm -rf new; mkdir new; head -c 2000000 /dev/urandom > new/data
         $WEALD build -q --level 1 --force new new.weald
         $WEALD store import -q store new.weald --name gone; $WEALD store rm store:gone",
    );
    let said = ground.weald(&["store", "gc", "--json", "store"]);
    let said: Value = serde_json::from_str(&said).expect("JSON");
    assert!(said["segments_removed"].as_u64() > Some(0), "{said}");
    assert!(said["blocks_forgotten"].as_u64() > Some(0), "{said}");
}

/// Would catch: a block that is lost when the client or the server dies while blocks move.
#[test]
fn a_death_in_a_collection_loses_nothing() {
    let ground = with_small_segments();
    ground.mount(&[]);
    let mut cut = 0;
    for round in 0..8u64 {
        let name = format!("i{round}");
        add_mixed(&ground, &name);
        remove_mixed(&ground, &name);
        let client = start(&ground, &["store", "gc", "--copy-below", "95", "store"]);
        thread::sleep(Duration::from_millis(5 + 40 * (round / 2)));
        match round % 2 {
            0 => {
                ground.sh(&format!("kill -INT {} || true", client.id()));
            }
            _ => ground.kill(),
        }
        let output = client.wait_with_output().expect("the end");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        // At first the client has no handler of the signal yet.
        let is_killed = output.status.signal() == Some(SIGINT);
        let is_told = output.status.success() || is_killed || said.contains("weald:");
        assert!(is_told, "{:?} {said}", output.status);
        cut += u64::from(!output.status.success());
        if round % 2 == 1 {
            ground.mount(&[]);
        }
        ground.sh("for file in kept-*; do cmp $file mnt/$file; done; $WEALD check store:old");
    }
    println!("{cut} collections were cut");
    assert!(cut > 0, "no collection was cut");
    ground.umount();
    assert_all_space_comes_back(&ground);
}
