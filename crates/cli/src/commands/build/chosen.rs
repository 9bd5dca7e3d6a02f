//! What a build would pack, and which rule decides: `--list` and `--explain-filter`.

use crate::entry::kind_word;
use crate::input_args::Input;
use crate::json::{self, Object};
use crate::messages;
use crate::output::Output;
use crate::status::exit_code;
use anyhow::bail;
use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use weald_builder::{BuildOptions, LeftOut, Observer, Problem, Progress};
use weald_filter::{Filter, Rule, Verdict};
use weald_format::{Error, FileKind};
use weald_vfs::shown;

/// How a list is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// One path a line, and with `-v` what is left out.
    Lines,
    /// Paths that end in zero bytes.
    Zeros,
    /// JSON objects.
    Json,
}

/// Prints the paths that a build of `input` into the image `target` would pack.
pub fn list(
    input: Input,
    target: &Path,
    form: Form,
    options: &BuildOptions,
    observer: &dyn Observer,
) -> anyhow::Result<ExitCode> {
    let watch = Watch {
        inner: observer,
        left_out: messages::is_verbose().then(Mutex::default),
    };
    let mut output = Output::new();
    let mut take = |path: &[u8], kind: FileKind| {
        let written = write_path(&mut output, form, path, kind);
        written.map_err(|e| Error::io("standard output", e))
    };
    let problem_count = input.list(target, options, &watch, &mut take)?;
    let left_out = watch
        .left_out
        .map(Mutex::into_inner)
        .unwrap_or(Ok(Vec::new()));
    let mut left_out = left_out.unwrap_or_else(PoisonError::into_inner);
    left_out.sort();
    left_out.dedup();
    for (path, why) in &left_out {
        match form {
            Form::Lines => writeln!(output, "left out: {}: {why}", shown(path))?,
            // Programs that read these want what is packed.
            Form::Zeros => {}
            Form::Json => {
                let mut object = Object::new();
                json::put_name(&mut object, "path", path);
                object.insert("left_out".into(), why.as_str().into());
                output.json(&object.into())?;
            }
        }
    }
    output.finish()?;
    Ok(exit_code(problem_count))
}

fn write_path(output: &mut Output, form: Form, path: &[u8], kind: FileKind) -> std::io::Result<()> {
    let name = if path.is_empty() { b"." } else { path };
    match form {
        Form::Lines => {
            output.name(name)?;
            output.raw().write_all(b"\n")
        }
        Form::Zeros => output.raw().write_all(&[name, b"\0"].concat()),
        Form::Json => {
            let mut object = Object::new();
            json::put_name(&mut object, "path", path);
            object.insert("type".into(), kind_word(kind).into());
            output.json(&object.into())
        }
    }
}

/// Paths that are left out, and why.
type LeftOutPaths = Vec<(Vec<u8>, String)>;

/// Collects what is left out, if anybody wants to know.
struct Watch<'a> {
    inner: &'a dyn Observer,
    left_out: Option<Mutex<LeftOutPaths>>,
}

impl Observer for Watch<'_> {
    fn progress(&self, progress: &Progress) {
        self.inner.progress(progress);
    }

    fn problem(&self, problem: &Problem) {
        self.inner.problem(problem);
    }

    fn replaced(&self, path: &[u8], by: &Path) {
        self.inner.replaced(path, by);
    }

    fn left_out(&self, path: &[u8], why: LeftOut<'_>) {
        if let Some(list) = &self.left_out {
            let why = match why {
                LeftOut::Rule(rule) => rule_text(rule),
                LeftOut::Script => "the function filter of the script".to_owned(),
                LeftOut::MountPoint => "a mount point".to_owned(),
                LeftOut::Image => "the image itself".to_owned(),
            };
            let mut list = list.lock().unwrap_or_else(PoisonError::into_inner);
            list.push((path.to_vec(), why));
        }
    }

    fn is_cancelled(&self) -> bool {
        self.inner.is_cancelled()
    }
}

fn rule_text(rule: &Rule) -> String {
    let place = rule.place.as_ref().map(|place| format!(" ({place})"));
    format!("{}{}", shown(&rule.text), place.unwrap_or_default())
}

/// Prints the rule that decides about each directory on the way to `path`, and about `path`.
pub fn explain(sources: &[PathBuf], filter: &Filter, path: &Path) -> anyhow::Result<ExitCode> {
    let [source] = sources else {
        bail!("--explain-filter is about one source: name the one that has the path");
    };
    let relative = path.strip_prefix(source).unwrap_or(path);
    let relative = relative.strip_prefix("/").unwrap_or(relative);
    let components: Vec<_> = relative
        .components()
        .filter(|c| !matches!(c, Component::CurDir))
        .collect();
    let is_plain = |c: &Component<'_>| matches!(c, Component::Normal(_));
    if components.is_empty() || !components.iter().all(is_plain) {
        bail!("{}: expected a path below the source", path.display());
    }
    let relative: PathBuf = components.iter().collect();
    let is_dir = source.join(&relative).is_dir() || path.as_os_str().as_bytes().ends_with(b"/");
    let mut output = Output::new();
    let read = &mut |dir: &[u8], name: &[u8]| {
        let dir = source.join(OsStr::from_bytes(dir));
        weald_builder::scan::read_dir_rules(&dir, name)
    };
    for reason in filter.explain(relative.as_os_str().as_bytes(), is_dir, read)? {
        let word = match reason.verdict() {
            Verdict::Included => "kept",
            Verdict::Excluded => "left out",
        };
        let why = match reason.rule {
            None => "no rule matches".to_owned(),
            Some(rule) => rule_text(&rule),
        };
        writeln!(output, "{word}: {}: {why}", shown(reason.path))?;
    }
    output.finish()?;
    Ok(ExitCode::SUCCESS)
}
