//! Lua scripts that choose, order and change the entries of an image.
//!
//! A script sees only its arguments: no files, processes, clock or other code. Memory, steps per
//! call and time are limited. The time limit is needed because functions of Lua's library can run
//! forever without taking a step. Lua therefore runs on its own thread (`script/interpreter.rs`),
//! and the builder stops waiting when the time is up or the build is interrupted. A thread that
//! still runs then is abandoned; it ends with the process.

mod candidate;
mod change;
mod interpreter;

pub use candidate::Candidate;
pub use change::Change;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use interpreter::{Answer, Entry, Interpreter, Request};
use std::fmt;
use std::io::Read;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use weald_format::{Error, Result, XattrSet};

/// Longest script, bytes.
const SCRIPT_LEN_MAX: u64 = 1 << 20;
/// Entries per message while entries are collected for ordering.
const ENTRIES_PER_MESSAGE: usize = 4096;
/// Interval between two checks for an interrupt.
const CANCEL_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Limits of a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScriptLimits {
    /// Memory, bytes.
    pub memory_len: u64,
    /// Time of all its calls together.
    pub time: Duration,
}

/// A loaded script.
pub struct Script {
    name: String,
    limits: ScriptLimits,
    filters: bool,
    orders: bool,
    changes: bool,
    channels: Mutex<Channels>,
}

/// Channels to the script's thread.
struct Channels {
    requests: Sender<Request>,
    answers: Receiver<Result<Answer>>,
    /// Time that all calls so far have taken.
    spent: Duration,
    /// Whether the script missed its time limit, or a call was interrupted: no further call is
    /// possible.
    is_abandoned: bool,
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Script")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Script {
    /// Loads the script in the file at `path`.
    ///
    /// # Errors
    /// `NotFound`, `Io`; `Limit` for files over 1 MiB; else as [`Script::new`].
    pub fn load(path: &Path, limits: &ScriptLimits) -> Result<Self> {
        let shown = path.display().to_string();
        let failed = |e| Error::io(shown.clone(), e);
        let file = std::fs::File::open(path).map_err(failed)?;
        // A device or pipe reports no length.
        let mut text = Vec::new();
        let read = file.take(SCRIPT_LEN_MAX + 1).read_to_end(&mut text);
        if read.map_err(failed)? as u64 > SCRIPT_LEN_MAX {
            return Err(Error::limit(format!(
                "{shown}: a script may have 1 MiB at most"
            )));
        }
        Self::new(&shown, &text, limits)
    }

    /// Compiles and runs the script `text`; messages call it `name`.
    ///
    /// # Errors
    /// `Invalid` with Lua's message if the script does not compile or run, or defines none of the
    /// functions that are called. `Limit` if it takes too long; `Io` if no thread can be started.
    pub fn new(name: &str, text: &[u8], limits: &ScriptLimits) -> Result<Self> {
        let (requests, asked) = crossbeam_channel::unbounded();
        let (answer, answers) = crossbeam_channel::unbounded();
        let (own_name, own_text, memory_len) = (name.to_owned(), text.to_vec(), limits.memory_len);
        let run = move || Interpreter::run(&own_name, &own_text, memory_len, &asked, &answer);
        let thread = std::thread::Builder::new().name("script".into());
        thread
            .spawn(run)
            .map_err(|e| Error::io(name.to_owned(), e))?;
        let mut script = Self {
            name: name.to_owned(),
            limits: *limits,
            filters: false,
            orders: false,
            changes: false,
            channels: Mutex::new(Channels {
                requests,
                answers,
                spent: Duration::ZERO,
                is_abandoned: false,
            }),
        };
        if let Answer::Loaded {
            filters,
            orders,
            changes,
        } = script.ask(Request::Load, &|| false)?
        {
            (script.filters, script.orders, script.changes) = (filters, orders, changes);
        }
        if script.filters || script.orders || script.changes {
            Ok(script)
        } else {
            Err(Error::invalid(format!(
                "{name}: expected a function 'filter', 'order', 'owner', 'mode', 'xattrs' or \
                 'codec', found none of them"
            )))
        }
    }

    /// Memory limit of the script, bytes.
    pub fn memory_len(&self) -> u64 {
        self.limits.memory_len
    }

    /// Whether it defines `filter`.
    pub fn filters(&self) -> bool {
        self.filters
    }

    /// Whether it defines `order`.
    pub fn orders(&self) -> bool {
        self.orders
    }

    /// Whether it defines a function that changes entries.
    pub fn changes(&self) -> bool {
        self.changes
    }

    /// Whether it is asked about single entries, by their paths.
    pub fn wants_entries(&self) -> bool {
        self.filters || self.changes
    }

    /// What the script changes about an entry with these extended attributes; those of an image
    /// that keeps none are not asked about.
    ///
    /// # Errors
    /// As [`Script::keeps`].
    pub fn change(
        &self,
        candidate: &Candidate<'_>,
        xattrs: Option<&XattrSet>,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<Change> {
        if !self.changes {
            return Ok(Change::default());
        }
        let request = Request::Change(Entry::of(candidate), xattrs.cloned());
        match self.ask(request, is_cancelled)? {
            Answer::Changed(change) => Ok(change),
            _ => Ok(Change::default()),
        }
    }

    /// Sends a request to the script's thread and waits for the answer, the time limit or
    /// `is_cancelled`.
    fn ask(&self, request: Request, is_cancelled: &dyn Fn() -> bool) -> Result<Answer> {
        let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        if channels.is_abandoned {
            return Err(Error::invalid("interrupted"));
        }
        let start = Instant::now();
        let is_sent = channels.requests.send(request).is_ok();
        loop {
            let remaining =
                (self.limits.time.saturating_sub(channels.spent)).saturating_sub(start.elapsed());
            let answer = channels
                .answers
                .recv_timeout(remaining.min(CANCEL_CHECK_INTERVAL));
            let error = match answer {
                Ok(answer) => {
                    channels.spent += start.elapsed();
                    return answer;
                }
                Err(RecvTimeoutError::Disconnected) if is_sent => self.ended(),
                Err(RecvTimeoutError::Disconnected) => Error::invalid("interrupted"),
                Err(RecvTimeoutError::Timeout) if is_cancelled() => Error::invalid("interrupted"),
                Err(RecvTimeoutError::Timeout) if remaining.is_zero() => self.too_slow(),
                Err(RecvTimeoutError::Timeout) => continue,
            };
            channels.is_abandoned = true;
            return Err(error);
        }
    }

    fn ended(&self) -> Error {
        Error::invalid(format!("{}: the script's thread ended", self.name))
    }

    fn too_slow(&self) -> Error {
        Error::limit(format!(
            "{}: the script has run for {} s, which is the limit; expected a faster script, or a \
             longer --script-timeout",
            self.name,
            self.limits.time.as_secs()
        ))
    }

    /// Whether the entry goes into the image: the result of `filter`, or true if there is none.
    ///
    /// # Errors
    /// `Invalid` if the script fails or returns neither true nor false, and "interrupted" if
    /// `is_cancelled` returns true while it runs; `Limit` if its time is used up.
    pub fn keeps(
        &self,
        candidate: &Candidate<'_>,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<bool> {
        if !self.filters {
            return Ok(true);
        }
        let answer = self.ask(Request::Filter(Entry::of(candidate)), is_cancelled)?;
        Ok(matches!(answer, Answer::Kept(true)))
    }

    /// Calls `order` for `candidates` and returns their order as indices: the array that it
    /// returns, or its argument if it returns nothing. `None` if the script has no `order`.
    ///
    /// # Errors
    /// As [`Script::keeps`]; `Invalid` also if the script loses or duplicates an entry.
    pub fn order(
        &self,
        candidates: &mut dyn Iterator<Item = Candidate<'_>>,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<Option<Vec<usize>>> {
        if !self.orders {
            return Ok(None);
        }
        let mut count = 0;
        loop {
            let some = Iterator::take(&mut *candidates, ENTRIES_PER_MESSAGE);
            let some: Vec<Entry> = some.map(|c| Entry::of(&c)).collect();
            if some.is_empty() {
                break;
            }
            count += some.len();
            self.ask(Request::Add(some), is_cancelled)?;
        }
        let Answer::Ordered(indices) = self.ask(Request::Order, is_cancelled)? else {
            return Ok(None);
        };
        let mut is_seen = vec![false; count];
        for &index in &indices {
            match is_seen.get_mut(index) {
                Some(seen) if !*seen => *seen = true,
                _ => {
                    let what = format!("{}: order: an entry came back twice", self.name);
                    return Err(Error::invalid(what));
                }
            }
        }
        if indices.len() == count {
            Ok(Some(indices))
        } else {
            Err(Error::invalid(format!(
                "{}: order: expected {count} entries back, found {}",
                self.name,
                indices.len()
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weald_format::{FileKind, Timestamp};

    const LIMITS: ScriptLimits = ScriptLimits {
        memory_len: 16 << 20,
        time: Duration::from_secs(300),
    };

    fn candidate(path: &[u8], size: u64) -> Candidate<'_> {
        Candidate {
            path,
            kind: FileKind::Regular,
            size,
            permissions: 0o644,
            uid: 1,
            gid: 2,
            mtime: Timestamp {
                seconds: 9,
                nanoseconds: 0,
            },
        }
    }

    fn script(text: &str) -> Script {
        Script::new("test.lua", text.as_bytes(), &LIMITS).unwrap()
    }

    fn error(text: &str) -> String {
        let loaded = Script::new("test.lua", text.as_bytes(), &LIMITS);
        let asked = loaded.and_then(|s| {
            s.keeps(&candidate(b"a/b", 3), &|| false)?;
            s.order(
                &mut [candidate(b"a", 1), candidate(b"b", 2)].into_iter(),
                &|| false,
            )
        });
        asked.unwrap_err().to_string()
    }

    #[test]
    fn a_script_sees_all_facts_about_an_entry() {
        let text = "function filter(e)
            return e.path == 'd/\\255' and e.name == '\\255' and e.type == 'file' and e.size == 7 \
             and e.mode == 420
                and e.uid == 1 and e.gid == 2 and e.mtime == 9
        end";
        assert!(
            script(text)
                .keeps(&candidate(b"d/\xff", 7), &|| false)
                .unwrap()
        );
        assert!(
            !script(text)
                .keeps(&candidate(b"d/\xff", 8), &|| false)
                .unwrap()
        );
    }

    /// Would catch: an answer that is dropped or taken for another, one of the wrong kind that is
    /// accepted, extended attributes that a script does not see.
    #[test]
    fn a_script_changes_entries() {
        let set = vec![weald_format::Xattr {
            name: b"user.a".to_vec(),
            value: b"\0".to_vec(),
        }];
        let change = |text: &str| {
            let asked = script(text).change(&candidate(b"a/b", 7), Some(&set), &|| false);
            asked.map_err(|e| e.to_string())
        };
        let all = "function owner(e) return e.uid + 1, e.gid + 1 end
            function mode(e) return e.mode & 384 end
            function xattrs(e)
              e.xattrs['user.b'] = e.name e.xattrs['user.a'] = nil
              return e.xattrs
            end
            function codec(e) if e.size == 7 then return 'none' end end";
        let changed = change(all).unwrap();
        assert_eq!((changed.uid, changed.gid), (Some(2), Some(3)));
        assert_eq!((changed.permissions, changed.is_plain), (Some(0o600), true));
        let xattrs = changed.xattrs.unwrap();
        assert_eq!(
            (&*xattrs[0].name, &*xattrs[0].value),
            (&b"user.b"[..], &b"b"[..])
        );
        let nothing = "function owner() end function mode() end function xattrs() end
            function codec() end";
        assert_eq!(change(nothing), Ok(Change::default()));
        for (text, words) in [
            (
                "function owner() return -1 end",
                "owner: expected a whole number from 0 to 4294967295",
            ),
            (
                "function owner() return 1, 'x' end",
                "for a/b, found string",
            ),
            ("function owner() return 1 << 32 end", "owner: expected"),
            (
                "function mode() return 4096 end",
                "mode: expected a whole number from 0 to 4095",
            ),
            ("function mode() return 1.5 end", "mode: expected"),
            ("function mode() return true end", "found boolean"),
            (
                "function xattrs() return 'x' end",
                "xattrs: expected a table of names and values",
            ),
            (
                "function xattrs() return {'x'} end",
                "xattrs: expected a table",
            ),
            ("function xattrs() return {x = 1} end", "found integer"),
            ("function xattrs() return {[''] = ''} end", "xattrs: "),
            (
                "function codec() return 'zstd' end",
                "codec: expected \"none\" or nothing",
            ),
            ("function mode() while true do end end", "too many steps"),
            ("owner = 3", "owner"),
        ] {
            let found = match Script::new("test.lua", text.as_bytes(), &LIMITS) {
                Ok(_) => change(text).unwrap_err(),
                Err(error) => error.to_string(),
            };
            assert!(
                found.contains(words) && found.contains("test.lua"),
                "{text}: {found}"
            );
        }
    }

    #[test]
    fn order_sorts_in_place_or_returns_another_array() {
        let entries = || [candidate(b"c", 1), candidate(b"a", 3), candidate(b"b", 2)];
        let by_path =
            "function order(es) table.sort(es, function(a, b) return a.path < b.path end) end";
        let order = |text| {
            script(text)
                .order(&mut entries().into_iter(), &|| false)
                .unwrap()
        };
        assert_eq!(order(by_path), Some(vec![1, 2, 0]));
        let reversed = "function order(es) local r = {} for i = #es, 1, -1 do r[#r + 1] = es[i] \
         end return r end";
        assert_eq!(order(reversed), Some(vec![2, 1, 0]));
        assert_eq!(order("function filter() return true end"), None);
    }

    #[test]
    fn mistakes_in_scripts_give_clear_messages() {
        for (text, words) in [
            ("x = 1", "'filter', 'order', 'owner'"),
            ("function filter(", "test.lua:1"),
            (
                "function filter(e) return e.size end",
                "expected true or false for a/b, found",
            ),
            ("function filter(e) return e.nothing.more end", "test.lua:1"),
            (
                "function order(es) es[2] = nil end",
                "expected 2 entries back, found 1",
            ),
            ("function order(es) es[2] = es[1] end", "came back twice"),
            ("function order(es) es[1].index = 7 end", "came back twice"),
            ("\x1bLua", "test.lua"),
        ] {
            let found = error(text);
            assert!(found.contains(words), "{text}: {found}");
        }
    }

    #[test]
    fn a_script_reaches_nothing_outside() {
        for word in [
            "io",
            "os",
            "debug",
            "package",
            "require",
            "load",
            "loadfile",
            "dofile",
            "coroutine",
            "print",
            "warn",
            "collectgarbage",
            "math.random",
            "pcall",
            "xpcall",
            "string.dump and nil",
        ] {
            let text = format!("function filter() return ({word}) == nil end");
            assert!(
                script(&text).keeps(&candidate(b"a", 1), &|| false).unwrap(),
                "{word}"
            );
        }
    }

    #[test]
    fn steps_and_memory_have_limits() {
        assert!(error("function filter() while true do end end").contains("too many steps"));
        assert!(error("while true do end").contains("too many steps"));
        assert!(
            error("function filter() local s = 'x' while true do s = s .. s end end")
                .contains("memory")
        );
    }

    /// Bodies of `filter` that run forever without taking a step of Lua's interpreter.
    const ENDLESS: [&str; 4] = [
        // The pattern matcher tries every way to split the string.
        "return (('a'):rep(40)):find(('a-'):rep(40) .. 'b') == nil",
        "return (''):rep(1 << 60) == ''",
        "return table.move({}, 1, 1 << 60, 2) == nil",
        "local m = getmetatable('') m.__len, m.__index = string.len, string.sub
         return table.concat('', '', 1, 1 << 60) == ''",
    ];

    /// Would catch: a limit that counts only the interpreter's steps.
    #[test]
    fn calls_without_steps_end_when_the_time_is_up() {
        let limits = ScriptLimits {
            time: Duration::from_secs(1),
            ..LIMITS
        };
        for body in ENDLESS {
            let text = format!("function filter() {body} end");
            let script = Script::new("test.lua", text.as_bytes(), &limits).unwrap();
            let asked = script.keeps(&candidate(b"a", 1), &|| false);
            let error = asked.unwrap_err();
            assert_eq!(error.kind(), weald_format::ErrorKind::Limit, "{body}");
            assert!(error.to_string().contains("--script-timeout"), "{error}");
            // Further calls fail at once.
            assert!(script.keeps(&candidate(b"b", 1), &|| false).is_err());
            let loaded = Script::new(
                "test.lua",
                format!("local _ = (function() {body} end)()").as_bytes(),
                &limits,
            );
            assert!(loaded.unwrap_err().to_string().contains("--script-timeout"));
        }
    }

    /// Would catch: a build that ignores SIGINT while a script runs.
    #[test]
    fn an_interruption_ends_the_wait() {
        let text = format!("function filter() {} end", ENDLESS[0]);
        let asked = script(&text).keeps(&candidate(b"a", 1), &|| true);
        assert_eq!(asked.unwrap_err().to_string(), "interrupted");
    }

    /// Would catch: code that garbage collection runs after the limited call has ended.
    #[test]
    fn finalizers_are_refused() {
        for text in [
            "setmetatable({}, { __gc = function() while true do end end })",
            "setmetatable({}, { __gc = true })",
        ] {
            let found = error(text);
            assert!(
                found.contains("test.lua:1") && found.contains("__gc"),
                "{found}"
            );
        }
        // Lua ignores a `__gc` that is set later, as its manual says.
        let later =
            "local m = {} local t = setmetatable({}, m) m.__gc = function() while true do end end
            function filter() t = nil for i = 1, 1e5 do local x = {} end return true end";
        assert!(script(later).keeps(&candidate(b"a", 1), &|| false).unwrap());
        let others = "local t = setmetatable({}, { __index = { x = 1 } })
            function filter() return t.x == 1 and getmetatable(t).__index.x == 1 end";
        assert!(
            script(others)
                .keeps(&candidate(b"a", 1), &|| false)
                .unwrap()
        );
    }

    /// Would catch: a device that is read until memory is exhausted.
    #[test]
    fn a_script_file_is_read_only_up_to_its_limit() {
        let error = Script::load("/dev/zero".as_ref(), &LIMITS).unwrap_err();
        assert!(error.to_string().contains("1 MiB at most"), "{error}");
    }
}
