//! Real mounts of real images: what was packed is what is shown, also through overlayfs. Runs as root, needs `/dev/fuse`.
#![allow(missing_docs)]

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use support::{Live, sh};
use tempfile::TempDir;
use weald_build::{BuildOptions, Silent, build_image};
use weald_format::ByteLen;
use weald_image::{Image, OpenOptions};
use weald_testkit::compare::assert_same;
use weald_testkit::{CompareOptions, torture};

/// The torture tree and an image of it, made once for all tests of this program.
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
            r#"cd "$1"; find . -path ./huge -prune -o -type f -print0 | sort -z | xargs -0 -P1 b2sum | b2sum"#,
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

/// An overlay over a mount, in the directory beside the mount point. It holds the mount, so that it must go first.
struct Overlay<'a> {
    live: &'a Live,
    dir: PathBuf,
}

impl<'a> Overlay<'a> {
    fn new(live: &'a Live) -> Self {
        // The root of an overlay is that of its upper layer.
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
    // A new atime copies up and changes nothing else, capabilities included.
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
