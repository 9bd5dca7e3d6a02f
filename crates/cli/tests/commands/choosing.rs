//! Rules, lists, depths and dropped names: the commands that read a tree choose the same entries,
//! and those that rsync and GNU tar would.
use crate::support::Bench;
use std::collections::BTreeSet;
use std::fs;

type Paths = BTreeSet<String>;

fn bench() -> Bench {
    let bench = Bench::new();
    bench.sh(
        "mkdir -p source/a/b/c source/usr/lib/x source/usr/share/doc source/empty
        echo 1 >source/a/one.c; echo 2 >source/a/b/two.o; echo 3 >source/a/b/c/three.c
        echo 4 >source/usr/lib/x/four.so; echo 5 >source/usr/lib/five.o
        echo 6 >'source/usr/share/doc/six *'; echo 7 >source/top.c
        ln source/a/one.c source/usr/lib/linked.o; ln -s one.c source/a/link
        mkdir none; ulimit -n 512; $WEALD build -q source image",
    );
    bench
}

/// Paths from the lines of `text`, without `./` and slashes at their ends.
fn lines(text: &str) -> Paths {
    let lines = text.lines().map(|line| line.trim_start_matches("./"));
    let lines = lines.map(|line| line.trim_end_matches('/').to_owned());
    lines
        .filter(|line| !line.is_empty() && line != ".")
        .collect()
}

fn output(bench: &Bench, script: &str) -> Paths {
    lines(&bench.sh(script))
}

/// Would catch: a command that applies a rule elsewhere, to other paths, or below what it leaves
/// out.
#[test]
fn commands_choose_what_rsync_would() {
    let bench = bench();
    let all = output(&bench, "cd source && find .");
    for rules in [
        "--exclude '*.o'",
        "--exclude /usr/lib",
        "--exclude /lib --exclude /top.c",
        "--exclude lib/",
        "--exclude 'six [*]'",
        "--include '*/' --include '*.c' --exclude '*'",
        "--include two.o --exclude '*.o' --exclude 'usr/**'",
        "--filter '- b/' --filter '+ *.o' --filter '- five.*'",
        "--exclude '*'",
    ] {
        bench.sh("rm -rf wanted out; mkdir wanted");
        bench.sh(&format!("rsync -aH {rules} source/ wanted/"));
        let wanted = output(&bench, "cd wanted && find .");
        assert!(wanted.len() < all.len(), "{rules} leaves nothing out");
        bench.sh(&format!("$WEALD extract -q {rules} image out"));
        assert_eq!(
            output(&bench, "cd out && find ."),
            wanted,
            "extract {rules}"
        );
        let tar = output(&bench, &format!("$WEALD tar {rules} image | tar -t"));
        assert_eq!(tar, wanted, "tar {rules}");
        let found = output(&bench, &format!("$WEALD find {rules} image"));
        assert_eq!(found, wanted, "find {rules}");
        let counted = bench.sh(&format!("$WEALD find --count {rules} image"));
        assert_eq!(
            counted.trim(),
            (wanted.len() + 1).to_string(),
            "find --count {rules}"
        );
        let only =
            format!("($WEALD diff -r {rules} image none || test $? = 1) | sed -n 's/^- //p'");
        assert_eq!(output(&bench, &only), wanted, "diff {rules}");
        let sums = output(&bench, &format!("$WEALD sum {rules} image | cut -c67-"));
        let files = output(&bench, "cd wanted && find . -type f");
        assert_eq!(sums, files, "sum {rules}");
        bench.sh(&format!(
            "$WEALD diff --ignore mtime,links {rules} image wanted"
        ));
    }
    bench
        .weald(["extract", "--filter", "dir-merge .rules", "image", "out"])
        .expect(
            2,
            "weald: --filter: dir-merge reads rules from a tree that is packed; here \
             name a file of rules with 'merge FILE'\n",
        );
}

/// Would catch: a pattern in a listed path that is taken for one, a missing path that is not named.
#[test]
fn lists_name_paths_literally() {
    let bench = bench();
    fs::write(
        bench.at("list"),
        "./a/b/\nusr/share/doc/six *\n\ngone/x\n/top.c\n",
    )
    .unwrap();
    let wanted = lines(
        "a\na/b\na/b/two.o\na/b/c\na/b/c/three.c\nusr\nusr/share\nusr/share/doc\n\
         usr/share/doc/six *\ntop.c\n",
    );
    let told = "weald: gone/x: not in the image\n";
    bench
        .weald(["extract", "--files-from", "list", "image", "out"])
        .expect(1, told);
    assert_eq!(output(&bench, "cd out && find ."), wanted);
    let script =
        "tr '\\n' '\\0' <list | ($WEALD tar --files-from - image 2>told || test $? = 1) | tar -t";
    assert_eq!(output(&bench, script), wanted);
    let told = fs::read_to_string(bench.at("told")).unwrap();
    assert_eq!(told, "weald: gone/x: not in the image\n");
    bench.sh("if $WEALD sum --files-from list image >sums 2>told; then exit 1; fi");
    let sums = output(&bench, "cut -c67- sums");
    let files = ["a/b/two.o", "a/b/c/three.c", "usr/share/doc/six *", "top.c"];
    assert_eq!(sums, files.map(str::to_owned).into());
    // What is not listed does not count.
    bench.sh("cp -a source other; echo 8 >other/a/one.c; echo 9 >other/usr/lib/new");
    bench.sh("$WEALD diff --files-from list image other");
    bench.sh("echo 0 >other/a/b/two.o
        if $WEALD diff --files-from list image other >differences; then exit 1; fi");
    let differences = fs::read_to_string(bench.at("differences")).unwrap();
    assert!(
        differences.contains("* a/b/two.o: content") && !differences.contains("one.c"),
        "{differences}"
    );
    // Neither list nor header fills the memory.
    for words in [
        ["tar", "--files-from", "/dev/zero", "image"].as_slice(),
        &["build", "--header", "/dev/zero", "source", "behind"],
    ] {
        let said = bench.weald(words);
        assert_eq!(said.code, Some(2));
        assert!(said.stderr.contains("more than 256 MiB"), "{}", said.stderr);
    }
    fs::write(bench.at("list"), "a/../b\n").unwrap();
    bench
        .weald(["tar", "--files-from", "list", "image"])
        .expect(2, "weald: list: 'a/../b': '..' is not allowed\n");
    bench.sh(
        ": >list; $WEALD extract --files-from list image nothing; test -z \"$(ls -A nothing)\"",
    );
}

/// Would catch: names dropped from the wrong end, a hard link to a name that is not written.
#[test]
fn leading_names_are_dropped_as_by_tar() {
    let bench = bench();
    for count in 0..5 {
        bench.sh("rm -rf out wanted; mkdir out wanted");
        bench.sh(&format!(
            "tar -C source -c . | tar -C wanted -x --strip-components={}",
            count + 1
        ));
        let wanted = output(&bench, "cd wanted && find .");
        bench.sh(&format!(
            "$WEALD extract -q --strip-components {count} image out"
        ));
        assert_eq!(
            output(&bench, "cd out && find ."),
            wanted,
            "extract {count}"
        );
        let tar = format!("$WEALD tar --strip-components {count} image | tar -t");
        assert_eq!(output(&bench, &tar), wanted, "tar {count}");
        let contents = |dir| {
            bench.sh(&format!(
                "cd {dir} && find . -type f -exec b2sum {{}} + | sort"
            ))
        };
        assert_eq!(contents("out"), contents("wanted"));
    }
    bench.sh(
        "rm -rf out; $WEALD extract -q --strip-components 2 image out 'usr/lib/x' --exclude none",
    );
    assert_eq!(output(&bench, "cd out && find ."), lines("x\nx/four.so\n"));
}

/// Would catch: a depth that counts otherwise than that of find(1), a directory of an image that is
/// not the root of what is written.
#[test]
fn depths_and_directories() {
    let bench = bench();
    for depth in 0..4 {
        let wanted = output(&bench, &format!("cd source && find . -maxdepth {depth}"));
        bench.sh(&format!(
            "rm -rf out; $WEALD extract -q --max-depth {depth} image out"
        ));
        assert_eq!(output(&bench, "cd out && find ."), wanted);
        let sums = output(
            &bench,
            &format!("$WEALD sum --max-depth {depth} image | cut -c67-"),
        );
        let files = format!("cd source && find . -maxdepth {depth} -type f");
        assert_eq!(sums, output(&bench, &files));
    }
    let wanted = output(&bench, "cd source/usr && find .");
    bench.sh("rm -rf out; $WEALD extract -q image:/usr out");
    assert_eq!(output(&bench, "cd out && find ."), wanted);
    bench.sh("$WEALD diff image:/usr out");
    assert_eq!(output(&bench, "$WEALD tar image:/usr | tar -t"), wanted);
    bench
        .weald(["extract", "image:/top.c", "out2"])
        .expect(2, "weald: top.c: is no directory\n");
}

/// Would catch: a mistyped rule that nobody hears of, or one that is named although it decides; a
/// file of rules for many trees of which each line is named.
#[test]
fn rules_that_decide_about_nothing_are_named() {
    let bench = bench();
    bench.sh("printf '*.gone\n*.so\n' >ignore; $WEALD store create -q store");
    let rules = "--exclude '*.o' --include two.o --exclude-from ignore --exclude /nothing \
                 --filter '- five.*' --filter '+ top.c' --exclude 'top.*'";
    let idle = [
        "--include two.o",
        "--exclude /nothing",
        "--exclude five.*",
        "--exclude top.*",
    ];
    let wanted: String = idle
        .iter()
        .map(|rule| {
            format!(
                "weald: {rule}: decides about nothing: no path matches, or an earlier rule does\n"
            )
        })
        .collect();
    for command in [
        "build --force RULES source built",
        "build --list RULES source",
        "store add RULES store source",
        "rewrite --force RULES image again",
        "extract RULES image out",
        "tar RULES image",
        "find RULES image",
        "sum RULES image",
    ] {
        let command = command.replace("RULES", rules);
        let told = bench.sh(&format!(
            "$WEALD {command} 2>&1 >/dev/null | grep -a decides"
        ));
        assert_eq!(told, wanted, "{command}");
    }
    let told = bench.sh("$WEALD build -q --force --exclude '*.o' source built 2>&1");
    assert_eq!(told, "");
}
