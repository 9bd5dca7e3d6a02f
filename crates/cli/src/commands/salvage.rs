//! `weald salvage`: writes what is left of a damaged image to a directory or to another image.

use crate::help::{DONE_OR_DAMAGED, Help};
use crate::json::{Object, put_name};
use crate::open::{default_cache_len, refuse_all_but_files, thread_count};
use crate::output::Output;
use crate::parse;
use crate::progress::{Display, ProgressWord, bytes, count};
use crate::status::FOUND;
use anyhow::Context;
use clap::{Args, ValueHint};
use std::cell::RefCell;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use weald_builder::{BuildOptions, Lost, Salvaged, build_from_image, salvage};
use weald_export::{ExtractOptions, XattrPolicy, extract};
use weald_filter::AttributeChoice;
use weald_format::Digest;
use weald_image::{Damaged, OpenOptions};
use weald_io::FileSource;
use weald_vfs::Choice;

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[],
    notes: &[
        "Salvage reads the image from front to back and trusts no single place of it: every record \
         counts that has the digest that it names. It makes lost indexes again, and writes every \
         file of which all bytes are left. The image itself is not changed.",
        "Each 'lost: PATH: REASON' is a path that is missing in the result, or of which something \
         is. 'repaired: WHAT' is damage that cost nothing. Directories whose place in the tree is \
         lost come below lost+found, and contents without a name as lost+found/contents/DIGEST. \
         After damage to the tree, files of older generations may be among them.",
        "OUT is a directory, as that of weald extract; with --image, an image file. Times other \
         than mtime are not restored.",
    ],
    examples: &[
        (
            "Save what is left into a directory",
            "weald salvage damaged.weald saved",
        ),
        (
            "Save it into a new image",
            "weald salvage --image damaged.weald saved.weald",
        ),
    ],
    exit_status: DONE_OR_DAMAGED,
};

/// Write what is left of a damaged image
#[derive(Args, Debug)]
#[command(after_help = HELP.short(), after_long_help = HELP.long())]
pub struct SalvageArgs {
    /// Damaged image file
    #[arg(value_hint = ValueHint::FilePath)]
    damaged: PathBuf,
    /// Directory to write to, created if missing; with --image, the image file to write
    #[arg(value_name = "OUT", value_hint = ValueHint::AnyPath)]
    target: PathBuf,
    /// Write an image instead of a directory
    #[arg(long)]
    image: bool,
    /// Replace an existing image file
    #[arg(short, long, requires = "image")]
    force: bool,
    /// Generation to save (default: the newest that is left)
    #[arg(long, value_name = "NUMBER", value_parser = parse::number::<u64>)]
    generation: Option<u64>,
    /// Directory to search for base images, besides that of the image; repeatable
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    base_dir: Vec<PathBuf>,
    /// Number of threads, 0 for one per CPU
    #[arg(short, long, value_name = "COUNT", default_value_t = 0, value_parser = parse::threads)]
    threads: usize,
    /// Print nothing but problems
    #[arg(short, long)]
    quiet: bool,
    /// Print one JSON object for each line, and one with "complete"
    #[arg(long, conflicts_with = "quiet")]
    json: bool,
}

/// Runs the command.
pub fn run(args: &SalvageArgs) -> anyhow::Result<ExitCode> {
    refuse_all_but_files(
        &args.damaged,
        "fetch the object, then salvage the file",
        "is an image of a store: 'weald store salvage' is for stores",
    )?;
    weald_sys::check_preload()?;
    let shown = args.damaged.display().to_string();
    let options = options(args);
    let flag = crate::interrupt::interrupt_flag()?;
    let source = Arc::new(FileSource::open(&args.damaged, 0)?);
    let watched = flag.clone();
    let mut watch = |_| {
        if watched.load(Ordering::Relaxed) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    };
    let damaged = Damaged::open(source, &options, &mut watch).context(shown)?;
    let (digests, _) = damaged
        .image
        .left_content_digests(thread_count(args.threads));
    let lines = Lines::new(args);
    damaged
        .repaired
        .iter()
        .for_each(|what| lines.repaired(what));
    lines.lost_generation(&damaged);
    let tell = |path: &[u8], lost| lines.lost(path, lost);
    let display = Display::new(ProgressWord::None, flag);
    let salvaged = salvage(&damaged, &digests, &tell, &options, &display)?;
    lines.failed()?;
    let problem_count = if args.image {
        let options = BuildOptions {
            threads: args.threads,
            ..BuildOptions::default()
        };
        let image = &salvaged.image;
        build_from_image(image, &args.target, args.force, &options, &display)?.problem_count
    } else {
        extract_all(args, &salvaged, &display)?
    };
    let lost_count = lines.close(&salvaged)?;
    let is_whole = lost_count == 0 && problem_count == 0;
    Ok(ExitCode::from(if is_whole { 0 } else { FOUND }))
}

fn options(args: &SalvageArgs) -> OpenOptions {
    let beside = args.damaged.parent().filter(|dir| *dir != Path::new(""));
    let mut base_dirs = vec![beside.unwrap_or(Path::new(".")).to_owned()];
    base_dirs.extend(args.base_dir.iter().cloned());
    OpenOptions {
        cache_len: default_cache_len(),
        generation: args.generation,
        reads_everything: true,
        base_dirs,
        ..OpenOptions::default()
    }
}

/// Writes the tree to a directory; returns the number of problems.
fn extract_all(args: &SalvageArgs, salvaged: &Salvaged, display: &Display) -> anyhow::Result<u64> {
    let is_root = weald_sys::effective_ids().0 == 0;
    let options = ExtractOptions {
        choice: Choice::default(),
        thread_count: thread_count(args.threads),
        overwrite: false,
        keeps_owner: is_root,
        xattrs: if is_root {
            XattrPolicy::Everything
        } else {
            XattrPolicy::Ordinary
        },
        attributes: AttributeChoice::default(),
        skips_devices: false,
        keeps_damaged: false,
    };
    if let Err(error) = weald_sys::raise_open_file_limit() {
        log::info!("limit of open files: {error}");
    }
    let root = salvaged.image.root()?;
    let report = extract(&salvaged.image, root, &args.target, &options, display)?;
    Ok(report.problem_count)
}

/// The lines of the output.
struct Lines<'a> {
    args: &'a SalvageArgs,
    state: RefCell<ReportState>,
}

struct ReportState {
    output: Output,
    result: std::io::Result<()>,
    lost_count: u64,
}

impl<'a> Lines<'a> {
    fn new(args: &'a SalvageArgs) -> Self {
        let state = RefCell::new(ReportState {
            output: Output::new(),
            result: Ok(()),
            lost_count: 0,
        });
        Self { args, state }
    }

    fn repaired(&self, what: &str) {
        let mut object = Object::new();
        object.insert("type".into(), "repaired".into());
        object.insert("what".into(), what.into());
        self.put(object, &format!("repaired: {what}"));
    }

    /// Tells that there was a newer generation.
    fn lost_generation(&self, damaged: &Damaged) {
        if damaged.behind_len == 0 {
            return;
        }
        self.state.borrow_mut().lost_count += 1;
        let number = damaged.image.summary().generation;
        let what = format!(
            "what was appended after generation {number}: {} whose directory is damaged or was \
             never written",
            bytes(damaged.behind_len)
        );
        let mut object = Object::new();
        object.insert("type".into(), "lost".into());
        object.insert("what".into(), what.as_str().into());
        self.put(object, &format!("lost: {what}"));
    }

    fn lost(&self, path: &[u8], lost: Lost) {
        self.state.borrow_mut().lost_count += 1;
        let mut object = Object::new();
        object.insert("type".into(), "lost".into());
        put_name(&mut object, "path", path);
        object.insert("what".into(), lost.to_string().into());
        let text = format!("lost: {}: {lost}", weald_vfs::shown_path(path));
        self.put(object, &text);
    }

    fn put(&self, object: Object, text: &str) {
        let ReportState { output, result, .. } = &mut *self.state.borrow_mut();
        if self.args.quiet || result.is_err() {
            return;
        }
        *result = if self.args.json {
            output.json(&object.into())
        } else {
            writeln!(output, "{text}")
        };
    }

    /// The first failure to write, if there was one.
    fn failed(&self) -> std::io::Result<()> {
        std::mem::replace(&mut self.state.borrow_mut().result, Ok(()))
    }

    /// Writes the last line; returns the number of losses.
    fn close(self, salvaged: &Salvaged) -> std::io::Result<u64> {
        let lost_count = self.state.borrow().lost_count;
        let summary = salvaged.image.summary();
        let digest: Digest = summary.tree_digest;
        let mut object = Object::new();
        object.insert("type".into(), "summary".into());
        object.insert("complete".into(), salvaged.is_complete.into());
        object.insert("entries".into(), summary.name_count.into());
        object.insert("lost".into(), lost_count.into());
        object.insert("nameless".into(), salvaged.nameless_count.into());
        object.insert("tree_digest".into(), digest.to_string().into());
        let entries = counted(summary.name_count, "entry", "entries");
        let text = if salvaged.is_complete {
            format!("{entries}: everything is there, as the tree digest of the image says")
        } else {
            format!(
                "{entries}; {}; {} without a name",
                counted(lost_count, "loss", "losses"),
                counted(salvaged.nameless_count, "content", "contents")
            )
        };
        self.put(object, &text);
        self.failed()?;
        self.state.into_inner().output.finish()?;
        Ok(lost_count)
    }
}

/// A number, and the word for one or for several.
fn counted(number: u64, one: &str, several: &str) -> String {
    format!(
        "{} {}",
        count(number),
        if number == 1 { one } else { several }
    )
}
