//! Mounts that another server takes over, and mounts that cannot be taken over.

use crate::ground::{Ground, noise, receive_frame, request, send_frame};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use weald_testkit::command::{refused, succeeded};
use weald_testkit::mounts::eventually;

/// Reads a file repeatedly without the page cache, until dropped.
struct Reader {
    is_done: Arc<AtomicBool>,
    count: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Reader {
    fn start(path: PathBuf, expected: Vec<u8>) -> Self {
        let (is_done, count) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let (done, counter) = (Arc::clone(&is_done), Arc::clone(&count));
        let thread = std::thread::spawn(move || {
            let kept = File::open(&path).expect("open");
            let mut found = vec![0; expected.len()];
            while !done.load(Ordering::Relaxed) {
                rustix::fs::fadvise(&kept, 0, None, rustix::fs::Advice::DontNeed).expect("fadvise");
                kept.read_exact_at(&mut found, 0).expect("an open file");
                assert!(found == expected, "other bytes");
                assert_eq!(
                    fs::metadata(&path).expect("stat").len(),
                    expected.len() as u64
                );
                counter.fetch_add(1, Ordering::Relaxed);
            }
        });
        Self {
            is_done,
            count,
            thread: Some(thread),
        }
    }

    /// Waits until the reader has read the whole file once more.
    fn wait_for_full_read(&self) {
        let before = self.count.load(Ordering::Relaxed);
        eventually("a reader", || {
            let has_failed = self.thread.as_ref().is_some_and(JoinHandle::is_finished);
            assert!(!has_failed, "the reader has failed");
            self.count.load(Ordering::Relaxed) > before + 1
        });
    }

    fn finish(mut self) {
        self.is_done.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        ended.expect("a thread").expect("no error, no difference");
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.is_done.store(true, Ordering::Relaxed);
    }
}

#[test]
fn mounts_continue_after_a_hand_over() {
    let ground = Ground::new();
    ["a", "b"].iter().for_each(|name| ground.build(name));
    ground.mount("a", "m1", &["-o", "uid=77"]);
    ground.mount("b", "m2", &[]);
    let readers = [("a", "m1"), ("b", "m2")]
        .map(|(name, dir)| Reader::start(ground.at(dir).join("noise"), noise(name)));
    let mut server = ground.server();
    for _ in 0..3 {
        readers.iter().for_each(Reader::wait_for_full_read);
        succeeded(&ground.weald(&["serve", "--take-over", "--background"]));
        let next = ground.server();
        assert_ne!(server, next);
        server = next;
        readers.iter().for_each(Reader::wait_for_full_read);
    }
    readers.into_iter().for_each(Reader::finish);
    let reported = ground.reports("mount");
    assert_eq!(reported.len(), 2);
    assert_eq!(reported[0]["options"][0], "uid=77");
    ground.mount("b", "m3", &[]);
    assert_eq!(ground.server(), server);
    ["m1", "m2", "m3"].iter().for_each(|dir| ground.umount(dir));
    ground.until_unserved();
}

/// Would catch: a mount without a server because the taker died in the middle of the hand-over.
#[test]
fn a_failed_hand_over_leaves_the_mounts_with_the_giver() {
    let ground = Ground::new();
    ground.build("a");
    ground.mount("a", "m1", &[]);
    ground.mount("a", "m2", &[]);
    let server = ground.server();
    for step in 0..3 {
        let taker = ground.connect();
        send_frame(&taker, &request("\"TakeOver\""));
        assert_eq!(receive_frame(&taker)["Server"]["mount_count"], 2);
        let mounts = [receive_frame(&taker), receive_frame(&taker)];
        assert!(
            mounts.iter().all(|mount| mount["Mount"].is_object()),
            "{mounts:?}"
        );
        if step > 0 {
            send_frame(&taker, r#""Ready""#);
            assert!(receive_frame(&taker)["Device"].is_object());
        }
        let reader = Reader::start(ground.at("m1/noise"), noise("a"));
        if step > 1 {
            assert!(receive_frame(&taker)["Device"].is_object());
            send_frame(&taker, r#""Ready""#);
            assert!(
                receive_frame(&taker)["Refused"].is_object(),
                "that was no confirmation"
            );
        }
        drop(taker);
        reader.wait_for_full_read();
        reader.finish();
        ground.compare("a", "m2");
        assert_eq!(ground.server(), server);
    }
    ["m1", "m2"].iter().for_each(|dir| ground.umount(dir));
    ground.until_unserved();
}

#[test]
fn mounts_that_cannot_move_stay() {
    let ground = Ground::new();
    ["a", "b"].iter().for_each(|name| ground.build(name));
    let take_over = || ground.weald(&["serve", "--take-over", "--background"]);
    refused(&take_over(), "no server runs");
    ground.mount("a", "m1", &[]);
    let server = ground.server();
    fs::rename(ground.at("b"), ground.at("a")).expect("replaced");
    refused(&take_over(), "image digest");
    ground.build("b");
    ground.mount("b", "m2", &["--record", "hot"]);
    refused(&take_over(), "m2: records what is read");
    ground.compare("a", "m1");
    assert_eq!(ground.server(), server);
    ["m1", "m2"].iter().for_each(|dir| ground.umount(dir));
}
