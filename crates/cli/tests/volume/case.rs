//! Volumes whose names are found without regard to case: what docs/volume.md says of them.

use crate::{Ground, VOLUME};

/// Pairs of names, and whether they name the same file: the table of docs/volume.md.
const PAIRS: [(&str, &str, bool); 11] = [
    ("README", "readme", true),
    ("ÄRGER", "ärger", true),
    ("Москва", "МОСКВА", true),
    ("STRASSE", "strasse", true),
    ("ẞ", "ß", true),
    ("ΟΔΟΣ", "οδος", true),
    // Not folded: the forms of Unicode, one letter for two, the two small sigmas.
    ("\u{e9}", "e\u{301}", false),
    ("straße", "STRASSE", false),
    ("οδοσ", "οδος", false),
    ("ﬁ", "fi", false),
    ("istanbul", "İSTANBUL", false),
];

fn mounted() -> Ground {
    let ground = Ground::new();
    ground.weald(&["volume", "rm", VOLUME]);
    ground.weald(&["volume", "create", "-q", "--case-insensitive", VOLUME]);
    ground.mount(&[]);
    ground
}

/// Would catch: other names that are one than the document says.
#[test]
fn names_fold_as_the_document_says() {
    let ground = mounted();
    for (one, two, is_same) in PAIRS {
        let script =
            format!("cd mnt; echo x > '{one}'; ls; test -e '{two}' && echo same; rm '{one}'");
        let said = ground.sh(&format!("{script} || true"));
        let expected = if is_same {
            format!("{one}\nsame\n")
        } else {
            format!("{one}\n")
        };
        assert_eq!(said, expected, "{one} {two}");
    }
    ground.umount();
    ground.assert_clean();
}

/// A program that renames by the call of C, so that nothing looks a name up before.
fn rename(from: &str, to: &str) -> String {
    format!("python3 -I -c 'import os; os.rename(\"{from}\", \"{to}\")'")
}

/// Would catch: a rename between two cases that does nothing, or loses what is below.
#[test]
fn a_rename_changes_the_case_of_a_name() {
    let ground = mounted();
    ground.sh("cd mnt; echo x > README; mkdir Dir; echo y > Dir/file; mkdir Äpfel");
    ground.sh(&format!(
        "cd mnt; {}; mv Dir DIR; mv Äpfel äpfel",
        rename("README", "readme")
    ));
    assert_eq!(
        ground.sh("cd mnt; ls; cat README; cat dir/FILE"),
        "DIR\nreadme\näpfel\nx\ny\n"
    );
    // The old name in a case of its own, whole paths, a file that is open, and the other way.
    let (from, to) = ("Dir/FILE", "dir/File");
    ground.sh(&format!(
        "cd mnt; exec 3<readme; {}; {}",
        rename(from, to),
        rename("rEADME", "ReadMe")
    ));
    let open = rename("ReadMe", "README");
    let said = ground.sh(&format!(
        "cd mnt; exec 3<>readme; {open}; cat <&3; echo z >&3; cat README"
    ));
    assert_eq!(said, "x\nx\nz\n");
    assert_eq!(
        ground.sh("cd mnt; ls; ls dir"),
        "DIR\nREADME\näpfel\nFile\n"
    );
    ground.umount();
    ground.assert_clean();
    ground.mount(&[]);
    assert_eq!(
        ground.sh("cd mnt; ls; ls dir; cat readme"),
        "DIR\nREADME\näpfel\nFile\nx\nz\n"
    );
    ground.umount();
    ground.assert_clean();
}

/// Would catch: another rename, which finds a name hidden from it that is there.
#[test]
fn other_renames_find_every_name() {
    let ground = mounted();
    ground.sh("cd mnt; echo 1 > a; echo 2 > b; mkdir D; echo 3 > D/x; echo 4 > old; ln old link");
    // By another case; over another file; below a directory of the same name; over its own link.
    ground.sh(&format!(
        "cd mnt; {}; {}",
        rename("A", "c"),
        rename("B", "C")
    ));
    ground.sh(&format!(
        "cd mnt; {}; {}",
        rename("d/X", "D/y"),
        rename("D/Y", "d/d")
    ));
    ground.sh(&format!(
        "cd mnt; {}; {}",
        rename("d/D", "D/D"),
        rename("old", "LINK")
    ));
    assert_eq!(
        ground.sh("cd mnt; ls; cat c; ls D; cat D/d; cat old link"),
        "C\nD\nlink\nold\n2\nd\n3\n4\n4\n"
    );
    // An exchange with itself, for which both names must be there, and one that keeps the other.
    let exchange = "import ctypes; libc = ctypes.CDLL(None, use_errno=True)
assert libc.renameat2(-100, b\"C\", -100, b\"c\", 2) == 0, ctypes.get_errno()";
    let said = ground.sh(&format!(
        "cd mnt; python3 -I -c '{exchange}'; mv -n C LINK; ls; cat link"
    ));
    assert_eq!(said, "C\nD\nlink\nold\n4\n");
    // Another user's program.
    let user = "setpriv --reuid 1000 --regid 1000 --clear-groups";
    let said = ground.sh(&format!(
        "cd mnt; chmod 777 .; {user} mv OLD Old; ls; cat old"
    ));
    assert_eq!(said, "C\nD\nOld\nlink\n4\n");
    ground.umount();
    ground.assert_clean();
}
