//! Files with damage of every kind: what a comparison says is what a repair does, and the promise
//! of a layout holds.

use std::fs::{self, File};
use std::ops::{ControlFlow, Range};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use weald_io::{OutputFile, TargetKind};
use weald_parity::{Layout, Parity, Report, SECTOR, Share, create};
use weald_testkit::Rng;

/// A file and its parity, which can be damaged and made whole.
struct Bench {
    dir: tempfile::TempDir,
    whole: Vec<u8>,
    whole_parity: Vec<u8>,
    layout: Layout,
}

impl Bench {
    fn new(len: usize, share: &str, seed: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let whole = Rng::new(seed + 1).bytes(len);
        fs::write(dir.path().join("file"), &whole).unwrap();
        let share: Share = share.parse().unwrap();
        let layout = Layout::for_share(len as u64, share).unwrap();
        let path = dir.path().join("parity");
        let mut output = OutputFile::create(&path, TargetKind::File).unwrap();
        let file = File::open(dir.path().join("file")).unwrap();
        create(&file, &layout, &mut output, 2, &|_| {
            ControlFlow::Continue(())
        })
        .unwrap();
        output.commit(false).unwrap();
        let whole_parity = fs::read(path).unwrap();
        assert_eq!(whole_parity.len() as u64, layout.parity_len());
        Self {
            dir,
            whole,
            whole_parity,
            layout,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn restore(&self) {
        fs::write(self.path("file"), &self.whole).unwrap();
        fs::write(self.path("parity"), &self.whole_parity).unwrap();
    }

    /// Overwrites `range` of `name` with other bytes.
    fn damage(&self, name: &str, range: Range<u64>) {
        let mut options = File::options();
        let file = options
            .read(true)
            .write(true)
            .open(self.path(name))
            .unwrap();
        let mut bytes = vec![0; (range.end - range.start) as usize];
        file.read_exact_at(&mut bytes, range.start).unwrap();
        bytes.iter_mut().for_each(|byte| *byte = !*byte);
        file.write_all_at(&bytes, range.start).unwrap();
    }

    fn examine(&self, repair: bool) -> Report {
        let parity = Parity::open(File::open(self.path("parity")).unwrap()).unwrap();
        assert_eq!(*parity.layout(), self.layout);
        let mut options = File::options();
        let file = options.read(true).write(repair).open(self.path("file"));
        let file = file.unwrap();
        let watch = |_| ControlFlow::Continue(());
        parity.examine(&file, repair, 2, &watch).unwrap()
    }

    /// Compares, repairs, and compares what both say with what is in the file. Returns whether the
    /// file is whole again.
    fn judge(&self, context: &str) -> bool {
        let before = self.examine(false);
        let repaired = self.examine(true);
        assert_eq!(before, repaired, "{context}");
        let now = fs::read(self.path("file")).unwrap();
        let len = self.whole.len().min(now.len());
        for (index, sector) in now[..len].chunks(SECTOR).enumerate() {
            let start = index * SECTOR;
            let is_whole = *sector == self.whole[start..self.whole.len().min(start + SECTOR)];
            let is_in = |ranges: &[Range<u64>]| ranges.iter().any(|r| r.contains(&(start as u64)));
            assert!(
                is_whole || is_in(&before.lost) || is_in(&before.unknown),
                "{context}: {index}"
            );
            assert!(
                !(is_whole && is_in(&before.lost)),
                "{context}: {index} is not lost"
            );
        }
        let is_whole = now.get(..self.whole.len()) == Some(&self.whole);
        assert!(
            is_whole || !before.is_file_repairable(),
            "{context}: {before:?}"
        );
        assert!(!is_whole || before.lost.is_empty(), "{context}: {before:?}");
        let after = self.examine(false);
        assert!(after.repairable.is_empty(), "{context}: {after:?}");
        is_whole
    }
}

#[test]
fn whole_files_are_clean() {
    for (len, share) in [
        (1, "5%"),
        (4096, "1%"),
        (4097, "100%"),
        (1 << 20, "5%"),
        (20 << 20, "3.5%"),
    ] {
        let bench = Bench::new(len, share, len as u64);
        assert!(bench.examine(false).is_clean(), "{len}");
        let again = Bench::new(len, share, len as u64);
        assert!(
            bench.whole_parity == again.whole_parity,
            "{len}: not the same bytes"
        );
    }
}

/// Would catch: a burst that hits a column more often than its recovery sectors can repair.
#[test]
fn bursts_of_the_promised_length_are_repaired() {
    let mut rng = Rng::new(7);
    for (len, share) in [
        (300_000, "5%"),
        (1 << 20, "10%"),
        (40 << 20, "5%"),
        (17_000_000, "1%"),
    ] {
        let bench = Bench::new(len, share, 3);
        let burst = bench.layout.repairable_len();
        let wanted = len as f64 * share.trim_end_matches('%').parse::<f64>().unwrap() / 100.0;
        assert!(burst as f64 >= wanted, "{burst} of {wanted}");
        for round in 0..6 {
            bench.restore();
            let start = match round {
                0 => 0,
                1 => len as u64 - burst,
                _ => rng.below(len as u64 - burst + 1),
            };
            bench.damage("file", start..start + burst);
            assert!(bench.judge(&format!("{len}, {burst} from {start}")));
        }
    }
}

/// Would catch: columns that random damage overwhelms, in the file and in its parity.
#[test]
fn three_percent_of_random_sectors_are_repaired() {
    let bench = Bench::new(40 << 20, "5%", 11);
    for seed in 1..5 {
        bench.restore();
        let mut rng = Rng::new(seed * 77);
        for (name, bytes) in [("file", &bench.whole), ("parity", &bench.whole_parity)] {
            let count = (bytes.len() / SECTOR) as u64;
            let mut sectors = std::collections::BTreeSet::new();
            while sectors.len() as u64 * 100 < count * 3 {
                sectors.insert(rng.below(count));
            }
            for sector in sectors {
                let start = sector * SECTOR as u64;
                bench.damage(name, start..start + SECTOR as u64);
            }
        }
        assert!(bench.judge(&format!("seed {seed}")));
    }
}

/// Would catch: a comparison that promises what a repair does not keep, for damage of any size in
/// either file, cuts and longer files.
#[test]
fn what_a_comparison_says_is_what_a_repair_does() {
    let (mut whole_count, mut lost_count) = (0, 0);
    for seed in 1..=150 {
        let mut rng = Rng::new(seed * 1_000_003);
        let len = 1 + rng.below(3_000_000) as usize;
        let share = ["1%", "5%", "20%"][rng.below(3) as usize];
        let bench = Bench::new(len, share, seed);
        for _ in 0..1 + rng.below(6) {
            let (name, len) = match rng.below(3) {
                0 => ("parity", bench.whole_parity.len() as u64),
                _ => ("file", len as u64),
            };
            let start = rng.below(len);
            let most = [16, 4096, 100_000][rng.below(3) as usize];
            let end = (start + 1 + rng.below(most)).min(len);
            bench.damage(name, start..end);
        }
        if rng.below(4) == 0 {
            let file = File::options()
                .write(true)
                .open(bench.path("file"))
                .unwrap();
            file.set_len(rng.below(len as u64 * 2)).unwrap();
        }
        let parity = fs::read(bench.path("parity")).unwrap();
        let is_hit = |block: u64| {
            let start = block as usize * SECTOR;
            parity[start..start + SECTOR] != bench.whole_parity[start..start + SECTOR]
        };
        if bench.layout.headers().into_iter().all(is_hit) {
            assert!(Parity::open(File::open(bench.path("parity")).unwrap()).is_err());
            continue;
        }
        if bench.judge(&format!("seed {seed}")) {
            whole_count += 1;
        } else {
            lost_count += 1;
        }
    }
    assert!(
        whole_count > 20 && lost_count > 20,
        "{whole_count}, {lost_count}"
    );
}

#[test]
fn what_is_no_parity_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    for bytes in [
        Vec::new(),
        Rng::new(1).bytes(100),
        Rng::new(2).bytes(100_000),
    ] {
        fs::write(dir.path().join("x"), &bytes).unwrap();
        let refused = Parity::open(File::open(dir.path().join("x")).unwrap()).err();
        let error = refused.expect("a refusal");
        assert_eq!(error.place().expect("a place").rule, "F-35.1");
    }
}
