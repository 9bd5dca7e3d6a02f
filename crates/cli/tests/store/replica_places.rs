//! Places of replicas: which are refused, which are full or gone, and another machine.

use crate::ground::{Ground, steps_of_manual};
use crate::replicas::{ALL, assert_restored, with_volume};
use std::fs;
use std::path::Path;
use weald_testkit::compare::assert_same;
use weald_testkit::mounts::Server;

/// Would catch: a place that gets the state of another store, or of an older copy of this one, and
/// a store that other users make root write elsewhere.
#[test]
fn places_of_others_are_refused_and_stay_as_they_are() {
    let ground = Ground::with_store();
    ground.weald(&["replica", "add", "-q", "store", "place"]);
    ground.weald(&["replica", "send", "-q", "store"]);
    ground.sh("cp -a store older; cp -a place place-before");
    ground.weald(&["store", "rm", "store:v1"]);
    ground.weald(&["replica", "send", "-q", "store"]);
    ground.sh("cp -a place place-after");
    ground.weald(&["store", "create", "-q", "other"]);
    ground.refused(
        &["replica", "add", "other", "place"],
        &["place", "is a replica of another store"],
    );
    ground.refused(
        &["replica", "add", "store", "place", "--name", "second"],
        &["place", "is a replica of this store already"],
    );
    ground.refused(
        &["replica", "add", "store", "other", "--name", "second"],
        &["other", "is a store"],
    );
    ground.refused(
        &[
            "replica",
            "add",
            "store",
            "store/inside",
            "--name",
            "second",
        ],
        &["store", "is a store"],
    );
    // The older copy is put back, and goes its own way.
    ground.sh("mv store newer; cp -a older store");
    let words = [
        "has later items",
        "put back from an older copy",
        "weald replica restore",
    ];
    ground.refused(&["replica", "send", "store"], &words);
    ground.weald(&[
        "store", "import", "-q", "store", "v1.weald", "--name", "third",
    ]);
    ground.refused(&["replica", "send", "store"], &words);
    ground.refused(&["replica", "send", "--anew", "store"], &words);
    ground.sh("diff -r place place-after");
    // The older replica, beside the newer store.
    ground.sh("rm -r store place; mv newer store; mv place-before place");
    ground.refused(
        &["replica", "send", "store"],
        &["item 2, which was sent last, is missing", "--anew"],
    );
    ground.weald(&["replica", "send", "-q", "--anew", "store"]);
    ground.weald(&["replica", "restore", "-q", "place", "restored"]);
    ground.assert_clean("restored");
    ground.assert_exported("restored", "v2");
    // A place that is not mounted.
    ground.sh("mv place elsewhere; mkdir place");
    ground.refused(
        &["replica", "send", "store"],
        &["place", "is empty, or not mounted"],
    );
    ground.sh("rmdir place; mv elsewhere place");
    // Who writes the record says where root writes, and what it runs.
    ground.sh("chown 65534 store/replicas/replica");
    ground.refused(
        &["replica", "send", "store"],
        &["belongs to user 65534", "only that user"],
    );
    ground.sh("chown 0 store/replicas/replica");
    // It is there twice.
    let damage = |name: &str| {
        ground.sh(&format!(
            "printf 0123456789abcdef | dd of=store/replicas/{name} bs=1 seek=40 conv=notrunc \
             status=none"
        ));
    };
    damage("replica");
    ground.weald(&["replica", "send", "-q", "store"]);
    ground.assert_clean("store");
    damage("replica");
    damage(".replica.copy");
    let checked = ground.0.weald(["store", "check", "store"]);
    assert_eq!(checked.code, Some(1), "{}", checked.text());
    assert!(
        checked.text().contains("replicas/replica"),
        "{}",
        checked.text()
    );
    ground.refused(
        &["replica", "send", "store"],
        &["is damaged", "weald replica remove"],
    );
    ground.weald(&["replica", "remove", "store"]);
    ground.refused(
        &["replica", "send", "store"],
        &["has no replica", "weald replica add"],
    );
    ground.assert_clean("store");
}

/// Would catch: a full place or a full store that loses what was there, or a sending that does not
/// go on when there is space.
#[test]
fn a_full_disk_on_either_side_costs_nothing() {
    let (ground, dir) = with_volume();
    ground.sh("mkdir small; mount -t tmpfs -o size=400k tmpfs small");
    ground.weald(&["replica", "add", "-q", "store", "small/place"]);
    ground.sh("cp -a v1 v2 home/; sync -f home");
    ground.refused(
        &["replica", "send", "store"],
        &["small/place", "No space left"],
    );
    ground.sh("mount -o remount,size=40m small; cp -a home tree");
    ground.0.umount(&dir);
    ground.weald(&["replica", "send", "store"]);
    ground.weald(&["replica", "verify", "small/place"]);
    assert_restored(&ground, "small/place", None, &ground.at("tree"));
    ground.sh("rm -r restored; mkdir tight; mount -t tmpfs -o size=300k tmpfs tight");
    let words = ["No space left"];
    ground.refused(
        &["replica", "restore", "small/place", "tight/store"],
        &words,
    );
    assert_eq!(
        fs::read_dir(ground.at("tight"))
            .expect("a directory")
            .count(),
        0
    );
    ground.sh("umount small tight");
}

/// The server of ssh in a directory of its own, and what a client has to say to reach it.
fn ssh(ground: &Ground) -> (Server, String) {
    let here = ground.0.path().display();
    let weald = Path::new(weald_testkit::command::weald_bin());
    let bin = weald.parent().expect("a directory").display();
    ground.sh(&format!(
        "mkdir -p /run/sshd; mkdir ssh; cd ssh; chmod 700 .
         for key in host client; do ssh-keygen -q -t ed25519 -N '' -f $key; done
         python3 -c 'import socket; s = socket.socket(); s.bind((\"127.0.0.1\", 0))
print(s.getsockname()[1])' > port
         receive=\"weald replica receive '{here}/far/place'\"
         echo \"command=\\\"PATH='{bin}':$PATH exec $receive\\\",restrict $(cat client.pub)\" \\
             > authorized
         printf '%s\\n' \"Port $(cat port)\" 'ListenAddress 127.0.0.1' \\
             'HostKey \"{here}/ssh/host\"' 'AuthorizedKeysFile \"{here}/ssh/authorized\"' \\
             'StrictModes no' 'UsePAM no' \\
             'PermitRootLogin yes' 'PidFile none' > config
         echo \"[127.0.0.1]:$(cat port) $(cut -d' ' -f1,2 host.pub)\" > known"
    ));
    let mut command = std::process::Command::new("/usr/sbin/sshd");
    command
        .args(["-D", "-e", "-f"])
        .arg(ground.at("ssh/config"));
    let server = Server::start(&mut command);
    // From the directory of the test: options are divided at spaces.
    let options = "ssh -F none -i ssh/client -o UserKnownHostsFile=ssh/known -o IdentitiesOnly=yes";
    (server, options.to_owned())
}

/// Would catch: a replica on another machine that is not the same as one here, and a link that is
/// cut in the middle and leaves one that is damaged, or cannot be continued.
#[test]
fn a_replica_is_sent_through_ssh_and_its_link_may_be_cut() {
    let (ground, dir) = with_volume();
    ground.sh("mkdir far");
    let (mut server, options) = ssh(&ground);
    let port = fs::read_to_string(ground.at("ssh/port")).expect("a port");
    let place = format!("ssh://root@127.0.0.1:{}/ignored", port.trim());
    let far = |script: &str| {
        let mut command = ground.0.script(script);
        command.env("WEALD_SSH", &options).env("PLACE", &place);
        weald_testkit::mounts::finish(&mut command)
    };
    let added = || far("$WEALD replica add -q store $PLACE").code == Some(0);
    weald_testkit::mounts::eventually("sshd answers", added);
    ground.sh("cp -a v1 home/; sync -f home");
    far("$WEALD replica send store").expect(0);
    // The link is cut when some of 160 MB have arrived.
    ground.sh("head -c 160000000 /dev/urandom > home/much; sync -f home; cp -a home tree");
    far(
        "count=$(ls far/place/data | wc -l); $WEALD replica send store 2> cut-errors &
         until [ $(ls far/place/data | wc -l) -gt $count ]; do sleep 0.005; done
         pkill -KILL -f 'replica [r]eceive .*far/place'; ! wait $! || exit 1",
    )
    .expect(0);
    ground.0.umount(&dir);
    far("$WEALD replica send store").expect(0);
    far("$WEALD replica verify $PLACE").expect(0);
    far("$WEALD replica restore -q $PLACE by-ssh").expect(0);
    ground.assert_clean("by-ssh");
    assert_restored(&ground, "far/place", None, &ground.at("tree"));
    server.kill();
    let refused = far("$WEALD replica verify $PLACE");
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("the other side of the replica"));
}

/// Would catch: a command of the manual that does not work, in the order in which it stands there:
/// a second disk, the loss of the store, the loss of the replica.
#[test]
fn the_manual_of_replicas_works_from_beginning_to_end() {
    let (ground, dir) = with_volume();
    ground.sh("cp -a v1 home/; sync -f home; cp -a home tree; sleep 6");
    ground.0.umount(&dir);
    ground.sh("mkdir -p srv backup disk2 disk3 home/data mnt/standby; mv store srv/");
    let mut count = 0;
    for line in steps_of_manual("replicas.md") {
        match line.as_str() {
            "## When the store is damaged" => drop(ground.sh("\"$WEALD\" umount home/data
                 printf 0123456789abcdef | dd of=srv/store/segments/0000000000000001 bs=1 \
                     seek=100000 conv=notrunc status=none")),
            "## When the store is lost" => drop(ground.sh("rm -r srv/store")),
            "## When the replica is lost" => drop(ground.sh("rm -r disk2")),
            _ => {}
        }
        // Other tests have another machine, and a bucket.
        let is_far = ["ssh", "--name far", "podman", "s3://"]
            .iter()
            .any(|word| line.contains(word));
        if line.starts_with('#') || is_far {
            continue;
        }
        // The states of this test are of today.
        let line = line.replace("2026-11-26 18:00", "2099-01-01 00:00");
        let roots = ["/srv/", "/backup/", "/disk2/", "/disk3/", "/home/", "/mnt/"];
        ground.run_of_manual(&line, &roots);
        count += 1;
    }
    assert!(count >= 23, "{count} commands");
    ground
        .0
        .mount(Path::new("srv/store:home"), &ground.at("home/data"), &[]);
    assert_same(&ground.at("tree/v1"), &ground.at("home/data/v1"), &ALL);
    ground.0.umount(&ground.at("home/data"));
    ground.assert_clean("srv/store");
    ground.assert_clean("srv/yesterday");
    ground.weald(&["replica", "verify", "disk3/store"]);
}

/// Would catch: a scrub that leaves something damaged which a replica has, or writes something that
/// is not what the store had, for each segment and map, damaged and missing.
#[test]
fn damaged_blocks_segments_and_maps_come_back_from_a_replica() {
    let (ground, dir) = with_volume();
    ground.sh("cp -a v1 v2 home/; sync -f home; cp -a home tree");
    ground.0.umount(&dir);
    ground.weald(&["store", "create", "-q", "--segment-size", "256K", "small"]);
    ground.weald(&["store", "import", "-q", "small", "v1.weald", "v2.weald"]);
    for store in ["store", "small"] {
        ground.weald(&["store", "backup", "-q", store, &format!("{store}-place")]);
        let mut objects = Vec::new();
        for dir in ["segments", "images"] {
            for entry in fs::read_dir(ground.at(store).join(dir)).expect("a directory") {
                let name = entry.expect("an entry").file_name();
                let name = name.to_str().expect("UTF-8").to_owned();
                if !name.starts_with('.') {
                    objects.push(format!("{store}/{dir}/{name}"));
                }
            }
        }
        assert!(objects.len() >= 3, "{objects:?}");
        for object in objects {
            ground.sh(&format!("cp -a {object} good"));
            let len = fs::metadata(ground.at(&object)).expect("stat").len();
            for damage in [
                "rm {}",
                "dd of={} bs=1 seek=SEEK conv=notrunc status=none < noise",
            ] {
                let damage = damage.replace("SEEK", &(len / 2).to_string());
                let damage = damage.replace("{}", &object);
                ground.sh(&format!("head -c 2000 v1/noise > noise; {damage}"));
                let scrubbed = ground.json(&["store", "scrub", "--json", store]);
                let scrubbed = scrubbed.first().expect("an object");
                assert_eq!(scrubbed["damage"], serde_json::json!([]), "{damage}");
                ground.assert_clean(store);
                let is_segment = object.contains("/segments/");
                let repaired = scrubbed["repaired_count"].as_u64() > Some(0);
                assert_eq!(repaired, is_segment, "{damage}");
            }
            if object.contains("/images/") {
                ground.sh(&format!("cmp good {object}"));
            }
            ground.sh("rm good");
        }
    }
    // Without a replica that has it, it is told.
    ground.sh("rm -r small-place small/segments/0000000000000001");
    let scrubbed = ground.0.weald(["store", "scrub", "small"]);
    assert_eq!(scrubbed.code, Some(1), "{}", scrubbed.text());
    assert!(
        scrubbed.text().contains("still damaged"),
        "{}",
        scrubbed.text()
    );
    ground.0.mount(Path::new("store:home"), &dir, &[]);
    assert_same(&ground.at("tree"), &dir, &ALL);
}

/// Would catch: a store that sends what it cannot read as if it were whole, a replica that is then
/// called clean, and one that does not get what is missing when the store has it again.
#[test]
fn what_the_store_cannot_read_is_told_by_all_commands() {
    let ground = Ground::with_images();
    ground.weald(&["store", "create", "-q", "--segment-size", "256K", "store"]);
    ground.weald(&["store", "import", "-q", "store", "v1.weald", "v2.weald"]);
    ground.sh(
        "mv store/segments/0000000000000001 lost; cp store/images/v2 map
        printf 0123456789abcdef | dd of=store/images/v2 bs=1 seek=300 conv=notrunc status=none",
    );
    let is_told = |args: &[&str], words: &str| {
        let done = ground.0.weald(args);
        let text = format!("{}{}", done.text(), done.stderr);
        assert_eq!(done.code, Some(1), "{args:?}: {text}");
        assert!(text.contains(words), "{args:?}: {text}");
    };
    let words = "the store cannot read what the replica should get";
    is_told(&["store", "backup", "store", "place"], words);
    is_told(&["replica", "verify", "place"], "are not in the replica");
    is_told(
        &["replica", "restore", "place", "restored"],
        "are not in the replica",
    );
    // The same after all rows were sent once more.
    ground.weald(&["store", "rm", "store:v1"]);
    is_told(&["replica", "verify", "store"], "are not in the replica");
    ground.sh("mv lost store/segments/0000000000000001; mv map store/images/v2; rm -r restored");
    is_told(&["replica", "verify", "place"], "are not in the replica");
    ground.0.weald(["replica", "verify", "store", "--repair"]);
    ground.weald(&["replica", "restore", "-q", "place", "restored"]);
    ground.assert_clean("restored");
    ground.assert_exported("restored", "v2");
}
