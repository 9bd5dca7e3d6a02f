//! The options `--exclude`, `--include`, `--exclude-from`, `--include-from` and `--filter`: rules
//! whose order on the command line matters.

use crate::shape::SELECTION;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, ValueHint, value_parser};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use weald_filter::{Filter, Verdict};
use weald_vfs::shown;

/// One rule option of the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Rule {
    kind: Kind,
    value: OsString,
}

/// Meaning of its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Pattern(Verdict),
    /// A file of patterns.
    File(Verdict),
    /// A rule in the syntax of rsync's `--filter`.
    Filter,
}

/// All rule options, in the order of the command line.
#[derive(Debug, Clone, Default)]
pub struct RuleArgs(Vec<Rule>);

/// Name, kind, value name, help.
const WORDS: [(&str, Kind, &str, &str); 5] = [
    (
        "exclude",
        Kind::Pattern(Verdict::Excluded),
        "PATTERN",
        "Leave out paths that match; the first rule that matches a path decides",
    ),
    (
        "include",
        Kind::Pattern(Verdict::Included),
        "PATTERN",
        "Keep paths that match",
    ),
    (
        "exclude-from",
        Kind::File(Verdict::Excluded),
        "FILE",
        "Read patterns to leave out from a file, one per line",
    ),
    (
        "include-from",
        Kind::File(Verdict::Included),
        "FILE",
        "Read patterns to keep from a file, one per line",
    ),
    (
        "filter",
        Kind::Filter,
        "RULE",
        "Apply a filter rule of rsync: '- PATTERN', '+ PATTERN', 'merge FILE' for a file of rules, \
         'dir-merge NAME' for one in each directory, '!' to drop the rules before it",
    ),
];

impl RuleArgs {
    /// Builds the filter.
    pub fn filter(&self) -> weald_format::Result<Filter> {
        let mut filter = Filter::new();
        for rule in &self.0 {
            let value = rule.value.as_bytes();
            match rule.kind {
                Kind::Pattern(verdict) => filter.push_rule(value, verdict)?,
                Kind::File(verdict) => filter.push_file(Path::new(&rule.value), verdict)?,
                Kind::Filter => filter.push_filter(value)?,
            }
        }
        Ok(filter)
    }
}

/// Names the rules of the command line that have decided about no path.
pub fn tell_idle(filter: &Filter) {
    for rule in filter.idle_rules() {
        let option = match rule.verdict {
            Verdict::Excluded => "exclude",
            Verdict::Included => "include",
        };
        log::warn!(
            "--{option} {}: decides about nothing: no path matches, or an earlier rule does",
            shown(&rule.text)
        );
    }
}

impl FromArgMatches for RuleArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut rules = Vec::new();
        for (name, kind, _, _) in WORDS {
            let indices = matches.indices_of(name).into_iter().flatten();
            let values = matches.get_many::<OsString>(name).into_iter().flatten();
            rules.extend(indices.zip(values).map(|(index, value)| {
                (
                    index,
                    Rule {
                        kind,
                        value: value.clone(),
                    },
                )
            }));
        }
        rules.sort_by_key(|(index, _)| *index);
        Ok(Self(rules.into_iter().map(|(_, rule)| rule).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for RuleArgs {
    fn augment_args(command: Command) -> Command {
        WORDS
            .iter()
            .fold(command, |command, &(name, kind, value_name, help)| {
                let hint = if matches!(kind, Kind::File(_)) {
                    ValueHint::FilePath
                } else {
                    ValueHint::Other
                };
                // A pattern may begin with a hyphen, and rsync rules such as '- PATTERN' do.
                let arg = Arg::new(name)
                    .long(name)
                    .value_name(value_name)
                    .allow_hyphen_values(true)
                    .help_heading(SELECTION)
                    .hide_short_help(name != "exclude" && name != "include")
                    .help(help)
                    .value_hint(hint);
                command.arg(
                    arg.action(ArgAction::Append)
                        .value_parser(value_parser!(OsString)),
                )
            })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weald_filter::DirRules;

    #[test]
    fn the_order_of_the_command_line_is_kept() {
        let command = RuleArgs::augment_args(Command::new("x"));
        let words = ["x", "--include", "a.o", "--exclude=*.o", "--include", "*"];
        let rules = RuleArgs::from_arg_matches(&command.get_matches_from(words)).unwrap();
        let filter = rules.filter().unwrap();
        assert_eq!(
            filter.matches(&DirRules::default(), b"a.o", false),
            Verdict::Included
        );
        assert_eq!(
            filter.matches(&DirRules::default(), b"b.o", false),
            Verdict::Excluded
        );
        let values: Vec<_> = rules
            .0
            .iter()
            .map(|rule| rule.value.to_str().unwrap())
            .collect();
        assert_eq!(values, ["a.o", "*.o", "*"]);
    }
}
