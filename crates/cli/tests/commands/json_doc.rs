//! `docs/json.md` has every key of every command with `--json`, and no other one: each command runs
//! on what its examples use, and on scenes with more. `WEALD_BLESS=1` writes the tables again.

use crate::examples::{copy_of, examples_of, must, prepared, set_up, shell, tear_down};
use crate::support::{Bench, COMMANDS};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

/// Where the tables begin in the document.
const MARK: &str = "<!-- The tables below are made by crates/cli/tests/commands/json_doc.rs. -->\n";

/// Further calls of commands, which print JSON, with all that they need.
const SCENES: &[(&str, &str)] = &[
    (
        "build",
        "mkdir strange; echo x > strange/file; weald build --json strange strange.weald
        weald build --json --append --label one strange strange.weald
        weald build --json --base strange.weald strange based.weald",
    ),
    (
        "build --list",
        "mkdir strange; echo x > strange/file; touch strange/a.o \"strange/$(printf 'bad\\xff')\"
        weald build --list --json -v --exclude '*.o' strange",
    ),
    (
        "mounts",
        "weald store create -q st >&2; weald volume create -q st:home >&2
        mkdir mnt2; weald mount st:home mnt2; weald mounts --json; weald umount mnt2",
    ),
    (KINDS_OF, "weald COMMAND --json kinds.weald"),
    ("ls", "weald ls --json -R kinds.weald"),
    (
        "stat",
        "weald stat --json kinds.weald . file twin fifo link dev sparse
        weald build -q --base v1.weald v2 bb; weald stat --extents --json bb '**'
        mkdir zz; seq 90000 | gzip > zz/n.gz; weald build -q zz z2
        weald stat --extents --json z2 n.gz",
    ),
    (
        "diff",
        "weald diff --json kinds.weald forest.weald; weald diff --json --stat v1.weald versions
        weald diff --json --recursive v1.weald kinds.weald",
    ),
    (
        "info",
        "weald info --json --stages --reading kinds.weald; weald build -q --base v1.weald v2 b
        weald info --json b
        mkdir zipped; seq 90000 | gzip > zipped/numbers.gz; weald build -q zipped z
        weald info --json z",
    ),
    (
        "check",
        "weald build -q --level 1 forest hurt.weald
        printf hurt | dd of=hurt.weald bs=1 seek=900000 conv=notrunc status=none
        weald check --json hurt.weald",
    ),
    (
        "salvage",
        "weald build -q --level 1 forest hurt.weald
        printf hurt | dd of=hurt.weald bs=1 seek=900000 conv=notrunc status=none
        weald salvage --json hurt.weald out",
    ),
    (
        "parity verify",
        "printf hurt | dd of=forest.weald bs=1 seek=9000 conv=notrunc status=none
        weald parity verify --json forest.weald",
    ),
    (
        "parity repair",
        "printf hurt | dd of=forest.weald bs=1 seek=9000 conv=notrunc status=none
        weald parity repair --json forest.weald",
    ),
    (
        "rewrite",
        "weald rewrite --json --repack v1.weald again.weald",
    ),
    (
        "store ls",
        "weald store ls --json srv/store; weald volume create -q srv/store:home
        weald store ls --json srv/store",
    ),
    (
        "store check",
        "segment=$(ls srv/store/segments/* | head -1)
        printf hurt | dd of=$segment bs=1 seek=1000 conv=notrunc status=none
        weald store check --json --data srv/store",
    ),
    ("volume stat", "weald volume stat --json srv/store:home"),
];

/// Commands of [`SCENES`] that take an image with all kinds of entries.
const KINDS_OF: &str = "ls find sum info";

/// An image with all kinds of entries.
const KINDS: &str = "mkdir -p kinds/sub; echo file > kinds/file; ln kinds/file kinds/twin
    mkfifo kinds/fifo; ln -s file kinds/link; mknod kinds/dev c 1 3; truncate -s 1M kinds/sparse
    echo x >> kinds/sparse; setfattr -n user.a -v b kinds/file
    printf '\\xff' > \"kinds/$(printf 'bad\\xff')\"; setfacl -m u:1:r kinds/file
    weald build -q --keep-atime --keep-ctime --keep-btime --label all \
     --comment more --history kinds kinds.weald";

/// Objects whose keys are names of things, each with a word for them.
const NAMED: &[(&str, &str)] = &[("tiers", "NAME")];

/// What was seen of one key.
#[derive(Default, Debug)]
struct Seen {
    kinds: BTreeSet<&'static str>,
    count: u64,
}

/// The keys of one command, by path, and how many objects have them.
#[derive(Default, Debug)]
struct Keys {
    seen: BTreeMap<String, Seen>,
    objects: BTreeMap<String, u64>,
}

impl Keys {
    fn add(&mut self, path: &str, value: &Value) {
        match value {
            Value::Object(object) => {
                *self.objects.entry(path.to_owned()).or_default() += 1;
                let named = NAMED.iter().find(|(of, _)| *of == path);
                for (key, value) in object {
                    let key = named.map_or(key.as_str(), |(_, word)| word);
                    let dot = if path.is_empty() { "" } else { "." };
                    let at = format!("{path}{dot}{key}");
                    let seen = self.seen.entry(at.clone()).or_default();
                    seen.count += 1;
                    seen.kinds.insert(kind(value));
                    self.add(&at, value);
                }
            }
            Value::Array(list) => {
                for value in list {
                    self.add(&format!("{path}[]"), value);
                }
            }
            _ => {}
        }
    }

    /// The rows of the table: key, kinds, whether each object has it.
    fn rows(&self) -> Vec<Row> {
        let row = |(path, seen): (&String, &Seen)| {
            let parent = path.rsplit_once('.').map_or("", |(parent, _)| parent);
            Row {
                path: path.clone(),
                kinds: seen.kinds.iter().map(|&kind| kind.to_owned()).collect(),
                is_always: self.objects.get(parent) == Some(&seen.count),
            }
        };
        self.seen.iter().map(row).collect()
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "number",
        Value::String(_) => "text",
        Value::Array(_) => "list",
        Value::Object(_) => "object",
    }
}

/// A row of a table of the document.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Row {
    path: String,
    kinds: BTreeSet<String>,
    is_always: bool,
}

impl Row {
    fn text(&self) -> String {
        let kinds: Vec<&str> = self.kinds.iter().map(String::as_str).collect();
        let when = if self.is_always {
            "always"
        } else {
            "sometimes"
        };
        format!("| `{}` | {} | {when} |\n", self.path, kinds.join(", "))
    }

    fn parse(line: &str) -> Option<Self> {
        let mut cells = line.strip_prefix("| `")?.split(" | ");
        let path = cells.next()?.strip_suffix('`')?.to_owned();
        let kinds = cells.next()?.split(", ").map(str::to_owned).collect();
        let is_always = cells.next()?.starts_with("always");
        Some(Self {
            path,
            kinds,
            is_always,
        })
    }
}

/// Runs all calls of `command` that print JSON.
fn keys_of(prepared: &Bench, command: &str, wrong: &mut Vec<String>) -> Keys {
    let bench = copy_of(prepared);
    let _bucket = set_up(&bench, command);
    let mut keys = Keys::default();
    let call = format!("weald {command}");
    let mut run = |line: &str, is_json: bool| {
        let output = shell(&bench, line);
        // Other options of the example do not go with it.
        let is_refused = is_json && output.stderr.contains("--json");
        if !matches!(output.code, Some(0 | 1)) && !is_refused {
            wrong.push(format!("{line}: {:?} {}", output.code, output.stderr));
        }
        for text in output.text().lines().filter(|_| is_json) {
            match serde_json::from_str(text) {
                Ok(value) => keys.add("", &value),
                Err(error) => wrong.push(format!("{line}: {text}: {error}")),
            }
        }
    };
    for (_, line) in examples_of(&bench, command) {
        let rest = line.strip_prefix(&call);
        let is_it = rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(' '));
        let alone = line.split(" | ").next().unwrap_or_default();
        let alone = alone.split(" > ").next().unwrap_or_default();
        let is_mode = MODES.iter().any(|mode| {
            let (of, option) = mode.rsplit_once(' ').unwrap_or_default();
            *mode != command && of == command && line.contains(option)
        });
        if !is_it || is_mode || NO_JSON.iter().any(|word| line.contains(word)) {
            run(&line, false);
            continue;
        }
        if line.contains(" > ") {
            // Later examples read the file.
            run(&line, false);
        }
        if alone.contains("--json") {
            run(alone, true);
        } else {
            run(&alone.replacen(&call, &format!("{call} --json"), 1), true);
        }
    }
    must(&bench, KINDS);
    for (commands, lines) in SCENES {
        let is_of_kinds = *commands == KINDS_OF && KINDS_OF.split(' ').any(|c| c == command);
        if *commands == command || is_of_kinds {
            let lines = lines.replace("COMMAND", command);
            run(&format!("set +e; {lines}; true"), true);
        }
    }
    tear_down(&bench, command);
    keys
}

/// Options with which a command prints other objects: a table of its own for each.
const MODES: [&str; 1] = ["build --list"];

/// Words of examples that --json does not go with.
const NO_JSON: &[&str] = &[
    "--prometheus",
    "--watch",
    "--explain-filter",
    " - ",
    "-print0",
    " --print0",
    " -0",
    " -q",
];

/// The tables of the document by command.
fn documented(text: &str) -> BTreeMap<String, Vec<Row>> {
    let mut tables: BTreeMap<String, Vec<Row>> = BTreeMap::new();
    let mut command = String::new();
    for line in text.lines() {
        if let Some(heading) = line.strip_prefix("## weald ") {
            heading.clone_into(&mut command);
            tables.entry(command.clone()).or_default();
        } else if let Some(row) = Row::parse(line) {
            tables.entry(command.clone()).or_default().push(row);
        }
    }
    tables
}

/// Would catch: a key that no document explains, a key that went, one that has another type or is
/// missing where it always was.
#[test]
fn every_key_is_documented() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/json.md");
    let text = fs::read_to_string(path).expect("docs/json.md");
    let (head, tables) = text.split_once(MARK).expect("the mark");
    let prepared = prepared();
    let has_json = |command: &&&str| {
        let words = command.split(' ').chain(["--help"]);
        prepared
            .weald(words)
            .expect(0, "")
            .text()
            .contains("--json")
    };
    let commands = COMMANDS.iter().chain(&MODES).filter(has_json);
    let commands: Vec<&str> = commands.copied().collect();
    assert!(commands.len() > 50, "{commands:?}");
    let mut wrong = Vec::new();
    let found: Vec<(&str, Vec<Row>)> = commands
        .iter()
        .map(|command| (*command, keys_of(&prepared, command, &mut wrong).rows()))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    if std::env::var_os("WEALD_BLESS").is_some() {
        let table = |(command, rows): &(&str, Vec<Row>)| {
            let rows: String = rows.iter().map(Row::text).collect();
            format!("\n## weald {command}\n\n| key | value | when |\n|---|---|---|\n{rows}")
        };
        let tables: String = found.iter().map(table).collect();
        fs::write(path, format!("{head}{MARK}{tables}")).expect("write");
        return;
    }
    let documented = documented(tables);
    let names: Vec<&String> = documented.keys().collect();
    assert_eq!(names.len(), commands.len(), "{names:?}");
    for (command, rows) in &found {
        let known = documented
            .get(*command)
            .map(Vec::as_slice)
            .unwrap_or_default();
        for row in rows {
            match known.iter().find(|known| known.path == row.path) {
                None => wrong.push(format!("{command}: {} is not documented", row.path)),
                Some(known) if !row.kinds.is_subset(&known.kinds) => {
                    wrong.push(format!("{command}: {}: {:?}", row.path, row.kinds));
                }
                Some(known) if known.is_always && !row.is_always => {
                    wrong.push(format!("{command}: {} is missing sometimes", row.path));
                }
                Some(_) => {}
            }
        }
        for known in known {
            if !rows.iter().any(|row| row.path == known.path) {
                wrong.push(format!("{command}: {} was not found", known.path));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "WEALD_BLESS=1 makes the tables again:\n{}",
        wrong.join("\n")
    );
}

/// Would catch: a version that programs cannot ask for, and a document about another one.
#[test]
fn the_version_of_the_keys_is_that_of_the_document() {
    let bench = Bench::new();
    let version = bench.weald(["-V", "--json"]).expect(0, "").json();
    let number = version[0]["json_version"].as_u64().expect("a number");
    let text = include_str!("../../../../docs/json.md");
    assert!(
        text.contains(&format!("This is version {number} of the keys")),
        "{number}"
    );
}
