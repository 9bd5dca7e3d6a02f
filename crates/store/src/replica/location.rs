//! Where a place is, as users name it, and the one way to open it.

use super::pipe::PipePlace;
use super::place::{DirPlace, Place};
use crate::disk::HostDisk;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use weald_format::{Error, Result};

/// Prefix of a place on another machine.
const SSH: &str = "ssh://";
/// Environment variable with the program to use in place of ssh, and options of it.
const SSH_VARIABLE: &str = "WEALD_SSH";
/// Prefix of a place behind a command, in what a store remembers.
const COMMAND: &str = "command:";

/// Where a place is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlaceLocation {
    /// A directory.
    Dir(PathBuf),
    /// A directory of another machine: what ssh takes as host, and the path there.
    Ssh {
        /// The host, and the user if there is one.
        host: String,
        /// The port, if it is not the usual one.
        port: Option<u16>,
        /// The path there.
        path: String,
    },
    /// A command of the shell that speaks as `weald replica receive` does.
    Command(String),
}

impl PlaceLocation {
    /// Parses `PATH`, `ssh://[USER@]HOST[:PORT]/PATH` or `command:COMMAND`.
    ///
    /// # Errors
    /// `Invalid`.
    pub fn parse(text: &str) -> Result<Self> {
        if let Some(command) = text.strip_prefix(COMMAND) {
            return Ok(Self::Command(command.to_owned()));
        }
        let Some(rest) = text.strip_prefix(SSH) else {
            if text.is_empty() {
                return Err(Error::invalid("the path of a place is empty"));
            }
            return Ok(Self::Dir(PathBuf::from(text)));
        };
        let bad = || Error::invalid(format!("{text}: expected ssh://[USER@]HOST[:PORT]/PATH"));
        let (host, path) = rest.split_once('/').ok_or_else(bad)?;
        let (host, port) = match host.rsplit_once(':') {
            Some((host, port)) => (host, Some(port.parse().map_err(|_| bad())?)),
            None => (host, None),
        };
        // ssh would take it for an option.
        if host.is_empty() || host.starts_with('-') || path.is_empty() {
            return Err(bad());
        }
        Ok(Self::Ssh {
            host: host.to_owned(),
            port,
            path: format!("/{path}"),
        })
    }

    /// As [`PlaceLocation::parse`] takes it.
    pub fn text(&self) -> String {
        match self {
            Self::Dir(path) => path.display().to_string(),
            Self::Ssh { host, port, path } => {
                let port = port.map_or(String::new(), |port| format!(":{port}"));
                format!("{SSH}{host}{port}{path}")
            }
            Self::Command(command) => format!("{COMMAND}{command}"),
        }
    }

    /// Opens the place.
    ///
    /// # Errors
    /// `Io`: the other side cannot be reached, or does not answer.
    pub fn open(&self) -> Result<Box<dyn Place>> {
        let command = match self {
            Self::Dir(path) => {
                return Ok(Box::new(DirPlace::new(Arc::new(HostDisk::private(path)))));
            }
            Self::Ssh { host, port, path } => {
                let own = std::env::var(SSH_VARIABLE).unwrap_or_default();
                let mut words = own.split_whitespace();
                let mut command = Command::new(words.next().unwrap_or("ssh"));
                command.args(words);
                // A machine that is gone is noticed within a minute, and nobody is asked.
                command.args(["-o", "BatchMode=yes", "-o", "ConnectTimeout=20"]);
                command.args([
                    "-o",
                    "ServerAliveInterval=15",
                    "-o",
                    "ServerAliveCountMax=3",
                ]);
                if let Some(port) = port {
                    command.arg("-p").arg(port.to_string());
                }
                command.arg("--").arg(host);
                command.arg(format!("weald replica receive {}", quoted(path)));
                command
            }
            Self::Command(text) => {
                let mut command = Command::new("sh");
                // The same wherever it is started from, as by a server.
                command.arg("-c").arg(text).current_dir("/");
                command
            }
        };
        Ok(Box::new(PipePlace::start(command, self.text())?))
    }
}

/// A word of the shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    // Would catch a host that ssh takes for an option, and a place that is remembered as another.
    #[test]
    fn places_are_parsed_and_shown() {
        for text in [
            "/srv/backup",
            "ssh://user@host/srv/it's here",
            "ssh://host:2222/srv/x",
            "command:nc host 4000",
        ] {
            let location = PlaceLocation::parse(text).expect(text);
            assert_eq!(location.text(), text);
        }
        for bad in [
            "",
            "ssh://host",
            "ssh:///x",
            "ssh://-oProxyCommand=x/y",
            "ssh://h:x/y",
            "ssh://h/",
        ] {
            PlaceLocation::parse(bad).expect_err(bad);
        }
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }
}
