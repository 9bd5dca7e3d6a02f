//! `weald tar`: other tar programs unpack its stream.
use crate::support::Bench;
use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use weald_export::{ExtractObserver, TarOptions, write_tar};
use weald_format::{Error, Result};
use weald_image::{Image, OpenOptions};
use weald_io::{FileSource, ReadAt};
use weald_testkit::CompareOptions;
use weald_testkit::compare::assert_same;

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
    let bench = Bench::with_torture(11);
    // tar has no sockets. GNU tar does not support xattrs that are ACLs, and files over 8 EiB - 1.
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
    // A hole of 9 GiB is not read.
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
fn sockets_are_reported() {
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

// Would catch xattrs that are lost or renamed because their names contain syntax of pax or of an
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

/// Would catch: a stream that ends within a member because its content is damaged.
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

/// An image on a disk that can be switched off.
struct Disk {
    file: FileSource,
    is_off: Arc<AtomicBool>,
}

impl ReadAt for Disk {
    fn len(&self) -> u64 {
        self.file.len()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        if self.is_off.load(Ordering::Relaxed) {
            Err(Error::io("disk", std::io::Error::from_raw_os_error(5)))
        } else {
            self.file.read_exact_at(buf, offset)
        }
    }
}

/// A tar stream. The disk of `image` is off from the header of a sparse file to `end`, the end of
/// its data, or to the first problem.
struct Switch<'a> {
    image: &'a Image,
    is_off: &'a AtomicBool,
    stream: Vec<u8>,
    end: &'a [u8],
}

impl Write for Switch<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let has = |needle: &[u8]| bytes.windows(needle.len()).any(|window| window == needle);
        if has(b"GNU.sparse.major") {
            self.image.drop_caches();
            self.is_off.store(true, Ordering::Relaxed);
        } else if has(self.end) {
            self.is_off.store(false, Ordering::Relaxed);
        }
        self.stream.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Counts problems; each switches the disk on again.
struct Problems<'a> {
    is_off: &'a AtomicBool,
    count: AtomicU64,
}

impl ExtractObserver for Problems<'_> {
    fn problem(&self, path: &[u8], error: &Error) {
        self.is_off.store(false, Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Relaxed);
        let text = format!("{error}");
        assert_eq!(path, b"sparse", "{text}");
        assert!(text.contains("zeros stand in the stream"), "{text}");
    }
}

/// Would catch: a stream that ends because the image cannot be read behind the header of a sparse
/// file.
#[test]
fn a_disk_that_fails_behind_the_header_of_a_sparse_file_does_not_end_the_stream() {
    let bench = Bench::new();
    bench.sh("mkdir source; cd source; echo a > a; echo z > z; truncate -s 30M sparse");
    let mut noise = vec![0; 10 << 20];
    blake3::Hasher::new().finalize_xof().fill(&mut noise);
    // Contents of up to 8 MiB are read before the header, longer ones again behind it.
    for (len, problem_count) in [(1 << 20, 0), (noise.len(), 1)] {
        let data = &noise[..len];
        let file = fs::File::options()
            .write(true)
            .open(bench.at("source/sparse"));
        file.expect("open")
            .write_all_at(data, 1 << 20)
            .expect("write");
        let build = "build -qf -l 0 source image";
        bench.weald(build.split(' ')).expect(0, "");
        let is_off = Arc::new(AtomicBool::new(false));
        let file = FileSource::open(&bench.at("image"), 0).expect("open");
        let disk = Disk {
            file,
            is_off: Arc::clone(&is_off),
        };
        let image = Image::open(Arc::new(disk), &OpenOptions::default()).expect("image");
        let mut switch = Switch {
            image: &image,
            is_off: &is_off,
            stream: Vec::new(),
            end: &data[len - 32..],
        };
        let problems = Problems {
            is_off: &is_off,
            count: AtomicU64::new(0),
        };
        let options = TarOptions::default();
        let report = write_tar(
            &image,
            image.root().unwrap(),
            &options,
            &mut switch,
            &problems,
        )
        .expect("to its end");
        assert_eq!(report.problem_count, problem_count, "{len}");
        assert_eq!(problems.count.into_inner(), problem_count);
        fs::write(bench.at("stream"), switch.stream).expect("write");
        bench.sh("rm -rf out; mkdir out; tar xf stream -C out; diff source/a out/a");
        bench.sh("diff source/z out/z; stat -c %s out/sparse | grep -x 31457280");
        let same = bench.sh("cmp -s source/sparse out/sparse && echo same || echo other");
        assert_eq!(same, ["same\n", "other\n"][problem_count as usize]);
    }
}

/// Would catch: a map of more than 256 KiB that loses or doubles a run.
#[test]
fn a_map_that_is_too_long_for_memory_comes_back() {
    const COUNT: u64 = 40_000;
    let bench = Bench::new();
    fs::create_dir(bench.at("source")).expect("mkdir");
    let file = fs::File::create(bench.at("source/sparse")).expect("create");
    file.set_len(COUNT << 13).expect("set_len");
    for block in 0..COUNT {
        file.write_all_at(&block.to_le_bytes(), block << 13)
            .expect("write");
    }
    bench
        .weald("build -q -l 0 source image".split(' '))
        .expect(0, "");
    bench.sh(&format!("$WEALD tar image | ({UNTAR})"));
    bench.sh("cmp source/sparse out/sparse");
}

/// Would catch: a field at a wrong place, data of a hard link that are missing or come twice, a
/// device number that is cut, an entry that is lost in silence.
#[test]
fn cpio_archives_unpack_to_the_same_tree() {
    let bench = Bench::new();
    bench.sh(
        "mkdir -p source/dir/deep source/empty; head -c 9M /dev/urandom > source/long
         echo short > source/dir/short; ln source/dir/short source/dir/twin
         ln source/long source/l2
         ln -s dir/short source/link; mkfifo source/pipe; mknod source/null c 1 3
         mknod source/disk b 259 70000; truncate -s 100000 source/holes
         echo x >> source/holes
         : > source/none; chmod 4751 source/dir/short; chown 70000:123456 source/dir/short
         chown -h 5:6 source/link; chmod 1777 source/empty; mkdir 'source/sp ace'
         : > source/$'n\\nl'
         find source -exec touch -hd @1234567890 {} +
         $WEALD build -q source image; mkdir out",
    );
    bench.sh(
        "$WEALD tar --format cpio image > archive; test $(($(stat -c %s archive) % 512)) = 0
         cd out; bsdcpio -idmu --quiet < ../archive; touch -r ../source .",
    );
    let options = CompareOptions {
        holes: false,
        ..CompareOptions::default()
    };
    assert_same(&bench.at("source"), &bench.at("out"), &options);
    bench.sh("$WEALD tar --format cpio image | cmp - archive");
    let listed = bench.sh("bsdtar -tf archive | wc -l; find source -printf x | wc -c");
    let counts: Vec<&str> = listed.lines().collect();
    assert_eq!(counts[0], counts[1]);
    // What has no form is named, and the rest is written.
    bench.sh(
        "setfattr -n user.a -v b source/none; truncate -s 5G source/huge
              $WEALD build -qf source image",
    );
    let said = bench.sh("$WEALD tar --format cpio image 2>&1 >archive || echo status $?");
    assert!(
        said.contains("huge: left out: a length of 5368709120"),
        "{said}"
    );
    assert!(
        said.contains("that have some: 1 (") && said.contains("status 1"),
        "{said}"
    );
    assert_eq!(bench.sh("bsdtar -tf archive | grep -c huge || true"), "0\n");
    let chosen =
        bench.sh("$WEALD tar --format cpio --no-xattrs image dir/short 2>&1 | bsdtar -tf -");
    assert_eq!(chosen, ".\ndir\ndir/short\n");
    // Without its ACL, a file lets in nobody whom the ACL denied.
    bench.sh(
        "mkdir guarded; echo x > guarded/file; chmod 640 guarded/file
              setfacl -m u:1234:rwx,g::- guarded/file; $WEALD build -q guarded acl",
    );
    let mode = bench.sh("$WEALD tar --format cpio --no-xattrs acl | bsdtar -tvf - | grep file");
    assert!(mode.starts_with("-rw------- "), "{mode}");
}

/// Would catch: a name, kind, attribute or target that is described otherwise than it is, or that
/// other programs read as another.
#[test]
fn descriptions_are_read_by_mtree_bsdtar_and_weald() {
    let bench = Bench::with_image();
    bench.sh(
        "$WEALD tar --format mtree image > spec; head -1 spec | grep -qx '#mtree'
         $WEALD extract -q image tree
         mtree -f spec -p tree > found || true; cat found >&2; [ ! -s found ]
         [ $(bsdtar -tf spec | wc -l) = $($WEALD find --count image) ]
         $WEALD build -q --from mtree --contents-root tree spec again
         $WEALD diff --ignore xattrs,links image again
         chmod 111 tree/empty; mtree -f spec -p tree > changed || true; [ -s changed ]
         $WEALD tar --format mtree --exclude '*' image > one; [ $(wc -l < one) = 2 ]",
    );
}

/// Would catch: a column that unsquashfs prints otherwise.
#[test]
fn listings_are_those_of_unsquashfs() {
    let bench = Bench::new();
    bench.sh(
        "mkdir -p src/d; echo a > src/d/f; ln -s f src/d/l; mknod src/n c 1 3; mkfifo src/p
         mknod src/big b 259 17; chmod 4755 src/d/f; chmod 1777 src/d; chown 12345:678 src/d/f
         truncate -s 5G src/holes; touch -d '1999-01-02 03:04:05Z' src/d/f; touch 'src/two words'
         mksquashfs src by.sqfs -quiet -no-progress >&2
         $WEALD build -q src image; $WEALD tar --format listing image > ours
         TZ=UTC unsquashfs -llnumeric by.sqfs | sed 's, squashfs-root$, .,; s, squashfs-root/, ,' \
         > theirs
         # The size of a directory is that of its records there.
         for l in ours theirs; do awk '/^d/ { $3 = \"\" } 1' $l > $l.same; done
         diff theirs.same ours.same",
    );
}
