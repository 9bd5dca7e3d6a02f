//! Words of other programs for what Weald calls differently. Those that mean exactly one command
//! are aliases of it, which the help does not list; the others get an answer.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::ffi::OsString;

/// Commands that are none, and what to say of them.
const COMMANDS: &[(&[&str], &str)] = &[
    (
        &["create", "new", "pack", "make", "mk", "add"],
        "'weald build SOURCE IMAGE' makes an image, 'weald store create' a store, 'weald store \
         add' an image in a store, 'weald volume create' a volume",
    ),
    (
        &["du", "df", "size"],
        "'weald info IMAGE' says what an image takes, 'weald ls -lR IMAGE' has the sizes of files, \
         'weald diff --stat' what differs by directory, 'weald store info' what a store takes",
    ),
    (
        &["rm", "remove", "delete", "del"],
        "an image file is removed like any file, an image of a store by 'weald store rm', a volume \
         by 'weald volume rm'",
    ),
    (
        &["append", "update"],
        "'weald build --append SOURCE IMAGE' adds a generation, 'weald volume seal' makes an image \
         of a volume",
    ),
    (
        &["repair", "fix"],
        "'weald salvage IMAGE OUT' saves what is left of a damaged image, 'weald parity repair' \
         restores it where there is parity, 'weald store salvage' is for stores",
    ),
    (
        &["gc", "prune"],
        "'weald store gc' returns the space of a store, 'weald store forget' removes old versions",
    ),
    (
        &["restore", "cp", "copy", "get"],
        "'weald extract IMAGE DIRECTORY' writes the files of an image, 'weald replica restore' a \
         store",
    ),
    (
        &["backup", "push", "sync"],
        "'weald replica' keeps copies of a store in other places, 'weald publish' writes an image \
         to a bucket",
    ),
];

/// Makes `ls -lh` mean what it means elsewhere: -h alone asks for help.
pub fn as_usual(words: &mut Vec<OsString>) {
    let is_list = |word: &OsString| ["ls", "list", "dir"].iter().any(|name| word == name);
    if !words.get(1).is_some_and(is_list) {
        return;
    }
    let options = words.iter_mut().skip(2).take_while(|word| *word != "--");
    for word in options {
        let Some(letters) = word.to_str().and_then(|text| text.strip_prefix('-')) else {
            continue;
        };
        let is_cluster = letters.len() > 1 && letters.bytes().all(|b| b.is_ascii_alphabetic());
        if is_cluster && letters.contains('h') {
            *word = format!("-{}", letters.replace('h', "")).into();
            words.insert(2, "--human-readable".into());
            return;
        }
    }
}

/// What to say in place of the error of the parser, if `words` are those of another program.
pub fn answer(words: &[OsString], error: &clap::Error) -> Option<String> {
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let word = context(ContextKind::InvalidSubcommand)?;
            // A group has its own words.
            if words.get(1).and_then(|first| first.to_str()) != Some(word) {
                return None;
            }
            let (_, say) = COMMANDS.iter().find(|(known, _)| known.contains(&word))?;
            Some(format!("there is no command '{word}': {say}"))
        }
        ErrorKind::UnknownArgument => {
            let is_find = words.get(1).is_some_and(|word| word == "find");
            let primary = words.iter().filter_map(|word| word.to_str()).find(|word| {
                let name = word.strip_prefix('-').unwrap_or_default();
                name.len() > 1 && name.bytes().all(|b| b.is_ascii_lowercase())
            });
            let primary = primary.filter(|_| is_find)?;
            Some(format!(
                "{primary}: options of weald find have two hyphens, as in -{primary}: 'weald find \
                 --help' lists them"
            ))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;
    use clap::CommandFactory;
    use std::ffi::OsStr;

    fn said(line: &str) -> Option<String> {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let parsed = Cli::command().try_get_matches_from(words.clone());
        answer(&words, &parsed.expect_err("a mistake"))
    }

    /// Would catch: a name or a value that is taken for options, and help where a list was asked
    /// for.
    #[test]
    fn a_list_has_short_sizes_as_elsewhere() {
        for (line, wanted) in [
            ("weald ls -lh image", "weald ls --human-readable -l image"),
            (
                "weald list image -alh",
                "weald list --human-readable image -al",
            ),
            ("weald ls -h", "weald ls -h"),
            (
                "weald ls -l --human-readable x",
                "weald ls -l --human-readable x",
            ),
            ("weald ls image -- -lh", "weald ls image -- -lh"),
            ("weald cat -lh", "weald cat -lh"),
        ] {
            let mut words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            as_usual(&mut words);
            assert_eq!(words.join(OsStr::new(" ")), wanted, "{line}");
        }
    }

    /// Would catch: an answer that names a command which is not there, or hides the mistake in a
    /// command that is.
    #[test]
    fn words_of_other_programs_have_answers() {
        for (words, say) in COMMANDS {
            for word in *words {
                let answer = said(&format!("weald {word} x")).unwrap_or_default();
                assert!(answer.ends_with(say), "{word}: {answer}");
            }
            for quoted in say.split('\'').skip(1).step_by(2) {
                let names: Vec<&str> = quoted.split(' ').skip(1).collect();
                let mut command = Cli::command();
                for name in names
                    .iter()
                    .take_while(|n| n.bytes().all(|b| b.is_ascii_lowercase()))
                {
                    let Some(found) = command.find_subcommand(name) else {
                        panic!("{quoted}: no command {name}");
                    };
                    command = found.clone();
                }
            }
        }
        let answer = said("weald find image -name x").expect("an answer");
        assert!(answer.starts_with("-name: "), "{answer}");
        assert_eq!(said("weald find image --gone"), None);
        assert_eq!(said("weald find image -x"), None);
        assert_eq!(said("weald nonsense"), None);
        assert_eq!(said("weald store du"), None);
    }
}
