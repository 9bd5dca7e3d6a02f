//! Seals of a mounted volume, beside writers.

use super::*;
use std::io::Read;
use std::process::{Child, ChildStdout, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

/// Length of the files that a [`Writer`] replaces.
const LEN: usize = 200_000;

/// Content of a generation, which no other has and no codec makes shorter.
fn content(generation: u64) -> Vec<u8> {
    let mut bytes = format!("{generation:016}").into_bytes();
    let mut state = generation.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    while bytes.len() < LEN {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes
}

/// The generation of a file, all of whose bytes must belong to it.
#[track_caller]
pub fn generation(path: &Path) -> u64 {
    let bytes = fs::read(path).expect("a file of a generation");
    let number = std::str::from_utf8(&bytes[..16]).expect("digits");
    let number = number.parse().expect("a number");
    assert!(bytes == content(number), "{} is mixed", path.display());
    number
}

/// Replaces the files `first` and `second`, always in this order, so that the space of older
/// generations is free.
pub struct Writer {
    begun: AtomicU64,
    done: AtomicU64,
    is_over: AtomicBool,
}

impl Writer {
    pub fn new() -> Self {
        Self {
            begun: AtomicU64::new(0),
            done: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
        }
    }

    pub fn replace(&self, dir: &Path) {
        let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        for name in ["first", "second"] {
            let temporary = dir.join("temporary");
            fs::write(&temporary, content(number)).expect("write");
            fs::rename(&temporary, dir.join(name)).expect("rename");
        }
        self.done.store(number, Ordering::SeqCst);
    }

    /// The last generation that was begun.
    pub fn begun(&self) -> u64 {
        self.begun.load(Ordering::SeqCst)
    }

    /// The last generation that is complete.
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::SeqCst)
    }

    pub fn run(&self, dir: &Path) {
        while !self.is_over.load(Ordering::SeqCst) {
            self.replace(dir);
        }
    }
}

/// Ends a writer also if the test fails, whose threads must end.
pub struct Ended<'a>(pub &'a Writer);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::SeqCst);
    }
}

/// Would catch: an image that is of no moment of the call, that mixes two moments, or whose blocks
/// were freed while they were read; a writer that waits for the seal.
#[test]
fn a_mounted_volume_is_sealed_as_it_was_at_the_call() {
    let ground = Ground::new();
    ground.sh(TREE);
    let dir = ground.mount(&["-o", "commit-interval=0.05"]);
    ground.sh("rsync -aHAX --numeric-ids tree mnt/; head -c 20000000 /dev/urandom > mnt/large");
    let writer = Writer::new();
    writer.replace(&dir);
    let mut beside = 0;
    thread::scope(|scope| {
        let _ended = Ended(&writer);
        scope.spawn(|| writer.run(&dir));
        for number in 0..6 {
            let image = format!("{number}.weald");
            let before = writer.done();
            ground.weald(&["volume", "seal", "-q", VOLUME, "--image", &image]);
            let after = writer.begun();
            ground.weald(&["check", &image]);
            ground.sh(&format!("$WEALD extract -q {image} out{number}"));
            let out = ground.at(&format!("out{number}"));
            let [first, second] = ["first", "second"].map(|name| generation(&out.join(name)));
            assert!(
                before <= second && first <= after,
                "{before}..{after}: {first}, {second}"
            );
            assert!(first == second || first == second + 1, "{first}, {second}");
            assert_same(&ground.at("tree"), &out.join("tree"), &EXTRACTED);
            beside += after - before;
        }
    });
    assert!(beside > 0, "no write beside six seals");
    ground.umount();
    ground.assert_clean();
    // All space of older generations came back: it is that of the tree, of 20 MB, and of two files.
    let stat = ground.weald(&["volume", "stat", "--json", VOLUME]);
    let stat: Value = serde_json::from_str(&stat).expect("JSON");
    assert!(stat["stored_len"].as_u64() < Some(24_000_000), "{stat}");
}

/// A seal to a pipe that nothing reads, so that it waits in the middle.
struct Stalled {
    child: Child,
    pipe: ChildStdout,
    begin: Vec<u8>,
}

impl Stalled {
    fn start(ground: &Ground) -> Self {
        let mut child = Command::new(weald_path())
            .args(["volume", "seal", "-q", VOLUME, "--image", "-"])
            .current_dir(ground.0.path())
            .env("WEALD_RUNTIME_DIR", ground.0.runtime_dir())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("weald");
        let mut pipe = child.stdout.take().expect("a pipe");
        // The first bytes of the image come after the hold.
        let mut begin = vec![0; 64];
        pipe.read_exact(&mut begin).expect("the first bytes");
        Self { child, pipe, begin }
    }

    /// Reads the rest. Returns the image, and the errors if the seal failed.
    fn finish(mut self) -> Result<Vec<u8>, String> {
        self.pipe.read_to_end(&mut self.begin).expect("the rest");
        let output = self.child.wait_with_output().expect("the end");
        if output.status.success() {
            Ok(self.begin)
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    }
}

/// Bytes of the disk that the segments take.
fn segments_len(ground: &Ground) -> u64 {
    let said = ground.sh("du -s --block-size=1 store/segments | cut -f 1");
    said.trim().parse().expect("a number")
}

/// Would catch: space of a removed file that is freed while a seal is about to read it, or that
/// stays when the seal is done or killed; an unmount that waits for a seal.
#[test]
fn removed_files_stay_for_a_seal_and_no_longer() {
    let ground = Ground::new();
    let dir = ground.mount(&["-o", "commit-interval=0.05"]);
    let fill = "head -c 20000000 /dev/urandom > large; cp large mnt/large; sync mnt";
    let empty = "rm mnt/large; sync mnt";
    // Headers stay in the segment, a page for each block.
    let is_empty = || segments_len(&ground) < 4_000_000;

    ground.sh(fill);
    let sealing = Stalled::start(&ground);
    ground.sh(empty);
    let image = sealing.finish().expect("a seal beside a removal");
    fs::write(ground.at("image.weald"), image).expect("write");
    ground.weald(&["check", "image.weald"]);
    ground.sh("$WEALD cat image.weald large | cmp - large");
    eventually("the space is back after a seal", is_empty);

    ground.sh(fill);
    let mut sealing = Stalled::start(&ground);
    ground.sh(empty);
    assert!(!is_empty(), "a hold keeps nothing");
    sealing.child.kill().expect("kill");
    sealing.child.wait().expect("the end");
    eventually("the space is back after a kill", is_empty);

    ground.sh(fill);
    let sealing = Stalled::start(&ground);
    ground.sh(empty);
    ground.umount();
    let said = sealing.finish().expect_err("a seal after the unmount");
    assert!(said.contains("was unmounted while it was sealed"), "{said}");
    assert!(is_empty(), "an unmounted volume keeps blocks for a seal");
    ground.assert_clean();
    ground.mount(&[]);
    assert_eq!(fs::read_dir(dir).expect("list").count(), 0);
}
