//! Which attributes are passed on, and what users and groups become.

use crate::{IdMap, XattrRules};
use weald_format::acl::{ACL_ENTRY_LEN, ACL_VERSION, GROUP, USER};
use weald_format::{ACL_ACCESS, ACL_DEFAULT, Attributes, Xattr};

/// Rules about extended attributes and ids; the default keeps everything.
#[derive(Debug, Clone, Default)]
pub struct AttributeChoice {
    /// Which extended attributes are kept.
    pub xattrs: XattrRules,
    /// What users become, in ACLs, too.
    pub uids: IdMap,
    /// What groups become, in ACLs, too.
    pub gids: IdMap,
}

impl AttributeChoice {
    /// Whether everything is kept as it is.
    pub fn is_everything(&self) -> bool {
        self.xattrs.is_everything() && !self.has_maps()
    }

    fn has_maps(&self) -> bool {
        !self.uids.is_empty() || !self.gids.is_empty()
    }

    /// The attributes with the ids mapped.
    pub fn attributes_of(&self, attributes: Attributes) -> Attributes {
        Attributes {
            uid: self.uids.apply(attributes.uid),
            gid: self.gids.apply(attributes.gid),
            ..attributes
        }
    }

    /// The xattr with the ids of an ACL mapped; `None` if it is not kept. Bytes that are no ACL
    /// stay.
    pub fn xattr_of(&self, xattr: &Xattr) -> Option<Xattr> {
        if !self.xattrs.keeps(&xattr.name) {
            return None;
        }
        let mut xattr = xattr.clone();
        let is_acl = xattr.name == ACL_ACCESS || xattr.name == ACL_DEFAULT;
        if !is_acl || !self.has_maps() || !xattr.value.starts_with(&ACL_VERSION) {
            return Some(xattr);
        }
        let entries = xattr.value.get_mut(ACL_VERSION.len()..);
        let (entries, _) = entries.unwrap_or_default().as_chunks_mut::<ACL_ENTRY_LEN>();
        for [t0, t1, _, _, id @ ..] in entries {
            let map = match u16::from_le_bytes([*t0, *t1]) {
                USER => &self.uids,
                GROUP => &self.gids,
                _ => continue,
            };
            *id = map.apply(u32::from_le_bytes(*id)).to_le_bytes();
        }
        Some(xattr)
    }
}
