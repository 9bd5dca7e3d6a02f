//! Tests of `weald rewrite`.
#![allow(missing_docs)]

mod support;

use support::Bench;

/// Would catch: a rewritten image with another tree, a target that is overwritten without
/// `--force`, an image that cannot be rewritten in place.
#[test]
fn an_image_is_rewritten_beside_and_in_place() {
    let bench = Bench::with_image();
    let digest = |bench: &Bench, image: &str| {
        let info = bench.weald(["info", "--json", image]).expect(0, "");
        info.json()[0]["tree_digest"].as_str().unwrap().to_owned()
    };
    let before = digest(&bench, "image");
    let said = bench
        .weald(["rewrite", "--json", "-l", "2", "image", "new.weald"])
        .expect(0, "");
    assert_eq!(said.json()[0]["tree_digest"], before.as_str());
    assert_eq!(digest(&bench, "new.weald"), before);
    bench.weald(["check", "-q", "new.weald"]).expect(0, "");
    bench.weald(["diff", "image", "new.weald"]).expect(0, "");
    let again = ["rewrite", "-q", "--codec", "lz4", "new.weald", "new.weald"];
    let refused = bench.weald(again);
    assert_eq!(refused.code, Some(2));
    assert!(
        refused.stderr.contains("--force replaces it"),
        "{}",
        refused.stderr
    );
    let forced = [
        "rewrite",
        "-q",
        "--force",
        "--codec",
        "lz4",
        "new.weald",
        "new.weald",
    ];
    bench.weald(forced).expect(0, "");
    assert_eq!(digest(&bench, "new.weald"), before);
    bench.weald(["check", "-q", "new.weald"]).expect(0, "");
}

/// Would catch: a requested dictionary that is not made, or an unwanted one that stays.
#[test]
fn a_dictionary_can_be_added_and_removed() {
    let bench = Bench::new();
    let script = "mkdir tree; for i in $(seq 400); do seq -f \"$i: line %g of a file\" 1 $((i * \
     3)) > tree/$i; done";
    bench.sh(script);
    let packed = ["--block-size", "16K", "--codec", "zstd:3"];
    bench
        .weald([&["build", "-q", "tree", "none"][..], &packed].concat())
        .expect(0, "");
    let is_there = |image: &str| {
        let info = bench.weald(["info", "--json", image]).expect(0, "");
        let sections = info.json()[0]["sections"].as_array().unwrap().clone();
        sections
            .iter()
            .any(|s| s["section"] == "data" && s["codec"] == "zstd-dictionary")
    };
    let rewrite = |size: &str, from: &str, to: &str| {
        let words = ["rewrite", "-q", "--dictionary-size", size, from, to];
        bench.weald([&words[..], &packed].concat()).expect(0, "");
        bench.weald(["check", "-q", to]).expect(0, "");
        bench.weald(["diff", "none", to]).expect(0, "");
        is_there(to)
    };
    assert!(!is_there("none"));
    assert!(rewrite("32K", "none", "with"));
    assert!(!rewrite("0", "with", "without"));
}

/// Would catch: options of repacking without effect, a tree digest that changes without a reason or
/// stays although attributes change, an image that cannot be repacked in place.
#[test]
fn an_image_is_repacked() {
    let bench = Bench::with_image();
    let packed = |arguments: &[&str]| {
        let fixed = ["rewrite", "--json", "--force"];
        let arguments: Vec<&str> = fixed.iter().chain(arguments).copied().collect();
        let said = bench.weald(arguments).expect(0, "").json()[0].clone();
        said["tree_digest"].as_str().unwrap().to_owned()
    };
    let before = packed(&["--codec", "lz4", "image", "copy"]);
    for way in [
        ["--repack", "--quiet"].as_slice(),
        &["--order", "name"],
        &["--match-size", "64"],
        &["--dictionary-size", "64K"],
        &["--cluster-size", "4K"],
        &["--categorize", "none"],
        &["--mtime", "keep"],
    ] {
        let arguments = [way, &["image", "new"]].concat();
        if !way.contains(&"--quiet") {
            assert_eq!(packed(&arguments), before, "{way:?}");
        } else {
            let quietly = [&["rewrite", "-f"], arguments.as_slice()].concat();
            bench.weald(quietly).expect(0, "");
        }
        bench.weald(["check", "-q", "new"]).expect(0, "");
        bench.weald(["diff", "image", "new"]).expect(0, "");
    }
    assert_ne!(packed(&["--owner", "5:6", "new", "new"]), before);
    let shown = bench.weald(["stat", "--json", "new", "/"]).expect(0, "");
    assert_eq!(shown.json()[0]["uid"], 5);
    assert_eq!(shown.json()[0]["gid"], 6);
    assert_ne!(packed(&["--exclude", "*", "image", "new"]), before);
    assert!(bench.weald(["ls", "new"]).expect(0, "").stdout.is_empty());
}
