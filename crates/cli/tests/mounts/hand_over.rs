//! Mounts that another server takes over, and those that stay.

use crate::ground::{Ground, hear, noise, say};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use weald_testkit::command::{refused, succeeded};
use weald_testkit::mounts::eventually;

/// Reads a file again and again past the kernel's cache, until dropped.
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

    /// Waits until it has read once more from begin to end.
    fn go_on(&self) {
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
fn mounts_go_on_under_another_server() {
    let ground = Ground::new();
    ["a", "b"].iter().for_each(|name| ground.build(name));
    ground.mount("a", "m1", &["-o", "uid=77"]);
    ground.mount("b", "m2", &[]);
    let readers = [("a", "m1"), ("b", "m2")]
        .map(|(name, dir)| Reader::start(ground.at(dir).join("noise"), noise(name)));
    let mut server = ground.server();
    for _ in 0..3 {
        readers.iter().for_each(Reader::go_on);
        succeeded(&ground.weald(&["serve", "--take-over", "--background"]));
        let next = ground.server();
        assert_ne!(server, next);
        server = next;
        readers.iter().for_each(Reader::go_on);
    }
    readers.into_iter().for_each(Reader::finish);
    let told = ground.told("mount");
    assert_eq!(told.len(), 2);
    assert_eq!(told[0]["options"][0], "uid=77");
    ground.mount("b", "m3", &[]);
    assert_eq!(ground.server(), server);
    ["m1", "m2", "m3"].iter().for_each(|dir| ground.umount(dir));
    ground.until_unserved();
}

/// Would catch: a mount that nobody serves because the taker has died half way.
#[test]
fn a_taker_that_gives_up_leaves_the_mounts_where_they_are() {
    let ground = Ground::new();
    ground.build("a");
    ground.mount("a", "m1", &[]);
    ground.mount("a", "m2", &[]);
    let server = ground.server();
    for step in 0..3 {
        let taker = ground.connect();
        say(&taker, r#"{"protocol":3,"request":"TakeOver"}"#);
        assert_eq!(hear(&taker)["Server"]["mount_count"], 2);
        let mounts = [hear(&taker), hear(&taker)];
        assert!(
            mounts.iter().all(|mount| mount["Mount"].is_object()),
            "{mounts:?}"
        );
        if step > 0 {
            say(&taker, r#""Ready""#);
            assert!(hear(&taker)["Device"].is_object());
        }
        let reader = Reader::start(ground.at("m1/noise"), noise("a"));
        if step > 1 {
            assert!(hear(&taker)["Device"].is_object());
            say(&taker, r#""Ready""#);
            assert!(
                hear(&taker)["Refused"].is_object(),
                "that was no confirmation"
            );
        }
        drop(taker);
        reader.go_on();
        reader.finish();
        ground.compare("a", "m2");
        assert_eq!(ground.server(), server);
    }
    ["m1", "m2"].iter().for_each(|dir| ground.umount(dir));
    ground.until_unserved();
}

#[test]
fn what_cannot_be_taken_over_stays() {
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
