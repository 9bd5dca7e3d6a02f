//! `docs/coming-from.md`: every command in it works, and no option of the installed programs is
//! missing.
use crate::examples::{PREPARE, must, shell};
use crate::support::{Bench, weald_path};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

const DOCUMENT: &str = include_str!("../../../../docs/coming-from.md");

/// Files that only these commands read.
const FILES: &str = "
    echo 'function filter(entry) return not entry.path:match(\"%.o$\") end' >filter.lua
    printf '#mtree\\n. type=dir\\nmain.c type=file\\n' >tree.mtree
    echo main.c >order.txt; echo '*.o' >rules.txt
    echo './dev/null type=char device=native,1,3' >added.mtree";

/// The rows of each table: options and what is said about them.
fn tables() -> Vec<(&'static str, Vec<(&'static str, &'static str)>)> {
    let sections = DOCUMENT.split("\n## ").skip(1);
    let table = |section: &'static str| {
        let (title, text) = section.split_once('\n').expect("a title");
        let lines = text.lines().filter(|line| line.starts_with("| "));
        let rows = lines.skip(1).map(|line| {
            let line = line.trim_start_matches("| ").trim_end_matches(" |");
            line.split_once(" | ").expect("two columns")
        });
        (title, rows.collect())
    };
    sections.map(table).collect()
}

/// The code between backticks.
fn code(text: &str) -> impl Iterator<Item = String> {
    let parts = text.split('`').skip(1).step_by(2);
    parts.map(|part| part.replace("\\|", "|"))
}

/// Would catch: an option of ours in the document that does not exist or does not work.
#[test]
fn every_command_of_the_document_works() {
    let mut ran_count = 0;
    for (title, rows) in tables() {
        let bench = Bench::new();
        fs::create_dir(bench.at("bin")).expect("mkdir");
        symlink(weald_path(), bench.at("bin/weald")).expect("link");
        must(&bench, PREPARE);
        must(&bench, FILES);
        if title != "mksquashfs and sqfstar" {
            must(
                &bench,
                "weald build -q --header config.json project behind.weald",
            );
        }
        if title == "mkdwarfs" {
            must(&bench, "rm behind.weald");
        }
        for (options, ours) in rows {
            let commands: Vec<String> = code(ours).filter(|part| part.contains(' ')).collect();
            let is_told = ["not offered", "not needed", "always", "the default"]
                .iter()
                .any(|word| ours.contains(word));
            assert!(
                !commands.is_empty() || is_told || ours.starts_with('`'),
                "{options}: {ours}"
            );
            for command in commands {
                let is_ours = ["weald", "mkdir", "tar", "find", "nice", "head"]
                    .iter()
                    .any(|word| command.starts_with(word));
                if !is_ours || command.ends_with("--case-insensitive") {
                    continue;
                }
                // Tables name the same files several times.
                must(
                    &bench,
                    "rm -rf x out some lines threads root.weald timed.weald without without.weald",
                );
                if command.contains("out") && ours.contains("--overwrite") {
                    must(&bench, "weald extract -q forest.weald out");
                }
                let is_kept = ["--append", "--force", "recover", "info", " ls "]
                    .iter()
                    .any(|word| command.contains(word));
                if title == "mkdwarfs" && !is_kept && !command.contains("behind") {
                    must(&bench, "rm -f blocks.weald listed.weald new.weald");
                }
                let output = shell(&bench, &command);
                assert_eq!(output.code, Some(0), "{command}: {}", output.stderr);
                ran_count += 1;
            }
        }
    }
    assert!(ran_count > 100, "{ran_count} commands were found");
}

/// The options that `program -help` lists.
fn options_of(program: &str) -> BTreeSet<String> {
    let output = Command::new(program).arg("-help").output().expect(program);
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8(text).expect("UTF-8");
    let lines = text.lines().map(str::trim_start);
    let lines = lines.filter(|line| line.starts_with('-') && !line.starts_with("-X"));
    let words = lines.filter_map(|line| line.split_whitespace().next());
    words.map(|word| word.replace(['[', ']'], "")).collect()
}

/// Would catch: an option that the document forgets.
#[test]
fn every_option_of_the_installed_programs_has_a_row() {
    let tables = tables();
    let rows_of = |title: &str| {
        let table = tables.iter().find(|table| table.0.starts_with(title));
        let rows = table.expect("a table").1.iter();
        rows.flat_map(|row| code(row.0))
            .collect::<BTreeSet<String>>()
    };
    for program in ["mksquashfs", "unsquashfs"] {
        let (rows, options) = (rows_of(program), options_of(program));
        assert!(options.len() > 30, "{program}: {options:?}");
        // Long names of one option, which its row means.
        let is_long =
            |option: &String| option.starts_with("-no") && option.ends_with("Compression");
        let missing: Vec<&String> = options
            .iter()
            .filter(|option| !rows.contains(*option) && !is_long(option))
            .collect();
        assert!(missing.is_empty(), "{program}: {missing:?}");
    }
}
