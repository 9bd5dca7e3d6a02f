//! Images that are added to the store of a mounted volume, beside writers.

use super::sealing::{Ended, Writer, generation};
use super::*;
use std::process::{Child, Stdio};
use std::thread;
use std::time::Duration;

/// A ground with `a.weald`, an image of a tree with 5 MB of noise.
pub fn with_image() -> Ground {
    let ground = Ground::new();
    ground.sh(TREE);
    ground.sh("$WEALD build -q --block-size 64K --level 1 tree a.weald");
    ground
}

pub fn start(ground: &Ground, args: &[&str]) -> Child {
    Command::new(weald_path())
        .args(args)
        .current_dir(ground.0.path())
        .env("WEALD_RUNTIME_DIR", ground.0.runtime_dir())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("weald")
}

/// Names of the images in the store.
#[track_caller]
pub fn images(ground: &Ground) -> Vec<String> {
    let listed = ground.weald(&["store", "ls", "--json", "store"]);
    let objects = listed.lines().map(|line| {
        let object: Value = serde_json::from_str(line).expect("JSON");
        object
    });
    let images = objects.filter(|object| object["is_volume"] != true);
    let names = images.map(|object| object["name"].as_str().expect("a name").to_owned());
    names.collect()
}

/// After the last unmount: nothing is damaged, and all space comes back.
#[track_caller]
pub fn assert_all_space_comes_back(ground: &Ground) {
    ground.assert_clean();
    let said = ground.weald(&["store", "check", "--data", "store"]);
    assert!(said.starts_with("clean: "), "{said}");
    ground.weald(&["volume", "rm", VOLUME]);
    for name in images(ground) {
        ground.weald(&["check", &format!("store:{name}")]);
        ground.weald(&["store", "rm", &format!("store:{name}")]);
    }
    ground.weald(&["store", "gc", "-q", "store"]);
    assert_eq!(ground.sh("ls store/segments | wc -l"), "0\n");
}

/// Would catch: an image that is not whole or not of the moment of the call, that readers do not
/// see at once, that shares no block with the volume, or that needs it; a volume that loses
/// something.
#[test]
fn a_mounted_volume_takes_images() {
    let ground = with_image();
    let dir = ground.mount(&["-o", "commit-interval=0.05"]);
    ground.sh("rsync -aHAX --numeric-ids tree mnt/");
    let writer = Writer::new();
    writer.replace(&dir);
    thread::scope(|scope| {
        let _ended = Ended(&writer);
        scope.spawn(|| writer.run(&dir));
        for number in 0..4 {
            let (sealed, imported) = (format!("s{number}"), format!("i{number}"));
            let before = writer.done();
            let said = ground.weald(&["volume", "seal", "--json", VOLUME, "--name", &sealed]);
            let after = writer.begun();
            let said: Value = serde_json::from_str(&said).expect("JSON");
            assert!(said["new_len"].as_u64() < Some(30_000), "{said}");
            assert_eq!(said["name"], sealed.as_str());
            let said = ground.weald(&[
                "store", "import", "--json", "store", "a.weald", "--name", &imported,
            ]);
            let said: Value = serde_json::from_str(&said).expect("JSON");
            assert_eq!(said["new_block_count"] == 0, number > 0, "{said}");
            assert!(images(&ground).contains(&imported));
            ground.sh(&format!(
                "$WEALD check store:{sealed}; $WEALD check store:{imported}
                $WEALD diff a.weald store:{imported}
                $WEALD extract -q store:{sealed} out{number}"
            ));
            let out = ground.at(&format!("out{number}"));
            let [first, second] = ["first", "second"].map(|name| generation(&out.join(name)));
            assert!(
                before <= second && first <= after,
                "{before}..{after}: {first}, {second}"
            );
            assert_same(&ground.at("tree"), &out.join("tree"), &EXTRACTED);
        }
    });
    let last = generation(&dir.join("second"));
    ground.umount();
    ground.mount(&[]);
    assert_eq!(generation(&dir.join("second")), last);
    assert_same(&ground.at("tree"), &dir.join("tree"), &MOUNTED);
    ground.umount();
    assert_eq!(images(&ground).len(), 8);
    assert_all_space_comes_back(&ground);
}

/// Would catch: two images of one name, an image that a refused command leaves, a message that does
/// not say what to do.
#[test]
fn refused_images_leave_nothing() {
    let ground = with_image();
    ground.sh("cp a.weald bad.weald
        printf damaged! | dd of=bad.weald bs=1 seek=1500000 conv=notrunc 2> log
        head -c 100000 a.weald > short.weald");
    ground.mount(&[]);
    ground.sh("cp tree/noise mnt; sync mnt");
    let import = |image: &str, name: &str, words: &[&str]| {
        ground.refused(&["store", "import", "store", image, "--name", name], words);
    };
    import(
        "bad.weald",
        "b",
        &["bad.weald: the image is damaged (data)"],
    );
    import("short.weald", "b", &["short.weald", "truncated"]);
    import("a.weald", "v", &["store:v", "exists"]);
    ground.refused(
        &["store", "import", "--verify-duplicates", "store", "a.weald"],
        &["process", "--verify-duplicates"],
    );
    ground.refused(
        &["volume", "seal", VOLUME, "--name", "v"],
        &["store:v", "exists"],
    );
    ground.refused(&["volume", "seal", VOLUME, "--name", "a/b"], &["a/b"]);
    ground.refused(
        &["store", "add", "store", "tree", "--like", "none"],
        &["store:none"],
    );
    ground.refused(
        &["store", "add", "store", "tree", "--name", "v"],
        &["store:v", "exists"],
    );
    ground.refused(&["store", "add", "store", "none"], &["none"]);
    assert_eq!(images(&ground), Vec::<String>::new());
    let commands = ["twin", "twin", "one", "other"].map(|name| {
        let args = ["store", "import", "store", "a.weald", "--name", name];
        start(&ground, &args)
    });
    let outputs = commands.map(|child| child.wait_with_output().expect("the end"));
    let done = outputs.map(|output| {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() || said.contains("name"), "{said}");
        output.status.success()
    });
    assert!(done[0] != done[1] && done[2] && done[3], "{done:?}");
    assert_eq!(images(&ground), ["one", "other", "twin"]);
    import("a.weald", "twin", &["store:twin", "image of this name"]);
    ground.umount();
    // A volume that is read does not keep others from writing.
    let dir = ground.mount(&["-o", "ro"]);
    import("bad.weald", "c", &["bad.weald"]);
    import("a.weald", "twin", &["store:twin", "image of this name"]);
    ground.weald(&["store", "import", "-q", "store", "a.weald", "--name", "c"]);
    assert_eq!(images(&ground), ["c", "one", "other", "twin"]);
    ground.sh("$WEALD diff a.weald store:c; cmp tree/noise mnt/noise");
    assert!(fs::write(dir.join("new"), "x").is_err());
    ground.umount();
    assert_all_space_comes_back(&ground);
}

/// Would catch: a part of an image in the list, blocks that stay, or a lost change of the volume,
/// after the death of the client or of the server.
#[test]
fn a_death_leaves_a_whole_image_or_none() {
    let ground = with_image();
    let dir = ground.mount(&[]);
    ground.sh("cp tree/noise mnt/noise; sync mnt");
    let (mut whole, mut cut) = (0, 0);
    for round in 0..12u64 {
        let name = format!("i{round}");
        fs::write(dir.join(&name), &name).expect("write");
        File::open(&dir)
            .and_then(|dir| dir.sync_all())
            .expect("sync");
        let args = ["store", "import", "store", "a.weald", "--name", &name];
        let mut client = start(&ground, &args);
        thread::sleep(Duration::from_millis(5 + 9 * (round / 2)));
        match round % 2 {
            0 => client.kill().expect("kill"),
            _ => ground.kill(),
        }
        let output = client.wait_with_output().expect("the end");
        if round % 2 == 1 {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success() || said.contains("weald:"), "{said}");
            ground.mount(&[]);
        }
        let is_there = images(&ground).contains(&name);
        if is_there {
            whole += 1
        } else {
            cut += 1
        }
        assert!(is_there || !output.status.success(), "{name} is lost");
        if is_there {
            ground.weald(&["check", &format!("store:{name}")]);
            ground.weald(&["diff", "a.weald", &format!("store:{name}")]);
        }
        for written in 0..=round {
            let name = format!("i{written}");
            assert_eq!(fs::read_to_string(dir.join(&name)).expect("read"), name);
        }
    }
    println!("{whole} images are whole, {cut} are not there");
    assert!(cut > 0, "no client died in the middle");
    ground.umount();
    assert_all_space_comes_back(&ground);
}

/// Would catch: an image that is not that of the tree or of the stream, a next version that shares
/// nothing with the one before or needs it, a temporary store that stays.
#[test]
fn trees_and_streams_go_into_the_store_of_a_mounted_volume() {
    let ground = with_image();
    ground.mount(&[]);
    ground.sh("cp tree/noise mnt; sync mnt");
    ground.weald(&["store", "add", "-q", "--name", "a1", "store", "tree"]);
    ground.sh("tar -C tree -cf t.tar .; $WEALD store add -q --name t store - < t.tar");
    let add = |name: &str| -> Value {
        let said = ground.weald(&["store", "add", "--json", "--name", name, "store", "tree"]);
        serde_json::from_str(&said).expect("JSON")
    };
    let same = add("a2");
    assert_eq!(
        (&same["new_len"], &same["like"]),
        (&0.into(), &"a1".into()),
        "{same}"
    );
    ground.sh("echo more >> tree/etc/main; touch -d @1709208000 tree/etc/main");
    let next = add("a3");
    assert!(next["new_len"].as_u64() < Some(20_000), "{next}");
    ground.weald(&["store", "rm", "store", "a1", "a2"]);
    ground.weald(&["store", "gc", "-q", "store"]);
    ground.sh("$WEALD check store:t; $WEALD cat store:t noise | cmp - tree/noise");
    ground.sh("$WEALD check store:a3; $WEALD extract -q store:a3 out");
    assert_same(&ground.at("tree"), &ground.at("out"), &EXTRACTED);
    ground.refused(
        &["store", "add", "--name", "t", "store", "tree"],
        &["store:t", "exists"],
    );
    assert_eq!(ground.sh("ls -A store | grep -c add || true"), "0\n");
    ground.umount();
    assert_all_space_comes_back(&ground);
}
