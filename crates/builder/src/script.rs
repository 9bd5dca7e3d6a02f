//! Scripts in Lua that say what goes into an image and in which order.
//!
//! A script sees what it is given and nothing else: no files, no processes, no clock, no other
//! code. It has a limit of memory and, for every call, of steps; what it does wrong ends the build
//! with its own words.

use mlua::{Function, HookTriggers, Lua, LuaOptions, StdLib, Table, VmState};
use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weald_format::{Attributes, Error, FileKind, Result, Timestamp};

/// Steps of Lua's machine that a call may take: a second or so.
const CALL_STEPS_MAX: u64 = 100_000_000;
/// And more of them for each entry that is to be put in order.
const ENTRY_STEPS_MAX: u64 = 100_000;
/// Steps between two looks at the limit.
const STEPS_AT_ONCE: u32 = 10_000;
/// Bytes of a script.
const SCRIPT_LEN_MAX: u64 = 1 << 20;
/// What is taken from the base library: it would load other code, tell what differs from run to
/// run, or catch the error that ends a call without end.
const FORBIDDEN: [&str; 8] = [
    "dofile",
    "load",
    "loadfile",
    "require",
    "collectgarbage",
    "print",
    "pcall",
    "xpcall",
];

/// An entry as a script sees it.
#[derive(Debug, Clone, Copy)]
pub struct Candidate<'a> {
    /// Path from the root of the source.
    pub path: &'a [u8],
    /// What it is.
    pub kind: FileKind,
    /// Bytes of a regular file or a symlink's target.
    pub size: u64,
    /// The low 12 bits of its mode.
    pub permissions: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last change of content.
    pub mtime: Timestamp,
}

impl<'a> Candidate<'a> {
    /// The entry at `path`; `size` counts for regular files and symlinks alone.
    pub fn new(
        path: &'a [u8],
        kind: FileKind,
        size: u64,
        attributes: &Attributes,
        mtime: Timestamp,
    ) -> Self {
        let has_size = matches!(kind, FileKind::Regular | FileKind::Symlink);
        Self {
            path,
            kind,
            size: if has_size { size } else { 0 },
            permissions: attributes.permissions,
            uid: attributes.uid,
            gid: attributes.gid,
            mtime,
        }
    }
}

/// A script that was loaded.
pub struct Script {
    name: String,
    memory_len: u64,
    lua: Mutex<Lua>,
    filter: Option<Function>,
    order: Option<Function>,
    /// Steps that the call under way has left.
    steps: Arc<AtomicU64>,
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Script")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

fn kind_word(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Regular => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symlink",
        FileKind::CharDevice => "character device",
        FileKind::BlockDevice => "block device",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
    }
}

impl Script {
    /// Loads the script in the file at `path`, which may take `memory_len` bytes of memory.
    ///
    /// # Errors
    /// `NotFound`, `Io`; `Limit` for files over 1 MiB; `Invalid` as [`Script::new`].
    pub fn load(path: &Path, memory_len: u64) -> Result<Self> {
        let shown = path.display().to_string();
        let failed = |e| Error::io(shown.clone(), e);
        if std::fs::metadata(path).map_err(failed)?.len() > SCRIPT_LEN_MAX {
            return Err(Error::limit(format!(
                "{shown}: a script may have 1 MiB at most"
            )));
        }
        let text = std::fs::read(path).map_err(failed)?;
        Self::new(&shown, &text, memory_len)
    }

    /// A script of this text, called `name` in messages.
    ///
    /// # Errors
    /// `Invalid` with Lua's words where it does not compile or run; where it defines neither
    /// `filter` nor `order`.
    pub fn new(name: &str, text: &[u8], memory_len: u64) -> Result<Self> {
        let steps = Arc::new(AtomicU64::new(CALL_STEPS_MAX));
        let made = Self::start(name, text, memory_len, &steps);
        let (lua, filter, order) = made.map_err(|e| failed(name, &e))?;
        if filter.is_none() && order.is_none() {
            let what = format!("{name}: expected a function 'filter' or 'order', found neither");
            return Err(Error::invalid(what));
        }
        Ok(Self {
            name: name.to_owned(),
            memory_len,
            lua: Mutex::new(lua),
            filter,
            order,
            steps,
        })
    }

    fn start(
        name: &str,
        text: &[u8],
        memory_len: u64,
        steps: &Arc<AtomicU64>,
    ) -> mlua::Result<(Lua, Option<Function>, Option<Function>)> {
        let libraries = StdLib::STRING | StdLib::TABLE | StdLib::MATH | StdLib::UTF8;
        let lua = Lua::new_with(libraries, LuaOptions::default())?;
        let globals = lua.globals();
        for word in FORBIDDEN {
            globals.raw_remove(word)?;
        }
        let math: Table = globals.get("math")?;
        for word in ["random", "randomseed"] {
            math.raw_remove(word)?;
        }
        lua.set_memory_limit(usize::try_from(memory_len).unwrap_or(usize::MAX))?;
        let left = steps.clone();
        let every = HookTriggers::new().every_nth_instruction(STEPS_AT_ONCE);
        lua.set_hook(every, move |_, _| {
            let before = left.load(Ordering::Relaxed);
            left.store(
                before.saturating_sub(STEPS_AT_ONCE.into()),
                Ordering::Relaxed,
            );
            match before {
                0 => Err(mlua::Error::runtime("it takes too many steps")),
                _ => Ok(VmState::Continue),
            }
        })?;
        // Text only: compiled code is not checked by Lua.
        let chunk = lua.load(text).set_name(format!("@{name}"));
        chunk.set_mode(mlua::chunk::ChunkMode::Text).exec()?;
        let (filter, order) = (globals.get("filter")?, globals.get("order")?);
        Ok((lua, filter, order))
    }

    /// Bytes of memory that it may take.
    pub fn memory_len(&self) -> u64 {
        self.memory_len
    }

    /// Whether it wants to be asked about entries.
    pub fn filters(&self) -> bool {
        self.filter.is_some()
    }

    /// Whether it puts contents in order.
    pub fn orders(&self) -> bool {
        self.order.is_some()
    }

    fn locked(&self) -> MutexGuard<'_, Lua> {
        self.lua.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the entry goes into the image: what `filter` says, or true without it.
    ///
    /// # Errors
    /// `Invalid` where the script fails or answers neither true nor false.
    pub fn keeps(&self, candidate: &Candidate<'_>) -> Result<bool> {
        let Some(filter) = &self.filter else {
            return Ok(true);
        };
        let lua = self.locked();
        self.steps.store(CALL_STEPS_MAX, Ordering::Relaxed);
        let answer = table(&lua, candidate).and_then(|entry| filter.call::<mlua::Value>(entry));
        match answer.map_err(|e| failed(&self.name, &e))? {
            mlua::Value::Boolean(keeps) => Ok(keeps),
            other => Err(Error::invalid(format!(
                "{}: filter: expected true or false for {}, found {}",
                self.name,
                candidate.path.escape_ascii(),
                other.type_name()
            ))),
        }
    }

    /// The order that `order` puts `candidates` in, as indices: the array that it returns, or the
    /// one it was given where it returns nothing.
    ///
    /// # Errors
    /// `Invalid` where the script fails, or loses or doubles an entry.
    pub fn order(
        &self,
        candidates: &mut dyn Iterator<Item = Candidate<'_>>,
    ) -> Result<Option<Vec<usize>>> {
        let Some(order) = &self.order else {
            return Ok(None);
        };
        let lua = self.locked();
        let sorted = self.call_order(&lua, order, candidates);
        let (count, indices) = sorted.map_err(|e| failed(&self.name, &e))?;
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
        match indices.len() == count {
            true => Ok(Some(indices)),
            false => Err(Error::invalid(format!(
                "{}: order: expected {count} entries back, found {}",
                self.name,
                indices.len()
            ))),
        }
    }

    fn call_order(
        &self,
        lua: &Lua,
        order: &Function,
        candidates: &mut dyn Iterator<Item = Candidate<'_>>,
    ) -> mlua::Result<(usize, Vec<usize>)> {
        let entries = lua.create_table()?;
        let mut count = 0usize;
        for candidate in candidates {
            let entry = table(lua, &candidate)?;
            entry.raw_set("index", count)?;
            entries.raw_push(entry)?;
            count += 1;
        }
        let steps = ENTRY_STEPS_MAX.saturating_mul(count as u64);
        let steps = CALL_STEPS_MAX.saturating_add(steps);
        self.steps.store(steps, Ordering::Relaxed);
        let returned: Option<Table> = order.call(entries.clone())?;
        let sorted = returned.unwrap_or(entries);
        let mut indices = Vec::with_capacity(count);
        for entry in sorted.sequence_values::<Table>() {
            indices.push(entry?.raw_get("index")?);
        }
        Ok((count, indices))
    }
}

fn table(lua: &Lua, candidate: &Candidate<'_>) -> mlua::Result<Table> {
    let path = candidate.path;
    let name = path.rsplit(|&b| b == b'/').next().unwrap_or(path);
    let entry = lua.create_table_with_capacity(0, 9)?;
    entry.raw_set("path", lua.create_string(path)?)?;
    entry.raw_set("name", lua.create_string(name)?)?;
    entry.raw_set("type", kind_word(candidate.kind))?;
    entry.raw_set("size", candidate.size)?;
    entry.raw_set("mode", candidate.permissions)?;
    entry.raw_set("uid", candidate.uid)?;
    entry.raw_set("gid", candidate.gid)?;
    entry.raw_set("mtime", candidate.mtime.seconds)?;
    Ok(entry)
}

fn failed(name: &str, error: &mlua::Error) -> Error {
    let words = error.to_string();
    let words = words.split("\nstack traceback:").next().unwrap_or(&words);
    // Lua begins with the name already, where it knows the line.
    match words.contains(name) {
        true => Error::invalid(words.to_owned()),
        false => Error::invalid(format!("{name}: {words}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY_LEN: u64 = 16 << 20;

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
        Script::new("test.lua", text.as_bytes(), MEMORY_LEN).unwrap()
    }

    fn error(text: &str) -> String {
        let loaded = Script::new("test.lua", text.as_bytes(), MEMORY_LEN);
        let asked = loaded.and_then(|s| {
            s.keeps(&candidate(b"a/b", 3))?;
            s.order(&mut [candidate(b"a", 1), candidate(b"b", 2)].into_iter())
        });
        asked.unwrap_err().to_string()
    }

    #[test]
    fn everything_about_an_entry_is_seen() {
        let text = "function filter(e)
            return e.path == 'd/\\255' and e.name == '\\255' and e.type == 'file' and e.size == 7 and e.mode == 420
                and e.uid == 1 and e.gid == 2 and e.mtime == 9
        end";
        assert!(script(text).keeps(&candidate(b"d/\xff", 7)).unwrap());
        assert!(!script(text).keeps(&candidate(b"d/\xff", 8)).unwrap());
    }

    #[test]
    fn order_sorts_in_place_or_returns_another_array() {
        let entries = || [candidate(b"c", 1), candidate(b"a", 3), candidate(b"b", 2)];
        let by_path =
            "function order(es) table.sort(es, function(a, b) return a.path < b.path end) end";
        let order = |text| script(text).order(&mut entries().into_iter()).unwrap();
        assert_eq!(order(by_path), Some(vec![1, 2, 0]));
        let reversed = "function order(es) local r = {} for i = #es, 1, -1 do r[#r + 1] = es[i] end return r end";
        assert_eq!(order(reversed), Some(vec![2, 1, 0]));
        assert_eq!(order("function filter() return true end"), None);
    }

    #[test]
    fn mistakes_are_told_in_words() {
        for (text, words) in [
            ("x = 1", "'filter' or 'order'"),
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
    fn nothing_outside_can_be_reached() {
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
            "collectgarbage",
            "math.random",
            "pcall",
            "xpcall",
            "string.dump and nil",
        ] {
            let text = format!("function filter() return ({word}) == nil end");
            assert!(script(&text).keeps(&candidate(b"a", 1)).unwrap(), "{word}");
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
}
