//! Debian roots, imported, compared, exported, and judged.

use crate::debian::{ALONE, debian};

/// Would catch: a file, attribute or removal of a layer that is lost, compared with what umoci
/// unpacks.
#[test]
fn an_imported_root_is_what_umoci_unpacks() {
    let bench = debian();
    let said = bench.sh("for tag in v1 v2; do
            umoci unpack --image layout:$tag unpacked-$tag
            $WEALD diff $tag.weald unpacked-$tag/rootfs
            $WEALD check -q $tag.weald
        done
        $WEALD diff v1.weald v2.weald > changes || test $? = 1
        grep -c . changes; grep -E '^[-+].*(hello$|doc/libc6/$|root/right$)' changes
        $WEALD stat --json v2.weald root/right | jq .nlink
        $WEALD store create -q store
        for tag in v1 v2; do $WEALD import oci --json layout:$tag store:$tag | jq .new_len; done \
            > lens
        $WEALD diff store:v2 v2.weald");
    println!("{said}");
    for line in ["+ usr/bin/hello", "- usr/share/doc/libc6/", "+ root/right"] {
        assert!(said.lines().any(|found| found == line), "{line}: {said}");
    }
    assert!(said.ends_with("2\n"), "{said}");
    let lens = bench.sh("cat lens");
    let lens: Vec<u64> = lens
        .lines()
        .map(|len| len.parse().expect("a length"))
        .collect();
    println!("new bytes of v1 and v2 in a store: {lens:?}");
    assert!(lens[1] < lens[0] / 10, "v2 is mostly v1: {lens:?}");
}

/// Would catch: a layout that skopeo or umoci refuses, digests that differ from theirs, a layer
/// that loses what the image has, and digests that depend on anything but the image.
#[test]
fn an_exported_root_is_valid_for_skopeo_and_umoci() {
    let bench = debian();
    let script = "
        for compress in gzip zstd none; do
            $WEALD export oci --json --compress $compress --config v2.json v2.weald \
                out:$compress > said
            $WEALD export oci -q --compress $compress --config v2.json v2.weald \
                again:$compress
            alone skopeo inspect oci:out:$compress > inspected
            test $(jq -r .manifest_digest said) = $(jq -r .Digest inspected)
            test $(jq -r .layer_digest said) = $(jq -r .Layers[0] inspected)
            alone skopeo inspect --config oci:out:$compress > config
            test \"$(jq -rc '[.config.Cmd[0],.config.Env[-1]]' config)\" = '[\"/bin/true\",\"A=1\"]'
            test $(jq -r .diff_id said) = $(jq -r .rootfs.diff_ids[0] config)
            alone skopeo copy -q oci:out:$compress dir:copied-$compress
            (cd copied-$compress; rm manifest.json version
                for blob in *; do echo \"$blob  $blob\"; done | sha256sum -c --quiet)
            test $(ls copied-$compress | wc -l) = 2
            $WEALD import oci -q -l 1 out:$compress back-$compress.weald
            $WEALD diff back-$compress.weald v2.weald
        done
        cmp out/index.json again/index.json
        for compress in gzip none; do
            umoci unpack --image out:$compress out-$compress
            umoci stat --image out:$compress > stat
            $WEALD diff v2.weald out-$compress/rootfs
        done
        alone skopeo copy -q oci:out:gzip docker-archive:saved.tar:example/root:v2
        alone skopeo copy -q oci:out:zstd oci-archive:archive.tar:v2
        gzip -k saved.tar
        for archive in saved.tar saved.tar:example/root:v2 saved.tar.gz archive.tar:v2; do
            $WEALD import oci -q -f -l 1 $archive archived.weald
            $WEALD diff archived.weald v2.weald
        done
        $WEALD store create -q export-store
        $WEALD store import -q export-store v2.weald
        $WEALD export oci -q --config v2.json export-store:v2 out:stored
        jq -r '.manifests[] | select(.annotations[] | . == \"gzip\" or . == \"stored\").digest' \
            out/index.json";
    let said = bench.sh(&format!("{ALONE}{script}"));
    println!("{said}");
    let digests: Vec<&str> = said.lines().collect();
    assert!(digests.len() == 2 && digests[0] == digests[1], "{said}");
}
