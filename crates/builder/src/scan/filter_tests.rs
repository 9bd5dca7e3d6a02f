//! Tests of filters: a table, and comparison with the real rsync.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;
use weald_filter::*;
use weald_format::Result;

/// No rules from directories.
fn none() -> DirRules {
    DirRules::default()
}

/// A reader that finds no filter files.
fn nowhere(_: &[u8], _: &[u8]) -> Result<Option<Vec<u8>>> {
    Ok(None)
}

fn excluded(pattern: &str, path: &str, is_dir: bool) -> bool {
    let mut filter = Filter::new();
    filter.push_exclude(pattern).unwrap();
    filter.excludes(&none(), path.as_bytes(), is_dir)
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
    assert!(!filter.excludes(&none(), b"keep/a", false));
    assert!(filter.excludes(&none(), b"keep/b", false));
    assert!(filter.excludes(&none(), b"x/y.tmp", false));
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
    assert!(filter.excludes(&none(), b"a/[x]", true));
    let missing = filter
        .push_file(&temp.path().join("none"), Verdict::Excluded)
        .unwrap_err();
    assert_eq!(missing.kind(), weald_format::ErrorKind::NotFound);
}

/// Creates a tree of short names in which most patterns below match something.
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

/// Lists the included paths below `dir` as rsync does: directories with a trailing slash. `above`
/// are the rules in force in the parent.
fn walk(root: &Path, dir: &[u8], above: &DirRules, filter: &Filter, found: &mut BTreeSet<Vec<u8>>) {
    let here = root.join(OsStr::from_bytes(dir));
    let read = &mut |name: &[u8]| crate::scan::read_dir_rules(&here, name);
    let rules = filter.below(above, dir, read).unwrap();
    for entry in std::fs::read_dir(&here).unwrap() {
        let entry = entry.unwrap();
        let mut path = match dir {
            b"" => Vec::new(),
            dir => [dir, b"/"].concat(),
        };
        path.extend_from_slice(entry.file_name().as_bytes());
        let is_dir = entry.file_type().unwrap().is_dir();
        if filter.excludes(&rules, &path, is_dir) {
            continue;
        }
        if is_dir {
            walk(root, &path, &rules, filter, found);
            path.push(b'/');
        }
        found.insert(path);
    }
}

/// Lists the paths that rsync keeps with `rules` passed as `--exclude=…`, or as another option
/// `word`.
fn rsync(root: &Path, empty: &Path, word: &str, rules: &[String]) -> BTreeSet<Vec<u8>> {
    let mut command = Command::new("rsync");
    command.args(["-rn", "--out-format=%n", "-8"]);
    command.args(rules.iter().map(|rule| format!("{word}={rule}")));
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

/// Generates patterns from pieces that interact in unusual ways. A multiplicative generator makes
/// them the same in every run.
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
        assert_like_rsync(&root, &empty, &filter, "--exclude", rules);
    }
}

#[track_caller]
fn assert_like_rsync(root: &Path, empty: &Path, filter: &Filter, word: &str, rules: &[String]) {
    let mut ours = BTreeSet::new();
    walk(root, b"", &none(), filter, &mut ours);
    let theirs = rsync(root, empty, word, rules);
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

/// Would catch: rules of directories inherited in the wrong order or not at all, anchored at the
/// wrong directory, cleared too far, or in the wrong position among the others. Files and queries
/// are generated.
#[test]
fn the_real_rsync_agrees_about_rules_in_directories() {
    let temp = tempfile::tempdir().unwrap();
    let (root, empty) = (temp.path().join("tree"), temp.path().join("empty"));
    make_tree(&root);
    std::fs::create_dir(&empty).unwrap();
    // rsync treats a directory name with wildcards as a pattern when it anchors rules.
    std::fs::remove_dir_all(root.join("a*b")).unwrap();
    std::fs::remove_dir_all(root.join("d.d/e[x]")).unwrap();
    let dirs = [
        "", "a", "a/b", "a/b/c", "ab", "foo", "foo/bar", "x", "x/y/z", "abx/cx",
    ];
    let mut state = 7u64;
    let mut next = move |bound: usize| {
        state = crate::order::mix::mixed(state);
        (state >> 33) as usize % bound
    };
    let letters = ["", "n", "e", "-", "+", "-n", "ne", "w-", "w+", "C", "-e"];
    for round in 0..60 {
        let mut patterns = generated_patterns(10 * (round + 1)).split_off(10 * round);
        patterns.retain(|pattern| !pattern.starts_with(' '));
        let letters = letters[round % letters.len()];
        let is_plain = letters.contains(['-', '+', 'C']);
        for dir in dirs {
            let path = root.join(dir).join(".rules");
            let mut text = "# comment\n\n".to_owned();
            for _ in 0..next(4) {
                let mut pattern = patterns[next(patterns.len())].clone();
                if next(3) == 0 {
                    pattern.insert(0, '/');
                }
                text += &match (is_plain, next(8)) {
                    (true, _) => format!("{pattern}\n"),
                    (false, 0) => "!\n".to_owned(),
                    (false, 1..4) => format!("+ {pattern}\n"),
                    (false, _) => format!("- {pattern}\n"),
                };
            }
            match next(3) {
                0 => drop(std::fs::remove_file(&path)),
                // Files of words have no comments.
                _ if letters.contains(['w', 'C']) => {
                    let words = text.replace("# comment", "!").replace('\n', " ");
                    std::fs::write(path, words).unwrap();
                }
                _ => std::fs::write(path, text).unwrap(),
            }
        }
        let merge = format!("dir-merge,{letters} .rules");
        let rules = match round % 3 {
            0 => vec![merge],
            1 => vec!["+ foo".to_owned(), merge, "- *.o".to_owned()],
            _ => vec![format!("- {}", patterns[0]), merge, "- b".to_owned()],
        };
        let mut filter = Filter::new();
        rules
            .iter()
            .for_each(|rule| filter.push_filter(rule.as_bytes()).unwrap());
        assert_like_rsync(&root, &empty, &filter, "--filter", &rules);
    }
}

/// Would catch: modifiers that are mistaken for others, and files that are read although they are
/// not regular.
#[test]
fn rules_in_directories_are_explained_and_refused() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path();
    let write = |name: &str, text: &str| std::fs::write(root.join(name), text).unwrap();
    std::fs::create_dir_all(root.join("a/b")).unwrap();
    write(".rules", "- x\n");
    write("a/.rules", "# here\n+ /b/x\n");
    let mut filter = Filter::new();
    filter.push_filter(b": .rules").unwrap();
    assert!(filter.asks_dirs());
    let read = &mut |dir: &[u8], name: &[u8]| {
        crate::scan::read_dir_rules(&root.join(OsStr::from_bytes(dir)), name)
    };
    let mut explained = |path: &str| {
        let reasons = filter.explain(path.as_bytes(), false, read).unwrap();
        let reason = reasons.last().unwrap();
        let rule = reason.rule.clone().unwrap();
        (reason.verdict(), rule.place.unwrap())
    };
    assert_eq!(explained("x"), (Verdict::Excluded, ".rules, line 1".into()));
    assert_eq!(
        explained("a/x"),
        (Verdict::Excluded, ".rules, line 1".into())
    );
    assert_eq!(
        explained("a/b/x"),
        (Verdict::Included, "a/.rules, line 2".into())
    );

    let refused = |rule: &str| {
        let error = Filter::new().push_filter(rule.as_bytes()).unwrap_err();
        error.to_string()
    };
    assert!(refused(":q .rules").contains("found 'q'"));
    assert!(refused(":+- .rules").contains("found '-'"));
    assert!(refused(": a/.rules").contains("without slashes"));
    assert!(refused("dir-merge").contains("the name of a file"));
    assert!(refused("dir-mergen .rules").contains("expected '- PATTERN'"));
    let mut cvs = Filter::new();
    cvs.push_filter(b":C").unwrap();
    write(".cvsignore", "*.o ! *.a");
    let read = &mut |name: &[u8]| crate::scan::read_dir_rules(root, name);
    let rules = cvs.below(&none(), b"", read).unwrap();
    assert!(cvs.excludes(&rules, b"x.a", false) && !cvs.excludes(&rules, b"x.o", false));

    let wrong = |text: &str| {
        write(".rules", text);
        let read = &mut |name: &[u8]| crate::scan::read_dir_rules(root, name);
        let error = filter.below(&none(), b"", read).unwrap_err();
        format!("{error} {:?}", error.io_source())
    };
    assert!(wrong("- x\nmerge y\n").contains(".rules, line 2: rule of a directory"));
    assert!(wrong("-\n").contains("empty"));
    assert!(wrong(&"- x\n".repeat(20_000)).contains("longer than"));
    std::fs::remove_file(root.join(".rules")).unwrap();
    std::os::unix::fs::symlink("a/.rules", root.join(".rules")).unwrap();
    assert!(crate::scan::read_dir_rules(root, b".rules").is_err());
    assert_eq!(crate::scan::read_dir_rules(root, b"a").unwrap(), None);
}

/// Would catch: a reason other than the deciding rule, or paths explained below an excluded
/// directory.
#[test]
fn the_deciding_rule_is_explained() {
    let mut filter = Filter::new();
    filter.push_include("*.keep").unwrap();
    filter
        .push_lines(b"# rules\n/target/\n+ a?\n", Verdict::Excluded)
        .unwrap();
    let explained = |path: &str, is_dir| -> Vec<String> {
        let reasons = filter
            .explain(path.as_bytes(), is_dir, &mut nowhere)
            .unwrap();
        let text = |r: &Reason<'_>| {
            let rule = r.rule.as_ref().map(|rule| {
                let text = String::from_utf8(rule.text.clone()).unwrap();
                format!("{text} {}", rule.place.clone().unwrap_or_default())
            });
            let path = String::from_utf8(r.path.to_vec()).unwrap();
            format!("{path}: {:?} {}", r.verdict(), rule.unwrap_or_default())
        };
        reasons.iter().map(text).collect()
    };
    assert_eq!(
        explained("target/x/y.keep", false),
        ["target: Excluded /target/ line 2"]
    );
    assert_eq!(explained("target", false), ["target: Included "]);
    assert_eq!(
        explained("src/ab/z.keep", false),
        [
            "src: Included ",
            "src/ab: Included a? line 3",
            "src/ab/z.keep: Included *.keep "
        ]
    );
    for path in ["target/x", "src/ab", "q.keep", "target"] {
        let last = filter.explain(path.as_bytes(), true, &mut nowhere).unwrap();
        let last = last.last().unwrap();
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
        assert_eq!(
            filter.matches(&none(), path.as_bytes(), false),
            verdict,
            "{path}"
        );
        let reasons = filter
            .explain(path.as_bytes(), false, &mut nowhere)
            .unwrap();
        let rule = &reasons.last().unwrap().rule;
        let found = rule
            .as_ref()
            .and_then(|rule| rule.place.clone())
            .unwrap_or_default();
        assert!(found.ends_with(place.unwrap_or("")), "{path}: {found}");
    }
    let mut error = |rule: &str| push(&mut filter, rule).unwrap_err().to_string();
    assert!(error("hide x").contains("expected '- PATTERN'"));
    assert!(error("-").contains("empty"));
    assert!(error(&merge("none")).contains("none"));
    assert!(error(&merge("loop")).contains("without end"));
}

/// Would catch: rules of directories that stay in memory forever, or that count after they are
/// freed.
#[test]
fn rules_of_directories_stay_within_their_memory_limit() {
    let mut filter = Filter::new();
    filter.push_filter(b": .rules").unwrap();
    let text = b"- x\n".repeat(16_000);
    let dir = [b'd'; 200];
    let read = &mut |_: &[u8]| Ok(Some(text.clone()));
    // Each of the first rules is freed before the next file is read.
    let mut len = 0;
    for _ in 0..20 {
        let rules = filter.below(&DirRules::default(), &dir, read).unwrap();
        assert!(filter.excludes(&rules, &[&dir[..], b"/x"].concat(), false));
        len += text.len() * 60;
    }
    assert!(len as u64 > DIR_RULES_LEN_MAX);
    let mut above = DirRules::default();
    let error = (0..20).find_map(|_| match filter.below(&above, &dir, read) {
        Ok(rules) => {
            above = rules;
            None
        }
        Err(error) => Some(error),
    });
    assert_eq!(error.unwrap().kind(), weald_format::ErrorKind::Limit);
    drop(above);
    assert!(filter.below(&DirRules::default(), &dir, read).is_ok());
}
