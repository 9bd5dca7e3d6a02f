//! File descriptors of this process.

use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_getfd, fcntl_setfd};

/// Sets close-on-exec on all open descriptors except standard input, output and error. Programs
/// started later do not inherit them, not even those that this process inherited. A server that
/// stays must not hold pipes of the process that started it. Has no effect without `/proc`.
pub fn close_all_on_exec() {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else {
        return;
    };
    let names = entries.flatten().map(|entry| entry.file_name());
    let numbers = names.filter_map(|name| name.to_str()?.parse().ok());
    for number in numbers.filter(|number: &i32| *number > 2) {
        // SAFETY: the number is not -1. If its descriptor is closed meanwhile, or reused, fcntl(2)
        // fails or sets a flag that all descriptors of this workspace have from the start.
        let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
        if let Ok(flags) = fcntl_getfd(descriptor) {
            let _ = fcntl_setfd(descriptor, flags | FdFlags::CLOEXEC);
        }
    }
}

/// Makes room for `count` descriptors in the kernel's table of this process, or for as many as it
/// may have. `fd` is any open one.
///
/// Call it before threads start: when the table of a process with several threads grows, the
/// opening thread waits for an RCU grace period, 10 to 30 ms, and others with it.
///
/// # Source
/// Linux, `fs/file.c`, `expand_fdtable`.
pub fn reserve_descriptors(fd: impl AsFd, count: usize) {
    let last = crate::open_file_limit().min(count as u64).saturating_sub(1);
    // Without room the table grows later. The duplicate is closed at once.
    let _ = fcntl_dupfd_cloexec(fd, i32::try_from(last).unwrap_or(i32::MAX));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    /// Catches: a server that keeps a pipe of its starter open, so that the pipe's reader waits for
    /// ever.
    #[test]
    fn nothing_but_the_standard_descriptors_is_inherited() {
        let file = File::open("/dev/null").expect("open");
        fcntl_setfd(&file, FdFlags::empty()).expect("cleared");
        close_all_on_exec();
        assert_eq!(fcntl_getfd(&file).expect("flags"), FdFlags::CLOEXEC);
    }
}
