//! Tests of the model against what POSIX says.

use crate::ModelFs;
use rustix::io::Errno;
use weald_format::FileKind;
use weald_format::limits::FILE_LEN_MAX;
use weald_vfs::{
    AllocateMode, FilePlace, Ino, NewInode, NewStat, Outcome, RenameMode, WritableFs, XattrMode,
};

const ROOT: Ino = Ino::ROOT;

fn new(kind: FileKind) -> NewInode<'static> {
    NewInode {
        kind,
        permissions: 0o644,
        uid: 1,
        gid: 2,
        rdev: 0,
        target: &[],
        xattrs: &[],
    }
}

fn made(fs: &ModelFs, dir: Ino, name: &str, kind: FileKind) -> Ino {
    let stat = fs.create(dir, name.as_bytes(), &new(kind), 10);
    stat.expect("a new inode").ino
}

fn errno<T>(outcome: Outcome<T>) -> Option<Errno> {
    outcome.err().map(|failure| failure.errno)
}

fn nlink(fs: &ModelFs, ino: Ino) -> u32 {
    fs.stat(ino).expect("a stat").nlink
}

fn content(fs: &ModelFs, ino: Ino) -> Vec<u8> {
    let mut bytes = Vec::new();
    fs.read(ino, 0, 1 << 20, &mut bytes).expect("a read");
    bytes
}

// Would catch a wrong errno, or a wrong count of links, of renames.
#[test]
fn renames_do_what_posix_says() {
    let fs = ModelFs::new(0o755, 0);
    let dir = made(&fs, ROOT, "dir", FileKind::Directory);
    let sub = made(&fs, dir, "sub", FileKind::Directory);
    let file = made(&fs, ROOT, "file", FileKind::Regular);
    let rename = |from: (Ino, &str), to: (Ino, &str), mode| {
        let (from, to) = ((from.0, from.1.as_bytes()), (to.0, to.1.as_bytes()));
        fs.rename(from, to, mode, 20)
    };
    let replace = RenameMode::Replace;
    let into_itself = rename((ROOT, "dir"), (sub, "x"), replace);
    assert_eq!(errno(into_itself), Some(Errno::INVAL));
    let over_file = rename((ROOT, "dir"), (ROOT, "file"), replace);
    assert_eq!(errno(over_file), Some(Errno::NOTDIR));
    let over_dir = rename((ROOT, "file"), (dir, "sub"), replace);
    assert_eq!(errno(over_dir), Some(Errno::ISDIR));
    let other = made(&fs, ROOT, "other", FileKind::Directory);
    let over_full = rename((ROOT, "other"), (ROOT, "dir"), replace);
    assert_eq!(errno(over_full), Some(Errno::NOTEMPTY));
    let kept = rename((ROOT, "other"), (ROOT, "file"), RenameMode::KeepExisting);
    assert_eq!(errno(kept), Some(Errno::EXIST));
    rename((ROOT, "file"), (dir, "sub"), RenameMode::Exchange).expect("an exchange");
    assert_eq!((nlink(&fs, ROOT), nlink(&fs, dir)), (5, 2));
    assert_eq!(fs.parent(sub).expect("a parent"), ROOT);
    let stat = fs.link(file, ROOT, b"again", 30).expect("a link");
    assert_eq!((stat.nlink, stat.ctime, stat.mtime), (2, 30, 10));
    rename((dir, "sub"), (ROOT, "again"), replace).expect("nothing to do");
    assert!(fs.lookup(dir, b"sub").is_ok());
    rename((ROOT, "other"), (ROOT, "file"), replace).expect("over an empty directory");
    assert!(errno(fs.stat(sub)).is_none() && nlink(&fs, sub) == 0);
    assert_eq!(nlink(&fs, ROOT), 4);
    rename((dir, "sub"), (dir, "new"), RenameMode::LeaveWhiteout).expect("a whiteout");
    let left = fs.lookup(dir, b"sub").expect("the whiteout");
    assert_eq!((left.kind, left.rdev), (FileKind::CharDevice, 0));
    assert_eq!(errno(fs.link(other, ROOT, b"x", 9)), Some(Errno::PERM));
}

// Would catch a content that lacks bytes or has too many, and missing limits.
#[test]
fn contents_are_sparse_and_limited() {
    let fs = ModelFs::new(0o755, 0);
    let file = made(&fs, ROOT, "file", FileKind::Regular);
    fs.write(file, 4090, &[1; 10], 20).expect("a write");
    fs.allocate(file, AllocateMode::Insert, 4096, 4096, 21)
        .expect("an insertion");
    let mut wanted = [vec![0; 4090], vec![1; 6], vec![0; 4096], vec![1; 4]].concat();
    assert_eq!(content(&fs, file), wanted);
    assert_eq!(fs.seek(file, 0, true).expect("a hole"), 4096);
    assert_eq!(fs.seek(file, 4096, false).expect("data"), 8192);
    fs.allocate(file, AllocateMode::Collapse, 0, 4096, 22)
        .expect("a collapse");
    wanted.drain(..4096);
    assert_eq!(content(&fs, file), wanted);
    let unaligned = fs.allocate(file, AllocateMode::Collapse, 1, 4096, 23);
    assert_eq!(errno(unaligned), Some(Errno::INVAL));
    let size = |size| NewStat {
        size: Some(size),
        ..NewStat::default()
    };
    fs.set_stat(file, &size(FILE_LEN_MAX), 24)
        .expect("the longest file");
    fs.write(file, FILE_LEN_MAX - 1, &[7], 25)
        .expect("its last byte");
    assert_eq!(
        fs.seek(file, 8192, false).expect("data"),
        (FILE_LEN_MAX - 1) / 4096 * 4096
    );
    assert_eq!(
        errno(fs.write(file, FILE_LEN_MAX, &[7], 26)),
        Some(Errno::FBIG)
    );
    assert_eq!(
        errno(fs.set_stat(file, &size(1 << 63), 27)),
        Some(Errno::FBIG)
    );
    let copy = made(&fs, ROOT, "copy", FileKind::Regular);
    assert_eq!(
        fs.copy_range(
            FilePlace::new(file, 4098),
            FilePlace::new(copy, 5),
            4096,
            28
        )
        .expect("a copy"),
        4096
    );
    assert_eq!(
        content(&fs, copy),
        [vec![0; 5], vec![1; 2], vec![0; 4094]].concat()
    );
    assert_eq!(
        errno(fs.copy_range(FilePlace::new(file, 0), FilePlace::new(file, 9), 10, 29)),
        Some(Errno::INVAL)
    );
    let before = fs.clone();
    fs.set_stat(file, &size(4097), 30).expect("a cut");
    fs.set_stat(file, &size(4100), 31).expect("growth");
    assert_eq!(content(&fs, file)[4096..], [1, 0, 0, 0]);
    assert_eq!(before.stat(file).expect("a stat").size, FILE_LEN_MAX);
}

// Would catch a removed file that goes too early or stays, and wrong rules of attributes.
#[test]
fn removed_files_stay_until_forgotten() {
    let fs = ModelFs::new(0o755, 0);
    let file = made(&fs, ROOT, "file", FileKind::Regular);
    fs.set_xattr(file, b"user.a", b"1", XattrMode::Create, 11)
        .expect("an attribute");
    let again = fs.set_xattr(file, b"user.a", b"1", XattrMode::Create, 11);
    assert_eq!(errno(again), Some(Errno::EXIST));
    let large = fs.set_xattr(file, b"user.b", &[0; 65_537], XattrMode::Set, 11);
    assert_eq!(errno(large), Some(Errno::TOOBIG));
    fs.forget(file).expect("a forget");
    assert_eq!(fs.unlink(ROOT, b"file", 12).expect("a removal").nlink, 0);
    fs.write(file, 0, b"still", 13).expect("a write");
    fs.link(file, ROOT, b"back", 14).expect("a link");
    fs.unlink(ROOT, b"back", 15).expect("a removal");
    fs.forget(file).expect("a forget");
    assert_eq!(errno(fs.stat(file)), Some(Errno::NOENT));
    let unnamed = fs
        .create_unnamed(ROOT, &new(FileKind::Regular), 16)
        .expect("a file");
    assert!(unnamed.ino > file);
    fs.drop_orphans();
    assert_eq!(fs.inos(), [ROOT]);
}

// Would catch a listing that repeats or skips a name while others come and go.
#[test]
fn listings_go_on_after_changes() {
    let fs = ModelFs::new(0o755, 0);
    for n in 0..9 {
        made(&fs, ROOT, &format!("n{n}"), FileKind::Regular);
    }
    let (mut seen, mut after) = (Vec::new(), 0);
    fs.list(ROOT, 0, &mut |listed| {
        (after, _) = (listed.cookie, seen.push(listed.name.to_vec()));
        seen.len() < 4
    })
    .expect("a listing");
    fs.unlink(ROOT, b"n3", 11).expect("a removal");
    fs.list(ROOT, after, &mut |listed| {
        seen.push(listed.name.to_vec());
        true
    })
    .expect("a listing");
    let wanted: Vec<_> = (0..9).map(|n| format!("n{n}").into_bytes()).collect();
    assert_eq!(seen, wanted);
}
