//! `weald export erofs`: the kernel and fsck.erofs(1) read what it writes. Needs root and loop
//! devices.
use crate::support::Bench;
use rustix::mount::{UnmountFlags, unmount};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use weald_testkit::compare::assert_same;
use weald_testkit::rng::words;
use weald_testkit::{CompareOptions, Rng, torture};

/// An EROFS image that the kernel has mounted, until it is dropped.
struct Mounted(PathBuf);

impl Mounted {
    fn new(bench: &Bench, image: &str) -> Self {
        let dir = bench.at(format!("{image}.mnt"));
        fs::create_dir(&dir).expect("mkdir");
        bench.sh(&format!("mount -t erofs -o loop,ro {image} {image}.mnt"));
        Self(dir)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let unmounted = unmount(&self.0, UnmountFlags::DETACH);
        assert!(unmounted.is_ok() || std::thread::panicking());
    }
}

/// The kernel's EROFS tells no holes.
const NO_HOLES: CompareOptions = CompareOptions {
    rsync: true,
    holes: false,
    link_counts: true,
};

fn tree_digest(bench: &Bench, image: &str) -> String {
    let info = bench.weald(["info", "--json", image]).expect(0, "").json();
    let digest = info[0]["tree_digest"].as_str();
    digest.expect("a tree digest").to_owned()
}

/// Makes the image `image` of the torture tree in `source`, without files of exabytes.
fn torture_image(bench: &Bench) {
    fs::create_dir(bench.at("source")).expect("mkdir");
    let options = torture::Options {
        seed: 29,
        big: false,
    };
    torture::make(&bench.at("source"), &options).expect("torture tree");
    bench.sh("rm -r source/huge; $WEALD build -q -l 1 source image");
}

// Would catch: any field, name, xattr, link, hole or byte that is written wrongly.
#[test]
fn the_kernel_mounts_the_torture_tree() {
    let bench = Bench::new();
    torture_image(&bench);
    for (name, options) in [
        ("plain", ""),
        ("lz4", "--compress lz4 -m 64M"),
        ("lz4hc", "--compress lz4hc:12 -t 1"),
        ("zstd", "--compress zstd:3"),
    ] {
        bench.sh(&format!("$WEALD export erofs -q {options} image {name}"));
        let mounted = Mounted::new(&bench, name);
        assert_same(&bench.at("source"), &mounted.0, &NO_HOLES);
        // Our reader tells holes, too.
        bench.sh(&format!(
            "$WEALD build -q -l 1 -f --from-image {name} again"
        ));
        let digests = ["image", "again"].map(|image| tree_digest(&bench, image));
        assert_eq!(digests[0], digests[1], "{name}");
    }
}

// Would catch: structures that the kernel reads and fsck.erofs refuses.
#[test]
fn fsck_extracts_the_same_tree() {
    let bench = Bench::new();
    torture_image(&bench);
    for options in ["", "--compress lz4", "--compress lz4hc"] {
        bench.sh(&format!(
            "$WEALD export erofs -q -f {options} image erofs
             rm -rf out; fsck.erofs --extract=out erofs > log 2>&1 || {{ cat log >&2; exit 1; }}"
        ));
        // fsck.erofs 1.5 cuts files with holes at the end of their data and applies the umask.
        bench.sh("rm -r out/sparse out/hardlinks/*/{,*/}*sparse*");
        let differences = bench.sh(
            "rsync -rltOogDcn --delete --itemize-changes --exclude /sparse/ \
             --exclude '/hardlinks/**sparse*' source/ out/",
        );
        assert_eq!(differences, "", "{options}");
    }
}

// Would catch: clusters of several blocks, their last one, or data between them that are lost; and
// equal files that are stored twice.
#[test]
fn large_files_are_compressed_and_stored_once() {
    let bench = Bench::new();
    fs::create_dir(bench.at("source")).expect("mkdir");
    let (mut rng, mut text) = (Rng::new(4), Vec::new());
    for word in words(4, 1_000_000).split(|&b| b == b' ') {
        text.extend(b"a line of a file that can be compressed, ");
        text.extend(word);
    }
    let mut mixed = Vec::new();
    for _ in 0..40 {
        let start = rng.below(text.len() as u64 - 300_000) as usize;
        mixed.extend(&text[start..start + rng.below(300_000) as usize]);
        let len = rng.below(200_000) as usize;
        mixed.extend(rng.bytes(len));
    }
    fs::write(bench.at("source/text"), &text).expect("write");
    fs::write(bench.at("source/mixed"), &mixed).expect("write");
    let noise = rng.bytes(1_000_001);
    fs::write(bench.at("source/noise"), noise).expect("write");
    for len in (0..12_400).step_by(310) {
        let name = bench.at(format!("source/tail{len}"));
        fs::write(name, &text[len..2 * len]).expect("write");
    }
    bench.sh("for n in 1 2 3 4; do cp source/mixed source/copy$n; done
        $WEALD build -q -l 1 source image");
    let mut lens = Vec::new();
    for codec in ["", "--compress=lz4", "--compress=lz4hc", "--compress=zstd"] {
        let name = format!("erofs{}", lens.len());
        bench.sh(&format!("$WEALD export erofs -q {codec} image {name}"));
        let mounted = Mounted::new(&bench, &name);
        assert_same(&bench.at("source"), &mounted.0, &NO_HOLES);
        lens.push(fs::metadata(bench.at(name)).expect("stat").len());
    }
    let stored = text.len() + mixed.len() + 1_000_001;
    assert!(lens[0] < stored as u64 + 500_000, "{lens:?} of {stored}");
    assert!(lens.is_sorted_by(|a, b| a > b), "{lens:?}");
}

// Would catch: labels that are stored with each file, and those that the kernel does not find.
#[test]
fn xattrs_of_many_files_are_stored_once() {
    let bench = Bench::new();
    bench.sh(
        "mkdir source; for n in {1..900}; do echo $n > source/$n; done
        setfattr -n security.selinux -v system_u:object_r:usr_t:s0 source source/*
        setfattr -n user.long -v $(printf 'v%.0s' {1..3000}) source/*1
        setfattr -n user.own -v one source/77
        $WEALD build -q -l 1 source image; $WEALD export erofs -q image erofs",
    );
    let mounted = Mounted::new(&bench, "erofs");
    assert_same(&bench.at("source"), &mounted.0, &NO_HOLES);
    bench.sh("$WEALD build -q -l 1 --from-image erofs again");
    assert_eq!(tree_digest(&bench, "image"), tree_digest(&bench, "again"));
    let len = fs::metadata(bench.at("erofs")).expect("stat").len();
    assert!(len < 900 * 128, "{len} bytes");
}

// Would catch: bytes that depend on threads or time.
#[test]
fn the_image_is_always_the_same() {
    let bench = Bench::with_image();
    bench.sh("$WEALD export erofs -q --compress zstd -t 1 image a
        $WEALD export erofs -q --compress zstd -t 7 -m 1M image b
        cmp a b; fsck.erofs a > /dev/null 2>&1 || true
        $WEALD export erofs -q image c; fsck.erofs c");
}

// Would catch: an image that is left behind, and words that do not say what to do.
#[test]
fn bad_requests_are_refused() {
    let bench = Bench::with_image();
    fs::create_dir(bench.at("huge")).expect("mkdir");
    let file = fs::File::create(bench.at("huge/file")).expect("create");
    for run in 0..14_336 {
        file.write_all_at(b"data", run << 29).expect("write");
    }
    bench.sh("$WEALD build -q huge sparse; touch there");
    let refused = |args: &[&str], expected: &str| {
        let args = ["export", "erofs", "-q"].iter().chain(args);
        let output = bench.weald(args);
        assert_eq!(output.code, Some(2), "{}", output.stderr);
        assert!(output.stderr.contains(expected), "{}", output.stderr);
    };
    refused(&["sparse", "new"], "weald: file: a sparse file of ");
    refused(&["image", "there"], "there: ");
    refused(&["image", "-"], "name a file");
    refused(
        &["--compress=lzma", "image", "new"],
        "expected lz4, lz4hc or zstd",
    );
    refused(
        &["--compress=zstd:40", "image", "new"],
        "a level from 1 to 22",
    );
    refused(&["--compress=lz4:3", "image", "new"], "lz4 has no levels");
    refused(&["gone", "new"], "gone: ");
    assert!(!bench.at("new").exists());
}
