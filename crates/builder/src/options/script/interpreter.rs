//! The thread that runs Lua: it receives requests and answers each in turn.

use super::candidate::Candidate;
use super::change::{Change, Changers};
use crossbeam_channel::{Receiver, Sender};
use mlua::{Function, HookTriggers, Lua, LuaOptions, StdLib, Table, VmState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use weald_format::{Error, FileKind, Result, XattrSet};

/// Steps of the Lua interpreter that a call may take: about a second.
const CALL_STEPS_MAX: u64 = 100_000_000;
/// Additional steps for each entry that `order` sorts.
const ENTRY_STEPS_MAX: u64 = 100_000;
/// Steps between two checks of the limit.
const STEPS_PER_CHECK: u32 = 10_000;
/// Functions removed from the base library: they load other code, reveal state that differs between
/// runs, write to the terminal, or catch the error that ends an endless call.
const FORBIDDEN: [&str; 9] = [
    "dofile",
    "load",
    "loadfile",
    "require",
    "collectgarbage",
    "print",
    "warn",
    "pcall",
    "xpcall",
];
/// Garbage collection would run a finalizer outside of the limited calls. Lua ignores a `__gc` that
/// is added to a metatable later (Lua 5.4 Reference Manual, 2.5.3).
const WITHOUT_FINALIZERS: &str = "
local set, raw, is_a, fail = setmetatable, rawget, type, error
function setmetatable(object, metatable)
  if is_a(metatable) == 'table' and raw(metatable, '__gc') ~= nil then
    fail('setmetatable: a script may have no finalizers (__gc)', 2)
  end
  return set(object, metatable)
end";

/// An entry sent to the script's thread.
pub struct Entry {
    path: Vec<u8>,
    kind: FileKind,
    size: u64,
    permissions: u16,
    uid: u32,
    gid: u32,
    mtime_seconds: i64,
}

impl Entry {
    /// Copies the facts about `candidate` that the script gets.
    pub fn of(candidate: &Candidate<'_>) -> Self {
        Self {
            path: candidate.path.to_vec(),
            kind: candidate.kind,
            size: candidate.size,
            permissions: candidate.permissions,
            uid: candidate.uid,
            gid: candidate.gid,
            mtime_seconds: candidate.mtime.seconds,
        }
    }
}

/// A request to the script's thread.
pub enum Request {
    /// Load the script: the first request.
    Load,
    /// Decide about an entry.
    Filter(Entry),
    /// Change an entry with these extended attributes, if the image keeps them.
    Change(Entry, Option<XattrSet>),
    /// Collect entries for ordering.
    Add(Vec<Entry>),
    /// Order the collected entries.
    Order,
}

/// Answer to a request.
pub enum Answer {
    /// The functions that the script defines.
    Loaded {
        filters: bool,
        orders: bool,
        changes: bool,
    },
    /// What is changed about an entry.
    Changed(Change),
    /// Whether the entry is kept.
    Kept(bool),
    /// The entries were collected.
    Added,
    /// The indices of the entries in their order.
    Ordered(Vec<usize>),
}

/// Lua interpreter with a loaded script.
pub struct Interpreter {
    name: String,
    lua: Lua,
    filter: Option<Function>,
    order: Option<Function>,
    changers: Changers,
    /// Entries collected for ordering, and their number.
    entries: Option<Table>,
    count: usize,
    /// Steps left for the current call.
    steps: Arc<AtomicU64>,
}

impl Interpreter {
    /// Loads the script at the first request, then answers requests until the channel closes.
    pub fn run(
        name: &str,
        text: &[u8],
        memory_len: u64,
        requests: &Receiver<Request>,
        answers: &Sender<Result<Answer>>,
    ) {
        let Ok(Request::Load) = requests.recv() else {
            return;
        };
        let mut interpreter = match Self::load(name, text, memory_len) {
            Ok(interpreter) => interpreter,
            Err(error) => return drop(answers.send(Err(failed(name, &error)))),
        };
        let loaded = Answer::Loaded {
            filters: interpreter.filter.is_some(),
            orders: interpreter.order.is_some(),
            changes: interpreter.changers.are_any(),
        };
        let mut answer = Ok(loaded);
        while answers.send(answer).is_ok() {
            let Ok(request) = requests.recv() else { return };
            answer = interpreter.answer(request);
        }
    }

    fn load(name: &str, text: &[u8], memory_len: u64) -> mlua::Result<Self> {
        let libraries = StdLib::STRING | StdLib::TABLE | StdLib::MATH | StdLib::UTF8;
        let lua = Lua::new_with(libraries, LuaOptions::default())?;
        let steps = Arc::new(AtomicU64::new(CALL_STEPS_MAX));
        restrict(&lua, memory_len, &steps)?;
        // Text only: Lua does not verify compiled code.
        let chunk = lua.load(text).set_name(format!("@{name}"));
        chunk.set_mode(mlua::chunk::ChunkMode::Text).exec()?;
        let globals = lua.globals();
        let (filter, order) = (globals.get("filter")?, globals.get("order")?);
        let changers = Changers::of(&globals)?;
        Ok(Self {
            name: name.to_owned(),
            lua,
            filter,
            order,
            changers,
            entries: None,
            count: 0,
            steps,
        })
    }

    fn answer(&mut self, request: Request) -> Result<Answer> {
        match request {
            Request::Load => Ok(Answer::Added),
            Request::Filter(entry) => self.filter(&entry),
            Request::Change(entry, xattrs) => {
                let changed = self.change(&entry, xattrs.as_ref()).map(Answer::Changed);
                changed.map_err(|e| failed(&self.name, &e))
            }
            Request::Add(entries) => {
                let added = self.add(&entries).map(|()| Answer::Added);
                added.map_err(|e| failed(&self.name, &e))
            }
            Request::Order => {
                let ordered = self.order().map(Answer::Ordered);
                ordered.map_err(|e| failed(&self.name, &e))
            }
        }
    }

    fn filter(&self, entry: &Entry) -> Result<Answer> {
        let Some(filter) = &self.filter else {
            return Ok(Answer::Kept(true));
        };
        self.steps.store(CALL_STEPS_MAX, Ordering::Relaxed);
        let answer = self
            .table(entry)
            .and_then(|t| filter.call::<mlua::Value>(t));
        match answer.map_err(|e| failed(&self.name, &e))? {
            mlua::Value::Boolean(keeps) => Ok(Answer::Kept(keeps)),
            other => Err(Error::invalid(format!(
                "{}: filter: expected true or false for {}, found {}",
                self.name,
                entry.path.escape_ascii(),
                other.type_name()
            ))),
        }
    }

    fn change(&self, entry: &Entry, xattrs: Option<&XattrSet>) -> mlua::Result<Change> {
        self.steps.store(CALL_STEPS_MAX, Ordering::Relaxed);
        let (table, of) = (self.table(entry)?, (&*entry.path, entry.kind));
        self.changers.ask(&self.lua, &table, of, xattrs)
    }

    fn add(&mut self, added: &[Entry]) -> mlua::Result<()> {
        let entries = match self.entries.take() {
            Some(entries) => entries,
            None => self.lua.create_table()?,
        };
        for entry in added {
            let table = self.table(entry)?;
            table.raw_set("index", self.count)?;
            entries.raw_push(table)?;
            self.count += 1;
        }
        self.entries = Some(entries);
        Ok(())
    }

    fn order(&mut self) -> mlua::Result<Vec<usize>> {
        let entries = match self.entries.take() {
            Some(entries) => entries,
            None => self.lua.create_table()?,
        };
        let count = std::mem::take(&mut self.count);
        let Some(order) = &self.order else {
            return Ok((0..count).collect());
        };
        let steps = ENTRY_STEPS_MAX.saturating_mul(count as u64);
        let steps = CALL_STEPS_MAX.saturating_add(steps);
        self.steps.store(steps, Ordering::Relaxed);
        let returned: Option<Table> = order.call(entries.clone())?;
        let sorted = returned.unwrap_or(entries);
        let mut indices = Vec::with_capacity(count);
        for entry in sorted.sequence_values::<Table>() {
            indices.push(entry?.raw_get("index")?);
        }
        Ok(indices)
    }

    fn table(&self, entry: &Entry) -> mlua::Result<Table> {
        let path = &*entry.path;
        let name = path.rsplit(|&b| b == b'/').next().unwrap_or(path);
        let table = self.lua.create_table_with_capacity(0, 9)?;
        table.raw_set("path", self.lua.create_string(path)?)?;
        table.raw_set("name", self.lua.create_string(name)?)?;
        table.raw_set("type", kind_word(entry.kind))?;
        table.raw_set("size", entry.size)?;
        table.raw_set("mode", entry.permissions)?;
        table.raw_set("uid", entry.uid)?;
        table.raw_set("gid", entry.gid)?;
        table.raw_set("mtime", entry.mtime_seconds)?;
        Ok(table)
    }
}

/// Removes forbidden functions from `lua` and sets its limits.
fn restrict(lua: &Lua, memory_len: u64, steps: &Arc<AtomicU64>) -> mlua::Result<()> {
    lua.load(WITHOUT_FINALIZERS)
        .set_name("=setmetatable")
        .exec()?;
    let globals = lua.globals();
    for word in FORBIDDEN {
        globals.raw_remove(word)?;
    }
    let math: Table = globals.get("math")?;
    for word in ["random", "randomseed"] {
        math.raw_remove(word)?;
    }
    lua.set_memory_limit(usize::try_from(memory_len).unwrap_or(usize::MAX))?;
    let remaining_steps = steps.clone();
    let every = HookTriggers::new().every_nth_instruction(STEPS_PER_CHECK);
    lua.set_hook(every, move |_, _| {
        let before = remaining_steps.load(Ordering::Relaxed);
        remaining_steps.store(
            before.saturating_sub(STEPS_PER_CHECK.into()),
            Ordering::Relaxed,
        );
        match before {
            0 => Err(mlua::Error::runtime("the call takes too many steps")),
            _ => Ok(VmState::Continue),
        }
    })
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

fn failed(name: &str, error: &mlua::Error) -> Error {
    let words = error.to_string();
    let words = words.split("\nstack traceback:").next().unwrap_or(&words);
    // Lua's message begins with the name if the line is known.
    if words.contains(name) {
        Error::invalid(words.to_owned())
    } else {
        Error::invalid(format!("{name}: {words}"))
    }
}
