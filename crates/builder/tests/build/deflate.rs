//! Files with DEFLATE streams: stored as plain bytes and recipes if possible, and restored exactly
//! in every case.

use crate::support::*;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use weald_builder::{BuildOptions, Categories, CodecSpec};
use weald_codec::deflate::{ARCHIVES, WHOLE_PLAIN_LEN_MAX, analyze, inflate};
use weald_format::container::RecordType;
use weald_format::{ByteLen, ROOT_INODE};
use weald_image::{Image, OpenOptions};

/// Length of a gzip header without names.
const HEAD_LEN: usize = 10;
/// Length of gzip's CRC and size fields.
const TAIL_LEN: usize = 8;
/// Longest plain content of a stream: `recode::PLAIN_LEN_MAX`.
const PLAIN_LEN_MAX: usize = WHOLE_PLAIN_LEN_MAX * 3;

/// Output of `program` for `input`.
fn filter(program: &str, args: &[&str], input: &[u8]) -> Vec<u8> {
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| panic!("{program}: {e}"));
    let mut stdin = child.stdin.take().unwrap();
    let output = std::thread::scope(|scope| {
        scope.spawn(move || stdin.write_all(input).unwrap());
        child.wait_with_output().unwrap()
    });
    assert!(output.status.success(), "{program} {args:?}");
    output.stdout
}

fn gzip(level: &str, plain: &[u8]) -> Vec<u8> {
    filter("gzip", &["-n", "-c", level], plain)
}

/// Length of the stream in a gzip file of one member without names.
fn stream_len(gz: &[u8]) -> u64 {
    (gz.len() - HEAD_LEN - TAIL_LEN) as u64
}

/// A zip file of deflated and empty members. It is written to a pipe, so that lengths follow the
/// data, or else it has a stored member between them. For a stored member with its length behind
/// the data, only the central directory has the length.
fn zip(is_piped: bool, plain: &[u8]) -> Vec<u8> {
    let script = "import io, sys, zipfile
plain = sys.stdin.buffer.read()
out = sys.stdout.buffer if sys.argv[1] == 'piped' else io.BytesIO()
with zipfile.ZipFile(out, 'w', zipfile.ZIP_DEFLATED) as z:
    for name, data, kind in [('a', plain, 8), ('b', plain, 0), ('none', b'', 8), ('c', \
     plain[::-1], 8)]:
        if kind == 0 and sys.argv[1] == 'piped':
            continue
        info = zipfile.ZipInfo(name)
        info.compress_type = kind
        z.writestr(info, data)
if sys.argv[1] != 'piped':
    sys.stdout.buffer.write(out.getvalue())";
    let how = if is_piped { "piped" } else { "whole" };
    filter("python3", &["-c", script, how], plain)
}

/// A gzip member with extra field, name, comment and header checksum around the stream of `gz`.
fn with_names(gz: &[u8]) -> Vec<u8> {
    let mut out = gz[..HEAD_LEN].to_vec();
    out[3] = 2 | 4 | 8 | 16;
    out.extend_from_slice(b"\x03\0xyzname\0a comment\0\x12\x34");
    out.extend_from_slice(&gz[HEAD_LEN..]);
    out
}

fn options() -> BuildOptions {
    BuildOptions {
        memory_len: 512 << 20,
        categories: Categories {
            incompressible: true,
            x86: true,
            arm64: true,
            deflate: true,
            ..Categories::none()
        },
        ..quick()
    }
}

fn without_recipes() -> BuildOptions {
    let mut options = options();
    options.categories.deflate = false;
    options
}

/// Files of every kind that recipes make, and the length of their streams.
fn taken_apart() -> (Plan, u64) {
    let mut plan = Plan::default();
    let mut made_len = 0;
    plan.dir("gz");
    for level in ["-1", "-6", "-9"] {
        let gz = gzip(level, &text(1, 200_000));
        made_len += stream_len(&gz);
        plan.file(format!("gz/level{level}.gz"), gz);
    }
    let long = gzip("-6", &text(2, 6_000_000));
    made_len += stream_len(&long);
    plan.file("gz/long.gz", long);
    let parts: Vec<_> = (3..6).map(|s| gzip("-9", &text(s, 50_000))).collect();
    made_len += parts.iter().map(|p| stream_len(p)).sum::<u64>();
    plan.file("gz/members.gz", parts.concat());
    let named = gzip("-6", &text(7, 30_000));
    made_len += stream_len(&named);
    plan.file("gz/named.gz", with_names(&named));
    plan.add("gz/linked.gz", Kind::Link("gz/named.gz".into()));
    plan.dir("other");
    plan.add("other/linked.gz", Kind::Link("gz/long.gz".into()));
    // Checksums are not part of the stream.
    let mut wrong = gzip("-6", &text(8, 40_000));
    made_len += stream_len(&wrong);
    let at = wrong.len() - 6;
    wrong[at] ^= 1;
    plan.file("other/wrong-sum.gz", wrong);
    let cut = gzip("-6", &text(9, 40_000));
    made_len += stream_len(&cut);
    plan.file("other/second-cut.gz", [&cut[..], &cut[..900]].concat());
    plan.file("other/copy.gz", cut.clone());
    made_len += stream_len(&cut);
    (plan, made_len)
}

/// Would catch: streams missed or detected wrongly; a header, trailer or member lost or duplicated;
/// a hard-linked file decoded once per name.
#[test]
fn gzip_output_is_restored_exactly() {
    let (plan, made_len) = taken_apart();
    let codec = CodecSpec::Zstd(12);
    let with = BuildOptions { codec, ..options() };
    let without = BuildOptions {
        codec,
        ..without_recipes()
    };
    let (with, without) = assert_recipes_save(&plan, &with, &without, "gzip");
    assert_eq!((with.made_len, without.plain_len), (made_len, 0));
}

/// Would catch: a version of gzip that uses zlib, so that this test covers no foreign blocks.
#[test]
fn a_long_file_of_gzip_needs_corrections() {
    let plain = text(2, 6_000_000);
    let gz = gzip("-6", &plain);
    let (inflated, len) = inflate(&gz[HEAD_LEN..], PLAIN_LEN_MAX).unwrap();
    assert!(inflated == plain);
    let recipes = analyze(&gz[HEAD_LEN..][..len], &plain, ARCHIVES, usize::MAX);
    assert!(!recipes[0].corrections.is_empty());
}

/// Would catch: members missed behind stored or empty ones, with lengths before and after the data.
#[test]
fn members_of_a_zip_file_are_made_again() {
    let plain = text(1, 100_000);
    for is_piped in [false, true] {
        let data = zip(is_piped, &plain);
        let deflated_len: u64 = [plain.clone(), plain.iter().rev().copied().collect()]
            .iter()
            .map(|p| {
                let script = "import sys, zlib
c = zlib.compressobj(6, 8, -15)
sys.stdout.buffer.write(c.compress(sys.stdin.buffer.read()) + c.flush())";
                filter("python3", &["-c", script], p).len() as u64
            })
            .sum();
        let report = report_of(&one_file("a.zip", data), &options());
        assert_eq!(report.made_len, deflated_len, "piped: {is_piped}");
    }
}

/// Would catch: plain bytes stored again although a file has them, whichever comes first.
#[test]
fn plain_bytes_beside_a_file_are_stored_once() {
    let plain = text(1, 400_000);
    let gz = gzip("-9", &plain);
    let alone = report_of(&one_file("m.gz", gz.clone()), &options());
    assert_eq!(alone.plain_len, plain.len() as u64);
    for (name, plain_len) in [("a", 0), ("z", plain.len() as u64)] {
        let mut plan = one_file("m.gz", gz.clone());
        plan.file(name, plain.clone());
        let both = report_of(&plan, &options());
        assert_eq!(both.made_len, stream_len(&gz), "{name}");
        assert_eq!(both.plain_len, plain_len, "{name}");
        assert_eq!(both.block_raw_len, alone.block_raw_len, "{name}");
        assert!(both.image_len < alone.image_len + 200, "{name}");
    }
}

/// Would catch: recipes whose input is made by recipes, which readers refuse; a stream lost where
/// there is none.
#[test]
fn recipes_are_not_made_of_what_recipes_make() {
    // Members that repeat: small enough to be worth a recipe, and to be compressed again.
    let member = gzip("-9", &text(1, 4000));
    let inner = member.repeat(60);
    let outer = gzip("-9", &inner);
    let inner_len = 60 * stream_len(&member);
    for (names, made_len) in [
        (&["inner.gz", "outer.gz"][..], inner_len),
        // The outer file comes first: its members are stored unchanged.
        (&["z-inner.gz", "outer.gz"], stream_len(&outer)),
        (&["outer.gz"], stream_len(&outer)),
    ] {
        let mut plan = Plan::default();
        for name in names {
            let is_inner = name.ends_with("inner.gz");
            plan.file(*name, if is_inner { &inner } else { &outer }.clone());
        }
        assert_eq!(report_of(&plan, &options()).made_len, made_len, "{names:?}");
    }
}

/// Would catch: the same if only some members of a file are made by recipes.
#[test]
fn members_made_by_recipes_are_stored_unchanged_among_others() {
    let member = gzip("-9", &text(1, 4000));
    let inner = member.repeat(60);
    let other = gzip("-6", &text(2, 9000));
    let mixed = [other.clone(), gzip("-9", &inner), other.clone()].concat();
    let mut plan = one_file("inner.gz", inner);
    plan.file("mixed.gz", mixed);
    let made_len = 60 * stream_len(&member) + 2 * stream_len(&other);
    assert_eq!(report_of(&plan, &options()).made_len, made_len);
}

/// Would catch: data decoded by mistake, or data that is not restored if it is not decoded.
#[test]
fn incomplete_or_worthless_streams_are_stored_unchanged() {
    let gz = gzip("-6", &text(1, 100_000));
    let mut plan = Plan::default();
    plan.file("truncated.gz", gz[..gz.len() / 2].to_vec());
    plan.file("only-head.gz", gz[..HEAD_LEN].to_vec());
    let mut corrupt = gz.clone();
    corrupt[HEAD_LEN] |= 6; // a kind of block that there is not
    plan.file("corrupt.gz", corrupt);
    plan.file("noise.gz", gzip("-6", &noise(1, 100_000)));
    plan.file("empty.gz", gzip("-6", b""));
    plan.file("short.gz", gzip("-6", &text(2, 100)));
    plan.file("no-bytes.gz", Vec::new());
    plan.file("not.gz", text(3, 5000));
    plan.add("sparse.gz", Kind::File(vec![(0, gz.clone())], 1 << 20));
    // Longer than 1/32 of the budget, so the builder streams it.
    plan.file("streamed.gz", gz.repeat((16 << 20) / gz.len() + 1));
    let report = report_of(&plan, &options());
    assert_eq!((report.made_len, report.plain_len), (0, 0));
}

/// Would catch: damaged streams that are still valid, or become other streams, and are not
/// restored.
#[test]
fn corrupt_streams_are_restored_exactly() {
    let gz = gzip("-6", &text(1, 60_000));
    let mut plan = Plan::default();
    for n in 0..60 {
        let mut corrupt = gz.clone();
        let at = HEAD_LEN + n * (gz.len() - HEAD_LEN) / 60;
        corrupt[at] ^= 1 << (n % 8);
        plan.file(format!("{n:02}.gz"), corrupt);
    }
    report_of(&plan, &options());
}

/// Would catch: a limit at another length, so that a read makes more data, or a build takes more
/// memory, than allowed.
#[test]
fn longer_streams_are_stored_unchanged() {
    for (level, plain_len) in [("-1", WHOLE_PLAIN_LEN_MAX), ("-6", PLAIN_LEN_MAX)] {
        let mut plain = text(1, 1 << 20).repeat(plain_len >> 20);
        assert_eq!(plain.len(), plain_len);
        let longest = gzip(level, &plain);
        plain.push(b'.');
        let longer = gzip(level, &plain);
        assert!(longest.len() < 16 << 20);
        for (gz, made_len) in [(&longest, stream_len(&longest)), (&longer, 0)] {
            let report = report_of(&one_file("a.gz", gz.clone()), &options());
            assert_eq!(report.made_len, made_len, "{level}");
        }
    }
}

/// Would catch: a read of a few bytes of a long stream that makes the whole stream, or decodes its
/// whole plain content.
#[test]
fn a_read_of_a_long_stream_decodes_only_a_part() {
    let gz = gzip("-6", &text(2, 6_000_000));
    let scratch = Scratch::tmpfs("64m");
    let source = scratch.dir("source");
    one_file("a.gz", gz.clone()).make(&source, 1);
    let block_len = 64 << 10;
    let options = BuildOptions {
        block_len,
        ..options()
    };
    let target = scratch.path().join("image");
    build(&source, &target, &options);
    let image = Image::open_path(&target, 0, &OpenOptions::default()).unwrap();
    let inode = image.lookup(ROOT_INODE, b"a.gz").unwrap().unwrap();
    for at in (0..gz.len()).step_by(gz.len() / 40) {
        image.drop_caches();
        let before = image.decoded_len().0;
        let read = image.read(&inode, at as u64, 100).unwrap();
        assert!(*read == gz[at..gz.len().min(at + 100)]);
        let decoded = image.decoded_len().0 - before;
        // At most two parts, each of 64 to 80 KiB and a window, which lie in blocks of 64 KiB.
        assert!(decoded < 7 * block_len, "{decoded} at {at}");
    }
}

fn image_of(source: &Path, options: &BuildOptions) -> Vec<u8> {
    let temp = tempfile::tempdir().unwrap();
    let target = temp.path().join("image");
    build(source, &target, options);
    std::fs::read(&target).unwrap()
}

/// Would catch: recipes in the order of threads; results that depend on the thread that found a
/// content first; a tree digest that depends on how streams are stored.
#[test]
fn threads_and_recipes_do_not_affect_the_tree_digest() {
    let (mut plan, _) = taken_apart();
    plan.dir("many");
    for n in 0..120 {
        let gz = gzip("-6", &text(n % 40, 3000 + (n % 40) as usize * 100));
        plan.file(format!("many/{n}.gz"), gz);
    }
    plan.file("many/a.zip", zip(false, &text(5, 3500)));
    let scratch = Scratch::tmpfs("64m");
    let source = scratch.dir("source");
    plan.make(&source, 1);
    let with = |threads, options| BuildOptions { threads, ..options };
    let one = image_of(&source, &with(1, options()));
    for threads in [2, 5] {
        assert!(one == image_of(&source, &with(threads, options())));
    }
    let none = image_of(&source, &without_recipes());
    let open =
        |bytes: &[u8]| Image::open(std::sync::Arc::new(bytes.to_vec()), &OpenOptions::default());
    let (one, none) = (open(&one).unwrap(), open(&none).unwrap());
    assert_eq!(one.summary().tree_digest, none.summary().tree_digest);
    let has_recipes = |image: &Image| {
        let sections = image.sections().unwrap();
        sections
            .iter()
            .any(|s| s.record_type == RecordType::Recipes)
    };
    assert!(has_recipes(&one) && !has_recipes(&none));
}

/// Would catch: reads that begin, end or cross between recipes at a wrong byte, with and without a
/// cache.
#[test]
fn any_part_of_a_file_made_by_recipes_can_be_read() {
    let parts: Vec<_> = (1..5).map(|s| gzip("-6", &text(s, 2000))).collect();
    let data = parts.concat();
    let scratch = Scratch::tmpfs("16m");
    let source = scratch.dir("source");
    one_file("a.gz", data.clone()).make(&source, 1);
    let target = scratch.path().join("image");
    assert!(build(&source, &target, &options()).made_len > 0);
    for cache_len in [0, 1 << 20] {
        let open = OpenOptions {
            cache_len: ByteLen(cache_len),
            ..OpenOptions::default()
        };
        let image = Image::open_path(&target, 0, &open).unwrap();
        let inode = at(&image, "a.gz").unwrap();
        for offset in (0..data.len()).step_by(97) {
            for len in [1, 10, 900, data.len()] {
                let expected = &data[offset..data.len().min(offset + len)];
                let mut found = vec![0; expected.len()];
                let mut done = 0;
                while done < found.len() {
                    let from = (offset + done) as u64;
                    let step = image.read_at(&inode, from, &mut found[done..]).unwrap();
                    assert!(step > 0);
                    done += step;
                }
                assert!(found == expected, "{len} bytes at {offset}");
            }
        }
    }
}

/// Would catch: archives stored unchanged only because they are long, and budgets without memory
/// for them.
#[test]
fn long_archives_are_decoded() {
    let scratch = Scratch::tmpfs("128m");
    let source = scratch.dir("source");
    // Hexadecimal digits compress two to one: the archives have about 6 MB.
    let script = "import zipfile, gzip, random
r = random.Random(1)
members = [bytes(r.choices(b'0123456789abcdef', k=3 << 20)) for _ in range(4)]
with zipfile.ZipFile('long.zip', 'w', zipfile.ZIP_DEFLATED) as z:
    for i, member in enumerate(members): z.writestr(str(i), member)
with open('long.gz', 'wb') as f:
    for member in members: f.write(gzip.compress(member, 6, mtime=0))
";
    std::fs::write(scratch.path().join("make.py"), script).unwrap();
    shell(
        &source,
        "python3 ../make.py && test $(stat -c %s long.zip) -gt 5000000",
    );
    let report = build_and_compare(&source, &options());
    assert!(report.made_len > 10_000_000, "{}", report.made_len);
    // Both archives hold the same plain bytes.
    assert!(report.plain_len < 13_000_000, "{}", report.plain_len);
    let small = BuildOptions {
        memory_len: 256 << 20,
        block_len: 64 << 10,
        threads: 1,
        ..options()
    };
    let report = build_and_compare(&source, &small);
    assert!(report.made_len > 10_000_000, "{}", report.made_len);
}
