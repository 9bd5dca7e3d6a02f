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

/// Would catch: a name that keeps its old case after the way that the document gives, or data that
/// the way loses.
#[test]
fn the_case_of_a_name_changes_by_way_of_a_third_name() {
    let ground = mounted();
    let said = ground.sh("cd mnt; echo x > README; mkdir Dir; echo y > Dir/file
        mv README r.tmp; mv -n r.tmp readme; mv Dir d.tmp; mv -n d.tmp dir
        ls; cat README DIR/FILE; ls dir");
    assert_eq!(said, "dir\nreadme\nx\ny\nfile\n");
    // Linux ends this rename itself, because both names lead to one inode: no request is sent, and
    // nothing changes. If this fails, Linux passes it on, and the document must change.
    let said = ground
        .sh("cd mnt; python3 -I -c 'import os; os.rename(\"readme\", \"README\")'; ls; cat readme");
    assert_eq!(said, "dir\nreadme\nx\n");
    ground.umount();
    ground.assert_clean();
}
