//! Names: every byte, every length, and names that shells, terminals and parsers fail on.

use super::maker::Maker;
use crate::Rng;
use weald_format::Result;

const ODD: [&[u8]; 46] = [
    b" ",
    b"  ",
    b" leading",
    b"trailing ",
    b"-",
    b"--",
    b"-rf",
    b"--help",
    b"...",
    b"..x",
    b".hidden",
    b"~",
    b"~root",
    b"a b",
    b"a\nb",
    b"\n",
    b"a\rb",
    b"a\tb",
    b"*",
    b"?",
    b"[a-z]",
    b"{a,b}",
    b"$HOME",
    b"$(id)",
    b"`id`",
    b"'",
    b"\"",
    b"\\",
    b"\\n",
    b"a\\\\b",
    b"|",
    b"&",
    b";",
    b"<>",
    b"!",
    b"#",
    b"%s%n",
    b"=",
    b":",
    b"\x1b[31mred\x1b[0m",
    b"\xff\xfe",
    b"\xc3\x28",
    b"\xed\xa0\x80",
    b"\xf0\x9f\x8c\xb2",
    b"\xe2\x80\xae",
    b"CON",
];

/// Pairs of names that a careless comparison treats as equal or orders wrongly.
const NEAR: [&[u8]; 12] = [
    b"con",
    b"Con",
    b"caf\xc3\xa9",
    b"cafe\xcc\x81",
    b"a",
    b"a.",
    b"a/",
    b"aa",
    b"a0",
    b"a-",
    b"\x7f",
    b"\x80",
];

/// Makes the section.
pub fn make(root: &Maker, rng: &mut Rng) -> Result<()> {
    let single = root.dir("single-bytes")?;
    for byte in (1..=255).filter(|b| !b"/.".contains(b)) {
        single.file([byte], &[byte])?;
    }
    let odd = root.dir("odd")?;
    for name in ODD {
        odd.file(name, name)?;
    }
    let near = root.dir("near")?;
    for name in NEAR.iter().filter(|name| !name.contains(&b'/')) {
        near.file(name, name)?;
    }
    make_lengths(&root.dir("lengths")?, rng)?;
    make_patterns(&root.dir("patterns")?, rng)?;
    make_odd_dirs(&root.dir("dirs")?)
}

fn make_lengths(root: &Maker, rng: &mut Rng) -> Result<()> {
    for len in 1..=255 {
        root.file(vec![b'x'; len], b"")?;
    }
    root.file([0xFF; 255], b"not UTF-8")?;
    root.file("ü".repeat(127), b"UTF-8")?;
    for _ in 0..50 {
        let name: Vec<u8> = rng
            .bytes(255)
            .iter()
            .map(|&b| if b == 0 || b == b'/' { b'_' } else { b })
            .collect();
        root.file(name, b"random")?;
    }
    Ok(())
}

/// Names as programs make them: counters with and without gaps, digests, long common prefixes.
fn make_patterns(root: &Maker, rng: &mut Rng) -> Result<()> {
    let (counters, gaps) = (root.dir("counters")?, root.dir("gaps")?);
    for number in 0..1500_u32 {
        counters.node(
            format!("file-{number:05}.txt"),
            weald_sys::NodeKind::EmptyFile,
        )?;
        if !rng.one_in(5) {
            gaps.node(format!("{number}"), weald_sys::NodeKind::EmptyFile)?;
        }
    }
    let (digests, long) = (root.dir("digests")?, root.dir("long")?);
    for number in 0..300 {
        let hex: String = rng.bytes(32).iter().map(|b| format!("{b:02x}")).collect();
        digests.file(&hex, hex.as_bytes())?;
        long.file(
            format!("{}{number}", "the-same-long-beginning-".repeat(10)),
            b"",
        )?;
    }
    Ok(())
}

/// Directories with odd names, each with a child with an odd name, so that paths are odd in the
/// middle.
fn make_odd_dirs(root: &Maker) -> Result<()> {
    for name in ODD {
        let dir = root.dir(name)?;
        dir.symlink(name, name)?;
        dir.file([name, b"'s child"].concat(), name)?;
    }
    root.dir([0xFE; 255])?
        .dir([b'y'; 255])?
        .file([b'z'; 255], b"")
}
