//! The open files of this process.

use rustix::fd::BorrowedFd;
use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};

/// Keeps everything but standard input, output and error from programs started from here on, also
/// what this process itself has inherited: a server that stays must not hold the pipes of whoever
/// started it. Does nothing where `/proc` is missing.
pub fn close_all_on_exec() {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else {
        return;
    };
    let names = entries.flatten().map(|entry| entry.file_name());
    let numbers = names.filter_map(|name| name.to_str()?.parse().ok());
    for number in numbers.filter(|number: &i32| *number > 2) {
        // SAFETY: the number is not -1. Should its descriptor be closed meanwhile, or be another
        // one by now, fcntl(2) fails or sets a flag that all descriptors of this workspace have
        // from their start.
        let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
        if let Ok(flags) = fcntl_getfd(descriptor) {
            let _ = fcntl_setfd(descriptor, flags | FdFlags::CLOEXEC);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    /// Would catch: a server that keeps a pipe of its starter open, whose reader then waits for
    /// ever.
    #[test]
    fn nothing_but_the_standard_descriptors_is_inherited() {
        let file = File::open("/dev/null").expect("open");
        fcntl_setfd(&file, FdFlags::empty()).expect("cleared");
        close_all_on_exec();
        assert_eq!(fcntl_getfd(&file).expect("flags"), FdFlags::CLOEXEC);
    }
}
