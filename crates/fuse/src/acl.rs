//! POSIX ACLs of the files that a mount creates and changes: inheritance, and agreement with the
//! mode.
//!
//! # Source
//! Linux, `include/uapi/linux/posix_acl_xattr.h` and `fs/posix_acl.c`; POSIX.1e draft 17,
//! section 23.

use weald_format::acl::{ACL_VERSION, AclEntry, GROUP_OBJ, MASK, OTHER, USER_OBJ, acl_entries};

/// A parsed ACL. The kernel has checked that it is valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Acl {
    entries: Vec<AclEntry>,
}

impl Acl {
    /// Parses the value of an extended attribute; `None` if it is not an ACL.
    pub(crate) fn parse(value: &[u8]) -> Option<Self> {
        let entries = acl_entries(value)?;
        Some(Self { entries })
    }

    /// The value of an extended attribute.
    pub(crate) fn to_value(&self) -> Vec<u8> {
        let mut value = ACL_VERSION.to_vec();
        for entry in &self.entries {
            value.extend_from_slice(&entry.tag.to_le_bytes());
            value.extend_from_slice(&entry.permissions.to_le_bytes());
            value.extend_from_slice(&entry.id);
        }
        value
    }

    /// Whether the mode says everything that the ACL says.
    pub(crate) fn is_mode(&self) -> bool {
        let is_basic = |entry: &AclEntry| matches!(entry.tag, USER_OBJ | GROUP_OBJ | OTHER);
        self.entries.iter().all(is_basic)
    }

    /// `permissions` with the bits of the ACL's owner, mask (or group) and others.
    pub(crate) fn permissions(&self, permissions: u16) -> u16 {
        let mut bits = permissions & 0o777;
        for entry in &self.entries {
            if let Some(shift) = self.shift_of(entry.tag) {
                bits = bits & !(7 << shift) | (entry.permissions & 7) << shift;
            }
        }
        permissions & !0o777 | bits
    }

    /// Takes the bits of a mode into the entries that stand for them, as chmod(2) does.
    pub(crate) fn set_permissions(&mut self, permissions: u16) {
        self.change(|entry, shift| entry.permissions = permissions >> shift & 7);
    }

    /// The access ACL of a new file in a directory with this default ACL, and the mode of the file,
    /// which was created with `permissions`. No process's umask counts here.
    pub(crate) fn inherited(&self, permissions: u16) -> (Self, u16) {
        let mut acl = self.clone();
        acl.change(|entry, shift| entry.permissions &= permissions >> shift & 7);
        let permissions = acl.permissions(permissions);
        (acl, permissions)
    }

    /// Calls `change` for the entries that the mode shows, with the place of their bits in it.
    fn change(&mut self, change: impl Fn(&mut AclEntry, u16)) {
        let shifts: Vec<Option<u16>> = self.entries.iter().map(|e| self.shift_of(e.tag)).collect();
        for (entry, shift) in self.entries.iter_mut().zip(shifts) {
            if let Some(shift) = shift {
                change(entry, shift);
            }
        }
    }

    /// Place of an entry's bits in the mode; `None` if the mode does not show the entry.
    fn shift_of(&self, tag: u16) -> Option<u16> {
        match tag {
            USER_OBJ => Some(6),
            MASK => Some(3),
            GROUP_OBJ if !self.entries.iter().any(|entry| entry.tag == MASK) => Some(3),
            OTHER => Some(0),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weald_format::acl::{ACL_ENTRY_LEN, USER};

    fn acl(entries: &[(u16, u16)]) -> Acl {
        let entry = |&(tag, permissions): &(u16, u16)| AclEntry {
            tag,
            permissions,
            id: [0xff; 4],
        };
        Acl {
            entries: entries.iter().map(entry).collect(),
        }
    }

    #[test]
    fn values_survive_and_others_are_no_acls() {
        let whole = acl(&[
            (USER_OBJ, 7),
            (USER, 5),
            (GROUP_OBJ, 5),
            (MASK, 7),
            (OTHER, 0),
        ]);
        let value = whole.to_value();
        assert_eq!(Acl::parse(&value), Some(whole));
        for len in 0..value.len() {
            let is_whole = len >= 4 && (len - 4) % ACL_ENTRY_LEN == 0;
            assert_eq!(Acl::parse(&value[..len]).is_some(), is_whole, "{len}");
        }
        assert_eq!(Acl::parse(&[1, 0, 0, 0]), None);
    }

    /// Would catch: the group's bits taken from the mode although the ACL has a mask.
    #[test]
    fn the_mask_stands_for_the_group_bits() {
        let mut masked = acl(&[
            (USER_OBJ, 7),
            (USER, 7),
            (GROUP_OBJ, 5),
            (MASK, 7),
            (OTHER, 5),
        ]);
        assert!(!masked.is_mode());
        assert_eq!(masked.permissions(0o4000), 0o4775);
        masked.set_permissions(0o640);
        let expected = [
            (USER_OBJ, 6),
            (USER, 7),
            (GROUP_OBJ, 5),
            (MASK, 4),
            (OTHER, 0),
        ];
        assert_eq!(masked, acl(&expected));

        let mut basic = acl(&[(USER_OBJ, 7), (GROUP_OBJ, 5), (OTHER, 5)]);
        assert!(basic.is_mode());
        basic.set_permissions(0o640);
        assert_eq!(basic, acl(&[(USER_OBJ, 6), (GROUP_OBJ, 4), (OTHER, 0)]));
    }

    #[test]
    fn a_new_file_gets_no_more_than_its_creator_gives() {
        let default = acl(&[
            (USER_OBJ, 7),
            (USER, 7),
            (GROUP_OBJ, 7),
            (MASK, 7),
            (OTHER, 5),
        ]);
        let (inherited, permissions) = default.inherited(0o2664);
        let expected = [
            (USER_OBJ, 6),
            (USER, 7),
            (GROUP_OBJ, 7),
            (MASK, 6),
            (OTHER, 4),
        ];
        assert_eq!(inherited, acl(&expected));
        assert_eq!(permissions, 0o2664);
        let (_, permissions) = acl(&[(USER_OBJ, 7), (GROUP_OBJ, 1), (OTHER, 0)]).inherited(0o666);
        assert_eq!(permissions, 0o600);
    }
}
