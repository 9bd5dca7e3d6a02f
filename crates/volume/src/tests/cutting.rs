//! Files that are cut by content.

use super::*;
use crate::Chunking;
use crate::cut::{Format, archive, tar_header};
use crate::properties::CHUNKING;
use weald_format::volume::{ExtentsRow, WindowPlace};
use weald_format::{Ino, WindowNo};

/// Bytes of one write(2) of tar(1).
const TAR_WRITE_LEN: usize = 10240;

fn with(chunking: Chunking) -> TestStore {
    TestStore::with(&VolumeOptions {
        chunking,
        ..VolumeOptions::default()
    })
}

/// Real files: the sources and documents of this workspace.
fn sources() -> Vec<(String, Vec<u8>)> {
    fn walk(dir: &Path, files: &mut Vec<(String, Vec<u8>)>) {
        let entries = std::fs::read_dir(dir).expect("list");
        let mut paths: Vec<_> = entries.map(|e| e.expect("an entry").path()).collect();
        paths.sort();
        for path in paths {
            let is_source = path.extension().is_some_and(|end| {
                ["rs", "md", "toml", "lock", "py", "sh"]
                    .iter()
                    .any(|e| end == *e)
            });
            match path.is_dir() {
                true if path.ends_with("target") || path.ends_with(".git") => {}
                true => walk(&path, files),
                false if is_source => {
                    let bytes = std::fs::read(&path).expect("a source file");
                    files.push((path.to_string_lossy().into_owned(), bytes));
                }
                false => {}
            }
        }
    }
    let mut files = Vec::new();
    walk(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."),
        &mut files,
    );
    assert!(files.len() > 300);
    files
}

impl TestStore {
    /// The bytes of all segments.
    fn segments(&self) -> Vec<Vec<u8>> {
        let entries = std::fs::read_dir(self.dir.path().join("store/segments")).expect("list");
        let mut paths: Vec<_> = entries.map(|e| e.expect("an entry").path()).collect();
        paths.sort();
        let read = |path| std::fs::read(path).expect("a segment");
        paths.into_iter().map(read).collect()
    }
}

fn tar(files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, bytes) in files {
        let name = &name[name.len().saturating_sub(99)..];
        out.extend(tar_header(name, bytes.len() as u64, b'0'));
        out.extend(bytes);
        out.resize(out.len().next_multiple_of(512), 0);
    }
    out.resize((out.len() + 1024).next_multiple_of(TAR_WRITE_LEN), 0);
    out
}

/// Writes `bytes` in order, with a commit after each `commit_len` bytes.
fn write_in_order(volume: &Volume, ino: Ino, bytes: &[u8], commit_len: usize) {
    let mut since = 0;
    for (part, at) in bytes
        .chunks(TAR_WRITE_LEN)
        .zip((0..).step_by(TAR_WRITE_LEN))
    {
        volume.write(ino, at, part, 20).expect("write");
        since += part.len();
        if since >= commit_len {
            volume.sync().expect("sync");
            since = 0;
        }
    }
    volume.sync().expect("sync");
}

fn write_tree(volume: &Volume, files: &[(String, Vec<u8>)]) -> Vec<Ino> {
    let top = dir(volume, Ino::ROOT, "tree").ino;
    let write = |(no, (_, bytes)): (usize, &(String, Vec<u8>))| {
        let ino = file(volume, top, &no.to_string()).ino;
        volume.write(ino, 0, bytes, 20).expect("write");
        ino
    };
    let inos = files.iter().enumerate().map(write).collect();
    volume.sync().expect("sync");
    inos
}

/// Bytes that blocks take in segments, and extents in the tables, keys included.
fn cost(volume: &Volume) -> u64 {
    let mut rows = 0;
    for ino in 0..volume.core.state.read().active.next_ino.0 {
        let first = WindowPlace {
            ino: Ino(ino),
            window: WindowNo::FIRST,
        };
        let count = &mut |_, row: ExtentsRow| {
            rows += 20 + row.encode().len() as u64;
            std::ops::ControlFlow::Continue(())
        };
        let tables = &volume.core.tables;
        tables.each_window(first, count).expect("rows");
    }
    volume.status().expect("status").stored_len + rows
}

/// Parts of a thousand that `second` adds to what is there.
fn added(volume: &Volume, len: usize, second: impl FnOnce()) -> u64 {
    let before = cost(volume);
    second();
    (cost(volume) - before) * 1000 / len as u64
}

// Would catch: a tar whose members are not found again in the tree beside it, or the other way
// round, also after the volume was opened again.
#[test]
fn a_tar_beside_its_tree_costs_its_headers() {
    let files = sources();
    let tar = tar(&files);
    let tree_len = files.iter().map(|(_, bytes)| bytes.len()).sum();
    for chunking in [Chunking::Auto, Chunking::Content, Chunking::Fixed] {
        for (is_tar_first, commit_len) in [(false, 1 << 20), (true, 3 << 20), (false, usize::MAX)] {
            let place = with(chunking);
            let mut volume = place.open();
            let new_tar = |volume: &Volume| {
                let ino = file(volume, Ino::ROOT, "tar").ino;
                write_in_order(volume, ino, &tar, commit_len);
                assert!(read(volume, ino) == tar);
            };
            if is_tar_first {
                new_tar(&volume)
            } else {
                drop(write_tree(&volume, &files))
            }
            if commit_len < usize::MAX {
                volume.close().expect("close");
                drop(volume);
                volume = place.open();
                while volume.rebuild_index() {}
            }
            let share = if is_tar_first {
                added(&volume, tree_len, || drop(write_tree(&volume, &files)))
            } else {
                added(&volume, tar.len(), || new_tar(&volume))
            };
            println!("{chunking:?}, tar first: {is_tar_first}: {share} of a thousand");
            match chunking {
                // This is what the others save.
                Chunking::Fixed => assert!(share > 150, "{share} of a thousand"),
                _ => assert!(share <= 50, "{chunking:?}: {share} of a thousand"),
            }
            volume.close().expect("close");
            drop(volume);
            place.check();
        }
    }
}

// Would catch: a member of a cpio or ar archive that is not found again beside its file, also when
// a commit happens in the middle of it.
#[test]
fn members_of_other_archives_are_found_again() {
    let files: Vec<Vec<u8>> = (1..40).map(|n| noise(n * n * 200, n as u64)).collect();
    let contents: Vec<&[u8]> = files.iter().map(Vec::as_slice).collect();
    let named = files.iter().map(|bytes| (String::new(), bytes.clone()));
    let named: Vec<_> = named.collect();
    for format in [Format::Tar, Format::Cpio, Format::Ar] {
        let archive = archive(format, &contents);
        for chunking in [Chunking::Auto, Chunking::Content] {
            for commit_len in [usize::MAX, 700_000] {
                let place = with(chunking);
                let volume = place.open();
                write_tree(&volume, &named);
                let share = added(&volume, archive.len(), || {
                    let ino = file(&volume, Ino::ROOT, "archive").ino;
                    write_in_order(&volume, ino, &archive, commit_len);
                    assert!(read(&volume, ino) == archive);
                });
                // Each commit stores the beginning of a chunk that the next one finds again.
                let tails = (archive.len() / commit_len) * (128 << 10) * 1000 / archive.len();
                println!("{format:?}, {chunking:?}: {share} of a thousand, {tails} allowed");
                assert!(
                    share as usize <= 10 + tails,
                    "{format:?}, {chunking:?}: {share}"
                );
            }
        }
    }
}

// Would catch: data that is not found again because it moved, or because commits happened at other
// moments, and `content` that is not needed for it.
#[test]
fn data_that_moved_is_found_again() {
    let bytes = noise(6 << 20, 1);
    let mut moved = noise(1001, 2);
    moved.extend(&bytes);
    for (chunking, commit_len) in [
        (Chunking::Auto, usize::MAX),
        (Chunking::Content, usize::MAX),
        (Chunking::Content, 300_000),
        (Chunking::Content, 30_000),
    ] {
        let place = with(chunking);
        let volume = place.open();
        let first = file(&volume, Ino::ROOT, "first").ino;
        write_in_order(&volume, first, &bytes, 700_000);
        let share = added(&volume, bytes.len(), || {
            let second = file(&volume, Ino::ROOT, "second").ino;
            write_in_order(&volume, second, &moved, commit_len);
            assert!(read(&volume, second) == moved);
        });
        println!("{chunking:?}, {commit_len}: {share} of a thousand");
        match chunking {
            Chunking::Content => assert!(share < 50, "{share} of a thousand"),
            _ => assert!(share > 900, "{share} of a thousand"),
        }
        assert!(read(&volume, first) == bytes);
        volume.close().expect("close");
        drop(volume);
        place.check();
    }
}

// Would catch: a log whose chunk is written again with every line.
#[test]
fn a_file_that_grows_by_lines_is_not_written_over_and_over() {
    let bytes = noise(600_000, 3);
    let written = |chunking| {
        let place = with(chunking);
        let volume = place.open();
        let ino = file(&volume, Ino::ROOT, "log").ino;
        for (part, at) in bytes.chunks(1000).zip((0..).step_by(1000)) {
            volume.write(ino, at, part, 20).expect("write");
            volume.sync().expect("sync");
        }
        assert!(read(&volume, ino) == bytes);
        volume.close().expect("close");
        drop(volume);
        place.check();
        place.segments().iter().map(Vec::len).sum::<usize>()
    };
    let (fixed, content) = (written(Chunking::Fixed), written(Chunking::Content));
    println!("{fixed} and {content} bytes written for {}", bytes.len());
    assert!(content < fixed * 3 / 2);
}

// Would catch: a damaged block that makes the volume read-only because a file grew.
#[test]
fn a_file_with_a_damaged_tail_still_grows() {
    let place = with(Chunking::Content);
    let bytes = noise(30_000, 3);
    let volume = place.open();
    let ino = file(&volume, Ino::ROOT, "file").ino;
    volume.write(ino, 0, &bytes, 20).expect("write");
    volume.close().expect("close");
    drop(volume);
    let segments = place.dir.path().join("store/segments");
    let segment = std::fs::read_dir(segments).expect("list").next();
    let segment = segment.expect("a segment").expect("an entry").path();
    let mut stored = std::fs::read(&segment).expect("a segment");
    let middle = stored.len() / 2;
    stored[middle] ^= 1;
    std::fs::write(&segment, stored).expect("write");
    let volume = place.open();
    volume
        .write(ino, 30_000, &noise(50_000, 4), 20)
        .expect("write");
    volume.sync().expect("sync");
    let read = |offset| {
        let mut out = Vec::new();
        let read = volume.read(ino, offset, 50_000, &mut out);
        (errno(read), out == noise(50_000, 4))
    };
    assert_eq!(read(30_000), (None, true));
    assert_eq!(read(0).0, Some(Errno::IO));
}

// Would catch: blocks whose bytes depend on the thread that was first.
#[test]
fn cut_files_do_not_depend_on_threads() {
    let files = sources();
    let tar = tar(&files);
    let written = |threads| {
        let place = with(Chunking::Content);
        let options = OpenOptions {
            background: false,
            threads,
            epoch: Some(1),
            ..OpenOptions::default()
        };
        let volume = Volume::open(&place.store(), "v", options).expect("open");
        write_tree(&volume, &files);
        let ino = file(&volume, Ino::ROOT, "tar").ino;
        write_in_order(&volume, ino, &tar, 5 << 20);
        volume.close().expect("close");
        place.segments()
    };
    assert!(written(1) == written(3));
}

// Would catch: a chunking that new files do not take, or that the root copies to every file.
#[test]
fn files_are_cut_as_their_directory_says() {
    let place = with(Chunking::Fixed);
    let volume = place.open();
    let set =
        |ino, value: &str| volume.set_xattr(ino, CHUNKING, value.as_bytes(), XattrMode::Set, 7);
    let get = |ino| volume.xattr(ino, CHUNKING).ok();
    assert_eq!(get(Ino::ROOT).as_deref(), Some(&b"fixed"[..]));
    let top = dir(&volume, Ino::ROOT, "top").ino;
    assert_eq!(get(top), None);
    assert_eq!(errno(set(top, "CONTENT")), Some(Errno::INVAL));
    set(top, "content").expect("set");
    let inside = file(&volume, dir(&volume, top, "below").ino, "file").ino;
    assert_eq!(get(inside).as_deref(), Some(&b"content"[..]));
    let bytes = noise(1 << 20, 5);
    volume.write(inside, 0, &bytes, 1).expect("write");
    volume.sync().expect("sync");
    let grown = |dir, name, bytes: &[u8]| {
        let ino = file(&volume, dir, name).ino;
        added(&volume, bytes.len(), || {
            volume.write(ino, 0, bytes, 1).expect("write");
            volume.sync().expect("sync");
        })
    };
    // A file in `top` finds what moved, one in the root does not until the volume says so.
    assert!(grown(top, "a", &bytes[7..]) < 100);
    assert!(grown(Ino::ROOT, "b", &bytes[9..]) > 900);
    set(Ino::ROOT, "content").expect("set");
    assert!(grown(Ino::ROOT, "c", &bytes[11..]) < 100);
    volume.remove_xattr(Ino::ROOT, CHUNKING, 8).expect("remove");
    assert!(grown(Ino::ROOT, "d", &bytes[13..]) > 900);
}
