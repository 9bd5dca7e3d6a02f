//! The options with which commands that read a tree choose entries of it.

use crate::looks::Looks;
use crate::rules::{RuleArgs, tell_idle};
use crate::shape::SELECTION;
use crate::{messages, parse};
use anyhow::{Context, bail};
use clap::{Args, ValueHint};
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use weald_vfs::{Choice, PathList, Selection, Unmatched, shown};
use weald_volume::Levels;

/// Longest list of paths, bytes: a device without an end fills no memory.
const LIST_LEN_MAX: u64 = 256 << 20;

/// Rules.
#[derive(Args, Debug)]
pub struct RuleChoiceArgs {
    #[command(flatten)]
    rules: RuleArgs,
}

impl RuleChoiceArgs {
    /// What the rules leave in.
    pub fn choice(&self) -> anyhow::Result<Choice> {
        let filter = self.rules.filter()?;
        if filter.asks_dirs() {
            bail!(
                "--filter: dir-merge reads rules from a tree that is packed; here name a file of \
                 rules with 'merge FILE'"
            );
        }
        Ok(Choice {
            filter,
            ..Choice::default()
        })
    }
}

/// Rules, a list of paths, and a depth.
#[derive(Args, Debug)]
#[command(next_help_heading = SELECTION)]
pub struct ChoiceArgs {
    #[command(flatten)]
    rules: RuleChoiceArgs,
    /// Take the paths that this file lists, and everything below them: one path per line, or paths
    /// that end in zero bytes; - is standard input
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    files_from: Option<PathBuf>,
    /// Levels of directories to go down
    #[arg(long, value_name = "COUNT")]
    max_depth: Option<usize>,
}

/// What a command takes, and the words that the user chose it with.
pub struct Chosen {
    /// What it takes.
    pub choice: Choice,
    patterns: Vec<OsString>,
    list: Vec<u8>,
}

impl ChoiceArgs {
    /// What these options and `patterns` choose.
    pub fn chosen(&self, patterns: &[OsString]) -> anyhow::Result<Chosen> {
        let globs = patterns.iter().map(|pattern| parse::path_glob(pattern));
        let mut selection = Selection::new(globs.collect::<Result<_, _>>()?);
        let mut list = Vec::new();
        if let Some(file) = &self.files_from {
            list = read_list(file).with_context(|| file.display().to_string())?;
            let paths = PathList::parse(&list, separator(&list));
            selection = selection.with_list(paths.with_context(|| file.display().to_string())?);
        }
        let choice = Choice {
            selection,
            depth_max: self.max_depth,
            ..self.rules.choice()?
        };
        Ok(Chosen {
            choice,
            patterns: patterns.to_vec(),
            list,
        })
    }

    /// Whether paths are listed.
    pub fn has_list(&self) -> bool {
        self.files_from.is_some()
    }
}

impl Chosen {
    /// Where the selected entries are, with all that is below them.
    pub fn looks(&self) -> Looks {
        let listed = self.listed().map(|path| OsStr::from_bytes(path).to_owned());
        let paths: Vec<OsString> = self.patterns.iter().cloned().chain(listed).collect();
        if paths.is_empty() && !self.choice.selection.is_everything() {
            // An empty list.
            Looks::at(&[], Levels(0))
        } else {
            Looks::at(&paths, Levels::ALL)
        }
    }

    /// Reports the patterns and the listed paths that selected nothing; returns their number. Rules
    /// that decided about nothing are named.
    pub fn report(&self, unmatched: &Unmatched) -> u64 {
        tell_idle(&self.choice.filter);
        for pattern in unmatched
            .patterns
            .iter()
            .filter_map(|&i| self.patterns.get(i))
        {
            let pattern = shown(pattern.as_bytes());
            messages::line(&format!("{pattern}: nothing in the image matches"));
        }
        let mut missing = unmatched.listed.iter().peekable();
        for (path_no, path) in paths(&self.list).enumerate() {
            if missing.next_if(|no| **no == path_no).is_some() {
                messages::line(&format!("{}: not in the image", shown(path)));
            }
        }
        (unmatched.patterns.len() + unmatched.listed.len()) as u64
    }

    /// The listed paths.
    pub fn listed(&self) -> impl Iterator<Item = &[u8]> {
        paths(&self.list)
    }
}

/// The byte that ends each path of `list`: zero, or else a newline.
pub fn separator(list: &[u8]) -> u8 {
    if list.contains(&0) { 0 } else { b'\n' }
}

/// The paths of a list, numbered as [`PathList`] does.
fn paths(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    let separator = separator(list);
    let paths = list.split(move |&byte| byte == separator);
    paths.filter(|path| !path.is_empty())
}

/// Reads a list of at most 256 MiB, `-` from standard input.
pub fn read_list(file: &Path) -> anyhow::Result<Vec<u8>> {
    let mut list = Vec::new();
    let input: Box<dyn Read> = if file.as_os_str() == "-" {
        Box::new(std::io::stdin())
    } else {
        Box::new(std::fs::File::open(file)?)
    };
    input.take(LIST_LEN_MAX + 1).read_to_end(&mut list)?;
    if list.len() as u64 > LIST_LEN_MAX {
        bail!("the list has more than 256 MiB");
    }
    Ok(list)
}

/// How much of each path is dropped.
#[derive(Args, Debug, Clone, Copy)]
#[command(next_help_heading = SELECTION)]
pub struct StripArgs {
    /// Drop this many leading names of each path; what has no more names is left out
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 0,
        hide_default_value = true
    )]
    pub strip_components: usize,
}
