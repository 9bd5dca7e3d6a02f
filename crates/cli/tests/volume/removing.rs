//! Images that are removed from the store of a mounted volume, beside writers.

use super::adding::{assert_all_space_comes_back, images, start, with_image};
use super::sealing::{Ended, Writer, generation};
use super::*;
use std::thread;
use std::time::Duration;

/// Would catch: an image that stays or goes in part, a reader that loses its image, a volume or
/// another image that loses something, a message that differs from that without a mount.
#[test]
fn a_mounted_volume_lets_images_go() {
    let ground = with_image();
    ground.weald(&["store", "import", "-q", "store", "a.weald", "--name", "old"]);
    let other = ground.0.dir("other");
    ground.0.mount(Path::new("store:old"), &other, &[]);
    let in_use = [
        "store:old: is in use by process ",
        " of user 0, mounted on ",
        "/other: unmount it first, or use --force",
    ];
    let unknown = ["store:none: "];
    ground.refused(&["store", "rm", "store:old"], &in_use);
    ground.refused(&["store", "rm", "store:none"], &unknown);
    let dir = ground.mount(&["-o", "commit-interval=0.05"]);
    ground.refused(&["store", "rm", "store:old"], &in_use);
    ground.refused(&["store", "rm", "store:none"], &unknown);
    ground.refused(&["store", "rm", "store", "old", "none"], &unknown);
    ground.sh("rsync -aHAX --numeric-ids tree mnt/");
    let writer = Writer::new();
    writer.replace(&dir);
    thread::scope(|scope| {
        let _ended = Ended(&writer);
        scope.spawn(|| writer.run(&dir));
        for number in 0..4 {
            let (sealed, imported) = (format!("s{number}"), format!("i{number}"));
            ground.weald(&["volume", "seal", "-q", VOLUME, "--name", &sealed]);
            ground.weald(&[
                "store", "import", "-q", "store", "a.weald", "--name", &imported,
            ]);
            let said = ground.weald(&["store", "rm", "--json", "store", &sealed, &imported]);
            let wanted = format!("{{\"removed\":\"{sealed}\"}}\n{{\"removed\":\"{imported}\"}}\n");
            assert_eq!(said, wanted);
            assert_eq!(images(&ground), ["old"]);
            ground.weald(&["volume", "seal", "-q", VOLUME, "--name", &sealed]);
            ground.weald(&["check", &format!("store:{sealed}")]);
            ground.weald(&["store", "rm", &format!("store:{sealed}")]);
        }
    });
    let last = generation(&dir.join("second"));
    assert_same(&ground.at("tree"), &other, &MOUNTED);
    ground.0.umount(&other);
    ground.weald(&["store", "rm", "store:old"]);
    assert_eq!(images(&ground), Vec::<String>::new());
    ground.weald(&[
        "store", "import", "-q", "store", "a.weald", "--name", "kept",
    ]);
    ground.umount();
    ground.mount(&["-o", "ro"]);
    ground.refused(&["store", "rm", "store:none"], &unknown);
    ground.weald(&["store", "rm", "store:kept"]);
    assert_eq!(images(&ground), Vec::<String>::new());
    assert_eq!(generation(&dir.join("second")), last);
    assert_same(&ground.at("tree"), &dir.join("tree"), &MOUNTED);
    ground.umount();
    assert_all_space_comes_back(&ground);
}

/// A store with the images `v1`, and `v2` on it as its base image.
fn with_base() -> Ground {
    let ground = Ground::new();
    ground.sh(TREE);
    ground.sh("cp -a tree next; seq 7 > next/new
         $WEALD store add -q store tree --name v1
         $WEALD build -q --base store:v1 next based.weald
         $WEALD store import -q store based.weald --name v2");
    ground
}

/// Would catch: a base image that goes although another image needs it: one that came since the
/// command looked at the images. The server that removes it has the last word.
#[test]
fn the_server_keeps_base_images() {
    let ground = with_base();
    ground.mount(&[]);
    let runtime_dir = weald_daemon::RuntimeDir::find(&ground.0.runtime_dir());
    let runtime_dir = runtime_dir.expect("found").expect("a server");
    let lock = File::options()
        .read(true)
        .write(true)
        .open(ground.at("store/lock"));
    let lock = lock.expect("the lock");
    // As a client does that saw no other image.
    let remove = |name| {
        use std::os::fd::AsFd;
        weald_daemon::remove_image(&runtime_dir, lock.as_fd(), name, false)
    };
    let refused = remove("v1").expect_err("another image needs it");
    assert_eq!(refused.kind(), weald_format::ErrorKind::Busy);
    assert!(
        refused.to_string().contains("the base image of v2"),
        "{refused}"
    );
    ground.weald(&["check", "store:v2"]);
    assert_eq!(images(&ground), ["v1", "v2"]);
    assert!(remove("v2").expect("removed") && remove("v1").expect("removed"));
    assert_eq!(images(&ground), Vec::<String>::new());
    ground.umount();
    assert_all_space_comes_back(&ground);
}

/// Would catch: a volume that loses data with the image that it was made of, or with the base image
/// of that one.
#[test]
fn a_volume_of_an_image_needs_neither_it_nor_its_base() {
    let ground = with_base();
    ground.weald(&["volume", "create", "-q", "store:w", "--from", "store:v2"]);
    ground.refused(&["store", "rm", "store:v1"], &["the base image of v2"]);
    ground.weald(&["store", "rm", "store", "v1", "v2"]);
    ground.weald(&["store", "gc", "-q", "store"]);
    ground.weald(&["volume", "check", "--data", "store:w"]);
    let other = ground.0.dir("other");
    ground.0.mount(Path::new("store:w"), &other, &["-o", "ro"]);
    assert_same(&ground.at("next"), &other, &MOUNTED);
    ground.0.umount(&other);
}

/// Would catch: an image that is there in part, references that are dropped twice or not, or a lost
/// change of the volume, after the death of the client or of the server.
#[test]
fn a_death_leaves_a_whole_image_or_takes_all_of_it() {
    let ground = with_image();
    let dir = ground.mount(&[]);
    ground.sh("cp tree/noise mnt/noise; sync mnt");
    let (mut whole, mut gone) = (0, 0);
    for round in 0..12u64 {
        let name = format!("i{round}");
        fs::write(dir.join(&name), &name).expect("write");
        File::open(&dir)
            .and_then(|dir| dir.sync_all())
            .expect("sync");
        ground.weald(&["store", "import", "-q", "store", "a.weald", "--name", &name]);
        let mut client = start(&ground, &["store", "rm", &format!("store:{name}")]);
        thread::sleep(Duration::from_millis(3 * (round / 2)));
        match round % 2 {
            0 => client.kill().expect("kill"),
            _ => ground.kill(),
        }
        let output = client.wait_with_output().expect("the end");
        if round % 2 == 1 {
            ground.mount(&[]);
        }
        let is_there = images(&ground).contains(&name);
        if is_there {
            whole += 1
        } else {
            gone += 1
        }
        assert!(!is_there || !output.status.success(), "{name} is there");
        // A server whose client died may still be at it.
        let checked = ground.run(&format!("$WEALD diff a.weald store:{name}"));
        let said = &checked.stderr;
        let is_gone = ["no such image", "no image yet", "is being removed"];
        assert!(
            checked.code == Some(0) || is_gone.iter().any(|words| said.contains(words)),
            "{said}"
        );
        for written in 0..=round {
            let name = format!("i{written}");
            assert_eq!(fs::read_to_string(dir.join(&name)).expect("read"), name);
        }
    }
    println!("{whole} images are whole, {gone} are gone");
    ground.umount();
    assert_all_space_comes_back(&ground);
}
