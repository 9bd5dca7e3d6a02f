//! Commands that read an image by URL.

use crate::ground::Ground;
use std::fs;

/// Would catch: a command that does not take URLs, or shows something else for them than for the
/// file.
#[test]
fn each_command_shows_the_same_by_url_as_of_the_file() {
    let ground = Ground::new(false);
    let urls = [ground.web.url("small"), ground.bucket("small")];
    for words in [
        &["ls", "-l", "IMAGE"][..],
        &["ls", "IMAGE", "etc"],
        &["tree", "IMAGE"],
        &["stat", "IMAGE", "etc/main.conf"],
        &["cat", "IMAGE", "bin/tool"],
        &["find", "IMAGE", "--type", "f"],
        &["tar", "IMAGE"],
        &["sum", "IMAGE"],
        &["diff", "IMAGE", "source"],
        &["diff", "small", "IMAGE"],
        &["info", "IMAGE"],
        &["info", "--json", "--stages", "IMAGE"],
        &["check", "IMAGE"],
        &["check", "--json", "IMAGE"],
        &["generations", "IMAGE"],
        &["ls", "--generation", "1", "--offset", "auto", "IMAGE"],
        &["export", "dump", "IMAGE"],
    ] {
        let with = |image: &str| {
            let words = words.iter().map(|word| word.replace("IMAGE", image));
            let output = ground.weald(words).expect(0, "");
            // A report of a check names the image.
            output.text().replace(image, "IMAGE")
        };
        let expected = with("small");
        for url in &urls {
            assert_eq!(with(url), expected, "{words:?} {url}");
        }
    }
    for (no, url) in urls.iter().enumerate() {
        let target = format!("out{no}");
        ground.weald(["extract", "-q", url, &target]).expect(0, "");
        ground.weald(["diff", "small", &target]).expect(0, "");
    }
}

/// Would catch: requests that grow with the number of reads.
#[test]
fn opening_and_listing_take_few_requests() {
    let ground = Ground::new(true);
    for (words, most) in [
        (&["info", "--json"][..], 4),
        (&["ls"], 4),
        (&["find"], 8),
        (&["cat"], 8),
    ] {
        let before = ground.web.request_count();
        let url = ground.web.url("large");
        let path = (words[0] == "cat").then_some("text7");
        let words = words.iter().copied().chain([url.as_str()]).chain(path);
        ground.weald(words).expect(0, "");
        let count = ground.web.request_count() - before;
        assert!((1..=most).contains(&count), "{count} requests");
    }
}

/// Would catch: a base image by URL that a build does not read, and one beside an image by URL
/// that is not found.
#[test]
fn base_images_are_found_beside_the_object() {
    let ground = Ground::new(false);
    ground
        .bench
        .sh("cp -a source next; seq 100000 > next/numbers");
    for url in [ground.web.url("small"), ground.bucket("small")] {
        let _ = fs::remove_file(ground.at("new"));
        ground
            .weald(["build", "-q", "--base", &url, "next", "new"])
            .expect(0, "");
        fs::remove_file(ground.at("small")).expect("remove");
        ground.serve_with_base("new", &url);
        let new = url.replace("small", "new");
        ground.weald(["diff", &new, "next"]).expect(0, "");
        ground.weald(["check", "-q", &new]).expect(0, "");
        fs::copy(ground.web.file("small"), ground.at("small")).expect("copy");
    }
}

impl Ground {
    /// Puts the image file `name`, whose base image is at `base`, on both servers.
    fn serve_with_base(&self, name: &str, base: &str) {
        let dir = base.rsplit_once('/').expect("a URL").0;
        self.weald(["ls", "--base-dir", dir, name]).expect(0, "");
        fs::copy(self.at(name), self.web.file(name)).expect("copy");
        fs::copy(self.web.file("small"), self.at("small")).expect("copy");
        self.weald(["publish", "-q", "-f", name, &self.bucket(name)])
            .expect(0, "");
        fs::remove_file(self.at("small")).expect("remove");
    }
}

/// Would catch: a mixture of two states of an object, or damage where there is none, when a
/// connection breaks again and again.
#[test]
fn broken_connections_cost_nothing_but_time() {
    use weald_testkit::link::{Link, LinkOptions};
    let ground = Ground::new(true);
    let options = LinkOptions {
        cut_after: 1_500_000,
        ..LinkOptions::default()
    };
    let link = Link::start(ground.web.address(), options).expect("a link");
    let url = format!("http://{}/large", link.address());
    let found = ground.weald(["sum", &url]).expect(0, "").text();
    assert_eq!(found, ground.weald(["sum", "large"]).expect(0, "").text());
    assert!(link.connection_count() > 30, "connections were cut");
}

/// Would catch: a reader that waits for each request before it sends the next one.
#[test]
fn a_sequential_reader_fills_a_slow_link() {
    use std::time::{Duration, Instant};
    use weald_testkit::link::{Link, LinkOptions};
    let ground = Ground::new(true);
    let options = LinkOptions {
        delay: Duration::from_millis(50),
        rate: 40_000_000,
        ..LinkOptions::default()
    };
    let link = Link::start(ground.web.address(), options).expect("a link");
    let url = format!("http://{}/large", link.address());
    let start = Instant::now();
    ground.weald(["cat", &url, "noise"]).expect(0, "");
    // 1.5 s by the bandwidth. One request of 1 MiB after the other would take 7 s.
    let time = start.elapsed();
    assert!(time < Duration::from_secs(5), "{time:?}");
}
