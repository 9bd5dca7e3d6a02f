//! Shared parts of the tests of whole builds: file systems for tests, trees from a description, and
//! a comparison of an image with its source through the reader. Needs root, as the whole test suite
//! does.
#![allow(dead_code)]

pub mod plan;
pub mod same;

pub use plan::*;
pub use same::*;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use weald_builder::{BuildOptions, Observer, Problem, Progress, Report, Stage, build_image};
use weald_format::Result;

/// A file system on a temporary directory, unmounted when dropped.
pub struct Scratch {
    base: tempfile::TempDir,
}

fn run(program: &str, args: &[&str]) {
    let output = Command::new(program)
        .args(args)
        .output()
        .unwrap_or_else(|e| panic!("{program}: {e}"));
    assert!(
        output.status.success(),
        "{program} {args:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

impl Scratch {
    fn new(make: impl FnOnce(&str, &str)) -> Self {
        // Builders in parallel tests divide the process's open files.
        weald_sys::raise_open_file_limit().unwrap();
        let base = tempfile::tempdir().unwrap();
        std::fs::create_dir(base.path().join("fs")).unwrap();
        let text = |name: &str| {
            base.path()
                .join(name)
                .into_os_string()
                .into_string()
                .unwrap()
        };
        make(&text("device"), &text("fs"));
        Self { base }
    }

    /// A tmpfs; `size` as mount(8) takes it.
    pub fn tmpfs(size: &str) -> Self {
        Self::new(|_, dir| {
            run(
                "mount",
                &[
                    "-t",
                    "tmpfs",
                    "-o",
                    &format!("size={size},nr_inodes=0"),
                    "tmpfs",
                    dir,
                ],
            )
        })
    }

    /// An ext4 file system whose directories list their names in an order that depends on
    /// `hash_seed`.
    pub fn ext4(size: &str, hash_seed: &str) -> Self {
        Self::new(|device, dir| {
            run("truncate", &["-s", size, device]);
            let seed = format!("hash_seed={hash_seed}");
            run(
                "mkfs.ext4",
                &[
                    "-q",
                    "-b",
                    "4096",
                    "-O",
                    "dir_index,^has_journal",
                    "-E",
                    &seed,
                    "-N",
                    "20000",
                    device,
                ],
            );
            run("mount", &["-o", "loop", device, dir]);
        })
    }

    /// Mount point.
    pub fn path(&self) -> PathBuf {
        self.base.path().join("fs")
    }

    /// A new directory in it.
    pub fn dir(&self, name: &str) -> PathBuf {
        let dir = self.path().join(name);
        std::fs::create_dir(&dir).unwrap();
        dir
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg("-l").arg(self.path()).status();
        assert!(unmounted.is_ok_and(|s| s.success()) || std::thread::panicking());
    }
}

/// An observer that collects problems. It calls `meddle` with the number of cancellation checks
/// since the write stage began; the first is 0, before any file is opened.
pub struct Meddler<F> {
    meddle: F,
    asked: AtomicU32,
    is_writing: std::sync::atomic::AtomicBool,
    pub problems: Mutex<Vec<Problem>>,
}

impl<F: Fn(u32) + Send + Sync> Meddler<F> {
    pub fn new(meddle: F) -> Self {
        Self {
            meddle,
            asked: AtomicU32::new(0),
            is_writing: false.into(),
            problems: Mutex::default(),
        }
    }

    /// The problems as text: path, colon, description.
    pub fn lines(&self) -> Vec<String> {
        let line = |p: &Problem| format!("{}: {}", String::from_utf8_lossy(&p.path), p.what);
        self.problems.lock().unwrap().iter().map(line).collect()
    }
}

impl<F: Fn(u32) + Send + Sync> Observer for Meddler<F> {
    fn progress(&self, progress: &Progress) {
        if progress.stage == Stage::Write && !self.is_writing.swap(true, Ordering::Relaxed) {
            (self.meddle)(0);
        }
    }

    fn problem(&self, problem: &Problem) {
        self.problems.lock().unwrap().push(problem.clone());
    }

    fn is_cancelled(&self) -> bool {
        if self.is_writing.load(Ordering::Relaxed) {
            (self.meddle)(self.asked.fetch_add(1, Ordering::Relaxed) + 1);
        }
        false
    }
}

/// Options that build small trees quickly: level 1 with a small budget, two threads.
pub fn quick() -> BuildOptions {
    BuildOptions {
        memory_len: 128 << 20,
        threads: 2,
        ..BuildOptions::level(1).unwrap()
    }
}

/// Builds `source` into `target` and expects no problems.
#[track_caller]
pub fn build(source: &Path, target: &Path, options: &BuildOptions) -> Report {
    let observer = Meddler::new(|_| ());
    let report = build_image(source, target, true, options, &observer).unwrap();
    assert_eq!(observer.lines(), Vec::<String>::new());
    assert_eq!(report.problem_count, 0);
    report
}

/// Builds `source` while `meddle` changes it (see [`Meddler`]). Returns the report and the
/// problems.
pub fn build_meddled(
    source: &Path,
    target: &Path,
    options: &BuildOptions,
    meddle: impl Fn(u32) + Send + Sync,
) -> Result<(Report, Vec<String>)> {
    let observer = Meddler::new(meddle);
    let report = build_image(source, target, true, options, &observer)?;
    let lines = observer.lines();
    assert_eq!(report.problem_count, lines.len() as u64);
    Ok((report, lines))
}

/// Builds `source` and compares the image with it completely.
#[track_caller]
pub fn build_and_compare(source: &Path, options: &BuildOptions) -> Report {
    let temp = tempfile::tempdir().unwrap();
    let target = temp.path().join("image");
    let report = build(source, &target, options);
    assert_same(&target, source);
    report
}

/// `len` incompressible bytes, different for every `seed`.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    blake3::Hasher::new()
        .update(&seed.to_le_bytes())
        .finalize_xof()
        .fill(&mut bytes);
    bytes
}

/// `len` bytes of text, different for every `seed`.
pub fn text(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = weald_testkit::Rng::new(seed);
    let words: Vec<String> = (0..200)
        .map(|_| format!("{:x} ", rng.below(1 << (8 + rng.clone().below(24)))))
        .collect();
    let mut bytes = Vec::with_capacity(len + 16);
    while bytes.len() < len {
        bytes.extend_from_slice(rng.pick(&words).as_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Words of all such texts, in an order per text: no repeat is long enough to be found, but every
/// word is known.
pub fn known_words(seed: u64) -> String {
    let mut rng = weald_testkit::Rng::new(seed);
    let word = |_| {
        let no = rng.below(3000) as u32;
        format!("{:x}", no.wrapping_mul(2_654_435_761))
    };
    (0..9000).map(word).collect::<Vec<_>>().join(" ")
}

/// Runs a script in `dir` and expects success.
#[track_caller]
pub fn shell(dir: &Path, script: &str) {
    let status = Command::new("sh")
        .args(["-ec", script])
        .current_dir(dir)
        .status();
    assert!(status.unwrap().success(), "{script}");
}

/// A source with text, noise, a long file, a hole, hard links, a symlink, a fifo, xattrs, a program
/// and a gzip file.
pub fn make_all_kinds(source: &Path) {
    let mut plan = Plan::default();
    plan.dir("d").xattrs.push(("user.a".into(), b"b".to_vec()));
    for n in 0..30u64 {
        plan.file(format!("d/text{n}"), text(n, 20_000 + n as usize * 100));
    }
    plan.file("noise", noise(1, 300_000));
    // Too long to be read whole.
    plan.file("huge", noise(5, 4_300_000));
    plan.add(
        "sparse",
        Kind::File(vec![(1 << 20, text(99, 5000))], 3 << 20),
    );
    plan.add("hard", Kind::Link("noise".into()));
    plan.add("d/across", Kind::Link("noise".into()));
    plan.add("link", Kind::Symlink("d/text1".into()));
    plan.add("fifo", Kind::Fifo);
    plan.make(source, 1);
    std::fs::copy("/bin/true", source.join("program")).unwrap();
    shell(source, "gzip -9 -c d/text1 d/text2 d/text3 > all.gz");
}

/// Builds the tree of `plan`, compares it with its source, and returns the report.
#[track_caller]
pub fn report_of(plan: &Plan, options: &BuildOptions) -> Report {
    let scratch = Scratch::tmpfs("256m");
    let source = scratch.dir("source");
    plan.make(&source, 1);
    build_and_compare(&source, options)
}

/// A tree with one file.
pub fn one_file(name: &str, data: Vec<u8>) -> Plan {
    let mut plan = Plan::default();
    plan.file(name, data);
    plan
}

/// Builds the tree of `plan` with and without recipes, which must make the image smaller; returns
/// the reports. `what` describes the tree.
#[track_caller]
pub fn assert_recipes_save(
    plan: &Plan,
    with: &BuildOptions,
    without: &BuildOptions,
    what: &str,
) -> (Report, Report) {
    let (with, without) = (report_of(plan, with), report_of(plan, without));
    assert_eq!(without.made_len, 0, "{what}");
    assert!(
        with.image_len < without.image_len,
        "{what}: {} with recipes, {} without",
        with.image_len,
        without.image_len
    );
    (with, without)
}

/// Two changes to the tree of [`make_all_kinds`], one after the other. The first has new, changed,
/// moved and removed files, two equal directories and other hard links. The second has another
/// root, new attributes and xattrs, streams with new parts, and an old file again.
pub const CHANGES: [&str; 2] = [
    "cp -a d e; mv d/text3 moved; echo more >> d/text4; rm hard; ln d/text5 hard2; chmod 700 \
     d/text6; touch -d @5 d/text7",
    "gzip -1 -c d/text9 d/text8 moved > new.gz; gzip -c /bin/ls > ls.gz; chown 7:8 e; \
     setfattr -n user.x -v y e/text1
     cp -a moved d/text3; head -c 200000 /dev/urandom > noise2; cat noise noise2 d/text1 > \
      long; chmod 711 .",
];
