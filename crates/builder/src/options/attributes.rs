//! What entries get in place of the attributes of the source.

use super::mode::ModeRule;
use std::borrow::Cow;
use weald_filter::AttributeChoice;
use weald_format::{ACL_ACCESS, FileKind, Ids, Xattr, XattrSet, permissions_without_acl};

/// Rules about extended attributes and ids.
#[derive(Debug, Clone, Default)]
pub struct AttributeRules {
    /// What is kept of the attributes of the source.
    pub choice: AttributeChoice,
    /// Extended attributes that every file and directory gets.
    pub set_xattrs: Vec<Xattr>,
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
        self.choice.is_everything() && self.set_xattrs.is_empty()
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
            .filter_map(|xattr| self.choice.xattr_of(xattr))
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
}
