//! Real mounts of real images: a mount shows the tree that was packed, also through overlayfs. The
//! tests run as root and need `/dev/fuse`.
#![allow(missing_docs)]

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use support::{Live, sh};
use tempfile::TempDir;
use weald_builder::{BuildOptions, Silent, build_image};
use weald_format::{ByteLen, Digest, Result};
use weald_image::{Image, OpenOptions};
use weald_io::{FileSource, ReadAt};
use weald_testkit::compare::assert_same;
use weald_testkit::{CompareOptions, torture};
use weald_vfs::{Follow, Step, Walker, resolve};

/// The torture tree and its image, shared by all tests of this program.
struct Torture {
    base: TempDir,
}

impl Torture {
    fn source(&self) -> PathBuf {
        self.base.path().join("source")
    }

    fn image(&self) -> PathBuf {
        self.base.path().join("image")
    }

    fn open(&self, cache_len: u64) -> Image {
        let options = OpenOptions {
            cache_len: ByteLen(cache_len),
            prefetch_threads: 1,
            ..OpenOptions::default()
        };
        Image::open_path(&self.image(), 0, &options).expect("open")
    }

    fn live(&self, cache_len: u64, options: &str) -> Live {
        Live::new(self.open(cache_len), options)
    }
}

static TORTURE: LazyLock<Torture> = LazyLock::new(|| {
    let torture = Torture {
        base: support::public_dir(),
    };
    fs::create_dir(torture.source()).expect("mkdir");
    torture::make(
        &torture.source(),
        &torture::Options {
            seed: 7,
            big: false,
        },
    )
    .expect("torture tree");
    let options = BuildOptions::level(2).expect("level");
    let report = build_image(
        &torture.source(),
        &torture.image(),
        false,
        &options,
        &Silent,
    )
    .expect("build");
    assert_eq!(report.problem_count, 0);
    torture
});

#[test]
fn a_mount_shows_exactly_what_was_packed() {
    let live = TORTURE.live(64 << 20, "");
    assert_same(&TORTURE.source(), &live.dir, &CompareOptions::default());
}

#[test]
fn a_cache_too_small_for_anything_changes_nothing() {
    let live = TORTURE.live(1 << 20, "workers=4");
    sh("echo 3 > /proc/sys/vm/drop_caches", &[]);
    assert_same(&TORTURE.source(), &live.dir, &CompareOptions::default());
    sh("echo 3 > /proc/sys/vm/drop_caches", &[]);
    assert_same(
        &TORTURE.source(),
        &live.dir,
        &CompareOptions {
            rsync: false,
            ..CompareOptions::default()
        },
    );
}

#[test]
fn a_subdirectory_shows_exactly_its_part() {
    for part in ["names", "acls", "sparse"] {
        let live = TORTURE.live(64 << 20, &format!("subdir={part}"));
        assert_same(
            &TORTURE.source().join(part),
            &live.dir,
            &CompareOptions::default(),
        );
    }
}

#[test]
fn many_readers_at_once_read_the_same() {
    let live = TORTURE.live(8 << 20, "workers=4");
    let sums = |dir: &Path| {
        sh(
            r#"cd "$1"; find . -path ./huge -prune -o -type f -print0 |
               sort -z | xargs -0 -P1 b2sum | b2sum"#,
            &[dir],
        )
    };
    let expected = sums(&TORTURE.source());
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..6).map(|_| scope.spawn(|| sums(&live.dir))).collect();
        for reader in readers {
            assert_eq!(reader.join().expect("reader"), expected);
        }
    });
}

/// An overlay over a mount, in the directory beside the mount point. It holds the mount open, so it
/// is unmounted first.
struct Overlay<'a> {
    live: &'a Live,
    dir: PathBuf,
}

impl<'a> Overlay<'a> {
    fn new(live: &'a Live) -> Self {
        // An overlay takes its root's attributes from the upper layer.
        let script = r#"cd "$2"; mkdir upper work over; rsync -aAX --exclude='*' mount/ upper/
            mount -t overlay over -o lowerdir=mount,upperdir=upper,workdir=work over"#;
        live.sh(script);
        Self {
            live,
            dir: live.base.path().join("over"),
        }
    }

    /// Runs a shell script in the merged directory.
    fn sh(&self, script: &str) -> String {
        self.live.sh(&format!("cd \"$2/over\"; {script}"))
    }
}

impl Drop for Overlay<'_> {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.dir, rustix::mount::UnmountFlags::DETACH);
    }
}

#[test]
fn an_overlay_shows_the_same_before_and_after_everything_is_copied_up() {
    let live = TORTURE.live(64 << 20, "");
    let over = Overlay::new(&live);
    let options = CompareOptions {
        link_counts: false,
        ..CompareOptions::default()
    };
    assert_same(&TORTURE.source(), &over.dir, &options);
    // A new atime copies the file up. All other attributes stay, including capabilities.
    let count = over.sh(
        r#"find . -path ./huge -prune -o \( -type d -o ! -type l -links 1 \) -print0 |
            xargs -0 -n 500 touch -ac; find ../upper -type f | wc -l"#,
    );
    assert!(
        count.trim().parse::<u32>().expect("number") > 100,
        "{count} files were copied up"
    );
    let options = CompareOptions {
        holes: false,
        ..options
    };
    assert_same(&TORTURE.source(), &over.dir, &options);
    drop(over);
    let options = CompareOptions {
        rsync: false,
        ..CompareOptions::default()
    };
    assert_same(&TORTURE.source(), &live.dir, &options);
}

#[test]
fn an_overlay_takes_everything_away_and_the_image_stays() {
    let live = TORTURE.live(64 << 20, "");
    let over = Overlay::new(&live);
    over.sh("rm -rf -- * && mkdir names && echo new > names/new");
    assert_eq!(over.sh("ls -A . names"), ".:\nnames\n\nnames:\nnew\n");
    drop(over);
    let options = CompareOptions {
        rsync: false,
        ..CompareOptions::default()
    };
    assert_same(&TORTURE.source(), &live.dir, &options);
}

/// A file that counts the bytes read from it.
struct Counting {
    file: FileSource,
    read_len: AtomicU64,
}

impl ReadAt for Counting {
    fn len(&self) -> u64 {
        self.file.len()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.read_len.fetch_add(buf.len() as u64, Ordering::Relaxed);
        self.file.read_exact_at(buf, offset)
    }
}

// Would catch: pages that a small cache evicts and decodes again for every few entries.
#[test]
fn a_small_cache_holds_what_a_walk_needs() {
    let base = support::public_dir();
    let (source, target) = (base.path().join("source"), base.path().join("image"));
    fs::create_dir(&source).expect("mkdir");
    for number in 0..20_500_u64 {
        let digest = Digest::of(&number.to_le_bytes()).to_string();
        fs::write(source.join(digest.repeat(3)), b"").expect("write");
    }
    let options = BuildOptions::level(2).expect("level");
    build_image(&source, &target, false, &options, &Silent).expect("build");
    let counting = Arc::new(Counting {
        file: FileSource::open(&target, 0).expect("open"),
        read_len: AtomicU64::new(0),
    });
    let options = OpenOptions {
        cache_len: ByteLen(1 << 20),
        ..OpenOptions::default()
    };
    let image = Image::open(counting.clone(), &options).expect("open");
    let mut walker = Walker::new(&image, resolve(&image, b"", Follow::No).expect("root"));
    let mut count = 0;
    while let Some(step) = walker.step().expect("walk") {
        let Step::Enter(visit) = step else { continue };
        count += 1;
        let found = image.inode(visit.inode.ino).expect("inode");
        assert_eq!(found, visit.inode);
        if visit.depth > 0 {
            let found = image.lookup(weald_format::ROOT_INODE, &visit.name);
            assert_eq!(found.expect("lookup"), Some(visit.inode));
        }
    }
    assert_eq!(count, 20_501);
    let read_len = counting.read_len.load(Ordering::Relaxed);
    assert!(
        read_len <= 2 * counting.len(),
        "{read_len} bytes read of an image of {}",
        counting.len()
    );
}
