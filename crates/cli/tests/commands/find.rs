//! `weald find`, compared with a plain walk, find(1) and the generator of forests.
use crate::support::Bench;

/// Directories that are equal, nearly equal, nested or empty, and hard links between directories.
fn bench() -> Bench {
    let bench = Bench::new();
    bench.sh("mkdir -p tree/a/deep/er/none tree/a/other; cd tree
        for i in $(seq 300); do echo $((i % 5)) > a/deep/f$i.txt; done
        for i in 1 2 3; do echo long$i > a/deep/er/g$i.h; ln -s g$i.h a/deep/er/l$i; done
        seq 500 > a/other/numbers; mkfifo a/other/pipe; chmod 640 a/deep/f7*
        cp -a a b; cp -a a c; mkdir many; for i in $(seq 12); do cp -a a many/$i; done
        cp -a many again; echo x > again/7/deep/er/only; rm b/deep/f3.txt
        ln c/deep/f9.txt c/other/hard; ln c/deep/f9.txt again/hard");
    bench.sh(
        "find tree -exec touch -hd @1700000000 {} +; touch -d @1600000000 tree/many/5/deep/f5.txt",
    );
    bench.weald(["build", "-q", "tree", "image"]).expect(0, "");
    bench
}

const QUERIES: [&[&str]; 10] = [
    &[],
    &["--name", "f7*"],
    &["--name", "only"],
    &["--name", "nowhere"],
    &["--type", "d", "--empty"],
    &["--type", "l,p"],
    &["--size", "+100"],
    &["--newer", "@1500000000", "--older", "@1650000000"],
    &["--links", "+1", "--type", "f"],
    &["--perm", "640"],
];

/// Would catch: an entry that is missed or found twice because its directory is stored once, a
/// wrong count, a wrong order. With `--max-depth`, the search reads every directory instead.
#[test]
fn shared_directories_are_searched_at_every_path() {
    let bench = bench();
    for (query, start) in QUERIES
        .iter()
        .flat_map(|q| [(q, "."), (q, "many"), (q, "a/deep")])
    {
        let find = |more: &[&str]| {
            let words = [&["find", "image", start], *query, more].concat();
            bench.weald(words).expect(0, "").text()
        };
        let found = find(&[]);
        assert_eq!(found, find(&["--max-depth", "99"]), "{query:?} {start}");
        let count = format!("{}\n", found.lines().count());
        assert_eq!(find(&["--count"]), count, "{query:?} {start}");
        assert_eq!(find(&["--count", "--max-depth", "99"]), count);
    }
}

/// Would catch: a field whose value differs from that of find(1).
#[test]
fn formats_are_those_of_find() {
    let bench = bench();
    let format = "%f|%h|%y|%s|%m|%M|%U|%G|%n|%d|%l|%T@|%%\\n";
    // Sizes of directories and the choice of the first name are specific to images.
    let words = [
        "find",
        "image",
        "--type",
        "f,l,p",
        "--min-depth",
        "2",
        "--printf",
        format,
    ];
    let mut found: Vec<String> = bench
        .weald(words)
        .expect(0, "")
        .text()
        .lines()
        .map(str::to_owned)
        .collect();
    found.sort();
    let other = bench.sh(&format!(
        "cd tree && find * -mindepth 1 -type f,l,p -printf '{}'",
        format.replace("%d|", "")
    ));
    let mut expected: Vec<&str> = other.lines().collect();
    expected.sort_unstable();
    let without_depth = |line: &String| {
        let mut fields: Vec<&str> = line.split('|').collect();
        let slashes = fields[1].matches('/').count() + 2;
        assert_eq!(fields.remove(9), slashes.to_string());
        fields.join("|")
    };
    let mut found: Vec<String> = found.iter().map(without_depth).collect();
    found.sort();
    assert_eq!(found, expected);
    let wrong = bench.weald(["find", "image", "--printf", "%q"]);
    assert_eq!(wrong.code, Some(2));
    assert!(
        wrong.stderr.starts_with("weald: --printf: expected one of"),
        "{}",
        wrong.stderr
    );
}

/// Would catch: a wrong count of a forest, and a search whose time grows with the size of a forest
/// that is stored once.
#[test]
fn a_forest_is_counted_without_being_walked() {
    let bench = Bench::new();
    let forest = [
        "forest",
        "-q",
        "--fanout",
        "1000x100x100",
        "--image",
        "forest",
    ];
    bench.weald(forest).expect(0, "");
    // Each takes a hundredth of a CPU second; plain walks take ten.
    let count = |words: &str| bench.sh(&format!("ulimit -t 3; $WEALD find forest {words} --count"));
    assert_eq!(count("--type f"), "10000000\n");
    assert_eq!(count(""), "10101001\n");
    assert_eq!(count("--type f --name '*42'"), "100000\n");
    let find = |words: &[&str]| {
        bench
            .weald([&["find", "forest"], words].concat())
            .expect(0, "")
            .text()
    };
    let below = find(&["500/50", "--name", "*42"]);
    assert_eq!(below.lines().count(), 1);
    assert!(
        below.starts_with("500/50/") && below.ends_with("42\n"),
        "{below}"
    );
}

/// Forests whose directories are searched in several parts, equal and different: fan-out and
/// further options.
const LARGE: [&[&str]; 4] = [
    &["--fanout", "5x3x5000"],
    &[
        "--fanout",
        "2x200x100",
        "--names",
        "hex",
        "--dir-names",
        "hex",
    ],
    &[
        "--fanout",
        "30x12x40",
        "--names",
        "words",
        "--versions",
        "4",
        "--name-changes",
        "0.2",
    ],
    &["--fanout", "9000", "--names", "annex"],
];

/// Would catch: a part of the tree that no thread or two threads search, parts in another order
/// than in a walk, and a cached result that is applied to another directory. The reference `ls -R`
/// walks with one thread and caches nothing.
#[test]
fn any_number_of_threads_finds_the_same() {
    let bench = Bench::new();
    for words in LARGE {
        let forest = ["forest", "-q", "--image", "forest"];
        bench.weald([&forest[..], words].concat()).expect(0, "");
        let all = bench.weald(["ls", "-R", "forest"]).expect(0, "").text();
        type Wanted = fn(&str) -> bool;
        let queries: [(&[&str], Wanted); 7] = [
            (&[], |_| true),
            (&["--name", "*2"], |path| path.ends_with('2')),
            // In a directory of 5000 files, only the second part matches.
            (&["--name", "*499?"], |path| {
                let name = name(path).as_bytes();
                name.len() > 3 && name[..name.len() - 1].ends_with(b"499")
            }),
            (&["--path", "*/*1/*3"], |path| {
                let names: Vec<&str> = path.split('/').collect();
                names.len() == 3 && names[1].ends_with('1') && names[2].ends_with('3')
            }),
            (&["--max-depth", "1"], |path| !path.contains('/')),
            (&["--min-depth", "2", "--max-depth", "2"], |path| {
                path.matches('/').count() == 1
            }),
            (&["--name", "no such name"], |_| false),
        ];
        for (query, is_wanted) in queries {
            let expected: String = all
                .lines()
                .filter(|path| is_wanted(path))
                .flat_map(|path| [path, "\n"])
                .collect();
            for threads in ["1", "2", "7"] {
                let find = |more: &[&str]| {
                    let find = ["find", "forest", "--threads", threads];
                    bench
                        .weald([&find, query, more].concat())
                        .expect(0, "")
                        .text()
                };
                assert!(
                    find(&[]) == expected,
                    "{words:?} {query:?} {threads} threads"
                );
                let count = format!("{}\n", expected.lines().count());
                assert_eq!(find(&["--count"]), count, "{words:?} {query:?} {threads}");
            }
        }
        bench.sh("rm forest");
    }
}

fn name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Would catch: damage that is reported twice or not at all, that ends the search, or that hides
/// more entries with some number of threads. The directory is searched in three parts, and all of
/// them meet the damage.
#[test]
fn damage_is_reported_once_and_the_search_continues() {
    let bench = Bench::new();
    let forest = ["forest", "-q", "--fanout", "3x9000", "--names", "hex"];
    bench
        .weald([&forest[..], &["--image", "forest"]].concat())
        .expect(0, "");
    let mut bytes = std::fs::read(bench.at("forest")).expect("read");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(bench.at("forest"), bytes).expect("write");
    let find = |threads| bench.weald(["find", "forest", "--threads", threads]);
    let one = find("1");
    assert_eq!(
        (one.code, one.stderr.lines().count()),
        (Some(1), 1),
        "{}",
        one.stderr
    );
    assert!(one.stderr.starts_with("weald: 1: "), "{}", one.stderr);
    let found: Vec<&[u8]> = one.stdout.split(|&b| b == b'\n').collect();
    assert!((18_004..27_004).contains(&found.len()), "{}", found.len());
    assert!(found.iter().any(|path| path.starts_with(b"2/")));
    for threads in ["2", "7"] {
        let more = find(threads);
        assert!(
            more.stdout == one.stdout && more.stderr == one.stderr,
            "{threads}"
        );
    }
}
