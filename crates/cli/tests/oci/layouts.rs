//! Small trees with every kind of file, forms of archives, and exports that fail.

use crate::debian::ALONE;
use crate::support::Bench;
use std::fs;
use weald_testkit::oci::{Layer, LayoutDir, TAR_ZSTD, Tar, digest};

/// Devices in a layer: 100 MB of tar.
const DEVICE_COUNT: u64 = 200_000;

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

/// Would catch: layers that fill memory or disk: very many devices, and zeros that a few bytes
/// announce.
#[test]
fn bombs_stay_within_memory() {
    let bench = Bench::new();
    let mut devices = Tar::default();
    for no in 0..DEVICE_COUNT {
        devices = devices.device(&format!("{:03}/{no}", no % 1000));
    }
    LayoutDir::create(&bench.at("devices")).image(&[Layer::plain(devices.finish())]);
    // A layer of 2 GiB of zeros behind the header of a file.
    let head = Tar::default().raw(b'0', "zeros", "", b"", 7 << 30);
    fs::write(bench.at("head"), &head.finish()[..512]).expect("write");
    bench.sh("(cat head; head -c 2G /dev/zero) | zstd -q -1 > zeros");
    let zeros = Layer {
        media_type: TAR_ZSTD,
        stored: fs::read(bench.at("zeros")).expect("read"),
        diff_id: digest(b""),
    };
    LayoutDir::create(&bench.at("bomb")).image(&[zeros]);
    let said = bench.sh("cat > peak.py <<'END'
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:]).returncode
print(code, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10)
END
        for layout in devices bomb; do
            python3 peak.py $WEALD import oci -q -l 1 -t 2 -m 160M $layout $layout.weald 2>> said
        done
        stat -c %s devices.weald
        cat said");
    println!("{said}");
    let lines: Vec<&str> = said.lines().collect();
    let [devices, bomb, image_len, error] = lines[..] else {
        panic!("{said}");
    };
    let peak = |line: &str, code: &str| -> u64 {
        let (found, peak) = line.split_once(' ').expect("two words");
        assert_eq!(found, code, "{said}");
        peak.parse().expect("a number")
    };
    assert!(peak(devices, "0") < 200 && peak(bomb, "2") < 200, "{said}");
    assert!(
        image_len.parse::<u64>().expect("a length") < 100_000,
        "{said}"
    );
    assert!(
        error.contains("more than 1073741824 bytes when decompressed"),
        "{said}"
    );
    assert!(!bench.at("bomb.weald").exists());
}
