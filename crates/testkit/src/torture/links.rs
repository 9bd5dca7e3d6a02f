//! Symlinks and hard links.

use super::maker::Maker;
use crate::Rng;
use weald_format::Result;
use weald_sys::NodeKind;

/// Symlinks with every length of interest and every kind of target. Targets need not exist.
pub fn make_symlinks(root: &Maker, rng: &mut Rng) -> Result<()> {
    root.file("file", b"target")?;
    root.dir("dir")?.file("inside", b"inside")?;
    let targets: [(&str, &[u8]); 14] = [
        ("relative", b"file"),
        ("to-dir", b"dir"),
        ("to-dir-slash", b"dir/"),
        ("dangling", b"does/not/exist"),
        ("absolute", b"/etc/hostname"),
        ("up", b"../symlinks/file"),
        ("far-up", b"../../../../../../../../../.."),
        ("self", b"self"),
        ("loop-a", b"loop-b"),
        ("loop-b", b"loop-a"),
        ("dot", b"."),
        ("root", b"/"),
        ("odd", b"a\nb \xff\xfe\\*"),
        ("slashes", b"//..///.//x//"),
    ];
    for (name, target) in targets {
        root.symlink(name, target)?;
    }
    for len in [1, 59, 60, 61, 255, 256, 1023, 1024, 4094, 4095] {
        let target: Vec<u8> = rng.bytes(len).iter().map(|b| b'a' + b % 26).collect();
        root.symlink(format!("len{len}"), &target)?;
    }
    let same = root.dir("same")?;
    (0..200).try_for_each(|n| same.symlink(format!("{n}"), b"../the/same/target"))
}

/// Hard links of every kind except directories, within and across directories, two and a thousand
/// names.
pub fn make_hard_links(root: &Maker, rng: &mut Rng) -> Result<()> {
    let (here, there) = (root.dir("here")?, root.dir("there")?);
    let below = there.dir("below")?;
    here.file("file", &rng.bytes(10_000))?;
    here.file("empty", b"")?;
    here.pieces("sparse", 1 << 20, &[(1 << 19, b"data")])?;
    here.symlink("symlink", b"target")?;
    here.node("fifo", NodeKind::Fifo)?;
    here.node("socket", NodeKind::Socket)?;
    here.node("char", NodeKind::CharDevice(1 << 32 | 3))?;
    here.node("block", NodeKind::BlockDevice(7 << 32))?;
    here.xattr("file", "user.linked", b"by all names")?;
    for name in [
        "file", "empty", "sparse", "symlink", "fifo", "socket", "char", "block",
    ] {
        here.link(format!("{name}-again"), &here, name)?;
        there.link(format!("{name}-there"), &here, name)?;
        below.link(format!("a-{name}-first"), &here, name)?;
    }
    // Equal content but another inode: deduplication must not turn copies into links.
    let content = rng.bytes(5000);
    here.file("copy1", &content)?;
    here.file("copy2", &content)?;
    there.link("copy2-there", &here, "copy2")?;
    let many = root.dir("many")?;
    many.file("0", b"a thousand names")?;
    (1..1000).try_for_each(|n| many.link(format!("{n}"), &many, "0"))?;
    make_linked_twins(root)
}

/// Two directories that differ only in the link targets of their files.
fn make_linked_twins(root: &Maker) -> Result<()> {
    for name in ["twin-a", "twin-b"] {
        let twin = root.dir(name)?;
        twin.file("x", b"same")?;
        twin.link("y", &twin, "x")?;
    }
    let twin = root.dir("twin-c")?;
    twin.file("x", b"same")?;
    twin.file("y", b"same")
}
