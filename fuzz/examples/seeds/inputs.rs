//! Seeds from other formats that Weald reads: filter rules, tar, mtree, dumps, OCI, EROFS.

use crate::Corpus;
use crate::images::tree;
use std::fs;
use std::path::Path;
use std::process::Command;
use weald_fuzz::oci::{ARCHIVE, DESCRIBED, LAYERS, archive_of};
use weald_testkit::oci::{Tar, digest};

/// Seeds for `filter` and `mode`.
pub fn rules(corpus: &Corpus) {
    for seed in [
        &b"- *.o\n+ /a/**/b\n- [a-z]?\xffa/x/b"[..],
        b"*/\n!\n# c\n\\*\xffa*",
        b"***/a[^!]/\xffz/a",
    ] {
        corpus.put("filter", seed);
    }
    for seed in [
        &b"\xff\x01u+rwX,go-w"[..],
        b"\0\x02755",
        b"\0\0D+x,Fa=g",
        b"\x11\x03ug=o+st",
    ] {
        corpus.put("mode", seed);
    }
}

/// Seeds for `tar` and `mtree`: streams of GNU tar, and descriptions in every form.
pub fn streams(corpus: &Corpus, dir: &Path) {
    let script = "mkdir -p in/dir; cd in
        echo text > dir/file; ln dir/file link; ln -s dir/file sym; mkfifo fifo
        echo x > $(printf 'n%.0s' $(seq 120))
        truncate -s 40K sparse
        echo data | dd of=sparse bs=4K seek=5 conv=notrunc status=none";
    let run = |script: &str| {
        let mut command = Command::new("bash");
        let output = command.args(["-ec", script]).current_dir(dir).output();
        let output = output.expect("bash");
        assert!(output.status.success(), "{script}");
        output.stdout
    };
    run(script);
    for options in [
        "--format=pax --sparse",
        "--format=pax --sparse --sparse-version=0.0",
        "--format=pax --sparse --sparse-version=0.1",
        "--format=gnu --sparse",
        "--format=oldgnu --sparse",
        "--format=ustar --exclude='nnn*'",
        "--format=v7 --exclude='nnn*' --exclude=fifo",
    ] {
        let script = format!(
            "tar -c {options} --blocking-factor=2 --mtime=@1.5 --owner=0 --group=0 -C in ."
        );
        corpus.put("tar", &run(&script));
    }
    for seed in [
        &b"#mtree\n/set type=file uid=0 gid=0 mode=0644\n. type=dir mode=0755\n\
           \x20   a\\sb\\M-C\\M-$ size=0 \\\n time=-5.7\n    d type=dir\n    ..\n..\n"[..],
        b"./d type=dir\n./d/l type=link link=x\\040y\n/unset all\n\
          ./d/c type=char device=native,5,0x6 uname=root\n",
        b"./f type=file size=0 \
          sha256=e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855 \
          flags=none nlink=2\n",
    ] {
        corpus.put("mtree", seed);
    }
}

/// Seeds for `dump`: each kind of entry, escapes, xattrs.
pub fn dumps(corpus: &Corpus) {
    let digest = "a".repeat(64);
    let text = format!(
        "/ 0 40755 3 0 0 0 1000000000.5 - - - user.a=\\x00\\n\\\\ security.x\\x3dy=\n\
         /f 70 104755 2 0 0 0 -1.999999999 ab/cd - {digest}\n\
         /l 1 120777 1 0 0 0 0.0 \\x2d - -\n\
         /d 0 20600 1 0 0 17592186110211 0.0 - - -\n\
         /s 5 100644 1 1000 4294967295 0 0.0 - hello -\n\
         /g 0 @120000 - - - - 0.0 /f - -\n"
    );
    corpus.put("dump", text.as_bytes());
}

/// Seeds for `oci`: an archive of a layout, one of `docker save`, layers of tar, and described
/// layers.
pub fn containers(corpus: &Corpus) {
    let lower = Tar::default()
        .dir("d/")
        .file("d/a", b"text")
        .symlink("s", "d");
    let upper = Tar::default()
        .file("d/.wh.a", b"")
        .hard_link("b", "s")
        .file("d/.wh..wh..opq", b"");
    let layers = [lower.finish(), upper.finish()];
    let put = |kind: u8, bytes: &[u8]| corpus.put("oci", &[&[kind], bytes].concat());
    put(ARCHIVE, &archive_of(&layers));
    let config = format!(r#"{{"rootfs":{{"diff_ids":["{}"]}}}}"#, digest(&layers[0]));
    let saved = Tar::default()
        .file(
            "manifest.json",
            br#"[{"Config":"c","RepoTags":["x:1"],"Layers":["l/layer.tar"]}]"#,
        )
        .file("c", config.as_bytes())
        .file("k/layer.tar", &layers[0])
        .symlink("l/layer.tar", "../k/layer.tar");
    put(ARCHIVE, &saved.finish());
    let pieces = layers.iter().flat_map(|layer| {
        let len = (layer.len() as u16).to_le_bytes();
        [&len[..], layer].concat()
    });
    put(LAYERS, &pieces.collect::<Vec<u8>>());
    put(
        DESCRIBED,
        b"\x01\x01d\0\x02\x03d/a\x04text\x03\x01s\x01d\0\
          \x06\x01d\x01a\x04\x01b\x01s\x07\x01d\0\x05\x01x\0",
    );
}

/// Seeds for `erofs`: images of mkfs.erofs with every layout that it writes. The images of a later
/// one are those of the tests.
pub fn erofs(corpus: &Corpus, dir: &Path) {
    let (root, image) = (dir.join("erofs"), dir.join("erofs.img"));
    fs::create_dir(&root).unwrap();
    tree(&root, 1);
    // A sparse file and noise would be most of the image.
    fs::remove_file(root.join("sparse")).unwrap();
    fs::remove_file(root.join("noise")).unwrap();
    for options in [
        &[][..],
        &["--chunksize=4096"],
        &["--chunksize=4096", "-Eforce-chunk-indexes"],
        &["-zlz4"],
        &["-zlz4hc", "-C65536", "-Eztailpacking"],
        &["-zlz4", "-Elegacy-compress"],
        &["-zlz4", "-Eztailpacking,legacy-compress"],
    ] {
        let status = Command::new("mkfs.erofs")
            .arg("--quiet")
            .args(options)
            .args([&image, &root])
            .status();
        assert!(status.is_ok_and(|s| s.success()), "mkfs.erofs: {options:?}");
        corpus.put("erofs", &fs::read(&image).unwrap());
    }
    let newer = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/erofs/tests/images");
    for entry in fs::read_dir(newer).unwrap() {
        corpus.put("erofs", &fs::read(entry.unwrap().path()).unwrap());
    }
}
