//! PNG files: stored as filtered rows if that is smaller, for any chunk size, and restored exactly
//! in every case.

use crate::support::*;
use std::process::Command;
use weald_builder::{BuildOptions, Categories, CodecSpec};
use weald_image::{Image, OpenOptions};

fn options() -> BuildOptions {
    BuildOptions {
        memory_len: 512 << 20,
        codec: CodecSpec::Zstd(16),
        categories: Categories {
            incompressible: true,
            png: true,
            ..Categories::none()
        },
        ..quick()
    }
}

/// Parameters of a picture.
#[derive(Clone, Copy)]
struct Made {
    width: usize,
    height: usize,
    /// Length of an IDAT chunk, bytes.
    chunk_len: usize,
    level: u8,
    /// Strategy of zlib: 0 default, 1 filtered.
    strategy: u8,
}

const MADE: Made = Made {
    width: 300,
    height: 200,
    chunk_len: 8192,
    level: 6,
    strategy: 1,
};

/// A PNG of three bytes per pixel with Sub-filtered rows, made by Python's zlib as libpng does; and
/// the length of its stream without zlib's framing.
fn png(made: Made) -> (Vec<u8>, u64) {
    let script = "import struct, sys, zlib
width, height, chunk_len, level, strategy = map(int, sys.argv[1:])
rows, seed = bytearray(), 1
for y in range(height):
    rows.append(1)
    for x in range(width):
        seed = (seed * 1103515245 + 12345) & 0x7fffffff
        edge = 60 if (x // 9 + y // 7) % 5 == 0 and x % 9 == 0 else 0
        rows += bytes(((seed >> 24) % 3 + edge, (y // 16) % 4, 255 - (x // 40 + y // 50) % 3))
c = zlib.compressobj(level, 8, 15, 8, strategy)
stream = c.compress(bytes(rows)) + c.flush()
def chunk(kind, body):
    return struct.pack('>I', len(body)) + kind + body + struct.pack('>I', zlib.crc32(kind + body))
out = b'\\x89PNG\\r\\n\\x1a\\n' + chunk(b'IHDR', struct.pack('>IIBBBBB', width, height, 8, 2, 0, \
 0, 0))
out += chunk(b'tEXt', b'Title\\0a picture')
for at in range(0, len(stream), chunk_len):
    out += chunk(b'IDAT', stream[at:at + chunk_len])
sys.stderr.write(str(len(stream) - 6))
sys.stdout.buffer.write(out + chunk(b'IEND', b''))";
    let numbers = [
        made.width,
        made.height,
        made.chunk_len,
        made.level.into(),
        made.strategy.into(),
    ];
    let output = Command::new("python3")
        .args(["-c", script])
        .args(numbers.map(|n| n.to_string()))
        .output()
        .unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{text}");
    (output.stdout, text.parse().unwrap())
}

/// Would catch: an unknown strategy or level of zlib, chunks lost or joined wrongly, and a picture
/// that takes as much space as before.
#[test]
fn pictures_are_restored_and_smaller() {
    for (level, strategy, chunk_len) in [
        (6, 1, 8192),
        (9, 1, 1 << 20),
        (6, 0, 1001),
        (9, 0, 8192),
        (1, 0, 32768),
    ] {
        let (data, stream_len) = png(Made {
            level,
            strategy,
            chunk_len,
            ..MADE
        });
        let plan = one_file("a.png", data);
        let what = format!("level {level}, strategy {strategy}, chunks of {chunk_len}");
        let categories = Categories {
            incompressible: true,
            ..Categories::none()
        };
        let without = BuildOptions {
            categories,
            ..options()
        };
        let (with, _) = assert_recipes_save(&plan, &options(), &without, &what);
        assert_eq!(with.made_len, stream_len, "{what}");
    }
}

/// Would catch: data decoded by mistake, or not restored.
#[test]
fn broken_data_and_data_that_gains_nothing_is_stored_unchanged() {
    let (whole, _) = png(MADE);
    let mut plan = Plan::default();
    plan.file("cut.png", whole[..whole.len() / 2].to_vec());
    plan.file("only-magic.png", whole[..8].to_vec());
    plan.file("half-chunk.png", whole[..60].to_vec());
    plan.file(
        "tiny-chunks.png",
        png(Made {
            chunk_len: 100,
            ..MADE
        })
        .0,
    );
    plan.file(
        "short.png",
        png(Made {
            width: 3,
            height: 3,
            ..MADE
        })
        .0,
    );
    // All pixels but a few have one colour: a thousand plain bytes per byte of the stream.
    let flat = "import zlib, struct, sys
z = zlib.compress(b'\\0' * 4000000, 9)
def chunk(kind, body):
    return struct.pack('>I', len(body)) + kind + body + b'1234'
sys.stdout.buffer.write(b'\\x89PNG\\r\\n\\x1a\\n' + chunk(b'IDAT', z) + chunk(b'IEND', b''))";
    let output = Command::new("python3").args(["-c", flat]).output().unwrap();
    plan.file("flat.png", output.stdout);
    let mut dictionary = whole.clone();
    let start = whole.windows(4).position(|w| w == b"IDAT").unwrap() + 4;
    dictionary[start + 1] |= 0x20;
    plan.file("dictionary.png", dictionary);
    let mut broken = whole.clone();
    broken[start + 2] |= 6;
    plan.file("broken.png", broken);
    assert_eq!(report_of(&plan, &options()).made_len, 0);
}

/// Would catch: pictures with flipped bits, which may still hold valid streams, that are not
/// restored.
#[test]
fn damaged_pictures_are_restored_exactly() {
    let (whole, _) = png(Made {
        width: 80,
        height: 60,
        chunk_len: 600,
        ..MADE
    });
    let mut plan = Plan::default();
    for n in 0..60 {
        let mut damaged = whole.clone();
        let at = 8 + n * (whole.len() - 8) / 60;
        damaged[at] ^= 1 << (n % 8);
        plan.file(format!("{n:02}.png"), damaged);
    }
    report_of(&plan, &options());
}

/// Would catch: wrong reads across chunk boundaries, where bytes of a recipe and others alternate.
#[test]
fn any_part_can_be_read() {
    let (data, _) = png(Made {
        width: 100,
        height: 80,
        chunk_len: 900,
        ..MADE
    });
    let scratch = Scratch::tmpfs("16m");
    let source = scratch.dir("source");
    one_file("a.png", data.clone()).make(&source, 1);
    let target = scratch.path().join("image");
    assert!(build(&source, &target, &options()).made_len > 0);
    let image = Image::open_path(&target, 0, &OpenOptions::default()).unwrap();
    let inode = at(&image, "a.png").unwrap();
    for offset in 0..data.len() {
        let mut found = vec![0; 40.min(data.len() - offset)];
        let len = image.read_at(&inode, offset as u64, &mut found).unwrap();
        assert!(len > 0 && found[..len] == data[offset..offset + len]);
    }
}
