//! Tests of the walker, on real trees.

use super::*;
use crate::options::walk::{FollowLinks, MountPoints};
use crate::{Observer, Problem, Progress};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::fmt::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::Mutex;
use weald_filter::Filter;
use weald_format::{ErrorKind, FileKind, Timestamp};
use weald_sys::{NewTimes, NodeKind};

/// Collects problems; with `cancels` it cancels from the first check on.
#[derive(Default)]
struct ProblemCollector {
    problems: Mutex<Vec<String>>,
    cancels: bool,
}

impl Observer for ProblemCollector {
    fn progress(&self, _: &Progress) {}

    fn problem(&self, problem: &Problem) {
        let line = format!(
            "{}: {}",
            String::from_utf8_lossy(&problem.path),
            problem.what
        );
        self.problems.lock().unwrap().push(line);
    }

    fn is_cancelled(&self) -> bool {
        self.cancels
    }
}

fn options(filter: &Filter, threads: usize) -> ScanOptions<'_> {
    ScanOptions {
        omitted_inodes: &[],
        threads,
        filter,
        script: None,
        additions: &[],
        mount_points: MountPoints::Entered,
        follow: FollowLinks::None,
        splits_links: false,
        prune_empty_dirs: false,
        keep_xattrs: true,
        keep_atime: false,
        keep_ctime: false,
        keep_btime: false,
    }
}

fn scan_plain(path: &Path, threads: usize) -> ScannedTree {
    let (filter, collector) = (Filter::new(), ProblemCollector::default());
    let tree = scan(path, &options(&filter, threads), &collector).unwrap();
    assert_eq!(*collector.problems.lock().unwrap(), [""; 0]);
    tree
}

/// Describes the whole tree as text.
fn describe(tree: &ScannedTree) -> String {
    let mut text = String::new();
    for number in 0..tree.entry_count() {
        let entry = EntryNo(number);
        let path = tree.path_of(entry).escape_ascii().to_string();
        let (kind, attributes, times) =
            (tree.kind(entry), tree.attributes(entry), tree.times(entry));
        let xattrs = tree
            .xattrs_no(entry)
            .map(|n| (n, &tree.xattr_sets()[n as usize]));
        let target = tree.target(entry).map(|t| t.escape_ascii().to_string());
        let (dir, size, group) = (tree.dir(entry), tree.size(entry), tree.link_group(entry));
        let number = tree.attributes_no(entry);
        writeln!(
            text,
            "{path} {kind:?} {number} {attributes:?} {times:?} {size} {xattrs:?} \
         {target:?} {dir:?} {group:?}"
        )
        .unwrap();
    }
    text
}

/// The entry at `path`.
fn find(tree: &ScannedTree, path: &str) -> Option<EntryNo> {
    path.split('/').try_fold(ScannedTree::ROOT, |at, name| {
        tree.entries_of(tree.dir(at)?)
            .find(|&e| tree.name(e) == name.as_bytes())
    })
}

fn paths(tree: &ScannedTree) -> Vec<String> {
    let path = |n| String::from_utf8(tree.path_of(EntryNo(n))).unwrap();
    let mut paths: Vec<_> = (1..tree.entry_count()).map(path).collect();
    paths.sort();
    paths
}

/// Creates 40 directories in two levels with links, xattrs and files.
fn make_forest(root: &Path) {
    for a in 0..8 {
        for b in 0..5 {
            let dir = root.join(format!("d{a}/e{b}"));
            std::fs::create_dir_all(&dir).unwrap();
            for c in 0..30 {
                let file = dir.join(format!("f{}", (c * 7 + a) % 30));
                std::fs::write(&file, vec![1; c]).unwrap();
                std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600 + (c % 8) as u32))
                    .unwrap();
            }
            symlink(format!("target{}", a * b), dir.join("link")).unwrap();
            std::fs::hard_link(dir.join("f3"), root.join(format!("d{a}/hard{b}"))).unwrap();
            std::fs::hard_link(dir.join("link"), root.join(format!("d{a}/hardlink{b}"))).unwrap();
            let fd = weald_sys::open_dir(&dir).unwrap();
            weald_sys::set_xattr_at(&fd, b"f5", b"user.x", format!("{}", (a + b) % 3).as_bytes())
                .unwrap();
        }
    }
}

#[test]
fn the_tree_is_the_same_for_any_number_of_threads() {
    let temp = tempfile::tempdir().unwrap();
    make_forest(temp.path());
    let (filter, collector) = (Filter::new(), ProblemCollector::default());
    let mut all = options(&filter, 1);
    (all.keep_ctime, all.keep_btime, all.keep_atime) = (true, true, true);
    // The first reading of a symlink's target updates its atime.
    scan(temp.path(), &all, &collector).unwrap();
    let one = describe(&scan(temp.path(), &all, &collector).unwrap());
    assert_eq!(one.lines().count(), 1 + 8 + 40 + 40 * 31 + 40 * 2);
    for threads in [2, 3, 8, 8, 8] {
        all.threads = threads;
        let many = describe(&scan(temp.path(), &all, &collector).unwrap());
        assert_eq!(
            one.lines().zip(many.lines()).find(|(a, b)| a != b),
            None,
            "{threads} threads"
        );
        assert_eq!(one.len(), many.len());
    }
}

#[test]
fn entries_are_sorted_and_directories_are_in_preorder() {
    let temp = tempfile::tempdir().unwrap();
    make_forest(temp.path());
    std::fs::create_dir(temp.path().join("d0/empty")).unwrap();
    let tree = scan_plain(temp.path(), 2);
    let mut seen = 1;
    for dir in (0..tree.dir_count()).map(DirNo) {
        let entries: Vec<_> = tree.entries_of(dir).collect();
        assert!(
            entries
                .windows(2)
                .all(|pair| tree.name(pair[0]) < tree.name(pair[1]))
        );
        assert!(entries.iter().all(|&entry| tree.dir_of(entry) == dir));
        assert_eq!(tree.dir(tree.entry_of_dir(dir)), Some(dir));
        seen += entries.len();
    }
    assert_eq!(seen, tree.entry_count() as usize);
    let dir_paths: Vec<_> = (0..tree.dir_count())
        .map(|d| tree.path_of(tree.entry_of_dir(DirNo(d))))
        .collect();
    let mut preorder = dir_paths.clone();
    preorder.sort();
    assert_eq!(dir_paths, preorder);
}

#[test]
fn every_kind_and_attribute_is_stored() {
    let temp = tempfile::tempdir().unwrap();
    let dir = weald_sys::open_dir(temp.path()).unwrap();
    let time = |seconds| Timestamp {
        seconds,
        nanoseconds: 123_456_789,
    };
    let nodes = [
        NodeKind::Fifo,
        NodeKind::Socket,
        NodeKind::EmptyFile,
        NodeKind::CharDevice(7 << 32 | 9),
    ];
    for (name, kind) in ["fifo", "socket", "file", "device"].iter().zip(nodes) {
        weald_sys::make_node_at(&dir, name.as_bytes(), kind, 0o600).unwrap();
        weald_sys::chown_at(&dir, name.as_bytes(), 0xFFFF_FFFE, 5).unwrap();
        weald_sys::chmod_at(&dir, name.as_bytes(), 0o6711).unwrap();
        let mtime = Some(time(-5));
        weald_sys::set_times_at(&dir, name.as_bytes(), NewTimes { mtime, atime: None }).unwrap();
    }
    weald_sys::set_xattr_at(&dir, b"fifo", b"trusted.a", b"b").unwrap();
    symlink("some/where", temp.path().join("link")).unwrap();
    let tree = scan_plain(temp.path(), 1);
    let kinds = [
        FileKind::Fifo,
        FileKind::Socket,
        FileKind::Regular,
        FileKind::CharDevice,
    ];
    for (name, kind) in ["fifo", "socket", "file", "device"].iter().zip(kinds) {
        let entry = find(&tree, name).unwrap();
        let attributes = tree.attributes(entry);
        assert_eq!(
            (tree.kind(entry), attributes.uid, attributes.gid),
            (kind, 0xFFFF_FFFE, 5)
        );
        assert_eq!(
            (attributes.permissions, tree.mtime(entry)),
            (0o6711, time(-5))
        );
        assert_eq!(
            attributes.rdev,
            if kind == FileKind::CharDevice {
                7 << 32 | 9
            } else {
                0
            }
        );
    }
    let fifo = tree.xattrs_no(find(&tree, "fifo").unwrap()).unwrap();
    assert_eq!(tree.xattr_sets()[fifo as usize][0].name, b"trusted.a");
    let link = find(&tree, "link").unwrap();
    assert_eq!(
        (tree.target(link), tree.size(link)),
        (Some(b"some/where".as_slice()), 10)
    );
    assert_eq!(tree.target(find(&tree, "file").unwrap()), None);
}

#[test]
fn hard_links_are_grouped_within_the_tree_only() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path().join("root");
    std::fs::create_dir_all(root.join("dir")).unwrap();
    std::fs::write(root.join("dir/first"), b"x").unwrap();
    std::fs::hard_link(root.join("dir/first"), root.join("zlast")).unwrap();
    std::fs::write(root.join("lone"), b"x").unwrap();
    std::fs::hard_link(root.join("lone"), temp.path().join("outside")).unwrap();
    let tree = scan_plain(&root, 2);
    assert_eq!(tree.link_group_count(), 1);
    assert_eq!(tree.link_group(find(&tree, "lone").unwrap()), None);
    let names: Vec<_> = tree.link_names(0).map(|e| tree.path_of(e)).collect();
    assert_eq!(names, [b"zlast".to_vec(), b"dir/first".to_vec()]);
    assert_eq!(tree.link_group(find(&tree, "dir/first").unwrap()), Some(0));
}

#[test]
fn excluded_directories_are_not_entered() {
    let temp = tempfile::tempdir().unwrap();
    for dir in ["keep/sub", "skip/sub", "keep/skip"] {
        std::fs::create_dir_all(temp.path().join(dir)).unwrap();
        std::fs::write(temp.path().join(dir).join("a.o"), b"").unwrap();
        std::fs::write(temp.path().join(dir).join("a.c"), b"").unwrap();
    }
    let mut filter = Filter::new();
    filter.push_exclude("/skip/").unwrap();
    filter.push_exclude("*.o").unwrap();
    let tree = scan(
        temp.path(),
        &options(&filter, 2),
        &ProblemCollector::default(),
    )
    .unwrap();
    assert_eq!(
        paths(&tree),
        [
            "keep",
            "keep/skip",
            "keep/skip/a.c",
            "keep/sub",
            "keep/sub/a.c"
        ]
    );
}

/// Runs `work` in a thread with the rights of an ordinary user.
fn as_nobody<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            rustix::thread::set_thread_uid(rustix::fs::Uid::from_raw(65534)).expect("needs root");
            work()
        });
        thread.join().unwrap()
    })
}

#[test]
fn unlistable_directories_are_reported_and_omitted() {
    let temp = tempfile::tempdir().unwrap();
    std::fs::set_permissions(temp.path(), PermissionsExt::from_mode(0o755)).unwrap();
    // One directory cannot be listed; the other can, but its entries cannot be examined.
    for (name, mode) in [("closed", 0o700), ("blind", 0o744), ("open", 0o755)] {
        std::fs::create_dir(temp.path().join(name)).unwrap();
        std::fs::write(temp.path().join(name).join("file"), b"").unwrap();
        std::fs::set_permissions(temp.path().join(name), PermissionsExt::from_mode(mode)).unwrap();
    }
    std::fs::set_permissions(
        temp.path().join("open/file"),
        PermissionsExt::from_mode(0o600),
    )
    .unwrap();
    let collector = ProblemCollector::default();
    let (tree, opened) = as_nobody(|| {
        let tree = scan(temp.path(), &options(&Filter::new(), 2), &collector).unwrap();
        let opened = tree.open_file(find(&tree, "open/file").unwrap());
        (tree, opened)
    });
    assert_eq!(paths(&tree), ["blind", "open", "open/file"]);
    assert_eq!(opened.unwrap_err().kind(), ErrorKind::Io);
    let expected = [
        "blind/file: cannot be examined: Permission denied (os error 13)",
        "closed: cannot be listed: Permission denied (os error 13)",
    ];
    assert_eq!(*collector.problems.lock().unwrap(), expected);
    let closed = as_nobody(|| {
        scan(
            &temp.path().join("closed"),
            &options(&Filter::new(), 1),
            &collector,
        )
        .err()
        .unwrap()
    });
    assert_eq!(closed.kind(), ErrorKind::Io);
}

#[test]
fn other_file_systems_stay_empty_on_request() {
    let temp = tempfile::tempdir().unwrap();
    let mounted = temp.path().join("mounted");
    std::fs::create_dir(&mounted).unwrap();
    mount(
        "tmpfs",
        &mounted,
        "tmpfs",
        MountFlags::empty(),
        c"size=64k,mode=0712",
    )
    .expect("needs root");
    std::fs::write(mounted.join("file"), b"inside").unwrap();
    std::fs::hard_link(mounted.join("file"), mounted.join("name")).unwrap();
    let filter = Filter::new();
    let mut here = options(&filter, 2);
    here.mount_points = MountPoints::Empty;
    let one = scan(temp.path(), &here, &ProblemCollector::default()).unwrap();
    let all = scan_plain(temp.path(), 2);
    let mut text = Vec::new();
    let read = all
        .open_file(find(&all, "mounted/file").unwrap())
        .unwrap()
        .read_front(100, &mut text);
    unmount(&mounted, UnmountFlags::DETACH).unwrap();
    read.unwrap();
    assert_eq!(
        (paths(&one), text.as_slice()),
        (vec!["mounted".to_owned()], b"inside".as_slice())
    );
    assert_eq!(
        one.attributes(find(&one, "mounted").unwrap()).permissions,
        0o712
    );
    assert_eq!(paths(&all), ["mounted", "mounted/file", "mounted/name"]);
    let dev = |path| all.source_inode(find(&all, path).unwrap()).0;
    assert_eq!(dev("mounted"), dev("mounted/file"));
    assert_ne!(dev("mounted"), all.source_inode(ScannedTree::ROOT).0);
    assert_eq!(all.link_group_count(), 1);
}

/// Creates `depth` nested directories called `name`, a file in the last one, and `siblings` empty
/// directories in each.
fn make_deep(root: &Path, name: &str, depth: usize, siblings: usize) {
    let mut dir: OwnedFd = weald_sys::open_dir(root).unwrap();
    for _ in 0..depth {
        for sibling in 0..siblings {
            weald_sys::make_dir_at(&dir, format!("s{sibling}").as_bytes(), 0o755).unwrap();
        }
        weald_sys::make_dir_at(&dir, name.as_bytes(), 0o755).unwrap();
        dir = weald_sys::open_dir_at(&dir, name.as_bytes()).unwrap();
    }
    std::io::Write::write_all(
        &mut weald_sys::create_file_at(&dir, b"bottom", 0o644).unwrap(),
        b"deep",
    )
    .unwrap();
}

#[test]
fn depth_is_not_limited_by_paths_or_descriptors() {
    let temp = tempfile::tempdir().unwrap();
    make_deep(temp.path(), "a-directory-with-a-long-name", 1500, 1);
    for threads in [1, 4] {
        let tree = scan_plain(temp.path(), threads);
        assert_eq!(tree.entry_count(), 1 + 3000 + 1);
        let bottom = (0..tree.entry_count())
            .map(EntryNo)
            .find(|&e| tree.name(e) == b"bottom")
            .unwrap();
        assert_eq!(tree.path_of(bottom).len(), 1500 * 29 + 6);
        let mut text = Vec::new();
        let file = tree.open_file(bottom).unwrap();
        file.read_front(100, &mut text).unwrap();
        assert_eq!(text, b"deep");
        assert!(tree.is_unchanged(bottom, &file).unwrap());
    }
    // Use rm(1): a recursive removal in a test thread would overflow the stack.
    assert!(
        std::process::Command::new("rm")
            .arg("-rf")
            .arg(temp.path())
            .status()
            .unwrap()
            .success()
    );
}

#[test]
fn changes_after_the_scan_are_noticed() {
    let temp = tempfile::tempdir().unwrap();
    for name in ["grows", "stays", "replaced", "gone"] {
        std::fs::write(temp.path().join(name), b"x").unwrap();
    }
    let tree = scan_plain(temp.path(), 1);
    let entry = |name| find(&tree, name).unwrap();
    let (grows, stays) = (
        tree.open_file(entry("grows")).unwrap(),
        tree.open_file(entry("stays")).unwrap(),
    );
    std::fs::write(temp.path().join("grows"), b"xy").unwrap();
    assert!(!tree.is_unchanged(entry("grows"), &grows).unwrap());
    assert!(tree.is_unchanged(entry("stays"), &stays).unwrap());
    std::fs::remove_file(temp.path().join("replaced")).unwrap();
    let dir = weald_sys::open_dir(temp.path()).unwrap();
    weald_sys::make_node_at(&dir, b"replaced", NodeKind::Fifo, 0o600).unwrap();
    assert_eq!(
        tree.open_file(entry("replaced")).unwrap_err().kind(),
        ErrorKind::Busy
    );
    std::fs::remove_file(temp.path().join("gone")).unwrap();
    assert_eq!(
        tree.open_file(entry("gone")).unwrap_err().kind(),
        ErrorKind::NotFound
    );
}

#[test]
fn bad_sources_and_cancellation_are_errors() {
    let temp = tempfile::tempdir().unwrap();
    std::fs::write(temp.path().join("file"), b"").unwrap();
    let (filter, collector) = (Filter::new(), ProblemCollector::default());
    let kind = |path: &Path, collector: &ProblemCollector| {
        scan(path, &options(&filter, 1), collector)
            .err()
            .map(|e| e.kind())
    };
    assert_eq!(
        kind(&temp.path().join("none"), &collector),
        Some(ErrorKind::NotFound)
    );
    assert_eq!(
        kind(&temp.path().join("file"), &collector),
        Some(ErrorKind::Invalid)
    );
    let cancelled = ProblemCollector {
        cancels: true,
        ..ProblemCollector::default()
    };
    // The walk may end before the first check. Repeat often enough to show a race.
    for _ in 0..200 {
        assert_eq!(kind(temp.path(), &cancelled), Some(ErrorKind::Invalid));
    }
    make_forest(temp.path());
    assert_eq!(kind(temp.path(), &cancelled), Some(ErrorKind::Invalid));
    assert_eq!(
        scan(temp.path(), &options(&filter, 5000), &collector)
            .err()
            .map(|e| e.kind()),
        Some(ErrorKind::Limit)
    );
}
