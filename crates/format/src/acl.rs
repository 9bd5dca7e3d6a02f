//! Permission bits of an inode whose POSIX ACL is not passed on.
//!
//! If an inode has an ACL, the group bits of its mode are the ACL's mask: the maximum that any
//! named entry and the group get. They are not the permissions of the group. Shown without the ACL,
//! these bits would admit users whom the ACL denies.

use crate::types::Xattr;

/// Name of the extended attribute that holds the access ACL of an inode.
pub const ACL_ACCESS: &[u8] = b"system.posix_acl_access";
/// Name of the xattr with the ACL that new files of a directory inherit.
pub const ACL_DEFAULT: &[u8] = b"system.posix_acl_default";

/// Version of the ACL's bytes.
pub const ACL_VERSION: [u8; 4] = 2u32.to_le_bytes();
/// Length of an entry in bytes.
pub const ACL_ENTRY_LEN: usize = 8;

/// Tag of the entry of the owner.
pub const USER_OBJ: u16 = 0x01;
/// Tag of the entry of a named user.
pub const USER: u16 = 0x02;
/// Tag of the entry of the group.
pub const GROUP_OBJ: u16 = 0x04;
/// Tag of the entry of a named group.
pub const GROUP: u16 = 0x08;
/// Tag of the entry that limits all others but those of the owner and of others.
pub const MASK: u16 = 0x10;
/// Tag of the entry of all others.
pub const OTHER: u16 = 0x20;

/// An entry of an ACL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AclEntry {
    /// The users whom it concerns.
    pub tag: u16,
    /// Read 4, write 2, execute 1.
    pub permissions: u16,
    /// User or group id of a named entry.
    pub id: [u8; 4],
}

/// All permissions that an entry can grant.
const ALL_PERMISSIONS: u16 = 7;

/// Whether owner and group are kept when the ACL is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ids {
    /// Both are kept.
    Kept,
    /// One of them changes. Then users to whom `user::` or `group::` applied count as others.
    Changed,
}

/// Permissions that an ACL grants.
#[derive(Debug, Clone, Copy)]
struct Granted {
    owner: u16,
    group: u16,
    other: u16,
    mask: u16,
    /// Intersection of all named users' and named groups' permissions; `None` if there are no named
    /// entries.
    named: Option<u16>,
    has_mask: bool,
}

/// The low 12 bits of the mode to show for an inode with `permissions` and `xattrs` if its ACL is
/// dropped. With these bits, no user except the shown owner gets more than the ACL allows.
///
/// The group gets `group:: & mask`. Group and others lose the permissions that any named entry
/// denies. If ids change, they also lose those that owner or group are denied. If the ACL is
/// invalid, only the owner's bits remain, because the kernel refuses access to all others then.
pub fn permissions_without_acl(permissions: u16, xattrs: &[Xattr], ids: Ids) -> u16 {
    let acl = xattrs.iter().find(|xattr| xattr.name == ACL_ACCESS);
    acl.map_or(permissions, |acl| {
        permissions_without(permissions, &acl.value, ids)
    })
}

/// The same for the value of [`ACL_ACCESS`].
pub fn permissions_without(permissions: u16, acl: &[u8], ids: Ids) -> u16 {
    let upper = permissions & 0o7700;
    let Some(acl) = parse(acl) else {
        return upper;
    };
    if acl.named.is_none() && !acl.has_mask {
        // The ACL has the same entries as the mode.
        return permissions;
    }
    let named = acl.named.map_or(ALL_PERMISSIONS, |bits| bits & acl.mask);
    let mut group = acl.group & acl.mask & named;
    let mut other = acl.other & named;
    if ids == Ids::Changed {
        group &= acl.owner;
        other &= acl.owner & acl.group & acl.mask;
    }
    // If mode and ACL contradict each other, the intersection of both applies.
    upper | (permissions & (group << 3 | other))
}

/// Entries of the ACL with these bytes. Returns `None` for bytes that are not an ACL.
///
/// # Source
/// Linux, `include/uapi/linux/posix_acl_xattr.h`.
pub fn acl_entries(acl: &[u8]) -> Option<Vec<AclEntry>> {
    let (version, entries) = acl.split_first_chunk::<4>()?;
    let (entries, rest) = entries.as_chunks::<ACL_ENTRY_LEN>();
    if *version != ACL_VERSION || !rest.is_empty() {
        return None;
    }
    let entry = |&[t0, t1, p0, p1, i0, i1, i2, i3]: &[u8; ACL_ENTRY_LEN]| AclEntry {
        tag: u16::from_le_bytes([t0, t1]),
        permissions: u16::from_le_bytes([p0, p1]),
        id: [i0, i1, i2, i3],
    };
    Some(entries.iter().map(entry).collect())
}

fn parse(acl: &[u8]) -> Option<Granted> {
    let mut granted = Granted {
        owner: ALL_PERMISSIONS,
        group: ALL_PERMISSIONS,
        other: ALL_PERMISSIONS,
        mask: ALL_PERMISSIONS,
        named: None,
        has_mask: false,
    };
    for entry in acl_entries(acl)? {
        let bits = entry.permissions;
        match entry.tag {
            USER_OBJ => granted.owner = bits,
            GROUP_OBJ => granted.group = bits,
            OTHER => granted.other = bits,
            MASK => (granted.mask, granted.has_mask) = (bits, true),
            USER | GROUP => granted.named = Some(granted.named.unwrap_or(ALL_PERMISSIONS) & bits),
            _ => return None,
        }
    }
    Some(granted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(u16, u16)]) -> Vec<u8> {
        let entry = |&(tag, bits): &(u16, u16)| {
            [&tag.to_le_bytes()[..], &bits.to_le_bytes(), &[0; 4]].concat()
        };
        let entries: Vec<u8> = entries.iter().flat_map(entry).collect();
        [&ACL_VERSION[..], &entries].concat()
    }

    /// Catches: bits that the mask, `group::` or a named entry denies.
    #[test]
    fn nobody_gets_what_an_entry_denies() {
        let obj = |u, g, o| vec![(USER_OBJ, u), (GROUP_OBJ, g), (OTHER, o)];
        let with = |base: Vec<(u16, u16)>, more: &[(u16, u16)]| [&base[..], more].concat();
        let (kept, changed) = (Ids::Kept, Ids::Changed);
        let rows = [
            ("as the mode", obj(6, 4, 0), 0o640, kept, 0o640),
            (
                "as the mode, others may more",
                obj(6, 0, 4),
                0o604,
                changed,
                0o604,
            ),
            (
                "group:: is nothing",
                with(obj(6, 0, 0), &[(USER, 4), (MASK, 4)]),
                0o640,
                kept,
                0o600,
            ),
            (
                "the mask",
                with(obj(6, 7, 0), &[(USER, 7), (MASK, 1)]),
                0o610,
                kept,
                0o610,
            ),
            (
                "a user is denied",
                with(obj(6, 4, 4), &[(USER, 0), (MASK, 4)]),
                0o644,
                kept,
                0o600,
            ),
            (
                "a group is denied",
                with(obj(7, 7, 5), &[(GROUP, 1), (MASK, 7)]),
                0o775,
                kept,
                0o711,
            ),
            (
                "two entries",
                with(obj(7, 7, 7), &[(USER, 6), (GROUP, 3), (MASK, 7)]),
                0o777,
                kept,
                0o722,
            ),
            (
                "others",
                with(obj(6, 0, 4), &[(USER, 4), (MASK, 4)]),
                0o644,
                kept,
                0o604,
            ),
            (
                "old group",
                with(obj(6, 0, 4), &[(USER, 4), (MASK, 4)]),
                0o644,
                changed,
                0o600,
            ),
            (
                "old owner",
                with(obj(0, 4, 4), &[(USER, 4), (MASK, 4)]),
                0o044,
                changed,
                0,
            ),
            (
                "a mask alone",
                with(obj(6, 6, 4), &[(MASK, 4)]),
                0o644,
                kept,
                0o644,
            ),
            (
                "set-uid stays",
                with(obj(7, 5, 5), &[(USER, 0), (MASK, 5)]),
                0o4755,
                kept,
                0o4700,
            ),
        ];
        for (what, entries, mode, ids, expected) in rows {
            let found = permissions_without(mode, &acl(&entries), ids);
            assert_eq!(found, expected, "{what}: {found:o}, expected {expected:o}");
        }
    }

    #[test]
    fn what_is_no_acl_leaves_the_owner_alone() {
        let whole = acl(&[(USER_OBJ, 6), (GROUP_OBJ, 4), (OTHER, 4)]);
        assert_eq!(permissions_without(0o1644, &whole, Ids::Kept), 0o1644);
        let strange = acl(&[(0x40, 7)]);
        let future = [&3u32.to_le_bytes()[..], &whole[4..]].concat();
        for bytes in [
            &whole[..whole.len() - 1],
            &whole[..3],
            &[],
            &strange,
            &future,
        ] {
            assert_eq!(permissions_without(0o1644, bytes, Ids::Kept), 0o1600);
        }
    }

    #[test]
    fn other_attributes_change_nothing() {
        let set = [Xattr {
            name: b"user.a".to_vec(),
            value: acl(&[(USER, 0)]),
        }];
        assert_eq!(permissions_without_acl(0o666, &set, Ids::Changed), 0o666);
    }
}
