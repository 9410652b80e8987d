//! The markers that rules hang on, and the one scan for all of them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, OnceLock};

use aho_corasick::{AhoCorasick, AhoCorasickKind};

use super::span::Spans;
use super::tokens::{self, TOKENS, Token};
use super::{command, names};

/// What a marker leads to.
#[derive(Clone, Copy)]
pub(super) enum Found {
    /// A secret of a known shape begins here.
    Token(&'static Token),
    /// Something that is looked at more closely: text, start and end of the marker, results.
    Shape(fn(&[u8], usize, usize, &mut Spans<'_>)),
    /// Part of a name that secrets are given to.
    Name,
    /// A program that takes secrets as arguments.
    Program,
}

/// Whoever has read so many bytes will read more.
const MUCH: usize = 256 * 1024;

/// All markers, in one automaton. It is small at first: most processes that are started read a few records, and are gone
/// before a large one would be made.
pub(super) struct Markers {
    texts: Vec<&'static str>,
    meaning: Vec<Found>,
    small: AhoCorasick,
    /// Several times as fast to read with, and as slow to make.
    large: OnceLock<AhoCorasick>,
    read: AtomicUsize,
}

pub(super) static MARKERS: LazyLock<Markers> = LazyLock::new(|| {
    let mut texts: Vec<&'static str> = Vec::new();
    let mut meaning = Vec::new();
    let mut add = |text, found| {
        texts.push(text);
        meaning.push(found);
    };
    for token in TOKENS {
        add(token.prefix, Found::Token(token));
    }
    for &(text, shape) in tokens::SHAPES {
        add(text, Found::Shape(shape));
    }
    for &text in names::WORDS {
        add(text, Found::Name);
    }
    for program in command::PROGRAMS {
        add(program.name, Found::Program);
    }
    Markers {
        small: automaton(&texts, AhoCorasickKind::ContiguousNFA),
        large: OnceLock::new(),
        read: AtomicUsize::new(0),
        texts,
        meaning,
    }
});

fn automaton(texts: &[&str], kind: AhoCorasickKind) -> AhoCorasick {
    AhoCorasick::builder()
        .ascii_case_insensitive(true)
        .kind(Some(kind))
        .build(texts)
        // Only patterns beyond any size fail. Without the automaton every secret would stay, so there is no going on.
        .expect("the markers are fixed and few")
}

impl Markers {
    /// What to read a text of this length with.
    fn automaton(&self, length: usize) -> &AhoCorasick {
        if let Some(large) = self.large.get() {
            return large;
        }
        match self.read.fetch_add(length, Ordering::Relaxed) + length > MUCH {
            true => self
                .large
                .get_or_init(|| automaton(&self.texts, AhoCorasickKind::DFA)),
            false => &self.small,
        }
    }

    /// Whether there is any marker at all.
    pub(super) fn any(&self, text: &[u8]) -> bool {
        self.automaton(text.len()).is_match(text)
    }

    /// Every marker in the text, overlapping ones too.
    pub(super) fn all<'a>(
        &'a self,
        text: &'a [u8],
    ) -> impl Iterator<Item = (Found, usize, usize)> + 'a {
        let found = self.automaton(text.len()).find_overlapping_iter(text);
        found.map(|found| {
            let meaning = self.meaning[found.pattern().as_usize()];
            (meaning, found.start(), found.end())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_automata_find_the_same() {
        let texts = &MARKERS.texts;
        let text = texts.join(" ").to_ascii_uppercase() + &texts.concat();
        let found = |kind| {
            let automaton = automaton(texts, kind);
            let all = automaton.find_overlapping_iter(&text);
            all.map(|one| (one.start(), one.end(), one.pattern()))
                .collect::<Vec<_>>()
        };
        let small = found(AhoCorasickKind::ContiguousNFA);
        assert!(small.len() >= 2 * texts.len());
        assert_eq!(small, found(AhoCorasickKind::DFA));
    }
}
