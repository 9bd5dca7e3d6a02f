//! Stores in directories and file systems that do not allow writes or locks.

use crate::ground::{Ground, injected, refused};
use std::process::{Command, Stdio};
use weald_testkit::command::Output;
use weald_testkit::mounts::finish;

/// Runs the command as the user `nobody`, from a copy of the binary that this user may run.
fn as_nobody(ground: &Ground, args: &[&str]) -> Output {
    ground.sh("test -e weald-copy || { cp $WEALD weald-copy; chmod 755 weald-copy; }");
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
        .args(["--inh-caps=-all", "--"])
        .arg(ground.at("weald-copy"))
        .args(args)
        .current_dir(ground.0.path())
        .env("LC_ALL", "C")
        .stdin(Stdio::null());
    finish(&mut command)
}

/// Commands that change the store `store`.
const WRITERS: [&[&str]; 5] = [
    &["store", "import", "store", "v1.weald", "--name", "x"],
    &["store", "rm", "store:v1"],
    &["store", "gc", "store"],
    &["store", "check", "store"],
    &["store", "salvage", "store"],
];

/// Would catch: a user who cannot read a store although its modes allow it, or who can change it
/// although they do not.
#[test]
fn users_without_rights_read_and_change_nothing() {
    let ground = Ground::with_store();
    let before = ground.contents("store");
    for args in WRITERS {
        refused(
            &as_nobody(&ground, args),
            &["store/", "Permission denied", "only a user who may write"],
        );
    }
    refused(
        &as_nobody(&ground, &["store", "create", "mine"]),
        &["mine: Permission denied"],
    );
    for args in [
        &["store", "ls", "store"][..],
        &["store", "info", "store"],
        &["cat", "store:v1", "etc/main"],
        &["check", "store:v2"],
    ] {
        as_nobody(&ground, args).expect(0);
    }
    ground.sh("chmod 700 store");
    for args in [&["store", "ls", "store"][..], &["store", "gc", "store"]] {
        refused(&as_nobody(&ground, args), &["store", "Permission denied"]);
    }
    ground.sh("chmod 755 store");
    assert!(ground.contents("store") == before);
}

/// Would catch: a store on read-only media that cannot be read, and an error that does not say why
/// the store cannot be changed.
#[test]
fn a_read_only_store_is_read() {
    let ground = Ground::with_store();
    let before = ground.contents("store");
    ground.sh("mount --bind store store && mount -o remount,bind,ro store");
    ground.weald(&["store", "check", "--data", "store"]);
    for args in WRITERS.iter().filter(|args| args[1] != "check") {
        ground.refused(
            args,
            &[
                "store/",
                "Read-only file system",
                "copy the store to another file system",
            ],
        );
    }
    for name in ["v1", "v2"] {
        ground.assert_exported("store", name);
        ground.weald(&["diff", &format!("store:{name}"), name]);
    }
    let dir = ground.0.dir("mnt");
    ground.0.mount(std::path::Path::new("store:v1"), &dir, &[]);
    ground.0.umount(&dir);
    ground.sh("umount store");
    assert!(ground.contents("store") == before);
}

/// Would catch: a write to a store without a lock, and a write that counts as durable although the
/// file system does not support that.
#[test]
fn file_systems_without_locks_or_syncs_are_refused() {
    let ground = Ground::with_store();
    let before = ground.contents("store");
    for args in WRITERS
        .iter()
        .chain(&[&["ls", "store:v1"][..], &["store", "create", "other"]])
    {
        refused(
            &injected(&ground, "fcntl:error=ENOLCK", args),
            &["no file locks", "local disk"],
        );
        assert!(!ground.at("other").exists());
    }
    assert!(ground.contents("store") == before);
    for call in ["fsync", "fdatasync"] {
        for args in [
            &["store", "import", "store", "v1.weald", "--name", "x"][..],
            &["store", "create", "other"],
        ] {
            let output = injected(&ground, &format!("{call}:error=EINVAL"), args);
            refused(&output, &["cannot make data durable", "local disk"]);
            assert!(!ground.at("other").exists());
        }
    }
    ground.assert_clean("store");
    assert_eq!(ground.json(&["store", "ls", "--json", "store"]).len(), 2);
    ground.assert_exported("store", "v1");
}
