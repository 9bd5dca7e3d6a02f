//! `weald tar`: what an independent tar makes of the stream.
#![allow(missing_docs)]

mod support;

use std::fs;
use support::Bench;
use weald_testkit::compare::assert_same;
use weald_testkit::{CompareOptions, torture};

const UNTAR: &str = "mkdir out && tar -xpf - --xattrs --xattrs-include='*' -C out";

#[test]
fn gnu_tar_unpacks_the_same_tree() {
    let bench = Bench::with_image();
    bench.sh(&format!("$WEALD tar image | ({UNTAR})"));
    assert_same(
        &bench.at("source"),
        &bench.at("out"),
        &CompareOptions::default(),
    );
}

#[test]
fn gnu_tar_unpacks_the_torture_tree() {
    let bench = Bench::new();
    fs::create_dir(bench.at("source")).expect("mkdir");
    torture::make(
        &bench.at("source"),
        &torture::Options {
            seed: 11,
            big: false,
        },
    )
    .expect("torture tree");
    // What no tar can say: sockets. What GNU tar does not take: xattrs that are ACLs, and files of
    // more than 8 EiB - 1.
    bench.sh("find source -type s -delete");
    bench.sh("setfacl -Rbk source");
    bench
        .weald(["build", "-q", "-l", "1", "source", "image"])
        .expect(0, "");
    bench.sh(&format!("$WEALD tar image | ({UNTAR})"));
    let options = CompareOptions {
        holes: false,
        ..CompareOptions::default()
    };
    assert_same(&bench.at("source"), &bench.at("out"), &options);
    let (source, out) = (
        bench.sh("du -s source | cut -f1"),
        bench.sh("du -s out | cut -f1"),
    );
    let blocks = |text: &str| text.trim().parse::<u64>().expect("a number");
    assert!(
        blocks(&out) < blocks(&source) * 11 / 10,
        "holes were filled: {source} {out}"
    );
}

#[test]
fn names_of_any_length_and_numbers_of_any_size() {
    let bench = Bench::new();
    let long = "n".repeat(255);
    bench.sh(&format!(
        "mkdir -p source/{d}/{d} && cd source
         echo x > {d}/{d}/{long}; printf y > {d}/$'long-\\xff-'{tail}; ln {d}/{d}/{long} \
          {d}/{d}/twin
         ln -s {long}/{long} {d}/sym
         chown -h 4000000000:4000000001 {d}/sym; chown 3000000000 {d}/{d}/{long}
         touch -d '@-5.25' {d}/{d}; touch -d '@8589934592.5' {d}; truncate -s 9G {d}/sparse; echo \
          end >> {d}/sparse",
        d = "d".repeat(120),
        tail = "t".repeat(200),
    ));
    bench
        .weald(["build", "-q", "source", "image"])
        .expect(0, "");
    bench.sh(&format!("$WEALD tar image | ({UNTAR})"));
    // 9 GiB of hole are not read.
    let options = CompareOptions {
        rsync: false,
        ..CompareOptions::default()
    };
    assert_same(&bench.at("source"), &bench.at("out"), &options);
}

#[test]
fn the_stream_is_always_the_same_and_selects() {
    let bench = Bench::with_image();
    let first = bench.weald(["tar", "image"]).expect(0, "").stdout;
    assert!(first == bench.weald(["tar", "image"]).expect(0, "").stdout);
    assert_eq!(first.len() % 10240, 0);
    let names = bench.sh("$WEALD tar image etc/deep | tar t");
    assert_eq!(names, "./\netc/\netc/deep/\netc/deep/leaf.conf\n");
    let listed = bench.sh("$WEALD tar image etc | tar tv");
    let link = listed
        .lines()
        .find(|line| line.contains("etc/twin.conf"))
        .expect("a line");
    assert!(
        link.starts_with("hrw-r--r-- ") && link.ends_with(" etc/twin.conf link to etc/main.conf"),
        "{link}"
    );
    bench
        .weald(["tar", "image", "gone*"])
        .expect(1, "weald: gone*: nothing in the image matches\n");
}

#[test]
fn sockets_are_told() {
    let bench = Bench::new();
    fs::create_dir(bench.at("source")).expect("mkdir");
    let _socket = std::os::unix::net::UnixListener::bind(bench.at("source/socket")).expect("bind");
    bench
        .weald(["build", "-q", "source", "image"])
        .expect(0, "");
    bench
        .weald(["tar", "image"])
        .expect(0, "weald: socket: left out: tar cannot hold a socket\n");
}

// Would catch xattrs that are lost or misnamed because their names look like syntax of pax or of an
// escape.
#[test]
fn xattrs_with_odd_names_come_back() {
    let bench = Bench::new();
    bench.sh("mkdir source; echo x > source/file");
    let source = weald_sys::open_dir(&bench.at("source")).expect("open");
    let odd: [&[u8]; 6] = [
        b"user.a=b",
        b"user.==",
        b"user.100%",
        b"user.%3D%25",
        b"user.%25=\xff \n",
        b"user.plain",
    ];
    for (index, name) in odd.into_iter().enumerate() {
        let value = &b"v\0\xfflue"[..index];
        weald_sys::set_xattr_at(&source, b"file", name, value).expect("setxattr");
    }
    bench
        .weald(["build", "-q", "source", "image"])
        .expect(0, "");
    bench.sh(&format!("$WEALD tar image | ({UNTAR})"));
    assert_same(
        &bench.at("source"),
        &bench.at("out"),
        &CompareOptions::default(),
    );
    bench.sh("mkdir bsd && $WEALD tar image | bsdtar -xpf - -C bsd");
    let out = weald_sys::open_dir(&bench.at("bsd")).expect("open");
    for (index, name) in odd.into_iter().enumerate() {
        let value = weald_sys::get_xattr_at(&out, b"file", name);
        let what = String::from_utf8_lossy(name);
        assert_eq!(value.expect(&what), &b"v\0\xfflue"[..index], "{what}");
    }
}

/// Would catch: a stream that ends in the middle of a member because its content is damaged.
#[test]
fn damaged_files_are_left_out_and_the_stream_goes_on() {
    let bench = Bench::new();
    fs::create_dir(bench.at("source")).expect("mkdir");
    let noise = |from: u32, count: u32| -> Vec<u8> {
        let hashes = (from..from + count).map(|i| *blake3::hash(&i.to_le_bytes()).as_bytes());
        hashes.flatten().collect()
    };
    let (small, large) = (noise(0, 20_000), noise(1 << 20, 300_000));
    fs::write(bench.at("source/b-small"), &small).expect("write");
    fs::hard_link(bench.at("source/b-small"), bench.at("source/c-link")).expect("link");
    fs::write(bench.at("source/d-large"), &large).expect("write");
    bench.sh("cd source && echo a > a && echo e > e && mkdir f && echo g > f/g");
    let build = "build -q -l 0 --block-size 64K source image";
    bench.weald(build.split(' ')).expect(0, "");
    let mut image = fs::read(bench.at("image")).expect("read");
    for needle in [&small[320_000..320_032], &large[9_000_000..9_000_032]] {
        let mut windows = image.windows(32);
        let at = windows
            .position(|window| window == needle)
            .expect("raw bytes");
        image[at] ^= 1;
    }
    fs::write(bench.at("image"), image).expect("write");
    let output = bench.weald(["tar", "image"]);
    fs::write(bench.at("stream"), &output.stdout).expect("write");
    let lines: Vec<&str> = output.stderr.lines().collect();
    assert_eq!(
        (output.code, lines.len()),
        (Some(1), 3),
        "{}",
        output.stderr
    );
    for (line, name) in lines.iter().zip(["b-small", "c-link", "d-large"]) {
        assert!(line.starts_with(&format!("weald: {name}: ")), "{line}");
    }
    assert_eq!(bench.sh("tar tf stream"), "./\na\ne\nf/\nf/g\n");
    bench.sh("mkdir out && tar xf stream -C out && rm source/[bcd]-* && diff -r source out");
}
