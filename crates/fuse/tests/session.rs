//! Session with the kernel: pause and resume, slow contents, panics, counters, traces. The tests
//! run as root and need `/dev/fuse`.
#![allow(missing_docs)]

mod support;

use rustix::fs::{AtFlags, CWD, StatxFlags};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use support::stub::{BORN, Stub};
use support::{Door, Guarded, Live, Opener, errno, public_dir, sh, wait_until};
use weald_format::{Error, ErrorKind};
use weald_fuse::{Busy, Mount, MountOptions, MountPoint, Trace};

const EIO: i32 = 5;
const ENOTCONN: i32 = 107;
const ECONNABORTED: i32 = 103;

/// The inode number of `big`, and of the file that tests may damage.
const BIG: u64 = 3;
const TAGGED: u64 = 12;

/// Stop flag, set on drop: threads that poll it end with the test, even if it fails.
struct Flag<'a>(&'a AtomicBool);

impl Drop for Flag<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn options(words: &str) -> MountOptions {
    MountOptions::parse([words]).expect("options")
}

/// Reads `count` computed files of directory `dir` for the first time.
fn read_fresh(root: &Path, dir: u64, count: u64) {
    for index in 0..count {
        let path = root.join(format!("d{dir:07}/f{index:07}"));
        let bytes = fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let ino = fs::metadata(&path).expect("stat").ino();
        let expected: Vec<u8> = (0..index % 5000).map(|at| (at + ino) as u8).collect();
        assert!(bytes == expected, "{}", path.display());
    }
}

/// Would catch: lost requests, requests answered twice and errors in readers during a hand-over.
#[test]
fn users_notice_nothing_while_a_mount_changes_hands() {
    let stub = Arc::new(Stub::new(400, 50));
    let mut live = Live::new(Arc::clone(&stub), "workers=3");
    let is_done = AtomicBool::new(false);
    let next = AtomicU64::new(0);
    let dir = live.dir.clone();
    std::thread::scope(|scope| {
        let _done = Flag(&is_done);
        for _ in 0..4 {
            scope.spawn(|| {
                while !is_done.load(Ordering::SeqCst) {
                    let at = next.fetch_add(1, Ordering::SeqCst);
                    if at >= 400 {
                        break;
                    }
                    read_fresh(&dir, at, 50);
                }
            });
        }
        for _ in 0..20 {
            let before = next.load(Ordering::SeqCst);
            let mount = live.mount.take().expect("mounted");
            let paused = mount.pause().expect("pause");
            assert_eq!(mount.wait().map_err(|e| e.kind()), Ok(()));
            assert!(!mount.is_over());
            drop(mount);
            let resumed = weald_fuse::resume(Arc::clone(&stub), paused, &options("workers=3"));
            live.mount = Some(resumed.expect("resume"));
            wait_until("progress", || {
                let now = next.load(Ordering::SeqCst);
                now > before || now >= 400
            });
        }
    });
    read_fresh(&live.dir, 399, 50);
}

#[test]
fn a_paused_mount_without_a_server_can_be_unmounted() {
    let mut live = Live::new(Stub::new(1, 10), "");
    let mount = live.mount.take().expect("mounted");
    let paused = mount.pause().expect("pause");
    assert_eq!(
        mount.pause().expect_err("paused").kind(),
        ErrorKind::Invalid
    );
    drop(mount);
    drop(paused);
    // ECONNABORTED if the last thread of the old session still runs.
    assert!([ENOTCONN, ECONNABORTED].contains(&errno(fs::read(live.path("hello")))));
    // A wake-up request of the pause may still be in flight.
    wait_until("the unmount", || {
        weald_fuse::unmount(&live.dir, Busy::Refuse).is_ok()
    });
    assert_eq!(fs::read_dir(&live.dir).expect("list").count(), 0);
}

#[test]
fn a_mount_that_is_gone_or_covered_is_not_paused() {
    let mut live = Live::new(Stub::new(1, 1), "");
    live.sh(r#"mount -t tmpfs above "$1""#);
    let mount = live.mount.take().expect("mounted");
    assert_eq!(mount.pause().expect_err("covered").kind(), ErrorKind::Busy);
    live.sh(r#"umount "$1""#);
    assert_eq!(fs::read(live.path("hello")).expect("served on").len(), 13);
    let paused = mount.pause().expect("pause");
    live.sh(r#"umount -l "$1""#);
    let resumed = weald_fuse::resume(Stub::new(1, 1), paused, &options(""));
    let error = resumed.map(|_| ()).expect_err("gone");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let mut live = Live::new(Stub::new(1, 1), "");
    let mount = live.mount.take().expect("mounted");
    live.sh(r#"umount -l "$1""#);
    mount.wait().expect("over");
    assert!(mount.is_over());
    assert_eq!(mount.pause().expect_err("gone").kind(), ErrorKind::Invalid);
}

/// A stub in which reads of `big` block until the door opens.
fn behind(door: &Arc<Door>) -> Guarded<Stub> {
    let door = Arc::clone(door);
    Guarded {
        tree: Stub::new(3, 20),
        guard: Box::new(move |inode, _| {
            if inode.ino.0 == BIG {
                door.pass();
            }
            Ok(())
        }),
    }
}

fn read_big(path: &Path, at: u64) -> Vec<u8> {
    let mut bytes = vec![1; 4096];
    let file = File::open(path).expect("open");
    file.read_exact_at(&mut bytes, at).expect("read");
    bytes
}

/// Would catch: `ls` that waits for a slow read of one file, queued reads that no worker takes, a
/// pause that drops requests in flight.
#[test]
fn names_do_not_wait_for_contents_that_hang() {
    let door = Arc::new(Door::default());
    let live = Live::new(behind(&door), "workers=2");
    let mount = live.mount.as_ref().expect("mounted");
    let _opener = Opener(Arc::clone(&door));
    door.close();
    let path = live.path("big");
    std::thread::scope(|scope| {
        let _opener = Opener(Arc::clone(&door));
        let readers: Vec<_> = (0..6u64)
            .map(|n| {
                scope.spawn({
                    let path = &path;
                    move || read_big(path, n << 24)
                })
            })
            .collect();
        wait_until("two readers at the door", || door.waiting_count() == 2);
        wait_until("the others put aside", || mount.counters().in_flight >= 6);
        assert_eq!(
            fs::read_dir(live.path("d0000001")).expect("list").count(),
            20
        );
        assert_eq!(fs::metadata(live.path("sparse")).expect("stat").ino(), 11);
        assert_eq!(door.waiting_count(), 2);
        let pausing = scope.spawn(|| mount.pause());
        door.open();
        let paused = pausing.join().expect("no panic").expect("pause");
        let resumed = weald_fuse::resume(behind(&door), paused, &options("workers=2"));
        for reader in readers {
            let bytes = reader.join().expect("no panic");
            assert!(bytes.iter().all(|byte| *byte == 0));
        }
        drop(resumed.expect("resume"));
    });
}

/// Would catch: a killed reader that ends the session or a worker.
#[test]
fn a_killed_reader_ends_no_other_reader() {
    let door = Arc::new(Door::default());
    let live = Live::new(behind(&door), "workers=1");
    let _opener = Opener(Arc::clone(&door));
    door.close();
    let mut children: Vec<_> = (0..3)
        .map(|_| {
            let mut command = Command::new("cat");
            let command = command.arg(live.path("big")).stdin(Stdio::null());
            command.stdout(Stdio::null()).spawn().expect("cat")
        })
        .collect();
    wait_until("a reader at the door", || door.waiting_count() == 1);
    for child in &mut children {
        child.kill().expect("kill");
    }
    door.open();
    for child in &mut children {
        child.wait().expect("ended");
    }
    assert_eq!(read_big(&live.path("big"), 1 << 29).len(), 4096);
    assert_eq!(fs::read(live.path("hello")).expect("read").len(), 13);
}

#[test]
fn a_panic_is_an_error_of_one_request() {
    let guarded = Guarded {
        tree: Stub::new(1, 1),
        guard: Box::new(|inode, _| match inode.ino.0 {
            TAGGED => panic!("a bug in the reader (this panic belongs to the test)"),
            BIG => Err(Error::limit("too much")),
            _ => Ok(()),
        }),
    };
    let live = Live::new(guarded, "workers=1");
    for _ in 0..5 {
        assert_eq!(errno(fs::read(live.path("tagged"))), EIO);
    }
    assert_eq!(
        errno(File::open(live.path("big")).and_then(|f| f.read_at(&mut [0; 9], 0))),
        EIO
    );
    assert_eq!(fs::read(live.path("hello")).expect("read").len(), 13);
    assert!(fs::metadata(live.path("missing")).is_err());
    let counters = live.mount.as_ref().expect("mounted").counters();
    assert!(counters.error_count >= 6, "{counters:?}");
    let lookup = counters.operations.iter().find(|o| o.name == "lookup");
    assert_eq!(
        lookup.expect("asked").error_count,
        0,
        "absence is no failure"
    );
}

#[test]
fn requests_are_counted_with_their_times() {
    let live = Live::new(Stub::new(1, 3), "");
    let mount = live.mount.as_ref().expect("mounted");
    assert_eq!(fs::read(live.path("hello")).expect("read").len(), 13);
    assert_eq!(
        fs::read_dir(live.path("d0000000")).expect("list").count(),
        3
    );
    // A worker counts a request after its answer.
    wait_until("everything is counted", || mount.counters().in_flight == 0);
    let counters = mount.counters();
    for name in ["lookup", "read", "readdirplus"] {
        let operation = counters.operations.iter().find(|o| o.name == name);
        let operation = operation.unwrap_or_else(|| panic!("{name}: {counters:?}"));
        assert!(
            operation.count > 0 && operation.total_ns > 0,
            "{operation:?}"
        );
        assert_eq!(
            operation.latency_counts.iter().sum::<u64>(),
            operation.count
        );
    }
    assert!(counters.read_len >= 13, "{counters:?}");
    assert_eq!(counters.error_count, 0);
    // The kernel may reclaim memory at any time, and then repeats requests for evicted entries.
    let asks_nothing = || {
        let before = mount.counters();
        assert_eq!(fs::read(live.path("hello")).expect("read").len(), 13);
        fs::metadata(live.path("d0000000/f0000001")).expect("stat");
        let after = mount.counters();
        after.request_count() == before.request_count()
    };
    wait_until("a look that the kernel's caches answer", asks_nothing);
}

#[test]
fn a_traced_mount_writes_what_chrome_reads_and_is_not_paused() {
    let base = public_dir();
    let dir = base.path().join("mount");
    fs::create_dir(&dir).expect("mkdir");
    let file = base.path().join("trace.json");
    let trace = Trace::create(&file).expect("trace");
    let point = MountPoint::open(&dir).expect("mount point");
    let (stub, name) = (Stub::new(1, 1), OsStr::new("x"));
    let mount = weald_fuse::mount_on(stub, name, &point, &options(""), Some(trace));
    let mount = mount.expect("mount");
    assert_eq!(fs::read(dir.join("hello")).expect("read").len(), 13);
    assert_eq!(mount.pause().expect_err("traced").kind(), ErrorKind::Busy);
    end(&mount);
    drop(mount);
    let events: Vec<serde_json::Value> =
        serde_json::from_slice(&fs::read(&file).expect("written")).expect("JSON");
    let read = events
        .iter()
        .find(|e| e["name"] == "read" && e["args"]["ino"] == 9);
    let read = read.unwrap_or_else(|| panic!("{events:?}"));
    assert_eq!(
        (&read["ph"], &read["args"]["len"]),
        (&"X".into(), &13.into())
    );
    let missing = Trace::create(&base.path().join("no/such")).expect_err("no directory");
    assert_eq!(missing.kind(), ErrorKind::NotFound);
}

/// Unmounts with retries: a child of another test may hold our files between fork and exec.
fn end(mount: &Mount) {
    let unmounter = mount.unmounter();
    wait_until("nobody uses the mount", || {
        unmounter.unmount(Busy::Refuse).is_ok()
    });
    mount.wait().expect("session");
}

#[test]
fn times_of_birth_are_shown_where_they_are_known() {
    let mut stub = Stub::new(1, 1);
    stub.features.has_btimes = true;
    let live = Live::new(stub, "");
    let ask = |name: &str| {
        let flags = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        rustix::fs::statx(CWD, live.path(name), AtFlags::SYMLINK_NOFOLLOW, flags).expect("statx")
    };
    let hello = ask("hello");
    assert!(
        hello.stx_mask & StatxFlags::BTIME.bits() != 0,
        "this kernel asks for statx"
    );
    let born = (hello.stx_btime.tv_sec, hello.stx_btime.tv_nsec);
    assert_eq!(born, (BORN.seconds, BORN.nanoseconds));
    assert_eq!((hello.stx_size, hello.stx_ino, hello.stx_nlink), (13, 9, 2));
    assert_eq!(hello.stx_mtime.tv_sec, 1_700_000_000);
    assert_eq!(ask("tagged").stx_mask & StatxFlags::BTIME.bits(), 0);
    let device = ask("device");
    assert_eq!((device.stx_rdev_major, device.stx_rdev_minor), (1, 3));
}

/// Would catch: names from root's lookups that the kernel's caches show to other users.
#[test]
fn data_that_root_has_read_stays_hidden_with_allow_root() {
    let live = Live::new(Stub::new(2, 5), "allow_root");
    live.sh(r#"ls -lR "$1" >/dev/null; cat "$1/hello" >/dev/null"#);
    let as_other = |words: &str| {
        let script = format!(
            r#"(setpriv --reuid 1234 --clear-groups {words} >/dev/null ||
                echo refused) 2>/dev/null"#
        );
        sh(&script, &[&live.dir])
    };
    for words in [
        r#"cat "$1/hello""#,
        r#"stat "$1/hello""#,
        r#"ls "$1""#,
        r#"ls "$1/d0000000""#,
        r#"readlink "$1/link""#,
    ] {
        assert_eq!(as_other(words), "refused\n", "{words}");
    }
    assert_eq!(live.sh(r#"ls "$1/d0000001" | wc -l"#), "5\n");
}
