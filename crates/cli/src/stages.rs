//! `--stages`: how long each stage of a build took, and what its threads did meanwhile.
//!
//! A thread reads the CPU time of all threads of this process from `/proc` a hundred times a
//! second. A thread that ends between two looks loses what it did after the last one.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use weald_builder::{LeftOut, Observer, Problem, Progress, Stage};

/// Time between two looks at the threads.
const INTERVAL: Duration = Duration::from_millis(10);
/// Name of the thread that looks; it does not count.
const OWN_NAME: &str = "stages";

/// Watches the threads of a build, and passes its reports on to another observer.
pub struct Stages<'a> {
    inner: &'a dyn Observer,
    ledger: Arc<Mutex<Ledger>>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// What the threads did in the stages so far.
struct Ledger {
    stage: Stage,
    looked_at: Instant,
    /// CPU time of each thread, and its time on the run queue, as far as it was counted.
    counted: HashMap<u32, (Duration, Duration)>,
    walls: BTreeMap<usize, Wall>,
    rows: BTreeMap<(usize, String), Row>,
}

/// Times of a stage.
#[derive(Default)]
struct Wall {
    whole: Duration,
    /// In which at most one thread had work.
    alone: Duration,
}

/// Times of the threads of one name in one stage, summed.
#[derive(Default)]
struct Row {
    thread_count: usize,
    cpu: Duration,
    queued: Duration,
    present: Duration,
}

const STAGES: [Stage; 4] = [Stage::Scan, Stage::Write, Stage::Compress, Stage::Tree];

fn index_of(stage: Stage) -> usize {
    STAGES.iter().position(|&one| one == stage).unwrap_or(0)
}

fn locked(ledger: &Mutex<Ledger>) -> MutexGuard<'_, Ledger> {
    ledger.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<'a> Stages<'a> {
    /// Begins to watch, in the stage that scans. Reports go on to `inner`.
    ///
    /// # Errors
    /// The errno of a refused thread.
    pub fn begin(inner: &'a dyn Observer) -> std::io::Result<Self> {
        let mut ledger = Ledger {
            stage: Stage::Scan,
            looked_at: Instant::now(),
            counted: HashMap::new(),
            walls: BTreeMap::new(),
            rows: BTreeMap::new(),
        };
        // What the process did before does not count.
        ledger.look();
        (ledger.walls, ledger.rows) = (BTreeMap::new(), BTreeMap::new());
        let ledger = Arc::new(Mutex::new(ledger));
        let is_over = Arc::new(AtomicBool::new(false));
        let (watched, over) = (ledger.clone(), is_over.clone());
        let watch = move || {
            while !over.load(Ordering::Relaxed) {
                std::thread::park_timeout(INTERVAL);
                locked(&watched).look();
            }
        };
        let thread = std::thread::Builder::new()
            .name(OWN_NAME.to_owned())
            .spawn(watch)?;
        Ok(Self {
            inner,
            ledger,
            is_over,
            thread: Some(thread),
        })
    }

    /// Ends the watch; returns the table.
    pub fn end(mut self) -> String {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It only looks; if it panicked, the table has what it saw.
            let _ = thread.join();
        }
        let mut ledger = locked(&self.ledger);
        ledger.look();
        ledger.table()
    }
}

impl Observer for Stages<'_> {
    fn progress(&self, progress: &Progress) {
        let mut ledger = locked(&self.ledger);
        if ledger.stage != progress.stage {
            ledger.look();
            ledger.stage = progress.stage;
        }
        drop(ledger);
        self.inner.progress(progress);
    }

    fn problem(&self, problem: &Problem) {
        self.inner.problem(problem);
    }

    fn replaced(&self, path: &[u8], by: &Path) {
        self.inner.replaced(path, by);
    }

    fn left_out(&self, path: &[u8], why: LeftOut<'_>) {
        self.inner.left_out(path, why);
    }

    fn memory_raised(&self, from: u64, to: u64, threads: usize) {
        self.inner.memory_raised(from, to, threads);
    }

    fn is_cancelled(&self) -> bool {
        self.inner.is_cancelled()
    }
}

impl Ledger {
    /// Adds what all threads did since the last look to the current stage.
    fn look(&mut self) {
        let now = Instant::now();
        let elapsed = now.duration_since(self.looked_at);
        self.looked_at = now;
        let stage = index_of(self.stage);
        let mut running = Duration::ZERO;
        for (thread, name) in threads() {
            let Some(times) = times_of(thread) else {
                continue;
            };
            let known = self.counted.insert(thread, times);
            if name == OWN_NAME {
                continue;
            }
            let (cpu, queued) = known.unwrap_or_default();
            let cpu = times.0.saturating_sub(cpu);
            let queued = times.1.saturating_sub(queued);
            // A thread that waits for a processor has work, too.
            running += cpu + queued;
            let row = self.rows.entry((stage, name)).or_default();
            row.cpu += cpu;
            row.queued += queued;
            row.present += elapsed;
        }
        self.count_threads(stage);
        let wall = self.walls.entry(stage).or_default();
        wall.whole += elapsed;
        // With two threads, each may be held up for a moment.
        if running < elapsed * 3 / 2 {
            wall.alone += elapsed;
        }
    }

    /// Notes the greatest number of threads of each name that were there at once.
    fn count_threads(&mut self, stage: usize) {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for (_, name) in threads() {
            *counts.entry(name).or_default() += 1;
        }
        for (name, count) in counts {
            if let Some(row) = self.rows.get_mut(&(stage, name)) {
                row.thread_count = row.thread_count.max(count);
            }
        }
    }

    fn table(&self) -> String {
        let mut text = format!(
            "{:<10} {:<12} {:>7} {:>9} {:>9} {:>10} {:>10}\n",
            "stage", "thread", "threads", "wall s", "CPU s", "queued s", "waiting s"
        );
        let mut row = |stage: &str, name: &str, count: &str, times: [Option<Duration>; 4]| {
            let [wall, cpu, queued, waiting] = times.map(|time| {
                time.map_or_else(String::new, |time| format!("{:.2}", time.as_secs_f64()))
            });
            let line = format!(
                "{stage:<10} {name:<12} {count:>7} {wall:>9} {cpu:>9} {queued:>10} {waiting:>10}"
            );
            // Writing to a string does not fail.
            let _ = writeln!(text, "{}", line.trim_end());
        };
        let (mut whole, mut alone, mut cpu) = Default::default();
        for (&stage, wall) in &self.walls {
            let of_stage = self.rows.iter().filter(|((no, _), _)| *no == stage);
            let of_stage: Vec<_> = of_stage.map(|((_, name), row)| (name, row)).collect();
            let sum: Duration = of_stage.iter().map(|(_, row)| row.cpu).sum();
            (whole, alone, cpu) = (whole + wall.whole, alone + wall.alone, cpu + sum);
            row(
                word(stage),
                "all",
                "",
                [Some(wall.whole), Some(sum), None, None],
            );
            for (name, of_name) in of_stage {
                let waiting = of_name.present.saturating_sub(of_name.cpu + of_name.queued);
                let times = [None, Some(of_name.cpu), Some(of_name.queued), Some(waiting)];
                row("", name, &of_name.thread_count.to_string(), times);
            }
            row("", "(one alone)", "", [Some(wall.alone), None, None, None]);
        }
        row("all", "", "", [Some(whole), Some(cpu), None, None]);
        row("", "(one alone)", "", [Some(alone), None, None, None]);
        text
    }
}

fn word(stage: usize) -> &'static str {
    match STAGES[stage] {
        Stage::Scan => "scan",
        Stage::Write => "write",
        Stage::Compress => "compress",
        Stage::Tree => "tree",
    }
}

/// The threads of this process with their names, without numbers at the end; that of the first
/// thread is "main".
fn threads() -> Vec<(u32, String)> {
    let Ok(list) = std::fs::read_dir("/proc/self/task") else {
        return Vec::new();
    };
    let read = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.ok()?.path();
        let thread: u32 = path.file_name()?.to_str()?.parse().ok()?;
        if thread == std::process::id() {
            return Some((thread, "main".to_owned()));
        }
        let name = std::fs::read_to_string(path.join("comm")).ok()?;
        let is_number = |c: char| c == '-' || c.is_ascii_digit();
        Some((
            thread,
            name.trim_end().trim_end_matches(is_number).to_owned(),
        ))
    };
    list.filter_map(read).collect()
}

/// CPU time of a thread, and the time in which it could have run but no processor was free.
fn times_of(thread: u32) -> Option<(Duration, Duration)> {
    let path = Path::new("/proc/self/task").join(format!("{thread}/schedstat"));
    let text = std::fs::read_to_string(path).ok()?;
    let mut numbers = text.split_ascii_whitespace().map(str::parse);
    let mut next = || numbers.next()?.ok().map(Duration::from_nanos);
    Some((next()?, next()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use weald_builder::Silent;

    fn progress(stage: Stage) -> Progress {
        Progress {
            stage,
            entry_count: 0,
            entry_total: 0,
            read_len: 0,
            read_total: 0,
            written_len: 0,
        }
    }

    /// Takes so much of a processor, however many others want it.
    fn burn(time: Duration) {
        let taken = || {
            let clock = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
            Duration::try_from(clock).expect("a time from 0 on")
        };
        let start = taken();
        while taken() - start < time {}
    }

    /// Would catch: times that are counted for another stage or thread, or not at all.
    #[test]
    fn times_are_those_of_the_stage_and_the_thread() {
        let stages = Stages::begin(&Silent).expect("a thread");
        stages.progress(&progress(Stage::Write));
        let busy = Duration::from_millis(300);
        std::thread::scope(|scope| {
            for no in 0..2 {
                let thread = std::thread::Builder::new().name(format!("burning-{no}"));
                thread
                    .spawn_scoped(scope, || {
                        burn(busy);
                        std::thread::sleep(busy);
                    })
                    .expect("a thread");
            }
        });
        stages.progress(&progress(Stage::Tree));
        let table = stages.end();
        let write = table.find("write").expect("the stage");
        let tree = table.find("tree").expect("the stage");
        let line = table.lines().find(|line| line.contains("burning"));
        let words: Vec<_> = line.expect("the threads").split_whitespace().collect();
        let ["burning", "2", cpu, _, waiting] = words[..] else {
            panic!("{table}")
        };
        let number = |word: &str| word.parse::<f64>().expect("a number");
        assert!((0.4..0.8).contains(&number(cpu)), "{table}");
        assert!(number(waiting) > 0.4, "{table}");
        assert!(
            (write..tree).contains(&table.find("burning").expect("it")),
            "{table}"
        );
    }
}
