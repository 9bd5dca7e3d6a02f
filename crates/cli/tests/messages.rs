//! Every kind of error that the command line prints, in one file for reviewers: `messages.golden`.
//! `WEALD_BLESS=1 cargo test -p weald-cli --test messages` rewrites it.
#![allow(missing_docs)]

mod support;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;
use support::{Bench, Output, run, weald_path};

/// Creates the files that the command lines need.
const PREPARE: &str = r#"
    mkdir -p src/dir mnt out/dir files run
    echo unique-content > src/file; echo other > src/dir/other; ln -s loop src/loop
    touch -h -d @1700000000 src/* src/dir/* src
    weald build -q -l 0 --categorize none src image; weald build -q src packed
    mkdir src2; echo unique-content > src2/file; seq 20000 > src2/noise
    weald build -q src2 base.weald; echo more > src2/more
    weald build -q --base base.weald src2 based
    mkdir elsewhere; mv base.weald elsewhere
    weald store create -q store; weald store import -q store image packed
    cp -a store lost; rm lost/meta; cp -a store older; rm older/images/packed
    cp older/images/image older/images/unknown
    weald store create -q volumes; weald volume create -q volumes:v
    mkdir marked-src; echo x > marked-src/.wh.file; weald build -q marked-src marked
    weald export oci -q --compress none image layout:v1; cp -a layout damaged-layout
    cp -a layout lost-layout; weald export oci -q marked layout:v2 2> /dev/null || true
    layer=$(cd layout; find blobs -size +4k); rm lost-layout/$layer
    printf x | dd of=damaged-layout/$layer conv=notrunc status=none
    mkdir no-manifest; cp layout/oci-layout no-manifest
    weald forest -q --fanout 2x2 grove; rm grove/0/0; echo x >> grove/1/1
    chmod 700 grove/1/0; touch -d @1800000000 grove/0 grove/1/1
    echo text > out/file; echo text > out/dir/other
    python3 - <<'END'
import os
image = open('image', 'rb').read()
def write(name, data):
    with open(name, 'wb') as file:
        file.write(data)
def flipped(at):
    data = bytearray(image)
    data[at] ^= 1
    return bytes(data)
write('damaged-superblock', flipped(20))
write('damaged-footer', flipped(len(image) - 40))
write('damaged-content', flipped(image.index(b'unique-content')))
write('cut', image[:-1])
write('interrupted', image + b'left behind by an append')
os.chdir('files')
write('empty', b'')
write('text', b'some text\n' * 100)
write('squashfs', b'hsqs' + bytes(4000))
write('erofs', bytes(1024) + b'\xe2\xe1\xf5\xe0' + bytes(3000))
write('dwarfs', b'DWARFS\x02\x05' + bytes(4000))
write('iso', bytes(32769) + b'CD001\x01' + bytes(4000))
write('ext4', bytes(1024 + 56) + b'\x53\xef' + bytes(4000))
write('xfs', b'XFSB' + bytes(4000))
write('btrfs', bytes(65536 + 64) + b'_BHRfS_M' + bytes(4000))
write('cramfs', b'\x45\x3d\xcd\x28' + bytes(4000))
write('tar', b'name' + bytes(253) + b'ustar\x0000' + bytes(4000))
write('gzip', b'\x1f\x8b\x08' + bytes(4000))
write('zip', b'PK\x03\x04' + bytes(4000))
write('xz', b'\xfd7zXZ\x00' + bytes(4000))
write('zstd', b'\x28\xb5\x2f\xfd' + bytes(4000))
write('bzip2', b'BZh91AY&SY' + bytes(4000))
write('lz4', b'\x04\x22\x4d\x18' + bytes(4000))
write('seven', b'7z\xbc\xaf\x27\x1c' + bytes(4000))
write('elf', b'\x7fELF' + bytes(4000))
write('script', b'#!/bin/sh\nexit\n' * 30)
write('zeros', bytes(4000))
END
    tar -cf whole.tar -C src . ; head -c 2000 whole.tar > short.tar
    cat whole.tar whole.tar > two.tar
    echo x > beside; tar -cPf absolute.tar "$PWD/beside"
    tar -c --transform='s,beside,../beside,' -P -f above.tar beside 2> /dev/null
    printf 'a\0b' > cut.list; printf 'a\nb\n' > lines.list; printf 'a\0b\0' > zeros.list
    printf '../a\0' > above.list; printf '#mtree\nfile type=file size=15\n' > missing.mtree
    printf '#mtree\nfile type=file size=7\n' > size.mtree
    printf '#mtree\nfile type=door\n' > bad.mtree
    printf 'function filter(entry) error("no") end' > raise.lua; printf 'function (' > syntax.lua
    printf 'function filter(entry) return entry.path ~= "file" or 1 end' > type.lua
    printf '? x\n' > bad.rules; printf 'fanout = "x"\n' > bad.toml"#;

/// Sections with their command lines.
const LINES: &[(&str, &[&str])] = &[
    (
        "Command lines",
        &[
            "weald",
            "weald nonsense",
            "weald buidl src x",
            "weald ls",
            "weald ls --nonsense image",
            "weald ls image --offset 1X",
            "weald ls image --digest 12",
            "weald ls image --cache lots",
            "weald ls image --generation x",
            "weald cat image",
            "weald find image --type q",
            "weald find image --size 1Q",
            "weald find image --newer yesterday",
            "weald find image --perm 9",
            "weald find image --printf %q",
            "weald find image --name '[a'",
            "weald find image --json --print0",
            "weald sum image --algorithm md5",
            "weald diff image src --ignore colour",
            "weald check image packed --generation 1",
            "weald completions csh",
            "weald umount",
        ],
    ),
    (
        "Images that cannot be opened",
        &[
            "weald ls gone",
            "weald ls -v gone",
            "weald ls src",
            "weald ls image/x",
            "weald ls damaged-superblock",
            "weald ls -v damaged-superblock",
            "weald ls damaged-footer",
            "weald ls cut",
            "weald ls interrupted",
            "weald ls newer-version",
            "weald ls newer-features",
            "weald ls based",
            "weald ls image --generation 7",
            "weald ls image --digest \
             0000000000000000000000000000000000000000000000000000000000000000",
            "weald ls image --offset 4096",
            "weald ls image --offset auto",
            "weald ls files/text --offset auto",
            "weald generations files/text",
            "weald generations interrupted",
            "weald recover files/text",
            "weald recover gone",
            "weald diff image files/text",
            "weald check gone damaged-footer image",
            "weald rewrite files/text x",
            "weald extract files/text x",
        ],
    ),
    (
        "Other formats",
        &[
            "weald ls files/empty",
            "weald ls files/text",
            "weald ls files/squashfs",
            "weald ls files/erofs",
            "weald ls files/dwarfs",
            "weald ls files/iso",
            "weald ls files/ext4",
            "weald ls files/xfs",
            "weald ls files/btrfs",
            "weald ls files/cramfs",
            "weald ls files/tar",
            "weald ls files/gzip",
            "weald ls files/zip",
            "weald ls files/xz",
            "weald ls files/zstd",
            "weald ls files/bzip2",
            "weald ls files/lz4",
            "weald ls files/seven",
            "weald ls files/elf",
            "weald ls files/script",
            "weald ls files/zeros",
            "weald mount files/squashfs mnt",
        ],
    ),
    (
        "EROFS images",
        &[
            "weald build --from-image files/text x",
            "weald build --from-image files/empty x",
            "weald build --from-image files/erofs x",
            "weald build --from-image src x",
            "weald build --from-image gone x",
            "weald build --from-image - x",
            "weald build --from-image --from tar files/erofs x",
            "weald export erofs image -",
            "weald export erofs image packed",
            "weald export erofs image gone/x",
            "weald export erofs gone x",
            "weald export erofs --compress lzma image x",
            "weald export erofs --compress lz4:1 image x",
            "weald export erofs --compress zstd:99 image x",
        ],
    ),
    (
        "Paths in images",
        &[
            "weald ls image gone",
            "weald ls image file/x",
            "weald stat image gone file",
            "weald cat image gone",
            "weald cat image dir",
            "weald cat image loop",
            "weald sum image gone",
            "weald tree image gone",
            "weald find image gone",
            "weald extract image x gone",
            "weald tar image gone > /dev/null",
        ],
    ),
    (
        "Damaged contents",
        &[
            "weald cat damaged-content file",
            "weald cat -v damaged-content file",
            "weald sum -t 1 damaged-content",
            "weald extract -t 1 damaged-content x",
            "weald check -t 1 damaged-content",
            "weald check -q damaged-content",
        ],
    ),
    (
        "Extraction",
        &[
            "weald extract -q -t 1 image out",
            "weald extract image files/text",
            "weald extract image files/text/x",
            "weald tar image > /dev/full",
            "weald ls image > /dev/full",
        ],
    ),
    (
        "Building",
        &[
            "weald build gone x",
            "weald build src image",
            "weald build src gone/x",
            "weald build src mnt",
            "weald build files/text x",
            "weald build -l 10 src x",
            "weald build --codec gzip src x",
            "weald build --codec zstd:99 src x",
            "weald build --codec zstd:x src x",
            "weald build --block-size 1K src x",
            "weald build --block-size 100M src x",
            "weald build --match-size 5000 src x",
            "weald build --dictionary-size 2M src x",
            "weald build --cluster-size 1 src x",
            "weald build -t 2 --memory 1M src x",
            "weald build --categorize none,colour src x",
            "weald build --order colour src x",
            "weald build --order-list gone src x",
            "weald build --hotness gone src x",
            "weald build --hotness files/text src x",
            "weald build --owner root src x",
            "weald build --group x src x",
            "weald build --mode u=q src x",
            "weald build --mtime never src x",
            "SOURCE_DATE_EPOCH=never weald build src x",
            "weald build --exclude-from gone src x",
            "weald build --filter '? x' src x",
            "weald build --filter 'merge bad.rules' src x",
            "weald build --explain-filter ../x src x",
            "weald build --script gone src x",
            "weald build --script syntax.lua src x",
            "weald build --script raise.lua src x",
            "weald build --script type.lua src x",
            "weald build --base gone src x",
            "weald build --base files/text src x",
            "weald build --base based src x",
            "weald build --append src files/text",
            "weald build --append src interrupted",
            "weald build --force --append src x",
            "weald build --contents-root src src x",
            "weald rewrite image image",
            "weald rewrite --codec gzip image x",
            "weald rewrite -l 10 image x",
            "(ulimit -f 1; weald build -l 0 src2 x)",
        ],
    ),
    (
        "Streams",
        &[
            "weald build - x < /dev/null",
            "weald build - x < files/text",
            "weald build --from gone src x",
            "weald build --from tar gone x",
            "weald build --from tar files/text x",
            "weald build - x < short.tar",
            "weald build - x < two.tar",
            "weald build - x < absolute.tar",
            "weald build - x < above.tar",
            "weald build - x < files/gzip",
            "weald build - x < files/bzip2",
            "weald build --append - x < whole.tar",
            "weald build --order name - x < whole.tar",
            "weald build --base elsewhere/base.weald - x < whole.tar",
            "weald build --contents-root src - x < whole.tar",
            "weald build --from listing lines.list x",
            "weald build --from lines zeros.list x",
            "weald build --from listing -q cut.list x",
            "weald build --from listing above.list x",
            "weald build --from listing - x < /dev/null",
            "weald build --from mtree - x < /dev/null",
            "weald build --from mtree missing.mtree x",
            "weald build --from mtree -q --contents-root out/dir missing.mtree x",
            "weald build --from mtree --contents-root src size.mtree x",
            "weald build --from mtree --contents-root gone size.mtree x",
            "weald build --from mtree bad.mtree x",
        ],
    ),
    (
        "Mounts",
        &[
            "weald mount gone mnt",
            "weald mount image gone",
            "weald mount image files/text",
            "weald mount files/text mnt",
            "weald mount --isolated files/text mnt",
            "weald mount cut mnt",
            "weald mount based mnt",
            "weald mount -o fast image mnt",
            "weald mount -o rw image mnt",
            "weald mount -o cachesize=lots image mnt",
            "weald mount -o workers=0 image mnt",
            "weald mount -o max_readahead=1G image mnt",
            "weald mount -o umask=9 image mnt",
            "weald mount -o uid=root image mnt",
            "weald mount -o digest=12 image mnt",
            "weald mount -o generation=7 image mnt",
            "weald mount -o subdir=gone image mnt",
            "weald mount -o subdir=file image mnt",
            "weald mount --prefetch gone image mnt",
            "weald mount --prefetch files/text image mnt",
            "weald mount --record gone/x image mnt",
            "weald mount --trace gone/x image mnt",
            "weald mount --log gone/x image mnt",
            "weald umount mnt",
            "weald umount gone",
            "WEALD_RUNTIME_DIR=run/other weald serve --take-over",
            "weald serve --background --log files/text/x",
            "WEALD_RUNTIME_DIR=files/text weald mounts",
            "mount.weald image",
            "mount.weald image mnt -x",
            "mount.weald image mnt -o",
            "mount.weald image mnt -N 1",
            "mount.weald image mnt -o fast",
            "mount.weald gone mnt",
        ],
    ),
    (
        "Mounts while one is there",
        &[
            "weald serve",
            "weald serve --background",
            "weald umount mnt/dir",
            "cd mnt && weald umount ../mnt",
        ],
    ),
    (
        "Stores",
        &[
            "weald store",
            "weald store create",
            "weald store create store",
            "weald store create src",
            "weald store create gone/x",
            "weald store create --segment-size 1K x",
            "weald store import store",
            "weald store import gone image",
            "weald store import src image",
            "weald store import image packed",
            "weald store import store image",
            "weald store import store image image --name x",
            "weald store import store elsewhere/base.weald image",
            "weald store import store image --name a/b",
            "weald store import store image --name .x",
            "weald store import store cut --name x",
            "weald store import store damaged-content --name x",
            "weald store import store damaged-footer --name x",
            "weald store import store interrupted --name x",
            "weald store import store newer-version --name x",
            "weald store import store files/text --name x",
            "weald store import store src --name x",
            "weald store import store store --name x",
            "weald store import store gone --name x",
            "weald store import lost image --name x",
            "weald store import older image --name x",
            "weald store export store x",
            "weald store export store:gone x",
            "weald store export image x",
            "weald store export store:image packed",
            "weald store export store:image gone/x",
            "weald store ls image",
            "weald store ls src",
            "weald store ls gone",
            "weald store ls store:image",
            "weald store info newer-store",
            "weald store rm store",
            "weald store rm store:gone",
            "weald store rm store gone",
            "weald store rm store:image lost:packed",
            "weald store rm image",
            "weald store gc src",
            "weald store gc --copy-below 200 store",
            "weald store check lost",
            "weald ls store",
            "weald info store",
            "weald check store",
            "weald mount store mnt",
            "weald mount store:gone mnt",
            "weald ls store:gone",
            "weald ls store:image --offset 4096",
            "weald ls newer-store:image",
            "weald build src store:x",
            "weald build --append src store:image",
            "weald rewrite image store:x",
            "weald recover store:image",
            "weald forest --fanout 2x2 --image store:x",
        ],
    ),
    (
        "Volumes",
        &[
            "weald volume",
            "weald volume create",
            "weald volume create store",
            "weald volume create gone:v",
            "weald volume create src:v",
            "weald volume create image:v",
            "weald volume create store:image",
            "weald volume create volumes:v",
            "weald volume create store:.v",
            "weald volume create store:a/b",
            "weald volume create --chunk 3 store:v",
            "weald volume create --chunk 96K store:v",
            "weald volume create --chunk 4G store:v",
            "weald volume create --compress xz store:v",
            "weald volume create --compress zstd:23 store:v",
            "weald volume create lost:v",
            "weald volume create newer-store:v",
            "weald volume ls gone",
            "weald volume ls store:image",
            "weald volume info store",
            "weald volume info store:gone",
            "weald volume info store:image",
            "weald volume stat volumes:gone",
            "weald volume stat --json --prometheus volumes:v",
            "weald volume check volumes:gone",
            "weald volume rm volumes:gone",
            "weald volume rm store:image",
            "weald volume create store:v --from gone",
            "weald volume create store:v --from src",
            "weald volume create store:v --from volumes:v",
            "weald volume seal volumes:v",
            "weald volume seal volumes:v --image x --name y",
            "weald volume seal volumes:v --image image",
            "weald volume seal volumes:v --image store:x",
            "weald volume seal volumes:v --name v",
            "weald volume seal volumes:v --name a/b",
            "weald volume seal volumes:gone --name x",
            "weald volume seal store:image --name x",
            "weald volume set volumes:v",
            "weald volume set volumes:v .",
            "weald volume set volumes:v . --compress gzip",
            "weald volume set volumes:v . --chunk 3",
            "weald volume set volumes:v . --chunk 1M",
            "weald volume set volumes:v . --quota 0",
            "weald volume set volumes:v gone --dedup off",
            "weald volume set volumes:v ../x --dedup off",
            "weald volume set volumes:gone . --dedup off",
            "weald volume info volumes:v gone",
            "weald mount -o barrier=off volumes:v mnt",
            "weald mount -o log=no volumes:v mnt",
            "weald mount -o mode=tape volumes:v mnt",
            "weald ls volumes:v",
            "weald cat volumes:v file",
            "weald extract volumes:v x",
            "weald store export volumes:v x",
            "weald store rm volumes:v",
            "weald store add volumes src --name v",
            "weald store import volumes image --name v",
            "weald mount volumes:gone mnt",
            "weald mount volumes:v gone",
            "weald mount --kernel volumes:v mnt",
            "weald mount --prefetch all volumes:v mnt",
            "weald mount -o fast volumes:v mnt",
            "weald mount -o generation=2 volumes:v mnt",
            "weald mount -o commit-interval=0 volumes:v mnt",
            "weald mount -o cache=1K volumes:v mnt",
            "weald mount -o fsync=maybe volumes:v mnt",
            "mount.weald volumes:v mnt -o fast",
        ],
    ),
    (
        "Export and import",
        &[
            "weald export",
            "weald export composefs image",
            "weald export composefs image --image packed",
            "weald export composefs image --image gone/x",
            "weald export composefs image --image x --objects files/text",
            "weald export composefs image --image - --json",
            "weald export composefs image --image x --format 2",
            "weald export composefs files/text --image x",
            "weald export composefs damaged-content --image x",
            "weald export dump gone",
            "weald export dump damaged-content",
            "weald export oci image",
            "weald export oci image layout:v1",
            "weald export oci image layout:a/b",
            "weald export oci image src:v1",
            "weald export oci image image:v1",
            "weald export oci image gone/x:v1",
            "weald export oci image 'x:a b'",
            "weald export oci image :v1",
            "weald export oci --config gone image x:v1",
            "weald export oci --config files/text image x:v1",
            "weald export oci --platform linux image x:v1",
            "weald export oci --compress lz4 image x:v1",
            "weald export oci --compress gzip:10 image x:v1",
            "weald export oci marked x:v1",
            "weald export oci damaged-content x:v1",
            "weald export oci files/tar x:v1",
            "weald import",
            "weald import composefs x",
            "weald import composefs --image gone x",
            "weald import composefs --image files/text x",
            "weald import composefs --image image --from-dump files/text x",
            "weald import composefs --from-dump gone x",
            "weald import composefs --from-dump files/text x",
            "weald import composefs --from-dump files/text --objects gone x",
            "printf '/ 0 40755 2 0 0 0 1.0 - - -\n/a\\\\q 0 100644 1 0 0 0 1.0 - - -\n' | \
             weald import composefs --from-dump - x",
            "printf '/ 0 40755 2 0 0 0 1.0 - - -\n/a 99 100644 1 0 0 0 1.0 ab/cd - -\n' | \
             weald import composefs --from-dump - x",
            "weald import oci layout x",
            "weald import oci layout:v9 x",
            "weald import oci gone:v1 x",
            "weald import oci docker://debian:12 x",
            "weald import oci oci:layout:v1 x",
            "weald import oci src x",
            "weald import oci files/text x",
            "weald import oci whole.tar x",
            "weald import oci short.tar x",
            "weald import oci layout:v1 image",
            "weald import oci layout:v1 gone/x",
            "weald import oci layout:v1 store:image",
            "weald import oci layout:v1 store",
            "weald import oci --append layout:v1 x",
            "weald import oci --keep-atime layout:v1 x",
            "weald import oci --config image layout:v1 x",
            "weald import oci --platform linux layout:v1 x",
            "weald import oci --platform linux/s390x layout:v1 x",
            "weald import oci damaged-layout x",
            "weald import oci lost-layout x",
            "weald import oci no-manifest x",
        ],
    ),
    (
        "Forests",
        &[
            "weald forest",
            "weald forest --spec gone x",
            "weald forest --spec bad.toml x",
            "weald forest --fanout 0 x",
            "weald forest --names colour x",
            "weald forest --sizes long x",
            "weald forest --symlinks 2 x",
            "weald forest --fanout 2x2 out",
            "weald forest --fanout 2x2 --verify -q -t 1 grove",
            "weald forest --fanout 2x2 --image image",
            "weald forest --fanout 2x2 --stream tar image",
            "weald forest --fanout 2x2 --mkfs ext4 image",
        ],
    ),
];

fn bench() -> Bench {
    let bench = Bench::new();
    fs::create_dir(bench.at("bin")).expect("mkdir");
    symlink(weald_path(), bench.at("bin/weald")).expect("link");
    symlink(weald_path(), bench.at("bin/mount.weald")).expect("link");
    let prepared = shell(&bench, PREPARE);
    assert_eq!(prepared.code, Some(0), "{}", prepared.stderr);
    // Images of future versions: a newer version number, and an unknown required feature.
    let image = fs::read(bench.at("image")).expect("read");
    for (name, at) in [("newer-version", 8), ("newer-features", 39)] {
        let mut image = image.clone();
        image[at] = 0x40;
        let checksum = blake3::hash(&image[..48]);
        image[48..64].copy_from_slice(&checksum.as_bytes()[..16]);
        fs::write(bench.at(name), image).expect("write");
    }
    let mut store = fs::read(bench.at("store/store")).expect("read");
    store[8] = 0x40;
    let checksum = blake3::hash(&store[..80]);
    store[80..96].copy_from_slice(&checksum.as_bytes()[..16]);
    bench.sh("cp -a store newer-store");
    fs::write(bench.at("newer-store/store"), store).expect("write");
    bench
}

fn shell(bench: &Bench, line: &str) -> Output {
    let path = std::env::var("PATH").unwrap_or_default();
    let dir = bench.0.path();
    // A server that starts by mistake must not block the test.
    let mut command = Command::new("timeout");
    command
        .args(["60", "bash", "-c", line])
        .current_dir(dir)
        .env("PATH", format!("{}:{path}", dir.join("bin").display()))
        .env("WEALD_RUNTIME_DIR", dir.join("run/place"))
        .env("LC_ALL", "C")
        .env_remove("SOURCE_DATE_EPOCH");
    run(&mut command)
}

/// Replaces the digits of digests by stars, because digests change with the format of images.
fn without_digests(text: &str) -> String {
    let words = text.split_inclusive(|c: char| !c.is_ascii_hexdigit());
    let words = words.map(|word| {
        let digits = word.trim_end_matches(|c: char| !c.is_ascii_hexdigit());
        match digits.len() {
            12 | 64 if digits.starts_with("000000") => word.to_owned(),
            12 | 64 => "*".repeat(digits.len()) + &word[digits.len()..],
            _ => word.to_owned(),
        }
    });
    words.collect()
}

/// The default size of the cache depends on the machine.
fn without_cache_size(text: &str) -> String {
    let Some((before, rest)) = text.split_once("a cache of ") else {
        return text.to_owned();
    };
    let (_, after) = rest.split_once(" MiB").expect("a size");
    format!("{before}a cache of * MiB{after}")
}

/// Runs a line in a fresh copy of the directory; returns its status and messages.
fn run_line(bench: &Bench, line: &str) -> String {
    let output = shell(bench, line);
    let dir = bench.0.path().display().to_string();
    let said = without_digests(&output.stderr.replace(&dir, "DIR"));
    let said = without_cache_size(&said);
    let said: String = said.lines().map(|line| format!("    {line}\n")).collect();
    let listed = match line.starts_with("weald check") && output.code == Some(1) {
        true => output
            .text()
            .lines()
            .filter(|line| !line.starts_with("not clean"))
            .map(|line| format!("  | {line}\n"))
            .collect(),
        false => String::new(),
    };
    let reset = "rm -rf x; if mountpoint -q mnt; then weald umount mnt; fi";
    if !line.contains("umount") && !line.starts_with("weald serve") {
        assert_eq!(shell(bench, reset).code, Some(0), "{line}");
    }
    let code = output.code.expect("a status");
    format!("$ {line}   -> {code}\n{listed}{said}")
}

/// Would catch: a changed message. A reviewer then reads it and accepts it.
#[test]
fn every_message_is_in_the_golden_file() {
    let bench = bench();
    let mut text = String::new();
    for (section, lines) in LINES {
        text.push_str(&format!("\n## {section}\n\n"));
        let is_mounted = *section == "Mounts while one is there";
        if is_mounted {
            assert_eq!(shell(&bench, "weald mount image mnt").code, Some(0));
        }
        for line in *lines {
            text.push_str(&run_line(&bench, line));
        }
        if is_mounted {
            assert_eq!(shell(&bench, "weald umount mnt").code, Some(0));
        }
    }
    let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/messages.golden");
    if std::env::var_os("WEALD_BLESS").is_some() {
        fs::write(&golden, &text).expect("write");
    }
    let expected = fs::read_to_string(&golden).expect("messages.golden");
    let lines = text.lines().zip(expected.lines());
    for (found, expected) in lines {
        assert_eq!(found, expected, "read it, then run with WEALD_BLESS=1");
    }
    assert_eq!(text.lines().count(), expected.lines().count());
}
