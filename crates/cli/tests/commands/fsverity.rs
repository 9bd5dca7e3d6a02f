//! fs-verity digests that an image keeps: `weald build --fsverity`.
use crate::support::Bench;
use std::fs;

/// A tree with an empty file, holes, equal files, links, several blocks, and what recipes make; its
/// image without digests, and the digests that are computed from it.
fn bench() -> Bench {
    let bench = Bench::new();
    bench.sh(
        "mkdir -p tree/dir; cd tree; : > empty; seq 300000 > text; seq 4096 > dir/short
         cp text dir/equal; ln text dir/link; truncate -s 5G hole; echo x >> hole
         truncate -s 1M zeros; head -c 4096 text > page; seq 9000 40000 | gzip -n > dir/some.gz
         seq 9000 40000 > plain; i=0; while [ $i -lt 5000 ]; do echo $i > dir/$i; i=$((i+1)); done
         cd ..; $WEALD build -q tree bare; $WEALD sum --fsverity bare > sums",
    );
    bench
}

/// Fails unless the image keeps digests, they are right, and they are those of `sums`.
#[track_caller]
fn assert_kept(bench: &Bench, image: &str, sums: &str) {
    bench.sh(&format!(
        "$WEALD info {image} | grep -q '^fs-verity digests *kept$'
         $WEALD check -q {image}; $WEALD sum --fsverity {image} | cmp - {sums}"
    ));
    let info = bench.weald(["info", "--json", image]).expect(0, "").json();
    assert_eq!(info[0]["has_fsverity"], true);
    let sections = info[0]["sections"].as_array().expect("sections");
    let found = sections.iter().find(|row| row["section"] == "fsverity");
    assert_eq!(
        found.expect("section")["item_count"],
        info[0]["content_count"]
    );
}

/// Would catch: kept digests that are not the computed ones (of holes, recipes, equal files, whole
/// pages), a tree digest that depends on them, and bytes that depend on the number of threads.
#[test]
fn kept_digests_are_the_computed_ones() {
    let bench = bench();
    bench.sh("$WEALD build -q --fsverity tree kept
              $WEALD build -q --fsverity --threads 1 tree one; cmp kept one
              $WEALD info bare | grep -q '^fs-verity digests *not kept$'
              tar -C tree -cS . | $WEALD build -q --fsverity - streamed");
    assert_kept(&bench, "kept", "sums");
    assert_kept(&bench, "streamed", "sums");
    let digest = |image| bench.weald(["info", "--json", image]).json()[0]["tree_digest"].clone();
    assert_eq!(digest("kept"), digest("bare"));
}

/// Would catch: a digest that is printed because the image keeps it: the image's data is damaged.
#[test]
fn kept_digests_are_not_believed() {
    let bench = Bench::new();
    bench.sh("mkdir tree; echo unique-content > tree/file
              $WEALD build -q -l 0 --fsverity tree kept; $WEALD sum --fsverity kept > sums
              $WEALD build -q -l 0 tree bare; $WEALD sum --fsverity bare | cmp - sums
              sed -i s/unique-content/unique-contenz/ kept
              if $WEALD check -q kept > said 2>&1; then exit 1; fi
              if $WEALD sum --fsverity kept > said 2>&1; then exit 1; fi");
}

/// Would catch: a generation whose digests are missing or belong to other contents.
#[test]
fn appended_generations_keep_them() {
    let bench = bench();
    bench.sh("$WEALD build -q --fsverity tree kept; cp bare added
              echo new > tree/new; seq 7 > tree/text; rm tree/plain
              $WEALD build -q --append tree kept; $WEALD build -q --append --fsverity tree added
              $WEALD build -q --append tree bare; $WEALD sum --fsverity bare > new-sums
              $WEALD info bare | grep -q '^fs-verity digests *not kept$'");
    assert_kept(&bench, "kept", "new-sums");
    assert_kept(&bench, "added", "new-sums");
    bench.sh("$WEALD sum --fsverity --generation 1 kept | cmp - sums");
}

/// Would catch: contents of a base image without a digest, with or without digests in the base.
#[test]
fn images_on_bases_keep_them() {
    let bench = bench();
    bench.sh(
        "$WEALD build -q --fsverity tree kept; echo new > tree/new; seq 7 > tree/page
              $WEALD build -q --fsverity --base bare tree on-bare
              $WEALD build -q --fsverity --base kept tree on-kept
              $WEALD build -q tree all; $WEALD sum --fsverity all > new-sums",
    );
    assert_kept(&bench, "on-bare", "new-sums");
    assert_kept(&bench, "on-kept", "new-sums");
}

/// Would catch: digests that get lost when an image is rewritten, packed anew, imported, exported
/// or continued in a store.
#[test]
fn copies_keep_them() {
    let bench = bench();
    bench.sh("$WEALD build -q --fsverity tree kept
              $WEALD rewrite -q --codec lz4 kept lz4; $WEALD rewrite -q --repack kept packed
              $WEALD store create -q store; $WEALD store import -q store kept
              $WEALD store export store:kept exported; cmp kept exported
              $WEALD store add -q --fsverity store tree --name tree-1
              seq 7 > tree/text; rm tree/plain; $WEALD build -qf tree bare
              $WEALD sum --fsverity bare > new-sums
              $WEALD store add -q store tree --name tree-2; $WEALD store check -q store");
    for image in ["lz4", "packed", "store:kept", "store:tree-1"] {
        assert_kept(&bench, image, "sums");
    }
    assert_kept(&bench, "store:tree-2", "new-sums");
}

/// Would catch: a view or objects that differ with kept digests, and objects that count for an
/// image whose contents nobody read.
#[test]
fn views_use_them() {
    let bench = bench();
    let export = "$WEALD export composefs -q";
    bench.sh(&format!(
        "$WEALD build -q --fsverity tree kept
         {export} bare --image bare.cfs --objects bare-objects
         {export} kept --image kept.cfs --objects kept-objects
         cmp bare.cfs kept.cfs; diff -r bare-objects kept-objects
         $WEALD export dump kept > kept.dump; $WEALD export dump bare | cmp - kept.dump
         {export} -f kept --image kept.cfs --objects kept-objects; cmp bare.cfs kept.cfs"
    ));
    bench.sh(&format!(
        "mkdir one; printf '%0500d\\n' 7 > one/file; $WEALD build -q -l 0 --fsverity one true
         {export} true --image true.cfs --objects objects; cp true lie"
    ));
    let bytes = fs::read(bench.at("true")).expect("image");
    assert!(bytes.len() > 500);
    bench.sh(&format!(
        "zeros=$(printf '%0100d' 0); ones=$(printf '%0100d' 1); sed -i s/$zeros/$ones/ lie
         if {export} lie --image lie.cfs --objects objects 2> said; then exit 1; fi
         test ! -e lie.cfs; test -s said"
    ));
}
