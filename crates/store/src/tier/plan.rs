//! Which segments should move, and why: by the policies of the tiers, the space of their disks, and
//! how long ago each segment was used. Nothing is read or moved here.

use super::manage::TierState;
use super::pins::PinnedSegments;
use std::collections::BTreeMap;
use weald_format::SegmentNo;

/// Use of a segment.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Use {
    /// Seconds since it was read or written.
    pub idle_s: u64,
    /// Reads within about an hour.
    pub hits: f64,
}

/// Why a segment moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// The tier is drained.
    Drain,
    /// The tier has less free space than it keeps.
    Reserve,
    /// Nobody used it for so many seconds.
    Idle(u64),
    /// So many reads.
    Hits(u64),
    /// Users want its data on that tier.
    Pinned,
    /// Users want some of its data on another tier than the rest: that part is copied into segments
    /// of its own first.
    PinnedPart,
}

/// A segment that should move.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedMove {
    /// The segment.
    pub number: SegmentNo,
    /// Its length in bytes.
    pub len: u64,
    /// Where it lies.
    pub from: String,
    /// Where it should lie; nothing if no tier that may take it has room.
    pub to: Option<String>,
    /// Why.
    pub why: Why,
    /// Why it cannot move now, if it has no target.
    pub waits_for: Option<String>,
}

/// What is left of the tiers while a plan is made.
struct Room<'a> {
    tiers: &'a [TierState],
    free: Vec<u64>,
    /// The hour of the day; `None` for all of them.
    hour: Option<u32>,
}

impl Room<'_> {
    /// Whether data moves to `tier` and away from it at this hour.
    fn is_hour_of(&self, tier: &TierState) -> bool {
        self.hour.is_none_or(|hour| tier.policy.hours.has(hour))
    }

    /// Why nothing takes a segment.
    fn why_none_takes(&self) -> String {
        if self.tiers.iter().all(|tier| self.is_hour_of(tier)) {
            "no tier that may take it has room".into()
        } else {
            "no tier that may take it has room, or a tier has other hours".into()
        }
    }

    fn takes(&self, index: usize, len: u64) -> bool {
        let (Some(tier), Some(free)) = (self.tiers.get(index), self.free.get(index)) else {
            return false;
        };
        let policy = &tier.policy;
        let is_open = tier.why_away.is_none() && !policy.is_off && !policy.is_draining;
        let is_open = is_open && self.is_hour_of(tier);
        is_open && *free >= len.saturating_add(policy.reserve)
    }

    /// The tier `name`, if it takes `len` bytes, or why it does not.
    fn of_name(&self, name: &str, len: u64) -> Result<usize, String> {
        let Some(at) = self.tiers.iter().position(|tier| tier.name == name) else {
            return Err(format!("data belongs on tier {name}, and there is none"));
        };
        if self.takes(at, len) {
            return Ok(at);
        }
        let why = self.tiers.get(at).map(|tier| match &tier.why_away {
            Some(why) => format!("is not here: {why}"),
            None if tier.policy.is_draining => "is drained".into(),
            None if tier.policy.is_off => "is off".into(),
            None if !self.is_hour_of(tier) => {
                format!("waits for its hours, {}", tier.policy.hours.word())
            }
            None => "has no room".into(),
        });
        Err(format!("tier {name} {}", why.unwrap_or_default()))
    }

    /// The first tier behind `index` that takes `len` bytes.
    fn behind(&self, index: usize, len: u64) -> Option<usize> {
        (index + 1..self.tiers.len()).find(|at| self.takes(*at, len))
    }

    /// The nearest tier before `index` that takes `len` bytes.
    fn before(&self, index: usize, len: u64) -> Option<usize> {
        (0..index).rev().find(|at| self.takes(*at, len))
    }

    fn move_len(&mut self, from: usize, to: usize, len: u64) {
        if let Some(free) = self.free.get_mut(from) {
            *free = free.saturating_add(len);
        }
        if let Some(free) = self.free.get_mut(to) {
            *free = free.saturating_sub(len);
        }
    }
}

/// The moves that users and the policies ask for, in the order in which they should be done.
/// `tiers` has the home and the tiers in the order of readers. What has to move and cannot has no
/// target. What users want on a tier stays there, whatever its policy, unless the tier is drained.
/// At an hour that is none of a tier's, nothing moves there, or away unless it is drained.
pub fn plan(
    tiers: &[TierState],
    uses: &BTreeMap<SegmentNo, Use>,
    pinned: &PinnedSegments,
    hour: Option<u32>,
) -> Vec<PlannedMove> {
    let mut room = Room {
        tiers,
        free: tiers.iter().map(|tier| tier.space.free).collect(),
        hour,
    };
    let mut moves = Vec::new();
    for (index, tier) in tiers.iter().enumerate() {
        let policy = tier.policy;
        let is_quiet = policy.is_off || !room.is_hour_of(tier);
        if tier.why_away.is_some() || (is_quiet && !policy.is_draining) {
            continue;
        }
        let use_of = |number: &SegmentNo| uses.get(number).copied().unwrap_or_default();
        let mut segments = tier.segments.clone();
        let mut parked_len = 0u64;
        // What was used least goes first.
        segments.sort_by_key(|(number, _)| (std::cmp::Reverse(use_of(number).idle_s), *number));
        for (number, len) in segments {
            let used = use_of(&number);
            let free = room.free.get(index).copied().unwrap_or(0);
            let pin = pinned.get(&number).filter(|_| !policy.is_draining);
            let owner = pin.and_then(|pin| pin.owner());
            if owner == Some(tier.name.as_str()) {
                continue;
            }
            let part = pin.and_then(|pin| pin.misplaced(&tier.name));
            if let Some((name, part_len)) = owner.map(|name| (name, len)).or(part) {
                let (why, len) = match owner {
                    Some(_) => (Why::Pinned, len),
                    None => (Why::PinnedPart, part_len),
                };
                let (to, waits_for) = match room.of_name(name, len) {
                    Ok(to) => (Some(to), None),
                    Err(what) => (None, Some(what)),
                };
                if let Some(to) = to.filter(|_| owner.is_some()) {
                    room.move_len(index, to, len);
                }
                moves.push(PlannedMove {
                    number,
                    len,
                    from: tier.name.clone(),
                    to: to.map(|_| name.to_owned()),
                    why,
                    waits_for,
                });
                continue;
            }
            let is_hot = policy.hits > 0 && used.hits >= policy.hits as f64 && index > 0;
            let (why, to) = if policy.is_draining {
                let to = room.behind(index, len).or_else(|| room.before(index, len));
                (Why::Drain, to)
            } else if is_hot {
                match room.before(index, len) {
                    Some(to) => (Why::Hits(used.hits as u64), Some(to)),
                    None => continue,
                }
            } else if free.saturating_add(parked_len) < policy.reserve {
                (Why::Reserve, room.behind(index, len))
            } else if policy.max_age_s > 0 && used.idle_s >= policy.max_age_s {
                // The last tier keeps what is old.
                let is_last = index + 1 == tiers.len();
                if is_last {
                    continue;
                }
                (Why::Idle(used.idle_s), room.behind(index, len))
            } else {
                continue;
            };
            // What belongs here stays, and the rest moves when it has segments of its own.
            let (why, to) = match pin {
                Some(_) => (Why::PinnedPart, Some(index)),
                None => (why, to),
            };
            match to {
                Some(to) => room.move_len(index, to, len),
                None => parked_len = parked_len.saturating_add(len),
            }
            moves.push(PlannedMove {
                number,
                len,
                from: tier.name.clone(),
                to: to
                    .and_then(|to| tiers.get(to))
                    .map(|tier| tier.name.clone()),
                why,
                waits_for: to.is_none().then(|| room.why_none_takes()),
            });
        }
    }
    // What makes room goes before what needs it.
    moves.sort_by_key(|planned| match planned.why {
        Why::Drain | Why::Reserve => 0,
        Why::Pinned | Why::PinnedPart => 1,
        Why::Idle(_) => 2,
        Why::Hits(_) => 3,
    });
    moves
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::DiskSpace;
    use crate::tier::pins::PinnedSegment;
    use crate::tier::{Hours, TierPolicy};

    const GIB: u64 = 1 << 30;
    const NONE: PinnedSegments = PinnedSegments::new();

    fn tier(name: &str, free: u64, segments: &[u64], policy: TierPolicy) -> TierState {
        TierState {
            name: name.into(),
            rank: 0,
            place: String::new(),
            policy,
            why_away: None,
            space: DiskSpace {
                total: 100 * GIB,
                free,
            },
            segments: segments.iter().map(|no| (SegmentNo(*no), GIB)).collect(),
        }
    }

    fn uses(list: &[(u64, u64, f64)]) -> BTreeMap<SegmentNo, Use> {
        let uses = list.iter().map(|(number, idle_s, hits)| {
            let (idle_s, hits) = (*idle_s, *hits);
            (SegmentNo(*number), Use { idle_s, hits })
        });
        uses.collect()
    }

    fn shown(moves: &[PlannedMove]) -> Vec<(u64, Option<&str>)> {
        let shown = moves.iter().map(|m| (m.number.0, m.to.as_deref()));
        shown.collect()
    }

    #[test]
    fn what_is_old_goes_down_and_what_is_read_goes_up() {
        let aging = TierPolicy {
            max_age_s: 100,
            hits: 10,
            ..TierPolicy::default()
        };
        let tiers = [
            tier("home", 50 * GIB, &[1, 2, 3], aging),
            tier("mid", 50 * GIB, &[4, 5], aging),
            tier("slow", 50 * GIB, &[6, 7], aging),
        ];
        let uses = uses(&[
            (1, 99, 0.0),
            (2, 100, 50.0),
            (3, 500, 0.0),
            (4, 100, 0.0),
            (5, 0, 10.0),
            (6, 1000, 0.0),
            (7, 1, 9.9),
        ]);
        let moves = plan(&tiers, &uses, &NONE, None);
        let expected = [
            (3, Some("mid")),
            (2, Some("mid")),
            (4, Some("slow")),
            (5, Some("home")),
        ];
        assert_eq!(shown(&moves), expected);
    }

    /// Catches: a full tier that is filled beyond what it keeps free, and work that cannot be done
    /// that is not told.
    #[test]
    fn reserves_are_kept_and_what_cannot_move_is_told() {
        let keeps = |reserve| TierPolicy {
            reserve,
            ..TierPolicy::default()
        };
        let tiers = [
            tier("home", GIB, &[1, 2, 3, 4], keeps(3 * GIB)),
            tier("mid", 2 * GIB, &[], keeps(GIB)),
            tier("slow", GIB / 2, &[], keeps(0)),
        ];
        let moves = plan(&tiers, &uses(&[(3, 10, 0.0)]), &NONE, None);
        assert_eq!(shown(&moves), [(3, Some("mid")), (1, None)]);
        let mut away = tiers.clone();
        away[1].why_away = Some("gone".into());
        let moves = plan(&away, &BTreeMap::new(), &NONE, None);
        assert_eq!(shown(&moves), [(1, None), (2, None)]);
    }

    #[test]
    fn a_drained_tier_gets_nothing_and_an_idle_one_does_nothing() {
        let draining = TierPolicy {
            is_draining: true,
            ..TierPolicy::default()
        };
        let off = TierPolicy {
            is_off: true,
            max_age_s: 1,
            ..TierPolicy::default()
        };
        let aging = TierPolicy {
            max_age_s: 1,
            ..TierPolicy::default()
        };
        let uses = uses(&[(1, 9, 0.0), (2, 9, 0.0)]);
        let tiers = [
            tier("home", 9 * GIB, &[1], aging),
            tier("slow", 9 * GIB, &[2], draining),
        ];
        assert_eq!(
            shown(&plan(&tiers, &uses, &NONE, None)),
            [(2, Some("home")), (1, None)]
        );
        let tiers = [
            tier("home", 9 * GIB, &[1], off),
            tier("slow", 9 * GIB, &[2], off),
        ];
        assert_eq!(shown(&plan(&tiers, &uses, &NONE, None)), []);
    }

    /// Catches: data that users want elsewhere and that stays, or that a policy takes away again;
    /// a pin that nobody can follow and that is not told.
    #[test]
    fn what_users_want_on_a_tier_goes_there_and_stays() {
        let aging = TierPolicy {
            max_age_s: 1,
            hits: 1,
            ..TierPolicy::default()
        };
        let tiers = [
            tier("home", 9 * GIB, &[1, 2, 3, 4, 5], aging),
            tier("slow", 9 * GIB, &[6, 7], aging),
        ];
        let uses = uses(&[
            (1, 9, 0.0),
            (3, 9, 0.0),
            (5, 0, 0.0),
            (6, 0, 9.0),
            (7, 0, 9.0),
        ]);
        let pin = |lens: &[(&str, u64)]| {
            let lens = lens.iter().map(|(name, len)| ((*name).to_owned(), *len));
            PinnedSegment {
                live_len: GIB,
                lens: lens.collect(),
            }
        };
        let pinned = PinnedSegments::from([
            (SegmentNo(1), pin(&[("home", GIB)])),
            (SegmentNo(2), pin(&[("slow", GIB / 100 * 80)])),
            (SegmentNo(3), pin(&[("home", GIB / 2)])),
            (SegmentNo(4), pin(&[("gone", GIB / 2)])),
            (SegmentNo(5), pin(&[("home", 1), ("slow", GIB / 2)])),
            (SegmentNo(6), pin(&[("slow", GIB)])),
            (SegmentNo(7), pin(&[("slow", 1)])),
        ]);
        let moves = plan(&tiers, &uses, &pinned, None);
        let shown: Vec<_> = moves
            .iter()
            .map(|m| (m.number.0, m.to.as_deref(), m.why))
            .collect();
        let expected = [
            (3, Some("home"), Why::PinnedPart),
            (2, Some("slow"), Why::Pinned),
            (4, None, Why::PinnedPart),
            (5, Some("slow"), Why::PinnedPart),
            (7, Some("slow"), Why::PinnedPart),
        ];
        assert_eq!(shown, expected);
        let waits: Vec<_> = moves
            .iter()
            .filter_map(|m| m.waits_for.as_deref())
            .collect();
        assert_eq!(waits, ["data belongs on tier gone, and there is none"]);
    }

    /// Catches: moves outside of the hours of a tier, and a drain that waits for them.
    #[test]
    fn tiers_have_hours() {
        let aging = |hours| TierPolicy {
            max_age_s: 1,
            hits: 1,
            hours: Hours::parse(hours).expect("hours"),
            ..TierPolicy::default()
        };
        let uses = uses(&[(1, 9, 0.0), (2, 0, 9.0)]);
        let mut tiers = [
            tier("home", 9 * GIB, &[1], aging("any")),
            tier("slow", 9 * GIB, &[2], aging("22-6")),
        ];
        let at_night = plan(&tiers, &uses, &NONE, Some(23));
        assert_eq!(shown(&at_night), [(1, Some("slow")), (2, Some("home"))]);
        let by_day = plan(&tiers, &uses, &NONE, Some(6));
        assert_eq!(shown(&by_day), [(1, None)]);
        let why = by_day[0].waits_for.as_deref().unwrap_or_default();
        assert!(why.contains("other hours"), "{why}");
        tiers[1].policy.is_draining = true;
        assert_eq!(
            shown(&plan(&tiers, &uses, &NONE, Some(6))),
            [(2, Some("home")), (1, None)]
        );
    }
}
