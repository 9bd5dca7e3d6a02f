//! `weald rewrite` as a program.
#![allow(missing_docs)]

mod support;

use support::Bench;

/// Would catch: a rewritten image that is another tree, a target that is overwritten unasked, one that cannot replace itself.
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
