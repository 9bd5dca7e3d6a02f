//! Writers that are killed, run at the same time, or get no disk space.

use crate::ground::{Ground, injected, refused};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::process::Child;
use std::time::{Duration, Instant};
use weald_testkit::Rng;
use weald_testkit::mounts::{PATIENCE, eventually};

/// Number of kills per kind.
const KILLS: u64 = 12;

pub fn spawn(ground: &Ground, args: &[&str]) -> Child {
    let mut command = ground.0.command();
    command.args(args).stdout(std::process::Stdio::null());
    command.stderr(std::process::Stdio::null());
    command.spawn().expect("the program starts")
}

/// Kills `child` with SIGKILL at a random moment within `span`. Returns whether it was still
/// running; if not, `span` becomes what it took: the machine was busier when that was measured.
pub fn kill_soon(mut child: Child, rng: &mut Rng, span: &mut Duration) -> bool {
    let start = Instant::now();
    let end = start + span.mul_f64(rng.below(1000) as f64 / 1000.0);
    let is_running = loop {
        if child.try_wait().expect("state").is_some() {
            *span = (*span).min(start.elapsed());
            break false;
        }
        if Instant::now() >= end {
            break true;
        }
        std::thread::yield_now();
    };
    let _ = child.kill();
    child.wait().expect("end");
    is_running
}

/// Duration of a command that is not killed.
pub fn time(ground: &Ground, args: &[&str]) -> Duration {
    let start = Instant::now();
    ground.weald(args);
    start.elapsed()
}

/// Would catch: a store that a kill damages, that is slow to open afterwards, that has lost an
/// image or lists an incomplete one.
#[test]
fn a_killed_writer_leaves_a_whole_store() {
    let ground = Ground::with_images();
    let mut rng = Rng::from_environment();
    ground.sh(
        "mkdir big; for i in $(seq 12); do head -c 500000 /dev/urandom > big/$i; done
        $WEALD build -q -l 0 --block-size 64K big big.weald",
    );
    ground.weald(&["store", "create", "-q", "--segment-size", "256K", "store"]);
    ground.weald(&["store", "import", "-q", "store", "v1.weald", "v2.weald"]);
    let import = ["store", "import", "-q", "store", "big.weald"];
    let remove = ["store", "rm", "store:big"];
    let collect = ["store", "gc", "-q", "--copy-below", "100", "store"];
    let commands = [&import[..], &remove, &collect];
    let mut spans = commands.map(|args| time(&ground, args));
    let (mut killed, mut slowest) = (0, Duration::ZERO);
    for round in 0..KILLS * 3 {
        let kind = (round % 3) as usize;
        let child = spawn(&ground, commands[kind]);
        killed += u64::from(kill_soon(child, &mut rng, &mut spans[kind]));
        let start = Instant::now();
        let listed = ground.json(&["store", "ls", "--json", "store"]);
        slowest = slowest.max(start.elapsed());
        assert!(listed.len() == 2 || listed.len() == 3, "{listed:?}");
        ground.assert_clean("store");
        // The next writer completes a committed removal.
        ground.weald(&["volume", "ls", "store"]);
        ground.assert_clean("store");
        let listed = ground.json(&["store", "ls", "--json", "store"]);
        let has_big = listed.iter().any(|image| image["name"] == "big");
        assert_eq!(listed.len(), 2 + usize::from(has_big), "{listed:?}");
        for name in ["v1", "v2"].into_iter().chain(has_big.then_some("big")) {
            ground.assert_exported("store", name);
        }
        // Each round starts with a store on which its command has work to do.
        if kind == 0 && !has_big {
            ground.weald(&import);
        } else if kind == 1 && has_big {
            ground.weald(&remove);
        }
    }
    println!(
        "{killed} of {} writers were killed; slowest listing {slowest:?}",
        KILLS * 3
    );
    assert!(
        killed > KILLS / 2,
        "{killed} writers were killed before they ended"
    );
    assert!(slowest < Duration::from_secs(30), "{slowest:?}");
    ground.weald(&collect);
    ground.assert_clean("store");
}

/// Would catch: two writers at the same time, and a second writer that waits or does not name the
/// first.
#[test]
fn a_second_writer_is_told_of_the_first() {
    let ground = Ground::with_store();
    ground.sh("mkdir big; head -c 30000000 /dev/urandom > big/noise
        $WEALD build -q -l 0 big big.weald");
    let start = Instant::now();
    // Stops a writer in the middle; repeats this if the writer ended first.
    let (mut first, pid) = loop {
        assert!(start.elapsed() < PATIENCE, "no writer was caught");
        let mut child = spawn(&ground, &["store", "import", "store", "big.weald"]);
        let id = child.id();
        let report = format!("process {id} (weald store import)");
        let mut has_ended = false;
        eventually("the lock", || {
            has_ended = child.try_wait().expect("state").is_some();
            let text = fs::read_to_string(ground.at("store/lock")).unwrap_or_default();
            has_ended || text == report
        });
        let pid = Pid::from_raw(i32::try_from(id).expect("a pid")).expect("not zero");
        if !has_ended && kill_process(pid, Signal::STOP).is_ok() {
            let state = || fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
            eventually("the stop", || {
                state().contains(") T ") || state().contains(") Z ")
            });
            if state().contains(") T ") {
                break (child, pid);
            }
        }
        child.wait().expect("end");
        ground.weald(&["store", "rm", "store:big"]);
    };
    let words = format!("process {} (weald store import)", first.id());
    for args in [
        &["store", "import", "store", "v1.weald", "--name", "x"][..],
        &["store", "rm", "store:v1"],
        &["store", "gc", "store"],
        &["store", "check", "store"],
        &["store", "salvage", "store"],
    ] {
        ground.refused(args, &["is being written by", &words, "try again"]);
    }
    // Readers continue.
    ground.assert_exported("store", "v1");
    assert_eq!(ground.json(&["store", "ls", "--json", "store"]).len(), 2);
    kill_process(pid, Signal::CONT).expect("continue");
    assert!(first.wait().expect("end").success());
    ground.assert_clean("store");
    ground.assert_exported("store", "big");
}

/// System calls that fail on a full file system.
pub const WRITES: &str = "pwrite64,ftruncate,fallocate,rename,mkdir";

/// Would catch: a failed write that is ignored or that damages the store. The disk is full from the
/// first, the second, the third write on, and so on.
#[test]
fn every_write_can_fail_on_a_full_disk() {
    let ground = Ground::with_images();
    ground.weald(&["store", "create", "-q", "--segment-size", "128K", "store"]);
    ground.weald(&["store", "import", "-q", "store", "v1.weald"]);
    ground.sh(
        "mkdir other && seq 3000 > other/numbers && cp v1/noise other
        $WEALD build -q -l 0 --block-size 64K other other.weald
        cp -a store without; $WEALD store import -q store other.weald; cp -a store with
        $WEALD store rm store:other; cp -a store removed",
    );
    for (before, args) in [
        (
            "without",
            &["store", "import", "-q", "store", "other.weald"][..],
        ),
        ("with", &["store", "rm", "store:other"]),
        (
            "removed",
            &["store", "gc", "-q", "--copy-below", "100", "store"],
        ),
        ("", &["store", "create", "-q", "store"]),
    ] {
        let mut number = 0;
        loop {
            number += 1;
            ground.sh(&format!(
                "rm -rf store; test -z '{before}' || cp -a {before}/. store"
            ));
            let inject = format!("{WRITES}:error=ENOSPC:when={number}+");
            let output = injected(&ground, &inject, args);
            if output.code == Some(0) {
                break;
            }
            refused(&output, &["store", "No space left on device"]);
            if before.is_empty() {
                assert!(!ground.at("store").exists(), "write {number}");
                continue;
            }
            ground.assert_clean("store");
            ground.assert_exported("store", "v1");
        }
        println!("{args:?}: {} writes found the disk full", number - 1);
        assert!(number > 4, "{args:?}: {number}");
    }
}

/// Creates a store on a file system of eight megabytes, with a file that leaves `free_len` bytes
/// free.
fn fill(ground: &Ground, free_len: u64) {
    ground.sh(&format!(
        "rm -f small/filler; free=$(($(stat -f -c '%a*%S' small)))
         if [ $free -gt {free_len} ]
         then head -c $((free - {free_len})) /dev/zero > small/filler; fi"
    ));
}

/// Would catch: a full disk that damages the store or loses an image, an error that does not name
/// the full disk, a removal that needs space.
#[test]
fn a_full_disk_changes_nothing() {
    let ground = Ground::with_images();
    ground.0.dir("small");
    ground.sh("mount -t tmpfs -o size=8M,mode=755 tmpfs small");
    ground.weald(&[
        "store",
        "create",
        "-q",
        "--segment-size",
        "128K",
        "small/store",
    ]);
    ground.weald(&["store", "import", "-q", "small/store", "v1.weald"]);
    ground.sh(
        "mkdir other; head -c 200000 /dev/urandom > other/noise; seq 3000 > other/numbers
        $WEALD build -q -l 0 --block-size 16K other other.weald",
    );
    let (mut failed, mut done) = (0, 0);
    let mut free_len = 0;
    while done < 3 {
        fill(&ground, free_len);
        let output = ground
            .0
            .weald(["store", "import", "-q", "small/store", "other.weald"]);
        let is_done = output.code == Some(0);
        if is_done {
            done += 1
        } else {
            failed += 1;
            refused(&output, &["small/store", "No space left on device"]);
        }
        ground.assert_exported("small/store", "v1");
        ground.sh("rm -f small/filler");
        ground.assert_clean("small/store");
        let listed = ground.json(&["store", "ls", "--json", "small/store"]);
        assert_eq!(listed.len(), 1 + usize::from(is_done));
        if is_done {
            ground.assert_exported("small/store", "other");
            ground.weald(&["store", "rm", "small/store:other"]);
        }
        ground.weald(&["store", "gc", "-q", "small/store"]);
        free_len += 3 * 4096;
    }
    println!("{failed} imports found the disk full, with up to {free_len} bytes free");
    assert!(failed > 10, "{failed}");
    // Space can be freed on a full disk.
    ground.weald(&["store", "import", "-q", "small/store", "other.weald"]);
    fill(&ground, 0);
    ground.weald(&["store", "rm", "small/store:other"]);
    ground.weald(&["store", "gc", "-q", "--copy-below", "0", "small/store"]);
    ground.sh("rm -f small/filler");
    ground.assert_clean("small/store");
    ground.assert_exported("small/store", "v1");
    ground.sh("umount small");
}
