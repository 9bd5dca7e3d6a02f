//! Where a place is, as users name it, and the one way to open it.

use super::bucket::BucketPlace;
use super::pipe::PipePlace;
use super::place::{DirPlace, Place};
use crate::disk::HostDisk;
use crate::faults::Faults;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use weald_format::{Error, Result};
use weald_remote::{Bucket, Location, is_url};

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
    /// A prefix of a bucket, as a URL.
    Bucket(String),
}

impl PlaceLocation {
    /// Parses `PATH`, `s3://BUCKET/PREFIX`, `ssh://[USER@]HOST[:PORT]/PATH` or `command:COMMAND`.
    ///
    /// # Errors
    /// `Invalid`.
    pub fn parse(text: &str) -> Result<Self> {
        if let Some(command) = text.strip_prefix(COMMAND) {
            return Ok(Self::Command(command.to_owned()));
        }
        if is_url(Path::new(text)) {
            return Self::parse_bucket(text);
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

    fn parse_bucket(text: &str) -> Result<Self> {
        let location = bucket_location(text)?;
        let shown = location.shown();
        let is_prefix = matches!(location.place(), weald_remote::ServerKind::Bucket { .. })
            && location.in_store().is_none()
            && shown == text;
        if is_prefix {
            return Ok(Self::Bucket(text.trim_end_matches('/').to_owned()));
        }
        let what = format!(
            "{shown}: expected s3://BUCKET/PREFIX, without a query, and without a colon behind the \
             last slash: a web server takes no replicas"
        );
        Err(Error::invalid(what))
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
            Self::Bucket(url) => url.clone(),
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
            Self::Bucket(url) => {
                let bucket = Bucket::open(&bucket_location(url)?)?;
                return Ok(Box::new(BucketPlace::new(
                    Box::new(bucket),
                    Faults::default(),
                )));
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

fn bucket_location(url: &str) -> Result<Location> {
    let location = Location::parse(Path::new(url));
    location.unwrap_or_else(|| Err(Error::invalid(format!("{url}: not a URL"))))
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
            "s3://bucket/replicas/store",
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
            "s3://bucket",
            "s3://bucket/x?secret",
            "s3://key:secret@bucket/x",
            "s3://bucket/x:y",
            "https://host/x",
        ] {
            PlaceLocation::parse(bad).expect_err(bad);
        }
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }
}
