//! Small trees with every kind of file, forms of archives, and exports that fail.

use crate::debian::ALONE;
use crate::support::Bench;
use std::fs;
use weald_testkit::oci::{Layer, LayoutDir, Tar, digest};

/// Would catch: a kind of file, an attribute, a hole or a link that a layer loses, for umoci or for
/// Weald itself.
#[test]
fn every_kind_of_file_comes_back() {
    let bench = Bench::with_image();
    bench.sh(
        "mkfifo source/pipe; mknod source/disk b 7 9; setfacl -m u:99:r source/bin/tool
        setcap cap_net_raw+ep source/bin/tool; touch -d @1500000000 source
        $WEALD build -qf source image
        for compress in gzip none; do
            $WEALD export oci -q --compress $compress image out:$compress
            $WEALD import oci -q out:$compress back-$compress
            $WEALD diff image back-$compress
            umoci unpack --image out:$compress bundle-$compress
            $WEALD diff image bundle-$compress/rootfs
        done",
    );
    let sparse = bench.sh("stat -c '%s %b' bundle-none/rootfs/sparse");
    println!("the sparse file that umoci unpacks: bytes and blocks {sparse}");
    assert!(sparse.starts_with("1048576 "), "{sparse}");
}

/// Would catch: what a layer cannot hold, left out in silence.
#[test]
fn entries_without_a_form_in_a_layer_are_reported() {
    let bench = Bench::new();
    bench.sh(
        "mkdir -p source/.wh.dir; echo x > source/.wh.file; echo x > source/.wh.dir/below
        echo x > source/kept; python3 -c 'import socket as s
s.socket(s.AF_UNIX).bind(\"source/socket\")'
        $WEALD build -q source image",
    );
    let mark = "left out: layers of OCI cannot hold a name that begins with '.wh.', which means a \
                removed file there";
    let stderr =
        [".wh.dir", ".wh.dir/below", ".wh.file"].map(|name| format!("weald: {name}: {mark}\n"));
    let stderr = stderr.concat() + "weald: socket: left out: tar cannot hold a socket\n";
    let output = bench
        .weald(["export", "oci", "--json", "image", "out:v1"])
        .expect(1, &stderr);
    assert_eq!(output.json()[0]["left_out_count"], 4);
    bench
        .weald(["import", "oci", "-q", "out:v1", "back"])
        .expect(0, "");
    assert_eq!(bench.weald(["ls", "back"]).text(), "kept\n");
}

/// Would catch: an export that leaves half of an image, or changes the images that are there.
#[test]
fn a_failed_export_changes_nothing() {
    let bench = Bench::new();
    let said = bench.sh(
        "mkdir source small; head -c 3000000 /dev/urandom > source/large; echo x > source/file
        $WEALD build -q -l 0 source image
        mount -t tmpfs -o size=2m tmpfs small
        trap 'umount small' EXIT
        if $WEALD export oci -q image small/layout:v1 2>> said; then exit 1; fi
        ls -A small
        mkdir other; echo x > other/x; $WEALD build -q other other.weald
        $WEALD export oci -q other.weald small/layout:v1
        find small -type f -exec sha256sum {} + | sort > before
        if $WEALD export oci -q image small/layout:v2 2>> said; then exit 1; fi
        python3 - <<'END'
data = bytearray(open('image', 'rb').read())
data[len(data) // 2] ^= 1
open('image', 'wb').write(data)
END
        if $WEALD export oci -q image small/layout:v2 2>> said; then exit 1; fi
        find small -type f -exec sha256sum {} + | sort | cmp - before
        cat said",
    );
    println!("{said}");
    assert_eq!(said.matches("No space left on device").count(), 2, "{said}");
    assert!(said.ends_with(
        "weald: the image is damaged, so that nothing was exported: 'weald check' names all that \
         is damaged\n"
    ));
}

/// Would catch: a form of `docker save` that is not understood: paths by layer, layers that are
/// links to others, several images, tags with colons.
#[test]
fn archives_of_docker_save_are_read() {
    let bench = Bench::new();
    let first = Tar::default().file("a", b"first").finish();
    let second = Tar::default()
        .file(".wh.a", b"")
        .file("b", b"second")
        .finish();
    let config = |layers: &[&Vec<u8>]| {
        let ids: Vec<String> = layers
            .iter()
            .map(|layer| format!("\"{}\"", digest(layer)))
            .collect();
        format!(
            r#"{{"architecture":"amd64","os":"linux","rootfs":{{"diff_ids":[{}]}}}}"#,
            ids.join(",")
        )
    };
    let (one, two) = (config(&[&first]), config(&[&first, &second]));
    let name = |config: &str| digest(config.as_bytes()).replace("sha256:", "") + ".json";
    let saved = format!(
        r#"[{{"Config":"{}","RepoTags":["localhost:5000/x:1"],"Layers":["1/layer.tar"]}},
        {{"Config":"{}","RepoTags":["x:2"],"Layers":["1/layer.tar","2/layer.tar"]}},
        {{"Config":"{}","RepoTags":["x:3"],"Layers":["3/layer.tar","2/layer.tar"]}}]"#,
        name(&one),
        name(&two),
        name(&two)
    );
    let archive = Tar::default()
        .dir("1/")
        .file("1/layer.tar", &first)
        .file(&name(&one), one.as_bytes())
        .file(&name(&two), two.as_bytes())
        .file("2/layer.tar", &second)
        .symlink("3/layer.tar", "../1/layer.tar")
        .file("manifest.json", saved.as_bytes())
        .finish();
    fs::write(bench.at("saved.tar"), archive).expect("write");
    bench.sh("mkdir unpacked; tar -xf saved.tar -C unpacked; zstd -q saved.tar -o saved.tar.zst");
    for layout in ["saved.tar", "saved.tar.zst", "unpacked"] {
        for (tag, listed) in [
            ("localhost:5000/x:1", "a\n"),
            ("x:2", "b\n"),
            ("x:3", "b\n"),
        ] {
            // Symlinks are followed in the table of an archive, never in a directory.
            if (layout, tag) == ("unpacked", "x:3") {
                continue;
            }
            let layout = format!("{layout}:{tag}");
            bench
                .weald(["import", "oci", "-qf", &layout, "image"])
                .expect(0, "");
            assert_eq!(bench.weald(["ls", "image"]).text(), listed, "{layout}");
        }
    }
    let several = "weald: saved.tar: has 3 images: add the tag of one of them, as in LAYOUT:TAG; \
                   its tags are localhost:5000/x:1, x:2, x:3\n";
    bench
        .weald(["import", "oci", "saved.tar", "image2"])
        .expect(2, several);
}

/// Would catch: rules of the command line that layers ignore, and rules that a removed or linked
/// file escapes.
#[test]
fn rules_apply_to_the_tree_of_all_layers() {
    let bench = Bench::new();
    let lower = Tar::default()
        .file("keep", b"x")
        .file("drop.o", b"y")
        .file("dir/x", b"z");
    let upper = Tar::default()
        .hard_link("linked", "drop.o")
        .file("dir/.wh..wh..opq", b"");
    let layout = LayoutDir::create(&bench.at("layout"));
    layout.image(&[Layer::plain(lower.finish()), Layer::plain(upper.finish())]);
    bench
        .weald([
            "import",
            "oci",
            "-q",
            "--exclude",
            "*.o",
            "--owner",
            "7:8",
            "layout",
            "image",
        ])
        .expect(0, "");
    let listed = bench
        .weald(["find", "image", "--printf", "%p %U:%G\\n"])
        .text();
    assert_eq!(listed, ". 7:8\ndir 7:8\nkeep 7:8\nlinked 7:8\n");
    assert_eq!(bench.weald(["cat", "image", "linked"]).text(), "y");
    let judged = bench.sh(&format!(
        "{ALONE} alone skopeo inspect oci:layout | jq -r .Architecture"
    ));
    assert_eq!(judged, "amd64\n");
}
