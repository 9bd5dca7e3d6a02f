//! Flags that chattr(1) sets.

use super::*;

/// Changes that the flags of the tree of [`flagged`] forbid, whoever asks for them.
const FORBIDDEN: &[&str] = &[
    "echo x >> i",
    "echo x > i",
    "truncate -s 1 i",
    "fallocate -p -o 0 -l 4096 i",
    "dd if=/etc/passwd of=i conv=notrunc",
    "rm -f i",
    "mv i other",
    "mv plain i",
    "ln i other",
    "chmod 600 i",
    "chown 1 i",
    "touch i",
    "setfattr -n user.a -v b i",
    "setfattr -x user.kept i",
    "setfacl -m u:1:r i",
    "echo x > a",
    "truncate -s 1 a",
    "fallocate -p -o 0 -l 4096 a",
    "dd if=/etc/passwd of=a conv=notrunc",
    "rm -f a",
    "mv a other",
    "ln a other",
    "chmod 600 a",
    "touch -d 2020-01-01 a",
    "setfattr -n user.a -v b a",
    "touch di/new",
    "mkdir di/new",
    "ln plain di/new",
    "mv plain di/new",
    "rm -f di/in",
    "mv di/in other",
    "mv di other",
    "rmdir di",
    "rm -f da/in",
    "mv da/in other",
    "mv plain da/in",
    "chmod 700 di",
];

/// Changes that they do not forbid.
const PERMITTED: &str = "cat i a da/in di/in > /dev/null; echo x >> a; touch a; echo x > di/in
    touch da/new; echo x > da/in; ln plain da/more; ls da di > /dev/null; rm da/../plain2";

/// Files and directories with flags.
fn flagged(ground: &Ground) {
    ground.sh(
        "cd mnt; mkdir di da dA; touch di/in da/in dA/in plain plain2; echo i > i; echo a > a
         setfattr -n user.kept -v x i
         chattr +i i di; chattr +a a da; chattr +A dA; chattr +d plain",
    );
}

fn listed(ground: &Ground) -> String {
    ground.sh("cd mnt; lsattr -dR i a plain di da dA dA/in | tr -d - | sort -k 2")
}

const LISTED: &str = "a a\nd plain\ni i\nA dA\n dA/in\na da\ni di\n";

#[track_caller]
fn assert_listed(ground: &Ground) {
    let mut found: Vec<String> = listed(ground).lines().map(str::to_owned).collect();
    let mut wanted: Vec<String> = LISTED.lines().map(str::to_owned).collect();
    found.sort();
    wanted.sort();
    assert_eq!(found, wanted);
}

#[track_caller]
fn assert_forbidden(ground: &Ground) {
    for change in FORBIDDEN {
        let script = format!("cd mnt && ! {{ {change}; }} 2> ../said && cat ../said");
        let done = ground.run(&script);
        assert_eq!(done.code, Some(0), "{change}: was done, or {}", done.stderr);
        let said = done.text();
        assert!(said.contains("Operation not permitted"), "{change}: {said}");
    }
}

/// Would catch: a change that a flag forbids and that is done; a flag that is lost by a remount, a
/// crash or a salvage; a check that takes one for damage.
#[test]
fn flags_forbid_changes_and_last() {
    let ground = Ground::new();
    ground.mount(&[]);
    flagged(&ground);
    assert_listed(&ground);
    assert_forbidden(&ground);
    ground.sh(&format!("cd mnt; {PERMITTED}; sync -f a"));
    // What was synced is there after a crash, from the log and from the tables.
    ground.sh("cd mnt; touch late; chattr +ia late; sync late");
    ground.kill();
    ground.mount(&[]);
    assert_listed(&ground);
    assert_forbidden(&ground);
    assert!(ground.sh("lsattr mnt/late").starts_with("----ia"));
    // The volume was mounted with flags: an open is refused already.
    ground.sh(
        "! dd if=/dev/null of=mnt/a conv=notrunc 2> said || exit 1; grep 'failed to open' said
         ! bash -c 'exec 3>> mnt/i' 2> said || exit 1; grep 'not permitted' said
         exec 3>> mnt/a; echo more >&3",
    );
    ground.umount();
    ground.assert_clean();
    ground.weald(&["store", "check", "--data", "store"]);
    let salvaged = ["store", "salvage", "store"];
    ground.weald(&salvaged);
    ground.mount(&["-o", "ro"]);
    assert_listed(&ground);
    ground.umount();
    // An image has no flags.
    ground.weald(&["volume", "seal", "-q", VOLUME, "--name", "i"]);
    ground.weald(&["volume", "create", "-q", "store:w", "--from", "store:i"]);
    let other = ground.0.dir("other");
    ground.0.mount(Path::new("store:w"), &other, &[]);
    ground.sh("echo x > other/i; rm other/a; rm -r other/di
         test $(lsattr -R other | grep -c -- -i-) = 0");
    ground.0.umount(&other);
    // Without flags everything is possible again.
    ground.mount(&[]);
    ground.sh("chattr -R -iaAd mnt; rm -r mnt/*");
    ground.umount();
    ground.assert_clean();
}

/// Would catch: a user who sets or clears what only root may; flags that no file system of Weald
/// has and that are taken; access times that `+A` does not keep.
#[test]
fn flags_are_for_those_who_may_set_them() {
    let ground = Ground::new();
    ground.mount(&["-o", "strictatime,allow_other"]);
    ground.sh(
        "chmod 777 mnt; cd mnt; touch own roots; chown 1000:1000 own; chmod 666 roots
         user='setpriv --reuid 1000 --regid 1000 --clear-groups'
         $user chattr +Ad own; lsattr own | grep -e '--dA--'; $user chattr -d own
         ! $user chattr +i own || exit 1; ! $user chattr +a own || exit 1
         ! $user chattr +d roots || exit 1
         chattr +i own; ! $user chattr -i own || exit 1; ! $user rm -f own || exit 1
         # chattr says that it failed, and ends with status 0.
         $user chattr =A own 2> said; grep 'not permitted' said
         ! chattr +c own || exit 1; ! chattr +C own || exit 1; ! chattr +j own || exit 1
         lsattr own | grep -e '--i--A--'
         chattr -i own; $user rm own; ln -s roots link; ! lsattr link || exit 1",
    );
    // A read changes the access time of `b`, not that of `a`.
    ground.sh(
        "cd mnt; for f in a b; do echo $f > $f; touch -a -d 2020-01-01 $f; done; chattr +A a
         cat a b > /dev/null; stat -c %x a | grep 2020-01-01
         ! stat -c %x b | grep 2020-01-01 || exit 1
         chattr -A a; cat a > /dev/null",
    );
    ground.umount();
    ground.assert_clean();
}
