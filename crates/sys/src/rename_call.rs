//! The rename that another process waits in, from `/proc`; proc_pid_syscall(5), proc_pid_mem(5).

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Longest path of a system call, in bytes; `PATH_MAX`.
const PATH_LEN_MAX: usize = 4096;
/// Flag of renameat2(2).
const RENAME_EXCHANGE: u64 = 2;
/// How long a look-up waits for the memory of its caller, and how many threads may wait at a time:
/// a process can map memory that never arrives.
const MEMORY_WAIT: Duration = Duration::from_millis(200);
const READERS_MAX: usize = 4;

static READERS: AtomicUsize = AtomicUsize::new(0);

/// Last names of the two paths of a rename in progress.
#[derive(Debug, PartialEq, Eq)]
pub struct RenameCall {
    /// The name that it takes away, as the caller writes it.
    pub old: Vec<u8>,
    /// The name that it makes.
    pub new: Vec<u8>,
}

impl RenameCall {
    /// The call of two paths. `None` if another component has one of the last names: a look-up of
    /// it could not be told from one of the last.
    fn of(old: &[u8], new: &[u8]) -> Option<Self> {
        let components = |path: &[u8]| -> Vec<Vec<u8>> {
            let parts = path.split(|byte| *byte == b'/');
            parts
                .filter(|part| !part.is_empty())
                .map(<[u8]>::to_vec)
                .collect()
        };
        let (mut old, mut new) = (components(old), components(new));
        let call = Self {
            old: old.pop()?,
            new: new.pop()?,
        };
        let is_last = |part: &Vec<u8>| *part == call.old || *part == call.new;
        (!old.iter().chain(&new).any(is_last)).then_some(call)
    }
}

/// Addresses of the old and the new path in a line of `/proc/PID/syscall`, if the call is a rename
/// that may make a name.
fn rename_paths(line: &str) -> Option<(u64, u64)> {
    let mut words = line.split_ascii_whitespace();
    let call: libc::c_long = words.next()?.parse().ok()?;
    let arguments: Vec<u64> = words
        .map_while(|word| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok())
        .collect();
    let flags = arguments.get(4).copied();
    match (call, &arguments[..]) {
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_rename, &[old, new, ..]) => Some((old, new)),
        (libc::SYS_renameat, &[_, old, _, new, ..]) => Some((old, new)),
        (libc::SYS_renameat2, &[_, old, _, new, ..]) if flags? & RENAME_EXCHANGE == 0 => {
            Some((old, new))
        }
        _ => None,
    }
}

/// The string at `address`, without its NUL.
fn string_at(memory: &File, address: u64) -> Option<Vec<u8>> {
    let mut bytes = vec![0; PATH_LEN_MAX];
    let len = memory.read_at(&mut bytes, address).ok()?;
    bytes.truncate(bytes[..len].iter().position(|byte| *byte == 0)?);
    Some(bytes)
}

/// The rename that the thread `pid` waits in. Costs two files of `/proc` and a thread.
///
/// `None` for every other call, and where the server may not see it: the process is another
/// user's and the server not root, or Yama keeps processes apart (`ptrace_scope`).
pub fn rename_call(pid: u32) -> Option<RenameCall> {
    let line = fs::read_to_string(format!("/proc/{pid}/syscall")).ok()?;
    let (old, new) = rename_paths(&line)?;
    if READERS.fetch_add(1, Ordering::Relaxed) >= READERS_MAX {
        READERS.fetch_sub(1, Ordering::Relaxed);
        return None;
    }
    let (sender, receiver) = mpsc::channel();
    let reader = move || {
        let memory = File::open(format!("/proc/{pid}/mem"));
        let call = memory.ok().and_then(|memory| {
            RenameCall::of(&string_at(&memory, old)?, &string_at(&memory, new)?)
        });
        READERS.fetch_sub(1, Ordering::Relaxed);
        // Nobody waits any more after `MEMORY_WAIT`.
        sender.send(call).ok();
    };
    let name = "caller".to_owned();
    if thread::Builder::new().name(name).spawn(reader).is_err() {
        READERS.fetch_sub(1, Ordering::Relaxed);
        return None;
    }
    receiver.recv_timeout(MEMORY_WAIT).ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch: a look-up of a directory on the way that is taken for one of the last name.
    #[test]
    fn a_rename_is_its_two_last_names() {
        let of = |old: &str, new: &str| {
            let call = RenameCall::of(old.as_bytes(), new.as_bytes())?;
            let text = |name: Vec<u8>| String::from_utf8(name).expect("text");
            Some((text(call.old), text(call.new)))
        };
        let names = |old: &str, new: &str| Some((old.to_owned(), new.to_owned()));
        assert_eq!(of("a", "A"), names("a", "A"));
        assert_eq!(of("/x//y/a/", "x/A//"), names("a", "A"));
        assert_eq!(of("A/a", "b/A"), None);
        assert_eq!(of("a/x", "A/x"), names("x", "x"));
        assert_eq!(of("/", "a"), None);
        assert_eq!(of("", ""), None);
    }

    #[test]
    fn a_rename_is_read_from_a_line_of_proc() {
        let line = |call: libc::c_long, flags: u64| {
            format!("{call} 0xffffffffffffff9c 0x10 0xffffffffffffff9c 0x20 {flags:#x} 0x0 0x7 0x8")
        };
        let paths = Some((0x10, 0x20));
        assert_eq!(rename_paths(&line(libc::SYS_renameat, 9)), paths);
        assert_eq!(rename_paths(&line(libc::SYS_renameat2, 1)), paths);
        assert_eq!(
            rename_paths(&line(libc::SYS_renameat2, RENAME_EXCHANGE)),
            None
        );
        assert_eq!(rename_paths(&line(libc::SYS_unlinkat, 0)), None);
        for other in ["running\n", "-1 0x1 0x2\n", "", "264", "264 x y"] {
            assert_eq!(rename_paths(other), None, "{other:?}");
        }
    }

    /// Would catch: threads that stay counted, after which nothing is read any more.
    #[test]
    fn a_caller_that_renames_nothing_has_no_call() {
        for _ in 0..3 * READERS_MAX {
            assert_eq!(rename_call(std::process::id()), None);
        }
        assert_eq!(READERS.load(Ordering::Relaxed), 0);
    }
}
