//! Images of SquashFS as sources: what mksquashfs packs must come back.

use super::{rich, status, tree_digest};
use crate::support::Bench;
use std::fs;

/// Makes the source's times what SquashFS holds: whole seconds since 1970, in 32 bits.
fn times_fit(bench: &Bench) {
    bench.sh(
        "touch -d @1600000000 source/last; touch -d @5 source/later; touch -d @1500000000 source
        find source -print0 | while IFS= read -r -d '' f; do
          touch -h -d @$(stat -c %Y \"$f\") \"$f\"; done",
    );
}

/// Would catch: a codec, a layout of inodes or an attribute that is read as something else.
#[test]
fn every_codec_gives_the_tree_that_mksquashfs_packed() {
    let bench = rich();
    bench.sh(
        "mkdir source/many; cd source/many; seq 700 | xargs touch; ln 1 2-linked
        head -c 3000000 /dev/urandom > ../noise; seq 400000 > ../text
        (cat ../noise; truncate -s +5M /dev/stdout; seq 9) > ../both
        head -c 1500 /dev/zero | tr '\\0' v > value
        setfattr -n user.long -v $(cat value) 3; setfattr -n user.long -v $(cat value) 4
        setfattr -n trusted.t -v x 5; setfattr -n security.s -v y 6; setfattr -h -n trusted.l -v z \
         ../long-target; setfattr -n trusted.d -v w .",
    );
    times_fit(&bench);
    bench.sh("$WEALD build -q -l 1 source direct");
    for options in [
        "-comp gzip",
        "-comp xz -Xbcj x86",
        "-comp lz4",
        "-comp zstd -b 4096",
        "-comp gzip -b 1M -no-fragments -no-exports",
        "-comp gzip -noI -noD -noF -noX",
        "-comp zstd -always-use-fragments -no-duplicates",
    ] {
        bench.sh(&format!(
            "rm -f image squash; mksquashfs source squash -noappend -quiet -no-progress {options} \
             > /dev/null
             $WEALD build -q -l 1 squash image; $WEALD check -q image"
        ));
        // Holes lie elsewhere: SquashFS has them in units of a block.
        let reported = bench.weald(["diff", "image", "direct"]).text();
        assert_eq!(reported, "", "{options}");
    }
    // Holes are kept as such.
    let blocks = bench.sh("rm -rf out; $WEALD extract -q image out; stat -c %b out/both");
    assert!(blocks.trim().parse::<u64>().unwrap() < 8000, "{blocks}");
}

/// Would catch: a tree that differs from that of unsquashfs where images are made in other ways,
/// and a source that the options do not reach.
#[test]
fn the_tree_is_that_of_unsquashfs() {
    let bench = Bench::new();
    bench.sh(
        "mkdir -p a/deep b; seq 9000 > a/deep/n; ln a/deep/n a/linked; echo x > b/x
        touch -h -d @1234567890 a/deep/n a/deep a b/x b
        mksquashfs a b squash -noappend -quiet -no-progress -keep-as-directory > /dev/null
        mksquashfs b squash -quiet -no-progress -p 'dev c 660 0 6 1 3' -p 'run d 1777 5 6' \
         > /dev/null
        unsquashfs -q -n -d out squash > /dev/null; $WEALD build -q squash image
        $WEALD build -q out direct",
    );
    assert_eq!(tree_digest(&bench, "image"), tree_digest(&bench, "direct"));
    bench.sh("rm image; $WEALD build -q --exclude deep --owner 7:8 --from-image squash image");
    let listed = bench.sh("$WEALD find image --name linked --printf '%p %U %G\\n'");
    assert_eq!(listed, "a/linked 7 8\n");
    let listed = bench.sh("$WEALD build -q --list squash | sort | head -3");
    assert_eq!(listed, ".\na\na/deep\n");
    bench.sh("$WEALD store create -q s; $WEALD store add -q s --name n squash");
    assert_eq!(tree_digest(&bench, "s:n"), tree_digest(&bench, "direct"));
}

/// Would catch: an image of a codec that is not read, or of another version, without its name.
#[test]
fn what_is_not_read_is_named() {
    let bench = Bench::new();
    bench.sh(
        "mkdir source; seq 9 > source/n; mksquashfs source lzo -quiet -no-progress -comp lzo \
         > /dev/null
        mksquashfs source gz -quiet -no-progress > /dev/null; head -c 100 gz > short
        (head -c 28 lzo; printf '\\3'; tail -c +30 lzo) > old
        (head -c 64 lzo; printf '\\377\\377\\377\\377'; tail -c +69 lzo) > far",
    );
    for (script, expected) in [
        ("$WEALD build -q lzo image", "compressed with LZO"),
        ("$WEALD build -q short image", "it is cut short"),
        ("$WEALD build -q old image", "version 3.0"),
        (
            "$WEALD build -q - image < lzo",
            "a SquashFS image, which is read at any place",
        ),
        ("$WEALD build -q --from-image source image", "source"),
    ] {
        let (code, said) = status(&bench, script);
        assert!(code == 2 && said.contains(expected), "{script}: {said}");
        assert!(!bench.at("image").exists());
    }
}

/// Would catch: a panic, an endless loop or memory that damaged bytes choose.
#[test]
fn damaged_images_end_in_an_error_or_in_a_tree() {
    let bench = Bench::new();
    bench.sh(
        "mkdir -p source/a/b source/c; seq 3000 > source/a/n; seq 10 > source/a/b/m
        ln source/a/n source/c/l; truncate -s 1M source/hole; ln -s target source/s
        setfattr -n user.x -v y source/a
        mksquashfs source good -quiet -no-progress -noI -noX > /dev/null",
    );
    let good = fs::read(bench.at("good")).unwrap();
    let mut rng = weald_testkit::Rng::new(47);
    for round in 0..60 {
        let mut bytes = good.clone();
        for _ in 0..16 {
            // Superblock and tables, which lie at the end.
            let at = if rng.below(3) == 0 {
                8 + rng.below(88)
            } else {
                bytes.len() as u64 - 1 - rng.below(1200.min(bytes.len() as u64 - 1))
            };
            bytes[at as usize] = rng.below(256) as u8;
        }
        fs::write(bench.at("bad"), &bytes).unwrap();
        let limits = "ulimit -v 3000000; ulimit -t 20";
        let (code, said) = status(
            &bench,
            &format!("{limits}; $WEALD build -q -m 64M bad image"),
        );
        assert!(matches!(code, 0..=2), "round {round}: {code} {said}");
        assert!(!said.contains("panicked"), "round {round}: {said}");
    }
}
