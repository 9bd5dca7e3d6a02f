//! Tests of filters: by table, and against the real rsync.

use super::*;
use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;

fn excluded(pattern: &str, path: &str, is_dir: bool) -> bool {
    let mut filter = Filter::new();
    filter.push_exclude(pattern).unwrap();
    filter.excludes(path.as_bytes(), is_dir)
}

#[test]
fn patterns_match_what_the_manual_of_rsync_says() {
    // (pattern, path, is directory, matches)
    let table = [
        ("foo", "foo", false, true),
        ("foo", "a/b/foo", false, true),
        ("foo", "a/xfoo", false, false),
        ("/foo", "foo", false, true),
        ("/foo", "a/foo", false, false),
        ("foo/", "a/foo", true, true),
        ("foo/", "a/foo", false, false),
        ("a/foo", "x/a/foo", false, true),
        ("a/foo", "xa/foo", false, false),
        ("*.o", "a/b.o", false, true),
        ("*.o", "a/.o", false, true),
        ("/*.o", "a/b.o", false, false),
        ("a/*", "a/b", false, true),
        ("/a/*", "a/b/c", false, false),
        ("/a/**", "a/b/c", false, true),
        ("**/foo", "foo", false, true),
        ("**/foo", "a/b/foo", false, true),
        ("a**z", "x/a/b/z", false, true),
        ("dir/***", "dir", true, true),
        ("dir/***", "dir", false, false),
        ("dir/***", "dir/x/y", false, true),
        ("dir/**", "dir", true, false),
        ("[a-c]x", "bx", false, true),
        ("[!a-c]x", "bx", false, false),
        ("[^a-c]x", "dx", false, true),
        ("a[!x]b", "a/b", false, false),
        ("[[:digit:]]", "7", false, true),
        ("[]x]", "]", false, true),
        ("[a", "a", false, false),
        ("\\*", "*", false, true),
        ("\\*", "x", false, false),
        ("a\\b", "a\\b", false, true),
        ("a\\b?", "a\\bc", false, false),
        ("a\\b?", "abc", false, true),
        ("?", "/", false, false),
    ];
    for (pattern, path, is_dir, expected) in table {
        assert_eq!(
            excluded(pattern, path, is_dir),
            expected,
            "{pattern} on {path}"
        );
    }
}

#[test]
fn the_first_matching_rule_decides() {
    let mut filter = Filter::new();
    filter
        .push_lines(
            b"# comment\n; comment\n\n+ /keep/a\n- /keep/*\n*.tmp\r\n",
            Verdict::Excluded,
        )
        .unwrap();
    assert!(!filter.excludes(b"keep/a", false));
    assert!(filter.excludes(b"keep/b", false));
    assert!(filter.excludes(b"x/y.tmp", false));
    filter.push_exclude("!").unwrap();
    assert!(filter.is_empty());
    assert!(filter.push_exclude("").is_err());
    let error = filter
        .push_lines(b"x\n- \n", Verdict::Included)
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "line 2: empty include or exclude pattern"
    );
}

#[test]
fn rules_are_read_from_a_file() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("rules");
    std::fs::write(&path, "\\[x]\n").unwrap();
    let mut filter = Filter::new();
    filter.push_file(&path, Verdict::Excluded).unwrap();
    assert!(filter.excludes(b"a/[x]", true));
    let missing = filter
        .push_file(&temp.path().join("none"), Verdict::Excluded)
        .unwrap_err();
    assert_eq!(missing.kind(), weald_format::ErrorKind::NotFound);
}

/// A tree of short names in which most patterns below find something.
fn make_tree(root: &Path) {
    for dir in [
        "a/b/c",
        "ab/a",
        "foo/bar/foo",
        "x/y/z/foo/q",
        "d.d/e[x]",
        "abx/cx/dx",
        "a*b",
    ] {
        let dir = root.join(dir);
        std::fs::create_dir_all(&dir).unwrap();
        let mut at = dir.as_path();
        while at != root {
            for name in [
                "a", "b", "foo", "foo.o", "ab", "]", "a\\b", "7", "x-y", "A", "a b", "[", "cx",
            ] {
                let file = at.join(name);
                if !file.exists() {
                    std::fs::write(file, b"").unwrap();
                }
            }
            at = at.parent().unwrap();
        }
    }
}

/// What is left of `dir` when walked with the filter, directories with a trailing slash, as rsync lists them.
fn walk(root: &Path, prefix: &[u8], filter: &Filter, found: &mut BTreeSet<Vec<u8>>) {
    for entry in std::fs::read_dir(root.join(std::ffi::OsStr::from_bytes(prefix))).unwrap() {
        let entry = entry.unwrap();
        let mut path = [prefix, entry.file_name().as_bytes()].concat();
        let is_dir = entry.file_type().unwrap().is_dir();
        if filter.excludes(&path, is_dir) {
            continue;
        }
        if is_dir {
            path.push(b'/');
            walk(root, &path, filter, found);
        }
        found.insert(path);
    }
}

fn rsync(root: &Path, empty: &Path, rules: &[String]) -> BTreeSet<Vec<u8>> {
    let mut command = Command::new("rsync");
    command.args(["-rn", "--out-format=%n", "-8"]);
    command.args(rules.iter().map(|rule| format!("--exclude={rule}")));
    let output = command
        .arg(format!("{}/", root.display()))
        .arg(empty)
        .output()
        .expect("rsync is installed");
    assert!(
        output.status.success(),
        "{rules:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let lines = output
        .stdout
        .split(|&b| b == b'\n')
        .filter(|line| !line.is_empty() && line != b"./");
    lines.map(unescape).collect()
}

/// rsync prints a backslash that could begin an escape as `\#134`.
fn unescape(line: &[u8]) -> Vec<u8> {
    let text = String::from_utf8(line.to_vec()).unwrap();
    text.replace("\\#134", "\\").into_bytes()
}

/// Patterns made of pieces that meet in odd ways; a multiplicative generator keeps them the same in every run.
fn generated_patterns(count: usize) -> Vec<String> {
    let pieces = [
        "a",
        "b",
        "foo",
        "*",
        "**",
        "***",
        "?",
        "/",
        "/",
        "[ab]",
        "[!a]",
        "x",
        "[a-c]",
        ".o",
        "\\",
        "[[:alpha:]]",
        "]",
        "[",
        "c",
        "[^b",
        "-",
        "[]a]",
        "[\\]a]",
        "[x-]",
    ];
    let mut state = 0x9E37_79B9_u64;
    let mut next = move |bound: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % bound
    };
    let one = |next: &mut dyn FnMut(usize) -> usize| {
        let len = next(5) + 1;
        (0..len)
            .map(|_| pieces[next(pieces.len())])
            .collect::<String>()
    };
    (0..count).map(|_| one(&mut next)).collect()
}

#[test]
fn the_real_rsync_agrees() {
    let temp = tempfile::tempdir().unwrap();
    let (root, empty) = (temp.path().join("tree"), temp.path().join("empty"));
    make_tree(&root);
    std::fs::create_dir(&empty).unwrap();
    let mut cases: Vec<Vec<String>> = generated_patterns(120)
        .into_iter()
        .map(|p| vec![p])
        .collect();
    let fixed: [&[&str]; 8] = [
        &["+ */", "+ foo", "- *"],
        &["+ /a/", "+ /a/b", "- *"],
        &["*x/**"],
        &["a/b/***"],
        &["/**/foo"],
        &["foo/**/foo"],
        &["+ foo.o", "*.o", "d.d/"],
        &["/a/b/c/"],
    ];
    cases.extend(
        fixed
            .iter()
            .map(|rules| rules.iter().map(|r| r.to_string()).collect()),
    );
    let pairs = generated_patterns(360).split_off(240);
    cases.extend(
        pairs
            .chunks(3)
            .map(|c| vec![format!("+ {}", c[0]), c[1].clone(), c[2].clone()]),
    );
    for rules in &cases {
        let mut filter = Filter::new();
        rules
            .iter()
            .for_each(|rule| filter.push_exclude(rule).unwrap());
        let mut ours = BTreeSet::new();
        walk(&root, b"", &filter, &mut ours);
        let theirs = rsync(&root, &empty, rules);
        let show = |set: BTreeSet<&Vec<u8>>| {
            set.iter()
                .map(|p| String::from_utf8_lossy(p).into_owned())
                .collect::<Vec<_>>()
        };
        let (more, less) = (
            show(ours.difference(&theirs).collect()),
            show(theirs.difference(&ours).collect()),
        );
        assert!(
            more.is_empty() && less.is_empty(),
            "rules {rules:?}: only we keep {more:?}, only rsync keeps {less:?}"
        );
    }
}

/// Would catch: a reason that is not what decides, or paths explained below an excluded directory.
#[test]
fn the_rule_that_decides_is_told() {
    let mut filter = Filter::new();
    filter.push_include("*.keep").unwrap();
    filter
        .push_lines(b"# rules\n/target/\n+ a?\n", Verdict::Excluded)
        .unwrap();
    let told = |path: &str, is_dir| -> Vec<String> {
        let reasons = filter.explain(path.as_bytes(), is_dir);
        let text = |r: &Reason<'_>| {
            let rule = r.rule.map(|rule| {
                let text = String::from_utf8(rule.text.clone()).unwrap();
                format!("{text} {}", rule.place.clone().unwrap_or_default())
            });
            let path = String::from_utf8(r.path.to_vec()).unwrap();
            format!("{path}: {:?} {}", r.verdict(), rule.unwrap_or_default())
        };
        reasons.iter().map(text).collect()
    };
    assert_eq!(
        told("target/x/y.keep", false),
        ["target: Excluded /target/ line 2"]
    );
    assert_eq!(told("target", false), ["target: Included "]);
    assert_eq!(
        told("src/ab/z.keep", false),
        [
            "src: Included ",
            "src/ab: Included a? line 3",
            "src/ab/z.keep: Included *.keep "
        ]
    );
    for path in ["target/x", "src/ab", "q.keep", "target"] {
        let last = filter.explain(path.as_bytes(), true).pop().unwrap();
        assert!(last.path == path.as_bytes() || last.verdict() == Verdict::Excluded);
    }
}

#[test]
fn rules_of_filter_words_and_merged_files_are_in_order() {
    let temp = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(temp.path().join(name), text).unwrap();
    write("rules", "# comment\n+ keep.o\nmerge more\n\n- *.tmp\n");
    write("more", "exclude *.o\n");
    write("loop", ". loop\n");
    let mut filter = Filter::new();
    let push = |filter: &mut Filter, rule: &str| filter.push_filter(rule.as_bytes());
    push(&mut filter, "- *").unwrap();
    push(&mut filter, "!").unwrap();
    let merge = |name: &str| format!("merge {}", temp.path().join(name).display());
    push(&mut filter, &merge("rules")).unwrap();
    push(&mut filter, "include /a/").unwrap();
    for (path, verdict, place) in [
        ("x/keep.o", Verdict::Included, Some("rules, line 2")),
        ("x.o", Verdict::Excluded, Some("more, line 1")),
        ("x.tmp", Verdict::Excluded, Some("rules, line 5")),
        ("x", Verdict::Included, None),
    ] {
        assert_eq!(filter.matches(path.as_bytes(), false), verdict, "{path}");
        let reasons = filter.explain(path.as_bytes(), false);
        let rule = reasons.last().unwrap().rule;
        let found = rule.and_then(|rule| rule.place.clone()).unwrap_or_default();
        assert!(found.ends_with(place.unwrap_or("")), "{path}: {found}");
    }
    let mut error = |rule: &str| push(&mut filter, rule).unwrap_err().to_string();
    assert!(error("hide x").contains("expected '- PATTERN'"));
    assert!(error("-").contains("empty"));
    assert!(error("dir-merge .rules").contains("not supported"));
    assert!(error(&merge("none")).contains("none"));
    assert!(error(&merge("loop")).contains("without end"));
}
