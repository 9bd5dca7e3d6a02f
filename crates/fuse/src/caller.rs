//! The process behind a request. With `FUSE_ALLOW_IDMAP` most requests carry no user and no group,
//! so the rules that need them ask `/proc`: the process waits for the answer meanwhile.
//!
//! A process that cannot be found (of another pid namespace, or behind `hidepid`) has no rights.

use std::fs;
use weald_sys::RenameCall;

/// Bits of `CapEff` in `/proc/PID/status`; `include/uapi/linux/capability.h`.
const CAP_FSETID: u32 = 4;
const CAP_LINUX_IMMUTABLE: u32 = 9;
const CAP_SYS_ADMIN: u32 = 21;

/// Whether only privileged processes may see this attribute in a list, as the kernel's own file
/// systems have it. Images show all names to everybody: an overlayfs above one copies a file up in
/// the name of root but with the process id of the user, and would lose them.
pub(crate) fn is_trusted(name: &[u8]) -> bool {
    name.starts_with(b"trusted.")
}

/// Thread of a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Caller {
    /// Its id; 0 if the server's pid namespace does not have it.
    pub(crate) pid: u32,
}

/// Fields of `/proc/PID/status`.
#[derive(Debug, Default, PartialEq, Eq)]
struct Credentials {
    /// The user id that counts for files, as the server's user namespace sees it.
    uid: Option<u32>,
    /// The group id that counts for files, and the supplementary groups.
    groups: Vec<u32>,
    capabilities: u64,
}

impl Credentials {
    fn parse(status: &str) -> Self {
        let mut found = Self::default();
        for line in status.lines() {
            let Some((key, value)) = line.split_once(':') else {
                continue;
            };
            let mut numbers = value.split_ascii_whitespace().map(str::parse::<u32>);
            match key {
                // Real, effective, saved, file system.
                "Uid" => found.uid = numbers.nth(3).and_then(Result::ok),
                "Gid" => found.groups.extend(numbers.nth(3).and_then(Result::ok)),
                "Groups" => found.groups.extend(numbers.map_while(Result::ok)),
                "CapEff" => {
                    found.capabilities = u64::from_str_radix(value.trim(), 16).unwrap_or(0);
                }
                _ => {}
            }
        }
        found
    }

    fn has(&self, capability: u32) -> bool {
        self.uid == Some(0) && self.capabilities >> capability & 1 == 1
    }
}

impl Caller {
    /// The rename that the thread waits in, if it does and the server may see it.
    pub(crate) fn rename_call(self) -> Option<RenameCall> {
        weald_sys::rename_call(self.pid)
    }

    fn credentials(self) -> Credentials {
        let status = match self.pid {
            0 => None,
            pid => fs::read_to_string(format!("/proc/{pid}/status")).ok(),
        };
        status.map_or_else(Credentials::default, |status| Credentials::parse(&status))
    }

    /// Whether its capabilities are those of the server's user namespace. Root of another one has
    /// them all, and may be root here by its number.
    fn is_of_our_namespace(self) -> bool {
        let of = |process: &str| fs::read_link(format!("/proc/{process}/ns/user")).ok();
        let own = of("self");
        own.is_some() && own == of(&self.pid.to_string())
    }

    /// Whether it may see attributes of the namespace `trusted`.
    pub(crate) fn sees_trusted(self) -> bool {
        self.credentials().has(CAP_SYS_ADMIN) && self.is_of_our_namespace()
    }

    /// Whether it may set and clear the flags that forbid changes, whatever the owner of a file.
    /// Linux from 5.13 on checks the same before it asks.
    pub(crate) fn may_lock(self) -> bool {
        self.credentials().has(CAP_LINUX_IMMUTABLE) && self.is_of_our_namespace()
    }

    /// Whether it may keep the set-gid bit of a file of `gid`: `in_group_or_capable` of the
    /// kernel's `fs/attr.c`.
    pub(crate) fn is_in_group_or_capable(self, gid: u32) -> bool {
        let credentials = self.credentials();
        let is_capable = || credentials.has(CAP_FSETID) && self.is_of_our_namespace();
        credentials.groups.contains(&gid) || is_capable()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_those_of_the_status() {
        let status = "Name:\tsh\nUid:\t1\t2\t3\t0\nGid:\t5\t6\t7\t8\nGroups:\t9 10 \n\
                      CapEff:\t0000000000200010\nCapBnd:\tffffffffffffffff\n";
        let found = Credentials::parse(status);
        assert_eq!((found.uid, &found.groups[..]), (Some(0), &[8, 9, 10][..]));
        assert!(found.has(CAP_SYS_ADMIN) && found.has(CAP_FSETID) && !found.has(0));
        let user = Credentials {
            uid: Some(100_000),
            ..found
        };
        assert!(!user.has(CAP_SYS_ADMIN));
        assert_eq!(
            Credentials::parse("x\nUid:\nGid: a\n"),
            Credentials::default()
        );
        let nobody = Caller { pid: 0 };
        assert!(!nobody.may_lock() && !nobody.sees_trusted() && !nobody.is_in_group_or_capable(0));
    }
}
