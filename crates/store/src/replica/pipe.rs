//! A place behind a pipe: a program that answers requests on its standard input and output, as
//! `weald replica receive` does, here or on another machine.
//!
//! A request is a code, a name and bytes; an answer is a code and bytes. Both end with a digest, so
//! that what a broken program or line does to them is an error and never other data.

use super::place::{
    DATA, EPOCHS, FIRST, IDENTITY, ITEMS, Place, data_path, parse_epoch_name, parse_first_name,
    parse_item_name,
};
use parking_lot::Mutex;
use std::fmt::Debug;
use std::io::{Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use weald_format::replica::{DATA_LEN_MAX, Item, PlaceIdentity};
use weald_format::{Digest, Error, ErrorKind, Result};

/// First bytes of both directions: what follows is this protocol, in this version.
const HELLO: [u8; 8] = *b"WREPL01\n";
/// Most bytes of a name.
const NAME_LEN_MAX: usize = 300;
/// Most bytes of a list of names: 10 million items.
const LIST_LEN_MAX: u64 = 1 << 30;
/// Most bytes of an error.
const ERROR_LEN_MAX: u64 = 1 << 16;
/// Bytes of a digest that end a message.
const CHECK_LEN: usize = 16;

const PUT: u8 = 1;
const READ: u8 = 2;
const LIST: u8 = 3;
const REMOVE: u8 = 4;

const DONE: u8 = 0;
const FAILED: u8 = 1;
const NOT_FOUND: u8 = 2;
const FULL: u8 = 3;

fn broken(what: &str) -> Error {
    let error = std::io::Error::new(std::io::ErrorKind::InvalidData, what.to_owned());
    Error::io("the other side of the replica", error)
}

fn io(error: std::io::Error) -> Error {
    Error::io("the other side of the replica", error)
}

/// A request or an answer.
struct Message {
    code: u8,
    name: String,
    bytes: Vec<u8>,
}

fn check(head: &[u8], bytes: &[u8]) -> [u8; CHECK_LEN] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(head);
    hasher.update(bytes);
    let mut check = [0; CHECK_LEN];
    let digest = hasher.finalize();
    check.copy_from_slice(digest.as_bytes().get(..CHECK_LEN).unwrap_or_default());
    check
}

fn write_message(out: &mut dyn Write, code: u8, name: &str, bytes: &[u8]) -> Result<()> {
    let mut head = vec![code];
    head.extend((name.len() as u16).to_le_bytes());
    head.extend_from_slice(name.as_bytes());
    head.extend((bytes.len() as u64).to_le_bytes());
    for part in [&head[..], bytes, &check(&head, bytes)] {
        out.write_all(part).map_err(io)?;
    }
    out.flush().map_err(io)
}

/// Reads a message with at most `len_max` bytes; `None` at the end of input.
fn read_message(input: &mut dyn Read, len_max: u64) -> Result<Option<Message>> {
    let mut code = [0];
    if input.read(&mut code).map_err(io)? == 0 {
        return Ok(None);
    }
    let mut head = code.to_vec();
    let mut take = |len: usize, head: &mut Vec<u8>| -> Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        input.read_exact(&mut bytes).map_err(io)?;
        head.extend_from_slice(&bytes);
        Ok(bytes)
    };
    let name_len = take(2, &mut head)?;
    let name_len = name_len.try_into().map_or(0, u16::from_le_bytes);
    if usize::from(name_len) > NAME_LEN_MAX {
        return Err(broken("a name is too long"));
    }
    let name = take(usize::from(name_len), &mut head)?;
    let name = String::from_utf8(name).map_err(|_| broken("a name is no UTF-8"))?;
    let len = take(8, &mut head)?;
    let len = len.try_into().map_or(u64::MAX, u64::from_le_bytes);
    if len > len_max {
        return Err(broken("a message is too long"));
    }
    // As it comes: a length that is claimed takes no memory.
    let mut bytes = Vec::new();
    let read = input.take(len).read_to_end(&mut bytes).map_err(io)?;
    if (read as u64) < len {
        return Err(broken("the connection ended"));
    }
    let mut found = [0; CHECK_LEN];
    input.read_exact(&mut found).map_err(io)?;
    if found != check(&head, &bytes) {
        return Err(broken("a message differs from its digest"));
    }
    let [code] = code;
    Ok(Some(Message { code, name, bytes }))
}

fn read_hello(input: &mut dyn Read) -> Result<()> {
    let mut hello = [0; HELLO.len()];
    match input.read_exact(&mut hello) {
        Ok(()) if hello == HELLO => Ok(()),
        Ok(()) => Err(broken(
            "it is not 'weald replica receive' of this version: what it prints otherwise, such as \
             the message of a login, is in the way",
        )),
        Err(_) => Err(broken("it ended at once: its standard error says why")),
    }
}

/// A place behind a program.
#[derive(Debug)]
pub struct PipePlace {
    shown: String,
    pipe: Mutex<Pipe>,
}

#[derive(Debug)]
struct Pipe {
    child: Child,
    input: Option<ChildStdin>,
    output: ChildStdout,
    /// Whether a call failed in its middle: nothing more can be asked.
    is_broken: bool,
}

impl PipePlace {
    /// Starts the program. Messages call the place `shown`.
    ///
    /// # Errors
    /// `Io`: it cannot be started, or does not answer as it should.
    pub fn start(mut command: Command, shown: String) -> Result<Self> {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let spawned = command.spawn();
        let mut child = spawned.map_err(|error| Error::io(shown.clone(), error))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(broken("it has no standard input"));
        };
        let mut pipe = Pipe {
            child,
            input: Some(input),
            output,
            is_broken: false,
        };
        pipe.greet().map_err(|error| error.context(&shown))?;
        Ok(Self {
            shown,
            pipe: Mutex::new(pipe),
        })
    }

    fn call(&self, code: u8, name: &str, bytes: &[u8], len_max: u64) -> Result<Vec<u8>> {
        let mut pipe = self.pipe.lock();
        let answer = pipe.call(code, name, bytes, len_max);
        let answer = answer.map_err(|error| error.context(&self.shown))?;
        let text = || {
            let text = String::from_utf8_lossy(&answer.bytes);
            format!("{}: {text}", self.shown)
        };
        match answer.code {
            DONE => Ok(answer.bytes),
            NOT_FOUND => Err(Error::not_found(text())),
            FULL => Err(Error::new(ErrorKind::Full, text())),
            _ => Err(Error::new(ErrorKind::Io, text())),
        }
    }
}

impl Pipe {
    fn greet(&mut self) -> Result<()> {
        if let Some(input) = &mut self.input {
            input.write_all(&HELLO).map_err(io)?;
            input.flush().map_err(io)?;
        }
        read_hello(&mut self.output)
    }

    fn call(&mut self, code: u8, name: &str, bytes: &[u8], len_max: u64) -> Result<Message> {
        let Some(input) = self.input.as_mut().filter(|_| !self.is_broken) else {
            return Err(broken("the connection ended"));
        };
        self.is_broken = true;
        write_message(input, code, name, bytes)?;
        let answer = read_message(&mut self.output, len_max.max(ERROR_LEN_MAX))?;
        let answer = answer.ok_or_else(|| broken("the connection ended"))?;
        self.is_broken = false;
        Ok(answer)
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        // The end of its input ends the program.
        drop(self.input.take());
        if self.is_broken {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

impl Place for PipePlace {
    fn shown(&self) -> String {
        self.shown.clone()
    }

    fn put(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.call(PUT, name, bytes, 0).map(drop)
    }

    fn read(&self, name: &str, len_max: u64) -> Result<Vec<u8>> {
        self.call(READ, name, &len_max.to_le_bytes(), len_max)
    }

    fn list(&self, dir: &str) -> Result<Vec<String>> {
        let bytes = self.call(LIST, dir, &[], LIST_LEN_MAX)?;
        let text = String::from_utf8(bytes).map_err(|_| broken("a list is no UTF-8"))?;
        Ok(text.lines().map(str::to_owned).collect())
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.call(REMOVE, name, &[], 0).map(drop)
    }
}

/// What the other side may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Receiving {
    /// Everything.
    All,
    /// It may put new files and read, but neither remove nor replace any.
    KeepsAll,
}

/// Whether a replica has files of this name: no other is touched for the other side.
fn is_name(name: &str) -> bool {
    match name.split_once('/') {
        None => name == IDENTITY,
        Some((ITEMS, item)) => parse_item_name(item).is_some(),
        Some((FIRST, number)) => parse_first_name(number).is_some(),
        Some((EPOCHS, epoch)) => parse_epoch_name(epoch).is_some(),
        Some((DATA, _)) => data_digest(name).is_some(),
        Some(_) => false,
    }
}

fn data_digest(name: &str) -> Option<Digest> {
    let digest = Digest::from_hex(name.strip_prefix(DATA)?.strip_prefix('/')?)?;
    (data_path(&digest) == name).then_some(digest)
}

/// Whether a file is not what its name says.
fn is_damaged(name: &str, found: &[u8]) -> bool {
    if let Some(digest) = data_digest(name) {
        return Digest::of(found) != digest;
    }
    match name
        .strip_prefix(ITEMS)
        .and_then(|rest| parse_item_name(rest.get(1..)?))
    {
        Some((_, digest)) => !Item::parse(found).is_ok_and(|item| item.header.digest() == digest),
        None => name == IDENTITY && PlaceIdentity::parse(found).is_err(),
    }
}

/// Answers requests for `place` until the input ends.
///
/// # Errors
/// `Io` if the other side does not keep to the protocol, or the connection breaks.
pub fn receive(
    place: &dyn Place,
    receiving: Receiving,
    (input, out): (&mut dyn Read, &mut dyn Write),
) -> Result<()> {
    out.write_all(&HELLO).map_err(io)?;
    out.flush().map_err(io)?;
    read_hello(input)?;
    while let Some(request) = read_message(input, DATA_LEN_MAX)? {
        match answer(place, receiving, &request) {
            Ok(bytes) => write_message(out, DONE, "", &bytes)?,
            Err(error) => {
                let code = match error.kind() {
                    ErrorKind::NotFound => NOT_FOUND,
                    ErrorKind::Full => FULL,
                    _ => FAILED,
                };
                let mut text = error.with_causes().into_bytes();
                text.truncate(ERROR_LEN_MAX as usize);
                write_message(out, code, "", &text)?;
            }
        }
    }
    Ok(())
}

fn answer(place: &dyn Place, receiving: Receiving, request: &Message) -> Result<Vec<u8>> {
    let Message { code, name, bytes } = request;
    let is_good = match *code {
        LIST => [ITEMS, DATA, FIRST, EPOCHS].contains(&name.as_str()),
        _ => is_name(name),
    };
    if !is_good {
        return Err(Error::invalid(format!("{name:?}: no file of a replica")));
    }
    match *code {
        PUT => {
            put(place, receiving, name, bytes)?;
            Ok(Vec::new())
        }
        READ => {
            let len_max = bytes.as_slice().try_into().map_or(0, u64::from_le_bytes);
            place.read(name, len_max.min(DATA_LEN_MAX))
        }
        LIST => Ok(place.list(name)?.join("\n").into_bytes()),
        REMOVE if receiving == Receiving::KeepsAll => Err(Error::new(
            ErrorKind::Unsupported,
            "this side keeps all files of the replica",
        )),
        REMOVE => place.remove(name).map(|()| Vec::new()),
        code => Err(Error::invalid(format!("request {code} is unknown"))),
    }
}

/// Puts a file that is what its name says. Where all files are kept, one that is there stays,
/// unless it is damaged.
fn put(place: &dyn Place, receiving: Receiving, name: &str, bytes: &[u8]) -> Result<()> {
    let differs = |digest: Digest| Digest::of(bytes) != digest;
    if data_digest(name).is_some_and(differs) {
        return Err(Error::invalid(format!("{name}: differs from its digest")));
    }
    if receiving == Receiving::KeepsAll {
        match place.read(name, DATA_LEN_MAX) {
            Ok(found) if found == bytes => return Ok(()),
            Ok(found) if is_damaged(name, &found) => {}
            Ok(_) => {
                let what = format!("{name}: this side keeps all files, and has another one");
                return Err(Error::new(ErrorKind::Busy, what));
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    place.put(name, bytes)
}

#[cfg(test)]
mod tests {
    use super::super::place::{DirPlace, item_path};
    use super::*;
    use crate::simulated_disk::SimDisk;
    use std::sync::Arc;
    use weald_format::replica::ItemNo;

    fn ask(receiving: Receiving, requests: &[(u8, &str, &[u8])]) -> Vec<(u8, Vec<u8>)> {
        let place = DirPlace::new(Arc::new(SimDisk::new(1)));
        let identity = PlaceIdentity {
            uuid: [1; 16],
            lineage: [2; 16],
        };
        place.put(IDENTITY, &identity.encode()).expect("put");
        let mut input = HELLO.to_vec();
        for (code, name, bytes) in requests {
            write_message(&mut input, *code, name, bytes).expect("write");
        }
        let mut out = Vec::new();
        receive(&place, receiving, (&mut input.as_slice(), &mut out)).expect("receive");
        let mut answers = out.get(HELLO.len()..).expect("answers");
        let mut found = Vec::new();
        while let Some(answer) = read_message(&mut answers, 1 << 20).expect("an answer") {
            found.push((answer.code, answer.bytes));
        }
        found
    }

    // Would catch a sender that reaches files outside of the replica, or removes some where all are
    // kept.
    #[test]
    fn other_files_are_out_of_reach() {
        let data = data_path(&Digest::of(b"bytes"));
        let item = item_path(ItemNo(1), &Digest([7; 32]));
        let answers = ask(
            Receiving::KeepsAll,
            &[
                (PUT, "../x", b"x"),
                (PUT, "items/x", b"x"),
                (PUT, "data/../../x", b"x"),
                (READ, "/etc/passwd", &[255; 8]),
                (LIST, "..", b""),
                (PUT, &data, b"others"),
                (REMOVE, IDENTITY, b""),
                (PUT, IDENTITY, b"another"),
                (9, IDENTITY, b""),
            ],
        );
        assert!(answers.iter().all(|(code, _)| *code == FAILED));
        assert_eq!(answers.len(), 9);
        let answers = ask(
            Receiving::KeepsAll,
            &[
                (PUT, &data, b"bytes"),
                (PUT, &data, b"bytes"),
                (PUT, &item, b"item"),
                (READ, &data, &5u64.to_le_bytes()),
                (LIST, DATA, b""),
            ],
        );
        assert!(answers.iter().all(|(code, _)| *code == DONE));
        assert_eq!(answers[3].1, b"bytes");
        let (_, listed) = &answers[4];
        assert_eq!(format!("{DATA}/{}", String::from_utf8_lossy(listed)), data);
        assert_eq!(ask(Receiving::All, &[(REMOVE, &item, b"")])[0].0, DONE);
    }

    // Would catch a message that is used although the line has changed it, and a length that takes
    // memory before its bytes are there.
    #[test]
    fn damaged_messages_are_refused() {
        let mut bytes = Vec::new();
        write_message(&mut bytes, PUT, IDENTITY, b"bytes").expect("write");
        let is_read = |bytes: &[u8]| {
            let read = read_message(&mut &*bytes, 1 << 40);
            read.is_ok_and(|message| message.is_some())
        };
        assert!(is_read(&bytes));
        for bit in 0..bytes.len() * 8 {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(!is_read(&bytes), "bit {bit}");
        }
        for len in 1..bytes.len() {
            assert!(!is_read(bytes.get(..len).expect("a part")), "{len} bytes");
        }
    }
}
