//! `git-annex-remote-weald`: the special remote that git-annex starts. It keeps keys, or an
//! exported tree, in a directory of a mounted volume, which stores equal data below the keys once.
//!
//! `lines.rs` has the conversation, `jobs.rs` several of them in one process, `place.rs` the files.
//! Encryption and chunks are git-annex's own work: it hands over encrypted chunks as keys.
//!
//! # Source
//! git-annex, `doc/design/external_special_remote_protocol`, version 2, with its appendices about
//! exports and jobs. The draft about imports is in no git-annex.

mod jobs;
mod lines;
mod place;

use anyhow::{Result, anyhow, bail};
use lines::{Lines, Streams, one_line, split};
use place::AnnexDir;
use std::io::{self, BufRead, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, PoisonError, RwLock};

/// Cost of a local directory, from `Config/Cost.hs` of git-annex: the cheapest is 100.
const COST: u32 = 100;

/// The one setting of the remote.
const DIRECTORY: &str = "directory";

/// The extension with which one process answers several jobs at a time.
const ASYNC: &[u8] = b"ASYNC";

/// Answers git-annex over standard input and output until it closes them.
pub fn run() -> ExitCode {
    let mut streams = Streams::new(io::stdin().lock(), io::stdout());
    match serve(&mut streams) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The message is for git-annex. If that has ended, the message has no reader.
            let _ = streams.send(&[b"ERROR", one_line(&error).as_bytes()]);
            ExitCode::FAILURE
        }
    }
}

/// Answers git-annex: first one request after the other, then, if it can, several at a time.
fn serve<R: BufRead, W: Write + Send>(streams: &mut Streams<R, W>) -> Result<()> {
    let place = SharedPlace::default();
    streams.send(&[b"VERSION 2"])?;
    let (input, output) = streams.parts();
    let mut remote = Remote::new(Streams::new(&mut *input, &mut *output), &place);
    if remote.converse()? == Next::End {
        return Ok(());
    }
    jobs::serve(input, output, &|job| {
        Remote::new(job, &place).converse().map(|_| ())
    })
}

/// The directory that PREPARE opened, for all jobs of the process.
type SharedPlace = RwLock<Option<Arc<AnnexDir>>>;

/// A conversation with git-annex, and what it has said so far.
struct Remote<'a, L> {
    lines: L,
    place: &'a SharedPlace,
    /// Name of the file that the next requests about an exported tree are for.
    exported: Vec<u8>,
}

/// Next step after an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// The next request.
    Request,
    /// Requests of several jobs: git-annex and the remote have agreed on it.
    Jobs,
    /// Nothing: git-annex has closed the conversation.
    End,
}

/// Where the data of a request lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// Under its key.
    Key,
    /// Under the name that EXPORT gave.
    Export,
}

impl<'a, L: Lines> Remote<'a, L> {
    const fn new(lines: L, place: &'a SharedPlace) -> Self {
        Self {
            lines,
            place,
            exported: Vec::new(),
        }
    }

    /// Answers requests until git-annex closes the conversation or goes over to jobs.
    fn converse(&mut self) -> Result<Next> {
        while let Some(line) = self.lines.receive()? {
            let (word, rest) = split(&line);
            let next = match word {
                b"EXTENSIONS" => self.extend(rest)?,
                _ => self.answer(word, rest).map(|()| Next::Request)?,
            };
            if next != Next::Request {
                return Ok(next);
            }
        }
        Ok(Next::End)
    }

    /// Takes the extensions of the protocol that both sides have.
    fn extend(&mut self, offered: &[u8]) -> Result<Next> {
        if offered.split(|&byte| byte == b' ').any(|it| it == ASYNC) {
            self.lines.send(&[b"EXTENSIONS", ASYNC])?;
            return Ok(Next::Jobs);
        }
        self.lines.send(&[b"EXTENSIONS"])?;
        Ok(Next::Request)
    }

    /// Answers one request. An error ends the conversation.
    fn answer(&mut self, word: &[u8], rest: &[u8]) -> Result<()> {
        match word {
            b"LISTCONFIGS" => {
                let about = b"directory inside a mounted Weald volume or image";
                self.lines.send(&[b"CONFIG", DIRECTORY.as_bytes(), about])?;
                self.lines.send(&[b"CONFIGEND"])
            }
            b"INITREMOTE" => {
                let outcome = self.prepare();
                self.reply("INITREMOTE", &[], &outcome)
            }
            b"PREPARE" => {
                let outcome = self.prepare();
                self.reply("PREPARE", &[], &outcome)
            }
            b"GETCOST" => {
                let cost = COST.to_string();
                self.lines.send(&[b"COST", cost.as_bytes()])
            }
            b"GETAVAILABILITY" => self.lines.send(&[b"AVAILABILITY LOCAL"]),
            b"GETINFO" => self.info(),
            b"WHEREIS" => match self.where_is(rest) {
                Ok(Some(path)) => self.lines.send(&[b"WHEREIS-SUCCESS", &lines::bytes(&path)]),
                _ => self.lines.send(&[b"WHEREIS-FAILURE"]),
            },
            b"TRANSFER" => self.transfer(Form::Key, rest),
            b"CHECKPRESENT" => self.check(Form::Key, rest),
            b"REMOVE" => self.remove(Form::Key, rest),
            b"EXPORTSUPPORTED" => self.lines.send(&[b"EXPORTSUPPORTED-SUCCESS"]),
            b"EXPORT" => {
                self.exported = rest.to_vec();
                Ok(())
            }
            b"TRANSFEREXPORT" => self.transfer(Form::Export, rest),
            b"CHECKPRESENTEXPORT" => self.check(Form::Export, rest),
            b"REMOVEEXPORT" => self.remove(Form::Export, rest),
            b"REMOVEEXPORTDIRECTORY" => {
                let outcome = self.place().and_then(|place| place.remove_dir(rest));
                self.reply_bare("REMOVEEXPORTDIRECTORY", &[], outcome.is_ok())
            }
            b"RENAMEEXPORT" => {
                let (key, name) = split(rest);
                let exported = &self.exported;
                let outcome = self.place().and_then(|place| place.rename(exported, name));
                self.reply_bare("RENAMEEXPORT", &[key], outcome.is_ok())
            }
            b"ERROR" => bail!("git-annex ended: {}", String::from_utf8_lossy(rest)),
            _ => {
                // The rest of a name with a line break looks like a request: what follows must not
                // be stored under the half that came with EXPORT.
                self.exported.clear();
                self.lines.send(&[b"UNSUPPORTED-REQUEST"])
            }
        }
    }

    /// Opens the directory that the remote is configured with.
    fn prepare(&mut self) -> Result<()> {
        let value = self.lines.ask(&[b"GETCONFIG", DIRECTORY.as_bytes()])?;
        let place = Arc::new(AnnexDir::open(lines::path(&value))?);
        *self.place.write().unwrap_or_else(PoisonError::into_inner) = Some(place);
        Ok(())
    }

    fn place(&self) -> Result<Arc<AnnexDir>> {
        let place = self.place.read().unwrap_or_else(PoisonError::into_inner);
        let place = place.as_ref().map(Arc::clone);
        place.ok_or_else(|| anyhow!("a request came before PREPARE"))
    }

    /// Path of a key's file, or of the exported file.
    fn path(&mut self, form: Form, key: &[u8]) -> Result<PathBuf> {
        self.place()?;
        if form == Form::Export {
            return self.place()?.exported(&self.exported);
        }
        let hash = self.lines.ask(&[b"DIRHASH-LOWER", key])?;
        self.place()?.of_key(&hash, key)
    }

    fn info(&mut self) -> Result<()> {
        if let Ok(place) = self.place() {
            let root = lines::bytes(place.root());
            self.lines.send(&[b"INFOFIELD", DIRECTORY.as_bytes()])?;
            self.lines.send(&[b"INFOVALUE", &root])?;
        }
        self.lines.send(&[b"INFOEND"])
    }

    /// `STORE|RETRIEVE Key File`.
    fn transfer(&mut self, form: Form, rest: &[u8]) -> Result<()> {
        let (direction, rest) = split(rest);
        let (key, file) = split(rest);
        let outcome = match direction {
            b"STORE" => self.store(form, key, &lines::path(file)),
            b"RETRIEVE" => self.retrieve(form, key, &lines::path(file)),
            _ => return self.lines.send(&[b"UNSUPPORTED-REQUEST"]),
        };
        self.reply("TRANSFER", &[direction, key], &outcome)
    }

    fn store(&mut self, form: Form, key: &[u8], file: &Path) -> Result<()> {
        let path = self.path(form, key)?;
        let place = self.place()?;
        let lines = &mut self.lines;
        place.store(file, &path, &mut |done| lines.progress(done))
    }

    fn retrieve(&mut self, form: Form, key: &[u8], file: &Path) -> Result<()> {
        let path = self.path(form, key)?;
        let place = self.place()?;
        let lines = &mut self.lines;
        place.retrieve(&path, file, &mut |done| lines.progress(done))
    }

    /// Path of a key's file, if it is there.
    fn where_is(&mut self, key: &[u8]) -> Result<Option<PathBuf>> {
        let path = self.path(Form::Key, key)?;
        let is_present = self.place()?.is_present(&path)?;
        Ok(is_present.then_some(path))
    }

    fn check(&mut self, form: Form, key: &[u8]) -> Result<()> {
        let path = self.path(form, key);
        let is_present = path.and_then(|path| self.place()?.is_present(&path));
        match is_present {
            Ok(true) => self.lines.send(&[b"CHECKPRESENT-SUCCESS", key]),
            Ok(false) => self.lines.send(&[b"CHECKPRESENT-FAILURE", key]),
            Err(error) => {
                let why = one_line(&error);
                let reply: &[&[u8]] = &[b"CHECKPRESENT-UNKNOWN", key, why.as_bytes()];
                self.lines.send(reply)
            }
        }
    }

    fn remove(&mut self, form: Form, key: &[u8]) -> Result<()> {
        let path = self.path(form, key);
        let outcome = path.and_then(|path| self.place()?.remove(&path));
        self.reply("REMOVE", &[key], &outcome)
    }

    /// Sends `WORD-SUCCESS words`, or `WORD-FAILURE words why`.
    fn reply(&mut self, word: &str, words: &[&[u8]], outcome: &Result<()>) -> Result<()> {
        let Err(error) = outcome else {
            return self.reply_bare(word, words, true);
        };
        let why = one_line(error);
        self.reply_bare(word, &[words, &[why.as_bytes()]].concat(), false)
    }

    fn reply_bare(&mut self, word: &str, words: &[&[u8]], is_success: bool) -> Result<()> {
        let end = if is_success { "SUCCESS" } else { "FAILURE" };
        let first = format!("{word}-{end}");
        self.lines.send(&[&[first.as_bytes()], words].concat())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::BufReader;
    use std::net::Shutdown;
    use std::os::unix::net::UnixStream;

    /// The lines with which the remote answers `requests`. Answers to its own questions are among
    /// the requests.
    fn said(requests: &str) -> Vec<String> {
        let mut streams = Streams::new(requests.as_bytes(), Vec::new());
        let outcome = serve(&mut streams);
        let mut said: Vec<String> = String::from_utf8_lossy(streams.sent())
            .lines()
            .map(str::to_owned)
            .collect();
        said.extend(outcome.err().map(|error| format!("{error:#}")));
        said
    }

    #[test]
    fn an_unknown_request_is_unsupported_and_a_missing_directory_is_named() {
        let said = said("CLAIMURL http://example.org/\nPREPARE\nVALUE /nowhere/at/all\n");
        assert_eq!(
            said[..3],
            ["VERSION 2", "UNSUPPORTED-REQUEST", "GETCONFIG directory"]
        );
        assert!(
            said[3].starts_with("PREPARE-FAILURE directory=/nowhere/at/all"),
            "{said:?}"
        );
    }

    #[test]
    fn exported_names_stay_inside_the_directory() {
        let dir = tempfile::tempdir().expect("directory");
        let inside = dir.path().join("inside");
        std::fs::create_dir(&inside).expect("mkdir");
        std::fs::write(dir.path().join("source"), "data").expect("write");
        let source = dir.path().join("source");
        for name in ["../out", "/out", "a/../../out", "", "a//b", "./a"] {
            let said = said(&format!(
                "PREPARE\nVALUE {}\nEXPORT {name}\nTRANSFEREXPORT STORE KEY {}\n",
                inside.display(),
                source.display()
            ));
            let last = said.last().expect("an answer");
            assert!(
                last.starts_with("TRANSFER-FAILURE STORE KEY "),
                "{name}: {said:?}"
            );
        }
        assert_eq!(std::fs::read_dir(&inside).expect("list").count(), 0);
    }

    #[test]
    fn presence_is_unknown_when_the_directory_is_gone() {
        let dir = tempfile::tempdir().expect("directory");
        let inside = dir.path().join("inside");
        std::fs::create_dir(&inside).expect("mkdir");
        let asked = |remote: &mut Remote<'_, Streams<&[u8], Vec<u8>>>| {
            remote.check(Form::Export, b"KEY").expect("answered");
        };
        let line = format!("VALUE {}\n", inside.display());
        let place = SharedPlace::default();
        let mut remote = Remote::new(Streams::new(line.as_bytes(), Vec::new()), &place);
        remote.prepare().expect("prepared");
        remote.exported = b"file".to_vec();
        asked(&mut remote);
        std::fs::remove_dir(&inside).expect("rmdir");
        asked(&mut remote);
        let said = String::from_utf8_lossy(remote.lines.sent()).into_owned();
        let said: Vec<&str> = said.lines().skip(1).collect();
        assert_eq!(said[0], "CHECKPRESENT-FAILURE KEY");
        assert!(said[1].starts_with("CHECKPRESENT-UNKNOWN KEY "), "{said:?}");
    }

    /// A directory with a file outside of the remote's, and ways to it that another user planted:
    /// `cc/dd` is a symlink to the directory, `link` one to the file. `own` is the caller's link.
    fn planted() -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("directory");
        let at = |name: &str| dir.path().join(name);
        for name in ["outside/empty", "inside/cc"] {
            std::fs::create_dir_all(at(name)).expect("mkdir");
        }
        for name in ["outside/secret", "inside/mine", "source"] {
            std::fs::write(at(name), name).expect("write");
        }
        for (name, target) in [("cc/dd", "outside"), ("link", "outside/secret")] {
            let link = at("inside").join(name);
            std::os::unix::fs::symlink(at(target), &link).expect("symlink");
            std::os::unix::fs::lchown(link, Some(65534), Some(65534)).expect("root's right");
        }
        std::os::unix::fs::symlink(at("outside/secret"), at("inside/own")).expect("symlink");
        let made = std::process::Command::new("mkfifo")
            .arg(at("inside/fifo"))
            .status();
        assert!(made.is_ok_and(|status| status.success()));
        dir
    }

    /// Would catch: a request that follows a symlink of another user, or waits for a fifo.
    #[test]
    fn no_request_follows_a_planted_symlink_or_waits_for_a_fifo() {
        let dir = planted();
        let shown = dir.path().display();
        let secret = "cc/dd/secret";
        // Requests behind an EXPORT of the name, and the beginning of the answer.
        let cases = [
            (secret, "CHECKPRESENTEXPORT KEY", "CHECKPRESENT-UNKNOWN KEY"),
            (secret, "REMOVEEXPORT KEY", "REMOVE-FAILURE KEY"),
            (secret, "RENAMEEXPORT KEY taken", "RENAMEEXPORT-FAILURE KEY"),
            (
                "mine",
                "RENAMEEXPORT KEY cc/dd/new",
                "RENAMEEXPORT-FAILURE KEY",
            ),
            (
                "mine",
                "RENAMEEXPORT KEY cc/dd/sub/new",
                "RENAMEEXPORT-FAILURE KEY",
            ),
            ("link", "CHECKPRESENTEXPORT KEY", "CHECKPRESENT-UNKNOWN KEY"),
            ("link", "REMOVEEXPORT KEY", "REMOVE-FAILURE KEY"),
            (
                "",
                "REMOVEEXPORTDIRECTORY cc/dd/empty",
                "REMOVEEXPORTDIRECTORY-FAILURE",
            ),
            // The caller's own link is no file of the remote.
            ("own", "CHECKPRESENTEXPORT KEY", "CHECKPRESENT-FAILURE KEY"),
            ("own", "REMOVEEXPORT KEY", "REMOVE-SUCCESS KEY"),
            ("fifo", "CHECKPRESENTEXPORT KEY", "CHECKPRESENT-FAILURE KEY"),
        ];
        let stores = ["cc/dd/secret", "cc/dd/new", "cc/dd/sub/deep/new", "link"];
        let reads = ["cc/dd/secret", "link", "own", "fifo"];
        let mut all: Vec<(String, String)> = cases
            .map(|(name, request, expected)| {
                (format!("EXPORT {name}\n{request}\n"), expected.to_owned())
            })
            .to_vec();
        for (names, way, file) in [(&stores, "STORE", "source"), (&reads, "RETRIEVE", "got")] {
            all.extend(names.iter().map(|name| {
                let request = format!("TRANSFEREXPORT {way} KEY {shown}/{file}");
                let expected = format!("TRANSFER-FAILURE {way} KEY");
                (format!("EXPORT {name}\n{request}\n"), expected)
            }));
        }
        let keys = [
            ("CHECKPRESENT secret", "CHECKPRESENT-UNKNOWN secret"),
            ("REMOVE secret", "REMOVE-FAILURE secret"),
            ("WHEREIS secret", "WHEREIS-FAILURE"),
        ];
        all.extend(keys.map(|(request, expected)| {
            let lines = format!("{request}\nVALUE cc/dd/\n");
            (lines, expected.to_owned())
        }));
        for (requests, expected) in all {
            let said = said(&format!("PREPARE\nVALUE {shown}/inside\n{requests}"));
            let last = said.last().expect("an answer");
            assert!(last.starts_with(&expected), "{requests}: {said:?}");
        }
        let left = |name: &str| {
            let list = std::fs::read_dir(dir.path().join(name)).expect("list");
            let mut names: Vec<_> = list
                .map(|entry| entry.expect("entry").file_name())
                .collect();
            names.sort();
            names
        };
        assert_eq!(left("outside"), ["empty", "secret"]);
        assert_eq!(left("inside"), ["cc", "fifo", "link", "mine", "own"]);
        assert!(!dir.path().join("got").exists());
        let secret = std::fs::read(dir.path().join("outside/secret")).expect("read");
        assert_eq!(secret, b"outside/secret");
    }

    /// Would catch: a request that looks at a directory and then works by its path, which leads
    /// elsewhere by then: another user exchanges the directory and a symlink all the time.
    #[test]
    fn a_directory_that_is_exchanged_leads_nowhere() {
        use std::sync::atomic::{AtomicBool, Ordering};
        const TRIES: usize = 300;
        let dir = tempfile::tempdir().expect("directory");
        let at = |name: &str| dir.path().join(name);
        for name in ["outside", "inside/cc/dd"] {
            std::fs::create_dir_all(at(name)).expect("mkdir");
        }
        for name in ["outside/KEY", "outside/victim", "source"] {
            std::fs::write(at(name), name).expect("write");
        }
        std::os::unix::fs::symlink(at("outside"), at("inside/cc/link")).expect("symlink");
        for name in ["inside/cc", "inside/cc/dd", "inside/cc/link"] {
            std::os::unix::fs::lchown(at(name), Some(65534), Some(65534)).expect("root's right");
        }
        let shown = dir.path().display();
        let is_over = AtomicBool::new(false);
        let mut answers = std::collections::BTreeMap::new();
        std::thread::scope(|scope| {
            let exchanging = scope.spawn(|| {
                let (mut count, flags) = (0, rustix::fs::RenameFlags::EXCHANGE);
                let (first, second) = (at("inside/cc/dd"), at("inside/cc/link"));
                while !is_over.load(Ordering::Relaxed) {
                    let cwd = rustix::fs::CWD;
                    let done = rustix::fs::renameat_with(cwd, &first, cwd, &second, flags);
                    count += u64::from(done.is_ok());
                }
                count
            });
            for _ in 0..TRIES {
                // Each request asks for the directories of its key.
                let said = said(&format!(
                    "PREPARE\nVALUE {shown}/inside\n\
                     TRANSFER STORE KEY {shown}/source\nVALUE cc/dd/\n\
                     TRANSFER STORE new {shown}/source\nVALUE cc/dd/\n\
                     CHECKPRESENT victim\nVALUE cc/dd/\n\
                     TRANSFER RETRIEVE KEY {shown}/got\nVALUE cc/dd/\n\
                     REMOVE KEY\nVALUE cc/dd/\nREMOVE victim\nVALUE cc/dd/\n\
                     EXPORT cc/dd/victim\nREMOVEEXPORT victim\nRENAMEEXPORT KEY cc/dd/taken\n"
                ));
                for line in said {
                    assert_ne!(line, "CHECKPRESENT-SUCCESS victim");
                    let word = line.split(' ').next().unwrap_or_default();
                    *answers.entry(word.to_owned()).or_insert(0) += 1;
                }
                if let Ok(got) = std::fs::read(at("got")) {
                    assert!(got.is_empty() || got == b"source", "{got:?}");
                }
            }
            is_over.store(true, Ordering::Relaxed);
            let exchanged = exchanging.join().expect("the thread");
            assert!(exchanged > 1000, "hardly an exchange: {exchanged}");
        });
        let mut left: Vec<_> = std::fs::read_dir(at("outside"))
            .expect("list")
            .map(|entry| entry.expect("entry").file_name())
            .collect();
        left.sort();
        assert_eq!(left, ["KEY", "victim"]);
        for name in ["outside/KEY", "outside/victim"] {
            assert_eq!(std::fs::read(at(name)).expect("read"), name.as_bytes());
        }
        // Both ways were taken.
        let count = |word: &str| answers.get(word).copied().unwrap_or(0);
        assert!(count("TRANSFER-SUCCESS") > 0, "{answers:?}");
        assert!(count("TRANSFER-FAILURE") > 0, "{answers:?}");
    }

    /// Would catch: data under half of a name, whose other half came as a line of its own.
    #[test]
    fn a_name_with_a_line_break_stores_nothing() {
        let dir = planted();
        let shown = dir.path().display();
        let said = said(&format!(
            "PREPARE\nVALUE {shown}/inside\nEXPORT new\nline\nTRANSFEREXPORT STORE KEY \
             {shown}/source\n"
        ));
        let last = said.last().expect("an answer");
        assert!(last.starts_with("TRANSFER-FAILURE STORE KEY"), "{said:?}");
        assert!(!dir.path().join("inside/new").exists());
    }

    /// A remote in a thread of its own, and git-annex's side of the conversation.
    fn talk(with: impl FnOnce(&mut dyn FnMut(&str), &mut dyn FnMut() -> String)) -> Result<()> {
        let (ours, theirs) = UnixStream::pair().expect("streams");
        let remote = std::thread::spawn(move || {
            let input = BufReader::new(theirs.try_clone().expect("stream"));
            serve(&mut Streams::new(input, theirs))
        });
        let mut heard = BufReader::new(ours.try_clone().expect("stream")).lines();
        let mut say = |line: &str| {
            (&ours)
                .write_all(format!("{line}\n").as_bytes())
                .expect("said")
        };
        let mut hear = || heard.next().expect("an answer").expect("a line");
        with(&mut say, &mut hear);
        ours.shutdown(Shutdown::Write).expect("closed");
        remote.join().expect("no panic")
    }

    #[test]
    fn a_job_is_answered_while_another_one_waits_and_each_has_its_own_file() {
        let dir = tempfile::tempdir().expect("directory");
        let inside = dir.path().join("inside");
        std::fs::create_dir(&inside).expect("mkdir");
        std::fs::write(inside.join("there"), "data").expect("write");
        let ended = talk(|say, hear| {
            assert_eq!(hear(), "VERSION 2");
            say("EXTENSIONS INFO ASYNC");
            assert_eq!(hear(), "EXTENSIONS ASYNC");
            say("J 1 PREPARE");
            assert_eq!(hear(), "J 1 GETCONFIG directory");
            say(&format!("J 1 VALUE {}", inside.display()));
            assert_eq!(hear(), "J 1 PREPARE-SUCCESS");
            say("J 1 CHECKPRESENT KEY");
            assert_eq!(hear(), "J 1 DIRHASH-LOWER KEY");
            say("J 2 EXPORT there");
            say("J 10 EXPORT elsewhere");
            say("J 10 CHECKPRESENTEXPORT TEN");
            assert_eq!(hear(), "J 10 CHECKPRESENT-FAILURE TEN");
            say("J 2 CHECKPRESENTEXPORT TWO");
            assert_eq!(hear(), "J 2 CHECKPRESENT-SUCCESS TWO");
            say("J 1 VALUE abc/def/");
            assert_eq!(hear(), "J 1 CHECKPRESENT-FAILURE KEY");
        });
        ended.expect("a good end");
    }

    const LINE_BREAK: &str = "the rest of a name with a line break: the protocol of special \
                              remotes cannot carry such a name; rename the file";

    #[test]
    fn an_error_of_a_job_or_of_git_annex_ends_all_jobs() {
        let ended = talk(|say, hear| {
            hear();
            say("EXTENSIONS ASYNC");
            hear();
            say("J 2 PREPARE");
            assert_eq!(hear(), "J 2 GETCONFIG directory");
            say("J 1 PREPARE");
            assert_eq!(hear(), "J 1 GETCONFIG directory");
            say("J 1 VALUE /nowhere/at/all");
            assert!(hear().starts_with("J 1 PREPARE-FAILURE directory=/nowhere/at/all"));
            say("J 1 ERROR gone");
            assert_eq!(hear(), "ERROR git-annex ended: gone");
        });
        let why = format!("{:#}", ended.expect_err("job 1 failed"));
        assert_eq!(why, "git-annex ended: gone");
        for (line, expected) in [
            ("ERROR too bad", "git-annex ended: too bad"),
            ("PREPARE", LINE_BREAK),
            ("with a line break", LINE_BREAK),
            ("J", LINE_BREAK),
        ] {
            let ended = talk(|say, hear| {
                hear();
                say("EXTENSIONS ASYNC");
                hear();
                say("J 1 PREPARE");
                hear();
                say(line);
            });
            let why = format!("{:#}", ended.expect_err("an end"));
            assert!(why.ends_with(expected), "{line}: {why}");
        }
    }

    #[test]
    fn an_older_git_annex_gets_no_jobs() {
        let said = said("EXTENSIONS INFO ASYNCHRONOUS\nGETCOST\n");
        assert_eq!(said, ["VERSION 2", "EXTENSIONS", "COST 100"]);
    }
}
