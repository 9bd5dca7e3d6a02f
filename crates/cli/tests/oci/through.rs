//! Layers whose members lie below symlinks, and other layers of umoci and skopeo: what they make of
//! them is what Weald imports.

use crate::support::Bench;
use std::fs;
use weald_testkit::oci::{Layer, LayoutDir, Tar};

/// Layers by name. Each is what container builders have written, or a small variant of it.
fn layers() -> Vec<(&'static str, Vec<Tar>)> {
    let tar = Tar::default;
    let merged = || tar().dir("usr/bin").symlink("bin", "usr/bin");
    let one = |tar: Tar| vec![tar];
    vec![
        ("below", one(merged().file("bin/foo", b"x"))),
        (
            "absolute",
            one(tar()
                .dir("usr/bin")
                .symlink("bin", "/usr/bin")
                .file("bin/foo", b"x")),
        ),
        (
            "above",
            one(tar()
                .dir("lib")
                .dir("usr")
                .symlink("usr/lib", "../lib")
                .file("usr/lib/x/foo", b"x")),
        ),
        (
            "escape",
            one(tar()
                .dir("out")
                .symlink("bin", "../../out")
                .file("bin/foo", b"x")),
        ),
        (
            "hard",
            one(tar()
                .dir("usr/bin")
                .file("usr/bin/a", b"a")
                .symlink("bin", "usr/bin")
                .hard_link("usr/bin/b", "bin/a")
                .hard_link("bin/c", "usr/bin/a")),
        ),
        (
            "late",
            one(tar()
                .dir("bin")
                .file("bin/foo", b"x")
                .symlink("bin", "usr/bin")
                .dir("usr")
                .dir("usr/bin")
                .file("usr/bin/x", b"y")),
        ),
        (
            "file",
            one(tar().dir("d/e").file("d/e/gone", b"x").file("d/e", b"file")),
        ),
        (
            "again",
            one(tar()
                .dir("d/e")
                .file("d/e/gone", b"x")
                .file("d", b"file")
                .dir("d")
                .dir("d/e")
                .file("d/e/kept", b"y")),
        ),
        (
            "directory",
            one(merged()
                .file("bin/foo", b"x")
                .dir("bin")
                .file("bin/own", b"y")),
        ),
        (
            "chain",
            one(tar()
                .dir("usr/bin")
                .symlink("b1", "usr")
                .symlink("b2", "b1/bin")
                .dir("b2/sub")
                .file("b2/sub/foo", b"x")),
        ),
        (
            "hidden",
            vec![
                tar().dir("bin").file("bin/old", b"x"),
                tar()
                    .dir("usr/bin")
                    .symlink("bin", "usr/bin")
                    .file("bin/new", b"y"),
            ],
        ),
        (
            "removed",
            vec![
                tar()
                    .dir("usr/bin")
                    .file("usr/bin/old", b"x")
                    .file("usr/bin/kept", b"k"),
                tar().symlink("bin", "usr/bin").file("bin/.wh.old", b""),
            ],
        ),
    ]
}

/// Would catch: a member that lies elsewhere than where umoci and podman put it.
#[test]
fn members_below_a_symlink_of_their_layer_lie_where_umoci_and_podman_put_them() {
    let bench = Bench::new();
    for (name, tars) in layers() {
        let layers: Vec<_> = tars
            .into_iter()
            .map(|tar| Layer::plain(tar.finish()))
            .collect();
        LayoutDir::create(&bench.0.path().join(name)).image(&layers);
        bench.sh(&format!(
            "skopeo --insecure-policy copy -q oci:{name} oci:tagged-{name}:v1
            umoci unpack --image tagged-{name}:v1 bundle-{name}
            $WEALD import oci -q {name} {name}.weald
            $WEALD check -q {name}.weald"
        ));
        let differs = bench.sh(&format!(
            "$WEALD diff --ignore mtime {name}.weald bundle-{name}/rootfs || test $? = 1"
        ));
        assert_eq!(differs, "", "{name}");
    }
    // The store of podman, with directories as layers. It refuses layers that have a path twice,
    // and its root has a mode of its own.
    let said = bench.sh("podman() {
            command podman --root \"$PWD/storage\" --runroot \"$PWD/runroot\" \\
                --storage-driver vfs \"$@\"
        }
        count=0
        for layout in tagged-*; do
            name=${layout#tagged-}
            id=$(podman pull -q oci:$layout:v1 2> log) || continue
            mounted=$(podman image mount $id)
            $WEALD diff --ignore mtime $name.weald $mounted > differs || test $? = 1
            sed \"/^\\* \\/: mode/d; s/^/$name: /\" differs
            podman image unmount $id > /dev/null
            count=$((count + 1))
        done
        echo $count layers");
    assert_eq!(said, "8 layers\n");
}

/// Would catch: layers of `umoci insert`, which end without blocks of zeros, taken for cut; and
/// layers that are really cut, taken for whole.
#[test]
fn a_layer_without_an_end_is_whole_if_its_digest_says_so() {
    let bench = Bench::new();
    bench.sh(
        "mkdir tree; echo x > tree/file; umoci init --layout l; umoci new --image l:v1
        umoci insert --image l:v1 tree /there
        $WEALD import oci -q l:v1 inserted.weald
        test \"$($WEALD cat inserted.weald there/file)\" = x",
    );
    let whole = Tar::default().file("a", b"x").file("b", b"y").finish();
    let mut layer = Layer::plain(whole[..2048].to_vec());
    LayoutDir::create(&bench.0.path().join("short")).image(std::slice::from_ref(&layer));
    bench.sh("$WEALD import oci -q short short.weald; $WEALD cat short.weald b");
    // The same bytes under the digest of the whole layer; and an end within a member.
    layer.diff_id = Layer::plain(whole.clone()).diff_id;
    LayoutDir::create(&bench.0.path().join("cut")).image(&[layer]);
    let within = Layer::plain(whole[..1100].to_vec());
    LayoutDir::create(&bench.0.path().join("within")).image(&[within]);
    for (name, words) in [("cut", "digest differs"), ("within", "cut short")] {
        let said = bench.sh(&format!(
            "$WEALD import oci -q {name} {name}.weald 2>&1 && exit 1; test ! -e {name}.weald"
        ));
        assert!(said.contains(words), "{said}");
    }
}

/// Would catch: a directory of skopeo that is refused, or read without its digests.
#[test]
fn a_directory_of_skopeo_is_imported() {
    let bench = Bench::new();
    let tar = Tar::default().dir("d").file("d/file", b"x").finish();
    LayoutDir::create(&bench.0.path().join("layout")).image(&[Layer::plain(tar)]);
    bench.sh("skopeo --insecure-policy copy -q oci:layout dir:flat
        $WEALD import oci -q layout one.weald; $WEALD import oci -q flat two.weald
        $WEALD diff one.weald two.weald; cmp one.weald two.weald");
    for (script, words) in [
        ("$WEALD import oci -q flat:v1 x.weald", "without a tag"),
        (
            "for f in flat/*; do case $(wc -c < $f) in 2[0-9][0-9][0-9]) echo > $f ;; esac; done
            $WEALD import oci -q flat x.weald",
            "damaged",
        ),
    ] {
        let said = bench.sh(&format!(
            "{{ {script}; }} 2>&1 && exit 1; test ! -e x.weald"
        ));
        assert!(said.contains(words), "{said}");
    }
    let manifest = bench.0.path().join("flat/manifest.json");
    fs::write(manifest, "{\"a\": 1}").expect("write");
    let said = bench.sh("$WEALD import oci -q flat x.weald 2>&1 || true");
    assert!(said.contains("expected an index with manifests"), "{said}");
}
