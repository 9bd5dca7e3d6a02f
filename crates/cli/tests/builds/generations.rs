//! Appending, older generations, recovery and base images with the program itself, including
//! mounts.
use crate::support::*;
use std::fs;
use std::time::{Duration, Instant};
use weald_testkit::Rng;

/// Would catch: an option without effect, and a mount of another generation than requested.
#[test]
fn generations_are_listed_read_and_mounted() {
    let scratch = Scratch::new("256m");
    let run = |args: &[&str]| weald(scratch.path(), args);
    let source = scratch.dir("tree");
    fs::write(source.join("a"), "first").unwrap();
    done(&run(&["build", "--append", "tree", "image"]));
    fs::write(source.join("a"), "second").unwrap();
    fs::write(source.join("b"), "new").unwrap();
    let said = done(&run(&["build", "--append", "-l", "3", "tree", "image"]));
    assert!(said.contains("generation    2, "), "{said}");
    let said = done(&run(&["build", "--append", "-l", "3", "tree", "image"]));
    assert!(said.contains("nothing has changed"), "{said}");
    let listed = done(&run(&["generations", "image"]));
    let lines: Vec<Vec<&str>> = listed
        .lines()
        .map(|l| l.split_whitespace().collect())
        .collect();
    assert_eq!(
        (lines.len(), lines[0][0], lines[1][0]),
        (2, "2", "1"),
        "{listed}"
    );
    assert_eq!(
        done(&run(&["generations", "--json", "image"]))
            .lines()
            .count(),
        2
    );
    assert_eq!(done(&run(&["cat", "image", "a"])), "second");
    assert_eq!(
        done(&run(&["cat", "--generation", "1", "image", "a"])),
        "first"
    );
    let digest = lines[1].iter().find(|word| word.len() == 64).unwrap();
    assert_eq!(
        done(&run(&["cat", "--digest", digest, "image", "a"])),
        "first"
    );
    let none = run(&["cat", "--generation", "3", "image", "a"]);
    assert_eq!(none.status.code(), Some(2));
    assert!(
        stderr(&none).contains("expected 1 to 2, found 3"),
        "{}",
        stderr(&none)
    );
    let differing = run(&["diff", "--generation", "1", "image", "image"]);
    assert_eq!(differing.status.code(), Some(1));

    scratch.dir("mnt");
    let by_digest = format!("digest={digest}");
    for option in ["generation=1", &by_digest] {
        done(&run(&["mount", "-o", option, "image", "mnt"]));
        assert_eq!(fs::read_to_string(scratch.at("mnt/a")).unwrap(), "first");
        assert!(!scratch.at("mnt/b").exists());
        // Appending does not disturb a mount.
        fs::write(source.join("b"), option).unwrap();
        done(&run(&["build", "--append", "-l", "3", "tree", "image"]));
        assert_eq!(names(&scratch.at("mnt")), ["a"]);
        done(&run(&["umount", "mnt"]));
    }
    check(&scratch.at("image"));
}

/// Would catch: an image that a kill makes unreadable for ever, or that loses an older generation.
#[test]
fn a_killed_append_can_be_recovered() {
    let scratch = Scratch::new("512m");
    let source = scratch.dir("tree");
    let image = scratch.at("image");
    (0..40).for_each(|n| fs::write(source.join(format!("f{n}")), lines(n, 300_000)).unwrap());
    build(&["--level", "3"], &source, &image);
    let first = fs::read(&image).unwrap();
    (40..90).for_each(|n| fs::write(source.join(format!("f{n}")), lines(n, 300_000)).unwrap());
    let options = ["--append", "--level", "3", "--threads", "2"];
    let start = Instant::now();
    build(&options, &source, &image);
    let mut time = start.elapsed();
    let both = fs::read(&image).unwrap();
    let mut rng = Rng::from_environment();
    let (mut torn_count, mut killed_count) = (0, 0);
    for round in 0..60 {
        if round >= 20 && killed_count >= 5 {
            break;
        }
        fs::write(&image, &first).unwrap();
        let delay =
            time.mul_f64(((round * 3 % 60) as f64 + rng.below(1000) as f64 / 1000.0) / 60.0);
        let start = Instant::now();
        let mut child = build_command(&options, &source, &image).spawn().unwrap();
        std::thread::sleep(delay.min(Duration::from_secs(10)));
        let _ = child.kill();
        if child.wait().unwrap().success() {
            // The machine is less loaded than at the first measurement.
            time = time.min(start.elapsed())
        } else {
            killed_count += 1
        }
        let found = fs::read(&image).unwrap();
        assert!(found.starts_with(&first));
        if found.len() != first.len() && found != both {
            torn_count += 1;
            let output = weald(scratch.path(), &["check", "image"]);
            assert_eq!(output.status.code(), Some(2), "a torn image passes");
            assert!(
                stderr(&output).contains("weald recover"),
                "{}",
                stderr(&output)
            );
            let said = done(&weald(scratch.path(), &["recover", "image"]));
            assert!(said.contains("generation 1 has a whole footer"), "{said}");
            assert!(fs::read(&image).unwrap() == first);
        }
        check(&image);
    }
    assert!(killed_count >= 5, "only {killed_count} were killed in time");
    // An image with half of the next generation.
    fs::write(&image, &both[..(first.len() + both.len()) / 2]).unwrap();
    done(&weald(scratch.path(), &["recover", "image"]));
    assert!(fs::read(&image).unwrap() == first);
    eprintln!("{torn_count} of {killed_count} kills left a tail");
}

/// Would catch: an image whose base is not found for a mount, or that stores data of its base
/// again.
#[test]
fn images_on_images_are_built_and_mounted() {
    let scratch = Scratch::new("256m");
    let run = |args: &[&str]| weald(scratch.path(), args);
    let source = scratch.dir("tree");
    (0..20).for_each(|n| fs::write(source.join(format!("f{n}")), lines(n, 100_000)).unwrap());
    done(&run(&["build", "-q", "tree", "v1"]));
    fs::write(source.join("new"), noise(7, 10_000)).unwrap();
    let said = done(&run(&["build", "--base", "v1", "tree", "v2"]));
    assert!(said.contains("whole files in bases"), "{said}");
    let [one, two] = ["v1", "v2"].map(|name| fs::metadata(scratch.at(name)).unwrap().len());
    assert!(two < 20_000 && one > 100_000, "{one} {two}");
    done(&run(&["check", "v2"]));
    assert!(done(&run(&["info", "v2"])).contains("base                v1, image digest"));
    let dir = scratch.dir("elsewhere");
    scratch.dir("mnt");
    fs::rename(scratch.at("v1"), dir.join("other")).unwrap();
    let lost = run(&["mount", "v2", "mnt"]);
    assert_eq!(lost.status.code(), Some(2));
    assert!(
        stderr(&lost).contains("v1 with image digest"),
        "{}",
        stderr(&lost)
    );
    done(&run(&["check", "--base-dir", "elsewhere", "v2"]));
    done(&run(&["mount", "-o", "basedir=elsewhere", "v2", "mnt"]));
    for name in names(&source) {
        assert!(
            fs::read(source.join(&name)).unwrap()
                == fs::read(scratch.at("mnt").join(&name)).unwrap()
        );
    }
    done(&run(&["umount", "mnt"]));
}
