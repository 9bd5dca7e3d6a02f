//! What entries get in place of the attributes of the source.

use super::mode::ModeRule;
use std::borrow::Cow;
use weald_filter::{IdMap, XattrRules};
use weald_format::acl::{ACL_ENTRY_LEN, ACL_VERSION, GROUP, USER};
use weald_format::{
    ACL_ACCESS, ACL_DEFAULT, FileKind, Ids, Xattr, XattrSet, permissions_without_acl,
};

/// Rules about extended attributes and ids.
#[derive(Debug, Clone, Default)]
pub struct AttributeRules {
    /// Which extended attributes are kept.
    pub xattrs: XattrRules,
    /// Extended attributes that every file and directory gets.
    pub set_xattrs: Vec<Xattr>,
    /// What users become, in ACLs, too.
    pub uids: IdMap,
    /// What groups become, in ACLs, too.
    pub gids: IdMap,
    /// The root of the tree.
    pub root: RootRules,
}

/// What the root directory gets.
#[derive(Debug, Clone, Default)]
pub struct RootRules {
    /// User.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Change of permissions.
    pub mode: Option<ModeRule>,
    /// mtime, seconds since 1970.
    pub mtime: Option<i64>,
}

impl AttributeRules {
    /// Whether no xattr changes.
    pub fn keeps_xattrs(&self) -> bool {
        self.xattrs.is_everything()
            && self.set_xattrs.is_empty()
            && self.uids.is_empty()
            && self.gids.is_empty()
    }

    /// The xattrs that an inode of `kind` with `set` gets; `None` for none.
    pub fn xattrs_of<'a>(
        &self,
        set: Option<&'a XattrSet>,
        kind: FileKind,
    ) -> Option<Cow<'a, XattrSet>> {
        if self.keeps_xattrs() {
            return set.map(Cow::Borrowed);
        }
        let kept = set.into_iter().flatten();
        let mut changed: XattrSet = kept
            .filter(|xattr| self.xattrs.keeps(&xattr.name))
            .map(|xattr| self.with_ids(xattr))
            .collect();
        if matches!(kind, FileKind::Regular | FileKind::Directory) {
            changed.retain(|xattr| self.set_xattrs.iter().all(|new| new.name != xattr.name));
            changed.extend(self.set_xattrs.iter().cloned());
        }
        changed.sort_by(|a, b| a.name.cmp(&b.name));
        (!changed.is_empty()).then_some(Cow::Owned(changed))
    }

    /// The permissions of an inode with `set` that gets the xattrs `changed`: without an ACL, the
    /// mode lets in nobody whom the ACL denied.
    pub fn permissions_of(
        &self,
        permissions: u16,
        set: Option<&XattrSet>,
        changed: Option<&XattrSet>,
    ) -> u16 {
        let has_acl = |set: &XattrSet| set.iter().any(|xattr| xattr.name == ACL_ACCESS);
        match set {
            Some(set) if has_acl(set) && !changed.is_some_and(has_acl) => {
                permissions_without_acl(permissions, set, Ids::Kept)
            }
            _ => permissions,
        }
    }

    /// The xattr with the ids of an ACL mapped. Bytes that are no ACL stay.
    fn with_ids(&self, xattr: &Xattr) -> Xattr {
        let mut xattr = xattr.clone();
        let is_acl = xattr.name == ACL_ACCESS || xattr.name == ACL_DEFAULT;
        let has_maps = !self.uids.is_empty() || !self.gids.is_empty();
        if !is_acl || !has_maps || !xattr.value.starts_with(&ACL_VERSION) {
            return xattr;
        }
        let Some(entries) = xattr.value.get_mut(ACL_VERSION.len()..) else {
            return xattr;
        };
        let (entries, _) = entries.as_chunks_mut::<ACL_ENTRY_LEN>();
        for [t0, t1, _, _, id @ ..] in entries {
            let map = match u16::from_le_bytes([*t0, *t1]) {
                USER => &self.uids,
                GROUP => &self.gids,
                _ => continue,
            };
            *id = map.apply(u32::from_le_bytes(*id)).to_le_bytes();
        }
        xattr
    }
}
