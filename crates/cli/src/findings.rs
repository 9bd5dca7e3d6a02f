//! Findings of checks of volumes and stores, for people and programs.

use crate::json::{Object, put_name};
use crate::messages;
use weald_vfs::shown_path;
use weald_volume::Finding;

/// The file of a finding of a volume and what is wrong, for programs.
pub fn put_finding(object: &mut Object, finding: &Finding) {
    if let Some(path) = &finding.path {
        put_name(object, "path", path);
    }
    if let Some(inode) = finding.inode {
        object.insert("inode".into(), inode.0.into());
    }
    object.insert("what".into(), finding.what.as_str().into());
}

/// The file of a finding of a volume and what is wrong, for people.
pub fn shown_finding(finding: &Finding) -> String {
    let what = messages::detailed(&finding.what);
    match (&finding.path, finding.inode) {
        (Some(path), _) => format!("{}: {what}", shown_path(path)),
        (None, Some(inode)) => format!("inode {inode} (no path): {what}"),
        (None, None) => what,
    }
}
