//! Tiers in a bucket.

use crate::ground::{Ground, files, noise};
use crate::support::{Output, run};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use weald_testkit::mounts::eventually;
use weald_testkit::rng::Rng;
use weald_testkit::servers::KEY;

/// Bytes of an image.
const IMAGE_LEN: usize = 4 << 20;

/// A store with images of noise, each of some segments of a MiB.
fn with_store(images: &[&str]) -> Ground {
    let ground = Ground::new(false);
    must(
        &ground,
        &["store", "create", "-q", "--segment-size", "1M", "store"],
    );
    for (no, name) in images.iter().enumerate() {
        fs::create_dir(ground.at(name)).expect("mkdir");
        let bytes = noise((no + 1) * IMAGE_LEN).split_off(no * IMAGE_LEN);
        for (part, bytes) in bytes.chunks(300_000).enumerate() {
            fs::write(ground.at(name).join(format!("{name}{part}")), bytes).expect("write");
        }
        must(
            &ground,
            &["store", "add", "-q", "store", name, "--name", name],
        );
    }
    ground
}

#[track_caller]
fn must(ground: &Ground, words: &[&str]) -> String {
    ground.weald(words).expect(0, "").text()
}

/// Adds the tier `cold` in the bucket.
#[track_caller]
fn add_cold(ground: &Ground) -> String {
    let url = ground.bucket("tiers/cold");
    must(
        ground,
        &["tier", "add", "-q", "store", &url, "--name", "cold"],
    );
    url
}

/// Objects of segments in the bucket.
fn objects(ground: &Ground) -> Vec<PathBuf> {
    files(&ground.s3.file("tiers/cold/segments"))
}

fn segments(ground: &Ground) -> usize {
    files(&ground.at("store/segments")).len()
}

#[track_caller]
fn same(ground: &Ground, names: &[&str]) {
    for name in names {
        must(ground, &["diff", "-q", &format!("store:{name}"), name]);
    }
}

#[track_caller]
fn refused(output: &Output, words: &str) {
    let said = &output.stderr;
    assert_eq!(output.code, Some(2), "{said}");
    assert!(said.contains(words), "{words:?} is not in {said:?}");
    assert!(!said.contains(KEY.1), "{said}");
}

/// Would catch: data that is elsewhere than in the bucket, or not readable there; a check that does
/// not ask for objects; what is left in the bucket; and credentials in what is stored.
#[test]
fn segments_lie_in_a_bucket_and_come_back() {
    let ground = with_store(&["one", "two"]);
    let url = add_cold(&ground);
    let before = segments(&ground);
    let moved = must(&ground, &["tier", "move", "store:one", "--to", "cold"]);
    let count = objects(&ground).len();
    assert!(count >= 4, "{count} objects");
    let words = format!("moved {count} segments");
    assert!(moved.starts_with(&words), "{moved}");
    assert_eq!(segments(&ground), before - count);
    same(&ground, &["one", "two"]);
    let listed = must(&ground, &["tier", "ls", "store"]);
    assert!(listed.ends_with(&format!("cold 1 {url}\n")), "{listed}");
    let stat = must(&ground, &["tier", "stat", "--json", "store"]);
    assert!(stat.contains("\"disk_free_bytes\":null"), "{stat}");
    let first = ground.s3.requests().len();
    must(&ground, &["store", "check", "store"]);
    let asked = ground.s3.requests().split_off(first);
    assert!((count..=count + 2).contains(&asked.len()), "{asked:#?}");
    must(&ground, &["store", "check", "--data", "store"]);
    for path in files(&ground.at("store"))
        .iter()
        .chain(&files(&ground.s3.file("tiers")))
    {
        let bytes = fs::read(path).expect("read");
        let has = |word: &str| {
            bytes
                .windows(word.len())
                .any(|bytes| bytes == word.as_bytes())
        };
        assert!(!has(KEY.0) && !has(KEY.1), "{path:?}");
    }
    // A kernel-less mount of the image, and one of a volume with data there.
    let mounted = ground.mount("store:one", &[]);
    assert_eq!(
        fs::read(mounted.at("one3")).expect("read"),
        fs::read(ground.at("one/one3")).expect("read")
    );
    mounted.end();
    // A dead segment goes as a whole.
    must(&ground, &["store", "rm", "store:one"]);
    must(&ground, &["store", "gc", "-q", "store"]);
    let left = objects(&ground).len();
    assert!(left <= 1, "{left} objects");
    must(
        &ground,
        &["tier", "move", "-q", "store:two", "--to", "cold"],
    );
    same(&ground, &["two"]);
    let busy = ground.weald(["tier", "remove", "store", "cold"]);
    refused(&busy, "tier drain");
    must(&ground, &["tier", "drain", "-q", "store", "cold"]);
    must(&ground, &["tier", "remove", "store", "cold"]);
    assert_eq!(files(&ground.s3.file("tiers")), Vec::<PathBuf>::new());
    same(&ground, &["two"]);
    must(&ground, &["store", "check", "--data", "store"]);
}

/// Would catch: an outage that costs more than what lies in the bucket alone, that keeps somebody
/// longer than the time for requests, or that needs a check afterwards.
#[test]
fn a_bucket_that_is_away_costs_what_lies_there() {
    let mut ground = with_store(&["one", "two"]);
    add_cold(&ground);
    must(
        &ground,
        &["tier", "move", "-q", "store:one", "--to", "cold"],
    );
    // Images share blocks: what the other one needs comes back.
    must(
        &ground,
        &["tier", "move", "-q", "store:two", "--to", "home"],
    );
    assert!(objects(&ground).len() >= 4);
    ground.s3.kill();
    let start = Instant::now();
    same(&ground, &["two"]);
    let lost = ground.weald(["cat", "store:one", "one3"]);
    assert_ne!(lost.code, Some(0), "{}", lost.stderr);
    assert!(
        lost.stderr.contains("see AWS_ENDPOINT_URL"),
        "{}",
        lost.stderr
    );
    let stat = must(&ground, &["tier", "stat", "store"]);
    assert!(stat.contains("not here"), "{stat}");
    fs::write(ground.at("two/new"), noise(2 << 20)).expect("write");
    must(
        &ground,
        &["store", "add", "-q", "store", "two", "--name", "three"],
    );
    must(&ground, &["store", "rm", "store:one"]);
    let collected = ground.weald(["store", "gc", "-q", "store"]);
    assert_eq!(collected.code, Some(0), "{}", collected.stderr);
    let moved = ground.weald(["tier", "move", "-q", "store:three", "--to", "cold"]);
    refused(&moved, "cold");
    assert!(start.elapsed() < Duration::from_secs(60));
    ground.s3.restart();
    must(&ground, &["store", "check", "--data", "store"]);
    // What died meanwhile, and what the failed move has noted, goes now.
    must(&ground, &["store", "gc", "-q", "store"]);
    assert!(objects(&ground).len() <= 3, "{:?}", objects(&ground));
    must(&ground, &["tier", "drain", "-q", "store", "cold"]);
    must(&ground, &["tier", "remove", "store", "cold"]);
    assert_eq!(files(&ground.s3.file("tiers")), Vec::<PathBuf>::new());
}

/// Would catch: a place that is none and is taken all the same, a tier of another store or of a
/// copy that is written to, and a lost or damaged object that counts as there.
#[test]
fn what_is_no_tier_of_this_store_is_refused() {
    let ground = with_store(&["one"]);
    for (place, words) in [
        ("s3://none/tier", "no such bucket"),
        ("s3://bucket/x?secret", "without a user, a query"),
        ("s3://key:secret@bucket/x", "s3://"),
        ("s3://bucket/x:y", "colon"),
        ("https://host/x", "a web server is no tier"),
    ] {
        let output = ground.weald(["tier", "add", "store", place, "--name", "cold"]);
        refused(&output, words);
    }
    let mut command = ground.command();
    command
        .env("AWS_SECRET_ACCESS_KEY", "wrong")
        .args(["tier", "add", "store"])
        .args([&ground.bucket("tiers/cold"), "--name", "cold"]);
    refused(&run(&mut command), "AWS_SECRET_ACCESS_KEY does not fit");
    assert_eq!(must(&ground, &["tier", "ls", "store"]).lines().count(), 1);
    let url = add_cold(&ground);
    must(&ground, &["store", "create", "-q", "other"]);
    let other = ground.weald(["tier", "add", "other", &url, "--name", "cold"]);
    refused(&other, "is a tier of another store");
    must(
        &ground,
        &["tier", "move", "-q", "store:one", "--to", "cold"],
    );
    let count = objects(&ground).len();
    // A copy reads, and changes nothing.
    let copied = run(std::process::Command::new("cp")
        .arg("-a")
        .arg(ground.at("store"))
        .arg(ground.at("copy")));
    assert_eq!(copied.code, Some(0));
    must(&ground, &["diff", "-q", "copy:one", "one"]);
    let stat = must(&ground, &["tier", "stat", "copy"]);
    assert!(stat.contains("may be a copy"), "{stat}");
    must(&ground, &["store", "rm", "copy:one"]);
    let collected = ground.weald(["store", "gc", "-q", "copy"]);
    assert!(
        collected.stderr.contains("may be a copy"),
        "{}",
        collected.stderr
    );
    assert_eq!(objects(&ground).len(), count);
    same(&ground, &["one"]);
    // Lost and damaged objects are told, by the check that asks for it.
    let objects = objects(&ground);
    let mut bytes = fs::read(&objects[0]).expect("read");
    bytes[500_000] ^= 1;
    fs::write(&objects[0], bytes).expect("write");
    must(&ground, &["store", "check", "store"]);
    let checked = ground.weald(["store", "check", "--data", "store"]);
    assert_eq!(checked.code, Some(1), "{}", checked.stderr);
    // Damage costs the block that it lies in: not the chunk that is fetched, nor the request.
    let said = checked.text();
    assert_eq!(said.matches("damaged: one").count(), 1, "{said}");
    let image = ground.weald(["check", "store:one"]);
    assert_eq!(image.code, Some(1), "{}", image.stderr);
    must(&ground, &["tier", "drain", "-q", "store", "cold"]);
    let checked = ground.weald(["store", "check", "--data", "store"]).text();
    assert_eq!(checked.matches("damaged: one").count(), 1, "{checked}");
    must(&ground, &["tier", "set", "store", "cold", "--on"]);
    must(
        &ground,
        &["tier", "move", "-q", "store:one", "--to", "cold"],
    );
    for object in self::objects(&ground) {
        fs::remove_file(object).expect("remove");
    }
    let checked = ground.weald(["store", "check", "store"]);
    assert_eq!(checked.code, Some(1), "{}", checked.stderr);
    let said = format!("{}{}", checked.stderr, checked.text());
    assert!(said.contains("is missing"), "{said}");
}

/// Names of the files beside the receipts, and of these.
fn names_of_receipts(ground: &Ground) -> Vec<String> {
    let dirs = fs::read_dir(ground.at("store")).expect("read").flatten();
    let name_of = |path: &Path| {
        path.file_name()
            .expect("a name")
            .to_string_lossy()
            .into_owned()
    };
    let dir = dirs
        .map(|entry| entry.path())
        .find(|path| name_of(path).starts_with("receipts."));
    let paths = files(&dir.expect("receipts"));
    paths.iter().map(|path| name_of(path)).collect()
}

/// Receipts of segments in the bucket.
fn receipts(ground: &Ground) -> usize {
    let names = names_of_receipts(ground);
    names.iter().filter(|name| name.len() == 16).count()
}

/// Notes of objects that are to be removed now.
fn notes(ground: &Ground) -> usize {
    let names = names_of_receipts(ground);
    let is_due = |name: &&String| name.starts_with("going.") || name.starts_with("gone.");
    names.iter().filter(is_due).count()
}

/// Would catch: a move that loses a segment, or leaves one nowhere or an object for ever, at any
/// moment at which its process is killed.
#[test]
fn moves_that_are_killed_lose_nothing() {
    let ground = with_store(&["one", "two"]);
    add_cold(&ground);
    let mut random = Rng::new(51);
    let start = Instant::now();
    must(
        &ground,
        &["tier", "move", "-q", "store:one", "--to", "cold"],
    );
    let time_us = u64::try_from(start.elapsed().as_micros()).expect("a short time");
    let count = receipts(&ground);
    let mut cut = 0;
    for round in 0..20 {
        let to = ["home", "cold", "cold"][round % 3];
        let mut command = ground.command();
        command.args(["tier", "move", "-q", "store:one", "--to", to]);
        let mut child = command.spawn().expect("weald");
        std::thread::sleep(Duration::from_micros(random.below(time_us)));
        child.kill().expect("kill");
        child.wait().expect("wait");
        let is_part = (1..count).contains(&receipts(&ground));
        cut += usize::from(is_part || objects(&ground).len() != receipts(&ground));
        same(&ground, &["one"]);
    }
    eprintln!("{cut} of 20 moves were cut off in the middle");
    must(&ground, &["store", "check", "--data", "store"]);
    must(&ground, &["store", "gc", "-q", "store"]);
    assert_eq!(objects(&ground).len(), receipts(&ground));
    same(&ground, &["one", "two"]);
    must(&ground, &["tier", "drain", "-q", "store", "cold"]);
    must(&ground, &["tier", "remove", "store", "cold"]);
    assert_eq!(files(&ground.s3.file("tiers")), Vec::<PathBuf>::new());
}

/// Would catch: a synced write that waits for the bucket or is lost, a read that never works again,
/// and requests of a store in which nothing is to do.
#[test]
fn a_server_goes_on_while_the_bucket_comes_and_goes() {
    let mut ground = with_store(&[]);
    add_cold(&ground);
    must(&ground, &["volume", "create", "-q", "store:home"]);
    fs::create_dir(ground.at("mnt")).expect("mkdir");
    let words = ["mount", "--url-timeout", "3s", "store:home", "mnt"];
    must(&ground, &words);
    let bytes = noise(8 << 20);
    let mnt = ground.at("mnt");
    let path = |no: usize| mnt.join(no.to_string());
    let write = |no: usize| {
        let part = bytes.chunks(400_000).nth(no).expect("a part");
        fs::write(path(no), part).expect("write");
        let start = Instant::now();
        let file = fs::File::open(path(no)).expect("open");
        file.sync_all().expect("sync");
        assert!(start.elapsed() < Duration::from_secs(20));
    };
    for round in 0..5 {
        write(round * 4);
        write(round * 4 + 1);
        let mut command = ground.command();
        command.args(["tier", "move", "-q", "store:home", "--to", "cold"]);
        let mut child = command
            .stderr(std::process::Stdio::null())
            .spawn()
            .expect("weald");
        write(round * 4 + 2);
        ground.s3.kill();
        write(round * 4 + 3);
        child.wait().expect("wait");
        ground.s3.restart();
    }
    must(
        &ground,
        &["tier", "move", "-q", "store:home", "--to", "cold"],
    );
    assert!(!objects(&ground).is_empty());
    let all_there = || (0..20).all(|no| fs::read(path(no)).is_ok());
    eventually("everything can be read again", all_there);
    must(&ground, &["umount", "mnt"]);
    must(&ground, &words);
    for (no, part) in bytes.chunks(400_000).take(20).enumerate() {
        assert!(fs::read(path(no)).expect("read") == part, "{no}");
    }
    // What the failed moves have left goes by itself; then nothing is asked for.
    let is_clean = || objects(&ground).len() == receipts(&ground) && notes(&ground) == 0;
    eventually("what was left is removed", is_clean);
    let count = ground.s3.requests().len();
    std::thread::sleep(Duration::from_secs(12));
    let asked = ground.s3.requests().split_off(count);
    assert_eq!(asked, Vec::<String>::new());
    must(&ground, &["umount", "mnt"]);
    must(&ground, &["store", "check", "--data", "store"]);
}

/// Would catch: a manual whose commands for buckets do not work.
#[test]
fn the_manual_of_tiers_in_buckets_works() {
    let ground = with_store(&["tools"]);
    fs::create_dir(ground.at("srv")).expect("mkdir");
    fs::rename(ground.at("store"), ground.at("srv/store")).expect("rename");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/tiers.md");
    let manual = fs::read_to_string(path).expect("the manual");
    let (_, section) = manual.split_once("\n## A bucket\n").expect("a section");
    let (section, _) = section.split_once("\n## ").expect("its end");
    let commands = section.lines().filter(|line| line.starts_with("weald "));
    let mut count = 0;
    for line in commands {
        let words = line.split(' ').skip(1);
        ground
            .weald(words.map(|word| word.replace("/srv/", "srv/")))
            .expect(0, "");
        count += 1;
    }
    assert_eq!(count, 3);
    must(&ground, &["diff", "-q", "srv/store:tools", "tools"]);
}
