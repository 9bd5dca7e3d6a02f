//! `weald build --from-image`: trees of EROFS images. Needs root and mkfs.erofs(1).
use crate::support::Bench;
use std::fs;
use std::path::Path;
use weald_testkit::compare::assert_same;
use weald_testkit::{CompareOptions, Rng, torture};

/// The tree digest of an image.
fn tree_digest(bench: &Bench, image: &str) -> String {
    let info = bench.weald(["info", "--json", image]).expect(0, "").json();
    let digest = info[0]["tree_digest"].as_str();
    digest.expect("a tree digest").to_owned()
}

/// Makes the torture tree in `source`, as far as mkfs.erofs 1.5 keeps it: names of 255 bytes lose
/// the last one, holes become zeros, and files of many terabytes would be read for hours.
fn torture_tree(bench: &Bench) {
    fs::create_dir(bench.at("source")).expect("mkdir");
    let options = torture::Options {
        seed: 17,
        big: false,
    };
    torture::make(&bench.at("source"), &options).expect("torture tree");
    bench.sh("rm -r source/huge
        find source -depth -regextype posix-extended -regex '.*/[^/]{255}' -exec rm -r {} +
        cp -a --sparse=never source dense; rm -r source; mv dense source");
}

// Would catch: anything that is lost on the way through an EROFS image, in any of its layouts.
#[test]
fn the_torture_tree_comes_back() {
    let bench = Bench::new();
    torture_tree(&bench);
    bench
        .weald(["build", "-q", "-l", "1", "source", "direct"])
        .expect(0, "");
    let expected = tree_digest(&bench, "direct");
    for options in [
        "",
        "--chunksize=4096",
        "-zlz4 -C65536 -Eztailpacking",
        "-zlz4hc -Elegacy-compress,ztailpacking",
    ] {
        bench.sh(&format!("mkfs.erofs --quiet -x2 {options} erofs source"));
        let args = [
            "build",
            "-q",
            "-l",
            "1",
            "-f",
            "--from-image",
            "erofs",
            "image",
        ];
        bench.weald(args).expect(0, "");
        assert_eq!(tree_digest(&bench, "image"), expected, "{options}");
    }
    bench.sh("$WEALD extract -q image out");
    let options = CompareOptions {
        holes: false,
        ..CompareOptions::default()
    };
    assert_same(&bench.at("source"), &bench.at("out"), &options);
}

// Would catch: an image of a later mkfs.erofs (fragments, shared clusters, later codecs) that gives
// other files or is refused, and a codec that is refused without its name.
#[test]
fn images_of_a_newer_mkfs_come_back() {
    let bench = Bench::new();
    let images = Path::new(env!("CARGO_MANIFEST_DIR")).join("../erofs/tests/images");
    let of = |name: &str| images.join(name).display().to_string();
    let build = |name: &str, target: &str| {
        let source = of(name);
        bench.weald(["build", "-q", "-l", "1", "--from-image", &source, target])
    };
    build("fragments.erofs", "fragments").expect(0, "");
    let expected = tree_digest(&bench, "fragments");
    for name in [
        "all-fragments",
        "dedupe",
        "old-index",
        "zstd-tails",
        "zstd-all",
        "two-codecs",
        "deflate",
        "deflate-all",
    ] {
        build(&format!("{name}.erofs"), name).expect(0, "");
        assert_eq!(tree_digest(&bench, name), expected, "{name}");
    }
    let output = build("lzma.erofs", "lzma");
    let text = "not supported in EROFS images: compressed with MicroLZMA";
    assert_eq!(output.code, Some(2), "{}", output.stderr);
    assert!(output.stderr.contains(text), "{}", output.stderr);
    assert!(!bench.at("lzma").exists());
}

// Would catch: a real tree that differs, and a store that keeps other files than the image has.
#[test]
fn a_real_tree_comes_into_a_store() {
    let bench = Bench::new();
    bench.sh("mkfs.erofs --quiet -zlz4hc -C65536 erofs /usr/lib/python3
        $WEALD build -q -l 1 /usr/lib/python3 direct
        $WEALD store create -q store
        $WEALD store add -q -l 1 store --name python --from-image erofs");
    let expected = tree_digest(&bench, "direct");
    assert_eq!(tree_digest(&bench, "store:python"), expected);
    bench.sh("$WEALD store check -q store");
}

// Would catch: options that are forgotten for this source.
#[test]
fn rules_and_attributes_apply() {
    let bench = Bench::new();
    bench.sh(
        "mkdir -p source/keep source/drop; echo 1 > source/keep/a; echo 2 > source/drop/b
        ln source/drop/b source/keep/linked
        mkfs.erofs --quiet erofs source
        $WEALD build -q --exclude /drop/ --owner 5:6 --from-image erofs image",
    );
    let listed = bench.sh("$WEALD find image --printf '%p %U %G\\n'");
    assert_eq!(listed, ". 5 6\nkeep 5 6\nkeep/a 5 6\nkeep/linked 5 6\n");
    assert_eq!(bench.sh("$WEALD cat image keep/linked"), "2\n");
}

// Would catch: a source that cannot be read and is not named, or is named without a reason.
#[test]
fn bad_sources_are_refused() {
    let bench = Bench::new();
    bench.sh(
        "mkdir source; seq 100000 > source/a; mkfs.erofs --quiet -zlz4 erofs source
        head -c 70000 erofs > short; seq 1000 > text; touch empty; mkdir dir
        mkfs.erofs --quiet --chunksize=4096 --blobdev=blob two source
        $WEALD build -q source objects.weald
        $WEALD export composefs -q objects.weald --image composefs",
    );
    let refused = |source: &str, expected: &str| {
        let output = bench.weald(["build", "-q", "--from-image", source, "image"]);
        assert_eq!(output.code, Some(2), "{source}: {}", output.stderr);
        assert!(output.stderr.contains(expected), "{}", output.stderr);
        assert!(!bench.at("image").exists());
    };
    refused("short", "weald: short: the EROFS image is damaged: blocks:");
    refused("text", "weald: text: not an EROFS image");
    refused(
        "empty",
        "weald: empty: not an EROFS image: the file is empty",
    );
    refused("dir", "weald: dir: ");
    refused("gone", "weald: gone: No such file");
    refused("-", "which standard input does not allow: name a file");
    refused(
        "two",
        "not supported in EROFS images: data on other devices",
    );
}

// Would catch: a panic, a hang, and damage without a word about the place.
#[test]
fn damaged_images_are_refused_with_the_file() {
    let bench = Bench::new();
    bench.sh(
        "mkdir -p source/a/b; for n in 1 2 3; do seq ${n}0000 > source/a/$n; done
        ln source/a/1 source/a/b/one; ln -s 1 source/a/link; setfattr -n user.x -v y source/a/1",
    );
    let mut rng = Rng::new(23);
    for options in ["-zlz4", "--chunksize=4096", "-zlz4 -Eztailpacking"] {
        bench.sh(&format!("mkfs.erofs --quiet {options} erofs source"));
        let whole = fs::read(bench.at("erofs")).expect("an image");
        let mut error_count = 0;
        for _ in 0..40 {
            let mut bytes = whole.clone();
            // The metadata lie in the first blocks of these images.
            for part in [8192, 8192, whole.len() as u64] {
                let at = rng.below(part - 1152) as usize + 1152;
                bytes[at] ^= 1 << rng.below(8);
            }
            bytes[1032] &= !1;
            fs::write(bench.at("damaged"), bytes).expect("write");
            let args = [
                "build",
                "-q",
                "-l",
                "0",
                "-f",
                "--from-image",
                "damaged",
                "image",
            ];
            let output = bench.weald(args);
            match output.code {
                Some(0) => {}
                Some(2) => {
                    error_count += 1;
                    assert!(
                        output.stderr.starts_with("weald: damaged: "),
                        "{}",
                        output.stderr
                    );
                }
                _ => panic!("{options}: {output:?}"),
            }
        }
        assert!(error_count > 0, "{options}: no damage was found");
    }
}
