//! The phases that a user wants, by kind of notice.

use crate::fact::{NoticeKind, NotificationPhase};

/// A set of phases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Phases(u8);

impl Phases {
    /// No phase.
    pub const NONE: Self = Self(0);

    /// The set of these phases.
    #[must_use]
    pub const fn of(phases: &[NotificationPhase]) -> Self {
        let (mut set, mut n) = (Self::NONE, 0);
        while n < phases.len() {
            set = set.with(phases[n]);
            n += 1;
        }
        set
    }

    /// The set with one more phase.
    #[must_use]
    pub const fn with(self, phase: NotificationPhase) -> Self {
        Self(self.0 | 1 << phase as u8)
    }

    /// Whether the phase is in the set.
    #[must_use]
    pub const fn has(self, phase: NotificationPhase) -> bool {
        self.0 & (1 << phase as u8) != 0
    }

    /// Whether no phase is in the set.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The phases of both sets.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The phases, in the order of an interruption.
    pub fn iter(self) -> impl Iterator<Item = NotificationPhase> {
        NotificationPhase::ALL.into_iter().filter(move |phase| self.has(*phase))
    }

    /// Reads `PHASE[+PHASE…]`, `all` or `none`.
    ///
    /// # Errors
    /// The word that is no phase.
    pub fn parse(text: &str) -> Result<Self, &str> {
        match text {
            "all" => return Ok(Self::of(&NotificationPhase::ALL)),
            "none" => return Ok(Self::NONE),
            _ => {}
        }
        text.split('+').try_fold(Self::NONE, |set, word| {
            let phase = NotificationPhase::ALL.into_iter().find(|phase| phase.as_str() == word.trim());
            phase.map(|phase| set.with(phase)).ok_or(word)
        })
    }
}

/// The phases that are sent, by kind of notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhaseChoice([Phases; NoticeKind::ALL.len()]);

impl PhaseChoice {
    /// The same phases for all kinds.
    #[must_use]
    pub const fn all(phases: Phases) -> Self {
        Self([phases; NoticeKind::ALL.len()])
    }

    /// Sets the phases of one kind.
    pub const fn set(&mut self, kind: NoticeKind, phases: Phases) {
        self.0[kind as usize] = phases;
    }

    /// Returns the phases of a kind.
    #[must_use]
    pub const fn of(&self, kind: NoticeKind) -> Phases {
        self.0[kind as usize]
    }

    /// Returns the phases of any kind.
    #[must_use]
    pub fn any(&self) -> Phases {
        self.0.into_iter().fold(Phases::NONE, Phases::or)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use NotificationPhase::{Blocked, Done, Failed, Notice};

    #[test]
    fn sets_are_read_as_they_are_written() {
        let read = |text| Phases::parse(text).map(|set| set.iter().collect::<Vec<_>>());
        assert_eq!(read("failed+blocked"), Ok(vec![Blocked, Failed]));
        assert_eq!(read("done"), Ok(vec![Done]));
        assert_eq!(read("all"), Ok(vec![Notice, Blocked, Done, Failed]));
        assert_eq!((read("none"), Phases::NONE.is_empty()), (Ok(Vec::new()), true));
        for (text, wrong) in [("", ""), ("done,failed", "done,failed"), ("done+all", "all"), ("Done", "Done")] {
            assert_eq!(read(text), Err(wrong));
        }
    }
}
