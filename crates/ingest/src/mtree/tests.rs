use super::*;
use proptest::prelude::*;
use std::io::Cursor;
use weald_format::Timestamp;

fn reader(text: &[u8]) -> MtreeReader {
    let input = Input::new(Box::new(Cursor::new(text.to_vec())), 1 << 20).unwrap();
    MtreeReader::new(input, None).unwrap()
}

fn all(text: &[u8]) -> Result<Vec<Member>> {
    let (mut reader, mut member, mut members) = (reader(text), Member::default(), Vec::new());
    while reader.next(&mut member, &mut |_, what| panic!("{what}"))? {
        members.push(member.clone());
    }
    Ok(members)
}

/// Would catch: a directory that is not left at `..`, a full path that is taken for a name, a value
/// of `/set` that stays after `/unset`, a line that does not go on, a name whose bytes are not
/// those of vis(3).
#[test]
fn both_forms_are_read() {
    let text = br"#mtree
# a comment that does not go on \
/set type=file uid=3 gid=4 mode=0640
. type=dir mode=0755
    a\sb\M-C\M-$\\[*\#  size=0 \
        time=-6.750000000 nlink=2
    dir type=dir
        below size=0 mode=100600
        /unset mode
        plain size=0
    ..
    /set uname=root
    link type=link link=x\040y
./dir/full\012name size=0 time=5.2
tty type=char device=native,0x5,70000
..
";
    let members = all(text).unwrap();
    let paths: Vec<_> = members.iter().map(|m| m.path.as_slice()).collect();
    let expected: [&[u8]; 8] = [
        b".",
        b"./a b\xc3\xa4\\[*#",
        b"./dir",
        b"./dir/below",
        b"./dir/plain",
        b"./link",
        b"./dir/full\nname",
        b"./tty",
    ];
    assert_eq!(paths, expected);
    let modes: Vec<_> = members.iter().map(|m| m.attributes.permissions).collect();
    assert_eq!(
        modes,
        [0o755, 0o640, 0o640, 0o600, 0o644, 0o644, 0o644, 0o644]
    );
    let time = |seconds, nanoseconds| Timestamp {
        seconds,
        nanoseconds,
    };
    assert_eq!(members[1].mtime, time(-6, 750_000_000));
    assert_eq!(members[6].mtime, time(5, 2));
    assert_eq!(members[5].target, b"x y");
    assert_eq!(members[7].attributes.rdev, 5 << 32 | 70_000);
    assert!(
        members
            .iter()
            .all(|m| (m.attributes.uid, m.attributes.gid) == (3, 4))
    );
}

/// Would catch: lines of `mtree -D`, whose keywords are taken for names.
#[test]
fn names_at_the_end_of_the_line_are_read() {
    let text = br"#mtree
type=dir mode=0755 .
type=file mode=0640 size=0 time=5.2 ./a\sb
type=link link=./x mode=0777 ./link
# ./comment
./first type=file size=0
";
    let members = all(text).unwrap();
    let found: Vec<_> = members
        .iter()
        .map(|m| (m.path.as_slice(), m.attributes.permissions))
        .collect();
    let expected: [(&[u8], u16); 4] = [
        (b".", 0o755),
        (b"./a b", 0o640),
        (b"./link", 0o777),
        (b"./first", 0o644),
    ];
    assert_eq!(found, expected);
    assert_eq!(members[2].target, b"./x");
}

#[test]
fn what_cannot_be_taken_is_named() {
    for (line, what) in [
        (
            "a type=file size=5",
            "5 bytes, and no directory that has the contents",
        ),
        ("a type=file", "no size"),
        ("a size=0", "no type"),
        ("a type=door", "type 'door' is not known"),
        (
            "a type=file size=0 colour=red",
            "the keyword 'colour' is not known",
        ),
        ("a type=file size=0 mode=u+x", "expected octal digits"),
        (
            "a type=file size=0 uname=daemon",
            "'daemon' without a number",
        ),
        ("a type=file size=-1", "no value of that keyword"),
        (
            "a type=file size=0 time=1.1000000000",
            "no value of that keyword",
        ),
        ("a type=char device=0x501", "expected FORMAT,MAJOR,MINOR"),
        ("a type=char", "no device"),
        (
            "a type=file size=0 sha256=abc",
            "expected 64 hexadecimal digits",
        ),
        ("a\\q type=file size=0", "a backslash that is not of vis(3)"),
        ("..", "'..' above the root"),
        ("/other type=file", "is no word of mtree"),
    ] {
        let error = all(line.as_bytes()).unwrap_err();
        let (text, at) = (error.to_string(), "mtree, line 1");
        assert!(text.contains(what) && text.contains(at), "{line}: {text}");
    }
    let long = [
        b"a type=file size=0 link=",
        &[b'x'; lines::MTREE_LINE_LEN_MAX][..],
    ]
    .concat();
    assert_eq!(all(&long).unwrap_err().kind(), ErrorKind::Limit);
}

proptest! {
    /// Would catch: bytes that make the reader panic, or run without end.
    #[test]
    fn any_bytes_are_read_or_refused(
        words in proptest::collection::vec(
            prop_oneof![
                Just(b"/set ".to_vec()), Just(b"\n".to_vec()), Just(b"\\".to_vec()),
                Just(b" type=dir".to_vec()), Just(b"..\n".to_vec()), Just(b"\\M".to_vec()),
                Just(b" time=-9223372036854775808.1".to_vec()), Just(b" mode=".to_vec()),
                proptest::collection::vec(any::<u8>(), 0..6)
            ],
            0..60,
        ),
    ) {
        let (mut reader, mut member) = (reader(&words.concat()), Member::default());
        while let Ok(true) = reader.next(&mut member, &mut |_, _| {}) {}
    }
}
