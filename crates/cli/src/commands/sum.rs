//! `weald sum`: prints digests of files in the formats of b3sum, sha256sum, xxhsum and fsverity.

use crate::choice_args::ChoiceArgs;
use crate::help::{DONE_OR_PARTLY, Help};
use crate::json::{Object, hex, put_name};
use crate::looks::Looks;
use crate::messages;
use crate::open::{SourceArgs, thread_count};
use crate::output::{Output, has_no_reader, is_closed};
use crate::parse;
use crate::reading::ReadingArgs;
use crate::rules::tell_idle;
use crate::status::exit_code;
use clap::{Args, ValueEnum, ValueHint};
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use weald_format::FileKind;
use weald_vfs::{Algorithm, Choice, Follow, Selection, Sum, SumOptions, sums};
use weald_volume::Levels;

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[],
    notes: &[
        "Only regular files have digests. Paths begin at the root of the image. Backslashes, \
         newlines and carriage returns in names are escaped as b3sum and sha256sum escape them; \
         xxhsum cannot read such names.",
        "b3sum cannot represent names that are not UTF-8: with --algorithm b3, such bytes \
         become U+FFFD. Use --json or sha256 for them.",
        "Names on a terminal are escaped: control characters and bytes that are not UTF-8 \
         become \\xNN. In a pipe or a file, names are written as they are.",
    ],
    examples: &[
        (
            "Write SHA-256 digests of all files",
            "weald sum -a sha256 forest.weald > SHA256SUMS",
        ),
        (
            "Check a directory against them",
            "cd forest && sha256sum --quiet --check ../SHA256SUMS",
        ),
        (
            "Compare a directory with MD5 digests, as an old archive has them",
            "weald sum -a md5 forest.weald > md5 && cd forest && md5sum --quiet -c ../md5",
        ),
        (
            "Write fs-verity digests of all files",
            "weald sum --fsverity forest.weald > digests",
        ),
        (
            "Print the digest of one file as JSON",
            "weald sum --json forest.weald etc/passwd",
        ),
    ],
    exit_status: DONE_OR_PARTLY,
};

/// Digest algorithm.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Word {
    /// BLAKE3, as b3sum
    B3,
    /// SHA-256, as sha256sum
    Sha256,
    /// SHA-512, as sha512sum
    Sha512,
    /// MD5, as md5sum; against accidents only
    Md5,
    /// XXH3 with 128 bits, as xxhsum -H128; against accidents only
    Xxh3,
    /// fs-verity with SHA-256, as fsverity digest
    Fsverity,
}

/// Print digests of files in the format of b3sum, sha256sum, md5sum, xxhsum or fsverity
#[derive(Args, Debug)]
#[command(after_help = HELP.short(), after_long_help = HELP.long())]
pub struct SumArgs {
    #[command(flatten)]
    image: SourceArgs,
    /// Paths in the image (default: its root)
    #[arg(value_hint = ValueHint::Other, conflicts_with = "files_from")]
    paths: Vec<OsString>,
    #[command(flatten)]
    choice: ChoiceArgs,
    /// Digest algorithm
    #[arg(short, long, value_enum, default_value = "b3")]
    algorithm: Word,
    /// Print fs-verity digests, which name the objects of composefs: --algorithm fsverity
    #[arg(long, conflicts_with = "algorithm")]
    fsverity: bool,
    /// Number of threads, 0 for one per CPU
    #[arg(short, long, value_name = "COUNT", default_value_t = 0, value_parser = parse::threads)]
    threads: usize,
    #[command(flatten)]
    reading: ReadingArgs,
    /// Print one JSON object per file
    #[arg(long)]
    json: bool,
}

impl SumArgs {
    fn word(&self) -> Word {
        if self.fsverity {
            Word::Fsverity
        } else {
            self.algorithm
        }
    }
}

/// Runs the command.
pub fn run(args: &SumArgs) -> anyhow::Result<ExitCode> {
    let chosen = args.choice.chosen(&[])?;
    let listed: Vec<OsString> = chosen
        .listed()
        .map(|path| OsStr::from_bytes(path).to_owned())
        .collect();
    let looked_at = if args.choice.has_list() {
        &listed
    } else {
        &args.paths
    };
    let image = args.image.open(&Looks::at(looked_at, Levels::ALL))?;
    // Each listed path is a start of its own.
    let choice = Choice {
        selection: Selection::default(),
        ..chosen.choice.clone()
    };
    let options = SumOptions {
        choice: &choice,
        algorithm: match args.word() {
            Word::B3 => Algorithm::Blake3,
            Word::Sha256 => Algorithm::Sha256,
            Word::Sha512 => Algorithm::Sha512,
            Word::Md5 => Algorithm::Md5,
            Word::Xxh3 => Algorithm::Xxh3,
            Word::Fsverity => Algorithm::FsVerity,
        },
        thread_count: thread_count(args.threads),
        is_cancelled: &has_no_reader,
    };
    let paths = if args.choice.has_list() {
        &listed
    } else {
        image.paths_or_root(&args.paths)
    };
    let mut output = Output::new();
    let mut problem_count = 0;
    for path in paths {
        let start = match image.locate(path, Follow::Yes) {
            Ok(start) if matches!(start.inode.kind, FileKind::Regular | FileKind::Directory) => {
                start
            }
            Ok(start) => {
                messages::line(&format!(
                    "{}: not a regular file",
                    weald_vfs::shown_path(&start.path)
                ));
                problem_count += 1;
                continue;
            }
            Err(error) => {
                messages::error(&error.into());
                problem_count += 1;
                continue;
            }
        };
        let mut result = Ok(());
        let mut take = |sum: Sum| {
            match &sum.digest {
                Ok(digest) => result = print(args, &sum, digest, &mut output),
                Err(_) if is_closed() => result = Err(io::ErrorKind::BrokenPipe.into()),
                Err(error) => {
                    messages::error(&anyhow::Error::new(error.duplicate()));
                    problem_count += 1;
                }
            }
            if result.is_ok() {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        };
        args.reading.during("sum", &[&image], true, || {
            sums(&image, start, &options, &mut take);
        });
        result?;
    }
    tell_idle(&choice.filter);
    output.finish()?;
    Ok(exit_code(problem_count))
}

fn print(args: &SumArgs, sum: &Sum, digest: &[u8], output: &mut Output) -> io::Result<()> {
    if args.json {
        let mut object = Object::new();
        put_name(&mut object, "path", &sum.path);
        object.insert("digest".into(), hex(digest).into());
        object.insert(
            "algorithm".into(),
            match args.word() {
                Word::B3 => "b3",
                Word::Sha256 => "sha256",
                Word::Sha512 => "sha512",
                Word::Md5 => "md5",
                Word::Xxh3 => "xxh3",
                Word::Fsverity => "fsverity",
            }
            .into(),
        );
        return output.json(&object.into());
    }
    let line = line(args.word(), digest, &sum.path);
    if output.is_terminal() {
        // The backslashes are part of the tools' format and must not be escaped again.
        output.text(&String::from_utf8_lossy(&line))
    } else {
        output.raw().write_all(&line)
    }
}

/// Formats a line as b3sum, sha256sum and fsverity do. A backslash comes first if the first two had
/// to escape the name.
fn line(word: Word, digest: &[u8], path: &[u8]) -> Vec<u8> {
    if word == Word::Fsverity {
        let digest = format!("sha256:{} ", hex(digest));
        return [digest.as_bytes(), path, b"\n"].concat();
    }
    let lossy = String::from_utf8_lossy(path);
    let path = if word == Word::B3 {
        lossy.as_bytes()
    } else {
        path
    };
    let is_escaped = path
        .iter()
        .any(|byte| matches!(byte, b'\\' | b'\n' | b'\r'));
    let mut line = Vec::with_capacity(path.len() + 72);
    line.extend_from_slice(if is_escaped { b"\\" } else { b"" });
    line.extend_from_slice(hex(digest).as_bytes());
    line.extend_from_slice(b"  ");
    for &byte in path {
        match byte {
            b'\\' => line.extend_from_slice(b"\\\\"),
            b'\n' => line.extend_from_slice(b"\\n"),
            b'\r' => line.extend_from_slice(b"\\r"),
            byte => line.push(byte),
        }
    }
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_names_are_escaped_as_the_tools_do() {
        let digest = [0xab; 4];
        assert_eq!(line(Word::Sha256, &digest, b"a b"), b"abababab  a b\n");
        assert_eq!(
            line(Word::Sha256, &digest, b"a\nb\\c\rd"),
            b"\\abababab  a\\nb\\\\c\\rd\n"
        );
        assert_eq!(line(Word::Sha256, &digest, b"\xff"), b"abababab  \xff\n");
        assert_eq!(
            line(Word::Fsverity, &digest, b"a b"),
            b"sha256:abababab a b\n"
        );
        assert_eq!(
            line(Word::B3, &digest, b"\xff"),
            "abababab  \u{fffd}\n".as_bytes()
        );
    }
}
