//! Scrubs of stores whose volumes are mounted, and of others: interrupted, beside writers, of what
//! is damaged.

use super::sealing::{Ended, Writer};
use super::*;
use std::thread;
use weald_testkit::exposition;

/// What `weald scrub status --json` says.
#[track_caller]
fn status(ground: &Ground) -> Value {
    let said = ground.0.weald(["scrub", "status", "--json", "store"]);
    serde_json::from_str(&said.text()).expect("JSON")
}

#[track_caller]
/// The figures for Prometheus say what the JSON says.
fn assert_figures(ground: &Ground) {
    let text = ground.run("$WEALD scrub status --prometheus store").text();
    let samples = exposition::samples(&text);
    let found = status(ground);
    let figure = |name: &str| {
        let sample = samples.iter().find(|sample| sample.name == name);
        sample.map(|sample| sample.value as u64)
    };
    for (name, key) in [
        ("weald_scrub_read_bytes", "read_bytes"),
        ("weald_scrub_total_bytes", "total_bytes"),
        ("weald_scrub_findings", "finding_count"),
        ("weald_scrub_start_time_seconds", "begun"),
    ] {
        assert_eq!(figure(name), found[key].as_u64(), "{name}: {text}");
    }
    let complete = match found["state"].as_str() {
        Some("complete") => found["time"].as_u64(),
        _ => found["last"].as_u64(),
    };
    assert_eq!(
        figure("weald_scrub_complete_time_seconds"),
        complete,
        "{text}"
    );
    let states = samples
        .iter()
        .filter(|sample| sample.name == "weald_scrub_state");
    let set: Vec<_> = states
        .filter(|sample| sample.value == 1.0)
        .map(|sample| sample.labels["state"].as_str())
        .collect();
    assert_eq!(set, [found["state"].as_str().expect("a word")]);
}

fn read_len(ground: &Ground) -> u64 {
    status(ground)["read_bytes"].as_u64().unwrap_or(0)
}

/// The files that a scrub names, in lines of `status`.
#[track_caller]
fn damaged(ground: &Ground) -> Vec<String> {
    let said = ground.run("$WEALD scrub status store").text();
    let lines = said
        .lines()
        .filter_map(|line| line.strip_prefix("damaged: "));
    let files = lines.filter_map(|line| line.split_once(": segments/"));
    files.map(|(file, _)| file.to_owned()).collect()
}

/// Zeroes 16 bytes of a file of the host where it lies in the store.
#[track_caller]
fn damage(ground: &Ground, file: &str, at: usize) {
    let bytes = fs::read(ground.at(file)).expect("the file");
    let wanted = &bytes[at..at + 48];
    let segments = fs::read_dir(ground.at("store/segments")).expect("segments");
    for segment in segments {
        let path = segment.expect("a segment").path();
        let stored = fs::read(&path).expect("a segment");
        if let Some(at) = stored.windows(48).position(|part| part == wanted) {
            let file = File::options().write(true).open(&path).expect("open");
            return file.write_all_at(&[0; 16], at as u64).expect("write");
        }
    }
    panic!("{file} does not lie in the store as it is");
}

/// Would catch: a scrub that a writer sees, that takes changes for damage, that goes on in a pause,
/// that forgets where it is, or that does not keep to its rate.
#[test]
fn a_scrub_goes_on_beside_a_writer() {
    let ground = Ground::new();
    let dir = ground.mount(&["-o", "commit-interval=0.05"]);
    ground.sh("head -c 40000000 /dev/urandom > mnt/large; sync -f mnt");
    let writer = Writer::new();
    writer.replace(&dir);
    thread::scope(|scope| {
        let _ended = Ended(&writer);
        scope.spawn(|| writer.run(&dir));
        let said = ground.run("$WEALD scrub start --rate 10M store 2>&1");
        assert!(said.expect(0).text().contains("the server"), "a server");
        ground.refused(&["scrub", "start", "store"], &["is under way", "--anew"]);
        eventually("the scrub to read", || read_len(&ground) > 8_000_000);
        let found = status(&ground);
        assert_eq!(found["state"], "running");
        assert_eq!(found["rate_limit"], 10 << 20);
        assert!(found["rate"].as_u64() < Some(20 << 20), "{found}");
        assert!(found["seconds_left"].as_u64() < Some(20), "{found}");
        let place = found["place"].as_str().expect("a place");
        assert!(place.starts_with("segment "), "{found}");
        ground.weald(&["scrub", "pause", "store"]);
        let paused = status(&ground);
        assert_eq!(paused["state"], "paused");
        thread::sleep(std::time::Duration::from_secs(2));
        assert_eq!(status(&ground)["read_bytes"], paused["read_bytes"]);
        assert_figures(&ground);
        ground.weald(&["scrub", "resume", "-q", "--rate", "0", "--wait", "store"]);
    });
    let found = status(&ground);
    assert_eq!(found["clean"], true, "{found}");
    let read = found["read_bytes"].as_u64().expect("a number");
    let total = found["total_bytes"].as_u64().expect("a number");
    assert!(read >= 40_000_000 && read <= total + (1 << 20), "{found}");
    // What was written since then alone.
    ground.sh("head -c 3000000 /dev/urandom > mnt/new; sync -f mnt");
    ground.weald(&["scrub", "start", "-q", "--since", "--wait", "store"]);
    let read = read_len(&ground);
    assert!((3_000_000..20_000_000).contains(&read), "{read}");
    ground.umount();
    ground.assert_clean();
}

/// Would catch: a scrub that begins anew after a kill of its server, or that nobody goes on with,
/// and damage behind the place of the kill that is missed.
#[test]
fn a_scrub_goes_on_after_a_kill() {
    let ground = Ground::new();
    ground.mount(&[]);
    ground.sh("head -c 40000000 /dev/urandom > large; cp large mnt/; sync -f mnt");
    damage(&ground, "large", 39_000_000);
    ground.weald(&["scrub", "start", "-q", "--rate", "10M", "store"]);
    eventually("the scrub to read", || read_len(&ground) > 8_000_000);
    let before = read_len(&ground);
    ground.kill();
    assert!(read_len(&ground) >= before);
    let before = read_len(&ground);
    ground.mount(&[]);
    eventually("the scrub to go on", || read_len(&ground) > before);
    ground
        .0
        .weald(["scrub", "resume", "-q", "--rate", "0", "--wait", "store"])
        .expect(1);
    let found = status(&ground);
    assert_eq!(found["state"], "complete", "{found}");
    let read = found["read_bytes"].as_u64().expect("a number");
    let total = found["total_bytes"].as_u64().expect("a number");
    // Damaged blocks were read, too, and none twice but those since the last note.
    assert!(read >= 40_000_000 && read < total + before, "{found}");
    assert_eq!(damaged(&ground), ["v:/large"]);
}

/// Would catch: damage that is named with files that can be read, or not by all of its names, not
/// in snapshots or images; names that reach the terminal; a damaged block that takes duplicates.
#[test]
fn damage_is_named_by_path_and_snapshot_and_healed_by_writing() {
    let ground = Ground::new();
    assert_figures(&ground);
    ground.mount(&[]);
    ground.sh("mkdir -p mnt/dir/deep; head -c 300000 /dev/urandom > one
         head -c 3000000 /dev/urandom > two
         cp one mnt/dir/deep/one; ln mnt/dir/deep/one $'mnt/new\\nline\\e[31m'; cp two mnt/two
         head -c 500000 /dev/urandom > mnt/other; $WEALD snapshot create -q store:v@before
         rm mnt/two; sync -f mnt");
    damage(&ground, "one", 200_000);
    damage(&ground, "two", 1_000_000);
    let said = ground.run("$WEALD scrub start --wait store");
    assert_eq!(said.code, Some(1), "{said:?}");
    let of_one = ["v:/dir/deep/one", "v:/new\\x0aline\\x1b[31m"];
    let of_snapshot = [
        "v@before:/dir/deep/one",
        "v@before:/new\\x0aline\\x1b[31m",
        "v@before:/two",
    ];
    let wanted = [&of_one[..], &of_snapshot].concat();
    assert_eq!(damaged(&ground), wanted);
    let found = status(&ground);
    let file = &found["findings"][0]["files"][1];
    assert_eq!(file["path"], "new\nline\u{1b}[31m", "{found}");
    assert_eq!(found["clean"], false);
    assert_eq!(ground.run("$WEALD scrub status store").code, Some(1));
    assert_figures(&ground);
    // Readers meet the same, once nothing is in memory.
    ground.umount();
    ground.mount(&[]);
    ground.sh("! cat mnt/dir/deep/one > log 2>&1 || exit 1
        ! cat mnt/.snapshots/before/two > log 2>&1 || exit 1
               cat mnt/other > log");
    // Equal content is stored anew, and heals what it takes the place of.
    ground.sh(
        "cp two mnt/again; cp one mnt/dir/deep/one; sync -f mnt; cmp one mnt/dir/deep/one
               cmp two mnt/again",
    );
    assert_eq!(
        ground.run("$WEALD scrub start -q --wait store").code,
        Some(1)
    );
    assert_eq!(damaged(&ground), of_snapshot);
    ground.weald(&["snapshot", "rm", "-q", "store:v@before"]);
    eventually("the blocks of the snapshot to go", || {
        ground.run("$WEALD scrub start -q --wait store").code == Some(0)
    });
    // Of an image, too.
    ground.sh("head -c 200000 /dev/urandom > three; cp three mnt/dir/three; sync -f mnt");
    ground.weald(&["volume", "seal", "-q", VOLUME, "--name", "img"]);
    damage(&ground, "three", 100_000);
    assert_eq!(
        ground.run("$WEALD scrub start -q --wait store").code,
        Some(1)
    );
    assert_eq!(damaged(&ground), ["img:/dir/three", "v:/dir/three"]);
    ground.umount();
}

/// Would catch: a scrub without a server that keeps volumes from being mounted, or that a server
/// does not go on with; an interrupt that loses its place.
#[test]
fn a_command_scrubs_until_a_server_takes_over() {
    let ground = Ground::new();
    ground.mount(&[]);
    ground.sh("head -c 60000000 /dev/urandom > mnt/large; sync -f mnt");
    ground.umount();
    let mut scrub = ground
        .0
        .script("exec $WEALD scrub start --rate 5M --wait store > said 2>&1");
    let mut scrub = scrub.spawn().expect("a scrub");
    eventually("the scrub to begin", || {
        status(&ground)["state"] == "running"
    });
    ground.sh(&format!("kill -INT {}", scrub.id()));
    assert_eq!(scrub.wait().expect("the end").code(), Some(2));
    let said = fs::read_to_string(ground.at("said")).expect("what it said");
    assert!(said.contains("interrupted: 'weald scrub resume'"), "{said}");
    assert_eq!(status(&ground)["state"], "paused");
    let mut scrub = ground
        .0
        .script("exec $WEALD scrub resume --rate 20M --wait store > said 2>&1");
    let mut scrub = scrub.spawn().expect("a scrub");
    eventually("the scrub to go on", || {
        status(&ground)["state"] == "running"
    });
    // At any moment.
    eventually("a mount", || {
        ground.run("mkdir -p mnt; $WEALD mount store:v mnt").code == Some(0)
    });
    assert_eq!(scrub.wait().expect("the end").code(), Some(0));
    let found = status(&ground);
    assert_eq!(found["clean"], true, "{found}");
    ground.umount();
}

/// Would catch: a scrub that writes to what cannot be written to, or that stands still; a user who
/// makes another user's store busy.
#[test]
fn a_scrub_of_what_cannot_be_written_to() {
    let ground = Ground(mounts::Ground::new());
    ground.sh(
        "mkdir host; truncate -s 200M disk; mkfs.ext4 -q -F disk; mount -o loop disk host
               ln -s host/store store; $WEALD store create -q host/store
               $WEALD volume create -q store:v",
    );
    ground.mount(&[]);
    ground.sh("head -c 3000000 /dev/urandom > one; cp one mnt/one; sync -f mnt");
    ground.umount();
    let refused = ground.run(
        "chmod o+x . host; as='setpriv --reuid=65534 --regid=65534 --clear-groups'
         $as $WEALD scrub start host/store 2>&1",
    );
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(!ground.at("store/scrub").exists());
    let remount = |options: &str| {
        let script = format!("umount host && mount -o {options} disk host");
        eventually(&script, || ground.run(&script).code == Some(0));
    };
    remount("ro,loop");
    let sums = "cd host/store; find . -type f -printf '%p %T@ %s ' -exec sha256sum {} +";
    let before = ground.sh(sums);
    let said = ground.run("$WEALD scrub start store 2>&1").expect(0).text();
    assert!(
        said.contains("is not kept") && said.contains("\nclean; "),
        "{said}"
    );
    assert_eq!(ground.sh(sums), before);
    remount("loop");
    damage(&ground, "one", 2_000_000);
    remount("ro,loop");
    let said = ground.run("$WEALD scrub start store 2>&1");
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(
        said.text().contains("damaged: v:/one: segments/"),
        "{said:?}"
    );
    ground.sh("umount host");
}

/// Would catch: a tier that is away taken for damage, tried all the time, or forgotten.
#[test]
fn what_lies_on_a_tier_that_is_away_waits() {
    let ground = Ground::new();
    ground.mount(&[]);
    ground.sh("head -c 3000000 /dev/urandom > mnt/one; sync -f mnt");
    ground.umount();
    ground.sh(
        "mkdir tier; $WEALD tier add -q store tier --name slow --same-disk
               $WEALD tier move -q store:v --to slow; mv tier away",
    );
    let said = ground.run("$WEALD scrub start store 2> log");
    assert_eq!(said.code, Some(1), "{said:?}");
    let text = said.text();
    assert!(text.starts_with("not complete; "), "{text}");
    assert!(text.contains("waiting: segments/") && text.contains("tier slow is not here"));
    ground.sh("mv away tier");
    let said = ground
        .run("$WEALD scrub resume store 2> log")
        .expect(0)
        .text();
    assert!(said.starts_with("clean; "), "{said}");
    assert!(read_len(&ground) >= 3_000_000);
}

/// Would catch: a policy that nobody obeys, that scrubs again before it is time, beside a pause or
/// outside its hours, or that is shown otherwise than it is kept.
#[test]
fn a_policy_scrubs_what_is_due() {
    let ground = Ground::new();
    let line = || {
        let text = ground.run("$WEALD scrub status store").text();
        text.lines()
            .find(|line| line.starts_with("policy: "))
            .map(str::to_owned)
    };
    let figure = |name: &str| {
        let text = ground.run("$WEALD scrub status --prometheus store").text();
        let samples = exposition::samples(&text);
        let sample = samples.iter().find(|sample| sample.name == name);
        sample.map(|sample| sample.value as u64)
    };
    ground.refused(
        &["scrub", "run-due", "store"],
        &["has no policy", "scrub set"],
    );
    ground.refused(&["scrub", "set", "store"], &["--every"]);
    for (option, words) in [
        ("--every 5m", "an hour or more"),
        ("--hours 7", "two full hours"),
    ] {
        let refused = ground.run(&format!("$WEALD scrub set store {option}"));
        assert_eq!(refused.code, Some(2));
        assert!(refused.stderr.contains(words), "{}", refused.stderr);
    }
    assert_eq!(line(), None);
    ground.sh("$WEALD scrub set store --every 30d --rate 50M");
    assert!(
        line()
            .expect("a policy")
            .contains("every 30d, 50.0 MiB a second at most")
    );
    // The store was never read.
    assert!(
        ground
            .weald(&["scrub", "run-due", "store"])
            .starts_with("clean; read")
    );
    let whole = figure("weald_scrub_whole_time_seconds").expect("a time");
    assert_eq!(
        figure("weald_scrub_next_time_seconds"),
        Some(whole + 30 * 86_400)
    );
    assert_eq!(status(&ground)["last_whole"].as_u64(), Some(whole));
    let run = status(&ground)["run"].clone();
    let said = ground.weald(&["scrub", "run-due", "store"]);
    assert!(said.starts_with("nothing is due until 20"), "{said}");
    // A part of the blocks is no whole pass.
    ground.sh("$WEALD scrub start -q --since store; $WEALD scrub start -q --sample 50% store");
    assert_eq!(figure("weald_scrub_whole_time_seconds"), Some(whole));
    // The server of a mount begins what is due, once.
    ground.sh("rm store/scrub store/scrub.report; $WEALD scrub set store --never");
    assert_eq!(line(), None);
    ground.mount(&[]);
    ground.sh("$WEALD scrub set store --every 7d");
    eventually("a scrub of the server", || {
        status(&ground)["state"] == "complete"
    });
    assert_eq!(status(&ground)["run"], 1);
    assert_eq!(run, 1);
    ground.umount();
    // At all hours but this and the next.
    let hours = ground.sh("h=$(date +%-H); echo $(( (h + 2) % 24 ))-$h");
    ground.sh("rm store/scrub store/scrub.report store/scrub.policy");
    let set = format!("$WEALD scrub set store --every 7d --hours {}", hours.trim());
    ground.sh(&set);
    let said = ground.weald(&["scrub", "run-due", "store"]);
    assert!(said.contains("or a later hour of"), "{said}");
    assert_eq!(status(&ground)["state"], "none");
    ground.sh("$WEALD store check --data store");
}
