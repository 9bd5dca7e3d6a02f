//! A small source tree with every kind of file, and images of it.
#![allow(dead_code)]

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags, linkat, lsetxattr, mknodat,
    utimensat,
};
use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use weald_builder::{BuildOptions, CodecSpec, MtimeRule, Silent, build_image};

/// A temporary directory with a source tree in it.
pub struct Source {
    dir: tempfile::TempDir,
}

pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    blake3::Hasher::new()
        .update(&seed.to_le_bytes())
        .finalize_xof()
        .fill(&mut out);
    out
}

pub fn text(len: usize) -> Vec<u8> {
    let words =
        (0u64..).flat_map(|i| format!("line {} of {}\n", i * i % 7919, i % 13).into_bytes());
    words.take(len).collect()
}

/// `plain` as a gzip file, but with blocks of 128 tokens: its recipe needs corrections.
pub fn gzip_in_small_blocks(plain: &[u8]) -> Vec<u8> {
    let script = "import sys, zlib
c = zlib.compressobj(6, wbits=31, memLevel=1)
sys.stdout.buffer.write(c.compress(sys.stdin.buffer.read()) + c.flush())";
    let mut child = Command::new("python3")
        .args(["-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // Less than a pipe holds, so that no process blocks.
    assert!(plain.len() < 1 << 16);
    child.stdin.take().unwrap().write_all(plain).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    output.stdout
}

impl Source {
    /// An empty source.
    pub fn empty() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("tree")).unwrap();
        Self { dir }
    }

    /// Files of one and several blocks; equal, incompressible, sparse and empty files; one made by
    /// a recipe; hard links inside and across directories; symlinks, a fifo, xattrs, a directory of
    /// 1100 entries; devices if the user may create them.
    pub fn everything() -> Self {
        let source = Self::empty();
        let root = source.root();
        source.file("text", &text(9000));
        source.file("copy", &text(9000));
        source.file("small", b"small\n");
        source.file("empty", b"");
        source.file("noise", &noise(1, 8300));
        source.file("made.gz", &gzip_in_small_blocks(&text(2000)[300..]));
        let sparse = fs::File::create(root.join("sparse")).unwrap();
        sparse.set_len(1 << 20).unwrap();
        sparse.write_all_at(&text(100), 1 << 19).unwrap();
        fs::create_dir_all(root.join("dir/deep/er")).unwrap();
        source.file("dir/one", b"one");
        for (from, to) in [
            ("dir/one", "dir/two"),
            ("small", "dir/deep/er/small"),
            ("small", "dir/small"),
        ] {
            linkat(CWD, root.join(from), CWD, root.join(to), AtFlags::empty()).unwrap();
        }
        symlink("dir/../text", root.join("link")).unwrap();
        symlink("no such thing", root.join("dir/dangling")).unwrap();
        mknodat(CWD, root.join("fifo"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        if rustix::process::geteuid().is_root() {
            let device = rustix::fs::makedev(1, 3);
            mknodat(
                CWD,
                root.join("null"),
                FileType::CharacterDevice,
                Mode::RUSR,
                device,
            )
            .unwrap();
        }
        for name in ["text", "dir"] {
            lsetxattr(
                root.join(name),
                "user.test",
                &noise(2, 60),
                XattrFlags::empty(),
            )
            .unwrap();
        }
        fs::create_dir(root.join("many")).unwrap();
        for i in 0..1100 {
            source.file(&format!("many/entry-{i}"), b"");
        }
        source
    }

    /// Equal directories with different mtimes, for which a times overlay is smaller.
    pub fn many_times() -> Self {
        let source = Self::empty();
        let names: Vec<String> = (0..200)
            .map(|i| format!("{}", weald_format::Digest::of(&noise(i, 4))))
            .collect();
        for copy in 0..90 {
            fs::create_dir(source.root().join(format!("{copy}"))).unwrap();
            for name in &names {
                source.file(&format!("{copy}/{name}"), b"");
                let time = Timespec {
                    tv_sec: 1_000_000 + copy * 1000,
                    tv_nsec: copy,
                };
                let times = Timestamps {
                    last_access: time,
                    last_modification: time,
                };
                utimensat(
                    CWD,
                    source.root().join(format!("{copy}/{name}")),
                    &times,
                    AtFlags::empty(),
                )
                .unwrap();
            }
        }
        source
    }

    pub fn root(&self) -> PathBuf {
        self.dir.path().join("tree")
    }

    pub fn file(&self, path: &str, content: &[u8]) {
        fs::write(self.root().join(path), content).unwrap();
    }

    /// Builds and reads back the image.
    pub fn image(&self, options: &BuildOptions) -> Vec<u8> {
        let target = self.dir.path().join("image");
        let report = build_image(&self.root(), &target, true, options, &Silent).unwrap();
        assert_eq!(report.problem_count, 0);
        fs::read(target).unwrap()
    }
}

/// Options for small images: blocks of 4 KiB, one thread.
pub fn small(codec: CodecSpec) -> BuildOptions {
    BuildOptions {
        codec,
        block_len: 4096,
        threads: 1,
        match_len_min: 64,
        ..BuildOptions::default()
    }
}

/// The same options, with everything fixed that could differ between machines.
pub fn fixed(codec: CodecSpec) -> BuildOptions {
    BuildOptions {
        uid: Some(0),
        gid: Some(0),
        mtime: MtimeRule::Set(1_700_000_000),
        ..small(codec)
    }
}

/// The root directory of the workspace.
pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
