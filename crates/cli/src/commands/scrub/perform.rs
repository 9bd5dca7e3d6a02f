//! Performs a scrub, or waits for the server that does.

use super::show::{code_of, json_of, text_of};
use crate::interrupt::interrupt_flag;
use crate::messages;
use crate::output::Output;
use crate::writer_name::writer_name;
use anyhow::bail;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use weald_format::{Error, ErrorKind};
use weald_store::Store;
use weald_store::scrub::{ScrubReport, ScrubWish};
use weald_volume::{ScrubEnd, scrub_alone};

/// Time between two looks at what a server does.
const LOOK_TIME: Duration = Duration::from_millis(200);
/// Time within which a server takes a scrub up.
const TAKE_UP_TIME: Duration = Duration::from_secs(10);
/// Time within which a scrub pauses.
const PAUSE_TIME: Duration = Duration::from_secs(30);
/// Time between two tries to have the store, while another process has it.
const TRY_TIME: Duration = Duration::from_secs(2);

/// What the user wants to see.
#[derive(Debug, Clone, Copy)]
pub struct Shown {
    /// Whether the command waits for a server.
    pub waits: bool,
    pub is_quiet: bool,
    pub is_json: bool,
}

/// What another process does with a scrub.
enum Elsewhere {
    Done(Box<ScrubReport>),
    Paused,
    Failed(String),
    TakenUp,
    /// Nobody has begun yet.
    Waiting,
    OtherRun,
}

/// What the report says of the scrub that `wish` asks for.
fn look(store: &Store, wish: &ScrubWish) -> anyhow::Result<Elsewhere> {
    let now = store.scrub_wish()?;
    if now.is_some_and(|now| now.run != wish.run) {
        return Ok(Elsewhere::OtherRun);
    }
    let report = store.scrub_report()?;
    let of_run =
        |report: &ScrubReport| report.wish.run == wish.run && report.wish.tries >= wish.tries;
    Ok(match report.filter(of_run) {
        None => Elsewhere::Waiting,
        Some(report) if report.is_done() => Elsewhere::Done(Box::new(report)),
        Some(report) if report.wish.is_paused => Elsewhere::Paused,
        Some(ScrubReport {
            error: Some(why), ..
        }) => Elsewhere::Failed(why),
        Some(_) => Elsewhere::TakenUp,
    })
}

/// Performs the scrub that `wish` asks for, or lets the server of a volume do it.
pub fn perform(store: &Store, wish: &ScrubWish, shown: Shown) -> anyhow::Result<ExitCode> {
    let flag = interrupt_flag()?;
    loop {
        let name = writer_name("scrub");
        match scrub_alone(store, &name, &flag, &mut |_| {}) {
            Ok(ScrubEnd::Done(report)) => return show(&report, shown),
            Ok(ScrubEnd::Paused) => return paused(shown),
            Ok(ScrubEnd::Rested) => return rested(shown),
            Ok(ScrubEnd::Stopped) if flag.load(Ordering::Relaxed) => {
                let now = store.scrub_wish()?.unwrap_or(*wish);
                store.put_scrub_wish(&ScrubWish {
                    is_paused: true,
                    ..now
                })?;
                bail!("interrupted: 'weald scrub resume' goes on where it was");
            }
            Ok(ScrubEnd::Stopped) => bail!("another scrub was begun in place of this one"),
            Err(busy) if busy.kind() == ErrorKind::Busy => {
                if let Some(code) = elsewhere(store, wish, (shown, &flag), &busy)? {
                    return Ok(code);
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
}

fn paused(shown: Shown) -> anyhow::Result<ExitCode> {
    if !shown.is_quiet {
        messages::line("the scrub is paused: 'weald scrub resume' goes on");
    }
    Ok(ExitCode::SUCCESS)
}

fn rested(shown: Shown) -> anyhow::Result<ExitCode> {
    if !shown.is_quiet {
        messages::line("the scrub rests until the hours of its policy: 'weald scrub run-due'");
    }
    Ok(ExitCode::SUCCESS)
}

/// Waits while another process has the store. Returns nothing if it is time to try again.
fn elsewhere(
    store: &Store,
    wish: &ScrubWish,
    (shown, flag): (Shown, &Arc<AtomicBool>),
    busy: &Error,
) -> anyhow::Result<Option<ExitCode>> {
    let begun = Instant::now();
    loop {
        match look(store, wish)? {
            Elsewhere::Done(report) => return show(&report, shown).map(Some),
            Elsewhere::Paused => return paused(shown).map(Some),
            Elsewhere::Failed(why) => bail!("{why}"),
            Elsewhere::OtherRun => bail!("another scrub was begun in place of this one"),
            Elsewhere::TakenUp if !shown.waits => {
                if !shown.is_quiet {
                    messages::line(
                        "the server of a mounted volume scrubs the store: 'weald scrub status' \
                         shows how far it is",
                    );
                }
                return Ok(Some(ExitCode::SUCCESS));
            }
            Elsewhere::Waiting if !shown.waits && begun.elapsed() >= TAKE_UP_TIME => {
                messages::line(&format!(
                    "{busy}; the scrub begins when a volume of the store is mounted, or with \
                     'weald scrub resume'"
                ));
                return Ok(Some(ExitCode::SUCCESS));
            }
            Elsewhere::TakenUp | Elsewhere::Waiting => {}
        }
        if flag.load(Ordering::Relaxed) {
            bail!("interrupted: the scrub goes on without this command");
        }
        std::thread::sleep(LOOK_TIME);
        // Without a server, it is this command's again.
        if shown.waits && begun.elapsed() >= TRY_TIME {
            return Ok(None);
        }
    }
}

/// Waits until nobody reads.
pub fn wait_for_pause(store: &Store, wish: &ScrubWish) -> anyhow::Result<()> {
    let begun = Instant::now();
    while begun.elapsed() < PAUSE_TIME {
        match look(store, wish)? {
            Elsewhere::TakenUp | Elsewhere::Waiting if !store.writers().is_empty() => {}
            _ => break,
        }
        std::thread::sleep(LOOK_TIME);
    }
    Ok(())
}

/// Shows the result of a scrub.
pub fn show(report: &ScrubReport, shown: Shown) -> anyhow::Result<ExitCode> {
    let mut output = Output::new();
    if shown.is_json {
        output.json(&json_of(Some(report), &report.wish, "complete").into())?;
    } else if !shown.is_quiet {
        output.text(&text_of(report))?;
    }
    output.finish()?;
    Ok(code_of(report))
}
