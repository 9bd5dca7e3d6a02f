//! Whether a server that does not answer works, is stopped, or is stuck: `/proc` tells.

use std::time::{Duration, Instant};

/// How long a server that is stopped (SIGSTOP, a debugger) is waited for.
const STOPPED_PATIENCE: Duration = Duration::from_secs(2);

/// How long a server may neither read nor write nor wait for a disk, before it counts as stuck. A
/// commit encodes its data before it writes, which takes this long only with the slowest codecs.
const STUCK_PATIENCE: Duration = Duration::from_secs(60);

/// State of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pulse {
    /// It works, or waits for a disk.
    Working,
    /// It is stopped by a signal or a debugger.
    Stopped,
    /// It runs but has not read or written anything for a minute.
    Stuck,
    /// There is no such process.
    Ended,
}

impl Pulse {
    /// The sentence for the user, about the server `pid`; none while it works.
    pub fn complaint(self, pid: u32) -> Option<String> {
        match self {
            Self::Working => None,
            Self::Stopped => Some(format!(
                "process {pid}, its server, is stopped: 'kill -CONT {pid}' continues it, 'kill -9 \
                 {pid}' ends it and gives up what was not synced"
            )),
            Self::Stuck => Some(format!(
                "process {pid}, its server, does not answer and has read and written nothing for \
                 {} seconds: 'kill -9 {pid}' ends it and gives up what was not synced",
                STUCK_PATIENCE.as_secs()
            )),
            Self::Ended => Some(format!("process {pid}, its server, has ended")),
        }
    }
}

/// Watches a server while a client waits for it.
#[derive(Debug)]
pub struct PulseWatch {
    pid: u32,
    counters: Vec<u8>,
    last_change: Instant,
    stopped_since: Option<Instant>,
}

impl PulseWatch {
    /// Begins with the server `pid`.
    pub fn new(pid: u32) -> Self {
        Self {
            pid,
            counters: Vec::new(),
            last_change: Instant::now(),
            stopped_since: None,
        }
    }

    /// State of the server now. The caller asks about once a second.
    pub fn look(&mut self) -> Pulse {
        let Some(state) = state_of(self.pid) else {
            return Pulse::Ended;
        };
        if is_stopped_state(state) {
            let since = *self.stopped_since.get_or_insert_with(Instant::now);
            return if since.elapsed() >= STOPPED_PATIENCE {
                Pulse::Stopped
            } else {
                Pulse::Working
            };
        }
        self.stopped_since = None;
        let counters = std::fs::read(format!("/proc/{}/io", self.pid)).unwrap_or_default();
        if counters != self.counters || waits_for_disk(self.pid) {
            self.counters = counters;
            self.last_change = Instant::now();
        }
        if self.last_change.elapsed() >= STUCK_PATIENCE {
            Pulse::Stuck
        } else {
            Pulse::Working
        }
    }
}

const fn is_stopped_state(state: u8) -> bool {
    matches!(state, b'T' | b't')
}

/// # Source
/// proc_pid_stat(5): the state follows the name, which may contain parentheses.
fn state_at(path: &str) -> Option<u8> {
    let stat = std::fs::read(path).ok()?;
    let end = stat.iter().rposition(|&byte| byte == b')')?;
    stat.get(end.checked_add(2)?).copied()
}

/// State of a process that has not ended.
fn state_of(pid: u32) -> Option<u8> {
    state_at(&format!("/proc/{pid}/stat")).filter(|state| !matches!(state, b'Z' | b'X'))
}

fn waits_for_disk(pid: u32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    let mut tasks = tasks.into_iter().flatten().flatten();
    tasks.any(|task| {
        let stat = task.path().join("stat");
        stat.to_str().and_then(state_at) == Some(b'D')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stopped_process_is_seen() {
        let mut child = std::process::Command::new("sleep")
            .arg("600")
            .spawn()
            .expect("starts");
        let pid = child.id();
        let mut watch = PulseWatch::new(pid);
        assert_eq!(watch.look(), Pulse::Working);
        let id = rustix::process::Pid::from_raw(pid as i32).expect("not 0");
        rustix::process::kill_process(id, rustix::process::Signal::STOP).expect("signalled");
        while watch.look() != Pulse::Stopped {
            std::thread::sleep(Duration::from_millis(10));
        }
        child.kill().expect("killed");
        child.wait().expect("reaped");
        assert_eq!(watch.look(), Pulse::Ended);
        assert!(
            Pulse::Stopped
                .complaint(pid)
                .expect("one")
                .contains("kill -CONT")
        );
        assert_eq!(Pulse::Working.complaint(pid), None);
    }
}
