//! What a script changes about an entry: its functions `owner`, `mode`, `xattrs` and `codec`.

use mlua::{Function, Lua, MultiValue, Table, Value};
use weald_format::pages::check_xattrs;
use weald_format::{FileKind, Xattr, XattrSet};

/// What a script says about an entry; `None` where it says nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Change {
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Permissions.
    pub permissions: Option<u16>,
    /// All extended attributes.
    pub xattrs: Option<XattrSet>,
    /// The contents are not compressed.
    pub is_plain: bool,
}

/// The functions of a script that change entries.
pub struct Changers {
    owner: Option<Function>,
    mode: Option<Function>,
    xattrs: Option<Function>,
    codec: Option<Function>,
}

impl Changers {
    /// Those among the globals of a script.
    ///
    /// # Errors
    /// If one of the names is no function.
    pub fn of(globals: &Table) -> mlua::Result<Self> {
        let get = |word: &str| match globals.get(word)? {
            Value::Nil => Ok(None),
            Value::Function(function) => Ok(Some(function)),
            other => Err(mlua::Error::runtime(format!(
                "{word}: expected a function, found {}",
                other.type_name()
            ))),
        };
        Ok(Self {
            owner: get("owner")?,
            mode: get("mode")?,
            xattrs: get("xattrs")?,
            codec: get("codec")?,
        })
    }

    /// Whether there is one.
    pub fn are_any(&self) -> bool {
        [&self.owner, &self.mode, &self.xattrs, &self.codec]
            .iter()
            .any(|function| function.is_some())
    }

    /// Asks all of them about an entry with these extended attributes, which are not asked about if
    /// the image keeps none.
    ///
    /// # Errors
    /// Those of the script, and for answers of the wrong kind.
    pub fn ask(
        &self,
        lua: &Lua,
        entry: &Table,
        (path, kind): (&[u8], FileKind),
        xattrs: Option<&XattrSet>,
    ) -> mlua::Result<Change> {
        let mut change = Change::default();
        if let (Some(_), Some(set)) = (&self.xattrs, xattrs) {
            entry.raw_set("xattrs", table_of(lua, set)?)?;
        }
        if let Some(owner) = &self.owner {
            let answers: MultiValue = owner.call(entry)?;
            let id = |at| number(answers.get(at), u32::MAX.into(), "owner", path);
            let (uid, gid) = (id(0)?, id(1)?);
            (change.uid, change.gid) = (uid.map(|n| n as u32), gid.map(|n| n as u32));
        }
        if let Some(mode) = &self.mode {
            let answer: Value = mode.call(entry)?;
            let mode = number(Some(&answer), 0o7777, "mode", path)?;
            // A symlink has no mode.
            let mode = mode.filter(|_| kind != FileKind::Symlink);
            change.permissions = mode.map(|n| n as u16);
        }
        if let (Some(function), Some(_)) = (&self.xattrs, xattrs) {
            change.xattrs = set_of(function.call(entry)?, path)?;
        }
        if let (Some(codec), FileKind::Regular) = (&self.codec, kind) {
            change.is_plain = match codec.call(entry)? {
                Value::Nil => false,
                Value::String(word) if &*word.as_bytes() == b"none" => true,
                other => return Err(wrong("codec", "\"none\" or nothing", path, &other)),
            };
        }
        Ok(change)
    }
}

fn wrong(function: &str, expected: &str, path: &[u8], found: &Value) -> mlua::Error {
    mlua::Error::runtime(format!(
        "{function}: expected {expected} for {}, found {}",
        path.escape_ascii(),
        found.type_name()
    ))
}

/// A whole number of at most `max`; `None` for nothing.
fn number(
    value: Option<&Value>,
    max: i64,
    function: &str,
    path: &[u8],
) -> mlua::Result<Option<i64>> {
    match value {
        None | Some(Value::Nil) => Ok(None),
        Some(Value::Integer(number)) if (0..=max).contains(number) => Ok(Some(*number)),
        Some(other) => {
            let expected = format!("a whole number from 0 to {max}, or nothing,");
            Err(wrong(function, &expected, path, other))
        }
    }
}

fn table_of(lua: &Lua, set: &XattrSet) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    for Xattr { name, value } in set {
        table.raw_set(lua.create_string(name)?, lua.create_string(value)?)?;
    }
    Ok(table)
}

fn set_of(answer: Value, path: &[u8]) -> mlua::Result<Option<XattrSet>> {
    let expected = "a table of names and values, or nothing,";
    let table = match answer {
        Value::Nil => return Ok(None),
        Value::Table(table) => table,
        other => return Err(wrong("xattrs", expected, path, &other)),
    };
    let mut set = XattrSet::new();
    for pair in table.pairs::<Value, Value>() {
        match pair? {
            (Value::String(name), Value::String(value)) => set.push(Xattr {
                name: name.as_bytes().to_vec(),
                value: value.as_bytes().to_vec(),
            }),
            (Value::String(_), other) | (other, _) => {
                return Err(wrong("xattrs", expected, path, &other));
            }
        }
    }
    set.sort();
    let checked = check_xattrs(&set);
    checked
        .map_err(|e| mlua::Error::runtime(format!("xattrs: {} for {}", e, path.escape_ascii())))?;
    Ok(Some(set))
}
